"""The same GEMM in Triton, as one would write it there first: a peer that is emitted from Python too.

f32 by `tl.dot` in full precision ("ieee": Triton's default for f32 is tf32).  A few tiles, of which Triton's autotuner
takes the fastest once per layout and size class.  Imported only where Triton is.
"""

from typing import Any

import triton
import triton.language as tl

# (tile of C, step of k, warps, stages)
TILES = ((64, 64, 16, 4, 3), (128, 64, 16, 4, 3), (64, 128, 16, 4, 3), (128, 128, 16, 8, 3), (32, 64, 32, 4, 4))
GROUP = 8  # rows of tiles that share their columns of B in L2


@triton.autotune(
    configs=[triton.Config({"BM": bm, "BN": bn, "BK": bk}, num_warps=warps, num_stages=stages)
             for bm, bn, bk, warps, stages in TILES],
    key=["size_class", "layout"],
)
@triton.jit(do_not_specialize=["size_class", "layout"])
def kernel(
    a, b, c, m, n, k, a_row, a_column, b_row, b_column, c_row, size_class, layout,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr,
):
    """C[m, n] = A[m, k] @ B[k, n], strides in elements.  Triton compiles annotations too: it has types of its own."""
    tile = tl.program_id(0)
    tiles_n = tl.cdiv(n, BN)
    in_group = GROUP_M * tiles_n
    first = tile // in_group * GROUP_M
    rows_here = min(tl.cdiv(m, BM) - first, GROUP_M)
    i = (first + tile % in_group % rows_here) * BM + tl.arange(0, BM)
    j = tile % in_group // rows_here * BN + tl.arange(0, BN)
    p = tl.arange(0, BK)
    a_at = a + (i % m).to(tl.int64)[:, None] * a_row + p[None, :] * a_column
    b_at = b + p[:, None] * b_row + (j % n).to(tl.int64)[None, :] * b_column
    acc = tl.zeros((BM, BN), tl.float32)
    for done in range(0, k, BK):
        left = p < k - done
        acc = tl.dot(
            tl.load(a_at, left[None, :], other=0.0),
            tl.load(b_at, left[:, None], other=0.0),
            acc,
            input_precision="ieee",
        )
        a_at += BK * a_column
        b_at += BK * b_row
    at = c + i.to(tl.int64)[:, None] * c_row + j[None, :]
    tl.store(at, acc, (i < m)[:, None] & (j < n)[None, :])


def matmul(a: Any, b: Any, c: Any) -> None:
    """c = a @ b for f32 tensors on the GPU; any strides of a and b, rows of c contiguous."""
    (m, k), n = a.shape, b.shape[1]
    size_class = 100 * ((m * n * k).bit_length() // 2) + min(m, n).bit_length() // 2
    layout = 2 * (a.stride(1) == 1) + (b.stride(1) == 1)
    strides = (*a.stride(), *b.stride(), c.stride(0))

    def tiles(meta: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)

    kernel[tiles](a, b, c, m, n, k, *strides, size_class, layout, GROUP_M=GROUP)
