"""The engine for arrays on CUDA devices: see engine.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright import forks
from tilewright.problem import Gemm
from tilewright.runtime.gpu import engine
from tilewright.runtime.gpu.product import letter
from tilewright.runtime.gpu.recipe import NVIDIA

Array = NDArray[Any]


class _Engine(engine.Engine):
    def takes(self, on: Any, a: Array, b: Array, c: Any, compute: np.dtype[Any],
              result: np.dtype[Any]) -> tuple[np.dtype[Any], ...]:
        return compute, compute, compute

    def compiled(self, problem: Gemm, target: Any, plan: Any) -> Any:
        return compile(problem, target, plan)


ENGINE = _Engine(NVIDIA)
matmul, forget = ENGINE.matmul, ENGINE.forget


def compile(problem: Gemm, target: Any, plan: Any = None) -> Any:
    """tilewright.compiled.nvidia.compile, which is imported by the first product that needs it."""
    return forks.imported("tilewright.compiled.nvidia").compile(problem, target, plan)


# ---- the engine for NumPy arrays, if somebody asks for it by a plan


def gemm(a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0, *, threads: int | None = None,
         plan: Any = None) -> None:
    """As tilewright.runtime.cpu.engine.gemm, on the first CUDA device: operands and result are copied."""
    (m, k), n = a.shape, b.shape[1]
    if k == 0 or alpha == 0:
        c[...] = c * c.dtype.type(beta) if beta else 0
        return
    letters = "".join(letter(x) or "n" for x in (a, b))
    problem = Gemm(m, n, k, engine.format_of(c.dtype), layout=letters)
    NVIDIA.call(compile(problem, NVIDIA.driver.device(0).target, plan), a, b, c, alpha=alpha, beta=beta)


def gemm_batched(a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0, **options: Any) -> None:
    """The same for a [batch, m, k], b [batch, k, n] and c [batch, m, n]."""
    for i in range(c.shape[0]):
        gemm(a[i], b[i], c[i], alpha, beta, **options)
