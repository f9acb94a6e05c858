"""Every field of a problem, by every algorithm: it changes the kernel, or the planner refuses it. None is dropped."""

from __future__ import annotations

from contextlib import suppress

import pytest

import tilewright as tw
from tilewright.ir.digest import digest
from tilewright.plans import gpu, gpu_lowering
from tilewright.targets import CpuTarget, target

DISTANCES, NEAREST = tw.semiring(lambda x, y: (x - y) ** 2), tw.semiring(lambda x, y: x + y, "argmin")
CHANGES = {
    "out": {"out": "bf16"},
    "layout": {"layout": "tt"},
    "batch": {"batch": 3},
    "scales": {"scales": "rows"},
    "scales of blocks": {"scales": "1x128"},
    "epilogue": {"epilogue": tw.epilogue(lambda acc: tw.maximum(acc, 0.0))},
    "epilogue with an operand": {"epilogue": tw.epilogue(lambda acc, bias: acc + bias, bias="f32 row")},
    "prologue_a": {},
    "prologue_b": {},
    "semiring": {"semiring": DISTANCES},
    "semiring with a state": {"semiring": NEAREST},
}
# (target, algorithm, what differs from a product of f32, a plan's text or "" for the first candidate)
FAMILIES = [
    ("x86-avx2", "packed", {}, "packed 4x16 mc=96 kc=256 nc=4080"),
    ("x86-avx2", "in_place", {}, "in_place 4x16"),
    ("x86-avx2", "stream", {"m": 2}, "stream 2x4"),
    ("x86-avx2", "dots", {"layout": "nt", "n": 2}, "dots 3x2"),
    ("sm_90a", "simt", {}, ""),
    ("sm_90a", "gemv", {"m": 1}, ""),
    ("sm_90a", "dmma", {"a": "f64"}, ""),
    ("sm_90a", "mma", {"a": "f16", "layout": "nt"}, ""),
    ("sm_90a", "wgmma", {"a": "f16", "layout": "nt"}, ""),
    ("sm_90a", "small", {"batch": 2}, ""),
    ("gfx942", "mfma", {}, ""),
    ("gfx942", "xf32", {}, "xf32 32x32x32 wave=32x32 mfma=32 vector=4"),
    ("gfx950", "scaled", {"a": "mxfp8", "k": 256}, ""),
    ("gfx942", "mfma", {"a": "mxfp8"}, ""),
]


def problem(m=64, n=32, k=64, **fields):
    return tw.Gemm(m, n, k, **fields)


def first_plan(chip, algorithm, p):
    shape = gpu_lowering.multiplied_shape(p, chip)
    return next(plan for plan in gpu.planner(chip).candidates(shape, chip)
                if plan.algorithm == algorithm and not plan.violations(shape, chip))


def emitted(chip, plan, p):
    """The functions, and whether a pass of its own converts the result."""
    kernel = tw.compile(p, chip, plan)
    converts = getattr(kernel, "lowered", p).out != p.out
    return converts, *(digest(function) for function in kernel.functions)


@pytest.mark.parametrize(("chip", "algorithm", "fields", "text"), FAMILIES, ids=[f"{x[0]}-{x[1]}" for x in FAMILIES])
def test_no_field_of_a_problem_is_dropped(chip, algorithm, fields, text):
    chip = target(chip)
    plan = text or first_plan(chip, algorithm, problem(**fields))
    usual, dropped = emitted(chip, plan, problem(**fields)), []
    for name, change in CHANGES.items():
        with suppress(ValueError):
            if name.startswith("prologue"):
                change = {name: tw.prologue(lambda x: x * 2.0, fields.get("a", "f32"))}
            if emitted(chip, plan, problem(**fields | change)) == usual:
                dropped.append(name)
    # a CPU's products of a batch follow each other, and `small` is for any number of them
    assert dropped == ["batch"] * (isinstance(chip, CpuTarget) or algorithm == "small")


@pytest.mark.parametrize("chip", ["gfx942", "gfx950"])
@pytest.mark.parametrize("semiring", [DISTANCES, NEAREST], ids=["distances", "nearest"])
def test_amd_refuses_a_semiring_at_every_entry(chip, semiring, tmp_path):
    p = tw.Gemm(64, 32, 48, semiring=semiring)
    entries = [tw.compile, tw.plan, tw.explain, lambda p, chip: tw.compile(p, chip, FAMILIES[-3][-1]),
               lambda p, chip: tw.build([p], tmp_path / "bundle", chip)]
    for entry in entries:
        with pytest.raises(ValueError, match=f"kernels of {chip} take no semiring .tilewright.contract runs on CPUs"):
            entry(p, chip)
