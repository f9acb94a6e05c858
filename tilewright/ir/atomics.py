"""Operations by which threads meet in memory: atomic accesses, fences and the spin-wait hint.

Orders are LLVM's: monotonic, acquire, release, acq_rel, seq_cst. On a CPU they hold between the threads of the process,
on a GPU between the threads of the device. What they mean is in `simulator.atomics`.
"""
from __future__ import annotations

from functools import cache

from tilewright.ir.operations import Operation


def _load(low, t, p, order):
    """Through an opaque pointer on NVIDIA's chips: LLVM 22 ends the process where a parameter is only read, and so."""
    p = low.hidden(p) if low.dialect.opaque_loads else p
    return low.b.load_atomic(p, low.scoped(order), t.bytes, "atomic", low.type(t))


def _store(low, order, p, x):
    """Built by hand: IRBuilder.store_atomic asks an opaque pointer for its pointee."""
    from llvmlite.ir import instructions
    low.b._insert(instructions.StoreAtomicInstr(low.b.block, x, p, low.scoped(order), low.bits(x) // 8))


def _fence(low, order):
    low.b.fence(order, low.dialect.scope or None)


def _add(low, t, p, x, order):
    """LLVM writes no order into the additions of NVIDIA's chips, so fences on either side say what it says."""
    around = low.dialect.fenced_additions and order != "monotonic"
    if around and order != "acquire":
        _fence(low, "seq_cst" if order == "seq_cst" else "release")
    before = low.b.atomic_rmw("f" * t.is_float + "add", p, x, low.scoped("monotonic" if around else order),
                              name="before")
    low.dialect.addition(low, before)
    if around and order != "release":
        _fence(low, "acquire")
    return before


def _replace(low, t, p, old, new, order):
    return low.b.extract_value(low.b.cmpxchg(p, old, new, low.scoped(order), "monotonic"), 1, name="replaced")


def _pause(low, t):
    arm = low.dialect.triple.startswith("aarch64")
    low.call("llvm.aarch64.hint", None, low.i32(1)) if arm else low.call("llvm.x86.sse2.pause", None)


@cache
def load(order: str) -> Operation:
    return Operation("atomic_load", lambda low, t, p: _load(low, t, p, order),
                     lambda gang, node, p: gang.machine.atomics.load(gang, node, p, order), "atomic", "effect")


@cache
def store(order: str) -> Operation:
    return Operation("atomic_store", lambda low, t, p, x: _store(low, order, p, x),
                     lambda gang, node, p, x: gang.machine.atomics.store(gang, node, p, x, order), "atomic", "effect",
                     writes=True)


@cache
def add(order: str) -> Operation:
    """p[0] += x; what it was before."""
    return Operation("atomic_add", lambda low, t, p, x: _add(low, t, p, x, order),
                     lambda gang, node, p, x: gang.machine.atomics.add(gang, node, p, x, order), "atomic", "effect",
                     writes=True)


@cache
def replace(order: str) -> Operation:
    """p[0] = new if p[0] == old; whether it was so. When it was not, nothing is ordered."""
    return Operation("atomic_replace", lambda low, t, p, old, new: _replace(low, t, p, old, new, order),
                     lambda gang, node, p, old, new: gang.machine.atomics.replace(gang, node, p, old, new, order),
                     "atomic", "effect", writes=True)


@cache
def fence(order: str) -> Operation:
    return Operation("fence", lambda low, t: _fence(low, order),
                     lambda gang, node: gang.machine.atomics.fence(gang, node), "atomic", "effect")


# Tells the core that this is a spin loop: it gives the other hyperthread room and does not run ahead of the load.
PAUSE = Operation("pause", _pause, lambda gang, node: gang.machine.atomics.pause(gang, node), "atomic", "blocking",
                  needs="cpu")
