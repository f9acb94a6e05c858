"""Functions whose environment changes between calls: each call computes with the values of its own time.

A case has an entry point, a place from which its function reads a number, and the numbers that stand there one after
the other. After each change the same call is made several times, with other arrays, so that records repeat it, too.
"""

from __future__ import annotations

import builtins
import functools
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from random import Random
from typing import Any

import numpy as np

import tilewright as tw
from tests.fuzz.driver import Case, Fuzzer

ELSEWHERE = "tests_fuzz_elsewhere"      # a module that functions import, and a name among the builtins
Change = Callable[[float], None]

# Where s is read: {x} stands for the function's own number, `given` for what the function is made with.
READS: dict[str, tuple[str, Callable[[dict[str, Any]], Change]]] = {
    "global": ("{x}*s", lambda space: functools.partial(space.__setitem__, "s")),
    "module": ("{x}*cfg.s", lambda space: functools.partial(setattr, _module(space), "s")),
    "submodule": ("{x}*top.cfg.s", lambda space: functools.partial(setattr, _module(_members(space, "top")), "s")),
    "renamed": ("(lambda m: {x}*m.s)(cfg)", lambda space: functools.partial(setattr, _module(space), "s")),
    "getattr": ("{x}*getattr(cfg, 's')", lambda space: functools.partial(setattr, _module(space), "s")),
    "vars": ("{x}*vars(cfg)['s']", lambda space: functools.partial(setattr, _module(space), "s")),
    "computed": ("{x}*cfg.s", lambda space: _computed(space)),
    "globals": ("{x}*globals()['s']", lambda space: functools.partial(space.__setitem__, "s")),
    "builtin": (f"{{x}}*{ELSEWHERE}", lambda space: functools.partial(setattr, builtins, ELSEWHERE)),
    "import": (f"{{x}}*__import__('{ELSEWHERE}').s", lambda space: _elsewhere()),
    "object": ("{x}*o.s", lambda space: _attribute(space, types.SimpleNamespace())),
    "class": ("{x}*o.s", lambda space: _attribute(space, type("C", (), {}))),
    "dict": ("{x}*d['s']", lambda space: functools.partial(space.setdefault("d", {}).__setitem__, "s")),
    "array": ("{x}*d", lambda space: functools.partial(space.setdefault("d", np.zeros(())).__setitem__, ())),
    "helper": ("h({x})", lambda space: _helper(space)),
    "helper's keyword": ("h({x})", lambda space: functools.partial(space.setdefault("h", eval(
        "lambda x, *, s=1.0: x*s")).__kwdefaults__.__setitem__, "s")),
    "nested": ("(lambda y: y*s)({x})", lambda space: functools.partial(space.__setitem__, "s")),
    "comprehension": ("{x}*sum([s for _ in (0,)])", lambda space: functools.partial(space.__setitem__, "s")),
    "attribute": ("{x}*f.s", lambda space: lambda s: setattr(space["f"], "s", s)),
}
# What is called, made of a function in `space` that multiplies by `s`, and how s is changed.
MAKES = ("closure", "default", "keyword", "code", "callable", "method", "partial", "wrapped", "imports", "from")
WHERE = (*READS, *MAKES)
ENTRIES = ("matmul", "out", "batch", "row", "gemm", "grouped_matmul", "contract", "reduce", "prologue_a", "prologue_b",
           "weights", "quantized", "tensors")


def draw(rng: Random) -> Case:
    return {"entry": rng.choice(ENTRIES), "where": rng.choice(WHERE), "values": rng.choices([1.0, 2.0, 3.0], k=4),
            "times": rng.choice([1, 2, 2, 3]), "threads": rng.choice([1, 1, 2]), "data": rng.randrange(2**31)}


def check(case: Case) -> None:
    rng = np.random.default_rng(case["data"])
    try:
        with tw.threads(case["threads"]), environment(case["where"], case["entry"]) as (function, change):
            for number, value in enumerate(case["values"]):
                change(value)
                for again in range(case["times"]):
                    got, want = call(case["entry"], function, value, rng)
                    assert np.array_equal(got, want), (
                        f"call {again + 1} after change {number + 1}: {got.flat[0]} and not {want.flat[0]}")
    finally:
        sys.modules.pop(ELSEWHERE, None)
        vars(builtins).pop(ELSEWHERE, None)


# ---- environments


@contextmanager
def environment(where: str, entry: str) -> Iterator[tuple[Any, Change]]:
    """A function, and how the number that it multiplies by is changed."""
    given = "x, y" if entry == "contract" else "x"
    x = "x*y" if entry == "contract" else "x"
    space: dict[str, Any] = {"tw": tw}
    if where in READS:
        text, prepared = READS[where]
        change = prepared(space)
        space["f"] = eval(f"lambda {given}: {text.format(x=x)}", space)
        yield space["f"], change
        return
    lines = {
        "closure": f"""
def make():
    s = 1.0
    def f({given}): return {x}*s
    def change(value):
        nonlocal s
        s = value
    return f, change
f, change = make()""",
        "default": f"""
def f({given}, s=1.0): return {x}*s
def change(value): f.__defaults__ = value,""",
        "keyword": f"""
def f({given}, *, s=1.0): return {x}*s
def change(value): f.__kwdefaults__["s"] = value""",
        "code": f"""
def f({given}): return {x}
def change(value): f.__code__ = eval(f"lambda {given}: {x}*{{value}}").__code__""",
        "callable": f"""
class C:
    def __call__(self, {given}): return {x}*self.s
f = C()
def change(value): f.s = value""",
        "method": f"""
class C:
    def multiplied(self, {given}): return {x}*self.s
o = C()
f = o.multiplied
def change(value): o.s = value""",
        "partial": f"""
def g({given}, s): return {x}*s
f = functools.partial(g, s=1.0)
def change(value): f.keywords["s"] = value""",
        "wrapped": f"""
def decorated(g):
    @functools.wraps(g)
    def f(*given): return g(*given)*s
    return f
@decorated
def f({given}): return {x}
def change(value):
    global s
    s = value""",
        "imports": f"""
def f({given}):
    import {ELSEWHERE}
    return {x}*{ELSEWHERE}.s""",
        "from": f"""
def f({given}):
    from {ELSEWHERE} import s
    return {x}*s""",
    }[where]
    space["functools"] = functools
    if where in ("imports", "from"):
        space["change"] = _elsewhere()
    exec(lines, space)
    yield space["f"], space["change"]


def _module(space: dict[str, Any]) -> types.ModuleType:
    space["cfg"] = types.ModuleType("cfg")
    return space["cfg"]


def _attribute(space: dict[str, Any], x: Any) -> Change:
    space["o"] = x
    return functools.partial(setattr, x, "s")


def _members(space: dict[str, Any], name: str) -> dict[str, Any]:
    space[name] = types.ModuleType(name)
    return vars(space[name])


def _elsewhere() -> Change:
    sys.modules[ELSEWHERE] = types.ModuleType(ELSEWHERE)
    return functools.partial(setattr, sys.modules[ELSEWHERE], "s")


def _computed(space: dict[str, Any]) -> Change:
    """An attribute that the module's own function makes at each access."""
    held: dict[str, float] = {}
    vars(_module(space))["__getattr__"] = held.__getitem__
    return functools.partial(held.__setitem__, "s")


def _helper(space: dict[str, Any]) -> Change:
    """A function of other globals."""
    other: dict[str, Any] = {}
    space["h"] = eval("lambda x: x*s", other)
    return functools.partial(other.__setitem__, "s")


# ---- entry points


def whole(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-3, 4, shape).astype(np.float32)


def call(entry: str, function: Any, s: float, rng: np.random.Generator) -> tuple[Any, np.ndarray]:
    """The result of an entry point, and what it must be."""
    if entry == "grouped_matmul":
        a, b = whole(rng, 9, 8), whole(rng, 2, 8, 10)
        return tw.grouped_matmul(a, b, [4, 9], epilogue=function), np.concatenate([a[:4] @ b[0], a[4:] @ b[1]])*s
    a, b = whole(rng, 1 if entry == "row" else 9, 8), whole(rng, 8, 10)
    want = a @ b*s
    if entry == "out":
        out = np.empty_like(want)
        return tw.matmul(a, b, out, epilogue=function), want
    if entry == "batch":
        stack = whole(rng, 3, 9, 8)
        return tw.matmul(stack, b, epilogue=function), stack @ b*s
    if entry == "gemm":
        c = whole(rng, *want.shape)
        return tw.gemm(2, a, b, 1, c.copy(), epilogue=function), (2*(a @ b) + c)*s
    if entry == "contract":
        return tw.contract(function, a, b), want
    if entry == "reduce":
        added = tw.Reduction((0.0,), lambda state, t, p: (state[0] + t,), lambda x, y: (x[0] + y[0],),
                             lambda state: function(state[0]))
        return tw.contract(_times, a, b, reduce=added), want
    if entry in ("prologue_a", "prologue_b"):
        return tw.matmul(a, b, **{entry: function}), want
    if entry == "weights":
        stored = rng.integers(-3, 4, (10, 8)).astype(np.int8)
        return tw.matmul(a, stored, trans_b=True, prologue_b=function), a @ stored.T.astype(np.float32)*s
    if entry == "quantized":
        stored = whole(rng, 10, 8)
        stored[:, 0] = 127                          # so that scales are 1
        q = tw.quantize(stored, "i8", axis=-1)
        return tw.matmul(a, q, trans_b=True, epilogue=function), a @ stored.T*s
    if entry == "tensors":
        if find_spec("torch"):
            torch = import_module("torch")
            return tw.matmul(torch.from_numpy(a), torch.from_numpy(b), epilogue=function).numpy(), want
    return tw.matmul(a, b, epilogue=function), want


def _times(x: Any, y: Any) -> Any:
    return x*y


PLAIN: Case = {"entry": "matmul", "times": 2, "threads": 1}
FUZZER = Fuzzer("environments", draw, check, PLAIN)
