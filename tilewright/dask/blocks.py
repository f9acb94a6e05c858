"""What runs inside Dask's tasks: products of the blocks of one or more steps of k, added up for one block of C.

    acc = alpha * A0 @ B0 + beta * c   →   acc += alpha * Ap @ Bp, in place   →   epilogue(acc + alpha * A @ B)

Dask may run a task twice, after a worker died, and keeps what a task returned in places that a later task does not
know: copies on other workers, files of spilled blocks, a cache. So a task adds in place only to an accumulator that it
has made itself, which no other task can see. To sums of an earlier task it adds out of place, once: tasks are pure.
"""
from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import forks
from tilewright.rules import grouping
from tilewright.runtime.cpu import pool

VARIABLE = "TILEWRIGHT_NUM_THREADS"
INDEXED = {"argmin": "min_argmin", "argmax": "max_argmax"}       # their partial results have the value, too

_lock = forks.Lock()
_running: Counter[Any] = Counter()      # by worker, of this process: how many products its tasks compute now


@contextmanager
def share_of_threads() -> Iterator[None]:
    """Products of this task use its share of the worker's threads: all of them, divided by the tasks that multiply."""
    worker, most = _worker()
    with _lock:
        _running[worker] += 1
        count = max(1, most // _running[worker])
    try:
        with tw.threads(count):
            yield
    finally:
        with _lock:
            _running[worker] -= 1


def _worker() -> tuple[Any, int]:
    """The worker that runs this task, and its threads. Its nanny sets OMP_NUM_THREADS=1, which does not count."""
    asked = os.environ.get(VARIABLE, "")
    module = sys.modules.get("distributed")
    try:
        worker = None if module is None else module.get_worker()
    except ValueError:          # not in a worker
        worker = None
    if asked.isdecimal() and int(asked):
        return worker and worker.address, int(asked)
    return (None, pool.get_num_threads()) if worker is None else (worker.address, int(worker.state.nthreads))


def cluster_threads() -> int:
    """Threads of all workers of the cluster on which this process computes by default; 0 without one."""
    module = sys.modules.get("distributed")
    client = None if module is None else module.client._get_global_client()
    information = {} if client is None else client.scheduler_info()
    return int(information.get("total_threads", sum(x["nthreads"] for x in information.get("workers", {}).values())))


class Later:
    """A block that the task which needs it makes, as its graph says, from what `values` holds."""

    def __init__(self, node: Any) -> None:
        self.node = node

    def block(self, values: dict[Any, Any]) -> Any:
        return self.node({key: values[key] for key in self.node.dependencies})


def finished(_: Any) -> None:
    """Nothing: to wait for it takes no transfer of the sums that it waits for."""


def after(later: Later, keys: Sequence[Any], *values: Any) -> Any:
    """The block, once other tasks have run, whose results follow the values of its own keys."""
    return later.block(dict(zip(keys, values)))


class Whole:
    """An operand that every block of C reads as a whole. What tw.pack has arranged travels as the file of its panels,
    which a processor of another kind refuses."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        if not hasattr(self.value, "save"):
            return Whole, (self.value,)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "panels"
            self.value.save(path)
            return _loaded, (path.read_bytes(),)


def _loaded(data: bytes) -> Whole:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "panels"
        path.write_bytes(data)
        return Whole(tw.load(path))


@dataclass(frozen=True)
class Work:
    """The products of all blocks of one call: by which function, and with which arguments.

    function    "matmul", "einsum" or "contract"
    first       what stands before the operands: nothing, subscripts, or a function of two numbers
    how         arguments of all steps
    sums        the dtype of sums that are not finished
    finish      arguments of the last step alone: an epilogue, the result's format
    """
    function: str
    first: tuple[Any, ...]
    how: dict[str, Any]
    sums: Any
    finish: dict[str, Any]
    alpha: Any = 1
    beta: Any = 0
    c: Any = None                   # a number
    numbers: dict[str, Any] | None = None   # operands of the epilogue that are no arrays

    def add(self, acc: Any, own: bool, a: Any, b: Any, c: Any, operands: dict[str, Any], at: int, last: bool) -> Any:
        """The sums, with these blocks' products added: in place if they are the task's own. `c`: that of the first."""
        if self.function == "contract":
            return self._fold(acc, own, a, b, operands, at, last)
        multiply: Callable[..., Any] = getattr(tw, self.function)
        how = {**self.how, "alpha": self.alpha}
        more: dict[str, Any] = {"c": c, "beta": self.beta} if acc is None and c is not None else {}
        if acc is not None:
            more = {"c": acc, "beta": 1}
        bare = "epilogue" not in self.finish
        if last and bare and acc is not None and "b" == np.dtype(self.finish["out_dtype"]).kind:  # sums are integers
            return multiply(*self.first, a, b, out_dtype=self.sums, **more, **how) != 0
        if own and (not last or (bare and np.dtype(self.finish["out_dtype"]) == acc.dtype)):
            return multiply(*self.first, a, b, out=acc, **more, **how)
        if last:
            return multiply(*self.first, a, b, **more, **how, **self.finish,
                            **({"operands": operands} if operands else {}))
        return multiply(*self.first, a, b, out_dtype=self.sums, **more, **how)

    def _fold(self, acc: Any, own: bool, a: Any, b: Any, operands: dict[str, Any], at: int, last: bool) -> Any:
        reduce = self.how["reduce"]
        alone = last and acc is None
        how = self.how if alone or reduce not in INDEXED else {**self.how, "reduce": INDEXED[reduce]}
        how |= {**self.finish, **({"operands": operands} if operands else {})} if alone else {"out_dtype": self.sums}
        multiply: Any = tw.contract
        product = multiply(*self.first, a, b, **how)
        if alone:
            return product
        if type(product) is tuple:
            product = product[0], product[1] + product[1].dtype.type(at)
        product = product if acc is None else _combined(reduce, acc, product, own)
        if not last:
            return product
        product = product[1] if reduce in INDEXED else product
        wanted = self.finish.get("out_dtype")
        return product if wanted is None or type(product) is tuple else product.astype(wanted, copy=False)


def _combined(reduce: str, x: Any, y: Any, own: bool) -> Any:
    """The reduction of two partial results, y's of later steps; into x's memory if it may be overwritten."""
    if type(x) is tuple:
        before = np.less if "min" in reduce else np.greater
        with np.errstate(invalid="ignore"):
            second = before(y[0], x[0]) | ((y[0] != y[0]) & (x[0] == x[0]))      # the first NaN before all numbers
            second &= x[0] == x[0]
        return tuple(np.where(second, new, old) for old, new in zip(x, y))
    both = {"sum": np.add, "min": np.fmin, "max": np.fmax, "any": np.maximum, "logsumexp": np.logaddexp}[reduce]
    with np.errstate(all="ignore"):
        return both(x, y, out=x if own else None)


def run(work: Work, begins: tuple[int, ...], ends: bool, names: tuple[Any, ...], *values: Any) -> Any:
    """The sums of one block of C after some steps of k; or, if it `ends`, its results. `begins`: of each step the index
    of its first element along k. Values are named: "acc", "c", "a" and "b" (in turn, for each step), ("operand", name),
    and ("key", key) for what blocks are made from that are made here."""
    held: dict[Any, Any] = {}
    sides: dict[str, list[Any]] = {"a": [], "b": []}
    operands = dict(work.numbers or {})
    alone: dict[str, Any] = {"acc": None, "c": work.c}
    for name, value in zip(names, values):
        if name in ("a", "b"):
            sides[name].append(value)
        elif name in alone:
            alone[name] = value
        else:
            (held if name[0] == "key" else operands)[name[1]] = value
    acc = alone["acc"]
    with share_of_threads():
        for step, (a, b) in enumerate(zip(sides["a"], sides["b"])):
            a, b = _block(a, held), _block(b, held)
            acc = work.add(acc, step > 0, a, b, alone["c"], operands, begins[step], ends and step == len(begins) - 1)
    return acc


def run_tile(work: Work, begins: tuple[int, ...], ends: bool,
             layout: Sequence[tuple[tuple[Any, ...], tuple[int, ...]]], *values: Any) -> tuple[Any, ...]:
    """Results of `run` for several blocks of C. `layout`: for each block, the names of its values and their places in
    `values`; "acc" is the tuple of the step before, with an entry for each block."""
    return tuple(run(work, begins, ends, names, *(values[i][number] if name == "acc" else values[i]
                                                  for name, i in zip(names, at)))
                 for number, (names, at) in enumerate(layout))


def part(results: tuple[Any, ...], number: int) -> Any:
    """One of the blocks of a tile."""
    return results[number]


def _block(x: Any, held: dict[Any, Any]) -> Any:
    if type(x) is Later:
        x = x.block(held)
    return x.value if type(x) is Whole else x


def run_groups(how: dict[str, Any], at: tuple[int, int], cut: Sequence[int], columns: slice, operands: dict[str, Any],
               a: Any, offsets: Any, *stacks: Any) -> Any:
    """Groups of the rows of a block of a. `at`: the row at which it begins, and how many rows a has. `offsets` are
    those of the whole array; `stacks`: the groups' matrices, in blocks of groups that begin at `cut`; `columns`: which
    of all columns these are. ValueError for offsets that no groups have."""
    (begin, most), rows_of_part = at, None
    offsets = grouping.checked(np.asarray(offsets), "rows of a", most)
    rows, total = len(a), len(offsets)
    multiply: Any = tw.grouped_matmul
    with share_of_threads():
        for first, stack in zip(cut, stacks):
            b = _block(stack, {})
            ends = offsets[first:first + b.shape[0]]
            start, stop = (int(np.clip(x - begin, 0, rows)) for x in (offsets[first - 1] if first else 0,
                                                                      ends[-1] if ends.size else 0))
            if len(stacks) == 1:
                start, stop = 0, rows
            own = {name: _part(x, slice(begin + start, begin + stop), columns, slice(first, first + b.shape[0]), total)
                   for name, x in operands.items()}
            part = multiply(a[start:stop], b, np.clip(ends - begin, start, stop) - start, **how,
                            **({"operands": own} if own else {}))
            if len(stacks) == 1:
                return part
            rows_of_part = np.zeros((rows, part.shape[1]), part.dtype) if rows_of_part is None else rows_of_part
            rows_of_part[start:stop] = part
    return rows_of_part


def _part(x: Any, rows: slice, columns: slice, groups: slice, total: int) -> Any:
    """What an epilogue's operand has for these rows, columns and groups, of `total` groups."""
    if np.ndim(x) == 0:
        return x
    x = x if x.shape[-1] == 1 else x[..., columns]
    if x.ndim == 3:
        return x[groups] if len(x) == total else x
    return x if x.ndim == 1 or len(x) == 1 else x[rows]


def run_groups_of_k(how: dict[str, Any], a: Any, b: Any, offsets: Any) -> Any:
    """The product of each group of steps of k."""
    multiply: Any = tw.grouped_matmul
    with share_of_threads():
        return multiply(a, b, np.asarray(offsets, np.int64), **how)
