"""TILEWRIGHT_RECORD=FILE: which products a program computes, appended to a file of shapes (shape_list.py) at its end.

The functions that users call are wrapped: each call is counted, whatever is behind it, so that neither the builtin nor
its repeated calls hide any. A call costs a few microseconds more. Only calls that succeed count, and only products of
which a Gemm can say what they are: complex scalars, and operands that are packed or have scales of blocks leave no
line. Semirings, epilogues and prologues are in a line as texts. Of einsum and tensordot, whose calls are not repeated
while they are recorded, products of pairs are counted where they are multiplied. How many pairs of these have axes that
do not merge, and how many calls were grouped, is said at the end.

A process appends its lines when it exits, in one piece and under a lock, so that many may share a file; one that is
killed, or leaves by os._exit, appends none.
"""
from __future__ import annotations

import atexit
import fcntl
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import wraps
from math import gcd, prod
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.api import attention, tensors
from tilewright.expressions import remembered
from tilewright.expressions.semiring import Semiring, semiring
from tilewright.formats.quantized import Quantized
from tilewright.plans import semirings
from tilewright.problem import Gemm
from tilewright.rules import arguments, fusing, prologues
from tilewright.rules.arguments import Array
from tilewright.rules.call import Call
from tilewright.rules.contraction import Operands
from tilewright.runtime.cpu import pool
from tilewright.runtime.cpu.engine import format_of
from tilewright.runtime.cpu.layout import address
from tilewright.runtime.gpu.arrays import TORCH, Library, library_of
from tilewright.shape_list import Listed, merged
from tilewright.targets import detect

ALIGNED = 16            # bytes, beyond which no plan asks
FUNCTIONS = ("f", "epilogue", "prologue_a", "prologue_b")       # arguments of matmul and contract
MORE = ("reduce", "operands", "out_dtype")                      # what they depend on
OPTIONS = frozenset(("trans_a", "trans_b", "algorithm", "threads", "scale_a", "scale_b",
                     *FUNCTIONS, *MORE))


class Recorder:
    """The calls of one process, to be appended to one file."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()             # a program may change its directory
        self.counts: dict[Any, int] = {}
        self.listed: dict[Any, Listed | None] = {}
        self.missed = Counter[str]()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.write)

    def recording(self, function: Callable[..., Any], first: int) -> Callable[..., Any]:
        """The function with its calls counted; its operands are arguments `first` and the one behind it."""
        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            a, b = (args[i] if i < len(args) else kwargs[name] for i, name in ((first, "a"), (first + 1, "b")))
            options = {name: x for name, x in kwargs.items() if name in OPTIONS and x is not None}
            if function.__name__ == "contract":
                options["f"] = args[0] if args else kwargs["f"]
            self.count(a, b, result[0] if isinstance(result, tuple) else result, options)
            return result
        return counted

    def attending(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """tilewright.attention with its calls counted."""
        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            try:
                library = library_of(*args[:3])
                problem = attention.problem_of_call(function, args, kwargs)
                target = detect() if library is None else library.platform.driver.device(
                    library.device(args[0])).target
                threads = None if library else kwargs.get("threads") or pool.get_num_threads()
                self.add(Listed(problem, threads, target.name))
            except Exception as error:          # recording must not stop a program
                self.missed[f"attention were not recorded: {type(error).__name__}"] += 1
            return result
        return counted

    def add(self, found: Listed) -> None:
        """Count a call."""
        self.listed[found] = found
        self.counts[found] = self.counts.get(found, 0) + 1

    def missing(self, function: Callable[..., Any], why: str) -> Callable[..., Any]:
        """The function with its calls counted as calls whose products are not known."""
        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self.missed[f"{function.__name__} were not recorded: {why}"] += 1
            return result
        return counted

    def _forget(self) -> None:
        self.counts.clear()
        self.missed.clear()

    def count(self, a: Any, b: Any, result: Any, options: dict[str, Any]) -> None:
        try:
            of_functions = functions_key(options)
            named = tuple((name, _word(x)) for name, x in options.items() if name not in FUNCTIONS)
            key: Any = _look(a), _look(b), getattr(result, "dtype", None), pool.get_num_threads(), named, of_functions
            if of_functions is None:                    # functions of which it cannot be seen whether they are the same
                key = _listed(a, b, result, options)
                self.listed[key] = key
            if key not in self.listed:
                self.listed[key] = _listed(a, b, result, options)
            self.counts[key] = self.counts.get(key, 0) + 1
        except Exception as error:              # recording must not stop a program
            if None not in self.listed:
                self.listed[None] = None
                print(f"tilewright: a product cannot be recorded: {type(error).__name__}: {error}", file=sys.stderr)

    def write(self) -> None:
        """Append what was counted since the last time."""
        for what, count in self.missed.items():
            print(f"tilewright: {count} calls of {what}", file=sys.stderr)
        self.missed.clear()
        counted = [(self.listed[key], count) for key, count in self.counts.items()]
        self.counts.clear()
        lines = merged(Listed(**{**vars(product), "count": count}) for product, count in counted if product is not None)
        if not lines:
            return
        try:
            with open(self.path, "ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.write("".join(product.to_json() + "\n" for product in lines).encode())
        except OSError as error:
            print(f"tilewright: {self.path} cannot be written: {error}", file=sys.stderr)


def _look(x: Any) -> Any:
    """What may make a difference, as cheap as can be."""
    if type(x) is np.ndarray:
        return x.dtype, x.shape, x.strides, address(x) & (ALIGNED - 1)
    if type(x) is Quantized:
        return x.format.name, x.shape, library_of(x)
    library = library_of(x)
    plain = (TORCH if library is None else library).plain((x,))[0]
    return (type(x), np.shape(x)) if plain is None else (plain[0], plain[1] & (ALIGNED - 1))


def _word(x: Any) -> Any:
    """The part of an option that may make a difference."""
    if isinstance(x, dict):
        return tuple((name, _look(y)) for name, y in x.items())
    return x if isinstance(x, (str, int, float)) else np.shape(x)


def _listed(a: Any, b: Any, result: Any, options: dict[str, Any]) -> Listed | None:
    """The product as a line says it; None if no line does."""
    library = library_of(a, b)
    scales = _scales(a, b, options)
    if scales is None or library_of(result) is not library:
        return None
    x, y = (_matrix(matrix, options.get(f"trans_{name}"), name, library) for matrix, name in ((a, "a"), (b, "b")))
    z = _array(result, library)
    x, y = (x[None] if x.ndim == 1 else x), (y[:, None] if y.ndim == 1 else y)
    (m, k), n, out = x.shape[-2:], y.shape[-1], format_of(z.dtype)
    if 0 in (z.size, k):
        return None
    batch = prod(np.broadcast_shapes(x.shape[:-2], y.shape[:-2]))
    if y.ndim == 2 and x.flags.c_contiguous:                # leading axes are rows
        m, batch = m * batch, 1
    quantized = [matrix.format.name for matrix in (a, b) if type(matrix) is Quantized]
    functions = dict[str, str]()
    if any(name in options for name in FUNCTIONS):
        described = {name: _array(y, library_of(y)) for name, y in (options.get("operands") or {}).items()}
        if quantized or scales:
            return None
        functions = function_texts(x, y, options, described, library is not None)
    if quantized:
        if len(quantized) != 2:
            return None
        problem, strides = Gemm(m, n, k, quantized[0], quantized[1], out, batch=batch), "contiguous"
    else:
        letters, kinds = zip(*map(_stored, (x, y)))
        by_functions = "epilogue" in functions or (out == "bool" and "semiring" in functions) or (
            "semiring" in functions and bool(semirings.state(functions["semiring"])))       # and not by the product
        problem = Gemm(m, n, k, format_of(x.dtype), format_of(y.dtype), None if by_functions else out,
                       "".join(letters), batch, scales, **functions)
        strides = max(kinds, key=("contiguous", "rows", "any").index)
    align = gcd(ALIGNED, *(matrix.__array_interface__["data"][0] for matrix in (x, y, z)))
    if library is None:
        return Listed(problem, options.get("threads") or pool.get_num_threads(), detect().name,
                      options.get("algorithm"), strides, align)
    device = library.device(a.elements if type(a) is Quantized else a)
    target = library.platform.driver.device(device).target.name
    return Listed(problem, None, target, options.get("algorithm"), strides, align)


def _scales(a: Any, b: Any, options: dict[str, Any]) -> str | None:
    """problem.SCALES for these; None for scales of blocks."""
    given = [(np.shape(options[f"scale_{name}"]), np.shape(x), axis) for name, x, axis in (("a", a, -1), ("b", b, -2))
             if f"scale_{name}" in options]
    of_rows = all(not scale or len(shape) < 2 or (len(scale) == len(shape) and scale[axis] == 1)
                  for scale, shape, axis in given)
    return ("rows" if given else "") if of_rows else None


def _array(x: Any, library: Library | None) -> np.ndarray:
    """An array, or its shadow. Elements are not read."""
    if library is None:
        return np.asarray(tensors.array(x, "an operand"))
    return library.look(x, "an operand", library.stream(x, library.device(x))).shadow


def _matrix(x: Any, trans: Any, name: str, library: Library | None) -> np.ndarray:
    """A matrix as it is multiplied; for a quantized one, an array of its shape."""
    if type(x) is Quantized:
        return np.broadcast_to(np.zeros((), np.float32), x.shape)
    return arguments.transposed(_array(x, library), arguments.layout(trans or False, name), name)


def _stored(x: np.ndarray) -> tuple[str, str]:
    """The letter of a Gemm's layout, and the kind of strides."""
    (rows, columns), (down, along), size = x.shape[-2:], x.strides[-2:], x.itemsize
    if along == size or columns == 1:
        letter, inner, apart, count = "n", columns, down, rows
    elif down == size or rows == 1:
        letter, inner, apart, count = "t", rows, along, columns
    else:
        return "n", "any"
    stacked = all(n == 1 or step in (0, rows * columns * size) for n, step in zip(x.shape[-3:-2], x.strides[-3:-2]))
    return letter, "contiguous" if (count == 1 or apart == inner * size) and stacked else "rows"


def recorder() -> Recorder | None:
    """The recorder of this process; None unless TILEWRIGHT_RECORD names a file."""
    path = os.environ.get("TILEWRIGHT_RECORD")
    if path and not _made:
        _made.append(Recorder(Path(path)))
    return _made[0] if path else None


_made: list[Recorder] = []
FIRST = {"matmul": 0, "gemm": 1, "contract": 1}        # of the function's arguments, the number of a
MISSING = {"grouped_matmul": "a line has one product, and none in groups"}


def wrapped(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A public function, recorded if that is wanted."""
    recording = recorder()
    if recording is None:
        return function
    if name == "attention":
        return recording.attending(function)
    return recording.recording(function, FIRST[name]) if name in FIRST else recording.missing(function, MISSING[name])


def contracted(x: Operands, threads: int | None) -> None:
    """Count the product of a pair of einsum's operands, which has been made."""
    if (record := recorder()) is None:
        return
    if x.matrices:
        record.count(x.a, x.b, x.c, {} if threads is None else {"threads": threads})
    else:
        record.missed["einsum, of two operands each, were not recorded: axes of m, n or k do not merge into one"] += 1


# ---- functions of a call

def functions_key(options: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Equal for functions that compute the same; None where that cannot be seen."""
    parts = []
    for name in FUNCTIONS:
        if (x := options.get(name)) is not None:
            parts.append((name, x.text if hasattr(x, "text") else remembered.keys((x,))))
    return None if any(text is None for _, text in parts) else tuple(parts)


def function_texts(a: Array, b: Array, options: Mapping[str, Any], operands: Mapping[str, Array], on_gpu: bool
                   ) -> dict[str, str]:
    """The functions of a call as a Gemm takes them: texts of its semiring, prologues and epilogue. For operands as they
    are multiplied, or shadows; `operands`: of the functions, likewise."""
    made, f = None, options.get("f")
    if f is not None:
        kind = "float" if arguments.combined_in(a, b).kind == "f" else "int"
        made = f if isinstance(f, Semiring) else semiring(f, options.get("reduce", "sum"), kind)
    call = Call.checked(a, b, epilogue=options.get("epilogue"), operands=options.get("operands"),
                        prologue_a=options.get("prologue_a"), prologue_b=options.get("prologue_b"),
                        out_dtype=options.get("out_dtype"), semiring=made)
    shares = prologues.shared_out(call, operands)
    prepared = prologues.all_of(call, a, b, shares)
    texts = {"semiring": made.text} if made else {}
    texts |= {f"prologue_{role}": function.prologue.text for role, function in prepared.items()}
    if call.epilogue is not None or (made and made.state and on_gpu):       # where a launch makes results of a state
        product = prologues.decided(call, a, b, None, None, prepared)
        texts["epilogue"] = fusing.fused(call._replace(operands=shares.get("epilogue")), product).epilogue.text
    return texts
