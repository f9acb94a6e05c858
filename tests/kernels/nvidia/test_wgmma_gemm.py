"""The persistent GEMM by wgmma: exact on whole numbers in the simulator, no spills and no waits that ptxas adds."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.assembled import assembled
from tests.helpers.gemms import bits, simulated
from tests.helpers.gpu_kernels import emit_wgmma_gemm
from tilewright import simulator
from tilewright.atoms.fragment import ROUNDED, truncated
from tilewright.atoms.wgmma import Wgmma
from tilewright.compiler.manifest import manifest
from tilewright.expressions.function import Aux, Epilogue
from tilewright.expressions.tracing import trace
from tilewright.formats import get
from tilewright.ir import Kernel
from tilewright.ir.ops.pipelines import Mbarriers
from tilewright.kernels.nvidia.wgmma_products import Products, Stages, Turns
from tilewright.kernels.nvidia.wgmma_tiles import Tiles
from tilewright.simulator import Fault
from tilewright.targets import target

pytestmark = pytest.mark.sampled

SMALL = {"CTA_M": 128, "CTA_N": 64, "CTA_K": 64, "STAGES": 2}
PINGPONG = {"PINGPONG": True, "CTA_M": 64}


def planes(x, count, format):
    """x, f32, as a sum of matrices: [..., count, rows, columns], rows at multiples of 16 bytes."""
    terms, even = [], 16 // get(format).dtype.itemsize
    for _ in range(count):
        terms.append(truncated(x) if format == "f32" else x.astype(get(format).dtype))
        x = x - terms[-1].astype(np.float32)
    padded = [*np.zeros(x.ndim, int), -x.shape[-1] % even]
    return np.pad(np.stack(terms, -3), [(0, n) for n in padded])[..., :x.shape[-1]]


def run(m=200, n=150, k=136, A="bf16", B=None, OUT="f32", clusters=2, batch=(), whole=True, division=None, **options):
    """The report; the product is right, of whole numbers exactly. `division`: what DIVIDED takes."""
    options = SMALL | options
    options.setdefault("COPIED", options["CTA_N"] % 64 == 0)
    grid = clusters * math.prod(options.get(f"CLUSTER_{x}", 1) for x in "MNK")

    def shared(function):
        places = workspace(m, n, k, division, batch, function, options) if division else []
        return dict(zip(("workspace", "counters", "whole", "share", "apart"), places))
    c, wanted, report, size = simulated(emit_wgmma_gemm, m, n, k, A=A, B=B or A, OUT=OUT, batch=batch, whole=whole,
                                        grid=grid, more=shared, DIVIDED=bool(division), **options)
    bound = 0 if whole else k * 2.0**-24 * size + get(OUT).eps / 2 * abs(wanted)
    assert (abs(c - wanted) <= bound).all(), "Arrays are not equal"
    return report


def workspace(m, n, k, division, batch, function, options):
    """The arguments of DIVIDED, of which nothing more than the shares and tiles need may be used."""
    whole, share, apart = division
    ctas = options.get("CLUSTER_M", 1) * options.get("CLUSTER_N", 1)
    rows, columns = (options[f"CTA_{x}"] * options.get(f"CLUSTER_{x}", 1) for x in "MN")
    over = -(-m // rows) * -(-n // columns) * math.prod(batch) - whole
    places, warps = over + -(-over*apart // share), 4 * (1 if options.get("PINGPONG") else options.get("WARPGROUPS", 2))
    T = get(str(dict(function.params)["workspace"].type.element)).dtype
    sums = np.full(places * ctas * options["CTA_M"] * options["CTA_N"], -99, T)
    return [sums, np.zeros(over * ctas * warps, np.int32), whole, share, apart]


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_layouts(layout):
    run(LAYOUT=layout, CLUSTER_M=2)


@pytest.mark.parametrize(("formats", "options"), [
    (("f16", "f16", "f16", "f32"), {"LAYOUT": "tn", "alpha": 2, "beta": -1}),
    (("bf16", "bf16", "bf16", "f32"), {"LAYOUT": "nn", "VECTOR_C": 2, "n": 70}),
    (("e4m3fn", "e5m2", "f32", "f32"), {"CTA_K": 128, "k": 144}),
    (("i8", "u8", "i32", "i32"), {"CTA_K": 128, "k": 256, "alpha": 3, "beta": 2}),
    (("f16", "f16", "f16", "f16"), {"LAYOUT": "nn", "alpha": 2, "beta": -1}),
    (("e5m2", "e5m2", "f32", "f16"), {"CTA_K": 128, "VECTOR_C": 2, "n": 66, "COPIED": False}),
    (("tf32", "tf32", "f32", "f32"), {"CTA_K": 32, "beta": 1}),
])
def test_formats(formats, options):
    A, B, OUT, SUMS = formats
    run(130, A=A, B=B, OUT=OUT, SUMS=SUMS, **{"n": 67, "k": 72} | options)


@pytest.mark.parametrize("options", [
    {"CTA_M": 192, "CTA_N": 192, "WARPGROUPS": 3, "OUT": "bf16", "m": 200, "n": 230},
    {"CTA_M": 256, "CTA_N": 160, "WARPGROUPS": 2, "m": 260, "n": 170},
])
def test_large_tiles_store_c_by_one_buffer(options):
    run(clusters=1, COPIED=True, **{"k": 72} | options)


STRIDED = {"A": "tf32", "CTA_K": 32, "COPIED": False, "k": 104}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [
    {"LAYOUT": "nn", "SWAP": True, "CTA_N": 128, "CTA_M": 64, "WARPGROUPS": 1, "VECTOR_C": 4, "n": 152, "STAGES": 3},
    {"LAYOUT": "nn", "SWAP": True, "CTA_N": 256, "CTA_M": 32, "n": 150, "alpha": 2, "beta": -1},
    {"LAYOUT": "nn", "SWAP": True, "CTA_N": 128, "CTA_M": 32, "PINGPONG": True, "CLUSTER_M": 2, "k": 40},
    {"LAYOUT": "tt", "CTA_M": 128, "WARPGROUPS": 1, "VECTOR_C": 2, "CLUSTER_N": 2, "m": 140},
])
def test_tf32_with_rows_contiguous(options):
    """Of which the threads read what the instructions multiply: without bank conflicts."""
    report = run(**{**STRIDED, **options})
    assert not report.of("b_smem" if options.get("SWAP") else "a_smem", "load", "shared").conflicts


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (128, 64, 64), (129, 65, 65), (257, 67, 333)])
def test_sizes(m, n, k):
    run(m, n, k, CLUSTER_M=2)
    run(m, n, k, STAGES=3, clusters=1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [
    {"CLUSTER_N": 2}, {"CLUSTER_M": 2, "CLUSTER_N": 2, "clusters": 1, "LAYOUT": "tn"},
    {"WARPGROUPS": 1, "GROUP_M": 1}, {"CTA_M": 64, "WARPGROUPS": 1, "clusters": 3}, {"CTA_K": 128, "CTA_N": 72},
    {"CTA_K": 32, "CTA_N": 96, "LAYOUT": "nn", "OUT": "bf16", "COPIED": True}, {"CTA_N": 48, "COPIED": True},
    {"CTA_N": 80, "OUT": "f16", "A": "f16", "COPIED": True},
    {"CTA_M": 192, "WARPGROUPS": 3}, {"COPIED": False, "VECTOR_C": 2}, {"COPIED": False, "beta": 2, "n": 151},
    {"OUT": "bf16", "beta": 2, "CTA_N": 128, "n": 151}, {"OUT": "f16", "A": "f16", "CTA_M": 256, "CTA_N": 64},
])
def test_tiles_clusters_and_warpgroups(options):
    run(200, k=200, **options)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [
    {"CTA_M": 64, "WARPGROUPS": 1, "CTA_N": 80, "CLUSTER_M": 4, "COPIED": True, "OUT": "bf16"},
    {"CTA_M": 40, "CTA_N": 64, "WARPGROUPS": 1, "CLUSTER_N": 4, "SWAP": True, "COPIED": False, "m": 75, "n": 500},
    {"CTA_M": 64, "CTA_N": 48, **PINGPONG, "CLUSTER_M": 4, "CLUSTER_N": 2, "clusters": 1, "COPIED": True, "m": 300},
    {"CTA_M": 104, "CTA_N": 128, "CLUSTER_N": 2, "SWAP": True, "COPIED": False, "batch": (2,), "m": 104},
])
def test_clusters_that_share_tiles_in_turn(options):
    """Tiles whose parts would not be whole repetitions of the swizzle are brought by CTAs in turn."""
    run(**{"m": 200, "k": 333, "STAGES": 3, "LAYOUT": "nt"} | options)


ALTERNATING = {"A": "e4m3fn", "CTA_K": 128, "PROMOTE": 128, "CTA_M": 64, "WARPGROUPS": 1, "LAYOUT": "nt", "OUT": "bf16"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("k", [1, 128, 400, 512, 640, 1100])
@pytest.mark.parametrize("options", [{"CTA_N": 80, "COPIED": True}, {"CTA_N": 48, "COPIED": False, "OUT": "f32"}, {
    "CTA_N": 48, **PINGPONG, "WARPGROUPS": 2}, {"CTA_M": 72, "CTA_N": 64, "SWAP": True, "CLUSTER_N": 2}])
def test_sums_that_are_promoted_while_others_are_added_up(k, options):
    run(**ALTERNATING | {"k": k, "whole": False, "STAGES": 3, "m": 140} | options)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [{"CTA_N": 112, "CLUSTER_M": 4}, {"CTA_N": 48, **PINGPONG, "WARPGROUPS": 2}, {
    "CTA_M": 104, "CTA_N": 64, "SWAP": True, "VECTOR_C": 1, "COPIED": True}])
def test_the_assembler_waits_for_no_sums_that_are_promoted(options):
    text = clean(**ALTERNATING | {"B": "e4m3fn", "VECTOR_C": 2, "STAGES": 4} | options)
    assert text.count("wgmma.wait_group.sync.aligned 1;") == 3


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", [
    {"CTA_M": 40, "CTA_N": 64, "WARPGROUPS": 1, "m": 75}, {"CTA_M": 104, "CTA_N": 128, "alpha": 2, "beta": -1},
    {"CTA_M": 64, "CTA_N": 128, "WARPGROUPS": 1, "LAYOUT": "tn", "n": 299}, {"CTA_M": 8, "CTA_N": 192, "WARPGROUPS": 3},
    {"CTA_M": 56, "CTA_N": 64, "PINGPONG": True, "batch": (2,), "clusters": 3, "n": 299},
    {"A": "e4m3fn", "CTA_K": 128, "PROMOTE": 128, "CTA_M": 72, "CTA_N": 128, "CLUSTER_N": 2, "whole": False},
    {"A": "f16", "OUT": "f16", "SUMS": "f16", "CTA_M": 24, "CTA_N": 128},
])
def test_transposed_copies_of_c(options):
    """C of products with exchanged operands goes to shared memory without bank conflicts, each element once."""
    report = run(**{"m": 150, "k": 200, "OUT": "bf16", "LAYOUT": "nt", "SWAP": True, "COPIED": True} | options)
    stored = report.of("c_smem", "store", "shared")
    assert stored.moved == stored.ideal


@pytest.mark.parametrize("options", [
    {"A": "e4m3fn", "CTA_K": 128, "PROMOTE": 128, "CLUSTER_M": 2, "k": 400}, {"PROMOTE": 128, "k": 333, "STAGES": 3},
    {"A": "e4m3fn", "CTA_K": 128, "PROMOTE": 128, "PARTS": 2, "k": 400},
    {"PROMOTE": 64, "PARTS": 2, "OUT": "bf16", "beta": 1, "COPIED": True, "CTA_N": 96, "k": 100},
    {"PROMOTE": 192, "OUT": "bf16", "beta": 1, "k": 65}, {"PROMOTE": 256, "WARPGROUPS": 1, "COPIED": False, "k": 1},
])
def test_promoted_sums(options):
    run(150, 67, **options)


def test_promoted_sums_keep_their_bits(monkeypatch):
    """On tensor cores that keep 14 bits of a sum, as Hopper's do of fp8, sums of 4 instructions have 4 such errors;
    others have one for each instruction of k."""
    def truncating(atom, a, b, c):
        found = a @ b.T + c
        scale = np.exp2(np.floor(np.log2(found)) - 13)
        return np.floor(found / scale) * scale
    monkeypatch.setattr(Wgmma, "product", truncating)
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(0.5, 1, (rows, 1024)).astype(get("e4m3fn").dtype) for rows in (128, 64))
    exact, errors = a.astype(np.float64) @ b.astype(np.float64).T, {}
    for promote in (0, 128):
        c = np.full((128, 64), np.nan, np.float32)
        function = emit_wgmma_gemm("e4m3fn", "e4m3fn", "f32", **SMALL | {"CTA_K": 128, "PROMOTE": promote})
        simulator.run(function, 128, 64, 1024, 1.0, bits(a), bits(b), 0.0, c, 64, c, grid=(1, 1))
        errors[promote] = abs(c - exact).max() / exact.max() * 2**13
    assert errors[128] < 4 < errors[0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("terms", "format", "largest", "bound", "options"), [
    ((3, 3, 6), "bf16", (511, 511), 2.0**-22, {"CTA_K": 32, "PROMOTE": 64, "CLUSTER_M": 2, "STAGES": 3}),
    ((3, 3, 9), "bf16", (511, 511), None, {"LAYOUT": "tn", "PROMOTE": 128, "batch": (2,)}),
    ((2, 2, 3), "tf32", (15, 8191), 2.0**-19, {"CTA_K": 32, "PROMOTE": 32, "CTA_M": 64, "WARPGROUPS": 1}),
    ((2, 2, 3), "bf16", (15, 2047), None, {"LAYOUT": "tt"}),
    ((2, 2, 3), "bf16", (15, 2047), None, {"CTA_M": 72, "WARPGROUPS": 1, "SWAP": True, "COPIED": False}),
])
def test_terms(terms, format, largest, bound, options):
    """f32 by products of its terms: exact on whole numbers of several terms, and as near as its other terms are small.
    """
    m, n, k, options = 70, 36, 100, SMALL | options
    rng, layout, batch = np.random.default_rng(0), options.get("LAYOUT", "nt"), options.pop("batch", ())
    for whole in (True, False) if bound else (True,):
        a, b = ((rng.integers(-most, most, shape) if whole else rng.standard_normal(shape)).astype(np.float32)
                for most, shape in zip(largest, ((*batch, m, k), (*batch, k, n))))
        given = [planes(x if letter == "n" else np.ascontiguousarray(x.swapaxes(-1, -2)), count,
                        ROUNDED.get(format, format)) for x, letter, count in zip((a, b), layout, terms)]
        c = np.full((*batch, m, n + -n % 4), np.nan, np.float32)
        function = emit_wgmma_gemm(format, format, "f32", TERMS=terms, BATCH=bool(batch), **options)
        strides = [x.strides[0] // x.itemsize for x in (*given, c)]
        simulator.run(function, m, n, k, 1.0, *map(bits, given), 0.0, c, c.shape[-1],
                      *[c[..., :n]] * options.get("COPIED", True), *[*batch, *strides] * bool(batch),
                      grid=(options.get("CLUSTER_M", 1), 1))
        exact = a.astype(np.float64) @ b.astype(np.float64)
        magnitude = abs(a).astype(np.float64) @ abs(b)
        assert (abs(c[..., :n] - exact) <= (0 if whole else bound * magnitude)).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [
    {"CLUSTER_M": 2}, {"CLUSTER_N": 2, "LAYOUT": "tn", "k": 1, "clusters": 1}, {"m": 1, "n": 1, "STAGES": 3, "k": 64},
    {"CTA_M": 128, "STAGES": 3, "clusters": 1, "m": 300, "beta": 1}, {"WARPGROUPS": 3, "clusters": 1, "COPIED": False},
    {"PROMOTE": 64, "clusters": 1, "OUT": "bf16"}, {"PROMOTE": 128, "batch": (3,), "m": 70, "clusters": 1},
])
def test_warpgroups_with_tiles_of_their_own(options):
    """Tiles that are more or fewer than the warpgroups, stages that are more or fewer than the steps of a tile."""
    run(**{"m": 200, "n": 150, "k": 136} | PINGPONG | options)


@pytest.mark.parametrize("options", [
    {"CTA_M": 8, "m": 5}, {"LAYOUT": "tn", "CTA_M": 64, "m": 40, "alpha": 2, "beta": -1},
    {"LAYOUT": "nn", "CTA_N": 128, "WARPGROUPS": 2, "CTA_K": 128, "OUT": "bf16"},
    {"A": "i8", "B": "u8", "OUT": "i32", "SUMS": "i32", "CTA_K": 128, "beta": 2},
    {"A": "e4m3fn", "B": "e5m2", "CTA_K": 128, "PROMOTE": 128, "k": 300}, {"SUMS": "f16", "A": "f16", "OUT": "f16"},
    {"CTA_M": 32, "CLUSTER_N": 2, "CLUSTER_M": 2, "batch": (3,), "m": 20, "clusters": 1},
    {"CTA_M": 32, "WARPGROUPS": 2, "PINGPONG": True, "m": 20},
])
def test_rows_and_columns_in_each_others_place(options):
    """Few rows, as many as an instruction has columns; its 64 rows are columns of C."""
    run(**{"m": 13, "n": 150, "k": 136, "CTA_M": 16, "CTA_N": 64, "WARPGROUPS": 1, "COPIED": False, "SWAP": True}
        | options)


@pytest.mark.parametrize(("part", "name", "wrong", "message"), [
    (Turns, "end", lambda turns: turns.turn.arrive(turns.mine, by="warp", turns=2), "deadlock .*turn"),
    (Turns, "wait", lambda turns: None, "arrivals .*empty"),
    (Stages, "give_back", lambda ring, at: ring.empty.arrive(at % ring.COUNT, by="warp"), "deadlock .*empty"),
])
def test_turns_that_are_wrong(monkeypatch, part, name, wrong, message):
    """A warpgroup that hands on to itself, one that does not wait; stages that all warpgroups would have to give back.
    """
    monkeypatch.setattr(part, name, wrong)
    with pytest.raises(Fault, match=message):
        run(300, 64, 256, clusters=1, **PINGPONG)


ALONE = {"CTA_M": 64, "WARPGROUPS": 1}


@pytest.mark.parametrize(("sizes", "clusters", "division", "options"), [
    ((64, 64, 448), 4, (0, 2, 8), ALONE),                                       # a tile in four parts, the last short
    ((128, 60, 448), 5, (0, 3, 7), ALONE | {"CLUSTER_M": 1, "STAGES": 3}),      # shares of one tile and of the next
    ((300, 64, 192), 2, (2, 2, 3), ALONE | {"CLUSTER_M": 2, "beta": 1}),        # two clusters, three tiles
    ((200, 36, 320), 3, (3, 2, 6), ALONE | {"OUT": "bf16", "COPIED": False}),
    ((128, 64, 192), 3, (0, 1, 3), {"OUT": "bf16", "beta": 2}),
    ((128, 64, 256), 3, (0, 3, 4), PINGPONG | {"STAGES": 3}),
    ((64, 130, 256), 2, (2, 2, 4), PINGPONG),
    ((60, 60, 200), 4, (4, 1, 4), ALONE | {"batch": (5,), "LAYOUT": "tn"}),
    ((64, 64, 500), 2, (0, 2, 4), ALONE | {"A": "e5m2", "CTA_K": 128, "PROMOTE": 128}),
    ((64, 64, 500), 2, (0, 2, 4), ALONE | {"A": "i8", "OUT": "i32", "SUMS": "i32", "CTA_K": 128, "alpha": 2}),
    ((64, 64, 256), 2, (0, 2, 4), ALONE | {"A": "f16", "SUMS": "f16", "OUT": "f16"}),
])
def test_tiles_that_clusters_share_by_k(sizes, clusters, division, options):
    """Parts of one tile, shares that end in the next one, tiles that stay whole before them."""
    run(*sizes, clusters=clusters, division=division, **options)


@pytest.mark.parametrize(("sizes", "clusters", "options"), [
    ((64, 64, 448), 1, ALONE | {"CLUSTER_K": 2}),                                # CTAs with more steps than others
    ((64, 190, 320), 2, ALONE | {"CLUSTER_K": 4, "OUT": "bf16", "beta": 1, "COPIED": False}),
    ((100, 64, 192), 1, {"CLUSTER_K": 2, "OUT": "f16", "A": "f16", "SUMS": "f16"}),
    ((250, 64, 256), 1, PINGPONG | {"CLUSTER_K": 2}),
    ((64, 64, 600), 1, ALONE | {"A": "e5m2", "CTA_K": 64, "PROMOTE": 128, "CLUSTER_K": 4}),
    ((64, 60, 256), 1, ALONE | {"A": "i8", "OUT": "i32", "SUMS": "i32", "CTA_K": 128, "CLUSTER_K": 2, "batch": (2,)}),
    ((50, 128, 256), 1, {"CLUSTER_K": 2, "CTA_M": 32, "CTA_N": 128, "SWAP": True, "COPIED": False, "OUT": "bf16"}),
])
def test_clusters_along_k(sizes, clusters, options):
    """Each CTA of a cluster has its steps of k, and its share of the columns of the sums of all."""
    run(*sizes, clusters=clusters, **options)


@pytest.mark.parametrize(("part", "name", "wrong", "message"), [
    (Mbarriers, "wait", lambda right: lambda self, *args, cluster=False, **more: cluster or right(self, *args, **more),
     "race .*load of sums_smem|uninitialised"),
    (Mbarriers, "wait", lambda right: lambda self, *args, **more: self.name == "left" or right(self, *args, **more),
     "race .*store of sums_smem"),
    (Mbarriers, "arrive", lambda right: lambda self, *args, everywhere=False, **more: right(
        self, *args, everywhere=everywhere and self.name != "left", **more), "race .*store of sums_smem"),
    (Mbarriers, "arrive", lambda right: lambda self, *args, expect=None, **more: right(
        self, *args, expect=expect and expect // 2 if self.name == "came" else expect, **more), "race .*load"),
    (Mbarriers, "arrive", lambda right: lambda self, *args, expect=None, **more: right(
        self, *args, expect=expect and expect * 2 if self.name == "came" else expect, **more), "deadlock .*came"),
])
def test_exchanges_that_are_wrong(monkeypatch, part, name, wrong, message):
    """Sums that are read before they have come; places that are not waited for, or given back to the own CTA alone;
    fewer or more announced bytes than come."""
    monkeypatch.setattr(part, name, wrong(getattr(part, name)))
    with pytest.raises(Fault, match=message):
        run(64, 190, 256, clusters=1, CLUSTER_K=2, **ALONE)


def test_terms_in_shares():
    m, n, k, rng = 64, 64, 256, np.random.default_rng(0)
    a, b = (rng.integers(-511, 511, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    given = [planes(x, 3, "bf16") for x in (a, np.ascontiguousarray(b.T))]
    options = SMALL | ALONE | {"CTA_K": 32, "PROMOTE": 64}
    function = emit_wgmma_gemm("bf16", "bf16", "f32", TERMS=(3, 3, 6), DIVIDED=True, **options)
    c = np.full((m, n), np.nan, np.float32)
    simulator.run(function, m, n, k, 1.0, *map(bits, given), 0.0, c, n, c,
                  *workspace(m, n, k, (0, 3, 9), (), function, options), grid=(3, 1))
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64))


def test_parts_are_added_up_in_the_order_of_k():
    """To the last bit, whichever comes last."""
    rng, options, found = np.random.default_rng(1), SMALL | ALONE, {}
    a, b = (rng.standard_normal((64, 192)).astype(np.float16) for _ in range(2))
    for division in (None, (0, 1, 3)):
        function = emit_wgmma_gemm("f16", "f16", "f32", DIVIDED=bool(division), **options)
        for at in range(0, 192, 192 if division else 64):
            depth, c = 192 if division else 64, np.full((64, 64), np.nan, np.float32)
            shared = workspace(64, 64, 192, division, (), function, options) if division else []
            x, y = (np.ascontiguousarray(each[:, at:at + depth]) for each in (a, b))
            simulator.run(function, 64, 64, depth, 1.0, x, y, 0.0, c, 64, c, *shared, grid=(3, 1))
            found.setdefault(division, []).append(c)
    first, second, third = found[None]
    np.testing.assert_array_equal(found[0, 1, 3][0], first + second + third)


@pytest.mark.parametrize(("part", "name", "wrong", "message"), [
    (Tiles, "parts", lambda parts: replace(parts, parts=parts.parts + 1), "counters|Arrays are not equal|assert not"),
    (Tiles, "parts", lambda parts: replace(parts, parts=parts.parts.k.max(parts.parts - 1, 1)), "race|not equal"),
    (Tiles, "parts", lambda parts: replace(parts, part=parts.parts - 1 - parts.part), "not equal"),
    (Kernel, "atomic_add", lambda right: lambda k, at, x, order: right(k, at, x, "monotonic"), "race .*of workspace"),
])
def test_shares_that_are_wrong(monkeypatch, part, name, wrong, message):
    """One arrival too many, or too few; parts in the opposite order; sums that others need not see."""
    right = getattr(part, name)
    monkeypatch.setattr(part, name, wrong(right) if part is Kernel else lambda *args: wrong(right(*args)))
    with pytest.raises((Fault, AssertionError), match=message):
        test_parts_are_added_up_in_the_order_of_k()


def test_batch():
    run(70, 60, 72, batch=(5,), CLUSTER_M=2, LAYOUT="tn", beta=1)
    run(70, 61, 72, batch=(3,), LAYOUT="nn", COPIED=False)


def test_parameters_are_where_the_driver_has_them():
    """As cuFuncGetParamInfo said of this kernel on an H200."""
    found = manifest(emit_wgmma_gemm(OUT="f32", STAGES=2), target("sm_90a"))["arguments"]
    assert [(p["offset"], p["size"]) for p in found] == [
        (0, 4), (4, 4), (8, 4), (12, 4), (48, 128), (176, 128), (304, 4), (312, 8), (320, 8), (368, 128)]


def test_random_numbers():
    run(150, 100, 300, whole=False, CLUSTER_M=2)
    run(150, 100, 300, OUT="bf16", whole=False)
    run(150, 100, 100, A="tf32", CTA_K=32, whole=False)


@pytest.mark.parametrize("copied", [True, False])
def test_c_is_stored_through_the_epilogue(copied):
    """An epilogue, which must see each element's row and column: here it replaces what would be stored."""
    expression = trace(lambda acc, i, j: i + j, {"acc": "float", "i": "float", "j": "float"})
    text = Epilogue(expression, (Aux("i", "f32", "column"), Aux("j", "f32", "row")), ("-",)).text
    a, b = (np.zeros((rows, 64), get("bf16").dtype) for rows in (140, 72))
    c = np.full((140, 72), np.nan, np.float32)
    rows, columns = 1000*np.arange(140, dtype="f4"), np.arange(72, dtype="f4")
    function = emit_wgmma_gemm(OUT="f32", VECTOR_C=2, COPIED=copied, EPILOGUE=text, **SMALL)
    simulator.run(function, 140, 72, 64, 1.0, a, b, 0.0, c, 72, *[c] * copied, rows, 1, columns, grid=(2, 1))
    np.testing.assert_array_equal(c, np.add.outer(1000 * np.arange(140), np.arange(72)))


@pytest.mark.parametrize(("part", "name", "message"), [
    (Kernel, "fence_async", "race .*load of c_smem"), (Kernel, "bulk_wait", "race .*store of c_smem"),
    (Kernel, "wgmma_fence", "unfenced"), (Mbarriers, "arrive", "race .*store of [ab]_smem"),
    (Products, "wait", "in flight"), (Products, "clear", "Arrays are not equal"),
])
def test_what_the_simulator_finds_when_it_is_left_out(monkeypatch, part, name, message):
    """A fence, a wait for copies or for products; stages that are given back to the own CTA alone, not to the whole
    cluster; sums of one tile of C that go on in the next."""
    arrive = Mbarriers.arrive

    def own(self, stage=0, by="thread", expect=None, everywhere=False, turns=1):
        arrive(self, stage, by, expect)
    monkeypatch.setattr(part, name, own if part is Mbarriers else lambda *args, **options: None)
    with pytest.raises(AssertionError if name == "clear" else Fault, match=message):
        run(600, 64, 256, CLUSTER_M=2, clusters=1, PROMOTE=128)


def test_what_is_moved():
    """A tile of B is read once for the CTAs of a cluster, and one of A by each."""
    report = run(256, 128, 256, CLUSTER_M=2, clusters=1)
    tiles, steps = 2, 4
    assert report.of("a", "load").bytes == tiles * steps * 256 * 64 * 2
    assert report.of("b", "load").bytes == tiles * steps * 64 * 64 * 2
    assert report.of("a_smem", "store").bytes + report.of("b_smem", "store").bytes == tiles * 2 * steps * 192 * 64 * 2
    assert report.of("c", "store").bytes == 256 * 128 * 4


def clean(**options):
    """The PTX of a kernel without spills, of whose products the assembler waits for none by itself."""
    text, said = assembled(emit_wgmma_gemm(**options))
    assert not re.search(r"C75\d\d|serialized|warning", said), said
    assert "0 bytes spill stores, 0 bytes spill loads" in said
    return text


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [
    {"A": "e4m3fn", "B": "e5m2", "CTA_N": 192, "CTA_K": 128, "PROMOTE": 128},
    {"A": "f16", "B": "f16", "SUMS": "f16", "OUT": "f16", "CTA_M": 256, "STAGES": 3},
    {"TERMS": (3, 3, 6), "OUT": "f32", "CTA_N": 128, "CTA_K": 32, "PROMOTE": 128},
    {"PINGPONG": True, "CTA_N": 192, "DIVIDED": True},
])
def test_registers_suffice(options):
    clean(CLUSTER_M=2, VECTOR_C=2, **options)


@pytest.mark.parametrize("options", [{"OUT": "bf16", "CTA_N": 128, "beta": 1}, {"OUT": "f32"}, {
    "OUT": "bf16", "CTA_N": 32, "n": 32}, {"A": "e5m2", "OUT": "e5m2", "CTA_K": 128, "CTA_N": 128, "alpha": 0}])
def test_c_is_written_to_shared_memory_without_bank_conflicts(options):
    options = {"n": 128, "COPIED": True} | options
    traffic = run(128, k=128, **options).of("c_smem", "store")
    assert traffic.conflicts == 0
    assert traffic.bytes == 128 * options["n"] * get(options["OUT"]).dtype.itemsize


@pytest.mark.parametrize(("m", "n", "layout"), [(128, 256, "nt"), (256, 128, "nn")])
def test_machine_code(m, n, layout):
    """No spills, no reason for ptxas to wait after every product (C7510 to C7519), and in the main loop nothing but
    products, waits, and arrivals."""
    text = clean(LAYOUT=layout, CTA_M=m, CTA_N=n, CLUSTER_M=2, VECTOR_C=2)
    assert len(re.findall(r"cvt\.rn\.bf16x2", text)) == 4 * len(re.findall(r"stmatrix\.sync", text)) == 128
    assert "st.shared" not in text
    assert text.count("shfl.sync.idx") == 1                 # the warp's number, in a uniform register
    wait = text.index("wgmma.wait_group.sync.aligned 1")
    loop = text[text[:wait].rindex("wgmma.fence"):wait]
    assert len(re.findall(r"wgmma\.mma_async", loop)) == 4 * m // 128
    whole = text[:text.index("wgmma.wait_group.sync.aligned 0")]
    assert not re.search(r"ld\.(shared|global)", whole)
    assert "setmaxnreg.inc.sync.aligned.u32 232" in text
    assert "setmaxnreg.dec.sync.aligned.u32 40" in text


@pytest.mark.parametrize(("options", "message"), [
    ({"A": "i8", "B": "i8", "OUT": "i32", "LAYOUT": "nn", "CTA_K": 128}, "only numbers of 16 bits"),
    ({"CTA_N": 264}, "n must be one of"), ({"A": "bf16", "B": "f16"}, "no products of bf16 and f16"),
    ({"SUMS": "f16"}, "products of bf16 are added up in f32, not in f16"),
    ({"A": "tf32", "B": "tf32", "LAYOUT": "nn", "CTA_K": 32}, "only numbers of 16 bits"),
])
def test_what_cannot_be(options, message):
    """The atoms' own refusals; those of plans are tests/plans/test_wgmma_plans.py's."""
    with pytest.raises(ValueError, match=message):
        emit_wgmma_gemm(**options)
