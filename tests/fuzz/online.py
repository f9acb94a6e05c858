"""Loops over scores of a product, at random, become reductions without the scores in memory, and equal plain Python.

A source is composed of a mask, a score function, and what is computed of the scores: softmax with values in three ways
of writing, logsumexp, extremes and their indices, cross-entropy and its gradient, entropy, weighted means. Each must be
taken where there are at least two of each index and no row is without scores; otherwise loops remain, and are right.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

import tilewright as tw
from tests.fuzz.driver import Case, Fuzzer

# Bounds or conditions of j, as (range, condition, whether scores outside are -inf instead)
MASKS = {"": ("range(n)", "", ""), "causal": ("range(i + 1)", "", ""), "short": ("range(n - 1)", "", ""),
         "later": ("range(1, n)", "", ""), "lower right": ("range(n)", "j <= i + n - m", ""),
         "window": ("range(n)", "i - 3 <= j <= i", ""), "wide": ("range(n)", "i - 2 <= j and j <= i + 4", ""),
         "slope": ("range(n)", "j <= 2 * i + 1", ""), "hidden": ("range(n)", "", "j > i"),
         "beside": ("range(n)", "", "j < i - 4"), "array": ("range(n)", "", "H[i, j] > 2.0")}
SCORES = {"": "{}", "scaled": "{} * 0.25", "column": "{} + b[j]", "both": "{} - H[i, j]",
          "capped": "np.tanh({} / 3) * 3",
          "slope": "{} - (i - j) * slope", "row": "({} - g[i]) * 0.5"}
TASKS = ("softmax", "stored", "last", "logsumexp", "argmax", "argmin", "largest", "loss", "slope", "entropy", "mean",
         "squares", "sink")


def draw(r: Random) -> Case:
    m, n = r.choice([2, 3, 5, 17, 33]), r.choice([2, 3, 7, 20, 40])
    mask = r.choice([*MASKS])
    if mask in ("causal", "window", "wide", "hidden", "beside"):
        n = m
    return {"m": m, "n": n, "d": r.choice([2, 5, 16]), "c": r.choice([2, 3, 24]), "mask": mask, "task": r.choice(TASKS),
            "score": r.choice([*SCORES]), "array": r.random() < 0.7, "turned": [r.random() < 0.3 for _ in range(4)],
            "dtype": r.choice(["f4", "f4", "f8"]), "data": r.randrange(2**31)}


def source(case: Case) -> str:
    """A function of (Q, K, V, S, b, g, H, label, slope, R, A, O) that computes a task's results for each row."""
    bounds, condition, low = MASKS[case["mask"]]
    Q, K, V, O = (f"{name}[{y}, {x}]" if turned else f"{name}[{x}, {y}]" for name, (x, y), turned in zip(
        "QKVO", ("id", "jd", "jc", "ic"), case["turned"]))
    s = "S[i, j]" if case["array"] or case["task"] not in ("argmax", "argmin", "largest") else "s"
    loop, inner = f"for j in {bounds}:", f"    if {condition}:" if condition else ""
    lines = list[str]()

    def over_j(*statements: str, all_of: bool = False) -> None:
        lines.append(loop if not all_of or bounds == "range(n)" else "for j in range(n):")
        lines.extend([inner] if inner and not all_of else [])
        lines.extend(f"    {'    ' if inner and not all_of else ''}{x}" for x in statements)

    score = [f"{s} = {SCORES[case['score']].format(s)}"] if case["score"] else []
    score += [f"if {low}:", f"    {s} = -np.inf"] if low else []
    made = [f"{s} = 0.0", "for d in range(z):", f"    {s} += {Q} * {K}", *score]
    lines += ["top = -np.inf", "low = np.inf", "total = 0.0", "at = 0", "own = 0.0"]
    e = f"np.exp({s} - top)"
    match case["task"]:
        case "argmax":
            over_j(*made, f"if {s} > top:", f"    top = {s}", "    at = j")
            return whole(lines + ["A[i] = at", "R[i] = top"])
        case "argmin":
            over_j(*made, f"at = np.where({s} < low, j, at)", f"low = min(low, {s})")
            return whole(lines + ["A[i] = at", "R[i] = low"])
        case "largest":
            over_j(*made, f"top = max(top, {s})")
            return whole(lines + ["R[i] = top"])
        case "squares":
            over_j(*made, all_of=True)
            over_j(f"total += {s} * {s}", f"own += {s} * {s} * b[j]")
            return whole(lines + ["R[i] = own / (total + 0.5)"])
    over_j(*made, all_of=True)
    over_j(f"top = max(top, {s})")
    if case["task"] == "stored":
        over_j(f"{s} = {e}", f"total += {s}")
    else:
        over_j(f"total += {e}")
    into = f"{O} = 0.0"
    match case["task"]:
        case "softmax" | "sink":
            lines += ["for c in range(w):", f"    {into}"]
            at = len(lines)
            over_j(f"{O} += {e} * {V}")
            lines[at:] = ["    " + x for x in lines[at:]]
            lines += [f"    {O} = {O} / " + ("total" if case["task"] == "softmax" else "(total + np.exp(-top))")]
        case "stored" | "last" | "slope":
            weight = f"{s} / total" if case["task"] == "stored" else f"{e} / total"
            lines += ["for c in range(w):", "    acc = 0.0"]
            at = len(lines)
            over_j(f"acc += {weight} * {V}")
            if case["task"] == "slope":
                over_j("if j == label[i]:", f"    acc -= {V}")
            lines[at:] = ["    " + x for x in lines[at:]]
            lines += [f"    {O} = acc"]
        case "logsumexp":
            lines += ["R[i] = top + np.log(total)"]
        case "loss":
            over_j("if j == label[i]:", f"    own += {s}")
            lines += ["R[i] = top + np.log(total) - own"]
        case "entropy":
            over_j(f"own -= {e} / total * ({s} - top - np.log(total))")
            lines += ["R[i] = own"]
        case "mean":
            over_j(f"own += {e} / total * b[j]")
            lines += ["R[i] = own"]
    return whole(lines)


def whole(lines: list[str]) -> str:
    used = "\n".join(lines)
    kept = [x for x in lines if not any(x == f"{name} = {start}" and used.count(name) == 1 for name, start in (
        ("top", "-np.inf"), ("low", "np.inf"), ("total", "0.0"), ("at", "0"), ("own", "0.0")))]
    body = "".join(f"        {x}\n" for x in kept)
    return "def f(Q, K, V, S, b, g, H, label, slope, R, A, O, m, n, z, w):\n    for i in range(m):\n" + body


def arguments(case: Case) -> list[Any]:
    rng, t = np.random.default_rng(case["data"]), case["dtype"]
    m, n, d, c = (case[x] for x in "mndc")
    shapes = [(m, d), (n, d), (n, c), (m, n), (n,), (m,), (m, n)]
    arrays = [rng.normal(size=shape).astype(t) for shape in shapes]
    for axis, turned in enumerate(case["turned"][:3]):
        arrays[axis] = np.ascontiguousarray(arrays[axis].T) if turned else arrays[axis]
    out = np.zeros((c, m) if case["turned"][3] else (m, c), t)
    label, at = rng.integers(0, n, m).astype(np.int32), np.zeros(m, np.int32)
    return [*arrays, label, 0.3, np.zeros(m, t), at, out, m, n, d, c]


def function(case: Case) -> tuple[Callable[..., None], str]:
    text, name = source(case), f"<online {abs(hash(repr(sorted(case.items()))))}>"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    space: dict[str, Any] = {"np": np}
    exec(compile(text, name, "exec"), space)
    return space["f"], text


def check(case: Case) -> None:
    f, text = function(case)
    args = arguments(case)
    wide = [x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else
            x.copy() if isinstance(x, np.ndarray) else x for x in args]
    with np.errstate(all="ignore"):
        f(*wide)
    fast = tw.optimize(f, *args, temporary=["S"] if "S[" in text else [], search=False)
    said = str(fast)
    fast(*args)
    results = [(x, y) for x, y in zip(args[9:12], wide[9:12])]
    for x, y in results:
        x, y = x[np.isfinite(y)], y[np.isfinite(y)]         # loops divide 0 by 0 in rows that a mask hides
        if x.dtype.kind == "f":
            tolerance = 2e-4 if case["dtype"] == "f4" else 1e-9
            np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True, err_msg=said)
        elif case["dtype"] == "f8":
            assert (x == y).all(), said
    least_is_masked = case["task"] == "argmin" and case["mask"] in ("hidden", "beside")     # one of the columns outside
    assert least_is_masked or taken(case) != said.startswith("loops"), f"{said}\n{text}"


def taken(case: Case) -> bool:
    """Whether there are two of each index, and each row has scores."""
    i, j = np.arange(case["m"])[:, None], np.arange(case["n"])[None]
    low, high = {"": (0, case["n"]), "causal": (0, i + 1), "short": (0, case["n"] - 1), "later": (1, case["n"]),
                 "lower right": (0, i + case["n"] - case["m"] + 1), "window": (i - 3, i + 1), "wide": (i - 2, i + 5),
                 "slope": (0, 2*i + 2), "hidden": (0, i + 1), "beside": (i - 4, case["n"])}.get(
                     case["mask"], (0, case["n"]))
    inside = (j >= low) & (j < high)
    return bool(inside.any(1).all() and min(case["m"], inside.any(0).sum()) > 1)


FUZZER = Fuzzer("online", draw, check, {"mask": "", "score": "", "dtype": "f8", "turned": [False]*4, "array": True})
