"""Chapter 7: a function in the product's kernel, and loops of your own that become a product."""

import numpy as np
import plots

import tilewright as tw


def layer(x, w, bias, y):
    for i in range(x.shape[0]):
        for j in range(w.shape[1]):
            total = 0.0
            for p in range(x.shape[1]):
                total += x[i, p] * w[p, j]
            y[i, j] = max(total + bias[j], 0)


def fused(acc, bias):
    return tw.relu(acc + bias)


def moved(m: int, n: int, k: int) -> tuple[float, float]:
    """Bytes between memory and caches with the function in the kernel, and as two passes of its own over C."""
    one = tw.Gemm(m, n, k, epilogue=tw.epilogue(fused, bias="row")).min_bytes
    return one, tw.Gemm(m, n, k).min_bytes + 2 * 2 * 4 * m * n


def main() -> None:
    draw = np.random.default_rng(0)
    x, w, bias = (draw.standard_normal(shape, np.float32) for shape in ((200, 64), (64, 100), 100))
    y = tw.matmul(x, w, epilogue=fused, operands={"bias": bias})
    print("fused:", np.allclose(y, np.maximum(x @ w + bias, 0), atol=1e-5))

    fast = tw.optimize(layer, x, w, bias, y)
    print(str(fast).split(": matmul")[0])
    fast(x, w, bias, y)
    print("loops:", np.allclose(y, np.maximum(x @ w + bias, 0), atol=1e-5))
    one, apart = moved(1024, 1024, 64)
    print(f"k = 64: {one / 2**20:.1f} MiB moved by the fused product, {apart / 2**20:.1f} MiB by three operations")


def plot() -> None:
    ks = [2**i for i in range(3, 13)]
    ax = plots.axes("k, of a product of 1024 x 1024", "bytes: three operations / one kernel", xscale="log", ylim=(1, 6))
    ax.plot(ks, [moved(1024, 1024, k)[1] / moved(1024, 1024, k)[0] for k in ks], "o-")
    ax.set_xticks(ks, [str(k) for k in ks])
    ax.minorticks_off()
    plots.save(ax, __file__)


if __name__ == "__main__":
    plot() if plots.wanted() else main()
