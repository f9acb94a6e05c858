"""Passes after a product: numbers in f32 become nvfp4, by the rule of formats/quantization.py, to the bit.

Scales are of e4m3fn, and relative to one f32 for all numbers, which follows from the largest of these: `emit_largest`
leaves the largest finite size of each block, of which the caller makes that f32, and `emit_quantize_nv` the scales and
elements. Quotients are of f64, as NumPy's are there.
"""
from __future__ import annotations

from itertools import pairwise

from tilewright.formats.table import BLOCK_FORMATS
from tilewright.ir import Function, Kernel, Value, f32, f64, i8, i32, i64, ptr, vec
from tilewright.kernels.gpu.quantize import FOUR, INFINITY, THREADS, Blocks
from tilewright.kernels.narrow import nearest, number, splat

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
    sizes, most = x.sizes(), splat(k, i32, 0, FOUR)                     # of bits: sizes compare as whole numbers
    for size in sizes:
        most = k.select(size < INFINITY, k.max(most, size), most)
    four_most = k.max(k.max(most[0], most[1]), k.max(most[2], most[3]))
    k.store(largest + x.index, k.bits_as(four_most, f32), mask=x.inside)
    return k.function


def emit_quantize_nv(VECTOR: int = 1, WARP: int = 32) -> Function:
    """elements[i] = the packed elements of row i of source, scales[i] = those of its blocks, for i < rows; `whole` is
    the scale of all, `largest` what emit_largest leaves. Otherwise as emit_largest."""
    k = Kernel(f"quantize_nvfp4_{VECTOR}", threads=THREADS, warp=WARP, rows=i64, columns=i64, whole=f64,
               source=ptr(f32), largest=ptr(f32), elements=ptr(i32), scales=ptr(i8))
    rows, columns, tensor_scale, source, largest, elements, scales = k.args
    x = Blocks(k, NV, rows, columns, source, VECTOR)
    sizes, worst = x.sizes(), splat(k, i32, 0, FOUR)
    for size in sizes:
        worst = k.max(worst, size)
    lost = k.max(k.max(worst[0], worst[1]), k.max(worst[2], worst[3])) >= INFINITY      # the scale says it
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
