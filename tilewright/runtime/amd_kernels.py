"""The kernels for AMD's GPUs that `tilewright doctor --selftest` compiles, runs, verifies and times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from tilewright.ir import Function
from tilewright.kernels.amd.mfma_gemm import emit_mfma_gemm, instruction
from tilewright.kernels.amd.scaled_mfma_gemm import emit_scaled_mfma_gemm
from tilewright.kernels.elementwise import emit_axpy
from tilewright.kernels.ladder.amd_steps import AMD_STEPS
from tilewright.runtime.amd_cases import Make, Shape, axpy, gemm, ladder, scaled_gemm
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


# Tiles of a workgroup of 8 waves, of 4 for f64, and of one that is quick to simulate.
LARGE = {"CTA_M": 256, "CTA_N": 256, "WARP_M": 128, "WARP_N": 64}
F64 = {"CTA_M": 128, "CTA_N": 128, "WARP_M": 64, "WARP_N": 64, "MFMA": 16}
SMALL = {"CTA_M": 64, "CTA_N": 64, "WARP_M": 32, "WARP_N": 32}
SQUARE = (4096, 4096, 4096)  # m, n, k
ODD = (272, 304, 80)  # fills no tile
BITS = {"f64": 64, "f32": 32, "xf32": 32, "f16": 16, "bf16": 16}  # of the others 8
CDNA3 = ("f64", "f32", "xf32", "f16", "bf16", "e4m3fnuz", "e5m2fnuz", "i8")
CDNA4 = ("f64", "f32", "f16", "bf16", "e4m3fn", "e5m2", "i8")
SCALED = ("e4m3fn", "e5m2", "e2m3", "e3m2", "e2m1")


def _gemms() -> Iterator[AmdKernel]:
    """Every format with k along the rows of both operands; f16 also in the other layouts, by parts of k, rounded to
    f16, and straight into LDS."""
    for target, names in (("gfx942", CDNA3), ("gfx950", CDNA4)):
        for name in names:
            yield _gemm(target, name)
        for layout in ("nn", "tn", "tt"):
            yield _gemm(target, "f16", layout=layout)
        yield _gemm(target, "f16", out="f16")
        yield _gemm(target, "f16", label="split", SPLIT_K=4, CTA_N=128, WARP_M=64)
    yield _gemm("gfx950", "f16", label="direct", DIRECT=True, CTA_K=64)


def _gemm(target: str, A: str, out: str = "", layout: str = "nt", label: str = "", **more: Any) -> AmdKernel:
    bits = BITS.get(A, 8)
    options = {**(F64 if A == "f64" else LARGE), "CTA_K": max(512 // bits, 16), "LAYOUT": layout, "A": A, **more}
    if out:
        options["OUT"] = out
    sums = instruction(target, options.get("MFMA", 32), A, A).c.format
    make = gemm(A, A, out or sums, sums, layout, options["CTA_M"], options["CTA_N"], options.get("SPLIT_K", 1))
    name = "_".join(word for word in ("mfma_gemm", A, out, layout, label) if word)
    return AmdKernel(name, target, (A, A, out or sums), partial(_emit, emit_mfma_gemm, options), make, (ODD,), SQUARE)


def _scaled_gemms() -> Iterator[AmdKernel]:
    """All 25 pairs of formats; large tiles, which are timed too, where both are the same."""
    for a in SCALED:
        for b in SCALED:
            tiles = LARGE if a == b else SMALL
            options = {**tiles, "CTA_K": 128, "A": a, "B": b}
            make = scaled_gemm(a, b, tiles["CTA_M"], tiles["CTA_N"], 1)
            shape, large = ((272, 304, 160), SQUARE) if a == b else ((80, 72, 160), None)
            emit = partial(_emit, emit_scaled_mfma_gemm, options)
            yield AmdKernel(f"scaled_mfma_gemm_{a}_{b}", "gfx950", (a, b, "f32"), emit, make, (shape,), large)


def _emit(emitter: Callable[..., Function], options: dict[str, Any], target: AmdTarget) -> Function:
    return emitter(ARCH=target.name, XCDS=target.xcds, **options)


KERNELS: tuple[AmdKernel, ...] = (*_axpy(), *_ladder(), *_gemms(), *_scaled_gemms())
