"""Targets and plans as text, and problems, as arguments: what is taken, and the sentences for the rest."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright import targets
from tilewright.ir import Kernel, f32, ptr
from tilewright.plans import asked
from tilewright.runtime.hip import driver
from tilewright.targets import AmdTarget, CpuTarget, GpuTarget

G = tw.Gemm(24, 20, 16, "f32")
ONE_OF_EACH = {
    "neon": "packed 6x16 mc=24 kc=16 nc=32",
    "sm_90a": "simt 64x64x16 warp=32x32 thread=8x4 stages=2 vector=4",
    "gfx942": "mfma 32x64x64 wave=32x32 mfma=32 copy=registers stages=2 vector=4",
}
OURS = tw.detect().name


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_the_name_of_a_target_is_that_target(name):
    chip = tw.target(name)
    assert tw.target(chip) is chip
    assert tw.plan(G, name) == tw.plan(G, chip)
    assert tw.compile(G, name).plan == tw.compile(G, chip).plan
    if not isinstance(chip, GpuTarget):
        assert str(tw.explain(G, name)).splitlines()[0] == str(tw.explain(G, chip)).splitlines()[0]


@pytest.mark.parametrize(("name", "text"), ONE_OF_EACH.items())
def test_the_text_of_a_plan_is_that_plan(name, text):
    plan = asked.plan(text)
    assert str(plan) == text
    assert asked.plan(plan) is plan
    assert asked.plan(text, tw.target(name)) == plan


def test_matmul_gemm_and_pack_take_the_text_of_a_plan_and_the_name_of_a_target():
    a, b = np.ones((24, 16), np.float32), np.ones((16, 20), np.float32)
    lanes = tw.detect().lanes(4)
    text = f"packed 4x{lanes} mc=24 kc=16 nc={lanes * 2}"
    np.testing.assert_array_equal(tw.matmul(a, b, plan=text), a @ b)
    c = np.zeros((24, 20), np.float32)
    np.testing.assert_array_equal(tw.gemm(1, a, b, 0, c, plan=text), a @ b)
    weights = tw.pack(b, plan=text, target=OURS)
    assert str(weights.plan) == text
    assert weights.target.name == OURS
    np.testing.assert_array_equal(tw.matmul(a, weights), a @ b)


def test_a_plan_of_another_kind_of_chip_is_refused_with_both_names():
    said = r"plan simt .* is for an NVIDIA GPU, and neon is a CPU, whose plans look like 'packed"
    for call in (tw.compile, tw.explain):
        with pytest.raises(ValueError, match=said):
            call(G, "neon", ONE_OF_EACH["sm_90a"])
    with pytest.raises(ValueError, match=r"plan packed .* is for a CPU, and sm_90a is an NVIDIA GPU"):
        tw.compile(G, "sm_90a", asked.plan(ONE_OF_EACH["neon"]))
    with pytest.raises(ValueError, match=r"plan packed .* is for a CPU, and gfx942 is an AMD GPU"):
        tw.compile(G, "gfx942", ONE_OF_EACH["neon"])
    with pytest.raises(ValueError, match=r"plan simt .* is for an NVIDIA GPU"):
        tw.pack(np.ones((2, 2)), plan=ONE_OF_EACH["sm_90a"])


@pytest.mark.parametrize(
    "call",
    [
        lambda **options: tw.matmul(np.ones((2, 2)), np.ones((2, 2)), **options),
        lambda **options: tw.gemm(1, np.ones((2, 2)), np.ones((2, 2)), 0, np.ones((2, 2)), **options),
        lambda **options: tw.pack(np.ones((2, 2)), **options),
        lambda **options: tw.compile(G, **options),
        lambda **options: tw.explain(G, **options),
    ],
)
def test_what_is_no_plan(call):
    with pytest.raises(ValueError, match=r"not a plan: 'fast'; one looks like 'packed .* \(a CPU\), 'simt .* 'mfma"):
        call(plan="fast")
    with pytest.raises(ValueError, match="not a plan for a CPU: 'packed'"):
        call(plan="packed")
    with pytest.raises(TypeError, match="plan must be a plan or the text of one, not int 5"):
        call(plan=5)


def test_what_is_no_target():
    for wrong in (5, [], b"neon"):
        for call in (tw.target, lambda x: tw.plan(G, x), lambda x: tw.compile(G, x), lambda x: tw.explain(G, x),
                     lambda x: tw.tune(G, x), lambda x: tw.pack(np.ones((2, 2)), target=x)):
            with pytest.raises(TypeError, match=r"target must be a name, such as 'x86-avx2'.*, not (int|list|bytes) "):
                call(wrong)
    with pytest.raises(TypeError, match="target must be a name"):
        tw.target(None)
    for call in (tw.plan, tw.compile, tw.explain, tw.tune):
        with pytest.raises(ValueError, match="there is no target 'pentium'; there are: x86-avx512"):
            call(G, "pentium")
    with pytest.raises(ValueError, match="target must be a CPU, and sm_90a is an NVIDIA GPU; there are: x86"):
        tw.pack(np.ones((2, 2)), target="h100")


def test_coerce():
    assert targets.coerce(None) is tw.detect()
    assert targets.coerce("mi300x", AmdTarget).name == "gfx942"
    with pytest.raises(ValueError, match="must be an NVIDIA GPU or an AMD GPU, and neon is a CPU; there are: sm_75"):
        targets.coerce("neon", GpuTarget | AmdTarget)
    with pytest.raises(ValueError, match="must be a CPU, and gfx950 is an AMD GPU"):
        targets.coerce("mi355x", CpuTarget)


def test_simulate_takes_the_name_of_a_gpu():
    k = Kernel("double", threads=32, x=ptr(f32))
    (x,) = k.args
    x[k.thread[0]] = x[k.thread[0]] + x[k.thread[0]]
    values = np.arange(32, dtype=np.float32)
    report = tw.simulate(k.function, values, grid=(1, 1), target="sm_90a")
    np.testing.assert_array_equal(values, 2 * np.arange(32, dtype=np.float32))
    assert report is not None
    with pytest.raises(ValueError, match="must be an NVIDIA GPU or an AMD GPU, and x86-avx2 is a CPU"):
        tw.simulate(k.function, values, grid=(1, 1), target="x86-avx2")
    with pytest.raises(TypeError, match=r"kernel must be what tilewright.compile made, or a recorded .*, not str"):
        tw.simulate("gfx942", values, values)


@pytest.mark.parametrize("call", [tw.plan, tw.compile, tw.explain, tw.tune])
def test_what_is_no_problem(call):
    for wrong in ((2, 3, 4), None, "gemm_f32_nn_2x3x4"):
        with pytest.raises(TypeError, match=r"problem must be a tilewright.Gemm, such as Gemm\(m, n, k, 'f32'\), or an "
                                            "Attention, not "):
            call(wrong)


@pytest.mark.parametrize("format", ["i16", "i64", "bool"])
@pytest.mark.parametrize("target", ["sm_90a", "sm_75"])
def test_other_formats_are_refused_by_one_sentence(format, target):
    """It names the target, the formats of the problem and those that are taken."""
    p = tw.Gemm(8, 8, 32, format, layout="nt")
    said = rf"no plan for .* on {target}: {target} has kernels for f32, f64, f16, .* not for {format} by {format}"
    for call in (tw.plan, tw.compile, tw.explain):
        with pytest.raises(ValueError, match=said):
            call(p, target)


@pytest.mark.parametrize("target", ["sm_90a", "sm_75"])
def test_complex_matrices_have_plans_in_small_batches_alone(target):
    """Of others matmul makes real ones: the sentence says so."""
    for call in (tw.plan, tw.compile, tw.explain):
        with pytest.raises(ValueError, match=rf"on {target}: small multiplies batches .* of other complex matrices"):
            call(tw.Gemm(8, 8, 32, "c64", layout="nt"), target)
    assert tw.plan(tw.Gemm(8, 8, 32, "c64", layout="nt", batch=9), target).algorithm == "small"


@pytest.mark.parametrize(("a", "b", "target", "multiplied"), [
    ("f32", "f64", "sm_90a", "f64"), ("bf16", "f16", "sm_80", "f32"), ("e4m3fn", "e4m3fn", "sm_80", "f16"),
    ("bf16", "bf16", "sm_75", "f32")])
def test_formats_that_no_kernel_takes_together_are_converted(a, b, target, multiplied):
    """A plan, a compiled kernel and its manifest are those of what is multiplied."""
    p = tw.Gemm(8, 8, 8, a, b)
    lowered = tw.Gemm(8, 8, 8, multiplied, out=p.out)
    assert "is converted from" in str(tw.explain(p, target))
    assert tw.plan(p, target) == tw.plan(lowered, target)
    kernel = tw.compile(p, target)
    assert (kernel.problem, kernel.lowered, kernel.inner.problem) == (p, lowered, lowered)
    assert kernel.manifest == tw.compile(lowered, target).manifest | {"problem": str(p), "multiplied": str(lowered)}


@pytest.mark.parametrize("name", ["gfx942", "gfx950"])
@pytest.mark.parametrize("format", ["i16", "u16", "c64", "bool"])
def test_what_no_matrix_core_multiplies(name, format):
    for call in (tw.plan, tw.compile, tw.explain):
        with pytest.raises(ValueError, match=rf"{name} has no matrix instruction for {format}; it has them for f64"):
            call(tw.Gemm(32, 32, 32, format), name)


def test_detect_takes_the_vendors_names(monkeypatch):
    def nothing():
        raise driver.Unavailable("no HIP here")

    monkeypatch.setattr("tilewright.runtime.hip.driver.library.count", nothing)
    for family in ("amd", "rocm"):
        with pytest.raises(RuntimeError, match="no HIP here"):
            tw.detect(family)
    monkeypatch.setattr("tilewright.runtime.cuda.driver.library.count", nothing)
    monkeypatch.setattr("tilewright.runtime.cuda.driver.device.found", {})
    for family in ("nvidia", "cuda"):
        with pytest.raises(RuntimeError, match="no HIP here"):
            tw.detect(family)
    with pytest.raises(ValueError, match=r"family must be 'cpu', 'nvidia' \(or 'cuda'\) or 'amd' \(or 'rocm'\), not "):
        tw.detect("intel")
