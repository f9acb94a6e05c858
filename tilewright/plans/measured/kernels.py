"""Configurations of users' kernels that were measured (tilewright.tune of a Parametric), in the store's file.

A row holds for a kernel by its name and a digest of what it records, for a target and chip, and for a class of sizes.
Sizes of another class take what the nearest measured class says of them.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf, log2, prod
from pathlib import Path
from typing import Any

from tilewright.plans.measured import choice, store
from tilewright.plans.measured.row import Line

FAR = 1.5               # binary orders of magnitude from a call's sizes to those of a class: the neighbouring ones


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


Sizes = Mapping[str, int]


def best(kernel: str, source: str, target: Any, problem: str) -> str | None:
    """The configuration that was measured to be the fastest; None without a measurement. A fault in the file costs a
    warning, as for plans."""
    return next((row.configuration for row in _measured(kernel, source, target)
                 if row.role == "best" and row.problem == problem), None)


def nearby(kernel: str, source: str, target: Any, sizes: Sizes, tiles: Callable[[str], Sizes | None]) -> str | None:
    """The configuration for sizes of a class that was not measured: of the nearest one that was, in which no size is
    more than FAR binary orders of magnitude away. Its configurations have the times that were measured there, in
    proportion to the whole tiles that these sizes take. None if no class is near.

    tiles       extents of a configuration's tile, by the names of sizes; None for one that cannot be used
    """
    classes: dict[str, list[KernelRow]] = {}
    for row in _measured(kernel, source, target):
        classes.setdefault(row.problem, []).append(row)
    near = {problem: distance for problem in classes if (distance := _distance(sizes_of(problem), sizes)) <= FAR}
    if not near:
        return None
    closest = min(near, key=near.__getitem__)
    there, distances = sizes_of(closest), dict[str, float]()
    for row in classes[closest]:
        if (tile := tiles(row.configuration)) is not None:
            distances[row.configuration] = row.seconds * _waste(sizes, tile) / _waste(there, tile)
    return min(distances, key=distances.__getitem__, default=None)


def sizes_of(problem: str) -> dict[str, int]:
    """The sizes in the name of a class, "m=4096 n=4096"."""
    return {name: int(size) for name, _, size in (word.partition("=") for word in problem.split()) if size}


def _distance(there: Sizes, here: Sizes) -> float:
    """The difference of the size that differs most, in powers of two; inf for a class of other sizes."""
    if there.keys() != here.keys() or not here or min(here.values()) < 1:
        return inf
    return max(abs(log2(here[name] / there[name])) for name in here)


def _waste(sizes: Sizes, tile: Sizes) -> float:
    """What whole tiles have over these sizes."""
    return prod(-(-size // tile.get(name, 1)) * tile.get(name, 1) / size for name, size in sizes.items())


def _measured(kernel: str, source: str, target: Any) -> list[Any]:
    """The rows that hold for this kernel on this chip."""
    wanted = target.name, choice.chip(target), kernel, source
    return [row for row in _rows(store.path()) if (row.target, row.model, row.kernel, row.source) == wanted]


def _rows(file: Path | None) -> list[Any]:
    if file is not None:
        with suppress(OSError, ValueError):
            return store.rows(store.KERNELS)
    return []
