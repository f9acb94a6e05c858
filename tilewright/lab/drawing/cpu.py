"""Figures of the article on CPUs, from the ladder's tiles, plans and chips."""
from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

from tilewright import targets
from tilewright.lab.drawing import memory, records
from tilewright.lab.drawing.figure import Gallery
from tilewright.lab.drawing.loops import HUES, five_loops
from tilewright.lab.drawing.memory import Store
from tilewright.lab.drawing.pen import Svg
from tilewright.lab.drawing.pieces import Cell, Trio, grid, key
from tilewright.lab.ladder import run
from tilewright.lab.ladder.cpu2_registers import tiling
from tilewright.lab.ladder.cpu4_blocked import blocks

GALLERY = Gallery("cpu")
add, figure = GALLERY.add, GALLERY.figure
SWAPPED = "Rows and columns are exchanged against the article, whose matrices are stored by columns."


@cache
def chip() -> Any:
    """AVX2, which the article uses, with the caches of the processor that it measures, a Zen 5."""
    zen5 = targets.target("zen5")
    return replace(targets.target("x86-avx2"), l1d=zen5.l1d, l2=zen5.l2, l3=zen5.l3, model=zen5.model)


def tile() -> Any:
    """The register tile of the ladder: the article's 16 x 6, in rows instead of columns."""
    return tiling(chip(), "f32")


GALLERY.measured("intel_core_perf", "Rate against size on an Intel processor")
GALLERY.measured("amd_ryzen_perf", "Rate against size on an AMD processor")


@figure("matmul_naive", "Every element of C is a dot product",
        "A row of A and a column of B, which make one element of C. Below: how many loads that takes for the whole "
        "product, as the simulator counts them for the first step of the ladder.")
def matmul_naive(title: str) -> Svg:
    m, n, k, i, j = 8, 10, 8, 2, 6
    pen = Svg(title, 480)
    trio = Trio(pen, m, n, k, 22)
    trio.matrices(shade=0.06)
    for letter in "ABC":
        trio.cut(letter, 1, 1)
    trio.part("A", (i, i + 1))
    trio.part("B", None, (j, j + 1))
    trio.part("C", (i, i + 1), (j, j + 1))
    for letter, where, words in (("A", "left", "i"), ("B", "above", "j"), ("A", "below", "p")):
        trio.side(letter, where, words, {"i": (i, i + 1), "j": (j, j + 1)}.get(words))
    loads = records.naive(m, n, k).of(verb="load").requests
    y = trio.place("C").y + trio.place("C").h + 40
    pen.text(0, y, f"C[{i}, {j}] = sum over p of A[{i}, p] * B[p, {j}]", 13, mono=True)
    pen.text(0, y + 20, f"{m} x {n} x {k}: {loads:,} loads of {m*k + k*n} numbers", 13, "soft")
    return pen


add("mem_system_nc", "Registers and main memory",
    "The two ends of the memory hierarchy, with their sizes: numbers are multiplied in registers only.",
    lambda title: memory.hierarchy(title, [_registers(), _memory()]))


@figure("fmadd", "One fused multiply-add of vectors",
        "Three vector registers: each lane of the third is multiplied and added on its own. The numbers are those of a "
        "kernel of one instruction in the simulator.")
def fmadd(title: str) -> Svg:
    a, b, c, d = records.fma(chip().lanes(4))
    pen = Svg(title, 480)
    names = [("a", "blue", ""), ("* b", "orange", ""), ("+ c", "green", ""), ("= d", "green", "")]
    rows = a, b, c, d
    memory.vectors(pen, 30, 0, 30, names, len(a), lambda i, lane: f"{rows[i][lane]:g}")
    pen.text(0, 160, f"{len(a)} lanes of f32 in {chip().vector_bytes * 8} bits: {2*len(a)} operations", 13, "soft")
    return pen


@figure("fmadd_uops", "Multiply-adds in flight",
        "Two pipes, each of which starts a multiply-add of vectors every cycle and takes four cycles for it, so that "
        "eight chains of sums keep both busy. The tile's sums are more than that.")
def fmadd_uops(title: str) -> Svg:
    pipes, latency, shown = 2, 4, 12
    sums = tile().MR * tile().NV
    pen, size = Svg(title, 480), 31
    for cycle in range(0, shown + 1, 2):
        pen.text(60 + cycle*size, -6, str(cycle), 0, "soft", "middle")
    pen.text(54, -6, "cycle", 0, "soft", "end")
    for which in range(sums):
        start = which // pipes
        hue = ("blue", "orange")[which % pipes]
        pen.rect(60 + start*size, which*17, latency*size, 14, hue, 0.3, hue)
        pen.text(54, which*17 + 12, f"sum {which}", 0, "soft", "end")
    again = sums // pipes
    pen.line(60 + again*size, -2, 60 + again*size, sums*17, "red", 1.5, dash=True)
    pen.text(0, sums*17 + 16, f"{sums} sums of a {tile().MR} x {tile().NR} tile: the first is added to again in cycle "
             f"{again}, done since {latency}", 0, "soft")
    rate = 2 * pipes * chip().lanes(4)
    pen.text(0, sums*17 + 34, f"{pipes} pipes x {chip().lanes(4)} lanes x 2 = {rate} operations a cycle", 13)
    return pen


add("mem_layout", "A matrix stored by columns",
    "A 4 x 6 matrix, in each cell the place of the element in memory, and the memory: columns lie side by side.",
    lambda title: memory.order(title, 4, 6, by_rows=False))


@figure("matmul_kernel", "C is computed tile by tile",
        "C cut into register tiles, one of them marked, with the rows of A and the columns of B that it needs.")
def matmul_kernel(title: str) -> Svg:
    t = tile()
    m, n, k, i, j = 5*t.MR, 4*t.NR, 30, 2*t.MR, 2*t.NR
    pen = Svg(title, width=480)
    trio = Trio(pen, m, n, k, 4.2)
    trio.matrices()
    trio.cut("C", t.MR, t.NR)
    trio.part("A", rows=(i, i + t.MR))
    trio.part("B", columns=(j, j + t.NR))
    trio.part("C", (i, i + t.MR), (j, j + t.NR))
    trio.side("A", "left", f"{t.MR} rows", (i, i + t.MR))
    trio.side("B", "above", f"{t.NR} columns", (j, j + t.NR))
    trio.side("A", "below", "k")
    return pen


@figure("kernel", "What the kernel computes",
        f"One register tile of C, the rows of A and the columns of B that it is the product of. {SWAPPED}")
def kernel(title: str) -> Svg:
    t = tile()
    pen, k = Svg(title, 510), 26
    trio = Trio(pen, t.MR, t.NR, k, 11)
    trio.matrices(shade=0.3)
    for letter in "ABC":
        trio.cut(letter, 1, 1)
    trio.side("A", "left", f"{t.MR}")
    trio.side("B", "above", f"{t.NR}")
    trio.side("A", "below", "K")
    loads, naive = (t.MR + t.NR), 2 * t.MR * t.NR
    pen.text(0, trio.place("C").y + trio.place("C").h + 42, f"each step of K loads {t.MR} + {t.NR} = {loads} numbers; "
             f"element by element it would be {naive}", 0, "soft")
    return pen


@figure("kernel_rank", "Rank-1 updates",
        "The same tile after one, two, three and four steps of K: each adds the product of a column of A and a row of "
        "B to all of the tile, which fills up.")
def kernel_rank(title: str) -> Svg:
    t = tile()
    pen, steps, unit = Svg(title, 560), 4, 6.5
    for p in range(steps):
        with pen.moved(p % 2 * 290, p // 2 * 122):
            trio = Trio(pen, t.MR, t.NR, 8, unit, gap=8)
            trio.matrices(shade=0.08, named=False)
            trio.part("A", None, (p, p + 1))
            trio.part("B", (p, p + 1))
            trio.part("C", shade=(p + 1) / (steps + 1), text=f"step {p + 1}")
    return pen


@figure("outer_product", "An outer product",
        "A column times a row: each element of the result is the product of the number left of it and the one above.")
def outer_product(title: str) -> Svg:
    rows, columns, size = tile().MR, 8, 34
    pen = Svg(title, 480)
    column, row = [2*i - 5 for i in range(rows)], [j - 3 for j in range(columns)]
    grid(pen, 0, size + 12, rows, 1, size, lambda r, _: Cell("blue", 0.4, str(column[r])), text=13)
    grid(pen, size + 12, 0, 1, columns, size, lambda _, c: Cell("orange", 0.4, str(row[c])), text=13)
    grid(pen, size + 12, size + 12, rows, columns, size,
         lambda r, c: Cell("green", 0.08 + 0.03 * abs(column[r] * row[c]), str(column[r] * row[c])), text=13)
    return pen


@figure("kernel_registers", "The registers of the kernel",
        "The vector registers of the compiled loop: which part of the tile each sums up, which hold the row of B, and "
        f"which one an element of A is broadcast to. {SWAPPED}")
def kernel_registers(title: str) -> Svg:
    t, pen = tile(), Svg(title, 600)
    used = allocation()
    high, lane = 27, 31 * 8 / t.V
    accumulators = [name for name, (what, _, _) in used.items() if what == "acc"]
    top, left = 52, 74
    for name, (what, i, j) in used.items():
        x, y = (left + j*(t.V*lane + 6), top + i*high) if what == "acc" else (left + j*(t.V*lane + 6), 0) if \
            what == "b" else (0, top)
        wide, hue = (66, "blue") if what == "a" else (t.V * lane, "green" if what == "acc" else "orange")
        for at in range(t.V if what != "a" else 1):
            pen.rect(x + at*(lane if what != "a" else wide), y, lane if what != "a" else wide, high - 5, hue, 0.3,
                     "edge", 0.7)
        pen.text(x + wide/2, y + 16, name, 12, anchor="middle", bold=True, mono=True)
    pen.text(left, -8, f"a row of B: {t.NV} x {t.V} numbers", 0, "orange")
    pen.lines(0, top + high + 10, "one of A, broadcast", 66, 0, "blue")
    y = top + t.MR*high + 16
    pen.text(0, y, f"{len(accumulators)} sums + {t.NV} + 1 = {len(used)} of {chip().registers} registers; "
                   f"{t.MR * t.NV} multiply-adds for {t.NV} + {t.MR} loads", 13)
    return pen


def allocation() -> dict[str, tuple[str, int, int]]:
    """Register → ("acc", row of the tile, vector in it), ("b", 0, vector) or ("a", 0, 0), from the compiled loop."""
    code: Any = run.compiled("registers", chip())
    registers: dict[str, tuple[str, int, int]] = {}
    sums, rows = 0, list[str]()
    loop = code.loop().text
    for line in re.findall(r"vmovups\s+(-?\d*)\(.*%(ymm\d+)", loop):
        rows.append(line[1])
        registers[line[1]] = ("b", 0, int(line[0] or 0))
    offsets = sorted(at for _, _, at in registers.values())
    registers = {name: ("b", 0, offsets.index(at)) for name, (_, _, at) in registers.items()}
    for line in loop.splitlines():
        names = re.findall(r"%(ymm\d+)", line)
        if "vbroadcast" in line:
            registers[names[-1]] = ("a", 0, 0)
        elif "vfmadd" in line:
            vector = next(registers[name][2] for name in names[:-1] if name in rows)
            registers[names[-1]] = ("acc", sums // tile().NV, vector)
            sums += 1
    return registers


@figure("mm256_loadu", "A vector load",
        "Eight numbers that lie side by side in memory become the lanes of one register. They may begin anywhere.")
def mm256_loadu(title: str) -> Svg:
    lanes, first = chip().lanes(4), 3
    taken, size = records.vector_load(lanes, first), 28
    pen = Svg(title, 480)
    grid(pen, 0, 0, 1, 2*lanes, size, lambda _, c: Cell("blue" if c in taken else "", 0.4, str(c)), text=12,
         name="memory", note="16 f32 of a cache line")
    grid(pen, (first + 1) * size, 90, 1, lanes, size, lambda _, c: Cell("blue", 0.4, str(taken[c])), text=12)
    for lane, at in enumerate(taken):
        pen.line((at + 0.5)*size, size + 3, (first + 1.5 + lane)*size, 86, "blue", arrow=True)
    pen.text((first + 1)*size - 8, 108, "register", 13, anchor="end", bold=True)
    return pen


@figure("kernel_mask", "A tile at the edge of C",
        "The last tiles of C hang over its edge: elements outside are computed from zeros, and the store leaves them "
        "out, by masks.")
def kernel_mask(title: str) -> Svg:
    t = tile()
    rows, columns = t.MR - 2, t.NR - 5
    stored = records.masked_store(chip(), rows, columns)
    pen, size = Svg(title, 480), 24
    grid(pen, 0, 0, t.MR, t.NR, size,
         lambda r, c: Cell("green", 0.5) if (r, c) in stored else Cell("edge", 0.35, "0"), text=11, name="the tile",
         note=f"{t.MR} x {t.NR}, of which {rows} x {columns} are in C")
    pen.rect(0, 0, columns*size, rows*size, shade=0, line="red", width=2)
    pen.text(0, t.MR*size + 22, f"{len(stored)} of {t.MR * t.NR} elements are stored", 13, "soft")
    key(pen, 0, t.MR*size + 44, [("green", 0.5, "stored"), ("edge", 0.35, "computed from zeros, not stored")])
    return pen


@figure("mem_system", "The memory hierarchy of a core",
        "Registers, three caches and memory, boxes as wide as the logarithm of the size; in each what the blocked "
        "product keeps there.")
def mem_system(title: str) -> Svg:
    t, (mc, kc, nc) = chip(), blocks(chip(), "f32")
    held = {"L1": f"a panel of B: {kc} x {tile().NR}", "L2": f"a block of A: {mc} x {kc}",
            "L3": f"a block of B: {kc} x {nc}"}
    levels = [_registers(), *(Store(name, size, held[name], HUES[name]) for name, size in
                              (("L1", t.l1d), ("L2", t.l2), ("L3", t.l3))), _memory()]
    return memory.hierarchy(title, levels, [
        f"The caches are those of {t.model}; the memory is that of the article's machine."])


def _registers() -> Store:
    t = chip()
    return Store("registers", t.registers * t.vector_bytes, f"a tile of C: {tile().MR} x {tile().NR}",
                 HUES["registers"])


def _memory() -> Store:
    return Store("memory", 32 << 30, "A, B and C", HUES["memory"])


GALLERY.left_out("cpu_arch", "A labelled die shot", "A photograph of a chip: its caches are drawn in mem_system.")
GALLERY.left_out("core_arch", "A labelled core", "A photograph of a core: its caches are drawn in mem_system.")

add("blis_design", "Five loops around the kernel",
    "The same product five times, each the marked part of the one above: what a loop goes through, and the cache "
    "that its part is kept in, by colour.",
    lambda title: five_loops(title, chip(), tile(), blocks(chip(), "f32")))
