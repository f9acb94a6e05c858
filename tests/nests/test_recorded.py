"""Recorded kernels as loop nests: the lecture's versions and others, against the simulator, and what is refused."""

import numpy as np
import pytest

from tests.nests import random_kernels
from tests.nests.interpreter_of_nests import results
from tilewright import simulator
from tilewright.ir import Kernel, bf16, f16, f32, f64, i8, i32, i64, ptr, vec
from tilewright.kernels.elementwise import each_row, emit_axpy, fold
from tilewright.lab.ladder import cpu1_naive, cpu2_registers, gpu04_shared, gpu05_coalesced, gpu06_padded, gpu07_vectors
from tilewright.lab.ladder.gpu01_naive import emit_naive
from tilewright.lab.ladder.gpu02_tiled import emit_tiled
from tilewright.lab.ladder.gpu03_registers import emit_registers
from tilewright.nests.nest import Refused
from tilewright.nests.reading.launches import smaller
from tilewright.nests.reading.recorded import nest
from tilewright.targets.cpu import AVX2, record


def numbers(rng, count, dtype=np.float32):
    return rng.integers(-3, 4, count).astype(dtype)


def agree(function, grid, *arguments):
    """The nest of a kernel, which leaves in the arrays what the kernel does, bit for bit."""
    found = nest(function, grid)
    by_nest = results(found, arguments)
    by_kernel = [x.copy() if isinstance(x, np.ndarray) else x for x in arguments]
    simulator.run(function, *by_kernel, grid=None if function.threads is None else grid)
    for x, y in zip(by_kernel, by_nest):
        if isinstance(x, np.ndarray):
            np.testing.assert_array_equal(x, y)
    return found


def product(function, grid, m, n, k):
    """A kernel of the ladder's parameters on matrices in larger arrays, of which nothing else may be written."""
    rng = np.random.default_rng(0)
    a, b, c = numbers(rng, m * (k + 1)), numbers(rng, k * (n + 2)), numbers(rng, m * (n + 3))
    return agree(function, grid, m, n, k, 2.0, a, k + 1, b, n + 2, -1.0, c, n + 3)


def loops(found):
    """For each statement the kinds of its loops and their rounds, those of known bounds."""
    return [[f"{x.kind} {(x.stop - x.start).constant or '...'}" for x in s.loops] for s in found.statements]


# ---- the lecture's versions

def lecture_v1(X=4, Y=8):
    k = Kernel("mm1", threads=(X, Y), N=i32, A=ptr(f32), B=ptr(f32), C=ptr(f32))
    N, A, B, C = k.args
    A, B, C = A.view(N, 1), B.view(N, 1), C.view(N, 1)
    x, y = k.block[0] * X + k.thread[0], k.block[1] * Y + k.thread[1]
    result = k.variable(f32, 0)
    with k.loop(N) as p:
        result.set(result.get() + A[x, p] * B[p, y])
    C[x, y] = result.get()
    return k.function


def lecture_v15(T=2, V=2):
    """A row of A in a register at a time, and each element of the tile a loop of its own."""
    k = Kernel("mm15", threads=(T, T), N=i32, A=ptr(f32), B=ptr(f32), C=ptr(f32))
    N, A, B, C = k.args
    A, B, C = A.view(N, 1), B.view(N, 1), C.view(N, 1)
    x, y = ((k.block[d] * T + k.thread[d]) * V for d in (0, 1))
    c = k.tile(V, V, f32)
    for i in range(V):
        for j in range(V):
            with k.loop(N) as p:
                c[i, j] = c[i, j] + A[x + i, p] * B[p, y + j]
    for i in range(V):
        for j in range(V):
            C[x + i, y + j] = c[i, j]
    return k.function


def lecture_v2(T=2, V=2):
    k = Kernel("mm2", threads=(T, T), N=i32, A=ptr(f32), B=ptr(f32), C=ptr(f32))
    N, A, B, C = k.args
    A, B, C = A.view(N, 1), B.view(N, 1), C.view(N, 1)
    x, y = ((k.block[d] * T + k.thread[d]) * V for d in (0, 1))
    c, a, b = k.tile(V, V, f32), k.tile(1, V, f32), k.tile(1, V, f32)
    with k.loop(N) as p:
        for i in range(V):
            a[0, i] = A[x + i, p]
            b[0, i] = B[p, y + i]
        for i in range(V):
            for j in range(V):
                c[i, j] = c[i, j] + a[0, i] * b[0, j]
    for i in range(V):
        for j in range(V):
            C[x + i, y + j] = c[i, j]
    return k.function


def lecture_v3(L=8, S=4, V=2, runtime=False, barriers=2):
    """`runtime`: the loops over turns and over p are the kernel's, not Python's."""
    T = L // V
    k = Kernel("mm3", threads=(T, T), N=i32, A=ptr(f32), B=ptr(f32), C=ptr(f32))
    N, A, B, C = k.args
    A, B, C = A.view(N, 1), B.view(N, 1), C.view(N, 1)
    sA, sB = k.smem("sA", (L, S), f32), k.smem("sB", (S, L), f32)
    (tx, ty), (bx, by) = k.thread, k.block
    tid, c = ty * T + tx, k.tile(V, V, f32)

    def turns(n, body):
        if runtime:
            with k.loop(n) as j:
                body(j)
        else:
            for j in range(n):
                body(j)

    def fetch_a(j):
        y, x = (j * (T * T) + tid) // S, (j * (T * T) + tid) % S
        sA[y, x] = A[by * L + y, ko + x]

    def fetch_b(j):
        y, x = (j * (T * T) + tid) // L, (j * (T * T) + tid) % L
        sB[y, x] = B[ko + y, bx * L + x]

    def multiply(ki):
        a, b = [sA[ty * V + i, ki] for i in range(V)], [sB[ki, tx * V + j] for j in range(V)]
        for i in range(V):
            for j in range(V):
                c[i, j] = c[i, j] + a[i] * b[j]
    with k.loop(N, step=S) as ko:
        if barriers > 1:
            k.barrier()
        turns(L * S // (T * T), fetch_a)
        turns(L * S // (T * T), fetch_b)
        if barriers > 0:
            k.barrier()
        turns(S, multiply)
    for i in range(V):
        for j in range(V):
            C[by * L + ty * V + i, bx * L + tx * V + j] = c[i, j]
    return k.function


@pytest.mark.parametrize(("function", "grid", "inner"), [
    (lecture_v1(), (2, 1), 0), (lecture_v15(), (2, 2), 2), (lecture_v2(), (2, 2), 2), (lecture_v3(), (1, 1), 2),
    (lecture_v3(runtime=True), (1, 1), 2)])
def test_the_lecture_s_versions(function, grid, inner):
    """Three statements in loops of blocks, threads, and register tiles: start, sum, store."""
    rng = np.random.default_rng(1)
    found = agree(function, grid, 8, *(numbers(rng, 64) for _ in range(3)))
    start, total, store = found.statements
    assert (start.reduce, total.reduce, store.reduce) == ("", "add", "")
    assert start.loops == store.loops == total.loops[:len(start.loops)]
    assert [x.kind for x in start.loops].count("loop") == inner
    assert {x.array for x in (start.target, total.target)} == {*found.scalars}
    assert store.target.array == "C"


@pytest.mark.parametrize("shape", [(8, 8, 8), (7, 9, 5), (1, 3, 2), (5, 4, 0)])
@pytest.mark.parametrize(("function", "grid", "inner"), [
    (emit_naive(4), (3, 3), []), (emit_tiled(2, 2), (3, 3), None), (emit_registers(2, 2), (3, 3), [2, 2]),
    (gpu04_shared.emit_shared(8, 4, 2), (2, 2), [2, 2]), (gpu05_coalesced.emit_coalesced(8, 4, 2), (2, 2), [2, 2])])
def test_ladder(function, grid, inner, shape):
    found = product(function, grid, *shape)
    total = next(s for s in found.statements if s.reduce == "add")
    assert len(found.statements) == 3                       # start, sum, store with alpha and beta
    assert len([x for x in total.loops if x.kind != "loop"]) == 4
    if inner is not None:
        assert [(x.stop - x.start).constant for x in found.statements[0].loops[4:]] == inner


@pytest.mark.parametrize("emit", [gpu06_padded.emit_padded, gpu07_vectors.emit_vectors])
def test_ladder_of_padded_tiles(emit):
    """A transposed in rows of 132 elements of shared memory; vectors there; CTAs of 128 x 128."""
    found = product(emit(), (1, 1), 37, 29, 11)
    assert len(found.statements) == 3


# ---- other kernels

def test_blocks_of_a_cta_in_one_dimension():
    """thread.x // 8 and % 8 are digits of the thread's index."""
    k = Kernel("rows", threads=32, N=i32, A=ptr(f32), B=ptr(f32), C=ptr(f32))
    N, A, B, C = k.args
    A, B, C, t = A.view(N, 1), B.view(N, 1), C.view(N, 1), k.thread[0]
    i, j = k.block[0] * 4 + t // 8, k.block[1] * 8 + (t >> 1) % 4 * 2 + (t & 1)
    r = k.variable(f32, 0)
    with k.loop(N) as p:
        r.set(r.get() + A[i, p] * B[p, j])
    C[i, j] = r.get()
    rng = np.random.default_rng(2)
    found = agree(k.function, (2, 1), 8, *(numbers(rng, 64) for _ in range(3)))
    assert loops(found)[0] == ["block 2", "loop 4", "loop 4", "loop 2"]


def vectors(dtype, wide, n=4):
    """Two rows of vectors, as the CPU's kernels have them: broadcasts, multiply-adds, a masked last vector."""
    k = Kernel("vectors", kc=i64, columns=i64, a=ptr(dtype), b=ptr(dtype), ldb=i64, c=ptr(wide), ldc=i64)
    kc, columns, a, b, ldb, c, ldc = k.args
    a, b, c = a.view(kc, 1), b.view(ldb, 1), c.view(ldc, 1)
    acc = k.tile(2, 2, vec(wide, n))
    with k.loop(kc) as p:
        row = [k.cast(k.load(b.at(p, j * n), vec(dtype, n), align=dtype.bytes), vec(wide, n)) for j in range(2)]
        for i in range(2):
            element = k.broadcast(k.cast(a[i, p], wide), n)
            for j in range(2):
                acc[i, j] = k.fma(element, row[j], acc[i, j])
    for i in range(2):
        for j in range(2):
            k.store(c.at(i, j * n), acc[i, j], align=wide.bytes, mask=k.lanes_below(columns - j * n, n))
    return k.function


@pytest.mark.parametrize(("dtype", "wide"), [(f32, f32), (f16, f32), (bf16, f32), (i8, i32), (f64, f64)])
@pytest.mark.parametrize("columns", [8, 7, 3])
def test_vectors_of_registers(dtype, wide, columns):
    rng = np.random.default_rng(3)
    arrays = [numbers(rng, 80, t.numpy) for t in (dtype, dtype, wide)]
    found = agree(vectors(dtype, wide), 1, 5, columns, arrays[0], arrays[1], 9, arrays[2], 11)
    assert loops(found) == [["loop 2", "loop 8"], ["loop 2", "loop 8", "loop ..."], ["loop 2", "loop 8"]]


def test_the_cpu_s_kernels():
    rng = np.random.default_rng(4)
    agree(cpu1_naive.emit_naive(None, "f32"), 1, 3, 4, 5, *(numbers(rng, 20) for _ in range(3)))
    found = agree(cpu2_registers.emit_tile(record(AVX2), "f32", 3), 1, 4, numbers(rng, 99), 5, numbers(rng, 999),
                  40, numbers(rng, 999), 41)
    assert len(found.statements) == 3


@pytest.mark.parametrize("grid", [1, 3])
def test_rounds_of_each(grid):
    rng = np.random.default_rng(5)
    for threads in (None, 64):
        found = agree(emit_axpy(threads), grid, 100, 3.0, numbers(rng, 100), numbers(rng, 100))
        assert str(found) == "loop i = 0 ... n - 1\n  y[i] add= alpha * x[i]"


def test_rounds_of_rows():
    """each_row and fold, on a CPU."""
    k = Kernel("sums", rows=i64, cols=i64, x=ptr(f32), y=ptr(f32))
    rows, cols, x, y = k.args
    with each_row(k, rows) as row:
        y[row] = fold(k, cols, lambda a, b: a + b, 0.0, lambda j: x[row * cols + j])
    agree(k.function, 1, 3, 5, numbers(np.random.default_rng(6), 15), np.zeros(3, np.float32))


def test_choices():
    """min and max, by select and as instructions; conditions on numbers; otherwise; masks; rounds of min(a, b)."""
    k = Kernel("choices", threads=(4, 2), n=i32, t=f32, a=ptr(f32), c=ptr(f32))
    n, t, a, c = k.args
    x = k.thread[0] + k.thread[1] * 4
    low, high, total = k.variable(f32, 9), k.variable(f32, -9), k.variable(f32, 0)
    with k.loop(k.min(x + 3, n), start=x) as i:
        low.set(k.min(low.get(), a[i]))
        high.set(k.fmax(high.get(), k.abs(a[i])))
        with k.when(a[i] < t):
            total.set(total.get() + k.load(a + (i + 1), mask=i + 1 < n))
        with k.otherwise():
            total.set(total.get() * 2)
    with k.when((x < n) & (t != 0)):
        c[x] = k.select(x == 3, -low.get(), high.get())
    with k.otherwise():
        c[x] = total.get() + k.cast(x, f32)
    c[x + 8] = total.get()
    for threshold in (0.0, 1.0):
        found = agree(k.function, 1, 7, threshold, numbers(np.random.default_rng(7), 8), np.zeros(16, np.float32))
    assert {s.reduce for s in found.statements} == {"", "add", "mul", "fmin", "fmax"} - {"mul"}


def test_order_is_kept():
    """Parts that read what others have written stay interleaved."""
    k = Kernel("shift", c=ptr(f32))
    c, = k.args
    r = [k.variable(f32, 0) for _ in range(3)]
    with k.loop(4) as i:
        for x in range(3):
            r[x].set(r[x].get() + c[i + x])
        for x in range(3):
            c[i + x + 1] = r[x].get()
    found = agree(k.function, 1, numbers(np.random.default_rng(8), 10))
    assert len(found.scalars) == 3


def test_registers_hold_what_memory_was():
    """A copy of an element that is written before the copy is used, and a sum that a condition starts."""
    k = Kernel("swap", n=i32, b=ptr(f32), c=ptr(f32))
    n, b, c = k.args
    x, y, total = k.variable(f32, c[0]), k.variable(f32, c[1]), k.variable(f32)
    c[0] = y.get()
    c[1] = x.get()
    with k.loop(n) as i:
        with k.when(i < 1):
            total.set(0)
        total.set(total.get() + b[i])
        with k.when(i > 1):
            c[i] = total.get()
    rng = np.random.default_rng(9)
    agree(k.function, 1, 5, numbers(rng, 5), numbers(rng, 5))


def test_smaller_launches():
    """Fewer CTAs for smaller matrices, in which loops stay inside of their arrays."""
    shapes = dict.fromkeys("ABC", (512 * 512,))
    found = list(smaller(lecture_v1(16, 16), (32, 32), shapes, {"N": 512}))
    assert [(loops(n)[0][:2], sizes["N"]) for n, _, sizes in found] == [
        (["thread 16", "thread 16"], 16), (["block 2", "block 2"], 32), (["block 4", "block 4"], 64),
        (["block 8", "block 8"], 128)]
    for n, new, sizes in found[:2]:
        rng = np.random.default_rng(10)
        arrays = [numbers(rng, new[name][0]) for name in "ABC"]
        product = results(n, [sizes["N"], *arrays])[-1]
        of = [x[:sizes["N"]**2].reshape(sizes["N"], -1) for x in arrays]
        np.testing.assert_array_equal(product[:sizes["N"]**2].reshape(of[2].shape), of[0] @ of[1])


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "sigmoid", "erf", "gelu", "gelu_tanh", "sqrt"])
@pytest.mark.parametrize("threads", [None, 32])
def test_functions(name, threads):
    """Of numbers and of vectors, of which kernels record the operations."""
    k = Kernel("functions", threads=threads, a=ptr(f32), c=ptr(f32))
    a, c = k.args
    x = getattr(k, name)(k.abs(a[0]) + 1)
    c[0] = x * x + getattr(k, name)(k.exp(a[1] * 0.125))
    k.store(c + 4, getattr(k, name)(k.load(a, vec(f32, 4))))
    if threads is None:
        arrays = np.float32([1, 2, 0.5, 3]), np.zeros(8, np.float32)
        by_kernel = arrays[1].copy()
        simulator.run(k.function, arrays[0], by_kernel)
        np.testing.assert_allclose(results(nest(k.function), arrays)[1], by_kernel, rtol=1e-5)
    assert str(nest(k.function)).count(f"{name}(") == 4 + (name == "exp")


def test_values_that_grow_are_refused():
    k = Kernel("grown", a=ptr(f32), c=ptr(f32))
    a, c = k.args
    x = a[0]
    for _ in range(40):
        x = x * x + 1
    c[0] = x
    with pytest.raises(Refused, match="more than 2000 operations"):
        nest(k.function)


# ---- what is refused

def kernel(body, threads=None, **parameters):
    """A function of n, a, b, c."""
    def emit():
        k = Kernel("refused", threads=threads, n=i32, a=ptr(f32), b=ptr(f32), c=ptr(f32), at=ptr(i32), h=ptr(f16),
                   d=ptr(f64), **parameters)
        body(k, *k.args)
        return k.function
    return emit


def carried(k, n, a, b, c, *_):
    with k.loop(n) as i:
        acc = k.variable(f32, 0)
        old = acc.get()
        with k.loop(n) as p:
            acc.set(old + a[p] * b[p])
        c[i] = acc.get()


def stale(k, n, a, b, c, *_):
    x = c[n]
    c[n + n] = 1
    c[0] = x


def gather(k, n, a, b, c, at, *_):
    c[0] = a[at[0]]


def atomic(k, n, a, b, c, at, *_):
    k.atomic_add(at, 1)


def whiled(k, n, a, b, c, *_):
    v = k.variable(i32, 0)
    with k.while_(lambda: v.get() < n):
        v.set(v.get() + 1)


def called(k, n, a, b, c, *_):
    k.call(emit_axpy(), k.cast(n, i64), 1.0, a, b)


def modulo(k, n, a, b, c, *_):
    with k.loop(n) as i:
        c[i] = a[i % 4]


def half(k, n, a, b, c, at, h, d):
    h[0] = h[1] * h[2]


def middle(k, n, a, b, c, at, h, d):
    c[0] = k.cast(k.cast(a[0] * b[0], f16), f32) + 1


def mixed(k, n, a, b, c, at, h, d):
    d[0] = k.cast(a[0] * b[0], f64) + d[1]


def integers(k, n, a, b, c, at, h, d):
    c[0] = k.cast(at[0], f32) * 2.0


def bits(k, n, a, b, c, *_):
    c[0] = k.cast(k.bits_as(a[0], i32), f32)


def stepped(k, n, a, b, c, *_):
    with k.loop(n, step=n) as i:
        c[i] = 0


def seen_as(k, n, a, b, c, *_):
    c.as_(i32)[0] = 1


def lanes(k, n, a, b, c, *_):
    c[k.thread[0]] = k.warp_sum(a[k.thread[0]])


def waiting(k, n, a, b, c, *_):
    with k.when(n < 3):
        k.barrier()


def through_memory(k, n, a, b, c, *_):
    c[k.thread[0]] = a[k.thread[0]]
    k.barrier()
    b[k.thread[0]] = c[31 - k.thread[0]]


def returned(k, n, a, b, c, *_):
    with k.when(n < 3):
        k.ret()
    c[0] = 1


def chosen(k, n, a, b, c, *_):
    with k.when(a[k.thread[0]] == 0):
        c[0] = b[k.thread[0]]


def stack(k, n, a, b, c, *_):
    c[0] = k.local("x", 4, f32)[n]


def staged(index=lambda t, n: t, read=lambda t, n: 31 - t, value=lambda k, a, c, t, n: a[t], before=True, after=True,
           loop=False):
    """Through shared memory, with one thing that is not taken, or nothing."""
    def body(k, n, a, b, c, *_):
        s, t = k.smem("s", 64, f32), k.thread[0]

        def stage():
            s[index(t, n)] = value(k, a, c, t, n)
            if after:
                k.barrier()
            b[t] = s[read(t, n)]
        if loop:
            with k.loop(n) as i:
                if before:
                    k.barrier()
                s[t] = a[t + i]
                k.barrier()
                v = k.variable(f32, 0)
                v.set(s[31 - t])
        else:
            stage()
    return body


REFUSED = [
    (carried, None, "r is written between a read and its use"), (stale, None, "c is written between a read"),
    (gather, None, "this address is no sum"), (atomic, None, "the operation atomic"), (whiled, None, "a while is not"),
    (called, None, "a call is not taken"), (modulo, None, "i % 4 is no sum of loop indices"),
    (half, None, "arithmetic in f16"), (middle, None, "converted to f16 in the middle"),
    (mixed, None, "computes in f32 and f64"), (integers, None, "converted to f32"), (bits, None, "the operation"),
    (stepped, None, "step of a loop"), (seen_as, None, "has elements of f32"), (returned, None, "returns before"),
    (stack, None, "on the stack"), (chosen, 32, "depends on numbers"),
    (lanes, 32, "is not taken"), (waiting, 32, "a barrier under a condition"),
    (through_memory, 32, "before and after a barrier"),
    (staged(after=False), 32, "no barrier is between all its stores"),
    (staged(index=lambda t, n: t // 2), 32, "stored to twice"),
    (staged(index=lambda t, n: t + n), 32, "differs between rounds or blocks"),
    (staged(read=lambda t, n: t + 1), 32, "nothing was stored to"),
    (staged(read=lambda t, n: t + n), 32, "differs between rounds or blocks"),
    (staged(read=lambda t, n: t ^ 1), 32, "the operation xor"),
    (staged(value=lambda k, a, c, t, n: (c.__setitem__(t, 0), c[t])[1]), 32, "which is written, too"),
    (staged(value=lambda k, a, c, t, n: a[t // 2], read=lambda t, n: t // 2 * 2 + 1), 32, None),
    (staged(), 32, None), (staged(loop=True), 32, None), (staged(loop=True, before=False), 32, "stored to again"),
]


@pytest.mark.parametrize(("body", "threads", "reason"), REFUSED)
def test_refused(body, threads, reason):
    """With the kernel's line and a reason; None: it is taken."""
    function = kernel(body, threads)()
    if reason is None:
        nest(function)
        return
    with pytest.raises(Refused, match=reason) as e:
        nest(function)
    assert e.value.line.file == __file__
    assert e.value.line.text in str(e.value)


def test_arrays_that_may_overlap_are_refused():
    k = Kernel("overlap", noalias=False, a=ptr(f32), c=ptr(f32))
    k.args[1][0] = k.args[0][0]
    with pytest.raises(Refused, match="overlap"):
        nest(k.function)


@pytest.mark.parametrize("first", range(0, 300, 20))
def test_random_kernels(first):
    """Taken with equal bits, or refused."""
    for seed in range(first, first + 20):
        what, why = random_kernels.outcome(seed)
        assert what != "different", f"seed {seed}: {why}"
