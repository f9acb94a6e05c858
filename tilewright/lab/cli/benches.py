"""tilewright bench and its studies."""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from tilewright.lab.cli import common, output
from tilewright.lab.cli.command import App, BadInput, Group


class _Group(Group):
    kept = "no result was kept"


app = App(cls=_Group, invoke_without_command=True)


def _list(*names: str, help: str, default: Any) -> Any:
    return typer.Option(*names, help=help, metavar="LIST", show_default=default)


Threads = Annotated[list[str] | None, _list("--threads", help="Thread counts, such as 1,4,all.", default="1,all")]
Dtypes = Annotated[list[str] | None, _list("--dtype", "-d", help="f32, f64 or both.", default=False)]
Peers = Annotated[list[str] | None, _list(
    "--peers", help="Libraries to compare with: numpy, openblas, mkl, blis, torch, or another file of "
    "tilewright/lab/bench/peers; none: tilewright alone.", default="all found")]
_ALLOWED = "tilewright.allow_dirty"  # in the context of all commands


def _allow(context: typer.Context, given: bool) -> None:
    context.meta[_ALLOWED] = given or context.meta.get(_ALLOWED, False)


def _from_clean_tree(context: typer.Context, path: Path | None) -> Path | None:
    """The path of a result file, refused if it cannot be written or the checkout has changes."""
    output.checked(path)
    if path is not None:
        from tilewright.lab.bench import results

        results.check_tree(context.meta.get(_ALLOWED, False))
    return path


Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="[FILE]", help="Write every sample, with machine and versions, to FILE; to standard "
                 "output, with the tables on standard error, if FILE is - or left out.", show_default=False,
                 callback=_from_clean_tree),
]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Write a plot: out.svg, or out.png, "
                                           "which needs matplotlib.", show_default=False, callback=output.checked)]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page of tables and plots, such as "
                                           "out.html.", show_default=False, callback=output.checked)]
AllowDirty = Annotated[bool, typer.Option(
    "--allow-dirty", is_eager=True, callback=_allow, help="Let --json, of a study too, write in a checkout with "
    "changes; the file is marked, and no page shows it.")]
Limit = Annotated[str, typer.Option("--target", "-t", metavar="NAME", help="native, or avx2 to limit every library to "
                                    "AVX2.")]


@app.callback()
def bench(
    context: typer.Context,
    quick: Annotated[bool, typer.Option("--quick", help="The main sizes in f32, in under a minute.")] = False,
    suite: Annotated[list[str] | None, _list("--suite", "-s", help="square, awkward, layouts, skinny, overhead, cold, "
                                             "contractions, article.", default="the first five")] = None,
    dtype: Dtypes = None,
    threads: Threads = None,
    peers: Peers = None,
    target: Limit = "native",
    minutes: Annotated[float | None, typer.Option(
        min=0.1, help="Stop after that many minutes; of the suite article, choose sizes that fit.",
        show_default="no limit")] = None,
    despite_load: Annotated[bool, typer.Option(
        "--despite-load", help="Time one thread by the CPU time of its process, on a machine that others use too.")
    ] = False,
    json: Json = None,
    html: Html = None,
    allow_dirty: AllowDirty = False,
    plot: Plot = None,
) -> None:
    """Compare with NumPy, OpenBLAS, MKL, BLIS and torch, whichever are installed.

    tilewright and its peers take turns on the same random matrices; the figure quoted is the median of the ratios of
    the rounds.  The full run takes a quarter of an hour or more, --quick less than a minute.  docs/benchmarking.md has
    the rules.  Only the files that --json and --plot name are written.
    """
    if context.invoked_subcommand is not None:
        return
    _run("bench", {"minutes": minutes}, suite=suite, dtype=dtype, threads=threads, peers=peers, isa=target,
         despite_load=despite_load, quick=quick, json=json, html=html, plot=plot)


@app.command()
def ladder(
    quick: Annotated[bool, typer.Option("--quick", help="Six sizes up to 2000 instead of 200 to 10000.")] = False,
    sizes: Annotated[list[str] | None, _list("--sizes", help="Sizes, such as 256,1024.", default="200 to 10000")
                     ] = None,
    device: Annotated[
        str, typer.Option(help="cpu; simulate counts what the GPU steps do, without a GPU; cuda times them.")
    ] = "cpu",
    dtype: Dtypes = None,
    threads: Threads = None,
    peers: Annotated[list[str] | None, _list("--peers", help="Libraries to compare with, as above; none: the steps "
                                             "alone.", default="numpy,openblas")] = None,
    target: Limit = "native",
    json: Json = None,
    html: Html = None,
    plot: Plot = None,
) -> None:
    """Time the teaching steps of ladder beside NumPy and OpenBLAS: the gain of each step.

    The steps without blocking are left out at sizes where one call would take more than two seconds.  All fifty sizes
    up to 10000 take hours.  With --device cuda the steps are those of the GPU ladder, beside cuBLAS: --dtype f32, or
    bf16 for those on tensor cores.
    """
    if device not in ("cpu", "simulate", "cuda"):
        raise BadInput(f"--device must be cpu, simulate or cuda, got {device!r}")
    options: dict[str, Any] = {"dtype": dtype, "threads": threads if device == "cpu" else ["1"], "sizes": sizes,
                               "peers": peers, "isa": target, "quick": quick, "json": json, "html": html, "plot": plot}
    if device == "simulate":
        _run("simulate", {"n": common.numbers(sizes, ["256"], "--sizes")[0], "target_name": "sm_90a"}, **options)
    _run("ladder" if device == "cpu" else "gpu_ladder", **options)


@app.command()
def formats(
    quick: Annotated[bool, typer.Option("--quick", help="n = 1024 alone, fewer rounds.")] = False,
    only: Annotated[list[str] | None, _list("--only", "-o", help="Formats (bf16,i8), algorithms (bf16_bf16_f32_x6) or "
                                            "products (u8-i8-i32).", default="all")] = None,
    sizes: Annotated[list[str] | None, _list("--sizes", help="Sizes, such as 256,1024.", default="512,1024,2048,4096")
                     ] = None,
    threads: Threads = None,
    peers: Peers = None,
    target: Limit = "native",
    json: Json = None,
    html: Html = None,
    plot: Plot = None,
) -> None:
    """Every number format beside NumPy, MKL, OpenBLAS, oneDNN and torch: rate, ratios and error.

    All peers multiply the same random numbers of the format into the same format of result, are checked, and take
    turns.  A format that this version or machine lacks is a row with the reason.  docs/benchmarking.md has the rules.
    """
    _run("formats", only=only, sizes=sizes, threads=threads, peers=peers, isa=target, quick=quick, json=json, html=html,
         plot=plot)


@app.command()
def gpu(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes and rounds.")] = False,
    suite: Annotated[list[str] | None, _list("--suite", "-s", help="sweep (the article's sizes), square, odd, skinny, "
                                             "f64; of formats of tensor cores tensor, tensor_odd, tensor_skinny; "
                                             "terms, tf32: f32 by algorithms of theirs; scaled: fp8 with "
                                             "scales of rows; mx: block-scaled formats.", default="sweep")] = None,
    sizes: Annotated[list[str] | None, _list("--sizes", help="Sizes of sweep, square and f64, such as 1024,4096.",
                                             default="1024 to 12800 step 128")] = None,
    dtype: Annotated[list[str] | None, _list(
        "--dtype", "-d", help="f32, f64, or formats of A, B and the result that torch multiplies too: bf16-bf16-bf16, "
        "f16-f16-f16, i8-i8-i32, e4m3fn-e4m3fn-bf16.", default="f32; of tensor these four")] = None,
    peers: Annotated[list[str] | None, _list("--peers", help="cuBLAS, triton.", default="all found")] = None,
    plan: Annotated[
        list[str] | None, typer.Option("--plan", help="A plan to time too, as `tilewright plan` writes it; repeatable.")
    ] = None,
    step: Annotated[list[str] | None, _list("--step", help="Steps of the GPU ladder to time too, such as stored,async.",
                                            default="none")] = None,
    case: Annotated[
        list[str] | None, typer.Option("--case", help="A product MxNxK, MxNxK:LAYOUT or MxNxK:LAYOUT:FORMATS to time; "
                                         "repeatable.")
    ] = None,
    flush: Annotated[
        bool, typer.Option("--flush", help="In the sweep, empty the L2 cache before every launch, and time each alone.")
    ] = False,
    device: Annotated[int, typer.Option(min=0, help="The CUDA device's number.")] = 0,
    json: Json = None,
    html: Html = None,
    plot: Plot = None,
) -> None:
    """Compare with cuBLAS and Triton on an NVIDIA GPU: TFLOP/s, power, clocks and energy.

    cuBLAS is called through torch, which must be installed, in full f32.  Clocks are reported, never set.  The sweep
    takes about ten minutes on a fast GPU, --quick one; docs/benchmarking.md has the rules.
    """
    _run("gpu", suite=suite, dtype=dtype, threads=["1"], sizes=sizes, peers=peers, plans=plan or [], cases=case or [],
         steps=common.listed(step), quick=quick, flush=flush, device=device, json=json, html=html, plot=plot)


@app.command(name="never-lose")
def never_lose(
    device: Annotated[str, typer.Option(help="cpu, or cuda for an NVIDIA GPU.")] = "cpu",
    only: Annotated[list[str] | None, _list(
        "--only", "-o", help="Groups of shapes (squares, odd, rectangles, skinny, layouts, views, batches; not among "
        "the 150 vectors; again: what changed on GPUs since it was measured), and formats or products, such as f32 and "
        "i8-i8-i32.", default="all but vectors; on a GPU f32 and f64")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="f32 unless --only names formats, fewer rounds.")] = False,
    minutes: Annotated[
        float | None, typer.Option(min=0.1, help="Stop after that many minutes, which the groups of shapes share.",
                                   show_default="no limit")
    ] = None,
    threads: Threads = None,
    peers: Peers = None,
    target: Limit = "native",
    number: Annotated[int, typer.Option(min=0, help="The CUDA device's number.")] = 0,
    json: Json = None,
    html: Html = None,
) -> None:
    """Find the products in which a peer is faster: 150 shapes by formats and thread counts.

    Prints the geometric mean of the ratios to the fastest peer, the worst ten, and every product below 1 with what
    bounds its plan by the cost model. On a GPU the peer is cuBLAS unless --peers names another. The full run takes
    hours; --quick --minutes 10 takes a sample.
    """
    if device not in ("cpu", "cuda"):
        raise BadInput(f"--device must be cpu or cuda, got {device!r}")
    cpu = device == "cpu"
    _run("never_lose", {"device": "cpu" if cpu else "gpu", "minutes": minutes}, only=only, peers=peers, isa=target,
         threads=threads if cpu else ["1"], quick=quick, device=number, json=json, html=html)


@app.command()
def random(
    seed: Annotated[int, typer.Option(help="Another seed, other shapes.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="Shapes of each format.")] = 40,
    only: Annotated[list[str] | None, _list("--format", "-f", help="f32, f64, bf16, f16, i8, e4m3fn, or products such "
                                            "as u8-i8-i32 and algorithms such as bf16_bf16_f32_x6.", default="f32")
                    ] = None,
    layers: Annotated[bool, typer.Option("--layers", help="Linear layers of 20 published models, m = 1 ... 16384, "
                                         "instead of random shapes.")] = False,
    device: Annotated[str, typer.Option(help="cpu, or cuda for an NVIDIA GPU.")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds.")] = False,
    minutes: Annotated[
        float | None, typer.Option(min=0.1, help="Stop after that many minutes.", show_default="no limit")
    ] = None,
    threads: Threads = None,
    peers: Peers = None,
    number: Annotated[int, typer.Option(min=0, help="The CUDA device's number.")] = 0,
    json: Json = None,
    html: Html = None,
) -> None:
    """Compare on shapes drawn at random: the speed to expect of shapes that no suite lists.

    Prints for each format the geometric mean of the ratios to the fastest peer, the 5th percentile, the least, and the
    worst ten with their plan's bound by the cost model. docs/benchmarking.md has the rule by which shapes are drawn.
    """
    if device not in ("cpu", "cuda"):
        raise BadInput(f"--device must be cpu or cuda, got {device!r}")
    cpu = device == "cpu"
    _run("random", {"device": "cpu" if cpu else "gpu", "minutes": minutes, "seed": seed, "count": count,
                    "layers": layers}, only=only, peers=peers, threads=threads if cpu else ["1"], quick=quick,
         device=number, json=json, html=html)


@app.command()
def einsum(
    seed: Annotated[int | None, typer.Option(help="Contractions drawn by this seed.", show_default="TCCG's 48")] = None,
    count: Annotated[int, typer.Option(min=1, help="How many are drawn.")] = 48,
    only: Annotated[list[str] | None, _list("--format", "-f", help="f32, f64, c64.", default="f32")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller tensors, fewer rounds: a minute.")] = False,
    threads: Threads = None,
    peers: Peers = None,
    json: Json = None,
    html: Html = None,
) -> None:
    """Compare contractions of two arrays into new results in C order with numpy.einsum(optimize=True) and torch.einsum.

    The 48 contractions of the TCCG benchmark, or contractions drawn at random. Prints what bench random prints.
    """
    _run("einsum", {"seed": seed, "count": count}, only=only, peers=peers, threads=threads, quick=quick, json=json,
         html=html)


@app.command()
def attention(
    seed: Annotated[int | None, typer.Option(help="Shapes drawn by this seed.", show_default="the project's own shapes")
                    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many are drawn of each format.")] = 20,
    only: Annotated[list[str] | None, _list("--format", "-f", help="f32, f64, f16, bf16.",
                                            default="f32,bf16; on a GPU bf16")] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda for an NVIDIA GPU.")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds, and of the project's shapes four.")] = False,
    threads: Threads = None,
    number: Annotated[int, typer.Option(min=0, help="The CUDA device's number.")] = 0,
    json: Json = None,
    html: Html = None,
) -> None:
    """Compare attention with torch's: on a GPU with cuDNN, FlashAttention-2 and flex_attention, in CUDA graphs.

    Rows of every result are compared with float64 first. Prints for each format and peer the geometric mean of the
    ratios and the least.
    """
    if device not in ("cpu", "cuda"):
        raise BadInput(f"--device must be cpu or cuda, got {device!r}")
    cpu = device == "cpu"
    _run("attention", {"device": "cpu" if cpu else "gpu", "seed": seed, "count": count}, "attention", only=only,
         threads=threads if cpu else ["1"], quick=quick, device=number, json=json, html=html)


@app.command()
def tiles(
    dtype: Annotated[str, typer.Option("--dtype", "-d", help="f32 or f64.")] = "f32",
    target: common.TargetName = "native",
    quick: Annotated[bool, typer.Option("--quick", help="Only the tiles the article names and the best ones.")] = False,
    json: Json = None,
    html: Html = None,
) -> None:
    """Measure every legal register tile: registers used, FMAs per load, rate."""
    from tilewright.targets import CpuTarget

    chip = common.target(target, CpuTarget)
    _run("tiles", {"target": chip, "dtype": common.product(dtype)}, quick=quick, json=json, html=html)


@app.command()
def startup(
    rounds: Annotated[int, typer.Option(min=1, help="Processes of each kind.")] = 7,
    json: Json = None,
    html: Html = None,
) -> None:
    """Time whole processes: import, the first result with an empty kernel cache, and with a warm one."""
    _run("startup", {"rounds": rounds}, json=json, html=html)


def _records(kind: str, quick_help: str, sizes_help: str, default: str, help: str) -> None:
    """The command of a suite with a table of its own."""
    @app.command(kind, help=help)
    def command(quick: Annotated[bool, typer.Option("--quick", help=quick_help)] = False,
                sizes: Annotated[list[str] | None, _list("--sizes", help=sizes_help, default=default)] = None,
                threads: Threads = None, json: Json = None, html: Html = None) -> None:
        _run("records", {"kind": kind}, threads=threads, sizes=sizes, quick=quick, json=json, html=html)


_records("elementwise", "Two sizes, fewer rounds.", "Elements, such as 10000,1000000.", "10000 to 10000000",
         """Time z = x + y and sums of rows in f32, written with `each` and `fold`, beside NumPy.

         Figures above the size of the last cache are also stated as a share of the memory's measured bandwidth.""")
_records("weights", "k = 4096, fewer rounds.", "k, such as 4096.", "4096 and 8192",
         "Time few rows by weights of few bits that are larger than the last cache, beside bf16, f32, NumPy and torch.")
_records("epilogues", "Three sizes, fewer rounds.", "m = n = k, such as 256,1024.", "64 to 4096",
         "Time products of f32 with relu, and with a bias and gelu, beside the product alone and beside torch.")
_records("contract", "Fewer rounds.", "Points, such as 512,2048: of squared distances twice, of some cases half as "
         "many.", "2048",
         "Time products with their own arithmetic (tilewright.contract) beside scipy, numba, torch and KeOps.")


Result = Annotated[Path, typer.Argument(metavar="FILE", help="A file that --json wrote.", show_default=False)]


@app.command()
def show(file: Result, html: Html = None, plot: Plot = None) -> None:
    """Print the tables of a result file again, and write its page or its plot."""
    from tilewright.lab.bench import commands

    commands.shown(file, html, plot, common.console())


@app.command()
def compare(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="A file that --json wrote.", show_default=False)],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Another of the same study.", show_default=False)],
    absolute: Annotated[bool, typer.Option("--absolute", help="Compare times themselves, not times in those of a "
                                           "peer that both files have.")] = False,
    fail_slower: Annotated[bool, typer.Option("--fail-slower", help="Exit with status 1 if a cell, or the geometric "
                                              "mean, is slower.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Show cells without a difference, too.")] = False,
    json: output.Json = None,
) -> None:
    """Say what became faster or slower between two result files, with the noise in account.

    A cell is faster or slower only if its interval leaves 1 out: 99 %, of the noise of its rounds and of that between
    runs, which is seen from peers that did not change.  Their times also stand for how fast the machine was.
    """
    from tilewright.lab.bench import compare as comparison
    from tilewright.lab.bench.results import load

    found = comparison.compare(load(old), load(new), absolute)
    output.show(found.record, lambda: typer.echo(comparison.text(found, every, output.width())), json)
    if fail_slower and found.slower:
        raise typer.Exit(1)


def _run(study: str, extra: dict[str, Any] | None = None, home: str = "commands", *, json: Path | None,
         suite: list[str] | None = None, dtype: list[str] | None = None, threads: list[str] | None = None,
         sizes: list[str] | None = None, only: list[str] | None = None, peers: list[str] | None = None,
         **more: Any) -> NoReturn:
    """A study of bench.commands, or of another module, with these options, and with what it takes beside them."""
    from tilewright.lab.bench import commands

    options = commands.Options(
        suites=common.listed(suite), dtypes=[*map(common.product, common.listed(dtype))], only=common.listed(only),
        threads=common.numbers(threads, ["1", "all"], "--threads", {"all": commands.all_threads()}),
        sizes=common.numbers(sizes, [], "--sizes"), peers=common.listed(peers) or None, json=json, **more,
    )
    console = common.console(json == output.STDOUT)
    run = getattr(import_module(f"tilewright.lab.bench.{home}"), study)
    raise typer.Exit(run(options=options, console=console, **(extra or {})))
