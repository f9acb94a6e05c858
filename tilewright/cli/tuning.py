"""tilewright tune: measure plans for a problem and keep the best."""

from __future__ import annotations

import typer

app = typer.Typer(help="Measure the most promising plans for a problem, and use the fastest from then on.")


@app.command("show")
def show() -> None:
    """Print the stored results."""
