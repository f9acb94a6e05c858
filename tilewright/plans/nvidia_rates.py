"""What one of NVIDIA's chips does per second at most, by the instructions and copies of a plan."""
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.plans.gpu_shape import GpuShape
    from tilewright.plans.nvidia_plan import NvidiaPlan
    from tilewright.targets.nvidia import GpuTarget

DRAM = 0.85             # of the memory's bandwidth, that kernels reach
ARRIVAL = 1160          # clocks of a copy from memory to shared memory
SCHEDULERS = 4          # of a multiprocessor: each issues an instruction of a warp in a clock, and has a tensor core
SHARED_CLOCK = 128      # bytes per clock of shared memory, without conflicts
# Bytes per clock and multiprocessor, from L2; by copies of 16 bytes that pass L1 by.
L2, WIDE_L2 = (x / 132 / 1.98e9 for x in (5.5e12, 9.5e12))
TMA_L2 = 47.1           # bytes per clock and multiprocessor that bulk copies bring from L2: fitted, as wgmma_model.py's
F16_SUMS = {"sm_86": 2, "sm_89": 2, "sm_100": 1}        # of the rate: GeForce chips add f32 up at half of it


def operations(shape: GpuShape, plan: NvidiaPlan, target: GpuTarget) -> float:
    """Operations per clock of a multiprocessor by matrix instructions of 8- and 16-bit formats, or of tf32."""
    rates = target.wgmma_rates if plan.algorithm == "wgmma" else target.matrix_rates
    sums = F16_SUMS.get(target.chip, F16_SUMS.get(target.name, 1)) if plan.terms == "f16" else 1
    return min(rates.get(shape.a, 1), rates.get(shape.b, 1)) * sums           # 1: of plans that rules refuse


def peak(shape: GpuShape, plan: NvidiaPlan, target: GpuTarget) -> float:
    """Operations per second of all multiprocessors, with the instructions of this plan."""
    shape = plan.after_passes(shape)
    if plan.algorithm in ("mma", "wgmma"):
        return operations(shape, plan, target) * target.sms * target.clock / plan.products
    if shape.a in ("c64", "c128"):              # four multiply-adds of real numbers
        return (target.fma_f32 if shape.a == "c64" else target.fma_f64) * target.sms * target.clock / 2
    fma = target.fma_f32 if shape.itemsize == 4 else target.matrix_f64 if plan.algorithm == "dmma" else target.fma_f64
    return 2 * fma * target.sms * target.clock


def bandwidths(plan: NvidiaPlan, target: GpuTarget) -> dict[str, float]:
    """Bytes per second that the levels of `traffic` give all multiprocessors at most, by the copies of this plan."""
    clocks = target.sms * target.clock
    l2 = TMA_L2 if plan.algorithm == "wgmma" else WIDE_L2
    return {"shared": SHARED_CLOCK * clocks, "L2": l2 * clocks, "memory": target.bandwidth}
