"""Passes after a product: numbers in f32 become elements with a scale for each block along rows, by the rule of
formats/quantization.py, to the bit. A thread has a block: it loads the numbers, finds the largest size among the finite
ones, and stores the elements, packed into words, and the scale.

    emit_quantize       MX formats, with scales of e8m0
    emit_quantize_nv    nvfp4: scales of e4m3fn, relative to one f32 for all numbers, which the caller makes of the
                        largest finite size of each block (`emit_largest`). Quotients are of f64, as NumPy's are there
"""
from __future__ import annotations

from itertools import pairwise

from tilewright.formats.table import BLOCK_FORMATS, BlockFormat
from tilewright.ir import Function, Kernel, Value, f32, f64, i8, i32, i64, ptr, vec
from tilewright.kernels.narrow import nearest, number, splat

THREADS, FOUR, WORD = 128, 4, 32
MANTISSA, F32_BIAS, INFINITY = 23, 127, 0x7F800000     # of f32


class Blocks:
    """A thread's block of the source: its index, whether there is one, and its numbers by fours."""

    def __init__(self, k: Kernel, f: BlockFormat, rows: Value, columns: Value, source: Value, VECTOR: int) -> None:
        blocks = (columns + (f.block - 1)) // f.block
        self.k, self.index = k, k.cast(k.block[0], i64)*THREADS + k.cast(k.thread[0], i64)
        self.inside = self.index < rows*blocks
        row, first = self.index // blocks, self.index % blocks * f.block
        at = source + row*columns + first

        def four(e: int) -> Value:
            if VECTOR == FOUR:
                return k.load(at + e, vec(f32, FOUR), mask=self.inside & (first + e < columns))
            return k.pack(*(k.load(at + (e + d), mask=self.inside & (first + (e + d) < columns)) for d in range(FOUR)))
        self.numbers = [four(e) for e in range(0, f.block, FOUR)]

    def sizes(self) -> list[Value]:
        """The numbers' bits without signs."""
        return [self.k.bits_as(x, vec(i32, FOUR)) & 0x7FFFFFFF for x in self.numbers]

    def largest(self, sizes: list[Value], finite: bool) -> Value:
        """The largest of all sizes, or of the finite ones; bits, since sizes compare as whole numbers."""
        k, most = self.k, splat(self.k, i32, 0, FOUR)
        for size in sizes:
            most = k.select(size < INFINITY, k.max(most, size), most) if finite else k.max(most, size)
        return k.max(k.max(most[0], most[1]), k.max(most[2], most[3]))


def emit_quantize(BLOCKS: str = "mxfp8", VECTOR: int = 1, WARP: int = 32) -> Function:
    """elements[i] = the packed elements of row i of source, scales[i] = those of its blocks, for i < rows.

    BLOCKS      a key of formats.BLOCK_FORMATS with scales of e8m0
    VECTOR      numbers that are loaded at once: `columns` and the address are multiples of 1 or 4
    WARP        lanes of a warp on the target

    Rows of all three follow each other without a gap. The grid: a thread for each block of each row.
    """
    f = BLOCK_FORMATS[BLOCKS]
    BITS, BIAS, STRANGE = f.element.bits, f.scale.bias, bool(f.element.nans)
    k = Kernel(f"quantize_{BLOCKS}_{VECTOR}", threads=THREADS, warp=WARP, rows=i64, columns=i64, source=ptr(f32),
               elements=ptr(i32), scales=ptr(i8))
    rows, columns, source, elements, scales = k.args
    x, lanes = Blocks(k, f, rows, columns, source, VECTOR), vec(i32, FOUR)
    most, lost = splat(k, i32, 0, FOUR), splat(k, i32, 0, FOUR)         # of bits: sizes compare as whole numbers
    for four in x.numbers:
        size = k.bits_as(four, lanes) & 0x7FFFFFFF
        most = k.select(size < INFINITY, k.max(most, size), most)
        lost = k.max(lost, size)
    largest, worst = (k.max(k.max(x[0], x[1]), k.max(x[2], x[3])) for x in (most, lost))
    exponent = k.max((largest >> MANTISSA) - (F32_BIAS + f.emax), -BIAS)
    factor = k.broadcast(k.bits_as((F32_BIAS - exponent) << MANTISSA, f32), FOUR)
    strange = worst >= INFINITY
    words = [k.constant(i32, 0) for _ in range(f.block*BITS // WORD)]
    for place, four in enumerate(x.numbers):
        finite = (k.bits_as(four, lanes) & 0x7FFFFFFF) < INFINITY
        scaled = k.select(finite, four*factor, splat(k, f32, 0, FOUR))
        scaled = k.min(k.max(scaled, -f.element.largest), f.element.largest)
        patterns = nearest(k, k.select(finite, scaled, four) if STRANGE else scaled, f.element) & (1 << BITS) - 1
        for e in range(FOUR):
            word, bit = divmod((place*FOUR + e)*BITS, WORD)
            words[word] = words[word] | patterns[e] << bit
            if bit + BITS > WORD:
                words[word + 1] = words[word + 1] | patterns[e] >> WORD - bit
    scale = exponent + BIAS
    if not STRANGE:                                                     # neither nan nor inf: the scale says it
        words = [k.select(strange, k.constant(i32, 0), word) for word in words]
        scale = k.select(strange, k.constant(i32, f.scale.nans[0].start), scale)
    for word in range(0, len(words), 2):
        k.store(elements + x.index*len(words) + word, k.pack(*words[word:word + 2]), mask=x.inside)
    k.store(scales + x.index, k.cast(scale, i8), mask=x.inside)
    return k.function


NV = BLOCK_FORMATS["nvfp4"]
SIZES = [float(NV.element.decode(pattern).real) for pattern in range(8)]        # of e2m1, without signs


def emit_largest(VECTOR: int = 1, WARP: int = 32) -> Function:
    """largest[i] = the largest finite size in block i of the source's rows, which follow each other without a gap.

    VECTOR      numbers that are loaded at once: `columns` and the address are multiples of 1 or 4
    The grid: a thread for each block of each row.
    """
    k = Kernel(f"largest_of_nvfp4_{VECTOR}", threads=THREADS, warp=WARP, rows=i64, columns=i64, source=ptr(f32),
               largest=ptr(f32))
    rows, columns, source, largest = k.args
    x = Blocks(k, NV, rows, columns, source, VECTOR)
    k.store(largest + x.index, k.bits_as(x.largest(x.sizes(), finite=True), f32), mask=x.inside)
    return k.function


def emit_quantize_nv(VECTOR: int = 1, WARP: int = 32) -> Function:
    """elements[i] = the packed elements of row i of source, scales[i] = those of its blocks, for i < rows; `whole` is
    the scale of all, `largest` what emit_largest leaves. Otherwise as emit_largest."""
    k = Kernel(f"quantize_nvfp4_{VECTOR}", threads=THREADS, warp=WARP, rows=i64, columns=i64, whole=f64,
               source=ptr(f32), largest=ptr(f32), elements=ptr(i32), scales=ptr(i8))
    rows, columns, tensor_scale, source, largest, elements, scales = k.args
    x = Blocks(k, NV, rows, columns, source, VECTOR)
    sizes = x.sizes()
    lost = x.largest(sizes, finite=False) >= INFINITY                   # the scale says it
    wanted = k.cast(k.load(largest + x.index, mask=x.inside), f64) / NV.element.largest / tensor_scale
    scale = k.min(_to_odd(k, wanted), NV.scale.largest)
    pattern = nearest(k, k.pack(scale, scale), NV.scale)                # elements of vectors are bits, not indices
    of_scale = k.cast(number(k, k.cast(pattern, vec(i8, 2)), NV.scale.name, f32)[0], f64)
    divisor = of_scale*tensor_scale
    words = [k.constant(i32, 0), k.constant(i32, 0)]
    for place, (four, size) in enumerate(zip(x.numbers, sizes)):
        signs = (k.bits_as(four, vec(i32, FOUR)) >> 28) & 8
        for e in range(FOUR):
            quotient = k.cast(k.bits_as(size[e], f32), f64) / divisor
            element = k.select(divisor > 0.0, _element(k, quotient), k.constant(i32, 0)) | signs[e]
            word, nibble = divmod(place*FOUR + e, 8)
            words[word] = words[word] | element << 4*nibble
    words = [k.select(lost, k.constant(i32, 0), word) for word in words]
    nan = k.constant(i32, NV.scale.nans[0].start)
    k.store(elements + x.index*2, k.pack(*words), mask=x.inside)
    k.store(scales + x.index, k.cast(k.select(lost, nan, pattern[0]), i8), mask=x.inside)
    return k.function


def _to_odd(k: Kernel, x: Value) -> Value:
    """x, f64 and not negative, in f32, cut off and made odd if it is not exact: rounded again it is rounded once."""
    near = k.cast(x, f32)
    bits, back = k.bits_as(near, i32), k.cast(near, f64)
    return k.bits_as(k.select(back == x, bits, k.select(back > x, bits - 1, bits) | 1), f32)


def _element(k: Kernel, size: Value) -> Value:
    """The pattern of the e2m1 nearest to this size; of two the even one, of what is larger than all the largest."""
    bits = k.constant(i32, 0)
    for pattern, (low, high) in enumerate(pairwise(SIZES)):
        middle = (low + high) / 2
        bits = bits + k.select(size > middle if pattern % 2 == 0 else size >= middle, k.constant(i32, 1), 0)
    return bits
