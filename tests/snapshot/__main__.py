"""`python -m tests.snapshot`: compare this checkout with the committed snapshot, and show what differs.

    python -m tests.snapshot                    every product on every target (minutes)
    python -m tests.snapshot groups: zen4       those alone with such words in "target, kind: product"
    python -m tests.snapshot --write            the lines, all or some, are written
    python -m tests.snapshot sample             few lines of every target: what the test compares
    python -m tests.snapshot calls              Python calls of the walks, as a table; with sample, with --write
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
FILES = HERE / "lines"
SAMPLE = 83     # a prime, so that all targets and kinds have their turn


def isolated() -> None:
    """No variable of the caller's counts, nor what is in a cache. Before tilewright is imported."""
    for name in [x for x in os.environ if x.startswith("TILEWRIGHT_")]:
        del os.environ[name]
    os.environ |= {"TILEWRIGHT_CACHE_DIR": tempfile.gettempdir() + "/nothing", "TILEWRIGHT_TUNE_DB": "off",
                   "OMP_NUM_THREADS": "1"}
    warnings.simplefilter("ignore")         # of numbers that no kernel has written


def lines(step: int, words: list[str]) -> dict[str, dict[str, str]]:
    """target → "kind: product" → line; every `step`-th of them, of those with all words. Whole targets are divided
    among the CPUs."""
    from tests.snapshot import recorder
    from tests.snapshot.problems import CALLED, COMPILED
    recorder.warm()
    every = [(name, way, of, target) for way, products in ((recorder.called, CALLED), (recorder.compiled, COMPILED))
             for name, of in products.items() for target in recorder.TARGETS
             if all(word in f"{target}, {name}" for word in words)][::step]

    def of_targets(targets: tuple[str, ...]) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {target: {} for target in targets}
        for name, way, of, target in every:
            if target in targets:
                try:
                    found[target][name] = way(of, target)
                except Exception as error:
                    print(f"{name} on {target}: {error}", file=sys.stderr, flush=True)
                    found[target][name] = f"failed: {type(error).__name__}"
        return found
    parts = len(os.sched_getaffinity(0)) if step == 1 else 1
    results = [recorder.begun(lambda part=part: of_targets(recorder.TARGETS[part::parts])) for part in range(parts)]
    found = {target: rows for result in results for target, rows in result().items()}
    return {target: found[target] for target in recorder.TARGETS}


def stored(target: str) -> dict[str, str]:
    path = FILES / f"{target}.txt"
    return dict(row.split(" = ", 1) for row in path.read_text().splitlines()) if path.exists() else {}


def differences(now: dict[str, dict[str, str]], every: bool) -> list[str]:
    """Lines that differ, by target and kind, as a report."""
    report = []
    for target, rows in now.items():
        before = stored(target)
        names = [x for x in ({**before, **rows} if every else rows) if before.get(x) != rows.get(x)]
        for kind, count in Counter(x.partition(":")[0] for x in names).items():
            report.append(f"{target}, {kind}: {count} lines differ")
            for name in names:
                if name.partition(":")[0] == kind:
                    report += [f"  {name}", f"    - {before.get(name)}", f"    + {rows.get(name)}"]
    return report


def main(words: list[str]) -> int:
    isolated()
    if "calls" in words:
        from tests.snapshot import calls
        return calls.main("--write" in words, "sample" not in words)
    some = [x for x in words if x not in ("sample", "--write")]
    every = not some and "sample" not in words
    now = lines(SAMPLE if "sample" in words else 1, some)
    if "--write" in words:
        FILES.mkdir(exist_ok=True)
        for target, rows in now.items():
            rows = rows if every else stored(target) | rows
            (FILES / f"{target}.txt").write_text("".join(f"{name} = {line}\n" for name, line in rows.items()))
        return 0
    report = differences(now, every)
    print(*report, f"{sum(map(len, now.values()))} lines compared", sep="\n")
    return bool(report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
