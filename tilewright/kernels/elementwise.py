"""`each`: what kernels without tiles need, so that one emitter writes them for CPUs and for GPUs; y = a x + y by it.

docs/write-your-own-kernel.md shows how it is used.
"""
from contextlib import contextmanager

from tilewright.ir import Kernel, f32, i64, ptr


@contextmanager
def each(k, n):
    """`with each(k, n) as i:` does the block for i = 0 ... n - 1, n an i64: a CPU function in a loop, a GPU's CTAs with
    a thread for each i, of which the last CTA's may be too many."""
    threads = k.function.threads
    if threads is None:
        with k.loop(n) as i:
            yield i
    else:
        i = k.cast(k.block[0], i64) * threads[0] + k.thread[0]
        with k.when(i < n):
            yield i


def emit_axpy(threads=None, warp=32):
    """y = alpha x + y in f32: a function for one CPU thread, or a kernel for workgroups of so many threads in waves of
    `warp`."""
    k = Kernel("axpy_f32", threads=threads, warp=warp, n=i64, alpha=f32, x=ptr(f32), y=ptr(f32))
    n, alpha, x, y = k.args
    with each(k, n) as i:
        y[i] = alpha * x[i] + y[i]
    return k.function
