"""Results of products with an epilogue in a GPU's memory: what the kernel writes, and the caller's arrays.

Of a reduction the kernel stores all numbers, as they are computed, and a second one combines those of each row or
column (kernels/gpu/reduce.py). What a kernel does not write as it is wanted goes by way of a temporary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import formats
from tilewright.expressions import DEFAULT
from tilewright.expressions.function import Epilogue
from tilewright.expressions.program import INDICES
from tilewright.formats.quantization import scale_of_all
from tilewright.plans import gpu_lowering
from tilewright.plans.epilogues import kinds as computed
from tilewright.plans.gpu_formats import RESULTS
from tilewright.rules import arguments, fusing, shapes
from tilewright.rules.arguments import Array
from tilewright.rules.call import Call, Product
from tilewright.runtime.gpu import arrays, auxiliary, blocks
from tilewright.runtime.gpu.operands import address, format_of, leading

if TYPE_CHECKING:
    from tilewright.runtime.gpu.product import Run

REDUCE = "tilewright.kernels.gpu.reduce:emit_reduce"


class Results:
    """The results of a call.

    targets     shadows of what is to be filled
    stored      these, or bytes in place of truth values
    reduced     of each how rows or columns are combined, "" where they are not
    """

    def __init__(self, run: Run, call: Call, looks: Mapping[str, Any], p: Product, f: fusing.Fused) -> None:
        """TypeError or ValueError for arrays of the caller's that are not filled, and results that GPUs do not give.
        """
        expression = f.epilogue.expression
        self.run, self.call, self.f = run, call, f
        self.outs = call.out if isinstance(call.out, tuple) else (call.out,) + (None,) * (len(f.shapes) - 1)
        self.reduced = [x.reduced for x in expression.results]
        self.formats = computed(format_of(p.sums), f.epilogue.state)        # of integers, and of floats
        self.kinds = unreduced(f.epilogue).expression.kinds                 # of the numbers that are reduced
        self.targets: list[Array] = []
        self.arrays: list[Any] = []
        for how, block, shape in zip(self.reduced, f.blocks, f.shapes):
            if block is not None and run.engine.platform is not arrays.CUDA:
                raise TypeError(f"out_dtype is {block.name}: epilogues give block-scaled results on NVIDIA's GPUs "
                                "alone")
            if how and 0 in f.shapes[0] and 0 not in shape:
                raise ValueError(f"epilogue returns {how} of a product of shape {f.shapes[0]}, which has no elements")
        kinds = [np.dtype(f"{kind[0]}{max(p.sums.itemsize, 4)}") if dtype is None else dtype
                 for dtype, kind in zip(f.dtypes, expression.kinds)]

        def seen(x: Any, name: str) -> Array | None:
            return None if x is None else looks[name].shadow
        places = fusing.outs_of(call, f, seen)
        for x, there, shape, dtype, block in zip(self.outs, places, f.shapes, kinds, f.blocks):
            new = x
            if block is not None:
                there = run.temporary(shape, arguments.F32)
            elif there is None:
                new, there = run.result(shape, dtype)
            elif any(n > 1 and s == 0 for n, s in zip(there.shape, there.strides)):
                raise ValueError(f"{call.out_name} has elements that share memory: its strides are {there.strides} "
                                 "bytes")
            else:
                arguments.check_cast(dtype, there.dtype, call.out_name)
            self.arrays.append(new)
            self.targets.append(there)
        self.stored = [x.view(np.int8) if x.dtype == bool else x for x in self.targets]

    def delivered(self, functions: Any, any_alpha: bool = True) -> Any:
        """What the caller gets, one array or a tuple, once all targets are filled. See Run.remember."""
        made = [quantized(self.run, x, block) if block else y
                for x, y, block in zip(self.targets, self.arrays, self.f.blocks)]
        self.run.remember(self.targets, functions, any_alpha)
        results = tuple(self.run.library.result(x, self.call.a) if y is None and block is None else x
                        for x, y, block in zip(made, self.outs, self.f.blocks))
        return results if len(results) > 1 else results[0]

    def kernel_formats(self, epilogue: Epilogue | None, a: str, b: str, p: Product) -> list[np.dtype[Any]]:
        """The dtypes in which a kernel with the epilogue takes operands of these formats, and stores the first result.
        """
        given = {"a": a, "b": b, "result": self.wide(0) if self.reduced[0] else format_of(self.stored[0].dtype)}
        text = replace(epilogue, results=(DEFAULT, *epilogue.results[1:])).text if epilogue else ""
        names = gpu_lowering.taken(self.run.on.target, given, format_of(p.sums), True, "", text, p.semiring)
        return [formats.FORMATS[name].dtype for name in names]

    def wide(self, number: int) -> str:
        """The format in which a result is computed."""
        return self._formats(number)[0]

    def _formats(self, number: int) -> tuple[str, ...]:
        """The formats in which kernels store a result."""
        return RESULTS[self.formats[self.kinds[number] == "float"]]

    def written(self, first: np.dtype[Any], shape: tuple[int, ...], read: Sequence[Array], vectors: bool = True
                ) -> list[Array]:
        """What a kernel writes, matrices or stacks of this shape by rows: the targets themselves, or temporaries, the
        first of them in this dtype. `read`: what the kernel reads, which it must not overwrite. `vectors`: kernels
        store several numbers at once."""
        outs = list[Array]()
        for i, (x, how) in enumerate(zip(self.stored, self.reduced)):
            own = format_of(x.dtype) in self._formats(i) and not how
            wanted = first if i == 0 else x.dtype if own else formats.FORMATS[self.wide(i)].dtype
            free = (not how and x.dtype == wanted and leading(x) is not None and auxiliary.readable(x, "c", vectors)
                    and not any(shapes.overlap(x, y) for y in (*read, *outs)))
            outs.append(x if free else self.run.temporary(shape, wanted))
        return outs

    def fill(self, written: Sequence[Array], offsets: Array | None = None) -> None:
        """From what the kernel has written, by reductions and copies. offsets: columns are reduced by groups of rows.
        """
        for x, target, how in zip(written, self.stored, self.reduced):
            if how:
                by_groups = offsets if how.startswith("column") else None
                x = reduced(self.run, x, how, target.shape, by_groups)
            if x is not target and address(x) != address(target):
                self.run.copy(x, target)


def unreduced(epilogue: Epilogue) -> Epilogue:
    """The epilogue that gives all numbers of what is reduced."""
    results = tuple(replace(x, reduced="") for x in epilogue.expression.results)
    return replace(epilogue, expression=replace(epilogue.expression, results=results))


def stored_as(epilogue: Epilogue, written: Sequence[Array]) -> Epilogue:
    """The epilogue of a kernel that leaves these arrays."""
    return replace(epilogue, results=(DEFAULT, *(format_of(x.dtype) for x in written[1:])))


def quantized(run: Run, x: Array, f: formats.BlockFormat) -> Any:
    """A contiguous array of f32 along its rows. The scale that nvfp4 has for all numbers is the host's, which waits
    for it."""
    if f.mx or not x.size:
        return blocks.quantized(run, x, f)
    by_block = blocks.largest(run, x, f)
    of_rows = reduced(run, by_block, "row_max", by_block.shape[:1])
    largest = np.empty((), np.float32)
    run.download(reduced(run, of_rows[None], "row_max", (1,)), largest)
    return blocks.quantized_nv(run, x, f, by_block, scale_of_all(float(largest), f))


def reduced(run: Run, x: Array, how: str, shape: tuple[int, ...], offsets: Array | None = None) -> Array:
    """Rows or columns of contiguous matrices, in a new array. offsets: the columns are those of groups of rows."""
    along, _, combined = how.partition("_")
    target = run.temporary(shape, np.dtype(f"i{x.itemsize}") if combined in INDICES else x.dtype)
    rows, columns = x.shape[-2:]
    function = run.kernel(REDUCE, FORMAT=format_of(x.dtype), HOW=combined, ALONG=along,
                          **{} if offsets is None else {"GROUPED": True})
    args: dict[str, Any] = {"rows": rows, "columns": columns, "source": x, "target": target}
    batch = math.prod(x.shape[:-2])
    if offsets is not None:
        args["offsets"], batch = offsets, len(offsets)
    run.launch(function, (rows if along == "row" else -(-columns // 32), batch), args)
    return target
