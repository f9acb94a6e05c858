"""`run(nest, *arguments)`: a LoopNest as Python's loops over NumPy's arrays, changed in place. For small sizes.

It is written from nest.py's text alone, so that it judges front ends and lowerings. Threads and blocks run one after
the other. Statements are Python's source, which `source(nest)` shows.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.expressions.operations import OPERATIONS
from tilewright.ir import Type, f32, f64, i32, i64
from tilewright.nests.nest import LEAVES, Access, LoopNest, Statement, Term, leaves
from tilewright.nests.polynomial import Polynomial

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "&", "or": "|",
          "xor": "^", "shl": "<<", "shr": ">>"}


def _fmin(x: Any, y: Any) -> Any: return y if y < x else x
def _fmax(x: Any, y: Any) -> Any: return y if y > x else x


_FUNCTIONS = {"min": np.minimum, "max": np.maximum, "fmin": _fmin, "fmax": _fmax, "div": np.divide, "neg": np.negative,
              "abs": np.abs, **{name: OPERATIONS[name].numpy for name in ("sqrt", "exp", "log", "tanh", "erf", "gelu",
                                                                         "sigmoid", "gelu_tanh")}}


def _inside(*subscripts: int) -> Any:
    """The subscripts; negative ones are outside."""
    if min(subscripts) < 0:
        raise IndexError(f"subscripts {subscripts}")
    return subscripts


def _float_term(term: Term) -> bool:
    if term[0] in LEAVES:
        return term[0] == "parameter" or (term[0] == "number" and isinstance(term[1], float))
    return OPERATIONS[term[0]].takes == ("float",) or any(map(_float_term, term[1:]))


def arithmetic(nest: LoopNest, s: Statement) -> Type:
    """The format in which a statement computes: what NumPy promotes its elements to, f32 and i32 at least."""
    read = [nest.element(a.array) for a in leaves(s.value)] + [nest.element(s.target.array)] * bool(s.reduce)
    wide = any(t == f64 or (not t.is_float and t.bits > 16) for t in read)
    if any(t.is_float for t in read):
        return f64 if wide else f32
    if _float_term(s.value):
        return f64
    return i64 if not read or any(t.bits > 32 for t in read) else i32


class _Source:
    def __init__(self, nest: LoopNest, backwards: bool = False) -> None:
        self.nest, self.backwards, self.names = nest, backwards, dict[str, str]()
        self.space: dict[str, Any] = {"_inside": _inside}
        self.lines = ["def run():"]
        self._block([(s, s.loops) for s in nest.statements], 1)
        self.lines.append("    pass")

    def name(self, x: str) -> str:
        return self.names.setdefault(x, f"v{len(self.names)}_{''.join(c if c.isalnum() else '_' for c in x)}")

    def whole(self, p: Polynomial) -> str:
        return " + ".join("*".join([str(c), *map(self.name, names)]) for names, c in p.terms) or "0"

    def _block(self, left: list[tuple[Statement, tuple[Any, ...]]], depth: int) -> None:
        n = 0
        while n < len(left):
            s, loops = left[n]
            if not loops:
                self._statement(s, "    " * depth)
                n += 1
                continue
            x, end = loops[0], n
            while end < len(left) and left[end][1] and left[end][1][0].index == x.index:
                end += 1
            rounds = f"range({self.whole(x.start)}, {self.whole(x.stop)}, {x.step})"
            rounds = f"reversed({rounds})" if self.backwards and x.kind != "loop" else rounds
            self.lines.append(f"{'    ' * depth}for {self.name(x.index)} in {rounds}:")
            self._block([(s, rest[1:]) for s, rest in left[n:end]], depth + 1)
            n = end

    def _statement(self, s: Statement, indent: str) -> None:
        t = str(arithmetic(self.nest, s))
        value, target = self.term(s.value, t), self.element(s.target)
        if s.reduce:
            value = self._operation(s.reduce, [self._format(t, target), value])
        element = str(self.nest.element(s.target.array))
        self.space[f"as_{element}"] = _stored(self.nest.element(s.target.array))
        if s.conditions:
            self.lines.append(f"{indent}if {' and '.join(f'{self.whole(c)} >= 0' for c in s.conditions)}:")
            indent += "    "
        self.lines.append(f"{indent}{target} = as_{element}({value})")

    def element(self, a: Access) -> str:
        if not a.subscripts:
            return self.name(a.array)
        return f"{self.name(a.array)}[_inside({', '.join(map(self.whole, a.subscripts))})]"

    def _format(self, t: str, x: str) -> str:
        self.space[t] = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64}[t]
        return f"{t}({x})"

    def term(self, v: Term, t: str) -> str:
        match v[0]:
            case "number":
                return self._format(t, repr(v[1]) if np.isfinite(v[1]) else f"float('{v[1]}')")
            case "parameter":
                return self._format(t, self.name(v[1]))
            case "index":
                return self._format(t, self.whole(v[1]))
            case "load":
                return self._format(t, self.element(v[1]))
        return self._operation(v[0], [self.term(x, t) for x in v[1:]])

    def _operation(self, name: str, xs: list[str]) -> str:
        if name == "where":
            return f"({xs[1]} if {xs[0]} else {xs[2]})"
        if name in _SIGNS:
            return f"({xs[0]} {_SIGNS[name]} {xs[1]})"
        self.space[f"_{name}"] = _FUNCTIONS[name]
        return f"_{name}({', '.join(xs)})"


def _stored(t: Type) -> Any:
    """A number as an element of this format."""
    return lambda x: np.asarray(x).astype(t.numpy)[()]


def source(nest: LoopNest) -> str:
    """The nest as Python's source."""
    return "\n".join(_Source(nest).lines)


def run(nest: LoopNest, *arguments: Any, backwards: bool = False) -> None:
    """The nest with one argument for each parameter: an array, a whole number or a float. `backwards`: the last block
    and thread first, which must not matter."""
    made = _Source(nest, backwards)
    space: dict[str, Any] = dict(made.space)
    for p, x in zip(nest.parameters, arguments, strict=True):
        space[made.name(p.name)] = int(x) if p.kind == "size" else x if p.kind != "number" else (
            p.element.numpy.type(x) if p.element is not None else x)
        for axis, n in enumerate(x.shape if isinstance(x, np.ndarray) else ()):
            space[made.name(f"{p.name}.shape[{axis}]")] = n
    scalars = [made.name(name) for name in nest.scalars]
    if scalars:
        made.lines.insert(1, f"    global {', '.join(scalars)}")
    exec(compile("\n".join(made.lines), nest.name, "exec"), space)
    with np.errstate(all="ignore"):
        space["run"]()


def results(nest: LoopNest, arguments: Sequence[Any], backwards: bool = False) -> list[Any]:
    """Copies of the arguments as the nest leaves them."""
    copies = [x.copy() if isinstance(x, np.ndarray) else x for x in arguments]
    run(nest, *copies, backwards=backwards)
    return copies
