"""tw.attention on CPUs: a fixed part of the fuzzer's cases, arguments that are refused, and what its docstring promises
of special values. `python -m tests.fuzz --only attention` draws more."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.fuzz import driver
from tests.helpers.attention import checked, expected
from tests.products.ways import python_calls
from tilewright.attention_problem import Attention
from tilewright.plans import asked, attention_choice, cpu_attention
from tilewright.plans.attention_choice import AttentionCase
from tilewright.runtime.cpu.attention import attend
from tilewright.simulator.memory import AddressSpace
from tilewright.simulator.product import SimulatedHost

CASES = 2


@pytest.mark.parametrize("number", range(CASES))
def test_a_case_of_the_fuzzer(number: int) -> None:
    fuzzer = driver.find("attention")
    fuzzer.check(driver.draw(fuzzer, 0, number))


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize(("queries", "how"), [(9, {"causal": True, "softcap": 2.0}), (1, {}), (17, {"window": (6, 2)})])
def test_simulated_kernels_leave_the_bits_of_machine_code(queries: int, how: dict[str, Any]) -> None:
    """Every access is inside of an array there, and strips, single rows and rows by keys are all run."""
    q, k, v = arrays((2, queries, 8), (1, 20, 8), (1, 20, 5))
    call = checked(q, k, v, return_lse=True, **how)
    target = tw.target("avx2").extended
    simulated = attend(call, threads=1, target=target, on=SimulatedHost(AddressSpace()))[:2]
    if not target.runnable:
        pytest.skip("this machine has no AVX2")
    for x, y in zip(simulated, attend(call, threads=1, target=target)[:2]):
        assert x.tobytes() == y.tobytes()


def test_rows_that_see_nothing_are_0_and_nan_and_inf_stay_in_their_rows() -> None:
    q, k, v = arrays((2, 40, 8), (1, 50, 8), (1, 50, 8))
    hidden = np.ones((40, 50), bool)
    hidden[7] = False
    found, lse = tw.attention(q, k, v, bias=hidden, return_lse=True)
    assert (found[:, 7] == 0).all()
    assert (lse[:, 7] == -np.inf).all()
    assert np.isfinite(np.delete(found, 7, 1)).all()
    q[0, 3], q[1, 4] = np.nan, np.inf
    found = tw.attention(q, k, v)
    wrong = np.isnan(found).all(-1)
    assert wrong.sum() == 2
    assert wrong[0, 3]
    assert wrong[1, 4]


@pytest.mark.parametrize("how", [{}, {"causal": True, "window": (5, 0), "scale": 0.3, "threads": 2}])
def test_a_call_like_an_earlier_one_runs_its_tasks_on_other_arrays(how: dict[str, Any]) -> None:
    shapes = (2, 20, 8), (2, 30, 8), (2, 30, 8)
    tw.attention(*arrays(*shapes), **how)
    q, k, v = (x + 1 for x in arrays(*shapes))
    found, calls = python_calls(lambda: tw.attention(q, k, v, **how))
    assert calls <= 20
    np.testing.assert_allclose(found, expected(q, k, v, **{x: y for x, y in how.items() if x != "threads"})[0],
                               atol=1e-5)
    with pytest.raises(TypeError, match="window must be a number"):
        tw.attention(q, k, v, **{**how, "window": (5.0, 0)})
    assert tw.attention(q, k, v, **{**how, "scale": 0.5}).tobytes() != found.tobytes()


def test_no_keys_and_no_queries() -> None:
    q, k, v = arrays((2, 3, 8), (2, 0, 8), (2, 0, 8))
    found, lse = tw.attention(q, k, v, return_lse=True)
    assert found.tolist() == np.zeros((2, 3, 8)).tolist()
    assert (lse == -np.inf).all()
    assert tw.attention(k, q, q).shape == (2, 0, 8)


def test_results_go_where_they_are_asked_for() -> None:
    q, k, v = arrays((2, 33, 8), (2, 20, 8), (2, 20, 8))
    want = expected(q, k, v)[0]
    for out in (np.empty((2, 33, 8), np.float32), np.empty((8, 33, 2), np.float32).T, q):
        assert tw.attention(q.copy(), k, v, out=out) is out
        np.testing.assert_allclose(out, want, atol=1e-5)
    overlapping = k.copy()
    tw.attention(overlapping, overlapping, overlapping, out=overlapping)
    np.testing.assert_allclose(overlapping, expected(k, k, k)[0], atol=1e-5)


@pytest.mark.parametrize(("how", "error", "text"), [
    ({"window": -1}, ValueError, "window must be 0 or more keys"),
    ({"softcap": 0.0}, ValueError, "softcap must be a number above 0"),
    ({"causal": 3}, ValueError, 'causal must be False, True or "lower right", or "upper left", not 3'),
    ({"bias": 3}, TypeError, "bias must be an array or a function of (score, i, j, head), not 3"),
    ({"sinks": np.ones(3)}, ValueError, "sinks must be 2 floats"),
    ({"bias": np.ones((7, 7))}, ValueError, "bias must broadcast to [sequences, heads, queries, keys], (1, 2, 3, 5)"),
    ({"bias": lambda score, i, j, head: (score, i)}, TypeError, "bias must return one number"),
    ({"operands": {"x": np.ones(1)}}, ValueError, "operands must be None unless bias is a function"),
    ({"out_dtype": "i8"}, TypeError, "out_dtype must be one of f32, f64, f16, bf16, not i8"),
    ({"k_scale": np.float32(1)}, ValueError, "k_scale must be None unless k and v are e4m3fn or i8"),
    ({"lengths": np.array([9])}, ValueError, "lengths must be from 0 to 5"),
    ({"table": np.zeros((1, 1), np.int32)}, ValueError, "lengths must be given where table is"),
])
def test_arguments_are_refused_in_a_sentence(how: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        checked(*arrays((2, 3, 8), (2, 5, 8), (2, 5, 8)), **how)


@pytest.mark.parametrize("name", ["q", "k", "v", "bias", "out"])
def test_arrays_of_any_byte_order_and_strides(name: str) -> None:
    """Fields of packed records lie 5 bytes apart; out between other bytes, which stay."""
    q, k, v, bias = arrays((2, 3, 8), (2, 5, 8), (2, 5, 8), (3, 5))
    given = {"q": q, "k": k, "v": v, "bias": bias}
    want = tw.attention(**given)
    if name == "out":
        memory = np.full(2*3*37 + 1, 7, np.uint8)
        out = np.lib.stride_tricks.as_strided(memory[1:5].view("f4"), (2, 3, 8), (3*37, 37, 4))
        tw.attention(**given, out=out)
        assert np.array_equal(out, want)
        assert (memory[1:].reshape(6, 37)[:, 32:] == 7).all()
        return
    fields = np.zeros(given[name].shape, [("other", "u1"), ("x", "<f4")])
    fields["x"] = given[name]
    for x in (fields["x"], given[name].astype(">f4")):
        assert np.array_equal(tw.attention(**given | {name: x}), want)


def test_ragged_queries_of_a_paged_cache() -> None:
    q, k, v = arrays((4, 7, 8), (6, 2, 4, 8), (6, 2, 4, 5))
    how = {"q_offsets": [0, 2, 2, 6], "table": np.array([[3, 1], [0, 0], [5, 2]]), "lengths": [7, 3, 8], "causal": True}
    given = {name: np.asarray(x) for name, x in how.items() if name != "causal"}
    found, lse = tw.attention(q, k, v, **how, return_lse=True)
    want, logs = expected(q, k, v, **given, causal=True)
    np.testing.assert_allclose(found, want, atol=1e-5)
    np.testing.assert_allclose(lse, logs, atol=1e-5)


def test_values_without_numbers_have_logarithms_of_sums() -> None:
    q, k, v = arrays((2, 3, 8), (2, 5, 8), (2, 5, 4))
    found, lse = tw.attention(q, k, v[..., :0], return_lse=True)
    assert found.shape == (2, 3, 0)
    assert np.array_equal(lse, tw.attention(q, k, v, return_lse=True)[1])


@pytest.mark.parametrize(("how", "error", "text"), [
    ({"threads": 0}, ValueError, "threads must be 1 or more"), ({"threads": 1.5}, TypeError, "threads must be an int"),
    ({"scale": np.ones(2)}, TypeError, "scale must be a number"), ({"scale": [1]}, TypeError, "scale must be a number"),
    ({"softcap": 1e300}, ValueError, "softcap must be a number above 0, between 1e-37 and 1e37"),
    ({"causal": np.array([True])}, ValueError, "causal must be False, True"), ({"k": None}, TypeError, "k must be"),
    ({"return_lse": 1}, TypeError, "return_lse must be True or False"),
    ({"operands": [1]}, TypeError, "operands must be a dict"), ({"operands": {1: 2}}, TypeError, "operands must be a"),
    ({"bias": lambda s, i, j, h, x: s, "operands": {"x": None}}, ValueError, "operands['x'] must be an array"),
    ({"bias": lambda s, i: s}, TypeError, "bias takes (s, i), and is given (score, i, j, head)"),
    ({"k_offsets": [0, 5]}, ValueError, "k_offsets must be None where q_offsets is"),
])
def test_calls_are_refused_in_a_sentence(how: dict[str, Any], error: type[Exception], text: str) -> None:
    q, k, v = arrays((2, 3, 8), (2, 5, 8), (2, 5, 8))
    with pytest.raises(error, match=re.escape(text)):
        tw.attention(**{"q": q, "k": k, "v": v} | how)


def test_a_factor_may_be_a_number() -> None:
    q, k = arrays((2, 3, 8), (2, 5, 8))
    k = (k * 20).astype(np.int8)
    want = tw.attention(q, k, k, k_scale=np.float32(0.05), v_scale=np.float32(2))
    assert np.array_equal(tw.attention(q, k, k, k_scale=0.05, v_scale=2), want)


def test_dtypes_and_shapes_that_do_not_fit() -> None:
    q, k, v = arrays((2, 3, 8), (2, 5, 8), (2, 5, 8))
    for given, error in (((q, k[..., :7], v), ValueError), ((q, k[:, :4], v), ValueError),
                         ((q, k.astype("f8"), v), TypeError), ((q.astype("i4"), k, v), TypeError),
                         ((q[0, 0], k, v), ValueError)):
        with pytest.raises(error):
            tw.attention(*given)


@pytest.mark.parametrize("kernel", ["attention_strips", "attention_rows"])
def test_by_a_plan(kernel: str) -> None:
    """A caller's plan runs, or is refused with the reason; the chosen one has a text that reads back."""
    target, few = tw.detect(), kernel == "attention_rows"
    q, k, v = arrays((1, 4, 1 if few else 40, 24), (1, 1, 300, 24), (1, 1, 300, 24))
    lanes, height = target.lanes(4), cpu_attention.tile_rows(target, 1, "f32")
    given = f"{kernel} " + (f"4x{4*lanes} part=128" if few else f"{lanes}x{2*height} strips=1")
    want = expected(q, k, v)[0]
    np.testing.assert_allclose(tw.attention(q, k, v, plan=given), want, atol=2e-5)
    with pytest.raises(ValueError, match="cannot run"):
        tw.attention(q, k, v, plan=f"{kernel} 7x7 {given.split()[-1]}")
    with pytest.raises(ValueError, match="plans for attention look like"):
        tw.attention(q, k, v, plan="packed 6x16 mc=96 kc=256 nc=4080")
    case = AttentionCase(checked(q, k, v).problem)
    chosen = attention_choice.choose(case, target)
    assert asked.plan(str(chosen), target, attention=True) == chosen
    assert not any(plan.violations(case, target) for plan in attention_choice.ranked(case, target))


@pytest.mark.parametrize("text", ["1x32x4096x128 bf16 keys=8192 kv_heads=8 causal", "2x4x7x64 f32-f32-f16 softcap=20.0 "
                                  "window=4, lse", "1x2x3x4 bf16-i8-bf16 window=,3 upper factors"])
def test_problems_are_text(text: str) -> None:
    assert str(Attention.parse(text)) == text
    with pytest.raises(ValueError, match="not an attention"):
        Attention.parse(f"{text} more")
