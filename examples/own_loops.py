"""Plain loops of your own: recognised as products, or scheduled. `python examples/own_loops.py`"""
from __future__ import annotations

from time import perf_counter

import numpy as np

import tilewright as tw


def layer(x, weights, bias, y):
    """y = max(x weights + bias, 0)"""
    for i in range(x.shape[0]):
        for j in range(weights.shape[1]):
            total = 0.0
            for p in range(x.shape[1]):
                total += x[i, p] * weights[p, j]
            y[i, j] = max(total + bias[j], 0)


def convolution(x, weights, y):
    """Windows of 3 x 3 of images whose channels lie side by side."""
    images, height, width, outputs = y.shape
    for n in range(images):
        for h in range(height):
            for w in range(width):
                for o in range(outputs):
                    y[n, h, w, o] = 0
                    for r in range(3):
                        for t in range(3):
                            for c in range(x.shape[3]):
                                y[n, h, w, o] += x[n, h + r, w + t, c] * weights[r, t, c, o]


def blur(x, y):
    """The mean of an element and of its four neighbours: no product."""
    for i in range(1, x.shape[0] - 1):
        for j in range(1, x.shape[1] - 1):
            y[i, j] = (x[i, j] + x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1]) * 0.2


def milliseconds(function, *args) -> float:
    times = []
    for _ in range(3):
        start = perf_counter()
        function(*args)
        times.append(perf_counter() - start)
    return 1e3 * min(times)


def main(size: int = 512) -> None:
    rng = np.random.default_rng(0)

    def array(*shape):
        return rng.standard_normal(shape, np.float32)
    edge = max(size // 16, 4)
    calls = [(layer, array(size, size), array(size, size), array(size), array(size, size)),
             (convolution, array(2, edge + 2, edge + 2, 16), array(3, 3, 16, 16), array(2, edge, edge, 16)),
             (blur, array(2 * size, 2 * size), array(2 * size, 2 * size))]
    for function, *args in calls:
        written, fast = tw.loops(function), tw.optimize(function, *args)
        written(*args)
        want = args[-1].copy()
        fast(*args)
        np.testing.assert_allclose(args[-1], want, rtol=1e-3, atol=1e-3)
        print(f"{function.__name__}: {milliseconds(written, *args):.3g} ms as written, "
              f"{milliseconds(fast, *args):.3g} ms optimized\n    {fast}")


if __name__ == "__main__":
    main()
