"""AMD step 3, fp8: 32 x 16 by 16 x 32 with v_mfma_f32_32x32x16_fp8_fp8. Only the instruction decodes the bytes.

A lane has eight elements of A and of B, and LLVM takes them as one i64. Loads and moves do not depend on their format.
The instruction does, and differs by chip: CDNA3 (gfx942) multiplies the fnuz formats, CDNA4 (gfx950) those of OCP,
under the same name. 0x40 is 2 on a gfx950 and 1 on a gfx942; the atom of each has its formats.
"""
from tilewright.atoms.amd import find
from tilewright.ir import Kernel, f32, i8, i64, ptr


def atom(ARCH="gfx942", A="fp8", B="fp8"):
    return find(f"v_mfma_f32_32x32x16_{A}_{B}", ARCH)


def emit_fp8(ARCH="gfx942", A="fp8", B="fp8"):
    """C[32, 32] = A[32, 16] @ B[16, 32], row-major; A and B are "fp8" (e4m3) or "bf8" (e5m2) of ARCH, C is of f32."""
    ATOM = atom(ARCH, A, B)
    k = Kernel(f"amd3_{ATOM.a_format}_{ATOM.b_format}", threads=64, warp=64, a=ptr(i8), b=ptr(i8), c=ptr(f32))
    lane = k.thread[0]
    a, b, c = (x.view(ld, 1) for x, ld in zip(k.args, (ATOM.k, ATOM.n, ATOM.n)))

    a_reg = k.load(a.at(*ATOM.a(lane, 0)).as_(i64))
    b_reg = k.reinterpret(k.pack(*(b[ATOM.b(lane, e)] for e in range(8))), i64)
    (c_reg,) = k.mma(ATOM, [a_reg], [b_reg], [k.constant(ATOM.c.type, 0)])
    for e in range(16):
        c[ATOM.c(lane, e)] = c_reg[e]
    return k.function
