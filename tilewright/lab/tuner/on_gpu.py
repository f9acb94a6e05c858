"""The plans of a product as launches on a GPU, for the tuner: those of matmul, over operands that take turns.

Turns are timed by events of one stream, on which launches follow each other without a wait, as those of a graph or of a
program that is ahead of the device: what takes less time than the host needs for a launch is launched while the device
is busy with something else.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from statistics import median
from typing import TYPE_CHECKING, Any

from tilewright.formats.quantized import Quantized
from tilewright.lab.measure import check, evaluated, gpu_state, measure, operands
from tilewright.lab.measure.gpu_probes import Busy
from tilewright.lab.measure.gpu_rules import Events, GpuRules, sets
from tilewright.lab.tuner.contenders import REFERENCE, Contenders, Job, beside
from tilewright.plans import asked, gpu_lowering
from tilewright.problem import kernel_arrays
from tilewright.runtime.gpu import auxiliary, blocks
from tilewright.runtime.gpu.arrays import Look, shadow
from tilewright.runtime.gpu.engine import NVIDIA, first_device
from tilewright.runtime.gpu.operands import address, uploaded
from tilewright.runtime.gpu.recipe import Bound, Recipe

if TYPE_CHECKING:
    from tilewright.lab.measure.process import Emit
    from tilewright.problem import Gemm
    from tilewright.targets import Target

POISON = 0xFFFFFFFF     # nan, -1 or the largest, so that an element that was not written cannot pass for right


class OnDevice(Contenders):
    """Launches on a stream of the first device of a target's architecture."""
    shares = 0.6, 0.8           # to compile takes longer than to measure
    rules = GpuRules()

    def __init__(self, target: Target) -> None:
        self.engine, self.on = first_device(target)
        self.driver = self.engine.driver
        self.stream = self.driver.Stream(self.on)
        self.track = Events(self.stream, Busy(self.on, self.driver)).track

    def sets_of(self, size: int) -> int:
        """How many sets of operands of so many bytes take turns."""
        return sets(size, self.on.target.l2 * getattr(self.on.target, "xcds", 1))       # of all dies


class OnGpu(OnDevice):
    """The plans of a product, with its semiring and epilogue.

    Operands are of the formats in which they are multiplied: plans differ in nothing that is converted before.
    """

    def __init__(self, problem: Gemm, target: Target) -> None:
        super().__init__(target)
        target = self.on.target
        self.o = o = operands.make(gpu_lowering.lower(problem, target))
        p = o.problem
        if p.blocks and p.epilogue:
            raise ValueError(f"tune measures products of block-scaled operands without an epilogue, and {p} has one")
        self.references: list[Any] = ([(o.c, evaluated.Reference(o))] if p.fused or p.semiring else
                                      [(one.c, check.Reference(one)) for one in o.compared.values()])
        self.looks: list[Any] = []                              # hold the memory of what is beside
        self.beside = self._beside()                            # all sets of operands share it
        self.sets = [self._placed() for _ in range(self.sets_of(o.problem.min_bytes))]
        self.scales: list[Bound] = []                           # hold the memory of scales

    def _placed(self) -> tuple[Look, Look, Look]:
        """A copy of the operands on the device, and room for C there, in whole words."""
        o = self.o
        a, b = (uploaded(self.driver, self.on, x.elements, False) if isinstance(x, Quantized)
                else uploaded(self.driver, self.on, x, by == "t") for x, by in zip((o.a, o.b), o.problem.layout))
        memory = self.driver.Memory(self.on, -(-o.c.nbytes // 4) * 4)
        return a, b, Look(shadow(memory.pointer, o.c.shape, o.c.strides, o.c.dtype), memory)

    def _uploaded(self, x: Any) -> Any:
        """The shadow of a copy on the device."""
        self.looks.append(uploaded(self.driver, self.on, x, by_columns=False))
        return self.looks[-1].shadow

    def _beside(self) -> list[Any]:
        """The arrays beside A, B and C of a problem with an epilogue or prologues."""
        p, o = self.o.problem, self.o
        if not p.fused:
            return []
        memories = [self.driver.Memory(self.on, -(-x.nbytes // 4) * 4) for x in o.outs]
        self.looks += memories
        outs = [shadow(memory.pointer, x.shape, x.strides, x.dtype) for memory, x in zip(memories, o.outs)]
        operands_of = {x.name: o.named[x.name] for x in kernel_arrays(p) if not x.written}
        return auxiliary.of_kernel(p, (), operands_of, outs, self._uploaded)

    def _recipe(self, name: str) -> tuple[Recipe, list[int]]:
        """The recipe, as the engine makes it for these operands, and the addresses beside theirs; by the planner's
        choice for a name that is no plan."""
        plan = None if name == REFERENCE else asked.plan(name, self.on.target)
        if not self.o.problem.blocks:
            a, b, c = (look.shadow for look in self.sets[0])
            p = self.o.problem
            functions = {name: text for name in ("epilogue", "prologue_a", "prologue_b") if (text := getattr(p, name))}
            recipe = self.engine.recipe(self.on, a, b, c, plan, self.beside, functions, semiring=p.semiring)
            return recipe, [address(x) for x in self.beside]
        kernel = self.engine.compile(self.o.problem, self.on.target, plan)
        own = self.engine.platform.own
        bound = Bound(self.engine, kernel, own, self.on.index, self.o.a, self.o.b, None, (1.0, 0.0))
        self.scales.append(bound)
        assert bound.recipe is not None
        return bound.recipe, bound.beside

    def tried(self, name: str) -> list[measure.Call]:
        (recipe, scalars), stream = self._recipe(name), self.stream.handle
        with self.on.current():
            self.driver.fill(self.c.pointer, POISON, self.c.size, stream)
        alpha = blocks.factor(self.o.a, self.o.b)
        calls = [(recipe.run, (a.pointer, b.pointer, c.pointer, alpha, 0.0, stream, *scalars))
                 for a, b, c in self.sets]
        run, args = calls[0]
        run(*args)
        self.stream.synchronize()
        return calls

    def compare(self, job: Job, calls: Sequence[measure.Call], emit: Emit) -> None:
        """With torch, whose products of matrices are cuBLAS's or rocBLAS's."""
        source = None
        if self.engine is NVIDIA:
            from tilewright.runtime.cuda.driver import bus_id
            source, _ = gpu_state.find(bus_id(self.on))
        if source is not None:
            with gpu_state.Watch(source) as watch:
                measure.interleave({"ours": calls}, replace(self.rules, turn_s=0.1, max_rounds=1), track=self.track)
            if clocks := [r.sm_mhz for r in watch.later_half() if r.sm_mhz]:
                emit("clock", hz=1e6 * median(clocks))
        kinds = {self.o.problem.a, self.o.problem.b, self.o.problem.out}
        plain = not (self.o.problem.fused or self.o.problem.semiring)
        if job.vendor and plain and len(kinds) == 1 and kinds <= {"f32", "f64", "f16", "bf16"} and find_spec("torch"):
            self._beside_torch(calls, emit)

    def _beside_torch(self, calls: Sequence[measure.Call], emit: Emit) -> None:
        import torch
        stream = torch.cuda.ExternalStream(self.stream.handle)
        product = torch.mm if self.o.problem.batch == 1 else torch.bmm

        def multiply(*matrices: Any) -> None:
            with torch.cuda.stream(stream):
                product(*matrices[:2], out=matrices[2])

        def there(x: Any) -> Any:
            if x.dtype.kind != "V":
                return torch.from_numpy(x).cuda()
            return torch.from_numpy(x.astype("f4")).cuda().to(torch.bfloat16)
        theirs = [(multiply, tuple(map(there, (self.o.a, self.o.b, self.o.c)))) for _ in self.sets]
        beside(self, calls, f"torch {torch.__version__}", theirs, emit)

    @property
    def c(self) -> Any:
        """The memory of the first C, which is compared."""
        return self.sets[0][2].keep

    def wrong(self) -> str | None:
        self.c.download(self.o.c)
        return next((said for c, reference in self.references if (said := reference.wrong(c))), None)
