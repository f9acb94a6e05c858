"""A name for what was recorded: equal digests mean equal kernels, in this process and in any other.

It is faster than lowering, and sees what decides the code and its counts: operations, operands, types, arrays, CTAs.
Python lines do not count.
"""
from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass
from typing import Any

from tilewright.ir.ops.core import Operation
from tilewright.ir.program import Function, Line, Register
from tilewright.ir.values import Value


def digest(function: Function) -> str:
    """Of a function and those that it calls."""
    found = hashlib.sha256()
    numbers: dict[Any, int] = {}
    for text in _texts(function, numbers):
        found.update(text.encode() + b"\0")
    return found.hexdigest()


def _texts(x: Any, numbers: dict[Any, int]) -> Any:
    if isinstance(x, Value):
        yield f"{x.type}{' strided' * getattr(x.type, 'strided', False)}"
        yield f"={x.constant!r}" if x.constant is not None else f"%{numbers.setdefault(x.id, len(numbers))}"
    elif isinstance(x, (Register, Function)) and x in numbers:
        yield f"@{numbers[x]}"
    elif isinstance(x, Operation):
        yield x.name
    elif isinstance(x, Line):
        pass
    elif isinstance(x, (list, tuple)):
        yield f"[{len(x)}"
        for each in x:
            yield from _texts(each, numbers)
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
            yield from _texts(getattr(x, field.name), numbers)
    else:
        yield str(x) if hasattr(x, "scalar") else repr(x)
