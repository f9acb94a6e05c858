"""Mistakes of those who write their first kernel: each is an error, in a sentence with the line and the remedy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.helpers.readings import both
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


def python_range(k, x, t):
    for _ in range(t):
        pass


FUNCTIONS = {
    "np.exp": (lambda k, x, t: np.exp(x), r"np\.exp\(\) cannot take it\. Write k\.exp\(x\)"),
    "np.maximum": (lambda k, x, t: np.maximum(x, 0), r"Write k\.max\(x, y\)"),
    "np.power": (lambda k, x, t: np.power(x, 2), r"rite x \* x for x \*\* 2"),
    "math.exp": (lambda k, x, t: math.exp(x), r"math\.exp\(\) .* Write k\.exp\(x\)"),
    "float": (lambda k, x, t: float(t), r"float\(\).*k\.cast\(x, f32\)"),
    "int": (lambda k, x, t: int(x), r"k\.cast\(x, i32\)"),
    "round": (lambda k, x, t: round(x), r"k\.cast\(x \+ 0\.5, i32\)"),
    "math.floor": (lambda k, x, t: math.floor(x), r"k\.cast\(x, i32\) rounds floats towards 0"),
    "range": (python_range, r"with k\.loop\(n\) as i:"),
    "an index of a list": (lambda k, x, t: [1, 2][t], r"an array: k\.smem"),
    "**": (lambda k, x, t: x**2, r"rite x \* x for x \*\* 2"),
    "** with a value": (lambda k, x, t: 2**x, r"k\.exp\(y \* k\.log\(x\)\)"),
    "f32 + i32": (lambda k, x, t: x + t, r"expected f32, got i32; k\.cast\(x, f32\) converts it"),
}


@pytest.mark.parametrize("what", FUNCTIONS)
def test_functions_of_python_and_numpy_are_refused_with_the_line_and_the_remedy(k, what):
    function, remedy = FUNCTIONS[what]
    x, t = k.args[1][0], k.thread[0]
    with pytest.raises(TypeError, match=remedy) as error:
        function(k, x, t)
    name, number = str(error.value).split(": ", 1)[0].split(":")
    assert name == "test_kernel_mistakes.py"
    with open(__file__) as source:
        assert source.readlines()[int(number) - 1].strip() == str(error.value).splitlines()[-1].strip()


def test_numbers_of_numpy_on_the_left_are_operands(k):
    x, t = k.args[1][0], k.thread[0]
    assert [(np.float32(2) * x).type, (np.float32(2) - x).type] == [f32, f32]
    assert [(np.int32(1) + t).type, (np.int32(3) < t).type] == [i32, i1]


def test_what_print_shows_of_a_value(k):
    assert "a f32 that the kernel computes: k.print('x', x) prints it" in str(k.args[1][0])


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


# ---- values belong to the block in which they are recorded


def accumulator(k, n, x):
    acc = 0.0
    with k.loop(n) as j:
        acc = acc + x[j]
    x[0] = acc


def index_after_the_loop(k, n, x):
    with k.loop(n) as j:
        pass
    x[j] = 1.0


def from_a_branch(k, n, x):
    with k.when(n == 3):
        value = x[1]
    k.max(value, 0.0)


def from_the_other_branch(k, n, x):
    with k.when(n == 3):
        i = n + 1
    with k.otherwise():
        k.load(x + i)


def from_a_while(k, n, x):
    with k.while_(lambda: x[0] < 3.0):
        i = n + 1
    with k.loop(i):
        pass


def from_an_outer_block_that_ended(k, n, x):
    with k.loop(n) as i, k.when(i < 3):
        condition = i == 1
    with k.when(condition):
        pass


def through_a_view(k, n, x):
    with k.loop(n) as i:
        row = (x + i).view(8, 1)
    row[0, 1] = 2.0


# what makes the value, what uses it
ESCAPES = {
    accumulator: ("acc = acc + x[j]", "x[0] = acc"),
    index_after_the_loop: ("with k.loop(n) as j:", "x[j] = 1.0"),
    from_a_branch: ("value = x[1]", "k.max(value, 0.0)"),
    from_the_other_branch: ("i = n + 1", "k.load(x + i)"),
    from_a_while: ("i = n + 1", "with k.loop(i):"),
    from_an_outer_block_that_ended: ("condition = i == 1", "with k.when(condition):"),
    through_a_view: ("row = (x + i).view(8, 1)", "row[0, 1] = 2.0"),
}


@pytest.mark.parametrize("emit", ESCAPES)
def test_a_value_used_after_its_block_is_refused_with_both_lines(emit):
    k = Kernel("escaping", n=i64, x=ptr(f32))
    with pytest.raises(ValueError, match=r"is used after the end of the .* k\.variable\(f32, 0\)") as error:
        emit(k, *k.args)
    message, *lines = str(error.value).splitlines()
    (made, made_text), (used, used_text) = (line.strip().split(": ", 1) for line in lines)
    assert (made_text, used_text) == ESCAPES[emit]
    assert message.startswith(f"{used}: the value recorded at {made} ")


def test_values_of_outer_blocks_and_of_the_head_of_a_while_are_usable():
    k = Kernel("nested", n=i64, x=ptr(f32))
    n, x = k.args
    left = k.variable(i64, n)
    heads = []

    def more():
        heads.append(left.get() - 1)
        return heads[0] >= 0

    with k.while_(more):
        with k.when(heads[0] % 2 == 0):
            x[heads[0]] = 1.0
        left.set(heads[0])
    both(k.function, 8, np.zeros(8, np.float32))


def test_a_value_of_another_kernel_is_refused():
    k, other = (Kernel(name, n=i64, x=ptr(f32)) for name in ("this", "other"))
    (n, x), (m, y) = k.args, other.args
    for use in (lambda: n + m, lambda: m + n, lambda: n == m, lambda: y[n], lambda: x[m], lambda: k.load(y),
                lambda: x.__setitem__(0, y[0]), lambda: k.loop(m).__enter__(), lambda: k.when(m == 0).__enter__(),
                lambda: k.variable(i64, m), lambda: k.call(k.function, m, x)):
        with pytest.raises(ValueError, match=r"test_kernel_mistakes.py:\d+: a value of .* is used in "):
            use()


# ---- operands, types and places that cannot be


def mistakes(k):
    n, x, _ = k.args
    t = k.thread[0]
    return {
        "select of a Python truth": (lambda: k.select(True, x[0], 1.0), "an operand must be a value .*, not True"),
        "min of numbers": (lambda: k.min(1, 2), r"at least one operand must be a value .* not all Python numbers, "),
        "select of numbers": (lambda: k.select(t == 0, 1, 2), "at least one operand must be a value"),
        "fma of numbers": (lambda: k.fma(1.0, 2.0, 3.0), "at least one operand must be a value"),
        "fma of mixed types": (lambda: k.fma(x[0], t, x[1]), "expected f32, got i32"),
        "text for a type": (lambda: k.cast(t, "f32"), "a number must have a type of tilewright.ir, .* not 'f32'"),
        "Python's type": (lambda: k.variable(float, 0), "a number must have a type .*, not <class 'float'>"),
        "tile": (lambda: k.tile(2, 2, "f32"), "a number must have a type"),
        "elements": (lambda: k.smem("s", (32,), "f32"), "elements must have a type of tilewright.ir, .* not 'f32'"),
        "extent of a value": (lambda: k.smem("s", (n,), f32), "the shape of s must be Python's whole numbers from 1"),
        "no extent": (lambda: k.local("s", (0,), f32), r"the shape of s must be .* from 1 on, not \(0,\)"),
        "index None": (lambda: x[None], "an index is a whole number or a value of the kernel, not None"),
        "slice": (lambda: x[1:3], r"an index is .*, not slice\(1, 3, None\)"),
        "float index": (lambda: x[0.5], r"an index is .*, not 0\.5"),
        "element of a number": (lambda: n[0], "a value of type i64 has no elements"),
        "store to a number": (lambda: n.__setitem__(0, 1), r"only a pointer, .* not a value of type i64"),
        "load of a number": (lambda: k.load(3), "only a pointer, .* not 3"),
        "variable": (lambda: x.__setitem__(0, k.variable(f32, 0)), r"registers, not a value: x\.get\(\) reads one"),
        "sum of a number": (lambda: k.warp_sum(1.0), r"lanes exchange values of the kernel, not 1\.0"),
        "kernel, not function": (lambda: run(k, 1, None, None), r"only a recorded function can be run, .* k\.function"),
        "thread of a CPU function": (lambda: run(cpu()), r"cpu is a CPU function, and it asks for thread\.x: .*ds="),
    }


def cpu():
    k = Kernel("cpu")
    k.thread[0] + 1
    return k.function


@pytest.mark.parametrize("what", mistakes(Kernel("k", threads=32, n=i64, x=ptr(f32), z=ptr(f32))))
def test_mistakes_are_answered_in_sentences(k, what):
    mistake, sentence = mistakes(k)[what]
    with pytest.raises(TypeError, match=sentence):
        mistake()


def test_python_numbers_are_operands():
    k = Kernel("numbers", x=ptr(f32))
    (x,) = k.args
    x[0] = k.fma(2.0, x[1], 1.0)
    x[2] = k.fma(x[0], 3, k.cast(4, f32))
    own = k.local("own", 2, f32)
    own[1] = x[2]
    x[3] = own[1]
    both(k.function, np.arange(4, dtype=np.float32))
