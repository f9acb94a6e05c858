"""Figures for the lecture, which has none: its four kernels and its index walk, from the ladder's first four steps."""
from __future__ import annotations

from tilewright.lab.drawing import memory
from tilewright.lab.drawing.figure import Gallery
from tilewright.lab.drawing.memory import Store
from tilewright.lab.drawing.pen import ROUND, Svg
from tilewright.lab.drawing.pieces import Cell, Trio, grid

GALLERY = Gallery("lecture")
add, figure = GALLERY.add, GALLERY.figure
N, V, L, S = 16, 2, 8, 4        # of the drawings: the matrices', a thread's tile, a CTA's tile, its depth


def _counted(pen: Svg, trio: Trio, name: str, **sizes: int) -> Svg:
    """With how many loads the kernel makes, as the simulator counts them, below."""
    from tilewright.lab.drawing.records import lecture
    far, near = lecture(name, N, **sizes)
    y = trio.place("C").y + trio.place("C").h + 34
    pen.text(0, y, f"N = {N}: {far:,} loads from global memory", 13)
    if near:
        pen.text(0, y + 19, f"and {near:,} from shared memory", 13)
    return pen


def _trio(title: str, letters: str = "ABC") -> tuple[Svg, Trio]:
    pen = Svg(title, 480)
    trio = Trio(pen, N, N, N, 13)
    trio.matrices(shade=0.06)
    for letter in letters:
        trio.cut(letter, 1, 1)
    return pen, trio


@figure("v1", "V1: a thread for each element of C",
        "A thread's element of C, and the row of A and the column of B that it reads.")
def v1(title: str) -> Svg:
    pen, trio = _trio(title)
    trio.part("A", (5, 6))
    trio.part("B", None, (9, 10))
    trio.part("C", (5, 6), (9, 10))
    return _counted(pen, trio, "naive")


@figure("v1_5", "V1.5: a thread for a tile of C",
        "A thread's V x V elements of C: for each of its rows of A it reads all of its columns of B again.")
def v1_5(title: str) -> Svg:
    pen, trio = _trio(title)
    i, j = 4, 8
    trio.part("A", (i, i + 1), shade=0.7)
    trio.part("A", (i + 1, i + V), shade=0.25)
    trio.part("B", None, (j, j + V))
    trio.part("C", (i, i + V), (j, j + V), shade=0.25)
    trio.part("C", (i, i + 1), (j, j + V), shade=0.7)
    return _counted(pen, trio, "tiled", V=V, BLOCK=N // V)


@figure("v2", "V2: partial sums",
        "A thread's V x V elements of C, which a column of A and a row of B, each of V numbers, add to in every step.")
def v2(title: str) -> Svg:
    pen, trio = _trio(title)
    i, j, p = 4, 8, 6
    trio.part("A", (i, i + V), shade=0.2)
    trio.part("B", None, (j, j + V), shade=0.2)
    trio.part("A", (i, i + V), (p, p + 1), shade=0.9)
    trio.part("B", (p, p + 1), (j, j + V), shade=0.9)
    trio.part("C", (i, i + V), (j, j + V), shade=0.7)
    return _counted(pen, trio, "registers", V=V, BLOCK=N // V)


@figure("v3", "V3: tiles in shared memory",
        "A CTA's L x L elements of C, with the tiles of A and B that its threads fetch together, and one thread's part "
        "of them.")
def v3(title: str) -> Svg:
    pen, trio = _trio(title)
    i, j, p = 0, 8, 4
    trio.part("A", (i, i + L), shade=0.12)
    trio.part("B", None, (j, j + L), shade=0.12)
    trio.part("A", (i, i + L), (p, p + S), "violet", 0.35)
    trio.part("B", (p, p + S), (j, j + L), "violet", 0.35)
    trio.part("C", (i, i + L), (j, j + L), "violet", 0.3)
    x, y = 2, 4
    trio.part("A", (i + x, i + x + V), (p + 1, p + 2), "pink", 0.9)
    trio.part("B", (p + 1, p + 2), (j + y, j + y + V), "pink", 0.9)
    trio.part("C", (i + x, i + x + V), (j + y, j + y + V), "pink", 0.9)
    return _counted(pen, trio, "shared", V=V, L=L, S=S)


@figure("fetch", "Threads fetch a tile together",
        "The lecture's example: four threads and a tile of 2 x 4, in two rounds. In each cell the thread that fetches "
        "it.")
def fetch(title: str) -> Svg:
    from tilewright.lab.ladder.gpu04_shared import walk
    threads, rows, columns = 4, 2, 4
    places = {(j, place): tid for tid in range(threads) for j, place in enumerate(walk(tid, threads, rows, columns))}
    pen, size = Svg(title, 480), 40
    for j in range(rows * columns // threads):
        def cell(r: int, c: int, j: int = j) -> Cell | None:
            tid = places.get((j, (r, c)))
            return None if tid is None else Cell(ROUND[tid], 0.5, str(tid))
        grid(pen, j * (columns*size + 60), 0, rows, columns, size, cell, name=f"round j = {j}", ticks=(1, 1), text=14)
    pen.text(0, rows*size + 26, f"y = (j*{threads} + tid) // {columns}   x = (j*{threads} + tid) % {columns}", 12,
             mono=True)
    return pen


@figure("memories", "The memories of a GPU",
        "Registers and shared memory of a multiprocessor, and what all of them share, boxes as wide as the logarithm "
        "of the size.")
def memories(title: str) -> Svg:
    from tilewright import targets
    chip = targets.target("sm_86")
    return memory.hierarchy(title, [
        Store("registers", 4 * chip.registers_sm, "of a multiprocessor: a, b and c of each thread", "pink"),
        Store("shared memory and L1", chip.smem_sm, "of a multiprocessor: tiles of A and B", "violet"),
        Store("L2", chip.l2, f"of all {chip.sms} multiprocessors", "teal"),
        Store("global memory", 24 << 30, f"A, B and C; {chip.bandwidth / 1e9:.0f} GB/s", "soft")],
        [f"The sizes are those of an {chip.model} with 24 GiB."])
