"""Gradients of attention on a GPU's stream: launches, maps, offsets, copies, by the fake driver and the simulator."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.helpers.attention import checked, gradients_of, reference
from tests.helpers.gpus import aligned, machine
from tilewright.rules.attending import Asked
from tilewright.runtime.gpu import attention_backward
from tilewright.runtime.gpu.engine import NVIDIA

BF16 = ml_dtypes.bfloat16


def check(monkeypatch, arrays, g, deterministic=True, by_lse=False, **how):
    on, call = machine(monkeypatch, "sm_90a"), checked(**arrays, **how)
    out, lse = reference(call)
    g_lse = np.random.default_rng(3).standard_normal(lse.shape).astype(np.float32) if by_lse else None
    results = {"out": out.astype(g.dtype).reshape(g.shape), "by_out": g,
               "lse": lse.astype(np.float32).reshape(g.shape[:-1]),
               "by_lse": None if g_lse is None else g_lse.reshape(g.shape[:-1])}
    there, beside = ({name: x if x is None else on.array(aligned(x)) for name, x in some.items()}
                     for some in (arrays, results))
    found = attention_backward.gradients(NVIDIA, there, Asked(**how), beside, deterministic)
    on.finish()
    want = gradients_of(call, g[(None,) * (4 - g.ndim)], g_lse)
    for x, y, name in zip(found, want, "qkv", strict=True):
        assert x.host.shape == arrays[name].shape
        apart = np.linalg.norm(x.host.astype(np.float64).reshape(y.shape) - y)
        assert apart <= 5e-3 * np.linalg.norm(y), name


def normal(*shapes, dtype=BF16):
    rng = np.random.default_rng(sum(map(sum, shapes)))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def case(queries, keys, heads=2, kv_heads=1, size=64, value_size=None, sequences=1, dtype=BF16):
    value_size = value_size or size
    *qkv, g = normal((sequences, heads, queries, size), (sequences, kv_heads, keys, size),
                     (sequences, kv_heads, keys, value_size), (sequences, heads, queries, value_size), dtype=dtype)
    return dict(zip("qkv", qkv)), g


def tokens_first():
    """[sequences, tokens, heads, size] seen with the axes exchanged, as models have them, and elements far apart."""
    arrays, g = case(70, 90)
    laid = {name: np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for name, x in arrays.items()}
    wide = np.zeros((*g.shape[:-1], 2*g.shape[-1]), g.dtype)
    wide[..., ::2] = g
    return laid, wide[..., ::2]


def ragged():
    arrays = dict(zip("qkv", normal((2, 170, 64), (1, 330, 64), (1, 330, 64))))
    offsets = {"q_offsets": [0, 3, 3, 140, 168], "k_offsets": [0, 70, 90, 300, 300]}
    return arrays | {name: np.array(x, np.int32) for name, x in offsets.items()}, normal((2, 170, 64))[0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("given", "how"), [
    (lambda: case(40, 150, sequences=2), {"causal": True, "by_lse": True}),
    (tokens_first, {"window": (20, 5)}), (ragged, {"causal": True}), (ragged, {"deterministic": False, "by_lse": True}),
    (lambda: case(40, 33, size=128, value_size=96, dtype=np.float16), {"causal": "upper left", "scale": 0.2}),
], ids=["causal", "tokens first", "ragged causal", "ragged", "f16"])
def test_calls(monkeypatch, given, how):
    check(monkeypatch, *given(), **how)


@pytest.mark.parametrize(("queries", "keys"), [(0, 20), (20, 0)])
def test_nothing_to_see(monkeypatch, queries, keys):
    check(monkeypatch, *case(queries, keys))


def test_what_no_kernel_does_is_refused(monkeypatch):
    for arrays, how, why in ((case(4, 4, size=256), {}, "256"), (case(4, 4), {"softcap": 2.0}, "soft caps"),
                             (case(4, 4, dtype=np.float32), {}, "bf16 or f16")):
        with pytest.raises(NotImplementedError, match=why):
            check(monkeypatch, *arrays, **how)
