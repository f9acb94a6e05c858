"""Kernels for products on GPUs of all makers, and their launches.

The launches of a product with passes (plans/passes.py) share one workspace: passes write operands anew there, then the
kernel multiplies those. Where a pass meets a number that cannot be written so, that kernel does nothing, and the
launches behind it multiply the operands in f32.
"""
from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from tilewright.compiled.base import CompiledGemm, GpuCode, Launch
from tilewright.compiler import artefact
from tilewright.forks import cached_property
from tilewright.formats import FORMATS
from tilewright.plans import asked, epilogues, gpu, gpu_lowering, semirings
from tilewright.plans.measured import choice
from tilewright.plans.passes import BLOCK, DECODED, Pass, in_f32
from tilewright.problem import Gemm
from tilewright.rules import arguments

if TYPE_CHECKING:
    from tilewright.ir.program import Function
    from tilewright.plans.gpu_shape import GpuShape

REWRITE, DECODE = "tilewright.kernels.gpu.rewrite:emit_rewrite", "tilewright.kernels.gpu.rewrite:emit_decode"
FLAG = 4                # bytes of `special`
FEW = 512               # CTAs that share the tiles of a pass which is seldom needed


class GpuKernel(CompiledGemm, GpuCode):
    """A GEMM by one plan on a GPU: one recorded kernel, its code from the cache, and the passes before it. `when`: see
    kernels.gpu.work.arguments."""

    emitters: ClassVar[dict[str, str]]              # algorithm → "package.module:function"
    maker: ClassVar[str]                            # whose engine, of runtime.gpu.engine, calls and binds it

    def __init__(self, problem: Gemm, target: Any, plan: Any, when: str = "") -> None:
        super().__init__(problem, target, plan)
        self.when = when
        self.lowered = gpu_lowering.lower(problem, target, passes=False)

    @cached_property
    def inner(self) -> GpuKernel:
        """The kernel for operands and a result in the formats of the code: itself, unless a call converts."""
        return self if self.lowered == self.problem else type(self)(self.lowered, self.target, self.plan)

    def converted(self, *matrices: Any) -> list[Any]:
        """NumPy's A, B and C, if there is one, in the formats of the code."""
        p = self.lowered
        return [None if x is None else arguments.converted(x, FORMATS[to].dtype)
                for x, to in zip(matrices, (p.a, p.b, p.out))]

    def delivered(self, product: Any, out: Any) -> Any:
        """A product as the code stores it in the problem's format, in `out` if there is one."""
        rounded = arguments.rounded(product, FORMATS[self.problem.out].dtype)
        if out is None:
            return rounded
        out[...] = rounded
        return out

    @property
    def described(self) -> dict[str, str]:
        """In the manifest: the plan, the problem, and what is multiplied for it if a call converts."""
        more = {} if self.inner is self else {"multiplied": str(self.lowered)}
        return {"plan": str(self.plan), "problem": str(self.problem), **more}

    @cached_property
    def given(self) -> GpuShape:
        """What is multiplied as the planner sees it."""
        return gpu.planner(self.target).shape_of(self.lowered)

    @cached_property
    def shape(self) -> GpuShape:
        """The shape as the kernel sees it, after the plan's passes."""
        return self.plan.after_passes(self.given)

    @property
    def emitter(self) -> str:
        """The plan's: "package.module:function"."""
        return self.emitters[self.plan.algorithm]

    @property
    def options(self) -> dict[str, Any]:
        """What the plan's emitter is called with."""
        shape, plan = self.plan.emitted(self.shape)
        when = self.when or "split" * (len(self._products) > 1)
        return {"shape": shape, "plan": plan, "ARCH": self.target.name} | ({"WHEN": when} if when else {})

    @cached_property
    def functions(self) -> tuple[Function, ...]:    # type: ignore[override]    # recorded when it is read
        return () if self.empty else (artefact.recorded(self.emitter, self.target, **self.options),)

    @cached_property
    def loadable(self) -> artefact.Code:
        """The code from the cache, if it is there: then nothing is recorded."""
        if self.empty:
            raise ValueError(self._no_code)
        return artefact.code(self.emitter, self.target, **self.options)

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        return () if self.empty or not self.problem.batch else self._launches()

    @property
    def asked(self) -> tuple[artefact.Asked, ...]:
        from tilewright.runtime.gpu.product import COPY
        p, by = self.problem, self.lowered
        changed = ((p.a, by.a), (p.b, by.b), (by.out, p.out))
        copies = dict.fromkeys((source, to) for source, to in changed if source != to)
        warp = self.target.warp
        return (*(artefact.Asked(x.kernel.emitter, self.target, (), x.kernel.options) for x in self.launches),
                *(artefact.Asked(COPY, self.target, (), {"SOURCE": source, "TARGET": to, "WARP": warp})
                  for source, to in copies))

    @property
    def chosen(self) -> tuple[tuple[Any, Any], ...]:
        return (self.given, self.plan), *((shape, kernel.plan) for kernel, _, shape in self._stand_ins)

    def _launches(self) -> tuple[Launch, ...]:
        if not self.plan.passes(self.given):
            return (self._launch(),)
        return launches(self.target, *((kernel._launch(), kernel.shape.k, made) for kernel, made in self._products))

    def _launch(self) -> Launch:
        p, s = self.plan, self.shape
        tiles, grid = p.tiles(s.m, s.n, s.batch), p.grid(s, self.target)
        if p.split_k == 1:
            return Launch(self, grid)
        return Launch(self, grid, p.split_k * tiles * self._tile_bytes, 4*tiles)

    @property
    def _tile_bytes(self) -> int:
        """Bytes of a workgroup's sums."""
        rows, columns = self.plan.cta_m, self.plan.cta_n
        return int(rows * columns * self.shape.itemsize) * semirings.fields(self.shape.semiring)

    def of_blocks(self, shape: GpuShape) -> GpuKernel:
        """This kernel for block-scaled operands with the alignment of `shape`, which limits the bytes that its passes
        load at once."""
        kernel = type(self)(self.problem, self.target, self.plan, self.when)
        kernel.given = self.given._replace(align_a=shape.align_a, align_b=shape.align_b)
        return kernel

    @cached_property
    def _products(self) -> list[tuple[GpuKernel, tuple[Pass, ...]]]:
        """The kernel with its passes, and what multiplies operands that these cannot write, which may be anywhere."""
        return [(self, self.plan.passes(self.given)), *((kernel, made) for kernel, made, _ in self._stand_ins)]

    @cached_property
    def _stand_ins(self) -> list[tuple[GpuKernel, tuple[Pass, ...], GpuShape]]:
        """The latter, with the shapes that their plans were chosen for."""
        p, stand_ins, narrow = self.lowered, [], epilogues.sums_of_result(self.lowered.epilogue)

        def add(problem: Gemm, made: tuple[Pass, ...], shape: GpuShape) -> None:
            plan, _ = choice.chosen(shape, self.target)
            if plan.algorithm == "small":               # which runs whether numbers are special or not
                plan = next(x for x in gpu.ranked(shape, self.target) if x.algorithm != "small")
            stand_ins.append((type(self)(problem, self.target, plan, when="special"), made, shape))
        before = () if self.when else self.plan.passes(self.given)
        if any(prepared.split for prepared in before):
            add(p, (), self.given._replace(vector_a=1, vector_b=1, vector_c=narrow, terms=""))
        if before and (wide := in_f32(self.given)):
            made, shape = wide
            plain = Gemm(p.m, p.n, shape.k, "f32", "f32", p.out, "nt", p.batch, epilogue=p.epilogue)
            add(plain, made, shape._replace(vector_c=narrow))
        return stand_ins

    def __call__(self, a: Any, b: Any, out: Any = None, **options: Any) -> Any:
        """Multiplies, as CompiledGemm.__call__. For a problem with scales, scale_a is [..., m, 1] and scale_b [..., 1,
        n], or 1 in place of any axis: in the format of scaled sums, on the GPU or NumPy's; or numbers, by default 1. Of
        a problem with an epilogue, `operands` are arrays by name, in the formats and places that it says, and `outs`
        arrays for its further results, or None for new ones: those results are a tuple then."""
        return self._engine.call(self, a, b, out, **options)

    def bind(self, a: Any, b: Any, out: Any = None, **options: Any) -> Any:
        """Binds operands, as CompiledGemm.bind, with scales and what an epilogue has as for a call; `bound.outs` are
        further results."""
        return self._engine.bind(self, a, b, out, **options)

    @property
    def _engine(self) -> Any:
        from tilewright.runtime.gpu import engine
        return getattr(engine, self.maker)


def planned(plan: Any, problem: Gemm, target: Any, algorithm: str | None = None) -> Any:
    """The plan for a problem on a GPU: the text of one, or a plan, or by default the one that matmul runs. ValueError
    with every reason for one that cannot run it, not even if rows of operands are padded. An empty product, for which
    nothing runs, has any plan."""
    shape = gpu_lowering.multiplied_shape(problem, target, algorithm, passes=False)
    plan_of_target = choice.chosen(shape, target)[0] if plan is None else asked.plan(plan, target)
    if reasons := [] if 0 in (shape.m, shape.n, shape.k) else plan_of_target.violations(shape.padded, target):
        raise ValueError(f"plan {plan_of_target} cannot run {problem} on {target.name}: " + " ".join(reasons))
    return plan_of_target


def launched(launch: Launch) -> dict[str, Any]:
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
        return (artefact.recorded(self.emitter, self.target, **self.options),)

    @cached_property
    def loadable(self) -> artefact.Code:
        """From the cache, if it is there: then nothing is recorded."""
        return artefact.code(self.emitter, self.target, **self.options)


def launches(target: Any, *products: tuple[Launch, int, tuple[Pass, ...]]) -> tuple[Launch, ...]:
    """Each product of k steps behind its passes, which write to the workspace after all products' own. The second one
    is for numbers that the first one's passes cannot write; what those have written is not needed then."""
    counters = max(product.counters for product, *_ in products)
    begin = end = _block(max(product.workspace for product, *_ in products))
    end += max(sum(_block(array.size) for array in made) for *_, made in products)
    special, zero = ((("special", end),), (end, FLAG)) if len(products) > 1 else ((), (0, 0))
    end += BLOCK * (len(products) > 1)
    sequence: list[Launch] = []
    for product, k, made in products:
        places, at = {}, begin
        for array in made:
            places[array.operand] = at
            at += _block(array.size)
            grid = min(array.ctas, FEW) if array.wide else array.ctas   # mostly there is nothing to do for the former
            sequence.append(Launch(PassKernel(array, target), (grid, 1, 1), end, counters,
                                (("tiles", array.ctas), ("rows", array.rows), ("depth", array.depth), ("ld", array.ld)),
                                (("target", places[array.operand]), *special)))
        more = [("k", k)] * bool(made)
        for array in made:
            x = array.operand
            more.append((f"ld{x}", array.ld))
            more += [(f"planes_{x}", array.count), (f"plane_{x}", array.plane)] if array.split else []
            more += [(f"stride_{x}", array.count*array.plane)] * (array.batch != 1)
        sequence.append(replace(product, workspace=end, counters=counters, more=(*product.more, *more),
                             at=(*places.items(), *special)))
    sequence[0] = replace(sequence[0], zero=zero)
    return tuple(sequence)


def _block(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
