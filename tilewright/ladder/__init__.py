"""Two ladders: ways to multiply matrices on a CPU and on a GPU, one idea apart, each readable in a minute.

The CPU's follows https://salykova.github.io/matmul-cpu (see docs/cpu-ladder.md). A step is an emitter and what its
caller must know; `tilewright.ladder.run_cpu` compiles and runs it, `tilewright bench ladder` measures it. All of them
multiply row-major matrices of any size. The product's own kernels, in kernels/cpu, go on from the last step.

The GPU's is GPU_STEPS in `gpu_steps` (see docs/gpu-ladder.md).
"""
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.ladder import cpu1_naive, cpu2_registers, cpu3_padded, cpu4_blocked, cpu5_micro, cpu6_parallel


@dataclass(frozen=True)
class Step:
    """`emit(target, dtype, *blocks)` records the function `symbol`_f32 or _f64."""
    title: str
    idea: str
    emit: Callable
    blocks: Callable = lambda target, dtype, team: ()                   # the further arguments of `emit`
    work: Callable = lambda target, dtype, m, n, depth, *blocks: 0      # elements of scratch memory
    parallel: bool = False      # it is called as (job, tid), by a team of threads

    @property
    def symbol(self) -> str:
        return self.emit.__module__.rpartition(".")[2].replace("cpu", "ladder")


STEPS: dict[str, Step] = {
    "naive": Step("1 naive", "three loops, one element of C at a time", cpu1_naive.emit_naive),
    "registers": Step("2 registers", "a tile of C in vector registers", cpu2_registers.emit_registers),
    "padded": Step("3 padded", "the tile at the edges too: operands padded with zeros, stores masked",
                   cpu3_padded.emit_padded, work=cpu3_padded.padded_work),
    "blocked": Step("4 blocked", "five loops, and panels packed for the caches", cpu4_blocked.emit_blocked,
                    lambda target, dtype, team: cpu4_blocked.blocks(target, dtype), cpu4_blocked.blocked_work),
    "micro": Step("5 micro", "no masks inside, prefetch of C, larger blocks, better packing", cpu5_micro.emit_micro,
                  lambda target, dtype, team: cpu5_micro.blocks(target, dtype), cpu4_blocked.blocked_work),
    "parallel": Step("6 parallel", "packing and tiles split over threads", cpu6_parallel.emit_parallel,
                     cpu6_parallel.blocks, cpu4_blocked.blocked_work, parallel=True),
}
