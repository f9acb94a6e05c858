"""Packed elements of MX formats times their scale, as bf16: operands for Matrix Cores that support neither.

Global memory to registers as it is, AT_ONCE elements and the scale of their block to a thread; what was loaded a tile
ago is decoded on the way from registers to LDS, and every element only once for the whole workgroup. From there on it
is an `LdsTile` of bf16 as any other (`Decoded`). A lane decodes two elements at a time, one in each half of a register:

    place     the element's highest bit, its sign, becomes the highest bit of the half            v_lshlrev_b32 ...
    f16       exponent and mantissa move to where f16 has them, behind copies of the sign         v_pk_ashrrev_i16
              which are cleared, as are the bits of other elements                                v_and_b32
    power     that is the element times 2^(its bias - 15), subnormals included: times the power   v_pk_mul_f16
    scale     in f32, which holds scales and products exactly                                     v_fma_mix_f32
    bf16      the upper half of f32; two of them to a register                                    v_perm_b32

e5m2 is the upper half of f16 already, inf and NaN included. The NaN of e4m3fn would be 480, so its exponent gets
another bit: that is a NaN of f16.

What comes out is exact where bf16 has it. Elements have at most four bits, so only range can be lacking:

    too large       2^128 and more are inf: of a block whose scale is beyond 2^112 for e5m2, 2^119 for e4m3fn, 2^123 for
                    e3m2, 2^125 for e2m3 and e2m1
    too small       what is below 2^-133, the unit of bf16's subnormals, is cut off: bits of elements of a block whose
                    scale is below 2^-117 for e5m2, 2^-124 for e4m3fn; others keep everything at any scale
    NaN             a scale of 255 makes NaN of its whole block, zeros included; NaN and inf of elements stay that

The main loop is `through_decoding`: pipeline.through_registers with decoding beside each group of products.

Roles       All waves do everything: each loads, decodes and stores its share of every tile, and multiplies its part of
            C.

Pipelines   LDS, stage t % 2        tile t, decoded. Free again at the barrier before the last group of tile t, when
                                    every wave has that group's operands in registers; tile t + 2 takes its place.
            packed registers        tile t + 2, then t + 3: each portion is loaded again as soon as it is decoded. A
                                    portion is what each thread decodes at once: a part of an operand.
            decoded registers       portions of tile t + 2, decoded before the barrier and to be stored after it.
            operands                of one group, in registers, read one group ahead.

Timeline    one tile t; L = the last stretch of products, a group or half of the only one

            decode      portions of t+2 beside each stretch ...          | the other portions of t+2
            load        those portions of t+3 ...                        | the others of t+3
            barrier                                            | free(t) |
            stores                                                       | t+2: those that waited, then the others
            reads       stretch 1    stretch 2    ...    stretch L       | t+1: stretch 0
            products    stretch 0    stretch 1    ...    stretch L-1     | stretch L

Stores have until the next barrier, so no wave waits for them. Decoding is vector instructions, which waves issue while
the Matrix Core is busy. LLVM's scheduler is given their number beside each matrix instruction (`_mix`): by itself it
decodes first and multiplies then.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tilewright.atoms.mfma import SCALED
from tilewright.formats import get
from tilewright.ir import Kernel, Value, f16, f32, i8, i16, i32, i64, ptr, vec
from tilewright.kernels.amd import pipeline
from tilewright.kernels.amd.gemm import WaveProducts
from tilewright.kernels.amd.lds_tile import LdsTile
from tilewright.kernels.amd.pipeline import Buffered, Do, Operands
from tilewright.kernels.gpu.work import first_threads
from tilewright.targets.amd import DECODING

BF16 = 16                   # bits
AT_ONCE = 16                    # elements: 16, 12 or 8 bytes
_HALVES = vec(i16, 2)
_F16: Any = get("f16")
_NAN = {"e4m3fn": 0x7F << 7}    # what is a NaN in such a half, without its sign, and does not look like one
FIRST = 3                   # matrix instructions of a group, beside which LDS is read for the next group, and for
ADDRESSES = 3               # which there are no more vector instructions than these


@dataclass(frozen=True)
class Packed:
    """Elements and scales in global memory, k along the rows of both."""
    format: str
    elements: Value
    ld: Value               # bytes
    scales: Value
    ld_scales: Value        # blocks


class Decoded(LdsTile, Buffered):
    """EXTENT rows by CTA_K steps of k, a multiple of the 32 that share a scale."""
    start = 0               # of its part of a stage, in bytes

    def __init__(self, k: Kernel, packed: Packed, *, EXTENT: int, CTA_K: int, THREADS: int) -> None:
        self.packed, self.PACKED_BITS = packed, get(packed.format).bits
        self.WORDS = AT_ONCE * self.PACKED_BITS // 32
        super().__init__(k, BITS=BF16, EXTENT=EXTENT, CTA_K=CTA_K)
        self.CHUNKS = CTA_K // AT_ONCE                          # threads of a row
        ROWS = min(THREADS // self.CHUNKS, EXTENT)
        self.ACTIVE, self.THREADS = ROWS * self.CHUNKS, THREADS
        self.rows = [*range(0, EXTENT, ROWS)]                   # of which a thread has AT_ONCE elements
        self.PARTS, self.INSTRUCTIONS = len(self.rows), DECODING[packed.format]     # to decode each of them

    def begin(self, t: Value, first: Value, limit: Value, k_first: Value) -> None:
        """For rows from `first` on of `limit`, from step k_first of k on, where a block begins."""
        k, packed = self.k, self.packed
        self.t = t
        self.row, self.step = t // self.CHUNKS, t % self.CHUNKS*AT_ONCE
        ld, ld_scales = k.cast(packed.ld, i64), k.cast(packed.ld_scales, i64)
        rows = [k.cast(k.min(first + self.row + row, limit - 1) - first, i64) for row in self.rows]
        self.offsets = [row*ld + k.cast(self.step*self.PACKED_BITS // 8, i64) for row in rows]
        self.scale_offsets = [row*ld_scales + k.cast(self.step // SCALED, i64) for row in rows]
        far, start = k.cast(first, i64), k.cast(k_first, i64)
        self.address = k.variable(ptr(i8), packed.elements.as_(i8) + (far*ld + start*self.PACKED_BITS // 8))
        self.scale_address = k.variable(ptr(i8), packed.scales.as_(i8) + (far*ld_scales + start // SCALED))
        self.carried_words = [k.variable(vec(i32, self.WORDS)) for _ in self.rows]
        self.carried_scales = [k.variable(i32) for _ in self.rows]

    def load(self, part: int, more: Value) -> None:
        """One part of the next tile; the last one moves on to the tile after it."""
        with first_threads(self.k, self.t, self.ACTIVE, self.THREADS):
            self._load(part)
        if part == self.PARTS - 1:
            self._advance(self.k.select(more, self.k.constant(i32, self.CTA_K), 0))

    def loads(self, more: Value) -> list[list[Do]]:
        return [[partial(self.load, part, more)] for part in range(self.PARTS)]

    def load_first_tile(self, steps: Value) -> None:
        """Zeros for blocks that are not there, their scales too, which are 2^-127 then."""
        with first_threads(self.k, self.t, self.ACTIVE, self.THREADS):
            for part in range(self.PARTS):
                self._load(part, self.step < steps)
        self._advance(steps)

    def _load(self, part: int, there: Value | None = None) -> None:
        k = self.k
        words = (self.address.get() + self.offsets[part]).as_(i32)
        self.carried_words[part].set(k.load(words, vec(i32, self.WORDS), align=4, mask=there))
        scale = k.load(self.scale_address.get() + self.scale_offsets[part], i8, mask=there)
        self.carried_scales[part].set(k.cast(scale, i32) & 255)

    def _advance(self, steps: Value) -> None:
        self.address.set(self.address.get() + self.k.cast(steps*self.PACKED_BITS // 8, i64))
        self.scale_address.set(self.scale_address.get() + self.k.cast(steps // SCALED, i64))

    def decode(self, part: int) -> list[Value]:
        """What was fetched last of this part, as words of two bf16."""
        return decode(self.k, self.carried_words[part].get(), self.carried_scales[part].get(), self.packed.format)

    def store(self, smem: Value, part: int, numbers: list[Value]) -> None:
        """Into the stage of LDS at `smem`."""
        smem = smem + self.start
        for e in range(0, len(numbers), 4):
            at = self.lds_address(smem, self.row + self.rows[part], self.step*(BF16 // 8) + e*4)
            self.k.store(at.as_(i32), self.k.pack(*numbers[e:e + 4]))

    def stores_to_lds(self, smem: Value) -> list[list[Do]]:
        return [[partial(self._store_to_lds, smem, part)] for part in range(self.PARTS)]

    def _store_to_lds(self, smem: Value, part: int) -> None:
        with first_threads(self.k, self.t, self.ACTIVE, self.THREADS):
            self.store(smem, part, self.decode(part))


def decode(k: Kernel, words: Value, scale: Value, FORMAT: str) -> list[Value]:
    """AT_ONCE elements in a vector of i32, and an e8m0 in an i32, as words of two bf16 each, in their order."""
    factor = power_of_two(k, scale)
    numbers: dict[int, Value] = {}
    for pair, elements in _placed(k, [words[e] for e in range(words.type.length)], get(FORMAT).bits):
        of_f16 = _as_f16(k, pair, FORMAT)
        for half, element in enumerate(elements):
            # an FMA, though there is nothing to add: it alone takes a half of a register as it is
            product = k.fma(k.cast(of_f16[half], f32), factor, k.constant(f32, 0.0))
            numbers[element] = k.reinterpret(product, _HALVES)
    return [k.reinterpret(k.shuffle(numbers[e], numbers[e + 1], (1, 3)), i32) for e in range(0, AT_ONCE, 2)]


def power_of_two(k: Kernel, scale: Value) -> Value:
    """2^(scale - 127) in f32, from 0 to 254; NaN of 255. The exponent, but of 0 and 255 another bit: of 2^-127, which
    is subnormal, the only one, and of what would be inf the one that makes it NaN."""
    odd = ((scale + 1) & 255) <= 1
    return k.bits_as((scale << 23) | k.select(odd, k.constant(i32, 1 << 22), 0), f32)


def _placed(k: Kernel, words: list[Value], BITS: int) -> Iterator[tuple[Value, tuple[int, int]]]:
    """Words that have an element at the top of each half, and which these are. Below are bits of others."""
    if BITS == 6:                                               # of four in 24 bits, the first two and the last two
        for e in range(0, AT_ONCE, 4):
            low, high = (k.reinterpret(_bits_from(words, e*BITS + end - 16), _HALVES) for end in (12, 24))
            pair = k.reinterpret(k.shuffle(low, high, (0, 2)), i32)
            yield pair, (e + 1, e + 3)
            yield pair << BITS, (e, e + 2)
        return
    count = 16 // BITS                                          # in a half
    for w, word in enumerate(words):
        for e in range(count):
            element = 2*count*w + e
            above = (count - 1 - e)*BITS
            yield word << above if above else word, (element, element + count)


def _bits_from(words: list[Value], bit: int) -> Value:
    """A word whose lower half is 16 bits of the stream from this one on; before its first are zeros."""
    if bit < 0:
        return words[0] << -bit
    word, shift = divmod(bit, 32)
    below = words[word] >> shift if shift else words[word]
    return below if shift <= 16 else below & ((1 << 32 - shift) - 1) | words[word + 1] << 32 - shift


def _as_f16(k: Kernel, pair: Value, FORMAT: str) -> Value:
    """Two elements, each at the top of its half, as two f16."""
    f: Any = get(FORMAT)
    narrower = _F16.exponent - f.exponent
    moved = k.reinterpret(k.reinterpret(pair, _HALVES) >> narrower, i32) if narrower else pair
    bits = moved & _both(1 << 15 | ((1 << f.exponent + f.mantissa) - 1) << _F16.mantissa - f.mantissa)
    if FORMAT in _NAN:
        carry = bits + _both((1 << 14) - _NAN[FORMAT])          # into bit 14, which nothing but a NaN reaches
        bits = bits | (carry & _both(1 << 14))
    numbers = k.reinterpret(bits, vec(f16, 2))
    return numbers * 2.0**(_F16.bias - f.bias) if f.bias != _F16.bias else numbers


def _both(half: int) -> int:
    """A number of 16 bits in both halves of an i32."""
    word = half << 16 | half
    return word - (1 << 32) if word >> 31 else word


# ---- the main loop


Portion = tuple[Decoded, int]           # and which part of it
Stretch = tuple[int, range]             # products without a fence between them: of a group, these parts


def through_decoding(k: Kernel, operands: Sequence[Decoded], smem: Value, tiles: Value, short: Value,
                     products: WaveProducts, ROOM: int) -> None:
    """Two tiles in LDS and one, packed, in registers. `short`: steps of k in the first of `tiles`, which are at least
    one. ROOM: vector instructions that fit beside a matrix instruction, as far as there are registers for it.

    Operands that only some of the threads decode go `through_registers`.
    """
    if any(x.ACTIVE < x.THREADS for x in operands):
        pipeline.through_registers(k, operands, smem, tiles, short, products)
        return
    STAGE = 0
    for x in operands:
        x.start = STAGE
        STAGE += x.SIZE
    portions, stretches = [(x, part) for x in operands for part in range(x.PARTS)], _stretches(products)
    COUNT, LAST = len(stretches), len(stretches) - 1
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
            for x, part in beside[s]:
                held.append(((x, part), x.decode(part)))
                x.load(part, more)
            _mix(k, products, stretches[s], beside[s], reads, ROOM)
            k.sched_fence()
            group = coming
        k.barrier()
        k.sched_fence()
        for (x, part), numbers in held:
            x.store(smem + now, part, numbers)
        coming = products.read(smem + (STAGE - now), 0)
        _multiply(products, group, stretches[LAST])
        for x, part in beside[LAST]:
            x.store(smem + now, part, x.decode(part))
            x.load(part, more)
        _mix(k, products, stretches[LAST], beside[LAST], True, ROOM)
        k.sched_fence()
        for register, value in zip(ahead, coming, strict=True):
            register.set(value)
        stage.set(STAGE - now)
    group = [x.get() for x in ahead]
    for g in range(products.GROUPS):
        coming = products.read(smem + stage.get(), g + 1) if g + 1 < products.GROUPS else []
        _multiply(products, group, (g, range(products.PARTS)))
        group = coming


def _stretches(products: WaveProducts) -> list[Stretch]:
    """Groups; of a single one, halves. The barrier is before the last."""
    parts = range(products.PARTS)
    if products.GROUPS > 1:
        return [(group, parts) for group in range(products.GROUPS)]
    middle = products.PARTS // 2
    return [(0, parts[:middle]), (0, parts[middle:])]


def _begin(k: Kernel, operands: Sequence[Decoded], portions: Sequence[Portion], smem: Value, STAGE: int, tiles: Value,
           short: Value) -> None:
    """Two tiles decoded, and the third fetched."""
    for x in operands:
        x.load_first_tile(short)
    for x, part in portions:
        x.store(smem, part, x.decode(part))
    with k.when(tiles > 1):
        for x, part in portions:
            x.load(part, tiles > 2)
        for x, part in portions:
            x.store(smem + STAGE, part, x.decode(part))
        for x, part in portions:
            x.load(part, tiles > 3)
            k.sched_fence()             # in the order of the loop: what waits there counts those that came later
    k.barrier()


def _multiply(products: WaveProducts, operands: Operands, stretch: Stretch) -> None:
    group, parts = stretch
    for part in parts:
        products.multiply(operands, group, part)


def _mix(k: Kernel, products: WaveProducts, stretch: Stretch, portions: Sequence[Portion], READS: bool,
         ROOM: int) -> None:
    """Reads of LDS beside the first matrix instructions, one each, then vector instructions; if they fit."""
    count = products.TILES_M*products.TILES_N*len(stretch[1])
    reads = (products.TILES_M + products.TILES_N)*READS
    instructions = sum(x.INSTRUCTIONS for x, _ in portions)
    if count <= FIRST or (spacing := -(-instructions // (count - FIRST))) > ROOM:
        return
    for e in range(count):
        k.sched_group("mfma", 1)
        if here := ADDRESSES if e < FIRST else spacing:
            k.sched_group("valu", here)
        if e < reads:
            k.sched_group("lds read", 1)
