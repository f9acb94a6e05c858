"""What a user's kernel would cost as the product that it computes, if it is one."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tilewright.ir.program import Function
from tilewright.lab.explanation.record import Explanation, Section
from tilewright.nests.optimize import optimize


def compared(found: Explanation, function: Function, args: Sequence[Any], grid: Any,
             explain: Callable[[Any, Any], Explanation]) -> Explanation:
    """The explanation of a kernel, with what tilewright.optimize saves. `explain`: of a problem on a chip."""
    return replace(found, sections=(*found.sections, *_sections(found, function, args, grid, explain)))


def _sections(found: Explanation, function: Function, args: Sequence[Any], grid: Any,
              explain: Callable[[Any, Any], Explanation]) -> Iterator[Section]:
    with suppress(TypeError, ValueError, NotImplementedError):
        product = optimize(function, *args, grid=grid, target=found.target, search=False)
        if not product.recognised:
            return
        lines, own = [str(product)], found.time
        for problem in product.problems:
            other = explain(problem, found.target)
            if own is not None and other.time is not None:
                lines.append(f"predicted {1e6 * other.time.predicted:,.4g} us, here {1e6 * own.predicted:,.4g} us")
            mine = {level.name: level.bytes for level in found.levels}
            lines += [f"{level.name}: {level.bytes:,} bytes, here {mine[level.name]:,}"
                      for level in other.levels if mine.get(level.name)]
        yield Section("product", tuple(lines))
