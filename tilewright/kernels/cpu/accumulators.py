"""The registers in which a micro-kernel adds up its tile of C, and the arithmetic of one step.

    MultiplyAdd     c += a * b, by vectors of C's type
    Words           the same for several narrow elements in 32 bits: C starts with a row of the panel of B
    States          a semiring: its state's fields, each in a tile of its own
    Bytes           a semiring of 8-bit terms: a lane of C has the states of four steps of k

All classes have the same methods, so that kernels/cpu/microkernel.py has no case for any of them.
"""
from __future__ import annotations

from tilewright.ir import Kernel, Tile, Type, Value, i8, i32, vec
from tilewright.kernels.cpu.out import Out
from tilewright.kernels.expression import Arithmetic, numbers, state_fields
from tilewright.plans.words import WORDS
from tilewright.targets.cpu import CpuTarget

PACKED_WORDS = {word.name: word.steps for word in WORDS}    # panels of which hold so many steps of k in 32 bits


def accumulators(k: Kernel, dtype: str, T: Type, MR: int, NV: int, V: int, SEMIRING: str) -> MultiplyAdd:
    """An MR x NV tile of vectors of V numbers of C, of the type T."""
    kind = Bytes if dtype == "bytes" else States if SEMIRING else Words if dtype in PACKED_WORDS else MultiplyAdd
    return kind(k, dtype, T, MR, NV, V, SEMIRING)


class MultiplyAdd:
    def __init__(self, k: Kernel, dtype: str, T: Type, MR: int, NV: int, V: int, SEMIRING: str) -> None:
        self.k, self.dtype, self.T, self.MR, self.NV, self.V, self.SEMIRING = k, dtype, T, MR, NV, V, SEMIRING

    def start(self, b: Value, align: int) -> Value:
        """Set the registers; where the first row of the panel of B is that is multiplied."""
        self.acc = self.k.tile(self.MR, self.NV, vec(self.T, self.V))
        return b

    def lanes(self, x: Value) -> Value:
        """Loaded elements as they are multiplied."""
        return x

    def index(self, p: Value, before: list[Value]) -> Value | None:
        """Step p of k, and those before the panels, if terms depend on it."""
        return None

    def broadcasts(self, target: CpuTarget) -> bool:
        """Whether each instruction broadcasts its element of A from memory by itself. On a Zen 4 a broadcast into a
        register takes a vector unit, all of which terms of a semiring keep busy: squared distances had 0.68 of the
        rate of a matrix product, and have 0.98 without (2026-11-30)."""
        return False

    def add(self, i: int, j: int, a: Value, b: Value, index: Value | None) -> None:
        self.acc[i, j] = self.k.fma(a, b, self.acc[i, j])

    def store(self, c: Value, ldc: Value, cols: Value, alpha: Value, beta: Value, masks: list[Value]) -> None:
        """C = alpha * sums + beta * C."""
        k, acc = self.k, self.sums()
        out = Out(k, c, alpha, beta, combined=self.combined if self.SEMIRING else None)
        with k.when(alpha != 1.0):
            for ij in acc.registers:
                acc[ij] = out.scaled(acc[ij])

        def update(masks: list[Value] | list[None], read_c: bool) -> None:
            for i, j in acc.registers:
                out.place(i, j*self.V).put(acc[i, j], read_c, masks[j])
        with k.when(cols == self.NV*self.V):
            out.cases_of_beta(lambda read_c: update([None] * self.NV, read_c))
        with k.otherwise():
            out.cases_of_beta(lambda read_c: update(masks, read_c))

    def sums(self) -> Tile:
        return self.acc

    def combined(self, x: Value, y: Value) -> Value:
        """What C and sums become where C is read, if that is not beta * C + sums."""
        raise NotImplementedError


class Words(MultiplyAdd):
    def start(self, b: Value, align: int) -> Value:
        k = self.k
        dot = {"i8x4": k.quads, "u8x4": lambda x, y, z: k.quads(y, x, z), "i16x2": k.pairs, "bf16x2": k.bf16_pairs}
        self.dot = dot[self.dtype]
        self.acc = k.tile(self.MR, self.NV, vec(self.T, self.V), zero=False)
        first = [k.load((b + j*self.V).as_(self.T), vec(self.T, self.V), align) for j in range(self.NV)]
        for i, j in self.acc.registers:
            self.acc[i, j] = first[j]
        return b + self.NV*self.V

    def add(self, i: int, j: int, a: Value, b: Value, index: Value | None) -> None:
        self.acc[i, j] = self.dot(a, b, self.acc[i, j])


class States(MultiplyAdd):
    left_last = False

    def start(self, b: Value, align: int) -> Value:
        self.arithmetic = Arithmetic.from_text(self.k, self.terms(), self.SEMIRING)
        lanes = self.V * (self.T.bits // self.terms().bits)
        self.state = tuple(self.k.tile(self.MR, self.NV, vec(t, lanes), zero=False) for t in self.arithmetic.types)
        for tile, first in zip(self.state, self.arithmetic.first):
            for ij in tile.registers:
                tile[ij] = first
        return b + self.NV*self.V if self.dtype in PACKED_WORDS else b

    def terms(self) -> Type:
        """The type of terms and states."""
        return self.T

    def index(self, p: Value, before: list[Value]) -> Value | None:
        k = self.k
        return k.broadcast(k.cast(before[0] + p, numbers(self.T)["int"]), self.V) if self.arithmetic.indexed else None

    def broadcasts(self, target: CpuTarget) -> bool:
        self.left_last = target.has("avx512f") and self.terms() == self.T and self.arithmetic.left_last
        return self.left_last

    def add(self, i: int, j: int, a: Value, b: Value, index: Value | None) -> None:
        now = tuple(tile[i, j] for tile in self.state)
        for tile, x in zip(self.state, self.arithmetic.step(a, b, now, index, self.left_last)):
            tile[i, j] = x

    def store(self, c: Value, ldc: Value, cols: Value, alpha: Value, beta: Value, masks: list[Value]) -> None:
        """States that are kept go to the tile of states at c, a row of each field after the other."""
        FIELDS = state_fields(self.SEMIRING)
        if not FIELDS:
            super().store(c, ldc, cols, alpha, beta, masks)
            return
        width = ldc // FIELDS
        with self.k.when(beta == 0):
            self.put(c, width, False)
        with self.k.otherwise():
            self.put(c, width, True)

    def put(self, c: Value, width: Value, read_c: bool) -> None:
        """States into C, `width` elements from field to field; combined with those there if `read_c`."""
        k = self.k
        for i, j in self.state[0].registers:
            values = tuple(tile[i, j] for tile in self.state)
            places = [c.at(i, f*width + j*self.V).as_(t) for f, t in enumerate(self.arithmetic.types)]
            if read_c:
                old = tuple(k.load(place, x.type, x.type.scalar.bytes) for place, x in zip(places, values))
                values = self.arithmetic.combined(old, values)
            for place, x in zip(places, values):
                k.store(place, x, x.type.scalar.bytes)

    def sums(self) -> Tile:
        return self.state[0]

    def combined(self, x: Value, y: Value) -> Value:
        return Arithmetic.from_text(self.k, self.T, self.SEMIRING).combined((x,), (y,))[0]


class Bytes(States):
    def terms(self) -> Type:
        return i8

    def lanes(self, x: Value) -> Value:
        return self.k.reinterpret(x, vec(i8, 4*self.V))

    def sums(self) -> Tile:
        """The states of four bytes that lie side by side in a lane, combined and with their sign."""
        k, words = self.k, vec(i32, self.V)
        acc = k.tile(self.MR, self.NV, words, zero=False)
        for ij in acc.registers:
            x = self.state[0][ij]
            for shift in (16, 8):
                later = k.reinterpret(k.reinterpret(x, words) >> shift, x.type)
                x, = self.arithmetic.combined((x,), (later,))
            acc[ij] = (k.reinterpret(x, words) << 24) >> 24
        return acc
