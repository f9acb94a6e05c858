"""What attention's kernels on CPUs share: rows brought to where they are multiplied, products of tiles, and what
becomes of products of queries and keys before they are powers (`Scores`, `seen`): a score function with the arrays that
it reads, and masks.

A *strip* has LANES queries (or keys) in the lanes of vectors. Every product is C[rows, lanes] += A[rows, steps]
B[steps, lanes]: elements of A, words of a staged block, are broadcast, rows of B are vectors, and C is a tile of
registers. Maxima, powers and sums of scores are then lane by lane.

Keys and values are copied to a block first: they may have any format, strides and pages, and products find them at
constant distances. A word holds one number, or two bf16.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tilewright.attention_problem import SCORE, score_of, sloped
from tilewright.formats import FORMATS
from tilewright.ir import Function, Kernel, Tile, Type, Value, f32, f64, i8, i16, i32, i64, ptr, vec
from tilewright.kernels.cpu import jobs
from tilewright.kernels.cpu.packing import transpose
from tilewright.kernels.cpu.pool import job_fields
from tilewright.kernels.expression import recorded
from tilewright.kernels.narrow import memory_type, narrowed, number, widened
from tilewright.plans.cpu_attention import tile_rows
from tilewright.targets.cpu import CpuTarget

TYPES = {"f32": f32, "f64": f64, "bf16x2": f32, "tiles": f32, "i32": i32}


@dataclass(frozen=True)
class Strip:
    """The shape of strips and tiles on a target, for words of a kind: NV vectors of V lanes, MR rows of a tile."""
    WORD: str
    V: int
    NV: int
    MR: int

    @classmethod
    def on_target(cls, target: CpuTarget, WORD: str, NV: int = 2) -> Strip:
        T = TYPES[WORD]
        return cls(WORD, target.lanes(T.bytes), NV, tile_rows(target, NV, WORD))

    @property
    def PARTS(self) -> int:
        """Numbers in a word."""
        return 2 if self.WORD in ("bf16x2", "tiles") else 1

    @property
    def LANES(self) -> int:
        return self.V * self.NV

    @property
    def T(self) -> Type:
        """The type of sums."""
        return TYPES[self.WORD]

    @property
    def E(self) -> Type:
        """The type of words in memory."""
        return i32 if self.PARTS == 2 else self.T

    def words(self, size: int) -> int:
        """Words of a row of so many numbers, whole vectors."""
        vector = self.V * self.PARTS
        return -(-size // vector) * self.V

    def pitch(self, size: int) -> int:
        """Words from one row of a block to the next: with a vector more, rows do not share a few sets of L1."""
        return self.words(size) + self.V

    def columns(self, size: int) -> int:
        """Elements of a row of values, whole vectors."""
        return -(-size // self.V) * self.V

    def multiplied(self, k: Kernel, a: Value, b: Value, c: Value) -> Value:
        return k.bf16_pairs(a, b, c) if self.PARTS == 2 else k.fma(a, b, c)


def heights(rows: int, most: int) -> list[tuple[int, int, int]]:
    """(first row, rows of a tile, tiles) of runs of equal tiles, as even as whole numbers allow."""
    count = -(-rows // most)
    tall, small = rows % count, rows // count
    blocks = [(0, small + 1, tall), (tall * (small + 1), small, count - tall)]
    return [x for x in blocks if x[2]]


def product(k: Kernel, s: Strip, acc: Tile, steps: Any, a: Value, ROW: int, STEP: int, b: Value,
            pitch: Any = None) -> None:
    """acc += A B: A's rows are ROW words apart and its steps STEP, B's rows LANES words, or `pitch` words from anywhere
    on."""
    with k.loop(k._value(steps, i64)) as p:
        at, row = a + p*STEP, b + p*(s.LANES if pitch is None else pitch)
        vectors = [k.load(row + v*s.V, vec(s.E, s.V), s.E.bytes * (s.V if pitch is None else 1))
                   for v in range(acc.cols)]
        for i in range(acc.rows):
            x = k.broadcast(k.load(at + i*ROW), s.V)
            for v in range(acc.cols):
                acc[i, v] = s.multiplied(k, x, vectors[v], acc[i, v])


class Task:
    """Records task(job, index, space): `strips` strips of lanes of a kv head of a sequence. `at`: where a strip keeps
    what it has, and where the thread keeps what strips share."""

    def __init__(self, spec: Any, s: Strip, at: Any, name: str, fields: tuple[str, ...], **types: Any) -> None:
        self.spec, self.s, self.at, self.T, self.VT = spec, s, at, s.T, vec(s.T, s.V)
        k = self.k = Kernel(name, noalias=False, job=ptr(i8), index=i64, space=ptr(i8))
        job, self.index, self.space = k.args
        self.g = job_fields(k, job, fields, s.T, reads=i64, rows=i64, lse_at=s.T, **types)
        self.scale = k.cast(k.field(job, jobs.offsets(fields)["scale"], f64), s.T)

    def locate(self) -> None:
        """Which sequence, heads, queries and keys the task has."""
        k, g = self.k, self.g
        per_block = g.sequences * g.kv_heads
        self.block, place = g.blocks - 1 - self.index // per_block, self.index % per_block
        self.sequence, self.kv_head = place // g.kv_heads, place % g.kv_heads
        row = g.rows + self.sequence * len(jobs.SEQUENCE)
        self.q_first, self.queries, self.k_first, self.keys = (row[x] for x in range(len(jobs.SEQUENCE)))
        self.group = g.heads // g.kv_heads
        self.shift = k.select(g.upper != 0, 0, self.keys - self.queries)

    @contextmanager
    def strips(self, lanes: Value) -> Iterator[Value]:
        """How many the task has of all these lanes, where it has any."""
        self.first = self.block * (self.g.strips * self.s.LANES)
        with self.k.when(self.first < lanes):
            self.last = lanes - 1
            yield self.k.min(self.g.strips, self.k.ceil_div(lanes - self.first, self.s.LANES))

    def state(self, strip: Value) -> SimpleNamespace:
        """Where a strip keeps what it has, by name."""
        base = self.space + strip * self.at.state_bytes
        types = {"words": self.s.E, "numbers": self.T, "i32": i32, "i64": i64}
        return SimpleNamespace(**{name: (base + offset).as_(types[kind])
                                  for name, (offset, kind) in self.at.state.items()})

    def shared(self, name: str, type: Any) -> Value:
        return (self.space + self.g.strips * self.at.state_bytes + self.at.shared[name]).as_(type)

    def add_up(self, sums: Value, size: int, steps: Value, rows: Value, pitch: int, factors: Value,
               scales: Value | None = None) -> None:
        """sums[size, lanes] = sums by scales[lanes] + rows^T factors, of so many steps."""
        k, s = self.k, self.s
        for begin, height, tiles in heights(size, s.MR):
            with k.loop(k.constant(i64, tiles)) as t:
                place = sums + (t*height + begin)*s.LANES
                acc = k.tile(height, s.NV, self.VT, zero=False)
                for i, v in acc.registers:
                    x = k.load(place + (i*s.LANES + v*s.V), self.VT)
                    acc[i, v] = x if scales is None else x * k.load(scales + v*s.V, self.VT)
                product(k, s, acc, steps, rows + (t*height + begin), 1, pitch, factors)
                for i, v in acc.registers:
                    k.store(place + (i*s.LANES + v*s.V), acc[i, v], self.T.bytes * s.V)

    def store_rows(self, v: int, sums: Value, size: int, out: Value, FORMAT: str, factor: Value | None = None) -> None:
        """Vector v of sums [size, lanes], by a factor of each lane, as rows: lane by lane to an address in `out`."""
        k, s, M = self.k, self.s, memory_type(FORMAT)

        def columns(c: Value, mask: Value | None) -> None:
            rows = (k.load(sums + ((c + e)*s.LANES + v*s.V), self.VT) for e in range(s.V))
            for e, y in enumerate(transpose(k, [x if factor is None else x * factor for x in rows])):
                to = k.pointer(out[k.constant(i64, v*s.V + e)], M) + c
                y = y if FORMATS[FORMAT].bits >= self.T.bits else narrowed(k, y, FORMAT)
                k.store(to, k.cast(y, vec(M, s.V)), M.bytes, mask)
        with k.loop(k.constant(i64, size // s.V)) as c:
            columns(c*s.V, None)
        if size % s.V:          # opaque: of a masked store of one i16 that LLVM knows to be one it makes 32 bits
            columns(k.constant(i64, size // s.V * s.V), k.lanes_below(k.opaque(k.constant(i64, size % s.V)), s.V))


def emit_stage(target: CpuTarget, FORMAT: str, WORD: str, COUNT: int = 0) -> Function:
    """stage(source, step, count, to): count numbers, `step` elements apart, as words; what is beyond them in the last
    vector becomes 0. WORD i32: ints and bools of operands. COUNT: there are so many, for code without a loop."""
    s = Strip.on_target(target, WORD)
    M, V, PARTS = memory_type(FORMAT), s.V, s.PARTS
    k = Kernel(f"stage_{FORMAT}_{WORD}" + f"_{COUNT}" * bool(COUNT), noalias=False, source=ptr(M), step=i64, count=i64,
               to=ptr(s.E))
    source, step, count, to = k.args
    if COUNT:
        count = k.constant(i64, COUNT)

    def as_word(x: Value) -> Value:
        if FORMAT == "bool":
            return k.select(x != k.constant(x.type, 0), *(k.constant(vec(s.E, x.type.length), y) for y in (1, 0)))
        if PARTS == 1:
            return number(k, x, FORMAT, s.T) if s.T is i32 else widened(k, x, FORMAT, s.T)
        if FORMAT == "bf16":
            return x
        wide = k.bits_as(widened(k, x, FORMAT, f32), vec(i32, x.type.length))
        return k.cast(wide >> 16, vec(i16, x.type.length))

    last = V * PARTS                                                     # numbers of a vector of words, and of a load
    lanes = min(last if PARTS == 1 or FORMAT == "bf16" else V, target.lanes(M.bytes))
    L = i16 if PARTS == 2 else s.E

    def clear() -> None:
        with k.when(count % last > 0):
            k.store(to.as_(L) + count // last * last, k.constant(vec(L, last), 0), L.bytes * last)

    def block(j: Value, mask: Value | None) -> None:
        x = as_word(k.load(source + j, vec(M, lanes), M.bytes, mask))
        k.store((to.as_(L) + j), x, L.bytes * lanes)
    rounded = count // lanes * lanes
    with k.when(step == 1):
        if lanes < last:
            clear()
        if COUNT:
            for first in range(0, COUNT, lanes):
                left = k.opaque(k.constant(i64, COUNT - first))
                block(k.constant(i64, first), None if COUNT - first >= lanes else k.lanes_below(left, lanes))
        else:
            with k.loop(rounded, step=lanes) as place:
                block(place, None)
            with k.when(rounded < count):
                block(rounded, k.lanes_below(count - rounded, lanes))
    with k.otherwise():
        clear()
        with k.loop(count) as j:
            k.store(to.as_(L) + j, as_word(k.load(source + j*step)), L.bytes)
    return k.function


class Stages:
    """The functions that a kernel calls to stage rows, each recorded once."""

    def __init__(self, target: CpuTarget) -> None:
        self.target, self.recorded = target, dict[tuple[Any, ...], Function]()

    def __call__(self, FORMAT: str, WORD: str, COUNT: int = 0) -> Function:
        key = FORMAT, WORD, COUNT
        if key not in self.recorded:
            self.recorded[key] = emit_stage(self.target, *key)
        return self.recorded[key]


def emit_pair(target: CpuTarget) -> Function:
    """pair(x, y, count, to): words [d] of (x[d], y[d]) from two rows of bf16 as `stage` leaves them."""
    s = Strip.on_target(target, "bf16x2")
    V = s.V
    k = Kernel("stage_pair", noalias=False, x=ptr(i32), y=ptr(i32), count=i64, to=ptr(i32))
    first, second, count, to = k.args
    low = [e // 2 if e % 2 == 0 else V + e // 2 for e in range(V)]
    high = [x + V // 2 for x in low]
    with k.loop(k.ceil_div(count, 2*V)) as c:
        x, y = (k.load(z + c*V, vec(i32, V), 4*V) for z in (first, second))
        even = (x & 0xFFFF) | (y << 16)
        odd = ((x >> 16) & 0xFFFF) | (y & -0x10000)
        k.store(to + c*2*V, k.shuffle(even, odd, low), 4*V)
        k.store(to + (c*2*V + V), k.shuffle(even, odd, high), 4*V)
    return k.function


def transposed(k: Kernel, s: Strip, rows: Value, PITCH: int, WIDTH: Any, to: Value, E: Type | None = None) -> None:
    """to[column, lane] = rows[lane, column] for columns below WIDTH, a multiple of V; rows are PITCH words apart."""
    E = E or s.E
    for v in range(s.NV):
        with k.loop(k._value(WIDTH, i64), step=s.V) as c:
            x = [k.load(rows + (c + (v*s.V + e)*PITCH), vec(E, s.V), E.bytes * s.V) for e in range(s.V)]
            for e, y in enumerate(transpose(k, x)):
                k.store(to + ((c + e)*s.LANES + v*s.V), y, E.bytes * s.V)


def claims(name: str, fields: tuple[str, ...], task: Function) -> Function:
    """name(job, tid): what thread `tid` of any team does, one alone all of it: task(job, index, own space) for each
    task of the job that no other thread has claimed."""
    k = Kernel(name, noalias=False, job=ptr(i8), tid=i64)
    job, tid = k.args
    g = job_fields(k, job, fields, i8, space=i8)
    claimed = (job + jobs.offsets(fields)["claimed"]).as_(i64)
    own = g.space + tid*g.space_step
    index = k.variable(i64, k.atomic_add(claimed, 1, "monotonic"))
    with k.while_(lambda: index.get() < g.count):
        k.call(task, job, index.get(), own)
        index.set(k.atomic_add(claimed, 1, "monotonic"))
    return k.function


class Scores:
    """The score function with this text, "" for none, on numbers of type T. slope: with its derivative by the score."""

    def __init__(self, stages: Stages, TEXT: str, T: Type, slope: bool = False) -> None:
        score = score_of(TEXT) if TEXT else None
        self.T = T
        own = score.expression if score else None
        self.expression = sloped(own) if own and slope else own
        self.kinds = dict(score.expression.parameters) if score else {}
        self.reads = score.reads if score else ()
        self.staged = [stages(x.format, str(self.type(x))) for x in self.reads]

    def type(self, read: Any) -> Type:
        """What an operand's numbers are staged as: bools as i32."""
        return self.T if self.kinds[read.name] == "float" else i32

    def address(self, g: SimpleNamespace, number: int, sequence: Value, head: Value, query: Value) -> Value:
        """Where a query's row of an operand begins, by the job's fields."""
        at = g.reads + number*len(jobs.READ)
        return at[0] + memory_type(self.reads[number].format).bytes * (sequence*at[1] + head*at[2] + query*at[3])

    def changed(self, k: Kernel, y: Value, i: Value, j: Value, head: Value, beside: Sequence[Value] = ()
                ) -> list[Value]:
        """The score of a scaled product, and its slope if there is one. beside: the operands' numbers."""
        if self.expression is None:
            return [y]
        given = dict(zip(SCORE, (y, i, j, head)))
        for read, z in zip(self.reads, beside):
            given[read.name] = z != k.constant(z.type, 0) if self.kinds[read.name] == "bool" else z
        return recorded(k, self.expression, given, self.T)

    def numbers(self, k: Kernel, s: Strip, tiles: Sequence[Value], row: Value, v: int) -> list[Value]:
        """The operands' numbers of a row of `operands` for vector v."""
        return [k.load(tile + (row*s.LANES + v*s.V), vec(tile.type.element, s.V)) for tile in tiles]

    def operands(self, k: Kernel, s: Strip, rows: Value, steps: Callable[[int], Value], first: Value, n: Value,
                 shared: Callable[[str, Any], Value], pitch: int) -> list[Value]:
        """The operands of n keys from `first` on, [keys, lanes]. rows: of each operand the addresses of the lanes'
        rows; steps: from one key of an operand to the next; lines in between are `pitch` numbers apart."""
        values = []
        for place, (read, stage) in enumerate(zip(self.reads, self.staged)):
            E, M, step = self.type(read), memory_type(read.format), steps(place)
            lines, tile = shared("lines", E), shared(f"read{place}", E)
            with k.loop(k.constant(i64, s.LANES)) as lane:
                line = k.pointer(rows[lane + place*s.LANES], M)
                k.call(stage, line + first*step, step, n, lines + lane*pitch)
            transposed(k, s, lines, pitch, (n + (s.V - 1)) // s.V * s.V, tile, E)
            values.append(tile)
        return values


def seen(k: Kernel, y: Value, j: Value, low: Value | None, high: Value) -> Value:
    """Scores, -inf of keys j outside of low to high; low None: without that end."""
    y = k.select(j <= high, y, -math.inf)
    return y if low is None else k.select(low <= j, y, -math.inf)
