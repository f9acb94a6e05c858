"""Who has which element, and which panels there are: against ScaLAPACK's own formulas, and counted."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.mpi import Grid, Layout
from tilewright.mpi.layouts import Cyclic, even, select
from tilewright.mpi.placement import panels, place, segment_length


def numroc(n: int, nb: int, p: int, first: int, parts: int) -> int:
    """TOOLS/numroc.f of ScaLAPACK, line by line."""
    distance = (parts + p - first) % parts
    blocks = n // nb
    count = blocks // parts * nb
    extra = blocks % parts
    return count + (nb if distance < extra else n % nb if distance == extra else 0)


def indxl2g(local: int, nb: int, p: int, first: int, parts: int) -> int:
    """TOOLS/indxl2g.f, from 0."""
    return parts * nb * (local // nb) + local % nb + (parts + p - first) % parts * nb


@pytest.mark.parametrize(("n", "nb", "parts", "first"), [
    (0, 1, 1, 0), (1, 1, 3, 2), (7, 2, 3, 1), (64, 8, 4, 0), (65, 8, 4, 3), (5, 9, 2, 1), (100, 7, 5, 4)])
def test_blocks_in_turns_are_scalapacks(n, nb, parts, first):
    axis = Cyclic(n, nb, parts, first)
    for p in range(parts):
        assert axis.count(p) == numroc(n, nb, p, first, parts)
        assert axis.indices(p).tolist() == [indxl2g(x, nb, p, first, parts) for x in range(axis.count(p))]
    assert sorted(x for p in range(parts) for x in axis.indices(p)) == list(range(n))


def test_a_descriptor_there_and_back():
    for descriptor in [(1, 5, 100, 70, 8, 16, 1, 0, 48), (1, 0, 3, 0, 1, 1, 0, 0, 1)]:
        layout = Layout.of_descriptor(descriptor, (2, 2))
        assert layout.descriptor(0, context=descriptor[1])[:8] == descriptor[:8]
        assert [layout.descriptor(rank)[8] for rank in range(4)] == [max(1, layout.local_shape(r)[0]) for r in range(4)]
    by_columns = Layout.of_descriptor((1, 0, 9, 9, 2, 2, 0, 0, 9), (2, 3), order="column")
    assert by_columns.ranks == (0, 2, 4, 1, 3, 5)
    assert by_columns.place(4) == (0, 2)


@pytest.mark.parametrize(("given", "said"), [
    (lambda: Layout.cyclic((3, -1), (1, 1), (1, 1)), r"shape must be two whole numbers, 0 or more, not \(3, -1\)"),
    (lambda: Layout.cyclic((3, 3), (0, 1), (1, 1)), r"blocks must be two whole numbers, 1 or more, not \(0, 1\)"),
    (lambda: Layout.cyclic((3, 3), (1, 1), (2, 2), (0, 2)), r"first must be a process of the grid of 2 x 2, not"),
    (lambda: Layout.of_descriptor((1, 0, 3, 3), (1, 1)), r"must have 9 numbers, dtype, ctxt, .* not \(1, 0, 3, 3\)"),
    (lambda: Layout.of_descriptor((2, 0, 3, 3, 1, 1, 0, 0, 3), (1, 1)), "must begin with 1, .* not 2"),
    (lambda: Layout.of_descriptor((1, 0, 3, 3, 1, 1, 0, 0, 3), (1, 1), "x"), 'order must be "row" or "column", not'),
    (lambda: Layout(Cyclic(4, 2, 2), Cyclic(4, 2, 2), (0, 1, 2, 2)), "ranks must be 4 different ranks"),
    (lambda: Layout(even(4, 2), even(4, 1)).descriptor(0), "this layout has ranges: redistribute")])
def test_what_there_cannot_be_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        given()


@pytest.mark.parametrize(("shape", "grid", "said"), [
    ((3, 3), (0, 1), r"grid must be two whole numbers, 1 or more, not \(0, 1\)"), ((3, 3), None, "grid must be two"),
    ("ab", (1, 1), "shape must be two whole numbers, 0 or more, not 'ab'"), ((3,), (1, 1), r"not \(3,\)"),
])
def test_blocks_that_there_cannot_be(shape, grid, said):
    with pytest.raises(ValueError, match=said):
        Layout.blocks(shape, grid)
    with pytest.raises(ValueError, match="descriptor must have 9 numbers"):
        Layout.of_descriptor(grid, (1, 1))


def test_each_element_has_one_rank_and_the_transposed_layout_the_transposed_part():
    rng = np.random.default_rng(3)
    for _ in range(30):
        shape, blocks, grid = rng.integers(0, 40, 2), rng.integers(1, 9, 2), rng.integers(1, 4, 2)
        first = rng.integers(0, grid)
        layout = Layout.cyclic(shape, blocks, grid, first, rng.permutation(grid.prod()))
        whole = np.arange(shape.prod()).reshape(shape)
        owned = np.zeros(shape, int)
        for rank in range(grid.prod()):
            rows, cols = layout.local_indices(rank)
            assert (len(rows), len(cols)) == layout.local_shape(rank)
            owned[np.ix_(rows, cols)] += 1
            np.testing.assert_array_equal(select(whole, rows, cols).T, select(whole.T, *layout.T.local_indices(rank)))
        assert (owned == 1).all()
        assert layout.T.T == layout


def test_owners_take_turns_unless_the_order_is_fixed():
    blocks = place(Grid(2, 2), Layout.blocks((8, 512), (2, 2)), Layout.blocks((512, 8), (2, 2)))
    assert [x.begin for x in panels(blocks, 0, 64, True)] == [*range(0, 512, 64)]
    assert [x.begin for x in panels(blocks, 0, 64, False)] == [0, 256, 64, 320, 128, 384, 192, 448]


def test_panels_are_all_of_k_once_and_in_order():
    rng = np.random.default_rng(4)
    for _ in range(60):
        m, n, k = (int(x) for x in rng.integers(0, [40, 40, 700]))
        grid = Grid(*map(int, rng.integers(1, 4, 3)))
        a = Layout.cyclic((m, k), rng.integers(1, 90, 2), grid[:2])
        b = Layout.cyclic((k, n), rng.integers(1, 90, 2), grid[:2])
        width, fixed = int(rng.integers(1, 200)), bool(rng.integers(2))
        placement = place(grid, a, b, unit=segment_length(k, width) if fixed else 1)
        steps = [step for layer in range(grid.layers) for step in panels(placement, layer, width, fixed)]
        if not fixed:
            assert [step.first for step in panels(placement, 0, width, fixed)][1:].count(True) == 0
            steps.sort(key=lambda step: step.begin)
        assert [p for step in steps for p in range(step.begin, step.end)] == list(range(k))
        alone = grid[:2] == (1, 1) and not fixed        # nothing travels: one panel
        assert alone or all(step.end - step.begin <= width for step in steps)
        assert not fixed or all(step.begin % width == 0 for step in steps)
        for step in steps:
            for pieces in (step.a, step.b):
                assert sorted(int(x) for piece in pieces for x in piece.at) == list(range(step.end - step.begin))
                assert all(len(piece.at) == piece.end - piece.begin for piece in pieces)
