"""`tilewright.explain`: why a problem runs by this plan, with the arithmetic, beside what was measured.

    print(tw.explain(tw.Gemm(1000, 600, 800)))

Everything is counted by plans/model.py; here it is put into words. The rates of this machine's memories and of its
multiply-adds are those that were measured (measure/probes.py), or the model's defaults.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tilewright.compiled.cpu import CpuKernel
from tilewright.explanation.explained import ORIGINS, REJECTED, Explained, duration
from tilewright.measure.probes import DTYPES, OUT_OF_DATE, exceeded
from tilewright.plans import asked
from tilewright.plans.choose import ranked
from tilewright.plans.common import Cost, total
from tilewright.plans.cpu import COMPLEX, CpuPlan, Shape, registers
from tilewright.plans.lowering import taken_operands
from tilewright.plans.measured import store
from tilewright.plans.words import BY_NAME, TILE_WORDS
from tilewright.runtime.cpu import engine
from tilewright.targets import AmdTarget, CpuTarget, GpuTarget, coerce
from tilewright.targets.machine import MOST_THREADS
from tilewright.text import plural

if TYPE_CHECKING:

    from tilewright.explanation.gpu import GpuExplanation
    from tilewright.measure.measure import Sample, Spread
    from tilewright.measure.probes import Basis, Measured
    from tilewright.problem import Gemm


@dataclass(frozen=True)
class Explanation(Explained):
    """What `explain` found for a CPU."""
    basis: Basis | None = None                  # what the prediction rests on
    measured: Spread | None = None              # seconds
    disturbed: bool = False                     # by other processes, while it was measured

    def title(self) -> str:
        batch = f", each of {self.problem.batch} products" if self.problem.batch != 1 else ""
        threads = plural(self.shape.threads, "thread")
        return f"{self.problem} on {self.target.name} ({self.target.model}), {threads}{batch}"

    def of_plan(self) -> Iterator[tuple[str, Iterator[str]]]:
        yield "plan", self._plan()
        if self.problem.flops and (formats := list(self._formats())):
            yield "formats", iter(formats)

    def of_cost(self, cost: Cost) -> Iterator[tuple[str, Iterator[str]]]:
        for role in self.problem.prologues:
            yield f"prologue {role.upper()}", self._prologue(role)
        if self.shape.epilogue:
            yield "epilogue", self._epilogue()
        yield "blocks", self._blocks()
        yield "instead", self._rejected()
        yield "arithmetic", self._arithmetic(cost)
        yield "bytes", self._bytes(cost)
        yield "time", self._time(cost)

    @property
    def ceilings(self) -> Measured | None:
        """This machine's, if they are known."""
        return self.basis.ceilings if self.basis else None

    def record(self) -> dict[str, Any]:
        basis = {"basis": self.basis.source} if self.basis else {}
        measured = {"measured_seconds": self.measured.median if self.measured else None}
        disturbed = {"disturbed": True} if self.disturbed else {}
        return super().record() | {"threads": self.shape.threads} | basis | measured | disturbed

    # ---- sections

    def _plan(self) -> Iterator[str]:
        yield str(self.plan)
        yield self.origin
        if self.plan.swap:
            yield "swap: C^T = B^T @ A^T is computed, so below A and B, and rows and columns, are exchanged"
        if self.plan.copy:
            yield f"copy: B is copied first, so that its {self.plan.reads_b} are contiguous"

    def _formats(self) -> Iterator[str]:
        """What is multiplied, where it is not the operands as they are."""
        p, shape = self.problem, self.shape
        if shape.tiles:
            word = TILE_WORDS[shape.dtype]
            terms = f", each element as {plural(word.terms, 'term')}" if word.terms > 1 else ""
            yield (f"{shape.dtype}: AMX multiplies tiles of words that hold {plural(word.steps, 'step')} of k of "
                   f"{word.dot}{terms}; sums in {shape.sums}")
        elif shape.words:
            yield (f"{shape.dtype}: 32-bit words hold {BY_NAME[shape.dtype].steps} steps of k; below, k is {shape.k} "
                   f"words of {shape.depth} elements; sums in {shape.sums}")
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

    def _prologue(self, role: str) -> Iterator[str]:
        """What packing makes of an operand's elements."""
        expression, read, formats = getattr(self.problem, f"prologue_{role}").split(" | ")
        source, result = formats.split()
        yield expression
        if read:
            yield f"operands {read}"
        multiplied = f", and packed as {self.shape.dtype}" if result != self.shape.dtype else ""
        yield f"packing reads {source} and rounds to {result}{multiplied}"

    def _epilogue(self) -> Iterator[str]:
        """What becomes of the sums, and where."""
        expression, read, results = self.shape.epilogue.split(" | ")
        yield expression
        if read:
            yield f"operands {read}"
        if len(results.split()) > 1:
            yield f"results {results}: - is the format of C"
        if self.plan.algorithm in ("packed", "in_place"):
            yield ("of each tile after its last block of k, while it is in L1" + "; sums are added up beside C"
                   * bool(self.shape.out))
        else:
            yield "in a pass over C when all sums are complete, on the same threads"

    def _blocks(self) -> Iterator[str]:
        p, t, s = self.plan, self.target, self.shape.itemsize
        shape = self.shape.swapped if p.swap else self.shape
        lanes = t.lanes(s)
        need = registers(p, lanes)
        if p.algorithm in ("packed", "in_place"):
            v = p.nr // lanes
            if shape.tiles:
                yield f"tile {p.mr}x{p.nr}: four accumulators of 16x16, in tile registers"
            else:
                yield (f"tile {p.mr}x{p.nr}: {p.mr} rows of {v} vectors; {p.mr}*{v} + {v} + 1 = {need} of "
                       f"{t.registers} registers; {p.mr*v} multiply-adds for {v} + {p.mr} loads")
            kc = min(p.kc or shape.k, shape.k)
            yield _fills(f"panel of B, kc x nr = {kc} x {p.nr} x {s} bytes", kc*p.nr*s, t, "l1d")
            if p.algorithm == "packed":
                mc, nc = min(p.mc, shape.m), min(p.nc, shape.n)
                yield _fills(f"block of A, mc x kc = {mc} x {kc} x {s} bytes", mc*kc*s, t, "l2")
                yield _fills(f"block of B, kc x nc = {kc} x {nc} x {s} bytes", kc*nc*s, t, "l3" if t.l3 else "l2")
        elif p.algorithm == "stream":
            yield f"{p.mr} rows of C stay in L1 while B is streamed, {p.nr} rows of B at a time"
        else:
            yield f"{p.mr} rows of A by {p.nr} columns of B at a time: {p.mr}*{p.nr} vectors of sums along k"
        if p.threads > 1:
            loops = (p.jc_ways, "columns (jc)"), (p.ic_ways, "rows (ic)"), (p.jr_ways, "panels of columns (jr)")
            yield f"{p.threads} threads: " + " x ".join(f"{ways} runs of {what}" for ways, what in loops if ways > 1)
        elif self.shape.threads > 1:
            yield "one thread: waking further threads would take longer than they save"

    def _rejected(self) -> Iterator[str]:
        if not self.rejected:
            yield "there is no alternative"
            return
        yield from self.alternatives()
        yield "predicted time relative to the plan's, and the largest cause, with the model's default constants;"
        yield (f"the best of {plural(self.considered, 'alternative')}. Only `tilewright tune` varies the register "
               "tile further")

    def _arithmetic(self, cost: Cost) -> Iterator[str]:
        shape = self.shape.swapped if self.plan.swap else self.shape
        m, n, k, lanes = shape.m, shape.n, shape.k, self.target.lanes(shape.itemsize)
        yield f"2 x {m} x {n} x {shape.depth or k} = {shape.flops:,} operations"
        if shape.tiles:
            return
        long, along = (k, "k") if self.plan.algorithm == "dots" else (n, "n")
        sizes = " x ".join(str(x) for x, name in ((m, "m"), (n, "n"), (k, "k")) if name != along)
        yield (f"{sizes} x ceil({long} / {lanes} lanes) = {cost.vectors:,} vector multiply-adds, "
               f"{m*n*k / (cost.vectors*lanes):.1%} of their lanes in use")

    def _bytes(self, cost: Cost) -> Iterator[str]:
        ceilings = self.ceilings
        for level, terms in cost.traffic.items():
            for number, (what, size, times, why) in enumerate(terms):
                yield f"{'' if number else level:<7}{what}  {size:>15,} x {times:<5} {why}"
            rate = ceilings and ceilings.peak_bandwidth(level, self.plan.threads)
            at = f" at {rate/1e9:.0f} GB/s = {duration(total(terms) / rate)}" if rate else ""
            yield f"{'':<7}=  {total(terms):>15,} bytes{at}"

    def _time(self, cost: Cost) -> Iterator[str]:
        flops, peak = self.shape.flops, self._peak
        if peak:
            threads = "one thread" if self.plan.threads == 1 else f"{self.plan.threads} threads"
            yield (f"{'ceiling':<10} {duration(flops / peak):>9}  {flops/1e9:.4g} GFLOP at {peak/1e9:.1f} GFLOP/s, "
                   f"what {threads} reached with nothing but multiply-adds")
        yield self._rate("predicted", cost.seconds)
        if self.basis:
            yield f"{'':<10} by {self.basis.source}"
        for what, seconds in cost.parts:
            if seconds:
                yield f"{'':<10} {duration(seconds):>9}  {what}"
        if self.measured:
            s = self.measured
            yield f"{self._rate('measured', s.median)} (quartiles {duration(s.q1)} to {duration(s.q3)})"
            if self.disturbed:
                yield f"{'':<10} other processes disturbed this: repeat on an idle machine"
            else:
                yield f"{'':<10} {s.median / cost.seconds:>8.2f}x  the prediction"
            if self._peak and exceeded(flops / s.median, self._peak):
                yield f"{'':<10} beyond the ceiling: {OUT_OF_DATE}"

    @property
    def _peak(self) -> float | None:
        if self.ceilings is None or self.shape.dtype not in DTYPES:
            return None
        return self.ceilings.peak_flops(self.shape.dtype, self.plan.threads, self.target.name)

    def _rate(self, what: str, seconds: float) -> str:
        flops, peak = self.shape.flops, self._peak
        worthless = (self.disturbed and what == "measured") or (peak and exceeded(flops / seconds, peak))
        share = f", {flops / seconds / peak:.1%} of the ceiling" if peak and not worthless else ""
        return f"{what:<10} {duration(seconds):>9}  {flops / seconds / 1e9:.1f} GFLOP/s{share}"


def explain(problem: Gemm, target: CpuTarget | GpuTarget | AmdTarget | str | None = None, plan: Any = None,
            measure: bool = False, threads: int | None = None,
            algorithm: str | None = None) -> Explanation | GpuExplanation:
    """The plan of a problem on `target` (default: this machine), with the reasons for it and the predicted rate.

    target    a CPU or a GPU, or its name
    plan      one to explain, or its text, instead of the one that tilewright.matmul would use
    measure   also run it and say how fast it is; RuntimeError where this machine cannot run the target
    threads   of a CPU, how many the plan may use; by default as many as matmul would
    algorithm  that of tilewright.matmul, in place of a plan

    Predicted rates are based on the ceilings that `tilewright doctor` measured, or on the model's defaults; the text
    says on which. With `measure`, the machine is measured too if it was not.
    """
    from tilewright.measure import probes
    asked.problem(problem)
    chip = coerce(target)
    plan = asked.plan(plan, chip)
    asked.algorithm(algorithm, plan, chip)
    if not isinstance(chip, CpuTarget):
        if measure:
            raise RuntimeError(f"explain measures kernels for CPUs only; those for {chip.name} are measured by "
                               "`tilewright tune`")
        from tilewright.explanation import gpu
        return gpu.explain(problem, chip, plan, algorithm)
    if measure:
        chip.require_runnable()
    found = engine.plan_problem(problem, chip, threads or (min(plan.threads, MOST_THREADS) if plan else None),
                                algorithm)
    shape, reached = found.shape, found.target
    if not problem.flops:
        return Explanation(problem, chip, shape, plan or found.plan, "the product is empty: nothing is multiplied", ())
    if plan is None:
        plan = found.plan
        origin = ORIGINS.get(found.origin,
                             "the model's choice; `tilewright tune` measures whether there is a better one")
        origin += ", or in the tables that come with tilewright" * (found.origin == store.MEASURED)
    else:
        origin = "given"
    violations = tuple(plan.violations(shape, reached))
    if violations:
        return Explanation(problem, chip, shape, plan, origin, violations)
    basis = probes.basis(chip, measure)
    expected = basis.cost(shape, plan, chip)
    considered, rejected = _rejected(shape, plan, chip, basis)
    sample = _measure(CpuKernel(replace(problem, batch=1), chip, found._replace(plan=plan))) if measure else None
    return Explanation(problem, chip, shape, plan, origin, (), expected, considered, rejected, basis,
                       sample.spread if sample else None, sample is not None and sample.disturbed)


def _rejected(shape: Shape, plan: CpuPlan, target: CpuTarget,
              basis: Basis) -> tuple[int, tuple[tuple[CpuPlan, float, str], ...]]:
    """How many other plans there are, and a few of them: the best, and the best of each other kind."""
    from tilewright.tuner.search import various
    others = [other for other in ranked(shape, target, tiles=3) if other != plan]
    kinds = {(other.algorithm, other.swap): other for other in reversed(others) if other.algorithm != plan.algorithm}
    shown = dict.fromkeys(list(kinds.values())[:REJECTED // 2])
    for other in various(others):
        if len(shown) < REJECTED:
            shown[other] = None
    ours = basis.cost(shape, plan, target)
    found = []
    for other in shown:
        theirs = basis.cost(shape, other, target)
        mine = dict(ours.parts)
        more = {what: seconds - mine.get(what, 0.0) for what, seconds in theirs.parts}
        worst = max(more, key=lambda what: more[what])
        why = worst if more[worst] > 0 and other.algorithm == plan.algorithm else ""
        found.append((other, theirs.seconds / ours.seconds - 1, why))
    return len(others), tuple(sorted(found, key=lambda each: each[1]))


def _measure(kernel: CpuKernel) -> Sample:
    """Seconds of the kernel, by the rules of docs/benchmarking.md, once its result has been compared with float64."""
    from tilewright.measure import check, operands, quiet
    from tilewright.measure.measure import Rules, interleave
    from tilewright.measure.quiet import Watch
    o = operands.make(kernel.problem)
    kernel(o.a, o.b, o.c)
    if wrong := next((found for one in o.compared.values() if (found := check.Reference(one).wrong(one.c))), ""):
        raise RuntimeError(f"{kernel} computes a wrong result: {wrong}")
    rules = replace(Rules.choose(kernel.plan.threads), budget_s=1.0)
    call: Any = (kernel, (o.a, o.b, o.c))
    watch = Watch()
    return interleave({"kernel": [call]}, rules, settle=quiet.settle, disturbed=watch.disturbed)["kernel"]


# ---- figures

def _fills(what: str, size: int, target: CpuTarget, level: str) -> str:
    from tilewright.text import size as text
    have, name = getattr(target, level), level[:2].upper()
    share = f"{size / have:.0%} of" if size < 2*have else f"{size / have:.0f} times"
    return f"{what} = {text(size)}, {share} {name} ({text(have)})"
