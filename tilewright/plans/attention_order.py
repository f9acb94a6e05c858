"""Which tiles of queries run together, of attention's kernels for GPUs (kernels/gpu/attention_work.Order): sections of
pairs of a sequence and a head, in each of which the tiles that see most keys come first."""
from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.attention_problem import Attention

SECTION_BYTES = 24 << 20    # of L2, for what the CTAs of a section read again and again
BEGIN = 128                 # keys, for which a tile takes as long as to begin and end
IDLE = 1.04                 # what CTAs may take of the time without idle ones
TRIED, LOOKED_AT = (4, 64), 300_000     # sections that are tried; tiles that are looked at for them


def section(p: Attention, pairs: int, rows: int, ctas: int) -> int:
    """Pairs of a sequence and a head (packed: kv head) whose `rows` tiles each are taken together. Without a band each
    is by itself. Else as many as leave CTAs the least without work, of those whose keys and values L2 holds; all where
    these leave too much."""
    if not p.band or p.ragged or rows < 2 or not p.keys:
        return 1
    lengths = _lengths(p, rows)
    bytes_of_head = p.keys * (p.size + p.value_size) * (1 if p.kv == "e4m3fn" else 2) * p.sequences*p.kv_heads / pairs
    most = int(max(min(SECTION_BYTES // bytes_of_head, pairs), 1))
    tried = np.unique(np.linspace(1, most, min(np.clip(LOOKED_AT // (rows*pairs), *TRIED), most)).astype(int))
    least, best = min((_busiest(lengths, pairs, int(n), ctas), -int(n)) for n in tried)
    return -best if least < IDLE * lengths.sum() * pairs / ctas else pairs


def _lengths(p: Attention, rows: int) -> NDArray[np.float64]:
    """What the tiles of a pair take, the last one first: keys."""
    rows_of_tile, shift = -(-p.queries // rows), 0 if p.upper else p.keys - p.queries
    first = np.arange(rows)[::-1] * rows_of_tile + shift
    end = np.clip(first + rows_of_tile + (p.keys if p.after is None else p.after), 0, p.keys)
    begin = np.clip(first - (first.max() + p.keys if p.before is None else p.before), 0, p.keys)
    return np.maximum(end - begin, 0) + float(BEGIN)


def _busiest(lengths: NDArray[np.float64], pairs: int, together: int, ctas: int) -> float:
    """What the CTA with most takes, each round of them in the opposite order of the one before."""
    full, rest = divmod(pairs, together)
    order = np.concatenate([np.tile(lengths.repeat(together), full), lengths.repeat(rest)])
    order = np.pad(order, (0, -len(order) % ctas)).reshape(-1, ctas)
    order[1::2] = order[1::2, ::-1]
    return float(order.sum(0).max())
