"""Which kernels there are to show, and how they run: steps of the ladders, and plans of products; `own` has users'."""
from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any

import ml_dtypes
import numpy as np

from tilewright import simulator
from tilewright.ir.lines import callers
from tilewright.lab.ladder import steps
from tilewright.lab.ladder.gpu11_texture import aligned
from tilewright.lab.show.runs import DIGITS, Launch, Scales
from tilewright.targets import AmdTarget, CpuTarget, GpuTarget, Target

Sizes = tuple[int, int, int]
# sizes at which a step is small enough to be seen, and still has several tiles, or rounds of its loop
SMALL = {"naive": (16, 16, 8), "tiled": (32, 32, 8), "registers": (32, 32, 8), "shared": (64, 64, 32),
         "coalesced": (64, 64, 32), "async": (128, 256, 24)}
TILED, TENSOR = (128, 128, 24), 192


def small(step: str, target: Target) -> Sizes:
    """The sizes of a step that are shown unless others are asked for."""
    ladder_step = steps.step(step, target)
    if isinstance(target, AmdTarget):
        atom = ladder_step.atom(target.name)
        return atom.m, atom.n, atom.k
    if isinstance(target, CpuTarget):
        return (4, 8, 4) if step == "naive" else _cpu_sizes(step, target)
    if isinstance(ladder_step, steps.TensorStep):
        rows, columns = ladder_step.tile
        return rows * ladder_step.ctas, columns, TENSOR
    return SMALL.get(step, TILED)


def of_step(step: str, target: Target, sizes: Sizes | None = None, **changed: Any) -> Launch:
    """A step of the target's ladder; `changed` are parameters of its emitter. ValueError for what it cannot do."""
    ladder_step, size = steps.step(step, target), sizes or small(step, target)
    if isinstance(target, AmdTarget):
        return _of_amd(ladder_step, target, size)
    if isinstance(target, CpuTarget):
        return _of_cpu(step, ladder_step, target, size)
    if isinstance(ladder_step, steps.Choice):
        raise ValueError(f"step {ladder_step.title} has no kernel of its own: show {', '.join(ladder_step.among)}")
    return _of_gpu(step, ladder_step, target, size, changed)


def _record(emit: Callable[..., Any], *args: Any, **sizes: Any) -> Any:
    with callers():
        return emit(*args, **sizes)


def _of_gpu(step: str, found: Any, target: GpuTarget, size: Sizes, changed: dict[str, Any]) -> Launch:
    m, n, k = size
    tensor = isinstance(found, steps.TensorStep)
    chosen = changed or _tiles(step, m, n, k)
    kind: Any = ml_dtypes.bfloat16 if tensor else np.float32
    function = _record(found.emit, **chosen)
    grid = found.grid(m, n, target.sms) if tensor else found.grid(m, n, **{
        x: y for x, y in chosen.items() if x != "STAGES"})
    if not tensor and found.textures and not aligned(m, n, k, 0, k, 0, n):
        raise ValueError(f"step {found.title} reads A and B in pieces of 16 bytes: n and k must be multiples of 4")

    def run(a: Any, b: Any, c: Any) -> Any:
        b = np.ascontiguousarray(b.T) if tensor else b
        args = (a.ravel(), b.ravel()) if not tensor and found.textures else (a, b)
        return simulator.run(function, m, n, k, 1.0, args[0], k, args[1], k if tensor else n, 0.0,
                             simulator.uninitialised(c), n, grid=grid, target=target.name)
    return Launch(size, (kind, kind, kind), ("a", "b", "c"), [function], run, target.name, function.threads, 32, grid,
                  chosen=chosen)


def _tiles(step: str, m: int, n: int, k: int) -> dict[str, int]:
    """Parameters of a step for small matrices: with those of the ladder there would be one tile, mostly empty."""
    if step in ("shared", "coalesced"):
        L = next((L for L in (128, 64, 32) if 2 * L <= max(m, n)), 32)
        return {"L": L, "S": 8, "V": 4 if L < 128 else 8}
    if step == "naive":
        return {"BLOCK": 8}
    if step in ("tiled", "registers"):
        return {"V": 2, "BLOCK": 8} if step == "tiled" else {"V": 4, "BLOCK": 4}
    return {}


# ---- the CPU's

def _cpu_blocks(target: CpuTarget) -> Sizes:
    """Blocks so small that all loops have several rounds. B's lies behind A's, at a multiple of a vector."""
    rows, lanes = (target.registers - 3) // 2, target.lanes(4)
    return rows, lanes // gcd(rows, lanes), 2 * lanes


def _cpu_sizes(step: str, target: CpuTarget) -> Sizes:
    rows, depth, columns = _cpu_blocks(target)
    return (2 * rows, columns, 6) if step in ("registers", "padded") else (2 * rows, 2 * columns, 2 * depth)


def _of_cpu(step: str, found: Any, target: CpuTarget, size: Sizes) -> Launch:
    blocks = _cpu_blocks(target) if int(found.title[0]) in (4, 5) else ()
    if found.parallel:
        raise ValueError(f"step {found.title} is step 5 by several threads, whose jobs are not shown: show micro")
    function = _record(found.emit, target, "f32", *blocks)
    work = found.work(target, "f32", *size, *blocks)

    def run(a: Any, b: Any, c: Any) -> Any:
        arrays = a, b, simulator.uninitialised(c), simulator.uninitialised(np.zeros(max(1, work), np.float32))
        return simulator.run(function, *size, *arrays[:len(function.params) - 3])
    return Launch(size, (np.float32,) * 3, ("a", "b", "c"), [function], run, target.name,
                  chosen=dict(zip(("MC", "KC", "NC"), blocks)))


# ---- AMD's

def _of_amd(found: Any, target: AmdTarget, size: Sizes) -> Launch:
    """One matrix instruction."""
    from tilewright import formats

    atom = found.atom(target.name)
    if size != (atom.m, atom.n, atom.k):
        raise ValueError(f"step {found.title} on {target.name} is one instruction, {atom.name}: {atom.m} x {atom.n} x "
                         f"{atom.k}")
    function = _record(found.emit, target.name)
    sides = [formats.FORMATS[x.format] for x in (atom.a, atom.b)]

    def run(a: Any, b: Any, c: Any) -> Any:
        packed: list[Any] = []
        for x, side, axis in ((a, atom.a, 1), (b, atom.b, 0)):
            elements = formats.convert(np.asarray(x, np.float64), side.format, saturate=True)
            packed.append(formats.pack(elements) if side.bits < 16 else elements)
            if atom.scaled:
                packed.append(np.full([n // 32 if i == axis else n for i, n in enumerate(x.shape)], 127, np.uint8))
        return simulator.run(function, *packed, c, target=target.name)
    wide = all(x.bits >= 8 for x in sides)
    kinds: list[Any] = [x.dtype if wide else np.float64 for x in sides]
    return Launch(size, (kinds[0], kinds[1], np.float32), ("a", "b", "c"), [function], run, target.name,
                  function.threads, 64, traced=wide)


# ---- what matmul runs

def of_problem(problem: Any, target: Target, plan: Any = None) -> Launch:
    """A product by the plan that matmul takes, or a given one: of several launches, and of block-scaled formats, too.
    ValueError for stacks of matrices."""
    import tilewright as tw
    from tilewright import formats
    from tilewright.lab.tuner.space import Space

    if problem.batch != 1:
        raise ValueError(f"{problem}: what is shown are products of two matrices, not stacks of them")
    space = Space(problem, target, 1 if isinstance(target, CpuTarget) else None)
    with callers():
        kernel = space.kernel(plan or space.in_use)
        functions = list(kernel.functions)
    cpu = isinstance(target, CpuTarget)
    every = () if cpu else tuple((x.function, x.grid) for x in kernel.launches)
    last = every[-1][0] if every else functions[-1]
    if every:
        functions = list(dict.fromkeys(function for function, _ in every))
    scales = _scales(problem, cpu or "scaled" not in str(kernel.plan).split()[0]) if problem.blocks else None
    kinds = [np.float64 if scales and x != problem.out else formats.FORMATS[x].dtype for x in
             (problem.a, problem.b, problem.out)]

    def run(a: Any, b: Any, c: Any) -> Any:
        if scales:
            kind = scales.format.scale.dtype
            a, b = (formats.Quantized.of(formats.convert(x, scales.format.element.name, saturate=True), y, axis)
                    for x, y, axis in ((a, scales.a.view(kind), -1), (b, scales.b.view(kind), -2)))
        laid = [x if scales or letter == "n" else np.asfortranarray(x) for x, letter in zip((a, b), problem.layout)]
        return tw.simulate(kernel, *laid, c)
    return Launch((problem.m, problem.n, problem.k), (kinds[0], kinds[1], kinds[2]), ("a", "b", "out" if cpu else "c"),
                  functions, run, target.name, last.threads, last.warp, (1, 1) if cpu else every[-1][1],
                  chosen={"plan": str(kernel.plan)}, launches=every if len(every) > 1 else (), scales=scales,
                  traced=scales is None or (scales.format.mx and scales.format.element.name in DIGITS))


def _scales(problem: Any, decoded: bool) -> Scales:
    """Small powers of two for each block of a block-scaled product, so that sums are exact. `decoded`: kernels hold
    elements in bf16."""
    from tilewright import formats

    first, second = (formats.block_format(x) for x in (problem.a, problem.b))
    if first != second:
        raise ValueError(f"{problem}: both operands must be in one block-scaled format to be shown")
    blocks = first.blocks(problem.k)
    draw = np.random.default_rng(2)
    a, b = (np.exp2(draw.integers(-1, 2, shape)).astype(first.scale.dtype).view(np.uint8) for shape in
            ((problem.m, blocks), (blocks, problem.n)))
    return Scales(first, first.block, a, b, ml_dtypes.bfloat16 if decoded else None)
