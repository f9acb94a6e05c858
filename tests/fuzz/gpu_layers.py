"""Kinds of random calls on a GPU (gpu_kinds.py): operators and layers of tilewright.torch, by torch alone."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

from tests.fuzz.gpu_arrays import Margins
from tests.fuzz.gpu_kinds import KINDS, STORED, Case, Kind, drawn, of_one, plain, product, row, sizes, text, within
from tests.fuzz.gpu_weights import draw_groups, of_groups
from tests.oracles.product import Expected
from tests.products.ways import Call

TYPES = ("f32", "bf16", "bf16", "f16")


def by_operator(on: Any, case: Case) -> None:
    """mm, addmm, bmm, matmul, linear, and grouped_mm of rows of groups."""
    import tilewright.torch as twt

    call, place = Call(row("drawn", **case["row"]), case["data"]), Margins(on, case["lie"])
    given, name = call.arrays(place), case["operator"]
    if name == "linear":
        got = twt.linear(given["a"], given["b"].transpose(-1, -2), given["bias"])
    else:
        got = getattr(twt, name)(*(given[x] for x in ("bias", "a", "b", "ends") if x in given))
    on.finish()
    place.untouched()
    call.check([on.back(got)])


def draw_operator(rng: Random, f: Case) -> Case:
    m, n, k = sizes(rng, f, 400)
    lead = [rng.choice([1, 3, 8])] * (f["operator"] == "bmm")
    bias = {"epilogue": "bias", "bias": text(f["a"], n)} if f["operator"] in ("addmm", "linear") else {}
    found = product(rng, f, m, n, k) | {"b": text(f["a"], *lead, k, n), "a": text(f["a"], *lead, m, k)}
    return drawn(rng, f, found, **bias) | {"operator": f["operator"]}


def draw_grouped(rng: Random, f: Case) -> Case:
    case = draw_groups(rng, f)
    m = int(case["row"]["a"].split()[1].partition("x")[0])
    case["row"] |= {"ends": (*case["row"]["ends"][:-1], m), "options": {}, "out": (), "results": ()}
    return case | {"operator": "grouped_mm"}


OPERATORS = ["mm", "addmm", "bmm", "matmul", "linear"]
KINDS["operators"] = Kind(lambda rng: of_one(rng, TYPES, operator=rng.choice(OPERATORS)), draw_operator, by_operator,
                          cheap=False)
KINDS["grouped_operator"] = Kind(lambda rng: of_groups(rng) | of_one(rng, TYPES, epilogue="", index="i32"),
                                 draw_grouped, by_operator, cheap=False)


LAYERS = ("int8", "int4", "fp8", "mxfp8", "mxfp4", "nvfp4", "float")


def by_layer(on: Any, case: Case) -> None:
    """Converted linear layers, beside the weight that they say they have."""
    import torch

    import tilewright.torch as twt

    call, place = Call(row("drawn", **case["row"]), case["data"]), Margins(on, case["lie"])
    x, dtype = call.arrays(place)["a"], on.dtypes[np.dtype(np.float32)]
    n, k = case["n"], x.shape[-1]
    torch.manual_seed(case["data"])
    layer = twt.convert(torch.nn.Linear(k, n, bias=case["bias"], device=x.device, dtype=dtype).to(x.dtype),
                        case["layer"])
    with torch.no_grad():
        got = on.back(layer(x))
        wide = (layer.dequantized() if hasattr(layer, "dequantized") else layer.weight).double().cpu().numpy()
        bias = layer.bias.double().cpu().numpy() if case["bias"] else 0.0
    place.untouched()
    numbers = call.made["a"].numbers
    want, size = numbers @ wide.T + bias, np.abs(numbers) @ np.abs(wide).T + np.abs(bias)
    slack = 3 * STORED[case["format"]] + (case["layer"] == "fp8") * 0.07
    Expected(want, (within(case["format"], k) + slack) * np.maximum(size, np.abs(want))).check(got)


def draw_layer(rng: Random, f: Case) -> Case:
    m, n, k = sizes(rng, f, 400, least=1)
    k = rng.choice([1, 2, 3, 15, 16, 17, 31, 33]) if rng.random() < 0.3 else k
    return drawn(rng, f, {"a": text(f["a"], m, k), "b": text(f["a"], k, n), "values": "normal"}) | {
        "n": n, "format": f["a"], "layer": f["layer"], "bias": f["bias"]}


KINDS["layers"] = Kind(lambda rng: plain(rng) | {"a": rng.choice(TYPES), "layer": rng.choice(LAYERS), "few": rng.choice(
    [0.95, 0.5]), "bias": rng.random() < 0.5}, draw_layer, by_layer, cheap=False)
