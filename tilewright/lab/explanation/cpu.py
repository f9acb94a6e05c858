"""`tilewright.explain` for CPUs: the plan, its blocks in the caches, bytes by level, and the time by cause.

Everything is counted by plans/model.py; here it is put into words. The rates of this machine's memories and of its
multiply-adds are those that were measured (measure/probes.py), or the model's defaults.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilewright.compiled.cpu import CpuKernel
from tilewright.lab.explanation.gpu import ORIGINS, SHOWN
from tilewright.lab.explanation.record import (
    Explanation,
    Level,
    Part,
    Section,
    Tile,
    Time,
    levels_of,
)
from tilewright.lab.measure.probes import DTYPES
from tilewright.lab.tuner import candidates
from tilewright.plans.common import Cost
from tilewright.plans.cpu import CpuPlan
from tilewright.plans.cpu_shape import COMPLEX, Shape
from tilewright.plans.lowering import taken_operands
from tilewright.plans.measured import choice
from tilewright.plans.words import BY_NAME, TILE_WORDS
from tilewright.runtime.cpu import engine
from tilewright.targets import CpuTarget
from tilewright.text import plural

if TYPE_CHECKING:
    from tilewright.lab.measure.measure import Sample
    from tilewright.lab.measure.probes import Basis
    from tilewright.lab.tuner.space import Space
    from tilewright.problem import Gemm

AMX = 8 * 1024          # bytes of a thread's tile registers


def title(there: Space) -> str:
    p, t = there.problem, there.chip
    batch = f", each of {p.batch} products" if p.batch != 1 else ""
    return f"{p} on {t.name} ({t.model}), {plural(there.threads, 'thread')}{batch}"


def origin(there: Space) -> str:
    words = ORIGINS.get(there.origin, "the model's choice; `tilewright tune` measures whether there is a better one")
    return words + ", or in the tables that come with tilewright" * (there.origin == choice.MEASURED)


def opening(there: Space, plan: CpuPlan, origin: str) -> tuple[Section, ...]:
    formats = tuple(_formats(there.problem, there.shape))
    return (Section("plan", (str(plan), origin, *_plan(plan))), *((Section("formats", formats),) if formats else ()))


def sections(there: Space, plan: CpuPlan, cost: Cost) -> tuple[Section, ...]:
    p, shape, chip = there.problem, there.shape, there.chip
    return (*(Section(f"prologue {role.upper()}", tuple(_prologue(p, shape, role))) for role in p.prologues),
            *((Section("epilogue", tuple(_epilogue(shape, plan))),) if shape.epilogue else ()),
            Section("blocks", tuple(_blocks(shape, plan, chip))),
            Section("arithmetic", tuple(_arithmetic(shape, plan, chip, cost))))


def invariant(there: Space, option: str, basis: Basis) -> tuple[CpuPlan, float]:
    """The plan of a product with the same bits, and its seconds."""
    other = engine.plan_problem(there.problem, there.chip, there.threads, invariant=option)
    return other.plan, basis.cost(other.shape, other.plan, there.chip).seconds


def refused(there: Space) -> dict[str, int]:
    """Candidates of CPUs that cannot run are left out."""
    return {}


def levels(there: Space, plan: CpuPlan, cost: Cost, basis: Basis) -> tuple[Level, ...]:
    known = basis.ceilings
    return levels_of(cost, {level: known.peak_bandwidth(level, plan.threads) if known else None
                            for level in cost.traffic})


def time(there: Space, plan: CpuPlan, cost: Cost, basis: Basis) -> Time:
    """Its parts add up."""
    peak = None
    if basis.ceilings is not None and there.shape.dtype in DTYPES:
        peak = basis.ceilings.peak_flops(there.shape.dtype, plan.threads, there.chip.name)
    threads = "one thread" if plan.threads == 1 else f"{plan.threads} threads"
    parts = tuple(Part(what, seconds) for what, seconds in cost.parts)
    return Time(cost.seconds, parts, basis.source, cost.bound, peak,
                f"what {threads} reached with nothing but multiply-adds" if peak else "")


def various(chosen: CpuPlan, others: list[CpuPlan]) -> list[CpuPlan]:
    """Plans to show beside the chosen one: the best of each other kind, and the best."""
    kinds = {(other.algorithm, other.swap): other for other in reversed(others) if other.algorithm != chosen.algorithm}
    return list(dict.fromkeys([*list(kinds.values())[:SHOWN // 2], *candidates.various(others)]))[:SHOWN]


# ---- measured

def measured(found: Explanation, there: Any) -> Explanation:
    """With seconds of the kernel, by the rules of docs/benchmarking.md, once its result has been compared with
    float64, and with bytes by the counters that there are."""
    from tilewright.lab.measure import check, counters, operands, quiet
    from tilewright.lab.measure.measure import Rules, interleave
    from tilewright.lab.measure.quiet import Watch
    kernel = CpuKernel(replace(there.problem, batch=1), there.chip, there.planned._replace(plan=found.plan))
    o = operands.make(kernel.problem)
    kernel(o.a, o.b, o.c)
    if wrong := next((said for one in o.compared.values() if (said := check.Reference(one).wrong(one.c))), ""):
        raise RuntimeError(f"{kernel} computes a wrong result: {wrong}")
    rules = replace(Rules.choose(kernel.plan.threads), budget_s=1.0)
    call: Any = (kernel, (o.a, o.b, o.c))
    watch = Watch()
    sample: Sample = interleave({"kernel": [call]}, rules, settle=quiet.settle, disturbed=watch.disturbed)["kernel"]
    bytes, notes = counters.count(lambda: kernel(o.a, o.b, o.c), sample.spread.median, kernel.target.line)
    levels = tuple(replace(level, measured=bytes.get(level.name), notes={
        **level.notes, "measured": notes.get(level.name, counters.NOTHING)}) for level in found.levels)
    assert found.time is not None
    time = replace(found.time, measured=sample.spread, disturbed=sample.disturbed)
    return replace(found, levels=levels, time=time)


# ---- tiles

def tiles(there: Space, p: CpuPlan) -> tuple[Tile, ...]:
    """Tiles as the loops of the plan go through them; with `swap` of C^T."""
    shape, t = there.shape, there.chip
    s, size = shape.swapped if p.swap else shape, shape.itemsize
    m, n, k = s.m, s.n, s.k
    matrix = Tile("C^T" if p.swap else "C", {"m": m, "n": n, "k": k}, 1, "memory", (m*k + k*n + m*n) * size)
    if p.algorithm == "stream":
        return matrix, Tile("rows", {"m": p.mr, "n": n, "k": min(p.nr, k)}, -(-m // p.mr), "L1", p.mr*n*size, t.l1d)
    if p.algorithm == "dots":
        lanes = t.lanes(size)
        return matrix, Tile("dot products", {"m": p.mr, "n": min(p.nr, n), "k": lanes}, -(-m // p.mr) * -(-n // p.nr),
                           "registers", p.mr * p.nr * t.vector_bytes, t.registers * t.vector_bytes)
    kc = min(p.kc or k, k)
    outer: tuple[Tile, ...] = ()
    rows = m
    if p.algorithm == "packed":
        mc, nc = min(p.mc, m), min(p.nc, n)
        far, room = ("L3", t.l3) if t.l3 else ("L2", t.l2)
        outer = (Tile("block of B", {"m": m, "n": nc, "k": kc}, -(-n // nc) * -(-k // kc), far, kc*nc*size, room),
                 Tile("block of A", {"m": mc, "n": nc, "k": kc}, -(-m // mc), "L2", mc*kc*size, t.l2))
        rows, columns = mc, nc
    else:
        columns = n
    nr, mr = min(p.nr, columns), min(p.mr, rows)
    panel = Tile("panel of B", {"m": rows, "n": nr, "k": kc}, -(-columns // p.nr), "L1", kc*p.nr*size, t.l1d)
    have = AMX if s.tiles else t.registers * t.vector_bytes
    used = AMX // 2 if s.tiles else _registers(p, t.lanes(size)) * t.vector_bytes
    return matrix, *outer, panel, Tile("tile", {"m": mr, "n": nr, "k": 1}, -(-rows // p.mr),
                                      "tile registers" if s.tiles else "registers", used, have)


# ---- words

def _plan(plan: CpuPlan) -> Iterator[str]:
    if plan.swap:
        yield "swap: C^T = B^T @ A^T is computed, so below A and B, and rows and columns, are exchanged"
    if plan.copy:
        yield f"copy: B is copied first, so that its {plan.reads_b} are contiguous"


def _formats(p: Gemm, shape: Shape) -> Iterator[str]:
    """What is multiplied, where it is not the operands as they are."""
    if shape.tiles:
        word = TILE_WORDS[shape.dtype]
        terms = f", each element as {plural(word.terms, 'term')}" if word.terms > 1 else ""
        yield (f"{shape.dtype}: AMX multiplies tiles of words that hold {plural(word.steps, 'step')} of k of "
               f"{word.dot}{terms}; sums in {shape.sums}")
    elif shape.words:
        yield (f"{shape.dtype}: 32-bit words hold {BY_NAME[shape.dtype].steps} steps of k; below, k is {shape.k} "
               f"words of {shape.depth} elements; sums in {shape.sums}")
    elif shape.complex_row:
        yield (f"complex: one row of reals of {shape.dtype}, twice as many columns and steps of k; operands are read "
               "where they are")
    elif shape.complex:
        yield (f"complex: one real product of {shape.dtype}, of twice as many columns and steps of k; panels of B "
               "hold each number as two rows of two")
    elif p.sums in COMPLEX:
        yield (f"complex: a real product of {shape.dtype}, {shape.m} x {shape.n} x {shape.k}, of operands that are "
               "rewritten before")
    elif shape.dtype != p.a or shape.dtype != p.b:
        yield f"multiplied and added up in {shape.dtype}"
    taken = taken_operands(p)
    for name, format, comes, packed in (("A", p.a, taken.a, shape.source_a), ("B", p.b, taken.b, shape.source_b)):
        if not shape.complex and comes != format and not (p.blocks and comes == "bf16"):
            yield f"{name} is converted from {format} to {comes} before"
        elif p.blocks and comes == "bf16":
            yield f"{name} is decoded from {format} to bf16 before; to f32 if a number is below 2^-126"
        elif packed and packed != shape.dtype and not shape.complex:
            yield f"packing reads {format} of {name}"
    if shape.out:
        yield f"sums are rounded to {shape.out} as they are stored"
    elif p.out != p.sums:
        yield f"the result is rounded from {p.sums} to {p.out} afterwards"


def _prologue(problem: Gemm, shape: Shape, role: str) -> Iterator[str]:
    """What packing makes of an operand's elements."""
    expression, read, formats = getattr(problem, f"prologue_{role}").split(" | ")
    source, result = formats.split()
    yield expression
    if read:
        yield f"operands {read}"
    multiplied = f", and packed as {shape.dtype}" if result != shape.dtype else ""
    yield f"packing reads {source} and rounds to {result}{multiplied}"


def _epilogue(shape: Shape, plan: CpuPlan) -> Iterator[str]:
    """What becomes of the sums, and where."""
    expression, read, results = shape.epilogue.split(" | ")
    yield expression
    if read:
        yield f"operands {read}"
    if len(results.split()) > 1:
        yield f"results {results}: - is the format of C"
    if plan.algorithm in ("packed", "in_place"):
        yield ("of each tile after its last block of k, while it is in L1" + "; sums are added up beside C"
               * bool(shape.out))
    else:
        yield "of all tiles when the sums are complete, in the same job: they are added up beside C"


def _blocks(given: Shape, p: CpuPlan, t: CpuTarget) -> Iterator[str]:
    """What the tiles do not show: registers, and how threads share the loops."""
    shape, lanes = given.swapped if p.swap else given, t.lanes(given.itemsize)
    need = _registers(p, lanes)
    if p.algorithm in ("packed", "in_place"):
        v = p.nr // lanes
        if shape.tiles:
            yield f"tile {p.mr}x{p.nr}: four accumulators of 16x16, in tile registers"
        else:
            yield (f"tile {p.mr}x{p.nr}: {p.mr} rows of {v} vectors; {p.mr}*{v} + {v} + 1 = {need} of "
                   f"{t.registers} registers; {p.mr*v} multiply-adds for {v} + {p.mr} loads")
    elif p.algorithm == "stream":
        yield f"{p.mr} rows of C stay in L1 while B is streamed, {p.nr} rows of B at a time"
    else:
        yield f"{p.mr} rows of A by {p.nr} columns of B at a time: {p.mr}*{p.nr} vectors of sums along k"
    if p.threads > 1:
        loops = (p.jc_ways, "columns (jc)"), (p.ic_ways, "rows (ic)"), (p.jr_ways, "panels of columns (jr)")
        yield f"{p.threads} threads: " + " x ".join(f"{ways} runs of {what}" for ways, what in loops if ways > 1)
    elif given.threads > 1:
        yield "one thread: waking further threads would take longer than they save"


def _arithmetic(given: Shape, plan: CpuPlan, target: CpuTarget, cost: Cost) -> Iterator[str]:
    shape = given.swapped if plan.swap else given
    m, n, k, lanes = shape.m, shape.n, shape.k, target.lanes(shape.itemsize)
    yield f"2 x {m} x {n} x {shape.depth or k} = {shape.flops:,} operations"
    if shape.tiles:
        return
    long, along = (k, "k") if plan.algorithm == "dots" else (n, "n")
    sizes = " x ".join(str(x) for x, name in ((m, "m"), (n, "n"), (k, "k")) if name != along)
    yield (f"{sizes} x ceil({long} / {lanes} lanes) = {cost.vectors:,} vector multiply-adds, "
           f"{m*n*k / (cost.vectors*lanes):.1%} of their lanes in use")


def _registers(plan: CpuPlan, lanes: int) -> int:
    """Vector registers that the register tile takes: accumulators, a row of B, one element of A."""
    vectors = plan.nr if plan.algorithm == "dots" else plan.nr // lanes     # of dots those of one sum
    return plan.mr*vectors + vectors + 1
