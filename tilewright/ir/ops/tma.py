"""Bulk copies between global and shared memory, which one thread starts and the tensor memory accelerator (TMA) makes:
tiles of a tensor by a map of it (`targets.tensor_maps`), or consecutive bytes.

    full.arrive(stage, by="role", expect=a.type.tile.bytes)         # loads: an mbarrier counts the bytes as they come
    with k.when(k.elect()):
        full.load(a_smem, a, (p, i), stage)

    with k.when(k.elect()):                                         # stores: groups of the thread that started them
        k.tma_store(c, (j, i), c_smem)
        k.bulk_commit()
        k.bulk_wait(0, read=True)                                   # the tile in shared memory may be overwritten

What is outside the tensor comes as zeros, and is not stored. Copies belong to the async proxy: what threads have
written to shared memory it sees after `k.fence_async()` and a barrier.

Source: PTX ISA, https://docs.nvidia.com/cuda/parallel-thread-execution/ (cp.async.bulk, cp.async.bulk.tensor,
cp.reduce.async.bulk.tensor, prefetch.tensormap, createpolicy, fence.mbarrier_init)
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.ops.core import Operation, by_machine
from tilewright.ir.types import Pointer, TensorMap, bf16, f16, f32, i16, i32, i64
from tilewright.ir.values import Value
from tilewright.targets.tensor_maps import IMAGE

if TYPE_CHECKING:
    from tilewright.ir.builder import Kernel

ADDED = (f16, bf16, f32, i32, i64)          # elements that a store can add


def spelled(text: str, memory: bool = True) -> Any:
    """The spelling of an effect that is one instruction of PTX: $0, $1 ... are its operands. No access to memory moves
    across it, and it does not move to where fewer lanes come by."""
    def spelling(low: Any, t: Any, *operands: Any) -> None:
        letters = [low.dialect.letter(low, x) for x in operands] + ["~{memory}"] * memory
        low.asm(text, low.nothing(), ",".join(letters), *operands, effects=True, together=True)
    return spelling


def _effect(name: str, text: str, method: str, *more: Any, kind: str = "TMA") -> Operation:
    return Operation(name, spelled(text), by_machine("bulk", method, *more), kind, "effect", needs="tma")


def _coordinates(rank: int, first: int) -> str:
    return "{" + ", ".join(f"${first + d}" for d in range(rank)) + "}"


@cache
def _load(count: int, images: bool, multicast: bool, policy: bool) -> Operation:
    """Takes a destination, the map, the mbarrier, `count` coordinates (of images the last two are a window's offsets),
    a mask of the cluster's CTAs, and an L2 policy."""
    rank = IMAGE if images else count
    name = (f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.{'im2col' if images else 'tile'}"
            ".mbarrier::complete_tx::bytes")
    name += ".multicast::cluster" * multicast + ".L2::cache_hint" * policy
    more = f", {_coordinates(count - rank, 3 + rank)}" * images
    more += "".join(f", ${3 + count + e}" for e in range(multicast + policy))
    return _effect(name, f"{name} [$0], [$1, {_coordinates(rank, 3)}], [$2]{more};", "load", multicast, policy)


@cache
def _store(rank: int, add: bool) -> Operation:
    """Takes a source, the map and coordinates."""
    name = f"cp.async.bulk.tensor.{rank}d.global.shared::cta"
    name = f"{name.replace('cp.', 'cp.reduce.')}.add" if add else name
    name += ".tile.bulk_group"
    return _effect(name, f"{name} [$1, {_coordinates(rank, 2)}], [$0];", "store", add)


def _bulk_load(low: Any, t: Any, smem: Any, gmem: Any, bytes: Any, pointer: Any) -> None:
    low.call("llvm.nvvm.cp.async.bulk.global.to.shared.cta", None, smem, pointer, gmem, bytes, low.integer(64)(0),
             low.integer(1)(0))


# Copy consecutive bytes from global to shared memory; the mbarrier counts them as they come.
BULK_LOAD = Operation("cp.async.bulk", _bulk_load, by_machine("bulk", "load_bytes"), "bulk copy", "effect", needs="tma")
BULK_STORE = Operation("cp.async.bulk.store", spelled("cp.async.bulk.global.shared::cta.bulk_group [$0], [$1], $2;"),
                       by_machine("bulk", "store_bytes"), "bulk copy", "effect", needs="tma", writes=True)
COMMIT = _effect("cp.async.bulk.commit_group", "cp.async.bulk.commit_group;", "commit", kind="bulk group")
PREFETCH = Operation("prefetch.tensormap", spelled("prefetch.tensormap [$0];"), None, "TMA", "effect", needs="tma")


def _policy(number: int, priority: str) -> Operation:
    """In the simulator, whose L2 evicts nothing, a number."""
    name = f"createpolicy.fractional.L2::{priority}.b64"
    return Operation(name, lambda low, t: low.asm(f"{name} $0, 1.0;", low.type(t), "=l"), lambda t: np.int64(number),
                     "move", needs="tma")


POLICIES = {priority: _policy(number, priority) for number, priority in enumerate(
    ("evict_first", "evict_last", "evict_normal"))}


@cache
def _wait(pending: int, read: bool) -> Operation:
    name = f"cp.async.bulk.wait_group{'.read' * read}"
    return _effect(f"{name} {pending}", f"{name} {pending};", "wait", pending, read, kind="bulk group")


def _fence_init(low: Any, t: Any) -> None:
    """Only in kernels with bulk copies: chips before sm_90 lack the instruction."""
    if {"TMA", "bulk copy"} & low.kinds:
        low.asm("fence.mbarrier_init.release.cluster;", low.nothing(), "~{memory}", effects=True)


# Mbarriers that this thread has made are now such for copies, and for the cluster.
FENCE_INIT = Operation("fence.mbarrier_init", _fence_init, lambda gang, node: gang.machine.clocks.fence_proxy(
    *gang.acting_lanes()), "", "effect", needs="gpu")


def load(k: Kernel, smem: Value, map: Value, at: Sequence[Any], mbarrier: Value, ctas: Any = None,
         policy: Value | None = None) -> None:
    """See `Mbarriers.load`."""
    coordinates, last = _checked(k, smem, map, at), () if policy is None else (policy,)
    if policy is not None and policy.type != i64:
        raise TypeError(f"a policy of L2 is the i64 of k.l2_policy(), not {policy.type}")
    images = map.type.images
    if ctas is None:
        k._effect(_load(len(coordinates), images, False, bool(last)), smem, map, mbarrier, *coordinates, *last)
        return
    if k.function.ctas_cluster == 1:
        raise SyntaxError(f"a copy for several CTAs is for clusters, and {k.function.name} has none: "
                          "Kernel(cluster=(x, y, z))")
    mask = k.cast(ctas, i16) if isinstance(ctas, Value) else k.constant(i16, ctas)
    k._effect(_load(len(coordinates), images, True, bool(last)), smem, map, mbarrier, *coordinates, mask, *last)


def l2_policy(k: Kernel, priority: str) -> Value:
    """For copies: what they bring leaves L2 before other data ("evict_first") or after it ("evict_last"), or as usual
    ("evict_normal")."""
    if priority not in POLICIES:
        raise ValueError(f"priority must be {', '.join(POLICIES)}, not {priority!r}")
    return k._op(POLICIES[priority], i64)


def tma_store(k: Kernel, map: Value, at: Sequence[Any], smem: Value, add: bool = False) -> None:
    """The active thread has a tile in shared memory stored at these coordinates of a tensor, the contiguous one first,
    or added to what is there. It reads until a `bulk_wait` of the thread is over."""
    coordinates = _checked(k, smem, map, at)
    if map.type.images:
        raise TypeError("a tile of images is loaded, not stored")
    if add and map.type.element not in ADDED:
        raise TypeError(f"a copy adds {', '.join(str(t) for t in ADDED)}, not {map.type.element}")
    k._effect(_store(len(coordinates), add), smem, map, *coordinates)


def bulk_store(k: Kernel, gmem: Value, smem: Value, bytes: Any) -> None:
    """The active thread has consecutive bytes (a multiple of 16, like both addresses) copied to global memory."""
    if smem.type.space != "shared" or gmem.type.space != "global":
        raise TypeError(f"a store goes from shared to global memory, not from {smem.type} to {gmem.type}")
    k._effect(BULK_STORE, gmem, smem, k._value(bytes, i32))


def bulk_commit(k: Kernel) -> None:
    """Close the group of the stores that this thread has started since the last group."""
    k._effect(COMMIT)


def bulk_wait(k: Kernel, pending: int = 0, read: bool = False) -> None:
    """Wait until at most `pending` of this thread's newest groups of stores are still in flight; with `read`, until the
    others have read shared memory, and may still write."""
    if not isinstance(pending, int) or pending < 0:
        raise ValueError(f"pending must be a Python number from 0 on, not {pending!r}")
    k._effect(_wait(pending, read))


def prefetch_map(k: Kernel, map: Value) -> None:
    """Ask for a map itself, before the first copy by it."""
    if not isinstance(map.type, TensorMap):
        raise TypeError(f"only a map of a tensor can be prefetched so, not {map.type}")
    k._effect(PREFETCH, map)


def _checked(k: Kernel, smem: Value, map: Value, at: Sequence[Any]) -> list[Value]:
    """The coordinates as values. TypeError, ValueError for operands that are none."""
    if not isinstance(map.type, TensorMap):
        raise TypeError(f"a tile is copied by a parameter that is a TensorMap, not {map.type}")
    if not isinstance(smem.type, Pointer) or smem.type.space != "shared":
        raise TypeError(f"a tile is copied between global and shared memory, not {smem.type}")
    tile = map.type.tile
    if len(at) != tile.coordinates:
        raise ValueError(f"a {map.type} has {tile.coordinates} coordinates, got {len(at)}")
    return [k._value(x, i32) if d < IMAGE or not tile.images else k.cast(k._value(x, i32), i16)
            for d, x in enumerate(at)]
