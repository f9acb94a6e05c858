"""Kinds of random calls on a GPU: what they have in common in a process (`features`), and the call (`draw`): a row of
the table of products (tests/products). Kernels depend on features most, so that a process compiles few and runs many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any, NamedTuple

import numpy as np

from tests.fuzz.gpu_arrays import Margins
from tests.fuzz.memory import checked
from tests.products.arrays import Made
from tests.products.case import Case as Row, case as row
from tests.products.ways import first
from tilewright import formats

Case = dict[str, Any]
FLOATS = ("f32", "f32", "bf16", "bf16", "f16", "f64")
SUMS = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-24, "bf16": 2.0**-24, "e4m3fn": 2.0**-13, "e5m2": 2.0**-13,
        "i8": 0.0, "u8": 0.0, "i16": 0.0, "i32": 0.0, "i64": 0.0, "c64": 2.0**-23, "c128": 2.0**-52}
STORED = {"f32": 2.0**-24, "f16": 2.0**-10, "bf16": 2.0**-8}
FEW, TILES, LONG = (1, 1, 2, 3, 4, 5), (7, 8, 9, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129), (
    88, 230, 250, 256, 297, 311, 512, 518)


def check(on: Any, case: Case) -> None:
    checked(row("drawn", **case["row"]), case["data"], Margins(on, case["lie"]))


class Kind(NamedTuple):
    features: Callable[[Random], Case]
    draw: Callable[[Random, Case], Case]
    check: Callable[[Any, Case], None] = check
    cheap: bool = True  # worth a case in the simulator


KINDS: dict[str, Kind] = {}


# ---- parts of draws


def size(rng: Random, unit: int = 1, most: int = 600, few: float = 0.2) -> int:
    n = rng.choice(FEW if rng.random() < few else LONG if rng.random() < 0.25 else TILES)
    n = n if rng.random() < 0.2 else -(-n // unit) * unit
    return n if n <= most else rng.choice(FEW)


def sizes(rng: Random, f: Case, most: int = 600, least: int = 0) -> list[int]:
    """m, n and k, of which few are 0."""
    found = [size(rng, few=f["few"], most=most), size(rng, f["unit"], most), size(rng, f["unit"], most)]
    if rng.random() < 0.02:
        found[rng.randrange(3)] = 0
    return [max(n, least) for n in found]


def where(rng: Random, f: Case, order: str = "n") -> Case:
    """How an operand lies: at multiples of f["unit"] elements mostly."""
    unit = f["unit"] if rng.random() < 0.85 else 1
    return {"order": order, "apart": unit * rng.choice([0, 0, 1, 5]), "pad": unit * rng.choice([0, 0, 0, 1, 3, 8]),
            "shift": unit * rng.choice([0, 0, 0, 1, 2, 4]), "step": rng.choice([1] * 24 + [2])}


def plain(rng: Random) -> Case:
    """Features that most kinds have."""
    return {"unit": rng.choice([1, 1, 2, 4, 8, 16]), "orders": rng.choice(["nn", "nt", "tn", "tt"]),
            "few": rng.choice([0.1, 0.1, 0.9])}


def of_one(rng: Random, names: Sequence[str], **more: Any) -> Case:
    """Features of products whose operands, sums and results are in one format."""
    name = rng.choice(names)
    return plain(rng) | {"a": name, "b": name, "sums": name, "out": name, "lead": 0} | more


def drawn(rng: Random, f: Case, row: Case, **more: Any) -> Case:
    """A case: its row, how A, B and whatever else lie, and a seed of the numbers."""
    return {"row": row | more, "lie": [where(rng, f, f["orders"][0]), where(rng, f, f["orders"][1]), where(rng, f)],
            "data": rng.randrange(2**31)}


def text(format: str, *shape: int) -> str:
    return f"{format} {'x'.join(map(str, shape))}"


def within(sums: str, k: int) -> float:
    """The largest error of a sum of k terms that is allowed, relative to the sum of their magnitudes."""
    return (k + 32) * SUMS[sums]


# ---- products

PAIRS = [*((x, x) for x in FLOATS), ("f32", "f32"), ("bf16", "f32"), ("f16", "bf16"), ("i8", "i8"), ("u8", "i8"),
         ("e4m3fn", "e4m3fn"), ("e5m2", "e4m3fn"), ("i32", "i32"), ("bf16", "e4m3fn"), ("f64", "f32")]


def results_of(a: str, b: str) -> tuple[str, str]:
    """(format of sums, of the result that is asked for) of a product."""
    common = formats.promote(formats.FORMATS[a].dtype, formats.FORMATS[b].dtype).name
    narrow = common in ("f16", "bf16", "e4m3fn", "e5m2", "i8", "u8")
    return ("e4m3fn" if "e4m3fn" in (a, b) or "e5m2" in (a, b) else common), (
        ("i32" if common in ("i8", "u8", "i16") else "f32") if narrow else common)


def of_products(rng: Random) -> Case:
    a, b = rng.choice(PAIRS)
    if rng.random() < 0.5:
        b = a = rng.choice(FLOATS)
    sums, out = results_of(a, b)
    return plain(rng) | {"a": a, "b": b, "sums": sums, "out": rng.choice([out, out, a]) if a in ("bf16", "f16") else
                         "i32" if sums == "i16" else out, "lead": rng.choice([0, 0, 0, 1, 2])}


def lead_of(rng: Random, f: Case) -> list[int]:
    return [rng.choice([1, 2, 3, 17]) for _ in range(f["lead"])]


def product(rng: Random, f: Case, m: int, n: int, k: int, lead: Sequence[int] = ()) -> Case:
    """A row of two matrices, or of stacks, of which one may be a matrix."""
    shared = rng.choice(["", "", "a", "b"])
    return {"a": text(f["a"], *lead if shared != "a" else (), m, k),
            "b": text(f["b"], *lead if shared != "b" else (), k, n), "within": within(f["sums"], k),
            "values": "whole" if "i32" in (f["a"], f["b"]) else rng.choice(["whole", "normal"])}


def result(rng: Random, f: Case, *shape: int) -> Case:
    """The options of a row with a single result: an array for the result, or its format."""
    return {"results": (f["out"],), "out": (text(f["out"], *shape),) if rng.random() < 0.5 else (),
            "options": {"alpha": rng.choice([1, 1, 1, 2, -1]), "out_dtype": f["out"]}}


def of_sizes(rng: Random, f: Case, lead: Sequence[int], m: int, n: int, k: int) -> Case:
    """matmul and, with beta, gemm: formats, strides, batches."""
    found = product(rng, f, m, n, k, lead) | result(rng, f, *lead, m, n)
    if found["out"] and (beta := rng.choice([0, 0, 1, 2, -1])):
        factors = {"alpha": found["options"]["alpha"], "beta": beta}
        found |= {"call": "gemm", "c": found["out"][0], "out": (), "options": factors}
    return drawn(rng, f, found)


def draw_product(rng: Random, f: Case) -> Case:
    lead = lead_of(rng, f)
    return of_sizes(rng, f, lead, *sizes(rng, f, 130 if lead else 600))


def draw_vector(rng: Random, f: Case) -> Case:
    """Matrices by vectors, and batches of them."""
    m, n, k = sizes(rng, f, 130 if f["lead"] else 600)
    a = text(f["a"], *lead_of(rng, f), m, k)
    return drawn(rng, f, product(rng, f, m, n, k), a=a, b=text(f["b"], k), options={"out_dtype": f["out"]})


KINDS["products"] = Kind(of_products, draw_product)
KINDS["vectors"] = Kind(of_products, draw_vector)
ALGORITHMS = {"bf16_bf16_f32_x3": 3 * 2.0**-16, "bf16_bf16_f32_x6": 2.0**-20, "bf16_bf16_f32_x9": 2.0**-20,
              "tf32_tf32_f32_x3": 2.0**-20, "tf32_tf32_f32": 2.0**-10, "fastest": 2.0**-20}


def draw_terms(rng: Random, f: Case) -> Case:
    """f32 by the splits that `algorithm` names."""
    m, n, k = sizes(rng, f)
    found = product(rng, f, m, n, k)
    return drawn(rng, f, found, out=result(rng, f, m, n)["out"], options={"algorithm": f["algorithm"]},
                 within=found["within"] + ALGORITHMS[f["algorithm"]])


KINDS["terms"] = Kind(lambda rng: of_one(rng, ["f32"], few=0.1, algorithm=rng.choice([*ALGORITHMS])), draw_terms)


def some_rows(on: Any, case: Case) -> None:
    """batch_invariant: some rows have the bits that they have among all."""
    place = Margins(on, case["lie"])
    call, (whole,) = checked(row("drawn", **case["row"]), case["data"], place)
    m = len(whole)
    some = slice(m // 3, m // 3 + max(m // 2, 1))
    a = call.made["a"]
    call.made["a"] = Made(np.ascontiguousarray(a.array[some]), a.numbers[some])
    (part,) = first(call, place)
    assert np.array_equal(whole[some], part), "rows have other bits alone"


def draw_invariant(rng: Random, f: Case) -> Case:
    return drawn(rng, f, product(rng, f, *sizes(rng, f)), options={"batch_invariant": True})


KINDS["invariant"] = Kind(lambda rng: of_one(rng, ["f32", "bf16", "f64", "f16"]), draw_invariant, some_rows)


# ---- epilogues and prologues

# and where their operands are: a number for each column, each row, each element, or one
EPILOGUES: dict[str, dict[str, str]] = {
    "bias": {"bias": "row"}, "bias relu": {"bias": "row"}, "scale and residual": {"by": "column", "res": "full"},
    "scale": {"s": "scalar"}, "clamped": {"res": "full"}, "biased and not": {"bias": "row"}, "pairs": {}, "row max": {},
    "row sums of groups": {"bias": "row"}, "row max and columns": {"bias": "row"}, "reductions": {"s": "row"}}
REDUCED = "row max", "row sums of groups", "row max and columns", "reductions"


def beside(f: Case, lead: Sequence[int], m: int, n: int) -> Case:
    """The epilogue and its operands."""
    shapes = {"row": (n,), "column": (m, 1), "full": (*lead, m, n), "scalar": (1, 1)}
    places = EPILOGUES[f["epilogue"]].items() if f["epilogue"] else ()
    return {"epilogue": f["epilogue"]} | {name: text(f["beside"], *shapes[place]) for name, place in places}


def of_epilogues(rng: Random) -> Case:
    name = rng.choice(FLOATS)
    return of_one(rng, [name], lead=rng.choice([0, 0, 0, 1, 2]), epilogue=rng.choice([*EPILOGUES]),
                  out="f64" if name == "f64" else rng.choice(["f32", name]),
                  beside="f64" if name == "f64" else rng.choice(["f32", name]))


def draw_epilogue(rng: Random, f: Case) -> Case:
    """Functions after the product: operands, several results, reductions, pairs."""
    lead, reduced = lead_of(rng, f), f["epilogue"] in REDUCED
    m, n, k = sizes(rng, f, 130 if lead else 600, least=int(reduced))
    n += n % 2 if f["epilogue"] == "pairs" else 0
    found = product(rng, f, m, n, k, lead) | beside(f, lead, m, n)
    if reduced or f["epilogue"] == "biased and not":
        options = {"alpha": rng.choice([1, 2, -1])} | ({} if reduced else {"out_dtype": (f["out"],) * 2})
        return drawn(rng, f, found, options=options, within=found["within"] * (m + n if reduced else 1))
    return drawn(rng, f, found | result(rng, f, *lead, m, n // 2 if f["epilogue"] == "pairs" else n))


KINDS["epilogues"] = Kind(of_epilogues, draw_epilogue)


def draw_prologue(rng: Random, f: Case) -> Case:
    """Functions of operands before the product, which narrow formats round."""
    found, roles = product(rng, f, *sizes(rng, f)), rng.choice(["a", "b", "ab"])
    rounds = f["prologue"] == "plus" and f["a"] != "f32"
    return drawn(rng, f, found, **{f"prologue_{role}": f["prologue"] for role in roles}, options={"out_dtype": "f32"},
                 within=found["within"] + 2.0**-7 * rounds)


KINDS["prologues"] = Kind(lambda rng: of_one(rng, ["f32", "bf16", "bf16", "f16"],
                                             prologue=rng.choice(["relu", "double", "plus"])), draw_prologue)


# ---- contractions


def draw_contract(rng: Random, f: Case) -> Case:
    return drawn(rng, f, product(rng, f, *sizes(rng, f, 130, least=1)), call="contract", term=f["term"],
                 reduce=f["reduce"], values="whole")


def of_contract(rng: Random) -> Case:
    term, reduce = rng.choice([("paths", "min"), ("least", "max"), ("squares", "sum"), ("squares", "argmin")])
    return of_one(rng, ["f32", "f32", "f64"], term=term, reduce=reduce)


KINDS["contract"] = Kind(of_contract, draw_contract)
TEXTS = ("ij,jk->ik", "ij,kj->ik", "ij,jk->ki", "bij,bjk->bik", "bij,jk->bki", "xyk,kn->nxy", "abc,dca->bd", "i,j->ij",
         "ij,j->i", "bi,bi->b", "abij,abjk->abik", "ijk,jil->kl", "ia,ib->abi")


def draw_einsum(rng: Random, f: Case) -> Case:
    """einsum, or tensordot of the same axes."""
    inputs, output = f["text"].split("->")
    letters = sorted({*inputs} - {","})
    lengths = {x: rng.choice([1, 2, 3, 5, 8, 16, 17] if len(letters) > 3 else [1, 2, 5, 16, 31, 64, 65, 129])
               for x in letters}
    left, right = inputs.split(",")
    k = math.prod(n for x, n in lengths.items() if x not in output)
    found = {"a": text(f["a"], *map(lengths.get, left)), "b": text(f["a"], *map(lengths.get, right)),
             "subscripts": f["text"], "values": rng.choice(["whole", "normal"]), "within": within(f["a"], k)}
    if f["epilogue"] or rng.random() < 0.3:
        shape = [lengths[x] for x in output]
        some = [text(f["beside"], *(n if rng.random() < 0.6 else 1 for n in shape)) for _ in range(2)]
        found |= {"epilogue": f["epilogue"]} | dict(zip(EPILOGUES.get(f["epilogue"], ()), some))
        factors = {"alpha": rng.choice([1, 2, -1]), "beta": rng.choice([0, 0, 1, 2])}
        return drawn(rng, f, found, call="einsum", options=factors, c=text(f["a"], *shape) if factors["beta"] else None)
    shared = [x for x in left if x in right]
    if rng.random() < 0.5 or any(x in output for x in shared) or [x for x in left + right if x in output] != [*output]:
        return drawn(rng, f, found, call="einsum")
    return drawn(rng, f, found, call="tensordot", options={"axes": [[part.index(x) for x in shared] for part in (
        left, right)]})


KINDS["einsum"] = Kind(lambda rng: of_one(rng, [name := rng.choice([*FLOATS, "c64"])], text=rng.choice(TEXTS),
                                          beside=name, epilogue="" if name == "c64" else rng.choice(
                                              ["", "", "bias relu", "scale and residual"])), draw_einsum)


# ---- batches of small matrices, and complex ones


def draw_small(rng: Random, f: Case) -> Case:
    unit = min(f["unit"], 4)
    m, n, k = (min(-(-rng.randint(1, 32) // unit) * unit, 32) for _ in range(3))
    return of_sizes(rng, f, [rng.choice([1, 2, 7, 131, 300])], m, n, k)


KINDS["small"] = Kind(lambda rng: of_one(rng, ["f32", "f64", "bf16", "c64", "c128"], lead=1), draw_small)
KINDS["complex"] = Kind(lambda rng: of_one(rng, ["c64", "c64", "c128"], lead=rng.choice([0, 0, 1])), draw_product)


# ---- the table itself


@cache
def table() -> dict[str, Row]:
    """The rows that NVIDIA's GPUs have, by name."""
    from tests.products.test_products import ROWS

    return {x.name: x for _, x in ROWS if any(device.startswith("sm_") for device in x.on)}


def of_the_table(on: Any, case: Case) -> None:
    """A row by each of its plans, with operands that lie by rows or by columns as it says. What rounds may do so as a
    device does."""
    drawn = table()[case["name"]]
    if drawn.values == "normal" and not on.simulated:
        drawn = drawn._replace(within=drawn.within + within("e4m3fn" if "e4m3fn" in drawn.a + drawn.b else "f32", 128))
    if on.target.name in drawn.on or (on.target.name == "sm_90a" and not {"sm_90a"} & {*drawn.on}):
        for plan in drawn.plans or ("",):
            checked(drawn, case["data"], Margins(on, [{"order": ""}]), plan)


def draw_row(rng: Random, f: Case) -> Case:
    found = table()[rng.choice([*table()])]
    return {"name": found.name, "row": {"a": found.a, "b": found.b}, "data": rng.randrange(2**31)}


KINDS["table"] = Kind(lambda rng: {}, draw_row, of_the_table)
