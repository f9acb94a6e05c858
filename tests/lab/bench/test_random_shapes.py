"""The suite random: what it draws, and a short run."""
from __future__ import annotations

from collections import Counter

import pytest

from tests.helpers.command_line import call
from tilewright.lab.bench.cases import CPU, GPU
from tilewright.lab.bench.suites import random_shapes as suite


@pytest.mark.parametrize("device", [CPU, GPU])
def test_shapes_follow_the_rule(device: str) -> None:
    cases = suite.cases(3, 200, ["bf16", "i8"], device)
    assert [c.label for c in cases] == [c.label for c in suite.cases(3, 200, ["bf16", "i8"], device)]
    assert {c.label for c in cases}.isdisjoint(c.label for c in suite.cases(4, 50, ["bf16"], device))
    bounds, (least, most) = (suite.GPU_SIZES, suite.GPU_WORK) if device == GPU else (suite.CPU_SIZES, suite.CPU_WORK)
    for c in cases:
        p = c.problem
        assert all(low <= x <= high for x, (low, high) in zip((p.m, p.n, p.k), bounds)), c
        assert least <= c.operations() <= most
        if device == GPU:
            assert not any(x % (16 if p.a == "i8" else 8) for x in (p.m, p.n, p.k))
    layouts = Counter(c.problem.layout for c in cases if c.problem.a == "bf16")
    assert layouts.keys() == {"nn", "nt", "tn"}
    assert 70 < layouts["nt" if device == GPU else "nn"] < 130
    assert {c.product.key for c in cases} == {"bf16-bf16-bf16", "i8-i8-i32"}
    assert device == CPU or {c.problem.layout for c in cases if c.problem.a == "i8"} == {"nt"}


def test_layers_are_those_of_models() -> None:
    assert len(suite.MODELS) == 20
    known = {size for model in suite.MODELS.values() for size in model.layers().values()}
    assert (6144, 4096) in known                                # queries, keys and values of Llama 3 8B
    cases = suite.cases(1, 300, ["bf16"], GPU, layers=True)
    assert {(c.problem.n, c.problem.k) for c in cases} <= known
    assert {c.problem.m for c in cases} <= set(suite.ROWS)
    assert {(c.problem.layout, c.suite) for c in cases} == {("nt", suite.LAYERS)}


def test_products_and_algorithms_are_formats_too() -> None:
    u8, terms = suite.cases(1, 1, ["u8-i8-i32", "bf16_bf16_f32_x6"])
    assert (u8.product.key, terms.algorithm) == ("u8-i8-i32", "bf16_bf16_f32_x6")
    with pytest.raises(ValueError, match="no product of 'f3' is timed"):
        suite.cases(1, 1, ["f3"])


def test_a_short_run_shows_means_and_the_worst() -> None:
    found = call("bench", "random", "--seed", "2", "--count", "2", "--threads", "1", "--quick", "--peers", "numpy",
                 "--minutes", "1")
    assert found.exit_code == 0, found.output
    assert "random: the fastest peer's time over ours" in found.output
