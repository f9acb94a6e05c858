"""CPUs: the instruction sets that kernels are emitted for, one row each, and the record of one on a machine.

LLVM's CPU is a psABI level and not the machine's own name, so that code, cache keys and golden files are the same
everywhere. Nothing is lost: on Zen 4 the micro-kernels (14x32, 8x48, 6x16, 4x24, f32; f64 alike) compiled for znver4,
sapphirerapids or haswell run within 1 % of these, which reach 99.9 % of the measured peak; on Sapphire Rapids as well.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from tilewright.forks import cached_property
from tilewright.targets import machine
from tilewright.targets.base import KIB, MIB, Chip
from tilewright.targets.machine import Cache

_SDM = "https://www.intel.com/content/www/us/en/developer/articles/technical/intel-sdm.html"
_PSABI = "https://gitlab.com/x86-psABIs/x86-64-ABI"
_CHIP = "https://en.wikichip.org/wiki/"
_ARM = "https://developer.arm.com/documentation/ddi0487/latest"


def _caches(source: str, **levels: tuple[int, int]) -> dict[str, Cache]:
    """The sizes and ways to plan with where the machine says nothing: those of one well-known chip."""
    return {level: Cache(size, ways, 1, 64, f"default: {_CHIP}{source}") for level, (size, ways) in levels.items()}


@dataclass(frozen=True, eq=False)
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
    caches: dict[str, Cache]
    manual: str                 # of vector_bytes, registers, masked and arithmetic
    level: str                  # of needs
    extensions: tuple[str, ...] = ()    # that kernels use where there are any, by LLVM's names
    spare_registers: int = 0    # measured: the tiles of tests/inspect/test_resources.py


_V3 = ("avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe")

AVX512 = Isa(
    "x86-avx512", ("avx512", "avx-512", "x86-64-v4"), "x86-64", "x86_64-unknown-linux-gnu", "x86-64-v4",
    "-prefer-256-bit",          # LLVM's default here is 256 bits, for the sake of early Skylake servers
    64, 32, True, (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    _caches("intel/microarchitectures/skylake_(server)", l1d=(32*KIB, 8), l2=(MIB, 16), l3=(11 << 17, 11)),
    _SDM, _PSABI, extensions=("avx512vnni", "avx512bf16", "avx512vpopcntdq", "amx-tile", "amx-bf16", "amx-int8"))

AVX2 = Isa(
    "x86-avx2", ("avx2", "x86-64-v3"), "x86-64", "x86_64-unknown-linux-gnu", "x86-64-v3", "", 32, 16, False, _V3,
    _caches("intel/microarchitectures/haswell_(client)", l1d=(32*KIB, 8), l2=(256*KIB, 8), l3=(8*MIB, 16)),
    _SDM, _PSABI, extensions=("avxvnni",))

NEON = Isa(
    "neon", ("aarch64-neon", "arm-neon", "aarch64", "armv8-a"), "aarch64", "aarch64-unknown-linux-gnu", "generic", "",
    16, 32, False, ("asimd",),
    _caches("annapurna_labs/graviton/graviton2", l1d=(64*KIB, 4), l2=(MIB, 8), l3=(32*MIB, 16)),
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


class Known(NamedTuple):
    """A chip by its name: what kernels for it are chosen by where it is not here. One core; sizes in KiB."""
    isa: Isa
    model: str
    extensions: tuple[str, ...]
    l1d: int
    l2: int
    l3: int
    source: str


_VNNI = "avx512vnni", "avx512bf16", "avx512vpopcntdq"
CHIPS = {
    "zen3": Known(AVX2, "AMD Zen 3", (), 32, 512, 32 << 10, "amd/microarchitectures/zen_3"),
    "zen4": Known(AVX512, "AMD Zen 4", _VNNI, 32, 1024, 32 << 10, "amd/microarchitectures/zen_4"),
    "zen5": Known(AVX512, "AMD Zen 5", _VNNI, 48, 1024, 32 << 10, "amd/microarchitectures/zen_5"),
    "icelake-server": Known(AVX512, "Intel Ice Lake", _VNNI[::2], 48, 1280, 1536,
                            "intel/microarchitectures/ice_lake_(server)"),
    "sapphirerapids": Known(AVX512, "Intel Sapphire Rapids", AVX512.extensions, 48, 2048, 1920,
                            "intel/microarchitectures/sapphire_rapids"),
}
ISAS = (AVX512, AVX2, NEON)     # within a family the widest comes first
NEEDS = {row.name: row.needs for row in ISAS}
INSTRUCTIONS = frozenset(name for row in ISAS for name in (*row.needs, *row.extensions))


@dataclass(frozen=True)
class CpuTarget(Chip):
    """One instruction set on one machine; caches as one core sees them."""
    cpu: str                    # LLVM's
    vector_bytes: int           # of one vector register
    registers: int              # vector registers
    masked: bool                # loads and stores under a mask register cost the same as plain ones
    l1d: int
    l2: int
    cores: int                  # CPUs that this process may use, when the record was made
    l3: int = 0                 # one of them; 0 when there is none
    line: int = 64
    l1d_ways: int = 8
    l2_ways: int = 8
    l3_ways: int = 16
    l2_cpus: int = 1            # CPUs of the machine that share one L2, one L3
    l3_cpus: int = 1
    spare_registers: int = 0    # vector registers that LLVM needs free beside a register tile, or it spills
    smt: int = 1                # of the usable CPUs, how many are one core
    extensions: tuple[str, ...] = ()                # beyond the ISA, by LLVM's names, that this machine has too

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
        """This target for code that uses the extensions."""
        features = ",".join([*filter(None, [self.features]), *(f"+{name}" for name in self.extensions)])
        return replace(self, features=features)

    def has(self, instruction: str) -> bool:
        """Whether kernels for this chip may use it: it is one of its extensions, or every chip of the ISA has it."""
        return instruction in self.extensions or instruction in NEEDS.get(self.name, ())

    @cached_property
    def tile_registers(self) -> int:
        """Vector registers that a register tile may take: accumulators, a row of B, an element of A."""
        return self.registers - self.spare_registers

    def lanes(self, itemsize: int) -> int:
        """Elements of `itemsize` bytes in one vector register."""
        return self.vector_bytes // itemsize


def find(name: str) -> CpuTarget | None:
    """The record of the instruction set with this name or alias, or of the chip; None if there is none."""
    row = next((row for row in ISAS if name in (row.name, *row.aliases)), None)
    return record(row) if row else chip(CHIPS[name]) if name in CHIPS else None


@cache
def chip(known: Known) -> CpuTarget:
    """One core of a chip that may be elsewhere."""
    row, spelled = known.isa, {flag.replace("_", "") for flag in machine.processor().flags}
    sizes = {level: getattr(known, level) * KIB for level in row.caches}
    default = f"default: {_CHIP}{known.source}"
    return CpuTarget(
        row.name, row.cpu, row.vector_bytes, row.registers, row.masked, **sizes, cores=1, triple=row.triple,
        features=row.features, spare_registers=row.spare_registers, model=known.model, extensions=known.extensions,
        missing=tuple(x for x in (*row.needs, *known.extensions) if x.replace("-", "").replace("_", "") not in spelled),
        sources=(*((level, default) for level in sizes), ("extensions", default), ("cores", "default: one"),
                 *((field, row.manual) for field in ("vector_bytes", "registers", "masked", "arithmetic"))))


@cache
def record(row: Isa) -> CpuTarget:
    """An instruction set with the caches and cores of this machine where that is of the same family, else with those of
    a well-known chip and one core."""
    here = machine.processor()
    sources = [*((field, row.manual) for field in ("vector_bytes", "registers", "masked", "arithmetic")),
               ("spare_registers", "measured: tests/inspect/test_resources.py")]
    numbers: dict[str, Any]
    if row.family == here.family:
        cpus, spelled = machine.cpus(), {flag.replace("_", "") for flag in here.flags}
        levels = machine.caches(cpus.allowed[0], row.caches)
        numbers = {"cores": cpus.count, "smt": cpus.smt, "line": levels["l1d"].line,
                   "missing": tuple(flag for flag in row.needs if flag not in here.flags),
                   "extensions": tuple(name for name in row.extensions if name.replace("-", "") in spelled)}
        sources += [("missing", f"/proc/cpuinfo against {row.level}"), ("extensions", "/proc/cpuinfo"),
                    ("cores", cpus.why), ("l3", "none: neither sysfs nor cpuid names one")]
    else:
        levels = row.caches
        numbers = {"cores": 1, "missing": (f"an {row.family} processor",)}
        sources.append(("cores", "default: one"))
    for level, level_cache in levels.items():
        numbers |= {level: level_cache.size, f"{level}_ways": level_cache.ways, f"{level}_cpus": level_cache.cpus}
        sources.append((level, level_cache.source))                   # the last one of a name counts
    numbers.pop("l1d_cpus")
    return CpuTarget(row.name, row.cpu, row.vector_bytes, row.registers, row.masked, triple=row.triple,
                     features=row.features, spare_registers=row.spare_registers, model=here.model,
                     sources=tuple(sources), **numbers)
