"""Epilogues as data: their text, their results' shapes, what a problem says of them."""
import numpy as np
import pytest

import tilewright as tw
from tilewright.expressions.function import Aux, Epilogue
from tilewright.expressions.functions import pairs
from tilewright.expressions.tracing import trace

KINDS = {"acc": "float", "bias": "float", "res": "float"}
INPUTS = Aux("bias", "bf16", "row"), Aux("res", "f32", "full")


def test_an_epilogue_is_its_text_and_gives_what_its_function_does():
    expression = trace(lambda acc, bias, res: (acc + bias, tw.row_max(acc * res), tw.column_sum(acc)), KINDS)
    found = Epilogue(expression, INPUTS, ("bf16", "f32", "f32"))
    assert Epilogue.read(found.text) == found
    rng = np.random.default_rng(0)
    product, bias, res = (rng.standard_normal(shape) for shape in ((3, 5, 8), (8,), (3, 5, 8)))
    whole, rows, columns = found.evaluate(product, {"bias": bias, "res": res})
    np.testing.assert_allclose(whole, product + bias)
    np.testing.assert_allclose(rows, (product * res).max(-1))
    np.testing.assert_allclose(columns, product.sum(-2))
    assert found.shapes(3, 5, 8) == (whole.shape, rows.shape, columns.shape)
    for text in ("", found.text.replace("bias bf16", "some bf16"), found.text.replace("bf16 row", "bf16 k"),
                 found.text.replace("bf16 f32 f32", "bf16 f32")):
        with pytest.raises(ValueError, match="not the text of an epilogue"):
            Epilogue.read(text)


def swiglu(acc):
    gate, up = pairs(acc)
    return tw.silu(gate) * up


def test_pairs_of_columns_make_one():
    found = Epilogue(trace(swiglu, {"acc": "float"}), (), ("f32",))
    product = np.random.default_rng(0).standard_normal((4, 6))
    (x,) = found.evaluate(product, {})
    np.testing.assert_allclose(x, product[:, ::2] / (1 + np.exp(-product[:, ::2])) * product[:, 1::2])
    assert tw.Gemm(4, 6, 8, "f32", epilogue=found.text).shapes["out"] == (4, 3)
    with pytest.raises(ValueError, match="even number of them, and n is 5"):
        tw.Gemm(4, 5, 8, "f32", epilogue=found.text)


def test_a_problem_has_an_epilogue():
    text = Epilogue(trace(lambda acc, bias, res: acc + bias + res, KINDS), INPUTS, ("bf16",)).text
    problem = tw.Gemm(4, 6, 8, "bf16", epilogue=text)
    assert problem.out == "bf16"
    assert problem.key() != tw.Gemm(4, 6, 8, "bf16", out="bf16").key()
    with pytest.raises(ValueError, match="out must be bf16, the format of the epilogue's first result, not f32"):
        tw.Gemm(4, 6, 8, "bf16", out="f32", epilogue=text)
    with pytest.raises(ValueError, match="sums of kind int, not float"):
        tw.Gemm(4, 6, 8, "i8", epilogue=text)
    with pytest.raises(ValueError, match="not the text of an epilogue"):
        tw.Gemm(4, 6, 8, "f32", epilogue="relu")
