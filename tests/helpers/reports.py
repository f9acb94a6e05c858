"""A report of the benchmark as a terminal shows it."""

from __future__ import annotations

import io

from rich.console import Console

from tilewright.lab.bench import report
from tilewright.lab.bench.results import Report

QUIET = Console(quiet=True)


def shown(found: Report, width: int = 200) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    report.show(found, console)
    return console.export_text()
