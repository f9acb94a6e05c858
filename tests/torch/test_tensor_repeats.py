"""Calls with tensors like an earlier one, without torch's dispatcher: the same bits, and only where all is alike."""

import random

import pytest

import tilewright as tw
from tilewright.api import tensor_repeats
from tilewright.runtime import repeats
from tilewright.runtime.cpu import engine

torch = pytest.importorskip("torch", reason="torch is not installed: there are no tensors")
twt = pytest.importorskip("tilewright.torch")

from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from tilewright.torch import ops  # noqa: E402
from tilewright.torch.library import KERNEL  # noqa: E402

X, W, BIAS = torch.randn(24, 40), torch.randn(16, 40), torch.randn(16)
STACKS = torch.randn(3, 5, 40), torch.randn(3, 40, 6)
CALLS = {
    "mm": (lambda a, b: twt.mm(a, b.t()), X, W),
    "linear": (twt.linear, X, W, BIAS), "no bias": (twt.linear, X, W),
    "activation": (lambda *x: twt.linear(*x, activation="gelu"), X, W, BIAS),
    "rows": (twt.linear, STACKS[0], W, BIAS), "bmm": (twt.bmm, *STACKS),
    "bf16": (twt.linear, X.bfloat16(), W.bfloat16()),
    "einsum": (lambda *x: tw.einsum("ij,kj->ik", *x), X, W),
    "einsum of stacks": (lambda *x: tw.einsum("bij,bjk->bik", *x), *STACKS),
    "einsum of three": (lambda *x: tw.einsum("ij,kj,k->i", *x), X, W, BIAS),
    "a number": (lambda *x: tw.einsum("ij,ij->", *x), X, X.flip(0)),
    "dot products": (lambda *x: tw.einsum("abc,abc->a", *x), STACKS[0], STACKS[0].flip(0)),
}


@pytest.fixture
def repeated(monkeypatch):
    """Calls that were repeated: a list of True."""
    found, run_recorded = [], tensor_repeats.run_recorded

    def spied(how, tensors, out=None):
        x = run_recorded(how, tensors, out)
        if x is not None and how[0] != KERNEL:          # which torch's dispatcher has called
            found.append(True)
        return x
    monkeypatch.setattr(tensor_repeats, "run_recorded", spied)
    engine.forget()
    tw.matmul(torch.randn(9, 8), torch.randn(8, 7))     # the first product of a process is not remembered
    return found


@pytest.mark.parametrize("name", CALLS)
def test_the_same_bits_for_other_tensors(name, repeated, monkeypatch):
    call, *tensors = CALLS[name]
    for _ in range(3):
        tensors = [x.clone() for x in tensors]
        wanted = call(*tensors)
    assert len(repeated) >= 1
    repeated.clear()
    for i in range(3):
        others = [torch.roll(x, i, -1) for x in tensors]
        with monkeypatch.context() as patch:
            patch.setattr(tensor_repeats, "run_recorded", lambda *_: None)
            wanted = call(*others)
        assert len(repeated) == i
        found = call(*others)
        assert len(repeated) == i + 1
        assert torch.equal(found, wanted)
        assert found.is_contiguous()


def test_einsum_sees_what_differs():
    """Strides, offsets, formats, results given, gradients: exact results of numbers that each call changes."""
    pick = random.Random(1)

    def tensor(*sizes, dtype):
        whole = torch.randint(-3, 4, [2*n for n in sizes]).to(dtype)
        axes = [slice(o, o + n) if pick.random() < 0.5 else slice(o, o + 2*n, 2) for n in sizes
                for o in (pick.randint(0, 1),)]
        found = whole[tuple(axes)][tuple(slice(n) for n in sizes)]
        return found.contiguous() if pick.random() < 0.5 else found
    for text, *sizes in (("ij,jk->ik", (5, 7), (7, 3)), ("bij,bkj->bik", (2, 5, 7), (2, 3, 7)),
                         ("ij,j->i", (5, 7), (7,)), ("i,i->", (7,), (7,)), ("ab,ac->abc", (3, 4), (3, 5)),
                         ("ij,jk,kl->il", (3, 4), (4, 5), (5, 2))):
        for i in range(24):
            dtype = pick.choice([torch.float32, torch.float64, torch.int64])
            given = [tensor(*each, dtype=dtype) for each in sizes]
            wanted = torch.einsum(text, *(x.double() for x in given))
            out = tensor(*wanted.shape, dtype=dtype) if i % 3 == 1 else None
            found = tw.einsum(text, *given, out=out)
            assert type(found) is torch.Tensor
            assert out is None or found is out
            assert found.dtype == dtype
            assert torch.equal(found.double(), wanted), (text, i)
    x = torch.ones(4, 4)
    for _ in range(4):
        tw.einsum("ij,jk->ik", x, x + 1)
    tw.einsum("ij,jk->ik", x, 2*torch.eye(4), out=x)
    tw.einsum("ij,jk->ik", x, 2*torch.eye(4), out=x)            # which is one of its operands
    assert torch.equal(x, torch.full((4, 4), 4.0))
    with pytest.raises(ValueError, match="requires a gradient"):
        tw.einsum("ij,jk->ik", x.requires_grad_(), 2*torch.eye(4))


def test_what_differs_is_another_call(repeated):
    def times(a, b):
        """How often one call of two was repeated, with the right result."""
        repeated.clear()
        found = twt.mm(a, b)
        assert torch.allclose(found.float(), a.float() @ b.float(), rtol=2e-2, atol=2e-2)
        return len(repeated)

    a, b = X, W.t()
    for _ in range(3):
        twt.mm(a, b)
    assert times(a, b)
    with tw.threads(1 + tw.get_num_threads()):
        assert not times(a, b)
    wide, odd = torch.randn(24, 41), torch.randn(24*40 + 1)
    for x in (a.bfloat16(), a[:, ::1].clone().t().contiguous().t(), wide[:, 1:], odd[1:].view(24, 40), a[:20]):
        assert not times(x, b.to(x.dtype))
    assert times(a, b)
    engine.forget()
    assert not times(a, b)


def test_a_function_of_two_products_is_repeated_with_new_memory_between_them(repeated):
    ran = []

    def twice(x, w, v):
        ran.append(True)
        between = torch.empty(x.shape[0], w.shape[1])
        tensor_repeats.writing(lambda: tw.matmul(x, w, between), between)
        return tw.matmul(between, v)
    for _ in range(6):
        given = torch.randn(24, 40), torch.randn(40, 30), torch.randn(30, 9)
        found = tensor_repeats.call(twice, given, ("twice",), given)
        assert torch.allclose(found, given[0] @ given[1] @ given[2], atol=1e-3)
    assert 1 <= len(ran) <= 3
    assert not repeats.watch.temporaries        # which would keep memory


def test_a_copy_whose_memory_becomes_the_results_is_not_taken_for_the_result(repeated):
    """As torch's allocator gives a freed copy of an operand out again."""
    def twice(x, w, v):
        copy, between = x.flip(0), torch.empty(x.shape[0], w.shape[1])
        tensor_repeats.writing(lambda: tw.matmul(copy, w, between), between)
        return tw.matmul(between, v, copy)
    for _ in range(5):
        given = torch.randn(24, 40), torch.randn(40, 30), torch.randn(30, 40)
        wanted = given[0].flip(0) @ given[1] @ given[2]
        assert torch.allclose(tensor_repeats.call(twice, given, ("copy",), given), wanted, atol=1e-3)


def test_a_function_whose_first_step_is_no_record_is_not_repeated(repeated):
    def twice(x, w):
        double = torch.empty_like(x)
        tensor_repeats.writing(lambda: torch.mul(x, 2, out=double), double)
        return tw.matmul(double, w)
    for _ in range(4):
        given = torch.randn(24, 40), torch.randn(40, 30)
        found = tensor_repeats.call(twice, given, ("double",), given)
        assert torch.allclose(found, 2 * given[0] @ given[1], atol=1e-3)


def test_the_default_device_of_torch_is_no_mode_that_watches(repeated):
    with torch.device("cpu"):
        for _ in range(4):
            twt.mm(X, W.t())
    assert repeated


def test_gradients(repeated):
    w = torch.nn.Parameter(W.clone())
    with torch.no_grad():
        for _ in range(3):
            twt.linear(X, w)
        assert repeated
    repeated.clear()
    y = twt.linear(X, w)
    assert not repeated
    y.sum().backward()
    assert torch.allclose(w.grad, X.sum(0).expand(16, 40), atol=1e-4)
    x = X.clone().requires_grad_()
    twt.linear(x, w.detach()).sum().backward()
    assert torch.allclose(x.grad, W.sum(0).expand(24, 40), atol=1e-4)
    assert not repeated
    twt.linear(X, w.detach())
    twt.linear(X, w.detach())
    assert not twt.linear(X, w.detach()).requires_grad


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function._schema.name)
        return function(*args, **(kwargs or {}))


class Called(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.functions = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.functions += [function] * (function is ops.mm_operator)
        return function(*args, **(kwargs or {}))


def test_who_wants_to_see_the_operator_sees_it(repeated):
    b = W.t()
    for _ in range(3):
        twt.mm(X, b)
        tw.matmul(X, b)
    repeated.clear()
    with Seen() as seen:
        for _ in range(3):
            twt.mm(X, W.t())
        assert seen.names.count("tilewright::mm") == 3
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):
            assert twt.mm(X, W.t()).dtype == torch.bfloat16
            assert twt.mm(X.bfloat16(), W.t().bfloat16()).dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.float16):
        assert twt.mm(X.bfloat16(), W.t().bfloat16()).dtype == torch.float16
    with Called() as called:
        twt.mm(X, W.t())
        assert called.functions == [ops.mm_operator]
    with torch.profiler.profile() as profile:
        twt.mm(X, W.t())
    assert any(event.name == "tilewright::mm" for event in profile.events())
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as fake:
        for x, w in ((fake.from_tensor(X), fake.from_tensor(b)), (X, b)):
            assert isinstance(twt.mm(x, w), torch._subclasses.FakeTensor)
            assert isinstance(tw.matmul(X, b), torch._subclasses.FakeTensor)
    assert twt.mm(X.to("meta"), W.t().to("meta")).is_meta
    traced = torch.fx.experimental.proxy_tensor.make_fx(lambda a, b: twt.mm(a, b))(X, W.t())
    assert ops.mm_operator in [node.target for node in traced.graph.nodes]
    assert not repeated
    with torch.inference_mode():
        for _ in range(3):
            assert twt.mm(X, W.t()).is_inference()
    assert repeated
    assert not twt.mm(X, W.t()).is_inference()


def test_without_guards(monkeypatch, repeated):
    """A torch that lacks them: the long way, every time."""
    monkeypatch.setattr(tensor_repeats, "_guards", None)
    assert tensor_repeats._torch is torch
    for _ in range(3):
        assert torch.allclose(twt.mm(X, W.t()), X @ W.t(), atol=1e-4)
    assert not repeated
