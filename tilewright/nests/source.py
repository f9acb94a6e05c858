"""Python's source of nested `for` loops over arrays, as a LoopNest.

`nest(function, kinds)` reads

    for i in range(start, stop, step), stop - start and subscripts affine in indices, with whole coefficients
    a[i, j + 1] = ..., += -= *=, variables, min, max, abs, where and the functions of expressions
    if with orders of indices and sizes, joined by `and`: these rounds alone; with numbers: a choice by `where`
    m, n = a.shape, a.shape[0], len(a), names of constants outside of the function

and refuses everything else with the line and the reason.
"""
from __future__ import annotations

import ast
import inspect
import operator
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from tilewright.ir import Type
from tilewright.ir.program import Line
from tilewright.ir.types import f32, f64, i32
from tilewright.nests.nest import (
    Access,
    Loop,
    LoopNest,
    Parameter,
    Statement,
    Term,
    arithmetic,
    leaves,
    promoted as promoted,
    refuse,
    statement,
)
from tilewright.nests.polynomial import Polynomial, polynomial

_OPERATORS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}
_WHOLE = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}
_FUNCTIONS = {"min": "fmin", "max": "fmax", "minimum": "min", "maximum": "max", "fmin": "fmin", "fmax": "fmax",
              "abs": "abs", "fabs": "abs", "exp": "exp", "log": "log", "sqrt": "sqrt", "tanh": "tanh", "erf": "erf",
              "gelu": "gelu", "sigmoid": "sigmoid"}
_ORDERS = {ast.Lt: ("lt", False), ast.LtE: ("le", False), ast.Gt: ("lt", True), ast.GtE: ("le", True),
           ast.Eq: ("eq", False), ast.NotEq: ("ne", False)}


def nest(function: Any, kinds: Sequence[tuple[str, Type | None, int]]) -> LoopNest:
    """The loops of a function whose parameters are of these kinds: (kind, element, axes) of each `Parameter`."""
    return _Source(function, kinds).nest


class _Source:
    def __init__(self, function: Any, kinds: Sequence[tuple[str, Type | None, int]]) -> None:
        code = function.__code__
        self.function, self.file, self.first = function, code.co_filename, code.co_firstlineno
        self.tree: Any = None
        try:
            self.tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        except (OSError, TypeError):
            refuse(Line(self.file, self.first), f"the source of {function.__name__} is not to be had")
        names = [x.arg for x in self.tree.args.args]
        if len(names) != len(kinds) or self.tree.args.vararg or self.tree.args.kwonlyargs or self.tree.args.kwarg:
            takes = ", ".join(inspect.signature(function).parameters)
            refuse(Line(self.file, self.first), f"{function.__name__} takes ({takes}), and is given {len(kinds)} "
                   "arguments")
        self.parameters = {name: Parameter(name, *kind) for name, kind in zip(names, kinds)}
        self.sizes = dict.fromkeys(name for name, p in self.parameters.items() if p.kind == "size")
        self.names: dict[str, Term] = {name: ("index", polynomial(name)) for name in self.sizes}
        self.names |= {name: ("parameter", name) for name, p in self.parameters.items() if p.kind == "number"}
        self.count: dict[str, int] = {}
        self.statements: list[Statement] = []
        nodes = list(ast.walk(self.tree))
        self.written = {_array(n) for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)}
        stores = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        indices = {n.target.id for n in nodes if isinstance(n, ast.For) and isinstance(n.target, ast.Name)}
        self.scalars = {x for x in stores if stores.count(x) > 1} - indices
        self.scalars |= {n.target.id for n in nodes if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)}
        for x in self.scalars & (indices | self.parameters.keys()):
            refuse(Line(self.file, self.first), f"{x} is assigned to, and is an index or a parameter")
        self._block(self.tree.body, (), (), ())
        formats = dict[str, Type]()
        for last in [False, True]:          # those that are given numbers alone: when nothing else is left
            for name in sorted(self.scalars) * len(self.scalars):       # scalars of scalars of scalars
                values = [s.value for s in self.statements if s.target.array == name]
                types = [t for value in values if (t := self._format(value, formats)) is not None]
                if types or (last and name not in formats):
                    formats[name] = arithmetic(("add", *values), types)
        self.nest = LoopNest(function.__name__, tuple(self.parameters.values()), tuple(self.sizes), formats,
                             tuple(self.statements))

    def _format(self, value: Term, scalars: dict[str, Type]) -> Type | None:
        formats = {**{name: p.element for name, p in self.parameters.items()}, **scalars}
        types = [t for a in leaves(value) if (t := formats.get(a.array)) is not None]
        return arithmetic(value, types) if types else None

    def line(self, n: ast.AST) -> Line:
        return Line(self.file, self.first + n.lineno - 1)  # type: ignore[attr-defined]

    def refuse(self, n: ast.AST, reason: str) -> NoReturn:
        refuse(self.line(n), reason)

    # ---- values

    def whole(self, n: ast.AST) -> Polynomial:
        """A subscript or a bound."""
        term = self.value(n)
        if term[0] == "index":
            return term[1]
        if term[0] == "number" and isinstance(term[1], int):
            return polynomial(term[1])
        return self.refuse(n, f"{ast.unparse(n)} is no sum of loop indices and sizes with whole coefficients")

    def value(self, n: Any) -> Term:
        match n:
            case ast.Constant(x) if isinstance(x, (int, float)):
                return ("number", int(x) if isinstance(x, bool) else x)
            case ast.Name(x):
                return self._name(n, x)
            case ast.Attribute(ast.Name("math" | "np" | "numpy"), ("inf" | "pi" | "e") as x):
                return ("number", float(getattr(np, x)))
            case ast.Subscript(ast.Attribute(ast.Name(x), "shape"), axis) if x in self.parameters:
                at = ast.literal_eval(axis) if isinstance(axis, (ast.Constant, ast.UnaryOp)) else None
                return ("index", self._size(n, x, at))
            case ast.Call(ast.Name("len"), [ast.Name(x)]):
                return ("index", self._size(n, x, 0))
            case ast.Subscript():
                return ("load", self._access(n))
            case ast.UnaryOp(ast.USub(), x):
                return self._negative(self.value(x))
            case ast.UnaryOp(ast.UAdd(), x):
                return self.value(x)
            case ast.BinOp(b, ast.Pow(), ast.Constant(power)) if power in (2, 3, 0.5):
                base = self.value(b)
                if power == 0.5:
                    return ("sqrt", base)
                return ("mul", base, base) if power == 2 else ("mul", ("mul", base, base), base)
            case ast.BinOp(x, op, y) if type(op) in _OPERATORS:
                return _folded(_OPERATORS[type(op)], self.value(x), self.value(y))
            case ast.Call(f, args, []) if args:
                return self._call(n, f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", ""), args)
            case ast.IfExp(test, x, y):
                return ("where", self._choice(test), self.value(x), self.value(y))
        return self.refuse(n, f"{ast.unparse(n)} is no expression that is taken")

    def _name(self, n: ast.AST, x: str) -> Term:
        if x in self.scalars:
            return ("load", Access(x, ()))
        if x in self.names:
            return self.names[x]
        outside = {**self.function.__globals__, **inspect.getclosurevars(self.function).nonlocals}.get(x)
        if isinstance(outside, (int, float)) and not isinstance(outside, bool):
            return ("number", outside)
        what = "is an array, and needs a subscript" if x in self.parameters else "is not known here"
        return self.refuse(n, f"{x} {what}")

    def _call(self, n: ast.AST, name: str, args: list[Any]) -> Term:
        if name == "where" and len(args) == 3:
            return ("where", self._choice(args[0]), self.value(args[1]), self.value(args[2]))
        xs = [self.value(x) for x in args]
        if name in ("min", "max", "minimum", "maximum", "fmin", "fmax") and len(xs) >= 2:
            found = xs[0]
            for x in xs[1:]:
                found = (_FUNCTIONS[name], found, x)
            return found
        if name == "relu" and len(xs) == 1:
            return ("max", xs[0], ("number", 0))
        if name == "silu" and len(xs) == 1:
            return ("mul", xs[0], ("sigmoid", xs[0]))
        if name in _FUNCTIONS and len(xs) == 1 and name not in ("min", "max"):
            return (_FUNCTIONS[name], xs[0])
        if name in ("float32", "int32", "float") and len(xs) == 1:
            return self._converted(n, name, xs[0])
        return self.refuse(n, f"the function {name} of {len(xs)} is not taken")

    def _converted(self, n: ast.AST, name: str, x: Term) -> Term:
        """float32(x), int32(x): what arithmetic in this format computes in anyway."""
        wide = {"float32": f32, "int32": i32, "float": f64}[name]
        scalars = dict.fromkeys(self.scalars, f32)
        if x[0] in ("number", "parameter") or self._format(x, scalars) == wide:
            return x
        return self.refuse(n, f"a conversion to {name} is taken of values that are computed in it already")

    def _choice(self, test: Any) -> Term:
        """A condition of a choice, a term of kind bool."""
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in _ORDERS:
            name, exchanged = _ORDERS[type(test.ops[0])]
            x, y = self.value(test.left), self.value(test.comparators[0])
            return (name, y, x) if exchanged else (name, x, y)
        if isinstance(test, ast.BoolOp):
            found = self._choice(test.values[0])
            for part in test.values[1:]:
                found = ("and" if isinstance(test.op, ast.And) else "or", found, self._choice(part))
            return found
        return self.refuse(test, f"{ast.unparse(test)} is no comparison")

    @staticmethod
    def _negative(x: Term) -> Term:
        return ("number", -x[1]) if x[0] == "number" else ("index", -x[1]) if x[0] == "index" else ("neg", x)

    def _size(self, n: ast.AST, array: str, axis: Any) -> Polynomial:
        p = self.parameters.get(array)
        if p is None or p.kind != "array" or not isinstance(axis, int) or not -p.axes <= axis < p.axes:
            self.refuse(n, f"{ast.unparse(n)} is no size of an array argument")
        name = f"{array}.shape[{axis % p.axes}]"
        self.sizes[name] = None
        return polynomial(name)

    def _access(self, n: Any) -> Access:
        if isinstance(n, ast.Name):
            if n.id in self.parameters:
                self.refuse(n, f"{n.id} is a parameter: what is assigned to it is lost")
            self.scalars.add(n.id)
            return Access(n.id, ())
        whole, subscripts = n, list[Any]()
        while isinstance(n, ast.Subscript):
            subscripts[:0] = n.slice.elts if isinstance(n.slice, ast.Tuple) else [n.slice]
            n = n.value
        p = self.parameters.get(n.id) if isinstance(n, ast.Name) else None
        if p is None or p.kind != "array":
            self.refuse(whole, f"{ast.unparse(n)} is no array argument")
        if len(subscripts) != p.axes:
            self.refuse(whole, f"{p.name} has {p.axes} axes, and is given {len(subscripts)} subscripts")
        found = [self.whole(x) for x in subscripts]
        for axis, x in enumerate(found):
            if x.constant is not None and x.constant < 0:           # as Python counts from the end
                found[axis] = x + self._size(whole, p.name, axis)
        return Access(p.name, tuple(found))

    # ---- statements

    def _block(self, body: Sequence[Any], loops: tuple[Loop, ...], conditions: tuple[Polynomial, ...],
               choices: tuple[Term, ...]) -> None:
        for n in body:
            match n:
                case ast.For(ast.Name(i), ast.Call(ast.Name("range"), bounds, []), inner, []):
                    self._loop(n, i, bounds, inner, (loops, conditions, choices))
                case ast.If(test, inner, otherwise):
                    self._if(test, inner, otherwise, loops, conditions, choices)
                case ast.Assign([ast.Tuple(targets)], ast.Attribute(ast.Name(x), "shape")) if x in self.parameters:
                    if len(targets) != self.parameters[x].axes:
                        self.refuse(n, f"{x} has {self.parameters[x].axes} axes")
                    for axis, t in enumerate(targets):
                        self.names[ast.unparse(t)] = ("index", self._size(n, x, axis))
                case ast.Assign([ast.Name(x)], value) if x not in self.scalars:
                    term = self.value(value)
                    fixed = all(a.subscripts and a.array not in self.written for a in leaves(term))
                    if x not in self.parameters and fixed and not conditions and not choices:
                        self.names[x] = term
                    else:
                        self._add(loops, conditions, choices, self._access(n.targets[0]), term, n)
                case ast.Assign([target], value):
                    term = self.value(value)
                    self._add(loops, conditions, choices, self._access(target), term, n)
                case ast.AugAssign(target, op, value) if type(op) in _OPERATORS:
                    access = self._access(target)
                    own: Term = ("load", access)
                    self._add(loops, conditions, choices, access, (_OPERATORS[type(op)], own, self.value(value)), n)
                case ast.Return(None) | ast.Pass() | ast.Expr(ast.Constant()):
                    pass
                case ast.Return():
                    self.refuse(n, "loops return nothing: results are written to arrays")
                case _:
                    self.refuse(n, f"{type(n).__name__.lower()} is not taken")

    def _loop(self, n: Any, i: str, bounds: list[Any], inner: list[Any], around: tuple[Any, Any, Any]) -> None:
        start, stop, step = [polynomial(0), self.whole(bounds[0]), polynomial(1)] if len(bounds) == 1 else [
            *map(self.whole, bounds), polynomial(1)][:3]
        if not step.constant or step.constant < -1:
            self.refuse(n, "the step of a range is a positive constant, or -1")
        self.count[i] = self.count.get(i, 0) + 1
        index = i if self.count[i] == 1 and i not in self.sizes else f"{i}.{self.count[i]}"
        loop = Loop(index, start, stop, step.constant, self.line(n))
        term: Term = ("index", polynomial(index))
        if step.constant == -1:             # rounds counted from 0
            loop = Loop(index, polynomial(0), start - stop, 1, self.line(n))
            term = ("index", start - index)
        before = dict(self.names)
        self.names[i] = term
        loops, conditions, choices = around
        self._block(inner, (*loops, loop), conditions, choices)
        self.names = before                 # a name that a loop has given is known in it alone

    def _if(self, test: Any, inner: list[Any], otherwise: list[Any], loops: tuple[Loop, ...],
            conditions: tuple[Polynomial, ...], choices: tuple[Term, ...]) -> None:
        least = self._minimum(test, inner, otherwise)
        if least is not None:
            self._add(loops, conditions, choices, *least, inner[0])
            return
        parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
        orders = [x for part in parts if (x := self._orders(part)) is not None]
        if len(orders) == len(parts):
            found = [x for part in orders for x in part]
            self._block(inner, loops, (*conditions, *found), choices)
            if otherwise:
                if len(found) != 1:
                    self.refuse(otherwise[0], "else follows one comparison of indices, not several")
                self._block(otherwise, loops, (*conditions, -found[0] - 1), choices)
            return
        choice = self._choice(test)
        self._block(inner, loops, conditions, (*choices, choice))
        if otherwise:
            self._block(otherwise, loops, conditions, (*choices, ("eq", choice, ("number", 0))))

    def _orders(self, test: Any) -> list[Polynomial] | None:
        """What is >= 0 where this chain of comparisons of indices and sizes holds; None for one of other values."""
        if not isinstance(test, ast.Compare):
            return None
        found = []
        for left, op, right in zip([test.left, *test.comparators], test.ops, test.comparators):
            xs = [self.value(left), self.value(right)]
            if any(x[0] != "index" and not (x[0] == "number" and isinstance(x[1], int)) for x in xs):
                return None
            a, b = (polynomial(x[1]) for x in xs)
            if isinstance(op, (ast.Gt, ast.GtE)):
                a, b = b, a
            if isinstance(op, ast.Eq):
                found += [a - b, b - a]
            elif isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
                found.append(b - a - (1 if isinstance(op, (ast.Lt, ast.Gt)) else 0))
            else:
                self.refuse(test, "indices are compared by < <= > >= or ==")
        return found

    def _minimum(self, test: Any, inner: list[Any], otherwise: list[Any]) -> tuple[Access, Term] | None:
        """`if v < t: t = v` as t = fmin(t, v)."""
        if otherwise or len(inner) != 1 or not isinstance(inner[0], ast.Assign) or not isinstance(test, ast.Compare):
            return None
        if len(test.ops) != 1 or not isinstance(test.ops[0], (ast.Lt, ast.Gt)):
            return None
        (target,), value = inner[0].targets, inner[0].value
        new, old = ast.unparse(value), ast.unparse(target)
        left, right = ast.unparse(test.left), ast.unparse(test.comparators[0])
        if {left, right} != {new, old} or left == right:
            return None
        least = isinstance(test.ops[0], ast.Lt) == (left == new)
        term = self.value(value)
        access = self._access(target)
        return access, ("fmin" if least else "fmax", ("load", access), term)

    def _add(self, loops: tuple[Loop, ...], conditions: tuple[Polynomial, ...], choices: tuple[Term, ...],
             target: Access, value: Term, n: ast.AST) -> None:
        known = {x.index for x in loops} | self.sizes.keys()
        used = [*target.subscripts, *leaves(value, "index"), *(p for a in leaves(value) for p in a.subscripts)]
        if unknown := {name for p in used for name in p.names} - known:
            self.refuse(n, f"{min(unknown)} is the index of a loop that is over")
        found = statement(loops, conditions, target, value, self.line(n))
        for choice in choices:
            if found.reduce == "add":
                found = found._replace(value=("where", choice, found.value, ("number", 0)))
            else:
                own: Term = ("load", target)
                new = (found.reduce, own, found.value) if found.reduce else found.value
                found = found._replace(reduce="", value=("where", choice, new, own))
        self.statements.append(found)


def _folded(name: str, x: Term, y: Term) -> Term:
    """Numbers and indices are computed with when the source is read."""
    if name in _WHOLE and all(t[0] == "index" or (t[0] == "number" and isinstance(t[1], int)) for t in (x, y)):
        if x[0] == y[0] == "number":
            return ("number", _WHOLE[name](x[1], y[1]))
        return ("index", _WHOLE[name](polynomial(x[1]), polynomial(y[1])))
    if x[0] == y[0] == "number" and (name != "div" or y[1]):
        return ("number", (_WHOLE | {"div": operator.truediv})[name](x[1], y[1]))
    return (name, x, y)


def _array(n: Any) -> str | None:
    while isinstance(n, ast.Subscript):
        n = n.value
    return n.id if isinstance(n, ast.Name) else None
