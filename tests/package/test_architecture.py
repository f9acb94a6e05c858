"""What keeps the package legible: imports point one way, names are findable, the README's commands are CI's."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import tilewright
from tests.package.test_house import nodes

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tilewright"

# In the order of processing: a module imports from its own line and the lines above it, never from below.
# The longest matching name counts.
LAYERS = [
    ["forks", "inputs", "outputs", "text"],
    ["expressions", "formats", "problem", "attention_problem", "targets"],
    ["shape_list"],
    ["plans"],
    ["rules"],  # NumPy's rules, for arrays wherever they are: no engine
    ["ir"],
    ["atoms"],
    ["kernels"],
    ["blocks"],  # a layer over the one that kernels are written in
    ["simulator", "compiler"],
    ["inspect"],
    ["plans.measured"],  # what was measured: the engine asks
    ["runtime"],
    ["simulator.product"],  # the engine's own jobs, simulated
    ["compiled"],  # what tilewright.compile makes can also be called, and simulated
    ["api"],
    ["nests"],  # users' loops: they become products, or kernels of their own
    ["nests.reading", "nests.products"],
    ["nests.running"],
    ["nests.schedules"],
    ["nests.search"],
    ["nests.optimize"],
    ["checkpoints"],  # weights that other programs stored
    ["torch"],  # the only place that imports it
    ["torch.distributed", "dask", "mpi", "numpy", "jax"],  # tilewright inside programs of others: engines, arrays
    ["lab.drawing.pen"],  # of every page
    ["lab.ladder"],
    ["lab.drawing"],
    ["lab.measure"],  # how to measure: no peers
    ["lab.tuner"],
    ["lab.bench"],
    ["lab.doctor"],
    ["lab.explanation"],
    ["lab.reproduce"],
    ["lab.cli", "lab", "__main__"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer(name: str) -> str | None:
    """The longest name in LAYERS that `name` is or is inside of."""
    parts = name.split(".")
    return next((".".join(parts[:n]) for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in RANK), None)


@cache
def statements() -> dict[str, list[ast.AST]]:
    """What test_house.py looks at, by the file."""
    found: dict[str, list[ast.AST]] = {}
    for path, node in nodes():
        found.setdefault(path, []).append(node)
    return found


@cache
def imports(path: Path) -> list[tuple[int, str]]:
    """(line, absolute module) of every import in a file, wherever it stands; `from p import q` as p.q if that is a
    module of ours: packages on the way to it are not what is used. Names for type checkers alone do not count."""
    package, found = path.relative_to(ROOT).parent.parts, list[tuple[int, str]]()
    for node in statements()[str(path.relative_to(PACKAGE))]:
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            whole = ".".join((*base, *(node.module or "").split("."))).strip(".")
            inner = [f"{whole}.{alias.name}" for alias in node.names]
            found += [(node.lineno, x if x in OURS else whole) for x in inner]
    return found


OURS = {f"tilewright.{module_name(path)}" for path in MODULES}


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_imports_point_one_way():
    wrong = []
    for path in MODULES:
        own = layer(module_name(path))
        assert own, f"{ids(path)} is in no layer of {__file__}"
        for line, name in imports(path):
            other = layer(name.removeprefix("tilewright.")) if name.startswith("tilewright.") else None
            if other and RANK[other] > RANK[own]:
                wrong.append(f"{ids(path)}:{line} imports {name}: {own} stands before {other}")
    assert not wrong, "\n".join(wrong)


def test_ir_is_a_layer_of_its_own():
    """The order above lets kernels import ir; that ir knows no kernel, and plans no ir, follows from it."""
    assert RANK["plans"] < RANK["ir"] < RANK["kernels"] < RANK["compiler"] < RANK["runtime"] < RANK["lab.cli"]


def users_of(*forbidden: str, under: str) -> list[str]:
    return [
        f"{ids(path)}:{line}"
        for path in MODULES
        if module_name(path).split(".")[0] == under
        for line, name in imports(path)
        if name.split(".")[0] in forbidden
    ]


def test_advice_to_install_is_written_once():
    """tilewright is on no package index, so that `pip install 'tilewright[...]'` finds nothing."""
    advice = re.compile(r"pip install\s+[^#`]*tilewright\[|pip install -e")
    texts = [*PACKAGE.rglob("*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]
    found = {ids(path) for path in texts for hit in advice.findall(path.read_text()) if "-e" not in hit}
    assert not found
    assert {ids(path) for path in PACKAGE.rglob("*.py") if "pip install -e" in path.read_text()} == {
        "tilewright/text.py"
    }


def test_extras_that_messages_name_exist():
    pyproject = (ROOT / "pyproject.toml").read_text()
    for path in PACKAGE.rglob("*.py"):
        for named in re.findall(r"\binstall\('([\w-]+)'\)", path.read_text()):
            assert re.search(rf"^{named} = \[", pyproject, re.MULTILINE), f"{ids(path)} advises {named}"


def test_torch_is_imported_in_one_place():
    """Elsewhere a caller with a tensor has imported it; the benchmark, the tuner and the selftest compare with it."""
    users = {ids(path).split("/")[1] for path in MODULES for _, name in imports(path) if name.split(".")[0] == "torch"}
    assert users <= {"torch", "lab"}


def test_plans_are_data():
    assert users_of("llvmlite", "ctypes", under="plans") == []


def test_kernels_read_neither_clock_nor_environment_nor_device():
    assert users_of("time", "os", "subprocess", "platform", "cuda", "hip", "llvmlite", under="kernels") == []


def test_every_file_says_what_it_is_for():
    silent = [ids(path) for path in (*MODULES, PACKAGE / "__init__.py") if not path.read_text().startswith('"""')]
    assert not silent, f"without a docstring: {silent}"


def test_no_module_hides_a_public_function():
    """Importing tilewright.x sets the attribute x of the package: a function of that name would be gone."""
    children = {path.stem if path.suffix else path.name for path in PACKAGE.iterdir()}
    assert children & set(tilewright.__all__) - {"__init__"} == set()


@pytest.mark.parametrize("name", sorted(set(tilewright.__all__) - {"__version__"}))
def test_public_names_resolve(name):
    assert callable(getattr(tilewright, name))


def test_the_readme_gives_the_command_that_ci_runs():
    """CI installs torch as well, of one version."""
    (command,) = re.findall(r"^python3 .*$", (ROOT / ".ci/run").read_text(), re.M)
    command, pinned = re.subn(r" torch==[\d.]+(?= )", "", command)
    assert pinned == 1
    assert f"\n{command}\n" in (ROOT / "README.md").read_text()
