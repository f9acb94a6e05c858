"""Prologues as packing takes them: how what is beside an operand's elements lies in memory, and the table of it."""
from __future__ import annotations

import numpy as np

from tilewright.kernels.cpu import jobs
from tilewright.rules.arguments import Array
from tilewright.rules.prologues import Prepared
from tilewright.runtime.cpu.engine import format_of
from tilewright.runtime.cpu.host import Host


def table(on: Host, role: str, prologue: Prepared | None) -> Array:
    """BESIDE of each array that a prologue of A, "a", or of B reads; of no prologue none."""
    lines = [(on.address_of(x), *row) for x, row in zip(prologue.arrays, rows(role, prologue))] if prologue else []
    return np.array(lines, np.int64).reshape(-1, len(jobs.BESIDE))


def rows(role: str, prologue: Prepared) -> list[tuple[int, ...]]:
    """BESIDE of each of its arrays, without addresses."""
    return [(*_apart(role, x), x.strides[0] // x.itemsize if x.ndim == 3 else 0) for x in prologue.arrays]


def recorded(role: str, prologue: Prepared | None) -> jobs.Prepare | None:
    """What packing records for arrays that lie so."""
    if prologue is None:
        return None
    read = []
    for aux, x in zip(prologue.prologue.reads, prologue.arrays, strict=True):
        line, step = ("0" if stride == 0 else "1" if stride == 1 else "n" for stride in _apart(role, x))
        read.append(f"{format_of(x.dtype)}:{line}{step}:{aux.group if step != '0' else 1}")
    return jobs.Prepare(prologue.prologue.expression.text, tuple(read), prologue.prologue.result)


def _apart(role: str, x: Array) -> tuple[int, int]:
    """Strides of lines and of steps of k in elements, 0 where there is but one."""
    row, column = (0 if extent == 1 else stride // x.itemsize for extent, stride in zip(x.shape[-2:], x.strides[-2:]))
    return (row, column) if role == "a" else (column, row)
