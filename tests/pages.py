"""Runs what stands in the code blocks of a documentation page, from top to bottom, in a directory of its own.

    ```python          the code, in one namespace per page
    ```text            behind it: what it prints, to the character
    ```python torch    only where torch is installed
    ```python jax      only where JAX is installed
    ```python cuda     only where there is a CUDA device; elsewhere it is compiled
    ```python excerpt FILE   lines of that file of the repository, in its order; `...` alone stands for lines left out
    ```asm excerpt STEP      lines of the hot loop that this step of the CPU ladder compiles to for AVX2, likewise
    ```console run     a line `$ tilewright ...`, or `$ python FILE` of the repository, and what it prints, blanks at
                       the ends of lines left out
    ```console         lines `$ tilewright ...`; what they print is not compared
    ```sh              commands, one a line, with comments

Commands of the last two kinds are run and must succeed, but for those that measure, those of MEASURING that are not in
QUICK: their options are parsed, and tests/lab runs them at small sizes. Of a command of another program only what it
names in the repository is looked for: a file, a module, an extra. A block of another kind, and code that is indented
instead of fenced, is a mistake.

Lines keep their numbers, so that what the simulator says about them is true of the page.
"""

from __future__ import annotations

import linecache
import os
import re
import runpy
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^(?P<fence>`{3,})(?P<kind>[^\n`]*)\n(?P<body>.*?)^(?P=fence)\n"
                   r"(?:\n^```text\n(?P<output>.*?)^```\n)?", re.DOTALL | re.MULTILINE)
MEASURING = ("bench", "doctor", "tune", "reproduce")    # commands that take long, or find out about the machine
QUICK = (["tune", "show"], ["tune", "export"], ["tune", "import"], ["bench", "--help"], ["reproduce", "cdna"])
DATA = ("text", "json", "toml", "html", "svg", "css")   # blocks that nothing runs
INDENTED = re.compile(r"(?<=\n\n) {4}(?![-*|\d]).*\n", re.MULTILINE)


def outputs(page: Path, cuda: bool) -> Iterator[tuple[tuple[int, int], str, str]]:
    """(where the page has an output, or (-1, -1); what stands there; what is printed), for each block that is run."""
    linecache.checkcache(str(page))
    text = page.read_text()
    if indented := INDENTED.search(BLOCK.sub(lambda x: "\n" * x[0].count("\n"), text)):
        raise SyntaxError(f"{page.name}: code must be in a fenced block: {indented[0].strip()}")
    namespace: dict[str, Any] = {"__name__": page.stem}
    with a_directory():
        for block in BLOCK.finditer(text):
            kind, body, above = block["kind"].split(), block["body"], text.count("\n", 0, block.start("body"))
            match kind:
                case ["python"] | ["python", "torch" | "cuda" | "jax"]:
                    code = compile("\n" * above + body, str(page), "exec")
                    if all(cuda if need == "cuda" else find_spec(need) for need in kind[1:]):
                        printed = StringIO()
                        with redirect_stdout(printed):
                            exec(code, namespace)
                        yield block.span("output"), block["output"] or "", printed.getvalue()
                case ["python", "excerpt", of]:
                    must_hold((ROOT / of).read_text(), body, f"{page.name}:{above}: {of}")
                case ["asm", "excerpt", step]:
                    must_hold(hot_loop(step), body, f"{page.name}:{above}: the hot loop of {step}")
                case ["console", "run"]:
                    program, *arguments = shlex.split(body.partition("\n")[0].removeprefix("$ "))
                    start = block.start("body") + body.index("\n") + 1
                    printed = said_by_file(*arguments) if program == "python" else said_by(arguments)
                    yield (start, block.end("body")), text[start:block.end("body")], printed
                case ["console"] | ["sh"]:
                    lines = [x.removeprefix("$ ") for x in body.splitlines() if kind == ["sh"] or x.startswith("$ ")]
                    for line in lines:
                        for words in each_command(line):
                            if words[0] == "tilewright" and not measures(words[1:]):
                                with few_positions():
                                    said_by(words[1:])
                            else:
                                must_exist(words, f"{page.name}: {line}")
                case [name, *_] if name in DATA or name.startswith("{"):     # what {braces} name Sphinx reads
                    pass
                case _:
                    raise SyntaxError(f"{page.name}:{above}: tests/pages.py knows no block ```{block['kind']}")


def measures(arguments: list[str]) -> bool:
    """Whether a command takes long, or asks this machine; so does `tilewright` alone, which is no command."""
    return not arguments or (arguments[0] in MEASURING and arguments[:2] not in QUICK)


@contextmanager
def a_directory() -> Iterator[None]:
    """Work in a directory with nothing but the examples and the pages, and a place for result files."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as there:
        os.chdir(there)
        os.makedirs("bench/results")
        for name in "examples", "docs":
            os.symlink(ROOT / name, name)
        try:
            yield
        finally:
            os.chdir(here)


@contextmanager
def few_positions() -> Iterator[None]:
    """`show` asks the simulator about two positions of a slider at most, not about all, and about a kernel without one
    of its barriers; tests/lab/show has others."""
    from tilewright.lab.show import record, sliders

    few = {step: {axis: tuple(sorted({values[0], start}))
                  for (axis, values), start in zip(axes.items(), sliders.DEFAULT.get(step, (32, 8, 4)))}
           for step, axes in sliders.PARAMETERS.items()}
    with mock.patch.object(sliders, "PARAMETERS", few), mock.patch.object(record, "MOST_BROKEN", 1):
        yield


def said_by(arguments: list[str]) -> str:
    """What `tilewright` says to these arguments; SyntaxError where it fails."""
    from tests.helpers.command_line import call

    result = call(*arguments)
    if result.exit_code:
        raise SyntaxError(f"tilewright {' '.join(arguments)} fails: {result.output[-500:]} {result.exception or ''}")
    return "".join(f"{line.rstrip()}\n" for line in result.output.splitlines())


def said_by_file(file: str, *arguments: str) -> str:
    """What a script of the repository prints."""
    path = str((ROOT / file).parent)
    with mock.patch.object(sys, "argv", [file, *arguments]), mock.patch.object(sys, "path", [path, *sys.path]), \
         redirect_stdout(StringIO()) as printed:
        runpy.run_path(str(ROOT / file), run_name="__main__")
    return "".join(f"{line.rstrip()}\n" for line in printed.getvalue().splitlines())


def each_command(line: str) -> Iterator[list[str]]:
    """The words of the commands of a line of shell, without what surrounds them."""
    for part in re.split(r"\s+&&\s+|\s*;\s+", re.sub(r"(^|\s)#\s.*", "", line)):
        if words := shlex.split(part):
            yield [Path(words[0]).name if words[0].startswith(".venv/bin/") else words[0], *words[1:]]


def must_exist(words: list[str], where: str) -> None:
    """What a command that is not run names is there: files of the repository, modules, extras, commands and options."""
    from typer.core import TyperCommand

    match words:
        case ["tilewright", *arguments]:
            click = next(x for x in TyperCommand.__mro__ if "invoke" in vars(x))    # Typer has a copy of it
            with mock.patch.object(click, "invoke", return_value=None):
                said_by(arguments)
        case ["python" | "python3" | "nice", "-m", module, *_]:
            assert find_spec(module), f"{where}: no module {module}"
        case ["python" | "python3" | ".ci/run" as program, *rest]:
            assert (ROOT / (rest[0] if program != ".ci/run" else program)).exists(), f"{where}: no such file"
        case ["pip", "install", *names]:
            extras = re.findall(r"^([\w-]+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
            for extra in re.findall(r"[\w-]+", "".join(x for x in names if x.startswith(".["))):
                assert extra in extras, f"{where}: no extra {extra}"


def must_hold(text: str, excerpt: str, where: str) -> None:
    """The excerpt's lines occur in the text in this order; comments, blanks and what `...` stands for left out."""
    left = iter([plain(x) for x in text.splitlines()])
    for line in map(plain, excerpt.splitlines()):
        assert line in ("", "...") or line in left, f"{where} has no line `{line}` there"


def plain(line: str) -> str:
    return " ".join(re.sub(r"(^|\s+)#\s.*", "", line).split())


def hot_loop(step: str) -> str:
    from tilewright import target
    from tilewright.lab.ladder import run

    return run.compiled(step, target("x86-avx2")).loop().text


def rewrite(page: Path) -> None:
    """Write what is printed into the page: python -m tests.pages docs/PAGE.md"""
    found = [(span, printed) for span, _, printed in outputs(page, cuda=False) if span != (-1, -1)]
    text = page.read_text()
    for (start, end), printed in sorted(found, reverse=True):
        text = text[:start] + printed + text[end:]
    page.write_text(text)


def check(page: Path, cuda: bool, equal: Callable[[str, str], None]) -> None:
    for _, written, printed in outputs(page, cuda):
        equal(printed, written)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        rewrite(Path(name).resolve())
        rewrite(Path(name).resolve())  # lines may have moved
