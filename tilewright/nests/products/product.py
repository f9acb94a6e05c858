"""A box of a contraction as one call: of matmul, of contract for a semiring, of einsum for scattered axes.

`Product(box, arrays)` decides once, for arrays of these shapes and strides; `run(arrays, numbers)` makes the call with
others of the same layout.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np

from tilewright import formats
from tilewright.expressions.reductions import Reduction
from tilewright.forks import cached_property
from tilewright.nests.domain import Element
from tilewright.nests.given import overlap
from tilewright.nests.nest import Term, leaves, refuse, text
from tilewright.nests.polynomial import Linear
from tilewright.nests.products.pieces import Box, Look, computed, copied, full, function, mask, put, strides
from tilewright.nests.products.recognition import ACC, ONE, distinct, factors_of, is_number, multiplied, with_acc
from tilewright.problem import Gemm
from tilewright.targets import CpuTarget

Arrays = Mapping[str, Any]
Numbers = Mapping[str, float]
REDUCTIONS = {"add": "sum", "mul": "product", "fmin": "min", "fmax": "max"}
TIMES = Reduction(lambda kind, bits: (1.0 if kind == "float" else 1,), lambda s, t, p: (s[0] * t,),
                  lambda x, y: (x[0] * y[0],))


class Product:
    def __init__(self, box: Box, arrays: Arrays, target: Any = None) -> None:
        self.target = target
        self.box, self.c, self.reversed = box, box.contraction, False
        self.extents = dict(box.extents)
        self.alpha, self.beta, self.results = self.c.alpha, self.c.beta, list(box.results)
        self.sums = list(self.c.sums)
        self.rooms: dict[int, tuple[Any, Callable[[Any], Any]]] = {
            n: copied(o, self.extents, arrays[o.element.array]) for n, o in enumerate(box.operands) if o.copied}
        self.elements = [self._element(n) for n in range(len(box.operands))]
        self.operands = [self.rooms[n][0] if n in self.rooms else arrays[o.element.array]
                         for n, o in enumerate(box.operands)]
        self._backwards(arrays)
        self._counted()
        self._linear()
        groups = self._groups(arrays)
        self.matrices = [prod(self.extents[i] for i in groups[x]) for x in ("m", "n", "k", "batch")] if groups else None
        self.call = self._matrices(groups, arrays) if groups else self._einsum(arrays)

    def run(self, arrays: Arrays, numbers: Numbers) -> None:
        """Compute the results of these arrays."""
        for n, (_, fill) in self.rooms.items():
            fill(arrays[self.box.operands[n].element.array])
        self.call(arrays, numbers)

    @property
    def of_views(self) -> bool:
        """Whether it is one call of views of the arrays, without factors."""
        return not (self.rooms or self.box.mask) and self.alpha == ONE and all(
            x[0] == "load" for x in self.c.factors or ())

    def _element(self, n: int) -> Element:
        """The operand's element, of its copy if it is copied."""
        operand = self.box.operands[n]
        if not operand.mask:
            return operand.element
        axes = sorted(operand.element.indices, key=list(self.extents).index)
        return Element(operand.element.array, tuple([Linear(0, {i: 1}) for i in axes]))

    def _operand(self, n: int, arrays: Arrays) -> Any:
        return self.rooms[n][0] if n in self.rooms else arrays[self.elements[n].array]

    def _backwards(self, arrays: Arrays) -> None:
        """torch has no views of negative strides."""
        for e in [*self.elements, *[e for e, _ in self.results]]:
            steps = [c for x in e.subscripts for c in x.factors.values()]
            if min(steps, default=0) < 0 and not isinstance(arrays[e.array], np.ndarray):
                refuse(self.c.line, f"{e.array} is read or written backwards, of which a tensor has no view")

    # ---- what is left of sums and results

    def _counted(self) -> None:
        """A sum over an index that no operand has adds the same term so many times."""
        for i in [i for i in self.sums if all(i not in e.indices for e in self.elements)]:
            if self.c.factors is None or any(i in x.factors for x in self.c.conditions):
                if self.c.reduce in ("add", "mul") or any(i in x.factors for x in self.c.conditions):
                    refuse(self.c.line, f"the index {i} is in no operand")
            else:
                self.alpha = multiplied([self.alpha, ("number", self.extents[i])])
            self.sums.remove(i)
            del self.extents[i]
        for i in self.c.outs:
            if all(i not in e.indices for e in self.elements):
                refuse(self.c.line, f"the index {i} is in no operand")
        if not self.sums:
            refuse(self.c.line, "nothing is summed")
        alone = [i for i in self.sums if sum(i in e.indices for e in self.elements) == 1]
        if alone and self.target is not None and not isinstance(self.target, CpuTarget):
            refuse(self.c.line, f"no product on a GPU sums over {_name(alone[0])}, an index of one array alone")

    def _linear(self) -> None:
        """alpha and beta of a result that is a number times acc, and a number times what the target held."""
        if self.beta is not None and self.c.factors is None:        # contract has no beta
            old = ("mul", self.beta, ("load", self.box.target))
            self.results = [(e, with_acc(v, ("add", ACC, old))) for e, v in self.results]
            self.beta = None
        if len(self.results) != 1 or self.c.factors is None or self.beta is not None:
            return
        (element, value), = self.results
        parts = [value[1], value[2]] if value[0] in ("add", "sub") else [value]
        coefficients: dict[bool, Term] = {}
        for n, part in enumerate(parts):
            own = [x for x in factors_of(part) if not is_number(x) or x == ACC]
            if len(own) != 1 or (own[0] != ACC and (own[0][0] != "load" or own[0][1].key != element.key)):
                return
            number = multiplied([x for x in factors_of(part) if x is not own[0]])
            if value[0] == "sub" and n:
                number = multiplied([("number", -1), number])
            if (own[0] == ACC) in coefficients:
                return
            coefficients[own[0] == ACC] = number
        if True in coefficients:
            self.alpha = multiplied([self.alpha, coefficients[True]])
            self.beta = coefficients.get(False)
            self.results = [(element, ACC)]

    @property
    def fused(self) -> bool:
        """Whether a function of acc is left."""
        return [v for _, v in self.results] != [ACC]

    # ---- matrices

    def _groups(self, arrays: Arrays) -> dict[str, list[str]] | None:
        """The indices of batch, m, n and k, where two operands are matrices; None where einsum is asked."""
        if len(self.elements) != 2:
            return None
        a, b = self.elements
        if strides_of := [strides(e, arrays[e.array]) for e, _ in self.results]:
            out = strides_of[0]
        labels = {"batch": [i for i in self.c.outs if i in a.indices and i in b.indices],
                 "m": [i for i in self.c.outs if i not in b.indices],
                 "n": [i for i in self.c.outs if i not in a.indices],
                 "k": list(self.sums)}
        if any(i not in a.indices or i not in b.indices for i in self.sums):
            if self.c.factors is None:
                refuse(self.c.line, "a semiring over indices that one array alone has")
            return None
        for name in ("batch", "m", "n"):
            labels[name].sort(key=lambda i: -abs(out.get(i, 0)))
        if labels["m"] and labels["n"] and abs(out[labels["m"][-1]]) == 1 != abs(out[labels["n"][-1]]):
            self._exchanged()                           # the result's rows are contiguous
            a, b = self.elements
            labels["m"], labels["n"] = labels["n"], labels["m"]
        by_a = strides(a, self.operands[0])
        labels["k"].sort(key=lambda i: -abs(by_a.get(i, 0)))
        every = [*(strides(e, x) for e, x in zip(self.elements, self.operands)), *strides_of,
                 *(strides(e, arrays[e.array]) for e in self._others())]
        joined = {name: self._merged(indices, every) for name, indices in labels.items()}
        plain = all(len(joined[name]) <= 1 for name in ("m", "n", "k"))
        if not plain and self.c.factors is not None:
            return None
        return labels

    def _merged(self, indices: list[str], every: list[dict[str, int]]) -> list[list[str]]:
        """Neighbouring indices that all arrays walk like one, as groups."""
        groups = [[i] for i in indices]
        masked = {i for x in self.box.mask for i in x.factors}
        n = 0
        while n + 1 < len(groups):
            (u, *_), last = groups[n][-1:], groups[n + 1][0]
            if not {u, last} & masked and all(s.get(u, 0) == self.extents[last] * s.get(last, 0) for s in every):
                groups[n:n + 2] = [groups[n] + groups[n + 1]]
            else:
                n += 1
        return groups

    def _exchanged(self) -> None:
        self.elements.reverse()
        self.operands.reverse()
        self.rooms = {1 - n: room for n, room in self.rooms.items()}
        self.box = type(self.box)(self.c, self.box.extents, self.box.operands[::-1], self.box.results, self.box.target,
                                  self.box.mask)
        self.reversed = True

    def _others(self) -> list[Element]:
        """What the functions of acc read."""
        return list({e.key: e for _, v in self.results for e in distinct(v)}.values())

    def _matrices(self, by: dict[str, list[str]], arrays: Arrays) -> Callable[[Arrays, Numbers], None]:
        import tilewright

        batch = [[i] for i in by["batch"]]
        looks = [Look(e, [*batch, by[x], by[y]], self.extents, array)
                 for x, y, e, array in zip("mk", "kn", self.elements, self.operands)]
        outs = [*batch, by["m"], by["n"]]
        how, given = self._functions(outs, arrays)
        factors = self.c.factors
        if factors is None:
            f = self._semiring()
            reduce = TIMES if self.c.reduce == "mul" else REDUCTIONS.get(self.c.reduce, self.c.reduce)

            def multiply(a: Any, b: Any, **options: Any) -> Any:
                return tilewright.contract(f, a, b, reduce=reduce, **options)
        else:
            if self.reversed:
                factors = factors[::-1]
            for side, x in zip("ab", factors):
                if x[0] != "load":
                    how[f"prologue_{side}"] = function([x], ["x"], lambda leaf: self._number(leaf) or "x")

            def multiply(a: Any, b: Any, **options: Any) -> Any:
                return tilewright.matmul(a, b, **options)
        stored = self._stored(outs, arrays)
        looks.append(Look(self.results[0][0], outs, self.extents, arrays[self.results[0][0].array]))
        if not (how or self.rooms or self.box.mask or self.beta) and self.alpha == ONE and factors is not None and all(
                look.identity for look in looks):
            one, other, result = (look.element.array for look in looks)
            matmul: Any = tilewright.matmul
            return lambda now, numbers: matmul(now[one], now[other], out=now[result])

        def call(now: Arrays, numbers: Numbers) -> None:
            a, b = (looks[n](self._operand(n, now)) for n in (0, 1))
            stored(now, lambda **out: multiply(a, b, **how, **given(now, numbers), **out))
        return call

    def _number(self, leaf: Term) -> str:
        if leaf[0] == "parameter":
            refuse(self.c.line, f"{leaf[1]} in a function of an operand must be a number of the source")
        return ""

    def _semiring(self) -> Callable[..., Any]:
        names = ["y", "x"] if self.reversed else ["x", "y"]
        keys = {o.key: n for n, o in enumerate(self.c.operands)}
        return function([self.c.term], ["x", "y"],
                        lambda leaf: self._number(leaf) or names[keys[leaf[1].key]])

    # ---- functions of acc, and where results go

    def _functions(self, outs: list[Any], arrays: Arrays
                   ) -> tuple[dict[str, Any], Callable[[Arrays, Numbers], dict[str, Any]]]:
        """The options that never change, and those of a call: alpha, beta, c, operands."""
        how = _formats(self.operands, arrays[self.results[0][0].array])
        others = {e.key: (f"x{n}", Look(e, outs, self.extents, arrays[e.array]), e.array)
                  for n, e in enumerate(self._others())} if self.fused else {}
        named = sorted({x for _, v in self.results for x in leaves(v, "parameter")} - {"acc"}) if self.fused else []
        if self.fused:
            def leaf(x: Term) -> str:
                return "acc" if x == ACC else x[1] if x[0] == "parameter" else others[x[1].key][0]
            names = ["acc", *(x for x, _, _ in others.values()), *named]
            how["epilogue"] = function([v for _, v in self.results], names, leaf)
        old, target = None, self.box.target
        if self.beta is not None:
            old = Look(target, outs, self.extents, arrays[target.array])

        def given(now: Arrays, numbers: Numbers) -> dict[str, Any]:
            options = dict[str, Any]()
            if self.alpha != ONE:
                options["alpha"] = _value(self.alpha, numbers)
            if old is not None and self.beta is not None:
                options |= {"beta": _value(self.beta, numbers), "c": old(now[target.array])}
            if self.fused:
                options["operands"] = {name: look(now[array]) for name, look, array in others.values()}
                options["operands"] |= {name: np.float32(numbers[name]) for name in named}
            return options
        return how, given

    def _stored(self, outs: list[Any], arrays: Arrays) -> Callable[[Arrays, Callable[..., Any]], None]:
        """Runs a product into views of the results, or by an array of its own where a mask leaves elements out."""
        looks = [Look(e, outs, self.extents, arrays[e.array]) for e, _ in self.results]
        names = [e.array for e, _ in self.results]
        rooms, where = list[Any](), None
        singles = [[i] for group in outs for i in group]
        apart = [Look(e, singles, self.extents, arrays[e.array]) for e, _ in self.results]
        shape = [self.extents[i] for group in singles for i in group]
        if self.box.mask or any(not overlap(look(arrays[x]), arrays[x]) for look, x in zip(looks, names)
                                if isinstance(arrays[x], np.ndarray) or hasattr(arrays[x], "untyped_storage")):
            where = mask(self.box.mask, [i for i, in singles], self.extents, arrays[names[0]])
            rooms = [full(arrays[x], look(arrays[x]).shape, 0) for look, x in zip(looks, names)]

        def store(now: Arrays, multiply: Callable[..., Any]) -> None:
            views = rooms or [look(now[x]) for look, x in zip(looks, names)]
            multiply(out=tuple(views) if len(views) > 1 else views[0])
            for room, look, x in zip(rooms, apart, names):
                put(look(now[x]), room.reshape(shape), where)
        return store

    # ---- scattered axes

    def _einsum(self, arrays: Arrays) -> Callable[[Arrays, Numbers], None]:
        import tilewright

        number = {i: n for n, i in enumerate(self.extents)}
        axes = [[i for i in self.extents if i in e.indices] for e in self.elements]
        looks = [Look(e, [[i] for i in own], self.extents, x) for e, own, x in zip(self.elements, axes, self.operands)]
        outs = sorted(self.c.outs, key=list(self.extents).index)
        groups = [[i] for i in outs]
        how, given = self._functions(groups, arrays)
        stored = self._stored(groups, arrays)
        factors = self.c.factors or ()
        labels = [[number[i] for i in own] for own in axes]
        result = [number[i] for i in outs]

        def call(now: Arrays, numbers: Numbers) -> None:
            views = [look(self._operand(n, now)) for n, look in enumerate(looks)]
            used = [v if x[0] == "load" else _applied(x, v, numbers) for x, v in zip(factors, views)]
            pairs = [x for pair in zip(used, labels) for x in pair]
            stored(now, lambda **out: tilewright.einsum(*pairs, result, **how, **given(now, numbers), **out))
        return call

    # ---- in words

    @property
    def problem(self) -> Any:
        """The product of contiguous matrices of these sizes; None where it is no plain product of matrices."""
        if self.matrices is None or self.c.factors is None:
            return None
        m, n, k, batch = self.matrices
        return Gemm(m, n, k, str(self.operands[0].dtype).removeprefix("torch."), batch=batch)

    @cached_property
    def how(self) -> str:
        """The call that computes it, with its plan for plain operands."""
        import tilewright

        extras = [x for x, there in (("a function of operands", any(x[0] != "load" for x in self.c.factors or ())),
                                     ("an epilogue", self.fused), ("a mask", bool(self.box.mask)),
                                     ("copies of operands", bool(self.rooms))) if there]
        others = " with " + ", ".join(extras) if extras else ""
        if self.matrices is None:
            return "einsum of strided views" + others
        m, n, k, batch = self.matrices
        if self.c.factors is None:
            return f"contract of {m} x {n} x {k}" + others
        plan = ""
        with suppress(TypeError, ValueError):
            plan = " ".join(str(tilewright.plan(self.problem, self.target)).split()[:2])
        return f"matmul of {f'{batch} times ' if batch > 1 else ''}{m} x {n} x {k}" + (
            f", compiled as {plan}" if plan else "") + others

    def __str__(self) -> str:
        def plain(x: Term) -> str:
            return _shown(x[1]) if x[0] == "load" else f"{x[1]:g}" if x[0] == "number" else str(x[1])
        how = REDUCTIONS.get(self.c.reduce, self.c.reduce)
        if self.c.factors is None:
            term = text(self.c.term, plain)
        else:
            term = " ".join(_shown(e) if x[0] == "load" else text(x, plain, True)
                            for e, x in zip(self.c.operands, self.c.factors))
        alpha = "" if self.alpha == ONE else text(self.alpha, plain, True) + " "
        target = self.results[0][0]
        line = f"{_shown(target)} = {alpha}{how} over {', '.join(_name(i) for i in self.c.sums)} of {term}"
        if self.beta is not None:
            line += " + " + ("" if self.beta == ONE else text(self.beta, plain, True) + " ") + _shown(target)
        if self.fused:
            line += ", then " + ", ".join(text(v, plain) for _, v in self.results)
        return line


def _value(term: Term, numbers: Numbers) -> float:
    value = computed(term, lambda x: x[1] if x[0] == "number" else numbers[x[1]])
    return value.item() if hasattr(value, "item") else value


def _applied(x: Term, view: Any, numbers: Numbers) -> Any:
    """A function of an operand, by a pass over it."""
    with np.errstate(all="ignore"):
        value = computed(x, lambda leaf: view if leaf[0] == "load" else leaf[1] if leaf[0] == "number" else
                         numbers[leaf[1]])
    return value.astype(view.dtype, copy=False)


def _name(index: str) -> str:
    """An index as the source calls it."""
    return re.sub(r"\.\d+$", "", index)


def _shown(e: Element) -> str:
    """An element with the names of its indices, as the source has them."""
    parts = []
    for x in e.subscripts:
        terms = [(f"{c}*" if abs(c) != 1 else "-" if c < 0 else "") + _name(i) for i, c in x.factors.items()]
        if x.constant or not terms:
            terms.append(str(x.constant))
        parts.append(" + ".join(terms).replace("+ -", "- "))
    return f"{e.array}[{', '.join(parts)}]" if parts else e.array


def _formats(operands: Sequence[Any], result: Any) -> dict[str, Any]:
    """The product is asked for in the format of the array, which operands need not have."""
    names = [str(x.dtype).removeprefix("torch.") for x in (result, *operands)]
    return {"out_dtype": formats.get(names[0]).name} if len(set(names)) > 1 else {}
