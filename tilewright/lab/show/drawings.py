"""The page's further drawings: layouts of matrix instructions, scales of blocks, number formats; from lab.drawing."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tilewright.atoms.nvidia import mma
from tilewright.atoms.wgmma import Wgmma
from tilewright.formats import FORMATS
from tilewright.lab.drawing import bits, lanes
from tilewright.lab.drawing.catalogue import FIGURES
from tilewright.lab.drawing.pen import Svg
from tilewright.targets import AmdTarget, CpuTarget, Target

ALL = ("cdna/binary_format_2", "cdna/g81")                      # formats
CPU = ("cpu/kernel_registers", "cpu/kernel_mask", "cpu/blis_design")
AMD = ("cdna/mfma_fp32_32x32x2_fp32", "cdna/mfma_fp32_16x16x16_fp16", "cdna/mfma_fp32_32x32x16_fp8_fp8",
       "cdna/block_scale_fp8", "cdna/mfma_scale_fp32_32x32x64_fp4_fp4")
NVIDIA = ("nvidia/warp_level_design", "nvidia/thread_level_design", "cdna/block_scale_fp8")


def drawings(targets: list[Target]) -> list[dict[str, str]]:
    """For the families of these chips: key, title, caption and SVG of each."""
    found = {key: row for target in targets for key, row in _of(target)}
    return [{"key": key, **row} for key, row in found.items()]


def _of(target: Target) -> Iterator[tuple[str, dict[str, str]]]:
    names: tuple[str, ...] = NVIDIA
    if isinstance(target, AmdTarget):
        names = AMD
    elif isinstance(target, CpuTarget):
        names = CPU
    else:
        yield "mma", _row("Registers of mma.sync m16n8k16", _mma, "A 16 x 16, B 16 x 8 and C 16 x 8 of bf16 in the "
                          "registers of a warp: in each cell the lane that holds it, lanes 0 and 5 in colour.")
        yield "wgmma", _row("Sums of wgmma m64n16", _wgmma, "64 x 16 sums of a warpgroup: each of its four warps has "
                            "16 rows, in each cell the lane of the warp; A and B stay in shared memory.")
    for key in names + ALL:
        figure = FIGURES.get(key)
        if figure is not None and figure.draw is not None:
            yield key, _row(figure.title, figure.draw, figure.caption)
    yield "formats", _row("Formats side by side", bits.table, "Sign, exponent and mantissa of each format, and the "
                          f"numbers that it has; {len(FORMATS)} formats.")


def _row(title: str, draw: Callable[[], Any], caption: str) -> dict[str, str]:
    return {"title": title, "caption": caption, "svg": str(draw())}


def _mma() -> Svg:
    atom = mma("bf16", "bf16", "f32", 16, 8, 16)
    size, gap, marks = 21, 26, {0: "red", 5: "green"}
    pen = Svg(atom.name, 24 * size + gap)
    lanes.matrix(pen, 0, 16 * size + gap, "A", atom.a, size, marks)
    lanes.matrix(pen, 16 * size + gap, 0, "B", atom.b, size, marks)
    lanes.matrix(pen, 16 * size + gap, 16 * size + gap, "D", atom.c, size, marks)
    return pen


def _wgmma() -> Svg:
    sums, size = Wgmma(16).sums, 21
    pen = Svg("wgmma m64n16", 4 * (16 * size + 30))
    for warp in range(4):
        lanes.matrix(pen, warp * (16 * size + 30), 0, f"D, warp {warp}", sums, size, {0: "red", 5: "green"})
    return pen
