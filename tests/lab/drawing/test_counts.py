"""Numbers in figures are those of the simulator, and of the data that they show."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.command_line import said as run
from tests.helpers.figures import drawn
from tilewright import simulator
from tilewright.atoms.amd import find
from tilewright.lab.drawing import accesses, bits, cpu, gpu_tiles, lanes, records, staged
from tilewright.lab.drawing.catalogue import FIGURES
from tilewright.lab.drawing.pen import Words
from tilewright.lab.drawing.pieces import Trio


def words(key: str) -> str:
    return " | ".join(re.findall(r"<text[^>]*>([^<]*)", drawn(key)))


def test_padding_frees_the_banks() -> None:
    """The passes that the picture numbers are those that the simulator counts: 32 before, 4 after."""
    for pad, most in ((0, 32), (4, 4)):
        (event,) = records.chosen("padded", "store", "a_smem", pad=pad)
        for warp, cost in event.costs().items():
            assert accesses.passes(accesses.turns(event, warp)) == cost.moved == most
            assert cost.ideal == 4
    assert "32 passes over the banks, where 4 would do" in words("nvidia/bank_conflict")
    assert "4 passes over the banks, where 4 would do" in words("nvidia/bank_conflict_padding")


@pytest.mark.parametrize("step", ["padded", "vectors", "stored"])
def test_passes_of_every_access_are_the_simulators(step: str) -> None:
    """Loads whose turns go together, too."""
    for event in records.events(step):
        if event.what in ("load", "store") and event.space == "shared":
            warp = accesses.first_warp(event)
            assert accesses.passes(accesses.turns(event, warp)) == event.costs()[warp].moved, event.line


@pytest.mark.parametrize("chip", ["gfx942", "gfx950"])
def test_passes_of_waves_are_the_simulators(chip: str) -> None:
    """On chips of 64 lanes, some of whose wide loads go over 64 banks."""
    problem, told = tw.Gemm(64, 64, 64, "f16", layout="nt"), []
    operands = [np.ones(shape, np.float16) for shape in ((64, 64), (64, 64))]
    with simulator.observed(told.append):
        tw.simulate(tw.compile(problem, chip), operands[0], operands[1].T)
    wide = 0
    for event in told:
        if event.what in ("load", "store") and event.space == "shared":
            warp, there = accesses.first_warp(event, 64), accesses.banks_of(event, chip, 64)
            assert accesses.passes(accesses.turns(event, warp, 64, there)) == event.costs()[warp].moved, event.line
            wide += there == 64
            drawn = str(accesses.access(event, chip, 64))
    assert (chip == "gfx950") == bool(wide)
    assert "passes over the banks" in drawn


def test_stores_by_rows_fill_sectors() -> None:
    assert "16 sectors of 32 bytes, where 4 would do" in words("nvidia/stg_final")
    assert "| 4 sectors of 32 bytes, where 4 would do" in words("nvidia/stg_final")
    assert "32 passes, where 32 would do" in words("nvidia/stgx")


def test_tiles_are_fetched_once() -> None:
    """Every element of both tiles, by one thread, and stored where the next step reads it."""
    a = staged.places(records.chosen("padded", "load", "a"), 8)
    stored = staged.places(records.chosen("padded", "store", "a_smem"), 132)
    assert {(column, row): thread for (row, column), thread in a.items()} == stored
    assert len(a) == 128 * 8 == len(staged.places(records.chosen("padded", "load", "b"), 128))


def test_the_lecture_counts_its_formulas() -> None:
    """2 N³; N³/V + N³; 2 N³/V; 2 N³/L and 2 N³/V from shared memory."""
    n, v, large, cube = 16, 2, 8, 16**3
    assert records.lecture("naive", n) == (2*cube, 0)
    assert records.lecture("tiled", n, V=v, BLOCK=8) == (cube//v + cube, 0)
    assert records.lecture("registers", n, V=v, BLOCK=8) == (2*cube//v, 0)
    assert records.lecture("shared", n, V=v, L=large, S=4) == (2*cube//large, 2*cube//v)


def test_registers_are_those_of_the_loop() -> None:
    """12 sums, a row of B in two, one of A: all different, each part of the tile once."""
    used, t = cpu.allocation(), cpu.tile()
    assert len(used) == t.MR*t.NV + t.NV + 1 <= cpu.chip().registers
    assert {place for what, *place in used.values() if what == "acc" for place in [tuple(place)]} == {
        (i, j) for i in range(t.MR) for j in range(t.NV)}


def test_panels_are_stored_in_the_order_of_reading() -> None:
    """A panel of A by columns, a panel of B by rows, the next panel after it."""
    a, panel, whole = records.packed("A", 9, 8)
    assert a == {(i, p): i // panel * panel*8 + p*panel + i % panel for i in range(9) for p in range(8)}
    assert whole == 12 * 8
    b, panel, _ = records.packed("B", 5, 20)
    assert b == {(p, j): j // panel * panel*5 + p*panel + j % panel for p in range(5) for j in range(20)}
    assert "k = 2 of 8 rows: 4 banks" in words("tilewright/swizzle")
    assert "k = 2 of 8 rows: 32 banks" in words("tilewright/swizzle")


def test_lanes_cover_the_warps_tile() -> None:
    pen = gpu_tiles.thread_lanes("x")
    numbers = [shape.text for shape in pen.shapes if isinstance(shape, Words) and shape.text.isdecimal()]
    assert all(numbers.count(str(lane)) >= 4 for lane in range(32))


def test_a_trio_is_to_scale() -> None:
    trio = Trio(lanes.layouts(find("v_mfma_f32_16x16x4_f32")), 6, 16, 10, 2)
    a, b, c = (trio.place(letter) for letter in "ABC")
    assert (a.y, a.h) == (c.y, c.h)
    assert (b.x, b.w) == (c.x, c.w)
    assert trio.place("C", (1, 3), (4, 8))[2:] == (8, 4)


def test_formats_are_boxes_of_their_bits() -> None:
    text = str(bits.table())
    assert "f64" in text
    assert "±448" in text
    assert "= -1.625" in words("cdna/e4m3fnuz").split(" | ")[-1]


# ---- commands


def test_show_draws_a_figure(tmp_path) -> None:
    path = tmp_path / "f.svg"
    run("show", "--figure", "e8m0", "-o", str(path))
    assert path.read_text() == drawn("cdna/e8m0")
    assert run("show", "--figure", "cdna/e8m0").startswith("<svg")
    assert all(key in run("show", "--figure", "list") for key in FIGURES)
    assert "not drawn: A screenshot" in run("show", "--figure", "ak_post", status=2)
    assert "cpu/kernel" in run("show", "--figure", "kernal", status=2)
    run("show", "-f", "cpu/intel_core_perf", "-o", str(path))       # a row of `tilewright reproduce`
    assert ElementTree.fromstring(path.read_text()).tag.endswith("svg")


def test_formats_draws(tmp_path) -> None:
    path = tmp_path / "f.svg"
    run("formats", "--svg", "-o", str(path))
    assert path.read_text() == str(bits.table())
    assert "1 sign, 4 exponent, 3 mantissa" in run("formats", "e4m3fn", "--svg")
    assert "= 6" in run("formats", "e2m1", "7", "--svg")
    assert "is for drawings" in run("formats", "-o", str(path), status=2)


def test_simulate_draws_a_line(tmp_path) -> None:
    path = tmp_path / "f.svg"
    where = ("simulate", "128", "128", "8", "--target", "sm_86", "--step", "padded", "-o", str(path), "--draw")
    run(*where, "gpu06_padded.py:64")
    assert "4 passes over the banks, where 4 would do" in path.read_text()
    run(*where, "51")
    assert "sectors of 32 bytes" in path.read_text()
    assert "gpu06_padded.py:64" in run(*where, "7", status=2)
    assert "is a CPU" in run("simulate", "8", "8", "8", "--target", "x86-avx2", "--draw", "7", status=2)
