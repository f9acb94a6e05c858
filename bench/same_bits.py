"""Bits on one GPU: rows of products by `batch_invariant=True` beside those of more rows, `deterministic=True` repeated.

    python bench/same_bits.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tilewright as tw

DTYPES = torch.bfloat16, torch.float16, torch.float32, torch.float64
SIZES = (512, 1024, "nt"), (300, 700, "nn"), (4096, 4096, "nt"), (257, 129, "nt")        # n, k, layout
ROWS, OF = (1, 2, 5, 16, 17, 64, 129, 512, 999), 1000
WEIGHTS = "i8", "i4", "e4m3fn"


def products(dtype: torch.dtype) -> Iterator[str]:
    """What differs, "" for what does not."""
    for n, k, layout in SIZES:
        a = torch.randn(OF, k, device="cuda", dtype=dtype)
        b = torch.randn((n, k) if layout == "nt" else (k, n), device="cuda", dtype=dtype)
        b = b.T if layout == "nt" else b
        full = tw.matmul(a, b, batch_invariant=True)
        for m in ROWS:
            for first in (0, OF - m):
                rows = slice(first, first + m)
                same = torch.equal(tw.matmul(a[rows], b, batch_invariant=True), full[rows])
                yield "" if same else f"{dtype}: {m} rows from {first} by {k} x {n}, {layout}"
        for m in (1, 16, 100):
            found = [tw.matmul(a[:m], b, deterministic=True) for _ in range(10)]
            yield "" if all(torch.equal(x, found[0]) for x in found) else f"{dtype}: {m} rows, deterministic"


def weights() -> Iterator[str]:
    """The same of bf16 rows by weights of few bits."""
    for kind in WEIGHTS:
        q = tw.quantize(torch.randn(512, 1024).numpy(), kind, group=128)
        elements = torch.from_numpy(q.elements.view("u1")).cuda()
        elements = elements if kind == "i4" else elements.view(getattr(torch, q.elements.dtype.name))
        there = tw.Scaled(elements, torch.from_numpy(q.scales).cuda(), None, q.group, q.nibbles)
        a = torch.randn(200, 1024, device="cuda", dtype=torch.bfloat16)
        full = tw.matmul(a, there, trans_b=True, batch_invariant=True)
        for m in (1, 5, 16, 33, 129):
            same = torch.equal(tw.matmul(a[:m], there, trans_b=True, batch_invariant=True), full[:m])
            yield "" if same else f"{kind} weights: {m} rows"


def main() -> int:
    torch.manual_seed(0)
    found = [*(x for dtype in DTYPES for x in products(dtype)), *weights()]
    wrong = [x for x in found if x]
    print(*wrong, f"{len(found)} comparisons, {len(wrong)} differ", sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
