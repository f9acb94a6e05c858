"""What a plan by gemv (kernels/nvidia/gemv.py) may be: its own limits, beside those that all plans for NVIDIA's GPUs
have (nvidia_rules.py), and what it takes of a multiprocessor.

The matrix that is read once is A where C has fewer columns than rows, else B; the other operand is a few vectors.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tilewright.plans.gpu_shape import WIDEST, GpuShape
from tilewright.problem import SCALE_BLOCKS
from tilewright.targets.nvidia import GpuTarget

if TYPE_CHECKING:
    from tilewright.plans.nvidia_plan import NvidiaPlan

LANES, WARPS = 32, 8    # of a warp; of a CTA, usually
LOADS = 8               # of a lane in flight
COUNTS = 1, 2, 4, 8, 16, 32                     # vectors that it multiplies at most,
MATRIX = 8                                      # from so many on by matrix instructions
BY_CORES = "f32", "f64", "f16", "bf16"          # formats of CUDA cores
FOR_TWO = 128           # registers of a thread by which two CTAs of 8 warps fit
POWERS = [1 << x for x in range(LANES.bit_length())]
LINE = 128              # bytes of a row that a warp copies at once
ROWS, VECTORS, APART = 16, 8, 4                 # of a matrix instruction; sums that separate those of two vectors


def few_columns(shape: GpuShape) -> bool:
    """C has a few columns, not rows."""
    return shape.n < shape.m


def along_k(shape: GpuShape) -> bool:
    """The matrix has k contiguous."""
    return shape.layout[0] == "n" if few_columns(shape) else shape.layout[1] == "t"


def vector(shape: GpuShape) -> int:
    """Elements that may be loaded at once: of the matrix, and where k is contiguous in both operands of the other,
    unless accesses of its elements are the widest."""
    matrix, others = (shape.vector_a, shape.vector_b)[::1 if few_columns(shape) else -1]
    if shape.layout != "nt" or others*shape.bits[few_columns(shape)] == 8*WIDEST:
        return matrix
    return min(matrix, others)


def stored_bits(shape: GpuShape) -> int:
    """Bits of an element of the matrix in memory."""
    return shape.bits[0 if few_columns(shape) else 1]


def run(shape: GpuShape, count: int, vector: int) -> int:
    """Steps of k whose sums a thread multiplies by factors that they share."""
    return 4*vector if count >= MATRIX else vector if along_k(shape) else LOADS


def beside(shape: GpuShape, count: int) -> int:
    """How many elements for a step of k are loaded at once of `count` vectors whose k is not contiguous, if there are
    as many; or 0."""
    columns = few_columns(shape)
    vectors, widest = (shape.n, shape.vector_b) if columns else (shape.m, shape.vector_a)
    contiguous = shape.layout[1] == "t" if columns else shape.layout[0] == "n"
    return 0 if contiguous or not 1 < vectors == count < MATRIX or widest == 1 else min(count, widest)


def tile(p: NvidiaPlan, shape: GpuShape) -> tuple[int, int]:
    """Vectors of a CTA, and elements of the product of each."""
    return (p.cta_n, p.cta_m) if few_columns(shape) else (p.cta_m, p.cta_n)


def formats(p: NvidiaPlan, target: GpuTarget) -> tuple[str, ...]:
    return BY_CORES if min(p.cta_m, p.cta_n) < MATRIX else (*target.matrix_rates,)


def registers(p: NvidiaPlan, shape: GpuShape) -> int:
    """Registers of a thread, about."""
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


def shared(p: NvidiaPlan, shape: GpuShape) -> int:
    """Bytes of shared memory: sums of those that share k."""
    count, width = tile(p, shape)
    if count >= MATRIX:
        ring = p.cta_k * p.stages * width * LINE if p.copy == "async" else 0
        touched = 4*p.threads if p.copy == "async" and shape.prologues else 0
        return max(ring, p.cta_k * count * (width + APART) * shape.itemsize) + touched
    sharers = 1 if along_k(shape) else p.threads*p.vector // width
    return sharers * (count*width*shape.itemsize + (WIDEST if sharers > 1 else 0))


def of_gemv(p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> Iterator[str]:
    """Why a plan of this algorithm cannot run a shape: sentences, none if it can."""
    count, width = tile(p, shape)
    matrix, units, of_matrix = count >= MATRIX, 8*WIDEST // stored_bits(shape), "a" if few_columns(shape) else "b"
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
    if p.vector > (most := vector(shape)):
        yield f"vector = {p.vector} elements of a matrix are loaded at once, and the operands allow {most}."
    if p.vector_b and (p.vector_b > (most := beside(shape, count)) or count % p.vector_b):
        yield (f"vector_b = {p.vector_b} elements of a step of k of {count} vectors are loaded at once, and the "
               f"operands allow {most}.")
    if p.copy == "async" and not matrix:
        yield f"copy=async is for gemv of {MATRIX} vectors and more, by matrix instructions, not of {count}."
    elif p.copy == "async" and max(shape.m, shape.n) < width:
        yield f"copy=async needs as many elements of C as its tile has, not {shape.m}x{shape.n} of {p.cta_m}x{p.cta_n}."
    if matrix and (shape.layout != "nt" or p.vector != units or "mma.ampere" not in target.instructions):
        yield (f"gemv of {count} vectors needs a chip from sm_80 on, layout nt and vector={units}, not {target.name}, "
               f"{shape.layout} and {p.vector}.")
