"""twt.grouped_mm: values, torch's checks of the operator, gradients along m and k, compilation, autocast."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: there is nothing to register operators with")
twt = pytest.importorskip("tilewright.torch")

from torch.library import opcheck  # noqa: E402

F32, F64, BF16, C64 = torch.float32, torch.float64, torch.bfloat16, torch.complex64
T = torch.ops.tilewright
ENDS = 4, 4, 9


def given(along, dtype=F64, transposed=False, device="cpu"):
    generator = torch.Generator().manual_seed(1)
    shapes = ((11, 6), (3, 6, 5)) if along == "m" else ((5, 11), (11, 6))
    if transposed:
        a, b = (torch.randn(*s[:-2], s[-1], s[-2], dtype=dtype, generator=generator).mT for s in shapes)
    else:
        a, b = (torch.randn(s, dtype=dtype, generator=generator) for s in shapes)
    return a.requires_grad_(), b.requires_grad_(), torch.tensor(ENDS, dtype=torch.int32)


def exact(a, b, along):
    """By torch's products of each group; with zeros for the rows of no group."""
    spans = list(zip((0, *ENDS[:-1]), ENDS))
    if along == "k":
        return torch.stack([a[:, lo:hi] @ b[lo:hi] for lo, hi in spans])
    parts = [a[lo:hi] @ x for (lo, hi), x in zip(spans, b)]
    return torch.cat([*parts, torch.zeros(len(a) - ENDS[-1], b.shape[2], dtype=a.dtype)])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [F64, BF16, C64], ids=str)
@pytest.mark.parametrize("along", ["m", "k"])
def test_values_and_gradients_are_torchs(along, dtype, transposed):
    a, b, offs = given(along, dtype, transposed)
    found = twt.grouped_mm(a, b, offs.long() if transposed else offs)
    wanted = exact(a, b, along)
    g = torch.randn(wanted.shape, dtype=dtype, generator=torch.Generator().manual_seed(2))
    gradients = torch.autograd.grad(found, (a, b), g), torch.autograd.grad(wanted, (a, b), g)
    for x, y in ((found, wanted), *zip(*gradients)):
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        assert ((x - y).abs() <= {F64: 1e-12, C64: 1e-5, BF16: 0.02}[dtype] * y.abs().max()).all()


@pytest.mark.parametrize("along", ["m", "k"])
def test_torchs_checks_of_the_operator(along):
    a, b, offs = given(along, F32)
    opcheck(T.grouped_mm.default, (a, b, offs))
    assert torch.autograd.gradgradcheck(lambda a, b: twt.grouped_mm(a, b, offs), given(along)[:2])


def test_compiled_without_a_break():
    """An expert's two products; the offsets change from call to call."""
    def experts(x, up, down, offs):
        return twt.grouped_mm(torch.relu(twt.grouped_mm(x, up, offs)), down, offs)
    x, up, offs = given("m", F32)
    down = torch.randn(3, 5, 7)
    compiled = torch.compile(experts, fullgraph=True, backend="aot_eager")
    for ends in (offs, torch.tensor([0, 11, 11], dtype=torch.int32)):
        torch.testing.assert_close(compiled(x, up, down, ends), experts(x, up, down, ends))


def test_autocast():
    a, b, offs = given("m", F32)
    with torch.autocast("cpu", BF16):
        assert twt.grouped_mm(a, b, offs).dtype == BF16


@pytest.mark.parametrize(("change", "error", "message"), [
    ({"b": torch.ones(3, 6, 5)}, TypeError, "must have one dtype"),
    ({"b": torch.ones(3, 7, 5, dtype=F64)}, ValueError, "their shapes are"),
    ({"offs": torch.tensor([1.0, 2.0, 3.0])}, TypeError, "offs must be int32 or int64"),
    ({"offs": torch.tensor([4, 9])}, ValueError, "the end of each of b's groups"),
    ({"offs": torch.tensor([4, 3, 9])}, ValueError, "must not descend"),
])
def test_errors(change, error, message):
    a, b, offs = given("m")
    with pytest.raises(error, match=message):
        twt.grouped_mm(**{"a": a, "b": b, "offs": offs} | change)
