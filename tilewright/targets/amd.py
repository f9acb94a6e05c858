"""AMD's GPUs with Matrix Cores: a capability record per architecture, and the numbers of its chips.

What an architecture can do (registers, LDS, instructions) is the same on all its chips; how many compute units there
are and how fast memory is belongs to a chip. `find` takes either name: "gfx942" has the numbers of an MI300X, and
"mi325x" its own.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tilewright.forks import cached_property
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

    @cached_property
    def matrix_rates(self) -> dict[str, int]:
        """Operations per clock of a compute unit by matrix instructions, for each format that A and B may have."""
        return MATRIX_RATES[self.name]

    def has(self, instruction: str) -> bool:
        """Whether it has an instruction of this name, as `Operation.needs` spells it."""
        return instruction in self.instructions

    def flops(self, dtype: str = "f32") -> float:
        """Floating-point operations per second of multiply-adds on the vector units."""
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


class Reached(NamedTuple):
    """The published rate of a library's products of large matrices on a chip."""
    chip: str
    format: str                 # of A and B; "fp8": any of 8 bits
    rate: float                 # operations per second
    clock: float                # Hz, the median meanwhile; 0: not published
    source: str

    @property
    def share(self) -> float:
        """The share of the rate at the highest clock."""
        t = CHIPS[self.chip]
        format = FP8["fp8"][t.name] if self.format == "fp8" else self.format
        return self.rate / (t.matrix_rates[format] * t.cus * t.clock)


# Chips lower their clocks under dense products: hipBLASLt, matrices of 4096 x 4864 x 32896, at 750 and 1000 W.
_MAF = "https://rocm.blogs.amd.com/software-tools-optimization/measuring-max-achievable-flops-part2/README.html"
REACHED = (
    Reached("mi325x", "f16", 794e12, 1.354e9, _MAF),
    Reached("mi325x", "bf16", 843e12, 1.447e9, _MAF),
    Reached("mi325x", "fp8", 1519e12, 1.464e9, _MAF),
    Reached("mi300x", "f16", 654e12, 1.115e9, _MAF),
    Reached("mi300x", "bf16", 708e12, 1.207e9, _MAF),
    Reached("mi300x", "fp8", 1273e12, 1.230e9, _MAF),
    Reached("mi350x", "e2m1", 3300e12, 0.0, "https://github.com/meta-pytorch/MSLK/pull/379"),
)


def reached(target: AmdTarget, format: str) -> Reached | None:
    """The published rate for a format on this chip, else on another one."""
    format = "fp8" if format in {name for kinds in FP8.values() for name in kinds.values()} else format
    rows = [row for row in REACHED if row.format == format]
    return next((row for row in rows if CHIPS[row.chip].model == target.model), rows[0] if rows else None)


TARGETS = {"gfx942": CHIPS["mi300x"], "gfx950": CHIPS["mi355x"]}
ALIASES = {"cdna3": "gfx942", "cdna4": "gfx950"}


def find(name: str) -> AmdTarget | None:
    """The record of this architecture or chip, or None if it is not one of AMD's."""
    lower = name.lower()
    return TARGETS.get(ALIASES.get(lower, lower)) or CHIPS.get(lower)


# ---- matrix instructions. atoms/amd.py makes them of these rows; here are names, shapes and cycles.
#
# Cycles are those of one Matrix Core until the next instruction can start. Sources: AMD's instruction set manuals of
# CDNA3 and CDNA4 ("passes" of four cycles), LLVM's schedule (SISchedule.td), and the peaks of AMD's data sheets, which
# they reproduce (lab/measure/gpu_peaks.py).

MFMA = (
    # llvm.amdgcn.mfma.      m  k  blocks  A and B  cycles on gfx942, gfx950; 0: it lacks it
    ("f64.16x16x4f64",      16, 4, 1, "f64", 32, 64),
    ("f64.4x4x4f64",         4, 4, 4, "f64", 16, 16),
    ("f32.32x32x1f32",      32, 1, 2, "f32", 64, 64),
    ("f32.16x16x1f32",      16, 1, 4, "f32", 32, 32),
    ("f32.4x4x1f32",         4, 1, 16, "f32", 8, 8),
    ("f32.32x32x2f32",      32, 2, 1, "f32", 64, 64),
    ("f32.16x16x4f32",      16, 4, 1, "f32", 32, 32),
    ("f32.16x16x8.xf32",    16, 8, 1, "xf32", 16, 0),
    ("f32.32x32x4.xf32",    32, 4, 1, "xf32", 32, 0),
    ("f32.32x32x4f16",      32, 4, 2, "f16", 64, 64),
    ("f32.16x16x4f16",      16, 4, 4, "f16", 32, 32),
    ("f32.4x4x4f16",         4, 4, 16, "f16", 8, 8),
    ("f32.32x32x8f16",      32, 8, 1, "f16", 32, 32),
    ("f32.16x16x16f16",     16, 16, 1, "f16", 16, 16),
    ("f32.16x16x32.f16",    16, 32, 1, "f16", 0, 16),
    ("f32.32x32x16.f16",    32, 16, 1, "f16", 0, 32),
    ("f32.32x32x4bf16.1k",  32, 4, 2, "bf16", 64, 64),
    ("f32.16x16x4bf16.1k",  16, 4, 4, "bf16", 32, 32),
    ("f32.4x4x4bf16.1k",     4, 4, 16, "bf16", 8, 8),
    ("f32.32x32x8bf16.1k",  32, 8, 1, "bf16", 32, 32),
    ("f32.16x16x16bf16.1k", 16, 16, 1, "bf16", 16, 16),
    ("f32.16x16x32.bf16",   16, 32, 1, "bf16", 0, 16),
    ("f32.32x32x16.bf16",   32, 16, 1, "bf16", 0, 32),
    ("i32.32x32x4i8",       32, 4, 2, "i8", 64, 64),
    ("i32.16x16x4i8",       16, 4, 4, "i8", 32, 32),
    ("i32.4x4x4i8",          4, 4, 16, "i8", 8, 8),
    ("i32.32x32x16.i8",     32, 16, 1, "i8", 32, 32),
    ("i32.16x16x32.i8",     16, 32, 1, "i8", 16, 16),
    ("i32.16x16x64.i8",     16, 64, 1, "i8", 0, 16),
    ("i32.32x32x32.i8",     32, 32, 1, "i8", 0, 32),
)
# Formats by the names that instructions use: CDNA3's 8-bit floats are fnuz, CDNA4's are OCP's. Rows are m, k, cycles.
FP8 = {"fp8": {"gfx942": "e4m3fnuz", "gfx950": "e4m3fn"}, "bf8": {"gfx942": "e5m2fnuz", "gfx950": "e5m2"}}
FP8_SHAPES = ((16, 32, 16), (32, 16, 32))
# Those of f8f6f4 instructions, gfx950's: LLVM's number, the 32-bit registers of a lane. One with 8 bits on either side
# takes twice the cycles.
F8F6F4 = {"e4m3fn": (0, 8), "e5m2": (1, 8), "e2m3": (2, 6), "e3m2": (3, 6), "e2m1": (4, 4)}
F8F6F4_SHAPES = ((16, 128, 16), (32, 64, 32))


def _matrix_rates(arch: str) -> dict[str, int]:
    """Operations per clock of a compute unit, by the format of A and B: by the fastest instruction for it."""
    entries = [(format, m*m*k*blocks, dict(zip(MANUALS, cycles))[arch]) for _, m, k, blocks, format, *cycles in MFMA]
    entries += [(formats[arch], m*m*k, cycles) for formats in FP8.values() for m, k, cycles in FP8_SHAPES]
    if arch == "gfx950":
        entries += [(format, m*m*k, cycles * (1 + (words == 8)))
                  for format, (_, words) in F8F6F4.items() for m, k, cycles in F8F6F4_SHAPES]
    rates: dict[str, int] = {}
    for format, work, cycles in entries:
        if cycles:
            rates[format] = max(rates.get(format, 0), 2*work*SIMDS // cycles)
    return rates


MATRIX_RATES = {arch: _matrix_rates(arch) for arch in MANUALS}
