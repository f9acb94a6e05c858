"""Warps with different work: declared roles, and pipelines of mbarriers whose arrivals are counted from them.

    full, empty = k.mbarriers("full", STAGES), k.mbarriers("empty", STAGES)
    k.init_mbarriers()
    with k.role("producer", warps=1), k.loop(tiles) as t:
        empty.wait(t % STAGES, t // STAGES % 2 ^ 1)
        ...                                             # fill stage t % STAGES
        full.arrive(t % STAGES)
    with k.role("consumer", warps=4), k.loop(tiles) as t:
        full.wait(t % STAGES, t // STAGES % 2)
        ...                                             # use it
        empty.arrive(t % STAGES)

How many arrivals complete a phase follows from the roles that arrive: kernels do not state it. What cannot be right is
an error in the line that records it.

An mbarrier is a barrier in shared memory that threads arrive at and others wait for, phase by phase. A phase completes
when as many threads have arrived as the barrier was made for, and all bytes that were announced for it have come. A
wait names a parity, and is over when the last completed phase has it. In the simulator the phases are those of
`simulator.barriers`. Source: NVIDIA, "PTX ISA", https://docs.nvidia.com/cuda/parallel-thread-execution/ (mbarrier,
cp.async.bulk).
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.ops import tma
from tilewright.ir.ops.core import Operation, by_machine, calls
from tilewright.ir.program import If, caller
from tilewright.ir.types import Type, i32, i64, vec
from tilewright.ir.values import Value

if TYPE_CHECKING:
    from tilewright.ir.builder import Kernel

EVERYBODY = "the CTA"
STORED = 16                     # bytes that a store to another CTA brings
BARRIERS = 16                   # that a CTA has. PTX ISA, "barrier{.cta}"


@dataclass(eq=False)
class Role(If):
    """A branch that warps `first` ... `first + warps - 1` of the CTA take."""
    name: str = ""
    first: int = 0
    warps: int = 0


# ---- roles

def linear_thread(k: Kernel) -> Value:
    """The number of this thread in its CTA, along x first."""
    (x, y), (width, height) = k.thread, k.cta_shape
    return x if height == 1 else y * width + x


def _threads(k: Kernel) -> int:
    """How many threads a CTA has."""
    return k.cta_shape[0] * k.cta_shape[1]


@contextmanager
def role(k: Kernel, name: str, warps: int | None = None) -> Iterator[Role]:
    """These warps of the CTA, and only they. Roles take warps in the order of their declaration; the same name
    again is the same warps again."""
    if k._role is not None:
        raise SyntaxError(f"role {name} begins inside role {k._role.name}")
    roles = {node.name: node for node in k.function.walk() if isinstance(node, Role)}
    known = roles.get(name)
    if known is not None and warps not in (None, known.warps):
        raise ValueError(f"role {name} has {known.warps} warps, not {warps}")
    if known is None and warps is None:
        raise ValueError(f"role {name} is new here: pass its number of warps")
    first = known.first if known else max((r.first + r.warps for r in roles.values()), default=0)
    count = known.warps if known else int(warps or 0)
    there = _threads(k) // k.warp
    if count < 1 or first + count > there:
        raise ValueError(f"role {name} would be warps {first} to {first + count - 1} of a CTA that has {there}")
    low, high, t = first * k.warp, (first + count) * k.warp, linear_thread(k)
    condition = t < high if first == 0 else t >= low if high == _threads(k) else (t >= low) & (t < high)
    node = k._record(Role(condition, [], [], caller(), name, first, count))
    with k._into(node.then, "role"):
        k._role = node
        yield node
        k._role = None


def whole_cta(k: Kernel, what: str) -> None:
    """SyntaxError where only some warps of the CTA would come to what waits for all."""
    if k._role is not None and k._role.warps * k.warp != _threads(k):
        raise SyntaxError(f"{what} waits for all warps of the CTA, and role {k._role.name} has only "
                          f"{k._role.warps} of {_threads(k) // k.warp}")


@cache
def _role_barrier(number: int, first: int, warps: int, warp: int) -> Operation:
    """A barrier of some warps by the CTA's hardware barrier `number`; 0 is that of all its threads."""
    return Operation("role_barrier", calls("llvm.nvvm.barrier.cta.sync.aligned.count", number, warps * warp),
                     lambda gang, node: gang.role_barrier(node, first, warps), "barrier", "blocking", needs="nvidia")


def role_barrier(k: Kernel) -> None:
    """All threads of this role meet here, and no others; what they wrote before is then visible to all of them."""
    role = k._role
    if role is None:
        raise SyntaxError("role_barrier() is called inside of a role; k.barrier() is for all threads of the CTA")
    firsts = sorted({node.first for node in k.function.walk() if isinstance(node, Role)})
    if (number := firsts.index(role.first) + 1) >= BARRIERS:
        raise SyntaxError(f"role {role.name} would have barrier {number} of a CTA, and it has {BARRIERS}")
    k._effect(_role_barrier(number, role.first, role.warps, k.warp))


# ---- mbarriers: the instructions

def _wait(wait: str, scope: str = "cta") -> Any:
    """A loop: hardware may give up waiting."""
    def spelling(low: Any, t: Any, pointer: Any, parity: Any) -> None:
        again, done = low.label("wait"), low.label("arrived")
        low.b.branch(again)
        low.b.position_at_end(again)
        intrinsic = f"llvm.nvvm.mbarrier.{wait}.wait.parity.scope.{scope}.space.cta"
        low.b.cbranch(low.call(intrinsic, low.integer(1), pointer, parity), done, again)
        low.b.position_at_end(done)
    return spelling


def _effect(name: str, spelling: Any, method: str, needs: str = "mbarrier", role: str = "effect",
            kind: str = "mbarrier") -> Operation:
    return Operation(name, spelling, by_machine("mbarriers", method), kind, role, needs=needs)


# For `count` arrivals in each phase.
INIT = _effect("mbarrier.init", calls("llvm.nvvm.mbarrier.init.shared"), "init")
ARRIVE = _effect("mbarrier.arrive", lambda low, t, p: low.call("llvm.nvvm.mbarrier.arrive.shared", low.integer(64), p),
                 "arrive")
# The same at an mbarrier of a CTA of the cluster. Its scope is the CTA, the default: a release to the cluster waits for
# stores of the thread, and the thread there that starts the next copies needs to know only that reads have ended.
ARRIVE_REMOTE = _effect("mbarrier.arrive.cluster", tma.spelled(
    "mbarrier.arrive.shared::cluster.b64 _, [$0];"), "arrive", "cluster")
# Arrive, and announce so many bytes that copies are to bring in this phase.
ARRIVE_EXPECT = _effect("mbarrier.arrive.expect_tx", lambda low, t, p, bytes: low.call(
    "llvm.nvvm.mbarrier.arrive.expect.tx.scope.cta.space.cta", low.integer(64), p, bytes), "arrive_expect", "tma")
# The first asks again and again, the second lets the hardware put the warp to sleep for a while.
TEST_WAIT = _effect("mbarrier.test_wait", _wait("test"), "wait", role="blocking")
TRY_WAIT = _effect("mbarrier.try_wait", _wait("try"), "wait", "tma", "blocking")
# The same for what threads of other CTAs of the cluster have stored.
TRY_WAIT_CLUSTER = _effect("mbarrier.try_wait.cluster", _wait("try", "cluster"), "wait", "cluster", "blocking")


@cache
def _store(t: Type) -> Operation:
    """Four numbers of 32 bits to another CTA's memory, whose mbarrier counts them as they come."""
    kind = "f32" if t.is_float else "s32"
    text = f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.{kind} [$0], {{$2, $3, $4, $5}}, [$1];"

    def meaning(gang: Any, node: Any, smem: Any, pointer: Any, *numbers: Any) -> None:
        access = gang.access(node, "store", vec(t, len(numbers)), STORED, remote=True)
        access.scatter(gang, np.broadcast_to(smem, gang.size), np.stack([
            np.broadcast_to(x, gang.size) for x in numbers]), None)
        gang.machine.mbarriers.come(gang, node, pointer, STORED)
    return Operation(f"st.async.{kind}", tma.spelled(text), meaning, "st.async", "effect", needs="cluster", writes=True)


def mbarriers(k: Kernel, name: str, count: int = 1) -> Mbarriers:
    """`count` mbarriers in shared memory, one for each stage of a pipeline."""
    made = Mbarriers(k, name, count)
    k._mbarriers += (made,)
    return made


def init_mbarriers(k: Kernel) -> None:
    """Make those that were declared ready for use: thread 0 does, and the CTA (the cluster, if there are any) meets
    behind it."""
    whole_cta(k, "making mbarriers")
    if not k._mbarriers:
        raise ValueError("there are no mbarriers to initialise")
    with k.when(linear_thread(k) == 0):
        for made in k._mbarriers:
            made.ready = True
            for stage in range(made.count):
                k._effect(INIT, made.pointer + stage, made.arrivals)
        k._effect(tma.FENCE_INIT)
    k._mbarriers = ()
    k.barrier() if k.function.ctas_cluster == 1 else k.cluster_barrier()


class Mbarriers:
    """An array of mbarriers, `barriers.arrive(stage)`, `barriers.wait(stage, parity)`."""

    def __init__(self, k: Kernel, name: str, count: int) -> None:
        self.k, self.name, self.count, self.ready = k, name, count, False
        self.pointer: Value = k._array(name, (count,), i64, "shared", 8)
        self.arrivals = Value(k, i32, constant=0)       # of a phase: grows as roles are found to arrive
        self.by: dict[str, int] = {}                    # role → its arrivals in a phase

    def arrive(self, stage: Any = 0, by: str = "thread", expect: Any = None, everywhere: bool = False,
               turns: int = 1) -> None:
        """Every thread of the role arrives, or one lane of each warp of it (by="warp"), or one thread (by="role").

        `expect` announces the bytes that bulk copies will bring in this phase, for each arrival. `everywhere`: each
        arrives at this mbarrier of every CTA of the cluster, so that a copy for several CTAs may be started.
        `turns`: in each phase one of so many equal parts of the role arrives, and the others do not.
        """
        k, pointer = self.k, self._at(stage)
        self._count(by, k.function.ctas_cluster if everywhere else 1, turns)
        if everywhere and expect is not None:
            raise ValueError("bytes are announced to the own CTA's mbarrier only: expect=, without everywhere=True")
        role = k._role
        first = role.first * k.warp if role else 0
        t = linear_thread(k)

        with nullcontext() if by == "thread" else k.when(t % k.warp == 0 if by == "warp" else t == first):
            if everywhere:
                for rank in range(k.function.ctas_cluster):
                    k._effect(ARRIVE_REMOTE, k.of_cta(pointer, rank))
            elif expect is None:
                k._effect(ARRIVE, pointer)
            else:
                k._effect(ARRIVE_EXPECT, pointer, k._value(expect, i32))

    def wait(self, stage: Any = 0, parity: Any = 0, sleep: bool = False, cluster: bool = False) -> None:
        """Wait until the phase of this parity is complete: 0 for the first, 1 for the second, 0 for the third ...; at
        the beginning parity 1 counts as complete. `sleep`: as Hopper's try_wait, which frees the issue slot; `cluster`:
        that, for what `store` of other CTAs brings."""
        how = TRY_WAIT_CLUSTER if cluster else TRY_WAIT if sleep else TEST_WAIT
        self.k._effect(how, self._at(stage), self.k._value(parity, i32))

    def store(self, place: Value, numbers: Sequence[Value], stage: Any, rank: Any) -> None:
        """Each active thread stores four numbers of 32 bits at a `place` in the shared memory of the cluster's CTA
        `rank` (k.of_cta), a multiple of 16 bytes, for the phase of the mbarrier there to count: STORED bytes, to be
        announced by `arrive(stage, expect=...)` of that CTA. The thread goes on at once.

        Source: PTX ISA, "st.async"."""
        t = place.type.element
        if place.type.space != "cluster" or t.bits != 32 or len(numbers) != 4:
            raise TypeError(f"four numbers of 32 bits are stored in a cluster's shared memory, not {len(numbers)} at a "
                            f"{place.type}")
        barrier = self.k.of_cta(self._at(stage), rank)
        self.k._effect(_store(t), place, barrier, *(self.k._value(x, t) for x in numbers))

    def copy(self, smem: Value, gmem: Value, bytes: Any, stage: Any = 0) -> None:
        """The active thread has consecutive bytes (a multiple of 16) copied from global to shared memory, for this
        phase to count. To be announced by `arrive(stage, expect=bytes)`."""
        if smem.type.space != "shared" or gmem.type.space != "global":
            raise TypeError(f"a copy goes from global to shared memory, not from {gmem.type} to {smem.type}")
        self.k._effect(tma.BULK_LOAD, smem, gmem, self.k._value(bytes, i32), self._at(stage))

    def load(self, smem: Value, map: Value, at: Sequence[Any], stage: Any = 0, ctas: Any = None,
             policy: Value | None = None) -> None:
        """The active thread has the tile at these coordinates of a tensor (the contiguous one first) copied to shared
        memory, for this phase to count: `map.type.tile.bytes`, to be announced by `arrive(stage, expect=...)`.

        `ctas`: a mask of the cluster's CTAs, bit r for rank r, each of which gets the tile at the same place of its
        shared memory, counted by its own mbarrier. SyntaxError without clusters. `policy`: of L2, by `k.l2_policy`.
        """
        tma.load(self.k, smem, map, at, self._at(stage), ctas, policy)

    # ---- counting

    def _at(self, stage: Any) -> Value:
        if not self.ready:
            raise SyntaxError(f"mbarriers {self.name} are used before k.init_mbarriers()")
        if isinstance(stage, int) and not 0 <= stage < self.count:
            raise IndexError(f"there is no stage {stage} of {self.name}: it has {self.count}")
        return self.pointer + stage

    def _count(self, by: str, ctas: int = 1, turns: int = 1) -> None:
        """Arrivals in a phase, of which those of `ctas` CTAs come here, and one of `turns` parts of the role's."""
        k, role = self.k, self.k._role
        name, threads = (role.name, role.warps * k.warp) if role else (EVERYBODY, _threads(k))
        arrivals = {"thread": threads, "warp": -(-threads // k.warp), "role": 1}.get(by)
        if arrivals is None:
            raise ValueError(f'by must be "thread", "warp" or "role", not {by!r}')
        if _is_conditional(role.then if role else k.function.body, k._body):
            raise SyntaxError(f"{self.name}.arrive() must not be under a condition, where the number of arriving "
                              f'threads of {name} is unknown: call it outside, with by="warp" or by="role" for '
                              "one arrival each")
        if arrivals % turns:
            raise ValueError(f"{arrivals} arrivals of {name} at {self.name} are not {turns} equal parts")
        arrivals = arrivals * ctas // turns
        if self.by.setdefault(name, arrivals) != arrivals:
            raise ValueError(f"{name} arrives at {self.name} with {arrivals} threads here, and with {self.by[name]} "
                             "elsewhere")
        if EVERYBODY in self.by and len(self.by) > 1:
            raise ValueError(f"the whole CTA and a role of it cannot both arrive at {self.name}: "
                             f"{' and '.join(self.by)} do")
        self.arrivals.constant = sum(self.by.values())


def _is_conditional(nodes: list, body: list) -> bool:
    """Is `body` reached from these nodes only through a branch?"""
    return nodes is not body and not any(_reaches(node, body) for node in nodes)


def _reaches(node: Any, body: list) -> bool:
    parts = [getattr(node, part) for part in ("head", "body") if hasattr(node, part)]
    return any(part is body or any(_reaches(inner, body) for inner in part) for part in parts)
