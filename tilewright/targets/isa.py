"""The instruction sets that kernels are emitted for: one row each, every number with its source.

LLVM's CPU is a psABI level and not the machine's own name, so that code, cache keys and golden files are the same
everywhere. Nothing is lost: on Zen 4 the micro-kernels (14x32, 8x48, 6x16, 4x24, f32; f64 alike) compiled for znver4,
sapphirerapids or haswell run within 1 % of these, which reach 99.9 % of the measured peak; on Sapphire Rapids as well.
"""
from __future__ import annotations

from dataclasses import dataclass

_SDM = "https://www.intel.com/content/www/us/en/developer/articles/technical/intel-sdm.html"
_PSABI = "https://gitlab.com/x86-psABIs/x86-64-ABI"
_CHIP = "https://en.wikichip.org/wiki/"
_ARM = "https://developer.arm.com/documentation/ddi0487/latest"


@dataclass(frozen=True)
class Caches:
    """The sizes to plan with where the machine says nothing: those of one well-known chip."""
    l1d: int
    l1d_ways: int
    l2: int
    l2_ways: int
    l3: int
    l3_ways: int
    source: str


@dataclass(frozen=True)
class Isa:
    """`needs`: flags as /proc/cpuinfo spells them; all that LLVM may use, not only what kernels ask for."""
    name: str
    aliases: tuple[str, ...]
    family: str                 # of processors: "x86-64", "aarch64"
    triple: str
    cpu: str
    features: str
    vector_bytes: int
    registers: int
    masked: bool
    needs: tuple[str, ...]
    caches: Caches
    manual: str                 # of vector_bytes, registers, masked and arithmetic
    level: str                  # of needs
    extensions: tuple[str, ...] = ()    # that kernels use where there are any, by LLVM's names
    spare_registers: int = 0    # measured: the tiles of tests/inspect/test_resources.py


_V3 = ("avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe")

AVX512 = Isa(
    "x86-avx512", ("avx512", "avx-512", "x86-64-v4"), "x86-64", "x86_64-unknown-linux-gnu", "x86-64-v4",
    "-prefer-256-bit",          # LLVM's default here is 256 bits, for the sake of early Skylake servers
    64, 32, True, (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    Caches(32 << 10, 8, 1 << 20, 16, 11 << 17, 11, f"{_CHIP}intel/microarchitectures/skylake_(server)"),
    _SDM, _PSABI, extensions=("avx512vnni", "avx512bf16", "amx-tile", "amx-bf16", "amx-int8"))

AVX2 = Isa(
    "x86-avx2", ("avx2", "x86-64-v3"), "x86-64", "x86_64-unknown-linux-gnu", "x86-64-v3", "", 32, 16, False, _V3,
    Caches(32 << 10, 8, 256 << 10, 8, 8 << 20, 16, f"{_CHIP}intel/microarchitectures/haswell_(client)"),
    _SDM, _PSABI, extensions=("avxvnni",))

NEON = Isa(
    "neon", ("aarch64-neon", "arm-neon", "aarch64", "armv8-a"), "aarch64", "aarch64-unknown-linux-gnu", "generic", "",
    16, 32, False, ("asimd",),
    Caches(64 << 10, 4, 1 << 20, 8, 32 << 20, 16, f"{_CHIP}annapurna_labs/graviton/graviton2"),
    _ARM, _ARM,
    spare_registers=3)          # LLVM loads elements of A in pairs, and moves one pair ahead of the FMAs of another

# LLVM's names of chips that a hand-made target may have: it ends the process when it is asked for code for another.
CPUS = {
    "x86_64": ("x86-64-v3", "x86-64-v4", "haswell", "broadwell", "skylake", "skylake-avx512", "cascadelake",
               "cooperlake", "icelake-client", "icelake-server", "tigerlake", "rocketlake", "alderlake", "raptorlake",
               "meteorlake", "sapphirerapids", "emeraldrapids", "graniterapids", "znver1", "znver2", "znver3",
               "znver4", "znver5"),
    "aarch64": ("generic", "cortex-a57", "cortex-a72", "cortex-a76", "neoverse-n1", "neoverse-n2", "neoverse-v1",
                "neoverse-v2", "apple-m1", "apple-m2", "apple-m3"),
}

ISAS = (AVX512, AVX2, NEON)     # within a family the widest comes first
INSTRUCTIONS = frozenset(name for row in ISAS for name in (*row.needs, *row.extensions))


def find(name: str) -> Isa:
    for isa in ISAS:
        if name == isa.name or name in isa.aliases:
            return isa
    from tilewright.targets import amd, nvidia
    known = "; ".join([*(f"{isa.name} (or {', '.join(isa.aliases)})" for isa in ISAS), *nvidia.TARGETS, *amd.TARGETS,
                       *amd.CHIPS])
    raise ValueError(f"there is no target {name!r}; there are: {known}")
