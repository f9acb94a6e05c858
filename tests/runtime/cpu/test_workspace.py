"""Scratch memory: who has it, and that barriers stay usable from one product to the next without being cleared."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tilewright.kernels.cpu.jobs import BARRIER_BYTES
from tilewright.plans.cpu import CpuPlan
from tilewright.runtime.cpu import engine, pool, workspace
from tilewright.targets import detect

LANES = detect().lanes(4)


@pytest.fixture(autouse=True)
def _no_other_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "_free", [])


def test_blocks_are_kept_and_grow() -> None:
    small, other = workspace.take(1), workspace.take(1)
    assert small is not other
    assert small.address % workspace.HUGE == 0
    assert small.size >= 1
    workspace.give(small)
    assert workspace.take(small.size) is small
    workspace.give(small)
    large = workspace.take(small.size + 1)
    assert large.size > small.size
    workspace.give(large)
    assert workspace.take(1) is large  # the small one is gone
    assert workspace.take(1) is not large


def test_what_is_larger_than_any_panels_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "KEPT", 2 * workspace.HUGE)
    for size, kept in ((2 * workspace.HUGE, 1), (2 * workspace.HUGE + 1, 0)):
        workspace.give(workspace.take(size))
        assert len(workspace._free) == kept


def test_there_is_a_barrier_for_every_block_of_any_team() -> None:
    for jc in range(1, pool.MOST + 1):
        assert jc * (1 + pool.MOST // jc) * BARRIER_BYTES <= workspace.BARRIERS


def test_teams_of_every_split_in_turn_use_the_same_barriers() -> None:
    """Each leaves them ready for the next, whatever that is; counters of claimed blocks begin anew."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, sizes).astype(np.float32) for sizes in ((61, 50), (50, 9 * LANES)))
    want = a @ b
    splits = [ways for ways in itertools.product((1, 2, 3), repeat=3) if np.prod(ways) <= 6]
    for ways in splits + rng.permutation(splits * 3).tolist():
        plan = CpuPlan("packed", 6, LANES, 12, 16, 2 * LANES, *ways)
        c = np.full(want.shape, np.nan, np.float32)
        engine.gemm(a, b, c, plan=plan, threads=plan.threads)
        assert np.array_equal(c, want), ways
    assert len(workspace._free) == 1
