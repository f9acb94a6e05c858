"""What NVIDIA's GPUs alone have: copies in flight (cp.async), thread block clusters, textures. Mbarriers and what they
wait for are in `ir.ops.pipelines`.

Sources: NVIDIA, "PTX ISA", https://docs.nvidia.com/cuda/parallel-thread-execution/ (cp.async, barrier.cluster, mapa,
tex); LLVM, "User Guide for NVPTX Back-end", https://llvm.org/docs/NVPTXUsage.html
"""
from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.ops.core import Operation, by_machine, calls
from tilewright.ir.ops.pipelines import whole_cta
from tilewright.ir.types import Pointer, Texture, f32, f64, i32, vec
from tilewright.ir.values import Value

if TYPE_CHECKING:
    from tilewright.ir.builder import Kernel

COPIED = (4, 8, 16)                                     # bytes that one asynchronous copy can move
TEXELS = (vec(f32, 4), vec(i32, 4), vec(f64, 2))        # what one fetch can bring: always 16 bytes


# ---- copies from global to shared memory that go on while the thread does

@cache
def _copy(bytes: int, some: bool) -> Operation:
    """`some`: only the first `valid` bytes are read, the others written as zeros. 16 bytes bypass L1, fewer cannot."""
    intrinsic = f"llvm.nvvm.cp.async.{'cg' if bytes == 16 else 'ca'}.shared.global.{bytes}{'.s' * some}"

    def meaning(gang: Any, node: Any, smem: Any, gmem: Any, valid: Any = None) -> None:
        gang.machine.copies.start(gang, node, smem, gmem, bytes, valid)
    return Operation(f"cp_async{bytes}{'_some' * some}", calls(intrinsic), meaning, "cp.async", "effect",
                     needs="cp.async")


def cp_async(k: Kernel, smem: Value, gmem: Value, bytes: int, valid: Any = None) -> None:
    """Start to copy `bytes` (4, 8 or 16, both addresses aligned to them) from global to shared memory.

    Only the first `valid` of them are read (an i32 value; all if None), the others are written as zeros. Nobody may
    read the destination before this thread has waited for the group of the copy, and others not before a barrier.
    """
    if bytes not in COPIED:
        raise ValueError(f"an asynchronous copy moves 4, 8 or 16 bytes, not {bytes}")
    if smem.type.space != "shared" or gmem.type.space != "global":
        raise TypeError(f"a copy goes from global to shared memory, not from {gmem.type} to {smem.type}")
    k._effect(_copy(bytes, valid is not None), smem, gmem, *(() if valid is None else (k._value(valid, i32),)))


COMMIT = Operation("cp_async_commit", calls("llvm.nvvm.cp.async.commit.group"), by_machine("copies", "commit"),
                   "cp.async group", "effect", needs="cp.async")


def cp_async_commit(k: Kernel) -> None:
    """Close the group of the copies that this thread has started since the last group."""
    k._effect(COMMIT)


@cache
def _wait(pending: int) -> Operation:
    return Operation(f"cp_async_wait{pending}", calls("llvm.nvvm.cp.async.wait.group", pending),
                     by_machine("copies", "wait", pending), "cp.async group", "effect", needs="cp.async")


def cp_async_wait(k: Kernel, pending: int = 0) -> None:
    """Wait until at most `pending` of this thread's newest groups are still in flight."""
    k._effect(_wait(pending))


# ---- clusters: CTAs that run at once, by Kernel(cluster=(x, y, z)), meet, and read one another's shared memory

# This thread has come, and what it did before is for all threads of the cluster to see (release); it goes on.
ARRIVE = Operation("cluster_arrive", calls("llvm.nvvm.barrier.cluster.arrive.aligned"),
                   by_machine("clusters", "arrive"), "cluster barrier", "effect", needs="cluster")
# Nobody goes on before all threads of the cluster have come; what they did before that is then visible (acquire).
WAIT = Operation("cluster_wait", calls("llvm.nvvm.barrier.cluster.wait.aligned"), by_machine("clusters", "wait"),
                 "cluster barrier", "blocking", needs="cluster")


def cluster_barrier(k: Kernel) -> None:
    """All threads of all CTAs of the cluster meet here; what each did in memory before, the others see after.

    Before they have met once a CTA may not have begun, and after they meet for the last time it may be gone: only
    between can others use its shared memory."""
    cluster_arrive(k)
    cluster_wait(k)


def cluster_arrive(k: Kernel) -> None:
    """The first half of the barrier: let the others know that this thread has come, and go on."""
    in_cluster(k, "a cluster barrier")
    whole_cta(k, "a cluster barrier")
    k._effect(ARRIVE)


def cluster_wait(k: Kernel) -> None:
    """The other half: wait until all have come."""
    in_cluster(k, "a cluster barrier")
    k._effect(WAIT)


# The place in another CTA's shared memory that corresponds to one of this CTA's.
OF_CTA = Operation("of_cta", lambda low, t, p, rank: low.call("llvm.nvvm.mapa.shared.cluster", t, p, rank, name="at"),
                   by_machine("clusters", "of_cta"), "integer", "effect", needs="cluster")


def cluster_rank(k: Kernel) -> Value:
    """Which CTA of its cluster this one is: x + y*X + z*X*Y, from its place in a cluster of X x Y x Z."""
    in_cluster(k, "cluster_rank")
    return k._builtin("cluster.ctarank")


def of_cta(k: Kernel, smem: Value, rank: Any) -> Value:
    """The same place in the shared memory of the cluster's CTA `rank` (an i32): a pointer to "cluster" memory."""
    in_cluster(k, "of_cta()")
    if not isinstance(smem.type, Pointer) or smem.type.space != "shared":
        raise TypeError(f"of_cta() takes a place in this CTA's shared memory, not a {smem.type}")
    there = Pointer(smem.type.element, "cluster")
    found = k._op(OF_CTA, there, smem, k._value(rank, i32))
    return Value(k, there, array=smem.array, strides=smem.strides, id=found.id)


def in_cluster(k: Kernel, what: str) -> None:
    """SyntaxError unless the kernel has clusters."""
    if k.function.ctas_cluster == 1:
        raise SyntaxError(f"{what} is for clusters, and {k.function.name} has none: Kernel(cluster=(x, y, z))")


# ---- textures: an index outside gives zeros, so that edges need no predicate

def _fetch_llvm(low: Any, t: Any, texture: Any, index: Any) -> Any:
    """The intrinsic returns a struct of four words; an f64 travels as two of integers."""
    word, name = (f32, "f32") if t.scalar == f32 else (i32, "s32")
    texel = low.call(f"llvm.nvvm.tex.unified.1d.v4{name}.s32", low.struct([word] * 4), texture, index)
    words = low.pack([low.b.extract_value(texel, e) for e in range(4)], vec(word, 4))
    return low.b.bitcast(words, low.type(t), name="texel")


def _fetch_meaning(gang: Any, node: Any, texture: Any, index: Any) -> Any:
    """Texel `index` [threads] as [length, threads]."""
    t = node.operands[0].type.texel
    index = np.broadcast_to(index, gang.size).astype(np.int64)
    inside = (index >= 0) & (index < gang.machine.memory.find(int(texture)).size // t.bytes)
    access = gang.access(node, "load", t, t.bytes)
    return access.gather(gang, texture + np.where(inside, index, 0) * t.bytes, None if inside.all() else inside)


FETCH = Operation("fetch", _fetch_llvm, _fetch_meaning, "texture", "effect", needs="gpu")


def fetch(k: Kernel, texture: Value, index: Value) -> Value:
    """Texel `index` (an i32) of a texture parameter, a vector; zeros where it is outside."""
    if not isinstance(texture.type, Texture):
        raise TypeError(f"only a texture parameter can be fetched from, not {texture.type}")
    return k._op(FETCH, texture.type.texel, texture, k._value(index, i32))
