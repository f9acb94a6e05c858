"""`out`, `out_dtype` and gemm's C in every format: what NumPy's assignment gives, and integers modulo 2^bits."""

from __future__ import annotations

import itertools
from functools import cache

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.helpers.numbers import modulo, numbers
from tilewright import formats
from tilewright.api import host
from tilewright.formats import FORMATS, Bool, Complex, Float, Format, Integer

INTEGERS = [f for f in FORMATS.values() if isinstance(f, Integer)]
WHOLE = [*INTEGERS, FORMATS["bool"]]
KINDS = Bool, Integer, Float, Complex
WIDE = np.frompyfunc(int, 1, 1)


def wild(f: Format, *shape: int) -> np.ndarray:
    """Numbers of all sizes, so that sums wrap, overflow and are rounded."""
    x = numbers(f, *shape)
    if isinstance(f, (Integer, Bool)) or f.name == "e8m0":
        return x
    # Of one sign: where the largest cancel, what is left depends on the order of sums, which plans choose.
    for part in (x.real, x.imag) if isinstance(f, Complex) else (x,):
        part[...] = np.abs(part)
    largest = (f.part if isinstance(f, Complex) else f).largest
    x.flat[::3] = largest / 4
    return x


@cache
def may_hold(out: Format, result: Format) -> bool:
    """Whether NumPy's rule same_kind, with ml_dtypes' types counted as what they are, casts a result to out."""
    ranks = [next(rank for rank, kind in enumerate(KINDS) if isinstance(f, kind)) for f in (out, result)]
    return ranks[0] >= ranks[1] and np.can_cast(result.dtype, out.dtype, "same_kind")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("f", FORMATS.values(), ids=str)
def test_out_receives_what_an_assignment_gives(f):
    every = list(FORMATS.values())
    for index in range(every.index(f), every.index(f) + len(every)):
        g = every[index % len(every)]
        a, b = wild(f, 2, 5), wild(g, 5, 3)
        product = tw.matmul(a, b)
        found = formats.get(product.dtype)
        for out in every[index % 4 :: 4]:  # with other pairs of the same result the others
            c, wanted = np.zeros(product.shape, out.dtype), np.zeros(product.shape, out.dtype)
            if not may_hold(out, found):
                continue
            with np.errstate(all="ignore"):
                wanted[...] = product
                assert tw.matmul(a, b, c) is c
            assert c.tobytes() == wanted.tobytes(), f"{f} by {g} into {out}: {c}, {wanted}"


@pytest.mark.parametrize("f", ["bool", "i8", "u16", "u32", "f16"])
@pytest.mark.parametrize("out", ["i64", "f32", "f64", "c128"])
def test_large_products_that_packing_converts(f, out):
    a, b = wild(FORMATS[f], 65, 66), wild(FORMATS[f], 66, 64)
    product = tw.matmul(a, b)
    if may_hold(FORMATS[out], formats.get(product.dtype)):
        c = np.zeros((64, 65), FORMATS[out].dtype).T
        np.testing.assert_array_equal(tw.matmul(a, b, c), product.astype(c.dtype))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("f", WHOLE, ids=str)
def test_integers_are_exact_modulo_the_bits_of_any_integer_result(f):
    """By out_dtype, and in gemm by C, signed and unsigned formats of 64 bits among them."""
    for g, out in itertools.product(WHOLE, INTEGERS):
        a, b, c = numbers(f, 3, 4), numbers(g, 4, 2), numbers(out, 3, 2)
        exact = WIDE(a) @ WIDE(b)
        said = f"{f} by {g} into {out}"
        np.testing.assert_array_equal(modulo(tw.matmul(a, b, out_dtype=out), out.bits), modulo(exact, out.bits), said)
        wanted = modulo(3 * exact - WIDE(c), out.bits)
        np.testing.assert_array_equal(modulo(tw.gemm(3, a, b, -1, c), out.bits), wanted, said)


def test_every_pair_of_integers_has_an_integer_accumulator():
    for f, g, out in itertools.product(WHOLE, WHOLE, INTEGERS):
        bits = max(f.bits, g.bits, out.bits)
        assert formats.accumulator(f, g, out).name == ("i64" if bits > 32 else "i32")
    assert tw.Gemm(2, 2, 2, "i32", "i32", "u64").compute == "i64"
    assert formats.accumulator("i64", "u64", "f64").name == "f64"


def test_what_out_cannot_hold_is_refused():
    for f, out in itertools.product(("i8", "u16", "f32", "c64"), FORMATS.values()):
        one = np.ones((2, 2), FORMATS[f].dtype)
        if not may_hold(out, FORMATS[f]):
            with pytest.raises(TypeError, match=f"out has dtype {out.dtype}, to which a result of dtype {one.dtype}"):
                tw.matmul(one, one, np.zeros((2, 2), out.dtype))


def test_no_imaginary_part_and_no_fraction_is_dropped():
    z = np.full((2, 2), 1 + 2j)
    for name in ("bf16", "e4m3fn", "e2m3", "e8m0", "i4"):
        dtype = FORMATS[name].dtype
        with pytest.raises(TypeError, match=f"out has dtype {dtype}, to which a result of dtype complex128 cannot"):
            tw.matmul(z, z, np.zeros((2, 2), dtype))
    with pytest.raises(TypeError, match="out has dtype uint2, to which a result of dtype float64 cannot be cast"):
        tw.matmul(z.real, z.real, np.zeros((2, 2), FORMATS["u2"].dtype))
    with pytest.raises(TypeError, match="c has dtype int4, to which a result of dtype float64"):
        tw.gemm(1, z.real, z.real, 1, np.zeros((2, 2), FORMATS["i4"].dtype))


@pytest.mark.parametrize("name", ["i32", "f32", "c128"])
def test_out_of_another_byte_order_has_the_dtype_that_out_dtype_asks_for(name):
    dtype = FORMATS[name].dtype
    out = np.zeros((2, 2), dtype.newbyteorder())
    assert tw.matmul(np.ones((2, 3), np.int8), np.ones((3, 2), np.int8), out, out_dtype=name) is out
    np.testing.assert_array_equal(out, 3)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz"])
def test_sums_are_stored_in_an_out_of_ml_dtypes_at_once(monkeypatch, name):
    """Without an array of float32 in between, and with the bits that a cast of one would give."""
    rng, given = np.random.default_rng(5), []
    a, b = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((130, 90), (90, 70)))
    out, run = np.empty((130, 70), getattr(ml_dtypes, name)), host.run
    monkeypatch.setattr(host, "run", lambda gemm, a, b, c, *args, **options: given.append(c) or run(
        gemm, a, b, c, *args, **options))
    assert tw.matmul(a, b, out) is out
    assert given[0].ctypes.data == out.ctypes.data
    np.testing.assert_array_equal(out.view(np.uint8), tw.matmul(a, b).astype(out.dtype).view(np.uint8))
