"""The GPU ladder on a CUDA device: every step checked, then timed beside cuBLAS, which torch calls.

Timed by the median protocol of `gpu_measure`: contenders take turns, each as a CUDA graph of launches over operands
that rotate through more memory than L2 holds. Clocks, power and the article's way of timing: `tilewright bench gpu`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.bench.gpu_measure import GpuRules, Launch, interleave, track
from tilewright.bench.results import Report, save
from tilewright.ladder import run_nvidia
from tilewright.ladder.gpu_steps import GPU_STEPS
from tilewright.problem import Gemm

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.bench.gpu_device import Operands, TorchDevice

CUBLAS = "cuBLAS"
SIZES = (1024, 2048, 4096)
AWKWARD = ((1, 1, 1), (127, 130, 9), (129, 131, 65), (300, 5, 17), (256, 512, 64), (255, 260, 0))
DISPATCH = "13 dispatch"


@dataclass(frozen=True)
class Timed:
    """Seconds per call of one contender at one size, a figure for each round; or why there are none."""

    title: str
    n: int
    seconds: tuple[float, ...] = ()
    error: str = ""

    @property
    def tflops(self) -> float:
        return 2 * self.n**3 / statistics.median(self.seconds) / 1e12


def titles() -> dict[str, str]:
    """{step's name: its title}, and that of the choice by size."""
    return {name: step.title for name, step in GPU_STEPS.items()} | {run_nvidia.DISPATCH: DISPATCH}


def prepared(name: str, a: Any, b: Any, c: Any, alpha: float = 1.0, beta: float = 0.0) -> Callable[[int], None]:
    """`launch(stream)` of a step on torch's tensors."""
    (m, k), n = a.shape, b.shape[1]
    where = (a.data_ptr(), a.stride(0), b.data_ptr(), b.stride(0), c.data_ptr(), c.stride(0))
    launch = run_nvidia.prepare(name, m, n, k, *where, alpha=alpha, beta=beta)

    def run(stream: int, _keep: object = (a, b, c)) -> None:
        launch(stream)

    return run


def wrong(name: str) -> str:
    """What is wrong with a step's products on this device: "" if whole numbers come out exact in every shape, with
    rows apart, alpha and beta, and nothing is written beside C."""
    import torch

    for m, n, k in AWKWARD:
        for alpha, beta, gap in ((1.0, 0.0, 0), (-2.0, 3.0, 4)):
            a, b = (torch.randint(-4, 5, size, device="cuda").float() for size in ((m, k + gap), (k, n + gap)))
            whole = torch.randint(-4, 5, (m, n + 1), device="cuda").float()
            a, b, c = a[:, :k], b[:, :n], whole[:, :n]
            beside, before = whole[:, n].clone(), c.double()
            if beta == 0:
                c.fill_(float("nan"))
            try:
                prepared(name, a, b, c, alpha, beta)(torch.cuda.current_stream().cuda_stream)
            except ValueError:
                continue  # textures cannot look at these
            torch.cuda.synchronize()
            wanted = alpha * (a.double() @ b.double()) + (beta * before if beta else 0)
            if not torch.equal(c.double(), wanted) or not torch.equal(whole[:, n], beside):
                return f"{m} x {n} x {k} with alpha {alpha:g}, beta {beta:g} is wrong"
    return ""


def measure(on: TorchDevice, n: int, rules: GpuRules) -> Iterator[Timed]:
    """cuBLAS and every step at one size, on random operands, whose products are compared with float64 too."""
    from tilewright.bench import gpu_check, gpu_device

    torch, sets = on.torch, gpu_device.make_sets(on, Gemm(n, n, n))
    contenders: dict[str, list[Launch]] = {CUBLAS: [_cublas(torch, o) for o in sets]}
    for name, title in titles().items():
        try:
            contenders[title] = [_step(torch, name, o) for o in sets]
        except ValueError as refused:
            yield Timed(title, n, error=str(refused))
            continue
        contenders[title][0]()
        if error := gpu_check.wrong(on, sets[0]):
            yield Timed(title, n, error=error)
            del contenders[title]
        sets[0].c.fill_(float("nan"))
    tracks = {title: track(on, calls, rules) for title, calls in contenders.items()}
    for title, sample in interleave(on, tracks, rules).items():
        yield Timed(title, n, sample.seconds)


def _cublas(torch: Any, o: Operands) -> Launch:
    return lambda: torch.matmul(o.a, o.b, out=o.c)


def _step(torch: Any, name: str, o: Operands) -> Launch:
    launch = prepared(name, o.a, o.b, o.c)
    return lambda: launch(torch.cuda.current_stream().cuda_stream)


# ---- tilewright bench ladder --device cuda


def run(sizes: list[int], quick: bool, json: Path | None, plot: Path | None, console: Console) -> int:
    """Check, time, show and write; the exit status is 1 if a step is wrong."""
    from tilewright.bench.commands import Options, check_outputs
    from tilewright.bench.gpu_device import TorchDevice, require
    from tilewright.bench.progress import progress

    require()
    check_outputs(Options(json=json, plot=plot))
    on, rules, sizes = TorchDevice(), GpuRules.quick() if quick else GpuRules(), sizes or list(SIZES)
    report = Report.start("ladder cuda", sizes=sizes, quick=quick)
    report.extra["device"] = on.describe()
    with progress(console) as bar:
        task = bar.add_task("checking", total=len(titles()) + len(sizes))
        errors: dict[str, str] = {}
        for name, title in titles().items():
            bar.update(task, description=f"checking {title}")
            if error := wrong(name):
                errors[title] = error
            bar.advance(task)
        found: list[Timed] = []
        for n in sizes:
            bar.update(task, description=f"timing n = {n}")
            for t in measure(on, n, rules):
                found.append(Timed(t.title, n, error=errors[t.title]) if t.title in errors else t)
                if t.error and "not aligned" not in t.error:
                    errors[t.title] = f"n = {n}: {t.error}"
            bar.advance(task)
    report.extra["timed"] = [asdict(t) for t in found]
    head, *rows = table(found)
    console.print(_shown(head, rows, on.on.name))
    if json:
        save(report, json)
        console.print(f"results: {json}", highlight=False)
    if plot:
        draw(found, plot, on.on.name)
        console.print(f"plot: {plot}", highlight=False)
    for title, error in errors.items():
        console.print(f"{title}: {error}", highlight=False)
    return 1 if errors else 0


def timed(report: Report) -> list[Timed]:
    """What a report of `run` has measured."""
    return [Timed(**{**row, "seconds": tuple(row["seconds"])}) for row in report.extra["timed"]]


def table(found: list[Timed]) -> list[list[str]]:
    """Heading and rows: TFLOP/s of each contender at each size, and the share of cuBLAS's."""
    sizes = list(dict.fromkeys(t.n for t in found))
    by = {(t.title, t.n): t for t in found}
    wanted = [title for title in (CUBLAS, *titles().values()) if any((title, n) in by for n in sizes)]
    rows = [["TFLOP/s at m = n = k =", *map(str, sizes)]]
    for title in wanted:
        rows.append([title, *(_cell(by.get((title, n)), by.get((CUBLAS, n))) for n in sizes)])
    return rows


def _cell(mine: Timed | None, cublas: Timed | None) -> str:
    if mine is None or not mine.seconds:
        return "-" if mine is None or "not aligned" in mine.error else "wrong"
    rate = f"{mine.tflops:.2f}" if mine.tflops < 10 else f"{mine.tflops:.1f}"
    return rate if cublas is None or cublas is mine else f"{rate} ({mine.tflops / cublas.tflops:.3f})"


def _shown(head: list[str], rows: list[list[str]], device: str) -> Any:
    from rich import box
    from rich.table import Table

    caption = "medians; in brackets the share of cuBLAS's rate in the same rounds"
    shown = Table(title=device, caption=caption, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD)
    for i, heading in enumerate(head):
        shown.add_column(heading, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*row)
    return shown


def draw(found: list[Timed], path: Path, title: str) -> None:
    """Bars of TFLOP/s per step, a colour per size."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from tilewright.bench.plot import COLOURS

    sizes = list(dict.fromkeys(t.n for t in found))
    names = [row[0] for row in table(found)[1:]]
    figure, axis = plt.subplots(figsize=(8, 0.5 + 0.5 * len(names)), layout="constrained")
    try:
        for i, n in enumerate(sizes):
            here = {t.title: t.tflops for t in found if t.n == n and t.seconds}
            places = [row + (i - (len(sizes) - 1) / 2) * 0.8 / len(sizes) for row in range(len(names))]
            colour = list(COLOURS.values())[i % len(COLOURS)]
            axis.barh(places, [here.get(name, 0) for name in names], 0.8 / len(sizes), label=f"n = {n}", color=colour)
        axis.set_yticks(range(len(names)), names)
        axis.invert_yaxis()
        axis.set_xlabel("TFLOP/s")
        axis.grid(alpha=0.3, axis="x")
        axis.legend(loc="lower right")
        axis.set_title(title, fontsize=9)
        figure.savefig(path, dpi=144)
    finally:
        plt.close(figure)
