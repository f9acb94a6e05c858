"""Measured plans that come with tilewright: plans/tables/, a file per target, a row per problem and kind of machine.

A row whose role is "best" counts for the processor it was measured on, and for others with the same target and caches;
the other rows only record what was measured. What the user has measured counts more. ship.py makes the tables.
"""
from __future__ import annotations

from functools import cache
from math import log2
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from tilewright.plans.cpu import Shape
from tilewright.targets.base import CpuTarget

if TYPE_CHECKING:
    from tilewright.plans.measured.row import Row

FOLDER = Path(__file__).parents[1] / "tables"
Class = tuple[int, int, int]


def best(shape: Shape, target: CpuTarget) -> str | None:
    """The plan in the tables for this problem on this kind of machine."""
    return plans(target).get(shape)


def plans(target: CpuTarget) -> dict[Shape, str]:
    return _plans(target.name, target.model, machine_class(target))


def machine_class(of: CpuTarget | Row | SimpleNamespace) -> Class:
    """Caches in KiB. L3 by powers of two: what a virtual machine sees of it differs from one to the next."""
    return of.l1d >> 10, of.l2 >> 10, 1 << round(log2(of.l3 / 1024)) if of.l3 else 0


@cache
def _plans(name: str, model: str, caches: Class) -> dict[Shape, str]:
    lines = _lines(FOLDER / f"{name}.jsonl")
    if not lines:
        return {}
    import json
    rows = [SimpleNamespace(**row) for row in map(json.loads, lines)]       # a quick Row
    alike, same = ({Shape.of_key(row.dtype, row.m, row.n, row.k, row.a, row.b, row.threads): row.plan
                    for row in rows if row.role == "best" and fits(row)}
                   for fits in (lambda row: machine_class(row) == caches, lambda row: row.model == model))
    return alike | same


def read(file: Path) -> list[Row]:
    """The rows of a table, none if there is no such file."""
    from tilewright.plans.measured.row import Row
    return [Row.from_json(line) for line in _lines(file)]


def _lines(file: Path) -> list[str]:
    try:
        return [line for line in file.read_text().splitlines() if line]
    except OSError:
        return []


def write(file: Path, rows: list[Row]) -> None:
    """One line per row, columns aligned, by problem."""
    import json
    from dataclasses import asdict
    rows = sorted(rows, key=lambda r: (r.target, r.model, r.dtype, r.threads, r.m*r.n*r.k, r.shape))
    cells = [[f'"{name}": {json.dumps(_rounded(value))}' for name, value in asdict(row).items()] for row in rows]
    widths = [max(map(len, column)) + 1 for column in zip(*cells)]
    lines = (" ".join((cell + ",").ljust(w) for cell, w in zip(row[:-1], widths)) + f" {row[-1]}" for row in cells)
    file.write_text("".join(f"{{{line}}}\n" for line in lines))


def _rounded(value: object) -> object:
    """Four digits are more than a measurement has."""
    return float(f"{value:.4g}") if isinstance(value, float) else value
