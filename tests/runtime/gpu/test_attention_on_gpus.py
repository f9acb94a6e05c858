"""A call of attention on a GPU's stream: maps, offsets, pages, workspace, by the fake driver and the simulator."""

from __future__ import annotations

from functools import partial

import ml_dtypes
import numpy as np
import pytest

from tests.helpers.attention import checked, reference
from tests.helpers.gpus import aligned, machine
from tilewright.rules.attending import Asked
from tilewright.runtime.gpu import attention

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


def attended(on, arrays, how, given=None):
    """Result and logarithms of sums of a call with arrays on the device."""
    there = {name: on.array(aligned(x)) for name, x in arrays.items()}
    found = attention.attention(on.engine, there, Asked(**how, return_lse=True), given)
    on.finish()
    return [x.host for x in found]


def check(monkeypatch, arrays, chip="sm_90a", **how):
    on = machine(monkeypatch, chip)
    out, lse = attended(on, arrays, how)
    want, sums = (x.reshape(y.shape) for x, y in zip(reference(checked(**arrays, **how)), (out, lse)))
    seen = sums > -np.inf
    near = 2.0**-4 if arrays["q"].dtype == E4M3 else 2.0**-7            # powers are rounded to 4 bits, to 8
    assert apart(out, want) <= near
    np.testing.assert_allclose(lse[seen], sums[seen], atol=1e-4)


def apart(out, want):
    """The norm of the difference over that of what is wanted, of the head with the largest: an error that is large
    beside values of V, and not beside results, which are means of many, is none that the largest element shows."""
    pairs = zip(out.astype(np.float64).reshape(-1, *want.shape[-2:]), want.reshape(-1, *want.shape[-2:]))
    return max((np.linalg.norm(x - y) / max(np.linalg.norm(y), 1e-30) for x, y in pairs), default=0)


def normal(*shapes):
    rng = np.random.default_rng(sum(map(sum, shapes)))
    return [rng.standard_normal(shape).astype(BF16) for shape in shapes]


def qkv(*shapes):
    return dict(zip("qkv", normal(*shapes)))


def tokens_first():
    """[sequences, tokens, heads, size] seen with the axes exchanged, as models have them."""
    return {name: x.swapaxes(1, 2) for name, x in qkv((1, 70, 2, 64), (1, 90, 2, 64), (1, 90, 2, 64)).items()}


def beside():
    bias = np.random.default_rng(0).standard_normal((2, 70, 50)).astype(np.float32)
    return qkv((1, 2, 70, 64), (1, 2, 50, 64), (1, 2, 50, 64)) | {
        "bias": bias, "sinks": np.array([0.5, -1], np.float32)}


def ragged():
    return qkv((2, 170, 64), (1, 250, 64), (1, 250, 64)) | {"q_offsets": np.array([0, 3, 3, 140, 170], np.int32),
                                                            "k_offsets": np.array([0, 70, 90, 230, 250], np.int32)}


def pages(queries, page):
    each = -(-200 // page)
    table = np.random.default_rng(page).permutation(4 * each)[:3 * each].reshape(3, each).astype(np.int32)
    table[1, 1:] = 1 << 30                  # beyond its length
    found, lengths = qkv((3, 4, queries, 64), (4 * each, 2, page, 64), (4 * each, 2, page, 64)), [150, 1, 190]
    for sequence, length in enumerate(lengths):                         # behind it anything may be
        found["v"][table[sequence, length // page], :, length % page:] = np.nan
    return found | {"table": table, "lengths": np.array(lengths, np.int32)}


def padded(dtype):
    found = {name: x.astype(dtype) for name, x in qkv((2, 2, 140, 64), (2, 1, 200, 64), (2, 1, 200, 64)).items()}
    found["v"][0, :, 130:] = found["v"][1, :, 70:] = np.nan
    return found | {"lengths": np.array([130, 70], np.int32)}


def at_any_distance():
    """What tensor maps cannot describe."""
    return {name: x[..., 1:65] for name, x in qkv((1, 2, 20, 68), (1, 2, 30, 68), (1, 2, 30, 68)).items()}


def eight_bits():
    arrays = {name: x.astype(E4M3) for name, x in qkv((1, 1, 70, 128), (1, 1, 150, 128), (1, 1, 150, 128)).items()}
    return arrays | {"k_scale": np.full((1, 1), 0.5, np.float32), "v_scale": np.full((1, 1), 2, np.float32)}


CALLS = {
    "window": (lambda: qkv((2, 2, 40, 64), (2, 1, 90, 64), (2, 1, 90, 96)),
               {"causal": "upper left", "window": 30, "softcap": 5.0}),
    "tokens first": (tokens_first, {}), "beside": (beside, {"causal": True}), "ragged": (ragged, {"causal": True}),
    "pages": (partial(pages, 1, 16), {"causal": True}), "long pages": (partial(pages, 2, 256), {"causal": True}),
    "any distance": (at_any_distance, {"scale": -0.2}), "padded": (partial(padded, BF16), {"causal": True}),
    "padded 8 bits": (partial(padded, E4M3), {}), "8 bits": (eight_bits, {"causal": True, "softcap": 3.0})}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CALLS)
def test_calls(monkeypatch, name):
    arrays, how = CALLS[name]
    check(monkeypatch, arrays(), **how)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CALLS)
def test_calls_by_mma(monkeypatch, name):
    """On chips without warpgroups' instructions."""
    arrays, how = CALLS[name]
    check(monkeypatch, arrays(), "sm_89" if "8 bits" in name else "sm_80" if "any" in name else "sm_86", **how)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CALLS)
def test_calls_on_amd(monkeypatch, name):
    arrays, how = CALLS[name]
    check(monkeypatch, arrays(), "gfx950" if "8 bits" in name or "pages" in name else "gfx942", **how)


def test_sizes_and_pages_that_wgmma_has_not(monkeypatch):
    """A multiple of 16, and pages of any length."""
    check(monkeypatch, pages(1, 5) | dict(zip("qkv", normal((3, 4, 1, 80), (160, 2, 5, 80), (160, 2, 5, 48)))))


def test_no_keys(monkeypatch):
    """The result is 0; nothing is read."""
    check(monkeypatch, qkv((1, 2, 20, 64), (1, 2, 0, 64), (1, 2, 0, 64)))


def test_what_no_kernel_does_is_refused(monkeypatch):
    on = machine(monkeypatch, "sm_90a")
    arrays = {name: x.astype(np.float32) for name, x in qkv(*[(1, 1, 4, 64)] * 3).items()}
    with pytest.raises(NotImplementedError, match="bf16 or f16"):
        attended(on, arrays, {})
