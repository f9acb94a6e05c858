"""Attention by AMX's tiles: simulated on any machine beside float64, compiled for a chip that has it, run on one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.helpers.attention import checked, reference
from tilewright.compiler import llvm
from tilewright.kernels.cpu.attention import emit_attention
from tilewright.plans import cpu_attention as plans
from tilewright.plans.attention_choice import AttentionCase
from tilewright.runtime.cpu.attention import attend, extended
from tilewright.simulator.memory import AddressSpace
from tilewright.simulator.product import SimulatedHost

AMX = replace(tw.target("x86-avx512"), extensions=("avx512bf16", "amx-tile", "amx-bf16")).extended


def call(queries: int, keys: int, sizes: tuple[int, int], **how: Any) -> Any:
    rng = np.random.default_rng(queries)
    shapes = (2, queries, sizes[0]), (1, keys, sizes[0]), (1, keys, sizes[1])
    return checked(*(rng.normal(size=shape).astype(ml_dtypes.bfloat16) for shape in shapes), return_lse=True, **how)


def spec(given: Any) -> plans.Spec:
    return plans.spec(given.problem, AMX, plans.choose(AttentionCase(given.problem), AMX))


CASES = [(9, 70, (40, 72), {"causal": True, "softcap": 3.0}), (20, 33, (64, 33), {"window": (9, None)})]


@pytest.mark.parametrize(("queries", "keys", "sizes", "how"), CASES)
def test_simulated_tiles_have_the_values_of_float64(queries: int, keys: int, sizes: tuple[int, int],
                                                    how: dict[str, Any]) -> None:
    given = call(queries, keys, sizes, **how)
    assert spec(given).WORD == "tiles"
    out, lse, _ = attend(given, threads=1, target=AMX, on=SimulatedHost(AddressSpace()))
    want, logs = reference(given)
    assert np.abs(out.astype(np.float64) - want).max() <= 0.02 * np.abs(given.v.astype(np.float64)).max()
    assert lse is not None
    np.testing.assert_allclose(lse, logs, atol=1e-4)


def test_instructions() -> None:
    text = llvm.assembly(emit_attention(AMX, *spec(call(64, 200, (64, 64)))), AMX)
    assert text.count("tdpbf16ps") == 2*4 + 2*4            # two steps of scores, two pairs of tiles of values
    assert "vdpbf16ps" not in text


@pytest.mark.skipif("amx-tile" not in extended().extensions, reason="this machine has no AMX, or no leave to use it")
@pytest.mark.parametrize(("queries", "keys", "sizes", "how"), CASES)
def test_tiles_of_this_machine_have_the_simulated_values(queries: int, keys: int, sizes: tuple[int, int],
                                                         how: dict[str, Any]) -> None:
    given = call(queries, keys, sizes, **how)
    simulated = attend(given, threads=1, target=extended(), on=SimulatedHost(AddressSpace()))
    found = attend(given, threads=1)
    for x, y in zip(found[:2], simulated[:2]):
        np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), atol=1e-2)
