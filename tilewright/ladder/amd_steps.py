"""The AMD ladder as data: five products by one wave and one matrix instruction each, and which chips have that.

They are the five kernels of AMD's article "Matrix Core Programming on AMD CDNA3 and CDNA4 architecture",
https://salykova.github.io/matrix-cores-cdna, also on AMD's ROCm Blogs. Matrices are row-major.
"""
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.atoms.amd import Mfma
from tilewright.ir import Function
from tilewright.ladder import amd1_f32, amd2_f16, amd3_fp8, amd4_mxfp8, amd5_mxfp4

CDNA3, CDNA4 = "gfx942", "gfx950"


@dataclass(frozen=True)
class AmdStep:
    """`emit(arch)` records the kernel for an architecture, `atom(arch)` is the instruction that it uses, whose m, n, k
    and formats are the product's. The same formats, such as A="bf8", go to both.

    The kernel's parameters are a, b and c, or a, scale_a, b, scale_b and c: row-major, elements of 4 bits packed along
    the rows, scales e8m0 [m, k/32] and [k/32, n]. The grid is one workgroup of one wave.
    """
    title: str
    idea: str
    emit: Callable[..., Function]
    atom: Callable[..., Mfma]
    targets: tuple[str, ...]

    @property
    def emitter(self) -> str:
        """What a process that compiles elsewhere imports: "package.module:function"."""
        return f"{self.emit.__module__}:{self.emit.__name__}"


AMD_STEPS: dict[str, AmdStep] = {
    "f32": AmdStep(
        "1 f32", "64 lanes hold the matrices together: load and store by the atom's layouts",
        amd1_f32.emit_f32, amd1_f32.atom, (CDNA3, CDNA4)),
    "f16": AmdStep(
        "2 f16", "four elements of a lane side by side: A by one load, B from four rows",
        amd2_f16.emit_f16, amd2_f16.atom, (CDNA3, CDNA4)),
    "fp8": AmdStep(
        "3 fp8", "bytes, decoded by the instruction: fnuz on CDNA3, OCP on CDNA4",
        amd3_fp8.emit_fp8, amd3_fp8.atom, (CDNA3, CDNA4)),
    "mxfp8": AmdStep(
        "4 mxfp8", "32 elements along k share a scale, which another lane may bring",
        amd4_mxfp8.emit_mxfp8, amd4_mxfp8.atom, (CDNA4,)),
    "mxfp4": AmdStep(
        "5 mxfp4", "two elements in a byte: the nibbles of B have to be picked",
        amd5_mxfp4.emit_mxfp4, amd5_mxfp4.atom, (CDNA4,)),
}
