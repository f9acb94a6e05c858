"""GPU step 15, ldmatrix: a warp reads four blocks of 8 x 8 from shared memory in one instruction.

Each lane passes the address of one row of 8 numbers, 16 bytes, and the hardware hands them out as `mma.sync` takes
them. What took four loads of words is one instruction: 8 instead of 32 for the 32 products of a step of 16 of k. The
banks deliver as many words as before, in as many passes; the padding keeps eight rows in different banks here too.
"""
from tilewright.lab.ladder.gpu14_mma import emit_mma


def emit_ldmatrix():
    return emit_mma("gpu15_ldmatrix", blocks_a, blocks_b)


def blocks_a(k, smem, lane, row, p):
    """Rows 0 to 7 and 8 to 15 of the first 8 of k, then of the next: lane l passes row l % 8 of block l // 8."""
    block, r = lane // 8, lane % 8
    return k.ldmatrix(smem.at(row + block % 2 * 8 + r, p + block // 2 * 8), 4)


def blocks_b(k, smem, lane, row, p):
    """Both halves of k of rows 0 to 7, then of rows 8 to 15."""
    block, r = lane // 8, lane % 8
    return k.ldmatrix(smem.at(row + block // 2 * 8 + r, p + block % 2 * 8), 4)
