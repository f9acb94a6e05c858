"""Reads of global memory through a texture: an index outside it gives zeros, so that edges need no predicate."""
from __future__ import annotations

from tilewright.ir.operations import Operation
from tilewright.ir.types import f32, f64, i32, vec

TEXELS = (vec(f32, 4), vec(i32, 4), vec(f64, 2))        # what one fetch can bring: always 16 bytes


def _spelling(low, t, texture, index):
    """The intrinsic returns a struct of four words; an f64 travels as two of integers."""
    word, name = (f32, "f32") if t.scalar == f32 else (i32, "s32")
    texel = low.call(f"llvm.nvvm.tex.unified.1d.v4{name}.s32", low.struct([word] * 4), texture, index)
    words = low.pack([low.b.extract_value(texel, e) for e in range(4)], vec(word, 4))
    return low.b.bitcast(words, low.type(t), name="texel")


FETCH = Operation("fetch", _spelling, lambda gang, node, texture, index: gang.machine.textures.fetch(
    gang, node, texture, index), "texture", "effect", needs="gpu")
