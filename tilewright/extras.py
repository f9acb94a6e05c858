"""What to type for an optional dependency. tilewright is on no package index: its extras are installed from a clone."""

from __future__ import annotations


def install(*extras: str) -> str:
    """The command that installs these extras of pyproject.toml, and where it works."""
    return f"pip install -e '.[{','.join(extras)}]' in the clone of tilewright"
