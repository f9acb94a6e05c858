"""Programs in a Python process of their own, with the `sys.path` of this one; further options are variables of its
environment."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path


def start(program: str, *arguments: object, cwd: str | Path | None = None, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)], text=True, cwd=cwd,
                            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(program: str, *arguments: object, cwd: str | Path | None = None, timeout: float = 600.0,
        **variables: str) -> subprocess.CompletedProcess[str]:
    process = start(program, *arguments, cwd=cwd, **variables)
    try:
        out, errors = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def printed(program: str, *arguments: object, **options: object) -> str:
    """What it prints; it must end with status 0."""
    done = run(program, *arguments, **options)      # type: ignore[arg-type]
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
