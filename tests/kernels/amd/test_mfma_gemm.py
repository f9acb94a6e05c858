"""The GEMM of AMD's Matrix Cores, simulated: exact products of whole numbers, banks of the LDS, planted bugs."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from tests.helpers.gemms import MX, Result, simulated
from tests.helpers.gpu_kernels import emit_mfma_gemm, emit_scaled_mfma_gemm
from tests.helpers.mfma import SMALL, bits, exact, product, without_conflicts
from tilewright.ir import Kernel
from tilewright.kernels.amd import gemm, lds_tile, operand, scales
from tilewright.simulator import Fault
from tilewright.targets import target

pytestmark = pytest.mark.sampled

EIGHT = {"gfx942": ("e4m3fnuz", "e5m2fnuz"), "gfx950": ("e4m3fn", "e5m2")}
FORMATS = [
    *(("gfx942", f, f) for f in ("f64", "f32", "f16", "bf16", "i8", "xf32")),
    *(("gfx950", f, f) for f in ("f64", "f32", "f16", "bf16", "i8")),
    *((arch, a, b) for arch, both in EIGHT.items() for a in both for b in both),
]
AWKWARD = [(1, 1, 1), (66, 70, 75), (65, 64, 33), (64, 65, 32), (31, 97, 7), (2, 130, 64), (67, 61, 101)]


def differs(found: Result) -> bool:
    return bool((found.c != found.wanted).any())


def reads(report: Any) -> Any:
    return report.of("tiles", "load", "shared")


# ---- formats, layouts, shapes


@pytest.mark.parametrize("layout", ["nt", "nn", "tt", "tn"])
@pytest.mark.parametrize(("arch", "A", "B"), FORMATS)
def test_every_format_in_every_layout(arch, A, B, layout):
    for row, MFMA in ((64, 16), (128, 16), (64, 32), (128, 32)):
        common = row == 128 and MFMA == 32 and A != "f64"
        if (layout[0] == "n" and A == B and (MFMA == 16 or A != "f64")) or common or (A, row, MFMA) == ("f64", 128, 16):
            cta_k = row * 8 // bits(A)
            report = exact(66, 70, 2 * cta_k + 5, ARCH=arch, A=A, B=B, LAYOUT=layout, MFMA=MFMA, CTA_K=cta_k)
            without_conflicts(report)


# one past a tile, primes, k smaller than a tile; formats in turn, each in every layout
@pytest.mark.parametrize(("A", "shape", "layout"), [
    (("f32", "f16", "i8")[(i + j) % 3], shape, layout)
    for i, shape in enumerate(AWKWARD) for j, layout in enumerate(("nt", "nn", "tt", "tn"))])
def test_awkward_shapes(A, shape, layout):
    exact(*shape, ARCH="gfx942", A=A, LAYOUT=layout)


@pytest.mark.parametrize("waves", [(64, 32, 32, 32), (128, 64, 64, 32), (32, 128, 32, 64), (128, 128, 64, 64)])
def test_other_tiles(waves):
    cta_m, cta_n, warp_m, warp_n = waves
    for layout in ("nt", "tn"):
        report = exact(130, 132, 40, ARCH="gfx942", A="f16", LAYOUT=layout, CTA_K=32, CTA_M=cta_m, CTA_N=cta_n,
                       WARP_M=warp_m, WARP_N=warp_n)
        without_conflicts(report)


@pytest.mark.parametrize("tile", [(32, 64, 32, 32), (64, 32, 32, 32), (256, 128, 128, 64), (128, 256, 64, 128)])
@pytest.mark.parametrize("A", ["f32", "f16", "i8"])
def test_tiles_with_k_strided_have_no_conflicts_either(A, tile):
    cta_m, cta_n, warp_m, warp_n = tile
    for row in (32, 64, 128):
        report = exact(cta_m, cta_n, 2 * row * 8 // bits(A), ARCH="gfx942", A=A, LAYOUT="tn", CTA_K=row * 8 // bits(A),
                       CTA_M=cta_m, CTA_N=cta_n, WARP_M=warp_m, WARP_N=warp_n)
        without_conflicts(report)


@pytest.mark.parametrize("A", ["f64", "f32", "f16", "i8"])
@pytest.mark.parametrize(("alpha", "beta"), [(3, 0), (1, 1), (-2, 5), (0, 2)])
def test_alpha_and_beta(A, alpha, beta):
    exact(66, 70, 75, ARCH="gfx942", A=A, alpha=alpha, beta=beta)


@pytest.mark.parametrize("out", ["f16", "bf16"])
@pytest.mark.parametrize("beta", [0, 2])
def test_narrow_results_are_rounded_to_nearest(out, beta):
    for n in (30, 31):  # two and one at a time
        exact(33, n, 300, ARCH="gfx942", A="bf16", OUT=out, alpha=3, beta=beta)


@pytest.mark.parametrize("arch", EIGHT)
@pytest.mark.parametrize("out", ["e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "i8", "u8", "i16", "u16"])
@pytest.mark.parametrize("beta", [0, 2])
def test_results_of_8_bits_and_of_fewer_than_the_sums(arch, out, beta):
    """Of floats the nearest, nan or inf beyond the largest; of integers the lowest bits."""
    A = "i8" if out[0] in "iu" else EIGHT[arch][0]
    for n, alpha in ((36, 1), (31, 97)):  # four and one at a time; with 97 much is too large
        exact(33, n, 65, ARCH=arch, A=A, OUT=out, alpha=alpha, beta=beta)


@pytest.mark.parametrize("parts", [2, 3, 5])
@pytest.mark.parametrize("A", ["f64", "f16", "i8"])
def test_split_k(A, parts):
    for k in (300, 5):  # of 5 there is one tile: parts have nothing to do
        exact(66, 70, k, ARCH="gfx942", A=A, CTA_K={"f64": 8, "i8": 64}.get(A, 32), SPLIT_K=parts, alpha=3, beta=2)


# ---- straight into LDS


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize(("A", "k"), [("f16", 8), ("f16", 72), ("f16", 320), ("e4m3fn", 304), ("f32", 64), ("f64", 50)])
def test_direct_copies(A, k, stages):
    report = exact(66, 70, k, ARCH="gfx950", A=A, DIRECT=True, STAGES=stages)
    without_conflicts(report)


def test_a_format_that_the_chip_does_not_have():
    for arch, A in (("gfx950", "xf32"), ("gfx950", "e4m3fnuz"), ("gfx942", "e4m3fn")):
        with pytest.raises(ValueError, match=f"{arch} has no matrix instruction for {A} by {A} in tiles of 32 x 32"):
            emit_mfma_gemm(ARCH=arch, A=A)


# ---- block-scaled operands


def scaled(m: int, n: int, k: int, A: str, B: str | None = None, **options: Any) -> Result:
    """Of whole numbers that every format has, times powers of two that differ from block to block."""
    return simulated(emit_scaled_mfma_gemm, m, n, k, A=A, B=B or A, VECTOR_C=min(4, n & -n), target=target("gfx950"),
                     **SMALL | {"CTA_K": 128} | options)


def exactly_scaled(*args: Any, **options: Any) -> Any:
    found = scaled(*args, **options)
    np.testing.assert_array_equal(found.c, found.wanted)
    return found.report


@pytest.mark.parametrize("B", MX)
@pytest.mark.parametrize("A", MX)
def test_every_pair_of_scaled_formats(A, B):
    for MFMA in (16, 32) if A <= B else (32,):
        report = exactly_scaled(66, 70, 2 * 128 + 40, A, B, MFMA=MFMA)
        assert reads(report).conflicts == 0


@pytest.mark.parametrize("shape", [(1, 1, 1), (66, 70, 75), (65, 64, 33), (31, 97, 7), (2, 130, 257)])
@pytest.mark.parametrize("A", ["e4m3fn", "e2m3", "e2m1"])
def test_awkward_scaled_shapes(A, shape):
    exactly_scaled(*shape, A)


@pytest.mark.parametrize("A", ["e5m2", "e3m2", "e2m1"])
def test_scaled_products_in_deeper_tiles_by_parts_with_alpha_and_beta(A):
    exactly_scaled(66, 70, 500, A, CTA_K=256, SPLIT_K=2, alpha=-2, beta=3)


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize(("A", "B"), [("e2m1", "e2m1"), ("e4m3fn", "e2m1"), ("e2m3", "e3m2"), ("e4m3fn", "e2m3")])
def test_direct_copies_of_scaled_operands(A, B, stages):
    for MFMA in (16, 32):
        assert reads(exactly_scaled(66, 70, 704, A, B, DIRECT=True, STAGES=stages, MFMA=MFMA)).conflicts == 0


@pytest.mark.parametrize(("A", "B", "options"), [("e2m1", "e2m1", {"CTA_K": 256}), ("e2m3", "e3m2", {"CTA_K": 256}),
                                                 ("e4m3fn", "e2m1", {"STAGES": 3}),
                                                 ("e2m1", "e5m2", {"CTA_M": 128, "WARP_M": 64, "WARP_N": 64}),
                                                 ("e4m3fn", "e4m3fn", {"SPLIT_K": 2, "beta": 2})])
@pytest.mark.parametrize("MFMA", [16, 32])
def test_scales_that_come_straight_into_lds(A, B, options, MFMA):
    for m, n, k in ((130, 70, 768), (66, 164, 128)):
        report = exactly_scaled(m, n, k, A, B, DIRECT=True, DIRECT_SCALES=True, MFMA=MFMA, **options)
        assert reads(report).conflicts == 0


# ---- planted bugs

LONG = (66, 72, 320)


@pytest.mark.parametrize("direct", [False, True])
def test_a_missing_barrier_is_a_race(monkeypatch, direct):
    options: dict[str, Any] = {"ARCH": "gfx950", "A": "f16", "DIRECT": direct}
    exact(*LONG, **options)
    monkeypatch.setattr(Kernel, "barrier", lambda self: None)
    with pytest.raises(Fault):
        product(*LONG, **options)


@pytest.mark.parametrize("stages", [2, 3])
def test_a_wait_that_lets_too_many_copies_go_on_is_found(monkeypatch, stages):
    wait = Kernel.lds_wait
    monkeypatch.setattr(Kernel, "lds_wait", lambda self, pending=0: wait(self, pending + 4))
    with pytest.raises(Fault):
        product(*LONG, ARCH="gfx950", A="f16", DIRECT=True, STAGES=stages)


@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_writing_other_places_than_those_that_are_read_is_found(monkeypatch, layout):
    lds_address = lds_tile.LdsTile.lds_address
    monkeypatch.setattr(lds_tile.LdsTile, "lds_address", lambda self, smem, row, byte:
                        lds_address(self, smem, row, byte ^ (16 if self.EXTENT == 128 else 0)))
    assert differs(product(128, 64, 64, ARCH="gfx942", A="f16", LAYOUT=layout, CTA_M=128))  # A's k are exchanged


def test_without_a_swizzle_reads_conflict(monkeypatch):
    monkeypatch.setattr(lds_tile, "swizzle", lambda row, PIECES, K_STRIDED: row * 0)
    assert reads(exact(64, 64, 64, ARCH="gfx942", A="f16")).conflicts > 0


def test_rows_beyond_the_matrix_are_not_read(monkeypatch):
    """Without the clamp to the last row they are: accesses outside of A."""
    minimum = Kernel.min
    monkeypatch.setattr(Kernel, "min", lambda self, x, y: x if "operand.py" in _caller() else minimum(self, x, y))
    with pytest.raises(Fault):
        product(33, 64, 64, ARCH="gfx942", A="f16")


def _caller() -> str:
    import sys

    return sys._getframe(2).f_code.co_filename


def test_a_wrong_byte_of_scales_is_found(monkeypatch):
    scale = gemm.WaveProducts.scale

    def wrong(self: Any, step: int) -> tuple[int, int]:
        word, byte = scale(self, step)
        return word, byte ^ 2

    monkeypatch.setattr(gemm.WaveProducts, "scale", wrong)
    assert differs(scaled(64, 64, 256, "e2m1"))


def test_upper_bytes_of_other_rows_are_found(monkeypatch):
    addresses = lds_tile.UpperBytes.lane_addresses
    monkeypatch.setattr(lds_tile.UpperBytes, "lane_addresses",
                        lambda self, first, lane, ROWS, GROUPS: addresses(self, first, lane ^ 1, ROWS, GROUPS))
    assert differs(scaled(64, 64, 256, "e2m3", DIRECT=True))


def test_upper_bytes_without_a_swizzle_conflict_in_tiles_of_16_rows(monkeypatch):
    for module in (lds_tile, operand):
        monkeypatch.setattr(module, "swizzled_row", lambda row, block: row)
    assert reads(exactly_scaled(64, 64, 256, "e2m3", DIRECT=True, MFMA=32)).conflicts == 0
    assert reads(exactly_scaled(64, 64, 256, "e2m3", DIRECT=True, MFMA=16)).conflicts > 0


def test_a_scale_of_another_row_is_found(monkeypatch):
    addresses = scales.ScaleTile.lane_addresses
    monkeypatch.setattr(scales.ScaleTile, "lane_addresses", lambda self, first, lane: addresses(self, first, lane ^ 4))
    assert differs(scaled(64, 64, 256, "e2m1", DIRECT=True, DIRECT_SCALES=True))


def test_the_scales_of_another_tile_are_found(monkeypatch):
    monkeypatch.setattr(scales.Scales, "release_tile", lambda self: None)
    with suppress(Fault, ValueError):
        assert differs(scaled(64, 64, 256, "e2m1"))
