"""Layers and whole models: training steps beside torch's, narrow weights beside what they stand for, saved states."""

import copy
import warnings

import pytest

from tilewright.runtime.cpu import engine

torch = pytest.importorskip("torch", reason="torch is not installed: there are no models to put layers into")
twt = pytest.importorskip("tilewright.torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

BF16 = torch.bfloat16


class Block(nn.Module):
    """An attention block and an MLP of two layers, each beside its input."""

    def __init__(self, width=32, heads=2):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


def model(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(32, 11)).to(dtype)


def data(dtype=torch.float32):
    torch.manual_seed(1)
    return torch.randn(3, 10, 32).to(dtype), torch.randint(0, 11, (3, 10))


def step(net, x, target, optimizer):
    """Loss, gradients and parameters after a step."""
    optimizer = optimizer(net.parameters())
    loss = F.cross_entropy(net(x).float().flatten(0, 1), target.flatten())
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in net.named_parameters()}
    optimizer.step()
    return loss.detach(), gradients, {name: p.detach() for name, p in net.named_parameters()}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5), (BF16, 0.03)], ids=str)
def test_a_training_step(dtype, tolerance):
    """Every product of the layers, forward and backward, is ours: no farther from f64 than torch's by half."""
    x, target = data(dtype)
    for optimizer in (lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.AdamW(p, lr=1e-3)):
        theirs = model(dtype)
        ours = twt.convert(copy.deepcopy(theirs))
        assert sum(type(m) is twt.Linear for m in ours.modules()) == 9
        assert list(ours.state_dict()) == list(theirs.state_dict())
        exact = copy.deepcopy(theirs).double()
        wanted, found = step(theirs, x, target, optimizer), step(ours, x, target, optimizer)
        true = step(exact, x.double(), target, optimizer)
        assert abs(found[0] - true[0]) <= 1.5 * abs(wanted[0] - true[0]) + tolerance * true[0]
        for name, gradient in true[1].items():
            errors = [(each[1][name].double() - gradient).norm() / gradient.norm() for each in (found, wanted)]
            assert errors[0] <= 1.5 * errors[1] + tolerance, name
        if dtype != BF16:
            for name, parameter in wanted[2].items():
                # of AdamW's first step a parameter moves by the rate and the gradient's sign
                assert torch.allclose(found[2][name], parameter, rtol=0, atol=3e-3 * tolerance**0.5), name


def test_compiled_training_step():
    x, target = data()
    net = twt.convert(model())
    wanted = step(copy.deepcopy(net), x, target, lambda p: torch.optim.SGD(p, lr=0.1))
    found = step(torch.compile(net, fullgraph=True, backend="aot_eager"), x, target,
                 lambda p: torch.optim.SGD(p, lr=0.1))
    assert torch.allclose(found[0], wanted[0])
    for (_, gradient), (_, like) in zip(found[1].items(), wanted[1].items()):
        assert torch.allclose(gradient, like, atol=1e-6)


def test_linear_has_the_parameters_of_torchs():
    linear = nn.Linear(8, 5)
    ours = twt.Linear.from_linear(linear, activation="silu")
    assert ours.weight is linear.weight
    x = torch.randn(3, 8)
    assert torch.allclose(ours(x), F.silu(linear(x)), atol=1e-6)
    fresh = twt.Linear(8, 5, activation="silu")
    fresh.load_state_dict(linear.state_dict())
    assert torch.equal(fresh(x), ours(x))
    assert "activation='silu'" in repr(ours)
    with pytest.raises(ValueError, match="activation must be one of none"):
        twt.Linear(8, 5, activation="x")


NARROW = {"fp8": ({}, 0.08), "int8": ({}, 0.02), "int4": ({}, 0.25), "mxfp4": ({}, 0.3), "nvfp4": ({}, 0.25),
          "mxfp8": ({}, 0.08)}
OPTIONS = {"int8 groups": ("int8", {"group": 32}), "int4 zeros": ("int4", {"group": 32, "zero_points": True})}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*NARROW, *OPTIONS])
def test_narrow_layers(name, tmp_path):
    """They compute what their weights say, near the layer that they stand for, and load what they have saved."""
    kind, options = OPTIONS.get(name, (name, {}))
    torch.manual_seed(0)
    for bias, dtype in ((True, torch.float32), (False, BF16)):
        linear = nn.Linear(256, 48, bias=bias).to(dtype)
        layer = twt.convert(linear, kind, **options)
        x = torch.randn(2, 3, 256).to(dtype)
        y, rows = layer(x), x.float().flatten(0, 1)
        if kind == "fp8":
            a, scale = twt.quantize_rows(rows)
            assert (a.abs().float().amax(1) == 448).all()
            rows = a.float() * scale
        exact = rows.double() @ layer.dequantized().double().t()
        exact = (exact + linear.bias.double() if bias else exact).view(2, 3, 48)
        assert y.dtype == dtype
        assert (y.double() - exact).abs().max() <= (1e-5 if dtype == torch.float32 else 8e-3) * exact.abs().max()
        wanted = linear(x)
        assert (y - wanted).norm() <= NARROW[kind][1] * wanted.norm()

        torch.save(layer.state_dict(), tmp_path / "layer")
        torch.manual_seed(5)
        other = twt.convert(nn.Linear(256, 48, bias=bias).to(dtype), kind, **options)
        assert not torch.equal(other(x), y)
        other.load_state_dict(torch.load(tmp_path / "layer", weights_only=True))
        assert torch.equal(other(x), y)
        assert not list(layer.parameters())
        small = sum(b.numel() * b.element_size() for b in layer.buffers())
        assert small < linear.weight.numel() * (1.2 if "8" in kind else 0.8) + 200 + (48 * 4 * 8 if options else 0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [*NARROW, "int8 groups", "int4 zeros"])
def test_few_rows_take_the_kernels_of_matmul(kind, monkeypatch):
    """By one row and by 16, with a bias and without: one kernel that adds the bias, and of one row reads the weights
    where they are (16 rows of 64 are packed on a Xeon)."""
    kind, options = OPTIONS.get(kind, (kind, {}))
    plans, ready = [], engine.ready
    monkeypatch.setattr(engine, "ready", lambda planned, **how: plans.append(planned.plan) or ready(planned, **how))
    for bias in (True, False):
        layer = twt.convert(nn.Linear(64, 32, bias=bias), kind, **options)
        for rows in (1, 16):
            plans.clear()
            engine.forget()
            layer(torch.randn(rows, 64))
            assert [rows > 1 or plan.algorithm in ("stream", "dots") for plan in plans] == [True]


@pytest.mark.parametrize("inputs", [1, 15, 16, 33])
def test_fewer_inputs_than_a_block_or_a_group(inputs):
    """Or two to a byte and an odd number of them; of 4 bits one input has a byte, as one of 8 bits has."""
    for kind, options in (("int4", {}), ("int4", {"zero_points": True}), ("mxfp4", {}), ("nvfp4", {}), ("mxfp8", {}),
                          ("int8", {"group": 20})):
        linear = nn.Linear(inputs, 33)
        layer = twt.convert(linear, kind, **options)
        made = layer.dequantized()
        assert (made - linear.weight).abs().max() <= 0.25 * linear.weight.abs().max()
        for rows in (1, 17):
            x = torch.randn(rows, inputs)
            assert torch.allclose(layer(x), x @ made.t() + linear.bias, atol=1e-5)


def test_states_of_another_kind_are_refused():
    a, b = (twt.convert(nn.Linear(256, 8), "int4", group=group) for group in (32, 64))
    with pytest.raises(ValueError, match=r"saved as .*'group': 32.*the layer that loads them is .*'group': 64"):
        b.load_state_dict(a.state_dict(), strict=False)
    for kind, options, words in (("int3", {}, "kind must be one of float, fp8, int8"),
                                 ("mxfp4", {"group": 64}, "group and zero_points must not be given for mxfp4")):
        with pytest.raises(ValueError, match=words):
            twt.convert(nn.Linear(256, 8), kind, **options)
    with pytest.raises(ValueError, match=r"x \(3, 255\) must have 256 numbers along its last axis"):
        a(torch.randn(3, 255))


def test_what_convert_replaces():
    net = nn.ModuleDict({"a": nn.Linear(8, 8), "head": nn.Linear(8, 2),
                         "attention": nn.MultiheadAttention(8, 2, batch_first=True)})
    net["again"] = net["a"]
    twt.convert(net, "int8", skip="head")
    assert type(net["a"]) is twt.WeightLinear
    assert net["again"] is net["a"]
    assert type(net["head"]) is nn.Linear
    x = torch.randn(1, 3, 8)
    net["attention"](x, x, x)  # whose projection, a subclass of Linear, has stayed
    twt.convert(net, skip=lambda name, layer: layer.out_features > 2)
    assert type(net["head"]) is twt.Linear
    assert type(twt.convert(net, "fp8")["head"]) is twt.Fp8Linear
    with pytest.raises(ValueError, match="model has activation='relu', which int8 layers lack"):
        twt.convert(twt.Linear(8, 8, activation="relu"), "int8")


def test_what_convert_leaves_is_named():
    """Of other libraries, and of torch attention; not what `skip` names, embeddings, convolutions, norms and biases."""
    class Conv1D(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 6))

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_up = nn.Parameter(torch.randn(2, 4, 6))
    net = nn.ModuleDict({"c": Conv1D(), "experts": Experts(), "a": nn.Linear(8, 8), "e": nn.Embedding(3, 4),
                         "v": nn.Conv2d(2, 2, 3), "n": nn.LayerNorm(4)})
    with pytest.warns(UserWarning, match=r"stay as they are: c \(Conv1D\), experts \(Experts\)$"):
        twt.convert(net, "int8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        twt.convert(net, skip=("c", "experts"))
        twt.convert(model())
    with pytest.warns(UserWarning, match=r"self_attn \(MultiheadAttention\), .*and 2 others"):
        twt.convert(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 5))


def test_a_model_with_narrow_weights():
    x, _ = data()
    wanted = model()(x)
    with torch.no_grad():
        for kind, most in (("fp8", 0.1), ("int8", 0.03), ("mxfp4", 0.4)):
            net = twt.convert(model(), kind, skip="2").eval()
            assert (net(x) - wanted).norm() < most * wanted.norm()
        compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
        assert torch.allclose(compiled(x), net(x), atol=1e-5)


@pytest.mark.parametrize(("rows", "step", "activation", "ours"), [
    (4, 64, "none", True), (100, 64, "none", False), (100, 65, "none", True), (100, 64, "relu", True)])
def test_linear_takes_torchs_product_on_gpus_where_ours_is_not_faster(monkeypatch, rows, step, activation, ours):
    from tilewright.torch import functions

    class OnGpu:
        is_cuda, itemsize = True, 2
        numel, dim, stride = (lambda self: rows*64), (lambda self: 2), (lambda self: (step, 1))

    layer, taken = twt.Linear(64, 32, activation=activation).bfloat16(), []
    monkeypatch.setattr(functions, "linear", lambda *_: taken.append("ours"))
    monkeypatch.setattr(nn.functional, "linear", lambda *_: taken.append("torch"))
    layer(OnGpu())
    assert taken == ["ours" if ours else "torch"]
