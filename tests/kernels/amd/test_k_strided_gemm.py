"""Operands contiguous along m or n, copied straight into LDS and transposed by its reads: exact products of whole
numbers in the simulator, without conflicts; planted bugs."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.gpu_kernels import emit_mfma_gemm
from tests.helpers.mfma import BANKS, SMALL, bits, exact, product, without_conflicts
from tilewright.ir import Kernel
from tilewright.kernels.amd import k_strided
from tilewright.simulator import Fault

pytestmark = pytest.mark.sampled

FORMATS = ["f16", "bf16", "i8", "e4m3fn", "e5m2"]
LAYOUTS = ["nn", "tn", "tt"]


def arguments(m: int, n: int, k: int, A: str, LAYOUT: str, **options: Any) -> dict[str, Any]:
    """As many pieces of 16 bytes where a whole number of them is needed, as numbers elsewhere."""
    V = 128 // bits(A)
    deep = k * V if LAYOUT != "tn" else k
    sizes = (m * V if LAYOUT[0] == "t" else m, n * V if LAYOUT[1] == "n" else n, deep)
    return {"shape": sizes, "options": {"ARCH": "gfx950", "A": A, "LAYOUT": LAYOUT, "DIRECT": True, **options}}


def right(m: int, n: int, k: int, A: str, LAYOUT: str, **options: Any) -> None:
    case = arguments(m, n, k, A, LAYOUT, **options)
    without_conflicts(exact(*case["shape"], **case["options"]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("A", FORMATS)
def test_every_format_in_every_layout(A, layout):
    """In tiles of 32 x 32 and of 16 x 16, and rows of 64 and of 128 bytes along k."""
    for row, MFMA in ((128, 32), (64, 32), (128, 16), (64, 16)):
        if MFMA == 32 or layout == "tn":
            right(9, 5, 19, A, layout, MFMA=MFMA, CTA_K=row * 8 // bits(A))


@pytest.mark.parametrize("pair", [("e4m3fn", "e5m2"), ("e5m2", "e4m3fn")])
def test_two_formats(pair):
    A, B = pair
    for layout in LAYOUTS:
        right(5, 9, 10, A, layout, B=B)


@pytest.mark.parametrize("shape", [(1, 1, 1), (9, 8, 33), (8, 9, 7), (17, 3, 19), (5, 17, 8)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_awkward_sizes(layout, shape):
    right(*shape, "f16", layout)
    right(*shape, "i8", layout, MFMA=16)


@pytest.mark.parametrize("tile", [(32, 64, 32, 32), (64, 32, 32, 32), (256, 128, 128, 64), (128, 256, 64, 128)])
@pytest.mark.parametrize("A", ["f16", "i8"])
def test_other_tiles(A, tile):
    cta_m, cta_n, warp_m, warp_n = tile
    options = {"CTA_M": cta_m, "CTA_N": cta_n, "WARP_M": warp_m, "WARP_N": warp_n}
    right(9, 17, 75, A, "tn", **options)
    right(9, 17, 11, A, "nn", **options)


@pytest.mark.parametrize("A", ["f16", "i8"])
def test_no_conflicts_either_if_sixteen_lanes_go_together_over_32_banks(monkeypatch, A):
    """As reads of 8 bytes do on gfx942."""
    monkeypatch.delitem(BANKS, "gfx950")
    for MFMA in (32, 16):
        for side in (32, 64, 128, 256):
            warp = min(side, 128)
            right(5, 5, 20, A, "tn", MFMA=MFMA, CTA_M=side, CTA_N=side, WARP_M=warp, WARP_N=warp)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_three_tiles_in_lds_and_parts_of_k(layout):
    right(9, 9, 40, "f16", layout, STAGES=3, SPLIT_K=2)
    right(9, 9, 20, "i8", layout, STAGES=3, alpha=2, beta=3)


# ---- bugs


def wrong(A: str = "f16", **changes: Any) -> bool:
    case = arguments(9, 9, 300, A, "tn", **changes)
    found = product(*case["shape"], **case["options"])
    return not np.array_equal(found.c, found.wanted)


@pytest.mark.parametrize("A", ["f16", "i8"])
def test_another_order_of_lanes_is_found(monkeypatch, A):
    """As if sixteen lanes had the rows and columns that they read in exchanged places."""
    addresses = k_strided.KStridedOperand.lane_addresses

    def exchanged(self, first, lane, ROWS, STEP):
        N, inner = self.STEPS, lane % 16
        addresses(self, first, lane - inner + inner % N * (16 // N) + inner // N, ROWS, STEP)
    assert not wrong(A=A)
    monkeypatch.setattr(k_strided.KStridedOperand, "lane_addresses", exchanged)
    assert wrong(A=A)


@pytest.mark.parametrize("MFMA", [32, 16])
@pytest.mark.parametrize("A", ["f16", "i8"])
def test_every_bit_of_the_swizzle_is_needed(monkeypatch, A, MFMA):
    """Without any one of those that a half wave's rows differ in, its reads conflict, of one kind of tiles at least."""
    swizzle = k_strided.swizzle
    needed = (8, 4, 2, 1) if A == "i8" else (8, 4, 2)
    for missing in needed[:-1] if MFMA == 32 else needed:
        monkeypatch.setattr(k_strided, "swizzle", lambda *x, missing=missing: swizzle(*x) & (15 - missing))
        case = arguments(9, 9, 4, A, "tn", MFMA=MFMA, CTA_M=256 if A == "i8" else 128, CTA_N=128, WARP_M=128,
                         WARP_N=128)
        report = exact(*case["shape"], **case["options"])
        assert report.of("tiles", "load", "shared").conflicts > 0


def test_a_missing_barrier_is_a_race(monkeypatch):
    monkeypatch.setattr(Kernel, "barrier", lambda self: None)
    with pytest.raises(Fault) as fault:
        wrong()
    assert fault.value.kind == "race"


def test_a_wait_that_lets_too_many_copies_go_on_is_found(monkeypatch):
    wait = Kernel.lds_wait
    monkeypatch.setattr(Kernel, "lds_wait", lambda self, pending=0: wait(self, pending + 4))
    with pytest.raises(Fault, match="is in flight"):
        wrong()


def test_pieces_beyond_the_matrix_are_not_read(monkeypatch):
    minimum = Kernel.min

    def unless_in_the_operand(self: Any, x: Any, y: Any) -> Any:
        inside = any(frame.filename.endswith("k_strided.py") for frame in inspect.stack()[1:3])
        return x if inside else minimum(self, x, y)
    monkeypatch.setattr(Kernel, "min", unless_in_the_operand)
    with pytest.raises(Fault) as fault:
        wrong()
    assert fault.value.kind == "out of bounds"


def test_pieces_must_not_straddle_the_edge_of_the_matrix():
    """Why plans are refused whose m or n is not whole pieces: the last one would be that of other elements."""
    found = product(68, 64, 64, ARCH="gfx950", A="f16", LAYOUT="tt", DIRECT=True)
    assert not np.array_equal(found.c, found.wanted)


def test_what_cannot_be_transposed():
    for chip, format in (("gfx942", "f16"), ("gfx950", "f32")):
        with pytest.raises(ValueError, match=r"on gfx950 also m or n, for 8- and 16-bit elements"):
            tw.compile(tw.Gemm(256, 256, 256, format), chip, "mfma 64x64x32 wave=32x32 mfma=32 copy=lds stages=2")
    with pytest.raises(ValueError, match="no power of two"):
        emit_mfma_gemm(ARCH="gfx950", A="f16", LAYOUT="tt", DIRECT=True, CTA_K=64, **SMALL | {"CTA_M": 96})
