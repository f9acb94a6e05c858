"""xLSTM as block programs: mLSTM chunk by chunk, and sLSTM's recurrence. `python examples/xlstm.py [--torch]`

mLSTM (https://arxiv.org/abs/2405.04517) has a matrix C and a vector n for a memory, an exponential input gate i and a
forget gate f = sigmoid. With a level m that keeps exponentials in range, token by token:

    t = max(log f + m, i);  C = exp(log f + m - t) C + exp(i - t) k v^T;  n likewise with k;  m = t
    h = C^T q / max(|n.q|, exp(-m))                                         q scaled by 1 / sqrt(size)

`emit_mlstm` computes CHUNK tokens at a time by products. It is the rule of online softmax (docs/attention.md): sums
relative to a level are right for a higher one once multiplied by exp(old - new). B are sums of log f in the chunk:

    D[r, s] = B[r] - B[s] + i[s] for s <= r;  level[r] = max(B[r] + m, max over s of D[r, s])
    P = (Q K^T) exp(D - level);  H = P V + exp(B + m - level) Q C, and its divisor the same with ones in place of V

sLSTM has gates that read its last output, h W, so that tokens go one after the other; a batch and four products of the
step are what a program has to do at a time (`emit_slstm`).
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


def emit_mlstm(target=None, CHUNK=32, D=64, BLOCK_V=64, T=f32, NUM_WARPS=4):
    """A program computes BLOCK_V columns of a head's values: grid (value size / BLOCK_V, heads). q, k [heads, tokens,
    D], v, h [heads, tokens, values]; i and f [heads, tokens] in f32, before exp and sigmoid."""
    p = Program("mlstm", target, num_warps=NUM_WARPS, h_ptr=ptr(f32), q_ptr=ptr(T), k_ptr=ptr(T), v_ptr=ptr(T),
                i_ptr=ptr(f32), f_ptr=ptr(f32), tokens=i32, values=i32, scale=f32)
    h_ptr, q_ptr, k_ptr, v_ptr, i_ptr, f_ptr, tokens, values, scale = p.args
    values = p.multiple_of(values, BLOCK_V)
    head = p.program_id(1)
    rows, cols, d = p.arange(0, CHUNK), p.arange(0, CHUNK), p.arange(0, D)
    c = p.program_id(0) * BLOCK_V + p.arange(0, BLOCK_V)
    q_ptr += head * tokens * D
    k_ptr += head * tokens * D
    v_ptr += head * tokens * values
    h_ptr += head * tokens * values
    i_ptr += head * tokens
    f_ptr += head * tokens
    lower = cols[None, :] <= rows[:, None]
    C, n, m = p.zeros((D, BLOCK_V)), p.zeros((D,)), p.full((), -np.inf)
    for start in p.range(0, tokens, CHUNK):
        inside, across = start + rows < tokens, start + cols < tokens
        q = p.load(q_ptr + (start + rows)[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
        kt = p.load(k_ptr + (start + cols)[None, :] * D + d[:, None], mask=across[None, :], other=0.0)
        v = p.load(v_ptr + (start + rows)[:, None] * values + c[None, :], mask=inside[:, None], other=0.0)
        by_row = log_sigmoid(p, p.load(f_ptr + start + rows, mask=inside, other=0.0), inside)
        by_column = log_sigmoid(p, p.load(f_ptr + start + cols, mask=across, other=0.0), across)
        gate = p.load(i_ptr + start + cols, mask=across, other=-np.inf)
        B = p.sum(p.where(lower, by_column[None, :], 0.0), axis=1)
        B_column = p.sum(p.where(rows[:, None] <= cols[None, :], by_row[:, None], 0.0), axis=0)
        end = p.sum(by_row)
        D_ = p.where(lower, B[:, None] - B_column[None, :] + gate[None, :], -np.inf)
        level = p.maximum(B + m, p.max(D_, axis=1))
        before = p.exp(B + m - level)                                   # what weight the past has
        P = p.dot(q, kt) * scale * p.exp(D_ - level[:, None])
        total = p.sum(P, axis=1) + before * scale * p.sum(q.to(f32) * n[None, :], axis=1)
        H = p.dot(P.to(T), v, p.dot(q, C.to(T)) * (before * scale)[:, None])
        divisor = p.maximum(p.abs(total), p.exp(-level))
        p.store(h_ptr + (start + rows)[:, None] * values + c[None, :], H * (1.0 / divisor)[:, None],
                mask=inside[:, None])
        weights = end - B_column + gate
        last = p.maximum(end + m, p.max(weights))
        weighted = kt.to(f32) * p.exp(weights - last)[None, :]
        C = p.dot(weighted.to(T), v, C * p.exp(end + m - last))
        n = n * p.exp(end + m - last) + p.sum(weighted, axis=1)
        m = last
    return p.function


def log_sigmoid(p, x, inside):
    """log(sigmoid(x)), and 0 behind the end."""
    return p.where(inside, p.minimum(x, 0.0) - p.log(1.0 + p.exp(-p.abs(x))), 0.0)


def emit_slstm(target=None, BATCH=16, D=64, T=f32, NUM_WARPS=4):
    """A program computes BATCH sequences of a head: grid (batch / BATCH, heads). x [tokens, 4, heads, batch, D] is what
    the gates z, i, f, o get from the input, W [heads, 4, D, D] what they get from h; out [tokens, heads, batch, D]."""
    p = Program("slstm", target, num_warps=NUM_WARPS, out_ptr=ptr(f32), x_ptr=ptr(f32), w_ptr=ptr(T), tokens=i32,
                heads=i32, batch=i32)
    out_ptr, x_ptr, w_ptr, tokens, heads, batch = p.args
    head = p.program_id(1)
    rows, d = p.program_id(0) * BATCH + p.arange(0, BATCH), p.arange(0, D)
    square = p.arange(0, D)[:, None] * D + d[None, :]
    w_ptr += head * 4 * D * D
    wz, wi, wf, wo = (p.load(w_ptr + gate * D * D + square) for gate in range(4))
    h, c, n, m = (p.zeros((BATCH, D)) for _ in range(4))
    at, inside = rows[:, None] * D + d[None, :], (rows < batch)[:, None]
    for t in p.range(0, tokens, 1):
        x = x_ptr + (t * 4 * heads + head) * batch * D
        own, gate = h.to(T), heads * batch * D
        z = p.tanh(p.dot(own, wz, p.load(x + at, mask=inside, other=0.0)))
        i = p.dot(own, wi, p.load(x + gate + at, mask=inside, other=0.0))
        f = p.dot(own, wf, p.load(x + gate * 2 + at, mask=inside, other=0.0))
        o = p.dot(own, wo, p.load(x + gate * 3 + at, mask=inside, other=0.0))
        log_f = p.minimum(f, 0.0) - p.log(1.0 + p.exp(-p.abs(f)))
        level = p.maximum(log_f + m, i)
        keep, add = p.exp(log_f + m - level), p.exp(i - level)
        c = keep * c + add * z
        n = keep * n + add
        m = level
        h = c / (n * (1.0 + p.exp(-o)))
        p.store(out_ptr + (t * heads + head) * batch * D + at, h, mask=inside)
    return p.function


def mlstm_recurrence(q, k, v, i, f):
    """mLSTM token by token in float64."""
    q, k, v, i, f = (np.asarray(x, np.float64) for x in (q, k, v, i, f))
    heads, tokens, size = q.shape
    C, n, m = np.zeros((heads, size, v.shape[-1])), np.zeros((heads, size)), np.full(heads, -np.inf)
    h, log_f = np.empty(v.shape), -np.logaddexp(0, -f)
    for t in range(tokens):
        level = np.maximum(log_f[:, t] + m, i[:, t])
        keep, add = np.exp(log_f[:, t] + m - level), np.exp(i[:, t] - level)
        C = keep[:, None, None] * C + add[:, None, None] * np.einsum("hd,hc->hdc", k[:, t], v[:, t])
        n = keep[:, None] * n + add[:, None] * k[:, t]
        m = level
        y = q[:, t] / np.sqrt(size)
        divisor = np.maximum(np.abs((n * y).sum(-1)), np.exp(-m))
        h[:, t] = np.einsum("hdc,hd->hc", C, y) / divisor[:, None]
    return h


def slstm_recurrence(x, w):
    """sLSTM token by token in float64: outputs [tokens, heads, batch, D]."""
    x, w = np.asarray(x, np.float64), np.asarray(w, np.float64)
    h, c, n, m = (np.zeros(x.shape[2:]) for _ in range(4))
    out = np.empty((len(x), *h.shape))
    for t in range(len(x)):
        z, i, f, o = x[t] + np.einsum("hbd,hgde->ghbe", h, w)
        log_f = -np.logaddexp(0, -f)
        level = np.maximum(log_f + m, i)
        keep, add = np.exp(log_f + m - level), np.exp(i - level)
        c, n, m = keep * c + add * np.tanh(z), keep * n + add, level
        out[t] = h = c / n / (1 + np.exp(-o))
    return out


def mlstm_numbers(heads, tokens, size, values, seed=0):
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((2, heads, tokens, size), np.float32)
    v = rng.standard_normal((heads, tokens, values), np.float32)
    i, f = rng.standard_normal((2, heads, tokens), np.float32) * 2
    return q, k, v, i, f + 3


def slstm_numbers(tokens, heads, batch, size, seed=0):
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((heads, 4, size, size), np.float32) / np.float32(np.sqrt(size))
    return rng.standard_normal((tokens, 4, heads, batch, size), np.float32), w


recorded_mlstm, recorded_slstm = cache(emit_mlstm), cache(emit_slstm)


def mlstm(q, k, v, i, f, **constants):
    """Outputs [heads, tokens, values] on this CPU; value sizes are multiples of BLOCK_V, sizes powers of 2 from 16."""
    heads, tokens, values = v.shape
    constants = {"D": q.shape[-1], "BLOCK_V": min(values, 64)} | constants
    h = np.empty(v.shape, np.float32)
    run(recorded_mlstm(**constants), h, q, k, v, i, f, tokens, values, q.shape[-1]**-0.5,
        grid=(values // constants["BLOCK_V"], heads))
    return h


def slstm(x, w, BATCH=16):
    """Outputs [tokens, heads, batch, D] on this CPU; D is a power of two from 16."""
    tokens, _, heads, batch, size = x.shape
    out = np.empty((tokens, heads, batch, size), np.float32)
    run(recorded_slstm(None, BATCH, size), out, x, w, tokens, heads, batch, grid=(-(-batch // BATCH), heads))
    return out


def mlstm_in_torch(q, k, v, i, f):
    """The parallel form as one writes it in torch: all scores of a head at a time; f32."""
    import torch

    q, k, v, i, f = (torch.from_numpy(x) for x in (q, k, v, i, f))
    B = torch.nn.functional.logsigmoid(f).cumsum(1)
    D = (B[:, :, None] - B[:, None] + i[:, None]).masked_fill(~torch.ones(2 * q.shape[1:2]).tril().bool(), -torch.inf)
    level = D.amax(-1, keepdim=True)
    P = q @ k.transpose(1, 2) * q.shape[-1]**-0.5 * torch.exp(D - level)
    return P @ v / torch.maximum(P.sum(-1, keepdim=True).abs(), torch.exp(-level))


def slstm_in_torch(x, w):
    """The recurrence as one writes it in torch; f32."""
    import torch

    x, w = torch.from_numpy(x), torch.from_numpy(w)
    h, c, n, m = (torch.zeros(x.shape[2:]) for _ in range(4))
    out = torch.empty((len(x), *h.shape))
    for t in range(len(x)):
        z, i, f, o = x[t] + torch.einsum("hbd,hgde->ghbe", h, w)
        log_f = torch.nn.functional.logsigmoid(f)
        level = torch.maximum(log_f + m, i)
        keep, add = torch.exp(log_f + m - level), torch.exp(i - level)
        c, n, m = keep * c + add * torch.tanh(z), keep * n + add, level
        out[t] = h = c / n * torch.sigmoid(o)
    return out


def milliseconds(function, *args):
    times = []
    for _ in range(5):
        start = perf_counter()
        function(*args)
        times.append(perf_counter() - start)
    return 1e3 * sorted(times)[2]


def simulated(name, target, T=f32, tokens=40, size=32):
    """The error of "mlstm" or "slstm" beside the recurrence in the simulator of a target, and its report."""
    given = mlstm_numbers(1, tokens, size, size) if name == "mlstm" else slstm_numbers(3, 1, 5, size)
    wide = given[:3] if name == "mlstm" else given[1:]
    narrow = [x.astype(T.numpy) if T != f32 and any(x is y for y in wide) else x for x in given]
    if name == "mlstm":
        exact, function = mlstm_recurrence(*narrow), emit_mlstm(target, 16, size, size, T)
        rest, grid = (tokens, size, size**-0.5), (1, 1)
    else:
        exact, function, rest, grid = slstm_recurrence(*narrow), emit_slstm(target, 16, size, T), (3, 1, 5), (1, 1)
    out = np.full(exact.shape, np.nan, np.float32)
    report = simulator.run(function, out, *narrow, *rest, grid=grid)
    return np.abs(out - exact).max() / np.abs(exact).max(), report


def main(heads=4, tokens=1000, size=64, batch=16):
    cases = [("mLSTM", mlstm, mlstm_recurrence, mlstm_in_torch, mlstm_numbers(heads, tokens, size, size)),
             ("sLSTM", slstm, slstm_recurrence, slstm_in_torch, slstm_numbers(tokens, heads, batch, size))]
    errors = []
    for name, function, recurrence, in_torch, given in cases:
        exact = recurrence(*given)
        errors.append(np.abs(function(*given) - exact).max() / np.abs(exact).max())
        line = f"{name}, {heads} heads, {tokens} tokens: {errors[-1]:.1e} of the largest from float64, "
        line += f"{milliseconds(function, *given):.3g} ms"
        if "--torch" in sys.argv:
            import torch

            torch.set_num_threads(1)
            line += f", in torch {milliseconds(in_torch, *given):.3g} ms"
        print(line)
    return errors


if __name__ == "__main__":
    main()
