"""Passes before a product: an operand is written anew, with k contiguous and rows that begin at multiples of 128 bytes.

    emit_rewrite    split into terms if the product is one of terms (plans.words.TERMS). A CTA brings a tile of SIDE by
                    SIDE elements into shared memory, lanes along what is contiguous in the source, and writes 16 bytes
                    of each term at once, lanes along k: both sides are coalesced
    emit_decode     a block-scaled one as bf16 or f32, elements times their scales. A thread decodes eight elements,
                    which are in one block: it loads their bytes and the scale and stores 16 bytes, lanes along k.
                    Products are exact in f32, and in bf16 but for bits below 2^-133, of which it says that it met some
"""
from __future__ import annotations

from typing import Any

from tilewright.formats import BLOCK_FORMATS, Float
from tilewright.ir import Function, Kernel, Type, Value, f32, i8, i16, i32, i64, ptr, vec
from tilewright.ir.values import Variable
from tilewright.kernels.gpu.work import arguments
from tilewright.kernels.narrow import memory_type, splat, terms_of, too_large, widened
from tilewright.plans.passes import SIDE, lacking
from tilewright.plans.words import TERMS

THREADS = 256                   # of a CTA, for SIDE by SIDE elements
WIDEST, BANK = 16, 4            # bytes that a thread moves at once, and of a bank of shared memory


def emit_rewrite(OPERAND: str = "a", FORMAT: str = "bf16", SPLIT: str = "", ALONG_K: bool = True, BATCH: bool = False,
                 WARP: int = 32) -> Function:
    """target[matrix, term, i, p] = term of the operand's element i, p, for i < rows and p < ld, the distance of the
    target's rows, which is a multiple of 16 bytes; from `depth` steps of k on they are 0.

    OPERAND     "a" or "b": the source's parameters have the names of a GEMM's
    FORMAT      of the source, and without SPLIT of the target
    SPLIT       of f32 operands, a key of plans.words.TERMS: `special` becomes 1 if a number cannot be split, since it
                is infinite, none, or becomes infinite when it is rounded
    ALONG_K     the source has rows along k, else k is the number of the row
    BATCH       of many matrices, in the grid one after another
    WARP        lanes of a warp on the target

    The grid along x is `tiles(rows, ld)`, for each matrix.
    """
    S = memory_type(FORMAT)
    T = {"bf16": memory_type("bf16"), "tf32": f32}[TERMS[SPLIT].format] if SPLIT else S
    of_source: dict[str, Any] = {OPERAND: ptr(S), f"ld{OPERAND}": i64}
    more: dict[str, Any] = ({f"stride_{OPERAND}": i64} if BATCH else {}) | ({"special": ptr(i32)} if SPLIT else {})
    name = f"rewrite_{OPERAND}_{SPLIT or FORMAT}{'' if ALONG_K else '_transposed'}{'_batch' if BATCH else ''}"
    k = Kernel(name, threads=THREADS, warp=WARP, rows=i32, depth=i32, **of_source, target=ptr(T), ld=i64, **more)
    g = dict(k.function.params)
    rows, depth, source, apart, target, ld = (g[x] for x in (
        "rows", "depth", OPERAND, f"ld{OPERAND}", "target", "ld"))
    matrix, i0, p0 = tile_of(k, rows, ld, BATCH, k.block[0])
    COUNT = TERMS[SPLIT].count if SPLIT else 1
    if matrix is not None:
        source = source + k.cast(matrix, i64)*g[f"stride_{OPERAND}"]
        target = target + k.cast(matrix, i64)*COUNT*rows*ld

    smem = k.smem("tile", (SIDE, SIDE + max(BANK // S.bytes, 1)), S)     # rows of an odd number of banks
    x, y = k.thread[0] % SIDE, k.thread[0] // SIDE
    i, p = (i0 + y, p0 + x) if ALONG_K else (i0 + x, p0 + y)
    at = source.view(apart, 1).at(*((i, p) if ALONG_K else (p, i)))
    lines = []
    for step in range(0, SIDE, THREADS // SIDE):
        inside = (i + step < rows) & (p < depth) if ALONG_K else (i < rows) & (p + step < depth)
        lines.append(k.load(at, mask=inside))
        at = at + apart*(THREADS // SIDE)
    k.warp_barrier()                                                    # all loads before the first store
    for step, value in enumerate(lines):
        step = step * (THREADS // SIDE)
        k.store(smem.at(y + step, x) if ALONG_K else smem.at(x, y + step), value)
    k.barrier()

    UNIT = WIDEST // T.bytes                                            # elements of the target at once
    CHUNKS = SIDE // UNIT
    x, y = k.thread[0] % CHUNKS * UNIT, k.thread[0] // CHUNKS
    largest = k.variable(i32, 0)
    for step in range(0, SIDE, min(THREADS // CHUNKS, SIDE)):
        written = _written(k, smem.at(y + step, x), S, UNIT, SPLIT, largest)
        i, p = i0 + y + step, k.cast(p0 + x, i64)
        for term, values in enumerate(written):
            row = k.cast(rows, i64)*term + i
            k.store(target + row*ld + p, values, mask=(i < rows) & (p < ld))
    if SPLIT:
        with k.when(largest.get() >= too_large(TERMS[SPLIT].mantissa)):
            k.atomic_store(g["special"], 1, "monotonic")
    return k.function


def tiles(rows: int, ld: int) -> int:
    """CTAs for a matrix whose rows will be `ld` elements apart."""
    return -(-rows // SIDE) * -(-ld // SIDE)


def tile_of(k: Kernel, rows: Value, ld: Value, BATCH: bool, index: Value) -> tuple[Value | None, Value, Value]:
    """The place of the tile of this number: the matrix of a batch, and where it begins in that. Tiles that follow each
    other go along k."""
    across = k.ceil_div(k.cast(ld, i32), SIDE)
    matrix = None
    if BATCH:
        count = k.ceil_div(rows, SIDE)*across
        matrix = index // count
        index = index - matrix*count
    return matrix, index // across * SIDE, index % across * SIDE


def _written(k: Kernel, at: Value, S: Type, UNIT: int, SPLIT: str, largest: Variable) -> list[Value]:
    """UNIT elements of shared memory as vectors of the target, for each term."""
    WORD = max(BANK // S.bytes, 1)
    words = [k.load(at + e, vec(S, WORD), align=BANK) for e in range(0, UNIT, WORD)]
    if not SPLIT:
        return [k.pack(*words) if WORD == 1 else _joined(k, words)]
    how, FOUR = TERMS[SPLIT], WIDEST // S.bytes
    terms: list[list[Value]] = [[] for _ in range(how.count)]
    for first in range(0, UNIT, FOUR):
        bits = k.bits_as(k.pack(*words[first:first + FOUR]), vec(i32, FOUR))
        for e in range(FOUR):
            largest.set(k.max(largest.get(), bits[e] & 0x7FFFFFFF))
        for term, x in zip(terms, terms_of(k, bits, how.mantissa, how.count)):
            term.append(k.bits_as(x, vec(f32, FOUR)) if how.format == "tf32"
                         else k.cast(x >> 16, vec(memory_type("bf16"), FOUR)))
    return [_joined(k, term) for term in terms]


def _joined(k: Kernel, parts: list[Value]) -> Value:
    while len(parts) > 1:
        parts = [k.shuffle(a, b, range(2*a.type.length)) for a, b in zip(parts[::2], parts[1::2])]
    return parts[0]


TOGETHER, FOUR = 8, 4           # elements of a thread, and of a vector of f32
SHIFTS = {4: (0, 4, 0, 4), 6: (0, 6, 4, 2)}     # of four elements, from the bytes
BYTES = {4: (0, 0, 1, 1), 6: (0, 0, 1, 2)}      # in which they begin


def emit_decode(OPERAND: str = "a", BLOCKS: str = "mxfp8", ALIGN: int = 8, WIDE: bool = False, BATCH: bool = False,
                WHEN: str = "", WARP: int = 32) -> Function:
    """target[matrix, i, p] = element i, p of the operand times its block's scale, for i < rows and p < ld, the distance
    of the target's rows, which is a multiple of 8; from `depth` steps of k on they are 0.

    OPERAND     "a" or "b": the source's parameters have the names of a GEMM's. Elements are packed along k, rows (of B:
                columns) lda or ldb bytes apart; scales are ld_scale_a apart from row to row, k_scale_a along k
    BLOCKS      a key of formats.BLOCK_FORMATS
    ALIGN       bytes of which the address of the elements and the distances of rows and matrices are multiples; rows
                can be read up to a multiple of 8 elements
    WIDE        the target is f32, else bf16: there `special` becomes 1 if a number has digits that bf16 lacks
    BATCH       of many matrices, in the grid one after another, stride_a and stride_scale_a apart
    WHEN        "special": see work.arguments
    WARP        lanes of a warp on the target

    There are `tiles`, rewrite.tiles(rows, ld) for each matrix, which the CTAs of any grid along x share.
    """
    f, LEAST = BLOCK_FORMATS[BLOCKS], lacking(BLOCKS)
    BITS, T = f.element.bits, f32 if WIDE else i16
    SPECIAL = not WIDE and LEAST > 0
    source: dict[str, Any] = {OPERAND: ptr(i8), f"ld{OPERAND}": i64, f"scale_{OPERAND}": ptr(i8, strided=True),
                              f"ld_scale_{OPERAND}": i64, f"k_scale_{OPERAND}": i64}
    more: dict[str, Any] = {f"stride_{OPERAND}": i64, f"stride_scale_{OPERAND}": i64} if BATCH else {}
    more |= {"special": ptr(i32)} if SPECIAL or WHEN else {}
    name = f"decode_{OPERAND}_{BLOCKS}_{ALIGN}{'_wide' * WIDE}{'_batch' * BATCH}{f'_when_{WHEN}' if WHEN else ''}"
    k = Kernel(name, threads=THREADS, warp=WARP, tiles=i32, rows=i32, depth=i32, **source, target=ptr(T), ld=i64,
               **more)
    g = vars(arguments(k, WHEN))
    rows, depth, target, ld = (g[x] for x in ("rows", "depth", "target", "ld"))
    elements, scales = g[OPERAND], g[f"scale_{OPERAND}"]
    ACROSS, SIZE = SIDE // TOGETHER, TOGETHER*BITS // 8                 # threads of a row, bytes of a thread
    UNIT = min(ALIGN, SIZE & -SIZE)                                     # which are loaded at once
    with k.loop(g["tiles"], start=k.block[0], step=k.grid[0], unroll=False) as index:
        matrix, i0, p0 = tile_of(k, rows, ld, BATCH, index)
        if matrix is not None:
            number = k.cast(matrix, i64)
            elements = elements + number*g[f"stride_{OPERAND}"]
            scales = scales + number*g[f"stride_scale_{OPERAND}"]
            target = target + number*k.cast(rows, i64)*ld
        p, y = p0 + k.thread[0] % ACROSS * TOGETHER, i0 + k.thread[0] // ACROSS
        vectors = []
        for step in range(0, SIDE, THREADS // ACROSS):
            i = y + step
            row = k.cast(i, i64)
            at = elements + row*g[f"ld{OPERAND}"] + k.cast(p // 8 * BITS, i64)
            units = [k.load(at + u, vec(i8, UNIT), align=UNIT, mask=(i < rows) & (p + u*8 // BITS < depth))
                     for u in range(0, SIZE, UNIT)]
            where = row*g[f"ld_scale_{OPERAND}"] + k.cast(p // f.block, i64)*g[f"k_scale_{OPERAND}"]
            vectors.append((i, units, k.load(scales + where, mask=(i < rows) & (p < depth))))
        k.warp_barrier()                                                # all loads before the first store
        for i, units, pattern in vectors:
            to, there = target + k.cast(i, i64)*ld + k.cast(p, i64), (i < rows) & (k.cast(p, i64) < ld)
            scale = k.broadcast(widened(k, pattern, f.scale.name, f32), FOUR)
            factors = [unit[e] if UNIT > 1 else unit for unit in units for e in range(UNIT)]
            fours = []
            for e in range(0, TOGETHER, FOUR):
                inside = k.lanes_below(k.cast(depth - p - e, i64), FOUR)
                numbers = _numbers(k, factors[e*BITS // 8:(e + FOUR)*BITS // 8], f.element)*scale
                fours.append(k.select(inside, numbers, splat(k, f32, 0, FOUR)))
            if WIDE:
                for e, four in enumerate(fours):
                    k.store(to + e*FOUR, four, mask=there)
                continue
            bits = [k.bits_as(four, vec(i32, FOUR)) for four in fours]
            first, then = (k.cast(four >> 16, vec(i16, FOUR)) for four in bits)
            k.store(to, k.shuffle(first, then, range(TOGETHER)), mask=there)
            if SPECIAL:                                                 # a nan may count, too: either product is right
                lost = k.cast(bits[0] | bits[1], vec(i16, FOUR))
                some = (lost[0] | lost[1]) | (lost[2] | lost[3])
                with k.when((some != 0) & ((k.cast(pattern, i32) & 0xFF) < LEAST) & there):
                    k.atomic_store(g["special"], 1, "monotonic")
    return k.function


def _numbers(k: Kernel, each: list[Value], ELEMENT: Float) -> Value:
    """Four elements from their bytes, as f32."""
    if ELEMENT.bits == 8:
        return widened(k, k.pack(*each), ELEMENT.name, f32)
    low, high = (k.cast(k.pack(*(each[min(byte + more, len(each) - 1)] for byte in BYTES[ELEMENT.bits])),
                        vec(i32, FOUR)) for more in (0, 1))
    words = (low & 0xFF) | (high << 8)                                  # where an element ends in the next byte
    return widened(k, words >> k.pack(*(k.constant(i32, s) for s in SHIFTS[ELEMENT.bits])), ELEMENT.name, f32)
