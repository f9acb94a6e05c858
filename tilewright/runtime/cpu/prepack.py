"""Packing all of B beforehand, in the order in which the kernels of one plan read it.

How B lies then depends on the plan's register tile and kc, on what both operands consist of and on whether the plan
exchanges them, and on nothing else: any number of rows and of threads is multiplied with the same panels.
"""
from __future__ import annotations

from array import array
from dataclasses import replace

from tilewright.kernels.cpu import jobs
from tilewright.plans.cpu import CpuPlan, Shape, Strides
from tilewright.plans.words import TILE_WORDS
from tilewright.runtime.cpu.host import DRIVER, Host, host
from tilewright.runtime.cpu.pool import pool
from tilewright.runtime.cpu.recipe import SWAPPED, blocks, packing
from tilewright.targets.cpu import CpuTarget

WAKE_BYTES = 1 << 20            # of panels, for which waking other threads pays
SHARES = 4                      # of the panels for each thread to claim


class Prepacking:
    """Packs B for products of this shape by this plan, from these strides; the arguments are a Recipe's.

    Of the shape m does not count, of the plan mc, nc and its ways.
    """

    def __init__(self, shape: Shape, strides: Strides, plan: CpuPlan, target: CpuTarget, host: Host = host,
                 conj: str = "") -> None:
        role = "b"
        if plan.swap:
            shape, strides, plan = shape.swapped, strides.swapped, replace(plan, swap=False)
            role = role.translate(SWAPPED)
        self.shape, self.strides, self.role = shape, strides, role
        source = shape.source_a if role == "a" else shape.source_b
        self.pack = packing(role, host, target, shape, strides, plan, conj)
        self.function = host.prepack(target, shape.dtype, plan.mr, plan.nr, source, role)
        cut = blocks(shape, plan)
        rows = TILE_WORDS[shape.dtype].rows if shape.tiles else 4
        deepest = jobs.block_depth(shape.k, cut.kc, rows)
        self.kc = cut.kc
        self.panels = -(-shape.m // plan.mr) if role == "a" else -(-shape.n // plan.nr)
        space = cut.space[role] + (deepest - cut.kc) * (plan.mr if role == "a" else plan.nr)
        self.bytes = -(-shape.k // deepest) * self.panels * space * shape.itemsize

    def job(self, source: int, to: int, parts: int) -> array[int]:
        """What the emitted function takes to pack the matrix at `source` to the address `to`, in so many parts."""
        st, role = self.strides, self.role
        fields = {"m": self.shape.m, "n": self.shape.n, "k": self.shape.k, "rsa": st.rsa, "csa": st.csa, "rsb": st.rsb,
                  "csb": st.csb, "kc": self.kc, "jc_ways": parts, "depth": self.shape.depth, role: source,
                  f"pack_{role}": self.pack, f"{role}_space": to}
        return array("q", [fields.get(name, 0) for name in jobs.PACKED])

    def run(self, source: int, to: int, threads: int) -> None:
        parts = min(self.panels, threads * SHARES) if threads > 1 else 1
        if parts > 1:
            pool().reserve(threads)
        job = self.job(source, to, parts)
        address = job.buffer_info()[0]
        if parts == 1:
            DRIVER(self.function)(address, 0)
        else:
            pool().run_parts(self.function, address, parts, threads, self.bytes >= WAKE_BYTES)
