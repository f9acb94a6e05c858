"""Batches as one piece of work of emitted code, and the pieces of work that the builtin's records repeat."""
from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tilewright.formats import FORMATS
from tilewright.kernels.cpu import jobs
from tilewright.kernels.cpu.jobs import NOTHING
from tilewright.plans.builtin import PANEL_DEPTH
from tilewright.plans.cpu import MOST_COPIED, CpuPlan, widens
from tilewright.runtime.cpu import recipe as limits
from tilewright.runtime.cpu.recipe import Recipe, woken

IDLE = 0.1                      # of the threads' time, up to which a batch is dealt out in whole products
SMALL, SEVERAL = 32, 64         # rows, columns and steps of k of products with code of their own, in so many
_STEPS = "a_step", "b_step", "c_step"


class Work(NamedTuple):
    """What a recipe has emitted code do: function(job, part) for each part, as `Host.run_parts` or, of a team,
    `run_team` does it."""
    function: int
    job: array
    parts: int
    threads: int
    wake: int = 0
    team: bool = False
    layout: tuple[str, ...] = ()        # of the job, if it is not that of the plan's algorithm
    spaced: bool = False                # panels are in a workspace

    def fields(self, recipe: Recipe) -> Mapping[str, int]:
        """Where the fields of its job are."""
        return {name: place for place, name in enumerate(self.layout)} or recipe.at


def copied_b(y: Any, plan: CpuPlan) -> Any:
    """B with contiguous rows, or columns, as the plan reads it. What a batch shares is copied once."""
    by_rows = plan.reads_b == "rows"
    shared = y.ndim == 3 and y.strides[0] == 0
    one = y[0] if shared else y
    one = np.ascontiguousarray(one) if by_rows else np.ascontiguousarray(one.swapaxes(-1, -2)).swapaxes(-1, -2)
    return np.broadcast_to(one, y.shape) if shared else one


def run(recipe: Recipe, batch: int, steps: tuple[int, ...], a: int, b: int, c: int, alpha: float,
              beta: float, beside: jobs.Beside = NOTHING) -> None:
    """`batch` products, the operands of each so many bytes after those of the one before. Every one gets the bits
    that `run` would give it."""
    flops = 2*batch*recipe.shape.m*recipe.shape.n*recipe.shape.k
    if work := repeatable(recipe, batch, steps, None, alpha, beta, beside):
        do(recipe, work, [work.fields(recipe)[x] for x in "abc"], (a, b, c))
    elif recipe.at_once(alpha, beta) and recipe.plan.algorithm == "packed" and (
            team := _whole_products(recipe, batch, flops)):
        _batch_packed(recipe, batch, steps, recipe.job(a, b, c, alpha, beta, beside), team)
    else:
        for i in range(batch):
            recipe.run(a + i*steps[0], b + i*steps[1], c + i*steps[2], alpha, beta, beside, i)


def do(recipe: Recipe, work: Work, where: Sequence[int], addresses: Sequence[int]) -> None:
    """A piece of work with A, B and C at these addresses, which are there in its job."""
    host, job = recipe.host, work.job[:]
    for place, address in zip(where, addresses):
        job[place] = address
    if work.parts == 1:
        (recipe.call if work.function == recipe.function else host.callable(work.function))(host.job(job), 0)
    else:
        host.reserve(recipe.shape.threads)
        host.run_parts(work.function, host.job(job), work.parts, work.threads, work.wake)


def _of_batch(recipe: Recipe, batch: int, steps: tuple[int, ...], job: array) -> Work:
    """In place. The job becomes that of the batch."""
    shape, at = recipe.shape, recipe.at
    flops = 2*batch*shape.m*shape.n*shape.k
    job[at["batch"]] = batch
    for name, step in zip(_STEPS, steps):
        job[at[name]] = step // shape.itemsize
    # enough parts for all threads, of as whole products as can be
    rows = job[at["row_parts"]] = min(recipe.plan.ic_ways, -(-shape.threads * limits.SHARES // batch))
    columns = job[at["col_parts"]] = min(recipe.plan.jc_ways, max(shape.threads * limits.SHARES // batch // rows, 1))
    parts = rows * columns
    if shape.threads > 1 and flops >= limits.FORK_FLOPS:
        job[at["batch_parts"]] = shares = min(batch, shape.threads * limits.SHARES)
        parts *= shares
    return Work(recipe.function, job, parts, min(parts, shape.threads), woken(flops, shape.threads))


def _of_each(recipe: Recipe, batch: int, steps: tuple[int, ...], job: array) -> Work:
    """One after the other by a driver that takes one; whole ones for each thread, if there are enough."""
    shape = recipe.shape
    flops = 2*batch*shape.m*shape.n*shape.k
    within, shares = recipe.parts, 1
    if batch >= shape.threads or within == 1:
        within, shared = 1, shape.threads > 1 and flops >= limits.FORK_FLOPS
        shares = min(batch, shape.threads * limits.SHARES) if shared else 1
        for name in recipe.at.keys() & {"parts", "row_parts", "col_parts"}:
            job[recipe.at[name]] = 1
    return _each(recipe, batch, steps, job, shares, within)


def _each(recipe: Recipe, batch: int, steps: tuple[int, ...], job: array, shares: int = 1, within: int = 1) -> Work:
    flops = 2*batch*recipe.shape.m*recipe.shape.n*recipe.shape.k
    fields = {"driver": recipe.function, "batch": batch, "batch_parts": shares, "within": within,
              **dict(zip(_STEPS, steps)), "fields": len(job),
              **{f"at_{name}": recipe.at[name] for name in "abc"}}
    words = array("q", [fields[name] for name in jobs.EACH])
    words.extend(job)
    parts, threads = shares * within, recipe.shape.threads
    if parts > 1:
        recipe.host.reserve(threads)
    function = recipe.host.address("skinny:emit_each", recipe.target)
    return Work(function, words, parts, min(parts, threads), woken(flops, threads), layout=(*jobs.EACH, *recipe.at))


def _each_packed(recipe: Recipe, batch: int, steps: tuple[int, ...], job: array, space: Any) -> Work | None:
    """One after the other by this thread, as `_batch_packed` does so little work: with panels in `space`."""
    shape = recipe.shape
    shared = shape.threads > 1 and 2*batch*shape.m*shape.n*shape.k >= limits.WAKE_FLOPS
    if shared or shape.tiles or recipe.finish or shape.prologues:
        return None
    job[recipe.at["jc_ways"]] = job[recipe.at["ic_ways"]] = job[recipe.at["jr_ways"]] = 1
    recipe._place(job, space)
    return _each(recipe, batch, steps, job)._replace(spaced=True)


def _of_small(recipe: Recipe, batch: int, steps: tuple[int, ...]) -> Work | None:
    """The code for products of just this size, with addresses left open, if there is any (kernels/cpu/batches.py):
    for many small ones without gaps, which this plan adds up in the same order."""
    shape, st, two = recipe.shape, recipe.strides, 2 if recipe.shape.complex else 1
    m, n, k = shape.m, shape.n // two, shape.k // two
    by_rows, by_columns = (st.rsa, st.csa) == (k*two, two), (st.rsa, st.csa) == (two, m*two)
    if not (batch >= SEVERAL and max(m, n, k) <= SMALL and shape.dtype in ("f32", "f64")
            and (shape.complex or not shape.converts) and not (recipe.conj or recipe.finish or shape.semiring)
            and not (recipe.prepacked or any(recipe.tables) or shape.prologues or shape.out)
            and recipe.passes == 1 and (not recipe.alone or (recipe.plan.algorithm == "stream" and not shape.complex))
            and (by_rows or by_columns)
            and (st.rsb, st.csb) == (n*two, two) and (st.rsc, st.csc) == (n*two, 1)):
        return None
    function = recipe.host.address("batches:emit_batches", recipe.target, shape.dtype, m, n, k, by_rows,
                                 *((True,) * shape.complex))
    fields = {"batch": batch, "batch_parts": 1, **{x: step // shape.itemsize for x, step in zip(_STEPS, steps)}}
    flops = 2*batch*shape.m*shape.n*shape.k
    if shape.threads > 1 and flops >= limits.FORK_FLOPS:
        fields["batch_parts"] = min(batch, shape.threads * limits.SHARES)
    parts = fields["batch_parts"]
    job = array("q", [fields.get(name, 0) for name in jobs.IN_PLACE])
    return Work(function, job, parts, min(parts, shape.threads), woken(flops, shape.threads),
                layout=jobs.IN_PLACE)


def repeatable(recipe: Recipe, batch: int, steps: tuple[int, ...], space: Any = None, alpha: float = 1.0,
               beta: float = 0.0, beside: jobs.Beside = NOTHING) -> Work | None:
    """A product, or so many, as one piece of work, with addresses left open and panels in `space`; None if it is more
    than one piece, or there is too little space."""
    if batch and alpha == 1 and beta == 0 and beside is NOTHING and (small := _of_small(recipe, batch, steps)):
        return small
    if not recipe.at_once(alpha, beta) or recipe.space > (space.size if space else 0):
        return None
    job = recipe.job(0, 0, 0, alpha, beta, beside)
    if batch and recipe.alone:
        return None if recipe.space or beside is not NOTHING else _of_each(recipe, batch, steps, job)
    if batch and recipe.plan.algorithm == "packed":
        return _each_packed(recipe, batch, steps, job, space)
    if batch:
        return _of_batch(recipe, batch, steps, job)
    if recipe.space:
        recipe._place(job, space)
    threads = min(recipe.parts, recipe.shape.threads)
    return Work(recipe.function, job, recipe.parts, threads, recipe.wake, recipe.plan.meets, spaced=recipe.space > 0)


def by_panels(recipe: Recipe, column_step: int) -> Work | None:
    """What `run` has done with a copy of a B with contiguous columns, column_step elements apart, as one piece of
    work that packs panels of it instead, for alpha = 1 and beta = 0 and addresses left open; None if there is no
    such code. Numbers are added up in the same order."""
    shape, plan = recipe.shape, recipe.plan
    if plan.algorithm != "in_place" or plan.reads_b != "rows" or shape.k > PANEL_DEPTH or shape.converts:
        return None
    job = recipe.job(0, 0, 0, 1.0, 0.0)
    row_parts, panels = job[recipe.at["row_parts"]], -(-shape.n // plan.nr)
    job[recipe.at["col_parts"]] = panels
    vectors = plan.nr // recipe.target.lanes(FORMATS[recipe.added_in].itemsize)
    function = recipe.host.address("in_place:emit_panels", recipe.target, shape.dtype, plan.mr, vectors, PANEL_DEPTH)
    job.extend({"column_step": column_step, "driver": recipe.function}[name] for name in jobs.PANELS[len(job):])
    parts = row_parts * panels
    return Work(function, job, parts, min(parts, shape.threads), recipe.wake, layout=jobs.PANELS)


def by_copy(recipe: Recipe, step: int, space: Any) -> Work | None:
    """The work of `run` for a B of one column with `step` elements between rows, which it copies to the stack, or a
    long one to `space`, for alpha = 1 and beta = 0 and addresses left open; None if there is no such code."""
    shape, job = recipe.shape, recipe.job(0, 0, 0, 1.0, 0.0)
    steps, converts = shape.depth or shape.k, shape.converts and not widens(shape)
    size, spaced = FORMATS[shape.source_b or shape.sums].itemsize, steps > MOST_COPIED
    fits = not spaced or recipe.parts * steps * size <= space.size
    if recipe.plan.algorithm != "dots" or shape.n != 1 or not fits or converts or recipe.space:
        return None
    fields = {"driver": recipe.function, "steps": steps, "step": step, "fields": len(job), "at_b": recipe.at["b"],
              "copies": space.address if spaced else 0}
    words = array("q", [fields[name] for name in jobs.COPIED])
    words.extend(job)
    function = recipe.host.address("skinny:emit_copied", recipe.target, size)
    return Work(function, words, recipe.parts, min(recipe.parts, shape.threads), recipe.wake,
                layout=(*jobs.COPIED, *recipe.at), spaced=spaced)


def _whole_products(recipe: Recipe, batch: int, flops: int) -> int:
    """How many threads may each do whole packed products; 0 if the threads had better share every product, because
    the last ones would leave too many idle or all their panels of B would not stay in L3."""
    threads = recipe.shape.threads
    threads = recipe.host.reserve(threads) if threads > 1 and flops >= limits.WAKE_FLOPS else 1
    rounds = -(-batch // threads)
    stays = threads * recipe.b_block <= (recipe.target.l3 or 4 * recipe.target.l2) // 2
    if recipe.plan.threads > 1 and threads > 1 and (rounds*threads > batch * (1 + IDLE) or not stays):
        return 0
    return threads


def _batch_packed(recipe: Recipe, batch: int, steps: tuple[int, ...], job: array, team: int) -> None:
    at, (a_space, b_at, sums_at) = recipe.at, recipe.of_one_thread()
    space = recipe.host.take(team * a_space)
    try:
        job[at["jc_ways"]] = job[at["ic_ways"]] = job[at["jr_ways"]] = 1
        job[at["a_space"]], job[at["b_space"]] = space.address, space.address + b_at
        job[at["sums"]] = space.address + sums_at
        fields = {"driver": recipe.function, "product": recipe.host.job(job), "batch": batch, "space_step": a_space,
                  **dict(zip(_STEPS, steps))}
        words = array("q", [fields.get(name, 0) for name in jobs.BATCH])
        function = recipe.host.address("gemm:emit_batch", recipe.target)
        address = recipe.host.job(words)
        if team == 1:
            recipe.host.callable(function)(address, 0)
        else:
            recipe.host.run_parts(function, address, team, team, team)
    finally:
        recipe.host.give(space)
