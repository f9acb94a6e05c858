"""Attention by NumPy in float64: the reference for every engine, and random calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.rules.attending import Asked, Attending, attending

NUMBERS = ("causal", "window", "scale", "softcap", "return_lse", "out_dtype")


def checked(q: Any, k: Any, v: Any, *, bias: Any = None, operands: Any = None, **more: Any) -> Attending:
    """The call of `tilewright.attention` with these arguments, as an engine receives it."""
    given = {"q": q, "k": k, "v": v} | {name: x for name, x in more.items() if x is not None and name not in NUMBERS}
    if isinstance(bias, np.ndarray):
        given["bias"] = bias
    given |= {f"operands[{name!r}]": np.asarray(x) for name, x in (operands or {}).items()}
    numbers = {name: more[name] for name in NUMBERS if name in more}
    return attending(given, Asked(bias=bias, operands=operands, **numbers))


def reference(call: Attending) -> tuple[np.ndarray, np.ndarray]:
    """The result and the logarithms of sums, in float64, with the shapes of the call's arrays but four axes."""
    p = call.problem
    out = np.zeros((*call.q.shape[:-1], p.value_size))
    lse = np.full(call.q.shape[:-1], -np.inf)
    for s in range(p.sequences):
        q, k, v, rows = _sequence(call, s)
        for head in range(p.heads):
            kv = head // p.group
            found = _head(call, s, head, q[head], k[kv], v[kv])
            out[rows[0], head, rows[1]], lse[rows[0], head, rows[1]] = found
    return out, lse


def expected(q: Any, k: Any, v: Any, **how: Any) -> tuple[np.ndarray, np.ndarray]:
    """The same with the caller's shapes."""
    call = checked(q, k, v, **how)
    out, lse = reference(call)
    return out.reshape(call.shape), lse.reshape(call.shape[:-1])


def _sequence(call: Attending, s: int) -> tuple[Any, Any, Any, Any]:
    """q, k, v of one sequence, [heads, tokens, size], and where its rows are."""
    p = call.problem
    place, rows = s, slice(None)
    if p.ragged:
        place, rows = 0, slice(*call.q_offsets[s:s + 2])
    q = call.q[place][:, rows]
    if p.page:
        count = int(call.lengths[s])
        pages = call.table[s, :-(-count // p.page)]
        k, v = (np.concatenate([x[page] for page in pages] or [x[0][:, :0]], 1)[:, :count] for x in (call.k, call.v))
    elif p.ragged:
        keys = slice(*call.k_offsets[s:s + 2])
        k, v = call.k[0][:, keys], call.v[0][:, keys]
    else:
        count = slice(None) if call.lengths is None else slice(int(call.lengths[s]))
        k, v = call.k[s][:, count], call.v[s][:, count]
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    if call.factors is not None:
        q, k, v = (x * factor[s].astype(np.float64)[:, None, None] for x, factor in zip((q, k, v), call.factors))
    return q, k, v, (place, rows)


def _head(call: Attending, s: int, head: int, q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    p = call.problem
    (queries, keys), shift = (q.shape[0], k.shape[0]), 0 if p.upper else k.shape[0] - q.shape[0]
    i, j = np.arange(queries)[:, None] + shift, np.arange(keys)
    with np.errstate(all="ignore"):
        scores = q @ k.T * p.scale
        if p.function is not None:
            arrays = [x[s, head, :queries, :keys] for x in call.reads]
            scores = np.broadcast_to(p.function.numbers(scores, i, j, head, arrays), scores.shape)
        hidden = np.zeros(scores.shape, bool)
        if p.before is not None:
            hidden |= j < i - p.before
        if p.after is not None:
            hidden |= j > i + p.after
        scores = np.where(hidden, -np.inf, scores)
        logits = scores if call.sinks is None else np.concatenate(
            [scores, np.full((queries, 1), float(call.sinks[head]))], 1)
        largest = logits.max(1, initial=-np.inf)
        powers = np.exp(logits - np.where(largest == -np.inf, 0, largest)[:, None])
        total = powers.sum(1)
        out = powers[:, :keys] @ v / np.where(total == 0, 1, total)[:, None]
        return out, np.where(total == 0, -np.inf, largest + np.log(total))


def gradients_of(call: Attending, by_out: np.ndarray, by_lse: np.ndarray | None = None,
                 result: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
    """The gradients by q, k and v in float64, of calls without score functions, with the shapes of the call's arrays.

    result: the call's as an engine rounded it, of which gradients are computed. Where powers of few keys are nearly 1
    and 0, slopes P*(g v - g out) are small differences of large numbers, which change by |g| times its rounding.
    """
    p = call.problem
    found = tuple(np.zeros(x.shape) for x in (call.q, call.k, call.v))
    for s in range(p.sequences):
        q, k, v, (place, rows) = _sequence(call, s)
        keys = slice(*call.k_offsets[s:s + 2]) if p.ragged else slice(None)
        for head in range(p.heads):
            kv = head // p.group
            out, lse = _head(call, s, head, q[head], k[kv], v[kv])
            g = by_out[place][head, rows].astype(np.float64)
            scores, seen = _seen(p, q[head], k[kv])
            seen &= (lse > -np.inf)[:, None]
            powers = np.where(seen, np.exp(scores - np.where(lse > -np.inf, lse, 0)[:, None]), 0)
            delta = (g * (out if result is None else result[place][head, rows].astype(np.float64))).sum(1)
            if by_lse is not None:
                delta = delta - by_lse[place][head, rows]
            slopes = powers * (g @ v[kv].T - delta[:, None]) * p.scale
            for x, y in zip(found, (slopes @ k[kv], slopes.T @ q[head], powers.T @ g)):
                x[place, kv if x is not found[0] else head, rows if x is found[0] else keys] += y
    return found


def _seen(p: Any, q: Any, k: Any) -> tuple[Any, Any]:
    """Scores of a head, and which keys each query sees."""
    i, j = np.arange(len(q))[:, None] + (0 if p.upper else len(k) - len(q)), np.arange(len(k))
    seen = np.ones((len(q), len(k)), bool)
    if p.before is not None:
        seen &= j >= i - p.before
    if p.after is not None:
        seen &= j <= i + p.after
    return q @ k.T * p.scale, seen
