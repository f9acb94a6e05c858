"""Object code → functions in this process, without LLVM: a loader of relocatable ELF objects for x86-64.

The object's sections are laid out in one mapping, followed by a global offset table with an entry for each symbol;
relocations are applied; then the mapping becomes readable and executable, and is never writable again. That is all that
LLVM's objects for a JIT need: its large code model has fields of 64 bits alone, which reach any library, and kernels
have no writable data, constructors or exceptions. On other processors LLVM places the code.

Sources: System V ABI, chapter 4 (sections, symbols); its AMD64 supplement, chapter 4.4 (relocations).
"""
from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from tilewright.targets.cpu import CpuTarget

SYMBOLS, RELOCATIONS = 2, 4                     # types of sections
WRITABLE, PLACED = 0x1, 0x2                     # flags of sections
UNDEFINED = 0                                   # in place of a symbol's section
FUNCTION = 0x12                                 # of a symbol that others see (its binding is global)

# type: (name, value) of S the symbol's address, A the addend, P the field's address, G the address of the symbol's entry
# in the global offset table, and T that of the table
KNOWN: dict[int, tuple[str, Callable[[int, int, int, int, int], int]]] = {
    1: ("R_X86_64_64", lambda s, a, p, g, t: s + a),
    24: ("R_X86_64_PC64", lambda s, a, p, g, t: s + a - p),
    25: ("R_X86_64_GOTOFF64", lambda s, a, p, g, t: s + a - t),
    27: ("R_X86_64_GOT64", lambda s, a, p, g, t: g + a - t),
    29: ("R_X86_64_GOTPC64", lambda s, a, p, g, t: t + a - p),
}
_process = ctypes.CDLL(None, use_errno=True)    # functions of the C library and of CPython
_process.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


class Loaded:
    """Object code placed in this process; it stays as long as this object lives."""

    def __init__(self, find: Callable[[str], int | None], names: list[str], memory: Any) -> None:
        self._find, self.names, self._memory = find, names, memory

    @property
    def entry(self) -> int:
        """The address of the only function that others may call."""
        (only,) = self.names
        return self.address(only)

    def address(self, name: str) -> int:
        address = self._find(name)
        if not address:
            raise KeyError(f"the object has no function {name}")
        return address

    def function(self, name: str, result: Any, *arguments: Any) -> Any:
        """The function as a ctypes callable, which releases the GIL while it runs."""
        return ctypes.CFUNCTYPE(result, *arguments)(self.address(name))


def load(code: bytes, target: CpuTarget) -> Loaded:
    """Place an object that was compiled for this machine. ValueError if it has what the loader does not support."""
    loaded = _Object(code)
    if target.triple.startswith("x86_64"):
        return _placed(loaded)
    from tilewright.compiler import llvm
    engine = llvm.placed(code, target)
    return Loaded(engine.get_function_address, loaded.functions(), engine)


class _Section(NamedTuple):
    name: int                   # where it begins in the names of sections
    type: int
    flags: int
    address: int
    offset: int                 # in the file
    size: int
    link: int                   # of symbols: the section of their names
    info: int                   # of relocations: the section that they apply to
    alignment: int
    entry: int                  # bytes of a row


class _Object:
    """The tables of an object file."""

    def __init__(self, code: bytes) -> None:
        self.code = code
        start, size, count, names = struct.unpack_from("<Q10xHHH", code, 40)
        self.sections = [_Section(*row) for row in struct.iter_unpack("<IIQQQQIIQQ", code[start:start + size * count])]
        self.names = self.sections[names]

    def content(self, section: _Section) -> bytes:
        return self.code[section.offset:section.offset + section.size]

    def name(self, section: _Section) -> str:
        return self._text(self.names, section.name)

    def symbols(self) -> list[tuple[str, int, int, int]]:
        """(name, kind, number of its section, place in that)."""
        (table,) = (section for section in self.sections if section.type == SYMBOLS)
        rows = struct.iter_unpack("<IBBHQQ", self.content(table))
        return [(self._text(self.sections[table.link], name), kind, section, value)
                for name, kind, _, section, value, _ in rows]

    def functions(self) -> list[str]:
        """The names of those that others may call."""
        return [name for name, kind, section, _ in self.symbols() if kind == FUNCTION and section != UNDEFINED]

    def _text(self, strings: _Section, start: int) -> str:
        start += strings.offset
        return self.code[start:self.code.index(b"\0", start)].decode()


def _placed(found: _Object) -> Loaded:
    starts, end = {}, 0                                     # number of a section: its offset in the mapping
    for number, section in enumerate(found.sections):
        if section.flags & PLACED and section.size:
            if section.flags & WRITABLE:
                raise ValueError(f"the object has writable data in {found.name(section)}, which is not supported")
            starts[number] = -(-end // section.alignment) * section.alignment
            end = starts[number] + section.size
    symbols, table = found.symbols(), -(-end // 8) * 8
    memory = mmap.mmap(-1, table + 8 * len(symbols), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for number, start in starts.items():
        memory[start:start + found.sections[number].size] = found.content(found.sections[number])

    addresses = []
    for name, _, number, value in symbols:
        if number in starts:
            value += base + starts[number]
        elif name == "_GLOBAL_OFFSET_TABLE_":
            value = base + table
        elif name and number == UNDEFINED:
            value = _of_process(name)
        addresses.append(value)
    struct.pack_into(f"<{len(addresses)}Q", memory, table, *addresses)
    for section in found.sections:
        if section.type == RELOCATIONS and section.info in starts:
            for offset, kind, symbol, addend in struct.iter_unpack("<QIIq", found.content(section)):
                if kind not in KNOWN:
                    supported = ", ".join(name for name, _ in KNOWN.values())
                    raise ValueError(f"the object has a relocation of type {kind} for {symbols[symbol][0]!r} in "
                                     f"{found.name(section)}; supported are {supported}")
                place = starts[section.info] + offset
                value = KNOWN[kind][1](addresses[symbol], addend, base + place, base + table + 8 * symbol, base + table)
                struct.pack_into("<Q", memory, place, value % 2**64)
    if _process.mprotect(base, len(memory), mmap.PROT_READ | mmap.PROT_EXEC):
        error = ctypes.get_errno()
        raise OSError(error, f"machine code cannot be made executable: {os.strerror(error)}")
    own = {name: address for (name, _, number, _), address in zip(symbols, addresses) if number in starts}
    return Loaded(own.get, found.functions(), memory)


def _of_process(name: str) -> int:
    """A function of the libraries that this process has loaded."""
    try:
        return ctypes.cast(_process[name], ctypes.c_void_p).value or 0
    except AttributeError:
        raise ValueError(f"the object needs {name}, which no library of this process has") from None
