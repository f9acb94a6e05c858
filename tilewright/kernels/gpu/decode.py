"""A pass before a product: a block-scaled operand is written anew as bf16 or f32, elements times their scales, with k
contiguous and rows that begin at multiples of 128 bytes.

A thread decodes eight elements, which are in one block: it loads their bytes and the scale and stores 16 bytes, lanes
along k. Products are exact in f32, and in bf16 but for bits below 2^-133, of which the pass says that it met some.
"""
from __future__ import annotations

from typing import Any

from tilewright.formats import BLOCK_FORMATS, Float
from tilewright.ir import Function, Kernel, Value, f32, i8, i16, i32, i64, ptr, vec
from tilewright.kernels.gpu.rewrite import THREADS, tile_of
from tilewright.kernels.gpu.work import arguments
from tilewright.kernels.narrow import splat, widened
from tilewright.plans.passes import SIDE, lacking

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
