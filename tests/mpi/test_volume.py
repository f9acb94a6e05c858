"""Bytes: what is counted is what the model says, and how far it is from what must be sent."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import mpi
from tilewright.mpi import Grid, Layout, Report
from tilewright.mpi.placement import place
from tilewright.mpi.volume import grids, moved, sent, travels


def counted(grid: Grid, m: int, n: int, k: int, layouts=None) -> list[Report]:
    """The reports of a product on threads."""
    def product(team):
        blocks = layouts or (place(grid, Layout.blocks((m, k), grid[:2]), Layout.blocks((k, n), grid[:2])))
        a = mpi.Matrix(team, blocks.a, np.ones(blocks.a.local_shape(team.rank), np.float32))
        b = mpi.Matrix(team, blocks.b, np.ones(blocks.b.local_shape(team.rank), np.float32))
        report = Report()
        c = mpi.matmul(a, b, grid=grid, report=report)
        assert (c.local == k).all()
        return report
    return mpi.run_threads(grid.size, product)


@pytest.mark.parametrize("grid", [(1, 1), (2, 2), (1, 4), (3, 1), (1, 1, 4), (2, 1, 2), (2, 2, 2)])
def test_bytes_sent_are_those_of_the_model(grid):
    m, n, k = 24, 36, 48
    reports = counted(Grid(*grid), m, n, k)
    every = sum(r.total_sent for r in reports)
    assert every == 4 * sent(Grid(*grid), m, n, k) * len(reports)
    assert every == sum(r.panels_received + r.moved_received + r.reduced_received for r in reports)
    assert not any(r.moved_sent for r in reports)


def test_on_four_ranks_a_square_product_sends_what_it_must_in_two_dimensions():
    """The target is at most 1.1 of the bound."""
    reports = counted(Grid(2, 2), 64, 64, 64)
    for report in reports:
        assert report.panels_sent / (4 * mpi.bound_2d(64, 64, 64, 4)) == pytest.approx(1)
        assert report.bound == pytest.approx(4 * mpi.bound_2d(64, 64, 64, 4))


def test_the_bounds():
    assert mpi.bound_2d(100, 100, 100, 4) == pytest.approx(5000)     # of 10,000 + 2,500 numbers 7,500 are at home
    assert mpi.lower_bound(100, 100, 100, 8) == pytest.approx(3 * (100**3 / 8)**(2/3) - 3 * 100**2 / 8)
    assert mpi.lower_bound(0, 5, 5, 3) == 0
    rng = np.random.default_rng(5)
    for _ in range(200):        # no grid is below them, whatever its shape
        m, n, k, ranks = (int(x) for x in rng.integers(1, [5000, 5000, 5000, 65]))
        least = min(sent(g, m, n, k) for g in grids(ranks))
        assert least >= mpi.lower_bound(m, n, k, ranks) - 1e-6
        two = min(sent(g, m, n, k) for g in grids(ranks) if g.layers == 1)
        assert two >= mpi.bound_2d(m, n, k, ranks) - 1e-6 or k < (m * n / ranks)**0.5


def test_a_grid_is_chosen_by_volume():
    assert mpi.choose(1000, 1000, 1000, 4) == (2, 2, 1)
    assert mpi.choose(100000, 100, 100, 4) == (4, 1, 1)      # only b is sent
    assert mpi.choose(100, 100, 100000, 4) == (1, 1, 4)      # only sums
    assert mpi.choose(4000, 4000, 4000, 64) == (4, 4, 4)
    assert mpi.choose(4000, 4000, 4000, 64, memory_limit=1.2e6 + 2 * 3 * 512 * 500).layers == 1
    assert mpi.choose(1000, 1000, 1000, 7, layers=1).size == 7
    for wrong, said in (({"ranks": 0}, "ranks 1 or more"), ({"ranks": 4, "layers": 3}, "layers must divide"),
                        ({"ranks": 4, "memory_limit": 10}, "memory_limit must be at least")):
        with pytest.raises(ValueError, match=said):
            mpi.choose(10, 10, 10, **wrong)


def test_what_moves_between_layouts_is_counted():
    rng = np.random.default_rng(6)
    for _ in range(20):
        shape = tuple(map(int, rng.integers(0, 50, 2)))
        x, y = (Layout.cyclic(shape, rng.integers(1, 20, 2), grid, ranks=rng.permutation(4))
                for grid in ((2, 2), (4, 1)))
        whole = np.arange(shape[0] * shape[1], dtype=np.float64).reshape(shape)

        def there_and_back(team, x=x, y=y, whole=whole):
            report = Report()
            there = mpi.Matrix.scatter(team, whole, x).redistribute(y, report)
            np.testing.assert_array_equal(there.gather(None), whole)
            return report
        reports = mpi.run_threads(4, there_and_back)
        assert sum(r.moved_sent for r in reports) == 8 * moved(x, y) == sum(r.moved_received for r in reports)


def test_layouts_count_for_the_choice_of_a_grid():
    """Rows of a where they lie: on a row of processes all of b travels, on a square both and what is moved."""
    a, b = Layout.blocks((400, 40), (4, 1)), Layout.blocks((40, 40), (4, 1))
    costs = {g: travels(place(g, a, b), a, b, None, (4, 4, 4, 4)) for g in grids(4)}
    assert min(costs, key=costs.get) == (4, 1, 1)
    assert costs[Grid(4, 1)] == 4 * 3 * 40 * 40
