"""Plans for few rows of floats by a large matrix that is read once where it lies: which instruction multiplies them.

    word=f32        the matrix is bf16 or f16, and is widened in registers (kernels/cpu/weights.py)
    word=bf16x2     rows of bf16, by the instruction for pairs: of bf16 (weight_pairs.emit_plain_pairs), and of formats
                    that are decoded in registers (weight_pairs.emit_pairs) or, kc steps at once, to a buffer
                    (weight_blocks.py)
    word=amx_bf16   rows of bf16, by AMX: `dots` by rows of the matrix (weight_blocks.py), `stream` along them
                    (stream_tiles.py)

The matrix is bf16 or f16, or weights of few bits that a prologue decodes. `stream` takes it as [k, n] and `dots`, with
`swap`, as [n, k]. Rows in another format than the word's are converted before, and results after.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from tilewright.expressions import HALVES
from tilewright.formats import FORMATS, Integer
from tilewright.plans import prologues
from tilewright.plans.words import BY_NAME

if TYPE_CHECKING:
    from tilewright.plans.cpu import CpuPlan
    from tilewright.plans.cpu_shape import Shape, Strides
    from tilewright.targets.cpu import CpuTarget

Instruction = Literal["", "f32", "bf16x2", "amx_bf16"]
HALF, ROWS = ("bf16", "f16"), ("", "f32", "bf16", "f16")        # formats of the matrix, and of the rows
# Rows for which a large array of 16 bits is read once, by registers, [k, n] and [n, k]: more are packed. From a Zen 4,
# where one row more takes 0.85 to 1.2 of the time of packing.
FEW = {16: {"rows": 6, "columns": 8}, 32: {"rows": 8, "columns": 6}}
MANY = 64                   # the same of bf16, where an instruction multiplies it, [n, k]
LARGE = 1 << 20             # elements of such an array
# Rows from which weights of few bits are decoded for all of them at once.
DECODED = {"i8": 4}
# Rows from which tiles multiply what has to be decoded, or interleaved, for them. On a Xeon one row and four rows by 4
# or 8 bits took 2.0 to 2.5 and 5.5 to 7.3 ms without tiles (4096 x 11008), and 2.6 to 5 with them, as 16 rows do.
IN_TILES = 3
# The most rows by bf16 [k, n] for which tiles read it where it is, and its elements from which they do for more. On a
# Xeon 17 to 60 rows took 1.2 to 1.6 of the time of packing it with 1 to 9 million elements, 0.75 with 45 million.
STREAMED, ALWAYS_STREAMED = 16, 1 << 25
LEAST_TILED = 64            # columns of C by tiles
BLOCK = 128                 # steps of k that kernels decode at once
BLOCKS = "bf16", "i8", "i4x2", "u4x2", "e2m1x2"         # formats of which they do
NEEDS = {"bf16x2": "avx512bf16", "amx_bf16": "amx-bf16"}
# For kernels/cpu/weights.py: rows of B at a time; (columns of C, rows of A at a time)
DEPTH = 8
HEIGHTS: dict[int, tuple] = {32: ((2, 4), (4, 2), (16, 1)), 29: ((2, 4), (4, 2), (16, 1)),
                             16: ((1, 4), (2, 2), (16, 1))}


class Aside(NamedTuple):
    """An array beside the weights: "0" if a number is for all of k, "1" if numbers along k are neighbours, "n" if not;
    and how many steps of k share one."""
    format: str
    step: str
    group: int

    @classmethod
    def of_job(cls, read: tuple[str, ...]) -> list[Aside]:
        """From READ of a jobs.Prepare."""
        return [cls(format, how[1], int(group)) for format, how, group in (x.split(":") for x in read)]


def matrix(shape: Shape) -> str:
    """The format of the matrix's elements, if few rows of floats are multiplied by it; else ""."""
    if (shape.sums != "f32" or shape.semiring or shape.epilogue or shape.prologue_a or shape.scattered
            or shape.invariant or shape.source_a not in ROWS or min(shape.m, shape.n, shape.k) < 1):
        return ""
    if shape.prologue_b:
        return shape.source_b if shape.m <= prologues.MOST and prologues.weights(shape.prologue_b) else ""
    kinds = ("f32", "bf16x2", "amx_bf16")
    return shape.source_b if shape.source_b in HALF and shape.m <= MANY and shape.dtype in kinds else ""


def asides(shape: Shape, by_columns: bool = False) -> list[Aside]:
    """What lies beside the weights: its numbers are contiguous along k if the elements are and not `by_columns`."""
    if not shape.prologue_b:
        return []
    along = "1" if shape.b == "columns" and not by_columns else "n"
    return [Aside(x.format, "0" if x.group == 1 else along, x.group) for x in prologues.read(shape.prologue_b).reads]


def minima(beside: list[Aside]) -> bool:
    """Whether floats are added to numbers: what lies beside scales and is no zero point."""
    return any(not isinstance(FORMATS[x.format], Integer) for x in beside[1:])


def in_table(source: str, x: Aside) -> bool:
    """Whether bf16 holds elements times such scales, which a table of 16 numbers then has."""
    return source == "e2m1x2" and x.format == "e8m0" and x.step == "1" and x.group == 32


def in_blocks(source: str, beside: list[Aside]) -> bool:
    """Whether weights of this format are decoded block by block (kernels/cpu/weight_blocks.py) with such scales and
    zero points: of all of k, of groups of BLOCK steps, or of 32 steps and in the table."""
    return source in BLOCKS and not minima(beside) and all(
        x.step == "0" or x.group % BLOCK == 0 or in_table(source, x) for x in beside)


def in_registers(source: str, beside: list[Aside]) -> bool:
    """Whether pairs of bf16 are decoded from two elements to a byte with them: alone, or scales side by side."""
    return source.endswith(HALVES) and not minima(beside) and all(
        x.step == "0" or x.group % BLOCK == 0 or (x.step == "1" and at == 0 and BLOCK % x.group == 0)
        for at, x in enumerate(beside))


def instruction(shape: Shape, target: CpuTarget) -> tuple[Instruction, int]:
    """The word that is fastest for few rows of this shape, "": none; and the steps of k that are decoded at once, 0: in
    registers."""
    source, k = matrix(shape), shape.depth or shape.k
    if not source or shape.b not in ("rows", "columns") or (not shape.prologue_b and shape.n * k < LARGE):
        return "", 0
    word, kc = _for_bf16(shape, source, target) if shape.source_a == "bf16" and target.lanes(4) == 16 else ("", 0)
    if shape.prologue_b:
        return word, kc
    most = FEW.get(target.tile_registers, {}).get(shape.b, 4)
    packed = shape.m > most and (not word or (word == "bf16x2" and 2*shape.m*k > target.l2 // 2))
    return ("", 0) if packed else (word or "f32", 0)


def _for_bf16(shape: Shape, source: str, target: CpuTarget) -> tuple[Instruction, int]:
    """The word for rows of bf16, by the instructions that a chip has."""
    aside, amx, pairs = asides(shape), *(target.has(NEEDS[word]) for word in ("amx_bf16", "bf16x2"))
    if shape.b != "columns":
        few = shape.m >= IN_TILES and (shape.m <= STREAMED or shape.n * (shape.depth or shape.k) >= ALWAYS_STREAMED)
        return "amx_bf16" if source == "bf16" and amx and few else "", 0
    fast = pairs and not target.model.startswith(BY_NAME["bf16x2"].slow)
    decoded = in_blocks(source, aside)
    if decoded and amx and shape.n >= LEAST_TILED and shape.m >= (2 if source == "bf16" else IN_TILES):
        return "amx_bf16", 0
    if source == "bf16":
        return "bf16x2" if fast else "", 0
    if decoded and fast and shape.m >= DECODED.get(source, 5) and shape.n >= 4:
        return "bf16x2", BLOCK
    faster_in_f32 = not fast and shape.m == 1 and source == "i4x2" and len(aside) < 2           # by look-ups
    return "bf16x2" if pairs and in_registers(source, aside) and not faster_in_f32 else "", 0


def decodes(plan: CpuPlan, source: str, beside: list[Aside]) -> bool:
    """Whether the plan's kernel reads weights with numbers that are stored so beside them."""
    by_registers = plan.word == "bf16x2" and not plan.kc and source != "bf16"
    return plan.word in ("", "f32") or (in_registers if by_registers else in_blocks)(source, beside)


def violations(plan: CpuPlan, shape: Shape, target: CpuTarget) -> Iterator[str]:
    """Why a plan with a word cannot run this shape, whose operands are in their own roles."""
    source, word = matrix(shape), plan.word
    if not source:
        yield (f"word={word} is for up to {MANY} rows of floats by a matrix of bf16 or f16, or up to {prologues.MOST} "
               "by weights that a prologue decodes, without an epilogue.")
        return
    if (plan.algorithm, plan.swap) != (("stream", False) if shape.b == "rows" else ("dots", True)):
        yield f"word={word} takes a matrix by contiguous rows with stream, and by contiguous columns with dots swap."
        return
    rows, ways = (plan.mr, plan.ic_ways) if plan.algorithm == "stream" else (plan.nr, plan.jc_ways)
    if rows != shape.m:
        yield f"{plan.algorithm} computes {rows} rows, and C has {shape.m}."
    if ways * plan.jr_ways > 1:
        yield "word= splits the columns of C alone."
    if plan.copy or plan.kc not in ((0, BLOCK) if word == "bf16x2" and source != "bf16" else (0,)):
        yield f"kc={BLOCK} decodes weights before word=bf16x2 multiplies them; nothing else is copied."
    if word == "f32":
        if shape.prologue_b:
            yield "word=f32 is for a matrix of bf16 or f16: weights are decoded to f32 without a word."
        if plan.mr * plan.nr > 8 * MANY:
            yield f"weights are read for {plan.mr} x {plan.nr} numbers at a time, and {8*MANY} are the most."
        return
    if not target.has(NEEDS[word]) or target.lanes(4) != 16:
        yield f"{target.name} has no instruction for word={word} ({NEEDS[word]})."
    if shape.source_a != "bf16":
        yield f"word={word} multiplies rows of bf16, not of {shape.source_a or 'f32'}."
    if plan.algorithm == "stream" and (word, source) != ("amx_bf16", "bf16"):
        yield f"stream multiplies bf16 by bf16 with word=amx_bf16, not {source} with word={word}."
    elif not decodes(plan, source, asides(shape)):
        yield f"weights of {source} with such scales are not decoded for word={word} kc={plan.kc}."
    elif plan.algorithm == "dots" and word == "amx_bf16" and shape.n < LEAST_TILED:
        yield f"tiles compute {LEAST_TILED} columns of C or more, and C has {shape.n}."


def as_read(shape: Shape, strides: Strides, plan: CpuPlan) -> tuple[Shape, Strides]:
    """The shape and strides that the kernel meets, in the operands' own roles: contiguous rows, sums of f32."""
    k, c = shape.depth or shape.k, {"rsc": shape.n, "csc": 1} if shape.out else {}
    shape = shape._replace(dtype="f32", k=k, depth=0, a="rows", out="",
                           source_a="" if rows(plan, shape) == "f32" else shape.source_a)
    return shape, strides._replace(rsa=k, csa=1, **c)


def rows(plan: CpuPlan, shape: Shape) -> str:
    """The format in which contiguous rows are read, "" if they are read as they lie."""
    if plan.word:
        return "f32" if plan.word == "f32" else "bf16"
    once = plan.algorithm == ("dots" if plan.swap else "stream") and prologues.weights(shape.prologue_b)
    return "f32" if once and shape.source_a == "bf16" else ""
