"""Multiply .npy files: memory-mapped, so that no copy of an input is made, and written whole or not at all."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import formats, outputs
from tilewright.lab.cli.command import BadInput
from tilewright.problem import Gemm

Array = np.ndarray[Any, np.dtype[Any]]


def open_matrix(path: Path, format: str | None = None) -> Array:
    """The array in a .npy file, mapped read-only; BadInput says what is wrong with the file.

    `format` is that of elements which the file has as raw bytes, since NumPy's files know none of ml_dtypes' formats.
    """
    if path.is_dir():
        raise BadInput(f"{path} is a directory, not a .npy file")
    if path.exists() and not path.is_file():
        raise BadInput(f"{path} must be a regular file, which can be mapped into memory")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist") from None
    except PermissionError:
        raise BadInput(f"{path} cannot be read: permission denied") from None
    except EOFError:
        raise BadInput(f"{path} is empty") from None
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


def result_dtype(a: Array, b: Array) -> np.dtype[Any]:
    """Of a @ b, as matmul gives it."""
    first, second = (formats.find(x.dtype) for x in (a, b))
    if first is None or second is None:  # long double, which is NumPy's own
        return np.result_type(a, b)
    return formats.FORMATS[Gemm(1, 1, 1, first, second).out].dtype


def _reason(error: Exception) -> str:
    """np.load's message in terms of the file."""
    message = " ".join(str(error).split())
    if "Python objects" in message:
        return "it holds Python objects, not numbers"
    if "pickle" in message or "magic" in message:
        return "this is not a .npy file"
    if not isinstance(error, (ValueError, OSError)):
        return f"the file is damaged ({type(error).__name__}: {message})"
    if "mmap length" in message or "reading array header" in message or "EOF" in message:
        return "the file is truncated"
    return message


def product_shape(a: Array, b: Array, names: tuple[Path, Path]) -> tuple[int, ...]:
    """The shape of a @ b, or BadInput with both shapes and what about them does not fit."""
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0]
    where = f"{names[0]} has shape {a.shape} and {names[1]} {b.shape}"
    if a.shape[-1] != inner:
        raise BadInput(f"{where}: the last axis of the first ({a.shape[-1]}) must be as long as the rows of the second "
                       f"({inner})")
    try:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise BadInput(f"{where}: the leading axes do not broadcast") from None
    return (*batch, *(a.shape[-2:-1]), *(b.shape[-1:] if b.ndim > 1 else ()))


def multiply(first: Path, second: Path, output: Path, *, threads: int | None = None, check: bool = False,
             named: tuple[str | None, str | None] = (None, None)) -> str:
    """C = A @ B from file to file; what was done, in a line. `output` appears, or is replaced, only when it is complete
    and right. `named`: the formats of raw bytes, see open_matrix."""
    import tilewright as tw

    a, b = open_matrix(first, named[0]), open_matrix(second, named[1])
    shape = product_shape(a, b, (first, second))
    dtype = result_dtype(a, b)
    if dtype.isbuiltin == 2:
        raise BadInput(f"the result is {dtype}, which a .npy file cannot name; convert {first} or {second} first")
    outputs.check(output)
    with _replacing(output, shape, dtype) as c:
        start = time.perf_counter()
        tw.matmul(a, b, c, threads=threads)
        seconds = time.perf_counter() - start
        verdict = f"; agrees with {_check(a, b, c)}" if check else ""
    flops = 2 * a.shape[-1] * int(np.prod(shape, dtype=object))
    rate = f", {flops / seconds / 1e9:.1f} GFLOP/s" if seconds and flops else ""
    return f"{output}: {' x '.join(map(str, shape)) or 'a number'} {dtype.name}, {seconds:.3f} s{rate}{verdict}"


@contextmanager
def _replacing(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Iterator[Array]:
    """A writeable array, which is in the file at `path` when the block succeeds: mapped where there can be a map."""
    header = np.lib.format.header_data_from_array_1_0(np.empty((0,), dtype)) | {"shape": shape}
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    try:
        with outputs.replacing(path) as file:
            if not size or not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                whole = np.empty(shape, dtype)
                yield whole
                np.lib.format.write_array_header_1_0(file, header)
                file.write(whole.tobytes())
                return
            np.lib.format.write_array_header_1_0(file, header)
            offset = file.tell()
            file.flush()
            # Reserved, since writing to a mapped hole of a full disk kills the process with SIGBUS.
            os.posix_fallocate(file.fileno(), offset, size)
            mapped = np.memmap(file, dtype, "r+", offset, shape)
            yield mapped.view(np.ndarray)
            mapped.flush()
    except OSError as error:
        if error.strerror is None:  # a sentence already
            raise
        raise BadInput(f"{path} cannot be written: {error.strerror}") from None


def _check(a: Array, b: Array, c: Array) -> str:
    """Every matrix of the product against wider arithmetic, whose name is returned; BadInput if one is wrong."""
    name, wrong = _reference(c.dtype)
    rows, columns = a if a.ndim > 1 else a[None, :], b if b.ndim > 1 else b[:, None]
    batch = np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2])
    result = c.reshape(*batch, rows.shape[-2], columns.shape[-1])
    for index in np.ndindex(*batch):
        found = wrong(
            np.broadcast_to(rows, (*batch, *rows.shape[-2:]))[index],
            np.broadcast_to(columns, (*batch, *columns.shape[-2:]))[index],
            result[index],
        )
        if found:
            where = f"matrix {index} of the result: " if batch else ""
            raise BadInput(f"the check against {name} failed, and nothing was written: {where}{found}")
    return name


def _reference(dtype: np.dtype[Any]) -> tuple[str, Callable[[Array, Array, Array], str | None]]:
    """What a result of this dtype is compared with, and how: a sentence, or None if it is right."""
    from tilewright.lab.measure import check

    if dtype.kind == "b":
        return "NumPy", _wrong_booleans
    if formats.find(dtype) is not None:
        name = {"f": "float64", "c": "complex128"}.get(dtype.kind, "exact integers")
        return name, lambda a, b, c: check.wrong(a, b, c, random=False)

    def wrong(a: Array, b: Array, c: Array) -> str | None:
        factor = 4 * (a.shape[1] + 3) * float(np.finfo(dtype).eps)
        return check.Probe(a, b, wide=dtype).missed(c, factor) if c.size else None

    return dtype.name, wrong  # long doubles, and their complex numbers


def _wrong_booleans(a: Array, b: Array, c: Array) -> str | None:
    wrong = np.argwhere(c != ((a.astype("f4") @ b.astype("f4")) > 0))
    return f"C{wrong[0].tolist()} is {c[tuple(wrong[0])]}" if len(wrong) else None
