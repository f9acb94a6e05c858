"""A compiled GEMM made ready: for a device and operands of given strides (`Recipe`), or for arrays (`Bound`).

What a compiled kernel must have for this: `problem`, `target`, `plan`, `inner` (itself, unless a call converts operands
or the result), `loadable` (the code, and a manifest with the kernel's parameters), and `launches`, each with a `grid`,
the bytes of `workspace` and of `counters`, which are zero before and after, and the values of `more` parameters by
name. Several launches follow each other on the stream and share a workspace; each has a `kernel` with its code, and
says which parameters are `at` which byte of the workspace. A kernel takes which of these parameters it likes, by name:
m, n, k, the operands a, b, c with lda, ldb, ldc, of a batch also stride_a, stride_b, stride_c, the factors alpha and
beta, workspace and counters, `kernel_arrays` with its strides, and `more`. a and b may be tensor maps, and c_map is
one of C. To a parameter of any other name nothing is given silently: it is a TypeError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.formats import BLOCK_FORMATS, FORMATS, Quantized
from tilewright.problem import kernel_arrays
from tilewright.runtime.gpu import auxiliary, blocks, operands
from tilewright.runtime.gpu.arrays import Library, Look
from tilewright.runtime.gpu.launch import Arguments
from tilewright.runtime.gpu.memory import handle_of, lines
from tilewright.targets.tensor_maps import BYTES as MAP_BYTES

if TYPE_CHECKING:
    from tilewright.runtime.gpu.engine import Engine

GIVEN_LATER = dict.fromkeys(("a", "b", "c", "alpha", "beta", "workspace", "counters", "target", "special",
                             "alpha_imaginary", "beta_imaginary"), 0)
IMAGINARY = "alpha_imaginary", "beta_imaginary"


class Step:
    """One launch of a product, of which addresses and factors are left open. A block of arguments is one call's at a
    time, and then kept for others.

    code        with the launch's kernel alone
    shape       of the operands that it multiplies, of which maps need the layout and prologues
    values      of parameters, by name
    beside      parameters whose addresses are given after those of A, B and C
    """

    def __init__(self, driver: Any, code: Any, launch: Any, on: Any, shape: Any, values: dict[str, Any],
                 beside: Sequence[str]) -> None:
        values = {**values, **dict(launch.more)}
        function = driver.load(code.image, on, code.machine).function(code.manifest)
        named = {p.name: p for p in function.parameters}
        tiles = {p.name: p.tile for p in function.parameters if p.tile is not None}
        maps = operands.maps(tiles, shape, values)
        values |= {x: bytes(named[x].size) for x in maps}
        self.prepared = driver.Prepared(function, launch.grid, {x: values[x] for x in named if x in values})
        self.device = function.device
        self.spare: list[Arguments] = []
        # where in a block addresses are, in words, and in bytes maps, with what makes them and of which operand
        self.pointers = [(named[x].offset // 8, i) for i, x in enumerate((*"abc", *beside))
                         if x in named and x not in maps]
        self.maps = [(named[x].offset, driver.TensorMaps(described, function.device), "abc".index(operands.MAPPED[x]))
                     for x, described in maps.items()]
        self.scalars = "alpha" in named
        if self.scalars:
            self.size = named["alpha"].size
            self.alpha, self.beta = (named[x].offset // self.size for x in ("alpha", "beta"))  # in its scalars
            self.alpha_bits, self.beta_bits = named["alpha"].scalar(), named["beta"].scalar()
            self.one = self.alpha_bits(1.0)
            self.imaginary = [named[x].offset // self.size for x in IMAGINARY if x in named]    # of complex numbers
        # of a product by several launches: A and B that earlier ones have left in the workspace, and what else is there
        at = dict(launch.at)
        self.moved = [at.get(x) for x in "abc"]
        self.inside = [(named[x].offset // 8, offset) for x, offset in launch.at if x in named and x not in "ab"]
        self.needs_workspace = "workspace" in named
        if self.needs_workspace:
            self.workspace, self.counters = named["workspace"].offset // 8, named["counters"].offset // 8

    def filled(self, addresses: Sequence[int], alpha: complex, beta: complex) -> Arguments:
        try:
            arguments = self.spare.pop()
        except IndexError:
            arguments = self.prepared.arguments()
            if self.scalars:
                arguments.scalars = arguments.numbers(self.size)
        words = arguments.words
        for at, i in self.pointers:
            words[at] = addresses[i]
        for at, maps, i in self.maps:
            address = addresses[i]
            arguments.view[at : at + MAP_BYTES] = maps.found.get(address) or maps(address)
        if self.scalars:
            self._scale(arguments.scalars, alpha, beta)
        return arguments

    def _scale(self, scalars: Any, alpha: complex, beta: complex) -> None:
        for at, x in zip(self.imaginary, (alpha, beta)):
            scalars[at] = self.beta_bits(x.imag)
        if self.imaginary:
            alpha, beta = alpha.real, beta.real
        scalars[self.alpha] = self.one if alpha == 1.0 else self.alpha_bits(alpha)
        scalars[self.beta] = self.beta_bits(beta) if beta else 0

    def scaled(self, alpha: complex, beta: complex) -> Any:
        """The launch with these factors, to be changed into one with addresses."""
        arguments = self.prepared.arguments()
        if self.scalars:
            self._scale(arguments.numbers(self.size), alpha, beta)
        return self.prepared.holding(arguments)

    def launch_within(self, workspace: int, counters: int, addresses: Sequence[int], alpha: complex, beta: complex,
                      stream: int) -> None:
        """Launch with this workspace, and what is there of the operands. The device must be current."""
        moved = zip_longest(addresses, self.moved)
        addresses = [x if offset is None else workspace + offset for x, offset in moved]
        arguments = self.filled(addresses, alpha, beta)
        for at, offset in self.inside:
            arguments.words[at] = workspace + offset
        if self.needs_workspace:
            arguments.words[self.workspace], arguments.words[self.counters] = workspace, counters
        self.prepared.launch(stream, arguments)
        self.spare.append(arguments)


class Recipe:
    """`run(a, b, c, alpha, beta, stream)` with the addresses of operands of these leading dimensions, in elements, or
    in bytes if they are packed, then of `kernel_arrays` and the kernel's own pointers. `more`: the values of
    further parameters, by name. The kernel's product is not empty. `tables`: addresses that all runs are given last.
    """

    tables: tuple[int, ...] = ()
    kept: Any = None                # the memory of the tables

    def __init__(self, driver: Any, kernel: Any, on: Any, lda: int, ldb: int, ldc: int, **more: Any) -> None:
        p, launches = kernel.problem, kernel.launches
        pointers = [*(x.parameter for x in kernel_arrays(p)), *getattr(kernel, "pointers", ())]
        values = {**GIVEN_LATER, **dict.fromkeys(pointers, 0),
                  "columns_c": p.shapes["out"][-1],
                  "m": p.m, "n": p.n, "k": getattr(kernel, "given", p).k, "lda": lda, "ldb": ldb, "ldc": ldc, **more}
        codes = [kernel.loadable] if len(launches) == 1 else [launch.kernel.loadable for launch in launches]
        shape = getattr(kernel, "shape", p)
        self.steps = [Step(driver, code, launch, on, shape, values, pointers) for code, launch in zip(codes, launches)]
        self.only = self.steps[0] if len(launches) == 1 else None
        self.device, self.workspaces, self.fill = self.steps[0].device, driver.workspaces, driver.fill
        self.bytes, self.zero = (launches[0].workspace, launches[0].counters), launches[0].zero
        self.room = lines(launches[0].workspace) + launches[0].counters      # of both, where several launches share it
        self.needs_workspace = self.only is None or self.only.needs_workspace
        if self.needs_workspace:
            self.workspaces.prepare(self.device)

    def fixed(self, a: int, b: int, c: int, alpha: complex, beta: complex, *beside: int) -> Any:
        """The launch with these operands, of which nothing but the stream changes; None if it needs a workspace."""
        if self.only is None or self.needs_workspace:
            return None
        return self.only.prepared.holding(self.only.filled((a, b, c, *beside), alpha, beta))

    def run(self, a: int, b: int, c: int, alpha: complex, beta: complex, stream: int, *beside: int) -> None:
        step = self.only
        if step is None:
            self._run_all((a, b, c, *beside), alpha, beta, stream)
            return
        arguments = step.filled((a, b, c, *beside), alpha, beta)
        if self.needs_workspace:
            step.prepared.inside(self._with_workspace, stream, arguments)
        else:
            step.prepared.attempt(stream, arguments)
        step.spare.append(arguments)

    def _with_workspace(self, stream: int, arguments: Any) -> None:
        step: Any = self.only
        words = arguments.words
        room = self.workspaces.get(self.device, *self.bytes, stream, arguments.answers)
        if room is not None:
            words[step.workspace], words[step.counters] = room.workspace, room.counters
            step.prepared.launch(stream, arguments)
            return
        memory, counters = self.workspaces.recorded(self.device, *self.bytes, stream)
        with memory:
            words[step.workspace], words[step.counters] = memory.pointer, counters
            step.prepared.launch(stream, arguments)

    def _run_all(self, addresses: Sequence[int], alpha: complex, beta: complex, stream: int) -> None:
        """Launch after launch. Operands that passes write are too large to be kept for a next call: the workspace is a
        block of the pool's, in the stream's order."""
        with self.device.current():
            memory, counters = self.workspaces.recorded(self.device, *self.bytes, stream)
            with memory:
                first, size = self.zero
                if size:
                    self.fill(memory.pointer + first, 0, size, stream)
                for step in self.steps:
                    step.launch_within(memory.pointer, counters, addresses, alpha, beta, stream)


class Bound:
    """A kernel with its operands: `bound()` multiplies into `bound.out`, on the stream that is the caller's just then.

    The arrays are kept, and what they hold when the kernel runs is what counts. Operands in the host's memory, NumPy's
    and Quantized, are copied to the GPU once and stay there. It may be called from several threads.
    """

    def __init__(self, engine: Engine, kernel: Any, library: Library, device: int, a: Any, b: Any, out: Any,
                 scalars: tuple[Any, ...], factors: Mapping[str, Any] | None = None,
                 operands_of: Mapping[str, Any] | None = None, outs: Sequence[Any] = ()) -> None:
        """`out`: an array of the library on the device, or None for a new one. `factors`: see scales_of_kernel.
        `operands_of` the epilogue, by name, and `outs`: its further results, or None for new arrays."""
        p, driver, on = kernel.problem, engine.driver, engine.runnable(kernel, device)
        self._engine, self._library, self._on, self._kernel = engine, library, on, kernel
        self._scalars, self._fixed, self._new = (scalars[0] * blocks.factor(a, b), scalars[1]), None, out is None
        self.beside: list[int] = []  # addresses of arrays beside A, B and C
        self.recipe: Recipe | None = None  # of an empty product, and where a call converts
        like = next(x for x in (out, *blocks.in_memory(a, b).values(), a) if x is not None)
        stream = engine.platform.default_stream if isinstance(like, Quantized) else library.stream(like, device)
        self.out = library.empty(p.shapes["out"], FORMATS[p.out].dtype, device, stream) if out is None else out
        self._kept: list[Look] = []

        def place(x: Any, name: str, by_columns: bool = False) -> Look:
            if isinstance(x, np.ndarray):
                self._kept.append(operands.uploaded(driver, on, x, by_columns))
            else:
                self._kept.append(library.look(x, name, stream, name in ("out", "outs")))
            return self._kept[-1]
        scaled = {name: blocks.placed(x, name, place) for name, x in (("a", a), ("b", b)) if isinstance(x, Quantized)}
        a, b = (scaled[name][0] if name in scaled else place(x, name, letter == "t")
                for name, x, letter in zip("ab", (a, b), p.layout))
        self._shadows = shadows = [x.shadow for x in (a, b, place(self.out, "out"))]
        self._factors = [x.shadow if name == "a" else operands.transposed(x.shadow) for name, (_, x) in scaled.items()
                         ] or [x.shadow for x in auxiliary.scales_placed(p, factors or {}, place)]
        outs = outs or [None for x in kernel_arrays(p) if x.written]
        self.outs = [library.empty(p.shapes["out"], kind, device, stream) if x is None else x   # of an epilogue
                     for x, kind in zip(outs, auxiliary.result_dtypes(p, len(outs)))]
        read = auxiliary.of_kernel(p, self._factors, operands_of, [place(x, "outs").shadow for x in self.outs],
                                     lambda x: place(x, "operands").shadow)
        if p.a in BLOCK_FORMATS:
            kernel = operands.of_block_scaled(kernel, shadows[0], operands.transposed(shadows[1]), shadows[2])
            leading = [*(operands.leading(x) or 0 for x in shadows[:2]), operands.operand(kernel, "out", shadows[2])]
        else:
            leading = [operands.operand(kernel, name, x) for name, x in zip(("a", "b", "out"), shadows)]
            for name, x in zip("ab", shadows):
                if np.may_share_memory(shadows[2], x):
                    raise ValueError(f"out must not overlap {name}; tilewright.matmul copies operands that do")
            if kernel.inner is kernel:
                operands.check(kernel, shadows)
        if not kernel.launches or kernel.inner is not kernel:
            if p.fused:
                raise ValueError(f"a compiled kernel with an epilogue or a prologue needs operands in formats of its "
                                 f"code, and k of at least 1, and this is {p}; tilewright.matmul converts them")
            return
        more = operands.of_batch(*shadows) | auxiliary.strides(p, read)
        self.recipe = Recipe(driver, kernel, on, *leading, **more)
        at_a, at_b, at_c = map(operands.address, shadows)
        self._arguments = at_a, at_b, at_c, *self._scalars
        self.beside = [operands.address(x) for x in read]
        self._fixed = self.recipe.fixed(*self._arguments, *self.beside)

    def __call__(self, stream: Any = None) -> Any:
        """Launch, and give `out`; on another stream if one is named."""
        handle = self._library.stream(self.out, self._on.index) if stream is None else handle_of(stream)
        if self._fixed is not None:
            self._fixed(handle)
            return self.out
        if self.recipe is not None:
            self.recipe.run(*self._arguments, handle, *self.beside)
        elif self._kernel.launches:
            self._convert_and_multiply(handle)
        else:  # nothing to add up
            c = self._shadows[-1]
            self._engine.run(self._library, self._on.index, handle, None).copy(c, c, self._scalars[1])
        return self.out

    def _convert_and_multiply(self, stream: int) -> None:
        run = self._engine.run(self._library, self._on.index, stream, self._kernel.plan)
        p = self._kernel.lowered
        try:
            a, b, c = self._shadows
            run.product(a, b, c, *self._scalars, (FORMATS[x].dtype for x in (p.a, p.b, p.out)), *self._factors)
        finally:
            run.free()

    def finished(self, like: Any) -> Any:
        """After a call: the result as an array of the caller's library."""
        if self._library.waits:
            self.synchronize()
        return self._library.result(self.out, like) if self._new else self.out

    def synchronize(self) -> None:
        self._engine.driver.synchronize(self._on, self._library.stream(self.out, self._on.index))
