"""What a launch does, counted: by small simulated launches, for one of any size.

Counts of a kernel are sums over its CTAs, and those of a CTA sums over tiles, such as steps along k. The latter are
linear in the number of whole tiles along each size, so that runs of one and of two tiles, and of what the size has
beyond whole ones, say what any number of them does: a rim that a kernel leaves to slower code counts as it is. How many
CTAs there are is not counted that way: what a kernel's grid says is exact.
"""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import product
from math import prod
from typing import Any, NamedTuple

from tilewright.ir.program import Function, Loop, Op
from tilewright.simulator.code import kind_of
from tilewright.simulator.machine import Machine
from tilewright.simulator.memory import AddressSpace
from tilewright.simulator.report import Report
from tilewright.targets import AmdTarget, GpuTarget

LEAST, MORE = 1, 2              # tiles along a size
Counts = Counter[str]           # by kind of instruction, of warps; and the words below
BYTES = {"global": "bytes", "shared": "bytes shared"}           # that threads ask for, by memory
PASSES, LOADED, STORED, WAITS = "passes", "sectors loaded", "sectors stored", "waits"
FOOTPRINT = "footprint"                                         # different bytes of global memory
SHARED = LOADED, STORED, FOOTPRINT                              # of CTAs that touch the same memory not equal shares
NOT_OTHERS = re.compile(r"\s*(@!?%p\d+\s+)?(v_\w*(fma|mac)|fma\.|v_mfma|mma|ld|st|global_|buffer_|ds_|s_waitcnt"
                        r"|s_barrier|bar|\.|\w+:)")
FMA = re.compile(r"\s*(@!?%p\d+\s+)?(v_\w*(fma|mac)|fma\.)")


def run(function: Function, args: Any, grid: Any, target: str) -> Counts:
    """One simulated launch: instructions by kind, of warps (threads of a CPU) and with neighbouring accesses joined;
    `PASSES` over the banks of shared memory, sectors (lines of a CPU) `LOADED` and `STORED`, and `WAITS`, how often
    warps come to a block with loads of global memory. simulator.Fault where the kernel does wrong."""
    return from_report(Machine(function, AddressSpace(), {}, None, target, fuses=True).run_grid(args, grid))


def from_report(report: Report) -> Counts:
    """What `run` says of a launch that a machine with `fuses` ran."""
    instructions = report.instructions
    instructions[PASSES] = report.of(space="shared").moved
    instructions[LOADED] = report.of(space="global", verb="load").moved
    instructions[STORED] = report.of(space="global", verb="store").moved
    for block in report.blocks:
        instructions[WAITS] += block.runs * (block.kinds["load"] > 0)
        for kind, less in block.fused.items():
            instructions[kind] -= less * block.runs
    for space, words in BYTES.items():
        instructions[words] = report.of(space=space).bytes
    instructions[FOOTPRINT] = report.of(space="global").distinct
    instructions["flops"] = report.flops
    return instructions


def scaled(counts: Callable[[Mapping[str, int]], Counts], sizes: Mapping[str, int], tiles: Mapping[str, int],
           ctas: Callable[[Mapping[str, int]], int]) -> Counts:
    """Counts of a launch with these sizes, from `counts(small sizes)`.

    Counts of a CTA are extrapolated along each size from one and two tiles, and multiplied by `ctas(sizes)`. A size
    that decides how many CTAs there are is taken in whole tiles, as if all CTAs had whole ones, and stays at one tile
    unless a CTA also does more with two (a square matrix has one size, which is its depth, too). Of others the small
    sizes have the rest that the size has beyond whole tiles. Sizes of less than two tiles stay as they are.
    """
    least = {name: LEAST*tiles[name] if size >= MORE*tiles[name] else size for name, size in sizes.items()}
    larger = [name for name, size in sizes.items() if size > least[name]]
    grid = [name for name in larger if ctas({**least, name: MORE*tiles[name]}) != ctas(least)]
    least |= {name: first(sizes[name], tiles[name]) for name in larger if name not in grid}

    def of_cta(at: Mapping[str, int]) -> Mapping[str, float]:
        return {kind: n / ctas(at) for kind, n in counts(at).items()}

    def does_more(name: str) -> bool:
        one, two = of_cta(least), of_cta({**least, name: MORE*tiles[name]})
        return any(one.get(kind, 0) != n for kind, n in two.items() if kind not in SHARED)

    axes = [name for name in larger if sizes[name] > least[name] and (name not in grid or does_more(name))]
    total: Counter[str] = Counter()
    for corner in product((0, 1), repeat=len(axes)):
        at, weight = dict(least), 1.0
        for name, up in zip(axes, corner):
            beyond = (sizes[name] - least[name]) / tiles[name]
            at[name] += up * tiles[name]
            weight *= beyond if up else 1 - beyond
        for kind, count in of_cta(at).items():
            total[kind] += weight * count                    # type: ignore[assignment]
    return Counter({kind: count * ctas(sizes) for kind, count in total.items()})


def first(size: int, tile: int) -> int:
    """The smallest size to simulate for `size`: one tile and the remainder beyond whole tiles."""
    return min(LEAST*tile + size % tile, size)


class Round(NamedTuple):
    """A loop over tiles with all loops inside it: bytes that `one` round touches, and `two` that follow each
    other. There are `rounds` of it in all."""
    rounds: int
    one: float
    two: float


def nest(of: Callable[[Mapping[str, int]], Counts], sizes: Mapping[str, int], tiles: Mapping[str, int],
         ctas: Callable[[Mapping[str, int]], int]) -> tuple[Round, ...]:
    """What rounds of nested loops over tiles touch, from the same runs as `scaled`: first the whole launch, then a
    round of the outermost loop, which is over the first size, and so on inwards."""
    nested, names = [], list(sizes)
    for depth in range(len(names) + 1):
        outer = names[:depth]
        at = {name: first(size, tiles[name]) if name in outer else size for name, size in sizes.items()}
        again = dict(at)
        if outer:
            again[outer[-1]] = min(at[outer[-1]] + tiles[outer[-1]], sizes[outer[-1]])
        one, two = (scaled(of, small, tiles, ctas)[FOOTPRINT] for small in (at, again))
        nested.append(Round(prod(-(-sizes[name] // tiles[name]) for name in outer), one, two))
    return tuple(nested)


def overhead(function: Function, loop: str) -> float:
    """What is left of the recorded integer instructions in compiled code, whose main loop is `loop`: addresses that
    are constants apart become offsets, and what does not change leaves the loop. 1 where there is no telling."""
    loops = [node for node in function.walk() if isinstance(node, Loop)]
    if not loops or not loop:
        return 1.0
    kinds: list[Counter[str]] = [Counter(kind_of(node) for node in function.walk(inner.body)) for inner in loops]
    recorded = max(kinds, key=lambda each: (each["fma"], each.total()))
    lines = loop.splitlines()
    multiplied, others = (sum(map(bool, map(FMA.match, lines))), sum(not NOT_OTHERS.match(line) for line in lines))
    unrolled = multiplied / recorded["fma"] if multiplied and recorded["fma"] else 1.0
    return min(others / unrolled / recorded["integer"], 1.0) if recorded["integer"] else 1.0


def peak(function: Function, chip: GpuTarget | AmdTarget, double: bool) -> tuple[float, str]:
    """Operations per second that a GPU reaches at the most with a kernel's instructions, and what these are: its
    matrix instructions, or else multiply-adds."""
    units = chip.cus if isinstance(chip, AmdTarget) else chip.sms
    if matrix := _matrix_rate(function, chip):
        return matrix * units * chip.clock, "matrix instructions at the highest clock"
    dtype = "f64" if double else "f32"
    return chip.flops(dtype), f"multiply-adds of {dtype} at the highest clock"


def _matrix_rate(function: Function, chip: Any) -> float:
    """Operations per clock of a compute unit by the matrix instructions of a kernel; 0 if it has none."""
    names = [node.operation.name for node in function.walk() if isinstance(node, Op) and node.operation.kind == "mma"]
    if not names:
        return 0.0
    rates = chip.wgmma_rates if "wgmma" in names[0] else chip.matrix_rates
    fits = [rate for format, rate in rates.items() if f"{format.removesuffix('fn')}" in names[0].replace("s8", "i8")]
    if ".f64" in names[0] and not fits:
        return 2.0 * float(chip.matrix_f64)
    return max(fits or rates.values(), default=0.0)


def multiplies_doubles(function: Function) -> bool:
    """Is f64 what it multiplies?"""
    return any(isinstance(node, Op) and kind_of(node) == "fma" and str(node.results[0].type.scalar) == "f64"
               for node in function.walk())
