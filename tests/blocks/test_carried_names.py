"""Names of block programs that a loop's body binds to another name's block, and programs called by tw.kernel."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright import simulator
from tilewright.blocks import Program
from tilewright.ir import f32, i32, ptr

N = 32


def fresh(rounds, load, most, now, limit):
    """A block of the body's own."""
    for i in rounds:
        found = load(i)
        most = found
    return most, now, limit


def both(rounds, load, most, now, limit):
    """Of two carried names, whose first values differ."""
    for i in rounds:
        now = load(i) + now * 2.0 + most
        most = now
    return most, now, limit


def unchanged(rounds, load, most, now, limit):
    """A block from before the loop."""
    for _ in rounds:
        now = now + most
        most = limit
    return most, now, limit


def exchanged(rounds, load, most, now, limit):
    for _ in rounds:
        now, most = most, now
    return most, now, limit


BODIES = [fresh, both, unchanged, exchanged]


def emit(body, target):
    k = Program("names", target, y=ptr(f32), x=ptr(f32), n=i32)
    y, x, n = k.args
    offsets = k.arange(0, N)
    most, now, limit = (k.full(N, value) for value in (-5.0, 1.0, 7.0))
    most, now, limit = body(k.range(0, n), lambda i: k.load(x + i * N + offsets), most, now, limit)
    k.store(y + offsets, most + 100.0 * now + 10000.0 * limit)
    return k.function


@pytest.mark.parametrize("target", ["x86-avx2", "sm_86", "gfx942"])
@pytest.mark.parametrize("body", BODIES)
def test_a_name_bound_to_another_block_is_a_copy(body, target):
    function = emit(body, target)
    x = np.arange(4 * N, dtype=np.float32).reshape(4, N)
    for n in (0, 1, 3):
        y = np.zeros(N, np.float32)
        simulator.run(function, y, x, n, grid=1)
        most, now, limit = body(range(n), lambda i: x[i], *(np.full(N, value) for value in (-5.0, 1.0, 7.0)))
        np.testing.assert_array_equal(y, most + 100 * now + 10000 * limit)


def emit_add_one(target=None):
    k = Program("add_one", target, z=ptr(f32), x=ptr(f32))
    z, x = k.args
    offsets = k.program_id(0) * N + k.arange(0, N)
    k.store(z + offsets, k.load(x + offsets) + 1.0)
    return k.function


def test_a_program_without_parameters_is_called():
    add_one, x = tw.kernel(emit_add_one), np.arange(4 * N, dtype=np.float32)
    z = np.zeros_like(x)
    add_one(z, x, grid=4)
    np.testing.assert_array_equal(z, x + 1)
    z[:] = 0
    add_one(z, x)                               # one program
    np.testing.assert_array_equal(z[: 2 * N], [*(x[:N] + 1), *np.zeros(N)])
    with pytest.raises(TypeError, match="add_one takes 2 arguments"):
        add_one(z)


def test_a_program_is_recorded_for_each_chip():
    """Chips whose warps are alike have programs of their own."""
    add_one = tw.kernel(emit_add_one)
    assert add_one.function("sm_75") is add_one.function("sm_75")
    assert add_one.function("sm_75") is not add_one.function("sm_90a")
