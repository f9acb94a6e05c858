"""Reads of LDS that transpose: who gets what, how they are written, what waits for them, which mistakes are found."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import simulator
from tilewright.compiler import amd, gate
from tilewright.ir import Kernel, bf16, f16, f32, i8, i16, ptr, vec
from tilewright.ir.ops.amd import exchanged
from tilewright.targets import target


def emit_transpose(T, BUG=""):
    """c = tiles of 16 columns, column by column: sixteen lanes read the rows of one and have its columns."""
    N = 8 // T.bytes  # rows, and elements of a lane
    W = 16 // N  # lanes of a row
    k = Kernel("transpose", threads=128, warp=64, a=ptr(T), c=ptr(T))
    a, c = k.args
    t = k.thread[0]
    s = k.smem("s", (9, N, 16), T)
    k.store(s + t * N, k.load(a + t * N, vec(T, N)))
    if BUG != "barrier":
        k.barrier()
    tile, lane = (t // 16) ^ 4, t % 16
    if BUG == "order":
        lane = lane % N * W + lane // N
    place = s.at(tile, lane // W, lane % W * N)
    if BUG == "align":
        place = place + 1
    if BUG == "diverge":
        with k.when(t % 64 < 48):
            k.store(c + t * N, k.load_transposed(place))
    else:
        k.store(c + t * N, k.load_transposed(place))
    return k.function


def tiles(T):
    N = 8 // T.bytes
    a = np.random.default_rng(0).integers(-100, 100, (8, N, 16)).astype(T.numpy)
    return a, np.zeros((8, 16, N), T.numpy)


@pytest.mark.parametrize("T", [i8, i16, f16])
def test_every_lane_gets_a_column(T):
    a, c = tiles(T)
    report = simulator.run(emit_transpose(T), a.ravel(), c.ravel(), target="gfx950")
    np.testing.assert_array_equal(c, a[np.arange(8) ^ 4].transpose(0, 2, 1))
    reads = report.of("s", "load")
    assert (reads.bytes, reads.moved, reads.conflicts) == (1024, 4, 0)
    assert report.instructions["load shared"] == 2


@pytest.mark.parametrize(("bits", "lanes"), [(8, 2), (16, 4)])
def test_as_triton_has_it(bits, lanes):
    """Of N elements lane l's r-th comes from lane `lanes` * r + l // N, where it is element l % N."""
    N = 64 // bits
    read = np.arange(64) + 64 * np.arange(N)[:, None]  # each element's lane and number
    for lane in range(64):
        first, column = lane // 16 * 16, lane % 16
        wanted = [first + lanes * r + column // N + 64 * (column % N) for r in range(N)]
        assert [*exchanged(read)[:, lane]] == wanted


@pytest.mark.parametrize(("T", "name"), [(i8, "b8"), (i16, "b16"), (f16, "b16"), (bf16, "b16")])
def test_one_instruction_each(T, name):
    text = amd.assembly(emit_transpose(T), target("gfx950"))
    assert text.count(f"ds_read_b64_tr_{name} ") == 1


@pytest.mark.parametrize(("bug", "kind"), [("barrier", "race"), ("align", "misaligned"), ("diverge", "divergent")])
def test_mistakes_are_found(bug, kind):
    a, c = tiles(i8)
    with pytest.raises(simulator.Fault) as fault:
        simulator.run(emit_transpose(i8, bug), a.ravel(), c.ravel())
    assert fault.value.kind == kind


@pytest.mark.parametrize("T", [i8, i16])
def test_another_order_of_lanes_gives_something_else(T):
    a, c = tiles(T)
    simulator.run(emit_transpose(T, "order"), a.ravel(), c.ravel())
    assert (c != a[np.arange(8) ^ 4].transpose(0, 2, 1)).any()


def test_only_gfx950_has_them():
    assert not [*gate.refusals(emit_transpose(f16), target("gfx950"))]
    for name in ("gfx942", "sm_90a"):
        assert any("has no load_transposed16" in why for why in gate.refusals(emit_transpose(f16), target(name)))
    k = Kernel("k", threads=64, warp=64, a=ptr(f32))
    with pytest.raises(TypeError, match="8-bit or 16-bit numbers"):
        k.load_transposed(k.smem("s", (64,), f32))
    with pytest.raises(TypeError, match="LDS"):
        k.load_transposed(k.args[0])
