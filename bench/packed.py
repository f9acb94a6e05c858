"""What packing B beforehand gains: matmul(a, pack(b)) beside matmul(a, b), for few rows and for squares.

    python bench/packed.py [--formats f32 bf16 i8] [--size 2048] [--rows 1 8 32 128 512 2048] [--threads 1] [--quick]
"""
from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import tilewright as tw
from tilewright import formats
from tilewright.lab.bench import study


def cases(options: Any) -> Iterator[study.Case]:
    rng, n = np.random.default_rng(0), options.size
    for f in options.formats:
        out = "i32" if f[0] in "iu" else None
        b = formats.convert(rng.standard_normal((n, n)) * 3, f, saturate=True)
        for m in options.rows:
            a = formats.convert(rng.standard_normal((m, n)) * 3, f, saturate=True)
            packed = tw.pack(b, out_dtype=out, rows=m)
            c = np.empty((m, n), np.int32 if out else packed.sums)
            wanted = a.astype("f8") @ b.astype("f8")
            sides = {name: [lambda a=a, right=right, c=c: tw.matmul(a, right, c, out_dtype=c.dtype)]
                     for name, right in ((study.OURS, packed), ("unpacked", b))}
            yield study.Case({"format": f, "rows": m, "word": packed.word, "bytes": packed.nbytes / b.nbytes}, sides,
                             lambda side, found, wanted=wanted: study.near(found, wanted, 2.0**-7),
                             {"a": a, "b": b}, flops=2*m*n*n)


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--formats", nargs="*", default=["f32", "bf16", "i8"])
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 32, 128, 512, 2048])
    parser.add_argument("--threads", type=int, default=1)


if __name__ == "__main__":
    options = study.parsed(__doc__ or "", "packed.json", arguments)
    study.device(options)
    sys.exit(study.main("packed", cases(options), options, None))
