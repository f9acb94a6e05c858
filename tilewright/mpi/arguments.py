"""What is asked of a product, checked on each rank before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Any

import numpy as np

import tilewright
from tilewright.mpi.device import on_device
from tilewright.mpi.layouts import Grid, Layout, select, slices
from tilewright.mpi.matrix import Array, Matrix, check_layout
from tilewright.mpi.placement import MOST, WIDE, Placement, panel_width, panels, place, segment_length, segments
from tilewright.mpi.report import Report
from tilewright.mpi.stores import Plain, described, scaled
from tilewright.mpi.team import Team
from tilewright.mpi.volume import grids, travels
from tilewright.rules.arguments import check_cast, dtypes
from tilewright.runtime.gpu.arrays import dtype_of

TRIAL = (2, 4)  # the shape of a product by which the functions of a call are tried


@dataclass(frozen=True)
class Asked:
    """A product that all ranks have agreed on."""

    a: Matrix
    b: Matrix
    c: Matrix | None
    out: Matrix | None
    alpha: complex
    beta: complex
    out_dtype: Any
    function: Any           # of sums: the epilogue
    operands: dict[str, Any]
    placement: Placement
    layout: Layout          # of the result
    reproducible: bool
    width: int
    unit: int               # of k: panels begin at multiples
    ahead: int
    threads: int | None
    sums: np.dtype[Any]
    result: np.dtype[Any]
    several: bool
    store: Plain            # of sums

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.a.shape[0], self.b.shape[1], self.a.shape[1]


def checked(*, a: Matrix, b: Matrix, out: Any, alpha: complex, beta: complex, c: Any, out_dtype: Any, epilogue: Any,
            operands: Any, grid: Any, layout: Any, reproducible: Any, panel: Any, ahead: Any, threads: Any, report: Any
            ) -> tuple[dict[str, Any], Asked]:
    """The fields that ranks compare, and the product."""
    team = a.team
    if b.team is not team:
        raise ValueError("b must be of the team of a, and is of another")
    (m, k), n = a.shape, b.shape[1]
    if b.shape[0] != k:
        raise ValueError(f"b must have {k} rows, as many as a has columns, and its shape is {b.shape}")
    extra = dict(operands or {})
    spread = {f"operands[{name!r}]": x for name, x in extra.items() if isinstance(x, Matrix)}
    for name, x in {"c": c, "out": out, **spread}.items():
        _check_matrix(name, x, team, (m, n))
    if extra and epilogue is None:
        raise ValueError(f"operands must be None without an epilogue, and has {', '.join(extra)}")
    if layout is not None:
        check_layout(layout, team)
        if layout.shape != (m, n) or (out is not None and layout != out.layout):
            raise ValueError(f"layout must be that of out, or None, and of a {m} x {n} matrix, not {layout}")
    if report is not None and not isinstance(report, Report):
        raise TypeError(f"report must be a tilewright.mpi.Report or None, not {type(report).__name__}")
    usual = panel_width(k, WIDE if on_device(a.local) else MOST)
    width, ahead = _whole("panel", usual if panel is None else panel, 1), _whole("ahead", ahead, 0)
    sums, results = _formats(a, b, c if beta else None, out_dtype, alpha, beta, epilogue, extra)
    if out is not None:
        if len(results) > 1:
            raise ValueError(f"out must be None where the epilogue returns {len(results)} results")
        check_cast(results[0], out.dtype, "out")
    wanted = out.layout if out is not None else layout
    unit = segment_length(k, width) if reproducible else 1
    blocks = lcm(a.store.unit[1], b.store.unit[0])
    sizes = (a.store.bytes, b.store.bytes, sums.itemsize, results[0].itemsize)
    every = [place(g, a.layout, b.layout, wanted, lcm(unit, blocks)) for g in _grids(grid, team, k, bool(reproducible))]
    away = [name for name, x in (("a", a), ("b", b), ("c", c), ("out", out)) if x is not None and on_device(x.local)]
    if away and len(away) < sum(x is not None for x in (a, b, c, out)):
        raise TypeError(f"a, b, c and out must all be in a GPU's memory or none, and of them only {', '.join(away)} is")
    if away and (wanted or c is not None):
        every = [p for p in every if all(x is None or x == p.c for x in (wanted, c and c.layout))]
        if not every:
            raise ValueError("layout, and those of c and out, must be those in which the product leaves its result in "
                             "a GPU's memory")
    placed = min(_possible(every, a, b, width, bool(reproducible), blocks),
                 key=lambda p: (round(travels(p, a.layout, b.layout, wanted, sizes)), p.grid.layers,
                                abs(p.grid.rows - p.grid.cols), p.grid))
    asked = Asked(a, b, c if beta else None, out, alpha, beta, out_dtype, epilogue, extra, placed,
                  placed.c if wanted is None else wanted, bool(reproducible), width, blocks, ahead, threads, sums,
                  results[0],
                  len(results) > 1, (b if scaled(a.local) else a).store.similar(sums))
    matrices = {"a": a, "b": b, "c": asked.c, "out": out, **extra}
    fields = {name: _described(x) for name, x in matrices.items()}
    return fields | {"alpha": alpha, "beta": beta, "out_dtype": out_dtype, "grid": placed.grid, "layout": asked.layout,
                     "reproducible": asked.reproducible, "panel": width, "ahead": ahead,
                     "epilogue": epilogue is not None, "formats of results": results}, asked


def _possible(every: list[Placement], a: Matrix, b: Matrix, width: int, fixed: bool, unit: int) -> list[Placement]:
    """Placements for which numbers with scales, and arrays on a GPU, need not be moved, nor panels of numbers with
    scales put together of several parts."""
    for name, x in (("a", a), ("b", b)):
        if isinstance(x.local, np.ndarray):
            continue
        plans = [p for p in every if getattr(p, name) == x.layout]
        if not plans:
            what = "has scales" if scaled(x.local) else "is in a GPU's memory"
            raise ValueError(f"{name} {what}, and must lie as its product needs it: {getattr(every[0], name)} on a "
                             f"grid of {every[0].grid}, not {x.layout}")
        every = plans
        if not scaled(x.local):
            continue
        every = [p for p in plans if all(len(getattr(step, name)) == 1 for layer in range(p.grid.layers)
                                         for step in panels(p, layer, width, fixed, unit))]
        if not every:
            raise ValueError(f"{name} has scales, and must lie in parts of k of 64 steps or more, and in reproducible "
                             f"order of whole panels of {width}, not as {x.layout}")
    return every


def _check_matrix(name: str, x: Any, team: Team, shape: tuple[int, int]) -> None:
    if x is None:
        return
    if not isinstance(x, Matrix):
        raise TypeError(f"{name} must be a tilewright.mpi.Matrix or None, not {type(x).__name__}")
    if x.team is not team:
        raise ValueError(f"{name} must be of the team of a, and is of another")
    if x.shape != shape:
        raise ValueError(f"{name} must have the result's shape, {shape}, not {x.shape}")
    if scaled(x.local):
        raise TypeError(f"{name} must have no scales, and is of {x.local.format}")
    if name == "out" and isinstance(x.local, np.ndarray) and not x.local.flags.writeable:
        raise ValueError("out is read-only; it must be a Matrix whose local array can be written to")


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name} must be a whole number, {least} or more, not {value!r}")
    return int(value)


def _described(x: Any) -> str:
    if isinstance(x, Matrix):
        return f"{x.layout} of {described(x.local)}"
    return f"{x.shape} of {x.dtype}" if hasattr(x, "dtype") else repr(x)


def _formats(a: Matrix, b: Matrix, c: Matrix | None, out_dtype: Any, alpha: complex, beta: complex, epilogue: Any,
             operands: dict[str, Any]) -> tuple[np.dtype[Any], list[np.dtype[Any]]]:
    """The format of sums and those of results, by a small product with the same functions: what tilewright refuses is
    refused here, on every rank."""
    m, n = TRIAL
    shape = a.shape[0], b.shape[1]
    left, right = np.zeros((m, 0), a.dtype), np.zeros((0, n), b.dtype)
    added = None if c is None else np.zeros((m, n), c.dtype)
    tried = {name: _trial(name, x, shape) for name, x in operands.items()}
    options: dict[str, Any] = {} if epilogue is None else {"epilogue": epilogue, "operands": tried}
    product = tilewright.matmul(left, right, c=added, alpha=alpha, beta=beta, out_dtype=out_dtype, **options)
    results = product if isinstance(product, tuple) else (product,)
    for i, x in enumerate(results):
        if x.shape != TRIAL:
            raise ValueError(f"the epilogue's result {i} is a reduction or made of pairs of columns, for which a rank "
                             "would need what other ranks have: return elements, and reduce the result")
    sums, own = dtypes(left, right, added, out_dtype if epilogue is None else None)
    return sums, [x.dtype for x in results] if epilogue is not None else [own]


def _trial(name: str, x: Any, shape: tuple[int, int]) -> Any:
    """An operand of an epilogue as it would be for the small product."""
    if isinstance(x, Matrix):
        return np.zeros(TRIAL, x.dtype)
    array = np.empty(tuple(x.shape), dtype_of(x.dtype, f"operands[{name!r}]")) if on_device(x) else np.asarray(x)
    if array.ndim == 0:
        return x
    sizes = (1, *array.shape)[-2:]
    if array.ndim > 2 or any(size not in (1, extent) for size, extent in zip(sizes, shape)):
        raise ValueError(f"operands[{name!r}] must broadcast to the result's shape, {shape}, and its shape is "
                         f"{array.shape}")
    # an axis of one element is one in a small product, too: it broadcasts
    return np.ones([1 if size == 1 else t for size, t in zip(sizes, TRIAL)][-array.ndim:], array.dtype)


def local_operands(operands: dict[str, Any], asked: Asked, rank: int) -> dict[str, Any]:
    """What belongs to this rank's part of the result."""
    rows, cols = asked.placement.c.local_indices(rank)
    local: dict[str, Any] = {}
    for name, x in operands.items():
        if isinstance(asked.operands[name], Matrix) or np.ndim(x) == 0:
            local[name] = x
            continue
        if on_device(x):
            local[name] = _on_device(x, slices(rows), slices(cols))
            continue
        array: Array = np.asarray(x)
        flat = array if array.ndim == 2 else array[None]
        picked = select(flat, rows if len(flat) > 1 else np.arange(1), cols if flat.shape[1] > 1 else np.arange(1))
        local[name] = picked if array.ndim == 2 else picked[0]
    return local


def _on_device(x: Any, rows: Any, cols: Any) -> Any:
    """A part of an array on a GPU, of which an axis with one element stays."""
    picked = x if x.shape[-1] == 1 else x[..., cols]
    return picked if x.ndim < 2 or x.shape[0] == 1 else picked[rows]


def _grids(given: Any, team: Team, k: int, reproducible: bool) -> list[Grid]:
    """The grids among which to choose."""
    most = segments(k) if reproducible else 1 << 30
    if given is None:
        return [g for g in grids(team.size) if most % g.layers == 0 or not reproducible]
    try:
        grid = Grid(*map(int, given))
    except (TypeError, ValueError):
        raise TypeError(f"grid must be (rows, columns) or (rows, columns, layers), not {given!r}") from None
    if min(grid) < 1 or grid.size > team.size:
        raise ValueError(f"grid must have 1 to {team.size} processes, the ranks of the team, and {grid} has "
                         f"{grid.size}")
    if reproducible and most % grid.layers:
        allowed = " or ".join(str(1 << x) for x in range(most.bit_length()))
        raise ValueError(f"grid must have {allowed} layers for k = {k} in reproducible order, and has {grid.layers}")
    return [grid]
