"""Multiply .npy files: inputs are mapped into memory, without a copy; the result is written whole or not at all."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tilewright import formats, inputs, outputs
from tilewright.lab.cli.command import BadInput
from tilewright.lab.measure import check as checks

Array = np.ndarray[Any, np.dtype[Any]]
NO_FILE, CUT = "this is not a .npy file", "the file is truncated"


def open_matrix(path: Path, format: str | None = None) -> Array:
    """The array in a .npy file, mapped read-only; the error says what is wrong with the file.

    `format` is that of elements which the file has as raw bytes, since NumPy's files know none of ml_dtypes' formats.
    """
    if not inputs.read(path, 1):
        raise BadInput(f"{path} is empty")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # of damaged files anything at all: tokenize.TokenError, BadZipFile, TypeError
        raise BadInput(f"{path}: {_reason(error)}") from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise BadInput(f"{path} is an archive of arrays (.npz); one array in a .npy file is needed")
    if array.dtype.kind == "V":
        array = _of_format(array, path, format)
    elif format is not None and formats.find(array.dtype) != formats.get(format):
        raise BadInput(f"{path} holds {array.dtype}, not {format}: --a and --b name the format of raw bytes only")
    if array.dtype.kind in "OSUMm":
        raise BadInput(f"{path} holds {array.dtype}, which cannot be multiplied")
    if array.ndim == 0:
        raise BadInput(f"{path} holds a single number, which cannot be multiplied as a matrix")
    return array.view(np.ndarray)  # np.memmap's own class would only slow the call down


def _of_format(array: Array, path: Path, format: str | None) -> Array:
    """Raw bytes as numbers of a format."""
    if array.dtype.names:
        raise BadInput(f"{path} holds records ({array.dtype}), not numbers")
    if format is None:
        raise BadInput(f"{path} holds raw bytes ({array.dtype}), as NumPy stores bf16 and other formats of ml_dtypes; "
                       "name the format with --a or --b")
    dtype = formats.get(format).dtype
    if dtype.itemsize != array.dtype.itemsize:
        raise BadInput(f"{path} holds elements of {array.dtype.itemsize} bytes, and {format} has {dtype.itemsize}")
    return array.view(dtype)


def _reason(error: Exception) -> str:
    """np.load's message in terms of the file."""
    message = " ".join(str(error).split())
    if not isinstance(error, (ValueError, OSError)):
        return f"the file is damaged ({type(error).__name__}: {message})"
    known = {"Python objects": "it holds Python objects, not numbers", "pickle": NO_FILE, "magic": NO_FILE,
             "mmap length": CUT, "reading array header": CUT, "EOF": CUT}
    return next((said for words, said in known.items() if words in message), message)


def multiply(first: Path, second: Path, output: Path, *, threads: int | None = None, check: bool = False,
             named: tuple[str | None, str | None] = (None, None)) -> str:
    """C = A @ B from file to file; what was done, in a line. `output` appears, or is replaced, only when it is complete
    and right. `named`: the formats of raw bytes, see open_matrix."""
    import tilewright as tw

    a, b = open_matrix(first, named[0]), open_matrix(second, named[1])
    dtype = tw.matmul(np.empty((0, 1), a.dtype), np.empty((1, 0), b.dtype)).dtype
    if dtype.isbuiltin == 2:
        raise BadInput(f"the result is {dtype}, which a .npy file cannot name; convert {first} or {second} first")
    with outputs.replacing(output) as file:
        start = time.perf_counter()
        try:
            c = tw.matmul(a, b, threads=threads)
        except ValueError as error:
            raise BadInput(f"{first} has shape {a.shape} and {second} {b.shape}: {error}") from None
        seconds = time.perf_counter() - start
        verdict = f"; agrees with {_check(a, b, c)}" if check else ""
        try:
            parts: Any = SimpleNamespace(write=file.write)  # np.save asks a file for its position, and a pipe has none
            np.save(parts, c)
        except OSError as error:
            raise inputs.sentence(error, f"{output} cannot be written") from None
    flops = 2 * a.shape[-1] * c.size
    rate = f", {flops / seconds / 1e9:.1f} GFLOP/s" if seconds and flops else ""
    return f"{output}: {' x '.join(map(str, c.shape)) or 'a number'} {dtype.name}, {seconds:.3f} s{rate}{verdict}"


def _check(a: Array, b: Array, c: Array) -> str:
    """Every matrix of the product against wider arithmetic, whose name is returned; BadInput if one is wrong."""
    known = formats.find(c.dtype) is not None
    name = {"f": "float64", "c": "complex128", "b": "NumPy"}.get(c.dtype.kind, "exact integers") if known else \
        c.dtype.name  # of long doubles, and their complex numbers
    rows, columns = a if a.ndim > 1 else a[None, :], b if b.ndim > 1 else b[:, None]
    batch = np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2])
    rows, columns = (np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (rows, columns))
    result = c.reshape(*batch, rows.shape[-2], columns.shape[-1])
    for index in np.ndindex(*batch):
        if wrong := _wrong(rows[index], columns[index], result[index], known):
            where = f"matrix {index} of the result: " if batch else ""
            raise BadInput(f"the check against {name} failed, and nothing was written: {where}{wrong}")
    return name


def _wrong(a: Array, b: Array, c: Array, known: bool) -> str | None:
    if c.dtype.kind == "b":
        return checks.difference(c, (a.astype("f4") @ b.astype("f4")) > 0)
    if known:
        return checks.wrong(a, b, c, random=False)
    return checks.Probe(a, b, wide=c.dtype).missed(c, 4 * (a.shape[1] + 3) * float(np.finfo(c.dtype).eps))
