"""Reads of LDS that transpose numbers of 8 or 16 bits on their way to the registers: gfx950's ds_read_b64_tr_b8 and
ds_read_b64_tr_b16.

Every lane reads 8 bytes at an address of its own. What sixteen lanes that follow each other have read is a matrix of 16
columns, row after row: of 16-bit numbers four rows, four lanes to a row, of bytes eight rows, two lanes to a row. Lane
l gets column l.

AMD's ISA guide names the instructions and does not say who gets what. Sources, of software that runs on the hardware:
Triton's lowering, https://github.com/triton-lang/triton/pull/8525 (16-bit numbers also 5750, bytes 6018); AITER, fp8,
https://github.com/ROCm/aiter (csrc/kernels/mla/opus/mla_decode_fwd_16mx8_32nx1_fp8fp8_ps_opus.hpp, "make_layout_rv");
rocm-systems, by hardware, 16 bits, https://github.com/ROCm/rocm-systems/pull/10175; Mojo's kernels, whose test has the
bytes that even and odd lanes read in lanes 0 to 7 and 8 to 15, https://github.com/modular/modular. (A comment there,
on load_v_fp8_strip_16, has them in even and odd lanes.)
"""
from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.operations import Operation
from tilewright.ir.types import i16, i32, vec

BYTES = 8           # that a lane reads, and gets
TOGETHER = 16       # lanes that exchange what they have read
BITS = (8, 16)      # of a number
_SPELLED = {8: ("tr8.b64.v2i32", vec(i32, 2)), 16: ("tr16.b64.v4i16", vec(i16, 4))}


def exchanged(x: NDArray[np.generic]) -> NDArray[np.generic]:
    """What lanes get of what they have read, [elements, lanes]; sixteen by sixteen."""
    rows, lanes = x.shape
    parts = x.reshape(rows, lanes // TOGETHER, rows, TOGETHER // rows)          # element, sixteen, row, part of the row
    return parts.transpose(2, 1, 3, 0).reshape(rows, lanes)


@cache
def read(bits: int) -> Operation:
    """Of (smem)."""
    name, spelled = _SPELLED[bits]

    def spelling(low, t, smem):
        load = low.call(f"llvm.amdgcn.ds.read.{name}", spelled, smem, name="turned")
        low.dialect.shared(low, load)
        return low.b.bitcast(load, low.type(t), name="turned")
    return Operation(f"load_turned{bits}", spelling, lambda gang, node, smem: gang.machine.direct.turned(
        gang, node, smem), "load shared", "effect", needs="lds.turned")
