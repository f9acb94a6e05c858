"""What a plan by gemv (kernels/nvidia/gemv.py) costs: a matrix is read once, as fast as enough loads are in flight."""
from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from tilewright.plans import gemv_rules, prologues
from tilewright.plans.common import Cost, Term
from tilewright.plans.gemv_rules import LANES, LOADS, MATRIX
from tilewright.plans.gpu_shape import WIDEST, GpuShape, bits_of

if TYPE_CHECKING:
    from tilewright.plans.nvidia_plan import NvidiaPlan
    from tilewright.targets.nvidia import GpuTarget

# Of an H200, 2026-11-23.
# Seconds of a launch, the first loads and the last sums: of f32 and f64; of narrower formats by cores and by matrices,
# which are this and a part of the rest, at most so much (by matrices short ones were measured, by cores it is assumed).
START, START_NARROW, START_MATRIX = 2.5e-6, 1.2e-6, 1.9e-6
RAMP, LONGEST_RAMP = 0.18, 1.3e-6
READING = 0.96          # of the memory's bandwidth, where lanes side by side read 128 bytes and more
SCHEDULERS = 4          # of a multiprocessor
LINE, SHORTEST = 128, 0.6       # and of that the less they read, down to nothing;
ACROSS = 0.985          # where these are more, but not whole lines,
UNALIGNED = 0.89        # and where rows are not aligned to the 16 bytes of a load
UNEVEN = 0.06           # of what multiprocessors have more than they would, were shares equal
LATENCY = 7.83e-7        # seconds of a load
L2 = 5.5e12 / 4800e9    # of the memory's bandwidth; half of what comes from there is hidden, beside decoding nothing
# Of a matrix with a prologue: instructions of a thread for an element beside its own (loads, addresses, common
# factors), as ptxas leaves them in the loop; of those that a multiprocessor could issue, an estimate.
AROUND, ROUNDING, ISSUED = 0.6, 0.5, 0.8
LASTING = 1.2e-6        # seconds of a CTA, of the many of a batch, however little it does
ADDING, ADDED = 0.5e-6, 4e-9    # seconds in which parts of k are added up, and of each CTA


def vectors_read(shape: GpuShape, p: NvidiaPlan, tiles: int) -> Term:
    """What CTAs load of the vectors, those that are missing included: each warp, each lane that has other columns, or
    by matrix instructions, of which warps share k, all of them once."""
    few, (count, width) = gemv_rules.few_columns(shape), gemv_rules.tile(p, shape)
    readers, who = (p.cta_k, "warps") if gemv_rules.along_k(shape) else (max(width // p.vector, 1), "lanes")
    by = f", by {readers} {who}" * (count < MATRIX)
    return Term("B" if few else "A", count*shape.k*shape.bits[few] // 8, tiles * (readers if count < MATRIX else 1),
                f"for each of {tiles:,} tiles of C{by}")


def instructions(shape: GpuShape, p: NvidiaPlan) -> float:
    """Instructions of a thread for an element of a matrix with a prologue: decoding, multiply-adds and the rest."""
    few, (count, width) = gemv_rules.few_columns(shape), gemv_rules.tile(p, shape)
    run, text = gemv_rules.run(shape, count, p.vector), shape.prologue_of("a" if few else "b")
    own = prologues.instructions(text, run) + AROUND
    if count >= MATRIX:                             # an instruction for eight elements of a lane, and a sum's factor
        own = prologues.paired(text) + AROUND if prologues.paired(text) else own + ROUNDING
        return own + 2/MATRIX * ceil(count / MATRIX)
    rows = max(width // p.cta_k, 1) if gemv_rules.along_k(shape) else p.vector
    return own + count*(1 + (shape.bits[few] < 32)/rows)


def cost(shape: GpuShape, p: NvidiaPlan, target: GpuTarget) -> Cost:
    """Memory, loads in flight and L2 slow each other down where they take equally long."""
    few, (count, width) = gemv_rules.few_columns(shape), gemv_rules.tile(p, shape)
    (size, vectors), (of_matrix, of_vectors) = ((shape.m, shape.n), shape.bits) if few else (
        (shape.n, shape.m), shape.bits[::-1])
    tiles = ceil(size / width) * shape.batch
    ctas = tiles * p.split_k
    together = min(max(p.resident(shape, target), 1), ceil(ctas / target.sms))
    flying = together * p.threads * LOADS * p.vector * of_matrix // 8
    if p.copy == "async":
        flying = together * p.cta_k * p.stages * width * LINE
    read = shape.batch * size * shape.k * of_matrix // 8
    piece = LANES if gemv_rules.along_k(shape) else width // p.vector                   # lanes
    piece = piece * p.vector * of_matrix // 8 if p.copy != "async" else LINE
    rate = READING * (SHORTEST + (1 - SHORTEST) * min(piece / LINE, 1.0))
    rate *= ACROSS if piece % LINE and piece > LINE else 1.0
    rate *= UNALIGNED if p.vector*of_matrix < 8*WIDEST else 1.0
    uneven = UNEVEN * (ceil(ctas / target.sms)*target.sms / ctas - 1)
    memory = read * (1 + uneven) / (rate * target.bandwidth)
    waiting = read / min(ctas, target.sms) / flying * LATENCY
    through_l2 = (read + tiles*vectors*shape.k * of_vectors // 8) / ((2 - bool(shape.prologues))*L2*target.bandwidth)
    parts = [("loads", waiting), ("from L2", through_l2), ("memory", memory)]
    if ("a" if few else "b") in shape.prologues:
        issued = shape.batch * size * shape.k * instructions(shape, p) / (LANES*SCHEDULERS*target.sms*target.clock)
        parts.append(("instructions", issued / ISSUED))
    if shape.batch > 1:
        waves = ctas / (target.sms * max(p.resident(shape, target), 1))
        parts.append(("CTAs", waves * LASTING))
    start = START if bits_of(shape.a) >= 32 else START_NARROW if count < MATRIX else START_MATRIX
    added = ADDING + ADDED*ctas if p.split_k > 1 else 0.0
    seconds = sum(seconds_of_part**3 for _, seconds_of_part in parts) ** (1/3)
    start += min(RAMP*seconds, LONGEST_RAMP) if bits_of(shape.a) < 32 else 0.0
    return Cost(start + added + seconds, tuple(parts), rounds=ctas / (target.sms*together))
