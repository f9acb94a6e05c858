"""A simulated run as steps: what each thread touches, and which elements of A and B that is (runs.py)."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.lab.show.runs import Launch, of_scales, origins, run
from tilewright.simulator import Event
from tilewright.simulator.observer import Where

MOST_STEPS = 8000
ASYNCHRONOUS = ("cp.async", "direct load", "TMA", "bulk copy")          # kinds of operations that start copies
# what these do to memory is told as loads and stores
SILENT = ("ldmatrix", "stmatrix", "move", "exchange", "texture", "load shared", "tile", "hint", "prefetch",
          "setmaxnreg", "integer", "print")


@dataclass
class Request:
    """One instruction: where its elements are, whose they are, and what each warp pays."""
    at: Any                             # [threads of the run], -1: takes no part; of a copy: elements, of all threads
    ids: Any                            # [width, threads of the run] or, of a copy, [elements]; None: not known
    costs: dict[int, Any]
    thread: int = -1                    # of a copy: in whose CTA
    scales: Any = None                  # as ids: scales of blocks


@dataclass
class Step:
    """Neighbouring instructions of one line and array."""
    op: str
    event: Event
    threads: Any                        # those that take part
    requests: list[Request] = field(default_factory=list)
    a: dict[Any, Any] = field(default_factory=dict)     # operands of multiply-adds that come from A: a key → ids
    b: dict[Any, Any] = field(default_factory=dict)
    count: int = 0
    text: str = ""
    key: Any = None                     # of a copy: what says that it has come
    started: bool = False               # a copy: it comes later
    arrives: int | None = None          # the step at which it has come
    loops: dict[str, int] = field(default_factory=dict)


def record(launch: Launch) -> tuple[Any, list[Step], tuple[Any, Any, Any]]:
    """The report of a run on small whole numbers, its steps, and A, B and C. ValueError if it is too long, or the
    product is wrong."""
    m, n, k = launch.size
    draw = np.random.default_rng(1)
    a, b = draw.integers(-4, 5, (launch.rows or m, k)), draw.integers(-4, 5, (k, n))
    c = np.zeros((m, n), launch.formats[2])
    events, report = run(launch, a, b, c)
    exact = np.matmul(*(launch.scales.numbers(a, b) if launch.scales else (a, b)))
    launch.product = a.shape[0] == m and bool((np.asarray(c) == exact.astype(c.dtype)).all())
    if not launch.product and not launch.rows:
        raise ValueError("the product is wrong: this record would show something else")
    ids = origins(launch, events) if launch.traced else [None] * len(events)
    scales = of_scales(launch, events) if launch.traced and launch.scales else [None] * len(events)
    return report, Steps(launch, events, ids, scales).steps, (a, b, exact if launch.product else np.asarray(c, float))


# ---- events as steps

class Steps:
    def __init__(self, launch: Launch, events: Sequence[Event], ids: Sequence[Any], scales: Sequence[Any]) -> None:
        self.launch, self.steps = launch, list[Step]()
        self.of_a = (launch.rows or launch.size[0]) * launch.size[2]    # ids beyond are of B
        self.cpu = launch.threads is None
        self.total = max((int(e.threads.max()) + 1 for e in events if e.threads.size), default=1)
        self.boundary = 0                               # the first step that events may still join
        self.loops: dict[str, int] = {}
        self.starting: Any = None                       # the operation that starts the copy of the next accesses
        self.waits: dict[int, Any] = {}                 # warp → what it waits for
        self.flying: dict[Any, list[int]] = defaultdict(list)           # key → steps of copies in flight
        self.groups: list[list[int]] = [[]]             # of cp.async, the last one open
        for event, numbers, self.scales in zip(events, ids, scales):
            self.add(event, numbers)
            if len(self.steps) > MOST_STEPS:
                raise ValueError(f"the run has more than {MOST_STEPS} steps: show it at smaller sizes")

    def add(self, event: Event, ids: Any) -> None:
        if event.what == "loop":
            self.boundary = len(self.steps)
            self.loops = self.loops | {_name(event.line): int(np.ravel(event.value)[0])}
        elif event.what == "mark":
            self.loops = self.loops | {event.name: int(np.ravel(event.value)[0])}
        elif event.what in ("load", "store", "copy"):
            self.access(event, ids)
        elif event.what in ("fma", "mma"):
            self.product(event, ids)
        else:
            self.effect(event)

    def step(self, op: str, event: Event) -> Step:
        """The step that this event belongs to: the last one, of a CPU any of this round of the loop, or a new one."""
        place = op, event.line, event.array, event.name, event.width
        copies = event.what == "copy" or (self.starting is not None and self.starting.line == event.line)
        for known in self.steps[self.boundary if self.cpu else -2 if copies else -1:][::-1]:
            e = known.event
            if (known.op, e.line, e.array, e.name, e.width) == place and e.round == event.round and (
                    event.what == "copy" or np.array_equal(known.threads, event.threads)):
                known.threads = np.union1d(known.threads, event.threads)
                return known
        self.steps.append(Step(op, event, event.threads, loops=self.loops))
        return self.steps[-1]

    def access(self, event: Event, ids: Any) -> None:
        assert event.at is not None
        step = self.step(event.name if event.what == "copy" else event.what, event)
        origin = None if ids is None else ids[0]
        if event.what == "copy":
            fewer = 1 if origin is None else event.at.size // max(origin.size, 1)       # bytes of an element
            step.requests.append(Request(event.at[::fewer], origin, {}, int(event.threads[0])))
            of_product = next((x for x in self.steps[::-1][:9] if x.op == "wgmma" and x.event.line == event.line), None)
            if of_product is not None and origin is not None and event.name == "load":
                own = of_product.b if (origin > self.of_a).any() else of_product.a
                own[tuple(event.threads.tolist()), origin.tobytes()] = (event.threads, origin)
        else:
            at = np.full(self.total, -1, np.int64)
            at[event.threads] = event.at
            step.requests.append(Request(at, self.wide(event, origin), event.costs(), scales=self.wide(
                event, self.scales and self.scales[0])))
        if self.starting is not None and self.starting.line == event.line:
            step.started = True
            verb = event.name or event.what
            if verb == "store" and event.space == "shared":
                key = [x for x in self.starting.operands if isinstance(x, Where) and x.array != event.array]
                step.key = _barrier(key[-1]) if event.what == "copy" and key else None
                fly = self.flying[step.key] if step.key else self.groups[-1]
                if self.steps.index(step) not in fly:
                    fly.append(self.steps.index(step))

    def wide(self, event: Event, ids: Any) -> Any:
        """Ids of an access by all threads."""
        if ids is None:
            return None
        wide = np.zeros((len(ids), self.total), np.int64)
        wide[:, event.threads] = ids if event.mask is None or len(ids) != len(event.mask) else \
            np.where(event.mask, ids, 0)
        return wide

    def product(self, event: Event, ids: Any) -> None:
        step = self.step(event.what, event)
        step.count += 1
        if ids is None:
            return
        for x in ids:
            if not x.any():
                continue
            of_b = bool((x > self.of_a).any())
            wide = np.zeros((*x.shape[:-1], self.total), np.int64)
            wide[..., event.threads] = x
            own = step.b if of_b else step.a
            own.setdefault(wide.tobytes(), np.atleast_2d(wide))

    def effect(self, event: Event) -> None:
        if event.what in ASYNCHRONOUS:
            self.starting = event
            return
        if event.what in SILENT:
            return
        if event.what == "wake":
            for warp in set((event.threads // self.launch.warp).tolist()):
                key = self.waits.pop(warp, None)
                for copy in self.flying.pop(key, ()) if key else ():
                    self.steps[copy].arrives = len(self.steps)
            self.boundary = len(self.steps)
            self.steps.append(Step("wake", event, event.threads, loops=self.loops))
            return
        step = self.step(event.what, event)
        step.count += 1
        places = [x for x in event.operands if isinstance(x, Where)]
        step.text = step.text or " ".join([_said(event), *(_barrier(x) for x in places[:1])])
        if "wait" in event.name and places:
            for warp in set((event.threads // self.launch.warp).tolist()):
                self.waits[warp] = _barrier(places[0])
        if event.name.startswith("cp_async_commit"):
            self.groups.append([])
        elif event.name.startswith(("cp_async_wait", "lds_wait")):
            pending = int(event.name.lstrip("cp_asynldwit") or 0)
            for group in self.groups[:max(len(self.groups) - 1 - pending, 0)]:
                for copy in group:
                    self.steps[copy].arrives = len(self.steps) - 1
                group.clear()
            self.groups = self.groups[-1 - pending:] if len(self.groups) > pending else self.groups
        self.boundary = len(self.steps)


def _barrier(place: Where) -> str:
    return f"{place.array}[{int(place.at[0])}]"


def _said(event: Event) -> str:
    """An operation in words."""
    name = event.name.removeprefix("mbarrier.").replace("cp_async_wait", "cp.async wait ").replace("_", " ")
    words = {"test wait": "wait for", "try wait": "wait for", "try wait.cluster": "wait for", "arrive": "arrive at",
             "arrive.expect tx": "announce bytes to", "cp async commit": "close the group of copies",
             "arrive.cluster": "arrive at"}
    return words.get(name, name)


def _name(line: Any) -> str:
    """What a loop's index is called: with k.loop(n) as p:"""
    text = line.text
    return text.rpartition(" as ")[2].rstrip(": ").split(":")[0] if " as " in text else "round"
