"""`tilewright.tune` of a user's kernel: every configuration → legal → counted → ranked → verified → timed → stored.

    trial.py        what is known of a configuration without the chip, in a pool of processes
    tuner/bound.py  the least time that its counts allow, by which configurations are ranked
    launches.py     the first in rank as calls that take turns, in the child process that measures plans too
    plans/measured/kernels.py   what is kept of it, and what the next call of the kernel uses
"""
from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tilewright import targets
from tilewright.ir import arguments as given
from tilewright.ir.program import Function, written
from tilewright.ir.types import Pointer
from tilewright.lab.measure import gpu_probes, launch_counts as counts, probes
from tilewright.lab.measure.measure import spread
from tilewright.lab.tuner import trial as trials
from tilewright.lab.tuner.bound import Launch, bound
from tilewright.lab.tuner.child import REFERENCE, against
from tilewright.lab.tuner.launches import KernelJob
from tilewright.lab.tuner.running import Listener, measured, provenance
from tilewright.lab.tuner.space import here
from tilewright.lab.tuner.trial import Task, Trial
from tilewright.lab.tuner.tuned import Contender, Tuned
from tilewright.plans.common import Cost
from tilewright.plans.measured import choice, store
from tilewright.plans.measured.kernels import KernelRow
from tilewright.runtime.cpu.calls import NUMBERS
from tilewright.runtime.parametric import Parametric, device_of, spelled
from tilewright.simulator import Fault
from tilewright.targets import CpuTarget

SECONDS = 30.0                  # of timing, unless said
NONE = "no configuration can run"


def tune(kernel: Parametric, args: Sequence[Any], target: Any = None, *, time_limit: float | None = None,
         candidates: int = 12, jobs: int | None = None, listen: Listener | None = None) -> Tuned:
    """Tunes a kernel, as tilewright.tune says."""
    listen = listen or (lambda event: None)
    chip = device_of(args) if target is None else targets.coerce(target)
    try:
        chip, why = here(chip), ""
    except RuntimeError as error:
        why = str(error).split(". Such code")[0].rstrip(".") + "."
    task = Task(kernel, chip, kernel._names(chip, args))
    if kernel.recorded(chip).programs:
        raise NotImplementedError(f"{kernel.name} is a block program, which is tuned for GPUs: on {chip.name} a call "
                                  "takes the emitter's defaults")
    time_limit = SECONDS if time_limit is None else time_limit
    if not time_limit > 0:
        raise ValueError(f"time_limit must be a positive number of seconds, not {time_limit}")
    if not why:
        store.check_writable()
    texts = [spelled(each) for each in kernel.configurations]
    refused: dict[str, tuple[str, str]] = {}
    contenders: list[Contender] = []
    codes: dict[str, Any] = {}
    for one, code in every(task, trials.trial_of, texts, jobs, listen):
        if one.refused:
            refused[one.configuration] = one.refused
        else:
            codes[one.configuration] = code
            contenders.append(Contender(one, priced(task, one)))
    contenders.sort(key=lambda each: each.cost.seconds)
    in_use = spelled(kernel._configuration(chip, task.named))
    finalists = [each.configuration for each in contenders[:candidates]]
    if in_use in codes and in_use not in finalists:
        finalists.append(in_use)
    for text, wrong in _verified(task, finalists, jobs, listen).items():
        refused[text] = wrong
    contenders = [each for each in contenders if each.configuration not in refused]
    if not contenders:
        reasons = "; ".join(f"{text}: {stage}: {why}" for text, (stage, why) in list(refused.items())[:4])
        raise RuntimeError(f"{NONE} of {kernel.name} on {chip.name}: {reasons}")
    finalists = [text for text in finalists if text not in refused]
    result = Tuned(kernel.name, chip.name, kernel.problem_class(task.named, chip), tuple(contenders), refused,
                   spelled(kernel.defaults), kernel.parse, (why,) if why else ())
    return result if why else _timed(task, result, finalists, in_use, codes, time_limit, listen)


def priced(task: Task, t: Trial) -> Cost:
    """The least time that a configuration takes."""
    return expected(task.kernel.function(task.target, **task.configuration(t.configuration)), t.launch, task.target)


def expected(function: Function, launch: Launch, chip: Any) -> Cost:
    """The bound of a kernel's launch, with the ceilings that were measured on this machine, if they are known."""
    dtype = "f64" if launch.double else "f32"
    if isinstance(chip, CpuTarget):
        known = probes.basis(chip).ceilings
        return bound(launch, chip, known.model_ceilings(chip, dtype) if known else None)
    measured = gpu_probes.basis(chip).ceilings
    chip = measured.rescaled(chip, dtype) if measured else chip
    return bound(replace(launch, peak=counts.peak(function, chip, launch.double)[0]), chip)


# ---- many configurations at once

_task: tuple[Any, Task] | None = None


def _work(text: str) -> Any:
    assert _task is not None
    work, task = _task
    return work(task, text)


def every(task: Task, work: Callable[[Task, str], Any], texts: Sequence[str], jobs: int | None, listen: Listener
          ) -> Iterator[Any]:
    """work(task, text) of each, in forked processes where there are several CPUs: an emitter may be any function, and
    a fork has it."""
    global _task
    count = min(jobs or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, len(texts))
    said = {"event": "prepared" if work is trials.trial_of else "verified", "of": len(texts)}
    if count <= 1:
        for text in texts:
            yield work(task, text)
            listen(said)
        return
    _task = work, task
    try:
        with warnings.catch_warnings():         # Python 3.12 warns of forks beside threads; ours are safe (forks.py)
            warnings.simplefilter("ignore", DeprecationWarning)
            with ProcessPoolExecutor(count, multiprocessing.get_context("fork")) as pool:
                for outcome in pool.map(_work, texts):
                    yield outcome
                    listen(said)
    except BrokenProcessPool:
        raise RuntimeError(f"a process that prepared configurations of {task.kernel.name} ended: LLVM, or the emitter, "
                           "ends it; jobs=1 shows where") from None
    finally:
        _task = None


def _verified(task: Task, texts: Sequence[str], jobs: int | None, listen: Listener) -> dict[str, tuple[str, str]]:
    """What is wrong with each of these, by results on one small problem: by the reference, or else by the first."""
    if not texts:
        return {}
    sizes = trials.common_sizes(task, texts)
    wanted = trials.expected(task, texts[0], sizes)
    wrong: dict[str, tuple[str, str]] = {}
    for text, (trial, fault) in zip(texts, every(task, partial(_one, sizes), texts, jobs, listen)):
        if fault:
            wrong[text] = "simulator", fault
            continue
        wanted = trial if wanted is None else wanted
        if said := trials.differs(trial, wanted, task.kernel.tolerance):
            wrong[text] = "result", said
    return wrong


def _one(sizes: Mapping[str, int], task: Task, text: str) -> tuple[Any, str]:
    try:
        return trials.verified(task, text, sizes), ""
    except Fault as fault:
        return None, str(fault)


# ---- timed

def _timed(task: Task, result: Tuned, finalists: list[str], in_use: str, codes: dict[str, Any], time_limit: float,
           listen: Listener) -> Tuned:
    kernel, chip = task.kernel, task.target
    functions = {text: kernel.function(chip, **kernel.parse(text)) for text in {*finalists, in_use}}
    if in_use not in codes:                     # it cannot run here: then the first in rank is what others are held to
        in_use = finalists[0]
    grids = {text: trials.extents(kernel.grid(chip, kernel.parse(text), task.named)) for text in functions}
    function = functions[in_use]
    if isinstance(chip, CpuTarget) and function.result is not None:
        raise ValueError(f"{kernel.name} returns {function.result}, and tune compares arrays that a kernel writes")
    flops = int(result.contenders[0].trial.launch.counts.get("flops", 0))
    job = KernelJob(kernel.name, chip, tuple(finalists), time_limit, in_use,
                    {text: codes[text] for text in functions if text in codes}, grids,
                    given_to_child(task.named, function),
                    tuple(name for name in written(function) if name in task.named), kernel.tolerance,
                    {text: recorded.name for text, recorded in functions.items()}, flops)
    run = measured(job, listen)
    origin, source = provenance(), kernel.source(chip)
    costs = {recorded.configuration: recorded.cost.seconds for recorded in result.contenders}
    phases = [phase.complete() for phase in run.phases]
    last = {text: ratio.median for text, ratio in against(REFERENCE, phases[-1]).items() if text != REFERENCE}
    best = max(last, key=last.__getitem__)
    regret = {text: 1 / ratios.median - 1 for seconds in phases for text, ratios in against(best, seconds).items()}
    kept = {text: KernelRow(chip.name, choice.chip(chip), kernel.name, source, result.problem, text,
                            "best" if text == best else "model" if text == finalists[0] else "", costs[text],
                            *spread(turns), *ratios, len(turns), **origin)
            for text, (turns, ratios) in run.turns().items()}
    if not run.disturbed:
        store.save(kept.values(), store.KERNELS)
        kernel.forget()
    contenders = tuple(Contender(recorded.trial, recorded.cost, kept.get(recorded.configuration),
                                 run.failed.get(recorded.configuration, ""), regret.get(recorded.configuration))
                       for recorded in result.contenders)
    return replace(result, contenders=contenders, notes=tuple(run.notes), disturbed=run.disturbed)


def given_to_child(named: Mapping[str, Any], function: Function) -> tuple[tuple[str, Any, Any], ...]:
    """Arguments as the child takes them. Arrays of a GPU are copied here."""
    arguments = []
    for name, value in function.params:
        x, t = named[name], value.type
        kind = NUMBERS.get("i64" if isinstance(t, Pointer) else str(t))
        if not isinstance(t, Pointer):
            arguments.append((name, kind, given.number(name, t, x).item()))
        else:
            arguments.append((name, kind, _on_host(name, x)))
    return tuple(arguments)


def _on_host(name: str, x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return np.ascontiguousarray(x)
    from tilewright.runtime.gpu import arrays
    library = arrays.library_of(x)
    if library is None:
        raise TypeError(f"{name} must be an array, NumPy's or one in a GPU's memory, not {type(x).__name__}")
    look = library.look(x, name, 0)
    host = np.empty(look.shadow.shape, look.shadow.dtype)
    library.platform.driver.Memory.library.copy(host.ctypes.data, look.pointer, host.nbytes, back=True)
    return host
