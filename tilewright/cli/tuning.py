"""tilewright tune: measure plans for a problem and keep the best; look at what was measured, and move it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tilewright.cli import common

if TYPE_CHECKING:
    from rich.table import Table

    from tilewright.tuner.row import Row
    from tilewright.tuner.search import Result


class _Group(TyperGroup):
    """`tilewright tune 512 512 512` is `tilewright tune measure 512 512 512`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in ctx.help_option_names and (args[0].startswith("-") or args[0][0].isdigit()):
            args = ["measure", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Group,
    help="Measure the most promising plans for a problem, and use the fastest from then on: tilewright tune M N K.",
    no_args_is_help=True,
)

Threads = Annotated[
    list[str] | None,
    typer.Option("--threads", help="Thread counts, such as 1,all.", metavar="LIST", show_default="all"),
]


@app.command()
def measure(
    m: common.M, n: common.N, k: common.K,
    dtype: common.Dtype = "f32", layout: common.Layout = "nn", target: common.TargetName = "native",
    threads: Threads = None,
    time_limit: Annotated[float, typer.Option(help="Seconds for each thread count.", min=0.1)] = 30.0,
    candidates: Annotated[int, typer.Option(help="How many plans to try, beside the one in use.", min=1)] = 12,
) -> None:  # fmt: skip
    """Measure plans for one problem.  The word "measure" may be left out.

    Plans take turns with matmul as it is, in a process of their own; only one that is faster beyond doubt replaces what
    matmul does.  `tilewright tune show` prints what was kept.
    """
    with common.errors():
        import tilewright as tw
        from tilewright.bench.commands import all_threads

        problem, chip, console = common.problem(m, n, k, dtype, layout), common.cpu(target), common.console()
        for count in common.numbers(threads, ["all"], "--threads", {"all": all_threads()}):
            with _Bar(console, time_limit, count) as bar:
                result = tw.tune(problem, chip, threads=count, time_limit=time_limit, candidates=candidates,
                                 listen=bar.hear)  # fmt: skip
            console.print(_table(result))
            for plan, why in result.failed.items():
                console.print(f"left out: {plan}: {why}", highlight=False, markup=False)
            for line in (*result.notes, result.verdict):
                console.print(line, highlight=False, markup=False)


class _Bar:
    """How much of the time is over, and what is being done in it."""

    def __init__(self, console: Any, time_limit: float, threads: int) -> None:
        from tilewright.bench.commands import progress

        self.bar, self.limit, self.threads = progress(console), time_limit, f"{threads} thread{'s' * (threads != 1)}"

    def __enter__(self) -> _Bar:
        import time

        self.clock, self.began = time.monotonic, time.monotonic()
        self.bar.__enter__()
        self.task = self.bar.add_task("starting", total=self.limit)
        return self

    def __exit__(self, *exception: Any) -> None:
        self.bar.__exit__(*exception)

    def hear(self, event: dict[str, Any]) -> None:
        spent = round(min(self.clock() - self.began, self.limit), 1)
        what = {
            "trying": lambda: f"{self.threads}: trying {event['name']}",
            "phase": lambda: f"{self.threads}: {len(event['names'])} contenders take turns",
        }.get(event["event"])
        self.bar.update(self.task, completed=spent, **({"description": what()} if what else {}))


def _table(result: Result) -> Table:
    from rich.table import Table

    count = f"{result.threads} thread{'s' * (result.threads != 1)}"
    table = Table(title=f"{result.problem} on {result.target}, {count}", title_justify="left",
                  caption="times matmul: matmul's time over the plan's within a round, above 1 the plan is faster; "
                  "medians and quartiles", caption_justify="left")  # fmt: skip
    table.add_column("plan", no_wrap=True)
    table.add_column("")
    for heading in ("ms", "GFLOP/s", "times matmul", "rounds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for r in result.rows:
        table.add_row(r.plan, r.role, *_figures(r), style="bold" if r is result.best else "")
    return table


def _figures(r: Row) -> tuple[str, ...]:
    return (f"{r.seconds * 1e3:.4g}", f"{r.gflops:.1f}", f"{r.ratio:.3f} ({r.ratio_q1:.3f} to {r.ratio_q3:.3f})",
            str(r.rounds))  # fmt: skip


@app.command()
def show(
    every: Annotated[bool, typer.Option("--all", help="Every plan that was timed, not only the best.")] = False,
) -> None:
    """Print what was measured on this and other machines: the best plan of each problem."""
    with common.errors():
        from rich.table import Table

        from tilewright.tuner import store

        rows = store.rows()
        if not rows:
            typer.echo(f"nothing has been tuned yet ({store.path() or 'switched off by TILEWRIGHT_TUNE_DB'})")
            return
        table = Table(title=str(store.path()), title_justify="left")
        for heading in ("target", "problem", "threads", "plan", ""):
            table.add_column(heading, no_wrap=heading != "target")
        for heading in ("ms", "GFLOP/s", "times matmul", "rounds"):
            table.add_column(heading, justify="right", no_wrap=True)
        for heading in ("date", "tilewright", "processor"):
            table.add_column(heading)
        better = {(r.target, r.model, r.shape) for r in rows if r.role == "best"}
        for r in rows:
            chosen = r.role == "best" or (r.role == "model" and (r.target, r.model, r.shape) not in better)
            if chosen or every:
                layout = "".join("n" if order == "rows" else "t" for order in (r.a, r.b))
                version = f"{r.tilewright} {(r.commit or '')[:7]}".strip()
                table.add_row(r.target, f"{r.dtype} {layout} {r.m}x{r.n}x{r.k}", str(r.threads), r.plan, r.role,
                              *_figures(r), r.date[:10], version, r.model,
                              style="bold" if every and chosen else "")  # fmt: skip
        common.console().print(table)


@app.command()
def clear() -> None:
    """Forget what was measured; matmul goes back to the model's plans and those that come with tilewright."""
    with common.errors():
        from tilewright.tuner import store

        count = store.clear()
        typer.echo(f"{count} row{'s' * (count != 1)} removed")


@app.command()
def export(
    output: Annotated[
        Path | None, typer.Argument(help="A file of JSON lines.", show_default="standard output")
    ] = None,
) -> None:  # fmt: skip
    """Write everything that was measured as JSON lines, for another machine of this kind."""
    with common.errors():
        from tilewright.tuner import store

        lines = [row.to_json() + "\n" for row in store.rows()]
        if output is None:
            typer.echo("".join(lines), nl=False)
        else:
            output.write_text("".join(lines))
            typer.echo(f"{len(lines)} row{'s' * (len(lines) != 1)} written to {output}", err=True)


@app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(help="Files that export wrote.", show_default=False)],
) -> None:
    """Add what was measured elsewhere.  Of two runs for one problem and processor the newer one counts."""
    with common.errors():
        from tilewright.tuner import store

        added = 0
        for file in files:
            try:
                added += store.merge(file.read_text().splitlines())
            except ValueError as error:
                raise common.BadInput(f"{file}: {error}") from None
        typer.echo(f"{added} row{'s' * (added != 1)} added")
