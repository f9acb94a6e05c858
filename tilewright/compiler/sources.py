"""Which source files a kernel's code depends on: those of its emitter, of what that imports, and of the compiler.

The files are found by their import statements, wherever these stand, without importing anything: a process whose
kernels are cached asks this, and must not load an emitter for it. Imports for type checkers alone do not count.
"""
from __future__ import annotations

import hashlib
import os
import re
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

PACKAGE = os.path.dirname(os.path.dirname(__file__))
COMPILER = "tilewright.compiler.artefact"       # it imports all that turns a recorded function into code
_IMPORT = re.compile(rb"\n[ \t]*(?:from (tilewright[\w.]*) import (\([^)]*\)|[^\n]*)|import (tilewright[\w.]*))")
_CHECKED = re.compile(rb"\nif TYPE_CHECKING:\n(?:[ \t]+[^\n]*\n|\n)+")
_COMMENT = re.compile(rb"#[^\n]*")


class Source(NamedTuple):
    digest: bytes               # SHA-256 of the content
    imports: tuple[str, ...]    # modules of tilewright


@cache
def digest(*emitters: str) -> str:
    """Names all sources that the code of these emitters' modules depends on: any change to one is another digest."""
    sha = hashlib.sha256()
    for name, path in sorted(files(*emitters).items()):
        sha.update(name.encode() + b"\0" + _read(path).digest)
    return sha.hexdigest()


def modules(package: str) -> list[str]:
    """The modules in a package of tilewright."""
    folder = "/".join((PACKAGE, *package.split(".")[1:]))
    return sorted(f"{package}.{name.removesuffix('.py')}" for name in _listed(folder) if name.endswith(".py"))


def files(*emitters: str) -> dict[str, str]:
    """{module: file} of what these modules and the compiler import, directly or not.

    `from package import name` means the package only if it has no module of that name: packages on the way to a module
    are not what is used.
    """
    texts: dict[str, str] = {}
    waiting = [*emitters, COMPILER]
    while waiting:
        name = waiting.pop()
        path = None if name in texts else _path(name)
        if path is not None:
            texts[name] = path
            waiting += _read(path).imports
    return texts


@cache
def _read(path: str) -> Source:
    with open(path, "rb") as file:
        text = b"\n" + file.read()
    imports: dict[str, None] = {}
    for module, names, alone in _IMPORT.findall(_CHECKED.sub(b"\n", text) if b"\nif TYPE_CHECKING:" in text else text):
        base = (module or alone).decode()
        inner = _names(names) if names else []
        modules = [name for part in inner if _path(name := f"{base}.{part}")]
        imports.update(dict.fromkeys(modules))
        if len(modules) < len(inner) or not inner:
            imports[base] = None
    return Source(hashlib.sha256(text).digest(), tuple(imports))


def _names(listed: bytes) -> list[str]:
    """What an import statement names, between its parentheses if it has some."""
    plain = (_COMMENT.sub(b"", listed) if b"#" in listed else listed).strip(b" ()").decode()
    return [part.split()[0] for part in plain.split(",") if part.strip()]


@cache
def _path(name: str) -> str | None:
    """The file of a module, or None if there is none by this name. The package's own front door does not count: it only
    passes on names that users look up."""
    first, *rest = name.split(".")
    if first != "tilewright":
        spec = find_spec(name)                  # an emitter from elsewhere, whose name the caller gave
        return spec.origin if spec else None
    if not rest:
        return None
    folder = "/".join((PACKAGE, *rest[:-1]))
    if f"{rest[-1]}.py" in _listed(folder):
        return f"{folder}/{rest[-1]}.py"
    inside = f"{folder}/{rest[-1]}" if rest[-1] in _listed(folder) else ""
    return f"{inside}/__init__.py" if inside and "__init__.py" in _listed(inside) else None


@cache
def _listed(folder: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except OSError:                             # no folder by this name
        return frozenset()
