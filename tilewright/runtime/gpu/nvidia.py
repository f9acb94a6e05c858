"""The engine for arrays on CUDA devices: see engine.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.runtime.gpu import engine
from tilewright.runtime.gpu.recipe import NVIDIA

Array = NDArray[Any]


class _Engine(engine.Engine):
    compiler = "tilewright.compiled.nvidia"

    def takes(self, on: Any, a: Array, b: Array, c: Any, compute: np.dtype[Any],
              result: np.dtype[Any]) -> tuple[np.dtype[Any], ...]:
        return compute, compute, compute


ENGINE = _Engine(NVIDIA)
