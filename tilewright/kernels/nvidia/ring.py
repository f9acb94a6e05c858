"""The main loop of a GEMM on NVIDIA's chips: a ring of stages in shared memory, filled ahead of the products.

Roles       All threads of the CTA do everything: they copy their share of each tile, and multiply their part of C.

Pipelines   smem stage x % STAGES   tile x of k, of every operand. Filled by `request` (cp.async; without it through
                                    registers, which `store_to_smem` writes just before the barrier). Free again at the
                                    barrier before the last step of tile x: by then each thread has the operands of that
                                    step in registers.
            fragments               operands of one step of k, in registers, read one step ahead: those of a tile's
                                    first step at the end of the tile before.

Timeline    S = STAGES, L = the last step of a tile; one column for each step of k

            copies      request(t+S-1) ...................... wait(t+1)  | request(t+S) ...   before reads, or after
            barrier                                              |       |
            reads       step 1     step 2     ...   step L    t+1: step 0| step 1
            products    step 0     step 1     ...   step L-1     step L  | step 0

The first tile of k is the one that may be short, so that the loop over the others has no case for it.
"""
from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tilewright.ir import Kernel, Value, i32

Fragments = list[list[Value]]               # of each operand


class Stream(Protocol):
    """Tiles of k of one operand, in their order."""
    SIZE: int                               # elements of shared memory that a tile takes

    def request(self, smem: Value, steps: Value | None = None) -> None: ...     # begin to bring the next tile
    def store_to_smem(self, smem: Value) -> None: ...                           # what did not come there by itself
    def fill(self, smem: Value, steps: Value, number: float) -> None: ...       # beyond k, in place of 0


class Products(Protocol):
    """What is multiplied of a tile."""
    STEPS: int                              # of a tile, for this thread

    def read(self, stage: Value, step: Any, before: Fragments | None = None) -> Fragments:
        """The operands of a step of the tile in this stage. `before`: those of the step before in the same tile. In a
        loop over steps a step is a value."""

    def multiply(self, fragments: Fragments, step: Any) -> None: ...
    def accumulating(self, tile: Value) -> AbstractContextManager[None]: ...    # around the products of a tile


class Ring:
    """`tiles` tiles of k of each stream, in STAGES stages at `smem`; `short` steps of k in the first one.

    ASYNC   copies are asynchronous; else STAGES is 2
    EARLY   copies through registers begin before the first product of a tile; else ptxas begins them when it likes,
            often just before they are stored, where all threads wait for them
    PAD     what is multiplied beyond k, a number for each stream; 0, as it is copied, changes no sum of products
    READ    what a tile's second step multiplies is read before copies begin, which otherwise have all ports of shared
            memory just then: tensor cores wait for it
    """

    def __init__(self, k: Kernel, streams: Sequence[Stream], smem: Value, tiles: Value, short: Value, *, STAGES: int,
                 ASYNC: bool = True, EARLY: bool = False, READ: bool = False, PAD: Sequence[float] = ()) -> None:
        self.k, self.streams, self.smem, self.tiles, self.short = k, streams, smem, tiles, short
        self.STAGES, self.ASYNC, self.EARLY, self.READ, self.PAD = STAGES, ASYNC, EARLY, READ, PAD
        self.STAGE = sum(x.SIZE for x in streams)

    def places(self, stage: Value | int) -> list[Value]:
        """Where each stream's tile is in a stage."""
        at = [self.smem + stage*self.STAGE]
        for x in self.streams[:-1]:
            at.append(at[-1] + x.SIZE)
        return at

    def run(self, products: Products, UNROLLED: int = 0) -> None:
        """Multiply all tiles. UNROLLED: steps of a tile that are in the code, in a loop over its steps; 0: all are."""
        k, LAST = self.k, products.STEPS - 1
        FIRST = not self.READ or LAST == 0                      # copies, before any reads
        self._begin()
        carried = Carried(k, products.read(k.constant(i32, 0), 0))
        stage = k.variable(i32, 0)
        with k.loop(self.tiles) as tile:
            now = stage.get()
            after = k.select(now == self.STAGES - 1, k.constant(i32, 0), now + 1)
            free = k.select(now == 0, k.constant(i32, self.STAGES - 1), now - 1)
            if FIRST:
                self._request(tile + (self.STAGES - 1), free)
            if 0 < UNROLLED < products.STEPS:
                self._multiply_in_rounds(products, carried, tile, now, after, UNROLLED)
            else:
                current = carried.get()
                with products.accumulating(tile):
                    for step in range(products.STEPS):
                        if step < LAST:
                            following = products.read(now, step + 1, current)
                        else:
                            self._arrive(tile + 1, after)
                            after = k.select(tile + 1 < self.tiles, after, now)     # no next one: read anything
                            following = products.read(after, 0)
                        if step == 0 and not FIRST:
                            self._request(tile + (self.STAGES - 1), free)
                        products.multiply(current, step)
                        current = following
                carried.set(current)
            stage.set(after)
        if self.ASYNC:
            k.cp_async_wait(0)

    def _multiply_in_rounds(self, products: Products, carried: Carried, tile: Value, now: Value, after: Value,
                            UNROLLED: int) -> None:
        """The products of a tile of which the first step's operands are there, by a loop that is not unrolled."""
        k, STEPS = self.k, products.STEPS
        with products.accumulating(tile), k.loop(STEPS, step=UNROLLED, unroll=False) as first:
            current, last = carried.get(), first == STEPS - UNROLLED
            for step in range(UNROLLED):
                if step + 1 < UNROLLED:
                    following = products.read(now, first + (step + 1))
                else:
                    with k.when(last):
                        self._arrive(tile + 1, after)
                    there = k.select(last & (tile + 1 < self.tiles), after, now)
                    following = products.read(there, k.select(last, k.constant(i32, 0), first + UNROLLED))
                products.multiply(current, first + step)
                current = following
            carried.set(current)

    def _begin(self) -> None:
        """Tile 0 is there, STAGES - 2 others are on their way. Without k, tile 0 is zeros."""
        k, first = self.k, self.places(0)
        for x, at in zip(self.streams, first):
            x.request(at, self.short)
        if self.ASYNC:
            k.cp_async_commit()
            for ahead in range(1, self.STAGES - 1):
                with k.when(self.tiles > ahead):
                    for x, at in zip(self.streams, self.places(ahead)):
                        x.request(at)
                k.cp_async_commit()
            k.cp_async_wait(self.STAGES - 2)
        for x, at in zip(self.streams, first):
            x.store_to_smem(at)
        for x, at, number in zip(self.streams, first, self.PAD):
            if number:
                x.fill(at, self.short, number)
        k.barrier()

    def _request(self, tile: Value, stage: Value) -> None:
        """Begin to bring a tile in, if there is such a one."""
        k = self.k
        with k.when(tile < self.tiles):
            for x, at in zip(self.streams, self.places(stage)):
                x.request(at)
        if self.ASYNC:
            k.cp_async_commit()
        elif self.EARLY:
            k.warp_barrier()                # across which ptxas moves no load

    def _arrive(self, tile: Value, stage: Value) -> None:
        """Wait until it is there for all threads, and all are done with the tile before."""
        k = self.k
        if self.ASYNC:
            k.cp_async_wait(self.STAGES - 2)
        else:
            with k.when(tile < self.tiles):
                for x, at in zip(self.streams, self.places(stage)):
                    x.store_to_smem(at)
        k.barrier()


class Carried:
    """Fragments that a loop hands on to its next round."""

    def __init__(self, k: Kernel, fragments: Fragments) -> None:
        self.variables = [[k.variable(value.type, value) for value in values] for values in fragments]

    def get(self) -> Fragments: return [[x.get() for x in variables] for variables in self.variables]

    def set(self, fragments: Fragments) -> None:
        for variables, values in zip(self.variables, fragments, strict=True):
            for x, value in zip(variables, values, strict=True):
                x.set(value)
