"""A whole SGEMM in the simulator, 128x128x8 with two buffers: its counts by hand, and that its barriers are needed."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import simulator
from tilewright.ir import Function, Kernel, f32, i32, ptr, vec
from tilewright.simulator import Fault

CTA, CTA_K, V, THREADS, WARP = 128, 8, 4, 256, 32


def sgemm(pad: int = V, barriers: int = 2, wide: int = CTA) -> Function:
    """C = A @ B, row-major, sizes multiples of the tile: 8 warps of 32x64, 4 x 8 lanes, 2x2 blocks of 4x4 a thread.

    A is transposed on its way into shared memory; `pad` floats per column keep those stores free of bank conflicts.
    """
    k = Kernel("sgemm", threads=THREADS, n=i32, k=i32, a=ptr(f32), b=ptr(f32), c=ptr(f32))
    n, depth, a, b, c = k.args
    a_gmem, b_gmem, c_gmem = a.view(depth, 1), b.view(n, 1), c.view(n, 1)
    a_smem = k.smem("a_smem", (2, CTA_K, CTA + pad), f32)
    b_smem = k.smem("b_smem", (2, CTA_K, CTA), f32)
    (t, _), (bx, by) = k.thread, k.block
    warp, lane = t // WARP, t % WARP
    i0, j0 = by * CTA, bx * wide
    i1, j1 = warp % 4 * 32 + lane // 8 * V, warp // 4 * 64 + lane % 8 * V
    rows, cols = (0, 16), (0, 32)
    a_i, a_p = t // 2, t % 2 * V
    b_p, b_j = t // 32, t % 32 * V

    def fetch(p):
        return (k.load(a_gmem.at(i0 + a_i, p + a_p), vec(f32, V)), k.load(b_gmem.at(p + b_p, j0 + b_j), vec(f32, V)))

    def stash(stage, a_reg, b_reg):
        for e in range(V):
            a_smem[stage, a_p + e, a_i] = a_reg[e]
        k.store(b_smem.at(stage, b_p, b_j), b_reg)

    def fragment(smem, stage, p, start, blocks):
        vectors = [k.load(smem.at(stage, p, start + block), vec(f32, V)) for block in blocks]
        return [v[e] for v in vectors for e in range(V)]

    acc = k.tile(8, 8, f32)
    stash(0, *fetch(0))
    if barriers > 0:
        k.barrier()
    with k.loop(depth, step=CTA_K) as p:
        stage = p // CTA_K % 2
        after = p + CTA_K
        ahead = fetch(k.select(after < depth, after, p))
        for q in range(CTA_K):
            a_reg, b_reg = fragment(a_smem, stage, q, i1, rows), fragment(b_smem, stage, q, j1, cols)
            for i in range(8):
                for j in range(8):
                    acc[i, j] = k.fma(a_reg[i], b_reg[j], acc[i, j])
        stash(1 - stage, *ahead)
        if barriers > 1:
            k.barrier()
    for i in range(8):
        for h in range(2):
            row = k.pack(*(acc[i, h * V + e] for e in range(V)))
            k.store(c_gmem.at(i0 + i1 + rows[i // V] + i % V, j0 + j1 + cols[h]), row)
    return k.function


def run(m=256, n=256, k=64, **options):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    c = np.zeros((m, n), np.float32)
    report = simulator.run(sgemm(**options), n, k, a, b, simulator.uninitialised(c), grid=(n // CTA, m // CTA))
    np.testing.assert_array_equal(c, a @ b)
    return report


def test_every_count_by_hand():
    m = n = 256
    k, tiles = 64, 8
    ctas, warps = 4, 4 * 8
    report = run(m, n, k)
    assert report.flops == 2 * m * n * k
    assert report.instructions["fma"] == warps * 64 * k
    assert report.instructions["barrier"] == warps * (1 + tiles)
    fetched = (tiles + 1) * ctas * CTA * CTA_K          # the last round fetches its own tile again
    for name in "ab":
        loads = report.of(name, "load")
        assert (loads.elements, loads.requests) == (fetched, (tiles + 1) * warps)
        assert loads.distinct == 256 * k * 4            # the whole matrix, once
        assert loads.moved == loads.ideal == fetched * 4 // 32      # a row of A's tile is just one sector
        smem = f"{name}_smem"
        assert report.of(smem, "store").elements == fetched
        assert report.of(smem, "load").elements == k * ctas * THREADS * 8
        assert report.of(smem, "load").requests == 2 * k * warps
        assert report.of(smem, "load").ideal <= report.of(smem, "load").moved
    stores = report.of("c", "store")
    assert (stores.elements, stores.distinct, stores.moved) == (m * n, 4 * m * n, m * n // 8)


def test_the_pad_takes_the_bank_conflicts_away():
    """Each lane stores 4 values of a column; where columns are 128 long, lanes of two columns meet in one bank."""
    padded, bare = (run(256, 128, 16, pad=pad).of("a_smem", "store") for pad in (V, 0))
    assert padded.requests == bare.requests
    assert (padded.moved, bare.moved) == (padded.requests, 2 * bare.requests)


@pytest.mark.parametrize("barriers", [0, 1])
def test_each_barrier_is_needed(barriers):
    with pytest.raises(Fault, match=r"(race|uninitialised) at test_simulated_gemm.py:\d+ in sgemm: .* of [ab]_smem"):
        run(128, 128, 16, barriers=barriers)


def test_ctas_that_overlap():
    with pytest.raises(Fault, match=r"race .*store of c\[\d+\] .*by block \(0, 0\) .*written .*by block \(1, 0\)"):
        run(128, 256, 8, wide=CTA - V)
