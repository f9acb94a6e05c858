"""Products of complex matrices, by four products of their real and imaginary parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def through(run: Callable[..., bool]) -> Callable[..., bool]:
    """What multiplies complex matrices as `run` does real ones: c = alpha * a @ b + beta * c, alpha and beta real.

    The parts are copied, so that the real products find whole vectors; c is written at the end.
    """

    def product(
        a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0, threads: int | None = None,
        plan: Any = None, whole: bool = False,
    ) -> bool:  # fmt: skip
        (ar, ai), (br, bi) = ((_part(x.real), _part(x.imag)) for x in (a, b))
        real, imaginary = (np.array(x) if beta else np.empty(c.shape, x.dtype) for x in (c.real, c.imag))
        for x, y, out, factor, keep in (
            (ar, br, real, alpha, beta), (ai, bi, real, -alpha, 1.0),
            (ar, bi, imaginary, alpha, beta), (ai, br, imaginary, alpha, 1.0),
        ):  # fmt: skip
            run(x, y, out, factor, keep, threads, plan)
        c.real, c.imag = real, imaginary
        return True

    return product


def _part(x: Array) -> Array:
    """Contiguous in its last two axes; what a broadcast axis repeats is copied once."""
    one = x[tuple(slice(1) if not stride and n > 1 else slice(None) for n, stride in zip(x.shape[:-2], x.strides))]
    return np.broadcast_to(np.ascontiguousarray(one), x.shape)
