"""GPU results as tables, for a terminal and for documents: rates, ratios to cuBLAS, and the state the GPU was in."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tilewright.bench import report as tables
from tilewright.bench.report import Column, Group, names
from tilewright.bench.results import OURS, Report, Result
from tilewright.doctor.doctor import size as bytes_of
from tilewright.measure.measure import Spread, geomean, spread

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

KERNEL_0 = "cuBLAS"


def title(group: Group) -> str:
    return f"{group[0]}, {group[1]}" if group[0] != group[1] else group[0]


def tflops(r: Result, name: str) -> str:
    """Median TFLOP/s, or a word where there is no sample."""
    row = r.row(name)
    if row is None:
        return "-"
    if row.sample is None:
        return "-" if (row.error or "").startswith("left out") else "wrong" if "wrong" in (row.error or "") else "error"
    return f"{(r.gflops(name) or 0.0) / 1e3:.1f}"


def against(r: Result, peer: str = KERNEL_0, ours: str = OURS) -> Spread | None:
    """The peer's time over ours, above 1 we are faster."""
    return r.ratio(peer, ours)


def _ratio(r: Result, peer: str = KERNEL_0, ours: str = OURS) -> str:
    found = against(r, peer, ours)
    if found is None:
        return "-"
    one = len(r.sample(ours).seconds) == 1  # type: ignore[union-attr]
    return f"{found.median:.3f}" if one else f"{found.median:.3f} ({found.q1:.3f} to {found.q3:.3f})"


def state(r: Result, name: str, what: str) -> Any:
    """A figure of gpu_state.summary for one contender; None if it is not known."""
    row = r.row(name)
    return row.gpu.get(what) if row and row.gpu else None


def held_back(found: dict[str, float] | None) -> str:
    """power cap (100%), or "nothing"; reasons that were given in less than a tenth of the readings do not count."""
    if found is None:
        return "-"
    said = [f"{text} ({share:.0%})" for text, share in found.items() if share >= 0.1 and text != "idle"]
    return ", ".join(said) or "nothing"


def _figure(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _pair(r: Result, what: str, digits: int = 0) -> str:
    """Ours / cuBLAS's."""
    return " / ".join(_figure(state(r, name, what), digits) for name in (OURS, KERNEL_0))


def rate_columns(results: list[Result]) -> Iterator[Column]:
    """Size, layout, TFLOP/s of everybody, our ratio to each peer."""
    yield _size(results), lambda r: r.case.size
    if len({r.case.problem.layout for r in results}) > 1:
        yield "layout", lambda r: r.case.problem.layout
    everybody = names(results)
    for name in everybody:
        yield name, lambda r, name=name: tflops(r, name)  # type: ignore[misc]
    for name in everybody:
        if name in (KERNEL_0, "triton"):
            yield f"x {name}", lambda r, name=name: _ratio(r, name)  # type: ignore[misc]


def power_columns(results: list[Result]) -> Iterator[Column]:
    """The state of the GPU while tilewright, and cuBLAS, ran alone."""
    yield _size(results), lambda r: r.case.size
    yield "W", lambda r: _pair(r, "watts")
    yield "SM MHz", lambda r: _pair(r, "sm_mhz")
    yield "memory MHz", lambda r: _pair(r, "memory_mhz")
    yield "°C", lambda r: _pair(r, "celsius")
    yield "J per multiply", lambda r: _pair(r, "joules", 3)
    yield "J x cuBLAS", lambda r: _figure(joules_ratio(r), 3)
    yield "held back by", lambda r: held_back(state(r, OURS, "held_back"))


def joules_ratio(r: Result) -> float | None:
    """Our energy per multiply over cuBLAS's: below 1 we need less."""
    ours, theirs = state(r, OURS, "joules"), state(r, KERNEL_0, "joules")
    return ours / theirs if ours and theirs else None


def _size(results: list[Result]) -> str:
    return "m = n = k" if all(r.case.size.isdecimal() for r in results) else "m x n x k"


def watched(results: list[Result]) -> bool:
    return any(state(r, name, "readings") for r in results for name in (OURS, KERNEL_0))


def summary_row(results: list[Result]) -> tuple[str, str] | None:
    """Geometric mean and least of our ratios to cuBLAS."""
    found = [ratio.median for r in results if (ratio := against(r))]
    return (f"{geomean(found):.3f}", f"{min(found):.3f}") if found else None


def table(group: Group, results: list[Result], columns: Callable[[list[Result]], Iterator[Column]]) -> Table:
    from rich import box
    from rich.table import Table

    caption = []
    if columns is rate_columns:
        caption.append("TFLOP/s; x: how many times as fast tilewright is, median of rounds (quartiles)")
        if (found := summary_row(results)) and len(results) > 1:
            caption.append(f"against cuBLAS: geometric mean {found[0]}, least {found[1]}")
    else:
        caption.append("tilewright / cuBLAS, each alone")
    shown = Table(title=title(group), caption="; ".join(caption), title_justify="left", caption_justify="left")
    shown.box, shown.padding = box.SIMPLE_HEAD, (0, 1, 0, 0)
    cells = list(columns(results))
    for heading, _ in cells:
        shown.add_column(heading, justify="left" if heading == "held back by" else "right", no_wrap=True,
                         style="bold" * (heading == OURS))
    for r in results:
        shown.add_row(*(cell(r) for _, cell in cells))
    return shown


def show(report: Report, console: Console) -> None:
    """Print everything a reader needs to judge the figures."""
    from rich.markup import escape

    for line in heading(report):
        console.print(escape(line), highlight=False)
    for group, results in tables.groups(report.results):
        console.print()
        console.print(table(group, results, rate_columns))
        if watched(results):
            console.print(table(group, results, power_columns))
    for line in cost_lines(report):
        console.print(escape(line), highlight=False)
    for line in remarks(report):
        console.print(escape(line), style="yellow", highlight=False)


def heading(report: Report) -> list[str]:
    gpu = report.machine.get("gpu", {})
    commit = f" ({report.commit})" if report.commit else ""
    lines = [f"tilewright {report.tilewright}{commit}, {report.created}", where(report)]
    lines.append(f"clocks: {report.extra.get('clocks', 'unknown')}" + (f" ({gpu['why']})" if gpu.get("why") else ""))
    versions: dict[str, str] = {}
    for session in report.sessions:
        for c in session.contenders:
            versions.setdefault(c["name"], f"{c['name']} {c['version']}".strip() + f": {c['how']}")
    return lines + [line for name, line in versions.items() if name != OURS]


def where(report: Report) -> str:
    """The chip, its limits and its software."""
    gpu = report.machine.get("gpu", {})
    said = [f"{gpu.get('name', 'a GPU')} ({gpu.get('target', '?')}, {gpu.get('sms', '?')} multiprocessors"]
    if gpu.get("l2"):
        said.append(f"{bytes_of(gpu['l2'])} of L2")
    if gpu.get("power_limit_watts"):
        said.append(f"power limit {gpu['power_limit_watts']:.0f} W")
    if gpu.get("max_sm_mhz"):
        said.append(f"at most {gpu['max_sm_mhz']:.0f} MHz")
    software = [f"driver {gpu['driver']}"] if gpu.get("driver") else []
    software += [f"CUDA {gpu['cuda']}"] if gpu.get("cuda") else []
    software += [f"{name} {version}" for name, version in gpu.get("packages", {}).items()]
    return f"{', '.join(said)}); {', '.join(software)}"


def overheads(report: Report) -> dict[str, Spread]:
    """Seconds per call from Python."""
    return {name: spread(seconds) for name, seconds in report.extra.get("overhead", {}).items()}


def emissions(report: Report) -> dict[str, float]:
    """Seconds per kernel, recording and LLVM."""
    return {name: t["record_s"] + t["llvm_s"] for name, t in report.extra.get("emission", {}).items()}


def cost_lines(report: Report) -> Iterator[str]:
    for name, s in overheads(report).items():
        yield f"{name}: {s.median * 1e6:.2f} us a call ({s.q1 * 1e6:.2f} to {s.q3 * 1e6:.2f})"
    if found := emissions(report):
        slowest = max(found, key=found.__getitem__)
        yield (
            f"emission of {len(found)} kernels: median {statistics.median(found.values()):.3f} s, "
            f"most {found[slowest]:.3f} s ({slowest})"
        )


def remarks(report: Report) -> list[str]:
    """What is missing or doubtful."""
    said = []
    for session in report.sessions:
        said += [f"{name} left out: {reason}" for name, reason in session.left_out.items()]
        said += session.notes
    for result in report.results:
        for row in result.rows:
            if row.error and not row.error.startswith("left out"):
                said.append(f"{row.name}, {result.case.label}: {row.error}")
    return list(dict.fromkeys(said))


# ---- for documents (readme.py)


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---:"] * len(head), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def figure(columns: Callable[[list[Result]], Iterator[Column]], results: list[Result]) -> str:
    cells = list(columns(results))
    return markdown([heading for heading, _ in cells], [[cell(r) for _, cell in cells] for r in results])


def summary(results: list[Result]) -> str:
    """A line per suite and format: geometric mean and least of our ratios to cuBLAS."""
    rows = []
    for group, found in tables.groups(results):
        if ratios := summary_row(found):
            rows.append([title(group), f"{found[0].case.size} to {found[-1].case.size}", *ratios])
    return markdown(["suite", "m x n x k", "x cuBLAS, geometric mean", "least"], rows)


def machine(report: Report) -> str:
    commit = f", commit {report.commit}" if report.commit else ""
    clocks = report.extra.get("clocks", "unknown")
    return f"{where(report)}. tilewright {report.tilewright}{commit}, {report.created[:10]}. Clocks: {clocks}.\n"


def overhead(report: Report) -> str:
    rows = [
        [name, f"{s.median * 1e6:.2f} ({s.q1 * 1e6:.2f} to {s.q3 * 1e6:.2f})"] for name, s in overheads(report).items()
    ]
    return markdown(["a call from Python", "µs"], rows)


def emission(report: Report) -> str:
    rows = []
    for name, t in report.extra["emission"].items():
        load = _figure(t.get("load_s"), 3)
        rows.append([f"`{name}`", f"{t['record_s']:.3f}", f"{t['llvm_s']:.3f}", load])
    return markdown(["kernel", "recording, s", "LLVM, s", "driver's assembler, s"], rows)
