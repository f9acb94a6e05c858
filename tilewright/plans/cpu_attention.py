"""Plans for attention on CPUs, and the choice among them (attention_choice.py): which kernel with which tiles, what a
kernel depends on, how its threads' memory is laid out."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from tilewright.attention_problem import Attention, score_of
from tilewright.plans.attention_choice import tile_pairs, traffic
from tilewright.plans.common import Cost, Plan
from tilewright.plans.model import Ceilings, of_threads
from tilewright.targets.cpu import CpuTarget

if TYPE_CHECKING:
    from tilewright.plans.attention_choice import AttentionCase

MOST_STRIPS = 4             # of a task: a block that is staged once serves all of them
BLOCK = 14 << 10            # bytes of a block of scores, which with a strip's queries or a block of values stays in L1
TILE_KEYS, TILED = 32, 128  # keys of a group of AMX's tiles, and of a block of groups
BF16 = ("bf16", "e4m3fn", "i8")         # formats all numbers of which are bf16's


FEW = {32: 8, 16: 4}        # queries of a kv head that go row by row, by vector registers
PART, LEAST_PART = 1024, 256    # keys that a task of few rows takes; its results are combined in their order
TASKS = 32                  # that there are to be
MOST_FEW, TURN = 80, 2      # queries of a kv head whose lanes are keys; rows in whose time keys are turned
FEW_HEADS, LONG = 4, 8192   # heads that are no work for all threads, and their keys


@dataclass(frozen=True)
class CpuAttention(Plan):
    """How attention is tiled on a CPU.

        attention_strips 32x112 strips=4        kernels/cpu/attention.py: a strip's queries are lanes of vectors
        attention_rows 4x64 part=1024           kernels/cpu/attention_rows.py: few queries, row by row
        attention_few 21x128 part=1024          kernels/cpu/attention_rows.py: some queries, whose lanes are keys

    queries     of a tile of scores: lanes of a strip; all queries of a kv head
    keys        of a tile of scores
    strips      of a task, which a block of keys and values that was copied once serves
    part        keys of a task; 0: all
    """
    FAMILY = "attention on a CPU"
    EXAMPLE = "attention_strips 32x112 strips=4"
    SIZES = ("queries", "keys")
    ALWAYS: ClassVar[tuple[str, ...]] = ("strips", "part")

    algorithm: Literal["attention_strips", "attention_rows", "attention_few"]
    queries: int
    keys: int
    strips: int = 0
    part: int = 0

    def _words(self) -> Iterator[str]:
        return (word for word in super()._words() if not word.endswith("=0"))

    def violations(self, case: AttentionCase, target: CpuTarget) -> list[str]:
        """Why this plan cannot run the case on the target: sentences, none if it can."""
        p, few = case.problem, self.algorithm != "attention_strips"
        reasons = [*self.below_one("queries", "keys", "part" if few else "strips")]
        reasons += [f"{name} is {x}, and {self.algorithm} has none." for name, x in
                  (("strips", self.strips), ("part", self.part)) if x and (name == "strips") == few]
        lanes = target.lanes(8 if p.sums == "f64" else 4)
        if reasons:
            return reasons
        if few:
            if refused := _not_few(p, target, self.algorithm):
                return [refused]
            return [f"{name} is {x}, and must be {want}." for name, x, want in (
                ("queries", self.queries, p.group * p.queries),
                ("keys", self.keys, (4 if self.algorithm == "attention_rows" else 8)*lanes)) if x != want]
        kind = word(p, target)
        height = TILE_KEYS if kind == "tiles" else tile_rows(target, max(self.queries // lanes, 1), kind)
        if self.queries not in (lanes, 2*lanes):
            reasons.append(f"queries is {self.queries}, and must be {lanes} or {2*lanes}, lanes of one or two vectors.")
        elif self.keys % height:
            reasons.append(f"keys is {self.keys}, and must be a multiple of {height}, the keys of a tile.")
        return reasons + self.above(strips=MOST_STRIPS_EVER, keys=MOST_KEYS)


PLAN = CpuAttention
MOST_STRIPS_EVER, MOST_KEYS = 16, 1 << 12
SAVED = 0.95                # of the time with strips of two vectors, below which strips have one


class RowsSpec(NamedTuple):
    """What a kernel of kernels/cpu/attention_rows.py depends on, or, for any number of rows, ROWS 0, its emit_few.
    DIRECT: keys and values are read where they are."""
    Q: str
    KV: str
    OUT: str
    WORD: str
    SIZE: int
    VALUE_SIZE: int
    ROWS: int
    KEYS: int
    PART: int
    MASKED: bool
    SINKS: bool
    FACTORS: bool
    DIRECT: bool
    SCORE: str


class Spec(NamedTuple):
    """What a kernel depends on. WORD: f32, f64, bf16x2 for pairs of bf16, tiles for those by AMX; KEYS of a block, NV
    vectors of a strip."""
    Q: str
    KV: str
    OUT: str
    WORD: str
    SIZE: int
    VALUE_SIZE: int
    KEYS: int
    MASKED: bool
    SINKS: bool
    FACTORS: bool
    SCORE: str
    NV: int = 2


def word(problem: Attention, target: CpuTarget) -> str:
    """In what the products are computed."""
    if problem.q == "f64":
        return "f64"
    if problem.q not in BF16 or problem.kv not in BF16:
        return "f32"
    return "tiles" if target.has("amx-bf16") else "bf16x2" if target.has("avx512bf16") else "f32"


def _not_few(p: Attention, target: CpuTarget, algorithm: str = "attention_rows") -> str:
    """Why this kernel for few queries does not compute it; "" if it does."""
    rows, most = p.group * p.queries, FEW.get(target.registers, 4) if algorithm == "attention_rows" else MOST_FEW
    if p.ragged or (p.function is not None and p.function.reads):
        return f"{algorithm} takes no offsets and no arrays of scores."
    if algorithm == "attention_few" and word(p, target) != p.sums:
        return f"{algorithm} multiplies in f32 and f64, and this is multiplied in {word(p, target)}."
    return "" if 0 < rows <= most else f"a kv head has {rows} queries, and {algorithm} takes 1 to {most}."


def _by_keys(case: AttentionCase, target: CpuTarget, lanes: int) -> bool:
    """Whether lanes are keys: to turn keys takes as long as TURN rows, and empty lanes of a strip as long as full ones;
    and the keys of a long cache of few heads are divided among threads."""
    p, rows = case.problem, case.problem.group * case.problem.queries
    vectors = -(-rows // lanes)
    vectors += vectors % 2 if vectors > 4 else 0
    alone = p.sequences * p.kv_heads < FEW_HEADS and p.keys >= LONG
    return not _not_few(p, target, "attention_few") and (rows + TURN <= vectors*lanes or alone)


def _part(p: Attention) -> int:
    """Keys of a task: fewer where that many would leave threads idle, whatever their number is."""
    part = PART
    while part > LEAST_PART and p.sequences * p.kv_heads * -(-p.keys // part) < TASKS:
        part //= 2
    return part


def rows_spec(case: AttentionCase, plan: CpuAttention) -> RowsSpec:
    """The kernel of a plan for few queries."""
    p = case.problem
    direct, rows = p.kv == p.sums and not p.page and case.contiguous, plan.queries
    if plan.algorithm == "attention_few":
        direct, rows = direct and p.value_size % (plan.keys // 8) == 0, 0
    return RowsSpec(p.q, p.kv, p.out, p.sums, p.size, p.value_size, rows, plan.keys, plan.part, bool(p.band), p.sinks,
                    p.factors, direct, p.score)


def rows_memory(spec: RowsSpec, rows: Any, V: int) -> dict[str, Any]:
    """Numbers of a thread's memory for so many rows, a number or a kernel's value, by what they are, in their order."""
    W, WV = (-(-x // V) * V for x in (spec.SIZE, spec.VALUE_SIZE))
    sizes = {"keys": spec.KEYS*W, "values": spec.KEYS*WV, "q": rows*W, "scores": rows*spec.KEYS}
    return sizes if spec.ROWS else {"lines": 2*V*W, **sizes, "row": rows*4, "scale": rows}


def tile_rows(target: CpuTarget, NV: int, word: str) -> int:
    """Rows of a tile of NV vectors: beside it there are a row of B and an element of A in registers. Sums of AMX's
    tiles are only read."""
    return 8 if word == "tiles" else (target.tile_registers - NV - 1) // NV // 2 * 2


def spec(p: Attention, target: CpuTarget, plan: CpuAttention) -> Spec:
    """The kernel of a plan for strips."""
    kind = word(p, target)
    return Spec(p.q, p.kv, p.out, kind, p.size, p.value_size, plan.keys, bool(p.band), p.sinks, p.factors, p.score,
                plan.queries // target.lanes(8 if kind == "f64" else 4))


# ---- the choice

def refusal(case: AttentionCase, target: CpuTarget) -> str:
    """CPUs compute all attention."""
    return ""


def choose(case: AttentionCase, target: CpuTarget) -> CpuAttention:
    """Few queries go row by row, some by lanes that are keys. Others have strips of two vectors, or of one where that
    is predicted to save time, and for no number of threads another: the order of sums depends on it. A block of scores
    is as large as L1 allows; tasks have fewer strips where threads would have none."""
    p, rows = case.problem, case.problem.group * case.problem.queries
    lanes, kind = target.lanes(8 if p.sums == "f64" else 4), word(p, target)
    if not _not_few(p, target):
        return CpuAttention("attention_rows", rows, 4*lanes, part=_part(p))
    if _by_keys(case, target, lanes):
        return CpuAttention("attention_few", rows, 8*lanes, part=_part(p))

    def strip(vectors: int) -> CpuAttention:
        height = tile_rows(target, vectors, kind)
        keys = TILED if kind == "tiles" else max(BLOCK // (2*target.vector_bytes) // height, 1) * height
        return CpuAttention("attention_strips", vectors*lanes, keys, strips(p, vectors*lanes, 1))
    one, two, alone = strip(1), strip(2), replace(case, threads=1)
    less = not p.ragged and cost(alone, one, target).seconds < SAVED * cost(alone, two, target).seconds
    plan = one if less else two
    return replace(plan, strips=strips(p, plan.queries, case.threads))


def candidates(case: AttentionCase, target: CpuTarget) -> Iterator[CpuAttention]:
    """The usual plan; parts of other lengths; strips of one or two vectors, smaller and larger blocks, other tasks."""
    usual = choose(case, target)
    yield usual
    lanes = target.lanes(8 if case.problem.sums == "f64" else 4)
    if usual.algorithm != "attention_strips":
        yield from (replace(usual, part=part) for part in (PART // 4, PART // 2, 2*PART, 4*PART) if part != usual.part)
        usual = CpuAttention("attention_strips", lanes, 0, 1)
    kind = word(case.problem, target)
    for vectors in (1, 2):
        height = TILE_KEYS if kind == "tiles" else tile_rows(target, vectors, kind)
        fit = BLOCK // (2*target.vector_bytes)
        for keys in dict.fromkeys(max(int(fit * share) // height, 1) * height for share in (0.5, 1, 1.5, 2)):
            for count in dict.fromkeys((usual.strips, 1, 2, MOST_STRIPS, 2*MOST_STRIPS)):
                yield CpuAttention("attention_strips", vectors*lanes, keys, count)


# By docs/attention.md: a Zen 4 takes 20 clocks for 16 exponentials and what is done with scores, and multiplies by
# tiles at 0.92 of its rate. Vectors' worth of time: to copy or convert a vector of keys or values, to add up the lanes
# of a row's score, of an operation of a score function. Seconds of a call, and to wake a thread.
EXP, TILES, COPY, SUM, OPERATION, CALL, WAKING = 20, 0.92, 2, 3, 1.5, 8e-6, 2e-6
STEPS = {"bf16x2": 2, "tiles": 16}      # multiply-adds of a lane in the time of one of f32, by the unit of products
ALONE = 1.6                 # pairs of bf16 by strips of one vector: a broadcast of a pair for each product


def cost(case: AttentionCase, plan: CpuAttention, target: CpuTarget, ceilings: Ceilings | None = None) -> Cost:
    """The time of the thread with the most tasks, by multiply-adds, exponentials and copies, or that of memory."""
    p, of = case.problem, ceilings or of_threads(case.threads)
    few, kind = plan.algorithm != "attention_strips", word(p, target)
    lanes = target.lanes(8 if p.sums == "f64" else 4)
    heads = p.kv_heads * (1 if p.ragged else p.sequences)
    seen = p.pairs / max(p.heads * p.queries * p.keys * (1 if p.ragged else p.sequences), 1)
    vectors = 1 if few else plan.queries // lanes
    words = sum(-(-x // lanes) for x in (p.size, p.value_size))         # vectors of a key and its value
    if few:
        tasks, keys = heads * -(-p.keys // plan.part), p.keys * heads * seen
        turned = plan.algorithm == "attention_few"
        seconds = {"multiply-adds": keys * (plan.queries + TURN*turned) * words,
                "exponentials": keys * plan.queries * (EXP/lanes + (0 if turned else SUM)),
                "copies": 0.0 if case.contiguous and p.kv == p.sums and not p.page else keys * words * COPY}
    else:
        rows = p.group * p.queries
        tasks = heads * -(-rows // (plan.queries * plan.strips))
        height = tile_rows(target, vectors, kind)
        pairs = tile_pairs(p, min(plan.queries, max(p.queries, 1)), height)[0] * p.group * heads
        strips = pairs / min(plan.queries, max(p.queries, 1)) * min(1.0, p.queries * p.group / plan.queries)
        strips = max(strips, heads * -(-rows // plan.queries) * p.keys * seen)      # a strip and a key
        seconds = {"multiply-adds": strips * vectors * (p.size + p.value_size) / STEPS.get(kind, 1) / TILES
                * (ALONE if vectors == 1 and kind == "bf16x2" else 1.0),
                "exponentials": strips * vectors * EXP,
                "copies": tasks * p.keys * seen * words * COPY * (1 if p.kv == p.sums else 2)
                          + heads * rows / plan.queries * (p.size + p.value_size) * vectors * 4}
        if (excess := plan.keys * plan.queries * (8 if p.sums == "f64" else 4) / (target.l1d / 2)) > 1:
            seconds["scores beyond L1"] = seconds["multiply-adds"] * 0.1 * (excess - 1)
    if p.function is not None:
        seconds["score function"] = seconds["exponentials"] / EXP * OPERATION * len(p.function.expression.lines)
    share = -(-tasks // case.threads) / max(tasks, 1)       # of the work, by the thread with the most tasks
    parts = {what: count * share / of.vectors for what, count in seconds.items() if count}
    working, memory = sum(parts.values()), sum(p.bytes.values()) / of.memory / min(case.threads, 4)
    parts |= {"waiting for memory": max(memory - working, 0.0),
              "call": CALL + WAKING * (min(case.threads, tasks) - 1)}
    return Cost(sum(parts.values()), tuple(parts.items()), traffic(case, max(tasks // max(heads, 1), 1)),
                vectors=round(seconds["multiply-adds"]))


State = dict[str, tuple[int, str]]


@dataclass(frozen=True)
class Layout:
    """Bytes of a thread's memory: first the state of each strip, then what all strips share.

    state   offset and type of each part of a strip's state
    shared  offsets behind the states
    pitch   elements from one row of an operand to the next, as it is staged
    """
    state: State
    state_bytes: int
    shared: dict[str, int]
    shared_bytes: int
    pitch: int

    @classmethod
    def of_sizes(cls, state: State, shared: dict[str, int], pitch: int) -> Layout:
        """With sizes in place of offsets."""
        places, offsets = State(), dict[str, int]()
        end = last = 0
        for name, (size, kind) in state.items():
            places[name] = end, kind
            end += -(-size // 64) * 64
        for name, size in shared.items():
            offsets[name] = last
            last += -(-size // 64) * 64
        return cls(places, end, offsets, last, pitch)

    @classmethod
    def on_target(cls, spec: Spec, target: CpuTarget) -> Layout:
        number = 8 if spec.WORD == "f64" else 4
        tiles = spec.WORD == "tiles"
        parts = 2 if tiles or spec.WORD == "bf16x2" else 1
        V = target.vector_bytes // number
        lanes = spec.NV * V
        reads = len(score_of(spec.SCORE).reads) if spec.SCORE else 0
        words, columns = -(-spec.SIZE // (V*parts)) * V, -(-spec.VALUE_SIZE // V) * V
        pitch = -(-spec.KEYS // 16) * 16 + 16
        values = -(-spec.VALUE_SIZE // (V*parts)) * V * parts
        state = {"q": (words*lanes*number, "words"), "o": (columns*lanes*number, "numbers"),
                 **dict.fromkeys(("maximum", "sums", "scale"), (lanes*number, "numbers")),
                 **dict.fromkeys(("i", "head", "low", "high"), (lanes*4, "i32")),
                 **dict.fromkeys(("out", "lse"), (lanes*8, "i64")), "reads": (reads*lanes*8, "i64"),
                 "ends": (64, "i64")}
        shared = {"keys": (spec.KEYS + 1)*(words + V)*number,
                  "values": (spec.KEYS//2 * columns if tiles else
                             (-(-spec.KEYS // parts) + 1)*(values + V*parts)) * number,
                  "scores": spec.KEYS*lanes*number, "factors": lanes*number, "rows": lanes*words*number,
                  "turned": TILE_KEYS//2*(values + V*parts)*number if tiles else 0,
                  "lines": max(2*(values + V*parts)*number, lanes*pitch*number if reads else 0),
                  **{f"read{x}": pitch*lanes*number for x in range(reads)}}
        return cls.of_sizes(state, shared, pitch)


def gradient_layout(spec: Spec, target: CpuTarget) -> Layout:
    """A thread's memory in kernels/cpu/attention_gradients.py, whose words are f32 or f64."""
    number = 8 if spec.WORD == "f64" else 4
    V = target.vector_bytes // number
    lanes, reads = 2 * V, len(score_of(spec.SCORE).reads) if spec.SCORE else 0
    size, value_size = (-(-x // V) * V for x in (spec.SIZE, spec.VALUE_SIZE))
    pitch = -(-spec.KEYS // 16) * 16 + 16
    panels = {f"{name}_{which}": (x*lanes*number, "numbers") for name in ("panel", "sums")
              for which, x in enumerate((size, value_size))}
    state: State = {**panels, **dict.fromkeys(("lse", "delta"), (lanes*number, "numbers")),
                    **dict.fromkeys(("i", "head", "low", "high"), (lanes*4, "i32")),
                    **dict.fromkeys(("out_0", "out_1"), (lanes*8, "i64")), "reads": (reads*lanes*8, "i64"),
                    "ends": (64, "i64")}
    shared = {**{f"{name}_{which}": rows*(x + V)*number for name, rows in (("rows", spec.KEYS), ("lanes", lanes))
                 for which, x in enumerate((size, value_size))},
              **dict.fromkeys(("powers", "slopes"), spec.KEYS*lanes*number),
              **dict.fromkeys(("lse", "delta"), spec.KEYS*number), **dict.fromkeys(("low", "high"), spec.KEYS*4),
              "lines": lanes*pitch*number if reads else 0, **{f"read{x}": pitch*lanes*number for x in range(reads)}}
    return Layout.of_sizes(state, shared, pitch)


def gradient_spec(problem: Attention, target: CpuTarget) -> Spec:
    """Two blocks of scores beside each other; everything in f32 or f64."""
    kind, rows = "f64" if problem.q == "f64" else "f32", tile_rows(target, 2, "f32")
    keys = max(BLOCK // (4*target.vector_bytes) // rows, 1) * rows
    return Spec(problem.q, problem.kv, problem.q, kind, problem.size, problem.value_size, keys, True, False, False,
                problem.score)


def strips(problem: Attention, lanes: int, threads: int) -> int:
    """Strips of a task: fewer where threads would have none."""
    rows, count = problem.group * problem.queries, MOST_STRIPS
    while count > 1 and -(-rows // (lanes*count)) * problem.sequences * problem.kv_heads < 3*threads:
        count //= 2
    return min(count, -(-rows // lanes)) or 1
