"""Runs other packages' own tests with our functions: NumPy's of matmul and einsum, opt_einsum's, and PyTorch's samples
of operators that multiply matrices. The exit status is 1 on a failure that `differences.txt` does not list, with the
reason, or on one in it that has gone.

    python -m tests.suites [numpy] [opt_einsum] [torch]
    python -m tests.suites installed.numpy installed.scipy installed.sklearn

The latter run whole folders with tilewright.numpy installed: TILEWRIGHT_TAKES=all takes every call that can be, none
installs nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent


class Suite(NamedTuple):
    files: tuple[Path | str, ...]       # in the package's folder
    options: tuple[str, ...] = ()       # of pytest


# without NumPy's tests that need gigabytes
INSTALLED = ("-p", "tests.suites.installed", "-m", "not slow", "-k", "not huge")
SUITES = {
    "numpy": Suite(("_core/tests/test_einsum.py", "_core/tests/test_multiarray.py"),
                   ("-p", "tests.suites.in_place", "-k",
                    "einsum or Einsum or matmul or MatMul or dot or vecdot or matvec")),
    "opt_einsum": Suite(("tests",), ("-p", "tests.suites.in_opt_einsum")),
    "torch": Suite((HERE / "torch_samples.py",)),
    "installed.numpy": Suite(tuple(f"_core/tests/test_{x}.py" for x in (
        "einsum", "multiarray", "numeric", "overrides", "ufunc")) + (
        "linalg/tests", "matrixlib/tests", "ma/tests", "polynomial/tests"), INSTALLED),
    "installed.scipy": Suite(("linalg/tests",), INSTALLED),
    "installed.sklearn": Suite(("linear_model/tests", "decomposition/tests"), INSTALLED),
}


def failures(package: str, suite: Suite) -> tuple[set[str], str]:
    """Names of the tests that fail, and pytest's last line."""
    spec = find_spec(package.rpartition(".")[2])
    where = Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None
    if where is None:
        return {f"{package} is not installed"}, ""
    given = [str(where / x) for x in suite.files if (where / x).exists()]
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-rfE", "-n0", "-p", "no:cacheprovider", "-c",
                          "/dev/null", "--tb=no", "--rootdir", str(Path(given[0]).parent), *suite.options, *given],
                         cwd=HERE.parent.parent, capture_output=True, text=True)
    found = re.findall(r"^(?:FAILED|ERROR) \S*?([^/\s]+)(?: - .*)?$", run.stdout, re.M)
    last = run.stdout.strip().rpartition("\n")[2] or run.stderr[-500:]
    return {f"{package}: {x}" for x in found} | (
        {f"{package}: exit status {run.returncode}"} if run.returncode > 1 else set()), last


if __name__ == "__main__":
    known = {line.partition(" # ")[0].strip() for line in (HERE / "differences.txt").read_text().splitlines() if line}
    status = 0
    for package in sys.argv[1:] or [x for x in SUITES if not x.startswith("installed")]:
        found, last = failures(package, SUITES[package])
        expected = {x for x in known if x.startswith(f"{package}: ")}
        print(f"{package}: {last}")
        for name in sorted(found - expected):
            print(f"  undocumented: {name}")
        for name in sorted(expected - found):
            print(f"  no longer a difference: {name}")
        status |= found != expected
    sys.exit(status)
