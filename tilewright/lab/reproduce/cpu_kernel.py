"""The rows of "Advanced Matrix Multiplication Optimization on Modern Multi-Core Processors", up to its section 5, the
kernel. cpu.py has the others."""
from __future__ import annotations

from typing import Any

import numpy as np

import tilewright as tw
from tilewright.lab.bench import peer, plot
from tilewright.lab.bench.chart import sheet
from tilewright.lab.bench.peer import OURS
from tilewright.lab.bench.peers import cblas
from tilewright.lab.bench.report import OWN_TIME
from tilewright.lab.bench.results import Report, Result
from tilewright.lab.bench.suites import shapes, tiles as study
from tilewright.lab.ladder import cpu1_naive, cpu2_registers, run
from tilewright.lab.measure import cpu_peaks, machine
from tilewright.lab.measure.measure import Rules
from tilewright.lab.reproduce import measured, sources
from tilewright.lab.reproduce.measured import AVX2
from tilewright.lab.reproduce.row import Cell, Rows, Setting
from tilewright.lab.reproduce.run import RESULTS, committed, where
from tilewright.targets import cpu
from tilewright.text import plural, size

rows = Rows("cpu")
# The sweeps of all sizes, in a file or in one for each number of threads, and a file for the numbers that are in none
SWEEPS = {"intel_core_perf.png": ("article_xeon*.json", "article_xeon16_2026_11_30.json"),
          "amd_ryzen_perf.png": ("article_zen*.json", "article_zen4_2_threads.json")}


# ---- the sweeps

@rows(*SWEEPS)
def sweep(name: str, setting: Setting) -> Cell:
    pattern, other = SWEEPS[name]
    names = dict.fromkeys([*(path.name for path in sorted(RESULTS.glob(pattern))), other])
    groups: dict[int, list[Result]] = {}
    shown: dict[int, Report] = {}
    for report in sorted(map(committed, names), key=lambda report: report.created):     # the newest of each count
        squares = [r for r in report.results if r.case.suite in ("article", "square") and r.case.problem.a == "f32"]
        for team in dict.fromkeys(r.threads for r in squares):
            groups[team], shown[team] = [r for r in squares if r.threads == team], report
    drawn, table, all_ratios = [], [], []
    for team, results in sorted(groups.items()):
        peak = shown[team].extra.get("peak_gflops", {}).get(f"f32 {team} native")
        drawn.append(plot.rates(plural(team, "thread"), results, peak))
        for name in dict.fromkeys(row.name for r in results for row in r.rows if row.name != OURS):
            if ratios := sorted((ratio.median, r.case.size) for r in results if (ratio := r.ratio(name))):
                middle, (least, where_least) = float(np.median([x for x, _ in ratios])), ratios[0]
                table.append((plural(team, "thread"), name, str(len(ratios)), f"{middle:.2f}", f"{least:.2f}",
                              where_least))
        all_ratios += [ratio.median for r in results if (peer_ := r.fastest_peer()) and (ratio := r.ratio(peer_))]
    sessions = [s for team, report in shown.items() for s in report.sessions if s.threads == team]
    busy = "".join(f" Other work on the machine kept {s.others:.1f} CPUs busy with {plural(s.threads, 'thread')}."
                   for s in sessions if (s.others or 0) >= 0.1)
    if 1 in shown and shown[1].options.get("despite_load"):
        busy += f" {OWN_TIME}"
    versions = {p["name"]: p["version"] for s in sessions for p in s.peers if p["name"] in peer.names()}
    head = "", "library", "sizes", "its time over ours, median", "least", "at"
    measured_on = "; ".join(f"{plural(team, 'thread')}: {where(report)}" for team, report in sorted(shown.items()))
    return Cell("committed", f"{measured_on}.{busy}",
                f"{float(np.median(all_ratios)):.2f}x the fastest" if all_ratios else "",
                svg=str(sheet(name, [[x] for x in drawn])), table=(head, *table) if table else (),
                differs=f"Beside {', '.join(f'{n} {v}' for n, v in versions.items())}.")


# ---- benchmark

@rows("test machine")
def machine_now(setting: Setting) -> Cell:
    here = machine.describe()
    caches = ", ".join(f"{name} {size(count)}" for name, count in here["caches"].items())
    packages = ", ".join(f"{name} {version}" for name, version in here["packages"].items())
    table = (("", "this machine"), ("processor", here["cpu"]), ("CPUs", f"{here['cpus_allowed']} of {here['cpus']}"),
             ("virtual", "yes" if here["virtual"] else "no"), ("caches", caches), ("memory", size(here["memory"])),
             ("instructions", " ".join(here["isa"])), ("system", here["system"]), ("Python", here["python"]),
             ("packages", packages))
    return Cell("computed", table=table)


@rows("make TARGET=ZEN")
def held_to_avx2(setting: Setting) -> Cell:
    lines = [(x.name, *(f"{key}={value}" for key, value in x.avx2.items())) for x in peer.libraries() if x.avx2]
    return Cell("computed", "`tilewright bench --target avx2` sets, for the measuring process:",
                table=(("library", "environment"), *((name, " ".join(values)) for name, *values in lines)))


@rows("cblas_sgemm")
def called(setting: Setting) -> Cell:
    rng, n = np.random.default_rng(0), 257
    a, b = rng.standard_normal((2, n, n)).astype(np.float32)
    exact = a.astype(np.float64) @ b
    errors = [float(np.abs(c - exact).max() / np.abs(exact).max()) for c in (a @ b, tw.matmul(a, b))]
    return Cell("measured", f"A product of {n}: the largest error over the largest element is {errors[1]:.1e}, and of "
                f"NumPy, which calls OpenBLAS, {errors[0]:.1e}.", f"error {errors[1]:.0e}",
                code="import tilewright\nc = tilewright.matmul(a, b)         # NumPy arrays of any strides\n\n"
                + f"# how the benchmark calls a BLAS: {sources.place(cblas.real)}\n"
                + sources.function(cblas.real, "p, (lda"))


@rows("sizes")
def sizes(setting: Setting) -> Cell:
    found = shapes.LADDER
    return Cell("computed", f"`tilewright bench --suite article`: {len(found)} sizes, {found[0]} to {found[-1]} in "
                f"steps of {found[1] - found[0]}; `--minutes` ends it early, with sizes spread over the whole range.",
                f"{found[0]} to {found[-1]}")


@rows("median")
def repetitions(setting: Setting) -> Cell:
    rules = Rules.choose(1)
    return Cell("computed", f"{rules.min_rounds} to {rules.max_rounds} rounds; in each, every library has one turn "
                f"of at least {rules.turn_s * 1e3:g} ms. The median of the rounds is quoted with its quartiles.",
                "median of rounds")


def _simulated(name: str, m: int, n: int, k: int) -> Any:
    """A step's product of whole numbers on one thread with AVX2, in the simulator."""
    a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    c = np.full((m, n), np.nan, np.float32)
    report, _ = run.simulate(name, tw.Gemm(m, n, k, "f32"), AVX2, a, b, c)
    if not (c == k).all():
        raise RuntimeError(f"the step {name} gives a wrong product")
    return report


def _elements(report: Any) -> int:
    """Loaded from A and B."""
    return sum(report.of(array, "load").elements for array in "ab")


@rows("2mnk")
def operations(setting: Setting) -> Cell:
    m, n, k = 24, 32, 40
    flops = _simulated("naive", m, n, k).flops
    return Cell("simulated", f"The step `naive` for m, n, k = {m}, {n}, {k} does {flops:,} operations: 2 m n k = "
                f"{2 * m * n * k:,}.", f"{flops:,} = 2*{m}*{n}*{k}")


@rows("flops")
def rate(setting: Setting) -> Cell:
    sample = measured.ladder(setting.quick)["tilewright"]
    n, seconds = measured.LADDER_N, sample.spread.median
    return Cell("measured", f"`tilewright.matmul` on one thread at n = {n}: 2 n^3 / {seconds * 1e3:.2f} ms = "
                f"{measured.gflops(n, sample):.1f} GFLOP/s, quartiles {measured.quartiles(n, sample)}.",
                f"{measured.gflops(n, sample):.1f} GFLOP/s")


# ---- the limit

@rows("floats of a YMM")
def floats(setting: Setting) -> Cell:
    return Cell("computed", f"{AVX2.vector_bytes} bytes of a register over 4 bytes of an f32: {AVX2.lanes(4)}.",
                str(AVX2.lanes(4)))


@rows("FMAs per cycle")
def fmas(setting: Setting) -> Cell:
    peak = measured.peak()
    assert peak.clock
    assert peak.measured
    exact = peak.measured / peak.clock / peak.lanes / 2
    return Cell("measured", f"{peak.measured / 1e9:.1f} GFLOP/s / ({peak.lanes} lanes * 2 * {peak.clock / 1e9:.2f} "
                f"GHz) = {exact:.2f} AVX2 instructions in a cycle.", f"{exact:.2f}")


@rows("FLOP per cycle")
def per_cycle(setting: Setting) -> Cell:
    peak = measured.peak()
    return Cell("computed", f"{peak.lanes} lanes x 2 operations x {peak.fmas:g} FMAs = {peak.per_cycle:g} for f32 in "
                "AVX2. " + "; ".join(f"{x.format} {x.instructions} {x.per_cycle:g}" for x in measured.peaks()) + ".",
                f"{peak.per_cycle:g}", differs="The FMAs in a cycle are those measured here, to the nearest half.")


@rows("peak")
def theoretical(setting: Setting) -> Cell:
    def rate(x: float | None) -> str:
        return "-" if x is None else f"{x / 1e9:.1f}"

    table = tuple((x.format, x.instructions, f"{x.per_cycle:g}", rate(x.one), rate(x.measured), rate(x.flops),
                   rate(x.measured_all)) for x in measured.peaks())
    peak = measured.peak()
    return Cell("measured", f"This machine by `tilewright peak native`, GFLOP/s: {peak.derivation}.",
                f"{rate(peak.flops)} GFLOP/s",
                table=(("format", "vectors", "FLOP/cycle", "one core", "FMA loop", "all cores", "FMA loops"), *table))


@rows("1203")
def ryzen(setting: Setting) -> Cell:
    (peak,) = (x for x in cpu_peaks.known(cpu.chip(cpu.CHIPS["zen5"]), 8, 4.7e9)
               if (x.format, x.instructions) == ("f32", "AVX2"))
    assert peak.flops
    return Cell("computed", f"{peak.derivation}.", f"{peak.flops / 1e9:.1f} GFLOP/s")


# ---- naive

@rows("column-major")
def address(setting: Setting) -> Cell:
    m, n = 5, 7
    by_rows, by_columns = (np.arange(m * n).reshape((m, n), order=order) for order in ("C", "F"))
    i, j = np.indices((m, n))
    right = (by_rows == i * n + j).all() and (by_columns == j * m + i).all()
    return Cell("computed", f"Of a {m} x {n} matrix by rows, A[i, p] lies at i*{n} + p; by columns at p*{m} + i: "
                f"checked for all {m * n} elements, {'right' if right else 'WRONG'}. `k.view(ld, 1)` gives a pointer "
                "in a kernel these two strides.", "row*ld + col")


@rows("matmul_naive")
def naive(setting: Setting) -> Cell:
    loop = measured.code("naive").resources
    return Cell("compiled", f"{measured.step_says('naive', setting.quick)} The loop has {loop.fma} vector FMAs.",
                measured.short("naive", setting.quick),
                code=sources.function(cpu1_naive.dot_products) + "\n\n# the loop over k, x86-64\n"
                + sources.loop(loop.text))


# ---- the kernel

K = 64  # of the counted tiles


@rows("2K m_R n_R")
def unkernelled(setting: Setting) -> Cell:
    loads = _elements(_simulated("naive", 6, 16, K))
    return Cell("simulated", f"The step `naive` for a tile of 6x16 and K = {K} loads {loads:,} elements: 2 K 6*16 = "
                f"{2 * K * 96:,}.", f"{loads:,} loads")


@rows("(m_R + n_R)K")
def kernelled(setting: Setting) -> Cell:
    loads = _elements(_simulated("registers", 6, 16, K))
    return Cell("simulated", f"The step `registers` for the same tile loads {loads:,} elements: (6 + 16) K = "
                f"{22 * K:,}.", f"{loads:,} loads")


@rows("factor")
def factor(setting: Setting) -> Cell:
    naive, tiled = (_elements(_simulated(name, 6, 16, K)) for name in ("naive", "registers"))
    shown = [(f"{m}x{n}", f"{2 * m * n / (m + n):.2f}") for m, n in (*study.ARTICLE, (24, 4), (32, 14))]
    return Cell("simulated", f"Counted for 16x6: {naive:,} / {tiled:,} = {naive / tiled:.2f}; the formula says "
                f"{2 * 96 / 22:.2f}. 32x14 is the tile of AVX-512.", f"{naive / tiled:.2f} for 16x6",
                table=(("m_R x n_R", "2 m n / (m + n)"), *shown))


@rows("16 YMM")
def registers(setting: Setting) -> Cell:
    return Cell("computed", f"AVX2 has {AVX2.registers}; AVX-512 has {cpu.AVX512.registers} of 64 bytes, NEON "
                f"{cpu.NEON.registers} of 16.", str(AVX2.registers))


@rows("registers")
def inequality(setting: Setting) -> Cell:
    table = []
    for target, lanes, have in ((AVX2, 8, 16), (cpu.record(cpu.AVX512), 16, 32)):
        for vectors in (1, 2, 3, 4):
            tile = max((t for t in study.legal(target, 4) if t.vectors == vectors), key=lambda t: t.mr)
            table.append((target.name, f"{vectors * lanes}x{tile.mr}", str(tile.registers), str(have)))
    used = measured.code("registers").resources.registers
    return Cell("computed", "The largest n_R for each m_R. The compiled loop of 16x6 uses "
                f"{used} registers: 16/8 * 6 + 16/8 + 1 = 15.", f"{used} used by 16x6",
                table=(("target", "m_R x n_R", "registers", "of"), *table))


@rows("16x6")
def best_tile(setting: Setting) -> Cell:
    tiles = measured.tiles(setting.quick)["tiles"]
    rank = [t["article"] for t in tiles].index("16x6") + 1
    best, mine = tiles[0], tiles[rank - 1]
    return Cell("measured", f"16x6 is number {rank} of {len(tiles)} tiles: {mine['gflops']['median']:.1f} GFLOP/s, "
                f"{mine['gflops']['median'] / best['gflops']['median']:.1%} of the first, {best['nr']}x{best['mr']}.",
                f"16x6 is {rank} of {len(tiles)}")


@rows("tile sizes")
def tile_table(setting: Setting) -> Cell:
    record = measured.tiles(setting.quick)
    table = [(f"{t['nr']}x{t['mr']}", "yes" if t["article"] else "", f"{(t['mr'] + 1) * t['vectors'] + 1}",
              f"{t['mr'] * t['vectors'] / (t['mr'] + t['vectors']):.2f}", f"{t['gflops']['median']:.1f}",
              f"{t['of_peak']['median']:.0%}") for t in record["tiles"]]
    head = "m_R x n_R", "in the article", "registers", "FMAs per load", "GFLOP/s", "of the FMA loop"
    return Cell("measured", f"A loop of nothing but multiply-adds: {record['fma_loop_gflops']['median']:.1f} GFLOP/s. "
                "`tilewright bench tiles` measures all, for any instruction set.", table=(head, *table))


@rows("immintrin.h")
def intrinsics(setting: Setting) -> Cell:
    emit = cpu2_registers.rank1_update
    return Cell("compiled", f"`{sources.place(emit)}`", code="from tilewright.ir import Kernel, i64, ptr, vec\n\n"
                + sources.function(emit))


@rows("matmul_kernel", "kernel_16x6 declaration", "C_accum", "rank-1 loop", "store loop")
def listing(name: str, setting: Setting) -> Cell:
    emit, loop = cpu2_registers.emit_tile, measured.code("registers").resources
    if name == "matmul_kernel":
        return Cell("compiled", measured.step_says("registers", setting.quick),
                    measured.short("registers", setting.quick),
                    code=sources.function(cpu2_registers.emit_registers, "m_whole", "k.call"))
    first, last, says, short = {
        "kernel_16x6 declaration": ("k = Kernel", "k = Kernel", "", ""),
        "C_accum": ("acc = ", "acc = ", f"The compiled loop uses {loop.registers} vector registers.",
                    f"{loop.registers} registers"),
        "rank-1 loop": ("with k.loop", "rank1_update", f"Compiled for AVX2: {loop.fma} multiply-adds, {loop.loads} "
                        f"vector loads and {loop.elements} broadcasts.",
                        f"{loop.fma} FMA {loop.loads + loop.elements} loads"),
        "store loop": ("for i in range(MR)", "k.store", "Twelve stores: the Python loops unroll while the kernel is "
                       "recorded.", "12 stores"),
    }[name]
    return Cell("compiled", says, short, code=sources.function(emit, first, last))


@rows("gcc -S")
def assembly(setting: Setting) -> Cell:
    return Cell("compiled", measured.code("registers").report() + ".",
                code="tilewright asm --step registers --target avx2")


@rows("matmul_kernel.s")
def machine_code(setting: Setting) -> Cell:
    loop = measured.code("registers").resources
    return Cell("compiled", f"{loop.fma} FMAs, {loop.registers} registers, {loop.hot_spills} vectors to or from the "
                "stack.",
                f"{loop.hot_spills} spills", code=sources.loop(loop.text))
