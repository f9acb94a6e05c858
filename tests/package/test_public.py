"""The public interface as one text, public.txt: every public name with its signature, and the command line's options.

    python tests/package/test_public.py       # write it anew, after a change that is meant
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path

import typer

FILE = Path(__file__).with_name("public.txt")  # torch's part stands last: where there is no torch it is left out


def signature(value: object) -> str:
    try:
        return str(inspect.signature(value)) if callable(value) else ""
    except ValueError:      # a function without one, of C
        return "(...)"


def names(module) -> Iterator[str]:
    for name in sorted(module.__all__):
        value = getattr(module, name)
        yield f"{module.__name__}.{name}{signature(value)}"
        if inspect.isclass(value):
            for member in sorted(x for x in vars(value) if x[0] != "_" or x in ("__call__",)):
                function = inspect.getattr_static(value, member)
                function = getattr(function, "__func__", getattr(function, "fget", function))
                yield f"    .{member}{signature(function) if inspect.isfunction(function) else ''}"


def commands(command, path: str = "tilewright") -> Iterator[str]:
    yield path
    for parameter in sorted(command.params, key=lambda p: (p.opts[0][0] == "-", p.name)):
        flags = "/".join((*parameter.opts, *parameter.secondary_opts))
        default = f" = {parameter.default}" if isinstance(parameter.default, (str, int, float)) else ""
        yield f"    {flags}{' required' if parameter.required else default}"
    for name, child in sorted(getattr(command, "commands", {}).items()):
        yield from commands(child, f"{path} {name}")


def text() -> str:
    import tilewright
    from tilewright.lab.cli import app

    lines = [*commands(typer.main.get_command(app)), *names(tilewright)]
    if importlib.util.find_spec("torch"):
        import tilewright.torch

        lines += names(tilewright.torch)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def test_the_public_interface_is_the_one_that_is_written_down():
    now, written = text(), FILE.read_text()
    if not importlib.util.find_spec("torch"):
        written = written[:len(now)]
    assert now == written, "the public interface has changed; if it is meant to: python tests/package/test_public.py"


if __name__ == "__main__":
    FILE.write_text(text())
