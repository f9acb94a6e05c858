"""What is particular to products of torch's tensors in the host's memory. Values are in tests/products."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.api import tensors
from tilewright.runtime import repeats

torch = pytest.importorskip("torch", reason="torch is not installed: its tensors cannot be multiplied here")


def whole(shape, dtype, seed=0):
    """Whole numbers, of which products are exact in every dtype."""
    found = torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed))
    return found.to(dtype)


def test_memory_is_torchs():
    """Strides are read as they are, results are written through views, and nothing else is touched."""
    whole_a, out = whole((40, 90), torch.float32), torch.full((40, 50), 7.0)
    a, b, view = whole_a[1:31:3, 5:85:2], whole((3, 40), torch.float32, 1).t()[:, :3], out[10:20, ::7][:, :3]
    for _ in range(2):
        assert tw.matmul(a, b, view) is view
    assert torch.equal(view, a @ b)
    out[10:20, ::7][:, :3] = 7.0
    assert (out == 7).all()
    square = whole((9, 9), torch.float32)
    wanted = square @ square.t()
    for _ in range(2):
        twice = square.clone()
        assert torch.equal(tw.matmul(twice, twice.t(), twice), wanted)  # out overlaps both


def test_results_are_found_again_by_what_they_depend_on():
    a, b = whole((33, 64), torch.bfloat16), whole((64, 34), torch.bfloat16)
    assert tw.matmul(a, b).dtype == torch.float32
    assert tw.matmul(a, b, out_dtype="bf16").dtype == torch.bfloat16
    assert tw.matmul(a, b).dtype == torch.float32
    out = torch.empty(33, 34, dtype=torch.float64)
    assert torch.equal(tw.matmul(a, b, out), a.double() @ b.double())
    assert torch.equal(tw.matmul(a, a, trans_b=True, out_dtype="f32"), (a @ a.t()).float())
    x = torch.randn(64, 48)
    one = tw.matmul(x, x, trans_a=True, threads=1)
    assert torch.equal(one, tw.matmul(x, x, trans_a=True, threads=1))


def test_a_call_like_an_earlier_one_makes_no_array(monkeypatch):
    a, b = whole((48, 64), torch.float32), whole((64, 40), torch.float32)
    tw.matmul(b.t(), a.t())                     # the first product of a process is not remembered
    for out in (None, torch.empty(48, 40)):
        tw.matmul(a, b, out)
        with monkeypatch.context() as patch:
            patch.setattr(tensors, "product", lambda *_: pytest.fail("the long way was taken"))
            assert torch.equal(tw.matmul(a + 1, b, out), (a + 1) @ b)


def test_lazy_views():
    z = torch.randn(5, 6, dtype=torch.complex64)
    for x in (z.conj(), z.conj().imag, z.real):
        for _ in range(2):
            y = tw.matmul(x, x.t())
            assert torch.allclose(y, x @ x.t(), atol=1e-5)


def test_options_and_arrays_of_numpy_beside():
    a, b, c = torch.randn(9, 8), torch.randn(8, 7), torch.randn(9, 7)
    wanted = a @ b + c
    assert tw.gemm(1, a, b, 1, c) is c
    assert torch.allclose(c, wanted, atol=1e-5)
    for x, y in ((a, b.numpy()), (a.numpy(), b)):
        found = tw.matmul(x, y)
        assert type(found) is torch.Tensor
        assert torch.allclose(found, a @ b, atol=1e-5)
    out = np.empty((9, 7), np.float32)
    assert tw.matmul(a, b, out) is out
    bias = torch.randn(7).bfloat16()
    for _ in range(2):
        low, top = tw.matmul(a, b, epilogue=lambda acc, bias: (tw.relu(acc + bias), tw.row_max(acc)),
                             operands={"bias": bias}, out_dtype="bf16")
        assert low.dtype == torch.bfloat16
        assert torch.allclose(low.float(), torch.relu(a @ b + bias), atol=0.05)
        assert torch.allclose(top, (a @ b).amax(1), atol=1e-5)


def test_tensors_that_are_refused():
    a = torch.randn(4, 4)
    fake = pytest.importorskip("torch._subclasses").FakeTensorMode()
    with fake:
        nothing = torch.empty(4, 4)
    for x, error, words in (
        (a.clone().requires_grad_(), ValueError, r"b requires a gradient.*tilewright\.torch\.matmul has one"),
        (a.to_sparse(), TypeError, "b is a sparse tensor"),
        (a.to("meta"), TypeError, "b is a tensor on meta"),
        (nothing, TypeError, r"b is torch.*FakeTensor, a subclass of torch\.Tensor with its own __torch_dispatch__"),
    ):
        with pytest.raises(error, match=words):
            tw.matmul(a, x)
    with torch.no_grad():
        assert torch.allclose(tw.matmul(a, a.clone().requires_grad_()), a @ a, atol=1e-5)
    z = torch.randn(4, 4, dtype=torch.complex64)
    with pytest.raises(ValueError, match="out is a lazily conjugated view"):
        tw.matmul(z, z, z.conj())


def test_plans_that_are_chosen_anew_end_what_was_remembered():
    a = whole((50, 60), torch.float32)
    for _ in range(2):
        assert torch.equal(tw.matmul(a, a.t()), a @ a.t())
        assert torch.equal(tw.matmul(a, a.clone().t()), a @ a.t())
    from tilewright.runtime.cpu import engine
    assert repeats.records
    engine.forget()
    assert not repeats.records
    assert torch.equal(tw.matmul(a, a.clone().t()), a @ a.t())


def test_other_functions_take_them_too():
    a, b = whole((4, 6), torch.bfloat16), whole((6, 5), torch.bfloat16)
    wanted = a @ b
    assert torch.equal(tw.matmul(a, tw.pack(b, a="bf16"), out_dtype="bf16"), wanted)
    for _ in range(2):
        found = tw.einsum("ij,jk->ki", a, b, out_dtype="bf16")
        assert torch.equal(found, wanted.t())
        out = torch.empty(4, 5)
        assert tw.einsum(a, [0, 1], b, [1, 2], out=out) is out
        assert torch.equal(out, wanted.float())
    assert torch.equal(tw.tensordot(a, b, 1, out_dtype="bf16"), wanted)
    nearest, index = tw.contract(lambda x, y: (x - y)**2, a, b, reduce="min_argmin")
    distances = (a.float()[:, :, None] - b.float()) ** 2
    assert torch.equal(nearest, distances.amin(1))
    assert torch.equal(index, distances.argmin(1).int())
    groups = tw.grouped_matmul(a, torch.stack([b, -b]), torch.tensor([1, 4]), out_dtype="bf16")
    assert torch.equal(groups, torch.cat([wanted[:1], -wanted[1:]]))


def test_recording(tmp_path):
    from tilewright.api import record

    recorder = record.Recorder(tmp_path / "lines")
    recorded = recorder.recording(tw.matmul, 0)
    a = whole((40, 50), torch.float32)
    for dtype in (torch.float32, torch.bfloat16):
        for _ in range(2):
            recorded(a.to(dtype), a.to(dtype).t())
    recorder.write()
    lines = [line for line in (tmp_path / "lines").read_text().splitlines() if line]
    assert len(lines) == 2
    assert all('"count": 2' in line for line in lines)
    assert '"a": "bf16"' in lines[1]
