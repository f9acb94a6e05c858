"""Checkers of docs/notebooks/gpu-matmul-and-compilers.ipynb: the lecture's counts in the simulator, schedules by
what they load and whether they still compute the same, a softmax by its numbers and its reads."""
from __future__ import annotations

from collections.abc import Callable
from itertools import product as combinations
from typing import Any

import numpy as np

from tilewright import simulator, targets
from tilewright.ir import Function, Kernel, f32, ptr
from tilewright.lab.exercises.cpu import integers
from tilewright.lab.exercises.mechanism import Wrong, agree, ask, ask_pair, exercise, shown
from tilewright.lab.ladder.gpu04_shared import walk as fetched
from tilewright.lab.ladder.run import counted
from tilewright.nests.nest import Refused
from tilewright.nests.schedules.schedule import Schedule, schedule
from tilewright.targets.nvidia import GpuTarget

VERSIONS = {"V1": "naive", "V1.5": "tiled", "V2": "registers", "V3": "shared"}


@exercise("compilers.loads", "what each version loads from global memory")
def loads(answer: Callable[[str, int, int, int], int]) -> str:
    cases = []
    for version, n, V, L in (("V1", 8, 1, 8), ("V1.5", 16, 2, 8), ("V1.5", 16, 4, 16), ("V2", 16, 2, 8),
                             ("V2", 16, 4, 16), ("V3", 16, 2, 8), ("V3", 32, 4, 16)):
        sizes = {"V1": {"BLOCK": 8}, "V3": {"L": L, "S": 8, "V": V}}.get(version, {"V": V, "BLOCK": L // V})
        report = counted(VERSIONS[version], n, n, n, sizes=sizes)
        cases.append(((version, n, V, L), report.of(space="global", verb="load").elements))

    def hint(args: tuple[Any, ...], got: Any, wanted: Any) -> str:
        version = args[0]
        return {"V1": "Each of n² threads goes through a row and a column.",
                "V1.5": "A thread reads each of its V rows once, and each of its V columns V times.",
                "V2": "A thread reads V elements of A and V of B in each of n steps. How many threads are there?",
                "V3": "Only tiles are read from global memory: count for a CTA, with L rows and L columns, not for a "
                      "thread."}[version]
    number = agree(answer, cases, "the simulator counts", hint)
    return f"the simulator counts the same loads in {number} runs of the four kernels."


@exercise("compilers.walk", "threads that fetch a tile together")
def walk(answer: Callable[[Any, int, int, int, int], tuple[Any, Any]]) -> str:
    for threads, rows, columns in (64, 32, 8), (64, 8, 32), (128, 16, 16):
        rounds = rows * columns // threads
        places = [ask_pair(answer, tid, j, threads, rows, columns) for j in range(rounds) for tid in range(threads)]
        size = f"{rows} x {columns} by {threads} threads"
        outside = [x for x in places if not (0 <= x[0] < rows and 0 <= x[1] < columns)]
        if outside:
            raise Wrong(f"{size}: {shown(outside[0])} is outside the tile.")
        if len(set(places)) < len(places):
            twice = next(x for x in places if places.count(x) > 1)
            raise Wrong(f"{size}: element {shown(twice)} is fetched {places.count(twice)} times, and others never. "
                        f"Number the elements from 0 to {rows * columns - 1}: which of them has thread tid in round j?")

        k = Kernel("walk", threads=threads, x=ptr(f32), y=ptr(f32))
        x, y = (array.view(64, 1) for array in k.args)
        for j in range(rounds):
            row, column = ask_pair(answer, k.thread[0], j, threads, rows, columns)
            y[row, column] = x[row, column]
        report = simulator.run(k.function, integers(rows, 64), np.zeros((rows, 64), np.float32))
        moved, fewest = report.of("x", "load").moved, rows * columns * 4 // 32
        if moved > fewest:
            raise Wrong(f"{size}: each element is fetched once, but in {moved} sectors, where {fewest} are enough. "
                        f"Neighbouring threads must fetch neighbouring elements of a row.")
    return "every element once, in the fewest sectors, for three tiles."


@exercise("compilers.legal", "which sizes can run")
def legal(answer: Callable[[int, int, int, int], bool]) -> str:
    number = 0
    for chip, (L, S, V) in combinations(("sm_75", "sm_90a"), combinations((16, 32, 64, 128), (4, 8, 48), (2, 4, 8))):
        target = targets.target(chip)
        assert isinstance(target, GpuTarget)
        threads, smem = (L // V)**2, 8 * L * S
        try:
            why = ("a CTA has at most 1024 threads" if threads > 1024 else
                   f"two tiles take {smem:,} bytes of shared memory" if smem > target.smem_cta else "")
            if not why:
                list(fetched(0, threads, L, S))
        except ValueError as error:
            why = str(error)
        got = ask(answer, L, S, V, target.smem_cta)
        if bool(got) is bool(why):
            said = f"cannot run: {why}" if why else f"runs, with {threads} threads and {smem:,} bytes"
            raise Wrong(f"legal(L={L}, S={S}, V={V}, shared={target.smem_cta:,}) is {got}, and it {said}.")
        number += 1
    return f"the emitter and the chips say the same of {number} combinations."


def of_levels(s: Schedule, level: str) -> int:
    return sum(x.loads for x in s.counts().values() if x.level == level)


def scheduled(answer: Callable[..., Schedule], nest: Callable[..., Any], n: int, *sizes: int) -> Schedule:
    a, b, c = (np.zeros((n, n), np.float32) for _ in range(3))
    try:
        s = ask(answer, schedule(nest, a, b, c), *sizes)
    except Wrong as wrong:
        if isinstance(wrong.__cause__, Refused | ValueError):
            raise Wrong(f"an operation of the schedule is refused: {wrong.__cause__}") from None
        raise
    if not isinstance(s, Schedule):
        raise Wrong(f"the function returns the schedule, and this is {shown(s)}: each operation returns a new one.")
    return s


@exercise("compilers.registers", "a schedule with tiles in registers")
def registers(answer: Callable[..., Schedule], nest: Callable[..., Any]) -> str:
    n = 64
    for V in 2, 4:
        s = scheduled(answer, nest, n, V)
        counts = s.counts()
        read, wanted = counts["A"].loads + counts["B"].loads, 2 * n**3 // V
        if counts["C"].loads > n * n:
            raise Wrong(f"with V = {V}, C is read {counts['C'].loads:,} times from memory, and {n * n:,} are enough: "
                        f'stage("C", around="p", ...) keeps a tile of it in registers while all of p passes.')
        if read != wanted:
            raise Wrong(f"with n = {n} and V = {V}, A and B are read {read:,} times, and 2 n³/V is {wanted:,}. Inside "
                        f"p a thread needs V elements of A and V of B: stage both in registers, around the loop that "
                        f"would read them again.")
    s.check()
    return f"2 n³/V = {wanted:,} loads with V = 4, and the same numbers as the three loops, in the simulator."


@exercise("compilers.shared", "a schedule with tiles in shared memory")
def shared(answer: Callable[..., Schedule], nest: Callable[..., Any]) -> str:
    n = 64
    for LM, LN, S, V in (32, 16, 4, 4), (16, 16, 8, 2):
        s = scheduled(answer, nest, n, LM, LN, S, V)
        counts, sizes = s.counts(), f"with LM = {LM}, LN = {LN}, S = {S}, V = {V}"
        if counts["A"].level != "global":
            raise Wrong("no loop is bound to the blocks and threads of a GPU yet: s.bind(bi=\"block.y\", ...).")
        for name, wanted, tile in ("A", n**3 // LN, f"{LN} columns"), ("B", n**3 // LM, f"{LM} rows"):
            if counts[name].loads != wanted:
                raise Wrong(f"{sizes}, {name} is read {counts[name].loads:,} times from global memory, and {wanted:,} "
                            f"are enough: a CTA uses each element that it has fetched for {tile} of C.")
        if (read := of_levels(s, "shared")) != 2 * n**3 // V:
            raise Wrong(f"{sizes}, shared memory is read {read:,} times, and 2 n³/V = {2 * n**3 // V:,} are enough: "
                        f"stage the shared tiles once more, in registers, as in the exercise before.")
    s.check()
    return "n³/LN and n³/LM loads from global memory, 2 n³/V from shared memory, and the numbers of the three loops."


@exercise("compilers.softmax", "an online softmax")
def softmax(answer: Callable[..., Function]) -> str:
    rng = np.random.default_rng(5)
    rows = 3
    for target, cols in ("sm_80", 100), ("sm_80", 300), ("x86-avx2", 300):
        x = rng.normal(0, 10, (rows, cols)).astype(np.float32)
        x[1] *= 1000                                    # e^x alone would be infinite
        x[2] = np.sort(x[2])                            # the maximum comes last
        y = np.full_like(x, np.nan)
        report = simulator.run(ask(answer, target, 128), y, x, cols, grid=rows)
        wide = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
        exact = wide / wide.sum(1, keepdims=True)
        where = f"with rows of {cols} on {target}"
        if (bad := np.argwhere(~np.isfinite(y))).size:
            row, column = bad[0]
            raise Wrong(f"{where}, y[{row}, {column}] is {y[row, column]}, where x is {x[row, column]:g}. Was e^x "
                        f"taken of a large number, or -inf subtracted from -inf? Begin with a finite number, -1e30.")
        if (error := np.abs(y - exact).max()) > 1e-5:
            row, column = np.unravel_index(np.abs(y - exact).argmax(), y.shape)
            raise Wrong(f"{where}, y[{row}, {column}] is {y[row, column]:.6g}, and {exact[row, column]:.6g} is right: "
                        f"an error of {error:.1g}. When the maximum grows, the sum so far must shrink by e^(old - "
                        f"new). Elements that the mask leaves out must add nothing.")
        read = report.of("x_ptr", "load").elements
        if read > 2 * rows * cols:
            raise Wrong(f"y is right, but x is read {read / (rows * cols):.0f} times, and an online softmax reads it "
                        f"twice: once for the maximum and the sum together, once for the result.")
    return "right for long rows and large numbers, on a GPU and a CPU, with each element read twice."
