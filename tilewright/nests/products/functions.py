"""Terms as functions: evaluated with anything that has operators, and as Python source, for epilogues."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.expressions.tracing import apply
from tilewright.nests.nest import LEAVES, Term

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "&",
          "or": "|"}
_NUMPY = {"min": "np.minimum", "max": "np.maximum", "fmin": "np.fmin", "fmax": "np.fmax", "abs": "abs"}


def computed(term: Term, leaf: Callable[[Term], Any]) -> Any:
    """A term's value, of leaf(x) for its leaves: numbers, NumPy's arrays, or symbols of a trace."""
    if term[0] in LEAVES:
        return leaf(term)
    return apply(term[0], *[computed(x, leaf) for x in term[1:]])


def source(term: Term, leaf: Callable[[Term], str]) -> str:
    """A term as Python with the functions of NumPy and tilewright, `np` and `tw`."""
    if term[0] == "number":
        return repr(term[1]) if abs(term[1]) != np.inf else "1e999" if term[1] > 0 else "-1e999"
    if term[0] in LEAVES:
        return leaf(term)
    xs = [source(x, leaf) for x in term[1:]]
    if term[0] in _SIGNS:
        return f"({xs[0]} {_SIGNS[term[0]]} {xs[1]})"
    if term[0] == "neg":
        return f"(-{xs[0]})"
    return f"{_NUMPY.get(term[0], 'tw.' + term[0])}({', '.join(xs)})"


def function(terms: Sequence[Term], parameters: Sequence[str], leaf: Callable[[Term], str]) -> Callable[..., Any]:
    """A Python function of these parameters: all that it computes is in its code, by which calls are remembered."""
    import tilewright

    values = ", ".join(source(x, leaf) for x in terms)
    text = f"lambda {', '.join(parameters)}: " + (values if len(terms) == 1 else f"({values})")
    return eval(text, {"tw": tilewright, "np": np})
