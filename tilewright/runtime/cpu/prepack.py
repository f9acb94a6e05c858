"""Packing all of B beforehand, in the order in which the kernels of one plan read it.

How B lies then depends on the plan's register tile and kc, on what both operands consist of and on whether the plan
exchanges them, and on nothing else: any number of rows and of threads is multiplied with the same panels.
"""
from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

from tilewright.kernels.cpu import jobs
from tilewright.plans.amx import TILE_WORDS
from tilewright.plans.cpu import CpuPlan, Shape
from tilewright.runtime.cpu import kernel_addresses as code
from tilewright.runtime.cpu.pool import pool
from tilewright.runtime.cpu.recipe import DRIVER, EXCHANGED, Strides, blocks, packing
from tilewright.targets.base import CpuTarget

WAKE_BYTES = 1 << 20            # of panels, for which waking other threads pays
SHARES = 4                      # of the panels for each thread to claim


class Prepacking:
    """Packs B for products of this shape by this plan, from these strides; the arguments are a Recipe's.

    Of the shape m does not count, of the plan mc, nc and its ways.
    """

    def __init__(self, shape: Shape, strides: Strides, plan: CpuPlan, target: CpuTarget, code: Any = code,
                 sources: tuple[str, str] = ("", ""), depth: int = 0, conj: str = "") -> None:
        role = "b"
        if plan.swap:
            shape, strides, plan = shape.swapped, strides.swapped, replace(plan, swap=False)
            sources, role = sources[::-1], role.translate(EXCHANGED)
        self.shape, self.strides, self.role, self.depth = shape, strides, role, depth
        source = sources["ab".index(role)]
        self.pack = packing(role, code, target, shape, strides, plan, sources, depth, conj)
        self.function = code.prepack(target, shape.dtype, plan.mr, plan.nr, source, role)
        cut = blocks(shape, plan, bool(depth))
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
                  "csb": st.csb, "kc": self.kc, "jc_ways": parts, "depth": self.depth, role: source,
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
