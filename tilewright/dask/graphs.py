"""Graphs of products of blocks: which task makes which sums, from which blocks, and after which other task.

Each block of C is one chain of tasks, each of which adds the products of some steps of k. How much memory that takes
depends on the order in which Dask runs the chains and on which blocks wait for their last use:

    reload      blocks of A and B that are read from storage are read by the task that multiplies them, one step after
                the other, and again by each task: one task for each block of C. Nothing waits
    panels      all chains advance together, step by step of k: a step's blocks of A and B are made when those of the
                step before have had their last use. What waits are C and two panels of A and B
    blocks      chain after chain, as Dask orders them. What waits is what Dask keeps: up to A, B and C

On a cluster a chain makes several neighbouring blocks of C, in one task for each step: Dask's scheduler has fewer
tasks, and it moves neither their sums nor the blocks that they share to other workers as often.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isnan, prod
from typing import Any, NamedTuple

import numpy as np
from dask._task_spec import Alias, DataNode, Task, TaskRef
from dask.array.core import getter, getter_inline, getter_nofancy

from tilewright.dask import blocks, chunks
from tilewright.rules.subscripts import Labels

READS = getter, getter_nofancy, getter_inline
SCHEDULES = "auto", "reload", "panels", "blocks"
MOST_EDGES = 300_000        # of a graph, for what is only there to be quick after a worker has died
CHAINS = 4                  # for each thread of the cluster, if C has as many blocks

Index = tuple[int, ...]


class Side(NamedTuple):
    """An operand, the labels of its axes, and its blocks as graph nodes that need nothing but data, where it has such.
    `stored`: they read storage; `pure`: they are functions of Dask's own, which give the same when they run again."""
    array: Any
    labels: Labels
    nodes: dict[Any, Any]
    stored: bool
    pure: bool

    def key(self, at: Mapping[Any, int]) -> Any:
        """The key of the block that the block with these indices of labels reads."""
        return (self.array.name, *(0 if count == 1 else at[label]
                                   for label, count in zip(self.labels, self.array.numblocks)))


def side(x: Any, labels: Labels) -> Side:
    if not hasattr(x, "dask"):
        return Side(x, labels, {}, False, False)
    graph = dict(x.__dask_optimize__(x.dask, x.__dask_keys__()))
    nodes = {(x.name, *at): graph.get((x.name, *at)) for at in chunks.blocks(x.chunks)}
    for key, node in nodes.items():
        while isinstance(node, Alias):
            node = nodes[key] = graph.get(node.target)
    alone = all(isinstance(node, Task) and all(isinstance(graph.get(key), DataNode) for key in node.dependencies)
                and not _holds_an_array(node) for node in nodes.values())
    roots = [f for node in nodes.values() for f in _roots(node)] if alone else []
    return Side(x, labels, nodes if alone else {}, bool(roots) and all(f in READS for f in roots),
                bool(roots) and all(getattr(f, "__module__", "").startswith("dask.array") for f in roots))


def _holds_an_array(node: Any) -> bool:
    """Whether an array is inside the task, which should be sent once."""
    inner = node.args[0].values() if node.has_subgraph() else [node]
    values = [x.value if isinstance(x, DataNode) else x for task in inner for x in (task, *getattr(task, "args", ()))]
    return any(isinstance(x, np.ndarray) and x.ndim for x in values)


def _roots(node: Any) -> Iterator[Any]:
    """The functions of a fused task that make something from data alone."""
    inner = node.args[0] if node.has_subgraph() else {node.key: node}
    for task in inner.values():
        if isinstance(task, Task) and not any(isinstance(inner.get(key), Task) for key in task.dependencies):
            yield task.func


class Chains(NamedTuple):
    """What the chains of a call have in common. `output`, `summed`: labels; `cut`: the chunks of each label;
    `more`: blocks that the first ("c") or the last task of a chain takes beside: name, array, labels."""
    name: str
    work: blocks.Work
    a: Side
    b: Side
    output: Labels
    summed: Labels
    cut: dict[Any, Any]
    more: list[tuple[Any, Any, Labels]]
    threads: int = 0

    @property
    def steps(self) -> list[dict[Any, int]]:
        return [dict(zip(self.summed, at)) for at in chunks.blocks([self.cut[x] for x in self.summed])]

    @property
    def tiles(self) -> list[list[Index]]:
        """Blocks of C by chain: neighbours along one axis of a or b, in chains of nearly the same numbers of blocks, as
        many for each of the cluster's threads. Without a cluster each block has a chain."""
        counts = [len(self.cut[x]) for x in self.output]
        parts, axis = max(((n, i) for i, (x, n) in enumerate(zip(self.output, counts))
                           if (x in self.a.labels) != (x in self.b.labels)), default=(1, 0))
        if self.threads and parts > 1:
            others = prod(counts) // parts
            least = min(parts, -(-CHAINS * self.threads // others))
            parts = next((n for n in range(least, min(parts, 2 * least) + 1) if n * others % self.threads == 0), least)
        tiles_of_blocks: dict[Index, list[Index]] = {}
        for place in chunks.blocks([self.cut[x] for x in self.output]):
            part = place[axis] * parts // counts[axis] if place else 0
            tiles_of_blocks.setdefault((*place[:axis], part, *place[axis + 1:]), []).append(place)
        return list(tiles_of_blocks.values())


def chosen(of: Chains, schedule: str, result_bytes: float) -> tuple[list[bool], bool]:
    """For a and b, whether tasks read them again; and whether steps wait for each other."""
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, not {schedule!r}")
    sides = of.a, of.b
    if schedule == "reload":
        if not any(x.nodes for x in sides):
            raise ValueError('schedule="reload" is for operands whose blocks are read or made when they are needed, as '
                             "those of da.from_zarr and of da.from_array of what is read by index, and a and b are "
                             "arrays in memory or made by other tasks")
        return [bool(x.nodes) for x in sides], False
    if schedule == "blocks":
        return [False, False], False
    if schedule == "panels":
        return [False, False], len(of.steps) > 1
    again = [x.stored for x in sides]
    waiting = sum(x.array.nbytes for x, stored in zip(sides, again) if x.pure and not stored)
    less = not isnan(result_bytes) and not isnan(waiting) and result_bytes <= waiting
    return again, len(of.steps) > 1 and less


def tasks(of: Chains, again: Sequence[bool], gated: bool) -> dict[Any, Task]:
    """The graph: one chain for each tile, the blocks of which have the name and their index as their keys."""
    graph: dict[Any, Task] = {}
    free = all(reads or not hasattr(x.array, "dask") for x, reads in zip((of.a, of.b), again))
    of = of._replace(threads=0) if free else of
    steps, starts, tiles = of.steps, _starts(of), of.tiles
    groups = [list(range(len(steps)))] if free else [[p] for p in range(len(steps))]
    made, waits = _gates(of, tiles, again, graph) if gated else ({}, {})
    edges = sum(len(x)**2 for x in waits.values())      # of each of these blocks: its chains, by what it waits for
    lasting = waits if edges < MOST_EDGES else {}
    for tile in tiles:
        before = None
        for group in groups:
            ends, first = group[-1] == len(steps) - 1, tuple(starts[p] for p in group)
            taken = [_taken(of, dict(zip(of.output, place)), group, again, made, lasting if ends else {})
                     for place in tile]
            sums: list[tuple[Any, Any]] = [] if before is None else [("acc", TaskRef(before))]
            key: Any = (f"{of.name}-sums", *tile[0], group[-1])
            if len(tile) == 1:
                names, values = zip(*(sums + taken[0]))
                key = (of.name, *tile[0]) if ends else key
                graph[key] = Task(key, blocks.run, of.work, first, ends, names, *values)
            else:
                position = {x: i for i, x in enumerate(dict.fromkeys(x for part in taken for _, x in part), len(sums))}
                own = [([*sums, *part], [*range(len(sums)), *(position[x] for _, x in part)]) for part in taken]
                layout = tuple((tuple(name for name, _ in part), tuple(at)) for part, at in own)
                graph[key] = Task(key, blocks.run_tile, of.work, first, ends, layout, *(x for _, x in sums), *position)
            before = key
        if len(tile) > 1:
            graph |= {(of.name, *place): Task((of.name, *place), blocks.part, TaskRef(before), i)
                      for i, place in enumerate(tile)}
    return graph


def _taken(of: Chains, at: dict[Any, int], group: Sequence[int], again: Sequence[bool], made: dict[Any, Any],
           lasting: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Values of a task for one block of C, except its sums, with the names that blocks.run gives them."""
    first, ends = group[0] == 0, group[-1] == len(of.steps) - 1
    taken: list[tuple[Any, Any]] = [(name, TaskRef(Side(x, labels, {}, False, False).key(at)))
                                    for name, x, labels in of.more if (ends if name != "c" else first)]
    held: dict[Any, None] = {}
    for p in group:
        for role, x, reads in zip("ab", (of.a, of.b), again):
            if not hasattr(x.array, "dask"):
                taken.append((role, TaskRef((x.array.name,))))
                continue
            key = x.key(at | of.steps[p])
            taken.append((role, blocks.Later(x.nodes[key]) if reads else TaskRef(made.get((role, key), key))))
            held |= dict.fromkeys(x.nodes[key].dependencies if reads else ())
    if lasting:
        held |= dict.fromkeys(key for step in of.steps for role, x in zip("ab", (of.a, of.b))
                              for key in lasting.get((role, x.key(at | step)), ()))
    return [*taken, *((("key", key), TaskRef(key)) for key in held)]


def _starts(of: Chains) -> list[int]:
    """The index of each step's first element along k, if there is one summed axis."""
    return chunks.begins(of.cut[of.summed[0]]) if len(of.summed) == 1 else [0] * len(of.steps)


def _gates(of: Chains, tiles: Sequence[Sequence[Index]], again: Sequence[bool], graph: dict[Any, Task]
           ) -> tuple[dict[Any, Any], dict[Any, list[Any]]]:
    """Copies of the tasks that make blocks of a and b. They run when the chains that use them have finished the step
    before, so that no chain is more than one step ahead of another. Their keys, and those of what they wait for, by
    role and key of the block.

    The last task of a chain depends on all that its blocks waited for: so Dask keeps these empty results, and when a
    worker has died only the chains whose sums it had are computed again, and not those for which they had waited."""
    made: dict[Any, Any] = {}
    waits: dict[Any, list[Any]] = {}
    steps = of.steps
    for role, x, reads in zip("ab", (of.a, of.b), again):
        if reads or not x.nodes:
            continue
        seen: set[Any] = set()
        for p, step in enumerate(steps):
            users: dict[Any, dict[Index, None]] = {}
            for tile in tiles:
                for place in tile:
                    users.setdefault(x.key(dict(zip(of.output, place)) | step), {})[tile[0]] = None
            for key in users.keys() - seen if p else ():
                copy, keys = (f"{of.name}-{role}", *key[1:]), tuple(x.nodes[key].dependencies)
                before = waits[role, key] = [_finished(of, first, p - 1, graph) for first in users[key]]
                graph[copy] = Task(copy, blocks.after, blocks.Later(x.nodes[key]), keys,
                                   *map(TaskRef, (*keys, *before)))
                made[role, key] = copy
            seen |= users.keys()
    return made, waits


def _finished(of: Chains, place: Index, p: int, graph: dict[Any, Task]) -> Any:
    """The key of a task without a result that runs after this step of a chain, where its sums are."""
    key = (f"{of.name}-finished", *place, p)
    graph.setdefault(key, Task(key, blocks.finished, TaskRef((f"{of.name}-sums", *place, p))))
    return key
