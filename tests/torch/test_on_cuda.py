"""tilewright.torch on an NVIDIA GPU beside float64: operators and layers, also captured in a CUDA graph and compiled,
training, tangents, quantization and checkpoints. Skipped without one."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest

import tilewright as tw

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device and a torch that is built for it", allow_module_level=True)

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import tilewright.torch as twt  # noqa: E402
from bench.programs import captured  # noqa: E402
from tilewright.torch.quantization import BLOCKS, dequantize, quantize, rows_in_fp8  # noqa: E402

BF16, FLOATS = torch.bfloat16, (torch.bfloat16, torch.float16, torch.float32)


def error(found, wanted):
    """The norm of the error, beside that of all."""
    return ((found.double() - wanted.double()).norm() / wanted.double().norm()).item()


def rand(*shape, dtype=BF16):
    return torch.randn(shape, device="cuda").to(dtype)


def operators():
    """Ours, its arguments, what it should be, and the error that is allowed."""
    for dtype, tolerance in ((BF16, 4e-3), (torch.float16, 5e-4), (torch.float32, 1e-6)):
        yield (f"mm {dtype}", twt.mm, lambda d=dtype: [rand(300, 512, dtype=d), rand(200, 512, dtype=d).t()],
               torch.mm, tolerance)
        yield (f"bmm {dtype}", twt.bmm, lambda d=dtype: [rand(3, 70, 64, dtype=d), rand(3, 64, 48, dtype=d)],
               torch.bmm, tolerance)
        yield (f"einsum {dtype}", partial(twt.einsum, "abk,ckb->ac"),
               lambda d=dtype: [rand(20, 30, 64, dtype=d), rand(40, 64, 30, dtype=d)],
               partial(torch.einsum, "abk,ckb->ac"), tolerance)
        layer = lambda d=dtype: [rand(5, 60, 512, dtype=d), rand(256, 512, dtype=d), rand(256, dtype=d)]  # noqa: E731
        for activation in ("none", "gelu", "silu", "relu"):
            function = twt.functions.ops.ACTIVATIONS[activation]
            yield (f"linear {activation} {dtype}", partial(twt.linear, activation=activation), layer,
                   lambda *x, function=function: function(F.linear(*x)), tolerance)
        yield (f"linear and sums {dtype}",
               lambda *x: torch.cat(torch.ops.tilewright.linear_sums(*x, "gelu"), -1), layer,
               lambda *x: torch.cat([F.gelu(F.linear(*x)), F.linear(*x)], -1), tolerance)
        yield (f"quantize_rows {dtype}", lambda x: torch.cat([t.float() for t in twt.quantize_rows(x)], 1),
               lambda d=dtype: [rand(5, 300, dtype=d)],
               lambda x: torch.cat([t.float() for t in rows_in_fp8(x.float())], 1), 0.0)
    yield ("scaled_mm", lambda a, b, s, t: twt.scaled_mm(a, b.t(), s, t.t(), out_dtype=BF16),
           lambda: [x for pair in zip(*(twt.quantize_rows(rand(n, 512)) for n in (96, 160))) for x in pair],
           lambda a, b, s, t: (a*s) @ (b*t).t(), 4e-3)
    for kind in ("int4", "mxfp4", "int8", "fp8"):
        layer = twt.convert(nn.Linear(1024, 512, device="cuda", dtype=BF16), kind)
        weight, bias = layer.dequantized().double().cuda(), layer.bias.double()
        for rows in (1, 16, 100):
            yield (f"{kind} layer, {rows} rows", layer, lambda rows=rows: [rand(rows, 1024)],
                   lambda x, w=weight, c=bias: x @ w.t() + c, 0.04 if kind == "fp8" else 4e-3)


@pytest.mark.parametrize("way", ["eager", "graph", "compiled"])
@pytest.mark.parametrize(("ours", "make", "wanted", "tolerance"), [
    pytest.param(*x, id=name) for name, *x in operators()])
def test_an_operator_is_near_float64(ours, make, wanted, tolerance, way):
    torch._dynamo.reset()       # partials of one function are one code, compiled eight times at most
    given = make()
    with torch.no_grad():
        if way == "graph":
            graph, result = captured(ours, *given)
            if given[0].is_floating_point() and given[0].itemsize > 1:
                given[0].mul_(-2)       # a replay reads what is there then
            graph.replay()
        else:
            result = (ours if way == "eager" else torch.compile(ours, fullgraph=True))(*given)
        assert error(result, wanted(*(x.double() for x in given))) <= tolerance


def test_weights_quantised_on_the_gpu_have_the_bits_of_those_on_the_cpu():
    x = torch.randn(70, 200)
    x[1], x[2], x[3] = 0, x[2]*1e-30, torch.arange(200)/8 - 12
    for dtype in FLOATS:
        for format, group, zero_points in (("i8", None, False), ("u8", 48, True), ("i4", 32, False), ("u4", 64, True),
                                           *((name, None, False) for name in BLOCKS)):
            sides = [quantize(x.to(device, dtype), format, group, zero_points) for device in ("cpu", "cuda")]
            numbers = [dequantize(q["elements"], q["scales"], q["zeros"], None, format, group or 0, q["tensor_scale"],
                                  200) for q in sides]
            for name in ("elements", "scales", "zeros"):
                one, other = (q[name] for q in sides)
                assert one is None or torch.equal(one, other.cpu()), (name, format, dtype)
            assert torch.equal(numbers[0], numbers[1].cpu()), (format, dtype)


def test_gradients_of_a_step_are_as_near_as_those_of_torch():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 64)).cuda()
    x, target = torch.randn(96, 256, device="cuda"), torch.randint(0, 64, (96,), device="cuda")
    sides = {"torch": copy.deepcopy(net).to(BF16), "ours": twt.convert(copy.deepcopy(net).to(BF16)),
             "exact": copy.deepcopy(net).to(BF16).double()}
    for side, model in sides.items():
        F.cross_entropy(model(x.double() if side == "exact" else x.to(BF16)).double(), target).backward()
    for parameters in zip(*(model.parameters() for model in sides.values())):
        theirs, ours, exact = (p.grad.double() for p in parameters)
        assert (ours - exact).norm() <= 1.5*(theirs - exact).norm() + 1e-3*exact.norm(), tuple(exact.shape)


def test_forward_mode_derivatives():
    x, w, t = (torch.randn(n, 48, device="cuda") for n in (20, 30, 20))
    for name, ours, exact in (
            ("mm", lambda x: twt.mm(x, w.t()), lambda x: x @ w.t().double()),
            ("linear", lambda x: twt.linear(x, w, activation="gelu"), lambda x: F.gelu(x @ w.t().double())),
            ("einsum", lambda x: twt.einsum("ik,jk->ij", x, w), lambda x: x @ w.t().double())):
        wanted = torch.func.jvp(exact, (x.double(),), (t.double(),))[1]
        assert error(torch.func.jvp(ours, (x,), (t,))[1], wanted) < 1e-5, name


def test_layers_of_weights_that_were_quantised_elsewhere():
    layers = {16: twt.WeightLinear.from_linear(nn.Linear(16, 40, bias=False, device="cuda"), "mxfp4")}
    for inputs, format, group in (96, "i4", 32), (64, "i8", None), (32, "mxfp4", None), (1, "i4", None):
        weight = np.random.default_rng(0).standard_normal((40, inputs), np.float32)
        quantised = tw.quantize(weight, format, **({"group": group} if group else {}))
        layers[inputs] = twt.WeightLinear.from_weight(quantised).to("cuda")
    for inputs, layer in layers.items():
        x = torch.randn(3, inputs, device="cuda")
        assert error(layer(x), x.double() @ layer.dequantized().double().cuda().t()) < 1e-5, inputs
