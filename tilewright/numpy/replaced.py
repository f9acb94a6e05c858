"""Puts gates (gate.py) in front of NumPy's functions, and takes them away again.

np.matmul is a ufunc and the others are objects of NumPy's class for __array_function__; CPython calls both by pointers
in the object. For a ufunc that is its own vectorcall pointer, which NumPy's operator @ takes, too; the others call an
implementation, whose pointer is replaced. Nothing is replaced where these pointers are not found as NumPy 1.26 and 2
have them.
"""
from __future__ import annotations

import contextvars
import ctypes
import sys
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from tilewright import forks
from tilewright.numpy import gate, products
from tilewright.numpy.rules import NONE, RULES, Rules
from tilewright.runtime.cpu import layout

VECTORCALL_OFFSET = 56                  # of a type: where its member tp_vectorcall_offset is
ARRAYS = {"einsum": (1, 3), "tensordot": (0, 3), "inner": (0, 2), "vdot": (0, 2)}       # the first, and most arguments
FUNCTIONS = ("matmul", "dot", *ARRAYS)

_gates: dict[str, _Gate] = {}
_lock = forks.Lock()


class Unsupported(RuntimeError):
    """This NumPy, Python or processor is not one in which functions can be replaced."""


def _word(address: int) -> ctypes.c_size_t:
    return ctypes.c_size_t.from_address(address)


class _Gate:
    """One function of NumPy, and what is in front of it."""

    def __init__(self, name: str) -> None:
        from tilewright.api.builtin import entry
        from tilewright.compiler.artefact import load
        from tilewright.targets import detect
        self.name, self.function = name, getattr(np, name)
        module = entry()
        if module is None:
            raise Unsupported("tilewright has no builtin here: it takes CPython with its GIL and a known NumPy")
        header, target = object.__basicsize__, detect()
        if name in ("matmul", "dot"):
            strict = name == "dot"
            code = load("tilewright.numpy.gate:emit_product", target, header, 2 if strict else 3, strict)
        else:
            code = load("tilewright.numpy.gate:emit_sizes", target, header, *ARRAYS[name])
        self.context = array("q", bytes(gate.CONTEXT))
        self.seen = array("q", bytes(16 * gate.SLOTS))
        self.python: products.Ours | None = None
        self.rules: Mapping[str, Rules] = {}
        made = gate.thunk(code.entry, self.context.buffer_info()[0])
        if made is None:
            raise Unsupported("this processor is no x86-64")
        address, *self.kept = *made, code
        if isinstance(self.function, np.ufunc):
            self.place = id(self.function) + self._vectorcall_of_ufuncs()
            self.theirs, self.ours = _word(self.place).value, address
            self._set(gate.ORIGINAL, self.theirs)
            self._set(gate.ORIGINAL_SELF, id(self.function))
        else:
            theirs = self.function._implementation
            ours = layout.builtin(name, address, self, 0)
            self.kept += [theirs, ours]
            self.place, self.theirs, self.ours = self._place_of(theirs), id(theirs), id(ours)
            self._set(gate.ORIGINAL, layout.vectorcall())
            self._set(gate.ORIGINAL_SELF, id(theirs))
            if name in products.FUNCTIONS:
                self.python = products.Ours(theirs, *products.FUNCTIONS[name])
                self._set(gate.PYTHON, id(self.python))
        builtin: Any = module.matmul
        direct = layout.Method.from_address(_word(id(builtin) + object.__basicsize__).value)
        for offset, value in (
                (gate.DIRECT, direct.function), (gate.DIRECT_SELF, id(builtin.__self__)),
                (gate.VECTORCALL, layout.vectorcall()), (gate.NDARRAY, id(np.ndarray)),
                (gate.EXCEPTION, id(Exception)), (gate.OUT, id(sys.intern("out"))),
                (gate.SEEN, self.seen.buffer_info()[0]), *_errors().items()):
            self._set(offset, value)

    def _set(self, offset: int, value: int) -> None:
        self.context[offset // 8] = value

    def _vectorcall_of_ufuncs(self) -> int:
        """Where a ufunc has the pointer by which it is called, which all have the same."""
        offset = ctypes.c_ssize_t.from_address(id(np.ufunc) + VECTORCALL_OFFSET).value
        others = {_word(id(x) + offset).value for x in (np.add, np.sqrt, np.divmod)} if (
            16 <= offset < np.ufunc.__basicsize__) else set()
        if len(others) != 1 or _word(id(self.function) + offset).value not in others:
            raise Unsupported(f"NumPy {np.__version__} calls np.matmul in another way than NumPy 1.26 to 2.4")
        return offset

    def _place_of(self, implementation: Any) -> int:
        """Where the object has the pointer to its implementation."""
        first, size = id(self.function), type(self.function).__basicsize__
        offsets = [place for place in range(first + object.__basicsize__, first + size, 8)
                 if _word(place).value == id(implementation)]
        if len(offsets) != 1 or type(self.function).__name__ != "_ArrayFunctionDispatcher":
            raise Unsupported(f"NumPy {np.__version__} calls np.{self.name} in another way than NumPy 1.26 to 2.4")
        return offsets[0]

    def use(self, rules: Mapping[str, Rules]) -> None:
        """Take the calls that these rules say."""
        known = [(dtype, rule) for format, rule in rules.items() for dtype in _dtypes(format)
                 if self.name == "matmul" or dtype.num < gate.BUILTIN]      # the others' dot is in bf16, not in f32
        users = [dtype.num for dtype, _ in known if dtype.num >= gate.BUILTIN]
        if len(users) > gate.MOST_USERS:
            raise ValueError(f"{len(users)} formats are none of NumPy's; {gate.MOST_USERS} are the most")
        table = np.array([NONE] * (gate.BUILTIN + gate.MOST_USERS), np.int64)
        for dtype, rule in known:
            row = dtype.num if dtype.num < gate.BUILTIN else gate.BUILTIN + users.index(dtype.num)
            table[row] = products.rows(self.name, rule)
            table[row, :, gate.ROW.index("row_stride")] *= dtype.itemsize
        if self.python is not None:
            self.python.use({dtype.num: rule for dtype, rule in known})
        self.rules = dict(rules)
        self.kept.append(table)                 # for ever: another thread may be reading one that is replaced
        for i in range(gate.MOST_USERS):
            self._set(gate.USERS + 8*i, users[i] if i < len(users) else -1)
        self._set(gate.ROWS, table.ctypes.data)

    def close(self) -> None:
        """Be in front."""
        if _word(self.place).value != self.theirs:
            raise Unsupported(f"np.{self.name} has been changed by another package")
        self._exchange(self.ours)

    def open(self) -> None:
        """Be no longer in front."""
        if _word(self.place).value == self.ours:
            self._exchange(self.theirs)

    def _exchange(self, new: int) -> None:
        # both objects are kept for ever, so that counts of references need not follow
        _word(self.place).value = new


EXTOBJ = ctypes.create_string_buffer(b"numpy.ufunc.extobj")


def _errors() -> dict[int, int]:
    """Where gates find what np.errstate says; nothing for NumPy 1, which keeps it elsewhere."""
    variable = getattr(sys.modules.get("numpy._core._multiarray_umath"), "_extobj_contextvar", None)
    if variable is None:
        return {}
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    default = contextvars.Context().run(variable.get)
    policies: tuple[tuple[Literal["ignore", "warn", "raise"], int], ...] = (
        ("ignore", 0), ("warn", 0o1111), ("raise", 0o2222))
    for what, mask in policies:
        with np.errstate(all=what):
            if ctypes.c_int.from_address(pointer(variable.get(), EXTOBJ.value)).value != mask:
                raise Unsupported(f"NumPy {np.__version__} keeps np.errstate in another way than NumPy 2.0 to 2.4")
    return {gate.ERRORS: id(variable), gate.NO_ERRORS: id(default), gate.NAME: ctypes.addressof(EXTOBJ)}


def _dtypes(format: str) -> list[np.dtype[Any]]:
    """A format's dtypes, of which int64 has two: long and long long."""
    from tilewright import formats
    number_format = formats.find(format)
    if number_format is None:
        raise ValueError(f"{format!r} is no number format; tilewright formats lists them")
    return [x for x in map(np.dtype, "bBhHiIlLqQefdFD") if x == number_format.dtype] or [number_format.dtype]


def install(functions: tuple[str, ...] = FUNCTIONS, rules: Mapping[str, Rules] | None = None) -> None:
    """From now on these functions of NumPy, in the whole process, are tilewright's where it is faster.

    functions   names among matmul (and with it the operator @), dot, vdot, inner, einsum, tensordot
    rules       by number format, which calls are taken; RULES by default, which were measured on a Zen 4, one thread

    Installed a second time, the rules are replaced and functions added. RuntimeError where it cannot be done.
    """
    unknown = [x for x in functions if x not in FUNCTIONS]
    if unknown:
        raise ValueError(f"np.{unknown[0]} cannot be replaced; functions are {', '.join(FUNCTIONS)}")
    with _lock:
        for name in functions:
            if name not in _gates:
                _gates[name] = _Gate(name)
            _gates[name].use(RULES if rules is None else rules)
        for name in functions:
            if not is_installed(name):
                _gates[name].close()


def uninstall() -> None:
    """NumPy's functions are NumPy's again."""
    with _lock:
        for function in _gates.values():
            function.open()


def counts() -> dict[str, int]:
    """How many calls of each function were ours, since this process started."""
    return {name: x.context[gate.TAKEN // 8] if x.python is None else x.python.taken for name, x in _gates.items()}


def is_installed(name: str = "matmul") -> bool:
    """Is this function of NumPy ours where that is faster?"""
    return name in _gates and _word(_gates[name].place).value == _gates[name].ours


@contextmanager
def installed(functions: tuple[str, ...] = FUNCTIONS, rules: Mapping[str, Rules] | None = None) -> Iterator[None]:
    """`with installed():` as install() before and uninstall() after; functions that were installed before stay so, by
    their rules."""
    before = {x: _gates[x].rules for x in FUNCTIONS if is_installed(x)}
    install(functions, rules)
    try:
        yield
    finally:
        uninstall()
        for name, old in before.items():
            install((name,), old)
