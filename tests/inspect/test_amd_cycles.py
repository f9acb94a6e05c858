"""The static cycle count: each rule of the model on loops of a few instructions, then on kernels."""

from __future__ import annotations

import pytest

from tilewright.atoms.amd import mfma
from tilewright.compiler import amd
from tilewright.inspect import amd_cycles
from tilewright.inspect.amd_cycles import LDS_LATENCY, cycles, step
from tilewright.inspect.resources import amd_loop
from tilewright.ir import Kernel, f16, f32, i32, ptr, vec
from tilewright.targets import target

CHIPS = {chip: target(chip) for chip in ("gfx942", "gfx950")}
MFMA = "v_mfma_f32_32x32x8_f16 v[0:15], v[16:17], v[18:19], v[0:15]"  # 32 cycles
VECTOR = "v_add_u32_e32 v1, v2, v3"
READ = "ds_read_b128 v[20:23], v24"
BARRIER = "s_barrier"


def counted(*lines, waves=1, chip="gfx942"):
    return cycles([step(line, CHIPS[chip]) for line in lines], waves)


def wait(**counters):
    return "s_waitcnt " + " ".join(f"{name}cnt({n})" for name, n in counters.items())


@pytest.mark.parametrize(("line", "chip", "unit", "occupied", "bytes"), [
    (MFMA, "gfx942", "matrix", 32, 0),
    ("v_mfma_f32_32x32x16_f16 a[0:15], v[0:3], v[4:7], a[0:15]", "gfx950", "matrix", 32, 0),
    ("v_mfma_f32_32x32x64_f8f6f4 a[0:15], v[0:7], v[8:15], a[0:15]", "gfx950", "matrix", 64, 0),
    ("v_mfma_f32_32x32x64_f8f6f4 a[0:15], v[0:3], v[8:11], a[0:15] cbsz:4 blgp:4", "gfx950", "matrix", 32, 0),
    ("v_mfma_f32_32x32x64_f8f6f4 a[0:15], v[0:7], v[8:11], a[0:15] blgp:4", "gfx950", "matrix", 64, 0),
    (VECTOR, "gfx942", "vector", 4, 0),
    ("v_mul_lo_u32 v1, v2, v3", "gfx942", "vector", 16, 0),
    ("s_add_i32 s1, s2, s3", "gfx942", "scalar", 4, 0),
    ("s_nop 3", "gfx942", "none", 16, 0),
    (READ, "gfx942", "lds", 32, 16),
    (READ, "gfx950", "lds", 16, 16),
    ("ds_read_b64 v[0:1], v2", "gfx942", "lds", 16, 8),
    ("ds_read_b64 v[0:1], v2 offset:8", "gfx950", "lds", 8, 8),
    ("ds_read_u16_d16_hi v0, v2", "gfx942", "lds", 8, 2),
    ("ds_read2st64_b32 v[0:1], v2 offset1:4", "gfx942", "lds", 16, 4),
    ("ds_write_b128 v0, v[1:4]", "gfx950", "lds", 40, 16),
    ("ds_bpermute_b32 v0, v1, v2", "gfx942", "lds", 16, 4),
    ("global_load_dwordx4 v[0:3], v4, s[0:1]", "gfx942", "global", 64, 16),
    ("buffer_load_dword v0, s[0:3], 0 offen lds", "gfx942", "global", 16, 4),
    ("buffer_load_ushort v0, v1, s[0:3], 0 offen", "gfx942", "global", 8, 2),
    ("global_store_dwordx2 v0, v[2:3], s[0:1]", "gfx942", "global", 32, 8),
])
def test_what_an_instruction_occupies(line, chip, unit, occupied, bytes):
    found = step(line, CHIPS[chip])
    assert (found.unit, found.cycles, found.bytes) == (unit, occupied, bytes)


def test_an_unknown_matrix_instruction():
    with pytest.raises(ValueError, match="gfx942 has no matrix instruction v_mfma_f32_32x32x16_f16"):
        step("v_mfma_f32_32x32x16_f16 a[0:15], v[0:3], v[4:7], a[0:15]", CHIPS["gfx942"])


def test_matrix_instructions_follow_each_other():
    alone = counted(*[MFMA] * 4)
    assert (alone.round, alone.share) == (128, 1.0)
    both = counted(*[MFMA] * 4, waves=2)
    assert (both.round, both.share) == (256, 1.0)


def test_what_fits_beside_a_matrix_instruction_costs_nothing():
    """Seven turns of four cycles are left of 32."""
    assert counted(MFMA, *[VECTOR] * 7).round == 32
    assert counted(MFMA, *[VECTOR] * 8).round == 36
    # another wave fills what one leaves empty
    assert counted(MFMA, *[VECTOR] * 8, waves=2).round == pytest.approx(72)
    assert counted(*[MFMA] * 2, *["s_add_i32 s1, s1, 1"] * 20).round == 32 + 4 + 80
    assert counted(*[MFMA] * 2, *["s_add_i32 s1, s1, 1"] * 20, waves=2).share > 0.7


def test_who_waits_for_lds():
    waiting = counted(READ, wait(lgkm=0), MFMA)
    assert waiting.round == 32 + LDS_LATENCY + 4 + 4
    assert waiting.unwaited == 32 + 8
    # read a round ahead, it has been there for long
    ahead = counted(wait(lgkm=0), READ, *[MFMA] * 8)
    assert ahead.round == pytest.approx(8 * 32, abs=12)
    # and with two left under way nobody waits at all
    assert counted(READ, READ, wait(lgkm=2), *[MFMA] * 8).round == 8 * 32


def test_the_bandwidth_of_lds():
    """A SIMD has a quarter: 16 bytes a lane take 32 cycles of it on gfx942 and 16 on gfx950."""
    loop = [MFMA, READ, READ]
    for end in [], [wait(lgkm=2)]:
        assert counted(*loop, *end).unwaited == 64
        assert counted(*loop, *end, chip="gfx950").unwaited == pytest.approx(32, abs=8)
    direct = counted("buffer_load_dwordx4 v0, s[0:3], 0 offen lds", READ, chip="gfx950")
    assert direct.units["lds"] == 32 + 16


def test_waves_meet_at_barriers():
    """Between two barriers both waves multiply, then both add: neither fills the other's gaps."""
    loop = [*[MFMA] * 4, BARRIER, *[VECTOR] * 32, BARRIER]
    apart = counted(*[line for line in loop if line != BARRIER], waves=2)
    together = counted(*loop, waves=2)
    assert together.round > apart.round
    assert together.round >= 2 * 4 * 32 + 2 * 32 * 4 - 32  # the last multiplication goes on beyond the barrier


def test_patience():
    load = "global_load_dwordx4 v[0:3], v4, s[0:1]"
    assert counted(MFMA).slack_cycles is None
    assert counted(load, *[MFMA] * 8, wait(vm=0)).slack_cycles == 8 * 32 - 64 - 4
    assert counted(*[MFMA] * 8, load, wait(vm=0)).slack_cycles == 0
    one_round_ahead = counted(load, *[MFMA] * 8, wait(vm=1))
    assert one_round_ahead.slack_cycles == pytest.approx(2 * 8 * 32 - 64, abs=40)
    assert one_round_ahead.round == 8 * 32


def emit_product(ATOM, TILES=4, WIDE=True):
    """One wave multiplies TILES x TILES instructions' tiles, from LDS, over and over."""
    k = Kernel("product", threads=64, warp=64, a=ptr(f16), c=ptr(f32), n=i32)
    a, c, n = k.args
    lane, E = k.thread[0], ATOM.a.type.length
    s = k.smem("s", (2 * TILES * 64 * 8,), f16)
    for e in range(0, 2 * TILES * 8, 8):
        k.store(s + (lane * 8 + e * 64), k.load(a + (lane * 8 + e * 64), vec(f16, 8)))
    k.barrier()
    acc = k.tile(TILES, TILES, ATOM.c.type)
    with k.loop(n) as p:
        at = s + (lane * 8 + (p & 1) * 8)

        def part(t):
            if WIDE:
                return k.shuffle(k.load(at + t * 512, vec(f16, 8)), k.broadcast(k.constant(f16, 0), 8), range(E))
            return k.pack(*(k.load(at + (t * 512 + 2 * e)) for e in range(E)))

        a_reg, b_reg = ([part(half * TILES + t) for t in range(TILES)] for half in range(2))
        for i in range(TILES):
            for j in range(TILES):
                (acc[i, j],) = k.mma(ATOM, [a_reg[i]], [b_reg[j]], [acc[i, j]])
    for i in range(TILES):
        for j in range(TILES):
            k.store(c + ((i * TILES + j) * 64 + lane) * ATOM.c.type.length, acc[i, j])
    return k.function


@pytest.mark.parametrize("chip", CHIPS)
def test_a_kernel(chip):
    ATOM = mfma(chip, 32, 8, "f16")
    function = emit_product(ATOM, TILES=2)
    text = amd.assembly(function, CHIPS[chip])
    found = amd_cycles.count(function, CHIPS[chip], text, waves=1)
    assert found.instructions["matrix"] == 4
    assert found.units["matrix"] == 4 * ATOM.cycles[chip]
    assert 0.2 < found.share < found.unwaited_share <= 1.0
    assert found.narrow == ()
    assert amd_cycles.count(function, CHIPS[chip], text, waves=4).share > found.share
    assert "of the Matrix Core's" in str(found)


def test_narrow_accesses_are_named():
    function = emit_product(mfma("gfx942", 32, 8, "f16"), TILES=2, WIDE=False)
    found = amd_cycles.count(function, CHIPS["gfx942"], waves=1)
    assert found.narrow
    assert all(line.startswith("ds_read_u16") for line in found.narrow)


def test_the_main_loop_is_the_one_that_multiplies():
    k = Kernel("k", threads=64, warp=64, x=ptr(f32), n=i32)
    x, n = k.args
    t = k.thread[0]
    with k.loop(n) as p:
        for e in range(8):
            x[t + p + e * 64] = x[t + p + e * 64] + 1.0
    ATOM = mfma("gfx942", 32, 2, "f32")
    acc = k.tile(1, 1, ATOM.c.type)
    with k.loop(n):
        (acc[0, 0],) = k.mma(ATOM, [x[t]], [x[t + 64]], [acc[0, 0]])
    k.store(x + t * 16, acc[0, 0])
    loop = amd_loop(amd.assembly(k.function, CHIPS["gfx942"]), "k")
    assert any(line.startswith("v_mfma") for line in loop)
    with pytest.raises(ValueError, match="has no loop"):
        amd_loop(amd.assembly(emit_product_without_loop(), CHIPS["gfx942"]), "k")


def emit_product_without_loop():
    k = Kernel("k", threads=64, warp=64, x=ptr(f32))
    (x,) = k.args
    x[k.thread[0]] = 1.0
    return k.function
