"""The second reading: a recorded function runs on NumPy, and everything it does to memory is checked and counted.

    report = simulator.run(emit_microkernel(target, "f32", 14, 2), kc, a, 14, b, 32, c, n, n, 1.0, 0.0, b, 0)
    print(report)

memory    bytes at flat addresses; arrays, functions and pointers in it
access    one load or store: locate, check, count, move; `pattern`: what depends only on how its addresses lie
copies    from global to shared memory, or a wave's into LDS, in flight
gang      threads at one point, which of them are active, their calls; what the meanings of operations (ir.ops) ask for
code      a function as steps: runs of operations and accesses; `control` for loops, branches and calls
machine   arguments in, threads started, turns taken to the end
barriers  what a gang may wait for, mbarriers among it; clusters: CTAs that share their memories
bulk      copies of tiles and bytes by TMA in flight; proxy: shared memory as these and tensor cores see it
wgmma     matrix products of warpgroups in flight, and the registers and the memory that they hold meanwhile
clocks    vector clocks of threads, warps and copies; history: the races found with them; atomics: how clocks travel
timeline  what the roles of a CTA do between their waits, as a table; observer: who is told of every event
report    traffic by line and array, instructions by kind, what kernels print, as text; occupancy
product   a whole product by a compiled kernel: tilewright.simulate, which stands above the engine that it imitates
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.ir.program import Function
from tilewright.simulator.machine import Machine
from tilewright.simulator.memory import AddressSpace, uninitialised
from tilewright.simulator.observer import Event, observed
from tilewright.simulator.report import Fault, Place, Report, Traffic

__all__ = ["AddressSpace", "Event", "Fault", "Place", "Report", "Traffic", "observed", "run", "run_team",
           "uninitialised"]


def run(function: Function, *args: Any, grid: int | Sequence[int] | None = None, memory: AddressSpace | None = None,
        externals: Mapping[str, Callable[..., Any]] | None = None, granule: int | None = None,
        target: str | None = None, observer: Callable[[Event], None] | None = None,
        starts: Sequence[int] = ()) -> Report:
    """Run `function` on these arguments, changing arrays in place, and report what it did; a Fault if it did wrong.

    A pointer parameter takes a contiguous array of its element type, a recorded function, or an address from `memory`,
    which nothing is checked of, and which is needed only where addresses are stored in arrays; a tensor map an array
    whose last dimension is contiguous, or a `Mapped` one (`targets.tensor_maps`):

        memory = simulator.AddressSpace()
        table[:] = [memory.address(f) for f in functions]
        simulator.run(caller, table, memory=memory)

    `externals` gives C functions a meaning by name, to be called with NumPy scalars. What is recorded for the CTAs of a
    GPU runs once for each CTA of `grid`: (x, y, z), fewer of them, or a number; one CTA unless given. `granule`: the
    bytes of global memory that are counted as moving together; unless given a GPU's sector (32) or a CPU's cache line
    (64). `target`: the name of the chip whose shared memory is meant, where waves of the same size have several kinds:
    "gfx950", or "gfx942", which is meant unless said. `observer` is called with an Event for each load and store, each
    barrier, fence, wait and copy, each multiply-add and product, each round of a loop, each `k.mark`, as they happen.

    `starts`: the numbers of CTAs, along x first (of clusters, if there are any), in the order in which they start; that
    of the numbers unless given. Few run at once, and each to its end before others start, so that waiting for a CTA
    that starts later is a deadlock, which is a Fault. No device promises an order.
    """
    machine = Machine(function, memory or AddressSpace(), externals or {}, None if granule is None else Report(granule),
                      target, observer=observer)
    return machine.run_grid(args, grid, starts)


def run_team(function: Function, *args: Any, threads: int, memory: AddressSpace | None = None,
             externals: Mapping[str, Callable[..., Any]] | None = None,
             observer: Callable[[Event], None] | None = None) -> Report:
    """Run function(*args, t) in CPU threads t = 0 ... threads-1 at once, as the worker pool runs a team.

    A thread goes on until it spins (`k.pause()`), then others have their turn. That two of them touch the same bytes,
    one of them to write, is a fault unless atomic accesses order them, whichever came first this time.
    """
    if function.threads is not None:
        raise ValueError(f"{function.name} is recorded for the CTAs of a GPU, not for CPU threads")
    return Machine(function, memory or AddressSpace(), externals or {}, observer=observer).run_team(args, threads)
