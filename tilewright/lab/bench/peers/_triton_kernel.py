"""A GEMM in Triton, as one would write it there first: a peer that is emitted from Python too.

f32 by `tl.dot` in full precision ("ieee": Triton's default for f32 is tf32), one tile of C for each program. f16, bf16,
fp8 and int8 on tensor cores: persistent programs, one for each multiprocessor, that read and write tiles through tensor
maps (TMA); and as f32 where an operand's rows are not multiples of 16 bytes, which a map needs. Triton's autotuner
takes the fastest of a few tiles, of f32 once per layout and size class, of the others for every size.

Imported only where Triton is.
"""

from functools import cache
from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

# (tile of C, step of k, warps, stages)
TILES = ((64, 64, 16, 4, 3), (128, 64, 16, 4, 3), (64, 128, 16, 4, 3), (128, 128, 16, 8, 3), (32, 64, 32, 4, 4))
# The same of narrow formats, with the step of k in bytes: through tensor maps, and without
MAPPED = ((128, 256, 128, 8, 4), (128, 256, 128, 8, 3), (256, 128, 128, 8, 3), (128, 128, 128, 8, 4),
          (128, 128, 128, 4, 4), (64, 256, 128, 4, 4), (64, 128, 128, 4, 4), (64, 64, 128, 4, 6))
NARROW = ((128, 128, 64, 8, 3), (128, 64, 128, 4, 3), (64, 128, 64, 4, 4), (64, 64, 128, 4, 4))
GROUP = 8  # rows of tiles that share their columns of B in L2
MAP_BYTES = 16  # the multiple of it that bytes between rows, and addresses, must be for a tensor map


@triton.jit
def place(tile, m, n, BM: tl.constexpr, BN: tl.constexpr, GROUP_M: tl.constexpr):
    """The first row and the first column of a tile of C."""
    in_group = GROUP_M * tl.cdiv(n, BN)
    first = tile // in_group * GROUP_M
    rows_here = min(tl.cdiv(m, BM) - first, GROUP_M)
    return (first + tile % in_group % rows_here) * BM, tile % in_group // rows_here * BN


@triton.jit(do_not_specialize=["size_class", "layout"])
def kernel(
    a, b, c, m, n, k, a_row, a_column, b_row, b_column, c_row, size_class, layout,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr, SUMS: tl.constexpr,
):
    """C[m, n] = A[m, k] @ B[k, n], strides in elements.  Triton compiles annotations too: it has types of its own."""
    row, column = place(tl.program_id(0), m, n, BM, BN, GROUP_M)
    i = row + tl.arange(0, BM)
    j = column + tl.arange(0, BN)
    p = tl.arange(0, BK)
    a_at = a + (i % m).to(tl.int64)[:, None] * a_row + p[None, :] * a_column
    b_at = b + p[:, None] * b_row + (j % n).to(tl.int64)[None, :] * b_column
    acc = tl.zeros((BM, BN), SUMS)
    for done in range(0, k, BK):
        left = p < k - done
        acc = tl.dot(
            tl.load(a_at, left[None, :], other=0.0),
            tl.load(b_at, left[:, None], other=0.0),
            acc,
            input_precision="ieee",
            out_dtype=SUMS,
        )
        a_at += BK * a_column
        b_at += BK * b_row
    at = c + i.to(tl.int64)[:, None] * c_row + j[None, :]
    tl.store(at, acc.to(c.dtype.element_ty), (i < m)[:, None] & (j < n)[None, :])


@triton.jit
def persistent(
    a, b, c, m, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr, SUMS: tl.constexpr,
    A_BY_COLUMNS: tl.constexpr, B_BY_COLUMNS: tl.constexpr,
):
    """A GEMM by tensor maps of A, B and C; of an operand by columns the map is of its transpose."""
    for tile in tl.range(tl.program_id(0), tl.cdiv(m, BM) * tl.cdiv(n, BN), tl.num_programs(0), flatten=True):
        i, j = place(tile, m, n, BM, BN, GROUP_M)
        acc = tl.zeros((BM, BN), SUMS)
        for p in range(0, k, BK):
            if A_BY_COLUMNS:
                x = a.load([p, i]).T
            else:
                x = a.load([i, p])
            if B_BY_COLUMNS:
                y = b.load([j, p]).T
            else:
                y = b.load([p, j])
            acc = tl.dot(x, y, acc, out_dtype=SUMS)
        halves = tl.permute(tl.reshape(acc, (BM, 2, BN // 2)), (0, 2, 1))  # of C: they need less shared memory
        left, right = tl.split(halves)
        c.store([i, j], left.to(c.dtype))
        c.store([i, j + BN // 2], right.to(c.dtype))


def _configs(tiles: tuple[tuple[int, ...], ...], element: int = 1, pre_hook: Any = None) -> list[Any]:
    """`element`: bytes, where a tile's step of k is in bytes."""
    return [triton.Config({"BM": bm, "BN": bn, "BK": bk // element}, num_warps=warps, num_stages=stages,
                          pre_hook=pre_hook) for bm, bn, bk, warps, stages in tiles]


def _boxes(given: dict[str, Any]) -> None:
    """The maps take the tile that is tried."""
    bm, bn, bk = given["BM"], given["BN"], given["BK"]
    given["a"].block_shape = [bk, bm] if given["A_BY_COLUMNS"] else [bm, bk]
    given["b"].block_shape = [bn, bk] if given["B_BY_COLUMNS"] else [bk, bn]
    given["c"].block_shape = [bm, bn // 2]


@cache
def tuned(dtype: Any, mapped: bool) -> Any:
    """The kernel for operands of a dtype, autotuned."""
    element = dtype.itemsize
    if element >= 4:
        return triton.autotune(configs=_configs(TILES), key=["size_class", "layout"])(kernel)
    if mapped:
        layout = ["A_BY_COLUMNS", "B_BY_COLUMNS"]
        return triton.autotune(configs=_configs(MAPPED, element, _boxes), key=["m", "n", "k", *layout])(persistent)
    return triton.autotune(configs=_configs(NARROW, element), key=["m", "n", "k", "layout"])(kernel)


def can_be_mapped(x: Any) -> bool:
    """Whether a tensor map describes this matrix, or its transpose."""
    row, column = x.stride()
    other = max(row, column)
    return min(row, column) == 1 and x.data_ptr() % MAP_BYTES == other * x.element_size() % MAP_BYTES == 0


def by_columns(x: Any) -> bool:
    return bool(x.stride(1) != 1)


def _map(x: Any) -> Any:
    stored = x.t() if by_columns(x) else x
    return TensorDescriptor(stored, list(stored.shape), list(stored.stride()), [1, 1])


def matmul(a: Any, b: Any, c: Any, sms: int) -> None:
    """c = a @ b for tensors on a GPU of `sms` multiprocessors; any strides of a and b, rows of c contiguous."""
    (m, k), n = a.shape, b.shape[1]
    sums = tl.float32 if c.dtype.is_floating_point else tl.int32
    mapped = a.element_size() < 4 and all(map(can_be_mapped, (a, b, c)))
    found = tuned(a.dtype, mapped)

    def tiles(meta: dict[str, int]) -> tuple[int]:
        count = triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"])
        return (min(count, sms) if mapped else count,)

    if mapped:
        found[tiles](_map(a), _map(b), _map(c), m, n, k, GROUP_M=GROUP, SUMS=sums, A_BY_COLUMNS=by_columns(a),
                     B_BY_COLUMNS=by_columns(b))
        return
    size_class = 100 * ((m * n * k).bit_length() // 2) + min(m, n).bit_length() // 2
    layout = 2 * (a.stride(1) == 1) + (b.stride(1) == 1)
    strides = (*a.stride(), *b.stride(), c.stride(0))
    found[tiles](a, b, c, m, n, k, *strides, size_class, layout, GROUP_M=GROUP, SUMS=sums)
