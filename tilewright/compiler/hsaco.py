"""The way from an emitter to a code object for an AMD GPU: a cached one if there is one, else record, compile and link.

A code object comes with its manifest (`amd.manifest`), so that nobody has to record a kernel to launch it.
"""
from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright import forks
from tilewright.compiler import cache

if TYPE_CHECKING:
    from tilewright.ir import Function
    from tilewright.targets import AmdTarget


class Code(NamedTuple):
    """A linked code object with one kernel, and what a launch must know of it."""
    image: bytes
    manifest: dict[str, Any]


_codes: dict[tuple[Any, ...], Code] = {}


def emitted(emit: str, target: AmdTarget, **options: Any) -> Code:
    """What `emit(**options)` records, compiled for a target.

    `emit` is the name "package.module:function" of an emitter, whose module is imported only if the code is not in the
    cache. The options must have a faithful repr: they name the code there. lld.Missing where it is not, and there is no
    linker.
    """
    key = ("hsaco", emit, target.code_key, tuple(sorted(options.items())))
    found = _codes.get(key)
    if found is None:
        def build() -> bytes:
            module, _, name = emit.partition(":")
            code = compile(getattr(import_module(module), name)(**options), target)
            return json.dumps(code.manifest).encode() + b"\n" + code.image
        with forks.building:
            manifest, _, image = cache.fetch(cache.key(*key), build).partition(b"\n")
        found = _codes[key] = Code(image, json.loads(manifest))
    return found


def compile(function: Function, target: AmdTarget) -> Code:
    """The code object of a recorded kernel, not cached."""
    from tilewright.compiler import amd
    image = amd.code_object(function, target)
    return Code(image, amd.manifest(function, target))
