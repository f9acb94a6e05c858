"""Kernels for one of NVIDIA's GPUs: PTX, machine code by ptxas where it is installed, and what that uses.

The launches of a product with passes (plans/passes.py) share one workspace: passes write operands anew there, then the
kernel multiplies those. Where a pass meets a number that cannot be written so, that kernel does nothing, and the
launches behind it multiply the operands in f32.
"""
from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from tilewright.compiled.base import EMPTY, GpuCode, GpuKernel, Launch, planned
from tilewright.compiler import artefact, ptxas
from tilewright.forks import cached_property
from tilewright.plans import epilogues, gpu
from tilewright.plans.measured import choice
from tilewright.plans.nvidia_plan import NvidiaPlan
from tilewright.plans.passes import BLOCK, DECODED, Pass, in_f32
from tilewright.plans.wgmma_rules import WARPS
from tilewright.problem import Gemm
from tilewright.runtime.gpu import operands

if TYPE_CHECKING:
    from tilewright.inspect.resources import Loop
    from tilewright.ir.program import Function
    from tilewright.plans.gpu_shape import GpuShape
    from tilewright.targets import GpuTarget


REWRITE, DECODE = "tilewright.kernels.gpu.rewrite:emit_rewrite", "tilewright.kernels.gpu.decode:emit_decode"
FLAG = 4                # bytes of `special`
FEW = 512               # CTAs that share the tiles of a pass which is seldom needed


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

    def __init__(self, problem: Gemm, target: GpuTarget, plan: NvidiaPlan, when: str = "") -> None:
        """when: see kernels.gpu.work.arguments."""
        super().__init__(problem, target, plan)
        self.when = when

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """See compiler.manifest; with `plan`, `problem`, the bytes of workspace and counters, the `values` of
        parameters that the plan determines, and how tensor `maps` are made: elements along their dimensions, the
        contiguous one first, and from each to the next along the others, by the names of what a launch is given.
        ValueError for an empty product."""
        if self.empty:
            raise ValueError(self._no_code)
        launch = next(x for x in self.launches if x.kernel is self)
        every = [x.kernel.loadable.manifest | _launched(x) for x in self.launches]
        maps = {"maps": self._maps} if self.plan.algorithm == "wgmma" else {}
        return self.loadable.manifest | self.described | _launched(launch) | maps | (
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

    @property
    def options(self) -> dict[str, Any]:
        when = self.when or "split" * (len(self._products) > 1)
        return super().options | ({"WHEN": when} if when else {})

    def _launches(self) -> tuple[Launch, ...]:
        if not self.plan.passes(self.given):
            return super()._launches()
        return launches(self.target, *((kernel._launch(), kernel.shape.k, made) for kernel, made in self._products))

    def of_blocks(self, shape: GpuShape) -> NvidiaKernel:
        """This kernel for block-scaled operands with the alignment of `shape`, which limits the bytes that its passes
        load at once."""
        found = type(self)(self.problem, self.target, self.plan, self.when)
        found.given = self.given._replace(align_a=shape.align_a, align_b=shape.align_b)
        return found

    @cached_property
    def _products(self) -> list[tuple[NvidiaKernel, tuple[Pass, ...]]]:
        """The kernel with its passes, and what multiplies operands that these cannot write, which may be anywhere."""
        return [(self, self.plan.passes(self.given)), *((kernel, made) for kernel, made, _ in self._stand_ins)]

    @cached_property
    def _stand_ins(self) -> list[tuple[NvidiaKernel, tuple[Pass, ...], GpuShape]]:
        """The latter, with the shapes that their plans were chosen for."""
        p, found, narrow = self.lowered, [], epilogues.sums_of_result(self.lowered.epilogue)

        def add(problem: Gemm, made: tuple[Pass, ...], shape: GpuShape) -> None:
            plan, _ = choice.chosen(shape, self.target)
            if plan.algorithm == "small":               # which runs whether numbers are special or not
                plan = next(x for x in gpu.ranked(shape, self.target) if x.algorithm != "small")
            found.append((NvidiaKernel(problem, self.target, plan, when="special"), made, shape))
        if self.plan.split and not self.when:
            add(p, (), self.given._replace(vector_a=1, vector_b=1, vector_c=narrow, terms=""))
        if not self.when and (wide := in_f32(self.given)):
            made, shape = wide
            plain = Gemm(p.m, p.n, shape.k, "f32", "f32", p.out, "nt", p.batch, epilogue=p.epilogue)
            add(plain, made, shape._replace(vector_c=narrow))
        return found

    @property
    def chosen(self) -> tuple[tuple[Any, Any], ...]:
        return *super().chosen, *((shape, kernel.plan) for kernel, _, shape in self._stand_ins)

    def _launch(self) -> Launch:
        p, s = self.plan, self.shape
        if p.algorithm == "wgmma":
            return self._launch_of_warpgroups()
        if not p.tail:
            return super()._launch()
        whole, parts = p.tail_split(s, self.target)
        over = p.tiles(s.m, s.n, s.batch) - whole
        return Launch(self, p.grid(s, self.target), max(over*parts, 1)*self._tile_bytes, 4*max(over, 1),
                      (("whole", whole), ("parts", parts)))

    def _launch_of_warpgroups(self) -> Launch:
        """With a place of the workspace for each share and tile, since a share is of several tiles: wgmma_tiles.py."""
        p, s = self.plan, self.shape
        if not p.divided:
            return Launch(self, p.grid(s, self.target))
        found, ctas = p.division(s, self.target), p.ctas
        warps = WARPS * (1 if p.pingpong else p.warpgroups)
        return Launch(self, p.grid(s, self.target), max(found.over + found.shares, 1)*ctas*self._tile_bytes,
                      4*max(found.over, 1)*ctas*warps,
                      (("whole", found.whole), ("share", found.share), ("apart", found.apart)))


def _launched(launch: Launch) -> dict[str, Any]:
    """What the manifest says of a launch."""
    return {"grid": list(launch.grid), "workspace_bytes": launch.workspace, "counter_bytes": launch.counters,
            "values": dict(launch.more)} | ({"in_workspace": dict(launch.at)} if launch.at else {}) | (
                {"zero": list(launch.zero)} if launch.zero[1] else {})


# ---- passes

class PassKernel(GpuCode):
    """The kernel of one pass."""

    def __init__(self, of: Pass, target: Any) -> None:
        self.of, self.target, self.grid = of, target, None
        self.emitter = DECODE if of.blocks else REWRITE

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of its emitter."""
        of = self.of
        always = {"OPERAND": of.operand, "BATCH": of.batch != 1, "WARP": self.target.warp}
        if of.blocks:
            return {**always, "BLOCKS": of.blocks, "ALIGN": min(of.align, DECODED), "WIDE": of.wide,
                    "WHEN": "special" * of.wide}
        return {**always, "FORMAT": of.format, "SPLIT": of.split, "ALONG_K": of.along_k}

    @cached_property
    def functions(self) -> tuple[Function, ...]:    # type: ignore[override]    # recorded when it is read
        module, _, name = self.emitter.partition(":")
        return (getattr(import_module(module), name)(**self.options),)

    @cached_property
    def loadable(self) -> artefact.Code:
        """From the cache, if it is there: then nothing is recorded."""
        return artefact.code(self.emitter, self.target, **self.options)


def launches(target: Any, *products: tuple[Launch, int, tuple[Pass, ...]]) -> tuple[Launch, ...]:
    """Each product of k steps behind its passes, which write to the workspace after all products' own. The second one
    is for numbers that the first one's passes cannot write; what those have written is not needed then."""
    counters = max(product.counters for product, *_ in products)
    begin = end = _block(max(product.workspace for product, *_ in products))
    end += max(sum(_block(each.size) for each in made) for *_, made in products)
    special, zero = ((("special", end),), (end, FLAG)) if len(products) > 1 else ((), (0, 0))
    end += BLOCK * (len(products) > 1)
    found: list[Launch] = []
    for product, k, made in products:
        places, at = {}, begin
        for each in made:
            places[each.operand] = at
            at += _block(each.size)
            grid = min(each.ctas, FEW) if each.wide else each.ctas      # mostly there is nothing to do for the former
            found.append(Launch(PassKernel(each, target), (grid, 1, 1), end, counters,
                                (("tiles", each.ctas), ("rows", each.rows), ("depth", each.depth), ("ld", each.ld)),
                                (("target", places[each.operand]), *special)))
        more = [("k", k)] * bool(made)
        for each in made:
            x = each.operand
            more.append((f"ld{x}", each.ld))
            more += [(f"planes_{x}", each.count), (f"plane_{x}", each.plane)] if each.split else []
            more += [(f"stride_{x}", each.count*each.plane)] * (each.batch != 1)
        found.append(replace(product, workspace=end, counters=counters, more=(*product.more, *more),
                             at=(*places.items(), *special)))
    found[0] = replace(found[0], zero=zero)
    return tuple(found)


def _block(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


CODE = NvidiaCode


def compile(problem: Gemm, target: GpuTarget, plan: NvidiaPlan | str | None = None,
            algorithm: str | None = None) -> NvidiaKernel:
    """Compiles as tilewright.compile says. Operands are taken to be contiguous and aligned to 16 bytes."""
    return NvidiaKernel(problem, target, planned(plan, problem, target, algorithm))
