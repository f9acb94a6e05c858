"""Configurations of users' kernels that were measured (tilewright.tune of a Parametric), in the store's file.

A row holds for a kernel by its name and a digest of what it records, for a target and chip, and for a class of sizes.
"""
from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.plans.measured import choice, store
from tilewright.plans.measured.row import Line


@dataclass(frozen=True)
class KernelRow(Line):
    """Seconds are medians and quartiles over rounds. A ratio is the time of the configuration that was in use over this
    one's, within one round."""
    target: str
    model: str                  # the chip: choice.chip
    kernel: str                 # the emitter's name
    source: str                 # digest of what it records
    problem: str                # the class of sizes: "m=4096 n=4096 k=4096"
    configuration: str          # "L=64 S=16 V=8"
    role: str                   # "best", "model" for the first in rank, else ""
    bound: float                # seconds that it takes at least
    seconds: float
    q1: float
    q3: float
    ratio: float
    ratio_q1: float
    ratio_q3: float
    rounds: int
    date: str
    machine: str
    tilewright: str
    llvmlite: str
    commit: str | None = None


def best(kernel: str, source: str, target: Any, problem: str) -> str | None:
    """The configuration that was measured to be the fastest; None without a measurement. A fault in the file costs a
    warning, as for plans."""
    chip = choice.chip(target)
    wanted = target.name, chip, kernel, source, problem
    for row in _rows(store.path()):
        if row.role == "best" and (row.target, row.model, row.kernel, row.source, row.problem) == wanted:
            return str(row.configuration)
    return None


def _rows(file: Path | None) -> list[Any]:
    if file is not None:
        with suppress(OSError, ValueError):
            return store.rows(store.KERNELS)
    return []
