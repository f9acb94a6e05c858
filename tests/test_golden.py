"""The LLVM IR of a few small kernels, as lowered, against the files in tests/golden: who changes it sees the change.

`pytest tests/test_golden.py --update-golden` writes the files anew; the difference is then for `git diff` to show and
for the reviewer to judge. The text depends on the emitters and the lowering alone: targets are named, not detected.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from tilewright.compiler import llvm
from tilewright.kernels.cpu.dots import emit_dots
from tilewright.kernels.cpu.microkernel import emit_microkernel
from tilewright.kernels.cpu.packing import emit_pack
from tilewright.targets import target

GOLDEN = Path(__file__).parent / "golden"
KERNELS = {
    "microkernel_f32_2x16_packed_avx512": (emit_microkernel, "x86-avx512", "f32", 2, 1),
    "microkernel_f64_2x8_in_place_avx2": (emit_microkernel, "x86-avx2", "f64", 2, 2, "rows", "masked"),
    "microkernel_f32_3x4_columns_neon": (emit_microkernel, "neon", "f32", 3, 1, "columns", "rows"),
    "pack_f32_20_across_avx512": (emit_pack, "x86-avx512", "f32", 20, "across"),
    "pack_f64_4_along_avx2": (emit_pack, "x86-avx2", "f64", 4, "along"),
    "pack_f32_any_neon": (emit_pack, "neon", "f32", 8, "any"),
    "dots_f32_1x1_avx512": (emit_dots, "x86-avx512", "f32", 1, 1),
}


@pytest.mark.parametrize("name", KERNELS)
def test_golden(name, request):
    emit, chip, *args = KERNELS[name]
    text = llvm.text(emit(target(chip), *args), target(chip))
    path = GOLDEN / f"{name}.ll"
    if request.config.getoption("--update-golden"):
        path.write_text(text)
    before = path.read_text() if path.exists() else ""
    changes = difflib.unified_diff(before.splitlines(), text.splitlines(), str(path), "emitted now", lineterm="")
    assert text == before, "\n".join(["", *changes, "If this is meant: pytest tests/test_golden.py --update-golden"])


def test_no_golden_file_is_left_over():
    assert {path.stem for path in GOLDEN.glob("*.ll")} == set(KERNELS)
