"""For which calls tilewright wins, by number format: as measured, and to be measured again (`measure`)."""
from __future__ import annotations

from typing import NamedTuple

EVERY = (1 << 62) - 1


class Rule(NamedTuple):
    """Calls of one format and kind that are taken: by their multiplications m n k, times the batch."""
    least: int = EVERY              # multiplications from which a call is taken, and up to which
    most: int = EVERY
    at_once: int = 0                # elements of the largest operand up to which no plan is made, which is worth a call
    after: int = 0                  # multiplications that must have come with these sizes before a plan is made
    by_rows: bool = False           # only where rows of both operands are contiguous


class Rules(NamedTuple):
    """For products without vectors and batches, with a vector, and of 3-D arrays."""
    matrices: Rule
    vectors: Rule
    stacks: Rule


NONE = Rules(Rule(), Rule(), Rule())
# Multiplications after which a plan, which takes about 1 ms, has paid: NumPy multiplies integers in loops of 1 to 3 ns
# for each, f16 in 10 and more; f32, f64 and complex numbers by BLAS, of whose time we save a part where it is long.
WHOLE, HALF, COMPLEX, WIDE = 1_000_000, 100_000, 20_000_000, 200_000_000


def _rules(after: int, stacks: Rule | None = None, at_once: int = 0) -> Rules:
    every = Rule(1, at_once=at_once, after=after)
    return Rules(every, every, every if stacks is None else stacks)


FEW = Rule(1, 100_000, after=WHOLE, by_rows=True)           # batches of floats: beyond, BLAS is as fast
RULES: dict[str, Rules] = {
    "float32": _rules(WIDE, FEW, 150_000), "float64": _rules(WIDE, FEW, 75_000),
    "float16": _rules(HALF), "bfloat16": _rules(HALF),
    "complex64": _rules(COMPLEX, Rule()), "complex128": _rules(COMPLEX, Rule()),
    **{f"{sign}int{bits}": _rules(WHOLE, Rule(20_000, after=WHOLE)) for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
