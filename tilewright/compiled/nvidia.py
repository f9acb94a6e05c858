"""Kernels for one of NVIDIA's GPUs: PTX, machine code by ptxas where it is installed, and what that uses.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from tilewright.compiled.base import EMPTY, GpuCode, Launch
from tilewright.compiled.gpu import GpuKernel, launched, planned
from tilewright.compiler import ptxas
from tilewright.forks import cached_property
from tilewright.plans.nvidia_plan import NvidiaPlan
from tilewright.plans.wgmma_rules import WARPS
from tilewright.runtime.gpu import operands

if TYPE_CHECKING:
    from tilewright.inspect.resources import Loop
    from tilewright.problem import Gemm
    from tilewright.targets import GpuTarget


class NvidiaCode(GpuCode):
    """Recorded kernels as PTX."""

    forms: ClassVar[dict[str, str]] = {".ll": "IR", ".ptx": "PTX", ".cubin": "machine code, by ptxas"}
    text_form, comment = ".ptx", "//"
    target: GpuTarget

    @cached_property
    def asm(self) -> str:
        """PTX, which the driver assembles; a remark if there is no code."""
        return f"{self.comment} {EMPTY}" if self.empty else self.loadable.text

    @property
    def names(self) -> list[str]:
        from tilewright.inspect.resources import ptx_functions
        return ptx_functions(self.asm)

    @cached_property
    def _assembled(self) -> tuple[bytes, dict[str, ptxas.Usage]]:
        return ptxas.assemble(self.loadable.text, self.target.name)

    @property
    def binary(self) -> bytes:
        """A cubin. ptxas.Missing if there is no ptxas; nothing but reading it needs it."""
        return self._assembled[0]

    @property
    def resources(self) -> ptxas.Usage:
        """Registers, shared memory and spills of the last kernel. ptxas.Missing if there is no ptxas."""
        return self._assembled[1][self.names[-1]]

    @property
    def manifest(self) -> dict[str, Any]:
        """See compiler.manifest."""
        return self.loadable.manifest | {"grid": None if self.grid is None else [*self.grid, 1, 1][:3]}

    def loop(self, function: str | None = None) -> Loop:
        """The loop in PTX; the assembler may unroll it further."""
        from tilewright.inspect.resources import ptx_loop
        return ptx_loop(self.asm, function)

    def report(self, function: str | None = None) -> str:
        loop = self.loop(function)
        lines = [f"{loop.function}: " + ", ".join(f"{count} {what}" for what, count in loop.counts.items() if count)]
        try:
            used = self._assembled[1][loop.function]
        except ptxas.Missing as missing:
            return f"{lines[0]}\nregisters and spills are not known: {missing}"
        entry = self.loadable.entries[loop.function]
        threads = entry.threads[0] * entry.threads[1]
        ctas = self.target.occupancy(threads, used.registers, entry.shared)
        lines.append(f"{used.registers} registers a thread, {used.spill_stores} bytes of spills stored and "
                     f"{used.spill_loads} loaded")
        lines.append(f"CTAs of {threads} threads and {entry.shared} bytes of shared memory, {ctas} on a multiprocessor")
        return "\n".join(lines)


class NvidiaKernel(GpuKernel, NvidiaCode):
    """A GEMM by one plan on one of NVIDIA's GPUs."""

    emitters: ClassVar[dict[str, str]] = {
        "simt": "tilewright.kernels.nvidia.simt_gemm:emit_simt_gemm",
        **dict.fromkeys(("dmma", "mma"), "tilewright.kernels.nvidia.mma_gemm:emit_mma_gemm"),
        "wgmma": "tilewright.kernels.nvidia.wgmma_gemm:emit_wgmma_gemm",
        "gemv": "tilewright.kernels.nvidia.gemv:emit_gemv", "small": "tilewright.kernels.gpu.small:emit_small"}
    maker = "NVIDIA"
    plan: NvidiaPlan

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """See compiler.manifest; with `plan`, `problem`, the bytes of workspace and counters, the `values` of
        parameters that the plan determines, and how tensor `maps` are made: elements along their dimensions, the
        contiguous one first, and from each to the next along the others, by the names of what a launch is given.
        ValueError for an empty product."""
        if self.empty:
            raise ValueError(self._no_code)
        launch = next(x for x in self.launches if x.kernel is self)
        every = [x.kernel.loadable.manifest | launched(x) for x in self.launches]
        maps = {"maps": self._maps} if self.plan.algorithm == "wgmma" else {}
        return self.loadable.manifest | self.described | launched(launch) | maps | (
            {"launches": every} if len(every) > 1 else {})

    @property
    def _maps(self) -> dict[str, Any]:
        """A matrix that all products of a batch have is a batch of one."""
        a, b, batched = self.shape.layout[0], self.shape.layout[1], self.shape.batch != 1
        contiguous = {"a": ["k", "m"] if a == "n" else ["m", "k"], "b": ["n", "k"] if b == "n" else ["k", "n"],
                      "c": ["n", "m"]}
        terms = "ab" if self.plan.split else ""
        return {name: {"of": x, "dims": [*contiguous[x], *[f"planes_{x}"]*(x in terms), *["batch"]*batched],
                       "strides": [f"ld{x}", *[f"plane_{x}"]*(x in terms), *[f"stride_{x}"]*batched]}
                for name, x in operands.MAPPED.items() if name != "c_map" or self.plan.store == "tma"}

    def _launch(self) -> Launch:
        p, s = self.plan, self.shape
        if p.algorithm == "wgmma":
            return self._launch_of_warpgroups()
        if not p.tail:
            return super()._launch()
        undivided, parts = p.tail_split(s, self.target)
        over = p.tiles(s.m, s.n, s.batch) - undivided
        return Launch(self, p.grid(s, self.target), max(over*parts, 1)*self._tile_bytes, 4*max(over, 1),
                      (("whole", undivided), ("parts", parts)))

    def _launch_of_warpgroups(self) -> Launch:
        """With a place of the workspace for each share and tile, since a share is of several tiles: wgmma_tiles.py."""
        p, s = self.plan, self.shape
        if not p.divided:
            return Launch(self, p.grid(s, self.target))
        division, ctas = p.division(s, self.target), p.ctas
        warps = WARPS * (1 if p.pingpong else p.warpgroups)
        return Launch(self, p.grid(s, self.target), max(division.over + division.shares, 1)*ctas*self._tile_bytes,
                      4*max(division.over, 1)*ctas*warps,
                      (("whole", division.whole), ("share", division.share), ("apart", division.apart)))


CODE = NvidiaCode


def compile(problem: Gemm, target: GpuTarget, plan: NvidiaPlan | str | None = None,
            algorithm: str | None = None) -> NvidiaKernel:
    """Compiles as tilewright.compile says. Operands are taken to be contiguous and aligned to 16 bytes."""
    return NvidiaKernel(problem, target, planned(plan, problem, target, algorithm))
