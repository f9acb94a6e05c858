"""Figures of the article on AMD's Matrix Cores, from the formats' records and the catalogue of instructions."""
from __future__ import annotations

from tilewright.atoms.amd import Mfma, find
from tilewright.formats import get
from tilewright.lab.drawing import bits, lanes
from tilewright.lab.drawing.figure import Gallery

GALLERY = Gallery("cdna")
add = GALLERY.add
WHERE = "A lies left of D and B above it, so that an element of D is where its row of A and its column of B meet."


def _scaled(format: str) -> Mfma:
    return find("v_mfma_scale_f32_32x32x64_f8f6f4", a=format, b=format)


add("binary_format_2", "The bits of a floating-point number",
    "Sign, exponent and mantissa of f16, bit by bit. The formula changes where the exponent is 0.",
    lambda title: bits.general(get("f16"), title))

add("g81", "From bits to a number",
    "All numbers of e2m1 on a line, under each its bits: equal gaps while the exponent stays, twice as large with "
    "the next one. Below: the formula with the bits of one of them.",
    lambda title: bits.number_line(get("e2m1"), 0b0111, title))

add("e4m3fnuz", "A number of e4m3fnuz, decoded",
    "The bits 1 1000 101 in e4m3fnuz, and each step to the number that they are.",
    lambda title: bits.pattern(get("e4m3fnuz"), 0xC5, title))

add("e8m0", "A scale in e8m0, decoded",
    "The bits of a block's scale, which are an exponent and nothing else: neither sign nor mantissa.",
    lambda title: bits.pattern(get("e8m0"), 0x82, title))

add("mfma_fp32_32x32x2_fp32", "Registers of v_mfma_f32_32x32x2_f32",
    f"The lane that holds each element of A, B and D; lane 0 is red. {WHERE}",
    lambda _: lanes.layouts(find("v_mfma_f32_32x32x2_f32")))

add("mfma_fp32_16x16x16_fp16", "Registers of v_mfma_f32_16x16x16_f16",
    f"The lane that holds each element of A, B and D; lane 0 is red. {WHERE}",
    lambda _: lanes.layouts(find("v_mfma_f32_16x16x16_f16")))

add("mfma_fp32_32x32x16_fp8_fp8", "Registers of v_mfma_f32_32x32x16_fp8_fp8",
    f"The lane that holds each element of A, B and D; lane 0 is red, with eight neighbours of A. {WHERE}",
    lambda _: lanes.layouts(find("v_mfma_f32_32x32x16_fp8_fp8")))


add("block_scale_fp8", "A product with block scales",
    "A and B, of which 32 elements along k share a scale, in Ax and Bx. A sum over each block is multiplied by the "
    "two scales before it is added to C.", lambda title: lanes.scale_blocks(_scaled("e4m3fn"), title))

add("mfma_scale_fp32_32x32x64_fp8_fp8", "Registers of a scaled product of fp8",
    "The lane that holds each element of A, B and D, and each scale: lane 0 is red, lane 32 green. A lane has "
    f"16 elements of each of two blocks, and the scale of one of these blocks. {WHERE}",
    lambda _: lanes.layouts(_scaled("e4m3fn")))

add("mfma_scale_fp32_32x32x64_fp4_fp4", "Registers of a scaled product of fp4",
    "The lane that holds each element of A, B and D, and each scale: lane 0 is red, lane 32 green. A lane's 32 "
    f"elements are those of one block, whose scale it has. {WHERE}",
    lambda _: lanes.layouts(_scaled("e2m1")))
