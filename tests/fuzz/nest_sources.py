"""Random Python sources of nested loops over arrays, with arrays that they fit, or nearly.

Sources are of two styles: "product", a sum or a minimum of products with a start before and uses after it, at random
depths; and "any", a random tree of loops, conditions, variables and statements. Most accesses are in bounds, since the
shapes follow from the subscripts' intervals. Some are not, on purpose, and some sources use names as Python allows and
records do not: indices after their loops, names assigned under a condition, parameters that are assigned to.
"""

from __future__ import annotations

from random import Random
from typing import Any

EXTENTS = (1, 2, 2, 3, 4, 5, 5, 7, 9, 10)
ROUNDS = 1500       # of all loops of a statement together
NAMES = "ijklpq"


def chosen(r: Random, **weights: float) -> str:
    return r.choices(list(weights), list(weights.values()))[0]


class Index:
    """A loop's index, and the least and the largest number that it has if the loop has rounds."""

    def __init__(self, name: str, low: int, high: int) -> None:
        self.name, self.low, self.high = name, low, high


class Source:
    """A function's source as it is written, and what its arrays must have: `reach` is the largest subscript that each
    axis has had. `{5}` in a line stands for a bound of 5 that a size may replace."""

    def __init__(self, r: Random) -> None:
        self.r = r
        self.lines: list[str] = []
        self.axes = {a: r.choice([1, 2, 2, 2, 3]) for a in "ABCDE"[:r.choice([2, 3, 3, 4, 5])]}
        self.reach: dict[tuple[str, int], int] = {}
        self.numbers: dict[str, Any] = {}
        self.globals: dict[str, Any] = {}
        self.scalars: list[str] = []        # that have a number here, if all goes well
        self.names: list[str] = []          # assigned once, of indices and arrays that are only read
        self.made = 0
        self.written: set[str] = set()
        self.odd = r.random() < 0.12        # uses names in ways that records refuse
        self.negative = r.random() < 0.06

    def say(self, depth: int, text: str) -> None:
        self.lines.append("    " * (depth + 1) + text)

    # ---- subscripts and values

    def subscript(self, array: str, axis: int, loops: list[Index], plain: float = 0.6) -> str:
        r = self.r
        if not loops:
            text, low, high = self._constant(r.choice([0, 0, 1, -1]))
        else:
            i, j = r.choice(loops[-3:] if r.random() < 0.7 else loops), r.choice(loops)
            c = r.choice([1, 1, 2, 3])
            forms = [
                (i.name, i.low, i.high), (f"{i.name} + {c}", i.low + c, i.high + c),
                (f"{i.name} - {c}", i.low - c, i.high - c),
                (f"{i.high} - {i.name}", 0, i.high - i.low), (f"{c} - {i.name}", c - i.high, c - i.low),
                (f"{c}*{i.name}", c*i.low, c*i.high), (f"{i.name} + {j.name}", i.low + j.low, i.high + j.high),
                (f"{i.name} - {j.name}", i.low - j.high, i.high - j.low),
                (f"2*{i.name} + {j.name}", 2*i.low + j.low, 2*i.high + j.high),
                (f"-{i.name} + {i.high + c}", c, i.high - i.low + c), self._constant(r.choice([0, 0, 1, 2, -1, -2])),
            ]
            text, low, high = forms[0] if r.random() < plain else r.choice(forms)
        if low < 0 and not text.startswith("-") and not self.negative:
            text, low, high = f"{text} + {-low}", 0, high - low
        self.reach[array, axis] = max(self.reach.get((array, axis), 0), high)
        return text

    @staticmethod
    def _constant(c: int) -> tuple[str, int, int]:
        return str(c), c, max(c, -c - 1)

    def access(self, array: str, loops: list[Index], plain: float = 0.6) -> str:
        subscripts = [self.subscript(array, axis, loops, plain) for axis in range(self.axes[array])]
        apart = self.r.random() < 0.03
        return f"{array}[{']['.join(subscripts) if apart else ', '.join(subscripts)}]"

    def leaf(self, loops: list[Index]) -> str:
        r = self.r
        kind = chosen(r, load=7, index=1 if loops else 0, number=0.8, scalar=2 if self.scalars else 0,
                      name=1.5 if self.names else 0, parameter=0.5)
        if kind == "load":
            return self.access(r.choice(list(self.axes)), loops)
        if kind == "index":
            return r.choice(loops).name
        if kind == "number":
            return r.choice(["0", "1", "2", "-1", "3", "0.5", "1.0", "-2.0", "True"])
        if kind == "scalar":
            return r.choice(self.scalars)
        if kind == "name":
            return r.choice(self.names)
        name = r.choice(["alpha", "beta", "N"])
        if name == "N":
            self.globals.setdefault("N", r.choice([2, 3, 0.5]))
        else:
            self.numbers.setdefault(name, r.choice([2, -1, 0.5, 1.0, 0]))
        return name

    def value(self, loops: list[Index], depth: int = 0) -> str:
        r = self.r
        if depth > 2 or r.random() < 0.25 + 0.25 * depth:
            return self.leaf(loops)
        x, y = self.value(loops, depth + 1), self.value(loops, depth + 1)
        form = chosen(r, product=5, sum=2, difference=1.5, least=1, most=1, numpy=0.4, absolute=0.6, negative=0.5,
                      half=0.4, power=0.4, choice=0.8, where=0.5, converted=0.1)
        return {
            "product": f"{_in(x)} * {_in(y)}", "sum": f"{x} + {_in(y)}", "difference": f"{x} - {_in(y)}",
            "least": f"min({x}, {y})", "most": f"max({x}, {y})",
            "numpy": f"np.{r.choice(['minimum', 'maximum'])}({x}, {y})",
            "absolute": f"abs({x})", "negative": f"-{_in(x)}", "half": f"{_in(x)} / {r.choice(['2', '-4', '0.5'])}",
            "power": f"{_in(x)}**{r.choice([2, 2, 3])}",
            "choice": f"({x} if {self.condition(loops, True)} else {y})",
            "where": f"np.where({self.condition(loops, True)}, {x}, {y})",
            "converted": f"{r.choice(['float', 'np.float32', 'np.int32'])}({x})",
        }[form]

    def condition(self, loops: list[Index], data: bool) -> str:
        r = self.r
        sign = r.choice(["<", "<=", ">", ">=", "==", "<", ">"])
        if data:
            x = r.choice([self.leaf(loops), self.leaf(loops), self.value(loops, 2)])
            text = f"{x} {r.choice([sign, '!='])} {r.choice(['0', '1', '0.5', self.leaf(loops)])}"
            if r.random() < 0.12:
                text += f" {r.choice(['and', 'or'])} {self.condition(loops, True)}"
            return text
        i, j = r.choice(loops), r.choice(loops)
        number = str(r.randint(i.low, max(i.low, i.high)))
        other = r.choice([j.name, j.name, number, f"{j.name} + 1", f"2*{j.name}", "{2}"])
        text = f"{i.name} {sign} {other}"
        if r.random() < 0.15:
            text = f"{r.choice(['0', '1'])} <= {i.name} < {other}"
        if r.random() < 0.15:
            text += f" and {self.condition(loops, r.random() < 0.15)}"
        return text

    # ---- loops

    def loop(self, depth: int, loops: list[Index], most: int, name: str = "") -> Index:
        """The line of a loop with at most so many rounds; its index."""
        r, taken = self.r, {x.name for x in loops}
        free = [x for x in NAMES if x not in taken] or list(NAMES)
        name = name or r.choice(list(NAMES) if self.odd and r.random() < 0.2 else free)
        n = r.choice([x for x in EXTENTS if x <= max(most, 1)])
        if r.random() < 0.015:
            n = 0
        form = chosen(r, plain=9, start=1, step=0.8, back=0.8, below=0.7 if loops else 0, above=0.4 if loops else 0,
                      window=0.3 if loops else 0, rest=0.2 if loops else 0)
        o = r.choice(loops) if loops else Index("0", 0, 0)
        c = r.choice([0, 1, 1, 2])
        bounds, low, high = {
            "plain": (f"{{{n}}}", 0, n - 1), "start": (f"{c}, {{{n}}}", c, n - 1),
            "step": (f"{c}, {{{n}}}, {r.choice([2, 3])}", c, n - 1), "back": (f"{n - 1}, {c - 1}, -1", c, n - 1),
            "below": (f"{o.name} + {c}", 0, o.high + c - 1), "above": (f"{o.name}, {{{n}}}", o.low, n - 1),
            "window": (f"{o.name}, {o.name} + {c + 1}", o.low, o.high + c),
            "rest": (f"{o.high + 1} - {o.name}", 0, o.high - o.low),
        }[form]
        self.say(depth, f"for {name} in range({bounds}):")
        return Index(name, low, max(high, low))

    # ---- style "any"

    def block(self, depth: int, loops: list[Index], budget: int, most: int) -> None:
        """Some statements, with at most `budget` loops in one another."""
        r, scalars, names = self.r, list(self.scalars), list(self.names)
        count = r.choice([1, 1, 2, 2, 3]) if budget else r.choice([1, 1, 1, 2])
        for _ in range(count):
            kind = chosen(r, loop=4 if budget else 0, statement=3 if loops else 0.3, scalar=1.2, name=0.7,
                          index_if=0.7 if loops else 0, data_if=0.7, minimum=0.4, odd=0.5 if self.odd else 0)
            if kind == "loop":
                index = self.loop(depth, loops, most)
                self.block(depth + 1, [*[x for x in loops if x.name != index.name], index], budget - 1,
                           max(most // (index.high - index.low + 1), 1))
            elif kind == "statement":
                self.statement(depth, loops)
            elif kind == "scalar":
                self.scalar(depth, loops)
            elif kind == "name":
                name = f"x{self.made}"
                self.made += 1
                self.say(depth, f"{name} = {self.value(loops, 1)}")
                self.names.append(name)
            elif kind == "minimum":
                target = r.choice([*self.scalars, self.access(self._target(), loops, 0.9)])
                value = self.leaf(loops)
                sign = r.choice("<>")
                self.say(depth, f"if {value} {sign} {target}:" if r.random() < 0.7 else f"if {target} {sign} {value}:")
                self.say(depth + 1, f"{target} = {value}")
            elif kind == "odd":
                self.strange(depth, loops)
            else:
                self.branch(depth, loops, budget, most, kind == "data_if")
        self.scalars, self.names = scalars if loops else self.scalars, names if loops else self.names

    def branch(self, depth: int, loops: list[Index], budget: int, most: int, data: bool) -> None:
        r, scalars, names = self.r, list(self.scalars), list(self.names)
        self.say(depth, f"if {self.condition(loops, data)}:")
        budget = min(budget, 1) if r.random() < 0.3 else 0
        self.block(depth + 1, loops, budget, most)
        if r.random() < 0.3:
            self.scalars, self.names = list(scalars), list(names)
            if r.random() < 0.2:
                self.say(depth, f"elif {self.condition(loops, data)}:")
                self.block(depth + 1, loops, budget, most)
                self.scalars, self.names = list(scalars), list(names)
            self.say(depth, "else:")
            self.block(depth + 1, loops, budget, most)
        if not self.odd:
            self.scalars, self.names = scalars, names

    def _target(self) -> str:
        array = self.r.choice([*(list(self.axes)[2:] or "B"), *self.axes])
        self.written.add(array)
        return array

    def statement(self, depth: int, loops: list[Index]) -> None:
        r = self.r
        target = self.access(self._target(), loops, 0.85)
        if self.scalars and r.random() < 0.3:
            target = r.choice(self.scalars)
        self.update(depth, target, self.value(loops))

    def update(self, depth: int, target: str, value: str) -> None:
        how = chosen(self.r, store=4, add=5, sub=1, mul=0.3, div=0.05, least=0.6, most=0.6, first=0.5, last=0.3,
                     twice=0.2)
        self.say(depth, {
            "store": f"{target} = {value}", "add": f"{target} += {value}", "sub": f"{target} -= {value}",
            "mul": f"{target} *= {value}", "div": f"{target} /= 2", "least": f"{target} = min({target}, {value})",
            "most": f"{target} = max({value}, {target})", "first": f"{target} = {target} + {_in(value)}",
            "last": f"{target} = {value} - {target}", "twice": f"{target} = {target} * 2 + {_in(value)}"}[how])

    def scalar(self, depth: int, loops: list[Index]) -> None:
        name = self.r.choice("stu")
        start = self.r.choice(["0", "0", "0.0", "1", "-50", "50", self.leaf(loops), self.value(loops, 1)])
        self.say(depth, f"{name} = {start}")
        if name not in self.scalars:
            self.scalars.append(name)

    def strange(self, depth: int, loops: list[Index]) -> None:
        """Code that Python takes, and that a record need not take."""
        r = self.r
        index = r.choice(loops).name if loops and r.random() < 0.7 else r.choice(NAMES)
        name = r.choice([*self.scalars, *self.names, index, "alpha", "N", "s"])
        target = self.access(self._target(), loops, 0.9)
        if name == "alpha":
            self.numbers.setdefault(name, 2)
        if name == "N":
            self.globals.setdefault("N", 2)
        self.say(depth, r.choice([
            "pass", "return", f"{name} = {index}", f"{name} += 1", f"{name} = {r.choice('012')}", f"{target} = {name}",
            f"{target} += {index}", f"m, n = {target.partition('[')[0]}.shape", f"{name}, s = 1, 2", "'text'",
            f"{target} = {name} // 2", f"{target} = {target} = 1", f"{target} = {name} if {name} else 1",
            f"{target} = int({name})", f"{target} = float({name})", f"{target} = np.float32({name})",
            f"{target} = N % 2",
            f"{target} = (lambda: 1)()", f"{target} = not {name}", f"s, t = {target.partition('[')[0]}.shape[:2]",
            f"del {name}", f"{name}: int = 3", f"{target} = ({name} := 2)", "break", "continue",
            f"{target} = range",
            f"{target} = sum(x for x in (1, 2))", f"if {index} % 2 == 0: {target} = 1", f"if {name}: {target} = 1",
            f"if not {index} < 2: {target} = 1", f"if {index} < 2 or {index} > 3: {target} = 1",
            f"if {index} != 1: {target} = 1", f"while {name} < 0: {name} += 1", f"import math as {name}",
        ]))

    # ---- style "product"

    def product(self, calm: bool = False) -> None:
        """Calm ones are contractions with few changes."""
        r = self.r
        names = r.sample(NAMES, r.randint(2, 5))
        most = max(int(ROUNDS ** (1 / len(names))), 1)
        loops = {x: Index(x, 0, r.choice([n for n in EXTENTS if calm < n <= most + 2]) - 1) for x in names}
        out = r.sample(names, min(r.choice([1, 1, 2, 2, 3]), len(names) - (r.random() < .95)))
        arrays = list(self.axes)
        target = arrays[-1]
        self.axes[target] = len(out)
        self.written.add(target)
        everything = list(loops.values())

        def load(array: str, after: bool = False) -> str:
            among = [loops[x] for x in out] if after and calm else everything
            return self.access(array, among, 0.93 if calm else 0.75)
        c = f"{target}[{', '.join(out)}]"
        for axis, x in enumerate(out):
            self.reach[target, axis] = max(self.reach.get((target, axis), 0), loops[x].high)
        if r.random() < .1 and not calm:
            c = load(target)
        a, b = load(r.choice(arrays[:-1])), load(r.choice(arrays[:-1]))
        if r.random() < .03 and not calm:
            a = c
        scalar = r.random() < .35
        total = "s" if scalar else c
        number = r.choice(["2", "0.5", "alpha", "N"])
        if number == "alpha":
            self.numbers.setdefault("alpha", r.choice([2, -1, 0.5, 1.0, 0]))
        if number == "N":
            self.globals.setdefault("N", r.choice([2, 3, 0.5]))
        term = r.choice([f"{a} * {b}"] * 5 + [
            f"{number} * {a} * {b}", f"2 * {a} * {b}", f"{a} + {b}", f"abs({a} - {b})", f"({a} - {b})**2", a,
            f"max({a}, 0) * {b}", f"{a} * {b} * {load(arrays[0])}"])
        update = r.choice([f"{total} += {term}"] * 5 + [
            f"{total} -= {term}", f"{total} = min({total}, {term})", f"{total} = max({term}, {total})"])
        start = f"{total} = {r.choice(['0', '0', '0.0', '1', '-50', '50', load(arrays[0], True)])}"
        uses = [r.choice([
            f"{c} = {total}", f"{c} = {total} * 2 + {load(arrays[0], True)}", f"{c} = max({total}, 0)",
            f"{load(arrays[0], True)} = {c}", f"{c} += {total}", f"{c} = {number} * {total} + {c}"])
            for _ in range(r.choice([0, 1, 1, 2]))]
        if scalar and not uses:
            uses = [f"{c} = s"]
        order = r.sample(names, len(names))
        if r.random() < .8 or calm:
            order = [x for x in order if x in out] + [x for x in order if x not in out]
        where = max(order.index(x) for x in out) + 1
        if r.random() < .1 and not calm:
            where = r.randint(0, len(order))
        apart = not scalar and r.random() < .4

        def line(x: str, inner: list[str]) -> None:
            n = loops[x].high + 1
            bounds = r.choice([f"{{{n}}}"] * 8 + [f"1, {{{n}}}", f"{n - 1}, -1, -1", f"0, {{{n}}}, 2"])
            if inner and r.random() < .08:
                bounds = f"{inner[-1]} + 1" if loops[inner[-1]].high < n else f"{{{n}}}"
            self.say(len(inner), f"for {x} in range({bounds}):")
        if apart and r.random() < .8:
            mine = r.sample(out, len(out))
            for n, x in enumerate(mine):
                line(x, mine[:n])
            self.say(len(mine), start)
        for n, x in enumerate(order):
            if n == where and not apart and r.random() < .93:
                self.say(n, start)
            line(x, order[:n])
        if where == len(order) and not apart:
            self.say(where, start)
        pad = len(order)
        if r.random() < .15:
            self.say(pad, f"if {self.condition(everything, r.random() < 0.2)}:")
            pad += 1
        self.say(pad, update)
        for use in uses:
            if apart:
                for n, x in enumerate(out):
                    line(x, out[:n])
                self.say(len(out), use)
            else:
                self.say(where if r.random() < .95 else r.randint(0, len(order)), use)


def _in(x: str) -> str:
    """As an operand of * or on the right of -."""
    return f"({x})" if " " in x or x[0] == "-" else x
