"""Compiled kernels on disk: one file per content address, safe for concurrent processes and for a killed writer.

A file is written under a temporary name and renamed, so that readers see all of it or nothing. It opens with the
SHA-256 of the rest: a damaged entry is noticed, and built and written again. When the directory cannot be written,
because it is read-only or the disk is full, kernels stay in memory and one warning says so.
"""
from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

SUFFIX = ".o"
WRITING = ".writing-"               # how the name of an unfinished file begins
ABANDONED_S = 3600.0                # an unfinished file this old has lost its writer
_DIGEST = hashlib.sha256().digest_size


def directory() -> Path:
    """TILEWRIGHT_CACHE_DIR, else the user's cache directory."""
    chosen = os.environ.get("TILEWRIGHT_CACHE_DIR")
    if chosen:
        return Path(chosen)
    caches = os.environ.get("XDG_CACHE_HOME")
    if caches:
        return Path(caches) / "tilewright"
    try:
        home = Path.home()
    except RuntimeError:            # a user without a name and without HOME, as in some containers
        home = Path("/")
    return home / ".cache" / "tilewright"


@cache
def fingerprint() -> str:
    """Names the code that writes kernels: any change to it, or to LLVM, makes new addresses."""
    import llvmlite

    from tilewright import __version__
    # importlib.metadata would take 30 ms for llvmlite's version
    digest = hashlib.sha256(f"llvmlite {llvmlite.__version__} tilewright {__version__}".encode())
    package = Path(__file__).parent.parent
    for folder in ("ir", "kernels", "compiler"):
        for source in sorted((package / folder).rglob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()


def key(*parts: object) -> str:
    return hashlib.sha256("\0".join([fingerprint(), *map(repr, parts)]).encode()).hexdigest()


def fetch(address: str, build: Callable[[], bytes]) -> bytes:
    """The entry at `address`, built and stored when it is not there or damaged."""
    path = directory() / (address + SUFFIX)
    try:
        entry = path.read_bytes()
    except OSError:
        entry = b""
    digest, content = entry[:_DIGEST], entry[_DIGEST:]
    if content and hashlib.sha256(content).digest() == digest:
        return content
    content = build()
    store(path, hashlib.sha256(content).digest() + content)
    return content


def store(path: Path, entry: bytes) -> bool:
    """Write a file whole or not at all; whether that was possible. If not, there is a warning, once per directory."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f"{WRITING}{os.getpid()}-{os.urandom(8).hex()}"
        try:
            with open(temporary, "xb") as file:
                file.write(entry)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        _warn_once(path.parent, error.strerror or str(error))
        return False
    _sweep_once(path.parent)
    return True


_warned: set[Path] = set()
_swept: set[Path] = set()


def _warn_once(where: Path, why: str) -> None:
    if where not in _warned:
        _warned.add(where)
        warnings.warn(f"tilewright cannot write its kernel cache in {where} ({why}); kernels are compiled anew in "
                      "every process. Set TILEWRIGHT_CACHE_DIR to a directory that can be written.",
                      RuntimeWarning, stacklevel=2)


def _sweep_once(where: Path) -> None:
    """Remove what killed writers have left behind; whoever has compiled something has a millisecond for it."""
    if where not in _swept:
        _swept.add(where)
        for path in _files(where):
            if path.name.startswith(WRITING):
                _remove_if_abandoned(path)


def _remove_if_abandoned(path: Path) -> None:
    with suppress(OSError):
        if time.time() - path.stat().st_mtime > ABANDONED_S:
            path.unlink()


def _files(where: Path) -> list[Path]:
    try:
        return [path for path in where.iterdir() if path.suffix == SUFFIX or path.name.startswith(WRITING)]
    except OSError:
        return []


def info() -> dict[str, object]:
    """Where the cache is, how many kernels it holds and how many bytes they take."""
    where, sizes = directory(), []
    for path in _files(where):
        with suppress(OSError):     # another process removed it just now
            if path.suffix == SUFFIX:
                sizes.append(path.stat().st_size)
    return {"directory": str(where), "entries": len(sizes), "bytes": sum(sizes)}


def clear() -> int:
    """Remove every compiled kernel; how many there were. Files that somebody is writing are left to their writers."""
    removed = 0
    for path in _files(directory()):
        if path.suffix != SUFFIX:
            _remove_if_abandoned(path)
            continue
        with suppress(OSError):
            path.unlink()
            removed += 1
    return removed
