"""Which tiles of queries a CTA of attention takes, and what of keys each of them sees: for kernels of both makers."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any, Protocol

from tilewright.ir import Kernel, Value, f32, i32, i64, ptr
from tilewright.kernels.gpu.attention_scores import parameters as of_function
from tilewright.kernels.narrow import memory_type
from tilewright.plans.nvidia_attention import AttentionShape


class Sized(Protocol):
    """What a kernel is made for: its shape, and the sizes of its tiles."""
    @property
    def shape(self) -> AttentionShape: ...
    @property
    def plan(self) -> Any: ...
    @property
    def KEYS(self) -> int: ...                  # of a tile
    @property
    def ROWS(self) -> int: ...                  # of a team: warps that have rows together
    @property
    def EACH(self) -> int: ...                  # queries of a team, of as many heads as are packed
    @property
    def QUERIES(self) -> int: ...               # of a CTA
    @property
    def EIGHT(self) -> bool: ...                # whether numbers have 8 bits


FACTORS: dict[str, Any] = {"factors": ptr(f32), "sequence": i64, "head": i64}


def begun(s: Sized, operands: dict[str, Any], WARP: int = 32) -> tuple[Kernel, SimpleNamespace]:
    """A kernel with the parameters of kernels/nvidia/attention.py and these for q, k and v; and its arguments by their
    names."""
    shape = s.shape
    T = memory_type(shape.out)
    more: dict[str, Any] = {"before": i32} if shape.band == "window" else {}
    more |= {"after": i32} if shape.band else {}
    more |= {"q_offsets": ptr(i32), "sequences": i32} if shape.ragged else {}
    more |= {"k_offsets": ptr(i32)} if shape.ragged and not shape.page else {}
    more |= {"lengths": ptr(i32)} if shape.lengths else {}
    more |= {"table": ptr(i32), "table_row": i64} if shape.page else {}
    more |= {"splits": i32, "workspace": ptr(f32), "counters": ptr(i32)} if shape.split else {}
    more |= {"lse": ptr(f32), "lse_head": i64, "lse_batch": i64} if shape.lse else {}
    more |= {"sinks": ptr(f32)} if shape.sinks else {}
    more |= {f"{x}_{name}": t for x in "qkv" for name, t in FACTORS.items()} if shape.format == "e4m3fn" else {}
    more |= of_function(shape.score)
    more = {**operands, "out": ptr(T), "out_row": i64, "out_head": i64, "out_batch": i64, "queries": i32, "keys": i32,
            "heads": i32, "group": i32, "pairs": i32, "section": i32, "factor": f32, **more}
    k = Kernel(f"attention_{shape.name}_{s.plan.name}", threads=s.plan.threads, noalias=False, warp=WARP,
               min_ctas=s.plan.together(shape), **more)
    return k, SimpleNamespace(**dict(k.function.params))


@dataclass(frozen=True)
class Work:
    """A tile of queries: its first one in its sequence, head (packed: kv head) and sequence, and its tiles of keys
    `first` ... `end` - 1, of which those from `whole_first` to `whole_end` - 1 are seen by all of its queries.

    queries, keys   of the sequence
    shift           added to the index of a query it is its position
    q0, k0          ragged: the first ones of the sequence
    tile, part      split: which of all tiles, and which part of its keys
    """
    i0: Value
    head: Value
    sequence: Value
    first: Value
    end: Value
    whole_first: Value
    whole_end: Value
    queries: Value
    keys: Value
    shift: Value | None = None
    q0: Value | None = None
    k0: Value | None = None
    tile: Value | None = None
    part: Value | None = None

    @property
    def count(self) -> Value:
        return self.end - self.first


class Carried:
    """A tile of queries that a loop hands on."""

    def __init__(self, k: Kernel, work: Work) -> None:
        given = {x.name: getattr(work, x.name) for x in fields(Work)}
        self.variables = {name: k.variable(i32, x) for name, x in given.items() if x is not None}

    def get(self) -> Work: return Work(**{name: x.get() for name, x in self.variables.items()})

    def set(self, work: Work) -> None:
        for name, x in self.variables.items():
            x.set(getattr(work, name))


class Order:
    """Which tiles of queries a CTA takes, as a snake: the first one in a round is the last one in the next. In a
    section of (sequence, head) pairs the last queries of all its pairs come first, which with a causal band see the
    most keys. A ragged sequence is a section with its heads; the CTA's tiles are asked for in ascending order."""

    def __init__(self, k: Kernel, g: SimpleNamespace, s: Sized) -> None:
        self.k, self.g, self.s = k, g, s
        if s.shape.ragged:
            tiles = k.variable(i32, 0)
            with k.loop(g.sequences, unroll=False) as at:
                tiles.set(tiles.get() + self._of_sequence(at))
            count = tiles.get()
            self.sequence, self.before = k.variable(i32, 0), k.variable(i32, 0)
        else:
            self.rows = k.ceil_div(g.queries, s.QUERIES)
            count = self.rows*g.pairs
        if s.shape.split:
            count = count*g.splits
        self.cta, self.ctas = k.block[0], k.grid[0]
        rounds, rest = count // self.ctas, count % self.ctas
        self.rounds = rounds + k.cast(self._place(rounds) < rest, i32)

    def _place(self, round: Value) -> Value:
        """The place of this CTA in a round."""
        return self.k.select(round % 2 == 0, self.cta, self.ctas - 1 - self.cta)

    def _begin(self, of: str, sequence: Value) -> Value:
        return self.k.load(getattr(self.g, f"{of}_offsets") + sequence)

    def _length(self, of: str, sequence: Value) -> Value:
        return self._begin(of, sequence + 1) - self._begin(of, sequence)

    def _of_sequence(self, sequence: Value) -> Value:
        """Its tiles."""
        return self.k.ceil_div(self._length("q", sequence), self.s.QUERIES)*self.g.heads

    @contextmanager
    def each(self, here: Value) -> Iterator[tuple[Value, Work]]:
        """A loop over the CTA's tiles, each with its number; `here` or not at all."""
        k = self.k
        with k.loop(k.select(here, self.rounds, 0), unroll=False) as number:
            yield number, self.work(number)

    def work(self, number: Value) -> Work:
        """The CTA's tile of this number, of which there must be one."""
        k, g, s = self.k, self.g, self.s
        unit, part = number*self.ctas + self._place(number), None
        tile = unit
        if s.shape.split:
            tile = unit // g.splits
            part = unit - tile*g.splits
        if s.shape.ragged:
            pair, up, rows, batch, head = self._in_sequence(tile)
        else:
            of_section = self.rows*g.section
            section = tile // of_section
            inside = tile - section*of_section
            width = k.min(g.section, g.pairs - section*g.section)
            up = inside // width
            pair, rows = section*g.section + (inside - up*width), self.rows
            batch = pair // g.heads
            head = pair - batch*g.heads
        return self._work((rows - 1 - up)*s.QUERIES, head, batch, tile, part)

    def _in_sequence(self, tile: Value) -> tuple[Any, Value, Value, Value, Value]:
        k, g, sequence, before = self.k, self.g, self.sequence, self.before
        with k.while_(lambda: (sequence.get() < g.sequences - 1) & (
                tile >= before.get() + self._of_sequence(sequence.get()))):
            before.set(before.get() + self._of_sequence(sequence.get()))
            sequence.set(sequence.get() + 1)
        batch = sequence.get()
        rows, inside = k.ceil_div(self._length("q", batch), self.s.QUERIES), tile - before.get()
        up = inside // g.heads
        return None, up, rows, batch, inside - up*g.heads

    def _work(self, i0: Value, head: Value, batch: Value, tile: Value, part: Value | None) -> Work:
        k, g, s, shape = self.k, self.g, self.s, self.s.shape
        queries, keys, q0, k0 = g.queries, g.keys, None, None
        if shape.ragged:
            queries, q0 = self._length("q", batch), self._begin("q", batch)
            if not shape.page:
                keys, k0 = self._length("k", batch), self._begin("k", batch)
        if shape.lengths:
            keys = k.load(g.lengths + batch)
        shift = (k.constant(i32, 0) if shape.upper else keys - queries) if s.shape.band or shape.score else None
        end, whole_end = k.ceil_div(keys, s.KEYS), keys // s.KEYS
        first = whole_first = k.constant(i32, 0)
        if s.shape.band:
            assert shift is not None
            last = g.after + shift
            seen = k.max(k.min(i0 + (s.QUERIES - 1), queries - 1) + last + 1, 0)
            end = k.min(end, k.ceil_div(seen, s.KEYS))
            whole_end = k.min(whole_end, k.max(i0 + last + 1, 0) // s.KEYS)
        if s.shape.band == "window":
            assert shift is not None
            first = k.min(k.max(i0 + shift - g.before, 0) // s.KEYS, k.max(end - 1, 0))
            whole_first = k.max(k.ceil_div(k.max(i0 + (s.QUERIES - 1) + shift - g.before, 0), s.KEYS), first)
        end = k.max(end, first + 1)                                     # without any key it is all masked
        if part is not None:                                            # a part without keys has one tile, masked
            share = k.ceil_div(end - first, g.splits)
            start = first + part*share
            end = k.max(k.min(end, start + share), start + 1)
            first, whole_first = start, k.max(whole_first, start)
        return Work(i0, head, batch, first, end, whole_first, whole_end, queries, keys, shift, q0, k0,
                    tile if part is not None else None, part)


def stretches(k: Kernel, s: Sized, work: Work) -> Iterator[tuple[Value | int, Value, bool]]:
    """(start, stop, MASKED) of a tile's tiles of keys but the first, counted from the last one that is seen: loops over
    those of which all queries see all keys, and over the others."""
    band, end = s.shape.band, work.count
    right = work.end - k.max(k.min(work.whole_end, work.end), work.first)           # tiles that are masked
    masked = k.max(right, 1)
    left = end if band != "window" else k.max(k.min(work.end - work.whole_first, end), masked)
    if band:
        yield 1, k.min(masked, end), True
    yield k.min(masked, left), left, False
    if band == "window":
        yield left, end, True
