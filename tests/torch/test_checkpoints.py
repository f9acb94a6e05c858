"""Weights as files of others have them, put together by hand: layers multiply by the numbers that these formats say."""

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw

torch = pytest.importorskip("torch", reason="torch is not installed: there are no layers")
twt = pytest.importorskip("tilewright.torch")

N, K, GROUP = 16, 128, 32
RNG = np.random.default_rng(0)
Q = RNG.integers(0, 16, (N, K))                                                 # what is stored of 4 bits
SCALES = (RNG.random((N, K // GROUP)) / 64).astype(np.float16)
ZEROS = RNG.integers(0, 16, (N, K // GROUP))
EACH = np.arange(K) // GROUP                                                    # the group of each input
SIGNED = (Q - 8) * SCALES.astype(np.float32)[:, EACH]
BY_ZEROS = (Q - ZEROS[:, EACH]) * SCALES.astype(np.float32)[:, EACH]
AWQ = 0, 2, 4, 6, 1, 3, 5, 7                                                    # which of 8 columns each nibble is


def words(x, order=range(8)):
    """Eight numbers of 4 bits along the last axis as an int32: the first of `order` in the lowest bits."""
    eight = x.reshape(*x.shape[:-1], -1, 8)
    return sum(eight[..., i].astype(np.uint32) << np.uint32(4*at) for at, i in enumerate(order)).view(np.int32)


def eight(x, order=range(8)):
    """And back."""
    found = np.empty((*x.shape, 8), np.uint8)
    for at, i in enumerate(order):
        found[..., i] = x.view(np.uint32) >> np.uint32(4*at) & 15
    return found.reshape(*x.shape[:-1], -1)


def pairs(x):
    return (x[..., ::2] | x[..., 1::2] << 4).astype(np.uint8)


def gguf_q4_0():
    """Blocks of 32 with a scale: bytes of elements i and i + 16, 8 more than they mean."""
    blocks = Q.reshape(N, -1, 32)
    stored = (blocks[..., :16] | blocks[..., 16:] << 4).astype(np.uint8)
    q = np.concatenate((stored & 15, stored >> 4), -1).reshape(N, K) ^ 8
    return tw.Scaled(pairs(q), SCALES, group=32, nibbles="i4"), SIGNED


def gguf_q4_1():
    """The same with a number that is added: a zero point of -number / scale, no whole one."""
    added = RNG.standard_normal(SCALES.shape).astype(np.float32)
    wide = SCALES.astype(np.float32)
    zeros = -added / wide
    return tw.Scaled(pairs(Q), SCALES, zeros, 32, "u4"), (Q.astype(np.float32) - zeros[:, EACH]) * wide[:, EACH]


def gguf_q4_1_with_minima():
    """The same, the number being what is added."""
    added, wide = RNG.standard_normal(SCALES.shape).astype(np.float16), SCALES.astype(np.float32)
    return tw.Scaled(pairs(Q), SCALES, None, 32, "u4", added), Q * wide[:, EACH] + added.astype(np.float32)[:, EACH]


def gguf_q8_0():
    q = RNG.integers(-127, 128, (N, K)).astype(np.int8)
    return tw.Scaled(q, SCALES, group=32), q * SCALES.astype(np.float32)[:, EACH]


def gptq():
    """Words along the inputs, zero points less 1 along the outputs, all transposed."""
    qweight, qzeros = words(Q).T, words((ZEROS - 1 & 15).T)
    zeros = (eight(qzeros).T + 1 & 15).astype(np.uint8)
    return tw.Scaled(np.ascontiguousarray(qweight.T).view(np.uint8), SCALES, zeros, GROUP, "u4"), BY_ZEROS


def awq():
    """Words along the outputs, in the order 0 2 4 6 1 3 5 7, all transposed."""
    qweight, qzeros = words(Q.T, AWQ), words(ZEROS.T, AWQ)
    return tw.Scaled(pairs(eight(qweight, AWQ).T), SCALES, eight(qzeros, AWQ).T, GROUP, "u4"), BY_ZEROS


def awq_as_it_lies():
    """The columns of each word in their own order: bytes of two neighbours along the outputs."""
    q = tw.Scaled(pairs(Q.T), SCALES.T, ZEROS.T.astype(np.uint8), GROUP, "u4")
    return q.T, BY_ZEROS


def compressed_tensors():
    """Words along the inputs, 8 more than they mean; scales in bf16."""
    scales = SCALES.astype(ml_dtypes.bfloat16)
    q = words(Q).view(np.uint8) ^ 0x88
    return tw.Scaled(q, scales, group=GROUP, nibbles=("i4", -1, K)), (Q - 8) * scales.astype(np.float32)[:, EACH]


def mxfp4():
    scales = RNG.integers(120, 130, (N, K // 32)).astype(np.uint8)
    numbers = Q.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    q = tw.Quantized(pairs(Q), scales, (N, K), "mxfp4")
    return q, numbers * np.ldexp(np.float32(1), scales.astype(int) - 127)[:, EACH]


def nvfp4():
    scales = RNG.random((N, K // 16)).astype(ml_dtypes.float8_e4m3fn)
    numbers = Q.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    q = tw.Quantized(pairs(Q), scales.view(np.uint8), (N, K), "nvfp4", tensor_scale=0.5)
    return q, numbers * scales.astype(np.float32).repeat(16, 1) * np.float32(0.5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("read", [gguf_q4_0, gguf_q4_1, gguf_q4_1_with_minima, gguf_q8_0, gptq, awq, awq_as_it_lies,
                                  compressed_tensors, mxfp4, nvfp4], ids=lambda f: f.__name__)
def test_layers_of_checkpoints(read):
    weight, numbers = read()
    assert np.array_equal(tw.dequantize(weight), numbers.astype(np.float32))
    bias = torch.randn(N)
    layer = twt.WeightLinear.from_weight(weight, bias)
    assert np.array_equal(layer.dequantized().numpy(), numbers.astype(np.float32))
    for rows in (1, 5, 40):
        x = torch.randn(rows, K)
        assert torch.allclose(layer(x), x @ torch.from_numpy(numbers.astype(np.float32)).t() + bias, atol=1e-4)
        assert np.allclose(tw.matmul(x.numpy(), weight, trans_b=True), (layer(x) - bias).numpy(), atol=1e-4)
    if read is not gguf_q4_1:
        assert np.allclose(tw.matmul(x.numpy(), tw.pack(weight.T)), (layer(x) - bias).numpy(), atol=1e-4)
    order = RNG.permutation(K)
    ordered = twt.WeightLinear.from_weight(weight, bias, order)
    assert torch.equal(ordered(x), layer(x[:, order]))
    assert torch.equal(ordered.dequantized()[:, order], layer.dequantized())
    other = twt.WeightLinear.from_weight(read()[0], torch.zeros(N))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))


def test_what_is_no_weight():
    (q, _), layer = gguf_q8_0(), twt.WeightLinear.from_weight

    def scaled(elements=pairs(Q), scales=SCALES, zeros=None, nibbles="i4", minima=None):  # noqa: B008
        return lambda: tw.Scaled(elements, scales, zeros, 32, nibbles, minima)
    names = "nibbles must be one of i4, u4, e2m1, or"
    for call, error, words in (
        (lambda: layer(q.T), ValueError, r"weight must be \[outputs, inputs\] with scales along"),
        (lambda: layer(np.ones((2, 2))), TypeError, "weight must be a tilewright.Scaled or Qua"),
        (lambda: layer(q, torch.ones(3)), ValueError, r"bias must have the shape \(16,\), not"),
        (lambda: layer(q, order=[0, 1]), ValueError, "order must be a permutation of the 128 inputs"),
        (scaled(zeros=ZEROS.astype("i1"), minima=SCALES), TypeError, "minima must be None beside zero points"),
        (scaled(nibbles="e2m1", minima=SCALES), TypeError, "minima must be None .* that are no integers"),
        (scaled(minima=SCALES[:, 1:]), ValueError, "minima must be .* with the shape of scales"),
        (scaled(nibbles="i8"), TypeError, names), (scaled(nibbles=4), TypeError, names),
        (scaled(nibbles=("i4", -1)), TypeError, names),
        (scaled(nibbles=("i4", -1, 99)), ValueError, "elements must have 50 bytes for 99 numbers"),
        (scaled(pairs(Q).view(np.int8)), TypeError, "elements that share bytes must be of i4"),
        (scaled(scales=SCALES.astype("f8")), TypeError, "scales must be float32, float16 or bfloat16, not float64"),
        (scaled(zeros=ZEROS, nibbles="u4"), TypeError, "zeros beside elements of u4 must be of u8, float32"),
    ):
        with pytest.raises(error, match=words):
            call()
