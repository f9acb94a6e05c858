"""The first steps of the ladder of attention, as block programs: softmax(Q K^T) V of one head, size D, in f32 sums.

    naive       every query by itself: scores of a row to memory, the row's softmax, the row times V
    tiled       the two products by tiles, scores in memory between them
    online      one pass: a tile of queries keeps a level, a sum and its results, which are scaled when the level rises

q and k [n, D], v and o [n, D], s [n, n] of f32; n is a multiple of the blocks. `T` is the format of q, k, v and powers.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.blocks import Program
from tilewright.ir import Function, Type, f32, i32, ptr


def _arrays(k: Program, D: int, rows: Any, cols: Any) -> tuple[Any, Any, Any, Any]:
    """Offsets: of rows by D, of columns by D, of columns as [D, columns], and of rows by columns of scores."""
    d, n = k.arange(0, D), k.multiple_of(k.args[-1], 16)
    return (rows[:, None] * D + d[None, :], cols[:, None] * D + d[None, :], cols[None, :] * D + d[:, None],
            rows[:, None] * n + cols[None, :])


def emit_scores(target: Any, T: Type, D: int, BLOCK_M: int = 1, BLOCK_N: int = 16, NUM_WARPS: int = 4) -> Function:
    """s = q k^T / sqrt(D). Grid (n / BLOCK_N, n / BLOCK_M); with BLOCK_M = 1 without a product of blocks."""
    k = Program("scores", target, num_warps=NUM_WARPS, s=ptr(f32), q=ptr(T), k=ptr(T), n=i32)
    s, q, keys, _ = k.args
    rows, cols = k.program_id(1) * BLOCK_M + k.arange(0, BLOCK_M), k.program_id(0) * BLOCK_N + k.arange(0, BLOCK_N)
    by_row, by_column, turned, both = _arrays(k, D, rows, cols)
    if BLOCK_M > 1:
        k.store(s + both, k.dot(k.load(q + by_row), k.load(keys + turned)) * D**-0.5)
    else:
        score = k.sum(k.load(keys + by_column).to(f32) * k.load(q + by_row).to(f32), axis=1)
        k.store(s + both, (score * D**-0.5)[None, :])
    return k.function


def emit_rows(target: Any, N: int, NUM_WARPS: int = 4) -> Function:
    """A row of s becomes its softmax. Grid n; N = n is a power of two."""
    k = Program("rows", target, num_warps=NUM_WARPS, s=ptr(f32), n=i32)
    s, n = k.args
    at = s + k.program_id(0) * k.multiple_of(n, 16) + k.arange(0, N)
    x = k.load(at)
    powers = k.exp(x - k.max(x))
    k.store(at, powers * (1.0 / k.sum(powers)))
    return k.function


def emit_values(target: Any, T: Type, D: int, BLOCK_M: int = 1, BLOCK_N: int = 16, NUM_WARPS: int = 4) -> Function:
    """o = s v. Grid n / BLOCK_M; with BLOCK_M = 1 without a product of blocks."""
    k = Program("values", target, num_warps=NUM_WARPS, num_stages=1, o=ptr(f32), s=ptr(f32), v=ptr(T), n=i32)
    o, s, v, n = k.args
    rows, acc = k.program_id(0) * BLOCK_M + k.arange(0, BLOCK_M), k.zeros((BLOCK_M, D))
    for start in k.range(0, n, BLOCK_N):
        cols = start + k.arange(0, BLOCK_N)
        _, by_column, _, both = _arrays(k, D, rows, cols)
        if BLOCK_M > 1:
            acc = k.dot(k.load(s + both).to(T), k.load(v + by_column), acc)
        else:
            weights = k.load(s + k.program_id(0) * k.multiple_of(n, 16) + cols)
            acc += k.sum(weights[:, None] * k.load(v + by_column).to(f32), axis=0)[None, :]
    k.store(o + rows[:, None] * D + k.arange(0, D)[None, :], acc)
    return k.function


def emit_online(target: Any, T: Type, D: int, BLOCK_M: int = 64, BLOCK_N: int = 64, NUM_WARPS: int = 4) -> Function:
    """o in one pass over keys. Grid n / BLOCK_M."""
    k = Program("online", target, num_warps=NUM_WARPS, num_stages=1, o=ptr(f32), q=ptr(T), k=ptr(T), v=ptr(T), n=i32)
    o, q, keys, v, n = k.args
    rows = k.program_id(0) * BLOCK_M + k.arange(0, BLOCK_M)
    at = rows[:, None] * D + k.arange(0, D)[None, :]
    queries = k.load(q + at)
    level, total, acc = k.full((BLOCK_M,), -np.inf), k.zeros((BLOCK_M,)), k.zeros((BLOCK_M, D))
    for start in k.range(0, n, BLOCK_N):
        _, by_column, turned, _ = _arrays(k, D, rows, start + k.arange(0, BLOCK_N))
        scores = k.dot(queries, k.load(keys + turned)) * D**-0.5
        top = k.maximum(level, k.max(scores, axis=1))
        powers, kept = k.exp(scores - top[:, None]), k.exp(level - top)
        total = total * kept + k.sum(powers, axis=1)
        acc = k.dot(powers.to(T), k.load(v + by_column), acc * kept[:, None])
        level = top
    k.store(o + at, acc * (1.0 / total)[:, None])
    return k.function
