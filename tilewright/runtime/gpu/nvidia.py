"""The engine for arrays on CUDA devices: see engine.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright import forks
from tilewright.problem import Gemm
from tilewright.runtime.gpu import engine
from tilewright.runtime.gpu.recipe import NVIDIA

Array = NDArray[Any]


class _Engine(engine.Engine):
    def takes(self, on: Any, a: Array, b: Array, c: Any, compute: np.dtype[Any],
              result: np.dtype[Any]) -> tuple[np.dtype[Any], ...]:
        return compute, compute, compute

    def compiled(self, problem: Gemm, target: Any, plan: Any) -> Any:
        return compile(problem, target, plan)


ENGINE = _Engine(NVIDIA)
forget = ENGINE.forget


def compile(problem: Gemm, target: Any, plan: Any = None) -> Any:
    """tilewright.compiled.nvidia.compile, which is imported by the first product that needs it."""
    return forks.imported("tilewright.compiled.nvidia").compile(problem, target, plan)
