"""Loops of Python's source, at random: what is taken equals plain Python, and all else is refused in a sentence.

Each source is run by Python with exact numbers, as the record that reading/source.py makes of it, by an interpreter, by
`tw.loops` and by `tw.optimize`. A case whose numbers some format would round is not compared. Arrays have any strides,
may share memory, and lie beside guard pages.
"""

from __future__ import annotations

import linecache
import math
import re
from collections import Counter
from functools import partial
from random import Random
from typing import Any

import numpy as np

import tilewright as tw
from tests.fuzz import memory, nest_schedules, nest_sources
from tests.fuzz.driver import Case, Fuzzer
from tests.fuzz.memory import Placed
from tests.fuzz.nest_reference import PLAIN, Inexact, Interpreter, Outside, Plain, Unassigned
from tilewright.formats import FORMATS
from tilewright.ir import types
from tilewright.nests.nest import Refused, refuse
from tilewright.nests.reading.source import nest
from tilewright.nests.running import execution
from tilewright.nests.schedules.compiled import on_gpu
from tilewright.nests.schedules.scheduled import Illegal
from tilewright.simulator import Fault

TYPES = {"f32": types.f32, "f64": types.f64, "i8": types.i8, "i16": types.i16, "i32": types.i32, "i64": types.i64,
         "f16": types.f16, "bf16": types.bf16}
DTYPES = ("f32", "f32", "f64", "i8", "i16", "i32", "i64", "f16", "bf16")
counts: Counter[str] = Counter()


# ---- drawing


def draw(r: Random) -> Case:
    source = nest_sources.Source(r)
    for _ in range(r.choice([1, 1, 1, 2])):
        if r.random() < 0.5:
            source.product(calm=r.random() < 0.6)
        else:
            source.block(0, [], r.choice([1, 2, 2, 3, 3, 4, 5]), nest_sources.ROUNDS)
    arrays: dict[str, Any] = {}
    common = r.choice(DTYPES)
    mixed = r.random() < 0.25
    least = r.choice([1, 1, 1, 2, 5])
    for name, axes in source.axes.items():
        shape = [max(source.reach.get((name, x), r.choice([0, 1, 2, 5]) - 1) + 1, least) for x in range(axes)]
        shape = [n + r.choice([0] * 8 + [1, 3]) - (r.random() < 0.012) for n in shape]
        arrays[name] = {"dtype": r.choice(DTYPES) if mixed else common, "shape": [max(n, 0) for n in shape],
                        "layout": _layout(r, axes), "of": None}
    for name in arrays:
        other = r.choice(list(arrays))
        alone = arrays[other]["of"] is None and not any(x["of"] and x["of"][0] == name for x in arrays.values())
        if r.random() < 0.06 and other != name and alone and source.axes[other] == source.axes[name]:
            shape = [max(n, m) for n, m in zip(arrays[name]["shape"], arrays[other]["shape"])]
            arrays[name] |= {"of": [other, r.choice(["same", "shifted", "reversed"])], "shape": shape,
                             "dtype": arrays[other]["dtype"]}
            arrays[other]["shape"] = shape
    return {"source": _finished(r, source, arrays), "arrays": arrays, "numbers": source.numbers,
            "globals": source.globals, "data": r.randrange(2**31), "ways": [*WAYS],
            "search": r.random() < 0.2}


def _layout(r: Random, axes: int) -> dict[str, Any]:
    found = memory.draw(r, axes) | {"swapped": False}
    return found | {"shift": 0} if r.random() < 0.9 else found      # bytes that make elements unaligned


def _finished(r: Random, source: nest_sources.Source, arrays: dict[str, Any]) -> str:
    """With sizes in place of bounds."""
    text = "\n".join(source.lines) or "    pass"
    first = "    'Loops.'\n" if r.random() < 0.1 else ""
    sized = r.choice(["numbers", "numbers", "mixed", "shapes", "parameters"])
    unpacked: dict[str, str] = {}
    parts = text.split("{")
    done = parts[0]
    for part in parts[1:]:
        number, rest = part.split("}", 1)
        found = [number]
        n = int(number)
        if sized != "numbers":
            where = [(name, axis) for name, x in arrays.items() for axis, m in enumerate(x["shape"]) if m == n]
            if where and sized != "parameters":
                name, axis = r.choice(where)
                found = [f"{name}.shape[{axis}]", f"len({name})" if axis == 0 else f"{name}.shape[{axis}]",
                         f"n{name}{axis}", f"{name}.shape[{axis - len(arrays[name]['shape'])}]"]
            elif sized != "shapes":
                found = [f"n{n}"]
                source.numbers[f"n{n}"] = n
        chosen = r.choice(found)
        if chosen[0] == "n" and chosen[1] in arrays:
            name = chosen[1]
            unpacked[name] = f"    {', '.join(f'n{name}{x}' for x in range(len(arrays[name]['shape'])))}" + (
                "," if len(arrays[name]["shape"]) == 1 else "") + f" = {name}.shape\n"
        done += chosen + rest
    names = ", ".join([*arrays, *source.numbers])
    return f"def f({names}):\n{first}{''.join(unpacked.values())}{done}\n"


# ---- checking


class Arrays:
    """A case's arrays in memory of their own."""

    def __init__(self, case: Case) -> None:
        rng = np.random.default_rng(case["data"])
        self.placed: dict[str, Placed] = {}
        self.arrays: dict[str, np.ndarray] = {}
        for name, x in case["arrays"].items():
            if x["of"] is None:
                shifted = [y["of"][1] for y in case["arrays"].values() if y["of"] and y["of"][0] == name]
                shape = [n + (axis == 0 and "shifted" in shifted) for axis, n in enumerate(x["shape"])]
                values = rng.integers(-2, 3, shape).astype(FORMATS[x["dtype"]].dtype)
                self.placed[name] = Placed.of(values, **x["layout"])
        for name, x in case["arrays"].items():
            other, how = x["of"] or (name, "same")
            whole = self.placed[other].array
            base = whole[:case["arrays"][other]["shape"][0]]
            self.arrays[name] = {"same": base, "shifted": whole[1:], "reversed": base[::-1]}[how]
        self.overlap = {name: {y for y in self.arrays if (case["arrays"][name]["of"] or [name])[0] == (
            case["arrays"][y]["of"] or [y])[0]} for name in self.arrays}

    def equal(self, other: Arrays, way: str) -> None:
        for name, x in self.arrays.items():
            assert np.array_equal(x, other.arrays[name]), f"{name} is wrong by {way}: {_first(x, other.arrays[name])}"
        for name, placed in self.placed.items():
            placed.untouched(name, elements=False)


def _first(x: np.ndarray, y: np.ndarray) -> str:
    place = tuple(int(n) for n in np.argwhere(x != y)[0])
    return f"[{', '.join(map(str, place))}] is {x[place]} and not {y[place]}"


_made = 0


def function(case: Case, **names: Any) -> Any:
    """The case's function, of which inspect.getsource knows the source."""
    global _made
    _made += 1
    file = f"<nest {_made}>"
    source = case["source"]
    linecache.cache.pop(f"<nest {_made - 50}>", None)
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    space: dict[str, Any] = {"np": np, "math": math, **case["globals"], **names}
    exec(compile(source, file, "exec"), space)
    return space["f"]


def plain(case: Case) -> tuple[str, Arrays]:
    """How plain Python's run ends, and the arrays that it leaves."""
    arrays = Arrays(case)
    given = [Plain(x) for x in arrays.arrays.values()]
    try:
        returned = function(case, **PLAIN)(*given, *case["numbers"].values())
    except IndexError:
        return "outside", arrays
    except (NameError, Inexact) as e:
        return "unassigned" if isinstance(e, NameError) else "inexact", arrays
    except (TypeError, ValueError, SyntaxError, ZeroDivisionError, OverflowError, AttributeError, ImportError):
        return "not runnable", arrays
    if returned is not None:
        return "not runnable", arrays
    return "negative" if any(x.noted[0] for x in given) else "fine", arrays


def kinds(case: Case) -> list[tuple[str, Any, int]]:
    numbers = [("size" if name[0] == "n" else "number", None, 0) for name in case["numbers"]]
    return [*[("array", TYPES[x["dtype"]], len(x["shape"])) for x in case["arrays"].values()], *numbers]


def interpreted(case: Case, arrays: Arrays) -> None:
    """`arrays` as the record's statements leave them; Refused."""
    record = nest(function(case), kinds(case))
    written = {s.target.array for s in record.statements}
    for s in record.reads:
        if (arrays.overlap[s.target.array] - {s.target.array}) & written:
            refuse(s.line, "arrays share memory")
    Interpreter(record, arrays.arrays, case["numbers"])


def compiled(case: Case, arrays: Arrays) -> None:
    """`arrays` as `tw.loops` leaves them."""
    _run(tw.loops(function(case)), case, arrays)


def simulated(case: Case, arrays: Arrays, target: str | None) -> None:
    """`arrays` as the simulator leaves those of the kernels that `tw.loops` makes for this target, None for a CPU's."""
    loops, alone, given = tw.loops(function(case)), execution.ALONE, []
    memory = {name: x.raw.copy() for name, x in arrays.placed.items()}      # without guard pages, which it would copy
    for name, x in arrays.arrays.items():
        owner = (case["arrays"][name]["of"] or [name])[0]
        start = x.ctypes.data - arrays.placed[owner].raw.ctypes.data if x.size else 0
        given.append(np.ndarray(x.shape, x.dtype, memory[owner], start, x.strides))
    execution.ALONE = case["data"] % 2          # are a few CTAs worth a launch?
    try:
        seen = loops._given((*given, *case["numbers"].values()), {}, target)
        found = loops._execution(seen).simulate(seen)[1]
    finally:
        execution.ALONE = alone
    for x, y in zip(arrays.arrays.values(), found):
        x[...] = y


def optimized(case: Case, arrays: Arrays) -> None:
    """`arrays` as what `tw.optimize` makes of the source leaves them."""
    found = tw.optimize(function(case), *arrays.arrays.values(), *case["numbers"].values(), search=case["search"],
                        timed=False)
    counts["optimize: products"] += found.recognised
    _run(found, case, arrays)


def scheduled(case: Case, arrays: Arrays) -> None:
    """`arrays` as a random schedule leaves them; for CTAs that of the simulator, which compares them itself."""
    given = [*arrays.arrays.values(), *case["numbers"].values()]
    s = nest_schedules.scheduled(tw.schedule(function(case), *given), case["data"], counts)
    try:
        if on_gpu(s.now):
            counts["schedule: on a GPU"] += 1
            s.check()
            _run(tw.loops(function(case)), case, arrays)
        else:
            s(*given)
    except (Refused, Illegal, Outside):
        raise
    except NotImplementedError as e:
        if "and x86" not in str(e):         # a vector that is longer than registers
            raise
        raise Outside from None
    except Exception as e:
        if isinstance(e, Fault) and e.kind == "arithmetic":         # numbers of check's own, which a format cannot hold
            raise Outside from None
        e.add_note(f"{s}\n" + "\n".join(f"{x.method} {x.arguments} {x.options}" for x in s.steps))
        raise


def _run(run: Any, case: Case, arrays: Arrays) -> None:
    try:
        run(*arrays.arrays.values(), *case["numbers"].values())
    except ValueError as e:
        if "begin at no multiples of their size" not in str(e):
            raise
        counts["unaligned"] += 1
        raise Outside from None


# What runs a case, and the exceptions by which it may refuse it.
WAYS: dict[str, Any] = {"record": (interpreted, (Refused, Outside)), "loops": (compiled, (Refused, Outside)),
                        "optimize": (optimized, (Refused, Outside)),
                        "schedule": (scheduled, (Refused, Outside, Illegal)),
                        **{f"simulated {chip}": (partial(simulated, target=target), (Refused, Outside, ValueError))
                           for chip, target in {"cpu": None, "sm_80": "sm_80", "gfx942": "gfx942"}.items()}}


def check(case: Case) -> None:
    try:
        compile(case["source"], "f", "exec")
    except SyntaxError:
        counts["not Python"] += 1
        return
    ends, want = plain(case)
    counts[ends] += 1
    for way in case["ways"]:
        run, refusals = WAYS[way]
        got = Arrays(case)
        try:
            run(case, got)
        except refusals as e:
            counts[f"{way}: refused"] += 1
            reason = e.reason if isinstance(e, Refused) else str(e) or type(e).__name__
            counts[f"{way}: refused, {ends}: {re.sub('[A-E0-9]+|[a-z] is', '#', reason)[-70:]}"] += 1
            continue
        except (Inexact, ArithmeticError, ValueError):
            if ends == "fine":
                raise
            continue
        except Fault as e:
            if ends != "inexact" or e.kind != "arithmetic":
                raise
            continue
        except Unassigned:
            if ends != "unassigned":
                raise
            counts[f"{way}: unassigned"] += 1
            continue
        counts[f"{way}: taken"] += 1
        if ends in ("fine", "negative"):
            got.equal(want, way)
        else:
            assert ends == "inexact", f"taken by {way}, and in Python: {ends}"


PLAINER: Case = {"globals": {}}
FUZZER = Fuzzer("nests", draw, check, PLAINER)


def main(count: int, seed: int, most: int = 5, *ways: str) -> None:
    """Counts of refusals by reason: `python -m tests.fuzz.nests COUNT SEED FAILURES WAYS`."""
    from tests.fuzz import driver

    found = 0
    for number in range(count):
        case = driver.draw(FUZZER, seed, number)
        case["ways"] = [*ways] or case["ways"]
        what = driver.failure(FUZZER, case)
        if what:
            found += 1
            if found <= most:
                print(number, "\n" + case["source"], {k: v for k, v in case.items() if k != "source"})
                print("\n".join(what.splitlines()[-7:]))
    print(count, "cases", found, "failures")
    for key, n in sorted(counts.items(), key=lambda x: -x[1])[:70]:
        print(f"{n:7d} {key}")


if __name__ == "__main__":
    import sys

    main(*map(int, sys.argv[1:4]), *sys.argv[4:])
