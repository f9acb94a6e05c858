"""GPU step 11, textures: A and B are fetched by 16 bytes, without tests for the edges. The article's section 6.

A texture returns zeros for an index outside, in hardware, so that the loads need no predicate: two instructions fetch
what took eight predicated ones. The rows of A and the columns of B beyond the edges need no zeros, since their products
are not stored. Only k has to end at its length: the rows of B beyond it are outside of the texture; for A, whose rows
may be followed by other data, the index is -1 there.

A texel is four elements, so matrices have to be aligned (`aligned`); for others the launcher takes step 10, which has
the same product and the same stores.
"""
from tilewright.ir import Texture, f32, i32
from tilewright.lab.ladder.gpu10_stored import emit_stored

ALIGNMENT = 512                 # bytes: where a texture over linear memory may begin, on every device so far
MOST_TEXELS = 1 << 27           # that it may have


def aligned(m, n, k, a, lda, b, ldb):
    """Can these matrices be read in texels? `a` and `b` are addresses.

    The article asks for addresses that are multiples of 16 and leading dimensions of 4; CUDA asks for more of the
    address. With n and k multiples of 4 too, no texel is partly inside a matrix, and no element behind a row of A is
    multiplied, which would matter if it were infinite or no number.
    """
    return min(m, n, k) > 0 and all(x % 4 == 0 for x in (n, k, lda, ldb)) and a % ALIGNMENT == b % ALIGNMENT == 0 and \
        max(texels(m, k, lda), texels(k, n, ldb)) <= MOST_TEXELS


def texels(rows, columns, ld):
    """How many texels a matrix has: the size of its texture."""
    return ((rows - 1) * ld + columns) // 4 if rows and columns else 0


def emit_texture():
    return emit_stored("gpu11_texture", Share, a=Texture(f32), b=Texture(f32))


class Share:
    """A thread's part in moving the tiles: four neighbours in a row of A, and four in a row of B."""

    def __init__(self, k, g, tid, i0, j0):
        self.k, self.g, self.i0, self.j0 = k, g, i0, j0
        self.a_row, self.a_column = tid // 2, tid % 2 * 4
        self.b_row, self.b_column = tid // 32, tid % 32 * 4

    def fetch(self, p0):
        """A texel of A and one of B."""
        k, g, p = self.k, self.g, p0 + self.a_column
        a_pitch, b_pitch = (k.cast(ld // 4, i32) for ld in (g.lda, g.ldb))      # texels from row to row
        a_index = (self.i0 + self.a_row) * a_pitch + p // 4
        b_index = (p0 + self.b_row) * b_pitch + (self.j0 + self.b_column) // 4
        return k.fetch(g.a, k.select(p < g.depth, a_index, -1)), k.fetch(g.b, b_index)

    def put(self, a_tile, b_tile, a_next, b_next):
        """Into shared memory: those of A below each other in its transposed tile."""
        for e in range(4):
            a_tile[self.a_column + e, self.a_row] = a_next[e]
        self.k.store(b_tile.at(self.b_row, self.b_column), b_next)
