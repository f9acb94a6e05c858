"""What llvmlite has no class for: a type, a few instructions, and debug locations."""
from __future__ import annotations

from typing import Any

import llvmlite.ir as ll

from tilewright.ir.program import Function, Line


class Bfloat(ll.Type):
    """LLVM's bfloat, which llvmlite has no class for. Nothing but bits can be made of it, or it of bits."""

    def _to_string(self) -> str: return "bfloat"
    def __eq__(self, other: object) -> bool: return isinstance(other, Bfloat)
    def __hash__(self) -> int: return hash(Bfloat)


class Callee:
    """A pointer that llvmlite's call takes for a function: it asks an operand for its function type."""

    def __init__(self, pointer: Any, function_type: ll.FunctionType) -> None:
        self.type, self.function_type, self.get_reference = pointer.type, function_type, pointer.get_reference


class LoopName(ll.values.MDValue):
    """Metadata of one loop. It is distinct and names itself first, for which llvmlite has no word."""

    def descr(self, buf: list[str]) -> None:
        options = ", ".join(["", *(option.get_reference() for option in self.operands)])
        buf += (f"distinct !{{ {self.get_reference()}{options} }}\n",)


class Stack(ll.instructions.AllocaInstr):
    """An alloca in a memory space of its own, for which llvmlite has no word."""

    def descr(self, buf: list[str]) -> None:
        align = f", align {self.align}" if self.align else ""
        buf += (f"alloca {self.allocated_type}{align}, addrspace({self.type.addrspace})\n",)


class Lines:
    """Debug locations of one LLVM function, by which profilers and debuggers show the Python line of each node. Other
    files than its first are lexical blocks of it."""

    def __init__(self, module: ll.Module, fn: ll.Function, function: Function) -> None:
        self.module, self.fn, self.function = module, fn, function
        self.scopes: dict[str, Any] = {}

    def __getitem__(self, line: Line) -> Any:
        if line.file not in self.scopes:
            self.scopes[line.file] = self._scope(line)
        return self._info("DILocation", line=line.number, column=1, scope=self.scopes[line.file])

    def _scope(self, line: Line) -> Any:
        directory, _, name = line.file.rpartition("/")
        file = self._info("DIFile", filename=name, directory=directory)
        if self.scopes:
            return self._info("DILexicalBlockFile", scope=self.fn.metadata["dbg"], file=file, discriminator=0)
        if "llvm.dbg.cu" not in self.module.namedmetadata:
            version = [ll.Constant(ll.IntType(32), 2), "Debug Info Version", ll.Constant(ll.IntType(32), 3)]
            self.module.add_named_metadata("llvm.module.flags", version)
            unit = self._info("DICompileUnit", True, language=ll.DIToken("DW_LANG_Python"), file=file, isOptimized=True,
                              emissionKind=ll.DIToken("LineTablesOnly"))
            self.module.add_named_metadata("llvm.dbg.cu", unit)
        unit, = self.module.get_named_metadata("llvm.dbg.cu").operands
        program = self._info(
            "DISubprogram", True, name=self.function.name, file=file, line=line.number, unit=unit, scope=file,
            type=self._info("DISubroutineType", types=self.module.add_metadata([None])),
            spFlags=ll.DIToken("DISPFlagDefinition"))
        self.fn.set_metadata("dbg", program)
        return program

    def _info(self, kind: str, distinct: bool = False, **fields: Any) -> Any:
        return self.module.add_debug_info(kind, fields, is_distinct=distinct)
