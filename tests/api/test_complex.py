"""Complex products: packed as one real product, rewritten as one, conjugated; of all strides, on every target."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import tilewright as tw
from tilewright import simulator
from tilewright.api import products
from tilewright.kernels.cpu.packing import emit_pack_complex
from tilewright.runtime import run
from tilewright.runtime.cpu import engine

pytestmark = pytest.mark.sampled

RNG = np.random.default_rng(9)
CONJ = ["", "a", "b", "ab"]


def whole(dtype, *shape):
    """Small whole numbers, whose products are exact in any order of addition."""
    x = RNG.integers(-9, 10, shape)
    return (x + 1j * RNG.integers(-9, 10, shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


# ---- the engine


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
