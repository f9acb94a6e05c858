"""Which operands come straight into LDS on a GPU of AMD's, and in which tiles: what is wrong with plans that say so."""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tilewright.plans.amd_model import PIECE
from tilewright.targets.amd import AmdTarget

if TYPE_CHECKING:
    from tilewright.plans.amd import AmdPlan, AmdShape

SIX = 6*PIECE*2         # bits of 6-bit elements that a lane moves: 16 bytes of 24, whose tail it moves by the word
REACH = 1 << 31         # bytes within which rows of one tile lie that are loaded by a buffer
TURNED = (8, 16)        # bits of numbers that reads of LDS turn, on chips that have such


def violations(p: AmdPlan, shape: AmdShape, target: AmdTarget) -> Iterator[str]:
    """Sentences; none if there is nothing wrong."""
    if PIECE not in target.direct:
        yield f"{target.name} copies at most {max(target.direct)} bytes of a lane straight into LDS, not {PIECE}."
    if p.algorithm == "bf16_emulated":
        yield "operands that are decoded do not come straight into LDS as they are."
        return
    sides = (("m", p.cta_m, shape.m, shape.bits[0], shape.layout[0] == "n"),
             ("n", p.cta_n, shape.n, shape.bits[1], shape.layout[1] == "t"))
    for name, rows, extent, bits, along_k in sides:
        if not along_k and not (target.has("lds.turned") and bits in TURNED):
            yield (f"only rows along k come straight into LDS as they are, and on gfx950 rows along m or n of numbers "
                   f"of 8 or 16 bits: not rows along {name} of {bits} bits on {target.name}.")
            return
        if p.cta_k*rows*bits // (SIX if bits == 6 else 8*PIECE) % p.threads:
            yield f"tiles of {p.cta_m}x{p.cta_n}x{p.cta_k} leave some of {p.threads} threads nothing to copy straight."
            return
        what, size = ("k", shape.k) if along_k else (name, extent)
        if bits != 6 and size*bits % (8*PIECE):
            yield f"rows that come straight into LDS are multiples of {PIECE} bytes, and {what} = {size} makes others."
            return
        if (rows*shape.k if along_k else p.cta_k*extent)*bits // 8 > REACH:
            yield (f"what comes straight into LDS lies within {REACH} bytes, and rows of a tile, of {what} = {size}, "
                   "are further apart.")
            return
