"""CPU plans: the blocking of a GEMM on x86 and its relatives, and when one is legal.

    packed     the five loops (kernels/cpu/gemm.py): B in blocks of kc x nc for L3, A in blocks of mc x kc for L2
    in_place   no packing (kernels/cpu/in_place.py): kc steps of k at a time over all of C; of complex operands with few
               rows or columns of C, in any layout (kernels/cpu/complex_in_place.py)
    stream     `mr` rows (kernels/cpu/skinny.py), `nr` rows of B at a time
    dots       at most `nr` columns, each element a dot product along k (kernels/cpu/skinny.py), B's columns contiguous;
               with few rows, too, B's rows may be contiguous in their place; narrow numbers are widened on the way.
               With kc any number of rows and columns, `mr` x `nr` at a time (kernels/cpu/dot_tiles.py)

Of complex operands and one row of C (kernels/cpu/complex_rows.py) `stream` reads `nr` vectors of rows of B at a time,
and `dots` `nr` columns, which need not be contiguous.

`word` of `stream` and `dots`: how few rows of floats are multiplied by a large matrix (plans/few_rows.py).

`swap` computes C^T = B^T @ A^T, for which the operands change places: the roles of m and n, of rows and columns, too.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tilewright.forks import cached_property
from tilewright.formats.table import FORMATS
from tilewright.plans import epilogues, few_rows, invariant as invariants, prologues, semirings
from tilewright.plans.common import Plan
from tilewright.plans.cpu_shape import Order, Shape
from tilewright.plans.lowering import shape_of
from tilewright.plans.words import BYTE_ROWS, BYTES, DOT_FORMATS, DOT_WORDS, DOTS_MOST, TILE_WORDS
from tilewright.targets.cpu import CpuTarget
from tilewright.targets.machine import MOST_THREADS

MOST_BLOCK = {"A": 64 << 20, "B": 1 << 30}      # bytes of a block: far beyond any L2, and any L3
MOST_COPIED = 4096      # elements of a vector with gaps that dots copy to the stack
MOST_ROW_DOTS = 8       # rows and columns of C of dots by rows of B
SHORT = 32              # k up to which neither operand is read often enough to be worth packing
MOST_LINES = (1 << 31) - 1      # rows, columns or steps of k in a block
COMPLEX_DEPTH = 64      # steps of k in a block of `in_place` for complex operands: one of B, and one of few rows, in L1
MOST_UNPACKED = 256     # rows of C by which AMX multiplies columns of B that are not packed
PARTS = 16              # of B's columns, in which threads that claim multiply each of the last blocks of A


def block_depth(k: int, kc: int, rows: int) -> int:
    """Rows of k in a block: at most kc of k, in equal parts, whole multiples of `rows`. Panels.kc_max in kernels."""
    blocks = -(-k // kc)
    return -(-k // blocks // rows) * rows


def dot_sums(columns: int) -> int:
    """How many vectors of sums each dot product has in `dots`, a power of two. A multiply-add takes four cycles and two
    loads: with two sums a row by a column is read at 64 bytes a cycle of AVX-512, twice what L2 gives."""
    return 2 if columns == 1 else 1


def row_dot_sums(rows: int) -> int:
    """How many sums a row of C has in `dots` where B's rows are contiguous, a power of two: so that eight additions
    are under way."""
    return 1 << max(8 // rows, 1).bit_length() - 1


def complex_dot_sums(columns: int) -> int:
    """Sums of complex dot products, pairs of vectors, for `nr` columns at a time."""
    return 4 if columns == 1 else 1


def complex_sums(mr: int, nr: int, lanes: int) -> int:
    """How many sums an element's parts have in `in_place` for complex operands, a power of two: so that eight additions
    are under way."""
    return 1 << max(8 // (2 * mr * -(-nr // lanes)), 1).bit_length() - 1


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
    copy: bool = False      # B, which is small, is first copied into the layout that the algorithm reads
    own_b: bool = False     # each thread packs the panels of B that it needs; none are shared, and there is no barrier
    word: few_rows.Instruction = ""           # what few rows by a large matrix are multiplied as

    @cached_property
    def threads(self) -> int:
        return self.jc_ways * self.ic_ways * self.jr_ways

    @property
    def claims(self) -> bool:
        """Whether threads claim blocks of A one by one (kernels/cpu/gemm.py) instead of having rows dealt out."""
        return self.algorithm == "packed" and self.jr_ways == 1 and self.ic_ways > 2 and not self.own_b

    @property
    def meets(self) -> bool:
        """Whether threads wait for each other at barriers, so that all must come; else each takes what is left."""
        return self.algorithm == "packed" and self.ic_ways * self.jr_ways > 1 and not (self.claims or self.own_b)

    def depth(self, shape: Shape) -> int:
        """Steps of k whose products are added up before they are added to others: k, if these are all."""
        if not 0 < self.kc < shape.k:
            return shape.k
        rows = TILE_WORDS[shape.dtype].rows if shape.tiles else 4
        return block_depth(shape.k, -(-self.kc // rows) * rows, rows) if self.algorithm == "packed" else self.kc

    def by_rows(self, shape: Shape) -> bool:
        """Whether `dots` reads rows of B, of few rows and columns of C. `shape`: in the roles that the plan gives the
        operands."""
        rows = shape.b == "rows" or (shape.n == 1 and shape.a != "rows")
        few = max(shape.m, shape.n) <= MOST_ROW_DOTS
        converts = shape.converts and not widens(shape)
        reads = self.algorithm == "dots" and rows and few and not self.dot_tiles
        return reads and not (self.copy or shape.prologues or converts)

    def rows_outside(self, shape: Shape, target: CpuTarget) -> bool:
        """Whether `in_place` takes one row of tiles after the other, so that C is written along its rows and the next
        panel of B is asked for; else one column after the other, in which nothing asks for A's next panel (on a Xeon
        0.7 of the rate in layout tn, but not where A has few panels). Shape in the roles that the plan gives them."""
        again = (self.kc or shape.k) * shape.n * shape.itemsize         # bytes of B, for each row of tiles
        return (shape.k <= SHORT or shape.m * self.nr >= shape.n * self.mr
                or (shape.a == "columns" and shape.m >= 8*self.mr and again <= target.l2 // 2))

    @property
    def dot_tiles(self) -> bool:
        """Whether `dots` computes tile after tile of rows and columns, of any number of both."""
        return self.algorithm == "dots" and self.kc > 0 and not self.word

    @staticmethod
    def takes_dot_tiles(shape: Shape) -> bool:
        """Whether tiles of dot products do all that the shape says about formats and functions."""
        return shape.dtype in ("f32", "f64") and not (shape.converts or shape.epilogue or shape.prologues)

    def widens(self, shape: Shape) -> bool:
        """Whether `dots` widens narrow numbers one by one as it loads them; shape as in `by_rows`. Words of bytes have
        an instruction for rows of A."""
        own = shape.dtype not in BYTES or shape.m == shape.n == 1 or self.by_rows(shape)
        return self.algorithm == "dots" and shape.converts and own and widens(shape) and not self.dot_tiles

    def sums(self, shape: Shape) -> int:
        """Vectors of sums of an element, or of a row of C by rows of B, in `dots`; shape as in `by_rows`."""
        if self.complex_row(shape):
            return complex_dot_sums(self.nr)
        return 1 if shape.prologues else row_dot_sums(self.mr) if self.by_rows(shape) else dot_sums(self.nr)

    def complex_row(self, shape: Shape) -> bool:
        """Whether a row of complex numbers is computed from operands where they are."""
        return self.algorithm in ("stream", "dots") and shape.complex

    def complex_in_place(self, shape: Shape) -> bool:
        """Whether complex matrices are multiplied where they are."""
        return self.algorithm == "in_place" and shape.complex

    def unpacked(self, shape: Shape) -> bool:
        """Whether AMX reads B's columns where they are, not from panels: for few rows, if they consist of its words.
        Shape as in `by_rows`."""
        if not shape.tiles or shape.m > MOST_UNPACKED or (shape.b, shape.prologue_b) != ("columns", ""):
            return False
        word = TILE_WORDS[shape.dtype]
        return word.terms == 1 and FORMATS[shape.source_b].bits * word.steps == 32

    @property
    def reads_b(self) -> Order:
        """What must be contiguous in B where it is read in place."""
        return "columns" if self.algorithm == "dots" else "rows"

    def excess(self, itemsize: int) -> list[str]:
        """Sentences about threads or memory that no machine has, for any problem."""
        why = []
        for name in ("mc", "kc", "nc", "jc_ways", "ic_ways", "jr_ways"):
            least, most = (1, MOST_THREADS) if name.endswith("ways") else (0, MOST_LINES)
            if not least <= (value := getattr(self, name)) <= most:
                than = f"less than {least}" if value < least else f"more than {most}"
                why.append(f"{name} is {value}, and must not be {than}.")
        if (threads := self.threads) > MOST_THREADS:
            why.append(f"ways of {self.jc_ways} x {self.ic_ways} x {self.jr_ways} are {threads} threads, and a "
                         f"process has at most {MOST_THREADS}.")
        for operand, name, lines in (("A", "mc", self.mc), ("B", "nc", self.nc)):
            if (size := lines * self.kc * itemsize) > MOST_BLOCK[operand]:
                why.append(f"{name} x kc = {lines} x {self.kc} elements of {itemsize} bytes are {size} bytes, and a "
                             f"block of {operand} may have {MOST_BLOCK[operand]}.")
        return why

    def violations(self, problem: Any, target: CpuTarget) -> list[str]:
        """Why this plan cannot run this problem on this target: sentences, none if it can."""
        if why := self.unknown_words():
            return why
        shape = problem if isinstance(problem, Shape) else shape_of(problem, target=target)
        if self.word:
            return [*few_rows.violations(self, shape, target), *self.excess(shape.itemsize)]
        if self.swap:
            shape = shape.swapped
        if self.copy:
            shape = shape._replace(b=self.reads_b)
        why = list(_tile_violations(self, shape, target))
        why += self.excess(shape.itemsize)
        if self.own_b and (self.algorithm != "packed" or self.jr_ways > 1):
            why.append("own_b is for packed plans whose threads have rows (ic) and columns (jc) of their own: this "
                         f"one is {self.algorithm} and has jr_ways = {self.jr_ways}.")
        if self.swap and not shape.tiles and epilogues.sums_of_result(shape.epilogue) > 1:
            why.append("pairs of columns that an epilogue takes are columns of C, and swap computes C^T.")
        if self.algorithm == "packed":
            why += _packed_violations(self)
            if shape.source_a.endswith(prologues.HALVES) or shape.source_b.endswith(prologues.HALVES):
                why.append("two elements to a byte are read where they are, by stream and dots: packing takes one.")
        elif shape.converts and not self._converts(shape):
            why.append(f"{self.algorithm} reads operands and writes C in the format of the sums, {shape.sums}: only "
                         "packed plans convert.")
        if shape.semiring and self.algorithm != "packed":
            why.append(f"{self.algorithm} multiplies and adds: only packed plans take a semiring.")
        if shape.scattered and (self.algorithm != "packed" or self.swap or self.copy):
            why.append("scattered operands are packed by tables in their own roles, and so is a scattered C stored: "
                         "only packed plans without swap and copy can run.")
        if shape.complex and (self.swap or self.copy):
            why.append("complex operands are packed in their own roles, B as two rows and two columns of reals for "
                         "each number: a plan for them has neither swap nor copy.")
        why += [sentence for wrong, sentence in self._placed(shape) if wrong]
        return why

    def _converts(self, shape: Shape) -> bool:
        """Whether a plan without panels converts all that the shape says: the operand that it reads once."""
        if self.complex_row(shape):
            return shape.complex_row
        if self.complex_in_place(shape):
            return not (shape.out or shape.epilogue or shape.prologues or shape.scattered or self.kc)
        if self.widens(shape):
            return True
        if self.algorithm == "dots" and shape.dtype in BYTES:
            return not (shape.out or shape.epilogue or shape.prologues or self.copy)
        once = {"stream": "b", "dots": "a"}.get(self.algorithm, "")
        other = shape.source_a if once == "b" else shape.source_b
        sizes = invariants.sizes(shape.m, shape.n, shape.invariant)
        read = prologues.read_once(shape.prologue_a, shape.prologue_b, *sizes, shape.dtype)
        if other == "bf16" and prologues.weights(shape.prologue_a or shape.prologue_b):
            other = ""                                          # the rows are converted to f32 before
        return bool(once) and read == once and not (other or shape.out or shape.epilogue or self.copy)

    def _placed(self, shape: Shape) -> Iterator[tuple[bool, str]]:
        """What operands that are read in place must be like, and how work is split: (whether that is violated, why)."""
        if self.algorithm == "in_place":
            yield self.jr_ways > 1, f"in_place splits rows (ic) and columns (jc), not jr: jr_ways is {self.jr_ways}."
        if self.algorithm == "in_place" and not shape.complex:
            yield shape.b == "columns", ("in_place reads rows of B in place, and B's columns are contiguous, not "
                                         "its rows.")
            yield shape.b == "any", "in_place reads rows of B, and nothing in B is contiguous."
            yield shape.a == "any", "in_place reads A by rows or by columns, and neither is contiguous."
        if self.complex_row(shape):
            yield self.algorithm == "stream" and shape.b != "rows", _STREAMED
            yield self.mr != 1, f"{self.algorithm} of complex numbers computes one row, not {self.mr}."
            yield self.ic_ways * self.jr_ways > 1, f"{self.algorithm} of complex numbers splits columns (jc) alone."
        elif self.algorithm == "stream":
            yield shape.b != "rows", _STREAMED
            yield shape.m != self.mr, f"stream has registers for {self.mr} rows, and C has {shape.m}."
            yield self.ic_ways * self.jr_ways > 1, "stream splits columns (jc) alone."
        elif self.algorithm == "dots" and self.by_rows(shape):
            yield shape.n != self.nr, f"dots computes {self.nr} columns, and C has {shape.n}."
            yield self.threads > 1, "dots by rows of B are for one thread."
        elif self.algorithm == "dots":
            yield shape.b != "columns", "dots multiplies columns of B that are contiguous, and B's are not."
            yield shape.a != "rows", "dots multiplies rows of A that are contiguous, and A's are not."
            if self.dot_tiles:
                yield not self.takes_dot_tiles(shape), "dots with kc multiplies f32 or f64, without functions."
                yield self.jr_ways > 1, f"dots with kc splits rows (ic) and columns (jc): jr_ways is {self.jr_ways}."
                return
            yield shape.n != self.nr, f"dots computes {self.nr} columns, and C has {shape.n}."
            yield self.jc_ways * self.jr_ways > 1, "dots splits rows (ic) alone."


_STREAMED = "stream reads rows of B that are contiguous, and B's are not."


def widens(shape: Shape) -> bool:
    """Whether `dots` widens the elements of these formats as it loads them, and rounds as it stores."""
    formats = {shape.source_a, shape.source_b, shape.out}
    return (shape.dtype in (shape.sums, *DOT_WORDS) and formats <= {"", *DOT_FORMATS}
            and not (shape.epilogue or shape.prologues or shape.complex or shape.scattered or shape.semiring))


def _tile_violations(plan: CpuPlan, shape: Shape, target: CpuTarget) -> Iterator[str]:
    mr, nr, have = plan.mr, plan.nr, target.tile_registers
    lanes = target.lanes(shape.itemsize)
    if mr < 1 or nr < 1:
        yield f"a register tile of {mr}x{nr} is empty."
    elif shape.tiles:
        if (plan.algorithm, mr, nr) != ("packed", 32, 32):
            yield f"AMX multiplies packed panels in tiles of 32x32, not {plan.algorithm} {mr}x{nr}."
    elif plan.complex_row(shape):
        sums = plan.sums(shape) if plan.algorithm == "dots" else 1
        need = 2*nr*sums + 3
        if need > have:
            yield (f"{nr} complex sums need 2*{nr}{f'*{sums}'*(sums > 1)} + 3 = {need} registers, {target.name} has "
                   f"{have}.")
    elif plan.algorithm == "dots" and shape.dtype in BYTES and not plan.by_rows(shape):
        if mr > BYTE_ROWS.get(have, 1) or nr > DOTS_MOST:
            yield (f"dot products of bytes are computed for {BYTE_ROWS.get(have, 1)} x {DOTS_MOST} at a time, not for "
                   f"{mr} x {nr}.")
    elif plan.algorithm in ("stream", "dots") and prologues.weights(shape.prologue_b or shape.prologue_a):
        most = prologues.MOST
        if mr*nr > 8*most:
            yield f"weights are read for {mr} x {nr} numbers at a time, and must not be for more than {8*most}."
    elif plan.algorithm == "stream":
        need = mr*nr + mr + 1
        if need > have:
            yield (f"{mr} rows of C and {nr} of B need {mr}*{nr} + {mr} + 1 = {need} registers, "
                   f"{target.name} has {have}.")
    elif plan.dot_tiles:
        need = mr*nr + min(mr, nr) + 1
        if need > have:
            yield (f"a tile of {mr}x{nr} dot products needs {mr}*{nr} + {min(mr, nr)} + 1 = {need} registers, "
                   f"{target.name} has {have}.")
    elif plan.algorithm == "dots":
        sums, vectors = plan.sums(shape), -(-nr // lanes) if plan.by_rows(shape) else nr
        need = mr*vectors*sums + vectors + 1
        if need > have:
            tile = f"{mr}*{vectors}" + f"*{sums}"*(sums > 1)
            yield f"{mr}x{nr} dot products need {tile} + {vectors} + 1 = {need} registers, {target.name} has {have}."
    elif plan.complex_in_place(shape):
        vectors = -(-nr // lanes)
        need = (2*mr*complex_sums(mr, nr, lanes) + 1)*vectors + 1
        if nr % lanes and (nr > lanes or nr & (nr - 1) or nr < 2):
            yield f"nr = {nr} is neither a power of two nor a multiple of the {lanes} lanes of a {target.name} vector."
        elif need > have:
            yield f"{mr}x{nr} of complex numbers needs {need} registers, {target.name} has {have}."
    elif nr % lanes:
        yield f"nr = {nr} is not a multiple of the {lanes} {shape.dtype} lanes of a {target.name} vector."
    else:
        vectors = nr // lanes
        need, fields = semirings.registers(shape.semiring, mr, vectors), semirings.fields(shape.semiring)
        if need > have and (mr*vectors > 1 or not shape.semiring):          # of one vector there is no smaller tile
            tile = f"{fields}*"*(fields > 1) + f"{mr}*{vectors}"
            yield (f"{mr}x{nr} {shape.dtype} needs {tile} + {vectors} + {need - (fields*mr + 1)*vectors} = {need} "
                   f"registers, {target.name} has {have}.")


def _packed_violations(plan: CpuPlan) -> Iterator[str]:
    for block, tile, name in (plan.mc, plan.mr, "m"), (plan.nc, plan.nr, "n"):
        if 0 < block < tile:
            yield f"{name}c = {block} is less than one panel of {name}r = {tile}."
    if plan.mc == 0 or plan.kc == 0 or plan.nc == 0:
        yield f"a packed plan needs block sizes, got mc = {plan.mc}, kc = {plan.kc}, nc = {plan.nc}."
