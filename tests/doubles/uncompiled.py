"""Code of GPU kernels for the fake drivers, which simulate what was recorded: only what drivers read of it, without
instructions, since LLVM takes half of the time of a small product. What LLVM makes of kernels is tested in
tests/kernels, tests/compiler and tests/inspect.
"""

from __future__ import annotations

import json
from collections import ChainMap
from importlib import import_module
from typing import Any

import pytest

from tests.helpers import code_object
from tilewright.compiler import artefact, gate
from tilewright.compiler.manifest import manifest
from tilewright.ir import Function
from tilewright.ir.digest import digest
from tilewright.targets import AmdTarget, CpuTarget

ELF = "\x7fELF\n"            # which a linked code object begins with, but for the new line
FOUND: dict[Any, Any] = {}      # of all tests of this process, as artefact._found


def install(patch: pytest.MonkeyPatch) -> None:
    """Kernels for GPUs are refused by the gate or recorded, and not compiled; no cache on disk has them."""
    content, cached, read = artefact._content, artefact.cached_code, code_object.read

    def uncompiled(emit: Any, name: str, key: Any, target: Any, args: Any, options: Any) -> bytes:
        if isinstance(target, CpuTarget):
            return content(emit, name, key, target, args, options)
        module, _, function = name.partition(":")
        made = (getattr(import_module(module), function) if isinstance(emit, str) else emit)(*args, **options)
        return _packed([made] if isinstance(made, Function) else list(made), target)

    def of_users(functions: list[Function], target: Any, *how: Any) -> bytes:
        real = isinstance(target, CpuTarget) or how[1:]
        return cached(functions, target, *how) if real else _packed(functions, target)

    def read_metadata(image: bytes) -> Any:
        if not image.startswith(ELF.encode()):
            return read(image)
        kernels = {x[".name"]: x for x in map(json.loads, image[len(ELF):].decode().splitlines())}
        return code_object.CodeObject(next(iter(kernels.values()))["arch"], True, kernels, {f"{x}.kd" for x in kernels})
    patch.setattr(artefact, "_content", uncompiled)
    patch.setattr(artefact, "cached_code", of_users)
    patch.setattr(artefact, "_found", ChainMap(FOUND, artefact._found))
    patch.setattr(code_object, "read", read_metadata)


def _packed(functions: list[Function], target: Any) -> bytes:
    gate.check(functions, target)
    amd = isinstance(target, AmdTarget)
    manifests = [manifest(x, target) | ({"dynamic_shared": 0} if amd else {}) for x in functions]
    code = ELF * amd + "".join(map(_metadata if amd else _ptx, functions, manifests))
    return json.dumps(manifests).encode() + b"\n" + code.encode()


def _ptx(function: Function, made: dict[str, Any]) -> str:
    """The entry with its parameters and shared memory, and words that no other kernel has."""
    parameters = ", ".join(f".param .align 64 .b8 {x['name']}[{x['size']}]" if "tile" in x else
                           f".param .b{8 * x['size']} {x['name']}" for x in made["arguments"])
    static, waits = made["shared"] - made["dynamic_shared"], "overlaps" in made
    return (f"// {int(digest(function), 16)}\n.visible .entry {function.name}({parameters})\n"
            + f".shared .align 16 .b8 static[{static}];\n" * (static > 0) + "griddepcontrol.wait\n" * waits)


def _metadata(function: Function, made: dict[str, Any]) -> str:
    """A line of JSON with the fields of a code object's metadata."""
    arguments = [{".value_kind": "by_value", ".offset": x["offset"], ".size": x["size"]} for x in made["arguments"]]
    return json.dumps({"arch": made["target"], "digest": digest(function), ".name": function.name, ".args": arguments,
                       ".max_flat_workgroup_size": made["workgroup"], ".group_segment_fixed_size": made["shared"],
                       ".private_segment_fixed_size": 0, ".vgpr_count": 64}) + "\n"
