"""What a type checker is told of the products (api/typed.pyi), and that it is what the functions take."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright as tw

PACKAGE = Path(tw.__file__).parent
STUB = ast.parse((PACKAGE / "api/typed.pyi").read_text())
FUNCTIONS = sorted({x.name for x in STUB.body if isinstance(x, ast.FunctionDef)})
NUMPYS = {"dtype", "casting", "order", "axes", "axis", "subok", "signature"}   # of np.matmul: matmul(**numpys)
CLASSES = {x.name: x for x in STUB.body if isinstance(x, ast.ClassDef)}

# of the package only what the program looks at: mypy takes ten seconds for all
CONFIG = """
[mypy]
ignore_missing_imports = True
follow_imports = silent
[mypy-tilewright.*]
follow_imports = skip
[mypy-tilewright,tilewright.api,tilewright.api.typed,tilewright.api.semirings,tilewright.expressions.*]
follow_imports = silent
"""
STUBS = {
    "torch/__init__.pyi": "class Tensor: ...\n",
    "numpy/typing.pyi": """from typing import Any, TypeVar
from numpy import ndarray
T = TypeVar("T")
ArrayLike = Any
NDArray = ndarray[Any, T]
""",
    "numpy/__init__.pyi": """from typing import Any, Generic, TypeVar
S = TypeVar("S")
T = TypeVar("T")
class ndarray(Generic[S, T]): ...
def ones(shape: Any) -> ndarray[int, float]: ...
def __getattr__(name: str) -> Any: ...
"""}
PROGRAM = """
import numpy as np
from torch import Tensor
import tilewright as tw

a, t = np.ones((4, 4)), Tensor()
reveal_type(tw.matmul(a, a, threads=1))             # ndarray
reveal_type(tw.matmul(t, t))                        # torch.Tensor
reveal_type(tw.matmul(a, a, epilogue=tw.gelu))      # Any
reveal_type(tw.matmul([[1]], [[2]]))                # Any
reveal_type(tw.gemm(1, a, a, 0, a))                 # ndarray
reveal_type(tw.gemm(1, t, t, 0, t))                 # torch.Tensor
reveal_type(tw.einsum("ij,jk->ik", a, a))           # ndarray
reveal_type(tw.einsum("ij,jk->ik", t, t))           # torch.Tensor
reveal_type(tw.einsum(a, [0, 1], a, [1, 2]))        # Any
reveal_type(tw.tensordot(a, a, 1))                  # ndarray
reveal_type(tw.grouped_matmul(t, t, t))             # torch.Tensor
tw.matmul(a, a, thread=1)                           # "thread"
tw.gemm(1, a, a, 0, a, apha=1)                      # "apha"
tw.einsum("ij,jk", a, a, otu=a)                     # "otu"
tw.tensordot(a, a, axis=1)                          # "axis"
tw.grouped_matmul(a, a, [4], betta=1)               # "betta"
tw.contract(tw.gelu, a, a, reduc="sum")             # "reduc"
tw.matnul(a, a)                                     # "matnul"
"""


def members(name: str) -> set[str]:
    """The keywords of a TypedDict and of those it extends."""
    found = CLASSES[name]
    inherited = [members(x.id) for x in found.bases if isinstance(x, ast.Name) and x.id in CLASSES]
    return {x.target.id for x in found.body if isinstance(x, ast.AnnAssign)}.union(*inherited)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_stub_has_the_parameters_of_the_function(name):
    """Of its last overload, which takes everything."""
    args = [x for x in STUB.body if isinstance(x, ast.FunctionDef) and x.name == name][-1].args
    options = members(args.kwarg.annotation.slice.id)
    real = inspect.signature(getattr(tw, name)).parameters.values()
    placed = [x.name for x in real if x.kind in (x.POSITIONAL_OR_KEYWORD, x.VAR_POSITIONAL)]
    assert [x.arg for x in args.args + ([args.vararg] if args.vararg else [])] == placed
    keywords = {x.name for x in real if x.kind == x.KEYWORD_ONLY} | (NUMPYS if name == "matmul" else set())
    assert options | {x.arg for x in args.kwonlyargs} == keywords


def test_arrays_give_arrays_tensors_tensors_and_a_misspelt_keyword_is_an_error(tmp_path):
    """torch and NumPy are stubs of one class here: mypy takes half a minute for torch, and four seconds for NumPy."""
    pytest.importorskip("mypy")
    for name, text in STUBS.items():
        (tmp_path / "stubs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "stubs" / name).write_text(text)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "mypy.ini").write_text(CONFIG)
    done = subprocess.run([sys.executable, "-m", "mypy", "program.py"], capture_output=True, text=True, cwd=tmp_path,
                          env={"MYPYPATH": f"{PACKAGE.parent}:{tmp_path / 'stubs'}"})
    said: dict[int, str] = {}
    for line, words in re.findall(r"^program.py:(\d+): (?:note|error): (.*)", done.stdout, re.MULTILINE):
        said[int(line)] = said.get(int(line), "") + words
    for number, line in enumerate(PROGRAM.splitlines(), 1):
        if wanted := line.partition("  # ")[2]:
            assert wanted in said.get(number, "nothing was said"), line
            assert ("Any" not in wanted) <= ('type is "Any"' not in said[number])


def test_dir_is_the_public_interface():
    assert dir(tw) == tw.__all__
