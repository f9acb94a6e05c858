"""Every dense matrix instruction of AMD's CDNA3 and CDNA4 chips (gfx942, gfx950): the catalogue, from the rows of
targets/amd.py.

Not here: sparse instructions (SMFMAC), and the modes that broadcast or negate operands (cbsz, abid, blgp).
"""
from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from tilewright.atoms.fragment import Fragment
from tilewright.atoms.mfma import LANES, SCALE, Mfma, eights_of_a, fours_of_c, ones_of_c, rows_of_a, transposed
from tilewright.ir.types import Type, bf16, f16, f32, f64, i32, i64, vec
from tilewright.targets.amd import F8F6F4, F8F6F4_SHAPES, FP8, FP8_SHAPES, MANUALS, MFMA

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
