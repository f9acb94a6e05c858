"""Few rows of bf16 by weights read where they lie, with AMX and by pairs: simulated everywhere, and the instructions of
each kernel."""
from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.api import fused
from tilewright.compiler import llvm
from tilewright.kernels.cpu import jobs, weight_blocks
from tilewright.kernels.cpu.jobs import Prepare
from tilewright.kernels.cpu.stream_tiles import emit_stream_tiles
from tilewright.kernels.cpu.weight_blocks import emit_decoded_pairs
from tilewright.kernels.cpu.weight_pairs import emit_plain_pairs
from tilewright.plans import few_rows, lowering
from tilewright.plans.choose import choose
from tilewright.rules import prologues, weights
from tilewright.rules.call import Call
from tilewright.runtime.cpu import preparation
from tilewright.simulator.machine import Machine
from tilewright.simulator.memory import AddressSpace

AMX = replace(tw.target("x86-avx512"), extensions=("amx-tile", "amx-bf16", "amx-int8")).extended
BF16 = ml_dtypes.bfloat16
RNG = np.random.default_rng(5)
GROUPS = Prepare("b:int s:float; float b; mul %0 s; -> %1", ("f32:n1:128",), "f32")
POWERS = Prepare("b:float s:float; mul b s; -> %0", ("e8m0:n1:32",), "f32")
TILED = *jobs.DOTS, *jobs.TILES
PLAIN = Prepare("b:float; -> b", (), "f32")


def operands(name, how, n, k):
    """Weights [n, k]: their elements, the numbers that they stand for, how they are decoded, what is beside them."""
    w = RNG.standard_normal((n, k), np.float32)
    if name == "bf16":
        elements = w.astype(BF16)
        return elements.view(np.int16), elements.astype(np.float64), "bf16", PLAIN, None
    q = tw.quantize(w, name, axis=-1, **how)
    call = weights.without(Call(np.zeros((1, k), BF16), q, trans_b=True))
    of = prologues.all_of(call, call.a, call.b, prologues.shared_out(call, call.operands or {}))["b"]
    of = of._replace(arrays=tuple(map(fused.readable, of.arrays)))
    return q.elements.view(np.int8), tw.dequantize(q, "f64"), of.prologue.source, preparation.recorded("b", of), of


def simulated(m, n, k, name, how=None, alpha=1.0, beta=0.0, parts=2, emit=weight_blocks.emit_tiles):
    """C and what it should be, the sizes of its terms, and the traffic."""
    elements, numbers, source, prepare, of = operands(name, how or {}, n, k)
    assert few_rows.in_blocks(source, few_rows.Aside.of_job(prepare.READ))
    x, memory = RNG.standard_normal((m, k)).astype(BF16), AddressSpace()
    c, words = RNG.standard_normal((m, n), np.float32), max(jobs.tile_words(k, m), m*jobs.row_pitch(k))
    before = c.astype(np.float64)
    at = {name: memory.address(array, name) for name, array in (
        ("a", elements), ("b", x.view(np.int16)), ("c", c), ("tiles", np.zeros(parts*words, np.int32)))}
    table = None if of is None else preparation.table(SimpleNamespace(address_of=memory.address), "b", of)
    fields = {"m": n, "k": k, "lda": elements.strides[0] // elements.itemsize, "ldb": k, "rsc": 1, "csc": n,
              "parts": parts, "tiles_step": words, **at, "a_beside": 0 if table is None else memory.address(table)}
    job = np.array([fields.get(name, 0) for name in TILED])
    job.view(np.float32)[[2*TILED.index("alpha"), 2*TILED.index("beta")]] = alpha, beta
    function = emit(AMX, m) if emit is emit_plain_pairs else emit(AMX, m, source, tuple(prepare))
    machine = Machine(function, memory, {}, None)
    for part in range(parts):
        machine.run_thread([job.view(np.int8), part])
    exact, sizes = x.astype(np.float64) @ numbers.T, np.abs(x.astype(np.float64)) @ np.abs(numbers).T
    return c, alpha*exact + beta*before, abs(alpha)*sizes + abs(beta*before), machine.report


FOUR, ZERO = {"group": 128}, {"group": 128, "zero_points": True}
CASES = [(5, 100, 70, "bf16", {}), (20, 70, 200, "bf16", {}), (64, 65, 33, "bf16", {}), (3, 70, 300, "i8", FOUR),
         (16, 64, 515, "i8", {}), (2, 70, 1037, "i4", {"group": 256}), (5, 70, 259, "u4", ZERO),
         (1, 70, 1120, "mxfp4", {}), (9, 66, 103, "mxfp4", {}), (2, 64, 259, "e2m1", {"group": 256})]
PAIRS = [(5, 9, 70, "bf16", {}), (13, 10, 165, "bf16", {}), (4, 10, 300, "i8", FOUR), (16, 5, 259, "u4", ZERO),
         (7, 6, 1037, "i4", {"group": 256}), (9, 6, 640, "mxfp4", {}), (6, 4, 203, "e2m1", FOUR)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("m", "n", "k", "name", "how"), CASES)
def test_values(m, n, k, name, how):
    """n and k that end within a tile, a step and a group; two threads, of which the last strip overlaps another's."""
    c, exact, sizes, _ = simulated(m, n, k, name, how)
    assert (np.abs(c - exact) <= (k/16 + 4) * 2.0**-24 * sizes).all()


@pytest.mark.parametrize(("m", "n", "k", "name", "how"), PAIRS)
def test_values_by_pairs(m, n, k, name, how):
    """Several columns at a time, and what is left of them; rows that are left, which another thread has, too."""
    c, exact, sizes, _ = simulated(m, n, k, name, how, emit=emit_plain_pairs if name == "bf16" else emit_decoded_pairs)
    assert (np.abs(c - exact) <= (k/16 + 8) * 2.0**-24 * sizes).all()


@pytest.mark.parametrize(("name", "emit"), [("bf16", weight_blocks.emit_tiles), ("bf16", emit_plain_pairs),
                                            ("i8", emit_decoded_pairs)])
def test_alpha_and_beta(name, emit):
    c, exact, sizes, _ = simulated(3, 70, 96, name, alpha=0.5, beta=-2.0, emit=emit)
    assert (np.abs(c - exact) <= 12 * 2.0**-24 * sizes).all()


@pytest.mark.parametrize(("model", "extensions", "by_rows", "m", "kernel"), [
    ("", AMX.extensions, True, 2, "amx_bf16"), ("", AMX.extensions, True, 1, "f32"),
    ("", AMX.extensions, False, 16, "amx_bf16"), ("", AMX.extensions, False, 2, "f32"), ("", (), True, 4, "f32"),
    ("AMD", ("avx512bf16",), True, 16, "bf16x2"), ("Intel", ("avx512bf16",), True, 16, ""),
    ("AMD", ("avx512bf16",), False, 4, "f32")])
def test_which_kernel_multiplies_bf16(model, extensions, by_rows, m, kernel):
    """By the instructions that a chip has, and not by pairs where f32 is faster; many rows are packed."""
    target = replace(tw.target("x86-avx512"), extensions=extensions, model=model)
    problem = tw.Gemm(m, 1024, 1024, "bf16", layout="nt" if by_rows else "nn")
    lowered = lowering.lower_problem(problem, target)
    assert few_rows.instruction(lowered.shape, lowered.target) == (kernel, False)
    assert choose(lowered.shape, lowered.target).word == kernel


def test_weights_are_read_once():
    """Each line of them by one load, and no more is stored than x as tiles, tiles of C and C."""
    n, k, m = 128, 256, 16
    *_, report = simulated(m, n, k, "bf16", parts=1)
    assert report.of("a", "load").bytes == n*k*2
    assert report.of("c", "store").bytes == m*n*4
    assert report.of("tiles", "store").bytes == m*k*2


@pytest.mark.parametrize(("source", "prepare", "per_tile"), [
    ("i4x2", GROUPS, {"vpermw": 16, "vpsravw": 16}), ("e2m1x2", POWERS, {"vpermw": 32, "vpsravw": 16, "vmulps": 16}),
    ("i8", GROUPS, {"vpmovsxbd": 32, "vcvtdq2ps": 32})])
def test_instructions_of_decoding(source, prepare, per_tile):
    """For each tile of weights, of which the loop has four and the end one: 16 rows of 32."""
    code = llvm.assembly(weight_blocks.emit_tiles(AMX, 1, source, tuple(prepare)), AMX)
    assert code.count("tdpbf16ps") == 5
    for name, count in per_tile.items():
        assert count*5 <= code.count(name) <= count*5 + 20, name


@pytest.mark.parametrize(("m", "n", "k", "parts", "beta"), [(5, 70, 133, 2, 0.0), (16, 1600, 64, 1, 0.0),
                                                            (40, 96, 70, 3, 1.0), (64, 33, 32, 1, 1.0)])
def test_rows_of_the_matrix_are_contiguous(m, n, k, parts, beta):
    """[k, n], of sizes that end within a tile, a pair and a chunk; each part of the matrix is read once."""
    x, w = RNG.standard_normal((m, k)).astype(BF16), RNG.standard_normal((k, n)).astype(BF16)
    memory, words, layout = AddressSpace(), jobs.tile_words(k, m), (*jobs.STREAM, *jobs.TILES)
    c = RNG.standard_normal((m, n), np.float32)
    before = c.astype(np.float64)
    at = {name: memory.address(array, name) for name, array in (
        ("a", x.view(np.int16)), ("b", w.view(np.int16)), ("c", c), ("tiles", np.zeros(parts*words, np.int32)))}
    fields = {"n": n, "k": k, "rsa": k, "csa": 1, "ldb": n, "ldc": n, "parts": parts, "tiles_step": words, **at}
    job = np.array([fields.get(name, 0) for name in layout])
    job.view(np.float32)[2*layout.index("beta")] = beta
    machine = Machine(emit_stream_tiles(AMX, m), memory, {}, None)
    for part in range(parts):
        machine.run_thread([job.view(np.int8), part])
    exact, sizes = (f(x.astype(np.float64)) @ f(w.astype(np.float64)) for f in (np.array, np.abs))
    assert (np.abs(c - exact - beta*before) <= (k/16 + 4) * 2.0**-24 * (sizes + np.abs(before))).all()
    assert machine.report.of("b", "load").bytes == k*n*2
