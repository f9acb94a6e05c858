"""NVIDIA GPUs: a capability record per architecture, and the numbers of one well-known chip of each.

What an architecture can do (registers, shared memory, instructions) is NVIDIA's; how many multiprocessors there are and
how fast memory is belongs to a chip: `runtime.cuda.target()` fills in those of the device that is there.
"""
from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilewright.forks import cached_property
from tilewright.targets.base import KIB, MIB, Chip

_GUIDE = "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#features-and-technical-specifications"
_THROUGHPUT = "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#arithmetic-instructions"
_PTX = "https://docs.nvidia.com/cuda/parallel-thread-execution/"
THREADS = 1024      # of a CTA, at most, on every chip; of AMD's workgroups too
CLUSTER = 8         # CTAs of a cluster that every chip can hold which has clusters
LEAST_REGISTERS = 16    # the lowest limit that ptxas takes for a thread


@dataclass(frozen=True)
class GpuTarget(Chip):
    """One architecture on one chip."""
    capability: tuple[int, int]
    instructions: tuple[str, ...]                   # those beyond the first Turing's, by the names that the gate uses
    smem_sm: int                # shared memory of a multiprocessor
    smem_cta: int               # most of it that one CTA can have
    threads_sm: int             # most threads, and most CTAs, that a multiprocessor holds
    ctas_sm: int
    fma_f32: int                # f32 multiply-adds per clock of a multiprocessor; f64 ones, without tensor cores
    fma_f64: int
    sms: int                    # of the chip
    clock: float                # Hz, at most
    l2: int
    bandwidth: float            # of its memory, bytes per second
    registers_sm: int = 65536   # of 32 bits
    registers_thread: int = 255
    warp: int = 32
    smem_reserved: int = 1 * KIB                    # of each CTA's shared memory, for the system (0 before sm_80)
    triple: str = field(default="nvptx64-nvidia-cuda", kw_only=True)
    features: str = field(default="+ptx87", kw_only=True)       # the newest PTX that LLVM 22 writes for sm_90a, and
    #                                                             that every driver since 12.9 reads
    arithmetic: tuple[str, ...] = field(default=("f32", "f64", "f16", "bf16"), kw_only=True)
    missing: tuple[str, ...] = field(default=("an NVIDIA GPU of this architecture",), compare=False, kw_only=True)
    chip: str = field(default="", kw_only=True)     # the chip's own architecture, if `name` is an older one, whose code
    #                                                 it runs

    @property
    def cpu(self) -> str: return self.name

    @property
    def code_key(self) -> str:
        """What machine code depends on: equal keys may share compiled kernels."""
        return f"{self.triple} {self.name} {self.features}"

    @property
    def overlaps(self) -> bool:
        """Whether a launch may begin while the one before it on the stream ends (PTX ISA, griddepcontrol)."""
        return self.capability >= (9, 0)

    @cached_property
    def matrix_rates(self) -> dict[str, int]:
        """Operations per clock of a multiprocessor by matrix instructions of whole warps (mma.sync), for each format of
        8 or 16 bits that A and B may have, and for tf32, which is f32 rounded to 19 bits."""
        return MATRIX_RATES.get(self.chip) or MATRIX_RATES.get(self.name, {})

    @property
    def matrix_f64(self) -> int:
        """f64 multiply-adds per clock of a multiprocessor by matrix instructions: twice as many as without, but on a
        B200."""
        return self.fma_f64 * (1 if self.chip == "sm_100" else 2)

    @property
    def older_code(self) -> str:
        """A sentence on the instructions that a chip running an older architecture's code does not use, or ""."""
        if not self.chip:
            return ""
        lacks = LACKING.get(self.chip[:-1])
        return f"{self.chip} runs code for {self.name}" + (f", and multiplies by mma.sync: {lacks}" if lacks else "")

    @cached_property
    def wgmma_rates(self) -> dict[str, int]:
        """Rates of the instructions of warpgroups (wgmma) by format, where there are any."""
        return WGMMA_RATES.get(self.name, {})

    def flops(self, dtype: str = "f32") -> float:
        """Floating-point operations per second of multiply-adds on the CUDA cores."""
        return 2 * (self.fma_f32 if dtype == "f32" else self.fma_f64) * self.sms * self.clock

    def occupancy(self, threads: int, registers: int, shared: int) -> int:
        """CTAs that a multiprocessor holds, each of so many threads, registers per thread and bytes of shared memory.

        Registers are given to warps, 256 at a time; warps come in fours; shared memory in units of 128 bytes.
        """
        warps = -(-threads // self.warp)
        per_warp = -(-max(registers, 1) * self.warp // 256) * 256
        by_registers = self.registers_sm // per_warp // 4 * 4 // warps
        size = -(-(shared + self.smem_reserved) // 128) * 128
        return max(0, min(self.threads_sm // (warps * self.warp), self.ctas_sm, by_registers,
                          self.smem_sm // size if size else self.ctas_sm))


_AMPERE = ("cp.async", "mma", "ldmatrix", "mma.ampere", "mma.f64", "mbarrier", "fence", "tf32", "bf16")
_HOPPER = (*_AMPERE, "mma.f64.k16", "tma", "wgmma", "cluster", "setmaxnreg", "stmatrix", "fp8", "tf32.even")
_SOURCES = tuple((name, _GUIDE) for name in ("smem_sm", "smem_cta", "threads_sm", "ctas_sm", "registers_sm",
                                             "registers_thread", "warp", "smem_reserved")) + (
    ("fma_f32", _THROUGHPUT), ("fma_f64", _THROUGHPUT), ("instructions", _PTX), ("arithmetic", _PTX))


def _chip(datasheet: str) -> tuple[tuple[str, str], ...]:
    return (*_SOURCES, *((name, f"default: {datasheet}") for name in ("sms", "clock", "l2", "bandwidth")))


_DATA_CENTER = "https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/"
_GEFORCE = "https://images.nvidia.com/aem-dam/en-zz/Solutions/geforce/"
TARGETS: dict[str, GpuTarget] = {t.name: t for t in (
    GpuTarget("sm_75", (7, 5), ("mma", "ldmatrix"), 64*KIB, 64*KIB, 1024, 16, 64, 2, 40, 1.59e9, 4*MIB,
              320e9, smem_reserved=0, arithmetic=("f32", "f64", "f16"), model="NVIDIA T4",
              sources=_chip("https://www.nvidia.com/en-us/data-center/tesla-t4/")),
    GpuTarget("sm_80", (8, 0), _AMPERE, 164*KIB, 163*KIB, 2048, 32, 64, 32, 108, 1.41e9,
              40*MIB, 1555e9, model="NVIDIA A100",
              sources=_chip(_DATA_CENTER + "nvidia-ampere-architecture-whitepaper.pdf")),
    GpuTarget("sm_86", (8, 6), _AMPERE, 100*KIB, 99*KIB, 1536, 16, 128, 2, 82, 1.695e9,
              6*MIB, 936e9, model="NVIDIA GeForce RTX 3090",
              sources=_chip(_GEFORCE + "ampere/pdf/NVIDIA-ampere-GA102-GPU-Architecture-Whitepaper-V1.pdf")),
    GpuTarget("sm_89", (8, 9), (*_AMPERE, "fp8"), 100*KIB, 99*KIB, 1536, 24, 128, 2, 128,
              2.52e9, 72*MIB, 1008e9, model="NVIDIA GeForce RTX 4090",
              sources=_chip(_GEFORCE + "ada/ada-gpu-architecture.pdf")),
    GpuTarget("sm_90a", (9, 0), _HOPPER, 228*KIB, 227*KIB, 2048, 32, 128, 64, 132,
              1.98e9, 50*MIB, 4800e9, model="NVIDIA H200",
              sources=_chip("https://www.nvidia.com/en-us/data-center/h200/")),
)}
# What code for sm_89 does without on newer chips, by their generation.
LACKING = {
    "sm_10": "tcgen05, which multiplies bf16 at up to 8192 operations per clock of a multiprocessor, is not used",
    "sm_12": "instructions for block-scaled fp8, fp6 and fp4 are not used",
}
# Sums are f32, or i32. Of sm_75 to sm_89 by the peaks of their data sheets (GeForce chips add f32 up at half the rate);
# of Hopper, where mma.sync is slower than wgmma, as an H200 issues it: 595, 305 and 1,220 TFLOP/s at 1.98 GHz. An 8-bit
# float is converted there and takes as long as f16. Of sm_100, whose rates of mma.sync are not published, those of
# sm_80, and of 8-bit floats that of f16: nothing of it has been measured.
MATRIX_RATES: dict[str, dict[str, int]] = {
    "sm_75": {"f16": 1024, "i8": 2048, "u8": 2048},
    "sm_80": {"f16": 2048, "bf16": 2048, "i8": 4096, "u8": 4096, "tf32": 1024},
    "sm_86": {"f16": 512, "bf16": 512, "i8": 2048, "u8": 2048, "tf32": 256},
    "sm_89": {"f16": 512, "bf16": 512, "i8": 2048, "u8": 2048, "e4m3fn": 1024, "e5m2": 1024, "tf32": 256},
    "sm_100": {"f16": 2048, "bf16": 2048, "i8": 4096, "u8": 4096, "e4m3fn": 2048, "e5m2": 2048, "tf32": 1024},
    "sm_90a": {"f16": 2276, "bf16": 2276, "i8": 4668, "u8": 4668, "e4m3fn": 2276, "e5m2": 2276, "tf32": 1167},
}
# As an H200 issues it: bf16 862, tf32 452, e4m3 1,674 and s8 1,942 TFLOP/s at 1.98 GHz (2026-11-21); what its power
# allows for longer is in plans/wgmma_model.py.
WGMMA_RATES: dict[str, dict[str, int]] = {
    "sm_90a": {"f16": 3298, "bf16": 3298, "i8": 7430, "u8": 7430, "e4m3fn": 6405, "e5m2": 6405, "tf32": 1729},
}
# Chips whose numbers are not those of the architecture's record above.
CHIPS: dict[str, GpuTarget] = {
    "h100": replace(TARGETS["sm_90a"], bandwidth=3350e9, model="NVIDIA H100",
                    sources=_chip("https://www.nvidia.com/en-us/data-center/h100/")),
    "rtx5090": replace(TARGETS["sm_89"], sms=170, clock=2.407e9, l2=96*MIB, bandwidth=1792e9, chip="sm_120",
                       model="NVIDIA GeForce RTX 5090",
                       sources=_chip("https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/"
                                     "nvidia-rtx-blackwell-gpu-architecture.pdf")),
    # 75 TFLOP/s of f32 and 37 of f64, by matrix instructions, too; of bf16 2,250 dense, by tcgen05
    "b200": replace(TARGETS["sm_89"], smem_sm=228*KIB, smem_cta=227*KIB, threads_sm=2048, ctas_sm=32, fma_f64=64,
                    sms=148, clock=1.98e9, l2=126*MIB, bandwidth=7700e9, chip="sm_100", model="NVIDIA B200",
                    sources=_chip("https://www.nvidia.com/en-us/data-center/hgx/"))}
NEWER = {(10, 0): CHIPS["b200"], (12, 0): CHIPS["rtx5090"]}        # by compute capability
ALIASES = {"sm_90": "sm_90a", "hopper": "sm_90a", "h200": "sm_90a", "ada": "sm_89", "a100": "sm_80",
           "ampere": "sm_80", "turing": "sm_75", "t4": "sm_75", "sm_100": "b200", "sm_120": "rtx5090"}


def find(name: str) -> GpuTarget | None:
    """The record of this architecture or chip, or None if it is not one of NVIDIA's."""
    name = ALIASES.get(name.lower(), name.lower())
    return CHIPS.get(name) or TARGETS.get(name)
