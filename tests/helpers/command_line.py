"""The command line in this process: what a command prints, and the line with which it refuses its arguments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from tilewright.lab.cli import app

ROOT = Path(__file__).resolve().parents[2]
runner = CliRunner()


def call(*arguments: object, **environment: str) -> Any:
    """Runs a command: its `exit_code`, its `output`, and of it `stderr`."""
    return runner.invoke(app, [str(argument) for argument in arguments], env=environment)


def said(*arguments: object, status: int = 0, **environment: str) -> str:
    """What a command prints that ends with `status`."""
    done = call(*arguments, **environment)
    assert done.exit_code == status, done.output
    return str(done.output)


def refused(*arguments: object) -> str:
    """The one line that a command refuses its arguments with."""
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    return str(lines[0])


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, sub in getattr(command, "commands", {}).items():
        yield from commands(sub, (*path, name))


COMMANDS = list(commands(get_command(app)))
