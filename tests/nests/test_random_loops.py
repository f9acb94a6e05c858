"""`tw.loops` of random loops: orders, steps, triangles, conditions, strides, formats; against the Python functions."""
from __future__ import annotations

import contextlib
import linecache
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tilewright as tw
from tilewright.nests.nest import Refused
from tilewright.nests.running import execution

numbers = count()
INDICES = ("i", "j", "p")
FORMATS = ["float32", "float64", "int8", "int16", "int32", "int64"]
WIDE = ["float32", "float64", "int32", "int64"]        # in which all results are exact
VALUES = ["A[{x}, {p}] * B[{p}, {y}]", "A[{x}, {p}] - 2 * B[{p}, {y}]", "max(A[{x}, {p}], B[{p}, {y}])",
          "{x} - 3 * {p}", "A[{x}, {p}] if B[{p}, {y}] > 0 else {y}", "abs(A[{x}, {p}]) - s", "A[{p}, {y}]"]
STATEMENTS = ["C[{x}, {y}] += {value}", "C[{x}, {y}] -= {value}", "C[{x}, {y}] = {value}", "s = {value}",
              "s += {value}", "C[{x}, {y}] = min(C[{x}, {y}], {value})", "C[{x}, {y}] = s",
              "C[{y}, {x}] = C[{x}, {y}] + 1"]


@st.composite
def sources(draw):
    """Text of a function of A, B, C and n."""
    lines = ["s = 1"] if draw(st.booleans()) else ["s = 0", "C[0, 0] = s"]

    def body(known, pad, depth):
        for _ in range(draw(st.integers(1, 2))):
            if depth < 3 and (draw(st.integers(0, 2)) or not known):
                index = draw(st.sampled_from(INDICES)) + str(len(lines))
                start = draw(st.sampled_from(["0", "1", *known]))
                stop = draw(st.sampled_from(["n", "n - 1", "3", *(f"{x} + 1" for x in known)]))
                step = draw(st.sampled_from(["", "", ", 2", ", -1"]))
                bounds = f"{stop} - 1, {start} - 1{step}" if step == ", -1" else f"{start}, {stop}{step}"
                lines.append(f"{pad}for {index} in range({bounds}):")
                body([*known, index], pad + "    ", depth + 1)
                continue
            if known and draw(st.integers(0, 4)) == 0:
                x, y = draw(st.sampled_from(known)), draw(st.sampled_from([*known, "n - 2"]))
                lines.append(f"{pad}if {x} {draw(st.sampled_from(['<', '>=', '==']))} {y}:")
                pad, known = pad + "    ", known
            names = {z: draw(st.sampled_from([*known, "0", "n - 1"])) for z in "xyp"}
            value = draw(st.sampled_from(VALUES)).format(**names)
            lines.append(pad + draw(st.sampled_from(STATEMENTS)).format(value=value, **names))
            if len(lines) > 12:
                return
    body([], "", 0)
    return "def f(A, B, C, n):\n" + "".join(f"    {line}\n" for line in lines)


def compiled(text):
    """The function of a text that inspect finds."""
    name = f"<random loops {next(numbers)}>"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    space = {}
    exec(compile(text, name, "exec"), space)
    return space["f"]


def array(rng, n, dtype):
    """n x n, in one of some orders."""
    whole = rng.integers(-2, 3, (2 * n, 3 * n)).astype(dtype)
    x = whole[::2, :n] if rng.integers(2) else whole[n - 1::-1, ::3]
    return x.T if rng.integers(2) else x


@settings(max_examples=60, deadline=None)
@given(sources(), st.sampled_from([1, 2, 3, 4, 5, 19]),
       st.tuples(st.sampled_from(FORMATS), st.sampled_from(FORMATS), st.sampled_from(WIDE)), st.integers(0, 99),
       st.sampled_from([None, "cpu", "sm_80", "gfx942"]))
def test_random_loops(text, n, dtypes, seed, where):
    rng, n = np.random.default_rng(seed), n if where is None else min(n, 5)
    A, B, C = (array(rng, n, dtype) for dtype in dtypes)
    function = compiled(text)
    want = [x.astype(object) for x in (A, B, C)]
    for x in want:          # Python's whole numbers
        x[...] = np.vectorize(int, otypes=[object])(x)
    try:
        function(*want, n)
    except IndexError:
        return
    loops = tw.loops(function)
    with contextlib.suppress(Refused), pytest.MonkeyPatch.context() as patch:       # what may be outside of an array
        if where is None:
            loops(A, B, C, n)
            found = A, B, C
        else:
            patch.setattr(execution, "ALONE", seed % 2)
            seen = loops._given((A, B, C, n), {}, None if where == "cpu" else where)
            found = loops._execution(seen).simulate(seen)[1]
        for x, y in zip(found, want):
            assert (x.astype(np.int64) == y.astype(np.int64)).all(), text
