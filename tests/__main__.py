"""`python -m tests`: ruff, mypy, then pytest, whose summary comes last. Arguments go to pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str) -> int:
    print("$ python -m", *command, flush=True)
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT).returncode


if __name__ == "__main__":
    # All three run even if one fails: whoever reads the log wants every complaint at once.
    # Two processes take half the time of one; more would need more memory than small machines have. The one that is
    # done first takes tests over from the other.
    pytest = ("pytest", "-n", "2", "--dist", "worksteal", *sys.argv[1:])
    sys.exit(max([run("ruff", "check", "."), run("mypy"), run(*pytest)], key=abs))
