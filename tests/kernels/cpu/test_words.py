"""Words: which one is multiplied where, and that packing, micro-kernels and products of them are right to the bit, on
every instruction set that this machine has, with and without its extensions."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.helpers.readings import both, c_type
from tilewright import simulator
from tilewright.compiler import llvm, loader
from tilewright.formats import FORMATS, Integer
from tilewright.ir import Kernel, f32, i32, i64, ptr, vec
from tilewright.ir.exact import flushing_multiply_add
from tilewright.kernels.cpu.microkernel import emit_microkernel
from tilewright.kernels.cpu.packing import emit_pack_words
from tilewright.kernels.narrow import memory_type
from tilewright.plans.lowering import word
from tilewright.plans.words import BY_NAME
from tilewright.runtime.cpu import engine

pytestmark = pytest.mark.sampled

RNG = np.random.default_rng(44)
CHIPS = [
    replace(chip, extensions=extensions, model="")  # on Intel's cores f32 is faster than pairs of bf16, and chosen
    for chip in (tw.target("x86-avx512"), tw.target("x86-avx2"))
    if not chip.missing
    for vectors in [[name for name in chip.extensions if not name.startswith("amx")]]  # those: test_amx.py
    for count in range(len(vectors) + 1)
    for extensions in itertools.combinations(vectors, count)
]
WITH_AND_WITHOUT_BF16 = list({(chip.name, chip.has("avx512bf16")): chip for chip in CHIPS}.values())
WITH_AND_WITHOUT_QUADS = list({(chip.name, "vnni" in str(chip.extensions)): chip for chip in CHIPS}.values())
VECTORS = {name: row for name, row in BY_NAME.items() if not row.tiles}
CHIPS_OF = [(chip, name) for chip in CHIPS for name, row in VECTORS.items() if any(map(chip.has, row.needs))]


def named(x) -> str | None:
    return " ".join([x.name, *x.extensions]) if hasattr(x, "extensions") else None


def raw(f: str, *shape: int) -> np.ndarray:
    """Any bit pattern of integers; of floats any but NaN and inf."""
    x = RNG.integers(0, 256, (*shape, FORMATS[f].bits // 8), np.uint8).view(FORMATS[f].dtype)[..., 0]
    if isinstance(FORMATS[f], Integer):
        return x
    with np.errstate(all="ignore"):
        return np.where(np.isfinite(x.astype(np.float32)), x, np.zeros_like(x))


def extremes(f: str, *shape: int) -> np.ndarray:
    """Mostly the smallest and the largest number, which overflow whatever can."""
    limits = np.iinfo(FORMATS[f].dtype)
    return np.where(RNG.random(shape) < 0.8, RNG.choice([limits.min, limits.max], shape), raw(f, *shape)).astype(limits)


def small(f: str, *shape: int) -> np.ndarray:
    return RNG.integers(-2, 3, shape).clip(0 if f == "u8" else -2).astype(FORMATS[f].dtype)


# ---- which word


def test_which_word_is_multiplied():
    base = replace(tw.target("x86-avx512"), model="AMD EPYC")
    avx512, both_kinds = replace(base, extensions=()), replace(base, extensions=("avx512vnni", "avx512bf16"))
    avx2 = replace(tw.target("x86-avx2"), extensions=())
    vnni = replace(avx2, extensions=("avxvnni",))

    def name(chip, a, b, sums="i32"):
        found = word(sums, (a, b), chip)
        return found and found.name

    for chip, quads in ((both_kinds, True), (vnni, True), (avx512, False), (avx2, False)):
        assert [name(chip, "i8", "i8"), name(chip, "u8", "i8"), name(chip, "i8", "u8")] == (
            ["i8x4", "i8x4", "u8x4"] if quads else ["i16x2"] * 3
        )
        for a, b in (("u8", "u8"), ("i16", "i16"), ("i16", "i8"), ("u8", "i16")):
            assert name(chip, a, b) == "i16x2"
        for a, b in (("u16", "i16"), ("", "i8"), ("i8", "")):
            assert name(chip, a, b) is None
        for a, b in itertools.product(("bf16", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz"), repeat=2):
            assert name(chip, a, b, "f32") == ("bf16x2" if chip is both_kinds else None)
        for a, b in (("f16", "bf16"), ("bf16", "f16"), ("", "bf16"), ("bf16", ""), ("i16", "bf16")):
            assert name(chip, a, b, "f32") is None
    assert name(tw.target("neon"), "i8", "i8") is None
    assert name(replace(both_kinds, model="Intel(R) Xeon(R)"), "bf16", "bf16", "f32") is None
    amx = replace(both_kinds, extensions=(*both_kinds.extensions, "amx-tile", "amx-bf16", "amx-int8"))
    assert [name(amx, "u8", "u8"), name(amx, "i32", "i32"), name(amx, "bf16", "e5m2", "f32")] == [
        "amx_u8u8", "amx_i32", "amx_bf16"]


def test_without_its_extensions_a_chip_has_what_its_instruction_set_has():
    chip = replace(tw.target("x86-avx2"), extensions=("avxvnni",))
    assert [chip.has(x) for x in ("avxvnni", "avx2", "avx512vnni", "avx512bf16")] == [True, True, False, False]
    assert chip.extended.features == "+avxvnni"
    assert not tw.target("neon").has("avx2")


# ---- the operations


def words(*shape: int) -> np.ndarray:
    return RNG.integers(-(1 << 31), 1 << 31, shape).astype(np.int32)


def halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two bf16 of each word as f32: the upper one, then the lower one."""
    return (x & np.int32(-1 << 16)).view(np.float32), (x << 16).view(np.float32)


def bf16_words(n: int, least: int, most: int) -> np.ndarray:
    """Words of two bf16 with exponents from `least` to `most`."""
    numbers = (RNG.standard_normal(2 * n) * 2.0 ** RNG.integers(least, most, 2 * n)).astype(ml_dtypes.bfloat16)
    return numbers.view(np.int32)


def operands(kind: str, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(c, a, b) for bf16_pairs."""
    if kind == "any bits":  # NaN and inf among them
        return words(n).view(np.float32), words(n), words(n)
    least, most, of_c = {
        "usual": (0, 1, 0),
        "wide": (-15, 15, 0),
        "cancelling": (0, 4, 0),
        "subnormal": (-66, -60, -126),
        "tiny": (-76, -74, -126),
        "large": (58, 66, 124),
    }[kind]
    a, b = bf16_words(n, least, most), bf16_words(n, least, most)
    if kind == "cancelling":
        (a1, a0), (b1, b0) = halves(a), halves(b)
        return -(a1 * b1 + a0 * b0), a, b
    return (RNG.standard_normal(n) * 2.0 ** (of_c + RNG.integers(-3, 3, n))).astype(np.float32), a, b


KINDS = ("any bits", "usual", "wide", "cancelling", "subnormal", "tiny", "large")


def apply(chip, method: str, c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The operation on each element, in both readings, which must agree to the bit."""
    V, T = chip.lanes(4), f32 if c.dtype == np.float32 else i32
    k = Kernel("apply", n=i64, c=ptr(T), a=ptr(i32), b=ptr(i32))
    n, *pointers = k.args
    with k.loop(n) as i:
        x, y, z = (k.load(p + i * V, vec(t, V), 4) for p, t in zip(pointers, (T, i32, i32)))
        k.store(pointers[0] + i * V, getattr(k, method)(y, z, x), 4)
    _, after = both(k.function, len(c) // V, c, a, b, code=compiled(k.function, chip))
    return after["c"]


def compiled(function, chip) -> loader.Loaded:
    return loader.load(llvm.object_code([function], chip.extended), chip.extended)


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_pairs_mean_what_the_manual_says(kind):
    """The simulator's meaning against exact fractions."""
    c, a, b = operands(kind, 400)
    found = c
    for x, y in zip(halves(a), halves(b)):
        found = flushing_multiply_add(x, y, found)
    for i in range(len(c)):
        wanted = float(c[i])
        for x, y in zip(halves(a[i : i + 1]), halves(b[i : i + 1])):
            wanted = multiply_add(float(x[0]), float(y[0]), wanted)
        assert found[i] == wanted or (np.isnan(found[i]) and np.isnan(wanted)), (c[i], a[i], b[i])


def multiply_add(x: float, y: float, z: float) -> float:
    x, y, z = (v if not abs(v) < 2.0**-126 else 0.0 for v in (x, y, z))
    if not np.isfinite([x, y, z]).all():
        with np.errstate(all="ignore"):
            return float(np.float64(x) * y + z)
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:
        return 0.0
    exponent = exact.numerator.bit_length() - exact.denominator.bit_length()  # or one less
    ulp = Fraction(2) ** (exponent - 23 - (abs(exact) < Fraction(2) ** exponent))
    nearest = round(exact / ulp) * ulp  # Python rounds halves to even
    if abs(nearest) < Fraction(2) ** -126:
        return 0.0
    return float(nearest) if abs(nearest) < Fraction(2) ** 128 else float(np.copysign(np.inf, float(exact)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chip", [chip for chip in CHIPS if chip.has("avx512bf16")][:1], ids=named)
def test_the_chip_multiplies_pairs_of_bf16_as_the_simulator_says(chip, kind):
    apply(chip, "bf16_pairs", *operands(kind, 1 << 15))


@pytest.mark.parametrize("chip", [chip for chip in CHIPS if chip.has("avx512bf16")][:1], ids=named)
def test_what_is_subnormal_after_rounding_is_flushed(chip):
    """2^-126 - 2^-151 is rounded up to 2^-126 and stays; a little less becomes zero, as does any subnormal operand."""
    one, small = (int(np.float32(x).view(np.int32)) for x in (1, 2.0**-76))
    for upper in (False, True):
        place = (lambda x: x & -65536) if upper else (lambda x: x >> 16)
        minus = -(1 << 31) if upper else 0x8000
        a, b = np.zeros(16, np.int32), np.zeros(16, np.int32)
        for i, power in enumerate((-149, -150, -151, -152, -160)):
            a[i], b[i] = place(small) | minus, place(int(np.float32(2.0 ** (power + 76)).view(np.int32)))
        a[5], b[5] = place(1 << 16), place(one)  # the smallest subnormal bf16
        a[6], b[6] = place(127 << 16), place(int(np.float32(2.0**100).view(np.int32)))
        c = np.full(16, 2.0**-126, np.float32)
        c[5:7], c[7] = 0, 2.0**-127
        wanted = 2.0**-126 * np.array([0, 0, 1, 1, 1, 0, 0, 0] + [1] * 8)
        np.testing.assert_array_equal(apply(chip, "bf16_pairs", c, a, b), wanted)


@pytest.mark.parametrize("chip", CHIPS, ids=named)
def test_pairs_and_quads_are_exact_modulo_2_to_the_32(chip):
    n = 1 << 12
    c, a, b = words(n), words(n), words(n)
    a[:64], b[:64] = -0x7FFF8000, -0x7FFF8000  # (-32768)^2 twice is 2^31
    a[64:128], b[64:128] = -1, 0x7F7F7F7F
    a[128:192], b[128:192] = -1, -0x7F7F7F80
    c[:256] = RNG.choice([-(1 << 31), (1 << 31) - 1, 0], 256)
    methods = {"pairs": np.int16, **({"quads": np.uint8} if chip.has("avx512vnni") or chip.has("avxvnni") else {})}
    for method, of_a in methods.items():
        of_b = np.int16 if method == "pairs" else np.int8
        products = a.view(of_a).astype(np.int64) * b.view(of_b)
        wanted = (c + products.reshape(n, -1).sum(1)).astype(np.int32)
        np.testing.assert_array_equal(apply(chip, method, c, a, b), wanted)


def test_what_a_chip_lacks_is_refused_in_a_sentence():
    k = Kernel("three", x=ptr(i32))
    three = k.load(k.args[0], vec(i32, 3))
    for method in ("quads", "pairs"):
        with pytest.raises(TypeError, match=f"{method} are multiplied in vectors of 4, 8 or 16 i32 and added up in as "
                                            "many i32, not v3i32 by v3i32 in v3i32"):
            getattr(k, method)(three, three, three)
    four = k.load(k.args[0], vec(i32, 4))
    with pytest.raises(TypeError, match="added up in as many f32, not v4i32 by v4i32 in v4i32"):
        k.bf16_pairs(four, four, four)
    for name, chip, sentence in (
        ("i8x4", "x86-avx512", "x86-avx512 has no avx512vnni or avxvnni, so no quads"),
        ("bf16x2", "x86-avx2", "x86-avx2 has no avx512bf16, so no bf16_pairs"),
        ("i16x2", "neon", "neon has no avx2, so no pairs"),
    ):
        bare = replace(tw.target(chip), extensions=())
        with pytest.raises(NotImplementedError, match=sentence):
            llvm.assembly(emit_microkernel(bare, name, 3, 2), bare)


# ---- packing and micro-kernels


def bits_of(x: np.ndarray, f: str, name: str) -> np.ndarray:
    """Numbers as packing puts them into words: unsigned integers of 32 // steps bits."""
    if name == "bf16x2":
        return x.astype(np.float32).view(np.uint32) >> 16
    return x.astype(np.int64).astype(np.uint32) & (0xFF if BY_NAME[name].steps == 4 else 0xFFFF)


SOURCES_OF = sorted({(name, f) for name, row in VECTORS.items() for f in (*row.a, *row.b)})


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "f"), SOURCES_OF)
@pytest.mark.parametrize("kind", ["across", "along", "any"])
def test_packing_of_words(name, f, kind):
    """The first chip that has the word and the first one of each other vector length: both readings, and NumPy. Of the
    two widths one in turn, which every kind and role has with several formats."""
    row = BY_NAME[name]
    roles = ["a"] * (f in row.a) + ["b0"] * (f in row.b) + ["b1"] * (name == "i8x4" and f in row.b)
    chips = {chip.vector_bytes: chip for chip, each in CHIPS_OF if each == name}
    turn = SOURCES_OF.index((name, f)) + ("across", "along", "any").index(kind)
    for at, (chip, role) in enumerate(itertools.product(chips.values(), roles)):
        steps, (width, valid) = row.steps, ((16, 16), (32, 19))[(turn + at) % 2]
        if role == "a":
            width, valid = width // 4 * 3, valid // 4 * 3
        step_i, step_p = {"across": (1, 40), "along": (200, 1), "any": (200, 2)}[kind]
        function = emit_pack_words(chip, name, width, kind, f, role)
        code = compiled(function, chip)
        for left in (16 * steps, 18 * steps - 1, 20 * steps - 5):
            x = raw(f, 9000)
            seen = x.view(memory_type(f).numpy)
            out = np.full(40 * width + 128, -1, np.int32)
            # lanes past `valid` hold anything, and readings may differ in them
            panels = []
            before = width * (role != "a")
            for after in readings(function, code, 20, width, valid, seen, step_i, step_p, out, left):
                panels.append((after[:valid], after[before : before + 20 * width].reshape(20, width)[:, :valid]))
            lines = x[np.arange(left)[:, None] * step_p + np.arange(valid) * step_i]
            padded = np.zeros((20 * steps, valid), np.uint32)
            padded[:left] = bits_of(lines, f, name)
            shifts = np.arange(steps, dtype=np.uint32)[:, None] * (32 // steps)
            wanted = (padded.reshape(20, steps, valid) << shifts).sum(1, dtype=np.uint32)
            if (name, f, role) == ("i8x4", "i8", "a"):
                wanted ^= 0x80808080
            for first, panel in panels:
                np.testing.assert_array_equal(panel, wanted.view(np.int32))
                if role == "b1":
                    np.testing.assert_array_equal(first, -128 * lines.astype(np.int32).sum(0))
                elif role == "b0":
                    assert not first.any()


def readings(function, code, *args):
    """The last array among the arguments, as the machine and as the simulator leave it."""
    arrays = [[x.copy() if isinstance(x, np.ndarray) else x for x in args] for _ in range(2)]
    types = [c_type(value.type) for _, value in function.params]
    code.function(function.name, None, *types)(*(x.ctypes.data if isinstance(x, np.ndarray) else x for x in arrays[0]))
    simulator.run(function, *arrays[1])
    return [[x for x in each if isinstance(x, np.ndarray)][-1] for each in arrays]


@pytest.mark.parametrize(("chip", "name"), CHIPS_OF, ids=named)
def test_the_micro_kernel_of_words(chip, name):
    """Both readings, alpha and beta, columns that are not all there, and NumPy."""
    row, V = BY_NAME[name], chip.lanes(4)
    function = emit_microkernel(chip, name, 3, 2)
    T = np.float32 if row.sums == "f32" else np.int32
    if name == "bf16x2":
        a, b = (RNG.integers(-9, 10, 2 * n).astype(ml_dtypes.bfloat16).view(np.int32) for n in (11 * 3, 11 * 2 * V))
        x, y = (z.view(ml_dtypes.bfloat16).astype(np.int64) for z in (a, b))
    else:
        a, b = words(11 * 3), words(11 * 2 * V)
        of_a, of_b = {"i8x4": (np.uint8, np.int8), "u8x4": (np.int8, np.uint8), "i16x2": (np.int16, np.int16)}[name]
        x, y = a.view(of_a).astype(np.int64), b.view(of_b).astype(np.int64)
    first = RNG.integers(-99, 99, 2 * V).astype(T)
    panel, cols = np.concatenate([first.view(np.int32), b]), 2 * V - 3
    args = 11, a, 3, panel, 2 * V, np.full(3 * 40, 5, T), 40, cols, 2, -3, panel.view(np.int8), 0
    _, after = both(function, *args, code=compiled(function, chip))
    sums = np.einsum("pis,pjs->ij", x.reshape(11, 3, -1), y.reshape(11, 2 * V, -1)) + first.astype(np.int64)
    wanted = np.full((3, 40), 5, np.int64)
    wanted[:, :cols] = (2 * sums - 15)[:, :cols]
    np.testing.assert_array_equal(after["c"].reshape(3, 40), wanted.astype(T))


# ---- products


def product(chip, a, b, sums, **how) -> tuple[np.ndarray, set[str]]:
    """(a @ b, the formats in which it was multiplied)"""
    engine.forget()
    c = np.full((a.shape[0], b.shape[1]), 99, sums)
    engine.gemm(a, b, c, target=chip, **how)
    return c, {recipe[0].shape.dtype for recipe in engine.prepared.values()}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("f", ["i8", "u8", "i16"])
@pytest.mark.parametrize("g", ["i8", "u8", "i16"])
@pytest.mark.parametrize("chip", WITH_AND_WITHOUT_QUADS, ids=named)
def test_products_of_integers(chip, f, g):
    """Awkward shapes, every layout, one thread and two, against NumPy's 64 bits."""
    expected = word("i32", (f, g), chip)
    for m, k, n in ((64, 64, 64), (65, 67, 66), (97, 1031, 131), (300, 69, 64)):
        a, b = extremes(f, m, k), extremes(g, k, n)
        wanted = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)
        for x in (a, np.asfortranarray(a), np.repeat(a, 3, 1)[:, ::3]):
            for y in (b, np.asfortranarray(b), b[::-1][::-1]):
                found, used = product(chip, x, y, np.int32, threads=1 + (m > 64))
                np.testing.assert_array_equal(found, wanted)
                assert used == {expected.name}
    c = np.full((n, m), 3, np.int32).T
    engine.gemm(a, b, c, -2, 5, target=chip)
    np.testing.assert_array_equal(c, -2 * wanted + np.int32(15))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("f", BY_NAME["bf16x2"].a)
@pytest.mark.parametrize("g", BY_NAME["bf16x2"].b)
@pytest.mark.parametrize("chip", WITH_AND_WITHOUT_BF16, ids=named)
def test_products_of_bf16_and_fp8(chip, f, g):
    for m, k, n in ((64, 64, 64), (97, 131, 70)):
        a, b = small(f, m, k), small(g, k, n)
        for x in (a, np.asfortranarray(a), np.repeat(a, 2, 1)[:, ::2]):
            for y in (b, np.asfortranarray(b)):
                found, used = product(chip, x, y, np.float32, threads=1 + (m > 64))
                np.testing.assert_array_equal(found, a.astype(np.float32) @ b.astype(np.float32))
                assert used == {"bf16x2" if chip.has("avx512bf16") else "f32"}
    c = np.full((n, m), 3, np.float32).T
    engine.gemm(a, b, c, -2, 5, target=chip)
    np.testing.assert_array_equal(c, -2 * found + 15)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chip", CHIPS, ids=named)
def test_the_bound_of_bf16(chip):
    """k * 2^-24 of the sum of the products' sizes, also where they cancel; NaN and inf go where they must."""
    a, b = (RNG.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((70, 3001), (3001, 80)))
    b[1500:3000] = b[:1500] * -1
    a[:, 1500:3000] = a[:, :1500]
    found, _ = product(chip, a, b, np.float32)
    wide, size = (x(a.astype(np.float64)) @ x(b.astype(np.float64)) for x in (np.positive, np.abs))
    assert (np.abs(found - wide) <= 3001 * 2.0**-24 * size).all()
    a[3, 4], a[5, 6], a[7, 8:10], b[8:10] = np.nan, np.inf, (np.inf, -np.inf), 1
    found, _ = product(chip, a, b, np.float32)
    assert np.isnan(found[[3, 7]]).all()
    np.testing.assert_array_equal(found[5], np.where(b[6] > 0, np.inf, -np.inf))
    assert np.isfinite(np.delete(found, [3, 5, 7], 0)).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chip", CHIPS, ids=named)
def test_subnormal_numbers_are_flushed_where_the_documentation_says(chip):
    """By pairs of bf16 and there alone: subnormal operands, whatever they are multiplied by, and subnormal sums."""
    tiny, least = 2.0**-130, 2.0**-126
    a, b = np.zeros((64, 64), np.float32), np.eye(64)
    a[0, 0], a[1, 1], a[2, 2], a[3, 3] = tiny, tiny, least, least
    b[1, 1], b[2, 2], b[3, 3] = 2.0**100, 0.5, 1
    a, b = a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16)
    flushed = chip.has("avx512bf16")
    found, _ = product(chip, a, b, np.float32)
    wanted = [0, 0, 0, least] if flushed else [tiny, tiny * 2.0**100, least / 2, least]
    np.testing.assert_array_equal(np.diagonal(found)[:4], np.float32(wanted))
    found, _ = product(chip, a, b.astype(np.float32), np.float32)
    np.testing.assert_array_equal(np.diagonal(found)[:4], np.float32([tiny, tiny * 2.0**100, least / 2, least]))
    fp8 = np.full((64, 64), 2.0**-16, ml_dtypes.float8_e5m2)  # subnormal there, a normal number in bf16
    found, _ = product(chip, fp8, fp8, np.float32)
    np.testing.assert_array_equal(found, np.float32(2.0**-26))


def test_stacks_of_words():
    for f, g, out in (("i8", "u8", "i32"), ("u8", "u8", "i32"), ("i16", "i16", "i32"), ("bf16", "e4m3fn", "f32")):
        a, b = small(f, 3, 90, 80), small(g, 80, 95)
        wide = a.astype(np.float32) @ b.astype(np.float32)
        np.testing.assert_array_equal(tw.matmul(a, b, out_dtype=out), wide)
        np.testing.assert_array_equal(tw.matmul(b.T, a.swapaxes(-1, -2), out_dtype=out), wide.swapaxes(-1, -2))


def test_truth_is_packed_as_bytes():
    """A count of 512 has no bit in its lowest byte, and is true."""
    a, b = np.ones((80, 512), bool), np.zeros((512, 90), bool)
    b[:, 1:] = True
    b[3:, 2] = False
    c = tw.matmul(a, b)
    assert c.dtype == bool
    np.testing.assert_array_equal(c.view(np.uint8), np.repeat([[0] + [1] * 89], 80, 0))
    np.testing.assert_array_equal(tw.matmul(a, b, out_dtype="i32")[0, :4], [0, 512, 3, 512])
