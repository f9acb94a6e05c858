"""How many bytes a grid sends, the least that any algorithm must, and the grid that sends the fewest."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.mpi.layouts import Axis, Cyclic, Grid, Layout
from tilewright.mpi.placement import Placement


def grids(ranks: int) -> Iterator[Grid]:
    """All grids of so many ranks."""
    for layers in (x for x in range(1, ranks + 1) if ranks % x == 0):
        face = ranks // layers
        yield from (Grid(rows, face // rows, layers) for rows in range(1, face + 1) if face % rows == 0)


def sent(grid: Grid, m: int, n: int, k: int, bytes_a: float = 1, bytes_b: float = 1, bytes_sums: float = 1) -> float:
    """What a rank sends in a product on this grid, on average: numbers, or bytes if the size of each is given.

    Of A it has 1 / columns of what it needs, and receives the rest; of B 1 / rows; of the sums of its tile it gives all
    but its own part to the other layers. What ranks receive they send, in all.
    """
    rows, cols, layers = grid
    a, b, c = m / rows * k / layers, k / layers * n / cols, m / rows * n / cols
    return a * (cols - 1) / cols * bytes_a + b * (rows - 1) / rows * bytes_b + c * (layers - 1) / layers * bytes_sums


def memory(grid: Grid, m: int, n: int, k: int, width: int = 512, ahead: int = 2) -> float:
    """Numbers that a rank holds: its parts of A, B and C, the sums of its tile, and panels under way."""
    tile = m / grid.rows * n / grid.cols
    return (m * k + k * n + m * n) / grid.size + tile + (ahead + 1) * width * (m / grid.rows + n / grid.cols)


def choose(m: int, n: int, k: int, ranks: int, *, memory_limit: float | None = None, layers: int | None = None,
           bytes_a: float = 1, bytes_b: float = 1, bytes_sums: float = 1) -> Grid:
    """The grid of all these ranks that sends the fewest bytes; of equal ones that with fewer layers, then the one
    closest to a square.

    memory_limit  numbers that a rank may hold (volume.memory); None: no limit. ValueError if no grid keeps to it
    layers        only grids with so many layers
    """
    if min(m, n, k) < 0 or ranks < 1:
        raise ValueError(f"m, n and k must be 0 or more and ranks 1 or more, not {m}, {n}, {k} and {ranks}")
    every = [g for g in grids(ranks) if layers in (None, g.layers)]
    if not every:
        raise ValueError(f"layers must divide the number of ranks, {ranks}, and is {layers}")
    fit = [g for g in every if memory_limit is None or memory(g, m, n, k) <= memory_limit]
    if not fit:
        least = min(memory(g, m, n, k) for g in every)
        raise ValueError(f"memory_limit must be at least {least:.0f} numbers for a product of {m} x {n} x {k} on "
                         f"{ranks} ranks, and is {memory_limit:.0f}")
    return min(fit, key=lambda g: (round(sent(g, m, n, k, bytes_a, bytes_b, bytes_sums), 6), g.layers,
                                   abs(g.rows - g.cols), g.rows))


def lower_bound(m: int, n: int, k: int, ranks: int, memory: float | None = None) -> float:
    """Numbers that a rank must receive, on average, in any schedule of the mnk multiply-adds (classical algorithm).

    Kwasniewski et al. (COSMA, SC 2019) prove that one of P processors with room for S numbers reads and writes at least
    2mnk / (P sqrt S) + S, for S up to (mnk / P)^(2/3); room beyond that gains nothing. Of those, (mk + kn + mn) / P
    need not travel: the operands that it has, and the results that it keeps.

    memory   S, the room for the sums and what else is kept; None: without limit. mn / P is the two-dimensional bound,
             for schedules in which no sum is divided
    """
    volume = m * n * k / ranks
    if not volume:
        return 0.0
    most = volume ** (2 / 3)
    room = most if memory is None else min(memory, most)
    return max(0.0, 2 * volume / room ** 0.5 + room - (m * k + k * n + m * n) / ranks)


def bound_2d(m: int, n: int, k: int, ranks: int) -> float:
    """lower_bound where each rank has room for its share of C."""
    return lower_bound(m, n, k, ranks, m * n / ranks)


def moved(source: Layout, target: Layout) -> int:
    """Elements that must go to another rank to bring a matrix from one layout to another."""
    if source == target:
        return 0
    rows, cols = _shared(source.rows, target.rows), _shared(source.cols, target.cols)
    stay = 0
    for rank in set(source.ranks) & set(target.ranks):
        (p, q), (r, s) = source.place(rank) or (0, 0), target.place(rank) or (0, 0)
        stay += int(rows[p, r]) * int(cols[q, s])
    return source.shape[0] * source.shape[1] - stay


@lru_cache(maxsize=256)
def _shared(x: Axis, y: Axis) -> Any:
    """[p, q]: how many indices part p of x and part q of y have in common."""
    elements = np.zeros((x.parts, y.parts), np.int64)
    np.add.at(elements, (_owners(x), _owners(y)), 1)
    return elements


def _owners(axis: Axis) -> Any:
    if isinstance(axis, Cyclic):
        return (np.arange(axis.length) // axis.block + axis.first) % axis.parts
    return np.repeat(np.arange(axis.parts), [axis.count(p) for p in range(axis.parts)])


def travels(placement: Placement, a: Layout, b: Layout, c: Layout | None, sizes: tuple[float, float, float, float]
            ) -> float:
    """Bytes that all ranks send for a product of operands in these layouts: panels, sums, and what is brought to the
    product's layouts and from them. sizes: bytes of an element of A, B, sums and C."""
    (m, k), n = placement.a.shape, placement.b.shape[1]
    panels = sent(placement.grid, m, n, k, *sizes[:3]) * placement.grid.size
    return (panels + moved(a, placement.a) * sizes[0] + moved(b, placement.b) * sizes[1]
            + (moved(placement.c, c) * sizes[3] if c is not None else 0))
