"""The rows of "Advanced Matrix Multiplication Optimization on Modern Multi-Core Processors"."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import tilewright as tw
from tilewright.compiler import llvm
from tilewright.ir import Kernel, f32, i64, ptr, vec
from tilewright.lab.ladder import (
    cpu2_registers,
    cpu3_padded,
    cpu4_blocked,
    cpu5_micro,
    cpu6_parallel,
    cpu_article,
    steps,
)
from tilewright.lab.reproduce import measured, sources
from tilewright.lab.reproduce.cpu_kernel import rows as rows
from tilewright.lab.reproduce.measured import AVX2
from tilewright.lab.reproduce.row import Cell, Setting
from tilewright.targets import CpuTarget
from tilewright.text import plural, size

# ---- padding


@rows("store n columns")
def fewer_rows(setting: Setting) -> Cell:
    emit = cpu3_padded.emit_masked_tile
    return Cell("compiled", measured.step_says("padded", setting.quick), measured.short("padded", setting.quick),
                code=sources.function(emit, "for i in range(MR)", "k.store"))


def _masked_store(target: CpuTarget) -> str:
    """The machine code of the store of one vector of which `columns` elements are inside the matrix."""
    lanes = target.lanes(4)
    k = Kernel("masked_store", x=ptr(f32), c=ptr(f32), columns=i64)
    x, c, columns = k.args
    k.store(c, k.load(x, vec(f32, lanes), align=4), align=4, mask=k.lanes_below(columns, lanes))
    text = llvm.assembly(k.function, target)
    return sources.loop(text[text.index("masked_store:"):text.index("retq") + 4])


@rows("mask bit", "masks by shifting", "masks from a table")
def masks(name: str, setting: Setting) -> Cell:
    code = _masked_store(AVX2)
    if name == "mask bit":
        return Cell("compiled", "The comparison gives all bits of a lane, 2^32 - 1 or 0, of which VMASKMOVPS reads the "
                    "sign: the same bit.", "-1 | 0", code=code)
    text = f"Compiled for {AVX2.name}, and below it for AVX-512, one vector each."
    wide = measured.native()
    return Cell("compiled", text if wide.masked else f"Compiled for {AVX2.name}, one vector.", "one comparison",
                code="k.store(c, x, mask=k.lanes_below(columns, V))\n\n" + code
                + (f"\n\n{_masked_store(wide)}" if wide.masked else ""))


@rows("matmul_pack")
def padded(setting: Setting) -> Cell:
    k = 31250
    work = cpu3_padded.padded_work(AVX2, "f32", 1, 1, k)
    return Cell("compiled", f"For k = {k:,} the step takes {work:,} floats of scratch memory, (6 + 16) k.",
                f"{work:,} floats", code=sources.function(cpu3_padded.emit_padded, "m_over, n_over", "rows, columns)")
                + "\n\n" + sources.function(cpu3_padded.copy_padded))


# ---- caches

@rows("cache line")
def line(setting: Setting) -> Cell:
    return Cell("computed", f"{measured.native().line} on this machine, by sysfs or cpuid.",
                f"{measured.native().line} bytes")


@rows("block sizes")
def block_sizes(setting: Setting) -> Cell:
    target = measured.native()
    table = []
    for isa in dict.fromkeys((AVX2, target)):
        MC, KC, NC = cpu4_blocked.blocks(isa, "f32")
        NR = cpu2_registers.tiling(isa, "f32").NR
        table += [(isa.name, f"B panel, KC x NR = {KC} x {NR}", size(4 * KC * NR), "L1", size(isa.l1d)),
                  (isa.name, f"A block, MC x KC = {MC} x {KC}", size(4 * MC * KC), "half of L2", size(isa.l2)),
                  (isa.name, f"B block, KC x NC = {KC} x {NC}", size(4 * KC * NC), "half of L3", size(isa.l3))]
    plan = tw.plan(tw.Gemm(4096, 4096, 4096, "f32"), target)
    return Cell("computed", f"The ladder's rule for this machine. For 4096 on all threads `tilewright.matmul` plans "
                f"`{plan}`, by its cost model.", table=(("target", "block", "bytes", "in", "which has"), *table))


@rows("matmul_cache")
def five_loops(setting: Setting) -> Cell:
    return Cell("compiled", measured.step_says("blocked", setting.quick), measured.short("blocked", setting.quick),
                code=sources.function(cpu4_blocked.five_loops))


# ---- micro-optimisations

@rows("arrays of vectors")
def tile(setting: Setting) -> Cell:
    return Cell("compiled", code=sources.function(cpu5_micro.emit_micro_tile, "acc = k.tile", "acc = k.tile"))


@rows("unrolled accumulators")
def spills(setting: Setting) -> Cell:
    table = []
    for target in dict.fromkeys((AVX2, measured.native())):
        for name, step in steps.CPU_STEPS.items():
            loop, timed = measured.code(name, target).resources, target is AVX2 and not step.parallel
            table.append((target.name, step.title, str(loop.fma), str(loop.registers), str(loop.hot_spills),
                          measured.short(name, setting.quick) if timed else ""))
    worst = max(int(row[4]) for row in table)
    return Cell("compiled", f"Spills in the loops of all steps: at most {worst}. "
                + measured.step_says("micro", setting.quick), f"{worst} spills",
                table=(("target", "step", "FMAs", "vector registers", "spills", f"n = {measured.LADDER_N}"), *table))


# ---- threads

@rows("single-thread blocks", "m_c = m_R T 5", "n_c = n_R T 50")
def blocks(name: str, setting: Setting) -> Cell:
    team = 1 if name == "single-thread blocks" else max(2, measured.threads())
    MC, KC, NC = cpu_article.blocks(AVX2, "f32", team)
    if name.startswith("n_c"):
        return Cell("computed", f"For {team} threads n_c = 6 x {team} x 50 = {NC}; for eight {6 * 8 * 50}. Measured "
                    "with m_c in the row above.", f"{NC} for {team} threads")
    n, ratios = measured.article_blocks(team, setting.quick)
    rates = {what: measured.gflops(n, sample) for what, sample in ratios.items()}
    table = [(what, f"{rates[what]:.1f}", measured.quartiles(n, sample)) for what, sample in ratios.items()]
    first, second, _ = rates.values()
    busy = " Other work on the machine disturbed the rounds." if any(s.disturbed for s in ratios.values()) else ""
    few = "" if measured.threads() > 1 or team == 1 else " This process may use one CPU: the two threads share it."
    return Cell("measured", f"n = {n}, {plural(team, 'thread')}, AVX2; m_c = {MC}, n_c = {NC}, k_c = {KC}. The "
                f"article's loops and blocks run at {first / second:.2f} times the rate of ours.{busy}{few}",
                f"{first / second:.2f}x our step", table=(("", "GFLOP/s", "quartiles"), *table),
                code=sources.function(cpu_article.emit_article, "with k.loop(m", "used") if team == 1 else "",
                differs=f"`tilewright.matmul` uses the widest vectors here, {measured.native().name}.")


@rows("12280")
def smallest(setting: Setting) -> Cell:
    cores = measured.peak().cores
    most = max(cpu_article.N_C, cpu_article.M_C)
    return Cell("computed", f"{most} x 8 = {most * 8}; for {plural(cores, 'core')}, as here, {most * cores}. Sharing "
                "tiles instead keeps all cores busy from a few tiles on.", f"{most * 8}")


@rows("collapse(2)", "pack_blockA", "pack_blockB")
def shared(name: str, setting: Setting) -> Cell:
    emit = cpu6_parallel.emit_parallel
    first, last = {"collapse(2)": ("first, last = share(n_panels * m_panels)", "k.min(mc - ir"),
                   "pack_blockA": ("first, last = (panel * MR", "pack_a"),
                   "pack_blockB": ("first, last = (panel * NR", "pack_b")}[name]
    return Cell("compiled", f"`{sources.place(emit)}`: `share(count)` is this thread's part.", "equal shares",
                code=sources.function(emit, "def share", "return") + "\n\n" + sources.function(emit, first, last))


@rows("16 cores")
def nested(setting: Setting) -> Cell:
    """Which loops the planner shares among how many threads."""
    target: Any = measured.native()
    table = []
    for team in (1, 2, 8, 16, 32, 64):
        plan: Any = tw.plan(tw.Gemm(4096, 4096, 4096, "f32"), replace(target, cores=team), threads=team)
        table.append((str(team), str(plan.jc_ways), str(plan.ic_ways), str(plan.jr_ways), str(plan)))
    several = [row for row in table if sum(int(ways) > 1 for ways in row[1:4]) > 1]
    return Cell("computed", "Plans for 4096 with the caches of this machine. Ways: how many threads share a loop.",
                f"from {several[0][0]} threads" if several else "one loop up to 64",
                table=(("threads", "jc ways", "ic ways", "jr ways", "plan"), *table))
