"""The expression of a function that was traced before, found again in microseconds: hot calls do not trace.

A function is what it was if its code is the same object and everything else that it names has the same value: defaults,
variables of enclosing functions, globals. That can be seen of numbers, modules and functions of this package; where it
names anything else (the user's own functions, arrays), it is traced in every call.
"""
from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tilewright.expressions.program import Expression
from tilewright.expressions.tracing import trace

MOST = 512
LOADS = ("LOAD_GLOBAL", "LOAD_NAME")                            # not attributes: x.f may be another f than a global
_found: dict[tuple[Any, ...], Any] = {}
_names: dict[int, tuple[CodeType, tuple[str, ...]]] = {}        # of globals, by the code's id


def traced(function: Callable[..., Any], parameters: tuple[tuple[str, str], ...], what: str = "epilogue",
           positional: int = 1) -> Expression:
    """What `trace` makes of it."""
    return made(function, (parameters, positional), lambda: trace(function, dict(parameters), what, positional))


def made(function: Callable[..., Any], how: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    """What `make` makes of the function; `how` are other words that it depends on."""
    key_of = key(function, how)
    if key_of is None:
        return make()
    found = _found.get(key_of)
    if found is None:
        if len(_found) >= MOST:
            _found.clear()
        found = _found[key_of] = make()
    return found


def key(function: Any, how: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What a function that computes the same has, too; it keeps the code. `how` as in `made`. None for a function that
    cannot be compared."""
    if type(function) is not FunctionType:
        return None
    code, space = function.__code__, function.__globals__
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    values += function.__defaults__ or ()
    values += (function.__kwdefaults__ or {}).values()
    values += [space[name] for name in globals_of(code) if name in space]
    words: list[Any] = []
    for x in values:
        if type(x) in (bool, int, float, str):
            words.append((type(x), repr(x)))
        elif type(x) is ModuleType or (type(x) is FunctionType and x.__module__.startswith("tilewright.expressions")):
            words.append(id(x))
        else:
            return None
    return code, how, id(space), *words


def globals_of(code: CodeType) -> tuple[str, ...]:
    """The names by which it, or a function inside it, may ask for globals."""
    found = _names.get(id(code))
    if found is None:
        if len(_names) >= MOST:
            _names.clear()
        names = {x.argval for each in _codes(code) for x in dis.get_instructions(each) if x.opname in LOADS}
        found = _names[id(code)] = code, tuple(sorted(names))
    return found[1]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
