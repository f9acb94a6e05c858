"""Products of torch's tensors, and other libraries' arrays (foreign.py), in the host's memory: read and written where
they are; results are of the caller's library.

A tensor is seen as an array at its address with its strides (`look` of runtime/gpu/arrays.py), in any number format
that torch and tilewright have, bf16 and fp8 too, of which NumPy has none. A call like an earlier one, one product into
one result, takes addresses alone: no array is made for it, and torch allocates the result.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.api import foreign
from tilewright.formats.scaled import Decodable
from tilewright.rules.arguments import Array
from tilewright.rules.call import Call
from tilewright.runtime import repeats
from tilewright.runtime.gpu.arrays import TORCH

NARROW = {"bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"}

known = TORCH.tensors   # types of tensors that were met


def present(*given: Any) -> bool:
    """Is one of these a tensor, or an array of another library, that is in no GPU's memory?"""
    return any(x is not None and type(x) is not np.ndarray and (TORCH.knows(x) is False or foreign.knows(x))
               for x in given)


def array(x: Any, name: str, write: bool = False) -> Any:
    """A tensor as the array of NumPy that shares its memory; anything else as it is. TypeError or ValueError, with the
    argument's name, for tensors that have no such memory."""
    if x is None or type(x) is np.ndarray or TORCH.knows(x) is None:
        return foreign.array(x, name, write) if foreign.knows(x) else x
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


def like(x: Any, *given: Any) -> Any:
    """A new array as one of the library of what is given, NumPy's or another one's."""
    others = [y for y in given if foreign.knows(y)]
    return foreign.result(x, others[0]) if others else tensor(x) if present(*given) else x


def _torchs(dtype: np.dtype[Any]) -> Any:
    """torch's dtype for a format; None for one that torch has no tensors of."""
    name = dtype.name
    return getattr(sys.modules["torch"], name, None) if dtype.isbuiltin == 1 or name in NARROW else None


def product(call: Call, multiply: Callable[..., Any], asked: repeats.Asked | None) -> Any:
    """What `multiply` makes of the call with arrays for its tensors, as tensors. `asked`: what it may be remembered as.
    """
    seen, as_given = _results(call.out, call.out_name, call.a, call.b, call.c)
    given = {x: array(getattr(call, x), x) for x in ("a", "b", "c", "scale_a", "scale_b")}
    if isinstance(call.operands, dict):
        given["operands"] = {key: array(x, f"operands[{key!r}]") for key, x in call.operands.items()}
    if call.updates:
        given["c"] = seen
    arrays = call._replace(out=seen, **given)
    return as_given(multiply(arrays, asked))


def through(function: Callable[..., Any], given: Sequence[Any], out: Any = None, **options: Any) -> Any:
    """function(*given, out=out, **options) with arrays for its tensors, as tensors."""
    seen, as_given = _results(out, "out", *given)
    arrays = [array(x, f"operand {i}") for i, x in enumerate(given)]
    if isinstance(operands := options.get("operands"), dict):
        options["operands"] = {key: array(x, f"operands[{key!r}]") for key, x in operands.items()}
    return as_given(function(*arrays, out=seen, **options))


def _results(out: Any, name: str, *given: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Arrays for out, which may be a tuple; and what makes of results what the caller gets: arrays of the library of
    what is given. TypeError for arrays of two libraries."""
    several = isinstance(out, tuple)
    outs = out if several else (out,)
    others = [x for x in (*given, *outs) if foreign.knows(x)]
    tensors = [x for x in given if TORCH.knows(x) is not None]
    if len(kinds := dict.fromkeys(type(x).__module__.partition(".")[0] for x in (*others, *tensors))) > 1:
        raise TypeError(f"operands and out must be arrays of one library, beside NumPy's, not {' and '.join(kinds)}")
    seen = tuple(array(x, name + f"[{i}]" * several, True) for i, x in enumerate(outs))
    back = {id(x): given for x, given in zip(seen, outs) if x is not None}

    def as_given(found: Any) -> Any:
        if isinstance(found, tuple):
            return tuple(map(as_given, found))
        if id(found) in back:
            return back[id(found)]
        return foreign.result(found, others[0]) if others and isinstance(found, (np.ndarray, np.generic)) else (
            tensor(found))
    return seen if several else seen[0], as_given


# ---- calls like earlier ones


class _Host:
    """Tensors in the host's memory, for runtime/repeats.py."""

    alignment = 15
    pointer = staticmethod(TORCH.pointer)

    def asked(self, arrays: Collection[Any], *options: Any) -> repeats.Asked | None:
        key = TORCH.asked(arrays, *options)
        return None if key is None else ((self, *key[0]), key[1])

    def maker(self, shape: tuple[int, ...], x: Array, device: None) -> Callable[[], Any] | None:
        dtype = _torchs(x.dtype)
        return None if dtype is None else partial(
            _allocator(), shape, tuple(s // x.itemsize for s in x.strides), dtype)


HOST = _Host()


def _allocator() -> Callable[..., Any]:
    """torch.empty_strided(shape, strides, dtype), in a third of its time where torch has what its compiler uses."""
    torch = sys.modules["torch"]
    quick = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_empty_strided_cpu", None)
    return quick or (lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device="cpu"))
