"""Kinds of random calls on a GPU (gpu_kinds.py): groups, weights of few bits, scales."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

import tilewright as tw
from tests.fuzz.gpu_arrays import Placed, place
from tests.fuzz.gpu_kinds import (
    EPILOGUES,
    FLOATS,
    STORED,
    Case,
    beside,
    close,
    ended,
    exact,
    kind,
    nibbles,
    plain,
    put,
    result,
    sizes,
    there,
)

# ---- groups


def of_groups(rng: Random) -> Case:
    a = rng.choice(["f32", "bf16", "bf16", "f16", "f64"])
    return plain(rng) | {"a": a, "sums": a, "out": a if a == "f64" else rng.choice(["f32", a]),
                         "epilogue": rng.choice(["", "", "", "bias", "relu", "rows", "two"]),
                         "beside": "f64" if a == "f64" else "f32", "index": rng.choice(["i32", "i32", "i64"])}


def ends(rng: Random, m: int) -> list[int]:
    """Of groups, some empty, with rows of no group behind the last one."""
    count = rng.choice([1, 2, 3, 4, 5, 6, 9])
    last = m if rng.random() < 0.7 else rng.randint(0, m)
    return sorted([*(rng.randint(0, last) for _ in range(count - 1)), last])


def draw_groups(rng: Random, f: Case) -> Case:
    case = sizes(rng, f, 520)
    case["m"], case["n"] = max(case["m"], 1), max(case["n"], 1)
    return case | {"ends": ends(rng, case["m"]), "given": rng.random() < 0.5, "alpha": rng.choice([1, 1, 2])}


def offsets(on: Any, case: Case) -> Placed:
    return place(on, np.array(case["ends"], np.int32 if case["index"] == "i32" else np.int64), shift=case["data"] % 3)


def by_rows(case: Case, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    want, size, low = np.zeros((len(a), b.shape[-1])), np.zeros((len(a), b.shape[-1])), 0
    for group, high in enumerate(case["ends"]):
        want[low:high], size[low:high] = exact(case, a[low:high], b[group])
        low = high
    return want, size


@kind(of_groups, draw_groups)
def groups(on: Any, case: Case) -> None:
    """Of rows: few of them, empty groups, rows of none, epilogues."""
    a = put(on, case, "a", case["a"], case["m"], case["k"])
    b = put(on, case, "b", case["a"], len(case["ends"]), case["k"], case["n"])
    at, last = offsets(on, case), case["ends"][-1]
    product, size = by_rows(case, a.numbers, b.numbers)
    given = beside(on, case, [], case["m"], case["n"]) if case["epilogue"] else {}
    ours, theirs, _ = EPILOGUES[case["epilogue"]] if case["epilogue"] else (None, lambda x: x, "")
    want = theirs(case["alpha"] * product, **{name: x.numbers for name, x in given.items()})
    want = want if isinstance(want, tuple) else (want,)
    out = result(on, case, case["m"], case["n"]) if len(want) == 1 else None
    kept = case["out"] if len(want) == 1 else (case["out"],) * 2 if len(want) == 2 else None
    got = tw.grouped_matmul(a.there, b.there, at.there, there(out), alpha=case["alpha"], epilogue=ours,
                            out_dtype=None if out is not None else kept,
                            operands={name: x.there for name, x in given.items()} or None)
    got = ended(on, got, a=a, b=b, offsets=at, out=out, **given)
    for x, y in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
        assert not np.any(x[last:]), "rows of no group are not 0"
        bound = 3 * case["alpha"] * (size if y.ndim > 1 else size.sum(-1)) + 12 * (case["epilogue"] != "")
        close(x[:last], y[:last], bound[:last], case["k"], case["sums"], "bf16" if x.dtype.itemsize < 4 else "f32" if (
            x.dtype.itemsize < 8) else "f64")


@kind(of_groups, lambda rng, f: draw_groups(rng, f | {"epilogue": ""}))
def groups_of_k(on: Any, case: Case) -> None:
    """Of steps of k; `m` is how many there are."""
    steps, m, n = case["m"], min(case["k"], 130), case["n"]
    a, b, at = put(on, case, "a", case["a"], m, steps), put(on, case, "b", case["a"], steps, n), offsets(on, case)
    got = ended(on, tw.grouped_matmul(a.there, b.there, at.there, out_dtype=case["out"]), a=a, b=b, offsets=at)
    low = 0
    assert got.shape == (len(case["ends"]), m, n)
    for x, high in zip(got, case["ends"]):
        close(x, *exact(case, a.numbers[:, low:high], b.numbers[low:high]), steps, case["sums"], case["out"])
        low = high


# ---- weights of few bits

WEIGHTS = ("i8", "i4", "u4", "u8", "e4m3fn", "mxfp8", "mxfp4", "nvfp4", "mxfp6", "halves", "halves zero")


def of_weights(rng: Random) -> Case:
    x = rng.choice(["bf16", "bf16", "f16", "f32"])
    weight = rng.choice(WEIGHTS)
    return plain(rng) | {"a": "bf16" if weight[-3:-1] == "fp" and x == "f16" else x, "out": "f32", "weight": weight,
                         "group": rng.choice([None, None, 2, 16, 32, 40]), "trans": rng.random() < 0.7,
                         "few": rng.choice([0.95, 0.6])}


def draw_weights(rng: Random, f: Case) -> Case:
    case = sizes(rng, f, 400)
    case["k"] = max(rng.choice([1, 2, 3, 5, 15, 16, 17, 31, 33]) if rng.random() < 0.3 else case["k"], 1)
    return case | {"m": max(case["m"], 1), "n": max(case["n"], 1), "values": "normal"}


def weights_of(on: Any, case: Case, *lead: int) -> tuple[Any, np.ndarray, list[Placed]]:
    """(the weights there, their numbers as [..., k, n], what is placed), stored as [..., n, k] if trans."""
    rng, weight, group = np.random.default_rng(case["data"]), case["weight"], case["group"]
    n, k = case["n"], case["k"]
    group = None if group is None or group > k else group
    if weight.startswith("halves"):
        x = rng.integers(0, 16, (*lead, n, k)) - 8 * (weight == "halves")
        count = -(-k // group) if group else 1
        zeros = rng.integers(0, 16, (*lead, n, count)).astype(np.uint8) if "zero" in weight else None
        scales = rng.uniform(0.5, 2, (*lead, n, count)).astype(np.float32)
        q, wide, placed = nibbles(on, x, scales, zeros, group or 0, {"shift": case["in_b"]["shift"]})
        return q, wide.swapaxes(-1, -2), placed
    axis = -1 if case["trans"] else -2
    x = rng.standard_normal((*lead, n, k) if case["trans"] else (*lead, k, n)).astype(np.float32)
    how: dict[str, Any] = {} if weight[-3:-1] == "fp" else {
        "group": group, "zero_points": weight in ("u4", "u8"), "nibbles": True if weight in ("i4", "u4") else None}
    q = tw.quantize(x, weight, axis, **how)
    placed = {name: place(on, y, shift=case["in_b"]["shift"]) for name in ("elements", "scales", "zeros")
              if (y := getattr(q, name, None)) is not None}
    wide = np.asarray(q, np.float64)
    return replace(q, **{name: x.there for name, x in placed.items()}), (
        wide.swapaxes(-1, -2) if case["trans"] else wide), [*placed.values()]


def stored(case: Case) -> bool:
    return bool(case["trans"]) or case["weight"].startswith("halves")


@kind(of_weights, draw_weights)
def weights(on: Any, case: Case) -> None:
    """Few rows and many by quantised weights, with groups of all sizes, and fewer steps of k than a group has."""
    a = put(on, case, "a", case["a"], case["m"], case["k"])
    q, wide, placed = weights_of(on, case)
    got = ended(on, tw.matmul(a.there, q, trans_b=stored(case), out_dtype="f32"), a=a,
                **{f"part{i}": x for i, x in enumerate(placed)})
    close(got, *exact(case, a.numbers, wide), case["k"], case["a"], "f32", 2 * STORED[case["a"]])


@kind(lambda rng: of_weights(rng) | {"index": "i32"}, lambda rng, f: (case := draw_weights(rng, f)) | {
    "ends": ends(rng, case["m"])})
def groups_of_weights(on: Any, case: Case) -> None:
    """Groups of rows by quantised weights."""
    if case["weight"] == "mxfp6":
        case = case | {"weight": "mxfp8"}
    a, at = put(on, case, "a", case["a"], case["m"], case["k"]), offsets(on, case)
    q, wide, placed = weights_of(on, case, len(case["ends"]))
    got = ended(on, tw.grouped_matmul(a.there, q, at.there, trans_b=stored(case), out_dtype="f32"), a=a, offsets=at,
                **{f"part{i}": x for i, x in enumerate(placed)})
    close(got, *by_rows(case, a.numbers, wide), case["k"], case["a"], "f32", 2 * STORED[case["a"]])


# ---- scales


def of_scales(rng: Random) -> Case:
    a = rng.choice(["i8", "i8", "e4m3fn", "e4m3fn", "e5m2", *FLOATS[:5]])
    return plain(rng) | {"a": a, "b": "e4m3fn" if a == "e5m2" else a, "out": "f32", "lead": [],
                         "scaled": rng.choice(["a", "ab", "b"])}


@kind(of_scales, lambda rng, f: sizes(rng, f, 400))
def scaled(on: Any, case: Case) -> None:
    """Scales of rows and columns."""
    a = put(on, case, "a", case["a"], case["m"], case["k"])
    b = put(on, case, "b", case["b"], case["k"], case["n"])
    shapes = {"a": (case["m"], 1), "b": (1, case["n"])}
    rng = np.random.default_rng(case["data"])
    factors = {x: place(on, rng.choice([0.5, 1, 2, 3], shapes[x]).astype(np.float32), **case["in_out"])
               for x in case["scaled"]}
    got = tw.matmul(a.there, b.there, out_dtype="f32", **{f"scale_{x}": y.there for x, y in factors.items()})
    x, y = (z.numbers * factors[name].numbers if name in factors else z.numbers for name, z in (("a", a), ("b", b)))
    got = ended(on, got, a=a, b=b, **{f"scale_{x}": y for x, y in factors.items()})
    close(got, *exact(case, x, y), case["k"], case["a"], "f32")


BLOCKS = ("mxfp8", "mxfp8", "mxfp4", "nvfp4", "mxfp6")


@kind(lambda rng: plain(rng) | {"a": rng.choice(BLOCKS), "b": rng.choice(BLOCKS)},
      lambda rng, f: draw_weights(rng, f))
def blocks(on: Any, case: Case) -> None:
    """Two block-scaled operands."""
    made = [np.random.default_rng(case["data"] + i).standard_normal((case[x], case["k"])).astype(np.float32)
            for i, x in enumerate("mn")]
    quantized = [tw.quantize(x, case[name], -1) for name, x in zip("ab", made)]
    placed = [[place(on, y, shift=case["in_a"]["shift"]) for y in (q.elements, q.scales)] for q in quantized]
    a, b = (replace(q, elements=x.there, scales=y.there) for q, (x, y) in zip(quantized, placed))
    got = ended(on, tw.matmul(a, b, trans_b=True, out_dtype="f32"),
                **{f"part{i}": x for i, x in enumerate([y for x in placed for y in x])})
    close(got, *exact(case, np.asarray(quantized[0], np.float64), np.asarray(quantized[1], np.float64).T), case["k"],
          "e4m3fn", "f32", 2.0**-9)


@kind(lambda rng: of_scales(rng) | {"a": rng.choice(["f32", "bf16"]), "out": rng.choice(["mxfp8", "mxfp4", "nvfp4"])},
      lambda rng, f: sizes(rng, f, 200) | {"values": "whole"})
def quantized_results(on: Any, case: Case) -> None:
    """Results in block formats are those of quantize."""
    if 0 in (case["m"], case["n"], case["k"]):
        return
    a, b = (put(on, case, x, case["a"], *y) for x, y in (("a", (case["m"], case["k"])), ("b", (case["k"], case["n"]))))
    got = tw.matmul(a.there, b.there, epilogue=tw.relu, out_dtype=case["out"])
    on.finish()
    want = tw.quantize(np.maximum(a.numbers @ b.numbers, 0).astype(np.float32), case["out"])
    for name in ("elements", "scales"):
        x, y = on.back(getattr(got, name)), getattr(want, name)
        assert np.array_equal(x.view(np.uint8), y.view(np.uint8)), f"{name} differ from quantize's"
