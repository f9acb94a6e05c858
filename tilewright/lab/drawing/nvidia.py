"""Figures of the article on NVIDIA's GPUs, from the ladder's kernels 6 to 12, recorded and run in the simulator."""
from __future__ import annotations

from functools import cache
from typing import Any

from tilewright.lab.drawing import accesses, gpu_tiles, memory, records, staged, timeline
from tilewright.lab.drawing.figure import Gallery
from tilewright.lab.drawing.memory import Step
from tilewright.lab.drawing.pen import Svg
from tilewright.lab.ladder.gpu06_padded import PAD, L, S
from tilewright.lab.ladder.gpu08_buffered import A_BUFFER

GALLERY = Gallery("nvidia")
add, figure = GALLERY.add, GALLERY.figure
CHIP = "sm_86"                  # the article's RTX 3090


@cache
def code(step: str) -> Any:
    from tilewright import targets
    from tilewright.lab.ladder import run
    return run.compiled(step, targets.target(CHIP))


def _store_a(pad: int) -> Any:
    return records.chosen("padded", "store", "a_smem", pad=pad)[0]


GALLERY.measured("unlocked_perf", "Rate and power against size, with free clocks")
GALLERY.measured("locked_perf", "Rate against size, at one clock")
GALLERY.left_out("ak_post", "A post by Andrej Karpathy", "A screenshot of somebody's post.")

add("row_major", "A matrix stored by rows",
    "A 4 x 6 matrix, in each cell the place of the element in memory, and the memory: rows lie side by side.",
    lambda title: memory.order(title, 4, 6, by_rows=True))

add("mem_align", "Vector loads and the length of rows",
    "Vectors of four numbers, by colour, over rows of 6 and over the same rows padded to 8: without padding a "
    "vector goes on in the next row.",
    lambda title: memory.wide_loads(title, 4, 6))


@figure("ptxas", "From Python to machine code",
        "The stages of compilation of the ladder's sixth kernel, and how long the code is in each.")
def ptxas(title: str) -> Svg:
    listing = code("padded")
    operations = sum(1 for _ in listing.function.walk())
    llvm = sum(line.startswith("  ") for line in listing.llvm.splitlines())
    ptx = sum(line.strip().endswith(";") and not line.strip().startswith(".") for line in listing.asm.splitlines())
    return memory.route(title, [
        ("a Python function", "gpu06_padded.py"), ("a recorded kernel", f"{operations} operations"),
        ("LLVM IR", f"{llvm:,} instructions"), ("PTX", f"{ptx:,} instructions"), ("machine code", f"of {CHIP}")], [
        Step("a Python function", "a recorded kernel", "is run once, with symbols"),
        Step("a recorded kernel", "LLVM IR", "tilewright"), Step("LLVM IR", "PTX", "LLVM, inside llvmlite"),
        Step("PTX", "machine code", "the driver, or ptxas")])


@figure("standard_ld", "From global to shared memory, through registers",
        "The way of the tiles in the ladder's tenth kernel: a load to registers, then a store to shared memory. The "
        "numbers are bytes of one CTA and 64 steps of k, counted by the simulator, with a last tile of zeros.")
def standard_ld(title: str) -> Svg:
    loaded, stored = records.tile_traffic("stored")
    return memory.route(title, _LEVELS, [
        Step("global memory", "L2", ""), Step("L2", "L1", ""),
        Step("L1", "registers", f"ld.global: {loaded:,} bytes", "blue"),
        Step("registers", "shared memory", f"st.shared: {stored:,} bytes", "blue")])


_LEVELS = [("global memory", "A and B"), ("L2", ""), ("L1", ""), ("registers", "of 256 threads"),
           ("shared memory", "tiles of A and B")]


add("matmul_design_tb", "A CTA's tile of C",
    "C cut into tiles, one for each CTA, with the rows of A and columns of B of one tile, and the slabs of k that "
    "are in shared memory one after another.",
    lambda title: gpu_tiles.cta_tile(title, L, L, S))

add("a_gmem_loads", "The tile of A on its way to shared memory",
    "The tile of A, in each cell the thread that loads it, and the same tile in shared memory, in each cell the "
    "thread that stores it: transposed, so that a thread's four numbers are neighbours.",
    lambda title: staged.transposed(title, records.chosen("padded", "load", "a"),
                                    records.chosen("padded", "store", "a_smem"), S, L + PAD))

add("bank_conflict", "Bank conflicts of the transposed store",
    "A warp's store of the tile of A without padding, a row for each lane, a column for each bank, and in the "
    "cells the pass that serves them: the eight lanes of a turn want the same four banks.",
    lambda title: accesses.banks(title, _store_a(0)))

add("bank_conflict_padding", "The transposed store with padding",
    "The same store to rows that are four words longer: the eight lanes of a turn use all 32 banks once.",
    lambda title: accesses.banks(title, _store_a(PAD)))

add("db", "Two buffers",
    "What a CTA does, instruction after instruction, with one buffer and with two: with two the next tile is on "
    "its way while this one is multiplied, and one barrier a round is enough.",
    lambda title: timeline.timelines(title, [
        ("one buffer, step 7: every tile is waited for", records.events("vectors", k=32)),
        ("two buffers, step 8: the next tile comes meanwhile", records.events("buffered", k=32))]))

add("bit_repr", "The two buffers' addresses",
    "The bits of an address in each of two buffers. The array begins where the lowest bits are 0, so that one bit "
    "says which buffer it is, and XOR with it is the other.",
    lambda title: gpu_tiles.addresses(title, A_BUFFER, 4 * (3 * 132 + 17)))

add("b_gmem_loads", "The tile of B on its way to shared memory",
    "The tile of B: each warp loads a row, in four loads of 32 neighbours; the shade is the lane.",
    lambda title: staged.straight(title, records.chosen("padded", "load", "b"), 128))

add("warp_level_design", "Warp tiles",
    "The eight warps of a CTA and the part of its tile that each computes. For the last warp, the column of A and "
    "the row of B that it reads in one step are marked.",
    gpu_tiles.warps)

add("thread_level_design", "Lanes of a warp",
    "A warp's 32 x 64 of C, in four parts of 16 x 32; in each part a lane has 4 x 4 elements, and its number "
    "stands there. Lane 0, with what it reads of the column of A and the row of B, is coloured.",
    gpu_tiles.thread_lanes)

add("cutlass_sgemm", "The whole product, level by level",
    "Each picture is the marked part of the one before: the CTA's tile in C, the warp's in the CTA's, the thread's "
    "in the warp's, with the parts of A and B that it needs.",
    gpu_tiles.levels)

add("acc_map", "C stored from registers",
    "One store of a warp whose lanes hold 4 x 4 blocks: green the elements, with the lane, red the rest of the "
    "sectors that they are in. Most of what a sector holds is written by other stores.",
    lambda title: staged.scattered(title, records.chosen("warps", "store", "c")[0], 128))


@figure("stgx", "C through shared memory",
        "A warp's 16 x 32 of C in shared memory: above, which lane stores which elements; below, which lane reads "
        "which. Every second block of four rows has its halves exchanged, so that no bank is asked twice.")
def stgx(title: str) -> Svg:
    stores, loads = ([event for event in records.chosen("stored", what, "a_smem") if "c_smem" in event.line.text]
                     for what in ("store", "load"))
    return staged.exchanged(title, stores[:4], loads[:16])


add("stg_final", "C stored by rows",
    "A store of C from registers, and one of a row that was read from shared memory: green the elements, red the "
    "rest of the sectors.",
    lambda title: staged.by_rows(title, records.chosen("warps", "store", "c")[0],
                                 records.chosen("stored", "store", "c")[0], 128))


for name, title in (("128x128x8_lock", "the step `stored` at one clock"), ("128x128x8", "the step `stored`"),
                    ("128x128x8_texld_lock", "the step `texture` at one clock"),
                    ("128x128x8_texld", "the step `texture`")):
    GALLERY.measured(name, f"Rate against size: {title}")


@figure("cp_async", "From global to shared memory, past the registers",
        "The way of the tiles in the ladder's twelfth kernel: an asynchronous copy, which holds no register. The "
        "numbers are bytes of one CTA and 64 steps of k, counted by the simulator.")
def cp_async(title: str) -> Svg:
    copied, stored = records.tile_traffic("async")
    return memory.route(title, _LEVELS, [
        Step("global memory", "L2", ""), Step("L2", "L1", ""),
        Step("L1", "shared memory", f"cp.async: {copied:,} bytes, {stored - copied:,} of zeros", "green")])


GALLERY.measured("128x256x8_lock", "Rate against size: the step `async` at one clock")
GALLERY.measured("128x256x8", "Rate against size: the step `async`")
