"""Bulk copies of tiles (TMA) in the simulator: what arrives where, of every shape; and every mistake one can make."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from tests.doubles import fake_arrays, fake_cuda
from tests.helpers.assembled import assembled
from tilewright import simulator
from tilewright.compiler import artefact, gate
from tilewright.ir import Kernel, TensorMap, bf16, f16, f32, i8, i32, i64, ptr
from tilewright.runtime.cuda import module as cuda
from tilewright.runtime.run import run
from tilewright.simulator import Fault
from tilewright.targets import target
from tilewright.targets.tensor_maps import Mapped, Tile, TiledMap


def swizzled(rows, span):
    """Bytes [n] as a swizzle of `span` bytes keeps them."""
    found = np.empty_like(rows)
    for piece in range(rows.size // 16):
        to = piece ^ (piece // 8 % (span // 16) if span else 0)
        found[to * 16:to * 16 + 16] = rows[piece * 16:piece * 16 + 16]
    return found


def loaded(t, at, align=None, expect=None, wait=True, shift=0, parity=0, size=None):
    """A tile comes to shared memory, and its bytes go to y. The keywords plant mistakes."""
    count = t.tile.bytes
    k = Kernel("loaded", threads=32, x=t, y=ptr(i8), **{f"c{d}": i32 for d in range(len(t.box))})
    x, y, *where = k.args
    s, full = k.smem_bytes("s", size or count, align or t.tile.align), k.mbarriers("full")
    k.init_mbarriers()
    k.prefetch_map(x)
    full.arrive(by="role", expect=count if expect is None else expect)
    with k.when(k.elect()):
        full.load(s + shift, x, where)
    if wait:
        full.wait(0, parity)
    with k.loop(count, start=k.thread[0], step=32) as i:
        y[i] = s[i]
    return k.function


def load(t, x, at, **options):
    y = np.zeros(t.tile.bytes, np.int8)
    report = simulator.run(loaded(t, at, **options), x, simulator.uninitialised(y), *at)
    return y.view(np.uint8), report


TILES = [
    (TensorMap(f32, (16,)), (100,), (32,)),
    (TensorMap(bf16, (64, 8), 128), (20, 72), (8, 4)),
    (TensorMap(f16, (32, 16), 64), (30, 40), (0, 0)),
    (TensorMap(i8, (32, 8, 3), 32), (5, 9, 48), (16, 1, 2)),
    (TensorMap(i32, (4, 3, 2, 5)), (6, 4, 5, 8), (4, 0, 1, 0)),
    (TensorMap(i64, (2, 3, 2, 2, 2)), (3, 4, 2, 5, 4), (2, 1, 0, 1, 1)),
    (TensorMap(f32, (8, 9, 4), 0, (1, 2, 3)), (7, 30, 16), (4, 3, 1)),
]


def expected(t, x, at):
    """By indexing, with zeros around the tensor."""
    steps = t.steps or (1,) * len(t.box)
    found = np.zeros(t.tile.extents[::-1], x.dtype)
    for index in np.ndindex(found.shape):
        place = tuple(c + i * step for c, i, step in zip(at[::-1], index, steps[::-1]))
        if all(0 <= p < extent for p, extent in zip(place, x.shape)):
            found[index] = x[place]
    return swizzled(found.view(np.uint8).ravel(), t.swizzle)


@pytest.mark.parametrize(("t", "shape", "at"), TILES, ids=lambda x: str(x).replace(" ", "_"))
def test_tiles_arrive(t, shape, at):
    """Inside of the tensor, over its edges on either side, and outside."""
    x = np.random.default_rng(0).integers(-100, 100, shape).astype(t.element.numpy)
    step = 16 // t.element.bytes
    for there in (at, (at[0] - step, *(c - 5 for c in at[1:])), tuple(c + b for c, b in zip(at, t.box)),
                  (512,) * len(at)):
        found, report = load(t, x, there)
        np.testing.assert_array_equal(found, expected(t, x, there))
        assert report.of("s", "store").bytes == t.tile.bytes
    assert report.of("x", "load").bytes == 0


@pytest.mark.parametrize("at", [(6, 4), (-1, 4), (13, 4)])
def test_tiles_begin_at_multiples_of_16_bytes_of_a_row(at):
    """An H100 stops at others with "illegal instruction"."""
    t, x = TensorMap(bf16, (64, 8), 128), np.ones((20, 72), ml_dtypes.bfloat16)
    with pytest.raises(Fault, match=f"the first coordinate of a tile must be a multiple of 16 bytes, not {at[0]} elem"):
        load(t, x, at)


def test_what_is_outside_can_be_nans():
    t, x = TensorMap(bf16, (16, 2)), np.ones((3, 24), ml_dtypes.bfloat16)
    found, _ = load(t, Mapped(TiledMap.from_array(t.tile, x, nan=True), x), (16, 2))
    np.testing.assert_array_equal(np.isnan(found.view(x.dtype).astype(float)).reshape(2, 16),
                                  [[False] * 8 + [True] * 8, [True] * 16])


def test_views_of_arrays():
    t, whole = TensorMap(f32, (8, 4)), np.arange(40 * 64, dtype=np.float32).reshape(40, 64)
    x = whole[2::3, 4:50]
    found, report = load(t, x, (40, 5))
    np.testing.assert_array_equal(found, expected(t, np.ascontiguousarray(x), (40, 5)))
    assert report.of("x", "load").bytes == 4 * 6 * 4
    assert report.of("x", "load").moved == 4


def test_the_spelling():
    text, _ = assembled(loaded(TILES[5][0], TILES[5][2]))
    assert re.search(r"\.param \.align 64 \.b8 loaded_param_0\[128\]", text)
    assert "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes" in text
    assert "fence.mbarrier_init.release.cluster" in text
    assert "prefetch.tensormap" in text
    assert "elect.sync" in text


# ---- mistakes in loads

T, X = TensorMap(bf16, (64, 8), 128), np.zeros((20, 72), ml_dtypes.bfloat16)


def faults(message, x=X, t=T, at=(0, 0), **options):
    with pytest.raises(Fault, match=message):
        load(t, x, at, **options)


def test_wrong_byte_counts():
    faults(r"deadlock .*full\[0\] of block \(0, 0\): 1 of 1 threads have arrived, 16 announced bytes have not arrived",
           expect=1040)
    faults("16 bytes more than announced have arrived", expect=1008)
    faults(r"arrivals at .*full\[0\] .* is to expect 1048576 bytes, and it counts to 1048575", expect=1 << 20)


def test_reading_too_early():
    faults(r"uninitialised|race at test_simulated_tma.py:\d+ .*load of s", wait=False)
    faults(r"(uninitialised|race) at test_simulated_tma.py:\d+ .*load of s\[0\]", parity=1)


def test_where_tiles_cannot_be():
    faults("misaligned .*s is aligned to 512 bytes, and a swizzle of 128 bytes repeats every 1024", align=512)
    faults("misaligned .*begins 16 bytes after a multiple of 1024 in s", shift=16, size=2048)
    faults(r"out of bounds .*store of s\[1008\].*it has 1008 bytes", size=1008)
    small = Mapped(TiledMap(T.tile, (72, 21), (144,)), X)
    faults(r"out of bounds .*load of x.*it has 2880 bytes", x=small, at=(0, 16))


@pytest.mark.parametrize(("arguments", "message"), [
    ((bf16, ()), "1 to 5 dimensions, not 0"), ((bf16, (257, 1)), "1 to 256 elements along each dimension"),
    ((bf16, (4,)), "a multiple of 16 bytes, not 8"),
    ((bf16, (64,), 64), "at most the 64 bytes of its swizzle, not 128"),
    ((bf16, (8,), 16), "a swizzle is of 0, 32, 64, 128 bytes, not 16"), ((bf16, (8, 8), 0, (1, 9)), "from 1 to 8"),
    ((bf16, (8, 8), 0, (2, 1)), "step of the contiguous dimension is 1, not 2"), ((i8, (0,)), "1 to 256"),
])
def test_tiles_that_no_device_copies(arguments, message):
    with pytest.raises(ValueError, match=message):
        TensorMap(*arguments)


@pytest.mark.parametrize(("described", "address", "message"), [
    (TiledMap(T.tile, (72, 20), (148,)), 0, "strides are multiples of 16 bytes below 2.40, not"),
    (TiledMap(T.tile, (72, 20), (144,)), 8, "begins at a multiple of 16 bytes, not at 0x8"),
    (TiledMap(T.tile, (0, 20), (144,)), 0, "1 to 2.32 elements"),
    (TiledMap(T.tile, (72,)), 0, "it has 2 dims and 1 strides"),
    (TiledMap(T.tile, (72, 20), (144,), l2=32), 0, "l2 is one of 0, 64, 128, 256 bytes"),
    (TiledMap(Tile("i8", (16,)), (72,), nan=True), 0, "i8 has no NaN"),
    (TiledMap(Tile("i8", (15,)), (72,)), 0, "a row of a tile has a multiple of 16 bytes"),
])
def test_tensors_that_no_device_maps(described, address, message):
    with pytest.raises(ValueError, match=message):
        described.check(address)


def test_arguments_that_are_no_maps():
    with pytest.raises(TypeError, match="x is a map of 64x8 bf16, swizzled by 128 bytes: it must be an array"):
        load(T, 3, (0, 0))
    with pytest.raises(ValueError, match="of an array of 2 dimensions and 2 bytes an element"):
        load(T, np.zeros((20, 72), np.float32), (0, 0))
    with pytest.raises(ValueError, match="strides are multiples of 16"):
        load(T, np.zeros((20, 71), np.float16), (0, 0))


def test_older_chips():
    k = loaded(T, (0, 0))
    assert "x is a map of 64x8 bf16, swizzled by 128 bytes, and sm_80 has no tensor maps" in "\n".join(
        gate.refusals(k, target("sm_80")))
    assert "is a map of 64x8 bf16, swizzled by 128 bytes, and neon is a CPU" in "\n".join(
        gate.refusals(k, target("neon")))


# ---- stores

def stored(t, add=False, fence=True, barrier=True, wait="all", swizzle=None, overwrite=False, rounds=1, commit=True,
           pending=0):
    """Warps write a tile of 0, 1, 2 ... to shared memory, and it is stored."""
    item = t.element.bytes
    k = Kernel("stored", threads=64, c=t, **{f"c{d}": i32 for d in range(len(t.box))})
    c, *where = k.args
    tile = k.smem_bytes("s", t.tile.bytes, t.tile.align).as_(t.element)
    numbers = t.tile.bytes // item

    def fill(first):
        with k.loop(numbers, start=k.thread[0], step=64) as i:
            byte = i * item
            span = t.swizzle // 16 if swizzle is None else swizzle
            piece = (byte // 16) ^ (byte // 128 % span if span else 0)
            tile[(piece * 16 + byte % 16) // item] = k.cast(i + first, t.element)
    for round in range(rounds):
        if round:
            with k.when(k.thread[0] == 0):
                k.bulk_wait(0, read=True)
            k.barrier()
        fill(round)
        if fence:
            k.fence_async()
        if barrier:
            k.barrier()
        with k.when(k.thread[0] == 0):
            k.tma_store(c, (*where[:-1], where[-1] + t.box[-1] * round), tile, add)
            if commit:
                k.bulk_commit()
    with k.when(k.thread[0] == 0):
        if wait == "read":
            k.bulk_wait(pending, read=True)
        elif wait:
            k.bulk_wait(pending)
    if overwrite:
        k.barrier()
        fill(5)
    return k.function


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(("t", "shape", "at"), [
    (TensorMap(f32, (32, 8), 128), (20, 40), (8, 4)), (TensorMap(bf16, (32, 4), 64), (7, 40), (16, 5)),
    (TensorMap(i32, (8, 2, 3)), (4, 5, 12), (8, -1, 2)), (TensorMap(f16, (64,)), (100,), (80,))],
    ids=lambda x: str(x).replace(" ", "_"))
def test_stores(t, shape, at, add):
    """What is outside is dropped, and what is beside stays."""
    c = np.random.default_rng(0).integers(-50, 50, shape).astype(t.element.numpy)
    exact = c.copy()
    tile = np.arange(t.tile.bytes // t.element.bytes).astype(c.dtype).reshape(t.tile.extents[::-1])
    for index in np.ndindex(tile.shape):
        place = tuple(x + i for x, i in zip(at[::-1], index))
        if all(0 <= p < extent for p, extent in zip(place, shape)):
            exact[place] = exact[place] + tile[index] if add else tile[index]
    report = simulator.run(stored(t, add), c, *at)
    np.testing.assert_array_equal(c, exact)
    assert report.of("s", "load").bytes == t.tile.bytes
    assert report.of("c").bytes == np.count_nonzero(expected(t, np.ones(shape, c.dtype), at).view(c.dtype)) * c.itemsize
    if t.element == bf16:       # no arithmetic in this version
        return
    text, _ = assembled(stored(t, add))
    assert f"cp.{'reduce.' * add}async.bulk.tensor.{len(at)}d.global.shared::cta{'.add' * add}.tile.bulk_group" in text


def store_faults(message, **options):
    with pytest.raises(Fault, match=message):
        simulator.run(stored(TensorMap(f32, (32, 8), 128), **options), np.zeros((20, 40), np.float32), 0, 0)


def test_mistakes_in_stores():
    store_faults(r"race at test_simulated_tma.py:\d+ .*load of s\[0\] .*written at .*no k.fence_async\(\) follows",
                 fence=False)
    store_faults(r"race at .*load of s.*nothing orders the two", barrier=False)
    store_faults(r"in flight at test_simulated_tma.py:\d+ .*ends while this copy reads s: no k.bulk_wait", wait="")
    store_faults("in flight .*ends while this copy reads s", commit=False)
    store_faults("in flight .*ends while this copy reads s", pending=1)
    store_faults(r"race at .*store of s\[0\].*still being read asynchronously by what was started at", wait="",
                 overwrite=True)


def test_a_tile_is_written_again_after_its_read():
    c = np.zeros((20, 40), np.float32)
    simulator.run(stored(TensorMap(f32, (32, 8), 128), rounds=2, wait="read"), c, 0, 0)
    for round in range(2):
        np.testing.assert_array_equal(c[8 * round:][:8, :32], np.arange(256).reshape(8, 32) + round)
    simulator.run(stored(TensorMap(f32, (32, 8), 128), wait="read", overwrite=True), c, 0, 0)


def test_reading_what_a_store_has_not_written_yet():
    def kernel(read):
        t = TensorMap(f32, (32, 1))
        k = Kernel("back", threads=32, c=t, y=ptr(f32))
        c, y = k.args
        s = k.smem("s", (32,), f32, align=128)
        s[k.thread[0]] = 1.0
        k.fence_async()
        k.barrier()
        with k.when(k.thread[0] == 0):
            k.tma_store(c, (0, 0), s)
            k.bulk_commit()
            k.bulk_wait(0, read)
        k.barrier()
        y[k.thread[0]] = y[k.thread[0]] + 1.0
        return k.function
    c = np.zeros((1, 32), np.float32)
    simulator.run(kernel(False), c, c.reshape(-1))
    np.testing.assert_array_equal(c, 2)
    with pytest.raises(Fault, match=r"race .*load of c\[0\].*a copy at .* is in flight"):
        simulator.run(kernel(True), c, c.reshape(-1))


def test_consecutive_bytes():
    k = Kernel("bytes", threads=32, y=ptr(f32), n=i32)
    y, n = k.args
    s = k.smem("s", (64,), f32, align=128)
    for half in range(2):
        s[k.thread[0] + 32 * half] = k.cast(k.thread[0], f32)
    k.fence_async()
    k.barrier()
    with k.when(k.elect()):
        k.bulk_store(y + 4, s + 4, n)
        k.bulk_commit()
        k.bulk_wait()
    y = np.full(64, -1, np.float32)
    report = simulator.run(k.function, y, 128)
    np.testing.assert_array_equal(y, np.r_[[-1] * 4, np.arange(64)[4:36] % 32, [-1] * 28])
    assert (report.of("y", "store").bytes, report.of("s", "load").bytes) == (128, 128)
    assert "cp.async.bulk.global.shared::cta.bulk_group" in assembled(k.function)[0]
    with pytest.raises(Fault, match="moves multiples of 16 bytes, not 24"):
        simulator.run(k.function, y, 24)
    with pytest.raises(Fault, match=r"out of bounds .*store of y"):
        simulator.run(k.function, y[:8].copy(), 128)


# ---- clusters

def multicast(meet=True, mask=3, listen=True, everywhere=True, stages=1):
    """CTA 0 of two brings tiles to both, and each copies its own to y."""
    t = TensorMap(f32, (32, 1))
    k = Kernel("multicast", threads=64, cluster=(2, 1, 1), x=t, y=ptr(f32))
    x, y = k.args
    s = k.smem("s", (32,), f32, align=128)
    full, empty = k.mbarriers("full"), k.mbarriers("empty")
    k.init_mbarriers()
    with k.role("producer", warps=1), k.loop(3) as i:
        empty.wait(0, i % 2 ^ 1)
        full.arrive(by="role", expect=128)
        with k.when((k.cluster_rank == 0) & (k.thread[0] == 0)):
            full.load(s, x, (0, i), ctas=mask)
    with k.role("consumer", warps=1), k.loop(3) as i:
        if listen:
            full.wait(0, i % 2)
            y[(k.block[0] * 3 + i) * 32 + k.thread[0] % 32] = s[k.thread[0] % 32]
        k.warp_barrier()
        empty.arrive(by="role", everywhere=everywhere)
    if meet:
        k.cluster_barrier()
    return k.function


def test_a_tile_for_a_cluster():
    x, y = np.arange(96, dtype=np.float32).reshape(3, 32), np.zeros(4 * 96, np.float32)
    report = simulator.run(multicast(), x, simulator.uninitialised(y), grid=(4, 1))
    np.testing.assert_array_equal(y.reshape(4, 3, 32), np.broadcast_to(x, (4, 3, 32)))
    assert report.of("x", "load").bytes == 2 * 3 * 128
    assert report.of("s", "store").bytes == 4 * 3 * 128
    assert report.of("s", "store", "cluster").bytes == 2 * 3 * 128
    text, _ = assembled(multicast())
    assert "complete_tx::bytes.multicast::cluster" in text
    assert "mbarrier.arrive.shared::cluster.b64" in text


@pytest.mark.parametrize(("options", "message"), [
    ({"everywhere": False}, "race .*store of s"), ({"mask": 5}, "there is no CTA 2 in a cluster of 2"),
    ({"mask": 1}, "deadlock .*128 announced bytes have not arrived"),
    ({"meet": False}, r"cluster .*may have ended"),
])
def test_mistakes_in_clusters(options, message):
    x, y = np.arange(96, dtype=np.float32).reshape(3, 32), np.zeros(4 * 96, np.float32)
    with pytest.raises(Fault, match=message):
        simulator.run(multicast(**options), x, simulator.uninitialised(y), grid=(4, 1))


# ---- what is recorded

def test_mistakes_in_recording():
    k = Kernel("mistaken", threads=32, x=T, y=ptr(f32), b=TensorMap(i8, (16,)))
    x, y, b = k.args
    s, full = k.smem("s", (512,), f32, 1024), k.mbarriers("full")
    k.init_mbarriers()
    for error, message, body in (
            (ValueError, "a map of 64x8 bf16.* has 2 coordinates, got 1", lambda: full.load(s, x, (0,))),
            (TypeError, "a TensorMap, not global f32", lambda: full.load(s, y, (0, 0))),
            (TypeError, "between global and shared memory, not global f32", lambda: k.tma_store(x, (0, 0), y)),
            (TypeError, "a copy adds f16, bf16, f32, i32, i64, not i8", lambda: k.tma_store(b, (0,), s, add=True)),
            (SyntaxError, "is for clusters", lambda: full.load(s, x, (0, 0), ctas=3)),
            (ValueError, "announced to the own CTA's", lambda: full.arrive(expect=8, everywhere=True)),
            (TypeError, "from shared to global memory", lambda: k.bulk_store(s, y, 16)),
            (ValueError, "pending must be", lambda: k.bulk_wait(-1)),
            (TypeError, "only a map of a tensor", lambda: k.prefetch_map(y)),
            (ValueError, "multiple of 8 from 24 to 256, not 20", lambda: k.registers(20, more=False))):
        with pytest.raises(error, match=message):
            body()


# ---- registers

def redistributed(math=232, loads=40, threads=384):
    k = Kernel("redistributed", threads=threads, x=ptr(f32))
    with k.role("math", warps=8):
        k.registers(math, more=True)
    with k.role("loads", warps=4):
        k.registers(loads, more=False)
    return k.function


def test_registers_are_handed_on():
    text, _ = assembled(redistributed())
    assert "setmaxnreg.inc.sync.aligned.u32 232" in text
    assert "setmaxnreg.dec.sync.aligned.u32 40" in text
    simulator.run(redistributed(), np.zeros(1, np.float32))
    with pytest.raises(Fault, match=r"deadlock .*240 registers a thread: no warpgroup gives up as many"):
        simulator.run(redistributed(math=240), np.zeros(1, np.float32))
    with pytest.raises(Fault, match="the threads have 168 registers, and would have fewer with 176"):
        simulator.run(redistributed(loads=176), np.zeros(1, np.float32))
    assert list(gate.refusals(redistributed(), target("sm_90a"))) == []
    assert list(gate.refusals(redistributed(math=240), target("sm_90a"))) == [
        "redistributed is launched with 384 threads of 168 registers, 64512, and its roles take 66560: math 256 x 240, "
        "loads 128 x 40"]


# ---- the driver

def test_maps_by_the_driver(monkeypatch):
    """Encoded, packed among a launch's arguments, and read back as what they stand for."""
    fake = fake_cuda.install(monkeypatch)
    t = TensorMap(f32, (8, 9, 4), 32, (1, 2, 3))
    x = np.random.default_rng(0).integers(-9, 9, (7, 30, 16)).astype(np.float32)
    y = np.zeros(t.tile.bytes, np.int8)
    code = artefact.compiled(loaded(t, (4, 3, 1)), target("sm_90a"))
    function = cuda.Module(code.image).function(code.manifest)
    assert [(p.offset, p.size) for p in function.parameters] == [(48, 128), (176, 8), (184, 4), (188, 4), (192, 4)]
    made = cuda.tensor_map(TiledMap.from_array(t.tile, x, l2=256), fake.array(x))
    cuda.Prepared(function, (1,), (made, fake.array(y), 4, 3, 1))()
    cuda.synchronize(cuda.device(), 0)
    np.testing.assert_array_equal(y.view(np.uint8), expected(t, x, (4, 3, 1)))
    with pytest.raises(ValueError, match="begins at a multiple of 16 bytes"):
        cuda.tensor_map(TiledMap.from_array(t.tile, x), fake.array(x) + 8)


def test_maps_of_arrays_on_a_gpu(monkeypatch):
    fake = fake_cuda.install(monkeypatch)
    fake_arrays.take_the_place_of_torch(monkeypatch, fake_arrays.torch(fake))
    t = TensorMap(f32, (8, 4))
    x = fake_arrays.Tensor(np.arange(96, dtype=np.float32).reshape(6, 16))
    y = fake_arrays.Tensor(np.zeros(128, np.int8))
    run(loaded(t, (8, 3)), x, y, 8, 3)
    for stream in list(fake.queues):
        fake.run(stream)
    np.testing.assert_array_equal(y.host.view(np.uint8), expected(t, x.host, (8, 3)))
    with pytest.raises(ValueError, match="is of an array of 2 dimensions"):
        run(loaded(t, (8, 3)), y, y, 8, 3)


def test_policies_of_l2_have_three_priorities():
    with pytest.raises(ValueError, match="priority must be evict_first, evict_last, evict_normal, not 'last'"):
        Kernel("policy", threads=32).l2_policy("last")
