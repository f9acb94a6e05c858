"""f32 by products of bf16 and tf32 terms, by mma.sync and wgmma: errors, and what cannot be split."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import tilewright as tw
from tilewright.atoms import nvidia
from tilewright.plans.words import TERMS

pytestmark = pytest.mark.sampled

SMALL = {"bf16": "mma 32x32x32 warp=16x16 stages=3 vector=8 vector_c=1",
         "tf32": "mma 32x32x16 warp=16x16 stages=3 vector=4 vector_c=1"}
WARPGROUP = {"bf16": "wgmma 64x64x32 stages=2 warpgroups=1 promote=64",
             "tf32": "wgmma 64x64x16 stages=2 warpgroups=1 promote=32"}
# Elements of each kind of data. The second half of "cancelling" takes away what the first adds up, but for a part in
# 2^12.
KINDS = {
    "uniform": lambda rng, shape: rng.random(shape),
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "wide": lambda rng, shape: np.ldexp(rng.standard_normal(shape), rng.integers(-20, 21, shape)),
    "cancelling": lambda rng, shape: rng.random(shape),
}


def compiled(m, n, k, terms, plan="", target="sm_90a", **more):
    plan = plan or SMALL[TERMS[terms].format]
    return tw.compile(tw.Gemm(m, n, k, **more), target, f"{plan} terms={terms}")


@cache
def data(kind, k):
    """A, B, |A| |B|, A B in float64, and as a chain of multiply-adds in f32 computes it."""
    rng = np.random.default_rng(5)
    a, b = (KINDS[kind](rng, shape).astype(np.float32) for shape in ((32, k), (k, 32)))
    if kind == "cancelling":
        a[:, k // 2:] = -a[:, : k // 2] * (1 + 2.0**-12 * rng.standard_normal((32, k // 2))).astype(np.float32)
        b[k // 2:] = b[: k // 2]
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    chain = np.zeros((32, 32), np.float32)
    for p in range(k):
        chain = (chain + wide_a[:, p, None] * wide_b[p]).astype(np.float32)
    return a, b, np.abs(wide_a) @ np.abs(wide_b), wide_a @ wide_b, chain


def errors(c, kind, k):
    """(rms, largest) in units of 2^-24 |A| |B|."""
    _, _, size, exact, _ = data(kind, k)
    found = np.abs(c - exact) / size * 2**24
    return np.sqrt(np.mean(found**2)), found.max()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("terms", "by"), [("bf16_x3", SMALL), ("bf16_x6", SMALL), ("tf32_x3", SMALL),
                                           ("bf16_x6", WARPGROUP), ("tf32_x3", WARPGROUP)])
def test_errors(terms, by, kind):
    """Smaller than those of f32 multiply-adds but of two bf16, and within the documented bounds."""
    a, b, *_, chain = data(kind, 256)
    kernel = compiled(32, 32, 256, terms, by[TERMS[terms].format])
    rms, largest = errors(kernel.simulate(a, b).result, kind, 256)
    if terms == "bf16_x3":
        assert largest <= 3 * 2**8 + 256 / 16 + 17
        assert rms > 1.3 * errors(chain, kind, 256)[0]  # it does drop something
    else:
        assert largest <= (2 if terms == "bf16_x6" else 6) + 256 / 16 + 17
        assert (rms, largest) < errors(chain, kind, 256)


def cut(self, t, *operands):
    """As tensor cores add up: products and C cut off below 2^-24 of the largest of them, their sum below 24 bits."""
    count_a, count_b, _ = self.registers
    a, b, c = (x.matrix(np.stack(held) if x.type.length > 1 else held[0])[:, 0].astype(np.float64) for x, held in (
        (self.a, operands[:count_a]), (self.b, operands[count_a: count_a + count_b]),
        (self.c, operands[count_a + count_b:])))
    every = np.concatenate([a[..., :, :, None] * b[..., None, :, :], c[..., :, None, :]], axis=-2)

    def below(x, largest):
        unit = np.exp2(np.frexp(largest)[1] - 24.0)
        return np.trunc(x / unit) * unit
    total = below(every, np.abs(every).max(-2, keepdims=True)).sum(-2)
    found = self.c.lanes(below(total, np.abs(total))[:, None])
    return [found[r] for r in range(len(found))]


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_what_tensor_cores_cut_off_does_not_show(monkeypatch, kind):
    monkeypatch.setattr(nvidia.Atom, "_meaning", cut)
    a, b, *_, chain = data(kind, 512)
    c = compiled(32, 32, 512, "bf16_x6").simulate(a, b).result
    assert errors(c, kind, 512)[0] < errors(chain, kind, 512)[0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("m", "n", "k", "layout", "batch", "terms", "plan"), [
    (2, 3, 1, "nn", 1, "bf16_x6", ""), (67, 33, 101, "tt", 2, "bf16_x9", ""), (33, 70, 40, "nt", 1, "tf32_x3", ""),
    (65, 34, 200, "tn", 1, "bf16_x6", f"{SMALL['bf16']} split_k=3"),
    (30, 20, 100, "nn", 1, "bf16_x3", f"{SMALL['bf16']} tail"),
    (70, 130, 101, "nt", 2, "bf16_x9", WARPGROUP["bf16"]), (65, 66, 70, "tn", 1, "tf32_x3", WARPGROUP["tf32"])])
def test_whole_numbers(m, n, k, layout, batch, terms, plan):
    rng = np.random.default_rng(6)
    kernel = compiled(m, n, k, terms, plan, layout=layout, batch=batch)

    def matrix(rows, columns, letter, most):
        x = rng.integers(-most, most, (batch, rows, columns) if letter == "n" else (batch, columns, rows))
        return (x if letter == "n" else x.swapaxes(1, 2)).astype(np.float32)[slice(None) if batch > 1 else 0]
    a, b, c = matrix(m, k, layout[0], 1000), matrix(k, n, layout[1], 20), matrix(m, n, "n", 9)
    exact = a.astype(np.float64) @ b
    np.testing.assert_array_equal(kernel.simulate(a, b).result, exact)
    np.testing.assert_array_equal(kernel.simulate(a, b, c.copy(), alpha=2, beta=-1).result, 2*exact - c)


@pytest.mark.parametrize(("value", "plan"), [(np.inf, ""), (np.nan, WARPGROUP["bf16"]),
                                             (3.4e38, f"{SMALL['bf16']} split_k=2")])
def test_what_cannot_be_split_is_multiplied_as_it_is(value, plan):
    """As native f32, beta included: C is updated once."""
    rng = np.random.default_rng(7)
    a, b, c = (rng.integers(-9, 9, shape).astype(np.float32) for shape in ((33, 50), (50, 35), (33, 35)))
    a[a == 0] = 1
    b[b == 0] = 1
    b[17, 4] = value
    with np.errstate(all="ignore"):
        wanted = (2 * (a.astype(np.float64) @ b) + 3*c).astype(np.float32)
        found = compiled(33, 35, 50, "bf16_x6", plan).simulate(a, b, c.copy(), alpha=2, beta=3).result
    np.testing.assert_array_equal(found, wanted)


def test_small_and_wide_exponents():
    """Down to 2^-100 every bit counts; terms of smaller numbers end at 2^-133."""
    rng = np.random.default_rng(8)
    a, b = (np.ldexp(rng.standard_normal(shape), rng.integers(low, high, shape)).astype(np.float32)
            for shape, low, high in (((32, 64), -100, -60), ((64, 32), 60, 100)))
    exact, size = a.astype(np.float64) @ b, np.abs(a).astype(np.float64) @ np.abs(b)
    c = compiled(32, 32, 64, "bf16_x6").simulate(a, b).result
    assert (np.abs(c - exact) <= 20 * 2.0**-24 * size).all()
    a = np.ldexp(a, -60).astype(np.float32)
    exact = a.astype(np.float64) @ b
    c = compiled(32, 32, 64, "bf16_x6").simulate(a, b).result
    bound = 20 * 2.0**-24 * np.abs(a).astype(np.float64) @ np.abs(b) + 2.0**-134 * np.abs(b).sum(0)
    assert (np.abs(c - exact) <= bound).all()


@pytest.mark.parametrize("plan", ["mma 128x128x32 warp=64x32 stages=4 vector=8 vector_c=4 tail terms=bf16_x6",
                                  "mma 128x128x16 warp=64x32 stages=5 vector=4 terms=tf32_x3",
                                  "wgmma 128x192x32 stages=3 warpgroups=2 cluster=2x1 vector_c=2 store=tma promote=64 "
                                  "terms=bf16_x6"])
def test_resources(plan):
    """The plans of large products spill nothing; the native kernel beside is the one of other products."""
    kernel = tw.compile(tw.Gemm(4096, 4096, 4096), "sm_90a", plan)
    used = [kernel.resources, kernel.launches[-1].kernel.resources]
    assert [x.spills for x in used] == [0, 0]


ROUNDING = {"mma": "mma 32x32x16 warp=16x16 stages=3 vector=1 vector_c=1 terms=tf32",
            "wgmma": "wgmma 64x64x32 stages=2 warpgroups=1 copied=ab terms=tf32"}


@pytest.mark.parametrize(("by", "layout"), [("mma", "tt"), ("wgmma", "tn")])
def test_tf32(by, layout):
    """Whole numbers of 11 bits are exact, each operand is at most 2^-11 off, and inf and NaN stay what they are."""
    m, n, k = 67, 35, 101
    rng, kernel = np.random.default_rng(8), tw.compile(tw.Gemm(m, n, k, layout=layout), "sm_90a", ROUNDING[by])

    def stored(x):
        return [np.asfortranarray(each) if letter == "t" else each for each, letter in zip(x, layout)]
    a, b = stored(rng.integers(-2047, 2048, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    a[3:] = np.sign(a[3:])                                              # sums below 2^24
    b[:, 5:] = np.sign(b[:, 5:])
    c = rng.integers(-9, 9, (m, n)).astype(np.float32)
    exact = a.astype(np.float64) @ b
    found = kernel.simulate(a, b, c.copy(), alpha=2, beta=-1).result
    np.testing.assert_array_equal(found[3:], (2*exact - c)[3:])
    x, y = stored(rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    size, exact = abs(x).astype(np.float64) @ abs(y), x.astype(np.float64) @ y
    found = kernel.simulate(x, y).result
    assert (abs(found - exact) <= (2**-10 + 2**-22 + k * 2.0**-24) * size).all()
    assert abs((found - exact) / size).mean() < 2**-13                  # to nearest: cut off it would be above 2^-11
    x[2, 7], x[4, 9], y[9, :] = np.inf, np.nan, np.abs(y[9, :])
    y[7] = np.abs(y[7])
    found = kernel.simulate(x, y).result
    assert (found[2] == np.inf).all()
    assert np.isnan(found[4]).all()
    assert np.isfinite(np.delete(found, (2, 4), 0)).all()


@pytest.mark.parametrize("plan", ["mma 32x32x32 warp=16x16 stages=2 copy=registers vector=1 vector_c=1 split_k=2",
                                  "wgmma 64x64x32 stages=2 warpgroups=1 copied=ab"])
def test_sums_in_f16(plan):
    """Exact up to 2048, and inf beyond f16's largest number, where sums in f32 are not."""
    m, n, k = 67, 35, 101
    rng = np.random.default_rng(9)
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((m, k), (k, n)))
    kernel = tw.compile(tw.Gemm(m, n, k, "f16"), "sm_90a", f"{plan} terms=f16")
    np.testing.assert_array_equal(kernel.simulate(a, b).result, a.astype(np.float32) @ b.astype(np.float32))
    a[4], b[:, 6] = 32, 32
    found, wide = (tw.simulate(each, a, b, alpha=2.0**-4).result for each in (
        kernel, tw.compile(tw.Gemm(m, n, k, "f16"), "sm_90a", plan)))
    assert found[4, 6] == np.inf
    assert wide[4, 6] == 64 * k
