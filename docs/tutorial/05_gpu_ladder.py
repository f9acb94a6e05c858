"""Chapter 5: six steps on a GPU, counted in the simulator: sectors of memory, and conflicts of shared memory."""

import numpy as np
import plots

import tilewright as tw
from tilewright.lab.ladder import run

STEPS = ("naive", "registers", "shared", "coalesced", "padded", "vectors")
N = 128


def main() -> None:
    a, b = np.random.default_rng(0).integers(-4, 5, (2, N, N)).astype(np.float32)
    c = np.empty_like(a)
    print(f"m = n = k = {N}  loads       sectors  bytes used   conflicts  exact")
    for name in STEPS:
        report, _ = run.simulate(name, tw.Gemm(N, N, N), tw.target("sm_90a"), a, b, c)
        loads = report.of(verb="load", space="global")
        conflicts = report.of(space="shared").conflicts
        print(f"{name:14} {loads.elements:9,} {loads.moved:11,} {loads.efficiency:9.0%} {conflicts:13,}   "
              f"{np.array_equal(c, a @ b)}")


def plot() -> None:
    """Predicted, as the share of the peak that the busiest unit allows; and measured on an H200 at n = 4096."""
    counted = {step["title"]: step["busy"] for step in plots.measured("ladder_gpu_simulated")["extra"]["simulated"]}
    device = plots.measured("ladder_gpu_h200")["machine"]["gpu"]
    peak = device["sms"] * 128 * 2 * device["clock_hz"] / 1e9
    rates = {name: by_size[4096] / peak for name, by_size in plots.rates("ladder_gpu_h200").items() if name in counted}
    ax = plots.axes("", "share of an H200's peak in f32", ylim=(0, 1))
    names = list(rates)
    bound = [counted[name]["multiply-adds"] / max(counted[name].values()) for name in names]
    ax.bar(np.arange(len(names)) - 0.2, bound, 0.4, label="predicted: at most", color="tab:orange", alpha=0.6)
    ax.bar(np.arange(len(names)) + 0.2, list(rates.values()), 0.4, label="measured, n = 4096", color="tab:blue")
    ax.set_xticks(range(len(names)), names, rotation=40, ha="right")
    ax.legend(frameon=False)
    plots.save(ax, __file__)


if __name__ == "__main__":
    plot() if plots.wanted() else main()
