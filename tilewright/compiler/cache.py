"""Compiled kernels on disk: one file per content address, safe for concurrent processes and for a killed writer.

A file is written under a temporary name and renamed, so that readers see all of it or nothing. It opens with a
SHA-256 of its address and the rest: a damaged entry, or one under another's name, is noticed, and built and written
again. What is read is run, so that it is taken only from files and a directory that are this user's own (owned.py).
When the directory is not, or cannot be written because it is read-only or the disk is full, kernels stay in memory and
one warning says so.
"""
from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tilewright.compiler import owned

SUFFIX = ".o"
ABANDONED_S = 3600.0                # an unfinished file this old has lost its writer
_DIGEST = hashlib.sha256().digest_size


def directory() -> Path:
    """TILEWRIGHT_CACHE_DIR, else the user's cache directory. Relative paths do not count, as the XDG specification has
    it: machine code would come from any directory that a program is started in."""
    chosen = os.environ.get("TILEWRIGHT_CACHE_DIR")
    if chosen:
        if os.path.isabs(chosen):
            return Path(chosen)
        _warn_once(Path(chosen), f"TILEWRIGHT_CACHE_DIR={chosen} is ignored: it must be an absolute path.")
    caches = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(caches):
        return Path(caches) / "tilewright"
    try:
        home = Path.home()
    except RuntimeError:            # a user without a name and without HOME, as in some containers
        home = Path("/")
    return Path("/", home if home.is_absolute() else "") / ".cache" / "tilewright"


@cache
def versions() -> bytes:
    """Names the releases of tilewright and of llvmlite, which brings LLVM. llvmlite is not imported for it: that would
    take longer than the rest of a look into the cache, and launching a GPU's kernels needs none."""
    from tilewright import __version__
    spec = find_spec("llvmlite")
    try:
        said = Path(spec.origin).with_name("_version.py").read_bytes() if spec and spec.origin else b"none"
    except OSError:
        import llvmlite
        said = llvmlite.__version__.encode()
    return b"tilewright " + __version__.encode() + b" llvmlite " + said


def key(*parts: object) -> str:
    """The address of what these say, whose reprs must be faithful."""
    return hashlib.sha256(b"\0".join([versions(), *(repr(part).encode() for part in parts)])).hexdigest()


def fetch(address: str, build: Callable[[], bytes]) -> bytes:
    """The entry at `address`, built and stored when it is not there, damaged, or not this user's own."""
    path = directory() / (address + SUFFIX)
    try:
        entry = owned.read(path)
    except owned.Refused as refused:
        _warn_once(path.parent, f"tilewright does not load compiled kernels that other users could have written: "
                                f"{refused}. They are compiled anew.")
        entry = b""
    except OSError:
        entry = b""
    digest, content = entry[:_DIGEST], entry[_DIGEST:]
    if content and _digest(address, content) == digest:
        return content
    content = build()
    store(path, _digest(address, content) + content)
    return content


def has(address: str) -> bool:
    """Whether there is an entry, which may be damaged."""
    return (directory() / (address + SUFFIX)).exists()


def _digest(address: str, content: bytes) -> bytes:
    digest = hashlib.sha256(address.encode() + b"\0")
    digest.update(content)
    return digest.digest()


def store(path: Path, entry: bytes) -> bool:
    """Write a file whole or not at all; whether that was possible. If not, there is a warning, once per directory."""
    try:
        owned.write(path, entry)
    except owned.Refused as refused:
        _warn_once(path.parent, f"tilewright does not keep compiled kernels where other users can write: {refused}.")
        return False
    except OSError as error:
        _warn_once(path.parent, f"tilewright cannot write its kernel cache in {path.parent} "
                                f"({error.strerror or error}); kernels are compiled anew in every process. Set "
                                "TILEWRIGHT_CACHE_DIR to a directory that can be written.")
        return False
    _sweep_once(path.parent)
    return True


_warned: set[Path] = set()
_swept: set[Path] = set()


def _warn_once(about: Path, words: str) -> None:
    if about not in _warned:
        _warned.add(about)
        warnings.warn(words, RuntimeWarning, stacklevel=3)


def _sweep_once(where: Path) -> None:
    """Remove what killed writers have left behind; it takes a millisecond after a compilation."""
    if where not in _swept:
        _swept.add(where)
        for path in _files(where):
            if path.name.startswith(owned.WRITING):
                _remove_if_abandoned(path)


def _remove_if_abandoned(path: Path) -> None:
    with suppress(OSError):
        if time.time() - path.stat().st_mtime > ABANDONED_S:
            path.unlink()


def _files(where: Path) -> list[Path]:
    try:
        return [path for path in where.iterdir() if path.suffix == SUFFIX or path.name.startswith(owned.WRITING)]
    except OSError:
        return []


def info() -> dict[str, object]:
    """Where the cache is, how many kernels it holds and how many bytes they take; and why it is not used, or ""."""
    where, sizes = directory(), []
    for path in _files(where):
        with suppress(OSError):     # another process removed it just now
            if path.suffix == SUFFIX:
                sizes.append(path.stat().st_size)
    return {"directory": str(where), "entries": len(sizes), "bytes": sum(sizes), "refused": owned.refusal(where)}


def clear() -> int:
    """Remove every compiled kernel; how many there were. Files that are being written are left to their writers."""
    removed = 0
    for path in _files(directory()):
        if path.suffix != SUFFIX:
            _remove_if_abandoned(path)
            continue
        with suppress(OSError):
            path.unlink()
            removed += 1
    return removed
