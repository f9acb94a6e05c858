"""Results in a narrow format: rounded once, as they are stored, with the bits of NumPy's and ml_dtypes' astype."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.helpers.drivers import HERE, Packed, in_a_wider
from tests.helpers.readings import both, native
from tilewright import simulator
from tilewright.formats import FORMATS, Float, Integer
from tilewright.kernels.cpu.finish import emit_finish
from tilewright.runtime import run as recorded
from tilewright.runtime.cpu import engine
from tilewright.runtime.cpu.recipe import Recipe
from tilewright.targets import names, target

pytestmark = pytest.mark.sampled

FLOATS = ["f16", "bf16", "e5m2", "e4m3fn", "e4m3fnuz", "e5m2fnuz"]
WHOLE = ["i8", "u8", "i16", "u16"]
SUMS = dict.fromkeys(FLOATS, "f32") | dict.fromkeys(WHOLE, "i32")
NO_OPERANDS = np.zeros(1, np.int64)
RNG = np.random.default_rng(5)


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.itemsize}")


def same(x: np.ndarray, y: np.ndarray) -> None:
    assert x.dtype == y.dtype
    np.testing.assert_array_equal(bits(x), bits(y))


def rounded(x: np.ndarray, name: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return x.astype(FORMATS[name].dtype)


def through(function, x: np.ndarray, name: str, run=recorded.run) -> np.ndarray:
    """Numbers as a tile of rows of 32, finished."""
    rows = -(-x.size // 32)
    tile = np.resize(x, (rows, 32))
    space = np.empty(tile.size + 16, tile.dtype)
    aligned = space[-space.ctypes.data // 4 % 16 :][: tile.size]
    aligned[:] = tile.ravel()
    c = np.zeros(tile.shape, FORMATS[name].dtype)
    seen = c if name == "f16" else bits(c).view(f"i{c.itemsize}")
    run(function, aligned, 32, seen.ravel(), 32, 0, 0, rows, 32, 0, 0, 1, 0, NO_OPERANDS)
    return c.ravel()[: x.size]


def near_every(name: str) -> np.ndarray:
    """f32 numbers: all of the format, the middle between every two neighbours, and what lies right beside these."""
    f = FORMATS[name]
    assert isinstance(f, Float)
    every = np.arange(1 << f.bits, dtype=f"u{f.itemsize}").view(f.dtype).astype(np.float32)
    finite = np.unique(every[np.isfinite(every)].astype(np.float64))
    # what would be the next number after the largest, if there were one, and the middle before it
    finite = np.r_[finite, 2 * finite[-1] - finite[-2]] if f.bits < 16 else finite
    middles = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    exact = np.r_[finite.astype(np.float32), middles, np.float32(65520)]
    up, down = (np.nextafter(exact, np.float32(end)) for end in (np.inf, -np.inf))
    return np.r_[exact, -exact, up, down, np.array([0, -0.0, np.inf, -np.inf, np.nan, -np.nan], np.float32)]


def patterns() -> np.ndarray:
    """Every sign, exponent and upper half of f32's mantissa, with lower halves at random; no signalling nan: no sum is
    one."""
    high = np.arange(1 << 16, dtype=np.uint32) << 16
    low = RNG.integers(0, 1 << 16, (3, 1 << 16), np.uint32)
    x = np.concatenate([high, high | 1, high | 0x7FFF, high | 0x8000, high | 0x8001, high | 0xFFFF, *(high | low)])
    return x[(x & 0x7FC00000 != 0x7F800000) | (x & 0x3FFFFF == 0)].view(np.float32)


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("name", FLOATS)
def test_floats_are_rounded_as_by_astype(name, isa):
    function = emit_finish(target(isa), SUMS[name], 32, name)
    for x in (near_every(name), patterns(), RNG.standard_normal(1 << 18).astype(np.float32)):
        same(through(function, x, name), rounded(x, name))


@pytest.mark.parametrize("name", FLOATS)
def test_floats_in_the_simulator(name):
    function = emit_finish(target(HERE[0]), SUMS[name], 32, name)
    x = np.r_[RNG.choice(near_every(name), 800), RNG.choice(patterns(), 800)]
    same(through(function, x, name, simulator.run), rounded(x, name))


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("name", WHOLE)
def test_integers_keep_their_lowest_bits(name, isa):
    function = emit_finish(target(isa), SUMS[name], 32, name)
    x = np.r_[np.arange(1 << 16), RNG.integers(-(1 << 31), 1 << 31, 1 << 16)].astype(np.int32)
    same(through(function, x, name), x.astype(FORMATS[name].dtype))


@pytest.mark.parametrize("isa", names("cpu"))
@pytest.mark.parametrize("name", ["f16", "bf16", "e4m3fnuz", "i8", "i16"])
def test_edges_of_a_tile(name, isa):
    """A part of C inside wider rows that end with it; what is beside the columns is neither read nor written."""
    t, sums, dtype = target(isa), SUMS[name], FORMATS[name].dtype
    NR = 2 * t.lanes(4)
    function = emit_finish(t, SUMS[name], NR, name)
    code = native([function]) if isa in HERE else None
    for cols in (NR, NR - 1, NR // 2 + 1, NR // 2, 1):
        tile = (100 * RNG.standard_normal((3, NR))).astype(FORMATS[sums].dtype)
        read = tile.ravel()[: 2 * NR + cols].copy()
        c = in_a_wider(np.ones((4, cols + 2), dtype if name == "f16" else f"i{dtype.itemsize}"), 5)
        wanted = c.copy()
        wanted[1:, 2:] = rounded(2 * tile[:, :cols], name).view(c.dtype)
        if code:
            _, after = both(function, read, NR, c, cols + 7, 1, 2, 3, cols, 0, 0, 2, 0, NO_OPERANDS, code=code)
            np.testing.assert_array_equal(after["c"], wanted)
        simulator.run(function, read, NR, c, cols + 7, 1, 2, 3, cols, 0, 0, 2, 0, NO_OPERANDS)
        np.testing.assert_array_equal(c, wanted)


# ---- in the five loops


@pytest.mark.parametrize(("m", "n", "k", "kc"), [(9, 70, 21, 24), (9, 70, 21, 8), (13, 33, 9, 4)], ids=str)
def test_five_loops(m, n, k, kc):
    """With one block of k nothing but the result is written; with several, tiles wait for the last one, and then for
    alpha."""
    p = Packed(HERE[0], "f32", 4, 2, m, n, k, alpha=2.0, mc_panels=2, kc=kc, nc_panels=2, result="f16")
    q = Packed(HERE[0], "f32", 4, 2, m, n, k, alpha=2.0, mc_panels=2, kc=kc, nc_panels=2)
    q.simulate()
    report, after = both(p.driver, p.job, 0, arrays=p.arrays, also=p.functions)
    np.testing.assert_array_equal(after["c"], q.c.astype(np.float16))
    assert report.of("c", "store").elements == m * n
    assert report.of("c", "load").elements == 0
    assert after["sums"].any() == (kc < k)


@pytest.mark.parametrize("ways", [(1, 2, 1), (2, 1, 1), (1, 1, 2), (1, 3, 1), (2, 2, 1)], ids=str)
@pytest.mark.parametrize("kc", [24, 8])
def test_teams(ways, kc):
    """Each thread has a tile of its own: no races, and the same bits."""
    options = {"alpha": -1.0, "mc_panels": 1, "kc": kc, "nc_panels": 1, "ways": ways}
    p = Packed(HERE[0], "f32", 4, 2, 21, 100, 21, result="bf16", **options)
    q = Packed(HERE[0], "f32", 4, 2, 21, 100, 21, **options)
    p.c = p.arrays["c"] = bits(p.c).view(np.int16)
    p.simulate()
    q.simulate()
    np.testing.assert_array_equal(bits(p.c), bits(q.c.astype(ml_dtypes.bfloat16)))


# ---- matmul


def operands(name: str, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Floats are multiples of 1/8 up to 2: f32 holds every sum of their products, in whatever order the plan of a
    layout adds them up, and narrower formats round it."""
    if isinstance(FORMATS[name], Integer):
        return [RNG.integers(0, 1 << 16, shape).astype(FORMATS[name].dtype) for shape in shapes]
    return [(RNG.integers(-16, 17, shape) / 8).astype(FORMATS[name].dtype) for shape in shapes]


@pytest.fixture
def kept(monkeypatch):
    """The formats that recipes round C to."""
    found = []
    made = Recipe.__init__

    def note(self, shape, *args, **options):
        made(self, shape, *args, **options)
        found.append((shape.out, bool(self.sums)))
    monkeypatch.setattr(Recipe, "__init__", note)
    engine.forget()
    return found


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(80, 80, 80), (101, 131, 97), (67, 2100, 130)], ids=str)
@pytest.mark.parametrize("name", SUMS)
def test_products(name, shape, threads, kept):
    m, k, n = shape
    a, b = operands(name, (m, k), (k, n))
    wanted = rounded(tw.matmul(a, b, out_dtype=SUMS[name], threads=threads), name)
    del kept[:]
    found = tw.matmul(a, b, out_dtype=name, threads=threads)
    same(found, wanted)
    dtype = wanted.dtype
    for like in (lambda T: np.zeros((m, n), T), lambda T: np.zeros((n, m), T).T,
                 lambda T: np.zeros((m, 3 * n), T)[:, ::3]):
        out = like(dtype)
        assert tw.matmul(a, b, out, threads=threads) is out
        same(out, wanted)
    twice = tw.matmul(a, b, alpha=2, out_dtype=SUMS[name], threads=threads)
    same(tw.matmul(a.T.copy(), b, trans_a=True, out_dtype=name, alpha=2, threads=threads), rounded(twice, name))
    assert {result for result, _ in kept} >= {name}
    if isinstance(FORMATS[name], Float):  # several blocks of k; words of four bytes may be one
        assert any(several for _, several in kept) == (k > 2000)


@pytest.mark.parametrize("name", ["f16", "i8"])
@pytest.mark.parametrize("k", [80, 2100])
def test_stacks(name, k):
    a, b = operands(name, (5, 70, k), (5, k, 66))
    wanted = rounded(tw.matmul(a, b, out_dtype=SUMS[name]), name)
    same(tw.matmul(a, b, out_dtype=name), wanted)
    pairs = tw.matmul(a[:, None], b[:2], out_dtype=name)
    same(pairs, rounded(tw.matmul(a[:, None], b[:2], out_dtype=SUMS[name]), name))
    out = np.zeros((66, 5, 70), a.dtype).transpose(1, 2, 0)
    tw.matmul(a, b, out)
    same(out, wanted)


def test_other_operands_and_other_outs():
    a, b = operands("f32", (70, 80), (80, 90))
    wide = a @ b
    same(tw.matmul(a, b, out_dtype="f16"), tw.matmul(a, b, out_dtype="f32").astype(np.float16))
    out = np.zeros((70, 90), np.float16)
    tw.matmul(a, b, out)
    np.testing.assert_allclose(out, wide, rtol=2e-3, atol=1e-2)
    half = np.asfortranarray(a.astype(np.float16))
    aligned = np.zeros(half.nbytes + 1, np.uint8)[1:].view(np.float16).reshape(half.shape)
    aligned[...] = half
    same(tw.matmul(aligned, b.astype(np.float16)), tw.matmul(half, b.astype(np.float16)))


def test_beta_and_overlap_go_another_way():
    a, b, c = operands("f16", (70, 80), (80, 70), (70, 70))
    wide = tw.matmul(a, b, out_dtype="f32")
    same(tw.matmul(a, b, beta=2, c=c), (wide + 2 * c.astype(np.float32)).astype(np.float16))
    wanted = tw.matmul(a[:, :70], b[:70])
    whole = a[:, :70].copy()
    assert tw.matmul(whole, b[:70], whole) is whole
    same(whole, wanted)


def test_overflow_is_silent_and_the_formats_own():
    for name, wanted in (("f16", np.inf), ("e5m2", np.inf), ("e4m3fn", np.nan), ("e4m3fnuz", np.nan)):
        x = np.full((64, 64), 200, FORMATS[name].dtype)
        with np.errstate(all="raise"):
            for out in (None, np.empty_like(x)):
                c = tw.matmul(x, x, out, out_dtype=name).astype(np.float32)
                np.testing.assert_array_equal(c, np.full((64, 64), wanted, np.float32))
