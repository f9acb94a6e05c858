"""Result files of bench/results belong to commits. `python -m tests.package.test_results` lists those that do not, and
files that no page, script or test names.

tilewright bench and the scripts refuse to write one from a checkout with changes (results.check_tree); older files are
counted here, and the counts may only fall: a file that is measured again writes the new number.
"""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench/results"
MOST = {"from a checkout with changes": 0, "without a commit": 1}     # not more than
QUOTING = (".md", ".py", ".ipynb", ".rst", ".toml")


@cache
def commits() -> dict[str, str | None]:
    """What each JSON file says of its commit: None if it says nothing."""
    found = {}
    for path in sorted(RESULTS.glob("*.json")):
        record = json.loads(path.read_text())
        found[path.name] = record.get("commit") if isinstance(record, dict) else None
    return found


def without_a_commit() -> dict[str, list[str]]:
    return {"from a checkout with changes": [x for x, commit in commits().items() if (commit or "").endswith("-dirty")],
            "without a commit": [x for x, commit in commits().items() if not commit]}


def unnamed() -> list[str]:
    """Files whose name is in no page, script or test, nor covered by a pattern (`h200_random_*.json`) there."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True).stdout.splitlines()
    words = "\n".join((ROOT / x).read_text() for x in listed
                      if x.endswith(QUOTING) and x != "CHANGELOG.md" and (ROOT / x).exists())
    names = {*re.findall(r"[\w*]+\.(?:jsonl\.xz|jsonl|json|png)\b", words)}
    patterns = [re.compile(re.escape(x).replace(r"\*", r"\w*")) for x in names if "*" in x.partition(".")[0][2:]]
    return [x.name for x in sorted(RESULTS.iterdir())
            if x.name not in names and not any(p.fullmatch(x.name) for p in patterns)]


@pytest.mark.parametrize("what", MOST)
def test_no_more_files_are_of_no_commit(what):
    assert len(without_a_commit()[what]) <= MOST[what], f"{what}, which may only fall: {without_a_commit()[what]}"


def test_every_file_is_named_somewhere():
    """What nobody reads is deleted; git keeps it."""
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    assert unnamed() == []


if __name__ == "__main__":
    for what, files in {**without_a_commit(), "named nowhere": unnamed()}.items():
        print(f"{what}: {len(files)}", *files, sep="\n    ")
