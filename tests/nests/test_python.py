"""Loops mean what Python means by them: names, orders of evaluation, conditions, functions. The rest is refused."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.fuzz.nest_reference import Interpreter, Outside
from tilewright.ir.types import f32, f64, i32, i64
from tilewright.nests.nest import LoopNest, Refused
from tilewright.nests.reading.source import nest

N, HALF, TRUE = 3, 0.5, True
A = [("array", f32, 1)]
least = min


def read(function: Any, *kinds: Any) -> LoopNest:
    return nest(function, kinds or A)


def reason(function: Any, *kinds: Any) -> str:
    with pytest.raises(Refused) as found:
        read(function, *kinds)
    return found.value.reason


def same(function: Callable[..., None], *arrays: np.ndarray, **numbers: Any) -> LoopNest:
    """The record's results are Python's."""
    types = {"f4": f32, "f8": f64, "i4": i32, "i8": i64}
    kinds = [("array", types[x.dtype.str[1:]], x.ndim) for x in arrays]
    record = nest(function, [*kinds, *[("size" if x[0] == "n" else "number", None, 0) for x in numbers]])
    mine, theirs = ([x.copy() for x in arrays] for _ in range(2))
    function(*theirs, *numbers.values())
    Interpreter(record, dict(zip([p.name for p in record.parameters], mine)), numbers)
    for x, y in zip(mine, theirs):
        assert np.array_equal(x, y)
    return record


def test_a_choice_is_made_once_for_all_that_stands_under_it() -> None:
    def f(a: Any, b: Any) -> None:
        for i in range(a.shape[0]):
            if a[i] > 0:
                a[i] = -1
                b[i] = 5
            else:
                b[i] += 2
    same(f, np.arange(-3, 4.0), np.zeros(7))

    def g(a: Any, b: Any) -> None:
        for i in range(a.shape[0] - 1):
            if a[i] > a[i + 1]:
                t = a[i]
                a[i] = a[i + 1]
                a[i + 1] = t
    same(g, np.array([3.0, 2, 5, 1]), np.zeros(1))


def test_a_variable_that_is_assigned_under_a_condition_is_known_there_alone() -> None:
    def f(a: Any) -> None:
        for i in range(5):
            if a[i] > 0:
                s = i + a[i]
                a[i] = s * 2
            if i < 3:
                t = a[i]
                a[i] += t
    same(f, np.arange(-2, 3.0))

    def g(a: Any) -> None:
        for i in range(5):
            if a[i] > 0:
                s = 1.0
            a[i] = s
    assert reason(g) == "s may have no value here"

    def h(a: Any) -> None:
        s = 0
        for i in range(5):
            if a[i] > 0:
                s = 1
            a[i] = s
    same(h, np.arange(-2, 3.0))


def test_a_variable_of_an_earlier_round_is_no_global() -> None:
    def f(a: Any) -> None:
        for i in range(5):
            if i > 0:
                a[i] = N                # noqa: F823
            N = i                       # noqa: F841
    assert reason(f) == "N may have no value here"

    def g(a: Any) -> None:
        for i in range(5):
            a[i] = s                    # noqa: F821
            s = a[i] + 1                # noqa: F841
    assert reason(g) == "s may have no value here"


def test_loops_of_no_round_assign_nothing() -> None:
    def f(a: Any) -> None:
        for i in range(a.shape[0]):
            s = a[i] + i
            a[i] = s
        a[0] = s
    assert reason(f) == "s may have no value here"


def test_indices_are_over_with_their_loops_and_are_not_assigned_to() -> None:
    def after(a: Any) -> None:
        for i in range(5):
            a[i] = 1
        a[0] = i

    def inner(a: Any) -> None:
        for i in range(5):
            for i in range(2):
                a[i] = 1

    def assigned(a: Any) -> None:
        for i in range(3):
            i = i + 1
            a[i] = 1

    def parameter(a: Any, n: Any) -> None:
        for j in range(3):
            a[j] = n
            for n in range(2):
                a[n] = 1
    assert "i is the index of a loop that is over" in reason(after)
    assert reason(inner) == "i is the index of a loop around this one"
    assert reason(assigned) == "i is assigned to, and is an index or a parameter"
    assert reason(parameter, *A, ("size", None, 0)) == "n is assigned to, and is an index or a parameter"

    def twice(a: Any) -> None:
        for i in range(5):
            a[i] = 1
        for i in range(4, -1, -1):
            a[i] += i
    same(twice, np.zeros(5))


def test_return_is_at_the_end() -> None:
    def f(a: Any) -> None:
        for i in range(5):
            if i == 2:
                return
            a[i] = 1

    def g(a: Any) -> None:
        for i in range(5):
            a[i] = 1
        return
    assert reason(f) == "loops end at their end, and not by return"
    same(g, np.zeros(5))


def test_whole_numbers_and_fractions() -> None:
    def f(a: Any, b: Any, alpha: Any) -> None:
        count = 0
        part = 0.5
        for i in range(4):
            count += 1
            part += a[i]
            b[i] = a[i] / 2 + count * 0.25 + part * alpha
            if i < 2.5:
                a[i] = a[i] * HALF
    record = same(f, np.array([1, 2, 5, 7], np.int32), np.zeros(4), alpha=0.5)
    assert record.scalars == {"count": i64, "part": f64}


def test_names_outside_mean_what_they_mean_in_python() -> None:
    local = 7

    def f(a: Any) -> None:
        for i in range(N):
            a[i] = local * math.inf if a[i] > 0 else np.pi
    same(f, np.arange(-1, 3.0))

    def g(a: Any) -> None:
        for i in range(4):
            a[i] = least(a[i], 1)
    same(g, np.arange(-1, 3.0))

    def boolean(a: Any) -> None:
        a[0] = TRUE

    def max(x: Any, y: Any) -> Any:
        return x - y

    def shadowed(a: Any) -> None:
        a[0] = max(a[1], 2)

    def reduced(a: Any) -> None:
        a[0] = np.min(a[0], a[1])       # an axis, in NumPy

    def ranges(a: Any) -> None:
        range = list
        for i in range(3):
            a[i] = 1
    assert reason(boolean) == "TRUE is not known here"
    assert reason(shadowed) == "the function max of 2 is not taken"
    assert reason(reduced) == "the function np.min of 2 is not taken"
    assert reason(ranges) == "list is not known here"


def test_functions_without_a_source_of_their_own_are_refused() -> None:
    space: dict[str, Any] = {}
    exec("def f(a):\n    a[0] = 1", space)

    def decorated(function: Any) -> Any:
        @functools.wraps(function)
        def inner(a: Any) -> None:
            function(a)
            function(a)
        return inner

    @decorated
    def f(a: Any) -> None:
        a[0] += 1

    class C:
        def __call__(self, a: Any) -> None:
            a[0] = 1
    assert reason(space["f"]) == "the source of f is not to be had"
    assert reason(lambda a: None) == "<lambda> is not written as a `def` of its own"
    assert "decorator" in reason(f)
    for other in (functools.partial(f), C(), np.add, len, C):
        assert reason(other).endswith("is no function of Python")


def test_tuples_of_sizes_take_names_alone() -> None:
    def f(a: Any, b: Any) -> None:
        m, n = a.shape
        for i in range(m):
            for j in range(n):
                b[i] += a[i, j]

    def g(a: Any, b: Any) -> None:
        b[0], n = a.shape
        b[1] = n
    same(f, np.ones((3, 4)), np.zeros(3))
    assert "for each of which a name is needed" in reason(g, ("array", f32, 2), ("array", f32, 1))


def test_elements_that_only_the_source_reads_are_checked() -> None:
    def f(a: Any) -> None:
        for i in range(5):
            x = a[i + 1]
            if a[0] > 3:
                x2 = a[9]               # noqa: F841
            for j in range(i, 2):
                a[j] = x * 2
    record = read(f)
    assert not record.reads
    assert "if.1" in record.scalars
    with pytest.raises(Outside):
        Interpreter(record, {"a": np.zeros(6)}, {})

    def g(a: Any, b: Any) -> None:
        for i in range(5):
            x = a[i + 1]
            for j in range(i, 2):
                b[j] = x * 2
    assert [str(s.target) for s in read(g, *A, *A).reads] == ["a[i + 1]"]


# ---- found by the fuzzer in what compiles and recognises loops


def test_numbers_are_stored_as_bf16() -> None:
    a = np.zeros(3, ml_dtypes.bfloat16)

    @tw.loops
    def f(a: Any) -> None:
        for i in range(3):
            a[i] = 1.5
    f(a)
    assert a.tolist() == [1.5] * 3


def test_f64_is_rounded_to_f16_once() -> None:
    values = np.arange(0, 0x7c00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = (values[:-1] + values[1:]) / 2
    a = np.concatenate([values, middles, np.nextafter(middles, 1e9), -np.nextafter(middles, 0),
                        [np.nan, np.inf, -0.0, 1e300, 1e-320, 65519.999, 65520]])
    b = np.zeros(len(a), np.float16)

    @tw.loops
    def f(a: Any, b: Any) -> None:
        for i in range(len(a)):
            b[i] = a[i]
    f(a, b)
    with np.errstate(all="ignore"):
        assert np.array_equal(b.view(np.uint16), a.astype(np.float16).view(np.uint16))


def test_a_variable_that_two_parts_share_keeps_them_together() -> None:
    def f(a: Any, b: Any, c: Any) -> None:
        x = a[0] / 2 - c[1]
        for i in range(5):
            b[i] += a[i] * x
        for i in range(5):
            c[i] += x
    arrays = [np.arange(n, n + 5.0) for n in range(3)]
    want = [x.copy() for x in arrays]
    f(*want)
    tw.optimize(f, *arrays)(*arrays)
    for x, y in zip(arrays, want):
        assert np.array_equal(x, y)


def test_several_bounds_of_one_index() -> None:
    def f(a: Any, b: Any) -> None:
        for i in range(9):
            if 1 <= i < 7 and i >= 2 and i > 0:
                b[0] += a[i]
                a[i] = -1
    arrays = [np.arange(9.0), np.zeros(1)]
    want = [x.copy() for x in arrays]
    f(*want)
    tw.optimize(f, *arrays)(*arrays)
    for x, y in zip(arrays, want):
        assert np.array_equal(x, y)

    def g(a: Any) -> None:
        for i in range(9):
            if i >= 1 and i >= 5:
                a[i + 1] = 1
    with pytest.raises(Refused, match="a is accessed at 6 "):
        tw.loops(g)(np.zeros(9))


def test_a_sum_into_one_element() -> None:
    def f(a: Any, b: Any, c: Any) -> None:
        b[2] = 0
        for i in range(3):
            b[2] += (a[i] - c[0, i])**2
    arrays: list[Any] = [np.arange(3), np.zeros(5), np.ones((2, 3))]
    tw.optimize(f, *arrays)(*arrays)
    assert arrays[1].tolist() == [0, 0, 2, 0, 0]


def test_products_are_in_the_format_of_their_array() -> None:
    def f(a: Any, b: Any, c: Any) -> None:
        for i in range(2):
            s = 0
            for p in range(90):
                s += a[i, p] * b[p]
            c[i] = s
    for narrow, wide in ((np.int8, np.int64), (np.int8, np.float32), (np.float16, np.float32), (np.int64, np.int8)):
        arrays: list[Any] = [np.full((2, 90), 7, narrow), np.full(90, 7, narrow), np.zeros(2, wide)]
        found = tw.optimize(f, *arrays)
        found(*arrays)
        assert found.recognised
        assert np.array_equal(arrays[2], np.full(2, 7 * 7 * 90).astype(wide))
    whole: list[Any] = [np.ones((2, 90)), np.ones(90), np.zeros(2, np.int32)]
    assert not tw.optimize(f, *whole).recognised        # each number is rounded towards 0
