"""A kernel of your own: z = a x + y, and the sum of each row of z. A warp per row on a GPU, vectors on a CPU.

One emitter serves both: with THREADS = 32 the lanes of a warp share a row; with none a thread has it. The simulator
runs either, counts it, and finds races and accesses outside arrays. `python examples/own_kernel.py`
"""

from __future__ import annotations

import numpy as np

from tilewright import simulator
from tilewright.ir import Function, Kernel, f32, i64, ptr
from tilewright.kernels.elementwise import each_row, fold, once
from tilewright.runtime.run import run


def emit_scaled_sums(THREADS: int | None = None) -> Function:
    k = Kernel("scaled_sums", threads=THREADS, rows=i64, n=i64, a=f32, x=ptr(f32), y=ptr(f32), z=ptr(f32), s=ptr(f32))
    rows, n, a, x, y, z, s = k.args

    with each_row(k, rows, "warp") as i:
        def value(j):
            found = k.fma(a, x[i * n + j], y[i * n + j])
            z[i * n + j] = found
            return found

        total = fold(k, n, lambda p, q: p + q, 0.0, value)
        with once(k):
            s[i] = total
    return k.function


def main() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-8, 9, (5, 100)).astype(np.float32) for _ in "xy")
    wanted = 3 * x + y
    z, sums = np.zeros_like(x), np.zeros(5, np.float32)
    run(emit_scaled_sums(), 5, 100, 3.0, x, y, z, sums)
    assert (z == wanted).all()
    assert (sums == wanted.sum(axis=1)).all()

    z[:], sums[:] = 0, 0
    report = simulator.run(emit_scaled_sums(32), 5, 100, 3.0, x, y, z, sums, grid=(5,))
    assert (z == wanted).all()
    assert (sums == wanted.sum(axis=1)).all()
    print(report)


if __name__ == "__main__":
    main()
