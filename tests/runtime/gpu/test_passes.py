"""Products with passes on the fake CUDA driver: workspaces, order on the stream, layouts, batches, graphs."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.arrays import small_integers
from tests.helpers.graphs import capture
from tilewright.runtime.cuda import module

pytestmark = pytest.mark.sampled

TERMS = "mma 32x32x32 warp=16x16 stages=3 vector=8 vector_c=1 terms=bf16_x6"
COPIED = "mma 32x32x{} warp=16x16 stages=3 vector={} vector_c=1 copied={}"


def integers(*shape, name="f32", seed=0):
    return small_integers(seed, shape, np.int64).astype(tw.formats.get(name).dtype)


def stored(x, layout):
    """The same matrix, or stack, stored by columns for "t"."""
    return x if layout == "n" else np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)


@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize(("name", "plan"), [
    ("f32", TERMS), ("bf16", COPIED.format(32, 8, "ab")), ("i8", COPIED.format(64, 16, "ab")),
    ("f32", "simt 32x32x32 warp=32x32 thread=8x4 stages=3 copied=b"),
    ("i8", "wgmma 64x64x128 stages=3 warpgroups=1 copied=ab")])
def test_views(on, name, plan, layout):
    """Of any alignment, one matrix and several, with one B for all."""
    a, b = stored(integers(2, 33, 70, name=name), layout[0]), stored(integers(70, 35, name=name, seed=1), layout[1])
    a, b = a[..., 1:, 1:-2], b[1:-2, :-2]
    for x in (a[0], a):
        exact = x.astype(np.float64) @ b.astype(np.float64)
        out = np.zeros(exact.shape, tw.matmul(x, b).dtype)
        tw.matmul(on.array(x), on.array(b), on.array(out), plan=plan)
        on.finish()
        np.testing.assert_array_equal(out.astype(np.float64), exact.astype(out.dtype).astype(np.float64))
    passes = [name for name, *_ in on.machine.launches if name.startswith("rewrite")]
    assert len(passes) == 2 * (2 if "copied=b" not in plan else 1)
    assert not on.machine.blocks


def test_out_is_updated_once(on):
    """gemm by terms with beta, C stored by columns, and a number that cannot be split."""
    a, b = integers(33, 50), integers(50, 35, seed=1)
    for value in (3.0, np.inf):
        a[5, 7] = value
        b[7][b[7] == 0] = 1
        c = np.asfortranarray(integers(33, 35, seed=2))
        with np.errstate(all="ignore"):
            wanted = 2 * (a.astype(np.float64) @ b) - c
        tw.gemm(2, on.array(a), on.array(b), -1, on.array(c), plan=TERMS)
        on.finish()
        np.testing.assert_array_equal(c, wanted)


def test_bound(on):
    """What operands hold at the call counts; the workspace is free afterwards."""
    kernel = tw.compile(tw.Gemm(33, 35, 50), "sm_90a", TERMS)
    a, b, out = integers(33, 50), integers(50, 35, seed=1), np.zeros((33, 35), np.float32)
    bound = kernel.bind(*map(on.array, (a, b, out)))
    for _ in range(2):
        a += 1
        bound()
        on.finish()
        np.testing.assert_array_equal(out, a @ b)
    assert not on.machine.blocks


def test_in_a_graph(on):
    """Allocation, the flag, passes and both products are recorded, and run with what operands hold then."""
    stream = module.Stream()
    kernel = tw.compile(tw.Gemm(33, 35, 50), "sm_90a", TERMS)
    a, b, out = integers(33, 50), integers(50, 35, seed=1), np.zeros((33, 35), np.float32)
    bound = kernel.bind(*map(on.array, (a, b, out)))
    with capture(stream) as graph:
        bound(stream)
    assert not out.any()
    for value in (2.0, np.inf, 3.0):
        a[:] = abs(a) + 1
        a[4, 4] = value
        graph.launch(stream)
        stream.synchronize()
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(out, a @ b)


def test_algorithm(on):
    """Small products are native ones, of any algorithm."""
    a, b = integers(33, 50), integers(50, 35, seed=1)
    out = np.zeros((33, 35), np.float32)
    for algorithm in ("fastest", "bf16_bf16_f32_x6", "tf32_tf32_f32_x3"):
        tw.matmul(on.array(a), on.array(b), on.array(out), algorithm=algorithm)
        on.finish()
        np.testing.assert_array_equal(out, a @ b)
    assert {name.partition("_")[0] for name, *_ in on.machine.launches} == {"simt"}
