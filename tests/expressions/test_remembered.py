"""What is looked at before a traced function is used again: everything that tracing read, by value."""

from __future__ import annotations

import builtins
import math
import types
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.fuzz import environments
from tests.helpers.counted import Counted
from tilewright.api.products import matmul as by_python
from tilewright.expressions import remembered

SCALE = 2.0


def made(text: str, **space: Any) -> Any:
    return eval(text, {"tw": tw, "np": np, "math": math, **space})


def module(**members: Any) -> types.ModuleType:
    found = types.ModuleType("cfg")
    vars(found).update(members)
    return found


@pytest.mark.parametrize("text", [
    "lambda acc: acc*2", "lambda acc: tw.relu(acc)", "lambda acc: np.maximum(acc, math.sqrt(2.0))*math.pi",
    "lambda acc: abs(acc)*float('2')", "lambda acc: acc*s", "lambda acc: tw.gelu(acc, approximate='tanh')",
    "lambda acc, f=2.0: acc*f", "(lambda n: lambda acc: acc*n)(3)", "(lambda m: lambda acc: m.relu(acc))(tw)",
    "lambda acc: sum([acc for _ in range(2)])", "lambda acc: cfg.sub.s*acc", "tw.relu",
    "lambda acc: tw.where(acc > 0, acc, 0.0)", "lambda acc: np.float32(2)*acc"])
def test_ordinary_functions_are_not_traced_again(text):
    """Nor others with the same code."""
    space = {"s": 2.0, "cfg": module(sub=module(s=1.0))}
    function = made(text, **space)
    same = types.FunctionType(function.__code__, function.__globals__, None, function.__defaults__,
                              function.__closure__)
    assert remembered.keys((function,)) == remembered.keys((same,)) is not None
    a = np.ones((3, 3), np.float32)
    by_python(a, a)                             # the first of a process is not watched
    counted = Counted()
    assert [counted.python_calls(a, a, epilogue=x) for x in (function, same, function)] == [1, 0, 0]


@pytest.mark.parametrize("text", [
    "lambda acc: acc*o.s", "lambda acc: acc*getattr(cfg, 's')", "lambda acc: acc*globals()['s']", "lambda acc: h(acc)",
    "lambda acc: acc*__import__('math').pi", "lambda acc: acc*d['s']", "lambda acc, d={}: acc", "math.sqrt", "o",
    "lambda acc: [acc*m.s for m in [cfg]][0]", "lambda acc: acc*(lambda: 0).__globals__['s']",
    "lambda acc: acc*cfg.missing", "lambda acc: acc*r.random()", "lambda acc: acc*f(2.0)",
    "(lambda x: lambda acc: acc*x)(d)"])
def test_functions_that_read_what_may_change_unseen(text):
    function = made(text, s=2.0, o=types.SimpleNamespace(s=1.0), cfg=module(s=1.0), d={"s": 1.0}, h=lambda x: x,
                    f=np.frompyfunc(lambda x: SCALE*x, 1, 1), r=np.random.default_rng(0))
    assert remembered.keys((function,)) is None


def assigning() -> Any:
    count = 0

    def function(acc):
        nonlocal count
        count += 1
        return acc*count
    return function


def importing(acc):
    from math import pi
    return acc*pi


def test_functions_that_import_or_assign():
    assert remembered.paths_of(assigning().__code__) is remembered.paths_of(importing.__code__) is None
    assert remembered.names_of(assigning()) is remembered.names_of(importing) is None


def test_a_variable_without_a_value_yet():
    def outer() -> Any:
        def function(acc):
            return acc*later
        before = remembered.names_of(function)
        later = 2.0
        return before, remembered.keys((function,))
    before, after = outer()
    assert before is None
    assert after is not None


@pytest.mark.parametrize("where", environments.WHERE)
def test_whatever_a_function_reads_is_looked_at_in_each_call(where):
    """By each entry point: a call after a change, and later ones, which records repeat."""
    for entry in environments.ENTRIES:
        environments.check({"entry": entry, "where": where, "values": [1.0, 2.0, 3.0, 1.0], "times": 2, "threads": 1,
                            "data": 5})


@pytest.mark.parametrize("entry", ["emitted", "python", "batch"])
def test_an_attribute_of_a_module_that_changed(entry):
    a, cfg = np.ones((8, 8), np.float32), module(s=1.0, t=0.0)
    stack = np.ones((2, 8, 8), np.float32) if entry == "batch" else a
    multiply = by_python if entry == "python" else tw.matmul
    function = made("lambda acc: acc*cfg.s", cfg=cfg)
    for s in 1.0, 2.0, 0.5, 2, -0.0, 2.0:
        for _ in range(2):
            cfg.s, cfg.t = s, cfg.t + 1
            found = multiply(stack, a, epilogue=function)
            np.testing.assert_array_equal(found, np.full_like(found, 8*s))
            assert np.signbit(found).any() == (s == 0)


def test_a_builtin_that_changed(monkeypatch):
    a, function = np.ones((8, 8), np.float32), made("lambda acc: acc*round(1.6)")
    for _ in range(3):
        assert tw.matmul(a, a, epilogue=function)[0, 0] == 16
    monkeypatch.setattr(builtins, "round", lambda x: 3.0)
    for _ in range(3):
        assert tw.matmul(a, a, epilogue=function)[0, 0] == 24


def test_expressions_of_other_functions_are_not_kept_for_ever():
    function = made("lambda acc: acc")
    for number in range(remembered.MOST + 1):
        remembered.cached(function, (number,), lambda number=number: number)
    assert remembered.cached(function, (0,), lambda: "anew") == "anew"
