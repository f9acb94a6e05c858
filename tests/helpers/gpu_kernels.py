"""GEMMs of GPUs by options in capitals, which tests vary one by one: emitters take a shape and a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from tilewright.expressions.numerics import Numerics
from tilewright.ir import Function
from tilewright.kernels.amd import gemm
from tilewright.kernels.gpu import small
from tilewright.kernels.nvidia import gemv, mma_gemm, simt_gemm, wgmma_gemm
from tilewright.plans.amd import AmdPlan
from tilewright.plans.gpu_shape import SUMS, GpuShape
from tilewright.plans.nvidia_plan import NvidiaPlan
from tilewright.plans.words import TERMS
from tilewright.problem import SCALE_BLOCKS

# Fields of plans whose options have other names, or other values.
WORDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "ASYNC": lambda x: {"copy": "async" if x else "registers"}, "DIRECT": lambda x: {"copy": "lds"} if x else {},
    "COPIED": lambda x: {"store": "tma" if x else "lanes"}, "STAGED": lambda x: {"store": "smem" if x else "lanes"},
    "DIVIDED": lambda x: {"tail": x}, "TRANSPOSE": lambda x: {"as_stored": not x},
    "EARLY": lambda x: {"prefetch_first": x}, "VECTOR_A": lambda x: {"vector": x},
    "TERMS": lambda x: {"terms": next(name for name, y in TERMS.items()
                                      if (y.format, y.count, y.count, len(y.pairs)) == x)},
    "SUMS": lambda x: {"terms": "f16"} if x == "f16" else {}}
# And of shapes.
OPERANDS = {"EPILOGUE": "epilogue", "SEMIRING": "semiring", "PROLOGUE_A": "prologue_a", "PROLOGUE_B": "prologue_b"}


def _emitted(emit: Callable[..., Function], Plan: Any, algorithm: str, sizes: tuple[int, int, int], scaled: str,
             **options: Any) -> Function:
    o = options
    a = o.pop("DTYPE", None) or o.pop("A")
    b, layout = o.pop("B", None) or a, o.pop("LAYOUT")
    out = o.pop("OUT", None) or (a if algorithm in ("simt", "gemv", "small") else SUMS.get(a, "f32"))
    blocks = {width: name for name, width in SCALE_BLOCKS.items()}.get(o.pop("BLOCKS", 0), "")
    scales = "rows" if o.pop("SCALED", False) else blocks
    batch, more = 1 + bool(o.pop("BATCH", False)), {OPERANDS[x]: o.pop(x) for x in OPERANDS if x in o}
    given, parts = {x: o.pop(x) for x in ("ARCH", "WHEN", "GROUPED", "XCDS") if x in o}, o.pop("PARTS", 1)
    if "TERMS" in o:
        o["TERMS"] = (a, *o["TERMS"])
    words: dict[str, Any] = {"algorithm": algorithm}
    for name, x in o.items():
        words |= WORDS[name](x) if name in WORDS else {name.lower(): x}
    assert words.keys() <= {f.name for f in fields(Plan)}, words
    plan = Plan(**words)
    if parts > 1:                               # whatever the tile is
        plan = plan.varied(parts=parts)
    shape = GpuShape(a, b, out, *sizes, layout, 1, 1, 1, batch=batch, scaled=scaled, scales=scales,
                     terms=getattr(plan, "split", ""), numerics=Numerics(**more))
    return emit(shape, plan, **given)


def _nvidia(emit: Callable[..., Function], algorithm: str, sizes: tuple[int, int, int] = (0, 0, 0), **options: Any
            ) -> Function:
    return _emitted(emit, NvidiaPlan, algorithm, sizes, "", **options)


def emit_simt_gemm(**options: Any) -> Function:
    tile = {"CTA_M": 128, "CTA_N": 128, "CTA_K": 16, "WARP_M": 32, "WARP_N": 64, "THREAD_M": 8, "THREAD_N": 8}
    return _nvidia(simt_gemm.emit_simt_gemm, "simt", **{"DTYPE": "f32", "LAYOUT": "nn", "VECTOR": 4} | tile | options)


def emit_mma_gemm(ARCH: str = "sm_80", **options: Any) -> Function:
    tile = {"CTA_M": 128, "CTA_N": 128, "CTA_K": 32, "WARP_M": 64, "WARP_N": 64}
    vectors = {"VECTOR_A": 8, "VECTOR_B": 8, "VECTOR_C": 1}
    return _nvidia(mma_gemm.emit_mma_gemm, "mma", ARCH=ARCH, **{"A": "bf16", "LAYOUT": "nn", "OUT": "f32"} | tile
                   | vectors | options)


def emit_wgmma_gemm(A: str = "bf16", B: str = "bf16", OUT: str = "bf16", SUMS: str = "f32", LAYOUT: str = "nt",
                    **options: Any) -> Function:
    tile = {"CTA_M": 128, "CTA_N": 256, "CTA_K": 64, "STAGES": 4, "WARPGROUPS": 2, "COPIED": True}
    return _nvidia(wgmma_gemm.emit_wgmma_gemm, "wgmma", A=A, B=B, OUT=OUT, SUMS=SUMS, LAYOUT=LAYOUT, **tile | options)


def emit_gemv(COLUMN: bool = False, COUNT: int = 1, EXTENT: int = 0, WARPS: int = 8, BESIDE: int = 0, **options: Any
              ) -> Function:
    o = {"LAYOUT": "nn", "DTYPE": "f32", "VECTOR": 4, "VECTOR_B": BESIDE, "ASYNC": "STAGES" in options} | options
    along_k = o["LAYOUT"][0] == "n" if COLUMN else o["LAYOUT"][1] == "t"
    width = EXTENT or (WARPS if along_k else 32 * o["VECTOR"])
    rows, columns = (width, COUNT) if COLUMN else (COUNT, width)
    return _nvidia(gemv.emit_gemv, "gemv", (int(COLUMN), 0, 0), CTA_M=rows, CTA_N=columns, CTA_K=WARPS, **o)


def emit_small(M: int, N: int, K: int, WARPS: int = 4, SHARED: bool = False, **options: Any) -> Function:
    o = {"VECTOR_A": 4, "VECTOR_B": 4, "VECTOR_C": 4} | options
    return _nvidia(small.emit_small, "small", (M, N, K), CTA_M=M, CTA_N=N, CTA_K=K, TEAM=WARPS if SHARED else 1, **o)


def _amd(emit: Callable[..., Function], algorithm: str, scaled: bool, k: int = 0, **options: Any) -> Function:
    tile = {"CTA_M": 256, "CTA_N": 256, "CTA_K": 32, "WARP_M": 128, "WARP_N": 64, "VECTOR": 16, "LAYOUT": "nt"}
    return _emitted(emit, AmdPlan, algorithm, (0, 0, k), "mx" * scaled, **tile | options)


def emit_mfma_gemm(**options: Any) -> Function:
    o = {"A": "f16"} | options
    algorithm = "xf32" if o["A"] == "xf32" else "mfma"
    o |= {x: "f32" for x in "AB" if o.get(x) == "xf32"}
    return _amd(gemm.emit_mfma_gemm, algorithm, False, **o)


def emit_scaled_mfma_gemm(DIRECT_SCALES: bool = False, **options: Any) -> Function:
    return _amd(gemm.emit_scaled_mfma_gemm, "scaled", True, 32 * (not DIRECT_SCALES),
                **{"A": "e2m1", "CTA_K": 128, "ARCH": "gfx950"} | options)
