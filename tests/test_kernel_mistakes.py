"""Mistakes of those who write their first kernel: each is an error, in a sentence with the line and the remedy."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir import Kernel, f32, i1, i32, i64, ptr
from tilewright.simulator import run

# ---- == and !=, and Python's truth values


@pytest.fixture
def k():
    return Kernel("mistaken", threads=32, n=i64, x=ptr(f32), z=ptr(f32))


def python_if(t, k):
    if t == 0:
        k.args[2][0] = 1.0


def python_not_equal(t, k):
    return 1.0 if t != 0 else 2.0


def python_while(t, k):
    while t == 0:
        pass


TRUTH = {
    "if": python_if,
    "conditional expression": python_not_equal,
    "in": lambda t, k: t in (1, 2),
    "in a list of values": lambda t, k: t in [k.block[0], k.block[1]],
    "and": lambda t, k: t == 0 and k.block[0] == 0,
    "not": lambda t, k: not t,
    "chained": lambda t, k: 0 < t < 8,
    "chained equality": lambda t, k: 0 == t == k.block[0],
    "bool": lambda t, k: bool(t == 0),
    "comprehension": lambda t, k: [x for x in (t,) if x],
    "while": python_while,
}


@pytest.mark.parametrize("what", TRUTH)
def test_a_truth_value_is_refused_with_the_line_and_the_remedy(k, what):
    with pytest.raises(TypeError, match=r"with k\.when\(t == 0\):") as error:
        TRUTH[what](k.thread[0], k)
    line, text = str(error.value).split(": ", 1)[0], str(error.value).splitlines()[-1].strip()
    name, number = line.split(":")
    assert name == "test_kernel_mistakes.py"
    with open(__file__) as source:
        assert source.readlines()[int(number) - 1].strip() == text


def test_equality_is_recorded():
    k = Kernel("equal", threads=32, x=ptr(i32), z=ptr(i32))
    x, z = k.args
    t = k.thread[0]
    with k.when(t == 3):
        z[t] = 1
    with k.when((0 == t) | (x[t] != t) & ~(t == 5)):
        z[t] = z[t] + 2
    numbers, z = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
    numbers[4:7] = -1
    run(k.function, numbers, z, grid=(1,))
    expected = np.zeros(32, np.int32)
    expected[3] = 1
    expected[[0, 4, 6]] = 2
    np.testing.assert_array_equal(z, expected)


def test_values_are_keys_by_identity(k):
    t, b = k.thread[0], k.block[0]
    before = len(k.function.body)
    found = {t: "thread", b: "block", t + 1: "next"}
    assert list(found.values()) == ["thread", "block", "next"]
    assert found[t] == "thread"
    assert b in found
    assert t in (t, b)  # identity is looked at first
    assert len(k.function.body) == before + 1  # of t + 1 alone


def test_numpy_numbers_are_operands_on_both_sides(k):
    t = k.thread[0]
    for value in (np.int32(3) + t, t + np.int32(3), np.int64(3) * t):
        assert value.type == i32
    for value in (np.int32(3) == t, t != np.int32(3), np.int32(3) < t):
        assert value.type == i1
