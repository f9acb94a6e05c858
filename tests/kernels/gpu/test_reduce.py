"""Reductions of rows and columns of a matrix, on warps of both makers."""
import numpy as np
import pytest

import tilewright as tw
from tilewright.expressions.program import INDICES, REDUCTIONS
from tilewright.kernels.gpu.reduce import COLUMNS, emit_reduce


@pytest.mark.parametrize("warp", [32, 64])
@pytest.mark.parametrize("how", sorted(REDUCTIONS))
@pytest.mark.parametrize(("along", "shape"), [("row", (2, 3, 700)), ("column", (2, 37, 45))])
def test_rows_and_columns(how, along, shape, warp):
    source = np.random.default_rng(0).integers(-9, 10, shape).astype(np.float32)
    if how != "sum":
        source[1, 2, 3] = np.nan
    wanted = REDUCTIONS[how](source, axis=-1 if along == "row" else -2)
    target = np.zeros(wanted.shape, np.int32 if how in INDICES else np.float32)
    grid = shape[1] if along == "row" else -(-shape[2] // COLUMNS), shape[0]
    tw.simulate(emit_reduce("f32", how, along, warp), *shape[1:], source.ravel(), target.ravel(), grid=grid)
    np.testing.assert_array_equal(target, wanted)


def test_integers():
    """Sums wrap; of extremes the first of equal ones."""
    source = np.random.default_rng(1).integers(-2**31, 2**31, (1, 3, 70)).astype(np.int32)
    source[0, 1, [7, 40]] = 2**31 - 1
    for how in ("sum", "argmax", "min"):
        target = np.zeros(3, np.int32)
        tw.simulate(emit_reduce("i32", how, "row"), 3, 70, source.ravel(), target, grid=(3, 1))
        np.testing.assert_array_equal(target, REDUCTIONS[how](source[0], axis=-1).astype(np.int32))
