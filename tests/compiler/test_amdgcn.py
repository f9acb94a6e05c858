"""What is recorded becomes the amdgcn that is meant, on both chips, and does in the simulator what NumPy does."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.helpers.amd_kernels import emit_transpose, emit_vector_add
from tests.helpers.processes import printed
from tilewright import simulator
from tilewright.compiler import amd, gate
from tilewright.inspect.resources import amd_loop
from tilewright.ir import Kernel, Texture, bf16, f16, f32, f64, i1, i32, i64, ptr, vec
from tilewright.targets import names, target

CHIPS = names("amd")


def check(function, chip, *instructions, without=()):
    """The assembly, which has these instructions (regular expressions)."""
    text = amd.assembly(function, target(chip))
    assert f"amdhsa--{chip}" in text
    for instruction in instructions:
        assert re.search(instruction, text), f"no {instruction} in\n{text}"
    for instruction in without:
        assert not re.search(instruction, text), f"{instruction} in\n{text}"
    return text


def recorded(write, threads=256, **options):
    """A kernel that `write(k, a, b, n, x)` writes: a and b are f32 arrays, n is an i32, x an f32."""
    k = Kernel("kernel", threads=threads, warp=64, a=ptr(f32), b=ptr(f32), n=i32, x=f32, **options)
    write(k, *k.args)
    return k.function


# ---- plain kernels


@pytest.mark.parametrize("chip", CHIPS)
def test_a_vector_add(chip):
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 1000), np.float32)
    c = np.zeros(1000, np.float32)
    report = simulator.run(emit_vector_add(), a, b, c, 1000, grid=(4, 1))
    np.testing.assert_array_equal(c, a + b)
    assert report.instructions["load"] == 2 * 16
    check(emit_vector_add(), chip, r"vector_add:", "global_load_dword ", "v_add_f32", "global_store_dword ",
          r"\.wavefront_size: +64", r"\.max_flat_workgroup_size: 256", "amdhsa_code_object_version 5")


@pytest.mark.parametrize("chip", CHIPS)
def test_who_i_am(chip):
    def write(k, a, b, n, x):
        (tx, ty), (bx, by), (gx, gy) = k.thread, k.block, k.grid
        a[tx + ty * 64 + (bx + gx * (by + gy * k.block_z)) * 256] = x

    text = check(recorded(write, (64, 4)), chip, r"\.value_kind: +hidden_block_count_x", "hidden_block_count_y")
    assert re.search(r"\.reqd_workgroup_size:\s+- +64\s+- +4\s+- +1\n", text)
    a = simulator.uninitialised(np.zeros(256 * 3 * 2 * 2, np.float32))
    simulator.run(recorded(write, (64, 4)), a, a, 0, 1.5, grid=(3, 2, 2))
    assert (a.array == 1.5).all()


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("T", [f16, f32, f64, i32, i64], ids=str)
def test_lanes_exchange(chip, T):
    masks = 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 33, 63
    k = Kernel("lanes", threads=128, warp=64, x=ptr(T), y=ptr(T))
    x, y = k.args
    for e, mask in enumerate(masks):
        y[k.thread[0] + 128 * e] = k.lane_xor(x[k.thread[0]], mask)
    numbers, found = np.arange(128).astype(T.numpy), np.zeros((len(masks), 128), T.numpy)
    simulator.run(k.function, numbers, found)
    for mask, row in zip(masks, found):
        np.testing.assert_array_equal(row, np.arange(128) ^ mask)
    check(k.function, chip, "quad_perm:", "row_half_mirror", "row_ror:8", "row_mirror", "ds_swizzle_b32",
          "ds_bpermute_b32")


@pytest.mark.parametrize("chip", CHIPS)
def test_a_lane_has_a_stack(chip):
    def write(k, a, b, n, x):
        local, t = k.local("local", (8,), f32), k.thread[0]
        for e in range(8):
            local[e] = a[t * 8 + e]
        b[t] = local[n]

    a, b = np.arange(2048, dtype=np.float32), np.zeros(256, np.float32)
    simulator.run(recorded(write), a, b, 3, 0.0)
    np.testing.assert_array_equal(b, a[3::8])
    check(recorded(write), chip)


@pytest.mark.parametrize("chip", CHIPS)
def test_atomic_accesses_are_for_the_device(chip):
    def write(k, a, b, n, x):
        k.fence_device()
        with k.when(k.thread[0] == 0):
            b[0] = k.atomic_add(a, x)

    check(recorded(write), chip, "global_atomic_add_f32", r"buffer_wbl2 sc1", r"buffer_inv sc1", without=["cmpswap"])


@pytest.mark.parametrize("chip", CHIPS)
def test_registers_are_limited(chip):
    def write(k, a, b, n, x):
        acc, t = k.tile(12, 12, f32), k.thread[0]
        with k.loop(n) as p:
            a_reg, b_reg = ([a[p * s + t * 16 + i] for i in range(12)] for s in (7, 9))
            for i, j in acc.registers:
                acc[i, j] = k.fma(a_reg[i], b_reg[j], acc[i, j])
        for i, j in acc.registers:
            b[t + (i * 16 + j) * 256] = acc[i, j]

    wide = check(recorded(write), chip)
    assert re.search(r"\.vgpr_spill_count: 0", wide)
    assert int(re.search(r"\.vgpr_count: +(\d+)", wide)[1]) > 128
    narrow = check(recorded(write, max_registers=64), chip)
    assert not re.search(r"\.vgpr_spill_count: 0", narrow)
    assert int(re.search(r"\.vgpr_count: +(\d+)", narrow)[1]) <= 64
    shared = check(recorded(write, min_ctas=4), chip)
    assert int(re.search(r"\.vgpr_count: +(\d+)", shared)[1]) <= 128


# ---- LDS


@pytest.mark.parametrize("chip", CHIPS)
def test_a_transpose_through_lds(chip):
    x, y = np.arange(4096, dtype=np.float32).reshape(64, 64), np.zeros((64, 64), np.float32)
    simulator.run(emit_transpose(), x, y)
    np.testing.assert_array_equal(y, x.T)
    check(emit_transpose(), chip, "s_barrier", "ds_write", "ds_read", r"\.group_segment_fixed_size: 16640")


def test_a_missing_barrier_is_found():
    x, y = np.arange(4096, dtype=np.float32).reshape(64, 64), np.zeros((64, 64), np.float32)
    with pytest.raises(simulator.Fault, match="race"):
        simulator.run(emit_transpose(BARRIER=False), x, y)


@pytest.mark.parametrize("chip", CHIPS)
def test_a_barrier_does_not_wait_for_global_loads(chip):
    """The next round's global loads are on their way across two barriers, until they are stored to LDS."""
    def write(k, a, b, n, x):
        tile, t = k.smem("tile", (256,), f32), k.thread[0]
        ahead, acc = k.variable(f32, a[t]), k.variable(f32, 0)
        with k.loop(n) as p:
            current = ahead.get()
            ahead.set(a[t + (p + 1) * 256])
            k.barrier()
            tile[t] = current
            k.barrier()
            acc.set(acc.get() + tile[t ^ 65])
        b[t] = acc.get()

    text = check(recorded(write), chip)
    lines = amd_loop(text, "kernel")
    events = [line for line in lines if re.match(r"global_load|s_waitcnt|s_barrier|ds_", line)]
    load = next(n for n, line in enumerate(events) if line.startswith("global_load"))
    barriers = [n for n, line in enumerate(events) if line == "s_barrier"]
    assert len(barriers) == 2
    assert load < barriers[0]
    waits = [line for line in events[load : barriers[1] + 1] if "vmcnt" in line]
    assert not [line for line in waits if "vmcnt(0)" in line], "\n".join(events)

    a, b = np.random.default_rng(1).random((6, 256), np.float32), np.zeros(256, np.float32)
    simulator.run(recorded(write), a, b, 5, 0.0)
    expected = np.zeros(256, np.float32)
    for row in a[:5]:
        expected += row[np.arange(256) ^ 65]
    np.testing.assert_array_equal(b, expected)


# ---- what the chips cannot do


def refused(function, chip, match):
    with pytest.raises(NotImplementedError, match=match):
        gate.check(function, target(chip))


@pytest.mark.parametrize("chip", CHIPS)
def test_the_gate_says_what_is_missing(chip):
    refused(Kernel("f").function, chip, "one thread of a CPU")
    refused(Kernel("f", threads=64).function, chip, "waves of 32 lanes")
    refused(Kernel("f", threads=1024, warp=64, min_ctas=4).function, chip, "holds 32 waves")
    refused(Kernel("f", threads=64, warp=64, cluster=(2, 1, 1)).function, chip, "no|none")
    refused(Kernel("f", threads=64, warp=64, max_registers=513).function, chip, "64 to 512")
    refused(Kernel("f", threads=64, warp=64, t=Texture(f32)).function, chip, "texture")
    refused(Kernel("f", threads=64, warp=64, t=i1).function, chip, "t is a i1")
    refused(Kernel("a-b", threads=64, warp=64).function, chip, "letters, digits")

    k = Kernel("f", threads=64, warp=64, a=ptr(f32))
    k.smem("s", (41 << 10,), f32)
    k.prefetch(k.args[0])
    refused(k.function, chip, f"164,?864|{target(chip).lds}")
    refused(k.function, chip, "no prefetch")

    k = Kernel("f", threads=64, warp=64, a=ptr(f32), b=ptr(bf16))
    s = k.smem("s", (64,), f32)
    k.cp_async(s, k.args[0], 16)
    refused(k.function, chip, "cp_async16")
    k = Kernel("f", threads=64, warp=64, b=ptr(bf16))
    k.args[0][0] = k.args[0][0] + k.args[0][1]
    refused(k.function, chip, "no bf16 arithmetic")
    k = Kernel("f", threads=64, warp=64, b=ptr(f32))
    k.store(k.args[0], k.load(k.args[0], vec(f32, 64)))
    refused(k.function, chip, "2048 bits")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chip", CHIPS)
def test_llvm_takes_what_the_gate_lets_through(chip, request):
    """Every operation on every type, with --all-ways of every length. In a child process: LLVM ends the process on what
    it cannot select."""
    some = not request.config.getoption("--all-ways")
    printed(f"""
from tests.helpers.every_operation import cases
from tilewright.compiler import gate, llvm; from tilewright.targets import target
t = target({chip!r}); every = [function for _, functions in cases({some}) for function in functions]
for function in every: function.warp = 64 if function.threads else function.warp
taken = [function for function in every if not list(gate.refusals(function, t))]
assert 0.7 * len(every) < len(taken) < 0.8 * len(every), (len(taken), len(every))
assert llvm.assembly(taken, t).count(".amdhsa_kernel ") == len(taken)
""")
