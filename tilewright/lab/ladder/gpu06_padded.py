"""GPU step 6, padded: A is transposed in shared memory, in rows of 132 elements. The article's section 5.1.

From here on the tiles are the article's: 128 x 8 of A, 8 x 128 of B, fetched by 256 threads, four elements of each by
every thread. Of A these are four rows of one column, which are neighbours once A is transposed, so that one instruction
of 16 bytes stores them. The gain comes in the next step: a column of A is then read in the same way.

The transposed stores would have bank conflicts. A warp's store of 512 bytes takes four passes, of 8 lanes each. These
8 lanes fetched one row of the tile, so they store to 8 rows of the transposed one, at the same place in each. With rows
of 128 elements, a multiple of the 32 banks, these are the same 4 banks, and the pass takes 8. Four elements of padding
shift each row by four banks, so that 8 x 4 = 32 banks are used once each.
"""
from tilewright.ir import f32
from tilewright.lab.ladder.gpu04_shared import fetch_b
from tilewright.lab.ladder.gpu_gemm import begin, outer_product, store

L, S, V, T = 128, 8, 8, 16      # of C a CTA computes L x L, a thread V x V, from tiles of S of k; it has T x T threads
PAD = 4


def emit_padded(PAD=PAD):
    k, g = begin("gpu6_padded", (T, T))
    a_smem, b_smem = k.smem("a_smem", (S, L + PAD), f32), k.smem("b_smem", (S, L), f32)
    (tx, ty), (bx, by) = k.thread, k.block
    i0, j0 = by * L, bx * L
    rows, columns = [ty + x * T for x in range(V)], [tx + y * T for y in range(V)]
    share = Share(k, g, ty * T + tx, i0, j0)

    acc = k.tile(V, V, f32)
    with k.loop(g.depth, step=S) as p0:
        k.barrier()
        share.put(a_smem, b_smem, *share.fetch(p0))
        k.barrier()
        for p in range(S):
            a_reg = [a_smem[p, i] for i in rows]
            b_reg = [b_smem[p, j] for j in columns]
            outer_product(k, acc, a_reg, b_reg)
    for x, i in enumerate(rows):
        for y, j in enumerate(columns):
            store(k, g, i0 + i, j0 + j, acc[x, y])
    return k.function


class Share:
    """A thread's part in moving the tiles of A at (i0, p0) and of B at (p0, j0): four rows of one column of A, and four
    columns, 32 apart, of one row of B."""

    def __init__(self, k, g, tid, i0, j0):
        self.k, self.g, self.i0, self.j0 = k, g, i0, j0
        self.a_row, self.a_column = tid // S * 4, tid % S
        self.b_row, self.b_column = tid // 32, tid % 32

    def fetch(self, p0):
        """The elements of A, those of B; zeros outside."""
        k, g, i, p = self.k, self.g, self.i0 + self.a_row, p0 + self.a_column
        a_at, a_next = g.a.at(i, p), []
        for e in range(4):
            a_next.append(k.load(a_at, mask=(i + e < g.m) & (p < g.depth)))
            a_at = a_at + g.lda             # one address that moves on takes fewer registers than four
        b_next = [fetch_b(k, g, p0 + self.b_row, self.j0 + self.b_column + e) for e in range(0, L, 32)]
        return a_next, b_next

    def put(self, a_tile, b_tile, a_next, b_next):
        """Into shared memory: those of A lie side by side in its transposed tile."""
        self.k.store(a_tile.at(self.a_column, self.a_row), self.k.pack(*a_next))
        for e, b_element in enumerate(b_next):
            b_tile[self.b_row, self.b_column + 32 * e] = b_element
