"""Products of f32 with an epilogue beside the product alone, and beside torch: on one thread and more.

torch is called as its users call it: torch.addmm or torch.mm and a function of its result (`torch`), and the same
through torch.compile where that works, which needs a C++ compiler (`torch.compile`). tilewright and the product alone
write to `out`; torch's functions make new arrays. Results are checked against float64 before anything is timed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.lab.bench.study import ALONE, Case, checked, compared, median_us
from tilewright.lab.measure.measure import Call

CAPTION = "median time of a call; times in the same rounds, median (quartiles)"
SIZES = (64, 256, 1024, 2048, 4096)


def _relu(acc: Any) -> Any:
    return tw.relu(acc)


def _gelu(acc: Any, bias: Any) -> Any:
    return tw.gelu(acc + bias)


CASES = {"relu": _relu, "bias + gelu": _gelu}


def table(found: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows, of records."""
    rows: list[tuple[str, ...]] = [
        (x["case"], str(x["n"]), str(x["threads"]), median_us(x, "tilewright"), compared(x, ALONE, "tilewright"),
         compared(x, "tilewright", "torch"), compared(x, "tilewright", "torch.compile")) for x in found]
    return ("case", "m = n = k", "threads", "us", "of the product's time", "x torch", "x torch.compile"), rows


def _by_torch(case: str, threads: int) -> Callable[..., Any] | None:
    """The same of torch's tensors; None where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch
    torch.set_num_threads(threads)
    if case == "relu":
        return lambda a, b: torch.relu(torch.mm(a, b))
    return lambda a, b, bias: torch.nn.functional.gelu(torch.addmm(bias, a, b))


def _calls(case: str, n: int, threads: int) -> tuple[dict[str, Call], np.ndarray]:
    """By name, ready to be timed, and the exact result."""
    rng = np.random.default_rng(n)
    a, b = (rng.standard_normal((n, n), np.float32) for _ in range(2))
    operands = {} if case == "relu" else {"bias": rng.standard_normal(n, np.float32)}
    function: Any = CASES[case]
    outs = [np.empty((n, n), np.float32) for _ in range(2)]
    exact = function(a.astype(np.float64) @ b, **operands)
    found: dict[str, Call] = {
        "tilewright": (partial(tw.matmul, epilogue=function, operands=operands or None), (a, b, outs[0])),
        ALONE: (tw.matmul, (a, b, outs[1])),
    }
    if (eager := _by_torch(case, threads)) is not None:
        import torch
        tensors = tuple(torch.from_numpy(x) for x in (a, b, *operands.values()))
        found["torch"] = eager, tensors
        compiled: Any = torch.compile(eager)
        try:
            compiled(*tensors)
        except Exception:
            pass                # whatever it lacks, it is left out
        else:
            found["torch.compile"] = compiled, tensors
    return found, exact


def make(case: str, n: int, threads: int) -> Case:
    return Case({}, checked(f"{case} of {n}", *_calls(case, n, threads), 1e-3), bytes=12 * n * n)
