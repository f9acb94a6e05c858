"""Calls with an epilogue like an earlier one: which are repeated, with which bits, and what is looked at each time."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import tilewright as tw
from tilewright.api import fused
from tilewright.runtime import repeats
from tilewright.runtime.cpu import engine

RNG = np.random.default_rng(5)
FACTOR = 2.0


def random(*shape, dtype=np.float32):
    return RNG.standard_normal(shape, dtype=np.float32).astype(dtype)


def activated(acc, bias, res):
    return tw.gelu(acc + bias) * FACTOR + res


@pytest.fixture
def long_ways(monkeypatch):
    """The calls that were checked and planned as if they were the first."""
    calls = []

    def product(call):
        calls.append(call)
        return original(call)
    original = fused.product
    monkeypatch.setattr(fused, "product", product)
    return calls


@pytest.mark.parametrize(("m", "n", "k"), [(1, 70, 40), (9, 10, 8), (200, 300, 260), (300, 1, 70)])
@pytest.mark.parametrize("outs", [False, True])
def test_several_results_reductions_and_numbers(m, n, k, outs, long_ways):
    def function(acc, bias, more, by):
        return acc*by + bias, tw.row_max(acc), tw.where(acc > 1, acc, more), tw.column_sum(acc)
    for again in range(3):
        a, b, bias = (np.round(4*random(*shape)) for shape in ((m, k), (k, n), (n,)))
        c = tuple(np.empty((m, n), np.float32) if i == 2 else None for i in range(4)) if outs else None
        del long_ways[:]
        found = tw.matmul(a, b, c, epilogue=function, operands={"by": 2.0 + again, "bias": bias, "more": 3 - again})
        assert len(long_ways) == (again == 0)
        assert c is None or found[2] is c[2]
        acc = a @ b
        for x, y in zip(found, (acc*(2 + again) + bias, acc.max(1), np.where(acc > 1, acc, 3 - again), acc.sum(0)),
                        strict=True):
            np.testing.assert_array_equal(x, y.astype(np.float32), strict=True)
    one = np.empty((m, n), np.float32)
    for _ in range(2):
        found = tw.matmul(a, b, one, epilogue=lambda acc: (acc, -acc))      # of the first result
        assert found[0] is one
        np.testing.assert_array_equal(found, [acc, -acc])
    both = np.empty((m, n + 1), np.float32)
    for first, second in ((one, np.empty_like(one)), (both[:, :n], both[:, 1:])):
        with contextlib.suppress(ValueError):
            found = tw.matmul(a, b, (first, second), epilogue=lambda acc: (acc, -acc))
            np.testing.assert_array_equal(found[1], -acc)
    for _ in range(2):
        _, rows = tw.matmul(a[:, :0], b[:0], epilogue=lambda acc: (acc, tw.row_sum(acc)))
        np.testing.assert_array_equal(rows, np.zeros(m, np.float32))


def test_what_differs_is_another_call(long_ways):
    a, b, bias, res, c = random(20, 30), random(30, 40), random(40), random(20, 40), np.empty((20, 40), np.float32)

    def call(a=a, b=b, out=c, operands=None, epilogue=activated, **options):
        del long_ways[:]
        return tw.matmul(a, b, out, epilogue=epilogue, operands=operands or {"bias": bias, "res": res}, **options)

    right = call().copy()
    call()
    assert not long_ways
    with tw.threads(1 + (tw.get_num_threads() == 1)):
        np.testing.assert_array_equal(call(), right)
        assert long_ways
    for how, options in [
        ("strides", {"a": np.asfortranarray(a)}), ("dtype", {"operands": {"bias": bias.astype("f8"), "res": res}}),
        ("unaligned", {"a": np.frombuffer(b"0" + a.tobytes(), np.uint8)[1:].view("f4").reshape(a.shape)}),
        ("a list", {"b": b.tolist()}), ("alpha", {"alpha": 1.0}), ("threads", {"threads": 3}),
        ("out_dtype", {"out_dtype": "f32"}), ("a column", {"operands": {"bias": bias, "res": res[:, :1]}}),
        ("integers", {"operands": {"bias": np.arange(40, dtype="i4"), "res": res}}),
    ]:
        found = call(**options)
        assert long_ways, how
        if how == "integers":
            np.testing.assert_allclose(found, activated(a.astype(float) @ b, np.arange(40), res), rtol=1e-4, atol=1e-4)
        elif how != "a column":
            np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5, err_msg=how)
    for wrong in {"threads": 2.0}, {"threads": 0}, {"a": a[:, 1:]}, {"operands": {"bias": bias}}, {"out": c[1:]}:
        call(threads=2)
        call(threads=1)
        with pytest.raises((TypeError, ValueError)):
            call(**wrong)
    c.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        call()


def gelu(acc):
    """Of the name of what it calls: an attribute is no global."""
    return tw.gelu(acc)


def test_a_function_named_as_what_it_calls(long_ways):
    a = random(5, 6)
    for _ in range(2):
        tw.matmul(a, a.T, epilogue=gelu)
    assert len(long_ways) == 1


def test_overlapping_arrays_are_not_repeated(long_ways):
    a, b, bias = random(30, 30), random(30, 30), random(30)
    for overlaps in "res", "a":
        memory = random(40, 30)
        res, x, out = memory[:30], a, np.empty((30, 30), np.float32)
        operands = {"bias": bias, "res": res}
        for _ in range(2):
            tw.matmul(x, b, out, epilogue=activated, operands=operands)
        out, x = (memory[:30] if overlaps == "res" else memory[5:35]), x if overlaps == "res" else memory[10:40]
        wanted = tw.matmul(x.copy(), b, epilogue=activated, operands={"bias": bias, "res": res.copy()})
        del long_ways[:]
        np.testing.assert_array_equal(tw.matmul(x, b, out, epilogue=activated, operands=operands), wanted)
        assert long_ways


def test_plans_are_chosen_anew_once_the_tuner_has_learnt(long_ways):
    a, made = random(20, 20), tw.epilogue(lambda acc: tw.relu(acc))
    tw.matmul(a, a, epilogue=made)
    assert engine.prepared
    assert repeats.records
    engine.forget()
    assert not engine.prepared
    tw.matmul(a, a, epilogue=made)
    assert len(long_ways) == 2
