"""What a row of the table of products says. Arrays are texts (arrays.py), functions names (functions.py).

A row says what is multiplied and what must come of it, nothing of how: ways.py has the ways to a result, devices.py
where they run, test_products.py brings rows, ways and devices together.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.products.arrays import read


class Case(NamedTuple):
    """A call of one public function. Where `out` is given, `results` are the formats that sums have before.

    on      the devices of a short run; of a full run those of `everywhere`, too
    short   False: only a full run has the row
    """

    name: str
    a: str
    b: str
    call: str = "matmul"                    # grouped_matmul, contract, einsum, tensordot, gemm, packed
    others: tuple[str, ...] = ()            # further operands of einsum
    out: tuple[str | None, ...] = ()        # arrays for the results
    results: tuple[str, ...] = ()           # formats of the results, NumPy's or f32 if it does not say
    c: str | None = None
    beside: dict[str, str] = {}             # noqa: RUF012    # operands of functions by name, scale_a, scale_b
    epilogue: str = ""
    prologue_a: str = ""
    prologue_b: str = ""
    term: str = ""
    reduce: str = "sum"
    subscripts: str = ""
    ends: tuple[int, ...] = ()
    index: str = "i32"                      # in which ends are given
    packed: bool = False                    # the stack of a grouped product
    options: dict[str, Any] = {}            # noqa: RUF012    # further keywords, as they are
    values: str = "whole"
    on: tuple[str, ...] = ("cpu",)
    within: float = 0.0                     # of |A| |B|, for numbers that are not exact
    plans: tuple[str, ...] = ()             # by which each of them, in turn
    launches: int | None = None             # kernels of a first call on GPUs, but copies
    kernel: str = ""                        # what the name of one of these has in it
    short: bool = True

    @property
    def everywhere(self) -> tuple[str, ...]:
        """The devices of a full run; plans are one instruction set's."""
        return self.on + (("torch", "avx2", "avx512", "amx") if "cpu" in self.on and not self.plans else ())

    @property
    def words(self) -> set[str]:
        """Names of what may go wrong: functions, plans, keywords, formats, axes and layouts."""
        arrays = {"a": self.a, "b": self.b, "c": self.c, **self.beside}
        arrays |= {f"out {i}": text for i, text in enumerate(self.out)}
        arrays |= {f"operand {i}": text for i, text in enumerate(self.others, 2)}
        specs = {name: read(text) for name, text in arrays.items() if text}
        return {self.call, self.values, self.epilogue, self.prologue_a, self.prologue_b, self.term, self.reduce,
                *self.plans, *(f"{name}={x}" for name, x in self.options.items()), *specs,
                *(f"{name} {word}" for name, x in specs.items() for word in (x.format, x.layout, x.ndim, *x.words))}

    @property
    def classes(self) -> set[str]:
        """About how large m, n and k are of a product of matrices: 0, 1, few, of one tile, of several, long."""
        return set() if self.subscripts or self.call == "tensordot" else {
            f"{name} {bisect((0, 1, 16, 64, 512), x)}" for name, x in zip("mnk", self.sizes)}

    @property
    def trans(self) -> str:
        """Which operands are transposed by the call."""
        return "".join(x for x in "ab" if self.options.get(f"trans_{x}"))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """m, n and k of a product of matrices."""
        a, b = read(self.a).shape, read(self.b).shape
        m, k = a[-2:][::-1] if "a" in self.trans else (1, *a)[-2:]
        return m, (b[-2] if "b" in self.trans else b[-1] if len(b) > 1 else 1), k


CPU = ("cpu",)
GPU = ("cpu", "sm_90a")
GPUS = ("cpu", "sm_90a", "sm_80", "gfx942")


def case(name: str, a: str, b: str, epilogue: str = "", **given: Any) -> Case:
    """A row. What is no field of `Case` is an operand of a function, or the scales of one."""
    fields = {x: given.pop(x) for x in Case._fields if x in given}
    return Case(name, a, b, epilogue=epilogue, beside=given, **fields)


def row(a: str, b: str, epilogue: str = "", **given: Any) -> Case:
    """A row whose name is what it says."""
    said = [x for x in (a, b, *given.get("others", ()), epilogue, given.get("call", "")) if x]
    for name, x in given.items():
        if name in ("options", "call", "others", "launches", "kernel", "values", "within", "on", "results"):
            said += [f"{option} {y}" for option, y in x.items()] if name == "options" else []
        else:
            said.append(f"{name.replace('_', ' ')} {', '.join(map(str, x)) if isinstance(x, tuple) else x}")
    return case("; ".join(said), a, b, epilogue, **given)


def some(step: int, rows: Iterable[Case]) -> list[Case]:
    """Rows of a grid, of which a short run has one of 2 * step + 1: combinations in turn instead of all. The number is
    odd, so that no option of two values is always the same."""
    return [row._replace(short=not i % (2*step + 1)) for i, row in enumerate(rows)]
