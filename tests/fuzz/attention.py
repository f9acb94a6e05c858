"""Attention at random against float64: lengths, heads, sizes, formats, masks, score functions, offsets, pages, strides;
and the same bits for any number of threads."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

import tilewright as tw
from tests.fuzz import memory
from tests.fuzz.driver import Case, Fuzzer
from tests.fuzz.memory import Placed
from tests.helpers.attention import expected
from tilewright.formats import FORMATS

LENGTHS = (0, 1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 64, 65, 100, 111, 112, 113, 150, 225, 300)
SIZES = ((64, 64), (32, 32), (40, 24), (7, 33), (128, 128), (1, 1), (16, 80))
# The largest error of a result, as a share of the largest |v|: of powers and results that are rounded to 16 bits
ERRORS = {"f64": 1e-13, "f32": 3e-5, "f16": 2e-3, "bf16": 2e-2, "e4m3fn": 2e-2}


def draw(rng: Random) -> Case:
    layout = rng.choice(["plain", "plain", "plain", "ragged", "paged", "paged", "padded"])
    q = rng.choice(["f32", "f32", "f64", "f16", "bf16", "bf16", "e4m3fn"])
    narrow = q not in ("f64", "e4m3fn") and rng.random() < 0.15
    few = rng.random() < 0.3
    return {"layout": layout, "q": q, "kv": rng.choice(["e4m3fn", "i8"]) if narrow else q,
            "sequences": rng.choice([1, 1, 2, 3]), "kv_heads": rng.choice([1, 1, 2, 3]),
            "group": rng.choice([1, 1, 2, 4]), "queries": rng.choice([1, 1, 1, 2, 3, 5] if few else LENGTHS),
            "keys": rng.choice(LENGTHS), "sizes": rng.choice(SIZES),
            "causal": rng.choice([False, False, True, "upper left"]),
            "window": rng.choice([None, None, None, [5, None], [None, 3], [40, 2], [0, 0]]),
            "bias": rng.choice([None, None, None, "floats", "mask", "alibi", "function"]),
            "bias_axes": rng.choices([True, False], k=4), "softcap": rng.choice([None, None, None, 2.0]),
            "sinks": rng.random() < 0.2, "scales": rng.random() < 0.5, "page": rng.choice([1, 4, 16]),
            "scale": rng.choice([None, None, 0.3, -0.2]), "threads": rng.choice([1, 2, 3]),
            "ragged": rng.random() < 0.5,
            "in": [memory.draw(rng, 4, broadcast=False) | {"swapped": False, "shift": 0} for _ in range(3)],
            "data": rng.randrange(2**31)}


def check(case: Case) -> None:
    arrays, how = made(case)
    want, logs = expected(**arrays, **how)
    found, lse = tw.attention(**arrays, **how, return_lse=True, threads=case["threads"])
    alone = tw.attention(**arrays, **how, threads=1)
    assert alone.tobytes() == found.tobytes(), "other bits with other threads or without lse"
    most = float(np.abs(arrays["v"].astype(np.float64)).max(initial=0)) * float(np.max(how.get("v_scale", 1.0)))
    error = np.abs(found.astype(np.float64) - want).max(initial=0)
    kind = "bf16" if case["q"] == "e4m3fn" or (case["kv"] == "i8" and case["q"] == "bf16") else case["q"]
    assert error <= ERRORS[kind] * max(most, 1e-30), f"error {error} of {most}"
    assert (np.isfinite(lse) == np.isfinite(logs)).all()
    apart = np.abs(np.where(np.isfinite(logs), lse, 0) - np.where(np.isfinite(logs), logs, 0)).max(initial=0)
    assert apart <= (1e-12 if case["q"] == "f64" else 1e-4), f"lse {apart}"


def made(case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays q, k and v between guard pages, and the other arguments."""
    rng = np.random.default_rng(case["data"])
    s, kv_heads, heads = case["sequences"], case["kv_heads"], case["kv_heads"] * case["group"]
    (size, value_size), queries, keys = case["sizes"], case["queries"], case["keys"]
    layout, how = case["layout"], dict[str, Any]()
    shapes = [(s, heads, queries, size), (s, kv_heads, keys, size), (s, kv_heads, keys, value_size)]
    ragged = {"ragged": {"q_offsets": queries, "k_offsets": keys},
              "paged": {"q_offsets": queries} if case["ragged"] else {}}.get(layout, {})
    if ragged:
        for name, most in ragged.items():
            how[name] = np.concatenate([[0], np.cumsum(rng.integers(0, most + 1, s))]).astype(np.int32)
        queries, keys = (int(how[name][-1]) + 1 if name in how else n
                         for name, n in (("q_offsets", queries), ("k_offsets", keys)))
        shapes = [(heads, queries, size), (kv_heads, keys, size), (kv_heads, keys, value_size)]
    if layout in ("paged", "padded"):
        how["lengths"] = rng.integers(0, keys + 1, s).astype(np.int64)
    if layout == "paged":
        page, pages = case["page"], -(-keys // case["page"]) + 1
        how["table"] = rng.permutation(s*pages).reshape(s, pages).astype(np.int32)
        shapes[1:] = [(s*pages, kv_heads, page, x) for x in (size, value_size)]
        keys = pages * page
    arrays = {}
    for name, shape, format, place in zip("qkv", shapes, (case["q"], case["kv"], case["kv"]), case["in"]):
        x = rng.integers(-90, 90, shape) if format == "i8" else rng.normal(size=shape)
        way = place if len(shape) == 4 else {"end": place["end"]}
        arrays[name] = Placed.of(x.astype(FORMATS[format].dtype), **way).array
    if case["kv"] == "i8":
        how |= {"k_scale": np.float32(1/64), "v_scale": np.full((s, kv_heads), 0.02, np.float32)}
    elif case["kv"] == "e4m3fn" and case["scales"]:
        how |= {"k_scale": rng.uniform(0.5, 2, (s, kv_heads)).astype(np.float32), "v_scale": np.float32(0.5)}
        how |= {"q_scale": rng.uniform(0.5, 2, (s, heads)).astype(np.float32)} if case["q"] == "e4m3fn" else {}
    axes = [n if whole else 1 for n, whole in zip((s, heads, queries, keys), case["bias_axes"])]
    if case["bias"] == "floats":
        how["bias"] = rng.normal(size=axes).astype(np.float32)
    elif case["bias"] == "mask":
        how["bias"] = rng.random(axes) < 0.6
    elif case["bias"] == "alibi":
        how["bias"] = alibi
    elif case["bias"] == "function":
        how |= {"bias": documents, "operands": {"of_query": rng.integers(0, 3, (queries, 1)).astype(np.int32),
                                                "of_key": rng.integers(0, 3, keys).astype(np.int8)}}
    how |= {"sinks": rng.normal(size=heads).astype(np.float32)} if case["sinks"] else {}
    window = case["window"]
    return arrays, how | {"causal": case["causal"], "window": window and tuple(window), "softcap": case["softcap"],
                          "scale": case["scale"]}


def alibi(score: Any, i: Any, j: Any, head: Any) -> Any:
    return score - (i - j) * tw.exp((head + 1) * -0.5)


def documents(score: Any, i: Any, j: Any, head: Any, of_query: Any, of_key: Any) -> Any:
    return tw.where(of_query == of_key, score, -np.inf)


FUZZER = Fuzzer("attention", draw, check, {"layout": "plain", "bias": None, "softcap": None, "sinks": False,
                                           "window": None, "causal": False, "sequences": 1, "group": 1, "kv_heads": 1,
                                           "q": "f32", "kv": "f32", "threads": 1, "sizes": (64, 64), "scale": None})
