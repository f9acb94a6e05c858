"""What epilogue= and operands= of a product may be, and what they come to: an `Epilogue` and arrays for it.

Only dtypes, shapes and strides are read, so that the arrays may be NumPy's or shadows of arrays in a GPU's memory.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tilewright import forks, formats
from tilewright.expressions import DEFAULT
from tilewright.expressions.composed import ADDED, ALPHA, BETA, finished, with_scalars, with_scales
from tilewright.expressions.function import Aux, Epilogue, kind_of
from tilewright.expressions.operations import KINDS
from tilewright.expressions.program import ACC, OWN, Expression
from tilewright.expressions.remembered import traced
from tilewright.rules import arguments
from tilewright.rules.arguments import Array
from tilewright.rules.call import Call, Product

_made: dict[tuple[Any, ...], tuple[Any, Expression]] = {}      # epilogues, and expressions with factors


class Fused(NamedTuple):
    """The epilogue of a product.

    operands    broadcast to [..., m, n] of the results ([..., m, n/2] of pairs), with strides of 0 where they have
                fewer elements; in the order of epilogue.reads
    dtypes      of the results; of reductions None: that in which they are computed
    shapes      of the results
    blocks      the block-scaled formats of those that are quantized then, along their last axis; None of others
    """
    epilogue: Epilogue
    operands: tuple[Array, ...]
    dtypes: tuple[np.dtype[Any] | None, ...]
    shapes: tuple[tuple[int, ...], ...]
    blocks: tuple[formats.BlockFormat | None, ...]


@cache      # NumPy makes the name of a dtype anew each time, and takes microseconds
def format_of(dtype: np.dtype[Any]) -> formats.Format | None:
    """The format of a dtype; None for complex numbers and what is no number of ours."""
    return None if dtype.kind == "c" else formats.find(dtype)


def epilogue_of(expression: Expression, operands: tuple[Aux, ...], results: tuple[str, ...]) -> Epilogue:
    """The Epilogue of these parts, one object for equal parts, so that its text is written once."""
    made: Epilogue = forks.looked_up(_made, (id(expression), operands, results), lambda: (
        Epilogue(expression, operands, results), expression))[0]        # kept: so is its id
    return made


SCALES = OWN + "scale_a", OWN + "scale_b", OWN + "alpha"        # of sums, as operands


def fused(call: Call, p: Product, scales: Mapping[str, Array] | None = None) -> Fused:
    """TypeError and ValueError for what the argument named may not be. `scales`: what sums are multiplied by, of SCALES
    by name, before the epilogue; they are floats then."""
    if p.sums.kind == "c":
        raise TypeError(f"epilogue must be None for complex products, whose sums here are {p.sums}")
    if p.vectors:
        raise ValueError("a and b must have two axes or more with an epilogue or a prologue: a[None, :] and b[:, None] "
                         "have, and are multiplied as the vectors are")
    given = given_of(call.operands)
    kinds = call.semiring.fold.result.kinds if call.semiring else ["float" if p.sums.kind == "f" else "int"]
    if scales:
        expression = expression_of(call.epilogue, ["float"], given)
        sets = [dict(scales)] if not expression.paired else [
            {name + str(half) * (x.shape[-1:] > (1,)): x[..., half::2] if x.shape[-1:] > (1,) else x
             for name, x in scales.items()} for half in range(2)]
        expression = with_scales(expression, kinds[0], tuple(map(tuple, sets)))
        given = given | {name: x for some in sets for name, x in some.items()}
    else:
        expression = expression_of(unchanged if call.epilogue is None else call.epilogue, kinds, given)
    if call.semiring and call.semiring.state:
        expression = finished(call.semiring.fold, expression)
    n = p.shape[-1]
    if expression.paired and n % 2:
        raise ValueError(f"epilogue takes pairs of columns, and a @ b has {n}")
    shape = (*p.shape[:-1], n // 2 if expression.paired else n)
    read, arrays = [], []
    for name, kind in expression.parameters[len(expression.sums):]:
        x = given[name]
        if x.size:                      # one number, not as many as it is expanded to
            x = x[(..., *(slice(None) if stride else slice(0, 1) for stride in x.strides))]
        number_format = format_of(x.dtype)
        if number_format is None:
            raise TypeError(f"operands[{name!r}] is {x.dtype}: it must be of integers or real floating-point numbers")
        if KINDS.index(kind_of(number_format.name)) > KINDS.index(kind):
            raise TypeError(f"operands[{name!r}] is {x.dtype}, and the epilogue takes {kind} for it")
        try:
            full = np.broadcast_to(x, shape)
        except ValueError:
            raise ValueError(f"operands[{name!r}] must broadcast to the result's shape {shape}, but its shape is "
                             f"{x.shape}") from None
        read.append(Aux(name, number_format.name, _place(x)))
        arrays.append(full)
    dtypes, blocks = _dtypes(call, p, expression)
    names = tuple(DEFAULT if x is None else name_of(x) for x in dtypes)
    shapes = tuple({"": shape, "row": shape[:-1], "column": (*shape[:-2], shape[-1])}[x.reduced.partition("_")[0]]
                   for x in expression.results)
    return Fused(epilogue_of(expression, tuple(read), names), tuple(arrays), dtypes, shapes, blocks)


def with_factors(epilogue: Epilogue, operands: Sequence[Array], sums: np.dtype[Any], alpha: Any, beta: Any, c: Any,
                 shape: tuple[int, ...], number: Callable[[Array], Array] = np.asarray) -> tuple[Epilogue, list[Array]]:
    """alpha, beta and c, which is broadcast to the product's shape [..., m, n], as further operands. `number`: what
    places alpha and beta."""
    read, arrays = list(epilogue.reads), list(operands)
    if alpha == 1 and not beta:
        return epilogue, arrays
    how = alpha != 1, bool(beta)
    extended, _ = forks.looked_up(_made, (id(epilogue.expression), *how), lambda: (
        with_scalars(epilogue.expression, *how), epilogue.expression))      # kept: so is its id
    columns = shape[-1] // 2 if epilogue.paired else shape[-1]
    for name, x in ((ALPHA, alpha if how[0] else None), (BETA, beta if beta else None)):
        if x is not None:
            read.append(Aux(name, name_of(sums), "scalar"))
            arrays.append(np.broadcast_to(number(np.array(x, sums)), (*shape[:-1], columns)))
    if beta:
        c = np.broadcast_to(c, shape)
        parts = [(f"{ADDED}0", c[..., 0::2]), (f"{ADDED}1", c[..., 1::2])] if epilogue.paired else [(ADDED, c)]
        read += [Aux(name, name_of(part.dtype), "full") for name, part in parts]
        arrays += [part for _, part in parts]
    return replace(epilogue, expression=extended, reads=tuple(read)), arrays


def outs_of(call: Call, f: Fused, seen: Callable[[Any, str], Array | None] = arguments.output) -> list[Array | None]:
    """Where the caller wants the results, as `seen` gives arrays by their names in messages. TypeError and ValueError
    for those that are no places for results."""
    count = len(f.shapes)
    given = call.out if isinstance(call.out, tuple) else (call.out,) + (None,) * (count - 1)
    if len(given) != count:
        raise ValueError(f"{call.out_name} must have an array or None for each of the epilogue's {count} results, not "
                         f"{len(given)} of them")
    outs = []
    for at, (x, shape, dtype) in enumerate(zip(given, f.shapes, f.dtypes)):
        name = call.out_name + f"[{at}]" * isinstance(call.out, tuple)
        out = seen(x, name)
        if out is not None:
            if (block := f.blocks[at]) is not None:
                raise ValueError(f"{name} must be None for a result in {block.name}, which is a new Quantized")
            if out.shape != shape:
                raise ValueError(f"{name} must have the result's shape {shape}, but its shape is {out.shape}")
            if dtype is not None:
                arguments.check_cast(dtype, out.dtype, name)
                if call.out_dtype is not None and out.dtype.newbyteorder("=") != dtype:
                    raise TypeError(f"{name} has dtype {out.dtype}, but out_dtype asks for {dtype}")
        outs.append(out)
    return outs


def wide_of(call: Call) -> str | None:
    """The format of sums that results are asked for in, if that counts."""
    asked = call.out_dtype if isinstance(call.out_dtype, tuple) else (call.out_dtype,)
    asked = tuple(None if isinstance(x, str) and x in formats.BLOCK_FORMATS else x for x in asked)
    return "f64" if any(x is not None and formats.find(x) is formats.FORMATS["f64"] for x in asked) else None


def beside_scales(call: Call, scales: Mapping[str, Array]) -> tuple[Call, dict[str, Array]]:
    """The call without alpha, which is one of the scales then. ValueError for a c, and for a prologue."""
    if call.c is not None or call.prologue_a is not None or call.prologue_b is not None:
        name = "c" if call.c is not None else "prologue_a and prologue_b"
        raise ValueError(f"{name} must be None where rows or columns of an operand have scales and there is an epilogue"
                         + ": c is an operand of it" * (name == "c"))
    alpha = arguments.number(call.alpha, "alpha")
    more = {} if alpha == 1 else {SCALES[2]: np.asarray(arguments.real(alpha, "alpha"), arguments.F32)}
    return call._replace(alpha=1), {**scales, **more}


def named_operands(operands: Any) -> Mapping[str, Any]:
    """operands=, which may be None. TypeError unless it has names for whatever it holds."""
    if operands is None:
        return {}
    if not isinstance(operands, Mapping) or not all(isinstance(name, str) for name in operands):
        raise TypeError(f"operands must be a dict of arrays and numbers by name, not "
                        f"{arguments.shown(operands)}")
    return operands


def given_of(operands: Any) -> dict[str, Array]:
    return {name: arguments.operand(x, f"operands[{name!r}]", least=0) for name, x in named_operands(operands).items()}


def expression_of(epilogue: Any, sums: list[str], given: dict[str, Array]) -> Expression:
    """The expression of a function, traced once, or of what tilewright.epilogue made. `sums`: their kind, or those of
    the several results of a reduction."""
    if isinstance(epilogue, Epilogue):
        epilogue = epilogue.expression
    if isinstance(epilogue, Expression):
        if len(sums) > 1:
            raise TypeError(f"epilogue must be a function of the {len(sums)} results of this reduction, and what "
                            "tilewright.epilogue makes is of one")
        names = [name for name, _ in epilogue.parameters[len(epilogue.sums):]]
        if set(names) != set(given):
            raise TypeError(f"operands must have the epilogue's names ({', '.join(names)}), and has "
                            f"({', '.join(given)})")
        return epilogue
    if not callable(epilogue):
        raise TypeError("epilogue must be a function of the sums and operands, or what tilewright.epilogue makes, not "
                        f"{arguments.shown(epilogue)}")
    kinds = []
    for name, x in given.items():
        number_format = format_of(x.dtype)
        if number_format is None:
            raise TypeError(f"operands[{name!r}] is {x.dtype}: it must be of integers or real floating-point numbers")
        kinds.append((name, kind_of(number_format.name)))
    first = [(f"{ACC}{i or ''}", kind) for i, kind in enumerate(sums)]
    return traced(epilogue, (*first, *kinds), positional=len(first))


def unchanged(*sums: Any) -> tuple[Any, ...]:
    """An epilogue: the sums, or the results of a reduction."""
    return sums


def bare() -> Epilogue:
    """What leaves floating-point sums as they are."""
    return epilogue_of(traced(unchanged, ((ACC, "float"),), positional=1), (), (DEFAULT,))


def name_of(dtype: np.dtype[Any]) -> str:
    number_format = format_of(dtype)
    assert number_format is not None
    return number_format.name


def _place(x: Array) -> str:
    rows = x.ndim > 1 and (x.shape[-2] > 1 or x.ndim > 2)
    columns = x.ndim > 0 and x.shape[-1] > 1
    return "full" if rows and columns else "row" if columns else "column" if rows else "scalar"


def _dtypes(call: Call, p: Product, expression: Expression
            ) -> tuple[tuple[np.dtype[Any] | None, ...], tuple[formats.BlockFormat | None, ...]]:
    """The dtypes asked for, else the product's without an epilogue, if it is of the result's kind."""
    asked = call.out_dtype
    plain = sum(not x.reduced for x in expression.results)
    requested = asked if isinstance(asked, tuple) else (asked,) * plain
    if len(requested) != plain:
        raise ValueError(f"out_dtype must be a format or {plain} of them, one for each result that is no reduction, "
                         f"not {len(requested)}")
    wanted, dtypes, blocks = iter(requested), list[np.dtype[Any] | None](), list[formats.BlockFormat | None]()
    for kind, computed, result in zip(expression.kinds, expression.computed, expression.results):
        if result.reduced:
            if computed == "bool":
                raise TypeError(f"epilogue returns {result.reduced} of comparisons: tw.where makes numbers of them")
            dtypes.append(None)
            blocks.append(None)
            continue
        one = next(wanted)
        blocks.append(formats.BLOCK_FORMATS.get(one) if isinstance(one, str) else None)
        if blocks[-1] is not None:
            if kind != "float":
                raise TypeError(f"out_dtype={one!r} is for results that are floats, and the epilogue's is {kind}")
            dtypes.append(_default(p, kind, True) if p.sums.itemsize == 8 else arguments.F32)
            continue
        dtype = _default(p, kind, call.semiring is None) if one is None else formats.get(one, "out_dtype").dtype
        if one is not None and (dtype.kind == "c" or (kind == "float" and isinstance(formats.find(dtype),
                                                                                     (formats.Integer, formats.Bool)))):
            raise TypeError(f"out_dtype must be of real floating-point numbers for a result of the epilogue that is "
                            f"{kind}, not {one!r}")
        dtypes.append(dtype)
    return tuple(dtypes), tuple(blocks)


def _default(p: Product, kind: str, products: bool) -> np.dtype[Any]:
    """The product's dtype, for results of its kind, if it is one; else the dtype in which a result is computed."""
    if kind == "bool":
        return np.dtype(bool)
    if kind == "int":
        own = np.dtype(np.int32 if p.sums.itemsize == 4 else np.int64)
        return p.result if products and p.result.kind in "iu" else own
    if products and p.sums.kind == "f":
        return p.result
    return arguments.F64 if p.sums.itemsize == 8 else arguments.F32
