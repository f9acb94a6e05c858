"""Reads of global memory through a texture: an index outside it gives zeros, so that edges need no predicate."""
from __future__ import annotations

from tilewright.ir.operations import Operation


def _spelling(low, t, texture, index):
    """The intrinsic returns a struct of four elements."""
    texel = low.call(f"llvm.nvvm.tex.unified.1d.v4{t.scalar}.s32", low.struct([t.scalar]*4), texture, index)
    return low.pack([low.b.extract_value(texel, e) for e in range(4)], t)


FETCH = Operation("fetch", _spelling, lambda gang, node, texture, index: gang.machine.textures.fetch(
    gang, node, texture, index), "texture", "effect", needs="gpu")
