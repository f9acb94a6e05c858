"""Products of whole numbers by the GEMM of AMD's Matrix Cores, simulated."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.helpers.gemms import Result, dtype_of, simulated
from tests.helpers.gpu_kernels import emit_mfma_gemm
from tilewright.targets import target

BANKS = {"gfx950": target("gfx950")}  # gfx942's are those of waves of 64 lanes
SMALL = {"CTA_M": 64, "CTA_N": 64, "WARP_M": 32, "WARP_N": 32}


def bits(format: str) -> int:
    return 8 * dtype_of(format).itemsize


def product(m: int, n: int, k: int, *, ARCH: str, A: str, B: str | None = None, LAYOUT: str = "nt",
            **options: Any) -> Result:
    row = 128 if A != "f64" else 64
    usual = SMALL | {"CTA_K": row * 8 // bits(A), "MFMA": 16 if A == "f64" else 32}
    along = [x for x, is_along in ((m, LAYOUT[0] == "t"), (n, LAYOUT[1] == "n")) if is_along]
    return simulated(emit_mfma_gemm, m, n, k, ARCH=ARCH, A=A, B=B or A, LAYOUT=LAYOUT, VECTOR_C=min(4, n & -n),
                     VECTOR=min([16, *(x & -x for x in along)]), target=BANKS.get(ARCH), **usual | options)


def without_conflicts(report: Any, *names: str) -> None:
    for name in names or ("tiles",):
        for kind in ("load", "store"):
            there = report.of(name, kind, "shared")
            assert there.requests > 0
            assert there.conflicts == 0


def exact(*shape: int, **options: Any) -> Any:
    found = product(*shape, **options)
    np.testing.assert_array_equal(found.c, found.wanted)
    return found.report
