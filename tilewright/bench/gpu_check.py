"""An answer on the GPU is compared with float64 before its speed means anything: every element of C.

Whole numbers must come out exactly.  Random data may be off by 8 eps |A| |B|, as on CPUs (check.py): the sums |A| |B|
are computed too.  The reference is torch's product of float64 copies.
"""

from __future__ import annotations

from typing import Any

from tilewright.bench.gpu_device import Operands, TorchDevice
from tilewright.measure.check import RANDOM


class Reference:
    """alpha A B + beta old in float64, to hold results against.  `old` is C as it was before."""

    def __init__(
        self, on: TorchDevice, o: Operands, *, exact: bool = False, alpha: float = 1.0, beta: float = 0.0,
        old: Any = None,
    ) -> None:
        torch = on.torch
        self.wanted = alpha * (o.a.double() @ o.b.double())
        share = 0.0 if exact else RANDOM * float(torch.finfo(o.c.dtype).eps)
        self.allowed = share * abs(alpha) * (o.a.abs() @ o.b.abs())
        if beta:
            before = old.double()
            self.wanted += beta * before
            self.allowed += share * abs(beta) * before.abs()

    def wrong(self, c: Any) -> str | None:
        """None if c is right, else a sentence that says where it is not.  nan is wrong."""
        close = (c - self.wanted).abs() <= self.allowed  # c is widened to float64 here
        if bool(close.all()):
            return None
        count = int((~close).sum())
        i, j = (int(x) for x in (~close).nonzero()[0])
        got, wanted = float(c[i, j]), float(self.wanted[i, j])
        return f"{count} of {c.numel()} elements are off, the first C[{i}, {j}] = {got:.9g}, float64 says {wanted:.9g}"


def wrong(on: TorchDevice, o: Operands) -> str | None:
    """None if C is A B, else a sentence that says where it is not."""
    return Reference(on, o).wrong(o.c)
