"""Few rows of floats by a large matrix that is read once: the kernels of plans/few_rows.py, and rows as they read them.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.expressions.program import ELEMENT
from tilewright.formats import FORMATS
from tilewright.kernels.cpu import jobs
from tilewright.plans.cpu import CpuPlan, Shape
from tilewright.plans.few_rows import BLOCK
from tilewright.rules import prologues

Matrix = NDArray[Any]


def plain(shape: Shape) -> jobs.Prepare:
    """How a matrix of bf16 or f16 is decoded: its elements are the numbers."""
    sources = {"a": shape.source_a or "f32", "b": shape.source_b}
    return jobs.Prepare(f"{ELEMENT}:float; -> {ELEMENT}", (), prologues.multiplied(sources, {"b": "float"})["b"])


def kernel(plan: CpuPlan, shape: Shape, prepare: jobs.Prepare) -> tuple[str, tuple[Any, ...], int]:
    """The emitter, its arguments, and words for rows that each thread rearranges, of a shape in the plan's roles."""
    word, k, how = plan.word, shape.k, tuple(prepare)
    if plan.algorithm == "stream":
        if word == "f32":
            return "weights:emit_stream", ("f32", plan.mr, plan.nr, shape.source_b, how), 0
        return "stream_tiles:emit_stream_tiles", (plan.mr,), jobs.tile_words(k, plan.mr)
    m, source = plan.nr, shape.source_a
    if word == "f32":
        return "weights:emit_dots", ("f32", plan.mr, m, source, how), 0
    if word == "amx_bf16":
        return "weight_tiles:emit_tiles", (m, source, how), jobs.tile_words(k, m)
    if source == "bf16":
        return "weight_pairs:emit_plain_pairs", (m,), 0
    if plan.copy:
        return "weight_pairs:emit_pairs", (plan.mr, m, source, how), 0
    return "decoded_pairs:emit_decoded_pairs", (m, source, how), m*jobs.row_pitch(k)


def arranged(x: Matrix) -> Matrix:
    """Contiguous rows of bf16 as kernels/cpu/weight_pairs.py reads them: [m, blocks, shift, lane, half], 0 after k."""
    m, k = x.shape
    blocks = -(-k // BLOCK)
    padded = np.zeros((m, blocks * BLOCK), np.uint16) if k % BLOCK else x.view(np.uint16)
    if k % BLOCK:
        padded[:, :k] = x.view(np.uint16)
    return np.ascontiguousarray(padded.reshape(m, blocks, 16, 2, 4).transpose(0, 1, 4, 2, 3))


def reader(recipe: Any) -> Callable[[Matrix], Matrix]:
    """What makes rows as a recipe reads them."""
    contiguous = partial(np.ascontiguousarray, dtype=_dtype(recipe))
    return (lambda x: arranged(contiguous(x))) if _rearranged(recipe) else contiguous


def ready(recipe: Any, x: Matrix) -> bool:
    """Whether rows lie as a recipe reads them."""
    return not _rearranged(recipe) and x.dtype == _dtype(recipe) and x.flags.c_contiguous


def _dtype(recipe: Any) -> np.dtype[Any]:
    return FORMATS[recipe.rows or "f32"].dtype


def _rearranged(recipe: Any) -> bool:
    return bool(recipe.plan.word and recipe.plan.copy)
