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
from tilewright.nests.schedules import joining, lanes, operations, partial, pipelining, staging, tensorizing
from tilewright.nests.schedules.compiled import Compiled, Operation, check, compiled, layout_of, on_gpu
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
    "lanes": lambda s, a, o: lanes.lanes(s, *a, **o),
    "tensorize": lambda s, a, o: tensorizing.tensorize(s, a, **o),
    "pipeline": lambda s, a, o: pipelining.pipeline(s, *a),
}
LAST = "tensorize", "lanes"


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
        """Two nested loops in place of `loop`: each round of `outer` has `factor` rounds of `inner`. If the factor does
        not divide the length, tail="divide" is Illegal, "predicate" adds a condition, "cut" adds a loop ".tail"."""
        return self._then("split", loop, factor, outer or f"{loop}_o", inner or f"{loop}_i", tail=tail)

    def reorder(self, *loops: str) -> Schedule:
        """Put directly nested loops into this order, the outermost first. Illegal if a round would run before another
        whose result it needs, or before one that needs what it overwrites. The terms of a sum may be added in another
        order; `history` says so then. Bounds that depend on another loop become conditions."""
        return self._then("reorder", *loops)

    def fuse(self, outer: str, inner: str, name: str | None = None) -> Schedule:
        """The reverse of `split`: one loop in place of two nested ones, of which `inner` counts the small steps and
        `outer` the large ones in all subscripts."""
        return self._then("fuse", outer, inner, name or f"{outer}_{inner}")

    def fission(self, loop: str, after: str | int) -> Schedule:
        """Divide a loop into two, with a part of the body each: `after` names the last loop of the first part, or is
        the number of statements and loops in it. The second loop gets the name of the first one with ".2" (".3" ...).
        A scalar that each round sets first becomes an array in registers. Illegal if the second part computes
        something that the first part reads in a later round."""
        return self._then("fission", loop, after)

    def join(self, first: str, second: str, *, behind: int | None = None) -> Schedule:
        """One loop in place of two that follow each other: a round has a round of the first loop, and a round of the
        second that is `behind` by so many rounds (by default as few as is legal). So results of the first loop are used
        while they are in a cache. Rounds without a partner become loops named with ".begin" and ".end"."""
        return self._then("join", first, second, behind=behind)

    def unroll(self, *loops: str) -> Schedule:
        """Write the rounds of loops as code, one after the other. The loops of `stage`'s copies are named "C.ii"."""
        return self._then("unroll", *loops)

    def vectorize(self, *loops: str, lanes: int | None = None) -> Schedule:
        """Run all rounds of an innermost loop as one vector; with `lanes`, so many at once, inside an unrolled loop
        whose name ends with ".v". Illegal if rounds depend on each other, or if the elements that an array is
        written at are not contiguous; elements that are read with other strides are loaded one by one."""
        return self._then("vectorize", *loops, lanes=lanes)

    def stage(self, array: str, around: str | None = None, axes: tuple[str, ...] = (), space: str = "memory", *,
              inside: str | None = None, pad: int = 0, name: str | None = None) -> Schedule:
        """Copy the part of an array that loop `around` uses into a buffer before the loop, and back after it if it is
        written; or, with `inside` a loop, in each of its rounds. All accesses in it must have the same subscripts.

        axes    the inner loops that are axes of the buffer, in the order of its layout: ("jr", "p", "jv", "jl") is a
                packed panel. The loops of the copy are named after the array and these: "B.jr"
        space   "registers", "shared" (of a CTA, whose thread loops are axes, too; all threads copy) or "memory"
        pad     unused elements at the end of each row of the first axis, against conflicts of shared memory's
                banks
        name    the name of the buffer; by default the array's name followed by _reg, _shared or _buf

        Elements of a buffer that are beyond the array are 0. So conditions that a split added to statements which only
        use buffers are dropped where they make no difference.
        """
        if (around is None) == (inside is None):
            raise Illegal("stage takes one loop, around= or inside=")
        return self._then("stage", array, around or inside, axes, space, inside=inside is not None, pad=pad, name=name)

    def partial(self, array: str, around: str, axes: tuple[str, ...]) -> Schedule:
        """Compute the sums of loop `around` as several partial sums in registers, which are added up after the loop.
        `axes` are inner loops: those that the array's element depends on, and some of those that add up; each of
        their rounds gets a partial sum. So sums along contiguous rows become vectors."""
        return self._then("partial", array, around, axes)

    def bind(self, places: dict[str, str] | None = None, /, **named: str) -> Schedule:
        """Run the rounds of loops as CTAs ("block.x", "block.y", "block.z"), as threads of a CTA ("thread.x",
        "thread.y"), or by the threads of a CPU ("worker"): bind(bi="block.y", ti="thread.y"). Bound loops must be
        the outermost ones. Illegal if a round accesses an element that another round writes."""
        return self._then("bind", {**(places or {}), **named})

    def lanes(self, threads: int = 32, *, hold: bool = False) -> Schedule:
        """Divide the iterations of all loops inside those bound to CTAs (and, with 32 lanes, to thread.y) among
        neighbouring threads: with n threads each executes every n-th iteration. For sums over a loop each thread
        computes a part, and the threads exchange the parts, so that all have the result. It is for loops over rows that
        compute a sum (softmax), a running sum, or the largest number and its index. With `hold` rows that several loops
        read are loaded once, into registers, as vectors if they have whole ones; Illegal if there are none, or if a
        thread had more than 64 numbers of 4 bytes (32 of 1024 threads). It must be the last operation of a schedule;
        sums are added up in another order."""
        return self._then("lanes", threads, **({"hold": True} if hold else {}))

    def pipeline(self, loop: str, stages: int = 2, *, by: str = "async") -> Schedule:
        """Start the copies to shared memory at the beginning of a loop's rounds `stages` - 1 rounds earlier, into a
        ring of `stages` buffers, so that they run while a round computes. There is one barrier for each round.

        by      "async": by asynchronous instructions (cp.async) if the target has them, else by ordinary ones.
                "registers", for two stages: loaded before a round computes, stored after it

        Vectorize the copies first. Illegal if the loop writes elements that the copies read.
        """
        return self._then("pipeline", loop, stages, by)

    def tensorize(self, rows: str, columns: str, products: str, *, lane: str = "lane") -> Schedule:
        """Replace three innermost loops by a matrix instruction of a warp, C[rows, columns] += A[rows, products]
        B[products, columns]: m16n8k8 for f16, bf16 and f32 (rounded to 19 bits, "tf32"), m16n8k16 for f16 and bf16,
        m8n8k4 for f64. Stage all three arrays in registers first, with two of these loops as last axes. Each thread of
        thread.x becomes a warp of 32 lanes, whose loop is called `lane`. It must be the last operation of a schedule;
        sums are added up in another order."""
        return self._then("tensorize", rows, columns, products, lane=lane)

    def _then(self, method: str, *arguments: Any, **options: Any) -> Schedule:
        if self.steps and (last := self.steps[-1].method) in LAST:
            raise Illegal(f"{last} is the last operation: what comes before it is done before it")
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
        """For each array and buffer the level of memory, the elements that are loaded and stored, and their bytes,
        computed from the bounds of the loops."""
        return counts(self.now)

    def compile(self, target: Any = None) -> Compiled:
        """The compiled function for a target, by default this machine's CPU, or "sm_90a" for loops bound to CTAs. It
        can be called, and has `function`, `grid` and `asm`."""
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
        """Run it in the simulator, on small whole numbers, and compare every bit with the loops as written. If it
        would execute more than `most` statements, arrays and tiles are made smaller first. AssertionError for other
        numbers; races and accesses out of bounds are Faults of the simulator."""
        first = self.steps[0].before if self.steps else self.now
        steps = [(x.method, x.arguments, x.options) for x in self.steps]
        report, sizes, done = check(self.nest, self.sizes, first, self.now, steps, _again, most)
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
    """The order and form in which the loops of f run; operations change it without changing the results.

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

    It is for arrays with the shapes, strides and formats of `args`, and for the same whole numbers. TypeError with the
    line for loops that cannot be read. Operations raise `Illegal`, a ValueError, with the line of f, the array and the
    distances between rounds that would access an element in another order. An array that is written and shares memory
    with another one is Illegal, too.
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


def _again(s: Scheduled, steps: Sequence[Operation]) -> Scheduled:
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
            lines.append(indent + {"cta": "barrier", "warp": "barrier of the warp", "commit": "copies of a round",
                                   "wait": waits}[n.scope])
        elif isinstance(n, Mma):
            lines.append(f"{indent}{n.c} += {n.a} @ {n.b} by {n.atom.name}")
        else:
            sign = {"": "=", "add": "+=", "mul": "*="}.get(n.reduce, f"= {n.reduce} with")
            lines.append(f"{indent}{n.target} {sign} {text(n.value)}")
    return "\n".join(lines)
