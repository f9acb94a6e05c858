"""A small product for every kind of plan on CPUs, compiled for this machine's widest instruction set."""

from __future__ import annotations

import tilewright as tw
from tests.helpers.drivers import HERE
from tilewright.compiled.compile import compile
from tilewright.targets import target

PLANS = [
    ("nn", 21, 70, 19, "packed 4x{2v} mc=8 kc=8 nc={2v}"),
    ("tt", 21, 70, 19, "packed 4x{2v} mc=8 kc=12 nc={2v} ways=1x2x1"),
    ("nt", 9, 70, 19, "packed 4x{2v} mc=4 kc=8 nc={4v} ways=2x1x2"),
    ("tn", 21, 70, 19, "packed 4x{2v} mc=8 kc=8 nc={2v} ways=2x2x1 own_b"),
    ("nn", 20, 41, 9, "packed 3x{v} mc=6 kc=100 nc={v} swap"),
    ("nn", 11, 75, 13, "in_place 3x{2v} kc=5"),
    ("tn", 11, 60, 13, "in_place 3x{2v} ways=2x2x1"),
    ("nt", 2, 40, 33, "dots 3x2 swap"),
    ("nt", 40, 2, 33, "dots 3x2 ways=1x2x1"),
    ("nt", 23, 10, 45, "dots 3x4 kc=32"),
    ("nt", 10, 23, 21, "dots 3x4 kc=64 ways=2x2x1 swap"),
    ("nn", 2, 83, 21, "stream 2x4"),
]


def kernel_of(layout, m, n, k, plan, dtype="f32", **options):
    v = target(HERE[0]).lanes(4 if dtype == "f32" else 8)
    text = plan.replace("{v}", str(v)).replace("{2v}", str(2 * v)).replace("{4v}", str(4 * v))
    return compile(tw.Gemm(m, n, k, a=dtype, layout=layout, **options), target(HERE[0]), text)
