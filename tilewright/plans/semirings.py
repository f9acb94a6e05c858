"""What a semiring (expressions/semiring.py) asks of a plan: exchanged roles, registers and its cost."""
from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING

from tilewright.expressions.texts import semiring as read
from tilewright.plans import epilogues

if TYPE_CHECKING:
    from tilewright.targets.nvidia import GpuTarget

# Registers for terms, beside the operands: of most at most TERM, of those that count bits without an instruction for it
# COUNTING; elementary functions have CONSTANTS and, since LLVM mixes the terms of a tile, LIVE for each of them.
TERM, COUNTING, CONSTANTS, LIVE = 3, 5, 8, 5


@lru_cache(maxsize=256)
def state(text: str) -> int:
    """Fields of a state that is kept until an epilogue makes results of it, beside C; 0: there is none."""
    return read(text).state if text else 0


@lru_cache(maxsize=256)
def finished(text: str) -> str:
    """What makes the results of a state, as the text of an epilogue."""
    from tilewright.expressions import DEFAULT
    from tilewright.expressions.function import Epilogue
    result = read(text).fold.result
    return Epilogue(result, (), (DEFAULT,) * len(result.results)).text


@lru_cache(maxsize=256)
def fields(text: str) -> int:
    """Registers of a vector of a tile."""
    return len(read(text).fold.fields) if text else 1


# Operations whose result, of integers of 8 bits with a sign, is one: computed in bytes it is what it is in 32 bits.
WITHIN_BYTES = {"and", "or", "xor", "min", "max", "fmin", "fmax", "lt", "le", "eq", "ne", "where", "int"}


@lru_cache(maxsize=256)
def in_bytes(text: str, steps: int) -> bool:
    """Whether terms of i8 and their reduction over so many steps of k may be computed in bytes, four to a word: the
    numbers are the same, and steps beyond k, which are filled up with 0 and 0, change nothing."""
    semiring = read(text)
    if semiring.kind != "int" or not semiring.fold.plain:
        return False
    step, first = semiring.step, semiring.first(8)[0]
    constants = [x[0] for line in step.lines for x in line.operands if isinstance(x, tuple)]
    if not all(line.operation in WITHIN_BYTES for line in step.lines) or not all(
            isinstance(x, int) and -128 <= x < 128 for x in (first, *constants)):
        return False
    unused = {"left": 0, "right": 0, "s0": first, "p": 0}
    return steps % 4 == 0 or step.evaluate(unused) == (first,)


def products(text: str) -> str:
    """Multiplication and addition of the same kind of numbers; of none where there is no semiring."""
    from tilewright.expressions.semiring import semiring
    return semiring(lambda a, b: a * b, "sum", read(text).kind).text if text else ""


def registers(text: str, mr: int, vectors: int) -> int:
    """Registers of a tile of so many rows and vectors: its states, a row of B, an element of A, and the terms' own."""
    return fields(text)*mr*vectors + vectors + 1 + (_of_terms(text, mr*vectors) if text else 0)


@lru_cache(maxsize=256)
def _of_terms(text: str, vectors: int) -> int:
    from tilewright.expressions.program import ELEMENTARY
    operations = [line.operation for line in read(text).step.lines]
    if not {*ELEMENTARY}.isdisjoint(operations):
        return CONSTANTS + (LIVE + fields(text) - 1)*vectors
    return COUNTING if counts_bits(text) else min(len(operations), TERM)


def counts_bits(text: str) -> bool:
    return "popcount" in [line.operation for line in read(text).step.lines]


@lru_cache(maxsize=256)
def operations(text: str) -> int:
    """The cost of a term, in multiply-adds."""
    return read(text).operations if text else 1


# ---- on one of NVIDIA's GPUs

SHORT = 3               # instructions of a term, at most, of which several are on their way in few registers
TERMS, LONG_TERMS = 8, 48       # registers for these; for longer ones
# Sums of a thread of these and of those, and registers for them: with 64 sums of exp in each thread of 8 warps an H200
# had 0.88 of the rate of 12 warps with 32 (2026-11-23), since each warp waits for its terms.
MOST_SUMS, MOST_STATES = (128, 32), (128, 64)

LANES = 128             # of all schedulers of a multiprocessor, each of which issues an instruction for 32 in a clock
ALU = 64                # lanes of those that compare, select, and add integers
# Instructions for an operation on one number, of those that are not one; on floats these two are none.
SLOTS = {"min": 3, "max": 3, "float": 4, "int": 4}
SLOW = "popcount", 16       # lanes of their own that count bits, beside the others
MODIFIERS = "abs", "neg"
SERIES = {name: epilogues.SLOTS[name] for name in ("exp", "log", "tanh", "erf", "div", "sqrt")}
FMA = "add", "sub", "mul", "fma"


@lru_cache(maxsize=256)
def clocks(text: str, sums: str, target: GpuTarget) -> float:
    """Clocks of a multiprocessor for a term, by what its instructions take alone: they are issued one after the other,
    and floats are added and multiplied by other lanes than those that do the rest."""
    multiplied, others = _instructions(text, sums in ("f64", "i64"))
    fma = target.fma_f64 if sums == "f64" else target.fma_f32
    slow = sum(x.operation == SLOW[0] for x in read(text).step.lines) * (1 + (sums == "i64"))
    return max((multiplied + others) / LANES, multiplied / fma, (others - slow) / ALU, slow / SLOW[1])


@lru_cache(maxsize=256)
def in_flight(text: str) -> int:
    """Registers of 32 bits for terms on their way, beside sums and factors."""
    return 0 if not text else TERMS if instructions(text) <= SHORT else LONG_TERMS


def most_sums(text: str) -> int:
    """The most sums of a thread with which a plan is worth a look: long terms hide what loads of factors cost."""
    long = instructions(text) > SHORT
    return min(MOST_SUMS[long], MOST_STATES[long] // fields(text))


def instructions(text: str) -> int:
    """Instructions for a term of 32 bits."""
    return ceil(sum(_instructions(text, False)))


def _instructions(text: str, wide: bool) -> tuple[float, float]:
    """Instructions for a term: those that multiply or add floats, and others. What depends on one factor alone is
    computed once for many terms."""
    step, multiplied, others = read(text).step, 0.0, 0.0

    def operation(name: str, *operands: tuple[str, frozenset[str]]) -> tuple[str, frozenset[str]]:
        nonlocal multiplied, others
        kinds, of = [kind for kind, _ in operands], frozenset[str]().union(*(names for _, names in operands))
        given = step.given(name, *kinds), of
        if len(of) == 1 and of < {"left", "right"}:
            return given
        count = SERIES.get(name, 0)
        if "float" in kinds and name in FMA:
            multiplied += 1
        elif count:
            multiplied, others = multiplied + count / 2, others + count / 2
        elif not ("float" in kinds and name in MODIFIERS):
            others += SLOTS.get(name, 1) * (1 + wide)
        return given
    step.run(operation, {name: (kind, frozenset((name,))) for name, kind in step.parameters},
              lambda x: (type(x).__name__, frozenset[str]()))
    return multiplied, others
