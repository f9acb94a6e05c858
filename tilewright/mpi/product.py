"""The product of distributed matrices, panel after panel of k: while one is multiplied the next ones travel.

Roles       each rank multiplies its tile of C; a rank that has a piece of a panel sends it round its row (of A) or
            column (of B) of the grid, the others hand it on (flows.py). A thread polls, or the product between blocks
Pipeline    messages of `ahead` panels are under way while one is multiplied; buffers are used again
Order       panels of k are added in order into one array. In reproducible order where panels begin, which sums are
            kept apart and the tree that combines them depend on k alone, and products have one plan for every tile
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

import tilewright
from tilewright import formats
from tilewright.mpi.arguments import Asked, checked, local_operands
from tilewright.mpi.flows import Flow, ring
from tilewright.mpi.layouts import Grid, Layout
from tilewright.mpi.matrix import Array, Matrix, moved
from tilewright.mpi.placement import Panel, Piece, Placement, panels
from tilewright.mpi.report import Report
from tilewright.mpi.team import DATA, DATA_TAGS, REDUCE, Team, finished
from tilewright.mpi.volume import bound_2d
from tilewright.rules.arguments import rounded

BLOCKS = 8  # of rows, between which the product polls if no thread does


def matmul(
    a: Matrix,
    b: Matrix,
    out: Matrix | None = None,
    *,
    alpha: complex = 1,
    beta: complex = 0,
    c: Matrix | None = None,
    out_dtype: Any = None,
    epilogue: Any = None,
    operands: dict[str, Any] | None = None,
    grid: Grid | tuple[int, ...] | None = None,
    layout: Layout | None = None,
    reproducible: bool = False,
    panel: int | None = None,
    ahead: int = 2,
    threads: int | None = None,
    report: Report | None = None,
) -> Any:
    """The product of two distributed matrices, alpha * (a @ b) + beta * c, and a function of it. All ranks call it.

    a, b       of any formats that tw.matmul multiplies, in any layouts; a.T and a.H are the transposed ones. What does
               not lie as the product needs it is redistributed first; numbers with scales must lie so
    out        a Matrix to write to, whose layout the result then has; it may be c
    c          a Matrix of the result's shape, in any layout
    out_dtype, epilogue, operands  as tw.matmul has them. operands: numbers; arrays, the same on each rank, that
               broadcast to the whole result; or a Matrix of its shape. The epilogue is evaluated on finished sums.
               Reductions and tw.pairs need columns that other ranks have, and are refused
    grid       (rows, columns) or (rows, columns, layers) of processes; None: the one that sends the fewest bytes, with
               what layouts make necessary. Several layers divide k, and their sums are added up ("2.5D")
    layout     the result's layout; None: that in which it is computed
    reproducible  True: the same bits on any grid, for any layouts and any number of threads
    panel      steps of k in a panel; None: a sixteenth of k, 64 to 512, on a GPU 64 to 4096
    ahead      how many panels travel while one is multiplied
    threads    of each rank's products; as tw.matmul has it
    report     a Report, which is filled with this rank's bytes and times

    The result is a Matrix, or a tuple of them if the epilogue returns several. TypeError and ValueError are raised on
    all ranks, with one text, before anything is sent. If a rank fails later, or has ended, all others raise RankError.
    """
    given = dict(locals())
    team = team_of(given)
    asked: Asked = team.call("matmul", lambda: checked(**given))
    record = Report() if report is None else report
    with team.together():
        return _product(team, asked, record)


def team_of(given: dict[str, Any]) -> Team:
    """The team of the first matrix. An error of one rank alone cannot be told to others where it has no team."""
    for name in "ab":
        if not isinstance(given[name], Matrix):
            raise TypeError(f"{name} must be a tilewright.mpi.Matrix, not {type(given[name]).__name__}: "
                            "Matrix(team, layout, local) makes one of this rank's part")
    team: Team = given["a"].team
    return team


def _product(team: Team, asked: Asked, report: Report) -> Any:
    place = asked.placement
    m, n, k = asked.sizes
    report.grid, report.bound = tuple(place.grid), bound_2d(m, n, k, place.grid.size) * asked.a.store.bytes
    a = moved(team, asked.a.local, asked.a.layout, place.a, report)
    b = moved(team, asked.b.local, asked.b.layout, place.b, report)
    c = None if asked.c is None else moved(team, asked.c.local, asked.c.layout, place.c, report)
    extra = {name: moved(team, x.local, x.layout, place.c, report) if isinstance(x, Matrix) else x
             for name, x in asked.operands.items()}
    extra = local_operands(extra, asked, team.rank)
    results = Multiplication(team, asked, report, a, b, extra).run()
    if not isinstance(results, tuple):
        results = finish(results, c, asked, extra)
    parts = [moved(team, x, place.c, asked.layout, report) for x in results]
    if asked.out is not None:
        asked.out.local[...] = rounded(parts[0], asked.out.dtype) if isinstance(parts[0], np.ndarray) else parts[0]
        return asked.out
    made = tuple(Matrix.trusted(team, asked.layout, x) for x in parts)
    return made if asked.several else made[0]


def finish(sums: Any, c: Any, asked: Asked, extra: dict[str, Any]) -> tuple[Any, ...]:
    """Sums, to which beta * c is added, through the epilogue and in the format of the result."""
    if c is not None and not isinstance(c, np.ndarray):
        sums += c if asked.beta == 1 else c * asked.beta
    elif c is not None:
        with np.errstate(all="ignore"):
            sums += sums.dtype.type(asked.beta) * c.astype(sums.dtype)
    if asked.function is None:
        if isinstance(sums, np.ndarray) or asked.result == asked.sums:
            return (rounded(sums, asked.result) if isinstance(sums, np.ndarray) else sums,)
    m, n = sums.shape
    left, right = asked.store.similar(asked.a.dtype).empty(m, 0), asked.store.similar(asked.b.dtype).empty(0, n)
    options = {} if asked.function is None else {"epilogue": asked.function, "operands": extra}
    total = tilewright.matmul(left, right, c=sums, beta=1, out_dtype=asked.out_dtype, threads=asked.threads, **options)
    return total if isinstance(total, tuple) else (total,)


class Multiplication:
    """One product on one rank, of operands that lie as it needs them."""

    def __init__(self, team: Team, asked: Asked, report: Report, a: Array, b: Array, extra: dict[str, Any]) -> None:
        self.team, self.asked, self.report, self.a, self.b, self.extra = team, asked, report, a, b, extra
        self.place: Placement = asked.placement
        self.stores = {"a": asked.a.store, "b": asked.b.store}
        self.out = asked.store
        self.at = self.place.grid.place(team.rank)
        self.tile = self.place.tile(team.rank)
        self.flows: dict[int, list[tuple[str, Piece, Flow]]] = {}
        self.pool: dict[int, list[Any]] = {}
        self.retiring: list[Flow] = []
        self.tags = {"a": 0, "b": 0}
        self.options: dict[str, Any] = {"threads": asked.threads}
        if asked.reproducible and asked.sums.kind in "fc":
            self.options |= fixed_plan(asked.a.dtype, asked.b.dtype, asked.sums, asked.width) if all(
                isinstance(x, np.ndarray) for x in (a, b)) else {"batch_invariant": True}

    def run(self) -> Array | tuple[Array, ...]:
        """The sums of this rank's part of C; or the finished results, if the last product made them."""
        if self.at is None:
            return self.out.empty(0, 0)
        steps = panels(self.place, self.at[2], self.asked.width, self.asked.reproducible, self.asked.unit)
        fused = (self.asked.function is not None and self.asked.c is None and self.place.grid.layers == 1
                 and min(self.tile) > 0 and len(steps) > 1 and sum(x.first for x in steps) == 1)
        kept: list[tuple[int, Array]] = []       # sums of 2^level segments each, of falling levels
        sums = self.out.empty(*self.tile)
        for store in self.stores.values():
            store.ready()
        with self.team.progressing():
            for s in range(min(self.asked.ahead, len(steps))):
                self.begin(s, steps[s])
            for s, step in enumerate(steps):
                if s + self.asked.ahead < len(steps):
                    self.begin(s + self.asked.ahead, steps[s + self.asked.ahead])
                elif self.asked.ahead == 0:
                    self.begin(s, step)
                if step.first and s:
                    keep(kept, sums)
                    sums = self.out.empty(*self.tile)
                last = fused and s == len(steps) - 1
                results = self.multiply(s, step, sums, last)
                if last:
                    self.settle()
                    return results
            self.settle()
        if not steps:
            sums[:] = 0
        keep(kept, sums)
        while len(kept) > 1:
            right = kept.pop()[1]
            kept[-1][1].__iadd__(right)
        return self.reduce(kept[0][1])

    # ---- panels

    def begin(self, s: int, step: Panel) -> None:
        """Start the messages of a panel."""
        assert self.at is not None
        i, j, _ = self.at
        grid, transfers = self.place.grid, []
        of_a, of_b = ("a", step.a, self.a, j, grid.cols), ("b", step.b, self.b, i, grid.rows)
        for name, pieces, local, me, count in (of_a, of_b):
            for piece in pieces:
                size = self.stores[name].size(*self.extent(name, piece.end - piece.begin))
                self.tags[name] += 1
                if count == 1 or not size:
                    continue
                before, after = ring(piece.owner, me, count)
                if before is None:
                    buffer = self.stores[name].message(own(local, piece, name))
                else:
                    buffer = self.pool[size].pop() if self.pool.get(size) else self.stores[name].blank(
                        *self.extent(name, piece.end - piece.begin))
                tag = DATA + 2 * (self.tags[name] % (DATA_TAGS // 2)) + (name == "b")
                flow = Flow(self.team, buffer, self.rank(name, before), self.rank(name, after), tag,
                            f"{name} {step.begin} {piece.owner}", self.report)
                self.team.start(flow)
                transfers.append((name, piece, flow))
        self.flows[s] = transfers

    def rank(self, name: str, place: int | None) -> int | None:
        """The rank at a place of this one's row, for panels of a, or column of the grid."""
        assert self.at is not None
        i, j, layer = self.at
        grid = self.place.grid
        return None if place is None else grid.rank(i, place, layer) if name == "a" else grid.rank(place, j, layer)

    def multiply(self, s: int, step: Panel, sums: Array, last: bool) -> Any:
        """Wait for a panel, and add its product to the sums."""
        flows = self.flows.pop(s)
        if not all(flow.here for _, _, flow in flows):
            with self.report.timed("wait", str(step.begin)):
                self.team.wait(lambda: all(flow.here for _, _, flow in flows),
                               lambda: [x.source for _, _, x in flows if not x.here and x.source is not None],
                               f"panel {step.begin} to {step.end - 1} of k")
        results = None
        if min(self.tile) > 0:
            a, b = self.panel("a", step, flows), self.panel("b", step, flows)
            with self.report.timed("product", str(step.begin)):
                if last:
                    results = self.last(a, b, sums)
                else:
                    self.add(a, b, sums, 0 if step.first else 1)
                for store in self.stores.values():
                    store.launched()
            self.team.took(self.report.events[-1].end - self.report.events[-1].begin)
        self.retire([flow for _, _, flow in flows])
        return results

    def panel(self, name: str, step: Panel, flows: list[tuple[str, Piece, Flow]]) -> Array:
        """The panel as one array: a view of what this rank has or of what came, if one process had all of it."""
        pieces = step.a if name == "a" else step.b
        local = self.a if name == "a" else self.b
        came = {piece.owner: flow for which, piece, flow in flows if which == name and flow.source is not None}
        store, parts = self.stores[name], []
        for piece in pieces:
            shape = self.extent(name, piece.end - piece.begin)
            parts.append((piece.at, store.operand(came[piece.owner].buffer, *shape) if piece.owner in came
                          else own(local, piece, name)))
        if len(parts) == 1:
            return parts[0][1]
        return store.joined(parts, *self.extent(name, step.end - step.begin), axis=1 if name == "a" else 0)

    def extent(self, name: str, steps: int) -> tuple[int, int]:
        """The shape of so many steps of k of an operand's panel."""
        return (self.tile[0], steps) if name == "a" else (steps, self.tile[1])

    def add(self, a: Array, b: Array, sums: Array, beta: int) -> None:
        multiply = self.by_parts if "plan" in self.options and sums.dtype.kind == "c" else self.at_once
        if self.team.progress == "thread" or self.team.size == 1:
            multiply(a, b, sums, beta)
            return
        rows = max(1, -(-len(sums) // BLOCKS))
        for i in range(0, len(sums), rows):
            multiply(a[i:i + rows], b, sums[i:i + rows], beta)
            self.team.poll()

    def at_once(self, a: Array, b: Array, sums: Array, beta: int) -> None:
        tilewright.gemm(self.asked.alpha, a, b, beta, sums, **self.options)

    def by_parts(self, a: Array, b: Array, sums: Array, beta: int) -> None:
        """A complex product as real ones, in one order: how tilewright multiplies it at once depends on its size."""
        if self.asked.alpha != 1:
            a = (a * sums.dtype.type(self.asked.alpha)).astype(sums.dtype)
        left, right = ([np.ascontiguousarray(x) for x in (m.real, m.imag)[:2 if m.dtype.kind == "c" else 1]]
                       for m in (a, b))
        for to, terms in ((sums.real, ((0, 0, 1), (1, 1, -1))), (sums.imag, ((0, 1, 1), (1, 0, 1)))):
            before = beta
            for i, j, sign in terms:
                if i < len(left) and j < len(right):
                    tilewright.gemm(sign, left[i], right[j], before, to, **self.options)
                    before = 1
            if not before:
                to[:] = 0           # of real operands

    def last(self, a: Array, b: Array, sums: Array) -> tuple[Array, ...]:
        """The last product, with the epilogue in it."""
        product = tilewright.matmul(a, b, alpha=self.asked.alpha, c=sums, beta=1, out_dtype=self.asked.out_dtype,
                                  epilogue=self.asked.function, operands=self.extra, **self.options)
        return product if isinstance(product, tuple) else (product,)

    def retire(self, flows: list[Flow]) -> None:
        """Buffers of panels that are multiplied are used again as soon as they are handed on."""
        self.retiring += [flow for flow in flows if flow.source is not None]
        with self.team.lock:
            under_way = set(map(id, self.team.flows))
        for flow in [x for x in self.retiring if id(x) not in under_way]:
            self.retiring.remove(flow)
            if flow.name[0] in self.stores and self.stores[flow.name[0]].pooled:
                self.pool.setdefault(len(flow.buffer), []).append(flow.buffer)

    def settle(self) -> None:
        """Wait until others have what this rank owes them."""
        self.team.wait(lambda: not any(isinstance(flow, Flow) for flow in self.team.flows),
                       lambda: [flow.target for flow in self.team.flows if flow.target is not None],
                       "a panel to be taken")
        for store in self.stores.values():
            store.finished()

    # ---- layers

    def reduce(self, sums: Array) -> Array:
        """Sums of all layers for this layer's part of the tile's columns, added as a tree."""
        grid = self.place.grid
        if grid.layers == 1:
            return sums
        assert self.at is not None
        i, j, layer = self.at
        axis = self.place.c.cols
        ends = [axis.count(j * grid.layers + x) for x in range(grid.layers)]
        at = np.cumsum([0, *ends])
        parts = {layer: sums[:, at[layer]:at[layer + 1]]}
        self.out.ready()
        buffers: dict[int, Any] = {}
        requests, sources = [], []
        for step in range(1, grid.layers):
            source, to = (layer - step) % grid.layers, (layer + step) % grid.layers
            if ends[layer] and len(sums):
                buffers[source] = self.out.blank(len(sums), ends[layer])
                with self.team.lock:
                    requests.append(self.team.transport.receive(buffers[source], grid.rank(i, j, source), REDUCE))
                sources.append((requests[-1], grid.rank(i, j, source)))
                self.report.reduced_received += len(buffers[source])
            if ends[to] and len(sums):
                message = self.out.message(sums[:, at[to]:at[to + 1]])
                with self.team.lock:
                    requests.append(self.team.transport.send(message, grid.rank(i, j, to), REDUCE))
                self.report.reduced_sent += len(message)
        with self.report.timed("wait", "sums"):
            self.team.wait(lambda: finished(requests), lambda: [rank for x, rank in sources if not x.done()],
                           "sums of its layer")
        parts |= {source: self.out.operand(buffer, len(sums), ends[layer]) for source, buffer in buffers.items()}
        kept: list[tuple[int, Array]] = []
        for x in range(grid.layers):
            keep(kept, parts.get(x, parts[layer]))
        while len(kept) > 1:
            right = kept.pop()[1]
            kept[-1][1].__iadd__(right)
        return kept[0][1]


def own(local: Array, piece: Piece, name: str) -> Array:
    """A piece of a panel, of the rank that has it."""
    return local[:, piece.begin:piece.end] if name == "a" else local[piece.begin:piece.end]


def keep(kept: list[tuple[int, Array]], sums: Array) -> None:
    """Put a segment's sums to those before it: two of as many segments become one."""
    level = 0
    while kept and kept[-1][0] == level:
        left = kept.pop()[1]
        left += sums
        level, sums = level + 1, left
    kept.append((level, sums))


@lru_cache(maxsize=64)
def fixed_plan(a: np.dtype[Any], b: np.dtype[Any], sums: np.dtype[Any], width: int) -> dict[str, Any]:
    """What makes a product's bits independent of the tile's size: one plan, of packed operands, with one block of k.
    Complex products are made of real ones."""
    a_name, b_name, out = (formats.get(x if x.kind != "c" else np.empty(0, x).real.dtype).name for x in (a, b, sums))
    plan = tilewright.plan(tilewright.Gemm(4096, 4096, width, a_name, b_name, out), threads=1, batch_invariant=True)
    return {"plan": str(plan)}
