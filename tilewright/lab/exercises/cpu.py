"""Checkers of docs/notebooks/matmul-cpu.ipynb: tiles are compiled, loads and packing counted in the simulator."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright import simulator, targets
from tilewright.compiler.llvm import assembly
from tilewright.inspect.resources import HotLoop, hot_loop
from tilewright.lab.exercises.mechanism import Wrong, agree, ask, exercise
from tilewright.lab.ladder.cpu2_registers import emit_registers, emit_tile, tiling
from tilewright.lab.ladder.cpu4_blocked import blocked_work, emit_blocked

AVX2, AVX512 = "x86-avx2", "x86-avx512"


def integers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Small whole numbers, whose products and sums f32 holds exactly."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


@exercise("cpu.peak", "the highest rate of a processor")
def peak(answer: Callable[..., float]) -> str:
    cases = [((1, 4.7, 8, 2), 150.4), ((8, 4.7, 8, 2), 1203.2), ((2, 3.0, 16, 1), 192.0), ((16, 2.5, 4, 2), 640.0)]

    def hint(args: tuple[Any, ...], got: Any, wanted: Any) -> str:
        if got * 2 == wanted:
            return "A multiply-add is two operations."
        if got * args[0] == wanted:
            return "That is one core."
        return "Which of the four numbers, and which constant, are multiplied?"
    agree(answer, cases, "the article's formula says", hint)
    return "the article's Ryzen 9700X has 1203 GFLOP/s by it. Nothing below can be faster than this."


@exercise("cpu.loads", "what a register tile loads")
def loads(answer: Callable[..., int]) -> str:
    target, cases = targets.target(AVX2), []
    for MR, NV, down, across, k in (6, 2, 1, 1, 10), (6, 2, 2, 3, 7), (4, 3, 3, 2, 5), (1, 1, 5, 2, 9):
        NR = 8 * NV
        m, n = down * MR, across * NR
        a, b, c = integers(m, k), integers(k, n), np.zeros((m, n), np.float32)
        report = simulator.run(emit_registers(target, "f32", MR, NV), m, n, k, a, b, c)
        cases.append(((m, n, k, MR, NR), report.of("a", "load").elements + report.of("b", "load").elements))

    def hint(args: tuple[Any, ...], got: Any, wanted: Any) -> str:
        m, n, k, MR, NR = args
        if got == 2 * m * n * k:
            return "That is the naive count. A tile uses each element that it has loaded more than once."
        if got == (MR + NR) * k:
            return "That is one tile. How many tiles does C have?"
        return "Count one step of k of one tile first: how many elements of A, how many of B?"
    agree(answer, cases, "the simulator counts", hint)
    return "the simulator counts the same loads for 4 shapes and tiles. The naive kernel loads 2 m n k."


def tiles(target: Any) -> list[tuple[float, int, int]]:
    """(FMAs for each load, MR, NV) of the tiles that the registers hold, the best first."""
    return sorted(((MR * NV / (MR + NV), MR, NV) for MR in range(1, 32) for NV in range(1, 16)
                   if MR * NV + NV + 1 <= target.registers), reverse=True)


@exercise("cpu.tile", "the tile for a register file")
def tile(answer: dict[str, tuple[int, int]]) -> str:
    said = []
    for name in AVX2, AVX512:
        target = targets.target(name)
        if not isinstance(answer, dict) or name not in answer:
            raise Wrong(f"the answer is a dict with a pair (MR, NV) for {AVX2!r} and one for {AVX512!r}.")
        MR, NV = agree_pair(answer[name], name)
        loop = hot_loop(assembly(emit_tile(target, "f32", MR, NV), target))
        if loop.hot_spills:
            raise Wrong(f"{name}: {MR} rows of {NV} vectors were compiled, and {loop.hot_spills} vectors go to memory "
                        f"and back in each step of k. The tile needs {MR}*{NV} + {NV} + 1 = {MR * NV + NV + 1} "
                        f"registers, and there are {target.registers}.")
        best, mine = tiles(target)[0][0], MR * NV / (MR + NV)
        if mine < best:
            free = target.registers - MR * NV - NV - 1
            raise Wrong(f"{name}: {MR} rows of {NV} vectors compile without spills, with {MR * NV} FMAs to {MR + NV} "
                        f"loads in each step, which is {mine:.2f}. There is a better tile, with {best:.2f}. "
                        f"Registers that are still free: {free}. Of tiles of about one size, the one nearer to MR = NV "
                        f"has more FMAs for each load.")
        said.append(f"{name} {MR} x {NV} vectors ({loop.fma} FMAs, {loop.loads + loop.elements} loads, "
                    f"{loop.registers} registers, no spills)")
    return f"{'; '.join(said)}. No other tile has more FMAs for each load."


def agree_pair(pair: Any, name: str) -> tuple[int, int]:
    try:
        MR, NV = map(int, pair)
    except (TypeError, ValueError):
        raise Wrong(f"{name}: the answer is a pair (MR, NV) of whole numbers, and this is {pair!r}.") from None
    if not (1 <= MR <= 40 and 1 <= NV <= 20):
        raise Wrong(f"{name}: MR is from 1 to 40 and NV from 1 to 20, not {MR} and {NV}.")
    return MR, NV


@exercise("cpu.micro", "write the micro-kernel")
def micro(answer: Callable[..., Any]) -> str:
    target = targets.target(AVX2)
    loops: dict[tuple[int, int], HotLoop] = {}
    for MR, NV, kc in (6, 2, 9), (4, 3, 1), (1, 1, 0):
        a, b, c = integers(kc, MR), integers(kc, 8 * NV, seed=1), np.full((MR, 8 * NV), np.nan, np.float32)
        function = ask(answer, MR, NV)
        report = simulator.run(function, kc, a, b, c)
        differ(c, a.T @ b, f"with MR={MR}, NV={NV} and kc={kc}")
        needed = {"a": kc * MR, "b": kc * NV * 8}
        for name, wanted in needed.items():
            if report.of(name, "load").elements != wanted:
                raise Wrong(f"C is right, but {report.of(name, 'load').elements} elements of {name} were loaded with "
                            f"MR={MR}, NV={NV}, kc={kc}, where {wanted} are enough: load each one once in a step of k, "
                            f"before the loops that multiply.")
        if kc > 1:
            loops[MR, NV] = hot_loop(assembly(function, target))
    (loop,) = loops.values()
    if loop.hot_spills:
        raise Wrong(f"C is right, but the compiled loop moves {loop.hot_spills} vectors to memory and back: keep C in "
                    f"a k.tile, and store it after the loop.")
    return (f"exact for three tiles; for 6 x 16 the compiled loop has {loop.fma} FMAs, {loop.loads + loop.elements} "
            f"loads, {loop.registers} registers and no spills.")


def differ(c: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], when: str) -> None:
    """Wrong, with the first element that is not what it must be."""
    bad = np.argwhere(~(c == wanted))
    if bad.size:
        at = tuple(int(x) for x in bad[0])
        inside = f"[{', '.join(map(str, at))}]"
        said = ("it is NaN: nothing was stored there, or what had been there was added" if np.isnan(c[at]) else
                f"it is {c[at]:g}, and {wanted[at]:g} is right")
        raise Wrong(f"{len(bad)} of {c.size} elements of C are wrong {when}. The first is C{inside}: {said}.")


@exercise("cpu.blocks", "block sizes for the caches")
def blocks(answer: Callable[..., tuple[int, int, int]]) -> str:
    kib = 1024
    for l1, l2, l3, MR, NR in ((32 * kib, 1024 * kib, 32768 * kib, 14, 32), (32 * kib, 512 * kib, 16384 * kib, 6, 16),
                               (48 * kib, 2048 * kib, 36864 * kib, 14, 32), (48 * kib, 1280 * kib, 8192 * kib, 4, 24)):
        got = ask(answer, l1, l2, l3, MR, NR)
        try:
            MC, KC, NC = map(int, got)
        except (TypeError, ValueError):
            raise Wrong(f"the function returns three whole numbers MC, KC, NC, and this is {got!r}.") from None
        chip = f"with L1 {l1 // kib} KiB, L2 {l2 // kib} KiB, L3 {l3 // kib} KiB and a tile of {MR} x {NR}"
        for name, size, unit, row, room, cache in (
                ("KC", KC, 1, 4 * NR, l1, "L1"), ("MC", MC, MR, 4 * KC, l2 // 2, "half of L2"),
                ("NC", NC, NR, 4 * KC, l3 // 2, "half of L3")):
            if size <= 0 or size % unit:
                raise Wrong(f"{chip}, {name} = {size}: it must be a multiple of {unit}, since only whole tiles are "
                            f"computed.")
            if size * row > room:
                raise Wrong(f"{chip}, {name} = {size} takes {size * row:,} bytes, and {cache} has {room:,}.")
            if (size + unit) * row <= room:
                raise Wrong(f"{chip}, {name} = {size} takes {size * row:,} bytes. {cache} has {room:,}, so that "
                            f"{size + unit} would fit, too.")
    return "the blocks of four chips fill their caches, and fit."


@exercise("cpu.pack", "what packing costs")
def pack(answer: Callable[..., int]) -> str:
    target, cases = targets.target(AVX2), []
    _, _, MR, _, NR = tiling(target, "f32")
    for m, n, k, MC, KC, NC in ((12, 32, 16, 12, 8, 32), (24, 64, 20, 12, 16, 32), (20, 70, 50, 12, 16, 32),
                                (7, 33, 9, 6, 4, 16)):
        a, b, c = integers(m, k), integers(k, n, seed=1), np.zeros((m, n), np.float32)
        work = np.zeros(blocked_work(target, "f32", m, n, k, MC, KC, NC), np.float32)
        report = simulator.run(emit_blocked(target, "f32", MC, KC, NC), m, n, k, a, b, c, work)
        cases.append(((m, n, k, MC, KC, NC), report.of("work", "store").elements))

    def hint(args: tuple[Any, ...], got: Any, wanted: Any) -> str:
        m, n, k, _, _, NC = args
        if got == m * k + n * k:
            return "Each block of NC columns of C packs all of A again."
        if got == m * k * -(-n // NC) + n * k:
            return f"The last panel of A is filled up with zeros to {MR} rows, and the last one of B to {NR} columns."
        return "Go through the five loops: how often does each pack run, and how many elements does it write?"
    agree(answer, cases, "the simulator counts", hint)
    return "the simulator counts as many packed elements for four shapes. They are few beside m n k multiply-adds."
