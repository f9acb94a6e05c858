"""Repeated calls of grouped_matmul: few Python calls, and the bits of a first call, for other offsets and arrays."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import tilewright as tw
from tests.snapshot.calls import entered
from tilewright.runtime.cpu import grouped_jobs
from tilewright.runtime.cpu.grouped import Program

pytestmark = pytest.mark.sampled

M, N, K, G = 60, 70, 96, 4
ENDS = [np.array(x) for x in ([3, 3, 23, 57], [0, 30, 34, 60], [1, 2, 3, 4], [60, 60, 60, 60], [0, 0, 0, 0])]
MOST = 20               # Python functions of the package that a repeated call enters


def floats(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def test_a_packed_stack_is_known_by_itself():
    rng = np.random.default_rng(1)
    a, stacks = floats(rng, M, K), [floats(rng, G, K, N) for _ in range(2)]
    packed = [tw.pack(x, rows=20) for x in stacks]
    for ends in ENDS:
        for p, x in zip(packed, stacks):
            call = partial(tw.grouped_matmul, a, p, ends, threads=1)
            np.testing.assert_allclose(call(), tw.grouped_matmul(a, x, ends), rtol=1e-4, atol=1e-4)
            assert call().tobytes() == call().tobytes()
            assert entered(call).total() <= MOST


@pytest.mark.parametrize("flag", [True, False])
def test_options_that_are_equal_are_not_the_same(flag):
    """1 is no flag, though it is equal to True."""
    rng = np.random.default_rng(2)
    a, b = floats(rng, M, K), floats(rng, G, K, N)
    tw.grouped_matmul(a, b, ENDS[0], deterministic=flag)
    with pytest.raises(TypeError, match="deterministic must be True or False"):
        tw.grouped_matmul(a, b, ENDS[0], deterministic=int(flag))


def test_results_over_operands():
    """An epilogue's operand as out, and a as out, are no repeated calls, and right."""
    rng = np.random.default_rng(3)
    a, b = floats(rng, M, K), floats(rng, G, K, K)
    full = floats(rng, M, K)
    how = {"epilogue": lambda acc, x: acc + x}
    ends = ENDS[0]
    wanted = tw.grouped_matmul(a, b, ends, operands={"x": full}, **how)
    for out, over in ((full.copy(), True), (np.zeros_like(full), False), (full.copy(), True)):
        assert tw.grouped_matmul(a, b, ends, out, operands={"x": out if over else full}, **how) is out
        assert np.array_equal(out, wanted), over
    own, wanted = a.copy(), tw.grouped_matmul(a, b, ends)
    tw.grouped_matmul(a, b, ends, np.empty_like(own))
    tw.grouped_matmul(own, b, ends, own)
    assert np.array_equal(own, wanted)


def test_memory_depends_on_the_sizes_that_were_met(monkeypatch):
    """Not on the rows of a; and it is bounded."""
    programs, step = list[Program](), Program.step
    monkeypatch.setattr(Program, "step", lambda self, *how: programs.append(self) or step(self, *how))
    monkeypatch.setattr(grouped_jobs, "MOST_SIZES", 8)
    rng = np.random.default_rng(5)
    a, b = np.zeros((1_000_000, 24), np.float32), rng.integers(-3, 4, (3, 24, 16)).astype(np.float32)
    out = np.zeros((len(a), 16), np.float32)
    for n in range(12):
        m = 3*n + 1
        a[:m] = rng.integers(-3, 4, (m, 24))
        tw.grouped_matmul(a, b, np.array([n, m, m]), out=out)
        np.testing.assert_array_equal(out[:m], np.concatenate((a[:n] @ b[0], a[n:m] @ b[1])))
    jobs, = programs[0].many.values()
    assert len({*programs}) == 1                        # that of the first call, which the others repeat
    assert sum(x.nbytes for x in (*jobs.sizes, *jobs.templates[:3])) < 10_000
