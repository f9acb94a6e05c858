"""The promises of docs/reproducibility.md: the bits of an element by other threads, rows, groups and memory.

A case makes one call for all rows, and one for some of them, which lie elsewhere in memory in another order, by another
number of threads; the elements of these rows must have the same bits. With `deterministic` only threads differ.
"""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

import tilewright as tw
from tests.fuzz import memory
from tests.fuzz.driver import Case, Fuzzer
from tests.fuzz.memory import Placed
from tests.fuzz.values import numbers
from tilewright.runtime.cpu import recipe

FORMATS = ("f32", "f32", "f32", "f64", "bf16", "bf16", "f16", "c64", "c128", "e4m3fn", "i8")
ROWS = (1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 17, 31, 33, 47, 63, 64, 65, 96, 130, 200)
OTHERS = (1, 2, 3, 7, 8, 15, 16, 17, 32, 33, 48, 64, 65, 96, 129, 260)
STEPS = (1, 2, 3, 7, 8, 16, 17, 32, 33, 64, 65, 96, 127, 256, 300, 400, 513, 1100)
MOST = 4_000_000                # multiply-adds
WEIGHTS = ("i8", "i4", "u4", "mxfp8", "mxfp4", "nvfp4")
ENTRIES = ("matmul", "matmul", "matmul", "gemm", "batch", "weights", "packed", "prologue", "contract", "einsum",
           "einsum", "chain", "tensordot", "grouped", "grouped", "grouped_k")
# Axes of the first operand alone and of batches are upper-case, and vary.
SUBSCRIPTS = ("Ij,jk->Ik", "Ij,jk->kI", "jI,jk->Ik", "Ij,kj->Ik", "IJk,kl->IJl", "IkJ,kl->IlJ", "Bij,Bjk->Bik",
              "Bij,jk->Bik", "IjK,jlK->IlK", "Ijk,kjl->Il", "Ijk,jkl->lI", "Ij,j->I", "BIj,Bj->BI", "Ijk,klj->lI",
              "B,B->B", "Ij,k->Ijk", "BIjk,Bjlk->BIl")
CHAINS = ("Ij,jk,kl->Il", "Ij,jk,kl->lI", "BIj,Bjk,kl->BIl", "Ij,jkl,lm->Ikm")


def draw(rng: Random) -> Case:
    while True:
        m, n, k = rng.choice(ROWS), rng.choice(OTHERS), rng.choice(STEPS)
        if m*n*k <= MOST:
            break
    a = rng.choice(FORMATS)
    case: Case = {
        "entry": rng.choice(ENTRIES), "promise": rng.choice(["deterministic", *["batch_invariant"]*3]),
        "a": a, "b": a if rng.random() < 0.7 else rng.choice(FORMATS), "m": m, "n": n, "k": k,
        "begin": rng.randrange(m), "rows": rng.choice([1, 2, 3, 6, 9, 20, 64, m]),
        "threads": rng.choices([1, 2, 3], k=2), "eager": rng.random() < 0.5,
        "trans": rng.choice(["nn", "nn", "nt", "tn", "tt"]),
        "in_a": memory.draw(rng, 2, broadcast=False), "in_b": memory.draw(rng, 2, broadcast=False),
        "in_part": memory.draw(rng, 2, broadcast=False), "outs": rng.choices(["", "", "rows", "columns", "steps"], k=2),
        "vector": rng.random() < 0.3, "reduce": rng.choice(["sum", "max", "logsumexp"]), "data": rng.randrange(2**31),
        "epilogue": rng.choice([None, None, None, "bias", "sum", "full", "max"]),
        "out_dtype": rng.choice([None, None, None, "f32", "f64", "bf16"]), "scales": rng.random() < 0.15,
        "alpha": rng.choice([1, 1, 1, -2.5]), "weights": rng.choice(WEIGHTS),
        "subscripts": rng.choice(SUBSCRIPTS), "chain": rng.choice(CHAINS),
        "cuts": sorted(rng.choices(range(m + 1), k=3)), "order": rng.choice(["C", "F", "K"])}
    return case


def check(case: Case) -> None:
    saved = recipe.FORK_FLOPS, recipe.WAKE_FLOPS
    if case["eager"]:  # threads for the smallest of products
        recipe.FORK_FLOPS = recipe.WAKE_FLOPS = 0
    try:
        {"grouped": _groups, "grouped_k": _groups_of_k, **dict.fromkeys(("einsum", "chain", "tensordot"), _contraction)
         }.get(case["entry"], _rows)(case)
    finally:
        recipe.FORK_FLOPS, recipe.WAKE_FLOPS = saved


def same(got: Any, want: Any) -> None:
    """Equal bits, of several results too."""
    for x, y in zip(*(each if isinstance(each, tuple) else (each,) for each in (got, want)), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        left, right = (np.frombuffer(each.tobytes(), np.uint8).reshape(*x.shape, x.itemsize) for each in (x, y))
        bad = np.argwhere((left != right).any(-1)).tolist()
        assert not bad, f"{len(bad)} of {x.size} elements have other bits, the first at {bad[0]}"


def placed(x: np.ndarray, how: dict[str, Any], turned: bool = False) -> np.ndarray:
    """The matrix, or its transpose, elsewhere in memory."""
    return Placed.of(np.ascontiguousarray(x.T if turned else x), **how).array


# ---- rows of a product


def _rows(case: Case) -> None:
    m, n, k, threads = case["m"], case["n"], case["k"], case["threads"]
    a, b = numbers(case["a"], (m, k), "normal", case["data"]), numbers(case["b"], (k, n), "normal", case["data"] + 1)
    part = slice(case["begin"], min(case["begin"] + case["rows"], m))
    in_b: Any = placed(b, case["in_b"], case["trans"][1] == "t")
    if case["entry"] == "weights":
        values = np.ascontiguousarray(b.T.real, np.float32)
        in_b = tw.quantize(abs(values) if case["weights"] == "u4" else values, case["weights"], axis=-1, **(
            {} if case["weights"] in tw.formats.BLOCK_FORMATS else {"group": 32}))
    elif case["entry"] == "packed":
        in_b = tw.pack(in_b, a=a.dtype, trans_b=case["trans"][1] == "t")
    full = numbers("f32", (m, n), "normal", case["data"] + 2)
    bias, scales = full[0].copy(), (full[:, :1]**2 + 1, full[:1]**2 + 1)

    def call(rows: slice, how: dict[str, Any], turned: bool, threads: int, layout: str) -> Any:
        x = placed(a[rows], how, turned)
        options: dict[str, Any] = {"threads": threads}
        if case["entry"] != "packed":
            options[case["promise"]] = True
        if case["entry"] == "contract":
            return tw.contract(_distance, x.T if turned else x, in_b.T if case["trans"][1] == "t" else in_b,
                               reduce=case["reduce"], **options)
        if case["entry"] == "batch":
            x = np.stack([x, x[::-1]])
        options["trans_a"] = turned
        if case["entry"] != "packed":
            options["trans_b"] = case["entry"] == "weights" or case["trans"][1] == "t"
        if case["scales"] and case["entry"] in ("matmul", "packed"):
            options |= {"scale_a": scales[0][rows].T if turned else scales[0][rows],
                        "scale_b": scales[1].T if options.get("trans_b") else scales[1]}
        elif case["epilogue"] and case["entry"] in ("matmul", "gemm", "weights"):
            options |= {"epilogue": EPILOGUES[case["epilogue"]]}
            if case["epilogue"] in ("bias", "full"):
                options["operands"] = {"x": bias if case["epilogue"] == "bias" else full[rows]}
        if case["entry"] == "prologue":
            options |= {"prologue_a": _doubled, "prologue_b": _doubled}
        if case["entry"] == "gemm":
            result = np.result_type(a.dtype, b.dtype)
            c = _laid_out(full[rows].astype(result if case["out_dtype"] is None else np.float64), layout)
            return tw.gemm(case["alpha"], x, in_b, 0.5, c, **options)
        if case["out_dtype"] and not options.get("epilogue"):
            options["out_dtype"] = case["out_dtype"]
        if case["vector"] and len(x) == 1 and case["entry"] == "matmul" and not options.get("epilogue") and not turned:
            return tw.matmul(x[0], in_b, alpha=case["alpha"], **options | {"trans_a": False})[None]
        if layout and case["entry"] == "matmul" and not case["scales"] and case["epilogue"] in (None, "bias", "full"):
            options["out"] = _laid_out(tw.matmul(x, in_b, alpha=case["alpha"], **options), layout)
        return tw.matmul(x, in_b, alpha=case["alpha"], **options)

    whole, turned = slice(0, m), case["trans"][0] == "t"
    try:
        want = call(whole, case["in_a"], turned, threads[0], case["outs"][0])
    except (TypeError, ValueError):
        return                                  # formats that have no such product
    if case["promise"] == "deterministic" and case["entry"] != "packed":
        same(call(whole, case["in_a"], turned, threads[1], case["outs"][0]), want)
        return
    found = call(part, case["in_part"], not turned, threads[1], case["outs"][1])
    batch = case["entry"] == "batch"
    wants = tuple(x[:1, part] if batch else x[part] for x in (want if isinstance(want, tuple) else (want,)))
    found = found if isinstance(found, tuple) else (found,)
    same(tuple(x[:1] for x in found) if batch else found, wants)


def _laid_out(x: np.ndarray, how: str) -> np.ndarray:
    """An array with these elements: by columns, or with gaps in its rows."""
    if how == "columns":
        return np.asfortranarray(x)
    return np.repeat(x, 2, -1)[:, ::2] if how == "steps" else x


def _distance(x: Any, y: Any) -> Any: return (x - y)**2
def _doubled(x: Any) -> Any: return x*2.0


EPILOGUES = {"bias": lambda acc, x: tw.relu(acc + x), "full": lambda acc, x: acc*x + acc,
             "sum": lambda acc: (acc, tw.row_sum(acc)), "max": lambda acc: (acc, tw.row_max(acc))}


# ---- contractions


def _contraction(case: Case) -> None:
    subscripts, sizes = case["chain" if case["entry"] == "chain" else "subscripts"], Random(case["data"])
    (of_a, of_b, *of_c), output = subscripts.split("->")[0].split(","), subscripts.split("->")[1]
    size = {label: sizes.choice([1, 2, 3, 5, 8, 17]) for label in dict.fromkeys(of_a + of_b + "".join(of_c))}
    for labels, several in ([x for x in size if x not in output], [300, 700, 1100]), (
            [x for x in size if x.isupper()], [33, 64, 130]):
        if labels and sizes.random() < 0.6:
            size[sizes.choice(labels)] = sizes.choice(several)
    a = numbers(case["a"], tuple(size[x] for x in of_a), "normal", case["data"])
    b = numbers(case["b"], tuple(size[x] for x in of_b), "normal", case["data"] + 1)
    keep = {x: slice(None) for x in size}
    for x in filter(str.isupper, size):
        if case["promise"] == "batch_invariant" and sizes.random() < 0.7:
            first = sizes.randrange(size[x])
            keep[x] = slice(first, first + sizes.choice([1, 1, 2, 5, size[x]]))
    more = [numbers(case["a"], tuple(size[x] for x in of), "normal", case["data"] + 2) for of in of_c]
    some_a = a[tuple(keep[x] for x in of_a)]
    if case["promise"] == "batch_invariant":
        some_a = _elsewhere(some_a, sizes)
    options: dict[str, Any] = {case["promise"]: True}
    axes = None
    if case["entry"] == "tensordot":
        shared = [x for x in of_a if x in of_b]
        if set(shared) & set(output):
            return
        axes = [of_a.index(x) for x in shared], [of_b.index(x) for x in shared]
        output = "".join(x for x in of_a + of_b if x not in shared)

    def call(a: Any, b: Any, threads: int) -> Any:
        if axes is not None:
            return tw.tensordot(a, b, axes, threads=threads, **options)
        path = False if case["eager"] else ["einsum_path", (0, 1), (0, 1)]
        return tw.einsum(subscripts, a, b, *more, threads=threads, order=case["order"], **options,
                         optimize=path if more else True)
    b = _elsewhere(b, sizes)
    try:
        want = call(a, b, case["threads"][0])
    except (TypeError, ValueError):
        return
    some_b = b[tuple(keep[x] for x in of_b)]
    same(np.asarray(call(some_a, some_b, case["threads"][1])), np.asarray(want)[tuple(keep[x] for x in output)])


def _elsewhere(x: np.ndarray, rng: Random) -> np.ndarray:
    """A copy with its axes in another order in memory, some of them backwards, and not aligned."""
    order = rng.sample(range(x.ndim), x.ndim)
    where: dict[str, Any] = {"order": order, "shift": rng.choice([0, 0, 1, 2]) if rng.random() < 0.5 else 0,
                             "steps": [rng.choice([1, 1, 1, -1, 2]) for _ in range(x.ndim)]}
    return Placed.of(np.ascontiguousarray(x), **where).array


# ---- groups


def _groups(case: Case) -> None:
    """Rows of a group against the product of these rows alone, and against other groups."""
    m, n, k = case["m"], case["n"], case["k"]
    a = numbers(case["a"], (m, k), "normal", case["data"])
    b = numbers(case["b"], (4, k, n), "normal", case["data"] + 1)
    offsets = [*case["cuts"], m]
    options: dict[str, Any] = {case["promise"]: True}
    if case["epilogue"] in ("sum", "max"):
        options["epilogue"] = EPILOGUES[case["epilogue"]]
    want = _all_groups(case, placed(a, case["in_a"]), b, offsets, options)
    if want is None:
        return
    wants = want if isinstance(want, tuple) else (want,)
    for group, (begin, end) in enumerate(zip([0, *offsets], offsets)):
        first = min(begin + case["begin"], end)
        part = slice(first, min(first + case["rows"], end))
        rows = placed(a[part], case["in_part"])
        other = np.concatenate([rows, a[:5]])
        only = [0]*4
        only[group:] = [len(rows)]*(4 - group)
        only[3] = len(other) if group < 3 else len(rows)
        found = tw.grouped_matmul(other[:only[3]], b, only, threads=case["threads"][1], **options)
        founds = found if isinstance(found, tuple) else (found,)
        same(tuple(x[:len(rows)] for x in founds), tuple(x[part] for x in wants))
        if a.dtype.kind != "c" and b.dtype.kind != "c" and part.stop > part.start:
            same(tw.matmul(rows, b[group], threads=case["threads"][1], **options),
                 tuple(x[part] for x in wants) if len(wants) > 1 else wants[0][part])


def _all_groups(case: Case, a: np.ndarray, b: np.ndarray, offsets: list[int], options: dict[str, Any]) -> Any:
    """The product of all groups, whose parts are to have the same bits; None where it is refused, and where the promise
    is that of the same product by other threads, which is checked here."""
    try:
        want = tw.grouped_matmul(a, b, offsets, threads=case["threads"][0], **options)
    except (TypeError, ValueError):
        return None
    if case["promise"] == "deterministic":
        same(tw.grouped_matmul(a, b, offsets, threads=case["threads"][1], **options), want)
        return None
    return want


def _groups_of_k(case: Case) -> None:
    """Groups of steps of k: some rows of a, and the group alone."""
    m, n = case["m"], case["n"]
    k = max(case["k"], 4)
    a = numbers(case["a"], (m, k), "normal", case["data"])
    b = numbers(case["b"], (k, n), "normal", case["data"] + 1)
    offsets = sorted(Random(case["data"]).choices(range(k + 1), k=2)) + [k]
    options: dict[str, Any] = {case["promise"]: True}
    want = _all_groups(case, placed(a, case["in_a"]), b, offsets, options)
    if want is None:
        return
    part = slice(case["begin"], min(case["begin"] + case["rows"], m))
    same(tw.grouped_matmul(placed(a[part], case["in_part"]), b, offsets, threads=case["threads"][1], **options),
         want[:, part])
    begin, end = offsets[0], offsets[1]
    alone = tw.grouped_matmul(placed(a[part, begin:end], case["in_part"]), np.ascontiguousarray(b[begin:end]),
                              [end - begin], threads=case["threads"][1], **options)
    same(alone[0], want[1][part])


PLAIN: Case = {"eager": False, "scales": False, "epilogue": None, "out_dtype": None, "alpha": 1, "trans": "nn",
               "in_a": {}, "in_b": {}, "in_part": {}, "threads": [1, 1], "order": "K", "begin": 0, "rows": 1}
FUZZER = Fuzzer("promises", draw, check, PLAIN)
