"""Instructions of AMD's machine code as LLVM writes them, and what those for whole numbers compute.

The tables say it of single registers, in numbers of 64 bits without a sign: operands are zero beyond their own bits,
and of a result as many count as its register has.

Source: AMD Instinct MI300 and CDNA4 ISA guides, chapter 12; LLVM's syntax, AMDGPUUsage.
"""
from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

Bits = Any                      # NDArray[np.uint64], [waves or 1, lanes or 1]
WAVE = 64
LOW = (1 << 32) - 1
_BELOW = (np.uint64(1) << np.arange(WAVE, dtype=np.uint64)) - np.uint64(1)      # the lanes before each
_NAMED = {name: (f"{name}_lo", f"{name}_hi") for name in ("vcc", "exec", "flat_scratch", "xnack_mask")}


@dataclass(frozen=True)
class Instruction:
    """One line: `v_add_u32_e32 v1, 4, v2` is of the name v_add_u32, with three operands."""
    text: str
    name: str
    operands: tuple[str, ...]
    modifiers: dict[str, str]       # "offset:16" by its name
    flags: frozenset[str]           # words without a number: "lds", "offen", "clamp", "sc1"

    @property
    def registers(self) -> list[str]:
        return [name for operand in self.operands for name in registers(operand)]


def instruction(line: str) -> Instruction:
    name, _, rest = line.partition(" ")
    found = re.search(r"\s\w+:", " " + rest)
    head, tail = (rest[:found.start()], rest[found.start():]) if found else (rest, "")
    operands = [x.strip() for x in head.split(",")] if head.strip() else []
    flags = tail.split()
    if operands:
        first, *words = operands[-1].split()
        operands[-1] = first
        flags += words
    modifiers = dict(re.findall(r"(\w+):(\[[^\]]*\]|\S+)", tail))
    return Instruction(line, re.sub(r"_(e32|e64|dpp|sdwa)$", "", name), tuple(operands), modifiers,
                       frozenset(x for x in flags if ":" not in x))


@cache
def registers(operand: str) -> tuple[str, ...]:
    """The registers of 32 bits that an operand names, none if it is a number."""
    operand = operand.strip("-|")
    if operand in _NAMED:
        return _NAMED[operand]
    if found := re.fullmatch(r"([vsa])\[(\d+):(\d+)\]", operand):
        return tuple(f"{found[1]}{n}" for n in range(int(found[2]), int(found[3]) + 1))
    return (operand,) if re.fullmatch(r"[vsa]\d+|m0|\w+_(lo|hi)", operand) else ()


def signed(x: Any, bits: int = 32) -> Any:
    return (x.astype(np.int64) << (64 - bits)) >> (64 - bits)


def as_float(x: Bits) -> Any:
    return x.astype(np.uint32).view(np.float32)


def _of_float(x: Any) -> Bits:
    return np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)


def as_bits(x: Any) -> Bits:
    return np.asarray(x).astype(np.uint64)


def _same(x: Any) -> Any:
    return x


def _high(x: Any, y: Any) -> Any:
    return as_bits((signed(x)*signed(y)) >> 32)


def _field(x: Any, first: Any, count: Any) -> Any:
    return x >> (first & 31) & ((1 << (count & 31)) - 1)


def _reversed(x: Any) -> Any:
    return sum((x >> bit & 1) << (31 - bit) for bit in range(32))


def _reciprocal(x: Bits) -> Bits:
    with np.errstate(divide="ignore"):
        return _of_float(np.float32(1) / as_float(x))


def table(x: Any, y: Any, z: Any, table: int) -> Any:
    """Bits of v_bitop3: bit 4x + 2y + z of the table."""
    found = x & 0
    for row in (row for row in range(8) if table >> row & 1):
        found = found | (x if row & 4 else ~x) & (y if row & 2 else ~y) & (z if row & 1 else ~z)
    return found


def _both(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: as_bits(function(signed(x), signed(y)))


# Of operands of 32 bits, zero beyond them; of the result as many bits count as its register has.
_COMMON: dict[str, Callable[..., Any]] = {
    "mov_b32": _same, "not_b32": operator.invert, "and_b32": operator.and_, "or_b32": operator.or_,
    "xor_b32": operator.xor, "min_u32": np.minimum, "max_u32": np.maximum, "min_i32": _both(np.minimum),
    "max_i32": _both(np.maximum), "brev_b32": _reversed, "bfrev_b32": _reversed}
VECTOR: dict[str, Callable[..., Any]] = _COMMON | {
    "accvgpr_read_b32": _same, "accvgpr_write_b32": _same, "accvgpr_mov_b32": _same,
    "add_u32": operator.add, "sub_u32": operator.sub, "subrev_u32": lambda x, y: y - x, "mul_lo_u32": operator.mul,
    "mul_hi_u32": lambda x, y: x*y >> 32, "mul_hi_i32": _high, "bfe_u32": _field,
    "bfe_i32": lambda x, first, count: signed(_field(x, first, count), int(count.flat[0])),
    "mul_u32_u24": lambda x, y: (x & 0xFFFFFF)*(y & 0xFFFFFF),
    "mad_u32_u24": lambda x, y, z: (x & 0xFFFFFF)*(y & 0xFFFFFF) + z,
    "add3_u32": lambda x, y, z: x + y + z, "xad_u32": lambda x, y, z: (x ^ y) + z, "or3_b32": lambda x, y, z: x | y | z,
    "and_or_b32": lambda x, y, z: x & y | z, "lshl_or_b32": lambda x, y, z: x << (y & 31) | z,
    "lshl_add_u32": lambda x, y, z: (x << (y & 31)) + z, "add_lshl_u32": lambda x, y, z: (x + y & LOW) << (z & 31),
    "lshlrev_b32": lambda x, y: y << (x & 31), "lshrrev_b32": lambda x, y: y >> (x & 31),
    "ashrrev_i32": lambda x, y: signed(y) >> (x & 31).astype(np.int64),
    "mbcnt_lo_u32_b32": lambda x, y: np.bitwise_count(x & _BELOW & LOW) + y,
    "mbcnt_hi_u32_b32": lambda x, y: np.bitwise_count(x & _BELOW >> 32) + y,
    "cvt_f32_u32": lambda x: _of_float(x.astype(np.float32)), "rcp_iflag_f32": _reciprocal,
    "mul_f32": lambda x, y: _of_float(as_float(x)*as_float(y)), "cvt_u32_f32": lambda x: as_bits(np.trunc(as_float(x)))}
HALF: dict[str, Callable[..., Any]] = {                # of 16 bits, and the upper half becomes 0
    "mul_lo_u16": operator.mul, "add_u16": operator.add, "sub_u16": operator.sub, "subrev_u16": lambda x, y: y - x,
    "lshrrev_b16": lambda x, y: y >> (x & 15), "lshlrev_b16": lambda x, y: y << (x & 15), "min_u16": np.minimum,
    "max_u16": np.maximum, **dict.fromkeys(("mad_u16", "mad_legacy_u16"), lambda x, y, z: x*y + z)}
WIDE: dict[str, Callable[..., Any]] = {                # of 64 bits
    "mov_b64": _same, "lshl_add_u64": lambda x, y, z: (x << (y & 63)) + z, "lshlrev_b64": lambda x, y: y << (x & 63),
    "lshrrev_b64": lambda x, y: y >> (x & 63)}
SCALAR: dict[str, Callable[..., Any]] = _COMMON | {
    "add_u32": operator.add, "sub_u32": operator.sub, "add_i32": operator.add, "sub_i32": operator.sub,
    "mul_i32": operator.mul, "mul_hi_u32": lambda x, y: x*y >> 32, "mul_hi_i32": _high,
    "movk_i32": _same, "addk_i32": operator.add,
    "mulk_i32": operator.mul, "bitset1_b32": lambda x, y: x | np.uint64(1) << (y & 31),
    "bitset0_b32": lambda x, y: x & ~(np.uint64(1) << (y & 31)), "andn2_b32": lambda x, y: x & ~y,
    "lshl_b32": lambda x, y: x << (y & 31), "lshr_b32": lambda x, y: x >> (y & 31),
    "ashr_i32": lambda x, y: signed(x) >> (y & 31).astype(np.int64), "mov_b64": _same, "and_b64": operator.and_,
    "bcnt1_i32_b64": np.bitwise_count,
    "bfe_u32": lambda x, y: _field(x, y, y >> 16), "or_b64": operator.or_, "xor_b64": operator.xor,
    "andn2_b64": lambda x, y: x & ~y, "not_b64": operator.invert, "lshl_b64": lambda x, y: x << (y & 63),
    "lshr_b64": lambda x, y: x >> (y & 63), "ashr_i64": lambda x, y: x.astype(np.int64) >> (y & 63).astype(np.int64),
    **{f"lshl{n}_add_u32": lambda x, y, n=n: (x << n) + y for n in range(1, 5)}}
OWN = ("bitset", "addk", "mulk")                       # the result's register is the first operand, too
KEEPS_SCC = ("mov", "mul", "bitset", "brev")
COMPARED = {"eq": operator.eq, "lg": operator.ne, "ne": operator.ne, "neq": operator.ne, "lt": operator.lt,
             "le": operator.le, "gt": operator.gt, "ge": operator.ge}
COMPARE = re.compile(r"[sv]_cmpk?_([a-z]+)_([uif])(16|32|64)$")
