"""`tilewright.tune`: which plans to try, a child process that measures them (running.py), and what is remembered."""
from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from tilewright.attention_problem import Attention
from tilewright.lab.measure import measure
from tilewright.lab.tuner import kernels
from tilewright.lab.tuner.candidates import CPU_CANDIDATES, GPU_CANDIDATES
from tilewright.lab.tuner.child import NOISE, Job, winner
from tilewright.lab.tuner.compiling import compile_all
from tilewright.lab.tuner.running import Listener, Run, measured, provenance
from tilewright.lab.tuner.space import space_of
from tilewright.plans import asked, gpu_lowering
from tilewright.plans.measured import choice, store
from tilewright.plans.measured.row import Row
from tilewright.runtime.cpu import engine
from tilewright.runtime.gpu.engine import first_device
from tilewright.runtime.parametric import Parametric
from tilewright.targets import CpuTarget, Target, coerce, names
from tilewright.text import plural, table

if TYPE_CHECKING:
    from tilewright.compiled.base import CompiledGemm
    from tilewright.compiler.artefact import Asked
    from tilewright.problem import Gemm

CPU_S, GPU_S = 20.0, 10.0       # to tune one shape
COMPILING = 0.5                 # of the time, at most, for one kernel before the measurement


@dataclass(frozen=True)
class Result:
    """What a run found. `rows` are what is stored, unless it was disturbed: every plan that was timed, first the one
    that matmul uses from now on, then the fastest."""
    problem: Gemm | Attention
    target: str
    threads: int                                    # 1 on a GPU
    model: str                                      # the plan that the cost model had chosen
    rows: tuple[Row, ...]
    failed: dict[str, str] = field(default_factory=dict)        # plan → why it was not timed
    notes: tuple[str, ...] = ()
    disturbed: bool = False                         # by other processes: then nothing of it is stored
    certain: bool = True                            # that more time would choose no other of these plans

    @property
    def best(self) -> Row:
        """The plan that matmul uses from now on: the one that beat the model's, or the model's."""
        return next(row for row in self.rows if row.role == ("best" if self.improved else "model"))

    @property
    def improved(self) -> bool:
        return any(row.role == "best" for row in self.rows)

    @property
    def verdict(self) -> str:
        if self.disturbed:
            return (f"Other processes disturbed this: nothing is stored, and {self._call} stays as it was. Repeat on "
                    "an idle machine.")
        doubt = "" if self.certain else (f" That is not certain within {100 * NOISE} %: the noise was larger, or the "
                                         "time was over.")
        if not self.improved:
            return (f"Nothing beats the model's choice by more than the noise: {self._call} stays with {self.model}."
                    f"{doubt}")
        r = self.best
        return (f"{self._call} uses {r.plan} from now on: {r.ratio:.2f} ({r.ratio_q1:.2f} to {r.ratio_q3:.2f}) times "
                f"as fast.{doubt}")

    @property
    def _call(self) -> str:
        if isinstance(self.problem, Attention):
            return "attention"
        return "contract" if self.problem.semiring else "matmul"

    @property
    def title(self) -> str:
        on_cpu = self.target in names("cpu")
        return f"{self.problem} on {self.target}" + f", {plural(self.threads, 'thread')}"*on_cpu

    def __str__(self) -> str:
        return self.text()

    def text(self, fit: int | None = None) -> str:
        """Plans on lines of their own, to be copied; below them their times, and words in lines of this width."""
        lines = [self.title, *(f"{number:>2}  {r.plan}{f'  ({r.role})' * bool(r.role)}{'  *' * (r is self.best)}"
                               for number, r in enumerate(self.rows, 1))]
        cells = [["plan", *FIGURES], *([str(number), *figures(r)] for number, r in enumerate(self.rows, 1))]
        words = [wrap(line, fit) if fit else [line] for line in (LEGEND, *self.notes, self.verdict)]
        out = [line for plan, why in self.failed.items() for line in _left_out(plan, why, fit)]
        return "\n".join([*lines, "", table(cells, range(len(FIGURES) + 1), fit), *words[0], *out,
                          *(line for words_of_line in words[1:] for line in words_of_line)])


ITS_OWN_TIME = ("Measured despite load: ms and ratios are CPU time of this process, not time on the wall. What it "
                "loses to other processes in caches and clock still counts: on an idle machine a gain of a few percent "
                "may differ.")
ITS_THREADS = ("With several threads it is the time of all of them: a plan that leaves some without work looks better "
               "than it is.")
FIGURES = "ms", "GFLOP/s", "times matmul", "rounds"
LEGEND = ("times matmul: matmul's time over the plan's in the same round, above 1 the plan is faster; median and "
          "quartiles. *: what matmul uses from now on")


def _left_out(plan: str, why: str, fit: int | None) -> list[str]:
    """One line, or the plan in one, to be copied, and the reason in others."""
    line = f"left out: {plan}: {why}"
    if fit is None or len(line) <= fit:
        return [line]
    return [f"left out: {plan}:", *wrap(why, fit, initial_indent="    ", subsequent_indent="    ")]


def figures(r: Row) -> tuple[str, ...]:
    """A row's cells under FIGURES."""
    return (f"{r.seconds * 1e3:.4g}", f"{r.gflops:.1f}", f"{r.ratio:.3f} ({r.ratio_q1:.3f} to {r.ratio_q3:.3f})",
            str(r.rounds))


def tune(problem: Any, *args: Any, target: Target | str | None = None, threads: int | None = None,
         time_limit: float | None = None, candidates: int | None = None, vendor: bool | None = None,
         despite_load: bool = False, listen: Listener | None = None) -> Any:
    """Measure the plans that the model ranks best for a problem (a Gemm, with its epilogue, prologues and semiring, or
    an Attention); tilewright.matmul or attention uses the fastest from then on. Or find the best configuration of a
    kernel (tilewright.kernel) for these arguments of a call:

        tilewright.tune(problem, target)
        tilewright.tune(kernel, *args, target=target)

    Every configuration of a kernel is recorded, compiled and counted in the simulator. The `candidates` with the least
    predicted time are verified there (races, bounds, results), and timed if the target is this machine's; otherwise the
    ranking is the result. The next call of the kernel with similar sizes uses the best. `args` are those of a call;
    arrays are copied, and may be NumPy's for a GPU's target, too. The result is a tuner.tuned.Tuned: print it, or take
    `.best`.

    target       a CPU target of this machine, or its name; by default that of tilewright.detect(). Or a GPU's:
                 the first device of that architecture is measured, and the result holds for its model and driver
    threads      how many threads the products use; by default tilewright.get_num_threads(). None on a GPU
    time_limit   seconds, by default 20 on a CPU and 10 on a GPU. Measuring stops then with the results so far, or
                 earlier if it is certain within half a percent which plan wins
    candidates   how many plans are tried, beside the one in use: by default 12, and 32 on a GPU
    vendor       whether the winner is also compared with another library: on a CPU NumPy's BLAS, by default yes; on a
                 GPU torch, by default no, since its import takes seconds. The rows give its time over ours
    despite_load True: on a machine that others use, too. Turns are timed by the CPU time of this process instead of
                 the clock on the wall, in more rounds and, by default, 40 seconds; the result says so. Products on
                 CPUs only
    listen       called with every event of the measurement (tuner/child.py lists them), for a progress bar

    A plan replaces the one in use only if it is faster by more than the noise. The results go to `store.path()`, with
    the machine, date and versions; print the Result to see them. RuntimeError if the target cannot run here or nothing
    could be measured.
    """
    if isinstance(problem, Parametric):
        if threads is not None:
            raise ValueError(f"threads is for products, and {problem.name} is a kernel: it must be None, not {threads}")
        if despite_load:
            raise ValueError(f"despite_load is for products, and {problem.name} is a kernel: it must be False")
        return kernels.tune(problem, args, target, time_limit=time_limit, candidates=candidates or CPU_CANDIDATES,
                            listen=listen)
    product = not isinstance(problem, Attention)
    if product:
        asked.problem(problem)
    if len(args) > (target is None):
        raise TypeError(f"tune of a problem takes its target and no other arguments, not {len(args)} of them")
    chip = coerce(args[0] if args else target)
    if isinstance(chip, CpuTarget):
        chip.require_runnable()
        if product and problem.batch != 1:
            raise ValueError(f"problem is a batch of {problem.batch}, whose products run by the plan of one on CPUs: "
                             "tune the same problem with batch=1")
    elif threads is not None:
        raise ValueError(f"threads is for CPUs, and {chip.name} is a GPU: it must be None, not {threads}")
    if not problem.flops:
        raise ValueError(f"{problem} is an empty product: there is nothing to tune")
    if product and problem.scales:
        raise ValueError(f"tune measures products without scales, and {problem} has scales={problem.scales!r}")
    on_cpu = isinstance(chip, CpuTarget)
    if despite_load and not (on_cpu and product):
        raise ValueError(f"despite_load is for products on CPUs, not for {problem} on {chip.name}: it must be False")
    time_limit = default_seconds(on_cpu, despite_load) if time_limit is None else time_limit
    candidates = (CPU_CANDIDATES if on_cpu else GPU_CANDIDATES) if candidates is None else candidates
    if not time_limit > 0:
        raise ValueError(f"time_limit must be a positive number of seconds, not {time_limit}")
    forget: Callable[[], object] = engine.forget
    if not isinstance(chip, CpuTarget):
        gpus, on = first_device(chip)
        chip, forget = on.target, gpus.forget
        if product and problem.prologues:
            problem = gpu_lowering.lower(problem, chip)     # what passes leave; kernels evaluate other prologues
    there = space_of(problem, chip, threads)
    store.check_writable()
    model = there.model
    plans = dict.fromkeys((model, there.in_use if there.origin else model, *there.promising(candidates)))
    tell, began = listen or (lambda event: None), time.monotonic()
    _compile(there.kernel, plans, time_limit, tell)
    left = time_limit - (time.monotonic() - began)
    vendor = on_cpu and product if vendor is None else vendor
    run = measured(Job(problem, chip, there.threads, tuple(map(str, plans)), left, vendor, despite_load), tell)
    if despite_load:
        run.notes += [ITS_OWN_TIME, ITS_THREADS][:1 + (there.threads > 1)]
    result = _result(problem, chip if product else there.target, there.shape, there.threads, str(model), run)
    if not result.disturbed:
        store.save(result.rows)
        forget()
    return result


def default_seconds(on_cpu: bool, despite_load: bool = False) -> float:
    """The time limit where none is given."""
    return (2 * CPU_S if despite_load else CPU_S) if on_cpu else GPU_S


def _compile(kernel: Callable[[Any], CompiledGemm], plans: Iterable[Any], time_limit: float, tell: Listener) -> None:
    """Compiles kernels that are not in the cache, in several processes; what fails here fails again when it is tried,
    and is told then."""
    asked: list[Asked] = []
    for plan in plans:
        with suppress(ValueError, NotImplementedError):
            asked += kernel(plan).asked
    compile_all(asked, listen=lambda done, of: tell({"event": "compiled", "done": done, "of": of}),
                patience=COMPILING * time_limit)


# ---- what is remembered

def _result(problem: Gemm | Attention, target: Any, shape: Any, threads: int, model: str, run: Run) -> Result:
    """A row for each plan from the last phase it took part in, and which of them is best."""
    last = run.phases[-1].complete()
    best = None if run.disturbed else winner(last, model)
    roles = {model: "model"} | ({best: "best"} if best else {})
    origin, chip, on_cpu = provenance(), choice.chip(target), isinstance(target, CpuTarget)
    l1d, l2, l3 = (target.l1d, target.l2, target.l3) if on_cpu else (0, target.l2, 0)
    key: tuple[str, int, int, int, str, str, int] = shape.key
    rows = {}
    for plan, (turns, ratio) in run.turns().items():
        rows[plan] = Row(target.name, chip, l1d, l2, l3, *key, plan, roles.get(plan, ""), *measure.spread(turns),
                         *ratio, len(turns), **origin, clock=run.clock)
        if plan == (best or model):
            rows[plan] = dataclasses.replace(rows[plan], vendor=run.vendor, vendor_ratio=run.vendor_ratio)
    in_order: Sequence[Row] = sorted(rows.values(), key=lambda row: (row.plan != (best or model), -row.ratio))
    if model not in rows:
        raise RuntimeError(f"the model's plan {model} was not measured: "
                           + run.failed.get(model, "the time limit was reached"))
    return Result(problem, target.name, threads, model, tuple(in_order), run.failed, tuple(run.notes), run.disturbed,
                  run.certain)
