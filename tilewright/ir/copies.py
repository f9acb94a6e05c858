"""Asynchronous copies from global to shared memory (`cp.async`): who copies is not the thread, but an agent in flight.

What they mean is in `simulator.copies`.
"""
from __future__ import annotations

from functools import cache

from tilewright.ir.operations import Operation


def _intrinsic(bytes: int) -> str:
    """16 bytes pass L1 by; fewer can only go through it."""
    return f"llvm.nvvm.cp.async.{'cg' if bytes == 16 else 'ca'}.shared.global.{bytes}"


@cache
def copy(bytes: int) -> Operation:
    return Operation(f"cp_async{bytes}", lambda low, t, smem, gmem: low.call(_intrinsic(bytes), None, smem, gmem),
                     lambda gang, node, smem, gmem: gang.machine.copies.start(gang, node, smem, gmem, bytes),
                     "cp.async", "effect", needs="cp.async")


@cache
def copy_some(bytes: int) -> Operation:
    """The same, of which the first `valid` bytes are read and the others written as zeros."""
    return Operation(f"cp_async{bytes}_some",
                     lambda low, t, smem, gmem, n: low.call(_intrinsic(bytes) + ".s", None, smem, gmem, n),
                     lambda gang, node, smem, gmem, n: gang.machine.copies.start(gang, node, smem, gmem, bytes, n),
                     "cp.async", "effect", needs="cp.async")


COMMIT = Operation("cp_async_commit", lambda low, t: low.call("llvm.nvvm.cp.async.commit.group", None),
                   lambda gang, node: gang.machine.copies.commit(gang, node), "cp.async group", "effect",
                   needs="cp.async")


@cache
def wait(pending: int) -> Operation:
    return Operation(f"cp_async_wait{pending}",
                     lambda low, t: low.call("llvm.nvvm.cp.async.wait.group", None, low.i32(pending)),
                     lambda gang, node: gang.machine.copies.wait(gang, node, pending), "cp.async group", "effect",
                     needs="cp.async")
