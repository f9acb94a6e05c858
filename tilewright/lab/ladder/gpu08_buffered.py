"""GPU step 8, double-buffered: the next tiles and vectors are loaded while these are multiplied.

Shared memory has room for two tiles of A and two of B. A round of the loop loads the tiles of the next round from
global memory before its multiply-adds; they stay in registers until these are nearly done, and are then stored beside
the tiles in use, so that one barrier per round is enough. In the same way each product's vectors are loaded during the
product before it. No thread waits for global memory unless a load takes longer than a round.

Pointers move to the other buffer by one XOR, as in the article: a buffer's bytes are a power of two, and the array
begins at a multiple of twice as many, so that one bit of the address selects the buffer.
"""
from tilewright.ir import f32, i32, i64
from tilewright.lab.ladder.gpu06_padded import PAD, L, S, Share, T, V
from tilewright.lab.ladder.gpu07_vectors import vectors
from tilewright.lab.ladder.gpu_gemm import begin, outer_product, store

A_ROW = L + PAD
A_BUFFER, B_BUFFER = 8 * 1024, 4 * 1024     # bytes of a tile of A, rounded up to a power of two, and of one of B


def emit_buffered():
    k, g = begin("gpu8_buffered", (T, T), min_ctas=2)
    (tx, ty), (bx, by) = k.thread, k.block
    i0, j0 = by * L, bx * L
    rows, columns = [ty * 4, ty * 4 + L // 2], [tx * 4, tx * 4 + L // 2]
    a_tiles, b_tiles = Buffers(k, "a_smem", A_BUFFER, A_ROW), Buffers(k, "b_smem", B_BUFFER, L)

    acc = k.tile(V, V, f32)
    multiply(k, g, acc, Share(k, g, ty * T + tx, i0, j0), a_tiles, b_tiles, rows, columns)
    for x in range(V):
        for y in range(V):
            store(k, g, i0 + rows[x // 4] + x % 4, j0 + columns[y // 4] + y % 4, acc[x, y])
    return k.function


def multiply(k, g, acc, share, a_tiles, b_tiles, rows, columns):
    """acc += A B for this thread's part of the CTA's tile: four rows from each of `rows` on, columns likewise."""
    fragments = Fragments(k, a_tiles, b_tiles, rows, columns)
    share.put(a_tiles.used, b_tiles.used, *share.fetch(k.constant(i32, 0)))
    k.barrier()
    with k.loop(g.depth, step=S) as p0:
        fragments.load(0)
        following = share.fetch(p0 + S)                         # past the last tile these are zeros, without a load
        for p in range(S):
            if p + 1 < S:
                fragments.load(p + 1)
            else:                                               # the last product can be made on either side of this
                share.put(a_tiles.other, b_tiles.other, *following)
                k.barrier()
            outer_product(k, acc, *fragments[p])
        a_tiles.switch()
        b_tiles.switch()


class Buffers:
    """Two tiles in shared memory, each of so many bytes, in rows of so many elements: one is used, one filled."""

    def __init__(self, k, name, bytes, row):
        self.k, self.bytes, self.row = k, bytes, row
        self.smem = k.smem(name, (2 * bytes // f32.bytes,), f32, align=2 * bytes)
        self.address = k.variable(i64, k.address(self.smem))

    @property
    def used(self): return self.k.pointer(self.address.get(), f32, "shared").view(self.row, 1)

    @property
    def other(self): return self.k.pointer(self.address.get() ^ self.bytes, f32, "shared").view(self.row, 1)

    def switch(self): self.address.set(self.address.get() ^ self.bytes)


class Fragments:
    """What a thread multiplies for one p: a column of A's tile, a row of B's. Registers for two of each."""

    def __init__(self, k, a_tiles, b_tiles, rows, columns):
        self.k, self.a_tiles, self.b_tiles, self.rows, self.columns = k, a_tiles, b_tiles, rows, columns
        self.a_reg = k.tile(2, 4 * len(rows), f32, zero=False)
        self.b_reg = k.tile(2, 4 * len(columns), f32, zero=False)

    def load(self, p):
        for e, x in enumerate(vectors(self.k, [self.a_tiles.used.at(p, i) for i in self.rows])):
            self.a_reg[p % 2, e] = x
        for e, x in enumerate(vectors(self.k, [self.b_tiles.used.at(p, j) for j in self.columns])):
            self.b_reg[p % 2, e] = x

    def __getitem__(self, p):
        return [[reg[p % 2, e] for e in range(reg.cols)] for reg in (self.a_reg, self.b_reg)]
