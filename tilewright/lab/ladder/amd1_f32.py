"""AMD step 1, f32: one wave multiplies 32 x 2 by 2 x 32 with one instruction, v_mfma_f32_32x32x2_f32.

The 64 lanes of a wave (wavefront) hold the matrices together: a lane has 32 * 2 / 64 = 1 element of A, one of B, and
32 * 32 / 64 = 16 of C. Which ones is in the manual and in the atom: `ATOM.a(lane, e)` is (row, column) of element e
of those that the lane has. All that a kernel has to do is to load by these layouts, and to store by them.

    a lane's element of A    row lane % 32, column lane // 32
    of B                     row lane // 32, column lane % 32
    of C                     column lane % 32; four rows, the next four belong to the other half of the wave, and so on
"""
from tilewright.atoms.amd import mfma
from tilewright.ir import Kernel, f32, ptr


def atom(ARCH="gfx942"):
    return mfma(ARCH, 32, 2, "f32")


def emit_f32(ARCH="gfx942"):
    """C[32, 32] = A[32, 2] @ B[2, 32], row-major."""
    ATOM = atom(ARCH)
    k = Kernel("amd1_f32", threads=64, warp=64, a=ptr(f32), b=ptr(f32), c=ptr(f32))
    lane = k.thread[0]
    a, b, c = (x.view(ld, 1) for x, ld in zip(k.args, (ATOM.k, ATOM.n, ATOM.n)))

    a_reg = a[ATOM.a(lane, 0)]
    b_reg = b[ATOM.b(lane, 0)]
    (c_reg,) = k.mma(ATOM, [a_reg], [b_reg], [k.constant(ATOM.c.type, 0)])
    for e in range(16):
        c[ATOM.c(lane, e)] = c_reg[e]
    return k.function
