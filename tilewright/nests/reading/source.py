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
import functools
import inspect
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from tilewright.ir import Type
from tilewright.ir.program import Line
from tilewright.ir.types import f32, f64, i32
from tilewright.nests.nest import (
    REDUCTIONS,
    Access,
    Loop,
    LoopNest,
    Parameter,
    Statement,
    Term,
    arithmetic,
    folded,
    leaves,
    negative,
    promoted as promoted,
    refuse,
    scalar_formats,
    statement,
)
from tilewright.nests.polynomial import Polynomial, polynomial
from tilewright.nests.reading.names import Unknown, called, definition, meaning

_OPERATORS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}
_EMPTY = "may have no value here"
_CONVERSIONS = {"float32": f32, "int32": i32, "float": f64}
_ORDERS = {ast.Lt: ("lt", False), ast.LtE: ("le", False), ast.Gt: ("lt", True), ast.GtE: ("le", True),
           ast.Eq: ("eq", False), ast.NotEq: ("ne", False)}


def nest(function: Any, kinds: Sequence[tuple[str, Type | None, int]]) -> LoopNest:
    """The loops of a function whose parameters are of these kinds: (kind, element, axes) of each `Parameter`."""
    return _Source(function, kinds).nest


class _Source:
    def __init__(self, function: Any, kinds: Sequence[tuple[str, Type | None, int]]) -> None:
        self.function, self.tree = function, definition(function)
        self.file, self.first = function.__code__.co_filename, function.__code__.co_firstlineno
        given = self.tree.args
        names = [x.arg for x in (*given.posonlyargs, *given.args)]
        if len(names) != len(kinds) or given.vararg or given.kwonlyargs or given.kwarg:
            takes = ", ".join(inspect.signature(function).parameters)
            refuse(Line(self.file, self.first), f"{function.__name__} takes ({takes}), and is given {len(kinds)} "
                   "arguments")
        self.parameters = {name: Parameter(name, *kind) for name, kind in zip(names, kinds)}
        self.sizes = dict.fromkeys(name for name, p in self.parameters.items() if p.kind == "size")
        self.names: dict[str, Term] = {name: ("index", polynomial(name)) for name in self.sizes}
        self.names |= {name: ("parameter", name) for name, p in self.parameters.items() if p.kind == "number"}
        self.count, self.statements = dict[str, int](), list[Statement]()
        nodes = list(ast.walk(self.tree))
        self.written = {_array(n) for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)}
        stores = Counter(n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        indices = Counter(n.target.id for n in nodes if isinstance(n, ast.For) and isinstance(n.target, ast.Name))
        self.local, self.indices = stores, indices
        self.scalars = {x for x, count in (stores - indices).items() if count > 1}
        self.scalars |= {n.target.id for n in nodes if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)}
        for x in stores:
            if x in self.parameters or (x in indices and stores[x] > indices[x]):
                refuse(Line(self.file, self.first), f"{x} is assigned to, and is an index or a parameter")
        self.assigned = set[str]()          # scalars that have a value in all rounds
        self.reads, self.conversions = list[Statement](), list[tuple[ast.AST, str, Term]]()
        self._block(self.tree.body, (), (), ())
        formats = scalar_formats(self.scalars, self.parameters, self.statements)
        for n, name, term in self.conversions:
            types = [formats.get(a.array) or self.parameters[a.array].element for a in leaves(term)]
            if not types or arithmetic(term, [t for t in types if t]) != _CONVERSIONS[name]:
                self.refuse(n, f"a conversion to {name} is taken of values that are computed in it already")
        self.nest = LoopNest(function.__name__, tuple(self.parameters.values()), tuple(self.sizes), formats,
                             tuple(self.statements), reads=tuple(self.reads))

    def line(self, n: ast.AST) -> Line:
        return Line(self.file, self.first + n.lineno - 1)  # type: ignore[attr-defined]

    def refuse(self, n: ast.AST, reason: str) -> NoReturn:
        refuse(self.line(n), reason)

    # ---- values

    def whole(self, n: ast.AST) -> Polynomial:
        """A subscript or a bound."""
        term = self.value(n) if not isinstance(n, ast.Constant) or type(n.value) is int else ("number", None)
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
            case ast.Subscript(ast.Attribute(ast.Name(x), "shape"), axis) if x in self.parameters:
                at = ast.literal_eval(axis) if isinstance(axis, (ast.Constant, ast.UnaryOp)) else None
                return ("index", self._size(n, x, at))
            case ast.Call(ast.Name("len"), [ast.Name(x)]) if self._outside(n.func) is len:
                return ("index", self._size(n, x, 0))
            case ast.Attribute():
                return self._number(n)
            case ast.Subscript():
                return ("load", self._access(n))
            case ast.UnaryOp(ast.USub(), x):
                return negative(self.value(x))
            case ast.UnaryOp(ast.UAdd(), x):
                return self.value(x)
            case ast.BinOp(b, ast.Pow(), ast.Constant((2 | 3 | 0.5) as power)) if power == 0.5 or type(power) is int:
                base = self.value(b)
                if power == 0.5:
                    return ("sqrt", base)
                return ("mul", base, base) if power == 2 else ("mul", ("mul", base, base), base)
            case ast.BinOp(x, op, y) if type(op) in _OPERATORS:
                return folded(_OPERATORS[type(op)], self.value(x), self.value(y))
            case ast.Call(f, args, []) if args:
                return self._call(n, called(self.function, f) if _array(f) not in self.local else None, args)
            case ast.IfExp(test, x, y):
                return ("where", self._choice(test), self.value(x), self.value(y))
        return self.refuse(n, f"{ast.unparse(n)} is no expression that is taken")

    def _name(self, n: ast.Name, x: str) -> Term:
        if x in self.scalars:
            return ("load", Access(x, ()))
        if x in self.names:
            return self.names[x]
        if x in self.parameters:
            self.refuse(n, f"{x} is an array, and needs a subscript")
        if x in self.local:
            self.refuse(n, f"{x} {'is the index of a loop that is over' if x in self.indices else _EMPTY}")
        return self._number(n)

    def _outside(self, n: Any) -> Any:
        """What a name or an attribute of a module stands for; None if that is unknown, or local."""
        try:
            return None if _array(n) in self.local else meaning(self.function, n)
        except Unknown:
            return None

    def _number(self, n: Any) -> Term:
        number = self._outside(n) if isinstance(n, ast.Name) or self._outside(n.value) in (math, np) else None
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            return ("number", number)
        return self.refuse(n, f"{ast.unparse(n)} is not known here")

    def _call(self, n: Any, name: str | None, args: list[Any]) -> Term:
        if name == "where" and len(args) == 3:
            return ("where", self._choice(args[0]), self.value(args[1]), self.value(args[2]))
        xs = [self.value(x) for x in args]
        if name in REDUCTIONS and len(xs) >= 2:
            return functools.reduce(lambda x, y: (name, x, y), xs)
        if name is not None and name != "where" and name not in REDUCTIONS and len(xs) == 1:
            if name in _CONVERSIONS:
                return self._converted(n, name, xs[0])
            if name == "relu":
                return ("max", xs[0], ("number", 0))
            return ("mul", xs[0], ("sigmoid", xs[0])) if name == "silu" else (name, xs[0])
        return self.refuse(n, f"the function {ast.unparse(n.func)} of {len(xs)} is not taken")

    def _converted(self, n: ast.AST, name: str, x: Term) -> Term:
        """float32(x), int32(x), float(x): of a number, or where arithmetic is in this format anyway."""
        if x[0] == "number" and abs(x[1]) < 2**31:
            return ("number", _CONVERSIONS[name].numpy.type(x[1]).item())
        if x[0] != "parameter" or name != "float":
            self.conversions.append((n, name, x))
        return x

    def _choice(self, test: Any) -> Term:
        """A condition of a choice, a term of kind bool."""
        if isinstance(test, ast.Compare) and all(type(op) in _ORDERS for op in test.ops):
            comparisons, x = list[Term](), self.value(test.left)
            for op, right in zip(test.ops, test.comparators):
                (name, exchanged), y = _ORDERS[type(op)], self.value(right)
                comparisons.append((name, y, x) if exchanged else (name, x, y))
                x = y
            return functools.reduce(lambda x, y: ("and", x, y), comparisons)
        if isinstance(test, ast.BoolOp):
            name = "and" if isinstance(test.op, ast.And) else "or"
            return functools.reduce(lambda x, y: (name, x, y), map(self._choice, test.values))
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return ("eq", self._choice(test.operand), ("number", 0))
        return self.refuse(test, f"{ast.unparse(test)} is no comparison")

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
        expression, subscripts = n, list[Any]()
        while isinstance(n, ast.Subscript):
            subscripts[:0] = n.slice.elts if isinstance(n.slice, ast.Tuple) else [n.slice]
            n = n.value
        p = self.parameters.get(n.id) if isinstance(n, ast.Name) else None
        if p is None or p.kind != "array":
            self.refuse(expression, f"{ast.unparse(n)} is no array argument")
        if len(subscripts) != p.axes:
            self.refuse(expression, f"{p.name} has {p.axes} axes, and is given {len(subscripts)} subscripts")
        positions = [self.whole(x) for x in subscripts]
        for axis, x in enumerate(positions):
            if x.constant is not None and x.constant < 0:           # as Python counts from the end
                positions[axis] = x + self._size(expression, p.name, axis)
        return Access(p.name, tuple(positions))

    # ---- statements

    def _block(self, body: Sequence[Any], loops: tuple[Loop, ...], conditions: tuple[Polynomial, ...],
               choices: tuple[Term, ...]) -> None:
        """Names and scalars that are assigned in a block may have no value after it."""
        names, assigned = dict(self.names), set(self.assigned)
        for n in body:
            self._statement(n, loops, conditions, choices)
        self.names, self.assigned = names, assigned

    def _statement(self, n: Any, loops: tuple[Loop, ...], conditions: tuple[Polynomial, ...], choices: tuple[Term, ...]
                   ) -> None:
        match n:
            case ast.For(ast.Name(i), ast.Call(ast.Name("range") as f, [_, *_] as bounds, []), inner, []) if (
                    len(bounds) <= 3 and self._outside(f) is range):
                self._loop(n, i, bounds, inner, (loops, conditions, choices))
            case ast.If(test, inner, otherwise):
                self._if(test, inner, otherwise, loops, conditions, choices)
            case ast.Assign([ast.Tuple(targets)], ast.Attribute(ast.Name(x), "shape")) if x in self.parameters:
                if len(targets) != self.parameters[x].axes or not all(isinstance(t, ast.Name) for t in targets):
                    self.refuse(n, f"{x} has {self.parameters[x].axes} axes, for each of which a name is needed")
                for axis, t in enumerate(targets):
                    self._assign(t, ("index", self._size(n, x, axis)), (loops, conditions, choices))
            case ast.Assign([target], value):
                self._assign(target, self.value(value), (loops, conditions, choices))
            case ast.AugAssign(target, op, value) if type(op) in _OPERATORS:
                access = self._access(target)
                term = (_OPERATORS[type(op)], ("load", access), self.value(value))
                self._add(loops, conditions, choices, access, term, n)
            case ast.Pass() | ast.Expr(ast.Constant()):
                pass
            case ast.Return(None) if n is self.tree.body[-1]:
                pass
            case ast.Return(x):
                self.refuse(n, "loops end at their end, and not by return" if x is None else
                            "loops return nothing: results are written to arrays")
            case _:
                self.refuse(n, f"{type(n).__name__.lower()} is not taken")

    def _assign(self, target: Any, term: Term, around: tuple[Any, Any, Any]) -> None:
        """A name that is assigned once, of what no statement writes, is that term."""
        fixed = all(a.subscripts and a.array not in self.written for a in leaves(term))
        if isinstance(target, ast.Name) and target.id not in self.scalars and fixed:
            self._read(term, *around[:2], target)
            self.names[target.id] = term
        else:
            self._add(*around, self._access(target), term, target)

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
        if i in self.names:
            self.refuse(n, f"{i} is the index of a loop around this one")
        self.names[i] = term
        loops, conditions, choices = around
        self._block(inner, (*loops, loop), conditions, choices)
        del self.names[i]

    def _if(self, test: Any, inner: list[Any], otherwise: list[Any], loops: tuple[Loop, ...],
            conditions: tuple[Polynomial, ...], choices: tuple[Term, ...]) -> None:
        least = self._minimum(test, inner, otherwise)
        if least is not None:
            self._add(loops, conditions, choices, *least, inner[0])
            return
        parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
        orders = [x for part in parts if (x := self._orders(part)) is not None]
        conditions_below = [x for part in orders for x in part]
        if len(orders) == len(parts) and (not otherwise or len(conditions_below) == 1):
            self._block(inner, loops, (*conditions, *conditions_below), choices)
            self._block(otherwise, loops, (*conditions, -conditions_below[0] - 1), choices)
            return
        choice = self._choice(test)
        under = [x for part in (*inner, *otherwise) for x in ast.walk(part)]
        stores = [x for x in under if isinstance(x, (ast.Subscript, ast.Name)) and isinstance(x.ctx, ast.Store)]
        if len(stores) != 1 or isinstance(stores[0], ast.Name) or any(isinstance(x, ast.For) for x in under):
            choice = self._kept(choice, loops, conditions, test)
        self._block(inner, loops, conditions, (*choices, choice))
        self._block(otherwise, loops, conditions, (*choices, ("eq", choice, ("number", 0))))

    def _read(self, term: Term, loops: tuple[Loop, ...], conditions: tuple[Polynomial, ...], n: ast.AST) -> None:
        """The source reads a term here, statements read it later."""
        self.reads += [Statement(loops, conditions, a, "", ("load", a), self.line(n)) for a in leaves(term)
                       if a.subscripts]

    def _kept(self, choice: Term, loops: tuple[Loop, ...], conditions: tuple[Polynomial, ...], test: ast.AST) -> Term:
        """A choice that is made once, for several statements, of which some may write what it reads."""
        if all(a.subscripts and a.array not in self.written for a in leaves(choice)):
            self._read(choice, loops, conditions, test)
            return choice
        name = f"if.{len(self.statements)}"
        self.scalars.add(name)
        self._add(loops, conditions, (), Access(name, ()), ("where", choice, ("number", 1), ("number", 0)), test)
        return ("ne", ("load", Access(name, ())), ("number", 0))

    def _orders(self, test: Any) -> list[Polynomial] | None:
        """What is >= 0 where this chain of comparisons of indices and sizes holds; None for one of other values."""
        if not isinstance(test, ast.Compare):
            return None
        differences = []
        for left, op, right in zip([test.left, *test.comparators], test.ops, test.comparators):
            xs = [self.value(left), self.value(right)]
            if any(x[0] != "index" and not (x[0] == "number" and isinstance(x[1], int)) for x in xs):
                return None
            a, b = (polynomial(x[1]) for x in xs)
            if isinstance(op, (ast.Gt, ast.GtE)):
                a, b = b, a
            if isinstance(op, ast.Eq):
                differences += [a - b, b - a]
            elif isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
                differences.append(b - a - (1 if isinstance(op, (ast.Lt, ast.Gt)) else 0))
            else:
                self.refuse(test, "indices are compared by < <= > >= or ==")
        return differences

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
        if not target.subscripts and target.array not in self.assigned:
            choices = ()                    # it has no value that it could keep
        read = [value, *choices, *([("load", target)] if choices else [])]
        for a in (a for term in read for a in leaves(term)):
            if not a.subscripts and a.array not in self.assigned:
                self.refuse(n, f"{a.array} {_EMPTY}")
        added = statement(loops, conditions, target, value, self.line(n))
        for choice in choices:
            if added.reduce == "add":
                added = added._replace(value=("where", choice, added.value, ("number", 0)))
            else:
                own: Term = ("load", target)
                new = (added.reduce, own, added.value) if added.reduce else added.value
                added = added._replace(reduce="", value=("where", choice, new, own))
        self.statements.append(added)
        if not target.subscripts:
            self.assigned.add(target.array)


def _array(n: Any) -> str | None:
    while isinstance(n, (ast.Subscript, ast.Attribute)):
        n = n.value
    return n.id if isinstance(n, ast.Name) else None
