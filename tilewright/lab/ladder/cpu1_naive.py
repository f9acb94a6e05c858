"""Step 1, naive: three loops, one element of C after another. The article's section 4.

    C[i, j] = sum over p of A[i, p] B[p, j]

Every multiplication loads two elements, so 2 m n k loads are made of matrices that hold m k + k n; the loads of B go
down a column, a new cache line each. And every addition waits for the one before it: one FMA per 4 cycles, where the
core could start 2 vectors of them each cycle. The simplest right answer, which the later steps are tested against.
"""
from tilewright.ir import Kernel, f32, f64, i64, ptr

TYPES = {"f32": f32, "f64": f64}


def emit_naive(target, dtype):
    """C[m, n] = A[m, depth] @ B[depth, n]; depth is the problem's k (`k` is the kernel)."""
    T = TYPES[dtype]
    k = Kernel(f"ladder1_naive_{dtype}", m=i64, n=i64, depth=i64, a=ptr(T), b=ptr(T), c=ptr(T))
    m, n, depth, a, b, c = k.args
    a, b, c = a.view(depth, 1), b.view(n, 1), c.view(n, 1)

    dot_products(k, T, depth, a, b, c, rows=(0, m), columns=(0, n))
    return k.function


def dot_products(k, T, depth, a, b, c, rows, columns):
    """The elements of C in these ranges, each a dot product of a row of A and a column of B."""
    with k.loop(rows[1], start=rows[0]) as i:
        with k.loop(columns[1], start=columns[0]) as j:
            acc = k.variable(T, 0)
            with k.loop(depth) as p:
                acc.set(k.fma(a[i, p], b[p, j], acc.get()))
            c[i, j] = acc.get()
