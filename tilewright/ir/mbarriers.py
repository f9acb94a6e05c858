"""Operations on mbarriers: barriers in shared memory that threads arrive at and others wait for, phase by phase.

A phase completes when as many threads have arrived as the barrier was made for, and all bytes that were announced for
it have come. A wait names a parity, and is over when the last completed phase has it. What they mean is in
`simulator.mbarriers`.
"""
from __future__ import annotations

from typing import Any

from tilewright.ir.operations import Operation


def _wait(wait: str) -> Any:
    """A loop: hardware may give up waiting."""
    def spelling(low: Any, t: Any, pointer: Any, parity: Any) -> None:
        again, done = low.label("wait"), low.label("arrived")
        low.b.branch(again)
        low.b.position_at_end(again)
        intrinsic = f"llvm.nvvm.mbarrier.{wait}.wait.parity.scope.cta.space.cta"
        low.b.cbranch(low.call(intrinsic, low.integer(1), pointer, parity), done, again)
        low.b.position_at_end(done)
    return spelling


def _bulk(low: Any, t: Any, smem: Any, gmem: Any, bytes: Any, pointer: Any) -> None:
    low.call("llvm.nvvm.cp.async.bulk.global.to.shared.cta", None, smem, pointer, gmem, bytes, low.integer(64)(0),
             low.integer(1)(0))


def _effect(name: str, spelling: Any, method: str, needs: str, role: str = "effect",
            kind: str = "mbarrier") -> Operation:
    def meaning(gang: Any, node: Any, *operands: Any) -> Any:
        return getattr(gang.machine.mbarriers, method)(gang, node, *operands)
    return Operation(name, spelling, meaning, kind, role, needs=needs)


# For `count` arrivals in each phase.
INIT = _effect("mbarrier.init", lambda low, t, p, count: low.call("llvm.nvvm.mbarrier.init.shared", None, p, count),
               "init", "mbarrier")
ARRIVE = _effect("mbarrier.arrive", lambda low, t, p: low.call("llvm.nvvm.mbarrier.arrive.shared", low.integer(64), p),
                 "arrive", "mbarrier")
# Arrive, and announce so many bytes that copies are to bring in this phase.
ARRIVE_EXPECT = _effect("mbarrier.arrive.expect_tx", lambda low, t, p, bytes: low.call(
    "llvm.nvvm.mbarrier.arrive.expect.tx.scope.cta.space.cta", low.integer(64), p, bytes), "arrive_expect", "tma")
# Arrive when all copies (cp.async) that this thread has started before have come.
ARRIVE_COPIES = _effect("cp.async.mbarrier.arrive", lambda low, t, p: low.call(
    "llvm.nvvm.cp.async.mbarrier.arrive.noinc.shared", None, p), "arrive_copies", "mbarrier")
# The first asks again and again, the second lets the hardware put the warp to sleep for a while.
TEST_WAIT = _effect("mbarrier.test_wait", _wait("test"), "wait", "mbarrier", "blocking")
TRY_WAIT = _effect("mbarrier.try_wait", _wait("try"), "wait", "tma", "blocking")
# Copy consecutive bytes from global to shared memory; the mbarrier counts them as they come.
BULK_COPY = _effect("cp.async.bulk", _bulk, "bulk_copy", "tma", kind="bulk copy")
