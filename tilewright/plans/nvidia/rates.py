"""What one of NVIDIA's chips does per second at most, by the instructions and copies of a plan."""
from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.plans import epilogues, prologues
from tilewright.plans.gpu_shape import bits_of

if TYPE_CHECKING:
    from tilewright.plans.gpu_shape import GpuShape
    from tilewright.plans.nvidia.plan import NvidiaPlan
    from tilewright.targets.nvidia import GpuTarget

ARRIVAL = 1160          # clocks of a copy from memory to shared memory
SCHEDULERS = 4          # of a multiprocessor: each issues an instruction of a warp in a clock, and has a tensor core
SHARED_CLOCK = 128      # bytes per clock of shared memory, without conflicts
# Bytes per clock and multiprocessor, from L2; by copies of 16 bytes that pass L1 by.
L2, WIDE_L2 = (x / 132 / 1.98e9 for x in (5.5e12, 8e12))
TMA_L2 = 13.6e12 / 132 / 1.98e9                 # bytes per clock and multiprocessor that bulk copies bring from L2
F16_SUMS = {"sm_86": 2, "sm_89": 2, "sm_100": 1}        # of the rate: GeForce chips add f32 up at half of it


def once(shape: GpuShape, target: GpuTarget) -> float:
    """Seconds in which the memory gives and takes each element once."""
    (a, b), c, (m, n, k) = shape.bits, bits_of(shape.out), (shape.m, shape.n, shape.k)
    beside = epilogues.bytes_moved(shape) + prologues.bytes_moved(shape)
    return (shape.batch * (m*k*a + k*n*b + m*n*c) // 8 + beside) / (0.85*target.bandwidth)


def operations(shape: GpuShape, plan: NvidiaPlan, target: GpuTarget) -> float:
    """Operations per clock of a multiprocessor by matrix instructions of 8- and 16-bit formats, or of tf32."""
    rates = plan.family.rates(target)
    sums = F16_SUMS.get(target.chip, F16_SUMS.get(target.name, 1)) if plan.terms == "f16" else 1
    return min(rates[x] for x in (shape.a, shape.b)) * sums
