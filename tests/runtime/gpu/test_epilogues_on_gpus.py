"""Epilogues of products on GPUs: what is particular to them. Values are in tests/products."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.gpus import machine
from tilewright.expressions.function import Aux, Epilogue
from tilewright.expressions.functions import pairs
from tilewright.expressions.tracing import trace
from tilewright.formats import FORMATS


def made(function, *reads, results=("-",), acc="float"):
    """The text of an epilogue; reads: "bias bf16 row"."""
    operands = [Aux(*x.split()) for x in reads]
    kinds = {x.name: "int" if x.format.startswith(("i", "u")) else "float" for x in operands}
    return Epilogue(trace(function, {"acc": acc, **kinds}), tuple(operands), results).text


def random(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def swiglu(acc, bias):
    gate, up = pairs(acc)
    return tw.silu(gate + bias) * up


@pytest.mark.parametrize("target", ["sm_90a", "gfx942"])
@pytest.mark.parametrize(("a", "out"), [("f32", "f32"), ("f16", "f16"), ("i8", "i32")])
def test_operands_of_64_bits_beside_sums_of_32(target, a, out):
    """Computed in 64 bits, whose numbers 32 would round away or cut off."""
    wide = "i64" if out == "i32" else "f64"
    function = (lambda acc, x: acc + (x >> 32)) if wide == "i64" else (lambda acc, x, y: acc + (x - y))
    names = ("x",) if wide == "i64" else ("x", "y")
    problem = tw.Gemm(5, 34, 32, a, out=out, layout="nt", epilogue=made(
        function, *(f"{name} {wide} row" for name in names), acc="int" if wide == "i64" else "float"))
    left, right = random(5, 32, dtype=FORMATS[a].dtype), random(34, 32, dtype=FORMATS[a].dtype, seed=1).T
    x = np.arange(34, dtype=FORMATS[wide].dtype)
    large = {"x": (x << 32) + 7} if wide == "i64" else {"x": x + 2.0**30, "y": np.full(34, 2.0**30)}
    found = tw.compile(problem, target).simulate(left, right, operands=large).result
    wanted = left.astype(np.float64) @ right.astype(np.float64) + x
    assert np.abs(found.astype(np.float64) - wanted).max() <= 2e-3 * np.abs(wanted).max()


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_pairs_that_lanes_do_not_have_are_refused(target):
    problem = tw.Gemm(45, 66, 80, "f64", out="f64", layout="nt", epilogue=made(swiglu, "bias f64 row"))
    with pytest.raises(ValueError, match="matrix instructions for f64 leave them to different ones"):
        _ = tw.compile(problem, target).functions


def test_names_of_operands_and_of_the_compiler_do_not_meet():
    """In a kernel's parameters: x_NAME and own_NAME."""
    names = "a", "b", "c", "ldc", "m", "alpha", "own_alpha", "scale_a", "x_a"
    function = eval(f"lambda acc, {', '.join(names)}: acc + {' + '.join(names)}")
    for target in "sm_80", "gfx942":
        problem = tw.Gemm(5, 34, 32, "f32", out="f32", layout="nt", epilogue=made(function, *(
            f"{name} f32 {'row' if i % 2 else 'full'}" for i, name in enumerate(names))))
        operands = {name: random(*((1, 34) if i % 2 else (5, 34)), seed=i) for i, name in enumerate(names)}
        a, b = random(5, 32), random(34, 32, seed=1).T
        found = tw.compile(problem, target).simulate(a, b, operands=operands).result
        np.testing.assert_allclose(found, function(a.astype(float) @ b, **operands), rtol=2e-5, atol=6e-5)


# ---- matmul on fake drivers

@pytest.mark.parametrize(("format", "n"), [("mxfp8", 72), ("mxfp8_e5m2", 37), ("mxfp6", 33), ("mxfp6_e3m2", 64),
                                           ("mxfp4", 100)])
def test_block_scaled_results(monkeypatch, format, n):
    """To the bit what tilewright.quantize makes of the result in f32: of numbers of all sizes, of nan and inf."""
    on, rng = machine(monkeypatch, "sm_90a"), np.random.default_rng(3)
    a, b = (rng.integers(-9, 10, shape).astype(np.float32) for shape in ((2, 9, 8), (8, n)))
    scales = np.ldexp(rng.random((2, 9, n), np.float32), rng.integers(-160, 122, (2, 9, n))).astype(np.float32)
    scales[:, :3] = rng.choice([np.nan, np.inf, 0.0, 1.0, 3.0], (2, 3, n))
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = tw.quantize((a @ b)*scales, format)
    found = tw.matmul(on.array(a), on.array(b), epilogue=lambda acc, s: acc*s, out_dtype=format,
                      operands={"s": on.array(scales)})
    on.finish()
    assert (found.shape, found.format) == (wanted.shape, wanted.format)
    np.testing.assert_array_equal(found.scales.host, wanted.scales)
    np.testing.assert_array_equal(found.elements.host, wanted.elements)


def test_calls_like_earlier_ones_are_repeated(monkeypatch):
    """By the fast path, and by the long way as soon as anything but addresses is another."""
    on, long_way, factor = machine(monkeypatch, "sm_90a"), [], 2.0
    whole = on.engine.matmul
    monkeypatch.setattr(on.engine, "matmul", lambda *args: long_way.append(args) or whole(*args))

    def f(acc, bias, res):
        y = (acc + bias)*factor
        return y + res, tw.relu(y)

    def call(epilogue=f, out=None, seed=0, n=36, alpha=1, **operands):
        """Whether the results came the long way."""
        long_way.clear()
        a, b = random(33, 40, seed=seed), random(40, n, seed=seed + 1)
        given = {"bias": on.array(random(n, seed=seed)), "res": on.array(random(33, n))} | operands
        wanted = f(a.astype(float) @ b * alpha, **{x: np.array(getattr(y, "host", y)) for x, y in given.items()})
        found = tw.matmul(on.array(a), on.array(b), out, epilogue=epilogue, operands=given, alpha=alpha)
        on.finish()
        for x, y, z in zip(found, wanted, out or (None, None), strict=True):
            assert z is None or x is z
            np.testing.assert_allclose(x.host, y, rtol=1e-5, atol=1e-5)
        return bool(long_way)

    memory = on.array(np.zeros((66, 36), np.float32))
    upper, lower = memory[:33], memory[33:]
    made = tw.epilogue(f, bias="row", res="full")
    for how in ({}, {"out": (upper, lower)}, {"epilogue": made}, {"out": (None, lower)}, {"n": 72}):
        assert call(**how)
        assert not call(**how, seed=5)
    assert call(bias=2.0)
    assert not call(bias=3.0)
    assert not call(alpha=0.5)
    assert call(out=(upper, None), res=upper)           # an operand is written to
    factor = 3.0
    assert call()
    assert not call()
    strided = {"res": on.array(random(33, 72)[:, ::2])}                         # its copy is a step of the program
    assert call(**strided)
    assert not call(**strided)
    for other in ({"epilogue": lambda acc, bias, res: f(acc, bias, res)},       # traced in every call
                  {"bias": random(36)}):                                        # copied there in every call
        assert call(**other)
        assert call(**other)


@pytest.mark.parametrize("n", [40, 37])
def test_results_in_nvfp4_are_those_of_quantize(monkeypatch, n):
    """Of sizes whose scales are the smallest ones too, of infinite numbers and of zeros; the scale of all waits."""
    on, rng = machine(monkeypatch, "sm_90a"), np.random.default_rng(0)
    a = (rng.standard_normal((33, 16)) * np.exp(3*rng.standard_normal((33, 1)))).astype(np.float32)
    b, strange = on.array(random(16, n)), a.copy()
    strange[3, 2] = np.inf
    for x in (a, strange, 0*a):
        q, y = tw.matmul(on.array(x), b, epilogue=lambda acc: (acc, acc), out_dtype=("nvfp4", "f32"))
        on.finish()
        wanted = tw.quantize(y.host, "nvfp4")
        assert q.tensor_scale == wanted.tensor_scale
        np.testing.assert_array_equal(q.scales.host, wanted.scales)
        np.testing.assert_array_equal(q.elements.host, wanted.elements)
