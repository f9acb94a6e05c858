"""The simulator: mistakes in kernels are found and named, and what kernels move and do is counted."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import simulator
from tilewright.ir import Kernel, f32, f64, i8, i32, i64, ptr, vec
from tilewright.simulator import AddressSpace, Fault


def kernel(body, **options):
    """A function of n, x (f32) and y (f32), written by body(k, n, x, y)."""
    k = Kernel("test", n=i64, x=ptr(f32), y=ptr(f32), **options)
    body(k, *k.args)
    return k.function


def faults(kind, message, body, *args, **options):
    """Running it is a fault of this kind; the message names this file, the line and what is in `message`."""
    function = kernel(body)
    args = args or (8, np.arange(8, dtype=np.float32), np.zeros(8, np.float32))
    with pytest.raises(Fault, match=rf"{kind} at test_simulator.py:\d+ in test: .*{message}") as caught:
        simulator.run(function, *args, **options)
    assert caught.value.kind == kind
    assert caught.value.line.text in str(caught.value)
    return caught.value


# ---- planted mistakes

def test_one_past_the_end():
    def body(k, n, x, y):
        with k.loop(n) as i:
            y[i] = x[i + 1]
    fault = faults("out of bounds", r"load of x\[8\]: it has 8 elements", body)
    assert fault.line.text == "y[i] = x[i + 1]"


def test_one_before_the_beginning():
    def body(k, n, x, y):
        with k.loop(n) as i:
            y[i - 1] = x[i]
    faults("out of bounds", r"store of y\[-1\]", body)


def test_a_vector_that_hangs_over_the_edge():
    def body(k, n, x, y):
        with k.loop(n, step=4) as i:
            k.store(y + i, k.load(x + i, vec(f32, 4), align=4), align=4)
    six, eight = np.zeros(6, np.float32), np.zeros(8, np.float32)
    faults("out of bounds", r"load of x\[6\]: it has 6 elements", body, 6, six, eight)
    faults("out of bounds", r"store of y\[6\]", body, 8, eight, six)


def test_a_mask_that_is_one_too_wide():
    def body(k, n, x, y):
        k.store(y, k.load(x, vec(f32, 8), 4), 4, mask=k.lanes_below(n + 1, 8))
    faults("out of bounds", r"store of y\[5\]", body, 5, np.zeros(8, np.float32), np.zeros(5, np.float32))


def test_neighbouring_arrays_do_not_hide_an_overrun():
    both = np.zeros(16, np.float32)
    faults("out of bounds", r"load of x\[8\]", lambda k, n, x, y: y.__setitem__(0, x[n]), 8, both[:8], both[8:])


def test_rows_of_a_view_are_found_through_its_strides():
    """C[m, n] inside a wider array: the kernel must not leave it, but may step from row to row."""
    k = Kernel("rows", m=i64, n=i64, ldc=i64, c=ptr(f32, strided=True))
    m, n, ldc, c = k.args
    with k.loop(m) as i, k.loop(n) as j:
        c.view(ldc, 1)[i, j] = 1
    whole = np.zeros((6, 10), np.float32)
    simulator.run(k.function, 4, 3, 10, whole[1:5, 2:5])
    assert whole.sum() == 12
    assert whole[1:5, 2:5].all()
    simulator.run(k.function, 4, 3, -10, whole[4:0:-1, 2:5])
    with pytest.raises(Fault, match=r"store of c\[33\]: it has 33 elements"):
        simulator.run(k.function, 4, 4, 10, whole[1:5, 2:5])
    with pytest.raises(Fault, match=r"store of c\[-10\]"):
        simulator.run(k.function, 4, 3, -10, whole[1:5, 2:5])


@pytest.mark.parametrize("align", [4, 8, 32, 64])
def test_misaligned(align):
    def body(k, n, x, y):
        k.load(x + n, vec(f32, 16), align=align)
    zeros = np.zeros(64, np.float32)
    simulator.run(kernel(body), 16, zeros, zeros)
    if align > 4:
        faults("misaligned", rf"load of x\[1\]: it must be {align}-byte aligned", body, 1, zeros, zeros)
        faults("misaligned", r"load of x\[0\]", body, 0, zeros, zeros, memory=AddressSpace(alignment=align // 2))


def test_an_element_that_straddles_two():
    def body(k, n, x, y):
        k.load((x.as_(i8) + n).as_(f32))
    faults("misaligned", r"load of x\[1\] \+ 2 bytes: it must be 4-byte", body, 6, *[np.zeros(8, np.float32)] * 2)


def test_what_nobody_has_written_is_not_read():
    def body(k, n, x, y):
        with k.loop(n) as i:
            y[i] = x[i]
        x[0] = y[n]
    x, y = np.zeros(9, np.float32), np.zeros(9, np.float32)
    faults("uninitialised", r"load of y\[8\]: it has not been written", body, 8, x, simulator.uninitialised(y))
    faults("uninitialised", r"load of x\[0\]", body, 8, simulator.uninitialised(x), y)
    simulator.run(kernel(body), 8, x, y)

    def pairs(k, n, x, y):
        k.store(y, k.load(x, vec(f32, 4)), align=4)
        k.load(y, vec(f32, 8), align=4)
    faults("uninitialised", r"load of y\[4\]", pairs, 8, x, simulator.uninitialised(y))


def test_local_arrays_start_uninitialised():
    def body(k, n, x, y):
        stack = k.local("stack", (4,), f64)
        stack[n] = k.cast(x[0], f64)
        y[0] = k.cast(stack[2], f32)
    simulator.run(kernel(body), 2, np.zeros(8, np.float32), np.zeros(8, np.float32))
    faults("uninitialised", r"load of stack\[2\]", body, 1, *[np.zeros(8, np.float32)] * 2)
    faults("out of bounds", r"store of stack\[4\]: it has 4 elements", body, 4, *[np.zeros(8, np.float32)] * 2)


def test_a_register_that_was_never_written():
    def body(k, n, x, y):
        acc = k.tile(1, 2, f32, zero=False)
        acc[0, 0] = x[0]
        y[0] = acc[0, 1]
    faults("uninitialised", "a register that was never written", body)


def test_read_only_arrays():
    x = np.zeros(8, np.float32)
    x.flags.writeable = False
    faults("read-only", r"store of x\[3\]", lambda k, n, x, y: x.__setitem__(3, 1.0), 8, x, np.zeros(1, np.float32))


def test_wild_pointers():
    def null(k, n, x, y):
        k.load(k.constant(ptr(f32), 0) + 3)
    faults("no memory", "load at 0xc: a null pointer, 12 bytes on", null)

    def raw(k, n, x, y):
        k.load(k.pointer(123456 * 64, f32))
    faults("no memory", "no array has this address", raw)

    def nowhere(k, n, x, y):
        k.call(x.as_(i8), n)
    faults("no memory", "which is no function's address", nowhere)


def test_a_pointer_to_a_local_array_does_not_outlive_its_function():
    inner = Kernel("inner", result=ptr(f32))
    stack = inner.local("stack", (1,), f32)
    stack[0] = 1
    inner.ret(stack)

    def body(k, n, x, y):
        y[0] = k.call(inner.function)[0]
    faults("no memory", "or its function has returned", body)


def test_calls_with_other_types():
    callee = Kernel("callee", x=f64)
    callee.ret()

    def body(k, n, x, y):
        k.call(k.pointer(k.load(x.as_(i64)), i8), n)
    memory = AddressSpace()
    table = np.array([memory.address(callee.function)]).view(np.float32)
    faults("signature", "a call of callee with other types", body, 8, table, table, memory=memory)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda k, n, x, y: x[n // (n - 8)], "div by zero"),
        (lambda k, n, x, y: x[(n - 9) % 4], "rem of a negative index, -1"),
        (lambda k, n, x, y: x[n << 64], "64 bits is shifted by 64"),
        (lambda k, n, x, y: k.cast(x[0] * 1e30, i32), "a float that i32 cannot hold"),
    ],
)
def test_what_llvm_leaves_undefined(body, message):
    faults("arithmetic", message, body, 8, np.ones(8, np.float32), np.ones(8, np.float32))


def test_what_has_no_meaning_says_so_when_it_is_reached():
    def body(k, n, x, y):
        with k.when(n > 8):
            k.call_external("getpid", i32)
        with k.when(n > 9):
            k.atomic_load(x.as_(i64))
    simulator.run(kernel(body), 8, *[np.zeros(8, np.float32)] * 2)
    faults("no meaning", r"getpid\(\) is no recorded function", body, 9, *[np.zeros(8, np.float32)] * 2)


def test_a_function_that_forgets_its_result():
    k = Kernel("forgetful", n=i64, result=i64)
    with k.when(k.args[0] > 3):
        k.ret(1)
    assert simulator.run(k.function, 4).result == 1
    with pytest.raises(Fault, match=r"no result at .* in forgetful: it ends without returning i64"):
        simulator.run(k.function, 3)


def test_faults_in_a_called_function_name_it_and_the_callers_array():
    inner = Kernel("inner", p=ptr(f32))
    inner.load(inner.args[0] + 5)

    def body(k, n, matrix, y):
        k.call(inner.function, matrix + n)
    with pytest.raises(Fault, match=r"in inner: load of x\[13\]"):
        simulator.run(kernel(body), 8, np.zeros(8, np.float32), np.zeros(8, np.float32))


# ---- arguments

def test_arguments_are_checked():
    function = kernel(lambda k, n, x, y: None)
    x = np.zeros(4, np.float32)
    with pytest.raises(TypeError, match=r"test takes 3 arguments \(n, x, y\), not 2"):
        simulator.run(function, 1, x)
    with pytest.raises(TypeError, match=r"n must be a number .i64., not an array"):
        simulator.run(function, x, x, x)
    with pytest.raises(TypeError, match=r"y must be an array, a recorded function or an address, not 1\.5"):
        simulator.run(function, 1, x, 1.5)
    with pytest.raises(ValueError, match="test is a CPU function: it has no grid"):
        simulator.run(function, 1, x, x, grid=(2, 1))


def test_empty_arrays_may_be_passed_and_not_touched():
    empty = np.zeros((0, 4), np.float32)
    simulator.run(kernel(lambda k, n, x, y: None), 1, empty, empty)
    faults("out of bounds", r"load of x\[0\]: it has 0 elements", lambda k, n, x, y: x[0], 1, empty, empty)


def test_the_same_array_twice_is_the_same_memory():
    x = np.arange(4, dtype=np.float32)

    def body(k, n, x, y):
        x[0] = 7
        y[1] = x[0] + k.cast(k.address(y) - k.address(x), f32)
    simulator.run(kernel(body), 1, x, x)
    np.testing.assert_array_equal(x, [7, 7, 2, 3])


# ---- what is counted

def test_traffic_of_a_matrix_product():
    k = Kernel("product", n=i64, a=ptr(f64), b=ptr(f64), c=ptr(f64))
    n, a, b, c = k.args
    a, b, c = (x.view(n, 1) for x in (a, b, c))
    with k.loop(n) as i, k.loop(n) as j:
        acc = k.variable(f64, 0.0)
        with k.loop(n) as p:
            acc.set(k.fma(a[i, p], b[p, j], acc.get()))
        c[i, j] = acc.get()
    N = 6
    a, b = np.random.default_rng(0).integers(-3, 4, (2, N, N)).astype(np.float64)
    c = np.zeros((N, N))
    report = simulator.run(k.function, N, a, b, c)
    np.testing.assert_array_equal(c, a @ b)
    assert report.flops == 2 * N**3
    assert report.instructions["fma"] == N**3
    assert report.instructions["load"] == report.of(verb="load").requests == 2 * N**3
    assert report.of("a").bytes == report.of("b").bytes == 8 * N**3
    assert report.of("a").distinct == 8 * N**2
    assert report.of("a").lines == -(-8 * N**2 // 64)
    assert report.of("c", "store").elements == report.of("c").elements == N**2
    text = str(report)
    assert "acc.set(k.fma(a[i, p]" in text
    assert "2 fma" in text.replace("216", "2")
    assert f"flops: {2 * N**3}" in text


def test_cache_lines():
    """A vector that starts in the middle of a line moves two; elements far apart move one each."""
    def body(k, n, x, y):
        k.load(x + n, vec(f32, 16), align=4)
        with k.loop(8) as i:
            y[k.cast(i, i64) * 16] = 0
    x, y = np.zeros(32, np.float32), np.zeros(128, np.float32)
    for n, moved in ((0, 1), (1, 2), (16, 1)):
        report = simulator.run(kernel(body), n, x, y)
        assert (report.of("x").moved, report.of("x").ideal, report.of("x").lines) == (moved, 1, moved)
    assert (report.of("y").moved, report.of("y").lines, report.of("y").distinct) == (8, 8, 32)
    report = simulator.run(kernel(body), 0, x, y, memory=AddressSpace(alignment=4))
    assert (report.of("x").moved, report.of("x").distinct) == (2, 64)


def test_masked_elements_are_not_counted():
    def body(k, n, x, y):
        mask = k.lanes_below(n, 16)
        k.store(y, k.load(x, vec(f32, 16), 4, mask), 4, mask)
    x, y = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    report = simulator.run(kernel(body), 5, x, y)
    assert (report.of("x").requests, report.of("x").elements, report.of("y").bytes) == (1, 5, 20)
    np.testing.assert_array_equal(y, np.where(np.arange(16) < 5, x, 0))
    report = simulator.run(kernel(body), 0, x, y)
    assert report.of("x").requests == report.of("y").requests == 0


# ---- threads: several lanes run as one, masked where they part company

def lanes(body, threads=64, **params):
    k = Kernel("lanes", threads=threads, x=ptr(f32), **params)
    body(k, k.thread[0], *k.args)
    return k.function


def test_idle_threads_may_point_anywhere():
    def body(k, t, x):
        with k.when(t < 50):
            x[t] = k.cast(t, f32)
        k.barrier()
        with k.when(t >= 50):
            x[t - 50] = x[t - 50] + 100
    x = np.zeros(50, np.float32)
    simulator.run(lanes(body), x)
    np.testing.assert_array_equal(x, np.arange(50) + np.where(np.arange(50) < 14, 100, 0))


def test_off_by_one_names_block_and_thread():
    def body(k, t, x):
        x[k.block[0] * 64 + t + 1] = 0
    with pytest.raises(Fault, match=r"store of x\[128\] by block \(1, 0\) thread \(63, 0\): it has 128 elements"):
        simulator.run(lanes(body), np.zeros(128, np.float32), grid=(2, 1))


def test_lanes_may_loop_different_numbers_of_times():
    def body(k, t, x):
        acc = k.variable(f32, 0.0)
        with k.loop(t % 5, start=1) as i:
            acc.set(acc.get() + k.cast(i, f32))
        x[t] = acc.get()
    x = np.full(64, np.nan, np.float32)
    simulator.run(lanes(body), x)
    np.testing.assert_array_equal(x, [sum(range(1, t % 5)) for t in range(64)])


def test_lanes_may_leave_a_while_at_different_times():
    def body(k, t, x):
        n, steps = k.variable(i32, t + 1), k.variable(i32, 0)
        with k.while_(lambda: n.get() != 1):
            with k.when(n.get() % 2 == 1):
                n.set(n.get() * 3 + 1)
            with k.otherwise():
                n.set(n.get() // 2)
            steps.set(steps.get() + 1)
        x[t] = k.cast(steps.get(), f32)

    def collatz(n):
        return 0 if n == 1 else 1 + collatz(n * 3 + 1 if n % 2 else n // 2)
    x = np.zeros(64, np.float32)
    simulator.run(lanes(body), x)
    np.testing.assert_array_equal(x, [collatz(t + 1) for t in range(64)])


def test_lanes_may_return_at_different_points():
    inner = Kernel("inner", threads=64, t=i32, result=i32)
    (t,) = inner.args
    with inner.when(t < 8):
        inner.ret(100)
    with inner.loop(t) as i:
        with inner.when(t < 16):
            inner.ret(200)
        with inner.when((i * i > t) & (t < 60)):
            inner.ret(i)
    inner.ret(300)

    def body(k, t, x):
        with k.when(t < 62):
            x[t] = k.cast(k.call(inner.function, t), f32)
        x[t] = x[t] + 0.5

    def expected(t):
        if t < 8:
            return 100
        if t < 16:
            return 200
        return next((i for i in range(t) if i * i > t), 300) if t < 60 else 300 if t < 62 else 0
    x = np.zeros(64, np.float32)
    simulator.run(lanes(body), x)
    np.testing.assert_array_equal(x, [expected(t) + 0.5 for t in range(64)])


def test_lanes_may_call_different_functions_and_point_into_different_arrays():
    plus, times = (Kernel(name, threads=32, x=f32, result=f32) for name in ("plus", "times"))
    plus.ret(plus.args[0] + 1)
    times.ret(times.args[0] * 10)

    def body(k, t, x, y, table):
        f = k.load((table + k.cast(t % 2, i64)).as_(i64).as_(i8), ptr(i8))
        p = k.select(t < 20, x + t, y + t)
        p[0] = k.call(f, p[0], result=f32)
    memory = AddressSpace()
    table = np.array([memory.address(f.function) for f in (plus, times)])
    x, y = np.arange(20, dtype=np.float32), np.arange(32, dtype=np.float32)
    report = simulator.run(lanes(body, 32, y=ptr(f32), table=ptr(i64)), x, y, table, memory=memory)
    n = np.arange(32)
    done = np.where(n % 2, n * 10, n + 1)
    np.testing.assert_array_equal(x, done[:20])
    np.testing.assert_array_equal(y, np.where(n < 20, n, done))
    assert (report.of("x", "store").elements, report.of("y", "store").elements) == (20, 12)


def test_each_thread_has_its_own_local_array():
    def body(k, t, x):
        stack = k.local("stack", (3,), f32)
        stack[1] = k.cast(t, f32)
        x[t] = stack[1]
        with k.when(t == 40):
            x[t] = stack[t - 38]
    x = np.zeros(64, np.float32)
    with pytest.raises(Fault, match=r"uninitialised .*load of stack\[2\] by block .0, 0. thread .40, 0."):
        simulator.run(lanes(body), x)
    np.testing.assert_array_equal(x, np.arange(64))


def test_coalescing():
    """A warp moves 4 sectors of 32 bytes when its lanes lie side by side, 32 when they are 32 bytes or more apart."""
    for stride, moved in ((0, 1), (1, 4), (2, 8), (8, 32), (100, 32)):
        report = simulator.run(lanes(lambda k, t, x, s=stride: x[t * s], 32), np.zeros(3200, np.float32))
        assert report.of("x").moved == moved
        assert (report.of("x").requests, report.of("x").elements) == (1, 32)
        assert report.of("x").ideal == (4 if stride else 1)
