"""Reductions of scores, computed without the scores in memory: `Online`, what nests/products/online.py makes of loops.

    mean of V by weights exp(x), lse         tilewright.attention: one pass, with a level that rises
    largest, smallest, first, sum of f(x)    reductions in the epilogue of the product Q K^T
    mean of f(x) by weights exp(x)           the same in a second pass, relative to lse
    sum of x where j is a row's own number   products of rows of Q and the rows of K that these numbers name

Results are functions of those by row, and by column of values, which NumPy computes.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tilewright import forks
from tilewright.api import tensors
from tilewright.expressions.functions import row_argmax, row_argmin, row_max, row_min, row_sum
from tilewright.expressions.tracing import apply
from tilewright.nests.domain import Element
from tilewright.nests.nest import LoopNest, Term
from tilewright.nests.products import scores
from tilewright.nests.products.scores import DOT, ONE, ZERO, Domain, Unfit
from tilewright.nests.products.words import lowered, roles, said, text

EXTREMES = {"largest": row_max, "smallest": row_min}
FIRSTS = {"largest": row_argmax, "smallest": row_argmin}


class Pass(NamedTuple):
    """Reductions that are computed together. kind: "attention" of one D and x, "product", or "rows" of one pick."""
    kind: str
    nodes: tuple[Term, ...]


class Online:
    """The results of a nest; what Step (nests/optimize.py) takes for a product. `results` are terms of row i, `targets`
    their elements; `touched`: accesses of elements of scores by the statements as they are written."""
    problem, of_views = None, False

    def __init__(self, nest: LoopNest, temporary: tuple[str, ...], dot: tuple[Element, Element],
                 results: Mapping[str, Term], targets: Mapping[str, Element], extents: Mapping[str, int],
                 touched: int) -> None:
        self.nest, self.temporary, self.dot, self.targets = nest, temporary, dot, dict(targets)
        self.extents, self.touched = dict(extents), touched
        self.results = {name: lowered(x) for name, x in results.items()}
        self.passes = _passes([y for x in self.results.values() for y in scores.levels(x)])
        formats = {nest.element(e.array) for e in dot}
        if len(formats) > 1:
            raise Unfit("the two arrays of the product have different formats")
        self.element, = formats
        if any(p.kind == "attention" for p in self.passes) and not self.element.is_float:
            raise Unfit("powers of products of whole numbers are not taken")

    @property
    def plain(self) -> bool:
        """Whether results are just those of attention, and are written by it."""
        own = {self.nest.element(name) for name in self.results}
        values = [x[4] for x in self.results.values() if x[0] == "mean"]
        return (len(self.passes) == 1 and self.passes[0].kind == "attention" and own == {self.element}
                and all(x[0] in ("lse", "mean") for x in self.results.values())
                and all(v[0] == "load" and "c" in v[2] and self.nest.element(v[1]) == self.element for v in values))

    # ---- text

    def __str__(self) -> str:
        names = dict(zip(dict.fromkeys(self._xs()), "xyzw"))
        q, k = self.dot
        results = "; ".join(f"{name}[{', '.join(roles(self.targets[name]))}] = {said(x, names)}"
                            for name, x in self.results.items())
        of = "; ".join(f"{name} = {text(x, lambda y: f'({said(y, names)})')}" for x, name in names.items())
        product = " ".join(f"{e.array}[{', '.join(roles(e))}]" for e in (q, k))
        sizes = f"{self.extents['i']} queries by {self.extents['j']} keys"
        return f"{results}; {of}, s = sum over d of {product}: {self._called} of {sizes}"

    @property
    def _called(self) -> str:
        kinds = [{"attention": "attention", "product": "reductions in a product's epilogue",
                  "rows": "products of rows"}[p.kind] for p in self.passes]
        return ", then ".join(dict.fromkeys(kinds))

    def _xs(self) -> list[Term]:
        return [part for p in self.passes for node in p.nodes for part in _terms(node) if scores.mentions(part, "dot")]

    @property
    def bytes(self) -> tuple[int, int]:
        """What statements access of memory one after the other, and what the passes do."""
        i, j, d, c = (self.extents.get(x, 0) for x in "ijdc")
        read = sum(2 * i*d if p.kind == "rows" else i*d + j*d for p in self.passes)
        means = [x for p in self.passes for x in p.nodes if x[0] == "mean"]
        values = sum("c" in scores.indices(x[4]) for x in means)
        written = sum(i * (c if len(e.subscripts) > 1 else 1) for e in self.targets.values())
        size = self.element.bytes
        once = size * (i*d + j*d + values * j*c + written)
        return once + self.touched * size, size * (read + values * j*c + written)

    @property
    def how(self) -> str:
        before, after = self.bytes
        kinds = {node[0] for p in self.passes for node in p.nodes}
        rules = []
        if kinds & {"lse", "mean"}:
            rules.append("the maximum, the sum of powers and sums by powers are one reduction, since exp(x - t) = "
                         "exp(x - m) exp(m - t)")
        if "first" in kinds:
            rules.append("an extreme and its index are one reduction, since (m, at) and (n, to) are (m, at) if m is "
                         "not passed by n, else (n, to)")
        if not rules:
            rules.append("reductions of scores take them as they are made")
        if not self.temporary:
            return f"{' and '.join(rules)}; {after:,} bytes are read and written"
        left = f"{' and '.join(self.temporary)} {'is' if len(self.temporary) == 1 else 'are'} not stored"
        return f"{' and '.join(rules)}; {left}: {before:,} bytes become {after:,}"

    # ---- numbers

    def run(self, arrays: Mapping[str, Any], numbers: Mapping[str, Any]) -> None:
        given = _Given(self, arrays, numbers)
        if self.plain:
            given.attend(self.passes[0], written=True)
            return
        for p in self.passes:
            {"attention": given.attend, "product": given.reduce, "rows": given.pick}[p.kind](p)
        for name, x in self.results.items():
            order = "".join(roles(self.targets[name]))
            values = given.evaluated(x, "ic" if "c" in order else "i")
            out = given.cut(tensors.array(arrays[name], name, True), order)
            out = out.T if order == "ci" else out
            out[...] = np.broadcast_to(values, out.shape if out.ndim > 1 else (*out.shape, 1)).reshape(out.shape)


class _Given:
    """The arguments of a call, and what passes have found."""

    def __init__(self, of: Online, arrays: Mapping[str, Any], numbers: Mapping[str, Any]) -> None:
        self.of, self.arrays, self.numbers = of, arrays, numbers
        self.found = dict[Term, Any]()
        self.q, self.k = (self._turned(e, order) for e, order in zip(of.dot, ("id", "jd")))
        self.queries, self.keys = of.extents["i"], of.extents["j"]

    def cut(self, x: Any, order: Sequence[str]) -> Any:
        """The part of an array with these axes that loops use."""
        return x[tuple([slice(0, self.of.extents.get(i, 1)) for i in order])]

    def _turned(self, e: Element, order: str) -> Any:
        x = self.cut(self.arrays[e.array], roles(e))
        return x if roles(e) == [*order] else x.T

    def _own(self, name: str, order: Sequence[str]) -> Any:
        return self.cut(tensors.array(self.arrays[name], name), order)

    def attend(self, p: Pass, written: bool = False) -> None:
        """Means of values, and the log of sums of powers. `written`: to the results, which are just these."""
        attention = forks.imported("tilewright.api.attention").attention
        d, x = p.nodes[0][1:3]
        first, last, band, rest = _bounds(d, self.queries, self.keys)
        how: dict[str, Any] = {**band, "scale": _scale(x)}
        if rest or how["scale"] is None or first:
            shift = 0 if band.get("causal") == "upper left" else last - first - self.queries
            how |= {"scale": 1.0, "bias": self._function(x, rest, shift, first), "operands": self._beside(
                x, first, last)}
        k = self.k[first:last]
        means = [node for node in p.nodes if node[0] == "mean"]
        names = {x: [name for name, y in self.of.results.items() if y == x] for x in p.nodes}
        logs = ("lse", d, x)
        for node in (*means, None) if not means else means:
            v, out = k[:, :1], None
            if node is not None:
                v = self._values(node[4])[first:last]
                out = self._turned(self.of.targets[names[node][0]], "ic") if written else None
            result = attention(self.q, k, v, out=out, return_lse=logs in p.nodes, **how)
            if logs in p.nodes:
                self.found[logs] = result[1]
            if node is not None:
                self.found[node] = result[0] if logs in p.nodes else result
        for node in p.nodes if written else ():
            for name in names[node][node[0] == "mean":]:
                e = self.of.targets[name]
                to = self.cut(self.arrays[name], "i") if node[0] == "lse" else self._turned(e, "ic")
                to[...] = self.found[node]

    def _values(self, h: Term) -> Any:
        """The values [j, c] that a term of j and c stands for."""
        if h[0] == "load" and len(h[2]) == 2:
            x = self.cut(self.arrays[h[1]], h[2])
            return x if h[2] == "jc" else x.T
        columns = self.of.extents["c"] if "c" in scores.indices(h) else 1
        x = np.broadcast_to(self.evaluated(h, "jc"), (self.keys, columns))
        return np.ascontiguousarray(x, self.k.dtype if isinstance(self.k, np.ndarray) else None)

    def _function(self, x: Term, rest: Domain, shift: int, first: int) -> Callable[..., Any]:
        """x as a function of the score, position and key; -inf where one of `rest` is less than 0."""
        value = ("inside", rest, x, scores.LOW) if rest else x

        def function(score: Any, i: Any, j: Any, head: Any, **beside: Any) -> Any:
            place = {"i": i - shift if shift else i, "j": j + first if first else j}
            return _value(value, lambda t: score if t == DOT else beside[_name(t)], self._number, place)
        return function

    def _beside(self, x: Term, first: int = 0, last: int | None = None) -> dict[str, Any] | None:
        """The arrays that a term reads, by row and column."""
        arrays = {}
        for t in _leaves(x):
            own = self.found[t] if t[0] in scores.LEVELS else self._own(t[1], t[2])
            axes = "i" if t[0] in scores.LEVELS else t[2]
            y = own if axes == "ij" else own.T if axes == "ji" else own[:, None] if axes == "i" else own[None]
            arrays[_name(t)] = y[:, first:last] if "j" in axes else y
        return arrays or None

    def reduce(self, p: Pass) -> None:
        """Reductions of rows in the epilogue of the product."""
        matmul = forks.imported("tilewright.api.products").matmul
        q, k = (tensors.array(x, e.array) for x, e in zip((self.q, self.k), self.of.dot))
        inner = [part for node in p.nodes for part in (*_terms(node), *(_logs(node)))]
        operands = {name: x for part in inner for name, x in (self._beside(part) or {}).items()}
        operands |= {"own_i": np.arange(self.queries, dtype=np.int32)[:, None],
                     "own_j": np.arange(self.keys, dtype=np.int32)[None]}

        def epilogue(acc: Any, own_i: Any, own_j: Any, **beside: Any) -> Any:
            def term(t: Term, d: Domain, identity: Term) -> Any:
                return _value(("inside", d, t, identity) if d else t, lambda y: acc if y == DOT else beside[_name(y)],
                              self._number, {"i": own_i, "j": own_j})
            results = []
            for node in p.nodes:
                kind, d, x = node[:3]
                if kind in ("largest", "smallest", "first"):
                    level = node[3] if kind == "first" else kind
                    x = term(x, d, scores.LOW if level == "largest" else scores.HIGH)
                    results.append((FIRSTS if kind == "first" else EXTREMES)[level](x))
                else:
                    f = ("mul", node[3], node[4])
                    f = f if kind == "sum" else ("mul", ("exp", ("sub", x, *_logs(node))), f)
                    results.append(row_sum(term(f, d, ZERO)))
            return tuple(results)
        result = matmul(q, k.T, epilogue=epilogue, operands=operands)
        self.found |= zip(p.nodes, result if isinstance(result, tuple) else (result,))

    def pick(self, p: Pass) -> None:
        """Numbers of single elements of rows."""
        node, = p.nodes
        label = scores.picks(node[3])
        assert label is not None
        q, k = (tensors.array(x, e.array) for x, e in zip((self.q, self.k), self.of.dot))
        at = self._own(label[1], "i")
        rows = np.clip(at, 0, self.keys - 1).astype(np.int64)
        there = rows == at
        place = {"i": np.arange(self.queries), "j": rows}
        for constant, factors in node[1]:
            there &= constant + sum(c * place[i] for i, c in factors) >= 0
        dots = np.einsum("id,id->i", q.astype(np.float64), k[rows].astype(np.float64))
        wide = "c" in scores.indices(node[4])

        def leaf(t: Term) -> Any:
            if t[0] == "load":
                own = self._own(t[1], t[2])
                if "c" in t[2]:
                    return (own if t[2][1] == "c" else own.T)[place[t[2].replace("c", "")]]
                own = own[tuple(place[i] for i in t[2])]
            else:
                own = dots if t == DOT else np.asarray(self.found[t])
            return own[:, None] if wide else own
        across = {i: x[:, None] if wide else x for i, x in place.items()}
        value = _value(("mul", node[3][2], node[4]), leaf, self._number, across)
        self.found[node] = np.where(there[:, None] if wide else there, value, 0.0)

    def evaluated(self, t: Term, axes: str) -> Any:
        """A term by NumPy, with these two axes, or one and an axis of 1."""
        def leaf(x: Term) -> Any:
            if x[0] in scores.LEVELS:
                own = np.asarray(self.found[x])
                if own.ndim == 2:
                    return own
                return own.astype(np.float64)[:, None] if own.dtype.kind == "f" else own[:, None]
            own = self._own(x[1], x[2])
            if len(x[2]) == 2:
                return own if x[2] == axes else own.T
            return own[:, None] if x[2] == axes[0] else own[None]
        place = {axes[0]: np.arange(self.of.extents[axes[0]])[:, None]}
        place |= {axes[1]: np.arange(self.of.extents.get(axes[1], 1))[None]} if len(axes) > 1 else {}
        with np.errstate(all="ignore"):
            return _value(t, leaf, self._number, place)

    def _number(self, name: str) -> float:
        return float(self.numbers[name])


def _value(t: Term, leaf: Callable[[Term], Any], number: Callable[[str], float], place: Mapping[str, Any]) -> Any:
    """A term of symbols or of arrays."""
    if t == DOT or t[0] == "load" or t[0] in scores.LEVELS:
        return leaf(t)
    if t[0] == "number":
        return t[1]
    if t[0] == "parameter":
        return number(t[1])

    def form(key: scores.Key) -> Any:
        total: Any = key[0]
        for i, c in key[1]:
            total = total + (place[i] if c == 1 else place[i] * c)
        return total
    if t[0] == "index":
        return form(t[1])
    if t[0] == "inside":
        x, y = (_value(part, leaf, number, place) for part in t[2:])
        for key in t[1]:
            x = apply("where", apply("le", 0, form(key)), x, y)
        return x
    return apply(t[0], *(_value(x, leaf, number, place) for x in t[1:]))


# ---- which passes there are

def _terms(node: Term) -> tuple[Term, ...]:
    """The terms by row and column that a reduction is of."""
    return node[2:3] if node[0] in ("largest", "smallest", "first", "lse") else node[2:]


def _logs(node: Term) -> tuple[Term, ...]:
    """The level that a mean of scores' functions needs."""
    return (("lse", *node[1:3]),) if node[0] == "mean" and node[3] != ONE else ()


def _passes(nodes: list[Term]) -> list[Pass]:
    """In an order in which each one has what it needs."""
    wanted = list(dict.fromkeys(nodes))
    for node in wanted:                 # which grows
        wanted += [x for x in (*_logs(node), *(y for part in _terms(node) for y in scores.levels(part)))
                   if x not in wanted]
    done, passes = set[Term](), list[Pass]()
    while left := [x for x in wanted if x not in done]:
        ready = [x for x in left if all(y in done for y in (*_logs(x), *(
            z for part in _terms(x) for z in scores.levels(part))))]
        own = [x for x in ready if x[0] == "lse" or (x[0] == "mean" and x[3] == ONE)]
        rows = [x for x in ready if x[0] == "sum" and scores.picks(x[3])]
        if own:
            together = tuple(x for x in own if x[1:3] == own[0][1:3])
            passes.append(Pass("attention", together))
        elif rows:
            passes.append(Pass("rows", (rows[0],)))
        else:
            passes.append(Pass("product", tuple(ready)))
        done |= {*passes[-1].nodes}
    return passes


def _leaves(x: Term) -> list[Term]:
    """The loads and reductions in a term."""
    if x[0] == "load" or x[0] in scores.LEVELS:
        return [x]
    start = 2 if x[0] == "inside" else 1
    return [] if x[0] in scores.LEAF else [z for y in x[start:] for z in _leaves(y)]


def _name(t: Term) -> str:
    return f"x_{t[1]}_{t[2]}" if t[0] == "load" else f"y_{t[0]}_{abs(hash(t))}"


def _scale(x: Term) -> float | None:
    """The number that x is times the product; None if it is more than that."""
    if x == DOT:
        return 1.0
    return x[2][1] if x[0] == "mul" and x[1] == DOT and x[2][0] == "number" else None


def _bounds(d: Domain, queries: int, keys: int) -> tuple[int, int, dict[str, Any], Domain]:
    """The first key and the end, the arguments of attention for a band around the diagonal, and what is not so said."""
    first, last, before, after, rest = 0, keys, None, None, list[scores.Key]()
    for key in d:
        constant, factors = key[0], dict(key[1])
        if factors == {"j": 1}:
            first = max(first, -constant)
        elif factors == {"j": -1}:
            last = min(last, constant + 1)
        elif factors == {"j": 1, "i": -1}:
            before = constant
        elif factors == {"j": -1, "i": 1}:
            after = constant
        else:
            rest.append(key)
    if before is None and after is None:
        return first, last, {}, tuple(rest)
    own = before if before is None else before + first, after if after is None else after - first
    shift = last - first - queries
    if own[1] == 0 and (own[0] is None or own[0] >= 0):
        return first, last, {"causal": "upper left", "window": (own[0], None)}, tuple(rest)
    moved = own[0] if own[0] is None else own[0] + shift, own[1] if own[1] is None else own[1] - shift
    if all(x is None or x >= 0 for x in moved):
        return first, last, {"window": moved}, tuple(rest)
    rest += [key for key in d if {i for i, _ in key[1]} == {"i", "j"} and key not in rest]
    return first, last, {}, tuple(rest)
