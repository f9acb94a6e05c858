"""How many CTAs of a kernel a multiprocessor holds at once, and what keeps it from holding more."""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.compiler import amd, llvm, ptxas
from tilewright.targets.amd import AmdTarget

if TYPE_CHECKING:
    from tilewright.compiler.ptxas import Usage
    from tilewright.ir.program import Function
    from tilewright.targets.nvidia import GpuTarget


@dataclass(frozen=True)
class Occupancy:
    ctas: int                   # of a multiprocessor
    warps: int
    most_warps: int             # that it can hold
    limit: str                  # what there is too little of: "threads", "registers" or "shared memory"
    threads: int                # of a CTA
    registers: int              # of a thread
    shared: int                 # bytes of a CTA
    spills: int                 # bytes that a thread stores to and loads from its stack, counted in the code

    @property
    def fraction(self) -> float:
        return self.warps / self.most_warps

    def __str__(self) -> str:
        ctas = f"{self.ctas} CTA{'s' * (self.ctas != 1)} of {self.threads} threads"
        warps = f"{self.warps} of {self.most_warps} warps ({self.fraction:.0%})"
        spills = f"{self.spills} bytes of spills" if self.spills else "no spills"
        return (f"{ctas} on a multiprocessor, {warps}, limited by {self.limit}; {self.registers} registers a thread, "
                f"{spills}, {self.shared:,} bytes of shared memory a CTA")


def occupancy(function: Function, target: GpuTarget, usage: Usage) -> Occupancy:
    """The occupancy of a kernel that uses these resources."""
    assert function.threads is not None
    threads, shared = function.threads[0] * function.threads[1], function.shared_bytes
    alone = {"threads": target.occupancy(threads, 1, 0), "registers": target.occupancy(threads, usage.registers, 0),
             "shared memory": target.occupancy(threads, 1, shared)}
    limit = min(alone, key=alone.__getitem__)
    ctas, per_cta = target.occupancy(threads, usage.registers, shared), -(-threads // target.warp)
    return Occupancy(ctas, ctas * per_cta, target.threads_sm // target.warp, limit, threads, usage.registers, shared,
                     usage.spills)


def compiled_occupancy(kernel: Any) -> Occupancy | amd.Usage | None:
    """The occupancy of a compiled kernel with code. None where there is no ptxas, which counts the registers."""
    try:
        used = kernel.resources
    except ptxas.Missing:
        return None
    return used if isinstance(used, amd.Usage) else occupancy(kernel.launches[0].function, kernel.target, used)


def assembled(function: Function, target: GpuTarget | AmdTarget) -> Occupancy | amd.Usage | None:
    """The occupancy of a recorded kernel, which is compiled to learn it. None where there is no ptxas; LLVM knows
    AMD's."""
    if isinstance(target, AmdTarget):
        return amd.usage(function, target)
    try:
        ptxas.find()
    except ptxas.Missing:
        return None
    usage = ptxas.assemble(llvm.assembly(function, target), target.name)[1][function.name]
    return occupancy(function, target, usage)
