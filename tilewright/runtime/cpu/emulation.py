"""Products by several cheaper ones, which a call asks for by `algorithm=`: f32 from three bf16 terms, f16 from two.

    bf16_bf16_f32_x3    f32, two terms of an element, three products: error up to 3 * 2^-16 of |A| |B|
    bf16_bf16_f32_x6    f32, three terms, the six largest products: 2^-23, less than f32's own rounding from k = 32 on
    bf16_bf16_f32_x9    f32, three terms, all products: those of exact elements
    bf16_bf16_f32_x4    f16, two terms, which hold an element exactly, all four products
    fastest             x6 of f32, x4 of f16, or none: they are taken by one thread, where the gain is large and sure

Where AMX is missing, or a product is too small for it to pay, the native product is computed: it is as accurate. So it
is where an element is infinite, no number, or so large that it is infinite as a bf16: packing notices.
"""
from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.plans.amx import faster, pays
from tilewright.runtime.cpu import amx, engine, pool
from tilewright.targets import CpuTarget, detect

Matrix = NDArray[Any]
FASTEST = "fastest"
TERMS = {"bf16_bf16_f32_x3": ("f32", "amx_bf16_x3"), "bf16_bf16_f32_x6": ("f32", "amx_bf16_x6"),
         "bf16_bf16_f32_x9": ("f32", "amx_bf16_x9"), "bf16_bf16_f32_x4": ("f16", "amx_f16")}
NO_WORSE = {"f32": "amx_bf16_x6", "f16": "amx_f16"}        # than the native product's error bound
FORMATS = {np.dtype(np.float32): "f32", np.dtype(np.float16): "f16"}


def gemm(a: Matrix, b: Matrix, c: Matrix, alpha: float = 1.0, beta: float = 0.0, *, algorithm: str,
         threads: int | None = None, target: CpuTarget | None = None) -> None:
    """What runtime.cpu.gemm computes, for operands f32 or f16 and a float32 c, by the algorithm of that name."""
    target = amx.permitted(target or detect())
    word = _word(a, b, algorithm, target, threads or pool.get_num_threads()) if alpha and a.size and b.size else ""
    if word:
        product = np.empty_like(c) if beta else c
        if not engine.gemm(a, b, product, alpha, threads=threads, target=target, tiles=word):
            if beta:
                with np.errstate(all="ignore"):
                    c[...] = np.multiply(c, beta, dtype=np.float64) + product
            return
    m, n, k = *c.shape, a.shape[1]
    a, b = (x if x.dtype == c.dtype or engine.converts(x, c.dtype, m, n, k) else x.astype(c.dtype) for x in (a, b))
    engine.gemm(a, b, c, alpha, beta, threads=threads, target=target)


def _word(a: Matrix, b: Matrix, algorithm: str, target: CpuTarget, threads: int) -> str:
    """What of plans.amx to multiply by, or ""."""
    if a.dtype != b.dtype or "amx-bf16" not in target.extensions:
        return ""
    format = FORMATS.get(a.dtype, "")
    sizes = a.shape[0], b.shape[1], a.shape[1]
    if algorithm == FASTEST:
        word = NO_WORSE.get(format, "")
        return word if word and faster(word, *sizes, threads) else ""
    word = TERMS[algorithm][1]
    return word if pays(word, *sizes) else ""
