"""Products by tables of offsets: every way of packing and storing, native and simulated, against NumPy's einsum."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.drivers import HERE
from tilewright.kernels.cpu import jobs
from tilewright.plans.cpu import CpuPlan
from tilewright.rules import contraction as rules
from tilewright.rules.contraction import Term
from tilewright.runtime.cpu import contraction, tables
from tilewright.simulator.memory import AddressSpace
from tilewright.simulator.product import SimulatedHost, SimulatedRecipe
from tilewright.targets import names, target

pytestmark = pytest.mark.sampled

SIZES = {"a": 19, "b": 3, "c": 17, "d": 2, "e": 18, "f": 20, "g": 4}
# what is multiplied, and how A and B are packed and C is stored where vectors have 8 elements; "": not by tables
CASES = {
    "bea,ec->bac": ("across", "", ""),          # A's rows lie side by side in runs of 19
    "bdae,dec->bac": ("along", "", ""),         # along k in runs of 18
    "aed,ec->adc": ("any", "", ""),             # runs of 2
    "ea,bec->abc": ("", "across", ""),
    "aef,cfe->ac": ("along", "along", ""),      # each operand is contiguous along another axis of k: tiles
    "ea,ebc->bac": ("", "", "across"),
    "ea,ecd->cad": ("", "", "any"),
    "gbea,gce->gcba": ("", "across", ""),       # the operands change places
    "ge,faeb->gbaf": ("", "squares", "squares"),    # B contiguous along b, C along f
    "ge,acef->gcfa": ("", "squares", "squares"),    # 19 columns of C are no multiple of a square
}


def terms(subscripts, dtype, seed=0):
    (a, b), c = subscripts.split("->")[0].split(","), subscripts.split("->")[1]
    sizes = SIZES | ({"c": 3} if len(b) == 4 and "c" in b else {})      # the squares of it are f by a
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(-8, 9, [sizes[x] for x in labels]).astype(dtype) for labels in (a, b)]
    arrays.append(np.zeros([sizes[x] for x in c], dtype))
    return [Term(x, tuple(labels)) for x, labels in zip(arrays, (a, b, c))]


def prepared(subscripts, dtype="f4"):
    """The three arrays, and the same as the engine takes them."""
    a, b, c = terms(subscripts, dtype)
    given = a, b, c
    if rules.exchanged(a, b, c.labels, c, c.labels):
        a, b = b, a
    found = rules.groups(a, b, c.labels, c)
    x = rules.merged(*(rules.arranged(term, sum(of, ())) for term, of in zip(
        (a, b, c), (found.of_a, found.of_b, found.of_c))), found)
    return given, x


def expected(subscripts, a, b, c):
    return np.einsum(subscripts, a.array, b.array)


@pytest.mark.parametrize("isa", [name for name in names("cpu") if name.startswith("x86")])
@pytest.mark.parametrize("subscripts", CASES)
def test_in_the_simulator(subscripts, isa):
    """In blocks of every loop: no access beyond the operands, and the exact result."""
    (a, b, c), x = prepared(subscripts)
    chip = target(isa)
    splits = contraction._splits(*x)
    found = contraction.lowered(*x[:3], splits, 1, chip)
    lanes = chip.lanes(4)
    plan = CpuPlan("packed", 5, 2 * lanes, 10, 12, 2 * lanes)
    host = SimulatedHost(AddressSpace())
    swapped = rules.exchanged(a, b, c.labels, c, c.labels)
    at = [host.memory.address(term.array) for term in ((b, a, c) if swapped else (a, b, c))]
    recipe = contraction.recipe(found, splits, plan, SimulatedRecipe, host)
    for i in range(x.c.shape[0] if x.counts[0] else 1):
        recipe.run(*(start + i * y.strides[0] for start, y in zip(at, x[:3])), 1.0, 0.0)
    np.testing.assert_array_equal(c.array, expected(subscripts, a, b, c))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i8"])
@pytest.mark.parametrize("threads", [1, 4])
def test_here(dtype, threads):
    for subscripts in CASES:
        (a, b, c), x = prepared(subscripts, dtype)
        assert contraction.gemm(*x, threads=threads)
        np.testing.assert_array_equal(c.array, expected(subscripts, a, b, c), subscripts)


@pytest.mark.skipif("x86-avx2" not in HERE, reason="no AVX2")
@pytest.mark.parametrize(("subscripts", "kinds"), CASES.items())
def test_how_operands_are_read(subscripts, kinds):
    _, x = prepared(subscripts)
    splits = contraction._splits(*x)
    chip = target("x86-avx2")
    recipe = contraction.recipe(contraction.lowered(*x[:3], splits, 1, chip), splits)
    assert tuple(by.kind if by else "" for by in recipe.tables) == kinds


def test_narrow_operands_are_widened_and_sums_rounded():
    (a, b, c), x = prepared("bea,ec->bac", "f2")
    assert contraction.gemm(*x)
    np.testing.assert_array_equal(c.array, expected("bea,ec->bac", a, b, c).astype("f2"))


def test_complex_operands_are_left_alone():
    _, x = prepared("bea,ec->bac", "c8")
    assert not contraction.gemm(*x)


# ---- tables


def test_a_group_of_one_stride():
    assert tables.single_stride([(3, 20), (4, 5), (1, 77), (5, 1)]) == 1
    assert tables.single_stride([(3, 21), (4, 5), (5, 1)]) is None
    assert tables.single_stride([]) == tables.single_stride([(1, 9)]) == 1


@pytest.mark.parametrize("depth", [4, 12, 60])
@pytest.mark.parametrize("of_k", [[(5, 12), (3, 4), (4, 1)], [(4, 1), (3, 20), (5, 4)], [(3, 4), (5, 12), (4, 1)]])
def test_every_step_of_a_block_is_visited_once(of_k, depth):
    """Whatever the order of visits: each row of the panel once, from where this step of k is."""
    steps = tables.offsets(of_k)
    found = tables.scattered(tables.offsets([(5, 100), (2, 1000)]), steps, depth, 4, True, True)
    assert found.steps.shape == (60, jobs.STEP_FIELDS)
    for at in range(0, 60, depth):
        block, rows, v = found.steps[at : at + depth], {}, 0
        while v < len(block):
            offset, run, row, apart = block[v]
            run = min(run, len(block) - v)
            rows |= {row + q * apart: offset + q for q in range(run)}
            v += run
        assert rows == dict(enumerate(steps[at : at + depth]))


def test_tiles_are_an_order_of_all_elements():
    order = tables.tiled([(40, 50), (50, 1)], [(40, 1), (50, 40)])
    assert sorted(order) == [*range(2000)]
    assert [*np.diff(order)[:31]] == [1] * 31
    assert tables.tiled([(40, 50), (50, 1)], [(40, 50), (50, 1)]) is None
    assert tables.tiled([(40, 2)], [(40, 1)]) is None


@pytest.mark.parametrize(("extent", "side", "lengths"), [(40, 8, [8] * 5), (20, 8, [8, 8, 4]), (19, 8, [8, 6, 5]),
                                                         (13, 8, [8, 5]), (7, 8, [7]), (5, 8, [5]), (9, 8, [5, 4])])
def test_strips_are_at_least_half_a_square(extent, side, lengths):
    """Strips divide C's axis; columns of B follow each other in strips of one length, one per place of the other."""
    c, b = [(6, extent), (extent, 1)], [(6, 1), (extent, 6)]
    order = tables.tiled(c, b, side)
    assert sorted(order) == [*range(6 * extent)]
    left = tables.strips(c, order, side)
    firsts = np.flatnonzero(np.append(True, left[:-1] == 1))
    assert sorted(left[firsts]) == sorted(lengths * 6)
    runs = tables._strips(tables.offsets(b)[order], left)
    assert [*(runs % jobs.STRIP)] == [*left]
    for at in firsts:
        length, count = divmod(int(runs[at]), jobs.STRIP)[::-1]
        lines = tables.offsets(b)[order][at : at + length * count].reshape(count, length)
        assert (np.diff(lines, axis=0) == 1).all()


def test_the_result_of_a_batch_that_lies_innermost_has_columns_of_the_next_axis():
    """Its columns are those of the operand that has the axis before the batch's."""
    for subscripts, columns in (("amk,ank->mna", "n"), ("amk,ank->nma", "m"), ("mk,nk->mn", "n"), ("mk,nk->nm", "m")):
        (x, y), z = subscripts.split("->")[0].split(","), subscripts.split("->")[1]
        a, b, c = (Term(np.empty([3] * len(labels), "f4"), tuple(labels)) for labels in (x, y, z))
        assert rules.exchanged(a, b, c.labels, c, c.labels) == (columns == "m"), subscripts
