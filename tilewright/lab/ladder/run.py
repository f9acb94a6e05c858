"""A step of any ladder, by name: its code for a target, and a product by it in the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilewright import formats, simulator
from tilewright.atoms.amd import SCALED, Mfma
from tilewright.compiled import compile
from tilewright.inspect.resources import amd_body
from tilewright.lab.ladder import gpu_tensor
from tilewright.lab.ladder.gpu11_texture import aligned
from tilewright.lab.ladder.gpu13_dispatch import choose
from tilewright.lab.ladder.steps import GPU_STEPS, TENSOR_STEPS, Choice, TensorStep, step
from tilewright.simulator.occupancy import assembled
from tilewright.targets import AmdTarget, CpuTarget, GpuTarget, Target

if TYPE_CHECKING:
    from tilewright.compiled.base import Compiled
    from tilewright.ir import Function
    from tilewright.problem import Gemm

Data = Literal["integers", "random"]
DATA: tuple[Data, ...] = ("integers", "random")
Array = NDArray[Any]
FALLBACK = "stored"  # for the step "texture": the GPU step before it, which takes every matrix

_EPS = float(np.finfo(np.float32).eps)
# By the first letters of an opcode, the first that fits: matrix, vector and scalar instructions, and those of memory
_KINDS = {"v_mfma": "mfma", "v_": "vector", "s_": "scalar", "global_load": "load", "global_store": "store"}


@cache
def compiled(name: str, target: Target, dtype: str = "f32") -> Compiled:
    """The code of a step. ValueError for a name that is none on the target's ladder, and for "dispatch", which has no
    code of its own. `dtype`: of a CPU's, f32 or f64."""
    known = step(name, target)
    if isinstance(known, Choice):
        raise ValueError(f"step {known.title} has no kernel of its own: it launches {' or '.join(known.among)}; name "
                         "one of them")
    if isinstance(target, AmdTarget):
        return compile.compiled(known.emit(target.name), target, (1,))
    if isinstance(target, GpuTarget):
        return compile.compiled(known.emit(), target)
    return compile.compiled(known.emit(target, dtype, *known.blocks(target, dtype, 1)), target)


def instructions(code: Compiled) -> list[tuple[str, str]]:
    """(instruction, kind) for each instruction of an AMD step; kinds are "mfma" (matrix), "vector", "scalar", "load"
    and "store"."""
    body = [line for line in amd_body(code.asm, code.function.name) if not line.endswith(":")]
    return [(line, next(kind for prefix, kind in _KINDS.items() if line.startswith(prefix)))
            for line in body[:body.index("s_endpgm") + 1]]


def simulate(name: str, problem: Gemm, target: CpuTarget | GpuTarget, a: Array, b: Array, c: Array,
             beta: float = 0.0) -> tuple[simulator.Report, str]:
    """C = A B + beta C by a step in the simulator: what it did, and a sentence where another step took its place, else
    "". A CPU's steps know no beta. ValueError if the step cannot multiply these; simulator.Fault for a wrong access."""
    known = step(name, target)
    key = f"{problem.a}-{problem.b}-{problem.out}"
    if problem.layout != known.layout or key not in [x if "-" in x else f"{x}-{x}-{x}" for x in known.formats]:
        raise ValueError(f"step {known.title} is for --dtype {' or '.join(known.formats)} --layout {known.layout}")
    if isinstance(target, CpuTarget):
        if beta:
            raise ValueError("the steps of the CPU ladder compute C = A B: they have no --beta")
        return _on_cpu(known, problem, target, a, b, c), ""
    note = ""
    m, n, k = sizes = problem.m, problem.n, problem.k
    if isinstance(known, TensorStep):
        return tensor_step(name, target, a, b.T, c, beta), ""
    if isinstance(known, Choice):
        name = choose(target, m, n, k, 0, k, 0, n)
        note = f"{known.title} chooses step {GPU_STEPS[name].title}"
    elif known.textures and not aligned(m, n, k, 0, k, 0, n):
        name, note = FALLBACK, (f"step {known.title} reads A and B in pieces of 16 bytes, for which n and k must be "
                                f"multiples of 4, and all of m, n and k more than 0; step {GPU_STEPS[FALLBACK].title} "
                                "takes its place, as in step 13 dispatch")
    chosen, function = GPU_STEPS[name], compiled(name, target).function
    operands = (a.ravel(), b.ravel()) if chosen.textures else (a, b)
    report = simulator.run(function, *sizes, 1.0, operands[0], k, operands[1], n, beta,
                           c if beta else simulator.uninitialised(c), n, grid=chosen.grid(m, n), target=target.name)
    report.compiled = partial(assembled, function, target)
    return report, note


def integers(rows: int, columns: int, ld: int = 0, seed: int = 0) -> Any:
    """Small whole numbers [rows, columns], in rows of `ld`, between which there are no numbers."""
    memory = np.full((rows, ld or columns), np.nan, np.float32)
    memory[:, :columns] = np.random.default_rng(seed).integers(-4, 5, (rows, columns))
    return memory[:, :columns]


def counted(name: str, m: int, n: int, k: int, *, alpha: float = 1.0, beta: float = 0.0, gap: int = 0,
            function: Function | None = None, sizes: Mapping[str, int] | None = None, **options: Any
            ) -> simulator.Report:
    """What a step of the GPU ladder in f32 does for alpha A B + beta C of small whole numbers. RuntimeError if the
    result is not exact, or if what lies in gaps of so many elements behind rows is not as it was.

    function    instead of the step's own; `sizes` are parameters of its emitter, `options` of simulator.run
    """
    step, sizes = GPU_STEPS[name], sizes or {}
    a, b, c = integers(m, k, k + gap), integers(k, n, n + gap, 1), integers(m, n, n + gap, 2)
    wanted = alpha * (a.astype(np.float64) @ b) + (beta * c.astype(np.float64) if beta else 0)
    if not beta:
        c[:] = np.nan
    report = simulator.run(function or step.emit(**sizes), m, n, k, alpha, *(
        array for x in (a, b) for array in (x.ravel() if step.textures else x, x.shape[1] + gap)), beta, c, n + gap,
        grid=step.grid(m, n, **sizes), **options)
    if not (np.array_equal(c, wanted) and (not gap or np.isnan(c.base[:, n:]).all())):
        raise RuntimeError(f"step {step.title} gives a wrong product")
    return report


def tensor_step(name: str, target: GpuTarget, a: Array, b: Array, c: Array, beta: float = 0.0,
                granule: int | None = None) -> simulator.Report:
    """C = A B^T + beta C by a step on tensor cores; a [m, k], b [n, k] and c [m, n] are bf16. ValueError for matrices
    that it cannot read; the report's granule as in `simulator.run`."""
    ladder_step, (m, n), k = TENSOR_STEPS[name], c.shape, a.shape[1]
    if why := gpu_tensor.refused(m, n, k, 0, k, 0, k, 0, n):
        raise ValueError(f"step {ladder_step.title}: {why}")
    function = compiled(name, target).function
    report = simulator.run(function, m, n, k, 1.0, a, k, b, k, beta, c if beta else simulator.uninitialised(c), n,
                           grid=ladder_step.grid(m, n, target.sms), target=target.name, granule=granule)
    report.occupancy = assembled(function, target)
    return report


def _on_cpu(found: Any, problem: Gemm, target: CpuTarget, a: Array, b: Array, c: Array) -> simulator.Report:
    sizes, dtype, team = (problem.m, problem.n, problem.k), problem.a, 2 if found.parallel else 1
    blocks = found.blocks(target, dtype, team)
    work = np.zeros(max(1, found.work(target, dtype, *sizes, *blocks)), a.dtype)
    function = found.emit(target, dtype, *blocks)
    arrays = a, b, simulator.uninitialised(c), simulator.uninitialised(work)
    if not found.parallel:
        return simulator.run(function, *sizes, *arrays[: len(function.params) - 3])
    memory, barrier = simulator.AddressSpace(), np.zeros(2, np.int64)
    addresses = (memory.address(x) for x in (*arrays, barrier))
    *operands, meet = addresses
    job = np.array([*sizes, *operands, team, meet], np.int64)
    return simulator.run_team(function, job.view(np.int8), threads=team, memory=memory)


# ---- the steps of the AMD ladder, which take operands of one instruction


@dataclass(frozen=True)
class Operands:
    """`args` are a step's arguments, with nan for C. What they stand for, in f64: `a` [m, k] and `b` [k, n], scales
    included."""

    args: tuple[Array, ...]
    a: Array
    b: Array

    @property
    def c(self) -> Array:
        """f32 [m, n], which the kernel fills."""
        return self.args[-1]

    @property
    def expected(self) -> Array:
        """A B in f64: exact for integers."""
        return self.a @ self.b

    @property
    def error(self) -> float:
        """The largest error of C as a share of its bound: 1 or less is right, and nan, where C has one, is not.

        The bound is less than a unit in the last place of the sum of the k terms' magnitudes, for the products and for
        each addition: every product and every sum may be truncated to f32, in any order."""
        bound = self.a.shape[1] * _EPS * (np.abs(self.a) @ np.abs(self.b))
        return float(np.max(np.abs(self.c - self.expected) / np.maximum(bound, np.finfo(np.float64).tiny)))


def operands(atom: Mfma, data: Data, rng: np.random.Generator) -> Operands:
    """Matrices for one instruction: whole numbers so small that every sum of products is exact, or random ones that
    are rounded to its formats. Scales differ from block to block."""
    packed, real = [], []
    for side, shape, axis in ((atom.a, (atom.m, atom.k), 1), (atom.b, (atom.k, atom.n), 0)):
        numbers = rng.integers(-4, 5, shape) if data == "integers" else rng.standard_normal(shape)
        elements = formats.convert(numbers.astype(np.float64), side.format, saturate=True)
        real.append(elements.astype(np.float64))
        packed.append(formats.pack(elements) if side.bits < 16 else elements)
        if atom.scaled:
            blocks = tuple(n // SCALED if i == axis else n for i, n in enumerate(shape))
            exponents = rng.integers(-3, 4, blocks) if data == "integers" else rng.integers(-20, 21, blocks)
            packed.append((exponents + 127).astype(np.uint8))
            real[-1] = real[-1] * np.repeat(2.0**exponents, SCALED, axis)
    return Operands((*packed, np.full((atom.m, atom.n), np.nan, np.float32)), *real)


def simulate_amd(name: str, target: AmdTarget, data: Data = "integers") -> tuple[simulator.Report, Operands]:
    """Run a step in the simulator: what it did, and its operands with the result in them. ValueError if there is no
    such step, or not on this target; simulator.Fault if the kernel does wrong."""
    given = operands(step(name, target).atom(target.name), data, np.random.default_rng(0))
    return simulator.run(compiled(name, target).function, *given.args), given
