"""Direct-to-LDS copies on AMD's GPUs (copy=lds): which operands and tiles they need, as violations of a plan."""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tilewright.plans.amd_model import PIECE
from tilewright.plans.gpu import REACH, GpuShape
from tilewright.targets.amd import AmdTarget

if TYPE_CHECKING:
    from tilewright.plans.amd import AmdPlan

SIX = 6*PIECE*2         # bits of 6-bit elements that a lane moves: 16 bytes of 24, whose tail it moves by the word
TRANSPOSED_BITS = (8, 16)       # of numbers that reads of LDS transpose, on chips that have such


def violations(p: AmdPlan, shape: GpuShape, target: AmdTarget) -> Iterator[str]:
    """Sentences; none if there is nothing wrong."""
    if PIECE not in target.direct:
        yield (f"copy=lds loads {PIECE} bytes per lane into LDS, and {target.name} loads at most "
               f"{max(target.direct)}.")
    if p.algorithm == "bf16_emulated":
        yield "copy=lds copies operands as they are, and bf16_emulated decodes them."
        return
    sides = (("m", p.cta_m, shape.m, shape.bits[0], shape.layout[0] == "n", shape.vector_a, shape.near_a),
             ("n", p.cta_n, shape.n, shape.bits[1], shape.layout[1] == "t", shape.vector_b, shape.near_b))
    for name, rows, extent, bits, along_k, vector, near in sides:
        if not along_k and not (target.has("lds.transposed") and bits in TRANSPOSED_BITS):
            yield (f"copy=lds needs k contiguous (on gfx950 also m or n, for 8- and 16-bit elements); here {name} "
                   f"is contiguous, the elements have {bits} bits and the target is {target.name}.")
            return
        if p.cta_k*rows*bits // (SIX if bits == 6 else 8*PIECE) % p.threads:
            piece = SIX // 8 if bits == 6 else PIECE
            yield (f"copy=lds needs every thread to copy as many pieces of {piece} bytes; a "
                   f"{p.cta_m}x{p.cta_n}x{p.cta_k} tile does not divide into them among {p.threads} threads.")
            return
        what, size = ("k", shape.k) if along_k else (name, extent)
        if bits != 6 and size*bits % (8*PIECE):
            yield (f"copy=lds needs rows of a multiple of {PIECE} bytes; with {what} = {size} they have "
                   f"{size*bits / 8:g}.")
            return
        if bits != 6 and vector*bits < 8*PIECE:
            yield (f"copy=lds needs addresses and distances of rows that are multiples of {PIECE} bytes, and those "
                   f"of {'A' if name == 'm' else 'B'} are multiples of {vector*bits / 8:g}.")
            return
        if (rows if along_k else p.cta_k) > near:
            yield (f"copy=lds reaches {REACH} bytes from a tile's first row, and with {what} = {size} its rows are "
                   "further apart.")
            return
