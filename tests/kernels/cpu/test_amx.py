"""AMX: packing into tiles, the micro-kernel and the loops around it, simulated everywhere, run where there is AMX."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.helpers.drivers import packed_before
from tilewright.plans.choose import choose
from tilewright.plans.cpu_shape import Shape, Strides, order
from tilewright.plans.words import TILE_WORDS, faster, pays
from tilewright.runtime.cpu import engine
from tilewright.runtime.cpu.packed import Prepacking
from tilewright.simulator.memory import AddressSpace
from tilewright.simulator.product import SimulatedHost, SimulatedRecipe

pytestmark = pytest.mark.sampled

AMX = replace(tw.target("x86-avx512"), extensions=("amx-tile", "amx-bf16", "amx-int8")).extended
DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "e5m2": ml_dtypes.float8_e5m2,
          "e4m3fn": ml_dtypes.float8_e4m3fn, "e4m3fnuz": ml_dtypes.float8_e4m3fnuz, "i8": np.int8, "u8": np.uint8,
          "i32": np.int32, "i64": np.int64}
WORD = 16       # words of k in a tile
RECORDED = {}   # functions, by what they are made of: of each several tests ask more than one thing
rng = np.random.default_rng(4)


def simulated(dtype, a, b, sources, c=None, alpha=1, beta=0, threads=1, result="", prepacked=False, **blocks):
    """C by the recorded five loops; whether a number could not be split. `prepacked`: B is packed before, in parts."""
    word, memory = TILE_WORDS[dtype], AddressSpace()
    (m, k), n = a.shape, b.shape[1]
    out = {"f32": np.float32, "i32": np.int32, "i64": np.int64}[word.sums]
    c = np.zeros((m, n), out) if c is None else c
    strides = Strides(*(s // x.itemsize for x in (a, b, c) for s in x.strides))
    shape = Shape(dtype, m, n, word.depth(k), order(strides.rsa, strides.csa), order(strides.rsb, strides.csb), threads,
                  *sources, result, k)
    plan = replace(choose(shape, AMX), **blocks)
    assert not plan.violations(shape, AMX)
    host = SimulatedHost(memory, RECORDED)
    recipe = SimulatedRecipe(shape, strides, plan, AMX, host, prepacked="b" if prepacked else "")
    views = [x.view(np.int16) if x.dtype == ml_dtypes.bfloat16 else x.view(np.int8) if x.itemsize == 1 else x
             for x in (a, b)]
    a_at, b_at, c_at = (memory.address(x, name) for x, name in zip((*views, c), "abc"))
    if prepacked:
        b_at = packed_before(Prepacking(shape, strides, plan, AMX, host), host, b_at)
        b[...] = 0  # nobody reads B again
    special = recipe.run(b_at, a_at, c_at, alpha, beta)  # operands change places: the plan says swap
    RECORDED.update(host.recorded)
    return c, special


def numbers(source, *shape):
    """Integers that every format holds."""
    low = 0 if source == "u8" else -3
    return rng.integers(low, 4, shape).astype(DTYPES[source])


LAYOUTS = {"along": lambda x: np.ascontiguousarray(x), "across": lambda x: np.asfortranarray(x),
           "any": lambda x: np.repeat(np.repeat(x, 2, 0), 2, 1)[::2, ::2]}


@pytest.mark.parametrize("threads", [1, 3])  # three claim blocks
@pytest.mark.parametrize(
    ("dtype", "f", "b_layout", "result"),
    [("amx_bf16", "bf16", "along", ""), ("amx_bf16", "e4m3fn", "any", "bf16"), ("amx_i8i8", "i8", "across", ""),
     ("amx_i32", "i32", "across", ""), ("amx_bf16_x6", "f32", "along", "")],
)
def test_b_packed_before_gives_the_same_bits(dtype, f, b_layout, result, threads):
    """Several blocks of m, n and k, the last ones not whole."""
    kc = 2 * TILE_WORDS[dtype].rows
    m, n, k = 40, 70, 2 * WORD * TILE_WORDS[dtype].steps + 21
    a, b = numbers(f, m, k), numbers(f, k, n)
    if f in ("bf16", "f32"):
        a, b = ((x + rng.standard_normal(x.shape)).astype(x.dtype) for x in (a, b))
    found = [np.zeros((70, 110), DTYPES[result or TILE_WORDS[dtype].sums]) for _ in range(2)]
    for c, prepacked in zip(found, (False, True)):
        shown = LAYOUTS[b_layout](b.copy())
        simulated(dtype, a, shown, (f, f), c, threads=threads, result=result, prepacked=prepacked, kc=kc, mc=64, nc=32)
        assert shown.any() != prepacked
    np.testing.assert_array_equal(*found)
    assert found[0].any()


@pytest.mark.parametrize("a_layout", LAYOUTS)
@pytest.mark.parametrize("b_layout", LAYOUTS)
@pytest.mark.parametrize(
    ("dtype", "sources"), [("amx_bf16", ("bf16", "e4m3fn")), ("amx_bf16", ("u8", "i8")), ("amx_i8i8", ("i8", "i8"))]
)
def test_products_of_tiles_are_exact(dtype, sources, a_layout, b_layout):
    a, b = LAYOUTS[a_layout](numbers(sources[0], 35, 75)), LAYOUTS[b_layout](numbers(sources[1], 75, 41))
    c, special = simulated(dtype, a, b, sources)
    assert not special
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64))


def test_many_panels_stay_in_their_space():
    a, b = numbers("bf16", 200, 40), numbers("bf16", 40, 33)
    np.testing.assert_array_equal(simulated("amx_bf16", a, b, ("bf16", "bf16"))[0], a.astype(float) @ b.astype(float))


@pytest.mark.parametrize("depth", [4, 1])
@pytest.mark.parametrize(
    ("dtype", "source", "result"), [("amx_bf16", "bf16", "f16"), ("amx_f16", "f16", "f16"), ("amx_i8i8", "i8", "i8")]
)
def test_narrow_results_of_tiles(dtype, source, result, depth):
    """Rounded as they are stored, after one block of k or several, by two threads."""
    a, b = numbers(source, 70, 150), numbers(source, 150, 41)
    c = np.zeros((70, 41), DTYPES[result])
    kc = depth * TILE_WORDS[dtype].rows
    simulated(dtype, a, b, (source, source), c, threads=2, result=result, kc=kc, mc=32, nc=32)
    np.testing.assert_array_equal(c, (a.astype(np.int64) @ b.astype(np.int64)).astype(c.dtype))


@pytest.mark.parametrize("dtype", sorted(TILE_WORDS))
@pytest.mark.parametrize(("m", "n", "groups", "more"), [(1, 1, 0, 1), (33, 65, 2, 2), (64, 32, 1, 0)])
def test_every_word_on_awkward_shapes(dtype, m, n, groups, more):
    k = groups * WORD * TILE_WORDS[dtype].steps + more
    source = {"amx_f16": "f16", "amx_i32": "i32", "amx_i64": "i64", "amx_bf16": "e5m2"}.get(dtype, "f32")
    sources = (dtype[4:6], dtype[6:]) if TILE_WORDS[dtype].terms == 1 and dtype != "amx_bf16" else (source, source)
    a, b, c = numbers(sources[0], m, k), numbers(sources[1], k, n), rng.integers(-5, 5, (m, n))
    c = c.astype(TILE_WORDS[dtype].sums.replace("i", "int").replace("f", "float"))
    wanted = 2 * (a.astype(np.float64) @ b.astype(np.float64)) - 3 * c.astype(np.float64)
    rows = TILE_WORDS[dtype].rows
    found, special = simulated(dtype, a, b, sources, c, 2, -3, threads=2, kc=rows, mc=32, nc=32)
    assert not special
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("f", ["i32", "i64"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_integers_by_bytes_wrap_as_they_should(f, layout):
    """Of any bits, and once of those with the most carries, through several blocks of k."""
    limits = np.iinfo(DTYPES[f])
    for low in (limits.min, limits.max) if layout == "along" else (limits.min,):
        k = 2 * WORD * TILE_WORDS[f"amx_{f}"].steps + 12
        a, b = (rng.integers(low, limits.max, s, DTYPES[f], endpoint=True) for s in ((33, k), (k, 34)))
        c, _ = simulated(f"amx_{f}", LAYOUTS[layout](a), LAYOUTS[layout](b), (f, f), kc=TILE_WORDS[f"amx_{f}"].rows)
        np.testing.assert_array_equal(c, a @ b)


KINDS = {
    "uniform": lambda shape: rng.random(shape),
    "normal": lambda shape: rng.standard_normal(shape),
    "wide": lambda shape: np.ldexp(rng.standard_normal(shape), rng.integers(-20, 21, shape)),
    "cancelling": lambda shape: rng.random(shape),
}


@pytest.mark.parametrize("kind", KINDS)
def test_terms_hold_what_they_stand_for(kind):
    """Sums of bf16 products against float64, in units of 2^-24 of |A| |B|, within the documented bounds."""
    a, b = (KINDS[kind](shape).astype(np.float32) for shape in ((32, 256), (256, 32)))
    if kind == "cancelling":  # the second half of k takes away what the first has added up, but for a part in 2^12
        a[:, 128:] = -a[:, :128] * (1 + 2.0**-12 * rng.standard_normal((32, 128))).astype(np.float32)
        b[128:] = b[:128]
    exact, size = a.astype(np.float64) @ b.astype(np.float64), np.abs(a).astype(np.float64) @ np.abs(b)
    errors = {}
    for terms in (3, 6, 9):
        c, special = simulated(f"amx_bf16_x{terms}", a, b, ("f32", "f32"))
        assert not special
        errors[terms] = np.abs(c - exact) / size * 2**24
    assert errors[3].max() <= 3 * 2**8 + 3 / 32 * 256 + 17
    assert errors[6].max() <= 2 + 6 / 32 * 256 + 17 < 256  # the last is native f32's bound
    assert errors[9].max() <= 9 / 32 * 256 + 17
    one_by_one = np.zeros((32, 32), np.float32)
    for p in range(256):
        one_by_one += a[:, p, None] * b[p]
    assert np.sqrt(np.mean(errors[6] ** 2)) < np.sqrt(np.mean((np.abs(one_by_one - exact) / size * 2**24) ** 2))
    if kind in ("normal", "wide"):
        assert errors[3].max() > 4 * errors[6].max()  # it does drop something


def test_two_terms_hold_an_f16():
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((32, 64), (64, 32)))
    c, special = simulated("amx_f16", a, b, ("f16", "f16"))
    assert not special
    bound = (64 + 1) * 2.0**-24 * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64))
    assert (np.abs(c - a.astype(np.float64) @ b.astype(np.float64)) <= bound).all()


@pytest.mark.parametrize("value", [-np.inf, np.nan, 3.4e38])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_packing_notices_what_has_no_terms(value, layout):
    """Once in the whole groups, once in the last one, in A and in B; the largest number that has some is not told."""
    dtype, source = ("amx_bf16_x6", "f32") if value == 3.4e38 or layout == "any" else ("amx_f16", "f16")
    a, b = numbers(source, 34, 40), numbers(source, 40, 35)
    largest = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max) if source == "f32" else 65504.0
    a[33, 3] = largest
    assert not simulated(dtype, LAYOUTS[layout](a), b, (source, source))[1]
    places = (a, 33, 3), (a, 0, 39), (b, 39, 34), (b, 5, 0)
    for x, i, j in places if value == -np.inf and layout == "any" else places[::2]:
        kept, x[i, j] = x[i, j], value
        assert simulated(dtype, LAYOUTS[layout](a), LAYOUTS[layout](b), (source, source))[1]
        x[i, j] = kept


def test_subnormal_numbers_are_zero_to_tiles():
    tiny, smallest = 2.0**-130, 2.0**-126
    a = np.full((1, 2), tiny, ml_dtypes.bfloat16)
    b = np.array([[2.0**20], [2.0**20]], ml_dtypes.bfloat16)
    assert simulated("amx_bf16", a, b, ("bf16", "bf16"))[0] == 0
    a[0, 0] = smallest
    assert simulated("amx_bf16", a, b, ("bf16", "bf16"))[0] == smallest * 2.0**20
    a[0, 0], b[0, 0] = 2.0**-100, 2.0**-40  # a product that is subnormal
    assert simulated("amx_bf16", a, b, ("bf16", "bf16"))[0] == 0


def test_a_guard_keeps_small_products_native():
    assert pays("amx_bf16_x6", 2048, 2048, 2048)
    assert pays("amx_f16", 2048, 2048, 2048)
    assert not pays("amx_bf16_x6", 16, 2048, 2048)
    assert not pays("amx_bf16_x6", 2048, 16, 2048)
    assert not pays("amx_bf16_x9", 64, 64, 64)


def test_fastest_splits_where_that_was_faster_whenever_it_was_measured():
    """2048 elements on one thread: 1.4 to 1.6 times the native rate; 768, and several threads: 0.56 to 0.95."""
    assert faster("amx_bf16_x6", 2048, 2048, 2048, threads=1)
    assert not faster("amx_bf16_x6", 768, 768, 768, threads=1)
    assert not any(faster("amx_bf16_x6", n, n, n, threads=16) for n in (1500, 4096, 6000))


@pytest.mark.parametrize(("threads", "word"), [(1, "amx_bf16_x6"), (4, None)])
def test_fastest_asks_for_the_threads_of_the_call(monkeypatch, threads, word):
    """Not for the machine's: `threads` of the call, else those of this thread."""
    asked = []
    monkeypatch.setattr(engine.amx, "permitted", lambda target: AMX)
    monkeypatch.setattr(engine, "gemm", lambda *args, word=None, **options: asked.append(word))
    a = np.ones((2048, 2048), np.float32)
    engine.gemm_by("fastest", a, a, a, threads=threads)
    with tw.threads(threads):
        engine.gemm_by("fastest", a, a, a)
    assert asked == [word, word]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("algorithm", ["bf16_bf16_f32_x3", "bf16_bf16_f32_x6", "bf16_bf16_f32_x9", "fastest"])
def test_algorithms_through_matmul(algorithm):
    """With AMX the emulated product, without it the native one."""
    a, b = rng.standard_normal((2, 300, 280)).astype(np.float32), rng.standard_normal((280, 290)).astype(np.float32)
    a[0, 3, 5] = np.inf
    c = np.ones((2, 300, 290), np.float32)
    with np.errstate(invalid="ignore"):
        wanted = 2 * (a.astype(np.float64) @ b.astype(np.float64)) + 3
    found = tw.matmul(a, b, alpha=2, beta=3, c=c, algorithm=algorithm)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-2 if algorithm.endswith("x3") else 1e-3)
    assert np.array_equal(tw.matmul(a[1], b, algorithm=algorithm), tw.matmul(a[1], b, threads=1, algorithm=algorithm))
    ints = rng.integers(0, 9, (70, 70))
    assert np.array_equal(tw.matmul(ints, ints, algorithm="fastest"), ints @ ints)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: tw.matmul(x, x, algorithm="bf16_bf16_f32_x4"), TypeError, "splits operands of float16"),
        (lambda x: tw.matmul(x, x.astype(np.float64), algorithm="bf16_bf16_f32_x6"), TypeError, "b is float64"),
        (lambda x: tw.matmul(x, x, algorithm="bf16_bf16_f32_x6", out_dtype="f64"), TypeError, "added up in float64"),
        (lambda x: tw.gemm(1, x, x, 0, x.copy(), algorithm="x6"), ValueError, "must be None or one of"),
        (lambda x: tw.matmul(x, x, algorithm="fastest", plan=tw.plan(tw.Gemm(8, 8, 8))), ValueError, "plan must be"),
    ],
)
def test_what_an_algorithm_does_not_take(call, error, words):
    with pytest.raises(error, match=words):
        call(np.ones((8, 8), np.float32))
