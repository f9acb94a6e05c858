"""The kernels for AMD's GPUs that `tilewright doctor --selftest` tries: two that work element by element, those of the
ladder, and of products what the planner chooses for an awkward shape, which is verified, and for a large one, which is
timed too.

Products are run and compared as the tuner does it (tuner/on_gpu.py), other kernels as it runs users' (launches.py).
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tilewright import simulator
from tilewright.compiled.amd import AmdCode, AmdKernel, compile
from tilewright.formats.table import BLOCK_FORMATS
from tilewright.ir.program import Function
from tilewright.kernels.elementwise import emit_axpy, emit_reciprocal
from tilewright.lab.ladder import run
from tilewright.lab.ladder.steps import AMD_STEPS
from tilewright.lab.measure import check, operands
from tilewright.lab.tuner import launches
from tilewright.lab.tuner.on_gpu import OnDevice, OnGpu
from tilewright.plans import gpu, gpu_shape
from tilewright.problem import Gemm
from tilewright.targets import AmdTarget
from tilewright.targets.amd import MATRIX_RATES, TARGETS


class Product(NamedTuple):
    """A product by the planner's choice, or by its first plan that can have this algorithm."""
    problem: Gemm
    algorithm: str | None = None

    def __str__(self) -> str:
        return str(self.problem)

    def kernel(self, chip: AmdTarget) -> AmdKernel:
        plan = None
        if self.algorithm:
            others = (replace(plan, algorithm=self.algorithm)
                      for plan in gpu.ranked(gpu_shape.shape_of(self.problem), chip))
            plan = next(plan for plan in others if not plan.violations(self.problem, chip))
        return compile(self.problem, chip, plan)

    def simulated(self, kernel: AmdKernel) -> str | None:
        """What is wrong with the result in the simulator."""
        o = operands.make(self.problem)
        kernel.simulate(o.a, o.b, o.c)
        return check.Reference(o, self.algorithm).wrong(o.c)

    def placed(self, kernel: AmdKernel) -> tuple[OnDevice, str]:
        """What runs it on a GPU, and by which name."""
        by = OnGpu(self.problem, kernel.target)
        if self.algorithm:
            by.references = [(one.c, check.Reference(one, self.algorithm)) for one in by.o.compared.values()]
        return by, str(kernel.plan)


class Launched(NamedTuple):
    """A kernel with arguments, of which it fills the last; `judge` says what is wrong with that."""
    name: str
    emit: Callable[[AmdTarget], Function]
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    judge: Callable[[Any], str]

    def __str__(self) -> str:
        return self.name

    def kernel(self, chip: AmdTarget) -> AmdCode:
        return AmdCode(self.emit(chip), chip)

    def simulated(self, kernel: AmdCode) -> str:
        *inputs, output = self.args
        result = output.copy()
        simulator.run(kernel.function, *inputs, result, grid=self.grid)
        return self.judge(result)

    def placed(self, kernel: AmdCode) -> tuple[OnDevice, str]:
        names = [name for name, _ in kernel.function.params]
        arguments = tuple((name, None, x) for name, x in zip(names, self.args))
        job = launches.KernelJob(self.name, kernel.target, (), 0.0, self.name, {self.name: kernel.loadable},
                                 {self.name: self.grid}, arguments, (names[-1],), None, {}, 0)
        return _Judged(job, self.judge), self.name


class _Judged(launches.OnGpu):
    """Launches whose result is known."""

    def __init__(self, job: launches.KernelJob, judge: Callable[[Any], str]) -> None:
        super().__init__(job)
        self.judge = judge

    def wrong(self) -> str | None:
        (result,) = self.results.values()
        return self.judge(result) or None


Case = Product | Launched


@dataclass(frozen=True)
class Entry:
    """A kernel, or for products one for each case."""
    name: str
    target: str                 # "gfx942"
    small: tuple[Case, ...]     # simulated, or verified on hardware
    large: Product | None = None        # verified and timed on hardware
    quick: bool = True          # whether it is among the few that `--quick` tries


# ---- element by element, and the ladder

def _elementwise() -> Iterator[Entry]:
    """axpy, and reciprocals to the last bit: of numbers whose mantissa bits are all set, such as nextafter(2, 0), at
    every exponent. Their reciprocals lie just above the middle of two neighbouring numbers, and LLVM's sequence rounds
    them as V_RCP_F32 does, which AMD's manuals do not state."""
    draw, n = np.random.default_rng(0), 1000
    x, y = draw.integers(-4, 5, (2, n)).astype(np.float32)
    i = np.arange(n)
    full = np.ldexp(np.nextafter(np.float32(2), np.float32(0)), i % 252 - 126) * (1 - 2 * (i // 252 % 2))
    full = full.astype(np.float32)
    inverse = (1 / full.astype(np.float64)).astype(np.float32)
    for target in TARGETS:
        yield Entry("axpy_f32", target, (Launched(
            "axpy_f32", lambda chip: emit_axpy(256, chip.warp), (4,), (n, 3.0, x, y),
            lambda result: check.difference(result, 3 * x + y)),))
        yield Entry("reciprocal_f32", target, (Launched(
            "reciprocal_f32", lambda chip: emit_reciprocal(256, chip.warp), (4,), (n, full, np.full_like(full, np.nan)),
            lambda result: check.difference(result, inverse)),))


def _ladder() -> Iterator[Entry]:
    for name, step in AMD_STEPS.items():
        for target in step.targets:
            yield Entry(f"amd_ladder_{name}", target, tuple(_step(name, target, data) for data in run.DATA))


def _step(name: str, target: str, data: run.Data) -> Launched:
    given = run.operands(AMD_STEPS[name].atom(target), data, np.random.default_rng(0))

    def judge(result: Any) -> str:
        if data == "integers":
            return check.difference(result, given.expected)
        error = replace(given, args=(*given.args[:-1], result)).error
        return "" if error <= 1 else f"random numbers err by {error:.1%} of the bound"
    return Launched(f"{name} on {data}", lambda chip: AMD_STEPS[name].emit(chip.name), (1,), given.args, judge)


# ---- products

Shape = tuple[int, int, int]
SQUARE = (4096, 4096, 4096)     # m, n, k
ODD = (35, 67, 45)              # fills no tile, and no vector of 16 bytes
EVEN = (48, 80, 128)            # rows of 16 bytes, and several tiles of k: straight into LDS on chips that can
DEEP = (33, 40, 4003)           # so few tiles of C that their k is split
DEEPER = (512, 512, 65536)
BLOCKS = (35, 68, 96)           # for operands with scales
MX = {f.element.name: name for name, f in BLOCK_FORMATS.items() if f.mx}
ONE_CHIP = {"gfx942": ("e4m3fnuz", "e5m2fnuz"), "gfx950": ("e4m3fn", "e5m2")}


def _gemms() -> Iterator[Entry]:
    """Every format with k along the rows of both operands, straight into LDS where rows and chip allow; the other
    layouts in formats of 1, 2, 4 and 8 bytes; parts of k; results in other formats than the sums'; both formats of
    fp8."""
    for target, (e4m3, e5m2) in ONE_CHIP.items():
        for name in MATRIX_RATES[target]:
            if name not in ("xf32", "e2m3", "e3m2", "e2m1"):
                yield _gemm(target, name, small=(ODD, EVEN) if name in ("f16", e4m3) else (ODD,), quick=True)
        for layout in ("nn", "tn", "tt"):
            yield _gemm(target, "f16", layout=layout)
        for name in ("f64", "f32", e4m3, "i8"):
            yield _gemm(target, name, layout="nn")
        yield _gemm(target, "f16", label="split", small=(DEEP,), large=DEEPER)
        for name, out in (("f16", "f16"), ("bf16", "bf16"), (e4m3, "f16"), ("f16", e5m2), ("i8", "i8")):
            yield _gemm(target, name, out=out)
        yield _gemm(target, e4m3, e5m2)
    yield _gemm("gfx942", "f32", label="xf32", algorithm="xf32")


def _gemm(target: str, a: str, b: str = "", out: str = "", layout: str = "nt", label: str = "",
          small: tuple[Shape, ...] = (ODD,), large: Shape = SQUARE, algorithm: str | None = None, quick: bool = False
          ) -> Entry:
    name = "_".join(filter(None, ("mfma_gemm", a, b if b != a else "", out, layout, label)))
    first, *others = (Product(Gemm(*shape, a, b or a, out or gpu_shape.SUMS.get(a, "f32"), layout), algorithm)
                      for shape in (large, *small))
    return Entry(name, target, tuple(others), first, quick)


def _scaled_gemms() -> Iterator[Entry]:
    """All 25 pairs of formats: by instructions with scales on gfx950, decoded by passes on gfx942."""
    for target, name in (("gfx942", "decoded_mx_gemm"), ("gfx950", "scaled_mfma_gemm")):
        for a, b, out in (*((a, b, "f32") for a in MX for b in MX), ("e2m1", "e2m1", "bf16")):
            large, small = (Product(Gemm(*shape, MX[a], MX[b], out, "nt")) for shape in (SQUARE, BLOCKS))
            yield Entry("_".join((name, a, b, *([out] if out != "f32" else []))), target, (small,), large,
                        a == b and out == "f32")


KERNELS: tuple[Entry, ...] = (*_elementwise(), *_ladder(), *_gemms(), *_scaled_gemms())
