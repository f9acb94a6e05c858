"""Plans for attention on NVIDIA's GPUs, and the choice among them (attention_choice.py); what a kernel is made for."""
from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from tilewright.attention_problem import Attention
from tilewright.plans.attention_choice import tile_pairs, traffic
from tilewright.plans.common import Cost, Plan
from tilewright.targets.nvidia import GpuTarget

if TYPE_CHECKING:
    from tilewright.plans.attention_choice import AttentionCase

FORMATS = ("bf16", "bf16"), ("f16", "f16"), ("e4m3fn", "bf16")    # in and out
SIZES = range(32, 257, 32)          # of heads, and of their values
ROWS, MOST_SPLITS = 64, 32           # of a warpgroup; parts of a tile, one for each lane that adds them up
LEAST = 2.0**-100                   # of a factor: times the -inf of a masked score it is -inf, and of others nothing


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
class AttentionPlan(Plan):
    """How attention is tiled on a GPU.

        attention_wgmma 128x128 stages=2            kernels/nvidia/attention.py

    rows        of queries in a CTA, 64 for each of its warpgroups that multiply
    keys        of a tile
    stages      of shared memory for tiles of keys, and as many for values
    splits      parts of a sequence's keys, by CTAs of their own; more than one with 64 rows alone
    """
    FAMILY = "attention on an NVIDIA GPU"
    EXAMPLE = "attention_wgmma 128x128 stages=2"
    SIZES = ("rows", "keys")
    ALWAYS: ClassVar[tuple[str, ...]] = ("stages",)

    algorithm: Literal["attention_wgmma"] = "attention_wgmma"
    rows: int = 128
    keys: int = 128
    stages: int = 2
    splits: int = 1

    @property
    def blocks(self) -> int:
        """Warpgroups of a CTA that multiply."""
        return self.rows // ROWS

    @property
    def resident(self) -> int:
        """CTAs that share a multiprocessor."""
        return 1

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.keys}_s{self.stages}"

    def violations(self, case: AttentionCase, target: GpuTarget) -> list[str]:
        """Why this plan cannot run the case on the target: sentences, none if it can."""
        found = self.below_one("rows", "keys", "stages", "splits")
        if refused := refusal(case, target):
            return [refused]
        p = case.problem
        least, step = (2*ROWS, 32) if p.q == "e4m3fn" else (ROWS, 16)
        if self.rows % ROWS or not least <= self.rows <= 3*ROWS:
            found.append(f"rows is {self.rows}, and must be a multiple of {ROWS} from {least} to {3*ROWS}.")
        if self.keys % step or self.keys > MOST_KEYS:
            found.append(f"keys is {self.keys}, and must be a multiple of {step} up to {MOST_KEYS}.")
        elif p.page and max(p.page, self.keys) % min(p.page, self.keys):
            found.append(f"keys is {self.keys}, and tiles would cross pages of {p.page}.")
        if self.splits > MOST_SPLITS or (self.splits > 1 and not packed_rows(p, self)):
            found.append(f"splits is {self.splits}, and must be 1 to {MOST_SPLITS}, and 1 with more than {ROWS} rows, "
                         "more query heads to a kv head, or offsets.")
        if not found and (bytes := self.shared(p)) > target.smem_cta - RESERVED:
            found.append(f"its tiles take {bytes} bytes of shared memory, and a CTA has {target.smem_cta - RESERVED}.")
        return found

    def shared(self, p: Attention) -> int:
        """Bytes of shared memory for tiles of queries, keys and values."""
        size = 1 if p.q == "e4m3fn" else 2
        return size * (self.rows*max(p.size, p.value_size) + self.stages*self.keys*(p.size + p.value_size))


PLAN = AttentionPlan
EMITTERS = {"attention_wgmma": "tilewright.kernels.nvidia.attention:emit_attention"}
MOST_KEYS, RESERVED = 256, 4 << 10      # of a tile; bytes of shared memory for what is no tile


def factor(scale: float) -> float:
    """What scores are multiplied by before they are exponents of 2."""
    return max(scale * math.log2(math.e), LEAST)


def refusal(case: AttentionCase, target: GpuTarget) -> str:
    """Why a target has no kernel for a problem, in a sentence; "" if it has one."""
    p = case.problem
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


def packed_rows(p: Attention, plan: AttentionPlan) -> int:
    """Rows of a tile for the query heads of a kv head: as many as there are, up to a power of 2; 0: a tile has one."""
    packed = 1 << (p.group - 1).bit_length()
    return packed if plan.rows == ROWS and not p.ragged and packed <= ROWS else 0


def emitted(case: AttentionCase, plan: AttentionPlan) -> tuple[AttentionShape, AttentionPlan]:
    """What a kernel's emitter is called with."""
    p = case.problem
    return AttentionShape(p.q, p.out, p.size, p.value_size, p.band, p.upper and bool(p.band), packed_rows(p, plan),
                          plan.splits > 1, case.lengths, p.ragged, p.page, p.score, p.sinks, p.lse
                          ), replace(plan, splits=1)


# ---- the choice

def choose(case: AttentionCase, target: GpuTarget) -> AttentionPlan:
    """The usual tiling with the least predicted time."""
    return min(usual(case, target), key=lambda plan: cost(case, plan, target).seconds)


def usual(case: AttentionCase, target: GpuTarget) -> Iterator[AttentionPlan]:
    """Few queries: one warpgroup has those of all heads that share keys, and CTAs share the keys. Else heads of up to
    64 have three warpgroups, whose softmax takes as long as the products, or two, of which tiles fit short sequences
    better; others two, with the largest tiles of keys that shared memory has room for."""
    p, widest = case.problem, max(case.problem.size, case.problem.value_size)
    if not p.ragged and p.queries * p.group <= ROWS and p.q != "e4m3fn":
        plan = AttentionPlan(rows=ROWS, keys=128 if widest <= 128 else 64,
                             stages=4 if widest <= 64 else 3 if widest <= 192 else 2)
        tiles = tiles_of(p, emitted(case, plan)[0], plan)
        splits = min(max(target.sms // max(tiles, 1), 1), MOST_SPLITS, -(-p.keys // (plan.keys * 2)))
        yield replace(plan, splits=max(splits, 1))
    elif p.q == "e4m3fn":
        yield AttentionPlan(stages=4 if widest <= 128 else 2)
    elif widest > 64:
        yield AttentionPlan(keys=128 if widest <= 128 else 80 if widest <= 192 and not p.page else 64)  # of one page
    else:
        yield from (AttentionPlan(rows=192), AttentionPlan(stages=3))


def candidates(case: AttentionCase, target: GpuTarget) -> Iterator[AttentionPlan]:
    """The usual tilings; others of as many rows or fewer, with as many stages as shared memory has room for."""
    p = case.problem
    for plan in usual(case, target):
        yield plan
        for splits in (plan.splits // 2, plan.splits * 2) if plan.splits > 1 else ():
            yield replace(plan, splits=splits)
    for rows in (64, 128, 192) if max(p.size, p.value_size) <= 128 else (64, 128):
        for keys in (64, 80, 96, 128, 160, 176, 192):
            for stages in (4, 3, 2):
                plan = AttentionPlan(rows=rows, keys=keys, stages=stages)
                if plan.shared(p) <= target.smem_cta - RESERVED:
                    yield plan
                    break


# Of an H200 (docs/attention-gpu.md): exponentials in a clock of a multiprocessor; those of 8-bit powers, which are
# scaled and packed, beside them; what warpgroups in turns leave of the sum of products and exponentials, and how much
# more two leave than three where both take as long; clocks that a tile of queries begins and ends with; seconds of a
# launch, and the share of memory's peak rate.
EXPS, NARROW_EXPS, TURNS, TWO_OF_THREE, START, LAUNCH, DRAM = 16, 1.6, 0.84, 1.25, 2900, 9e-6, 0.97


def cost(case: AttentionCase, plan: AttentionPlan, target: GpuTarget) -> Cost:
    """By the pairs that tiles compute: a share of products and exponentials is hidden behind the other, and tiles of
    keys at a mask's edge take twice as long. Or by memory."""
    p, (shape, _) = case.problem, emitted(case, plan)
    rates = target.wgmma_rates if plan.algorithm == "attention_wgmma" else target.matrix_rates
    tiles = tiles_of(p, shape, plan) * plan.splits
    heads = p.sequences * (p.kv_heads if shape.packed else p.heads)
    rows = plan.rows // max(shape.packed, 1)
    pairs, edges = tile_pairs(p, rows, plan.keys)
    pairs, edges = (x * max(shape.packed, 1) * (p.heads if p.ragged else heads) for x in (pairs, edges))
    clock = -(-tiles // target.sms) / max(tiles, 1) / target.clock      # seconds that one takes, shared by all
    pair = clock * TURNS * (TWO_OF_THREE if plan.rows < 3*ROWS and max(p.size, p.value_size) <= 64 else 1.0)
    parts = {"products": 2 * (p.size + p.value_size) * pairs / rates.get(p.q, 1) * pair,
             "exponentials": pairs / EXPS * (NARROW_EXPS if p.q == "e4m3fn" else 1.0) * pair}
    parts |= {"masks": sum(parts.values()) * edges / max(pairs, 1), "tiles begin and end": tiles * START * clock}
    seconds, memory = sum(parts.values()), sum(p.bytes.values()) / (DRAM * target.bandwidth)
    parts = parts | {"waiting for memory": max(memory - seconds, 0.0), "launch": LAUNCH}
    return Cost(sum(parts.values()), tuple(parts.items()),
                traffic(case, -(-p.queries // rows) * (1 if shape.packed else p.group)))
