"""Writes the measured figures into the README, from committed results, so that no figure is typed by hand.

A document marks each place with a pair of comments and says what goes between them:

    <!-- figure: rates bench/results/zen5_skinny.json suite=skinny dtype=f32 threads=1 -->
    ...replaced...
    <!-- /figure -->

    python bench/readme.py            # rewrite README.md and docs/**/*.md of this checkout
    python bench/readme.py --check    # only say what is out of date (a test does the same)
    python bench/readme.py plot RESULT.json PICTURE.png [N]     # draw a committed result, of formats at size N
    python bench/readme.py commit RESULT.json                   # write into it which commit has the sources that it was
                                                                # measured with: of a file from a copy of a checkout
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import geometric_mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tilewright.lab.bench import plot, study, tables
from tilewright.lab.bench.peer import OURS
from tilewright.lab.bench.report import gpu_ratios, gpu_where, heading, on_gpu, power_columns, rate_columns
from tilewright.lab.bench.results import Report, Result, check_shown, load, name_commit
from tilewright.lab.bench.tables import FORMATS_CAPTION, REMARK, Column, format_groups, format_lines
from tilewright.lab.measure.measure import ratios, spread
from tilewright.text import plural

# At the start of a line: an indented pair is an example, as above.
_FIGURE = re.compile(r"(^<!-- figure: (?P<what>[^>]*?)\s-->\n)(.*?)(^<!-- /figure -->)", re.DOTALL | re.MULTILINE)


class FigureError(ValueError):
    """A marker that asks for something that does not exist."""


def _chosen(report: Report, options: dict[str, str]) -> list[Result]:
    """The results of one table: options may fix suite, dtype, threads, isa and layout."""
    found = report.results
    for key, value in options.items():
        if key not in ("suite", "dtype", "threads", "isa", "layout"):
            raise FigureError(f"unknown option {key!r}")
        found = [r for r in found if str(_facet(r, key)) == value]
    if not found:
        raise FigureError(f"no result has {options}")
    return found


def _facet(r: Result, key: str) -> object:
    p = r.case.problem
    return {"suite": r.case.suite, "dtype": p.a, "threads": r.threads, "isa": r.isa, "layout": p.layout}[key]


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str] = ()) -> str:
    lines = [head, ["---" if heading in left else "---:" for heading in head], *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def of_columns(cells: Iterable[Column], results: Iterable[Result]) -> str:
    """A table of results for a document."""
    cells = list(cells)
    return markdown([heading for heading, _ in cells], [[cell(r) for _, cell in cells] for r in results])


def rates(report: Report, options: dict[str, str]) -> str:
    """A table as the terminal shows it."""
    (group, results), *more = tables.groups(_chosen(report, options))
    if more:
        raise FigureError(f"{options} chooses {1 + len(more)} tables; suite, dtype, threads and isa choose one")
    return of_columns(tables.columns(group, results, tables.peak_of(report, group)), results)


def summary(report: Report, options: dict[str, str], cublas: bool = False) -> str:
    """A line per suite, format and thread count: geometric mean and least of our ratios to the fastest peer, or to
    cuBLAS."""
    rows = []
    for group, results in tables.groups(_chosen(report, options)):
        found = [best[1].median for best in map(tables.best_ratio, results) if best]
        said = gpu_ratios(results) if cublas else found and (f"{geometric_mean(found):.2f}", f"{min(found):.2f}")
        if said:
            rows.append([tables.title(group), f"{results[0].case.size} to {results[-1].case.size}", *said])
    return markdown(["suite", "m x n x k", f"{'x cuBLAS, ' * cublas}geometric mean", "least"], rows)


def peers(report: Report, options: dict[str, str]) -> str:
    """A line per thread count and peer: geometric mean and least of our ratios to it, and of how many cases."""
    rows, results = [], _chosen(report, options)
    for threads in sorted({r.threads for r in results}):
        for name in sorted({name for r in results for name in r.peers()}):
            each = [(found.median, r.case.size) for r in results if r.threads == threads and (found := r.ratio(name))]
            if each:
                least, where = min(each)
                rows.append([str(threads), name, f"{geometric_mean(x for x, _ in each):.2f}",
                             f"{least:.2f} ({where})", f"{sum(x < 0.95 for x, _ in each)} of {len(each)}"])
    return markdown(["threads", "peer", "geometric mean", "least", "below 0.95"], rows, left=["peer", "least"])


def overview(sources: Iterable[tuple[Report, dict[str, str]]]) -> str:
    """One table of several result files: where, which product and shapes, beside which libraries, our rate over that of
    the fastest of them (geometric mean and least), and on how many shapes we are more than 5 % slower."""
    rows = []
    for report, options in sources:
        chip, shapes = options.pop("chip").replace("_", " "), options.pop("shapes").replace("_", " ")
        for group, results in tables.groups(_chosen(report, options)):
            found = [best[1].median for best in map(tables.best_ratio, results) if best]
            label = results[0].case.product.label + ("" if on_gpu(report) else f", {plural(group[2], 'thread')}")
            others = sorted({x for r in results for x in r.peers()})
            beside = ", ".join(_beside(report, name, group[2]) for name in others)
            rows.append([chip, label, shapes, beside, f"{geometric_mean(found):.2f}", f"{min(found):.2f}",
                         f"{sum(x < 0.95 for x in found)} of {len(found)}"])
    head = ["chip", "product", "shapes", "beside", "mean", "least", "slower on"]
    return markdown(head, rows, left=head[:4])


def _beside(report: Report, name: str, threads: int) -> str:
    """A library's name, and AVX2 where it used that on a processor with wider vectors: on AMD's MKL does, and torch,
    which uses MKL."""
    versions = [x["version"] for session in report.sessions if session.threads == threads for x in session.peers
                if x["name"] == name]
    wide = "avx512f" in report.machine["isa"] and "AMD" in report.machine["cpu"] and not on_gpu(report)
    narrow = wide and any("libmkl_def" in x or "MKL" in x for x in versions)
    shown = {"numpy": "NumPy", "openblas": "OpenBLAS", "blis": "BLIS", "mkl": "MKL", "triton": "Triton"}.get(name, name)
    return shown + " (AVX2)" * narrow


def machine(report: Report, options: dict[str, str]) -> str:
    """Where and when, in a paragraph; of a GPU with its software and clocks."""
    del options
    commit = f", commit {report.commit}" if report.commit else ""
    when = f"tilewright {report.tilewright}{commit}, {report.created[:10]}"
    if on_gpu(report):
        return f"{gpu_where(report)}. {when}. Clocks: {report.extra.get('clocks', 'unknown')}.\n"
    everybody = [c for session in report.sessions for c in session.peers if c["name"] != OURS]
    # the ladder's steps are no libraries and have no version
    versions = "; ".join(dict.fromkeys(f"{c['name']} {c['version']}" for c in everybody if c["version"]))
    against = f"; against {versions}" if versions else ""
    return f"{heading(report)[1]}. {when}{against}.\n"


def tiles(report: Report, options: dict[str, str]) -> str:
    """Register tiles, fastest first: those that the article names and the best `others` (0 unless given)."""
    rows, others = [], int(options.get("others", 0))
    for t in report.extra["tiles"]:
        if t["article"] or others:
            others -= not t["article"]
            registers, loads = t["registers"]["formula"], f"{t['fma_per_load']['formula']:.2f}"
            rate, share = f"{t['gflops']['median']:.1f}", f"{t['of_peak']['median']:.0%}"
            rows.append([f"{t['mr']}x{t['nr']}", t["article"] or "", str(registers), loads, rate, share])
    return markdown(["tile", "article", "registers", "FMAs per load", "GFLOP/s", "of an FMA loop"], rows)


def counts(report: Report, options: dict[str, str]) -> str:
    """What the simulator counted of every GPU step: of=memory or of=multiprocessor."""
    from tilewright.lab.bench.suites import ladders

    columns = {"memory": ladders.MEMORY, "multiprocessor": ladders.MULTIPROCESSOR}.get(options["of"])
    if columns is None:
        raise FigureError(f"of={options['of']}: it is memory or multiprocessor")
    rows = [[c.title, *(cell(c) for _, cell in columns)] for c in ladders.counted(report)]
    return markdown(["step", *(heading for heading, _ in columns)], rows)


def sentence(c: Any) -> str:
    """What the simulator counts of one step, in words."""
    agrees = "exactly" if c.loads == c.expected else f"{c.expected:,} expected"
    what, share = c.bound
    said = [
        f"**Simulated, n = {c.n}:** {c.loads:,} loads from global memory ({c.formula}: {agrees}) in {c.load_sectors:,} "
        f"sectors of 32 bytes, of which {c.load_efficiency:.0%} is used; C is stored in {c.store_sectors:,} sectors "
        f"({c.store_efficiency:.0%} used)."
    ]
    if c.shared_loads:
        conflicts = f"{c.conflicts:,} of them conflicts" if c.conflicts else "none of them a conflict"
        said.append(f"{c.shared_loads:,} loads from shared memory; {c.passes:,} passes over its banks, {conflicts}.")
    moves = f"{c.moves / c.fmas:.3f} loads, stores, copies and barriers per FMA"
    used = "" if c.registers is None else f"; {c.registers} registers, {plural(c.ctas or 0, 'CTA')} per multiprocessor"
    said.append(f"{moves}{used}. Bound by {what}: at most {share:.1%} of the peak.")
    return "\n".join(textwrap.fill(s, 120) for s in said)


def step(report: Report, options: dict[str, str]) -> str:
    """The figures of one step, in a sentence or two."""
    from tilewright.lab.bench.suites import ladders

    for found in ladders.counted(report):
        if found.step == options["step"]:
            return sentence(found) + "\n"
    raise FigureError(f"there is no step {options['step']}")


def tflops(report: Report, options: dict[str, str]) -> str:
    """TFLOP/s of every GPU step beside cuBLAS."""
    del options
    from tilewright.lab.bench.suites import ladders

    head, *rows = ladders.table(report.results)
    device = report.machine.get("gpu") or report.extra["device"]
    return f"{device['name']}, {report.created[:10]}.\n\n{markdown(head, rows)}"


def gpu_table(columns: Callable[[list[Result]], Iterable[Column]], report: Report, options: dict[str, str]) -> str:
    """One suite on a GPU in these columns: rates and ratios, or power, clocks, temperature and joules per multiply."""
    results = _chosen(report, options)
    return of_columns(columns(results), results)


def programs(report: Report, options: dict[str, str]) -> str:
    """Block programs: Triton's time over ours, a row for each program and format, of all sizes."""
    del options
    found: dict[tuple[str, str], list[str]] = {}
    for each in report.extra["programs"]:
        ratio = spread(ratios(each["seconds"]["triton"], each["seconds"]["tilewright"])).median
        size = f"{each['rows']} x {each['cols']}" + f" x {each['cols']}" * (each["program"] == "matmul")
        found.setdefault((each["program"], each["dtype"]), []).append(f"{size} {ratio:.2f}")
    rows = [[f"{program.replace('_', ' ')} {dtype}", ", ".join(cells)] for (program, dtype), cells in found.items()]
    versions = ", ".join(f"{name} {version}" for name, version in report.machine["gpu"]["packages"].items()
                         if name in ("triton", "torch"))
    where = f"{report.machine['gpu']['name']}, {report.created[:10]}, {versions}.\n\n"
    return where + markdown(["program", "sizes: time of Triton / time here"], rows, left=("program",))


def models(report: Report, options: dict[str, str]) -> str:
    """Jobs of bench/programs.py whose names do not begin with except=: torch's time over that with layers of a kind.
    sides=torchao,...: a row for each kind, with its time and those of others over it."""
    if "sides" in options:
        head, sides = ["job", "layers of"], ["torch", *options["sides"].split(",")]
        found = [(x, times, times["tilewright"]) for x in report.extra["programs"] if len(times := x["seconds"]) > 2]
        return markdown([*head, "ms", *sides], [[x["job"], x["kind"], f"{spread(ours).median * 1e3:.3f}", *(
            f"{spread(ratios(times[side], ours)).median:.2f}" if side in times else "-" for side in sides)]
            for x, times, ours in found], left=head)
    rows: dict[str, dict[str, str]] = {}
    for x in report.extra["programs"]:
        if not x["job"].startswith(options.get("except", "-")):
            times = x["seconds"]
            found = spread(ratios(times["torch"], times["tilewright"])).median if times else 0
            rows.setdefault(x["job"], {})[x["kind"]] = f"{found:.2f}" if times else "-"
    kinds = list(dict.fromkeys(kind for row in rows.values() for kind in row))
    head = ["torch's bf16 / layers of", *kinds]
    return markdown(head, [[job, *(row.get(kind, "-") for kind in kinds)] for job, row in rows.items()], left=head[:1])


def studied(report: Report, options: dict[str, str]) -> str:
    """Cases of a script of bench/: what each is, our time, and the others' times over that."""
    del options
    (found,) = (x for x in report.extra.values() if isinstance(x, list))
    left_out = "failed", "seconds", "kernels", "bytes", "batch", "expected", "predicted", "plan"
    about = [key for key in found[0] if key not in left_out]
    others = list(dict.fromkeys(side for x in found for side in x["seconds"] if side != OURS))
    rows = []
    for x in found:
        times = x["seconds"]
        said = [" x ".join(map(str, each)) if isinstance(each, list) else str(each) for each in map(x.get, about)]
        rows.append([*said, f"{1e6 * spread(times[OURS]).median:.1f}",
                     *(f"{spread(ratios(times[side], times[OURS])).median:.2f}" if side in times else "-"
                       for side in others)])
    return markdown([*about, "µs", *(f"x {side}" for side in others)], rows, left=about)


def gpu_epilogues(report: Report, options: dict[str, str]) -> str:
    """of=products: products with an epilogue on a GPU, beside others' times; of=host: microseconds per call."""
    if options["of"] == "host":
        head = "a call from Python, 256 x 256 x 256"
        return markdown([head, "µs"], [[name, f"{1e6 * spread(seconds).median:.1f}"]
                                       for name, seconds in report.extra["host"].items()], left=[head])
    if options["of"] != "products":
        raise FigureError(f"of={options['of']}: it is products or host")
    rows = []
    for x in report.extra["epilogues"]:
        ours, sides = x["seconds"]["tilewright"], ("product", "cublas", "eager", "compiled")
        found = {side: spread(ratios(x["seconds"][side], ours)).median for side in sides if side in x["seconds"]}
        alone = f"{1 / found['product']:.2f}"
        rows.append([x["function"], " x ".join(map(str, x["size"])), f"{spread(ours).median * 1e6:.0f}", alone,
                     *(f"{found[side]:.2f}" if side in found else "-" for side in sides[1:])])
    return markdown(["function", "m x n x k", "µs", "of the product's time", "x cuBLAS's product", "x torch",
                     "x torch.compile"], rows, left=["function"])


def gpu_semirings(report: Report, options: dict[str, str]) -> str:
    """Contractions by bench/semirings.py: times, rates of our own f32 product and of what the instructions allow, and
    the time of torch's functions in that of ours."""
    if options:
        raise FigureError(f"it has no options, not {', '.join(options)}")
    rows = []
    for each in report.extra["semirings"]:
        ours, others = each["seconds"]["tilewright"], {**each["seconds"]}
        del others["tilewright"]
        product, median = spread(ratios(others.pop("matmul"), ours)).median, spread(ours).median
        peers = ", ".join(f"{spread(ratios(x, ours)).median:.2f} ({name})" for name, x in others.items())
        rows.append([each["case"].replace("|", "\\|"), f"{each['m']} x {each['n']} x {each['k']}",
                     f"{median * 1e6:,.0f}", f"{product:.2f}", f"{each['bound'] / median:.2f}", peers])
    left = "f(a, b), reduction", "x torch"
    return markdown([left[0], "m x n x k", "us", "x product", "of the bound", left[1]], rows, left)


def formats(report: Report, options: dict[str, str]) -> str:
    """Every number format at one size and thread count: threads=, n= and isa= choose them."""
    for key in options:
        if key not in ("threads", "n", "isa"):
            raise FigureError(f"unknown option {key!r}")
    fits = [
        members
        for (threads, isa, n), members in format_groups(report.results).items()
        if all({"threads": str(threads), "n": str(n), "isa": isa}[key] == value for key, value in options.items())
    ]
    if len(fits) != 1:
        raise FigureError(f"{options} chooses {len(fits)} tables of formats; threads, n and isa choose one")
    head, *body = format_lines(fits[0])
    return f"{markdown(head, body, left=(head[0], REMARK))}\n{FORMATS_CAPTION}.\n"


def records(kind: str, report: Report, options: dict[str, str]) -> str:
    """The table of a suite of this name; case= and threads= choose rows."""
    suite = import_module(f"tilewright.lab.bench.suites.{kind}")
    if options.keys() - {"case", "threads"}:
        raise FigureError(f"unknown option among {', '.join(options)}")
    found = [x for x in report.extra[kind] if all(str(x[key]).replace(" ", "_") == y for key, y in options.items())]
    if not found:
        raise FigureError(f"no result has {options}")
    head, rows = study.table(suite, found)
    return markdown(head, rows, left=head[:1])


_KINDS = (rates, summary, peers, machine, tiles, counts, step, tflops, formats, programs, models, studied,
          gpu_epilogues, gpu_semirings)
FIGURES: dict[str, Callable[[Report, dict[str, str]], str]] = {
    **{f.__name__: f for f in _KINDS},
    "gpu_machine": machine, "gpu_summary": partial(summary, cublas=True), "gpu_rates": partial(gpu_table, rate_columns),
    "gpu_power": partial(gpu_table, power_columns),
    **{kind: partial(records, kind) for kind in ("elementwise", "epilogues", "contract")}}


def shown(path: Path) -> Report:
    """The results of a file. FigureError if they are of a checkout with changes."""
    report = load(path)
    try:
        check_shown(report)
    except ValueError as error:
        raise FigureError(f"{path}: {error}") from None
    return report


def sources(words: Iterable[str], root: Path) -> Iterator[tuple[Report, dict[str, str]]]:
    """Result files, each with the options that follow it: A.json suite=square B.json suite=random dtype=f32."""
    found: list[tuple[str, dict[str, str]]] = []
    for word in words:
        key, equals, value = word.partition("=")
        found.append((word, {})) if not equals else found[-1][1].update({key: value})
    for path, options in found:
        yield shown(root / path), options


def fill(text: str, root: Path) -> str:
    """The document with every figure written anew; `root` is what the markers' paths are relative to."""

    def replace(match: re.Match[str]) -> str:
        kind, path, *rest = match["what"].split()
        if kind == overview.__name__:
            return f"{match[1]}{overview(sources([path, *rest], root))}{match[4]}"
        if kind not in FIGURES:
            raise FigureError(f"unknown figure {kind!r}; there are {', '.join(FIGURES)}")
        options = dict(option.split("=", 1) for option in rest)
        return f"{match[1]}{FIGURES[kind](shown(root / path), options)}{match[4]}"

    return _FIGURE.sub(replace, text)


def documents(root: Path) -> list[Path]:
    return [path for path in (root / "README.md", *sorted((root / "docs").rglob("*.md"))) if path.exists()]


def outdated(root: Path) -> dict[Path, str]:
    """Documents that do not say what the results say, with what they should say."""
    wanted = {path: fill(path.read_text(), root) for path in documents(root)}
    return {path: text for path, text in wanted.items() if text != path.read_text()}


def main(arguments: list[str]) -> int:
    root = Path(__file__).resolve().parent.parent
    if arguments[:1] == ["plot"]:
        source, picture, *n = arguments[1:]
        plot.draw(shown(Path(source)), Path(picture), n=int(n[0]) if n else None)
        return 0
    if arguments[:1] == ["commit"]:
        print(f"{arguments[1]} is of commit {name_commit(Path(arguments[1]))}")
        return 0
    stale = outdated(root)
    for path, text in stale.items():
        if "--check" in arguments:
            print(f"{path.relative_to(root)} is out of date; run python bench/readme.py")
        else:
            path.write_text(text)
            print(f"{path.relative_to(root)} rewritten")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
