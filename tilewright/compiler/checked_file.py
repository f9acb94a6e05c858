"""Files that are believed only when they are whole: bundles of kernels, and weights that are packed.

    "tilewright KIND VERSION\\n"                 the magic
    size, SHA-256                               8 bytes, little-endian, of the whole file; 32 bytes, of all that follows
    size of the index, the index                8 bytes; JSON
    the rest

Of a file with arrays the index lists them under "arrays", and the rest is their bytes, each at a multiple of 64 behind
the index, which ends at one. Nothing is a pickle.
"""
from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

import numpy as np

from tilewright import inputs, outputs, targets
from tilewright.formats.table import get

BEFORE = b"tilewright "
PANELS = "panels"                           # the kind of runtime/cpu/packed.py, which a GPU's process never imports
HEAD = struct.Struct("<Q32sQ")              # the file's size, the digest of what follows it, the index's size
ALIGNED = 64
OF_ARRAYS = {"name": str, "dtype": str, "shape": list[int], "at": int}
MOST = 1 << 62                              # of a whole number in an index


class Refused(ValueError):
    """A file cannot be used here; the message says why."""


@dataclass(frozen=True)
class Kind:
    """A kind of file, as its magic names it, and the version of its layout. For messages: a noun, what writes such
    files, and how to make a new one."""
    name: str
    version: int
    noun: str
    by: str
    again: str

    @property
    def magic(self) -> bytes:
        return BEFORE + f"{self.name} ".encode()

    def content(self, index: Any, rest: bytes, aligned: int = 1) -> bytes:
        """The bytes of a file. `rest` begins at a multiple of `aligned`."""
        first, words = self.magic + b"%d\n" % self.version, json.dumps(index, separators=(",", ":")).encode()
        words += b" " * (-(len(first) + HEAD.size + len(words)) % aligned)
        digested = struct.pack("<Q", len(words)) + words + rest
        size = len(first) + HEAD.size - 8 + len(digested)
        return first + struct.pack("<Q", size) + hashlib.sha256(digested).digest() + digested

    def read(self, path: Path) -> tuple[Any, memoryview]:
        """The index and the rest. OSError if the file cannot be read; Refused if it is of another kind or version, or
        not whole."""
        content = inputs.read(path)
        end = content.find(b"\n", 0, len(self.magic) + 20) + 1
        if not content.startswith(self.magic) or not end:
            raise Refused(f"{path} is no {self.noun} of tilewright's: {self.by} writes them")
        version = content[len(self.magic):end - 1]
        if version != b"%d" % self.version:
            raise Refused(f"{path} is a {self.noun} of version {version.decode(errors='replace')}, and this tilewright "
                          f"reads version {self.version}: {self.again}")
        if len(content) < end + HEAD.size:
            raise Refused(f"{path} is truncated: it has {len(content):,} bytes, too few for its head")
        size, digest, length = HEAD.unpack_from(content, end)
        if len(content) != size:
            what = "is truncated" if len(content) < size else "has been written to"
            raise Refused(f"{path} {what}: it has {len(content):,} bytes, and says that they are {size:,}")
        begin, view = end + HEAD.size, memoryview(content)
        if hashlib.sha256(view[begin - 8:]).digest() != digest:
            raise Refused(f"{path} is damaged: its checksum does not match its content")
        if length > len(content) - begin:
            raise Refused(f"{path} is damaged: its index has {length:,} bytes, more than the file")
        with believed(path):
            return json.loads(content[begin:begin + length]), view[begin + length:]

    def save(self, path: str | os.PathLike[str], index: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Write a file of arrays. OSError if it cannot be written."""
        listed, parts, at = [], [], 0
        for name, x in arrays.items():
            listed.append({"name": name, "dtype": get(x.dtype).name, "shape": list(x.shape), "at": at})
            parts.append(x.tobytes().ljust(-(-x.nbytes // ALIGNED) * ALIGNED, b"\0"))
            at += len(parts[-1])
        outputs.write(Path(path), self.content(index | {"arrays": listed}, b"".join(parts), ALIGNED))

    def load(self, path: Path, fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The index, whose fields but "arrays" are of these types, and the arrays by name, which may not be written to.
        OSError or Refused."""
        index, rest = self.read(path)
        with believed(path):
            check(index, fields | {"arrays": list})
            return index, {row["name"]: _array(row, rest) for row in index["arrays"]}


@contextmanager
def believed(path: Path) -> Iterator[None]:
    """Refused, with the file and the reason, where an index makes no sense to the block: its fields have been checked
    for their types, but only whoever takes their values knows what they may be."""
    try:
        yield
    except Refused:
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        why = f"no {error}" if isinstance(error, LookupError) else str(error)
        raise Refused(f"{path} is damaged: its index cannot be read ({why})") from None


def made_for(path: Path, name: str) -> None:
    """Refused for what was packed for another target than this process multiplies by, unless that is a GPU."""
    try:
        cpu = isinstance(targets.target(name), targets.CpuTarget)
    except ValueError:
        raise Refused(f"{path} is for {name}, a target that this tilewright has not") from None
    if cpu and name != (here := targets.detect().name):
        raise Refused(f"{path} was packed for {name}, and this process multiplies by code for {here}: pack it here, or "
                      "with target=")


def kind_of(path: Path) -> str:
    """What the magic says, "" if there is none. OSError."""
    words = inputs.read(path, 64).partition(b"\n")[0]
    return words[len(BEFORE):].split(b" ")[0].decode(errors="replace") if words.startswith(BEFORE) else ""


def check(found: Any, kinds: dict[str, Any], of: str = "") -> None:
    """ValueError if something read is no dict with these fields of these types, such as int, list[str] or
    list[int | str]; whole numbers are from 0 to MOST, and others are finite."""
    if not isinstance(found, dict) or found.keys() != kinds.keys():
        raise ValueError(f"{f'the fields of each {of}' if of else 'its fields'} must be {', '.join(kinds)}")
    for name, value in found.items():
        if not _is(value, kinds[name]):
            wanted = kinds[name].__name__ if get_origin(kinds[name]) is None else kinds[name]
            raise ValueError(f"{name}{f' of a {of}' if of else ''} must be {wanted}, and is {str(value)[:40]!r}")


def _is(value: Any, kind: Any) -> bool:
    outer, parts = get_origin(kind), get_args(kind)
    if outer is list:
        return type(value) is list and all(_is(item, parts[0]) for item in value)
    if outer is dict:                       # JSON's keys are text
        return type(value) is dict and all(_is(item, parts[1]) for item in value.values())
    if type(value) not in (parts or (kind,)):
        return False
    return 0 <= value <= MOST if type(value) is int else type(value) is not float or math.isfinite(value)


def _array(each: Any, body: memoryview) -> Any:
    check(each, OF_ARRAYS)
    dtype, shape, at = get(each["dtype"]).dtype, tuple(each["shape"]), each["at"]
    if not 0 <= at <= len(body) - math.prod(shape)*dtype.itemsize:
        raise ValueError(f"{each['name']} is not inside it")
    return np.frombuffer(body, dtype, math.prod(shape), at).reshape(shape)
