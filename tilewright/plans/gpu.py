"""What plans for GPUs of all makers share: the shape that a plan is chosen for, and the choice.

A shape is made from operands: sizes, formats, layout, and how much of a row one access may have, which follows from
addresses and strides. A Gemm alone stands for contiguous operands whose addresses are multiples of 16 bytes.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from importlib import import_module
from math import ceil, gcd
from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright import formats
from tilewright.formats.table import BLOCK_FORMATS, holds
from tilewright.plans import common, epilogues, semirings
from tilewright.plans.common import Cost, NoPlan, Term
from tilewright.plans.lowering import FASTEST
from tilewright.plans.words import TERMS
from tilewright.problem import SCALE_BLOCKS, Gemm
from tilewright.targets.nvidia import GpuTarget

if TYPE_CHECKING:
    from tilewright.plans.passes import Pass

WIDEST = 16             # bytes that a thread moves at once
LINE = 128              # bytes of a cache line
BLOCK = 32              # elements that share a scale
REACH = 1 << 31         # bytes that an offset of 32 bits reaches
MAPPED = 1 << 40        # distances in a tensor map are less
MOST_ROWS = 1024        # of an operand in a tile, of any plan
# The format in which products of a format are added up, if it is not f32.
SUMS = {"f64": "f64", "i8": "i32", "u8": "i32", "i32": "i32", "i64": "i64"}
# What sums are stored as: the nearest float, an integer's lowest bits.
RESULTS = {
    "f64": ("f64",),
    "f32": ("f32", "f16", "bf16", "e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"),
    "i32": ("i32", "i16", "u16", "i8", "u8"),
    "i64": ("i64", "i32", "i16", "u16", "i8", "u8"),
}
COMBINED = "f32", "f64", "i32", "i64"       # formats in which NVIDIA's kernels combine the terms of a semiring
FP8 = frozenset(("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"))
TOGETHER = FP8, frozenset(("i8", "u8"))         # formats of which one instruction multiplies any two that a chip has
# What kernels/gpu/copy.py converts: formats of arrays in a GPU's memory that results, and operands, may have.
WRITTEN = frozenset(("f64", "f32", "f16", "bf16", "i8", "i32", "i16", "u16", "u8")) | FP8
READ = WRITTEN | {"i4", "u4", "i2", "u2", "e2m1", "e2m3", "e3m2", "e8m0"}
# Parts of k: each has sums of its own in a workspace, and one workgroup adds them all up. Tiles of C in a group are
# numbers of 32 bits in kernels.
MOST = {"split_k": 256, "group_m": 1 << 16}

MOST_BATCH = 1 << 20    # products of a launch: kernels count tiles in 32 bits

# algorithm= of tilewright.matmul → the terms by which f32 are multiplied then, or the format in which sums of f16 are
# kept; what "fastest" takes, whose error is no larger than that of native f32, and how much faster it must be expected
# to be.
ALGORITHMS = {f"{each.format}_{each.format}_f32{name.removeprefix(each.format)}": name for name, each in TERMS.items()}
ALGORITHMS["f16_f16_f16"] = "f16"
NO_WORSE, SURE = "bf16_x6", 1.1

Place = tuple[int, ...]         # a matrix's address, bytes from row to row, and in a batch from matrix to matrix


class GpuShape(NamedTuple):
    """What the choice of a plan depends on. Formats are those of elements as they are multiplied.

    layout      "n" or "t" for A and for B: rows or columns are contiguous. C has contiguous rows
    vector_a    elements along A's contiguous rows (or columns) that one aligned access may have, up to 16 bytes: the
                address, the distance of rows and their length are multiples of so many. vector_b, vector_c: of B and C
    near_a      rows of A (columns, if these are contiguous) that follow each other within 2^31 bytes, at most 1024
    batch       products of such operands in one launch
    scaled      elements come in blocks along k, each with a scale: the formats' names, as in "mxfp8 mxfp4"
    align_a     bytes, a power of two up to 16, of which A's address and the distances of its rows (or columns) and
                matrices are multiples, whatever their length is, as a tensor map needs it; 1 also of what no map can
                describe: distances of 2^40 bytes, or less than a row. align_b, align_c: of B and C
    scales      what multiplies sums: see problem.SCALES
    terms       a key of words.TERMS: f32 are multiplied as sums of these, which a pass makes of them (passes.py); of
                one, tf32, kernels make them as they read. Or f16: sums of f16 are f16, too
    epilogue    see problem.Gemm
    semiring    what stands for multiplication and addition: see problem.Gemm
    crossing    which of "ab" have rows (or columns) that are no multiples of 128 bytes apart: a bulk copy brings two
                lines for each row of a tile
    """
    a: str
    b: str
    out: str
    m: int
    n: int
    k: int
    layout: str
    vector_a: int
    vector_b: int
    vector_c: int
    near_a: int = MOST_ROWS
    near_b: int = MOST_ROWS
    batch: int = 1
    scaled: str = ""
    align_a: int = WIDEST
    align_b: int = WIDEST
    align_c: int = WIDEST
    scales: str = ""
    terms: str = ""
    crossing: str = ""
    epilogue: str = ""
    semiring: str = ""

    def __str__(self) -> str:
        """For people: a 4096x4096x4096 product of f16 by f16 into f32, layout nt."""
        return (f"a {self.m}x{self.n}x{self.k} product of {self.a} by {self.b} into {self.out}, layout {self.layout}"
                + (f", with scales of {self.scaled or self.scales}" if self.scaled or self.scales else "")
                + f", with the epilogue {self.epilogue}"*(self.epilogue != "")
                + f", in the semiring {self.semiring}"*(self.semiring != "")
                + f", by terms {self.terms}"*(self.terms != "")
                + f", {self.batch} times"*(self.batch != 1))

    @property
    def key(self) -> tuple[str, int, int, int, str, str, int]:
        """What tuning results are kept by, as plans.cpu.Shape.key: formats, and what else is not usual; m, n, k; the
        order of A and of B; no threads."""
        kind = self.a if self.a == self.b == self.out else f"{self.a}-{self.b}-{self.out}"
        usual = shape(*self[:7], batch=self.batch, scaled=self.scaled, scales=self.scales,
                      epilogue=self.epilogue, semiring=self.semiring)
        if self._replace(terms="") != usual:                    # in wider or unaligned matrices
            kind += f" vector={'x'.join(map(str, self[7:10]))} near={self.near_a}x{self.near_b}"
            bits, aligned = (*self.bits, bits_of(self.out)), (self.align_a, self.align_b, self.align_c)
            if any(8*align != each*size for align, each, size in zip(aligned, self[7:10], bits)):
                kind += f" align={'x'.join(map(str, aligned))}"
            kind += f" crossing={self.crossing}"*(self.crossing != usual.crossing)
        if self.scaled:                                         # elements say which format with blocks of 32 it is
            mx = all(BLOCK_FORMATS[name].mx for name in self.scaled.split())
            kind += " scaled" if mx else f" scaled={self.scaled.replace(' ', '-')}"
        kind += f" epilogue={epilogues.read(self.epilogue).digest}" if self.epilogue else ""
        kind += f" semiring={semirings.read(self.semiring).digest}" if self.semiring else ""
        kind += f" scales={self.scales}"*bool(self.scales) + f" {self.terms}"*(self.terms != "")
        kind += f" batch={self.batch}"*(self.batch != 1)
        a, b = ("rows" if letter == "n" else "columns" for letter in self.layout)
        return kind, self.m, self.n, self.k, a, b, 1

    @property
    def least(self) -> GpuShape:
        """The same, or where it is empty a problem that is not: nothing will run, but there is a plan."""
        return self._replace(m=self.m or 1, n=self.n or 1, k=self.k or BLOCK, batch=self.batch or 1)

    @property
    def padded(self) -> GpuShape:
        """The same in matrices whose rows are padded, so that they are 16 bytes apart."""
        return self._replace(align_a=WIDEST, align_b=WIDEST, align_c=WIDEST)

    @property
    def sums(self) -> str:
        """The format in which products are added up."""
        return SUMS.get(self.a, "f32")

    @property
    def results(self) -> tuple[str, ...]:
        """The formats in which kernels store sums."""
        return results(epilogues.kind(self.epilogue, self.sums), self.scales)

    @property
    def itemsize(self) -> int:
        """Bytes of a sum."""
        return bits_of(self.sums) // 8

    @property
    def bits(self) -> tuple[int, int]:
        """Of an element of A and of B, with all its terms."""
        count = TERMS[self.terms].count if self.terms and self.a == TERMS[self.terms].format else 1
        return count*bits_of(self.a), count*bits_of(self.b)

    @property
    def vector(self) -> int:
        """Elements that every access to A, B and C may have."""
        return min(self.vector_a, self.vector_b, self.vector_c)


@cache
def bits_of(format: str) -> int:
    """Of an element in memory."""
    return 32 if format in ("xf32", "tf32") else formats.FORMATS[format].bits


def shape(a: str, b: str, out: str, m: int, n: int, k: int, layout: str = "nt", at: Sequence[Place] | None = None,
          batch: int = 1, scaled: str = "", scales: str = "", epilogue: str = "", semiring: str = "") -> GpuShape:
    """The shape of operands of these formats, which lie `at` these places (A, B and C), or are contiguous and aligned
    to 16 bytes. The distance of rows does not count of a matrix that has one row; it is 0 then."""
    bits, each = (bits_of(a), bits_of(b), bits_of(out)), epilogues.sums_of_result(epilogue)
    inner = k if layout[0] == "n" else m, n if layout[1] == "n" else k, n // each
    outer = m if layout[0] == "n" else k, k if layout[1] == "n" else n, m
    places = at or [(0, x*size // 8 if rows > 1 else 0, x*size*rows // 8 if batch > 1 else 0)
                    for x, rows, size in zip(inner, outer, bits)]
    vector_a, vector_b, vector_c = (vector_of(size, extent, *place) for size, extent, place in zip(bits, inner, places))
    near_a, near_b = (0 if apart < 0 else min(REACH // apart, MOST_ROWS) if apart else MOST_ROWS
                      for _, apart, *_ in places[:2])
    align_a, align_b, align_c = (_align(x*size // 8, rows, *place)
                                 for x, rows, size, place in zip(inner, outer, bits, places))
    crossing = "".join(x for x, rows, (_, apart, *_) in zip("ab", outer, places) if rows > 1 and apart % LINE)
    return GpuShape(a, b, out, m, n, k, layout, vector_a, vector_b, vector_c*each, near_a, near_b,
                    min(batch, MOST_BATCH), scaled, align_a, align_b, align_c, scales, crossing=crossing,
                    epilogue=epilogue, semiring=semiring)


def vector_of(bits: int, extent: int, address: int, *apart: int) -> int:
    """Elements of so many bits of a contiguous row of `extent` that one aligned access may have."""
    found = 1 << ((8*WIDEST // bits).bit_length() - 1)
    while found > 1 and (extent % found or any(8*x % (found*bits) for x in (address, *apart))):
        found //= 2
    return found


def _align(row: int, rows: int, address: int, apart: int = 0, matrices: int = 0) -> int:
    """Of matrices with so many rows of so many bytes. Matrices of a batch may be one and the same."""
    if (rows > 1 and not row <= apart < MAPPED) or not (matrices == 0 or row <= matrices < MAPPED):
        return 1
    return gcd(WIDEST, address, apart, matrices)


def shape_of(problem: Gemm, at: Sequence[Place] | None = None) -> GpuShape:
    """The shape of a problem whose operands lie `at` these places, or are contiguous. Block-scaled ones have whole
    blocks along k, the last filled up with zeros; ValueError unless k is contiguous in both."""
    p = problem
    if p.a not in BLOCK_FORMATS:
        return shape(p.a, p.b, p.out, p.m, p.n, p.k, p.layout, at, p.batch, scales=p.scales,
                     epilogue=p.epilogue, semiring=p.semiring)
    if p.layout != "nt":
        raise ValueError(f"{p}: block-scaled operands have k along their rows, which is layout nt, not {p.layout}")
    a, b = (BLOCK_FORMATS[x].element.name for x in (p.a, p.b))
    return shape(a, b, p.out, p.m, p.n, -(-p.k // BLOCK)*BLOCK, p.layout, at, p.batch, scaled=f"{p.a} {p.b}",
                 epilogue=p.epilogue)


Pair = tuple[str, str]


def multiplied(target: Any, scales: str, semiring: str = "") -> tuple[str, ...]:
    """The formats that a target's kernels multiply, those that have such scales; or in which they compute the terms of
    a semiring."""
    if semiring:
        return COMBINED if isinstance(target, GpuTarget) else ()
    found: tuple[str, ...] = planner(target).multiplied(target)
    if scales not in SCALE_BLOCKS:
        return found
    return tuple(x for x in found if bits_of(x) <= 16) if isinstance(target, GpuTarget) else ()


def results(sums: str, scales: str) -> tuple[str, ...]:
    """What kernels store sums as. Sums of integers that scales multiply are f32 then."""
    return RESULTS["f32" if scales and sums == "i32" else sums]


@cache              # asked of every candidate
def pairs(multiplied: tuple[str, ...]) -> tuple[Pair, ...]:
    """The formats that A and B may have, of those that a chip's kernels multiply."""
    mixed = [(a, b) for a in multiplied for b in multiplied if a != b and any({a, b} <= kinds for kinds in TOGETHER)]
    return (*((each, each) for each in multiplied), *mixed)


@lru_cache(maxsize=1024)
def pair_for(a: str, b: str, sums: str, target: Any, scales: str = "", semiring: str = "") -> Pair | None:
    """The formats in which operands of these are multiplied, with sums in `sums`: their own, if kernels take them; else
    the narrowest that hold all numbers of both, and of those the ones that leave most operands as they are. Operands
    that meet in the format of the sums are converted to it as a sum would be. None if there is none."""
    def held(pair: Pair) -> bool:
        return all(wide == sums or holds(formats.FORMATS[wide], formats.FORMATS[narrow])
                   for wide, narrow in zip(pair, (a, b)))

    def effort(pair: Pair) -> tuple[int, int]:
        return max(map(bits_of, pair)), (pair[0] != a) + (pair[1] != b)
    found = [pair for pair in pairs(multiplied(target, scales, semiring))
             if SUMS.get(pair[0], "f32") == sums and held(pair)]
    return (a, b) if (a, b) in found else min(found, key=effort, default=None)


def taken(target: Any, given: Mapping[str, str], sums: str, in_memory: bool, scales: str = "", epilogue: str = "",
          semiring: str = "") -> tuple[str, str, str]:
    """The formats in which kernels of a target take A and B and store their product, which is added up in `sums`.
    TypeError if it has no kernels for that.

    given       formats of a, b, the result, and of c where it is multiplied by beta and added, by these names
    in_memory   all of these are arrays in the GPU's memory, and converted there
    scales      what multiplies sums: see problem.SCALES; epilogue: what becomes of them
    semiring    what stands for multiplication and addition
    """
    if semiring and not multiplied(target, scales, semiring):
        raise TypeError(f"{target.name} has no kernels for contract: it runs on CPUs and on NVIDIA's GPUs")
    blocks = {given["a"], given["b"]} <= BLOCK_FORMATS.keys()        # decoded by passes of the plan
    found = (given["a"], given["b"]) if blocks else pair_for(given["a"], given["b"], sums, target, scales,
                                                                             semiring)
    if found is None or (in_memory and not _copied(given, semiring)):
        what = ", ".join(f"{name} = {format}" for name, format in given.items())
        by = f" and scales of {scales}" if scales in SCALE_BLOCKS else ""
        raise TypeError(f"{target.name} has no kernel for {what}, with sums in {sums}{by}; it multiplies "
                        f"{', '.join(multiplied(target, scales, semiring)) or 'nothing'}{' by such' * bool(by)}")
    result = given["result"]
    exact = given.get("c", result) == result        # else c would be rounded before it is added
    stored = results(epilogues.kind(epilogue, sums), scales)
    return (*found, result if exact and result in stored else stored[0])


def _copied(given: Mapping[str, str], semiring: str) -> bool:
    """Whether kernels convert all of these; of integers of 64 bits there are semirings alone."""
    return all(format in (READ | BLOCK_FORMATS.keys() if name in "ab" else WRITTEN) or (semiring and format == "i64")
               for name, format in given.items())


def lower(problem: Gemm, target: Any) -> Gemm:
    """What tilewright.matmul multiplies for a problem's contiguous operands: formats that no kernel of the target takes
    are converted before, and results after. The problem itself if there is no such kernel."""
    p = problem
    if p.prologues:                 # passes before the product (runtime/gpu/prologues.py)
        p = Gemm(p.m, p.n, p.k, *p.multiplied, p.out, p.layout, p.batch, epilogue=p.epilogue)
    if p.blocks or not p.castable or not _copied({"a": p.a, "b": p.b, "result": p.out}, p.semiring):
        return p
    pair = pair_for(p.a, p.b, p.sums, target, p.scales, p.semiring)
    if pair is None:
        return p
    stored = results(epilogues.kind(p.epilogue, p.sums), p.scales)
    out = p.out if p.out in stored else stored[0]
    return Gemm(p.m, p.n, p.k, *pair, out, p.layout, p.batch, p.scales, epilogues.lowered(p, out),
                semiring=p.semiring)


def multiplied_shape(problem: Gemm, target: Any, algorithm: str | None = None) -> GpuShape:
    """The shape of what tilewright.matmul multiplies for a problem's contiguous operands. ValueError for an algorithm
    that splits other operands."""
    found: GpuShape = planner(target).shape_of(lower(problem, target))
    if algorithm is not None and algorithm in ALGORITHMS:
        wanted, does = operands(algorithm), "splits" if "_x" in algorithm else "multiplies"
        if (found.a, found.b, found.sums) != (wanted, wanted, "f32"):
            raise ValueError(f"algorithm={algorithm!r} {does} operands of {wanted}, and {problem} multiplies {found.a} "
                             f"by {found.b}")
    return by_algorithm(found, algorithm, target)


def operands(algorithm: str) -> str:
    """The format of the operands that an algorithm multiplies."""
    return "f16" if algorithm.startswith("f16") else "f32"


@lru_cache(maxsize=1024)
def by_algorithm(shape: GpuShape, algorithm: str | None, target: Any) -> GpuShape:
    """What `algorithm=` stands for: a product by terms where it is expected to be faster than the native one, which is
    as accurate; else the shape as it is."""
    if algorithm is None or {shape.a, shape.b} != {operands(algorithm)} or not (shape.m and shape.n and shape.k):
        return shape
    split = shape._replace(terms=NO_WORSE if algorithm == FASTEST else ALGORITHMS[algorithm])
    try:
        plan = choose(split, target)
    except NoPlan:
        return shape
    by = planner(target)
    native, gain = by.cost(shape, choose(shape, target), target).seconds, SURE if algorithm == FASTEST else 1.0
    return split if gain * by.cost(split, plan, target).seconds <= native else shape


class GpuPlan(common.Plan):
    """What plans for GPUs of all makers have."""
    cta_m: int
    cta_n: int

    def passes(self, shape: GpuShape) -> tuple[Pass, ...]:
        """What is done with operands before the product."""
        return ()

    def after_passes(self, shape: GpuShape) -> GpuShape:
        """What the kernel multiplies, once that is done."""
        return shape

    @property
    def extent(self) -> tuple[int, int]:
        """Rows and columns of C that a workgroup computes."""
        return self.cta_m, self.cta_n

    def tiles(self, m: int, n: int, batch: int = 1) -> int:
        """Of C, or all of a batch."""
        rows, columns = self.extent
        return ceil(m / rows) * ceil(n / columns) * batch


# ---- what a plan costs

def cost(shape: GpuShape, plan: Any, target: Any) -> Cost:
    """The predicted cost of a legal plan, with its traffic, which the choice needs not."""
    by = planner(target)
    found: Cost = replace(by.cost(shape, plan, target), traffic=by.traffic(shape, plan, target))
    return found


def memory_traffic(shape: GpuShape, parts: int, size: int) -> tuple[Term, ...]:
    """What crosses the memory's interface once, and `parts` sums of `size` bytes, written and read."""
    s, (a, b) = shape, shape.bits
    once: tuple[Term, ...] = (
        Term("A", s.m*s.k*a // 8, s.batch, "once"), Term("B", s.n*s.k*b // 8, s.batch, "once"),
        Term("C", s.m*s.n*bits_of(s.out) // 8 // epilogues.sums_of_result(s.epilogue), s.batch, "written"))
    if beside := epilogues.bytes_moved(s):
        once = *once, Term("epilogue", beside, 1, "operands and further results, once")
    return (*once, Term("parts", size, 2*parts, f"{parts} written, and read by the last")) if parts > 1 else once


# ---- the choice

def planner(target: Any) -> Any:
    """The module that plans for this target: with multiplied, shape_of, candidates, cost, traffic and peak."""
    return import_module(f"tilewright.plans.{'nvidia' if isinstance(target, GpuTarget) else 'amd'}")


def ranked(problem: Gemm | GpuShape, target: Any) -> list[Any]:
    """All legal candidates, the one with the least predicted time first. ValueError if there is none, with the
    reasons."""
    by = planner(target)
    shape = (problem if isinstance(problem, GpuShape) else multiplied_shape(problem, target)).least
    return common.ranked(shape, target, by.candidates(shape, target), lambda p: by.cost(shape, p, target).seconds)


@lru_cache(maxsize=4096)
def choose(shape: GpuShape, target: Any) -> Any:
    """The plan that the model expects to be fastest."""
    by, shape = planner(target), shape.least
    return common.best(shape, target, by.candidates(shape, target), lambda p: by.cost(shape, p, target).seconds)
