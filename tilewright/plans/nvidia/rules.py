"""Why a plan for one of NVIDIA's GPUs cannot run a shape: sentences, none if it can: what holds for plans of
all families. Each has further rules in its own file.
"""
from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING

from tilewright.plans import epilogues, gpu_lowering, passes, prologues, semirings
from tilewright.plans.gpu import MOST
from tilewright.plans.gpu_shape import GpuShape
from tilewright.plans.nvidia.family import FAMILIES, FORMATS, supported
from tilewright.plans.words import TERMS
from tilewright.problem import SCALE_BLOCKS
from tilewright.targets.nvidia import LEAST_REGISTERS, THREADS, GpuTarget

if TYPE_CHECKING:
    from tilewright.plans.nvidia.plan import NvidiaPlan

ARRIVED = 4             # bytes of shared memory by which CTAs that share a tile know which one is the last


def multiplied(target: GpuTarget) -> tuple[str, ...]:
    """The formats that kernels of a target multiply without rounding them."""
    return *FORMATS, *(format for format in target.matrix_rates if format != "tf32")


def violations(p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> Iterator[str]:
    """Of a plan of tiles, whose passes are over, for a shape that they leave."""
    family = p.family
    if not family.tiled:
        yield from family.violations(p, shape, target)
        return
    if wrong := _formats(p, shape, target):
        yield wrong
        return
    if found := p.below_one("cta_m", "cta_n", "cta_k", *family.sizes, "slices", "split_k", "group_m", "vector"):
        yield from found
        return
    yield from p.above(**MOST)
    if p.swap and not family.swaps:
        yield f"swap is for {_names('swaps')}, not for {p.algorithm}."
    if p.registers and not LEAST_REGISTERS <= p.registers <= target.registers_thread:
        yield (f"registers must be {LEAST_REGISTERS} to {target.registers_thread}, or 0 for the emitter's choice, not "
               f"{p.registers}.")
    if "warp_m" in family.sizes and (p.cta_m % p.warp_m or p.cta_n % p.warp_n):
        yield f"a CTA tile of {p.cta_m}x{p.cta_n} is not a multiple of warp tiles of {p.warp_m}x{p.warp_n}."
        return
    if shape.prologues:
        yield from prologues.violations(shape)
        if not family.prepares:
            yield f"kernels of {_names('prepares')} evaluate prologues, not of {p.algorithm}."
        elif p.copy != "registers" and not family.spreads_k:
            yield "operands with a prologue are copied through registers: copy=registers."
        elif any(bits < 8 and vector % 2 for bits, vector in zip(shape.bits, p.vectors)) and not family.spreads_k:
            yield f"whole bytes, of two elements, are copied at once, not {p.vectors[0]} and {p.vectors[1]} elements."
    yield from family.violations(p, shape, target)
    if shape.epilogue:
        yield from epilogues.violations(shape, p.algorithm, p.vectors[2], p.swap)
    if p.threads > THREADS:
        yield f"a CTA would have {p.threads} threads, and may have {THREADS}."
    if p.copy == "async" and "cp.async" not in target.instructions:
        yield f"{target.name} has no asynchronous copies."
    if p.copy == "registers" and p.stages != 2:
        yield f"copies through registers have 2 stages, not {p.stages}."
    if p.stages < (least := family.fewest_stages):
        yield f"stages is {p.stages}, and must not be less than {least}."
    yield from family.moved(p, shape)
    if (shared := p.shared(shape) + ARRIVED*(p.divided and not family.stays)) > target.smem_cta:
        yield f"the tiles take {shared} bytes of shared memory, and {target.name} gives a CTA {target.smem_cta}."
    if p.tail and p.split_k > 1:
        yield "split_k and tail cannot be combined: both divide the tiles of C."
    if p.split_k > max(ceil(shape.k / p.cta_k), 1):
        yield f"split_k = {p.split_k} exceeds the number of tiles along k."
    if family.stays:
        return
    if (registers := p.estimate(shape)) > target.registers_thread + family.slack:
        yield f"a thread would need about {registers} registers, and may have {target.registers_thread}."
    elif p.threads * min(registers, target.registers_thread) > target.registers_sm:
        yield (f"{p.threads} threads with {registers} registers are more than the {target.registers_sm} of a "
               "multiprocessor.")


def of_passes(p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> Iterator[str]:
    """Of what a plan has done to operands first, and of their terms."""
    if bool(shape.scaled) != (p.decoded == "bf16"):
        yield (f"decoded must be {'bf16' if shape.scaled else 'none'} for operands that are "
               f"{'' if shape.scaled else 'not '}block-scaled, not {p.decoded}.")
    if shape.scaled and "bf16" not in target.matrix_rates:
        yield f"{target.name} has no matrix instructions for bf16, as which block-scaled operands are multiplied."
    if shape.scaled and p.split:
        yield f"terms must be none for block-scaled operands, not {p.terms}."
        return
    if p.copied != "none" and (p.family.spreads_k or shape.scaled or shape.semiring or p.split):
        what = f"by {p.algorithm}" if p.family.spreads_k else "of scaled operands, terms or semirings"
        yield f"copied must be none for products {what}, not {p.copied}."
    if (size := sum(each.size for each in p.passes(shape))) > passes.MOST:
        yield f"passes would write {size:,} bytes, and may write {passes.MOST:,}."
    if shape.terms and shape.terms != p.terms:
        yield f"terms must be {shape.terms} for {shape}, not {p.terms}."
    if p.terms == "none":
        return
    wanted, format = ("f32", TERMS[p.terms].format) if p.terms in TERMS else (p.terms, p.terms)
    if not p.family.splits or (p.split and p.copy != "async"):
        yield f"terms={p.terms} needs one of the algorithms {_names('splits')}{', and copy=async' * bool(p.split)}."
    if format not in p.family.rates(target):
        yield f"{target.name} has no matrix instructions for {format}{' of warpgroups' * p.family.stays}."
    if (shape.a, shape.b) not in ((wanted, wanted), (format, format)):
        does = "splits" if p.split else "multiplies"
        yield f"terms={p.terms} {does} operands of {wanted}, and this is {shape.a} by {shape.b}."
    if shape.scales in SCALE_BLOCKS or (shape.scales and p.split):
        yield f"terms={p.terms} is for products without scales{'' if p.split else ' of blocks'}."
    if p.split and 1 in (shape.m, shape.n):
        yield f"terms are for products of matrices, and C is {shape.m}x{shape.n}."


def _formats(p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> str:
    """What is wrong with the formats, if anything is."""
    if shape.semiring and not p.family.combines:
        return f"{p.algorithm} multiplies and adds: only {_names('combines')} plans take a semiring."
    if (fields := semirings.state(shape.semiring)) != epilogues.state(shape.epilogue):
        return (f"a reduction with a state of {fields} fields needs an epilogue of them, as tilewright.contract makes "
                f"it, and this one takes {epilogues.state(shape.epilogue)}.")
    if p.terms != "none":
        return ""
    pair, here = (shape.a, shape.b), supported(shape, target)
    if pair not in gpu_lowering.pairs(here) or shape.out not in shape.results:
        return (f"{target.name} has kernels for {', '.join(here)}, not for {shape.a} by {shape.b} into {shape.out}"
                f"{f' with scales of {shape.scales}' if shape.scales else ''}.")
    return p.family.wrong_formats(p, shape, target)


def _names(does: str) -> str:
    """Names of the families that have this property."""
    return ", ".join(sorted(name for name, family in FAMILIES.items() if getattr(family, does)))
