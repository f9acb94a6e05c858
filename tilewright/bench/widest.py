"""Which kernels a peer runs: the C libraries get the widest that they have and this CPU can run, and are asked which.

A library knows CPUs by name, and one that is younger than itself may get narrow kernels; being compared with those
would flatter us.  BLIS can be told otherwise in every call.  OpenBLAS goes by the CPU's features where it does not know
the name, and MKL, which cannot be told, by the maker: what they chose is named, and called narrow where it is.
"""

from __future__ import annotations

import ctypes
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tilewright.measure import measure
from tilewright.measure.machine import cpu_flags
from tilewright.measure.measure import Call, Clock, Rules

AVX2_KERNELS = ("Haswell", "Zen", "libmkl_def", "libmkl_avx2")  # OpenBLAS's names and MKL's: 256 bits at most
MAPS = Path("/proc/self/maps")


def has_avx512() -> bool:
    """The part of AVX-512 that kernels for Skylake-X use, and every later CPU with AVX-512 has."""
    return cpu_flags() >= {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


def named(kernels: str) -> str:
    """The name of a library's kernels, with a remark if this CPU runs wider ones."""
    return kernels + ": narrower than this CPU" * (kernels in AVX2_KERNELS and has_avx512())


def numpy_kernels() -> str | None:
    """The kernels of the OpenBLAS that NumPy is linked with; None if it is another BLAS, or an OpenBLAS for one CPU."""
    module = sys.modules.get("numpy._core._multiarray_umath") or sys.modules.get("numpy.core._multiarray_umath")
    # A symbol is also looked for in what the library depends on: NumPy's own copy answers, whatever else is loaded.
    library = ctypes.CDLL(getattr(module, "__file__", None))
    for name in ("scipy_openblas_get_corename64_", "openblas_get_corename64_", "openblas_get_corename"):
        if hasattr(library, name):
            corename = library[name]
            corename.restype = ctypes.c_char_p
            return named(corename().decode())
    return None


def mkl_kernels(maps: Path = MAPS) -> str | None:
    """The library of kernels that MKL loaded at its first multiplication; None where /proc does not say.

    On CPUs by other makers that is libmkl_def, whatever they run: it holds AVX2 kernels for Zen.
    """
    try:
        found = re.search(r"(libmkl_(?:def|mc3|avx\w*))\.so", maps.read_text())
    except OSError:
        return None
    return named(found[1]) if found else None


def blis_names(own: str, avx2_only: bool) -> list[str]:
    """BLIS's names of the kernels worth trying here: its own choice, and those for CPUs with the same instructions.

    Its portable kernels ("generic") are tried only where there is nothing else: they would say nothing of BLIS.
    """
    mine = [] if avx2_only or own == "generic" else [own]
    avx2 = ["haswell", "zen2"] if cpu_flags() >= {"avx2", "fma"} else []
    avx512 = ["skx"] if has_avx512() and not avx2_only else []
    return list(dict.fromkeys([*mine, *avx2, *avx512])) or [own]


def fastest(calls: Mapping[str, Call], clock: Clock = time.perf_counter) -> str:
    """The name of the fastest of a few calls that do the same work, taken in turns for some hundredths of a second."""
    rules = Rules(turn_s=0.002, warm_s=0.0, min_rounds=5, max_rounds=5)
    samples = measure.interleave({name: [call] for name, call in calls.items()}, rules, clock=clock)
    return min(samples, key=lambda name: samples[name].spread.median)
