"""The simulator's counts beside hardware counters that Nsight Compute read (bench/counters.py): of launches, and of
single accesses of shared memory by one warp.

A row of bench/results/shared_patterns.json is a pattern of addresses: bytes of a lane, wavefronts of the load, of the
store, and of each lane the first word of 4 bytes that it accesses, -1 of an inactive one. Patterns are broadcasts by
the bits of a lane's number, strides, groups and pairs in random order, and random words.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tilewright as tw
from bench import counters
from tilewright import simulator
from tilewright.simulator.pattern import Pattern
from tilewright.targets import banks

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
LAUNCHES = json.loads((RESULTS / "counters_h200.json").read_text())["launches"]
TENSOR = json.loads((RESULTS / "counters_tensor_h200.json").read_text())["launches"]
PATTERNS = counters.patterns()

GLOBAL = ("global_load_requests", "global_load_sectors", "global_store_requests", "global_store_sectors")
SHARED = ("shared_load_wavefronts", "shared_store_wavefronts", "shared_load_conflicts", "shared_store_conflicts")


def counted(report: simulator.Report) -> dict[str, int]:
    """The report's totals by the names of bench/counters.py."""
    found = {"ffma": sum(block.kinds["fma"] * block.threads for block in report.blocks)}
    for space in ("global", "shared"):
        for verb in ("load", "store"):
            traffic = report.of(space=space, verb=verb)
            if space == "global":
                found |= {f"global_{verb}_requests": traffic.requests, f"global_{verb}_sectors": traffic.moved}
            else:
                found |= {f"shared_{verb}_wavefronts": traffic.moved, f"shared_{verb}_conflicts": traffic.conflicts,
                          f"shared_{verb}_instructions": traffic.requests}
    return found


def compare(report: simulator.Report, launch: dict, names: tuple[str, ...]) -> None:
    found = counted(report)
    assert {name: found[name] for name in names} == {name: launch[name] for name in names}


def passes(bytes: int, words: list[int], load: bool) -> int:
    """Passes over the banks that the simulator counts for one access of a warp."""
    start = np.array(words) * 4
    here = np.broadcast_to(start >= 0, (bytes // 4, 32))
    lane = int(here[0].argmax())
    relative = np.where(start >= 0, start, start[lane])
    shared = SimpleNamespace(space="shared", base=0, pitch=None)
    return Pattern(4, bytes // 4, relative, None if here.all() else here, lane, shared, int(start[lane]), 32, 32,
                   banks.NVIDIA, bytes, load).moved


@pytest.mark.parametrize("bytes", [4, 8, 16])
def test_every_pattern_takes_the_wavefronts_that_were_counted(bytes):
    rows = [row for row in PATTERNS if row[0] == bytes]
    assert len(rows) == 303
    for _, loads, stores, *words in rows:
        assert (passes(bytes, words, True), passes(bytes, words, False)) == (loads, stores), words


def test_pairs_matter():
    """Without them the rule of half and quarter warps is wrong for wide loads, as the figures show."""
    halves = [row for row in PATTERNS if row[1] < row[2]]
    assert {row[0] for row in halves} == {8, 16}
    assert len(halves) == 86


@pytest.mark.parametrize("row", [row for row in LAUNCHES if row["sizes"] == [128, 256, 16]], ids=lambda r: r["step"])
def test_ladder(row):
    """Steps whose loads and stores the assembler left as they were recorded: everything is equal. It merges single
    loads of "shared" and "coalesced", and hardware counts texture loads and cp.async by other counters."""
    from tests.lab.ladder.test_gpu_ladder import run

    report = run(row["step"], *row["sizes"])
    found = counted(report)
    compare(report, row, ("ffma", *(GLOBAL[2:] if row["step"] == "texture" else GLOBAL)))
    if row["step"] not in ("shared", "coalesced", "async"):
        assert found["shared_load_instructions"] == row["shared_load_instructions"]
        compare(report, row, SHARED)


@pytest.mark.parametrize(
    ("layout", "sizes", "plan"),
    [("nn", [97, 131, 35], "simt 16x16x32 warp=16x16 thread=4x2 stages=3 slices=2")],
)
def test_products(layout, sizes, plan):
    """Global traffic and multiply-adds of what `matmul` runs, or of the plan that it ran when the counters were read.
    Loads from shared memory are not compared: the assembler drops those that nothing needs after the last tile."""
    (row,) = (row for row in LAUNCHES if (row.get("layout"), row["sizes"], row.get("plan")) == (layout, sizes, None)
              and row["dtype"] == "f32")
    target, problem = tw.target("sm_90a"), tw.Gemm(*sizes, "f32", layout=layout)
    kernel = tw.compile(problem, target, plan or counters.plan_of(row, problem, target))
    assert row["kernel"].startswith(kernel.functions[0].name)
    a, b = counters.operands(*sizes, "f32")
    report = tw.simulate(kernel, *(np.asfortranarray(x) if letter == "t" else x for x, letter in zip((a, b), layout)))
    compare(report, row, ("ffma", *GLOBAL))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("row", TENSOR, ids=lambda r: r["step"])
def test_ladder_on_tensor_cores(row):
    """Instructions, sectors and passes are equal. What hardware does not count there as shared memory's are operands of
    wgmma and copies; L2 delivers what a cluster shares to each of its CTAs."""
    from tests.lab.ladder.test_tensor_ladder import run
    from tilewright.lab.ladder.steps import TENSOR_STEPS

    report = run(row["step"], *row["sizes"])
    found, kinds, step = counted(report), report.instructions, TENSOR_STEPS[row["step"]]
    compare(report, row, GLOBAL[2:])
    assert row["tensor_instructions"] == kinds["mma"] + kinds["wgmma"]
    assert (row["ldmatrix"], row["cp_async"]) == (kinds["ldmatrix"], kinds["cp.async"])
    assert row["l2_sectors"] == found["global_load_sectors"] + report.of(space="cluster").bytes // 32
    if not step.boxes:
        assert row["global_load_sectors"] == found["global_load_sectors"]
    if row["step"] in ("mma", "ldmatrix"):
        compare(report, row, SHARED)
