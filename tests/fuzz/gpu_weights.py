"""Kinds of random calls on a GPU (gpu_kinds.py): groups, weights of few bits, scales."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

import tilewright as tw
from tests.fuzz.gpu_arrays import Margins
from tests.fuzz.gpu_kinds import (
    FLOATS,
    KINDS,
    REDUCED,
    STORED,
    Case,
    Kind,
    beside,
    drawn,
    of_one,
    plain,
    product,
    result,
    row,
    sizes,
    text,
    within,
)
from tests.products.ways import Call

# ---- groups


def of_groups(rng: Random) -> Case:
    name = rng.choice(["f32", "bf16", "bf16", "f16", "f64"])
    return of_one(rng, [name], out=name if name == "f64" else rng.choice(["f32", name]),
                  epilogue=rng.choice(["", "", "", "bias", "clamped", "row max", "row sums of groups",
                                       "biased and not"]),
                  beside="f64" if name == "f64" else "f32", index=rng.choice(["i32", "i32", "i64"]))


def ends_of(rng: Random, m: int) -> tuple[int, ...]:
    """Of groups, some empty, with rows of no group behind the last one."""
    count = rng.choice([1, 2, 3, 4, 5, 6, 9])
    last = m if rng.random() < 0.7 else rng.randint(0, m)
    return (*sorted(rng.randint(0, last) for _ in range(count - 1)), last)


def grouped(rng: Random, f: Case, m: int) -> Case:
    return {"call": "grouped_matmul", "ends": ends_of(rng, m), "index": f["index"]}


def draw_groups(rng: Random, f: Case) -> Case:
    """Groups of rows: few rows, empty groups, rows that belong to no group, epilogues."""
    m, n, k = (max(x, least) for x, least in zip(sizes(rng, f, 520), (1, 1, 0)))
    groups, reduced = grouped(rng, f, m), f["epilogue"] in REDUCED
    n += {*np.diff(groups["ends"], prepend=0).tolist()} == {n}      # or results may be of rows or of columns
    found = product(rng, f, m, n, k) | groups | beside(f, (), m, n)
    found["b"] = text(f["a"], len(groups["ends"]), k, n)
    if reduced or f["epilogue"] == "biased and not":
        options = {"alpha": rng.choice([1, 1, 2])} | ({} if reduced else {"out_dtype": (f["out"],) * 2})
        return drawn(rng, f, found, options=options, within=found["within"] * (m + n if reduced else 1))
    return drawn(rng, f, found | result(rng, f, m, n))


def draw_groups_of_k(rng: Random, f: Case) -> Case:
    k, n, m = sizes(rng, f, 520, least=1)
    m = min(m, 130)
    return drawn(rng, f, product(rng, f, m, n, k) | grouped(rng, f, k), options={"out_dtype": f["out"]})


KINDS["groups"] = Kind(of_groups, draw_groups)
KINDS["groups_of_k"] = Kind(of_groups, draw_groups_of_k)


# ---- weights of few bits

# torch has no dtype for one element of 4 bits in a byte
WEIGHTS = ("i8", "u8 zeros", "e4m3fn", "mxfp8", "mxfp4", "nvfp4", "mxfp6", "i4 nibbles", "u4 zeros nibbles")


def of_weights(rng: Random) -> Case:
    x, weight = rng.choice(["bf16", "bf16", "f16", "f32"]), rng.choice(WEIGHTS)
    return plain(rng) | {"a": "bf16" if weight[-3:-1] == "fp" and x == "f16" else x, "weight": weight,
                         "group": rng.choice([None, None, 2, 16, 32, 40]), "trans": rng.random() < 0.7,
                         "few": rng.choice([0.95, 0.6]), "index": "i32"}


def draw_weights(rng: Random, f: Case) -> Case:
    """Few rows and many by quantised weights, with groups of all sizes, and fewer steps of k than a group has."""
    m, n, k = sizes(rng, f, 400, least=1)
    k = rng.choice([1, 2, 3, 5, 15, 16, 17, 31, 33]) if rng.random() < 0.3 else k
    groups = grouped(rng, f, m) if f.get("of_rows") else {}
    name, *words = f["weight"].split()
    if name == "mxfp6" and groups:
        name = "mxfp8"
    if "fp" not in name:
        words.append(f"group={f['group']}" if f["group"] and f["group"] <= k else "weights")
    lead = (len(groups["ends"]),) if groups else rng.choice([(), (), (3,)])
    b = text(name, *lead, *((n, k) if f["trans"] else (k, n)))
    return drawn(rng, f, {"a": text(f["a"], m, k), "b": " ".join([b, *words]), "values": "normal",
                          "within": within(f["a"], k) + 2 * STORED[f["a"]],
                          "options": {"trans_b": f["trans"], "out_dtype": "f32"}}, **groups)


KINDS["weights"] = Kind(of_weights, draw_weights)
KINDS["groups_of_weights"] = Kind(lambda rng: of_weights(rng) | {"of_rows": True}, draw_weights)


# ---- scales


def of_scales(rng: Random) -> Case:
    name = rng.choice(["i8", "i8", "e4m3fn", "e4m3fn", "e5m2", *FLOATS[:5]])
    return of_one(rng, [name], b="e4m3fn" if name == "e5m2" else name, scaled=rng.choice(["a", "ab", "b"]))


def draw_scaled(rng: Random, f: Case) -> Case:
    """Scales of rows and columns."""
    m, n, k = sizes(rng, f, 400)
    scales = {"a": text("f32", m, 1), "b": text("f32", 1, n)}
    return drawn(rng, f, product(rng, f, m, n, k), options={"out_dtype": "f32"},
                 **{f"scale_{x}": f"{scales[x]} powers" for x in f["scaled"]})


def draw_blocks(rng: Random, f: Case) -> Case:
    """Two block-scaled operands."""
    m, n, k = sizes(rng, f, 400, least=1)
    return drawn(rng, f, {"a": text(f["a"], m, k), "b": text(f["b"], n, k), "values": "normal",
                          "within": within("e4m3fn", k) + 2.0**-9, "options": {"trans_b": True, "out_dtype": "f32"}})


def quantized(on: Any, case: Case) -> None:
    """Results in block formats are those of quantize."""
    call, place = Call(row("drawn", **case["row"]), case["data"]), Margins(on, case["lie"])
    got, want = call.run(call.arrays(place), []), tw.quantize(call.results[0].value.astype(np.float32), case["format"])
    on.finish()
    for name in ("elements", "scales"):
        x, y = on.back(getattr(got, name)), getattr(want, name)
        assert np.array_equal(x.view(np.uint8), y.view(np.uint8)), f"{name} differ from quantize's"


def draw_quantized(rng: Random, f: Case) -> Case:
    found = product(rng, f, *sizes(rng, f, 200, least=1))
    return drawn(rng, f, found, epilogue="relu", values="whole", options={"out_dtype": f["format"]}) | {
        "format": f["format"]}


BLOCKS = ("mxfp8", "mxfp8", "mxfp4", "nvfp4", "mxfp6")
KINDS["scaled"] = Kind(of_scales, draw_scaled)
KINDS["blocks"] = Kind(lambda rng: plain(rng) | {"a": rng.choice(BLOCKS), "b": rng.choice(BLOCKS)}, draw_blocks)
KINDS["quantized_results"] = Kind(lambda rng: of_one(rng, ["f32", "bf16"], format=rng.choice(
    ["mxfp8", "mxfp4", "nvfp4"])), draw_quantized, quantized)
