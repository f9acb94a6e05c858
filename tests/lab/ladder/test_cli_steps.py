"""Steps of the ladders by name on every command that takes one; what emit prints and writes; block-scaled formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.command_line import call, refused
from tilewright import targets
from tilewright.compiler import lld
from tilewright.lab.bench.suites import ladders
from tilewright.lab.ladder.steps import AMD_STEPS, CPU_STEPS, GPU_LADDER, GPU_STEPS, TENSOR_STEPS, ladder
from tilewright.lab.measure import check

# ---- one table of names


def test_every_target_has_a_ladder() -> None:
    for kind in ("cpu", "gpu", "amd"):
        for name in targets.names(kind):
            assert ladder(targets.target(name))[0] == kind
    assert [*GPU_LADDER] == [*GPU_STEPS, "dispatch", *TENSOR_STEPS]
    assert len(GPU_LADDER) == 21
    numbers = [step.title.split()[0] for step in GPU_LADDER.values()][4:]
    assert numbers == [str(number) for number in range(5, 22)]


@pytest.mark.parametrize("step", CPU_STEPS)
def test_steps_of_the_cpu_ladder_are_simulated(step: str) -> None:
    done = call("simulate", 13, 19, 7, "-t", "x86-avx2", "--step", step)
    assert done.exit_code == 0, done.output
    assert "the product is exact" in done.output


@pytest.mark.parametrize("step", ["f32", "mxfp4"])
def test_steps_of_the_amd_ladder_are_simulated(step: str) -> None:
    atom = AMD_STEPS[step].atom("gfx950")
    done = call("simulate", "-t", "gfx950", "--step", step)
    assert done.exit_code == 0, done.output
    assert f"{step}, {atom.m} x {atom.n} x {atom.k} on gfx950" in done.output
    assert call("simulate", atom.m, atom.n, atom.k, "-t", "gfx950", "--step", step).exit_code == 0
    assert f"is one instruction, {atom.name}" in refused("simulate", 5, 5, 5, "-t", "gfx950", "--step", step)


@pytest.mark.parametrize(("sizes", "step", "words"), [
    ((12, 12, 12), "dispatch", "13 dispatch chooses step 11 texture"),
    ((12, 13, 12), "dispatch", "13 dispatch chooses step 10 stored"),
    ((12, 13, 12), "texture", "step 10 stored takes its place"),
    ((12, 12, 12), "texture", ""),
])
def test_the_choice_and_the_fallback_are_shown(sizes: tuple[int, int, int], step: str, words: str) -> None:
    done = call("simulate", *sizes, "-t", "sm_90a", "--step", step)
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert words in said
    assert ("takes its place" in said) == ("takes its place" in words)
    assert "the product is exact" in said


def test_what_a_step_cannot_do_is_refused() -> None:
    assert "C = A B: they have no --beta" in refused("simulate", 5, 5, 5, "-t", "neon", "--step", "naive", "--beta", 2)
    assert "give --plan or --step" in refused("simulate", 5, 5, 5, "--step", "naive", "--plan", "dots")
    assert "give M, N and K" in refused("simulate", 5, 5, "-t", "sm_80", "--step", "naive")
    assert "step 13 dispatch has no kernel of its own" in refused("emit", "-t", "sm_90a", "--step", "dispatch")
    assert "M N K or --step, not both" in refused("emit", 8, 8, 8, "-t", "sm_90a", "--step", "tiled")
    assert "give --step or --kernel" in refused("asm", "-t", "gfx942", "--step", "f16", "--kernel", "axpy")


@pytest.mark.parametrize(("target", "step", "words"), [
    ("x86-avx2", "micro", "vfmadd231ps"), ("neon", "naive", "ladder1_naive_f32"),
    ("sm_90a", "padded", ".visible .entry gpu6_padded"), ("gfx942", "fp8", "v_mfma_f32_32x32x16_fp8_fp8"),
])
def test_steps_have_code(target: str, step: str, words: str) -> None:
    assert words in call("emit", "-t", target, "--step", step).output
    assert "define " in call("emit", "-t", target, "--step", step, "--llvm").output
    assert call("asm", "-t", target, "--step", step).exit_code == 0
    assert call("asm", "-t", target, "--step", step, "--list").output.strip()


def test_a_wrong_product_names_an_element() -> None:
    right = np.arange(6.0).reshape(2, 3)
    assert check.difference(right.copy(), right) == ""
    wrong = right.copy()
    wrong[1, 2] = np.nan
    assert check.difference(wrong, right) == ("1 of 6 elements differ, the first is C[1, 2]: it is nan, and 5.0 is "
                                              "right")


# ---- tilewright ladder


def test_the_cpu_ladder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    done = call("ladder", "cpu", "-t", "x86-avx2", "--json", tmp_path / "steps.json")
    assert done.exit_code == 0, done.output
    for step in CPU_STEPS.values():
        lines = "\n".join(line for line in done.output.splitlines() if line.startswith(step.title))
        assert step.idea in lines
        assert "exact" in lines or not targets.target("x86-avx2").runnable
    assert "nothing here is timed. `tilewright bench ladder` measures" in " ".join(done.output.split())
    assert [step["name"] for step in json.loads((tmp_path / "steps.json").read_text())["steps"]] == [*CPU_STEPS]


def test_the_gpu_ladder_prints_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = {}

    def count(name: str, n: int, target: object) -> ladders.Counts:
        step = GPU_LADDER[name]
        counted[name] = n
        moved: tuple[Any, ...] = (1,) * 12
        busy = {"multiply-adds": 1.0}
        return ladders.Counts(name, step.title, step.idea, step.formula, n, *moved, busy=busy)

    monkeypatch.setattr(ladders, "count", count)
    done = call("ladder", "gpu", "--size", 64)
    assert done.exit_code == 0, done.output
    assert [*counted] == [*GPU_STEPS, *TENSOR_STEPS]
    for step in GPU_LADDER.values():
        assert step.title in done.output
    assert "here 11 texture" in done.output
    assert len(json.loads(call("ladder", "gpu", "--size", 64, "--json").stdout)["extra"]["simulated"]) == 20
    assert "target must be an NVIDIA GPU, and gfx942 is an AMD GPU" in refused("ladder", "gpu", "-t", "gfx942")


# ---- emit


def test_a_manifest_overwrites_no_other_file(tmp_path: Path) -> None:
    lld.find()
    image, manifest = tmp_path / "axpy.hsaco", tmp_path / "axpy.json"
    manifest.write_text('{"mine": 1}')
    command = "emit", "--kernel", "axpy", "-t", "gfx942", "-o", image
    assert "would overwrite" in refused(*command)
    assert manifest.read_text() == '{"mine": 1}'
    assert not image.exists()
    manifest.unlink()
    assert call(*command).stderr == f"wrote {image} and {manifest} (its manifest)\n"
    assert call(*command).exit_code == 0  # its own manifest may go


def test_llvm_is_printed_or_written() -> None:
    assert "give only one" in refused("emit", 8, 8, 8, "-t", "neon", "--llvm", "-o", "x.s")


# ---- block-scaled formats, instructions, chips


@pytest.mark.parametrize("command", ["plan", "emit", "asm", "simulate", "explain"])
def test_block_scaled_formats_default_to_the_layout_that_they_have(command: str) -> None:
    done = call(command, 5, 5, 40, "-d", "mxfp4", "--target", "gfx950")
    assert done.exit_code == 0, done.output
    if command in ("plan", "simulate", "explain"):
        assert "gemm_mxfp4-mxfp4-f32_nt_5x5x40" in done.output
    words = "gemm_mxfp4-mxfp4-f32_nn_5x5x5: block-scaled operands have k along their rows, which is layout nt, not nn"
    assert words in refused(command, 5, 5, 5, "-d", "mxfp4", "-l", "nn", "--target", "gfx942")


SPELLED = [
    ("v_mfma_f32_32x32x2_f32", "llvm.amdgcn.mfma.f32.32x32x2f32", "__builtin_amdgcn_mfma_f32_32x32x2f32"),
    ("v_mfma_f32_16x16x8_xf32", "llvm.amdgcn.mfma.f32.16x16x8.xf32", "__builtin_amdgcn_mfma_f32_16x16x8_xf32"),
    ("v_mfma_f32_32x32x8_bf16", "llvm.amdgcn.mfma.f32.32x32x8bf16.1k", "__builtin_amdgcn_mfma_f32_32x32x8bf16_1k"),
    ("v_mfma_scale_f32_32x32x64_f8f6f4", "llvm.amdgcn.mfma.scale.f32.32x32x64.f8f6f4",
     "__builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4"),
]


@pytest.mark.parametrize("names", SPELLED, ids=lambda names: names[0])
def test_instructions_by_all_their_names(names: tuple[str, ...]) -> None:
    said = [call("mfma", name, "--no-tables").output for name in names]
    assert said[0].startswith(f"{names[0]}\n")
    assert said[1:] == said[:1] * 2
    assert "`tilewright mfma list` shows all of them" in refused("mfma", "foo")


def test_a_chip_is_called_by_its_own_name() -> None:
    assert call("peak", "h100").output.startswith("NVIDIA H100 (sm_90a): 132 SMs")
    assert call("peak", "h200").output.startswith("NVIDIA H200 (sm_90a): 132 SMs")
    assert targets.target("h100").bandwidth < targets.target("h200").bandwidth
