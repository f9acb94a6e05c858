"""`Explanation`: what `tilewright.explain` finds, the same data for every target and for kernels of any kind.

cpu.py, gpu.py and kernel.py make it; terminal.py and picture.py show it. All that is shown is in the record,
so that an explanation that was read back from JSON is drawn like the one that was written.
"""
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from tilewright.lab.measure.measure import Spread
from tilewright.plans.common import Term, total
from tilewright.text import size

if TYPE_CHECKING:
    from rich.text import Text

    from tilewright.lab.measure.probes import Basis, Measured
    from tilewright.plans.common import Cost

SCHEMA = 1              # of `record`: docs/explain.md
COLUMNS = "predicted", "simulated", "moved", "measured"         # bytes of a level, from these sources


@dataclass(frozen=True)
class Tile:
    """One of nested tiles, of which the first is the whole problem."""
    name: str                           # "C", "CTA", "warp", "thread"
    extents: Mapping[str, int]          # along m, n and k of a product; threads along x, y and z of a grid
    count: int = 1                      # of them in the one around it
    place: str = ""                     # the memory that holds what is computed with
    bytes: int = 0                      # that it takes there
    room: int = 0                       # of so many

    def __str__(self) -> str:
        """128 x 256, k 8"""
        plane = " x ".join(str(extent) for along, extent in self.extents.items() if along not in ("k", "z"))
        deep = next(((along, extent) for along, extent in self.extents.items() if along in ("k", "z")), None)
        return plane + (f", {deep[0]} {deep[1]}" if deep and (deep[0] == "k" or deep[1] > 1) else "")

    @property
    def held(self) -> str:
        """Where it is, and what it takes of that memory: "L1: 12 KiB of 48 KiB, 25%"."""
        if not (self.room and self.bytes > self.room):
            share = f" of {size(self.room)}, {self.bytes / self.room:.0%}" if self.room else ""
            return f"{self.place}: {size(self.bytes)}{share}" if self.bytes else self.place
        return f"beyond {self.place}: {size(self.bytes)}, and it holds {size(self.room)}"

    @property
    def plane(self) -> tuple[int, int]:
        """Rows and columns, as they are drawn."""
        e = self.extents
        return (e["m"], e["n"]) if "m" in e else (e.get("y", 1), e.get("x", 1))


@dataclass(frozen=True)
class Level:
    """Bytes that cross a level of memory, from several sources; None where there is none, and `notes` say why."""
    name: str
    terms: tuple[Term, ...] = ()        # whose sum is predicted
    predicted: int | None = None        # what threads ask for, by the model
    simulated: int | None = None        # the same, counted in the simulator
    # simulated: in whole sectors, and in shared memory passes over all banks; of NVIDIA's memory: what L2 does not keep
    moved: int | None = None
    measured: int | None = None         # by hardware counters
    rate: float | None = None           # bytes per second that the level gives at most
    notes: Mapping[str, str] = field(default_factory=dict)      # by source: what was counted, or why nothing was

    @property
    def bytes(self) -> int:
        """What roofline and intensity go by: predicted, else simulated."""
        return self.predicted if self.predicted is not None else self.simulated or 0


@dataclass(frozen=True)
class Part:
    """Seconds of one cause. `hidden`: it goes on at the same time as what is not."""
    what: str
    seconds: float
    hidden: bool = False


@dataclass(frozen=True)
class Time:
    """Seconds. Those of the parts that are not hidden add up to `predicted`."""
    predicted: float
    parts: tuple[Part, ...]
    basis: str                          # what the prediction rests on
    limit: str                          # the part that takes the longest
    peak: float | None = None           # operations per second, at most
    peak_of: str = ""
    measured: Spread | None = None      # median and quartiles
    disturbed: bool = False             # by other processes, meanwhile
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Alternative:
    """A plan, or a configuration, that is not the one that runs."""
    plan: Any
    slower: float                       # 0.1: it takes 1.1 times as long
    cause: str = ""                     # the part that takes longer
    seconds: float | None = None        # by which it does


@dataclass(frozen=True)
class Section:
    """Words about one subject."""
    heading: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """The result of `tilewright.explain`. `print` shows it as text, a notebook as a picture too.

    title, plan, origin, violations     name, plan and where that comes from; sentences that say why it cannot run
    tiles, levels, time, alternatives   tiles within tiles; bytes by level of memory; seconds by cause; other plans
    resources, instructions             for a kernel: registers, shared memory, occupancy; counts by kind
    sections                            the same and more in words
    """
    problem: Any                        # a Gemm; of a kernel its name
    target: Any
    plan: Any
    title: str
    origin: str = ""                    # of the plan: given, chosen by the model, measured by the tuner
    violations: tuple[str, ...] = ()    # then nothing below is known
    flops: int = 0
    tiles: tuple[Tile, ...] = ()
    levels: tuple[Level, ...] = ()
    time: Time | None = None
    resources: Mapping[str, Any] = field(default_factory=dict)
    instructions: Mapping[str, int] = field(default_factory=dict)
    alternatives: tuple[Alternative, ...] = ()
    considered: int = 0                 # how many other plans could run
    refused: Mapping[str, int] = field(default_factory=dict)    # sentences about those that could not, with counts
    sections: tuple[Section, ...] = ()
    # what it was made from, which is not in the record
    shape: Any = field(default=None, repr=False, compare=False)
    cost: Cost | None = field(default=None, repr=False, compare=False)
    basis: Basis | None = field(default=None, repr=False, compare=False)

    @property
    def ceilings(self) -> Measured | None:
        """The measured ceilings of this machine, if they are known."""
        return self.basis.ceilings if self.basis else None

    def level(self, name: str) -> Level:
        """The level of memory with this name. KeyError, with the names that exist, for another one."""
        for one in self.levels:
            if one.name == name:
                return one
        raise KeyError(f"no level {name!r}; there are {', '.join(one.name for one in self.levels)}")

    def intensity(self, level: Level) -> float | None:
        """Operations for each byte that crosses a level."""
        return self.flops / level.bytes if level.bytes and self.flops else None

    # ---- as data

    def record(self) -> dict[str, Any]:
        """The explanation as plain data, for JSON: see docs/explain.md."""
        target = self.target
        own = {"schema": SCHEMA, "problem": str(self.problem), "target": getattr(target, "name", target),
               "plan": str(self.plan)}
        entries = {slot.name: getattr(self, slot.name) for slot in fields(self) if slot.name not in (*own, *MADE_FROM)}
        entries["alternatives"] = tuple(replace(slot, plan=str(slot.plan)) for slot in self.alternatives)
        plain = json.loads(json.dumps(entries, default=asdict))
        for level, made in zip(self.levels, plain["levels"]):
            made["terms"] = [{"what": term.what, "bytes": term.size, "times": term.times, "why": term.why}
                             for term in level.terms]
            made["intensity"] = self.intensity(level)
        return own | plain

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Explanation:
        """An explanation from the data of `record`; its target and plan are texts. ValueError for another schema."""
        if record.get("schema") != SCHEMA:
            raise ValueError(f"an explanation has schema {SCHEMA}, and this has {record.get('schema')!r}")
        values = {name: value for name, value in record.items() if name != "schema"}
        levels = []
        for entry in record["levels"]:
            terms = tuple(Term(x["what"], x["bytes"], x["times"], x["why"]) for x in entry["terms"])
            levels.append(Level(**{k: v for k, v in entry.items() if k != "intensity"} | {"terms": terms}))
        time = record["time"]
        if time:
            parts = tuple(Part(**entry) for entry in time["parts"])
            time = Time(**time | {"parts": parts, "notes": tuple(time["notes"]),
                                  "measured": time["measured"] and Spread(*time["measured"])})
        values |= {"levels": tuple(levels), "time": time, "tiles": tuple(Tile(**entry) for entry in record["tiles"]),
                  "alternatives": tuple(Alternative(**entry) for entry in record["alternatives"]),
                  "sections": tuple(Section(entry["heading"], tuple(entry["lines"])) for entry in record["sections"]),
                  "violations": tuple(record["violations"])}
        return cls(**values)

    # ---- as text, picture and page

    def lines(self) -> list[tuple[str, bool]]:
        """Each line of the text, and whether it begins a section."""
        from tilewright.lab.explanation.terminal import lines
        return list(lines(self))

    def __str__(self) -> str:
        return "\n".join(line for line, _ in self.lines())

    def __rich__(self) -> Text:
        from rich.text import Text
        return Text("\n").join(Text(line, "bold" if heading else "") for line, heading in self.lines())

    def svg(self) -> str:
        """A picture: nested tiles, roofline, bytes by level, the time by cause, other plans and why not they."""
        from tilewright.lab.explanation.picture import svg
        return svg(self)

    def html(self) -> str:
        """A page: the picture and the text."""
        from tilewright.lab.explanation.picture import html
        return html(self)

    def _repr_html_(self) -> str:
        from tilewright.lab.explanation.picture import body
        return body(self)


MADE_FROM = ("shape", "cost", "basis")
BESIDE = "launch and what does not overlap"
UNMEASURED = "; nothing here has been measured"


# ---- what makers of explanations share

def unmeasured(found: Explanation) -> Explanation | None:
    """The explanation with a note, of a product that has no reference to be compared with before it is timed."""
    more = [what for what in ("epilogue", "prologues", "semiring") if getattr(found.problem, what)]
    if not more or found.time is None:
        return None
    note = f"not measured: of products with {' and '.join(more)} nothing is timed here"
    return replace(found, time=replace(found.time, notes=(*found.time.notes, note)))


def levels_of(cost: Cost, rates: Mapping[str, float | None]) -> tuple[Level, ...]:
    """Levels of a model's terms; `rates` by level, in bytes per second."""
    return tuple(Level(name, terms, total(terms), rate=rates.get(name)) for name, terms in cost.traffic.items())


def asked_for(cost: Cost, rates: Mapping[str, float | None]) -> tuple[Level, ...]:
    """Bytes by level. What goes to memory goes through L2, too: A and B are among its terms already."""
    by_level = []
    for level in levels_of(cost, rates):
        if level.name == "L2":
            through = tuple(term for term in cost.traffic["memory"] if term.what not in ("A", "B"))
            more = sum(term.bytes for term in through)
            level = replace(level, terms=(*level.terms, *through), predicted=(level.predicted or 0) + more)
        by_level.append(level)
    return tuple(by_level)


def cause(ours: Cost, theirs: Cost, overlapping: bool = False) -> tuple[str, float | None]:
    """Why another plan takes longer: the part that grows most, and by how many seconds; why one is faster: the part
    that shrinks most. Of parts that overlap only the longest shows. Where that is no part of ours, plans are not
    compared part by part: seconds are None."""
    longer = theirs.seconds - ours.seconds
    if longer < 0:
        what, seconds = cause(theirs, ours, overlapping)
        return what, seconds and -seconds
    if longer == 0 or not theirs.parts:
        return "", None
    mine, its = dict(ours.parts), dict(theirs.parts)
    if theirs.bound not in mine:
        return theirs.bound, None
    if overlapping:
        visible = its[theirs.bound] - mine[ours.bound]
        return (theirs.bound, visible) if visible >= longer / 2 else (BESIDE, longer - visible)
    more = {what: seconds - mine.get(what, 0.0) for what, seconds in its.items()}
    largest = max(more, key=lambda what: more[what])
    return largest, more[largest]
