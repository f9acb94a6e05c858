"""AMD's GPUs with Matrix Cores: a capability record per architecture, and the numbers of its chips.

What an architecture can do (registers, LDS, instructions) is the same on all its chips; how many compute units there
are and how fast memory is belongs to a chip. `find` takes either name: "gfx942" has the numbers of an MI300X, and
"mi325x" its own.
"""
from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.targets.base import KIB, MIB, Chip

_AMD = "https://www.amd.com/content/dam/amd/en/documents/instinct-tech-docs/"
_CDNA3 = _AMD + "instruction-set-architectures/amd-instinct-mi300-cdna3-instruction-set-architecture.pdf"
_CDNA4 = _AMD + "instruction-set-architectures/amd-instinct-cdna4-instruction-set-architecture.pdf"
_CDNA3_PAPER = _AMD + "white-papers/amd-cdna-3-white-paper.pdf"
_CDNA4_PAPER = _AMD + "white-papers/amd-cdna-4-architecture-whitepaper.pdf"
_SPECS = "https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html"
_LLVM = "https://llvm.org/docs/AMDGPUUsage.html"
_PRODUCTS = "https://www.amd.com/en/products/accelerators/instinct/"
MANUALS = {"gfx942": _CDNA3, "gfx950": _CDNA4}     # of the instruction sets, oldest first
SIMDS = 4           # of a compute unit; each has one Matrix Core and registers of its own


@dataclass(frozen=True)
class AmdTarget(Chip):
    """One architecture on one chip; a wave is a wavefront, 64 lanes."""
    instructions: tuple[str, ...]                   # beyond GCN's, by the names that the gate uses
    lds: int                    # local data share of a compute unit: all of it can be one workgroup's
    lds_banks: int              # each of 4 bytes
    lds_clock: int              # bytes that the LDS reads in a clock, without conflicts and 8 or 16 bytes a lane
    lds_granule: int            # LDS is given to workgroups in units of so many bytes
    direct: tuple[int, ...]     # bytes that a lane can load from global memory straight into LDS
    cus: int                    # compute units of the chip
    xcds: int                   # dies among which they are divided; workgroups are dealt out to dies in turn
    clock: float                # Hz, at most
    bandwidth: float            # of its memory, bytes per second
    fma_f32: int = 128          # multiply-adds per clock of a compute unit, without the Matrix Cores
    fma_f64: int = 64
    l2: int = 4*MIB             # of one die
    simds: int = SIMDS
    waves_simd: int = 8         # that a SIMD holds
    vgprs: int = 512            # 32-bit registers of each lane of a SIMD: VGPRs and AGPRs are halves of one file
    vgprs_wave: int = 512       # most that one wave can have, at most 256 of each kind
    vgpr_granule: int = 8       # registers are given to waves in units of so many
    threads_group: int = 1024   # of a workgroup
    groups_cu: int = 16         # of several waves each: they need a barrier; single waves are limited as waves
    warp: int = 64
    triple: str = field(default="amdgcn-amd-amdhsa", kw_only=True)
    arithmetic: tuple[str, ...] = field(default=("f32", "f64", "f16"), kw_only=True)
    missing: tuple[str, ...] = field(default=("an AMD GPU of this architecture",), compare=False, kw_only=True)

    @property
    def cpu(self) -> str: return self.name

    @property
    def code_key(self) -> str:
        """What machine code depends on: equal keys may share compiled kernels."""
        return f"{self.triple} {self.name} {self.features}".rstrip()

    @property
    def matrix_cores(self) -> int: return self.cus * self.simds

    def has(self, instruction: str) -> bool:
        """Whether it has an instruction of this name, as `Operation.needs` spells it."""
        return instruction in self.instructions

    def flops(self, dtype: str = "f32") -> float:
        """Of multiply-adds on the vector units, per second."""
        return 2 * (self.fma_f32 if dtype == "f32" else self.fma_f64) * self.cus * self.clock

    def occupancy(self, threads: int, registers: int, lds: int) -> int:
        """Workgroups that a compute unit holds, each of so many threads, registers per lane (VGPRs and AGPRs together)
        and bytes of LDS.

        A workgroup's waves are spread over the SIMDs: four of one workgroup, one on each.
        """
        waves = -(-threads // self.warp)
        granted = -(-max(registers, 1) // self.vgpr_granule) * self.vgpr_granule
        if threads > self.threads_group or granted > self.vgprs_wave:
            return 0
        by_waves = self.simds * min(self.waves_simd, self.vgprs // granted) // waves
        size = -(-lds // self.lds_granule) * self.lds_granule
        return min(by_waves, self.groups_cu if waves > 1 else by_waves, self.lds // size if size else by_waves)


def _sources(isa: str, paper: str, product: str) -> tuple[tuple[str, str], ...]:
    return (*((name, isa) for name in ("instructions", "direct", "arithmetic", "threads_group", "warp")),
            *((name, _LLVM) for name in ("vgprs", "vgprs_wave", "vgpr_granule", "lds_granule", "waves_simd",
                                         "groups_cu", "simds")),
            *((name, paper) for name in ("lds_banks", "lds_clock", "fma_f32", "fma_f64", "xcds")),
            *((name, _SPECS) for name in ("lds", "l2", "cus")),
            *((name, f"default: {_PRODUCTS}{product}.html") for name in ("clock", "bandwidth")))


def _gfx942(model: str, product: str, cus: int, xcds: int, clock: float, bandwidth: float) -> AmdTarget:
    return AmdTarget("gfx942", ("mfma", "mfma.xf32", "mfma.fp8.fnuz", "lds.direct"), 64*KIB, 32, 128, 512, (4,), cus,
                     xcds, clock, bandwidth, model=model, sources=_sources(_CDNA3, _CDNA3_PAPER, product))


def _gfx950(model: str, product: str, clock: float) -> AmdTarget:
    return AmdTarget("gfx950", ("mfma", "mfma.gfx950", "mfma.fp8.ocp", "mfma.f8f6f4", "lds.direct", "lds.direct.wide",
                                "lds.transposed"), 160*KIB, 64, 256, 1280, (4, 12, 16), 256, 8, clock, 8e12,
                     model=model, sources=_sources(_CDNA4, _CDNA4_PAPER, product))


CHIPS: dict[str, AmdTarget] = {
    "mi300x": _gfx942("AMD Instinct MI300X", "mi300/mi300x", 304, 8, 2.1e9, 5.3e12),
    "mi300a": _gfx942("AMD Instinct MI300A", "mi300/mi300a", 228, 6, 2.1e9, 5.3e12),
    "mi325x": _gfx942("AMD Instinct MI325X", "mi300/mi325x", 304, 8, 2.1e9, 6.0e12),
    "mi350x": _gfx950("AMD Instinct MI350X", "mi350/mi350x", 2.2e9),
    "mi355x": _gfx950("AMD Instinct MI355X", "mi350/mi355x", 2.4e9),
}
TARGETS = {"gfx942": CHIPS["mi300x"], "gfx950": CHIPS["mi355x"]}
ALIASES = {"cdna3": "gfx942", "cdna4": "gfx950"}


def find(name: str) -> AmdTarget | None:
    """The record of this architecture or chip, or None if it is not one of AMD's."""
    lower = name.lower()
    return TARGETS.get(ALIASES.get(lower, lower)) or CHIPS.get(lower)
