"""Plans for attention on AMD's Matrix Cores, and the choice among them (attention_choice.py).

Nothing of it has been measured: what a round of a wave takes follows the static count of cycles (docs/amd-code.md).
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from tilewright.attention_problem import Attention
from tilewright.plans import common
from tilewright.plans.amd_model import L1_CLOCK
from tilewright.plans.attention_choice import tile_pairs, traffic
from tilewright.plans.common import Cost, Plan
from tilewright.plans.nvidia_attention import AttentionShape
from tilewright.targets.amd import AmdTarget

if TYPE_CHECKING:
    from tilewright.plans.attention_choice import AttentionCase

LANES, ROWS = 64, 32                # of a wave: lanes, and queries, which are columns of its products
FORMATS = ("bf16", "bf16"), ("f16", "f16"), ("e4m3fn", "bf16")      # in and out
MOST_SPLITS = LANES                 # parts of a tile, one for each lane that adds them up
MOST_WAVES = 16
EMITTERS = {"attention_mfma": "tilewright.kernels.amd.attention:emit_attention"}


@dataclass(frozen=True)
class AmdAttention(Plan):
    """How attention is tiled on a GPU of AMD's.

        attention_mfma 128x64 resident=2            kernels/amd/attention.py

    rows        of queries in a workgroup, 32 for each of its waves
    keys        of a tile, two of which are in LDS, and as many of values
    resident    workgroups that share a compute unit: what its registers are divided among
    splits      parts of a sequence's keys, by workgroups of their own; more than one with 32 rows alone
    """
    FAMILY = "attention on an AMD GPU"
    EXAMPLE = "attention_mfma 128x64 resident=2"
    SIZES = ("rows", "keys")
    ALWAYS: ClassVar[tuple[str, ...]] = ("resident",)

    algorithm: Literal["attention_mfma"] = "attention_mfma"
    rows: int = 128
    keys: int = 64
    resident: int = 2
    splits: int = 1

    mma: ClassVar[bool] = True          # operands are addresses and distances, as of NVIDIA's kernel of that name

    @property
    def waves(self) -> int:
        return self.rows // ROWS

    warps: ClassVar[int] = 1                    # that have rows together

    @property
    def threads(self) -> int:
        return LANES*self.waves

    def together(self, shape: AttentionShape) -> int:
        """Workgroups that share a compute unit."""
        return self.resident

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.keys}_r{self.resident}"

    def violations(self, case: AttentionCase, target: AmdTarget) -> list[str]:
        """Why this plan cannot run the case on the target: sentences, none if it can."""
        why = self.below_one("rows", "keys", "resident", "splits")
        if refused := refusal(case, target):
            return [refused]
        p, waves = case.problem, self.waves
        if self.rows % ROWS or waves & (waves - 1) or waves > MOST_WAVES:
            why.append(f"rows is {self.rows}, and must be {ROWS} times 1, 2, 4, 8 or {MOST_WAVES}.")
        if self.keys not in (32, 64, 128):
            why.append(f"keys is {self.keys}, and must be 32, 64 or 128.")
        if self.splits > MOST_SPLITS or (self.splits > 1 and not packed_rows(p, self)):
            why.append(f"splits is {self.splits}, and must be 1 to {MOST_SPLITS}, and 1 with more than {ROWS} rows, "
                         "more query heads to a kv head, or offsets.")
        if why:
            return why
        values, item = held(p), _item(p)
        if target.has("lds.transposed") and self.keys * (values & -values) * item < 16*self.threads:
            why.append(f"{self.threads} threads are more than a part of a tile of values has pieces of 16 bytes.")
        if (takes := self.lds(p)) * self.resident > target.lds:
            why.append(f"{self.resident} workgroups take {takes} bytes of LDS each, and there are {target.lds}.")
        if (needs := self.registers(p)) > (has := target.vgprs // self.waves_simd // 8 * 8):
            why.append(f"a lane needs about {needs} registers, and has {has}.")
        return why

    @property
    def waves_simd(self) -> int:
        """Waves that a SIMD has."""
        return -(-self.resident*self.waves // 4)

    def lds(self, p: Attention) -> int:
        """Bytes of LDS of a workgroup."""
        return 2*_item(p)*self.keys*(p.size + held(p)) + (ROWS*LANES*4 + 128 if self.splits > 1 else 0)

    def registers(self, p: Attention) -> int:
        """How many a lane has: for sums, queries, scores and exponents, powers, the next tiles on their way, and about
        64 others; as many more as LLVM takes for addresses of another part of a key, and for powers of 8 bits."""
        item = _item(p)
        coming = -(-self.keys*(p.size + held(p))*item // (4*self.threads))
        return held(p) // 2 + p.size*item // 8 + self.keys + self.keys*item // 8 + coming + 64 + (
            24*(p.size.bit_count() - 1) + 26*(item == 1))


PLAN = AmdAttention


def _item(p: Attention) -> int:
    """Bytes of a number of queries, keys and values."""
    return 1 if p.q == "e4m3fn" else 2


def held(p: Attention) -> int:
    """Elements of a value, by whole tiles of products."""
    return -(-p.value_size // ROWS) * ROWS


def refusal(case: AttentionCase, target: AmdTarget) -> str:
    """Why a target has no kernel for a problem, in a sentence; "" if it has one."""
    p = case.problem
    if p.kv != p.q or (p.q, p.out) not in FORMATS:
        return ("attention on AMD's GPUs is of bf16 or f16 in, and the same out, or of e4m3fn into bf16, not of "
                f"{p.q}, {p.kv} and {p.out}")
    if p.q == "e4m3fn" and not target.has("mfma.fp8.ocp"):
        return f"attention of e4m3fn takes Matrix Cores that multiply it, and those of {target.name} do not"
    if p.q == "e4m3fn" and (p.size % 32 or p.value_size % 32):
        return f"heads of e4m3fn on AMD's GPUs have a multiple of 32 elements, not {p.size} and {p.value_size}"
    if p.size % 16 or p.value_size % 16 or not 0 < p.size <= 256 or not 0 < p.value_size <= 256:
        return f"heads on AMD's GPUs have a multiple of 16 elements up to 256, not {p.size} and {p.value_size}"
    return ""


def tiles_of(p: Attention, shape: AttentionShape, plan: AmdAttention) -> int:
    """Tiles of queries: of ragged sequences at least as many as there are."""
    rows = ROWS // max(shape.packed, 1) * plan.waves
    if shape.ragged:
        return (p.queries // rows + p.sequences)*p.heads
    return -(-p.queries // rows) * p.sequences*(p.kv_heads if shape.packed else p.heads)


def grid_of(p: Attention, shape: AttentionShape, plan: AmdAttention, target: AmdTarget) -> int:
    """Workgroups of a launch: not more than compute units hold, nor than there is work for."""
    return min(tiles_of(p, shape, plan) * plan.splits, target.cus * plan.resident)


def packed_rows(p: Attention, plan: AmdAttention) -> int:
    """Rows of a tile for the query heads of a kv head: as many as there are, up to a power of 2; 0: a tile has one."""
    packed = 1 << (p.group - 1).bit_length()
    return packed if plan.rows == ROWS and not p.ragged and packed <= ROWS and p.q != "e4m3fn" else 0


def emitted(case: AttentionCase, plan: AmdAttention) -> tuple[AttentionShape, AmdAttention]:
    """What a kernel's emitter is called with."""
    p = case.problem
    return AttentionShape(p.q, p.out, p.size, p.value_size, p.band, p.upper and bool(p.band), packed_rows(p, plan),
                          plan.splits > 1, case.lengths, p.ragged, p.page, p.score, p.sinks, p.lse
                          ), replace(plan, splits=1)


# ---- the choice

def choose(case: AttentionCase, target: AmdTarget) -> AmdAttention:
    """The legal candidate with the least predicted time."""
    return common.best(case, target, candidates(case, target), cost)


def candidates(case: AttentionCase, target: AmdTarget) -> Iterator[AmdAttention]:
    """Tiles of 32 to 256 queries, by as many workgroups on a compute unit as give a SIMD one wave or two; few queries
    of the heads that share keys in one wave each, with parts of the keys for all compute units."""
    p = case.problem
    for rows in (128, 256, 64, 32):
        for keys in (64, 32):
            for resident in [n for n in (2, 1, 4, 8) if n*rows <= 8*ROWS]:
                plan = AmdAttention(rows=rows, keys=keys, resident=resident)
                yield plan
                if rows == ROWS and packed_rows(p, plan):
                    tiles = tiles_of(p, emitted(case, plan)[0], plan)
                    most = min(target.cus*resident // max(tiles, 1), MOST_SPLITS, -(-p.keys // (2*keys)))
                    yield from (replace(plan, splits=splits) for splits in {most, most // 2} if splits > 1)


# By the static count of cycles: of a wave's vector instructions for a lane's score (an exponential of 16, and what
# rounds bf16 without an instruction for it) and for a round; the share of the sum of products and vector instructions
# that remains where two waves of a SIMD, or one, have both. Clocks in which a tile of queries begins and ends; seconds
# of a launch; bytes of a wave's loads under way, by which memory's latency bounds what a compute unit gets.
SCORE, ROUNDING, ROUND, TURNS, ALONE, START, LAUNCH, LATENCY = 22, 9, 160, 0.76, 0.95, 4000, 9e-6, 0.7e-6


def cost(case: AttentionCase, plan: AmdAttention, target: AmdTarget) -> Cost:
    """By the pairs that tiles compute, and clocks of a SIMD for each: a share of products and vector instructions is
    hidden behind the other, and tiles of keys at a mask's edge take half as long again. Or by what brings keys."""
    p, (shape, _) = case.problem, emitted(case, plan)
    tiles = tiles_of(p, shape, plan) * plan.splits
    rows = plan.rows // max(shape.packed, 1)
    pairs, edges = tile_pairs(p, rows, plan.keys)
    heads = p.heads if p.ragged else p.sequences * (p.kv_heads if shape.packed else p.heads)
    pairs, edges = (x * max(shape.packed, 1) * heads for x in (pairs, edges))
    held = target.cus * plan.resident
    rounds = -(-tiles // held) * held / max(tiles, 1)               # of a compute unit's places, some are empty
    share = TURNS if plan.waves_simd > 1 else ALONE
    rounds *= max(target.simds / (plan.resident*plan.waves), 1)         # SIMDs without a wave
    scores = pairs * rounds / (target.cus * target.simds * target.clock) / LANES
    bf16 = ROUNDING if p.q == "bf16" and target.name == "gfx942" else 0
    products = 2 * pairs * (p.size + p.value_size) / (target.matrix_rates[p.q] * target.cus * target.clock) * rounds
    parts = {"products": products * share, "vector instructions": scores * share * (
        SCORE + bf16 + 2*ROUND / plan.keys)}
    parts |= {"masks": sum(parts.values()) * edges / max(pairs, 1) / 2,
              "tiles begin and end": tiles * START * rounds / (held * target.clock) / min(plan.resident, 2)}
    seconds = sum(parts.values())
    brought = pairs / plan.rows * (p.size + p.value_size) * _item(p)        # bytes to LDS
    under_way = plan.resident * plan.keys * (p.size + p.value_size) * _item(p)
    used = min(tiles, held) / held
    memory = max(sum(p.bytes.values()) / target.bandwidth, brought * rounds / (L1_CLOCK * target.cus * target.clock),
                 brought * LATENCY / (under_way * target.cus * used))
    adding = LAUNCH if plan.splits > 1 else 0.0
    parts |= {"waiting for memory": max(memory - seconds, 0.0), "adding parts": adding, "launch": LAUNCH}
    return Cost(sum(parts.values()), tuple(parts.items()),
                traffic(case, -(-p.queries // rows) * (1 if shape.packed else p.group)))
