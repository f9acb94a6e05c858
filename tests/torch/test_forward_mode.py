"""Forward-mode derivatives and torch.func's transforms, alone and nested: beside those of torch's own operators."""

import pytest

import tilewright as tw

torch = pytest.importorskip("torch", reason="torch is not installed: there is nothing to differentiate")
twt = pytest.importorskip("tilewright.torch")

from torch.autograd import forward_ad  # noqa: E402
from torch.nn import functional as F  # noqa: E402

A, B, BIAS, W = (torch.randn(shape, dtype=torch.float64) for shape in ((4, 5), (5, 3), (3,), (3, 5)))
STACKS = tuple(torch.randn(shape, dtype=torch.float64) for shape in ((2, 4, 5), (2, 5, 3)))
ENDS = torch.tensor([1, 4], dtype=torch.int32)
THEIRS = {"none": lambda z: z, "relu": F.relu, "silu": F.silu, "gelu": F.gelu,
          "gelu_tanh": lambda z: F.gelu(z, approximate="tanh")}
CASES = {
    "mm": (twt.mm, torch.mm, (A, B)), "bmm": (twt.bmm, torch.bmm, STACKS),
    "matmul": (twt.matmul, torch.matmul, (STACKS[0], B)),
    "addmm": (lambda *x: twt.addmm(*x, beta=2, alpha=-3), lambda *x: torch.addmm(*x, beta=2, alpha=-3), (BIAS, A, B)),
    "rows": (lambda a, b: twt.grouped_mm(a, b, ENDS), lambda a, b: torch.cat([a[:1] @ b[0], a[1:] @ b[1]]),
             (A, STACKS[1])),
    "steps": (lambda a, b: twt.grouped_mm(a.t(), b, ENDS),
              lambda a, b: torch.stack([a[:1].t() @ b[:1], a[1:].t() @ b[1:]]), (A, A)),
    **{name: (lambda *x, name=name: twt.linear(*x, activation=name),
              lambda *x, name=name: THEIRS[name](F.linear(*x)), (A, W, BIAS)) for name in THEIRS},
}


def near(found, wanted):
    assert found.shape == wanted.shape
    assert torch.allclose(found, wanted, atol=1e-11)


@pytest.mark.parametrize("name", CASES)
def test_tangents_are_torchs(name):
    """Of all operands and of each alone, by torch.func.jvp and by dual tensors."""
    ours, theirs, given = CASES[name]
    tangents = tuple(torch.randn_like(x) for x in given)
    for which in (range(len(given)), *((i,) for i in range(len(given)))):
        def function(f, *some, which=which):
            return f(*(some[list(which).index(i)] if i in which else x for i, x in enumerate(given)))
        some, moved = tuple(given[i] for i in which), tuple(tangents[i] for i in which)
        wanted = torch.func.jvp(lambda *x: function(theirs, *x), some, moved)
        for _ in range(3):              # the third one like an earlier one
            function(ours, *some)
        for found, like in zip(torch.func.jvp(lambda *x: function(ours, *x), some, moved), wanted):
            near(found, like)
        with forward_ad.dual_level():
            found = forward_ad.unpack_dual(function(ours, *map(forward_ad.make_dual, some, moved)))
        near(found.tangent, wanted[1])


@pytest.mark.parametrize("name", ["mm", "addmm", "rows", "silu", "gelu"])
def test_second_derivatives(name):
    """Forward over reverse, reverse over forward, forward over forward, and vmap of each."""
    ours, theirs, (first, *others) = CASES[name]

    def loss(f):
        return lambda x: f(x, *others).pow(3).sum()

    moved = torch.randn_like(first)
    ways = {"reverse": torch.func.grad, "forward": lambda g: lambda x: torch.func.jvp(g, (x,), (moved,))[1]}
    for inner in ways.values():
        near(torch.vmap(inner(loss(ours)))(first[None].expand(1, *first.shape)), inner(loss(theirs))(first)[None])
        for outer in ways.values():
            near(outer(lambda x, of=inner: of(loss(ours))(x).pow(2).sum())(first),
                 outer(lambda x, of=inner: of(loss(theirs))(x).pow(2).sum())(first))
    near(torch.func.hessian(loss(ours))(first), torch.func.hessian(loss(theirs))(first))
    x = first.clone().requires_grad_()          # torch.autograd over torch.func
    (found,) = torch.autograd.grad(ways["forward"](loss(ours))(x).sum(), x)
    near(found, torch.autograd.grad(ways["forward"](loss(theirs))(x).sum(), x)[0])


def test_layers_and_the_switch():
    x, t = A.float(), torch.randn(4, 5)
    layer = torch.nn.Linear(5, 3)
    for ours in (twt.convert(torch.nn.Linear(5, 3)), twt.convert(torch.nn.Linear(5, 3), "int8")):
        weight = ours.dequantized() if hasattr(ours, "dequantized") else ours.weight
        assert torch.allclose(torch.func.jvp(ours, (x,), (t,))[1], t @ weight.t(), atol=1e-5)
    with twt.enable("always"):
        assert torch.allclose(torch.func.jvp(layer, (x,), (t,))[1], t @ layer.weight.t(), atol=1e-5)
        assert torch.allclose(torch.func.jvp(lambda x: x @ B.float(), (x,), (t,))[1], t @ B.float(), atol=1e-5)


def test_what_has_no_tangent_is_refused():
    x, t = A.float(), torch.randn(4, 5)
    fp8 = twt.convert(torch.nn.Linear(5, 3), "fp8")
    with pytest.raises(RuntimeError, match="tilewright::fp8_linear has no forward-mode derivative"):
        torch.func.jvp(fp8, (x,), (t,))
    rows, scales = twt.quantize_rows(x)
    with pytest.raises(RuntimeError, match="tilewright::scaled_mm has no forward-mode derivative"):
        torch.func.jvp(lambda s: twt.scaled_mm(rows, rows.t(), s, s.t()), (scales,), (scales,))
    narrow = twt.convert(torch.nn.Linear(5, 3), "int8")
    with pytest.raises(RuntimeError, match="no forward-mode derivative by the weight"):
        torch.func.jvp(lambda s: torch.func.functional_call(narrow, {"scales": s}, (x,)),
                       (narrow.scales,), (t[:3, :1],))
    with forward_ad.dual_level():
        for call in (lambda x: tw.matmul(x, B.float()), lambda x: tw.einsum("ij,jk", x, B.float()),
                     lambda x: tw.grouped_matmul(x, STACKS[1].float(), [1, 4])):
            for _ in range(3):
                call(x)
            with pytest.raises(ValueError, match="has a tangent, and tilewright's functions"):
                call(forward_ad.make_dual(x, t))
