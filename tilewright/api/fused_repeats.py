"""Products with an epilogue like an earlier one: what was chosen for that one runs again, without rules or tracing.

The key of a call has all that the choice depends on: the function (expressions/remembered.py), what else is asked for,
and of every array its dtype, sizes and strides. Remembered are calls of plain arrays with one result, whose operands
were read where they are; where `out` overlaps another array, a call is not repeated.
"""
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilewright import forks
from tilewright.expressions import remembered
from tilewright.expressions.epilogue import Epilogue
from tilewright.rules.arguments import Array
from tilewright.rules.call import Call
from tilewright.runtime.cpu import pool

MOST = 1024
Key = tuple[Any, ...]


class Entry(NamedTuple):
    repeat: Any                     # of runtime/cpu/fusion.py
    shape: tuple[int, ...]          # of the result
    dtype: np.dtype[Any]
    epilogue: Any                   # the key has ids of what it consists of


def key(a: Any, b: Any, out: Any, epilogue: Any, operands: Any, out_dtype: Any, threads: Any) -> Key | None:
    """Of arguments of matmul. None for a call that is not remembered."""
    function = id(epilogue) if type(epilogue) is Epilogue else remembered.key(epilogue, ())
    if function is None or not (operands is None or type(operands) is dict):
        return None
    if threads is None:
        threads = pool.get_num_threads()
    words: list[Any] = [function, out_dtype, type(threads), threads]
    for x in (a, b) if out is None else (a, b, out):
        if type(x) is not np.ndarray or not x.flags.aligned:
            return None
        words += x.dtype, x.shape, x.strides
    if out is not None and not out.flags.writeable:
        return None
    for name, x in operands.items() if operands else ():
        if type(x) is not np.ndarray or not x.flags.aligned:
            return None
        words += name, x.dtype, x.shape, x.strides
    return tuple(words)


def repeated(like: Key, a: Any, b: Any, out: Any, operands: dict[str, Array] | None) -> Array | None:
    """The result, if there was such a call; None, and nothing done, else."""
    fusion = forks.imported("tilewright.runtime.cpu.fusion")
    try:
        found = fusion.repeats.get(like)
    except TypeError:               # an out_dtype or threads that cannot be hashed
        return None
    if found is None:
        return None
    arrays = [*operands.values()] if operands else []
    if out is None:
        out = np.empty(found.shape, found.dtype)
    elif any(np.may_share_memory(out, x) for x in (a, b, *arrays)):
        return None
    return None if fusion.run_again(found.repeat, a, b, out, arrays) else out


def remember(like: Key, call: Call, a: Array, b: Array, results: list[Array | None], operands: list[Array],
             epilogue: Epilogue, sums: np.dtype[Any]) -> None:
    """A call that came down to these arrays, if they are its own."""
    fusion = forks.imported("tilewright.runtime.cpu.fusion")
    given, names = call.operands or {}, [x.name for x in epilogue.operands]
    (c,) = results
    alike = all((x.shape, x.strides, x.dtype) == (y.shape, y.strides, y.dtype) for x, y in ((a, call.a), (b, call.b)))
    pairs = [(a, call.a), (b, call.b), *((x, given.get(name)) for x, name in zip(operands, names))]
    if (c is None or not alike or len(given) != len(names) or any(np.may_share_memory(c, x) for x in operands)
            or any(fusion.address(x) != fusion.address(y) for x, y in pairs)):
        return
    if len(fusion.repeats) >= MOST:
        fusion.repeats.clear()
    order = tuple(map(list(given).index, names))
    found = fusion.to_repeat(a, b, results, operands, epilogue, sums, call.threads, order)
    fusion.repeats[like] = Entry(found, c.shape, c.dtype, call.epilogue)
