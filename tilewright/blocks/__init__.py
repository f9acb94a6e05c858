"""Block programs: kernels that compute with whole blocks of numbers, which the compiler deals out to threads.

layout (who holds which element) → index (offsets, masks and pointers, as formulas) → block (numbers in registers, and
arithmetic) → exchange (other layouts, reductions) → memory (load, store) → dot (products) → loops (what changes in
them, copies ahead) → program (how one is written)
"""
from tilewright.blocks.block import Block
from tilewright.blocks.program import Program

__all__ = ["Block", "Program"]
