"""Packing complex operands so that one real product multiplies them: the 1m method (F. G. Van Zee, "Implementing
High-Performance Complex Matrix Multiplication via the 1m Method", SIAM J. Sci. Comput. 42, 2020).

A complex matrix C with contiguous rows is, as it lies, a real one of 2n columns, A one of 2k columns, and

    [cr ci] = [ar ai] @ [ br bi]
                        [-bi br]

so that A's panel has the real parts of a column in one step of k and the imaginary parts in the next, and B's panel has
every row of B twice. Conjugating an operand changes signs of the latter only. Everything else is the real product's.
"""
from __future__ import annotations

from tilewright.ir import Function, Kernel, Value, i64, ptr, vec
from tilewright.kernels.cpu.jobs import complex_packing_name
from tilewright.kernels.cpu.microkernel import TYPES
from tilewright.kernels.cpu.packing import AHEAD, transpose
from tilewright.targets.cpu import CpuTarget


def emit_pack_complex(target: CpuTarget, dtype: str, WIDTH: int, KIND: str, ROLE: str, CONJ: str = "") -> Function:
    """Pack `valid` <= width <= WIDTH lines of kc reals; as in packing.py, but that step_i and step_p lead from one
    complex number to the next, in reals, and are 2 where these are contiguous.

    ROLE    "a": a line is a row of A. Where A's rows are contiguous, the panel is that of a real matrix: packing.py's.
            "b": two lines are a column of B, its real and its imaginary part
    CONJ    which of the operands are conjugated: "", "a", "b" or "ab". All of that is done here in B's panel.
    """
    T = TYPES[dtype]
    V = target.lanes(T.bytes)
    GROUPS, HALF, VT = -(-WIDTH // V), V // 2, vec(T, V)
    k = Kernel(complex_packing_name(dtype, WIDTH, KIND, ROLE, CONJ), kc=i64, width=i64, valid=i64,
               source=ptr(T, strided=True), step_i=i64, step_p=i64, dst=ptr(T))
    kc, width, valid, source, step_i, step_p, dst = k.args
    source, dst, steps = source.view(step_i, step_p), dst.view(width, 1), kc // 2
    SIGN_A, SIGN_B = (-1 if x in CONJ else 1 for x in "ab")

    def rows_of_a(x: Value, y: Value) -> list[Value]:
        """The real and the imaginary parts of two vectors of complex numbers."""
        return [k.shuffle(x, y, range(part, 2*V, 2)) for part in range(2)]

    def rows_of_b(x: Value) -> list[Value]:
        """(br, bi) and (-bi, br) of a vector of complex numbers."""
        minus = k.constant(VT, -0.0) - x

        def taken(e: int, sign: int) -> int: return e if sign > 0 else V + e
        first = [taken(e, SIGN_B if e % 2 else 1) for e in range(V)]
        second = [taken(e ^ 1, SIGN_A if e % 2 else -SIGN_A*SIGN_B) for e in range(V)]
        return [k.shuffle(x, minus, first), k.shuffle(x, minus, second)]

    def store(p: Value, pairs: list[list[Value]], g: int) -> None:
        """Both steps of these groups, the first one first: what it writes past its row, the second writes over."""
        for step in range(2):
            for index, pair in enumerate(pairs):
                k.store(dst.at(p*2 + step, (g + index)*V), pair[step], T.bytes)

    def number_by_number(start: Value | int) -> None:
        with k.loop(steps, start) as p:
            if ROLE == "a":
                with k.loop(valid) as i:
                    for part in range(2):
                        dst[p*2 + part, i] = k.load(source.at(i, p) + part)
            else:
                with k.loop(valid // 2) as j:
                    re, im = (k.load(source.at(j, p) + part) for part in range(2))
                    minus_re, minus_im = (k.constant(T, -0.0) - x for x in (re, im))
                    dst[p*2, j*2], dst[p*2, j*2 + 1] = re, im if SIGN_B > 0 else minus_im
                    dst[p*2 + 1, j*2] = minus_im if SIGN_A*SIGN_B > 0 else im
                    dst[p*2 + 1, j*2 + 1] = re if SIGN_A > 0 else minus_re

    if KIND == "across":
        row = source.view(1, step_p)
        reals = valid*2 if ROLE == "a" else valid               # of a row of the source
        each = 2*V if ROLE == "a" else V                        # of them that become a group
        masks = {start: k.lanes_below(reals - start, V) for start in range(0, GROUPS * each, V)}
        with k.loop(steps) as p:
            found = []
            for g in range(GROUPS):
                read = [k.load(row.at(start, p), VT, T.bytes, masks[start]) for start in range(g*each, (g + 1)*each, V)]
                found.append(rows_of_a(*read) if ROLE == "a" else rows_of_b(*read))
            store(p, found, 0)
    elif KIND == "along":
        assert ROLE == "b", "rows of A that are contiguous are packed as reals"
        last, lines = valid // 2 - 1, source.view(step_i, 2)
        starts = [lines.at(k.min(last, j), 0) for j in range(GROUPS * HALF)]
        blocks = steps // HALF * HALF
        with k.loop(blocks, step=HALF) as p:
            for start in starts:
                k.prefetch(start + p*2 + AHEAD // T.bytes)
            for g in reversed(range(GROUPS)):                   # as in packing.py
                loaded = [k.load(start + p*2, VT, T.bytes) for start in starts[g*HALF:(g + 1)*HALF]]
                for q, x in enumerate(transpose(k, loaded, 2)):
                    store(p + q, [rows_of_b(x)], g)
        number_by_number(blocks)
    else:
        number_by_number(0)
    return k.function
