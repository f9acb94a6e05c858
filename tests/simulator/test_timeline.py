"""Who is busy when: the roles of the GEMM by wgmma, round by round."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.gpu_kernels import emit_wgmma_gemm
from tilewright.ir import Kernel, f32, ptr
from tilewright.simulator.timeline import timeline

STEPS = 4  # of k, for each tile of C


def of_gemm(tiles, **options):
    """Of one CTA, whose tiles of C are one below the other; C is right."""
    rng = np.random.default_rng(0)
    m, n, k = tiles * options["CTA_M"], 64, STEPS * 64
    a, b = (rng.integers(-3, 4, (rows, k)).astype(np.float16) for rows in (m, n))
    c = np.full((m, n), np.nan, np.float32)
    function = emit_wgmma_gemm("f16", "f16", "f32", CTA_N=n, CTA_K=64, STAGES=3, **options)
    found = timeline(function, m, n, k, 1, a, b, 0, c, n, c, grid=1)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)
    return found


def rounds(found, column, event):
    return [round for (round, name), events in sorted(found.events.items()) if name == column for x in events
            if x == event]


def test_warpgroups_that_work_together():
    found = of_gemm(2, CTA_M=128)
    assert [*found.columns.values()] == ["math 0", "math 1", "loads"]
    first, second = ({at[0]: events for at, events in found.events.items() if at[1] == f"math {x}"} for x in (0, 1))
    assert first == second
    copies, products = rounds(found, "loads", "copy a"), rounds(found, "math 0", "products")
    assert len(copies) == len(products) == 2 * STEPS
    assert all(copy < product for copy, product in zip(copies, products))
    first_store = rounds(found, "math 0", "store c")[0]
    assert sum(round <= first_store for round in copies) == STEPS + 2  # and of the next tile


def test_warpgroups_in_turns():
    found = of_gemm(4, CTA_M=64, PINGPONG=True)
    mine, others = (rounds(found, f"math {x}", "products") for x in (0, 1))
    assert len(mine) == len(others) == 2 * STEPS
    assert mine[STEPS - 1] < others[0] < others[STEPS - 1] < mine[STEPS]
    assert rounds(found, "math 0", "store c")[0] <= others[0]
    lines = str(found).splitlines()
    assert lines[0].split() == ["math", "0", "math", "1", "loads"]
    assert len(lines) == 1 + len({round for round, _ in found.events})


def test_a_kernel_without_roles():
    k = Kernel("plain", threads=32, x=ptr(f32))
    k.args[0][k.thread[0]] = 1.0
    with pytest.raises(ValueError, match="plain has no roles"):
        timeline(k.function, np.zeros(32, np.float32), grid=1)
