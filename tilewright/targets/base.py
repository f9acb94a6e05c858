"""The capability record of a CPU: what the planner and the emitters may know about a chip."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CpuTarget:
    """One instruction set on one machine. Sizes in bytes; caches as one core sees them."""
    name: str                   # "x86-avx512": also what `target(name)` takes
    triple: str                 # LLVM's triple, CPU and feature string
    cpu: str
    features: str
    vector_bytes: int           # of one vector register
    registers: int              # vector registers
    masked: bool                # loads and stores under a mask register cost the same as plain ones
    l1d: int
    l2: int
    l3: int                     # shared by all cores; 0 when there is none
    cores: int                  # that this process may use

    @property
    def code_key(self) -> str:
        """What machine code depends on: equal keys may share compiled kernels."""
        return f"{self.triple} {self.cpu} {self.features}"

    def lanes(self, itemsize: int) -> int:
        """Elements of `itemsize` bytes in one vector register."""
        return self.vector_bytes // itemsize
