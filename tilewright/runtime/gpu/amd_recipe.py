"""A GEMM compiled for an AMD GPU, made ready: for a device and operands of given strides (`Recipe`), for arrays
(`bind`, `call`).

What a compiled kernel must have for this: `problem`, its `shape`, `target`, `plan`, `loadable` (code object and
manifest), and `launches`, each with a `grid` and the bytes of `workspace` and of `counters`, which are zero before and
after. Kernels take their arguments by the names that the manifest has; where each lies is in the manifest, too.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.formats.blocks import BLOCK_FORMATS
from tilewright.formats.quantized import Quantized
from tilewright.plans.gpu import REACH
from tilewright.runtime.gpu.arrays import ROCM, kind, library_of
from tilewright.runtime.gpu.binding import Array, Bound, result, through_copies
from tilewright.runtime.gpu.operands import common, dtype_of, operand, shapes
from tilewright.runtime.hip import memory as hip_memory
from tilewright.runtime.hip import module
from tilewright.runtime.hip.module import CODES, Arguments, Device, Prepared, Stream

ROWS = 256  # of a tile, at the most
DIRECT = 16  # bytes that a lane copies straight into LDS, and that rows and addresses must be multiples of then


class Recipe:
    """`run(a, b, c, alpha, beta, stream)` with the addresses of operands of these leading dimensions, in elements, or
    in bytes if they are packed. `more`: the values of further parameters, by name."""

    def __init__(self, kernel: Any, on: Device, lda: int, ldb: int, ldc: int, **more: int) -> None:
        p = kernel.problem
        code = kernel.loadable
        function = module.load(code.image, on).function(code.manifest)
        values = {"m": p.m, "n": p.n, "k": kernel.shape.k, "lda": lda, "ldb": ldb, "ldc": ldc, **more}
        self.steps = [_Step(function, launch, values) for launch in kernel.launches]

    def run(self, a: int, b: int, c: int, alpha: float, beta: float, stream: int) -> None:
        for step in self.steps:
            step.run(a, b, c, alpha, beta, stream)


class _Step:
    """One launch of a recipe. A block of arguments is one call's at a time, and then kept for others."""

    def __init__(self, function: module.HipFunction, launch: Any, values: dict[str, int]) -> None:
        parameters = function.manifest["arguments"]
        self.prepared = Prepared(function, launch.grid, [values.get(p["name"], 0) for p in parameters])
        self.device = function.device
        self.spare: list[Arguments] = []
        self.put = {p["name"]: _writer(p) for p in parameters}
        self.space = (launch.workspace, launch.counters) if "workspace" in self.put else None

    def fixed(self, a: int, b: int, c: int, alpha: float, beta: float) -> Callable[[int], None] | None:
        """The launch with these operands, of which nothing but the stream changes; None if it needs a workspace."""
        if self.space is not None:
            return None
        block = self._filled(a, b, c, alpha, beta)

        def launch(stream: int) -> None:
            with self.device.current():
                self.prepared.launch(stream, block)

        return launch

    def run(self, a: int, b: int, c: int, alpha: float, beta: float, stream: int) -> None:
        block = self._filled(a, b, c, alpha, beta)
        with self.device.current():
            self._launch(block, stream)
        self.spare.append(block)

    def _filled(self, a: int, b: int, c: int, alpha: float, beta: float) -> Arguments:
        try:
            block = self.spare.pop()
        except IndexError:
            block = Arguments(self.prepared.block)
        buffer, put = block.block, self.put
        put["a"](buffer, a)
        put["b"](buffer, b)
        put["c"](buffer, c)
        put["alpha"](buffer, alpha)
        put["beta"](buffer, beta)
        return block

    def _launch(self, block: Arguments, stream: int) -> None:
        if self.space is None:
            self.prepared.launch(stream, block)
            return
        space = hip_memory.space(self.device, *self.space, stream)
        if space is not None:
            self._with_space(block, space.workspace, space.counters, stream)
            return
        memory, counters = hip_memory.recorded_space(self.device, *self.space, stream)
        with memory:
            self._with_space(block, memory.pointer, counters, stream)

    def _with_space(self, block: Arguments, workspace: int, counters: int, stream: int) -> None:
        self.put["workspace"](block.block, workspace)
        self.put["counters"](block.block, counters)
        self.prepared.launch(stream, block)


def _writer(parameter: dict[str, Any]) -> Callable[[Any, Any], None]:
    """What writes this parameter's value where it belongs in a block of arguments."""
    code, offset, name = CODES[parameter["type"]], parameter["offset"], parameter["name"]
    pack = struct.Struct("<" + code).pack_into
    if code in "bhiq":  # alpha and beta, where integers are multiplied
        half = 1 << (8 * struct.calcsize("<" + code) - 1)

        def whole(block: Any, x: float) -> None:
            if not float(x).is_integer():
                raise TypeError(f"{name} must be a whole number where integers are multiplied, not {x!r}")
            pack(block, offset, (int(x) + half) % (2 * half) - half)

        return whole
    if code == "f":  # by way of ctypes, to which a number beyond its range is inf
        return lambda block, x: pack(block, offset, ctypes.c_float(x).value)
    return lambda block, x: pack(block, offset, x)


class RocmBound(Bound):
    """`bound()` multiplies into `bound.out`, on the stream that is the caller's just then: see Bound."""

    platform = ROCM

    def runnable(self, kernel: Any, index: int) -> Device:
        return runnable(kernel, index)

    def prepared(self, kernel: Any, on: Device, shadows: Sequence[Array], leading: Sequence[int]) -> Recipe:
        lies(kernel, shadows)
        return Recipe(kernel, on, *leading)

    def synchronize(self, stream: int) -> None:
        module.synchronize(self._on, stream)

    @staticmethod
    def handle_of(stream: Any) -> int:
        return module.handle_of(stream)


class ScaledBound(RocmBound):
    """The same with Quantized operands, which are copied to the GPU once and stay there. `out` is an array in its
    memory, or None for a new one."""

    def __init__(self, kernel: Any, a: Any, b: Any, out: Any, alpha: float, beta: float) -> None:
        p = kernel.problem
        for name, x in (("a", a), ("b", b)):
            _check(kernel, name, x)
        if out is None and beta:
            raise ValueError(f"beta = {beta} needs an out to multiply")
        self._new = out is None
        self.out = _new(module.device(0), kernel) if out is None else out
        library = library_of(self.out)
        if library is None or library.platform is not ROCM:
            raise TypeError(f"out must be an array in {ROCM.memory}, not {kind(out)}")
        self._library, self._device = library, library.device(self.out)
        self._on = self.runnable(kernel, self._device)
        look = library.look(self.out, "out", library.stream(self.out, self._device), True)
        self._operands = [module.upload(self._on, part) for x in (a, b) for part in (x.elements, x.scales)]
        self._looks = (look,)
        self.recipe = scaled_recipe(kernel, self._on, a, b, operand(kernel, "out", look.shadow),
                                    self._operands[1].pointer, self._operands[3].pointer)
        at = self._operands[0].pointer, self._operands[2].pointer, look.pointer
        self._pointers = [list(at)] if p.m and p.n else []
        self._scalars, self._fixed = (alpha, beta), None


def scaled_recipe(kernel: Any, on: Device, a: Quantized, b: Quantized, ldc: int, scale_a: int, scale_b: int) -> Recipe:
    """Of packed operands that are stored as Quantized has them, their scales at these addresses."""
    return Recipe(kernel, on, a.elements.shape[-1], b.elements.shape[-1], ldc, scale_a=scale_a, scale_b=scale_b,
                  ld_scale_a=a.scales.shape[-1], ld_scale_b=b.scales.shape[-1])


def bind(kernel: Any, a: Any, b: Any, out: Any = None, *, alpha: float = 1.0, beta: float = 0.0) -> RocmBound:
    """The kernel with these arrays in an AMD GPU's memory, everything ready to launch: alpha * A @ B + beta * out.

    Arrays are given as they are multiplied, as for `call`; out is made if it is None. Operands of a block-scaled
    problem are Quantized, and copied to the GPU.
    """
    bound = ScaledBound if kernel.problem.a in BLOCK_FORMATS else RocmBound
    return bound(kernel, a, b, out, float(alpha), float(beta))


def call(kernel: Any, a: Any, b: Any, out: Any = None, *, alpha: float = 1.0, beta: float = 0.0) -> Any:
    """alpha * A @ B + beta * out by this kernel; into `out`, or into a new array.

    a and b are given as they are multiplied, [m, k] and [k, n]: an operand of layout "t" is a view like x.T. Arrays in
    an AMD GPU's memory (torch, DLPack, RocmArray) are used where they are, on their library's current stream. NumPy
    arrays are copied to the first GPU, and the result back, as Quantized operands are unless `out` is on a GPU.
    """
    scaled = kernel.problem.a in BLOCK_FORMATS
    if (common(out=out) if scaled else common(a=a, b=b, out=out)) is not None:
        bound = bind(kernel, a, b, out, alpha=alpha, beta=beta)
        bound()
        return bound.finished(out if scaled else a)
    if scaled:
        return _scaled_through_copies(kernel, a, b, out, alpha, beta)
    return through_copies(kernel, a, b, out, beta, ROCM, lambda on: _copied(kernel, on, alpha, beta))


def _scaled_through_copies(kernel: Any, a: Any, b: Any, out: Any, alpha: float, beta: float) -> Any:
    for name, x in (("a", a), ("b", b)):
        _check(kernel, name, x)
    if out is not None and not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a NumPy array or an array in {ROCM.memory}, not {kind(out)}")
    if out is not None and (out.shape, out.dtype) != (shapes(kernel.problem)["out"], dtype_of(kernel.problem, "out")):
        raise ValueError(f"out must be {dtype_of(kernel.problem, 'out')} of shape {shapes(kernel.problem)['out']}, "
                         f"not {out.dtype} of {out.shape}")
    product = result(kernel, out, beta)
    _copied(kernel, [a.elements, b.elements, product, a.scales, b.scales], alpha, beta, (a, b))
    if out is None:
        return product
    np.copyto(out, product)
    return out


def _copied(kernel: Any, arrays: Sequence[NDArray[Any]], alpha: float, beta: float,
            scaled: tuple[Quantized, Quantized] | None = None) -> None:
    """The product of arrays that lie as the kernel wants them, A, B, C and scales, on the first GPU."""
    on, product = runnable(kernel, 0), arrays[2]
    if not kernel.launches:
        product[...] = product * product.dtype.type(beta) if beta else 0
        return
    stream, there = Stream(on), [module.upload(on, x) for x in arrays]
    a, b, c, *scales = (memory.pointer for memory in there)
    if scaled is not None:
        recipe = scaled_recipe(kernel, on, *scaled, product.shape[-1], *scales)
    else:
        lies(kernel, arrays[:2])
        recipe = Recipe(kernel, on, *(x.shape[-1] for x in arrays))
    recipe.run(a, b, c, alpha, beta, stream.handle)
    stream.synchronize()
    module.download(there[2], product)


def runnable(kernel: Any, index: int) -> Device:
    """The GPU, if it can run the kernel's code."""
    on = module.device(index)
    if on.target.name != kernel.target.name:
        raise ValueError(f"the kernel is for {kernel.target.name}, and {on.name} runs {on.target.name} code")
    return on


def lies(kernel: Any, shadows: Sequence[Array]) -> None:
    """ValueError if the plan copies rows of A and B straight into LDS that do not begin at multiples of 16 bytes."""
    if kernel.plan.copy == "direct" and not aligned(*shadows[:2]):
        raise ValueError(
            f"the plan copies rows straight into LDS, and these operands do not lie at multiples of {DIRECT} bytes, or "
            "their rows are too far apart; tilewright.matmul chooses a plan that fits"
        )


def aligned(*matrices: Array) -> bool:
    """Do addresses and distances of rows allow a plan with copy=direct?"""
    steps = [stride for x in matrices for n, stride in zip(x.shape, x.strides) if n > 1 and stride != x.itemsize]
    near = all(0 <= step * ROWS <= REACH for step in steps)
    return near and not any(x % DIRECT for x in (*steps, *(m.__array_interface__["data"][0] for m in matrices)))


def _check(kernel: Any, name: str, x: Any) -> None:
    """A block-scaled operand."""
    format, shape = getattr(kernel.problem, name), shapes(kernel.problem)[name]
    if not isinstance(x, Quantized):
        raise TypeError(f"{name} must be Quantized ({format}), not {kind(x)}")
    if x.format.name != format or x.shape != shape or x.axis != (-1 if name == "a" else -2):
        raise ValueError(f"{name} must be {format} of shape {shape} with blocks along k, not {x!r}")


def _new(on: Device, kernel: Any) -> Any:
    from tilewright.runtime.gpu.hip_arrays import RocmArray

    return RocmArray(on, shapes(kernel.problem)["out"], dtype_of(kernel.problem, "out"))
