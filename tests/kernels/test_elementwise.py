"""each, each_row and fold: vector code gives NumPy's results, compiled and simulated; what stays a loop, and why."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilewright import simulator, targets
from tilewright.compiler import llvm
from tilewright.ir import Kernel, bf16, f32, f64, i8, i32, i64, ptr, vectors
from tilewright.kernels.elementwise import each, each_row, fold, once, scratch
from tilewright.runtime.run import run

WAYS = ("compiled", "simulated", "on a GPU")
SIZES = (0, 1, 7, 33, 1003)
rng = np.random.default_rng(7)


def call(way, emit, *args, width=None):
    """The emitter's function on a CPU, there in the simulator, or as two simulated CTAs of 64 threads."""
    function = emit(64 if way == "on a GPU" else None)
    if way == "compiled":
        run(function, *args)
    elif way == "simulated":
        simulator.run(vectors.vectorised(function, width) if width else function, *args)
    else:
        simulator.run(function, *args, grid=(2,))
    return function


def emit_mixed(threads=None):
    """z in bf16 and w in i8 of a bf16, an f32 and an i8."""
    k = Kernel("mixed", threads=threads, n=i64, x=ptr(bf16), y=ptr(f32), q=ptr(i8), z=ptr(bf16), w=ptr(i8))
    n, x, y, q, z, w = k.args
    with each(k, n) as i:
        s = k.cast(x[i], f32) * y[i] + k.cast(q[i], f32)
        z[i] = k.cast(s, bf16)
        w[i] = k.cast(k.select(s > 0.0, k.cast(1, i32), k.cast(i, i32)), i8)
    return k.function


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("start", [0, 1])
def test_formats_of_different_sizes(way, n, start):
    x, y, q = rng.normal(0, 1, n + 1).astype(ml_dtypes.bfloat16), rng.normal(0, 1, n + 1), rng.integers(-9, 9, n + 1)
    x[:1], x[2:3], x[3:4] = np.nan, np.inf, -0.0
    x, y, q = x[start:][:n], y.astype(np.float32)[start:][:n], q.astype(np.int8)[start:][:n]
    z, w = np.full(n + 2, 7, x.dtype), np.full(n + 2, 7, np.int8)
    function = call(way, emit_mixed, n, x, y, q, z[start:][:n], w[start:][:n])
    assert vectors.reasons(function) == []
    s = x.astype(np.float32) * y + q
    np.testing.assert_array_equal(z[start:][:n].astype(np.float32), s.astype(x.dtype).astype(np.float32))
    assert (w[start:][:n] == np.where(s > 0, 1, np.arange(n)).astype(np.int8)).all()
    assert (z[start + n:] == 7).all()
    assert (w[start + n:] == 7).all()


def test_bf16_is_rounded_to_nearest_even():
    k = Kernel("rounded", n=i64, x=ptr(f32), y=ptr(bf16), z=ptr(f32))
    n, x, y, z = k.args
    with each(k, n) as i:
        found = k.cast(x[i], bf16)
        y[i], z[i] = found, k.cast(found, f32)
    lower = np.array([0, 1, 0x7fff, 0x8000, 0x8001, 0xffff], np.uint32)
    x = (np.arange(1 << 16, dtype=np.uint32)[:, None] << 16 | lower).ravel().view(np.float32)
    y, z = np.empty(x.size, ml_dtypes.bfloat16), np.empty_like(x)
    run(k.function, x.size, x, y, z)
    with np.errstate(invalid="ignore"):
        right, number = x.astype(ml_dtypes.bfloat16), ~np.isnan(x)
    assert (y.view(np.uint16) == right.view(np.uint16))[number].all()
    assert np.isnan(y.astype(np.float32))[~number].all()
    np.testing.assert_array_equal(z, right.astype(np.float32))


@pytest.mark.parametrize("T", [bf16, i8], ids=str)
@pytest.mark.parametrize("n", [9, 17, 33, 65])
def test_nothing_is_written_past_a_known_number_of_rounds(T, n):
    k = Kernel("known", x=ptr(T), y=ptr(T))
    x, y = k.args
    with each_row(k, 1), each(k, n) as i:
        y[i] = k.cast(k.cast(y[i], f32) * 2.0 + k.cast(x[i], f32), T)
    x, y = rng.integers(-9, 9, n).astype(T.numpy), np.full(n + 8, 7, T.numpy)
    run(k.function, x, y)
    assert y.astype(int).tolist() == [*(14 + x.astype(int)), *[7] * 8]


def emit_branches(threads=None):
    """Branches, a loop, variables, one element for all, elements found by an index, every second element."""
    k = Kernel("branches", threads=threads, n=i64, m=i64, x=ptr(f64), at=ptr(i32), y=ptr(f64), z=ptr(f64), w=ptr(i64))
    n, m, x, at, y, z, w = k.args
    with each(k, n) as i:
        best = k.variable(f64, 0)
        with k.when(x[i] > 0.0):
            total = k.variable(f64, x[0])
            with k.loop(m) as p:
                total.set(total.get() + x[i] * k.cast(p, f64))
            best.set(total.get())
            with k.when(x[i] > 1.0):
                best.set(best.get() + x[k.cast(at[i], i64)])
        with k.otherwise():
            best.set(x[i] + 0.5)
            z[i * 2 + 1] = x[k.cast(at[i], i64)]
        y[i] = best.get()
        w[i] = (i + 100) // (i + 1) + i % (n + 1)
    return k.function


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n", SIZES)
def test_branches_become_masks_and_other_elements_are_read_one_by_one(way, n):
    x, at, z = rng.integers(-3, 4, n).astype(np.float64), rng.integers(0, max(n, 1), n), np.full(2*n, 9.0)
    at, y, w = at.astype(np.int32), np.empty(n), np.empty(n, np.int64)
    function = call(way, emit_branches, n, 3, x, at, y, z, w)
    assert bool(vectors.reasons(function)) == (way == "on a GPU")
    i, then = np.arange(n), x[:1] + 3*x + np.where(x > 1, x[at], 0)
    assert (y == np.where(x > 0, then, x + 0.5)).all()
    assert (z[1::2] == np.where(x > 0, 9, x[at])).all()
    assert (z[::2] == 9).all()
    assert (w == (i + 100) // (i + 1) + i % (n + 1)).all()


def emit_add(threads=None, warp=32):
    k = Kernel("add", threads=threads, warp=warp, n=i64, x=ptr(f32), y=ptr(f32), z=ptr(f32))
    n, x, y, z = k.args
    zero = k.variable(f32, 0.0)
    with each(k, n) as i:
        z[i] = x[i] + y[i] + zero.get()
    return k.function


@pytest.mark.parametrize("start", [0, 3])
def test_large_results_pass_the_caches_by(start):
    n = 500
    x, y = rng.integers(-9, 9, (2, n)).astype(np.float32)
    z = np.full(n + 5, 7, np.float32)
    call("simulated", emit_add, n, x, y, z[start:start + n], width=vectors.Width(32, False, 1024))
    assert (z[start:start + n] == x + y).all()
    assert (np.delete(z, np.s_[start:start + n]) == 7).all()


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "erf", "gelu", "gelu_tanh", "sigmoid", "sqrt"])
@pytest.mark.parametrize("T", [f32, f64], ids=str)
def test_functions_are_vectors(name, T):
    """With the bits of one number at a time."""
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-310, 1e-45, -87.4, 88.8, -745.2, 709.9, 1e300]
    with np.errstate(over="ignore"):
        x = np.concatenate([special, rng.normal(0, 30, 500)]).astype(T.numpy)

    def emit(inner):
        k = Kernel(name, n=i64, x=ptr(T), y=ptr(T))
        n, x, y = k.args
        with inner(k, n) as i:
            y[i] = getattr(k, name)(x[i])
        return k.function
    assert vectors.reasons(emit(each)) == []
    one, several = np.zeros((2, len(x)), x.dtype)
    run(emit(lambda k, n: k.loop(n)), len(x), x, one)
    run(emit(each), len(x), x, several)
    for found in one, several:
        found[np.isnan(found)] = np.nan
    assert one.tobytes() == several.tobytes()


def test_instructions():
    texts = {chip: llvm.assembly(emit_add(threads, warp), targets.target(chip)) for chip, threads, warp in (
        ("x86-avx2", None, 32), ("x86-avx512", None, 32), ("neon", None, 32), ("sm_75", 256, 32), ("gfx942", 256, 64))}
    assert all(text in texts["x86-avx2"] for text in ("%ymm", "vmovntps", "vmaskmovps"))
    assert all(text in texts["x86-avx512"] for text in ("%zmm", "vmovntps", "{%k1}"))
    assert "v0.4s" in texts["neon"]
    assert all(text in texts["sm_75"] for text in ("ld.global.v4.b32", "st.global.v4.b32"))
    assert all(text in texts["gfx942"] for text in ("global_load_dwordx4", "global_store_dwordx4"))


def carried(k, n, x, z):
    total = k.variable(f32, 0)
    with each(k, n) as i:
        total.set(total.get() + x[i])
        z[i] = total.get()


def recurrence(k, n, x, z):
    with each(k, n - 1) as i:
        z[i + 1] = z[i] + x[i + 1]


def one_place(k, n, x, z):
    with each(k, n) as i:
        z[0] = x[i]


def afterwards(k, n, x, z):
    last = k.variable(f32, 0)
    with each(k, n) as i:
        last.set(x[i])
        z[i] = x[i]
    z[0] = last.get()


def scattered(k, n, x, z):
    with each(k, n) as i:
        z[i * 2 // 2] = x[i * 2 // 2]


STAYS = {
    carried: ("a variable carries a number from one round to the next", np.cumsum),
    recurrence: ("an array is written, and accessed at another index, too", lambda x: np.cumsum(x) - x[0]),
    one_place: ("all rounds store to one address", lambda x: [x[-1], *0*x[1:]]),
    afterwards: ("a variable that the rounds have written is read after them", lambda x: [x[-1], *x[1:]]),
    scattered: ("no access is of consecutive elements", lambda x: x),
}


@pytest.mark.parametrize("body", STAYS, ids=lambda body: body.__name__)
def test_what_stays_a_loop_says_why_and_is_done_in_order(body):
    why, result = STAYS[body]
    k = Kernel("stays", n=i64, x=ptr(f32), z=ptr(f32))
    body(k, *k.args)
    (said,) = vectors.reasons(k.function)
    assert said.startswith("test_elementwise.py:")
    assert why in said
    x, z = np.arange(2, 14, dtype=np.float32), np.zeros(12, np.float32)
    run(k.function, 12, x, z)
    assert (z == result(x)).all()


def emit_rows(by):
    """Of each row the sum, the largest number with its index, and the numbers less their mean."""
    def later(a, b):
        k = a[0].k
        better = (b[0] > a[0]) | ((b[0] == a[0]) & (b[1] < a[1]))
        return tuple(k.select(better, y, x) for x, y in zip(a, b))

    def emit(threads=None):
        k = Kernel("rows", threads=threads, rows=i64, cols=i64, x=ptr(f32), sums=ptr(f32), most=ptr(f32), at=ptr(i64),
                   y=ptr(f32))
        rows, cols, x, sums, most, at, y = k.args
        x, y = x.view(cols, 1), y.view(cols, 1)
        with each_row(k, rows, by) as row:
            kept = scratch(k, 300, f32)

            def keep(j):
                found = x[row, j]
                kept[j] = found
                return found
            total = fold(k, cols, lambda a, b: a + b, 0.0, keep)
            number, index = fold(k, cols, later, (-np.inf, 1 << 40), lambda j: (x[row, j], j))
            with once(k):
                sums[row], most[row], at[row] = total, number, index
            mean = total / k.cast(cols, f32)
            with each(k, cols) as j:
                y[row, j] = kept[j] - mean
        return k.function
    return emit


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("by", ["cta", "warp"])
@pytest.mark.parametrize("cols", [1, 8, 77, 300])
def test_rows(way, by, cols):
    rows = 5
    x = rng.integers(-9, 9, (rows, cols)).astype(np.float32)
    sums, most, at, y = np.empty(rows, "f"), np.empty(rows, "f"), np.empty(rows, np.int64), np.empty_like(x)
    function = call(way, emit_rows(by), rows, cols, x, sums, most, at, y)
    assert vectors.reasons(function) == []
    assert (sums == x.sum(1)).all()
    assert (most == x.max(1)).all()
    assert (at == x.argmax(1)).all()
    assert (y == x - sums[:, None] / np.float32(cols)).all()


def test_mistakes():
    k = Kernel("mistakes", threads=48, n=i64, x=ptr(f32))
    n, x = k.args
    with pytest.raises(ValueError, match="fold is of a row, which a CTA or a warp has"):
        fold(k, n, k.max, 0.0, lambda j: x[j])
    with pytest.raises(ValueError, match="a row is divided by cta or warp, not 'grid'"), each_row(k, n, "grid"):
        pass
    with pytest.raises(ValueError, match="a CTA of 48 threads is no whole number of warps"), each_row(k, n, "warp"):
        pass
    with each_row(k, n), pytest.raises(ValueError, match="a row is within another one"), each_row(k, n):
        pass
    with each_row(k, n), pytest.raises(ValueError, match="2 numbers are combined, and there are 1 identities"):
        fold(k, n, lambda a, b: a, (0.0,), lambda j: (x[j], x[j]))
