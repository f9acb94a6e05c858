"""`tilewright.matmul` as a CPython builtin: the emitted entry of kernels/cpu/entry.py, its context, what it relies on.

A module object is made through the C API, as an extension's C code would do it. Its state is the context that the
entry reads: the Python function for everything uncommon, and per dtype the address of a kernel for small problems.

Calls like earlier ones are repeated with any formats and layouts: api/builtin_repeats.py.

    small_gemm(context, m, n, k, a, rsa, csa, b, rsb, csb, c, rsc) → 1: C = A @ B is done, 0: please take another way

Strides are in elements, those of a and b of any sign; the rows of c are consecutive. It is called with the GIL held
when m*n*k is below `release_above`. Nothing is taken before `Entry.enable` names such kernels.

The entry reads NumPy's arrays itself, which runtime/cpu/layout.py must find laid out as it knows them. Elsewhere, and
in another Python than CPython with its GIL, on which all this was tested, there is only the Python function.
"""
from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from tilewright import forks
from tilewright.api import builtin_repeats, tensor_repeats
from tilewright.kernels.cpu import abi
from tilewright.runtime import repeats
from tilewright.runtime.cpu import exchange, layout

NDARRAY_INDEX, SCALAR_INDEX, NEW_INDEX = 2, 60, 93     # PyArray_Type, PyArray_Scalar, PyArray_New in NumPy's C table

EVERY = (1 << 63) - 1
RELEASE_GIL_ABOVE = 2_500_000           # multiplications, 50 us at 100 GFLOP/s: releasing it costs 0.1 us or more
CO_VARKEYWORDS = 0x08                    # of a code object's flags: it takes **keywords
PYTHON_API_VERSION = 1013


class _Module(ctypes.Structure):
    _fields_ = [("head", ctypes.c_char * object.__basicsize__), ("init", ctypes.c_void_p), ("index", ctypes.c_ssize_t),
                ("copy", ctypes.c_void_p), ("name", ctypes.c_char_p), ("doc", ctypes.c_char_p),
                ("size", ctypes.c_ssize_t), ("methods", ctypes.c_void_p), ("slots", ctypes.c_void_p),
                ("traverse", ctypes.c_void_p), ("clear", ctypes.c_void_p), ("free", ctypes.c_void_p)]


_kept: list[Any] = []       # what CPython only points to: it must outlive the builtins
_made: list[Entry | None] = []


class UnknownLayout(Exception):
    """NumPy's arrays, or its table of C functions, are not what the entry knows."""


class Entry:
    """One builtin in front of one function written in Python. `.matmul` is what users call."""
    repeats: builtin_repeats.Repeats | None = None

    def __init__(self, python: Callable[..., Any]) -> None:
        from tilewright.compiler.artefact import load
        from tilewright.targets import detect
        constructors = _constructors() if layout.agrees() else None
        if constructors is None:
            raise UnknownLayout
        new, scalar = constructors
        code = load("tilewright.kernels.cpu.entry:emit_entry", detect(), object.__basicsize__)
        doc = f"matmul({_signature(python)})\n--\n\n{python.__doc__}".encode()
        methods = (layout.Method * 2)(layout.Method(b"matmul", code.address("matmul_entry"), layout.FASTCALL,
                                        doc), layout.Method())
        # the name makes matmul.__module__, by which pickle finds it again
        definition = _Module(name=b"tilewright", size=abi.CONTEXT_SIZE, methods=ctypes.addressof(methods))
        create, state = ctypes.pythonapi.PyModule_Create2, ctypes.pythonapi.PyModule_GetState
        create.restype, create.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_int]
        state.restype, state.argtypes = ctypes.c_void_p, [ctypes.py_object]
        module = create(ctypes.addressof(definition), PYTHON_API_VERSION)
        self._context: int = state(module)
        names = {at: sys.intern(x) for at, x in ((abi.OUT, "out"), (abi.ALGORITHM, "algorithm"),
                                                 (abi.EPILOGUE, "epilogue"), (abi.OPERANDS, "operands"))}
        _kept.append((methods, definition, doc, module, python, names))
        self._decline = code.address("matmul_decline")
        for offset, word in ((abi.PYTHON, id(python)), (abi.WATCHING, id(python)),
                             (abi.VECTORCALL, layout.vectorcall()), (abi.NDARRAY, id(np.ndarray)),
                             (abi.FUNCTION, id(FunctionType)), (abi.FLOAT, id(float)),
                             (abi.DICT, id(dict)), (abi.NONE, id(None)), (abi.TRUE, id(True)), (abi.ZERO, id(0)),
                             (abi.NEW, new), (abi.SCALAR, scalar),
                             *((at, id(name)) for at, name in names.items()),
                             (abi.RELEASE_ABOVE, RELEASE_GIL_ABOVE), (abi.NATIVE + 8, EVERY), (abi.NATIVE + 16, EVERY),
                             (abi.SMALL, self._decline), (abi.SMALL + 16, self._decline)):
            self._word(offset).value = word
        self.matmul: Callable[..., Any] = module.matmul
        self._names: set[str] = set()

    def _word(self, offset: int) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(self._context + offset)

    def enable(self, dtype: str, small_gemm: int, context: int) -> None:
        """Take the common call of "f32" or "f64" with this function and its context, both addresses; 0: do not."""
        slot = abi.SMALL + 16 * ("f32", "f64").index(dtype)
        # the function last, and the one that declines first: another thread may call at any time
        self._word(slot).value = self._decline
        self._word(slot + 8).value = context
        self._word(slot).value = small_gemm or self._decline

    def limit(self, largest: int, release_above: int = RELEASE_GIL_ABOVE) -> None:
        """Leave products with m*n*k above `largest` to the Python function; release the GIL from `release_above` on."""
        self._word(abi.LARGEST).value, self._word(abi.RELEASE_ABOVE).value = largest, release_above

    def native(self, algorithms: dict[str | None, tuple[float, float]]) -> None:
        """Take calls with these values of algorithm=, up to these m*n*k for f32 and for f64, as if they had none."""
        assert len(algorithms) < abi.NATIVE_ROWS
        for row, (name, most) in enumerate(algorithms.items(), 1):
            if name is not None:
                self._names.add(name := sys.intern(name))
            for at, number in enumerate((id(name), *(int(min(x, EVERY)) for x in most))):
                self._word(abi.NATIVE + 24*row + 8*at).value = number

    def repeat(self, python: Callable[..., Any]) -> None:
        """Call this function for NumPy's arrays from now on, and repeat what it has done for calls like an earlier one.
        """
        table = builtin_repeats.Repeats(RELEASE_GIL_ABOVE, self._begin_to_repeat)
        function = builtin_repeats.watching(python, table, lambda: self._word(abi.RUNNING).value,
                                            lambda: self.matmul)
        _kept.append((function, table))
        self.repeats, self._word(abi.WATCHING).value = table, id(function)
        tensor_repeats.when_met(self.repeat_tensors)
        os.register_at_fork(after_in_child=self._nothing_runs)

    def repeat_tensors(self, torch: Any) -> None:
        """Repeat calls with torch's tensors on the CPU, too, if this torch has what that takes."""
        modes, read = getattr(torch._C, "_len_torch_dispatch_stack", None), exchange.reader(torch)
        if self.repeats is not None and modes is not None and read:
            self.repeats.read = read
            _kept.append((torch.Tensor, modes))
            for offset, word in ((abi.READ, read), (abi.MODES, id(modes)), (abi.TENSOR, id(torch.Tensor))):
                self._word(offset).value = word

    def _nothing_runs(self) -> None:
        """A forked child lacks the threads that were in repeated calls."""
        self._word(abi.RUNNING).value = self._word(abi.SPACE_TAKEN).value = 0

    def _begin_to_repeat(self, table: int, pool: Any) -> None:
        for offset, word in ((abi.POOL, pool.address), (abi.RUN_PARTS, pool.parts_address),
                             (abi.RUN_TEAM, pool.team_address), (abi.TABLE, table)):
            self._word(offset).value = word

    def forget(self) -> None:
        """Repeat no call that was made until now, not in Python either: what is found there leaves no record here."""
        if self.repeats is not None:
            self.repeats.forget()
            repeats.forget()


def entry() -> Entry | None:
    """The one in front of tilewright.api.products, made when first asked for. None where there can be none: it takes
    CPython with its GIL, and this machine as the target (if not, the Python function says so when it is called)."""
    if not _made:
        with forks.building:
            if not _made:
                _made.append(_make())
    return _made[0]


def _make() -> Entry | None:
    from tilewright.api.products import matmul
    from tilewright.targets import detect
    if sys.implementation.name != "cpython" or "t" in sys.abiflags or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    try:
        detect().require_runnable()
    except (RuntimeError, ValueError):
        return None
    from tilewright.runtime.cpu import small
    try:
        callable_ = Entry(matmul)
    except UnknownLayout:
        return None
    callable_.repeat(matmul)
    small.attach(callable_)
    return callable_


def __getattr__(name: str) -> Any:
    """`matmul`, the builtin, or the Python function where there is none."""
    if name != "matmul":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = entry()
    if module is not None:
        return module.matmul
    from tilewright.api.products import matmul
    return matmul


def _signature(f: Any) -> str:
    """Parameters as in CPython's __text_signature__, which inspect.signature reads; inspect is slow to import."""
    code, optional = f.__code__, f.__defaults__ or ()
    positional = code.co_varnames[:code.co_argcount]
    named = code.co_varnames[code.co_argcount:code.co_argcount + code.co_kwonlyargcount]
    defaults = dict(zip(positional[len(positional) - len(optional):], optional)) | (f.__kwdefaults__ or {})
    others = code.co_varnames[code.co_argcount + code.co_kwonlyargcount] if code.co_flags & CO_VARKEYWORDS else ""
    every = (*positional, *(("*",) if named else ()), *named, *((f"**{others}",) if others else ()))
    return ", ".join([name + (f"={defaults[name]!r}" if name in defaults else "") for name in every])


def _constructors() -> tuple[int, int] | None:
    """The addresses of PyArray_New and PyArray_Scalar, tried out; None if NumPy's table is not what it was in NumPy 1
    and 2."""
    umath = sys.modules.get("numpy._core._multiarray_umath") or sys.modules.get("numpy.core._multiarray_umath")
    capsule = getattr(umath, "_ARRAY_API", None)
    if type(capsule).__name__ != "PyCapsule":
        return None
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = (ctypes.c_void_p * (NEW_INDEX + 1)).from_address(get(capsule, None))
    address, of_scalars = table[NEW_INDEX], table[SCALAR_INDEX]
    if table[NDARRAY_INDEX] != id(np.ndarray) or not address or not of_scalars:
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, number, pointer, number, pointer, pointer, number,
                            number, pointer)(address)
    dims = (ctypes.c_ssize_t * 2)(3, 7)
    made = [new(np.ndarray, 2, ctypes.addressof(dims), number, None, None, 0, 0, None) for number in (11, 12)]
    good = all(type(x) is np.ndarray and x.shape == (3, 7) and x.flags.carray and x.flags.owndata for x in made)
    if not good or [x.dtype for x in made] != [np.float32, np.float64]:
        return None
    scalar = ctypes.PYFUNCTYPE(ctypes.py_object, pointer, ctypes.py_object, pointer)(of_scalars)
    numbers = [np.array([3], x) for x in (np.float32, np.longlong, np.complex128)]
    scalars = [scalar(x.ctypes.data, x.dtype, None) for x in numbers]
    return (address, of_scalars) if all(type(x) is y.dtype.type and x == 3 for x, y in zip(scalars, numbers)) else None
