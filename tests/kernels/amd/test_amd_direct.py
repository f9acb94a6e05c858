"""Loads straight into LDS: what they bring, what waits for what in the assembly, which mistakes are found."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tilewright import simulator
from tilewright.compiler import amd, gate, llvm
from tilewright.inspect.resources import amd_loop
from tilewright.ir import Kernel, f32, i8, i32, ptr, vec
from tilewright.targets import names, target

CHIPS = names("amd")
WIDTHS = [(chip, bytes) for chip in CHIPS for bytes in target(chip).direct]


def emit_pipe(BYTES, STAGES=3, BUG=""):
    """c = the sum of n tiles, each of 256 pieces of BYTES bytes; tiles arrive in LDS STAGES - 1 rounds ahead."""
    V = BYTES // 4
    k = Kernel("pipe", threads=256, warp=64, a=ptr(f32), c=ptr(f32), n=i32)
    a, c, n = k.args
    t = k.thread[0]
    wave = k.uniform(t // 64)
    s = k.smem("s", (STAGES, 256 * V), f32)

    def start(p, stage):
        place = s.at(stage, (t if BUG == "lanes" else wave * 64) * V)
        k.lds_load(place, a.at((p * 256 + t) * V), BYTES, size=n * (256 * BYTES))

    acc = k.tile(1, V, f32)
    for p in range(STAGES - 1):
        start(k.constant(i32, p), k.constant(i32, p))
    with k.loop(n) as p:
        if BUG == "early":
            start(p + (STAGES - 1), (p + (STAGES - 1)) % STAGES)
        if BUG != "wait":
            k.lds_wait(STAGES - 1 if BUG == "too few" else STAGES - 2)
        if BUG != "barrier":
            k.barrier()
        if BUG != "early":
            start(p + (STAGES - 1), (p + (STAGES - 1)) % STAGES)
        x = k.load(s.at(p % STAGES, (t ^ 65) * V), vec(f32, V), align=16 if V == 4 else 4)
        for v in range(V):
            acc[0, v] = acc[0, v] + (x[v] if V > 1 else x)
    k.lds_wait()                                                # none may outlive the workgroup
    for v in range(V):
        c[t * V + v] = acc[0, v]
    return k.function


def pieces(bytes, n=8):
    a = np.random.default_rng(0).integers(-100, 100, (n, 256, bytes // 4)).astype(np.float32)
    return a, np.zeros((256, bytes // 4), np.float32)


@pytest.mark.parametrize("bytes", [4, 12, 16])
def test_what_arrives(bytes):
    """Rounds beyond the last start loads too: of nothing, since `size` ends."""
    a, c = pieces(bytes)
    report = simulator.run(emit_pipe(bytes), a, c, len(a))
    np.testing.assert_array_equal(c, a.sum(0)[np.arange(256) ^ 65])
    assert report.instructions["direct load"] == 4 * (len(a) + 2)
    assert report.of("a", "load").bytes == a.nbytes


@pytest.mark.parametrize("bytes", [4, 12, 16])
@pytest.mark.parametrize("shift", [1, 4, 8])
def test_memory_is_aligned_to_words_whatever_is_loaded(bytes, shift):
    """CDNA4 ISA guide, 9.1.7: of the addresses of such loads the two lowest bits are ignored, and no more."""
    k = Kernel("shifted", threads=64, warp=64, a=ptr(i8), c=ptr(i8))
    a, c = k.args
    t = k.thread[0]
    s = k.smem("s", (64 * bytes,), i8, align=16)
    k.lds_load(s.at(0), a + (t * bytes + shift), bytes)
    k.lds_wait()
    k.barrier()
    for byte in range(bytes):
        k.store(c + (t * bytes + byte), k.load(s.at(t * bytes + byte)))
    values = np.arange(64 * bytes + 16).astype(np.int8)
    found = np.zeros(64 * bytes, np.int8)
    if shift % 4:
        with pytest.raises(simulator.Fault, match=r"misaligned .*must be 4-byte aligned"):
            simulator.run(k.function, values, found)
        return
    simulator.run(k.function, values, found)
    np.testing.assert_array_equal(found, values[shift : shift + 64 * bytes])


@pytest.mark.parametrize(("chip", "bytes"), WIDTHS)
def test_only_what_is_meant_is_waited_for(chip, bytes):
    """Of two loads under way the older is waited for, and none before LDS is read."""
    text = amd.assembly(emit_pipe(bytes), target(chip))
    kinds = r"buffer_load_\S+ .* lds|s_waitcnt .*|s_barrier|ds_read"
    events = [line for line in amd_loop(text, "pipe") if re.match(kinds, line)]
    assert len([e for e in events if e.startswith("buffer_load")]) == 1
    assert f"dword{'' if bytes == 4 else f'x{bytes // 4}'} " in text
    (wait,) = (e for e in events if "vmcnt" in e)
    assert "vmcnt(1)" in wait
    assert events.index(wait) < events.index("s_barrier")
    # the counter of LDS hears of no direct load: a read is waited for as if there were none
    reads = [n for n, e in enumerate(events) if e.startswith("ds_read")]
    assert re.fullmatch(rf"s_waitcnt lgkmcnt\([0-{len(reads) - 1}]\)", events[reads[-1] + 1])


@pytest.mark.parametrize(("bug", "kind", "why"), [
    ("wait", "race", "is in flight"), ("too few", "race", "is in flight"),
    ("barrier", "race", "nothing orders the two"), ("early", "race", "nothing orders the two|in flight"),
    ("lanes", "divergent", "not the same in all lanes"),
])
def test_mistakes_are_found(bug, kind, why):
    a, c = pieces(16)
    with pytest.raises(simulator.Fault, match=why) as fault:
        simulator.run(emit_pipe(16, BUG=bug), a, c, len(a))
    assert fault.value.kind == kind


def test_bounds_are_checked():
    k = Kernel("k", threads=64, warp=64, a=ptr(f32), n=i32)
    a, n = k.args
    s, t = k.smem("s", (64,), f32), k.thread[0]
    k.lds_load(s, a + t * 2, 4, base=a + 2, size=n)
    k.lds_wait()
    a[t] = s[t]
    with pytest.raises(simulator.Fault, match=r"-8 bytes.*from a base of 400") as fault:
        simulator.run(k.function, np.zeros(128, np.float32), 400)
    assert fault.value.kind == "out of bounds"


@pytest.mark.parametrize(("chip", "bytes"), WIDTHS)
def test_a_base_that_moves_costs_no_vector_instruction(chip, bytes):
    """What is the same for all lanes is kept in the buffer, so that a lane's offset never changes."""
    V = bytes // 4
    k = Kernel("k", threads=64, warp=64, a=ptr(f32), c=ptr(f32), n=i32)
    a, c, n = k.args
    s, t = k.smem("s", (64 * V,), f32), k.thread[0]
    acc = k.variable(f32, 0)
    with k.loop(n) as p:
        tile = a + p * (64 * V)
        k.lds_load(s, tile + t * V, bytes, base=tile)
        k.lds_wait()
        acc.set(acc.get() + s[t * V])
        k.warp_barrier()
    c[t] = acc.get()
    text = amd.assembly(k.function, target(chip))
    assert [line.split()[0] for line in amd_loop(text, "k") if line.startswith("v_")] == ["v_add_f32_e32"]


@pytest.mark.parametrize("chip", CHIPS)
def test_which_chip_has_which(chip):
    for bytes in (4, 12, 16):
        refused = list(gate.refusals(emit_pipe(bytes), target(chip)))
        assert bool(refused) == (bytes not in target(chip).direct), refused
    assert any("lds_load4" in why for why in gate.refusals(emit_pipe(4), target("sm_90a")))


def test_what_cannot_be_meant():
    k = Kernel("k", threads=64, warp=64, a=ptr(f32))
    (a,), s = k.args, k.smem("s", (64,), f32)
    with pytest.raises(ValueError, match="4, 12 or 16 bytes"):
        k.lds_load(s, a, 8)
    with pytest.raises(TypeError, match="from global memory to LDS"):
        k.lds_load(a, s, 4)
    with pytest.raises(TypeError, match="pass `base`"):
        k.lds_load(s, k.pointer(k.address(a), f32), 4)
    with pytest.raises(ValueError, match="0 to 62"):
        k.lds_wait(63)
    with pytest.raises(ValueError, match="alu, valu"):
        k.sched_group("fpu", 1)


@pytest.mark.parametrize("chip", CHIPS)
def test_hints_reach_the_scheduler(chip):
    k = Kernel("k", threads=64, warp=64, a=ptr(f32))
    (a,), t = k.args, k.thread[0]
    s = k.smem("s", (64,), f32)
    k.priority(1)
    s[t] = a[t]
    k.warp_barrier()
    k.sched_fence()
    x = s[t ^ 1]
    for _ in range(2):
        k.sched_group("lds read", 1)
        k.sched_group("valu", 1)
    k.priority(0)
    a[t] = x
    recorded = llvm.text(k.function, target(chip))
    for word in ("setprio\"(i16 1)", "setprio\"(i16 0)", "sched.barrier\"(i32 0)",
                 "sched.group.barrier\"(i32 256, i32 1, i32 0)", "sched.group.barrier\"(i32 2, i32 1, i32 0)"):
        assert word in recorded
    text = amd.assembly(k.function, target(chip))
    assert text.index("s_setprio 1") < text.index("ds_read") < text.index("s_setprio 0")
    found = np.arange(64, dtype=np.float32)
    simulator.run(k.function, found)
    assert (found == np.arange(64) ^ 1).all()
