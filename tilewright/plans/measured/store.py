"""The SQLite file of tuning results: its tables, and rows that are saved, listed, merged and cleared.

The file is TILEWRIGHT_TUNE_DB, by default beside the compiled kernels. "off" means that no measured plan is used. The
tuner writes it; JSON lines carry its rows to other machines. What engines make of it is in choice.py.
"""
from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright.compiler import cache as kernels
from tilewright.compiler import owned

if TYPE_CHECKING:
    import sqlite3


OFF = "off"
SCHEMA = 1
PATIENCE_S = 30.0               # how long a process that writes waits for another one that does


class Table(NamedTuple):
    """Of the file: the class of its rows, what a row was measured for, and which field is what was measured."""
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
    return kernels.directory() / "tuning.sqlite"


def stamp(file: Path) -> object:
    """Changes with what the file says; None where there is none."""
    found = file, _stamp(file), _stamp(f"{file}-wal")      # what is written goes to the second file first
    return None if found[1] is None else found


def _stamp(file: Path | str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


@cache
def warn_once(file: Path, words: str) -> None:
    warnings.warn(words, RuntimeWarning, stacklevel=2)


# ---- writing, and looking through

def save(rows: Iterable[Any], table: Table = PLANS) -> int:
    """Add rows, each in place of an older one of the same problem, target and plan; how many were added.

    All or none. Of a problem measured several times only the newest run counts.
    """
    from dataclasses import asdict
    rows = list(rows)
    if not rows:
        return 0
    names = [f.name for f in fields(rows[0])]
    updates = ", ".join(f'"{name}" = excluded."{name}"' for name in names)
    with opened(_required()) as db:
        before = db.total_changes
        db.executemany(
            f"INSERT INTO {table.name} ({columns(names)}) VALUES ({', '.join(f':{name}' for name in names)}) "
            f"ON CONFLICT DO UPDATE SET {updates} WHERE excluded.date > date", [asdict(row) for row in rows])
        added = db.total_changes - before
        same = " AND ".join(f"other.{name} = {table.name}.{name}" for name in table.problem)
        db.execute(f"UPDATE {table.name} SET role = '' WHERE role != '' AND "
                   f"date < (SELECT max(date) FROM {table.name} AS other WHERE {same})")
    return added


def rows(table: Table = PLANS) -> list[Any]:
    """All of them, by problem, the fastest first."""
    file = path()
    if file is None or not file.exists():
        return []
    order = "target, model, dtype, m*n*k, m, n, k, a, b, threads" if table is PLANS else ", ".join(table.problem)
    with opened(file, write=False) as db:
        names = [f.name for f in fields(table.rows) if f.name in _present(db, table)]   # an older version had fewer
        found = db.execute(f"SELECT {columns(names)} FROM {table.name} ORDER BY {order}, ratio DESC").fetchall() \
            if names else []
    return [table.rows(**dict(zip(names, values))) for values in found]


def clear() -> int:
    """Forget everything; how many rows there were. A damaged file is removed."""
    import sqlite3
    file = path()
    if file is None or not file.exists():
        return 0
    try:
        with opened(file) as db:
            return sum(int(db.execute(f"DELETE FROM {table.name}").rowcount) for table in TABLES_OF_FILE)
    except (sqlite3.DatabaseError, ValueError):
        for name in (file, Path(f"{file}-wal"), Path(f"{file}-shm")):
            name.unlink(missing_ok=True)
        return 0


def merge(lines: Iterable[str]) -> int:
    """Add what `to_json` of rows wrote; how many rows were new or newer. ValueError names the first bad line, and then
    nothing is added."""
    from tilewright.plans.measured.row import read
    found: dict[Table, list[Any]] = {table: [] for table in TABLES_OF_FILE}
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                fields = read(line)
                table = KERNELS if "kernel" in fields else PLANS
                found[table].append(table.rows.from_fields(fields))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
    return sum(save(rows, table) for table, rows in found.items())


def columns(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


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
    with opened(_required()):
        pass


@contextmanager
def opened(file: Path, write: bool = True, patience: float = PATIENCE_S) -> Iterator[sqlite3.Connection]:
    """The database inside one transaction. OSError or ValueError for one that cannot be used, or that others could
    have written: it decides what is run."""
    import sqlite3
    if write:
        try:
            owned.make(file.parent)
        except OSError as error:
            raise OSError(f"the directory {file.parent} for tuning results cannot be made ({error.strerror})") from None
        with suppress(OSError):                             # sqlite3.connect has words for it
            owned.create(file)
        uri = f"{file.absolute().as_uri()}?mode=rwc"
    else:
        # Readers of a file in WAL mode write beside it, too; where that is not possible, it does not change either.
        uri = f"{file.absolute().as_uri()}?{'mode=ro' if os.access(file.parent, os.W_OK) else 'immutable=1'}"
    _check_owned(file)
    try:
        db = sqlite3.connect(uri, timeout=patience, isolation_level=None, uri=True)
    except sqlite3.Error as error:
        raise OSError(f"{file} cannot be opened: {error}") from None
    try:
        if write:
            _prepare(db)
            db.execute("BEGIN IMMEDIATE")
        _check_version(db, file)
        yield db
        if write:
            db.execute("COMMIT")
    except sqlite3.OperationalError as error:
        raise OSError(f"{file}: {error}") from None
    except sqlite3.DatabaseError as error:
        raise ValueError(f"{file} is not a store of tuning results: {error}") from None
    finally:
        db.close()          # what was not committed is undone


def _check_owned(file: Path) -> None:
    """owned.Refused for a file, or what SQLite has beside it, that is not this user's own or no regular file."""
    for each in (file, Path(f"{file}-wal"), Path(f"{file}-shm"), Path(f"{file}-journal")):
        with suppress(FileNotFoundError):
            if why := owned.flaw(each, os.stat(each)):
                raise owned.Refused(why)


def _prepare(db: sqlite3.Connection) -> None:
    """Readers do not wait for a writer, nor it for them; and the tables are there."""
    import sqlite3
    db.execute("PRAGMA journal_mode = WAL")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, SCHEMA):
        return
    kinds = {"int": "INTEGER", "float": "REAL", "float | None": "REAL"}
    for table in TABLES_OF_FILE:
        there = _present(db, table)
        described = {
            f.name: f'"{f.name}" {kinds.get(str(f.type), "TEXT")}{"" if "None" in str(f.type) else " NOT NULL"}'
            for f in fields(table.rows)}
        if not there:
            all_of_them, key = ", ".join(described.values()), columns((*table.problem, table.choice))
            db.execute(f"CREATE TABLE IF NOT EXISTS {table.name} ({all_of_them}, PRIMARY KEY ({key}))")
        for name in described.keys() - there if there else ():      # fields that came later may be missing in all rows
            with suppress(sqlite3.OperationalError):            # another process adds it
                db.execute(f"ALTER TABLE {table.name} ADD COLUMN {described[name]}")
    if version == 0:
        db.execute(f"PRAGMA user_version = {SCHEMA}")


def _present(db: sqlite3.Connection, table: Table = PLANS) -> set[str]:
    """The columns of a table; none if it is not there."""
    return {row[1] for row in db.execute(f"PRAGMA table_info({table.name})")}


def _check_version(db: sqlite3.Connection, file: Path) -> None:
    version: Any = db.execute("PRAGMA user_version").fetchone()[0]
    if version != SCHEMA:
        raise ValueError(f"{file} has schema {version}, and this tilewright supports schema {SCHEMA}")
