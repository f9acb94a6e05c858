"""`tilewright.schedule(f, *args)`: how the loops of f run, changed by operations that keep what they compute.

    s = tw.schedule(three_loops, A, B, C)                   # C[i, j] += A[i, p] * B[p, j]
    s = s.split("i", 8, "io", "ii").split("j", 32, "jo", "jj").reorder("io", "jo", "p", "ii", "jj")
    s = s.stage("C", around="p", axes=("ii", "jj"), space="registers")
    print(s, s.explain(), s.check())
    s(A, B, C)

Each operation returns a new schedule, or raises `Illegal`, with the line of f, the array and the distances that are in
the way. The tree stands in scheduled.py, what operations do in operations.py and staging.py.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tilewright.forks import cached_property
from tilewright.ir import Type, bf16, f16, f32, f64, i8, i16, i32, i64
from tilewright.nests import domain
from tilewright.nests.given import arguments, folded, overlap
from tilewright.nests.nest import LoopNest, text
from tilewright.nests.polynomial import Polynomial
from tilewright.nests.reading.source import nest as read
from tilewright.nests.schedules import checking, joining, operations, partial, pipelining, staging, tensorizing
from tilewright.nests.schedules.compiled import Compiled, compiled, layout_of, on_gpu
from tilewright.nests.schedules.conditions import relaxed
from tilewright.nests.schedules.counts import Count, counts, simulated, table
from tilewright.nests.schedules.scheduled import Illegal, Scheduled, illegal, scheduled
from tilewright.nests.tree import For, Mma, Node, Sync, When
from tilewright.runtime.run import device_of

TYPES = {str(t.numpy): t for t in (f16, bf16, f32, f64, i8, i16, i32, i64)}
OPERATIONS: dict[str, Callable[..., operations.Done]] = {       # of a tree, arguments and options
    "split": lambda s, a, o: operations.split(s, *a, **o),
    "reorder": lambda s, a, o: operations.reorder(s, a),
    "fuse": lambda s, a, o: operations.fuse(s, *a),
    "fission": lambda s, a, o: operations.fission(s, *a),
    "unroll": lambda s, a, o: operations.unroll(s, a),
    "vectorize": lambda s, a, o: operations.vectorize(s, a, **o),
    "stage": lambda s, a, o: staging.stage(s, *a, **o),
    "join": lambda s, a, o: joining.join(s, *a, **o),
    "partial": lambda s, a, o: partial.partial(s, *a),
    "bind": lambda s, a, o: operations.bind(s, *a),
    "tensorize": lambda s, a, o: tensorizing.tensorize(s, a, **o),
    "pipeline": lambda s, a, o: pipelining.pipeline(s, *a),
}


class Step(NamedTuple):
    """An operation that was done: a method, its arguments, a sentence, and the schedule before it."""
    method: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    sentence: str
    before: Scheduled


@dataclass(frozen=True)
class Schedule:
    """The loops of a function for arrays of certain shapes and strides, and how they run: `tilewright.schedule`. It is
    never changed: operations return a new one, whose `history` has one more sentence. Printed, it is the tree of loops.

    nest        the loops as written
    sizes       the numbers that bounds and subscripts have
    now         the tree, with its buffers
    steps       the operations, each with the tree before it
    """
    nest: LoopNest
    sizes: dict[str, int]
    now: Scheduled
    steps: tuple[Step, ...] = ()

    # ---- operations

    def split(self, loop: str, factor: int, outer: str | None = None, inner: str | None = None, *,
              tail: str = "divide") -> Schedule:
        """`loop` as rounds of `outer`, each of `factor` rounds of `inner`. What is left if the factor does not divide:
        tail="divide" refuses it, "predicate" makes it a condition, "cut" a loop of its own, named loop + ".tail"."""
        return self._then("split", loop, factor, outer or f"{loop}_o", inner or f"{loop}_i", tail=tail)

    def reorder(self, *loops: str) -> Schedule:
        """Loops that stand directly one in the other, in this order, the outermost first. Illegal where a round would
        run before one whose result it needs, or that needs what it overwrites; a sum's terms may be added in any
        order, and the sentence says so where that changes. Bounds that depend on another loop become conditions."""
        return self._then("reorder", *loops)

    def fuse(self, outer: str, inner: str, name: str | None = None) -> Schedule:
        """One loop in place of two that count on, as `split` makes them: `inner` goes through the digits of `outer` in
        all subscripts."""
        return self._then("fuse", outer, inner, name or f"{outer}_{inner}")

    def fission(self, loop: str, after: str | int) -> Schedule:
        """Two loops with a part of the body each: `after` is the last loop in the first part, or how many parts it
        has. The second loop has the name of the first one with ".2" (".3" ...). A scalar that each round sets first
        becomes an array in registers. Illegal where a part after the cut gives something to a later round before
        it."""
        return self._then("fission", loop, after)

    def join(self, first: str, second: str, *, behind: int | None = None) -> Schedule:
        """One loop in place of two that follow each other: each round has one of the first, and one of the second
        that is `behind` by so many rounds, as few as dependences allow unless given. What the first one leaves is used
        while it is in a cache. The rounds that stay alone have names with ".begin" and ".end"."""
        return self._then("join", first, second, behind=behind)

    def unroll(self, *loops: str) -> Schedule:
        """Rounds as code, one after the other. Loops of copies have the name of the array and of the axis, "C.ii"."""
        return self._then("unroll", *loops)

    def vectorize(self, *loops: str, lanes: int | None = None) -> Schedule:
        """All rounds of an innermost loop at once; with `lanes`, so many, and the others in an unrolled loop around
        them, whose name ends with ".v". Illegal where rounds depend on each other, or where an array is not
        written along its elements; other strides are read element by element, as the sentence says."""
        return self._then("vectorize", *loops, lanes=lanes)

    def stage(self, array: str, around: str | None = None, axes: tuple[str, ...] = (), space: str = "memory", *,
              inside: str | None = None, pad: int = 0, name: str | None = None) -> Schedule:
        """A buffer for what loop `around` uses of an array, copied in before the loop, and back after it if it is
        written; `inside` a loop, in each of its rounds. The loop has to use the array in one way.

        axes    the loops in it that are axes of the buffer, in the order of its layout: ("jr", "p", "jv", "jl") is a
                packed panel. The loops of the copy are named after the array and these: "B.jr"
        space   "registers", "shared" (of a CTA, whose thread loops are axes, too; all threads copy) or "memory"
        pad     elements that no one uses before the next index of the first axis, against conflicts of shared memory's
                banks
        name    of the buffer; unless given the array's with _reg, _shared or _buf

        Elements beyond the array are 0 in a buffer. Statements that only use buffers lose the conditions that a split
        gave them, where they add zeros or change what no one reads outside of these.
        """
        if (around is None) == (inside is None):
            raise Illegal("stage takes one loop, around= or inside=")
        return self._then("stage", array, around or inside, axes, space, inside=inside is not None, pad=pad, name=name)

    def partial(self, array: str, around: str, axes: tuple[str, ...]) -> Schedule:
        """Sums of loop `around` in several parts, in registers: `axes` are loops in it, those that the array's element
        depends on and some that only add up, for each round of which there is a part. The parts are added up after the
        loop. So sums along contiguous rows become vectors."""
        return self._then("partial", array, around, axes)

    def bind(self, places: dict[str, str] | None = None, /, **named: str) -> Schedule:
        """Rounds of these loops as CTAs ("block.x", "block.y", "block.z"), as threads of a CTA ("thread.x",
        "thread.y"), or shared by the threads of a CPU ("worker"): bind(bi="block.y", ti="thread.y"). CTAs, threads
        and workers are the outermost loops. Illegal where a round accesses what another one writes."""
        return self._then("bind", {**(places or {}), **named})

    def pipeline(self, loop: str, stages: int = 2, *, by: str = "async") -> Schedule:
        """The copies to shared memory at the beginning of a loop's rounds, `stages` - 1 rounds earlier, into a ring of
        so many buffers, so that they are under way while a round computes; one barrier for each round.

        by      "async": by asynchronous instructions (cp.async) where the target has them; else as they are.
                "registers", of two stages: loaded before a round computes, stored after it

        Vectorize copies first. Illegal where a round of the loop writes what they read.
        """
        return self._then("pipeline", loop, stages, by)

    def tensorize(self, rows: str, columns: str, products: str, *, lane: str = "lane") -> Schedule:
        """Three innermost loops as a matrix instruction of a warp, C[rows, columns] += A[rows, products] B[products,
        columns]: m16n8k8 of f16, bf16 and f32 (its first 19 bits, "tf32"), m16n8k16 of f16 and bf16, m8n8k4 of f64.
        All three are staged in registers first, with these two loops as last axes. Each thread of thread.x becomes a
        warp of 32 lanes, whose loop is called `lane`. The last operation of a schedule; sums are added up in another
        order."""
        return self._then("tensorize", rows, columns, products, lane=lane)

    def _then(self, method: str, *arguments: Any, **options: Any) -> Schedule:
        if self.steps and self.steps[-1].method == "tensorize":
            raise Illegal("tensorize is the last operation: what comes before it is done before it")
        after, sentence = OPERATIONS[method](self.now, arguments, options)
        after, dropped = relaxed(after)
        step = Step(method, arguments, options, "; ".join([sentence, *dropped]), self.now)
        return replace(self, now=after, steps=(*self.steps, step))

    # ---- what it is

    @property
    def history(self) -> tuple[str, ...]:
        """A sentence for each operation: what was done, why it is legal, whether sums are added in another order."""
        return tuple([x.sentence for x in self.steps])

    def __str__(self) -> str:
        return shown(self.now.nodes)

    def counts(self) -> dict[str, Count]:
        """For each array and buffer its level, the elements that are loaded and stored, and their bytes: from the
        bounds of loops alone."""
        return counts(self.now)

    def compile(self, target: Any = None) -> Compiled:
        """The function for a target (unless given this machine's CPU, "sm_90a" for a launch): its `function`, `grid`
        and `asm`. It can be called."""
        return compiled(self.nest, self.sizes, self.now, target)

    def __call__(self, *args: Any) -> None:
        """Run on arrays of these shapes, strides and formats, in place."""
        device = device_of(args) if on_gpu(self.now) else None
        target = None if device is None else device.target
        if target not in self._compiled:
            self._compiled[target] = self.compile(target)
        self._compiled[target](*args)

    @cached_property
    def _compiled(self) -> dict[Any, Compiled]:
        return {}

    def check(self, most: int = 1 << 14) -> Checked:
        """Run it in the simulator, on small whole numbers, and compare every bit with the loops as written. For more
        than `most` statements arrays are made smaller first, and tiles with them. AssertionError for another number;
        races and accesses out of bounds are Faults of the simulator."""
        first = self.steps[0].before if self.steps else self.now
        steps = [(x.method, x.arguments, x.options) for x in self.steps]
        report, sizes, done = checking.check(self.nest, self.sizes, first, self.now, steps, _again, most)
        return Checked(sizes, simulated(done, report), report)

    def explain(self) -> str:
        """The history, with the bytes that each operation changes, and the counts."""
        lines = []
        for at, step in enumerate(self.steps):
            after = self.steps[at + 1].before if at + 1 < len(self.steps) else self.now
            lines.append(f"{at + 1:2d}. {step.sentence}")
            lines += [f"    {line}" for line in _changes(counts(step.before), counts(after))]
        return "\n".join([*lines, "", table(self.counts())])


class Checked(NamedTuple):
    """What a schedule did in the simulator: with these sizes, its loads and stores by array, and the whole report."""
    sizes: dict[str, int]
    counts: dict[str, Count]
    report: Any

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} = {n}" for name, n in self.sizes.items())
        return f"the same numbers as the loops as written, in the simulator with {sizes}\n\n{table(self.counts)}"


def schedule(f: Callable[..., Any], *args: Any) -> Schedule:
    """How the loops of f run, to be changed by operations that keep what they compute.

        def multiply(A, B, C):
            for i in range(A.shape[0]):
                for j in range(B.shape[1]):
                    for p in range(A.shape[1]):
                        C[i, j] += A[i, p] * B[p, j]

        s = tw.schedule(multiply, A, B, C).split("i", 8, "io", "ii").split("j", 16, "jo", "jj")
        s = s.reorder("io", "jo", "p", "ii", "jj").stage("C", around="p", axes=("ii", "jj"), space="registers")
        s = s.vectorize("jj", "C.jj").unroll("ii", "C.ii")
        print(s)                                # the tree of loops
        print(s.explain())                      # what was done, why it is legal, bytes before and after
        s.check()                               # in the simulator, beside the loops as written, to the bit
        s(A, B, C)                              # compiled and run

    It is for arrays of the shapes, strides and formats of these, and for these whole numbers. A TypeError with the
    line for loops that are not taken. Operations raise `Illegal`, a ValueError, with the line of f, the array and the
    distances between the rounds that would meet in another order; so does this where an array that is written shares
    memory with another one.
    """
    nest = read(getattr(f, "python", f), [_kind(x) for x in args])
    arrays, numbers = arguments(nest, args)
    written = {s.target.array: s.line for s in nest.statements if s.target.array in arrays}
    layouts = {name: layout_of(x, nest.element(name)) for name, x in arrays.items()}
    for name, line in written.items():
        if folded(*layouts[name][:2]):
            illegal(line, f"{name} is written here, and several of its elements are one number in memory")
        for other in arrays:
            if other != name and overlap(arrays[name], arrays[other]):
                illegal(line, f"{name} is written here and shares memory with {other}, so that no order is known to be "
                        "as good as this one")
    sizes = {name: numbers[name] for name in nest.sizes}
    domain.check(nest, sizes, {name: x.shape for name, x in arrays.items()})
    return Schedule(nest, sizes, scheduled(nest, layouts, sizes))


def _again(s: Scheduled, steps: Sequence[checking.Operation]) -> Scheduled:
    """These operations, done anew."""
    for method, given, options in steps:
        s = relaxed(OPERATIONS[method](s, given, options)[0])[0]
    return s


def _kind(x: Any) -> tuple[str, Type | None, int]:
    if isinstance(x, (int, np.integer)):
        return "size", None, 0
    if isinstance(x, (float, np.floating)):
        return "number", None, 0
    element = TYPES.get(str(getattr(x, "dtype", "")).removeprefix("torch."))
    if element is None:
        raise TypeError(f"loops take arrays of {', '.join(TYPES)}, whole numbers and floats, not {x!r}")
    return "array", element, len(x.shape)


def _changes(before: dict[str, Count], after: dict[str, Count]) -> list[str]:
    """A line for each array whose traffic an operation has changed."""
    lines = []
    for name in {**before, **after}:
        old, new = before.get(name, Count("", 0, 0, 0)), after.get(name, Count("", 0, 0, 0))
        if old.bytes != new.bytes:
            lines.append(f"{name} in {new.level or old.level}: {old.bytes} -> {new.bytes} bytes")
    return lines


def _ring(index: str, shift: int, divisor: int, n: int) -> str:
    shifted = f"{index} // {divisor}" if divisor > 1 else index
    return f"({shifted} + {shift}) % {n}" if shift else f"{shifted} % {n}"


def shown(nodes: tuple[Node, ...], indent: str = "") -> str:
    """A tree as text."""
    lines = []
    for n in nodes:
        if isinstance(n, For):
            start = "" if n.start == Polynomial(()) else f" = {n.start} ..."
            step = f" by {n.step}" if n.step != 1 else ""
            step += "".join(f", {name} = " + _ring(n.index, *ring) for name, *ring in n.rings)
            lines += [f"{indent}{n.mark + ' ' if n.mark else ''}for {n.index}{start} < {n.stop}{step}",
                      shown(n.body, indent + "  ")]
        elif isinstance(n, When):
            where = " and ".join(f"{c} >= 0" for c in n.conditions)
            lines += [f"{indent}where {where}", shown(n.body, indent + "  ")]
        elif isinstance(n, Sync):
            waits = f"wait for copies but {n.pending} rounds' of them" if n.pending else "wait for copies"
            lines.append(indent + {"cta": "barrier", "commit": "copies of a round", "wait": waits}[n.scope])
        elif isinstance(n, Mma):
            lines.append(f"{indent}{n.c} += {n.a} @ {n.b} by {n.atom.name}")
        else:
            sign = {"": "=", "add": "+=", "mul": "*="}.get(n.reduce, f"= {n.reduce} with")
            lines.append(f"{indent}{n.target} {sign} {text(n.value)}")
    return "\n".join(lines)
