"""The rows of "Advanced Matrix Multiplication Optimization on NVIDIA GPUs".

Listings are in nvidia_code.py, measured rows in nvidia_sweep.py, figures in lab/drawing/. Here are counts of the
ladder's steps in the simulator, and arithmetic.
"""
from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from tilewright import simulator, targets
from tilewright.ir import Kernel, f32, ptr
from tilewright.lab.bench.suites import shapes
from tilewright.lab.ladder import gpu08_buffered, gpu09_warps, gpu12_async
from tilewright.lab.ladder.gpu06_padded import PAD, L, S, T, V
from tilewright.lab.ladder.gpu13_dispatch import choose
from tilewright.lab.ladder.run import counted, integers
from tilewright.lab.ladder.steps import GPU_STEPS
from tilewright.lab.measure import gpu_rules, gpu_state
from tilewright.lab.reproduce import nvidia_sweep as sweep
from tilewright.lab.reproduce.nvidia_code import LISTINGS
from tilewright.lab.reproduce.row import Cell, Rows, Setting
from tilewright.lab.reproduce.sources import excerpt, functions
from tilewright.problem import Gemm
from tilewright.simulator.occupancy import assembled

rows = Rows("nvidia")
ONE_TILE = 128, 256, 16         # m, n, k: whole tiles of every step, and two rounds of their loop
TITLES = sweep.TITLES


# ---- what steps do in the simulator

@cache
def simulated(name: str, size: tuple[int, int, int] = ONE_TILE, beta: float = 0.0, gap: int = 0, **sizes: int
              ) -> simulator.Report:
    """A step's report for 2 A B + beta C."""
    return counted(name, *size, alpha=2.0, beta=beta, gap=gap, sizes=sizes)


@rows("SGEMM")
def sgemm(setting: Setting) -> Cell:
    m, n, k = 131, 66, 17
    simulated("stored", (m, n, k), beta=3.0)
    return Cell("simulated", f"Step {TITLES['stored']}, the article's kernel, computes 2 A B + 3 C for m = {m}, n = "
                f"{n}, k = {k}: all {m * n:,} elements are exact.", "exact")


@rows("alpha and beta")
def alpha_beta(setting: Setting) -> Cell:
    without, using = simulated("stored"), simulated("stored", beta=3.0)
    m, n, _ = ONE_TILE
    lines = [(f"{beta:g}", str(r.of("c", "load").elements), str(r.of("c", "store").elements),
              f"{r.of('c').efficiency:.0%}") for beta, r in ((0.0, without), (3.0, using))]
    return Cell("simulated", f"Of {m} x {n} elements of C; the last column is the share of the moved sectors that was "
                "asked for.", f"{lines[0][1]} or {lines[1][1]} loads",
                table=(("beta", "loads of C", "stores", "useful"), *lines))


@rows("transposed product")
def transposed(setting: Setting) -> Cell:
    m, n, k = 130, 33, 10
    a, b, c = integers(k, m).T, integers(n, k, 0, 1).T, integers(n, m, 0, 2).T
    wanted = a.astype(np.float64) @ b
    simulator.run(GPU_STEPS["stored"].emit(), n, m, k, 1.0, b.T, k, a.T, m, 0.0, c.T, m,
                  grid=GPU_STEPS["stored"].grid(n, m))
    exact = int((c == wanted).sum())
    return Cell("simulated", f"Three matrices stored by columns, m = {m}, n = {n}, k = {k}, given to step "
                f"{TITLES['stored']} as their transposes with A and B exchanged: {exact:,} of {c.size:,} elements are "
                "exact.", f"{exact:,} exact")


@rows("element of a row-major matrix")
def element(setting: Setting) -> Cell:
    a = integers(5, 7)
    right = sum(a.ravel()[row * 7 + column] == a[row, column] for row in range(5) for column in range(7))
    return Cell("computed", f"In a kernel `a.view(lda, 1)[i, p]`: the strides, in elements, are arguments. The formula "
                f"finds {right} of {a.size} elements of a 5 x 7 matrix.", f"{right} of {a.size}")


@rows("cublasSgemm")
def leading_dimensions(setting: Setting) -> Cell:
    m, n, k, gap = 61, 67, 13, 5
    simulated("stored", (m, n, k), gap=gap)
    return Cell("simulated", f"`tw.matmul(a, b)` and `tw.gemm(a, b, c, alpha, beta)` take slices: `a[:, :{k}]`. In the "
                f"simulator step {TITLES['stored']} multiplies {m} x {k} by {k} x {n} inside matrices whose rows are "
                f"{gap} elements longer: exact, and nothing between the rows is read or written.",
                f"ld = columns + {gap}", code="c = tw.matmul(a, b)     # strides are those of the arrays\n"
                                             "tw.gemm(a, b, c, alpha=2.0, beta=3.0)")


@rows("rounds over k")
def rounds(setting: Setting) -> Cell:
    lines = []
    for k in (8, 24, 40):
        barriers = simulated("vectors", (128, 128, k)).instructions["barrier"]
        lines.append((str(k), str(barriers), str(barriers // (T * T // 32) // 2)))
    return Cell("simulated", f"Step {GPU_STEPS['vectors'].title}, with k_S = {S} and two barriers in a round, in one "
                f"CTA of {T * T // 32} warps.", "K / 8", table=(("K", "barriers of warps", "rounds"), *lines))


@rows("elements per thread")
def loads_per_thread(setting: Setting) -> Cell:
    k = 16
    report = simulated("padded", (128, 128, k))
    loads = report.of("a", "load").elements // (T * T) // (k // S)
    return Cell("simulated", f"{report.of('a', 'load').elements:,} elements of A in {k // S} rounds by {T * T} "
                f"threads: {loads} for each thread and round, and as many of B.", str(loads))


@rows("loads of a thread")
def fragments(setting: Setting) -> Cell:
    lines = []
    for name in ("vectors", "buffered", "warps"):
        loads = simulated(name).of(space="shared", verb="load")
        fmas = simulated(name).instructions["fma"]
        lines.append((GPU_STEPS[name].title, f"{loads.elements / (32 * fmas) * V * V:g}", f"{loads.requests:,}",
                      f"{loads.moved:,}", f"{loads.moved / fmas:.3f}"))
    return Cell("simulated", "Elements of shared memory for 64 multiply-adds of a thread; requests are vectors of a "
                "warp, passes are over the banks. Step 9 delivers the same vectors in fewer passes, since two quarters "
                "of a warp share them.", f"{lines[-1][1]} for 64",
                table=(("step", "elements", "requests", "passes", "passes per FMA"), *lines))


# ---- banks of shared memory

@rows("banks")
def banks(setting: Setting) -> Cell:
    lines = []
    for stride in (1, 2, 4, 8, 16, 31, 32, 33):
        k = Kernel(f"stride_{stride}", threads=32, out=ptr(f32))
        lane, smem = k.thread[0], k.smem("smem", (32 * 33,), f32)
        k.store(smem.at(lane * stride), k.constant(f32, 1))
        k.barrier()
        k.store(k.args[0] + lane, smem[lane * stride])
        report = simulator.run(k.function, np.zeros(32, np.float32), grid=(1,))
        lines.append((str(stride), str(report.of(space="shared", verb="load").moved)))
    return Cell("simulated", "32 lanes each read one float, so many floats apart: passes over the banks.",
                f"{lines[6][1]} passes at 32", table=(("stride", "passes"), *lines))


def padding(PAD: int) -> tuple[str, ...]:
    stores = simulated("padded", PAD=PAD).of("a_smem", "store")
    return (str(L + PAD), f"{stores.requests}", f"{stores.moved:,}", f"{stores.ideal}",
            f"{stores.moved // stores.requests}")


PADDED = ("row of A", "stores", "passes", "fewest", "each")


@rows("passes of a request")
def passes(setting: Setting) -> Cell:
    scalar = simulated("padded").of("b_smem", "store")
    naive, padded = padding(0), padding(PAD)
    return Cell("simulated", f"Stores of 4 bytes a lane, of B: {scalar.moved // scalar.requests} pass each. Stores of "
                "16 bytes a lane, of the transposed A:", f"1 and {padded[-1]}; {naive[-1]}",
                table=(PADDED, naive, padded))


@rows("smem_a_ld")
def padded_row(setting: Setting) -> Cell:
    lines = [padding(pad) for pad in (0, 4, 8, 12)]
    return Cell("simulated", f"`k.smem(\"a_smem\", ({S}, {L} + PAD), f32)` with PAD = {PAD}. Rows stay multiples of 16 "
                "bytes, so the next choice after 4 is 8.", str(L + PAD), table=(PADDED, *lines))


# ---- arithmetic

@rows("replays")
def replays(setting: Setting) -> Cell:
    lines = [(str(n), str(count), str(count // 2)) for n in (1024, 2048, 4096, 8192, 12800)
             if (count := gpu_rules.replays(n))]
    return Cell("computed", "Launches, and how many of the last ones count.", f"{gpu_rules.replays(4096)} at 4096",
                table=(("n", "launches", "averaged"), *lines), code=functions(gpu_rules.replays))


@rows("sizes")
def sizes(setting: Setting) -> Cell:
    found = shapes.GPU_SQUARES["sweep"]
    return Cell("computed", f"n = {found[0]} ... {found[-1]}, step {found[1] - found[0]}: {len(found)} sizes.",
                f"{len(found)} sizes")


@rows("alignment of vector loads")
def alignment(setting: Setting) -> Cell:
    target, lines = targets.target("h200"), []
    for n, address in ((1024, 0), (1026, 0), (1025, 0), (1024, 16), (1024, 512)):
        vector = next(width for width in (4, 2, 1) if n % width == 0 and address % (4 * width) == 0)
        lines.append((str(n), str(address), str(vector), choose(target, n, n, n, address, n, address, n)))
    return Cell("computed", "The widest load of neighbours in every row, in floats, and the step that is chosen.",
                "4 floats by 4", table=(("leading dimension", "address", "floats", "step"), *lines))


@rows("padding for tensor cores")
def any_size(setting: Setting) -> Cell:
    import tilewright as tw

    target, lines = targets.target("h200"), []
    for size in ((1024, 1024, 1024), (1001, 1003, 1005)):
        plan = str(tw.plan(Gemm(*size, "f16"), target))
        lines.append((" x ".join(map(str, size)), plan))
    return Cell("computed", "The plans of two products of f16 on an H200.", "any size",
                table=(("m x n x k", "plan"), *lines))


@rows("best tiles")
def best_tiles(setting: Setting) -> Cell:
    import tilewright as tw

    lines = []
    for name in ("sm_80", "sm_86", "sm_89", "h200"):
        target: Any = targets.target(name)
        for n in (1024, 2048, 4096, 8192):
            plan: Any = tw.plan(Gemm(n, n, n), target)
            lines.append((target.model.removeprefix("NVIDIA "), str(n), str(plan).split(" warp=")[0]))
    return Cell("computed", "Plans of f32 by the cost model (H200: with what was measured on one).",
                next(plan for chip, n, plan in lines if "3090" in chip and n == "2048")[:22],
                table=(("chip", "n", "plan"), *lines))


A_BYTES, A_TILE = gpu08_buffered.A_BUFFER, gpu08_buffered.A_ROW * S * f32.bytes


@rows("bytes of the buffers of A")
def buffer_bytes(setting: Setting) -> Cell:
    return Cell("computed", f"A tile of A: {gpu08_buffered.A_ROW} * {S} * 4 = {A_TILE:,} bytes, rounded up to "
                f"{A_BYTES:,}; two of them {2 * A_BYTES:,}. With B's the step's CTA has "
                f"{GPU_STEPS['buffered'].emit().shared_bytes:,} bytes of shared memory.", f"{2 * A_BYTES} B")


@rows("unused shared memory")
def unused(setting: Setting) -> Cell:
    rest = 2 * (A_BYTES - A_TILE)
    return Cell("computed", f"2 * ({A_BYTES} - {A_TILE}) = {rest:,} bytes.", f"{rest} B")


@rows("warps of a block")
def warps(setting: Setting) -> Cell:
    threads, m, n = gpu09_warps.THREADS, gpu09_warps.WARP_M, gpu09_warps.WARP_N
    return Cell("computed", f"{threads} / 32 = {threads // 32} warps, each with {m} x {n}: {L // m} x {L // n} of them "
                f"are {L} x {L}; {S} steps of k in a round.", f"{threads // 32} warps",
                code=functions(gpu09_warps.lanes, gpu09_warps.blocks))


@rows("accumulators")
def accumulators(setting: Setting) -> Cell:
    step, target = GPU_STEPS["stored"], targets.target("sm_90a")
    used: Any = assembled(step.emit(), target)
    rows, columns = step.tile()
    said = f" With everything else a thread of step {step.title} takes {used.registers} registers, and spills " \
           f"{used.spills} bytes (ptxas, sm_90a)." if used else ""
    return Cell("computed", f"{T * T} threads times {V} x {V} = {T * T * V * V:,}, which is {rows} x {columns}.{said}",
                f"{T * T * V * V} registers")


rows("throttle reasons")(lambda setting: Cell(
    "computed", "Bits of the mask, in the words of a report.", f"{gpu_state.reasons(0) or 'nothing'}; 1 idle",
    table=(("bit", "reason"), *((f"{bit:#05x}", text) for bit, text in gpu_state.REASONS.items()))))


# ---- listings, and one number of them

for name, listing in LISTINGS.items():
    rows(name)(listing)


@rows("cp.async")
def cp_async(setting: Setting) -> Cell:
    function = gpu12_async.emit_async()
    try:
        excerpt(function, "", "sm_75")
        said = "nothing"
    except NotImplementedError as refused:
        said = str(refused).splitlines()[0]
    used: Any = assembled(function, targets.target("sm_90a"))
    registers = f" {used.registers} registers a thread." if used else ""
    return Cell("compiled", f"Step 12: {gpu12_async.CTA_M} x {gpu12_async.CTA_N} of C by a CTA.{registers} For sm_75: "
                f"{said}.", "4 bytes a copy", code=excerpt(function, r"cp\.async", most=6))


# ---- measured

rows("tutorial kernels")(sweep.tutorials)
rows("MaxAs")(sweep.of_the_peak)
rows("base clock")(sweep.clocks)
rows("output of the watch")(sweep.watched)
rows("speed and power of 128x128x8")(sweep.faster_with_more_power)
rows("cp.async in 128x128x8")(sweep.copies)
rows("dispatch")(sweep.dispatched)
for figure, made, names in (
    ("unlocked_perf.png", sweep.free, (TITLES["dispatch"], "tilewright")),
    ("locked_perf.png", sweep.locked, (TITLES["dispatch"], "tilewright")),
    ("128x128x8.png", sweep.free, (TITLES["stored"],)), ("128x128x8_lock.png", sweep.locked, (TITLES["stored"],)),
    ("128x128x8_texld.png", sweep.free, (TITLES["texture"],)),
    ("128x128x8_texld_lock.png", sweep.locked, (TITLES["texture"],)),
    ("128x256x8.png", sweep.free, (TITLES["async"],)), ("128x256x8_lock.png", sweep.locked, (TITLES["async"],)),
):
    rows(figure)(partial(made, names))
