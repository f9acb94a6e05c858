#!/usr/bin/env -S uv run --script
# /// script
# dependencies = ["nox>=2025.10.14"]
# ///
"""What CI runs, each in an environment of its own: `nox` lists and runs it. `python -m tests` takes the current one."""

from pathlib import Path

import nox

nox.needs_version = ">=2025.10.14"
nox.options.default_venv_backend = "uv|virtualenv"


@nox.session
def lint(session: nox.Session) -> None:
    """Run ruff and mypy."""
    session.install("-e.", *nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "lint"))
    session.run("ruff", "check", ".")
    session.run("mypy")


@nox.session(python=["3.10", "3.11", "3.12", "3.13", "3.14"])
def tests(session: nox.Session) -> None:
    """Run all tests; arguments after -- go to pytest."""
    session.install("-e.[test]")
    session.run("python", "-m", "tests", *session.posargs)


@nox.session(default=False)
def wheel(session: nox.Session) -> None:
    """Build sdist and wheel."""
    session.install("build", "twine")
    session.run("python", "-m", "build")
    session.run("twine", "check", "--strict", *map(str, Path("dist").iterdir()))


if __name__ == "__main__":
    nox.main()
