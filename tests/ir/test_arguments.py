"""Arguments and grids of recorded functions: what both readings take, and the sentences for what they do not."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilewright import simulate, simulator
from tilewright.ir import Kernel, bf16, f16, f32, i1, i8, i32, i64, ptr, vec
from tilewright.ir.program import written
from tilewright.runtime import run as recorded

READINGS = [recorded.run, simulator.run, simulate]
ids = {"ids": ["compiled", "simulator.run", "simulate"]}


def copying(t=f32, **options):
    k = Kernel(f"copying_{t}", n=i64, x=ptr(t, **options), z=ptr(t, **options))
    n, x, z = k.args
    with k.loop(n) as i:
        z[i] = x[i]
    return k.function


COPY = {t: copying(t) for t in (f32, i8, i32)}


@pytest.mark.parametrize("run", READINGS, **ids)
@pytest.mark.parametrize("dtype", ["f8", "i4", "f2", ">f4", "c8", ml_dtypes.bfloat16], ids=str)
def test_elements_of_another_type_are_refused(run, dtype):
    z = np.zeros(4, np.float32)
    with pytest.raises(TypeError, match=r"x points to f32: it must be an array of float32, not of .* x\.astype"):
        run(COPY[f32], 4, np.arange(4).astype(dtype), z)
    assert not z.any()


@pytest.mark.parametrize("run", READINGS, **ids)
@pytest.mark.parametrize(
    ("t", "dtype"), [(i32, np.int32), (i32, np.uint32), (i8, np.uint8), (i8, bool), (i8, ml_dtypes.float8_e4m3fn),
                     (i8, ml_dtypes.int4)], ids=str)
def test_integers_of_either_sign_and_formats_of_8_bits_are_taken(run, t, dtype):
    x, z = np.array([1, 0, 1, 1]).astype(dtype), np.zeros(4, dtype)
    run(COPY[t], 4, x, z)
    np.testing.assert_array_equal(z.view(np.uint8), x.view(np.uint8))


STRIDED = {
    "every other": lambda: np.zeros(16, np.float32)[::2],
    "reversed": lambda: np.zeros(8, np.float32)[::-1],
    "columns": lambda: np.zeros((4, 4), np.float32)[:, :2],
    "broadcast": lambda: np.broadcast_to(np.float32(1), 8),
    "transposed": lambda: np.zeros((4, 2), np.float32).T,
}


@pytest.mark.parametrize("run", READINGS, **ids)
@pytest.mark.parametrize("what", STRIDED)
def test_strided_arrays_are_refused_unless_declared(run, what):
    x, z = STRIDED[what](), np.zeros(8, np.float32)
    with pytest.raises(ValueError, match=r"x is not contiguous .* np\.ascontiguousarray\(x\).*strided=True") as error:
        run(COPY[f32], 4, x, z)
    assert ("x.T is" in str(error.value)) == (what == "transposed")
    run(COPY[f32], x.size, np.ascontiguousarray(x), z)


@pytest.mark.parametrize("run", READINGS, **ids)
def test_declared_strides_are_the_kernels_affair(run):
    k = Kernel("with_strides", n=i64, x=ptr(f32, strided=True), incx=i64, z=ptr(f32))
    n, x, incx, z = k.args
    with k.loop(n) as i:
        z[i] = x.view(incx)[i]
    z = np.zeros(4, np.float32)
    run(k.function, 4, np.arange(8, dtype=np.float32)[::2], 2, z)
    np.testing.assert_array_equal(z, [0, 2, 4, 6])


# ---- read-only arrays


def test_read_only_arrays_are_refused_where_the_kernel_writes():
    x, z = np.ones(4, np.float32), np.zeros(4, np.float32)
    z.flags.writeable = False
    with pytest.raises(ValueError, match=r"z is read-only, and copying_f32 writes it at test_arg.*\d\n.*z\[i\] = x"):
        recorded.run(COPY[f32], 4, x, z)
    assert not z.any()
    with pytest.raises(simulator.Fault, match=r"read-only .* store of z"):
        simulator.run(COPY[f32], 4, x, z)


@pytest.mark.parametrize("run", READINGS, **ids)
def test_read_only_arrays_are_taken_where_the_kernel_only_reads(run):
    x, z = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    x.flags.writeable = False
    run(COPY[f32], 4, x, z)
    np.testing.assert_array_equal(z, x)


def test_pointers_are_followed_to_what_is_written():
    inner = Kernel("inner", p=ptr(f32), q=ptr(f32))
    inner.args[0][0] = inner.args[1][0]
    k = Kernel("writing", n=i64, a=ptr(f32), b=ptr(f32), c=ptr(f32), d=ptr(i32), e=ptr(f32), f=ptr(f32), g=ptr(f32),
               h=ptr(i32), out=ptr(f32))
    n, a, b, c, d, e, f, g, h, out = k.args
    k.store(k.select(n < 3, a, b) + n, 1.0)
    moving = k.variable(ptr(f32), c)
    with k.loop(n):
        moving.set(moving.get() + 1)
        moving.get()[0] = g[0]
    k.atomic_add(d, 1)
    k.call(inner.function, k.opaque(e).as_(f32), f)
    out[h[0] + k.cast(k.address(g) == 0, i32)] = 1.0  # an index that comes from h's elements, or compares g's address
    assert set(written(k.function)) == {"a", "b", "c", "d", "e", "out"}
    external = Kernel("external", x=ptr(i8))
    external.call_external("free", None, external.args[0])
    assert set(written(external.function)) == {"x"}  # by whom nothing is known


# ---- numbers


NUMBERS = Kernel("numbers", b=i8, n=i32, m=i64, x=f32, z=ptr(f32))
NUMBERS.args[4][0] = NUMBERS.args[3]


@pytest.mark.parametrize("run", READINGS, **ids)
@pytest.mark.parametrize(
    ("name", "x", "error", "sentence"), [
        ("b", 128, OverflowError, "b is of type i8: it must be a whole number from -128 to 127, not 128"),
        ("n", 2**31, OverflowError, "a whole number from -2147483648 to 2147483647, not 2147483648"),
        ("n", -(2**31) - 1, OverflowError, "not -2147483649"),
        ("m", 2**63, OverflowError, "m is of type i64"),
        ("m", 2.5, TypeError, "m is of type i64: it must be a whole number from .*, not 2.5"),
        ("m", float("nan"), TypeError, "m is of type i64"),
        ("m", float("inf"), TypeError, "m is of type i64"),
        ("m", "3", TypeError, r"m must be a number \(i64\), not '3'"),
        ("m", None, TypeError, r"m must be a number \(i64\), not None"),
        ("x", 1j, TypeError, "x must be a number"),
        ("x", 1e39, OverflowError, "x is of type f32, which cannot hold 1e[+]39"),
        ("x", np.zeros(1, np.float32), TypeError, "x must be a number .* an array"),
    ])
def test_numbers_that_do_not_fit_are_refused(run, name, x, error, sentence):
    given = {"b": 1, "n": 2, "m": 3, "x": 4.0, "z": np.zeros(1, np.float32)} | {name: x}
    with pytest.raises(error, match=sentence):
        run(NUMBERS.function, *given.values())


@pytest.mark.parametrize("run", READINGS, **ids)
def test_numbers_that_fit_are_taken_whatever_their_type(run):
    for x in (3, True, 3.0, np.int8(3), np.float64(0.1), np.float16(2), ml_dtypes.bfloat16(3), float("inf"), 2**70):
        z = np.zeros(1, np.float32)
        run(NUMBERS.function, np.int64(-128), 2.0, True, x, z)
        assert z[0] == np.float32(float(x))


def test_types_that_compiled_code_is_not_given_from_python():
    for t in (f16, bf16, i1, vec(f32, 4)):
        k = Kernel("odd", x=t)
        with pytest.raises(TypeError, match=f"must be pointers or numbers of type i8, .* but x is of type {t}"):
            recorded.run(k.function, 1)
    k = Kernel("vector", x=vec(f32, 4), z=ptr(f32))
    k.store(k.args[1], k.args[0])
    z = np.zeros(4, np.float32)
    simulator.run(k.function, [1, 2, 3, 4], z)
    np.testing.assert_array_equal(z, [1, 2, 3, 4])
    with pytest.raises(TypeError, match="x is a v4f32: it must be 4 numbers"):
        simulator.run(k.function, [1, 2, 3], z)


# ---- grids


def counting(**options):
    k = Kernel("counting", z=ptr(i32), **options)
    k.atomic_add(k.args[0], 1)
    return k.function


@pytest.mark.parametrize("run", READINGS, **ids)
@pytest.mark.parametrize("grid", [0, -1, 1.5, (), (1, 0), (2, 2, 2, 2), (1.0,), "3", True], ids=str)
def test_grids_that_cannot_be(run, grid):
    with pytest.raises(ValueError, match=r"counting: grid must be a number of CTAs from 1 on, or \(x, y\) or .*, not"):
        run(counting(threads=32), np.zeros(1, np.int32), grid=grid)


@pytest.mark.parametrize("run", READINGS[1:], ids=ids["ids"][1:])
@pytest.mark.parametrize(("grid", "ctas"), [(None, 1), (3, 3), (np.int8(2), 2), ((3,), 3), ([2, 2], 4), ((2, 1, 3), 6)])
def test_grids_that_can_be(run, grid, ctas):
    z = np.zeros(1, np.int32)
    run(counting(threads=32), z, grid=grid)
    assert z[0] == 32 * ctas


@pytest.mark.parametrize("run", READINGS, **ids)
def test_a_cpu_function_has_no_grid(run):
    with pytest.raises(ValueError, match="counting is a CPU function: it has no grid, not 2"):
        run(counting(), np.zeros(1, np.int32), grid=2)


# ---- declarations


@pytest.mark.parametrize("threads", [0, -32, 1.5, (8, 8, 8), (), (8, 0), "32", True], ids=str)
def test_shapes_of_ctas_that_cannot_be(threads):
    with pytest.raises(ValueError, match=r"k: threads must be a whole number from 1 on, or two of them, \(x, y\), not"):
        Kernel("k", threads=threads)


def test_a_third_dimension_is_to_be_folded():
    with pytest.raises(ValueError, match=r"not \(8, 8, 8\); a third dimension has to be folded"):
        Kernel("k", threads=(8, 8, 8))


def test_shapes_of_ctas_that_can_be():
    for threads, shape in ((32, (32, 1)), (np.int64(64), (64, 1)), ((16,), (16, 1)), ([8, 4], (8, 4)), (None, None)):
        assert Kernel("k", threads=threads).function.threads == shape


@pytest.mark.parametrize("t", ["i64", float, np.float32, 3, None], ids=str)
def test_parameters_that_are_no_types(t):
    with pytest.raises(TypeError, match=r"parameter n must have a type of tilewright\.ir, such as i64, f32 or ptr"):
        Kernel("k", n=t)
    with pytest.raises(TypeError, match=r"elements must have a type of tilewright\.ir"):
        ptr(t)


@pytest.mark.parametrize(
    ("options", "sentence"), [({"warp": 16}, "warp must be 32, or 64"), ({"min_ctas": 0}, "min_ctas must be"),
                              ({"cluster": 2}, "cluster must be three"), ({"result": "i32"}, "parameter result")],
)
def test_options_that_cannot_be(options, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        Kernel("k", threads=32, **options)


@pytest.mark.parametrize("options", [{"threads": 2048}, {"threads": (64, 32)}, {"threads": 1088, "warp": 64}], ids=str)
def test_more_threads_than_a_chip_has(options):
    with pytest.raises(ValueError, match=r"counting: a CTA has at most 1024 threads on every GPU, and threads=.* are "):
        counting(**options)
