"""CPU plans: the blocking of a GEMM on x86 and its relatives, and when one is legal.

    packed     the five loops (kernels/cpu/gemm.py): B in blocks of kc x nc for L3, A in blocks of mc x kc for L2
    in_place   no packing (kernels/cpu/in_place.py): kc steps of k at a time over all of C
    stream     `mr` rows (kernels/cpu/stream.py), `nr` rows of B at a time
    dots       at most `nr` columns, each element a dot product along k (kernels/cpu/dots.py)

`swap` computes C^T = B^T @ A^T, for which the operands change places: the roles of m and n, of rows and columns, too.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from tilewright.plans.common import Plan
from tilewright.plans.words import BY_NAME
from tilewright.targets.base import CpuTarget
from tilewright.targets.machine import MOST_THREADS

MOST_BLOCK = {"A": 64 << 20, "B": 1 << 30}      # bytes of a block: far beyond any L2, and any L3
MOST_LINES = (1 << 31) - 1      # rows, columns or steps of k in a block
Order = Literal["rows", "columns", "any"]       # what is contiguous in an operand
ITEMSIZE = {"f32": 4, "f64": 8, "i32": 4, "i64": 8, **dict.fromkeys(BY_NAME, 4)}


def itemsize(dtype: str) -> int:
    """Bytes of what panels consist of: elements, or words for AMX."""
    return 4 if dtype.startswith("amx") else ITEMSIZE[dtype]


def is_dtype(name: str) -> bool:
    """Whether panels may consist of it."""
    return name in ITEMSIZE or name.startswith("amx")


class Shape(NamedTuple):
    """What the choice of a plan depends on: the problem as the engine meets it."""
    dtype: str
    m: int
    n: int
    k: int
    a: Order
    b: Order
    threads: int = 1

    @property
    def swapped(self) -> Shape:
        turn: dict[Order, Order] = {"rows": "columns", "columns": "rows", "any": "any"}
        return self._replace(m=self.n, n=self.m, a=turn[self.b], b=turn[self.a])

    @property
    def itemsize(self) -> int:
        return itemsize(self.dtype)

    @property
    def tiles(self) -> bool:
        """Whether AMX multiplies: plans.amx."""
        return self.dtype.startswith("amx")


@dataclass(frozen=True)
class CpuPlan(Plan):
    FAMILY = "a CPU"
    EXAMPLE = "packed 14x32 mc=168 kc=1024 nc=4096 ways=1x2x1"
    SIZES = "mr", "nr"
    GROUPS = ("ways", "jc_ways", "ic_ways", "jr_ways"),

    algorithm: Literal["packed", "in_place", "stream", "dots"]
    mr: int                 # register tile, rows x columns
    nr: int
    mc: int = 0             # block of A: mc x kc. Of B: kc x nc. 0: all there is
    kc: int = 0
    nc: int = 0
    jc_ways: int = 1        # threads over column blocks, row blocks, column panels
    ic_ways: int = 1
    jr_ways: int = 1
    swap: bool = False
    copy: bool = False      # B, which is small, is first copied so that it lies as the algorithm reads it

    @property
    def threads(self) -> int:
        return self.jc_ways * self.ic_ways * self.jr_ways

    @property
    def claims(self) -> bool:
        """Whether threads claim blocks of A one by one (kernels/cpu/gemm.py) instead of having rows dealt out."""
        return self.algorithm == "packed" and self.jr_ways == 1 and self.ic_ways > 2

    @property
    def reads_b(self) -> Order:
        """What must be contiguous in B where it is read in place."""
        return "columns" if self.algorithm == "dots" else "rows"

    @property
    def key(self) -> str:
        return str(self)

    def excess(self, itemsize: int) -> list[str]:
        """What no machine has the threads or the memory for, whatever the problem: sentences."""
        found = []
        for name in ("mc", "kc", "nc", "jc_ways", "ic_ways", "jr_ways"):
            least, most = (1, MOST_THREADS) if name.endswith("ways") else (0, MOST_LINES)
            if not least <= (value := getattr(self, name)) <= most:
                than = f"less than {least}" if value < least else f"more than {most}"
                found.append(f"{name} is {value}, and must not be {than}.")
        if self.threads > MOST_THREADS:
            found.append(f"ways of {self.jc_ways} x {self.ic_ways} x {self.jr_ways} are {self.threads} threads, and a "
                         f"process has at most {MOST_THREADS}.")
        for operand, name, lines in (("A", "mc", self.mc), ("B", "nc", self.nc)):
            if (size := lines * self.kc * itemsize) > MOST_BLOCK[operand]:
                found.append(f"{name} x kc = {lines} x {self.kc} elements of {itemsize} bytes are {size} bytes, and a "
                             f"block of {operand} may have {MOST_BLOCK[operand]}.")
        return found

    def violations(self, problem: Shape | object, target: CpuTarget) -> list[str]:
        """Why this plan cannot run this problem on this target: sentences, none if it can."""
        from tilewright.plans.choose import shape_of
        if found := self.unknown_words():
            return found
        shape = problem if isinstance(problem, Shape) else shape_of(problem)
        if self.swap:
            shape = shape.swapped
        if self.copy:
            shape = shape._replace(b=self.reads_b)
        found = list(_tile_violations(self, shape, target))
        found += self.excess(shape.itemsize)
        if self.algorithm == "packed":
            found += _packed_violations(self)
        if self.algorithm == "in_place":
            if shape.b != "rows":
                found.append(f"in_place reads rows of B where they lie, and B's {shape.b} are contiguous, not its rows."
                             if shape.b == "columns" else "in_place reads rows of B, and nothing in B is contiguous.")
            if shape.a == "any":
                found.append("in_place reads A by rows or by columns, and neither is contiguous.")
            if self.jr_ways > 1:
                found.append(f"in_place splits rows (ic) and columns (jc), not jr: jr_ways is {self.jr_ways}.")
        if self.algorithm == "stream":
            if shape.b != "rows":
                found.append("stream reads rows of B that are contiguous, and B's are not.")
            if shape.m != self.mr:
                found.append(f"stream has registers for {self.mr} rows, and C has {shape.m}.")
            if self.ic_ways * self.jr_ways > 1:
                found.append("stream splits columns (jc) alone.")
        if self.algorithm == "dots":
            if shape.b != "columns":
                found.append("dots multiplies columns of B that are contiguous, and B's are not.")
            if shape.a != "rows":
                found.append("dots multiplies rows of A that are contiguous, and A's are not.")
            if shape.n != self.nr:
                found.append(f"dots computes {self.nr} columns, and C has {shape.n}.")
            if self.jc_ways * self.jr_ways > 1:
                found.append("dots splits rows (ic) alone.")
        return found


def _tile_violations(plan: CpuPlan, shape: Shape, target: CpuTarget):   # type: ignore[no-untyped-def]
    mr, nr, have = plan.mr, plan.nr, target.tile_registers
    lanes = target.lanes(shape.itemsize)
    if mr < 1 or nr < 1:
        yield f"a register tile of {mr}x{nr} is empty."
    elif shape.tiles:
        if (plan.algorithm, mr, nr) != ("packed", 32, 32):
            yield f"AMX multiplies packed panels in tiles of 32x32, not {plan.algorithm} {mr}x{nr}."
    elif plan.algorithm == "stream":
        need = mr*nr + mr + 1
        if need > have:
            yield (f"{mr} rows of C and {nr} of B need {mr}*{nr} + {mr} + 1 = {need} registers, "
                   f"{target.name} has {have}.")
    elif plan.algorithm == "dots":
        need = mr*nr + nr + 1
        if need > have:
            yield f"{mr}x{nr} dot products need {mr}*{nr} + {nr} + 1 = {need} registers, {target.name} has {have}."
    elif nr % lanes:
        yield f"nr = {nr} is not a multiple of the {lanes} {shape.dtype} lanes of a {target.name} vector."
    else:
        vectors = nr // lanes
        need = mr*vectors + vectors + 1
        if need > have:
            yield (f"{mr}x{nr} {shape.dtype} needs {mr}*{vectors} + {vectors} + 1 = {need} registers, "
                   f"{target.name} has {have}.")


def _packed_violations(plan: CpuPlan):                                  # type: ignore[no-untyped-def]
    for block, tile, name in (plan.mc, plan.mr, "m"), (plan.nc, plan.nr, "n"):
        if 0 < block < tile:
            yield f"{name}c = {block} is less than one panel of {name}r = {tile}."
    if plan.mc == 0 or plan.kc == 0 or plan.nc == 0:
        yield f"a packed plan needs block sizes, got mc = {plan.mc}, kc = {plan.kc}, nc = {plan.nc}."


def registers(plan: CpuPlan, lanes: int) -> int:
    """Vector registers that the register tile takes: accumulators, a row of B, one element of A."""
    vectors = plan.nr if plan.algorithm == "dots" else plan.nr // lanes
    return plan.mr*vectors + vectors + 1
