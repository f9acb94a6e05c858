"""Chunks of operands: where they do not match, one operand is cut anew, with a warning that says what this costs."""
from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import PerformanceWarning

from tilewright.rules.subscripts import Labels
from tilewright.text import plural, size

Chunks = tuple[float, ...]      # of one axis; nan: unknown until it is computed


def known(chunks: Chunks) -> bool:
    return not any(math.isnan(x) for x in chunks)


def same(x: Chunks, y: Chunks) -> bool:
    """Whether two axes are cut alike, or as many times if sizes are unknown: their blocks are compared when they are
    multiplied."""
    return x == y if known(x) and known(y) else len(x) == len(y)


def warn(message: str) -> None:
    """A warning for the line that called tilewright."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals["__name__"].split(".")[0] == "tilewright":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, PerformanceWarning, stacklevel=level)


def _shown(chunks: Chunks) -> str:
    sizes = sorted({int(x) for x in chunks}, reverse=True)
    return f"{plural(len(chunks), 'block')} of {' and '.join(map(str, sizes[:3]))}{' ...' * (len(sizes) > 3)}"


def recut(x: Any, name: str, axis: int, chunks: Chunks, why: str) -> Any:
    """x with these chunks along an axis; a warning says what this costs."""
    old = x.chunks[axis]
    if not (known(old) and known(chunks)):
        raise ValueError(f"the chunks of {name} along axis {axis} must be {chunks}, {why}, and they are {old}: sizes "
                         "that are not known cannot be cut anew. Compute them before: compute_chunk_sizes()")
    if sum(old) != sum(chunks):
        raise ValueError(f"axis {axis} of {name} has size {int(sum(old))}, and must have {int(sum(chunks))}, {why}")
    result = rechunked(x, axis, chunks)
    cost = size(x.nbytes) if known(tuple(map(float, x.shape))) else "all of it"
    warn(f"{name} is rechunked along axis {axis} from {_shown(old)} to {_shown(chunks)}, {why}. This copies {cost} "
         f"through {plural(math.prod(x.numblocks), 'task')} into {plural(math.prod(result.numblocks), 'block')}. "
         "Arrays that are made with chunks that match cost nothing")
    return result


def rechunked(x: Any, axis: int, chunks: Chunks) -> Any:
    """x with these chunks along an axis. Dask leaves arrays without elements as they are."""
    if 0 in x.shape:
        return da.zeros(x.shape, dtype=x.dtype, chunks=(*x.chunks[:axis], chunks, *x.chunks[axis + 1:]))
    return x.rechunk({axis: chunks})


def whole(x: Any, name: str, axis: int, why: str) -> Any:
    """x with one block along an axis."""
    return x if len(x.chunks[axis]) == 1 else recut(x, name, axis, (sum(x.chunks[axis]),), why)


def matched(arrays: Sequence[Any], labels: Sequence[Labels], names: Sequence[str]) -> list[Any]:
    """Arrays whose axes of one label have the same chunks: those of the largest array, or of one that is no Dask array
    and can only be taken as a whole. Axes of size 1 are broadcast."""
    results = list(arrays)
    for label in dict.fromkeys(label for term in labels for label in term):
        users = [(i, term.index(label)) for i, term in enumerate(labels) if label in term
                 and not (results[i].shape[term.index(label)] == 1 and results[i].numblocks[term.index(label)] == 1)]
        if len({results[i].chunks[axis] for i, axis in users}) < 2:
            continue
        leader, at = max(users, key=lambda user: (getattr(results[user[0]], "fixed", False),
                                                  np.nan_to_num(results[user[0]].size, nan=0)))
        for i, axis in users:
            if not same(results[i].chunks[axis], results[leader].chunks[at]):
                results[i] = recut(results[i], names[i], axis, results[leader].chunks[at],
                                 f"as those of {names[leader]} along axis {at}")
    return results


def along(x: Any, name: str, axes: Labels, chunks: Mapping[Any, Chunks]) -> tuple[Any, Labels]:
    """An array that broadcasts to a result with these axes, as a Dask array with the result's chunks; its labels."""
    if x.ndim > len(axes):
        raise ValueError(f"{name} must have {len(axes)} axes at most, as the result has, not {x.ndim}")
    labels = axes[len(axes) - x.ndim:]
    wanted = [(1,) if size == 1 and sum(chunks[label]) != 1 else chunks[label] for size, label in zip(x.shape, labels)]
    if not isinstance(x, da.Array):
        if not all(map(known, wanted)):
            wanted = [(n,) if known(cut) is False and n == 1 else cut for n, cut in zip(x.shape, wanted)]
        for axis, (n, cut) in enumerate(zip(x.shape, wanted)):
            if not known(cut):
                raise ValueError(f"{name} has {n} numbers along axis {axis}, where the result's chunks are not known: "
                                 "give it as a Dask array with as many blocks, or compute_chunk_sizes() before")
            if sum(cut) != n:
                raise ValueError(f"{name} has shape {x.shape}, which does not broadcast to the result's: axis {axis} "
                                 f"must have 1 or {int(sum(cut))} numbers")
        return da.from_array(x, chunks=tuple(wanted)), labels
    for axis, cut in enumerate(wanted):
        if not same(x.chunks[axis], cut):
            x = recut(x, name, axis, cut, "as those of the result")
    return x, labels


def blocks(chunks: Sequence[Chunks]) -> Iterator[tuple[int, ...]]:
    """Indices of all blocks, the last axis fastest."""
    return iter(np.ndindex(*map(len, chunks)))


def begins(chunks: Chunks) -> list[int]:
    """The index of each block's first element; 0 where sizes are not known."""
    return [0, *map(int, np.cumsum(chunks)[:-1])] if known(chunks) else [0] * len(chunks)
