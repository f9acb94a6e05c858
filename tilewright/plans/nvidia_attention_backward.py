"""How attention's gradients are tiled on Hopper (kernels/nvidia/attention_backward.py), what they are made for, and how
long they take at best."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tilewright.attention_problem import Attention
from tilewright.plans.attention_choice import tile_pairs
from tilewright.plans.attention_order import SECTION_BYTES
from tilewright.plans.common import Cost, Plan
from tilewright.targets.nvidia import GpuTarget

FORMATS = "bf16", "f16"
SIZES = range(32, 129, 32)          # of heads, and of their values
KEYS = 128                          # of a tile: 64 for each of two warpgroups
MOST_SEQUENCES = 65535              # CTAs along an axis of a grid
RESERVED = 4 << 10                  # bytes of shared memory for what is no tile


@dataclass(frozen=True)
class BackwardShape:
    """What a kernel is made for beside its plan.

    format                  of all operands and results
    band, upper, ragged     as of `nvidia_attention.AttentionShape`
    ordered                 additions to gradients by queries have an order: no bit depends on when CTAs run
    """
    format: str = "bf16"
    size: int = 128
    value_size: int = 128
    band: str = ""
    upper: bool = False
    ragged: bool = False
    ordered: bool = False

    @property
    def name(self) -> str:
        words = {self.band: self.band, "upper": self.upper, "ragged": self.ragged, "ordered": self.ordered}
        return "_".join((self.format, f"{self.size}x{self.value_size}", *(x for x, given in words.items() if given)))


@dataclass(frozen=True)
class BackwardPlan(Plan):
    """How attention's gradients are tiled on a GPU.

        attention_backward 64x128 stages=2          kernels/nvidia/attention_backward.py

    queries     of a tile, 64 or 128
    keys        of a CTA, 128
    stages      of shared memory for tiles of queries, and as many for those of the result's gradient
    ahead       a round's last products are waited for behind the next round's scores, so that tensor cores have work
                between rounds; tiles of queries have one stage more
    """
    FAMILY = "attention's gradients on an NVIDIA GPU"
    EXAMPLE = "attention_backward 64x128 stages=2"
    SIZES = ("queries", "keys")
    ALWAYS: ClassVar[tuple[str, ...]] = ("stages",)

    algorithm: Literal["attention_backward"] = "attention_backward"
    queries: int = 64
    keys: int = KEYS
    stages: int = 2
    ahead: bool = False

    @property
    def name(self) -> str:
        return f"{self.queries}x{self.keys}_s{self.stages}{'_ahead' * self.ahead}"

    def violations(self, p: Attention, target: GpuTarget) -> list[str]:
        """Why this plan cannot run the problem on the target: sentences, none if it can."""
        if refused := refusal(p, target):
            return [refused]
        why = []
        if self.queries not in (64, 128) or self.keys != KEYS or self.stages < 1:
            why.append(f"tiles have 64 or 128 queries and {KEYS} keys, in 1, 2 ... stages, not {self.queries}, "
                         f"{self.keys} and {self.stages}.")
        elif (bytes := self.shared(p)) > target.smem_cta - RESERVED:
            why.append(f"its tiles take {bytes} bytes of shared memory, and a CTA has {target.smem_cta - RESERVED}.")
        return why

    def shared(self, p: Attention) -> int:
        """Bytes of shared memory for tiles: of keys and values, of the stages, of slopes twice, and of sums."""
        both, queries = p.size + p.value_size, self.queries*(2*p.size + 8)
        stages = self.stages*self.queries*(2*both + 8) + self.ahead*queries
        return 2*KEYS*both + stages + 2*2*KEYS*self.queries + 4*self.queries*p.size


def refusal(p: Attention, target: GpuTarget) -> str:
    """Why a target has no kernel for a problem's gradients, in a sentence; "" if it has one."""
    if "wgmma" not in target.instructions:
        return f"attention's gradients on NVIDIA's GPUs take Hopper's tensor cores, and {target.name} has none"
    if p.q not in FORMATS or p.kv != p.q or p.out != p.q:
        return f"attention's gradients on GPUs are of bf16 or f16, all the same, not of {p.q}, {p.kv} and {p.out}"
    if p.size not in SIZES or p.value_size not in SIZES:
        return (f"gradients on GPUs are of heads with a multiple of 32 elements up to 128, not {p.size} and "
                f"{p.value_size}")
    if p.score or p.page or p.factors:
        what = "soft caps and score functions" if p.score else "pages" if p.page else "factors"
        return f"attention's gradients on GPUs have no {what}"
    if p.sequences > MOST_SEQUENCES and not p.ragged:
        return f"attention's gradients on GPUs are of at most {MOST_SEQUENCES} sequences, not {p.sequences}"
    return ""


def choose(p: Attention) -> BackwardPlan:
    """The plan for a problem.

    A warpgroup has the gradients by 64 keys and by their values in registers, (D + D')/2 of 32 bits a thread for heads
    of D and values of D', and beside them M for its scores and slopes by M queries, M/4 for the two rounded: with
    D = D' = 128 there is room for M = 64 (208 of 240), with 64 for M = 128, of which each instruction reads less of
    shared memory for each product.
    """
    return BackwardPlan(queries=128 if max(p.size, p.value_size) <= 64 else 64)


def emitted(p: Attention, ordered: bool) -> BackwardShape:
    """What a kernel's emitter is called with beside the plan."""
    return BackwardShape(p.q, p.size, p.value_size, p.band, p.upper and bool(p.band), p.ragged, ordered)


def section(p: Attention) -> int:
    """Pairs of a sequence and a kv head whose tiles of keys are taken together, those that see most queries first: as
    many as keep queries, gradients of results and sums in L2."""
    if not p.band:
        return 1
    bytes_of_head = p.group * p.queries * (2*p.size + 2*p.value_size + 4*p.size)
    return max(min(SECTION_BYTES // max(bytes_of_head, 1), p.sequences * p.kv_heads), 1)


# ---- predicted

# Of an H200: powers in a clock of a multiprocessor, bytes of shared memory in one, and operations a second that
# products of its size reach within its power.
POWERS, SHARED, RATE = 16, 128, 620e12


def cost(p: Attention, plan: BackwardPlan, target: GpuTarget) -> Cost:
    """The least seconds that a chip like an H200 takes, if nothing waits: the longest of the first three parts, and the
    last. products: five of them for all pairs that tiles compute. powers: one for each pair. shared: what instructions,
    stores and copies read and write of shared memory. beside: the launches before and after, of which the one clears
    sums and adds up rows, the other rounds sums."""
    d, dv, m = p.size, p.value_size, plan.queries
    heads, clocks = p.heads * (1 if p.ragged else p.sequences), target.sms * target.clock
    pairs = tile_pairs(p, m, KEYS)[0] * heads
    # bytes of a tile: two products of two operands in shared memory for each warpgroup, two of one, and one of two;
    # slopes and sums are written, sums read, tiles brought, and numbers beside queries read by each lane
    operands = 2*2*(64 + m)*(d + dv) + 2*2*m*(d + dv) + 2*2*KEYS*(64 + min(d, 64))
    moved = 2*m*KEYS + 2*4*m*d + 2*m*(d + dv) + 2*256*m
    parts = {"products": 2 * pairs * (3*d + 2*dv) / RATE, "powers": pairs / (POWERS * clocks),
             "shared memory": pairs / (m*KEYS) * (operands + moved) / (SHARED * clocks)}
    ends = p.queries * heads * (2*2*dv + 4*d + 4*d + 2*d) / target.bandwidth
    return Cost(max(parts.values()) + ends, (*parts.items(), ("beside", ends)))
