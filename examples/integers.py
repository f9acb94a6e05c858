"""int8 and int32 products beside NumPy's, which are exact too but take no BLAS. `python examples/integers.py [n]`"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

import tilewright as tw


def seconds(call: Callable[[], object]) -> float:
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main(n: int = 512) -> None:
    rng = np.random.default_rng(0)
    for dtype, result in ((np.int8, "i32"), (np.int32, "i32")):
        a, b = (rng.integers(-100, 100, (n, n), dtype) for _ in "ab")
        wide_a, wide_b = a.astype(np.int32), b.astype(np.int32)
        assert (tw.matmul(a, b, out_dtype=result) == wide_a @ wide_b).all()
        ours = seconds(lambda a=a, b=b, result=result: tw.matmul(a, b, out_dtype=result))
        numpy = seconds(lambda a=wide_a, b=wide_b: a @ b)
        print(f"{np.dtype(dtype).name} {n}x{n}x{n}: exact, {numpy / ours:.0f} times as fast as NumPy (one timing each)")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
