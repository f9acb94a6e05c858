"""The page's further drawings: layouts of matrix instructions, scales of blocks, number formats; from lab.drawing."""
from __future__ import annotations

from tilewright.lab.drawing.catalogue import FIGURES
from tilewright.targets import AmdTarget, CpuTarget, Target

CPU = ("cpu/kernel_registers", "cpu/kernel_mask", "cpu/blis_design")
AMD = ("cdna/mfma_fp32_32x32x2_fp32", "cdna/mfma_fp32_16x16x16_fp16", "cdna/mfma_fp32_32x32x16_fp8_fp8",
       "cdna/block_scale_fp8", "cdna/mfma_scale_fp32_32x32x64_fp4_fp4")
NVIDIA = ("tilewright/mma", "tilewright/wgmma", "nvidia/warp_level_design", "nvidia/thread_level_design",
          "tilewright/swizzle", "cdna/block_scale_fp8")
ALL = ("cdna/binary_format_2", "cdna/g81", "tilewright/formats")


def drawings(targets: list[Target]) -> list[dict[str, str]]:
    """For the families of these chips: key, title, caption and SVG of each."""
    keys = [key for target in targets for key in
            (AMD if isinstance(target, AmdTarget) else CPU if isinstance(target, CpuTarget) else NVIDIA)]
    figures = [FIGURES[key] for key in dict.fromkeys((*keys, *ALL))]
    return [{"key": x.key, "title": x.title, "caption": x.caption, "svg": str(x.drawn())}
            for x in figures if x.drawn]
