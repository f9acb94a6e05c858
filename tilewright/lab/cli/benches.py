"""tilewright bench and its studies: which options each takes. What a study does is a function in bench/commands.py."""

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from tilewright.lab.cli import common, output
from tilewright.lab.cli.command import App, BadInput, Group


class _Group(Group):
    kept = "no result was kept"


app = App(cls=_Group, invoke_without_command=True)


# ---- options: of each the annotation and the default

Option = tuple[Any, Any]
_ALLOWED = "tilewright.allow_dirty"  # in the context of all commands


def _option(kind: Any, default: Any, *names: str, **more: Any) -> Option:
    return Annotated[kind, typer.Option(*names, **more)], default


def _list(*names: str, help: str, default: Any) -> Option:
    return _option(list[str] | None, None, *names, help=help, metavar="LIST", show_default=default)


def _flag(name: str, help: str, **more: Any) -> Option:
    return _option(bool, False, name, help=help, **more)


def _quick(help: str) -> Option:
    return _flag("--quick", help)


def _minutes(help: str) -> Option:
    return _option(float | None, None, min=0.1, help=help, show_default="no limit")


def _file(name: str, help: str, check: Any = output.checked, metavar: str = "FILE") -> Option:
    return _option(Path | None, None, name, metavar=metavar, help=help, show_default=False, callback=check)


def _allow(context: typer.Context, given: bool) -> None:
    context.meta[_ALLOWED] = given or context.meta.get(_ALLOWED, False)


def _from_clean_tree(context: typer.Context, path: Path | None) -> Path | None:
    """The path of a result file, refused if it cannot be written or the checkout has changes."""
    output.checked(path)
    if path is not None:
        from tilewright.lab.bench import results

        results.check_tree(context.meta.get(_ALLOWED, False))
    return path


THREADS = _list("--threads", help="Thread counts, such as 1,4,all.", default="1,all")
DTYPES = _list("--dtype", "-d", help="f32, f64 or both.", default=False)
PEERS = _list("--peers", help="Libraries to compare with: numpy, openblas, mkl, blis, torch, or another file of "
              "tilewright/lab/bench/peers; none: tilewright alone.", default="all found")
LIMIT = _option(str, "native", "--target", "-t", metavar="NAME", help="native, or avx2 to limit every library to AVX2.")
DEVICE = _option(str, "cpu", help="cpu, or cuda for an NVIDIA GPU.")
NUMBER = _option(int, 0, min=0, help="The CUDA device's number.")
DESPITE_LOAD = _flag("--despite-load", "Time one thread by the CPU time of its process, on a machine that others use "
                     "too.")
WRITTEN = {"json": _file("--json", "Write every sample, with machine and versions, to FILE; to standard output, with "
                         "the tables on standard error, if FILE is - or left out.", _from_clean_tree, "[FILE]"),
           "html": _file("--html", "Write a page of tables and plots, such as out.html.")}
PLOTTED = WRITTEN | {"plot": _file("--plot", "Write a plot: out.svg, or out.png, which needs matplotlib.")}


# ---- commands

# fields of commands.Options that options have other names for
NAMES = {"suite": "suites", "dtype": "dtypes", "target": "isa", "plan": "plans", "case": "cases", "step": "steps",
         "number": "device"}


def _command(name: str, does: Any, help: str | None = None, /, **options: Option) -> None:
    """A command, or with the name "" the group's own, that hands these options to a function of any keywords."""
    does.__signature__ = inspect.Signature([inspect.Parameter(
        option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for option, (kind, default) in options.items()])
    does.__annotations__ = {option: kind for option, (kind, _) in options.items()}
    (app.command(name, help=help) if name else app.callback())(does)


def _study(name: str, help: str, does: str = "", extra: dict[str, Any] | None = None, /, **options: Option) -> None:
    """The command of a function of commands.py, by default of the command's name."""
    _command(name, lambda **given: _run(does or name, extra, **given), help, **options)


def _run(does: str, extra: dict[str, Any] | None = None, /, **given: Any) -> NoReturn:
    """A study with these options, and with what its function takes beside them."""
    from tilewright.lab.bench import cases, commands

    more = dict(extra or {})
    if "device" in given:
        if (device := given.pop("device")) not in ("cpu", "cuda"):
            raise BadInput(f"--device must be cpu or cuda, got {device!r}")
        more["device"] = cases.CPU if device == "cpu" else cases.GPU
        given["threads"] = given["threads"] if device == "cpu" else ["1"]
    named = {NAMES.get(name, name): value for name, value in given.items()}
    named |= {name: common.listed(named.get(name)) for name in ("suites", "dtypes", "only", "steps", "peers")}
    named |= {"dtypes": [*map(common.product, named["dtypes"])], "peers": named["peers"] or None,
              "threads": common.numbers(more.pop("threads", None) or named.get("threads"), ["1", "all"], "--threads",
                                        {"all": commands.all_threads()}),
              "sizes": common.numbers(named.get("sizes"), [], "--sizes")}
    own = {x.name for x in fields(commands.Options)}
    options = commands.Options(**{name: value for name, value in named.items() if name in own and value is not None})
    more |= {name: value for name, value in named.items() if name not in own}
    raise typer.Exit(getattr(commands, does)(options=options, console=common.console(options.json == output.STDOUT),
                                             **more))


def bench(context: typer.Context, allow_dirty: bool, **given: Any) -> None:
    """Compare with NumPy, OpenBLAS, MKL, BLIS and torch, whichever are installed.

    tilewright and its peers take turns on the same random matrices; the figure quoted is the median of the ratios of
    the rounds.  The full run takes a quarter of an hour or more, --quick less than a minute.  docs/benchmarking.md has
    the rules.  Only the files that --json and --plot name are written.
    """
    if context.invoked_subcommand is None:
        _run("bench", **given)


_command(
    "", bench, context=(typer.Context, inspect.Parameter.empty),
    quick=_quick("The main sizes in f32, in under a minute."),
    suite=_list("--suite", "-s", help="square, awkward, layouts, skinny, overhead, cold, contractions, article.",
                default="the first five"), dtype=DTYPES, threads=THREADS, peers=PEERS, target=LIMIT,
    minutes=_minutes("Stop after that many minutes; of the suite article, choose sizes that fit."),
    despite_load=DESPITE_LOAD, json=PLOTTED["json"], html=PLOTTED["html"],
    allow_dirty=_flag("--allow-dirty", "Let --json, of a study too, write in a checkout with changes; the file is "
                      "marked, and no page shows it.", is_eager=True, callback=_allow), plot=PLOTTED["plot"])


def ladder(device: str, **given: Any) -> None:
    """Time the teaching steps of ladder beside NumPy and OpenBLAS: the gain of each step.

    The steps without blocking are left out at sizes where one call would take more than two seconds.  All fifty sizes
    up to 10000 take hours.  With --device cuda the steps are those of the GPU ladder, beside cuBLAS: --dtype f32, or
    bf16 for those on tensor cores.
    """
    if device not in ("cpu", "simulate", "cuda"):
        raise BadInput(f"--device must be cpu, simulate or cuda, got {device!r}")
    given["threads"] = given["threads"] if device == "cpu" else ["1"]
    if device == "simulate":
        _run("simulate", {"n": common.numbers(given["sizes"], ["256"], "--sizes")[0], "target_name": "sm_90a"}, **given)
    _run("ladder" if device == "cpu" else "gpu_ladder", **given)


_command(
    "ladder", ladder, quick=_quick("Six sizes up to 2000 instead of 200 to 10000."),
    sizes=_list("--sizes", help="Sizes, such as 256,1024.", default="200 to 10000"),
    device=_option(str, "cpu", help="cpu; simulate counts what the GPU steps do, without a GPU; cuda times them."),
    dtype=DTYPES, threads=THREADS, peers=_list("--peers", help="Libraries to compare with, as above; none: the steps "
                                               "alone.", default="numpy,openblas"), target=LIMIT, **PLOTTED)

_study(
    "formats", """Every number format beside NumPy, MKL, OpenBLAS, oneDNN and torch: rate, ratios and error.

    All peers multiply the same random numbers of the format into the same format of result, are checked, and take
    turns.  A format that this version or machine lacks is a row with the reason.  docs/benchmarking.md has the rules.
    """, quick=_quick("n = 1024 alone, fewer rounds."),
    only=_list("--only", "-o", help="Formats (bf16,i8), algorithms (bf16_bf16_f32_x6) or products (u8-i8-i32).",
               default="all"),
    sizes=_list("--sizes", help="Sizes, such as 256,1024.", default="512,1024,2048,4096"), threads=THREADS, peers=PEERS,
    target=LIMIT, **PLOTTED)

_study(
    "gpu", """Compare with cuBLAS and Triton on an NVIDIA GPU: TFLOP/s, power, clocks and energy.

    cuBLAS is called through torch, which must be installed, in full f32.  Clocks are reported, never set.  The sweep
    takes about ten minutes on a fast GPU, --quick one; docs/benchmarking.md has the rules.""", "", {"threads": ["1"]},
    quick=_quick("Fewer sizes and rounds."),
    suite=_list("--suite", "-s", help="sweep (the article's sizes), square, odd, skinny, f64; of formats of tensor "
                "cores tensor, tensor_odd, tensor_skinny; terms, tf32: f32 by algorithms of theirs; scaled: fp8 with "
                "scales of rows; mx: block-scaled formats.", default="sweep"),
    sizes=_list("--sizes", help="Sizes of sweep, square and f64, such as 1024,4096.", default="1024 to 12800 step 128"),
    dtype=_list("--dtype", "-d", help="f32, f64, or formats of A, B and the result that torch multiplies too: "
                "bf16-bf16-bf16, f16-f16-f16, i8-i8-i32, e4m3fn-e4m3fn-bf16.", default="f32; of tensor these four"),
    peers=_list("--peers", help="cuBLAS, triton.", default="all found"),
    plan=_option(list[str] | None, None, "--plan", help="A plan to time too, as `tilewright plan` writes it; "
                 "repeatable."),
    step=_list("--step", help="Steps of the GPU ladder to time too, such as stored,async.", default="none"),
    case=_option(list[str] | None, None, "--case", help="A product MxNxK, MxNxK:LAYOUT or MxNxK:LAYOUT:FORMATS to "
                 "time; repeatable."),
    flush=_flag("--flush", "In the sweep, empty the L2 cache before every launch, and time each alone."),
    number=_option(int, 0, "--device", min=0, help="The CUDA device's number."), **PLOTTED)

_study(
    "never-lose", """Find the products in which a peer is faster: 150 shapes by formats and thread counts.

    Prints the geometric mean of the ratios to the fastest peer, the worst ten, and every product below 1 with what
    bounds its plan by the cost model. On a GPU the peer is cuBLAS unless --peers names another. The full run takes
    hours; --quick --minutes 10 takes a sample.""", "never_lose", device=DEVICE,
    only=_list("--only", "-o", help="Groups of shapes (squares, odd, rectangles, skinny, layouts, views, batches; not "
               "among the 150 vectors; again: what changed on GPUs since it was measured), and formats or products, "
               "such as f32 and i8-i8-i32.", default="all but vectors; on a GPU f32 and f64"),
    quick=_quick("f32 unless --only names formats, fewer rounds."),
    minutes=_minutes("Stop after that many minutes, which the groups of shapes share."), threads=THREADS, peers=PEERS,
    target=LIMIT, number=NUMBER, **WRITTEN)

_study(
    "random", """Compare on shapes drawn at random: the speed to expect of shapes that no suite lists.

    Prints for each format the geometric mean of the ratios to the fastest peer, the 5th percentile, the least, and the
    worst ten with their plan's bound by the cost model. docs/benchmarking.md has the rule by which shapes are drawn.
    """, seed=_option(int, 0, help="Another seed, other shapes."),
    count=_option(int, 40, min=1, help="Shapes of each format."),
    only=_list("--format", "-f", help="f32, f64, bf16, f16, i8, e4m3fn, or products such as u8-i8-i32 and algorithms "
               "such as bf16_bf16_f32_x6.", default="f32"),
    layers=_flag("--layers", "Linear layers of 20 published models, m = 1 ... 16384, instead of random shapes."),
    device=DEVICE, quick=_quick("Fewer rounds."), minutes=_minutes("Stop after that many minutes."), threads=THREADS,
    peers=PEERS, number=NUMBER, **WRITTEN)

_study(
    "einsum", """Compare contractions of two arrays into new results in C order with numpy.einsum(optimize=True) and
    torch.einsum.

    The 48 contractions of the TCCG benchmark, or contractions drawn at random. Prints what bench random prints.""",
    seed=_option(int | None, None, help="Contractions drawn by this seed.", show_default="TCCG's 48"),
    count=_option(int, 48, min=1, help="How many are drawn."),
    only=_list("--format", "-f", help="f32, f64, c64.", default="f32"),
    quick=_quick("Smaller tensors, fewer rounds: a minute."), threads=THREADS, peers=PEERS, **WRITTEN)

_study(
    "attention", """Compare attention with torch's: on a GPU with cuDNN, FlashAttention-2 and flex_attention, in CUDA
    graphs.

    Rows of every result are compared with float64 first. Prints for each format and peer the geometric mean of the
    ratios and the least.""", "records", {"kind": "attention_calls"},
    seed=_option(int | None, None, help="Shapes drawn by this seed.", show_default="the project's own shapes"),
    count=_option(int, 20, min=1, help="How many are drawn of each format."),
    only=_list("--format", "-f", help="f32, f64, f16, bf16, e4m3fn; on CPUs i8 and e4m3fn are of keys and "
               "values, beside bf16 queries.", default="f32,bf16; on a GPU bf16"),
    plan=_option(list[str] | None, None, "--plan", help="A plan to time too, as `tilewright plan --attention` "
                 "writes it; repeatable."),
    device=DEVICE, quick=_quick("Fewer rounds, and of the project's shapes four."), threads=THREADS,
    despite_load=DESPITE_LOAD, number=NUMBER, **WRITTEN)


def tiles(target: str, dtype: str, **given: Any) -> None:
    """Measure every legal register tile: registers used, FMAs per load, rate."""
    from tilewright.targets import CpuTarget

    chip = common.target(target, CpuTarget)
    _run("tiles", {"target": chip, "dtype": common.product(dtype)}, **given)


_command("tiles", tiles, dtype=_option(str, "f32", "--dtype", "-d", help="f32 or f64."),
         target=(common.TargetName, "native"),
         quick=_quick("Only the tiles the article names and the best ones."), **WRITTEN)
_study("startup", "Time whole processes: import, the first result with an empty kernel cache, and with a warm one.",
       rounds=_option(int, 7, min=1, help="Processes of each kind."), **WRITTEN)

for kind, quick, sizes, default, help in (
    ("elementwise", "Two sizes, fewer rounds.", "Elements, such as 10000,1000000.", "10000 to 10000000",
     """Time z = x + y and sums of rows in f32, written with `each` and `fold`, beside NumPy.

     Figures above the size of the last cache are also stated as a share of the memory's measured bandwidth."""),
    ("weights", "k = 4096, fewer rounds.", "k, such as 4096.", "4096 and 8192",
     "Time few rows by weights of few bits that are larger than the last cache, beside bf16, f32, NumPy and torch."),
    ("epilogues", "Three sizes, fewer rounds.", "m = n = k, such as 256,1024.", "64 to 4096",
     "Time products of f32 with relu, and with a bias and gelu, beside the product alone and beside torch."),
    ("contract", "Fewer rounds.", "Points, such as 512,2048: of squared distances twice, of some cases half as many.",
     "2048", "Time products with their own arithmetic (tilewright.contract) beside scipy, numba, torch and KeOps."),
):
    _study(kind, help, "records", {"kind": kind}, quick=_quick(quick),
           sizes=_list("--sizes", help=sizes, default=default), threads=THREADS, **WRITTEN)


# ---- result files

def show(file: Path, html: Path | None, plot: Path | None) -> None:
    """Print the tables of a result file again, and write its page or its plot."""
    from tilewright.lab.bench import commands

    commands.shown(file, html, plot, common.console())


Result = Annotated[Path, typer.Argument(metavar="FILE", help="A file that --json wrote.", show_default=False)]
_command("show", show, file=(Result, inspect.Parameter.empty), html=PLOTTED["html"], plot=PLOTTED["plot"])


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

    cells = comparison.compare(load(old), load(new), absolute)
    output.show(cells.record, lambda: typer.echo(comparison.text(cells, every, output.width())), json)
    if fail_slower and cells.slower:
        raise typer.Exit(1)
