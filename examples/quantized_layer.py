"""A layer y = x W with W in f32, int8 with a scale per column, and mxfp4: memory, and error beside float64.

Weights are packed once (`tw.pack`), as a server would when it loads them. `python examples/quantized_layer.py`
"""

from __future__ import annotations

import numpy as np

import tilewright as tw

INPUTS, OUTPUTS, ROWS = 512, 384, 4


def main() -> dict[str, float]:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((INPUTS, OUTPUTS), np.float32) / np.sqrt(INPUTS, dtype=np.float32)
    x = rng.standard_normal((ROWS, INPUTS), np.float32)
    exact = x.astype(np.float64) @ weights.astype(np.float64)
    size = np.linalg.norm(exact)

    errors = {}
    for name, stored in (
        ("f32", weights),
        ("i8", tw.quantize(weights, "i8", axis=0)),  # a scale per column: along k, the first axis of W
        ("mxfp4", tw.quantize(weights, "mxfp4", axis=0)),  # a scale per 32 numbers along k
    ):
        y = tw.matmul(x, tw.pack(stored, a="f32"))
        errors[name] = float(np.linalg.norm(y - exact) / size)
        print(f"{name:6} {stored.nbytes:8,} bytes of weights, relative error {errors[name]:.1e}")
    return errors


if __name__ == "__main__":
    main()
