"""Checkers of docs/notebooks/sgemm-nvidia-gpu.ipynb: kernels run in the simulator, which finds races and counts sectors
and passes over the banks."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tilewright import simulator
from tilewright.ir import Function, Kernel, f32, i32, ptr, vec
from tilewright.lab.exercises.cpu import differ, integers
from tilewright.lab.exercises.mechanism import Unanswered, Wrong, agree, ask, ask_pair, exercise

WARP = 32
Indices = list[int]


def patterns(size: int) -> Iterator[Indices]:
    """The elements that the lanes of a warp read: regular ones, and ones drawn at random."""
    lanes = np.arange(WARP)
    yield from (x.tolist() for x in (lanes, lanes + 1, 2 * lanes, lanes % 8 * 64 + lanes // 8, 33 * lanes, 31 - lanes,
                                     lanes // 4, 32 * lanes % size))
    rng = np.random.default_rng(1)
    yield from (rng.integers(0, limit, WARP).tolist() for limit in (16, 64, 300, size))


def gathered(indices: Indices, size: int, shared: bool) -> simulator.Report:
    """A warp, whose lane l reads element indices[l] of x, from global memory or from a copy in shared memory."""
    k = Kernel("gather", threads=WARP, at=ptr(i32), x=ptr(f32), y=ptr(f32))
    at, x, y = k.args
    lane, tile = k.thread[0], k.smem("tile", (size,), f32)
    if shared:
        for part in range(0, size, WARP):
            tile[part + lane] = x[part + lane]
        k.barrier()
    y[lane] = (tile if shared else x)[at[lane]]
    numbers = np.arange(size, dtype=np.float32)
    return simulator.run(k.function, np.array(indices, np.int32), numbers, np.zeros(WARP, np.float32))


@exercise("nvidia.sectors", "how many sectors a load moves")
def sectors(answer: Callable[[Indices], int]) -> str:
    cases = [((x,), gathered(x, 1024, shared=False).of("x", "load").moved) for x in patterns(1024)]

    def hint(args: tuple[Any, ...], got: Any, wanted: Any) -> str:
        if got == len(set(args[0])):
            return "Those are the different elements. Eight f32 side by side share a sector of 32 bytes."
        if got == -(-(4 * len(set(args[0]))) // 32):
            return "So few would do if the elements lay side by side, from the start of a sector on."
        return "In which sector is element e, which begins at byte 4 e?"
    number = agree(answer, cases, "the simulator counts", hint)
    return f"the simulator counts the same sectors in {number} loads, of which 4 are random."


@exercise("nvidia.race", "find the race, and mend it")
def race(broken: Callable[[], Function], line: Any, mended: Callable[[], Function]) -> str:
    first = broken.__code__.co_firstlineno
    try:
        product(broken())
    except simulator.Fault as fault:
        stores = {x + fault.line.number - first + 1: fault for x in (0, 1)}
    else:
        raise Wrong("the broken kernel has no race any more: mend the copy of it, and leave the original as it was.")
    if not isinstance(line, int):
        raise Wrong("the first part of the answer is the number of a line, counted from `def` as line 1.")
    if line not in stores:
        raise Wrong(f"line {line} is not where the race is. Look for a write to memory that another warp may still be "
                    f"reading: two warps may be a whole round of the loop apart, unless a barrier stands between them.")
    try:
        report = product(ask(mended))
    except Unanswered:
        raise Wrong(f"line {line} it is. Now write emit_mended; its last line is `return k.function`.") from None
    except simulator.Fault as fault:
        if fault.kind == "race" and fault.line.number - mended.__code__.co_firstlineno + 1 == line:
            raise Wrong("the line is right. The mended kernel still has the same race: where must all threads have "
                        "arrived before that line writes again?") from None
        raise
    rounds, warps = 3, 9 * 2
    if (barriers := report.instructions["barrier"]) > 2 * rounds * warps:
        raise Wrong(f"no race, and C is right, but each warp meets {barriers // warps} barriers in {rounds} rounds, "
                    f"and two in each round are enough.")
    return f"line {line} it was. The mended kernel is exact, without a race, with two barriers in each round."


def product(function: Function, n: int = 24, T: int = 8) -> simulator.Report:
    """The report of C = A B by a kernel of these notebooks, with tiles of T x T. Wrong, if C is not exact."""
    a, b, c = integers(n, n), integers(n, n, seed=1), np.full((n, n), np.nan, np.float32)
    report = simulator.run(function, n, a, b, c, grid=(n // T, n // T))
    differ(c, a @ b, f"with n = {n}")
    return report


@exercise("nvidia.passes", "how many passes a load from shared memory takes")
def passes(answer: Callable[[Indices], int]) -> str:
    cases = [((x,), gathered(x, 1024, shared=True).of("tile", "load").moved) for x in patterns(1024)]

    def hint(args: tuple[Any, ...], got: Any, wanted: Any) -> str:
        banks = [x % 32 for x in args[0]]
        if got == max(map(banks.count, banks)):
            return "Lanes that read the same word do not conflict: the bank delivers it once, to all of them."
        if got == 32 // len(set(banks)):
            return "The fullest bank decides, not the average one."
        return "Word w is in bank w % 32. Each pass delivers one word from each bank."
    number = agree(answer, cases, "the simulator counts", hint)
    return f"the simulator counts the same passes in {number} loads."


@exercise("nvidia.swizzle", "a swizzle without bank conflicts")
def swizzle(answer: Callable[[Any, Any], Any]) -> str:
    places = [[ask(answer, row, column) for column in range(32)] for row in range(32)]
    for row, columns in enumerate(places):
        if sorted(columns) != list(range(32)):
            raise Wrong(f"row {row} of the tile goes to the columns {str(columns)[:40]}...: each of 0 ... 31 must be "
                        f"used once, or elements are lost.")

    k = Kernel("transpose", threads=(32, 8), x=ptr(f32), y=ptr(f32))
    x, y = (array.view(32, 1) for array in k.args)
    tile, (tx, ty) = k.smem("tile", (32, 32), f32), k.thread
    for row in range(0, 32, 8):
        tile[row + ty, ask(answer, row + ty, tx)] = x[row + ty, tx]
    k.barrier()
    for row in range(0, 32, 8):
        y[row + ty, tx] = tile[tx, ask(answer, tx, row + ty)]
    given, turned = integers(32, 32), np.zeros((32, 32), np.float32)
    report = simulator.run(k.function, given, turned)
    differ(turned, given.T, "after the transposition")
    stored, loaded = (report.of("tile", verb).moved for verb in ("store", "load"))
    if stored + loaded > 64:
        raise Wrong(f"the transposition is right, and its stores take {stored} passes and its loads {loaded}, where 32 "
                    f"are enough. A load reads column c of all 32 rows: these must go to 32 different columns.")
    return "32 passes for 32 stores, 32 for 32 loads, and no byte of padding."


@exercise("nvidia.lanes", "where the lanes of a warp sit")
def lanes(answer: Callable[[Any], tuple[Any, Any]]) -> str:
    places = [ask_pair(answer, lane) for lane in range(WARP)]
    wanted = {(i, j) for i in range(4) for j in range(8)}
    if missing := sorted(wanted - set(places)):
        raise Wrong(f"no lane sits at row {missing[0][0]}, column {missing[0][1]} of the 4 x 8 places. Each of 32 "
                    f"lanes has a place of its own.")

    k = Kernel("fragments", threads=WARP, a=ptr(f32), b=ptr(f32), c=ptr(f32))
    a, b, c = k.args
    lane, a_smem, b_smem = k.thread[0], k.smem("a_smem", (WARP,), f32), k.smem("b_smem", (WARP,), f32)
    a_smem[lane], b_smem[lane] = a[lane], b[lane]
    k.barrier()
    i, j = ask_pair(answer, lane)
    c[lane] = k.load(a_smem.at(i * 4), vec(f32, 4))[0] * k.load(b_smem.at(j * 4), vec(f32, 4))[0]
    report = simulator.run(k.function, integers(WARP), integers(WARP), np.zeros(WARP, np.float32))
    a_passes, b_passes = (report.of(name, "load").moved for name in ("a_smem", "b_smem"))
    if a_passes + b_passes > 4:
        slow = [name for name, number in (("A", a_passes), ("B", b_passes)) if number > 2]
        raise Wrong(f"the vectors of A take {a_passes} passes, and those of B {b_passes}; 2 and 2 can be had. Of "
                    f"{' and '.join(slow)}, no lane reads the same vector as its neighbour, lane ^ 1 or lane ^ 2: let "
                    f"one of these two share its row, and the other its column.")
    return "2 passes for A's vectors and 2 for B's. By rows, or by columns, one of them takes 4."


@exercise("nvidia.ring", "a ring of stages, with copies in flight")
def ring(answer: Callable[..., Function], pending: Callable[[int], int]) -> str:
    for stages in 2, 3, 4:
        number = ask(pending, stages)
        if not isinstance(number, int) or number < 0:
            raise Wrong(f"pending({stages}) is a number of groups, 0 or more, not {number!r}.")
        try:
            product(ask(answer, stages, number))
        except simulator.Fault as fault:
            advice = ("A thread waits for its own copies alone. What makes sure that the other threads' have arrived?"
                      if "nothing orders" in str(fault) else
                      f"With {number} groups in flight, has the tile arrived that this round multiplies?")
            raise Wrong(f"with {stages} stages: {fault}\n{advice}") from None
        try:
            product(ask(answer, stages, number + 1))
        except (simulator.Fault, Wrong, Unanswered):
            continue
        raise Wrong(f"with {stages} stages C is right and there is no race. But with {number + 1} groups in flight "
                    f"there is none, either: yours waits for copies that are not needed yet.")
    return "exact with 2, 3 and 4 stages, without a race, and each time with as many copies in flight as there can be."
