"""Steps of the ladders whose sizes can be found for a chip: `tilewright tune --step shared --target sm_86`.

The same emitters as on the ladder (steps.py), with the values that L, S and V, or of a CPU's register tile MR and NV,
may have, and what the tuner must know of their launches.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.lab.ladder.cpu2_registers import emit_registers
from tilewright.lab.ladder.gpu03_registers import emit_registers as emit_gpu_registers
from tilewright.lab.ladder.gpu04_shared import emit_shared
from tilewright.lab.ladder.gpu05_coalesced import emit_coalesced
from tilewright.runtime.emitted import kernel
from tilewright.runtime.parametric import Parametric
from tilewright.targets import CpuTarget, Target

UNROLLED = 4096         # multiply-adds of a thread between barriers: more take LLVM many seconds


def _product(a: Any, b: Any) -> dict[str, Any]:
    return {"c": a.astype(np.float64) @ b.astype(np.float64)}


def _shapes(m: int, n: int, k: int) -> dict[str, Any]:
    return {"a": (m, k), "b": (k, n), "c": (m, n), "lda": k, "ldb": n, "ldc": n}


def too_much(L: int, S: int, V: int) -> str | None:
    """Why a step with these parameters is not tried, in a sentence."""
    if (L // V)**2 > 1024:
        return f"a CTA would have {(L // V)**2} threads, and GPUs allow 1024"
    return f"{S * V * V} multiply-adds without a loop" if S * V * V > UNROLLED else None


def _tiles(emit: Callable[..., Any], **more: Any) -> Parametric:
    return kernel(L=(32, 64, 128), S=(8, 16, 32), V=(4, 8), check=too_much,
                  grid=lambda L, m, n: (-(-n // L), -(-m // L)), shared=lambda L, S: 8 * L * S,
                  tile=lambda L, S: {"m": L, "n": L, "k": S}, arrays=_shapes, reference=_product, **more)(emit)


def emit_cpu_registers(target: CpuTarget, MR: int = 6, NV: int = 2) -> Any:
    """Step 2 of the CPU ladder with a register tile of MR rows of NV vectors."""
    return emit_registers(target, "f32", MR, NV)


GPU: dict[str, Parametric] = {
    "registers": kernel(
        V=(2, 4, 8), BLOCK=(8, 16, 32), grid=lambda V, BLOCK, m, n: (-(-m // (V*BLOCK)), -(-n // (V*BLOCK))),
        tile=lambda V, BLOCK: {"m": V*BLOCK, "n": V*BLOCK, "k": 4}, arrays=_shapes,
        reference=_product)(emit_gpu_registers),
    "shared": _tiles(emit_shared), "coalesced": _tiles(emit_coalesced)}
CPU: dict[str, Parametric] = {
    "registers": kernel(
        MR=(2, 4, 6, 8, 10, 12, 14), NV=(1, 2, 3, 4), reference=_product,
        tile=lambda target, MR, NV: {"m": MR, "n": NV * target.lanes(4), "depth": 4},
        arrays=lambda m, n, depth: {"a": (m, depth), "b": (depth, n), "c": (m, n)})(emit_cpu_registers)}


def step(name: str, target: Target) -> Parametric:
    """The step of this name on a target's ladder. ValueError, with the names that there are, for any other."""
    steps = CPU if isinstance(target, CpuTarget) else GPU
    if name not in steps:
        raise ValueError(f"no step {name!r} with parameters for {target.name}; the steps are {', '.join(steps)}")
    return steps[name]


def size(target: Target) -> int:
    """The size of square matrices that take a few milliseconds."""
    return 512 if isinstance(target, CpuTarget) else 4096


def arguments(target: Target, m: int, n: int, k: int) -> tuple[Any, ...]:
    """Arguments of a call of any of the kernels, with random matrices: C = A B."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((m, k), (k, n)))
    c = np.zeros((m, n), np.float32)
    return (m, n, k, a, b, c) if isinstance(target, CpuTarget) else (m, n, k, 1.0, a, k, b, n, 0.0, c, n)
