"""Kernels for AMD's GPUs: assembly, code objects, and what they use of a compute unit. None of it needs a GPU.

    text = amd.assembly(function, target)           # to read
    used = amd.usage(function, target)              # registers, spills, LDS, waves that fit
    code = amd.code_object(function, target)        # .hsaco, for hipModuleLoadData: needs a linker (compiler.lld)
    told = amd.manifest(function, target)           # what a program must know to launch it, as JSON can say it

Source of the metadata's fields: https://llvm.org/docs/AMDGPUUsage.html#code-object-v5-metadata
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tilewright.compiler import manifest as fields

if TYPE_CHECKING:
    from tilewright.ir import Function
    from tilewright.targets import AmdTarget


@dataclass(frozen=True)
class Usage:
    """What LLVM gave one kernel. Registers of 32 bits, of a lane; bytes of a workgroup, and of a lane (`scratch`)."""
    registers: int              # VGPRs and AGPRs together, which share one file
    vgprs: int
    agprs: int                  # registers that only matrix instructions and moves reach
    sgprs: int                  # of a wave
    vgpr_spills: int
    sgpr_spills: int            # into lanes of vector registers, as a rule
    lds: int
    scratch: int                # spilled registers and local arrays
    workgroups: int             # that a compute unit holds at once
    waves: int                  # that a SIMD does then
    limit: str                  # what there is too little of for more: "waves", "registers" or "LDS"

    @property
    def spills(self) -> int:
        return self.vgpr_spills

    @property
    def shared(self) -> int:
        return self.lds

    def __str__(self) -> str:
        spills = f"{self.vgpr_spills} VGPRs spilled" if self.vgpr_spills else "no spills"
        return (f"{self.registers} registers a lane ({self.vgprs} VGPRs, {self.agprs} AGPRs), {self.sgprs} SGPRs, "
                f"{spills}, {self.scratch} bytes of scratch, {self.lds:,} bytes of LDS; {self.workgroups} workgroups "
                f"on a compute unit, {self.waves} waves on a SIMD, limited by {self.limit}")


def assembly(functions: Function | Iterable[Function], target: AmdTarget, *, lines: bool = False) -> str:
    """The amdgcn assembly of these kernels, with the metadata that a runtime reads.

    `lines`: it names the Python line that recorded an instruction.
    """
    from tilewright.compiler import llvm
    return llvm.assembly(functions, target, lines=lines)


def code_object(functions: Function | Iterable[Function], target: AmdTarget, *, lines: bool = False) -> bytes:
    """A linked code object (.hsaco). lld.Missing where there is no linker."""
    from tilewright.compiler import lld, llvm
    return lld.link(llvm.object_code(functions, target, lines=lines))


def usage(function: Function, target: AmdTarget, text: str | None = None) -> Usage:
    """The resources of one kernel, read from its assembly; `text` if that is at hand already."""
    text = assembly(function, target) if text is None else text
    metadata, name = _metadata(text, function.name), function.name

    def number(field: str) -> int:
        return int(re.search(rf"^ *\.{field}: +(\d+)$", metadata, re.M)[1])        # type: ignore[index]
    vgprs = int(re.search(rf"^\s*\.set {re.escape(name)}\.num_vgpr, (\d+)$", text, re.M)[1])    # type: ignore[index]
    assert function.threads is not None
    threads = function.threads[0] * function.threads[1]
    registers, lds = number("vgpr_count"), number("group_segment_fixed_size")
    alone = {"waves": target.occupancy(threads, 1, 0), "registers": target.occupancy(threads, registers, 0),
             "LDS": target.occupancy(threads, 1, lds)}
    workgroups = target.occupancy(threads, registers, lds)
    waves = -(-workgroups * -(-threads // target.warp) // target.simds)
    return Usage(registers, vgprs, number("agpr_count"), number("sgpr_count"), number("vgpr_spill_count"),
                 number("sgpr_spill_count"), lds, number("private_segment_fixed_size"), workgroups, waves,
                 min(alone, key=alone.__getitem__))


def manifest(function: Function, target: AmdTarget, grid: Sequence[int | str] | None = None,
             text: str | None = None) -> dict[str, Any]:
    """What a program must know to launch a kernel of this code object: see compiler.manifest. The offsets are those of
    the assembly's metadata; `uses` is `usage`. What the runtime adds behind the arguments, such as the grid's size, is
    in the code object."""
    text = assembly(function, target) if text is None else text
    used = usage(function, target, text)
    offsets = dict(re.findall(r"^ +(?:- +)?\.name: +(\w+)\n +\.offset: +(\d+)$", _metadata(text, function.name), re.M))
    return fields.manifest(function, target, grid, {name: int(offset) for name, offset in offsets.items()},
                           shared=used.lds, dynamic_shared=0, uses=asdict(used))


def _metadata(text: str, name: str) -> str:
    """The part of the assembly's metadata that is about this kernel. ValueError if there is none."""
    notes = text[text.rindex("\t.amdgpu_metadata\n"):]
    for kernel in re.split(r"^  - (?=\.)", notes, flags=re.M)[1:]:
        if re.search(rf"^    \.name: +{re.escape(name)}$", kernel, re.M):
            return kernel
    raise ValueError(f"no kernel {name} in this assembly")
