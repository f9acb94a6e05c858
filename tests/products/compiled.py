"""The ways to a product by a compiled kernel, of a case that can be said as a problem (tilewright.Gemm)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.products.arrays import Spec, read
from tests.products.case import Case
from tests.products.devices import DEVICES, Memory
from tests.products.functions import EPILOGUES, PROLOGUES, REDUCTIONS, TERMS
from tilewright.formats import FORMATS

LAYOUTS = {"rows": "n", "columns": "t"}
SMALL = 100_000         # multiply-adds of a product that a CPU's kernel is simulated for


def problem(case: Case, results: list[np.ndarray]) -> tw.Gemm | None:
    """The case as a problem whose results are these; None if it cannot be said as one."""
    specs = {"a": read(case.a), "b": read(case.b), **{name: read(text) for name, text in case.beside.items()}}
    a, b = specs["a"], specs["b"]
    layouts = [LAYOUTS.get(x.layout, "") for x in (a, b)]
    if isinstance(case.options.get("out_dtype"), tuple):
        return None             # formats of their own for further results
    if case.term and case.reduce not in ("sum", "min", "max"):
        return None             # whose results are in formats that products are not cast to
    if (case.call not in ("matmul", "contract") or a.shape[:-2] != b.shape[:-2] or a.ndim not in (2, 3) or a.scaled
            or b.scaled or case.out or case.trans or not all(layouts) or "scale_a" in specs or "scale_b" in specs
            or set(case.options) - {"alpha", "beta", "out_dtype"} or case.ends or case.subscripts or case.c
            or any(x.ndim > 2 or x.layout != "rows" for name, x in specs.items() if name not in "ab")):
        return None
    m, n, k = case.sizes
    places = {name: place(x, m, n) for name, x in specs.items() if name not in ("a", "b")}
    functions: dict[str, Any] = {}
    kind = "int" if results_kind(a, b) else "float"
    if case.epilogue:
        functions["epilogue"] = tw.epilogue(EPILOGUES[case.epilogue].traced, kind, **places)
    for role, name, spec in (("a", case.prologue_a, a), ("b", case.prologue_b, b)):
        if name:
            function = PROLOGUES[name].traced
            taken = function.__code__.co_varnames[1:function.__code__.co_argcount]
            functions[f"prologue_{role}"] = tw.prologue(function, spec.format, "f32", **{x: places[x] for x in taken})
    if case.term:
        functions["semiring"] = tw.semiring(TERMS[case.term].traced, REDUCTIONS.get(case.reduce, case.reduce), kind)
    out = next((x.dtype for x in results if x.ndim > 1), None)
    return tw.Gemm(m, n, k, a.format, b.format, out, "".join(layouts), a.shape[0] if a.ndim == 3 else 1, **functions)


def results_kind(a: Spec, b: Spec) -> bool:
    """Are sums integers?"""
    return all(FORMATS[x.format].dtype.kind in "iub" for x in (a, b))


def place(x: Spec, m: int, n: int) -> str:
    """The place of an operand, as tilewright.epilogue takes it."""
    shape = (1, 1, *x.shape)[-2:]
    where = {(False, False): "scalar", (False, True): "row", (True, False): "column", (True, True): "full"}
    return f"{x.format} {where[shape[0] == m != 1, shape[1] != 1]}"


def ways(call: Any, memory: Memory, results: list[np.ndarray]) -> Iterator[tuple[str, Any]]:
    """The names of these ways, and what each gives, of a kernel that is compiled once for all; none if the case is no
    problem. `results`: those of a first call, whose formats the kernel's are."""
    case = call.case
    stated = problem(case, results)
    if memory.name == "torch" or stated is None or 0 in (stated.m, stated.n, stated.k):
        return
    target = DEVICES[memory.name].target if memory.gpu else tw.detect()
    if sentence := refusal(case, memory.gpu):
        with pytest.raises(ValueError, match=sentence):
            tw.compile(stated, target)
        return
    kernel = tw.compile(stated, target, call.plan or None)
    yield "called", called(call, kernel)
    yield "bound", bound(call, kernel, memory)
    if memory.gpu or stated.m * stated.n * stated.k * stated.batch <= SMALL:
        yield "simulated", simulated(call, kernel, results)


def refusal(case: Case, gpu: bool) -> str:
    """The sentence that refuses to compile the problem; "" if there is a kernel for it."""
    if case.term and case.epilogue and not gpu:
        return "a compiled kernel for a CPU has no epilogue and no state of several fields in a semiring"
    return ""


def given(call: Any) -> tuple[tuple[Any, Any], dict[str, Any]]:
    case = call.case
    options = {name: case.options[name] for name in ("alpha",) if name in case.options}
    operands = {name: call.made[name].array for name in case.beside}
    return (call.made["a"].array, call.made["b"].array), options | ({"operands": operands} if operands else {})


def outs(results: list[np.ndarray]) -> list[np.ndarray]:
    """Arrays for further results, which a simulated kernel of a GPU must have."""
    main = next((i for i, x in enumerate(results) if x.ndim > 1), -1)
    return [np.zeros(x.shape, x.dtype) for i, x in enumerate(results) if i != main]


def called(call: Any, kernel: Any) -> Any:
    """`kernel(a, b)`"""
    operands, options = given(call)
    return kernel(*operands, **options)


def bound(call: Any, kernel: Any, memory: Memory) -> Any:
    """`kernel.bind(a, b)()`, twice."""
    operands, options = given(call)
    if memory.gpu:
        operands = tuple(memory.array(x) for x in operands)
        if "operands" in options:
            options["operands"] = {name: memory.array(x) for name, x in options["operands"].items()}
    ready = kernel.bind(*operands, **options)
    ready()
    found = ready()
    memory.finish()
    return found


def simulated(call: Any, kernel: Any, results: list[np.ndarray]) -> Any:
    """`kernel.simulate(a, b)`"""
    operands, options = given(call)
    more = outs(results)
    found = kernel.simulate(*operands, **options, **({"outs": more} if more else {})).result
    return found if isinstance(found, tuple) or not more else (found, *more)
