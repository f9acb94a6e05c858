"""What `tilewright bench tiles` times: one micro-kernel on packed panels that lie in L1 and L2, again and again."""
from tilewright.ir import Kernel, i64, ptr
from tilewright.kernels.cpu.microkernel import TYPES, emit_microkernel


def emit_tile_probe(target, dtype, MR, NV):
    """`rounds` times: C[panels*MR, NR] += A @ b1, `panels` packed panels of A and one of B; C's rows are contiguous."""
    T, NR = TYPES[dtype], NV * target.lanes(TYPES[dtype].bytes)
    microkernel = emit_microkernel(target, dtype, MR, NV)
    k = Kernel(f"tile_probe_{dtype}_{MR}x{NR}", rounds=i64, panels=i64, kc=i64, a=ptr(T), b1=ptr(T), c=ptr(T))
    rounds, panels, kc, a, b1, c = k.args
    with k.loop(rounds):
        with k.loop(panels) as ir:
            k.call(microkernel, kc, a + ir * kc * MR, MR, b1, NR, c + ir * (MR * NR), NR, NR, 1.0, 1.0, b1, 0)
    return k.function
