"""The GPU ladder as data: what each step is called, what it adds to the one before, and what it has to move."""
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tilewright.ir import Function
from tilewright.ladder import (
    gpu01_naive,
    gpu02_tiled,
    gpu03_registers,
    gpu04_shared,
    gpu05_coalesced,
    gpu06_padded,
    gpu07_vectors,
    gpu08_buffered,
    gpu09_warps,
    gpu10_stored,
    gpu11_texture,
    gpu12_async,
)

Tile = tuple[int, int]


@dataclass(frozen=True)
class GpuStep:
    """`emit(**sizes)` records the kernel. The same sizes, such as V=4, go to everything else that depends on them.

    loads, shared   elements loaded from global and from shared memory per multiply-add, where no tile hangs over;
                    `formula` says the same for n x n x n in the lecture's words
    """
    title: str
    idea: str
    emit: Callable[..., Function]
    tile: Callable[..., Tile]               # (rows, columns) of C that a CTA computes
    loads: Callable[..., Fraction]
    shared: Callable[..., Fraction]
    formula: str
    x_is_rows: bool = False                 # block.x counts rows of CTAs: the lecture's V1 to V2
    c_through_shared: bool = False          # so that C is read from there once more
    textures: bool = False                  # A and B are Texture parameters

    def grid(self, m: int, n: int, **sizes: Any) -> Tile:
        """CTAs along x and y."""
        rows, columns = self.tile(**sizes)
        down, across = -(-m // rows), -(-n // columns)
        return (down, across) if self.x_is_rows else (across, down)

    def moves(self, m: int, n: int, k: int, **sizes: Any) -> tuple[int, int]:
        """Elements that are loaded from global and from shared memory; m, n and k are multiples of the tiles."""
        through = m * n if self.c_through_shared else 0
        return int(self.loads(**sizes) * m * n * k), int(self.shared(**sizes) * m * n * k) + through

    @property
    def emitter(self) -> str:
        """What a process that compiles elsewhere imports: "package.module:function"."""
        return f"{self.emit.__module__}:{self.emit.__name__}"


def _of_threads(V: int = 8, BLOCK: int = 16) -> Tile: return V * BLOCK, V * BLOCK
def _of_ctas(L: int = 128, S: int = 8, V: int = 8, PAD: int = 0) -> Tile: return L, L
def _from_ctas(L: int = 128, S: int = 8, V: int = 8, PAD: int = 0) -> Fraction: return Fraction(2, L)
def _from_shared(L: int = 128, S: int = 8, V: int = 8, PAD: int = 0) -> Fraction: return Fraction(2, V)
def _nothing(**sizes: int) -> Fraction: return Fraction(0)


_CTAS = "2n³/L global, 2n³/V shared"

GPU_STEPS: dict[str, GpuStep] = {
    "naive": GpuStep(
        "V1 naive", "a thread per element of C", gpu01_naive.emit_naive,
        lambda BLOCK=16: (BLOCK, BLOCK), lambda BLOCK=16: Fraction(2), _nothing, "2n³", x_is_rows=True),
    "tiled": GpuStep(
        "V1.5 tiled", "a thread per V x V elements: a row of A is read once for V columns", gpu02_tiled.emit_tiled,
        _of_threads, lambda V=8, BLOCK=16: 1 + Fraction(1, V), _nothing, "n³/V + n³", x_is_rows=True),
    "registers": GpuStep(
        "V2 registers", "outer products: each element that is read is used V times", gpu03_registers.emit_registers,
        _of_threads, lambda V=8, BLOCK=16: Fraction(2, V), _nothing, "2n³/V", x_is_rows=True),
    "shared": GpuStep(
        "V3 shared", "a CTA fetches tiles of A and B together into shared memory", gpu04_shared.emit_shared,
        _of_ctas, _from_ctas, _from_shared, _CTAS),
    "coalesced": GpuStep(
        "5 coalesced", "neighbouring threads have neighbouring columns", gpu05_coalesced.emit_coalesced,
        _of_ctas, _from_ctas, _from_shared, _CTAS),
    "padded": GpuStep(
        "6 padded", "A transposed in shared memory, in rows that shift the banks", gpu06_padded.emit_padded,
        _of_ctas, _from_ctas, _from_shared, _CTAS),
    "vectors": GpuStep(
        "7 vectors", "16-byte loads from shared memory", gpu07_vectors.emit_vectors,
        _of_ctas, _from_ctas, _from_shared, _CTAS),
    "buffered": GpuStep(
        "8 buffered", "the next tiles and vectors are on their way during the multiply-adds",
        gpu08_buffered.emit_buffered, _of_ctas, _from_ctas, _from_shared, _CTAS),
    "warps": GpuStep(
        "9 warps", "a warp's threads sit together: it reads fewer different elements", gpu09_warps.emit_warps,
        _of_ctas, _from_ctas, _from_shared, _CTAS),
    "stored": GpuStep(
        "10 stored", "C leaves through shared memory in whole rows: the article's 128x128x8", gpu10_stored.emit_stored,
        _of_ctas, _from_ctas, _from_shared, _CTAS + " + n²", c_through_shared=True),
    "texture": GpuStep(
        "11 texture", "texture loads: 16 bytes at a time, no tests for the edges", gpu11_texture.emit_texture,
        _of_ctas, _from_ctas, _from_shared, _CTAS + " + n²", c_through_shared=True, textures=True),
    "async": GpuStep(
        "12 async", "128x256x8, copied into shared memory past the registers", gpu12_async.emit_async,
        lambda: (128, 256), lambda: Fraction(1, 128) + Fraction(1, 256), lambda: Fraction(1, 16) + Fraction(1, 8),
        "n³/128 + n³/256 global, n³/16 + n³/8 + n² shared", c_through_shared=True),
}
