"""Launches of AMD's kernels with their right answers, arguments by the names of the kernels' parameters.

Data is "integers", small enough that every sum is exact whatever its order, or "random". Of products with many rows a
sample is compared: then `rows` of the result are, and there are right answers for these alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilewright import formats
from tilewright.compiled.base import Launch
from tilewright.kernels import reference
from tilewright.lab.doctor import selftest_peer
from tilewright.lab.ladder import run
from tilewright.lab.ladder.steps import AMD_STEPS

Array = NDArray[Any]
Shape = tuple[int, ...]
Data = Literal["integers", "random"]
DATA: tuple[Data, ...] = ("integers", "random")
Make = Callable[[Launch, Shape, Data, np.random.Generator], "Case"]
MOST_ROWS = 512  # of which all are compared
SAMPLE = 64  # of more
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
    rows: NDArray[Any] | None = None  # of the result, which `expected` has; None: all
    format: str = "f32"  # of the result


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
          expected: NDArray[np.float64], data: Data) -> NDArray[np.float64] | float:
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


def axpy(launch: Launch, shape: Shape, data: Data, rng: np.random.Generator) -> Case:
    """y = alpha x + y, of shape (n,)."""
    (n,), alpha = shape, 3.0
    x, y = (values(rng, shape, "f32", data) for _ in range(2))
    expected = alpha * x.astype(np.float64) + y
    size = np.abs(alpha * x.astype(np.float64)) + np.abs(y)
    most = 0.0 if data == "integers" else 2 * float(np.finfo(np.float32).eps) * size

    def peer(torch: Any) -> Callable[[], Any]:
        at, to = (torch.from_numpy(v.copy()).cuda() for v in (x, y))
        return lambda: to.add_(at, alpha=alpha)

    return Case(launch.grid, (n, alpha, x, y), 3, expected, most, 2.0 * n, 12.0 * n, peer)


def reciprocal(launch: Launch, shape: Shape, data: Data, rng: np.random.Generator) -> Case:
    """y = 1 / x, to the last bit. "integers": of numbers whose mantissa bits are all set, such as nextafter(2, 0), at
    every exponent. Their reciprocals lie just above the middle of two neighbouring numbers, and LLVM's sequence rounds
    them as V_RCP_F32 does, which AMD's manuals do not state."""
    (n,) = shape
    x = values(rng, shape, "f32", data)
    if data == "integers":
        i = np.arange(n)
        x = np.ldexp(np.nextafter(np.float32(2), np.float32(0)), i % 252 - 126) * (1 - 2 * (i // 252 % 2))
    x = x.astype(np.float32)
    expected = (1 / x.astype(np.float64)).astype(np.float32).astype(np.float64)
    return Case(launch.grid, (n, x, np.full(n, np.nan, np.float32)), 2, expected, 0.0, n, 8.0 * n)


def ladder(step: str, arch: str) -> Make:
    """One step of the AMD ladder: one wave and one instruction, whose shape the product's is."""

    def make(launch: Launch, shape: Shape, data: Data, rng: np.random.Generator) -> Case:
        m, n, k = shape
        given = run.operands(AMD_STEPS[step].atom(arch), data, rng)
        most = bound(given.a, given.b, None, 1.0, 0.0, "f32", "f32", given.expected, data)
        moved = sum(x.nbytes for x in given.args)
        return Case(launch.grid, given.args, len(given.args) - 1, given.expected, most, 2.0 * m * n * k, moved)

    return make


def gemm(A: str, B: str, OUT: str, SUMS: str, LAYOUT: str, xf32: bool = False) -> Make:
    """A product of (m, n, k): with integers 2 A @ B - C, else A @ B, and C starts as what no result is."""

    def make(launch: Launch, shape: Shape, data: Data, rng: np.random.Generator) -> Case:
        m, n, k = shape
        a = values(rng, (m, k), "xf32" if xf32 else A, data)
        b = values(rng, (k, n), "xf32" if xf32 else B, data)
        stored = [np.ascontiguousarray(x.T if letter == "t" else x) for x, letter in zip((a, b), LAYOUT)]
        moved = {name: x if x.itemsize > 1 else x.view(np.int8) for name, x in zip("ab", stored)}
        moved |= {"lda": stored[0].shape[1], "ldb": stored[1].shape[1]}
        rows, peer = _rows(m, rng), selftest_peer.product(a, b, xf32=xf32)
        return _product(launch, shape, a[rows], b, rows, moved, SUMS, OUT, data, rng, peer)

    return make


def scaled_gemm(A: str, B: str, OUT: str = "f32") -> Make:
    """The same of operands with scales for blocks of 32 along k; k is a multiple of that."""

    def make(launch: Launch, shape: Shape, data: Data, rng: np.random.Generator) -> Case:
        m, n, k = shape
        a, bt = values(rng, (m, k), A, data), values(rng, (n, k), B, data)
        of_a, of_b = (exponents(rng, (rows, k // BLOCK), data) for rows in (m, n))
        packed_a, packed_b = formats.pack(a), formats.pack(bt)
        moved = {"a": packed_a, "lda": packed_a.shape[1], "b": packed_b, "ldb": packed_b.shape[1], "scale_a": of_a,
                 "ld_scale_a": k // BLOCK, "scale_b": of_b, "ld_scale_b": k // BLOCK}
        peer = selftest_peer.product(a, bt.T, of_a, of_b) if {A, B} <= selftest_peer.SCALED else None
        rows = _rows(m, rng)
        return _product(launch, shape, applied(a[rows], of_a[rows]), applied(bt, of_b).T, rows, moved, "f32", OUT, data,
                        rng, peer)

    return make


def _rows(m: int, rng: np.random.Generator) -> Any:
    """The rows of C that are compared: a slice of all, or a sample."""
    return slice(None) if m <= MOST_ROWS else np.sort(rng.choice(m, SAMPLE, replace=False))


def _product(launch: Launch, shape: Shape, a: Array, b: Array, rows: Any, moved: dict[str, Any], SUMS: str, OUT: str,
             data: Data, rng: np.random.Generator, peer: Any) -> Case:
    """The case of operands that are stored as `moved` has them; `a` has these rows of A alone."""
    m, n, k = shape
    dtype = formats.get(OUT).dtype
    alpha: Any = 1
    beta: Any = 0
    if data == "integers":
        c, alpha, beta = values(rng, (m, n), OUT, data), 2, -1
    else:
        c = np.full((m, n), 77 if dtype.kind in "iu" else np.nan).astype(dtype)
    old = c[rows]
    expected = reference.product(a, b, old, alpha=alpha, beta=beta)
    most = bound(a, b, old if beta else None, alpha, beta, SUMS, OUT, expected, data)
    if data == "integers" and dtype.kind not in "iu":  # sums are exact, and then rounded
        with np.errstate(all="ignore"):
            expected = expected.astype(dtype if SUMS == "f64" else np.float32).astype(dtype).astype(np.float64)
    if dtype.kind in "iu" and SUMS != OUT:  # the lowest bits stay
        bits = 8 * dtype.itemsize
        low = -(1 << bits - 1) if dtype.kind == "i" else 0
        expected = (expected - low) % (1 << bits) + low
    kept = c.view(f"i{dtype.itemsize}") if dtype.isbuiltin == 2 else c  # as kernels have formats that NumPy lacks
    given = moved | {"m": m, "n": n, "k": k, "alpha": alpha, "beta": beta, "c": kept, "ldc": n}
    if launch.workspace:
        given["workspace"] = np.empty(launch.workspace, np.uint8).view(formats.get(SUMS).dtype)
        given["counters"] = np.zeros(launch.counters // 4, np.int32)
    names = [name for name, _ in launch.function.params]
    touched = sum(x.nbytes for x in given.values() if isinstance(x, np.ndarray))
    scratch = tuple(names.index(name) for name in ("workspace", "counters") if name in names)
    return Case(launch.grid, tuple(given[name] for name in names), names.index("c"), expected, most, 2.0 * m * n * k,
                touched, peer, scratch, None if isinstance(rows, slice) else rows, OUT)
