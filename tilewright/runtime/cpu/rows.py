"""Few rows of floats by a large matrix that is read once: the kernels that plans/few_rows.py chooses between."""
from __future__ import annotations

from typing import Any

from tilewright.expressions.program import ELEMENT
from tilewright.kernels.cpu import jobs
from tilewright.plans.cpu import CpuPlan
from tilewright.plans.cpu_shape import Shape
from tilewright.plans.few_rows import BLOCK
from tilewright.rules import prologues


def plain_elements(shape: Shape) -> jobs.Prepare:
    """The decoding of a matrix of bf16 or f16, whose elements are the numbers."""
    result = prologues.multiplied({"a": shape.source_a or "f32", "b": shape.source_b}, {"b": "float"})["b"]
    return jobs.Prepare(f"{ELEMENT}:float; -> {ELEMENT}", (), result)


def few_row_kernel(plan: CpuPlan, shape: Shape, prepare: jobs.Prepare) -> tuple[str, tuple[Any, ...], int]:
    """The emitter, its arguments, and words for rows that each thread rearranges, of a shape in the plan's roles."""
    word, k, m, source, how = plan.word, shape.k, plan.nr, shape.source_a, tuple(prepare)
    if plan.algorithm == "stream":
        if word == "f32":
            return "weights:emit_stream", ("f32", plan.mr, plan.nr, shape.source_b, how), 0
        return "stream_tiles:emit_stream_tiles", (plan.mr,), jobs.tile_words(k, plan.mr)
    if word == "f32":
        return "weights:emit_dots", ("f32", plan.mr, m, source, how), 0
    if word == "amx_bf16":
        return "weight_blocks:emit_tiles", (m, source, how), jobs.tile_words(k, m)
    if source == "bf16":
        return "weight_pairs:emit_plain_pairs", (m,), 0
    if plan.kc:
        return "weight_blocks:emit_decoded_pairs", (m, source, how), m*jobs.row_pitch(k)
    return "weight_pairs:emit_pairs", (plan.mr, m, source, how), m*jobs.row_pitch(-(-k // BLOCK) * BLOCK)
