"""Functions as expressions: their text, their value by NumPy, their kernel in the simulator, and what is refused."""
import math

import numpy as np
import pytest

import tilewright as tw
from tilewright.expressions.program import Expression
from tilewright.expressions.tracing import TracingError, trace

FLOATS = {"acc": "float", "bias": "float"}
FUNCTIONS = {
    "scaled": lambda acc, bias: 2 * acc - bias / 3,
    "relu": lambda acc, bias: tw.relu(acc + bias),
    "gelu": lambda acc, bias: tw.gelu(acc + bias) * 0.5 + bias,
    "gelu_tanh": lambda acc, bias: tw.gelu(acc, approximate="tanh") + bias,
    "silu": lambda acc, bias: tw.silu(acc) * bias,
    "sigmoid": lambda acc, bias: tw.sigmoid(acc - bias),
    "clamp": lambda acc, bias: tw.clamp(acc, -1, bias),
    "choice": lambda acc, bias: tw.where((acc > bias) & ~(bias == 0), acc**3, -abs(bias)),
    "numpy": lambda acc, bias: np.maximum(np.tanh(acc), np.float32(0.25)) + np.where(acc >= 0, bias, 1),
    "constant": lambda acc, bias: 1.5,
    "two": lambda acc, bias: (acc * bias, tw.sqrt(abs(acc))),
    "logarithm": lambda acc, bias: tw.log(1 + tw.exp(-abs(acc))) + tw.minimum(acc, bias),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_expression_is_its_function(name):
    function = FUNCTIONS[name]
    expression = trace(function, FLOATS)
    assert Expression.read(expression.text) == expression
    rng = np.random.default_rng(0)
    acc, bias = rng.normal(0, 2, (5, 7)), rng.normal(0, 2, 7)
    wanted = function(acc, bias=bias)
    found = expression.evaluate({"acc": acc, "bias": bias})
    for x, y in zip(found, wanted if isinstance(wanted, tuple) else (wanted,)):
        np.testing.assert_allclose(x, y, rtol=1e-15)


def test_the_text_is_short_and_the_same_for_equal_functions():
    def one(acc, bias):
        x = acc + bias
        return x * x * 0.5

    text = trace(one, FLOATS).text
    assert text == "acc:float bias:float; add acc bias; mul %0 %0; mul %1 #0.5; -> %2"
    assert trace(lambda y, bias: (y + bias) * (y + bias) * 0.5, FLOATS).text == text
    assert trace(lambda acc, bias: tw.row_max(acc), FLOATS).text == "acc:float bias:float; -> row_max acc"


def test_a_product_that_is_only_added_is_rounded_once():
    assert "fma" in trace(lambda acc, bias: acc * bias + 1, FLOATS).text
    used_twice = trace(lambda acc, bias: (p := acc * bias) + 1 + p, FLOATS).text
    assert "fma" not in used_twice
    assert "fma" not in trace(lambda acc: acc * 3 + 1, {"acc": "int"}).text


def test_integers_become_floats_where_they_meet_them():
    expression = trace(lambda acc, scale: acc * scale, {"acc": "int", "scale": "float"})
    assert expression.text == "acc:int scale:float; float acc; mul %0 scale; -> %1"
    assert expression.evaluate({"acc": np.int32(7), "scale": 0.5}) == (3.5,)
    assert trace(lambda acc: acc / 2, {"acc": "int"}).evaluate({"acc": 7}) == (3.5,)
    assert trace(lambda acc: (acc ^ 5) << 1 | 1, {"acc": "int"}).evaluate({"acc": 6}) == ((6 ^ 5) << 1 | 1,)


def test_reductions_are_results():
    expression = trace(lambda acc, bias: (acc + bias, tw.row_amax(acc), tw.column_sum(acc)), FLOATS)
    acc, bias = np.arange(-6.0, 6).reshape(3, 4), np.ones(4)
    c, rows, columns = expression.evaluate({"acc": acc, "bias": bias})
    np.testing.assert_array_equal(c, acc + 1)
    np.testing.assert_array_equal(rows, abs(acc).max(-1))
    np.testing.assert_array_equal(columns, acc.sum(-2))
    with pytest.raises(TracingError, match="reductions can only be returned"):
        trace(lambda acc, bias: tw.row_max(acc) + 1, FLOATS)


def branches(acc, bias):
    return acc if acc > 0 else bias


@pytest.mark.parametrize(("function", "sentence"), [
    (branches, r"test_tracing.py:\d+: if, while, and, or, not, in or a < b < c cannot be used .* tw.where"),
    (lambda acc, bias: math.exp(acc), r"test_tracing.py:\d+: float\(\) cannot be used"),
    (lambda acc, bias: np.sin(acc), r"test_tracing.py:\d+: np.sin cannot be used .* gelu"),
    (lambda acc, bias: np.add.reduce(acc), r"np.add.reduce cannot be used"),
    (lambda acc, bias: np.sum(acc), r"cannot be used"),
    (lambda acc, bias: acc[0], r"\[0\] cannot be used"),
    (lambda acc, bias: acc @ bias, "@ cannot be used"),
    (lambda acc, bias: acc // 2, "// cannot be used .* quotients are /"),
    (lambda acc, bias: acc ** bias, r"\*\* .* a power is a whole number"),
    (lambda acc, bias: 2 ** acc, r"tw.exp\(y \* tw.log\(x\)\)"),
    (lambda acc, bias: acc & 1, "and of a float cannot be used .* takes bool or int"),
    (lambda acc, bias: tw.where(acc, 1, 2), "where of a condition of kind float"),
    (lambda acc, bias: acc + np.ones(3), r"add with ndarray cannot be used .* operands="),
    (lambda acc, bias: acc.astype("f4"), r"\.astype cannot be used"),
])
def test_what_is_no_expression_is_refused_with_its_line(function, sentence):
    with pytest.raises(TracingError, match=sentence):
        trace(function, FLOATS)


def test_wrong_parameters_and_results_are_named():
    with pytest.raises(TypeError, match=r"epilogue takes \(acc\), and is given \(acc, bias\)"):
        trace(lambda acc: acc, FLOATS)
    with pytest.raises(TypeError, match="epilogue must be a function, not 3"):
        trace(3, FLOATS)
    with pytest.raises(TypeError, match=r"epilogue must return a number or a tuple of numbers .* not None"):
        trace(lambda acc, bias: None, FLOATS)


@pytest.mark.parametrize("text", ["", "acc:float; -> %0", "acc:float; sin acc; -> %0", "acc:float; -> bias",
                                  "acc:number; -> acc", "acc:float; add acc %0; -> %0", "acc:float; -> best acc"])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="is not the text of an expression"):
        Expression.read(text)
