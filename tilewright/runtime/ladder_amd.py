"""Runs the steps of the AMD ladder without a GPU: operands that fit, the product by NumPy, the kernel in the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilewright import formats, simulator
from tilewright.ir import Function
from tilewright.kernels.atoms.mfma import SCALED, Mfma
from tilewright.kernels.ladder.amd_steps import AMD_STEPS, AmdStep

Data = Literal["integers", "random"]
Array = NDArray[Any]


@dataclass(frozen=True)
class Operands:
    """`args` are a step's arguments, with nan for C. What they stand for, in f64: `a` [m, k] and `b` [k, n], scales
    included.
    """

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
    def bound(self) -> Array:
        """How far an element may be from that, however an instruction rounds its sums in f32: half a unit in the last
        place of the terms' magnitudes for each of the k additions, and as much again for products cut short."""
        k = self.a.shape[1]
        return k * float(np.finfo(np.float32).eps) * (np.abs(self.a) @ np.abs(self.b))


def operands(atom: Mfma, data: Data, seed: int = 0) -> Operands:
    """Matrices for one instruction: whole numbers so small that every sum of products is exact, or random ones that
    are rounded to its formats. Scales differ from block to block.
    """
    rng = np.random.default_rng(seed)
    packed, meant = [], []
    for side, shape, axis in ((atom.a, (atom.m, atom.k), 1), (atom.b, (atom.k, atom.n), 0)):
        numbers = rng.integers(-4, 5, shape) if data == "integers" else rng.standard_normal(shape)
        elements = formats.convert(numbers.astype(np.float64), side.format, saturate=True)
        real = elements.astype(np.float64)
        packed.append(formats.pack(elements) if side.bits < 16 else elements)
        if atom.scaled:
            blocks = tuple(n // SCALED if i == axis else n for i, n in enumerate(shape))
            exponents = rng.integers(-3, 4, blocks) if data == "integers" else rng.integers(-20, 21, blocks)
            packed.append((exponents + 127).astype(np.uint8))
            real = real * np.repeat(2.0**exponents, SCALED, axis)
        meant.append(real)
    return Operands((*packed, np.full((atom.m, atom.n), np.nan, np.float32)), *meant)


def simulate(name: str, arch: str, data: Data = "integers", seed: int = 0) -> tuple[simulator.Report, Operands]:
    """Run a step in the simulator: what it did, and its operands with the result in them. ValueError if there is no
    such step, or not on this architecture; simulator.Fault if the kernel does wrong."""
    given = operands(step(name, arch).atom(arch), data, seed)
    return simulator.run(function(name, arch), *given.args), given


@cache
def function(name: str, arch: str) -> Function:
    """The step as it is recorded."""
    return step(name, arch).emit(arch)


def step(name: str, arch: str) -> AmdStep:
    """The step of this name, if the architecture has its instruction; otherwise a ValueError."""
    if name not in AMD_STEPS:
        raise ValueError(f"there is no step {name!r} of the AMD ladder; the steps are {', '.join(AMD_STEPS)}")
    found = AMD_STEPS[name]
    if arch not in found.targets:
        raise ValueError(f"{arch} does not have the instruction of step {found.title}; {', '.join(found.targets)} do")
    return found
