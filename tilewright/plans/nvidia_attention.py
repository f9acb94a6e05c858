"""How attention is tiled on Hopper (kernels/nvidia/attention.py), and the choice among tilings."""
from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, replace

from tilewright.attention_problem import Attention
from tilewright.targets.nvidia import GpuTarget

FORMATS = ("bf16", "bf16"), ("f16", "f16"), ("e4m3fn", "bf16")    # in and out
SIZES = range(32, 257, 32)          # of heads, and of their values
ROWS, MOST_SPLITS = 64, 32           # of a warpgroup; parts of a tile, one for each lane that adds them up
LEAST = 2.0**-100                   # of a factor: times the -inf of a masked score it is -inf, and of others nothing
_TEXT = re.compile(r"attention g(\d+) k(\d+) s(\d+)")


@dataclass(frozen=True)
class AttentionShape:
    """What a kernel is made for beside its plan.

    format, out     of queries, keys and values, and of the result
    band            which keys a query sees: "", all; "causal", those up to its position and `after` it; "window", from
                    `before` its position on, too
    upper           positions begin at 0 in each sequence, rather than end at its last key
    packed          rows of a tile for the query heads of a kv head: at least as many, a power of 2; 0: a tile has one
    split           CTAs have parts of a tile's keys
    lengths         of the keys of each sequence are in an array
    ragged          sequences lie one after the other
    page            keys in a page; 0: there are none
    score, sinks, lse   as of `Attention`
    """
    format: str = "bf16"
    out: str = "bf16"
    size: int = 128
    value_size: int = 128
    band: str = ""
    upper: bool = False
    packed: int = 0
    split: bool = False
    lengths: bool = False
    ragged: bool = False
    page: int = 0
    score: str = ""
    sinks: bool = False
    lse: bool = False

    @property
    def name(self) -> str:
        words = {self.band: self.band, "upper": self.upper, f"p{self.packed}": self.packed, "split": self.split,
                 "lengths": self.lengths, "ragged": self.ragged, f"page{self.page}": self.page,
                 hashlib.sha256(self.score.encode()).hexdigest()[:8]: self.score, "sinks": self.sinks, "lse": self.lse}
        there = (word for word, given in words.items() if given)
        return "_".join((self.format, f"{self.size}x{self.value_size}", *there))


@dataclass(frozen=True)
class AttentionPlan:
    """blocks    of 64 rows in a CTA, each of a warpgroup
    keys        of a tile
    stages      of shared memory for tiles of keys, and as many for values
    """
    blocks: int = 2
    keys: int = 128
    stages: int = 2

    @property
    def resident(self) -> int:
        """CTAs that share a multiprocessor."""
        return 1

    @property
    def name(self) -> str:
        return f"g{self.blocks}_k{self.keys}_s{self.stages}"

    def __str__(self) -> str:
        return f"attention g{self.blocks} k{self.keys} s{self.stages}"

    @classmethod
    def read(cls, text: str) -> AttentionPlan:
        """The plan of its text. ValueError for another."""
        if not (found := _TEXT.fullmatch(text)):
            raise ValueError(f"a plan of attention is like {cls()}, not {text!r}")
        return cls(*map(int, found.groups()))


def factor(scale: float) -> float:
    """What scores are multiplied by before they are exponents of 2."""
    return max(scale * math.log2(math.e), LEAST)


def refusal(p: Attention, target: GpuTarget) -> str:
    """Why a target has no kernel for a problem, in a sentence; "" if it has one."""
    if "wgmma" not in target.instructions:
        return f"attention on NVIDIA's GPUs takes Hopper's tensor cores, and {target.name} has none"
    if p.kv != p.q or (p.q, p.out) not in FORMATS:
        return ("attention on GPUs is of bf16 or f16 in, and the same out, or of e4m3fn into bf16, not of "
                f"{p.q}, {p.kv} and {p.out}")
    if p.q == "e4m3fn" and (p.ragged or p.page or p.value_size > 128):
        return "attention of e4m3fn on GPUs has no offsets and no pages, and values of up to 128 elements"
    if p.size not in SIZES or p.value_size not in SIZES:
        return f"heads on GPUs have a multiple of 32 elements up to 256, not {p.size} and {p.value_size}"
    if p.page % 8 or (p.page and p.page & (p.page - 1)):
        return f"pages on GPUs have 8, 16, 32 ... keys, not {p.page}"
    return ""


def section(p: Attention, heads: int) -> int:
    """Pairs of sequence and head (of so many) whose tiles of queries are taken together: all where a band makes some
    longer than others, so that these come first; else each by itself, so that its keys and values stay in L2."""
    return p.sequences*heads if p.after is not None or p.before is not None else 1


def tiles_of(p: Attention, shape: AttentionShape, plan: AttentionPlan) -> int:
    """Tiles of queries: of ragged sequences at least as many as there are."""
    each = ROWS // max(shape.packed, 1) * plan.blocks
    if shape.ragged:
        return (p.queries // each + p.sequences)*p.heads
    return -(-p.queries // each) * p.sequences*(p.kv_heads if shape.packed else p.heads)


def chosen(p: Attention, sms: int, lengths: bool, plan: AttentionPlan | None = None
           ) -> tuple[AttentionShape, AttentionPlan, int]:
    """Kernel, plan, and parts of a tile's keys."""
    band = "window" if p.before is not None else "causal" if p.after is not None else ""
    shape = AttentionShape(p.q, p.out, p.size, p.value_size, band, p.upper and bool(band), lengths=lengths,
                           ragged=p.ragged, page=p.page, score=p.score, sinks=p.sinks, lse=p.lse)
    if plan is None:
        plan = few_queries(p) or many_queries(p, band)
    if plan.blocks > 1 or p.ragged:
        return shape, plan, 1
    packed = 1 << (p.group - 1).bit_length()
    if packed > ROWS:
        return shape, plan, 1
    shape = replace(shape, packed=packed)
    tiles = tiles_of(p, shape, plan)
    splits = min(max(sms // tiles, 1), MOST_SPLITS, -(-p.keys // (plan.keys * 2)))
    return replace(shape, split=splits > 1), plan, max(splits, 1)


def few_queries(p: Attention) -> AttentionPlan | None:
    """The plan where one warpgroup has all queries of the heads that share keys; None: there are more."""
    if p.ragged or p.queries * p.group > ROWS or p.q == "e4m3fn":
        return None
    widest = max(p.size, p.value_size)
    return AttentionPlan(1, 128, 4) if widest <= 64 else AttentionPlan(1, 128, 3) if widest <= 128 else (
        AttentionPlan(1, 64, 3 if widest <= 192 else 2))


def many_queries(p: Attention, band: str) -> AttentionPlan:
    """For heads of up to 64 three warpgroups, whose softmax takes as long as the products, or two, of which tiles fit
    short sequences better: by the pairs that their tiles compute, and the rates that an H200 reached with each."""
    widest = max(p.size, p.value_size)
    if p.q == "e4m3fn":
        return AttentionPlan(2, 128, 4 if widest <= 128 else 2)
    if widest > 64:
        return AttentionPlan(2, 128 if widest <= 128 else 80 if widest <= 192 and not p.page else 64)     # of one page
    plans = {AttentionPlan(3, 128): 1.0, AttentionPlan(2, 128, 3): 0.8}
    return min(plans, key=lambda plan: _pairs(p, ROWS*plan.blocks, plan.keys, band) / plans[plan])


def _pairs(p: Attention, rows: int, keys: int, band: str) -> int:
    """Pairs of a query and a key that tiles of this size compute for a head."""
    if p.ragged:
        return 0 if rows > 128 else 1
    found, shift = 0, 0 if p.upper else p.keys - p.queries
    for i in range(0, p.queries, rows):
        end = p.keys if p.after is None else min(p.keys, i + rows + shift + p.after)
        first = max(i + shift - p.before, 0) if p.before is not None else 0
        found += rows*keys*max(-(-end // keys) - first // keys, 1)
    return found
