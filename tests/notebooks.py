"""Runs the notebooks of docs/notebooks in this process, or by a kernel of Jupyter, which writes their outputs:

    python -m tests.notebooks [docs/notebooks/NAME.ipynb ...]
"""

from __future__ import annotations

import ast
import json
import linecache
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs/notebooks"
ANSWER = re.compile(r'^exercises\.check\("(?P<name>[\w.]+)"', re.MULTILINE)     # the last line of an exercise's cell


def notebooks() -> list[Path]:
    return sorted(DOCS.glob("*.ipynb"))


def cells(path: Path) -> Iterator[tuple[str, str, str]]:
    """(kind, source, the text that it put out) of each cell."""
    for cell in json.loads(path.read_text())["cells"]:
        said = ""
        for output in cell.get("outputs", ()):
            assert output["output_type"] != "error", output
            data = output.get("data", {})
            if not any(kind.startswith("image/") for kind in data):
                said += "".join(output.get("text", ())) + "".join(data.get("text/plain", ()))
        yield cell["cell_type"], "".join(cell["source"]), said


def solutions(path: Path) -> dict[str, str]:
    """The answer to each exercise of a notebook, as its cell would have it."""
    parts = re.split(r"^# %% ([\w.]+).*\n", (path.parent / "solutions" / f"{path.stem}.py").read_text(),
                     flags=re.MULTILINE)
    return dict(zip(parts[1::2], (x.strip() for x in parts[2::2])))


def run(path: Path, answers: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """(source, what it must put out, what it puts out) of each cell with code. `answers` take the place of the dots."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, (kind, source, wanted) in enumerate(cells(path)):
        if kind == "code":
            source = answered(source, answers)
            yield source, wanted, executed(source, f"/ipykernel_0/{number}.py", namespace)


def answered(source: str, answers: Mapping[str, str]) -> str:
    """A cell, with the answer in it if it is that of an exercise."""
    exercise = ANSWER.search(source)
    if exercise and exercise["name"] in answers:
        return f"{answers[exercise['name']]}\n\n{source[exercise.start():]}"
    return source


def executed(source: str, file: str, namespace: dict[str, Any]) -> str:
    """What a cell prints, and the text of its last expression."""
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    tree, printed = ast.parse(source), StringIO()
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";") else None
    with redirect_stdout(printed):
        exec(compile(tree, file, "exec"), namespace)
        value = None if last is None else eval(compile(ast.Expression(last.value), file, "eval"), namespace)
    return printed.getvalue() + ("" if value is None or hasattr(value, "_repr_svg_") else repr(value))


def rewrite(path: Path) -> None:
    """Let Jupyter run a notebook, and keep its outputs."""
    import nbformat

    book = by_jupyter(path, {})
    for number, cell in enumerate(book.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
    book.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
                     "language_info": {"name": "python"}}
    path.write_text(nbformat.writes(book) + "\n")


def by_jupyter(path: Path, answers: Mapping[str, str]) -> Any:
    """The notebook, run by a kernel in a process of its own. An error in a cell is raised."""
    import nbclient
    import nbformat

    book = nbformat.read(path, as_version=4)
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.source = answered(cell.source, answers)
    os.environ |= {"PYTHONPATH": str(DOCS.parents[1])}
    nbclient.NotebookClient(book, timeout=120, record_timing=False).execute()
    return book


if __name__ == "__main__":
    import sys

    for path in [Path(x).resolve() for x in sys.argv[1:]] or notebooks():
        rewrite(path)
