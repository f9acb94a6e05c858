"""The micro-kernel: an MR x NR tile of C in registers, and kc rank-1 updates of it. One emitter for every tile size.

Registers: MR*NV accumulators, NV for a row of B, one for the element of A that all lanes share; `plans.cpu` proves that
they fit. NV vectors of V lanes make NR columns. Rows of C beyond the tile do not exist (a panel has a kernel of its own
height); columns beyond it are masked.
"""
from __future__ import annotations

from itertools import product
from typing import Any

from tilewright.ir import Function, Kernel, Value, f32, f64, i8, i32, i64, ptr, vec
from tilewright.kernels.cpu.accumulators import PACKED_WORDS, accumulators
from tilewright.kernels.expression import semiring_suffix, state_fields
from tilewright.plans.words import WORDS
from tilewright.targets.cpu import CpuTarget

_SUMS = {"f32": f32, "f64": f64, "i32": i32, "i64": i64}
TYPES = _SUMS | {word.name: _SUMS[word.sums] for word in WORDS}             # in which products are added up
PACE = 4                # k steps to one prefetched row: denser prefetching delays the loads of the tile itself
LEAD = 12               # prefetched rows' time from the last prefetch of C to its use


def unrolled(MR: int, NV: int, dtype: str = "", SEMIRING: str = "") -> bool:
    """Whether PACE steps of k stand in a row: with a larger tile, or terms of several instructions, LLVM's scheduler
    hoists loads and spills."""
    return MR*NV <= 12 and MR <= 6 and dtype != "i16x2" and not SEMIRING


def emit_microkernel(target: CpuTarget, dtype: str, MR: int, NV: int, A: str = "packed", B: str = "packed",
                     lanes: int = 0, SEMIRING: str = "") -> Function:
    """C[MR, cols] = alpha * A[MR, kc] @ B[kc, cols] + beta * C, cols <= NR; beta = 0 never reads C.

    A   "packed": a[p*MR + i]; "columns": a[p*lda + i]; "rows": a[i*lda + p]
    Of packed words (PACKED_WORDS) kc counts words, and the panel of B begins with the row that accumulators start with.
    Of "bytes" terms and states are of 8 bits, four of each column, which become one of C in the end.

    SEMIRING    what stands for multiplication and addition; alpha is 1 then, and a beta of 1 combines with C. If its
                state is kept (state_fields), c is a tile of states, of which a row has the row of one field
                after the other, of whole vectors; `before` are the steps of k before a and b

    B   "packed": b[p*NR + j], aligned; "rows": b[p*ldb + j]; "masked": the same, and columns past `cols` are not read
    While it multiplies, a packed kernel asks for one row of `ahead` every PACE steps, which is the B panel that comes
    next, packed or not yet, and towards the end for its rows of C. ahead_step is in bytes there, and a row of words is
    as many rows of `ahead` as a word has steps; in place it is in elements.
    """
    T = TYPES[dtype]
    E = i32 if dtype in PACKED_WORDS else T     # what panels consist of
    V = lanes or target.lanes(T.bytes)          # narrower vectors for a narrow edge
    NR, align = NV * V, (V if B == "packed" else 1) * T.bytes
    more: dict[str, Any] = {"before": i64} if state_fields(SEMIRING) else {}
    name = f"microkernel_{dtype}_{MR}x{NR}_{A}_{B}{semiring_suffix(SEMIRING)}"
    k = Kernel(name, kc=i64, a=ptr(E, strided=True), lda=i64, b=ptr(E, strided=True), ldb=i64,
               c=ptr(T, strided=True), ldc=i64, cols=i64, alpha=T, beta=T,
               ahead=ptr(i8 if A == "packed" else T), ahead_step=i64, **more)
    kc, a, lda, b, ldb, c, ldc, cols, alpha, beta, ahead, ahead_step, *before = k.args
    c = c.view(ldc, 1)
    row_of_a = _rows_in_place(k, a, lda, MR) if A == "rows" else None
    step_a, step_b = {"packed": MR, "columns": lda, "rows": 1}[A], NR if B == "packed" else ldb
    masks = [k.lanes_below(cols - j*V, V) for j in range(NV)]
    tile = accumulators(k, dtype, T, MR, NV, V, SEMIRING)
    b = tile.start(b, align)
    # one pointer for each vector of a row: LLVM would load an element once, for all of them
    panels = [k.opaque(a) for _ in range(NV)] if A == "packed" and tile.broadcasts(target) else [a]

    def rank1(p: Value) -> None:                        # C's tile += A[:, p] * B[p, :]
        b_row, index = b + p*step_b, tile.index(p, before)
        if A != "packed":
            for j in range(0, NR, 64 // T.bytes):
                k.prefetch(b_row + (NR + j))
                k.prefetch(ahead + (p*ahead_step + j), locality=2)
        b_reg = [tile.lanes(k.load(b_row + j*V, vec(E, V), align, masks[j] if B == "masked" else None))
                 for j in range(NV)]
        for i in range(MR):
            a_reg = [tile.lanes(k.broadcast(row_of_a(i)[p] if row_of_a else panel[p*step_a + i], V))
                     for panel in panels]
            for j in range(NV):
                tile.add(i, j, a_reg[j % len(panels)], b_reg[j], index)

    steps: Value | int = 0                              # of PACE steps of k
    if A == "packed":
        steps = kc // PACE
        with k.when(steps < MR + LEAD):         # too few to ask for this tile in time: for the one below, which is next
            for i, j in product(range(MR), range(0, NR, 64 // T.bytes)):
                k.prefetch(c.at(MR + i, j), write=True, locality=2)
        last = k.max(steps - (MR + LEAD), 0)            # row of `ahead`, before those of C
        with k.loop(steps) as s:
            _prefetch(k, s, last, (ahead, ahead_step), (c, ldc), NR * T.bytes, dtype)
            if unrolled(MR, NV, dtype, SEMIRING):
                for u in range(PACE):
                    rank1(s*PACE + u)
            else:
                with k.loop(s*PACE + PACE, s*PACE) as p:
                    rank1(p)
    with k.loop(kc, steps*PACE) as p:
        rank1(p)
    tile.store(c, ldc, cols, alpha, beta, masks)
    return k.function


def _prefetch(k: Kernel, s: Value, last: Value, ahead: tuple[Value, Value], c: tuple[Value, Value], BYTES: int,
              dtype: str) -> None:
    """Row s of `ahead`, up to the last, and then of C: of BYTES each, which of words are as many rows of `ahead`."""
    PARTS = PACKED_WORDS.get(dtype, 1)
    RUN = BYTES // PARTS
    row_of_c = (c[0] + (s - last)*c[1]).as_(i8)
    for part in range(PARTS):
        row = k.select(s < last, ahead[0] + (s*PARTS + part)*ahead[1], row_of_c + part*RUN)
        for j in (*range(0, RUN, 64), RUN - 1):
            k.prefetch(row + j, locality=2)


def _rows_in_place(k: Kernel, a: Value, lda: Value, MR: int):
    """Row i of A as a pointer that costs no integer work per access: one base for four rows, which x86 reaches as
    base, base + lda, base + 2*lda and base + lda3. LLVM would otherwise keep MR pointers and spill them."""
    bases = [k.opaque(a + lda*i) for i in range(0, MR, 4)]
    lda1, lda3 = k.opaque(lda), k.opaque(lda*3)
    offsets = [0, lda1, lda1*2, lda3]
    return lambda i: bases[i // 4] + offsets[i % 4]
