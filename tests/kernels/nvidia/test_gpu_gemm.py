"""GEMMs on CUDA cores: exact on integers in the simulator for any sizes, without bank conflicts, without spills."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.helpers.gemms import exact
from tests.helpers.gpu_kernels import emit_gemv, emit_simt_gemm
from tilewright import simulator
from tilewright.compiler import llvm, ptxas
from tilewright.ir import Kernel, i32
from tilewright.kernels.nvidia.result import lane_grid
from tilewright.kernels.nvidia.simt_gemm import serpentine
from tilewright.plans.gemv_rules import WARPS as GEMV_WARPS
from tilewright.targets import target

pytestmark = pytest.mark.sampled

SMALL = {"CTA_M": 64, "CTA_N": 64, "CTA_K": 8, "WARP_M": 32, "WARP_N": 32, "THREAD_M": 8, "THREAD_N": 4}
REGISTERS = {"ASYNC": False, "STAGES": 2}
LAYOUTS = ["nn", "nt", "tn", "tt"]


def multiply(m, n, k, **options):
    return exact(emit_simt_gemm, m, n, k, **SMALL | {"VECTOR": 1} | options)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("copies", [{"STAGES": 3}, REGISTERS], ids=["async", "registers"])
def test_layouts_by_single_elements(layout, copies):
    multiply(67, 70, 21, alpha=2.0, beta=-3.0, pad=3, LAYOUT=layout, **copies)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("copies", [{"STAGES": 4}, REGISTERS], ids=["async", "registers"])
@pytest.mark.parametrize("transpose", [True, False])
def test_layouts_by_vectors(layout, copies, transpose):
    multiply(68, 132, 36, pad=4, LAYOUT=layout, VECTOR=4, TRANSPOSE=transpose, **copies)


@pytest.mark.parametrize("size", [(1, 1, 1), (2, 3, 5), (64, 64, 8), (65, 1, 9), (1, 65, 16), (64, 64, 0), (3, 2, 40)])
def test_awkward_sizes(size):
    multiply(*size)
    multiply(*size, alpha=2.0, beta=1.0, LAYOUT="tt", **REGISTERS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "tile",
    [
        {"CTA_M": 64, "CTA_N": 112, "WARP_M": 32, "WARP_N": 112, "THREAD_M": 8, "THREAD_N": 14, "VECTOR": 2},
        {"CTA_M": 96, "CTA_N": 48, "WARP_M": 48, "WARP_N": 48, "THREAD_M": 12, "THREAD_N": 6, "VECTOR": 2},
        {"CTA_M": 64, "CTA_N": 64, "CTA_K": 12, "WARP_M": 32, "WARP_N": 32, "THREAD_M": 8, "THREAD_N": 4},
        {"CTA_M": 16, "CTA_N": 128, "CTA_K": 32, "WARP_M": 16, "WARP_N": 32, "THREAD_M": 4, "THREAD_N": 4},
        {"CTA_M": 128, "CTA_N": 16, "WARP_M": 32, "WARP_N": 16, "THREAD_M": 4, "THREAD_N": 4},
    ],
    ids=lambda tile: f"{tile['CTA_M']}x{tile['CTA_N']}x{tile.get('CTA_K', 8)}",
)
def test_tiles_that_are_no_powers_of_two(tile):
    multiply(130, 118, 34, **tile)
    multiply(66, 50, 18, alpha=-1.0, beta=2.0, LAYOUT="tt", ORDER="columns", **tile, **REGISTERS)
    multiply(66, 50, 18, LAYOUT="tn", **{**tile, "VECTOR": 1})


@pytest.mark.parametrize("parts", [2, 5])
def test_slices_of_k(parts):
    multiply(70, 66, 50, alpha=2.0, beta=1.0, SPLIT_K=parts)
    multiply(66, 64, 18, SLICES=2, SPLIT_K=parts, CTA_K=16, LAYOUT="tn")


@pytest.mark.parametrize("size", [(128, 192, 40), (190, 70, 9)])
def test_the_last_tiles_divided(size):
    multiply(*size, alpha=2.0, beta=1.0, pad=1, TAIL=True)


def test_f64():
    multiply(67, 65, 19, alpha=2.0, beta=-1.0, DTYPE="f64", LAYOUT="nt")
    multiply(66, 64, 18, DTYPE="f64", VECTOR=2, LAYOUT="tn", **REGISTERS)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("copies", [{"STAGES": 3}, REGISTERS], ids=["async", "registers"])
def test_no_bank_conflicts(layout, copies):
    for options in ({}, {"TRANSPOSE": False, "CTA_K": 32}, {"WARP_M": 16, "WARP_N": 64}):
        report = multiply(64, 64, 32, LAYOUT=layout, VECTOR=4, **copies, **options)
        tiles = report.of("tiles")
        assert tiles.moved == tiles.ideal


def test_sectors_are_whole():
    """Aligned operands: every sector of 32 bytes that is fetched or written is used, but 8-byte pieces of A's rows."""
    report = multiply(128, 128, 32, VECTOR=4, LAYOUT="tn")
    for name in "abc":
        assert report.of(name).moved == report.of(name).ideal


WARPS_OF_C = [{}, {"CTA_N": 128, "WARP_N": 64, "THREAD_N": 8}, {"CTA_N": 192, "WARP_N": 96, "THREAD_N": 12},
              {"DTYPE": "f64"}, {"LAYOUT": "tt", "TRANSPOSE": False, **REGISTERS}]


@pytest.mark.parametrize("warps", WARPS_OF_C, ids=str)
@pytest.mark.parametrize(("n", "pad"), [(70, 0), (129, 2), (128, 0), (64, 8)])
def test_single_elements_of_c_are_written_side_by_side(n, pad, warps):
    """A warp writes 32 elements of a row at once: no more sectors than the row has, but where two requests share one.
    In the order in which lanes have them, four or two each, of rows apart, it would be several times as many."""
    m, item = 67, 8 if warps.get("DTYPE") == "f64" else 4
    report = multiply(m, n, 9, beta=2.0, pad=pad, **warps)
    start = np.arange(m) * (n + pad) * item                             # bytes; C begins with a sector
    sectors = ((start + n * item - 1) // 32 - start // 32 + 1).sum()
    requests = m * -(-n // 32)
    for verb in ("load", "store"):
        c = report.of("c", verb)
        assert (c.requests, c.elements) == (requests, m * n)
        assert sectors <= c.moved <= sectors + (requests - m if (n + pad) * item % 32 else 0)


def test_every_pair_once():
    for order in ("rows", "columns"):
        pairs = list(serpentine(6, 4, order))
        assert sorted(pairs) == [(i, j) for i in range(6) for j in range(4)]
        assert all(i == x or j == y for (i, j), (x, y) in itertools.pairwise(pairs))


@pytest.mark.parametrize("lanes", [(1, 32), (2, 16), (4, 8), (8, 4), (16, 2), (32, 1)])
def test_lanes_are_a_grid(lanes):
    from tilewright.ir import ptr

    k = Kernel("grid_of_lanes", threads=32, out=ptr(i32))
    row, column = lane_grid(k.thread[0], *lanes)
    k.args[0][k.thread[0]] = row * 100 + column
    found = np.zeros(32, np.int32)
    simulator.run(k.function, found)
    assert sorted(found) == [100 * i + j for i in range(lanes[0]) for j in range(lanes[1])]


PRODUCTION = [
    {"CTA_N": 256, "CTA_K": 8, "WARP_M": 64, "WARP_N": 64, "THREAD_N": 16, "ORDER": "columns", **REGISTERS},
    {"CTA_M": 256, "CTA_K": 8, "WARP_M": 64, "WARP_N": 64, "THREAD_M": 16, **REGISTERS},
    {"CTA_N": 192, "WARP_N": 96, "THREAD_N": 12, "ORDER": "columns"},
    {"CTA_M": 64, "CTA_N": 128, "CTA_K": 32, "SLICES": 2},
    {"CTA_M": 64, "CTA_N": 128, "SPLIT_K": 4},
    {"DTYPE": "f64", "CTA_M": 64, "CTA_N": 64, "WARP_N": 32, "THREAD_N": 4},
]


@pytest.mark.parametrize("options", PRODUCTION, ids=str)
@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
def test_no_spills(options, name):
    vector = 2 if options.get("DTYPE") == "f64" else 4
    function = emit_simt_gemm(**{"LAYOUT": "nn", "VECTOR": vector, **options})
    _, usage = ptxas.assemble(llvm.assembly(function, target(name)), name)
    assert usage[function.name].spill_stores == usage[function.name].stack == 0
    assert usage[function.name].registers <= function.max_registers


# ---- one row, one column


def vector_times_matrix(size, k, layout, column, lanes=32, **options):
    m, n = (size, 1) if column else (1, size)
    along_k = layout[0] == "n" if column else layout[1] == "t"
    extent = options.get("WARPS", GEMV_WARPS) if along_k else lanes * options.get("VECTOR", 1)
    return exact(emit_gemv, m, n, k, LAYOUT=layout, COLUMN=column, EXTENT=extent, **{"VECTOR": 1} | options)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("column", [False, True])
def test_gemv(layout, column):
    vector_times_matrix(37, 301, layout, column, alpha=2.0, beta=-3.0, pad=3)
    vector_times_matrix(1, 1, layout, column)
    vector_times_matrix(5, 0, layout, column)
    vector_times_matrix(132, 404, layout, column, VECTOR=4, SPLIT_K=3, pad=4)
    vector_times_matrix(66, 1032, layout, column, VECTOR=2, SPLIT_K=2, alpha=-1.0, beta=1.0, DTYPE="f64", lanes=16)
    vector_times_matrix(84, 700, layout, column, VECTOR=4, pad=4, lanes=10, WARPS=10)


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_gemv_reads_the_matrix_once(layout):
    report = vector_times_matrix(256, 512, layout, column=False, VECTOR=4)
    b = report.of("b")
    assert b.moved == b.ideal == 256 * 512 * 4 // 32
