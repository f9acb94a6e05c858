"""Debug locations: every recorded node knows its Python line, and profilers and debuggers can show it."""
from __future__ import annotations

from typing import Any

import llvmlite.ir as ll

from tilewright.ir.program import Function, Line


class Lines:
    """The locations of one LLVM function. Other files than its first are lexical blocks of it."""

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
