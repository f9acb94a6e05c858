"""Problems: what is derived, what is refused, and in which words."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import tilewright as tw
from tilewright import formats
from tilewright.problem import Gemm


def test_defaults():
    p = Gemm(2, 3, 4)
    assert (p.a, p.b, p.out, p.compute, p.layout, p.batch) == ("f32", "f32", "f32", "f32", "nn", 1)


def test_b_follows_a_and_out_follows_numpy():
    assert Gemm(1, 1, 1, a="f64").b == "f64"
    assert Gemm(1, 1, 1, a="f32", b="f64").out == "f64"
    assert Gemm(1, 1, 1, a="f64", out="f32").compute == "f64"
    assert Gemm(1, 1, 1, a="f32", out="f64").compute == "f64"


@pytest.mark.parametrize("spelling", ["f64", "float64", np.float64, np.dtype("f8"), float, formats.get("f64")])
def test_spellings_of_a_format(spelling):
    assert Gemm(1, 1, 1, a=spelling) == Gemm(1, 1, 1, a="f64")


def test_counts():
    p = Gemm(2, 3, 4, a="f32", b="f64", batch=5)
    assert p.flops == 5 * 2 * 2 * 3 * 4
    assert p.min_bytes == 5 * (2 * 4 * 4 + 4 * 3 * 8 + 2 * 3 * 8)
    assert p.intensity == p.flops / p.min_bytes
    assert Gemm(0, 0, 0).intensity == 0


def test_shapes_in_memory():
    assert [Gemm(2, 3, 4, layout=lay).shape_a for lay in ("nn", "nt", "tn", "tt")] == [(2, 4), (2, 4), (4, 2), (4, 2)]
    assert [Gemm(2, 3, 4, layout=lay).shape_b for lay in ("nn", "nt", "tn", "tt")] == [(4, 3), (3, 4), (4, 3), (3, 4)]


def test_key_tells_problems_apart():
    problems = [
        Gemm(2, 3, 4), Gemm(3, 2, 4), Gemm(2, 3, 4, a="f64"), Gemm(2, 3, 4, a="f64", b="f32"), Gemm(2, 3, 4, out="f64"),
        Gemm(2, 3, 4, layout="tn"), Gemm(2, 3, 4, batch=2), Gemm(2, 34, 4), Gemm(23, 4, 4),
    ]
    assert len({p.key() for p in problems}) == len(problems)
    assert problems[0].key() == str(problems[0]) == "gemm_f32_nn_2x3x4"


def test_frozen_hashable_replaceable():
    p = Gemm(2, 3, 4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        p.m = 5  # type: ignore[misc]
    assert {p: "yes"}[Gemm(2, 3, 4)] == "yes"
    assert dataclasses.replace(p, n=7) == Gemm(2, 7, 4)
    assert eval(repr(p)) == p


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"m": -1}, ValueError, "m must be 0 or more, not -1"),
        ({"k": 2.5}, TypeError, "k must be an integer, not 2.5"),
        ({"layout": "xy"}, ValueError, "layout must be one of nn, nt, tn, tt, not 'xy'"),
        ({"a": "f33"}, ValueError, "a must be one of f64, f32, .*, not 'f33'"),
        ({"b": "int7"}, ValueError, "b must be one of f64, f32, .*, not 'int7'"),
        ({"out": "i9"}, ValueError, "out must be one of f64, f32, .*, not 'i9'"),
        ({"a": "mxfp4", "b": "f32"}, ValueError, "a and b are both block-scaled or neither is"),
        ({"batch": -3}, ValueError, "batch must be 0 or more, not -3"),
    ],
)
def test_refusals_name_the_argument(change, error, sentence):
    with pytest.raises(error, match=sentence):
        Gemm(**{"m": 2, "n": 3, "k": 4, **change})


def test_numpy_integers_are_sizes():
    assert Gemm(np.int32(2), 3, 4).key() == Gemm(2, 3, 4).key()
    assert type(Gemm(np.int32(2), 3, 4).m) is int


@pytest.mark.parametrize("argument", ["a", "b", "out"])
@pytest.mark.parametrize("name", [name for name in formats.FORMATS if name not in formats.MULTIPLIED])
def test_a_format_without_a_kernel_is_refused(argument, name):
    """A problem can be stated with every format, under each of its names and as a record. On NVIDIA's chips floats and
    numbers of at most 8 bits are converted to be multiplied by f32."""
    for spelling in (name, formats.FORMATS[name].dtype, formats.FORMATS[name]):
        problem = Gemm(2, 3, 4, **{"a": "f32", "b": "f32", "out": "f32", argument: spelling})
        assert getattr(problem, argument) == name
    target = tw.target("sm_90a")
    if name in ("u32", "i64", "u64", "bool", "c64", "c128"):
        said = rf"sm_90a has kernels for f32, f64, f16, .* not for .*\b{name}\b"
        if name in ("c64", "c128"):             # of A complex numbers have plans in small batches alone
            said += rf"|no plan for .*\b{name}\b.* on sm_90a: small multiplies"
        with pytest.raises(ValueError, match=said):
            tw.compile(problem, target)
    elif argument != "out":
        assert tw.plan(problem, target).algorithm in ("simt", "dmma", "gemv")


def test_results_are_numpys():
    for a, b, out in ("i8", "i8", "i8"), ("bf16", "bf16", "f32"), ("e4m3fn", "e4m3fn", "f32"), ("i8", "i16", "i16"):
        assert Gemm(2, 3, 4, a, b).out == out


def test_block_scaled_problems():
    p = Gemm(2, 3, 64, "mxfp4", "mxfp8", layout="nt")
    assert (p.a, p.b, p.out, p.compute) == ("mxfp4", "mxfp8", "f32", "f32")
    assert p.min_bytes == (2 * 64 * 4 + 2 * 2 * 8 + 3 * 64 * 8 + 3 * 2 * 8 + 2 * 3 * 32) // 8
