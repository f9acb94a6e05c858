"""The rows of "Advanced Matrix Multiplication Optimization on Modern Multi-Core Processors"."""
from __future__ import annotations

from tilewright.lab.reproduce.row import Cell, Rows, Setting
from tilewright.targets import cpu

rows = Rows("cpu")
AVX2 = cpu.record(cpu.AVX2)


@rows("floats of a YMM")
def floats(setting: Setting) -> Cell:
    return Cell("computed", f"{AVX2.vector_bytes} bytes of a register over 4 bytes of an f32: {AVX2.lanes(4)}.",
                str(AVX2.lanes(4)))


@rows("16 YMM")
def registers(setting: Setting) -> Cell:
    return Cell("computed", f"AVX2 has {AVX2.registers}; AVX-512 has {cpu.AVX512.registers}, as NEON has, of 64 and of "
                "16 bytes.", str(AVX2.registers))
