"""AMX: eight tile registers of 16 rows of 64 bytes, loaded and stored with a step between rows, and multiplied.

A tile register has a number, not a value: kernels say which. A thread configures its tiles before it uses them and
releases them at the end; kernels here use all of every tile. What the operations mean is in `simulator.tiles`.

    tiles = Tiles(k)
    tiles.zero(0); tiles.load(4, a, 16); tiles.load(6, b, 32); tiles.dot("bf16", 0, 4, 6); tiles.store(0, c, ldc)
"""
from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from tilewright.ir.operations import Operation
from tilewright.ir.types import i8, i64
from tilewright.ir.values import Value

if TYPE_CHECKING:
    from tilewright.ir.builder import Kernel

COUNT, ROWS, ROW_BYTES = 8, 16, 64
# Of A and B: pairs of bf16, added to f32; quadruples of bytes with (s) or without (u) a sign, added to i32.
DOTS = {"bf16": "tdpbf16ps", "ss": "tdpbssd", "su": "tdpbsud", "us": "tdpbusd", "uu": "tdpbuud"}
_CONFIG = {0: 1, 2: 0x0040004000400040, 3: 0x0040004000400040, 6: 0x1010101010101010}   # palette, row bytes, rows


def _effect(name: str, intrinsic: str, method: str, *numbers: int, needs: str = "amx-tile",
            writes: bool = False) -> Operation:
    def spelling(low: Any, t: Any, *operands: Any) -> None:
        low.call(f"llvm.x86.{intrinsic}", None, *(low.integer(8)(number) for number in numbers), *operands)

    def meaning(gang: Any, node: Any, *operands: Any) -> None:
        getattr(gang.machine.tiles, method)(gang, node, *numbers, *operands)
    return Operation(name, spelling, meaning, "tile", "effect", needs=needs, writes=writes)


CONFIGURE = _effect("ldtilecfg", "ldtilecfg", "configure")
RELEASE = _effect("tilerelease", "tilerelease", "release")


@cache
def zero(t: int) -> Operation: return _effect("tilezero", "tilezero", "zero", t)
@cache
def load(t: int) -> Operation: return _effect("tileloadd", "tileloadd64", "load", t)
@cache
def store(t: int) -> Operation: return _effect("tilestored", "tilestored64", "store", t, writes=True)


@cache
def dot(kind: str, c: int, a: int, b: int) -> Operation:
    return _effect(DOTS[kind], DOTS[kind], "dot_bf16" if kind == "bf16" else f"dot_{kind}", c, a, b,
                   needs="amx-bf16" if kind == "bf16" else "amx-int8")


class Tiles:
    """The tile registers of the thread that runs kernel `k`."""

    def __init__(self, k: Kernel) -> None:
        self.k = k

    def configure(self) -> None:
        """Every tile has 16 rows of 64 bytes; all are 0."""
        config = self.k.local("config", (8,), i64)
        for i in range(8):
            config[i] = _CONFIG.get(i, 0)
        self.k._effect(CONFIGURE, config.as_(i8))

    def release(self) -> None: self.k._effect(RELEASE)
    def zero(self, t: int) -> None: self.k._effect(zero(_checked(t)))

    def load(self, t: int, pointer: Value, step: Any) -> None:
        """16 rows of 64 bytes; the next one begins `step` elements after the one before."""
        self.k._effect(load(_checked(t)), pointer, self._bytes(pointer, step))

    def store(self, t: int, pointer: Value, step: Any) -> None:
        """The reverse."""
        self.k._effect(store(_checked(t)), pointer, self._bytes(pointer, step))

    def dot(self, kind: str, c: int, a: int, b: int) -> None:
        """c += a @ b, where a row of `a` and a column of `b` hold 16 words of 32 bits: of two bf16 ("bf16"), or four
        bytes, with a sign or without one in a and in b ("ss", "su", "us", "uu")."""
        if kind not in DOTS or len({*map(_checked, (c, a, b))}) < 3:
            raise ValueError(f"tiles {c}, {a} and {b} cannot be multiplied as {kind!r}: they must be three different "
                             f"ones, and the kind one of {', '.join(DOTS)}")
        self.k._effect(dot(kind, c, a, b))

    def _bytes(self, pointer: Value, step: Any) -> Value:
        return self.k._value(step, i64) * pointer.type.element.bytes


def _checked(t: int) -> int:
    if not 0 <= t < COUNT:
        raise ValueError(f"there are tile registers 0 to {COUNT - 1}, not {t}")
    return t
