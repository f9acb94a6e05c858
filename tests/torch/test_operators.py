"""torch.ops.tilewright: values beside torch's, torch's own checks of an operator, gradients, compilation, autocast."""

from functools import partial

import pytest

from tilewright.api import tensor_repeats

torch = pytest.importorskip("torch", reason="torch is not installed: there is nothing to register operators with")
twt = pytest.importorskip("tilewright.torch")

from torch.library import opcheck  # noqa: E402

from tilewright.torch import narrow, ops  # noqa: E402

F32, F64, BF16, C64 = torch.float32, torch.float64, torch.bfloat16, torch.complex64
T = torch.ops.tilewright


def rand(*shape, dtype=F64, grad=True):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, dtype=dtype, generator=generator).requires_grad_(grad)


def near(found, wanted, dtype=F32):
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    size = wanted.abs().max() if wanted.numel() else 0
    assert ((found - wanted).abs() <= {F64: 1e-12, F32: 1e-5, C64: 1e-5, BF16: 0.02}[dtype] * size).all()


@pytest.mark.parametrize("dtype", [F32, BF16, C64], ids=str)
def test_torchs_checks_of_an_operator(dtype):
    """Schema, autograd, shapes and strides of the fake kernels, and tracing with changing sizes."""
    a, b, c = rand(5, 7, dtype=dtype), rand(7, 3, dtype=dtype), rand(3, dtype=dtype)
    opcheck(T.mm.default, (a, b))
    opcheck(T.mm.default, (rand(7, 5, dtype=dtype).t(), rand(3, 7, dtype=dtype).t()))
    opcheck(T.bmm.default, (rand(2, 5, 7, dtype=dtype), rand(2, 7, 3, dtype=dtype)))
    opcheck(T.addmm.default, (c, a, b), {"alpha": 2, "beta": 0.5})
    opcheck(T.linear.default, (rand(2, 5, 7, dtype=dtype), rand(3, 7, dtype=dtype), c))
    if dtype == F32:
        opcheck(T.linear.default, (rand(2, 5, 7, dtype=dtype), rand(3, 7, dtype=dtype), c, "silu"))


def test_torchs_checks_of_narrow_operators():
    x, w, bias = rand(5, 64, dtype=F32, grad=False), rand(7, 64, dtype=F32, grad=False), rand(7, dtype=F32, grad=False)
    a, b = (t.mul(20).to(torch.int8) for t in (x, w.t()))
    opcheck(T.scaled_mm.default, (a, b, torch.rand(5, 1), torch.rand(1, 7), bias, BF16))
    s = narrow.stored(w, "u4", 32, True)
    quick = "test_schema", "test_autograd_registration", "test_faketensor"
    opcheck(T.linear_sums.default, (x, w, bias, "silu"), test_utils=quick)
    opcheck(T.quantize_rows.default, (x,), test_utils=quick)
    opcheck(T.weight_linear.default, (x, s["elements"], s["scales"], s["zeros"], None, bias, "u4", 32, 1.0))


@pytest.mark.parametrize("activation", ops.EPILOGUES)
def test_gradients_of_linear(activation):
    given = rand(2, 5, 7), rand(3, 7), rand(3)
    for linear in (twt.linear, T.linear):
        assert torch.autograd.gradcheck(partial(linear, activation=activation), given)
    found, wanted = twt.linear(*given, activation), ops.ACTIVATIONS[activation](torch.nn.functional.linear(*given))
    near(found, wanted, F64)
    with torch.no_grad():
        near(twt.linear(*given, activation), wanted, F64)
    assert torch.autograd.gradgradcheck(lambda *x: twt.linear(*x, activation), (rand(2, 3), rand(2, 3), rand(2)))


@pytest.mark.parametrize("activation", ops.SUMS)
def test_an_activation_of_sums_before_they_are_rounded(activation):
    """With a gradient, too; which is that of the rounded sums, the second result."""
    x, w, bias = (rand(*shape, dtype=BF16) for shape in ((3, 40, 64), (24, 64), (24,)))
    y, z = T.linear_sums(x, w, bias, activation)
    with torch.no_grad():
        assert torch.equal(twt.linear(x, w, bias, activation), y)
        assert torch.equal(twt.linear(x, w, bias), z)
        exact = ops.ACTIVATIONS[activation](torch.nn.functional.linear(*(t.double() for t in (x, w, bias))))
        once, twice = ((t.double() - exact).norm() for t in (y, ops.ACTIVATIONS[activation](z)))
        assert once < twice
    g = torch.randn(3, 40, 24).bfloat16()
    sums = z.detach().requires_grad_()
    of_sums, = torch.autograd.grad(ops.ACTIVATIONS[activation](sums), sums, g)
    found = torch.autograd.grad(twt.linear(x, w, bias, activation), (x, w, bias), g)
    wanted = torch.autograd.grad(twt.linear(x, w, bias), (x, w, bias), of_sums)
    assert all(map(torch.equal, found, wanted))
    both = torch.autograd.grad((y, z), (x, w, bias), (g, g))
    wanted = torch.autograd.grad(twt.linear(x, w, bias), (x, w, bias), of_sums + g)
    assert all(map(torch.equal, both, wanted))
    compiled = torch.compile(partial(twt.linear, activation=activation), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, w, bias), y)
    assert T.linear_sums(x[:, :0], w, bias, activation)[0].shape == (3, 0, 24)


def test_gradients():
    assert torch.autograd.gradcheck(twt.mm, (rand(5, 7), rand(3, 7).t()))
    assert torch.autograd.gradgradcheck(twt.mm, (rand(3, 4), rand(4, 2)))
    assert torch.autograd.gradcheck(twt.bmm, (rand(2, 5, 3), rand(2, 3, 4)))
    assert torch.autograd.gradcheck(twt.matmul, (rand(2, 1, 3, 4), rand(3, 4, 2)))
    complex_ = [rand(*shape, dtype=torch.complex128) for shape in ((5, 1), (5, 4), (4, 3))]
    assert torch.autograd.gradcheck(lambda c, a, b: twt.addmm(c, a, b, alpha=2 + 1j, beta=0.5j), complex_)
    assert torch.autograd.gradcheck(twt.linear, (rand(2, 3, 4, dtype=torch.complex128),
                                                 rand(3, 4, dtype=torch.complex128)))


def test_only_gradients_that_are_needed_are_computed(monkeypatch):
    """And transposed operands are views of what was saved, not copies."""
    seen = []
    real = ops.multiply
    monkeypatch.setattr(tensor_repeats, "run_recorded", lambda *_: None)
    monkeypatch.setattr(ops, "multiply", lambda a, b, dtype: seen.append((a, b)) or real(a, b, dtype))
    x, w = rand(6, 5, dtype=F32, grad=False), rand(4, 5, dtype=F32)
    twt.linear(x, w).sum().backward()
    assert [(a.shape, b.shape) for a, b in seen] == [((6, 5), (5, 4)), ((4, 6), (6, 5))]
    assert seen[0][1].data_ptr() == w.data_ptr()
    assert seen[1][1].data_ptr() == x.data_ptr()


@pytest.mark.parametrize("dtype", [F32, F64, BF16, torch.float16, C64, torch.int8, torch.int64], ids=str)
def test_values_and_dtypes(dtype):
    whole = [torch.randint(-3, 4, shape).to(dtype) for shape in ((4, 6, 5), (4, 5, 7), (7,))]
    a, b, c = whole
    wanted = (a.to(torch.complex128) @ b.to(torch.complex128)).real.to(dtype)
    assert torch.equal(twt.bmm(a, b), wanted)
    assert torch.equal(twt.mm(a[1], b[1]), wanted[1])
    assert torch.equal(twt.addmm(c, a[1], b[1]), wanted[1] + c)
    assert torch.equal(twt.addmm(c, a[1], b[1], beta=3, alpha=2), 2 * wanted[1] + 3 * c)
    assert torch.equal(twt.linear(a, b[0].t(), c), twt.matmul(a, b[0]) + c)
    assert twt.mm(a[0], b[0]).is_contiguous()
    assert twt.linear(a[:, :0], b[0].t(), c).shape == (4, 0, 7)
    assert torch.equal(twt.linear(a[..., :0], b[0].t()[:, :0], c), c.expand(4, 6, 7))


def test_matmul_follows_torchs_rules():
    for x, y in (((3,), (3,)), ((3,), (3, 2)), ((4, 3), (3,)), ((2, 4, 3), (3, 5)), ((2, 1, 4, 3), (5, 3, 2)),
                 ((3,), (5, 3, 2)), ((0, 4, 3), (3, 2))):
        a, b = rand(*x, dtype=F32), rand(*y, dtype=F32)
        near(twt.matmul(a, b), a @ b)


def test_what_is_refused():
    a = torch.randn(3, 4)
    for call, error, words in (
        (lambda: twt.mm(a, a), ValueError, r"a \(3, 4\) and b \(3, 4\) cannot be multiplied"),
        (lambda: twt.mm(a, a.t().double()), TypeError, "a is torch.float32 and b is torch.float64"),
        (lambda: twt.bmm(a, a), ValueError, r"a must have 3 axes, but its shape is \(3, 4\)"),
        (lambda: twt.addmm(torch.ones(2), a, a.t()), ValueError, r"c \(2,\) must broadcast to .* \(3, 3\)"),
        (lambda: twt.linear(a, a, torch.ones(4)), ValueError, r"bias must have the shape \(3,\), not \(4,\)"),
        (lambda: twt.linear(a, a, activation="tanh"), ValueError, "activation must be one of none, relu"),
        (lambda: twt.linear(a.bool(), a.bool()), TypeError, "x is torch.bool"),
        (lambda: twt.scaled_mm(a, a.t(), a, a), TypeError, "a must be of a float8 dtype or int8, not torch.float32"),
        (lambda: twt.matmul(a, torch.tensor(1.0)), ValueError, "a and b must have at least 1 axis"),
    ):
        with pytest.raises(error, match=words):
            call()
    x = rand(3, 64, dtype=F32)
    s = narrow.stored(torch.randn(5, 64), "i8")
    y = T.weight_linear(x, s["elements"], s["scales"], None, None, None, "i8", 0, 1.0)
    with pytest.raises(RuntimeError, match="tilewright::weight_linear has no backward pass: layers of narrow weights"):
        y.sum().backward()


def test_compiled_without_a_graph_break():
    """Forward and backward are traced through the registered shapes; the kernels run as in eager mode."""
    def f(x, w, b):
        return (twt.linear(x, w, b, "gelu") @ twt.matmul(w, x.transpose(-1, -2)).mean(0)).sum()

    given = rand(2, 4, 8, dtype=F32), rand(5, 8, dtype=F32), rand(5, dtype=F32)
    wanted = torch.autograd.grad(f(*given), given)
    for size in (4, 6):  # a second size is traced with symbols
        compiled = torch.compile(f, fullgraph=True, backend="aot_eager", dynamic=size != 4)
        for found, like in zip(torch.autograd.grad(compiled(*given), given), wanted):
            near(found, like)
    with torch.no_grad():
        near(torch.compile(f, fullgraph=True, backend="eager")(*given), f(*given))


def test_autocast():
    x, w, b = rand(4, 8, dtype=F32), rand(5, 8, dtype=F32), rand(5, dtype=F32)
    with torch.autocast("cpu", dtype=BF16):
        for ours, theirs in ((twt.linear(x, w, b), torch.nn.functional.linear(x, w, b)),
                             (twt.mm(x, w.t()), x @ w.t())):
            near(ours, theirs, BF16)
        twt.linear(x, w, b).sum().backward()
    assert x.grad.dtype == w.grad.dtype == F32
    near(w.grad, x.bfloat16().float().sum(0).expand(5, 8), BF16)
