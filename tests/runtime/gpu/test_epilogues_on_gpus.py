"""Epilogues of products on GPUs, simulated: values against the expression in float64, for every family of kernels."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.expressions.epilogue import Epilogue, Read
from tilewright.expressions.functions import pairs
from tilewright.expressions.tracing import trace
from tilewright.formats import FORMATS


def made(function, *reads, results=("-",), acc="float"):
    """The text of an epilogue; reads: "bias bf16 row"."""
    operands = [Read(*x.split()) for x in reads]
    kinds = {x.name: "int" if x.format.startswith(("i", "u")) else "float" for x in operands}
    return Epilogue(trace(function, {"acc": acc, **kinds}), tuple(operands), results).text


def gelu_residual(acc, bias, res):
    return tw.gelu(acc + bias) * 0.5 + res


def swiglu(acc, bias):
    gate, up = pairs(acc)
    return tw.silu(gate + bias) * up


def data(problem, seed=0):
    """A, B, operands by name, arrays for all results."""
    rng, p = np.random.default_rng(seed), problem
    epilogue = Epilogue.read(p.epilogue)

    def numbers(shape, format, whole=False):
        dtype = FORMATS[format].dtype
        return (rng.integers(-3, 4, shape) if whole or dtype.kind in "iu" else rng.standard_normal(shape)).astype(dtype)
    a, b = (numbers(p.shapes[x], getattr(p, x)) for x in "ab")
    m, n = p.shapes["out"][-2:]
    lead = p.shapes["out"][:-2]
    shapes = {"scalar": (1, 1), "row": (1, n), "column": (m, 1), "full": (*lead, m, n)}
    operands = {x.name: numbers(shapes[x.place], x.format) for x in epilogue.operands}
    outs = [np.full((*lead, m, n), 7, FORMATS[p.out if x == "-" else x].dtype)
            for i, x in enumerate(epilogue.results) if i != epilogue.main]
    return epilogue, a, b, operands, outs


def check(problem, target, plan=None, alpha=1.0, beta=0.0):
    epilogue, a, b, operands, outs = data(problem)
    out = np.zeros(problem.shapes["out"], FORMATS[problem.out].dtype)
    if beta:
        out[...] = np.arange(out.size).reshape(out.shape) % 5
    product = alpha * (a.astype(np.float64) @ b.astype(np.float64)) + (beta * out.astype(np.float64) if beta else 0)
    if epilogue.kind == "int":
        product = product.astype(np.int64)
    kernel = tw.compile(problem, target, plan)
    kernel.simulate(a, b, out, alpha=alpha, beta=beta, operands=operands, outs=outs)
    rest = iter(outs)
    for i, wanted in enumerate(epilogue.evaluate(product, operands)):
        found = (out if i == epilogue.main else next(rest)).astype(np.float64)
        eps = {"f32": 2e-5, "f64": 1e-13, "f16": 2e-3, "bf16": 1e-2}.get(
            problem.out if i == epilogue.main or epilogue.results[i] == "-" else epilogue.results[i], 0.13)
        np.testing.assert_allclose(found, wanted, rtol=eps, atol=eps * 3)
    return kernel


def residual(format):
    return made(gelu_residual, f"bias {format} row", f"res {format} full")


@pytest.mark.parametrize(("target", "format", "out", "sizes", "plan"), [
    ("sm_80", "f32", "f32", (67, 70, 33), None),
    ("sm_80", "f32", "f32", (65, 67, 40), "simt 64x64x8 warp=32x32 thread=8x4 stages=3 vector=1 split_k=2"),
    ("sm_80", "f64", "f64", (33, 34, 20), None),
    ("sm_80", "bf16", "bf16", (65, 72, 64), None),
    ("sm_75", "f16", "f16", (33, 40, 32), None),
    ("sm_90a", "bf16", "bf16", (140, 136, 96), "wgmma 128x64x64 stages=3 warpgroups=2 vector_c=2 store=tma"),
    ("sm_90a", "bf16", "bf16", (140, 150, 64), "wgmma 64x64x64 stages=3 warpgroups=2 pingpong vector_c=2"),
    ("sm_90a", "bf16", "f32", (200, 136, 96), "wgmma 64x64x64 stages=3 warpgroups=2 pingpong vector_c=2 store=tma"),
    ("sm_90a", "bf16", "bf16", (1, 200, 64), None),
    ("sm_90a", "f32", "f32", (130, 1, 64), None),
    ("gfx942", "bf16", "bf16", (65, 68, 64), None),
    ("gfx950", "f16", "f32", (65, 67, 64), None),
    ("gfx942", "f32", "f32", (65, 68, 64), "mfma 64x64x32 wave=32x32 mfma=32 copy=registers stages=2 split_k=2"),
])
def test_bias_gelu_and_residual(target, format, out, sizes, plan):
    check(tw.Gemm(*sizes, format, out=out, layout="nt" if "wgmma" in (plan or "") else "nn", epilogue=residual(format)),
          target, plan)


@pytest.mark.parametrize(("target", "plan"), [
    ("sm_80", None), ("sm_90a", "wgmma 128x64x64 stages=3 warpgroups=2 vector_c=2 store=tma"), ("gfx942", None)])
def test_several_results_alpha_beta_and_a_batch(target, plan):
    text = made(lambda acc, s, rows: (acc * s, tw.relu(acc) + rows, acc > 0), "s f32 scalar", "rows f32 column",
                results=("-", "bf16", "i8"))
    check(tw.Gemm(66, 72, 64, "bf16", out="bf16", layout="nt", batch=2, epilogue=text), target, plan, 0.5, 2.0)


@pytest.mark.parametrize(("target", "format", "plan"), [
    ("sm_80", "bf16", None), ("sm_80", "f32", None), ("gfx942", "f16", None), ("sm_90a", "bf16", None),
    ("sm_90a", "bf16", "wgmma 128x128x64 stages=3 warpgroups=2 vector_c=2 store=tma"),
])
def test_pairs(target, format, plan):
    text = made(swiglu, f"bias {format} row")
    check(tw.Gemm(130, 136, 64, format, out=format, layout="nt", epilogue=text), target, plan)


@pytest.mark.parametrize(("target", "plan"), [("sm_80", None), ("sm_90a", None), ("gfx942", None)])
def test_integers(target, plan):
    text = made(lambda acc, bias, scale: (acc + bias) * scale, "bias i32 row", "scale f32 column", acc="int")
    check(tw.Gemm(65, 80, 64, "i8", out="f32", layout="nt", epilogue=text), target, plan)
    text = made(lambda acc, bias: (acc + bias) >> 2, "bias i32 row", acc="int")
    check(tw.Gemm(65, 80, 64, "i8", out="i8", layout="nt", epilogue=text), target, plan)
