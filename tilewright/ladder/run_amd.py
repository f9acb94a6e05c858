"""The steps of the AMD ladder without a GPU: operands that fit, the kernel in the simulator, and in machine code."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilewright import formats, simulator
from tilewright.atoms.mfma import SCALED, Mfma
from tilewright.ir import Function
from tilewright.ladder.amd_steps import AMD_STEPS, AmdStep
from tilewright.targets import AmdTarget

Data = Literal["integers", "random"]
Array = NDArray[Any]

_EPS = float(np.finfo(np.float32).eps)
# By the first letters of an opcode, the first that fits: matrix, vector and scalar instructions, and those of memory
_KINDS = {"v_mfma": "mfma", "v_": "vector", "s_": "scalar", "global_load": "load", "global_store": "store"}


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
    def bound(self) -> Array:
        """How far an element may be from that if every product and every sum is cut short to f32, in any order: less
        than a unit in the last place of the sum of the k terms' magnitudes, for the products and for each addition."""
        return self.a.shape[1] * _EPS * (np.abs(self.a) @ np.abs(self.b))

    @property
    def error(self) -> float:
        """The largest error of C as a share of its bound: 1 or less is right, and nan, where C has one, is not."""
        size = np.maximum(self.bound, np.finfo(np.float64).tiny)
        return float(np.max(np.abs(self.c - self.expected) / size))


def operands(atom: Mfma, data: Data, rng: np.random.Generator) -> Operands:
    """Matrices for one instruction: whole numbers so small that every sum of products is exact, or random ones that
    are rounded to its formats. Scales differ from block to block."""
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
    given = operands(step(name, arch).atom(arch), data, np.random.default_rng(seed))
    return simulator.run(function(name, arch), *given.args), given


def code(name: str, target: AmdTarget) -> tuple[str, Any, Counter[str]]:
    """A step's assembly, what it uses (compiler.amd.Usage), and its instructions by kind: matrix ("mfma"), "vector",
    "scalar", "load" and "store"."""
    from tilewright.compiler import amd

    recorded = function(name, target.name)
    text = amd.assembly(recorded, target)
    return text, amd.usage(recorded, target, text), Counter(kind for _, kind in instructions(text, recorded.name))


def instructions(text: str, symbol: str) -> list[tuple[str, str]]:
    """(instruction, kind) for each of a kernel's lines of assembly."""
    found = re.search(rf"^{re.escape(symbol)}:(.*?^\ts_endpgm)", text, re.M | re.S)
    assert found is not None, f"no {symbol} in the assembly"
    lines = [line.partition(";")[0].strip() for line in found[1].splitlines()]
    return [(line, next(kind for prefix, kind in _KINDS.items() if line.startswith(prefix)))
            for line in lines if line and not line.startswith(".") and not line.endswith(":")]


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
        raise ValueError(f"{arch} lacks the instruction of step {found.title}, which is for {', '.join(found.targets)}")
    return found
