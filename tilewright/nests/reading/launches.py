"""Recorded kernels on smaller problems: `smaller(function, grid, shapes, sizes)`, on which products and loops compare.

The number of CTAs belongs to the sizes: 32 x 32 CTAs of 16 x 16 threads are for matrices of 512, so both are divided.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import gcd, prod

from tilewright.ir import Function
from tilewright.nests.domain import check, rounds
from tilewright.nests.nest import LoopNest, Refused
from tilewright.nests.reading.recorded import nest, whole_grid

MOST = 1 << 22              # statements that are run for a comparison
Shapes = dict[str, tuple[int, ...]]


def smaller(function: Function, grid: int | Sequence[int], shapes: Mapping[str, Sequence[int]], sizes: Mapping[str, int]
            ) -> Iterator[tuple[LoopNest, Shapes, dict[str, int]]]:
    """(the nest of fewer CTAs, shapes and sizes for it), the fewest first, where loops stay inside of their arrays."""
    extents = whole_grid(grid)
    common = gcd(*[n for n in extents if n > 1])
    most = max(extents) if common else max(sizes.values(), default=1)
    by = {d for d in range(1, common + 1) if common % d == 0} | {1 << n for n in range(most.bit_length())}
    for d in sorted(by, reverse=True):
        ctas = tuple([-(-n // d) for n in extents])
        numbers = {name: -(-n // d) for name, n in sizes.items()}
        small = nest(function, ctas)
        for power in (2, 1, 0):             # matrices in memory have two axes that become smaller
            new = {name: tuple([max(n // d**power, 1) for n in shape]) for name, shape in shapes.items()}
            try:
                check(small, numbers, new)
                if 0 < sum(prod(r.extents.values()) for r in rounds(small, numbers)) <= MOST:
                    yield small, new, numbers
            except Refused:
                continue
            break
