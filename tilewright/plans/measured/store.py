"""The file of tuning results, JSON lines: rows that are saved, listed, merged and cleared.

The file is TILEWRIGHT_TUNE_DB, by default beside the compiled kernels. "off" means that no measured plan is used. The
tuner appends to it, one process at a time (flock); of rows for one problem and plan the newest counts. Readers wait for
nobody: a line without its end is not there yet. What engines make of it is in choice.py.
"""
from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple

from tilewright.compiler import cache as kernels, owned

OFF = "off"
SCHEMA = 1
MOST_BYTES = 1 << 28            # that are read: beyond that it is no file of results


class Table(NamedTuple):
    """A kind of rows of the file: their class, what a row was measured for, and which field is what was measured."""
    name: str
    module: str
    row: str
    problem: tuple[str, ...]
    choice: str

    @property
    def rows(self) -> Any:
        return getattr(import_module(self.module), self.row)


PROBLEM = ("target", "model", "dtype", "m", "n", "k", "a", "b", "threads")
PLANS = Table("plans", "tilewright.plans.measured.row", "Row", PROBLEM, "plan")
KERNELS = Table("kernels", "tilewright.plans.measured.kernels", "KernelRow",
                ("target", "model", "kernel", "source", "problem"), "configuration")
TABLES_OF_FILE = PLANS, KERNELS


def path() -> Path | None:
    """The file, which may not exist yet; None when tuning results are switched off, or a relative path names it."""
    chosen = os.environ.get("TILEWRIGHT_TUNE_DB")
    if chosen == OFF:
        return None
    if chosen and not os.path.isabs(chosen):
        warn_once(Path(chosen), f"TILEWRIGHT_TUNE_DB={chosen} is ignored, and tuning results with it: it must be an "
                                 "absolute path")
        return None
    if chosen:
        return Path(chosen)
    return kernels.directory() / "tuning.jsonl"


def stamp(file: Path) -> object:
    """Changes with what the file says; None where there is none."""
    try:
        state = os.stat(file)
    except OSError:
        return None
    return file, state.st_mtime_ns, state.st_size, state.st_ino


@cache
def warn_once(file: Path, words: str) -> None:
    warnings.warn(words, RuntimeWarning, stacklevel=2)


# ---- reading

Fields = dict[str, Any]


def read(file: Path) -> dict[Table, dict[tuple[Any, ...], Fields]]:
    """The fields of the rows of each table that count, by problem and plan. OSError or ValueError for a file that
    cannot be used, or that others could have written: it decides what is run."""
    if why := owned.flaw(file, os.stat(file)):
        raise owned.Refused(why)
    with open(file, "rb") as opened:
        return _read(opened)


def _read(file: IO[bytes]) -> dict[Table, dict[tuple[Any, ...], Fields]]:
    import json
    tables: dict[Table, dict[tuple[Any, ...], Fields]] = {table: {} for table in TABLES_OF_FILE}
    number, newest = 0, dict[tuple[Any, ...], str]()
    try:
        content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES >> 20} MiB")
        for number, line in enumerate(content[:content.rfind(b"\n") + 1].splitlines(), 1):
            fields = json.loads(line)
            if number == 1 and fields.keys() == {"schema"}:
                if fields["schema"] != SCHEMA:
                    raise ValueError(f"it has schema {fields['schema']}, and this tilewright supports schema {SCHEMA}")
                continue
            table = KERNELS if "kernel" in fields else PLANS
            problem, date = (table.name, *(fields[name] for name in table.problem)), fields["date"]
            key = *problem, fields[table.choice]
            if key not in tables[table] or date > tables[table][key]["date"]:
                tables[table][key] = fields
            newest[problem] = max(date, newest.get(problem, ""))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file.name} is not a store of tuning results: line {number}: {error!s:.200}") from None
    for rows in tables.values():    # of a problem that was measured several times only the newest run has a winner
        for key, fields in rows.items():
            if fields["date"] < newest[key[:-1]]:
                fields["role"] = ""
    return tables


def rows(table: Table = PLANS) -> list[Any]:
    """All of them, by problem, the fastest first."""
    from dataclasses import fields as of_class
    file = path()
    if file is None or not file.exists():
        return []
    known = {f.name for f in of_class(table.rows)}          # a newer version may have more
    lines = [table.rows(**{name: x for name, x in fields.items() if name in known})
             for fields in read(file)[table].values()]
    if table is KERNELS:
        return sorted(lines, key=lambda r: (*(getattr(r, name) for name in table.problem), -r.ratio))
    return sorted(lines, key=lambda r: (r.target, r.model, r.dtype, r.m * r.n * r.k, r.m, r.n, r.k, r.a, r.b, r.threads,
                                        -r.ratio))


# ---- writing

def save(rows: Iterable[Any], table: Table = PLANS) -> int:
    """Add rows, each in place of an older one of the same problem, target and plan; how many were added.

    All or none. Of a problem measured several times only the newest run counts.
    """
    rows = list(rows)
    if not rows:
        return 0
    with _locked(_required()) as file:
        known, added = _read(file)[table], list[str]()
        for row in rows:
            key = table.name, *(getattr(row, name) for name in (*table.problem, table.choice))
            if key not in known or row.date > known[key]["date"]:
                known[key] = row.known
                added.append(row.to_json() + "\n")
        _append(file, "".join(added))
    return len(added)


def clear() -> int:
    """Forget everything; how many rows there were. A damaged file is removed."""
    file = path()
    if file is None or not file.exists():
        return 0
    try:
        with _locked(file) as opened:
            count = sum(map(len, _read(opened).values()))
            opened.truncate(0)
            return count
    except (OSError, ValueError):
        file.unlink(missing_ok=True)
        return 0


def merge(lines: Iterable[str]) -> int:
    """Add what `to_json` of rows wrote; how many rows were new or newer. ValueError names the first bad line, and then
    nothing is added."""
    from tilewright.plans.measured.row import read
    tables: dict[Table, list[Any]] = {table: [] for table in TABLES_OF_FILE}
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                fields = read(line)
                table = KERNELS if "kernel" in fields else PLANS
                tables[table].append(table.rows.from_fields(fields))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
    return sum(save(rows, table) for table, rows in tables.items())


def _required() -> Path:
    file = path()
    if file is None:
        chosen = os.environ["TILEWRIGHT_TUNE_DB"]
        why = "" if chosen == OFF else ", which is not an absolute path"
        raise ValueError(f"tuning results are switched off by TILEWRIGHT_TUNE_DB={chosen}{why}, so there is nowhere to "
                         "keep them")
    return file


def check_writable() -> None:
    """OSError or ValueError now, and not after minutes of measuring, if results could not be kept."""
    with _locked(_required()) as file:
        _read(file)


@contextmanager
def _locked(file: Path) -> Iterator[IO[bytes]]:
    """The file, which is made if there is none, for this process alone. OSError for one that cannot be used."""
    import fcntl
    try:
        owned.make(file.parent)
    except OSError as error:
        raise OSError(f"the directory {file.parent} for tuning results cannot be made ({error.strerror})") from None
    try:
        if not os.path.lexists(file):
            owned.create(file)
    except FileExistsError:                                 # another process was faster
        pass
    except OSError as error:
        raise OSError(f"{file} cannot be opened: {error.strerror}") from None
    if why := owned.flaw(file, os.stat(file)):
        raise owned.Refused(why)
    with open(file, "r+b") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        if not os.fstat(opened.fileno()).st_size:       # a new file: the first process with the lock begins it
            _append(opened, f'{{"schema": {SCHEMA}}}\n')
        yield opened


def _append(file: IO[bytes], lines: str) -> None:
    """All of these or none, in place of a line that a process which was killed has begun."""
    file.seek(0)
    content = file.read()
    end = content.rfind(b"\n") + 1
    file.truncate(end)
    file.seek(end)
    try:
        file.write(lines.encode())
        file.flush()
    except OSError:
        file.truncate(end)
        raise
