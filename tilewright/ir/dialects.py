"""How each family of chips spells a kernel in LLVM IR: calling conventions, memory spaces, special registers; and what
llvmlite has no class for: a type, a few instructions, and debug locations.

How an operation is spelled stands with the operation (`ir.ops`); here is what concerns a kernel as a whole, and what a
family adds to loads and stores.

Sources: LLVM, "User Guide for NVPTX Back-end", https://llvm.org/docs/NVPTXUsage.html, and "User Guide for AMDGPU
Backend", https://llvm.org/docs/AMDGPUUsage.html
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import llvmlite.ir as ll

from tilewright.ir.ops.amd import KIND
from tilewright.ir.program import Function, Line
from tilewright.ir.types import Type

SIMDS = 4           # of a compute unit: the waves of a workgroup are dealt out to them
REGISTERS = 512     # of each lane of a SIMD, VGPRs and AGPRs together. AMDGPUUsage, "Register Usage": gfx90a and later


@dataclass(frozen=True)
class Dialect:
    triple: str
    attributes: tuple[str, ...] = ()                            # of every function
    inner: tuple[str, ...] = ()                                 # and of those that only other functions call
    convention: str = ""                                        # calling convention of a kernel
    spaces: tuple[tuple[str, int], ...] = (("global", 0), ("local", 0))
    scope: str = ""                                             # of atomic accesses: LLVM's name; "": the whole system
    gpu: bool = False
    dynamic: bool = False           # shared memory beyond what a module declares is an argument of the launch
    flags: tuple[tuple[str, int], ...] = ()                     # of the module
    opaque_loads: bool = False      # LLVM's atomic loads need a pointer whose origin it does not know
    fenced_additions: bool = False  # LLVM writes no order into atomic additions, so fences on either side say it

    @property
    def family(self) -> str:
        """The architecture of the triple, by which operations have their spellings (`ops.core.by_family`)."""
        return self.triple.partition("-")[0]

    # ---- low is the lowering (ir.lower)

    def letter(self, low: Any, x: Any) -> str:
        """What inline assembly calls a register for a value like x."""
        return "r"

    def launched(self, low: Any, function: Function) -> list[str]:
        """Attributes of a kernel: how many threads a CTA has, and what is to fit."""
        return []

    def builtin(self, low: Any, name: str, t: Any) -> Any:
        """thread.x, block.z, grid.y ..."""
        raise NotImplementedError(f"{self.triple} has no {name}")

    def shared(self, low: Any, load: Any) -> None:
        """Say of a load from shared memory what the compiler is to know of it."""

    def streamed(self, low: Any, node: Any) -> bool:
        """Spell a store whose line need not stay in cache, if there is a word for it that LLVM has not."""
        return False

    def overlap(self, low: Any) -> None:
        """Begin a kernel that is launched before the stream's last one has ended."""


@dataclass(frozen=True)
class Nvptx(Dialect):
    def letter(self, low: Any, x: Any) -> str:
        if isinstance(x.type, ll.PointerType):                  # addresses of shared memory have 32 bits: compiler.llvm
            return "r" if x.type.addrspace in (low.spaces["shared"], low.spaces["cluster"]) else "l"
        if low.is_float(x):
            return {16: "h", 32: "f", 64: "d"}[low.bits(x)]
        return {16: "h", 64: "l"}.get(low.bits(x), "r")

    def launched(self, low: Any, function: Any) -> list[str]:
        x, y = function.threads
        attributes = [f'"nvvm.reqntid"="{x},{y},1"']
        if function.max_registers is None:
            attributes.append(f'"nvvm.minctasm"="{function.min_ctas}"')
        else:
            attributes.append(f'"nvvm.maxnreg"="{function.max_registers}"')
        if function.ctas_cluster > 1:       # part of the code, so that a launch need not know
            x, y, z = function.cluster
            attributes.append(f'"nvvm.cluster_dim"="{x},{y},{z}"')
        return attributes

    def builtin(self, low: Any, name: str, t: Any) -> Any:
        register = name.replace("thread", "tid").replace("block", "ctaid").replace("grid", "nctaid")
        return low.call(f"llvm.nvvm.read.ptx.sreg.{register}", t, name=name)

    def overlap(self, low: Any) -> None:
        """Wait for the end of the stream's last kernel, and let the next one's CTAs come where there is room for them,
        which then wait here. They come once all CTAs of this kernel have, so that none of its CTAs waits for one that
        has no room; nor does a kernel wait for another stream's, which would want the room that they take."""
        for instruction in ("wait", "launch_dependents"):
            low.asm(f"griddepcontrol.{instruction};", low.nothing(), "~{memory}", effects=True, together=True)

    def streamed(self, low: Any, node: Any) -> bool:
        """`.cs`: likely accessed once, first to leave the cache. LLVM has no word for it."""
        t = node.value.type
        if not (isinstance(t, Type) and t.bits in (32, 64) and t.bits * t.length <= 128 and node.align >= t.bytes
                and node.pointer.type.space == "global"):       # for these there is one instruction
            return False
        pointer, value = low[node.pointer], low[node.value]
        elements = [low.b.extract_element(value, low.i32(e)) for e in range(t.length)] if t.length > 1 else [value]
        names = ", ".join(f"${e + 1}" for e in range(t.length))
        vector, names = (f".v{t.length}", f"{{{names}}}") if t.length > 1 else ("", names)
        constraints = ",".join([*(self.letter(low, x) for x in (pointer, *elements)), "~{memory}"])
        low.asm(f"st.global.cs{vector}.b{t.bits} [$0], {names};", low.nothing(), constraints, pointer, *elements,
                effects=True)
        return True


@dataclass(frozen=True)
class Amdgcn(Dialect):
    def letter(self, low: Any, x: Any) -> str:
        return "v"          # a vector register, since a scalar one holds one value for the whole wave

    def launched(self, low: Any, function: Any) -> list[str]:
        x, y = function.threads
        low.fn.set_metadata("reqd_work_group_size", low.module.add_metadata([low.i32(n) for n in (x, y, 1)]))
        attributes = [f'"amdgpu-flat-work-group-size"="{x*y},{x*y}"', '"uniform-work-group-size"="true"']
        waves = -(-function.min_ctas * -(-x*y // function.warp) // SIMDS)
        if function.max_registers is not None:      # a SIMD's registers are divided evenly among as many waves as fit
            waves = -(-REGISTERS // function.max_registers)
        return [*attributes, f'"amdgpu-waves-per-eu"="{waves}"']

    def builtin(self, low: Any, name: str, t: Any) -> Any:
        what, axis = name.split(".")
        if what == "grid":                          # hidden_block_count_x, _y, _z: the first of the implicit arguments
            constant = ll.PointerType(addrspace=4)
            arguments = low.call("llvm.amdgcn.implicitarg.ptr", constant)
            at = low.b.gep(arguments, [low.i32("xyz".index(axis))], source_etype=low.type(t))
            return low.b.load(at, typ=low.type(t), align=4, name=name)
        return low.call(f"llvm.amdgcn.{'workitem' if what == 'thread' else 'workgroup'}.id.{axis}", t, name=name)

    def shared(self, low: Any, load: Any) -> None:
        if KIND in low.kinds:
            self.apart(low, load, "read", "direct")

    @staticmethod
    def apart(low: Any, access: Any, own: str, other: str) -> None:
        """This access is of what is called `own`, and of nothing that is called `other`: LangRef, "alias.scope"."""
        domain = low.module.add_metadata([ll.MetaDataString(low.module, "tilewright LDS")])
        for what, name in ("alias.scope", own), ("noalias", other):
            scope = low.module.add_metadata([ll.MetaDataString(low.module, name), domain])
            access.set_metadata(what, low.module.add_metadata([scope]))

    @staticmethod
    def wait(low: Any, vm: int = 63, lgkm: int = 15) -> None:
        """s_waitcnt until at most so many accesses are under way of global memory (vm) and of LDS (lgkm); the largest
        numbers wait for nothing. MI300 ISA guide, 4.4."""
        exports = 7
        low.call("llvm.amdgcn.s.waitcnt", None, low.i32(vm & 15 | exports << 4 | lgkm << 8 | vm >> 4 << 14))


# noinline: a micro-kernel wants all registers to itself
X86 = Dialect("x86_64-unknown-linux-gnu",
              ("nounwind", '"prefer-vector-width"="512"', '"min-legal-vector-width"="512"', '"no-builtins"'),
              ("noinline",))
AARCH64 = Dialect("aarch64-unknown-linux-gnu", ("nounwind", '"no-builtins"'), ("noinline",))
# convergent: a function may hold a barrier, so no call may move to where only some of the threads come by
NVPTX = Nvptx("nvptx64-nvidia-cuda", ("nounwind", "convergent"), (), "ptx_kernel",
              (("global", 1), ("shared", 3), ("cluster", 7), ("local", 0)), "device", gpu=True, dynamic=True,
              opaque_loads=True, fenced_additions=True)
# Version 5 of the code object: every ROCm since 5.3 loads it.
AMDGCN = Amdgcn("amdgcn-amd-amdhsa", ("nounwind", "convergent"), ("alwaysinline",), "amdgpu_kernel",
                (("global", 1), ("shared", 3), ("local", 5)), "agent", gpu=True,
                flags=(("amdhsa_code_object_version", 500),))


def for_triple(triple: str) -> Dialect:
    """The dialect of an LLVM triple, by its architecture."""
    return {d.family: d for d in (X86, AARCH64, NVPTX, AMDGCN)}[triple.partition("-")[0]]


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
