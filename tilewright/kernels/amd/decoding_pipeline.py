"""The main loop for operands that are decoded on their way to LDS: `pipeline.through_registers` with decoding beside
each group of products.

Roles       All waves do everything: each loads, decodes and stores its share of every tile, and multiplies its part of
            C.

Pipelines   LDS, stage t % 2        tile t, decoded. Free again at the barrier before the last group of tile t, when
                                    every wave has that group's operands in registers; tile t + 2 takes its place.
            packed registers        tile t + 2, then t + 3: each `Portion` is loaded again as soon as it is decoded.
            decoded registers       portions of tile t + 2 that were decoded before the barrier and wait for it.
            operands                of one group, in registers, read one group ahead.

Timeline    one tile t; L = the last stretch of products, a group or half of the only one

            decode      portions of t+2 beside each stretch ...          | the other portions of t+2
            load        those portions of t+3 ...                        | the others of t+3
            barrier                                            | free(t) |
            stores                                                       | t+2: those that waited, then the others
            reads       stretch 1    stretch 2    ...    stretch L       | t+1: stretch 0
            products    stretch 0    stretch 1    ...    stretch L-1     | stretch L

Stores have until the next barrier, so no wave waits for them. Decoding is vector instructions, which waves issue while
the Matrix Core is busy with an instruction of its own. LLVM is told how many belong beside each (`_mix`): by itself it
decodes first and multiplies then.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from tilewright.ir import Kernel, Value, i32
from tilewright.kernels.amd import pipeline
from tilewright.kernels.amd.decoding import Decoded
from tilewright.kernels.amd.pipeline import Operands
from tilewright.kernels.amd.products import WaveProducts

FIRST = 3                   # matrix instructions of a group, beside which LDS is read for the next group, and for
ADDRESSES = 3               # which there are no more vector instructions than these


@dataclass(frozen=True)
class Portion:
    """What each thread decodes at once: part `part` of an operand whose tiles begin so far into a stage."""
    operand: Decoded
    start: int
    part: int

    def decode(self) -> Operands:
        return self.operand.decode(self.part)

    def store(self, stage: Value, numbers: Operands) -> None:
        self.operand.store(stage + self.start, self.part, numbers)

    def load(self, more: Value) -> None:
        self.operand.load(self.part, more)


class Stretch(NamedTuple):
    """Products without a fence between them: parts of a group."""
    group: int
    parts: range


def through_decoding(k: Kernel, operands: Sequence[Decoded], smem: Value, tiles: Value, short: Value,
                     products: WaveProducts, ROOM: int) -> None:
    """Two tiles in LDS and one, packed, in registers. `short`: steps of k in the first of `tiles`, which are at least
    one. ROOM: vector instructions that fit beside a matrix instruction, as far as there are registers for it.

    Operands that only some of the threads decode go `through_registers`.
    """
    if any(x.ACTIVE < x.THREADS for x in operands):
        pipeline.through_registers(k, operands, smem, tiles, short, products)
        return
    portions, stretches = _portions(operands), _stretches(products)
    STAGE, COUNT, LAST = sum(x.SIZE for x in operands), len(stretches), len(stretches) - 1
    beside = [portions[s*len(portions) // COUNT:(s + 1)*len(portions) // COUNT] for s in range(COUNT)]
    _begin(k, operands, portions, smem, STAGE, tiles, short)
    stage = k.variable(i32, 0)
    ahead = [k.variable(x.type, x) for x in products.read(smem, 0)]
    with k.loop(tiles - 1) as tile:
        now, more = stage.get(), tile + 4 < tiles
        group = [x.get() for x in ahead]
        held: list[tuple[Portion, Operands]] = []
        for s in range(LAST):
            reads = products.GROUPS > 1
            coming = products.read(smem + now, s + 1) if reads else group
            _multiply(products, group, stretches[s])
            for portion in beside[s]:
                held.append((portion, portion.decode()))
                portion.load(more)
            _mix(k, products, stretches[s], beside[s], reads, ROOM)
            k.sched_fence()
            group = coming
        k.barrier()
        k.sched_fence()
        for portion, numbers in held:
            portion.store(smem + now, numbers)
        coming = products.read(smem + (STAGE - now), 0)
        _multiply(products, group, stretches[LAST])
        for portion in beside[LAST]:
            portion.store(smem + now, portion.decode())
            portion.load(more)
        _mix(k, products, stretches[LAST], beside[LAST], True, ROOM)
        k.sched_fence()
        for register, value in zip(ahead, coming, strict=True):
            register.set(value)
        stage.set(STAGE - now)
    group = [x.get() for x in ahead]
    for g in range(products.GROUPS):
        coming = products.read(smem + stage.get(), g + 1) if g + 1 < products.GROUPS else []
        _multiply(products, group, Stretch(g, range(products.PARTS)))
        group = coming


def _stretches(products: WaveProducts) -> list[Stretch]:
    """Groups; of a single one, halves. The barrier is before the last."""
    parts = range(products.PARTS)
    if products.GROUPS > 1:
        return [Stretch(group, parts) for group in range(products.GROUPS)]
    middle = products.PARTS // 2
    return [Stretch(0, parts[:middle]), Stretch(0, parts[middle:])]


def _portions(operands: Sequence[Decoded]) -> list[Portion]:
    starts = accumulate((x.SIZE for x in operands[:-1]), initial=0)
    return [Portion(x, start, part) for x, start in zip(operands, starts, strict=True) for part in range(x.PARTS)]


def _begin(k: Kernel, operands: Sequence[Decoded], portions: Sequence[Portion], smem: Value, STAGE: int, tiles: Value,
           short: Value) -> None:
    """Two tiles decoded, and the third fetched."""
    for x in operands:
        x.load_first_tile(short)
    for portion in portions:
        portion.store(smem, portion.decode())
    with k.when(tiles > 1):
        for portion in portions:
            portion.load(tiles > 2)
        for portion in portions:
            portion.store(smem + STAGE, portion.decode())
        for portion in portions:
            portion.load(tiles > 3)
            k.sched_fence()             # in the order of the loop: what waits there counts those that came later
    k.barrier()


def _multiply(products: WaveProducts, operands: Operands, stretch: Stretch) -> None:
    for part in stretch.parts:
        products.multiply(operands, stretch.group, part)


def _mix(k: Kernel, products: WaveProducts, stretch: Stretch, portions: Sequence[Portion], READS: bool,
         ROOM: int) -> None:
    """Reads of LDS beside the first matrix instructions, one each, then vector instructions; if they fit."""
    count = products.TILES_M*products.TILES_N*len(stretch.parts)
    reads = (products.TILES_M + products.TILES_N)*READS
    instructions = sum(portion.operand.INSTRUCTIONS for portion in portions)
    if count <= FIRST or (beside := -(-instructions // (count - FIRST))) > ROOM:
        return
    for e in range(count):
        k.sched_group("mfma", 1)
        if here := ADDRESSES if e < FIRST else beside:
            k.sched_group("valu", here)
        if e < reads:
            k.sched_group("lds read", 1)
