"""Calls with an epilogue that the builtin repeats without Python: their bits, and what makes them another call."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.counted import Counted
from tilewright.api.products import matmul as by_python
from tilewright.runtime import repeats

RNG = np.random.default_rng(11)
FACTOR: Any = 2.0


@pytest.fixture
def counted() -> Counted:
    by_python(np.ones((3, 3), np.float32), np.ones((3, 3), np.float32))     # the first of a process is not watched
    repeats.forget()                # of other builtins: what is found in Python has no record here
    return Counted()


def whole(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.integers(-3, 4, shape).astype(dtype)


def relu(acc):
    return tw.relu(acc)


def scaled(acc, bias, res):
    return (acc + bias)*FACTOR - res


def exact(a, b, bias, res, factor=2.0):
    return (a.astype("f8") @ b.astype("f8") + bias.astype("f8"))*factor - res.astype("f8")


def test_functions_made_anew(counted):
    """By a lambda in the call; by one with a closure, whose numbers count by their values."""
    a, b = whole(20, 30), whole(30, 25)
    for again in range(3):
        calls = counted.calls
        found = counted.matmul(a, b, epilogue=lambda acc: tw.relu(acc))
        np.testing.assert_array_equal(found, np.maximum(a @ b, 0))
        assert (counted.calls == calls) == (again > 0)

    def times(factor: Any) -> Any:
        return lambda acc: acc*factor
    for factor, known in ("2", 0), ("3", 0), ("2", 1), ("3", 1):
        calls = counted.calls
        np.testing.assert_array_equal(counted.matmul(a, b, epilogue=times(float(factor))), float(factor)*(a @ b))
        assert (counted.calls == calls) == known

    def added(term: Any) -> Any:
        return eval("lambda acc, term=term: acc + term", {"term": term})
    function = added(4)
    for known in range(2):
        assert counted.python_calls(a, b, epilogue=function) == 1 - known
    function.__defaults__ = (5,)
    np.testing.assert_array_equal(counted.matmul(a, b, epilogue=function), a @ b + 5)


def test_a_global_that_changed(counted, monkeypatch):
    a, b, bias, res = whole(20, 30), whole(30, 25), whole(25), whole(20, 25)
    operands = {"bias": bias, "res": res}
    for factor in 2.0, 3.0, 3, 2.0:
        repeats.forget()
        monkeypatch.setitem(globals(), "FACTOR", factor)
        for again in range(3):
            calls = counted.calls
            found = counted.matmul(a, b, epilogue=scaled, operands=operands)
            np.testing.assert_array_equal(found, exact(a, b, bias, res, factor))
            assert (counted.calls == calls) == (again > 0)
    space: dict[str, Any] = {"tw": tw}
    function = eval("lambda acc: abs(acc)", space)
    for again in range(2):
        assert counted.python_calls(a, b, epilogue=function) == 1 - again
    space["abs"] = tw.relu
    np.testing.assert_array_equal(counted.matmul(a, b, epilogue=function), np.maximum(a @ b, 0))


def test_what_differs_goes_to_python(counted):
    a, b, bias, res = whole(20, 30), whole(30, 20), whole(20), whole(20, 20)
    operands = {"bias": bias, "res": res}
    for again in range(2):
        assert counted.python_calls(a, b, epilogue=scaled, operands=operands) == 1 - again
    for others in ({"res": res, "bias": bias}, {"bias": bias, "res": res.T}, {"bias": bias[:, None], "res": res},
                   {"bias": bias[::-1], "res": res}, {"bias": bias.astype("f8"), "res": res}, {"bias": 1, "res": res},
                   {"bias": bias, "res": res.tolist()}):
        calls = counted.calls
        found = counted.matmul(a, b, epilogue=scaled, operands=others)
        wanted = exact(a, b, *(np.asarray(others[name]) for name in ("bias", "res")))
        np.testing.assert_array_equal(found, wanted)
        assert counted.calls == calls + 1
    for wrong in {"bias": bias}, {"bias": bias, "res": res, "more": bias}, {}, None:
        with pytest.raises((TypeError, ValueError)):
            counted.matmul(a, b, epilogue=scaled, operands=wrong)


def test_operands_that_lie_in_the_result(counted):
    """They are read before the result is written, in each call. The result itself may be one, without Python."""
    a, b, out, bias = whole(20, 30), whole(30, 25), np.empty((20, 25), np.float32), whole(25)
    for _ in range(2):
        counted.matmul(a, b, out, epilogue=scaled, operands={"bias": bias, "res": whole(20, 25)})
    out[...] = res = whole(20, 25)
    for where in out, out[::-1]:
        out[...] = res
        wanted = exact(a, b, bias, where.copy())
        np.testing.assert_array_equal(
            counted.matmul(a, b, out, epilogue=scaled, operands={"bias": bias, "res": where}), wanted)
    for known in 1, 1, 1:                           # `where` had been out, once
        calls = counted.calls
        out[...] = res = whole(20, 25)
        counted.matmul(a, b, out, epilogue=scaled, operands={"bias": bias, "res": out})
        np.testing.assert_array_equal(out, exact(a, b, bias, res))
        assert (counted.calls == calls) == known
    other = whole(20, 25)
    np.testing.assert_array_equal(
        counted.matmul(a, b, out, epilogue=scaled, operands={"bias": bias, "res": other}), exact(a, b, bias, other))
    square, added = whole(30, 30), whole(30)
    for _ in range(3):
        calls = counted.calls
        found = counted.matmul(square, square, epilogue=scaled, operands={"bias": added, "res": square})
        np.testing.assert_array_equal(found, exact(square, square, added, square))
    assert counted.calls == calls
    out[...] = res
    wanted = exact(a, b, row := whole(25), res)
    out[3] = row
    np.testing.assert_array_equal(
        counted.matmul(a, b, out, epilogue=scaled, operands={"bias": out[3], "res": res}), wanted)


def test_one_array_as_two_operands(counted):
    """Which of two addresses is which cannot be seen from it: no other call is like it."""
    a, b, x, y = whole(20, 30), whole(30, 25), whole(20, 25), whole(20, 25)

    def function(acc, p, q):
        return acc + 2*p - q
    for p, q in ((x, x), (x, x), (x, y), (y, x), (x, y), (y, x)):
        np.testing.assert_array_equal(counted.matmul(a, b, epilogue=function, operands={"p": p, "q": q}),
                                      a @ b + 2*p - q)


def test_a_float_as_an_operand(counted):
    """A float's value is no part of the key; other kinds of numbers go to Python. Several are told by name."""
    a, b, res = whole(20, 30), whole(30, 25), whole(20, 25)

    def function(acc, by, res):
        return acc*by + res
    for known, by in enumerate((0.5, 2.0, -3.0, 1e300, 0.5)):
        for operands in {"by": by, "res": res}, {"res": res, "by": by}:
            calls = counted.calls
            found = counted.matmul(a, b, epilogue=function, operands=operands)
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(found, (a @ b)*np.float32(by) + res)
            assert (counted.calls == calls) == (known > 0)
    for by in 2, True, np.float32(3), np.float64(2), np.array(2.0):
        np.testing.assert_array_equal(
            counted.matmul(a, b, epilogue=function, operands={"by": by, "res": res}), (a @ b)*np.float32(by) + res)
    for rows in 20, 1:
        for known, (p, q) in enumerate(((2.0, 3.0), (3.0, 2.0), (3.0, 3.0))):
            calls = counted.calls
            found = counted.matmul(a[:rows], b, epilogue=lambda acc, p, q, x, y: acc*p + q + x - y,
                                   operands={"y": res[0], "q": q, "x": res[0], "p": p})
            np.testing.assert_array_equal(found, (a[:rows] @ b)*p + q)
            assert (counted.calls == calls) == (known > 0)


def test_what_a_record_points_to_stays(counted):
    a, b = whole(20, 30), whole(30, 24)

    def make() -> Any:
        def function(acc):
            return acc + 3
        return function
    function = make()
    code = weakref.ref(function.__code__)
    for _ in range(2):
        counted.matmul(a, b, epilogue=function)
    del function, make
    gc.collect()
    assert code() is not None


def test_what_was_forgotten_is_remembered_again(counted):
    """As when the first small product of a format enables the builtin for more."""
    a, b = whole(20, 30), whole(30, 24)
    for _ in range(2):
        for known in range(3):
            assert counted.python_calls(a, b, epilogue=relu) == (known == 0)
        counted.entry.forget()
