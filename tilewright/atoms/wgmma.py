"""Hopper's matrix instructions of a warpgroup (`wgmma.mma_async`): shapes, descriptors of operands in shared memory,
spelling and meaning. Registers of a warp are those of `mma.sync` (atoms.nvidia), and so is what is said of sums there.

A warpgroup is four warps, the first of which has a number that is a multiple of 4. Each of them holds 16 rows of D and,
if A is in registers, of A. A descriptor of 64 bits says how an operand lies in shared memory. The products are computed
while the warps go on: `ir.ops.hopper` says when operands and sums may be accessed, and the simulator checks it.

Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions",
https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.atoms.fragment import ROUNDED, Fragment, truncated
from tilewright.atoms.nvidia import BITS, LANES, SPELLED, fragment
from tilewright.forks import cached_property
from tilewright.formats import unpack
from tilewright.ir.ops.core import Operation, by_machine
from tilewright.ir.ops.hopper import tied
from tilewright.ir.types import Type

M, ROWS_WARP, WARPS = 64, 16, 4
PIECE = 16                      # bytes, of shared memory: what a swizzle moves as a whole
DEPTH = 32                      # bytes of k of one instruction, in every format
ROWS = 8                        # that a swizzle permutes differently, before it repeats
CODES = {0: 0, 128: 1, 64: 2, 32: 3}        # of the swizzle in a descriptor
_STRIDE = 1 << 18               # bytes: strides and addresses in a descriptor have 14 bits, of 16 bytes each

# Formats of A and B, any pair of a row's, and of the sums.
TABLE = ((("f16",), ("f32", "f16")), (("bf16",), ("f32",)), (("tf32",), ("f32",)), (("e4m3fn", "e5m2"), ("f32", "f16")),
         (("i8", "u8"), ("i32",)))


def columns(a: str) -> tuple[int, ...]:
    """Every n for operands of a format."""
    return (8, 16, 24, 32, *range(48, 257, 16)) if a in ("i8", "u8") else (*range(8, 257, 8),)


@dataclass(frozen=True)
class SharedMatrix:
    """How an operand lies in shared memory, in pieces of 16 bytes.

    major="k": k is contiguous. Eight rows of `swizzle` bytes each follow one another, and `stride` bytes on come the
        next eight. Without a swizzle rows have one piece, and the second piece of k is `leading` bytes further.
    major="mn": m or n is contiguous, of 16-bit numbers only. Eight steps of k, `swizzle` bytes of m or n each, follow
        one another; the next eight are `stride` bytes on, the next `swizzle` bytes of m or n `leading` bytes. Without a
        swizzle the next piece of m or n is `stride` bytes on, and the next eight steps of k `leading` bytes.

    `swizzle` bytes (128, 64, 32, or 0) permute pieces: bits of the address from 4 on ^= those from 7 on, as many as
    tell the pieces of a row. That is also how tensor maps of this swizzle bring tiles to shared memory.
    """
    swizzle: int = 128
    major: str = "k"
    stride: int = 1024
    leading: int = 16

    @property
    def repeat(self) -> int:
        """Bytes after which the permutation is the same again: what the matrix has to be aligned to."""
        return ROWS * self.swizzle or PIECE

    @property
    def bits(self) -> int:
        """The descriptor, without the address in its lowest 14 bits."""
        return CODES[self.swizzle] << 62 | self.stride // PIECE << 32 | self.leading // PIECE << 16

    @classmethod
    def decoded(cls, bits: int, major: str) -> SharedMatrix:
        """The layout of a descriptor; the instruction says which dimension is contiguous."""
        swizzle = {code: bytes for bytes, code in CODES.items()}[bits >> 62 & 3]
        return cls(swizzle, major, (bits >> 32 & 0x3fff) * PIECE, (bits >> 16 & 0x3fff) * PIECE)

    def violations(self, format: str) -> Iterator[str]:
        """What is wrong with it for operands of a format, in sentences."""
        if self.swizzle not in CODES:
            yield f"a swizzle permutes rows of 128, 64 or 32 bytes, or of 0, which is none, not of {self.swizzle}"
            return
        if self.major not in ("k", "mn"):
            yield f'major must be "k" or "mn", the contiguous dimension, not {self.major!r}'
        if self.major == "mn" and BITS[format] != 16:
            yield f"{format} has {BITS[format]} bits, and only numbers of 16 bits may have m or n contiguous"
        for name in ("stride", "leading"):
            bytes = getattr(self, name)
            unit = self.repeat if self.swizzle and (name == "stride" or self.major == "mn") else PIECE
            if bytes % unit or not 0 <= bytes < _STRIDE:
                yield (f"{name} must be a multiple of {unit} bytes and less than {_STRIDE}, not {bytes}"
                       + f": a swizzle of {self.swizzle} bytes repeats every {unit}" * (unit > PIECE))

    def misplaced(self, address: int) -> str:
        """Why a matrix cannot begin at this address, or nothing. With k contiguous it may begin inside a row of the
        swizzle, at a step of k; its row is always the first of eight, since descriptors here have no base offset."""
        if not self.swizzle:
            return "" if address % PIECE == 0 else f"it must be a multiple of {PIECE} bytes"
        inside = address % self.repeat
        if inside == 0 or (self.major == "k" and inside % PIECE == 0 and inside <= self.swizzle - DEPTH):
            return ""
        which = f"or up to {self.swizzle - DEPTH} bytes further, a step of k" if self.major == "k" else "no other place"
        return (f"it is {inside} bytes after a multiple of {self.repeat}, where a swizzle of {self.swizzle} bytes "
                f"begins: a matrix begins there, {which}")

    def offsets(self, extent: int) -> NDArray[np.int64]:
        """Where the pieces of `extent` rows or columns are, in bytes and before the swizzle: [extent, 2] if k is
        contiguous, the two pieces of each; else [extent / 8, 16], eight numbers of each step of k."""
        if self.major == "k":
            i, j = np.arange(extent)[:, None], np.arange(DEPTH // PIECE)
            return i % ROWS * (self.swizzle or PIECE) + i // ROWS * self.stride + j * (PIECE if self.swizzle else
                                                                                       self.leading)
        i, p = np.arange(extent * 2 // PIECE)[:, None], np.arange(DEPTH // 2)
        if not self.swizzle:
            return i * self.stride + p % ROWS * PIECE + p // ROWS * self.leading
        row = self.swizzle // PIECE
        return i % row * PIECE + i // row * self.leading + p % ROWS * self.swizzle + p // ROWS * self.stride

    def matrix(self, pieces: NDArray[np.uint8], format: str) -> NDArray[Any]:
        """[extent, k] of the pieces at `offsets`, [..., 16] bytes."""
        numbers = unpack(pieces, ROUNDED.get(format, format), PIECE * 8 // BITS[format])
        if format == "tf32":
            numbers = truncated(numbers)
        if self.major == "k":
            return numbers.reshape(len(pieces), -1)
        return numbers.transpose(0, 2, 1).reshape(-1, DEPTH // 2)


def swizzled(address: Any, swizzle: int) -> Any:
    """Where the piece of an address is kept under a swizzle of so many bytes (0: there)."""
    return address ^ (address >> 7 & swizzle // PIECE - 1) << 4 if swizzle else address


@dataclass(frozen=True)
class Wgmma:
    """D[64, n] (+)= A[64, k] @ B[k, n] by a warpgroup, in formats `a`, `b` and `d`.

    `a_layout` None: A is in registers, four of 32 bits in each lane; B[n, k] is in shared memory always. ValueError for
    what the instruction set lacks.
    """
    n: int
    a: str = "bf16"
    b: str = "bf16"
    d: str = "f32"
    a_layout: SharedMatrix | None = SharedMatrix()
    b_layout: SharedMatrix = SharedMatrix()
    negate_a: bool = False
    negate_b: bool = False

    def __post_init__(self) -> None:
        if why := list(self.violations()):
            raise ValueError(f"{self.name}: {'; '.join(why)}")
        if not self.sums.where or not self.rows_of_a.where:         # proof: every element is in one place, or it raises
            raise ValueError(f"{self.name} has a matrix without elements")

    def violations(self) -> Iterator[str]:
        """What is wrong with it, in sentences."""
        sums = next((sums for inputs, sums in TABLE if {self.a, self.b} <= {*inputs}), None)
        if sums is None:
            yield f"there are no products of {self.a} and {self.b}"
            return
        if self.d not in sums:
            yield f"products of {self.a} are added up in {' or '.join(sums)}, not in {self.d}"
        if self.n not in columns(self.a):
            yield f"n must be one of {', '.join(map(str, columns(self.a)))} for {self.a}, not {self.n}"
        if (self.negate_a or self.negate_b) and self.d == "i32":
            yield "integers cannot be negated on the way"
        for layout, format in (self.a_layout, self.a), (self.b_layout, self.b):
            yield from layout.violations(format) if layout is not None else ()

    @property
    def k(self) -> int:
        return DEPTH * 8 // BITS[self.a]

    @property
    def name(self) -> str:
        """The instruction's name in PTX."""
        d, a, b = (SPELLED.get(format, format) for format in (self.d, self.a, self.b))
        return f"wgmma.mma_async.sync.aligned.m{M}n{self.n}k{self.k if self.a in BITS else '?'}.{d}.{a}.{b}"

    @cached_property
    def sums(self) -> Fragment:
        """The fragment of D: the 16 rows of a warp."""
        return fragment(self.d, "c", ROWS_WARP, self.n)

    @cached_property
    def rows_of_a(self) -> Fragment:
        """The fragment of A where A is in registers: the 16 rows of a warp."""
        return fragment(self.a, "a", ROWS_WARP, self.k)

    @property
    def sum(self) -> Type:
        """The type of a register of D: f32, or i32 for integers and for pairs of f16."""
        return self.sums.type.scalar

    @property
    def registers(self) -> int:
        """How many registers D takes in each lane."""
        return self.sums.type.length

    @cached_property
    def operation(self) -> Operation:
        """The operation on D's registers, A (its four registers, or where it begins in shared memory), where B begins,
        and whether to add to D (an i1)."""
        flops = 2*M*self.n*self.k // (WARPS * LANES) if self.d != "i32" else 0
        return Operation(self.name, self._llvm, by_machine("wgmma", "issue", self), "wgmma", "effect", needs="wgmma",
                         flops=flops)

    def _llvm(self, low: Any, t: Any, *operands: Any) -> list[Any]:
        """Inline assembly, since LLVM has no intrinsic. Sums are tied: an asynchronous instruction reads and writes the
        same registers."""
        d, (*a, b, add) = operands[:self.registers], operands[self.registers:]
        given = [*(a if self.a_layout is None else [self._descriptor(low, a[0], self.a_layout)]),
                 self._descriptor(low, b, self.b_layout), low.b.zext(add, low.integer(32))]
        count = self.registers
        at = [f"${count * 2 + i}" for i in range(len(given))]
        if self.a_layout is None:
            at = ["{" + ", ".join(at[:4]) + "}", *at[4:]]
        flags = []
        if self.d != "i32":
            flags += [str(1 - 2*self.negate_a), str(1 - 2*self.negate_b)]
        if BITS[self.a] == 16:
            flags += [str(int(layout.major == "mn")) for layout in (self.a_layout, self.b_layout) if layout is not None]
        sums = "{" + ", ".join(f"${r}" for r in range(count)) + "}"
        text = (f"{{ .reg .pred p; setp.ne.b32 p, {at[-1]}, 0; "
                f"{self.name} {', '.join([sums, *at[:-1], 'p', *flags])}; }}")
        return tied(low, text, self.sum, d, given)

    @staticmethod
    def _descriptor(low: Any, pointer: Any, layout: SharedMatrix) -> Any:
        """Shared memory has less than 2^18 bytes: above these, addresses in a cluster have the CTA's rank. Constant
        distances are added last, so that the steps of a stage share the rest."""
        word, wide, distance = low.integer(32), low.integer(64), 0
        while (step := low.constant_step(pointer)) is not None and step >= 0 and step % 16 == 0:
            pointer, distance = pointer.pointer, distance + step
        address = low.b.lshr(low.b.and_(low.b.ptrtoint(pointer, word), low.i32(_STRIDE - 1)), low.i32(4))
        lower, upper = layout.bits & 0xFFFFFFFF, layout.bits >> 32 << 32
        lower = low.b.add(low.b.or_(address, word(lower)), low.i32(distance // 16))
        return low.b.or_(low.b.zext(lower, wide), wide(upper - (upper >> 63 << 64)), name="descriptor")

    def product(self, a: Any, b: Any, c: Any) -> Any:
        """a [rows, k] times b [n, k] transposed, plus c [rows, n], all in f64: as exactly as atoms.nvidia says. Sums in
        i32 keep their lowest 32 bits."""
        with np.errstate(all="ignore"):
            total = (-a if self.negate_a != self.negate_b else a) @ b.T + c
            return total.astype(np.int64) if self.d == "i32" else total
