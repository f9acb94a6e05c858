"""A compiled GEMM made ready: for a device and operands of given strides (`Recipe`), for arrays (`Bound`, `Maker`).

What a compiled kernel must have for this: `problem`, `target`, `plan`, `loadable` (the code, and a manifest with the
kernel's parameters), and `launches`, each with a `grid`, the bytes of `workspace` and of `counters`, which are zero
before and after, and the values of `more` parameters by name. A kernel takes which of these parameters it likes, by
name: m, n, k, the operands a, b, c with lda, ldb, ldc, the factors alpha and beta, workspace and counters, the scales
of block-scaled operands, and `more`. To a parameter of any other name nothing is given silently: it is a TypeError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.formats.blocks import BLOCK_FORMATS
from tilewright.formats.operands import check_operand
from tilewright.formats.quantized import Quantized
from tilewright.runtime.gpu import operands
from tilewright.runtime.gpu.arrays import CUDA, HIP, DeviceArray, Platform, kind, library_of, shadow
from tilewright.runtime.gpu.driver import handle_of
from tilewright.runtime.gpu.launch import Arguments, Function
from tilewright.runtime.gpu.operands import dtype_of, shapes

Array = NDArray[Any]
GIVEN_LATER = dict.fromkeys(("a", "b", "c", "alpha", "beta", "workspace", "counters"), 0)


class Recipe:
    """`run(a, b, c, alpha, beta, stream)` with the addresses of operands of these leading dimensions, in elements, or
    in bytes if they are packed. `more`: the values of further parameters, by name."""

    def __init__(self, driver: Any, kernel: Any, on: Any, lda: int, ldb: int, ldc: int, **more: Any) -> None:
        p = kernel.problem
        values = {"m": p.m, "n": p.n, "k": getattr(kernel, "shape", p).k, "lda": lda, "ldb": ldb, "ldc": ldc, **more}
        self.steps: list[Step] = []
        if kernel.launches:  # an empty product has no code
            code = kernel.loadable
            function = driver.load(code.image, on).function(code.manifest)
            self.steps = [Step(driver, function, launch, values) for launch in kernel.launches]

    def run(self, a: int, b: int, c: int, alpha: float, beta: float, stream: int) -> None:
        for step in self.steps:
            step.run(a, b, c, alpha, beta, stream)


class Step:
    """One launch of a recipe. A block of arguments is one call's at a time, and then kept for others."""

    def __init__(self, driver: Any, function: Function, launch: Any, values: dict[str, Any]) -> None:
        values = GIVEN_LATER | values | dict(launch.more)
        named = {p.name: p for p in function.parameters}
        self.prepared = driver.Prepared(function, launch.grid, {x: values[x] for x in named if x in values})
        self.device, self.workspaces = function.device, driver.workspaces
        self.spare: list[Arguments] = []
        self.a, self.b, self.c = (named[x].offset // 8 for x in "abc")  # where in a block's words
        self.size = named["alpha"].size
        self.alpha, self.beta = (named[x].offset // self.size for x in ("alpha", "beta"))  # in its scalars
        self.alpha_bits, self.beta_bits = named["alpha"].scalar(), named["beta"].scalar()
        self.one = self.alpha_bits(1.0)
        self.bytes = launch.workspace, launch.counters
        self.needs_workspace = "workspace" in named
        self._launch = self.prepared.launch
        if self.needs_workspace:
            self.workspace, self.counters = named["workspace"].offset // 8, named["counters"].offset // 8
            self._launch = self._with_workspace
            self.workspaces.prepare(self.device)

    def fixed(self, a: int, b: int, c: int, alpha: float, beta: float) -> Callable[[int], None] | None:
        """The launch with these operands, of which nothing but the stream changes; None if it needs a workspace."""
        if self.needs_workspace:
            return None
        launch: Callable[[int], None] = self.prepared.holding(self._filled(a, b, c, alpha, beta))
        return launch

    def run(self, a: int, b: int, c: int, alpha: float, beta: float, stream: int) -> None:
        arguments = self._filled(a, b, c, alpha, beta)
        self.prepared.inside(self._launch, stream, arguments)
        self.spare.append(arguments)

    def _filled(self, a: int, b: int, c: int, alpha: float, beta: float) -> Arguments:
        try:
            arguments = self.spare.pop()
        except IndexError:
            arguments = self.prepared.arguments()
            arguments.scalars = arguments.of(self.size)
        words, scalars = arguments.words, arguments.scalars
        words[self.a], words[self.b], words[self.c] = a, b, c
        scalars[self.alpha] = self.one if alpha == 1.0 else self.alpha_bits(alpha)
        scalars[self.beta] = self.beta_bits(beta) if beta else 0
        return arguments

    def _with_workspace(self, stream: int, arguments: Any) -> None:
        words = arguments.words
        found = self.workspaces.get(self.device, *self.bytes, stream, arguments.answers)
        if found is not None:
            words[self.workspace], words[self.counters] = found.workspace, found.counters
            self.prepared.launch(stream, arguments)
            return
        memory, counters = self.workspaces.recorded(self.device, *self.bytes, stream)
        with memory:
            words[self.workspace], words[self.counters] = memory.pointer, counters
            self.prepared.launch(stream, arguments)


class Bound:
    """A kernel with its operands: `bound()` multiplies into `bound.out`, on the stream that is the caller's just then.

    The arrays are kept, and what they hold when the kernel runs is what counts. It may be called from several threads.
    """

    def __init__(self, maker: Maker, kernel: Any, a: Any, b: Any, out: Any, alpha: float, beta: float) -> None:
        if out is None and beta:
            raise ValueError(f"out must be given if beta is not 0, and beta is {beta}")
        self._maker, self._scalars, self._fixed, self._new = maker, (alpha, beta), None, out is None
        p = kernel.problem
        steps = [0, 0, 0]  # in bytes, from one matrix of a batch to the next
        if p.a in BLOCK_FORMATS:
            at = self._quantized(kernel, a, b, out)
        else:
            at, steps = self._in_memory(kernel, a, b, out)
        self._pointers = [[x + i * step for x, step in zip(at, steps)] for i in range(p.batch if p.m and p.n else 0)]
        if len(self._pointers) == len(self.recipe.steps) == 1:
            pa, pb, pc = self._pointers[0]
            self._fixed = self.recipe.steps[0].fixed(pa, pb, pc, alpha, beta)

    def _in_memory(self, kernel: Any, a: Any, b: Any, out: Any) -> tuple[list[int], list[int]]:
        """Arrays in the GPU's memory: their addresses, and their steps through a batch."""
        platform, p = self._maker.platform, kernel.problem
        library = operands.library_of_all(a=a, b=b, out=out)
        if library is None or library.platform is not platform:
            raise TypeError(f"a must be an array in {platform.memory}, not {kind(a)}")
        self._library, self._device = library, operands.same_device(library, a=a, b=b, out=out)
        stream = library.stream(a, self._device)
        on = self._on = self._maker.runnable(kernel, self._device)
        self.out = library.empty(shapes(p)["out"], dtype_of(p, "out"), self._device, stream) if out is None else out
        self._looks = tuple(library.look(x, name, stream, name == "out")
                            for name, x in (("a", a), ("b", b), ("out", self.out)))
        leading = [operands.operand(kernel, name, look.shadow) for name, look in zip(("a", "b", "out"), self._looks)]
        shadows = [look.shadow for look in self._looks]
        operands.no_overlap(*shadows)
        operands.check(kernel, shadows)
        self.recipe = Recipe(self._maker.driver, kernel, on, *leading)
        return [x.pointer for x in self._looks], [x.strides[0] if p.batch != 1 else 0 for x in shadows]

    def _quantized(self, kernel: Any, a: Any, b: Any, out: Any) -> list[int]:
        """Quantized operands, which are copied to the GPU once and stay there. `out` is an array in its memory, or None
        for a new one. Their addresses."""
        maker, driver = self._maker, self._maker.driver
        for name, x in (("a", a), ("b", b)):
            check_operand(name, x, getattr(kernel.problem, name), shapes(kernel.problem)[name], given=kind(x))
        if out is None:
            p = kernel.problem
            out = DeviceArray(maker.platform, driver.device(0), shapes(p)["out"], dtype_of(p, "out"))
        self.out, library = out, library_of(out)
        if library is None or library.platform is not maker.platform:
            raise TypeError(f"out must be an array in {maker.platform.memory}, not {kind(out)}")
        self._library, self._device = library, library.device(out)
        on = self._on = maker.runnable(kernel, self._device)
        look = library.look(out, "out", library.stream(out, self._device), True)
        copies = [driver.Memory.upload(on, part) for x in (a, b) for part in (x.elements, x.scales)]
        self._looks = look, *copies
        ldc = operands.operand(kernel, "out", look.shadow)
        self.recipe = _quantized_recipe(driver, kernel, on, a, b, ldc, copies[1].pointer, copies[3].pointer)
        return [copies[0].pointer, copies[2].pointer, look.pointer]

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
            self._maker.driver.synchronize(self._on, self._library.stream(like, self._device))
        return self._library.result(self.out, like) if self._new else self.out


class Maker:
    """The GPUs of NVIDIA or AMD, by the driver's binding, for compiled kernels."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform

    @property
    def driver(self) -> Any:
        """The binding, imported when it is first needed."""
        return self.platform.driver

    def runnable(self, kernel: Any, index: int) -> Any:
        """The device of this number, if it can run the kernel's code; else a ValueError."""
        on = self.driver.device(index)
        if not on.runs(kernel.target):
            raise ValueError(f"the kernel is for {kernel.target.name}, and {on.name} runs {on.target.name} code")
        return on

    def bind(self, kernel: Any, a: Any, b: Any, out: Any = None, *, alpha: float = 1.0, beta: float = 0.0) -> Bound:
        """The kernel with these arrays in the GPU's memory, everything ready to launch: alpha * A @ B + beta * out.

        Arrays are given as they are multiplied, as for `call`; out is made if it is None. Operands of a block-scaled
        problem are Quantized, and copied to the GPU.
        """
        return Bound(self, kernel, a, b, out, float(alpha), float(beta))

    def call(self, kernel: Any, a: Any, b: Any, out: Any = None, *, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """alpha * A @ B + beta * out by this kernel; into `out`, or into a new array.

        a and b are given as they are multiplied, [m, k] and [k, n] (with a leading axis if the problem has a batch): an
        operand of layout "t" is a view like x.T. Arrays in the GPU's memory (torch, CuPy, DLPack, DeviceArray) are used
        where they are, on their library's current stream. NumPy arrays are copied to the first GPU, and the result
        back, as Quantized operands are unless `out` is on a GPU.
        """
        scaled = kernel.problem.a in BLOCK_FORMATS
        there = operands.library_of_all(out=out) if scaled else operands.library_of_all(a=a, b=b, out=out)
        if there is not None:
            bound = self.bind(kernel, a, b, out, alpha=alpha, beta=beta)
            bound()
            return bound.finished(out if scaled else a)
        stored = self._stored(kernel, a, b, out)
        product = _new_product(kernel, out, beta)
        self._copied(kernel, [*stored[:2], product, *stored[2:]], float(alpha), float(beta), (a, b) if scaled else None)
        if out is None:
            return product
        np.copyto(out, product)
        return out

    def _stored(self, kernel: Any, a: Any, b: Any, out: Any) -> list[Array]:
        """A and B, checked, as the kernel wants them stored: NumPy arrays, or the elements of Quantized operands and
        then their scales."""
        p, allowed = kernel.problem, f"a NumPy array or an array in {self.platform.memory}"
        for name, x in (("a", a), ("b", b), ("out", out)):
            if x is not None or name != "out":
                check_operand(name, x, getattr(p, name), shapes(p)[name], allowed=allowed, given=kind(x))
        if p.a in BLOCK_FORMATS:
            return [a.elements, b.elements, a.scales, b.scales]
        return [np.ascontiguousarray(x.swapaxes(-1, -2) if letter == "t" else x)
                for x, letter in zip((a, b), p.layout)]

    def _copied(self, kernel: Any, arrays: Sequence[Array], alpha: float, beta: float,
                quantized: tuple[Quantized, Quantized] | None) -> None:
        """The product of arrays that lie as the kernel wants them, A, B, C and scales, on the first GPU."""
        driver, p, on, product = self.driver, kernel.problem, self.runnable(kernel, 0), arrays[2]
        if not kernel.launches:
            product[...] = product * product.dtype.type(beta) if beta else 0
            return
        stream = driver.Stream(on)
        with ExitStack() as stack:
            there = [stack.enter_context(driver.Memory.upload(on, x)) for x in arrays]
            if quantized is not None:
                scales = there[3].pointer, there[4].pointer
                recipe = _quantized_recipe(driver, kernel, on, *quantized, product.shape[-1], *scales)
            else:
                stored = [shadow(memory.pointer, x.shape, x.strides, x.dtype) for memory, x in zip(there, arrays)]
                operands.check(kernel, [x.swapaxes(-1, -2) if letter == "t" else x
                                        for x, letter in zip(stored, p.layout + "n")])
                recipe = Recipe(driver, kernel, on, *(x.shape[-1] for x in arrays))
            for i in range(p.batch):
                a, b, c = (memory.pointer + i * (x.nbytes // p.batch) for memory, x in zip(there[:3], arrays))
                recipe.run(a, b, c, alpha, beta, stream.handle)
            stream.synchronize()
            there[2].download(product)


NVIDIA = Maker(CUDA)
AMD = Maker(HIP)


def _quantized_recipe(driver: Any, kernel: Any, on: Any, a: Quantized, b: Quantized, ldc: int, scale_a: int,
                      scale_b: int) -> Recipe:
    """Of packed operands that are stored as Quantized has them, their scales at these addresses."""
    return Recipe(driver, kernel, on, a.elements.shape[-1], b.elements.shape[-1], ldc, scale_a=scale_a, scale_b=scale_b,
                  ld_scale_a=a.scales.shape[-1], ld_scale_b=b.scales.shape[-1])


def _new_product(kernel: Any, out: Array | None, beta: float) -> Array:
    """A new array for the product; with beta, it is what `out` is."""
    if out is None and beta:
        raise ValueError(f"out must be given if beta is not 0, and beta is {beta}")
    if out is not None and not out.flags.writeable:
        raise ValueError("out is read-only; it must be an array that can be written to")
    product = np.empty(shapes(kernel.problem)["out"], dtype_of(kernel.problem, "out"))
    if beta:
        np.copyto(product, out)  # type: ignore[arg-type]
    return product
