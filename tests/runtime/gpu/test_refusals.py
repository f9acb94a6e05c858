"""What products on GPUs refuse: calls and their sentences, on the fake drivers of both makers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.gpus import machine
from tests.products.arrays import make, placed
from tests.runtime.gpu.test_blocks_on_gpus import Pairs

HOPPER, BOTH = ("sm_90a",), ("sm_90a", "gfx942")
UP = (3, 20, 24)            # offsets of groups
SIMT = "simt 32x32x16 warp=32x32 thread=8x4 stages=3"


def host(text: str) -> np.ndarray:
    return make(text, "whole", 1).array


class Memory:
    """Makes arrays of texts, as tests/products/arrays.py has them, in the memory of a GPU."""

    def __init__(self, gpu: Any) -> None:
        self.gpu = gpu

    def __call__(self, text: str, axis: int = -1) -> Any:
        return placed(make(text, "whole", 1, axis).array, self.array, lambda x: self.array(
            x.view(np.uint8) if x.dtype.kind == "V" and x.itemsize == 1 else x))

    def array(self, x: np.ndarray) -> Any:
        return self.gpu.array(x)

    @property
    def ends(self) -> Any:
        return self.array(np.array(UP, np.int32))


def grouped(on: Memory, a: str = "f32 24x32", **options: Any) -> Any:
    return tw.grouped_matmul(on(a), on("f32 3x32x24"), options.pop("offsets", on.ends), **options)


def product(x: Any, y: Any) -> Any:
    return x * y


ROWS: list[tuple[tuple[str, ...], Callable[[Memory], Any], type[Exception], str]] = [
    # einsum
    (BOTH, lambda on: tw.einsum("ab,bc->c", on("f32 3x4"), on("f32 4x5")), ValueError,
     "label 'a' is summed over in one operand alone, which is no product: on "),
    (BOTH, lambda on: tw.einsum("ab->a", on("f32 3x4")), ValueError, "label 'b' is summed over"),
    (BOTH, lambda on: tw.einsum("ab,bc->ac", on("f32 3x4"), host("f32 4x5")), TypeError,
     r"and operand 1 is numpy\.ndarray"),
    # functions
    (("sm_90a", "sm_80", "gfx942"), lambda on: tw.matmul(on("f32 8x16"), on("i8 16x8"), prologue_b=lambda b: b + 1),
     TypeError, "prologue_b gives integers, which GPUs do not multiply"),
    (BOTH, lambda on: tw.matmul(on("f32 8x16"), on("i8 16x8"), prologue_b=lambda b: 1.0*b, scale_a=host("f32 8x1")),
     ValueError, "prologue_a and prologue_b must be None where rows or columns of an operand"),
    (("gfx942",), lambda on: tw.compile(tw.Gemm(8, 8, 16, "bf16", "i8", prologue_b=tw.prologue(
        lambda b: 1.0*b, "i8", "bf16")), "gfx942"), ValueError, "kernels of gfx942 take no prologue"),
    (("sm_90a", "sm_80", "gfx942"), lambda on: tw.matmul(on("f32 8x16"), on("f32 16x8"), epilogue=lambda acc: (
        acc, tw.row_max(acc > 0))), TypeError, "row_max of comparisons"),
    (("sm_90a", "sm_80", "gfx942"), lambda on: tw.matmul(on("f32 8x16"), on("f32 16x8"), (None, None), epilogue=abs),
     ValueError, "array or None for each of .* 1 results"),
    (("sm_90a", "sm_80", "gfx942"), lambda on: tw.matmul(
        on("f32 8x16"), on("f32 16x8"), epilogue=lambda acc, x: acc + x, operands={"x": host("f32 9")}), ValueError,
     "must broadcast to"),
    (("gfx950",), lambda on: tw.matmul(on("f32 8x16"), on("f32 16x8"), epilogue=abs, out_dtype="nvfp4"), TypeError,
     "block-scaled results on NVIDIA's GPUs alone"),
    (HOPPER, lambda on: tw.contract(product, on("f32 8x16"), host("f32 16x8")), TypeError,
          "arrays of a product must be of"),
    (HOPPER, lambda on: tw.contract(product, on("c64 8x16"), on("f32 16x8")), TypeError, "of real floating-p"),
    (HOPPER, lambda on: tw.contract(product, on("f32 8x0"), on("f32 0x8"), reduce="min"), ValueError,
     "the min of no values"),
    (HOPPER, lambda on: tw.contract(product, on("f32 8x0"), on("f32 0x8"), reduce="logsumexp"), ValueError,
     "the logsumexp of no values on a GPU: k must be 1 or more"),
    (("gfx942",), lambda on: tw.contract(product, on("f32 8x16"), on("f32 16x8")), TypeError,
     "gfx942 has no kernels for contract: it runs on CPUs and on NVIDIA's GPUs"),
    *((HOPPER, lambda on, x=x, kind=kind: tw.Gemm(8, 8, 8, x, semiring=tw.semiring(lambda x, y: x > y, "any", kind)),
       ValueError, sentence)
      for x, kind, sentence in (("f32", "int", "numbers of kind float, not i"), ("c64", "float", "of real formats"))),
    # weights of few bits
    (HOPPER, lambda on: tw.matmul(on("f32 2x16"), on("i4 16x64 group=32 nibbles")), ValueError,
     "the groups of b must be along k"),
    (HOPPER, lambda on: tw.matmul(on("i8 2x64"), on("i4 16x64 group=32 nibbles"), trans_b=True), TypeError,
     "which is multiplied on GPUs by operands of f32, bf16, f16, not of i8"),
    (HOPPER, lambda on: tw.matmul(on("f32 2x64"), on("i4 16x64 group=32 nibbles"), trans_b=True, scale_b=2.0),
     ValueError, "scale_b and prologue_b must be None with it"),
    (HOPPER, lambda on: tw.matmul(on("bf16 2x96"), replace(on("i8 24x96 weights"), scales=on("f32 1x96")),
          trans_b=True),
     ValueError, "with a scale for each step of k"),
    # scales
    *((HOPPER, lambda on, x=x: tw.matmul(on("e4m3fn 13x48"), on("e4m3fn 48x16"), scale_a=on(x)), error, sentence)
      for x, error, sentence in (("f32 12x1", ValueError, "scale_a .*(13, 1)"), ("f32 13", ValueError, "scale_a"),
                                 ("i32 13x1", TypeError, "scale_a must be .* on sm_90a"))),
    (HOPPER, lambda on: tw.matmul(on("e4m3fn 13x48"), on("e4m3fn 48x16"), scale_a="much"), TypeError, "scale_a"),
    (HOPPER, lambda on: tw.matmul(on("e4m3fn 13x48"), on("e4m3fn 48x16"), scale_a=2.0, scale_b=on("f32 1x1"),
                                  out_dtype="i32"), TypeError, "floating-point"),
    (HOPPER, lambda on: tw.matmul(on("i8 1x200000"), on("i8 200000x1"), scale_a=0.5), TypeError,
     r"sm_90a has no kernel for a = i8, b = i8, .* sums in i64"),
    (HOPPER, lambda on: tw.Gemm(1, 1, 1, "i8", scales="columns"), ValueError,
     "scales must be one of '', 'rows', '1x128', '128x128', not 'columns'"),
    (HOPPER, lambda on: tw.Gemm(1, 1, 1, "i8", out="i32", scales="rows"), ValueError, "floating-point format"),
    (("gfx942",), lambda on: tw.plan(tw.Gemm(64, 64, 256, "f16", scales="1x128"), "gfx942"), ValueError,
     "gfx942 has no kernels with scales of 1x128"),
    (HOPPER, lambda on: tw.plan(tw.Gemm(64, 64, 256, "f32", scales="1x128"), "sm_90a"), ValueError,
     "sm_90a has kernels for f16, .* not for f32 by f32 .* of 1x128"),
    *((chip, lambda on, x=x: tw.matmul(on(f"{x} 16x256"), on(f"{x} 256x16"), scale_a=on("f32 16x2"),
                                       scale_b=on("f32 2x16")), TypeError,
                                             f"has no kernel for .* and scales of 1x128; {end}")
      for chip, x, end in ((HOPPER, "f32", "it multiplies f16"), (("gfx942",), "f16", "it multiplies nothing"))),
    # blocks
    (HOPPER, lambda on: tw.matmul(on("mxfp8 13x64"), on("mxfp8 64x16", -2), scale_a=2.0), ValueError,
     "a is a Quantized, which has its own scales"),
    (HOPPER, lambda on: tw.matmul(on("mxfp8 64x16", -2), on("mxfp8 13x64")), ValueError,
     "the blocks of a must be along k, its axis -1, but"),
    (HOPPER, lambda on: tw.matmul(on("e4m3fn 13x64"), on("mxfp8 64x16", -2), scale_a=on("u8 13x3")), ValueError,
     r"scale_a, one for each 32 along axis -1, must have the shape \(13, 2\), not \(13, 3\)"),
    (HOPPER, lambda on: tw.matmul(on("f32 13x64"), on("mxfp8 64x16", -2), scale_a=on("u8 13x2")), TypeError,
     "scale_a of uint8 on sm_90a is for blocks of e4m3fn, e5m2 or float4_e2m1fn_x2 along k, and a is of float32"),
    (HOPPER, lambda on: tw.matmul(Pairs(np.ones((13, 32), np.uint8)), on("mxfp8 64x16", -2)), TypeError,
     "a has dtype float4_e2m1fn_x2, so"),
    (HOPPER, lambda on: tw.matmul(on("mxfp8 13x64"), make("mxfp8 64x16", "whole", 1, -2).array), TypeError,
     "a is .* in a CUDA device's memory, and b is"),
    (HOPPER, lambda on: tw.dequantize(on("mxfp8 13x64")), TypeError, "are in a GPU's memory, a Tensor"),
    (HOPPER, lambda on: replace(on("mxfp8 13x64"), scales=np.ones((13, 2), np.uint8)), TypeError,
     "must both be NumPy arrays or both"),
    (HOPPER, lambda on: tw.plan(tw.Gemm(64, 64, 64, "mxfp4"), "sm_75"), ValueError,
     "sm_75 has no matrix instructions for bf16, as which block-scaled operands are multiplied"),
    *((HOPPER, lambda on, x=x, plan=plan: tw.compile(tw.Gemm(64, 64, 64, x), "sm_80", plan), ValueError, sentence)
      for x, plan, sentence in (
        ("mxfp4", "mma 64x64x64 warp=32x32 stages=2 vector=8",
         "decoded must be bf16 for operands that are block-scaled, not none"),
        ("bf16", "mma 64x64x64 warp=32x32 stages=2 decoded=bf16",
         "decoded must be none for operands that are not block-scaled, not bf16"))),
    # groups
    (HOPPER, lambda on: grouped(on, offsets=np.array(UP)), TypeError, "offsets must be on the GPU"),
    (HOPPER, lambda on: grouped(on, epilogue=abs, out_dtype=("f32", "f32")), ValueError, "out_dtype"),
    (HOPPER, lambda on: grouped(on, plan=f"{SIMT} split_k=2"), ValueError, "plan must not share tiles of C"),
    (HOPPER, lambda on: grouped(on, "f32 24x32 far", plan=f"{SIMT} vector=4"), ValueError, "the operands allow 1"),
    # algorithms and factors
    (HOPPER, lambda on: tw.matmul(on("f16 33x50"), on("f32 50x35"), algorithm="bf16_bf16_f32_x6"), TypeError,
     "splits operands of float32"),
    (HOPPER, lambda on: tw.matmul(on("f32 33x50"), on("f32 50x35"), algorithm="bf16_bf16_f32_x4"), ValueError,
     "on sm_90a, not 'bf16_bf16_f32_x4'"),
    (("gfx942",), lambda on: tw.matmul(on("f32 3x5"), on("f32 5x4"), algorithm="fastest"), ValueError,
     "algorithm= is not supported"),
    (("gfx942",), lambda on: tw.matmul(on("f16 8x8"), on("f16 8x8"), alpha=1j), TypeError, "alpha = 1j is complex"),
    (BOTH, lambda on: tw.matmul(on("i8 8x8"), on("i8 8x8"), alpha=0.5), TypeError,
     "alpha must be a whole number where integers are multiplied"),
    # formats and places
    *((("gfx942",), lambda on, a=a, b=b, out=out: tw.matmul(on(f"{a} 8x8"), on(f"{b} 8x8"), out_dtype=out), TypeError,
          sentence)
      for a, b, out, sentence in (
        ("i64", "i64", None, r"gfx942 has no kernel for a = i64, .*; it multiplies f64, f32, "),
        ("i32", "i8", None, "gfx942 has no kernel for a = i32, b = i8, result = i32, with sums in i32; it"),
        ("i8", "i8", "i64", r"gfx942 has no kernel for a = i8, b = i8, result = i64, with sums in i64"))),
    (BOTH, lambda on: tw.matmul(on("f16 8x8"), on("f16 8x8"), on("i8 8x8")), TypeError,
     "out has dtype int8, to which a result of dtype float16 cannot be cast"),
    (("gfx942",), lambda on: tw.matmul(on("f16 8x8"), host("f16 8x8")), TypeError,
     r"a is tests.Tensor in an AMD GPU's memory, and b is numpy.ndarray"),
    (("gfx942",), lambda on: tw.pack(on("f16 8x8")), TypeError,
     "b must be in the CPU's memory to be packed, but it is tests"),
]


@pytest.mark.parametrize(("target", "call", "error", "sentence"), [
    pytest.param(target, *rest, id=f"{target}: {rest[2]}") for targets, *rest in ROWS for target in targets])
def test_refused(monkeypatch: pytest.MonkeyPatch, target: str, call: Callable[[Memory], Any], error: type[Exception],
                 sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        call(Memory(machine(monkeypatch, target)))
