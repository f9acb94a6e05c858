"""A tree of loops, unscheduled or scheduled, as a recorded function: `lower(nest, nodes)`.

Sizes and strides that are not numbers yet are parameters, so that one function is right for all of them. Marks:

    ""                      a loop, one round after the other
    unroll                  each round is recorded; their number is known
    vector                  vectors of as many elements as rounds: loads and stores of stride 1, broadcasts of stride 0,
                            elements one by one of other strides; under a mask where a condition leaves rounds out
    block.x, thread.x ...   a CTA, or a thread, for each round
    grid.x, grid.y          all threads of the grid along an axis share the rounds, each takes every so manieth; grid.z:
                            CTAs do
    together                all threads of the CTA share the rounds of this loop and of those directly inside it
    each                    a loop whose rounds are independent, for vectors of a CPU where ir.vectors can make them
    worker                  programs of a CPU's grid share the rounds, each takes consecutive ones. Only outermost

On a CPU threads and CTAs are loops. Buffers: "registers", whose axes are unrolled loops or vectors; "shared", of a CTA;
"memory", which the caller allocates (`Lowered.scratch`).
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from tilewright.ir import Function, Kernel, Value, f64, i32, i64, ptr
from tilewright.ir.program import Loop, Rounds
from tilewright.nests.nest import LoopNest, Parameter, parameter_names, refuse
from tilewright.nests.polynomial import Polynomial, polynomial
from tilewright.nests.running.copies import multiply, together
from tilewright.nests.running.terms import LANE, Arithmetic, Memory
from tilewright.nests.tree import Buffer, Do, For, Mma, Node, Sync, When, polynomials, walk

GPU_MARKS = ("block", "thread", "grid", "together")
HIDDEN = ("program_x", "program_y", "program_z", "grid_x", "grid_y", "grid_z")
ALIGNED = 16                    # bytes that divide the addresses of buffers
MOST = 65535                    # CTAs along y and z


@dataclass(frozen=True)
class Lowered:
    """A recorded function, and what a call gives it.

    arguments   for each of its parameters a name of the nest's (A, n, A.shape[0]), "A.stride[1]" for elements from one
                index to the next, or the name of a buffer in memory
    rounds      for each axis of the grid its loops: start, stop and how far apart CTAs are
    scratch     elements of each buffer in memory, and whether each program or CTA of the grid has its own
    """
    nodes: tuple[Node, ...]
    function: Function
    arguments: tuple[str, ...]
    rounds: tuple[tuple[tuple[Polynomial, Polynomial, int], ...], ...]
    scratch: dict[str, tuple[int, bool]]

    def grid(self, sizes: Mapping[str, int]) -> tuple[int, int, int]:
        """CTAs along x, y, z: one for each round of "block" loops, a thread for each of "grid" loops, if there can be
        so many; of "worker" loops the rounds, along x."""
        x, y, z = [max([1, *(-(-(stop - start).value(sizes) // step) for start, stop, step in loops)])
                   for loops in self.rounds]
        return x, min(y, MOST), min(z, MOST)


def lower(nest: LoopNest, nodes: Sequence[Node], *, buffers: Mapping[str, Buffer] | None = None,
          strides: Mapping[str, Sequence[int | None]] | None = None, gpu: bool = False,
          threads: tuple[int, int] = (1, 1), noalias: bool | tuple[str, ...] = True, align: int = 1, warp: int = 32,
          copies: bool = False, name: str = "") -> Lowered:
    """The function of these nodes of a nest.

    strides     elements from one index to the next, of arrays and axes for which they are known; others, and None, get
                parameters
    gpu         for CTAs, also where no loop is bound to one; `threads`: of a CTA, at least
    align       bytes that divide the addresses of arrays
    copies      whether the target copies to shared memory by cp.async
    """
    return _Lowering(nest, tuple(nodes), buffers or {}, strides or {}, gpu, threads, noalias, align, warp, copies,
                     name).lowered


class _Lowering:
    def __init__(self, nest: LoopNest, nodes: tuple[Node, ...], buffers: Mapping[str, Buffer],
                 strides: Mapping[str, Sequence[int | None]], gpu: bool, threads: tuple[int, int],
                 noalias: bool | tuple[str, ...], align: int, warp: int, copies: bool, name: str) -> None:
        self.loops = [node for node, _ in walk(nodes) if isinstance(node, For)]
        self.gpu = gpu or any(x.mark.partition(".")[0] in GPU_MARKS for x in self.loops)
        self.workers = not self.gpu and any(x.mark == "worker" for x in self.loops)
        across, down = (max([least, *(self.extent(x) for x in self.loops if x.mark == f"thread.{axis}")])
                        for axis, least in zip("xy", threads))
        self.threads = across, down
        self.nest, self.nodes, self.buffers, self.align = nest, nodes, buffers, align
        self.used = {a.array for node, _ in walk(nodes) if isinstance(node, Do) for a, _ in node.accesses()}
        self.names = {name for p in polynomials(nodes) for name in p.names}
        self.scratch = {x: (b.size, self.private(x)) for x, b in buffers.items()
                        if b.space == "memory" and x in self.used}
        types = self.parameters(strides)
        params: dict[str, Any] = dict(zip(parameter_names(types, HIDDEN), types.values()))
        params |= dict.fromkeys(HIDDEN if self.workers else (), i32)
        k = self.k = Kernel(name or nest.name, threads=self.threads if self.gpu else None, warp=warp, noalias=noalias,
                            **params)
        k.function.programs = self.workers
        self.at = Arithmetic(k, nest, buffers)
        self.at.copies = copies
        self.bind(dict(zip(types, k.args)), strides)
        for x in nest.scalars.keys() & self.used:
            self.at.cells[x, 0] = k.variable(nest.scalars[x], 0), 0
        self.emit(nodes)
        self.lowered = Lowered(nodes, k.function, tuple(types), self.rounds(), self.scratch)

    def rounds(self) -> Any:
        """For each axis of the grid the loops whose rounds are CTAs, or that CTAs share."""
        ranges: list[list[Any]] = [[], [], []]
        last = dict[str, Polynomial]()          # of the loops so far, about
        for loop in self.loops:
            mark, _, axis = loop.mark.partition(".")
            start, stop = loop.start.replaced(last), loop.stop.replaced(last)
            last[loop.index] = stop - 1
            if (mark in ("block", "grid") and self.gpu) or (mark == "worker" and self.workers):
                threads = {"x": self.threads[0], "y": self.threads[1]}.get(axis, 1) if mark == "grid" else 1
                ranges["xyz".index(axis or "x")].append((start, stop, loop.step * threads))
        return tuple(map(tuple, ranges))

    # ---- parameters

    def parameters(self, strides: Mapping[str, Sequence[int | None]]) -> dict[str, Any]:
        """The name of each parameter in the nest, and its type."""
        types: dict[str, Any] = {}
        steps: dict[str, Any] = {}
        for p in self.nest.parameters:
            if p.kind in ("array", "pointer"):
                assert p.element is not None
                types[p.name] = ptr(p.element, strided=True)
                if p.kind == "array" and p.name in self.used:
                    steps |= {x: i64 for x in self.steps(p, strides) if isinstance(x, str)}
            else:
                types[p.name] = i64 if p.kind == "size" else p.element or f64
        sizes = dict.fromkeys((x for x in self.nest.sizes if x not in types and x in self.names), i64)
        return types | sizes | steps | {x: ptr(self.buffers[x].element) for x in self.scratch}

    @staticmethod
    def steps(p: Parameter, strides: Mapping[str, Sequence[int | None]]) -> tuple[int | str, ...]:
        """Elements from one index of an array to the next: numbers, or names of parameters."""
        known = strides.get(p.name) or [None] * p.axes
        return (1,) if p.kind == "pointer" else tuple(
            [f"{p.name}.stride[{axis}]" if x is None else x for axis, x in enumerate(known)])

    def bind(self, values: Mapping[str, Value], strides: Mapping[str, Sequence[int | None]]) -> None:
        """Names and arrays, as the function has them."""
        at = self.at
        for p in self.nest.parameters:
            if p.kind == "number":
                at.parameters[p.name] = values[p.name]
            elif p.kind != "size":
                assert p.element is not None
                at.memories[p.name] = Memory(values[p.name], p.element, self.steps(p, strides),
                                             max(self.align, p.element.bytes))
        at.numbers |= {x: value for x, value in values.items() if value.type == i64}
        for x, buffer in self.buffers.items():
            if buffer.space == "shared" and x in self.used:
                at.memories[x] = Memory(self.k.smem(x, (buffer.size,), buffer.element), buffer.element,
                                        buffer.strides, ALIGNED)
            elif x in self.scratch:
                size, private = self.scratch[x]
                room = -(-size * buffer.element.bytes // 64) * 64 // buffer.element.bytes
                self.scratch[x] = room, private
                pointer = values[x] + self.place() * room if private else values[x]
                at.memories[x] = Memory(pointer, buffer.element, buffer.strides, ALIGNED)

    def private(self, buffer: str) -> bool:
        """Whether each program, or each CTA, has its own: none uses what another one has written there."""
        users = [[x for x in around if isinstance(x, For) and x.mark.partition(".")[0] in ("block", "worker", "grid")]
                 for node, around in walk(self.nodes) if isinstance(node, Do)
                 and any(a.array == buffer for a, _ in node.accesses())]
        return bool(users[0]) and all(x == users[0] for x in users)

    def place(self) -> Value:
        """The number of this program, or CTA, in the grid."""
        k = self.k
        if self.workers:
            return k.cast(dict(k.function.params)["program_x"], i64)
        (x, y), (across, down) = ([k.cast(v, i64) for v in pair] for pair in (k.block, k.grid))
        return (k.cast(k.block_z, i64) * down + y) * across + x

    # ---- nodes

    def emit(self, nodes: Sequence[Node], outermost: bool = True) -> None:
        for node in nodes:
            if isinstance(node, Do):
                self.at.do(node)
            elif isinstance(node, Sync):
                self.sync(node)
            elif isinstance(node, Mma):
                multiply(self, node)
            elif isinstance(node, When):
                self.when(node)
            else:
                mark = node.mark.partition(".")[0]
                if mark == "worker" and self.workers:
                    if not outermost:
                        refuse(node.line, f"the rounds of {node.index} are shared by the threads of a CPU, and it is "
                               "inside of another loop or condition")
                    self.worker(node)
                else:
                    of_gpu: dict[str, Any] = {"block": self.bound, "thread": self.bound, "grid": self.shared,
                                              "together": partial(together, self)}
                    of_cpu: dict[str, Any] = {"unroll": self.unrolled, "vector": self.vector, "each": self.each}
                    (of_cpu | of_gpu if self.gpu else of_cpu).get(mark, self.loop)(node)

    def sync(self, node: Sync) -> None:
        if node.scope in ("commit", "wait") and self.at.copies:
            self.k.cp_async_commit() if node.scope == "commit" else self.k.cp_async_wait(node.pending)
        elif node.scope in ("cta", "warp") and self.gpu:
            self.k.barrier() if node.scope == "cta" else self.k.warp_barrier()

    def bounds(self, loop: For) -> tuple[Polynomial, Polynomial]:
        start, stop = self.at.replaced(loop.start), self.at.replaced(loop.stop)
        if LANE in start.names | stop.names:
            refuse(loop.line, f"the rounds of a vector loop do not agree on those of {loop.index}")
        return start, stop

    def extent(self, loop: For) -> int:
        """Rounds, which have to be known."""
        if loop.extent is None:
            refuse(loop.line, f"how many rounds {loop.index} has, from {loop.start} to {loop.stop}, is not known, and "
                   f"it is marked {loop.mark}")
        return loop.extent

    def loop(self, node: For) -> None:
        start, stop = self.bounds(node)
        rounds = (stop - start).constant
        if rounds is not None and rounds <= 0:
            return
        if rounds is not None and rounds <= node.step and not node.below:
            self.renamed(node, start)
            return
        end = self.at.whole(stop)
        for x in node.below:
            end = self.k.min(end, self.at.whole(self.at.replaced(x)))
        self.counted(node, self.at.whole(start), end, node.step)

    def counted(self, node: For, start: Any, stop: Any, step: Any) -> None:
        body = self.k._body
        with self.k.loop(stop, start=start, step=step) as i, self.at.block():
            body[-1].line = node.line
            self.named(node, i)

    def each(self, node: For) -> None:
        """A loop that ir.vectors rewrites."""
        self.loop(node)
        loop = self.k._body[-1] if self.k._body else None
        if isinstance(loop, Loop) and loop.line == node.line and node.step == 1 and not self.gpu:
            loop.rounds, self.k.function.independent = Rounds(vectors=True), True

    def named(self, node: For, value: Value) -> None:
        """The body, for an index that is this value."""
        self.at.depth[node.index] = len(self.at.known)
        self.at.numbers[node.index] = value
        for name, shift, divisor, n in node.rings:
            self.at.depth[name] = len(self.at.known)
            self.at.numbers[name] = ((value if divisor == 1 else value // divisor) + shift) % n
        self.emit(node.body, False)

    def renamed(self, node: For, p: Polynomial) -> None:
        """The body, for an index that is this polynomial."""
        before = self.at.env
        self.at.env = {**before, node.index: p, **{
            name: polynomial((p.constant // divisor + shift) % n) for name, shift, divisor, n in node.rings
            if p.constant is not None}}
        self.emit(node.body, False)
        self.at.env = before

    def unrolled(self, node: For) -> None:
        start, stop = self.bounds(node)
        rounds = (stop - start).constant
        if rounds is None:
            self.extent(node)
        for x in range(0, rounds or 0, node.step):
            self.renamed(node, start + x)

    def vector(self, node: For) -> None:
        at = self.at
        start, stop = self.bounds(node)
        rounds = (stop - start).constant
        if rounds is None:
            self.extent(node)
        length = max(-(-(rounds or 0) // node.step), 0)
        if length < 2:
            self.unrolled(node)
            return
        if at.length > 1:
            refuse(node.line, f"{node.index} is a vector loop inside of another one")
        at.length = length
        self.renamed(node, start + polynomial(LANE) * node.step)
        at.length = 1

    # ---- conditions

    def when(self, node: When) -> None:
        at, k = self.at, self.k
        conditions, masks = list[Polynomial](), list[Polynomial]()
        for c in map(at.replaced, node.conditions):
            first, step = at.lanes(c)
            ends = [n for e in (0, at.length - 1) if (n := (first + step * e).constant) is not None]
            if not ends or (min(ends) < 0 <= max(ends)):
                (masks if LANE in c.names else conditions).append(c)
            elif max(ends) < 0 and at.asynchronous:
                conditions.append(first)
            elif max(ends) < 0:
                return
        outer = at.mask
        with ExitStack() as stack:
            on = [at.whole(c) >= 0 for c in conditions]
            for c in masks:
                lanes = self.lanes(c)
                at.mask = lanes if at.mask is None else at.mask & lanes
            if masks:
                on.append(self.some(masks, outer))
            if on:
                all_on = on[0]
                for x in on[1:]:
                    all_on = all_on & x
                if at.asynchronous:
                    before, at.on = at.on, all_on if at.on is None else at.on & all_on
                    self.emit(node.body, False)
                    at.on, at.mask = before, outer
                    return
                stack.enter_context(k.when(all_on))
                stack.enter_context(at.block())
            self.emit(node.body, False)
        at.mask = outer

    def lanes(self, c: Polynomial) -> Value:
        """The rounds of the vector loop in which c >= 0. On a CPU LLVM may not know them: where one element is stored
        of a vector that has been converted to fewer bits, it stores more than that one."""
        (first, step), k = self.at.lanes(c), self.k
        start = self.at.whole(first)
        if start.constant is not None and not self.gpu:
            start = k.opaque(start)
        if step.constant == -1:
            return k.lanes_below(start + 1, self.at.length)
        return k.pack(*(start + self.at.whole(step * e) >= 0 for e in range(self.at.length)))

    def some(self, masks: Sequence[Polynomial], outer: Value | None) -> Value:
        """Whether the mask has a round."""
        first, step = self.at.lanes(masks[0])
        if len(masks) == 1 and outer is None and step.constant is not None:
            return self.at.whole(first + max(step.constant, 0) * (self.at.length - 1)) >= 0
        assert self.at.mask is not None
        any_lane = self.at.mask[0]
        for e in range(1, self.at.length):
            any_lane = any_lane | self.at.mask[e]
        return any_lane

    @contextmanager
    def guarded(self, condition: Value | None) -> Iterator[None]:
        with ExitStack() as stack:
            if condition is not None:
                stack.enter_context(self.k.when(condition))
                stack.enter_context(self.at.block())
            yield

    # ---- rounds that threads share

    def number(self, mark: str) -> Value:
        """Which CTA, or thread, this is along an axis; how many CTAs there are."""
        return self.k.cast(self.k._builtin(mark), i64)

    def bound(self, node: For) -> None:
        """A CTA, or a thread, for each round."""
        start, stop = self.bounds(node)
        mark, _, axis = node.mark.partition(".")
        index = self.number(node.mark) * node.step + self.at.whole(start)
        if mark == "thread":
            alone = self.extent(node) == self.threads["xy".index(axis)]
        else:
            others = {(x.start, x.stop, x.step) for x in self.loops if x.mark == node.mark}
            alone = len(others) == 1
            if not (node.start.names | node.stop.names) <= set(self.nest.sizes):
                refuse(node.line, f"CTAs are counted before a launch, and the rounds of {node.index} depend on another "
                       "loop's")
        with self.guarded(None if alone else index < self.at.whole(stop)), self.at.block():
            self.named(node, index)

    def shared(self, node: For) -> None:
        """The rounds are shared by all threads of the grid along an axis, or by its CTAs along z."""
        start, stop = self.bounds(node)
        axis = node.mark[-1]
        place, count = self.number(f"block.{axis}"), self.number(f"grid.{axis}")
        if axis != "z":
            threads = self.threads["xy".index(axis)]
            place, count = place * threads + self.number(f"thread.{axis}"), count * threads
        self.counted(node, place * node.step + self.at.whole(start), self.at.whole(stop), count * node.step)

    def worker(self, node: For) -> None:
        start, stop = self.bounds(node)
        at, k, params = self.at, self.k, dict(self.k.function.params)
        program, programs = (k.cast(params[x], i64) for x in ("program_x", "grid_x"))
        rounds = k.max(at.whole(stop - start + (node.step - 1)), 0) // node.step
        first, last = (at.whole(start) + rounds * x // programs * node.step for x in (program, program + 1))
        self.counted(node, first, last, node.step)
