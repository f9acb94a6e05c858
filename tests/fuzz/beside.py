"""Products with much beside A, B and C: epilogues, prologues, reductions, groups, weights of few bits, packed stacks.

Operands, scales, zero points, offsets and results lie as those of the products fuzzer do, and the library's own memory
is fenced (fences.py). Numbers are small whole ones and scales powers of two, so that every sum is exact in any order;
those of NVFP4, whose scales are not, are held against a bound. Sizes are drawn around vectors, tiles and groups.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from random import Random
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import tilewright as tw
from tests.fuzz import memory
from tests.fuzz.driver import Case, Fuzzer
from tests.fuzz.fences import fenced
from tests.fuzz.memory import Placed
from tilewright.formats import BLOCK_FORMATS, FORMATS
from tilewright.formats.scaled import Nibbles, Scaled
from tilewright.runtime.cpu import grouped, recipe, ways

FLOATS = "f32", "f32", "f32", "bf16", "f16", "f64"
WHOLE = "i8", "u8", "i32", "i16"
SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 20, 31, 32, 33, 40, 47, 63, 64, 65, 70, 97)
DEEP = (*SIZES, 127, 128, 129, 160, 257, 290)
GROUPS = 2, 3, 8, 15, 16, 17, 20, 24, 31, 32, 33, 40, 64, 128
NARROW = "i8", "u8", "i4", "u4", "e2m1", "e4m3fn", "mxfp8", "mxfp4", "nvfp4"
MOST = 200_000
PLANS = "packed 6x32 mc=12 kc=16 nc=64", "packed 4x16 mc=4 kc=20 nc=32", "in_place 4x32", "in_place 2x16 kc=8"
EAGER = ((recipe, "FORK_FLOPS"), (recipe, "WAKE_FLOPS"), (ways, "FORK_FLOPS"), (grouped, "FORK_FLOPS"),
         (grouped, "LEAST"))
PLACES = "scalar", "row", "column", "full"


class Function(NamedTuple):
    """An epilogue or a prologue, of one operand or none; its results, and the axes along which these are reduced."""

    by: Callable[..., Any]
    by_numpy: Callable[..., tuple[np.ndarray, ...]]
    operand: bool = False
    reduced: tuple[str, ...] = ("",)


EPILOGUES = {
    "twice": Function(lambda acc: acc * 2, lambda x: (x * 2,)),
    "relu": Function(lambda acc: tw.maximum(acc, 0), lambda x: (np.maximum(x, 0),)),
    "plus": Function(lambda acc, beside: acc + beside, lambda x, y: (x + y,), True),
    "times": Function(lambda acc, beside: acc * beside, lambda x, y: (x * y,), True),
    "row_max": Function(lambda acc: tw.row_max(acc), lambda x: (x.max(-1),), reduced=("row",)),
    "row_sum": Function(lambda acc: (acc, tw.row_sum(acc)), lambda x: (x, x.sum(-1)), reduced=("", "row")),
    "column_sum": Function(lambda acc: (tw.column_sum(acc), acc * 2), lambda x: (x.sum(-2), x * 2),
                           reduced=("column", "")),
    "argmax": Function(lambda acc: (acc, tw.row_argmax(acc)), lambda x: (x, x.argmax(-1)), reduced=("", "row")),
    "many": Function(lambda acc, beside: (acc + beside, tw.row_min(acc), tw.column_max(acc + beside), acc),
                     lambda x, y: (x + y, x.min(-1), (x + y).max(-2), x), True, ("", "row", "column", "")),
}
PROLOGUES = {
    "twice": Function(lambda x: x * 2.0, lambda x: (x * 2,)),
    "plus": Function(lambda x: x + 1, lambda x: (x + 1,)),
    "relu": Function(lambda x: tw.maximum(x, 0), lambda x: (np.maximum(x, 0),)),
}
# of an operand of its own, whose name tells it from the other function's
SCALED = {"a": lambda x, of_a: x * of_a, "b": lambda x, of_b: x * of_b}


def draw(rng: Random) -> Case:
    case: Case = {"call": rng.choice(["fused", "fused", "weights", "weights", "groups", "groups", "both"]),
                  "data": rng.randrange(2**31), "threads": rng.choice([1, 1, 2, 3]), "eager": rng.random() < 0.4,
                  "fence": rng.choice(["guard", "guard", "heap"]), "again": rng.random() < 0.3}
    while True:
        m, n, k = rng.choice(SIZES), rng.choice(DEEP), rng.choice(DEEP)
        if m * n * k <= MOST:
            break
    case |= {"m": m, "n": n, "k": k, "a": rng.choice(FLOATS), "trans_b": rng.random() < 0.5}
    if case["call"] == "fused" and rng.random() < 0.3:
        case["a"] = rng.choice(WHOLE)
    case["b"] = rng.choice([case["a"], case["a"], *FLOATS, "i8", "u8"]) if case["call"] != "groups" else case["a"]
    if case["call"] in ("weights", "both") or (case["call"] == "groups" and rng.random() < 0.6):
        case["b"] = rng.choice(NARROW)
        case["a"] = rng.choice(FLOATS[:5])
    case |= {"group": rng.choice([0, *GROUPS]), "group_a": rng.choice([0, *GROUPS]), "zeros": rng.random() < 0.4,
             "nibbles": rng.random() < 0.7, "packed": rng.random() < 0.25}
    case["epilogue"] = rng.choice([None, *EPILOGUES]) if case["call"] != "both" else None
    case["prologue_a"], case["prologue_b"] = (rng.choice([None, None, "scale", *PROLOGUES]) for _ in "ab")
    case["place"], case["beside"] = rng.choice(PLACES), rng.choice(["f32", "f32", "bf16", "f16", "i8", "i32"])
    case["scale"] = rng.choice(["f32", "f32", "bf16", "f16"])
    case["alpha"] = rng.choice([1, 1, 1, 2, -3])
    case["out_dtype"] = rng.choice([None, None, None, "f64", "f32"])
    case["sizes"] = [rng.choice([0, 1, 1, 2, 3, 5, 16, 17, 19]) for _ in range(rng.choice([1, 2, 3, 4]))]
    case["how"] = rng.choice([{}, {}, {}, {"deterministic": True}, {"batch_invariant": True}])
    case["out"], case["plan"] = rng.random() < 0.5, None
    if not case["packed"] and case["call"] in ("fused", "groups") and rng.random() < 0.3:
        case["plan"] = rng.choice(PLANS)  # of which some are refused
    for name in "a", "b", "out", "beside", "of_a", "of_b":
        case[f"in_{name}"] = memory.draw(rng, 2, broadcast=name not in ("out", "b"))
    return case


# ---- checking


def check(case: Case) -> None:
    with ExitStack() as stack:
        for where, name in EAGER if case["eager"] else ():  # threads, and pieces, for the smallest of products
            stack.enter_context(mock.patch.object(where, name, 0 if name != "LEAST" else 1))
        stack.enter_context(fenced(case["fence"]))
        try:
            _Call(case).check()
        except ValueError as error:
            if case["plan"] is None or not any(word in str(error) for word in ("cannot run", "plan must", "plan ")):
                raise


class _Call:
    """A call's arguments, and its results by NumPy."""

    def __init__(self, case: Case) -> None:
        self.case, self.rng = case, np.random.default_rng(case["data"])
        self.placed: dict[str, Placed] = {}
        self.options: dict[str, Any] = {"threads": case["threads"]} if case["threads"] > 1 else {}
        self.operands: dict[str, np.ndarray] = {}
        self.rounding = 0.0                             # of a sum, in parts of the sum of its terms' sizes

    def check(self) -> None:
        case = self.case
        grouped = case["call"] == "groups"
        m, n, k, trans = sum(case["sizes"]) if grouped else case["m"], case["n"], case["k"], case["trans_b"]
        a, x = self.scaled("a", case["b"], (m, k), -1, case["group_a"]) if case["call"] == "both" else self.array(
            "a", case["a"], (m, k))
        lead = (len(case["sizes"]),) if grouped else ()
        shape, axis = ((*lead, n, k), -1) if trans else ((*lead, k, n), -2)
        if case["b"] in NARROW and case["call"] != "fused":
            b, y = self.scaled("b", case["b"], shape, axis, case["group"])
        else:
            b, y = self.array("b", case["b"], shape)
        y = y.swapaxes(-1, -2) if trans else y
        if case["call"] == "fused":
            x, y = (self.prologue(role, z) for role, z in (("a", x), ("b", y)))
        if case["packed"] and self.packs():
            how = {"trans_b": True} if trans else {}
            a_dtype = {} if isinstance(b, np.ndarray) else {"a": FORMATS[case["a"]].dtype}
            b, trans = tw.pack(b, **a_dtype, **how), False
        self.options |= {"trans_b": True} if trans else {}
        if case["plan"]:
            self.options["plan"] = case["plan"]
        if case["alpha"] != 1:
            self.options["alpha"] = case["alpha"]
        own = case["packed"] or (grouped and case["epilogue"]) or case["epilogue"] == "argmax"
        if case["out_dtype"] and not own:
            self.options["out_dtype"] = case["out_dtype"]
        sums, size = self.sums(x, y, grouped)
        wanted = self.epilogue(case["alpha"] * sums, grouped)
        for _ in range(1 + case["again"]):
            self.held(self.call(a, b, grouped), wanted, size)

    def packs(self) -> bool:
        """Whether b may be packed for this call."""
        case = self.case
        return case["call"] in ("groups", "weights", "fused") and not (
            case["prologue_a"] or case["prologue_b"]) and (case["b"] not in NARROW or case["call"] != "groups") and (
            case["call"] != "fused" or case["a"] == case["b"])

    def call(self, a: Any, b: Any, grouped: bool) -> tuple[Any, ...]:
        options = dict(self.options)
        if self.operands:
            options["operands"] = self.operands
        if grouped:
            ends = self.place("ends", np.cumsum(self.case["sizes"]).astype(np.int64), {})
            return self.tuple(tw.grouped_matmul(a, b, ends, **options, **self.case["how"]))
        found = self.tuple(tw.matmul(a, b, **options))
        if self.case["out"] and len(found) == 1 and found[0].ndim == 2:
            values = np.asarray(found[0])
            self.placed.pop("out", None)
            out = self.place("out", np.zeros_like(values), self.case["in_out"])
            again = tw.matmul(a, b, out=out, **options)
            assert again is out, "it is not out that is returned"
            self.placed["out"].untouched("out's surroundings", elements=False)
            assert np.array_equal(np.array(out, values.dtype), values), "out and the result differ"
        return found

    def held(self, found: tuple[Any, ...], wanted: tuple[np.ndarray, ...], size: float) -> None:
        for name, each in self.placed.items():
            if name != "out":
                each.untouched(name)
        assert len(found) == len(wanted), f"there are {len(found)} results, and should be {len(wanted)}"
        for at, (x, y) in enumerate(zip(found, wanted)):
            x = np.asarray(x)
            assert x.shape == y.shape, f"the shape of result {at} is {x.shape}, and should be {y.shape}"
            room = self.rounding * size
            if x.dtype.kind in "iu":
                bad = x.astype(np.int64) != y.astype(np.int64).astype(x.dtype).astype(np.int64)
            else:
                with np.errstate(all="ignore"):
                    low, high = ((y - room).astype(x.dtype), (y + room).astype(x.dtype))
                bad = ~((x >= low) & (x <= high))
            if bad.any():
                where = tuple(int(i) for i in np.argwhere(bad)[0])
                raise AssertionError(f"{np.count_nonzero(bad)} of {bad.size} elements of result {at} are wrong; at "
                                     f"{where} there is {x[where]}, and should be {y[where]}")

    # ---- operands

    def place(self, name: str, values: np.ndarray, how: dict[str, Any]) -> np.ndarray:
        fitting = how if len(how.get("order", "ab")) == values.ndim else {"end": how.get("end", True)}
        self.placed[name] = Placed.of(values, **fitting)
        return self.placed[name].array

    def whole(self, name: str, shape: tuple[int, ...], least: int = -2, most: int = 2) -> np.ndarray:
        low = max(least, int(getattr(FORMATS[name], "smallest", least)))
        return self.rng.integers(low, most + 1, shape).astype(FORMATS[name].dtype)

    def array(self, role: str, name: str, shape: tuple[int, ...]) -> tuple[Any, np.ndarray]:
        x = self.place(role, self.whole(name, shape), self.case[f"in_{role}"])
        return x, x.astype(np.float64)

    def scaled(self, role: str, name: str, shape: tuple[int, ...], axis: int, group: int) -> tuple[Any, np.ndarray]:
        """Weights of few bits, whose groups lie along an axis, and their numbers."""
        case = self.case
        if name in BLOCK_FORMATS:
            q = tw.quantize(self.rng.integers(-2, 3, shape).astype(np.float32), name, axis=axis)
            arrays = {part: self.place(f"{role}.{part}", getattr(q, part), {}) for part in ("elements", "scales")}
            q = type(q)(arrays["elements"], arrays["scales"], q.shape, q.format, q.axis, q.tensor_scale)
            self.rounding = 0.0 if q.format.mx else 2.0**-7 if case["a"] in ("bf16", "f16") else 2.0**-20
            return q, np.asarray(tw.dequantize(q, "f64"))
        of, k = list(shape), shape[axis]
        of[axis] = -(-k // group) if group else 1
        elements = self.whole(name, shape)
        zeros = None
        if case["zeros"] and name in ("i8", "u8", "i4", "u4"):
            kept = name if name[1:] == "8" else f"{name[0]}8"
            zeros = self.whole(kept, tuple(of), 0 if name[0] == "u" else -1, 1)
        scales = (2.0 ** self.rng.integers(-1, 2, of)).astype(np.float32)
        wide, beside = elements.astype(np.float64), (np.repeat(y.astype(np.float64), group or k, axis) if y is not None
                                                     else 0.0 for y in (zeros, scales))
        zero, scale = (y if isinstance(y, float) else np.take(y, range(k), axis) if y.shape[axis] > 1 else y
                       for y in beside)
        nibbles = None
        if name in ("i4", "u4", "e2m1") and case["nibbles"]:
            from tilewright.formats import pack

            elements, nibbles = pack(np.ascontiguousarray(elements)), Nibbles(name, -1, shape[-1])
        how = case[f"in_{role}"] if nibbles is None else {"end": case[f"in_{role}"]["end"]}
        q = Scaled(self.place(f"{role}.elements", elements, how), self.place(f"{role}.scales", scales, {}),
                   None if zeros is None else self.place(f"{role}.zeros", zeros, {}), group, nibbles)
        return q, np.asarray(tw.dequantize(q, "f64")) if 0 in how.get("steps", [1]) else (wide - zero) * scale

    def prologue(self, role: str, x: np.ndarray) -> np.ndarray:
        name = self.case[f"prologue_{role}"]
        if name is None:
            return x
        if name != "scale":
            self.options[f"prologue_{role}"] = PROLOGUES[name].by
            return PROLOGUES[name].by_numpy(x)[0]
        rows, columns = x.shape
        shape = {"scalar": (1, 1), "row": (1, columns), "column": (rows, 1), "full": x.shape}[self.case["place"]]
        y = self.place(f"of_{role}", self.whole(self.case["scale"], shape), self.case[f"in_of_{role}"])
        self.options[f"prologue_{role}"], self.operands[f"of_{role}"] = SCALED[role], y
        return x * y.astype(np.float64)

    # ---- results

    def sums(self, x: np.ndarray, y: np.ndarray, grouped: bool) -> tuple[np.ndarray, float]:
        """The products, and how large the sum of a product's terms can be."""
        if not grouped:
            return x @ y, float((np.abs(x) @ np.abs(y)).max(initial=0))
        ends = np.cumsum(self.case["sizes"])
        parts = [x[e - m : e] @ each for e, m, each in zip(ends, self.case["sizes"], y)]
        return np.concatenate(parts), float(np.abs(x).max(initial=0) * np.abs(y).max(initial=0) * x.shape[1])

    def epilogue(self, sums: np.ndarray, grouped: bool) -> tuple[np.ndarray, ...]:
        name = self.case["epilogue"]
        if name is None:
            return (sums,)
        function = EPILOGUES[name]
        self.options["epilogue"] = function.by
        beside: tuple[np.ndarray, ...] = ()
        if function.operand:
            m, n = sums.shape
            shape = {"scalar": (1, 1), "row": (1, n), "column": (m, 1), "full": (m, n)}[self.case["place"]]
            y = self.place("beside", self.whole(self.case["beside"], shape), self.case["in_beside"])
            self.operands["beside"] = y
            beside = (np.broadcast_to(y, sums.shape).astype(np.float64),)
        if not grouped:
            return function.by_numpy(sums, *beside)
        ends = np.cumsum(self.case["sizes"])
        parts = [[z[e - m : e] for z in (sums, *beside)] for e, m in zip(ends, self.case["sizes"])]
        found = [function.by_numpy(*part) if len(part[0]) else None for part in parts]
        return tuple(self.joined(function.reduced[at], at, found, parts) for at in range(len(function.reduced)))

    def joined(self, reduced: str, at: int, found: list[Any], parts: list[Any]) -> np.ndarray:
        """Of all groups: rows one after the other, and of each group the columns' numbers."""
        if reduced != "column":
            return np.concatenate([x[at] for x in found if x is not None]) if any(
                x is not None for x in found) else np.zeros((0,) if reduced else parts[0][0].shape)
        return np.stack([np.zeros(parts[0][0].shape[1]) if x is None else x[at] for x in found])

    @staticmethod
    def tuple(x: Any) -> tuple[Any, ...]:
        return x if isinstance(x, tuple) else (x,)


PLAIN: Case = {"plan": None, "again": False, "eager": False, "threads": 1, "packed": False, "how": {}, "alpha": 1,
               "out": False, "out_dtype": None, "epilogue": None, "prologue_a": None, "prologue_b": None,
               "zeros": False, "nibbles": False, "trans_b": False, "in_a": {"end": True}, "in_b": {"end": True},
               "in_out": {"end": True}, "in_beside": {"end": True}, "in_of_a": {"end": True},
               "in_of_b": {"end": True}, "place": "scalar", "beside": "f32", "scale": "f32", "m": 1, "n": 1, "k": 1}
FUZZER = Fuzzer("beside", draw, check, PLAIN, share=3)
