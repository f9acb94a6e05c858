"""Kinds of random calls on a GPU (gpu_kinds.py): operators and layers of tilewright.torch, by torch alone."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

from tests.fuzz.gpu_kinds import STORED, Case, close, ended, exact, kind, operands, plain, put, sizes
from tests.fuzz.gpu_weights import by_rows, draw_groups, of_groups, offsets

TYPES = ("f32", "bf16", "bf16", "f16")


def of_operators(rng: Random) -> Case:
    return plain(rng) | {"a": (x := rng.choice(TYPES)), "b": x, "out": x, "sums": x,
                         "operator": rng.choice(["mm", "addmm", "bmm", "matmul", "linear"])}


@kind(of_operators, lambda rng, f: sizes(rng, f, 400) | {"lead": [rng.choice([1, 3, 8])] * (f["operator"] == "bmm")},
      cheap=False)
def operators(on: Any, case: Case) -> None:
    """mm, addmm, bmm, matmul, linear."""
    import tilewright.torch as twt

    a, b = operands(on, case)
    want, size = exact(case, a.numbers, b.numbers)
    name, given = case["operator"], {}
    if name in ("addmm", "linear"):
        given["row"] = put(on, case, "row", case["a"], case["n"], values="whole")
        want, size = want + given["row"].numbers, size + 3
    if name == "linear":
        got = twt.linear(a.there, b.there.transpose(-1, -2), given["row"].there)
    else:
        got = getattr(twt, name)(*(x.there for x in given.values()), a.there, b.there)
    close(ended(on, got, a=a, b=b, **given), want, size, case["k"], case["a"], case["out"])


@kind(lambda rng: of_groups(rng) | {"epilogue": "", "index": "i32", "a": rng.choice(TYPES)}, draw_groups, cheap=False)
def grouped_operator(on: Any, case: Case) -> None:
    """grouped_mm of rows of groups."""
    import tilewright.torch as twt

    case = case | {"ends": [*case["ends"][:-1], case["m"]]}
    a = put(on, case, "a", case["a"], case["m"], case["k"])
    b, at = put(on, case, "b", case["a"], len(case["ends"]), case["k"], case["n"]), offsets(on, case)
    got = ended(on, twt.grouped_mm(a.there, b.there, at.there), a=a, b=b, offsets=at)
    close(got, *by_rows(case, a.numbers, b.numbers), case["k"], case["a"], case["a"])


LAYERS = ("int8", "int4", "fp8", "mxfp8", "mxfp4", "nvfp4", "float")


def draw_layer(rng: Random, f: Case) -> Case:
    case = sizes(rng, f, 400)
    case["k"] = max(rng.choice([1, 2, 3, 15, 16, 17, 31, 33]) if rng.random() < 0.3 else case["k"], 1)
    return case | {"m": max(case["m"], 1), "n": max(case["n"], 1), "values": "normal"}


@kind(lambda rng: plain(rng) | {"a": rng.choice(TYPES), "layer": rng.choice(LAYERS), "bias": rng.random() < 0.5,
                                "few": rng.choice([0.95, 0.5])}, draw_layer, cheap=False)
def layers(on: Any, case: Case) -> None:
    """Converted linear layers, beside the weight that they say they have."""
    import torch

    import tilewright.torch as twt

    x, dtype = put(on, case, "a", case["a"], case["m"], case["k"]), on.dtypes[np.dtype(np.float32)]
    torch.manual_seed(case["data"])
    plain_layer = torch.nn.Linear(case["k"], case["n"], bias=case["bias"], device=x.there.device, dtype=dtype)
    layer = twt.convert(plain_layer.to(x.there.dtype), case["layer"])
    with torch.no_grad():
        got = ended(on, layer(x.there), a=x)
        wide = (layer.dequantized() if hasattr(layer, "dequantized") else layer.weight).double().cpu().numpy()
        bias = layer.bias.double().cpu().numpy() if case["bias"] else 0.0
    want, size = exact(case, x.numbers, wide.T)
    close(got, want + bias, size + np.abs(bias), case["k"], case["a"], case["a"], 2 * STORED[case["a"]] + (
        case["layer"] == "fp8") * 0.07)
