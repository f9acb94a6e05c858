"""Plans for attention on CPUs: what a kernel depends on, how its threads' memory is laid out, and sizes of tasks."""
from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tilewright.attention_problem import Attention, score_of
from tilewright.targets.cpu import CpuTarget

MOST_STRIPS = 4             # of a task: a block that is staged once serves all of them
BLOCK = 14 << 10            # bytes of a block of scores, which with a strip's queries or a block of values stays in L1
TILE_KEYS, TILED = 32, 128  # keys of a group of AMX's tiles, and of a block of groups
BF16 = ("bf16", "e4m3fn", "i8")         # formats all numbers of which are bf16's


FEW = {32: 8, 16: 4}        # queries of a kv head that go row by row, by vector registers
PART = 1024                 # keys that a task of such rows takes; its results are combined in their order


class RowsSpec(NamedTuple):
    """What a kernel of kernels/cpu/attention_rows.py depends on. DIRECT: keys and values are read where they are."""
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


def rows_spec(problem: Attention, target: CpuTarget, contiguous: bool) -> RowsSpec | None:
    """The kernel for few queries; None where strips of queries are multiplied. contiguous: the numbers of each key and
    of each value lie side by side."""
    p, rows = problem, problem.group * problem.queries
    if p.ragged or rows > FEW.get(target.registers, 4) or not rows or (p.function is not None and p.function.reads):
        return None
    kind = "f64" if p.q == "f64" else "f32"
    direct = p.kv == kind and not p.page and contiguous
    return RowsSpec(p.q, p.kv, p.out, kind, p.size, p.value_size, rows, 4*target.lanes(8 if kind == "f64" else 4), PART,
                    p.before is not None or p.after is not None, p.sinks, p.factors, direct, p.score)


def tile_rows(target: CpuTarget, NV: int, word: str) -> int:
    """Rows of a tile of NV vectors: beside it there are a row of B and an element of A in registers. Sums of AMX's
    tiles are only read."""
    return 8 if word == "tiles" else (target.tile_registers - NV - 1) // NV // 2 * 2


def spec(problem: Attention, target: CpuTarget) -> Spec:
    """Few queries that half a strip holds, or an odd number of halves, have strips of one vector."""
    kind, rows = word(problem, target), problem.group * problem.queries
    halves = -(-rows // target.lanes(8 if kind == "f64" else 4))
    NV = 1 if halves % 2 and halves < 6 and not problem.ragged else 2
    height = tile_rows(target, NV, kind)
    keys = max(BLOCK // (2*target.vector_bytes) // height, 1) * height
    keys = TILED if kind == "tiles" else keys
    masked = problem.before is not None or problem.after is not None
    return Spec(problem.q, problem.kv, problem.out, kind, problem.size, problem.value_size, keys, masked, problem.sinks,
                problem.factors, problem.score, NV)


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
