"""Products of f32 with an epilogue beside the product alone, and beside torch: on one thread and more.

torch is called as its users call it: torch.addmm or torch.mm and a function of its result (`torch`), and the same
through torch.compile where that works, which needs a C++ compiler (`torch.compile`). tilewright and the product alone
write to `out`; torch's functions make new arrays. Results are checked against float64 before anything is timed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.lab.bench.study import ALONE, OURS, Case, close_to, compared, microseconds, setting

CAPTION = "median time of a call; times in the same rounds, median (quartiles)"
SIZES = (64, 256, 1024, 2048, 4096)


def _relu(acc: Any) -> Any:
    return tw.relu(acc)


def _gelu(acc: Any, bias: Any) -> Any:
    return tw.gelu(acc + bias)


CASES = {"relu": _relu, "bias + gelu": _gelu}
COLUMNS = (*setting("m = n = k"), microseconds("us"), compared("of the product's time", OURS, ALONE),
           compared("x torch", "torch"), compared("x torch.compile", "torch.compile"))


def make(case: str, n: int, threads: int) -> Case:
    rng = np.random.default_rng(n)
    a, b = (rng.standard_normal((n, n), np.float32) for _ in range(2))
    operands = {} if case == "relu" else {"bias": rng.standard_normal(n, np.float32)}
    function: Any = CASES[case]
    outs = [np.empty((n, n), np.float32) for _ in range(2)]
    ours = partial(tw.matmul, epilogue=function, operands=operands or None)
    return Case({}, {"tilewright": [(ours, (a, b, outs[0]))], ALONE: [(tw.matmul, (a, b, outs[1]))]},
                close_to(function(a.astype(np.float64) @ b, **operands), 1e-3),
                {"case": case, "a": a, "b": b, "operands": operands, "threads": threads}, bytes=12 * n * n)
