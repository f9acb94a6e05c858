"""Plans for attention on NVIDIA's GPUs, and the choice among them (attention_choice.py); what a kernel is made for."""
from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, ClassVar, Literal

from tilewright.attention_problem import Attention
from tilewright.plans.attention_choice import tile_pairs, traffic
from tilewright.plans.common import Cost, Plan
from tilewright.targets.nvidia import GpuTarget

if TYPE_CHECKING:
    from tilewright.plans.attention_choice import AttentionCase

FORMATS = ("bf16", "bf16"), ("f16", "f16"), ("e4m3fn", "bf16")    # in and out
MOST_SIZE = 256                     # of heads, and of their values
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
        attention_mma 64x64 stages=2                kernels/nvidia/attention_mma.py

    rows        of queries in a CTA, by `wgmma` 64 for each of its warpgroups that multiply
    keys        of a tile
    stages      of shared memory for tiles of keys, and as many for values
    splits      parts of a sequence's keys, by CTAs of their own; by `wgmma` more than one with 64 rows alone
    height      rows of a warp, by `mma`
    """
    FAMILY = "attention on an NVIDIA GPU"
    EXAMPLE = "attention_wgmma 128x128 stages=2"
    SIZES = ("rows", "keys")
    ALWAYS: ClassVar[tuple[str, ...]] = ("stages",)

    algorithm: Literal["attention_wgmma", "attention_mma"] = "attention_wgmma"
    rows: int = 128
    keys: int = 128
    stages: int = 2
    splits: int = 1
    height: int = 16

    @property
    def mma(self) -> bool:
        """Whether the kernel is that of warps (`mma.sync`), not that of warpgroups (`wgmma`)."""
        return self.algorithm == "attention_mma"

    @property
    def blocks(self) -> int:
        """Warpgroups of a CTA that multiply, by `wgmma`."""
        return self.rows // ROWS

    @property
    def parts(self) -> int:
        """Teams of warps in a CTA, each with rows of its own. One that has all of them may share the keys with CTAs."""
        return 1 if self.mma else self.blocks

    @property
    def warps(self) -> int:
        """Warps of such a team."""
        return self.rows // self.height if self.mma else 4

    @property
    def threads(self) -> int:
        """How many a CTA has; by `wgmma` a warpgroup more copies."""
        return 32*self.warps if self.mma else 128*(self.blocks + 1)

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.keys}_s{self.stages}{f'_h{self.height}' if self.height != 16 else ''}"

    def held(self, shape: AttentionShape | Attention) -> bool:
        """Whether registers hold the queries, by `mma`: in warps of 16 rows, of up to 256 bytes each, if a stage has
        room for them until they are read."""
        return (self.height == 16 and shape.size * _item(shape) <= 256
                and self.rows*shape.size <= self.keys*(shape.size + shape.value_size))

    def violations(self, case: AttentionCase, target: GpuTarget) -> list[str]:
        """Why this plan cannot run the case on the target: sentences, none if it can."""
        reasons = self.below_one("rows", "keys", "stages", "splits")
        if refused := refusal(case, target):
            return [refused]
        p = case.problem
        reasons += self._of_mma(p) if self.mma else self._of_wgmma(p, target)
        if self.splits > MOST_SPLITS or (self.splits > 1 and (self.parts > 1 or p.ragged or p.q == "e4m3fn" or (
                not self.mma and not packed_rows(p, self)))):
            reasons.append(f"splits is {self.splits}, and must be 1 to {MOST_SPLITS}, and 1 with offsets, with e4m3fn, "
                         f"and by wgmma with more than {ROWS} rows or as many query heads to a kv head.")
        room = target.smem_cta - (0 if self.mma else RESERVED)
        if not reasons and (bytes := self.shared(p)) > room:
            reasons.append(f"its tiles take {bytes} bytes of shared memory, and a CTA has {room}.")
        return reasons

    def _of_wgmma(self, p: Attention, target: GpuTarget) -> list[str]:
        if refused := _no_wgmma(p, target):
            return [refused]
        reasons = list[str]()
        least, step = (2*ROWS, 32) if p.q == "e4m3fn" else (ROWS, 16)
        if self.rows % ROWS or not least <= self.rows <= 3*ROWS:
            reasons.append(f"rows is {self.rows}, and must be a multiple of {ROWS} from {least} to {3*ROWS}.")
        if self.keys % step or self.keys > MOST_KEYS:
            reasons.append(f"keys is {self.keys}, and must be a multiple of {step} up to {MOST_KEYS}.")
        elif p.page and max(p.page, self.keys) % min(p.page, self.keys):
            reasons.append(f"keys is {self.keys}, and tiles would cross pages of {p.page}.")
        return reasons

    def _of_mma(self, p: Attention) -> list[str]:
        why, keys = list[str](), (32, 64, 128) if p.q == "e4m3fn" else (16, 32, 64, 128)
        if self.height not in (16, 32) or self.rows not in [self.height*warps for warps in (1, 2, 4, 8)]:
            why.append(f"rows is {self.rows} and height {self.height}: warps, 1, 2, 4 or 8, have 16 or 32 rows each.")
        if self.keys not in keys:
            why.append(f"keys is {self.keys}, and must be one of {', '.join(map(str, keys))}.")
        if self.stages < 2:
            why.append("stages is 1, and must be 2 or more: copies go into one while another is read.")
        most = MOST_REGISTERS - (24 if p.size * _item(p) % 128 else 0)  # rows in narrow blocks take more addresses
        if not why and (registers := self.registers(p)) > most:
            why.append(f"a thread would have {registers} registers of sums, scores and queries, and {most} leave "
                         "room for the others.")
        return why

    def resident(self, p: Attention, target: GpuTarget) -> int:
        """CTAs that share a multiprocessor; by `wgmma` one."""
        by_memory = target.occupancy(self.threads, 1, self.shared(p))
        return max(min(by_memory, self.together(p)), 1) if self.mma else 1

    def together(self, x: Attention | AttentionShape) -> int:
        """CTAs that share a multiprocessor as far as registers count, to which those of threads are limited."""
        warps = REGISTERS // (32 * (self.registers(x) + OTHER_REGISTERS)) // 4 * 4      # that have their registers
        return max(warps // self.warps, 1) if self.mma else 1

    def registers(self, p: Attention | AttentionShape) -> int:
        """What a thread has, by `mma`, for sums, scores, and queries where they are held."""
        eight = _item(p) == 1
        queries = p.size * _item(p) // 8 if self.held(p) else 0
        return self.height // 16 * (p.value_size // 2 * (1 + eight) + self.keys // 2 + queries)

    def shared(self, p: Attention) -> int:
        """Bytes of shared memory for tiles of queries, keys and values, and for shares of parts."""
        stages = self.stages*self.keys*(p.size + p.value_size)
        if not self.mma:
            return _item(p) * (self.rows*max(p.size, p.value_size) + stages)
        queries, shares = 0 if self.held(p) else self.rows*p.size, (4*MOST_SPLITS*self.rows + 16)*(self.splits > 1)
        return _item(p) * (queries + stages) + shares


def _item(x: AttentionShape | Attention) -> int:
    """Bytes of a number of queries, keys and values."""
    return 1 if (x.q if isinstance(x, Attention) else x.format) == "e4m3fn" else 2


PLAN = AttentionPlan
EMITTERS = {"attention_wgmma": "tilewright.kernels.nvidia.attention:emit_attention",
            "attention_mma": "tilewright.kernels.nvidia.attention_mma:emit_attention_mma"}
MOST_KEYS, RESERVED = 256, 4 << 10      # of a tile; bytes of shared memory for what is no tile
MOST_REGISTERS = 160                    # by `mma`, for sums, scores and queries: ptxas has not spilled with these
OTHER_REGISTERS, REGISTERS = 95, 65536  # that ptxas takes beside them; of a multiprocessor


def factor(scale: float) -> float:
    """What scores are multiplied by before they are exponents of 2."""
    return max(scale * math.log2(math.e), LEAST)


def refusal(case: AttentionCase, target: GpuTarget) -> str:
    """Why a target has no kernel for a problem, in a sentence; "" if it has one."""
    p = case.problem
    if not {"cp.async", "bf16"} <= {*target.instructions}:
        return f"attention on NVIDIA's GPUs takes tensor cores of sm_80 or later, and {target.name} has none"
    if p.kv != p.q or (p.q, p.out) not in FORMATS:
        return ("attention on GPUs is of bf16 or f16 in, and the same out, or of e4m3fn into bf16, not of "
                f"{p.q}, {p.kv} and {p.out}")
    if p.q == "e4m3fn" and "fp8" not in target.instructions:
        return f"attention of e4m3fn on NVIDIA's GPUs takes tensor cores of sm_89 or later, not {target.name}"
    if p.q == "e4m3fn" and (p.ragged or p.page or p.value_size > 128):
        return "attention of e4m3fn on GPUs has no offsets and no pages, and values of up to 128 elements"
    step = 32 if p.q == "e4m3fn" else 16
    if p.size % step or p.value_size % step or not 0 < p.size <= MOST_SIZE or not 0 < p.value_size <= MOST_SIZE:
        return f"heads on GPUs have a multiple of {step} elements up to {MOST_SIZE}, not {p.size} and {p.value_size}"
    return ""


def _no_wgmma(p: Attention, target: GpuTarget) -> str:
    """Why the kernel of warpgroups does not compute it there, in a sentence; "" if it does."""
    if "wgmma" not in target.instructions:
        return f"{target.name} has no wgmma."
    if p.size % 32 or p.value_size % 32:
        return f"by wgmma heads have multiples of 32 elements, not {p.size} and {p.value_size}."
    if p.page % 8 or (p.page and p.page & (p.page - 1)):
        return f"by wgmma pages have 8, 16, 32 ... keys, not {p.page}."
    return ""


def tiles_of(p: Attention, shape: AttentionShape, plan: AttentionPlan) -> int:
    """Tiles of queries: of ragged sequences at least as many as there are."""
    rows = plan.rows // plan.parts // max(shape.packed, 1) * plan.parts
    if shape.ragged:
        return (p.queries // rows + p.sequences)*p.heads
    return -(-p.queries // rows) * p.sequences*(p.kv_heads if shape.packed else p.heads)


def grid_of(p: Attention, shape: AttentionShape, plan: AttentionPlan, target: GpuTarget) -> int:
    """CTAs of a launch: not more than multiprocessors hold, nor than there is work for."""
    return min(tiles_of(p, shape, plan) * plan.splits, target.sms * plan.resident(p, target))


def packed_rows(p: Attention, plan: AttentionPlan) -> int:
    """Rows of a tile for the query heads of a kv head: as many as there are, up to a power of 2; 0: a tile has one."""
    packed = 1 << (p.group - 1).bit_length()
    if p.ragged or p.q == "e4m3fn" or plan.parts > 1 or packed > plan.rows:
        return 0
    fewer = -(-p.queries*packed // plan.rows) < -(-p.queries // plan.rows) * p.group
    return packed if fewer or not plan.mma else 0


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
    better; others two, with the largest tiles of keys that shared memory has room for. Without `wgmma` those of `mma`.
    """
    p, widest = case.problem, max(case.problem.size, case.problem.value_size)
    if _no_wgmma(p, target):
        yield from _tiles_of_mma(case, target)
    elif not p.ragged and p.queries * p.group <= ROWS and p.q != "e4m3fn":
        plan = AttentionPlan(rows=ROWS, keys=128 if widest <= 128 else 64,
                             stages=4 if widest <= 64 else 3 if widest <= 192 else 2)
        tiles = tiles_of(p, emitted(case, plan)[0], plan)
        splits = min(max(target.sms // max(tiles, 1), 1), MOST_SPLITS, -(-p.keys // (plan.keys * 2)))
        yield replace(plan, splits=max(splits, 1))
    elif p.q == "e4m3fn":
        yield from (AttentionPlan(rows=192, stages=3),)*(widest <= 64)
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
    if _no_wgmma(p, target):
        return
    yield from _tiles_of_mma(case, target)
    for rows in (64, 128, 192) if max(p.size, p.value_size) <= 128 else (64, 128):
        for keys in (64, 80, 96, 128, 160, 176, 192):
            for stages in (4, 3, 2):
                plan = AttentionPlan(rows=rows, keys=keys, stages=stages)
                if plan.shared(p) <= target.smem_cta - RESERVED:
                    yield plan
                    break


def _tiles_of_mma(case: AttentionCase, target: GpuTarget) -> Iterator[AttentionPlan]:
    """Tiles of 16 to 256 queries, the smallest ones for few; and as many parts of the keys as multiprocessors hold."""
    p = case.problem
    for rows, height in (16, 16), (32, 16), (64, 16), (128, 16), (128, 32), (256, 32):
        if rows < 64 and p.queries * p.group > 2*rows:
            continue
        for keys, stages in product((16, 32, 64, 128), (3, 2)):
            plan = AttentionPlan("attention_mma", rows, keys, stages, height=height)
            if plan.violations(case, target):
                continue
            yield plan
            divided, tiles = replace(plan, splits=2), max(tiles_of(p, emitted(case, plan)[0], plan), 1)
            splits = min(target.sms * divided.resident(p, target) // tiles, MOST_SPLITS, p.keys // (2*keys))
            if splits > 1 and not divided.violations(case, target):
                yield replace(plan, splits=splits)


# Of an H200 (docs/attention-gpu.md): exponentials in a clock of a multiprocessor; those of 8-bit powers, which are
# scaled and packed, beside them; what warpgroups in turns leave of the sum of products and exponentials, and how much
# more two leave than three where both take as long; clocks that a tile of queries begins and ends with; seconds of a
# launch, and the share of memory's peak rate.
EXPS, NARROW_EXPS, TURNS, TWO_OF_THREE, START, LAUNCH, DRAM = 16, 1.6, 0.84, 1.25, 2900, 9e-6, 0.97
# Of kernels by `mma`, of which none was measured: instructions for a score beside those that scale sums; bytes in a
# clock of a multiprocessor from shared memory, and from L2; clocks until a tile's first keys are there, and those that
# each tile of keys waits for barriers, fragments and maxima.
SOFTMAX, SMEM, L2, FIRST, WAITS = 4.5, 128, 48, 2000, 400


def cost(case: AttentionCase, plan: AttentionPlan, target: GpuTarget) -> Cost:
    """By the pairs that tiles compute, products and exponentials, of which some are hidden behind others; tiles of keys
    at a mask's edge take longer. Or by memory."""
    p, (shape, _) = case.problem, emitted(case, plan)
    tiles = tiles_of(p, shape, plan) * plan.splits
    heads = p.sequences * (p.kv_heads if shape.packed else p.heads)
    rows = plan.rows // max(shape.packed, 1)
    pairs, edges = tile_pairs(p, rows, plan.keys)
    pairs, edges = (x * max(shape.packed, 1) * (p.heads if p.ragged else heads) for x in (pairs, edges))
    together = min(plan.resident(p, target), -(-tiles // target.sms))   # CTAs of a multiprocessor
    rounds = -(-tiles // (target.sms*max(together, 1))) * together
    clock = rounds / max(tiles, 1) / target.clock                       # seconds that one takes, shared by all
    clocks = _by_mma(p, plan, target, together) if plan.mma else _by_wgmma(p, plan, target)
    parts = {what: pairs * x * clock for what, x in clocks.items()}
    begin = FIRST / max(together, 1) if plan.mma else START
    parts |= {"masks": sum(parts.values()) * edges / max(pairs, 1) * (0.2 if plan.mma else 0.5),
              "tiles begin and end": tiles * begin * clock}
    seconds, memory = sum(parts.values()), sum(p.bytes.values()) / (DRAM * target.bandwidth)
    parts = parts | {"waiting for memory": max(memory - seconds, 0.0), "launch": LAUNCH}
    return Cost(sum(parts.values()), tuple(parts.items()),
                traffic(case, -(-p.queries // rows) * (1 if shape.packed else p.group)))


def _by_wgmma(p: Attention, plan: AttentionPlan, target: GpuTarget) -> dict[str, float]:
    """Clocks of a multiprocessor for a pair."""
    share = TURNS * (TWO_OF_THREE if plan.rows < 3*ROWS and max(p.size, p.value_size) <= 64 else 1.0)
    return {"products": 2 * (p.size + p.value_size) / target.wgmma_rates.get(p.q, 1) * share,
            "exponentials": (NARROW_EXPS if p.q == "e4m3fn" else 1.0) / EXPS * share}


def _by_mma(p: Attention, plan: AttentionPlan, target: GpuTarget, together: int) -> dict[str, float]:
    """Clocks of a multiprocessor for a pair: all of what takes longest, and of the others the share that the warps of a
    scheduler leave. Fragments of keys and values are read once for each warp's rows."""
    both, warps = (p.size + p.value_size) * _item(p), max(together, 1) * plan.warps
    idle = max(4 / warps, 1.0)                                          # of four schedulers
    again = 0 if plan.held(p) else p.size * _item(p) / plan.keys        # queries that registers do not hold
    seconds = {"products": 2 * (p.size + p.value_size) / target.matrix_rates.get(p.q, 1) * idle,
             "exponentials": idle / EXPS,
             "instructions": (SOFTMAX + p.value_size / plan.keys) / 128 * idle,
             "shared memory": (both/plan.height + both/plan.rows + again) / SMEM, "L2": both / plan.rows / L2,
             "waits": WAITS * 4 / (plan.rows*plan.keys) / plan.warps * max(warps / 4, 1.0) / max(together, 1)}
    longest = max(seconds.values())
    return {what: x if x == longest else x / max(warps / 4, 1.0) for what, x in seconds.items()}
