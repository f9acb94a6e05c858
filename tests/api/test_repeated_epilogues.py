"""Calls with an epilogue that the builtin repeats without Python: their bits, and what makes them another call."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.helpers.counted import Counted
from tilewright.api.products import matmul as by_python
from tilewright.runtime import repeats
from tilewright.runtime.cpu import pool

RNG = np.random.default_rng(11)
BF16 = ml_dtypes.bfloat16
FACTOR: Any = 2.0


@pytest.fixture
def counted() -> Counted:
    by_python(np.ones((3, 3), np.float32), np.ones((3, 3), np.float32))     # the first of a process is not watched
    repeats.forget()                # of other builtins: what is found in Python has no record here
    return Counted()


@pytest.fixture
def with_threads() -> Iterator[Callable[[int], None]]:
    before = pool.get_num_threads()
    yield pool.set_num_threads
    pool.set_num_threads(before)


def whole(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.integers(-3, 4, shape).astype(dtype)


def relu(acc):
    return tw.relu(acc)


def scaled(acc, bias, res):
    return (acc + bias)*FACTOR - res


def exact(a, b, bias, res, factor=2.0):
    return (a.astype("f8") @ b.astype("f8") + bias.astype("f8"))*factor - res.astype("f8")


# in place, packed, batches; rows, columns, single numbers and matrices beside them; narrow operands and results
@pytest.mark.parametrize(("a", "b", "bias", "dtype", "threads"), [
    ((5, 7), (7, 9), (9,), "f4", 1), ((64, 64), (64, 64), (64,), "f4", 2), ((200, 300), (300, 260), (200, 1), "f4", 2),
    ((90, 60), (60, 80), (), "f8", 1), ((3, 20, 30), (3, 30, 40), (40,), "f4", 2), ((70, 64), (64, 70), (70,), BF16, 1),
])
def test_no_python_from_the_second_call_on(counted, a, b, bias, dtype, threads, with_threads):
    with_threads(threads)
    shape = *a[:-1], b[-1]
    for out in None, np.empty(shape, np.float64 if dtype == "f8" else np.float32):
        made = []
        for again in range(4):
            x, y, beside, res = whole(*a, dtype=dtype), whole(*b, dtype=dtype), whole(*bias), whole(*shape)
            made.append((x, y, beside, res))            # so that each has an address of its own
            operands = {"bias": beside, "res": res}
            if again == 3:                              # the same call, of another function object
                function = types.FunctionType(scaled.__code__, scaled.__globals__)
            else:
                function = scaled
            before = counted.calls
            found = counted.matmul(x, y, out=out, epilogue=function, operands=operands)
            assert (counted.calls - before == 0) == (again > 0)
            assert out is None or found is out
            np.testing.assert_array_equal(found, exact(x, y, beside, res))


@pytest.mark.parametrize(("shape", "dtype"), [
    ((5, 7, 9), "f4"), ((40, 256, 130), "f4"), ((130, 33, 70), "f8"), ((64, 300, 64), "f4")])
def test_a_b_with_contiguous_columns(counted, shape, dtype, with_threads):
    """Of which Python makes a copy: repeated, panels of it are packed, with the same bits; up to 256 rows."""
    m, n, k = shape[0], shape[2], shape[1]
    a, b, bias, res = (RNG.standard_normal(x).astype(dtype) for x in ((m, k), (n, k), (n,), (m, n)))
    operands = {"bias": bias, "res": res}
    for threads in 1, 2:
        with_threads(threads)
        for epilogue in {}, {"epilogue": scaled, "operands": operands}:
            first = counted.matmul(a, b, trans_b=True, **epilogue)
            calls = counted.calls
            for x in a, a.copy():
                np.testing.assert_array_equal(counted.matmul(x, b, trans_b=True, **epilogue), first)
            assert (counted.calls == calls) or k > 256
            sums = a.astype("f8") @ b.T
            wanted = (sums + bias)*2 - res if epilogue else sums
            np.testing.assert_allclose(first, wanted, atol=1e-3 if dtype == "f4" else 1e-9)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1100, 300), (3, 9000, 64), (1100, 1, 300), (1100, 2, 300)])
@pytest.mark.parametrize("trans_b", [False, True])
def test_few_rows_and_columns(counted, m, n, k, trans_b, with_threads):
    """Added up beside C and finished in the same job: by one thread, by the last of two, and by both (n = 9000)."""
    a, b, bias, res = whole(m, k), whole(k, n), whole(n), whole(m, n)
    right = np.ascontiguousarray(b.T) if trans_b else b
    for threads in 1, 2:
        with_threads(threads)
        for out, beside in (None, res), (np.empty((m, n), np.float32), res), (c := res.copy(), c):
            for again in range(2):
                before, beside[...] = counted.calls, res.copy()
                found = counted.matmul(a, right, out=out, trans_b=trans_b, epilogue=scaled,
                                       operands={"bias": bias, "res": beside})
                copied = n == 2 and not trans_b             # b, by Python
                assert counted.calls == before or again == 0 or copied
                np.testing.assert_array_equal(found, exact(a, b, bias, res))
        sums, most, total = counted.matmul(a, right, trans_b=trans_b, threads=threads, epilogue=lambda acc, bias: (
            acc + bias, tw.row_max(acc), tw.column_sum(acc)), operands={"bias": bias})
        for found, wanted in (sums, a @ b + bias), (most, (a @ b).max(1)), (total, (a @ b).sum(0)):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("shapes", [
    ((3, 1, 300), (3, 300, 1100)), ((5, 2, 300), (300, 1100)), ((2, 1100, 300), (300, 1)), ((20, 30), (30, 1))])
def test_stacks_of_few_rows_and_copied_columns(counted, shapes):
    a, b = (whole(*shape) for shape in shapes)
    for right in b, np.repeat(b, 2, -1)[..., ::2], np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2):
        bias = whole(right.shape[-1])
        for _ in range(3):
            np.testing.assert_array_equal(counted.matmul(a, right, epilogue=relu), np.maximum(a @ b, 0))
            np.testing.assert_array_equal(counted.matmul(a, right, epilogue=lambda acc, bias: acc + bias,
                                                         operands={"bias": bias}), a @ b + bias)


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


def test_the_code_of_a_function_that_changed(counted):
    a, b = whole(20, 30), whole(30, 25)

    def function(acc):
        return acc + 1
    for _ in range(2):
        np.testing.assert_array_equal(counted.matmul(a, b, epilogue=function), a @ b + 1)
    function.__code__ = (lambda acc: acc - 1).__code__
    np.testing.assert_array_equal(counted.matmul(a, b, epilogue=function), a @ b - 1)


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


def test_what_is_not_one_run(counted):
    """Several results, reductions, numbers for operands, a factor: the results are right each time."""
    a, b, bias = whole(20, 30), whole(30, 24), whole(24)
    for _ in range(3):
        first, second = counted.matmul(a, b, epilogue=lambda acc: (acc, tw.row_max(acc)))
        np.testing.assert_array_equal(first, a @ b)
        np.testing.assert_array_equal(second, (a @ b).max(-1))
        np.testing.assert_array_equal(
            counted.matmul(a, b, epilogue=lambda acc, s: acc*s, operands={"s": 3.0}), 3*(a @ b))
        np.testing.assert_array_equal(counted.matmul(a, b, alpha=2, epilogue=lambda acc: acc + 1), 2*(a @ b) + 1)
        np.testing.assert_array_equal(
            counted.matmul(a[:1], b[:, :1], epilogue=lambda acc: acc + 1), (a @ b)[:1, :1] + 1)
        five = dict.fromkeys("pqrst", bias)
        np.testing.assert_array_equal(
            counted.matmul(a, b, epilogue=lambda acc, p, q, r, s, t: acc + p, operands=five), a @ b + bias)
        np.testing.assert_array_equal(counted.matmul(a, b, epilogue=lambda acc: acc > 2), a @ b > 2)


def test_functions_that_cannot_be_told(counted):
    """By keyword-only parameters, or what they name: looked at in every call."""
    a, b, table = whole(20, 30), whole(30, 24), {"x": 1.0}

    def keyword(acc, *, by=2.0):
        return acc*by

    def of_object(acc):
        return acc + table["x"]
    for by in 1.0, 5.0, 7.0:
        keyword.__kwdefaults__["by"] = table["x"] = by
        np.testing.assert_array_equal(counted.matmul(a, b, epilogue=lambda acc: keyword(acc)), by*(a @ b))
        np.testing.assert_array_equal(counted.matmul(a, b, epilogue=of_object), a @ b + by)


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


def test_the_pool_shares_it(counted, with_threads):
    """Packed: with the bits of the call that Python made."""
    a, b, bias = (RNG.standard_normal(shape, np.float32) for shape in ((400, 500), (500, 300), (300,)))
    for threads in 1, 2:
        with_threads(threads)
        first, *others = (counted.matmul(a, b, epilogue=lambda acc, bias: tw.gelu(acc + bias),
                                         operands={"bias": bias}) for _ in range(3))
        for x in others:
            np.testing.assert_array_equal(x, first)
    assert counted.calls == 2
