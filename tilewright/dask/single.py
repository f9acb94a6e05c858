"""One product of two operands with labelled axes: what its results are, how chunks match, and its graph."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from operator import getitem
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask._task_spec import DataNode, Task, TaskRef
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

import tilewright as tw
from tilewright.dask import blocks, chunks, graphs
from tilewright.dask.operands import WHOLE, Fixed, cut_alike, is_array
from tilewright.rules import arguments
from tilewright.rules.subscripts import Labels

ALONE = ("min_argmin", "max_argmax", "argmin", "argmax")    # whose partial results are pairs


@dataclass
class Asked:
    """A call. `function`: tilewright's, of blocks; `first`: its arguments before the operands; `how`: its options;
    `after`: an epilogue; `labels`, `output`: those of the axes of a, b and of the result."""
    function: str
    first: tuple[Any, ...]
    labels: tuple[Labels, Labels]
    output: Labels
    how: dict[str, Any]
    out_dtype: Any = None
    alpha: Any = 1
    beta: Any = 0
    c: Any = None
    after: Any = None
    operands: dict[str, Any] | None = None
    schedule: str = "auto"

    @property
    def matrices(self) -> bool:
        """Whether the result has rows and columns, over which an epilogue may reduce."""
        return self.function != "einsum" and self.output[-2:] == ("m", "n")


class Result(NamedTuple):
    """One of the results: the labels of its axes, its dtype, whether it is a reduction, and by how much its last axis
    is shorter."""
    labels: Labels
    dtype: Any
    reduced: bool
    shorter: int


def product(asked: Asked, a: Any, b: Any) -> Any:
    """The result as a Dask array, or several."""
    pair = cut_alike(a, b, asked.labels)
    _check_sizes(pair, asked.labels)
    if isinstance(asked.c, da.Array) and not asked.c.ndim:
        asked.c = asked.c[None]
    asked.c = None if type(asked.beta) in (int, float) and asked.beta == 0 else asked.c
    asked.operands = {name: np.asarray(x) if isinstance(x, (list, tuple)) else x[None] if isinstance(x, da.Array)
                      and not x.ndim else x for name, x in (asked.operands or {}).items()}
    results = _results(asked, pair)
    for axis, side in (("n", 1), ("m", 0)):
        if asked.matrices and any(axis not in x.labels for x in results):
            pair[side] = chunks.whole(pair[side], "ab"[side], asked.labels[side].index(axis),
                                      "since a reduction of the epilogue needs all of it at once")
    pair = chunks.matched(pair, asked.labels, "ab")
    cut: dict[Any, Any] = {}
    for x, term in zip(pair, asked.labels):
        for label, sizes in zip(term, x.chunks):
            if cut.get(label) in (None, (1,)) or not chunks.known(cut[label]):
                cut[label] = sizes
    extras = {"c": asked.c} | {("operand", name): x for name, x in asked.operands.items()}
    more = [(name, *chunks.along(x, name if isinstance(name, str) else f"operand {name[1]}", asked.output, cut))
            for name, x in extras.items() if is_array(x)]
    work, threads = _work(asked, pair, results), blocks.cluster_threads()
    name = f"tilewright-{asked.function}-" + tokenize(
        [x.name for x in pair], asked.labels, asked.output, cut, asked.first, asked.how, work.finish.get("out_dtype"),
        asked.alpha, asked.beta, work.c, getattr(asked.after, "text", asked.after), work.numbers,
        [(role, x.name, term) for role, x, term in more], plan_text(asked, pair, cut), asked.schedule, threads)
    x, y = map(graphs.side, pair, asked.labels)
    summed = tuple(dict.fromkeys(label for term in asked.labels for label in term if label not in asked.output))
    chains = graphs.Chains(name, work, x, y, asked.output, summed, cut, more, threads)
    size = prod(sum(cut[label]) for label in asked.output) * sum(x.dtype.itemsize for x in results if not x.reduced)
    graph: dict[Any, Any] = dict(graphs.tasks(chains, *graphs.chosen(chains, asked.schedule, size)))
    graph |= {(x.name,): DataNode((x.name,), blocks.Whole(x.value)) for x in pair if isinstance(x, Fixed)}
    arrays = [x for x in (*pair, *(x for _, x, _ in more)) if not isinstance(x, Fixed)]
    complete = HighLevelGraph.from_collections(name, graph, dependencies=arrays)
    if len(results) == 1 and not results[0].reduced:
        return da.Array(complete, name, _chunks(results[0], cut), dtype=results[0].dtype)
    if len(results) == 1:
        return _one(complete, name, None, results[0], asked.output, cut)
    return tuple(_one(complete, name, i, result, asked.output, cut) for i, result in enumerate(results))


def _check_sizes(pair: Sequence[Any], labels: Sequence[Labels]) -> None:
    sizes: dict[Any, float] = {}
    for name, x, term in zip("ab", pair, labels):
        for axis, (label, n) in enumerate(zip(term, x.shape)):
            known = sizes.setdefault(label, n)
            if known != n and not (np.isnan(known) or np.isnan(n)) and (1 not in (known, n) or label == "k"):
                raise ValueError(f"axis {axis} of {name} has size {n}, and must have {known}: a and b have the shapes "
                                 f"{pair[0].shape} and {pair[1].shape}")
            sizes[label] = n if known == 1 else known


def _results(asked: Asked, pair: Sequence[Any]) -> list[Result]:
    """By the product of operands that have hardly any elements, of which no kernel is made."""
    few = int(asked.after is not None)      # reductions need a row and a column
    sizes = {label: 2 * few if label == "n" and asked.matrices else few for label in asked.output}
    if isinstance(pair[1], Fixed):
        sizes |= dict(zip(asked.labels[1], pair[1].shape))

    def small(x: Any, term: Labels, broadcasts: bool = True) -> Any:
        if isinstance(x, Fixed):
            return x.value
        if not is_array(x):
            return np.zeros((), x.dtype) if isinstance(x, da.Array) else x
        own = term[len(term) - x.ndim:]
        return np.zeros([1 if n == 1 and broadcasts else sizes.get(label, 1 - few) for n, label in zip(x.shape, own)],
                        x.dtype)
    how: dict[str, Any] = {name: x for name, x in asked.how.items() if name != "plan"}
    if asked.operands:
        how["operands"] = {name: small(x, asked.output) for name, x in asked.operands.items()}
    if asked.c is not None:
        how |= {"c": small(asked.c, asked.output), "beta": asked.beta}
    if asked.alpha != 1:
        how["alpha"] = asked.alpha
    found = getattr(tw, asked.function)(*asked.first, *(small(x, term, False) for x, term in zip(pair, asked.labels)),
                                        out_dtype=asked.out_dtype, epilogue=asked.after, **how)
    results = []
    for x in found if type(found) is tuple else (found,):
        if isinstance(x, WHOLE):
            raise TypeError("out_dtype must be a format of single numbers: results with scales of blocks are no arrays")
        x = np.asarray(x)
        if x.ndim == len(asked.output):
            paired = asked.matrices and few and x.shape[-1] * 2 == sizes["n"]
            results.append(Result(asked.output, x.dtype, False, 1 + paired))
        elif not asked.matrices:
            raise TypeError("an epilogue that reduces rows or columns is for matmul of matrices")
        else:
            gone = "m" if x.shape[-1:] == (sizes["n"],) else "n"
            results.append(Result(tuple(label for label in asked.output if label != gone), x.dtype, True, 1))
    if asked.function == "einsum" and len(results) > 1:
        raise TypeError("an epilogue of einsum must return one result")
    return results


def _work(asked: Asked, pair: Sequence[Any], results: Sequence[Result]) -> blocks.Work:
    formats = [x.dtype for x in results if not x.reduced]
    finish: dict[str, Any] = {"out_dtype": formats[0] if len(formats) == 1 else tuple(formats)} if formats else {}
    if asked.function == "contract" and type(asked.out_dtype) is not tuple and len(formats) != 1:
        finish = {}
    if asked.after is not None:
        finish["epilogue"] = asked.after
    numbers = {name: x for name, x in (asked.operands or {}).items() if not is_array(x)}
    return blocks.Work(asked.function, asked.first, asked.how, _sums(asked, pair), finish, asked.alpha, asked.beta,
                       None if is_array(asked.c) else asked.c, numbers)


def _sums(asked: Asked, pair: Sequence[Any]) -> Any:
    """The dtype of unfinished sums; None: that of the function's results."""
    if isinstance(pair[1], Fixed):
        return None
    x, y = (np.empty((0, 0), x.dtype) for x in pair)
    if asked.function == "contract":
        return None if asked.how["reduce"] in (*ALONE, "any") else arguments.combined_in(x, y)
    wanted = asked.out_dtype[0] if type(asked.out_dtype) is tuple else asked.out_dtype
    if asked.after is not None and x.dtype.kind in "iu" and y.dtype.kind in "iu":
        wanted = None
    return arguments.dtypes(x, y, np.empty(0, asked.c.dtype) if is_array(asked.c) else asked.c, wanted)[0]


def plan_text(asked: Asked, pair: Sequence[Any], cut: dict[Any, Any]) -> str:
    """The text of the plan of the largest blocks, for one thread; "" for weights of few bits and packed ones."""
    if asked.how.get("plan") is not None:
        return str(asked.how["plan"])
    most = {label: int(np.nan_to_num(max(sizes), nan=1024)) for label, sizes in cut.items()}
    left, right = map(set, asked.labels)
    m, n = (prod(most[x] for x in own - other if x in asked.output) for own, other in ((left, right), (right, left)))
    k = prod(most[x] for x in left & right if x not in asked.output)
    if isinstance(pair[1], Fixed):
        return ""
    dtypes = [x.dtype for x in pair]
    semiring: Any = "" if asked.function != "contract" else tw.semiring(
        asked.first[0], asked.how["reduce"], "int" if all(x.kind in "iu" for x in dtypes) else "float")
    try:
        return str(tw.plan(tw.Gemm(m, n, k, *dtypes, semiring=semiring), threads=1,     # type: ignore[misc]
                           deterministic=asked.how["deterministic"], batch_invariant=asked.how["batch_invariant"]))
    except (TypeError, ValueError):         # formats that another product stands for: complex numbers
        return ""


def _chunks(result: Result, cut: dict[Any, Any]) -> tuple[Any, ...]:
    sizes = [cut[label] for label in result.labels]
    if result.shorter > 1:
        if any(n % result.shorter for n in sizes[-1]):
            raise ValueError(f"blocks along n must have even sizes with tw.pairs, and they have {sizes[-1]}: rechunk b")
        sizes[-1] = tuple(n // result.shorter for n in sizes[-1])
    return tuple(sizes)


def _one(whole: HighLevelGraph, name: str, number: int | None, result: Result, output: Labels, cut: dict[Any, Any]
         ) -> Any:
    """One of several results, of which each block's task returns a tuple; None: the only one, with fewer axes."""
    own, graph = f"{name}-{number or 0}", {}
    for at in chunks.blocks([cut[label] for label in output]):
        key = (own, *(i for i, label in zip(at, output) if label in result.labels))
        graph[key] = Task(key, getitem, TaskRef((name, *at)), ... if number is None else number)
    layers: Any = {**whole.layers, own: graph}
    return da.Array(HighLevelGraph(layers, {**whole.dependencies, own: {name}}), own, _chunks(result, cut),
                    dtype=result.dtype)
