"""What calls of the builtin are known by: the words that kernels/cpu/repeat.py and called.py make of a call, in Python.
"""
from __future__ import annotations

import struct
import sys
from collections.abc import Mapping
from types import MappingProxyType, NoneType
from typing import Any, NamedTuple

import numpy as np

from tilewright.expressions import remembered
from tilewright.expressions.function import Epilogue
from tilewright.kernels.cpu.abi import FACTOR, IS_FLOAT, MOST_VALUES, SHIFT, SLOTS
from tilewright.runtime.cpu.layout import address

MASK = (1 << 64) - 1


class Called(NamedTuple):
    """An epilogue, or None."""
    words: tuple[int, ...]
    names: tuple[int, ...]              # NAMED for each name that it looks up
    kept: Any                           # the objects whose addresses these are

    @classmethod
    def described(cls, x: Any) -> Called | None:
        """None for a function that has to be looked at in every call: one that reads what may change unseen, or values
        of which equal ones are not one object."""
        if x is None or type(x) is Epilogue:
            return cls((id(x),), (), x)
        names = remembered.names_of(x)
        if names is None or x.__kwdefaults__ is not None:
            return None
        code, space = x.__code__, x.__globals__
        words, values = [id(code), id(space)], []
        for given in [cell.cell_contents for cell in x.__closure__ or ()], x.__defaults__:
            if given is not None and len(given) > MOST_VALUES:
                return None
            words.append(len(given or ()))
            for each in given or ():
                values.append(each)
                if type(each) is float:
                    words += IS_FLOAT, *struct.unpack("q", struct.pack("d", each))
                elif lasting(each) if type(each) in remembered.NUMBERS else remembered.constant(each):
                    words.append(id(each))
                else:
                    return None
        absent = remembered.ABSENT
        looked_up = [word for at, name, value in names.lookups
                     for word in (id(at), id(name), 0 if value is absent else id(value))]
        return cls(tuple(words), tuple(looked_up), (code, space, values, names))


def lasting(value: Any) -> bool:
    """Whether equal values are one object, so that its address tells them from others."""
    if type(value) is str:
        return sys.intern(value) is value
    return (isinstance(value, (bool, NoneType, type)) or (type(value) is int and -5 <= value <= 256)
            or (isinstance(value, np.dtype) and value is np.dtype(value.type)))


def key_of(a: Any, b: Any, out: Any, kwargs: Mapping[str, Any], called: Called, threads: int,
           types: Mapping[int, int] = MappingProxyType({})) -> tuple[int, ...]:
    """The key of a call, as kernels/cpu/repeat.py makes it. `types`: words in place of the addresses of dtypes, by the
    ids of arrays."""
    def words_of(x: Any) -> list[int]:
        if type(x) is float:
            return [IS_FLOAT]
        return [types.get(id(x), id(x.dtype)), x.ndim, *(number for pair in zip(x.shape, x.strides) for number in pair)]

    named: list[int] = []
    for name, value in kwargs.items():
        if name == "epilogue":
            named += id(name), *called.words
        elif name == "operands" and type(value) is dict:
            named += id(name), len(value), *(word for x, y in value.items() for word in (id(x), *words_of(y)))
        elif name != "out":
            named += id(name), id(value)
    whole = [0] if out is None else [1, *words_of(out)]
    if operands := kwargs.get("operands"):
        where = None if out is None else address(out)
        same = (type(x) is not float and address(x) == where for x in operands.values())
        whole.append(sum(x << i for i, x in enumerate(same)))
    return *words_of(a), *words_of(b), *named, *whole, threads


def slot_of(key: tuple[int, ...]) -> int:
    found = 0
    for word in key:
        found = ((found ^ word) & MASK) * FACTOR & MASK
    return found >> SHIFT & (SLOTS - 1)
