"""What recipes run on: machine code by what it is for, compiled when first asked for; workspaces, and threads."""
from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilewright.compiler.artefact import load, recorded
from tilewright.formats import FORMATS, Complex
from tilewright.kernels.cpu import jobs
from tilewright.plans.cpu_shape import ITEMSIZE, Shape
from tilewright.plans.prologues import decodes
from tilewright.plans.words import BY_NAME, BYTES
from tilewright.runtime.cpu import workspace
from tilewright.runtime.cpu.layout import address
from tilewright.runtime.cpu.pool import pool
from tilewright.targets.cpu import CpuTarget

if TYPE_CHECKING:
    from tilewright.ir.program import Function
    from tilewright.runtime.cpu.tables import Scattered

SWAPPED = str.maketrans("ab", "ba")
INTEGERS = {8: "i8", 16: "i16", 32: "i32", 64: "i64"}
DRIVER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)       # driver(job, thread or part)


def stored(source: str) -> str:
    """The format by which the loops around kernels know an operand's: they only count the bytes of its elements, and
    leave the rest to packing, so that one function serves all formats whose numbers are loaded as the same integers."""
    if not source or source in ("f16", "f32", "f64") or isinstance(FORMATS[source], Complex):
        return source
    return INTEGERS[max(FORMATS[source].bits, 8)]


class Part(NamedTuple):
    """An emitter of tilewright.kernels.cpu and its arguments after the target: one recorded function."""
    emitter: str                # "microkernel:emit_microkernel"
    args: tuple[Any, ...]

    def record(self, target: CpuTarget) -> Function:
        function: Function = recorded(f"tilewright.kernels.cpu.{self.emitter}", target, *self.args)
        return function


class Microkernels:
    """The micro-kernels of one register tile as a table of addresses, filled as problems need them."""

    def __init__(self, host: Host, target: CpuTarget, dtype: str, mr: int, nr: int, a: str, semiring: str = ""
                 ) -> None:
        self.host, self.target, self.dtype, self.a, self.semiring = host, target, dtype, a, semiring
        self.mr, self.nr, self.lanes = mr, nr, target.lanes(ITEMSIZE[dtype])
        self.table = np.zeros(mr * (nr // self.lanes) * (1 if a == "packed" else 2), np.int64)
        self.address = host.of_table(self.table)

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
            return self.host.address("amx:emit_amx", self.target, self.dtype)
        return self.host.address("microkernel:emit_microkernel", self.target,
                                 *kernel.arguments(self.dtype, self.a, self.semiring))


class Host:
    """This process: `host`, below. Elsewhere others answer: what records which kernels a plan needs (compiled/cpu.py),
    and the simulator."""
    address_of: Callable[[np.ndarray], int] = staticmethod(address)         # of an array's first element
    of_table: Callable[[np.ndarray], int] = staticmethod(address)           # of tables that jobs point to

    def __init__(self) -> None:
        self._tables: dict[tuple[Any, ...], Microkernels] = {}

    # ---- memory and threads

    take: Callable[[int], Any] = staticmethod(workspace.take)       # a workspace of so many bytes, with barriers
    give: Callable[[Any], None] = staticmethod(workspace.give)

    def job(self, fields: array) -> Any:
        """What functions take as their job."""
        return fields.buffer_info()[0]

    def callable(self, function: int) -> Callable[[Any, int], object]:
        """function(job, part), on the caller's thread."""
        return DRIVER(function)

    def run_parts(self, function: int, job: Any, parts: int, threads: int, wake: int) -> None:
        """Every part, by so many threads at most, of which at most `wake` are woken."""
        pool().run_parts(function, job, parts, threads, wake)

    def run_team(self, function: int, job: Any, threads: int) -> bool:
        """By threads that meet at barriers; False, and nothing done, if they cannot be had."""
        return pool().run_team(function, job, threads)

    def reserve(self, threads: int) -> int:
        """How many of these threads there can be."""
        return pool().reserve(threads)

    # ---- kernels

    def address(self, emitter: str, target: CpuTarget, *args: Any) -> int:
        """The address of the function that an emitter of tilewright.kernels.cpu records for these arguments."""
        return load(f"tilewright.kernels.cpu.{emitter}", target, *args).entry

    def microkernels(self, target: CpuTarget, dtype: str, mr: int, nr: int, a: str, semiring: str = ""
                     ) -> Microkernels:
        key = target, dtype, mr, nr, a, semiring
        if key not in self._tables:
            self._tables[key] = Microkernels(self, *key)
        return self._tables[key]

    def packing(self, target: CpuTarget, shape: Shape, width: int, kind: str, role: str, conj: str = "",
                prepare: jobs.Prepare | None = None) -> int:
        """The address of the function that packs panels of up to `width` rows of A, role "a", or columns of B, "b",
        that lie in memory as `kind` says; conj: which of complex operands are conjugated; prepare: the operand's
        prologue."""
        dtype, source = shape.dtype, shape.source_a if role == "a" else shape.source_b
        emitter, more = "packing:emit_pack", tuple[str, ...]((source,) if source and not shape.complex else ())
        args: tuple[Any, ...] = dtype, width, kind
        if shape.tiles:
            emitter, more = "amx:emit_pack_tiles", (source, role.translate(SWAPPED))
            args = dtype, kind                                          # tiles have one width
        elif shape.words:
            sums = shape.dtype == "i8x4" and shape.source_a == "i8"     # of B's columns, beside its panels
            emitter, more = "packing:emit_pack_words", (source, "a" if role == "a" else "b1" if sums else "b0")
        if prepare is not None and not shape.tiles:
            return self.address("prepared:emit_pack_prepared", target, *args, source, role, tuple(prepare))
        if shape.complex and (role == "b" or kind != "along"):        # else rows of A are a real matrix as they are
            conj = conj if role == "b" else ""
            return self.address("packing:emit_pack_complex", target, dtype, width, kind, role, conj)
        return self.address(emitter, target, *args, *more, *((tuple(prepare),) if prepare else ()))

    def packing_scattered(self, target: CpuTarget, shape: Shape, width: int, role: str, by: Scattered) -> int:
        """The address of the function that packs panels of an operand with tables."""
        source = shape.source_a if role == "a" else shape.source_b
        return self.address("scattered:emit_pack_scattered", target, shape.dtype, width, by.kind, by.pieces, source)

    def driver(self, target: CpuTarget, algorithm: str, dtype: str, mr: int, nr: int, *sources: str,
               prepacked: str = "", fields: int = 0, prologues: str = "",
               prepare: jobs.Prepare | None = None, by_rows: bool = False, result: str = "",
               complex_row: tuple[str, ...] | None = None, complex_in_place: tuple[Any, ...] = ()) -> int:
        """The address of the loops around the kernels; `sources` are the formats of A and B, if packing converts any;
        prepacked: which of them was packed before; fields: of a state that is kept (plans/semirings.py); prologues:
        which of them have one; prepare: that of the operand that is read once, whose format `sources` is then; by_rows:
        of B, which `dots` reads then; result: C's format, of `dots` that converts; complex_row: what emitters of
        complex_rows.py take after `nr`; complex_in_place: what emit_complex_in_place takes after `dtype`."""
        if complex_in_place:
            return self.address("complex_in_place:emit_complex_in_place", target, dtype, *complex_in_place)
        if complex_row is not None:
            return self.address(f"complex_rows:emit_complex_{algorithm}", target, dtype, nr, *complex_row)
        formats = (*(sources or ("", "")), result) if (any(sources) or result) and not prepare else ()
        sums = BY_NAME[dtype].sums if dtype in BY_NAME else dtype
        if by_rows:
            return self.address("skinny:emit_row_dots", target, sums, mr, nr, *formats)
        if algorithm in ("dots", "stream"):
            if dtype in BYTES:
                return self.address("byte_dots:emit_byte_dots", target, mr, nr, *sources, *((result,) * bool(result)))
            if formats:
                return self.address("skinny:emit_dots", target, sums, mr, nr, formats[0], (), *formats[1:])
            module = "weights" if prepare and decodes(*prepare[:2]) else "skinny"
            return self.address(f"{module}:emit_{algorithm}", target, dtype, mr, nr,
                                *((*sources, tuple(prepare)) if prepare else ()))
        vectors = nr // target.lanes(ITEMSIZE[dtype])
        if algorithm == "packed":
            sources = tuple(map(stored, sources))
            more: tuple[Any, ...] = (prepacked,) * bool(prepacked)
            if fields or prologues:
                sources, more = sources or ("", ""), (prepacked, fields, *((prologues,) * bool(prologues)))
            return self.address("gemm:emit_gemm", target, dtype, mr, vectors, *sources, *more)
        return self.address("in_place:emit_in_place", target, dtype, mr, vectors)


class Parts(Host):
    """Which functions a recipe asks for, in order; their addresses are their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Part, int] = {}

    def address(self, emitter: str, target: CpuTarget, *args: Any) -> int:
        return self.found.setdefault(Part(emitter, args), len(self.found) + 1)

    def reserve(self, threads: int) -> int:
        return threads


host = Host()
