"""Reductions that wait for each other become one: softmax(Q K^T) V without the matrix of scores, and its relatives.

Let x[j] be the terms of a reduction with a *level*, M = max over j of x[j]. A later sum over the same j whose term is
exp(x[j] - M) h[j] waits for M alone, and

    exp(x - t) = exp(x - m) exp(m - t)

says what becomes of a sum relative to a level m when the level rises to t: exp(m - t) is an *action* of differences on
what was summed. So (m, sum of exp(x - m), sums of exp(x - m) h) is one reduction, whose combination

    (m, l, o) + (n, k, p) = (t, l exp(m - t) + k exp(n - t), o exp(m - t) + p exp(n - t)),    t = max(m, n)

is associative. A level with an index is one, too: (m, at) + (n, to) = (m, at) if m >= n else (n, to).

`online(nest, sizes, temporary)` evaluates the statements of a nest symbolically, by row i of its scores S[i, j]: what
each row's numbers and each result are (scores.py), over which j (conditions and bounds of loops become domains), and
refuses with the line and the reason what is none of these reductions. `Online` (one_pass.py) computes the results. S is
`temporary`, an array whose elements are not stored any more, or a variable of the loops.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.nests.domain import Element, Rounds, rounds
from tilewright.nests.nest import LEAVES, LoopNest, Refused, Term, leaves, refuse
from tilewright.nests.polynomial import Linear
from tilewright.nests.products import scores
from tilewright.nests.products.one_pass import Online
from tilewright.nests.products.scores import DOT, HIGH, LOW, UNKNOWN, Domain, Unfit, inside, operation

EXTREMES = {"max": ("largest", LOW), "fmax": ("largest", LOW), "min": ("smallest", HIGH), "fmin": ("smallest", HIGH)}


def online(nest: LoopNest, sizes: Mapping[str, int], temporary: Sequence[str]) -> Online:
    """What the nest computes, as reductions of scores. Refused, with the line and the reason, if it is not that."""
    statements = rounds(nest, sizes)
    sums = [r.target for r in statements if r.reduce == "add" and len(r.target.subscripts) == 2 and (
        r.target.array in temporary or (r.target.scalar and not temporary))]
    if not sums:
        refuse(nest.statements[0].line, f"{' and '.join(temporary) or 'no variable'} is no product of two arrays")
    first: Refused | None = None
    for order in "ij", "ji":
        try:
            return _Reader(nest, sums[0].array, order, {*temporary, sums[0].array}, statements).read()
        except Refused as refusal:
            first = first or refusal
    assert first is not None
    raise first


class _Reader:
    """Evaluates statements: what each row's numbers, elements of scores, and results are by now. `order`: of S's axes;
    `inner`: what has elements by row and column as S has."""

    def __init__(self, nest: LoopNest, name: str, order: str, inner: set[str], statements: Sequence[Rounds]) -> None:
        self.nest, self.scores, self.order, self.inner = nest, name, order, inner
        self.elements = dict[str, Term]()           # S[i, j], and of others like it
        self.numbers = dict[str, Term]()            # of rows, and results by row and column
        self.targets = dict[str, Element]()         # arrays that are written
        self.firsts = dict[str, tuple[str, Term]]()     # indices of extremes: the extreme's name, and what it has to be
        self.over = set[str]()                      # numbers whose loop over j has changed them
        self.dot: tuple[Element, Element] | None = None
        self.touched = 0                            # accesses of elements of S in memory, once for a product
        self.roles = self._roles(statements)
        self.statements = [self._placed(r) for r in statements]
        self.box = dict[str, int]()
        for r in self.statements:
            for i, n in r.extents.items():
                self.box[i] = max(n, self.box.get(i, 0))
        self.partial = [(r.target.array, frozenset(x for x in r.loops if self.roles.get(x) == "j"))
                        for r in statements if r.target.array not in inner and (
                            r.reduce or any(e.array == r.target.array for e in leaves(r.value)))]

    def read(self) -> Online:
        for r in self.statements:
            if count := sum(e.array in self.inner and not e.scalar for e in r.elements):
                low, high = scores.spans(self._domain(r, rows=False), self.box["i"], self.box["j"])
                self.touched += count * int((high - low).clip(0).sum())
            try:
                self._statement(r)
            except Unfit as why:
                refuse(r.line, str(why))
        line = self.statements[-1].line
        if self.dot is None:
            refuse(line, f"{self.scores} is no product of two arrays")
        results = {name: x for name, x in self.numbers.items() if name not in self.nest.scalars}
        if not any(scores.levels(x) for x in results.values()):
            refuse(line, "nothing is stored but scores")
        if any(scores.mentions(x, "unknown", "partial") for x in results.values()):
            refuse(line, "a result has elements that are not known")
        for name, (extreme, x) in self.firsts.items():
            if self.numbers.get(extreme) != x:
                refuse(line, f"{name} is kept where {extreme} changes, and that is no extreme of the same scores")
        for d in dict.fromkeys(y[1] for x in results.values() for y in _all_levels(x)):
            self._rows_have_scores(d, line)
        temporary = () if self.scores in self.nest.scalars else tuple(sorted(self.inner))
        try:
            return Online(self.nest, temporary, self.dot, results, {name: self.targets[name] for name in results},
                          self.box, self.touched)
        except Unfit as why:
            refuse(line, str(why))

    def _rows_have_scores(self, d: Domain, line: Any) -> None:
        """Refused if the maximum of a row is one of no scores."""
        low, high = scores.spans(d, self.box["i"], self.box["j"])
        if (low >= high).any():
            refuse(line, f"row {int((low >= high).argmax())} has no scores: loops leave nan there, or what was before")

    # ---- which index is which

    def _roles(self, statements: Sequence[Rounds]) -> dict[str, str]:
        """i, j, c or d for each index: rows and columns by S's subscripts, others by what they have in common."""
        roles, known = dict[str, str](), dict.fromkeys(self.inner, self.order)
        for _ in range(4):
            for r in statements:
                for e in r.elements:
                    if e.array in known and len(e.subscripts) == len(known[e.array]):
                        for role, x in zip(known[e.array], e.subscripts):
                            if len(x.factors) == 1:
                                roles.setdefault(next(iter(x.factors)), role)
                target = r.target
                own = [next(iter(x.factors), "") for x in target.subscripts]
                if target.array == self.scores and r.reduce:
                    roles |= {x: "d" for x in r.extents if x not in roles}
                elif len(own) == 2 and sorted(roles.get(x, "?") for x in own) == ["?", "i"]:
                    roles |= {x: "c" for x in own if x not in roles}
                if own and all(x in roles for x in own):
                    known.setdefault(target.array, "".join(roles[x] for x in own))
        for r in statements:            # reductions over columns without scores, as of a choice by the column's number
            left, own = [x for x in r.extents if x not in roles], [i for x in r.target.subscripts for i in x.factors]
            if r.reduce and len(left) == 1 and own and all(x in roles for x in own):
                roles[left[0]] = "j"
        return roles

    def _placed(self, r: Rounds) -> Rounds:
        """The statement with roles for names of indices, which count as S's subscripts do."""
        for x in r.extents:
            if x not in self.roles:
                refuse(r.line, f"the index {x} is none of rows, of columns of scores, or of columns of a result")
        names = {x: self.roles[x] for x in r.extents}
        if len(set(names.values())) < len(names):
            refuse(r.line, f"{self.scores} is not used row by row")
        shifts = dict[str, int]()
        for e in r.elements:
            if e.array in self.inner and not e.scalar:
                for role, subscript in zip(self.order, e.subscripts, strict=True):
                    if len(subscript.factors) > 1 or any(
                            c != 1 or names[i] != role for i, c in subscript.factors.items()):
                        refuse(r.line, f"{self.scores} is not used row by row")
                    first = subscript.constant
                    if shifts.setdefault(role, first) != first or (not subscript.factors and r.extents):
                        refuse(r.line, f"{self.scores} is used at several places in a round")

        for x, role in names.items():
            written = r.written.get(x, Linear(0, {x: 1}))
            if role in "ij" and written.factors != {x: 1}:
                refuse(r.line, "a loop over scores has a step of more than 1")
            shifts.setdefault(role, written.constant if role in "ij" else 0)

        def form(x: Linear) -> Linear:
            moved = sum(-c * shifts.get(names[i], 0) for i, c in x.factors.items())
            return Linear(x.constant + moved, {names[i]: c for i, c in x.factors.items()})
        extents = {names[i]: n + shifts.get(names[i], 0) for i, n in r.extents.items()}
        least = tuple(Linear(-n, {role: 1}) for role, n in shifts.items() if n and role in extents)
        r = r.changed(form, extents)
        return replace(r, conditions=(*r.conditions, *least))

    def _domain(self, r: Rounds, rows: bool = True) -> Domain:
        """Where in the box of scores a statement has rounds. Refused if it leaves out rows, unless of scores."""
        d = [x.key for x in r.conditions]
        d += [Linear(n - 1, {i: -1}).key for i, n in r.extents.items() if i in "ij" and n < self.box[i]]
        if any({i for i, _ in key[1]} - {"i", "j"} for key in d) or (rows and any(
                {i for i, _ in key[1]} == {"i"} for key in d)) or ("c" in r.extents and r.extents["c"] < self.box["c"]):
            refuse(r.line, "a condition or a bound leaves out a part of the results")
        return scores.both(tuple(d))

    # ---- statements

    def _statement(self, r: Rounds) -> None:
        name, own = r.target.array, {i for x in r.target.subscripts for i in x.factors}
        if name in self.inner or (r.target.scalar and own >= {"i", "j"}):
            self._score(r)
            return
        if not own <= {"i", "c"} or "i" not in own:
            refuse(r.line, f"{name} has no element for each row")
        if set(r.extents) - {"j"} - own:
            refuse(r.line, f"{name} is reduced over another index than that of the columns of scores")
        if not r.target.scalar:
            for x in r.target.subscripts:
                if x.constant or list(x.factors.values()) != [1]:
                    refuse(r.line, "a subscript is more than an index")
            if self.targets.setdefault(name, r.target).key != r.target.key:
                refuse(r.line, f"{name} is written at several places")
        start = self.numbers.get(name)
        if "j" not in r.extents:
            if self._domain(r):
                refuse(r.line, "a condition leaves out a part of the rows")
            value = self._term(r.value, r)
            if r.reduce:
                value = operation(r.reduce, start or UNKNOWN, value)
            self.numbers[name] = value
            return
        d = self._domain(r)
        self.numbers[name] = self._reduced(r, d, start) if r.reduce else self._carried(r, d, start)
        self.over.add(name)

    def _score(self, r: Rounds) -> None:
        name, d = r.target.array, self._domain(r, rows=False)
        before = self.elements.get(name, UNKNOWN)
        own = scores.under(before, d)
        if "d" in r.extents:
            new = self._product(r)
            if own[0] == "inside" or own == UNKNOWN:
                refuse(r.line, f"{name} is added to before it has a start")
            new = operation("add", new, own)
        else:
            if set(r.extents) - {"i", "j"}:
                refuse(r.line, f"{name} is set in each round of a loop that it has no index of")
            new = self._term(r.value, r)
            new = operation(r.reduce, own, new) if r.reduce else new
        self.elements[name] = inside(d, scores.under(new, d), before)

    def _product(self, r: Rounds) -> Term:
        """s, with numbers that the product has as factors."""
        parts = scores.multiplied(r.value)
        loads, factors = [x for x in parts if x[0][0] == "load"], [x for x in parts if x[0][0] != "load"]
        by = {frozenset(x[1].indices): x[1] for x, power in loads if power == 1}
        q, k = by.get(frozenset("id")), by.get(frozenset("jd"))
        if r.reduce != "add" or len(loads) != 2 or q is None or k is None or self.dot is not None or any(
                x[0] not in ("number", "parameter") for x, _ in factors) or r.target.array != self.scores:
            refuse(r.line, f"{r.target.array} is no product of rows of two arrays")
        if any(x.constant or len(x.factors) != 1 for e in (q, k) for x in e.subscripts):
            refuse(r.line, "a subscript is more than an index")
        self.dot = q, k
        return operation("mul", DOT, scores.product(factors)) if factors else DOT

    def _reduced(self, r: Rounds, d: Domain, start: Term | None) -> Term:
        """A reduction over j."""
        name, value = r.target.array, self._term(r.value, r)
        if r.reduce in EXTREMES:
            kind, identity = EXTREMES[r.reduce]
            d, value = scores.narrowed(d, value, identity)
            if start != identity:
                refuse(r.line, f"{name} is reduced by {r.reduce}, from another start than {identity[1]}")
            if not scores.indices(value) <= {"i", "j"} or "j" not in scores.indices(value):
                refuse(r.line, f"{name} is no reduction of scores")
            return (kind, d, value)
        if scores.mentions(value, "partial"):
            refuse(r.line, "a sum depends on a reduction that is not over")
        if r.reduce != "add" or start is None:
            refuse(r.line, f"{name} is reduced by {r.reduce}, or has no start")
        return operation("add", scores.summed(d, value), start)

    def _carried(self, r: Rounds, d: Domain, start: Term | None) -> Term:
        """An extreme, or its index, that a choice keeps from column to column."""
        name, value = r.target.array, self._term(r.value, r)
        d, value = scores.narrowed(d, value, ("partial", name))
        fits = value[0] == "where" and value[3] == ("partial", name) and value[1][0] in ("lt", "le")
        if not fits:
            refuse(r.line, f"{name} goes from column to column in another way than by an extreme of scores")
        (order, a, b), new = value[1], value[2]
        kind = "largest" if a[0] == "partial" else "smallest" if b[0] == "partial" else ""
        x, of = (b, a) if kind == "largest" else (a, b)
        if not kind or order != "lt" or x == of or scores.mentions(x, "partial"):
            refuse(r.line, f"{name} is kept by another choice than of the first extreme")
        if new == x and of == ("partial", name):
            if start != (LOW if kind == "largest" else HIGH):
                refuse(r.line, f"{name} is kept from another start than that of {kind}")
            return (kind, d, x)
        if new != ("index", (0, (("j", 1),))):
            refuse(r.line, f"{name} is neither the extreme that is compared nor its column")
        self.firsts[name] = of[1], (kind, d, x)
        return ("first", d, x, kind)

    # ---- values

    def _term(self, term: Term, r: Rounds) -> Term:
        """A statement's term with what S and the rows' numbers are in place of their names."""
        if term[0] == "load":
            return self._load(term[1], r)
        if term[0] == "index":
            return ("index", term[1].key)
        if term[0] in LEAVES:
            return term
        return operation(term[0], *(self._term(x, r) for x in term[1:]))

    def _load(self, e: Element, r: Rounds) -> Term:
        name = e.array
        if name in self.elements:
            return scores.under(self.elements[name], self._domain(r, rows=False))
        if name in self.numbers:
            if any(name == other and loops & r.loops for other, loops in self.partial):
                if name in self.over:
                    refuse(r.line, f"{name} is read in the loop that reduces it, after it has changed")
                return ("partial", name)
            if not e.scalar and e.key != self.targets[name].key:
                refuse(r.line, f"{name} is read at another place than it is written")
            return self.numbers[name]
        if name in self.inner:
            refuse(r.line, f"{name} is read before it is computed")
        if e.scalar or any(x.constant or list(x.factors.values()) != [1] for x in e.subscripts):
            refuse(r.line, f"{name} is not used by row and column of the scores")
        indices = "".join(next(iter(x.factors)) for x in e.subscripts)
        if not set(indices) <= set("ijc"):
            refuse(r.line, f"{name} is not used by row and column of the scores")
        return ("load", name, indices)


def _all_levels(x: Term) -> list[Term]:
    """The reductions in a term, and those in their terms."""
    levels = scores.levels(x)
    return [*levels, *(z for y in levels for part in y[2:] if isinstance(part, tuple) for z in _all_levels(part))]


def fused(nest: LoopNest, sizes: Mapping[str, int], temporary: Sequence[str]) -> Online | str:
    """The reduction that the nest is, or why it is none."""
    try:
        return online(nest, sizes, temporary)
    except Refused as refusal:
        return f"{refusal.line}: {refusal.reason}"
