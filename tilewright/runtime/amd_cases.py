"""Launches of AMD's kernels with their right answers, made from the kernels' own parameters.

Data is "integers", small enough that every sum is exact whatever its order, or "random".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilewright import formats
from tilewright.kernels import reference
from tilewright.kernels.ladder.amd_steps import AMD_STEPS
from tilewright.runtime import selftest_peer

Array = NDArray[Any]
Shape = tuple[int, ...]
Data = Literal["integers", "random"]
DATA: tuple[Data, ...] = ("integers", "random")
Make = Callable[[Shape, Data, np.random.Generator], "Case"]
BLOCK = 32  # elements along k that share a scale
XF32 = 0xFFFF_E000  # the bits of an f32 that an xf32 has too: 10 of the fraction


@dataclass(frozen=True)
class Case:
    """One launch, in arrays of the host's memory: the simulator takes `args` as they are, hardware gets copies.

    `args[output]` is what the kernel fills or updates; then each element is within `bound` of `expected`, which is
    computed in float64. `peer` makes torch do the same: given the module, a call on operands in the GPU's memory."""

    grid: tuple[int, ...]  # workgroups
    args: tuple[Any, ...]  # numbers and NumPy arrays, as the kernel's parameters are
    output: int
    expected: NDArray[np.float64]
    bound: NDArray[np.float64] | float
    operations: float  # additions and multiplications, in all
    bytes: float  # of memory that must be read or written
    peer: Callable[[Any], Callable[[], Any]] | None = None
    scratch: tuple[int, ...] = ()  # other arguments that the kernel may write to


def values(rng: np.random.Generator, shape: Shape, name: str, data: Data) -> Array:
    """Numbers of a format, in its dtype. Integers are those that every format of floats has: 0 to 4 and their
    negatives."""
    if name == "xf32":
        return _xf32(values(rng, shape, "f32", data))
    dtype = formats.get(name).dtype
    if data == "integers":
        return rng.integers(-4, 5, shape).astype(dtype)
    if dtype.kind == "i":
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    return rng.standard_normal(shape).astype(dtype)


def _xf32(x: Array) -> Array:
    """Rounded towards zero, so that the Matrix Core has nothing left to round in an operand."""
    return (x.view(np.uint32) & np.uint32(XF32)).view(np.float32)


def exponents(rng: np.random.Generator, shape: Shape, data: Data) -> NDArray[np.uint8]:
    """e8m0 scales: of integers' blocks 1/2 to 4, else 2^-10 to 2^10."""
    return rng.integers(*((126, 130) if data == "integers" else (117, 138)), shape).astype(np.uint8)


def applied(x: Array, scales: NDArray[np.uint8]) -> NDArray[np.float64]:
    """x[i, p] * 2^(scales[i, p // 32] - 127) in float64."""
    powers = np.exp2(scales.astype(np.float64) - 127)
    return x.astype(np.float64) * np.repeat(powers, BLOCK, axis=1)[:, : x.shape[1]]


def bound(a: Array, b: Array, c: Array | None, alpha: float, beta: float, sums: str, out: str,
          expected: NDArray[np.float64], data: Data) -> NDArray[np.float64] | float:  # fmt: skip
    """How far a result may be from `expected`, if products are added up in the format `sums`: not at all with
    integers, else see reference.error_bound; and half a step of `out`, if that is a narrower one."""
    if data == "integers" or sums == "i32":
        return 0.0
    found = reference.error_bound(a, b, c, alpha=alpha, beta=beta, dtype=formats.get(sums).dtype)
    if out == sums:
        return found
    import ml_dtypes

    info = ml_dtypes.finfo(formats.get(out).dtype)
    return found * (1 + float(info.eps)) + float(info.eps) * np.abs(expected) + float(info.smallest_subnormal)


def axpy(shape: Shape, data: Data, rng: np.random.Generator) -> Case:
    """y = alpha x + y, of shape (n,)."""
    (n,), alpha = shape, 3.0
    x, y = (values(rng, shape, "f32", data) for _ in range(2))
    expected = alpha * x.astype(np.float64) + y
    size = np.abs(alpha * x.astype(np.float64)) + np.abs(y)
    most = 0.0 if data == "integers" else 2 * float(np.finfo(np.float32).eps) * size

    def peer(torch: Any) -> Callable[[], Any]:
        at, to = (torch.from_numpy(v.copy()).cuda() for v in (x, y))
        return lambda: to.add_(at, alpha=alpha)

    return Case((-(-n // 256),), (n, alpha, x, y), 3, expected, most, 2.0 * n, 12.0 * n, peer)


def ladder(step: str, arch: str) -> Make:
    """One step of the AMD ladder: one wave and one instruction, whose shape the product's is."""
    atom = AMD_STEPS[step].atom(arch)
    scaled = step.startswith("mx")

    def make(shape: Shape, data: Data, rng: np.random.Generator) -> Case:
        m, n, k = shape
        a, b = values(rng, (m, k), atom.a_format, data), values(rng, (k, n), atom.b_format, data)
        c = np.full((m, n), np.nan, np.float32)
        stored: tuple[Any, ...] = formats.pack(a), formats.pack(b)
        if scaled:
            of_a, of_b = (exponents(rng, (rows, k // BLOCK), data) for rows in (m, n))
            stored = stored[0], of_a, stored[1], np.ascontiguousarray(of_b.T)
            a, b = applied(a, of_a), applied(b.T, of_b).T
        expected = reference.product(a, b)
        most = bound(a, b, None, 1.0, 0.0, "f32", "f32", expected, data)
        moved = sum(x.nbytes for x in (*stored, c))
        return Case((1,), (*stored, c), len(stored), expected, most, 2.0 * m * n * k, moved)

    return make


def gemm(A: str, B: str, OUT: str, SUMS: str, LAYOUT: str, CTA_M: int, CTA_N: int, SPLIT_K: int) -> Make:
    """kernels.amd.mfma_gemm of (m, n, k): with integers 2 A @ B - C, else A @ B, and C starts as nan."""

    def make(shape: Shape, data: Data, rng: np.random.Generator) -> Case:
        m, n, k = shape
        a, b = values(rng, (m, k), A, data), values(rng, (k, n), B, data)
        c, alpha, beta = _c(rng, (m, n), OUT, data)
        stored = [np.ascontiguousarray(x.T if letter == "t" else x) for x, letter in zip((a, b), LAYOUT)]
        tiles, extra = _parts(m, n, CTA_M, CTA_N, SPLIT_K, SUMS)
        expected = reference.product(a, b, c, alpha=alpha, beta=beta)
        most = bound(a, b, c if beta else None, alpha, beta, SUMS, OUT, expected, data)
        operands = [x if x.itemsize > 1 else x.view(np.int8) for x in stored]
        args = (m, n, k, alpha, operands[0], stored[0].shape[1], operands[1], stored[1].shape[1], beta, c, n, *extra)
        moved = sum(x.nbytes for x in (*stored, c))
        return Case((tiles, 1, SPLIT_K), args, 9, expected, most, 2.0 * m * n * k, moved,
                    selftest_peer.product(a, b, xf32=A == "xf32"), tuple(range(11, len(args))))  # fmt: skip

    return make


def scaled_gemm(A: str, B: str, CTA_M: int, CTA_N: int, SPLIT_K: int) -> Make:
    """kernels.amd.scaled_mfma_gemm of (m, n, k), likewise; k is a multiple of 32."""

    def make(shape: Shape, data: Data, rng: np.random.Generator) -> Case:
        m, n, k = shape
        a, bt = values(rng, (m, k), A, data), values(rng, (n, k), B, data)
        of_a, of_b = (exponents(rng, (rows, k // BLOCK), data) for rows in (m, n))
        c, alpha, beta = _c(rng, (m, n), "f32", data)
        tiles, extra = _parts(m, n, CTA_M, CTA_N, SPLIT_K, "f32")
        true_a, true_b = applied(a, of_a), applied(bt, of_b).T
        expected = reference.product(true_a, true_b, c, alpha=alpha, beta=beta)
        most = bound(true_a, true_b, c if beta else None, alpha, beta, "f32", "f32", expected, data)
        stored = formats.pack(a), formats.pack(bt)
        args = (m, n, k, alpha, stored[0], stored[0].shape[1], stored[1], stored[1].shape[1],
                of_a, k // BLOCK, of_b, k // BLOCK, beta, c, n, *extra)  # fmt: skip
        moved = sum(x.nbytes for x in (*stored, of_a, of_b, c))
        peer = selftest_peer.product(a, bt.T, of_a, of_b) if {A, B} <= selftest_peer.SCALED else None
        return Case((tiles, 1, SPLIT_K), args, 13, expected, most, 2.0 * m * n * k, moved, peer,
                    tuple(range(15, len(args))))  # fmt: skip

    return make


def _c(rng: np.random.Generator, shape: Shape, out: str, data: Data) -> tuple[Array, Any, Any]:
    """C before, alpha and beta."""
    if data == "integers":
        return values(rng, shape, out, data), 2, -1
    dtype = formats.get(out).dtype
    return (np.full(shape, 77, dtype) if dtype.kind == "i" else np.full(shape, np.nan, dtype)), 1, 0


def _parts(m: int, n: int, CTA_M: int, CTA_N: int, SPLIT_K: int, SUMS: str) -> tuple[int, tuple[Array, ...]]:
    """Tiles of C, and the arrays that workgroups which share one need beside."""
    tiles = -(-m // CTA_M) * -(-n // CTA_N)
    if SPLIT_K == 1:
        return tiles, ()
    return tiles, (np.empty(SPLIT_K * tiles * CTA_M * CTA_N, formats.get(SUMS).dtype), np.zeros(tiles, np.int32))
