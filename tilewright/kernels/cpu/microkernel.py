"""The micro-kernel: an MR x NR tile of C in registers, and kc rank-1 updates of it. One emitter for every tile size.

Registers: MR*NV accumulators, NV for a row of B, one for the element of A that all lanes share; `plans.cpu` proves that
they fit. NV vectors of V lanes make NR columns. Rows of C beyond the tile do not exist (a panel has a kernel of its own
height); columns beyond it are masked.
"""
from __future__ import annotations

from typing import Any

from tilewright.ir import Function, Kernel, Tile, Value, f32, f64, i8, i32, i64, ptr, vec
from tilewright.kernels.cpu.out import Out
from tilewright.kernels.expression import Arithmetic, numbers, semiring_suffix, state_fields
from tilewright.plans.words import WORDS
from tilewright.targets.cpu import CpuTarget

PACKED_WORDS = {word.name: word.steps for word in WORDS}    # panels of which hold so many steps of k in 32 bits
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
    T, words = TYPES[dtype], dtype in PACKED_WORDS
    E = i32 if words else T                 # what panels consist of
    V = lanes or target.lanes(T.bytes)      # narrower vectors for a narrow edge
    NR, VT, VE = NV * V, vec(T, V), vec(E, V)
    FIELDS, own = state_fields(SEMIRING), semiring_suffix(SEMIRING)
    more: dict[str, Any] = {"before": i64} if FIELDS else {}
    k = Kernel(f"microkernel_{dtype}_{MR}x{NR}_{A}_{B}{own}", kc=i64, a=ptr(E, strided=True), lda=i64,
               b=ptr(E, strided=True), ldb=i64, c=ptr(T, strided=True), ldc=i64, cols=i64, alpha=T, beta=T,
               ahead=ptr(i8 if A == "packed" else T), ahead_step=i64, **more)
    kc, a, lda, b, ldb, c, ldc, cols, alpha, beta, ahead, ahead_step, *before = k.args
    c = c.view(ldc, 1)
    row_of_a = _rows_in_place(k, a, lda, MR) if A == "rows" else None
    step_a, step_b = {"packed": MR, "columns": lda, "rows": 1}[A], NR if B == "packed" else ldb
    mask = [k.lanes_below(cols - j*V, V) for j in range(NV)]
    align = VT.bytes if B == "packed" else T.bytes

    arithmetic = full_arithmetic = Arithmetic.from_text(k, T, SEMIRING)
    if dtype == "bytes":
        arithmetic = Arithmetic.from_text(k, i8, SEMIRING)
    PER = 4 if dtype == "bytes" else 1       # states in a lane of C, each of other steps of k
    multiply = {"i8x4": k.quads, "u8x4": lambda x, y, z: k.quads(y, x, z), "i16x2": k.pairs,
                "bf16x2": k.bf16_pairs}.get(dtype)
    state = tuple(k.tile(MR, NV, vec(t, V*PER), zero=not words and not SEMIRING) for t in arithmetic.types)
    acc = state[0]
    for tile, start in zip(state, arithmetic.first if SEMIRING else ()):
        for ij in tile.registers:
            tile[ij] = start
    if words and not SEMIRING:
        first = [k.load((b + j*V).as_(T), VT, align) for j in range(NV)]
        for i in range(MR):
            for j in range(NV):
                acc[i, j] = first[j]
    if words:
        b = b + NR

    def lanes_of(x: Value) -> Value:
        return x if PER == 1 else k.reinterpret(x, vec(arithmetic.T, V*PER))

    def rank1(p: Value) -> None:                        # acc += A[:, p] * B[p, :]
        b_row = b + p*step_b
        index = k.broadcast(k.cast(before[0] + p, numbers(T)["int"]), V) if arithmetic.indexed else None
        if A != "packed":
            for j in range(0, NR, 64 // T.bytes):
                k.prefetch(b_row + (NR + j))
                k.prefetch(ahead + (p*ahead_step + j), locality=2)
        b_reg = [lanes_of(k.load(b_row + j*V, VE, align, mask[j] if B == "masked" else None)) for j in range(NV)]
        for i in range(MR):
            a_reg = lanes_of(k.broadcast(row_of_a(i)[p] if row_of_a else a[p*step_a + i], V))
            for j in range(NV):
                if multiply:
                    acc[i, j] = multiply(a_reg, b_reg[j], acc[i, j])
                    continue
                now = tuple(tile[i, j] for tile in state)
                for tile, x in zip(state, arithmetic.step(a_reg, b_reg[j], now, index)):
                    tile[i, j] = x

    if A == "packed":
        PARTS = PACKED_WORDS.get(dtype, 1)
        RUN = NR * T.bytes // PARTS
        steps = kc // PACE
        to_c = k.max(steps - (MR + LEAD), 0)            # rows of `ahead` before those of C
        with k.loop(steps) as s:
            row_of_c = (c + (s - to_c)*ldc).as_(i8)
            for part in range(PARTS):
                row = k.select(s < to_c, ahead + (s*PARTS + part)*ahead_step, row_of_c + part*RUN)
                for j in (*range(0, RUN, 64), RUN - 1):
                    k.prefetch(row + j, locality=2)
            if unrolled(MR, NV, dtype, SEMIRING):
                for u in range(PACE):
                    rank1(s*PACE + u)
            else:
                with k.loop(s*PACE + PACE, s*PACE) as p:
                    rank1(p)
        with k.loop(kc, steps*PACE) as p:
            rank1(p)
    else:
        with k.loop(kc) as p:
            rank1(p)

    if FIELDS:
        _put_states(k, c, ldc // FIELDS, beta, state, arithmetic)
        return k.function

    out = Out(k, c, alpha, beta, combined=(lambda x, y: full_arithmetic.combined((x,), (y,))[0]) if SEMIRING else None)
    if PER > 1:
        acc = k.tile(MR, NV, vec(T, V), zero=False)
        for ij in acc.registers:
            acc[ij] = _of_bytes(k, state[0][ij], arithmetic)
    with k.when(alpha != 1.0):
        for i in range(MR):
            for j in range(NV):
                acc[i, j] = out.scaled(acc[i, j])

    def update(masks: list[Value] | list[None], read_c: bool) -> None:
        for i in range(MR):
            for j in range(NV):
                out.place(i, j*V).put(acc[i, j], read_c, masks[j])

    with k.when(cols == NR):
        out.cases_of_beta(lambda read_c: update([None] * NV, read_c))
    with k.otherwise():
        out.cases_of_beta(lambda read_c: update(mask, read_c))
    return k.function


def _of_bytes(k: Kernel, x: Value, arithmetic: Arithmetic) -> Value:
    """The states of four bytes that lie side by side in a lane, combined and with their sign."""
    lanes = vec(i32, x.type.length // 4)
    for shift in (16, 8):
        x, = arithmetic.combined((x,), (k.reinterpret(k.reinterpret(x, lanes) >> shift, x.type),))
    return (k.reinterpret(x, lanes) << 24) >> 24


def _put_states(k: Kernel, c: Value, width: Value, beta: Value, state: tuple[Tile, ...], arithmetic: Arithmetic
                ) -> None:
    """States into the tile at c, `width` elements from field to field; combined with those there where beta is 1."""
    def put(old: bool) -> None:
        for i, j in state[0].registers:
            values = tuple(tile[i, j] for tile in state)
            V = values[0].type.length
            places = [c.at(i, f*width + j*V).as_(t) for f, t in enumerate(arithmetic.types)]
            if old:
                values = arithmetic.combined(tuple(k.load(place, x.type, x.type.scalar.bytes)
                                                  for place, x in zip(places, values)), values)
            for place, x in zip(places, values):
                k.store(place, x, x.type.scalar.bytes)
    with k.when(beta == 0):
        put(False)
    with k.otherwise():
        put(True)


def _rows_in_place(k: Kernel, a: Value, lda: Value, MR: int):
    """Row i of A as a pointer that costs no integer work per access: one base for four rows, which x86 reaches as
    base, base + lda, base + 2*lda and base + lda3. LLVM would otherwise keep MR pointers and spill them."""
    bases = [k.opaque(a + lda*i) for i in range(0, MR, 4)]
    lda1, lda3 = k.opaque(lda), k.opaque(lda*3)
    offsets = [0, lda1, lda1*2, lda3]
    return lambda i: bases[i // 4] + offsets[i % 4]
