"""What a kernel is declared with: the shape of its CTAs, types of parameters. What cannot be is answered in a sentence.
"""
from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from tilewright.ir.types import Pointer, Texture, Type

WARPS = (32, 64)            # lanes of a warp on NVIDIA's chips, of a wave on AMD's Matrix Core GPUs


def is_count(n: Any, least: int = 1) -> bool:
    """Is this a whole number of at least so many?"""
    return isinstance(n, Integral) and n is not True and int(n) >= least


def shape(name: str, threads: Any) -> tuple[int, int] | None:
    """The CTA's (x, y); None for a CPU function."""
    if threads is None:
        return None
    extents = (threads, 1) if isinstance(threads, Integral) else threads
    if not isinstance(extents, Sequence) or len(extents) not in (1, 2) or not all(map(is_count, extents)):
        more = isinstance(extents, Sequence) and len(extents) > 2
        raise ValueError(f"{name}: threads must be a whole number from 1 on, or two of them, (x, y), not {threads!r}"
                         + ("; a third dimension has to be folded into one of the two" if more else ""))
    x, y = (*map(int, extents), 1)[:2]
    return x, y


def positive(name: str, option: str, n: Any) -> int:
    if not is_count(n):
        raise ValueError(f"{name}: {option} must be a whole number from 1 on, not {n!r}")
    return int(n)


def cluster(name: str, extents: Any) -> tuple[int, int, int]:
    if not isinstance(extents, Sequence) or len(extents) != 3 or not all(is_count(n, 0) for n in extents):
        raise ValueError(f"{name}: cluster must be three whole numbers of CTAs, (x, y, z), not {extents!r}")
    x, y, z = map(int, extents)
    return x, y, z


def warp(name: str, lanes: Any) -> int:
    if lanes not in WARPS:
        raise ValueError(f"{name}: warp must be 32, or 64 for AMD's chips, not {lanes!r}")
    return int(lanes)


def parameter(name: str, t: Any) -> Any:
    if not isinstance(t, (Type, Pointer, Texture)):
        raise TypeError(f"parameter {name} must have a type of tilewright.ir, such as i64, f32 or ptr(f32), not {t!r}")
    return t
