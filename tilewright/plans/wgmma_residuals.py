"""How much longer plans by wgmma took than their model says (wgmma_model.py): small regression trees over what it knows
of a plan.

bench/fit_residuals.py fits them to times of measured plans and writes tables/wgmma_residuals.json, a tree on each line.
A leaf is the logarithm of a factor; an inner node is [number of a value, threshold, mean of its leaves, what follows
where the value is at most the threshold, and where it is above].
"""
from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.plans.gpu_formats import FP8
from tilewright.plans.wgmma_rules import GROUP_ROWS

if TYPE_CHECKING:
    from tilewright.plans.gpu_shape import GpuShape
    from tilewright.plans.nvidia_plan import NvidiaPlan

TREES = Path(__file__).parent / "tables" / "wgmma_residuals.json"
# What a plan is described by, in the order of `values` in wgmma_model.cost, and in which words explanations name it.
VALUES = (("tile", "cta_m cta_n cta_k warpgroups pingpong swap bits"), ("cluster", "ctas clusters busy"),
          ("bounds", "multiply_adds l2 power memory step"),
          ("waves and parts of k", "rounds last tiles share parts fragments full tiles_m tiles_n"),
          ("layout", "pitch_a pitch_b a_along_k b_along_k"))
WORDS = tuple(word for word, names in VALUES for _ in names.split())


@cache
def trees() -> list[Any]:
    return [json.loads(line) for line in TREES.read_text().splitlines()]


def measured(shape: GpuShape, p: NvidiaPlan) -> bool:
    """Whether plans of this kind have been measured: plain products of matrices in the formats below."""
    return ((shape.a in ("bf16", "f16") or shape.a in FP8) and shape.batch == 1 and min(shape.m, shape.n) >= GROUP_ROWS
            and not (shape.scales or shape.prologues or p.split or p.terms == "f16"))


def factor(values: Sequence[float]) -> float:
    """By which measured plans with these values differed from the model's time."""
    total = 0.0
    for tree in trees():
        while type(tree) is list:
            tree = tree[3] if values[tree[0]] <= tree[1] else tree[4]
        total += tree
    return exp(total)


def words(values: Sequence[float]) -> list[tuple[str, float]]:
    """`factor` as factors of kinds of values, the farthest from 1 first: what a decision of a tree changes counts for
    the value that it asks about. The rest, the trees' means, is "all"."""
    logs: dict[str, float] = {"all": 0.0}
    for tree in trees():
        logs["all"] += _mean(tree)
        while type(tree) is list:
            follows = tree[3] if values[tree[0]] <= tree[1] else tree[4]
            word = WORDS[tree[0]]
            logs[word] = logs.get(word, 0.0) + _mean(follows) - _mean(tree)
            tree = follows
    return [(word, exp(x)) for word, x in sorted(logs.items(), key=lambda item: -abs(item[1]))]


def _mean(tree: Any) -> float:
    return float(tree[2] if type(tree) is list else tree)
