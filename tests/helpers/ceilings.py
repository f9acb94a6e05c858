"""Ceilings of a machine that there is not."""

from __future__ import annotations

from tilewright.lab.measure.probes import Measured

FAST = Measured(
    model="a test", date="2026-01-01T00:00:00+00:00", quick=True, threads=2, clock=3e9, call=1e-7,
    flops={name: {"f32": (100e9, 200e9), "f64": (50e9, 100e9)} for name in ("x86-avx512", "x86-avx2")},
    bandwidth={level: {"read": (rate, 2 * rate)} for level, rate in
               (("L1", 400e9), ("L2", 100e9), ("L3", 50e9), ("memory", 20e9))},
    latency={}, sizes={},
)
