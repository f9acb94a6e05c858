"""The two short kernels of attention's gradients on Hopper, before and after the main one (attention_backward.py)."""
from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from tilewright.atoms.wgmma import M
from tilewright.ir import Function, Kernel, Value, f32, i32, i64, ptr, vec
from tilewright.kernels.gpu.attention_result import LOG2E, TYPES
from tilewright.kernels.narrow import memory_type
from tilewright.kernels.nvidia.attention_backward_tiles import (
    SLAB,
    SLAB_FLOATS,
    BackwardSizes,
    Sequence,
    distances,
    parameters,
    row_of,
    sequence,
    tile_of,
)
from tilewright.kernels.nvidia.attention_result import transposed
from tilewright.plans.nvidia_attention_backward import BackwardPlan, BackwardShape

THREADS = 256                   # of the first kernel
ROWS_AT_ONCE = 4                # of a warp there


def _own(k: Kernel, g: SimpleNamespace, s: BackwardSizes) -> tuple[Sequence, Value, Value, Value]:
    """The sequence of a CTA with a tile of queries, the sequence's place in arrays, the head, the tile."""
    tile, head = k.block[0], k.block[1]
    if not s.shape.ragged:
        return sequence(k, g, s, k.block_z), k.block_z, head, tile
    number, tile = tile_of(k, g, g.q_offsets, tile, s.QUERIES)
    return sequence(k, g, s, number), k.constant(i32, 0), head, tile


def emit_rows(SHAPE: BackwardShape, PLAN: BackwardPlan, BY_LSE: bool = False, WARP: int = 32) -> Function:
    """Before the main kernel: of each query -delta = gradient of lse - sum of (gradient of the result) * result, and
    lse in powers of 2, inf where the query sees nothing or is none; sums, counters and the ticket become 0.

    Parameters: out and g, the result and its gradient, with `distances`; lse, with lse_head and lse_batch, and BY_LSE
    its gradient by_lse the same; rows, 2*M f32 of each tile of M queries; sums, M*size; with order `counters`, one for
    each tile, and `ticket`; and `parameters`. Grid: tiles of a head (ragged: `Sequence.of_head`), heads, sequences (1).
    """
    s, T = BackwardSizes(SHAPE, PLAN), memory_type(SHAPE.format)
    more: dict[str, Any] = {"by_lse": ptr(f32), "by_lse_head": i64, "by_lse_batch": i64} if BY_LSE else {}
    more |= {"counters": ptr(i32), "ticket": ptr(i32)} if SHAPE.ordered else {}
    k = Kernel(f"attention_rows_{SHAPE.name}_{PLAN.name}{'_lse' * BY_LSE}", threads=THREADS, noalias=False, out=ptr(T),
               g=ptr(T), **distances("out", "g"), lse=ptr(f32), lse_head=i64, lse_batch=i64, rows=ptr(f32),
               sums=ptr(f32), **parameters(SHAPE), **more)
    g = SimpleNamespace(**dict(k.function.params))
    t = k.thread[0]
    own, batch, head, tile = _own(k, g, s)
    place, warp, lane = own.place(head, tile), k.uniform(t // WARP), t % WARP
    if SHAPE.ordered:
        with k.when((t == 0) & (k.block[0] + k.block[1] + k.block_z == 0)):
            g.ticket[0] = 0
    with k.when(tile*s.QUERIES < own.queries):
        sums = g.sums + k.cast(place, i64)*(s.SLABS*SLAB_FLOATS) + t*4
        for first in range(0, s.SLABS*SLAB_FLOATS, THREADS*4):
            k.store(sums + first, k.broadcast(k.constant(f32, 0), 4))
        if SHAPE.ordered:
            with k.when(t == 0):
                g.counters[place] = 0
        with k.loop(s.QUERIES, start=warp*ROWS_AT_ONCE, step=THREADS // WARP * ROWS_AT_ONCE, unroll=False) as row:
            _row_sums(k, g, s, own, batch, head, tile*s.QUERIES, row, g.rows + k.cast(place, i64)*s.ROWS, lane)
    return k.function


def _row_sums(k: Kernel, g: Any, s: BackwardSizes, own: Sequence, batch: Value, head: Value, i0: Value, row: Value,
              rows: Value, lane: Value) -> None:
    """A few rows of a warp."""
    T, wide = TYPES[s.shape.format], s.shape.value_size
    pairs = []
    for ahead in range(ROWS_AT_ONCE):
        i = i0 + row + ahead
        out, grad = (row_of(k, g, name, own.q0 + i, head, batch) + lane*2 for name in ("out", "g"))
        for column in range(0, wide, 64):
            inside = i < own.queries
            if column + 64 > wide:
                inside = inside & (lane*2 + column < wide)
            pairs.append([k.load(x + column, vec(T, 2), mask=inside) for x in (out, grad)])
    count = len(pairs) // ROWS_AT_ONCE
    for ahead in range(ROWS_AT_ONCE):
        i, total = i0 + row + ahead, k.constant(f32, 0)
        for out, grad in pairs[count*ahead:count*(ahead + 1)]:
            for e in range(2):
                total = k.fma(k.cast(out[e], f32), k.cast(grad[e], f32), total)
        total, there = k.warp_sum(total), (lane == 0) & (i < own.queries)

        def number(name: str, i: Value = i, there: Value = there) -> Value:
            index = k.cast(own.q0 + i, i64) + k.cast(head, i64)*getattr(g, f"{name}_head")
            return k.load(getattr(g, name) + (index + k.cast(batch, i64)*getattr(g, f"{name}_batch")), mask=there)
        if hasattr(g, "by_lse"):
            total = total - number("by_lse")
        lse = number("lse")
        nothing = (i >= own.queries) | (lse == -math.inf)
        k.store(rows + row + ahead, k.select(nothing, math.inf, lse*LOG2E), mask=lane == 0)
        k.store(rows + row + (ahead + s.QUERIES), k.select(nothing, 0.0, -total), mask=lane == 0)


def emit_rounded(SHAPE: BackwardShape, PLAN: BackwardPlan, WARP: int = 32) -> Function:
    """After the main kernel: by_q[query, :] = scale * sums.

    Parameters: by_q with `distances`, sums, scale, and `parameters`. Grid: as of `emit_rows`.
    """
    s, T = BackwardSizes(SHAPE, PLAN), memory_type(SHAPE.format)
    k = Kernel(f"attention_rounded_{SHAPE.name}_{PLAN.name}", threads=4*WARP, by_q=ptr(T), **distances("by_q"),
               sums=ptr(f32), scale=f32, **parameters(SHAPE))
    g = SimpleNamespace(**dict(k.function.params))
    t = k.thread[0]
    own, batch, head, tile = _own(k, g, s)
    lane = t % WARP
    sums = g.sums + k.cast(own.place(head, tile), i64)*(s.SLABS*SLAB_FLOATS) + t*4
    with k.when(tile*s.QUERIES < own.queries):
        for slab in range(s.SLABS):
            block, group = divmod(slab, s.GROUPS)
            fours = [k.load(sums + (slab*SLAB_FLOATS + j*4*M*2), vec(f32, 4), align=16) for j in range(SLAB // 8)]
            for half in range(2):
                words = [k.round_pair(k.pack(x[2*half]*g.scale, x[2*half + 1]*g.scale), TYPES[SHAPE.format])
                         for x in fours]
                i = tile*s.QUERIES + (block*M + half*8) + (t // WARP * 16 + lane // 4)
                to = row_of(k, g, "by_q", own.q0 + i, head, batch) + (lane % 4 * 8 + group*SLAB)
                k.store(to.as_(i32), k.pack(*transposed(k, words, lane % 4)), align=16, mask=i < own.queries)
    return k.function
