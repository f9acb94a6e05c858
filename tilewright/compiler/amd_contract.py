"""What a GEMM's code object expects of who launches it, in words and in expressions that a program can evaluate.

Our own launches keep to it by the way they choose plans (plans/amd.py, runtime/rocm_bound.py); a manifest says it.
"""
from __future__ import annotations

from tilewright.plans.amd import BLOCK, AmdPlan, AmdShape
from tilewright.plans.amd_direct import REACH
from tilewright.plans.amd_model import PIECE

WORD, UNIT = 4, 8       # bytes: scales that come straight into LDS at once, elements in blocks that are loaded at once


def computes(shape: AmdShape, plan: AmdPlan) -> str:
    """One paragraph: the product, and how its matrices lie in memory."""
    a = "[m, k]" if shape.layout[0] == "n" else "[k, m]"
    b = "[k, n]" if shape.layout[1] == "n" else "[n, k]"
    said = (f"c = alpha * A B + beta * c, by rows: a is A as {a} of {shape.a}, b is B as {b} of {shape.b}, c is [m, n] "
            f"of {shape.out}, and is not read if beta is 0. ")
    if shape.scaled:
        said += ("Elements of a and b are packed along k, the first in the lowest bits; lda and ldb are bytes from row "
                 f"to row, ldc elements. scale_a [m, k / {BLOCK}] and scale_b [n, k / {BLOCK}] are e8m0, rows "
                 f"ld_scale_a and ld_scale_b apart; k counts whole blocks of {BLOCK}, the last filled up with zeros.")
    else:
        said += "lda, ldb and ldc are elements from row to row."
    if plan.algorithm == "bf16_emulated":
        said += " Emulated: elements times their scales are multiplied as bf16."
    if plan.algorithm == "xf32":
        said += " f32 are rounded to 19 bits, xf32, before they are multiplied."
    if plan.split_k > 1:
        said += (" Workgroups leave parts of sums in the workspace, whatever was there; the counters are 0 before the "
                 "launch, and again after it.")
    return said


def requires(shape: AmdShape, plan: AmdPlan) -> list[str]:
    """Python expressions of the arguments' names, where pointers are addresses; all are true of a launch that works."""
    found = ["m >= 1", "n >= 1", "k >= 1"]
    if plan.vector_c > 1:
        found.append(f"n % {plan.vector_c} == 0")
    sides = (("a", "m", plan.cta_m, shape.bits[0], shape.layout[0] == "n"),
             ("b", "n", plan.cta_n, shape.bits[1], shape.layout[1] == "t"))
    if shape.scaled:
        found.append(f"k % {4*BLOCK if plan.direct_scales(shape) else BLOCK} == 0")
        found += [f"{x} == 0" for name, *_ in sides for x in (f"{name} % {WORD}", f"ld{name} % {UNIT}")]
        if plan.direct_scales(shape):
            found += [f"{x}scale_{name} % {WORD} == 0" for name, *_ in sides for x in ("", "ld_")]
    for name, along, rows, bits, along_k in sides:
        if plan.copy == "direct":
            apart = f"ld{name}" if shape.scaled else f"ld{name} * {bits // 8}"
            if not shape.scaled:
                found.append(f"{'k' if along_k else along} % {8*PIECE // bits} == 0")
            if bits != 6:
                found += [f"{name} % {PIECE} == 0", f"{apart} % {PIECE} == 0"]
            found.append(f"{apart} * {rows if along_k else plan.cta_k} <= {REACH}")
        elif not along_k and plan.vector > 1:
            found.append(f"{along} % {plan.vector} == 0")
    return list(dict.fromkeys(found))
