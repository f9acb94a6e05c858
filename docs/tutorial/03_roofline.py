"""Chapter 3: what limits a product: operations for each byte, and the caches."""

import plots

import tilewright as tw

SHAPES = {"square": (1024, 1024, 1024), "short k": (1024, 1024, 16), "one row": (1, 1024, 1024)}


def main() -> None:
    for name, (m, n, k) in SHAPES.items():
        problem = tw.Gemm(m, n, k)
        print(f"{name:8} {m:4} x {n} x {k:<4}  {problem.intensity:6.1f} operations for each byte that must move")
    print()
    why = tw.explain(tw.Gemm(1024, 1024, 1024), "zen4", threads=1)
    print(why.plan)
    for level in why.levels:
        print(f"{level.name:6} {level.predicted / 2**20:7.0f} MiB {why.intensity(level):6.1f} operations for each byte")


def plot() -> None:
    """The roofline of one thread of a Zen 4, by the ceilings in the result file of the ladder's chapter."""
    peak, memory = 117.9, 30.0      # GFLOP/s and GB/s that `tilewright doctor` measured there
    ax = plots.axes("operations for each byte from memory", "GFLOP/s at most, one thread of a Zen 4",
                    xscale="log", yscale="log")
    x = [2.0**i for i in range(-2, 11)]
    ax.plot(x, [min(peak, memory * i) for i in x], "-", color="tab:orange", label="roofline")
    for name, sizes in SHAPES.items():
        at = tw.Gemm(*sizes).intensity
        ax.plot(at, min(peak, memory * at), "o", color="tab:blue")
        ax.annotate(name, (at, min(peak, memory * at)), textcoords="offset points", xytext=(4, -14))
    ax.legend(frameon=False)
    plots.save(ax, __file__)


if __name__ == "__main__":
    plot() if plots.wanted() else main()
