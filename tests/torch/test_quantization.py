"""Weights quantised by torch's operations: the bits of tilewright.quantize, and what they mean."""

import numpy as np
import pytest

import tilewright as tw

torch = pytest.importorskip("torch", reason="torch is not installed: there are no tensors to quantise")
pytest.importorskip("tilewright.torch")

from tilewright.torch import quantization  # noqa: E402

INTEGERS = [("i8", None, False), ("i8", 32, False), ("u8", None, True), ("u8", 48, True), ("i4", 32, False),
            ("i4", 128, False), ("i4", 17, False), ("u4", 64, True), ("u4", 7, True)]
CASES = [*INTEGERS, *((name, None, False) for name in quantization.BLOCKS)]


def weights(dtype, k=130):
    """Rows of many sizes: ties, zeros, subnormal numbers, and numbers up to the largest of the dtype."""
    torch.manual_seed(0)
    x = torch.randn(64, k)
    top = float(torch.finfo(dtype).max)
    x[1] = 0
    x[2] = -0.0
    x[3] = torch.arange(k) / 8 - 4
    x[4] *= 1e-30
    x[5] *= torch.finfo(dtype).tiny
    x[6], x[7] = x[6].abs(), -x[7].abs()
    x[8] = torch.randint(-16, 17, (k,)) * 0.25
    x[9] = torch.exp2(torch.randint(-30, 16, (k,)).float())
    x[10, :33] = 0
    x[11] = x[11].sign() * top
    x[12] *= 1e4
    return x.to(dtype)


def fields(q):
    return [q.elements, q.scales, *([] if getattr(q, "zeros", None) is None else [q.zeros])]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_bits_of_quantize(case, dtype, monkeypatch):
    format, group, zero_points = case
    blocks = format in quantization.BLOCKS
    monkeypatch.setattr(quantization, "AT_ONCE", 500)      # some rows at a time
    for x in (weights(dtype), weights(dtype)[12:].t()[:, :51], weights(dtype, 1)[:7], weights(dtype) * 0):
        options = {} if blocks else {"group": group, "zero_points": zero_points}
        wanted = tw.quantize(x.float().numpy(), format, -1, **options)
        with pytest.MonkeyPatch.context() as none:
            none.setattr(tw, "quantize", None)                  # by torch's operations alone
            made = quantization.quantize(x, *case)
        found = {name: made[name].numpy() for name in ("elements", "scales", "zeros") if made[name] is not None}
        for (name, y), like in zip(found.items(), fields(wanted), strict=True):
            assert y.dtype == like.dtype
            assert np.array_equal(y, like, equal_nan=True), name
        assert made["tensor_scale"] == getattr(wanted, "tensor_scale", 1.0)
        numbers = quantization.dequantize(
            made["elements"], made["scales"], made["zeros"], None, format, group or 0, made["tensor_scale"], x.shape[1])
        assert np.array_equal(numbers.numpy(), tw.dequantize(wanted))


def test_what_the_host_quantises():
    """Numbers that are not finite and f64 have tilewright.quantize's rules and errors."""
    for strange in (float("nan"), float("inf"), -float("inf")):
        x = torch.randn(3, 64).bfloat16()
        x[1, 5] = strange
        with pytest.raises(ValueError, match="x holds"):
            quantization.quantize(x, "i4", 32)
        wanted = tw.quantize(x.float().numpy(), "mxfp8")
        made = quantization.quantize(x, "mxfp8")
        assert np.array_equal(made["elements"], wanted.elements)
        assert np.array_equal(made["scales"], wanted.scales)
    x = torch.randn(3, 64, dtype=torch.float64)
    assert np.array_equal(quantization.quantize(x, "i8")["elements"], tw.quantize(x.numpy(), "i8").elements)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn], ids=str)
def test_quantize_takes_tensors(dtype):
    x = torch.randn(5, 64).to(dtype).t()
    for format in ("i8", "mxfp4"):
        found, wanted = tw.quantize(x.requires_grad_(), format), tw.quantize(x.detach().float().numpy(), format)
        for y, like in zip(fields(found), fields(wanted)):
            assert np.array_equal(y, like)


@pytest.mark.parametrize("rows", [1, 17])
def test_products_of_tensors_and_weights_can_be_written_to(rows, recwarn):
    """By kernels for few rows and for more: torch warns of memory that is read-only, once in a process."""
    torch.set_warn_always(True)
    x, w = torch.randn(rows, 64), torch.randn(8, 64)
    for format in ("i8", "mxfp4"):
        q = tw.quantize(w.numpy(), format)
        assert tw.matmul(x.numpy(), q, trans_b=True).flags.writeable
        assert torch.allclose(tw.matmul(x, q, trans_b=True), x @ torch.from_numpy(tw.dequantize(q)).t(), atol=1e-4)
    torch.set_warn_always(False)
    assert not [each for each in recwarn if "not writable" in str(each.message)]
