"""What x86 alone has: products of words, and AMX's tile registers.

Source: Intel, "64 and IA-32 Architectures Software Developer's Manual", volume 2,
https://www.intel.com/content/www/us/en/developer/articles/technical/intel-sdm.html
"""
from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.exact import flushing_multiply_add, silent_multiply_add, some
from tilewright.ir.ops.core import Operation
from tilewright.ir.types import Type, f32, i8, i16, i32, i64, vec
from tilewright.ir.values import Value

if TYPE_CHECKING:
    from tilewright.ir.builder import Kernel


# ---- products of words: the two or four numbers in each element of 32 bits are multiplied, and the products added up
#
#     quads        four bytes of a, without sign, by four of b, with sign, into i32
#     pairs        two i16 by two i16 into i32
#     bf16_pairs   two bf16 by two bf16 into f32
#
# The integer ones are exact modulo 2^32. bf16_pairs is what Intel's manual says of VDPBF16PS and what a Zen 5 does, to
# the bit: two fused multiply-adds, first of the upper halves, then of the lower ones, each rounded to nearest even
# whatever MXCSR says; operands and results that are subnormal count as zeros of their sign.

_BITS = {4: 128, 8: 256, 16: 512}       # of a vector of so many words
LENGTHS = tuple(_BITS)


def _sum_of_products(BITS: int, signed: bool) -> Any:
    def meaning(t: Any, c: Any, a: Any, b: Any) -> Any:
        total = np.asarray(c).astype(np.int64)
        for shift in range(0, 32, BITS):
            x = _part(a, shift, BITS) if signed else (np.asarray(a) >> shift) & ((1 << BITS) - 1)
            total = total + x.astype(np.int64) * _part(b, shift, BITS)
        return total.astype(t.numpy)[()]
    return meaning


def _part(x: Any, shift: int, BITS: int) -> Any:
    """The number with sign that stands in so many bits from `shift` on."""
    return (np.asarray(x) << 32 - BITS - shift) >> 32 - BITS


def _bf16_pairs(t: Any, c: Any, a: Any, b: Any) -> Any:
    a, b = np.asarray(a), np.asarray(b)
    upper = np.int32(-1 << 16)
    c = flushing_multiply_add((a & upper).view(np.float32), (b & upper).view(np.float32), c)
    return flushing_multiply_add((a << 16).view(np.float32), (b << 16).view(np.float32), c)


def _pairs_llvm(low: Any, t: Any, c: Any, a: Any, b: Any) -> Any:
    """A product and a sum, which LLVM makes one instruction (vpdpwssd) of where the chip has it."""
    name = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}[t.length]
    halves = [low.b.bitcast(x, low.type(vec(i16, 2 * t.length))) for x in (a, b)]
    return low.b.add(low.call(f"llvm.x86.{name}", t, *halves), c, name="pairs")


def _bf16_llvm(low: Any, t: Any, c: Any, a: Any, b: Any) -> Any:
    halves = [low.b.bitcast(x, low.bfloats(2 * t.length)) for x in (a, b)]
    return low.call(f"llvm.x86.avx512bf16.dpbf16ps.{_BITS[t.length]}", t, c, *halves)


QUADS = Operation("quads", lambda low, t, *cab: low.call(f"llvm.x86.avx512.vpdpbusd.{_BITS[t.length]}", t, *cab),
                  _sum_of_products(8, signed=False), "fma", needs="avx512vnni or avxvnni")
PAIRS = Operation("pairs", _pairs_llvm, _sum_of_products(16, signed=True), "fma", needs="avx2")
BF16_PAIRS = Operation("bf16_pairs", _bf16_llvm, _bf16_pairs, "fma", needs="avx512bf16")


def quads(k: Kernel, a: Value, b: Value, c: Value) -> Value:
    """c + a*b of vectors of i32 that each hold four bytes, those of a without sign and those of b with one: the
    four products of an element are added to it, modulo 2^32."""
    return _words(k, QUADS, i32, a, b, c)


def pairs(k: Kernel, a: Value, b: Value, c: Value) -> Value:
    """Add dot products of pairs of i16 to c: a and b are vectors of i32 that each hold two i16."""
    return _words(k, PAIRS, i32, a, b, c)


def bf16_pairs(k: Kernel, a: Value, b: Value, c: Value) -> Value:
    """Add dot products of pairs of bf16 to c, of f32: a and b are vectors of i32. ir/ops/x86.py says how it rounds."""
    return _words(k, BF16_PAIRS, f32, a, b, c)


def _words(k: Kernel, operation: Operation, sums: Type, a: Value, b: Value, c: Value) -> Value:
    length = c.type.length
    if (a.type, b.type, c.type) != (vec(i32, length), vec(i32, length), vec(sums, length)) or length not in LENGTHS:
        raise TypeError(f"{operation.name} are multiplied in vectors of 4, 8 or 16 i32 and added up in as many "
                        f"{sums}, not {a.type} by {b.type} in {c.type}")
    return k._op(operation, c.type, c, a, b)


# ---- look-ups: elements of a table that is in a register, by the lowest bits of indices

# The table's types and needs, and what LLVM calls them.
_TABLES = {vec(f32, 8): ("avx2", "avx2.permps"), vec(i32, 8): ("avx2", "avx2.permd"),
           vec(f32, 16): ("avx512f", "avx512.permvar.sf.512"), vec(i32, 16): ("avx512f", "avx512.permvar.si.512"),
           vec(i16, 32): ("avx512bw", "avx512.permvar.hi.512")}


def _lookup(t: Any, table: Any, index: Any) -> Any:
    table, index = np.broadcast_arrays(table, np.asarray(index) & t.length - 1)
    return np.take_along_axis(table, index, 0)


LOOKUPS = {t: Operation("lookup", lambda low, t, *xs, name=name: low.call(f"llvm.x86.{name}", t, *xs), _lookup, "move",
                        needs=needs) for t, (needs, name) in _TABLES.items()}


def lookup(k: Kernel, table: Value, index: Value) -> Value:
    """table[index mod its length] for each index: a table of 8 or 16 f32 or i32, or of 32 i16, and as many integers of
    as many bits."""
    integer_type = {32: i32, 16: i16}.get(table.type.scalar.bits)
    if table.type not in LOOKUPS or integer_type is None or index.type != vec(integer_type, table.type.length):
        raise TypeError("a table of 8 or 16 f32 or i32, or of 32 i16, is looked up at as many integers of as many "
                        f"bits, not {table.type} at {index.type}")
    return k._op(LOOKUPS[table.type], table.type, table, index)


# ---- AMX: eight tile registers of 16 rows of 64 bytes, loaded and stored with a step between rows, and multiplied
#
# A tile register has a number, not a value: kernels say which. A thread configures its tiles before it uses them and
# releases them at the end; kernels here use all of every tile. In the simulator a tile is [16, 16] words of 32 bits,
# and `machine.tiles` has those of each thread while they are configured.
#
# TDPBF16PS adds up, in f32 with one rounding per step, the products of even elements of k and those of odd ones, adds
# the two sums, and adds that to the accumulator; subnormal numbers are 0, as operands and as results.

COUNT, ROWS, ROW_BYTES = 8, 16, 64
# Of A and B: pairs of bf16, added to f32; quadruples of bytes with (s) or without (u) a sign, added to i32.
DOTS = {"bf16": "tdpbf16ps", "ss": "tdpbssd", "su": "tdpbsud", "us": "tdpbusd", "uu": "tdpbuud"}
SMALLEST = np.float32(2.0 ** -126)
_CONFIG = {0: 1, 2: 0x0040004000400040, 3: 0x0040004000400040, 6: 0x1010101010101010}   # palette, row bytes, rows


def _tile_operation(name: str, intrinsic: str, meaning: Any, *numbers: int, needs: str = "amx-tile",
                    writes: bool = False) -> Operation:
    """`meaning` is of (gang, node, the thread's tiles, *numbers, *operands)."""
    def spelling(low: Any, t: Any, *operands: Any) -> None:
        low.call(f"llvm.x86.{intrinsic}", None, *(low.integer(8)(number) for number in numbers), *operands)

    def on_tiles(gang: Any, node: Any, *operands: Any) -> None:
        tiles = gang.machine.tiles.get(int(gang.threads[0]))
        if tiles is None and name != "ldtilecfg":
            raise gang.fault("tiles", node, "no tiles are configured" + gang.by(0))
        meaning(gang, node, tiles, *numbers, *operands)
    return Operation(name, spelling, on_tiles, "tile", "effect", needs=needs, writes=writes)


def _configure(gang: Any, node: Any, tiles: Any, pointer: Any) -> None:
    config = gang.access(node, "load", vec(i8, 64), 1).load(gang, pointer).ravel().view(np.uint8)
    sizes, rows = config[16:48].view(np.uint16), config[48:64]
    supported = config[0] == 1 and (sizes[:COUNT] == ROW_BYTES).all() and (rows[:COUNT] == ROWS).all()
    if not supported or config[1:16].any() or sizes[COUNT:].any() or rows[COUNT:].any():
        raise gang.fault("tiles", node, "a configuration of tiles other than eight of 16 rows of 64 bytes" + gang.by(0))
    gang.machine.tiles[int(gang.threads[0])] = [np.zeros((ROWS, ROW_BYTES // 4), np.int32) for _ in range(COUNT)]


def _release(gang: Any, node: Any, tiles: Any) -> None:
    del gang.machine.tiles[int(gang.threads[0])]


def _zero(gang: Any, node: Any, tiles: Any, t: int) -> None:
    tiles[t][:] = 0


def _load(gang: Any, node: Any, tiles: Any, t: int, pointer: Any, step: Any) -> None:
    access = gang.access(node, "load", vec(i32, 16), 1)
    for row in range(ROWS):
        tiles[t][row] = access.load(gang, pointer + row * step)[:, 0]


def _store(gang: Any, node: Any, tiles: Any, t: int, pointer: Any, step: Any) -> None:
    access = gang.access(node, "store", vec(i32, 16), 1)
    for row in range(ROWS):
        access.store(gang, pointer + row * step, tiles[t][row][:, None])


def _dot_bf16(gang: Any, node: Any, tiles: Any, c: int, a: int, b: int) -> None:
    import ml_dtypes
    x = tiles[a].view(ml_dtypes.bfloat16).astype(np.float32)                            # [row, 2*word + half]
    y = tiles[b].view(ml_dtypes.bfloat16).astype(np.float32).reshape(ROWS, -1, 2)       # [word, column, half]
    y = y.transpose(0, 2, 1).reshape(x.shape[1], -1)
    tiles[c][:] = dot_bf16(x, y, tiles[c].view(np.float32)).view(np.int32)


def dot_bf16(x: NDArray[np.float32], y: NDArray[np.float32], c: NDArray[np.float32]) -> NDArray[np.float32]:
    """c + x @ y for 32 steps of k, as TDPBF16PS does it."""
    (rows, steps), columns = x.shape, y.shape[1]
    halves_of_x = _flushed(x).reshape(rows, steps // 2, 2).transpose(2, 1, 0)[..., None]        # [half, word, row, 1]
    halves_of_y = _flushed(y).reshape(steps // 2, 2, columns).transpose(1, 0, 2)[:, :, None]    # [half, word, 1, col.]
    sums = np.zeros((2, rows, columns), np.float32)
    with np.errstate(all="ignore"):
        for pair in range(steps // 2):
            sums = _flushed(silent_multiply_add(f32, halves_of_x[:, pair], halves_of_y[:, pair], sums))
        return _flushed(_flushed(c) + _flushed(sums[0] + sums[1]))


def _flushed(x: Any) -> Any:
    """Without subnormal numbers: these become 0 of their sign."""
    small = np.abs(x) < SMALLEST
    return np.where(small, np.copysign(np.float32(0), x), x) if some(small) else x


def _dot_bytes(kind: str) -> Any:
    """Modulo 2^32: sums of bytes' products in i64 wrap when they are stored."""
    of_a, of_b = (np.int8 if sign == "s" else np.uint8 for sign in kind)

    def meaning(gang: Any, node: Any, tiles: Any, c: int, a: int, b: int) -> None:
        x = tiles[a].view(of_a).astype(np.int64)                                        # [row, 4*word + byte]
        y = tiles[b].view(of_b).astype(np.int64).reshape(ROWS, -1, 4)                   # [word, column, byte]
        product = x @ y.transpose(0, 2, 1).reshape(x.shape[1], -1)
        tiles[c][:] = (tiles[c] + product).astype(np.int32)
    return meaning


CONFIGURE = _tile_operation("ldtilecfg", "ldtilecfg", _configure)
RELEASE = _tile_operation("tilerelease", "tilerelease", _release)


@cache
def _dot(kind: str, c: int, a: int, b: int) -> Operation:
    return _tile_operation(DOTS[kind], DOTS[kind], _dot_bf16 if kind == "bf16" else _dot_bytes(kind), c, a, b,
                           needs="amx-bf16" if kind == "bf16" else "amx-int8")


class TileRegisters:
    """The tile registers of the thread that runs kernel `k`.

        tiles = TileRegisters(k)
        tiles.zero(0); tiles.load(4, a, 16); tiles.load(6, b, 32); tiles.dot("bf16", 0, 4, 6); tiles.store(0, c, ldc)
    """

    def __init__(self, k: Kernel) -> None:
        self.k = k

    def configure(self) -> None:
        """Every tile has 16 rows of 64 bytes; all are 0."""
        config = self.k.local("config", (8,), i64)
        for i in range(8):
            config[i] = _CONFIG.get(i, 0)
        self.k._effect(CONFIGURE, config.as_(i8))

    def release(self) -> None:
        self.k._effect(RELEASE)

    def zero(self, t: int) -> None:
        self.k._effect(_tile_operation("tilezero", "tilezero", _zero, _checked(t)))

    def load(self, t: int, pointer: Value, step: Any) -> None:
        """16 rows of 64 bytes; the next one begins `step` elements after the one before."""
        operation = _tile_operation("tileloadd", "tileloadd64", _load, _checked(t))
        self.k._effect(operation, pointer, self._bytes(pointer, step))

    def store(self, t: int, pointer: Value, step: Any) -> None:
        """The reverse."""
        operation = _tile_operation("tilestored", "tilestored64", _store, _checked(t), writes=True)
        self.k._effect(operation, pointer, self._bytes(pointer, step))

    def dot(self, kind: str, c: int, a: int, b: int) -> None:
        """c += a @ b, where a row of `a` and a column of `b` hold 16 words of 32 bits: of two bf16 ("bf16"), or four
        bytes, with a sign or without one in a and in b ("ss", "su", "us", "uu")."""
        if kind not in DOTS or len({*map(_checked, (c, a, b))}) < 3:
            raise ValueError(f"tiles {c}, {a} and {b} cannot be multiplied as {kind!r}: they must be three different "
                             f"ones, and the kind one of {', '.join(DOTS)}")
        self.k._effect(_dot(kind, c, a, b))

    def _bytes(self, pointer: Value, step: Any) -> Value:
        return self.k._value(step, i64) * pointer.type.element.bytes


def _checked(t: int) -> int:
    if not 0 <= t < COUNT:
        raise ValueError(f"there are tile registers 0 to {COUNT - 1}, not {t}")
    return t
