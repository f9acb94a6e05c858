"""gemv (kernels/nvidia/gemv.py): products with a few rows or columns of C. A matrix is read once, as fast as enough
loads are in flight: A where C has fewer columns than rows, else B; the other operand is a few vectors.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, lcm
from typing import TYPE_CHECKING, Any

from tilewright.plans import prologues
from tilewright.plans.common import Cost, Term
from tilewright.plans.gpu_shape import WIDEST, GpuShape, bits_of
from tilewright.plans.nvidia.family import LANES, SPLITS, Family, memory, stored, whole_vectors
from tilewright.plans.nvidia.plan import NvidiaPlan
from tilewright.problem import SCALE_BLOCKS

if TYPE_CHECKING:
    from tilewright.targets.nvidia import GpuTarget

WARPS = 8               # of a CTA, usually
LOADS = 8               # of a lane in flight
COUNTS = 1, 2, 4, 8, 16, 32                     # vectors that it multiplies at most,
MATRIX = 8                                      # from so many on by matrix instructions
BY_CORES = "f32", "f64", "f16", "bf16"          # formats of CUDA cores
FOR_TWO = 128           # registers of a thread by which two CTAs of 8 warps fit
POWERS = [1 << x for x in range(LANES.bit_length())]
LINE = 128              # bytes of a row that a warp copies at once
ROWS, VECTORS, APART = 16, 8, 4                 # of a matrix instruction; sums that separate those of two vectors
# Of gemv: lanes that have different elements of C, threads of a CTA, CTAs of a multiprocessor; elements of C of a row
# and warps of a CTA by matrix instructions.
ACROSS, ACROSS_THREADS, ACROSS_CTAS = (32, 8, 16, 4), (256, 512, 1024), (1, 2, 3, 4)
BY_MATRICES = (16, 8), (16, 16)
WIDE_BY_MATRICES = ((32, 8),)           # besides with a prologue: vectors are read half as often
# The same by copies in flight: (elements, warps, stages), of weights that were measured to gain by them.
BY_COPIES, BY_COPIES_WIDE = ((32, 4, 2),), ((112, 4, 1),)
MOST_VECTORS = 16
PREPARED_VECTOR = 8     # elements of several vectors' sums in a lane, where runs of k have sums of their own

# Of an H200, 2026-11-23 (bench/results/h200_plans.json).
START, START_MATRIX = 2.5e-6, 3.2e-6    # seconds of a launch: the first loads, the last sums
READING = 0.96          # of the memory's bandwidth, where lanes side by side read 128 bytes and more
SCHEDULERS = 4          # of a multiprocessor
SHORTEST = 0.6          # and of that the less they read than a line, down to nothing;
LINES = 0.985           # where these are more, but not whole lines,
UNALIGNED = 0.89        # and where rows are not aligned to the 16 bytes of a load
UNEVEN = 0.06           # of what multiprocessors have more than they would, were shares equal
LATENCY = 0.9e-6        # seconds of a load
L2 = 5.5e12 / 4800e9    # of the memory's bandwidth; half of what comes from there is hidden, beside decoding nothing
# Of a matrix with a prologue: instructions of a thread for an element beside its own (loads, addresses, common
# factors), as ptxas leaves them in the loop; of those that a multiprocessor could issue, an estimate.
AROUND, ROUNDING, ISSUED = 0.6, 0.5, 0.8
LASTING = 1.2e-6        # seconds of a CTA, of the many of a batch, however little it does
ADDING, ADDED = 0.5e-6, 4e-9    # seconds in which parts of k are added up, and of each CTA


# ---- what a plan is

def few_columns(shape: GpuShape) -> bool:
    """C has a few columns, not rows."""
    return shape.n < shape.m


def along_k(shape: GpuShape) -> bool:
    """The matrix has k contiguous."""
    return shape.layout[0] == "n" if few_columns(shape) else shape.layout[1] == "t"


def widest_load(shape: GpuShape) -> int:
    """Elements that may be loaded at once: of the matrix, and where k is contiguous in both operands of the other,
    unless accesses of its elements are the widest."""
    matrix, others = (shape.vector_a, shape.vector_b)[::1 if few_columns(shape) else -1]
    if shape.layout != "nt" or others*shape.bits[few_columns(shape)] == 8*WIDEST:
        return matrix
    return min(matrix, others)


def stored_bits(shape: GpuShape) -> int:
    """Of an element of the matrix in memory."""
    return shape.bits[0 if few_columns(shape) else 1]


def run_of_k(shape: GpuShape, count: int, vector: int) -> int:
    """Steps of k whose sums a thread multiplies by factors that they share."""
    return 4*vector if count >= MATRIX else vector if along_k(shape) else LOADS


def beside(shape: GpuShape, count: int) -> int:
    """Of `count` vectors that have not k contiguous: how many of their elements for a step of k are loaded at once, if
    there are as many; or 0."""
    columns = few_columns(shape)
    vectors, widest = (shape.n, shape.vector_b) if columns else (shape.m, shape.vector_a)
    contiguous = shape.layout[1] == "t" if columns else shape.layout[0] == "n"
    return 0 if contiguous or not 1 < vectors == count < MATRIX or widest == 1 else min(count, widest)


def tile(p: NvidiaPlan, shape: GpuShape) -> tuple[int, int]:
    """Vectors of a CTA, and elements of the product of each."""
    return (p.cta_n, p.cta_m) if few_columns(shape) else (p.cta_m, p.cta_n)


def _registers(p: NvidiaPlan, shape: GpuShape) -> int:
    """Of a thread, about."""
    count, width = tile(p, shape)
    if count < MATRIX:
        return (80 if along_k(shape) else 48) + (16 if not shape.prologues else 32)*count
    rows, columns = max(width // VECTORS, 1), count // VECTORS
    if p.registers:
        return p.registers
    if p.copy == "async":
        return FOR_TWO if count == MATRIX else min(FOR_TWO*256 // p.threads, 255)
    if shape.prologues:
        return FOR_TWO if count == MATRIX else 170
    return 48 + rows*columns*2 + 4*max(LOADS // rows, 1)*(rows + columns)


def _shared(p: NvidiaPlan, shape: GpuShape) -> int:
    """Bytes of shared memory: sums of those that share k."""
    count, width = tile(p, shape)
    if count >= MATRIX:
        ring = p.cta_k * p.stages * width * LINE if p.copy == "async" else 0
        touched = 4*p.threads if p.copy == "async" and shape.prologues else 0
        return max(ring, p.cta_k * count * (width + APART) * shape.itemsize) + touched
    sharers = 1 if along_k(shape) else p.threads*p.vector // width
    return sharers * (count*width*shape.itemsize + (WIDEST if sharers > 1 else 0))


def _violations(p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> Iterator[str]:
    """Why a plan of this algorithm cannot run a shape: sentences, none if it can."""
    count, width = tile(p, shape)
    matrix, whole, of_matrix = count >= MATRIX, 8*WIDEST // stored_bits(shape), "a" if few_columns(shape) else "b"
    unit, across = ROWS if matrix else p.cta_k if along_k(shape) else p.vector, not matrix and not along_k(shape)
    if across and (width % unit or width // unit > LANES or p.threads % (width // unit)):
        yield (f"gemv has CTAs of {unit} times at most {LANES}, a divisor of {p.threads} threads, elements of each row "
               f"or column of C for this problem, not {p.cta_m}x{p.cta_n}.")
    elif not across and (width % unit or (width // unit not in POWERS and p.copy != "async")):
        yield (f"gemv has CTAs of {unit} times a power of two up to {LANES} elements of each row or column of C for "
               f"this problem, not {p.cta_m}x{p.cta_n}.")
    if count not in COUNTS or min(shape.m, shape.n) > count:
        yield (f"gemv computes {', '.join(map(str, COUNTS))} rows or columns of C at most, and C is "
               f"{shape.m}x{shape.n}, the plan's tile {p.cta_m}x{p.cta_n}.")
    if p.cta_k > LANES or not (across or p.cta_k in POWERS or p.copy == "async"):
        yield (f"cta_k, the warps of gemv, must be at most {LANES}{', and a power of two' * (not across)}, not "
               f"{p.cta_k}.")
    if shape.a != shape.b and not matrix:
        yield f"gemv multiplies two operands of one format, not {shape.a} by {shape.b}."
    if stored_bits(shape) < 8 and p.vector % 2:
        yield f"gemv reads whole bytes, of two elements of the matrix, not vector = {p.vector} of them."
    if shape.prologues not in ("", of_matrix):
        yield f"gemv evaluates a prologue of the matrix that is read once, {of_matrix.upper()}, alone."
    if matrix and shape.prologues and shape.sums != "f32":
        yield f"gemv of {count} vectors evaluates prologues that give floats, not what is added up in {shape.sums}."
    if shape.scales in SCALE_BLOCKS:
        yield f"gemv has no scales of {shape.scales}."
    if p.vector > (most := widest_load(shape)):
        yield f"vector = {p.vector} elements of a matrix are loaded at once, and the operands allow {most}."
    if p.vector_b and (p.vector_b > (most := beside(shape, count)) or count % p.vector_b):
        yield (f"vector_b = {p.vector_b} elements of a step of k of {count} vectors are loaded at once, and the "
               f"operands allow {most}.")
    if p.copy == "async" and not matrix:
        yield f"copy=async is for gemv of {MATRIX} vectors and more, by matrix instructions, not of {count}."
    elif p.copy == "async" and max(shape.m, shape.n) < width:
        yield f"copy=async needs as many elements of C as its tile has, not {shape.m}x{shape.n} of {p.cta_m}x{p.cta_n}."
    if matrix and (shape.layout != "nt" or p.vector != whole or "mma.ampere" not in target.instructions):
        yield (f"gemv of {count} vectors needs a chip from sm_80 on, layout nt and vector={whole}, not {target.name}, "
               f"{shape.layout} and {p.vector}.")


# ---- which plans

def _vectors(shape: GpuShape, target: GpuTarget) -> Iterator[NvidiaPlan]:
    """Plans for a few rows or columns of C, by the elements of each that a CTA has, and its warps; the first of each
    kind also with parts of k."""
    vectors, vector, kinds = min(shape.m, shape.n), widest_load(shape), []
    count = 1 << (vectors - 1).bit_length()
    if shape.prologues and not along_k(shape):
        vector = min(vector, PREPARED_VECTOR * (1 + (count == 1)))
    tiles = [*_across(shape, target, vector)]
    if along_k(shape):       # several rows of a warp share what is done with the vector
        tiles = [(own*count*WARPS, WARPS) for own in ((1, 2, 4) if shape.prologues and count == 1 else (1,))]
    if shape.a in BY_CORES and vectors <= (1 if bits_of(shape.a) == 16 else 4):
        kinds.append([(count, *tile) for tile in tiles])
    if shape.a in target.matrix_rates and vectors <= MOST_VECTORS and whole_vectors(shape) and shape.layout == "nt":
        wide = WIDE_BY_MATRICES if shape.prologues else ()
        by_matrices = max(count, MATRIX)
        kinds.append([(by_matrices, *tile) for tile in (*BY_MATRICES, *wide)])
        if shape.prologues and "cp.async" in target.instructions:
            few = BY_COPIES if stored_bits(shape) < 8 else ()
            for width, warps, stages in few if by_matrices == MATRIX else BY_COPIES_WIDE:
                m, n = (width, by_matrices) if few_columns(shape) else (by_matrices, width)
                yield NvidiaPlan("gemv", m, n, warps, stages=stages, vector=vector)
    for kind in kinds:
        for count, width, warps in kind:
            m, n = (width, count) if few_columns(shape) else (count, width)
            plan = NvidiaPlan("gemv", m, n, warps, stages=2, copy="registers", vector=vector,
                              vector_b=beside(shape, count))
            splits = SPLITS if (count, width, warps) == kind[0] else (1,)
            yield from (replace(plan, split_k=split) for split in splits if split == 1 or split*WARPS <= shape.k)


def _across(shape: GpuShape, target: GpuTarget, vector: int) -> Iterator[tuple[int, int]]:
    """(Elements of C of a row, warps) of a CTA of gemv, where the matrix has not k contiguous: with lanes side by side
    that are as many as give each multiprocessor so many CTAs, too."""
    lanes = ceil(max(shape.m, shape.n) / vector) * shape.batch
    even = {2 * ceil(lanes / (2*target.sms*each)) for each in ACROSS_CTAS}
    for side in dict.fromkeys((*ACROSS, *sorted(even))):
        unit = lcm(LANES, side*vector)
        if side <= LANES:
            yield from ((side*vector, most // unit * unit // LANES) for most in ACROSS_THREADS if unit <= most)


# ---- what one costs

def vectors_read(shape: GpuShape, p: NvidiaPlan, tiles: int) -> Term:
    """What CTAs load of the vectors, those that are missing included: each warp, each lane that has other columns, or
    by matrix instructions, of which warps share k, all of them once."""
    few, (count, width) = few_columns(shape), tile(p, shape)
    readers, who = (p.cta_k, "warps") if along_k(shape) else (max(width // p.vector, 1), "lanes")
    by = f", by {readers} {who}" * (count < MATRIX)
    return Term("B" if few else "A", count*shape.k*shape.bits[few] // 8, tiles * (readers if count < MATRIX else 1),
                f"for each of {tiles:,} tiles of C{by}")


def instructions(shape: GpuShape, p: NvidiaPlan) -> float:
    """Of a thread for an element of a matrix with a prologue: decoding, multiply-adds and what is around them."""
    few, (count, width) = few_columns(shape), tile(p, shape)
    run, text = run_of_k(shape, count, p.vector), shape.prologue_of("a" if few else "b")
    own = prologues.instructions(text, run) + AROUND
    if count >= MATRIX:                             # an instruction for eight elements of a lane, and a sum's factor
        own = prologues.paired(text) + AROUND if prologues.paired(text) else own + ROUNDING
        return own + 2/MATRIX * ceil(count / MATRIX)
    rows = max(width // p.cta_k, 1) if along_k(shape) else p.vector
    return own + count*(1 + (shape.bits[few] < 32)/rows)


def _cost(shape: GpuShape, p: NvidiaPlan, target: GpuTarget) -> Cost:
    """Memory, loads in flight and L2 slow each other down where they take equally long."""
    few, (count, width) = few_columns(shape), tile(p, shape)
    (size, vectors), (of_matrix, of_vectors) = ((shape.m, shape.n), shape.bits) if few else (
        (shape.n, shape.m), shape.bits[::-1])
    tiles = ceil(size / width) * shape.batch
    ctas = tiles * p.split_k
    together = min(max(p.resident(shape, target), 1), ceil(ctas / target.sms))
    flying = together * p.threads * LOADS * p.vector * of_matrix // 8
    if p.copy == "async":
        flying = together * p.cta_k * p.stages * width * LINE
    read = shape.batch * size * shape.k * of_matrix // 8
    piece = LANES if along_k(shape) else width // p.vector                   # lanes
    piece = piece * p.vector * of_matrix // 8 if p.copy != "async" else LINE
    rate = READING * (SHORTEST + (1 - SHORTEST) * min(piece / LINE, 1.0))
    rate *= LINES if piece % LINE and piece > LINE else 1.0
    rate *= UNALIGNED if p.vector*of_matrix < 8*WIDEST else 1.0
    uneven = UNEVEN * (ceil(ctas / target.sms)*target.sms / ctas - 1)
    memory = read * (1 + uneven) / (rate * target.bandwidth)
    waiting = read / min(ctas, target.sms) / flying * LATENCY
    through_l2 = (read + tiles*vectors*shape.k * of_vectors // 8) / ((2 - bool(shape.prologues))*L2*target.bandwidth)
    parts = [("loads", waiting), ("from L2", through_l2), ("memory", memory)]
    if shape.prologues:
        issued = shape.batch * size * shape.k * instructions(shape, p) / (LANES*SCHEDULERS*target.sms*target.clock)
        parts.append(("instructions", issued / ISSUED))
    if shape.batch > 1:
        waves = ctas / (target.sms * max(p.resident(shape, target), 1))
        parts.append(("CTAs", waves * LASTING))
    start = START_MATRIX if count >= MATRIX else START
    added = ADDING + ADDED*ctas if p.split_k > 1 else 0.0
    seconds = sum(each**3 for _, each in parts) ** (1/3)
    return Cost(start + added + seconds, tuple(parts), rounds=ctas / (target.sms*together))


class Gemv(Family):
    name = "gemv"
    sizes = ()
    fewest_stages = 1
    prepares = spreads_k = True

    def candidates(self, shape: GpuShape, target: GpuTarget, **declared: Any) -> Iterator[NvidiaPlan]:
        if not (declared or shape.semiring):
            yield from _vectors(shape, target)

    violations = staticmethod(_violations)

    def formats(self, p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> tuple[str, ...]:
        return BY_CORES if min(p.cta_m, p.cta_n) < MATRIX else (*target.matrix_rates,)

    def moved(self, p: NvidiaPlan, shape: GpuShape) -> Iterator[str]:
        return stored(p.vector_c, shape)

    def threads(self, p: NvidiaPlan) -> int:
        return LANES * p.cta_k

    registers = staticmethod(_registers)
    shared = staticmethod(_shared)
    cost = staticmethod(_cost)

    def traffic(self, shape: GpuShape, p: NvidiaPlan, target: GpuTarget) -> dict[str, tuple[Term, ...]]:
        vectors, (terms, _) = vectors_read(shape, p, p.tiles(shape.m, shape.n, shape.batch)), memory(shape, p, target)
        return {"L2": tuple(vectors if t.what == vectors.what else t for t in terms[:2]), "memory": terms}
