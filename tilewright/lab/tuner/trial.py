"""One configuration of a user's kernel on a target: legal? compiled, counted in the simulator, priced, verified.

Nothing here needs the chip. A configuration that cannot run, or that does wrong in the simulator, is `refused`, with
the stage that found it: check, emitter, gate, assembler, simulator, result. What is found is kept in the cache, under
the code that was recorded.
"""
from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import simulator
from tilewright.compiler import cache, gate, lld, llvm, ptxas, sources
from tilewright.ir.program import written
from tilewright.ir.types import Pointer
from tilewright.lab.measure import launch_counts as counts
from tilewright.lab.tuner.bound import Launch
from tilewright.runtime.parametric import Refused
from tilewright.simulator import Fault
from tilewright.targets import CpuTarget

if TYPE_CHECKING:
    from tilewright.ir.program import Function
    from tilewright.runtime.parametric import Parametric

ULPS = 1000             # of the reference's largest number: what a result may be wrong by
TILES = 1               # of the largest configuration, along each size of the problem on which results are compared


@dataclass(frozen=True)
class Trial:
    """A launch with its counts; registers and bytes of shared memory as the assembler gives them."""
    configuration: str
    refused: tuple[str, str] | None = None              # stage and sentence
    launch: Launch = field(default_factory=lambda: Launch({}))
    grid: tuple[int, ...] = (1,)
    registers: int = 0
    spills: int = 0
    shared: int = 0


@dataclass(frozen=True)
class Task:
    """A kernel with the arguments of a call, by name."""
    kernel: Parametric
    target: Any
    named: Mapping[str, Any]

    def configuration(self, text: str) -> dict[str, Any]:
        return self.kernel.parse(text)


def trial_of(task: Task, text: str) -> tuple[Trial, Any]:
    """A configuration up to its counts, and its code: artefact.Code of a GPU's, bytes of a CPU's; None if refused."""
    configuration = task.configuration(text)
    try:
        function = recorded(task, configuration)
    except Refused as why:
        return Trial(text, ("check" if why.__cause__ is None else "emitter", str(why))), None
    if refusals := list(dict.fromkeys(gate.refusals(function, task.target))):
        return Trial(text, ("gate", " ".join(refusals))), None
    sizes = task.kernel.sizes(configuration, task.named, task.target)
    given = {name: getattr(x, "shape", None) or repr(x) for name, x in task.named.items()}
    key = cache.key(sources.digest(__name__), task.kernel.digest(task.target, **configuration), task.target.code_key,
                    text, sizes, given, task.kernel.grid(task.target, configuration, task.named))
    kept = cache.fetch(key, lambda: pickle.dumps(_made(task, text, configuration, function)))
    refusals = pickle.loads(kept)
    return refusals[0], refusals[1]


def recorded(task: Task, configuration: Mapping[str, Any]) -> Function:
    """The kernel, if the user's checks and the emitter let it pass; else Refused."""
    if reasons := task.kernel.wrong(task.target, configuration, task.named):
        raise Refused(" ".join(reasons))
    return task.kernel.function(task.target, **configuration)


def _made(task: Task, text: str, configuration: Mapping[str, Any], function: Function) -> tuple[Trial, Any]:
    try:
        trial, code, loop = _compiled(task, text, configuration, function)
    except (ValueError, NotImplementedError) as error:          # the assembler's own words
        return Trial(text, ("assembler", str(error))), None
    if trial.refused:
        return trial, None
    sizes = task.kernel.sizes(configuration, task.named, task.target)
    ran: dict[tuple[int, ...], Any] = {}

    def counts_at(small: Mapping[str, int]) -> Any:
        key = tuple(small.values())
        if key not in ran:
            args = counted(task, configuration, function, small)
            ran[key] = counts.run(function, list(args.values()), task.kernel.grid(task.target, configuration, args),
                                  task.target.name)
        return ran[key]

    def ctas(small: Mapping[str, int]) -> int:
        return prod(extents(task.kernel.grid(task.target, configuration, {**task.named, **small})))

    all_sizes = {name: task.named[name] for name in sizes}
    try:
        scaled = counts.scaled(counts_at, all_sizes, sizes, ctas)
        nest = counts.nest(counts_at, all_sizes, sizes, ctas) if isinstance(task.target, CpuTarget) else ()
    except Fault as fault:
        return replace(trial, refused=("simulator", str(fault))), None
    scaled["integer"] *= counts.overhead(function, loop)        # type: ignore[assignment]
    return replace(trial, launch=replace(
        trial.launch, counts=dict(scaled), bytes=launch_bytes(function, task.named), nest=nest,
        double=counts.multiplies_doubles(function))), code


def _compiled(task: Task, text: str, configuration: Mapping[str, Any], function: Function) -> tuple[Trial, Any, str]:
    """What the assembler says, the code, and its main loop."""
    from tilewright.compiled.compile import code_class
    chip = task.target
    compiled = code_class(chip)(function, chip)
    loop, used = "", None
    try:
        hot = compiled.loop()
        loop = hot.text
    except ValueError:                                  # there is none
        hot = None
    if isinstance(chip, CpuTarget):
        chains, spilled = (hot.fma, hot.hot_spills / max(hot.fma, 1)) if hot else (counts.MORE * 4, 0.0)
        return Trial(text, None, Launch({}, chains=max(chains, 1), spilled=spilled),
                     registers=hot.registers if hot else 0, spills=hot.spills if hot else 0), llvm.object_code(
                         function, chip), loop
    assert function.threads is not None
    threads, shared = prod(function.threads), function.shared_bytes
    code = _code(compiled)
    try:
        used = compiled.resources
    except ptxas.Missing:                               # the driver would know
        pass
    registers = used.registers if used else 32
    resident = chip.occupancy(threads, registers, shared)
    grid = extents(task.kernel.grid(chip, configuration, task.named))
    trial = Trial(text, None, Launch({}, prod(grid), -(-threads // function.warp), resident), grid,
                  used.registers if used else 0, used.spills if used else 0, shared)
    if not resident:
        trial = replace(trial, refused=("assembler", f"a CTA of {threads} threads with {registers} registers each and "
                                        f"{shared:,} bytes of shared memory does not fit on {chip.name}"))
    return trial, code, loop


def _code(found: Any) -> Any:
    """What a driver loads; None where AMD's linker is missing, without which nothing but launching is lost."""
    try:
        return found.loadable
    except lld.Missing:
        return None


def extents(grid: Any) -> tuple[int, ...]:
    return (1,) if grid is None else tuple(map(int, grid)) if isinstance(grid, Sequence) else (int(grid),)


# ---- small arguments

def counted(task: Task, configuration: Mapping[str, Any], function: Function, sizes: Mapping[str, int]
            ) -> dict[str, Any]:
    """The arguments of a call with these sizes in the first rows of the call's own arrays, so that rows are as far
    apart as there: parts of sectors count as there. Arrays that the kernel writes, and those on a GPU, are zeros."""
    wrote, arrays = written(function), {**task.named, **sizes}
    small = task.kernel.ask("arrays", target=task.target, **{**configuration, **arrays}) or {}
    for name, value in function.params:
        x, shape = arrays[name], small.get(name)
        if isinstance(value.type, Pointer) and hasattr(x, "shape"):
            full = tuple(x.shape)
            rows = min(shape[0], *full[:1]) if isinstance(shape, tuple) and len(shape) == len(full) > 0 else None
            if isinstance(x, np.ndarray) and name not in wrote:
                arrays[name] = x[:rows]
            else:
                arrays[name] = np.zeros(full if rows is None else (rows, *full[1:]), value.type.element.numpy)
    return arrays


def arguments(task: Task, configuration: Mapping[str, Any], function: Function, sizes: Mapping[str, int]
              ) -> dict[str, Any]:
    """The arguments of a call with these sizes, by name, in arrays that are no larger than they must be: parts of the
    call's, or random numbers where those are on a GPU. Arrays that the kernel writes are copies."""
    kernel, wrote = task.kernel, written(function)
    small = {**task.named, **sizes}
    given = kernel.ask("arrays", target=task.target, **{**configuration, **small}) or {}
    values: dict[str, Any] = {}
    rng = np.random.default_rng(0)
    for name, value in function.params:
        x = given.get(name, small[name])
        if isinstance(value.type, Pointer):
            x = _array(task.named[name], x if isinstance(x, tuple) else None, value.type.element, rng)
            x = x.copy() if name in wrote else x
        values[name] = x
    return values


def _array(x: Any, shape: tuple[int, ...] | None, element: Any, rng: np.random.Generator) -> Any:
    shape = tuple(x.shape) if shape is None else shape
    if isinstance(x, np.ndarray) and x.ndim == len(shape) and all(a >= b for a, b in zip(x.shape, shape)):
        return np.ascontiguousarray(x[tuple(map(slice, shape))])
    if isinstance(x, np.ndarray) and x.size >= prod(shape):
        return np.ascontiguousarray(x).ravel()[:prod(shape)].reshape(shape)
    if element.is_float:
        return rng.standard_normal(shape).astype(element.numpy)
    return rng.integers(0, 2, shape).astype(element.numpy)


# ---- verified

def common_sizes(task: Task, texts: Sequence[str]) -> dict[str, int]:
    """Sizes that all of these configurations can do: the largest tile, and what the call's own size has beyond
    whole ones, so that a kernel without tests at the edges is not asked for them unless the call does."""
    tiles: dict[str, int] = {}
    for text in texts:
        for name, extent in task.kernel.sizes(task.configuration(text), task.named, task.target).items():
            tiles[name] = max(tiles.get(name, 1), extent)
    return {name: min(TILES*extent + task.named[name] % extent, task.named[name]) for name, extent in tiles.items()}


def verified(task: Task, text: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    """What the kernel writes on this small problem, in the simulator. Fault where it does wrong."""
    configuration = task.configuration(text)
    function = task.kernel.function(task.target, **configuration)
    args = arguments(task, configuration, function, sizes)
    grid = task.kernel.grid(task.target, configuration, args)
    simulator.run(function, *args.values(), grid=grid, target=task.target.name)
    return {name: args[name] for name in written(function) if name in args}


def expected(task: Task, text: str, sizes: Mapping[str, int]) -> dict[str, Any] | None:
    """What the user's reference says of the same; None without one."""
    if "reference" not in task.kernel.options:
        return None
    configuration = task.configuration(text)
    args = arguments(task, configuration, task.kernel.function(task.target, **configuration), sizes)
    reference = task.kernel.ask("reference", target=task.target, **configuration, **args)
    if not isinstance(reference, Mapping) or any(name not in args for name in reference):
        raise ValueError(f"{task.kernel.name}: reference must return arrays by the names of arguments, such as "
                         f"{{'c': a @ b}}, not {type(reference).__name__}")
    return dict(reference)


def differs(found: Mapping[str, Any], wanted: Mapping[str, Any], tolerance: float | None) -> str:
    """What is wrong with results, as a sentence; nothing if they are right."""
    for name, right in wanted.items():
        if name not in found:
            return f"the kernel does not write {name}"
        mine, right = found[name], np.asarray(right)
        if mine.size != right.size:
            return f"{name} has {mine.size} elements, and the reference {right.size}"
        kind = mine.dtype
        ours, theirs = (np.asarray(x, np.float64).ravel() for x in (mine, right))
        share = tolerance if tolerance is not None else ULPS * float(np.finfo(kind).eps) if kind.kind == "f" else 0.0
        error = np.abs(ours - theirs)
        error[np.isnan(ours) & np.isnan(theirs)] = 0
        limit = share * max(float(np.nanmax(np.abs(theirs), initial=0.0)), 1e-30)
        if not (error <= limit).all():
            at = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
            place = ", ".join(map(str, np.unravel_index(at, mine.shape)))
            return f"{name}[{place}] is {ours[at]:.9g}, and the reference has {theirs[at]:.9g}"
    return ""


def launch_bytes(function: Function, named: Mapping[str, Any]) -> int:
    """What memory gives and takes at the least: each array once, and once more where it is written."""
    wrote = written(function)
    return sum(prod(named[name].shape) * value.type.element.bytes * (1 + (name in wrote)) for name, value in
               function.params if isinstance(value.type, Pointer) and hasattr(named[name], "shape"))
