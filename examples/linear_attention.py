"""Linear attention as a block program: the gated delta rule, chunk by chunk. `python examples/linear_attention.py`

A head has a matrix S [size, value size] for a memory. Each token forgets a part of it, replaces what its key finds by
its value, and reads it by its query (Gated Delta Networks, https://arxiv.org/abs/2412.06464):

    S = exp(g) S;  S = S + k (beta (v - S^T k))^T;  o = S^T q          g <= 0, 0 <= beta <= 1, k of length 1

`recurrence` says just that. `emit_gated_delta` computes CHUNK tokens at a time by products. With G the sums of g in the
chunk, what the tokens write, U = beta (v - S^T k), is the solution of a triangular system, I + A times U = R:

    A[r, s] = beta[r] exp(G[r] - G[s]) k[r].k[s] for s < r              R = beta (V - exp(G) K S)
    O = exp(G) Q S + (exp(G[r] - G[s]) q[r].k[s] for s <= r) U          S = exp(G_end) S + (exp(G_end - G) K)^T U
"""
from __future__ import annotations

import sys
from functools import cache
from time import perf_counter

import numpy as np

from tilewright import simulator
from tilewright.blocks import Program
from tilewright.ir import f32, i32, ptr
from tilewright.runtime.run import run


def emit_gated_delta(target=None, CHUNK=16, D=64, BLOCK_V=64, T=f32, NUM_WARPS=4):
    """A program computes BLOCK_V columns of a head's values: grid (value size / BLOCK_V, heads). q, k [heads, tokens,
    D], v, o [heads, tokens, values], g, beta [heads, tokens] in f32. Products take operands in T, and add up in f32."""
    p = Program("gated_delta", target, num_warps=NUM_WARPS, o_ptr=ptr(f32), q_ptr=ptr(T), k_ptr=ptr(T), v_ptr=ptr(T),
                g_ptr=ptr(f32), beta_ptr=ptr(f32), tokens=i32, values=i32)
    o_ptr, q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, tokens, values = p.args
    values = p.multiple_of(values, BLOCK_V)
    head = p.program_id(1)
    rows, cols, d = p.arange(0, CHUNK), p.arange(0, CHUNK), p.arange(0, D)
    c = p.program_id(0) * BLOCK_V + p.arange(0, BLOCK_V)
    q_ptr += head * tokens * D
    k_ptr += head * tokens * D
    v_ptr += head * tokens * values
    o_ptr += head * tokens * values
    g_ptr += head * tokens
    beta_ptr += head * tokens
    lower, strict = cols[None, :] <= rows[:, None], cols[None, :] < rows[:, None]
    unit = p.where(cols[None, :] == rows[:, None], p.full((CHUNK, CHUNK), 1.0), 0.0)
    S = p.zeros((D, BLOCK_V))
    for start in p.range(0, tokens, CHUNK):
        inside, across = start + rows < tokens, start + cols < tokens   # zeros behind the end change nothing
        at = (start + rows)[:, None] * D + d[None, :]
        q = p.load(q_ptr + at, mask=inside[:, None], other=0.0)
        k = p.load(k_ptr + at, mask=inside[:, None], other=0.0)
        kt = p.load(k_ptr + (start + cols)[None, :] * D + d[:, None], mask=across[None, :], other=0.0)
        v = p.load(v_ptr + (start + rows)[:, None] * values + c[None, :], mask=inside[:, None], other=0.0).to(f32)
        beta = p.load(beta_ptr + start + rows, mask=inside, other=0.0)
        g, g_column = (p.load(g_ptr + start + x, mask=mask, other=0.0) for x, mask in ((rows, inside), (cols, across)))
        G = p.sum(p.where(rows[:, None] <= cols[None, :], g[:, None], 0.0), axis=0)     # sums up to each column
        by_row = p.sum(p.where(lower, g_column[None, :], 0.0), axis=1)
        end = p.sum(g)
        decay = p.exp(p.where(lower, by_row[:, None] - G[None, :], 0.0))

        A = p.where(strict, p.dot(k, kt) * decay * beta[:, None], 0.0)
        inverse = unit                                                  # of I + A, row by row from the top
        for r in p.range(1, CHUNK, 1):
            row = p.sum(p.where(rows[:, None] == r, A, 0.0), axis=0)
            found = p.sum(held(p, row, cols, rows) * inverse, axis=0)
            inverse = p.where(rows[:, None] == r, unit - found[None, :], inverse)
        R = (v - p.dot(k, S.to(T)) * p.exp(by_row)[:, None]) * beta[:, None]
        U = p.dot(inverse.to(T), R.to(T)).to(T)
        P = p.where(lower, p.dot(q, kt) * decay, 0.0)
        o = p.dot(P.to(T), U, p.dot(q, S.to(T)) * p.exp(by_row)[:, None])
        p.store(o_ptr + (start + rows)[:, None] * values + c[None, :], o, mask=inside[:, None])
        S = p.dot((kt.to(f32) * p.exp(end - G)[None, :]).to(T), U, S * p.exp(end))
    return p.function


def held(p, row, cols, rows):
    """A vector by columns as a block that has it by rows."""
    return p.sum(p.where(cols[None, :] == rows[:, None], row[None, :], 0.0), axis=1)[:, None]


def recurrence(q, k, v, g, beta):
    """Linear attention by its definition, token by token in float64."""
    q, k, v, g, beta = (np.asarray(x, np.float64) for x in (q, k, v, g, beta))
    heads, tokens, size = q.shape
    S, o = np.zeros((heads, size, v.shape[-1])), np.empty(v.shape)
    for t in range(tokens):
        S *= np.exp(g[:, t])[:, None, None]
        found = np.einsum("hdc,hd->hc", S, k[:, t])
        S += np.einsum("hd,hc->hdc", k[:, t], beta[:, t, None] * (v[:, t] - found))
        o[:, t] = np.einsum("hdc,hd->hc", S, q[:, t])
    return o


def numbers(heads, tokens, size, values, seed=0):
    """Queries, keys of length 1, values, logarithms of gates, and betas."""
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((2, heads, tokens, size), np.float32)
    v = rng.standard_normal((heads, tokens, values), np.float32)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    g = np.log(rng.uniform(0.8, 1.0, (heads, tokens))).astype(np.float32)
    return q, k, v, g, rng.uniform(0, 1, (heads, tokens)).astype(np.float32)


recorded = cache(emit_gated_delta)


def gated_delta(q, k, v, g, beta, **constants):
    """Outputs [heads, tokens, values] on this CPU; value sizes are multiples of BLOCK_V, sizes powers of 2 from 16."""
    heads, tokens, values = v.shape
    constants = {"D": q.shape[-1], "BLOCK_V": min(values, 64)} | constants
    o = np.empty(v.shape, np.float32)
    run(recorded(**constants), o, q, k, v, g, beta, tokens, values,
        grid=(values // constants["BLOCK_V"], heads))
    return o


def in_torch(q, k, v, g, beta):
    """The recurrence as one writes it in torch, a batch of heads at a time; f32."""
    import torch

    q, k, v, g, beta = (torch.from_numpy(x) for x in (q, k, v, g, beta))
    S, o = torch.zeros(len(q), q.shape[-1], v.shape[-1]), torch.empty(v.shape)
    decays = g.exp()
    for t in range(q.shape[1]):
        S = S * decays[:, t, None, None]
        found = (S * k[:, t, :, None]).sum(1)
        S = S + k[:, t, :, None] * (beta[:, t, None] * (v[:, t] - found))[:, None]
        o[:, t] = (S * q[:, t, :, None]).sum(1)
    return o


def milliseconds(function, *args):
    times = []
    for _ in range(5):
        start = perf_counter()
        function(*args)
        times.append(perf_counter() - start)
    return 1e3 * sorted(times)[2]


def main(heads=4, tokens=1000, size=64, values=64):
    given = numbers(heads, tokens, size, values)
    exact, o = recurrence(*given), gated_delta(*given)
    error = np.abs(o - exact).max() / np.abs(exact).max()
    print(f"gated delta rule, {heads} heads, {tokens} tokens, {size} x {values}: {error:.1e} of the largest from "
          f"float64, {milliseconds(gated_delta, *given):.3g} ms")
    if "--torch" in sys.argv:
        import torch

        torch.set_num_threads(1)
        print(f"token by token in torch: {milliseconds(in_torch, *given):.3g} ms")
    return error


def simulated(target, T=f32, heads=1, tokens=40, size=32, values=32, CHUNK=16):
    """The error beside the recurrence in the simulator of a target, and its report; no GPU is needed."""
    q, k, v, g, beta = numbers(heads, tokens, size, values)
    narrow = [x if T == f32 else x.astype(T.numpy) for x in (q, k, v)]
    o = np.full(v.shape, np.nan, np.float32)
    report = simulator.run(emit_gated_delta(target, CHUNK, size, values, T), o, *narrow, g, beta, tokens, values,
                           grid=(1, heads))
    exact = recurrence(*narrow, g, beta)
    return np.abs(o - exact).max() / np.abs(exact).max(), report


if __name__ == "__main__":
    main()
