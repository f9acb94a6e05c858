"""Sums and rows of arrays beside NumPy: code of `kernels.elementwise`, called as users call it, on one thread and more.

Each case has so many sets of arrays that they do not stay in the last cache where one set would not; bytes count once
for each array, as they are in memory. Results are checked before anything is timed.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.bench.tables import quoted
from tilewright.ir import Function, Kernel, f32, i64, ptr
from tilewright.kernels.elementwise import each, each_row, fold, once
from tilewright.measure import machine, probes
from tilewright.measure.measure import Call, Rules, Sample, interleave, ratios, spread
from tilewright.measure.quiet import Watch, settle

CAPTION = "time of a call; median ratio (quartiles)"
SIZES = (10**4, 10**5, 10**6, 10**7)
COLS = 1000                     # of the matrix whose rows are added up
COLD = 1 << 28                  # bytes of all sets of arrays together, where one set is beyond this share of it
SHARE = 16


def emit_add(threads: int | None = None, warp: int = 32) -> Function:
    """z = x + y"""
    k = Kernel("add", threads=threads, warp=warp, n=i64, x=ptr(f32), y=ptr(f32), z=ptr(f32))
    n, x, y, z = k.args
    with each(k, n) as i:
        z[i] = x[i] + y[i]
    return k.function


def emit_sums(threads: int | None = None, warp: int = 32) -> Function:
    """The sum of each row of x."""
    k = Kernel("sums", threads=threads, warp=warp, rows=i64, cols=i64, x=ptr(f32), sums=ptr(f32))
    rows, cols, x, sums = k.args
    x = x.view(cols, 1)
    with each_row(k, rows) as row:
        total = fold(k, cols, lambda a, b: a + b, 0.0, lambda j: x[row, j])
        with once(k):
            sums[row] = total
    return k.function


@dataclass(frozen=True)
class Found:
    """One case on so many threads: what it was, how many bytes a call moves, and the samples of all. `memory`: the
    measured bandwidth to hold it against, None for what stays in a cache."""
    case: str
    n: int
    threads: int
    bytes: int
    samples: dict[str, Sample]
    memory: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {"case": self.case, "n": self.n, "threads": self.threads, "bytes": self.bytes, "memory": self.memory,
                "seconds": {name: list(sample.seconds) for name, sample in self.samples.items()}}


def median_us(x: dict[str, Any], name: str) -> str:
    """Of a record, "" if this was not measured."""
    return f"{spread(x['seconds'][name]).median * 1e6:.1f}" if name in x["seconds"] else ""


def compared(x: dict[str, Any], name: str, other: str) -> str:
    """How many times as long `other` takes in the same rounds; "" if it was not measured."""
    seconds = x["seconds"]
    return quoted(spread(ratios(seconds[other], seconds[name]))) if other in seconds else ""


def table(found: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows, of records."""
    rows: list[tuple[str, ...]] = []
    for x in found:
        rate = x["bytes"] / spread(x["seconds"]["tilewright"]).median
        rows.append((x["case"], f"{x['n']:,}", str(x["threads"]), median_us(x, "tilewright"), median_us(x, "numpy"),
                     compared(x, "tilewright", "numpy"), f"{rate / 1e9:.1f}",
                     f"{rate / x['memory']:.2f}" if x["memory"] else ""))
    return ("case", "elements", "threads", "us", "numpy us", "x numpy", "GB/s", "of memory's"), rows


def _arrays(*sizes: int) -> list[list[np.ndarray]]:
    """Sets of random arrays: several, where one alone would not stay in a cache."""
    once_bytes = 4 * sum(sizes)
    sets = 1 if once_bytes * SHARE < COLD else max(2, COLD // once_bytes)
    rng = np.random.default_rng(1)
    return [[rng.random(n, np.float32) for n in sizes] for _ in range(sets)]


def _add(n: int, call: Callable[..., Any]) -> tuple[int, dict[str, list[Call]]]:
    sets = _arrays(n, n, n)
    return 12 * n, {"tilewright": [(call, (n, x, y, z)) for x, y, z in sets],
                    "numpy": [(np.add, (x, y, z)) for x, y, z in sets]}


def _sums(n: int, call: Callable[..., Any]) -> tuple[int, dict[str, list[Call]]]:
    rows = n // COLS
    sets = [(x.reshape(rows, COLS), sums) for x, sums in _arrays(rows * COLS, rows)]
    return 4 * rows * COLS, {"tilewright": [(call, (rows, COLS, x, sums)) for x, sums in sets],
                             "numpy": [(np.sum, (x, 1, None, sums)) for x, sums in sets]}


CASES = {"z = x + y": (emit_add, _add, 2e-7), "sums of rows": (emit_sums, _sums, 1e-5)}


def run(sizes: Iterable[int] = SIZES, threads: Iterable[int] = (1,), quick: bool = False,
        step: Callable[[str], None] = lambda what: None) -> Iterator[Found]:
    """Each case as it is measured; `step` is called before it."""
    before, last_level, peaks = tw.get_num_threads(), machine.last_level_bytes(), probes.ceilings()
    try:
        for count in threads:
            tw.set_num_threads(count)
            for case, (emit, calls, tolerance) in CASES.items():
                call = tw.kernel(emit)
                for n in sizes:
                    step(f"{case}, {n:,} elements, {count} threads")
                    moved, made = calls(n, call)
                    results = {name: _result(one) for name, one in made.items()}
                    if not np.allclose(results["tilewright"], results["numpy"], rtol=tolerance):
                        raise RuntimeError(f"{case} of {n} elements differs from NumPy's")
                    samples = interleave(made, Rules.choose(count, quick), settle=settle, disturbed=Watch().disturbed)
                    memory = None if moved < last_level else peaks.peak_bandwidth("memory", count, "read")
                    yield Found(case, n, count, moved, samples, memory)
    finally:
        tw.set_num_threads(before)


def _result(calls: list[Call]) -> np.ndarray:
    """The last argument of a call, which it writes."""
    for function, args in calls:
        args[-1].fill(np.nan)
        function(*args)
    return calls[0][1][-1].copy()
