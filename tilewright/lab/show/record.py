"""The record of a kernel as data for the page. Lists of numbers that repeat are patterns, counted from a base.

All indices are in elements, never bytes; `-1` takes no part. An element's number is 0 ... m k - 1 of A, row by row, and
from m k on of B; a pattern of them is counted from its least.
"""
from __future__ import annotations

import ast
import linecache
import os
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tilewright import simulator
from tilewright.ir.ops.pipelines import Role
from tilewright.ir.program import Op
from tilewright.lab.show import trace
from tilewright.lab.show.runs import Launch, run
from tilewright.lab.show.trace import Step
from tilewright.lab.show.without import without
from tilewright.targets import banks

BREAKABLE = ("barrier", "wait", "fence", "arrive", "commit")    # in names of operations that can be left out
MACHINERY = ("compiled", "forks.py", "lab/show", "runtime")     # what calls emitters, and is none
MOST_BROKEN = 12                                                # lines that are left out, one after another
Ref = list[int]                                                 # [pattern, base]


class Table:
    """Values by their number: each is written once."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def number(self, key: Any, row: Any = None) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self.rows)
            self.rows.append(key if row is None else row)
        return self._numbers[key]


class Record:
    """`data` is what the page gets of one kernel."""

    def __init__(self, launch: Launch, title: str, idea: str = "", name: str = "") -> None:
        self.launch = launch
        self.patterns, self.lines, self.kinds, self.costs, self.phases = (Table() for _ in range(5))
        self.report, self.steps, (a, b, c) = trace.record(launch)
        m, n, k = launch.size
        threads = launch.threads or (1, 1)
        self.sites = self._sites()
        rows = [self._step(step) for step in self.steps]
        self.data: dict[str, Any] = {
            "rows": launch.rows or m, "product": launch.product,
            "id": name or title, "title": title, "idea": idea, "size": [m, n, k], "target": launch.target,
            "chosen": dict(launch.chosen.items()), "cpu": launch.threads is None,
            "grid": [*launch.grid, 1][:2], "threads": list(threads), "warp": launch.warp,
            "total": max((int(s.threads.max()) + 1 for s in self.steps if s.threads.size), default=1),
            "names": list(launch.names), "arrays": self._arrays(), "roles": self._roles(),
            "formats": self._formats(), "traced": self._traced(), "lanes": launch.lanes,
            "launches": self._launches(), "scales": self._scales(),
            "steps": rows, "kinds": self.kinds.rows, "patterns": self.patterns.rows, "costs": self.costs.rows,
            "phases": self.phases.rows, "sites": [self._site(x) for x in self.sites],
            "a": a.ravel().tolist(), "b": b.ravel().tolist(), "c": c.ravel().tolist(),
            "instructions": dict(self.report.instructions), "flops": self.report.flops}
        self.data["sources"] = self._sources()

    @property
    def places(self) -> dict[tuple[str, int], list[int]]:
        """(file by its base name, line) → the record's lines."""
        positions: dict[tuple[str, int], list[int]] = {}
        for number, line in enumerate(self.lines.rows):
            positions.setdefault((_base(line.file), line.number), []).append(number)
        return positions

    def finish(self) -> None:
        """Write the lines, when all are known."""
        self.data["lines"] = [[_base(x.file), x.number, x.text] for x in self.lines.rows]

    # ---- steps

    def ref(self, x: Any, none: int = -1) -> Ref:
        """Numbers as a pattern and a base; those that are `none` stay out."""
        x = np.asarray(x).astype(np.int64)
        there = x != none
        base = int(x[there].min()) if there.any() else 0
        row = np.where(there, x - base, -1)
        return [self.patterns.number(row.tobytes(), row.tolist()), base]

    def ids(self, x: Any) -> list[Ref]:
        return [self.ref(row - 1) for row in np.atleast_2d(x)]

    def line(self, line: Any) -> int:
        return self.lines.number(line)

    def _step(self, step: Step) -> dict[str, Any]:
        e = step.event
        kind: dict[str, Any] = {"op": step.op, "line": self.line(e.line), "function": e.function,
                                "via": [self.line(x) for x in e.line.via if not _machinery(x.file)]}
        if step.op in ("load", "store"):
            kind |= {"array": e.array, "space": e.space, "width": e.width, "item": e.item, "bulk": e.what == "copy",
                     "starts": step.started, "banks": self._banks(e),
                     "site": self.sites.get((e.line, e.array, e.space, step.op), -1)}
        elif step.text:
            kind |= {"text": step.text}
        row: dict[str, Any] = {"k": self.kinds.number(repr(kind), kind), "r": e.round}
        own = sorted(set((step.threads // self.launch.warp).tolist()))
        if self.launch.threads is not None:
            row["w"] = own
        if step.requests:
            row["q"] = [[self.ref(x.at), [] if x.ids is None else self.ids(x.ids),
                         x.thread if e.what == "copy" else self._cost(x.costs),
                         *([self.ids(x.scales)] if x.scales is not None and x.scales.any() else [])]
                        for x in step.requests]
        if step.a or step.b:
            row["a"], row["b"] = self._operands(step, step.a), self._operands(step, step.b)
        if step.op in ("fma", "mma", "wgmma"):
            row["n"] = step.count
        if step.arrives is not None:
            row["arrives"] = step.arrives
        if step.loops:
            row["loops"] = step.loops
        return row

    def _banks(self, event: Any) -> int:
        """Banks that an access of this width goes over; 0 of global memory."""
        kind = banks.for_target(self.launch.target, self.launch.warp)
        wide = min(event.width * event.item, banks.WIDEST)
        return kind.split(wide, event.what == "load").banks if event.space == "shared" else 0

    def _operands(self, step: Step, own: dict[Any, Any]) -> Any:
        """Patterns by thread of multiply-adds; [warps, elements] of products from shared memory."""
        if step.op == "wgmma":
            return [[sorted(set((threads // self.launch.warp).tolist())), self.ref(ids.ravel() - 1)]
                    for threads, ids in own.values()]
        return [ref for x in own.values() for ref in self.ids(x)]

    def _cost(self, costs: dict[int, Any]) -> int:
        if not costs:
            return -1
        first = next(iter(costs.values()))
        phase = -1 if first.phase is None else self.phases.number(first.phase.tobytes(), first.phase.tolist())
        rows = [[warp, int(x.moved), int(x.ideal)] for warp, x in costs.items()]
        return self.costs.number(repr((rows, phase)), {"warps": rows, "phase": phase})

    # ---- what there is beside steps

    def _formats(self) -> list[str]:
        own = self.launch.scales
        names = [np.dtype(x).name for x in self.launch.formats]
        return [own.format.element.name] * 2 + names[2:] if own else names

    def _launches(self) -> list[Any]:
        """For a plan with several: name, first CTA, columns of the grid, threads, and how many CTAs."""
        launches, first = [], 0
        for function, grid in self.launch.launches:
            launches.append([function.name, first, grid[0], list(function.threads or (1, 1)), int(np.prod(grid))])
            first += launches[-1][-1]
        return launches

    def _scales(self) -> Any:
        """Scales of blocks as numbers: A's row by row, B's column by column."""
        own = self.launch.scales
        if own is None:
            return None
        a, b = own.values
        return {"format": str(own.format), "group": own.group, "a": a.ravel().tolist(), "b": b.T.ravel().tolist()}

    def _sites(self) -> dict[Any, int]:
        return {tuple(site): i for i, (site, t) in enumerate(
            (s, t) for s, t in self.report.traffic.items() if t.requests)}

    def _site(self, key: Any) -> dict[str, Any]:
        site, t = next((s, t) for s, t in self.report.traffic.items() if tuple(s) == key)
        return {"line": self.line(site.line), "array": site.array, "space": site.space, "verb": site.verb,
                "requests": t.requests, "elements": t.elements, "bytes": t.bytes, "distinct": t.distinct,
                "moved": t.moved, "ideal": t.ideal}

    def _arrays(self) -> dict[str, Any]:
        arrays = {}
        for function in self.launch.functions:
            for array in function.arrays:
                if array.space == "shared":
                    arrays[array.name] = {"space": "shared", "item": array.element.bytes, "size": array.size,
                                         "shape": list(function.shape(array))}
        for step in self.steps:
            e = step.event
            if e.array and e.array not in arrays:
                arrays[e.array] = {"space": e.space, "item": e.item, "size": 0, "shape": []}
            if e.array and e.space != "shared":
                for x in step.requests:
                    own = arrays[e.array]
                    own["size"] = max(own["size"], int(np.max(x.at)) + e.width)
            elif e.array and e.item < arrays[e.array]["item"]:          # bytes, used as elements of a type
                pass
            elif e.array and e.item > arrays[e.array]["item"]:
                own = arrays[e.array]
                own["size"], own["item"] = own["size"] * own["item"] // e.item, e.item
        return arrays

    def _roles(self) -> list[Any]:
        roles = {node.name: [node.name, node.first, node.warps] for function in self.launch.functions
                 for node in function.walk() if isinstance(node, Role)}
        return list(roles.values())

    def _traced(self) -> bool:
        return any((step.a and step.b) or any(x.ids is not None and (x.ids > 0).any() for x in step.requests)
                   for step in self.steps)

    def _sources(self) -> list[dict[str, Any]]:
        """The functions that lines and their callers lie in, the outermost first."""
        depth: Counter[Any] = Counter()
        for kind in self.kinds.rows:
            for i, line in enumerate([kind["line"], *kind["via"]]):
                place = self.lines.rows[line]
                function = (place.file, *_function(place.file, place.number))
                depth[function] = max(depth[function], i + 1)
        sources = sorted(depth, key=lambda x: (-depth[x], x[0], x[2]))
        return [{"file": _base(file), "name": name, "first": first, "lines": [
            text.rstrip("\n") for text in linecache.getlines(file)[first - 1:last]]}
            for file, name, first, last in sources]

    # ---- with a line left out

    def broken(self, tell: Callable[[str], None] = lambda text: None) -> list[dict[str, Any]]:
        """What the simulator says of the kernel without each of its barriers, waits and fences."""
        lines: dict[Any, str] = {}
        for function in self.launch.functions:
            for called in (*function.callees(), function):
                for node in called.walk():
                    name = node.operation.name if isinstance(node, Op) and not node.defines else ""
                    if any(word in name for word in BREAKABLE) and "init" not in name:
                        lines.setdefault(node.line, name)
        changes = []
        for line, name in [*lines.items()][:MOST_BROKEN]:
            tell(f"without {line}")
            changes.append(self._without(line, name))
        return changes

    def _without(self, line: Any, name: str) -> dict[str, Any]:
        launch = self.launch
        m, n, k = launch.size
        row: dict[str, Any] = {"removed": self.line(line), "what": name, "kind": "", "message": "", "step": -1}
        instead = {}
        for function in launch.functions:
            try:
                instead[function] = without(function, line)
            except ValueError:
                continue
        a, b = (np.array(self.data[x]).reshape(shape) for x, shape in (("a", (launch.rows or m, k)), ("b", (k, n))))
        c = np.zeros((m, n), launch.formats[2])
        try:
            run(launch, a, b, c, instead)
        except simulator.Fault as fault:
            events = fault.events                                       # type: ignore[attr-defined]
            at = events[-1].threads.max() // launch.lanes if events and launch.threads else 0
            row |= {"kind": fault.kind, "message": str(fault), "array": fault.array, "element": fault.element,
                    "line": self.line(fault.line), "here": self._place(fault.here, at),
                    "other": self._place(fault.other, at),
                    "step": self._step_of(events, fault)}
        else:
            right = bool((c == np.array(self.data["c"]).reshape(m, n).astype(c.dtype)).all())
            row["message"] = "nothing: at these sizes the simulator finds no fault" if right else "the result is wrong"
        return row

    def _place(self, place: Any, cta: int) -> Any:
        """Who a fault is of: the launch is that of this CTA."""
        if place is None:
            return None
        number = max((x for x, row in enumerate(self._launches()) if row[1] <= cta), default=0)
        thread = list(place.thread) if isinstance(place.thread, tuple) else [place.thread, 0]
        return {"verb": place.verb, "block": list(place.block), "thread": thread, "launch": number,
                "line": None if place.line is None else self.line(place.line)}

    def _step_of(self, events: Any, fault: Any) -> int:
        """The step of the whole run that the last event of the broken one is part of, which as many came before."""
        if not events:
            return 0
        last = events[-1]

        def alike(e: Any) -> bool:
            return (e.what, e.line, e.array) == (last.what, last.line, last.array)
        count = sum(map(alike, events))
        for number, step in enumerate(self.steps):
            if alike(step.event) or (step.op == last.what and step.event.line == last.line
                                     and step.event.array == last.array):
                count -= max(len(step.requests), step.count, 1)
                if count <= 0:
                    return number
        return len(self.steps) - 1


def _machinery(file: str) -> bool:
    return any(f"tilewright/{name}" in file for name in MACHINERY)


def _base(file: str) -> str:
    return os.path.basename(file)


@cache
def _function(file: str, number: int) -> tuple[str, int, int]:
    """Name, first and last line of the innermost function around a line that has no inner ones in between."""
    lines = linecache.getlines(file)
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return "", max(number - 5, 1), number + 5
    around = [x for x in ast.walk(tree) if isinstance(x, ast.FunctionDef) and x.lineno <= number <= (x.end_lineno or 0)]
    if not around:
        return "", max(number - 3, 1), min(number + 3, len(lines))
    outer = min(around, key=lambda x: x.lineno)         # closures are read where they stand
    return outer.name, outer.lineno, outer.end_lineno or outer.lineno
