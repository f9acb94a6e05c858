"""GPU step 14, matrix instructions: a warp multiplies 16 x 16 of A by 8 x 16 of B in one instruction, on tensor cores.

One `mma.sync` makes 2048 multiply-adds, which took a warp 64 instructions before. What counts now is how fast operands
come. Each lane has a given part of them in registers: of a 16 x 16 block of A the pairs of k at row lane / 4 and 8 rows
below, at k = lane % 4 * 2 and 8 further on; of B likewise. The atom (`atoms.nvidia`) knows which, and proves that each
element has one place. A pair of bf16 fits into a word of shared memory, so a lane gathers its operands word by word: 4
loads for a block of A, 2 for one of B.

As in step 6 rows are padded by 16 bytes, so that the words of 8 rows lie in 32 different banks.
"""
from tilewright.atoms.nvidia import mma
from tilewright.ir import bf16, f32, i32, vec
from tilewright.lab.ladder.gpu_tensor import PIECE, begin, pieces, store

ATOM = mma("bf16", "bf16", "f32", 16, 8, 16)
L, S, PAD, WARP = 128, 64, PIECE, 64        # of C a CTA computes L x L, a warp WARP x WARP, from tiles of S of k
THREADS = 32 * (L // WARP) ** 2


def emit_mma(name="gpu14_mma", read_a=None, read_b=None):
    """`read_a` brings the registers of 16 rows of A, `read_b` those of 16 rows of B, which are two blocks (step 15)."""
    k, g = begin(name, THREADS, min_ctas=2)
    a_smem, b_smem = (k.smem(name, (L, S + PAD), bf16) for name in ("a_smem", "b_smem"))
    (tid, _), (bx, by) = k.thread, k.block
    i0, j0 = by * L, bx * L

    acc = sums(k)
    with k.loop(g.depth, step=S) as p0:
        k.barrier()                                             # all threads have used the tiles before these
        fetch(k, tid, a_smem, g.a, i0, g.m, p0, g.depth)
        fetch(k, tid, b_smem, g.b, j0, g.n, p0, g.depth)
        k.barrier()                                             # the tiles are complete
        for p in range(0, S, ATOM.k):
            multiply(k, acc, *fragments(k, tid, a_smem, b_smem, p, read_a or words_a, read_b or words_b))
    finish(k, g, acc, tid, i0, j0)
    return k.function


def fetch(k, tid, smem, x, first, end, p0, depth):
    """This thread's pieces of the tile of x at row `first` and p0; zeros outside."""
    for row, p in pieces(tid, THREADS, L, S):
        inside = (first + row < end) & (p0 + p < depth)
        piece = k.load(x.at(first + row, p0 + p).as_(i32), vec(i32, PIECE // 2), mask=inside)
        k.store(smem.at(row, p).as_(i32), piece)


def sums(k):
    """A warp's tile of C in registers: four for each block of 16 x 8."""
    return k.tile(WARP // 16, 4 * (WARP // 8), f32)


def fragments(k, tid, a_smem, b_smem, p, read_a, read_b):
    """The operands of 16 of k from p on, in registers: of the warp's rows of A, and of its rows of B, four by four."""
    i1, j1 = corner(tid)
    return ([read_a(k, a_smem, tid % 32, i1 + i, p) for i in range(0, WARP, 16)],
            [read_b(k, b_smem, tid % 32, j1 + j, p) for j in range(0, WARP, 16)])


def multiply(k, acc, a_reg, b_reg):
    """acc += A B^T for these operands."""
    for i, a in enumerate(a_reg):
        for j, b in enumerate(half for both in b_reg for half in (both[:2], both[2:])):
            for e, x in enumerate(k.mma(ATOM, a, b, [acc[i, 4 * j + e] for e in range(4)])):
                acc[i, 4 * j + e] = x


def words_a(k, smem, lane, row, p):
    """A lane's four registers of 16 rows and 16 of k, by the atom's layout: (row, k) of every second element."""
    places = [ATOM.a(lane, e) for e in range(0, ATOM.a.elements, 2)]
    return [k.load(smem.at(row + i, p + at).as_(i32)) for i, at in places]


def words_b(k, smem, lane, row, p):
    """Two registers of rows 0 to 7, which are columns of the operand, and two of rows 8 to 15."""
    places = [(column + j, at) for j in (0, 8) for at, column in (ATOM.b(lane, e) for e in (0, 2))]
    return [k.load(smem.at(row + i, p + at).as_(i32)) for i, at in places]


def corner(tid):
    """Where the warp's tile begins in the CTA's."""
    warp = tid // 32
    return warp % 2 * WARP, warp // 2 * WARP


def finish(k, g, acc, tid, i0, j0):
    """Store the warp's tile, of which a lane has two neighbours in a row at a time."""
    i1, j1 = corner(tid)
    for i in range(acc.rows):
        for e in range(0, acc.cols, 2):
            row, column = ATOM.c(tid % 32, e % 4)
            store(k, g, i0 + i1 + (row + i * 16), j0 + j1 + (column + e // 4 * 8), acc[i, e], acc[i, e + 1])
