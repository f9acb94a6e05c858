"""Products of whole numbers by the GEMM of AMD's Matrix Cores, simulated."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import tilewright as tw
from tests.helpers.gpu_kernels import emit_mfma_gemm
from tilewright.ir import i8, i16
from tilewright.kernels.narrow import memory_type
from tilewright.targets import target

DTYPES: dict[str, Any] = {
    "f64": np.float64, "f32": np.float32, "xf32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "i8": np.int8, "u8": np.uint8, "i16": np.int16, "u16": np.uint16, "i32": np.int32,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz, "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e4m3fn": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}
BANKS = {"gfx950": target("gfx950")}  # gfx942's are those of waves of 64 lanes
SMALL = {"CTA_M": 64, "CTA_N": 64, "WARP_M": 32, "WARP_N": 32}


def bits(format: str) -> int:
    return 8 * np.dtype(DTYPES[format]).itemsize


def sums(format: str) -> Any:
    return {"f64": np.float64, "i8": np.int32}.get(format, np.float32)


def product(m: int, n: int, k: int, *, ARCH: str, A: str, B: str | None = None, LAYOUT: str = "nt", alpha: float = 1,
            beta: float = 0, SPLIT_K: int = 1, OUT: str | None = None,
            **options: Any) -> tuple[Any, Any, Any]:
    """(C as the kernel computes it, what it is, the report): of whole numbers, so that they are the same."""
    B, row = B or A, 128 if A != "f64" else 64
    options = SMALL | {"CTA_K": row * 8 // bits(A), "MFMA": 16 if A == "f64" else 32} | options
    along = [x for x, is_along in ((m, LAYOUT[0] == "t"), (n, LAYOUT[1] == "n")) if is_along]
    function = emit_mfma_gemm(ARCH=ARCH, A=A, B=B, LAYOUT=LAYOUT, SPLIT_K=SPLIT_K, OUT=OUT, VECTOR_C=min(4, n & -n),
                              VECTOR=min([16, *(x & -x for x in along)]), **options)
    rng = np.random.default_rng(m + n + k)
    a, b = rng.integers(-3, 4, (m, k)).astype(DTYPES[A]), rng.integers(-3, 4, (k, n)).astype(DTYPES[B])
    c = rng.integers(-3, 4, (m, n)).astype(DTYPES[OUT] if OUT else sums(A))
    wanted = alpha * (a.astype(np.float64) @ b.astype(np.float64)) + (beta * c.astype(np.float64) if beta else 0)
    if not beta:
        c = np.full_like(c, 77 if A == "i8" else np.nan)
    held = [np.ascontiguousarray(x if kept else x.T) for x, kept in ((a, LAYOUT[0] == "n"), (b, LAYOUT[1] == "n"))]
    flat = [(x.view(np.int8) if x.itemsize == 1 else x).ravel() for x in held]
    tiles = -(-m // options["CTA_M"]) * -(-n // options["CTA_N"])
    kept = memory_type(OUT) if OUT else None
    c_flat = c.ravel().view(np.int8 if kept == i8 else np.int16 if kept == i16 else c.dtype)
    args = [m, n, k, alpha, flat[0], held[0].shape[1], flat[1], held[1].shape[1], beta, c_flat, n]
    if SPLIT_K > 1:
        counters = np.zeros(tiles, np.int32)
        args += [np.zeros(SPLIT_K * tiles * options["CTA_M"] * options["CTA_N"], sums(A)), counters]
    report = tw.simulate(function, *args, grid=(tiles, 1, SPLIT_K), target=BANKS.get(ARCH))
    if SPLIT_K > 1:
        assert not counters.any()
    with np.errstate(over="ignore"):
        wanted = wanted.astype(np.int64 if c.dtype.kind in "iu" else np.float32 if OUT else np.float64).astype(c.dtype)
    return c.astype(np.float64), wanted.astype(np.float64), report


def without_conflicts(report: Any) -> None:
    for kind in ("load", "store"):
        there = report.of("tiles", kind, "shared")
        assert there.requests > 0
        assert there.conflicts == 0


def exact(*shape: int, **options: Any) -> Any:
    found, wanted, report = product(*shape, **options)
    np.testing.assert_array_equal(found, wanted)
    return report
