"""The engine for arrays in GPUs' memory: matmul's semantics over shadows, each product by a recipe found in a table.

Operands are used where they are if one of their two axes is contiguous; C too, by rows, or by columns as
C^T = B^T A^T. Anything else, formats that no kernel takes together, and an output that overlaps an operand go through
temporaries and a copy kernel. Everything is given to one stream and nothing waits, so that all of it can be recorded
into a graph. Arrays in the host's memory are multiplied by `gemm`, which copies them to the first GPU.

engine.py completes it with what recipes and drivers do, nvidia.py and amd.py with what differs between makers.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.rules import arguments, batch, shapes
from tilewright.rules.call import Call, Product, decide
from tilewright.runtime.gpu import dlpack, fast_path, operands
from tilewright.runtime.gpu.arrays import Library, Platform, shadow
from tilewright.runtime.gpu.operands import leading

Array = NDArray[Any]


class Engine:
    """`matmul` on the GPUs of one platform."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform

    def run(self, device: int, stream: int, plan: Any) -> Run:
        raise NotImplementedError

    # ---- arrays in the GPUs' memory

    def repeated(self, a: Any, b: Any, out: Any, alpha: Any, plan: Any) -> Any:
        """alpha * a @ b, into out or a new array, if it differs from an earlier product in addresses only; else None,
        and nothing is done."""
        if not alpha or not _is_plain(alpha):
            return None
        asked = fast_path.signature(a, b, out, plan)
        return None if asked is None else fast_path.multiply(asked, a, out, float(alpha))

    def matmul(self, call: Call) -> Any:
        """The call's product, for arrays of one library on one device: the shapes, dtypes and errors of matmul.

        It runs on the stream that is the caller's at the moment, and the result is an array of the caller's library.
        c may be a number. `threads` has no meaning here.
        """
        arguments.refuse(f"on {self.platform.name}s", epilogue=call.epilogue, scale_a=call.scale_a,
                         scale_b=call.scale_b, algorithm=call.algorithm)
        is_number = isinstance(call.c, (bool, int, float, np.number))
        named = {"a": call.a, "b": call.b, "c": None if is_number else call.c, call.out_name: call.out}
        library = operands.library_of_all(**named)
        assert library is not None
        device = operands.same_device(library, **named)
        stream = library.stream(call.a if call.out is None else call.out, device)
        looks = {name: library.look(x, name, stream, name == call.out_name)
                 for name, x in named.items() if x is not None}
        run = self.run(device, stream, call.plan)
        try:
            a, b = (_at_least_1d(looks[name].shadow, name) for name in "ab")
            a, b = arguments.transposed(a, call.trans_a, "a"), arguments.transposed(b, call.trans_b, "b")
            out = looks[call.out_name].shadow if call.out is not None else None
            c = looks["c"].shadow if "c" in looks else call.c
            new = _product(run, library, decide(call, a, b, c, out), call.out_name)
            if library.waits:
                run.synchronize()
            if call.plain and not call.beta and _is_plain(call.alpha) and a.ndim == b.ndim == 2:
                asked = fast_path.signature(call.a, call.b, call.out, call.plan)
                if asked is not None and len(run.steps) == 1 and run.steps[0]:
                    fast_path.remember(asked.key, *run.steps[0])
        finally:
            run.free()
        return call.out if new is None else library.result(new, call.a)

    # ---- NumPy's arrays, by a plan for the first GPU

    def formats_for(self, p: Product, plan: Any) -> tuple[np.dtype[Any], ...]:
        """The dtypes in which `gemm` takes a and b and stores the product."""
        self._check_sums(p.sums)
        run = self.run(0, self.platform.default_stream, plan)
        return run.takes(p.a, p.b, p.c if p.beta else None, p.sums, p.result)

    def gemm(self, a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0, *, threads: int | None = None,
             plan: Any = None) -> None:
        """As tilewright.runtime.cpu.engine.gemm, for stacks of matrices too: operands are copied to the first GPU, and
        the product is copied back."""
        if a.shape[-1] == 0 or alpha == 0:
            c[...] = c * c.dtype.type(beta) if beta else 0
            return
        self._check_sums(c.dtype)
        run = self.run(0, self.platform.default_stream, plan)
        try:
            on_device = run.uploaded(c) if beta else run.temporary(c.shape, c.dtype)
            run.multiply(run.uploaded(a), run.uploaded(b), on_device, alpha, beta)
            product = np.empty(c.shape, c.dtype)
            run.download(on_device, product)
        finally:
            run.free()
        c[...] = product

    gemm_batched = gemm

    def _check_sums(self, dtype: np.dtype[Any]) -> None:
        allowed = self.platform.dtypes
        if dtype not in allowed.values():
            raise TypeError(f"products that are added up in {dtype} are not supported on {self.platform.name}s, which "
                            f"multiply {', '.join(allowed)}")


def _is_plain(alpha: Any) -> bool:
    """Is it a number of any format of sums as it is?"""
    return type(alpha) in (int, float) and abs(alpha) < 2.0**31


def _product(run: Run, library: Library, p: Product, out_name: str) -> Any:
    """The product of shadows. The new array, if there is no out."""
    allowed = library.platform.dtypes
    if p.result not in allowed.values():
        raise TypeError(f"out_dtype must be one of {', '.join(allowed)} in {library.platform.memory}, not {p.result}")
    taken_a, taken_b, stored = run.takes(p.a, p.b, p.c if p.beta else None, p.sums, p.result)
    new, target = None, p.out
    if target is None:
        new = library.empty(p.user_shape, p.result, run.on.index, run.stream)
        target = shapes.as_matrices(library.look(new, "the result", run.stream, write=True).shadow, p.vectors)
    elif any(n > 1 and s == 0 for n, s in zip(target.shape, target.strides)):
        raise ValueError(f"{out_name} has elements that share memory: its strides are {target.strides} bytes")
    if 0 in p.shape:
        return new
    a, b = p.broadcast(run.typed(p.a, taken_a), run.typed(p.b, taken_b))
    direct = p.out is None or p.out.dtype == p.result  # else the sums become a result before they are cast
    in_place = stored == p.result and shapes.writes_in_place(target, a, b, stored)
    product = target if in_place else run.temporary(p.shape, stored)
    if p.beta:
        c = p.c if p.c.ndim else np.broadcast_to(run.number(p.c, stored), p.shape)
        if not shapes.same(product, c):
            run.copy(run.copied(c, stored) if shapes.overlap(product, c) else c, product)
    run.multiply(a, b, product, p.alpha, p.beta)
    if product is not target:
        run.copy(product if direct else run.typed(product, p.result), target)
    return new


def _at_least_1d(x: Array, name: str) -> Array:
    if x.ndim == 0:
        raise ValueError(f"{name} must have at least 1 axis, but it is a scalar; to scale a matrix use *")
    return x


class Run:
    """What one call does on one stream: products, copies, and temporaries that go when it ends. A maker's own are the
    methods that are not implemented here."""

    def __init__(self, on: Any, stream: int, plan: Any) -> None:
        self.on, self.stream, self.plan = on, stream, plan
        self.blocks: list[Any] = []
        self.steps: list[Any] = []  # products and copies: for a product what fast_path.remember takes

    def free(self) -> None:
        """While the stream is the caller's, who may end it afterwards."""
        with ExitStack() as stack:  # all of them, whatever goes wrong with one
            for block in self.blocks:
                stack.callback(block.free)

    # ---- temporaries

    def temporary(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        self.blocks.append(self.block(size))
        return shadow(self.blocks[-1].pointer, shape, dlpack.contiguous(shape, dtype.itemsize), dtype)

    def number(self, x: Array, dtype: np.dtype[Any]) -> Array:
        """A number in device memory. It travels in the command, so that a graph that is recorded keeps it."""
        there = self.temporary((), dtype)
        with np.errstate(all="ignore"):
            whole = x.astype(dtype).reshape(1).view(np.uint8)
        for i, word in enumerate(np.resize(whole, max(whole.size, 4)).view(np.uint32)):
            self.fill(address(there) + 4 * i, int(word))
        return there

    def uploaded(self, x: Array) -> Array:
        """A copy of the host's array, by rows or by columns as it is there; what a stack shares is copied once."""
        one = x[tuple(slice(1) if not stride and n > 1 else slice(None) for n, stride in zip(x.shape[:-2], x.strides))]
        by_columns = letter(one[(0,) * (one.ndim - 2)]) == "t"
        stored = np.ascontiguousarray(one.swapaxes(-1, -2) if by_columns else one)
        there = shadow(self.upload(stored), stored.shape, stored.strides, stored.dtype)
        return np.broadcast_to(there.swapaxes(-1, -2) if by_columns else there, x.shape)

    def typed(self, x: Array, dtype: np.dtype[Any]) -> Array:
        return x if arguments.ready(x, dtype) else self.copied(x, dtype)

    def copied(self, x: Array, dtype: np.dtype[Any]) -> Array:
        there = self.temporary(x.shape, dtype)
        self.copy(x, there)
        return there

    def copy(self, source: Array, target: Array, scale: float = 1.0) -> None:
        """target = scale * source, element by element; scale = 0 writes zeros."""
        if 0 in target.shape:
            return
        for x, name in ((source, "an operand"), (target, "out")):
            if address(x) % x.itemsize or any(stride % x.itemsize for stride in x.strides):
                raise ValueError(
                    f"{name} does not lie at whole elements: its address is {address(x):#x}, its strides are "
                    f"{x.strides} bytes"
                )
        source, target = (x.reshape((1,) * (2 - x.ndim) + x.shape) if x.ndim < 2 else x for x in (source, target))
        for i in np.ndindex(target.shape[:-2]):
            self._copy(source[i], target[i], scale)

    def _copy(self, source: Array, target: Array, scale: float) -> None:
        self.steps.append(None)
        if abs(target.strides[0]) < abs(target.strides[1]):  # lanes go along what lies closer
            source, target = source.T, target.T
        self.copy_matrix(source, target, scale)

    # ---- products

    def multiply(self, a: Array, b: Array, c: Array, alpha: float, beta: float) -> None:
        """c = alpha * a @ b + beta * c for operands broadcast to the same leading axes."""
        if c.ndim > 2:
            a, b, c = batch.collapse(a, b, c)
        for i in np.ndindex(c.shape[:-2]):
            self._multiply(a[i], b[i], c[i], alpha, beta)

    def _multiply(self, a: Array, b: Array, c: Array, alpha: float, beta: float) -> None:
        (m, k), n = a.shape, b.shape[1]
        if k == 0 or alpha == 0:  # as BLAS: not even a nan in a or b is looked at
            if beta != 1:
                self.copy(c, c, beta)
            return
        if leading(c) is None and leading(c.T) is None:
            rows = self.temporary(c.shape, c.dtype)
            if beta:
                self.copy(c, rows)
            self._multiply(a, b, rows, alpha, beta)
            self.copy(rows, c)
            return
        transposed_c = leading(c) is None
        if transposed_c:
            a, b, c = b.T, a.T, c.T
            m, n = n, m
        a, b = (x if letter(x) else self.copied(x, x.dtype) for x in (a, b))
        at_a, at_b, at_c = map(address, (a, b, c))
        recipe = self.recipe(a, b, c)
        recipe.run(at_a, at_b, at_c, alpha, beta, self.stream)
        self.steps.append((recipe, transposed_c, self.on.index, *((b.T, a.T, c.T) if transposed_c else (a, b, c))))

    # ---- a maker's own

    def takes(self, a: Array, b: Array, c: Any, compute: np.dtype[Any],
              result: np.dtype[Any]) -> tuple[np.dtype[Any], ...]:
        """The dtypes in which kernels take A and B and leave the product: sums in `compute`, of which the result is
        `result`. `c` will be multiplied by beta and added; None: nothing will."""
        raise NotImplementedError

    def block(self, size: int) -> Any:
        """Memory in the order of the stream, with a `pointer`; `free()` gives it back. It is a multiple of 4 bytes."""
        raise NotImplementedError

    def fill(self, at: int, word: int) -> None:
        """Write 32 bits there."""
        raise NotImplementedError

    def upload(self, source: Array) -> int:
        """Copy a C-contiguous array of the host's to memory that goes when the call ends. Its address."""
        raise NotImplementedError

    def download(self, source: Array, target: Array) -> None:
        """Fill a C-contiguous array of the host's with a temporary, or what was uploaded, once the stream gets here;
        waits for that."""
        raise NotImplementedError

    def copy_matrix(self, source: Array, target: Array, scale: float) -> None:
        raise NotImplementedError

    def recipe(self, a: Array, b: Array, c: Array) -> Any:
        """For c = alpha * a @ b + beta * c with operands like these, c by rows."""
        raise NotImplementedError

    def synchronize(self) -> None:
        raise NotImplementedError


def letter(x: Array) -> str:
    """ "n" if rows are contiguous, "t" if columns are, "" if neither; of rows or columns of one element, the other."""
    by_rows, by_columns = leading(x) is not None, leading(x.T) is not None
    return "n" if by_rows and not (by_columns and x.shape[1] == 1) else "t" if by_columns else ""


def address(x: Array) -> int:
    """Of the first element."""
    return int(x.__array_interface__["data"][0])
