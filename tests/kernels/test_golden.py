"""The code of a few small kernels against the files in tests/golden: who changes it sees the change.

For CPUs it is LLVM IR as lowered, which depends on the emitters and the lowering alone. For GPUs it is PTX or AMD's
instructions, since a reader can see there what a thread does; a file is compared where LLVM has the version that it was
written with.

`pytest tests/kernels/test_golden.py --update-golden` writes the files anew; the difference is then for `git diff` to
show and for the reviewer to judge. Targets are named, not detected.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import llvmlite.binding
import pytest

from tests.helpers.amd_kernels import emit_transpose
from tests.kernels.amd.test_amd_direct import emit_pipe
from tilewright.atoms.nvidia import mma
from tilewright.compiler import llvm
from tilewright.inspect.resources import amd_body
from tilewright.ir import Kernel, f32, f64, i32, ptr, vec
from tilewright.kernels.cpu.microkernel import emit_microkernel
from tilewright.kernels.cpu.packing import emit_pack
from tilewright.kernels.cpu.skinny import emit_dots
from tilewright.kernels.gpu.copy import emit_copy
from tilewright.lab.ladder.amd2_f16 import emit_f16
from tilewright.lab.ladder.gpu01_naive import emit_naive
from tilewright.lab.ladder.gpu04_shared import emit_shared
from tilewright.targets import target

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
KERNELS = {
    "microkernel_f32_2x16_packed_avx512": (emit_microkernel, "x86-avx512", "f32", 2, 1),
    "microkernel_f64_2x8_in_place_avx2": (emit_microkernel, "x86-avx2", "f64", 2, 2, "rows", "masked"),
    "microkernel_f32_3x4_columns_neon": (emit_microkernel, "neon", "f32", 3, 1, "columns", "rows"),
    "pack_f32_20_across_avx512": (emit_pack, "x86-avx512", "f32", 20, "across"),
    "pack_f64_4_along_avx2": (emit_pack, "x86-avx2", "f64", 4, "along"),
    "pack_f32_any_neon": (emit_pack, "neon", "f32", 8, "any"),
    "dots_f32_1x1_avx512": (emit_dots, "x86-avx512", "f32", 1, 1),
}


def emit_mma():
    """One warp multiplies 16x16 by 16x8."""
    k = Kernel("mma", threads=32, a=ptr(f64), b=ptr(f64), c=ptr(f64))
    views = [x.view(ld, 1) for x, ld in zip(k.args, (16, 8, 8))]
    atom, lane = mma("f64", "f64", "f64", 16, 8, 16), k.thread[0]
    a, b, c = ([view[layout(lane, r)] for r in range(count)]
               for view, layout, count in zip(views, (atom.a, atom.b, atom.c), atom.registers))
    for r, x in enumerate(k.mma(atom, a, b, c)):
        views[2][atom.c(lane, r)] = x
    return k.function


def emit_pipeline():
    """Sums of vectors that are copied to shared memory two rounds ahead."""
    k = Kernel("pipeline", threads=64, n=i32, x=ptr(f32), y=ptr(f32))
    n, x, y = k.args
    smem, t = k.smem("stages", (3, 256), f32), k.thread[0] * 4

    def start(round):
        with k.when(round < n):
            k.cp_async(smem.at(round % 3, t), x + round * 256 + t, 16)
        k.cp_async_commit()

    total = k.variable(vec(f32, 4), k.broadcast(k.constant(f32, 0.0), 4))
    for round in range(2):
        start(k.constant(i32, round))
    with k.loop(n, unroll=False) as round:
        k.cp_async_wait(1)
        k.barrier()
        total.set(total.get() + k.load(smem.at(round % 3, 252 - t), vec(f32, 4)))
        start(round + 2)
    k.store(y + t, total.get())
    return k.function


PTX = {
    "gpu1_naive_sm_75": (emit_naive, "sm_75"),
    "gpu4_shared_4x2_sm_80": (emit_shared, "sm_80", 8, 4, 2),
    "copy_f32_f64_sm_90a": (emit_copy, "sm_90a", "f32", "f64"),
    "mma_sm_90a": (emit_mma, "sm_90a"),
    "pipeline_sm_86": (emit_pipeline, "sm_86"),
}


AMD = {
    "amd2_f16_gfx942": (lambda: emit_f16("gfx942"), "gfx942"),
    "transpose_gfx942": (emit_transpose, "gfx942"),
    "direct16_gfx950": (lambda: emit_pipe(16), "gfx950"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_golden(name, request):
    emit, chip, *args = KERNELS[name]
    compare(llvm.text(emit(target(chip), *args), target(chip)), GOLDEN / f"{name}.ll", request)


@pytest.mark.parametrize("name", PTX)
def test_golden_ptx(name, request):
    emit, chip, *args = PTX[name]
    of_this_llvm("//", lambda: llvm.assembly(emit(*args), target(chip)), GOLDEN / f"{name}.ptx", request)


@pytest.mark.parametrize("name", AMD)
def test_golden_amd(name, request):
    emit, chip = AMD[name]
    function = emit()
    of_this_llvm(";", lambda: instructions(function, chip), GOLDEN / f"{name}.s", request)


def instructions(function, chip):
    return "".join(f"{line}\n" for line in amd_body(llvm.assembly(function, target(chip)), function.name))


def of_this_llvm(comment, text, path, request):
    first = f"{comment} LLVM {'.'.join(map(str, llvmlite.binding.llvm_version_info))}\n"
    if path.exists() and not request.config.getoption("--update-golden"):
        written = path.read_text().partition("\n")[0]
        if written != first.strip():
            pytest.skip(f"{path.name} was written with {written}, and here is {first.strip()}")
    compare(first + text(), path, request)


def compare(text, path, request):
    if request.config.getoption("--update-golden"):
        path.write_text(text)
    before = path.read_text() if path.exists() else ""
    changes = difflib.unified_diff(before.splitlines(), text.splitlines(), str(path), "emitted now", lineterm="")
    assert text == before, "\n".join(["", *changes, "If intended: pytest tests/kernels/test_golden.py --update-golden"])


def test_no_golden_file_is_left_over():
    assert {path.name for path in GOLDEN.iterdir()} == {f"{k}.ll" for k in KERNELS} | {
        f"{k}.ptx" for k in PTX} | {f"{k}.s" for k in AMD}
