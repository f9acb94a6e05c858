"""Products of groups of unequal size, of Dask arrays: see docs/grouped.md for the two kinds."""
from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from dask._task_spec import DataNode, Task, TaskRef
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

import tilewright as tw
from tilewright.dask import blocks, chunks
from tilewright.dask.operands import Fixed, operand
from tilewright.rules import grouping


def grouped_matmul(a: Any, b: Any, offsets: Any, *, out_dtype: Any = None, alpha: float = 1, epilogue: Any = None,
                   operands: dict[str, Any] | None = None, trans_b: bool = False, deterministic: bool = True,
                   batch_invariant: bool = False) -> Any:
    """The product of each group of rows of a with its matrix, or of steps of k, as tilewright.grouped_matmul has them.

    a, b        Dask arrays, or NumPy's: [M, k] and [G, k, n], for groups of rows; b may be a tw.Quantized, a tw.Scaled
                or a result of tw.pack there, with trans_b, too. [m, K] and [K, n]: for groups of k
    offsets     the end of each group: an array of G integers, of NumPy or Dask
    epilogue, operands  for groups of rows: a function with one result. Operands are numbers and NumPy arrays, which all
                tasks get as a whole: [n], [1, n], [M, 1], [M, n], or [G, 1, n] and [G, 1, 1], of numbers for each group

    k is one block; so are groups of k. A block of rows reads those blocks of b that have its groups, if offsets are
    NumPy's, and all of them otherwise.
    """
    x, y = operand(a, "a"), operand(b, "b", whole=True)
    x = x if isinstance(x, da.Array) else da.from_array(x, chunks=-1)
    y = y if isinstance(y, (da.Array, Fixed)) else da.from_array(y, chunks=-1)
    ends = offsets if isinstance(offsets, da.Array) else np.asarray(offsets)
    how = {"out_dtype": out_dtype, "alpha": alpha, "deterministic": deterministic, "batch_invariant": batch_invariant}
    why = "since k of groups is one block"
    if x.ndim != 2 or y.ndim not in (2, 3) or ends.ndim != 1:
        raise ValueError(f"a must be [M, k] and b [G, k, n], or [m, K] and [K, n], and offsets 1-D, and they have "
                         f"{x.ndim}, {y.ndim} and {ends.ndim} axes")
    if ends.dtype.kind not in "iu" and ends.size:
        raise TypeError(f"offsets must be integers, but its dtype is {ends.dtype}")
    steps = y.shape[2 if trans_b and y.ndim == 3 else -2]
    if x.shape[1] != steps and not np.isnan(x.shape[1]) and not np.isnan(steps):
        raise ValueError(f"a and b must agree in k, but their shapes are {x.shape} and {y.shape}")
    axis, extent = ("rows of a", x.shape[0]) if y.ndim == 3 else ("steps of k", x.shape[1])
    if not isinstance(ends, da.Array):
        ends = grouping.checked(ends, axis, extent)
    x = chunks.whole(x, "a", 1, why)
    if y.ndim == 2:
        if epilogue is not None or trans_b:
            raise TypeError("epilogue must be None, and trans_b False, for groups of k")
        return _of_k(x, chunks.whole(y, "b", 0, why), ends, how)
    if trans_b:
        if isinstance(y, Fixed):
            how["trans_b"] = True
        else:
            y = y.transpose(0, 2, 1)
    if not isinstance(y, Fixed):
        y = chunks.whole(y, "b", 1, why)
    if not chunks.known(x.chunks[0]):
        raise ValueError("a must have known sizes of blocks along its rows, which offsets count: compute_chunk_sizes()")
    if epilogue is not None:
        how["epilogue"] = epilogue
    return _of_rows(x, y, ends, how, operands or {})


def _of_rows(x: Any, y: Any, ends: Any, how: dict[str, Any], operands: dict[str, Any]) -> Any:
    transposed = how.get("trans_b", False)
    columns = y.chunks[1 if transposed and isinstance(y, Fixed) else 2]
    given = {name: v if np.isscalar(v) else np.asarray(v) for name, v in operands.items()}
    if any(isinstance(v, da.Array) for v in operands.values()):
        raise TypeError("operands of grouped_matmul must be numbers and NumPy arrays")
    if not isinstance(ends, da.Array) and len(ends) != y.shape[0]:
        raise ValueError(f"offsets must have {y.shape[0]} numbers, one for each matrix of b, not {len(ends)}")
    few = {k: blocks._part(v, slice(0, 0), slice(0, sum(columns)), slice(0, y.shape[0]), y.shape[0])
           for k, v in given.items()}
    multiply: Any = tw.grouped_matmul
    none = np.broadcast_to(np.zeros((), y.dtype), (y.shape[0], x.shape[1], sum(columns))) if (
        isinstance(y, da.Array)) else y.value
    result = multiply(np.zeros((0, x.shape[1]), x.dtype), none,
                      np.zeros(y.shape[0], np.int64), **how, **({"operands": few} if few else {}))
    if type(result) is tuple or result.ndim != 2 or result.shape[1] != sum(columns):
        raise TypeError("an epilogue of groups must return one number for each element: reductions, tw.pairs and "
                        "several results are for tilewright.grouped_matmul")
    name = "tilewright-grouped-" + tokenize(x.name, y.name, getattr(ends, "name", ends), how["out_dtype"], given,
                                           {k: getattr(v, "text", v) for k, v in how.items()})
    graph: dict[Any, Any] = {}
    if isinstance(y, Fixed):
        graph[y.name,] = DataNode((y.name,), blocks.Whole(y.value))
    where = _of_offsets(name, ends, graph)
    starts = chunks.begins(y.chunks[0])
    for i, (begin, rows) in enumerate(zip(chunks.begins(x.chunks[0]), x.chunks[0])):
        needed = [q for q, first in enumerate(starts) if isinstance(ends, da.Array) or _meet(
            ends, first, y.chunks[0][q], begin, rows)] or [0]
        for j, (left, width) in enumerate(zip(chunks.begins(columns), columns)):
            stacks = [(y.name,) if isinstance(y, Fixed) else (y.name, q, 0, j) for q in needed]
            graph[name, i, j] = Task((name, i, j), blocks.run_groups, how, (begin, sum(x.chunks[0])),
                                     [starts[q] for q in needed], slice(left, left + width), given,
                                     TaskRef((x.name, i, 0)), TaskRef(where), *map(TaskRef, stacks))
    arrays = [v for v in (x, y, ends) if isinstance(v, da.Array)]
    return da.Array(HighLevelGraph.from_collections(name, graph, dependencies=arrays), name, (x.chunks[0], columns),
                    dtype=result.dtype)


def _meet(ends: Any, first: int, count: int, begin: int, rows: int) -> bool:
    """Whether these groups have rows of this block."""
    start, stop = (ends[first - 1] if first else 0), ends[first + count - 1] if count else 0
    return bool(max(start, begin) < min(stop, begin + rows))


def _of_offsets(name: str, ends: Any, graph: dict[Any, Any]) -> Any:
    """The key of the offsets, in one block."""
    if isinstance(ends, da.Array):
        if len(ends.chunks[0]) > 1:
            raise ValueError("offsets must have one block: rechunk(-1)")
        return ends.name, 0
    graph[f"{name}-offsets",] = DataNode((f"{name}-offsets",), ends)
    return (f"{name}-offsets",)


def _of_k(x: Any, y: Any, ends: Any, how: dict[str, Any]) -> Any:
    multiply: Any = tw.grouped_matmul
    dtype = multiply(np.zeros((0, 0), x.dtype), np.zeros((0, 0), y.dtype), [0], **how).dtype
    name = "tilewright-grouped-" + tokenize(x.name, y.name, getattr(ends, "name", ends), how)
    graph: dict[Any, Any] = {}
    where = _of_offsets(name, ends, graph)
    for i, j in chunks.blocks((x.chunks[0], y.chunks[1])):
        graph[name, 0, i, j] = Task((name, 0, i, j), blocks.run_groups_of_k, how, TaskRef((x.name, i, 0)),
                                    TaskRef((y.name, 0, j)), TaskRef(where))
    arrays = [v for v in (x, y, ends) if isinstance(v, da.Array)]
    return da.Array(HighLevelGraph.from_collections(name, graph, dependencies=arrays), name,
                    ((ends.shape[0],), x.chunks[0], y.chunks[1]), dtype=dtype)
