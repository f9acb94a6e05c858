"""How attention is tiled on Hopper (kernels/nvidia/attention.py), and the choice among tilings."""
from __future__ import annotations

import re
from dataclasses import dataclass

from tilewright.plans.common import NoPlan

FORMATS = "bf16", "f16"
SIZES = range(32, 257, 32)          # of heads, and of their values
HELD = 1 << 60                     # bytes of keys and values that a section of heads may have, to stay in L2
_TEXT = re.compile(r"attention g(\d+) k(\d+) s(\d+)")


@dataclass(frozen=True)
class AttentionPlan:
    """warpgroups    of 64 queries each, in a CTA
    keys            of a tile
    stages          of shared memory for tiles of keys, and as many for values
    """
    warpgroups: int = 2
    keys: int = 128
    stages: int = 2

    def __str__(self) -> str:
        return f"attention g{self.warpgroups} k{self.keys} s{self.stages}"

    @classmethod
    def read(cls, text: str) -> AttentionPlan:
        """The plan of its text. ValueError for another."""
        if not (found := _TEXT.fullmatch(text)):
            raise ValueError(f"a plan of attention is like {cls()}, not {text!r}")
        return cls(*map(int, found.groups()))


def section(pairs: int, bytes: int, band: bool) -> int:
    """Pairs of head and sequence whose tiles of queries are taken together: with a band the longest tiles of all of
    them first, of as many as L2 holds; a divisor of their number. `bytes`: of a pair's keys and values."""
    if not band:
        return 1
    most = max(HELD // max(bytes, 1), 1)
    return max(n for n in range(1, pairs + 1) if pairs % n == 0 and n <= most)


def chosen(size: int, value_size: int, queries: int, keys: int, band: str) -> AttentionPlan:
    """The plan for heads of these sizes. NoPlan where the kernel has none."""
    if size not in SIZES or value_size not in SIZES:
        raise NoPlan(f"heads of {size} and {value_size} elements: a kernel has multiples of 32 up to 256")
    widest = max(size, value_size)
    if widest <= 64:
        return AttentionPlan(3, 128)
    if widest <= 128:
        return AttentionPlan(2, 128 if band else 176)
    return AttentionPlan(2, 80 if widest <= 192 else 64)
