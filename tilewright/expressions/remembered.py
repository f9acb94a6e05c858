"""The expression of a function that was traced before, found again in microseconds: hot calls do not trace.

Tracing reads the function's code, its defaults, the variables of enclosing functions, globals, builtins, and attributes
of modules. A function computes the same if its code is the same object and every one of these values is the same. The
values are compared in each call, so all of them must be constants: numbers, texts, and functions without a state that
could change. A function that reads anything else (the user's own functions, arrays, objects and their attributes), or
that imports or assigns to names outside itself, is traced in every call.
"""
from __future__ import annotations

import builtins
import dis
import math
import re
from collections.abc import Callable, Iterable, Iterator
from operator import is_
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from tilewright.expressions import functions, tracing
from tilewright.expressions.function import Epilogue, Prologue
from tilewright.expressions.program import Expression
from tilewright.expressions.tracing import trace

Path = tuple[str, ...]          # "" for a global or a builtin, "free" for a variable of an enclosing function; a name;
                                # then attributes: tw.relu is ("", "tw", "relu")
Lookup = tuple[dict[str, Any], str, Any]        # a namespace, a name, and its value there, or ABSENT

MOST = 512
ABSENT = object()
TRACED = Epilogue, Prologue
NUMBERS = bool, int, float, str, type(None)
OF_MODULES = "LOAD_ATTR", "LOAD_METHOD"
BESIDE = "CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL", "KW_NAMES", "CALL_METHOD"
# Words in the names of instructions that read or write what no path has.
UNSEEN = re.compile("NAME|ATTR|METHOD|IMPORT|CLASS|SUPER|GLOBAL|DICT_OR|LOCALS")
_BUILTINS = vars(builtins)
_OWN = vars(functions), vars(tracing)           # whose functions have no state
_STATELESS = {id(x): x for x in (
    np.where, *(x for x in vars(np).values() if type(x) is np.ufunc),
    *(x for x in vars(math).values() if type(x) is BuiltinFunctionType),
    *(getattr(builtins, name) for name in ("abs", "all", "any", "divmod", "isinstance", "len", "max", "min", "pow",
                                           "round", "sorted", "sum")))}
_expressions: dict[tuple[Any, ...], Any] = {}
_names: dict[int, Names] = {}                   # by the code's id


class Names(NamedTuple):
    """The values that a code's names had, by its globals and the modules among variables of enclosing functions."""
    code: CodeType
    paths: tuple[Path, ...] | None
    space: Any
    modules: list[tuple[int, ModuleType]]               # places in the closure
    lookups: tuple[Lookup, ...]
    values: tuple[Any, ...]                     # of these
    words: tuple[Any, ...]
    complete: bool                              # they are all that tracing reads beside the function's own values


def traced(function: Callable[..., Any], parameters: tuple[tuple[str, str], ...], what: str = "epilogue",
           positional: int = 1) -> Expression:
    """The function's expression, as `trace` writes it."""
    return cached(function, (parameters, positional), lambda: trace(function, dict(parameters), what, positional))


def cached(function: Callable[..., Any], how: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    """The result of `make`, kept for functions that compute the same; `how`: whatever else the result depends on."""
    known = keys((function,))
    if known is None:
        return make()
    result = _expressions.get((how, known))
    if result is None:
        if len(_expressions) >= MOST:
            _expressions.clear()
        result = _expressions[how, known] = make()
    return result


def keys(functions: Iterable[Any]) -> tuple[Any, ...] | None:
    """Equal for functions that compute the same, and keeps what it compares by identity; None among them, and what was
    traced before, by ids. None if one has to be traced in every call."""
    known: list[Any] = []
    for x in functions:
        if x is None or type(x) in TRACED:
            known.append(id(x))
            continue
        if type(x) is not FunctionType or getattr(x, "__builtins__", None) is not _BUILTINS:
            return None
        code = x.__code__
        names = _names.get(id(code))
        try:
            values = [cell.cell_contents for cell in x.__closure__ or ()]
        except ValueError:                      # a variable has no value yet
            return None
        modules = [(i, value) for i, value in enumerate(values) if type(value) is ModuleType]
        if names is None or names.space is not x.__globals__ or names.modules != modules or not all(
                map(is_, names.values, [at.get(name, ABSENT) for at, name, _ in names.lookups])):
            if len(_names) >= MOST:
                _names.clear()
            paths = names.paths if names else paths_of(code)
            names = _names[id(code)] = _looked_up(code, paths, x.__globals__, values)
        if not names.complete:
            return None
        known += code, names.words
        for value in (*values, *(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values()):
            if type(value) not in NUMBERS and not constant(value):
                return None
            known.append((type(value), repr(value)) if type(value) in NUMBERS else value)
    return tuple(known)


def names_of(function: Any) -> Names | None:
    """The values of all names that tracing looks up. None for a function that has to be traced in every call."""
    return None if keys((function,)) is None else _names[id(function.__code__)]


def _looked_up(code: CodeType, paths: tuple[Path, ...] | None, space: Any, free: list[Any]) -> Names:
    lookups, complete = list[Lookup](), paths is not None and type(space) is dict
    for kind, name, *attributes in paths or ():
        if kind:
            value = free[code.co_freevars.index(name)]
        else:
            value = space.get(name, ABSENT)
            lookups.append((space, name, value))
            if value is ABSENT:
                value = _BUILTINS.get(name, ABSENT)
                lookups.append((_BUILTINS, name, value))
        for name in attributes:
            if type(value) is not ModuleType:
                complete = complete and type(value) in NUMBERS
                break
            if name not in vars(value):
                getattr(value, name, None)      # the module may have it from now on
            at = vars(value)
            value = at.get(name, ABSENT)
            lookups.append((at, name, value))
        complete = complete and constant(value)
    modules = [(i, x) for i, x in enumerate(free) if type(x) is ModuleType]
    values = tuple([x for _, _, x in lookups])
    words = tuple([(type(x), repr(x)) if type(x) in NUMBERS else x for x in values])
    return Names(code, paths, space, modules, tuple(lookups), values, words, complete)


def constant(x: Any) -> bool:
    """Whether x is a number, a text, a module, whose attributes are paths, or stateless."""
    return type(x) in NUMBERS or type(x) is ModuleType or stateless(x)


def stateless(x: Any) -> bool:
    """Whether x is a function whose results depend on its arguments alone, or a type that cannot be changed."""
    if type(x) is FunctionType:
        return any(x.__globals__ is space for space in _OWN)
    return id(x) in _STATELESS or (type(x) is type and not x.__flags__ >> 9 & 1)        # of C, not on the heap


def paths_of(code: CodeType) -> tuple[Path, ...] | None:
    """The paths that the code, and functions inside it, may read. None if they do what paths do not tell."""
    paths: dict[Path, None] = {}
    for part in _codes(code):
        path: Path | None = None                # of the value that the instruction before has left
        for x in dis.get_instructions(part):
            if x.opname in BESIDE:
                continue
            if path is not None and x.opname in OF_MODULES:
                path = *path, x.argval
                continue
            if path is not None:
                paths[path] = None
            path = None
            if x.opname == "LOAD_GLOBAL":
                path = "", x.argval
            elif x.opname.endswith("_DEREF") and x.argval in code.co_freevars:
                if x.opname != "LOAD_DEREF":
                    return None
                path = "free", x.argval
            elif UNSEEN.search(x.opname):
                return None
    return tuple(paths)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
