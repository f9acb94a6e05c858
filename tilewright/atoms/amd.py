"""The dense matrix instructions of AMD's CDNA3 and CDNA4 chips (gfx942, gfx950): what an MFMA is, a matrix multiply-add
by one wave, with its spelling, meaning and layouts; and the catalogue of all of them, from the rows of targets/amd.py.
Sparse instructions (SMFMAC) and the modes that broadcast or negate operands (cbsz, abid, blgp) are not here.

Each of the three matrices is a `Fragment` (atoms/fragment.py): it says which element of the matrix each lane has where
in its registers, and takes the registers of a whole wave apart, or puts them together, by that. The meaning of every
instruction follows: decode the elements, place them, multiply, add, and hand the sums out again.

How the hardware rounds inside an instruction is not published. Here products and sums of an instruction are exact as
far as f64 goes, and each result is rounded once, to nearest; f32 operands of xf32 instructions are first rounded to 10
bits of mantissa, to nearest. On whole numbers that fit, every order of summation gives this.
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from tilewright.atoms.fragment import Fragment, Layout, Place
from tilewright.forks import cached_property
from tilewright.ir.ops.core import Operation
from tilewright.ir.types import Type, bf16, f16, f32, f64, i32, i64, vec
from tilewright.targets.amd import F8F6F4, F8F6F4_SHAPES, FP8, FP8_SHAPES, MANUALS, MFMA

LANES = 64
SCALED = 32                                             # elements along k that share a scale


@dataclass(frozen=True, eq=False)
class Mfma:
    """D = A B + C by one wave, of each block alone: A is m x k, B is k x n, C and D are m x n.

    In a kernel `(d,) = k.mma(atom, [a], [b], [c])`, where a lane's part of a matrix is one value of that operand's
    type. Scaled ones take an i32 beside A and B each: `k.mma(atom, [a, scale_a], [b, scale_b], [c])`; one of its bytes
    (`byte_a`, `byte_b`) is the lane's scale, an e8m0.
    """
    name: str                   # as assembly spells it
    intrinsic: str              # and LLVM
    m: int
    n: int
    k: int
    blocks: int
    a: Fragment
    b: Fragment
    c: Fragment
    cycles: Mapping[str, int]   # of a Matrix Core, by architecture: those that have it
    needs: str                  # what a target must list among its instructions
    manual: str                 # where it is described
    numbers: tuple[int, int] | None = None      # of the formats of A and B, where the name leaves them open: f8f6f4
    scaled: bool = False
    byte_a: int = 0
    byte_b: int = 0

    @property
    def a_format(self) -> str: return self.a.format
    @property
    def b_format(self) -> str: return self.b.format
    @property
    def c_format(self) -> str: return self.c.format

    @property
    def flops(self) -> int:
        """Floating-point operations of one instruction."""
        return 2 * self.m * self.n * self.k * self.blocks

    def scale_a(self, lane: Any) -> tuple[Any, Any]:
        """Row of A and block of 32 along k to which this lane's scale of A belongs: not those of its own elements,
        where a lane has 8-bit elements of two such blocks."""
        return lane % self.m, lane // self.m

    def scale_b(self, lane: Any) -> tuple[Any, Any]:
        """Block of 32 along k and column of B to which this lane's scale of B belongs."""
        return lane // self.n, lane % self.n

    def bytes(self, a: int = 0, b: int = 0) -> Mfma:
        """This instruction with the scales in these bytes (0 to 3) of the lanes' i32."""
        if not self.scaled or not 0 <= a < 4 or not 0 <= b < 4:
            raise ValueError(f"{self.name} cannot take its scales from bytes {a} and {b}"
                             + ("; there are 0 to 3" if self.scaled else ": it has none"))
        return replace(self, byte_a=a, byte_b=b)

    @cached_property
    def operation(self) -> Operation:
        flops = self.flops // LANES if self.c.type.is_float else 0
        return Operation(self.name, self._llvm, self._meaning, "mma", "group", LANES, needs=self.needs, flops=flops)

    def _llvm(self, low: Any, t: Any, *operands: Any) -> Any:
        if self.numbers is None:
            a, b, c = operands
            a, b = _spelled(low, a, self.a), _spelled(low, b, self.b)
            modes = [low.i32(0)] * 3            # cbsz, abid, blgp: nothing broadcast, nothing negated
            return low.call(self.intrinsic, t, a, b, c, *modes, name="mfma")
        if self.scaled:
            a, scale_a, b, scale_b, c = operands
            if getattr(scale_a, "constant", None) == 0 == getattr(scale_b, "constant", None):
                raise ValueError(f"{self.name} cannot have the constant 0, which is 2^-127, for both scales: LLVM "
                                 "drops such scales")
        else:
            a, b, c = operands
            scale_a = scale_b = low.i32(0)      # no scales, as LLVM spells it
        return low.call(self.intrinsic, t, a, b, c, *map(low.i32, self.numbers), low.i32(self.byte_a), scale_a,
                        low.i32(self.byte_b), scale_b, name="mfma")

    def _meaning(self, t: Any, *operands: Any) -> Any:
        """Operands are [groups, lanes], vectors [length, groups, lanes]."""
        if self.scaled:
            a, scale_a, b, scale_b, c = operands
        else:
            a, b, c = operands
        with np.errstate(all="ignore"):
            a, b, c = self.a.matrix(a), self.b.matrix(b), self.c.matrix(c)
            if self.scaled:
                a *= self._scales(scale_a, self.byte_a, self.m).swapaxes(1, 2)[:, None]
                b *= self._scales(scale_b, self.byte_b, self.n)[:, None]
            d = a @ b + c
            if not self.c.type.is_float:
                d = d.astype(np.int64)          # whole numbers below 2^53; the lowest 32 bits of them are kept
            return self.c.lanes(d)

    def _scales(self, held: Any, byte: int, rows: int) -> Any:
        """[groups, k, rows]: 2^(e8m0 - 127) of each row (of B: column) at each k."""
        e8m0 = (held.astype(np.int64) >> 8*byte & 255).reshape(len(held), LANES // rows, rows)
        scales = np.where(e8m0 == 255, np.nan, np.ldexp(1.0, (e8m0 - 127).astype(np.int32)))
        return np.repeat(scales, SCALED, axis=1)


def _spelled(low: Any, x: Any, operand: Fragment) -> Any:
    """LLVM takes four bf16 as integers, and eight as bf16."""
    if operand.format == "bf16" and operand.elements == 4:
        return low.b.bitcast(x, low.type(replace(operand.type, kind="i")), name="bits")
    return x


SCALE = i32                     # the type of a lane's four scales, of which an instruction takes one


# ---- layouts: the few formulas that all instructions follow. Each gives functions of (lane, element) that work on
# numbers, arrays and values of a kernel. Sources: AMD's CDNA3 and CDNA4 instruction set manuals, chapter 7, and AMD's
# matrix instruction calculator, which prints the same.

RUN = 16                        # elements of 8 bits that f8f6f4 instructions keep side by side


def rows_of_a(m: int, blocks: int, elements: int) -> tuple[Layout, Place]:
    """A: a lane has `elements` neighbours of one row; after m lanes comes the next block, then the next k."""
    def element(lane: Any, e: Any) -> tuple[Any, Any]: return lane % m, lane // (m*blocks) * elements + e
    def block(lane: Any, e: Any) -> Any: return lane // m % blocks
    return element, block


def eights_of_a(m: int) -> tuple[Layout, Place]:
    """A of f8f6f4 instructions in 8-bit formats: two runs of 16 along k, all groups of lanes between them."""
    groups = LANES // m

    def element(lane: Any, e: Any) -> tuple[Any, Any]:
        return lane % m, e // RUN * (RUN*groups) + lane // m * RUN + e % RUN

    def block(lane: Any, e: Any) -> Any: return 0*lane
    return element, block


def transposed(layouts: tuple[Layout, Place]) -> tuple[Layout, Place]:
    """B is held as A is, with columns for rows."""
    layout, block = layouts

    def element(lane: Any, e: Any) -> tuple[Any, Any]: return layout(lane, e)[::-1]
    return element, block


def fours_of_c(m: int, blocks: int) -> tuple[Layout, Place]:
    """C and D of 32-bit sums: a lane has a column, in runs of four rows; the groups of lanes take turns."""
    groups = min(LANES // m, m // 4)            # of lanes that share a column of a block
    per_block = m*m // (m*groups)               # elements of a block in a lane

    def element(lane: Any, e: Any) -> tuple[Any, Any]:
        return e % per_block // 4 * (4*groups) + lane // m % groups * 4 + e % 4, lane % m

    def block(lane: Any, e: Any) -> Any: return lane // (m*groups) + e // per_block
    return element, block


def ones_of_c(m: int, blocks: int) -> tuple[Layout, Place]:
    """C and D of f64: the same, one row at a time."""
    groups = LANES // (m*blocks)

    def element(lane: Any, e: Any) -> tuple[Any, Any]: return e*groups + lane // (m*blocks), lane % m
    def block(lane: Any, e: Any) -> Any: return lane // m % blocks
    return element, block


__all__ = ["CATALOGUE", "F8F6F4", "SCALE", "Fragment", "Mfma", "find", "mfma", "mfma_instructions", "scaled"]


def _input(format: str, m: int, k: int, blocks: int, of_b: bool) -> Fragment:
    elements = m*k*blocks // LANES
    layouts = rows_of_a(m, blocks, elements)
    type = _lane_type(format, elements)
    return (Fragment(format, k, m, blocks, elements, type, *transposed(layouts)) if of_b else
            Fragment(format, m, k, blocks, elements, type, *layouts))


def _lane_type(format: str, elements: int) -> Type:
    """The type of a lane's elements: of formats of 8 bits and less words, which are i32, i64 or vectors of i32."""
    scalar = {"f64": f64, "f32": f32, "xf32": f32, "f16": f16, "bf16": bf16}.get(format)
    if scalar:
        return vec(scalar, elements)
    return {4: i32, 8: i64}.get(elements, vec(i32, elements // 4))


def _sums(format: str, m: int, blocks: int) -> Fragment:
    layouts = ones_of_c(m, blocks) if format == "f64" else fours_of_c(m, blocks)
    elements = m*m*blocks // LANES
    scalar = {"f64": f64, "f32": f32, "i32": i32}[format]
    return Fragment(format, m, m, blocks, elements, vec(scalar, elements), *layouts)


def _named(c: str, m: int, k: int, blocks: int, inputs: str) -> str:
    return f"v_mfma_{c}_{m}x{m}x{k}_" + (f"{blocks}b_" if blocks > 1 else "") + inputs


def _plain() -> Iterator[Mfma]:
    for spelling, m, k, blocks, format, *cycles in MFMA:
        c = spelling[:3]
        have = {arch: n for arch, n in zip(MANUALS, cycles) if n}
        needs = "mfma" if len(have) == 2 else "mfma.xf32" if format == "xf32" else "mfma.gfx950"
        yield Mfma(_named(c, m, k, blocks, format), f"llvm.amdgcn.mfma.{spelling}", m, m, k, blocks,
                   _input(format, m, k, blocks, False), _input(format, m, k, blocks, True), _sums(c, m, blocks), have,
                   needs, MANUALS[next(iter(have))])


def _eights() -> Iterator[Mfma]:
    """fp8 and bf8: one name, one instruction, and formats that depend on the chip."""
    for arch, kind in (("gfx942", "fnuz"), ("gfx950", "ocp")):
        for m, k, cycles in FP8_SHAPES:
            for a in FP8:
                for b in FP8:
                    yield Mfma(_named("f32", m, k, 1, f"{a}_{b}"), f"llvm.amdgcn.mfma.f32.{m}x{m}x{k}.{a}.{b}",
                               m, m, k, 1, _input(FP8[a][arch], m, k, 1, False),
                               _input(FP8[b][arch], m, k, 1, True), _sums("f32", m, 1), {arch: cycles},
                               f"mfma.fp8.{kind}", MANUALS[arch])


def _f8f6f4() -> Iterator[Mfma]:
    """25 pairs of formats, with scales and without. One with 8 bits on either side takes twice as long."""
    for with_scales in (False, True):
        for m, k, cycles in F8F6F4_SHAPES:
            for a, (code_a, words_a) in F8F6F4.items():
                for b, (code_b, words_b) in F8F6F4.items():
                    shape, double = f"{m}x{m}x{k}", 8 in (words_a, words_b)
                    yield Mfma(f"v_mfma_{'scale_' * with_scales}f32_{shape}_f8f6f4",
                               f"llvm.amdgcn.mfma.scale.f32.{shape}.f8f6f4.v{words_a}i32.v{words_b}i32", m, m, k, 1,
                               _f8f6f4_input(a, m, k, words_a, False), _f8f6f4_input(b, m, k, words_b, True),
                               _sums("f32", m, 1), {"gfx950": cycles * (1 + double)}, "mfma.f8f6f4", MANUALS["gfx950"],
                               (code_a, code_b), with_scales)


def _f8f6f4_input(format: str, m: int, k: int, words: int, of_b: bool) -> Fragment:
    elements = m*k // LANES
    layouts = eights_of_a(m) if words == 8 else rows_of_a(m, 1, elements)
    return (Fragment(format, k, m, 1, elements, vec(i32, words), *transposed(layouts)) if of_b else
            Fragment(format, m, k, 1, elements, vec(i32, words), *layouts))


CATALOGUE: tuple[Mfma, ...] = (*_plain(), *_eights(), *_f8f6f4())


def mfma_instructions(arch: str) -> list[Mfma]:
    """The instructions that an architecture has: "gfx942" or "gfx950"."""
    return [atom for atom in CATALOGUE if arch in atom.cycles]


@cache
def find(name: str, arch: str | None = None, a: str | None = None, b: str | None = None) -> Mfma:
    """The instruction of this name: of this architecture, with these formats of A and B, where the name leaves them
    open. ValueError if there is none, with what there is instead.

    `name` is what assembly calls it, v_mfma_f32_32x32x2_f32, or LLVM's intrinsic, llvm.amdgcn.mfma.f32.32x32x2f32, or
    the builtin that Clang has for it, __builtin_amdgcn_mfma_f32_32x32x2f32."""
    called = _bare(name)
    named = [atom for atom in CATALOGUE if called in (_bare(atom.name), _bare(atom.intrinsic))
             and atom.scaled == called.startswith("mfma_scale_")]
    if not named:
        same = [atom.name for atom in CATALOGUE if called.removeprefix("mfma_") in atom.name]
        raise ValueError(f"there is no dense matrix instruction {name!r}; " + (
            f"there is {', '.join(dict.fromkeys(same))}" if same else "`tilewright mfma list` shows all of them"))
    matching = [atom for atom in named if arch in (None, *atom.cycles) and a in (None, atom.a_format)
             and b in (None, atom.b_format)]
    if not matching:
        have = "; ".join(dict.fromkeys(f"{atom.a_format} by {atom.b_format} on {' and '.join(atom.cycles)}"
                                       for atom in named))
        wanted = " ".join(filter(None, [a and f"for A in {a}", b and f"for B in {b}", arch and f"on {arch}"]))
        raise ValueError(f"there is no {name} {wanted}; there is {have}")
    return matching[0]


def _bare(name: str) -> str:
    """Without what assembly, LLVM and Clang each put around it: mfma_f32_32x32x2f32, or mfma_f32_32x32x2_f32."""
    for prefix in ("v_", "llvm.amdgcn.", "__builtin_amdgcn_"):
        name = name.removeprefix(prefix)
    return re.sub(r"(_v\d+i32)*$", "", name.replace(".", "_"))


@cache
def mfma(arch: str, m: int, k: int, a: str, b: str | None = None, blocks: int = 1) -> Mfma:
    """The instruction without scales of this architecture that multiplies m x k elements of format `a` by k x m of `b`
    (the same by default). ValueError if there is none, with the shapes that these formats have."""
    return _only(arch, m, k, a, b or a, blocks, False)


@cache
def scaled(arch: str, m: int, k: int, a: str, b: str | None = None) -> Mfma:
    """The instruction with block scales for these formats in m x m tiles of k steps."""
    return _only(arch, m, k, a, b or a, 1, True)


def _only(arch: str, m: int, k: int, a: str, b: str, blocks: int, with_scales: bool) -> Mfma:
    alike = [x for x in mfma_instructions(arch) if (x.a_format, x.b_format, x.scaled) == (a, b, with_scales)]
    for atom in alike:
        if (atom.m, atom.k, atom.blocks) == (m, k, blocks):
            return atom
    shapes = ", ".join(f"{x.m}x{x.n}x{x.k}" + f" ({x.blocks} blocks)" * (x.blocks > 1) for x in alike) or "none"
    raise ValueError(f"{arch} has no matrix instruction {m}x{m}x{k} for {a} by {b}" + " with scales" * with_scales
                     + f"; of these formats it has {shapes}")
