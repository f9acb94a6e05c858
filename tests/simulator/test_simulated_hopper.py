"""A GEMM of Hopper's instructions in the simulator: a warp that loads tiles by TMA, a warpgroup that multiplies them by
wgmma. It is right, it assembles without a warning, and each mistake that one can make in it is found."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from tests.helpers.assembled import assembled
from tilewright import simulator
from tilewright.atoms.wgmma import SharedMatrix, Wgmma
from tilewright.ir import Kernel, TensorMap, bf16, f32, i8, i32, ptr
from tilewright.simulator import Fault

TILE, STAGES = 64, 2                # of m, n and k; a row of a tile has the 128 bytes of the swizzle
BYTES = TILE * TILE * 2             # of a tile of A or of B


def gemm(warpgroups=1, majors=("k", "k"), parity=0, arrivals=None, fence=True, proxy=True, swizzle=128, early=False,
         expect=0, wait_store=True):
    """C[m, n] = A @ B in bf16 with sums in f32, a tile of C for each warpgroup, one above the other for a CTA's. A is
    [m, k] and B [n, k], or [k, m] and [k, n] where the major is "mn". The keywords from `parity` on plant mistakes;
    `expect` adds to the bytes that are announced.

    Roles
        math    warps 0 to 3 (or 7): multiply the tiles of a stage, give the stage back, store C
        loads   the last warp: one of its threads has tiles of A and B copied to the stages, ahead of math

    Pipelines
        full[stage]     the bytes of both tiles have come; one arrival, of loads, which announces them
        empty[stage]    nothing reads the stage any more; an arrival of each warp of math
    Before C is stored the threads of math meet, since one of them stores what all have written to shared memory.

    Timeline, with two stages
        loads   A0B0  A1B1  wait  A2B2  wait  A3B3 ...
        math          wait  0     wait  1+release 0   2+release 1 ...  wait, C -> shared memory -> tensor map

    Products of one step are still under way when those of the next begin: only the step before is waited for.
    """
    layouts = [SharedMatrix(swizzle, major, 8 * swizzle, 16 if major == "k" else BYTES) for major in majors]
    a_step, b_step = (32 if major == "k" else 16 * 128 for major in majors)         # bytes to the next 16 of k
    atom = Wgmma(TILE, a_layout=layouts[0], b_layout=layouts[1])
    tiles = TensorMap(bf16, (TILE, TILE), 128)
    k = Kernel("hopper_gemm", threads=128 * warpgroups + 32, a=tiles, b=tiles, c=TensorMap(f32, (TILE, TILE)),
               steps=i32)
    a, b, c, steps = k.args
    (column, row), t = k.block, k.thread[0]
    row, mine = row * warpgroups, t // 128                      # its first tile, and which one is this warpgroup's
    a_smem = k.smem("a_smem", (STAGES, warpgroups, BYTES), i8, 1024)
    b_smem = k.smem("b_smem", (STAGES, BYTES), i8, 1024)
    c_smem = k.smem("c_smem", (warpgroups * TILE, TILE), f32, 128)
    full, empty = k.mbarriers("full", STAGES), k.mbarriers("empty", STAGES)
    k.init_mbarriers()

    def multiply(acc, step, first):
        stage = step % STAGES
        full.wait(stage, step // STAGES % 2 ^ parity, sleep=True)
        if fence:
            k.wgmma_fence(acc)
        for p in range(TILE // atom.k):
            k.wgmma(atom, acc, a_smem.at(stage, mine, p * a_step), b_smem.at(stage, p * b_step), not first or p > 0)
        k.wgmma_commit()

    with k.role("math", warps=4 * warpgroups):
        acc = k.tile(1, atom.registers, f32)
        multiply(acc, k.constant(i32, 0), first=True)
        with k.loop(steps, start=1, unroll=False) as step:
            multiply(acc, step, first=False)
            if not early:
                k.wgmma_wait(1, acc)
            empty.arrive((step - 1) % STAGES, by="warp")
            if early:
                k.wgmma_wait(1, acc)
        k.wgmma_wait(0, acc)
        for e in range(0, atom.registers, 2):
            i, j = atom.sums(t % 32, e)
            k.store(c_smem.at(t // 32 * 16 + i, j), k.pack(acc[0, e], acc[0, e + 1]))
        if proxy:
            k.fence_async()
        k.role_barrier()
        with k.when(t % 128 == 0):
            k.tma_store(c, (column * TILE, (row + mine) * TILE), c_smem.at(mine * TILE, 0))
            k.bulk_commit()
            if wait_store:
                k.bulk_wait(0, read=True)
    with k.role("loads", warps=1), k.loop(steps, unroll=False) as step:
        stage = step % STAGES
        empty.wait(stage, step // STAGES % 2 ^ 1, sleep=True)
        full.arrive(stage, by="role", expect=(warpgroups + 1) * BYTES + expect)
        with k.when(k.elect()):
            moved = [(a, a_smem.at(stage, g, 0), majors[0], row + g) for g in range(warpgroups)]
            for map, smem, major, first in (*moved, (b, b_smem.at(stage, 0), majors[1], column)):
                at = step * TILE, first * TILE
                full.load(smem, map, at if major == "k" else at[::-1], stage)
    if arrivals is not None:
        empty.arrivals.constant = arrivals
    return k.function


def run(m=100, n=72, k=264, warpgroups=1, majors=("k", "k"), **options):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    c = np.full((m, n), np.nan, np.float32)
    grid = -(-n // TILE), -(-m // (TILE * warpgroups))
    given = [x if major == "k" else np.ascontiguousarray(x.T) for x, major in zip((a, b), majors)]
    report = simulator.run(gemm(warpgroups, majors, **options), *given, c, -(-k // TILE), grid=grid)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(c, exact, rtol=1e-5, atol=1e-4)
    return report


@pytest.mark.parametrize("k", [8, 64, 72, 128, 192, 264])
def test_products(k):
    run(k=k)


def test_a_tile_and_one_past_it():
    run(64, 64, 136)
    run(65, 68, 136)
    run(1, 4, 40)


@pytest.mark.parametrize("majors", [("k", "mn"), ("mn", "k"), ("mn", "mn")])
def test_layouts_and_warpgroups(majors):
    run(104, 72, 136, 1, majors)
    run(200, 72, 136, 2, majors)


def test_what_is_moved_and_counted():
    """Tiles of A and B come once for each CTA and step; a warpgroup reads both for its products."""
    report = run(128, 128, 256)
    tile, ctas, steps = TILE * TILE * 2, 4, 4
    assert report.of("a", "load").bytes == report.of("a_smem", "store").bytes == ctas * steps * tile
    assert report.of("a_smem", "load").bytes == report.of("b_smem", "load").bytes == ctas * steps * tile
    assert report.of("c", "store").bytes == report.of("c_smem", "load").bytes == ctas * TILE * TILE * 4
    assert report.flops == 2 * 128 * 128 * 256
    assert report.instructions["wgmma"] == ctas * steps * 4 * 4
    assert report.instructions["TMA"] == ctas * (2 * steps + 1)


@pytest.mark.parametrize(("warpgroups", "majors"), [(1, ("k", "k")), (2, ("mn", "mn"))])
def test_machine_code(warpgroups, majors):
    """No spills, and no reason for ptxas to wait after every product (warnings C7510 to C7519)."""
    text, said = assembled(gemm(warpgroups, majors))
    assert not re.search(r"C75\d\d|serialized|warning", said), said
    assert "0 bytes spill stores, 0 bytes spill loads" in said
    loop = text[:text.index("wgmma.wait_group.sync.aligned 1")].rindex("wgmma.fence")
    assert len(re.findall(r"wgmma\.mma_async", text[loop:text.index("wgmma.wait_group.sync.aligned 1")])) == 4


@pytest.mark.parametrize(("options", "message"), [
    ({"parity": 1}, r"(uninitialised|race) at test_simulated_hopper.py:\d+ .*load of [ab]_smem"),
    ({"arrivals": 1}, r"arrivals at test_simulated_hopper.py:\d+ .*empty\[0\] .* expects 1 arrivals in a phase"),
    ({"arrivals": 8}, r"deadlock at .*empty\[0\] of block \(0, 0\): 4 of 8 threads have arrived"),
    ({"fence": False}, r"unfenced at test_simulated_hopper.py:\d+ .*no k.wgmma_fence"),
    ({"proxy": False}, r"race at test_simulated_hopper.py:\d+ .*load of c_smem.*no k.fence_async\(\) follows"),
    ({"swizzle": 64}, r"swizzle at .*came by a map with a swizzle of 128 bytes, and is read with one of 64"),
    ({"early": True}, r"race at test_simulated_hopper.py:\d+ .*store of a_smem.*may still be reading it"),
    ({"expect": -BYTES}, r"race at .*load of b_smem.*a copy at test_simulated_hopper.py:\d+ .* is in flight"),
    ({"expect": -16}, r"deadlock .*16 bytes more than announced have arrived"),
    ({"expect": 16}, r"deadlock .*16 announced bytes have not arrived"),
    ({"wait_store": False}, r"in flight at test_simulated_hopper.py:\d+ .*ends while this copy reads c_smem"),
])
def test_mistakes(options, message):
    with pytest.raises(Fault, match=message):
        run(64, 64, 320, **options)


def shared_stage(meet, waits=0):
    """Two warpgroups multiply by one tile of B, which then the first overwrites. They meet at a barrier "before" the
    wait that ends the products, "after" it, or never (None); `waits` groups may be under way after it."""
    layout = SharedMatrix(128, "k", 1024, 16)
    atom = Wgmma(8, a_layout=layout, b_layout=layout)
    k = Kernel("shared_stage", threads=256, out=ptr(f32))
    out, t = k.args[0], k.thread[0]
    a, b = k.smem("a_smem", (TILE, TILE), bf16, 1024), k.smem("b_smem", (8, TILE), bf16, 1024)
    zero = k.constant(bf16, 0)
    with k.loop(TILE * TILE, start=t, step=256) as i:
        k.store(a.at(0, i), zero)
    with k.loop(8 * TILE, start=t, step=256) as i:
        k.store(b.at(0, i), zero)
    k.fence_async()
    k.barrier()
    acc = k.tile(1, atom.registers, f32)
    k.wgmma_fence(acc)
    k.wgmma(atom, acc, a.at(0, 0), b.at(0, 0), False)
    k.wgmma_commit()
    if meet == "before":
        k.barrier()
    k.wgmma_wait(waits, acc)
    if meet == "after":
        k.barrier()
    with k.when(t < 8):
        k.store(b.at(0, t), zero)
    if waits:
        k.wgmma_wait(0, acc)
    k.store(out + t, acc[0, 0])
    return k.function


@pytest.mark.parametrize(("meet", "waits", "right"), [
    ("after", 0, True), ("before", 0, False), (None, 0, False), ("after", 1, False)])
def test_products_read_until_a_wait(meet, waits, right):
    """What a barrier before the wait orders is where the products begin, not where they end."""
    function, out = shared_stage(meet, waits), np.ones(256, np.float32)
    if right:
        simulator.run(function, out, grid=1)
        assert (out == 0).all()
        return
    with pytest.raises(Fault, match=r"race at .*store of b_smem\[0\] .*a product .* may still be reading it"):
        simulator.run(function, out, grid=1)
