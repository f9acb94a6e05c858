"""Timing the probes: how much work a second one thread does, or all of them at once.

A ceiling is what the machine can do when nothing disturbs it, so the best of several turns counts; everywhere else in
tilewright the median does.
"""
from __future__ import annotations

import ctypes
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from typing import Any

import numpy as np

from tilewright.compiler.artefact import load
from tilewright.lab.measure import probe_kernels
from tilewright.plans.cpu_shape import ITEMSIZE
from tilewright.targets.cpu import CpuTarget

PAGE = 4096

Probe = tuple[Callable[[int], Any], float]          # call(rounds), and the work of one round


@dataclass(frozen=True)
class Effort:
    """A turn lasts this long, and there are so many of them."""
    turn_s: float
    turns: int


QUICK, FULL = Effort(0.0025, 6), Effort(0.02, 10)


def best_rate(prepare: Callable[[], Probe], cpus: Sequence[int], effort: Effort) -> float:
    """Work per second of one thread per CPU, all at once. `prepare` runs in each thread: its memory is local to it."""
    threads = len(cpus)
    start = threading.Barrier(threads)
    rates: list[list[float]] = [[] for _ in cpus]
    failed: list[BaseException] = []

    def work(n: int) -> None:
        try:
            if threads > 1 and hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, {cpus[n]})          # of this thread only
            call, per_round = prepare()
            start.wait()
            rounds = _rounds(call, effort.turn_s)
            start.wait()
            for turn in range(effort.turns + 2):
                seconds = _seconds(call, rounds)
                if 0 < turn <= effort.turns:                # in the first and the last one some threads may be alone
                    rates[n].append(rounds * per_round / seconds)
        except BaseException as error:
            failed.append(error)
            start.abort()

    pool = [threading.Thread(target=work, args=(n,), name=f"tilewright-probe-{n}") for n in range(threads)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    if failed:
        raise next((e for e in failed if not isinstance(e, threading.BrokenBarrierError)), failed[0])
    return max(map(sum, zip(*rates, strict=True)))


def _seconds(call: Callable[[int], Any], rounds: int) -> float:
    start = time.perf_counter()
    call(rounds)
    return time.perf_counter() - start


def _rounds(call: Callable[[int], Any], turn_s: float) -> int:
    """How many make a turn. Two turns' time before that brings the clock up and the data in."""
    rounds, start = 1, time.perf_counter()
    while time.perf_counter() - start < 2 * turn_s:
        call(1)
    while (seconds := _seconds(call, rounds)) < turn_s / 4:
        rounds = max(2 * rounds, min(16 * rounds, int(rounds * turn_s / 2 / max(seconds, 1e-9))))
    return max(1, math.ceil(rounds * turn_s / seconds))


# ---- memory for the probes

@cache
def _noise() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)


def random_memory(size: int) -> np.ndarray:
    """`size` bytes of noise, page-aligned: zeros would be one physical page, and cheaper to move on some chips."""
    raw = np.empty(size + PAGE, np.uint8)
    memory = raw[-raw.ctypes.data % PAGE:][:size]
    noise = _noise()
    for at in range(0, size, noise.size):
        memory[at:at + noise.size] = noise[:size - at]
    return memory


# ---- the probes, ready to call

def fma(target: CpuTarget, dtype: str) -> Probe:
    """Work: floating-point operations, two to a multiply-add."""
    function = load(probe_kernels.emit_fma_probe, target, dtype).function(
        "fma_probe", None, ctypes.c_int64, ctypes.c_void_p)
    count, lanes = probe_kernels.chains(target), target.lanes(ITEMSIZE[dtype])
    raw = np.random.default_rng(0).standard_normal((target.registers + 1) * lanes).astype(f"f{ITEMSIZE[dtype]}")
    x = raw[-raw.ctypes.data % target.vector_bytes // raw.itemsize:]
    return lambda rounds: function(rounds, x.ctypes.data), 2.0 * count * lanes


def memory(target: CpuTarget, kind: str, size: int) -> Probe:
    """Work: bytes read and bytes written, each counted once, over `size` bytes of memory."""
    function = load(probe_kernels.emit_memory_probe, target, kind).function(
        f"{kind}_probe", None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
    step = probe_kernels.UNROLL * target.vector_bytes
    moved = max(size // (2 if kind == "copy" else 1) // step, 1) * step
    x = random_memory(moved)
    y = random_memory(moved) if kind != "read" else random_memory(PAGE)
    return (lambda rounds: function(rounds, moved // target.vector_bytes, x.ctypes.data, y.ctypes.data),
            float(moved * (2 if kind == "copy" else 1)))


def latency(target: CpuTarget, size: int, line: int) -> Probe:
    """Work: loads, each of which waits for the one before: a random cycle through every line of `size` bytes."""
    function = load(probe_kernels.emit_latency_probe, target).function(
        "latency_probe", ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
    lines = max(size // line, 2)
    order = np.random.default_rng(0).permutation(lines) * (line // 8)
    x = random_memory(lines * line).view(np.int64)
    x[order] = np.roll(order, -1)
    at = int(order[0])

    def follow(rounds: int) -> None:
        nonlocal at                         # go on where the last call stopped: the next lines are cold again
        at = function(rounds * 100, x.ctypes.data, at)
    return follow, 100.0


def clock(target: CpuTarget) -> Probe:
    """Work: cycles, by dependent additions of registers, which take one each."""
    function = load(probe_kernels.emit_clock_probe, target).function(
        "clock_probe", ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    return lambda rounds: function(rounds, 3), float(probe_kernels.CHAIN)


def call(target: CpuTarget) -> Probe:
    """Work: calls from Python through ctypes of a function that does nothing."""
    function = load(probe_kernels.emit_call_probe, target).function("call_probe", ctypes.c_int64, ctypes.c_int64)

    def many(rounds: int) -> None:
        for _ in repeat(None, rounds):
            function(1)
    return many, 1.0
