"""What a Python function says by its code, its globals and the values that it was made with, as words of a key.

    code, globals       their addresses
    closure, defaults   how many values, and of each a word: its address; of a float 1 and its bits, since equal ones
                        are often made anew

Values by address are such that equal ones are one object (api/builtin_repeats.py). Names that the code looks up,
globals, builtins and attributes of modules, are compared after a record with the same key was found: only the record
says which these are.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.ir import Kernel, Value, i8, i64, ptr
from tilewright.kernels.cpu.abi import IS_FLOAT, MOST_VALUES


def add_function(k: Kernel, function: Value, add: Callable[[Any], None], leave_when: Callable[[Value], None],
                 float_type: Value, header: int) -> None:
    """Add the words of a function, with `header` bytes of PyObject."""
    add(k.call_external("PyFunction_GetCode", i64, function))
    add(k.call_external("PyFunction_GetGlobals", i64, function))
    leave_when(k.call_external("PyFunction_GetKwDefaults", i64, function) != 0)

    def add_value(x: Value) -> None:
        with k.when(k.field(x, header - 8, i64) == float_type):
            add(k.constant(i64, IS_FLOAT))
            add(k.field(x, header, i64))
        with k.otherwise():
            add(k.address(x))

    for name in "Closure", "Defaults":
        values = k.call_external(f"PyFunction_Get{name}", ptr(i8), function)
        with k.when(values == 0):
            add(k.constant(i64, 0))
        with k.otherwise():
            count = k.call_external("PyTuple_Size", i64, values)
            leave_when(count > MOST_VALUES)
            add(count)
            with k.loop(count) as i:
                x = k.call_external("PyTuple_GetItem", ptr(i8), values, i)
                if name == "Closure":                       # of cells
                    x = k.call_external("PyCell_Get", ptr(i8), x)
                    leave_when(x == 0)
                    add_value(x)
                    k.call_external("Py_DecRef", None, x)
                else:
                    add_value(x)
