"""What is multiplied on GPUs of all makers: from operands of any formats, or a problem, to the shape of a plan.

    taken(target, formats, sums)        the formats that kernels take of operands, and store
    lower(problem, target)              the problem that tilewright.matmul makes of a Gemm's contiguous operands
    by_algorithm(shape, algorithm)      elements as the sum of several terms: what `algorithm=` asks for, where it pays
"""
from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from tilewright import formats
from tilewright.expressions.numerics import Numerics
from tilewright.formats.table import BLOCK_FORMATS, holds
from tilewright.plans import epilogues, prologues
from tilewright.plans.common import NoPlan
from tilewright.plans.gpu import choose, planner
from tilewright.plans.gpu_formats import FP8, READ, WRITTEN
from tilewright.plans.gpu_shape import SUMS, GpuShape, bits_of, results, shape
from tilewright.plans.lowering import FASTEST
from tilewright.plans.words import TERMS
from tilewright.problem import SCALE_BLOCKS, Gemm
from tilewright.targets.nvidia import GpuTarget

COMBINED = "f32", "f64", "i32", "i64"       # formats in which NVIDIA's kernels combine the terms of a semiring
TOGETHER = FP8, frozenset(("i8", "u8"))         # formats of which one instruction multiplies any two that a chip has
COMPLEX = "c64", "c128"     # multiplied as real ones: runtime/gpu/complex_products.py

# algorithm= of tilewright.matmul → the terms by which f32 are multiplied then, or the format in which sums of f16 are
# kept; what "fastest" takes, whose error is no larger than that of native f32, and how much faster it must be expected
# to be.
ALGORITHMS = {f"{each.format}_{each.format}_f32{name.removeprefix(each.format)}": name for name, each in TERMS.items()}
ALGORITHMS["f16_f16_f16"] = "f16"
NO_WORSE, SURE = "bf16_x6", 1.1

Pair = tuple[str, str]


def multiplied(target: Any, scales: str, semiring: str = "") -> tuple[str, ...]:
    """The formats that a target's kernels multiply, those that have such scales; or in which they compute the terms of
    a semiring."""
    if semiring:
        return COMBINED if isinstance(target, GpuTarget) else ()
    names: tuple[str, ...] = planner(target).multiplied(target)
    if scales not in SCALE_BLOCKS:
        return names
    return tuple(x for x in names if bits_of(x) <= 16) if isinstance(target, GpuTarget) else ()


@cache              # asked of every candidate
def pairs(multiplied: tuple[str, ...]) -> tuple[Pair, ...]:
    """The formats that A and B may have, of those that a chip's kernels multiply."""
    mixed = [(a, b) for a in multiplied for b in multiplied if a != b and any({a, b} <= kinds for kinds in TOGETHER)]
    return (*((one, one) for one in multiplied), *mixed)


@lru_cache(maxsize=1024)
def pair_for(a: str, b: str, sums: str, target: Any, scales: str = "", semiring: str = "") -> Pair | None:
    """The formats in which operands of these are multiplied, with sums in `sums`: their own, if kernels take them; else
    the narrowest that hold all numbers of both, and of those the ones that leave most operands as they are. Operands
    that meet in the format of the sums are converted to it as a sum would be. None if there is none."""
    if sums in COMPLEX and not scales:
        return sums, sums

    def held(pair: Pair) -> bool:
        return all(wide == sums or holds(formats.FORMATS[wide], formats.FORMATS[narrow])
                   for wide, narrow in zip(pair, (a, b)))

    def effort(pair: Pair) -> tuple[int, int]:
        return max(map(bits_of, pair)), (pair[0] != a) + (pair[1] != b)
    possible = [pair for pair in pairs(multiplied(target, scales, semiring))
             if SUMS.get(pair[0], "f32") == sums and held(pair)]
    return (a, b) if (a, b) in possible else min(possible, key=effort, default=None)


def taken(target: Any, given: Mapping[str, str], sums: str, in_memory: bool, scales: str = "", epilogue: str = "",
          semiring: str = "") -> tuple[str, str, str]:
    """The formats in which kernels of a target take A and B and store their product, which is added up in `sums`.
    TypeError if it has no kernels for that.

    given       formats of a, b, the result, and of c where it is multiplied by beta and added, by these names
    in_memory   all of these are arrays in the GPU's memory, and converted there
    scales      what multiplies sums: see problem.SCALES; epilogue: what becomes of them
    semiring    what stands for multiplication and addition
    """
    if semiring and not multiplied(target, scales, semiring):
        raise TypeError(f"{target.name} has no kernels for contract: it runs on CPUs and on NVIDIA's GPUs")
    blocks = {given["a"], given["b"]} <= BLOCK_FORMATS.keys()        # decoded by passes of the plan
    pair = (given["a"], given["b"]) if blocks else pair_for(given["a"], given["b"], sums, target, scales,
                                                                             semiring)
    if pair is None or (in_memory and not _copied(given, semiring)):
        what = ", ".join(f"{name} = {format}" for name, format in given.items())
        by = f" and scales of {scales}" if scales in SCALE_BLOCKS else ""
        raise TypeError(f"{target.name} has no kernel for {what}, with sums in {sums}{by}; it multiplies "
                        f"{', '.join(multiplied(target, scales, semiring)) or 'nothing'}{' by such' * bool(by)}")
    result = given["result"]
    exact = given.get("c", result) == result        # else c would be rounded before it is added
    stored = results(epilogues.kind(epilogue, sums), scales)
    return (*pair, result if exact and result in stored else stored[0])


def _copied(given: Mapping[str, str], semiring: str) -> bool:
    """Whether kernels convert all of these; of integers of 64 bits there are semirings alone."""
    return all(format in (READ | BLOCK_FORMATS.keys() if name in "ab" else WRITTEN) or format in COMPLEX
               or (semiring and format == "i64")
               for name, format in given.items())


def lower(problem: Gemm, target: Any, passes: bool = True) -> Gemm:
    """What tilewright.matmul multiplies for a problem's contiguous operands: formats that no kernel of the target takes
    are converted before, and results after. The problem itself if there is no such kernel. Prologues stay with it as
    far as kernels evaluate them; with `passes`, where that is expected to be faster than passes before the product."""
    p = problem
    if p.blocks or not p.castable or not _copied({"a": p.a, "b": p.b, "result": p.out}, p.semiring):
        return p
    pair = pair_for(*p.multiplied, p.sums, target, p.scales, p.semiring)
    if pair is None:
        return p
    stored = results(epilogues.kind(p.epilogue, p.sums), p.scales)
    out = p.out if p.out in stored else stored[0]
    texts = {role: text and prologues.into(text, into)
             for role, text, into in zip("ab", (p.prologue_a, p.prologue_b), pair)}
    inside = in_kernel(p, pair, out, texts, target, passes) if p.prologues else ""
    a, b = (getattr(p, role) if role in inside else into for role, into in zip("ab", pair))
    of_a, of_b = (texts[role] if role in inside else "" for role in "ab")
    return Gemm(p.m, p.n, p.k, a, b, out, p.layout, p.batch, p.scales, epilogues.lowered(p, out), semiring=p.semiring,
                prologue_a=of_a, prologue_b=of_b)


def in_kernel(p: Gemm, pair: Pair, out: str, texts: Mapping[str, str], target: Any, passes: bool) -> str:
    """Which prologues of a problem of contiguous operands kernels evaluate: "", "a", "b" or "ab"."""
    if not passes:
        return p.prologues
    if not isinstance(target, GpuTarget):
        return ""
    shape_of_product = shape(*pair, out, p.m, p.n, p.k, p.layout, None, p.batch,
                  numerics=Numerics(epilogues.lowered(p, out), texts["a"], texts["b"]))
    return str(planner(target).inside(shape_of_product, target))


def multiplied_shape(problem: Gemm, target: Any, algorithm: str | None = None, passes: bool = True) -> GpuShape:
    """The shape of what tilewright.matmul multiplies for a problem's contiguous operands; `passes` as for `lower`.
    ValueError for an algorithm that splits other operands."""
    seen: GpuShape = planner(target).shape_of(lower(problem, target, passes))
    if algorithm is not None and algorithm in ALGORITHMS:
        wanted, does = operands(algorithm), "splits" if "_x" in algorithm else "multiplies"
        if (seen.a, seen.b, seen.sums) != (wanted, wanted, "f32"):
            raise ValueError(f"algorithm={algorithm!r} {does} operands of {wanted}, and {problem} multiplies {seen.a} "
                             f"by {seen.b}")
    return by_algorithm(seen, algorithm, target)


def operands(algorithm: str) -> str:
    """The format of the operands that an algorithm multiplies."""
    return "f16" if algorithm.startswith("f16") else "f32"


@lru_cache(maxsize=1024)
def by_algorithm(shape: GpuShape, algorithm: str | None, target: Any) -> GpuShape:
    """What `algorithm=` stands for: a product by terms where it is expected to be faster than the native one, which is
    as accurate; else the shape as it is."""
    if algorithm is None or {shape.a, shape.b} != {operands(algorithm)} or not (shape.m and shape.n and shape.k):
        return shape
    split = shape._replace(terms=NO_WORSE if algorithm == FASTEST else ALGORITHMS[algorithm])
    try:
        plan = choose(split, target)
    except NoPlan:
        return shape
    by = planner(target)
    native, gain = by.cost(shape, choose(shape, target), target).seconds, SURE if algorithm == FASTEST else 1.0
    return split if gain * by.cost(split, plan, target).seconds <= native else shape
