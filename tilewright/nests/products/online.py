"""Reductions that wait for each other become one: softmax(Q K^T) V without the matrix of scores.

Let x[j] be the terms of a reduction with a *level*, M = max over j of x[j]. A later sum over the same j whose term is
exp(x[j] - M) h[j] waits for M alone, and

    exp(x - t) = exp(x - m) exp(m - t)

says what becomes of a sum relative to a level m when the level rises to t: exp(m - t) is an *action* of differences on
what was summed. So (m, sum of exp(x - m), sums of exp(x - m) h) is one reduction, whose combination

    (m, l, o) + (n, k, p) = (t, l exp(m - t) + k exp(n - t), o exp(m - t) + p exp(n - t)),    t = max(m, n)

is associative. `online(nest, sizes, temporary)` evaluates the statements of a nest symbolically, by row i of its scores
S[i, j], and applies the rule where what remains is M, its sum L and weighted sums:

    O[i, c] = sum over j of exp(x - M) / L * V[j, c]        softmax(x) V; the division may come last
    R[i]    = M + log(L)                                    log of the sum of exp(x), of which a cross-entropy is made

x is a function of S[i, j] = sum over d of Q[i, d] K[j, d] and of arrays by i and j. Both are then tilewright.attention.
S has to be `temporary`: its elements are not stored any more.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright import forks
from tilewright.expressions.tracing import apply
from tilewright.nests.domain import Element, Rounds, rounds
from tilewright.nests.nest import LEAVES, LoopNest, Refused, Term, leaves, refuse
from tilewright.nests.polynomial import Linear

DOT: Term = ("dot",)            # S as the product leaves it
MAXIMA = ("max", "fmax")


@dataclass(frozen=True)
class Weighted:
    """out = a sum over j of a weight, a term of S, times an element of V; `x` once the weight is a softmax of it."""
    out: Element
    values: Element
    weight: Term
    x: Term | None = None


def online(nest: LoopNest, sizes: Mapping[str, int], temporary: Sequence[str]) -> Online:
    """What the nest computes, as one reduction. Refused, with the line and the reason, if it is not that."""
    if len(temporary) != 1:
        refuse(nest.statements[0].line, "one array of scores is temporary")
    return _Reader(nest, temporary[0]).read(rounds(nest, sizes))


class _Reader:
    """Evaluates statements: what each row's numbers, and an element of S, are by now."""

    def __init__(self, nest: LoopNest, scores: str) -> None:
        self.nest, self.scores = nest, scores
        self.element: Term | None = None            # S[i, j]
        self.rows: dict[str, Term] = {}             # numbers and arrays by i
        self.owner: dict[str, str] = {}             # of a number: the index of the loop over rows in which it is set
        self.results: dict[str, Weighted | None] = {}       # arrays by i and c; None: 0
        self.dot: tuple[Element, Element] | None = None
        self.extents: dict[str, int] = {}
        self.touched = 0                            # accesses of S

    def read(self, statements: Sequence[Rounds]) -> Online:
        for r in statements:
            if r.conditions:
                refuse(r.line, "a condition leaves out a part of the scores")
            self.touched += sum(e.array == self.scores for e in r.elements)
            if r.target.array == self.scores:
                self._score(r)
            elif r.target.scalar or len(r.target.subscripts) == 1:
                self._row(r)
            else:
                self._result(r)
        line = statements[-1].line
        if self.dot is None:
            refuse(line, f"{self.scores} is no product of two arrays")
        logs = {name: _logsumexp(x, line) for name, x in self.rows.items() if name not in self.nest.scalars}
        sums = {name: found for name, found in self.results.items() if found is not None and found.x is not None}
        if len(sums) < len(self.results):
            refuse(line, "a sum of values is not divided by the sum of powers")
        terms = [x for x in (*(found.x for found in sums.values()), *logs.values()) if x is not None]
        if not terms or any(x != terms[0] for x in terms):
            refuse(line, "nothing is stored but scores" if not terms else "two reductions have different terms")
        return Online(self.nest, self.scores, self.dot, terms[0], sums, tuple(logs), self.extents, self.touched)

    def _named(self, r: Rounds) -> dict[str, str]:
        """Roles of the statement's indices, by their names: i and j of S's subscripts."""
        names = dict[str, str]()
        for e in r.elements:
            if e.array == self.scores:
                for role, x in zip("ij", e.subscripts, strict=True):
                    name = _index(x, r)
                    if names.setdefault(name, role) != role:
                        refuse(r.line, f"{self.scores} is not used row by row")
        return names

    def _score(self, r: Rounds) -> None:
        names, others = self._named(r), [e for e in leaves(r.value) if e.array != self.scores]
        sums = [x for x in r.extents if x not in names]
        if r.reduce == "add" and len(sums) == 1 and self.element == ("number", 0.0) and len(others) == 2 and (
                r.value[0] == "mul"):
            names[sums[0]] = "d"
            by = {frozenset(names.get(_index(x, r), "") for x in e.subscripts): e.renamed(names) for e in others}
            q, k = by.get(frozenset("id")), by.get(frozenset("jd"))
            if q is None or k is None:
                refuse(r.line, f"{self.scores} is no product of rows of two arrays")
            self.dot, self.element = (q, k), DOT
            self.extents |= {names[name]: n for name, n in r.extents.items()}
            return
        if r.reduce or sums:
            refuse(r.line, f"{self.scores} is reduced in another way than by a product")
        self.element = self._value(r, names)

    def _row(self, r: Rounds) -> None:
        """A number of each row: its start, a reduction over j, or a function of others."""
        names, name = self._named(r), r.target.array
        row = _index(r.target.subscripts[0], r) if r.target.subscripts else ""
        if not r.reduce:
            value = self._value(r, names, row)
        elif self.scores not in {e.array for e in leaves(r.value)} or "j" not in names.values():
            refuse(r.line, f"{name} is no reduction of scores")
        else:
            start, value = self.rows.get(name), self._value(r, names, row)
            if r.reduce in MAXIMA and start == ("number", float("-inf")):
                value = ("largest", value)
            elif r.reduce == "add" and start == ("number", 0.0):
                value = ("total", value)
            else:
                refuse(r.line, f"{name} is reduced by {r.reduce}, from another start than {r.reduce} has")
        self.rows[name] = value
        if r.target.scalar:
            self.owner[name] = row

    def _result(self, r: Rounds) -> None:
        """O[i, c]: its start, the sum of values by weights, or that divided by a row's number."""
        names, name = self._named(r), r.target.array
        if not r.reduce and r.value == ("number", 0.0):
            self.results[name] = None
            return
        found, column = self.results.get(name), [x for x in r.extents if x not in names]
        if r.reduce == "add" and found is None and name in self.results and r.value[0] == "mul" and len(column) == 1:
            row = next((x for x, role in names.items() if role == "i"), "")
            names[column[0]] = "c"
            out = r.target.renamed(names)
            for (kind, *v), weight in (r.value[1:], r.value[:0:-1]):
                if kind == "load" and v[0].renamed(names).indices == {"j", "c"} and out.indices == {"i", "c"}:
                    self.extents["c"] = r.extents[column[0]]
                    term = self._term(weight, r, names, row)
                    x = _softmax(term, r) if term[0] == "div" else None
                    self.results[name] = Weighted(out, v[0].renamed(names), term, x)
                    return
        if found is not None and found.x is None and r.value[:2] == ("div", ("load", r.target)) and not r.reduce:
            row = _index(r.target.subscripts[[next(iter(x.factors)) for x in found.out.subscripts].index("i")], r)
            divisor = self._term(r.value[2], r, names, row)
            self.results[name] = replace(found, x=_softmax(("div", found.weight, divisor), r))
            return
        refuse(r.line, f"{name} is no sum of values by weights")

    def _value(self, r: Rounds, names: Mapping[str, str], row: str = "") -> Term:
        return self._term(r.value, r, names, row)

    def _term(self, term: Term, r: Rounds, names: Mapping[str, str], row: str) -> Term:
        """A term with what S and the rows' numbers are in place of their names."""
        if term[0] == "load":
            e = term[1]
            if e.array == self.scores:
                if self.element is None:
                    refuse(r.line, f"{self.scores} is read before it is computed")
                return self.element
            if e.array in self.rows:
                own = row or next((name for name, role in names.items() if role == "i"), "")
                if e.scalar and self.owner.get(e.array) not in ("", own):
                    refuse(r.line, f"{e.array} is of another loop's last row")
                return self.rows[e.array]
            renamed = e.renamed(names)
            if e.scalar or not renamed.indices <= {"i", "j"}:
                refuse(r.line, f"{e.array} is not used by row and column of the scores")
            return ("load", renamed)
        if term[0] == "index":
            refuse(r.line, "an index is used as a number")
        if term[0] in LEAVES:
            return term
        return (term[0], *(self._term(x, r, names, row) for x in term[1:]))


def _index(x: Linear, r: Rounds) -> str:
    """The one index that a subscript is."""
    if x.constant or len(x.factors) != 1 or next(iter(x.factors.values())) != 1:
        refuse(r.line, "a subscript is more than an index")
    return next(iter(x.factors))


def _softmax(weight: Term, r: Rounds) -> Term:
    """x of exp(x - M) / L: the rule applies if M and L are x's own."""
    if weight[0] == "div" and weight[1][0] == "exp" and weight[1][1][0] == "sub":
        power, total = weight[1:]
        x, level = power[1][1:]
        if level == ("largest", x) and total == ("total", power):
            return x
    return refuse(r.line, "weights are not exp(x - max(x)) / sum(exp(x - max(x)))")


def _logsumexp(term: Term, line: Any) -> Term:
    """x of M + log(L)."""
    for level, log in (term[1:], term[:0:-1]) if term[0] == "add" else ():
        if level[0] == "largest" and log == ("log", ("total", ("exp", ("sub", level[1], level)))):
            x: Term = level[1]
            return x
    return refuse(line, "a row's number is not max(x) + log(sum(exp(x - max(x))))")


class Online:
    """The results of a nest by tilewright.attention; what Step (nests/optimize.py) takes for a product."""
    problem, of_views = None, False

    def __init__(self, nest: LoopNest, scores: str, dot: tuple[Element, Element], x: Term,
                 results: Mapping[str, Weighted], logs: tuple[str, ...], extents: Mapping[str, int],
                 touched: int) -> None:
        self.nest, self.scores, self.dot, self.x, self.results, self.logs = nest, scores, dot, x, dict(results), logs
        self.extents, self.touched = dict(extents), touched
        elements = {nest.element(e.array) for e in (*dot, *(e for y in results.values() for e in (y.out, y.values)))}
        if len(elements) > 1:
            refuse(nest.statements[0].line, "arrays have different formats")
        self.element, = elements
        self.beside = {e.array: e for e in _loads(x)}
        self.scale = x[2][1] if x[0] == "mul" and x[1] == DOT and x[2][0] == "number" else (
            x[1][1] if x[0] == "mul" and x[2] == DOT and x[1][0] == "number" else 1.0 if x == DOT else None)

    def __str__(self) -> str:
        q, k = self.dot
        names = [*(f"{name}[i, c]" for name in self.results), *(f"{name}[i]" for name in self.logs)]
        values = [f"softmax of x over j, times {y.values.array}[j, c]" for y in self.results.values()]
        values += ["log of the sum of exp(x) over j"] * len(self.logs)
        sums = "; ".join(f"{name} = {value}" for name, value in zip(names, values))
        return (f"{sums}; x = {_text(self.x)}, s = sum over d of {q.array}[i, d] {k.array}[j, d]: attention of "
                f"{self.extents['i']} queries by {self.extents['j']} keys")

    @property
    def bytes(self) -> tuple[int, int]:
        """What statements access of memory one after the other, and what one reduction does."""
        i, j, d, c = (self.extents.get(x, 0) for x in "ijdc")
        once = self.element.bytes * (i*d + j*d + len(self.results)*(j*c + i*c) + len(self.logs)*i)
        return once + self.touched * i*j * self.element.bytes, once

    @property
    def how(self) -> str:
        before, after = self.bytes
        return (f"the maximum, the sum of powers and sums by powers are one reduction, since exp(x - t) = exp(x - m) "
                f"exp(m - t); {self.scores} is not stored: {before:,} bytes become {after:,}")

    def run(self, arrays: Mapping[str, Any], numbers: Mapping[str, Any]) -> None:
        attention = forks.imported("tilewright.api.attention").attention

        def matrix(e: Element, order: str) -> Any:
            x = arrays[e.array]
            return x if [next(iter(y.factors)) for y in e.subscripts] == [*order] else x.T
        q, k = matrix(self.dot[0], "id"), matrix(self.dot[1], "jd")
        how: dict[str, Any] = {"scale": self.scale}
        if self.scale is None:
            beside = {f"x_{name}": self._spread(e, arrays[name]) for name, e in self.beside.items()}
            how = {"scale": 1.0, "bias": self._score(numbers), "operands": beside or None}
        pairs = [(matrix(y.out, "ic"), matrix(y.values, "jc")) for y in self.results.values()] or [(None, k[:, :1])]
        for out, v in pairs:
            found = attention(q, k, v, out=out, return_lse=bool(self.logs), **how)
            for name in self.logs:
                arrays[name][...] = found[1]

    def _spread(self, e: Element, x: Any) -> Any:
        order = [next(iter(y.factors)) for y in e.subscripts]
        return x[:, None] if order == ["i"] else x.T if order == ["j", "i"] else x

    def _score(self, numbers: Mapping[str, Any]) -> Any:
        """x as a function of the score."""
        def function(score: Any, i: Any, j: Any, head: Any, **beside: Any) -> Any:
            def value(term: Term) -> Any:
                if term == DOT:
                    return score
                if term[0] == "load":
                    return beside[f"x_{term[1].array}"]
                if term[0] == "parameter":
                    return float(numbers[term[1]])
                return term[1] if term[0] == "number" else apply(term[0], *map(value, term[1:]))
            return value(self.x)
        return function


def _loads(x: Term) -> list[Element]:
    if x[0] == "load":
        return [x[1]]
    return [] if x[0] in LEAVES or x == DOT else [e for y in x[1:] for e in _loads(y)]


def _text(x: Term) -> str:
    if x == DOT:
        return "s"
    if x[0] == "load":
        return f"{x[1].array}[{', '.join(next(iter(y.factors)) for y in x[1].subscripts)}]"
    signs = {"mul": " * ", "add": " + ", "sub": " - ", "div": " / "}
    if x[0] in signs:
        return f"({signs[x[0]].join(map(_text, x[1:]))})"
    return str(x[1]) if x[0] in LEAVES else f"{x[0]}({', '.join(map(_text, x[1:]))})"


def fused(nest: LoopNest, sizes: Mapping[str, int], temporary: Sequence[str]) -> Online | str:
    """The reduction that the nest is, or why it is none."""
    try:
        return online(nest, sizes, temporary)
    except Refused as refusal:
        return f"{refusal.line}: {refusal.reason}"
