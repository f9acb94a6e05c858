"""What all commands have in common on top of typer: help that wraps, negative numbers as arguments, how commands end.

    App       a typer.Typer whose commands and groups are these
    Command   one command
    Group     commands under one name; its `main` is what the process runs
    errors    errors as one line and an exit status; every group runs its commands in it
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

BAD_INPUT = 2  # the exit status of anything the caller can put right, as of a mistyped option
INTERRUPTED = 130  # what a shell shows for SIGINT
CLOSED = 141  # and for SIGPIPE: the reader of a pipe is gone
NEGATIVE = re.compile(r"-\d[\d.e+-]*")
JSON = "--json"  # the one option whose value may be left out: see `with_values`


class BadInput(Exception):
    """Something the caller can put right; the message is one line and says what."""


@contextmanager
def errors(kept: Callable[[], str] = lambda: "nothing was written") -> Iterator[None]:
    """Turn what bad input raises into one line on standard error and exit status 2, and Ctrl-C into one line that says
    what was `kept`, and status 130. A closed pipe ends the command quietly, with status 141.

    TILEWRIGHT_TRACEBACK=1 lets the exception through, with its traceback, for reports of bugs.
    """
    try:
        yield
    except typer.Exit:  # itself a RuntimeError
        raise
    except BrokenPipeError:
        silence()
        raise typer.Exit(CLOSED) from None
    except KeyboardInterrupt:
        typer.echo(f"tilewright: interrupted; {kept()}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except (BadInput, ValueError, TypeError, OSError, RuntimeError) as error:
        if os.environ.get("TILEWRIGHT_TRACEBACK"):
            raise
        typer.echo(f"tilewright: {' '.join(_sentence(error).split())}", err=True)
        raise typer.Exit(BAD_INPUT) from None


def _sentence(error: Exception) -> str:
    """Its message; of the operating system's errors without the number."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}"
    return str(error)


def wrapped(text: str | None) -> str | None:
    """Help without the line breaks of its source inside a paragraph, so that any width of terminal wraps it well.

    Paragraphs whose lines are indented stay as they are.
    """
    if text is None:
        return None
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(p if p.startswith(" ") else " ".join(p.split()) for p in paragraphs)


def with_values(arguments: list[str]) -> list[str]:
    """`--json` as the last argument, or in front of another option, is `--json -`: standard output."""
    values: list[str] = []
    for i, argument in enumerate(arguments):
        values.append(argument)
        following = arguments[i + 1] if i + 1 < len(arguments) else "--"
        if argument == JSON and following.startswith("-") and following != "-" and not NEGATIVE.fullmatch(following):
            values.append("-")
    return values


class _Common:
    """Methods of commands and groups."""

    def __init__(self, *arguments: Any, help: str | None = None, **options: Any) -> None:
        super().__init__(*arguments, help=wrapped(help), **options)  # type: ignore[call-arg]

    def get_params(self, ctx: Any) -> list[Any]:
        params = list(super().get_params(ctx))  # type: ignore[misc]
        for parameter in params:
            if getattr(parameter, "is_flag", False) and parameter.metavar is None:
                parameter.metavar = ""  # a flag takes no value, and typer's help would say <bool>
        return params

    def format_help(self, ctx: Any, formatter: Any) -> None:
        try:
            super().format_help(ctx, formatter)  # type: ignore[misc]
        except SystemExit:  # rich's answer to a closed pipe
            raise typer.Exit(CLOSED) from None


class Command(_Common, TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if any(map(NEGATIVE.fullmatch, args)):
            ctx.ignore_unknown_options = True  # -5 is a size that is refused in a sentence, not an option
        return list(super().parse_args(ctx, with_values(args)))


class Group(_Common, TyperGroup):
    kept = "nothing was written"  # when Ctrl-C ends a command that says nothing else

    def invoke(self, ctx: Any) -> Any:
        with errors(lambda: self.kept):
            return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return list(super().parse_args(ctx, with_values(args) if self.invoke_without_command else args))

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Runs the command, as typer's. A pipe that is closed early (`| head`) ends the command quietly, with status
        141."""
        try:
            try:
                return super().main(*arguments, **options)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            silence()
            raise SystemExit(CLOSED) from None


class App(typer.Typer):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"cls": Group, **options})

    def command(self, name: str | None = None, **options: Any) -> Any:
        return super().command(name, **{"cls": Command, **options})


def silence() -> None:
    """Discard what is still in the buffers of standard output and standard error, which has no reader."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (BrokenPipeError, ValueError):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
