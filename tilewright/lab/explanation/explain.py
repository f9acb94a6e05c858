"""`tilewright.explain`: why a problem runs by this plan, or what a kernel does, with the arithmetic.

    print(tw.explain(tw.Gemm(1000, 600, 800)))
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tilewright.api.attention import attention, problem_of_call
from tilewright.attention_problem import Attention
from tilewright.ir.program import Function
from tilewright.lab.explanation.record import Alternative, Explanation, Section, cause, unmeasured
from tilewright.lab.tuner.space import Space, here, space_of
from tilewright.plans import asked
from tilewright.plans.common import Cost, NoPlan
from tilewright.plans.invariant import OPTIONS
from tilewright.plans.small_rules import COMPLEX
from tilewright.problem import Gemm
from tilewright.runtime.parametric import device_of
from tilewright.targets import CpuTarget, coerce
from tilewright.targets.machine import MOST_THREADS

EMPTY = "the product is empty: nothing is multiplied"


def explain(what: Any, *args: Any, target: Any = None, plan: Any = None, measure: bool = False, simulate: bool = False,
            threads: int | None = None, algorithm: str | None = None, grid: int | Sequence[int] | None = None,
            **call: Any) -> Explanation:
    """The plan of a problem, or what a kernel does, on `target` (default: this machine): tiles within tiles, bytes by
    level of memory, roofline, the time by cause, what limits it, and the next best plans. The result is data: print it,
    or see its `svg()`, `html()` and `record()`; a notebook shows pictures.

    explain(problem[, target[, plan]])      a Gemm, by the plan that tilewright.matmul runs for contiguous operands; an
                                            Attention, by that of tilewright.attention
    explain(tilewright.attention, q, k, v, causal=True ...)     a call
    explain(kernel)                         a result of tilewright.compile
    explain(function, *args, target=)       a recorded kernel, a block program, or an emitter of tilewright.kernel, on
                                            the arguments of a call, which are copied: counted in the simulator. An
                                            emitter with parameters is compared with its other configurations. It also
                                            says how many operations are fused (a*b + c as one FMA)

    target      a CPU or a GPU, or its name. It must be given for a kernel of CTAs unless its arrays are on a GPU
    plan        the plan to explain, or its text, instead of the one that tilewright.matmul would use
    simulate    of a problem: also simulate a small product by this plan, a few tiles, and count what it moves
    measure     also run it, and say how fast it is; for a problem also read hardware counters where there are any: on
                CPUs by Linux's perf_event_open, on NVIDIA's GPUs by ncu if it is installed. RuntimeError where this
                machine cannot run the target
    threads     on a CPU, how many the plan may use; by default as many as matmul would
    algorithm   that of tilewright.matmul, in place of a plan
    grid        for a recorded kernel of a GPU: as in tilewright.simulate

    Predicted rates of CPUs are computed from the ceilings that `tilewright doctor` measured, or from the model's
    defaults; the text says from which. With `measure`, the ceilings are measured if they were not. TypeError or
    ValueError for other arguments, and for options that do not apply.
    """
    if hasattr(what, "problem") and hasattr(what, "plan"):              # a CompiledGemm
        _only(what, grid=grid, plan=plan, algorithm=algorithm, target=target, arguments=args or None)
        what, args, target, plan = what.problem, (), what.target, what.plan
    if getattr(what, "func", getattr(what, "__wrapped__", what)) is attention:
        target = device_of(args) if target is None else target
        what, args = problem_of_call(what, args, call), ()
    elif call:
        raise TypeError(f"explain takes no argument {next(iter(call))!r}: arguments of a call are those of tilewright."
                        "attention")
    if isinstance(what, (Gemm, Attention)):
        if len(args) > 2:
            raise TypeError(f"explain(problem, target, plan) takes two arguments after the problem, not {len(args)}")
        target, plan = (*args, *(target, plan)[len(args):])
        _only(what, grid=grid)
        return _of_problem(what, target, plan, measure, simulate, threads, algorithm)
    from tilewright.lab.explanation import kernel
    if not kernel.is_one(what):
        asked.problem(what)
    _only(what, plan=plan, algorithm=algorithm, threads=threads, simulate=simulate or None)
    explanation = kernel.explain(what, args, target, grid, measure)
    if not isinstance(what, Function):
        return explanation
    from tilewright.lab.explanation import product
    return product.compared(explanation, what, args, grid, lambda problem, chip: _of_problem(
        problem, chip, None, False, False, None, None))


def _only(what: Any, **options: Any) -> None:
    """TypeError for an option that says nothing about this."""
    for name, value in options.items():
        if value is not None:
            raise TypeError(f"{name} says nothing about {getattr(what, 'name', what)!s}: it is for "
                            + ("kernels" if name == "grid" else "problems") + ", and must be left out here")


def _of_problem(problem: Any, target: Any, plan: Any, measure: bool, simulate: bool, threads: int | None,
                algorithm: str | None) -> Explanation:
    from tilewright.lab.explanation import attention, cpu, gpu, measured, simulated
    chip, product = coerce(target), isinstance(problem, Gemm)
    plan = asked.plan(plan, chip, not product)
    on_cpu = isinstance(chip, CpuTarget)
    words: Any = attention if not product else cpu if on_cpu else gpu
    if measure:
        here(chip)                          # RuntimeError before anything is explained
    if product:
        asked.algorithm(algorithm, plan, chip)
        threads = threads or (min(plan.threads, MOST_THREADS) if on_cpu and plan else None)
    else:
        asked.only_products(algorithm=algorithm, simulate=simulate, measure=measure)
    there = space_of(problem, chip, threads, algorithm)
    shape, chosen, title = there.shape, plan or there.in_use, words.title(there)
    if not problem.flops:
        return Explanation(problem, chip, chosen, title, EMPTY, shape=shape,
                           sections=(Section("plan", (str(chosen), EMPTY)),))
    origin = "given" if plan else words.origin(there)
    sections = words.opening(there, chosen, origin)
    if violations := tuple(chosen.violations(shape, there.target)):
        return Explanation(problem, chip, chosen, title, origin, violations, shape=shape,
                           sections=(*sections, Section("cannot run", violations)))
    basis = there.basis(measure)
    cost = basis.cost(shape, chosen, chip)
    sections = *sections, *words.sections(there, chosen, cost)
    if product and not algorithm and (invariant := tuple(_invariant(there, chosen, cost, basis, words))):
        sections = *sections, Section("same bits", invariant)
    considered, alternatives = _alternatives(there, chosen, cost, basis, words)
    explained = Explanation(
        problem, chip, chosen, title, origin, (),
        there.flops, words.tiles(there, chosen),
        words.levels(there, chosen, cost, basis), words.time(there, chosen, cost, basis), alternatives=alternatives,
        considered=considered, refused=words.refused(there), sections=sections, shape=shape, cost=cost,
        basis=basis if on_cpu else None)
    if simulate:
        explained = simulated.on_cpu(explained, there.planned._replace(plan=chosen)) if on_cpu else simulated.on_gpu(
            explained)
    if not measure:
        return explained
    return unmeasured(explained) or (cpu.measured(explained, there) if on_cpu else measured.product(explained))


def _invariant(there: Space, chosen: Any, cost: Cost, basis: Any, words: Any) -> Iterator[str]:
    """What a product with the same bits for any number of threads, or of rows, costs: for each option of matmul the
    plan, and its time beside the chosen one's."""
    able = there.shape.a not in COMPLEX if there.planned is None else not there.shape.semiring
    for option, invariant in OPTIONS.items() if able else ():
        try:
            plan, seconds = words.invariant(there, invariant, basis)
        except NoPlan:
            yield f"{option}=True: no plan"
            continue
        slower = seconds / cost.seconds - 1
        said = f"{100 * abs(slower):.1f} % {'slower' if slower > 0 else 'faster'} by the model"
        yield f"{option}=True: " + ("the same plan" if plan == chosen else f"{plan}, {said}")


def _alternatives(there: Space, chosen: Any, ours: Cost, basis: Any, words: Any
                  ) -> tuple[int, tuple[Alternative, ...]]:
    """How many other plans there are, and a few of them: the best, and the best of other kinds."""
    others = [other for other in there.ranked() if other != chosen]
    shown = []
    for other in words.various(chosen, others):
        theirs = basis.cost(there.shape, other, there.chip)
        shown.append(Alternative(other, theirs.seconds / ours.seconds - 1,
                                 *cause(ours, theirs, overlapping=there.overlapping)))
    return len(others), tuple(sorted(shown, key=lambda each: each.slower))
