"""Chapter 2: the same product in seven formats: bytes against digits."""

import numpy as np
import plots

import tilewright as tw
from tilewright import formats

FORMATS = ("f32", "bf16", "f16", "mxfp8", "i8", "mxfp4", "i4")


def operands() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.standard_normal((64, 512)), draw.standard_normal((512, 48))


def product(name: str, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, float]:
    """The product with both operands in this format, and bytes for each number of b."""
    if name in ("f32", "bf16", "f16"):
        kept = [x.astype(formats.find(name).dtype) for x in (a, b)]
        return tw.matmul(*kept, out_dtype="f32"), kept[1].dtype.itemsize
    if name == "i4":        # weights alone, in groups of 32, as models have them
        right = tw.quantize(np.ascontiguousarray(b.T), name, group=32)
        return tw.matmul(a.astype(np.float32), right, trans_b=True), right.nbytes / b.size
    left, right = tw.quantize(a, name), tw.quantize(b, name, axis=-2)
    return tw.matmul(left, right), right.nbytes / b.size


def errors() -> dict[str, tuple[float, float]]:
    """Bytes for each number, and the error as a share of the result's size, by format."""
    a, b = operands()
    exact = a @ b
    found = {}
    for name in FORMATS:
        c, size = product(name, a, b)
        found[name] = size, float(np.linalg.norm(c - exact) / np.linalg.norm(exact))
    return found


def main() -> None:
    for name, (size, error) in errors().items():
        print(f"{name:7} {size:5.2f} bytes   error about 2^{round(np.log2(error))}")
    x = np.full((300, 1000), 100, np.int8)
    print("integers are exact:", tw.matmul(x, x.T, out_dtype="i32")[0, 0] == 1000 * 100 * 100)


def plot() -> None:
    ax = plots.axes("bytes for each number, with its share of the scales", "relative error of the product",
                    xscale="log", yscale="log", ylim=(1e-7, 1), xlim=(0.4, 5))
    for name, (size, error) in errors().items():
        ax.plot(size, error, "o", color="tab:blue")
        ax.annotate(name, (size, error), textcoords="offset points", xytext=(7, 2))
    ticks = 0.5, 1, 2, 4
    ax.set_xticks(ticks, [f"{x:g}" for x in ticks])
    ax.minorticks_off()
    plots.save(ax, __file__)


if __name__ == "__main__":
    plot() if plots.wanted() else main()
