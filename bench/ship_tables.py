"""Makes the tables of measured plans that come with tilewright, on the machine they are for.

    python bench/ship_tables.py --quick         # squares of both formats, about ten minutes on two cores
    python bench/ship_tables.py                 # also skinny problems, layouts and awkward sizes

Every problem is tuned (what this commit has already tuned is not done again), then tilewright with these results is
compared with every BLAS that is installed. plans/tables/ gets a row per problem and kind of machine: the plan, its
figures, how it stands against the fastest other library, machine, date and commit. Where nothing beat the model's
choice its row has the role "model" and is not used: it says what was measured, and leaves the model free to improve.
"""
from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tilewright.lab.bench import session
from tilewright.lab.bench.cases import AVX2, NATIVE, Case, Job
from tilewright.lab.bench.suites import shapes as suites
from tilewright.lab.cli import command, common
from tilewright.lab.measure import machine
from tilewright.lab.measure.measure import Rules
from tilewright.lab.tuner import search
from tilewright.plans import shape_of
from tilewright.plans.choose import choose
from tilewright.plans.measured import choice, store
from tilewright.plans.measured.row import Row
from tilewright.plans.model import cost
from tilewright.problem import Gemm
from tilewright.targets import CpuTarget, detect
from tilewright.text import plural

QUICK, FULL = ("square",), ("square", "skinny", "layouts", "awkward")
BUILTIN = 0.9                   # a ratio below: the builtin takes the problem, faster than any plan through Python
CALLS = 40                      # that a problem's tuning may take, beside a fixed time


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Only the square problems, and less time for each.")] = False,
    suite: Annotated[list[str] | None, typer.Option("--suite", "-s", metavar="LIST")] = None,
    dtype: Annotated[list[str] | None, typer.Option("--dtype", "-d", metavar="LIST", show_default="f32,f64")] = None,
    threads: Annotated[list[str] | None, typer.Option(metavar="LIST", show_default="1,all")] = None,
    target: common.TargetName = "native",
    seconds: Annotated[float | None, typer.Option(help="For each problem, in addition to 40 calls.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Repeat problems that this commit has tuned already.")] = False,
    vendor: Annotated[bool, typer.Option(help="Compare with other libraries.")] = True,
) -> None:
    """Tune, compare, and write plans/tables/TARGET.jsonl."""
    with command.errors():
        from tilewright.lab.bench import results
        from tilewright.lab.bench.commands import all_threads
        results.check_tree()
        chip = common.target(target)
        chip.require_runnable()
        cases = suites.cases(common.listed(suite, list(QUICK if quick else FULL)), common.listed(dtype, ["f32", "f64"]))
        problems = list(dict.fromkeys(case.problem for case in cases))
        counts = common.numbers(threads, ["1", "all"], "--threads", {"all": all_threads()})
        rows = tune_all(problems, counts, chip, seconds or (4.0 if quick else 10.0), again)
        if vendor:
            rows = compare(rows, counts, chip)
        file = choice.TABLES / f"{chip.name}.jsonl"
        write(rows, file)
        better = [row for _, row in rows if row.best]
        print(f"{file}: {len(rows)} rows written, {len(better)} of them better than the model's choice")


def tune_all(problems: Sequence[Gemm], threads: Iterable[int], target: CpuTarget, seconds: float, again: bool = False
             ) -> list[tuple[Gemm, Row]]:
    """The row of the best plan of each problem, or of the model's where nothing beat it."""
    known = {} if again else _known(target)
    found = []
    for count, problem in product(threads, problems):
        shape = shape_of(problem, count)
        row = known.get(shape)
        if row is None:
            limit = seconds + CALLS * cost(shape, choose(shape, target), target).seconds
            result = search.tune(problem, target, threads=count, time_limit=limit, candidates=12)
            row = result.best
            faster = f"  {row.ratio:.3f} times as fast" if result.improved else ""
            print(f"{problem}, {plural(count, 'thread')}: {row.plan}{faster}", flush=True)
        if row.role == "best" or row.ratio > BUILTIN:
            found.append((problem, row))
    return found


def _known(target: CpuTarget) -> dict[object, Row]:
    """What this very commit has tuned on this machine."""
    commit = machine.commit()
    rows = [row for row in store.rows() if commit and row.role and row.commit == commit
            and (row.target, row.model) == (target.name, target.model)]
    return {row.shape: row for role in ("model", "best") for row in rows if row.role == role}


def compare(rows: list[tuple[Gemm, Row]], threads: Iterable[int], target: CpuTarget) -> list[tuple[Gemm, Row]]:
    """Rows with the fastest other library and its time over ours, from runs by the rules of the benchmark."""
    isa = NATIVE if target == detect() else AVX2
    jobs = [Job(count, isa, [Case("tables", problem) for problem, row in rows if row.threads == count],
                Rules.choose(count, quick=True)) for count in threads]
    report = session.run("tables", jobs, lambda job, event: None)
    print(*(note for each in report.sessions for note in each.notes), sep="\n", end="")
    against: dict[tuple[Gemm, int], tuple[str, float]] = {}
    for result in report.results:
        peer = result.fastest_peer()
        if peer and (ratio := result.ratio(peer)):
            against[result.case.problem, result.threads] = peer, ratio.median
    compared = []
    for problem, row in rows:
        peer, times = against.get((problem, row.threads), (None, None))
        compared.append((problem, dataclasses.replace(row, vendor=peer, vendor_ratio=times)))
    return compared


def write(rows: Iterable[tuple[Gemm, Row]], file: Path) -> None:
    """Put these rows in the table, in place of older ones of the same problem and kind of machine."""

    def key(row: Row) -> object:
        return row.model, choice.machine_class(row), row.shape

    old = map(Row.from_json, file.read_text().splitlines() if file.exists() else ())
    merged = {key(row): row for row in old} | {key(row): row for _, row in rows}
    file.parent.mkdir(exist_ok=True)
    file.write_text(table(list(merged.values())))


def table(rows: list[Row]) -> str:
    """One line per row, columns aligned, by problem; four digits are more than a measurement has."""
    rows = sorted(rows, key=lambda r: (r.target, r.model, r.dtype, r.threads, r.m * r.n * r.k, r.shape))
    cells = [[f'"{name}": {json.dumps(float(f"{x:.4g}") if isinstance(x, float) else x)}'
              for name, x in row.known.items()] for row in rows]
    widths = [max(map(len, column)) + 1 for column in zip(*cells)]
    lines = (" ".join((cell + ",").ljust(w) for cell, w in zip(row[:-1], widths)) + f" {row[-1]}" for row in cells)
    return "".join(f"{{{line}}}\n" for line in lines)


if __name__ == "__main__":
    typer.run(main)
