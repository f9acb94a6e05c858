"""The capability record of a CPU: what the planner and the emitters may know about a chip, and from where."""
from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilewright.forks import cached_property
from tilewright.targets.isa import CPUS, INSTRUCTIONS, ISAS, find


@dataclass(frozen=True)
class CpuTarget:
    """One instruction set on one machine. Sizes in bytes; caches as one core sees them.

    Two records are equal when they lead to the same plans and the same code: model name and sources do not count.
    """
    name: str                   # "x86-avx512": also what `target(name)` takes
    triple: str                 # LLVM's triple, CPU and feature string
    cpu: str
    features: str
    vector_bytes: int           # of one vector register
    registers: int              # vector registers
    masked: bool                # loads and stores under a mask register cost the same as plain ones
    l1d: int
    l2: int
    l3: int                     # one of them; 0 when there is none
    cores: int                  # CPUs that this process may use, when the record was made
    line: int = 64
    l1d_ways: int = 8
    l2_ways: int = 8
    l3_ways: int = 16
    l2_cpus: int = 1            # CPUs of the machine that share one L2, one L3
    l3_cpus: int = 1
    spare_registers: int = 0    # vector registers that LLVM needs free beside a register tile, or it spills
    smt: int = 1                # of the usable CPUs, how many are one core
    arithmetic: tuple[str, ...] = ("f32", "f64")    # number formats that have a vector FMA
    extensions: tuple[str, ...] = ()                # beyond the ISA, by LLVM's names, that this machine has too
    missing: tuple[str, ...] = ()                   # what this machine lacks to run the code
    model: str = field(default="", compare=False)   # the processor's name for itself
    sources: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)     # (field, where from)

    def __post_init__(self) -> None:
        """ValueError for what LLVM would end the process at."""
        family = self.triple.partition("-")[0]
        if family not in CPUS:
            raise ValueError(f"the triple of {self.name} must begin with {' or '.join(CPUS)}, not {self.triple!r}")
        if self.cpu not in CPUS[family]:
            raise ValueError(f"the cpu of {self.name} must be one of {', '.join(CPUS[family])}, not {self.cpu!r}")
        known = {*INSTRUCTIONS, *(name[1:] for row in ISAS for name in row.features.split(",") if name)}
        for feature in filter(None, self.features.split(",")):
            if feature[0] not in "+-" or feature[1:] not in known:
                raise ValueError(f"features of {self.name} are + or - and one of {', '.join(sorted(known))}, not "
                                 f"{feature!r}")

    @cached_property
    def code_key(self) -> str:
        """What machine code depends on: equal keys may share compiled kernels."""
        return f"{self.triple} {self.cpu} {self.features}"

    @property
    def extended(self) -> CpuTarget:
        """The same, for code that uses the extensions."""
        features = ",".join([*filter(None, [self.features]), *(f"+{name}" for name in self.extensions)])
        return replace(self, features=features)

    def has(self, instruction: str) -> bool:
        """Whether kernels for this chip may use it: it is one of its extensions, or every chip of the ISA has it."""
        return instruction in self.extensions or instruction in find(self.name).needs

    @property
    def tile_registers(self) -> int:
        """Vector registers that a register tile may take: accumulators, a row of B, an element of A."""
        return self.registers - self.spare_registers

    def lanes(self, itemsize: int) -> int:
        """Elements of `itemsize` bytes in one vector register."""
        return self.vector_bytes // itemsize

    def source(self, name: str) -> str:
        """Where the number in this field comes from: a manual's URL, "sysfs ...", "cpuid ...", "default: ..."."""
        return dict(self.sources).get(name, "given by the caller")

    @property
    def runnable(self) -> bool:
        """Whether this machine can run the code. Emitting it is always possible."""
        return not self.missing

    def require_runnable(self) -> None:
        if self.missing:
            raise RuntimeError(
                f"{self.name} code cannot run on this machine ({self.model}): it lacks {', '.join(self.missing)}. "
                "Such code can be planned, emitted and read as assembly here; `tilewright.detect()` says what can run.")
