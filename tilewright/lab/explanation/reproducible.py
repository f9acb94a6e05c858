"""What a product with the same bits for any number of threads, or of rows, costs: the sentences of `explain`."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tilewright.plans.invariant import OPTIONS


def sentences(plan: Any, seconds: float, chosen: Callable[[str], tuple[Any, float]]) -> Iterator[str]:
    """For each option of matmul: the plan for it and its predicted seconds, as `chosen` has them, beside `plan`'s."""
    for option, invariant in OPTIONS.items():
        found, theirs = chosen(invariant)
        slower = theirs / seconds - 1
        cost = f"{100 * abs(slower):.1f} % {'slower' if slower > 0 else 'faster'} by the model"
        yield f"{option}=True: " + ("the same plan" if found == plan else f"{found}, {cost}")
