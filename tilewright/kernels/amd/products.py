"""What a wave multiplies of a tile in LDS: operands that are read together, and the instructions they are for."""
from __future__ import annotations

from typing import Any

from tilewright.ir import Kernel, Value
from tilewright.kernels.amd.lds_tile import LdsTile
from tilewright.kernels.amd.pipeline import Operands
from tilewright.kernels.amd.scales import Scales
from tilewright.kernels.atoms.mfma import Mfma

ROOMY = 64          # accumulators that leave a lane registers for two groups and for whatever passes through them


class WaveProducts:
    """acc += a part of A's tile times a part of B's, which lie one after the other; STEPS instructions along k.

    Instructions multiply B^T by A^T, with scales (of A, of B) or without. A group is as many as READS says.
    """

    def __init__(self, k: Kernel, ATOM: Mfma, acc: Any, a: LdsTile, b: LdsTile, *, TILES_M: int, TILES_N: int,
                 STEPS: int, scales: tuple[Scales, Scales] | None = None) -> None:
        self.k, self.ATOM, self.acc, self.a, self.b, self.scales = k, ATOM, acc, a, b, scales
        self.TILES_M, self.TILES_N, self.PARTS, self.GROUPS = TILES_M, TILES_N, a.READS, STEPS // a.READS

    def read(self, at: Value, group: int) -> Operands:
        """Those of A's tiles, then those of B's, each for all PARTS; then their scales."""
        step = group*self.PARTS
        found = [x for i in range(self.TILES_M) for x in self.a.read(at, i, step)]
        found += [x for j in range(self.TILES_N) for x in self.b.read(at + self.a.SIZE, j, step)]
        if self.scales:
            of_a, of_b = self.scales
            found += [of_a.word(i, step) for i in range(self.TILES_M)]
            found += [of_b.word(j, step) for j in range(self.TILES_N)]
        return found

    def multiply(self, operands: Operands, group: int, part: int) -> None:
        k, ATOM, M, N, P = self.k, self.ATOM, self.TILES_M, self.TILES_N, self.PARTS
        if self.scales:
            byte = self.scales[0].byte(group*P)
            ATOM = ATOM.bytes(byte, byte)
        a, b, scales = operands[part:M*P:P], operands[M*P + part:(M + N)*P:P], operands[(M + N)*P:]
        for i in range(M):
            for j in range(N):
                left, right = k.reinterpret(b[j], ATOM.a.type), k.reinterpret(a[i], ATOM.b.type)
                self.acc[i, j], = k.mma(ATOM, [left, *scales[M + j:M + j + 1]], [right, *scales[i:i + 1]],
                                        [self.acc[i, j]])

    def whole(self, at: Value) -> None:
        """All of a tile, each group read when it is multiplied."""
        for group in range(self.GROUPS):
            operands = self.read(at, group)
            for part in range(self.PARTS):
                self.multiply(operands, group, part)
