"""The emission layer: a kernel is recorded once, as data, and read twice.

types → ops (every instruction: spelling, meaning, needs) → program (the record) → builder (how a kernel is written)
reading 1: `ir.lower` turns it into LLVM IR, which ships;
reading 2: `tilewright.simulate` runs the same record on NumPy, checked and counted.
"""
from tilewright.ir.builder import Kernel
from tilewright.ir.program import Function
from tilewright.ir.types import Pointer, TensorMap, Texture, Type, bf16, f16, f32, f64, i1, i8, i16, i32, i64, ptr, vec
from tilewright.ir.values import Tile, Value

__all__ = ["Function", "Kernel", "Pointer", "TensorMap", "Texture", "Tile", "Type", "Value", "bf16", "f16", "f32",
           "f64", "i1", "i8", "i16", "i32", "i64", "ptr", "vec"]
