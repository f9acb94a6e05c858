"""Complex products: packed as one real product, rewritten as one, conjugated; of all strides, on every target."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

import tilewright as tw
from tilewright import simulator
from tilewright.api import products
from tilewright.kernels.cpu.packing import emit_pack_complex
from tilewright.plans.cpu import CpuPlan
from tilewright.runtime import run
from tilewright.runtime.cpu import engine

pytestmark = pytest.mark.sampled

RNG = np.random.default_rng(9)
COMPLEX = [np.complex64, np.complex128]
CONJ = ["", "a", "b", "ab"]


def whole(dtype, *shape):
    """Small whole numbers, whose products are exact in any order of addition."""
    x = RNG.integers(-9, 10, shape)
    return (x + 1j * RNG.integers(-9, 10, shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def stored(x, letter):
    """x as a matrix of this layout holds it."""
    return x if letter == "n" else x.swapaxes(-1, -2) if letter == "t" else x.swapaxes(-1, -2).conj()


def views(x):
    """The same matrix by rows, by columns, with gaps, backwards, and far apart."""
    yield from (x, np.asfortranarray(x), np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3])
    yield x[::-1, ::-1].copy()[::-1, ::-1]
    far = np.zeros((x.shape[0], 3000), x.dtype)[:, : x.shape[1]]
    far[...] = x
    yield far


# ---- the engine


@pytest.mark.parametrize("isa", ["x86-avx2", "x86-avx512"])
@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 1, 5), (13, 17, 2), (65, 49, 33), (29, 67, 1031)], ids=str)
def test_packed(isa, dtype, shape):
    """Every way that A, B and C may lie, conjugated or not, by one thread and by two."""
    target = tw.target(isa)
    if target.missing:
        pytest.skip(f"this CPU lacks {', '.join(target.missing)}")
    m, n, k = shape
    a, b, c = whole(dtype, m, k), whole(dtype, k, n), whole(dtype, m, n)
    for conj in CONJ:
        product = (a.conj() if "a" in conj else a) @ (b.conj() if "b" in conj else b)
        for (x, y), threads in zip(itertools.product(views(a), views(b)), itertools.cycle((1, 2))):
            for out in (c.copy(), c.T.copy().T, np.repeat(c, 2, 1)[:, ::2]):
                engine.gemm(x, y, out, 2.0, -3.0, target=target, threads=threads, conj=conj)
                np.testing.assert_array_equal(out, 2 * product - 3 * c)
                out[...] = np.nan
                engine.gemm(x, y, out, target=target, threads=threads, conj=conj)
                np.testing.assert_array_equal(out, product)


@pytest.mark.parametrize("isa", ["x86-avx2", "x86-avx512"])
@pytest.mark.parametrize("dtype", COMPLEX)
def test_rows_and_columns_are_read_where_they_are(isa, dtype):
    """Operands of any strides, conjugated or not, have the same bits by one thread and by three, and in a batch."""
    target = tw.target(isa)
    if target.missing:
        pytest.skip(f"this CPU lacks {', '.join(target.missing)}")
    for m, n, k in ((1, 1, 133), (1, 9, 40), (71, 1, 17), (1, 2100, 18)):
        a, b, c = whole(dtype, m, k), whole(dtype, k, n), whole(dtype, m, n)
        outs = itertools.cycle((c.copy(), np.repeat(np.repeat(c, 2, 0), 2, 1)[::2, ::2]))
        pairs = itertools.product(views(a), views(b))
        for (x, y), out, conj, alpha in zip(pairs, outs, itertools.cycle(CONJ[::-1]), itertools.cycle((1.0, 2.0, 1.0))):
            product = (a.conj() if "a" in conj else a) @ (b.conj() if "b" in conj else b)
            for beta in (0.0, 1.0, -3.0):
                out[...] = c if beta else np.nan
                engine.gemm(x, y, out, alpha, beta, target=target, threads=3, conj=conj)
                np.testing.assert_array_equal(out, alpha * product + (beta * c if beta else 0))
        a, b = (RNG.standard_normal((2, *s, 2)).astype(a.real.dtype).view(dtype)[..., 0] for s in (a.shape, b.shape))
        found = [np.empty((2, m, n), dtype) for _ in range(3)]
        for threads, each in zip((1, 3), found):
            engine.gemm(a, b, each, target=target, threads=threads)
        for i in range(2):
            engine.gemm(a[i], b[i], found[2][i], target=target, threads=1)
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize("text", [
    "packed 14x32 mc=28 kc=12 nc=32", "packed 14x32 mc=14 kc=8 nc=96 ways=2x1x1",
    "packed 9x48 mc=18 kc=260 nc=48 ways=1x2x1", "packed 14x32 mc=14 kc=64 nc=64 ways=1x4x1",
    "packed 6x64 mc=12 kc=36 nc=64 ways=1x1x2",
])
@pytest.mark.parametrize("columns", [False, True])
def test_blocks_and_ways(text, columns):
    """Many blocks of every size, dealt out and claimed, with A and B by rows and by columns."""
    if tw.target("x86-avx512").missing:
        pytest.skip("this CPU lacks AVX-512")
    m, n, k = 101, 83, 150
    a, b = whole(np.complex64, m, k), whole(np.complex64, k, n)
    c = np.empty((m, n), np.complex64)
    x, y = (np.asfortranarray(a), np.asfortranarray(b)) if columns else (a, b)
    engine.gemm(x, y, c, plan=CpuPlan.parse(text), target=tw.target("x86-avx512"), threads=4, conj="b")
    np.testing.assert_array_equal(c, a @ b.conj())


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("shape", [(2, 2, 1000), (3, 5, 131), (8, 60, 70)], ids=str)
def test_few_rows_or_columns_are_read_in_place_and_repeated(monkeypatch, layout, shape):
    """Operands are neither packed nor rewritten before, and a call like an earlier one runs no Python."""
    m, n, k = shape
    a, b = (x if letter == "n" else np.asfortranarray(x) for x, letter in zip(
        (whole(np.complex64, m, k), whole(np.complex64, k, n)), layout))
    out = np.empty((m, n), np.complex64)
    lowered, *_ = engine.lowered(a, b, out, 1, tw.detect(), None)
    assert engine.planned(lowered).plan.algorithm == "in_place"
    for _ in range(2):
        tw.matmul(a, b, out=out)
    out[...] = np.nan
    monkeypatch.setattr(engine, "run", None)
    tw.matmul(a, b, out=out)
    np.testing.assert_array_equal(out, a @ b)


@pytest.mark.parametrize("isa", ["x86-avx2", "x86-avx512"])
def test_few_rows_or_columns_in_stacks_and_by_threads(isa):
    """An element has the same bits alone, in a stack, and by any number of threads; rows of C may lie anywhere."""
    target = tw.target(isa)
    if target.missing:
        pytest.skip(f"this CPU lacks {', '.join(target.missing)}")
    for m, n, k in (3, 200, 65), (60, 7, 64):
        a, b = (RNG.standard_normal((*s, 2)).view(np.complex128)[..., 0] for s in ((3, m, k), (3, k, n)))
        c, one = np.empty((3, m, n), np.complex128), np.empty((m, 2 * n), np.complex128)[:, ::2]
        engine.gemm(a, b, c, target=target, threads=1, conj="b")
        assert np.abs(c - a @ b.conj()).max() < k * 1e-14
        for i, threads in enumerate((1, 2, 3)):
            engine.gemm(a[i], b[i], one, target=target, threads=threads, conj="b")
            np.testing.assert_array_equal(c[i], one)


def test_stacks_have_the_bits_of_their_products():
    a, b = (RNG.standard_normal((*s, 2)).view(np.complex128)[..., 0] for s in ((5, 40, 70), (5, 70, 50)))
    c = np.empty((5, 40, 50), np.complex128)
    engine.gemm(a, b, c, conj="a", threads=2)
    one = np.empty_like(c[0])
    for i in range(5):
        engine.gemm(a[i], b[i], one, conj="a", threads=2)
        np.testing.assert_array_equal(c[i], one)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(
    ("role", "kind"), [("a", "across"), ("a", "any"), ("b", "across"), ("b", "along"), ("b", "any")]
)
def test_packing_in_both_readings(dtype, role, kind):
    """What the simulator makes of the recorded program is what the machine does, and what the formula says."""
    width, lines, steps = 32, 11, 21  # lines and steps of complex numbers, of which B has two lines for each
    dt = np.dtype(f"f{int(dtype[1:]) // 8}")
    raw = RNG.standard_normal(4000).astype(dt)
    step_i, step_p = {"across": (2, 150), "along": (90, 2), "any": (86, 6)}[kind]
    at = np.arange(steps)[:, None] * step_p + np.arange(lines) * step_i
    re, im = raw[at], raw[at + 1]
    valid = lines if role == "a" else 2 * lines
    for conj in CONJ if role == "b" else [""]:
        sign_a, sign_b = (-1 if x in conj else 1 for x in "ab")
        wanted = np.empty((steps, 2, valid), dt)
        if role == "a":
            wanted[:, 0], wanted[:, 1] = re, im
        else:
            wanted[:, 0, ::2], wanted[:, 0, 1::2] = re, sign_b * im
            wanted[:, 1, ::2], wanted[:, 1, 1::2] = -sign_a * sign_b * im, sign_a * re
        function = emit_pack_complex(tw.detect(), dtype, width, kind, role, conj)
        machine, meaning = (np.full(width * 2 * steps + 64, 7, dt) for _ in range(2))
        run.run(function, 2 * steps, width, valid, raw.ctypes.data, step_i, step_p, machine.ctypes.data)
        simulator.run(function, 2 * steps, width, valid, raw, step_i, step_p, meaning)
        for found in (machine, meaning):
            found = found[: width * 2 * steps].reshape(steps, 2, width)[..., :valid]
            np.testing.assert_array_equal(found, wanted)
            np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


# ---- matmul and gemm

# small, with few rows or columns beside a large operand (2^17 numbers or more), and large
SHAPES = [(1, 1, 1), (5, 7, 3), (33, 65, 40), (3, 300, 500), (300, 2, 500), (1, 400, 400), (400, 1, 400), (70, 90, 65)]


@pytest.mark.parametrize("layout", ["".join(pair) for pair in itertools.product("ntc", repeat=2)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_layout_of_every_pair(layout, shape):
    """Complex with complex and with real numbers, as they lie, transposed, and conjugated too."""
    m, n, k = shape
    for f, g in itertools.product((np.complex64, np.complex128, np.float32), repeat=2):
        a, b = whole(f, m, k), whole(g, k, n)
        for x, y in ((a, b), (np.asfortranarray(a), np.asfortranarray(b)), (np.repeat(a, 2, 1)[:, ::2], b[::-1][::-1])):
            x, y = stored(x, layout[0]), stored(y, layout[1])
            found = tw.matmul(x, y, trans_a=layout[0], trans_b=layout[1])
            assert found.dtype == np.result_type(f, g)
            np.testing.assert_array_equal(found, a @ b)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("real", ["", "a", "b"])
def test_gemm_updates_c_wherever_it_lies(shape, real):
    m, n, k = shape
    a = whole(np.float32 if real == "a" else np.complex64, m, k)
    b = whole(np.float32 if real == "b" else np.complex64, k, n)
    c = whole(np.complex64, m, n)
    wanted = -2 * (a.conj() @ b) + 3 * c
    for x in (a, np.asfortranarray(a)):
        for out in (c.copy(), c.T.copy().T, np.repeat(c, 2, 1)[:, ::2], c[::-1, ::-1].copy()[::-1, ::-1]):
            assert tw.gemm(-2, x.T, b, 3, out, trans_a="c") is out
            np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("lead", [((3,), ()), ((), (3,)), ((2, 1), (3,)), ((2, 1, 2), (2, 3, 1))], ids=str)
@pytest.mark.parametrize("shape", [(5, 7, 3), (40, 41, 42), (2, 300, 500), (300, 2, 500)], ids=str)
def test_stacks_and_broadcasting(lead, shape):
    m, n, k = shape
    a, b = whole(np.complex64, *lead[0], k, m), whole(np.complex128, *lead[1], k, n)
    wanted = a.conj().swapaxes(-1, -2) @ b
    found = tw.matmul(a, b, trans_a="c")
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted)
    c = whole(np.complex128, *wanted.shape)
    np.testing.assert_array_equal(tw.matmul(a, b, trans_a="c", beta=2, c=c), wanted + 2 * c)


def test_vectors():
    a, x = whole(np.complex64, 30, 40), whole(np.complex64, 40)
    np.testing.assert_array_equal(tw.matmul(a, x), a @ x)
    np.testing.assert_array_equal(tw.matmul(x, a, trans_b="c"), x @ a.conj().T)
    np.testing.assert_array_equal(tw.matmul(x, x), x @ x)


@pytest.mark.parametrize("n", [20, 80, 500])
def test_out_that_overlaps(n):
    """A view of an operand, rows and columns of the same matrix, and the operand itself."""
    big = whole(np.complex64, 2 * n, n)
    a, b = big[:n].copy(), big[n:].copy()
    assert tw.matmul(big[:n], b, out=big[n:]) is not None
    np.testing.assert_array_equal(big[n:], a @ b)
    c = a.copy()
    tw.matmul(c, c, out=c.T, trans_a="c")
    np.testing.assert_array_equal(c.T, a.conj().T @ a)
    wide = np.zeros((n, n), np.complex128)
    tw.matmul(a, b, out=wide)
    np.testing.assert_array_equal(wide, a @ b)


@pytest.mark.parametrize("shape", [(100, 90, 700), (8, 400, 400), (400, 8, 400), (1, 300, 400), (300, 1, 400)], ids=str)
@pytest.mark.parametrize("dtype", COMPLEX)
def test_error_bound(dtype, shape):
    """Of 2k products each part is the sum: 2k * unit roundoff times the sum of their sizes."""
    m, n, k = shape
    wide = np.clongdouble if dtype == np.complex128 else np.complex128
    parts = [RNG.standard_normal(s) * 10.0 ** RNG.integers(-3, 4, s) for s in ((m, k), (m, k), (k, n), (k, n))]
    a, b = ((x + 1j * y).astype(dtype) for x, y in (parts[:2], parts[2:]))
    exact = np.einsum("ip,pj->ij", a.astype(wide), b.astype(wide)) if wide is np.clongdouble else a.astype(wide) @ b
    unit = np.finfo(dtype).eps / 2
    size_a, size_b = (np.abs(x.real) + np.abs(x.imag) for x in (a.astype(wide), b.astype(wide)))
    bound = 2 * k * unit * np.einsum("ip,pj->ij", size_a, size_b)
    error = tw.matmul(a, b) - exact
    assert (np.abs(error.real) <= bound).all()
    assert (np.abs(error.imag) <= bound).all()


@pytest.mark.parametrize("n", [3, 70])
def test_nan_and_inf_as_blas_has_them(n):
    """(x + iy)(u + iv) = (xu - yv) + i(xv + yu), without C99's repairs: inf times a real number has a nan in it."""
    a = np.zeros((n, n), np.complex64)
    b = np.eye(n, dtype=np.complex64)
    a[0, 1], a[1, 2] = complex(np.inf, 0), complex(np.nan, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        c = tw.matmul(a, b)
    assert c[0, 1].real == np.inf
    assert np.isnan(c[0, 1].imag)  # inf * 0
    assert np.isnan(c[1, 2].real)
    assert (c[2:] == 0).all()
    c = tw.matmul(a, b, alpha=0, beta=2, c=np.full((n, n), complex(np.inf, 1), np.complex64))
    assert (c.real == np.inf).all()
    assert (c.imag == 2).all()  # beta is real
    out = np.full((n, n), np.nan, np.complex64)
    assert (tw.matmul(b, b, out=out) == b).all()  # beta = 0 never reads


def test_a_plan_is_one_for_the_real_product():
    """m x 2n x 2k, packed, or in place, of which complex operands have a kernel of their own, without blocks of k."""
    nr = tw.detect().lanes(4)
    packed, in_place = f"packed 4x{nr} mc=16 kc=64 nc={2 * nr}", f"in_place 4x{nr}"
    a, b = whole(np.complex64, 40, 50), whole(np.complex64, 60, 50)
    np.testing.assert_array_equal(tw.matmul(a, b, plan=packed, trans_b="c"), a @ b.T.conj())
    np.testing.assert_array_equal(tw.matmul(a, b, plan=in_place, trans_b="c"), a @ b.T.conj())
    for text in (f"{in_place} kc=8", "stream 4x4"):
        with pytest.raises(ValueError, match=r"cannot run a 40x120x100 product of f32 packed from c64 by c64, "
                                             r"with A by rows and B by columns: .* only packed plans convert"):
            tw.matmul(a, b, plan=text, trans_b="t")
    for name in ("swap", "copy"):
        with pytest.raises(ValueError, match="a plan for them has neither swap nor copy"):
            tw.matmul(a, b.T, plan=f"{packed} {name}")
        with pytest.raises(ValueError, match="a plan for them has neither swap nor copy"):
            tw.pack(b.T, plan=f"{packed} {name}")
    a, b = whole(np.complex64, 3, 400), whole(np.complex64, 400, 500)
    for text in (packed, in_place):
        np.testing.assert_array_equal(tw.matmul(a, b, plan=text), a @ b)


@pytest.mark.parametrize("matmul", [tw.matmul, products.matmul])
def test_what_trans_may_be(matmul):
    x = whole(np.float32, 4, 4)
    for flag, wanted in ((False, x @ x), ("n", x @ x), (True, x.T @ x), ("t", x.T @ x), ("c", x.T @ x)):
        np.testing.assert_array_equal(matmul(x, x, trans_a=flag), wanted)
    for name in ("trans_a", "trans_b"):
        with pytest.raises(ValueError, match=rf"{name} must be \"n\" or False, \"t\" or True .*, not 'h'"):
            matmul(x, x, **{name: "h"})
    with pytest.raises(ValueError, match="trans_b needs b to have two axes"):
        matmul(x, x[0], trans_b="c")
    np.testing.assert_array_equal(matmul(x, x[0], trans_b="n"), x @ x[0])


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_two_real_operands_have_a_real_product(dtype):
    """An inf in one of them is no nan in the imaginary part, which is what C has there."""
    a, b = np.array([[np.inf, 2], [3, 4]], dtype), np.array([[1, 5], [6, 7]], dtype)
    for got in (tw.matmul(a, b, out_dtype="c128"), tw.gemm(1, a, b, 0, np.full((2, 2), np.nan, complex))):
        np.testing.assert_array_equal(got.real, a @ b)
        np.testing.assert_array_equal(got.imag, 0)
    c = np.array([[1 + 2j, 3j], [4, 5 - 6j]])
    got = tw.matmul(a, b, alpha=2, beta=-3, c=c)
    np.testing.assert_array_equal(got.real, 2 * (a @ b) - 3 * c.real)
    np.testing.assert_array_equal(got.imag, -3 * c.imag)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_long_dot_products_are_exact(dtype):
    """Dot products of whole numbers are exact for vectors of any strides, conjugated and not."""
    k = 9001
    x, y = ((RNG.integers(-3, 4, 2*k) + 1j*RNG.integers(-3, 4, 2*k)).astype(dtype) for _ in range(2))
    for a, b in (x[:k], y[:k]), (x[::2], y[:k]), (x[:k], y[::-2]):
        found = tw.matmul(a, b)
        assert (type(found), found) == (dtype, a @ b)
        row, column = a[None], b[:, None]
        for trans, other in ("c", a.conj()), ("t", a):
            assert tw.matmul(row.T, column, trans_a=trans)[0, 0] == other @ b
        assert tw.matmul(row, column.T, trans_b="c")[0, 0] == a @ b.conj()
