"""Few rows by weights larger than the last cache: i8, i4, u4 with zero points and mxfp4, beside bf16 and f32 of these
sizes, NumPy's product in f32, and torch's linear in bf16. [n, k], as a linear layer has them, and [k, n].

Activations are bf16, but those of f32 and NumPy. All contenders of a case take turns. Results are checked against
float64 products of the numbers that the weights stand for before anything is timed.
"""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.lab.bench.study import Case, compared, median_us
from tilewright.lab.measure.measure import Call

CAPTION = "median time of a call; times in the same rounds, median (quartiles)"
SIZES = (4096, 8192)                    # k; n is that of an up-projection
COLUMNS = {4096: 11008, 8192: 28672}
CASES = ("1 row, [n, k]", "1 row, [k, n]", "4 rows, [n, k]", "16 rows, [n, k]")
FORMATS: dict[str, dict[str, Any]] = {
    "i8": {"group": 128}, "i4": {"group": 128}, "u4": {"group": 128, "zero_points": True}, "mxfp4": {}}
OTHERS = ("f32", "numpy f32", "torch bf16")


def table(found: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows, of records: how many times as long others took as each format."""
    rows: list[tuple[str, ...]] = []
    for x in found:
        ours = [compared(x, name, "bf16") if name in x["seconds"] else "" for name in FORMATS]
        rows.append((x["case"], str(x["n"]), str(x["threads"]), median_us(x, "bf16"), *ours,
                     *(compared(x, "bf16", name) for name in OTHERS)))
    return ("case", "k", "threads", "us of bf16", *(f"{name}, x bf16" for name in FORMATS),
            *(f"bf16, x {name}" for name in OTHERS)), rows


def _calls(case: str, k: int) -> dict[str, list[Call]]:
    import ml_dtypes
    m, by_rows = int(case.split()[0]), case.endswith("[n, k]")
    rng, n = np.random.default_rng(k), COLUMNS.get(k, 2 * k)
    w = rng.standard_normal((n, k) if by_rows else (k, n), np.float32)
    x = rng.standard_normal((m, k), np.float32).astype(ml_dtypes.bfloat16)
    wide = x.astype(np.float32)
    multiply = partial(tw.matmul, trans_b=by_rows)
    narrow = w.astype(ml_dtypes.bfloat16)
    weights: dict[str, Any] = {name: tw.quantize(w, name, axis=-1 if by_rows else -2, **how)
                               for name, how in FORMATS.items() if by_rows or name != "mxfp4"}
    found: dict[str, Call] = {"bf16": (multiply, (x, narrow)), "f32": (multiply, (wide, w)),
                              "numpy f32": (np.matmul, (wide, w.T if by_rows else w)),
                              **{name: (multiply, (x, q)) for name, q in weights.items()}}
    columns = slice(0, 256)
    for name, (function, (a, b)) in found.items():
        part = b[columns] if by_rows and name != "numpy f32" else b[:, columns]
        numbers = np.asarray(part).astype(np.float64)
        exact = a.astype(np.float64) @ (numbers.T if by_rows and name != "numpy f32" else numbers)
        if not np.allclose(function(a, b)[:, columns], exact, 1e-3, 1e-3 * np.abs(exact).max()):
            raise RuntimeError(f"{case}, {k}: wrong results with {name}")
    if importlib.util.find_spec("torch") is not None:
        import torch
        torch.set_num_threads(tw.get_num_threads())
        both = x, narrow if by_rows else narrow.T
        tensors = [torch.from_numpy(y.view(np.int16)).view(torch.bfloat16) for y in both]
        found["torch bf16"] = torch.nn.functional.linear, tuple(tensors)
    return {name: [call] for name, call in found.items()}


def make(case: str, k: int, threads: int) -> Case:
    return Case({}, _calls(case, k), bytes=2 * k * COLUMNS.get(k, 2 * k))
