"""Recorded kernels as loop nests: the lecture's versions and others, against the simulator, and what is refused."""

import numpy as np
import pytest

from tests.nests.interpreter_of_nests import results
from tilewright import simulator
from tilewright.ir import Kernel, f32, i32, ptr
from tilewright.lab.ladder import gpu04_shared, gpu05_coalesced
from tilewright.lab.ladder.gpu01_naive import emit_naive
from tilewright.lab.ladder.gpu02_tiled import emit_tiled
from tilewright.lab.ladder.gpu03_registers import emit_registers
from tilewright.nests.recorded import nest


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


V1 = ["block 2", "block 3", "thread 4", "thread 4"]


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
    assert len(found.statements) == 5                       # start, sum, alpha, beta, store
    assert len([x for x in total.loops if x.kind != "loop"]) == 4
    if inner is not None:
        assert [(x.stop - x.start).constant for x in found.statements[0].loops[4:]] == inner


if __name__ == "__main__":
    pytest.main([__file__, "-q", "-x"])
