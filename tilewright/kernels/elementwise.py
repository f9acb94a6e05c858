"""`each`, `each_row` and `fold`: code for every element of arrays, or of rows, written once for CPUs and for GPUs.

    with each(k, n) as i:                           # z = x + y
        z[i] = x[i] + y[i]

    with each_row(k, rows) as row:                  # the sum of each row
        total = fold(k, cols, lambda a, b: a + b, 0.0, lambda j: x[row, j])
        with once(k):
            sums[row] = total

A body is written for one i. Rounds are independent: they run in any order and at once, on a CPU by vector instructions
and on several threads, on a GPU by all threads of the grid, which read and write 16 bytes at once where arrays are
aligned (`tilewright.ir.vectors`). Any grid will do, since a thread goes on until no rounds are left.

A row is shared by the threads of a CTA, or of a warp; on a CPU threads take whole rows. Within it `each` and `fold`
divide the elements among these threads.

docs/write-your-own-kernel.md shows how they are used.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from tilewright.ir import Kernel, Type, Value, f32, i64, ptr
from tilewright.ir.ops import core
from tilewright.ir.program import Fold, Loop, Rounds, Write
from tilewright.kernels.reductions import Combine, reduce

BY = ("cta", "warp")


@contextmanager
def each(k: Kernel, n: Any) -> Iterator[Value]:
    """`with each(k, n) as i:` does the block for i = 0 ... n - 1, an i64, in any order. Within `each_row` the threads
    that have the row share the rounds, elsewhere all threads do."""
    cta = 1 if k.function.threads is None else _count(k, "threads")
    with _rounds(k, n, Rounds(vectors=True, threads=k.sharing == "", cta=cta)) as loop:
        yield loop.index
    _meet(k, k.sharing)


@contextmanager
def each_row(k: Kernel, n: Any, by: str = "cta") -> Iterator[Value]:
    """`with each_row(k, n) as row:` does the block for row = 0 ... n - 1, an i64, in any order. On a GPU each row is
    one CTA's, or one warp's; on a CPU one thread's. ValueError for another `by`, and within another row."""
    if by not in BY:
        raise ValueError(f"a row is divided by {' or '.join(BY)}, not {by!r}")
    if k.sharing:
        raise ValueError("a row is within another one: each(k, n) divides it")
    rows = 1
    if k.function.threads is None:
        first, step = k.constant(i64, 0), k.constant(i64, 1)
    else:
        first, step = k.cast(k.block[0], i64), k.cast(k.grid[0], i64)
        if by == "warp":
            rows = _count(k, "warps")
            first, step = first * rows + k.cast(_thread(k) // k.warp, i64), step * rows
    with _loop(k, n, first, step, Rounds(vectors=False, threads=True, cta=rows)) as loop:
        k.sharing = by
        try:
            yield loop.index
        finally:
            k.sharing = ""


def scratch(k: Kernel, n: int, element: Type) -> Value:
    """Room for up to n elements, within a row: what the row's threads have written there in an `each` or a `fold` all
    of them see after it. On a GPU shared memory; on a CPU a thread's stack."""
    if k.function.threads is None or not k.sharing:
        return k.local(f"scratch{len(k.function.arrays)}", (n,), element)
    warps = _count(k, "warps") if k.sharing == "warp" else 1
    shared = k.smem(f"scratch{len(k.function.arrays)}", (warps * n,), element)
    return shared if warps == 1 else shared + k.cast(_thread(k) // k.warp, i64) * n


def once(k: Kernel) -> AbstractContextManager[None]:
    """`with once(k):` does the block for a row, not for each of its threads: it stores what all of them have."""
    if k.function.threads is None or not k.sharing:
        return nullcontext()
    return k.when(_thread(k) % (k.warp if k.sharing == "warp" else _count(k, "threads")) == 0)


def fold(k: Kernel, n: Any, combine: Combine, identity: Any, of: Callable[[Value], Any]) -> Any:
    """of(0), ... of(n - 1) combined, for all threads that have the row; `identity` where n is 0.

    of          of(j): a number of the kernel, or a tuple of them, for an i64
    combine     combine(x, y): of two of these the one that replaces them; associative and commutative
    identity    a Python number, or a tuple of them, with which nothing changes: 0.0 for sums, -inf for maxima

    ValueError outside `each_row` on a GPU: CTAs do not meet within a kernel.
    """
    gpu = k.function.threads is not None
    if gpu and not k.sharing:
        raise ValueError("fold is of a row, which a CTA or a warp has: with each_row(k, rows) as row; CTAs do not meet "
                         "within a kernel")
    rounds = Rounds(vectors=True)
    outside = k._body
    with _rounds(k, n, rounds) as loop:
        x = of(loop.index)
        one = not isinstance(x, tuple)
        xs, identities = ((x,), (identity,)) if one else (x, tuple(identity))
        if len(xs) != len(identities):
            raise ValueError(f"{len(xs)} numbers are combined, and there are {len(identities)} identities")

        def both(a: Any, b: Any) -> tuple[Value, ...]:
            return (combine(a[0], b[0]),) if one else tuple(combine(tuple(a), tuple(b)))
        sums = [k.variable(x.type) for x in xs]
        for total, x in zip(sums, both([total.get() for total in sums], xs)):
            total.set(x)
        nodes: list = []
        a, b = ([Value(k, x.type) for x in xs] for _ in range(2))
        with k._into(nodes, "fold", *a, *b):
            results = both(a, b)
        registers = tuple(total.tile.registers[0, 0] for total in sums)
        rounds.folds.append(Fold(registers, identities, tuple(a), tuple(b), nodes, tuple(results)))
    before = outside.index(loop)
    outside[before:before] = [Write(total.tile.registers[0, 0], k.constant(x.type, zero), loop.line)
                              for total, x, zero in zip(sums, xs, identities)]
    if k.sharing == "warp" or (gpu and _count(k, "threads") == k.warp):     # else reduce has a barrier
        _meet(k, "warp")
    totals = tuple(total.get() for total in sums)
    return reduce(k, combine, totals[0] if one else totals, k.sharing or "vector")


# ---- who has which rounds

def _thread(k: Kernel) -> Value:
    """The thread's number in its CTA, counted along x first."""
    across, down = k.cta_shape
    return k.thread[0] + k.thread[1] * across if down > 1 else k.thread[0]


def _count(k: Kernel, what: str) -> int:
    """How many threads, or whole warps, a CTA has."""
    across, down = k.cta_shape
    if what == "warps" and across * down % k.warp:
        raise ValueError(f"{k.function.name}: a CTA of {across * down} threads is no whole number of warps of {k.warp}")
    return across * down // (k.warp if what == "warps" else 1)


def _meet(k: Kernel, sharing: str) -> None:
    """Threads of a row wait for each other, since the next loop may divide the elements otherwise."""
    if k.function.threads is not None and sharing:
        k.barrier() if sharing == "cta" else k.warp_barrier()


@contextmanager
def _rounds(k: Kernel, n: Any, rounds: Rounds) -> Iterator[Loop]:
    if k.function.threads is None:
        first, step = k.constant(i64, 0), k.constant(i64, 1)
    else:
        thread = k.cast(_thread(k), i64)
        first, step = {
            "cta": lambda: (thread, k.constant(i64, _count(k, "threads"))),
            "warp": lambda: (thread % k.warp, k.constant(i64, k.warp)),
            "": lambda: (k.cast(k.block[0], i64) * _count(k, "threads") + thread,
                         k.cast(k.grid[0], i64) * _count(k, "threads")),
        }[k.sharing]()
    with _loop(k, n, first, step, rounds) as loop:
        yield loop


@contextmanager
def _loop(k: Kernel, n: Any, first: Value, step: Value, rounds: Rounds) -> Iterator[Loop]:
    outside = k._body
    k.function.independent = True
    with k.loop(k.cast(n, i64), start=first, step=step):
        loop = outside[-1]
        loop.rounds = rounds
        yield loop
    if loop.body:
        loop.line = loop.body[0].line           # of the kernel, not of this file


def emit_axpy(threads: int | None = None, warp: int = 32) -> Any:
    """y = alpha x + y in f32: a function for one CPU thread, or a kernel for workgroups of so many threads in waves of
    `warp`."""
    k = Kernel("axpy_f32", threads=threads, warp=warp, n=i64, alpha=f32, x=ptr(f32), y=ptr(f32))
    n, alpha, x, y = k.args
    with each(k, n) as i:
        y[i] = alpha * x[i] + y[i]
    return k.function


def emit_reciprocal(threads: int | None = None, warp: int = 32) -> Any:
    """y = 1 / x in f32, of x from 2^-126 to 2^126, as functions such as tanh divide; like `emit_axpy`."""
    k = Kernel("reciprocal_f32", threads=threads, warp=warp, n=i64, x=ptr(f32), y=ptr(f32))
    n, x, y = k.args
    with each(k, n) as i:
        y[i] = k._op(core.RECIPROCAL, f32, x[i], k.constant(f32, 1))
    return k.function
