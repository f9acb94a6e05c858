"""Small kernels for AMD's GPUs: a sum of vectors, and a transpose through LDS."""

from __future__ import annotations

from tilewright.ir import Kernel, f32, i32, ptr


def emit_vector_add():
    k = Kernel("vector_add", threads=256, warp=64, a=ptr(f32), b=ptr(f32), c=ptr(f32), n=i32)
    a, b, c, n = k.args
    i = k.block[0] * 256 + k.thread[0]
    with k.when(i < n):
        c[i] = a[i] + b[i]
    return k.function


def emit_transpose(PAD=1, BARRIER=True):
    """y = x transposed, 64 x 64 numbers through LDS."""
    k = Kernel("transpose", threads=(64, 4), warp=64, x=ptr(f32), y=ptr(f32))
    x, y = (array.view(64, 1) for array in k.args)
    tile = k.smem("tile", (64, 64 + PAD), f32)
    tx, ty = k.thread
    for row in range(0, 64, 4):
        tile[row + ty, tx] = x[row + ty, tx]
    if BARRIER:
        k.barrier()
    for row in range(0, 64, 4):
        y[row + ty, tx] = tile[tx, row + ty]
    return k.function
