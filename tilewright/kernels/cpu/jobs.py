"""What a caller hands to an emitted driver: a block of 8-byte fields, at these offsets.

Strides are in elements. Nothing here needs the emission layer: a process whose kernels are all cached never loads it.
"""
from __future__ import annotations

from typing import NamedTuple

PACKED = (
    "m", "n", "k", "a", "rsa", "csa", "b", "rsb", "csb", "c", "ldc", "alpha", "beta",
    "mc_panels", "kc", "nc_panels", "jc_ways", "ic_ways", "jr_ways",
    "own_b",                    # 1: each of ic_ways packs its block of B for itself; jr_ways is 1 then
    "pack_a", "pack_b",         # addresses of the packing functions for these strides
    "table",                    # micro-kernel for (height, vectors): table[(height - 1)*NV + vectors - 1]
    "a_space", "b_space",       # 64-byte aligned; jc_ways*ic_ways blocks of A, jc_ways blocks of B, with own_b as many
                                # as of A; if threads claim, 2*SHARED times as many of A beside, and twice as many of B
    "depth",                    # of packed words: steps of k; then k counts words, or rows of tiles
    "special",                  # set to 1 if a number cannot be split into the terms that AMX multiplies
    "barriers",                 # zeroed; one for each block of B, then one for each block of A
    "finish",                   # what becomes of finished sums (finish.py), or 0; beta is 0 then
    "aside",                    # 1: sums are not added up in C, which has another format or shape, but in
    "sums",                     # these tiles, with several blocks of k; 2: C has their format, and there is one block
    "operands",                 # of the epilogue: OPERAND for each, in the order in which `finish` was recorded
    "index",                    # of the product in a batch
    "a_lines", "a_steps",       # of a scattered operand the tables that take the places of its strides (scattered.py),
    "b_lines", "b_steps",       # which are 0 then; else 0
    "c_tables",                 # of a scattered C, for `finish`: the addresses of those of its rows and columns
    "a_beside", "b_beside",     # of the prologues of A and B: BESIDE for each operand, in the order of recording
    "lower",                    # 1: tiles that are wholly above the diagonal are left out
    "unpacked",                 # 1: AMX reads B's columns where they are, but groups of k or panels that are not whole
)
MIRROR = ("n", "c", "ldc", "parts")     # elements of any format
LINE_FIELDS, STEP_FIELDS = 2, 4     # of an entry of such tables
STRIP = 64                      # of a table of lines (scattered.py): more than any strip has lines
MOST_ROWS = 64                  # of a tile: more entries of the table of C's rows, which are prefetched in vain
OPERAND = ("address", "row", "column", "product")       # strides in elements; of a reduction: of rows and columns of C,
#                                                         or of the panels of these
BESIDE = ("address", "line", "step", "product")        # strides in elements: of lines (A's rows, B's columns) and of k
IN_PLACE = (
    "m", "n", "k", "a",
    "lda",                      # A's row stride if by_rows, else its column stride; the other stride is 1
    "b", "ldb", "c", "ldc", "alpha", "beta", "kc",
    "batch", "a_step", "b_step", "c_step",          # products, and from one of their operands to the next
    "batch_parts", "row_parts", "col_parts",        # part i: the i // (row_parts*col_parts)th share of the batch, and
                                                    # of each C there the i % (row_parts*col_parts)th block
    "by_rows",
    "rows_outside",             # the order of the two inner loops
    "table",                    # for (height, vectors, masked): table[((height - 1)*NV + vectors - 1)*2 + masked]
    "finish", "operands", "index",
    "first",                    # of C's columns for `finish`, which is the first of these
)
COMPLEX_IN_PLACE = ("m", "n", "k", "a", "rsa", "csa", "b", "rsb", "csb", "c", "rsc", "csc", "alpha", "beta",
                    "sign_a", "sign_b", "row_parts", "col_parts")       # sizes in numbers, strides in reals
STREAM = ("n", "k", "a", "rsa", "csa", "b", "ldb", "c", "ldc", "beta", "parts", "b_beside", "index")  # beta is 0 or 1
DOTS = ("m", "k", "a", "lda", "b", "ldb", "c", "rsc", "csc", "alpha", "beta", "parts", "a_beside", "index")
ROW_DOTS = (*DOTS[:-2], "csa")      # lda, csa: A's strides
DOT_TILES = ("m", "n", "k", "a", "lda", "b", "ldb", "c", "rsc", "csc", "alpha", "beta", "kc",
             "row_panels", "col_panels", "row_parts", "col_parts",
             "tall_wide", "tall", "wide", "small")      # micro-kernels: of panels with one row, or column, more or not
COMPLEX_ROW = ("n", "k", "a", "csa", "b", "rsb", "csb", "c", "csc", "alpha", "beta", "parts",    # strides in reals
               "sign_a", "sign_b")              # -1.0 if that operand is conjugated, else 1.0
EACH = (                        # of a batch, by a driver for one product, whose job stands behind these fields
    "driver", "batch", "batch_parts", "within",     # parts of each product
    "a_step", "b_step", "c_step",                   # in bytes
    "fields", "at_a", "at_b", "at_c",               # of the job: how many, and where the addresses stand
)
MOST_EACH = len(PACKED)
COPIED = (                      # B, one column, is copied, for a driver whose job stands behind these
    "driver", "steps", "step",                      # of k, and elements from one to the next
    "copies",                                       # of each part, `steps` apart; 0: on its stack, MOST_COPIED at most
    "fields", "at_b",
)
TILES = ("tiles", "tiles_step")     # behind these two: where few rows go as tiles, and words from part to part
OF_PROLOGUE = 2                 # fields at the end of these two that kernels with a prologue read
SCALE = ("m", "n", "s", "lds", "c", "ldc", "alpha", "beta", "row_parts", "col_parts")
FINISH = ("m", "n", "sums", "lds", "c", "ldc", "finish", "operands", "index", "row_parts", "col_parts")
FINISHED = (                    # a product, STREAM or DOTS, with the pass over its sums, FINISH: their jobs follow
    "product", "product_parts",     # what multiplies, and how many parts that has
    "finishing", "at", "shares",    # what finishes sums, where its job begins, in bytes, and in how many parts
    "done",                     # parts of the product, 0 at the start
)
BATCH = (                       # of packed products: kernels/cpu/gemm.py
    "driver", "product",        # the five loops, and the job of the first product, for one thread
    "batch", "a_step", "b_step", "c_step",          # in bytes
    "space_step",               # from one thread's a_space and b_space to the next one's, in bytes
    "claimed",                  # products, 0 at the start
)
PIECES = (                      # of work, each with a job of its own: kernels/cpu/pieces.py
    "pieces", "count",          # PIECE for each
    "space", "space_step",      # panels of the first thread, and from one thread's to the next one's, in bytes
    "claimed",                  # pieces, 0 at the start
)
PIECE = ("function", "job", "packs")    # packs: whether a_space, b_space and sums of the job are offsets in the space
SMALL = (                       # the context of kernels/cpu/in_place.py
    "driver", "panels", "rows", "columns",          # in_place, the same by panels of B that it packs, and the tables of
                                                    # the two kinds of micro-kernels
    "pool", "run_parts",
    "most_elements", "most_by_columns",             # of A (by rows, by columns), of B and of C: they stay in cache
    "parallel_above", "grain",                      # multiplications from which threads share them, and of a part
    "wake_one", "wake_above",                       # from which a thread that sleeps is woken, and all of them
    "dots", "row_dots", "stream",                   # drivers of products with a vector: for one column, or one row
)
ATTENTION = (                   # kernels/cpu/attention.py; strides in elements
    "q_at", "k_at", "v_at", "out_at", "lse_at", "sinks",
    "reads",                    # READ for each operand of the score function
    "rows",                     # of each sequence: SEQUENCE
    "q_scales", "k_scales", "v_scales",             # [sequences, heads], or 0
    "q_s", "q_h", "q_i", "q_d", "k_s", "k_h", "k_j", "k_d", "v_s", "v_h", "v_j", "v_d", "out_s", "out_h", "out_i",
    "lse_s", "lse_h", "lse_i", "wants_lse",
    "sequences", "heads", "kv_heads", "upper", "before", "after",
    "page", "table", "table_s",                     # keys in a page, 0: not paged; numbers of pages
    "strips", "blocks", "count",                    # in a task; tasks of a kv head at most; tasks
    "space", "space_step",                          # of the first thread, and from one thread's to the next one's
    "claimed",                                      # tasks, 0 at the start
    "scale",                                        # a f64
)
ATTENTION_GRADIENTS = (         # kernels/cpu/attention_gradients.py: delta lies as lse does
    *ATTENTION, "do_at", "do_s", "do_h", "do_i", "do_d", "delta_at",
    "g_at", "g_s", "g_h", "g_i", "h_at", "h_s", "h_h", "h_i",       # of q, or of k and of v
)
ATTENTION_ROWS = (*ATTENTION, "partials", "parts")      # attention_rows.py: parts of a kv head's keys; behind it a
                                                        # counter for each of these heads, 0 at the start
SEQUENCE = ("q_first", "queries", "k_first", "keys")
READ = ("address", "s", "h", "i", "j")
UNBOUNDED = 1 << 30             # for `before` and `after` without an end
PANELS = (*IN_PLACE, "column_step", "driver")       # the job of `panels`: B's columns are so many elements apart

TALL, WIDE = 8, 4               # rows, and vectors of columns, of the tiles in which a pass of its own finishes C
BARRIER_BYTES = 128
SHARED = 2                      # blocks of A for each thread of a team that claims, which are packed for all of them
SLACK = 64                      # elements past a packed panel that packing may write


class Finish(NamedTuple):
    """What emit_finish records of an epilogue: its expression, and how operands and results lie in memory. Each is
    "format:how" for the roles that operands have in the kernel:

        scalar      the same number for all of C
        column      one number for a row of C
        vector      numbers of consecutive columns are next to each other
        any         nothing is
        rows, columns   of a result: one number for each row in each panel of columns, or the other way round

    WRITTEN has all results, C among them as "-". WIDE: floats are computed in f64, whatever the sums are.
    """
    EXPRESSION: str
    READ: tuple[str, ...]
    WRITTEN: tuple[str, ...]
    WIDE: bool = False


class Prepare(NamedTuple):
    """What packing records of a prologue: its expression, how operands beside the elements lie in memory, and in which
    format its numbers are multiplied. Each of READ is "format:line step:group" with, for both directions, 0 for the
    same number, 1 for numbers next to each other, n for others; `group` steps of k share a number."""
    EXPRESSION: str
    READ: tuple[str, ...]
    RESULT: str


class Beside(NamedTuple):
    """Addresses of what a job's functions read beside A, B and C: OPERAND of an epilogue, BESIDE of prologues."""
    operands: int = 0
    a_beside: int = 0
    b_beside: int = 0

    @property
    def swapped(self) -> Beside:
        return self._replace(a_beside=self.b_beside, b_beside=self.a_beside)


NOTHING = Beside()


class Microkernel(NamedTuple):
    """One micro-kernel that a problem needs, and where in its table of addresses it stands."""
    slot: int
    height: int
    vectors: int
    lanes: int
    b: str

    def arguments(self, dtype: str, a: str, semiring: str = "") -> tuple:
        """What emit_microkernel takes after the target."""
        return dtype, self.height, self.vectors, a, self.b, self.lanes, *((semiring,) * bool(semiring))


def microkernels(m: int, n: int, mr: int, nr: int, lanes: int, a: str) -> list[Microkernel]:
    """What an m x n matrix C meets: two heights of row panels, whole column panels and the last one.

    `a` says how they read A. "packed" kernels stand at (height - 1)*NV + vectors - 1. The others read B in place and
    stand at twice that: first the kernel for a full row of B, then the one that masks what is past the last column. An
    edge of at most half a vector has vectors half as wide, of which Zen 4 multiplies two in the time of one: it stands
    where a full row of one vector would, which no tile of several vectors meets.
    """
    vectors, panels = nr // lanes, -(-m // mr)
    edge = n % nr
    last = -(-edge // lanes)
    half = a != "packed" and vectors > 1 and 0 < edge <= lanes // 2
    kernels = []
    for height in sorted({m // panels, -(-m // panels)}, reverse=True):
        full, rest = (height - 1)*vectors + vectors - 1, (height - 1)*vectors + last - 1
        if a == "packed":
            wanted = {full: vectors} if n >= nr else {}
            wanted |= {rest: last} if edge else {}
            kernels += [Microkernel(index, height, v, lanes, "packed") for index, v in wanted.items()]
            continue
        if n >= nr:
            kernels.append(Microkernel(2*full, height, vectors, lanes, "rows"))
        if edge:
            kernels.append(Microkernel(2*rest + (not half), height, last, lanes // 2 if half else lanes, "masked"))
    return kernels


def offsets(job: tuple[str, ...]) -> dict[str, int]:
    """Byte offset of each field."""
    return {name: 8*index for index, name in enumerate(job)}


def row_pitch(k):                   # numbers, or values inside a kernel
    """Words from one row of bf16 to the next, as weight_blocks.py rearranges rows: whole steps of 32 elements, and not
    a power of two of lines, which would share sets of L1."""
    return (k + 31) // 32 * 16 + 16


def tile_words(k: int, rows: int) -> int:
    """Words that rows of bf16 take as tiles of 16 rows by 32 steps of k."""
    return -(-k // 32) * -(-rows // 16) * 256


def panel_space(kc, width):         # numbers, or values inside a kernel
    """Elements that a packed panel of `width` lines takes."""
    return kc*width + SLACK
