"""Products with an epilogue of arrays in a GPU's memory: one launch, and copies of what kernels cannot take.

Leading axes are folded into m where B has none and every operand allows it, else merged into one axis, else all but the
longest are taken one by one. c, if there is one, is an operand of the expression, like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import formats
from tilewright.expressions.function import Epilogue
from tilewright.plans import semirings
from tilewright.plans.gpu_formats import WRITTEN
from tilewright.rules import arguments, fusing, prologues as prologue_rules, shapes
from tilewright.rules.arguments import Array
from tilewright.rules.call import Call, Product
from tilewright.rules.signature import operand
from tilewright.runtime.gpu import auxiliary, prologues
from tilewright.runtime.gpu.operands import format_of, letter, stacks
from tilewright.runtime.gpu.results import Results, stored_as, unreduced

if TYPE_CHECKING:
    from tilewright.rules.prologues import Prepared
    from tilewright.runtime.gpu.product import Run

# What kernels read as operands; other integers are converted before.
READ = WRITTEN


def outs_of(call: Call) -> dict[str, Any]:
    """Arrays for the call's results by the names of messages, None for new ones."""
    return ({f"{call.out_name}[{i}]": x for i, x in enumerate(call.out)} if isinstance(call.out, tuple) else
            {call.out_name: call.out})


def given_of(call: Call, looks: Mapping[str, Any]) -> tuple[Any, frozenset[str]]:
    """The operands of the call's functions, of those on the GPU the shadows; and the names of those that are NumPy's.
    """
    if not isinstance(call.operands, Mapping):
        return call.operands, frozenset()
    given = {name: looks[operand(name)].shadow if operand(name) in looks else x for name, x in call.operands.items()}
    return given, frozenset(name for name in given if operand(name) not in looks)


def product(run: Run, call: Call, looks: Mapping[str, Any], a: Array, b: Array) -> Any:
    """The results of the call, an array of the library or a tuple of them. a and b are as they are multiplied."""
    functions = call.epilogue, call.prologue_a, call.prologue_b
    results, any_alpha = computed(run, call, looks, a, b)
    return results.delivered(functions, any_alpha)


def computed(run: Run, call: Call, looks: Mapping[str, Any], a: Array, b: Array) -> tuple[Results, bool]:
    """The results, filled; and whether alpha is a factor of the products alone."""
    c = looks["c"].shadow if "c" in looks else call.c
    wide = fusing.wide_of(call)
    given, host = given_of(call, looks)
    shares = prologue_rules.shared_out(call, fusing.given_of(given))
    before = prologue_rules.all_of(call, a, b, shares)
    call, factors = auxiliary.scales_of_call(run, call, looks, a, b)
    of_sums: dict[str, Array] = {}
    if factors:
        if any(x.shape[axis] > 1 for x, axis in zip(factors, (-1, -2))):
            raise ValueError("scale_a and scale_b must have one scale for each row and column with an epilogue, and "
                             "here they are of blocks along k")
        call, of_sums = fusing.beside_scales(call, dict(zip(fusing.SCALES, factors)))
        host |= {fusing.SCALES[2]}
    p = prologue_rules.decided(call._replace(out=None), a, b, c, wide, before)
    p = p._replace(result=p.sums) if factors else p
    f = fusing.fused(call._replace(operands=shares.get("epilogue")), p, of_sums)
    if call.algorithm is not None:
        arguments.check_algorithm(call.algorithm, a.dtype, b.dtype, p.sums, call.plan, run.on.target)
    results = Results(run, call, looks, p, f)
    if all(x.size for x in results.targets):
        inside = prologues.inside(run, p, before, results.targets[0].dtype)
        x, y = (prologues.prepared(run, one, role, before[role], host) if role in before and role not in inside else one
                for role, one in zip("ab", (p.a, p.b)))
        p = p._replace(a=x, b=y)
        _compute(run, p, f, results, host, {role: before[role] for role in inside})
    return results, not factors


def _compute(run: Run, p: Product, f: fusing.Fused, results: Results, host: frozenset[str],
             before: Mapping[str, Prepared]) -> None:
    """Fill the results. `before`: the prologues that the kernel evaluates, by operand."""
    c = None if not p.beta else p.c if p.c.ndim else run.number(p.c, p.sums)
    epilogue, arrays_of = readable(run, *fusing.with_factors(
        f.epilogue, f.operands, p.sums, 1, p.beta, c, p.shape, lambda x: run.number(x, p.sums)), host)
    epilogue = unreduced(epilogue)
    of_a, of_b = (before[role].prologue.result if role in before else format_of(x.dtype)
                  for role, x in zip("ab", (p.a, p.b)))
    taken_a, taken_b, first = results.kernel_formats(epilogue, of_a, of_b, p)
    a, b = p.broadcast(*(x if role in before else run.typed(x, taken)
                         for role, x, taken in zip("ab", (p.a, p.b), (taken_a, taken_b))))
    texts, read = prologues.placed(run, before, dict(zip("ab", (taken_a, taken_b))), a, b, host)
    semiring = p.semiring
    if not p.a.shape[-1]:                       # nothing to add up: a product of zeros
        semiring = semirings.products(semiring)
        a, b = run.zeros((*a.shape[:-1], 1), a.dtype), run.zeros((*b.shape[:-2], 1, b.shape[-1]), b.dtype)
    shape = *p.shape[:-1], p.shape[-1] // (1 + epilogue.paired)
    outs = results.written(first, shape, (a, b, *arrays_of))
    final = stored_as(epilogue, outs)
    for pa, pb, *rest in stacks(shapes.collapse(a, b, outs[0], wider=False, beside=[*outs[1:], *arrays_of])):
        for matrices in zip(pa, pb, *rest) if before and pa.ndim > 2 else ((pa, pb, *rest),):
            mb, rest = matrices[1], list(matrices[2:])
            _multiply(run, matrices[0], mb, p.alpha, final, rest[len(outs):], rest[:len(outs)], semiring,
                      texts, read)
    results.fill(outs)


def readable(run: Run, epilogue: Epilogue, given: list[Array], host: frozenset[str]) -> tuple[Epilogue, list[Array]]:
    """The epilogue and its operands, which are broadcast, as kernels read them: in the GPU's memory, in formats and
    places that they take."""
    read, arrays = list(epilogue.reads), list(given)
    for i, x in enumerate(arrays):
        own = auxiliary.on_device(run, x, read[i].name, host)
        if format_of(own.dtype) not in READ:
            wide = np.dtype(np.float32 if isinstance(formats.get(own.dtype), formats.Float) else np.int32)
            own = run.copied(own, wide)
            read[i] = replace(read[i], format=format_of(wide))
        elif not auxiliary.readable(np.broadcast_to(own, x.shape), "c", read[i].by_column):
            own = run.copied(own, own.dtype)
        arrays[i] = np.broadcast_to(own, x.shape)
    return replace(epilogue, reads=tuple(read)), arrays


def _multiply(run: Run, a: Array, b: Array, alpha: Any, epilogue: Epilogue, read: list[Array], outs: list[Array],
              semiring: str, prologue_texts: Mapping[str, str], beside: list[Array]) -> None:
    """One launch. Results are by rows; main is C. `beside`: what the prologues that the kernel evaluates read."""
    a, b = (x if letter(x) else run.copied(x, x.dtype) for x in (a, b))
    c = outs[epilogue.main or 0]
    others = [x for i, x in enumerate(outs) if i != epilogue.main]
    more = *read, *others, *beside
    recipe = run.recipe(a, b, c, more, {"epilogue": epilogue.text, **prologue_texts}, semiring=semiring)
    run.by_recipe(recipe, (a, b, c, *more), alpha, 0.0)
