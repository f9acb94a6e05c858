"""Chapter 6: a transposition through shared memory without its barrier; the simulator finds it. Then bank conflicts."""

import sys
from pathlib import Path

import numpy as np

from tilewright import simulator
from tilewright.ir import Kernel, f32, ptr


def emit_transpose(PAD=0, BARRIER=True):
    """y = x^T, 32 x 32 numbers through shared memory, by 8 warps."""
    k = Kernel("transpose", threads=(32, 8), x=ptr(f32), y=ptr(f32))
    x, y = (array.view(32, 1) for array in k.args)
    tile = k.smem("tile", (32, 32 + PAD), f32)
    tx, ty = k.thread
    for row in range(0, 32, 8):
        tile[row + ty, tx] = x[row + ty, tx]        # a warp writes a row
    if BARRIER:
        k.barrier()
    for row in range(0, 32, 8):
        y[row + ty, tx] = tile[tx, row + ty]        # a warp reads a column, which all warps wrote
    return k.function


def run(**options):
    x = np.arange(1024, dtype=np.float32).reshape(32, 32)
    y = np.zeros_like(x)
    report = simulator.run(emit_transpose(**options), x, y, grid=(1, 1))
    return report, np.array_equal(y, x.T)


def main() -> None:
    try:
        run(BARRIER=False)
    except simulator.Fault as fault:
        print(fault)
    for pad in 0, 1:
        report, right = run(PAD=pad)
        print(f"with a barrier, PAD={pad}: {right}, {report.of('tile', 'load').moved} passes over the banks, "
              f"{report.of('tile', 'load').conflicts} conflicts")


def plot() -> None:
    import plots

    pads = range(9)
    ax = plots.axes("PAD: words behind each row of 32", "passes over the banks", yscale="log", ylim=(20, 2000))
    ax.bar(pads, [run(PAD=pad)[0].of("tile", "load").moved for pad in pads], color="tab:blue")
    ax.axhline(32, color="tab:orange", linestyle="--", label="one for each load: no conflict")
    ax.legend(frameon=False)
    plots.save(ax, __file__)
    for pad in 0, 1:
        draw_the_load(pad)


def draw_the_load(pad: int) -> None:
    """Which bank has the word of which lane, when the first warp reads its first column."""
    from tilewright.lab.drawing import accesses

    lines = Path(__file__).read_text().splitlines()
    at = accesses.At(str(next(i for i, line in enumerate(lines, 1) if "= tile[tx" in line)))
    simulator.run(emit_transpose(PAD=pad), np.ones((32, 32), np.float32), np.zeros((32, 32), np.float32), grid=(1, 1),
                  observer=at)
    Path(__file__).with_name(f"06_banks_{pad}.svg").write_text(str(accesses.access(at.first, "sm_90a")))


if __name__ == "__main__":
    plot() if "--plot" in sys.argv else main()
