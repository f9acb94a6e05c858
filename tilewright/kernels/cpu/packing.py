"""Packing: a panel of A or of B, from any layout, in the order in which the micro-kernel reads it.

The panel is dst[p*width + i] = source[i*step_i + p*step_p]: rows of A or columns of B run along i, and p along k. So
one emitter packs both operands. Vectors are stored whole: what one writes past its row is written over by those that
follow, and the last one reaches at most `jobs.SLACK` elements past the panel.
"""
from __future__ import annotations

from tilewright.ir import Function, Kernel, Type, Value, i64, ptr, vec
from tilewright.kernels.cpu.jobs import packing_name
from tilewright.kernels.cpu.microkernel import TYPES
from tilewright.kernels.narrow import memory_type, widened
from tilewright.targets.cpu import CpuTarget

ROWS = 32                # of lines that lie side by side, by which the prefetch runs ahead: each is in another page
AHEAD = 1024             # bytes: how far along each line its prefetch runs, over page boundaries too, and into the next
#                          panel's line where this one ends: rows of few bytes would come too late one and all


def emit_pack(target: CpuTarget, dtype: str, WIDTH: int, KIND: str, SOURCE: str = "") -> Function:
    """Pack `valid` <= width <= WIDTH lines of kc elements. SOURCE: their format, if it is another.

    KIND says what is contiguous: "across" (step_i = 1, lines lie side by side), "along" (step_p = 1, each line by
    itself), or "any". Lanes from `valid` to `width` get any values: what is computed from them is never stored.
    """
    T, S = TYPES[dtype], memory_type(SOURCE or dtype)
    V = target.lanes(T.bytes)
    GROUPS = -(-WIDTH // V)
    k = Kernel(packing_name(dtype, WIDTH, KIND, SOURCE), kc=i64, width=i64, valid=i64, source=ptr(S, strided=True),
               step_i=i64, step_p=i64, dst=ptr(T))
    kc, width, valid, source, step_i, step_p, dst = k.args
    source, dst = source.view(step_i, step_p), dst.view(width, 1)

    def read(at: Value, length: int, mask: Value | None = None) -> Value:
        return widened(k, k.load(at, vec(S, length), S.bytes, mask), SOURCE, T)

    def element_by_element(start: Value | int) -> None:
        with k.loop(kc, start) as p:
            with k.loop(valid) as i:
                dst[p, i] = read(source.at(i, p), 1)

    if KIND == "across":
        for masks, first, last in side_by_side(k, target, V, GROUPS, source, valid, step_p, kc):
            with k.loop(last, first) as p:
                row = source.view(1, step_p)
                for i in range(0, WIDTH, 64 // S.bytes):
                    k.prefetch(row.at(i, p + ROWS), locality=2)
                for g in range(GROUPS):
                    k.store(dst.at(p, g*V), read(row.at(g*V, p), V, masks[g]), T.bytes)
    elif KIND == "along":
        last, source = valid - 1, source.view(step_i, 1)
        starts = [source.at(k.min(last, i), 0) for i in range(GROUPS * V)]
        blocks = kc // V * V
        with k.loop(blocks, step=V) as p:
            coming = ahead(k, p, kc, valid*step_i, S)
            for start in starts[:WIDTH]:
                k.prefetch(start + coming)
            # one square in registers at a time; from the last to the first, since all but the last end within their row
            for g in reversed(range(GROUPS)):
                rows = [read(start + p, V) for start in starts[g*V:(g + 1)*V]]
                for q, column in enumerate(transpose(k, rows)):
                    k.store(dst.at(p + q, g*V), column, T.bytes)
        element_by_element(blocks)
    else:
        element_by_element(0)
    return k.function


def ahead(k: Kernel, p: Value, length: Value, panel: Value, S: Type) -> Value:
    """What to ask for when element p of lines of this length is read, in elements from their starts; the next panel's
    lines lie `panel` elements on."""
    there = p + k.min(length, AHEAD // S.bytes)
    return k.select(there < length, there, there - length + panel)


def side_by_side(k: Kernel, target: CpuTarget, V: int, GROUPS: int, source: Value, valid: Value, step_p: Value,
                 rows: Value) -> list[tuple[list[Value] | list[None], Value | int, Value]]:
    """How to read rows of `valid` elements as vectors: (masks, first row, row after the last).

    A chip without mask registers reads bytes and halves of words under a mask one by one: there they are read without
    one, where nothing lies past the last element or the next row begins after what is read.
    """
    masks = [k.lanes_below(valid - g*V, V) for g in range(GROUPS)]
    if target.masked or source.type.element.bits >= 32:
        return [(masks, 0, rows)]
    all_but_last = k.select(step_p >= GROUPS * V, k.max(rows - 1, 0), k.constant(i64, 0))
    bare = k.select(valid == GROUPS * V, rows, all_but_last)
    return [([None] * GROUPS, 0, bare), (masks, bare, rows)]


def transpose(k: Kernel, rows: list[Value], EACH: int = 1) -> list[Value]:
    """The columns of V vectors of V elements, each EACH numbers: at each step, blocks of half the size swap across the
    diagonal."""
    V = len(rows)
    size = V // 2
    while size:
        upper = [e if not e & size else V + e - size for e in range(V)]
        lower = [e + size if not e & size else V + e for e in range(V)]
        upper, lower = ([e*EACH + part for e in half for part in range(EACH)] for half in (upper, lower))
        for i in range(V):
            if not i & size:
                x, y = rows[i], rows[i + size]
                rows[i], rows[i + size] = k.shuffle(x, y, upper), k.shuffle(x, y, lower)
        size //= 2
    return rows
