"""A kind of random calls on a GPU (gpu_kinds.py): attention and its gradients, beside NumPy's in float64."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

import tilewright as tw
from tests.fuzz import attention
from tests.fuzz.gpu_kinds import KINDS, Case, Kind
from tests.helpers.attention import checked, expected, gradients_of
from tilewright.api import attention as api
from tilewright.plans.attention_choice import AttentionCase, planner

LENGTHS = (0, 1, 2, 3, 31, 64, 65, 111, 128, 129, 191, 192, 193, 255, 300, 517, 700, 1025)
SIZES = ((64, 64), (128, 128), (32, 32), (96, 96), (192, 128), (256, 256), (64, 160), (48, 80), (16, 112))
FEW = (1, 1, 2, 3, 7, 16)
# Of a head's result, by norms, since results are means of many values: powers and the result are rounded, those of
# e4m3fn to four bits. Of the largest |v|, for each element.
ERRORS = {"f16": (2e-3, 2e-3), "bf16": (1e-2, 1.6e-2), "e4m3fn": (1e-1, 8e-2)}
# Of gradients: of all of them by norms, and of each element beside the largest one.
GRADIENT_SIZES = ((64, 64), (128, 128), (32, 32), (96, 96), (64, 128), (128, 32))
NOTHING = 1e-4                  # of one key that a query sees: the difference of two sums, which is 0
GRADIENT_ERRORS = {"f16": (3e-3, 1e-2), "bf16": (1.5e-2, 5e-2)}


def of_attention(rng: Random) -> Case:
    """What a kernel is made for."""
    q = rng.choice(["bf16", "bf16", "f16", "e4m3fn"])
    narrow = q == "e4m3fn"
    found = {"layout": rng.choice(["plain", "plain", "plain", "padded", *["ragged", "paged"] * (not narrow)]),
            "q": q, "sizes": rng.choice(SIZES[:4] if narrow else SIZES), "few": rng.random() < 0.35,
            "causal": rng.choice([False, True, True, "upper left"]), "sinks": rng.random() < 0.2,
            "window": rng.choice([None, None, None, [50, None], [None, 30], [140, 20], [0, 0]]),
            "bias": rng.choice([None, None, None, None, "floats", "mask", "alibi", "function"]),
            "softcap": rng.choice([None, None, None, 2.0]), "page": rng.choice([5, 8, 16, 64, 128, 256]),
            "plan": rng.choice([None, None, *(rng.randrange(1000) for _ in range(2))]),
            "gradients": rng.random() < 0.4}
    if found["gradients"]:
        found |= {"q": rng.choice(["bf16", "bf16", "f16"]), "layout": rng.choice(["plain", "plain", "ragged"]),
                  "sizes": rng.choice(GRADIENT_SIZES), "bias": None, "softcap": None}
    return found


def draw(rng: Random, f: Case) -> Case:
    case = attention.draw(rng) | f
    size = (rng.choice(FEW), rng.choice(LENGTHS) * rng.choice([1, 1, 3])) if f["few"] else (
        rng.choice(LENGTHS), rng.choice(LENGTHS))
    return case | {"kv": f["q"], "queries": size[0], "keys": size[1], "group": rng.choice([1, 1, 2, 3, 4, 8]),
                   "kv_heads": rng.choice([1, 2, 3, 5]), "sequences": rng.choice([1, 1, 2, 4]),
                   "tokens_first": rng.random() < 0.4}


def check(on: Any, case: Case) -> None:
    arrays, how = attention.made(case)
    want, logs = expected(**arrays, **how)
    there = {name: placed(on, _laid(x, case["tokens_first"])) for name, x in arrays.items()}
    beside = {name: placed(on, np.asarray(x)) if isinstance(x, (np.ndarray, np.generic)) else x
              for name, x in how.items() if name != "operands"}
    if "operands" in how:
        beside["operands"] = {name: placed(on, x) for name, x in how["operands"].items()}
    plan = drawn(checked(**arrays, **how), on, case["plan"])
    out, logarithms = tw.attention(**there, **beside, return_lse=True, plan=plan)
    again = tw.attention(**there, **beside, plan=plan)
    on.finish()
    found, lse, again = on.back(out), on.back(logarithms), on.back(again)
    assert again.tobytes() == found.tobytes(), "other bits without lse"
    v = np.abs(arrays["v"].astype(np.float64)).max(initial=0) * float(np.max(how.get("v_scale", 1.0)))
    differences, (of_head, of_values) = found.astype(np.float64) - want, ERRORS[case["q"]]
    error = np.abs(differences).max(initial=0)
    assert error <= of_values * max(v, 1e-30), f"error {error} of {v}"
    norms, whole = (np.linalg.norm(x, axis=(-2, -1)) for x in (differences, want))
    assert (norms <= of_head * whole).all(), f"error {(norms / np.maximum(whole, 1e-30)).max()} of a head"
    assert (np.isfinite(lse) == np.isfinite(logs)).all(), "finite logarithms"
    apart = np.abs(np.where(np.isfinite(logs), lse, 0) - np.where(np.isfinite(logs), logs, 0)).max(initial=0)
    assert apart <= (3e-2 if case["q"] == "e4m3fn" else 1e-3), f"lse {apart}"
    if case.get("gradients") and "wgmma" in on.target.instructions:
        check_gradients(on, case, arrays, how, {**there, **beside, "out": out, "lse": logarithms}, found)


def check_gradients(on: Any, case: Case, arrays: Any, how: Any, there: Any, result: Any) -> None:
    """From the call's results on the device: in an order twice, and as they come."""
    rng, call = np.random.default_rng(case["data"]), checked(**arrays, **how)
    rows = arrays["q"].shape[:-1]
    g = rng.standard_normal((*rows, call.v.shape[-1])).astype(arrays["q"].dtype)
    by_lse = rng.standard_normal(rows).astype(np.float32) if case["data"] % 2 else None
    four = (None,) * (4 - g.ndim)
    wanted = gradients_of(call, g[four], None if by_lse is None else by_lse[four], result[four])
    there["by_out"] = placed(on, _laid(g, case["tokens_first"]))
    if by_lse is not None:
        there["by_lse"] = placed(on, by_lse)
    found = [api.gradients(**there, deterministic=ordered)[:3] for ordered in (True, True, False)]
    on.finish()
    first, again, unordered = ([on.back(x) for x in some] for some in found)
    of_all, each = GRADIENT_ERRORS[case["q"]]
    for name, want, x, y, z in zip("qkv", wanted, first, again, unordered, strict=True):
        assert x.tobytes() == y.tobytes(), f"other bits of the gradient by {name}"
        for gradient in (x, z):
            apart = gradient.astype(np.float64).reshape(want.shape) - want
            most, error = np.abs(apart).max(initial=0), np.linalg.norm(apart) / max(np.linalg.norm(want), 1e-30)
            assert error <= of_all or most <= NOTHING, f"error {error} of the gradient by {name}"
            assert most <= each * np.abs(want).max(initial=0) + NOTHING, f"error {most} of an element by {name}"


def drawn(call: Any, on: Any, number: int | None) -> Any:
    """The plan of this number among those that are legal, of all kernels; None, which leaves the choice, for None."""
    if number is None:
        return None
    there = AttentionCase(call.problem, lengths=call.lengths is not None)
    chip = on.target
    legal = [plan for plan in planner(chip).candidates(there, chip) if not plan.violations(there, chip)]
    return legal[number % len(legal)] if legal else None


def placed(on: Any, x: Any) -> Any:
    """The array in the device's memory, with the order of its axes there."""
    order = sorted(range(x.ndim), key=lambda axis: -x.strides[axis])
    memory = on.memory(np.append(np.frombuffer(x.transpose(order).tobytes(), np.uint8), np.zeros(16, np.uint8)))
    strides = [0] * x.ndim
    step = 1
    for axis in reversed(order):
        strides[axis], step = step, step * max(x.shape[axis], 1)
    return on.view(memory, 0, x.dtype, x.shape, strides)


def _laid(x: Any, tokens_first: bool) -> Any:
    """The array, or with tokens before heads in memory."""
    if not tokens_first:
        return np.ascontiguousarray(x)
    return np.ascontiguousarray(x.swapaxes(-2, -3)).swapaxes(-2, -3)


KINDS["attention"] = Kind(of_attention, draw, check, cheap=False)
