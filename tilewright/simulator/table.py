"""A report as text: who moved what in each kind of memory, and at what cost."""
from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

from tilewright.simulator.report import Traffic
from tilewright.text import GAP, table

if TYPE_CHECKING:
    from tilewright.simulator.report import Report

SOURCE = 60                                 # characters of a source line


def text(report: Report, fit: int | None = None) -> str:
    """Tables of traffic by memory space, then instructions, flops and occupancy; all no wider than `fit` where that
    is possible."""
    parts = [found for space in ("global", "shared", "cluster", "local") if (found := _space(report, space, fit))]
    kinds = ", ".join(f"{n:,} {kind}" for kind, n in report.instructions.most_common())
    summary = [f"instructions: {kinds or 'none'}", f"flops: {report.flops:,}"]
    if report.occupancy is not None:
        summary.append(f"occupancy: {report.occupancy}")
    return "\n\n".join([*parts, "\n".join(fill(line, fit) if fit else line for line in summary)])


def _space(report: Report, space: str, fit: int | None) -> str:
    """One row for each line, array and direction; a total for each direction if there are several."""
    sites = [(site, t) for site, t in sorted(report.traffic.items()) if site.space == space and t.requests]
    if not sites:
        return ""
    banks = space in ("shared", "cluster")
    granules = "passes" if banks else "sectors" if report.granule == 32 else f"{report.granule}-byte lines"
    rows = [[f"{space} memory", "array", "", "requests", "elements", "bytes", "distinct", granules,
             "conflicts" if banks else "efficiency", ""]]
    room = SOURCE if fit is None else max(20, fit - max(len(str(site.line)) for site, _ in sites) - GAP)
    for site, traffic in sites:
        rows.append([str(site.line), site.array or "(unnamed)", site.verb, *_counts(traffic, banks),
                     site.line.text[:min(SOURCE, room)]])
    for verb in dict.fromkeys(site.verb for site, _ in sites):
        if sum(site.verb == verb for site, _ in sites) > 1:
            rows.append(["total", "", verb, *_counts(report.of(verb=verb, space=space), banks), ""])
    return table(rows, range(3, 9), fit)


def _counts(t: Traffic, banks: bool) -> list[str]:
    cost = f"{t.conflicts:,}" if banks else f"{t.efficiency:.0%}"
    return [*(f"{n:,}" for n in (t.requests, t.elements, t.bytes, t.distinct, t.moved)), cost]
