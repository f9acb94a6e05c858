"""The theoretical peaks of matrix instructions: what a chip would do if its matrix units never waited.

    peak = 2 * m * n * k * matrix units * clock / cycles of one instruction

For AMD's chips the instructions are the catalogue's. For NVIDIA's, whose instructions' cycles are not published, the
multiply-adds per clock of a multiprocessor are, in NVIDIA's architecture papers; the formula is the same.
"""
from __future__ import annotations

from dataclasses import dataclass

from tilewright.atoms.amd import Mfma, mfma_instructions
from tilewright.targets.amd import AmdTarget
from tilewright.targets.nvidia import GpuTarget


@dataclass(frozen=True)
class Peak:
    format: str                 # of A and B
    instruction: str            # the fastest of this format
    work: int                   # multiply-adds of one instruction (NVIDIA: of a multiprocessor in a clock)
    units: int                  # that work side by side: Matrix Cores; multiprocessors
    clock: float                # Hz
    cycles: int                 # of one instruction

    @property
    def flops(self) -> float:
        """Per second; of integers, additions and multiplications."""
        return 2 * self.work * self.units * self.clock / self.cycles


_PAPERS = "https://images.nvidia.com/aem-dam/"
_TURING = _PAPERS + "en-zz/Solutions/design-visualization/technologies/turing-architecture/" \
                    "NVIDIA-Turing-Architecture-Whitepaper.pdf"
_AMPERE = _PAPERS + "en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf"
_GA102 = _PAPERS + "en-zz/Solutions/geforce/ampere/pdf/NVIDIA-ampere-GA102-GPU-Architecture-Whitepaper-V1.pdf"
_ADA = _PAPERS + "Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
_BLACKWELL = "https://www.nvidia.com/en-us/data-center/hgx/"
_HOPPER = "https://resources.nvidia.com/en-us-tensor-core/gtc22-whitepaper-hopper"
# Dense multiply-adds of all tensor cores of a multiprocessor in a clock, with sums in f32 (f64 in f64, i8 in i32); a
# lower clock for them, but for f64, where NVIDIA reckons with one (Hopper); and the source of both.
TENSOR: dict[str, tuple[dict[str, int], float | None, str]] = {
    "sm_75": ({"f16": 512, "i8": 1024}, None, _TURING),
    "sm_80": ({"f64": 64, "tf32": 512, "f16": 1024, "bf16": 1024, "i8": 2048}, None, _AMPERE),
    "sm_86": ({"tf32": 128, "f16": 256, "bf16": 256, "i8": 1024}, None, _GA102),
    "sm_89": ({"tf32": 128, "f16": 256, "bf16": 256, "e4m3fn": 512, "e5m2": 512, "i8": 1024}, None, _ADA),
    "sm_90a": ({"f64": 128, "tf32": 1024, "f16": 2048, "bf16": 2048, "e4m3fn": 4096, "e5m2": 4096, "i8": 4096}, 1.83e9,
               _HOPPER),
    "sm_100": ({"f64": 64, "tf32": 2048, "f16": 4096, "bf16": 4096, "e4m3fn": 8192, "e5m2": 8192, "i8": 8192}, 1.86e9,
               _BLACKWELL),
}


def fastest(target: AmdTarget, format: str) -> Mfma:
    """The instruction without scales that multiplies most of this format per cycle; of equals the one with the larger
    tile, which reads less for it. ValueError if there is none."""
    alike = [x for x in mfma_instructions(target.name) if x.a_format == x.b_format == format and not x.scaled]
    if not alike:
        raise ValueError(f"{target.name} has no matrix instruction for {format}")
    return max(alike, key=lambda x: (x.flops / x.cycles[target.name], -x.blocks, x.m))


def peaks(target: AmdTarget | GpuTarget) -> list[Peak]:
    """One for each number format that A and B can both have, the widest format first."""
    if isinstance(target, AmdTarget):
        kinds = dict.fromkeys(x.a_format for x in mfma_instructions(target.name) if x.a_format == x.b_format)
        return [Peak(format, x.name, x.flops // 2, target.matrix_cores, target.clock, x.cycles[target.name])
                for format, x in ((format, fastest(target, format)) for format in kinds)]
    rates, slower, _ = _tensor(target)
    cores = {"f64": target.fma_f64, "f32": target.fma_f32}
    found = []
    for format in dict.fromkeys(["f64", "f32", *rates]):
        tensor = format in rates
        clock = slower if slower is not None and tensor and format != "f64" else target.clock
        found.append(Peak(format, "tensor cores" if tensor else "CUDA cores", rates.get(format) or cores[format],
                          target.sms, clock, 1))
    return found


def _tensor(target: GpuTarget) -> tuple[dict[str, int], float | None, str]:
    return TENSOR.get(target.chip) or TENSOR[target.name]


def source(target: AmdTarget | GpuTarget) -> str:
    """Where the rates come from."""
    return _tensor(target)[2] if isinstance(target, GpuTarget) else target.source("instructions")
