"""Writes the measured figures into the README, from committed results, so that no figure is typed by hand.

A document marks each place with a pair of comments and says what goes between them:

    <!-- figure: rates bench/results/zen4.json suite=square dtype=f32 threads=1 -->
    ...replaced...
    <!-- /figure -->

A marker that ends in `pending` is left alone until there is such a file.

    python -m tilewright.bench.readme            # rewrite README.md and docs/*.md of this checkout
    python -m tilewright.bench.readme --check    # only say what is out of date (a test does the same)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from tilewright.bench import formats_report, gpu_report
from tilewright.bench import report as tables
from tilewright.bench.results import OURS, Report, Result, load
from tilewright.measure.measure import Sample, geomean

# At the start of a line: an indented pair is an example, as above.
_FIGURE = re.compile(r"(^<!-- figure: (?P<what>[^>]*?) -->\n)(.*?)(^<!-- /figure -->)", re.DOTALL | re.MULTILINE)


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


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---:"] * len(head), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def rates(report: Report, options: dict[str, str]) -> str:
    """A table as the terminal shows it."""
    (group, results), *more = tables.groups(_chosen(report, options))
    if more:
        raise FigureError(f"{options} chooses {1 + len(more)} tables; suite, dtype, threads and isa choose one")
    columns = list(tables.columns(group, results, tables.peak_of(report, group)))
    return _markdown([heading for heading, _ in columns], [[cell(r) for _, cell in columns] for r in results])


def summary(report: Report, options: dict[str, str]) -> str:
    """A line per suite, format and thread count: geometric mean and least of our ratios to the fastest peer."""
    rows = []
    for group, results in tables.groups(_chosen(report, options)):
        found = [best[1].median for best in map(tables.best_ratio, results) if best]
        if found:
            sizes = f"{results[0].case.size} to {results[-1].case.size}"
            rows.append([tables.title(group), sizes, f"{geomean(found):.2f}", f"{min(found):.2f}"])
    return _markdown(["suite", "m x n x k", "geometric mean", "least"], rows)


def machine(report: Report, options: dict[str, str]) -> str:
    """Where and when, in a paragraph."""
    del options
    where = tables.heading(report)[1]
    commit = f", commit {report.commit}" if report.commit else ""
    everybody = [c for session in report.sessions for c in session.contenders if c["name"] != OURS]
    # the ladder's steps are no libraries and have no version
    versions = "; ".join(dict.fromkeys(f"{c['name']} {c['version']}" for c in everybody if c["version"]))
    return f"{where}. tilewright {report.tilewright}{commit}, {report.created[:10]}; against {versions}.\n"


def startup(report: Report, options: dict[str, str]) -> str:
    """Seconds of wall clock per process."""
    del options
    samples = {name: Sample(tuple(s), 1).spread for name, s in report.extra["startup"].items()}
    rows = [[name, f"{s.median:.3f} ({s.q1:.3f} to {s.q3:.3f})"] for name, s in samples.items()]
    return _markdown(["a whole process", "seconds"], rows)


def tiles(report: Report, options: dict[str, str]) -> str:
    """Register tiles, fastest first: those that the article names and the best `others` (0 unless given)."""
    rows, others = [], int(options.get("others", 0))
    for t in report.extra["tiles"]:
        if t["article"] or others:
            others -= not t["article"]
            registers, loads = t["registers"]["formula"], f"{t['fma_per_load']['formula']:.2f}"
            rate, share = f"{t['gflops']['median']:.1f}", f"{t['of_peak']['median']:.0%}"
            rows.append([f"{t['mr']}x{t['nr']}", t["article"] or "", str(registers), loads, rate, share])
    return _markdown(["tile", "article", "registers", "FMAs per load", "GFLOP/s", "of an FMA loop"], rows)


def counts(report: Report, options: dict[str, str]) -> str:
    """What the simulator counted of every GPU step: of=memory or of=multiprocessor."""
    from tilewright.bench import ladder_gpu

    columns = {"memory": ladder_gpu.MEMORY, "multiprocessor": ladder_gpu.MULTIPROCESSOR}.get(options["of"])
    if columns is None:
        raise FigureError(f"of={options['of']}: it is memory or multiprocessor")
    rows = [[c.title, *(cell(c) for _, cell in columns)] for c in ladder_gpu.counted(report)]
    return _markdown(["step", *(heading for heading, _ in columns)], rows)


def step(report: Report, options: dict[str, str]) -> str:
    """The same of one step, in a sentence or two."""
    from tilewright.bench import ladder_gpu

    for found in ladder_gpu.counted(report):
        if found.step == options["step"]:
            return ladder_gpu.sentence(found) + "\n"
    raise FigureError(f"there is no step {options['step']}")


def tflops(report: Report, options: dict[str, str]) -> str:
    """TFLOP/s of every GPU step beside cuBLAS."""
    del options
    from tilewright.bench import ladder_cuda

    head, *rows = ladder_cuda.table(ladder_cuda.timed(report))
    return f"{report.extra['device']['name']}, {report.created[:10]}.\n\n{_markdown(head, rows)}"


def gpu_rates(report: Report, options: dict[str, str]) -> str:
    """TFLOP/s of one suite on a GPU, and our ratios to cuBLAS and Triton."""
    return gpu_report.figure(gpu_report.rate_columns, _chosen(report, options))


def gpu_power(report: Report, options: dict[str, str]) -> str:
    """Power, clocks, temperature and joules per multiply of one suite, ours / cuBLAS's."""
    return gpu_report.figure(gpu_report.power_columns, _chosen(report, options))


def gpu_summary(report: Report, options: dict[str, str]) -> str:
    """A line per suite: geometric mean and least of our ratios to cuBLAS."""
    return gpu_report.summary(_chosen(report, options))


def gpu_machine(report: Report, options: dict[str, str]) -> str:
    """Which GPU, with what software and clocks, and when."""
    del options
    return gpu_report.machine(report)


def gpu_costs(report: Report, options: dict[str, str]) -> str:
    """of=overhead: microseconds per call; of=emission: seconds per kernel."""
    found = {"overhead": gpu_report.overhead, "emission": gpu_report.emission}.get(options["of"])
    if found is None:
        raise FigureError(f"of={options['of']}: it is overhead or emission")
    return found(report)


def formats(report: Report, options: dict[str, str]) -> str:
    """Every number format at one size and thread count: n=, threads=."""
    try:
        return formats_report.figure(report, options)
    except ValueError as wrong:
        raise FigureError(str(wrong)) from None


_KINDS = (rates, summary, machine, startup, tiles, counts, step, tflops, formats)
_GPU_KINDS = (gpu_rates, gpu_power, gpu_summary, gpu_machine, gpu_costs)
FIGURES: dict[str, Callable[[Report, dict[str, str]], str]] = {f.__name__: f for f in _KINDS + _GPU_KINDS}


def fill(text: str, root: Path) -> str:
    """The document with every figure written anew; `root` is what the markers' paths are relative to."""

    def replace(match: re.Match[str]) -> str:
        kind, path, *rest = match["what"].split()
        if kind not in FIGURES:
            raise FigureError(f"unknown figure {kind!r}; there are {', '.join(FIGURES)}")
        options = dict(option.split("=", 1) for option in rest if option != "pending")
        if "pending" in rest and not (root / path).exists():
            return match[0]
        return f"{match[1]}{FIGURES[kind](load(root / path), options)}{match[4]}"

    return _FIGURE.sub(replace, text)


def documents(root: Path) -> list[Path]:
    return [path for path in (root / "README.md", *sorted((root / "docs").glob("*.md"))) if path.exists()]


def outdated(root: Path) -> dict[Path, str]:
    """Documents that do not say what the results say, with what they should say."""
    wanted = {path: fill(path.read_text(), root) for path in documents(root)}
    return {path: text for path, text in wanted.items() if text != path.read_text()}


def main(arguments: list[str]) -> int:
    root = Path(__file__).resolve().parents[2]
    stale = outdated(root)
    for path, text in stale.items():
        if "--check" in arguments:
            print(f"{path.relative_to(root)} is out of date; run python -m tilewright.bench.readme")
        else:
            path.write_text(text)
            print(f"{path.relative_to(root)} rewritten")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
