"""`python -m tests`: ruff, then pytest, and mypy beside it, whose complaints come last. Arguments go to pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str) -> int:
    print("$ python -m", *command, flush=True)
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT).returncode


if __name__ == "__main__":
    # Some hundred processes are started, each of which would compile the package's Python otherwise, and each worker
    # the tests'.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # All three run even if one fails: whoever reads the log wants every complaint at once.
    # Two processes take half the time of one; more would need more memory than small machines have. The one that is
    # done first takes tests over from the other.
    pytest = ("pytest", "-n", "2", "--dist", "worksteal", *sys.argv[1:])
    codes = [run("ruff", "check", ".")]
    with TemporaryFile("w+") as said:       # mypy alone would leave a CPU without work for half a minute
        types = subprocess.Popen([sys.executable, "-m", "mypy"], cwd=ROOT, stdout=said, stderr=subprocess.STDOUT)
        codes += [run(*pytest), types.wait()]
        said.seek(0)
        print("$ python -m mypy", said.read(), sep="\n", end="")
    sys.exit(max(codes, key=abs))
