"""MX formats on chips without scaled instructions: what elements become, products, range, and the assembly."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.helpers import gemms
from tests.helpers.gpu_kernels import emit_emulated_mx_gemm, emit_scaled_mfma_gemm
from tilewright import formats
from tilewright.compiler import amd
from tilewright.formats import BLOCK_FORMATS, Quantized
from tilewright.inspect.resources import amd_body, amd_loop
from tilewright.ir import Kernel, i8, i32, ptr, vec
from tilewright.kernels.amd.decoding import AT_ONCE, Decoded, decode
from tilewright.kernels.amd.gemm import WaveProducts
from tilewright.simulator import Fault
from tilewright.targets import target
from tilewright.targets.amd import DECODING

pytestmark = pytest.mark.sampled

MX = {f.element.name: f for name, f in BLOCK_FORMATS.items() if name.startswith("mx")}
SMALL = {"CTA_M": 64, "CTA_N": 64, "WARP_M": 32, "WARP_N": 32}  # half of the threads decode
WHOLE = SMALL | {"WARP_M": 64}  # all of them do: beside products
GFX942 = target("gfx942")
# Binary logarithms of the scales with which every finite element is a bf16.
LIMITS = {"e4m3fn": (-124, 119), "e5m2": (-117, 112), "e2m3": (-127, 125), "e3m2": (-127, 123), "e2m1": (-127, 125)}


# ---- decoding


@cache
def emit_decode(FORMAT: str) -> Any:
    """Each thread decodes AT_ONCE elements with a scale of its own."""
    WORDS = AT_ONCE * MX[FORMAT].element.bits // 32
    k = Kernel(f"decode_{FORMAT}", threads=64, warp=64, a=ptr(i32), scales=ptr(i8), c=ptr(i32))
    a, scales, c = k.args
    t = k.block[0] * 64 + k.thread[0]
    words = k.load(a + t * WORDS, vec(i32, WORDS), align=4)
    numbers = decode(k, words, k.cast(scales[t], i32) & 255, FORMAT)
    for e in (0, 4):
        k.store(c + (t * 8 + e), k.pack(*numbers[e : e + 4]))
    return k.function


def in_bf16(exact: Any) -> Any:
    """What the documentation says becomes of numbers of four bits."""
    with np.errstate(all="ignore"):
        unit = 2.0**-133
        kept = np.where(np.abs(exact) < 2.0**-126, np.trunc(exact / unit) * unit, exact)
        return np.where(np.abs(exact) >= 2.0**128, np.copysign(np.inf, exact), kept)


@pytest.mark.parametrize("f", MX)
def test_every_element_with_every_scale(f):
    element = MX[f].element
    patterns = np.arange(2**element.bits)
    whole = np.resize(patterns, max(patterns.size, AT_ONCE * 4))  # of 4 bits several times: threads of a whole wave
    groups = whole.size // AT_ONCE
    packed = np.tile(formats.pack(whole.astype(np.uint8).view(element.dtype)), 256)
    scales = np.repeat(np.arange(256, dtype=np.uint8), groups)
    c = np.zeros(256 * whole.size, np.uint16)
    tw.simulate(emit_decode(f), packed.view(np.int32), scales.view(np.int8), c.view(np.int32), grid=(4 * groups,))
    found = (c.astype(np.uint32) << 16).view(np.float32).astype(np.float64).reshape(256, -1)
    values = np.array([element.decode(p) for p in patterns])[whole]
    with np.errstate(all="ignore"):
        powers = np.append(np.ldexp(1.0, np.arange(-127, 128)), np.nan)
        exact = values * powers[:, None]
    np.testing.assert_array_equal(found, in_bf16(exact))

    def first_and_last(same: Any) -> tuple[int, int]:
        scales = np.flatnonzero(same.all(axis=1)) - 127
        return scales[0], scales[-1]

    # the range of the docs: from which scale up to which all elements are what they are
    finite = np.isfinite(values)
    got, wanted = found[:, finite], exact[:, finite]
    assert first_and_last(got == wanted) == LIMITS[f]


@pytest.mark.parametrize("f", MX)
def test_instructions_of_an_element(f):
    """What the emitter reckons with, and how they come about: a multiplication by the scale, and a move to bf16."""
    function = emit_decode(f)
    text = amd_body(amd.assembly(function, GFX942), function.name)
    loaded = next(i for i, line in enumerate(text) if "vmcnt" in line)
    found = Counter(line.split()[0] for line in text[loaded:] if line.startswith("v_"))
    assert found["v_fma_mix_f32"] == AT_ONCE
    assert abs(found.total() - DECODING[f]) <= 2


# ---- products


def quantized(f: str, rows: int, k: int, seed: int) -> Quantized:
    return gemms.quantized(np.random.default_rng(seed), f, rows, k)


def product(emit: Any, a: Quantized, b: Quantized, **options: Any) -> gemms.Result:
    """alpha * a @ b^T + beta * c."""
    (m, k), (n, _) = a.shape, b.shape
    return gemms.simulated(emit, m, n, k, given=(a, b), A=a.format.element.name, B=b.format.element.name,
                           **{"VECTOR_C": min(4, n & -n)} | options)


def exact(a: Quantized, b: Quantized, **options: Any) -> Any:
    """The report of a product that is right."""
    found = product(emit_emulated_mx_gemm, a, b, **options)
    np.testing.assert_array_equal(found.c, found.wanted)
    return found.report


@pytest.mark.parametrize("fa", MX)
@pytest.mark.parametrize("fb", MX)
def test_every_pair(fa, fb):
    """Edges in all three sizes; no access of LDS takes longer than it must."""
    a, b = quantized(fa, 66, 104, 1), quantized(fb, 70, 104, 2)
    report = exact(a, b, **WHOLE)
    for verb in ("load", "store"):
        assert report.of("tiles", verb).conflicts == 0
    assert report.instructions["mma"] == 2 * 128 * 128 * 128 // (2 * 32 * 32 * 8)


@pytest.mark.parametrize(
    ("m", "n", "k", "options"),
    [
        (1, 1, 1, {}),
        (64, 64, 64, {}),
        (1, 1, 1, {"WARP_M": 64}),  # the same where all threads decode
        (64, 64, 64, {"WARP_M": 64}),
        (3, 129, 200, {"WARP_M": 64, "MFMA": 16}),
        (65, 60, 416, {"WARP_M": 64, "CTA_K": 128}),  # eight groups of products, four portions of each operand
        (3, 129, 200, {"MFMA": 16}),
        (65, 4, 224, {"CTA_K": 64}),  # the first tile has one block
        (130, 60, 96, {"CTA_K": 64, "CTA_M": 128, "WARP_M": 64, "WARP_N": 64}),
        (20, 70, 160, {"CTA_K": 128, "MFMA": 16, "CTA_M": 32}),
        (70, 40, 96, {"CTA_M": 128}),  # half of the threads have nothing to do for B
        (70, 40, 96, {"GROUP_M": 1, "XCDS": 1, "VECTOR_C": 1}),
    ],
)
@pytest.mark.parametrize(("fa", "fb"), [("e4m3fn", "e2m1"), ("e3m2", "e5m2")])
def test_shapes(m, n, k, options, fa, fb):
    report = exact(quantized(fa, m, k, 1), quantized(fb, n, k, 2), alpha=-2, beta=3, **SMALL | options)
    assert report.of("tiles", "load").conflicts == report.of("tiles", "store").conflicts == 0


@pytest.mark.parametrize(("k", "parts"), [(320, 3), (64, 4), (1024, 2)])
def test_split_k(k, parts):
    """Also more parts than there is work for."""
    exact(quantized("e2m3", 66, k, 1), quantized("e2m1", 36, k, 2), **WHOLE, SPLIT_K=parts)


def test_the_instructions_of_gfx950_too():
    """32x32x16: it is slower there than instructions with scales, but the same."""
    exact(quantized("e4m3fn", 66, 104, 1), quantized("e3m2", 70, 104, 2), **WHOLE, ARCH="gfx950")


@pytest.mark.parametrize("options", [SMALL, {"CTA_M": 256, "CTA_N": 256}])
def test_random_numbers(options):
    """Products are exact, so only sums are rounded: k * 2^-24 of the sum of the products' sizes."""
    r = np.random.default_rng(5)
    a, b = (tw.quantize(r.standard_normal((rows, 250)), f) for rows, f in ((90, "mxfp8"), (75, "mxfp6")))
    found = product(emit_emulated_mx_gemm, a, b, **options)
    assert (np.abs(found.c - tw.dequantize(a, "f64") @ tw.dequantize(b, "f64").T) <= 256 * 2.0**-24 * found.size).all()


# ---- planted bugs


def long_product(**options: Any) -> tuple[Any, Any]:
    a, b = quantized("e4m3fn", 66, 320, 1), quantized("e2m1", 70, 320, 2)
    return product(emit_emulated_mx_gemm, a, b, **options)[:2]


@pytest.mark.parametrize("MFMA", [16, 32])
@pytest.mark.parametrize("options", [SMALL, WHOLE])
def test_a_missing_barrier_is_a_race(monkeypatch, options, MFMA):
    np.testing.assert_array_equal(*long_product(**options, MFMA=MFMA))
    monkeypatch.setattr(Kernel, "barrier", lambda self: None)
    with pytest.raises(Fault):
        long_product(**options, MFMA=MFMA)


def test_storing_before_the_barrier_is_a_race(monkeypatch):
    """Others may still read the tile that has the place."""
    read, decode = WaveProducts.read, Decoded.decode
    places = []

    def reading(self: WaveProducts, at: Any, group: int) -> Any:
        places.append(at)
        return read(self, at, group)

    def decoding(self: Decoded, part: int) -> Any:
        numbers = decode(self, part)
        if places:
            self.store(places[-1], part, numbers)
        return numbers

    monkeypatch.setattr(WaveProducts, "read", reading)
    monkeypatch.setattr(Decoded, "decode", decoding)
    with pytest.raises(Fault):
        long_product(**WHOLE)


def test_a_portion_that_is_not_loaded_again_is_found(monkeypatch):
    load = Decoded.load
    monkeypatch.setattr(Decoded, "load", lambda self, part, more: load(self, part, more) if self.start else None)
    found, wanted = long_product(**WHOLE)
    assert (found != wanted).any()


# ---- range: beside instructions with scales


def both(a: Quantized, b: Quantized) -> tuple[Any, Any]:
    return (product(emit_emulated_mx_gemm, a, b, **SMALL).c,
            product(emit_scaled_mfma_gemm, a, b, **SMALL, CTA_K=128).c)


@pytest.mark.parametrize("f", MX)
def test_every_scale_that_has_room(f):
    """One product in each element of C, of the smallest and the largest elements with a scale each: as with the
    instruction, to the bit, down to f32's subnormals and up to what overflows."""
    element = MX[f].element
    patterns = [1, element.largest_pattern, element.largest_pattern | 1 << element.bits - 1, 3]
    scales = np.linspace(*LIMITS[f], 16).astype(int)
    x = np.zeros((64, 128), np.uint8)
    x[:, 40] = np.resize(patterns, 64)
    e8m0 = np.zeros((64, 4), np.uint8)
    e8m0[:] = (np.repeat(scales, 4) + 127)[:, None]
    a = Quantized.of(x.view(element.dtype), e8m0)
    emulated, scaled = both(a, a)
    np.testing.assert_array_equal(emulated, scaled)
    with np.errstate(all="ignore"):
        exact = tw.dequantize(a, "f64") @ tw.dequantize(a, "f64").T
        np.testing.assert_array_equal(emulated, exact.astype(np.float32))
    assert np.isinf(emulated).any()
    assert ((emulated != 0) & (np.abs(emulated) < 2.0**-126)).any()


def test_nan_and_inf():
    """As the instruction has them: a scale of 255, NaN of both fp8 formats, inf of e5m2, inf times 0."""
    r = np.random.default_rng(7)
    for f in ("e4m3fn", "e5m2"):
        element = MX[f].element
        x = np.full((64, 128), element.largest_pattern, np.uint8)
        x[r.integers(0, 64, 9), r.integers(0, 128, 9)] = [*element.nans[0], *element.infs, 0x7F, 0xFF, *[0] * 9][:9]
        e8m0 = np.full((64, 4), 127, np.uint8)
        e8m0[3, 1] = e8m0[4, 2] = 255
        a = Quantized.of(x.view(element.dtype), e8m0)
        y = np.zeros((64, 128), np.uint8)
        y[:, ::3] = element.largest_pattern
        b = Quantized.of(y.view(element.dtype), np.full((64, 4), 127, np.uint8))
        emulated, scaled = both(a, b)
        np.testing.assert_array_equal(emulated, scaled)
        assert np.isnan(emulated[3:5]).all()
        assert np.isnan(emulated[:, 0]).sum() > 2
        assert np.isfinite(emulated[:, 0]).sum() > 32


def test_what_leaves_the_range_of_bf16():
    """Where it is not the instruction with scales: an operand of 2^128 or more, or below 2^-133, is that by itself."""
    one = MX["e4m3fn"].element.dtype.type(1).view(np.uint8)

    def operand(element: int, scale: int) -> Quantized:
        x = np.zeros((64, 128), np.uint8)
        x[:, 0] = element
        return Quantized.of(x.view(MX["e4m3fn"].element.dtype), np.full((64, 4), scale + 127, np.uint8))

    largest, smallest = MX["e4m3fn"].element.largest_pattern, 1
    for a, b, with_scales, by_bf16 in (
        (operand(largest, 119), operand(one, -100), 1.75 * 2.0**27, 1.75 * 2.0**27),
        (operand(largest, 120), operand(one, -100), 1.75 * 2.0**28, np.inf),
        (operand(largest, 120), operand(0, 0), 0, np.nan),  # inf times 0
        (operand(smallest, -124), operand(one, 100), 2.0**-33, 2.0**-33),
        (operand(smallest, -125), operand(one, 100), 2.0**-34, 0),
        (operand(3, -125), operand(one, 100), 3 * 2.0**-34, 2.0**-33),  # cut off, not rounded
    ):
        emulated, scaled = both(a, b)
        np.testing.assert_array_equal(scaled, np.full((64, 64), with_scales, np.float32))
        np.testing.assert_array_equal(emulated, np.full((64, 64), by_bf16, np.float32))


# ---- assembly


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("fa", "fb", "options"),
    [(f, f, {}) for f in MX]
    + [
        ("e4m3fn", "e2m1", {"MFMA": 16}),
        ("e2m3", "e5m2", {"CTA_M": 128, "CTA_N": 128, "CTA_K": 64, "WARP_M": 64}),
        ("e4m3fn", "e4m3fn", {"SPLIT_K": 4, "CTA_M": 128}),
    ],
)
def test_assembly_for_gfx942(fa, fb, options):
    """bf16 instructions without scales, no spills, all of LDS in pieces of 16 bytes; every element is decoded once."""
    function = emit_emulated_mx_gemm(A=fa, B=fb, **options)
    text = amd.assembly(function, GFX942)
    used = amd.usage(function, GFX942, text)
    assert (used.vgpr_spills, used.sgpr_spills, used.scratch) == (0, 0, 0)
    loop = Counter(line.split()[0] for line in amd_loop(text, function.name))
    M, N, K = options.get("CTA_M", 256), options.get("CTA_N", 256), options.get("CTA_K", 32)
    WARP_M, WARP_N, MFMA = options.get("WARP_M", 128), 64, options.get("MFMA", 32)
    MFMA_K = 8 if MFMA == 32 else 16
    products = WARP_M // MFMA * (WARP_N // MFMA) * (K // MFMA_K)
    assert {op: n for op, n in loop.items() if "mfma" in op} == {f"v_mfma_f32_{MFMA}x{MFMA}x{MFMA_K}_bf16": products}
    assert not re.search(r"mfma_scale|f8f6f4|_fp8|_bf8", text)
    assert re.findall(r"denorm_mode_\w+ (\d)", text) == ["3", "3"]  # subnormals of f16 and f32 count
    assert {op for op in loop if op.startswith("ds_")} == {"ds_read_b128", "ds_write_b128"}
    threads = M // WARP_M * (N // WARP_N) * 64
    assert loop["v_fma_mix_f32"] == (M + N) * K // threads


def test_decoding_is_mixed_with_products():
    """Between one matrix instruction and the next fit seven vector instructions: six are there, and three beside the
    first, with reads of LDS."""
    function = emit_emulated_mx_gemm(A="e4m3fn")
    kinds = "".join(
        "M" if "mfma" in line else "v" if line.startswith("v_") else ""
        for line in amd_loop(amd.assembly(function, GFX942), function.name)
    )
    runs = [len(run) for run in re.findall("v+", kinds)]
    assert kinds.count("M") == 32
    assert max(runs) <= 8
    assert sum(5 <= run <= 6 for run in runs) >= 20


@pytest.mark.parametrize(("words", "message"), [
    ("128x128x64 wave=64x64 mfma=32 copy=lds stages=2", "copies operands as they are, and bf16_emulated decodes them"),
    ("128x128x64 wave=64x64 mfma=32 copy=registers stages=3", "copies through registers have 2 stages, not 3"),
    ("128x128x48 wave=64x64 mfma=32 copy=registers stages=2", "cta_k = 48: bf16_emulated decodes 1, 2 or 4 blocks"),
    ("128x128x64 wave=96x64 mfma=32 copy=registers stages=2", "not a multiple of wave tiles of 96x64"),
    ("96x128x64 wave=48x64 mfma=16 copy=registers stages=2", r"wave tiles must have 32, 64, 128 \.\.\. rows"),
])
def test_what_is_refused(words, message):
    with pytest.raises(ValueError, match=message):
        tw.compile(tw.Gemm(256, 256, 256, "mxfp4", layout="nt"), "gfx942", f"bf16_emulated {words}")
