"""The GPU ladder, step against step, as the simulator counts it: no GPU is needed (`ladders` times it on one)."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import simulator
from tilewright.bench.results import Report
from tilewright.ladder import run_nvidia
from tilewright.ladder.gpu13_dispatch import choose
from tilewright.ladder.gpu_steps import GPU_STEPS
from tilewright.ladder.names import DISPATCH, GPU_LADDER
from tilewright.text import plural

if TYPE_CHECKING:
    from tilewright.targets import GpuTarget

SIZE = 256
L1_LINE = 128
SCHEDULERS = 4  # of a multiprocessor: each starts an instruction of a warp per clock
MOVES = ("load", "store", "load shared", "store shared", "texture", "cp.async", "barrier")


@dataclass(frozen=True)
class Counts:
    """What the simulator counts of one step for n x n x n, all CTAs together, and what follows for a multiprocessor.

    `busy` has clocks of one multiprocessor, had it to do everything: 128 multiply-adds, or whatever the target's do, in
    each; an instruction started by each scheduler; a line of L1 looked up; a pass over the banks of shared memory.
    """

    step: str
    title: str
    idea: str
    formula: str
    n: int
    loads: int  # elements from global memory
    expected: int  # by the formula
    load_sectors: int
    load_efficiency: float
    stores: int
    store_sectors: int
    store_efficiency: float
    shared_loads: int
    passes: int
    conflicts: int  # passes beyond the fewest that could deliver the same words
    fmas: int  # by warps, as are moves
    moves: int  # loads, stores, copies and barriers
    busy: dict[str, float]
    registers: int | None = None
    spills: int | None = None
    ctas: int | None = None  # that share a multiprocessor

    @property
    def bound(self) -> tuple[str, float]:
        """What keeps a multiprocessor from doing more multiply-adds, and what share of their peak it leaves."""
        what = max(self.busy, key=self.busy.__getitem__)
        return what, self.busy["multiply-adds"] / self.busy[what]


def count(name: str, n: int, target: GpuTarget) -> Counts:
    """Simulate a step on whole numbers, check the product, and count."""
    step, report, by_lines = GPU_STEPS[name], _run(name, n), _run(name, n, L1_LINE)
    loads, stores = report.of(space="global", verb="load"), report.of("c", "store")
    shared, from_shared = report.of(space="shared"), report.of(space="shared", verb="load")
    kinds = report.instructions
    fmas, moves = kinds["fma"], sum(kinds[kind] for kind in MOVES)
    busy = {
        "multiply-adds": fmas * target.warp / target.fma_f32,
        "instructions": (fmas + moves) / SCHEDULERS,
        "L1": float(by_lines.of(space="global").moved),
        "shared memory": float(shared.moved),
    }
    return Counts(
        name, step.title, step.idea, step.formula, n, loads.elements, step.moves(n, n, n)[0], loads.moved,
        loads.efficiency, stores.elements, stores.moved, stores.efficiency, from_shared.elements,
        shared.moved, shared.moved - shared.ideal, fmas, moves, busy, **_assembled(name, target),
    )


def dispatched(found: list[Counts], target: GpuTarget) -> Counts:
    """Step 13, which is no kernel: the counts of the one that it chooses for these sizes."""
    n, last = found[0].n, GPU_LADDER[DISPATCH]
    chosen = choose(target, n, n, n, 0, n, 0, n)
    (counts,) = (c for c in found if c.step == chosen)
    return replace(counts, step=DISPATCH, title=last.title, idea=f"{last.idea}; here {counts.title}")


def _run(name: str, n: int, granule: int | None = None) -> simulator.Report:
    step = GPU_STEPS[name]
    a, b = np.random.default_rng(0).integers(-4, 5, (2, n, n)).astype(np.float32)
    c = np.full((n, n), np.nan, np.float32)
    a_given, b_given = (a.ravel(), b.ravel()) if step.textures else (a, b)
    report = simulator.run(run_nvidia.function(name), n, n, n, 1.0, a_given, n, b_given, n, 0.0, c, n,
                           grid=step.grid(n, n), granule=granule)
    if not np.array_equal(c, a @ b):
        raise RuntimeError(f"{step.title} gives a wrong product")
    return report


def _assembled(name: str, target: GpuTarget) -> dict[str, int]:
    """Registers, spills and CTAs per multiprocessor, where there is an assembler."""
    from tilewright.compiler import ptxas

    try:
        ptxas.find()
    except ptxas.Missing:
        return {}
    function = run_nvidia.function(name)
    used = ptxas.assemble(run_nvidia.ptx(name, target), target.name)[1][function.name]
    assert function.threads is not None
    ctas = target.occupancy(function.threads[0] * function.threads[1], used.registers, used.shared)
    return {"registers": used.registers, "spills": used.spill_stores + used.spill_loads, "ctas": ctas}


def assembler() -> str:
    """Whose registers the tables show: those depend on the assembler's version."""
    from tilewright.compiler import ptxas

    try:
        return f"ptxas {ptxas.version()}"
    except ptxas.Missing:
        return "none, since ptxas is not installed"


Column = tuple[str, Callable[[Counts], str]]
MEMORY: tuple[Column, ...] = (
    ("global loads", lambda c: f"{c.loads:,}"),
    ("formula", lambda c: c.formula),
    ("says", lambda c: "the same" if c.loads == c.expected else f"{c.expected:,}"),
    ("sectors", lambda c: f"{c.load_sectors:,}"),
    ("useful", lambda c: f"{c.load_efficiency:.0%}"),
    ("stores", lambda c: f"{c.stores:,}"),
    ("sectors", lambda c: f"{c.store_sectors:,}"),
    ("useful", lambda c: f"{c.store_efficiency:.0%}"),
)
MULTIPROCESSOR: tuple[Column, ...] = (
    ("shared loads", lambda c: f"{c.shared_loads:,}"),
    ("passes", lambda c: f"{c.passes:,}"),
    ("conflicts", lambda c: f"{c.conflicts:,}"),
    ("moves per FMA", lambda c: f"{c.moves / c.fmas:.3f}"),
    ("registers", lambda c: "-" if c.registers is None else str(c.registers)),
    ("CTAs per SM", lambda c: "-" if c.ctas is None else str(c.ctas)),
    ("bound by", lambda c: c.bound[0]),
    ("of peak", lambda c: f"{c.bound[1]:.1%}"),
)
WORDS = ("formula", "bound by")  # columns of words, on the left
LEGEND = (
    "V = 8, L = 128. Useful: what share of the sectors of 32 bytes. Passes over the banks of shared memory, and how "
    "many of them are conflicts. Moves: loads, stores, copies and barriers, by warps. Bound by: what a "
    "multiprocessor is busy with longest, and the share of its multiply-adds that this allows at most. Waiting is not "
    "predicted."
)


def counted(report: Report) -> list[Counts]:
    """The counts of a report that `simulate` has written."""
    return [Counts(**c) for c in report.extra["simulated"]]


def sentence(c: Counts) -> str:
    """What the simulator says about one step, in words."""
    agrees = "exactly" if c.loads == c.expected else f"{c.expected:,} expected"
    what, share = c.bound
    said = [
        f"**Simulated, n = {c.n}:** {c.loads:,} loads from global memory ({c.formula}: {agrees}) in {c.load_sectors:,} "
        f"sectors of 32 bytes, of which {c.load_efficiency:.0%} is used; C is stored in {c.store_sectors:,} sectors "
        f"({c.store_efficiency:.0%} used)."
    ]
    if c.shared_loads:
        conflicts = f"{c.conflicts:,} of them conflicts" if c.conflicts else "none of them a conflict"
        said.append(f"{c.shared_loads:,} loads from shared memory; {c.passes:,} passes over its banks, {conflicts}.")
    moves = f"{c.moves / c.fmas:.3f} loads, stores, copies and barriers per FMA"
    used = "" if c.registers is None else f"; {c.registers} registers, {plural(c.ctas or 0, 'CTA')} per multiprocessor"
    said.append(f"{moves}{used}. Bound by {what}: at most {share:.1%} of the peak.")
    return "\n".join(textwrap.fill(s, 120) for s in said)


def tables(found: list[Counts], target: GpuTarget) -> Iterator[Any]:
    """Ideas, memory, multiprocessor: for a terminal."""
    from rich import box
    from rich.table import Table

    title = f"m = n = k = {found[0].n}, simulated; a multiprocessor of {target.model}"
    for columns, caption in (((("idea", lambda c: c.idea),), ""), (MEMORY, ""), (MULTIPROCESSOR, LEGEND)):
        shown = Table(title=title, title_justify="left", caption=caption, caption_justify="left",
                      box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        shown.add_column("step", no_wrap=True)
        for heading, _ in columns:
            words = heading in (*WORDS, "idea")
            shown.add_column(heading, justify="left" if words else "right", no_wrap=heading == "bound by")
        for c in found:
            shown.add_row(c.title, *(cell(c) for _, cell in columns))
        yield shown
        title = ""
