"""ldmatrix and stmatrix: which lane gets what, what is refused, what the simulator finds and counts; and their PTX."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import simulator, targets
from tilewright.compiler import gate, llvm, ptxas
from tilewright.ir import Kernel, bf16, f16, f32, f64, i16, i32, ptr, vec
from tilewright.ir.ops.nvidia import ROUND_PAIR, ROUND_TF32, ROUND_TF32_EVEN
from tilewright.simulator import Fault

ROW = 8                     # numbers of 16 bits
X = np.arange(4 * 8 * ROW, dtype=np.int16)


def emit(count=4, transposed=False, PITCH=ROW, barrier=True, shift=0, threads=32, store=False, some=False):
    """Matrices from x through shared memory (rows PITCH numbers apart) to y, [matrix, lane] of two numbers each;
    `store`: from y to x."""
    k = Kernel("matrices", threads=threads, x=ptr(i16), y=ptr(i32))
    x, y = k.args
    smem, t = k.smem("s", (4*8*PITCH + ROW,), i16, align=128), k.thread[0]
    lane = t % 32
    at = smem + lane*PITCH + shift
    if store:
        k.stmatrix(at, [y[lane + 32*r] for r in range(count)], transposed)
        k.barrier()
        with k.when(t < 8*count):
            k.store(x + lane*ROW, k.load(smem + lane*PITCH, vec(i16, ROW)))
        return k.function
    with k.when(t >= threads - 32):                         # the last warp writes
        k.store(smem + lane*PITCH, k.load(x + lane*ROW, vec(i16, ROW)))
    if barrier:
        k.barrier()
    with k.when(t < (31 if some else 32)):
        for r, value in enumerate(k.ldmatrix(at, count, transposed)):
            y[t + 32*r] = value
    return k.function


def expected(count, transposed):
    rows = X.reshape(4, 8, ROW)[:count]
    return np.ascontiguousarray(rows.swapaxes(1, 2) if transposed else rows).view(np.int32).reshape(count, 32)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_each_lane_gets_its_part_of_a_row_or_column(count, transposed):
    y = np.zeros((count, 32), np.int32)
    report = simulator.run(emit(count, transposed), X, y)
    np.testing.assert_array_equal(y, expected(count, transposed))
    assert report.instructions["ldmatrix"] == 1
    assert report.of(space="shared", verb="load").bytes == count * 8 * 16


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_storing_is_the_other_way(count, transposed):
    x = np.zeros_like(X)
    report = simulator.run(emit(count, transposed, store=True), x, expected(count, transposed))
    np.testing.assert_array_equal(x[: count*8*ROW], X[: count*8*ROW])
    assert report.instructions["stmatrix"] == 1
    assert report.of(space="shared", verb="store").moved == count


def test_bank_conflicts_are_counted():
    """Eight rows of a matrix go together: 16 bytes apart they find all banks, 32 bytes apart half of them, 128 one."""
    for pitch, passes in ((8, 4), (16, 8), (64, 32), (72, 4)):
        report = simulator.run(emit(PITCH=pitch), X, np.zeros((4, 32), np.int32))
        assert report.of(space="shared", verb="load").moved == passes, pitch


def test_planted_mistakes_are_found():
    y = np.zeros((4, 32), np.int32)
    with pytest.raises(Fault, match=r"misaligned.*load of s\[2\].*16-byte aligned"):
        simulator.run(emit(shift=4), X, y)
    with pytest.raises(Fault, match=r"out of bounds"):
        simulator.run(emit(shift=2*ROW), X, y)
    with pytest.raises(Fault, match=r"uninitialised"):
        simulator.run(emit(shift=ROW), X, y)
    with pytest.raises(Fault, match=r"race.*written.*nothing orders the two"):
        simulator.run(emit(barrier=False, threads=64), X, y)
    with pytest.raises(Fault, match=r"divergent.*ldmatrix4 needs all lanes of a warp"):
        simulator.run(emit(some=True), X, y)


def test_rows_of_matrices_that_are_not_loaded_do_not_count():
    """Addresses of lanes from 8 * count on may point anywhere."""
    k = Kernel("matrices", threads=32, y=ptr(i32))
    smem, lane = k.smem("s", (8, ROW), i16), k.thread[0]
    with k.when(lane < 8):
        k.store(smem.at(lane, 0), k.broadcast(k.cast(lane, i16), ROW))
    k.barrier()
    y, = k.args
    y[lane] = k.ldmatrix(smem.at(lane, 0), 1)[0]
    found = np.zeros(32, np.int32)
    simulator.run(k.function, found)
    np.testing.assert_array_equal(found, np.arange(32) // 4 * 0x10001)


def test_operands_are_checked():
    k = Kernel("k", threads=32, x=ptr(i16))
    with pytest.raises(TypeError, match="in shared memory, not at a global i16"):
        k.ldmatrix(k.args[0], 4)
    smem = k.smem("s", (256,), i16)
    with pytest.raises(ValueError, match="moves 1, 2 or 4 matrices of 8 x 8, not 3"):
        k.ldmatrix(smem, 3)
    with pytest.raises(ValueError, match="not 0"):
        k.stmatrix(smem, [])
    with pytest.raises(TypeError, match="round_tf32 takes an f32, not i32"):
        k.round_tf32(k.thread[0])
    with pytest.raises(TypeError, match="round_pair makes f16 or bf16 of two f32, not f64 of f32"):
        k.round_pair(k.constant(f32, 1.0), f64)


def test_tf32_is_rounded_to_nearest_with_halves_away_from_zero():
    patterns = np.array([0x3F800FFF, 0x3F801000, 0xBF801000, 0x3F803000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001,
                         0xFFFFFFFF, 0x00001000, 0x80000001], np.uint32)
    wanted = np.array([0x3F800000, 0x3F802000, 0xBF802000, 0x3F804000, 0x7F800000, 0x7F800000, 0xFF800000, 0x7FFFFFFF,
                       0x7FFFFFFF, 0x00002000, 0x80000000], np.uint32)
    np.testing.assert_array_equal(ROUND_TF32.numpy(i32, patterns.view(np.float32)).view(np.uint32), wanted)


def test_tf32_with_halves_to_even():
    x = np.array([1, 1 + 2**-11, 1 + 3 * 2**-11, -1 - 2**-11 - 2**-20, 3e-39, 2**127 * (2 - 2**-11), -np.inf],
                 np.float32)
    parts, exponents = np.frexp(x.astype(np.float64))
    with np.errstate(over="ignore"):
        wanted = np.ldexp(np.rint(np.ldexp(parts, 11)), exponents - 11).astype(np.float32)
    wanted[4] = np.rint(3e-39 / 2**-136) * 2**-136                          # a subnormal
    np.testing.assert_array_equal(ROUND_TF32_EVEN.numpy(i32, x).view(np.float32), wanted)
    nan = np.array([np.nan], np.float32)
    assert ROUND_TF32_EVEN.numpy(i32, nan).view(np.uint32) == 0x7FFFFFFF


def test_pairs_are_rounded_to_nearest_with_halves_to_even():
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1e-40, 1e38, 65519, 65520, -0.0, 2**-25, np.inf, np.nan], np.float32)
    for t in (f16, bf16):
        words = ROUND_PAIR[t].numpy(i32, np.stack([x, x[::-1]])).view(np.uint16).reshape(-1, 2)
        with np.errstate(over="ignore"):
            wanted = x.astype(t.numpy).view(np.uint16)
        wanted[-1] = 0x7FFF
        np.testing.assert_array_equal(words, np.stack([wanted, wanted[::-1]], 1))


def test_ptx_of_rounding_pairs():
    k = Kernel("pairs", threads=32, x=ptr(f32), y=ptr(i32))
    x, y = k.args
    for e, t in enumerate((f16, bf16)):
        y[e] = k.round_pair(k.pack(x[0], x[1]), t)
    text = llvm.assembly(k.function, targets.target("sm_80"))
    assert "cvt.rn.bf16x2.f32" in text
    assert "cvt.rn.f16x2.f32" in text
    assert any("no round_pair_f16 (bf16 or amd)" in why for why in gate.refusals(k.function, targets.target("sm_75")))


@pytest.mark.parametrize("arch", targets.names("gpu"))
def test_ptx(arch):
    target = targets.target(arch)
    for store in (False, True):
        function = emit(2, True, store=store)
        if store and arch != "sm_90a":
            assert any("no stmatrix2_transposed (stmatrix)" in why for why in gate.refusals(function, target))
            continue
        text = llvm.assembly(function, target)
        assert f"{'st' if store else 'ld'}matrix.sync.aligned.m8n8.x2.trans.shared.b16" in text
        ptxas.assemble(text, arch)


def test_ptx_of_rounding_to_tf32():
    k = Kernel("tf32", threads=32, x=ptr(f32), y=ptr(i32))
    k.args[1][0] = k.round_tf32(k.args[0][0])
    assert "cvt.rna.tf32.f32" in llvm.assembly(k.function, targets.target("sm_80"))
    assert any("no round_tf32 (tf32)" in why for why in gate.refusals(k.function, targets.target("sm_75")))
