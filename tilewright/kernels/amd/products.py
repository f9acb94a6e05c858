"""What a wave multiplies of a tile in LDS: operands that are read together, and the instructions they are for."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.atoms.mfma import Mfma
from tilewright.ir import Kernel, Value
from tilewright.kernels.amd.k_strided import KStridedTile
from tilewright.kernels.amd.lds_tile import LANES, LdsTile
from tilewright.kernels.amd.pipeline import Operands, Read
from tilewright.kernels.amd.scales import WORD, Scales, ScaleTile

Tile = LdsTile | KStridedTile


class WaveProducts:
    """acc += a part of A's tile times a part of B's, which lie one after the other; STEPS instructions along k.

    Instructions multiply B^T by A^T, with scales (of A, of B) or without. A group is as many as READS says.
    """

    def __init__(self, k: Kernel, ATOM: Mfma, acc: Any, a: Tile, b: Tile, *, TILES_M: int, TILES_N: int,
                 STEPS: int, scales: Sequence[Scales | ScaleTile] = ()) -> None:
        self.k, self.ATOM, self.acc, self.a, self.b, self.scales = k, ATOM, acc, a, b, scales
        self.TILES_M, self.TILES_N, self.PARTS, self.GROUPS = TILES_M, TILES_N, a.READS, STEPS // a.READS
        self.CYCLES = min(ATOM.cycles.values())

    def reads(self, at: Value, group: int) -> list[Read]:
        """For each tile of A and of B its operands for all PARTS, in the order in which products need them."""
        step = group*self.PARTS

        def of_a(i: int) -> Read:
            return lambda: self.a.read(at, i, step)

        def of_b(j: int) -> Read:
            return lambda: self.b.read(at + self.a.SIZE, j, step)
        return [of_a(0), *map(of_b, range(self.TILES_N)), *map(of_a, range(1, self.TILES_M))]

    def words(self, at: Value) -> list[Read]:
        """Scales of a tile, for all its groups: those of A's tiles, then of B's."""
        found, offset = [], self.a.SIZE + self.b.SIZE
        for x in self.scales:
            found += x.reads(at + offset)
            offset += x.SIZE
        return found

    def shifted(self, words: Operands) -> Operands:
        """The same words, so that instructions find each lane's scales in the same bytes."""
        return [self.scales[0].shifted(word) for word in words]

    def read(self, at: Value, group: int) -> Operands:
        """All of `reads`, then all `words`, shifted."""
        return [x for read in self.reads(at, group) for x in read()] + self.shifted(
            [x for read in self.words(at) for x in read()])

    def scale(self, step: int) -> tuple[int, int]:
        """Of the words of a tile's row, and of the bytes of it, that which has a lane's scale for this instruction."""
        return divmod(step * (LANES // self.ATOM.m), WORD)

    def instructions(self, operands: Operands, group: int, part: int) -> list[Callable[[], None]]:
        k, ATOM, M, N, P = self.k, self.ATOM, self.TILES_M, self.TILES_N, self.PARTS
        (first, *tiles), words = operands[part:(M + N)*P:P], operands[(M + N)*P:]
        b, a, scales = tiles[:N], [first, *tiles[N:]], []
        if self.scales:
            word, byte = self.scale(group*P)
            ATOM = ATOM.bytes(byte, byte)
            scales = words[word::len(words) // (M + N)]

        def product(i: int, j: int) -> Callable[[], None]:
            def multiply() -> None:
                left, right = k.reinterpret(b[j], ATOM.a.type), k.reinterpret(a[i], ATOM.b.type)
                self.acc[i, j], = k.mma(ATOM, [left, *scales[M + j:M + j + 1]], [right, *scales[i:i + 1]],
                                        [self.acc[i, j]])
            return multiply
        return [product(i, j) for i in range(M) for j in range(N)]

    def multiply(self, operands: Operands, group: int, part: int) -> None:
        for product in self.instructions(operands, group, part):
            product()
