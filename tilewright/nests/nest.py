"""`LoopNest`: loops over arrays as data, whoever wrote them: which rounds there are, and what each one computes.

    for i in range(m):                  Statement(loops=(i, j, p), target=C[i, j], reduce="add",
        for j in range(n):                        value=("mul", ("load", A[i, p]), ("load", B[p, j])))
            for p in range(k):
                C[i, j] += A[i, p] * B[p, j]

A value is a term, a tuple: ("number", x), ("parameter", name) for a number that the call gives, ("index", Polynomial),
("load", Access), or an operation of `expressions.operations` and its operands, ("add", x, y). Arithmetic is that of
`arithmetic(statement)`: the format that NumPy promotes what the statement reads to, but f32 where those are narrower
floats, and i32 where they are narrower integers; the target takes the result as a store does.
"""
from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from tilewright.expressions.operations import OPERATIONS
from tilewright.ir import Kernel, Type, f32, f64, i32, i64
from tilewright.ir.program import Line
from tilewright.nests.polynomial import Polynomial, polynomial

Term = tuple[Any, ...]
LEAVES = ("number", "parameter", "index", "load")


class Refused(TypeError):
    """Loops that are not taken. The message has the line and the reason."""

    def __init__(self, line: Line, reason: str) -> None:
        super().__init__(f"{line}: {reason}" + (f"\n    {line.text}" if line.text else ""))
        self.line, self.reason = line, reason


def refuse(line: Line, reason: str) -> NoReturn:
    raise Refused(line, reason)


class Access(NamedTuple):
    """An element: a subscript for each axis of an array, one, in elements, for a pointer, none for a scalar."""
    array: str
    subscripts: tuple[Polynomial, ...]

    def replaced(self, by: dict[str, Any]) -> Access:
        return Access(self.array, tuple([x.replaced(by) for x in self.subscripts]))

    def __str__(self) -> str:
        return f"{self.array}[{', '.join(map(str, self.subscripts))}]" if self.subscripts else self.array


@dataclass(frozen=True)
class Loop:
    """Rounds of `index` = start, start + step ... below stop, step >= 1. `kind`: "loop", or "block" or "thread", which
    a launch has in any order."""
    index: str
    start: Polynomial
    stop: Polynomial
    step: int
    line: Line
    kind: str = "loop"


class Statement(NamedTuple):
    """In every round of its loops in which all `conditions` are >= 0: target = value, or with `reduce`, which is add,
    mul, min, max, fmin or fmax, target = reduce(target, value)."""
    loops: tuple[Loop, ...]
    conditions: tuple[Polynomial, ...]
    target: Access
    reduce: str
    value: Term
    line: Line


class Parameter(NamedTuple):
    """A parameter of the function. `kind`: "array", "pointer" (of contiguous elements), "size" (a whole number that
    bounds and subscripts may have), or "number"."""
    name: str
    kind: str
    element: Type | None = None
    axes: int = 0


@dataclass(frozen=True)
class LoopNest:
    """`sizes`: the names in bounds and subscripts that are no indices: parameters, and "A.shape[0]" of arrays.
    `scalars`: variables of the function, each of one format, which keep their value until the next assignment.
    `reads`: elements that the source reads where the record does not: `statements` read them later, or in fewer rounds.
    Each is a statement that does nothing. Their arrays must share no memory with others that are written."""
    name: str
    parameters: tuple[Parameter, ...]
    sizes: tuple[str, ...]
    scalars: dict[str, Type]
    statements: tuple[Statement, ...]
    threads: tuple[int, int] | None = None      # of a recorded kernel's CTA
    reads: tuple[Statement, ...] = ()

    def element(self, name: str) -> Type:
        """The format of an array's elements, or of a scalar."""
        type_of_element = self.scalars.get(name) or next(p.element for p in self.parameters if p.name == name)
        assert type_of_element is not None
        return type_of_element

    def __str__(self) -> str:
        lines, open = [], tuple[Loop, ...]()
        for s in self.statements:
            shared = 0
            while shared < min(len(open), len(s.loops)) and open[shared].index == s.loops[shared].index:
                shared += 1
            for depth, x in list(enumerate(s.loops))[shared:]:
                step = f" by {x.step}" if x.step != 1 else ""
                lines.append("  " * depth + f"{x.kind} {x.index} = {x.start} ... {x.stop - 1}{step}")
            open = s.loops
            when = "".join(f" where {c} >= 0" for c in s.conditions)
            how = f"{s.reduce}= " if s.reduce else "= "
            lines.append("  " * len(open) + f"{s.target} {how}{text(s.value)}{when}")
        return "\n".join(lines)


def leaves(term: Term, kind: str = "load") -> Iterator[Any]:
    """The accesses, or the polynomials, numbers or names, of a term's leaves of a kind, from left to right."""
    if term[0] in LEAVES:
        if term[0] == kind:
            yield term[1]
    else:
        for x in term[1:]:
            yield from leaves(x, kind)


def mapped(term: Term, leaf: Callable[[Term], Term]) -> Term:
    """The term with leaf(x) for its leaves."""
    return leaf(term) if term[0] in LEAVES else (term[0], *[mapped(x, leaf) for x in term[1:]])


def accesses_mapped(term: Term, access: Callable[[Access], Any], index: Callable[[Polynomial], Polynomial] = lambda p: p
                    ) -> Term:
    """The term with access(a) for its accesses and index(p) for its indices."""
    def leaf(x: Term) -> Term:
        return ("load", access(x[1])) if x[0] == "load" else ("index", index(x[1])) if x[0] == "index" else x
    return mapped(term, leaf)


_NAMES = {"fmin": "min", "fmax": "max", "min": "minimum", "max": "maximum"}         # in Python and NumPy
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}


def text(term: Term, leaf: Callable[[Term], str] = lambda x: f"{x[1]:g}" if isinstance(x[1], float) else str(x[1]),
         inner: bool = False) -> str:
    """A term as Python writes it."""
    if term[0] in LEAVES:
        return leaf(term)
    xs = [text(x, leaf, term[0] in _SIGNS or term[0] == "neg") for x in term[1:]]
    if term[0] in _SIGNS:
        return ("({})" if inner else "{}").format(f"{xs[0]} {_SIGNS[term[0]]} {xs[1]}")
    return f"-{xs[0]}" if term[0] == "neg" else f"{_NAMES.get(term[0], term[0])}({', '.join(xs)})"


def promoted(types: Sequence[Type]) -> Type:
    """The format of arithmetic on these, as NumPy promotes them, but f32 for narrower floats, i32 for narrower
    integers."""
    if any(t.is_float for t in types):
        wide = any(t == f64 or (not t.is_float and t.bits > 16) for t in types)
        return f64 if wide else f32
    return i64 if any(t.bits > 32 for t in types) else i32


def arithmetic(value: Term, types: Sequence[Type]) -> Type:
    """The format in which a term is computed that reads elements of these formats. Literals, numbers of the call and
    indices take it; but where they, or functions such as sqrt, make floats of whole numbers, that is in f64."""
    t = promoted(types) if types else i64
    return f64 if not t.is_float and _floats(value) else t


def _floats(term: Term) -> bool:
    if term[0] in LEAVES:
        return term[0] == "parameter" or (term[0] == "number" and isinstance(term[1], float))
    known = OPERATIONS.get(term[0])             # none of a schedule's exchange between lanes
    return (known is not None and known.takes == ("float",)) or any(map(_floats, term[1:]))


def scalar_formats(scalars: Iterable[str], parameters: Mapping[str, Parameter], statements: Sequence[Statement]
                   ) -> dict[str, Type]:
    """The format of each scalar: that of arithmetic on all that it is given. Python's own, i64 or f64, if that is
    numbers alone."""
    values = {x: [s.value for s in statements if s.target.array == x] for x in sorted(scalars)}
    formats = dict[str, Type]()

    def inferred(name: str) -> Type | None:
        types = [formats.get(a.array) or (parameters[a.array].element if a.array in parameters else None)
                 for value in values[name] for a in leaves(value)]
        known = [t for t in types if t is not None]
        return arithmetic(("add", *values[name]), known) if known else formats.get(name)

    for _ in range(2 * len(values) + 2):    # scalars of scalars
        before = dict(formats)
        formats.update({name: t for name in values if (t := inferred(name)) is not None})
        if formats == before:
            formats.update({name: arithmetic(("add", *values[name]), []) for name in values if name not in formats})
    return formats


_WHOLE = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}


def folded(name: str, x: Term, y: Term) -> Term:
    """Numbers and indices are computed with when the source is read."""
    if name in _WHOLE and all(t[0] == "index" or (t[0] == "number" and isinstance(t[1], int)) for t in (x, y)):
        if x[0] == y[0] == "number":
            return ("number", _WHOLE[name](x[1], y[1]))
        return ("index", _WHOLE[name](polynomial(x[1]), polynomial(y[1])))
    if x[0] == y[0] == "number" and (name != "div" or y[1]):
        return ("number", (_WHOLE | {"div": operator.truediv})[name](x[1], y[1]))
    return (name, x, y)


def negative(x: Term) -> Term:
    return ("number", -x[1]) if x[0] == "number" else ("index", -x[1]) if x[0] == "index" else ("neg", x)


def parameter_names(names: Iterable[str], taken: Iterable[str]) -> list[str]:
    """Names for a function's record, A_shape0 for A.shape[0]; none is an option of Kernel's, or taken."""
    known = {*inspect.signature(Kernel.__init__).parameters, *taken}
    ordered = list[str]()
    for x in names:
        ordered.append(x.rstrip("]").replace("[", "").replace(".", "_"))
        while ordered[-1] in known:
            ordered[-1] += "_"
        known.add(ordered[-1])
    return ordered


REDUCTIONS = ("add", "mul", "min", "max", "fmin", "fmax")
COMMUTE = ("add", "mul", "min", "max")


def statement(loops: tuple[Loop, ...], conditions: tuple[Polynomial, ...], target: Access, value: Term, line: Line
              ) -> Statement:
    """The statement target = value: a reduction, if value is reduce(target, x) and x has no target."""
    operation, own = value[0], ("load", target)
    if operation == "sub" and value[1] == own and target not in leaves(value[2]):
        return Statement(loops, conditions, target, "add", ("neg", value[2]), line)
    if operation in REDUCTIONS and own in value[1:] and (operation in COMMUTE or value[1] == own):
        rest = value[2] if value[1] == own else value[1]
        if target not in leaves(rest):
            return Statement(loops, conditions, target, operation, rest, line)
    return Statement(loops, conditions, target, "", value, line)
