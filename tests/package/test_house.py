"""Counts of what a stranger stumbles over. They may only fall: a change that raises one finds another way, and a change
that lowers one writes the new number here. `python -m tests.package.test_house` prints them."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "tilewright"

# Not more than; lines are rounded up.
MOST = {
    "records with a field of epilogue": 6,
    "records with a field of prologue": 6,
    "records with a field of semiring": 5,
    "records with a field of invariant": 3,
    "records with a field of scales": 10,
    "records with a field of groups": 6,
    "records with a field of batch": 6,
    "records with a field of weights": 1,
    "files named after epilogue": 8,
    "folders with a file named after epilogue": 6,
    "files named after prologue": 7,
    "folders with a file named after prologue": 6,
    "files named after semiring": 3,
    "folders with a file named after semiring": 3,
    "files named after invariant": 1,
    "folders with a file named after invariant": 1,
    "files named after scales": 6,
    "folders with a file named after scales": 5,
    "files named after groups": 10,
    "folders with a file named after groups": 7,
    "files named after weights": 8,
    "folders with a file named after weights": 4,
    "files named after contraction": 7,
    "folders with a file named after contraction": 6,
    "files named after complex": 5,
    "folders with a file named after complex": 4,
    "files named after packed": 2,
    "folders with a file named after packed": 2,
    "functions called of": 2,
    "functions called at": 1,
    "functions called on": 0,
    "functions called made": 0,
    "functions called kept": 0,
    "functions called found": 0,
    "docstrings that begin with Of": 0,
    "docstrings that begin with The same": 0,
    "docstrings that begin with That": 0,
    "docstrings that begin with Those": 0,
    "docstrings that begin with As": 0,
    "import cycles": 0,
    "modules in import cycles": 0,
    "lines of the longest function": 119,
    "lines of the body of matmul": 31,
    "functions over 60 lines": 36,
    "files over 400 lines": 0,
    "lines of the library": 74113,
    "lines of loop nests": 12291,
    "lines of the lab": 28243,
    "lines of other engines": 8309,
}
OTHERS = "dask/", "mpi/", "numpy/", "jax/", "checkpoints/", "torch/distributed/"  # what serves programs of others
NESTS = "nests/"         # the folder of users' loops, counted by itself: it is no part of how products are made

PARTS = "the library", "loop nests", "the lab", "other engines"

FIELDS = ("epilogue", "prologue", "semiring", "invariant", "scales", "groups", "batch", "weights")
# what a file's name says of the feature that it is for
NAMED = {"epilogue": r"epilogue|fus(ed|ing|ion)", "prologue": r"prologue|prepar|transform", "semiring": "semiring",
         "invariant": "invariant|reproducible", "scales": r"scal(es|ed|ing)", "groups": "group", "weights": "weight",
         "contraction": r"contract|scattered|as_matmul", "complex": "complex", "packed": r"packed$"}
VAGUE = ("of", "at", "on", "made", "kept", "found")      # no names of functions
LEANING = ("Of ", "The same", "That ", "Those ", "As ")  # docstrings that need the definition above them
LONG_FILE = 400


Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """(path, node) of all modules, classes, functions and imports but those for type checkers alone."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        left: list[ast.AST] = [ast.parse(path.read_text())]
        while left:         # statements alone: expressions are most of a tree, and hold none of these
            x = left.pop()
            if isinstance(x, ast.If) and ast.unparse(x.test) == "TYPE_CHECKING":
                left += x.orelse
                continue
            if isinstance(x, ast.Module | ast.ClassDef | Function | ast.Import | ast.ImportFrom):
                found.append((str(path.relative_to(PACKAGE)), x))
            for name in ("body", "orelse", "finalbody", "handlers", "cases"):
                left += getattr(x, name, ()) if isinstance(getattr(x, name, ()), list) else ()
    return found


def in_lab(path: str) -> bool:
    return path.startswith("lab/")


def part(path: str) -> str:
    return PARTS[3 if path.startswith(OTHERS) else 2 if in_lab(path) else 1 if path.startswith(NESTS) else 0]


def definitions(kinds: type, lab: bool = True) -> Iterator[ast.AST]:
    """Nodes of these kinds, of the library and of the lab."""
    return (x for path, x in nodes() if isinstance(x, kinds) and (lab or not in_lab(path)))


def is_record(x: ast.ClassDef) -> bool:
    return any(re.search(r"\b(dataclass|NamedTuple)\b", ast.unparse(y)) for y in (*x.decorator_list, *x.bases))


@cache
def fields() -> list[list[str]]:
    """The names of the fields of each record."""
    return [[ast.unparse(y.target) for y in x.body if isinstance(y, ast.AnnAssign)]
            for x in definitions(ast.ClassDef, lab=False) if is_record(x)]


def records_with(word: str) -> int:
    """Records that have a field whose name has this word."""
    return sum(any(word in name for name in names) for names in fields())


def cycles() -> list[set[str]]:
    """Modules that import each other, wherever the imports stand."""
    def module(path: str) -> str:
        return "tilewright." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    names = {module(path) for path, _ in nodes()}
    uses: dict[str, set[str]] = defaultdict(set)
    for path, x in nodes():
        if isinstance(x, ast.Import):
            uses[module(path)] |= {y.name for y in x.names} & names
        elif isinstance(x, ast.ImportFrom) and x.module:
            inner = {f"{x.module}.{y.name}" for y in x.names}
            uses[module(path)] |= (inner if inner <= names else inner | {x.module}) & names
    reached = {}
    for name in names:
        seen, left = set(), [name]
        while left:
            new = uses[left.pop()] - seen
            seen |= new
            left += new
        reached[name] = seen
    every = {frozenset(y for y in reached[x] if x in reached[y]) for x in names if x in reached[x]}
    return [set(x) for x in every if len(x) > 1]


def lines(x: ast.AST) -> int:
    return x.end_lineno - x.lineno + 1


def body_of_matmul() -> int:
    (function,) = (x for path, x in nodes() if path == "api/products.py" and getattr(x, "name", "") == "matmul")
    return function.end_lineno - function.body[0].end_lineno


@cache
def counts() -> dict[str, int]:
    """What the table holds, as it is now."""
    functions = [*definitions(Function)]
    texts = [ast.get_docstring(x, clean=False) or "" for x in definitions(Function | ast.ClassDef | ast.Module)]
    sizes = {path: len((PACKAGE / path).read_text().splitlines()) for path in dict(nodes())}
    names = Counter(x.name for x in functions)
    found = {f"records with a field of {word}": records_with(word) for word in FIELDS}
    for feature, pattern in NAMED.items():
        paths = [Path(x) for x in sizes if not in_lab(x) and re.search(pattern, Path(x).stem)]
        found[f"files named after {feature}"] = len(paths)
        found[f"folders with a file named after {feature}"] = len({x.parent for x in paths})
    found |= {f"functions called {name}": names[name] for name in VAGUE}
    found |= {f"docstrings that begin with {start.strip()}": sum(x.startswith(start) for x in texts)
              for start in LEANING}
    return found | {
        "import cycles": len(cycles()), "modules in import cycles": len(set(chain(*cycles()))),
        "lines of the longest function": max(map(lines, functions)),
        "lines of the body of matmul": body_of_matmul(),
        "functions over 60 lines": sum(lines(x) > 60 for x in functions),
        f"files over {LONG_FILE} lines": sum(x > LONG_FILE for x in sizes.values()),
        **{f"lines of {name}": sum(x for path, x in sizes.items() if part(path) == name) for name in PARTS},
    }


@pytest.mark.parametrize("what", MOST)
def test_no_count_rises(what):
    now = counts()[what]
    assert now <= MOST[what], f"{what}: {now}, and the table of {__file__} allows {MOST[what]}, which may only fall"


def test_every_count_is_in_the_table():
    assert list(MOST) == list(counts())


if __name__ == "__main__":
    for what, now in counts().items():
        print(f'    "{what}": {now},')
