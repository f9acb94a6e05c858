"""Small products straight from the builtin: per dtype, the context of the emitted function that runs them."""
from __future__ import annotations

from array import array
from typing import Any

from tilewright import forks
from tilewright.compiler.artefact import load
from tilewright.kernels.cpu.jobs import SMALL
from tilewright.plans import builtin, lowering
from tilewright.plans.cpu import CpuPlan
from tilewright.plans.cpu_shape import Shape
from tilewright.plans.cpu_tiles import DOT_ROWS, STREAM_DEPTH, TILES, tiles_of
from tilewright.plans.measured import choice
from tilewright.problem import Gemm
from tilewright.runtime.cpu import amx
from tilewright.runtime.cpu.host import Part, host
from tilewright.runtime.cpu.pool import changed, common_threads, pool
from tilewright.targets import CpuTarget, detect

# Multiplications: two threads gain what a fork and join costs. 16 vCPUs of a Xeon, whose caches are far apart, took 5
# to 8 us for one; there by bytes of an element.
PARALLEL_ABOVE, FAR_ABOVE, FEW_CORES = 150_000, {4: 500_000, 8: 300_000}, 8
GRAIN = 30_000                  # the least for a part, of which a thread has two: 0.4 us of f32
_contexts: dict[str, tuple[int, array, Any]] = {}   # dtype → the emitted function, its context, what that points to
_entry: Any = None                                  # the builtin, once there is one


def attach(entry: Any) -> None:
    """This is the builtin (api/builtin.py) that may take small products from now on."""
    global _entry
    _entry = entry
    publish()
    changed.append(_publish_algorithms)


def offer(shape: Shape, plan: CpuPlan, target: CpuTarget) -> None:
    """Called whenever a recipe is built. The first small recipe of a format enables the builtin for it."""
    mr, vectors = tiles_of(target, TILES)[0]
    if shape.dtype in _contexts or not _ours(shape, plan, target):
        return
    nr = vectors * target.lanes(shape.itemsize)
    driver = host.driver(target, "in_place", shape.dtype, mr, nr)
    tables = [host.microkernels(target, shape.dtype, mr, nr, a) for a in ("rows", "columns")]
    far = target.cores > FEW_CORES
    part = _of_all(shape.dtype, target)
    code = load(f"tilewright.kernels.cpu.{part.emitter}", target, *part.args)
    kernels = f"{shape.dtype}_{mr}x{nr}"
    values = (driver, code.address(f"panels_{kernels}"), *(table.address for table in tables), pool().address,
              pool().parts_address, *(builtin.small_elements(shape.dtype, target, a) for a in ("rows", "columns")),
              FAR_ABOVE[shape.itemsize] if far else PARALLEL_ABOVE, GRAIN, builtin.WAKE_ONE, builtin.WAKE_ABOVE,
              *(host.address(x.emitter, target, *x.args) for x in _of_vectors(shape.dtype, target)))
    assert len(values) == len(SMALL)
    _contexts[shape.dtype] = code.address(f"small_{kernels}"), array("q", values), tables
    publish()


def parts(shape: Shape, plan: CpuPlan, target: CpuTarget) -> tuple[Part, ...]:
    """The function by which the builtin runs products like this one, if it does."""
    if shape.dtype not in builtin.BUILTIN or not _ours(shape, plan, target):
        return ()
    mr, vectors = tiles_of(target, TILES)[0]
    driver = Part("in_place:emit_in_place", (shape.dtype, mr, vectors))
    return _of_all(shape.dtype, target), driver, *_of_vectors(shape.dtype, target)


def _of_all(dtype: str, target: CpuTarget) -> Part:
    mr, vectors = tiles_of(target, TILES)[0]
    return Part("in_place:emit_small", (dtype, mr, vectors, builtin.PANEL_DEPTH))


def _of_vectors(dtype: str, target: CpuTarget) -> tuple[Part, ...]:
    """The drivers of products with a vector, as jobs.SMALL names them."""
    rows, depth = dict(tiles_of(target, DOT_ROWS))[1], dict(tiles_of(target, STREAM_DEPTH))[1]
    return (Part("skinny:emit_dots", (dtype, rows, 1)), Part("skinny:emit_row_dots", (dtype, 1, 1)),
            Part("skinny:emit_stream", (dtype, 1, depth)))


def publish() -> None:
    """Tell the builtin which products it may take, or repeat: the tuner's results count."""
    with forks.building:
        if _entry is not None:
            _entry.forget()
        if _entry is not None and _contexts:
            _publish_algorithms()
            _entry.limit(_largest(detect()))
            for dtype, (address, context, _) in _contexts.items():
                _entry.enable(dtype, address, context.buffer_info()[0])


def _publish_algorithms() -> None:
    """Tell the builtin for which values of algorithm= small products are native ones."""
    if _entry is not None and _contexts:
        target, threads = amx.permitted(detect()), common_threads() or 1
        _entry.native({name: tuple(lowering.native_up_to(name, dtype, threads, target) for dtype in builtin.BUILTIN)
                       for name in (None, lowering.FASTEST, *lowering.ALGORITHMS)
                       if name not in lowering.ALGORITHMS or lowering.ALGORITHMS[name][0] in builtin.BUILTIN})


def runs(problem: Gemm, shape: Shape, plan: CpuPlan, target: CpuTarget) -> bool:
    """Whether the builtin multiplies this problem, which has this shape, by this plan, with no Python between the call
    and the kernel."""
    return (problem.a == problem.b == problem.out == shape.dtype in builtin.BUILTIN
            and builtin.stays_in_cache(shape, target) and _ours(shape, plan, target))


def _ours(shape: Shape, plan: CpuPlan, target: CpuTarget) -> bool:
    """Whether the builtin does what this plan says, but for the split over threads."""
    if shape.converts or (plan.algorithm, plan.swap) != builtin.small_way(shape):
        return False
    return plan.algorithm != "in_place" or (not plan.kc and plan.mr == tiles_of(target, TILES)[0][0])


def _largest(target: CpuTarget) -> int:
    """The largest m*n*k that the builtin multiplies by itself: one less than the smallest small problem for which the
    tuner found a better plan."""
    def wanted(s: Shape) -> bool:
        return s.dtype in builtin.BUILTIN and builtin.stays_in_cache(s, target)

    others = (s.m * s.n * s.k - 1 for s, plan in choice.plans(target, wanted).items()
              if not _ours(s, plan, target))
    return min(others, default=16 * builtin.small_elements("f32", target) ** 2)
