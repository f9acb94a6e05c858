"""Operations by which threads meet in memory: atomic accesses, fences and the spin-wait hint.

Orders are LLVM's: monotonic, acquire, release, acq_rel, seq_cst. On a CPU they hold between the threads of the process,
on a GPU between the threads of the device. What they mean is in `simulator.atomics`.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from tilewright.ir.ops.core import Operation, by_machine
from tilewright.ir.types import Type, i1
from tilewright.ir.values import Value

if TYPE_CHECKING:
    from tilewright.ir.builder import Kernel


def _load_llvm(low, t, p, order):
    """Through an opaque pointer on NVIDIA's chips: LLVM 22 ends the process where a parameter is only read, and so."""
    p = low.hidden(p) if low.dialect.opaque_loads else p
    return low.b.load_atomic(p, low.scoped(order), t.bytes, "atomic", low.type(t))


def _store_llvm(low, t, p, x, order):
    """Built by hand: IRBuilder.store_atomic asks an opaque pointer for its pointee."""
    from llvmlite.ir import instructions
    low.b._insert(instructions.StoreAtomicInstr(low.b.block, x, p, low.scoped(order), low.bits(x) // 8))


def _fence_llvm(low, t, order):
    low.b.fence(order, low.dialect.scope or None)


def _add_llvm(low, t, p, x, order):
    """LLVM writes no order into the additions of NVIDIA's chips, so fences on either side say what it says."""
    around = low.dialect.fenced_additions and order != "monotonic"
    if around and order != "acquire":
        _fence_llvm(low, t, "seq_cst" if order == "seq_cst" else "release")
    before = low.b.atomic_rmw("f" * t.is_float + "add", p, x, low.scoped("monotonic" if around else order),
                              name="before")
    if low.dialect.family == "amdgcn":
        # What kernels add to is this device's own memory, where hardware adds floats at L2; without these promises LLVM
        # loops over a compare and swap. AMDGPUUsage, "amdgpu.no.fine.grained.memory".
        for promise in ("amdgpu.no.fine.grained.memory", "amdgpu.no.remote.memory"):
            before.set_metadata(promise, low.module.add_metadata([]))
    if around and order != "release":
        _fence_llvm(low, t, "acquire")
    return before


def _replace_llvm(low, t, p, old, new, order):
    return low.b.extract_value(low.b.cmpxchg(p, old, new, low.scoped(order), "monotonic"), 1, name="replaced")


def _pause_llvm(low, t):
    arm = low.dialect.triple.startswith("aarch64")
    low.call("llvm.aarch64.hint", None, low.i32(1)) if arm else low.call("llvm.x86.sse2.pause", None)


_SPELLED: dict[str, Callable] = {
    "load": _load_llvm, "store": _store_llvm, "add": _add_llvm, "replace": _replace_llvm, "fence": _fence_llvm}


@cache
def _operation(name: str, order: str) -> Operation:
    return Operation("fence" if name == "fence" else f"atomic_{name}",
                     lambda low, t, *xs: _SPELLED[name](low, t, *xs, order), by_machine("atomics", name, order),
                     "atomic", "effect", writes=name in ("store", "add", "replace"))


# Tells the core that this is a spin loop: it gives the other hyperthread room and does not run ahead of the load.
PAUSE = Operation("pause", _pause_llvm, by_machine("atomics", "pause"), "atomic", "blocking", needs="cpu")

# The same on NVIDIA's chips: the warp has no issue slot for some 30 ns, up to twice as long.
NANOSLEEP = Operation("nanosleep", lambda low, t: low.asm("nanosleep.u32 32;", low.nothing(), "", effects=True),
                      by_machine("atomics", "pause"), "atomic", "blocking", needs="nvidia")


# ---- how a kernel records them

def _element(pointer: Value) -> Type:
    element: Type = pointer.type.element
    if element.bits < 8:
        raise TypeError(f"an atomic access moves whole bytes, not {element}")
    return element


def load(k: Kernel, pointer: Value, order: str = "acquire") -> Value:
    return k._op(_operation("load", order), _element(pointer), pointer)


def store(k: Kernel, pointer: Value, value: Any, order: str = "release") -> None:
    k._effect(_operation("store", order), pointer, k._value(value, _element(pointer)))


def add(k: Kernel, pointer: Value, value: Any, order: str = "acq_rel") -> Value:
    """p[0] += value; the value before."""
    element = _element(pointer)
    return k._op(_operation("add", order), element, pointer, k._value(value, element))


def replace(k: Kernel, pointer: Value, old: Any, new: Any, order: str = "acquire") -> Value:
    """Compare and swap: p[0] = new if p[0] is old; whether it was. When it was not, nothing is ordered."""
    element = _element(pointer)
    if element.is_float:
        raise TypeError(f"compare and swap compares bits: look at the {element} as an i{element.bits} (`as_`)")
    return k._op(_operation("replace", order), i1, pointer, k._value(old, element), k._value(new, element))


FENCE = _operation("fence", "seq_cst")


def fence(k: Kernel, order: str = "seq_cst") -> None:
    """This thread's accesses before it come before those after it, for threads that synchronise with them."""
    k._effect(_operation("fence", order))


def pause(k: Kernel) -> None:
    """In a spin loop: the core runs no further ahead and leaves room to its other hyperthread."""
    k._effect(PAUSE)


def nanosleep(k: Kernel) -> None:
    """In a loop that waits for another CTA: the threads sleep for a moment. The other one must be running by then, as
    one of a smaller number is, which the device starts first."""
    k._effect(NANOSLEEP)
