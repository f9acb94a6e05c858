"""The teaching ladders, step against step: every step as a peer, beside NumPy and OpenBLAS, or on a GPU cuBLAS; and the
GPU ladder as the simulator counts it, for which no GPU is needed. Its steps on tensor cores multiply bf16, the others
f32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import formats, simulator, targets
from tilewright.lab.bench import peer
from tilewright.lab.bench.cases import CPU, GPU, Product
from tilewright.lab.bench.peer import Peer, Setting, Unfit, Way, single
from tilewright.lab.bench.results import CUBLAS, Report, Result
from tilewright.lab.bench.tables import shown
from tilewright.lab.ladder import run, run_nvidia
from tilewright.lab.ladder.gpu13_dispatch import choose
from tilewright.lab.ladder.steps import (
    ARTICLE,
    CPU_STEPS,
    DISPATCH,
    GPU_LADDER,
    GPU_STEPS,
    GPU_VARIANTS,
    TENSOR_STEPS,
    GpuStep,
    TensorStep,
)
from tilewright.lab.measure.measure import Call
from tilewright.lab.measure.operands import Operands
from tilewright.simulator.occupancy import assembled

if TYPE_CHECKING:
    from rich.table import Table

    from tilewright.targets import GpuTarget

UNBLOCKED = ("naive", "registers", "padded")  # what they do to a cache makes minutes of a large product
MAX_CALL_S = 2.0
# Of the GPU ladder's formats: the product, its layout, and the sizes that are timed
GPU_PRODUCTS = {"f32": ("f32-f32-f32", "nn", (1024, 2048, 4096)), "bf16": ("bf16-bf16-bf16", "nt", (4096, 8192))}
TENSOR_TITLES = {step.title: step for step in TENSOR_STEPS.values()}


def peers(
    setting: Setting, wanted: Iterable[str] | None = None, device: str = CPU
) -> tuple[list[Peer], dict[str, str]]:
    """tilewright, then the steps in their order, then the peers; on CPUs with several threads only the step that uses
    them."""
    if device == GPU:
        libraries, left_out = peer.find(setting, (CUBLAS,) if wanted is None else wanted, device)
        return [libraries[0], *(_gpu_step(name, step) for name, step in GPU_LADDER.items()), *libraries[1:]], left_out
    threads = setting.threads
    libraries, left_out = peer.find(setting, ("numpy", "openblas") if wanted is None else wanted)
    here = {name: step for name, step in CPU_STEPS.items() if step.parallel == (threads > 1)}
    others = ", ".join(step.title for name, step in CPU_STEPS.items() if name not in here)
    left_out[others] = "they run on one thread" if threads > 1 else "with one thread it is step 5"
    limited = ", ".join(step.title for name, step in here.items() if name in UNBLOCKED)
    if limited:
        left_out[limited] = f"where one call would take more than {MAX_CALL_S:.0f} s"
    steps = []
    for name, step in (*here.items(), (ARTICLE.title, ARTICLE)):

        def bind(o: Operands, step: Any = step) -> Call:
            from tilewright.lab.ladder.run_cpu import prepare

            p = o.problem
            return prepare(step, p.m, p.n, p.k, p.a, threads=threads), (o.a, o.b, o.c)

        limit = MAX_CALL_S if name in UNBLOCKED else math.inf
        steps.append(single(step.title, "", step.idea, bind, limit))
    return [libraries[0], *steps, *libraries[1:]], left_out


# ---- on a GPU


def _gpu_step(name: str, step: Any) -> Peer:
    """A step on torch's tensors."""

    def bind(o: Operands) -> Call:
        import torch

        b = o.b if step.layout == "nn" else o.b.T
        where = [at for x in (o.a, b, o.c) for at in (x.data_ptr(), x.stride(0))]
        try:
            launch = run_nvidia.prepare(name, *o.sizes, *where)
        except ValueError as refused:
            raise Unfit(str(refused)) from None
        return lambda: launch(torch.cuda.current_stream().cuda_stream), ()

    def ways(product: Product) -> list[Way]:
        mine = step.formats[0].split("-")[0]
        return [Way(step.title, step.idea, bind)] if product.key == "-".join([mine] * 3) else []

    return Peer(step.title, "", step.idea, ways)


def gpu_steps(names: Iterable[str]) -> list[Peer]:
    """Steps by name, beside the peers of any suite. ValueError for a name that is none."""
    known = GPU_LADDER | GPU_VARIANTS
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"there is no step {unknown[0]!r} of the GPU ladder; the steps are {', '.join(known)}")
    return [_gpu_step(name, known[name]) for name in names]


def table(results: list[Result]) -> list[list[str]]:
    """Heading and a row for each step on a GPU: TFLOP/s at each size, and the share of cuBLAS's. Of steps on tensor
    cores also how many times as fast as the step before they were expected to be, and are at each size; and which share
    they are at the last size of what their instruction does alone."""
    wanted = (CUBLAS, *(step.title for step in GPU_LADDER.values()), peer.OURS)
    there = [name for name in wanted if any(r.row(name) for r in results)]
    several = len({r.case.product for r in results}) > 1
    head = ["TFLOP/s at m = n = k =", *(f"{r.case.product.label} {r.case.size}" if several else r.case.size
                                        for r in results)]
    rows = [[name, *(_cell(r, name) for r in results)] for name in there]
    if not any(name in TENSOR_TITLES for name in there):
        return [head, *rows]
    more = ["expected gain", "measured", "of the instruction's rate"]
    return [[*head, *more], *([*row, *_gains(results, name)] for row, name in zip(rows, there))]


def _gains(results: list[Result], name: str) -> list[str]:
    if name not in TENSOR_TITLES:
        return ["", "", ""]
    step, titles = TENSOR_TITLES[name], [*TENSOR_TITLES]
    before = titles[max(titles.index(name) - 1, 0)]
    rates = [(r.gflops(name), r.gflops(before)) for r in results]
    gains = ", ".join(f"{rate / slower:.2f}" for rate, slower in rates if rate and slower)
    target: Any = targets.target(results[-1].isa)
    largest = rates[-1][0]
    share = f"{largest * 1e9 / (_per_clock(step, target) * target.sms * target.clock):.0%}" if largest else "-"
    return [f"{step.expected:.2f}", gains, share] if step.expected else ["", "", share]


def _per_clock(step: TensorStep, target: GpuTarget) -> int:
    """Operations of the step's instruction on a multiprocessor."""
    return (target.wgmma_rates if step.needs == "wgmma" else target.matrix_rates)["bf16"]


def _cell(r: Result, name: str) -> str:
    row, rate, best = r.row(name), r.gflops(name), r.gflops(CUBLAS)
    if row is None or rate is None:
        return "-" if row is None or "not aligned" in (row.error or "") else "wrong"
    said = f"{rate / 1e3:.2f}" if rate < 1e4 else f"{rate / 1e3:.1f}"
    return said if best is None or name == CUBLAS else f"{said} ({rate / best:.3f})"


# ---- in the simulator

L1_LINE = 128
SCHEDULERS = 4  # of a multiprocessor: each starts an instruction of a warp per clock
MOVES = ("load", "store", "load shared", "store shared", "texture", "cp.async", "barrier", "ldmatrix", "TMA",
         "mbarrier")


@dataclass(frozen=True)
class Counts:
    """What the simulator counts of one step for n x n x n, all CTAs together, and what follows for a multiprocessor.

    `busy` has clocks of one multiprocessor, had it to do everything: 128 multiply-adds, or whatever the target's do, in
    each (on tensor cores as many as the step's instruction); an instruction started by each scheduler; a line of L1
    looked up (tensor maps pass it by); a pass over the banks of shared memory.
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
    fmas: int  # by warps, as are moves; on tensor cores 32 multiply-adds
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
    step: GpuStep | TensorStep = GPU_LADDER[name]
    report, by_lines = _run(name, n, target), _run(name, n, target, L1_LINE)
    loads, stores = report.of(space="global", verb="load"), report.of("c", "store")
    shared, from_shared = report.of(space="shared"), report.of(space="shared", verb="load")
    kinds = report.instructions
    moves = sum(kinds[kind] for kind in MOVES)
    if isinstance(step, TensorStep):
        item, products, fmas = 2, kinds["mma"] + kinds["wgmma"], n**3 // target.warp
        lines = by_lines.of("c") if step.boxes else by_lines.of(space="global")
        clocks = 2 * n**3 / _per_clock(step, target)
    else:
        item, products, fmas = 4, kinds["fma"], kinds["fma"]
        lines = by_lines.of(space="global")
        clocks = fmas * target.warp / target.fma_f32
    busy = {
        "multiply-adds": clocks,
        "instructions": (products + moves) / SCHEDULERS,
        "L1": float(lines.moved),
        "shared memory": float(shared.moved),
    }
    used: Any = assembled(run.compiled(name, target).function, target)  # where there is an assembler
    return Counts(
        name, step.title, step.idea, step.formula, n, loads.bytes // item, step.moves(n, n, n)[0], loads.moved,
        loads.efficiency, stores.bytes // item, stores.moved, stores.efficiency, from_shared.bytes // item,
        shared.moved, shared.moved - shared.ideal, fmas, moves, busy,
        **({what: getattr(used, what) for what in ("registers", "spills", "ctas")} if used else {}),
    )


def dispatched(found: list[Counts], target: GpuTarget) -> Counts:
    """Step 13, which is no kernel: the counts of the one that it chooses for these sizes."""
    n, last = found[0].n, GPU_LADDER[DISPATCH]
    chosen = choose(target, n, n, n, 0, n, 0, n)
    (counts,) = (c for c in found if c.step == chosen)
    return replace(counts, step=DISPATCH, title=last.title, idea=f"{last.idea}; here {counts.title}")


def _run(name: str, n: int, target: GpuTarget, granule: int | None = None) -> simulator.Report:
    step = GPU_LADDER[name]
    if not isinstance(step, TensorStep):
        return run.counted(name, n, n, n, granule=granule)
    a, b = np.random.default_rng(0).integers(-4, 5, (2, n, n)).astype(np.float32)
    c = np.full((n, n), np.nan, formats.get("bf16").dtype)
    report = run.tensor_step(name, target, a.astype(c.dtype), b.T.astype(c.dtype, "C"), c, granule=granule)
    if not np.array_equal(c, (a @ b).astype(c.dtype)):
        raise RuntimeError(f"{step.title} gives a wrong product")
    return report


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
WORDS = ("idea", "formula", "bound by")  # columns of words, on the left
LEGEND = (
    "V = 8, L = 128; steps from 14 on multiply bf16. Useful: what share of the sectors of 32 bytes. Passes over the "
    "banks of shared memory, and how many of them are conflicts. Moves: loads, stores, copies and barriers, by warps. "
    "Bound by: what a multiprocessor is busy with longest, and the share of its multiply-adds that this allows at "
    "most. Waiting is not predicted."
)


def counted(report: Report) -> list[Counts]:
    """The counts of a report that `simulate` has written."""
    return [Counts(**c) for c in report.extra["simulated"]]


def tables(report: Report) -> Iterator[Table]:
    """Ideas, memory, multiprocessor: for a terminal."""
    target: Any = targets.target(report.options["target"])
    steps_counted = counted(report)
    f32 = [c for c in steps_counted if c.step in GPU_STEPS]
    steps_counted[len(f32):len(f32)] = [dispatched(f32, target)]
    title = f"m = n = k = {steps_counted[0].n}, simulated; a multiprocessor of {target.model}"
    idea: Column = ("idea", lambda c: c.idea)
    for columns, caption in (((idea,), ""), (MEMORY, ""), (MULTIPROCESSOR, LEGEND)):
        head = ["step", *(heading for heading, _ in columns)]
        rows = [[c.title, *(cell(c) for _, cell in columns)] for c in steps_counted]
        yield shown(title, caption, head, rows, left=("step", *WORDS), wrap=True)
        title = ""
