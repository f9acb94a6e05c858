"""Words for what is counted or not installed, and tables in plain text, the same wherever tilewright prints."""

from __future__ import annotations

from collections.abc import Sequence

GAP = 2  # blanks between columns


def plural(count: int, noun: str) -> str:
    """1 case, 2 cases"""
    return f"{count} {noun}{'s' * (count != 1)}"


def size(count: float) -> str:
    """1048576 → 1 MiB"""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


def install(*extras: str) -> str:
    """The command that installs these extras of pyproject.toml, and where it works: tilewright is on no package index,
    so they are installed from a clone."""
    return f"pip install -e '.[{','.join(extras)}]' in the clone of tilewright"


def aligned(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A table as text, columns as wide as they need to be; those with these numbers to the right."""
    widths = [max(len(row[i]) for row in rows if len(row) > i) for i in range(max(map(len, rows)))]
    lines = (
        (" " * GAP).join(f"{cell:{'>' if i in right else '<'}{w}}" for i, (cell, w) in enumerate(zip(row, widths)))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines).rstrip()


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = (), fit: int | None = None) -> str:
    """An aligned table, in as many parts below each other as a width of `fit` needs, each led by the first column."""
    if fit is None:
        return aligned(rows, right)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    parts: list[list[int]] = []
    room = 0
    for i in range(1, len(widths)):
        if not parts or widths[i] + GAP > room:
            parts.append([])
            room = fit - widths[0]
        parts[-1].append(i)
        room -= widths[i] + GAP
    return "\n\n".join(
        aligned([[row[i] for i in (0, *part)] for row in rows], [at for at, i in enumerate((0, *part)) if i in right])
        for part in parts or [[]]
    )
