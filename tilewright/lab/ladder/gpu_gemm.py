"""What every step on a GPU begins and ends with: its parameters, loads that stop at the edges, alpha and beta.

    C = alpha A B + beta C          A [m, k], B [k, n], C [m, n], row-major, rows of lda, ldb and ldc elements

Of any size, with nothing read or written outside the matrices: what would lie outside is a zero, which costs no load.
"""
from typing import Any, NamedTuple

from tilewright.ir import Kernel, Value, f32, i32, i64, ptr

# As all kernels for GPUs here; the launcher fills them in by this order.
_MATRIX = ptr(f32, strided=True)
PARAMETERS: dict[str, Any] = {"m": i32, "n": i32, "k": i32, "alpha": f32, "a": _MATRIX, "lda": i64, "b": _MATRIX,
                              "ldb": i64, "beta": f32, "c": _MATRIX, "ldc": i64}


class Gemm(NamedTuple):
    """The arguments inside the kernel; `depth` is the problem's k (`k` is the kernel builder)."""
    m: Value
    n: Value
    depth: Value
    alpha: Value
    lda: Value
    ldb: Value
    a: Value
    b: Value
    beta: Value
    c: Value


def begin(name, threads, min_ctas=1, warp=32, **other):
    """(k, its arguments); a[i, p], b[p, j] and c[i, j] are elements. `other` types replace those of PARAMETERS."""
    k = Kernel(name, threads=threads, min_ctas=min_ctas, warp=warp, **(PARAMETERS | other))
    m, n, depth, alpha, a, lda, b, ldb, beta, c, ldc = k.args
    return k, Gemm(m, n, depth, alpha, lda, ldb, a.view(lda, 1), b.view(ldb, 1), beta, c.view(ldc, 1))


def outer_product(k, acc, column, row):
    """acc += column row^T: one FMA for each element of the thread's tile."""
    for i, a in enumerate(column):
        for j, b in enumerate(row):
            acc[i, j] = k.fma(a, b, acc[i, j])


def store(k, g, i, j, product):
    """C[i, j] = alpha product + beta C[i, j], if there is such an element. With beta 0, C is not read."""
    with k.when((i < g.m) & (j < g.n)):
        result = k.variable(f32, g.alpha * product)
        with k.when(g.beta != 0):
            result.set(k.fma(g.beta, g.c[i, j], result.get()))
        g.c[i, j] = result.get()
