"""A call of attention on a GPU's stream: maps, offsets, pages, workspace, by the fake driver and the simulator."""

from __future__ import annotations

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from tests.helpers.attention import checked, reference
from tests.helpers.gpus import aligned, machine
from tilewright.rules.attending import Asked, attending
from tilewright.runtime.gpu import attention
from tilewright.runtime.gpu.engine import NVIDIA

BF16 = ml_dtypes.bfloat16


@pytest.fixture(autouse=True)
def no_maps_of_other_tests():
    attention._maps.cache_clear()


def attended(on, arrays, how):
    """Result and logarithms of sums of a call with arrays on the device."""
    there = {name: on.array(aligned(x)) for name, x in arrays.items()}
    shape = (*arrays["q"].shape[:-1], arrays["v"].shape[-1])
    out, lse = aligned(np.full(shape, np.nan, BF16)), aligned(np.full(shape[:-1], np.nan, np.float32))
    run, looks = NVIDIA.begin(there, {"out": on.array(out), "lse": on.array(lse)})
    with run:
        shadows = {name: looks[name].shadow for name in arrays}
        call = attending(shadows, Asked(**how, return_lse=True), False)
        four = [looks[name].shadow for name in ("out", "lse")]
        if "q_offsets" in arrays:
            four = [x[None] for x in four]
        attention.attend(run, call, *four)
    on.finish()
    return out, lse


def check(monkeypatch, arrays, **how):
    on = machine(monkeypatch, "sm_90a")
    out, lse = attended(on, arrays, how)
    want, sums = (x.reshape(y.shape) for x, y in zip(reference(checked(**arrays, **how)), (out, lse)))
    seen = sums > -np.inf
    assert (abs(out.astype(np.float64) - want) <= 2.0**-6 * abs(arrays["v"].astype(np.float64)).max()).all()
    np.testing.assert_allclose(lse[seen], sums[seen], atol=1e-4)
    return SimpleNamespace(launches=on.machine.launches)


def normal(*shapes):
    rng = np.random.default_rng(sum(map(sum, shapes)))
    return [rng.standard_normal(shape).astype(BF16) for shape in shapes]


@pytest.mark.parametrize("how", [{"causal": True}, {"causal": "upper left", "window": 30}, {"softcap": 5.0}], ids=str)
def test_sequences(monkeypatch, how):
    q, k, v = normal((2, 2, 40, 64), (2, 1, 90, 64), (2, 1, 90, 96))
    check(monkeypatch, {"q": q, "k": k, "v": v}, **how)


def test_tokens_first(monkeypatch):
    """[sequences, tokens, heads, size] seen with the axes exchanged, as models have them."""
    q, k, v = (x.swapaxes(1, 2) for x in normal((1, 70, 2, 64), (1, 90, 2, 64), (1, 90, 2, 64)))
    check(monkeypatch, {"q": q, "k": k, "v": v})


def test_sinks_and_an_array_of_scores(monkeypatch):
    q, k, v, bias = normal((1, 2, 40, 64), (1, 2, 50, 64), (1, 2, 50, 64), (2, 40, 50))
    check(monkeypatch, {"q": q, "k": k, "v": v, "bias": bias.astype(np.float32),
                        "sinks": np.array([0.5, -1], np.float32)}, causal=True)


def test_ragged(monkeypatch):
    q, k, v = normal((2, 170, 64), (1, 250, 64), (1, 250, 64))
    check(monkeypatch, {"q": q, "k": k, "v": v, "q_offsets": np.array([0, 3, 3, 140, 170], np.int32),
                        "k_offsets": np.array([0, 70, 90, 230, 250], np.int32)}, causal=True)


@pytest.mark.parametrize(("queries", "page"), [(1, 16), (2, 256)])
def test_pages(monkeypatch, queries, page):
    rng = np.random.default_rng(page)
    q, k, v = normal((3, 4, queries, 64), (40, 2, page, 64), (40, 2, page, 64))
    table = rng.permutation(40)[:3 * 12].reshape(3, 12).astype(np.int32)
    lengths = np.array([150, 1, 190], np.int32)
    table[1, 1:] = 1 << 30                  # beyond its length
    check(monkeypatch, {"q": q, "k": k, "v": v, "table": table, "lengths": lengths}, causal=True)


def test_what_no_kernel_does_is_refused(monkeypatch):
    on = machine(monkeypatch, "sm_90a")
    q, k, v = (x.astype(np.float32) for x in normal((1, 1, 4, 64), (1, 1, 4, 64), (1, 1, 4, 64)))
    with pytest.raises(NotImplementedError, match="bf16 or f16"):
        attended(on, {"q": q, "k": k, "v": v}, {})
