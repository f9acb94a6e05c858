"""A pass before a product: an operand is written anew, with k contiguous and rows that begin at multiples of 128 bytes,
and split into terms if the product is one of terms (plans.words.TERMS).

A CTA brings a tile of SIDE by SIDE elements into shared memory, lanes along what is contiguous in the source, and
writes 16 bytes of each term at once, lanes along k: both sides are coalesced, whatever the source's layout and
alignment are.
"""
from __future__ import annotations

from typing import Any

from tilewright.ir import Function, Kernel, Type, Value, f32, i32, i64, ptr, vec
from tilewright.ir.values import Variable
from tilewright.kernels.narrow import memory_type, terms_of, too_large
from tilewright.plans.passes import SIDE
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
