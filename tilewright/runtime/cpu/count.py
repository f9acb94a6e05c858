"""How many threads by default: what the user asked for, else what this process may use.

In this order: TILEWRIGHT_NUM_THREADS, OMP_NUM_THREADS (its first number), 1 in a worker process of somebody else's
pool, else the CPUs that affinity and the control group's quota leave.
"""
from __future__ import annotations

import os
import sys
import warnings

from tilewright.targets import machine

VARIABLES = ("TILEWRIGHT_NUM_THREADS", "OMP_NUM_THREADS")


def default_threads() -> int:
    for name in VARIABLES:
        text = os.environ.get(name, "").strip()
        if text:
            number = text.split(",")[0].strip()         # OpenMP's list is one number per nesting level
            if number.isdecimal() and int(number) > 0:
                return int(number)
            warnings.warn(f"{name}={text!r} is ignored: it must be a number of threads, 1 or more.", RuntimeWarning,
                          stacklevel=3)
    return 1 if in_worker_process() else machine.cpus().count


def in_worker_process() -> bool:
    """Whether multiprocessing started this process, as concurrent.futures, joblib and Dask let it do: there is one
    such process per core already. Asked without importing multiprocessing, which every such process has done."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None
