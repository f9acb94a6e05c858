"""A report as text: who moved what in each kind of memory, and at what cost."""
from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.simulator.report import Traffic

if TYPE_CHECKING:
    from tilewright.simulator.report import Report

SOURCE = 60                                 # characters of a source line


def text(report: Report) -> str:
    """Tables of traffic by memory space, then instructions, flops and occupancy."""
    parts = [table for space in ("global", "shared", "cluster", "local") if (table := _space(report, space))]
    kinds = ", ".join(f"{n:,} {kind}" for kind, n in report.instructions.most_common())
    parts.append(f"instructions: {kinds or 'none'}\nflops: {report.flops:,}")
    if report.occupancy is not None:
        parts[-1] += f"\noccupancy: {report.occupancy}"
    return "\n\n".join(parts)


def _space(report: Report, space: str) -> str:
    """One row for each line, array and direction; a total for each direction if there are several."""
    sites = [(site, t) for site, t in sorted(report.traffic.items()) if site.space == space and t.requests]
    if not sites:
        return ""
    banks = space in ("shared", "cluster")
    granules = "passes" if banks else "sectors" if report.granule == 32 else f"{report.granule}-byte lines"
    rows = [[f"{space} memory", "array", "", "requests", "elements", "bytes", "distinct", granules,
             "conflicts" if banks else "efficiency", ""]]
    for site, traffic in sites:
        rows.append([str(site.line), site.array or "(unnamed)", site.verb, *_counts(traffic, banks),
                     site.line.text[:SOURCE]])
    for verb in dict.fromkeys(site.verb for site, _ in sites):
        if sum(site.verb == verb for site, _ in sites) > 1:
            rows.append(["total", "", verb, *_counts(report.of(verb=verb, space=space), banks), ""])
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(x.rjust(w) if 3 <= i < 9 else x.ljust(w)
                               for i, (x, w) in enumerate(zip(row, widths))).rstrip() for row in rows)


def _counts(t: Traffic, banks: bool) -> list[str]:
    cost = f"{t.conflicts:,}" if banks else f"{t.efficiency:.0%}"
    return [*(f"{n:,}" for n in (t.requests, t.elements, t.bytes, t.distinct, t.moved)), cost]
