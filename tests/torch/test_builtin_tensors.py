"""torch's tensors on the CPU in the emitted builtin: calls are repeated without Python, and only where all is alike."""

from __future__ import annotations

import pytest

import tilewright as tw
from tests.helpers.counted import Counted
from tilewright.api.builtin_repeats import Repeats
from tilewright.kernels.cpu.abi import RUNNING
from tilewright.runtime.cpu import engine, exchange

torch = pytest.importorskip("torch", reason="torch is not installed: there are no tensors")

from torch.autograd import forward_ad  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402


@pytest.fixture
def counted():
    if not exchange.reader(torch):
        pytest.skip("this torch does not describe its tensors to C code")
    engine.forget()
    found = Counted()
    for _ in range(2):                      # the first product of a process is not remembered
        found.matmul(torch.randn(9, 8), torch.randn(8, 7))
    return found


def right(counted, *args, **kwargs):
    """How many calls of Python such a call takes, after its result was compared with torch's in float64."""
    before, (a, b) = counted.calls, args[:2]
    out = args[2] if len(args) == 3 else kwargs.get("out")
    a64, b64 = a.double(), b.double()
    wanted = a64 @ (b64.mT if kwargs.get("trans_b") else b64)
    found = counted.matmul(*args, **kwargs)
    assert type(found) is torch.Tensor
    assert out is None or found is out
    assert found.shape == wanted.shape
    assert out is not None or found.is_contiguous()
    low = 2e-2 if found.dtype.itemsize < 4 else 1e-4
    assert torch.allclose(found.double(), wanted, rtol=low, atol=low * (1 + a.shape[-1] ** 0.5))
    return counted.calls - before


def repeated(counted, *args, **kwargs):
    """Whether the fourth call is made without Python."""
    return [right(counted, *args, **kwargs) for _ in range(4)][-1] == 0


def test_an_epilogue_with_tensors(counted):
    a, b, bias, factor = torch.randn(24, 40), torch.randn(40, 16), torch.randn(16), 0.5

    def scaled(x, bias):
        return (x + bias) * factor
    for _ in range(4):
        before = counted.calls
        bias = torch.randn(16)
        found = counted.matmul(a, b, epilogue=scaled, operands={"bias": bias})
        assert torch.allclose(found, (a @ b + bias) * factor, atol=1e-4)
    assert counted.calls == before


def test_no_record_is_made_where_none_is_looked_up(counted, monkeypatch):
    """Inside threads(), the number of threads depends on the caller: making a record in each call took 1 ms."""
    monkeypatch.setattr(Repeats, "_remember", lambda *_: pytest.fail("a record was made"))
    with tw.threads(1):
        assert not repeated(counted, torch.randn(24, 40), torch.randn(40, 16))


def test_each_difference_is_another_call(counted):
    a, b = torch.randn(24, 40), torch.randn(40, 16)
    assert repeated(counted, a, b)
    odd, wide = torch.randn(24*40 + 1), torch.randn(24, 41)
    others = (a.double(), b.double()), (wide[:, 1:], b), (a[:20], b), (a.numpy(), b.numpy())
    for x, y in others:
        before = counted.calls
        assert counted.matmul(x, y).dtype == x.dtype
        assert counted.calls == before + 1
    assert right(counted, odd[1:].view(24, 40), b) == 0                  # another address alone
    with tw.threads(1 + tw.get_num_threads()):
        assert right(counted, a, b) == 1
    unaligned = torch.frombuffer(bytearray(4*24*40 + 1), dtype=torch.float32, offset=1).view(24, 40)
    for _ in range(3):
        assert right(counted, unaligned.copy_(a), b) == 1
    assert right(counted, a, b) == 0


def test_operands_that_are_not_plain(counted):
    """Mixed with NumPy's, lazily conjugated, of a subclass, on another device: Python decides."""
    a, b = torch.randn(24, 40, dtype=torch.complex64), torch.randn(40, 16, dtype=torch.complex64)
    for _ in range(4):
        assert torch.allclose(counted.matmul(a, b), a @ b, atol=1e-4)
    for _ in range(4):
        before = counted.calls
        for x, y in ((a.conj(), b), (a, b.conj()), (torch.nn.Parameter(a, requires_grad=False), b)):
            assert torch.allclose(counted.matmul(x, y), x @ y, atol=1e-4)
        assert counted.calls == before + 3
    for x, y in ((a, b.numpy()), (a.numpy(), b)):
        for _ in range(3):
            before = counted.calls
            found = torch.as_tensor(counted.matmul(x, y))
            assert torch.allclose(found, torch.as_tensor(x) @ torch.as_tensor(y), atol=1e-4)
            assert counted.calls == before + 1
    with pytest.raises(TypeError):
        counted.matmul(a, b.to("meta"))
    with pytest.raises(TypeError, match="sparse"):
        counted.matmul(a.real.contiguous().to_sparse(), b.real.contiguous())


def test_results_that_share_memory(counted):
    a, other = torch.randn(24, 24), torch.randn(24, 24)
    assert repeated(counted, a, other, torch.empty(24, 24))
    shared = torch.randn(30, 24)
    wanted = shared[:24].double() @ other.double()
    before = counted.calls
    counted.matmul(shared[:24], other, shared[4:28])                     # which begins within a
    assert torch.allclose(shared[4:28].double(), wanted, atol=1e-4)
    assert counted.calls == before + 1
    bias = torch.randn(24, 24)
    for _ in range(4):                                                   # an operand that is the result
        wanted = a @ other + bias
        found = counted.matmul(a, other, bias, epilogue=lambda x, bias: x + bias, operands={"bias": bias})
        assert found is bias
        assert torch.allclose(bias, wanted, atol=1e-3)


def test_gradients(counted):
    """Tensors that ask for gradients are refused as in a first call, and repeated by no record of others."""
    a, b = torch.randn(24, 40), torch.randn(40, 16)
    assert repeated(counted, a, b)
    x = a.clone().requires_grad_()
    with pytest.raises(ValueError, match="requires a gradient"):
        counted.matmul(x, b)
    with torch.no_grad():
        assert right(counted, x, b) == 1
    with pytest.raises(ValueError, match="requires a gradient"):
        counted.matmul(x, b)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(a, torch.ones_like(a))
        with pytest.raises(ValueError, match="tangent"):
            counted.matmul(dual, b)
    assert right(counted, a, b) == 0


class Seen(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_the_state_of_a_thread(counted):
    a, b = torch.randn(24, 40), torch.randn(40, 16)
    assert repeated(counted, a, b)
    before = counted.calls
    with Seen():
        counted.matmul(a, b)
    assert counted.calls == before + 1
    with torch.inference_mode():
        first = counted.matmul(a, b)
        assert first.is_inference()
        for _ in range(3):
            assert counted.matmul(a, b).is_inference()
    assert not counted.matmul(a, b).is_inference()
    before = counted.calls
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(counted.matmul(a, b), first)
    assert counted.calls == before + 1
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        assert isinstance(tw.matmul(a, b), torch._subclasses.FakeTensor)
    assert right(counted, a, b) == 0


def test_without_the_function(monkeypatch):
    """A torch that does not describe its tensors to C code: every call goes through Python."""
    monkeypatch.setattr(exchange, "reader", lambda torch: 0)
    engine.forget()
    counted, a, b = Counted(), torch.randn(24, 40), torch.randn(40, 16)
    assert [right(counted, a, b) for _ in range(4)] == [1] * 4


def test_references(counted):
    """No call leaves a reference behind."""
    import sys
    a, b, out = torch.randn(24, 40), torch.randn(40, 16), torch.empty(24, 16)
    for _ in range(4):
        counted.matmul(a, b)
        counted.matmul(a, b, out)
    before = [sys.getrefcount(x) for x in (a, b, out, True, 0)]
    for _ in range(1000):
        counted.matmul(a, b)
        counted.matmul(a, b, out)
    assert all(abs(sys.getrefcount(x) - y) < 900 for x, y in zip((a, b, out, True, 0), before))
    assert counted.entry._word(RUNNING).value == 0           # else records that were replaced are never given up


def test_a_call_that_cannot_be_recorded(counted):
    """It is looked at once; a call with other keywords that comes down to the same is recorded all the same."""
    a, b = torch.randn(24, 40), torch.randn(40, 16)
    for _ in range(3):
        assert torch.allclose(counted.matmul(a, b, beta=0), a @ b, atol=1e-4)
    assert len(counted.entry.repeats.refused) == 1
    assert repeated(counted, a, b)
    x = a.clone().requires_grad_()
    c, d = torch.randn(11, 40), torch.randn(40, 16)
    with torch.no_grad():
        counted.matmul(x[:11], d)
    assert repeated(counted, c, d)
