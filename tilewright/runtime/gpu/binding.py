"""A compiled GEMM with its operands, ready to launch: what is the same for CUDA devices (`bound`) and for AMD's GPUs
(`rocm_bound`).

A *recipe* is a kernel made ready for operands of given strides. It has `steps`, one for each launch, and
`run(a, b, c, alpha, beta, stream)` with the operands' addresses; a step's `fixed(a, b, c, alpha, beta)` is the launch
with these, to be called with a stream, or None if it needs a workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.runtime.gpu.arrays import Platform, kind
from tilewright.runtime.gpu.operands import common, dtype_of, no_overlap, operand, same_device, shapes

Array = NDArray[Any]


class Bound:
    """A kernel with its operands: `bound()` multiplies into `bound.out`, on the stream that is the caller's just then.

    The arrays are kept, and what they hold when the kernel runs is what counts. It may be called from several threads.
    `platform`, and the three methods at the end, are a maker's own.
    """

    platform: Platform

    def __init__(self, kernel: Any, a: Any, b: Any, out: Any, alpha: float, beta: float) -> None:
        library = common(a=a, b=b, out=out)
        if library is None or library.platform is not self.platform:
            raise TypeError(f"a must be an array in {self.platform.memory}, not {kind(a)}")
        self._library = library
        if out is None and beta:
            raise ValueError(f"beta = {beta} needs an out to multiply")
        p = kernel.problem
        self._device = same_device(library, a=a, b=b, out=out)
        stream = library.stream(a, self._device)
        self._on = self.runnable(kernel, self._device)
        self._new = out is None
        self.out = library.empty(shapes(p)["out"], dtype_of(p, "out"), self._device, stream) if out is None else out
        self._looks = tuple(library.look(x, name, stream, name == "out")
                            for name, x in (("a", a), ("b", b), ("out", self.out)))
        leading = [operand(kernel, name, look.shadow) for name, look in zip(("a", "b", "out"), self._looks)]
        shadows = [look.shadow for look in self._looks]
        no_overlap(*shadows)
        self.recipe = self.prepared(kernel, self._on, shadows, leading)
        steps = [look.shadow.strides[0] if p.batch != 1 else 0 for look in self._looks]
        at = [look.pointer for look in self._looks]
        self._pointers = [[x + i * step for x, step in zip(at, steps)] for i in range(p.batch if p.m and p.n else 0)]
        self._scalars = alpha, beta
        self._fixed: Any = None
        if len(self._pointers) == len(self.recipe.steps) == 1:
            pa, pb, pc = self._pointers[0]
            self._fixed = self.recipe.steps[0].fixed(pa, pb, pc, alpha, beta)

    def __call__(self, stream: Any = None) -> Any:
        """Launch, and give `out`; on another stream if one is named."""
        handle = self._library.stream(self.out, self._device) if stream is None else self.handle_of(stream)
        if self._fixed is not None:
            self._fixed(handle)
            return self.out
        alpha, beta = self._scalars
        for a, b, c in self._pointers:
            self.recipe.run(a, b, c, alpha, beta, handle)
        return self.out

    def finished(self, like: Any) -> Any:
        """After a call: the result as an array of the caller's library."""
        if self._library.waits:
            self.synchronize(self._library.stream(like, self._device))
        return self._library.result(self.out, like) if self._new else self.out

    def runnable(self, kernel: Any, index: int) -> Any:
        """The device, if it can run the kernel's code; else a ValueError."""
        raise NotImplementedError

    def prepared(self, kernel: Any, on: Any, shadows: Sequence[Array], leading: Sequence[int]) -> Any:
        """A recipe for operands like these; ValueError if the plan cannot take them as they lie."""
        raise NotImplementedError

    def synchronize(self, stream: int) -> None:
        """Wait for all that the stream was given."""
        raise NotImplementedError

    @staticmethod
    def handle_of(stream: Any) -> int:
        """The handle of anybody's stream."""
        raise NotImplementedError


def through_copies(kernel: Any, a: Any, b: Any, out: Any, beta: float, platform: Platform,
                   work: Callable[[Sequence[Array]], None]) -> Any:
    """The same with NumPy arrays: they are checked, and `work` gets copies of A and B as the kernel wants them stored,
    and of C, which it leaves there."""
    p = kernel.problem
    for name, x in (("a", a), ("b", b), ("out", out)):
        if x is None:
            continue
        if not isinstance(x, np.ndarray):
            raise TypeError(f"{name} must be a NumPy array or an array in {platform.memory}, not {kind(x)}")
        if x.dtype != dtype_of(p, name):
            raise TypeError(f"{name} must have dtype {dtype_of(p, name)}, as the problem says, not {x.dtype}")
        if x.shape != shapes(p)[name]:
            raise ValueError(f"{name} must have shape {shapes(p)[name]}, not {x.shape}")
    stored = [np.ascontiguousarray(x.swapaxes(-1, -2) if letter == "t" else x) for x, letter in zip((a, b), p.layout)]
    product = result(kernel, out, beta)
    work([*stored, product])
    if out is None:
        return product
    np.copyto(out, product)
    return out


def result(kernel: Any, out: Array | None, beta: float) -> Array:
    """A new array for the product; with beta, it is what `out` is."""
    if out is None and beta:
        raise ValueError(f"beta = {beta} needs an out to multiply")
    if out is not None and not out.flags.writeable:
        raise ValueError("out is read-only; it must be an array that can be written to")
    product = np.empty(shapes(kernel.problem)["out"], dtype_of(kernel.problem, "out"))
    if beta:
        np.copyto(product, out)  # type: ignore[arg-type]
    return product
