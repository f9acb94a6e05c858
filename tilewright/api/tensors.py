"""Products of torch's tensors in the host's memory: read and written where they are; results are tensors.

A tensor is seen as an array at its address with its strides (`look` of runtime/gpu/arrays.py), in any number format
that torch and tilewright have, bf16 and fp8 too, of which NumPy has none. A call like an earlier one, one product into
one result, takes addresses alone: no array is made for it, and torch allocates the result.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright import forks
from tilewright.api import dispatch, fused_repeats, repeated
from tilewright.expressions import remembered
from tilewright.expressions.epilogue import Epilogue
from tilewright.formats.scaled import Decodable
from tilewright.rules.call import Call
from tilewright.runtime.cpu import pool
from tilewright.runtime.gpu.arrays import TORCH

Array = NDArray[Any]
Key = tuple[Any, ...]
NARROW = {"bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"}
NOTHING = (None, 0)     # a result that is to be made

known = TORCH.tensors   # types of tensors that were met


class Entry(NamedTuple):
    """How a call was made."""

    run: Callable[..., bool]            # for addresses of a, b, operands and the result: does that mean nothing?
    shape: tuple[int, ...]              # of the result, and its strides in elements
    strides: tuple[int, ...]
    dtype: Any                          # torch's
    spans: tuple[tuple[int, int], ...]  # of each array: the bytes it reaches over, from its address on
    align: int                          # bits of addresses that are 0


_entries: dict[Key, Entry] = {}


def present(*given: Any) -> bool:
    """Is one of these a tensor that is in no GPU's memory?"""
    return any(x is not None and type(x) is not np.ndarray and TORCH.knows(x) is False for x in given)


def array(x: Any, name: str, write: bool = False) -> Any:
    """A tensor as the array of NumPy that shares its memory; anything else as it is. TypeError or ValueError, with the
    argument's name, for tensors that have no such memory."""
    if x is None or type(x) is np.ndarray or TORCH.knows(x) is None:
        return x
    if type(x) in known and x.device.type != "cpu":
        raise TypeError(f"{name} is a tensor on {x.device}; all tensors of a product must be on the CPU, or all on one "
                        "GPU")
    return TORCH.look(x, name, 0, write).shadow


def tensor(x: Any) -> Any:
    """An array as the tensor that shares its memory; of arrays with scales, and in formats that torch lacks, as it is.
    """
    if isinstance(x, Decodable) or not isinstance(x, (np.ndarray, np.generic)):
        return x
    torch, x = sys.modules["torch"], np.asarray(x)
    dtype = _torchs(x.dtype)
    if dtype is None or x.dtype.isbuiltin == 1:
        return x if dtype is None else torch.from_numpy(x)
    return torch.from_numpy(x.view(f"i{x.itemsize}")).view(dtype) if x.ndim else tensor(x[None])[0]


def _torchs(dtype: np.dtype[Any]) -> Any:
    """torch's dtype for a format; None for one that torch has no tensors of."""
    name = dtype.name
    return getattr(sys.modules["torch"], name, None) if dtype.isbuiltin == 1 or name in NARROW else None


def product(call: Call, multiply: Callable[[Call], Any]) -> Any:
    """What `multiply` makes of the call with arrays for its tensors, as tensors."""
    outs = call.out if isinstance(call.out, tuple) else (call.out,)
    name = call.out_name
    seen = tuple(array(x, name + f"[{i}]" * (len(outs) > 1), True) for i, x in enumerate(outs))
    given = {x: array(getattr(call, x), x) for x in ("a", "b", "c", "scale_a", "scale_b")}
    if isinstance(call.operands, dict):
        given["operands"] = {key: array(x, f"operands[{key!r}]") for key, x in call.operands.items()}
    if call.updates:
        given["c"] = seen[0]
    arrays = call._replace(out=seen if isinstance(call.out, tuple) else seen[0], **given)
    like, engine, runs = _key(call), dispatch.cpu(), list[Any]()
    if like is None or engine.watch.runs is not None:
        found = multiply(arrays)
    elif call.fused:
        found = multiply(arrays)
        _remember_fused(like, arrays, found)
    else:
        engine.watch.runs = runs
        try:
            found = multiply(arrays)
        finally:
            engine.watch.runs = None
        _remember(like, arrays, found, runs)
    back = {id(x): out for x, out in zip(seen, outs) if x is not None}

    def as_given(x: Any) -> Any:
        return back[id(x)] if id(x) in back else tensor(x)
    return tuple(map(as_given, found)) if isinstance(found, tuple) else as_given(found)


# ---- calls like earlier ones


def again(a: Any, b: Any, out: Any = None, out_dtype: Any = None, trans_a: Any = "n", trans_b: Any = "n",
          threads: int | None = None, epilogue: Any = None, operands: dict[str, Any] | None = None) -> Any:
    """What matmul makes of these arguments, if an earlier call differs from this one in addresses only; else None, and
    nothing is done. Of a product with an epilogue that has one result."""
    asked = _asked(a, b, out, out_dtype, trans_a, trans_b, threads, epilogue, operands)
    if asked is None:
        return None
    key, at = asked
    try:
        found = _entries.get(key)
    except TypeError:       # an out_dtype that cannot be hashed
        return None
    if found is None:
        return None
    run, shape, strides, dtype, spans, align = found
    if out is None:
        out = (_empty or _allocator())(shape, strides, dtype)
        at[-1] = out.data_ptr()
    elif _overlap(at, spans):
        return None
    for x in at:
        if x & align:
            return None
    return None if run(*at) else out


_empty: Any = None


def _allocator() -> Any:
    """torch.empty_strided(shape, strides, dtype), in a third of its time where torch has what its compiler uses."""
    global _empty
    torch = sys.modules["torch"]
    quick = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_empty_strided_cpu", None)
    _empty = quick or (lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device="cpu"))
    return _empty


def _asked(a: Any, b: Any, out: Any, out_dtype: Any, trans_a: Any, trans_b: Any, threads: int | None, epilogue: Any,
           operands: dict[str, Any] | None) -> tuple[Key, list[int]] | None:
    """What calls alike have in common; and the addresses of a, b, operands and the result, which is 0 if it is to be
    made. None if an array is no plain tensor, or the epilogue cannot be compared."""
    x, y = TORCH.plain(a), TORCH.plain(b)
    z = NOTHING if out is None else TORCH.plain(out)
    if x is None or y is None or z is None:
        return None
    key: Key = x[0], y[0], z[0], out_dtype, trans_a, trans_b, threads or pool.get_num_threads()
    at = [x[1], y[1]]
    if epilogue is not None:
        function = id(epilogue) if type(epilogue) is Epilogue else remembered.key(epilogue, ())
        if function is None or not (operands is None or type(operands) is dict):
            return None
        key += (function,)
        for name, value in operands.items() if operands else ():
            plain = TORCH.plain(value)
            if plain is None:
                return None
            key += name, plain[0]
            at.append(plain[1])
    at.append(z[1])
    return key, at


def _overlap(at: Sequence[int], spans: Sequence[tuple[int, int]]) -> bool:
    """May the last one have memory of another?"""
    low, high = at[-1] + spans[-1][0], at[-1] + spans[-1][1]
    return any(low < x + end and x + begin < high for x, (begin, end) in zip(at[:-1], spans))


def _key(call: Call) -> Key | None:
    """What `again` looks a call up by; None for one that it is not asked for."""
    others = (call.c, call.scale_a, call.scale_b, call.algorithm, call.plan, call.semiring, call.prologue_a,
              call.prologue_b)
    if call.updates or any(x is not None for x in others) or isinstance(call.out, tuple) or not (
            type(call.alpha) is int and call.alpha == 1 and not call.beta):
        return None
    asked = _asked(call.a, call.b, call.out, call.out_dtype, call.trans_a, call.trans_b, call.threads, call.epilogue,
                   call.operands)
    try:
        hash(asked and asked[0])
    except TypeError:
        return None
    return None if asked is None else asked[0]


def _remember(key: Key, call: Call, result: Any, runs: Sequence[Any]) -> None:
    found = repeated.record((call.a, call.b), call.out, result, runs)
    if found is not None and isinstance(result, np.ndarray):
        _keep(key, found.run, result, call.a, call.b)


def _remember_fused(key: Key, call: Call, result: Any) -> None:
    """What fused_repeats knows of this call."""
    if call.trans_a == call.trans_b == "n" and isinstance(result, np.ndarray):
        operands = list((call.operands or {}).values())
        like = fused_repeats.key(call.a, call.b, call.out, call.epilogue, call.operands, call.out_dtype, call.threads)
        found = like and forks.imported("tilewright.runtime.cpu.fusion").repeats.get(like)
        if found:
            views = [repeated.View.of(x) for x in (call.a, call.b, *operands, result)]
            # The epilogue is kept, since the key has ids of what it consists of.
            _keep(key, partial(_run_fused, found.repeat, views, call.epilogue), result, call.a, call.b, *operands)


def _run_fused(again: Any, views: Sequence[repeated.View], _: Any, *at: int) -> bool:
    a, b, *operands, c = (view.at(x) for view, x in zip(views, at))
    fusion = forks.imported("tilewright.runtime.cpu.fusion")
    return bool(fusion.run_again(again, a, b, c, operands))


def _keep(key: Key, run: Callable[..., bool], result: Array, *read: Array) -> None:
    dtype = _torchs(result.dtype)
    if dtype is None:
        return
    tables = dispatch.cpu().chosen
    if not any(table is _entries for table in tables):      # so that it is emptied when plans are chosen anew
        tables.append(_entries)
    if len(_entries) >= repeated.MOST_RECORDS:
        _entries.clear()
    strides = tuple(s // result.itemsize for s in result.strides)
    arrays = *read, result
    align = min(max(x.itemsize for x in arrays), 8) - 1
    _entries[key] = Entry(run, result.shape, strides, dtype, tuple(map(_span, arrays)), align)


def _span(x: Array) -> tuple[int, int]:
    reach = [(n - 1) * stride for n, stride in zip(x.shape, x.strides)]
    return sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + x.itemsize
