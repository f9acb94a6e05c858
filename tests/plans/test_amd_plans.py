"""Plans for AMD's GPUs: text, what is wrong with one, rates, choices, and what becomes of them as machine code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.gemms import right
from tilewright.atoms.amd import mfma_instructions
from tilewright.compiled import amd as compiled_amd
from tilewright.inspect import amd_cycles
from tilewright.kernels.amd.gemm import instruction
from tilewright.plans import amd, gpu_shape
from tilewright.plans.amd import AmdPlan
from tilewright.targets import target

MXFP4 = "mxfp4 mxfp4"
CHIPS = ("gfx942", "gfx950")
EIGHT = {"gfx942": "e4m3fnuz", "gfx950": "e4m3fn"}
PLAIN = {chip: ("f64", "f32", "f16", "bf16", "i8", eight) for chip, eight in EIGHT.items()}
SUMS = {"f64": "f64", "i8": "i32"}
MX = ("mxfp8", "mxfp6", "mxfp4")
SHAPE = {"a": "f16", "b": "f16", "out": "f32", "m": 512, "n": 512, "k": 512}
PLAN = AmdPlan("mfma", 128, 128, 64, 64, 64)


def gemm(m, n, k, a, layout="nt"):
    return tw.Gemm(m, n, k, a, out=SUMS.get(a, "f32"), layout=layout)


@pytest.mark.parametrize("plan", [
    PLAN, replace(PLAN, algorithm="scaled", cta_k=256, mfma=16, copy="lds", stages=3),
    AmdPlan("xf32", 64, 32, 32, 32, 32, vector=1, vector_c=2, split_k=7, group_m=3),
])
def test_a_plan_is_read_back(plan):
    assert AmdPlan.parse(str(plan)) == plan


@pytest.mark.parametrize("text", ["", "mfma", "fma 64x64x64 wave=32x32", "mfma 64x64 wave=32x32",
                                  "mfma 64x64x64 wave=32", "mfma 64x64x64 32x32", "mfma 64x64x64 wave=32x32 copy=tma",
                                  "mfma 64x64x64 wave=32x32 depth=2", "mfma 64x64x64 wave=32x32 mfma=x"])
def test_what_is_no_plan(text):
    with pytest.raises(ValueError, match=r"not a plan for an AMD GPU: .*; one looks like 'mfma 256x256x32"):
        AmdPlan.parse(text)


@pytest.mark.parametrize(("chip", "plan", "shape", "words"), [
    ("gfx942", {"cta_k": 0}, {}, "cta_k is 0"),
    ("gfx942", {"mfma": 8}, {}, "it is 8"),
    ("gfx942", {}, {"a": "f64", "b": "f64", "out": "f64"}, "mfma must be 16 or 32, and 16 for f64"),
    ("gfx950", {}, {"a": "e2m1", "b": "e2m1", "scaled": MXFP4}, "need the algorithm scaled"),
    ("gfx950", {"algorithm": "scaled"}, {}, "f16 has none here"),
    ("gfx942", {"algorithm": "scaled"}, {"a": "e2m1", "b": "e2m1", "scaled": MXFP4}, "gfx942 has no matrix"),
    ("gfx942", {"algorithm": "xf32"}, {}, "xf32 multiplies f32, and this is f16 by f16"),
    ("gfx950", {"algorithm": "xf32"}, {"a": "f32", "b": "f32"}, "gfx950 has no matrix instruction for xf32"),
    ("gfx942", {}, {"a": "e4m3fn", "b": "e4m3fn"}, "gfx942 has no matrix instruction for e4m3fn"),
    ("gfx942", {}, {"b": "bf16"}, "no matrix instruction multiplies f16 by bf16"),
    ("gfx950", {}, {"a": "e2m1", "b": "e2m1"}, "e2m1 is multiplied with block scales only: mxfp4"),
    ("gfx950", {}, {"a": "e4m3fn", "b": "e3m2"}, "e3m2 is multiplied with block scales only: mxfp6_e3m2"),
    ("gfx950", {"algorithm": "scaled"}, {"a": "e2m1", "b": "e2m1", "scaled": MXFP4, "layout": "nn"}, "layout nt"),
    ("gfx950", {"algorithm": "scaled"}, {"a": "e2m1", "b": "e2m1", "scaled": MXFP4, "k": 500}, "in blocks of 32"),
    ("gfx950", {"algorithm": "scaled"}, {"a": "e2m1", "b": "e2m1", "scaled": MXFP4}, "cta_k = 64 is not 128 or"),
    ("gfx942", {}, {"out": "f64"}, "the result is f64, and these operands give f32, f16, bf16"),
    ("gfx942", {"warp_m": 96}, {}, "is not a multiple of wave tiles"),
    ("gfx942", {"warp_m": 16}, {}, "must have 32, 64, 128"),
    ("gfx942", {"cta_m": 192, "warp_m": 96}, {}, "must have 32, 64, 128"),
    ("gfx942", {"cta_m": 256, "cta_n": 256, "warp_m": 32, "warp_n": 32}, {}, "would have 4096 threads"),
    ("gfx942", {"cta_k": 48}, {}, "rows of 96 bytes"),
    ("gfx942", {"copy": "lds"}, {}, "gfx942 loads at most 4"),
    ("gfx942", {"copy": "lds"}, {"layout": "nn"}, "here n is contiguous, the elements have 16"),
    ("gfx950", {"copy": "lds"}, {"a": "f32", "b": "f32", "layout": "tt"}, "here m is contiguous"),
    ("gfx950", {"copy": "lds"}, {"layout": "tn", "m": 500}, "with m = 500 they have 1000"),
    ("gfx950", {"copy": "lds"}, {"layout": "nn", "n": 500}, "with n = 500 they have 1000"),
    ("gfx950", {"copy": "lds"}, {"layout": "tt", "m": 1 << 25}, "with m = 33554432 its rows are further apart"),
    ("gfx950", {"copy": "lds"}, {"k": 500}, "rows of a multiple of 16 bytes"),
    ("gfx950", {"copy": "lds"}, {"k": 1 << 25}, "reaches 2147483648 bytes"),
    ("gfx950", {"algorithm": "scaled", "cta_m": 128, "cta_n": 32, "cta_k": 128, "warp_m": 32, "warp_n": 32,
                "copy": "lds"}, {"a": "e2m1", "b": "e2m1", "scaled": MXFP4}, "does not divide into"),
    ("gfx950", {"stages": 3}, {}, "have 2 stages, not 3"),
    ("gfx950", {"copy": "lds", "stages": 1}, {}, "must not be less than 2"),
    ("gfx942", {}, {"layout": "nn", "n": 66}, "vector = 8 elements"),
    ("gfx942", {}, {"n": 66}, "vector_c = 4"),
    ("gfx942", {"cta_k": 256}, {}, "bytes of LDS, and gfx942 has 65536"),
    ("gfx942", {"cta_m": 256, "cta_n": 256, "warp_m": 256, "warp_n": 256}, {}, "registers"),
    ("gfx942", {"split_k": 9}, {}, "split_k = 9"),
])
def test_what_is_wrong_with_a_plan(chip, plan, shape, words):
    found = replace(PLAN, **plan).violations(gpu_shape.shape(**SHAPE | shape), target(chip))
    assert any(words in sentence for sentence in found), found
    assert all(sentence.endswith(".") for sentence in found)
    assert PLAN.violations(gpu_shape.shape(**SHAPE), target(chip)) == []


@pytest.mark.parametrize(("chip", "kinds", "taken"), [
    ("gfx942", ("f16", "bf16", "f32"), ("f32", "f32", "f32")), ("gfx942", ("f16", "f32", "f64"), ("f64",) * 3),
    ("gfx942", ("e4m3fn", "f16", "f16"), ("f16", "f16", "f16")), ("gfx950", ("e4m3fn", "e5m2", "bf16"), None),
    ("gfx942", ("i8", "i8", "i8"), None)], ids=str)
def test_formats_that_matmul_converts(chip, kinds, taken):
    """The plan, what is explained and what is compiled are those of the formats that are multiplied."""
    problem = tw.Gemm(300, 256, 128, *kinds, "nn")
    same = tw.Gemm(300, 256, 128, *(taken or kinds), "nn")
    assert tw.plan(problem, chip) == tw.plan(same, chip) == tw.explain(problem, chip).plan
    text = str(tw.explain(problem, chip))
    assert ("is converted from" in text) == (taken is not None)
    if kinds[0] == "e4m3fn" and taken:
        assert "A is converted from e4m3fn to f16 before" in text
    kernel = tw.compile(problem, chip)
    assert (kernel.plan, kernel.lowered, kernel.inner is kernel) == (tw.plan(problem, chip), same, taken is None)
    assert kernel.options == tw.compile(same, chip).options


def test_a_kernel_that_converts_is_simulated():
    """Whole numbers, so that formats are exact; the manifest names both products."""
    problem, lowered = tw.Gemm(40, 36, 40, "e4m3fn", "f16", "f16"), tw.Gemm(40, 36, 40, "f16")
    kernel = tw.compile(problem, "gfx942")
    assert kernel.manifest == tw.compile(lowered, "gfx942").manifest | {
        "problem": str(problem), "multiplied": str(lowered)}
    right(kernel, alpha=2, beta=-1)


@pytest.mark.parametrize("kinds", [("i16", "i16", "i32"), ("c64", "c64", "c64"), ("f32", "f32", "i32")], ids="-".join)
def test_formats_that_no_conversion_makes_products_of(kinds):
    with pytest.raises(ValueError, match=r"no plan for a 64x64x64 product of \w+ by \w+ into \w+, layout nn on gfx950"):
        tw.plan(tw.Gemm(64, 64, 64, *kinds, "nn"), "gfx950")


@pytest.mark.parametrize("chip", CHIPS)
def test_rates_are_those_of_the_instructions(chip):
    best: dict[str, float] = {}
    for atom in mfma_instructions(chip):
        if atom.blocks == 1 and atom.a_format == atom.b_format:
            rate = 2 * atom.m * atom.n * atom.k / atom.cycles[chip] * 4
            best[atom.a_format] = max(best.get(atom.a_format, 0), rate)
    assert best == target(chip).matrix_rates


@pytest.mark.parametrize("chip", CHIPS)
def test_the_kernel_takes_the_fastest_instruction(chip):
    for format in PLAIN[chip]:
        cta_k = 128 * 8 // gpu_shape.bits_of(format)
        atom = instruction(chip, 16 if format == "f64" else 32, format, format, cta_k)
        assert atom.flops / atom.cycles[chip] * 4 == target(chip).matrix_rates[format]


def test_the_page_has_the_plans_that_are_chosen():
    """What docs/amd-code.md says of 4096 x 4096 x 4096; the shares are those of tests/kernels/amd/test_amd_share.py."""
    rows = [[x.strip(" `") for x in line.split("|")[1:4]]
            for line in (Path(__file__).resolve().parents[2] / "docs/amd-code.md").read_text().splitlines()
            if line.startswith(("| gfx942 | ", "| gfx950 | "))]
    assert len(rows) >= 15
    for chip, a, written in rows:
        plan = tw.plan(gemm(4096, 4096, 4096, a), target(chip))
        words = [x.removeprefix("copy=") for x in str(plan).split() if not x.startswith("vector")]
        words = [f"{x[-1]} stages" if x.startswith("stages=") else x for x in words if x != "stages=2"]
        assert written == " ".join(words), (chip, a)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("size", [(1, 1, 32), (4096, 4096, 4096), (64, 8192, 8192), (999, 1001, 1024)])
def test_the_planner_chooses_what_can_run(chip, size):
    for a in (*PLAIN[chip], *MX):
        for layout in ("nt", "nn", "tn") if a not in MX else ("nt",):
            problem = gemm(*size, a, layout)
            plan = tw.plan(problem, target(chip))
            assert plan.violations(problem, target(chip)) == []
            assert AmdPlan.parse(str(plan)) == plan
            assert amd.cost(amd.shape_of(problem), plan, target(chip)).seconds > 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("chip", "a"), [*((chip, a) for chip in CHIPS for a in PLAIN[chip]),
                                         *(("gfx950", a) for a in MX)])
def test_machine_code_of_the_choice_for_4096(chip, a):
    kernel = tw.compile(gemm(4096, 4096, 4096, a), target(chip))
    used = kernel.resources
    assert used.vgpr_spills == 0
    assert used.waves >= 1
    assert used.lds <= target(chip).lds
    found = amd_cycles.count(kernel.function, target(chip), kernel.asm)
    assert found.units["matrix"] > 0
    # scales, and the tails of 6-bit operands, come by single words
    assert [line for line in found.narrow if a not in MX or "load_dword " not in line] == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", ["tn", "nn"])
@pytest.mark.parametrize("a", ["e4m3fnuz", "f16"])
def test_elements_that_are_loaded_one_by_one_leave_enough_registers(a, layout):
    """Of odd sizes whose rows lie along m or n: a register of its own for two bytes."""
    kernel = tw.compile(gemm(4097, 4097, 4096, a, layout), target("gfx942"))
    assert kernel.plan.vector == 1
    assert kernel.resources.vgpr_spills == kernel.resources.scratch == 0


@pytest.mark.parametrize("chip", CHIPS)
def test_what_a_compiled_kernel_tells(chip):
    kernel = tw.compile(gemm(128, 96, 256, "f16"), target(chip), "mfma 64x64x32 wave=32x32 mfma=32 split_k=2")
    (launch,) = kernel.launches
    assert (launch.grid, launch.workspace, launch.counters) == ((4, 1, 2), 2 * 4 * 64 * 64 * 4, 16)
    manifest = kernel.manifest
    assert manifest["plan"] == str(kernel.plan)
    where = {"m": 128, "n": 96}
    assert eval(manifest["workspace_bytes"], where) == launch.workspace
    assert eval(manifest["counter_bytes"], where) == launch.counters
    assert kernel.resources.vgpr_spills == 0


def launched(kernel, m, n, k):
    """C by a program that has the manifest and nothing else, on another size, and what it should be."""
    told, layout = kernel.manifest, kernel.problem.layout
    rng = np.random.default_rng(m)
    a, b = rng.integers(-3, 4, (m, k)), rng.integers(-3, 4, (k, n))
    given = {"m": m, "n": n, "k": k, "alpha": 3, "beta": 0, "ldc": n, "c": np.full((m, n), np.nan, np.float32)}
    for name, x, turn in (("a", a, layout[0] == "t"), ("b", b, layout[1] == "t")):
        held = np.ascontiguousarray(x.T if turn else x).astype(np.float16)
        given |= {name: held, f"ld{name}": held.shape[1]}
    numbers = {"a": 0, "b": 0} | {name: x for name, x in given.items() if not isinstance(x, np.ndarray)}
    assert all(eval(line, numbers) for line in told["requires"])
    if "workspace_bytes" in told:
        given["workspace"] = np.zeros(eval(told["workspace_bytes"], numbers) // 4, np.float32)
        given["counters"] = np.zeros(eval(told["counter_bytes"], numbers) // 4, np.int32)
    grid = [eval(str(x), numbers) for x in told["grid"]]
    flat = [given[x["name"]].ravel() if x["type"] == "ptr" else given[x["name"]] for x in told["arguments"]]
    tw.simulate(kernel.function, *flat, grid=grid, target=kernel.target)
    return given["c"], 3 * (a @ b)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize(("chip", "plan"), [("gfx942", "vector=8"), ("gfx942", "vector=2 vector_c=2 split_k=2"),
                                            ("gfx950", "copy=lds")])
def test_a_manifest_is_enough_to_launch_other_sizes(chip, plan, layout):
    kernel = tw.compile(gemm(128, 96, 256, "f16", layout), target(chip), f"mfma 64x64x32 wave=32x32 mfma=32 {plan}")
    for size in ((72, 80, 40), (8, 8, 8)):
        found, wanted = launched(kernel, *size)
        np.testing.assert_array_equal(found, wanted)
    with pytest.raises(AssertionError):
        launched(kernel, 72, 81, 40)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("a", [*PLAIN["gfx950"], *MX])
@pytest.mark.parametrize("chip", CHIPS)
def test_what_a_manifest_requires_is_so_of_its_own_problem(chip, a):
    for m, n, k in ((256, 256, 256), (65, 63, 97), (130, 68, 1000)):
        for layout in ("nt", "tn") if a not in MX else ("nt",):
            a = a.replace("e4m3fn", EIGHT[chip]) if a not in MX and not a.endswith("uz") else a
            kernel = tw.compile(gemm(m, n, k, a, layout), target(chip))
            shape, bits = kernel.shape, kernel.shape.bits[0]
            rows = [shape.k if layout == "nt" else extent for extent in (m, n)]
            ld = [x * bits // 8 for x in rows] if shape.scaled else rows
            numbers = {"m": m, "n": n, "k": shape.k, "a": 0, "b": 0, "lda": ld[0], "ldb": ld[1], "scale_a": 0,
                       "scale_b": 0, "ld_scale_a": shape.k // 32, "ld_scale_b": shape.k // 32}
            requires = compiled_amd.requires(shape, kernel.plan)
            assert [line for line in requires if not eval(line, numbers)] == []
            told = compiled_amd.computes(shape, kernel.plan)
            assert ("packed along k" in told) == (shape.scaled != "")


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("out", ["f16", "bf16"])
def test_block_scaled_operands_give_narrow_results_too_and_any_k(chip, out):
    """k = 100 is four blocks, the last filled up with zeros. The numbers are whole, so that one rounding is all."""
    right(tw.compile(tw.Gemm(40, 36, 100, "mxfp4", "mxfp8", out, layout="nt"), target(chip)))


def test_a_problem_without_a_plan_is_named_in_words():
    with pytest.raises(ValueError, match=r"gemm_mxfp4-mxfp4-f32_nn_100x90x500: block-scaled operands have k along "
                                         r"their rows, which is layout nt, not nn"):
        tw.plan(tw.Gemm(100, 90, 500, "mxfp4", layout="nn"), target("gfx950"))


@pytest.mark.parametrize("a", ["e2m1", "e2m3", "e3m2"])
@pytest.mark.parametrize("chip", CHIPS)
def test_packed_elements_without_scales_are_converted_to_bytes(chip, a):
    """No instruction multiplies them as they are."""
    problem = tw.Gemm(64, 64, 64, a, out="f32", layout="nt")
    kernel = tw.compile(problem, target(chip))
    (reason,) = kernel.plan.violations(problem, target(chip))
    assert reason.startswith(f"{a} is multiplied with block scales only: mxfp")
    assert kernel.lowered.a == kernel.lowered.b
    assert kernel.lowered.a.startswith("e4m3")


@pytest.mark.parametrize(("chip", "a"), [("gfx942", "mxfp8"), ("gfx942", "nvfp4"), ("gfx950", "nvfp4")])
def test_scales_that_no_instruction_takes_are_decoded_by_passes(chip, a):
    problem = tw.Gemm(256, 256, 256, a, layout="nt")
    plan = tw.plan(problem, target(chip))
    assert (plan.algorithm, plan.decoded) == ("mfma", "bf16")
    assert [x.written for x in plan.passes(amd.shape_of(problem))] == ["bf16", "bf16"]
    for words, says in (("decoded=none", "need the algorithm scaled, or decoded=bf16"),
                        ("algorithm=scaled", "has no matrix instructions with scales of")):
        name, word = words.split("=")
        other = replace(plan, **{"decoded": "none", name: word})
        with pytest.raises(ValueError, match=says):
            tw.compile(problem, target(chip), other)


@pytest.mark.parametrize("chip", CHIPS)
def test_small_products_are_spread_over_the_chip(chip):
    """A tile of C is all that a compute unit can do of a small product: many small tiles, none of them empty."""
    shape = amd.shape_of(gemm(512, 512, 512, "f16"))
    plan = amd.choose(shape, target(chip))
    assert plan.tiles(512, 512) * plan.split_k >= 64
    assert amd.choose(shape._replace(m=4096, n=4096), target(chip)).cta_m >= 128


@pytest.mark.parametrize("size", [(0, 8, 8), (8, 0, 8), (8, 8, 0)])
def test_empty_products_have_no_code(size):
    kernel = tw.compile(gemm(*size, "f16"), target("gfx942"))
    assert kernel.functions == kernel.launches == ()
    assert "no code" in kernel.asm
    for what in ("binary", "resources", "manifest"):
        with pytest.raises(ValueError, match="empty product"):
            getattr(kernel, what)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("k", [1, 5, 31])
def test_a_plan_for_less_than_one_block_of_k(chip, k):
    """Rows that come straight into LDS are multiples of 16 bytes."""
    for a in PLAIN[chip]:
        kernel = tw.compile(gemm(64, 64, k, a), target(chip))
        assert kernel.plan == tw.plan(kernel.problem, target(chip))
        assert kernel.plan.copy == "registers"


def test_a_plan_that_cannot_run_is_refused():
    with pytest.raises(ValueError, match=r"cannot run .* on gfx942: copies through registers have 2 stages"):
        tw.compile(gemm(128, 128, 128, "f16"), target("gfx942"), replace(PLAN, stages=3))


# ---- manifests at the boundary of 32 bits

BOUNDED = [
    ("gfx950", "mxfp6", "nt", "scaled 64x64x128 wave=32x32 mfma=32 copy=lds stages=2"),
    ("gfx950", "mxfp4", "nt", "scaled 256x256x256 wave=128x64 mfma=32 copy=lds stages=2 vector=32"),
    ("gfx950", "f16", "nt", "mfma 64x64x32 wave=32x32 mfma=32 copy=lds stages=3 split_k=4"),
    ("gfx950", "f16", "tn", "mfma 64x64x64 wave=32x32 mfma=32 copy=lds stages=3"),
    ("gfx942", "f16", "nt", "mfma 64x64x32 wave=32x32 mfma=32 copy=registers stages=2 split_k=3 group_m=4"),
]


@pytest.mark.parametrize(("chip", "a", "layout", "plan"), BOUNDED, ids=lambda x: str(x).partition(" ")[0])
def test_what_a_manifest_requires_at_the_boundary(chip, a, layout, plan):
    """Every distance of rows that a 32-bit offset of a direct load is made of, and every size, has a largest value."""
    kernel = tw.compile(gemm(64, 64, 256, a, layout), target(chip), plan)
    lines = compiled_amd.requires(kernel.shape, kernel.plan)
    fits = {"m": 64, "n": 64, "k": 256, "a": 0, "b": 0, "lda": 256, "ldb": 256, "ldc": 64, "scale_a": 0, "scale_b": 0,
            "ld_scale_a": 8, "ld_scale_b": 8, "c": 0}

    def refused(**change):
        return [line for line in lines if not eval(line, fits | change)]

    def largest(name, most):
        """The largest multiple of 16 up to which nothing is refused."""
        low, high = 16, most
        while high - low > 16:
            middle = (low + high) // 32 * 16
            low, high = (low, middle) if refused(**{name: middle}) else (middle, high)
        return low

    assert refused() == []
    p, direct = kernel.plan, kernel.plan.copy == "lds"
    extents = {"a": p.cta_m, "b": p.cta_n}
    for name, extent in extents.items():
        at_most = largest(f"ld{name}", 1 << 40)
        if not direct:
            assert at_most > 1 << 39  # 64-bit addresses
            continue
        bytes = 1 if kernel.shape.scaled else 2
        rows = extent if layout == "nt" else p.cta_k
        assert (1 << 31) - rows * 16 * bytes <= at_most * bytes * rows <= 1 << 31
        assert refused(**{f"ld{name}": -256})
        if p.direct_scales(kernel.shape):
            at_most = largest(f"ld_scale_{name}", 1 << 40)
            last = _last_row_of_scales(p, extent)
            assert last * at_most + p.cta_k // 32 < 1 << 32  # what the load adds to its base
            assert (last + 1) * (at_most + 16) > 1 << 30  # and no tighter than it need be
            assert refused(**{f"ld_scale_{name}": 100_000_000})
    for name in "mnk":
        assert [line for line in refused(**{name: (1 << 31) - 32}) if " <= " in line]
        assert not refused(**{name: 1 << 30})
    assert refused(m=1 << 30, n=1 << 30)  # more tiles than are counted


def _last_row_of_scales(p, extent):
    """As kernels/amd/scales.py shares rows out to threads."""
    warp = p.warp_m if extent == p.cta_m else p.warp_n
    tiles, words = warp // p.mfma, p.cta_k // 128
    copies = -(-extent * words // p.threads)
    lanes = ((place // (tiles * words), place % (tiles * words)) for place in range(copies * p.threads))
    return max(lane // p.mfma * (tiles * p.mfma) + mine // words * p.mfma + lane % p.mfma for lane, mine in lanes)
