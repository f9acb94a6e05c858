"""The matrix of a gemv (gemv.py) as matrix instructions read and multiply it, 8 vectors and more.

A piece of k is what four lanes have of a row, 16 bytes each, next to each other. The words of a lane belong to the k of
two instructions, and it has the same elements of a vector, so that the order of k within an instruction does not
matter. Warps take pieces in turn, of all WIDTH rows:

    by_loads    into registers, UNROLL loads of a lane in flight, which are all waited for before they are multiplied
    by_copies   by cp.async into shared memory, where each lane reads what it copied itself: no barriers. Copies of
                STAGES pieces are in flight whatever registers hold; each is followed by that of the same rows STAGES
                pieces on, into the place that has just been read
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product, repeat

from tilewright.atoms.nvidia import Atom, mma
from tilewright.ir import Kernel, Tile, Value, i8, i32, i64, vec
from tilewright.kernels.gpu.transform import Loaded
from tilewright.kernels.narrow import memory_type
from tilewright.kernels.nvidia.gemv_reading import MOST_WORDS, WIDEST, Reading

ROWS, VECTORS = 16, 8           # of a matrix instruction: of the matrix, and of vectors
MOST_OF_VECTORS = 16            # words of a lane
PER = 2                         # pieces of a span, 128 bytes of a row: DRAM takes 1.6 times as long for 64
APART = 4                       # sums between those of two vectors, which different banks then have


@dataclass(frozen=True)
class ByMatrices(Reading):
    """`x`: the `count` vectors. STAGES: pieces of a warp in flight by cp.async; 0: they are loaded into registers.
    `shift`: how much later than `first` the elements begin that the CTA stores. `early`: see Kernel.last_kernel."""
    formats: tuple[str, str]
    x: Value
    ld_x: Value
    count: Value
    STAGES: int
    shift: Value | None
    early: str                  # the matrix, if its first copies begin before the stream's last kernel has ended

    @property
    def KEPT(self) -> int:
        """Bytes of a number as it is multiplied."""
        return memory_type(self.DTYPE).bytes

    @property
    def WORDS(self) -> int:
        """Words of a lane's numbers in a piece."""
        return self.VECTOR*self.KEPT // 4

    @property
    def COLUMNS(self) -> int:
        """Columns of instructions that have all vectors."""
        return self.COUNT // VECTORS

    @property
    def RUNS(self) -> bool:
        return self.before is not None and self.before.factor is not None

    @property
    def atom(self) -> Atom:
        return mma(*self.formats, "i32" if self.T == i32 else "f32", ROWS, VECTORS, 2*WIDEST // self.KEPT)

    def sums(self) -> Callable[[Value], Value]:
        """By number, as `gemv.emit_gemv` numbers them."""
        k, t, WIDTH, WARPS = self.k, self.k.thread[0], self.WIDTH, self.WARPS
        SUMS = self.COUNT*(WIDTH + APART)
        acc = k.tile(WIDTH // ROWS * self.COLUMNS, 4, self.T)
        SIZE = max(WARPS*self.STAGES*WIDTH*PER*4*WIDEST, WARPS*SUMS*self.T.bytes)
        ring = k.smem("ring", (SIZE + (32*WARPS*4 if self.STAGES and self.before else 0),), i8, align=128)
        if self.STAGES:
            self._by_copies(ring, ring + SIZE, acc)
            k.cp_async_wait(0)
            k.barrier()                                                 # the sums take the ring's place
        else:
            self._by_loads(acc)
        sums = ring.as_(self.T)
        for to, e in acc.registers:
            i, j = divmod(to, self.COLUMNS)
            row, column = self.atom.c(t % 32, e)
            k.store(sums + (k.uniform(t // 32)*SUMS + (column + j*VECTORS)*(WIDTH + APART) + row + i*ROWS), acc[to, e])
        k.barrier()

        def total(number: Value) -> Value:
            at = number % WIDTH if self.shift is None else k.min(number % WIDTH + self.shift, WIDTH - 1)
            at = number // WIDTH * (WIDTH + APART) + at
            value = k.load(sums + at)
            for other in range(1, WARPS):
                value = value + k.load(sums + (at + other*SUMS))
            return value
        return total

    # ---- how the matrix comes

    def _by_loads(self, acc: Tile) -> None:
        k, WARPS, OCTETS = self.k, self.WARPS, range(0, self.WIDTH, VECTORS)
        warp, place = self._warp, self._place
        own = [self._own(first + self._group) for first in OCTETS] if self.before else []
        rows = [self._at(self._row(self.matrix, self.ld, self.first + first + self._group, self.size), place)
                for first in OCTETS]
        columns = self._columns()
        PIECE, TOGETHER = 4*self.VECTOR, max(self.UNROLL // len(rows), 1)
        if self.before:
            TOGETHER = min(TOGETHER, max(MOST_WORDS // (self.WORDS*len(columns) + 4*len(rows)), 1))

        def add(steps: list[Value], mask: Value | None = None) -> None:
            loaded = [([self._raw(at, p, mask) for at in rows], [self._of_column(at, p, mask) for at in columns])
                      for p in steps]
            aux = [[self._of_row(i, p, mask) for i in own] for p in steps]
            for (raw, of_vectors), more in zip(loaded, aux):
                words = [self._words(x, each, mask) for x, each in zip(raw, more or [{}]*len(raw))]
                self._multiply(acc, 0, words, of_vectors, more)
        rounds = k.max(self.p1 - self.p0, 0) // (PIECE*TOGETHER)      # the last parts of k may be empty
        with k.loop(rounds, start=warp, step=WARPS, unroll=False) as each:
            # CTAs begin at different k: rows at the same distance share channels of the memory, and all have one vector
            first = self.p0 + (each + k.block[0]) % rounds * (PIECE*TOGETHER)
            add([first + u*PIECE for u in range(TOGETHER)])
        with k.loop(self.p1, start=self.p0 + (rounds*TOGETHER + warp)*PIECE, step=WARPS*PIECE, unroll=False) as p:
            add([p], p + place < self.p1)

    def _by_copies(self, ring: Value, end: Value, acc: Tile) -> None:
        """Units of 16 rows by a span of PER pieces of k. What is left of k does without the ring. At its `end` a word
        for each thread is free."""
        k, WARPS, STAGES, BLOCKS = self.k, self.WARPS, self.STAGES, self.WIDTH // ROWS
        PIECE, PITCH, EACH = 4*self.VECTOR, PER*4*WIDEST, VECTORS // PER       # rows of a copy
        SPAN, UNIT = PER*PIECE, ROWS*PITCH
        warp, columns, lane = self._warp, self._columns(), k.thread[0] % 32
        mine, apart = ring + warp*(STAGES*BLOCKS*UNIT), self.ld*EACH
        row, chunk = lane // (4*PER), lane % (4*PER)
        to = mine + (row*PITCH + self._swizzled(row, chunk)*WIDEST)
        begin = self._at(self.matrix + k.cast(self.first + row, i64)*self.ld, chunk*self.VECTOR)
        group, c = self._group, lane % 4
        read = [mine + (group*PITCH + self._swizzled(group, c + 4*h)*WIDEST) for h in range(min(PER, 2))]
        rounds = k.max(self.p1 - self.p0, 0) // SPAN
        spans = (rounds - warp + (WARPS - 1)) // WARPS              # of this warp
        # CTAs begin at different k, as above
        turn = warp + k.block[0] % k.max(rounds, 1)
        now = k.variable(i32, k.select(turn < rounds, turn, turn - rounds))

        def after(span: Value) -> Value:
            return k.select(span + WARPS < rounds, span + WARPS, span + (WARPS - rounds))

        def copy(at: Value, slot: Value, on: Value) -> Value:
            """A unit; where the next one begins."""
            for each in range(ROWS // EACH):
                with k.when(on):
                    k.cp_async(slot + each*(32*WIDEST), at, WIDEST)
                at = at + apart
            k.cp_async_commit()
            return at
        ahead, place = k.variable(i32, now.get()), k.variable(i32, 0)
        for stage in range(STAGES):
            at = self._at(begin, self.p0 + ahead.get()*SPAN)
            for b in range(BLOCKS):
                at = copy(at, to + (stage*BLOCKS + b)*UNIT, spans > stage)
            ahead.set(after(ahead.get()))
        if self.early:                  # the matrix: copies bypass L1, which may have what was there before
            if self.before:
                self.before.request(k.thread[0], 32*WARPS, self.first, self.WIDTH, self.p1, self.p0)
            k.last_kernel(self.early, *(self.before.parameters if self.before else ()))
        touched = self.before.touch(k.thread[0], 32*WARPS, self.first, self.WIDTH, self.p0, self.p1
                                    ) if self.before and self.COUNT == VECTORS else None     # else L1 has no room
        PARTS = max(self.COLUMNS*self.WORDS // MOST_OF_VECTORS, 1)      # of a piece
        items = [*product(range(PER), range(PARTS))]
        TOGETHER = max(MOST_OF_VECTORS*PARTS // (self.COLUMNS*self.WORDS), 1)
        passes = [items[x:x + TOGETHER] for x in range(0, len(items), TOGETHER)]
        steps = [*product(range(len(passes)), range(BLOCKS))]

        def beside(step: int, p: Value, rows: dict[tuple[int, int], Iterator[Loaded]]) -> list[list[Loaded]]:
            """The numbers beside each item of the step, two rows."""
            x, b = steps[step]
            for h in {h for h, _ in passes[x]}:
                if (x, h) not in rows:
                    rows[x, h] = self._of_rows(b*ROWS, p + h*PIECE)
            of = {h: [next(rows[x, h]), next(rows[x, h])] for h in {h for h, _ in passes[x]}}
            return [of[h] for h, _ in passes[x]]

        carried = Carried(k, beside(0, self.p0 + now.get()*SPAN, {}))
        with k.loop(spans, unroll=False) as number:
            p, more, rows = self.p0 + now.get()*SPAN, carried.get(), dict[tuple[int, int], Iterator[Loaded]]()
            at, slots = self._at(begin, self.p0 + ahead.get()*SPAN), place.get()
            of_vectors: list[list[list[Value]]] = []
            for step, (x, b) in enumerate(steps):
                if not b:
                    of_vectors = [[self._of_column(y, p + h*PIECE, None, part, PARTS) for y in columns]
                                  for h, part in passes[x]]
                of_block = more
                if step + 1 < len(steps):
                    more = beside(step + 1, p, rows)
                else:
                    following = k.select(number + 1 < spans, after(now.get()), now.get())
                    carried.set(beside(0, self.p0 + following*SPAN, {}))
                if not x:
                    k.cp_async_wait(STAGES*BLOCKS - 1 - b*(len(passes) > 1))    # the last pass requests others
                    k.warp_barrier()                                    # all lanes' copies have come
                raw = [[self._loaded_raw(read[h % 2] + slots + (b*UNIT + half*VECTORS*PITCH + h//2*8*WIDEST),
                                         part, PARTS) for half in range(2)] for h, part in passes[x]]
                if x == len(passes) - 1:
                    k.warp_barrier()                                    # all lanes have read
                    at = copy(at, to + slots + b*UNIT, number + STAGES < spans)
                for (_, part), both, two, y in zip(passes[x], raw, of_block, of_vectors):
                    words = [self._words(z, _part(each, part, PARTS), None) for z, each in zip(both, two)]
                    self._multiply(acc, b, words, y, two)
            now.set(after(now.get()))
            ahead.set(after(ahead.get()))
            if STAGES > 1:
                place.set(k.select(place.get() == (STAGES - 1)*BLOCKS*UNIT, k.constant(i32, 0),
                                   place.get() + BLOCKS*UNIT))
        with k.loop(self.p1, start=self.p0 + rounds*SPAN + warp*PIECE, step=WARPS*PIECE, unroll=False) as p:
            mask = p + self._place < self.p1
            y = [self._of_column(each, p, mask) for each in columns]
            for b in range(BLOCKS):
                of = [self.first + group + first for first in range(b*ROWS, (b + 1)*ROWS, VECTORS)]
                loaded = [self._raw(self._at(self.matrix + k.cast(i, i64)*self.ld, self._place), p, mask) for i in of]
                two = [self._of_row(i, p, mask) if self.before else {} for i in of]
                self._multiply(acc, b, [self._words(z, each, mask) for z, each in zip(loaded, two)], y, two)
        if touched is not None:
            k.store((end + k.thread[0]*4).as_(i32), touched)

    def _swizzled(self, row: Value, chunk: Value) -> Value:
        """Where chunk number `chunk` of a row is, among the row's: the first four of neighbours have different banks,
        which eight lanes read at once."""
        return chunk if PER == 1 else chunk // 8 * 8 + (chunk + row % 2 * 4) % 8

    def _of_rows(self, FIRST: int, p: Value) -> Iterator[Loaded]:
        """What the prologue reads beside a piece at p, by eight rows from FIRST on."""
        if self.before is None:
            return repeat({})
        return self.before.of_rows(self.first + self._group + FIRST, VECTORS,
                                   self.k.min(p + self._place, self.depth - self.VECTOR), self.VECTOR)

    # ---- parts of both

    @property
    def _warp(self) -> Value:
        return self.k.uniform(self.k.thread[0] // 32)

    @property
    def _group(self) -> Value:
        return self.k.thread[0] % 32 // 4

    @property
    def _place(self) -> Value:
        """The place of a lane in a piece of k."""
        return self.k.thread[0] % 4 * self.VECTOR

    def _columns(self) -> list[Value]:
        return [self._row(self.x, self.ld_x, first + self._group, self.count) + self._place
                for first in range(0, self.COUNT, VECTORS)]

    def _of_column(self, at: Value, p: Value, mask: Value | None, part: int = 0, PARTS: int = 1) -> list[Value]:
        k, EACH = self.k, self.VECTOR // PARTS
        parts = [k.load((at + p + e).as_(i32), vec(i32, 4), mask=mask)
                 for e in range(part*EACH, (part + 1)*EACH, WIDEST // self.KEPT)]
        values = [part[e] for part in parts for e in range(4)]
        return self._interleaved(values) if self.before and self.before.INTERLEAVED else values

    def _raw(self, at: Value, p: Value, mask: Value | None) -> Value:
        if self.before:
            return self._of_matrix(at, p, self.VECTOR, mask)
        return self.k.load((at + p).as_(i32), vec(i32, 4), mask=mask)

    def _loaded_raw(self, slot: Value, part: int = 0, PARTS: int = 1) -> Value:
        """A piece's words from shared memory, or one part of them."""
        T, BYTES = self.S if self.before else i32, WIDEST // PARTS
        return self._loaded((slot + part*BYTES).as_(T), BYTES // T.bytes)

    def _of_row(self, i: Value, p: Value, mask: Value | None) -> Loaded:
        """What the prologue reads beside a piece."""
        at = p + self._place
        return self._beside(i, at, self.VECTOR, mask) | self._of_run(i, at, self.VECTOR, mask)

    def _multiply(self, acc: Tile, first: int, words: list[list[Value]], of_vectors: list[list[Value]],
                  beside: list[Loaded]) -> None:
        """Sums of the blocks of rows from number `first` on, of which there are words of eight rows each."""
        k = self.k
        runs: dict[int, list[Value]] = {}
        for half, i, (j, y) in product(range(0, len(words[0]), 2), range(0, len(words), 2), enumerate(of_vectors)):
            to, (low, high) = (first + i // 2)*self.COLUMNS + j, words[i:i + 2]
            c = runs.get(to, [k.constant(self.T, 0)]*4) if self.RUNS else [acc[to, e] for e in range(4)]
            d = k.mma(self.atom, [low[half], high[half], low[half + 1], high[half + 1]], [y[half], y[half + 1]], c)
            runs[to] = [*d]
            for e, sum in enumerate(d) if not self.RUNS else ():
                acc[to, e] = sum
        # p is in the same group for all lanes of a piece, and what is beyond k is 0 in a run's sums
        common = [self._common(row, None) for row in beside]
        for to, run in runs.items() if self.RUNS else ():
            for e, sum in enumerate(run):
                acc[to, e] = k.fma(sum, common[(to // self.COLUMNS - first) * 2 + e // 2][0], acc[to, e])

    def _words(self, raw: Value, beside: Loaded, mask: Value | None) -> list[Value]:
        """The numbers as matrix instructions take them, two in a word."""
        x, k = self.before, self.k
        if x is None:
            return [raw[e] for e in range(4)]
        if not x.INTERLEAVED:
            return x.pairs(self._numbers(raw, beside, mask))
        words = x.words(raw, beside)
        return words if mask is None else [k.select(mask, word, k.constant(i32, 0)) for word in words]

    def _interleaved(self, words: list[Value]) -> list[Value]:
        """Pairs of neighbours in the order of Transform.words."""
        k, values = self.k, list[Value]()
        for e in range(0, len(words), 4):
            bytes = [k.reinterpret(word, vec(i8, 4)) for word in words[e:e + 4]]
            for low in range(2):
                for half in (0, 1, 4, 5), (2, 3, 6, 7):
                    values.append(k.reinterpret(k.shuffle(bytes[low], bytes[low + 2], half), i32))
        return values


def _part(beside: Loaded, part: int, PARTS: int) -> Loaded:
    """The numbers beside the elements of one part of a vector."""
    return {name: x if len(x) == 1 else x[part*len(x) // PARTS:(part + 1)*len(x) // PARTS]
            for name, x in beside.items()}


class Carried:
    """What a loop hands on to its next round, of rows of each of several items."""

    def __init__(self, k: Kernel, loaded: list[list[Loaded]]) -> None:
        self.variables = [[{name: [k.variable(x.type, x) for x in each] for name, each in row.items()} for row in rows]
                          for rows in loaded]

    def get(self) -> list[list[Loaded]]:
        return [[{name: [x.get() for x in cell] for name, cell in row.items()} for row in rows]
                for rows in self.variables]

    def set(self, loaded: list[list[Loaded]]) -> None:
        for rows, new in zip(self.variables, loaded, strict=True):
            for row, values in zip(rows, new, strict=True):
                for name, cell in row.items():
                    for x, value in zip(cell, values[name], strict=True):
                        x.set(value)
