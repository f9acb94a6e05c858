"""What a kernel may be declared and recorded with, and what a function may be given: arguments that fit its parameters,
and a grid. One check for both readings.

A kernel sees of an array the address of its first element, so elements must be of the parameter's type and lie in C
order; nothing is converted or copied.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.program import Function
from tilewright.ir.types import Pointer, TensorMap, Texture, Type, i1, vec
from tilewright.ir.values import Value
from tilewright.targets.nvidia import THREADS

Array = NDArray[Any]
WARPS = (32, 64)            # lanes of a warp on NVIDIA's chips, of a wave on AMD's Matrix Core GPUs


# ---- what a kernel is declared with

def is_count(n: Any, least: int = 1) -> bool:
    """Is this a whole number of at least so many?"""
    return isinstance(n, Integral) and n is not True and int(n) >= least


def cta_shape(name: str, threads: Any) -> tuple[int, int] | None:
    """The CTA's (x, y); None for a CPU function."""
    if threads is None:
        return None
    extents = (threads, 1) if isinstance(threads, Integral) else threads
    if not isinstance(extents, Sequence) or len(extents) not in (1, 2) or not all(map(is_count, extents)):
        more = isinstance(extents, Sequence) and len(extents) > 2
        raise ValueError(f"{name}: threads must be a whole number from 1 on, or two of them, (x, y), not {threads!r}"
                         + ("; a third dimension has to be folded into one of the two" if more else ""))
    x, y = (*map(int, extents), 1)[:2]
    if x * y > THREADS:
        raise ValueError(f"{name}: a CTA has at most {THREADS} threads on every GPU, and threads={threads!r} are "
                         f"{x*y}; for more, launch more CTAs: k.block says which of the grid this one is")
    return x, y


def positive(name: str, option: str, n: Any) -> int:
    if not is_count(n):
        raise ValueError(f"{name}: {option} must be a whole number from 1 on, not {n!r}")
    return int(n)


def cluster(name: str, extents: Any) -> tuple[int, int, int]:
    if not isinstance(extents, Sequence) or len(extents) != 3 or not all(is_count(n, 0) for n in extents):
        raise ValueError(f"{name}: cluster must be three whole numbers of CTAs, (x, y, z), not {extents!r}")
    x, y, z = map(int, extents)
    return x, y, z


def warp(name: str, lanes: Any) -> int:
    if lanes not in WARPS:
        raise ValueError(f"{name}: warp must be 32, or 64 for AMD's chips, not {lanes!r}")
    return int(lanes)


def parameter(name: str, t: Any) -> Any:
    if not isinstance(t, (Type, Pointer, Texture, TensorMap)):
        raise TypeError(f"parameter {name} must have a type of tilewright.ir, such as i64, f32 or ptr(f32), not {t!r}")
    return t


# ---- what is recorded

def shape(name: str, extents: Any) -> tuple[int, ...]:
    extents_here = (extents,) if isinstance(extents, int) else extents
    if not isinstance(extents_here, Sequence) or not extents_here or not all(map(is_count, extents_here)):
        raise TypeError(f"the shape of {name} must be Python's whole numbers from 1 on, not {extents_here!r}")
    return tuple(extents_here)


def constant(t: Any, x: Any) -> Any:
    if isinstance(t, Pointer):
        fits = isinstance(x, Integral) and x == 0
    elif t.is_float:
        fits = isinstance(x, (float, int, Real))                # the first two: asking for an abstract class is slow
    else:
        x = int(x) if isinstance(x, float) and x.is_integer() else x
        fits = isinstance(x, (int, Integral)) and -(1 << t.bits - 1) <= x < 1 << t.bits
    if not fits:
        raise TypeError(f"{x!r} is not of type {t}")
    return x


def pointer(x: Any) -> Pointer:
    t = getattr(x, "type", None)
    if not isinstance(t, Pointer):
        raise TypeError(f"only a pointer, such as a parameter ptr(f32), can be loaded from and stored to, not "
                        f"{f'a value of type {t}' if t else repr(x)}")
    return t


def alignment(align: int | None, t: Any) -> int:
    """In bytes; of three elements that of one of them."""
    size = 8 if isinstance(t, Pointer) else t.bytes
    align = size & -size if align is None else align
    if align < 1 or align & (align - 1):
        raise ValueError(f"an address can be aligned to 1, 2, 4, 8 ... bytes, not {align}")
    return align


def mask(x: Any, t: Any) -> None:
    if x is not None and x.type not in (i1, vec(i1, 1 if isinstance(t, Pointer) else t.length)):
        raise TypeError(f"the mask of a {t} is one i1, or as many as it has elements, not {x.type}")


def condition(x: Any) -> Value:
    if not isinstance(x, Value):
        raise TypeError(f"a condition is a comparison of the kernel's values, such as k.thread[0] == 0, not {x!r}; "
                        "what is known while the kernel is recorded is decided by Python's if")
    if x.type != i1:
        raise TypeError(f"a condition is an i1, which comparisons are, not a value of type {x.type}: compare it, such "
                        "as x != 0")
    return x


# ---- what a function is given


def recorded(function: Any) -> Function:
    """TypeError unless this is a recorded function."""
    if not isinstance(function, Function):
        hint = ": pass k.function" if hasattr(function, "function") else ""
        raise TypeError(f"only a recorded function can be run, not {function!r}{hint}")
    return function


HIDDEN = 6                  # parameters of a CPU's block program beside its arguments: its place, and the grid


def count(function: Function, args: Sequence[Any], whole: bool = False) -> None:
    """TypeError unless there are as many arguments as parameters; `whole`: with those that are `HIDDEN`."""
    params = function.params[:-HIDDEN] if function.programs and not whole else function.params
    if len(args) != len(params):
        names = ", ".join(name for name, _ in params)
        raise TypeError(f"{function.name} takes {len(params)} arguments ({names}), not {len(args)}")


def grid(function: Function, extents: Any) -> tuple[int, int, int]:
    """How many CTAs are launched along x, y, z: a whole number, or up to three of them; None: one CTA."""
    given = (1,) if extents is None else (extents,) if isinstance(extents, Integral) else extents
    if not isinstance(given, Sequence) or not 1 <= len(given) <= 3 or not all(map(is_count, given)):
        raise ValueError(f"{function.name}: grid must be a number of CTAs from 1 on, or (x, y) or (x, y, z) of them, "
                         f"not {extents!r}")
    x, y, z = (*map(int, given), 1, 1)[:3]
    if function.threads is None and not function.programs and (x, y, z) != (1, 1, 1):
        raise ValueError(f"{function.name} is a CPU function: it has no grid, not {extents!r}")
    return x, y, z


def number(name: str, t: Type, x: Any) -> Any:
    """x as NumPy's number of this type, or [length, 1] of them. A whole number must fit; others are rounded to t."""
    if t.length > 1:
        if np.shape(x) != (t.length,):
            raise TypeError(f"{name} is a {t}: it must be {t.length} numbers, not {x!r}")
        return np.array([number(f"{name}[{e}]", t.scalar, x[e]) for e in range(t.length)])[:, None]
    if isinstance(x, np.generic) and x.dtype.isbuiltin == 2:        # one of ml_dtypes', which are no Real
        x = float(x)
    if not isinstance(x, Real):
        raise TypeError(f"{name} must be a number ({t}), not {_kind(x)}")
    if t.is_float:
        with np.errstate(over="ignore"):
            y = t.numpy.type(x)
        if math.isfinite(x) and not np.isfinite(y):
            raise OverflowError(f"{name} is of type {t}, which cannot hold {x!r}")
        return y
    integer = int(x) if isinstance(x, Integral) else int(float(x)) if float(x).is_integer() else None
    low, high = (0, 2) if t.bits == 1 else (-1 << t.bits - 1, 1 << t.bits - 1)
    if integer is None or not low <= integer < high:
        raise (TypeError if integer is None else OverflowError)(
            f"{name} is of type {t}: it must be a whole number from {low} to {high - 1}, not {x!r}")
    return t.numpy.type(integer)


def array(name: str, t: Pointer, x: Array) -> None:
    """TypeError or ValueError unless x can be what parameter `name` points to. A shadow will do: nothing is read."""
    element = t.element
    if not _elements(element, x.dtype):
        wanted = f"{element.numpy}" + (" or another format of 8 bits" if element.bits == 8 else "")
        raise TypeError(f"{name} points to {element}: it must be an array of {wanted}, not of {x.dtype}; convert it "
                        f"with {name}.astype")
    if t.strided or x.flags.c_contiguous:
        return
    order = f"; {name}.T is, for a kernel that reads it by columns" if x.flags.f_contiguous else ""
    raise ValueError(f"{name} is not contiguous (shape {x.shape}, strides of {x.strides} bytes), and a kernel sees the "
                     f"address of its first element: pass np.ascontiguousarray({name}){order}; or declare {name} as "
                     f"ptr({element}, strided=True), and its strides as parameters")


def texture(name: str, t: Texture, x: Any) -> None:
    """TypeError unless x is an array that a texture can be bound to."""
    if not isinstance(x, np.ndarray) or x.ndim != 1 or not x.flags.c_contiguous or x.dtype != t.element.numpy or \
            x.size % t.length:
        raise TypeError(f"{name} is a {t}: it must be a contiguous one-dimensional array of {t.element.numpy}, "
                        f"its size a multiple of {t.length}")


def _elements(t: Type, dtype: np.dtype[Any]) -> bool:
    """Exactly this type. Integers have no sign here, and formats of 8 bits that the layer has no type for are i8."""
    if dtype == t.numpy:
        return True
    if t.is_float or t.bits == 1 or dtype.itemsize != t.bytes or not dtype.isnative:
        return False
    return dtype.kind in "iu" or dtype.isbuiltin == 2 or (t.bits == 8 and dtype.kind == "b")


def _kind(x: Any) -> str:
    return f"an array of {x.dtype}" if isinstance(x, np.ndarray) else repr(x)
