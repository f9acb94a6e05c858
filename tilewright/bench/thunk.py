"""A C function with fixed arguments as a Python callable that costs some 20 ns instead of ctypes' 700.

A BLAS reached through ctypes pays for converting fourteen arguments, which at 64 x 64 is a tenth of the work.  So that
this is not held against the peers, each signature gets a small compiled wrapper: a CPython builtin without arguments
whose `self` is a bytes object holding the address of the function and its arguments, read straight from there.
The GIL stays held, as nothing else runs in a measuring process.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from tilewright import forks

METH_NOARGS = 0x0004
# Signature letter -> (LLVM type, struct code).  Every field takes 8 bytes, so that offsets are 8 * position.
FIELDS = {"i": ("i32", "i4x"), "l": ("i64", "q"), "p": ("ptr", "Q"), "f": ("float", "f4x"), "d": ("double", "d")}


class _MethodDef(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


def wrapper_ir(signature: str) -> str:
    """LLVM IR of `PyObject *call(PyObject *self, PyObject *unused)` for one signature, such as "iiillldplpldpl"."""
    data = bytes.__basicsize__ - 1  # where the contents of a bytes object start
    lines = [f"  %block = getelementptr i8, ptr %self, i64 {data}", "  %fn = load ptr, ptr %block, align 1"]
    arguments = []
    for position, letter in enumerate(signature, start=1):
        kind = FIELDS[letter][0]
        lines.append(f"  %at{position} = getelementptr i8, ptr %block, i64 {8 * position}")
        lines.append(f"  %arg{position} = load {kind}, ptr %at{position}, align 1")
        arguments.append(f"{kind} %arg{position}")
    incref = ctypes.cast(ctypes.pythonapi.Py_IncRef, ctypes.c_void_p).value
    none = f"inttoptr (i64 {id(None)} to ptr)"
    body = "\n".join(lines)
    return f"""
define ptr @call(ptr %self, ptr %unused) {{
{body}
  call void %fn({", ".join(arguments)})
  call void inttoptr (i64 {incref} to ptr)(ptr {none})
  ret ptr {none}
}}
"""


_compiled: dict[str, tuple[Any, _MethodDef]] = {}


def _method(signature: str) -> _MethodDef:
    """The compiled wrapper of a signature; kept with its engine for the life of the process."""
    with forks.building:
        if signature not in _compiled:
            import llvmlite.binding as llvm

            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
            engine = llvm.create_mcjit_compiler(llvm.parse_assembly(wrapper_ir(signature)), machine)
            engine.finalize_object()
            method = _MethodDef(b"call", engine.get_function_address("call"), METH_NOARGS, None)
            _compiled[signature] = (engine, method)
        return _compiled[signature][1]


def bind(address: int, signature: str, values: tuple[float, ...], keep: object = None) -> Callable[[], None]:
    """A callable without arguments that calls the void C function at `address` with `values`.

    What the pointers among the values point to must outlive the callable; `keep` is kept alive with it.
    """
    if len(values) != len(signature):
        raise ValueError(f"signature {signature!r} takes {len(signature)} values, got {len(values)}")
    codes = "=Q" + "".join(FIELDS[letter][1] for letter in signature)
    block = struct.pack(codes, address, *values)
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
    # The last argument is what the builtin reports as its module: any object, and it holds a reference.
    bound: Callable[[], None] = new(ctypes.addressof(_method(signature)), block, keep)
    return bound
