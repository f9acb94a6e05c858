"""Banks of LDS: what the chips' makers and users have measured, and what the simulator counts by it."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright import simulator
from tilewright.ir import Kernel, f16, f32, f64, i8, ptr, vec
from tilewright.targets import banks


def phases(chip, bytes, load=True):
    split = chip.split(bytes, load)
    assert len(split.phase) == chip.lanes
    return [[lane for lane in range(chip.lanes) if split.phase[lane] == phase] for phase in range(split.phases)]


def spans(*ends):
    return [lane for first, last in ends for lane in range(first, last + 1)]


def test_phases_as_they_were_measured():
    """On an MI355X by HipKittens; those of 12 bytes are also gfx942's of 16, as Composable Kernel's documentation and
    measurements on an MI300X have them."""
    quarters = [spans((0, 3), (12, 15), (20, 27)), spans((4, 11), (16, 19), (28, 31))]
    quarters += [[lane + 32 for lane in quarter] for quarter in quarters]
    eighths = [spans((n, n + 3), (m, m + 3)) for n, m in ((0, 20), (4, 16), (8, 28), (12, 24))]
    eighths += [[lane + 32 for lane in eighth] for eighth in eighths]
    assert phases(banks.GFX950, 16) == quarters
    assert phases(banks.GFX950, 12) == phases(banks.GFX942, 12) == phases(banks.GFX942, 16) == eighths
    assert phases(banks.GFX950, 8) == [spans((0, 31)), spans((32, 63))]
    sixteens = [spans((n, n + 15)) for n in range(0, 64, 16)]
    assert phases(banks.GFX942, 8) == phases(banks.GFX950, 8, load=False) == sixteens
    for chip in (banks.GFX942, banks.GFX950):
        assert phases(chip, 16, load=False) == [spans((n, n + 7)) for n in range(0, 64, 8)]
        assert phases(chip, 4) == phases(chip, 4, load=False) == phases(chip, 1) == [spans((0, 31)), spans((32, 63))]
    assert {bytes: banks.GFX950.split(bytes, True).banks for bytes in (4, 8, 12, 16)} == {4: 32, 8: 64, 12: 32, 16: 64}
    assert {banks.GFX950.split(bytes, False).banks for bytes in (4, 8, 12, 16)} == {32}
    assert {banks.GFX942.split(bytes, load).banks for bytes in (4, 8, 12, 16) for load in (False, True)} == {32}


def counted(chip, place, T=f32, length=4, words=4096, align=None):
    """The loads and the stores of a wave whose lane l touches `length` elements from place(l) on."""
    k = Kernel("k", threads=64, warp=64, x=ptr(T))
    (x,), t = k.args, k.thread[0]
    s = k.smem("s", (words,), T, align=256)
    V = vec(T, length)
    at = s + place(k, t)
    k.store(at, k.load(x + t * length, V, align=T.bytes), align=align)
    k.warp_barrier()
    k.store(x + t * length, k.load(at, V, align=align), align=T.bytes)
    report = simulator.run(k.function, np.arange(64 * length, dtype=T.numpy), target=chip)
    return report.of("s", "load"), report.of("s", "store")


@pytest.mark.parametrize(("chip", "loads", "stores"), [("gfx942", 8, 8), ("gfx950", 4, 8), (None, 8, 8)])
def test_rows_of_16_bytes(chip, loads, stores):
    read, written = counted(chip, lambda k, t: t * 4)
    assert (read.moved, read.conflicts, written.moved, written.conflicts) == (loads, 0, stores, 0)


def test_a_column_of_rows_of_64_words():
    """Lane l reads 16 bytes of row l: on 64 banks as on 32 they meet in the same four."""
    for chip, loads in ("gfx942", 64), ("gfx950", 64):
        read, _ = counted(chip, lambda k, t: t * 64)
        assert read.moved == loads
    # Eight lanes of a phase with different pieces: free of conflicts on 32 banks
    read, _ = counted("gfx942", lambda k, t: t * 64 + (t ^ t >> 3) % 8 * 4)
    assert (read.moved, read.conflicts) == (8, 0)
    # gfx950 takes sixteen lanes together, so that sixteen pieces have to differ
    read, _ = counted("gfx950", lambda k, t: t * 64 + (t ^ t >> 3) % 8 * 4)
    assert read.conflicts > 0
    read, _ = counted("gfx950", lambda k, t: t * 64 + t % 16 * 4)
    assert (read.moved, read.conflicts) == (4, 0)


def test_reads_and_writes_take_different_lanes_together():
    """Lanes 0 to 3 and 16 to 19 have different pieces, 0 to 3 and 4 to 7 the same: good for reads, bad for writes."""
    read, written = counted("gfx942", lambda k, t: t * 64 + (t % 4 + t % 32 // 16 * 4) * 4)
    assert (read.moved, read.conflicts) == (8, 0)
    assert (written.moved, written.conflicts) == (16, 8)


@pytest.mark.parametrize(("T", "length", "loads"), [(i8, 1, 2), (f16, 1, 2), (f32, 1, 2), (f64, 1, 4), (f32, 2, 4),
                                                    (f64, 2, 8), (f16, 8, 8)])
def test_widths(T, length, loads):
    """Consecutive elements need as many passes as they have words, by 32; those of less than a word share words."""
    read, written = counted("gfx942", lambda k, t: t * length, T, length)
    assert (read.moved, written.moved) == (loads, loads)
    assert read.conflicts == written.conflicts == 0


def test_a_target_says_which_banks():
    k = Kernel("k", threads=64, warp=64, x=ptr(f32))
    (x,), t = k.args, k.thread[0]
    s = k.smem("s", (256,), f32)
    k.store(s + t * 4, k.load(x + t * 4, vec(f32, 4)))
    k.warp_barrier()
    k.store(x + t * 4, k.load(s + t * 4, vec(f32, 4)))
    for chip, passes in ("gfx942", 8), ("gfx950", 4):
        report = tw.simulate(k.function, np.zeros(256, np.float32), target=tw.target(chip))
        assert report.of("s", "load").moved == passes
        assert report.occupancy.lds == 1024
        assert "no spills" in str(report)


def test_32_bytes_are_two_reads_of_16():
    """Each of which finds the pieces of its lanes in every other place: two lanes of a phase in each bank."""
    read, _ = counted("gfx942", lambda k, t: t * 4, f64, 4)
    assert (read.requests, read.moved, read.conflicts) == (1, 32, 16)


def test_what_is_not_aligned_is_read_in_pieces():
    """16 bytes at multiples of 8 are two reads of 8: rows of 18 words, in whose way a phase of 16 bytes would be."""
    read, _ = counted("gfx942", lambda k, t: t * 18, align=8)
    assert (read.moved, read.conflicts) == (8, 0)
