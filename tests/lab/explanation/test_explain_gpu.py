"""tilewright.explain for GPUs: its bytes are those that the simulator counts, its times the planner's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.command_line import said
from tilewright import formats
from tilewright.plans import amd, amd_model, gpu

CHIPS = ("gfx942", "gfx950")
SUMS = {"i8": "i32", "f64": "f64"}


def gemm(m, n, k, a, layout="nt"):
    return tw.Gemm(m, n, k, a, out=SUMS.get(a, "f32"), layout=layout)


def bytes_of(terms):
    return sum(size * times for _, size, times, _ in terms)


@pytest.mark.parametrize(("chip", "k", "a", "layout", "plan"), [
    ("gfx942", 256, "f16", "nt", "mfma 64x64x32 wave=32x32 mfma=32"),
    ("gfx942", 256, "f32", "nt", "mfma 64x128x32 wave=32x64 mfma=32 split_k=2 vector=4"),
    ("gfx950", 256, "i8", "nt", "mfma 64x64x64 wave=32x32 mfma=16 copy=lds stages=3 vector=16"),
    ("gfx950", 256, "f64", "nt", "mfma 32x64x16 wave=32x32 mfma=16 vector=2 split_k=3"),
    ("gfx950", 256, "f16", "tn", "mfma 64x64x64 wave=64x32 mfma=32"),
    ("sm_90a", 128, "f32", "nn", "simt 64x64x8 warp=32x32 thread=8x4 stages=2 copy=registers vector=4"),
    ("sm_90a", 128, "f32", "nt", "simt 64x128x16 warp=32x64 thread=8x8 stages=4 vector=4 split_k=2"),
    ("sm_90a", 128, "f32", "tn", "simt 64x64x32 warp=32x32 thread=8x4 stages=2 slices=2 vector=2"),
    ("sm_90a", 128, "f64", "nn", "dmma 64x64x8 warp=32x32 stages=4 vector=2"),
    ("sm_90a", 128, "f64", "tt", "dmma 32x64x16 warp=16x32 stages=3 vector=2 split_k=3"),
    ("sm_90a", 128, "bf16", "nt", "mma 64x64x32 warp=32x32 stages=3 vector=8 vector_c=4"),
    ("sm_90a", 128, "f16", "tn", "mma 64x128x64 warp=32x32 stages=2 copy=registers vector=4 vector_b=8 vector_c=4"),
    ("sm_90a", 128, "i8", "nn", "mma 64x64x64 warp=64x32 stages=4 vector=16 vector_c=4 split_k=2"),
    ("sm_90a", 128, "f32", "nn", "tf32 64x64x16 warp=32x32 stages=3 vector=4"),
])
def test_the_bytes_are_those_of_the_simulator(chip, k, a, layout, plan):
    """Of whole tiles: at the edges of a matrix fewer elements are C's than are computed."""
    problem, target = gemm(128, 128, k, a, layout), tw.target(chip)
    found = tw.explain(problem, target, plan)
    given = [np.ones(shape, formats.FORMATS[a].dtype) for shape in (problem.shape_a, problem.shape_b)]
    report = tw.simulate(tw.compile(problem, target, plan),
                         *(x.T if letter == "t" else x for x, letter in zip(given, layout)))
    near, l2, memory = ({what: size * times for what, size, times, _ in terms}
                        for terms in found.cost.traffic.values())
    for verb, suffix in (("store", "written"), ("load", "read")):
        assert report.of("tiles", verb, "shared").bytes == sum(
            size for what, size in near.items() if what.endswith(suffix))
    for name in "ab":
        assert report.of(name, "load", "global").bytes == l2[name.upper()]
        assert report.of(name).distinct == memory[name.upper()]
    assert report.of("c", "store").bytes == memory["C"]
    assert report.of("workspace").bytes == memory.get("parts", 0)


@pytest.mark.parametrize("terms", ["bf16_x6", "bf16_x3"])
def test_the_bytes_of_passes_are_those_of_the_simulator(terms):
    problem, target = gemm(128, 128, 128, "f32", "nn"), tw.target("sm_90a")
    plan = f"mma 64x64x32 warp=32x32 stages=3 vector=8 vector_c=4 terms={terms}"
    cost, kernel = tw.explain(problem, target, plan).cost, tw.compile(problem, target, plan)
    report = tw.simulate(kernel, *(np.ones((128, 128), np.float32) for _ in "ab"))
    shared, l2, memory = ({what: size * times for what, size, times, _ in terms} for terms in cost.traffic.values())
    assert report.of("tiles", "load", "shared").bytes == shared["A read"] + shared["B read"] + shared["sums read"]
    for name in "ab":
        assert report.of(name).bytes == memory[f"{name.upper()} read"]
    assert report.of("workspace", "store").bytes == memory["A written"] + memory["B written"]
    *_, product, native = kernel.launches                       # of whose threads each asks whether it is needed
    flags = sum(4 * np.prod(x.grid) * x.function.threads[0] for x in (product, native))
    assert report.of("workspace", "load").bytes == l2["A"] + l2["B"] + flags


@pytest.mark.parametrize("a", ["f32", "f64"])
@pytest.mark.parametrize("size", [(4096, 4096, 4096), (1, 4096, 4096), (2039, 2039, 2039), (64, 4096, 4096)])
def test_every_plan_on_nvidia_is_explained(a, size):
    for chip in ("sm_90a", "sm_75"):
        found = tw.explain(tw.Gemm(*size, a), chip)
        assert found.plan == tw.plan(tw.Gemm(*size, a), chip)
        assert found.record()["time"]["predicted"] == found.cost.seconds > 0
        assert f"\nplan        {found.plan}\n" in str(found)
        assert found.cost.seconds > 2 * size[0] * size[1] * size[2] / gpu.planner(found.target).peak(
            found.shape, found.plan, found.target)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("a", ["f16", "f32", "i8"])
def test_bytes_over_rates_are_the_times(chip, a):
    problem, target = gemm(4096, 4096, 4096, a), tw.target(chip)
    found = tw.explain(problem, target)
    assert found.plan == tw.plan(problem, target)
    assert found.cost == gpu.cost(amd.shape_of(problem), found.plan, target)
    parts = dict(found.cost.parts)
    # the planner leaves out what is loaded ahead of the last tile of k
    rates = {"memory": target.bandwidth, "L2": amd_model.L2_CLOCK * target.xcds * target.clock}
    for level, rate in rates.items():
        assert bytes_of(found.cost.traffic[level]) / rate == pytest.approx(parts[level], rel=0.1)
    groups = found.plan.tiles(4096, 4096) * found.plan.split_k
    turns = -(-groups // target.cus) * target.cus / groups          # some compute units have nothing to do in the end
    clocks = sum(size * times / (target.lds_clock if "read" in what else amd_model.WRITE_CLOCK)
                 for what, size, times, _ in found.cost.traffic["LDS"])
    assert clocks / target.cus / target.clock * turns == pytest.approx(parts["LDS"], rel=0.1)
    assert [other.slower for other in found.alternatives] == sorted(other.slower for other in found.alternatives)
    text = str(found)
    assert f"\nplan        {found.plan}\n" in text
    assert f"{bytes_of(found.cost.traffic['memory']):,} bytes" in text
    assert "nothing here has been measured" in text


def test_a_plan_of_ones_own():
    problem, target = gemm(4096, 4096, 4096, "f16"), tw.target("gfx942")
    slow = tw.explain(problem, target, "mfma 64x64x32 wave=32x32 mfma=32")
    assert slow.origin == "given"
    assert slow.alternatives[0].plan == tw.plan(problem, target)
    assert slow.alternatives[0].slower < 0
    refused = tw.explain(problem, target, "mfma 64x64x32 wave=32x32 mfma=32 stages=3")
    assert refused.cost is None
    assert "\ncannot run  copies through registers have 2 stages, not 3." in str(refused)


def test_what_is_not_explained():
    assert "the product is empty" in str(tw.explain(gemm(0, 5, 5, "f16"), tw.target("gfx942")))
    for chip in ("gfx942", "sm_75"):
        with pytest.raises(RuntimeError, match=f"{chip} code cannot run on this machine"):
            tw.explain(gemm(8, 8, 8, "f16"), chip, measure=True)
    with pytest.raises(ValueError, match=r"small multiplies batches .* 1 times; of other complex matrices"):
        tw.explain(tw.Gemm(8, 8, 8, "c64"), tw.target("sm_90a"))


def test_on_the_command_line():
    printed = said("explain", 1024, 1024, 1024, "-d", "mxfp4", "-l", "nt", "-t", "gfx950")
    assert str(tw.explain(tw.Gemm(1024, 1024, 1024, "mxfp4", layout="nt"), tw.target("gfx950"))) in printed
    said("explain", 64, 64, 64, "-d", "f16", "-t", "gfx942", "--plan", "mfma 64x64x8 wave=32x32 mfma=32", status=1)


# Megabytes of DRAM that ncu counted on an H200 (2026-12-01), whose driver says that L2 has 60 MiB
WIDE = "wgmma 128x256x64 stages=4 warpgroups=2 cluster=2x1 vector_c=2 store=tma"
NARROW = "simt 64x128x16 warp=32x64 thread=8x8 stages=2 copy=registers vector=4 order=columns prefetch_first tail"
MOVED = [
    (4096, "bf16", "f32", WIDE, 202.6), (4096, "bf16", "bf16", WIDE, 174.5), (8192, "bf16", "bf16", WIDE, 1366.2),
    (4096, "bf16", "f32", f"{WIDE} group_m=2", 234.7), (4096, "bf16", "f32", f"{WIDE} group_m=16", 228.5),
    (4096, "bf16", "f32", "wgmma 128x128x64 stages=6 warpgroups=2 pingpong cluster=2x1 vector_c=2 store=tma", 231.8),
    (4096, "f32", "f32", NARROW, 708.3), (6144, "f32", "f32", NARROW, 2545.6),
    (4096, "f32", "f32", "simt 128x256x8 warp=64x64 thread=8x16 stages=2 copy=registers vector=4 order=columns "
     "registers=224 tail", 662.9),
    (4096, "f64", "f64", "dmma 128x128x8 warp=32x64 stages=6 vector=2 tail", 1226.4),
    (2039, "f32", "f32", "simt 128x128x8 warp=64x64 thread=8x16 stages=2 copy=registers order=columns registers=240 "
     "prefetch_first", 35.8),
    (8192, "e4m3fn", "bf16", "wgmma 128x192x128 stages=4 warpgroups=2 cluster=2x1 vector_c=2 store=tma promote=128 "
     "copied=b", 748.3)]


def test_bytes_of_dram_are_those_that_were_measured():
    """By what L2 keeps from one round of CTAs to the next, and of what is written."""
    chip = replace(tw.target("sm_90a"), l2=60 << 20)
    for n, a, out, plan, measured in MOVED:
        found = tw.explain(tw.Gemm(n, n, n, a, out=out), chip, plan)
        moved = found.level("memory").moved
        assert 0.82 < measured * 1e6 / moved < 1.15, plan
    assert f"{moved:,} bytes, predicted between DRAM and an empty L2" in str(found)


@pytest.mark.parametrize(("chip", "a", "said", "rate"), [
    ("mi300x", "bf16", "AMD Instinct MI300X reached 708 TFLOP/s of bf16 at 1,207 MHz, 54% of its ceiling", 708),
    ("mi325x", "e4m3fnuz", "AMD Instinct MI325X reached 1,519 TFLOP/s of fp8 at 1,464 MHz, 58% of its ceiling", 1519),
    ("mi355x", "bf16", "AMD Instinct MI325X reached 843 TFLOP/s of bf16 at 1,447 MHz, 64% of its ceiling", 1623),
    ("mi355x", "mxfp4", "AMD Instinct MI350X reached 3,300 TFLOP/s of e2m1, 36% of its ceiling", 3600),
])
def test_what_sustained_clocks_make_of_a_prediction(chip, a, said, rate):
    """Published rates, with their sources; where there is none for the chip by the share of another one's ceiling."""
    found = tw.explain(gemm(8192, 8192, 8192, a), tw.target(chip))
    assert found.flops / found.time.predicted > rate * 1e12
    assert said in str(found)
    assert "(https://" in found.time.notes[0]
    assert f": {rate:,} TFLOP/s" in found.time.notes[1]
    assert ("with that share of the ceiling here" in found.time.notes[1]) == (chip == "mi355x")


def test_what_needs_no_remark_on_clocks():
    assert not tw.explain(gemm(16, 4096, 4096, "bf16"), tw.target("gfx942")).time.notes         # bound by memory
    assert not tw.explain(gemm(4096, 4096, 4096, "f64"), tw.target("gfx942")).time.notes        # nothing is published
    on_hopper = tw.explain(gemm(4096, 4096, 4096, "bf16"), tw.target("sm_90a")).time.notes
    assert len(on_hopper) == 1
    assert "measured plans" in on_hopper[0]
