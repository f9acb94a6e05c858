"""One measured plan: for which problem, on what, how fast, and where the figures come from."""
from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import TYPE_CHECKING, Any

from tilewright import targets
from tilewright.plans import asked
from tilewright.plans.cpu_shape import Shape
from tilewright.targets.machine import MOST_THREADS

if TYPE_CHECKING:
    from typing_extensions import Self

KEY = ("dtype", "m", "n", "k", "a", "b", "threads")     # of a shape: Shape.key, GpuShape.key


class Line:
    """What rows of all tables have: a line of JSON that is read back, each field with its type."""

    def to_json(self) -> str:
        """One line."""
        return json.dumps(self.known)

    @property
    def known(self) -> dict[str, Any]:
        """The fields, without one that came later and is not known, as an older version takes them."""
        every: dict[str, Any] = asdict(self)    # type: ignore[call-overload]
        return {name: value for name, value in every.items() if value is not None or name not in LATER}

    @classmethod
    def from_json(cls, line: str) -> Self:
        """The row in one line; ValueError says what is wrong with it."""
        return cls.from_fields(read(line))

    @classmethod
    def from_fields(cls, found: dict[str, Any]) -> Self:
        check_fields(cls, found)
        row = cls(**found)
        role, seconds = found["role"], found["seconds"]
        if role not in ROLES:
            raise ValueError(f"role must be one of {', '.join(map(repr, ROLES))}, not {role!r}")
        if not 0 < seconds < float("inf"):
            raise ValueError(f"seconds must be a positive number, not {seconds}")
        row.check()
        return row

    def check(self) -> None:
        """ValueError for what is invalid beside."""


@dataclass(frozen=True)
class Row(Line):
    """Seconds are medians and quartiles over rounds. A ratio is matmul's time over the plan's, within one round:
    above 1 the plan is faster than what matmul did without it."""
    target: str                 # "x86-avx512"
    model: str                  # the processor's name for itself; of a GPU also driver and kernels: store.chip
    l1d: int                    # bytes, as the target has them: machines of the same caches may share plans
    l2: int
    l3: int
    dtype: str                  # formats as in the key: "f32", "i8x4(u8,i8)", "f16-f16-f32 batch=16"
    m: int
    n: int
    k: int
    a: str                      # what is contiguous: "rows", "columns"
    b: str
    threads: int                # that the call might use; the plan may use fewer. 1 on a GPU
    plan: str
    role: str                   # "best": it beat the model's plan, and is used; "model": it is the model's; else ""
    seconds: float
    q1: float
    q3: float
    ratio: float
    ratio_q1: float
    ratio_q3: float
    rounds: int
    date: str                   # of the run, the same for all its rows
    machine: str
    tilewright: str
    llvmlite: str
    commit: str | None = None
    vendor: str | None = None           # the fastest other library, and its time over ours, if they were compared
    vendor_ratio: float | None = None
    clock: float | None = None          # Hz, of a core or of a GPU's multiprocessors meanwhile

    @property
    def best(self) -> bool:
        return self.role == "best"

    @property
    def key(self) -> tuple[Any, ...]:
        """The key of the shape."""
        return tuple(getattr(self, name) for name in KEY)

    @property
    def shape(self) -> Shape:
        """On a CPU. ValueError for formats that are not known here: rows of a newer version may have others."""
        return Shape.of_key(*self.key)

    @property
    def gflops(self) -> float:
        batch = re.search(r" batch=(\d{1,9})$", self.dtype)
        return 2 * self.m * self.n * self.k * (int(batch[1]) if batch else 1) / self.seconds / 1e9

    def check(self) -> None:
        on_gpu = self.target in (*targets.names("gpu"), *targets.names("amd"))
        attention = self.dtype.startswith("attention ")
        plan = asked.plan(self.plan, targets.target(self.target), attention)
        if self.a not in ORDERS or self.b not in ORDERS or min(self.m, self.n, self.k, self.threads) < 1:
            raise ValueError(f"the row's problem is invalid: {({name: getattr(self, name) for name in KEY})}")
        try:
            itemsize = self.shape.itemsize
        except ValueError:                  # of a newer version
            itemsize = 8
        if reasons := [] if on_gpu or attention else plan.excess(itemsize):      # a GPU's is judged when it is used
            raise ValueError(f"the plan {self.plan} is invalid: {' '.join(reasons)}")
        if self.threads > MOST_THREADS:
            raise ValueError(f"threads must be 1 to {MOST_THREADS}, not {self.threads}")


def read(line: str) -> dict[str, Any]:
    """The fields in one line of JSON; ValueError says what is wrong with it."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:           # an integer of 5000 digits is a ValueError
        raise ValueError(f"this is not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise ValueError("a row is an object, {...}")
    return entry


def check_fields(cls: Any, found: dict[str, Any]) -> None:
    """ValueError unless these are fields of such a row, each of its type."""
    known = {f.name: f for f in fields(cls)}
    for name in found:
        if name not in known:
            raise ValueError(f"a row has no field {name!r}; was it written by a newer tilewright?")
    for name, f in known.items():
        kinds = _KINDS[str(f.type)]
        value = found.get(name)
        if value is None and "None" not in str(f.type):
            raise ValueError(f"the row lacks {name!r}")
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ValueError(f"{name} must be {f.type}, not {value!r}")
        if isinstance(value, int) and not 0 <= value <= MOST:
            raise ValueError(f"{name} must be 0 to {MOST}, not {value}")
        if isinstance(value, float) and not isfinite(value):
            raise ValueError(f"{name} must be a finite number, not {value}")
        if isinstance(value, str) and not value.isprintable():
            raise ValueError(f"{name} must be a line of text, not {value!r}")


MOST = (1 << 63) - 1            # of 64 bits
LATER = ("clock",)
ROLES = "best", "model", ""
ORDERS = ("rows", "columns", "any")
_NONE = type(None)
_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "float": (float, int), "str | None": (str, _NONE),
    "float | None": (float, int, _NONE)}
