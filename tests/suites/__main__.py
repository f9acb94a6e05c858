"""Runs NumPy's own tests of matmul and einsum with our functions in place of its; exit status 1 on a failure that
`differences.txt` does not list, with the reason, or on one in it that has gone.

    python -m tests.suites [numpy]
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
SUITES = {"numpy": ("_core/tests/test_einsum.py", "_core/tests/test_multiarray.py")}
ABOUT = "einsum or Einsum or matmul or MatMul or dot or vecdot or matvec"


def failures(package: str, files: tuple[str, ...]) -> tuple[set[str], str]:
    """Names of the tests that fail, and pytest's last line."""
    spec = find_spec(package)
    where = Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None
    if where is None:
        return {f"{package} is not installed"}, ""
    given = [str(where / x) for x in files if (where / x).exists()]
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-rfE", "-n0", "-p", "tests.suites.in_place", "-c",
                          "/dev/null", "--tb=no", "--rootdir", str(where), "-k", ABOUT, *given],
                         cwd=HERE.parent.parent, capture_output=True, text=True)
    found = re.findall(r"^(?:FAILED|ERROR) \S*?([^/\s]+)(?: - .*)?$", run.stdout, re.M)
    last = run.stdout.strip().rpartition("\n")[2] or run.stderr[-500:]
    return {f"{package}: {x}" for x in found} | (
        {f"{package}: exit status {run.returncode}"} if run.returncode > 1 else set()), last


if __name__ == "__main__":
    known = {line.partition(" # ")[0].strip() for line in (HERE / "differences.txt").read_text().splitlines() if line}
    status = 0
    for package in sys.argv[1:] or SUITES:
        found, last = failures(package, SUITES[package])
        expected = {x for x in known if x.startswith(f"{package}: ")}
        print(f"{package}: {last}")
        for name in sorted(found - expected):
            print(f"  undocumented: {name}")
        for name in sorted(expected - found):
            print(f"  no longer a difference: {name}")
        status |= found != expected
    sys.exit(status)
