"""The engines for arrays in GPUs' memory: matmul's semantics over shadows, each product by a recipe found in a table.

The planner decides input and output formats (plans.gpu.taken). Arrays in the host's memory are multiplied by `gemm`,
block-scaled ones by `multiply_scaled`, which copy them to the first GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright import forks, formats
from tilewright.compiler import artefact
from tilewright.formats.quantized import Quantized, check_operand
from tilewright.formats.table import BLOCK_FORMATS
from tilewright.plans import gpu_lowering
from tilewright.plans.measured import choice
from tilewright.problem import Gemm
from tilewright.rules import arguments, scaling, shapes
from tilewright.rules.arguments import Array
from tilewright.rules.call import KERNELS, Call, Product, decide
from tilewright.rules.signature import signature
from tilewright.runtime import repeats
from tilewright.runtime.gpu import (
    arrays,
    auxiliary,
    blocks,
    complex_products,
    fused as fused_products,
    gathered,
    operands,
    prologues,
)
from tilewright.runtime.gpu.arrays import CUDA, HIP, Library, Look, Platform, kind
from tilewright.runtime.gpu.blocks import Blocked
from tilewright.runtime.gpu.dlpack import DeviceArray
from tilewright.runtime.gpu.driver import Kept
from tilewright.runtime.gpu.gathered import Gather
from tilewright.runtime.gpu.launch import Function
from tilewright.runtime.gpu.operands import format_of, leading, letter, library_of_all, same_device
from tilewright.runtime.gpu.product import Run
from tilewright.runtime.gpu.recipe import Bound, Recipe
from tilewright.targets import GpuTarget

MOST = 2048             # of what an engine has prepared
MAY_BE_NUMPYS = "operands[", "scale_"     # names of arrays that may be in the host's memory beside those on a GPU


class Engine:
    """`matmul` on the GPUs of one maker."""

    def __init__(self, platform: Platform, compiler: str) -> None:
        """`compiler`: the module whose `compile` makes kernels; a process whose recipes are there needs none."""
        self.platform, self.compiler = platform, compiler
        self.prepared: Kept[Any] = Kept(MOST)       # recipes, launches of attention, other kernels

    @property
    def driver(self) -> Any:
        """The binding, imported when it is first needed."""
        return self.platform.driver

    def run(self, library: Library, device: int, stream: int, plan: Any, algorithm: str | None = None,
            invariant: str = "") -> Run:
        return Run(self, library, self.driver.device(device), stream, plan, algorithm, invariant)

    def forget(self) -> None:
        """Choose plans anew."""
        self.prepared.forget()
        repeats.forget()

    # ---- arrays in the GPUs' memory

    def begin(self, named: Mapping[str, Any], outs: Mapping[str, Any], asked: repeats.Asked | None = None,
              alpha: Any = 1, **how: Any) -> tuple[Run, dict[str, Look]]:
        """A call on the stream that is the caller's at the moment, and looks at its arrays by the names of messages.

        named   what the call reads: of scales and of operands of functions those in the host's memory have no look
        outs    what it writes, None for new arrays
        asked   what calls like this may be known by
        how     of the run: plan, algorithm, invariant
        """
        given = {name: x for name, x in {**named, **outs}.items() if x is not None and (
            not name.startswith(MAY_BE_NUMPYS) or arrays.library_of(x) is not None)}
        library = library_of_all(**given)
        assert library is not None
        device = same_device(library, **given)
        stream = library.stream(next((x for x in outs.values() if x is not None), next(iter(given.values()))), device)
        looks = {name: library.look(x, name, stream, name in outs) for name, x in given.items()}
        run = self.run(library, device, stream, **{"plan": None, **how})
        if asked is not None:
            run.record(asked, alpha, {name: looks[name].shadow if name in looks else None for name in named})
        return run, looks

    def matmul(self, call: Call, asked: repeats.Asked | None = None) -> Any:
        """The call's product, for arrays of one library on one device: the shapes, dtypes and errors of matmul.

        It runs on the stream that is the caller's at the moment, and the result is an array of the caller's library.
        c may be a number. `threads` has no meaning here. `asked`: what a call like this may be remembered as.
        """
        arguments.refuse(f"on {self.platform.name}s",
                         algorithm=call.algorithm if self.platform is HIP else None)
        c = None if isinstance(call.c, np.number) else call.c
        extras = call.operands if isinstance(call.operands, Mapping) else None
        named, _ = signature(blocks.as_bytes(call.a), blocks.as_bytes(call.b), extras, call.scale_a, call.scale_b, c)
        arguments.check_batch_invariant(call.batch_invariant, call.plan, call.algorithm)
        run, looks = self.begin(named, fused_products.outs_of(call), asked, call.alpha, plan=call.plan,
                                algorithm=call.algorithm, invariant=call.invariant)
        with run:
            call, blocked = blocks.taken(run, call, looks)
            if len(blocked) == 1:
                call = prologues.of_blocks(run, call, looks, blocked)
            else:
                call = prologues.of_scaled(run, call, looks)
            pair = (blocked["a"], blocked["b"]) if len(blocked) == 2 else None
            a, b = self._operands(run, call, looks, blocked)
            if call.semiring is not None:
                a, b = (x.view(np.int8) if x.dtype == bool else x for x in (a, b))
            if call.fused:
                return fused_products.product(run, call, looks, a, b)
            out = looks[call.out_name].shadow if call.out is not None else None
            c = looks["c"].shadow if "c" in looks else call.c
            call, factors = auxiliary.scales_of_call(run, call, looks, a, b)
            product = decide(call, a, b, c, out, scaling.SCALED if factors or len(blocked) == 2 else KERNELS)
            if call.algorithm is not None:
                arguments.check_algorithm(call.algorithm, a.dtype, b.dtype, product.sums, call.plan, run.on.target)
            new, target = multiplied(run, product, call.out_name, *factors, blocked=pair)
            run.remember([target], any_alpha=product.sums.kind != "c")
        return call.out if new is None else run.library.result(new, named["a"])

    def _operands(self, run: Run, call: Call, looks: dict[str, Any], blocked: dict[str, Blocked]) -> Iterator[Array]:
        """a and b as they are multiplied; two `blocked` ones as what has their shapes, one is decoded."""
        for name, other in ("a", "b"), ("b", "a"):
            if name not in blocked:
                x, trans = arguments.operand(looks[name].shadow, name), getattr(call, f"trans_{name}")
                if trans == "c" and x.dtype.kind == "c":
                    x = complex_products.conjugate(run, x)
                yield arguments.transposed(x, trans, name)
                continue
            stand_in = blocked[name].stand_in(name) if other in blocked else blocks.decoded(
                run, name, blocked[name], looks[other].shadow.dtype)
            vector = looks[name].shadow.ndim == 1
            yield (stand_in[0] if name == "a" else stand_in[:, 0]) if vector else stand_in

    # ---- operands in the host's memory, by a plan for the first GPU

    def formats_for(self, p: Product, on: Any = None, in_memory: bool = False, scaled: str = "",
                    operands: tuple[str, str] | None = None) -> list[np.dtype[Any]]:
        """The dtypes in which kernels take a and b and store the product, on a device (the first one). TypeError if
        there is no such kernel. `in_memory`: all arrays are in the GPU's. `scaled`: sums are, in the format p.sums,
        by this one of problem.SCALES. `operands`: block-scaled formats, for which a and b stand."""
        given = {"a": p.a.dtype, "b": p.b.dtype, "result": p.result}
        if p.beta:
            given["c"] = p.c.dtype if p.c.ndim else p.sums  # a number is brought to what is stored
        if p.out is not None:
            given["result" if _direct(p) else "out"] = p.out.dtype
        target = (on or self.driver.device()).target
        sums = scaling.sums_of(p.a, p.b) if scaled and p.sums != arguments.F64 else p.sums
        named = {name: format_of(x) for name, x in given.items()} | dict(zip("ab", operands or ()))
        names = gpu_lowering.taken(target, named, format_of(sums), in_memory, scaled, semiring=p.semiring)
        return [arguments.F32 if name in BLOCK_FORMATS else formats.FORMATS[name].dtype for name in names]

    def gemm(self, a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0, *, threads: int | None = None,
             plan: Any = None, semiring: str = "") -> None:
        """c = alpha a b + beta c, as runtime.cpu.engine.gemm, for stacks of matrices too."""
        if a.shape[-1] == 0 or alpha == 0:
            c[...] = c * c.dtype.type(beta) if beta else 0
            return
        with self.run(self.platform.own, 0, self.platform.default_stream, plan) as run:
            on_device = run.uploaded(c) if beta else run.temporary(c.shape, c.dtype)
            run.multiply(run.uploaded(a), run.uploaded(b), on_device, alpha, beta, semiring=semiring)
            product = np.empty(c.shape, c.dtype)
            run.download(on_device, product)
        c[...] = product

    def multiply_scaled(self, a: Quantized, b: Quantized, c: Array, alpha: float, beta: float, plan: Any) -> None:
        """c = alpha * a @ b + beta * c of two matrices with blocks along k."""
        m, n = c.shape
        problem = Gemm(m, n, a.shape[1], a.format.name, b.format.name, format_of(c.dtype), "nt")
        kernel = self.compile(problem, self.driver.device(0).target, plan)
        self.call(kernel, a, b, c, alpha=alpha, beta=beta)

    # ---- compiled kernels

    def runnable(self, kernel: Any, index: int) -> Any:
        """The device of this number, if it can run the kernel's code; else a ValueError."""
        on = self.driver.device(index)
        if not on.runs(kernel.target):
            raise ValueError(f"the kernel is for {kernel.target.name}, and {on.name} runs {on.target.name} code")
        return on

    def bind(self, kernel: Any, a: Any, b: Any, out: Any = None, *, alpha: float = 1.0, beta: float = 0.0,
             scale_a: Any = None, scale_b: Any = None, operands: Mapping[str, Any] | None = None,
             outs: Sequence[Any] = ()) -> Bound:
        """Binds operands, as compiled.base.CompiledGemm.bind."""
        self._check(kernel, a, b, out, alpha, beta)
        scaled = kernel.problem.a in BLOCK_FORMATS
        factors = auxiliary.scales_of_kernel(kernel.problem, scale_a, scale_b)
        given = blocks.in_memory(a, b) if scaled else {"a": a, "b": b}
        more = factors | dict(operands or {}) | {f"outs[{i}]": x for i, x in enumerate(outs)}
        given |= {"out": out} | {name: x for name, x in more.items() if arrays.library_of(x) is not None}
        new = all(x is None for x in given.values())  # an array of ours, on the first GPU
        library = self.platform.own if new else library_of_all(**given)
        if library is None or library.platform is not self.platform:
            first = next(iter(given))
            raise TypeError(f"{first} must be an array in {self.platform.memory}, not {kind(given[first])}")
        device = 0 if new else same_device(library, **given)
        scalars = _factors(kernel, alpha, beta)
        return Bound(self, kernel, library, device, a, b, out, scalars, factors, operands, outs)

    def call(self, kernel: Any, a: Any, b: Any, out: Any = None, *, alpha: float = 1.0, beta: float = 0.0,
             **options: Any) -> Any:
        """Multiplies, as compiled.base.CompiledGemm.__call__, with the options of `bind`."""
        p = kernel.problem
        given = blocks.in_memory(a, b) if p.a in BLOCK_FORMATS else {"a": a, "b": b}
        if library_of_all(**given, out=out) is not None:
            bound = self.bind(kernel, a, b, out, alpha=alpha, beta=beta, **options)
            bound()
            result = bound.finished(next((x for x in (*given.values(), out) if x is not None), None))
            return (result, *bound.outs) if bound.outs else result
        self._check(kernel, a, b, out, alpha, beta, allowed=f"a NumPy array or an array in {self.platform.memory}")
        if kernel.inner is not kernel:
            matrices = kernel.converted(a, b, out if beta else None)
            return kernel.delivered(self.call(kernel.inner, *matrices, alpha=alpha, beta=beta, **options), out)
        product = np.empty(p.shapes["out"], formats.FORMATS[p.out].dtype)
        if beta:
            np.copyto(product, out)
        there = DeviceArray(self.platform, self.runnable(kernel, 0), product.shape, product.dtype)
        if beta:
            there.memory = self.driver.Memory.upload(there.memory.device, product)
        factors = auxiliary.scales_of_kernel(p, options.get("scale_a"), options.get("scale_b"))
        bound = Bound(self, kernel, self.platform.own, 0, a, b, there, _factors(kernel, alpha, beta), factors,
                      options.get("operands"))
        bound()
        bound.synchronize()
        there.memory.download(product)
        more = [np.empty(x.shape, x.dtype) for x in bound.outs]
        for x, y in zip(bound.outs, more):
            x.memory.download(y)
        if out is None:
            return (product, *more) if more else product
        np.copyto(out, product)
        return (out, *more) if more else out

    def _check(self, kernel: Any, a: Any, b: Any, out: Any, alpha: float, beta: float, allowed: str = "") -> None:
        """TypeError or ValueError for factors, a missing out, and for operands in the host's memory that the problem
        does not have. `allowed`: what all operands may be, if all are there."""
        if out is None and beta:
            raise ValueError(f"out must be given if beta is not 0, and beta is {_factors(kernel, beta)[0]}")
        p = kernel.problem
        p.check_factors(alpha, beta)
        for name, x in (("a", a), ("b", b), ("out", out)):
            if (allowed and x is not None) or (name != "out" and p.a in BLOCK_FORMATS):
                check_operand(name, x, getattr(p, name), p.shapes[name], allowed=allowed, given=kind(x))
        if allowed and out is not None and not out.flags.writeable:
            raise ValueError("out is read-only; it must be an array that can be written to")

    # ---- recipes and other kernels

    def recipe(self, on: Any, a: Array, b: Array, c: Array, plan: Any, beside: Sequence[Array] = (),
               functions: Mapping[str, str] | None = None, algorithm: str | None = None,
               of_blocks: blocks.Formats | None = None, semiring: str = "", invariant: str = "",
               gather: Gather | None = None) -> Recipe:
        """For c = alpha * a @ b + beta * c with operands like these, c by rows: matrices, or stacks of them. `beside`:
        the arrays of `kernel_arrays`, as of `functions`, the problem's epilogue and prologues by name, or, without
        any, scales as rules.scaling.broadcast gives them. `of_blocks`: a, b and scales are bytes of these. `semiring`:
        see problem.Gemm. `gather`: of the operand that tables describe."""
        (m, k), n, letters, stacks = a.shape[-2:], b.shape[-1], letter(a) + letter(b), operands.of_batch(a, b, c)
        kinds, scales_are = (format_of(a.dtype), format_of(b.dtype)), "" if functions else scaling.kind_of(beside, n)
        if of_blocks is not None:
            letters, scales_are = "nt", ""
            kinds, k = (of_blocks.a, of_blocks.b), of_blocks.k
        problem = Gemm(m, n, k, *kinds, format_of(c.dtype), letters, stacks.get("batch", 1), scales_are,
                       semiring=semiring, **(functions or {}))
        rows = (x if by == "n" else operands.transposed(x) for x, by in zip((a, b, c), letters + "n"))
        if gather is not None:
            shape = operands.shape_of(problem, on.target, a, b, c)
            return gathered.recipe(self.driver, on, problem, shape, gather, gather.role(a, b), *(
                leading(x) or 0 for x in rows), **stacks, **auxiliary.strides(problem, beside))
        if plan is None:
            shape = operands.shape_of(problem, on.target, a, b, c).with_numerics(invariant=invariant)
            shape = gpu_lowering.by_algorithm(shape, algorithm, on.target)
            plan, _ = choice.chosen(shape, on.target)
        kernel = self.compile(problem, on.target, plan)
        if of_blocks is not None:
            kernel = operands.of_block_scaled(kernel, a, b, c)
        operands.check(kernel, (a, b, c))
        more = stacks | auxiliary.strides(problem, beside)
        return Recipe(self.driver, kernel, on, *(leading(x) or 0 for x in rows), **more)

    def compile(self, problem: Gemm, target: Any, plan: Any) -> Any:
        """The kernel of this plan, as tilewright.compile gives it."""
        return forks.imported(self.compiler).compile(problem, target, plan)

    def kernel(self, on: Any, emitter: str, **options: Any) -> Function:
        """The kernel that an emitter records with these options, for a device."""

        def loaded() -> Function:
            code = artefact.code(emitter, on.target, **options, WARP=on.target.warp)
            return self.driver.load(code.image, on, code.machine).function(code.manifest)

        function: Function = self.prepared.get((on.index, emitter, *options.items()), loaded)
        return function


def _factors(kernel: Any, *given: Any) -> tuple[Any, ...]:
    """alpha and beta as numbers of Python's."""
    kind = complex if kernel.problem.out in gpu_lowering.COMPLEX else float
    return tuple(map(kind, given))


def _direct(p: Product) -> bool:
    """Are sums rounded to the format of out at once? Else they become a result, which is cast."""
    return p.out is None or p.result in (p.out.dtype, p.sums)


def multiplied(run: Run, p: Product, out_name: str, *factors: Array,
               blocked: tuple[Blocked, Blocked] | None = None) -> tuple[Any, Array]:
    """The product of shadows, times these scales of rows and columns, or of what two of them stand for. The new array,
    if there is no out; and the result's shadow."""
    pair: Sequence[Array] = scaling.broadcast(factors, p.shape[:-2], *p.sizes) if factors else ()
    of_blocks = blocks.Formats(blocked[0].format.name, blocked[1].format.name, p.sizes[2]) if blocked else None
    taken_a, taken_b, stored = run.engine.formats_for(p, run.on, True, scaling.kind_of(pair, p.shape[-1]),
                                                      of_blocks and of_blocks[:2])
    new, target, result = None, p.out, p.out
    if target is None:
        new, result = run.result(p.user_shape, p.result)
        target = shapes.as_matrices(result, p.vectors)
    elif any(n > 1 and s == 0 for n, s in zip(target.shape, target.strides)):
        raise ValueError(f"{out_name} has elements that share memory: its strides are {target.strides} bytes")
    assert result is not None
    if 0 in p.shape:
        return new, result
    if blocked:
        of_a, of_b = (x.as_multiplied(name, x.elements, x.scales) for name, x in zip("ab", blocked))
        a, b, *pair = p.broadcast(of_a[0], of_b[0], of_a[1], of_b[1])
    else:
        a, b = p.broadcast(run.typed(p.a, taken_a), run.typed(p.b, taken_b))
    direct = _direct(p)
    in_place = direct and shapes.writes_in_place(target, a, b, stored)
    product = target if in_place else run.temporary(p.shape, stored)
    if p.beta:
        c = p.c if p.c.ndim else np.broadcast_to(run.number(p.c, stored), p.shape)
        if not shapes.same(product, c):
            run.copy(run.copied(c, stored) if shapes.overlap(product, c) else c, product)
    if blocked:
        pair = [auxiliary.scales_ready(run, x, x.dtype, product) for x in pair]
    elif pair:
        scales = (auxiliary.scales_ready(run, x, p.sums, product) for x in factors)
        pair = scaling.broadcast([*scales], p.shape[:-2], *p.sizes)
    run.multiply(a, b, product, p.alpha, p.beta, *pair, of_blocks=of_blocks, semiring=p.semiring)
    if product is not target:
        run.copy(product if direct else run.typed(product, p.result), target)
    return new, result


NVIDIA = Engine(CUDA, "tilewright.compiled.nvidia")
AMD = Engine(HIP, "tilewright.compiled.amd")


def first_device(target: Any) -> tuple[Engine, Any]:
    """The engine for a target, and the first device of its architecture. RuntimeError, with what is there instead, if
    there is none."""
    engine = NVIDIA if isinstance(target, GpuTarget) else AMD
    driver = engine.driver
    here = [driver.device(index) for index in range(driver.count())] if driver.available() else []
    for on in here:
        if on.target.name == target.name:
            return engine, on
    there = ", ".join(f"{on.name} is {on.target.name}" for on in here) or driver.why_not().rstrip(".")
    raise RuntimeError(f"{target.name} code cannot run on this machine: {there}. Such code can be planned, compiled, "
                       f"read as assembly and simulated here; `tilewright plan M N K --target {target.name} --top 12` "
                       "lists plans by their predicted time")
