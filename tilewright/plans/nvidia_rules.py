"""Why a plan for one of NVIDIA's GPUs (nvidia_plan.py) cannot run a shape: sentences, none if it can. Rules of
wgmma, gemv and small alone are in wgmma_rules.py, gemv_rules.py and small_rules.py.
"""
from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING

from tilewright.plans import epilogues, gemv_rules, gpu_lowering, gpu_shape, passes, prologues, semirings, small_rules
from tilewright.plans.gemv_rules import LANES
from tilewright.plans.gpu import MOST
from tilewright.plans.gpu_shape import WIDEST, GpuShape
from tilewright.plans.wgmma_rules import of_wgmma
from tilewright.plans.words import TERMS
from tilewright.problem import SCALE_BLOCK, SCALE_BLOCKS
from tilewright.targets.nvidia import LEAST_REGISTERS, THREADS, GpuTarget

if TYPE_CHECKING:
    from tilewright.plans.nvidia_plan import NvidiaPlan

FORMATS = "f32", "f64"  # that CUDA cores multiply; of semirings gpu_lowering.COMBINED
SPLIT = "mma", "wgmma"  # algorithms that multiply terms
PREPARING = "gemv", "simt", "mma", "wgmma"      # and that evaluate prologues
STEP = 32               # bytes along k of a row of A that one matrix instruction of 8- or 16-bit formats multiplies
LEAST_ASYNC = 4         # bytes of an asynchronous copy
ARRIVED = 4             # bytes of shared memory by which CTAs that share a tile know which one is the last


def multiplied(target: GpuTarget) -> tuple[str, ...]:
    """The formats that kernels of a target multiply without rounding them."""
    return *FORMATS, *(format for format in target.matrix_rates if format != "tf32")


def violations(p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> Iterator[str]:
    """Why a plan whose passes are over cannot multiply the shape that they leave."""
    if p.algorithm == "small":
        yield from small_rules.violations(p, shape, target)
        return
    if wrong := _formats(p, shape, target):
        yield wrong
        return
    roles = "warpgroups", "cluster_m", "cluster_n", "cluster_k"
    sizes = {"wgmma": roles, "gemv": ()}.get(p.algorithm, ("warp_m", "warp_n"))
    if reasons := p.below_one("cta_m", "cta_n", "cta_k", *sizes, "slices", "split_k", "group_m", "vector"):
        yield from reasons
        return
    yield from p.above(**MOST)
    if p.swap and p.algorithm != "wgmma":
        yield f"swap is for wgmma, not for {p.algorithm}."
    if p.registers and not LEAST_REGISTERS <= p.registers <= target.registers_thread:
        yield (f"registers must be {LEAST_REGISTERS} to {target.registers_thread}, or 0 for the emitter's choice, not "
               f"{p.registers}.")
    if p.algorithm not in ("gemv", "wgmma") and (p.cta_m % p.warp_m or p.cta_n % p.warp_n):
        yield f"a CTA tile of {p.cta_m}x{p.cta_n} is not a multiple of warp tiles of {p.warp_m}x{p.warp_n}."
        return
    if shape.prologues:
        yield from prologues.violations(shape)
        if p.algorithm not in PREPARING:
            yield f"kernels of {', '.join(PREPARING)} evaluate prologues, not of {p.algorithm}."
        elif p.copy != "registers" and p.algorithm not in ("gemv", "wgmma"):
            yield "operands with a prologue are copied through registers: copy=registers."
        elif any(bits < 8 and vector % 2 for bits, vector in zip(shape.bits, p.vectors)) and p.algorithm not in (
                "gemv", "wgmma"):
            yield f"whole bytes, of two elements, are copied at once, not {p.vectors[0]} and {p.vectors[1]} elements."
    yield from _OWN[p.algorithm](p, shape, target)
    if shape.epilogue:
        yield from epilogues.violations(shape, p.algorithm, p.vectors[2], p.swap)
    if p.threads > THREADS:
        yield f"a CTA would have {p.threads} threads, and may have {THREADS}."
    if p.copy == "async" and "cp.async" not in target.instructions:
        yield f"{target.name} has no asynchronous copies."
    if p.copy == "registers" and p.stages != 2:
        yield f"copies through registers have 2 stages, not {p.stages}."
    if p.stages < (least := 1 if p.algorithm == "gemv" else 2):
        yield f"stages is {p.stages}, and must not be less than {least}."
    yield from _vectors(p, shape)
    if (shared := p.shared(shape) + ARRIVED*(p.divided and p.algorithm != "wgmma")) > target.smem_cta:
        yield f"the tiles take {shared} bytes of shared memory, and {target.name} gives a CTA {target.smem_cta}."
    if p.tail and p.split_k > 1:
        yield "split_k and tail cannot be combined: both divide the tiles of C."
    if p.split_k > max(ceil(shape.k / p.cta_k), 1):
        yield f"split_k = {p.split_k} exceeds the number of tiles along k."
    slack = 0 if p.algorithm == "mma" else 16          # of an estimate
    if p.algorithm == "wgmma":
        return
    if (registers := p.estimate(shape)) > target.registers_thread + slack:
        yield f"a thread would need about {registers} registers, and may have {target.registers_thread}."
    elif p.threads * min(registers, target.registers_thread) > target.registers_sm:
        yield (f"{p.threads} threads with {registers} registers are more than the {target.registers_sm} of a "
               "multiprocessor.")


def of_passes(p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> Iterator[str]:
    """Why a plan cannot have its passes over operands, or their terms."""
    if bool(shape.scaled) != (p.decoded == "bf16"):
        yield (f"decoded must be {'bf16' if shape.scaled else 'none'} for operands that are "
               f"{'' if shape.scaled else 'not '}block-scaled, not {p.decoded}.")
    if shape.scaled and "bf16" not in target.matrix_rates:
        yield f"{target.name} has no matrix instructions for bf16, as which block-scaled operands are multiplied."
    if shape.scaled and p.split:
        yield f"terms must be none for block-scaled operands, not {p.terms}."
        return
    if p.copied != "none" and (p.algorithm == "gemv" or shape.scaled or shape.semiring or p.split):
        what = "by gemv" if p.algorithm == "gemv" else "of scaled operands, terms or semirings"
        yield f"copied must be none for products {what}, not {p.copied}."
    if (size := passes.written(shape, p.copied, p.split)) > passes.MOST:
        yield f"passes would write {size:,} bytes, and may write {passes.MOST:,}."
    if shape.terms and shape.terms != p.terms:
        yield f"terms must be {shape.terms} for {shape}, not {p.terms}."
    if p.terms == "none":
        return
    wanted, format = ("f32", TERMS[p.terms].format) if p.terms in TERMS else (p.terms, p.terms)
    if p.algorithm not in SPLIT or (p.split and p.copy != "async"):
        yield f"terms={p.terms} needs one of the algorithms {', '.join(SPLIT)}{', and copy=async' * bool(p.split)}."
    if format not in (target.wgmma_rates if p.algorithm == "wgmma" else target.matrix_rates):
        yield f"{target.name} has no matrix instructions for {format}{' of warpgroups' * (p.algorithm == 'wgmma')}."
    if (shape.a, shape.b) not in ((wanted, wanted), (format, format)):
        does = "splits" if p.split else "multiplies"
        yield f"terms={p.terms} {does} operands of {wanted}, and this is {shape.a} by {shape.b}."
    if shape.scales in SCALE_BLOCKS or (shape.scales and p.split):
        yield f"terms={p.terms} is for products without scales{'' if p.split else ' of blocks'}."
    if p.split and 1 in (shape.m, shape.n):
        yield f"terms are for products of matrices, and C is {shape.m}x{shape.n}."


def _formats(p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> str:
    """What is wrong with the formats, if anything is."""
    if shape.semiring and p.algorithm != "simt":
        return f"{p.algorithm} multiplies and adds: only simt plans take a semiring."
    if (fields := semirings.state(shape.semiring)) != epilogues.state(shape.epilogue):
        return (f"a reduction with a state of {fields} fields needs an epilogue of them, as tilewright.contract makes "
                f"it, and this one takes {epilogues.state(shape.epilogue)}.")
    if p.terms != "none":
        return ""
    known, here = shape.__dict__.get("_multiplied", (None, ()))         # every candidate of a shape asks
    if known is not target:
        here = gpu_lowering.multiplied(target, shape.scales, shape.semiring)
        shape.__dict__["_multiplied"] = target, here
    pair, what = (shape.a, shape.b), f"{shape.a} by {shape.b}"
    if pair not in gpu_lowering.pairs(here) or shape.out not in shape.results:
        return (f"{target.name} has kernels for {', '.join(here)}, not for {what} into {shape.out}"
                f"{f' with scales of {shape.scales}' if shape.scales else ''}.")
    if p.algorithm == "mma" and shape.a not in target.matrix_rates:
        return f"mma multiplies {', '.join(x for x in here if x not in FORMATS)} on {target.name}, and this is {what}."
    if p.algorithm == "wgmma" and not target.wgmma_rates:
        return f"{target.name} lacks the matrix instructions of Hopper's warpgroups."
    own = {"dmma": ("f64",), "simt": here if shape.semiring else FORMATS, "gemv": gemv_rules.formats(p, target),
           "wgmma": (*target.wgmma_rates,)}.get(p.algorithm, here)
    listed = " and ".join(filter(None, (", ".join(own[:-1]), own[-1])))
    return "" if shape.a in own else f"{p.algorithm} multiplies {listed}, and this is {what}."


# ---- each algorithm's own rules

def _of_simt(p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> Iterator[str]:
    if (p.thread_m < 1 or p.thread_n < 1 or p.warp_m % p.thread_m or p.warp_n % p.thread_n
            or (p.warp_m // p.thread_m) * (p.warp_n // p.thread_n) != LANES):
        yield f"{LANES} lanes with {p.thread_m}x{p.thread_n} elements each do not make {p.warp_m}x{p.warp_n}."
    elif p.cta_k % p.slices or (p.as_stored and p.cta_k // p.slices * shape.itemsize % WIDEST):
        yield (f"{p.slices} slices do not divide cta_k = {p.cta_k}"
               f"{f' into whole vectors of {WIDEST} bytes' * p.as_stored}.")


def _of_dmma(p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> Iterator[str]:
    if "mma.f64.k16" not in target.instructions:
        yield f"{target.name} lacks the f64 matrix instructions of Hopper."
    if p.warp_m % 16 or p.warp_n % 16 or p.cta_k % 4:
        yield "dmma needs warp tiles of multiples of 16 and cta_k a multiple of 4."
    if p.slices > 1:
        yield "slices must be 1 for dmma."


def _of_mma(p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> Iterator[str]:
    row = p.cta_k * gpu_shape.bits_of(shape.a) // 8
    if p.warp_m % 16 or p.warp_n % 16 or row % STEP:
        yield (f"{p.algorithm} needs warp tiles of multiples of 16, and cta_k a multiple of {STEP} bytes, not "
               f"{p.warp_m}x{p.warp_n} and {row}.")
    if shape.scales in SCALE_BLOCKS and (SCALE_BLOCK % p.cta_k or SCALE_BLOCK % p.warp_n):
        yield (f"cta_k and a warp's columns must be divisors of {SCALE_BLOCK} with scales of {shape.scales}, not "
               f"{p.cta_k} and {p.warp_n}.")
    if p.slices > 1:
        yield f"slices must be 1 for {p.algorithm}."


_OWN = {"gemv": gemv_rules.of_gemv, "simt": _of_simt, "dmma": _of_dmma, "mma": _of_mma, "wgmma": of_wgmma}


def _vectors(p: NvidiaPlan, shape: GpuShape) -> Iterator[str]:
    """Elements that are moved at once."""
    if p.algorithm == "mma":
        for name, format, vector, most in zip("AB", (shape.a, shape.b), p.vectors, (shape.vector_a, shape.vector_b)):
            size = vector * gpu_shape.bits_of(format) // 8
            if vector > most:
                yield (f"{vector} elements of {name} are copied at once, and {name} allows {most}: by its address, "
                       "leading dimension and sizes.")
            if vector < 1 or vector & (vector - 1) or size > WIDEST:
                yield (f"{vector} elements of {name} are copied at once, and it must be a power of two with at most "
                       f"{WIDEST} bytes.")
            elif p.copy == "async" and size < LEAST_ASYNC:
                yield (f"copy=async copies {LEAST_ASYNC} bytes at once or more, and {vector} elements of {name} "
                       f"({format}) are {size}.")
    elif p.algorithm not in ("wgmma", "gemv") and p.vector > (most := min(shape.vector_a, shape.vector_b)):
        yield (f"vector = {p.vector} elements are copied at once, and the operands allow {most}: by their addresses, "
               "leading dimensions and sizes.")
    stored = p.vector_c if p.algorithm == "gemv" else p.vectors[2]
    if stored > shape.vector_c:
        yield f"vector_c = {stored} elements of C are stored at once, and C allows {shape.vector_c}."
    if p.algorithm not in ("mma", "gemv") and p.vector*shape.itemsize > WIDEST:
        yield f"vector = {p.vector} {shape.sums} are more than the {WIDEST} bytes that a thread copies at once."
