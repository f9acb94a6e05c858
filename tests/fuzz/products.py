"""Products on CPUs: formats, shapes, strides, scalars, results, threads and plans at random, between guard pages.

Operands and results lie beside pages that cannot be touched, with canaries between their elements. A result is held
against integers modulo 2^64 or long double (tests/oracles/product.py); `matmul(a, b, out=o)` must be what
`o[...] = matmul(a, b)` is, so that the dtype of a result is NumPy's, and o's only afterwards.
"""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

import tilewright as tw
from tests.fuzz import memory
from tests.fuzz.driver import Case, Fuzzer
from tests.fuzz.memory import Placed
from tests.fuzz.values import KINDS, numbers
from tests.oracles import product as oracle
from tests.oracles.product import Product
from tilewright import formats
from tilewright.formats import FORMATS, Complex, Float
from tilewright.runtime.cpu import recipe
from tilewright.targets import detect

COMMON = ("f32", "f32", "f32", "f64", "f64", "bf16", "f16", "i8", "u8", "i32", "c64")
SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 15, 16, 17, 19, 23, 31, 32, 33, 37, 47, 49, 63, 64, 65, 97, 127, 129)
LONG = (255, 257, 300, 383, 511, 1025)
MOST = 300_000  # multiply-adds: a little more than what makes packing convert operands, 64^3
ALGORITHMS = {"bf16_bf16_f32_x3": 3 * 2.0**-16, "bf16_bf16_f32_x6": 2.0**-23, "bf16_bf16_f32_x9": 0.0,
              "bf16_bf16_f32_x4": 0.0, "fastest": 2.0**-23}
ALGORITHMS_ROUND = 20 * 2.0**-24
PAIRS = ("bf16", "e4m3fn", "e4m3fnuz", "e5m2", "i8", "u8")  # that instructions may multiply as pairs of bf16


def draw(rng: Random) -> Case:
    a = rng.choice(COMMON) if rng.random() < 0.6 else rng.choice([*FORMATS])
    b = a if rng.random() < 0.6 else rng.choice([*FORMATS])
    m, n, k = _sizes(rng)
    vector = rng.choice(["", "", "", "", "", "", "", "a", "b", "ab"])
    lead = [] if rng.random() < 0.7 else [rng.choice([1, 2, 3, 5]) for _ in range(rng.choice([1, 1, 2]))]
    kind = rng.choice(KINDS)
    case: Case = {"call": rng.choice(["matmul", "matmul", "matmul", "gemm"]), "a": a, "b": b, "m": m, "n": n, "k": k,
                  "vector": vector, "lead_a": _lead(rng, lead) if "a" not in vector else [],
                  "lead_b": _lead(rng, lead) if "b" not in vector else [], "kind": kind,
                  "data": rng.randrange(2**31), "threads": rng.choice([1, 1, 1, 2, 3, 5]),
                  "eager": rng.random() < 0.3, "overlap": rng.random() < 0.05}
    case["trans"] = "".join(rng.choice("nnntc" if side not in vector else "n") for side in "ab")
    whole = kind == "whole"
    case["alpha"], case["beta"] = rng.choice([1, 1, 1, 1, 2, -1, 0, -3] + ([] if whole else [0.5, -2.5, 1e-3])), 0
    if rng.random() < 0.08:  # text, since a case is written down
        case["alpha"] = rng.choice(["inf", "-inf", "nan", "1e39", "1e25", "1e-30", "-1e300", "1e-46"])
    case["out"] = None if rng.random() < 0.4 else "result" if rng.random() < 0.6 else rng.choice([*FORMATS])
    case["out_dtype"] = rng.choice([*FORMATS]) if rng.random() < 0.15 and case["call"] == "matmul" else None
    case["c"] = None
    if case["call"] == "gemm" or rng.random() < 0.15:
        case["c"] = a if rng.random() < 0.5 else rng.choice([*FORMATS])
        case["beta"] = rng.choice([1, 0, -1, 2] + ([] if whole else [0.25, -1.5]))
        if rng.random() < 0.1:
            case["beta"] = rng.choice(["inf", "nan", "1e39", "1e20", "-1e-30"])
    if all(f is None or oracle.is_whole(FORMATS[f].dtype) for f in (a, b, case["c"], case["out_dtype"])):
        large = [3, 2**31, -(2**31), 2**32 + 5, 2**63, 2**64 - 1, -(3**50), True]
        case["alpha"], case["beta"] = (x if isinstance(x, int) else rng.choice(large)
                                       for x in (case["alpha"], case["beta"]))
    for name, axes in ("a", len(case["lead_a"]) + 2 - ("a" in vector)), ("b", len(case["lead_b"]) + 2 - (
            "b" in vector)), ("out", max(len(case["lead_a"]), len(case["lead_b"])) + 2 - len(vector)):
        case[f"in_{name}"] = memory.draw(rng, axes, broadcast=name != "out")
    case["plan"] = plan(rng, case) if rng.random() < 0.25 else None
    case["packed"] = case["plan"] is None and not vector and rng.random() < 0.06
    case["algorithm"] = None
    if case["plan"] is None and not case["packed"] and (a, b) in (("f32", "f32"), ("f16", "f16")) and (
            rng.random() < 0.1):
        case["algorithm"] = "fastest" if rng.random() < 0.3 else "bf16_bf16_f32_x4" if a == "f16" else rng.choice(
            [*ALGORITHMS][:3])
    return case


def _sizes(rng: Random) -> tuple[int, int, int]:
    while True:
        sizes = [rng.choice(SIZES) for _ in range(3)]
        if rng.random() < 0.1:
            sizes[rng.randrange(3)] = rng.choice(LONG)
        if rng.random() < 0.05:
            sizes = [rng.choice([64, 65, 66, 67]) for _ in range(3)]
        if sizes[0] * sizes[1] * sizes[2] <= MOST:
            return sizes[0], sizes[1], sizes[2]


def _lead(rng: Random, lead: list[int]) -> list[int]:
    own = [n if rng.random() < 0.8 else 1 for n in lead]
    return own[rng.choice([0, 0, 0, len(own)]):]


def plan(rng: Random, case: Case) -> str:
    """The text of a plan, which may not be legal: then it must be refused."""
    lanes = detect().lanes(8 if case["a"] in ("f64", "c128", "i64") else 4)
    algorithm = rng.choice(["packed", "packed", "in_place", "in_place", "stream", "dots"])
    mr, nr = rng.choice([1, 2, 4, 6]), lanes * rng.choice([1, 1, 2, 2, 3])
    swap = rng.random() < 0.3
    if algorithm == "stream":
        mr, nr = min(case["n" if swap else "m"], 12), rng.choice([1, 2, 4])
    if algorithm == "dots":
        mr, nr = rng.choice([1, 2, 3]), min(case["m" if swap else "n"], 6)
        tile = rng.random() < 0.4
        mr, nr = (rng.choice([2, 3, 4]), rng.choice([1, 3, 4])) if tile else (mr, nr)
    text = f"{algorithm} {mr}x{nr}"
    if algorithm == "packed":
        text += f" mc={mr * rng.choice([1, 2, 5])} kc={rng.choice([1, 2, 4, 5, 16, 64])} nc={nr * rng.choice([1, 3])}"
    elif algorithm == "dots" and tile:
        text += f" kc={rng.choice([1, 8, 40, 100])}"
    elif algorithm == "in_place" and rng.random() < 0.4:
        text += f" kc={rng.choice([1, 3, 8, 40])}"
    if rng.random() < 0.3:
        ways = [1, 1, 1]
        ways[{"stream": 0, "dots": 1}.get(algorithm, rng.randrange(3 if algorithm == "packed" else 2))] = (
            rng.choice([2, 3]))
        text += " ways=" + "x".join(map(str, ways))
    return text + " swap" * swap + " copy" * (rng.random() < 0.2)


# ---- checking


class Skip(Exception):
    """A combination that NumPy refuses as well."""


def check(case: Case) -> None:
    saved = recipe.FORK_FLOPS, recipe.WAKE_FLOPS
    if case["eager"]:  # threads for the smallest of products
        recipe.FORK_FLOPS = recipe.WAKE_FLOPS = 0
    try:
        _check(case)
    except Skip:
        pass
    finally:
        recipe.FORK_FLOPS, recipe.WAKE_FLOPS = saved


def _check(case: Case) -> None:
    gemm = case["call"] == "gemm"
    a, b = (_operand(case, name) for name in "ab")
    multiplied = [_as_multiplied(x.array, flag) for x, flag in zip((a, b), case["trans"])]
    shape = _shape(case)
    result = _result(case)
    c = None
    if case["c"] is not None and not gemm:
        c = Placed.of(numbers(case["c"], shape, case["kind"], case["data"] + 2), **case["in_out"], noise=3)
    out = None
    if gemm:
        out = Placed.of(numbers(case["c"], shape, case["kind"], case["data"] + 2), **case["in_out"], noise=4)
    elif case["out"] is not None:
        dtype = result if case["out"] == "result" else FORMATS[case["out"]].dtype
        dtype = dtype if case["out_dtype"] is None else result
        out = Placed.of(np.zeros(shape, dtype), **case["in_out"], noise=4)
    if out is not None and not _castable(result, out.array.dtype):
        raise Skip
    chain = [result] + ([] if out is None else [out.array.dtype.newbyteorder("=")])
    if case["overlap"] and out is not None and out.array.dtype == a.array.dtype and out.array.nbytes <= a.array.nbytes:
        a = _over(out, a)
        multiplied[0] = _as_multiplied(a.array, case["trans"][0])
    x, y = (_native(m) for m in multiplied)
    if case["packed"] and "c" in (x.dtype.kind, y.dtype.kind):  # what is packed for complex numbers consists of them
        x, y = x.astype(result), y.astype(result)
    added = None if c is None else _native(c.array)
    if gemm:
        added = _native(out.array)
    tall, wide = x if x.ndim > 1 else x[None], y if y.ndim > 1 else y[:, None]
    want = Product(tall, wide, _matrices(added, case), *(_number(case[name]) for name in ("alpha", "beta")),
                   case["kind"] == "whole", _flushes(case), *_by_algorithm(case))
    got = _call(case, a.array, b.array, c, out, result)
    if got is None:  # a plan that was refused
        if out is not None:
            out.untouched("out, which was refused,")
        return
    if out is not None:
        assert got is out.array, "it is not out that is returned"
        out.untouched("out's surroundings", elements=False)
    for name, placed in ("a", a), ("b", b), ("c", c):
        if placed is not None and not (out is not None and placed.raw is out.raw):
            placed.untouched(name)
    assert got.shape == shape, f"the shape is {got.shape} and not {shape}"
    assert got.dtype.newbyteorder("=") == chain[-1], f"the dtype is {got.dtype} and not {chain[-1]}"
    want.check(_matrices(_native(np.asarray(got)), case), *dict.fromkeys(chain))


def _call(case: Case, a: Any, b: Any, c: Placed | None, out: Placed | None, result: np.dtype) -> Any:
    options: dict[str, Any] = {"threads": case["threads"]} if case["threads"] > 1 or case["plan"] else {}
    for name, flag in zip("ab", case["trans"]):
        if flag != "n":
            options[f"trans_{name}"] = flag
    for name in ("plan", "algorithm"):
        if case[name] is not None:
            options[name] = case[name]
    if case["plan"] is not None:
        from tilewright.plans.cpu import CpuPlan

        options["plan"] = CpuPlan.parse(case["plan"])
    try:
        if case["packed"]:
            b = tw.pack(b, a=a.dtype.newbyteorder("="), **({"trans_b": options.pop("trans_b")} if "trans_b" in options
                                                           else {}))
        if case["call"] == "gemm":
            assert out is not None
            return tw.gemm(_number(case["alpha"]), a, b, _number(case["beta"]), out.array, **options)
        for name, default in ("alpha", 1), ("beta", 0):
            if case[name] != default:
                options[name] = _number(case[name])
        if c is not None:
            options["c"] = c.array
        if case["out_dtype"] is not None:
            options["out_dtype"] = case["out_dtype"]
        return np.asanyarray(tw.matmul(a, b, out=None if out is None else out.array, **options))
    except (ValueError, TypeError) as error:
        refusals = ["cannot run", "plan"] * (case["plan"] is not None) + ["packed"] * case["packed"] + [
            "splits"] * (case["algorithm"] is not None) + ["no common dtype"]
        if any(word in str(error) for word in refusals):
            return None
        raise


def _operand(case: Case, name: str) -> Placed:
    sizes = [case["m"], case["k"]] if name == "a" else [case["k"], case["n"]]
    if name in case["vector"]:
        sizes = [case["k"]]
    if case["trans"]["ab".index(name)] != "n":
        sizes = sizes[::-1]
    shape = (*case[f"lead_{name}"], *sizes)
    return Placed.of(numbers(case[name], shape, case["kind"], case["data"] + (name == "b")), **case[f"in_{name}"])


def _as_multiplied(x: np.ndarray, flag: str) -> np.ndarray:
    if flag == "n":
        return x
    turned = x.swapaxes(-1, -2)
    return turned.conj() if flag == "c" and x.dtype.kind == "c" else turned


def _native(x: np.ndarray) -> np.ndarray:
    return np.array(x, x.dtype.newbyteorder("="), order="C")


def _number(x: Any) -> Any:
    return float(x) if isinstance(x, str) else x


def _shape(case: Case) -> tuple[int, ...]:
    lead = np.broadcast_shapes(tuple(case["lead_a"]), tuple(case["lead_b"]))
    return (*lead, *[case["m"]] * ("a" not in case["vector"]), *[case["n"]] * ("b" not in case["vector"]))


def _matrices(x: np.ndarray | None, case: Case) -> np.ndarray | None:
    """With the axes that vectors take away."""
    if x is None:
        return None
    lead = np.broadcast_shapes(tuple(case["lead_a"]), tuple(case["lead_b"]))
    return x.reshape(*lead, case["m"] if "a" not in case["vector"] else 1, case["n"] if "b" not in case["vector"]
                     else 1)


def _result(case: Case) -> np.dtype:
    """The dtype of the result, as the documentation has it; Skip where there is none."""
    a, b = (FORMATS[case[name]].dtype for name in "ab")
    c = [] if case["c"] is None else [FORMATS[case["c"]].dtype]
    try:
        meeting = np.result_type(np.matmul(np.empty((1, 0), a), np.empty((0, 1), b)).dtype, *c)
    except TypeError:
        meeting = None
    if case["out_dtype"] is None and meeting is None and case["call"] == "matmul":
        raise Skip  # a TypeError that says so: tests/api/test_every_format.py
    common = formats.promote(a, b, *c) if meeting is None else formats.get(meeting)
    if case["out_dtype"] is None:
        return common.dtype
    wanted = FORMATS[case["out_dtype"]]
    if _kind(wanted) < _kind(common):
        raise Skip
    return wanted.dtype


def _kind(f: formats.Format) -> int:
    return 3 if isinstance(f, Complex) else 2 if isinstance(f, Float) else int(isinstance(f, formats.Integer))


def _castable(result: np.dtype, out: np.dtype) -> bool:
    if _kind(formats.get(result)) > _kind(formats.get(out)):  # which NumPy allows for some formats of ml_dtypes
        return False
    return bool(np.can_cast(result, out, "same_kind"))


def _flushes(case: Case) -> bool:
    """Whether the machine may multiply these as pairs of bf16, which flush subnormal numbers."""
    some = {"avx512bf16", "amx-bf16"} & set(detect().extensions)
    return bool(some) and case["a"] in PAIRS and case["b"] in PAIRS


def _by_algorithm(case: Case) -> list[float]:
    return [] if case["algorithm"] is None else [ALGORITHMS[case["algorithm"]] + ALGORITHMS_ROUND]


def _over(out: Placed, a: Placed) -> Placed:
    """An operand in out's own memory, where there is room for it; else as it is."""
    values = _native(a.array)
    room = out.raw.size // values.itemsize
    if values.size > room or not out.array.dtype.isnative or out.raw.ctypes.data % values.itemsize:
        return a
    array = out.raw[: values.nbytes].view(values.dtype).reshape(values.shape)
    array[...] = values
    out.before[...] = out.raw
    return Placed(array, out.raw, out.before, out.own)


PLAIN: Case = {"plan": None, "algorithm": None, "packed": False, "eager": False, "overlap": False, "threads": 1,
               "lead_a": [], "lead_b": [], "alpha": 1, "beta": 0, "out_dtype": None, "in_a": {}, "in_b": {},
               "in_out": {}, "trans": "nn", "kind": "whole", "m": 1, "n": 1, "k": 1, "out": None}
FUZZER = Fuzzer("products", draw, check, PLAIN, share=4)
