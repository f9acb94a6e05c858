"""Products of arrays whose rows, columns or steps of k are several axes:
C[batch, m, n] = A[batch, m, k] B[batch, k, n], each letter a group of axes.

What has one stride in each operand is the engine's; the rest is packed and stored by tables, without a copy.
"""
from __future__ import annotations

from functools import partial
from math import prod
from typing import Any, NamedTuple

from tilewright import forks
from tilewright.expressions.numerics import PLAIN, Numerics
from tilewright.kernels.cpu.jobs import Finish
from tilewright.plans import lowering
from tilewright.plans.cpu import block_depth
from tilewright.plans.cpu_shape import Order, Strides
from tilewright.plans.lowering import Lowered
from tilewright.plans.measured import choice
from tilewright.rules.arguments import Array
from tilewright.runtime.cpu import amx, batches, engine, pool, program, tables
from tilewright.runtime.cpu.panels import blocks
from tilewright.runtime.cpu.recipe import Recipe, Tables
from tilewright.targets import CpuTarget, detect


class Split(NamedTuple):
    """The axes of one operand's product, by group: (extent, stride in elements)."""
    rows: tables.Axes
    columns: tables.Axes

    @property
    def strides(self) -> tuple[int, int] | None:
        """By row and by column; None if there is no one stride."""
        rows, columns = map(tables.single_stride, self)
        if rows is None or columns is None:
            return None
        return lowering.strides_of(_size(self.rows), _size(self.columns), rows, columns)


def _size(axes: tables.Axes) -> int:
    return prod(extent for extent, _ in axes)


def gemm(a: Array, b: Array, c: Array, counts: tuple[int, int, int, int], *, threads: int | None = None,
         target: CpuTarget | None = None, invariant: str = "") -> bool:
    """c = sums of products of a and b, whose axes are those of batch and m, and k; k, and n; m, and n: counts says how
    many each group has, of batch at most one. Dtypes, strides and c as engine.gemm has them. False, and nothing done,
    if packing of these formats does not go by tables: in words, in AMX's tiles, or of complex numbers. invariant: of
    plans/invariant.py, but not for any number of rows."""
    if c.size == 0:
        return True
    if b.size == 0:                             # of no steps
        program.do(partial(engine.scale, beta=0), c)
        return True
    threads = threads or pool.get_num_threads()
    key = ("contraction", a.shape, b.shape, a.strides, b.strides, c.strides, a.dtype, b.dtype, c.dtype, counts, threads,
           target, invariant)
    recipe = forks.looked_up(engine.prepared, key, lambda: planned(a, b, c, counts, threads, target, invariant))
    if recipe is None:
        return False
    at_a, at_b, at_c = (recipe.address(x) for x in (a, b, c))
    steps = (a.strides[0], b.strides[0], c.strides[0]) if counts[0] else ()
    engine.note(recipe, False, a, b, c, 1.0, 0.0, steps)
    if steps:
        batches.run(recipe, c.shape[0], steps, at_a, at_b, at_c, 1.0, 0.0)
    else:
        recipe.run(at_a, at_b, at_c, 1.0, 0.0)
    return True


def planned(a: Array, b: Array, c: Array, counts: tuple[int, int, int, int], threads: int,
            target: CpuTarget | None = None, invariant: str = "") -> Recipe | None:
    """The recipe by which `gemm` multiplies; None if it does not."""
    splits = _splits(a, b, c, counts)
    problem = lowered(a, b, c, splits, threads, amx.permitted(target or detect()), Numerics(invariant=invariant))
    if problem.shape.tiles or problem.shape.words or problem.shape.complex:
        return None
    return recipe(problem, splits)


def packs(a: Array, b: Array, c: Array, counts: tuple[int, int, int, int], threads: int) -> bool:
    """Whether `fused` multiplies such operands, where c is a matrix in the dtype of the sums."""
    problem, _ = fused(a, b, c, counts, threads, amx.permitted(detect()), PLAIN)
    return not (problem.shape.tiles or problem.shape.words or problem.shape.complex)


def fused(a: Array, b: Array, c: Array, counts: tuple[int, int, int, int], threads: int, target: CpuTarget,
          numerics: Numerics, sums: str = "", beside: bool = False) -> tuple[Lowered, list[Split]]:
    """A product with an epilogue, and where axes of its operands go. c: [m, n], or with the groups' axes. sums, beside:
    of lowering.Product."""
    splits = _splits(a, b, c, counts)
    if c.ndim > 2 + counts[0]:
        return lowered(a, b, c, splits, threads, target, numerics, sums, beside), splits
    rsc, csc = engine.strides(c[0] if counts[0] else c)
    rows, columns = c.shape[-2:]
    by_rows = [*splits[:2], Split([(rows, columns)], [(columns, 1)])]
    problem = lowered(a, b, c, by_rows, threads, target, numerics, sums, beside)
    return problem._replace(strides=problem.strides._replace(rsc=rsc, csc=csc)), by_rows


def _splits(a: Array, b: Array, c: Array, counts: tuple[int, int, int, int]) -> list[Split]:
    nb, nm, nn, nk = counts

    def split(x: Array, rows: int, columns: int) -> Split:
        axes = [(extent, stride // x.itemsize) for extent, stride in zip(x.shape, x.strides)]
        return Split(axes[nb : nb + rows], axes[nb + rows :])
    return [split(a, nm, nk), split(b, nk, nn), split(c, nm, nn)]


def lowered(a: Array, b: Array, c: Array, splits: list[Split], threads: int, target: CpuTarget,
            numerics: Numerics = PLAIN, sums: str = "", beside: bool = False) -> Lowered:
    """The product as it is planned: scattered where there is no one stride."""
    strides = [x.strides or (0, 0) for x in splits[:2]] + [splits[2].strides or (0, 1)]
    format_a, format_b, format_c = (engine.format_of(x.dtype) for x in (a, b, c))
    product = lowering.Product(_size(splits[0].rows), _size(splits[1].columns), _size(splits[1].rows), format_a,
                               format_b, format_c, Strides(*(stride for pair in strides for stride in pair)), threads,
                               numerics, sums, beside)
    shape, st, target = lowering.lower(product, target)
    by_table: Order = "scattered"
    for name, x in zip("abc", splits):
        if x.strides is None or (name == "c" and st.csc != 1):
            shape = shape._replace(**{name: by_table})
    extent, stride = splits[0].columns[-1]
    if shape.a == by_table and stride == 1 and extent >= target.lanes(shape.itemsize):
        shape = shape._replace(a="scattered rows")
    if not shape.scattered:                         # axes merge in a copy that did not in what was converted
        shape = shape._replace(a=by_table)
    return Lowered(shape, st, target)


def recipe(found: Lowered, splits: list[Split], plan: Any = None, make: type[Recipe] = Recipe, host: Any = engine.host,
           finish: Finish | None = None) -> Recipe:
    """With the tables that the plan's blocks and vectors ask for."""
    shape, strides, target = found
    a, b, c = splits
    of_k = tables.tiled(a.columns, b.rows)
    of_n = tables.tiled(c.columns, b.columns) if len(c.columns) == len(b.columns) and finish is None else None
    if of_k is not None:
        shape = shape._replace(a="scattered", b="scattered")
    if of_n is not None:
        shape = shape._replace(b="scattered", c="scattered")
    for name in "ab":
        if getattr(shape, name).startswith("scattered"):        # so that the loops take no strides for those of memory
            strides = strides._replace(**{f"rs{name}": 0, f"cs{name}": 0})
    plan = engine.team(plan or choice.chosen(shape, target)[0], host)
    depth = block_depth(shape.k, blocks(shape, plan).kc, 4)
    lanes = target.lanes(shape.itemsize)
    side, strip = 0, None
    if of_n is not None and (target.masked or not shape.source_b):
        side = tables.square_side(plan.nr, lanes, next(extent for extent, stride in c.columns
                                                       if stride == 1 and extent > 1))
        of_n = tables.tiled(c.columns, b.columns, side)
        strip = None if of_n is None else tables.strips(c.columns, of_n, side)
    m, n, k = slice(None), slice(None) if of_n is None else of_n, slice(None) if of_k is None else of_k
    scattering: dict[str, Any] = {}
    for name, rows, columns, width, source in (
            ("a", tables.offsets(a.rows)[m], tables.offsets(a.columns)[k], plan.mr, shape.source_a),
            ("b", tables.offsets(b.columns)[n], tables.offsets(b.rows)[k], plan.nr, shape.source_b)):
        if getattr(shape, name).startswith("scattered"):
            scattering[name] = tables.scattered(rows, columns, depth, min(lanes, width), width % lanes == 0,
                                                target.masked or not source, strip if name == "b" else None, side)
    if shape.c == "scattered":
        scattering["c"] = tables.scattered_c(tables.offsets(c.rows)[m], tables.offsets(c.columns)[n], lanes, side)
    return make(shape, strides, plan, target, host, tables=Tables(**scattering), finish=finish)
