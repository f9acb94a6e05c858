"""Chapter 4: from three loops to a BLAS, in six steps: what each loads, and what each reached."""

import numpy as np
import plots

import tilewright as tw
from tilewright.lab.ladder import run, steps
from tilewright.lab.ladder.run_cpu import prepare

TARGET = tw.target("x86-avx2")


def main() -> None:
    print("step         multiply-adds for each load")
    for name, step in steps.CPU_STEPS.items():
        loop = run.compiled(name, TARGET).resources
        adds = loop.fma or loop.elements / 2        # step 1 multiplies single numbers
        print(f"{step.title:12} {adds / (loop.loads + loop.elements):.2f}")
    a, b = np.random.default_rng(0).integers(-4, 5, (2, 100, 100)).astype(np.float32)
    c = np.empty((100, 100), np.float32)
    prepare("blocked", 100, 100, 100, "f32", TARGET)(a, b, c)
    print("4 blocked is exact on whole numbers:", np.array_equal(c, a @ b))


def plot() -> None:
    rates = plots.rates("ladder_cpu_zen4", threads=1)
    ax = plots.axes("m = n = k", "GFLOP/s, one thread of a Zen 4", xscale="log", ylim=(0, 125))
    ax.axhline(117.9, color="#808080", linewidth=0.8, linestyle=":")
    ax.annotate("nothing but multiply-adds", (200, 119), fontsize=9)
    for name, by_size in rates.items():
        if name[0].isdigit() or name == "openblas":
            style = "s--" if name == "openblas" else "o-"
            ax.plot(list(by_size), list(by_size.values()), style, label=name, markersize=4)
    ticks = 200, 448, 1000, 2000, 3000
    ax.set_xticks(ticks, [str(x) for x in ticks])
    ax.minorticks_off()
    ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    plots.save(ax, __file__)


if __name__ == "__main__":
    plot() if plots.wanted() else main()
