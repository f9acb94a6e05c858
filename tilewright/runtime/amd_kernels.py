"""The kernels for AMD's GPUs that `tilewright doctor --selftest` compiles, runs, verifies and times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tilewright.ir import Function
from tilewright.kernels.elementwise import emit_axpy
from tilewright.kernels.ladder.amd_steps import AMD_STEPS
from tilewright.runtime.amd_cases import Make, Shape, axpy, ladder
from tilewright.targets import AmdTarget
from tilewright.targets.amd import TARGETS


@dataclass(frozen=True)
class AmdKernel:
    name: str
    target: str  # "gfx942"
    formats: tuple[str, ...]  # of the operands and the result
    emit: Callable[[AmdTarget], Function]
    case: Make
    small: tuple[Shape, ...]  # simulated, and verified on hardware
    large: Shape | None = None  # verified and timed on hardware; None: nothing about it is worth timing


def _axpy() -> Iterator[AmdKernel]:
    for target in TARGETS:
        small, large = ((1,), (1000,)), (1 << 26,)
        yield AmdKernel("axpy_f32", target, ("f32",), lambda t: emit_axpy(256, t.warp), axpy, small, large)


def _ladder() -> Iterator[AmdKernel]:
    for name, step in AMD_STEPS.items():
        for target in step.targets:
            atom = step.atom(target)
            formats, shape = (atom.a_format, atom.b_format, atom.c_format), (atom.m, atom.n, atom.k)
            make = ladder(name, target)
            yield AmdKernel(f"amd_ladder_{name}", target, formats, partial(_step, name), make, (shape,))


def _step(name: str, target: AmdTarget) -> Function:
    return AMD_STEPS[name].emit(target.name)


KERNELS: tuple[AmdKernel, ...] = (*_axpy(), *_ladder())
