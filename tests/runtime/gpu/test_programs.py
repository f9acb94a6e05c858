"""Calls on a GPU of one kind: the first is prepared, the others give its program to the stream, on the fake drivers."""

from __future__ import annotations

import sys
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.helpers.gpus import machine

pytestmark = pytest.mark.sampled

BF16 = ml_dtypes.bfloat16
FP8 = ml_dtypes.float8_e4m3fn
ENDS = np.array([3, 3, 10, 12], np.int32)
# Python functions of the package that a repeated call enters, and more for each kernel: HIP asks for the device's
# context before each launch.
MOST_CALLS = {"sm_90a": (30, 8), "gfx942": (34, 16)}
MORE = {"a number for c": 12, "a number": 24, "scales and a bias": 16, "groups": 30, "two scales": 90,
        "a chain": 8}
PARTS = "elements", "scales", "zeros"
PACKAGE = tw.__path__[0]


def ints(rng, *shape, dtype="f4"):
    return rng.integers(-3, 4, shape).astype(dtype)


def weights(rng, *shape, format="i4", **options):
    return tw.quantize(ints(rng, *shape) + 0.25, format, **options)


# name: what makes the arguments of a call with arrays in the host's memory, from random numbers; the function; how many
# kernels it launches
CALLS = {
    "c and beta": (lambda rng: ((ints(rng, 9, 12), ints(rng, 12, 8)),
                                {"c": ints(rng, 9, 8), "beta": 0.5, "alpha": 2}), tw.matmul, 2),
    "a number for c": (lambda rng: ((ints(rng, 9, 12), ints(rng, 12, 8)), {"c": 3.0, "beta": 2.0}), tw.matmul, 2),
    "another alpha": (lambda rng: ((ints(rng, 9, 12, dtype="i2"), ints(rng, 12, 8)),
                                   {"alpha": float(2 ** rng.integers(1, 9))}), tw.matmul, 2),
    "scaled": (lambda rng: ((ints(rng, 9, 32, dtype=FP8), ints(rng, 8, 32, dtype=FP8)),
                            {"trans_b": True, "scale_a": 2.0 ** ints(rng, 9, 1), "scale_b": 2.0 ** ints(rng, 8, 1)}),
               tw.matmul, 1),
    "scales and a bias": (lambda rng: ((ints(rng, 9, 32, dtype="i1"), ints(rng, 32, 8, dtype="i1")),
                                       {"scale_a": 2.0 ** ints(rng, 9, 1), "epilogue": add,
                                        "operands": {"bias": ints(rng, 8)}}), tw.matmul, 1),
    "columns of C": (lambda rng: ((ints(rng, 9, 12), ints(rng, 12, 8), np.zeros((8, 9), "f4").T), {}), tw.matmul, 1),
    "neither rows nor columns": (lambda rng: ((ints(rng, 9, 24)[:, ::2], ints(rng, 12, 16)[:, ::2]), {}), tw.matmul, 3),
    "one array twice": (lambda rng: ((x := ints(rng, 9, 9), x), {}), tw.matmul, 1),
    "complex": (lambda rng: ((ints(rng, 9, 12) + 1j*ints(rng, 9, 12), ints(rng, 12, 8) - 2j*ints(rng, 12, 8)),
                             {"alpha": 2}), tw.matmul, 2),
    "stacks that do not fold": (lambda rng: ((ints(rng, 2, 3, 9, 12)[:, ::2], ints(rng, 2, 1, 12, 8)), {}), tw.matmul,
                                None),
    "two scales": (lambda rng: ((tw.quantize(ints(rng, 9, 64), "mxfp8"), tw.quantize(ints(rng, 8, 64), "mxfp8").T), {}),
                   tw.matmul, None),
    "decoded": (lambda rng: ((ints(rng, 40, 64), tw.quantize(ints(rng, 8, 64), "mxfp8").T), {}), tw.matmul, None),
    "weights": (lambda rng: ((ints(rng, 9, 64, dtype=BF16), weights(rng, 24, 64, axis=-1, group=32)),
                             {"trans_b": True}), tw.matmul, 1),
    "a prologue by a pass": (lambda rng: ((ints(rng, 2, 9, 12), ints(rng, 2, 12, 8)), {"prologue_a": double}),
                             tw.matmul, None),
    "reductions": (lambda rng: ((ints(rng, 9, 12), ints(rng, 12, 8)), {"epilogue": reduced}), tw.matmul, None),
    "a number": (lambda rng: ((ints(rng, 9, 12), ints(rng, 12, 8)),
                              {"epilogue": add, "operands": {"bias": float(rng.integers(9))}}), tw.matmul, 1),
    "deterministic": (lambda rng: ((ints(rng, 9, 12), ints(rng, 12, 8)), {"deterministic": True}), tw.matmul, 1),
    "algorithm": (lambda rng: ((ints(rng, 32, 64), ints(rng, 64, 32)), {"algorithm": "bf16_bf16_f32_x3"}), tw.matmul,
                  None),
    "groups": (lambda rng: ((ints(rng, 14, 32, dtype=BF16), ints(rng, 4, 32, 16, dtype=BF16), ENDS), {}),
               tw.grouped_matmul, 1),
    "groups and alpha": (lambda rng: ((ints(rng, 14, 32), ints(rng, 4, 32, 16), ENDS), {"alpha": 2}),
                         tw.grouped_matmul, 1),
    "groups with a bias": (lambda rng: ((ints(rng, 14, 32), ints(rng, 4, 32, 16), ENDS),
                                        {"epilogue": add, "operands": {"bias": ints(rng, 4, 16)}}),
                           tw.grouped_matmul, 1),
    "groups of weights": (lambda rng: ((ints(rng, 14, 64, dtype=BF16), weights(rng, 4, 16, 64, axis=-1, group=32),
                                        ENDS), {"trans_b": True}), tw.grouped_matmul, None),
    "groups of k": (lambda rng: ((ints(rng, 9, 14), ints(rng, 14, 8), ENDS), {}), tw.grouped_matmul, None),
    "a pair": (lambda rng: (("xyk,kn->nxy", ints(rng, 3, 4, 8), ints(rng, 8, 5)), {}), tw.einsum, None),
    "a chain": (lambda rng: (("ij,jk,kl->il", ints(rng, 5, 6), ints(rng, 6, 7), ints(rng, 7, 8)), {}), tw.einsum, 2),
}


def add(acc, bias):
    return acc + bias


def double(x):
    return 2 * x


def reduced(acc):
    return tw.row_sum(acc), tw.column_max(acc), acc


@pytest.fixture(params=["sm_90a", "gfx942"])
def on(request, monkeypatch):
    return machine(monkeypatch, request.param)


def moved(on, x):
    """The same in the GPU's memory."""
    if isinstance(x, dict):
        return {name: moved(on, y) for name, y in x.items()}
    if hasattr(x, "elements"):
        parts = {name: getattr(x, name) for name in PARTS if getattr(x, name, None) is not None}
        return replace(x, **{name: on.array(y if y.dtype in (np.float32, np.int8) else y.view(np.uint8))
                             for name, y in parts.items()})
    return on.array(x) if isinstance(x, np.ndarray) else x


def counted(call, *args, **options):
    """The result, and the names of the package's functions that were entered, but for what the fake driver calls."""
    entered, inside = [], []

    def profile(frame, event, arg):
        name = frame.f_code.co_filename
        if "/tests/doubles/" in name and event in ("call", "return"):
            if event == "call":
                inside.append(frame)
            elif inside and inside[-1] is frame:
                inside.pop()
        elif event == "call" and not inside and name.startswith(PACKAGE):
            entered.append(frame.f_code.co_name)
    sys.setprofile(profile)
    try:
        return call(*args, **options), entered
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("name", CALLS)
def test_a_program_is_given_to_the_stream_again(on, name):
    """With other arrays: the kernels of the first call in their order, the right numbers, and little Python."""
    make, function, launches = CALLS[name]
    kernels = []
    for seed in range(3):
        given, options = make(np.random.default_rng(seed))
        wanted = function(*given, **options)
        there, more = [moved(on, x) for x in given], moved(on, options)
        if name == "one array twice":
            there[1] = there[0]
        before = len(on.machine.launches)
        try:
            with on.engine.driver.device().current():
                found, entered = counted(function, *there, **more)
        except (TypeError, ValueError):
            if on.name == "gfx942":                 # which has no such kernels
                return
            raise
        on.finish()
        kernels.append([launch[0] for launch in on.machine.launches[before:]])
        for x, y in zip(*((z if isinstance(z, tuple) else (z,)) for z in (found, wanted)), strict=True):
            np.testing.assert_allclose(x.host.astype(complex), y.astype(complex), rtol=1e-5,
                                       atol=0.2 if BF16 in (getattr(z, "dtype", None) for z in given) else 1e-5)
        if seed > 1:
            assert kernels[-1] == kernels[0]
            most, of_kernel = MOST_CALLS[on.name]
            most += of_kernel*len(kernels[0]) + MORE.get(name, 0)
            assert len(entered) <= most, (len(entered), " ".join(entered))
    if launches and on.name == "sm_90a":
        assert len(kernels[0]) == launches, kernels[0]
