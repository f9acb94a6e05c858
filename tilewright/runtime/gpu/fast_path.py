"""The fast path of a product on a GPU: it differs from an earlier one in the addresses of its matrices only.

What makes two products alike is in a key, made of what the library itself says about plain arrays. Nothing else is
looked at: no shadow, no rule, no plan. With an epilogue the key has its function, too (expressions/remembered.py), and
its operands and results; products that need a copy of an array or a second kernel are not remembered. Python's
numbers among operands are written to the GPU's memory in every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.expressions import remembered
from tilewright.expressions.epilogue import Epilogue
from tilewright.expressions.prologue import Prologue
from tilewright.runtime.gpu.arrays import Library
from tilewright.runtime.gpu.operands import address
from tilewright.runtime.gpu.recipe import Recipe

if TYPE_CHECKING:
    from tilewright.rules.call import Call
    from tilewright.rules.fusing import Fused

MOST = 4096
ALIGNMENT = 15  # bits of an address that matter to a plan


class Entry(NamedTuple):
    """How a product was done."""

    recipe: Recipe
    transposed_c: bool  # C^T = B^T A^T: the recipe takes B^T and A^T
    device: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    spans: tuple[tuple[int, int], ...]  # of A, B and C: the bytes they reach over, from their addresses on


class FusedEntry(NamedTuple):
    """How a product with an epilogue was done. Addresses are those of A, B, operands by the caller's order, results."""

    recipe: Recipe
    device: int
    results: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    spans: tuple[tuple[int, int], ...]  # of each address
    order: tuple[int, ...]  # of the addresses: C's, then those that the recipe takes besides
    numbers: tuple[tuple[int, str, np.dtype[Any]], ...]  # which addresses are those of numbers, by name
    function: Any  # the ids of what it consists of are in the key


Functions = tuple[Any, Any, Any]  # an epilogue and the prologues of A and B, or None
TRACED = Epilogue, Prologue
Asked = tuple[tuple[Any, ...], tuple[int, ...]]  # a key, and addresses
MISSING, NUMBER = (None, 0), (float, 0)  # a result that is to be made; an operand that is a number

_entries: dict[tuple[Any, ...], Entry] = {}
_fused: dict[tuple[Any, ...], FusedEntry] = {}


def signature(library: Library, a: Any, b: Any, out: Any, plan: Any, semiring: Any = None
              ) -> tuple[tuple[Any, ...], int, int, int] | None:
    """Of a product of plain arrays of a library: what it has in common with others, and the addresses of a, b and out;
    0 for one that is to be made. None if arrays are not so plain. `semiring`: what its function is known by."""
    x, y = library.plain(a), library.plain(b)
    if x is None or y is None:
        return None
    (what_a, at_a), (what_b, at_b) = x, y
    what, at = None, 0
    if out is not None:
        z = library.plain(out)
        if z is None:
            return None
        what, at = z
    key = library, what_a, what_b, what, at_a & ALIGNMENT, at_b & ALIGNMENT, at & ALIGNMENT, plan, semiring
    return key, at_a, at_b, at


def remember(key: tuple[Any, ...], shape: tuple[int, ...], recipe: Recipe, transposed_c: bool, device: int,
             *matrices: NDArray[Any]) -> None:
    """Remember what the product of these, A, B and C by their shadows, came to; its shape is the caller's."""
    if len(_entries) >= MOST:
        _entries.clear()
    c = matrices[-1]
    _entries[key] = Entry(recipe, transposed_c, device, shape, c.dtype, tuple(map(_span, matrices)))


def multiply(library: Library, asked: tuple[Any, ...], a: Any, out: Any, alpha: float) -> Any:
    """alpha * a @ b as it went before, into out or a new array; None if it has to go the long way."""
    key, at_a, at_b, at_c = asked
    found = _entries.get(key)
    if found is None:
        return None
    recipe, transposed_c, device, shape, dtype, (span_a, span_b, span_c) = found
    stream = library.stream(a, device)
    if out is None:
        out = library.empty(shape, dtype, device, stream)
        at_c = library.pointer(out)
        if at_c & ALIGNMENT:
            return None
    else:
        low, high = at_c + span_c[0], at_c + span_c[1]
        if (low < at_a + span_a[1] and at_a + span_a[0] < high) or (low < at_b + span_b[1] and at_b + span_b[0] < high):
            return None  # they may overlap
    if transposed_c:
        at_a, at_b = at_b, at_a
    recipe.run(at_a, at_b, at_c, alpha, 0.0, stream)
    return out


def fused_signature(library: Library, a: Any, b: Any, out: Any, functions: Functions, operands: Any,
                    options: tuple[Any, ...]) -> Asked | None:
    """As `signature`, of a product with an epilogue or prologues, with the addresses of a, b, operands and results.
    `options`: what else the caller has asked for. None for a function that has to be traced in every call."""
    if not (operands is None or type(operands) is dict):
        return None
    known: Any = []
    for x in functions:
        known.append(None if x is None else id(x) if type(x) in TRACED else remembered.key(x, ()))
        if x is not None and known[-1] is None:
            return None
    plain = library.plain
    found: list[Any] = [plain(a), plain(b)]
    for x in operands.values() if operands else ():
        found.append(NUMBER if type(x) is float else plain(x))
    for x in out if type(out) is tuple else (out,):
        found.append(MISSING if x is None else plain(x))
    if None in found:
        return None
    what, at = zip(*found)
    return (library, what, tuple([x & ALIGNMENT for x in at]), *known, *(operands or ()), options), at


def remember_fused(asked: Asked, call: Call, recipe: Recipe, device: int, f: Fused, matrices: Sequence[NDArray[Any]],
                   results: Sequence[NDArray[Any]], beside: Sequence[tuple[str, NDArray[Any]]] = ()) -> None:
    """Remember what a product came to: `matrices` are shadows of A and B, `results` of its results, the first of which
    is C; `beside` is what the kernel's prologues read, by the names of operands."""
    if len(_fused) >= MOST:
        _fused.clear()
    read = {x.name: shadow for x, shadow in zip(f.epilogue.operands, f.operands)}
    operands = dict(beside) | read
    names = list(call.operands or ())
    first = 2 + len(names)
    order = (first, *(2 + names.index(x) for x in read), *range(first + 1, first + len(results)),
             *(2 + names.index(x) for x, _ in beside))
    spans = map(_span, (*matrices, *(operands[x] for x in names), *results))
    numbers = tuple((i, x, operands[x].dtype) for i, x in enumerate(names, 2) if type(call.operands[x]) is float)
    _fused[asked[0]] = FusedEntry(recipe, device, tuple((x.shape, x.dtype) for x in results), tuple(spans), order,
                                  numbers, (call.epilogue, call.prologue_a, call.prologue_b))


def multiply_fused(library: Library, asked: Asked, a: Any, out: Any, alpha: float, operands: Any) -> Any:
    """As `multiply`, with an epilogue."""
    try:
        found = _fused.get(asked[0])
    except TypeError:  # what cannot be hashed, of which the long way has words
        return None
    if found is None:
        return None
    recipe, device, results, spans, order, numbers, _ = found
    stream, first, at = library.stream(a, device), len(spans) - len(results), [*asked[1]]
    outs = [*out] if type(out) is tuple else [out]
    if missing := len(spans) - len(at):
        outs, at = outs + [None]*missing, at + [0]*missing
    for i, (shape, dtype) in enumerate(results, first):
        if not at[i]:
            outs[i - first] = new = library.empty(shape, dtype, device, stream)
            at[i] = library.pointer(new)
            if at[i] & ALIGNMENT:
                return None
        elif _overlap(at, spans, i):
            return None
    run: Any = library.platform.engine.run(device, stream, None) if numbers else None
    try:
        for i, name, number in numbers:
            at[i] = address(run.number(np.asarray(operands[name]), number))
        recipe.run(at[0], at[1], at[order[0]], alpha, 0.0, stream, 0, 0, *[at[i] for i in order[1:]])
    finally:
        if run:
            run.free()
    return tuple(outs) if len(outs) > 1 else outs[0]


def _overlap(at: Sequence[int], spans: Sequence[tuple[int, int]], which: int) -> bool:
    """May this one have memory of any other?"""
    low, high = at[which] + spans[which][0], at[which] + spans[which][1]
    for i, (begin, end) in enumerate(spans):
        if low < at[i] + end and at[i] + begin < high and i != which:
            return True
    return False


def forget() -> None:
    _entries.clear()
    _fused.clear()


def _span(x: NDArray[Any]) -> tuple[int, int]:
    reach = [(n - 1) * stride for n, stride in zip(x.shape, x.strides)]
    return sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + x.itemsize
