"""Which plan a product takes: the one that was measured to be the fastest, by the user or in the tables that come with
tilewright, or that for a shape nearby, else the model's choice.

`best(shape, target)` is on the way of a user's first product of each kind. It reads the file of results (store.py), if
there is one, once, and again when it has changed; a fault in it costs a warning and never a product. What a row holds
for is in its fields: the target, the chip (`chip`), and the problem (`key` of a CPU's or a GPU's shape). The
plans of a bundle in use (compiler/bundle.py) come before all of these.

plans/tables/ has a file of JSON lines for each target, as `tilewright tune export` writes. A row whose role is "best"
counts for the processor on which it was measured, and for others with the same target and caches; the other rows only
record what was measured. The user's own results come first.
"""
from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from math import log2
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tilewright.compiler import bundle, sources
from tilewright.plans import asked
from tilewright.plans.cpu import CpuPlan
from tilewright.plans.cpu_shape import Shape
from tilewright.plans.measured import store
from tilewright.targets import CpuTarget, GpuTarget

if TYPE_CHECKING:
    from tilewright.plans.measured.row import Row

TABLES = Path(__file__).parents[1] / "tables"
Key = tuple[Any, ...]           # of a shape
# (target's name, chip) → problem → the plan to use and how many times as fast it was; "" where nothing beat the model's
Measured = tuple[str, float]
Plans = dict[tuple[str, str], dict[Key, Measured]]
# Where a plan comes from, if it is not the model's choice
MEASURED, NEARBY = "measured to be best by the tuner", "measured by the tuner to be best for a shape nearby"
PACKED = "of a bundle in use (tilewright.load)"
FAR = 0.5               # binary orders of magnitude in m, n or k, beyond which a shape says nothing of another


def chosen(shape: Any, target: Any) -> tuple[Any, str]:
    """The plan for a problem (a Shape, or a GpuShape): the one that was measured to be the fastest, or that for a shape
    nearby, else the model's choice; and where it comes from, "" for the model."""
    packed = None if shape.invariant else _packed(shape, target)
    plan = packed or (None if shape.invariant else best(shape, target))
    if plan is not None:
        return plan, PACKED if packed else MEASURED
    by = shape.planner
    model, cost = by.choose(shape, target), by.cost
    near, gain = (None if shape.invariant else nearby(shape, target)) or (None, 1.0)
    if near in (None, model) or cost(shape, near, target).seconds > gain * cost(shape, model, target).seconds:
        return model, ""
    return near, NEARBY


def best(shape: Any, target: Any) -> Any:
    """The plan that was measured to be the fastest for this problem on this kind of machine, by the user or in the
    tables; None without a measurement, or where the model's choice was the fastest. A bundle's plan comes first."""
    if packed := _packed(shape, target):
        return packed
    file = store.path()
    if file is None:
        return None
    stored, key = _stored(file, target), shape.key
    return _usable(stored[key][0] if key in stored else shipped(target).get(key), shape, target)


def nearby(shape: Any, target: Any) -> tuple[Any, float] | None:
    """What the tuner has found for the nearest shape that it has measured on this chip: the plan, if that is legal for
    this one, and how many times as fast as the model's it was there. None if it was the model's, or none is near: sizes
    that differ by a factor of up to 1.4, and nothing else."""
    file = store.path()
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
    file = store.path()
    return file is not None and shape.key in _stored(file, target)


_tried: dict[tuple[str, Key], str] = {}
_asked: set[tuple[str, Key]] = set()            # of these, what a product has asked for since


def put_in_use(shape: Any, target: Any, plan: str | None) -> None:
    """Answer with this plan for a problem in this process from now on, whatever has been measured; None: no more. The
    tuner compares plans as matmul runs them; engines have to `forget`."""
    _tried.pop((target.name, shape.key), None)
    _asked.discard((target.name, shape.key))
    if plan is not None:
        _tried[target.name, shape.key] = plan


def was_asked(shape: Any, target: Any) -> bool:
    """Whether a product has asked for the plan that was put in use for this problem."""
    return (target.name, shape.key) in _asked


def _packed(shape: Any, target: Any) -> Any:
    """The plan that the tuner tries, or of a bundle in use."""
    if _tried and (target.name, shape.key) in _tried:
        _asked.add((target.name, shape.key))
        return _usable(_tried[target.name, shape.key], shape, target)
    entry = bundle.plan(target.name, shape.key) if bundle.used else None
    return _usable(entry.plan, shape, target) if entry else None


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
    tables = _plans(file)
    known = any(name == target.name for name, _ in tables)      # else no source is read for the answer
    return tables.get((target.name, chip(target)), {}) if known else {}


def _usable(text: str | None, shape: Any, target: Any) -> Any:
    """The plan of this text; None if there is none, or another version wrote it, or it cannot run the problem."""
    try:
        plan = asked.plan(text or None, target, shape.attention)
        return None if plan is None or plan.violations(shape, target) else plan
    except (ValueError, KeyError):                      # no plan; formats that are not known here
        return None


def plans(target: CpuTarget, wanted: Callable[[Shape], bool] = lambda shape: True) -> dict[Shape, CpuPlan]:
    """All that `best` may answer, for a CPU's problems that are wanted."""
    file, tables = store.path(), {}
    known = {**shipped(target), **{key: text for key, (text, _) in _stored(file, target).items()}} if file else {}
    tried = {key: text for (name, key), text in _tried.items() if name == target.name}
    for key, text in {**known, **bundle.plans(target.name), **tried}.items():
        with suppress(ValueError):                      # a newer version may tune other formats
            shape = Shape.of_key(*key)
            plan = _usable(text, shape, target) if text and wanted(shape) else None
            if plan is not None:
                tables[shape] = plan
    return tables


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
    try:
        rows = [SimpleNamespace(**json.loads(line)) for line in file.read_text().splitlines()]  # a Row takes longer
        alike, same = ({(row.dtype, row.m, row.n, row.k, row.a, row.b, row.threads): row.plan
                        for row in rows if row.role == "best" and fits(row)}
                       for fits in (lambda row: machine_class(row) == caches, lambda row: row.model == model))
    except (ValueError, TypeError, AttributeError, OSError) as error:
        store.warn_once(file, f"tilewright cannot read its table of plans {file} ({error}) and goes on without them")
        return {}
    return alike | same


_read: tuple[object, Plans] = None, {}


def _plans(file: Path) -> Plans:
    """What the file says, read again when it has changed."""
    global _read
    now = store.stamp(file)
    if now is None:
        return {}
    if _read[0] != now:
        _read = now, _load(file)
    return _read[1]


def _load(file: Path) -> Plans:
    plans: Plans = {}
    try:
        rows = [row for row in store.read(file)[store.PLANS].values() if row["role"] != ""]
        for row in sorted(rows, key=lambda row: str(row["role"]), reverse=True):        # what is best comes last
            target, model, kind, m, n, k, a, b, threads, plan, role, ratio = (
                row[name] for name in (*store.PROBLEM, "plan", "role", "ratio"))
            if not all(isinstance(x, str) for x in (target, model, kind, a, b, plan, role)) or \
                    not all(isinstance(x, int) and x > 0 for x in (m, n, k, threads)) or not ratio > 0:
                raise ValueError(f"it has an invalid row: {row}")
            entry = (plan, ratio) if role == "best" else ("", 1.0)
            plans.setdefault((target, model), {})[kind, m, n, k, a, b, threads] = entry
    except Exception as error:              # a product must not fail because of it
        store.warn_once(file, f"tilewright cannot read its tuning results in {file} ({error}) and goes on without "
                              "them. `tilewright tune clear` removes them; TILEWRIGHT_TUNE_DB names another file.")
        return {}
    return plans
