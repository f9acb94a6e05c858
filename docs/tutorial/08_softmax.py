"""Chapter 8: a kernel of your own: softmax of rows, on this CPU, and for a GPU in the simulator."""

import numpy as np
import plots

from tilewright import simulator
from tilewright.blocks import Program
from tilewright.ir import f32, i64, ptr
from tilewright.runtime.run import run


def emit_softmax(target=None, BLOCK=128, CACHED=True):
    """y = e^(x - max) / its sum: a program for each row of up to BLOCK columns. CACHED: x is loaded once."""
    k = Program("softmax", target, y_ptr=ptr(f32), x_ptr=ptr(f32), stride=i64, n=i64)
    y_ptr, x_ptr, stride, n = k.args
    columns = k.arange(0, BLOCK)
    row = k.program_id(0) * stride

    def load():
        return k.load(x_ptr + row + columns, mask=columns < n, other=-np.inf)

    x = load()
    largest = k.max(x)
    powers = k.exp((x if CACHED else load()) - largest)
    total = k.sum(powers)
    k.store(y_ptr + row + columns, powers / total, mask=columns < n)
    return k.function


def count(cached: bool, rows: int = 8, columns: int = 100):
    x = np.random.default_rng(0).normal(0, 10, (rows, columns)).astype(np.float32)
    y = np.zeros_like(x)
    report = simulator.run(emit_softmax("sm_90a", CACHED=cached), y, x, columns, columns, grid=(rows,))
    return x, y, report


def main() -> None:
    x, y, report = count(True)
    powers = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    exact = powers / powers.sum(1, keepdims=True)
    print("simulated:", np.allclose(y, exact, rtol=1e-5, atol=0))
    on_cpu = np.zeros_like(x)
    run(emit_softmax(), on_cpu, x, 100, 100, grid=(8,))
    print("on this CPU:", np.allclose(on_cpu, exact, rtol=1e-5, atol=0))
    loads = report.of("x_ptr", "load")
    print(f"{loads.elements} numbers loaded, of {x.size}; sectors used to {loads.efficiency:.0%}")


def plot() -> None:
    ax = plots.axes("columns of a row", "bytes moved for each number of x")
    for cached, label in (False, "x loaded twice"), (True, "x kept in registers"):
        at = range(10, 129, 9)
        reports = [count(cached, columns=n)[2] for n in at]
        moved = [r.of("x_ptr", "load").moved + r.of("y_ptr", "store").moved for r in reports]
        ax.plot(at, [32 * sectors / (8 * n) for n, sectors in zip(at, moved)], "o-", label=label)
    ax.set_ylim(0)
    ax.legend(frameon=False)
    plots.save(ax, __file__)


if __name__ == "__main__":
    plot() if plots.wanted() else main()
