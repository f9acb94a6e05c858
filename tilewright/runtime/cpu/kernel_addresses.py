"""Machine code for the engine, by what it is for: micro-kernels, packing, drivers. Compiled when first asked for."""
from __future__ import annotations

from functools import cache

import numpy as np

from tilewright.compiler.artefact import load
from tilewright.kernels.cpu import jobs
from tilewright.plans.cpu import itemsize
from tilewright.targets.base import CpuTarget

_CPU = "tilewright.kernels.cpu."


class Microkernels:
    """The micro-kernels of one register tile as a table of addresses, filled as problems need them."""

    def __init__(self, target: CpuTarget, dtype: str, mr: int, nr: int, a: str) -> None:
        self.target, self.dtype, self.a = target, dtype, a
        self.mr, self.nr, self.lanes = mr, nr, target.lanes(itemsize(dtype))
        self.table = np.zeros(mr * (nr // self.lanes) * (1 if a == "packed" else 2), np.int64)
        self.address = self.table.ctypes.data

    def need(self, m: int, n: int) -> None:
        """Compile what an m x n matrix C meets."""
        for kernel in self.wanted(m, n):
            if not self.table[kernel.slot]:
                self.table[kernel.slot] = self.compiled(kernel)

    def wanted(self, m: int, n: int) -> list[jobs.Microkernel]:
        if self.dtype.startswith("amx"):                        # one for all
            return [jobs.Microkernel(0, self.mr, self.nr // self.lanes, self.lanes, "packed")]
        return jobs.microkernels(m, n, self.mr, self.nr, self.lanes, self.a)

    def compiled(self, kernel: jobs.Microkernel) -> int:
        if self.dtype.startswith("amx"):
            name = jobs.microkernel_name(self.dtype, self.mr, self.nr, self.a, kernel.b)
            return load(_CPU + "amx:emit_amx", self.target, self.dtype).address(name)
        code = load(_CPU + "microkernel:emit_microkernel", self.target, *kernel.arguments(self.dtype, self.a))
        width = kernel.vectors * kernel.lanes
        return code.address(jobs.microkernel_name(self.dtype, kernel.height, width, self.a, kernel.b))


@cache
def microkernels(target: CpuTarget, dtype: str, mr: int, nr: int, a: str) -> Microkernels:
    return Microkernels(target, dtype, mr, nr, a)


@cache
def packing(target: CpuTarget, dtype: str, width: int, kind: str, *source: str) -> int:
    """Address of the function that packs panels of up to `width` lines: kernels/cpu/packing.py."""
    code = load(_CPU + "packing:emit_pack", target, dtype, width, kind, *source)
    return code.address(jobs.packing_name(dtype, width, kind, *source))


@cache
def packing_words(target: CpuTarget, dtype: str, width: int, kind: str, source: str, role: str) -> int:
    """The same of words: kernels/cpu/packing_words.py."""
    code = load(_CPU + "packing_words:emit_pack_words", target, dtype, width, kind, source, role)
    return code.address(jobs.packing_name(dtype, width, kind, f"{source}_{role}"))


@cache
def packing_tiles(target: CpuTarget, dtype: str, width: int, kind: str, source: str, role: str) -> int:
    """The same of tiles: kernels/cpu/packing_tiles.py."""
    code = load(_CPU + "packing_tiles:emit_pack_tiles", target, dtype, kind, source, role)
    return code.address(jobs.packing_name(dtype, width, kind, f"{source}_{role}"))


@cache
def finish(target: CpuTarget, width: int, result: str) -> int:
    """Address of the function that rounds tiles of C to their format: kernels/cpu/finish.py."""
    return load(_CPU + "finish:emit_finish", target, width, result).address(jobs.finish_name(width, result))


@cache
def scale(target: CpuTarget, dtype: str) -> int:
    """Address of the function that makes C of sums: kernels/cpu/scale.py."""
    return load(_CPU + "scale:emit_scale", target, dtype).address(jobs.scale_name(dtype))


@cache
def packing_complex(target: CpuTarget, dtype: str, width: int, kind: str, role: str, conj: str = "") -> int:
    """The same of complex numbers: kernels/cpu/packing_complex.py."""
    code = load(_CPU + "packing_complex:emit_pack_complex", target, dtype, width, kind, role, conj)
    return code.address(jobs.complex_packing_name(dtype, width, kind, role, conj))


@cache
def driver(target: CpuTarget, algorithm: str, dtype: str, mr: int, nr: int, *sources: str) -> int:
    """Address of the loops around the kernels; `sources` are the formats of A and B, if packing converts any, and then
    which of them was packed before."""
    if algorithm in ("dots", "stream"):
        found = load(f"{_CPU}{algorithm}:emit_{algorithm}", target, dtype, mr, nr)
        return found.address(f"{algorithm}_{dtype}_{mr}x{nr}")
    vectors = nr // target.lanes(itemsize(dtype))
    if algorithm == "packed":
        code = load(_CPU + "gemm:emit_gemm", target, dtype, mr, vectors, *sources)
        return code.address(jobs.driver_name(dtype, mr, nr, *sources))
    return load(_CPU + "in_place:emit_in_place", target, dtype, mr, vectors).address(f"in_place_{dtype}_{mr}x{nr}")


@cache
def prepack(target: CpuTarget, dtype: str, mr: int, nr: int, source: str, role: str) -> int:
    """Address of the function that packs all panels of an operand beforehand: kernels/cpu/prepack.py."""
    code = load(_CPU + "prepack:emit_prepack", target, dtype, mr, nr // target.lanes(itemsize(dtype)), source, role)
    return code.address(jobs.prepack_name(dtype, mr, nr, source, role))


@cache
def batch(target: CpuTarget) -> int:
    """Address of the loop over packed products: kernels/cpu/batch.py."""
    return load(_CPU + "batch:emit_batch", target).address("batch_packed")
