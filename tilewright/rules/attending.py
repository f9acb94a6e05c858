"""What the arguments of attention may be, and what they come to: an `Attention` and its arrays.

Only dtypes, shapes and strides are read, and of NumPy's arrays the offsets, tables and lengths, so that the arrays may
be NumPy's or shadows of arrays in a GPU's memory.
"""
from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tilewright import formats
from tilewright.attention_problem import FLOATS, NARROW, Attention, capped, score_text, traced, unchanged
from tilewright.expressions import functions, remembered
from tilewright.expressions.function import Aux, kind_of
from tilewright.expressions.program import Expression
from tilewright.rules import arguments
from tilewright.rules.arguments import Array

MOST_AXES = 4
INTEGERS = np.dtype(np.int32), np.dtype(np.int64)
FACTORS = "q_scale", "k_scale", "v_scale"
BIAS = "bias"                   # the name of an array that is added to scores, or of a mask


class Asked(NamedTuple):
    """The arguments of attention but its arrays q, k and v, as they were given."""
    causal: Any = False
    window: Any = None
    scale: Any = None
    bias: Any = None
    operands: Any = None
    softcap: Any = None
    return_lse: bool = False
    out_dtype: Any = None


class Attending(NamedTuple):
    """A checked call: attention_problem.py says what each array is. `shape`: of the result, as the caller has it."""
    problem: Attention
    q: Array
    k: Array
    v: Array
    reads: tuple[Array, ...]
    sinks: Array | None
    factors: tuple[Array, Array, Array] | None
    q_offsets: Array | None
    k_offsets: Array | None
    table: Array | None
    lengths: Array | None
    shape: tuple[int, ...]
    dtype: np.dtype[Any]                # of the result


def attending(given: Mapping[str, Any], asked: Asked, on_host: bool = True) -> Attending:
    """The call of these arrays by the names of arguments: q, k, v, and sinks, q_scale, k_scale, v_scale, q_offsets,
    k_offsets, table, lengths, bias and operands['...'] where they were given. TypeError and ValueError, which name the
    argument. on_host: whether elements of offsets, tables and lengths may be read."""
    ragged, paged = "q_offsets" in given, "table" in given
    if "k_offsets" in given and not ragged:
        raise ValueError("k_offsets must be None where q_offsets is")
    q, k, v = (_four(given[name], name, ragged and not (paged and name != "q")) for name in "qkv")
    shape = (*given["q"].shape[:-1], v.shape[-1])
    q_format, kv_format = _formats(q, k, v, "q_scale" in given)
    sequences = _ragged(given, q, k, paged, on_host) if ragged else q.shape[0]
    page, table, lengths, keys = 0, given.get("table"), given.get("lengths"), k.shape[2]
    if paged:
        page = k.shape[2]
        keys = _paged(given, sequences, k, on_host) * page
    heads, kv_heads = q.shape[1], k.shape[1]
    _sizes(q, k, v, paged)
    if lengths is not None and not paged:
        _indices(lengths, "lengths", (sequences,))
        if on_host and lengths.size and not 0 <= int(lengths.min()) <= int(lengths.max()) <= keys:
            raise ValueError(f"lengths must be from 0 to {keys}, the keys of k, not {lengths.min()} to {lengths.max()}")
    arguments.check_flag(asked.return_lse, "return_lse")
    before, after, upper = mask(asked.causal, asked.window)
    softcap = positive(asked.softcap, "softcap") if asked.softcap is not None else 0.0
    score, reads = _score(asked, given, softcap, (sequences, heads, q.shape[2], keys), q_format)
    factors: tuple[Array, Array, Array] | None = None
    if scales := [name for name in FACTORS if name in given]:
        of_q, of_k, of_v = (_factor(given.get(name), name, sequences, n) for name, n in
                            (("q_scale", heads), ("k_scale", kv_heads), ("v_scale", kv_heads)))
        factors = of_q, of_k, of_v
        if kv_format not in NARROW:
            raise ValueError(f"{scales[0]} must be None unless k and v are {' or '.join(NARROW)}, and they are "
                             f"{kv_format}")
    sinks = given.get("sinks")
    if sinks is not None and (sinks.shape != (heads,) or _name(sinks) not in FLOATS):
        raise ValueError(f"sinks must be {heads} floats, one for each head of q, not {sinks.dtype} {sinks.shape}")
    result = q_format if q_format in FLOATS else "bf16"
    out = result if asked.out_dtype is None else formats.get(asked.out_dtype, "out_dtype").name
    if out not in FLOATS:
        raise TypeError(f"out_dtype must be one of {', '.join(FLOATS)}, not {out}")
    scale = 1.0 / math.sqrt(max(q.shape[-1], 1)) if asked.scale is None else arguments.real(asked.scale, "scale")
    problem = Attention(sequences, heads, kv_heads, q.shape[2], keys, q.shape[-1], v.shape[-1], q_format, kv_format,
                        out, scale, before, after, upper, softcap, score, sinks is not None, bool(asked.return_lse),
                        ragged, page, factors is not None)
    return Attending(problem, q, k, v, reads, sinks, factors, given.get("q_offsets"), given.get("k_offsets"), table,
                     lengths, shape, formats.FORMATS[out].dtype)


def _name(x: Array) -> str:
    number_format = formats.find(x.dtype)
    return number_format.name if number_format else str(x.dtype)


def _four(x: Array, name: str, ragged: bool) -> Array:
    """[..., heads, tokens, size] with all four axes."""
    if not 2 <= x.ndim <= MOST_AXES - ragged:
        raise ValueError(f"{name} must have 2 to {MOST_AXES - ragged} axes, [sequences, heads, tokens, size] or the "
                         f"last of these{', without sequences where there are offsets' * ragged}, but its shape is "
                         f"{x.shape}")
    return x[(None,) * (MOST_AXES - x.ndim)]


def _formats(q: Array, k: Array, v: Array, scaled: bool) -> tuple[str, str]:
    of_q, of_k, of_v = map(_name, (q, k, v))
    if of_k != of_v:
        raise TypeError(f"k and v must have one dtype, not {k.dtype} and {v.dtype}")
    if of_q not in (*FLOATS, "e4m3fn"):
        raise TypeError(f"q must be one of {', '.join(FLOATS)}, e4m3fn, not {q.dtype}")
    if of_k not in (of_q, *(NARROW if of_q != "f64" else ())):
        raise TypeError(f"k and v must be {of_q} as q is, or {' or '.join(NARROW)} beside f32, f16 and bf16, not "
                        f"{k.dtype}")
    if scaled and of_q in FLOATS:
        raise ValueError(f"q_scale must be None unless q is e4m3fn, and it is {q.dtype}")
    return of_q, of_k


def _sizes(q: Array, k: Array, v: Array, paged: bool) -> None:
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"k and v must have as many heads and keys as each other, but their shapes are {k.shape} and "
                         f"{v.shape}")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q and k must have the same last axis, but their shapes are {q.shape} and {k.shape}")
    if not paged and q.shape[0] != k.shape[0]:
        raise ValueError(f"q and k must have as many sequences as each other, but their shapes are {q.shape} and "
                         f"{k.shape}")
    if not k.shape[1] or q.shape[1] % k.shape[1]:
        raise ValueError(f"the heads of q must be a multiple of those of k, but there are {q.shape[1]} and "
                         f"{k.shape[1]}")
    if not q.shape[-1]:
        raise ValueError("the last axis of q and k must have 1 or more elements, not 0")


def _indices(x: Array, name: str, shape: tuple[int, ...]) -> None:
    if x.dtype not in INTEGERS or x.shape != shape:
        raise ValueError(f"{name} must be int32 or int64 of shape {shape}, not {x.dtype} {x.shape}")


def _ragged(given: Mapping[str, Any], q: Array, k: Array, paged: bool, on_host: bool) -> int:
    """How many sequences there are."""
    names = ("q_offsets",) if paged else ("q_offsets", "k_offsets")
    for name in names:
        if name not in given:
            raise ValueError(f"{name} must be given, as q_offsets is, unless k and v are paged")
        x = given[name]
        if x.ndim != 1 or x.shape[0] < 1 or x.dtype not in INTEGERS:
            raise ValueError(f"{name} must be int32 or int64 [sequences + 1], not {x.dtype} {x.shape}")
        if x.shape != given["q_offsets"].shape:
            raise ValueError(f"{name} must have as many offsets as q_offsets, {given['q_offsets'].shape[0]}, not "
                             f"{x.shape[0]}")
        total = (q if name == "q_offsets" else k).shape[2]
        if on_host and (x[0] != 0 or x[-1] > total or (np.diff(x) < 0).any()):
            raise ValueError(f"{name} must begin at 0, not descend, and end at {total} or before, and is {x}")
    return int(given["q_offsets"].shape[0]) - 1


def _paged(given: Mapping[str, Any], sequences: int, k: Array, on_host: bool) -> int:
    """The most pages of a sequence."""
    table = given["table"]
    if "k_offsets" in given:
        raise ValueError("k_offsets must be None where table is given: lengths says how many keys there are")
    if "lengths" not in given:
        raise ValueError("lengths must be given where table is: how many keys each sequence has")
    if table.ndim != 2:
        raise ValueError(f"table must be [sequences, pages], but its shape is {table.shape}")
    _indices(table, "table", (sequences, table.shape[1]))
    lengths, page = given["lengths"], k.shape[2]
    _indices(lengths, "lengths", (sequences,))
    if on_host:
        if lengths.size and not 0 <= int(lengths.min()) <= int(lengths.max()) <= table.shape[1] * page:
            raise ValueError(f"lengths must be from 0 to {table.shape[1] * page}, the keys of {table.shape[1]} pages, "
                             f"not {lengths.min()} to {lengths.max()}")
        used = table[np.arange(table.shape[1]) * page < lengths[:, None]]
        if used.size and not 0 <= int(used.min()) <= int(used.max()) < k.shape[0]:
            raise ValueError(f"table must have numbers of pages of k, 0 to {k.shape[0] - 1}, not {used.min()} to "
                             f"{used.max()}")
    return int(table.shape[1])


def mask(causal: Any, window: Any) -> tuple[int | None, int | None, bool]:
    """(before, after, upper) of Attention, by the arguments of these names. TypeError and ValueError."""
    if not isinstance(causal, (int, str, np.bool_)) or causal not in (False, True, "upper left", "lower right"):
        raise ValueError(f'causal must be False, True or "lower right", or "upper left", not {causal!r}')
    ends: list[int | None] = [None, None]
    if window is not None:
        pair = window if isinstance(window, (tuple, list)) else (window, window)
        if len(pair) != 2:
            raise ValueError(f"window must be a number or a pair (before, after), not {window!r}")
        for side, x in enumerate(pair):
            try:
                ends[side] = None if x is None else operator.index(x)
            except TypeError:
                raise TypeError(f"window must be a number, or a pair of numbers or None, not {window!r}") from None
            if x is not None and x < 0:
                raise ValueError(f"window must be 0 or more keys on either side, or None, not {window!r}")
    before, after = ends
    return before, 0 if causal else after, causal == "upper left"


def positive(x: Any, name: str) -> float:
    """A number whose inverse has an f32, too. TypeError and ValueError."""
    value = arguments.real(x, name)
    if not 1e-37 < value < 1e37:
        raise ValueError(f"{name} must be a number above 0, between 1e-37 and 1e37, not {x!r}")
    return value


def added(score: Any, i: Any, j: Any, head: Any, *, bias: Any) -> Any:
    """The score function of an array of floats."""
    return score + bias


def masked(score: Any, i: Any, j: Any, head: Any, *, bias: Any) -> Any:
    """The score function of an array of bool, which says what takes part."""
    return functions.where(bias, score, -math.inf)


def _score(asked: Asked, given: Mapping[str, Any], softcap: float, shape: tuple[int, ...], q_format: str
           ) -> tuple[str, tuple[Array, ...]]:
    """The text of the score function, and the arrays that it reads."""
    arrays: dict[str, Array] = {}
    if BIAS in given:
        arrays = {BIAS: given[BIAS]}
        function: Any = masked if given[BIAS].dtype == bool else added
        if asked.operands:
            raise ValueError("operands must be None unless bias is a function")
    else:
        function = unchanged if asked.bias is None else asked.bias
        if not callable(function) and not isinstance(function, Expression):
            raise TypeError(f"bias must be an array or a function of (score, i, j, head), not {asked.bias!r}")
        if asked.operands and asked.bias is None:
            raise ValueError("operands must be None unless bias is a function")
        for name in asked.operands or ():
            arrays[name] = given[f"operands[{name!r}]"]
    if function is unchanged and not softcap:
        return "", ()
    reads, taken = [], []
    for name, x in arrays.items():
        argument = name if BIAS in given else f"operands[{name!r}]"
        number_format = formats.find(x.dtype)
        if number_format is None or x.dtype.kind == "c":
            raise TypeError(f"{argument} must be of real numbers or bool, not {x.dtype}")
        x = x[(..., *(slice(None) if stride or extent < 2 else slice(0, 1)
                      for extent, stride in zip(x.shape, x.strides)))]
        rows, columns = ((1, 1) + x.shape)[-2:]
        place = ("full" if columns > 1 else "column") if rows > 1 else "row" if columns > 1 else "scalar"
        try:
            taken.append(np.broadcast_to(x, shape))
        except ValueError:
            raise ValueError(f"{argument} must broadcast to [sequences, heads, queries, keys], {shape}, but its shape "
                             f"is {x.shape}") from None
        reads.append(Aux(name, number_format.name, place))
    kinds = tuple((x.name, kind_of(x.format)) for x in reads)
    if isinstance(function, Expression):
        return score_text(capped(function, kinds, softcap), tuple(reads)), tuple(taken)
    expression = remembered.cached(function, ("score", kinds, softcap), lambda: traced(function, kinds, softcap))
    return score_text(expression, tuple(reads)), tuple(taken)


def _factor(x: Any, name: str, sequences: int, heads: int) -> Array:
    """[sequences, heads] of f32."""
    x = np.asarray(1.0 if x is None else x, *(() if isinstance(x, np.ndarray) else (np.float32,)))
    if x.dtype != np.float32:
        raise TypeError(f"{name} must be float32, not {x.dtype}")
    try:
        return np.broadcast_to(x, (sequences, heads))
    except ValueError:
        raise ValueError(f"{name} must broadcast to [sequences, heads], {(sequences, heads)}, but its shape is "
                         f"{x.shape}") from None


def checked_outs(out: Any, found: Attending) -> Array | None:
    """The array that the caller gave for the result, with four axes; it must have its shape and dtype."""
    if out is None:
        return None
    given = arguments.output(out)
    assert given is not None
    if given.shape != found.shape or given.dtype != found.dtype:
        raise ValueError(f"out must be {found.dtype} {found.shape}, as the result is, not {given.dtype} {given.shape}")
    return given[(None,) * (MOST_AXES - given.ndim)]
