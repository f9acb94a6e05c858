"""The five inputs in Exo: a procedure, its schedule for AVX-512 and these sizes, C from both, and a C compiler.

The schedules use the words of Exo's tutorials (divide, reorder, stage in registers, replace by instructions). They are
for sizes that the tiles divide; convolutions of NCHW are not written here.
"""
from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path

from exo import DRAM, compile_procs, instr, proc
from exo.libs.externs import sqrt
from exo.libs.memories import AVX512
from exo.platforms.x86 import mm512_fmadd_ps, mm512_loadu_ps, mm512_set1_ps, mm512_setzero_ps, mm512_storeu_ps
from exo.stdlib.scheduling import (
    bind_expr,
    divide_dim,
    divide_loop,
    expand_dim,
    fission,
    lift_alloc,
    parallelize_loop,
    rearrange_dim,
    rename,
    reorder_loops,
    replace_all,
    set_memory,
    simplify,
    stage_mem,
)

ALL = 1


def use(threads: int) -> None:
    global ALL
    ALL = threads


def built(procedure):
    """The procedure as a function of arrays."""
    folder = tempfile.mkdtemp()
    compile_procs([procedure], Path(folder), "kernel.c", "kernel.h")
    subprocess.run(["cc", "-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC", "kernel.c", "-o",
                    "kernel.so", "-lm"], cwd=folder, check=True)
    function = getattr(ctypes.CDLL(f"{folder}/kernel.so"), procedure.name())

    def call(*arrays):
        function(None, *(ctypes.c_void_p(x.ctypes.data) for x in arrays))
    return call


def parallel(p, loop):
    return parallelize_loop(p, loop) if ALL > 1 else p


def lazily(scheduled, loop):
    """A function of arrays, scheduled and compiled when it is first called with arrays of these shapes."""
    made = {}

    def call(*arrays):
        key = tuple(x.shape for x in arrays)
        if key not in made:
            made[key] = built(parallel(scheduled(*key), loop))
        made[key](*arrays)
    return call


# ---- shared
def vectors_of(p, loop, columns=32):
    """`loop` as jo over blocks of columns, jv over the vectors of a block, jl over a vector."""
    p = divide_loop(p, loop, columns, ["jo", "ji"], perfect=True)
    return divide_loop(p, "ji", 16, ["jv", "jl"], perfect=True)


def in_vector(p, name, text):
    """The element that `text` reads, in a register of its own for the 16 rounds of jl."""
    p = bind_expr(p, text, name)
    return vector(p, name)


def vector(p, name):
    p = expand_dim(p, name, 16, "jl")
    p = lift_alloc(p, name)
    p = set_memory(p, name, AVX512)
    return fission(p, p.find(f"{name}[_] = _").after())


def tile_in_registers(p, block, window):
    p = simplify(stage_mem(p, block, window, "c"))
    for _ in range(2):
        p = divide_loop(p, "i1", 16, ["v", "l"], perfect=True)
    return set_memory(divide_dim(p, "c", 1, 16), "c", AVX512)


def with_instructions(p, *more):
    return replace_all(simplify(p), [*more, mm512_loadu_ps, mm512_storeu_ps, mm512_set1_ps, mm512_setzero_ps,
                                     mm512_fmadd_ps])


# ---- matmul
@proc
def product(N: size, A: f32[N, N] @ DRAM, B: f32[N, N] @ DRAM, C: f32[N, N] @ DRAM):
    for i in seq(0, N):
        for j in seq(0, N):
            C[i, j] = 0.0
            for k in seq(0, N):
                C[i, j] += A[i, k] * B[k, j]


def schedule_product(a, b, c):
    p = simplify(rename(product, "matmul").partial_eval(N=a[0]))
    p = vectors_of(divide_loop(p, "i", 8, ["io", "ii"], perfect=True), "j")
    p = reorder_loops(p, "ii jo")
    p = reorder_loops(p, "io jo")
    p = fission(p, p.find("C[_] = 0.0").after(), n_lifts=3)
    for pair in "jl k", "jv k", "ii k":
        p = reorder_loops(p, pair)
    p = tile_in_registers(p, p.find("for ii in _: _").expand(0, 1), "C[8*io:8*io+8, 32*jo:32*jo+32]")
    p = simplify(stage_mem(p, "for io in _: _", f"B[0:{a[0]}, 32*jo:32*jo+32]", "b"))
    p = in_vector(p, "b_vector", "b[_]")
    p = in_vector(p, "a_vector", "A[_]")
    return with_instructions(p)


matmul = lazily(schedule_product, "jo")


# ---- convolution_nhwc
@proc
def convolution(N: size, H: size, K: size, X: f32[N, H + 2, H + 2, K] @ DRAM, W: f32[3, 3, K, K] @ DRAM,
                Y: f32[N, H, H, K] @ DRAM):
    for n in seq(0, N):
        for h in seq(0, H):
            for w in seq(0, H):
                for o in seq(0, K):
                    Y[n, h, w, o] = 0.0
                    for r in seq(0, 3):
                        for s in seq(0, 3):
                            for c in seq(0, K):
                                Y[n, h, w, o] += X[n, h + r, w + s, c] * W[r, s, c, o]


def schedule_convolution(x, w, y):
    p = simplify(rename(convolution, "convolution").partial_eval(N=y[0], H=y[1], K=y[3]))
    p = vectors_of(divide_loop(p, "w", 14, ["wo", "ii"], perfect=True), "o")
    for pair in "ii jo", "wo jo", "h jo":
        p = reorder_loops(p, pair)
    p = fission(p, p.find("Y[_] = 0.0").after(), n_lifts=3)
    for loop in "r", "s", "c":
        for pair in f"jl {loop}", f"jv {loop}", f"ii {loop}":
            p = reorder_loops(p, pair)
    p = tile_in_registers(p, p.find("for ii in _: _").expand(0, 1), "Y[n, h, 14*wo:14*wo+14, 32*jo:32*jo+32]")
    p = in_vector(p, "w_vector", "W[_]")
    p = in_vector(p, "x_vector", "X[_]")
    return with_instructions(p)


convolution_nhwc = lazily(schedule_convolution, "n")


# ---- distances
@instr("{dst_data} = _mm512_sub_ps({a_data}, {b_data});")
def mm512_sub_ps(dst: [f32][16] @ AVX512, a: [f32][16] @ AVX512, b: [f32][16] @ AVX512):
    assert stride(dst, 0) == 1
    assert stride(a, 0) == 1
    assert stride(b, 0) == 1
    for l in seq(0, 16):
        dst[l] = a[l] - b[l]


@instr("{dst_data} = _mm512_fmadd_ps({a_data}, {a_data}, {dst_data});")
def mm512_add_square_ps(dst: [f32][16] @ AVX512, a: [f32][16] @ AVX512):
    assert stride(dst, 0) == 1
    assert stride(a, 0) == 1
    for l in seq(0, 16):
        dst[l] += a[l] * a[l]


@proc
def pairwise(M: size, N: size, K: size, X: f32[M, K] @ DRAM, Y: f32[N, K] @ DRAM, D: f32[M, N] @ DRAM):
    for i in seq(0, M):
        for j in seq(0, N):
            D[i, j] = 0.0
            for k in seq(0, K):
                d: f32
                d = X[i, k] - Y[j, k]
                D[i, j] += d * d
            D[i, j] = sqrt(D[i, j])


def schedule_distances(x, y, d):
    p = simplify(rename(pairwise, "distances").partial_eval(M=x[0], N=y[0], K=x[1]))
    p = vectors_of(divide_loop(p, "i", 8, ["io", "ii"], perfect=True), "j")
    p = reorder_loops(p, "ii jo")
    p = reorder_loops(p, "io jo")
    p = fission(p, p.find("D[_] = 0.0").after(), n_lifts=3)
    p = fission(p, p.find("for k in _: _").after(), n_lifts=3)
    for pair in "jl k", "jv k", "ii k":
        p = reorder_loops(p, pair)
    p = tile_in_registers(p, p.find("for ii in _: _").expand(0, 1), "D[8*io:8*io+8, 32*jo:32*jo+32]")
    p = simplify(stage_mem(p, "for io in _: _", f"Y[32*jo:32*jo+32, 0:{x[1]}]", "y"))
    p = rearrange_dim(p, "y", [1, 0])
    p = vector(p, "d")
    p = in_vector(p, "x_vector", "X[_]")
    p = in_vector(p, "y_vector", "y[_]")
    return with_instructions(p, mm512_sub_ps, mm512_add_square_ps)


distances = lazily(schedule_distances, "jo")


# ---- mttkrp
@proc
def factored(I: size, J: size, K: size, R: size, X: f32[I, J, K] @ DRAM, B: f32[J, R] @ DRAM, C: f32[K, R] @ DRAM,
             M: f32[I, R] @ DRAM):
    for i in seq(0, I):
        for r in seq(0, R):
            M[i, r] = 0.0
        for j in seq(0, J):
            for r in seq(0, R):
                t: f32
                t = 0.0
                for k in seq(0, K):
                    t += X[i, j, k] * C[k, r]
                M[i, r] += t * B[j, r]


def schedule_mttkrp(x, b, c, m):
    p = simplify(rename(factored, "mttkrp").partial_eval(I=x[0], J=x[1], K=x[2], R=b[1]))
    p = vectors_of(divide_loop(p, "j", 8, ["jj", "ii"], perfect=True), "r #1")
    p = reorder_loops(p, "ii jo")
    p = expand_dim(expand_dim(expand_dim(p, "t", 16, "jl"), "t", 2, "jv"), "t", 8, "ii")
    p = set_memory(lift_alloc(p, "t", n_lifts=3), "t", AVX512)
    p = fission(p, p.find("t[_] = 0.0").after(), n_lifts=3)
    p = fission(p, p.find("for k in _: _").after(), n_lifts=3)
    for pair in "jl k", "jv k", "ii k":
        p = reorder_loops(p, pair)
    p = in_vector(p, "c_vector", "C[_]")
    p = in_vector(p, "x_vector", "X[_]")
    p = in_vector(p, "b_vector", "B[_]")
    p = vectors_of(p, "r")
    p = stage_mem(p, "for ii in _: _ #2", "M[i, 32*jo:32*jo+32]", "m")
    for _ in range(2):
        p = divide_loop(simplify(p), "i0", 16, ["v", "l"], perfect=True)
    p = set_memory(divide_dim(p, "m", 0, 16), "m", AVX512)
    return with_instructions(p)


mttkrp = lazily(schedule_mttkrp, "i")


# ---- stencil
@proc
def jacobi(N: size, A: f32[N, N] @ DRAM, B: f32[N, N] @ DRAM):
    assert N > 2
    for t in seq(0, 5):
        for i in seq(1, N - 1):
            for j in seq(1, N - 1):
                B[i, j] = 0.2 * (A[i, j] + A[i - 1, j] + A[i + 1, j] + A[i, j - 1] + A[i, j + 1])
        for i in seq(1, N - 1):
            for j in seq(1, N - 1):
                A[i, j] = 0.2 * (B[i, j] + B[i - 1, j] + B[i + 1, j] + B[i, j - 1] + B[i, j + 1])


def schedule_stencil(a, b):
    p = rename(jacobi, "stencil").partial_eval(N=a[0])
    return parallel(p, "i #1")


stencil = lazily(schedule_stencil, "i #0")


# ----
CASES = {"matmul": matmul, "convolution_nhwc": convolution_nhwc, "distances": distances, "mttkrp": mttkrp,
         "stencil": stencil}
