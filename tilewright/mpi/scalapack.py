"""ScaLAPACK's way to call a product: local arrays by columns, each with an array descriptor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.mpi.layouts import Layout
from tilewright.mpi.matrix import Array, Matrix
from tilewright.mpi.product import matmul
from tilewright.mpi.team import Team
from tilewright.rules import arguments


def pgemm(team: Team, grid: Sequence[int], alpha: complex, a: Array, desc_a: Sequence[int], b: Array,
          desc_b: Sequence[int], beta: complex, c: Array, desc_c: Sequence[int], *, trans_a: bool | str = False,
          trans_b: bool | str = False, order: str = "row", **options: Any) -> Array:
    """C = alpha * op(A) @ op(B) + beta * C in place, as PDGEMM of whole matrices, in any format; returns c.

    grid        rows and columns of the process grid, whose ranks are numbered by `order`, "row" or "column"
    a, b, c     this rank's part: two axes, of which the first rows and columns count if there are more; or one axis,
                stored by columns of which each has lld numbers, as ScaLAPACK has them
    desc_a, desc_b, desc_c  descriptors: (1, context, m, n, mb, nb, rsrc, csrc, lld)
    trans_a, trans_b  as tw.matmul has them
    options     epilogue, operands, reproducible, panel, ahead, threads and report of matmul

    A format of which sums are not the matrix's own (bf16 into bf16) is rounded once, at the end.
    """
    flags: dict[str, str] = {}

    def check() -> tuple[dict[str, Any], list[tuple[Layout, Array]]]:
        given = []
        flags.update(a=arguments.layout(trans_a, "a"), b=arguments.layout(trans_b, "b"))
        for name, x, descriptor in (("a", a, desc_a), ("b", b, desc_b), ("c", c, desc_c)):
            try:
                layout = Layout.of_descriptor(descriptor, grid, order)
            except ValueError as error:
                raise ValueError(f"desc_{name}: {error}") from None
            given.append((layout, _part(name, x, layout.local_shape(team.rank), int(descriptor[8]))))
        fields = {f"desc_{name}": tuple(map(int, d))[:8] for name, d in zip("abc", (desc_a, desc_b, desc_c))}
        return {**fields, "grid": tuple(grid), "order": order, **{f"trans_{x}": y for x, y in flags.items()}}, given

    matrices = [Matrix(team, layout, part) for layout, part in team.call("pgemm", check)]
    left, right = (x if flags[name] == "n" else x.T if flags[name] == "t" else x.H for name, x in zip("ab", matrices))
    out = matrices[2]
    matmul(left, right, out, alpha=alpha, beta=beta, c=out if beta else None, **options)
    return c


def _part(name: str, x: Any, shape: tuple[int, int], lld: int) -> Array:
    """A local array as a matrix of this shape: a view."""
    if not isinstance(x, np.ndarray) or x.ndim not in (1, 2):
        raise TypeError(f"{name} must be a NumPy array with one or two axes, not "
                        f"{f'one with {x.ndim}' if isinstance(x, np.ndarray) else type(x).__name__}")
    rows, cols = shape
    if x.ndim == 1:
        if lld < max(1, rows) or len(x) < (cols - 1) * lld + rows:
            raise ValueError(f"{name} must have {cols} columns of {rows} numbers, {max(1, rows)} or more apart, and "
                             f"has {len(x)} numbers with lld = {lld}")
        return np.lib.stride_tricks.as_strided(x, shape, (x.strides[0], lld * x.strides[0])) if rows and cols else \
            x[:0].reshape(rows, 0) if rows else np.empty((0, cols), x.dtype)
    if x.shape[0] < rows or x.shape[1] < cols:
        raise ValueError(f"{name} must have at least the shape {shape}, this rank's part, and has {x.shape}")
    return x[:rows, :cols]
