"""AMX in the simulator: every thread's tile registers, and products of tiles to the last bit.

A tile is [16, 16] words of 32 bits. TDPBF16PS adds up, in f32 with one rounding per step, the products of even elements
of k and those of odd ones, adds the two sums, and adds that to the accumulator (Intel's Software Developer's Manual,
volume 2); subnormal numbers are 0, as operands and as results.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from ml_dtypes import bfloat16
from numpy.typing import NDArray

from tilewright.ir.exact import fused_multiply_add
from tilewright.ir.tiles import COUNT, ROW_BYTES, ROWS
from tilewright.ir.types import f32, i8, i32, vec
from tilewright.simulator.access import Access
from tilewright.simulator.fault import Fault

if TYPE_CHECKING:
    from tilewright.ir.program import Op
    from tilewright.simulator.gang import Gang
    from tilewright.simulator.machine import Machine

Tile = NDArray[np.int32]
SMALLEST = np.float32(2.0 ** -126)


class Tiles:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._accesses: dict[Op, Access] = {}

    def begin(self) -> None:
        """Others run now."""
        self.of: dict[int, list[Tile]] = {}         # thread → its tiles, while they are configured

    # ---- operations

    def configure(self, gang: Gang, node: Op, pointer: Any) -> None:
        config = self._access(gang, node, "load", vec(i8, 64), 1).load(gang, pointer).ravel().view(np.uint8)
        sizes, rows = config[16:48].view(np.uint16), config[48:64]
        whole = config[0] == 1 and (sizes[:COUNT] == ROW_BYTES).all() and (rows[:COUNT] == ROWS).all()
        if not whole or config[1:16].any() or sizes[COUNT:].any() or rows[COUNT:].any():
            self._fault(gang, node, "a configuration of tiles other than eight of 16 rows of 64 bytes")
        self.of[self._thread(gang)] = [np.zeros((ROWS, ROW_BYTES // 4), np.int32) for _ in range(COUNT)]

    def release(self, gang: Gang, node: Op) -> None:
        self._tiles(gang, node)
        del self.of[self._thread(gang)]

    def zero(self, gang: Gang, node: Op, t: int) -> None:
        self._tiles(gang, node)[t][:] = 0

    def load(self, gang: Gang, node: Op, t: int, pointer: Any, step: Any) -> None:
        tile, access = self._tiles(gang, node)[t], self._access(gang, node, "load", vec(i32, 16), 1)
        for row in range(ROWS):
            tile[row] = access.load(gang, pointer + row * step)[:, 0]

    def store(self, gang: Gang, node: Op, t: int, pointer: Any, step: Any) -> None:
        tile, access = self._tiles(gang, node)[t], self._access(gang, node, "store", vec(i32, 16), 1)
        for row in range(ROWS):
            access.store(gang, pointer + row * step, tile[row][:, None])

    def dot_bf16(self, gang: Gang, node: Op, c: int, a: int, b: int) -> None:
        tiles = self._tiles(gang, node)
        x = tiles[a].view(bfloat16).astype(np.float32)                                  # [row, 2*word + half]
        y = tiles[b].view(bfloat16).astype(np.float32).reshape(ROWS, -1, 2)             # [word, column, half]
        y = y.transpose(0, 2, 1).reshape(x.shape[1], -1)
        tiles[c][:] = dot_bf16(x, y, tiles[c].view(np.float32)).view(np.int32)

    def dot_ss(self, gang: Gang, node: Op, c: int, a: int, b: int) -> None:
        self._dot(gang, node, c, a, b, np.int8, np.int8)

    def dot_su(self, gang: Gang, node: Op, c: int, a: int, b: int) -> None:
        self._dot(gang, node, c, a, b, np.int8, np.uint8)

    def dot_us(self, gang: Gang, node: Op, c: int, a: int, b: int) -> None:
        self._dot(gang, node, c, a, b, np.uint8, np.int8)

    def dot_uu(self, gang: Gang, node: Op, c: int, a: int, b: int) -> None:
        self._dot(gang, node, c, a, b, np.uint8, np.uint8)

    def _dot(self, gang: Gang, node: Op, c: int, a: int, b: int, of_a: Any, of_b: Any) -> None:
        """Modulo 2^32: sums of bytes' products in i64 wrap when they are stored."""
        tiles = self._tiles(gang, node)
        x = tiles[a].view(of_a).astype(np.int64)                                        # [row, 4*word + byte]
        y = tiles[b].view(of_b).astype(np.int64).reshape(ROWS, -1, 4)                   # [word, column, byte]
        product = x @ y.transpose(0, 2, 1).reshape(x.shape[1], -1)
        tiles[c][:] = (tiles[c] + product).astype(np.int32)

    # ---- whose they are

    def _thread(self, gang: Gang) -> int: return int(gang.threads[0])

    def _tiles(self, gang: Gang, node: Op) -> list[Tile]:
        tiles = self.of.get(self._thread(gang))
        if tiles is None:
            self._fault(gang, node, "no tiles are configured")
        return tiles                                                                    # type: ignore[return-value]

    def _fault(self, gang: Gang, node: Op, why: str) -> None:
        raise Fault("tiles", node.line, gang.frame.code.name, why + gang.by(0))

    def _access(self, gang: Gang, node: Op, verb: str, t: Any, align: int) -> Access:
        found = self._accesses.get(node)
        if found is None:
            found = self._accesses[node] = Access(self.machine, gang.frame.code.name, node.line, verb, t, align)
        return found


def dot_bf16(x: NDArray[np.float32], y: NDArray[np.float32], c: NDArray[np.float32]) -> NDArray[np.float32]:
    """c + x @ y for 32 steps of k, as TDPBF16PS does it."""
    x, y = flushed(x), flushed(y)
    sums = []
    for half in range(2):
        total = np.zeros((len(x), y.shape[1]), np.float32)
        for p in range(half, x.shape[1], 2):
            total = flushed(fused_multiply_add(f32, x[:, p, None], y[p], total))
        sums.append(total)
    return flushed(flushed(c) + flushed(sums[0] + sums[1]))


def flushed(x: Any) -> Any:
    """Without subnormal numbers: these become 0 of their sign."""
    return np.where(np.abs(x) < SMALLEST, np.copysign(np.float32(0), x), x)
