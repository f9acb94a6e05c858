"""The ways to the results of a product case by the public functions: a first call, and a later one of other arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tests.oracles.product import Problem, expected
from tests.products.arrays import make, placed, read, stored
from tests.products.case import Case
from tests.products.devices import Memory
from tests.products.functions import EPILOGUES, PROLOGUES, REDUCE, REDUCTIONS, TERMS
from tilewright import formats
from tilewright.api.products import matmul as by_python
from tilewright.formats import FORMATS
from tilewright.runtime import repeats

PACKAGE = str(Path(tw.__file__).parent)
SHORT, TABLE = 40, 150      # Python functions of the package, at most, that a call by a record takes, of one step and
#                             of several; by the rules it is over 200


def kept(python: int, slack: int = 0) -> str:
    """How a later call went, by the Python functions that it took: in emitted code alone, by a record of one step or of
    several in Python, or as the first one. `slack`: how many more may be taken for as many as are allowed."""
    return "emitted" if not python else "short" if python <= SHORT + slack else "table" if (
        python <= TABLE + slack) else "rules"


class Call:
    """A case's arrays, of a seed: as they are given, and what they must give."""

    def __init__(self, case: Case, seed: int, plan: str = "") -> None:
        self.case, self.seed, self.plan = case, seed, plan
        self.held: list[Any] = []           # arrays that stay where they are
        self.around: list[tuple[np.ndarray, np.ndarray, bytes]] = []
        self.python = 0                     # Python functions of the package that a later call took
        k_axis = {"a": -2 if "a" in case.trans else -1, "b": -1 if "b" in case.trans or read(case.b).ndim == 1 else -2}
        texts = {"a": case.a, "b": case.b, **case.beside} | ({"c": case.c} if case.c else {})
        texts |= {f"operand {i}": text for i, text in enumerate(case.others, 2)}
        self.made = {name: make(text, case.values, seed + i, k_axis.get(name, -1))
                     for i, (name, text) in enumerate(texts.items())}
        self.results = expected(self._problem(), self._numbers())

    def _problem(self) -> Problem:
        case = self.case
        epilogue, of_a, of_b, term = (table.get(name) for table, name in (
            (EPILOGUES, case.epilogue), (PROLOGUES, case.prologue_a), (PROLOGUES, case.prologue_b), (TERMS, case.term)))
        return Problem(
            self.sums, case.values != "normal", case.options.get("alpha", 1), case.options.get("beta", 0),
            case.subscripts, len(case.others), term and term.numpy, REDUCE[case.reduce], case.ends,
            frozenset(x for x, y in case.beside.items() if "groups" in read(y).words),
            *(x and x.numpy for x in (of_a, of_b, epilogue)), epilogue.magnified if epilogue else 1.0,
            sum(x.own for x in (epilogue, term) if x), case.within)

    @property
    def sums(self) -> np.dtype:
        """The format in which products of this case are added up, as docs/formats.md says."""
        a, b = (FORMATS[read(x).format].dtype if read(x).format in FORMATS and not read(x).scaled else np.dtype("f4")
                for x in (self.case.a, self.case.b))
        if self.case.prologue_a or self.case.prologue_b:
            return np.dtype(np.float64 if np.float64 in (a, b) else np.float32)
        return formats.accumulator(a, b).dtype

    def _numbers(self) -> dict[str, np.ndarray]:
        found = {name: made.numbers for name, made in self.made.items()}
        for role in self.case.trans:
            turned = found[role].swapaxes(-1, -2)
            found[role] = turned.conj() if self.case.options[f"trans_{role}"] == "c" else turned
            if (scale := found.get(f"scale_{role}")) is not None and scale.ndim > 1:
                found[f"scale_{role}"] = scale.swapaxes(-1, -2)
        return found

    # ---- what a public function takes

    def arrays(self, memory: Memory) -> dict[str, Any]:
        """There, by name."""
        given = {name: placed(made.array, memory.result if self.case.call == "gemm" and name == "c" else memory.array,
                              memory.part) for name, made in self.made.items()}
        ends = np.array(self.case.ends, FORMATS[self.case.index].dtype)
        return given | ({"ends": memory.array(ends)} if ends.size else {})

    def outs(self, memory: Memory) -> list[Any]:
        """Arrays for results."""
        arrays = [None if text is None else stored(_sevens(text), read(text).layout) for text in self.case.out]
        self.around = [(x, x.copy(), bytes(_memory(x))) for x in arrays if x is not None]
        return [None if x is None else memory.result(x) for x in arrays]

    def untouched(self) -> None:
        """AssertionError if anything around the results' elements was written to. Call it last: elements are lost."""
        for array, before, memory in self.around:
            array[...] = before
            assert bytes(_memory(array)) == memory, "memory around out was written to"

    def keywords(self, given: dict[str, Any]) -> dict[str, Any]:
        case = self.case
        options = dict(case.options)
        if self.plan:
            options["plan"] = self.plan
        options |= {name: given[name] for name in ("scale_a", "scale_b", "c") if name in given}
        operands = {name: given[name] for name in case.beside if name not in ("scale_a", "scale_b")}
        if operands:
            options["operands"] = operands
        for name, table in (("epilogue", EPILOGUES), ("prologue_a", PROLOGUES), ("prologue_b", PROLOGUES)):
            if getattr(case, name):
                options[name] = table[getattr(case, name)].traced
        return options

    def run(self, given: dict[str, Any], outs: list[Any], matmul: Any = tw.matmul) -> Any:
        """The call; `given` by `arrays`, `outs` by `outs`."""
        case, options = self.case, self.keywords(given)
        a, b = given["a"], given["b"]
        into = {"out": outs[0] if len(outs) == 1 else tuple(outs)} if outs else {}
        if case.call == "grouped_matmul":
            b = tw.pack(b) if case.packed else b
            return tw.grouped_matmul(a, b, given["ends"], **into, **options)
        if case.call == "contract":
            reduce = REDUCTIONS.get(case.reduce, case.reduce)
            return tw.contract(TERMS[case.term].traced, a, b, reduce=reduce, **into, **options)
        if case.call == "einsum":
            others = [given[f"operand {i}"] for i in range(2, 2 + len(case.others))]
            return tw.einsum(case.subscripts, a, b, *others, **into, **options)
        if case.call == "tensordot":
            return tw.tensordot(a, b, **into, **options)
        if case.call == "gemm":
            alpha, beta, c = (options.pop(x) for x in ("alpha", "beta", "c"))
            return tw.gemm(alpha, a, b, beta, c, **options)
        if case.call == "packed":
            return matmul(a, self._packed(b), **into, **{x: y for x, y in options.items() if x != "trans_b"})
        return matmul(a, b, **into, **options)

    def _packed(self, b: Any) -> Any:
        left = read(self.case.a)
        how = {"trans_b": self.case.options["trans_b"]} if "b" in self.case.trans else {}
        return tw.pack(b, a=None if left.scaled else FORMATS[left.format].dtype, **how)

    def check(self, results: list[np.ndarray]) -> None:
        """AssertionError unless these are the results."""
        assert len(results) == len(self.results), f"{len(results)} results, and should be {len(self.results)}"
        for i, (x, want) in enumerate(zip(results, self.results)):
            name, out = ((*texts, *[None] * 9)[i] for texts in (self.case.results, self.case.out))
            before = FORMATS[name].dtype if name else None
            dtype = FORMATS[read(out).format].dtype if out else before
            assert dtype in (None, x.dtype.newbyteorder("=")), f"result {i} is of {x.dtype}, not {dtype}"
            try:
                want.check(np.asarray(x, x.dtype.newbyteorder("=")), *([before] if out and before else []))
            except AssertionError as error:
                raise AssertionError(f"result {i}: {error}") from None


def _memory(x: np.ndarray) -> np.ndarray:
    """All of the buffer that the array lies in, as bytes."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x.view(np.uint8) if x.flags.c_contiguous else x


def _sevens(text: str) -> np.ndarray:
    spec = read(text)
    return np.full(spec.shape, 7).astype(FORMATS[spec.format].dtype)


def several(results: Any) -> list[Any]:
    return [*results] if isinstance(results, tuple) else [results]


# ---- the ways


def first(call: Call, memory: Memory) -> list[np.ndarray]:
    """By the public function: as if there had been no call before, or as an earlier one was."""
    given, outs = call.arrays(memory), call.outs(memory)
    results = call.run(given, outs)
    memory.finish()
    for x, y in zip(several(results), outs):
        assert y is None or x is y, "it is not out that is returned"
    call.held += [given, outs]              # so that later arrays have other addresses
    found = [np.array(_returned(x, memory)) for x in several(results)]
    call.untouched()
    return found


def _returned(x: Any, memory: Memory) -> np.ndarray:
    """A result; on a CPU one without axes is a scalar of NumPy's, unless it is a tensor."""
    assert memory.gpu or not isinstance(x, np.ndarray) or x.ndim, "an array without axes instead of a scalar"
    assert memory.name != "torch" or not isinstance(x, (np.ndarray, np.generic)), "an array instead of a tensor"
    return memory.back(x)


def python_calls(function: Callable[[], Any]) -> tuple[Any, int]:
    """What the function returns, and how many Python functions of the package it entered, but for those that a fake
    driver calls."""
    count, doubles = 0, list[Any]()

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal count
        file = frame.f_code.co_filename
        if "/tests/doubles/" in file:
            if event == "call":
                doubles.append(frame)
            elif event == "return" and doubles and doubles[-1] is frame:
                doubles.pop()
        elif event == "call" and not doubles:
            count += file.startswith(PACKAGE)
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        result = function()
    finally:
        sys.setprofile(before)
    return result, count


@contextmanager
def forgotten() -> Iterator[None]:
    """Within, no call is like an earlier one."""
    before = dict(repeats.records)
    repeats.records.clear()
    try:
        yield
    finally:
        repeats.records.clear()
        repeats.records.update(before)


def again(call: Call, memory: Memory) -> None:
    """A later call like the first, of other arrays at other addresses, groups of other sizes; `call.python` counts its
    Python functions. It has the bits of the long way, which the oracle tells where nothing is rounded."""
    sizes = np.diff(call.case.ends, prepend=0)[::-1]
    other = Call(call.case._replace(ends=tuple(map(int, np.cumsum(sizes)))), call.seed + 100, call.plan)
    given, outs = other.arrays(memory), other.outs(memory)
    results, call.python = python_calls(lambda: other.run(given, outs))
    memory.finish()
    found = [np.array(_returned(x, memory)) for x in several(results)]
    other.check(found)
    other.untouched()
    if call.case.values == "normal" and not memory.gpu:
        with forgotten():
            results = other.run(given, outs, by_python)
        for x, y in zip(several(results), found, strict=True):
            assert memory.back(x).tobytes() == y.tobytes(), "the bits are others than by the long way"
