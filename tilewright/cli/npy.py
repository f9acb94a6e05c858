"""Multiply .npy files: memory-mapped, so that no copy of an input is made, and written whole or not at all."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import formats
from tilewright.cli.common import BadInput

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Product:
    """What was done."""

    shape: tuple[int, ...]
    dtype: str
    flops: int
    seconds: float
    checked: bool


def open_matrix(path: Path) -> Array:
    """The array in a .npy file, mapped read-only; BadInput says what is wrong with the file."""
    if path.is_dir():
        raise BadInput(f"{path} is a directory, not a .npy file")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist") from None
    except PermissionError:
        raise BadInput(f"{path} may not be read") from None
    except EOFError:
        raise BadInput(f"{path} is empty") from None
    except (ValueError, OSError) as error:
        raise BadInput(f"{path}: {_reason(error)}") from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise BadInput(f"{path} is an archive of arrays (.npz); one array in a .npy file is needed")
    if formats.find(array.dtype, formats.MULTIPLIED) is None:
        known = " or ".join(formats.FORMATS[name].numpy_name for name in formats.MULTIPLIED)
        raise BadInput(f"{path} holds {array.dtype}; {known} is needed (numpy.ndarray.astype converts)")
    if array.ndim == 0:
        raise BadInput(f"{path} holds a single number, which cannot be multiplied as a matrix")
    return array.view(np.ndarray)  # np.memmap's own class would only slow the call down


def _reason(error: Exception) -> str:
    """What np.load's message means to somebody who has a file in hand."""
    message = " ".join(str(error).split())
    if "Python objects" in message:
        return "it holds Python objects, not numbers"
    if "pickle" in message or "magic" in message:
        return "this is not a .npy file"
    if "mmap length" in message or "reading array header" in message or "EOF" in message:
        return "the file is truncated"
    return message


def product_shape(a: Array, b: Array, names: tuple[Path, Path]) -> tuple[int, ...]:
    """The shape of a @ b, or BadInput with both shapes and what about them does not fit."""
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0]
    where = f"{names[0]} has shape {a.shape} and {names[1]} {b.shape}"
    if a.shape[-1] != inner:
        raise BadInput(f"{where}: the last axis of the first ({a.shape[-1]}) must be as long as the rows of the second "
                       f"({inner})")  # fmt: skip
    try:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise BadInput(f"{where}: the leading axes do not broadcast") from None
    return (*batch, *(a.shape[-2:-1]), *(b.shape[-1:] if b.ndim > 1 else ()))


def multiply(first: Path, second: Path, output: Path, *, threads: int | None = None, check: bool = False) -> Product:
    """C = A @ B from file to file.  `output` appears, or is replaced, only when it is complete and right."""
    import tilewright as tw

    a, b = open_matrix(first), open_matrix(second)
    shape = product_shape(a, b, (first, second))
    dtype = np.result_type(a, b)
    if output.is_dir():
        raise BadInput(f"{output} cannot be written: it is a directory")
    if not output.parent.is_dir():
        raise BadInput(f"{output} cannot be written: there is no directory {output.parent}")
    with _replacing(output, shape, dtype) as c:
        start = time.perf_counter()
        tw.matmul(a, b, c, threads=threads)
        seconds = time.perf_counter() - start
        if check:
            _check(a, b, c)
    return Product(shape, dtype.name, 2 * a.shape[-1] * int(np.prod(shape, dtype=object)), seconds, check)


@contextmanager
def _replacing(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Iterator[Array]:
    """A writeable array in a temporary file beside `path`, which takes its place when the block succeeds."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-", suffix=".part")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            header = np.lib.format.header_data_from_array_1_0(np.empty((0,), dtype)) | {"shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            offset, size = file.tell(), int(np.prod(shape, dtype=object)) * dtype.itemsize
            file.flush()
            if size:
                # Reserved, since writing to a mapped hole of a full disk kills the process with SIGBUS.
                os.posix_fallocate(file.fileno(), offset, size)
        mapped = np.memmap(temporary, dtype, "r+", offset, shape) if size else None
        yield np.empty(shape, dtype) if mapped is None else mapped.view(np.ndarray)
        if mapped is not None:
            mapped.flush()
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp's files are private, a result need not be
        os.replace(temporary, path)
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError):
            raise BadInput(f"{path} cannot be written: {error.strerror}") from None
        raise


def _check(a: Array, b: Array, c: Array) -> None:
    """Every matrix of the product against float64."""
    from tilewright.bench import check

    rows, columns = a if a.ndim > 1 else a[None, :], b if b.ndim > 1 else b[:, None]
    batch = np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2])
    result = c.reshape(*batch, rows.shape[-2], columns.shape[-1])
    for index in np.ndindex(*batch):
        wrong = check.wrong(
            np.broadcast_to(rows, (*batch, *rows.shape[-2:]))[index],
            np.broadcast_to(columns, (*batch, *columns.shape[-2:]))[index],
            result[index],
            random=False,
        )
        if wrong:
            where = f"matrix {index} of the result: " if batch else ""
            raise BadInput(f"the check against float64 failed, and nothing was written: {where}{wrong}")
