"""What a call of matmul does on a GPU's stream: temporaries, copies, and products by recipes.

Operands are used where they are if one of their two axes is contiguous; C too, by rows, or by columns as
C^T = B^T A^T. Anything else, formats that no kernel takes together, and an output that overlaps an operand go through
temporaries and a copy kernel. Everything is given to one stream and nothing waits, so that all of it can be recorded
into a graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.expressions.numerics import SWAPPED, Numerics
from tilewright.plans.common import NoPlan
from tilewright.plans.gpu_shape import MOST_BATCH, WIDEST
from tilewright.plans.passes import SIDE
from tilewright.plans.small_rules import MOST as MOST_SMALL
from tilewright.rules import arguments, shapes
from tilewright.rules.arguments import Array
from tilewright.rules.signature import operand
from tilewright.runtime import repeats
from tilewright.runtime.gpu import complex_products, dlpack, operands
from tilewright.runtime.gpu.arrays import HIP, Library, shadow
from tilewright.runtime.gpu.operands import address, format_of, leading, letter, stacks, transposed
from tilewright.runtime.gpu.program import ALIGNMENT, Kernel, Number, Product, Program, write_number
from tilewright.runtime.gpu.recipe import Recipe
from tilewright.runtime.program import Buffers, Recorder

if TYPE_CHECKING:
    from tilewright.runtime.gpu.blocks import Formats
    from tilewright.runtime.gpu.engine import Engine
    from tilewright.runtime.gpu.gathered import Gather

MOST_Z = 65535          # workgroups along y and z
COPY = "tilewright.kernels.gpu.copy:emit_copy"
TURN = "tilewright.kernels.gpu.rewrite:emit_rewrite"
MOVED = {2: "bf16", 4: "f32"}       # formats of so many bytes, by which it moves all such
LEAST_TURNED = 16       # rows and columns of matrices that it copies


class Run:
    """What one call does on one stream: products, copies, and temporaries that go when it ends."""

    def __init__(self, engine: Engine, library: Library, on: Any, stream: int, plan: Any, algorithm: str | None = None,
                 invariant: str = "") -> None:
        self.engine, self.library, self.driver, self.invariant = engine, library, engine.driver, invariant
        self.on, self.stream, self.plan, self.algorithm = on, stream, plan, algorithm
        self.blocks: list[Any] = []
        self.gather: Gather | None = None           # of the operand of products that tables describe
        self.recorder: Recorder | None = None       # of a call that later ones may repeat

    def __enter__(self) -> Run:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        """Temporaries go. The host waits if the caller has no stream that could."""
        try:
            if error is None and self.library.waits:
                self.synchronize()
        finally:
            self.free()

    @contextmanager
    def reading(self, gather: Gather) -> Iterator[None]:
        """Products inside have the operand for which its matrix stands."""
        self.gather = gather
        try:
            yield
        finally:
            self.gather = None

    # ---- calls of one kind

    def record(self, asked: repeats.Asked, alpha: Any, arrays: Mapping[str, Array | None]) -> None:
        """From here on note what the call gives to the stream. `asked`: what it is known by; shadows of its arrays in
        the order of the addresses there, None for numbers."""
        self.recorder, self._asked, self._call = Recorder(), asked, (alpha, arrays)

    def remember(self, results: Sequence[Array], functions: Any = None, any_alpha: bool = True) -> None:
        """What was recorded becomes the program of calls of this kind. `results`: shadows; `functions`: of the call's;
        any_alpha: whether alpha is a factor of the products alone."""
        if self.recorder is None:
            return
        alpha, arrays = self._call
        if any(x is not None and shapes.overlap(x, y) for x in arrays.values() for y in results):
            return                      # what was copied for that reason others need not copy
        buffers = Buffers([*arrays.values(), *results], self.recorder.temporaries)
        steps = self.recorder.steps(buffers)
        if steps is not None:
            run, number = Program(self.driver, self.on, steps, buffers, alpha, any_alpha).run, np.zeros(())
            repeats.remember(self._asked, run, [number if x is None else x for x in arrays.values()], results,
                             self.on.index, functions)

    # ---- what is given to the stream

    def kernel(self, emitter: str, **options: Any) -> Any:
        """See Engine.kernel."""
        return self.engine.kernel(self.on, emitter, **options)

    def launch(self, function: Any, grid: Sequence[int], arguments: Mapping[str, Any]) -> None:
        """A kernel. Arrays among its arguments are shadows, of which it takes the address."""
        arrays = {name: x for name, x in arguments.items() if isinstance(x, np.ndarray)}
        values = {**arguments, **{name: address(x) for name, x in arrays.items()}}
        prepared = self.driver.Prepared(function, grid, values)
        prepared(self.stream)
        if self.recorder is not None:
            words = {p.name: p.offset // 8 for p in prepared.function.parameters}
            self.recorder.step(partial(Kernel, prepared, [words[name] for name in arrays]), [*arrays.values()])

    def by_recipe(self, recipe: Recipe, arrays: Sequence[Any], alpha: complex, beta: complex) -> None:
        """A product of A, B, C, and whatever else the recipe takes: shadows, or the address 0 in place of one."""
        arrays = *arrays, *recipe.tables
        a, b, c, *more = [x if type(x) is int else address(x) for x in arrays]
        recipe.run(a, b, c, alpha, beta, self.stream, *more)
        if self.recorder is not None:
            if recipe.only is None:             # the program has their workspace among its temporaries
                arrays = *arrays, shadow(ALIGNMENT, (recipe.room,), (1,), np.dtype(np.uint8))
                self.recorder.temporaries.append(arrays[-1])
            self.recorder.step(partial(Product, recipe, alpha, beta), arrays)

    def not_repeated(self) -> None:
        """Notes that the call does what its program would not."""
        if self.recorder is not None:
            self.recorder.whole = False

    def synchronize(self) -> None:
        self.driver.synchronize(self.on, self.stream)

    def free(self) -> None:
        """While the stream exists: the caller may destroy it after the call."""
        with ExitStack() as stack:  # all of them, even if one fails
            for block in self.blocks:
                stack.callback(block.free)

    # ---- new arrays, and temporaries

    def result(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Any, Array]:
        """A new array of the caller's library, and its shadow."""
        new = self.library.empty(shape, dtype, self.on.index, self.stream)
        return new, self.library.look(new, "the result", self.stream, write=True).shadow

    def temporary(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        self.blocks.append(self.driver.Block(self.on, size, self.stream))
        there = shadow(self.blocks[-1].pointer, shape, dlpack.contiguous(shape, dtype.itemsize), dtype)
        if self.recorder is not None:
            self.recorder.temporaries.append(there)
        return there

    def number(self, x: Array, dtype: np.dtype[Any], name: str | None = None) -> Array:
        """A number in device memory. It travels in the command, so that a graph that is recorded keeps it. `name`: of
        the call's operand that it is."""
        there = self.temporary((), dtype)
        write_number(self.driver, self.on, address(there), x, dtype, self.stream)
        if self.recorder is not None:
            names = [*self._call[1]]            # a factor of scaled sums is none of them: it is a part of the key
            which = names.index(operand(name)) if name is not None and operand(name) in names else None
            self.recorder.step(partial(Number, self.driver, self.on, dtype, which, x), (there,))
        return there

    def uploaded(self, x: Array) -> Array:
        """A copy of the host's array, by rows or by columns as it is there; what a stack shares is copied once."""
        self.not_repeated()
        one = x[tuple(slice(1) if not stride and n > 1 else slice(None) for n, stride in zip(x.shape[:-2], x.strides))]
        there = operands.uploaded(self.driver, self.on, one, by_columns=letter(one[(0,) * (one.ndim - 2)]) == "t")
        self.blocks.append(there.keep)
        return np.broadcast_to(there.shadow, x.shape)

    def download(self, source: Array, target: Array) -> None:
        """Fill a C-contiguous array of the host's with a temporary, or what was uploaded, once the stream gets here;
        waits for that."""
        self.not_repeated()
        self.synchronize()
        next(block for block in self.blocks if block.pointer == address(source)).download(target)

    def typed(self, x: Array, dtype: np.dtype[Any]) -> Array:
        return x if arguments.ready(x, dtype) else self.copied(x, dtype)

    def copied(self, x: Array, dtype: np.dtype[Any]) -> Array:
        one = x[:1] if x.ndim > 2 and x.strides[0] == 0 else x  # what a stack shares is copied once
        there = self.temporary(one.shape, dtype)
        self.copy(one, there)
        return np.broadcast_to(there, x.shape)

    def copy(self, source: Array, target: Array, scale: complex = 1.0) -> None:
        """target = scale * source, element by element; scale = 0 writes zeros."""
        if 0 in target.shape:
            return
        for x, name in ((source, "an operand"), (target, "out")):
            if address(x) % x.itemsize or any(stride % x.itemsize for stride in x.strides):
                raise ValueError(f"{name} is not aligned to its elements: its address is {address(x):#x}, its strides "
                                 f"are {x.strides} bytes")
        if target.dtype.kind == "c":
            self._copy_complex(source, target, scale)
            return
        source, target = (x.reshape((1,) * (2 - x.ndim) + x.shape) if x.ndim < 2 else x for x in (source, target))
        if target.ndim > 2:  # rows of matrices that follow each other are those of one
            one = np.broadcast_to(np.int8(0), (*target.shape[:-2], target.shape[-1], target.shape[-1]))
            source, _, target = shapes.collapse(source, one, target, wider=False)
        if target.ndim == 2:
            source, target = source[None], target[None]
        for x, y in shapes.pieces(source, target):
            for first in range(0, len(y), MOST_Z):
                self._copy(x[first : first + MOST_Z], y[first : first + MOST_Z], scale)

    def _copy_complex(self, source: Array, target: Array, scale: complex) -> None:
        if scale and source.dtype == target.dtype:
            complex_products.turned(self, source, target, scale)
            return
        self.copy(source.real, target.real, scale)
        parts = (source.imag, target.imag, scale) if source.dtype.kind == "c" else (target.imag, target.imag, 0.0)
        self.copy(*parts)

    def _copy(self, source: Array, target: Array, scale: complex) -> None:
        """Copy stacks of matrices in one launch."""
        if abs(target.strides[1]) < abs(target.strides[2]):  # lanes go along the smaller stride
            source, target = transposed(source), transposed(target)
        if scale == 1.0 and self._turned(source, target):
            return
        function = self.kernel(COPY, SOURCE=format_of(source.dtype), TARGET=format_of(target.dtype))
        (count, rows, columns), (x, y) = target.shape, function.threads
        (mss, rss, css), (mst, rst, cst) = ([s // x.itemsize for s in x.strides] for x in (source, target))
        integer = any(p.name == "scale" and p.type.startswith("i") for p in function.parameters)
        args = {"rows": rows, "columns": columns, "scale": int(scale.real) if integer else scale,
                "source": source, "rss": rss, "css": css, "target": target, "rst": rst,
                "cst": cst, "mss": mss, "mst": mst}
        self.launch(function, (-(-columns // x), min(-(-rows // y), MOST_Z), count), args)

    def _turned(self, source: Array, target: Array) -> bool:
        """Copy by tiles in shared memory, if columns of the source and rows of the target are contiguous; False, and
        nothing done, of others."""
        (count, rows, columns), item = target.shape, target.itemsize
        stacked = count == 1 or target.strides[0] == rows*columns*item
        if (source.dtype != target.dtype or item not in MOVED or min(rows, columns) < LEAST_TURNED or not stacked
                or target.strides[1:] != (columns*item, item) or source.strides[1] != item
                or columns*item % WIDEST or address(target) % WIDEST or np.may_share_memory(source, target)):
            return False
        function = self.kernel(TURN, FORMAT=MOVED[item], ALONG_K=False, BATCH=True)
        self.launch(function, (-(-rows // SIDE) * -(-columns // SIDE) * count,), {
            "rows": rows, "depth": columns, "a": source, "lda": source.strides[2] // item,
            "stride_a": source.strides[0] // item, "target": target, "ld": columns})
        return True

    # ---- products

    def product(self, a: Array, b: Array, c: Array, alpha: complex, beta: complex, taken: Iterable[np.dtype[Any]],
                *scales: Array) -> None:
        """c = alpha * a @ b + beta * c, multiplied in other formats: a, b and what the kernel stores in those `taken`.
        """
        dtype_a, dtype_b, stored = taken
        sums = c if c.dtype == stored else self.temporary(c.shape, stored)
        if beta and sums is not c:
            self.copy(c, sums)
        self.multiply(self.typed(a, dtype_a), self.typed(b, dtype_b), sums, alpha, beta, *scales)
        if sums is not c:
            self.copy(sums, c)

    def multiply(self, a: Array, b: Array, c: Array, alpha: complex, beta: complex, *scales: Array,
                 of_blocks: Formats | None = None, semiring: str = "") -> None:
        """c = alpha * a @ b + beta * c for operands broadcast to the same leading axes: one launch, if these fold into
        one with one stride in each operand, else one for each index of all axes but the longest.

        scales      of rules.scaling.broadcast, in the format of scaled sums, which nothing else writes to
        of_blocks   a [..., m, bytes] and b [..., bytes, n] have elements of these formats, scales those of their blocks
        semiring    see problem.Gemm; alpha is 1 then, and beta 0
        """
        most = 1 if of_blocks and self.engine.platform is HIP else MOST_BATCH       # which multiply two matrices
        for part in stacks(shapes.collapse(a, b, c, *scales, wider=not _shared(*scales, n=c.shape[-1])), most):
            self._multiply(alpha, beta, of_blocks, semiring, *part)

    def _multiply(self, alpha: complex, beta: complex, of_blocks: Formats | None, semiring: str, a: Array, b: Array,
                  c: Array, *scales: Array) -> None:
        if 0 in (a.shape[-1], alpha) or (of_blocks and not of_blocks.k):  # as BLAS: no nan is looked at
            if beta != 1:
                self.copy(c, c, beta)
            return
        if leading(c) is None and (leading(transposed(c)) is None or _shared(*scales, n=c.shape[-1])):
            rows = self.temporary(c.shape, c.dtype)
            if beta:
                self.copy(c, rows)
            self._multiply(alpha, beta, of_blocks, semiring, a, b, rows, *scales)
            self.copy(rows, c)
            return
        transposed_c = leading(c) is None
        if transposed_c:
            a, b, c = transposed(b), transposed(a), transposed(c)
            semiring = Numerics(semiring=semiring).swapped.semiring
            scales = tuple(map(transposed, reversed(scales)))
            of_blocks = of_blocks and of_blocks._replace(a=of_blocks.b, b=of_blocks.a)
        a, b = (x if letter(x) else self.copied(x, x.dtype) for x in (a, b))
        if c.dtype.kind == "c":
            small = self._small(a, b, c, transposed_c)
            if small is None:
                complex_products.multiply(self, a, b, c, alpha, beta)
                return
            recipe = small
        else:
            recipe = self.recipe(a, b, c, scales, of_blocks=of_blocks, semiring=semiring, exchanged=transposed_c)
        self.by_recipe(recipe, (a, b, c, *scales), alpha, beta)

    def _small(self, a: Array, b: Array, c: Array, exchanged: bool) -> Recipe | None:
        """For a batch of complex matrices, if there is a kernel for such."""
        given = self.plan is None or self.plan.algorithm == "small"
        if c.ndim < 3 or not given or max(*c.shape[1:], a.shape[-1]) > MOST_SMALL or self.engine.platform is HIP:
            return None
        if any(address(x) % x.itemsize for x in (a, b, c)):     # numbers that are not aligned as a whole
            return None
        try:
            return self.recipe(a, b, c, exchanged=exchanged)
        except NoPlan:
            return None

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        array = self.temporary(shape, dtype)
        self.copy(array, array, 0.0)
        return array

    def recipe(self, a: Array, b: Array, c: Array, beside: Sequence[Array] = (),
               functions: Mapping[str, str] | None = None, of_blocks: Formats | None = None, semiring: str = "",
               exchanged: bool = False) -> Recipe:
        """See Engine.recipe. `exchanged`: C^T = B^T A^T is computed."""
        invariant = SWAPPED[self.invariant] if exchanged else self.invariant
        key = (self.on.index, *a.shape, b.shape[-1], a.dtype, b.dtype, c.dtype, a.strides, b.strides, c.strides,
               tuple(address(x) % WIDEST for x in (a, b, c)), self.plan, self.algorithm, invariant, of_blocks,
               self.gather, semiring, *(functions or {}).items(),
               *((x.shape, x.strides, address(x) % WIDEST) for x in beside))
        prepared: Recipe = self.engine.prepared.get(key, lambda: self.engine.recipe(
            self.on, a, b, c, self.plan, beside, functions, self.algorithm, of_blocks, semiring, invariant,
            self.gather))
        return prepared


def _shared(*scales: Array, n: int) -> bool:
    """Do columns of B share scales of blocks? Then they do not become rows of A."""
    return bool(scales) and scales[1].shape[-1] != n
