"""The AMD ladder: one matrix instruction in the machine code, right products, and planted bugs that are found."""

from __future__ import annotations

import inspect
import re
import types
from collections import Counter
from pathlib import Path

import llvmlite.binding
import ml_dtypes
import numpy as np
import pytest

from tests.helpers import code_object
from tests.helpers.command_line import said as printed
from tilewright import simulator, targets
from tilewright.atoms.amd import mfma_instructions
from tilewright.compiled.compile import compiled as compiled_function
from tilewright.compiler import gate, lld
from tilewright.lab.ladder import amd1_f32, amd2_f16, amd3_fp8, amd4_mxfp8, amd5_mxfp4
from tilewright.lab.ladder.run import compiled, instructions, operands, simulate_amd
from tilewright.lab.ladder.steps import AMD_STEPS, AmdStep
from tilewright.simulator import Fault
from tilewright.targets import target

ALL = [(name, arch) for name, step in AMD_STEPS.items() for arch in step.targets]
EIGHTS = [("fp8", "fp8"), ("fp8", "bf8"), ("bf8", "fp8"), ("bf8", "bf8")]
FORMATS = [
    *((name, arch, {}) for name, arch in ALL),
    *(("fp8", arch, {"A": a, "B": b}) for arch in ("gfx942", "gfx950") for a, b in EIGHTS[1:]),
    *(("mxfp8", "gfx950", {"A": a, "B": b}) for a, b in [("e4m3fn", "e5m2"), ("e5m2", "e4m3fn"), ("e5m2", "e5m2")]),
]
ML = {"e4m3fn": "float8_e4m3fn", "e5m2": "float8_e5m2", "e4m3fnuz": "float8_e4m3fnuz", "e5m2fnuz": "float8_e5m2fnuz",
      "e2m1": "float4_e2m1fn"}


PAGE = (Path(__file__).resolve().parents[3] / "docs" / "matrix-cores.md").read_text()


def rng(seed=0):
    return np.random.default_rng(seed)


def decoded(held, format):
    """What an argument means in f64, by ml_dtypes: nibbles apart, the low one first."""
    if format not in ML:
        return held.astype(np.float64)
    if format == "e2m1":
        held = np.stack([held & 15, held >> 4], axis=-1).reshape(held.shape[0], -1)
    return held.view(getattr(ml_dtypes, ML[format])).astype(np.float64)


def meant(atom, args):
    """A and B of a step's arguments, in f64."""
    if not atom.scaled:
        return decoded(args[0], atom.a_format), decoded(args[1], atom.b_format)
    a, scale_a, b, scale_b = args[:4]
    return (decoded(a, atom.a_format) * np.repeat(2.0 ** (scale_a.astype(int) - 127), 32, axis=1),
            decoded(b, atom.b_format) * np.repeat(2.0 ** (scale_b.astype(int) - 127), 32, axis=0))


def run(function, *args, atom):
    """C, every element of which was written."""
    c = np.full((atom.m, atom.n), np.nan, np.float32)
    simulator.run(function, *args, c)
    assert not np.isnan(c).any()
    return c


# ---- the steps


def test_the_steps_are_those_of_the_article():
    assert [(step.atom(arch).name, arch) for step in AMD_STEPS.values() for arch in step.targets] == [
        ("v_mfma_f32_32x32x2_f32", "gfx942"), ("v_mfma_f32_32x32x2_f32", "gfx950"),
        ("v_mfma_f32_16x16x16_f16", "gfx942"), ("v_mfma_f32_16x16x16_f16", "gfx950"),
        ("v_mfma_f32_32x32x16_fp8_fp8", "gfx942"), ("v_mfma_f32_32x32x16_fp8_fp8", "gfx950"),
        ("v_mfma_scale_f32_32x32x64_f8f6f4", "gfx950"), ("v_mfma_scale_f32_32x32x64_f8f6f4", "gfx950"),
    ]


@pytest.mark.parametrize("name", AMD_STEPS)
def test_a_step_is_for_the_chips_that_have_its_instruction(name):
    step = AMD_STEPS[name]
    have = [arch for arch in targets.names("amd")
            if step.atom(step.targets[-1]).name in {x.name for x in mfma_instructions(arch)}]
    assert list(step.targets) == have
    for arch in set(targets.names("amd")) - set(have):
        with pytest.raises(ValueError, match=f"{arch} has no matrix instruction"):
            step.emit(arch)
        with pytest.raises(ValueError, match=f"{arch} lacks the instruction of step"):
            compiled(name, target(arch))
        with pytest.raises(NotImplementedError, match=arch):
            gate.check(step.emit(have[0]), target(arch))
    with pytest.raises(ValueError, match="no step 'fp16' of the AMD ladder, which is gfx950's; the steps are f32"):
        compiled("fp16", target("gfx950"))


# ---- products


@pytest.mark.parametrize(("name", "arch", "formats"), FORMATS)
@pytest.mark.parametrize("seed", range(3))
def test_whole_numbers_are_multiplied_exactly(name, arch, formats, seed):
    step = AMD_STEPS[name]
    atom = step.atom(arch, **formats)
    given = operands(atom, "integers", rng(seed))
    a, b = meant(atom, given.args)
    np.testing.assert_array_equal(run(step.emit(arch, **formats), *given.args[:-1], atom=atom), a @ b)
    assert (given.expected == a @ b).all()


@pytest.mark.parametrize(("name", "arch", "formats"), FORMATS)
def test_random_numbers_are_multiplied_right(name, arch, formats):
    """The simulator rounds a result once, so all of them are the nearest f32 to what NumPy finds in f64."""
    step = AMD_STEPS[name]
    atom = step.atom(arch, **formats)
    for seed in range(3):
        given = operands(atom, "random", rng(seed))
        a, b = meant(atom, given.args)
        c = run(step.emit(arch, **formats), *given.args[:-1], atom=atom)
        np.testing.assert_allclose(c, (a @ b).astype(np.float32), rtol=2**-23, atol=1e-12 * np.abs(a).max())
        given.c[:] = c
        assert given.error <= 1


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize(("A", "B"), EIGHTS)
def test_every_pattern_of_fp8(arch, A, B):
    """Each of the 256 bytes is somewhere in A, times 1, and then in B."""
    atom, function = amd3_fp8.atom(arch, A, B), amd3_fp8.emit_fp8(arch, A, B)
    one = {"fp8": {"gfx942": 0x40, "gfx950": 0x38}, "bf8": {"gfx942": 0x40, "gfx950": 0x3C}}

    def patterns(format):
        bytes_ = np.arange(512, dtype=np.uint8)
        return np.where(np.isfinite(decoded(bytes_, format)), bytes_, 0)    # times 0 the others would be nan

    a, b = patterns(atom.a_format).reshape(32, 16), np.zeros((16, 32), np.uint8)
    np.fill_diagonal(b, one[B][arch])
    c = run(function, a, b, atom=atom)
    np.testing.assert_array_equal(c[:, :16], decoded(a, atom.a_format))
    assert not c[:, 16:].any()
    a, b = np.zeros((32, 16), np.uint8), patterns(atom.b_format).reshape(16, 32)
    np.fill_diagonal(a, one[A][arch])
    c = run(function, a, b, atom=atom)
    np.testing.assert_array_equal(c[:16], decoded(b, atom.b_format))
    assert not c[16:].any()


def test_the_same_bytes_mean_four_times_as_much_on_cdna4():
    """The bias of OCP's e4m3 is one less than that of fnuz: twice as much of A, and of B."""
    a, b = rng().integers(0, 0x78, (32, 16)).astype(np.uint8), rng(1).integers(0, 0x78, (16, 32)).astype(np.uint8)
    fnuz, ocp = (run(amd3_fp8.emit_fp8(arch), a, b, atom=amd3_fp8.atom(arch)) for arch in ("gfx942", "gfx950"))
    np.testing.assert_array_equal(ocp, 4 * fnuz)


# ---- scales


@pytest.mark.parametrize(("name", "g"), [(name, g) for name in ("mxfp8", "mxfp4") for g in (0, 1)])
def test_a_lanes_scale_covers_32_along_k(name, g):
    """That of lane (row, g) is of A[row, 32 g : 32 g + 32], whoever holds those elements; so for columns of B."""
    step = AMD_STEPS[name]
    atom, function = step.atom("gfx950"), step.emit("gfx950")
    given = operands(atom, "integers", rng(7))
    a, scale_a, b, scale_b = given.args[:4]
    scale_a[:], scale_b[:] = 127, 127
    whole_a, whole_b = meant(atom, given.args)
    block = slice(32 * g, 32 * g + 32)
    within = whole_a[:, block] @ whole_b[block]
    for i in (0, 13, 31):
        changed = scale_a.copy()
        changed[i, g] += 3                  # what lane i + 32 g brings
        expected = whole_a @ whole_b
        expected[i] += 7 * within[i]
        np.testing.assert_array_equal(run(function, a, changed, b, scale_b, atom=atom), expected)
        changed = scale_b.copy()
        changed[g, i] += 3
        expected = whole_a @ whole_b
        expected[:, i] += 7 * within[:, i]
        np.testing.assert_array_equal(run(function, a, scale_a, b, changed, atom=atom), expected)


@pytest.mark.parametrize("name", ["mxfp8", "mxfp4"])
def test_scales_of_all_exponents(name):
    """From 2^-120 to 2^120, a row each, and 255, which is nan for the elements of its block."""
    step = AMD_STEPS[name]
    given = operands(step.atom("gfx950"), "integers", rng(3))
    _, scale_a, _, scale_b = given.args[:4]
    scale_a[:], scale_b[:] = np.arange(7, 256, 8)[:, None], 127
    whole_a, whole_b = meant(step.atom("gfx950"), given.args)
    simulator.run(step.emit("gfx950"), *given.args)
    np.testing.assert_array_equal(given.c[:31], whole_a[:31] @ whole_b)
    assert np.isnan(given.c[31]).all()


# ---- planted bugs


def planted(module, old="", new=""):
    """The module with a piece of its text replaced."""
    source = inspect.getsource(module)
    assert source.count(old) == 1 or not old, f"{old!r} is {source.count(old)} times in {module.__name__}"
    changed = types.ModuleType("planted")
    exec(compile(source.replace(old, new) if old else source, f"{module.__name__} with a bug", "exec"),
         changed.__dict__)
    (emit,) = (value for name, value in vars(changed).items() if name.startswith("emit_"))
    return emit


BUGS = [
    (amd1_f32, "a[ATOM.a(lane, 0)]", "a[ATOM.a(lane ^ 32, 0)]"),                    # halves of the wave
    (amd1_f32, "b[ATOM.b(lane, 0)]", "b[ATOM.b(lane ^ 1, 0)]"),                     # neighbours
    (amd1_f32, "a[ATOM.a(lane, 0)]", "a[lane // 2, lane % 2]"),                     # rows as they lie in memory
    (amd1_f32, "c[ATOM.c(lane, e)]", "c[ATOM.c(lane, e)[::-1]]"),                   # transposed
    (amd1_f32, "c[ATOM.c(lane, e)]", "c[lane // 32 * 16 + e, lane % 32]"),          # 16 rows in a lane
    (amd2_f16, "*ATOM.a(lane, 0)", "lane // 4, lane % 4 * 4"),                      # rows as they lie in memory
    (amd2_f16, "b[ATOM.b(lane, e)]", "b[ATOM.b(lane, 3 - e)]"),                     # k backwards
    (amd2_f16, "c[ATOM.c(lane, e)]", "c[e * 4 + lane // 16, lane % 16]"),           # the layout of f64
    (amd3_fp8, "b[ATOM.b(lane, e)]", "b[ATOM.b(lane, e ^ 1)]"),                     # two bytes exchanged
    (amd3_fp8, "b[ATOM.b(lane, e)]", "b[e * 2 + lane // 32, lane % 32]"),           # every second k
    (amd3_fp8, "find(f\"v_mfma_f32_32x32x16_{A}_{B}\", ARCH)",
     "find(f\"v_mfma_f32_32x32x16_{A}_{B}\", {'gfx942': 'gfx950', 'gfx950': 'gfx942'}[ARCH])"),
    (amd4_mxfp8, "a.at(*ATOM.a(lane, e))", "a.at(lane % 32, lane // 32 * 32 + e)"),  # one run of 32, as of fp4
    (amd4_mxfp8, "scale_a[ATOM.scale_a(lane)]", "scale_a[ATOM.scale_a(lane ^ 32)]"),
    (amd4_mxfp8, "scale_b[ATOM.scale_b(lane)]", "scale_b[ATOM.scale_b(lane ^ 32)]"),
    (amd4_mxfp8, "scale_b[ATOM.scale_b(lane)]", "scale_a[ATOM.scale_a(lane)]"),
    (amd4_mxfp8, "scale_a[ATOM.scale_a(lane)]", "scale_a[lane // 2, lane % 2]"),
    (amd4_mxfp8, "k.cast(scale_a[ATOM.scale_a(lane)], i32)", "k.constant(i32, 127)"),
    (amd4_mxfp8, "k.mma(ATOM,", "k.mma(ATOM.bytes(1, 0),"),                         # another byte of the scale
    (amd5_mxfp4, "column % 2 * 4", "(column + 1) % 2 * 4"),                         # the other nibble
    (amd5_mxfp4, "e % 8 * 4", "(e ^ 1) % 8 * 4"),                                   # two nibbles exchanged
    (amd5_mxfp4, " & 15", " & 7"),                                                  # the sign lost
    (amd5_mxfp4, "b[row, column // 2]", "b[row, column % 16]"),
    (amd5_mxfp4, "a.at(row, column // 2)", "a.at(row ^ 1, column // 2)"),
    (amd5_mxfp4, "scale_a[ATOM.scale_a(lane)]", "scale_a[ATOM.scale_a(lane ^ 32)]"),
    (amd5_mxfp4, "scale_b[ATOM.scale_b(lane)]", "scale_b[ATOM.scale_b(lane ^ 1)]"),
]


def step_of(module):
    return next(step for step in AMD_STEPS.values() if step.emit.__module__ == module.__name__)


@pytest.mark.parametrize("data", ["integers", "random"])
@pytest.mark.parametrize(("module", "old", "new"), BUGS)
def test_a_bug_is_found(module, old, new, data):
    step = step_of(module)
    arch = step.targets[0]
    given = operands(step.atom(arch), data, rng())
    simulator.run(planted(module, old, new)(arch), *given.args)
    assert not (given.c == given.expected).all() if data == "integers" else not given.error <= 1


@pytest.mark.parametrize("module", dict.fromkeys(module for module, *_ in BUGS))
def test_without_a_bug_nothing_is_found(module):
    step = step_of(module)
    given = operands(step.atom(step.targets[0]), "integers", rng())
    simulator.run(planted(module)(step.targets[0]), *given.args)
    assert (given.c == given.expected).all()


def test_scales_of_one_would_hide_a_wrong_lane():
    """Why the kernels take scales as arguments: with the article's 127 everywhere this bug is not to be seen."""
    wrong = planted(amd4_mxfp8, "scale_a[ATOM.scale_a(lane)]", "scale_a[ATOM.scale_a(lane ^ 32)]")("gfx950")
    given = operands(amd4_mxfp8.atom(), "integers", rng())
    given.args[1][:], given.args[3][:] = 127, 127
    a, b = meant(amd4_mxfp8.atom(), given.args)
    simulator.run(wrong, *given.args)
    assert (given.c == a @ b).all()


def test_what_lies_outside_is_a_fault():
    given = operands(amd5_mxfp4.atom(), "integers", rng())
    with pytest.raises(Fault, match="out of bounds"):
        simulator.run(planted(amd5_mxfp4, "b[row, column // 2]", "b[row, column]")("gfx950"), *given.args)


# ---- machine code


@pytest.mark.parametrize(("name", "arch", "formats"), FORMATS)
def test_the_machine_code_has_one_matrix_instruction(name, arch, formats):
    step = AMD_STEPS[name]
    function, atom = step.emit(arch, **formats), step.atom(arch, **formats)
    code = compiled_function(function, target(arch))
    lines = [line for line, kind in instructions(code) if kind == "mfma"]
    assert [line.split()[0] for line in lines] == [atom.name]
    used, text = code.resources, code.asm
    assert (used.vgpr_spills, used.sgpr_spills, used.scratch, used.lds) == (0, 0, 0, 0)
    assert function.warp == 64
    assert ".wavefront_size: 64" in " ".join(text.split())


@pytest.mark.parametrize(("name", "arch"), ALL)
def test_instructions_are_counted(name, arch):
    """A lane's part of A comes by the widest loads there are, C goes element by element."""
    code, atom = compiled(name, target(arch)), AMD_STEPS[name].atom(arch)
    text, count = code.asm, Counter(kind for _, kind in instructions(code))
    report, _ = simulate_amd(name, target(arch))
    assert count["store"] == report.instructions["store"] == atom.c.elements
    assert count["load"] == report.instructions["load"]
    assert count["mfma"] == report.instructions["mma"] == 1
    width = min(atom.a.type.bytes, 16)
    wide = {4: "global_load_dword ", 8: "global_load_dwordx2", 16: "global_load_dwordx4"}[width]
    assert text.count(wide) == max(atom.a.type.bytes // width, 1) + (name == "f32")       # and B of one element


@pytest.mark.parametrize(("name", "arch"), ALL)
def test_a_step_is_linked(name, arch):
    code = compiled(name, target(arch))
    function = code.function
    read = code_object.read(code.binary)
    assert (read.arch, read.linked, list(read.kernels)) == (arch, True, [function.name])
    kernel = read.kernels[function.name]
    assert kernel[".wavefront_size"] == 64
    assert [x[".name"] for x in kernel[".args"] if ".name" in x] == [name for name, _ in function.params]


# ---- tilewright ladder amd


def said(*arguments, status=0):
    return printed("ladder", "amd", *arguments, status=status, COLUMNS="200")


def test_all_steps_on_the_command_line():
    text = said()
    assert text.startswith("simulated, not run on hardware\n")
    for name, arch in ALL:
        step = AMD_STEPS[name]
        (row,) = [line for line in text.splitlines() if line.startswith(step.title) and f" {arch} " in line]
        size = step.atom(arch).m ** 2
        assert step.atom(arch).name in row
        assert f"{size} of {size} exact" in row


def test_one_step_on_the_command_line():
    text = said("mxfp4", "--asm")
    assert "amd5_mxfp4.py" in text
    assert text.count("v_mfma_scale_f32_32x32x64_f8f6f4 v[") == 1
    assert "mxfp8" not in text
    assert len([line for line in said("--target", "mi300x").splitlines() if "v_mfma" in line]) == 3


def test_what_is_not_there_on_the_command_line():
    assert "gfx942 lacks the instruction of step 5 mxfp4" in said("mxfp4", "-t", "mi300x", status=2)
    assert "there is no step 'f64' of the AMD ladder" in said("f64", status=2)
    assert "target must be an AMD GPU, and sm_90a is an NVIDIA GPU" in said("--target", "sm_90a", status=2)


def test_a_wrong_product_on_the_command_line(monkeypatch):
    right = AMD_STEPS["mxfp4"]
    wrong = AmdStep(right.title, right.idea, planted(amd5_mxfp4, "column % 2 * 4", "(column + 1) % 2 * 4"), right.atom,
                    right.targets)
    monkeypatch.setitem(AMD_STEPS, "mxfp4", wrong)
    compiled.cache_clear()
    text = said("mxfp4", status=1)
    assert "1024 of 1024 exact" not in text
    assert re.search(r"wrong: mxfp4 on gfx950: \d+ of 1,?024 elements differ, the first is C\[\d+, \d+\]: it is ",
                     " ".join(text.split()))
    outside = planted(amd5_mxfp4, "b[row, column // 2]", "b[row, column]")
    monkeypatch.setitem(AMD_STEPS, "mxfp4", AmdStep(right.title, right.idea, outside, right.atom, right.targets))
    compiled.cache_clear()
    assert "out of bounds" in said("mxfp4", status=1)
    compiled.cache_clear()


def test_without_a_linker_the_command_line_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))

    def missing(*_, **__):
        raise lld.Missing("there is none")

    monkeypatch.setattr(lld, "link", missing)
    assert said().count("no linker") == len(ALL)


# ---- the page


@pytest.mark.parametrize("module", [amd1_f32, amd2_f16, amd3_fp8, amd4_mxfp8, amd5_mxfp4])
def test_the_page_shows_the_kernels(module):
    source = inspect.getsource(module)
    assert f"```python\n{source[source.index('def atom') :]}" in PAGE


def test_the_page_shows_what_the_command_prints():
    (shown,) = re.findall(r"^\$ tilewright ladder amd\n(.*?)^```$", PAGE, re.M | re.S)
    if llvmlite.binding.llvm_version_info[0] != 22:
        pytest.skip("the page has the counts of LLVM 22's code")

    def without_sizes(text):            # of the linker's files
        return re.sub(r"(no linker|[\d,]+) +(?=\d+ of \d+ exact)", "", text).split()

    assert without_sizes(said()) == without_sizes(shown)
