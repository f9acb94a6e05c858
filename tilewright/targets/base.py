"""What the records of all chips share."""
from __future__ import annotations

from dataclasses import dataclass, field

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Chip:
    """One instruction set on one chip. Sizes are in bytes, and each number has its source.

    Two records are equal when they lead to the same plans and the same code: model, driver and sources do not count.
    """
    name: str                   # what `target(name)` takes: "x86-avx512"; of GPUs LLVM's name, "sm_90a", "gfx950"
    triple: str = field(default="", kw_only=True)               # LLVM's triple and feature string
    features: str = field(default="", kw_only=True)
    arithmetic: tuple[str, ...] = field(default=("f32", "f64"), kw_only=True)       # number formats that have an FMA
    missing: tuple[str, ...] = field(default=(), kw_only=True)  # what this machine lacks to run the code
    model: str = field(default="", compare=False, kw_only=True)                     # the chip's name for itself
    driver: str = field(default="", compare=False, kw_only=True)    # of a GPU that is here: its driver's version
    sources: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False, kw_only=True)   # of each field

    def source(self, name: str) -> str:
        """Where the number in this field comes from: a manual's URL, "sysfs ...", "cpuid ...", "default: ..."."""
        return dict(self.sources).get(name, "given by the caller")

    @property
    def runnable(self) -> bool:
        """Whether this machine can run the code. Emitting and simulating it is always possible."""
        return not self.missing

    def require_runnable(self) -> None:
        """RuntimeError, with what is missing, unless this machine can run the code."""
        if self.missing:
            raise RuntimeError(f"{self.name} code cannot run on this machine: it lacks {', '.join(self.missing)}. Such "
                               "code can be planned, compiled, read as assembly and simulated here; "
                               "`tilewright.detect()` says what can run")
