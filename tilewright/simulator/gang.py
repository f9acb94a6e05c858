"""Threads that stand at one point of the program and move on together: one NumPy operation does the work of all.

A CPU thread is a gang of one. On a GPU a gang holds whole warps, of one CTA or several. Lanes that part company inside
a warp are masked; warps that part company around something that blocks become two gangs, and gangs that have waited at
the same point become one again.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.simulator.access import Access
from tilewright.simulator.barriers import PhaseBarrier, PhaseWait, Wait, all_come, arrive
from tilewright.simulator.report import Fault

if TYPE_CHECKING:
    from tilewright.ir.program import Op
    from tilewright.simulator.code import Code
    from tilewright.simulator.machine import Machine
    from tilewright.simulator.memory import Region

Mask = NDArray[np.bool_] | None             # which of a gang's threads; None stands for all


class Frame:
    """A call in progress. `env` holds its values by slot, for all threads of the gang along the last axis."""
    __slots__ = ("code", "entered", "env", "locals", "masks", "pc", "pending", "result", "returned")

    def __init__(self, code: Code, env: list[Any], mask: Mask, returned: int | None, locals: list[Region]) -> None:
        self.code, self.pc, self.env, self.locals = code, 0, env, locals
        self.entered = mask                 # the threads that made the call
        self.masks: list[Mask] = [mask]     # those still in it; then those active in each region entered since
        self.returned = returned            # the caller's slot for the result
        self.result: Any = None             # of the threads that have returned
        self.pending: list[Any] | None = None       # functions still to be called where threads call different ones

    def cut(self, keep: NDArray[np.bool_]) -> Frame:
        """The frame of those threads alone."""
        def part(x: Any) -> Any:
            return x[..., keep] if np.shape(x)[-1:] == keep.shape else x
        frame = Frame(self.code, [part(x) for x in self.env], part(self.entered), self.returned, self.locals)
        frame.pc, frame.masks, frame.result = self.pc, [part(mask) for mask in self.masks], part(self.result)
        if self.pending is not None:
            frame.pending = [(function, part(mask)) for function, mask in self.pending]
        return frame


class Gang:
    """`threads` are numbered through all CTAs that run at once. A scalar value is [] where all threads agree, else
    [threads]; a vector is [length, 1] or [length, threads]."""

    def __init__(self, machine: Machine, threads: NDArray[np.int64]) -> None:
        self.machine, self.threads, self.size = machine, threads, len(threads)
        self.frames: list[Frame] = []
        self.frame: Frame
        self.waiting: Wait | None = None
        self._number_warps()
        self.activate(None)

    def _number_warps(self) -> None:
        """`warps`: the agents of its warps as they lie in the gang; `agents`: the same in order."""
        self.warps = self.threads[::self.machine.warp] // self.machine.warp
        self.agents = np.sort(self.warps)
        self.exist: Mask = None if self.machine.there == self.machine.cta else self.machine.exist(self.threads)

    # ---- active threads

    def activate(self, mask: Mask) -> None:
        self.mask = mask
        if mask is None:
            self.active_threads, self.active_warps = self.size, self.size // self.machine.warp
        else:
            self.active_threads = int(np.count_nonzero(mask))
            self.active_warps = int(np.count_nonzero(mask.reshape(-1, self.machine.warp).any(1)))

    def enter(self, mask: Mask) -> None:
        """Only the threads in `mask` are active from here to the matching leave()."""
        self.frame.masks.append(mask)
        self.activate(mask)

    def leave(self) -> None:
        self.frame.masks.pop()
        self.activate(self.frame.masks[-1])

    def active(self) -> NDArray[np.bool_]:
        return np.ones(self.size, bool) if self.mask is None else self.mask

    def skipping(self) -> NDArray[np.bool_]:
        """The threads that there are and that are not active."""
        return ~self.active() if self.exist is None else self.exist & ~self.active()

    def acting(self) -> NDArray[np.int64]:
        """The agents of the warps that have an active lane."""
        if self.mask is None:
            return self.agents
        return self.warps[self.mask.reshape(-1, self.machine.warp).any(1)]

    def acting_lanes(self) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
        """The agents of `acting`, and [agents, warp] which of their lanes act; None if all do."""
        return self.lanes_of(self.active()) if self.mask is not None else (self.agents, None)

    def lanes_of(self, which: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
        """The agents of the warps that have any of these threads, and [agents, warp] which; None if all."""
        lanes = which.reshape(-1, self.machine.warp)
        some = lanes.any(1)
        if self.exist is not None:
            lanes = lanes | ~self.exist.reshape(lanes.shape)
        return self.warps[some], None if lanes[some].all() else lanes[some]

    def merge(self, new: Any, old: Any) -> Any:
        """A value that only the active threads have assigned; `old` is None if no thread has before."""
        return new if self.mask is None or old is None else np.where(self.mask, new, old)

    # ---- waiting

    def barrier(self, node: Op) -> None:
        """Wait for all threads of the CTA."""
        self.waiting = PhaseWait(node.line, arrive(self, node, self.machine.barriers, self.machine.cta))

    def role_barrier(self, node: Op, first: int, warps: int) -> None:
        """Wait for all threads of these warps of the CTA."""
        machine, arrivals = self.machine, []
        all_come(self, node, self.skipping())
        for cta in np.unique(self.threads // machine.cta).tolist():
            agents = self.agents[self.agents // machine.clocks.per_cta == cta]
            barrier = machine.role_barriers.get((cta, first))
            if barrier is None:
                barrier = machine.role_barriers[cta, first] = PhaseBarrier(
                    f"the barrier of a role of block {machine.block(cta)}", warps * machine.warp)
            clock = machine.clocks.release(agents)
            arrivals.append((barrier, barrier.arrive(clock, len(agents) * machine.warp), agents))
        self.waiting = PhaseWait(node.line, arrivals)

    def warp_barrier(self, node: Op) -> None:
        """The lanes of each warp, which run side by side, have now seen what the others of theirs did."""
        warp = self.machine.warp
        here = np.repeat(self.active().reshape(-1, warp).any(1), warp)          # other warps may be elsewhere
        all_come(self, node, self.skipping() & here, "a warp barrier")
        self.machine.clocks.meet(self.acting())

    # ---- gangs part and join

    def split(self, keep: NDArray[np.bool_]) -> Gang:
        """Keep these threads, which are whole warps, and return a gang of the others."""
        others = Gang(self.machine, self.threads[~keep])
        others.frames = [frame.cut(~keep) for frame in self.frames]
        self.frames = [frame.cut(keep) for frame in self.frames]
        self.threads, self.size = self.threads[keep], int(np.count_nonzero(keep))
        self._number_warps()
        for gang in (self, others):
            gang.frame = gang.frames[-1]
            gang.activate(gang.frame.masks[-1])
        return others

    @property
    def point(self) -> tuple[Any, ...]:
        """Where it stands, through all its calls. Gangs whose threads are all active can join where these are equal."""
        if any(mask is not None for frame in self.frames for mask in frame.masks):
            return (id(self),)
        return tuple((id(frame.code), frame.pc, len(frame.masks)) for frame in self.frames)

    @staticmethod
    def join(gangs: list[Gang]) -> Gang:
        """One gang of several at the same point."""
        if len(gangs) == 1:
            return gangs[0]
        sizes = [gang.size for gang in gangs]

        def together(xs: Any) -> Any:
            if any(x is None for x in xs):
                return None
            if all(np.ndim(x) == 0 and x == xs[0] for x in xs):
                return xs[0]
            lead = np.broadcast_shapes(*(np.shape(x)[:-1] for x in xs))
            return np.concatenate([np.broadcast_to(x, (*lead, n)) for x, n in zip(xs, sizes)], axis=-1)
        joined = Gang(gangs[0].machine, np.concatenate([gang.threads for gang in gangs]))
        for frames in zip(*(gang.frames for gang in gangs)):
            first = frames[0]
            env = [together(xs) for xs in zip(*(frame.env for frame in frames))]
            regions = [region for frame in frames for region in frame.locals]
            frame = Frame(first.code, env, None, first.returned, regions)
            frame.pc, frame.masks = first.pc, [None] * len(first.masks)
            joined.frames.append(frame)
        joined.frame = joined.frames[-1]
        return joined

    # ---- calls

    def call(self, code: Code, operands: list[Any], mask: Mask, returned: int | None) -> None:
        """Start a function in the threads of `mask`; the frame below goes on when all have returned."""
        env, locals = code.prepare(self, operands)
        self.frame = Frame(code, env, mask, returned, locals)
        self.frames.append(self.frame)
        self.activate(mask)

    def ret(self, value: Any, skip: int) -> None:
        """The active threads leave the function. If others are still in it, they go on at `skip`."""
        frame, mask = self.frame, self.mask
        frame.result = self.merge(value, frame.result)
        inside = frame.masks[0]
        if mask is not inside and mask is not None and not (mask == (True if inside is None else inside)).all():
            frame.masks = [~mask if m is None else m & ~mask for m in frame.masks]
            self.activate(frame.masks[-1])
            frame.pc = skip
            return
        self.frames.pop()
        if self.frames:
            self.frame = self.frames[-1]
            self.activate(frame.entered)
            if frame.returned is not None:
                self.frame.env[frame.returned] = self.merge(frame.result, self.frame.env[frame.returned])
            self.activate(self.frame.masks[-1])
        else:
            self.machine.report.result = frame.result

    # ---- what the meanings of operations ask for

    def access(self, node: Op, verb: str, t: Any, align: int, atomic: bool = False, remote: bool = False) -> Access:
        """How this operation loads or stores values of this type."""
        known = self.machine.accesses.get((node, verb, t, remote))
        if known is None:
            known = self.machine.access(self.machine, self.frame.code.name, node.line, verb, t, align, atomic, remote)
            self.machine.accesses[node, verb, t, remote] = known
        return known

    def fault(self, kind: str, node: Op, message: str) -> Fault:
        """The exception that says what this operation does wrong, to be raised."""
        return Fault(kind, node.line, self.frame.code.name, message)

    def by(self, thread: Any) -> str:
        """Whose doing it is, for messages; a CPU function has one thread, which needs no name."""
        return self.machine.by(int(self.threads[thread]))
