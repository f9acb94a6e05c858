"""tilewright bench and its studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import common, output
from tilewright.cli.command import App

app = App(invoke_without_command=True)

Threads = Annotated[
    list[str] | None,
    typer.Option("--threads", help="Thread counts, such as 1,4,all.", metavar="LIST", show_default="1,all"),
]
Dtypes = Annotated[
    list[str] | None, typer.Option("--dtype", "-d", help="f32, f64 or both.", metavar="LIST", show_default=False)
]
Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="[FILE]", help="Write every sample, with machine and versions, to FILE; to standard "
                 "output, with the tables on standard error, if FILE is - or left out.", show_default=False),
]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Write a plot, such as out.png (needs matplotlib).",
                 show_default=False),
]
Peers = Annotated[
    list[str] | None,
    typer.Option("--peers", help="Libraries to compare with: numpy, openblas, mkl, blis, torch, or another file of "
                 "tilewright/bench/peers; none: tilewright alone.", metavar="LIST", show_default="all found"),
]
Isa = Annotated[str, typer.Option("--isa", metavar="NAME", help="native, or avx2 to limit every library to AVX2.")]


@app.callback()
def bench(
    context: typer.Context,
    quick: Annotated[bool, typer.Option("--quick", help="The main sizes in f32, in under a minute.")] = False,
    suite: Annotated[
        list[str] | None,
        typer.Option("--suite", "-s", help="square, awkward, layouts, skinny, overhead, cold, article.", metavar="LIST",
                     show_default="all but cold and article"),
    ] = None,
    dtype: Dtypes = None,
    threads: Threads = None,
    peers: Peers = None,
    isa: Isa = "native",
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Compare with NumPy, OpenBLAS, MKL, BLIS and torch, whichever are installed.

    tilewright and its peers take turns on the same random matrices; the figure quoted is the median of the ratios of
    the rounds.  The full run takes a quarter of an hour or more, --quick less than a minute.  docs/benchmarking.md has
    the rules.  Only the files that --json and --plot name are written.
    """
    if context.invoked_subcommand is not None:
        return
    with common.errors(lambda: "no result was kept"):
        from tilewright.bench import commands

        chosen = commands.Options(
            suites=common.listed(suite, []), dtypes=common.listed(dtype, []), threads=_counts(threads),
            peers=common.listed(peers, []) or None, isa=isa, quick=quick, json=json, plot=plot,
        )
        raise typer.Exit(commands.bench(chosen, common.console(json == output.STDOUT)))


@app.command()
def ladder(
    quick: Annotated[bool, typer.Option("--quick", help="Six sizes up to 2000 instead of 200 to 10000.")] = False,
    sizes: Annotated[
        list[str] | None, typer.Option(help="Sizes, such as 256,1024.", metavar="LIST", show_default="200 to 10000")
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu; simulate counts what the GPU steps do, without a GPU; cuda times them.")
    ] = "cpu",
    dtype: Dtypes = None,
    threads: Threads = None,
    peers: Annotated[
        list[str] | None,
        typer.Option("--peers", help="Libraries to compare with, as above; none: the steps alone.", metavar="LIST",
                     show_default="numpy,openblas")
    ] = None,
    isa: Isa = "native",
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Time the teaching steps of ladder beside NumPy and OpenBLAS: the gain of each step.

    The steps without blocking are left out at sizes where one call would take more than two seconds.  All fifty sizes
    up to 10000 take hours.
    """
    with common.errors(lambda: "no result was kept"):
        from tilewright.bench import commands

        console = common.console(json == output.STDOUT)
        if device not in ("cpu", "simulate", "cuda"):
            raise common.BadInput(f"--device must be cpu, simulate or cuda, got {device!r}")
        chosen = commands.Options(
            dtypes=common.listed(dtype, []), threads=_counts(threads) if device == "cpu" else [1],
            sizes=common.numbers(sizes, [], "--sizes"), peers=common.listed(peers, []) or None, isa=isa, quick=quick,
            json=json, plot=plot,
        )
        if device == "simulate":
            raise typer.Exit(commands.simulate((chosen.sizes or [256])[0], "sm_90a", chosen, console))
        if device == "cuda":
            raise typer.Exit(commands.gpu_ladder(chosen, console))
        raise typer.Exit(commands.ladder(chosen, console))


@app.command()
def formats(
    quick: Annotated[bool, typer.Option("--quick", help="n = 1024 alone, fewer rounds.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", "-o", help="Formats (bf16,i8), algorithms (bf16_bf16_f32_x6) or products (u8-i8-i32).",
                     metavar="LIST", show_default="all"),
    ] = None,
    sizes: Annotated[
        list[str] | None, typer.Option(help="Sizes, such as 256,1024.", metavar="LIST",
                                       show_default="512,1024,2048,4096")
    ] = None,
    threads: Threads = None,
    peers: Peers = None,
    isa: Isa = "native",
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Every number format beside NumPy, MKL, OpenBLAS, oneDNN and torch: rate, ratios and error.

    All peers multiply the same random numbers of the format into the same format of result, are checked, and take
    turns.  A format that this version or machine lacks is a row with the reason.  docs/benchmarking.md has the rules.
    """
    with common.errors(lambda: "no result was kept"):
        from tilewright.bench import commands

        chosen = commands.Options(
            only=common.listed(only, []), sizes=common.numbers(sizes, [], "--sizes"), threads=_counts(threads),
            peers=common.listed(peers, []) or None, isa=isa, quick=quick, json=json, plot=plot,
        )
        raise typer.Exit(commands.formats(chosen, common.console(json == output.STDOUT)))


@app.command()
def gpu(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes and rounds.")] = False,
    suite: Annotated[
        list[str] | None,
        typer.Option("--suite", "-s", help="sweep (the article's sizes), square, odd, skinny, f64.",
                     metavar="LIST", show_default="sweep"),
    ] = None,
    sizes: Annotated[
        list[str] | None, typer.Option(help="Sizes of sweep, square and f64, such as 1024,4096.", metavar="LIST",
                                       show_default="1024 to 12800 step 128")
    ] = None,
    dtype: Dtypes = None,
    peers: Annotated[
        list[str] | None, typer.Option("--peers", help="cuBLAS, triton.", metavar="LIST", show_default="all found")
    ] = None,
    plan: Annotated[
        list[str] | None, typer.Option("--plan", help="A plan to time too, as `tilewright plan` writes it; repeatable.")
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option("--case", help="A product MxNxK or MxNxK:LAYOUT to time; repeatable.")
    ] = None,
    flush: Annotated[
        bool, typer.Option("--flush", help="In the sweep, empty the L2 cache before every launch, and time each alone.")
    ] = False,
    device: Annotated[int, typer.Option(min=0, help="The CUDA device's number.")] = 0,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Compare with cuBLAS and Triton on an NVIDIA GPU: TFLOP/s, power, clocks and energy.

    cuBLAS is called through torch, which must be installed, in full f32.  Clocks are reported, never set.  The sweep
    takes about ten minutes on a fast GPU, --quick one; docs/benchmarking.md has the rules.
    """
    with common.errors(lambda: "no result was kept"):
        from tilewright.bench import commands

        chosen = commands.Options(
            suites=common.listed(suite, []), dtypes=common.listed(dtype, []),
            sizes=common.numbers(sizes, [], "--sizes"), peers=common.listed(peers, []) or None, plans=plan or [],
            cases=case or [], quick=quick, flush=flush, device=device, json=json, plot=plot,
        )
        raise typer.Exit(commands.gpu(chosen, common.console(json == output.STDOUT)))


@app.command(name="never-lose")
def never_lose(
    device: Annotated[str, typer.Option(help="cpu, or cuda for an NVIDIA GPU.")] = "cpu",
    only: Annotated[
        list[str] | None,
        typer.Option("--only", "-o", help="Groups of shapes (squares, odd, rectangles, skinny, layouts, views, "
                     "batches), and formats or products, such as f32 and i8-i8-i32.", metavar="LIST",
                     show_default="all; on a GPU f32 and f64"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="f32 unless --only names formats, fewer rounds.")] = False,
    minutes: Annotated[
        float | None, typer.Option(min=0.1, help="Stop after that many minutes, which the groups of shapes share.",
                                   show_default="no limit")
    ] = None,
    threads: Threads = None,
    peers: Peers = None,
    isa: Isa = "native",
    number: Annotated[int, typer.Option(min=0, help="The CUDA device's number.")] = 0,
    json: Json = None,
) -> None:
    """Find the products in which a peer is faster: 150 shapes by formats and thread counts.

    Prints the geometric mean of the ratios to the fastest peer, the worst ten, and every product below 1 with what
    bounds its plan by the cost model. On a GPU the peer is cuBLAS unless --peers names another. The full run takes
    hours; --quick --minutes 10 takes a sample.
    """
    with common.errors(lambda: "no result was kept"):
        from tilewright.bench import commands

        if device not in ("cpu", "cuda"):
            raise common.BadInput(f"--device must be cpu or cuda, got {device!r}")
        chosen = commands.Options(
            only=common.listed(only, []), threads=_counts(threads) if device == "cpu" else [1],
            peers=common.listed(peers, []) or None, isa=isa, quick=quick, device=number, json=json,
        )
        raise typer.Exit(commands.never_lose(chosen, "gpu" if device == "cuda" else "cpu", minutes,
                                             common.console(json == output.STDOUT)))


@app.command()
def tiles(
    dtype: Annotated[str, typer.Option("--dtype", "-d", help="f32 or f64.")] = "f32",
    target: common.TargetName = "native",
    quick: Annotated[bool, typer.Option("--quick", help="Only the tiles the article names and the best ones.")] = False,
    json: Json = None,
) -> None:
    """Measure every legal register tile: registers used, FMAs per load, rate."""
    with common.errors(lambda: "no result was kept"):
        from tilewright.bench.suites import tiles as study

        console = common.console(json == output.STDOUT)
        raise typer.Exit(study.run(common.cpu(target), dtype, quick=quick, json=json, console=console) or 0)


@app.command()
def startup(
    rounds: Annotated[int, typer.Option(min=1, help="Processes of each kind.")] = 7,
    json: Json = None,
) -> None:
    """Time whole processes: import, the first result with an empty kernel cache, and with a warm one."""
    with common.errors(lambda: "no result was kept"):
        from tilewright.bench import commands

        raise typer.Exit(commands.startup(rounds, json, common.console(json == output.STDOUT)))


def _counts(threads: list[str] | None) -> list[int]:
    from tilewright.bench import commands

    return common.numbers(threads, ["1", "all"], "--threads", {"all": commands.all_threads()})
