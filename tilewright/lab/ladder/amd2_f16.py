"""AMD step 2, f16: 16 x 16 by 16 x 16 with v_mfma_f32_16x16x16_f16. Several elements of a lane share a register.

A lane has four elements of each matrix. Those of A are neighbours in a row, k = 4 * (lane // 16) + e, so one load of 8
bytes brings them in the order in which the instruction takes them. Those of B are neighbours in a column: in a
row-major B they are 16 elements apart, and are loaded one by one. (A GEMM has B so that k is contiguous, in LDS at the
latest.)

The sums are f32, which holds every product of two f16 exactly: eight times the rate of step 1, and all that is lost is
what the operands lost when they became f16.
"""
from tilewright.atoms.amd import mfma
from tilewright.ir import Kernel, f16, f32, ptr, vec


def atom(ARCH="gfx942"):
    return mfma(ARCH, 16, 16, "f16")


def emit_f16(ARCH="gfx942"):
    """C[16, 16] = A[16, 16] @ B[16, 16], row-major; C is of f32."""
    ATOM = atom(ARCH)
    k = Kernel("amd2_f16", threads=64, warp=64, a=ptr(f16), b=ptr(f16), c=ptr(f32))
    lane = k.thread[0]
    a, b, c = (x.view(ld, 1) for x, ld in zip(k.args, (ATOM.k, ATOM.n, ATOM.n)))

    a_reg = k.load(a.at(*ATOM.a(lane, 0)), vec(f16, 4))
    b_reg = k.pack(*(b[ATOM.b(lane, e)] for e in range(4)))
    (c_reg,) = k.mma(ATOM, [a_reg], [b_reg], [k.constant(ATOM.c.type, 0)])
    for e in range(4):
        c[ATOM.c(lane, e)] = c_reg[e]
    return k.function
