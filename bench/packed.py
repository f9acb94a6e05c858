"""What packing B beforehand gains: matmul(a, pack(b)) beside matmul(a, b), for few rows and for squares.

    python bench/packed.py [--formats f32 bf16 i8] [--size 2048] [--rows 1 8 32 128 512 2048] [--threads 1]
                           [--seconds 2]
"""
from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import tilewright as tw
from tilewright import formats


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--formats", nargs="*", default=["f32", "bf16", "i8"])
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 32, 128, 512, 2048])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    args = parser.parse_args()
    tw.set_num_threads(args.threads)
    print(f"{tw.detect().model}, {args.threads} threads, B {args.size} x {args.size}; GFLOP/s, medians of turns")
    rng, n = np.random.default_rng(0), args.size
    for f in args.formats:
        out = "i32" if f[0] in "iu" else None
        b = formats.convert(rng.standard_normal((n, n)) * 3, f, saturate=True)
        for m in args.rows:
            a = formats.convert(rng.standard_normal((m, n)) * 3, f, saturate=True)
            start = time.perf_counter()
            packed = tw.pack(b, out_dtype=out, rows=m)
            packing = time.perf_counter() - start
            c = np.empty((m, n), np.int32 if out else packed.sums)
            seconds: dict[str, list[float]] = {"plain": [], "packed": []}
            end = time.perf_counter() + args.seconds
            while time.perf_counter() < end or len(seconds["plain"]) < 5:
                for name, right in ("plain", b), ("packed", packed):
                    start = time.perf_counter()
                    tw.matmul(a, right, c, out_dtype=c.dtype)
                    seconds[name].append(time.perf_counter() - start)
            plain, kept = (statistics.median(times[1:]) for times in seconds.values())
            ratio = statistics.median(x / y for x, y in zip(*(times[1:] for times in seconds.values())))
            print(f"{f:6} {m:5} rows {2*m*n*n / plain / 1e9:7.1f} {2*m*n*n / kept / 1e9:7.1f}  {ratio:5.2f}   "
                  f"{packed.nbytes / b.nbytes:.2f} of B's bytes, packed in {packing*1e3:.1f} ms as {packed.word}",
                  flush=True)


if __name__ == "__main__":
    main()
