"""A name for what was recorded: equal digests mean equal kernels, in this process and in any other.

It is faster than lowering, and sees what decides the code and its counts: operations with what their spelling depends
on, operands, types, arrays, CTAs. Python lines do not count.
"""
from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache, partial
from types import FunctionType, MethodType
from typing import Any

from tilewright.ir.ops.core import Operation
from tilewright.ir.program import Function, Line, Register
from tilewright.ir.values import Value


def digest(function: Function) -> str:
    """The digest of a function and of the functions that it calls."""
    sha = hashlib.sha256()
    numbers: dict[Any, int] = {}
    for text in _texts(function, numbers):
        sha.update(text.encode() + b"\0")
    return sha.hexdigest()


def _texts(x: Any, numbers: dict[Any, int]) -> Any:
    if isinstance(x, Value):
        yield f"{x.type}{' strided' * getattr(x.type, 'strided', False)}"
        yield f"={x.constant!r}" if x.constant is not None else f"%{numbers.setdefault(x.id, len(numbers))}"
    elif isinstance(x, (Register, Function)) and x in numbers:
        yield f"@{numbers[x]}"
    elif isinstance(x, Operation):
        yield _operation(x)
    elif isinstance(x, Line):
        pass
    elif isinstance(x, (list, tuple)):
        yield f"[{len(x)}"
        for item in x:
            yield from _texts(item, numbers)
    elif isinstance(x, dict):
        yield f"{{{len(x)}"
        for key, value in x.items():
            yield from _texts(key, numbers)
            yield from _texts(value, numbers)
    elif is_dataclass(x) and not isinstance(x, type):
        if isinstance(x, (Register, Function)):
            numbers[x] = len(numbers)
        yield type(x).__name__
        for field in fields(x):
            value = getattr(x, field.name)
            if field.name not in ("fuses", "early") or value:           # without, it is as it is recorded
                yield from _texts(value, numbers)
    else:
        yield str(x) if hasattr(x, "scalar") else repr(x)


@cache
def _operation(x: Operation) -> str:
    """Its name, and how it is spelled: operations of one name may differ in a constant, as a shuffle in its lanes."""
    return "\0".join([x.name, *_spelling(x.llvm)])


def _spelling(x: Any) -> Iterator[str]:
    """A function and the values in its closure, in words that are the same in every process."""
    if isinstance(x, FunctionType):
        code = x.__code__
        yield f"{x.__module__}.{x.__qualname__}:{code.co_firstlineno} {code.co_names} {code.co_code.hex()}"
        yield from _spelling([c for c in code.co_consts if isinstance(c, (str, bytes, int, float, tuple))])
        yield from _spelling([*(cell.cell_contents for cell in x.__closure__ or ()), *(x.__defaults__ or ())])
    elif isinstance(x, MethodType):
        yield from _spelling([x.__func__, x.__self__])
    elif isinstance(x, partial):
        yield from _spelling([x.func, x.args, x.keywords])
    elif isinstance(x, (list, tuple)):
        yield f"[{len(x)}"
        for item in x:
            yield from _spelling(item)
    elif isinstance(x, dict):
        yield from _spelling([*x.items()])
    elif isinstance(x, (str, bytes, int, float)) or x is None:
        yield repr(x)
    elif is_dataclass(x) and not isinstance(x, type):
        yield type(x).__qualname__
        yield from _spelling([getattr(x, field.name) for field in fields(x)])
    else:
        yield getattr(x, "__qualname__", type(x).__qualname__)
