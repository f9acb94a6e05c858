"""The register-tile study: every MR x NR that fits the registers, on packed panels in L1 and L2.

A tile of MR rows and NV vectors (NR = NV lanes columns) makes MR NV multiply-adds of NV + MR loads, and needs
MR NV + NV + 1 registers: C, a row of B, one element of A.  Many FMAs per load ask for a square tile; the two FMA units
ask for enough accumulators (latency 4 cycles x 2 units = 8); the rest is measured.

Names: the article's matrices lie by columns and its vectors along m, so its m_R x n_R is our columns x rows.  Its 16x6
is the 6x16 here.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import targets
from tilewright.formats import FORMATS, MULTIPLIED
from tilewright.lab.bench import tables
from tilewright.lab.bench.results import Report
from tilewright.lab.measure import check, measure, quiet
from tilewright.lab.measure.measure import Call, Rules
from tilewright.outputs import Progress
from tilewright.targets import CpuTarget

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

ARTICLE = ((16, 6), (8, 8), (8, 12), (8, 13), (8, 14), (32, 2))  # its m_R x n_R
PEAK = "FMA loop"
KC = 256  # rank-1 updates per tile; fewer would time the update of C, more would leave L1
CALL_FLOPS = 2e7  # of one call, about 0.2 ms: what Python adds is then less than 1 %
RULES = Rules(turn_s=0.003, warm_s=0.0005, min_rounds=5, max_rounds=15, budget_s=20.0)


@dataclass(frozen=True)
class Tile:
    """MR rows of `vectors` vectors."""

    mr: int
    vectors: int
    lanes: int

    @property
    def nr(self) -> int:
        return self.vectors * self.lanes

    @property
    def name(self) -> str:
        return f"{self.mr}x{self.nr}"

    @property
    def article(self) -> str:
        """The article's name for it, if it names it."""
        return f"{self.nr}x{self.mr}" if (self.nr, self.mr) in ARTICLE else ""

    @property
    def registers(self) -> int:
        return self.mr * self.vectors + self.vectors + 1

    @property
    def fma_per_load(self) -> float:
        return self.mr * self.vectors / (self.mr + self.vectors)


def legal(target: CpuTarget, itemsize: int) -> list[Tile]:
    """Every tile that fits the registers, fewest vectors first."""
    have, lanes = target.registers - target.spare_registers, target.lanes(itemsize)
    every = (Tile(mr, vectors, lanes) for vectors in range(1, have) for mr in range(1, have))
    return [tile for tile in every if tile.registers <= have]


def named(target: CpuTarget, tiles: list[Tile]) -> list[Tile]:
    """The article's tiles and those that plans use."""
    from tilewright.plans.cpu_tiles import TILES

    chosen = TILES.get(target.registers, ())
    return [tile for tile in tiles if tile.article or (tile.mr, tile.vectors) in chosen]


def run(target: CpuTarget, dtype: str, quick: bool, console: Console) -> dict[str, Any]:
    """What a report has of all tiles, the fastest first, and of the FMA loop that took turns with them: GFLOP/s."""
    from tilewright.lab.measure import timing

    if dtype not in MULTIPLIED:
        raise ValueError(f"dtype must be one of {', '.join(MULTIPLIED)}, got {dtype!r}")
    target.require_runnable()
    tiles = legal(target, FORMATS[dtype].itemsize)
    tiles = named(target, tiles) if quick else tiles
    calls: dict[str, list[Call]] = {}
    flops: dict[str, float] = {}

    def enter(name: str, call: Callable[[int], Any], per_round: float) -> None:
        rounds = max(1, round(CALL_FLOPS / per_round))
        calls[name], flops[name] = [(call, (rounds,))], rounds * per_round

    with Progress(console, "compiling", len(tiles)) as bar, quiet.pinned():
        for tile in tiles:
            enter(tile.name, *probe(target, dtype, tile))
            bar.advance()
        enter(PEAK, *timing.fma(target, dtype))
        bar.update(f"timing {len(calls)} loops in turn")
        samples = measure.interleave(calls, RULES, disturbed=quiet.Watch().disturbed)
    rates = {name: [flops[name] / s / 1e9 for s in sample.seconds] for name, sample in samples.items()}
    records = [_record(target, dtype, tile, rates[tile.name], rates[PEAK]) for tile in tiles]
    return {"fma_loop_gflops": measure.spread(rates[PEAK])._asdict(),
            "tiles": sorted(records, key=lambda record: -record["gflops"]["median"])}


def probe(target: CpuTarget, dtype: str, tile: Tile) -> tuple[Callable[[int], None], float]:
    """(call(rounds), operations per round): a panel of B, and panels of A that fill at most half of L2; checked."""
    from tilewright.compiler.artefact import load
    from tilewright.lab.measure import timing
    from tilewright.lab.measure.probe_kernels import emit_tile_probe

    number, pointer, form = ctypes.c_int64, ctypes.c_void_p, FORMATS[dtype]
    code = load(emit_tile_probe, target, dtype, tile.mr, tile.vectors)
    function = code.function(f"tile_probe_{dtype}_{tile.name}", None, number, number, number, *[pointer] * 3)
    kc = KC * 4 // form.itemsize  # the same bytes in every format
    panels = max(1, min(16, target.l2 // 2 // (kc * tile.mr * form.itemsize)))
    rng = np.random.default_rng(0)
    shapes = (panels, kc, tile.mr), (kc, tile.nr), (panels * tile.mr, tile.nr)
    # Memory that starts on a page, as a workspace does.
    a, b, c = memory = [timing.random_memory(math.prod(shape) * form.itemsize).view(form.dtype).reshape(shape)
                        for shape in shapes]
    a[...], b[...], c[...] = rng.standard_normal(a.shape), rng.standard_normal(b.shape), 0
    addresses = [array.ctypes.data for array in memory]

    def call(rounds: int, keep: object = memory) -> None:
        function(rounds, panels, kc, *addresses)

    call(1)
    wrong = check.wrong(a.transpose(0, 2, 1).reshape(-1, kc), b, c)
    if wrong:
        raise RuntimeError(f"the tile {tile.name} is wrong: {wrong}")
    return call, 2.0 * panels * tile.mr * tile.nr * kc


def _record(target: CpuTarget, dtype: str, tile: Tile, rates: list[float], peak: list[float]) -> dict[str, Any]:
    """What --json has of a tile: what its loop holds, read from the assembly, and how fast it ran. `rates` and `peak`:
    GFLOP/s, round by round."""
    from tilewright.compiler.llvm import assembly
    from tilewright.inspect.resources import hot_loop
    from tilewright.kernels.cpu.microkernel import emit_microkernel

    loop = hot_loop(assembly(emit_microkernel(target, dtype, tile.mr, tile.vectors), target))
    of_peak = measure.spread([rate / p for rate, p in zip(rates, peak)])
    return {
        "mr": tile.mr, "nr": tile.nr, "vectors": tile.vectors, "article": tile.article or None,
        "registers": {"formula": tile.registers, "assembly": loop.registers},
        "fma_per_load": {"formula": round(tile.fma_per_load, 3), "assembly": round(loop.fma_per_load, 3)},
        "spills": loop.spills, "gflops": measure.spread(rates)._asdict(), "of_peak": of_peak._asdict(),
    }


def table(report: Report) -> Table:
    head = ["rows x columns", "article", "vectors", "registers\nformula / used", "FMAs per load\nformula / assembly",
            "spills", "GFLOP/s (quartiles)", "of peak"]
    rows = []
    for t in report.extra["tiles"]:
        registers, loads, rate = t["registers"], t["fma_per_load"], t["gflops"]
        row = [f"{t['mr']}x{t['nr']}", t["article"] or "", str(t["vectors"]),
               f"{registers['formula']} / {registers['assembly']}", f"{loads['formula']:.2f} / {loads['assembly']:.2f}",
               str(t["spills"] or "-"), f"{rate['median']:.1f} ({rate['q1']:.1f} to {rate['q3']:.1f})",
               f"{t['of_peak']['median']:.1%}"]
        rows.append([f"[bold]{cell}[/]" for cell in row] if t["article"] else row)
    title = f"register tiles, {report.options['dtype']}, {report.options['target']}, one thread"
    return tables.shown(title, "", head, rows, left=head[:2])


def remarks(report: Report) -> list[str]:
    """What a reader must know to read the table."""
    target: Any = targets.target(report.options["target"])
    itemsize = FORMATS[report.options["dtype"]].itemsize
    lanes = target.lanes(itemsize)
    said = [
        f"Packed panels in L1 and L2, {KC * 4 // itemsize} steps of k; {target.registers} registers of {lanes} "
        "lanes. Of peak: of an FMA loop that took turns with the tiles, "
        f"{report.extra['fma_loop_gflops']['median']:.1f} GFLOP/s.",
        "The article's m_R x n_R is columns x rows here, since its matrices are stored by columns.",
    ]
    missing = [f"{m}x{n}" for m, n in ARTICLE if m % lanes or n * (m // lanes) + m // lanes + 1 > target.registers]
    if missing:
        said.append(f"Of the article's tiles {', '.join(missing)} are no whole vectors here, or do not fit.")
    return said
