"""What a GEMM's code object expects of who launches it, in words and in expressions that a program can evaluate.

Our own launches keep to it by the way they choose plans (plans/amd.py, runtime/gpu/amd_recipe.py); a manifest says it.
"""
from __future__ import annotations

from tilewright.plans.amd import AmdPlan
from tilewright.plans.amd_model import PIECE
from tilewright.plans.gpu import BLOCK, REACH, GpuShape

MOST = (1 << 31) - 1    # that an i32 holds
BEYOND = 1 << 16        # rows after the last one that kernels count
WORD, UNIT = 4, 8       # bytes: scales that come straight into LDS at once, elements in blocks that are loaded at once


def computes(shape: GpuShape, plan: AmdPlan) -> str:
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


def requires(shape: GpuShape, plan: AmdPlan) -> list[str]:
    """Python expressions of the arguments' names, where pointers are addresses; all are true of a launch that works."""
    tiles_n = f"((n + {plan.cta_n - 1}) // {plan.cta_n})"
    tiles = f"((m + {plan.cta_m - 1}) // {plan.cta_m}) * {tiles_n}"
    # kernels count rows, columns, steps of k and tiles in 32 bits, up to the end of the last tile and of its copies
    found = [f"1 <= m <= {MOST - BEYOND}", f"1 <= n <= {MOST - BEYOND}",
             f"1 <= k <= {MOST - (plan.split_k + 1) * plan.cta_k}",
             f"{tiles} * {plan.split_k} <= {MOST}", f"{tiles_n} * {plan.group_m} <= {MOST}"]
    if plan.vector_c > 1:
        found.append(f"n % {plan.vector_c} == 0")
    sides = (("a", "m", plan.cta_m, shape.bits[0], shape.layout[0] == "n"),
             ("b", "n", plan.cta_n, shape.bits[1], shape.layout[1] == "t"))
    if shape.scaled:
        found.append(f"k % {4*BLOCK if plan.direct_scales(shape) else BLOCK} == 0")
        found += [f"{x} == 0" for name, *_ in sides for x in (f"{name} % {WORD}", f"ld{name} % {UNIT}")]
        if plan.direct_scales(shape):
            found += [f"{x}scale_{name} % {WORD} == 0" for name, *_ in sides for x in ("", "ld_")]
            found += [f"0 <= ld_scale_{name} * {_scale_rows(plan, rows, warp)} <= {REACH}"
                      for (name, _, rows, *_), warp in zip(sides, (plan.warp_m, plan.warp_n))]
    for name, along, rows, bits, along_k in sides:
        if plan.copy == "direct":
            apart = f"ld{name}" if shape.scaled else f"ld{name} * {bits // 8}"
            if not shape.scaled:
                found.append(f"{'k' if along_k else along} % {8*PIECE // bits} == 0")
            if bits != 6:
                found += [f"{name} % {PIECE} == 0", f"{apart} % {PIECE} == 0"]
            found.append(f"0 <= {apart} * {rows if along_k else plan.cta_k} <= {REACH}")
        elif not along_k and plan.vector > 1:
            found.append(f"{along} % {plan.vector} == 0")
    return list(dict.fromkeys(found))


def _scale_rows(plan: AmdPlan, rows: int, warp: int) -> int:
    """Rows whose scales a workgroup copies, where each thread copies as many words (kernels/amd/scales.py)."""
    words = plan.cta_k // (4*BLOCK)
    copied = -(-rows * words // plan.threads) * plan.threads
    lanes = -(-copied // (warp // plan.mfma * words))
    return -(-lanes // plan.mfma) * warp
