"""AMD step 4, mxfp8: 32 x 64 by 64 x 32 with v_mfma_scale_f32_32x32x64_f8f6f4. Every 32 elements along k have a scale.

    C[i, j] = sum over k of  A[i, k] 2^(scale_a[i, k // 32] - 127)  *  B[k, j] 2^(scale_b[k // 32, j] - 127)

Scales are e8m0: a byte that is an exponent, 127 for 1. A row of A has 64 elements and so two scales; 32 rows have 64,
one for each lane. Lane (row, g), that is row + 32 g, brings the scale of its row for k in [32 g, 32 g + 32).

These are not the elements that it holds itself. 8-bit elements lie in two runs of 16: lane (row, 0) has k = 0 to 15 and
32 to 47, lane (row, 1) has 16 to 31 and 48 to 63. So half of a lane's elements are scaled by what the other one brings.

A scale is the lowest byte of a lane's register. The other three are ignored: `ATOM.bytes(1, 1)` would take the next, so
that one load can bring the scales of four instructions.
"""
from tilewright.atoms.amd import scaled
from tilewright.ir import Kernel, f32, i8, i32, ptr, vec


def atom(ARCH="gfx950", A="e4m3fn", B="e4m3fn"):
    return scaled(ARCH, 32, 64, A, B)


def emit_mxfp8(ARCH="gfx950", A="e4m3fn", B="e4m3fn"):
    """C[32, 32] = (A scaled)[32, 64] @ (B scaled)[64, 32], row-major; the scales are e8m0 [32, 2] and [2, 32]."""
    ATOM = atom(ARCH, A, B)
    k = Kernel(f"amd4_mx_{A}_{B}", threads=64, warp=64, a=ptr(i8), scale_a=ptr(i8), b=ptr(i8), scale_b=ptr(i8),
               c=ptr(f32))
    lane = k.thread[0]
    a, scale_a, b, scale_b, c = (x.view(ld, 1) for x, ld in zip(k.args, (ATOM.k, 2, ATOM.n, ATOM.n, ATOM.n)))

    first, second = (k.load(a.at(*ATOM.a(lane, e)).as_(i32), vec(i32, 4)) for e in (0, 16))
    a_reg = k.shuffle(first, second, range(8))
    b_reg = k.reinterpret(k.pack(*(b[ATOM.b(lane, e)] for e in range(32))), vec(i32, 8))
    scale_a_reg = k.cast(scale_a[ATOM.scale_a(lane)], i32)
    scale_b_reg = k.cast(scale_b[ATOM.scale_b(lane)], i32)
    (c_reg,) = k.mma(ATOM, [a_reg, scale_a_reg], [b_reg, scale_b_reg], [k.constant(ATOM.c.type, 0)])
    for e in range(16):
        c[ATOM.c(lane, e)] = c_reg[e]
    return k.function
