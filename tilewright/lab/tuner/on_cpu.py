"""The plans of a product as calls on this processor, for the tuner: what a user's call of matmul would run.

A small product takes less time than a call through Python, and matmul runs some plans without Python at all. So each
plan is put in use before its turn, as if it were stored, and the call is matmul's own. Products with a semiring, an
epilogue or prologues are always called so: by `contract` or by matmul.
"""
from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.compiled.cpu import CpuKernel
from tilewright.lab.measure import check, evaluated, measure, operands, timing
from tilewright.lab.measure.measure import Rules
from tilewright.lab.tuner.contenders import REFERENCE, Job, OnProcessor, beside
from tilewright.plans import epilogues, prologues, semirings
from tilewright.plans.cpu import CpuPlan
from tilewright.plans.measured import choice
from tilewright.problem import Gemm
from tilewright.runtime.cpu import engine
from tilewright.targets import detect

if TYPE_CHECKING:
    from tilewright.lab.measure.process import Emit

DESPITE_LOAD = 6, 9, 100        # Contenders.rounds, where others disturb them
SHORT_S = 1e-3          # a call that takes longer is the engine's: a hundredth of it is spent on checks


class OnCpu(OnProcessor):
    """Calls of matmul, with the plan in use, where a product takes so little time that the call counts; of the engine
    elsewhere, which is as fast."""

    def __init__(self, job: Job) -> None:
        self.job, self.o = job, operands.make(job.problem)
        p, here = job.problem, _is_here(job)
        self.functions = bool(p.fused or p.semiring)
        self.rules = Rules.choose(job.threads)
        if job.despite_load:
            self.rounds = DESPITE_LOAD
        self.reference: Any = (evaluated if self.functions else check).Reference(self.o)
        self.planned = engine.plan_problem(p, job.target, job.threads)      # the model's: nothing is stored
        if self.functions and not here:
            raise ValueError(f"{p} is measured by the calls that users make, which on this machine are for "
                             f"{detect().name} and not for {job.target.name} as the target describes it")
        self.by_matmul = here

    def tried(self, name: str) -> list[measure.Call]:
        outcome = Tried(self, None if name in (REFERENCE, str(self.planned.plan)) else name)
        self.o.poison()
        outcome.ready()
        if name == REFERENCE and self.by_matmul and not self.functions:
            began = time.perf_counter()
            (call, args), = outcome
            call(*args)
            self.by_matmul = outcome.switches = time.perf_counter() - began < SHORT_S
        return outcome

    def wrong(self) -> str | None:
        wrong: str | None = self.reference.wrong(self.o.c)
        return wrong

    def track(self, calls: Sequence[measure.Call]) -> measure.Track:
        assert isinstance(calls, Tried)
        return InUse(calls, time.process_time if self.job.despite_load else time.perf_counter)

    def watch(self) -> Callable[[], bool]:
        return (lambda: False) if self.job.despite_load else super().watch()

    def compare(self, job: Job, calls: Sequence[measure.Call], emit: Emit) -> None:
        """With NumPy, which multiplies by a BLAS what has no other sums than the operands'."""
        p, o = job.problem, self.o
        emit("clock", hz=timing.best_rate(partial(timing.clock, job.target), [0], timing.QUICK))
        if job.vendor and not self.functions and p.a == p.b == p.out and p.a in ("f32", "f64", "c64", "c128"):
            beside(self, calls, f"numpy {np.__version__}", Tried.checked(self, (np.matmul, (o.a, o.b, o.c))), emit)

    def restore(self) -> None:
        choice.put_in_use(self.planned.shape, self.planned.target, None)
        engine.forget()


class Tried(list[measure.Call]):
    """The call of a plan, which `ready` puts in use; None: of the model's."""

    def __init__(self, by: OnCpu, plan: str | None) -> None:
        self.by, self.plan, planned_call = by, plan, by.planned
        if plan and (wrong := CpuPlan.parse(plan).violations(planned_call.shape, planned_call.target)):
            raise ValueError(" ".join(wrong))       # else matmul would do without it
        if by.functions:
            super().__init__([_by_functions(by.o)])
        elif by.by_matmul:
            from tilewright.api.builtin import matmul
            super().__init__([_by_matmul(by.o, matmul)])
        else:
            planned = planned_call if plan is None else planned_call._replace(plan=CpuPlan.parse(plan))
            super().__init__([_directly(by.o, planned, by.job)])
        self.switches = by.by_matmul

    @classmethod
    def checked(cls, by: OnCpu, call: measure.Call) -> Tried:
        """Another library's."""
        job = cls(by, None)
        job[:], job.switches = [call], False
        return job

    def ready(self) -> None:
        """Call it until it does what it will do from then on: the first call makes a recipe, and may leave a record."""
        (call, args), planned = self[0], self.by.planned
        if self.switches:
            choice.put_in_use(planned.shape, planned.target, self.plan)
            engine.forget()
            call(*args)
            if self.by.functions and self.plan and not choice.was_asked(planned.shape, planned.target):
                raise RuntimeError(f"the call did not ask for a plan of {planned.shape}, by which this one is kept")
        call(*args)


class InUse(measure.CallTrack):
    """Turns of a call whose plan is put in use before each."""

    def __init__(self, calls: Tried, clock: measure.Clock) -> None:
        super().__init__(calls, clock)
        self.tried = calls

    def calibrate(self, rules: Rules) -> float:
        self.tried.ready()
        return super().calibrate(rules)

    def warm_up(self, rules: Rules, per_call: float) -> None:
        if self.tried.switches:
            self.tried.ready()
        super().warm_up(rules, per_call)


def _by_matmul(o: operands.Operands, matmul: Any) -> measure.Call:
    p = o.problem
    if p == Gemm(p.m, p.n, p.k, p.a, p.b, layout=p.layout, batch=p.batch):      # NumPy would give this result
        return matmul, (o.a, o.b, o.c)
    return partial(matmul, out_dtype=p.out), (o.a, o.b, o.c)


def _by_functions(o: operands.Operands) -> measure.Call:
    """A product with functions, which leaves its first matrix in C."""
    from tilewright.api.builtin import matmul
    from tilewright.api.semirings import contract
    p = o.problem
    how: dict[str, Any] = {"operands": o.named or None}
    call: Callable[..., Any] = matmul
    args: tuple[Any, ...] = o.a, o.b
    if p.epilogue:
        epilogue = epilogues.read(p.epilogue)
        kinds = [p.out if kind == epilogues.DEFAULT else kind for kind in epilogue.results]
        how |= {"epilogue": epilogue, "out_dtype": tuple(kind for i, kind in enumerate(kinds) if not epilogue.axis(i))}
    if p.semiring:
        call, args = contract, (semirings.read(p.semiring), *args)
    how |= {f"prologue_{role}": prologues.read(getattr(p, f"prologue_{role}")) for role in p.prologues}
    epilogue = call(*args, **how)       # in formats and shapes that the call decides
    results = epilogue if isinstance(epilogue, tuple) else (epilogue,)
    object.__setattr__(o, "c", results[0])
    return partial(call, **how, out=epilogue), args


def _directly(o: operands.Operands, planned: engine.Planned, job: Job) -> measure.Call:
    """The engine, without matmul's checks."""
    p = o.problem
    if p.a == p.b == p.out == planned.shape.dtype:
        return (lambda: engine.gemm(o.a, o.b, o.c, threads=job.threads, plan=planned.plan, target=job.target)), ()
    return CpuKernel(o.problem, job.target, planned), (o.a, o.b, o.c)


def _is_here(job: Job) -> bool:
    """Whether matmul in this process multiplies for the job's target."""
    here = detect()             # which sees one CPU, if this process is bound to one
    return job.target == dataclasses.replace(here, cores=job.target.cores, smt=job.target.smt)
