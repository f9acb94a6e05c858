"""Products with much beside A, B and C: epilogues, prologues, reductions, groups, weights of few bits, packed stacks.

A case is a row of the table of products (tests/products), drawn at random, whose sums are exact in any order but for
NVFP4's. Sizes are drawn around vectors, tiles and groups. Operands, scales, zero points, ends and results lie as those
of the products fuzzer do, and the library's own memory is fenced (fences.py).
"""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from itertools import accumulate, cycle
from random import Random
from typing import Any
from unittest import mock

import numpy as np

from tests.fuzz import memory
from tests.fuzz.driver import Case, Fuzzer
from tests.fuzz.fences import fenced
from tests.fuzz.memory import Placed, Watched, checked
from tests.products import case as table
from tests.products.functions import EPILOGUES
from tests.products.ways import again
from tilewright import formats
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
PLACES = "1x1", "1x{n}", "{m}x1", "{m}x{n}"
OF_ONE = "double", "relu", "bias", "times", "row max"       # whose results are about as exact as sums are
OF_ALL = (*OF_ONE, "row argmax", "row and column", "row sums of groups", "row max and columns", "all of groups",
          "biased and not")
OF_GROUPS = (*OF_ALL, "of groups")
OF_MATRICES = (*OF_ALL, "two results", "indices", "residual", "nearest")
TEXTS = ("ij,jk->ik", "ji,jk->ki", "xyk,kn->nxy", "xky,kn->xny", "xyk,kny->xn", "bij,bjk->kbi", "abk,bkc->ca",
         "xkl,lnk->nx", "xkl,lnk->xn", "ij,ij->ij", "ij,j->i", "ij,jk,kl->li", "xky,bkn->xyn", "xyk,nk->yxn")
PROLOGUES = None, None, "scale", "double", "plus", "relu"


def draw(rng: Random) -> Case:
    case: Case = {"call": rng.choice([*("fused", "einsum", "weights", "groups") * 2, "both"]),
                  "data": rng.randrange(2**31), "threads": rng.choice([1, 1, 2, 3]), "eager": rng.random() < 0.4,
                  "fence": rng.choice(["guard", "guard", "heap"]), "again": rng.random() < 0.3}
    while True:
        m, n, k = rng.choice(SIZES), rng.choice(DEEP), rng.choice(DEEP)
        case["sizes"] = [rng.choice([0, 1, 1, 2, 3, 5, 16, 17, 19]) for _ in range(rng.choice([1, 2, 3, 4]))]
        if m * n * k <= MOST and {*case["sizes"]} != {n}:    # which would be results of rows or of columns
            break
    case |= {"m": m, "n": n, "k": k, "a": rng.choice(FLOATS), "trans_b": rng.random() < 0.5}
    case["text"] = rng.choice(TEXTS)
    if case["call"] in ("fused", "einsum") and rng.random() < 0.3:
        case["a"] = rng.choice(WHOLE)
    case["b"] = rng.choice([case["a"], case["a"], *FLOATS, "i8", "u8"]) if case["call"] != "groups" else case["a"]
    if case["call"] in ("weights", "both") or (case["call"] == "groups" and rng.random() < 0.6):
        case["b"] = rng.choice(NARROW)
        case["a"] = rng.choice(FLOATS[:5])
    case |= {"group": rng.choice([0, *GROUPS]), "group_a": rng.choice([0, *GROUPS]), "zeros": rng.random() < 0.4,
             "nibbles": rng.random() < 0.7, "packed": rng.random() < 0.25}
    epilogues = OF_ONE if case["b"] == "nvfp4" else OF_GROUPS if case["call"] == "groups" else OF_MATRICES
    case["epilogue"] = rng.choice([None, *epilogues]) if case["call"] != "both" else None
    case["prologue_a"], case["prologue_b"] = rng.choice(PROLOGUES), rng.choice(PROLOGUES)
    case["place"], case["beside"] = rng.choice(PLACES), rng.choice(["f32", "f32", "bf16", "f16", "i8", "i32"])
    case["scale"] = rng.choice(["f32", "f32", "bf16", "f16"])
    case["alpha"] = rng.choice([1, 1, 1, 2, -3])
    case["out_dtype"] = rng.choice([None, None, None, "f64", "f32"])
    case["how"] = rng.choice([{}, {}, {}, {"deterministic": True}, {"batch_invariant": True}])
    case["index"], case["out"], case["plan"] = rng.choice(["i32", "i64"]), rng.random() < 0.5, ""
    if not case["packed"] and case["call"] in ("fused", "groups") and rng.random() < 0.3:
        case["plan"] = rng.choice(PLANS)  # of which some are refused
    case["spread"] = rng.choice(["", "", "", "one", "same"])
    case["lie"] = [memory.draw(rng, 3, broadcast=False) for _ in range(9)]
    return case


def row(case: Case) -> table.Case:
    """The case as a row of the table."""
    if case["call"] == "einsum":
        return _contraction(case)
    grouped, narrow = case["call"] == "groups", case["b"] in NARROW and case["call"] != "fused"
    m, n, k = sum(case["sizes"]) if grouped else case["m"], case["n"], case["k"]
    functions = _functions(case, m, n, k)
    prologues = any(name.startswith("prologue") for name in functions)
    packed = case["packed"] and not prologues and case["call"] != "both" and (
        not narrow if grouped else narrow or case["a"] == case["b"])
    trans = case["trans_b"] and not (packed and grouped)
    sizes = f"{len(case['sizes'])}x" * grouped + (f"{n}x{k}" if trans else f"{k}x{n}")
    a = _few(case, f"{m}x{k}", case["group_a"]) if case["call"] == "both" else f"{case['a']} {m}x{k} {case['spread']}"
    b = _few(case, sizes, case["group"]) if narrow else f"{case['b']} {sizes}"
    said = {"alpha": case["alpha"], "threads": case["threads"], "trans_b": trans}
    options = {name: x for name, x in said.items() if x != PLAIN[name]} | (case["how"] if grouped else {})
    if case["out_dtype"] and not packed and (not case["epilogue"] or (case["epilogue"] in OF_ONE and not grouped)):
        options["out_dtype"] = case["out_dtype"]
    within = 0.0 if case["b"] != "nvfp4" else 2.0**-7 if case["a"] in ("bf16", "f16") else 2.0**-20
    return table.case("drawn", a, b, call="grouped_matmul" if grouped else "packed" if packed else "matmul",
                      ends=tuple(accumulate(case["sizes"])) if grouped else (), packed=packed, within=within,
                      index=case["index"], options=options, **functions)


def _contraction(case: Case) -> table.Case:
    """einsum with alpha, beta and c, or an epilogue, whose operands have some of the result's axes."""
    sizes, (inputs, output) = Random(case["data"]), case["text"].split("->")
    length = {x: sizes.choice([1, 2, 3, 5, 8, 16, 17, 33, 40]) for x in sorted({*inputs} - {","})}
    a, b, *others = (f"{case['a']} {'x'.join(str(length[x]) for x in term)}" for term in inputs.split(","))
    name = case["epilogue"] if len(output) > 1 or case["epilogue"] in OF_ONE[:-1] else None
    few = ["x".join(str(length[x] if sizes.random() < 0.7 else 1) for x in output) for _ in range(4)]
    more = {} if name is None else {"epilogue": name} | {
        x: f"{case['beside']} {few[at]} {case['spread']}" for at, x in enumerate(
            [*inspect.signature(EPILOGUES[name].traced).parameters][1:])}
    options = {"alpha": case["alpha"], "threads": case["threads"], "order": sizes.choice(["K", "K", "C", "F"])}
    if sizes.random() < 0.4:
        more["c"], options["beta"] = f"{case['a']} {few[3]}", sizes.choice([1, 2, -1])
    return table.case("drawn", a, b, call="einsum", subscripts=case["text"], others=tuple(others), options=options,
                      **more)


def _functions(case: Case, m: int, n: int, k: int) -> dict[str, str]:
    """The names of the epilogue and of prologues, and the texts of their operands by name."""
    found: dict[str, str] = {}
    if case["epilogue"]:
        names = [*inspect.signature(EPILOGUES[case["epilogue"]].traced).parameters][1:]
        found |= {name: f"{case['beside']} {case['place'].format(m=m, n=n)} {case['spread']}" for name in names}
        found["epilogue"] = case["epilogue"]
    for role, rows, columns in ("a", m, k), ("b", k, n):
        name = case[f"prologue_{role}"] if case["call"] == "fused" else None
        if name == "scale":
            place = case["place"].format(m=rows, n=columns)
            found[f"of_{role}"] = f"{case['scale']} {place} {case['spread']}"
        if name:
            found[f"prologue_{role}"] = f"scale {role}" if name == "scale" else name
    return found


def _few(case: Case, shape: str, group: int) -> str:
    """An array of few bits."""
    name = case["b"]
    if name in formats.BLOCK_FORMATS:
        return f"{name} {shape}"
    words = [f"group={group}"] if group else ["weights"]
    words += ["zeros"] * (case["zeros"] and name in ("i8", "u8", "i4", "u4"))
    words += ["nibbles"] * (case["nibbles"] and name in ("i4", "u4", "e2m1"))
    return f"{name} {shape} {' '.join(words)}"


def _place(x: np.ndarray, how: dict[str, Any]) -> Placed:
    """x between pages by a layout of three axes. Where an element is seen many times it stays one."""
    away = 3 - x.ndim
    order = [axis - away for axis in how.get("order", range(3)) if axis >= away]
    steps = [step if stride or n == 1 else 0
             for step, stride, n in zip(how.get("steps", [1] * 3)[away:], x.strides, x.shape)]
    return Placed.of(x, **how | {"order": order, "steps": steps})


def check(case: Case) -> None:
    with ExitStack() as stack:
        for where, name in EAGER if case["eager"] else ():  # threads, and pieces, for the smallest of products
            stack.enter_context(mock.patch.object(where, name, 0 if name != "LEAST" else 1))
        stack.enter_context(fenced(case["fence"]))
        try:
            _check(case)
        except ValueError as error:
            if not case["plan"] or not any(word in str(error) for word in ("cannot run", "plan must", "plan ")):
                raise


def _check(case: Case) -> None:
    place = Watched(_place, cycle(case["lie"]))
    call, found = checked(row(case), case["data"], place, case["plan"])
    if case["out"] and len(found) == 1 and (found[0].ndim == 2 or (case["call"] == "einsum" and found[0].ndim)):
        out = f"{formats.get(found[0].dtype).name} {'x'.join(map(str, found[0].shape))}"
        checked(call.case._replace(out=(out,)), case["data"], place, case["plan"])
    if case["again"]:
        again(call, place)
        place.untouched()


PLAIN: Case = {"plan": "", "again": False, "eager": False, "threads": 1, "packed": False, "how": {}, "alpha": 1,
               "out": False, "out_dtype": None, "epilogue": None, "prologue_a": None, "prologue_b": None,
               "zeros": False, "nibbles": False, "trans_b": False, "spread": "", "lie": [{"end": True}],
               "index": "i32", "text": TEXTS[0], "place": PLACES[0], "beside": "f32", "scale": "f32",
               "m": 1, "n": 1, "k": 1}
FUZZER = Fuzzer("beside", draw, check, PLAIN, share=3)
