"""AMD step 5, mxfp4: the same product of 4-bit elements, two of which are a byte: the nibbles of B have to be picked.

A lane has 32 elements of 4 bits, which are four registers, and all of one block of 32 along k: here it does bring the
scale of its own elements. In memory the low half of a byte is the element further left. A row of A is 32 bytes, of
which a lane loads 16 as they are. A column of B, though, is one nibble of every row: two lanes read the same byte; the
one of the even column keeps its low half, the other one its high half. Eight nibbles make a register, the first one
lowest.

The atom is twice as fast as that of step 4, where neither of A and B has 8 bits.
"""
from tilewright.atoms.amd import scaled
from tilewright.ir import Kernel, f32, i8, i32, ptr, vec


def atom(ARCH="gfx950"):
    return scaled(ARCH, 32, 64, "e2m1")


def emit_mxfp4(ARCH="gfx950"):
    """C[32, 32] = (A scaled)[32, 64] @ (B scaled)[64, 32], row-major; A is uint8 [32, 32], B is uint8 [64, 16], of two
    elements each; the scales are e8m0 [32, 2] and [2, 32]."""
    ATOM = atom(ARCH)
    k = Kernel("amd5_mxfp4", threads=64, warp=64, a=ptr(i8), scale_a=ptr(i8), b=ptr(i8), scale_b=ptr(i8), c=ptr(f32))
    lane = k.thread[0]
    a, scale_a, b, scale_b, c = (x.view(ld, 1) for x, ld in zip(k.args, (ATOM.k // 2, 2, ATOM.n // 2, ATOM.n, ATOM.n)))

    def nibble(row, column):
        byte = k.cast(b[row, column // 2], i32)
        return byte >> column % 2 * 4 & 15

    row, column = ATOM.a(lane, 0)
    a_reg = k.load(a.at(row, column // 2).as_(i32), vec(i32, 4))
    words = [k.constant(i32, 0)] * 4
    for e in range(32):
        words[e // 8] |= nibble(*ATOM.b(lane, e)) << e % 8 * 4
    b_reg = k.pack(*words)
    scale_a_reg = k.cast(scale_a[ATOM.scale_a(lane)], i32)
    scale_b_reg = k.cast(scale_b[ATOM.scale_b(lane)], i32)
    (c_reg,) = k.mma(ATOM, [a_reg, scale_a_reg], [b_reg, scale_b_reg], [k.constant(ATOM.c.type, 0)])
    for e in range(16):
        c[ATOM.c(lane, e)] = c_reg[e]
    return k.function
