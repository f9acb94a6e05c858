"""Figures of the article on AMD's Matrix Cores, from the formats' records and the catalogue of instructions."""
from __future__ import annotations

from tilewright.lab.drawing import bits, lanes
from tilewright.lab.drawing.figure import Gallery
from tilewright.lab.drawing.pen import Svg

GALLERY = Gallery("cdna")
figure = GALLERY.figure
WHERE = "A lies left of D and B above it, so that an element of D is where its row of A and its column of B meet."


@figure("binary_format_2", "The bits of a floating-point number",
        "Sign, exponent and mantissa of f16, bit by bit. The formula changes where the exponent is 0.")
def binary_format() -> Svg:
    from tilewright.formats import get
    return bits.general(get("f16"), "The bits of a floating-point number")


@figure("e4m3fnuz", "A number of e4m3fnuz, decoded",
        "The bits 1 1000 101 in e4m3fnuz, and each step to the number that they are.")
def e4m3fnuz() -> Svg:
    from tilewright.formats import get
    return bits.pattern(get("e4m3fnuz"), 0xC5, "A number of e4m3fnuz, decoded")


@figure("e8m0", "A scale in e8m0, decoded",
        "The bits of a block's scale, which are an exponent and nothing else: neither sign nor mantissa.")
def e8m0() -> Svg:
    from tilewright.formats import get
    return bits.pattern(get("e8m0"), 0x82, "A scale in e8m0, decoded")


@figure("mfma_fp32_16x16x16_fp16", "Registers of v_mfma_f32_16x16x16_f16",
        f"The lane that holds each element of A, B and D; lane 0 is red. {WHERE}")
def mfma_f16() -> Svg:
    from tilewright.atoms.amd import find
    return lanes.layouts(find("v_mfma_f32_16x16x16_f16"))
