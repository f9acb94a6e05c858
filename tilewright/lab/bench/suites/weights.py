"""Few rows by weights larger than the last cache: i8, i4, u4 with zero points and mxfp4, beside bf16 and f32 of these
sizes, NumPy's product in f32, and torch's linear in bf16. [n, k], as a linear layer has them, and [k, n].

Activations are bf16, but those of f32 and NumPy. All contenders of a case take turns. Results are checked against
float64 products of the numbers that the weights stand for before anything is timed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.lab.bench.study import Case, compared, microseconds, setting

CAPTION = "median time of a call; times in the same rounds, median (quartiles)"
SIZES = (4096, 8192)                    # k; n is that of an up-projection
WIDTHS = {4096: 11008, 8192: 28672}
CASES = ("1 row, [n, k]", "1 row, [k, n]", "4 rows, [n, k]", "16 rows, [n, k]")
FORMATS: dict[str, dict[str, Any]] = {
    "i8": {"group": 128}, "i4": {"group": 128}, "u4": {"group": 128, "zero_points": True}, "mxfp4": {}}
OTHERS = ("f32", "numpy f32", "torch bf16")
CHECKED = 256                   # columns
COLUMNS = (*setting("k"), microseconds("us of bf16", "bf16"),
           *(compared(f"{name}, x bf16", "bf16", name) for name in FORMATS),
           *(compared(f"bf16, x {name}", name, "bf16") for name in OTHERS))


def make(case: str, k: int, threads: int) -> Case:
    import ml_dtypes
    m, by_rows = int(case.split()[0]), case.endswith("[n, k]")
    rng, n = np.random.default_rng(k), WIDTHS.get(k, 2 * k)
    w = rng.standard_normal((n, k) if by_rows else (k, n), np.float32)
    x = rng.standard_normal((m, k), np.float32).astype(ml_dtypes.bfloat16)
    wide, narrow = x.astype(np.float32), w.astype(ml_dtypes.bfloat16)
    multiply = partial(tw.matmul, trans_b=by_rows)
    weights: dict[str, Any] = {name: tw.quantize(w, name, axis=-1 if by_rows else -2, **how)
                               for name, how in FORMATS.items() if by_rows or name != "mxfp4"}
    sides = {"bf16": [(multiply, (x, narrow))], "f32": [(multiply, (wide, w))],
             **{name: [(multiply, (x, q))] for name, q in weights.items()}}

    def wrong(side: str, result: Any) -> str:
        """Beside the numbers that the weights stand for; peers' results beside those of bf16."""
        given = {"f32": w, "numpy f32": w, **weights}.get(side, narrow)
        part = given[:CHECKED] if by_rows else given[:, :CHECKED]
        numbers = np.asarray(part).astype(np.float64)
        exact = x.astype(np.float64) @ (numbers.T if by_rows else numbers)
        values = np.asarray(result.float() if hasattr(result, "float") else result)[:, :CHECKED].astype(np.float64)
        near = 1e-3 if isinstance(result, np.ndarray) else 1e-2
        return "" if np.allclose(values, exact, near, near * np.abs(exact).max()) else "its result is wrong"
    return Case({}, sides, wrong, {"x": x, "w": w, "by_rows": by_rows}, bytes=2 * k * n)
