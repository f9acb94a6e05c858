"""Epilogues and prologues of compiled problems: operands by name in the formats and places that a Gemm says,
contiguous.

    ask             has a host record the functions that a problem needs
    by_problem      the results for arrays
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright import formats
from tilewright.expressions import DEFAULT, texts
from tilewright.expressions.function import Aux, Epilogue
from tilewright.expressions.program import Expression, Result
from tilewright.plans import epilogues, lowering
from tilewright.problem import Gemm
from tilewright.rules import fusing
from tilewright.rules.arguments import Array
from tilewright.rules.prologues import AXIS, Prepared
from tilewright.runtime.cpu import fusion, ways
from tilewright.runtime.cpu.engine import Planned, format_of
from tilewright.runtime.cpu.host import Host
from tilewright.runtime.cpu.recipe import Recipe


def ask(problem: Gemm, planned: Planned, word: str, on: Host) -> Recipe:
    """Have a host record what a problem with an epilogue needs, of contiguous operands; the recipe of its sums."""
    of, results, operands, epilogue, _ = _of_problem(problem, planned, word, *(
        _stand_in(problem.shapes[name][-2:], getattr(problem, name), letter)
        for name, letter in zip("ab", problem.layout)))
    way = ways.way_of(of, results, operands, epilogue, on)
    if way.recipe is not None and not way.after:
        return way.recipe
    main = ways.main_of(results, epilogue)
    m, n, _ = of.sizes
    recipe = way.recipe or fusion.recipe_of_sums(of, _stand_in((m, n), format_of(of.dtype), "n"), on, Recipe)[0]
    ways.passes(of, main, way, on)
    return recipe


def by_problem(problem: Gemm, planned: Planned, word: str, a: Array, b: Array, out: Array, alpha: Any, beta: Any,
               operands: Mapping[str, Any] | None, outs: Sequence[Array | None], compute: Any) -> Any:
    """The results of a compiled problem's epilogue, the first that is no reduction in `out`: one, or a tuple."""
    of, made, stand_ins, epilogue, prologues = _of_problem(problem, planned, word, a, b)
    like = [*stand_ins, *(x for prepared in prologues.values() for x in prepared.arrays)]
    read: list[Aux] = [*epilogue.reads, *(x for prepared in prologues.values() for x in prepared.prologue.reads)]
    arrays = iter(_named(read, operands, like))
    given = [next(arrays) for _ in epilogue.reads]
    prologues = {role: x._replace(arrays=tuple(next(arrays) for _ in x.arrays)) for role, x in prologues.items()}
    further = iter([*outs, *(None for _ in made)])
    shapes, kept, results = epilogue.shapes(*out.shape[:-2], *of.sizes[:2]), list[Any](), list[Array | None]()
    for at, (x, shape) in enumerate(zip(made, shapes)):
        own = out if at == epilogue.main else next(further)
        dtype = None if x is None else x.dtype
        if own is not None and own.shape != shape:
            raise ValueError(f"{'out' if own is out else 'outs'} must have the result's shape {shape}, not {own.shape}")
        direct = own is not None and own.dtype == dtype and (not beta or own is not out)
        results.append(None if x is None else own if direct else np.empty(shape, x.dtype))
        kept.append(own)
    extents = (*out.shape[:-2], *of.sizes[:2])
    extended, factors = fusing.with_factors(epilogue, given, of.dtype, alpha, beta, out if beta else None, extents)
    if beta and epilogue.paired:
        raise ValueError("beta must be 0 for an epilogue of pairs of columns: out has half as many as there are sums")
    numbers = compute(of, results, factors, extended, prologues=prologues)
    if numbers is None:
        numbers = compute(of._replace(word=""), results, factors, extended, prologues=prologues)
    reduced, values = iter(numbers), []
    for x, own in zip(results, kept):
        one = next(reduced) if x is None else x
        if own is not None and own is not one:
            own[...] = one.astype(own.dtype)
        values.append(one if own is None else own)
    return tuple(values) if len(values) > 1 else values[0]


def _of_problem(problem: Gemm, planned: Planned, word: str, a: Array, b: Array
                ) -> tuple[ways.Sums, list[Array | None], list[Array], Epilogue, dict[str, Prepared]]:
    """The sums, and stand-ins for results, operands and what prologues read, which lie as those of a compiled
    problem."""
    epilogue: Epilogue = epilogues.read(problem.epilogue) if problem.epilogue else Epilogue(
        Expression((("acc", "int" if problem.sums[0] == "i" else "float"),), (), (Result("acc"),)), (), (DEFAULT,))
    taken = lowering.taken_operands(problem, planned.shape.threads)
    a, b = (x if format_of(x.dtype) == f else x.astype(formats.FORMATS[f].dtype) for x, f in ((a, taken.a),
                                                                                             (b, taken.b)))
    of = ways.Sums(a, b, formats.FORMATS[taken.sums].dtype, planned.shape.threads, planned.plan, planned.target, word)
    results: list[Array | None] = []
    shapes = epilogue.shapes(problem.m, problem.n)
    for at, (kind, result, shape) in enumerate(zip(epilogue.expression.kinds, epilogue.expression.results, shapes)):
        if result.reduced:
            results.append(None)
            continue
        name = taken.out if at == epilogue.main else epilogue.results[at].replace(DEFAULT, problem.out)
        if kind == "float" and not isinstance(formats.FORMATS[name], formats.Float):
            name = "f64" if taken.sums == "i64" else "f32"
        results.append(_stand_in(shape, name, "n"))
    m, n = problem.m, problem.n // (1 + epilogue.paired)
    operands = [np.broadcast_to(_stand_in(x.extents(m, n), x.format, "n"), (m, n)) for x in epilogue.reads]
    before, sizes = dict[str, Prepared](), {"a": (m, problem.k), "b": (problem.k, problem.n)}
    for role in problem.prologues:
        prologue = texts.prologue(getattr(problem, f"prologue_{role}"))
        before[role] = Prepared(prologue, tuple(
            _broadcast(_stand_in(x.extents(*sizes[role], role == "a"), x.format, "n"), x, sizes[role], role)
            for x in prologue.reads))
    return ways.with_prologues(of, before), results, operands, epilogue, before


def _broadcast(x: Array, to: Aux, sizes: tuple[int, int], role: str) -> Array:
    """To the operand's sizes, along k one number for each block."""
    shape = list(sizes)
    if to.group > 1 and x.shape[AXIS[role]] > 1:
        shape[AXIS[role]] = x.shape[AXIS[role]]
    return np.broadcast_to(x, (*x.shape[:-2], *shape))


def _stand_in(shape: tuple[int, ...], format: str, letter: str) -> Array:
    """A contiguous matrix, whose elements are not there; "t": the transpose of one."""
    dtype = formats.FORMATS[format].dtype
    rows, cols = shape if letter == "n" else shape[::-1]
    stand_in = np.lib.stride_tricks.as_strided(np.empty(1, f"u{dtype.itemsize}"), (rows, cols),
                                            (cols*dtype.itemsize, dtype.itemsize)).view(dtype)
    return stand_in if letter == "n" else stand_in.T


def _named(read: Sequence[Aux], operands: Mapping[str, Any] | None, like: list[Array]) -> list[Array]:
    """A compiled problem's operands in the order in which its functions read them. TypeError and ValueError for others
    than it is for."""
    given = dict(operands or {})
    names = dict.fromkeys(x.name for x in read)
    if set(names) != set(given):
        raise TypeError(f"operands must have the names of the problem's functions ({', '.join(names)}), and has "
                        f"({', '.join(given)})")
    named = []
    for x, one in zip(read, like, strict=True):
        array = np.asarray(given[x.name], formats.FORMATS[x.format].dtype if np.ndim(given[x.name]) == 0 else None)
        if format_of(array.dtype) != x.format or not array.flags.aligned:
            raise TypeError(f"operands[{x.name!r}] must be {x.format}, aligned, as the function was made for, and is "
                            f"{array.dtype}")
        try:
            named.append(np.broadcast_to(array, (*array.shape[:-2], *one.shape)))
        except ValueError:
            raise ValueError(f"operands[{x.name!r}] must broadcast to {one.shape}, but its shape is {array.shape}"
                             ) from None
    return named
