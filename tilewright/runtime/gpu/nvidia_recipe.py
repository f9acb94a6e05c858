"""A compiled GPU kernel made ready: for a device and operands of given strides (`Recipe`), for arrays (`bind`, `call`).

A kernel for a GEMM takes the PARAMETERS below; the last two if its CTAs add up parts of a sum. What a compiled kernel
must have for this: `problem`, `target`, `ptx`, and `launches`, each with `function` (its `name`, and its CTA's
`threads`), `grid`, `shared_bytes`, and the bytes of `workspace` and of `counters`, which are zero before and after. If
its `plan` has a `vector`, that many elements are moved at once, and operands must lie accordingly: see `together`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from tilewright.runtime.cuda import memory as device_memory
from tilewright.runtime.cuda import module as cuda
from tilewright.runtime.cuda.module import Arguments, Device, Prepared, bits
from tilewright.runtime.cuda.stream import handle_of, synchronize
from tilewright.runtime.gpu.arrays import CUDA, shadow
from tilewright.runtime.gpu.binding import Array, Bound, through_copies
from tilewright.runtime.gpu.operands import common, lies, together

PARAMETERS = ("m", "n", "k", "alpha", "a", "lda", "b", "ldb", "beta", "c", "ldc", "workspace", "counters",
              "whole", "parts")
ALPHA, A, B, BETA, C, WORKSPACE, COUNTERS = (PARAMETERS.index(name) for name in
                                             ("alpha", "a", "b", "beta", "c", "workspace", "counters"))


class Recipe:
    """`run(a, b, c, alpha, beta, stream)` with the addresses of operands of these leading dimensions, in elements."""

    def __init__(self, kernel: Any, on: Device, lda: int, ldb: int, ldc: int) -> None:
        p = kernel.problem
        module = cuda.load(kernel.ptx, on)
        values = {"m": p.m, "n": p.n, "k": p.k, "lda": lda, "ldb": ldb, "ldc": ldc}
        self.steps = [_Step(module, launch, values) for launch in kernel.launches]

    def run(self, a: int, b: int, c: int, alpha: float, beta: float, stream: int) -> None:
        for step in self.steps:
            step.run(a, b, c, alpha, beta, stream)


class _Step:
    """One launch of a recipe. A block of arguments is one call's at a time, and then kept for others."""

    def __init__(self, module: cuda.Module, launch: Any, values: dict[str, int]) -> None:
        recorded = getattr(launch, "entry", None) or launch.function
        function = module.function(recorded.name)
        self.device, self.size = function.device, function.sizes[ALPHA]
        dynamic = 0 if function.usage.shared else launch.shared_bytes  # a module declares all of it or nothing
        values = values | dict(getattr(launch, "more", ()))
        args = [values.get(name, 0) for name in PARAMETERS[: len(function.sizes)]]
        self.prepared = Prepared(function, launch.grid, recorded.threads, dynamic, args)
        self.context = self.prepared.context
        self.spare: list[Arguments] = []
        self.one = bits(1.0, self.size)
        self.space = (launch.workspace, launch.counters) if len(args) > WORKSPACE else None
        if self.space is not None:
            device_memory.prepare(self.device)      # so that recording a graph makes no pool

    def fixed(self, a: int, b: int, c: int, alpha: float, beta: float) -> Prepared | None:
        """The launch with these operands, of which nothing but the stream changes; None if it needs a workspace."""
        if self.space is not None:
            return None
        scalars = {ALPHA: bits(alpha, self.size), BETA: bits(beta, self.size) if beta else 0}
        return self.prepared.holding({A: a, B: b, C: c, **scalars})

    def run(self, a: int, b: int, c: int, alpha: float, beta: float, stream: int) -> None:
        try:
            block = self.spare.pop()
        except IndexError:
            block = Arguments(self.prepared.values)
        slots = block.slots
        slots[A], slots[B], slots[C] = a, b, c
        slots[ALPHA] = self.one if alpha == 1.0 else bits(alpha, self.size)
        slots[BETA] = bits(beta, self.size) if beta else 0
        if block.answers.context() == self.context:
            self._launch(block, stream)
        else:
            with self.device.current():
                self._launch(block, stream)
        self.spare.append(block)

    def _launch(self, block: Arguments, stream: int) -> None:
        if self.space is None:
            self.prepared.launch(stream, block.address)
            return
        slots = block.slots
        space = device_memory.space(self.device, *self.space, stream, block.answers)
        if space is not None:
            slots[WORKSPACE], slots[COUNTERS] = space.workspace, space.counters
            self.prepared.launch(stream, block.address)
            return
        memory, counters = device_memory.recorded_space(self.device, *self.space, stream)
        with memory:
            slots[WORKSPACE], slots[COUNTERS] = memory.pointer, counters
            self.prepared.launch(stream, block.address)


class CudaBound(Bound):
    """`bound()` multiplies into `bound.out`, on the stream that is the caller's just then: see Bound."""

    platform = CUDA

    def runnable(self, kernel: Any, index: int) -> Device:
        return runnable(kernel, index)

    def prepared(self, kernel: Any, on: Device, shadows: Sequence[Array], leading: Sequence[int]) -> Recipe:
        lies(kernel, together(*shadows))
        return Recipe(kernel, on, *leading)

    def synchronize(self, stream: int) -> None:
        synchronize(self._on, stream)

    @staticmethod
    def handle_of(stream: Any) -> int:
        return handle_of(stream)


def bind(kernel: Any, a: Any, b: Any, out: Any = None, *, alpha: float = 1.0, beta: float = 0.0) -> CudaBound:
    """The kernel with these CUDA arrays, everything ready to launch: alpha * A @ B + beta * out.

    Arrays are given as they are multiplied, as for `call`; out is made if it is None.
    """
    return CudaBound(kernel, a, b, out, float(alpha), float(beta))


def call(kernel: Any, a: Any, b: Any, out: Any = None, *, alpha: float = 1.0, beta: float = 0.0) -> Any:
    """alpha * A @ B + beta * out by this kernel; into `out`, or into a new array.

    a and b are given as they are multiplied, [m, k] and [k, n] (with a leading axis if the problem has a batch): an
    operand of layout "t" is a view like x.T. CUDA arrays are used where they are, on their library's current stream;
    NumPy arrays are copied to the first device, and the result back.
    """
    if common(a=a, b=b, out=out) is not None:
        bound = bind(kernel, a, b, out, alpha=alpha, beta=beta)
        bound()
        return bound.finished(a)
    return through_copies(kernel, a, b, out, beta, CUDA, lambda on: _copied(kernel, on, float(alpha), float(beta)))


def _copied(kernel: Any, arrays: Sequence[Array], alpha: float, beta: float) -> None:
    """The product of NumPy arrays that lie as the kernel wants them, on the first device."""
    p, on = kernel.problem, runnable(kernel, 0)
    stream = cuda.Stream(on)
    with ExitStack() as stack:
        on_device = [stack.enter_context(device_memory.upload(on, x, stream)) for x in arrays]
        if p.m and p.n:
            lies(kernel, together(*(shadow(block.pointer, x.shape, x.strides, x.dtype)
                                    for block, x in zip(on_device, arrays))))
            recipe = Recipe(kernel, on, *(x.shape[-1] for x in arrays))
            for i in range(p.batch):
                at = [block.pointer + i * (x.nbytes // p.batch) for block, x in zip(on_device, arrays)]
                recipe.run(at[0], at[1], at[2], alpha, beta, stream.handle)
        device_memory.download(on_device[2], arrays[2])


def runnable(kernel: Any, index: int) -> Device:
    """The device, if it can run the kernel's code."""
    on = cuda.device(index)
    if not on.runs(kernel.target):
        raise ValueError(f"the kernel is for {kernel.target.name}, and {on.name} runs {on.target.name} code")
    return on
