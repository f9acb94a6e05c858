"""Measured plans: tuning results in one SQLite file, and the tables that come with tilewright.

`best(shape, target)` is on the way of a user's first product of each kind. It imports sqlite3 only if there is a file,
reads that once, and again when it has changed; a fault in it costs a warning and never a product. What a row holds for
is in its columns: the target, the chip (`chip`), and the problem (`key` of a CPU's or a GPU's shape).

The file is TILEWRIGHT_TUNE_DB, by default beside the compiled kernels. "off" means that no measured plan is used,
neither from there nor from the tables. The plans of a bundle in use (compiler/bundle.py) come before all of these. The
tuner writes it; JSON lines carry its rows to other machines.

plans/tables/ has a file of JSON lines for each target (bench/ship_tables.py makes them). A row whose role is "best"
counts for the processor on which it was measured, and for others with the same target and caches; the other rows only
record what was measured. The user's own results come first.
"""
from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import cache
from importlib import import_module
from math import log2
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright.compiler import bundle, owned, sources
from tilewright.compiler import cache as kernels
from tilewright.plans import asked
from tilewright.plans.cpu import CpuPlan, Shape
from tilewright.targets import CpuTarget, GpuTarget

if TYPE_CHECKING:
    import sqlite3

    from tilewright.plans.measured.row import Row

OFF = "off"
TABLES = Path(__file__).parents[1] / "tables"
SCHEMA = 1
PATIENCE_S = 30.0               # how long a process that writes waits for another one that does
GLANCE_S = 0.1                  # how long a product waits for it
MOST_STEPS = 50_000_000         # of SQLite's machine, about a second, that reading may take: a view might never end
Key = tuple[Any, ...]           # of a shape
# (target's name, chip) → problem → the plan to use and how many times as fast it was; "" where nothing beat the model's
Measured = tuple[str, float]
Plans = dict[tuple[str, str], dict[Key, Measured]]
# Where a plan comes from, if it is not the model's choice
MEASURED, NEARBY = "measured to be best by the tuner", "measured by the tuner to be best for a shape nearby"
PACKED = "of a bundle in use (tilewright.load)"
FAR = 0.5               # binary orders of magnitude in m, n or k, beyond which a shape says nothing of another


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
        _warn_once(Path(chosen), f"TILEWRIGHT_TUNE_DB={chosen} is ignored, and tuning results with it: it must be an "
                                 "absolute path")
        return None
    if chosen:
        return Path(chosen)
    return kernels.directory() / "tuning.sqlite"


# ---- what the engine asks

def chosen(shape: Any, target: Any) -> tuple[Any, str]:
    """The plan for a problem (a Shape, or a GpuShape): the one that was measured to be the fastest, or that for a shape
    nearby, else the model's choice; and where it comes from, "" for the model."""
    packed = _packed(shape, target)
    found = packed or best(shape, target)
    if found is not None:
        return found, PACKED if packed else MEASURED
    by: Any
    if isinstance(target, CpuTarget):
        from tilewright.plans import choose as by
        from tilewright.plans.model import cost
    else:
        from tilewright.plans import gpu as by
        cost = by.planner(target).cost
    model = by.choose(shape, target)
    near, gain = nearby(shape, target) or (None, 1.0)
    if near in (None, model) or cost(shape, near, target).seconds > gain * cost(shape, model, target).seconds:
        return model, ""
    return near, NEARBY


def best(shape: Any, target: Any) -> Any:
    """The plan that was measured to be the fastest for this problem on this kind of machine, by the user or in the
    tables; None without a measurement, or where the model's choice was the fastest. A bundle's plan comes first."""
    if packed := _packed(shape, target):
        return packed
    file = path()
    if file is None:
        return None
    stored, key = _stored(file, target), shape.key
    return _usable(stored[key][0] if key in stored else shipped(target).get(key), shape, target)


def nearby(shape: Any, target: Any) -> tuple[Any, float] | None:
    """What the tuner has found for the nearest shape that it has measured on this chip: the plan, if that is legal for
    this one, and how many times as fast as the model's it was there. None if it was the model's, or none is near: sizes
    that differ by a factor of up to 1.4, and nothing else."""
    file = path()
    stored = _stored(file, target) if file else {}
    kind, m, n, k, *order = key = shape.key
    near = {other: max(abs(log2(x / y)) for x, y in zip(other[1:4], (m, n, k))) for other in stored
            if (other[0], *other[4:]) == (kind, *order)} if min(m, n, k) and key not in stored else {}
    closest = min(near, key=near.__getitem__, default=None)
    if closest is None or near[closest] > FAR:
        return None
    text, gain = stored[closest]
    plan = _usable(text, shape, target)
    return None if plan is None else (plan, gain)


def tuned(shape: Any, target: Any) -> bool:
    """Whether the user has measured this problem on this chip."""
    file = path()
    return file is not None and shape.key in _stored(file, target)


_tried: dict[tuple[str, Key], str] = {}


def put_in_use(shape: Any, target: Any, plan: str | None) -> None:
    """Answer with this plan for a problem in this process from now on, whatever has been measured; None: no more. The
    tuner compares plans as matmul runs them; engines have to `forget`."""
    _tried.pop((target.name, shape.key), None)
    if plan is not None:
        _tried[target.name, shape.key] = plan


def _packed(shape: Any, target: Any) -> Any:
    """The plan that the tuner tries, or of a bundle in use."""
    if _tried and (target.name, shape.key) in _tried:
        return _usable(_tried[target.name, shape.key], shape, target)
    found = bundle.plan(target.name, shape.key) if bundle.used else None
    return _usable(found.plan, shape, target) if found else None


def chip(target: Any) -> str:
    """What a measurement holds for: a processor by its name for itself; on a GPU also the version of the driver, which
    assembles and starts kernels, and the sources of the kernels."""
    if isinstance(target, CpuTarget):
        return target.model
    maker = "nvidia" if isinstance(target, GpuTarget) else "amd"
    digest = sources.digest(*sources.modules(f"tilewright.kernels.{maker}"))
    return f"{target.model}, driver {target.driver}, kernels {digest[:12]}"


def _stored(file: Path, target: Any) -> dict[Key, Measured]:
    """What the file says of this target and chip."""
    found = _plans(file)
    known = any(name == target.name for name, _ in found)       # else no source is read for the answer
    return found.get((target.name, chip(target)), {}) if known else {}


def _usable(text: str | None, shape: Any, target: Any) -> Any:
    """The plan of this text; None if there is none, or another version wrote it, or it cannot run the problem."""
    try:
        plan = asked.plan(text or None, target)
        return None if plan is None or plan.violations(shape, target) else plan
    except (ValueError, KeyError):                      # no plan; formats that are not known here
        return None


def plans(target: CpuTarget, wanted: Callable[[Shape], bool] = lambda shape: True) -> dict[Shape, CpuPlan]:
    """All that `best` may answer, for a CPU's problems that are wanted."""
    file, found = path(), {}
    known = {**shipped(target), **{key: text for key, (text, _) in _stored(file, target).items()}} if file else {}
    tried = {key: text for (name, key), text in _tried.items() if name == target.name}
    for key, text in {**known, **bundle.plans(target.name), **tried}.items():
        with suppress(ValueError):                      # a newer version may tune other formats
            shape = Shape.of_key(*key)
            plan = _usable(text, shape, target) if text and wanted(shape) else None
            if plan is not None:
                found[shape] = plan
    return found


def shipped(target: Any) -> dict[Key, str]:
    """The plans in the tables for this kind of machine; there are none for GPUs."""
    return _shipped(target.name, target.model, machine_class(target)) if isinstance(target, CpuTarget) else {}


def machine_class(of: CpuTarget | Row | SimpleNamespace) -> tuple[int, int, int]:
    """Caches in KiB. L3 by powers of two: what a virtual machine sees of it differs from one to the next."""
    return of.l1d >> 10, of.l2 >> 10, 1 << round(log2(of.l3 / 1024)) if of.l3 else 0


@cache
def _shipped(name: str, model: str, caches: tuple[int, int, int]) -> dict[Key, str]:
    file = TABLES / f"{name}.jsonl"
    if not file.exists():
        return {}
    import json
    rows = [SimpleNamespace(**json.loads(line)) for line in file.read_text().splitlines()]      # a Row takes longer
    alike, same = ({(row.dtype, row.m, row.n, row.k, row.a, row.b, row.threads): row.plan
                    for row in rows if row.role == "best" and fits(row)}
                   for fits in (lambda row: machine_class(row) == caches, lambda row: row.model == model))
    return alike | same


_read: tuple[object, Plans] = None, {}


def _plans(file: Path) -> Plans:
    """What the file says, read again when it has changed."""
    global _read
    now = stamp(file)
    if now is None:
        return {}
    if _read[0] != now:
        _read = now, _load(file)
    return _read[1]


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


def _load(file: Path) -> Plans:
    plans: Plans = {}
    try:
        with _open(file, write=False, patience=GLANCE_S) as db:
            steps = iter(range(MOST_STEPS // 1_000_000))
            db.set_progress_handler(lambda: next(steps, None) is None, 1_000_000)
            columns = _columns((*PROBLEM, "plan", "role", "ratio"))
            for row in db.execute(f"SELECT {columns} FROM plans WHERE role != '' ORDER BY role DESC"):
                target, model, kind, m, n, k, a, b, threads, plan, role, ratio = row
                if not all(isinstance(x, str) for x in (target, model, kind, a, b, plan, role)) or \
                        not all(isinstance(x, int) and x > 0 for x in (m, n, k, threads)) or not ratio > 0:
                    raise ValueError(f"it has an invalid row: {row}")
                found = (plan, ratio) if role == "best" else ("", 1.0)
                plans.setdefault((target, model), {})[kind, m, n, k, a, b, threads] = found
    except Exception as error:              # a product must not fail because of it
        _warn_once(file, f"tilewright cannot read its tuning results in {file} ({error}) and goes on without them. "
                         "`tilewright tune clear` removes them; TILEWRIGHT_TUNE_DB names another file.")
        return {}
    return plans


@cache
def _warn_once(file: Path, words: str) -> None:
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
    with _open(_required()) as db:
        before = db.total_changes
        db.executemany(
            f"INSERT INTO {table.name} ({_columns(names)}) VALUES ({', '.join(f':{name}' for name in names)}) "
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
    with _open(file, write=False) as db:
        names = [f.name for f in fields(table.rows) if f.name in _present(db, table)]   # an older version had fewer
        found = db.execute(f"SELECT {_columns(names)} FROM {table.name} ORDER BY {order}, ratio DESC").fetchall() \
            if names else []
    return [table.rows(**dict(zip(names, values))) for values in found]


def clear() -> int:
    """Forget everything; how many rows there were. A damaged file is removed."""
    import sqlite3
    file = path()
    if file is None or not file.exists():
        return 0
    try:
        with _open(file) as db:
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


def _columns(names: Iterable[str]) -> str:
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
    with _open(_required()):
        pass


@contextmanager
def _open(file: Path, write: bool = True, patience: float = PATIENCE_S) -> Iterator[sqlite3.Connection]:
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
            columns, key = ", ".join(described.values()), _columns((*table.problem, table.choice))
            db.execute(f"CREATE TABLE IF NOT EXISTS {table.name} ({columns}, PRIMARY KEY ({key}))")
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
