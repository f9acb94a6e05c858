"""Kinds of random calls on a GPU: what they have in common in a process (`features`), sizes and places (`draw`), and
the call beside float64 (`check`). Kernels depend on features most, so that a process compiles few and runs many.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import numpy as np

import tilewright as tw
from tests.fuzz.gpu_arrays import Placed, place
from tests.fuzz.values import numbers
from tilewright import formats
from tilewright.formats.scaled import Nibbles, Scaled

Case = dict[str, Any]
FLOATS = ("f32", "f32", "bf16", "bf16", "f16", "f64")
SUMS = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-24, "bf16": 2.0**-24, "e4m3fn": 2.0**-13, "e5m2": 2.0**-13,
        "i8": 0.0, "u8": 0.0, "i16": 0.0, "i32": 0.0, "i64": 0.0, "c64": 2.0**-23, "c128": 2.0**-52}
STORED = {"f64": 0.0, "f32": 2.0**-24, "f16": 2.0**-10, "bf16": 2.0**-8, "c64": 2.0**-24, "c128": 0.0}
FEW, TILES, LONG = (1, 1, 2, 3, 4, 5), (7, 8, 9, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129), (
    88, 230, 250, 256, 297, 311, 512, 518)


class Kind(NamedTuple):
    features: Callable[[Random], Case]
    draw: Callable[[Random, Case], Case]
    check: Callable[[Any, Case], None]
    cheap: bool = True  # worth a case in the simulator


KINDS: dict[str, Kind] = {}


def kind(features: Callable[[Random], Case], draw: Callable[[Random, Case], Case], cheap: bool = True) -> Any:
    def added(check: Callable[[Any, Case], None]) -> Callable[[Any, Case], None]:
        KINDS[check.__name__] = Kind(features, draw, check, cheap)
        return check
    return added


# ---- parts of draws


def size(rng: Random, unit: int = 1, most: int = 600, few: float = 0.2) -> int:
    n = rng.choice(FEW if rng.random() < few else LONG if rng.random() < 0.25 else TILES)
    n = n if rng.random() < 0.2 else -(-n // unit) * unit
    return n if n <= most else rng.choice(FEW)


def where(rng: Random, f: Case, order: str = "n") -> Case:
    """How an operand lies: at multiples of f["unit"] elements mostly."""
    unit = f["unit"] if rng.random() < 0.85 else 1
    return {"order": order, "apart": unit * rng.choice([0, 0, 1, 5]), "pad": unit * rng.choice([0, 0, 0, 1, 3, 8]),
            "shift": unit * rng.choice([0, 0, 0, 1, 2, 4]), "step": rng.choice([1] * 24 + [2])}


def plain(rng: Random) -> Case:
    """Features that most kinds have."""
    return {"unit": rng.choice([1, 1, 2, 4, 8, 16]), "orders": rng.choice(["nn", "nt", "tn", "tt"]),
            "few": rng.choice([0.1, 0.1, 0.9])}


def sizes(rng: Random, f: Case, most: int = 600) -> Case:
    found = {"m": size(rng, few=f["few"], most=most), "n": size(rng, f["unit"], most), "k": size(rng, f["unit"], most),
             "values": rng.choice(["whole", "normal"]), "data": rng.randrange(2**31)}
    if rng.random() < 0.02:
        found[rng.choice("mnk")] = 0
    return f | found | {"in_a": where(rng, f, f["orders"][0]), "in_b": where(rng, f, f["orders"][1]),
                        "in_out": where(rng, f)}


def put(on: Any, case: Case, name: str, format: str, *shape: int, seed: int = 0, values: str | None = None) -> Placed:
    """An operand of the case, with the place `in_name`."""
    values = values or ("whole" if format in ("i32", "i64") else case["values"])
    held = numbers(format, shape, values, case["data"] + seed + sum(map(ord, name)))
    return place(on, held, **case.get(f"in_{name}", {}))


# ---- checks


def close(got: np.ndarray, want: np.ndarray, size: np.ndarray | float, k: int, sums: str, out: str, slack: float = 0.0
          ) -> None:
    """`got` is within the rounding of k sums of numbers of this size, and of the format that it is stored in."""
    assert got.shape == want.shape, f"the shape is {got.shape}, not {want.shape}"
    got = got.astype(want.dtype)
    if out.startswith("c"):
        size = size * 2
    allowed = (k + 32) * SUMS[sums] * size + (STORED.get(out, 0.0) + slack) * np.maximum(np.abs(want), size * (
        slack > 0)) + 2.0**-24 * (out == "f16")
    off = np.abs(got - want)
    wrong = ~(off <= allowed)
    if wrong.any():
        at = tuple(int(i) for i in np.unravel_index(np.argmax(np.where(wrong, off / np.maximum(allowed, 1e-300), -1)),
                                                    want.shape))
        raise AssertionError(f"{wrong.sum()} of {wrong.size} elements are off, most {list(at)}: {got[at]} instead of "
                             f"{want[at]}, where {np.broadcast_to(allowed, want.shape)[at]:.3g} is allowed")


def result(on: Any, case: Case, *shape: int) -> Placed | None:
    """What `out` is."""
    return put(on, case, "out", case["out"], *shape, values="whole") if case.get("given") else None


def ended(on: Any, got: Any, **placed: Placed | None) -> Any:
    """The results as arrays of the host's, once nothing else has been written to."""
    on.finish()
    for name, x in placed.items():
        if x is not None:
            x.check(name, written=name.startswith("out"))
    return tuple(map(on.back, got)) if isinstance(got, tuple) else on.back(got)


def there(x: Placed | None) -> Any:
    return None if x is None else x.there


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


def draw_product(rng: Random, f: Case) -> Case:
    case = sizes(rng, f, 130 if f["lead"] else 600)
    lead = [rng.choice([1, 2, 3, 17]) for _ in range(f["lead"])]
    return case | {"lead": lead, "shared": rng.choice(["", "", "a", "b"]), "given": rng.random() < 0.5,
                   "alpha": rng.choice([1, 1, 1, 2, -1]), "beta": rng.choice([0, 0, 1, 2])}


def operands(on: Any, case: Case) -> tuple[Placed, Placed]:
    lead, shared = case.get("lead") or [], case.get("shared", "")
    return (put(on, case, "a", case["a"], *lead * ("a" not in shared), case["m"], case["k"]),
            put(on, case, "b", case["b"], *lead * ("b" not in shared), case["k"], case["n"]))


def exact(case: Case, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The product, and that of absolute values."""
    return a @ b, np.abs(a) @ np.abs(b)


@kind(of_products, draw_product)
def products(on: Any, case: Case) -> None:
    """matmul and, with beta, gemm: formats, strides, batches."""
    a, b = operands(on, case)
    want, size = exact(case, a.numbers, b.numbers)
    out = result(on, case, *want.shape)
    alpha, beta = case["alpha"], case["beta"] if out is not None else 0
    if beta:
        got = tw.gemm(alpha, a.there, b.there, beta, out.there)
        want, size = alpha * want + beta * out.numbers, abs(alpha) * size + abs(beta * out.numbers)
    else:
        got = tw.matmul(a.there, b.there, there(out), alpha=alpha, out_dtype=case["out"])
        want, size = alpha * want, abs(alpha) * size
    close(ended(on, got, a=a, b=b, out=out), want, size, case["k"], case["sums"], case["out"])


@kind(of_products, draw_product)
def vectors(on: Any, case: Case) -> None:
    """Matrices by vectors, and batches of them."""
    a = put(on, case, "a", case["a"], *case["lead"], case["m"], case["k"])
    x = place(on, numbers(case["b"], (case["k"],), case["values"], case["data"] + 1), shift=case["in_b"]["shift"],
              step=case["in_b"]["step"])
    got = ended(on, tw.matmul(a.there, x.there, out_dtype=case["out"]), a=a, x=x)
    close(got, *exact(case, a.numbers, x.numbers), case["k"], case["sums"], case["out"])


def of_terms(rng: Random) -> Case:
    algorithm = rng.choice(["bf16_bf16_f32_x3", "bf16_bf16_f32_x6", "bf16_bf16_f32_x9", "tf32_tf32_f32_x3",
                            "tf32_tf32_f32", "fastest"])
    return plain(rng) | {"a": "f32", "b": "f32", "out": "f32", "lead": 0, "algorithm": algorithm, "few": 0.1}


@kind(of_terms, draw_product)
def terms(on: Any, case: Case) -> None:
    """f32 by the splits that `algorithm` names."""
    a, b = operands(on, case)
    out = result(on, case, case["m"], case["n"])
    got = tw.matmul(a.there, b.there, there(out), algorithm=case["algorithm"])
    slack = {"tf32_tf32_f32": 2.0**-10, "bf16_bf16_f32_x3": 3 * 2.0**-16}.get(case["algorithm"], 2.0**-20)
    close(ended(on, got, a=a, b=b, out=out), *exact(case, a.numbers, b.numbers), case["k"], "f32", "f32", slack)


@kind(lambda rng: plain(rng) | {"a": (x := rng.choice(["f32", "bf16", "f64", "f16"])), "b": x, "out": x, "lead": 0},
      draw_product)
def invariant(on: Any, case: Case) -> None:
    """batch_invariant: some rows have the bits that they have among all."""
    a, b = operands(on, case)
    some = slice(case["m"] // 3, case["m"] // 3 + max(case["m"] // 2, 1))
    rows = place(on, a.numbers[some].astype(formats.FORMATS[case["a"]].dtype), shift=case["in_out"]["shift"],
                 pad=case["in_out"]["pad"])
    whole, part = (ended(on, tw.matmul(x.there, b.there, batch_invariant=True), a=x, b=b) for x in (a, rows))
    close(whole, *exact(case, a.numbers, b.numbers), case["k"], case["a"], case["out"])
    assert np.array_equal(whole[some], part), "rows have other bits alone"


# ---- epilogues and prologues

EPILOGUES: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    # ours, the same of float64, and operands beside the sums
    "bias": (lambda acc, row: acc + row, lambda acc, row: acc + row, "row"),
    "relu": (lambda acc, row, full: tw.relu(acc + row) - full, lambda acc, row, full: np.maximum(acc + row, 0) - full,
             "row full"),
    "columns": (lambda acc, column, scalar: acc * column + scalar, lambda acc, column, scalar: acc * column + scalar,
                "column scalar"),
    "two": (lambda acc, row: (acc + row, acc - row), lambda acc, row: (acc + row, acc - row), "row"),
    "clamp": (lambda acc, full: tw.clamp(acc, -9, 9) + full, lambda acc, full: np.clip(acc, -9, 9) + full, "full"),
    "rows": (lambda acc: (acc * 2, tw.row_max(acc), tw.row_sum(acc)),
             lambda acc: (acc * 2, acc.max(-1), acc.sum(-1)), ""),
    "reduced": (lambda acc, row: (tw.row_amax(acc + row), tw.column_min(acc + row)),
                lambda acc, row: (np.abs(acc + row).max(-1), (acc + row).min(-2)), "row"),
    "pairs": (lambda acc: (lambda x: tw.relu(x[0]) + x[1])(tw.pairs(acc)),
              lambda acc: np.maximum(acc[..., ::2], 0) + acc[..., 1::2], ""),
}


def of_epilogues(rng: Random) -> Case:
    return of_products(rng) | {"a": (x := rng.choice(FLOATS)), "b": x, "sums": x, "epilogue": rng.choice([*EPILOGUES]),
                               "out": "f64" if x == "f64" else rng.choice(["f32", x]),
                               "beside": "f64" if x == "f64" else rng.choice(["f32", x])}


def beside(on: Any, case: Case, lead: list[int], m: int, n: int) -> dict[str, Placed]:
    shapes = {"row": (n,), "column": (m, 1), "full": (*lead, m, n), "scalar": (1, 1)}
    found = {}
    for name in EPILOGUES[case["epilogue"]][2].split():
        how = {"shift": case["in_out"]["shift"], "pad": case["in_a"]["pad"] * (len(shapes[name]) > 1)}
        found[name] = place(on, numbers(case["beside"], shapes[name], "whole", case["data"] + len(name)), **how)
    return found


@kind(of_epilogues, draw_product)
def epilogues(on: Any, case: Case) -> None:
    """Functions after the product: operands, several results, reductions, pairs."""
    if case["epilogue"] in ("rows", "reduced") and 0 in (case["m"], case["n"]):
        return
    if case["epilogue"] == "pairs":
        case = case | {"n": case["n"] + case["n"] % 2}
    a, b = operands(on, case)
    given = beside(on, case, case["lead"], case["m"], case["n"])
    ours, theirs, _ = EPILOGUES[case["epilogue"]]
    product, size = exact(case, a.numbers, b.numbers)
    want = theirs(case["alpha"] * product, **{name: x.numbers for name, x in given.items()})
    want = want if isinstance(want, tuple) else (want,)
    out = result(on, case, *want[0].shape) if len(want) == 1 else None
    kept = (case["out"],) * len(want) if case["epilogue"] == "two" else case["out"] if len(want) == 1 else None
    got = tw.matmul(a.there, b.there, there(out), alpha=case["alpha"], epilogue=ours,
                    out_dtype=None if out is not None else kept,
                    operands={name: x.there for name, x in given.items()} or None)
    got = ended(on, got, a=a, b=b, out=out, **given)
    most = 3 * abs(case["alpha"]) * size.max(initial=0) + 12
    for x, y in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
        reduced = y.ndim < want[0].ndim or y.shape != want[0].shape
        stored = formats.get(x.dtype).name
        close(x, y, most * (case["n"] + case["m"] if reduced else 1), case["k"], case["sums"], stored)


PROLOGUES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "relu": (tw.relu, lambda x: np.maximum(x, 0)), "scaled": (lambda x: x * 0.5, lambda x: x * 0.5),
    "shifted": (lambda x: x - 1.0, lambda x: x - 1.0)}


def of_prologues(rng: Random) -> Case:
    return of_products(rng) | {"a": (x := rng.choice(["f32", "bf16", "bf16", "f16"])), "b": x, "sums": x, "lead": 0,
                               "out": "f32", "prologue": rng.choice([*PROLOGUES]), "on": rng.choice(["a", "b", "ab"])}


@kind(of_prologues, draw_product)
def prologues(on: Any, case: Case) -> None:
    """Functions of operands before the product."""
    a, b = operands(on, case)
    ours, theirs = PROLOGUES[case["prologue"]]
    got = tw.matmul(a.there, b.there, out_dtype="f32", **{f"prologue_{role}": ours for role in case["on"]})
    x, y = (theirs(z.numbers) if role in case["on"] else z.numbers for role, z in zip("ab", (a, b)))
    close(ended(on, got, a=a, b=b), *exact(case, x, y), case["k"], case["sums"], "f32",
          2.0**-7 if case["values"] == "normal" and case["prologue"] == "shifted" and case["a"] != "f32" else 0.0)


# ---- contractions

SEMIRINGS: dict[str, tuple[Callable[..., Any], str, Callable[..., Any]]] = {
    "shortest": (lambda x, y: x + y, "min", lambda x, y: (x + y).min(-1)),
    "widest": (lambda x, y: tw.minimum(x, y), "max", lambda x, y: np.minimum(x, y).max(-1)),
    "distance": (lambda x, y: (x - y) * (x - y), "sum", lambda x, y: ((x - y) ** 2).sum(-1)),
    "nearest": (lambda x, y: (x - y) * (x - y), "argmin", lambda x, y: ((x - y) ** 2).argmin(-1))}


def of_contract(rng: Random) -> Case:
    return plain(rng) | {"a": (x := rng.choice(["f32", "f32", "f64"])), "b": x, "out": x, "lead": 0,
                         "semiring": rng.choice([*SEMIRINGS])}


@kind(of_contract, lambda rng, f: sizes(rng, f, 130) | {"values": "whole"})
def contract(on: Any, case: Case) -> None:
    if not case["k"]:
        return
    a, b = operands(on, case)
    f, reduce, theirs = SEMIRINGS[case["semiring"]]
    got = ended(on, tw.contract(f, a.there, b.there, reduce=reduce), a=a, b=b)
    want = np.array([theirs(x, b.numbers.T) for x in a.numbers]).reshape(case["m"], case["n"])
    assert np.array_equal(got, want), f"{(got != want).sum()} of {want.size} elements are wrong"


TEXTS = ("ij,jk->ik", "ij,kj->ik", "ij,jk->ki", "bij,bjk->bik", "bij,jk->bki", "xyk,kn->nxy", "abc,dca->bd", "i,j->ij",
         "ij,j->i", "bi,bi->b", "abij,abjk->abik", "ijk,jil->kl", "ia,ib->abi")


def draw_einsum(rng: Random, f: Case) -> Case:
    letters = sorted(set(f["text"]) - set(",->"))
    small = len(letters) > 3
    lengths = {x: rng.choice([1, 2, 3, 5, 8, 16, 17] if small else [1, 2, 5, 16, 31, 64, 65, 129]) for x in letters}
    return sizes(rng, f) | {"lengths": lengths}


@kind(lambda rng: plain(rng) | {"a": (x := rng.choice([*FLOATS, "c64"])), "out": x, "text": rng.choice(TEXTS)},
      draw_einsum)
def einsum(on: Any, case: Case) -> None:
    """einsum, and tensordot of the same axes."""
    inputs, output = case["text"].split("->")
    parts = inputs.split(",")
    a, b = (put(on, case | {f"in_{name}": case[f"in_{name}"] if len(part) > 1 else {}}, name, case["a"],
                *(case["lengths"][x] for x in part)) for name, part in zip("ab", parts))
    got = ended(on, tw.einsum(case["text"], a.there, b.there), a=a, b=b)
    k = int(np.prod([n for x, n in case["lengths"].items() if x not in output]))
    want = np.einsum(case["text"], a.numbers, b.numbers)
    bound = np.einsum(case["text"], np.abs(a.numbers), np.abs(b.numbers))
    close(got, want, bound, k, case["a"], case["a"])
    shared = [x for x in parts[0] if x in parts[1]]
    if not any(x in output for x in shared):
        axes = [[part.index(x) for x in shared] for part in parts]
        got = ended(on, tw.tensordot(a.there, b.there, axes), a=a, b=b)
        close(got, np.tensordot(a.numbers, b.numbers, axes), np.tensordot(np.abs(a.numbers), np.abs(b.numbers), axes),
              k, case["a"], case["a"])


# ---- batches of small matrices, and complex ones


def of_small(rng: Random) -> Case:
    return plain(rng) | {"a": (x := rng.choice(["f32", "f64", "bf16", "c64", "c128"])), "b": x, "sums": x, "out": x,
                         "lead": 1}


def draw_small(rng: Random, f: Case) -> Case:
    unit = min(f["unit"], 4)
    return sizes(rng, f) | {name: min(-(-rng.randint(1, 32) // unit) * unit, 32) for name in "mnk"} | {
        "lead": [rng.choice([1, 2, 7, 131, 300])], "shared": rng.choice(["", "", "b"]), "given": rng.random() < 0.5,
        "alpha": rng.choice([1, 2]), "beta": rng.choice([0, -1])}


KINDS["small"] = Kind(of_small, draw_small, products)
KINDS["complex"] = Kind(lambda rng: of_small(rng) | {"a": (x := rng.choice(["c64", "c64", "c128"])), "b": x, "sums": x,
                                                     "out": x, "lead": rng.choice([0, 0, 1])}, draw_product, products)


def nibbles(on: Any, x: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, group: int, how: Case) -> tuple[
        Scaled, np.ndarray, list[Placed]]:
    """i4 (or u4 with zero points), two to a byte along the last axis of x [..., n, k], however long that is."""
    k, signed = x.shape[-1], zeros is None
    halves = np.pad(x.astype(np.int8) & 15, [*[(0, 0)] * (x.ndim - 1), (0, k % 2)]).astype(np.uint8)
    parts = [place(on, halves[..., ::2] | halves[..., 1::2] << 4, **how), place(on, scales, **how)]
    if zeros is not None:
        parts.append(place(on, zeros, **how))
    wide = np.repeat(scales, group or k, -1)[..., :k].astype(np.float64)
    below = 0 if zeros is None else np.repeat(zeros, group or k, -1)[..., :k].astype(np.float64)
    q = Scaled(parts[0].there, parts[1].there, parts[2].there if zeros is not None else None, group if (
        scales.shape[-1] > 1) else 0, Nibbles("i4" if signed else "u4", -1, k))
    return q, (x - below) * wide, parts
