"""Measure the plans that the model likes, remember the best, and use it from then on.

    row.py      one measured plan: problem, target, plan, figures, provenance. A row is a line of JSON
    store.py    rows in one SQLite file, and `best(shape, target)`, which the engine asks once per kind of call
    tables.py   rows that come with tilewright: plans/tables/*.jsonl
    search.py   `tilewright.tune`: candidates, a child process with a time limit, the verdict
    child.py    the process that measures;  contest.py holds its rules
    ship.py     makes the tables that come with tilewright
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.problem import Gemm
    from tilewright.targets import CpuTarget
    from tilewright.tuner.search import Result


def tune(problem: Gemm, target: CpuTarget | str | None = None, *, threads: int | None = None, time_limit: float = 30.0,
         candidates: int = 12, listen: Any = None) -> Result:
    """Measure the plans for a problem that the model ranks best; tilewright.matmul uses the fastest from then on.

    target       a CPU that this machine is, or its name; by default the one that tilewright.detect() gives
    threads      how many threads the products use; by default tilewright.get_num_threads()
    time_limit   seconds. Measuring stops then, and the results so far count
    candidates   how many plans are tried, beside the one in use
    listen       called with every event of the measurement (tuner/child.py lists them), for a progress bar

    A plan replaces the one in use only if it is faster by more than the noise. The results go to `store.path()`, with
    the machine, date and versions; print the Result to see them. RuntimeError if the target cannot run here or nothing
    could be measured.
    """
    from tilewright.tuner import search
    return search.tune(problem, target, threads=threads, time_limit=time_limit, candidates=candidates, listen=listen)
