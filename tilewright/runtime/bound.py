"""A compiled GPU kernel made ready: for a device and operands of given strides (`Recipe`), for arrays (`bind`, `call`).

A kernel for a GEMM takes the PARAMETERS below; the last two if its CTAs add up parts of a sum. What a compiled kernel
must have for this: `problem`, `target`, `ptx`, and `launches`, each with `function` (its `name`, and its CTA's
`threads`), `grid`, `shared_bytes`, and the bytes of `workspace` and of `counters`, which are zero before and after. If
its `plan` has a `vector`, that many elements are moved at once, and operands must lie accordingly: see `together`.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright import formats
from tilewright.runtime import cuda, device_memory
from tilewright.runtime.arrays import Library, kind, library_of, shadow
from tilewright.runtime.cuda import Arguments, Device, Prepared, bits
from tilewright.runtime.streams import handle_of, synchronize

if TYPE_CHECKING:
    from tilewright.problem import Gemm

Array = NDArray[Any]

WIDEST = 16  # bytes that a thread moves at once


PARAMETERS = ("m", "n", "k", "alpha", "a", "lda", "b", "ldb", "beta", "c", "ldc", "workspace", "counters",
              "whole", "parts")
ALPHA, A, B, BETA, C, WORKSPACE, COUNTERS = (PARAMETERS.index(name) for name in
                                             ("alpha", "a", "b", "beta", "c", "workspace", "counters"))  # fmt: skip


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


class Bound:
    """A kernel with its operands: `bound()` multiplies into `bound.out`, on the stream that is the caller's just then.

    The arrays are kept, and what they hold when the kernel runs is what counts. It may be called from several threads.
    """

    def __init__(self, kernel: Any, a: Any, b: Any, out: Any, alpha: float, beta: float) -> None:
        library = common(a=a, b=b, out=out)
        if library is None:
            raise TypeError(f"a must be an array in a CUDA device's memory, not {kind(a)}")
        self._library = library
        if out is None and beta:
            raise ValueError(f"beta = {beta} needs an out to multiply")
        p = kernel.problem
        self._device = same_device(library, a=a, b=b, out=out)
        stream = library.stream(a, self._device)
        on = runnable(kernel, self._device)
        self._new = out is None
        self.out = library.empty(_shapes(p)["out"], _dtype(p), self._device, stream) if out is None else out
        self._looks = tuple(library.look(x, name, stream, name == "out")
                            for name, x in (("a", a), ("b", b), ("out", self.out)))  # fmt: skip
        leading = [operand(kernel, name, look.shadow) for name, look in zip(("a", "b", "out"), self._looks)]
        a_shadow, b_shadow, c_shadow = (look.shadow for look in self._looks)
        no_overlap(a_shadow, b_shadow, c_shadow)
        lies(kernel, together(a_shadow, b_shadow, c_shadow))
        self.recipe = Recipe(kernel, on, *leading)
        steps = [look.shadow.strides[0] if p.batch != 1 else 0 for look in self._looks]
        at = [look.pointer for look in self._looks]
        self._pointers = [[x + i * step for x, step in zip(at, steps)] for i in range(p.batch if p.m and p.n else 0)]
        self._scalars = alpha, beta
        self._fixed: Prepared | None = None
        if len(self._pointers) == len(self.recipe.steps) == 1:
            pa, pb, pc = self._pointers[0]
            self._fixed = self.recipe.steps[0].fixed(pa, pb, pc, alpha, beta)

    def __call__(self, stream: Any = None) -> Any:
        """Launch, and give `out`; on another stream if one is named."""
        handle = self._library.stream(self.out, self._device) if stream is None else handle_of(stream)
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
            synchronize(cuda.device(self._device), self._library.stream(like, self._device))
        return self._library.result(self.out, like) if self._new else self.out


def bind(kernel: Any, a: Any, b: Any, out: Any = None, *, alpha: float = 1.0, beta: float = 0.0) -> Bound:
    """The kernel with these CUDA arrays, everything ready to launch: alpha * A @ B + beta * out.

    Arrays are given as they are multiplied, as for `call`; out is made if it is None.
    """
    return Bound(kernel, a, b, out, float(alpha), float(beta))


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
    return _through_copies(kernel, a, b, out, float(alpha), float(beta))


def _through_copies(kernel: Any, a: Any, b: Any, out: Any, alpha: float, beta: float) -> Any:
    p = kernel.problem
    shapes, dtype = _shapes(p), _dtype(p)
    for name, x in (("a", a), ("b", b), ("out", out)):
        if x is None:
            continue
        if not isinstance(x, np.ndarray):
            raise TypeError(f"{name} must be a NumPy array or an array in a CUDA device's memory, not {kind(x)}")
        if x.dtype != dtype:
            raise TypeError(f"{name} must have dtype {dtype}, as the problem says, not {x.dtype}")
        if x.shape != shapes[name]:
            raise ValueError(f"{name} must have shape {shapes[name]}, not {x.shape}")
    if out is None and beta:
        raise ValueError(f"beta = {beta} needs an out to multiply")
    if out is not None and not out.flags.writeable:
        raise ValueError("out is read-only; it must be an array that can be written to")
    on = runnable(kernel, 0)
    stored = [np.ascontiguousarray(x.swapaxes(-1, -2) if letter == "t" else x) for x, letter in zip((a, b), p.layout)]
    product = np.empty(shapes["out"], dtype)
    if beta:
        np.copyto(product, out)
    stream = cuda.Stream(on)
    with ExitStack() as stack:
        on_device = [stack.enter_context(device_memory.upload(on, x, stream)) for x in (*stored, product)]
        if p.m and p.n:
            lies(kernel, together(*(shadow(block.pointer, x.shape, x.strides, dtype)
                                    for block, x in zip(on_device, (*stored, product)))))  # fmt: skip
            recipe = Recipe(kernel, on, *(x.shape[-1] for x in (*stored, product)))
            for i in range(p.batch):
                at = [block.pointer + i * (x.nbytes // p.batch) for block, x in zip(on_device, (*stored, product))]
                recipe.run(at[0], at[1], at[2], alpha, beta, stream.handle)
        device_memory.download(on_device[2], product)
    if out is None:
        return product
    np.copyto(out, product)
    return out


# ---- what arguments may be


def common(**named: Any) -> Library | None:
    """The library of all these CUDA arrays; None if none of them is one. TypeError if they are of different kinds."""
    found = {name: library_of(x) for name, x in named.items() if x is not None}
    first = next((library for library in found.values() if library is not None), None)
    if first is None:
        return None
    which = next(name for name, library in found.items() if library is first)
    for name, library in found.items():
        if library is not first:
            where = "" if library else ", which is not"
            raise TypeError(
                f"{which} is {kind(named[which])} in a CUDA device's memory, and {name} is {kind(named[name])}{where}; "
                "all arrays of a product must be of one library and on one device"
            )
    return first


def same_device(library: Library, **named: Any) -> int:
    """The number of the device that all these arrays are on; ValueError if there is no such."""
    found = {name: library.device(x) for name, x in named.items() if x is not None}
    (first, device), *others = found.items()
    for name, other in others:
        if other != device:
            raise ValueError(f"{first} is on CUDA device {device} and {name} on CUDA device {other}; move one of them")
    return device


def runnable(kernel: Any, index: int) -> Device:
    """The device, if it can run the kernel's code."""
    on = cuda.device(index)
    if not on.runs(kernel.target):
        raise ValueError(f"the kernel is for {kernel.target.name}, and {on.name} runs {on.target.name} code")
    return on


def operand(kernel: Any, name: str, shadow: Array) -> int:
    """The leading dimension of an operand, in elements; an exception if the kernel cannot use it as it lies."""
    p = kernel.problem
    shape, dtype = _shapes(p)[name], _dtype(p)
    if shadow.dtype != dtype:
        raise TypeError(f"{name} must have dtype {dtype}, as the problem says, not {shadow.dtype}")
    if shadow.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, not {shadow.shape}")
    by_rows = name == "out" or p.layout["ab".index(name)] == "n"
    matrix = shadow[0] if p.batch > 1 else shadow
    found = leading(matrix if by_rows else matrix.T)
    if found is None or (name == "out" and found < shape[-1] and shape[-2] > 1):
        raise ValueError(
            f"{name} must have contiguous {'rows' if by_rows else 'columns'}"
            + (f", as layout {p.layout!r} says" if name != "out" else "")
            + f", but its strides are {shadow.strides} bytes"
        )
    return found


def leading(matrix: Array) -> int | None:
    """Elements from one row to the next; None if rows are not contiguous. A single row may be followed by anything."""
    rows, columns = matrix.shape
    row, column = matrix.strides
    if columns > 1 and column != matrix.itemsize:
        return None
    if rows <= 1:
        return columns
    return row // matrix.itemsize if row % matrix.itemsize == 0 else None


def together(*matrices: Array) -> int:
    """How many elements of these matrices can be moved at once, up to 16 bytes: addresses, distances of rows (or
    columns, or matrices of a batch) and lengths of contiguous rows (or columns) are all multiples of so many."""
    size = matrices[0].itemsize
    bits = WIDEST
    for x in matrices:
        bits |= x.__array_interface__["data"][0]
        for extent, stride in zip(x.shape, x.strides):
            if extent > 1:
                bits |= extent * size if stride == size else stride
        if not any(extent > 1 and stride == size for extent, stride in zip(x.shape, x.strides)):
            bits |= size  # no two elements side by side
    return (bits & -bits) // size


def lies(kernel: Any, vector: int) -> None:
    """ValueError if the kernel moves more elements at once than the operands allow."""
    wanted = moved_at_once(kernel)
    if wanted > vector:
        raise ValueError(
            f"the plan moves {wanted} elements at once, and these operands allow {vector}: addresses, strides and "
            f"contiguous extents must be multiples of {wanted} elements; tilewright.matmul chooses a plan that fits"
        )


def moved_at_once(kernel: Any) -> int:
    return int(getattr(getattr(kernel, "plan", None), "vector", 1))


def no_overlap(a: Array, b: Array, out: Array) -> None:
    """ValueError if the output shares memory with an operand, by their bounds."""
    for name, x in (("a", a), ("b", b)):
        if np.may_share_memory(out, x):
            raise ValueError(f"out overlaps {name}; tilewright.matmul makes the copy that this needs")


def _shapes(p: Gemm) -> dict[str, tuple[int, ...]]:
    batch = (p.batch,) if p.batch != 1 else ()
    return {"a": (*batch, p.m, p.k), "b": (*batch, p.k, p.n), "out": (*batch, p.m, p.n)}


def _dtype(p: Gemm) -> np.dtype[Any]:
    return formats.FORMATS[p.out].dtype
