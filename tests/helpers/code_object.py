"""What is in an AMDGPU code object, read from its bytes: ELF header, symbols, and the metadata that ROCm goes by.

https://llvm.org/docs/AMDGPUUsage.html#elf-code-object: machine EM_AMDGPU, the processor in the header's flags, a note
of type NT_AMDGPU_METADATA whose text is MessagePack.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from tilewright.compiler import amd, lld, llvm
from tilewright.ir import Function
from tilewright.targets import AmdTarget

EM_AMDGPU, ET_REL, ET_DYN = 224, 1, 3
MACHINES = {0x4C: "gfx942", 0x4F: "gfx950"}  # EF_AMDGPU_MACH
NUMBERS = {0xCA: "f", 0xCB: "d", 0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q", 0xD0: "b", 0xD1: "h", 0xD2: "i",
           0xD3: "q", 0xD9: "B", 0xDA: "H", 0xDB: "I", 0xDC: "H", 0xDD: "I", 0xDE: "H", 0xDF: "I"}
SHT_SYMTAB, SHT_NOTE, SHT_DYNSYM, NT_AMDGPU_METADATA = 2, 7, 11, 32


class CodeObject(NamedTuple):
    arch: str
    linked: bool
    kernels: dict[str, dict[str, Any]]  # their metadata, by name
    symbols: set[str]


def read(image: bytes) -> CodeObject:
    """ValueError if it is none."""
    if image[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", image, 18) != (EM_AMDGPU,):
        raise ValueError("no ELF file for AMDGPU")
    (kind,) = struct.unpack_from("<H", image, 16)
    (flags,) = struct.unpack_from("<I", image, 48)
    (at,) = struct.unpack_from("<Q", image, 40)
    size, count, _ = struct.unpack_from("<HHH", image, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, at + i * size) for i in range(count)]
    symbols: set[str] = set()
    kernels: dict[str, dict[str, Any]] = {}
    for _, what, _, _, offset, length, link, _, _, entry in sections:
        if what in (SHT_SYMTAB, SHT_DYNSYM):
            strings = sections[link][4]
            for place in range(offset, offset + length, entry):
                (name,) = struct.unpack_from("<I", image, place)
                end = image.index(b"\0", strings + name)
                symbols.add(image[strings + name : end].decode())
        if what == SHT_NOTE:
            names, described, kind_of_note = struct.unpack_from("<III", image, offset)
            start = offset + 12 + -(-names // 4) * 4
            if kind_of_note == NT_AMDGPU_METADATA:
                metadata, _ = unpack(image[start : start + described], 0)
                kernels |= {kernel[".name"]: kernel for kernel in metadata["amdhsa.kernels"]}
    return CodeObject(MACHINES.get(flags & 0xFF, hex(flags & 0xFF)), kind == ET_DYN, kernels, symbols)


def of(function: Function, target: AmdTarget) -> bytes:
    """A kernel's code object; without a linker an object file that says it is linked, for the fake, which reads the
    metadata and never runs the instructions."""
    try:
        return amd.code_object(function, target)
    except lld.Missing:
        relocatable = llvm.object_code(function, target)
    assert struct.unpack_from("<H", relocatable, 16) == (ET_REL,)
    return relocatable[:16] + struct.pack("<H", ET_DYN) + relocatable[18:]


def unpack(data: bytes, at: int) -> tuple[Any, int]:
    """The MessagePack value at this place, and where the next one is. https://github.com/msgpack/msgpack spec.md"""
    first, at = data[at], at + 1
    if first <= 0x7F:
        return first, at
    if first <= 0x8F:
        return _pairs(data, at, first & 15)
    if first <= 0x9F:
        return _items(data, at, first & 15)
    if first <= 0xBF:
        return _text(data, at, first & 31)
    if first >= 0xE0:
        return first - 256, at
    if first in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[first], at
    number = NUMBERS[first]  # the value itself, or how much of something follows
    (value,) = struct.unpack_from(">" + number, data, at)
    at += struct.calcsize(number)
    if first in (0xD9, 0xDA, 0xDB):
        return _text(data, at, value)
    if first in (0xDC, 0xDD):
        return _items(data, at, value)
    return _pairs(data, at, value) if first in (0xDE, 0xDF) else (value, at)


def _text(data: bytes, at: int, size: int) -> tuple[str, int]:
    return data[at : at + size].decode(), at + size


def _items(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    found = []
    for _ in range(count):
        item, at = unpack(data, at)
        found.append(item)
    return found, at


def _pairs(data: bytes, at: int, count: int) -> tuple[dict[Any, Any], int]:
    found, at = _items(data, at, 2 * count)
    return dict(zip(found[::2], found[1::2])), at
