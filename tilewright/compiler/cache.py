"""Compiled kernels on disk: one file per content address, safe for concurrent processes and for a killed writer.

A file is written under a temporary name and renamed, so that readers see all of it or nothing. It opens with the
SHA-256 of the rest: a damaged entry is noticed, removed and built again. When the directory cannot be written, kernels
stay in memory and one warning says so.
"""
from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

SUFFIX = ".o"
_DIGEST = hashlib.sha256().digest_size


def directory() -> Path:
    """TILEWRIGHT_CACHE_DIR, else the user's cache directory."""
    chosen = os.environ.get("TILEWRIGHT_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tilewright"


@cache
def fingerprint() -> str:
    """Names the code that writes kernels: any change to it, or to LLVM, makes new addresses."""
    import llvmlite
    digest = hashlib.sha256(f"llvmlite {llvmlite.__version__}".encode())    # importlib.metadata would take 30 ms
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


def store(path: Path, entry: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
        try:
            with os.fdopen(handle, "wb") as f:
                f.write(entry)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        _warn_once(str(path.parent), error.strerror or str(error))


@cache
def _warn_once(where: str, why: str) -> None:
    warnings.warn(f"tilewright cannot write its kernel cache in {where} ({why}); kernels are compiled anew in every "
                  "process. Set TILEWRIGHT_CACHE_DIR to a directory that can be written.", RuntimeWarning, stacklevel=2)


def _entries() -> list[Path]:
    try:
        return [p for p in directory().iterdir() if p.suffix == SUFFIX or p.name.startswith(".writing-")]
    except OSError:
        return []


def info() -> dict[str, object]:
    """Where the cache is, how many kernels it holds and how many bytes they take."""
    sizes = []
    for path in _entries():
        try:
            sizes.append(path.stat().st_size)
        except OSError:         # another process removed it just now
            continue
    return {"directory": str(directory()), "entries": len(sizes), "bytes": sum(sizes)}


def clear() -> int:
    """Remove every compiled kernel; how many there were."""
    removed = 0
    for path in _entries():
        try:
            path.unlink()
            removed += 1
        except OSError:
            continue
    return removed
