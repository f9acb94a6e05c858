"""Chapter 1: a product, how right it is, and what it will cost."""

import numpy as np
import plots

import tilewright as tw


def main() -> None:
    draw = np.random.default_rng(0)
    a = draw.standard_normal((500, 700), np.float32)
    b = draw.standard_normal((700, 300), np.float32)

    c = tw.matmul(a, b)

    exact = a.astype(np.float64) @ b.astype(np.float64)
    bound = 700 * 2**-24 * (abs(a).astype(np.float64) @ abs(b).astype(np.float64))
    print(c.shape, c.dtype, "within the error bound:", bool((abs(c - exact) <= bound).all()))

    problem = tw.Gemm(500, 300, 700)
    print(f"{problem.flops:,} operations, {problem.min_bytes:,} bytes, {problem.intensity:.0f} for each byte")
    print("the plan for one thread of a Zen 4:", tw.plan(problem, "zen4", threads=1))
    print("and for an H200:", tw.plan(problem, "h200"))


def plot() -> None:
    rates = plots.rates("article_zen4_1_thread", threads=1)
    ax = plots.axes("m = n = k", "GFLOP/s, one thread of a Zen 4", xscale="log", ylim=(0, 140))
    for name, style in ("tilewright", "o-"), ("mkl", "s--"), ("openblas", "^:"):
        ax.plot(list(rates[name]), list(rates[name].values()), style, label=name)
    sizes = (200, 400, 800, 1600, 3200, 5400)
    ax.set_xticks(sizes, [str(n) for n in sizes], minor=False)
    ax.minorticks_off()
    ax.legend(frameon=False)
    plots.save(ax, __file__)


if __name__ == "__main__":
    plot() if plots.wanted() else main()
