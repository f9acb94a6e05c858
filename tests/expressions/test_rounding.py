"""Short gelus of results that are rounded to few bits: where they are taken, their errors, the same bits everywhere."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.helpers.readings import same_bits
from tilewright import simulator
from tilewright.expressions.function import epilogue
from tilewright.expressions.operations import OPERATIONS
from tilewright.expressions.rounding import shortened
from tilewright.ir import Kernel, elementary, f32, i64, ptr, vec
from tilewright.runtime.run import run

BF16 = ml_dtypes.bfloat16


def gelu(acc):
    return tw.gelu(acc)


@pytest.mark.parametrize(("function", "formats", "names"), [
    (gelu, ("bf16",), ["gelu~8"]), (gelu, ("f16",), ["gelu~11"]), (gelu, ("e4m3fn",), ["gelu~8"]),
    (gelu, ("f32",), ["gelu"]), (gelu, ("f64",), ["gelu"]),
    (lambda acc: tw.gelu(acc, "tanh"), ("bf16",), ["gelu_tanh~8"]),
    (lambda acc, gate: tw.gelu(acc) * -gate, ("bf16",), ["gelu~8", "neg", "mul"]),
    (lambda acc: tw.where(acc > 1, tw.gelu(acc) / 3, acc), ("f16",), ["lt", "gelu~11", "div", "where"]),
    # sums may cancel, comparisons decide, and what is reduced or reused is not rounded
    (lambda acc, res: tw.gelu(acc) + res, ("bf16",), ["gelu", "add"]),
    (lambda acc: tw.gelu(acc) > 0.5, ("bool",), ["gelu", "lt"]),
    (lambda acc: tw.exp(tw.gelu(acc)), ("bf16",), ["gelu", "exp"]),
    (lambda acc: (y := tw.gelu(acc), tw.row_sum(y)), ("bf16", "f32"), ["gelu"]),
    (lambda acc: (y := tw.gelu(acc), y * 2), ("bf16", "f16"), ["gelu~11", "mul"]),
    (lambda acc: (y := tw.gelu(acc), y * 2), ("bf16", "f32"), ["gelu", "mul"]),
    (lambda acc: tw.gelu(tw.gelu(acc)), ("bf16",), ["gelu", "gelu~8"]),
])
def test_where_they_are_taken(function, formats, names):
    places = {"res": "full", "gate": "full"}
    parameters = function.__code__.co_varnames[1:function.__code__.co_argcount]
    found = shortened(epilogue(function, **{x: places[x] for x in parameters}).expression, formats)
    assert [line.operation for line in found.lines] == names


def emit(V):
    """All of SHORT, one array of n after the other."""
    k = Kernel(f"short_{V}", n=i64, x=ptr(f32), y=ptr(f32))
    n, x, y = k.args
    with k.loop(n, step=V) as i:
        for at, (name, bits) in enumerate(elementary.SHORT):
            k.store(y + n*at + i, elementary.rounded_gelu(k, name, bits, k.load(x + i, vec(f32, V), 4)), 4)
    return k.function


@pytest.mark.parametrize("at", range(len(elementary.SHORT)), ids=map(str, elementary.SHORT))
def test_errors(at):
    """Beside float64: in ulp of the narrow result where that is large enough, elsewhere absolute. So the rounded result
    is nearly always the nearest, and never further than the next to it."""
    name, bits = [*elementary.SHORT][at]
    edges = np.arange(1 << 16, dtype=np.uint16).view(BF16).astype(np.float32)      # every bf16, and every f16
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    x = np.concatenate([edges, halves, np.linspace(-9, 9, 1 << 19, dtype=np.float32)])
    x = x[np.isfinite(x)]
    x = np.append(x, np.zeros(-x.size % 16, np.float32))
    y = np.empty((len(elementary.SHORT), x.size), np.float32)
    with np.errstate(all="ignore"):
        run(emit(8), x.size, x, y)
        exact = OPERATIONS[name].numpy(x.astype(np.float64))
    exact[x < -40] = 0.0
    error = np.abs(y[at] - exact)
    ulp = np.ldexp(1.0, np.frexp(exact)[1] - bits)
    large = (x > 0) | (np.abs(exact) >= 2.0**-6)
    large &= np.abs(exact) >= 2.0**-120
    assert (error[large] / ulp[large]).max() < 0.06
    assert error[~large].max() < 2.0**-(bits + 9)
    assert (y[at][x < -elementary.SHORT[name, bits].end] == 0).all()
    narrow = BF16 if bits == 8 else np.float16
    with np.errstate(all="ignore"):
        stored, right = y[at].astype(narrow), exact.astype(narrow)
    seen = np.linspace(0, x.size - 1, 5).astype(int)
    assert np.isfinite(stored[seen]).any()
    sampled = slice(x.size - (1 << 19), None)
    assert (stored[sampled] != right[sampled])[large[sampled]].mean() < 0.02


def test_special_numbers_and_the_simulator():
    x = np.array([np.inf, -np.inf, 0.0, -0.0, np.nan, 3.4e38, -3.4e38, 1e-45, -1e-45, *np.linspace(-7, 7, 23)], "f4")
    x = np.resize(x, 32)
    y, z = np.empty((2, len(elementary.SHORT), x.size), np.float32)
    with np.errstate(all="ignore"):
        run(emit(8), x.size, x, y)
        simulator.run(emit(1), x.size, x, z)
    assert same_bits(y, z)
    assert np.array_equal(y[:, 0], np.full(len(y), np.inf))
    assert np.isnan(y[:, [1, 4]]).all()
    assert not y[:, [2, 3, 6]].any()            # of 0, -0 and the least number
    assert (y[:, 5] == x[5]).all()


def test_epilogues_take_them_on_cpus():
    rng = np.random.default_rng(4)
    a, b, bias = (rng.standard_normal(shape).astype(BF16) for shape in ((40, 30), (30, 50), (50,)))
    sums = tw.matmul(a, b, epilogue=lambda acc, bias: acc + bias, operands={"bias": bias}, out_dtype="f32")
    for dtype, bits in ((BF16, 8), (np.float16, 11)):
        found = tw.matmul(a, b, epilogue=lambda acc, bias: tw.gelu(acc + bias), operands={"bias": bias},
                          out_dtype=dtype)
        at = [*elementary.SHORT].index(("gelu", bits))
        x, y = np.resize(sums, 2000), np.empty((len(elementary.SHORT), 2000), np.float32)
        run(emit(8), 2000, x, y)
        assert same_bits(found.ravel(), y[at].astype(dtype))
