"""The rows of the lecture "GPU MatMul and Compilers"."""
from __future__ import annotations

import inspect
import re
from functools import cache
from typing import Any

import numpy as np

from tilewright import simulator, targets
from tilewright.blocks import Program
from tilewright.ir import f32, ptr
from tilewright.lab.bench.suites import ladders
from tilewright.lab.ladder import gpu01_naive, gpu02_tiled, gpu03_registers, gpu04_shared, run, tunable
from tilewright.lab.ladder.steps import GPU_STEPS
from tilewright.lab.reproduce import sources
from tilewright.lab.reproduce.row import Absent, Cell, Rows, Setting, drawing
from tilewright.lab.reproduce.run import committed, where
from tilewright.lab.tuner import kernels, trial as trials
from tilewright.runtime.parametric import spelled
from tilewright.text import size

rows = Rows("lecture")
STEPS = {"V1": "naive", "V1.5": "tiled", "V2": "registers", "V3": "shared"}
N = 64
SIZES: dict[str, dict[str, int]] = {"naive": {"BLOCK": 16}, "tiled": {"V": 4, "BLOCK": 8},
                                    "registers": {"V": 4, "BLOCK": 8}, "shared": {"L": 32, "S": 8, "V": 4}}
H100 = "sm_90a"


@cache
def counted(step: str, n: int = N) -> Any:
    """What the simulator counts of a step for n x n x n by SIZES."""
    return run.counted(step, n, n, n, sizes=SIZES[step], target=H100)


def threads(step: str, n: int = N) -> int:
    x, y = GPU_STEPS[step].grid(n, n, **SIZES[step])
    function: Any = GPU_STEPS[step].emit(**SIZES[step])
    return x * y * int(np.prod(function.threads))


def loads(step: str, space: str = "global") -> int:
    return int(counted(step).of(space=space, verb="load").elements)


def _says(found: int, formula: str, expected: float, of: str) -> Cell:
    same = "the same" if found == expected else f"and not {expected:,.0f}"
    return Cell("simulated", f"{of}: {found:,}; {formula} = {expected:,.0f}, {same}.", f"{found:,}")


# ---- counts: V1, V1.5 and V2

@rows("launch of V1")
def launch(setting: Setting) -> Cell:
    x, y = GPU_STEPS["naive"].grid(1024, 1024, BLOCK=32)
    small = GPU_STEPS["naive"].grid(1024, 1024)
    return Cell("computed", f"The step `naive` for N = 1024 with BLOCK = 32: a grid of {x} x {y}; with its own 16: "
                f"{small[0]} x {small[1]}.", f"{x} x {y} blocks")


@rows("V1", "V1.5", "V2", "V3")
def listing(name: str, setting: Setting) -> Cell:
    emit: Any = {"V1": gpu01_naive.emit_naive, "V1.5": gpu02_tiled.emit_tiled, "V2": gpu03_registers.emit_registers,
            "V3": gpu04_shared.emit_shared}[name]
    report, said = counted(STEPS[name]), ", ".join(f"{x} = {value}" for x, value in SIZES[STEPS[name]].items())
    reads, stores = report.of(space="global", verb="load"), report.of("c", "store")
    text = (f"`{sources.place(emit)}`. In the simulator for N = {N}, {said}: {reads.elements:,} loads, of whose "
            f"sectors {reads.efficiency:.0%} of the bytes are used; stores: {stores.efficiency:.0%}. {_measured(name)}")
    if name == "V3":
        text += f"\n\n{_races()}"
    return Cell("simulated", text, f"{reads.elements:,} loads", drawing(f"lecture/{name.lower().replace('.', '_')}"),
                code=sources.function(emit))


def _measured(name: str) -> str:
    """A step's rate on a GPU, as it was measured."""
    try:
        report = committed("ladder_gpu_h200.json")
    except Absent as absent:
        return f"{absent}."
    title = GPU_STEPS[STEPS[name]].title
    sentences = [f"{rate / 1e3:.2f} TFLOP/s at {r.case.size}" for r in report.results if (rate := r.gflops(title))]
    return f"Measured on {where(report)}: {', '.join(sentences)}."


def _races() -> str:
    """What the simulator says of V3 without its first and without its second barrier."""
    lines = inspect.getsource(gpu04_shared.emit_shared).splitlines()
    at = [i for i, line in enumerate(lines) if "k.barrier()" in line]
    says = []
    for which, i in zip(("first", "second"), at):
        text = "\n".join(lines[:i] + [re.sub(r"k\.barrier\(\)", "pass", lines[i])] + lines[i + 1:])
        names = dict(vars(gpu04_shared))
        exec(compile(text, "V3", "exec"), names)
        try:
            run.counted("shared", N, N, N, function=names["emit_shared"](**SIZES["shared"]), sizes=SIZES["shared"],
                        target=H100)
            says.append(f"without the {which} barrier it finds nothing")
        except simulator.Fault as fault:
            says.append(f"without the {which} barrier: `{str(fault).splitlines()[0]}`")
    return "The simulator, " + "; ".join(says) + "."


@rows("V1 reads of a thread", "V1.5 reads of a thread", "V2 reads of a thread", "V3 shared reads of a thread")
def of_a_thread(name: str, setting: Setting) -> Cell:
    version = name.split()[0]
    step, shared = STEPS[version], version == "V3"
    V = SIZES[step].get("V", 1)
    formula, expected = {"V1": ("2 N", 2 * N), "V1.5": ("N V + N V^2", N * V + N * V * V), "V2": ("2 N V", 2 * N * V),
                         "V3": ("2 V N", 2 * V * N)}[version]
    quotient, rest = divmod(loads(step, "shared" if shared else "global"), threads(step))
    if rest:
        raise RuntimeError("threads do not read equally much")
    return _says(quotient, formula, expected, f"N = {N}, V = {V}, each of {threads(step):,} threads")


@rows("V1 threads", "V1.5 threads", "V2 threads", "V3 blocks")
def launched(name: str, setting: Setting) -> Cell:
    version, what = name.split()
    step = STEPS[version]
    if what == "blocks":
        x, y = GPU_STEPS[step].grid(N, N, **SIZES[step])
        L = SIZES[step]["L"]
        return Cell("computed", f"The grid for N = {N}, L = {L}: {x} x {y}; N^2/L^2 = {N * N // L**2}.", f"{x * y}")
    V = SIZES[step].get("V", 1)
    return Cell("computed", f"The launch for N = {N}, V = {V}: {threads(step):,}; (N/V)^2 = {(N // V)**2:,}.",
                f"{threads(step):,}")


@rows("V1 total", "V1.5 total", "V2 total", "V3 total", "V3 shared total")
def total(name: str, setting: Setting) -> Cell:
    version, shared = name.split()[0], "shared" in name
    step = STEPS[version]
    V, L = SIZES[step].get("V", 1), SIZES[step].get("L", 1)
    formula, expected = {
        "V1 total": ("2 N^3", 2 * N**3), "V1.5 total": ("N^3/V + N^3", N**3 // V + N**3),
        "V2 total": ("2 N^3/V", 2 * N**3 // V), "V3 total": ("2 N^3/L", 2 * N**3 // L),
        "V3 shared total": ("2 N^3/V", 2 * N**3 // V)}[name]
    return _says(loads(step, "shared" if shared else "global"), formula, expected, f"N = {N}, V = {V}"
                 + f", L = {L}" * (version == "V3"))


@rows("V2 over V1")
def fewer(setting: Setting) -> Cell:
    first, second, V = loads("naive"), loads("registers"), SIZES["registers"]["V"]
    return Cell("simulated", f"V = {V}: {first:,} / {second:,} = {first / second:g} times.",
                f"{first / second:g} for V = {V}")


@rows("memories")
def memories(setting: Setting) -> Cell:
    table = []
    for name in ("a100", "h100", "b200"):
        t: Any = targets.target(name)
        table.append((t.model, f"{t.bandwidth / 1e12:.2f} TB/s", size(t.l2), size(t.smem_sm), size(4 * t.registers_sm),
                      f"{t.sms}"))
    head = "chip", "HBM", "L2", "shared memory of an SM", "registers of an SM", "SMs"
    return Cell("computed", svg=drawing("lecture/memories"), table=(head, *table))


@rows("split of a product", "outer products")
def sums(name: str, setting: Setting) -> Cell:
    x, y = np.random.default_rng(0).integers(-9, 10, (2, 24, 24))
    if name == "outer products":
        same = (sum(np.outer(x[:, i], y[i]) for i in range(24)) == x @ y).all()
        return Cell("computed", f"24 outer products of whole numbers: {'equal' if same else 'NOT equal'} to the "
                    "product.", "equal" if same else "WRONG")
    same = (x[:, :10] @ y[:10] + x[:, 10:] @ y[10:] == x @ y).all()
    return Cell("computed", f"24 x 24 whole numbers, split at 10: {'equal' if same else 'NOT equal'}. The loop pc of "
                "the CPU's kernels and split-k on GPUs are this sum.", "equal" if same else "WRONG")


# ---- V3

@rows("V3 block dim")
def block_dim(setting: Setting) -> Cell:
    function: Any = GPU_STEPS["shared"].emit(**SIZES["shared"])
    x, y = function.threads[:2]
    L, V = SIZES["shared"]["L"], SIZES["shared"]["V"]
    return Cell("computed", f"The recorded kernel for L = {L}, V = {V}: {x} x {y} threads; L/V = {L // V}.",
                f"{x} x {y}")


@rows("V3 reads of a block")
def of_a_block(setting: Setting) -> Cell:
    x, y = GPU_STEPS["shared"].grid(N, N, **SIZES["shared"])
    L = SIZES["shared"]["L"]
    return _says(loads("shared") // (x * y), "2 L N", 2 * L * N, f"N = {N}, L = {L}, each of {x * y} blocks")


@rows("V3 naive fetch", "cooperative fetch", "fetch indices")
def fetch(name: str, setting: Setting) -> Cell:
    if name == "V3 naive fetch":
        return Cell("compiled", code=sources.function(gpu04_shared.emit_shared, "for row, column", "fetch_b"))
    L, S, V = (SIZES["shared"][x] for x in "LSV")
    fetched = [len([*gpu04_shared.walk(tid, (L // V)**2, S, L)]) for tid in range((L // V)**2)]
    all_of_it = {at for tid in range((L // V)**2) for at in gpu04_shared.walk(tid, (L // V)**2, S, L)}
    return Cell("computed", f"L = {L}, S = {S}, {(L // V)**2} threads: each copies {fetched[0]} elements, "
                f"L S / nthreads = {L * S // (L // V)**2}; together {len(all_of_it)} different ones of {L * S}.",
                f"{fetched[0]} for each thread", code=sources.function(gpu04_shared.walk) if name[0] == "c" else "")


@rows("thread numbers", "fetch example")
def example(name: str, setting: Setting) -> Cell:
    if name == "thread numbers":
        table = tuple((f"({x}, {y})", str(y * 2 + x)) for y in (0, 1) for x in (0, 1))
        return Cell("computed", "By the kernel's `ty * T + tx` with T = 2.", "0 1 2 3",
                    table=(("(x, y)", "tid"), *table))
    walks = {tid: [*gpu04_shared.walk(tid, 4, 2, 4)] for tid in range(4)}
    cells = tuple((f"{tid}", *(f"s[{y}, {x}]" for y, x in walks[tid])) for tid in walks)
    return Cell("computed", "By `walk`, which the kernel of V3 is recorded with.", "row j, col. tid",
                drawing("lecture/fetch"), (("tid", "j = 0", "j = 1"), *cells))


MORE = {"shared": "V3", "coalesced": "contiguous reads", "padded": "bank conflicts", "buffered": "pipelining",
        "mma": "tensor cores, bf16", "ring": "pipelining on tensor cores"}


@rows("more optimizations")
def more(setting: Setting) -> Cell:
    """Counted now, which takes a minute; quickly, from the file of what was counted before."""
    target: Any = targets.target("h100")
    if setting.quick:
        counts = {c.step: c for c in ladders.counted(committed("ladder_gpu_simulated.json"))}
    else:
        counts = {step: ladders.count(step, 128, target) for step in MORE}
    rates, table = _rates(), []
    for step, what in MORE.items():
        c = counts[step]
        table.append((what, c.title, f"{c.load_efficiency:.0%}", f"{c.store_efficiency:.0%}", f"{c.conflicts:,}",
                      f"{c.bound[1]:.0%}", c.bound[0], rates.get(c.title, "-")))
    head = ("what", "step", "of loaded sectors used", "of stored", "bank conflicts", "of the peak at most", "bound by",
            "TFLOP/s")
    return Cell("committed" if setting.quick else "simulated", f"The simulator's counts for N = {counts['mma'].n}, L = "
                f"128, V = 8, and the share of an {target.model}'s multiply-adds that they allow. The last column was "
                "measured on an H200 at 4096.", f"{len(MORE) - 1} steps", table=(head, *table))


def _rates() -> dict[str, str]:
    rates: dict[str, str] = {}
    for name in ("ladder_gpu_h200.json", "ladder_tensor_h200.json"):
        try:
            report = committed(name)
        except Absent:
            continue
        for r in report.results:
            if r.case.size == "4096":
                rates |= {row.name: f"{rate / 1e3:.1f}" for row in r.rows if (rate := r.gflops(row.name))}
    return rates


# ---- compilers

@rows("parameters to tune")
def parameters(setting: Setting) -> Cell:
    """The configurations of V3 that take least by their counts, on chips of three generations."""
    n = 4096
    kernel, table = tunable.GPU["shared"], []
    every = [text for text in map(spelled, kernel.configurations)
             if not setting.quick or re.fullmatch(r"L=(64|128) S=(8|16) V=8", text)]
    for name in ("sm_75", "sm_90a") if setting.quick else ("sm_75", "sm_86", "sm_90a"):
        chip = targets.target(name)
        task = kernels.Task(kernel, chip, kernel._names(chip, tunable.arguments(chip, n, n, n)))
        bounds = {trial.configuration: kernels.priced(task, trial).seconds
                  for trial, _ in kernels.every(task, trials.trial_of, every, 1, lambda event: None)
                  if not trial.refused}
        best, worst = min(bounds, key=bounds.__getitem__), max(bounds, key=bounds.__getitem__)
        table.append((f"{chip.model} ({name})", str(len(bounds)), best, f"{bounds[best] * 1e3:.2f} ms", worst,
                      f"{bounds[worst] / bounds[best]:.2f}"))
    head = "chip", "configurations", "best", "its bound", "worst", "times the best"
    return Cell("simulated", f"N = {n}: the configurations of the step `shared` ranked by their bound, from simulated "
                f"counts and the registers that the assembler gives.{' --quick: four of 18.' * setting.quick}",
                table[-1][2], table=(head, *table))


def emit_add(target: Any = None, N: int = 1024) -> Any:
    k = Program("add", target, z_ptr=ptr(f32), x_ptr=ptr(f32), y_ptr=ptr(f32))
    z_ptr, x_ptr, y_ptr = k.args
    offsets = k.arange(0, N)
    x_ptrs, y_ptrs, z_ptrs = x_ptr + offsets, y_ptr + offsets, z_ptr + offsets
    x = k.load(x_ptrs)
    y = k.load(y_ptrs)
    z = x + y
    k.store(z_ptrs, z)
    return k.function


@rows("triton add", "triton block")
def triton(name: str, setting: Setting) -> Cell:
    x, y = np.random.default_rng(0).standard_normal((2, 1024)).astype(np.float32)
    z = np.full(1024, np.nan, np.float32)
    function = emit_add(H100)
    report = simulator.run(function, z, x, y, grid=(1,), target=H100)
    right = np.array_equal(z, x + y)
    used = report.of(verb="load").efficiency
    if name == "triton block":
        count = int(np.prod(function.threads))
        return Cell("simulated", f"One program of the grid is one block, here of {count} threads, each of which has "
                    f"{1024 // count} of the 1024 elements.", "1 block")
    return Cell("simulated", f"A block program, `{sources.place(emit_add)}`. In the simulator as on an H100: "
                f"{'equal to NumPy' if right else 'WRONG'}, {report.flops:,} additions, {used:.0%} of the bytes of the "
                "sectors used. The same function runs on this CPU.", "1,024 additions", code=sources.function(emit_add))
