"""tilewright tune: measure plans for a problem and keep the best; look at what was measured, and move it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.lab.cli import common, output
from tilewright.lab.cli.command import App, BadInput, Group, errors
from tilewright.text import plural

if TYPE_CHECKING:
    from tilewright.lab.tuner.search import Result
    from tilewright.outputs import Progress
    from tilewright.plans.measured.row import Row


class _Group(Group):
    """`tilewright tune 512 512 512` and `tilewright tune --step shared` are `tilewright tune measure`, and
    `tilewright tune shapes.jsonl` is `tilewright tune shapes shapes.jsonl`."""

    kept = "what was measured before is kept"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in ctx.help_option_names and (args[0].startswith("-") or args[0][:1].isdigit()):
            args = ["measure", *args]
        elif args and args[0] not in self.commands and args[0].endswith(".jsonl"):
            args = ["shapes", *args]
        return super().parse_args(ctx, args)


app = App(
    cls=_Group,
    help="Measure the most promising plans for a problem, or for those of a file, and use the fastest from then on: "
    "tilewright tune M N K, tilewright tune shapes.jsonl. Or find the sizes of a step of the ladder: tilewright tune "
    "--step shared.",
    no_args_is_help=True,
)

TunedStep = Annotated[
    str | None,
    typer.Option("--step", "-s", metavar="NAME", help="A step of the target's ladder whose sizes are to be found: "
                 "shared, coalesced or registers of GPUs, registers of CPUs.", show_default=False),
]
Threads = Annotated[
    list[str] | None,
    typer.Option("--threads", help="Thread counts, such as 1,all.", metavar="LIST", show_default="all"),
]


TimeLimit = Annotated[
    float | None, typer.Option(metavar="S", help="Seconds for each problem and thread count.", min=0.1,
                               show_default="20; 40 with --despite-load; on a GPU 10")
]
Candidates = Annotated[int | None, typer.Option(metavar="N", help="How many plans to try beside the one in use.", min=1,
                                                show_default="12; on a GPU 32")]
DespiteLoad = Annotated[bool, typer.Option("--despite-load", help="Measure though other processes are busy: by the CPU "
                                           "time of the process, in more rounds.")]
Vendor = Annotated[
    bool | None, typer.Option("--vendor/--no-vendor", show_default="on CPUs",
                              help="Compare what wins with NumPy's BLAS, or with torch on a GPU.")
]


@app.command()
def measure(
    m: common.SomeM = None, n: common.SomeN = None, k: common.SomeK = None,
    dtype: common.Dtype = "f32", layout: common.Layout = None, target: common.TargetName = "native",
    attention: common.Attention = None, threads: Threads = None, step: TunedStep = None,
    time_limit: TimeLimit = None,
    candidates: Candidates = None,
    vendor: Vendor = None,
    despite_load: DespiteLoad = False,
    json: output.Json = None,
) -> None:
    """Measure plans for one problem.  The word "measure" may be left out.

    Plans take turns with matmul as it is, in a process of their own; only one that is faster beyond doubt replaces what
    matmul does.  `tilewright tune show` prints what was kept.

    With --step the sizes of a step, such as L, S and V, are found for a chip: every configuration is compiled and
    counted in the simulator, ranked by the least time that its counts allow, verified, and timed where the chip is.
    """
    if step is not None:
        return _step(step, (m, n, k), target, time_limit, candidates, json)
    if attention is None and (m is None or n is None or k is None):
        raise BadInput("Missing argument: give M, N and K, --attention or --step")
    results: list[Result] = []

    def what_is_left() -> str:
        done = ", ".join(plural(one.threads, "thread") for one in results)
        return f"what was measured with {done} is kept" if done else "nothing of this run was kept"

    with errors(what_is_left):
        import tilewright as tw
        from tilewright.lab.bench.commands import all_threads
        from tilewright.lab.tuner.search import default_seconds
        from tilewright.outputs import Progress
        from tilewright.targets import CpuTarget

        problem, chip = common.asked(m, n, k, dtype, layout, 1, attention), common.target(target)
        console = common.console(json == output.STDOUT)
        counts: list[Any] = common.numbers(threads, ["all"], "--threads", {"all": all_threads()})
        for count in counts if threads or isinstance(chip, CpuTarget) else [None]:
            limit = float(time_limit or default_seconds(isinstance(chip, CpuTarget), despite_load))
            with Progress(console, "starting", limit) as bar:
                result = tw.tune(problem, chip, threads=count, time_limit=limit, candidates=candidates, vendor=vendor,
                                 despite_load=despite_load,
                                 listen=_listener(bar, limit, count and plural(count, "thread")))
            results.append(result)
            if json != output.STDOUT:
                typer.echo(result.text(output.width()))
        if json is not None:
            output.write_json([_record(x) for x in results], json)
    return None


def _record(x: Result) -> dict[str, Any]:
    return {"problem": str(x.problem), "target": str(x.target), "threads": x.threads,
            "rows": [vars(r) for r in x.rows], "best": x.best.plan, "failed": x.failed,
            "notes": list(x.notes), "verdict": x.verdict}


@app.command()
def shapes(
    file: Annotated[Path, typer.Argument(metavar="SHAPES", help="A file of shapes, as TILEWRIGHT_RECORD writes it.",
                                         show_default=False)],
    target: common.TargetName = "native",
    threads: Threads = None,
    time_limit: TimeLimit = None,
    candidates: Candidates = None,
    vendor: Vendor = None,
    despite_load: DespiteLoad = False,
    again: Annotated[bool, typer.Option("--again", help="Measure problems that have a stored result, too.")] = False,
    json: output.Json = None,
) -> None:
    """Measure plans for every problem of a file.  The word "shapes" may be left out if the file's name ends in .jsonl.

    Each result is stored at once, and a problem with a stored result is skipped, so that an interrupted run can be
    continued by the same command.  Problems with the most arithmetic, in all their calls, come first.
    """
    from tilewright import shape_list
    from tilewright.lab.bench.commands import all_threads
    from tilewright.lab.tuner import many
    from tilewright.outputs import Progress
    from tilewright.targets import CpuTarget

    chip, console = common.target(target), common.console(json == output.STDOUT)
    counts = common.numbers(threads, [], "--threads", {"all": all_threads()})
    if counts and not isinstance(chip, CpuTarget):
        raise BadInput(f"--threads is for CPUs, and {chip.name} is a GPU")
    wanted = many.tasks(shape_list.read(file), chip, counts, again)
    left_out = [task for task in wanted if task.reason]
    records: list[dict[str, Any]] = []
    count, kept, failed = len(wanted) - len(left_out), 0, 0

    def so_far() -> str:
        rest = count - kept - failed
        cannot = f", {failed} cannot be measured" * bool(failed)
        more = f". Run the same command again for the other {rest}" * bool(rest)
        return f"saved {kept} of {plural(count, 'result')}{cannot}{more}"

    with errors(so_far), Progress(console, f"{plural(count, 'problem')} to measure", count) as bar:
        for step in many.run(wanted, chip, time_limit, candidates=candidates, vendor=vendor,
                             despite_load=despite_load):
            threads_ = f", {plural(step.task.threads, 'thread')}" if step.task.threads else ""
            name = f"{step.task.problem}{threads_}"
            if step.result is None and not step.reason:
                bar.update(f"{name}; {duration(step.seconds_left)} left")
                continue
            bar.advance()
            kept += step.result is not None and not step.result.disturbed
            failed += step.result is None
            said = f"not measured: {step.reason}" if step.result is None else step.result.verdict
            records.append(_record(step.result) if step.result else {"problem": name, "failed": step.reason})
            if json != output.STDOUT:
                typer.echo(output.hanging(f"{name}: {said}", 4))
    for task in left_out:
        if json != output.STDOUT:
            typer.echo(output.hanging(f"{task.problem}: left out, since {task.reason}", 4))
    if json != output.STDOUT and kept < count:
        typer.echo(output.fill(f"{so_far()}.".capitalize()))
    if json is not None:
        output.write_json(records + [{"problem": str(x.problem), "left_out": x.reason} for x in left_out], json)


def duration(seconds: float) -> str:
    """For people: "about 40 s", "about 12 min"."""
    return f"about {seconds:.0f} s" if seconds < 100 else f"about {seconds / 60:.0f} min"


def _step(step: str, sizes: tuple[int | None, ...], target: str, time_limit: float | None, candidates: int | None,
          json: Path | None) -> None:
    """Find the sizes of a step of a ladder."""
    with errors(lambda: "nothing of this run was kept"):
        import tilewright as tw
        from tilewright.lab.ladder import tunable
        from tilewright.outputs import Progress

        chip = common.target(target)
        kernel = tunable.step(step, chip)
        args = tunable.arguments(chip, *(size or tunable.size(chip) for size in sizes))
        with Progress(common.console(json == output.STDOUT), "configurations", len(kernel.configurations)) as bar:
            def hear(event: dict[str, Any]) -> None:
                if event["event"] == "prepared":
                    bar.advance()

            result = tw.tune(kernel, *args, target=chip, time_limit=time_limit, candidates=candidates, listen=hear)
    output.show(result.record, lambda: typer.echo(str(result)), json)


def _listener(bar: Progress, time_limit: float, by: str | None) -> Callable[[dict[str, Any]], None]:
    """Shows in the bar how much of the time is over, and what is being done in it. `by`: so many threads, on a CPU."""
    with_ = f"{by}: " if by else ""
    began, tried = time.monotonic(), 0

    def hear(event: dict[str, Any]) -> None:
        nonlocal tried
        what = None
        if event["event"] == "trying":
            tried += 1
            what = f"{with_}plan {tried}"
        elif event["event"] == "phase":
            what = f"{with_}{plural(len(event['names']), 'plan')} in turn"
        bar.update(what, round(min(time.monotonic() - began, time_limit), 1))

    return hear


@app.command()
def show(
    every: Annotated[bool, typer.Option("--all", help="Show every plan that was timed, not only the best.")] = False,
    json: output.Json = None,
) -> None:
    """Print what was measured on this and other machines: the best plan of each problem."""
    from tilewright.plans.measured import store

    rows, kernels = store.rows(), store.rows(store.KERNELS)
    better = {(r.target, r.model, r.key) for r in rows if r.role == "best"}
    chosen = [r for r in rows
              if every or r.role == "best" or (r.role == "model" and (r.target, r.model, r.key) not in better)]
    kernels = [r for r in kernels if every or r.role == "best"]

    def say() -> None:
        if chosen or not kernels:
            typer.echo(_shown(chosen, store.path()))
        if kernels:
            typer.echo(_kernels(kernels))

    output.show(lambda: [vars(r) for r in (*chosen, *kernels)], say, json)


def _kernels(rows: list[Any]) -> str:
    cells = [["kernel", "target", "sizes", "configuration", "", "ms", "times before", "bound ms", "date", "processor"]]
    cells += [[r.kernel, r.target, r.problem, r.configuration, r.role, f"{r.seconds * 1e3:.4g}",
               f"{r.ratio:.3f} ({r.ratio_q1:.3f} to {r.ratio_q3:.3f})", f"{r.bound * 1e3:.4g}", r.date[:10], r.model]
              for r in rows]
    return f"\n{output.table(cells, right=(5, 6, 7))}"


def _shown(rows: list[Row], path: Path | None) -> str:
    from tilewright.lab.tuner.search import FIGURES, figures

    if not rows:
        return f"nothing has been tuned yet ({path or 'switched off by TILEWRIGHT_TUNE_DB'})"
    cells = [["", "target", "problem", "threads", "plan", "", *FIGURES, "beside", "GHz", "date", "tilewright",
              "processor"]]
    for number, r in enumerate(rows, 1):
        layout = "".join("n" if order == "rows" else "t" for order in (r.a, r.b))
        version = f"{r.tilewright} {(r.commit or '')[:7]}".strip()
        cells.append([str(number), r.target, f"{r.dtype} {layout} {r.m}x{r.n}x{r.k}", str(r.threads), r.plan, r.role,
                      *figures(r), f"{r.vendor_ratio:.2f} of {r.vendor}" if r.vendor_ratio else "",
                      f"{r.clock / 1e9:.2f}" if r.clock else "", r.date[:10], version, r.model])
    return f"{path}\n\n{output.table(cells, right=(0, 3, 6, 7, 8, 9, 11))}"


@app.command()
def clear() -> None:
    """Forget what was measured; matmul goes back to the model's plans and those that come with tilewright."""
    from tilewright.plans.measured import store

    count = store.clear()
    typer.echo(f"{plural(count, 'row')} removed")


@app.command()
def export(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A file of JSON lines.", show_default="standard output",
                                     callback=output.checked)
    ] = None,
) -> None:
    """Write everything that was measured as JSON lines, for another machine of this kind."""
    from tilewright.plans.measured import store

    lines = [row.to_json() + "\n" for table in store.TABLES_OF_FILE for row in store.rows(table)]
    if file is None:
        typer.echo("".join(lines), nl=False)
    else:
        output.write(file, "".join(lines))
        typer.echo(f"{plural(len(lines), 'row')} written to {file}", err=True)


@app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Files that export wrote.", show_default=False)],
) -> None:
    """Add what was measured elsewhere.  Of two runs for one problem and processor the newer one counts."""
    from tilewright import inputs
    from tilewright.plans.measured import store

    added = 0
    for file in files:
        lines = inputs.text(file).splitlines()
        try:
            added += store.merge(lines)
        except ValueError as error:
            raise BadInput(f"{file}: {error}") from None
    typer.echo(f"{plural(added, 'row')} added")
