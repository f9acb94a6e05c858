"""The kernels for AMD's GPUs that `tilewright doctor --selftest` compiles, runs, verifies and times.

A `Case` is one launch with its right answer, in arrays of the host's memory: the simulator takes its arguments as they
are, and on hardware they are copied. `integers` are small enough that every sum is exact, whatever its order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilewright.ir import Function
from tilewright.kernels.elementwise import emit_axpy
from tilewright.targets import AmdTarget

Shape = tuple[int, ...]
Data = Literal["integers", "random"]
DATA: tuple[Data, ...] = ("integers", "random")


@dataclass(frozen=True)
class Case:
    """`args[output]` is what the kernel fills or updates; then each element is within `bound` of `expected`, which is
    computed in float64. `peer` makes torch do the same: given the module, a call on operands in the GPU's memory."""

    grid: tuple[int, ...]  # workgroups
    args: tuple[Any, ...]  # numbers and NumPy arrays, as the kernel's parameters are
    output: int
    expected: NDArray[np.float64]
    bound: NDArray[np.float64] | float
    operations: float  # additions and multiplications, in all
    bytes: float  # of memory that must be read or written
    peer: Callable[[Any], Callable[[], Any]] | None = None
    scratch: tuple[int, ...] = ()  # other arguments that the kernel may write to


@dataclass(frozen=True)
class AmdKernel:
    name: str
    target: str  # "gfx942"
    formats: tuple[str, ...]  # of the operands and the result
    emit: Callable[[AmdTarget], Function]
    case: Callable[[Shape, Data, np.random.Generator], Case]
    small: tuple[Shape, ...]  # simulated, and verified on hardware
    large: Shape  # verified and timed on hardware


def axpy(shape: Shape, data: Data, rng: np.random.Generator) -> Case:
    """y = alpha x + y, of shape (n,)."""
    (n,), alpha = shape, 3.0
    x, y = (_values(rng, n, data) for _ in range(2))
    expected = alpha * x.astype(np.float64) + y
    size = np.abs(alpha * x.astype(np.float64)) + np.abs(y)
    bound = 0.0 if data == "integers" else 2 * float(np.finfo(np.float32).eps) * size

    def peer(torch: Any) -> Callable[[], Any]:
        at, to = (torch.from_numpy(v.copy()).cuda() for v in (x, y))
        return lambda: to.add_(at, alpha=alpha)

    return Case((-(-n // 256),), (n, alpha, x, y), 3, expected, bound, 2.0 * n, 12.0 * n, peer)


def _values(rng: np.random.Generator, n: int, data: Data) -> NDArray[np.float32]:
    if data == "integers":
        return rng.integers(-8, 9, n).astype(np.float32)
    return rng.standard_normal(n, dtype=np.float32)


KERNELS = (
    *(
        AmdKernel("axpy_f32", target, ("f32",), lambda t: emit_axpy(256, t.warp), axpy, ((1,), (1000,)), (1 << 26,))
        for target in ("gfx942", "gfx950")
    ),
)
