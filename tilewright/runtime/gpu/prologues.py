"""Prologues of operands in a GPU's memory: a pass leaves what is multiplied in a temporary (kernels/gpu/prepare.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright import formats
from tilewright.plans.gpu_lowering import READ
from tilewright.rules import arguments
from tilewright.rules.prologues import AXIS, Prepared
from tilewright.runtime.gpu.operands import address, format_of, letter

if TYPE_CHECKING:
    from tilewright.runtime.gpu.product import Run

Array = NDArray[Any]
WIDEST = 16


def prepared(run: Run, x: Array, role: str, prologue: Prepared, host: frozenset[str]) -> Array:
    """What the prologue makes of operand x [..., rows, columns]. `host`: the names of arrays that are NumPy's."""
    found, arrays = prologue.prologue, []
    if found.source not in READ:
        raise TypeError(f"{role} is {x.dtype}: on GPUs operands with a prologue are of {', '.join(sorted(READ))}")
    if found.kind == "int":
        raise TypeError(f"prologue_{role} gives integers, which GPUs do not multiply in {found.result}: float products "
                        "of them are exact up to 2^24")
    for each, y in zip(found.beside, prologue.arrays, strict=True):
        own = y[tuple(slice(None) if stride else slice(0, 1) for stride in y.strides)]
        if each.name in host:
            own = run.uploaded(np.ascontiguousarray(own)) if own.size > 1 else run.number(
                own.reshape(()), own.dtype).reshape(own.shape)
        if format_of(own.dtype) not in READ:
            raise TypeError(f"operands[{each.name!r}] is {y.dtype}: on GPUs it must be of "
                            f"{', '.join(sorted(READ))}")
        arrays.append(np.broadcast_to(own, y.shape))
    lead = x.shape[:-2]
    for y in arrays:
        lead = np.broadcast_shapes(lead, y.shape[:-2])
    target = run.temporary((*lead, *x.shape[-2:]), formats.FORMATS[found.result].dtype)
    if letter(x) == "t":
        target = run.temporary((*lead, *x.shape[:-3:-1]), target.dtype).swapaxes(-1, -2)
    x, *arrays = (np.broadcast_to(y, (*lead, *y.shape[-2:])) for y in (x, *arrays))
    for index in np.ndindex(lead):
        _matrix(run, x[index], AXIS[role], found, [y[index] for y in arrays], target[index])
    return target


def _matrix(run: Run, x: Array, axis: int, prologue: Any, arrays: list[Array], target: Array) -> None:
    if 0 in x.shape:
        return
    run.steps.append(None)
    if abs(target.strides[0]) < abs(target.strides[1]):         # lanes go along the smaller stride
        x, target, arrays, axis = x.T, target.T, [y.T for y in arrays], -3 - axis
    rows, columns = x.shape
    vector = _vector(x, target, columns)
    read, values = [], dict[str, int]()
    for at, (each, y) in enumerate(zip(prologue.beside, arrays, strict=True)):
        row, column = (0 if extent == 1 else stride // y.itemsize for extent, stride in zip(y.shape, y.strides))
        most = min(vector, WIDEST // y.itemsize) * y.itemsize
        side = column == 1 and vector > 1 and not (address(y) % most or row * y.itemsize % most)
        read.append(f"{format_of(y.dtype)}:{'0' if not row else 'n'}{'0' if not column else 'v' if side else 'n'}:"
                    f"{each.group}")
        values |= {f"x{at}": address(y), f"rows_x{at}": row, f"columns_x{at}": column}
    steps = "columns" if axis == -1 else "rows"
    function = run.engine.prepare_kernel(run.on, prologue.source, prologue.expression.text, tuple(read),
                                         prologue.result, steps, vector)
    (rss, css), (rst, cst) = ([s // m.itemsize for s in m.strides] for m in (x, target))
    values |= {"rows": rows, "columns": columns, "source": address(x), "rss": rss, "css": css,
               "target": address(target), "rst": rst, "cst": cst}
    wide, tall = function.threads
    run.driver.Prepared(function, (-(-columns // (wide * vector)), min(-(-rows // tall), 65535)), values)(run.stream)


def _vector(x: Array, target: Array, columns: int) -> int:
    """Columns that are read and written at once."""
    if not arguments.ready(x, x.dtype) and address(x) % x.itemsize:
        raise ValueError(f"an operand with a prologue is not aligned to its elements: its address is {address(x):#x}")
    if x.strides[1] != x.itemsize and columns > 1:
        return 1
    vector = WIDEST // max(x.itemsize, target.itemsize)
    while vector > 1 and (columns % vector or any(
            at % (vector * y.itemsize) for y in (x, target) for at in (address(y), y.strides[0]))):
        vector //= 2
    return vector
