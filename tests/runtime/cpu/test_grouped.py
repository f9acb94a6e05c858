"""Groups in the simulator, with AMX's tiles, several threads' pieces, and every access and race checked."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.expressions.function import epilogue
from tilewright.plans.cpu import CpuPlan
from tilewright.runtime.cpu import grouped
from tilewright.runtime.cpu.grouped_ways import Side, Work, place_of
from tilewright.simulator.memory import AddressSpace
from tilewright.simulator.product import SimulatedHost, SimulatedRecipe

AVX512 = tw.target("x86-avx512")
AMX = replace(AVX512, extensions=("amx-tile", "amx-bf16", "amx-int8"))
RNG = np.random.default_rng(8)


def function(acc, bias):
    y = acc + bias
    return y, tw.row_sum(y), tw.column_max(y)


@pytest.mark.parametrize(("chip", "dtype", "plan", "sizes", "n", "k"), [
    (AMX, ml_dtypes.bfloat16, None, [5, 0, 70], 64, 64),
    (AVX512, np.float32, CpuPlan.parse("packed 4x32 mc=8 kc=8 nc=32"), [9, 0, 14, 1], 40, 17),
], ids=["amx", "packed"])
def test_epilogues_of_groups(chip, dtype, plan, sizes, n, k):
    ends = np.cumsum(sizes)
    starts = ends - sizes
    a, b = RNG.standard_normal((ends[-1], k)).astype(dtype), RNG.standard_normal((len(sizes), k, n)).astype(dtype)
    bias, out = RNG.standard_normal((len(sizes), 1, n)).astype(np.float32), np.empty((ends[-1], n), np.float32)
    sums, largest = np.empty(ends[-1], np.float32), np.empty((len(sizes), n), np.float32)
    host = SimulatedHost(AddressSpace())
    at = [host.memory.address(x) for x in (a, b, bias, out)]
    rows = int(ends[-1])
    work = Work("m", rows, n, k, ("a's rows", rows), [place_of(out, "rows"), None, None],
                [place_of(bias, "group", row=0)],
                epilogue(function, bias="row"), np.dtype(np.float32), chip, 3, plan, on=host, make=SimulatedRecipe)
    program = grouped.Program(work, Side(place_of(a, "rows"), place_of(b, "group")))
    program.run([at[0], *at[:3]], 0, [at[3], 0, 0], a, (), ends, [out, sums, largest])
    assert any(part.emitter.startswith("amx") for part in host.recorded) == (chip is AMX)
    for g, size in enumerate(sizes):
        wanted = a[starts[g]:ends[g]].astype(float) @ b[g].astype(float) + bias[g]
        np.testing.assert_allclose(out[starts[g]:ends[g]], wanted, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(sums[starts[g]:ends[g]], wanted.sum(1), rtol=1e-4, atol=1e-4)
        if size:
            np.testing.assert_allclose(largest[g], wanted.max(0), rtol=1e-4, atol=1e-4)
