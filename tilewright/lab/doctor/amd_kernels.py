"""The kernels for AMD's GPUs that `tilewright doctor --selftest` compiles, runs, verifies and times: those of the
ladder, and of products what the planner chooses for an awkward shape, which is verified, and for a large one, which is
timed too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from tilewright.compiled.amd import AmdCode, compile
from tilewright.compiled.base import Launch
from tilewright.formats.table import BLOCK_FORMATS
from tilewright.ir.program import Function
from tilewright.kernels.elementwise import emit_axpy, emit_reciprocal
from tilewright.lab.doctor.amd_cases import DATA, Data, Make, Shape, axpy, gemm, ladder, reciprocal, scaled_gemm
from tilewright.lab.ladder.steps import AMD_STEPS
from tilewright.plans import gpu, gpu_shape
from tilewright.problem import Gemm
from tilewright.targets import AmdTarget
from tilewright.targets.amd import MATRIX_RATES, TARGETS


@dataclass(frozen=True)
class Entry:
    """A kernel, or for products one for each shape."""

    name: str
    target: str  # "gfx942"
    formats: tuple[str, ...]  # of the operands and the result
    launch: Callable[[AmdTarget, Shape], Launch]
    case: Make
    small: tuple[Shape, ...]  # simulated, and verified on hardware
    large: Shape | None = None  # verified and timed on hardware; None: nothing about it is worth timing
    simulated: tuple[Data, ...] = DATA  # what is simulated where there is no such GPU


def _elementwise() -> Iterator[Entry]:
    def launch(emit: Callable[..., Function], target: AmdTarget, shape: Shape) -> Launch:
        return Launch(AmdCode(emit(256, target.warp), target), (-(-shape[0] // 256), 1, 1))

    for target in TARGETS:
        yield Entry("axpy_f32", target, ("f32",), partial(launch, emit_axpy), axpy, ((1,), (1000,)), (1 << 26,))
        yield Entry("reciprocal_f32", target, ("f32",), partial(launch, emit_reciprocal), reciprocal, ((1000,),))


def _ladder() -> Iterator[Entry]:
    for name, step in AMD_STEPS.items():
        for target in step.targets:
            atom = step.atom(target)
            formats, shape = (atom.a_format, atom.b_format, atom.c_format), (atom.m, atom.n, atom.k)
            make = ladder(name, target)
            yield Entry(f"amd_ladder_{name}", target, formats, partial(_step, name), make, (shape,))


def _step(name: str, target: AmdTarget, shape: Shape) -> Launch:
    return Launch(AmdCode(AMD_STEPS[name].emit(target.name), target), (1, 1, 1))


SQUARE = (4096, 4096, 4096)  # m, n, k
ODD = (35, 67, 45)  # fills no tile, and no vector of 16 bytes
EVEN = (48, 80, 128)  # rows of 16 bytes, and several tiles of k: straight into LDS on chips that can
DEEP = (33, 40, 4003)  # so few tiles of C that their k is split
DEEPER = (512, 512, 65536)
BLOCKS = (35, 68, 96)  # for operands with scales
MX = {f.element.name: name for name, f in BLOCK_FORMATS.items() if f.mx}
ONE_CHIP = {"gfx942": ("e4m3fnuz", "e5m2fnuz"), "gfx950": ("e4m3fn", "e5m2")}


def _gemms() -> Iterator[Entry]:
    """Every format with k along the rows of both operands, straight into LDS where rows and chip allow; the other
    layouts in formats of 1, 2, 4 and 8 bytes; parts of k; results in other formats than the sums'; both formats of
    fp8."""
    for target, (e4m3, e5m2) in ONE_CHIP.items():
        plain = [name for name in MATRIX_RATES[target] if name not in ("xf32", "e2m3", "e3m2", "e2m1")]
        for name in plain:
            yield _gemm(target, name, small=(ODD, EVEN) if name in ("f16", e4m3) else (ODD,))
        for layout in ("nn", "tn", "tt"):
            yield _gemm(target, "f16", layout=layout)
        for name in ("f64", "f32", e4m3, "i8"):
            yield _gemm(target, name, layout="nn")
        yield _gemm(target, "f16", label="split", small=(DEEP,), large=DEEPER)
        for name, out in (("f16", "f16"), ("bf16", "bf16"), (e4m3, "f16"), ("f16", e5m2), ("i8", "i8")):
            yield _gemm(target, name, out=out)
        yield _gemm(target, e4m3, e5m2)
    yield _gemm("gfx942", "f32", label="xf32")


def _gemm(target: str, a: str, b: str = "", out: str = "", layout: str = "nt", label: str = "",
          small: tuple[Shape, ...] = (ODD,), large: Shape = SQUARE) -> Entry:
    b, sums = b or a, gpu_shape.SUMS.get(a, "f32")
    algorithm = "xf32" if label == "xf32" else "mfma"
    name = "_".join(word for word in ("mfma_gemm", a, b if b != a else "", out, layout, label) if word)
    make = gemm(a, b, out or sums, sums, layout, label == "xf32")
    launch = partial(_planned, a, b, out or sums, layout, algorithm)
    return Entry(name, target, (a, b, out or sums), launch, make, small, large)


def _scaled_gemms() -> Iterator[Entry]:
    """All 25 pairs of formats: by instructions with scales on gfx950, emulated on gfx942."""
    for target, name in (("gfx942", "emulated_mx_gemm"), ("gfx950", "scaled_mfma_gemm")):
        for a in MX:
            for b in MX:
                yield _scaled(target, name, a, b)
        yield _scaled(target, name, "e2m1", "e2m1", "bf16")


def _scaled(target: str, kernel: str, a: str, b: str, out: str = "f32") -> Entry:
    name = "_".join((kernel, a, b, *([out] if out != "f32" else [])))
    return Entry(name, target, (a, b, out), partial(_planned, MX[a], MX[b], out, "nt", ""), scaled_gemm(a, b, out),
                 (BLOCKS,), SQUARE, DATA if a == b else ("integers",))


def _planned(a: str, b: str, out: str, layout: str, algorithm: str, target: AmdTarget, shape: Shape) -> Launch:
    """A product by the plan that the planner prefers, with this algorithm if it would not be offered."""
    m, n, k = shape
    problem, plan = Gemm(m, n, k, a, b, out, layout), None
    if algorithm == "xf32":
        rounded = (replace(plan, algorithm="xf32") for plan in gpu.ranked(gpu_shape.shape_of(problem), target))
        plan = next(plan for plan in rounded if not plan.violations(problem, target))
    return compile(problem, target, plan).launches[0]


KERNELS: tuple[Entry, ...] = (*_elementwise(), *_ladder(), *_gemms(), *_scaled_gemms())
