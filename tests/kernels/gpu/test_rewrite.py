"""The pass that writes an operand anew, in the simulator: layouts, terms, zeros after k, and what cannot be split."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.compiled.compile import compiled
from tilewright.kernels.gpu.rewrite import emit_rewrite, tiles
from tilewright.plans.words import TERMS

BF16 = ml_dtypes.bfloat16


def tf32(x):
    bits = x.view(np.int32)
    return ((bits + (bits >> 13 & 1) + 0xFFF) & -0x2000).view(np.float32)


def terms(x, split):
    """As plans.words.TERMS says, in float32."""
    how, found, left = TERMS[split], [], x
    for _ in range(how.count):
        found.append(tf32(left) if how.format == "tf32" else left.astype(BF16).astype(np.float32))
        left = left - found[-1]
    return np.stack(found, -3)


def rewritten(x, split="", along_k=True, name="f32", target="sm_90a"):
    """The target of a stack of matrices [rows, k] that lie as ALONG_K says, with room after their rows; the report."""
    batch, rows, depth = x.shape
    kept = np.ascontiguousarray(x if along_k else x.swapaxes(1, 2))
    if kept.dtype == BF16:
        kept = kept.view(np.int16)
    dtype = np.float32 if split == "tf32_x3" else np.int16 if split else kept.dtype
    ld = -(-depth * np.dtype(dtype).itemsize // 128) * 128 // np.dtype(dtype).itemsize
    found = np.full((batch, TERMS[split].count if split else 1, rows, ld), 77, dtype)
    special = np.zeros(1, np.int32)
    function = emit_rewrite("b", name, split, along_k, batch > 1, WARP=tw.target(target).warp)
    args = [rows, depth, kept, kept.shape[2], found, ld]
    args += [kept[0].size] * (batch > 1) + [special] * bool(split)
    report = tw.simulate(function, *args, grid=batch * tiles(rows, ld), target=target)
    assert not found[..., depth:].any()
    found = found[..., :depth]
    if split and dtype is np.int16:
        found = (found.astype(np.int32) << 16).view(np.float32)
    return found, special[0], report


@pytest.mark.parametrize("along_k", [True, False])
@pytest.mark.parametrize(("shape", "split", "name", "target"), [
    ((1, 67, 130), "bf16_x6", "f32", "sm_90a"), ((2, 1, 3), "bf16_x3", "f32", "sm_75"),
    ((2, 65, 70), "tf32_x3", "f32", "sm_80"), ((1, 70, 1), "", "f32", "gfx942"), ((2, 66, 67), "", "bf16", "sm_90a"),
    ((1, 130, 65), "", "i8", "sm_90a")])
def test_values(along_k, shape, split, name, target):
    rng = np.random.default_rng(3)
    x = rng.integers(-100, 100, shape) if not split else np.ldexp(rng.standard_normal(shape),
                                                                  rng.integers(-100, 100, shape))
    x = x.astype(tw.formats.get(name).dtype)
    found, special, _ = rewritten(x, split, along_k, name, target)
    wanted = terms(x, split) if split else x.view(found.dtype)[:, None]
    np.testing.assert_array_equal(found, wanted)
    assert not special
    if split.startswith("bf16") and TERMS[split].count == 3:
        np.testing.assert_array_equal(found.astype(np.float64).sum(1), x)


@pytest.mark.parametrize("along_k", [True, False])
def test_both_sides_are_coalesced(along_k):
    """Every sector of memory once, both ways, for whole tiles."""
    *_, report = rewritten(np.ones((1, 128, 128), np.float32), "bf16_x6", along_k)
    for array in ("b", "target"):
        traffic = report.of(array, space="global")
        assert traffic.efficiency == 1
        assert traffic.moved == traffic.lines


@pytest.mark.parametrize(("split", "x", "special"), [
    ("bf16_x6", np.inf, 1), ("bf16_x6", -np.inf, 1), ("bf16_x6", np.nan, 1), ("bf16_x6", 3.4e38, 1),
    ("bf16_x6", 3.38e38, 0), ("bf16_x6", -1e-45, 0), ("tf32_x3", 3.4e38, 0), ("tf32_x3", 3.4028e38, 1)])
def test_what_cannot_be_split(split, x, special):
    data = np.ones((1, 5, 70), np.float32)
    data[0, 3, 67] = x
    assert rewritten(data, split)[1] == special


def test_resources():
    used = [compiled(emit_rewrite("a", "f32", split, along_k), tw.target("sm_90a")).resources
            for split in TERMS for along_k in (True, False)]
    assert all(x.spills == 0 and x.registers <= 64 for x in used)
