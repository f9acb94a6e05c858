"""Four ranks of mpiexec on this machine: bytes beside the two-dimensional bound, and the share of transfers hidden.

    python bench/mpi.py [--ranks 4] [--n 3000] [--rounds 5] [--out FILE]

Messages between processes of one machine are copies by the same cores that multiply, so that their time cannot be
hidden. A network of stated bandwidth is put before them (tilewright.mpi.Network): a message is handed to MPI when such
a network would have delivered it. Its bandwidth is chosen so that panels take 1/4, 1/2 and 3/4 of the time of the
products, which is measured first. `ahead=0` multiplies and waits in turns. Rounds alternate between the two.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from tilewright import mpi, text
from tilewright.lab.bench import results
from tilewright.lab.measure import machine
from tilewright.mpi.placement import panel_width
from tilewright.mpi.report import Report

SHARES = (0.25, 0.5, 0.75)


def ranks(n: int, rounds: int, cyclic: bool) -> list[dict[str, Any]] | None:
    """The result on rank 0, None on the other ranks."""
    from mpi4py import MPI

    world, found = MPI.COMM_WORLD, []
    grid = mpi.choose(n, n, n, world.size, layers=1)
    width = panel_width(n)
    layout = mpi.Layout.cyclic((n, n), (width, width), grid[:2]) if cyclic else mpi.Layout.blocks((n, n), grid[:2])
    rng = np.random.default_rng(world.rank)
    local = [rng.standard_normal(layout.local_shape(world.rank), np.float32) for _ in range(2)]

    def product(team: mpi.Team, ahead: int) -> tuple[float, list[Report]]:
        a, b = (mpi.Matrix(team, layout, x) for x in local)
        report = Report()
        world.Barrier()
        begin = time.perf_counter()
        mpi.matmul(a, b, ahead=ahead, report=report, threads=1)
        seconds = time.perf_counter() - begin
        return seconds, [Report.of_json(x) for x in world.allgather(report.to_json())]

    plain = mpi.Team()
    product(plain, 2)
    products = world.bcast(statistics.median(
        statistics.mean(r.seconds("product") for r in product(plain, 2)[1]) for _ in range(3)))
    for share in SHARES:
        bandwidth = mpi.bound_2d(n, n, n, world.size) * 4 / (products * share)
        team = mpi.Team(network=mpi.Network(bandwidth, 20e-6))
        taken: dict[int, list[tuple[float, list[Report]]]] = {2: [], 0: []}
        product(team, 2)
        for _ in range(rounds):
            for ahead in taken:
                taken[ahead].append(product(team, ahead))
        for ahead, runs in taken.items():
            every = [r for _, reports in runs for r in reports]
            found.append({
                "n": n, "ranks": world.size, "grid": str(grid), "layout": str(layout),
                "cyclic": cyclic, "bandwidth": bandwidth, "share": share, "ahead": ahead,
                "seconds": [s for s, _ in runs], "product_s": statistics.median(r.seconds("product") for r in every),
                "wait_s": statistics.median(r.seconds("wait") for r in every),
                "hidden": [statistics.mean(mpi.hidden(reports, x) for x in range(world.size)) for _, reports in runs],
                "of_bound": statistics.mean(r.panels_sent / r.bound for r in every)})
    return found if world.rank == 0 else None


def shown(rows: list[dict[str, Any]]) -> str:
    head = ["layout", "panels / products", "ahead", "bytes of the bound", "product ms", "wait ms", "whole ms", "hidden"]
    lines = [["cyclic" if r["cyclic"] else "blocks", f"{r['share']:g}", str(r["ahead"]), f"{r['of_bound']:.3f}",
              f"{r['product_s'] * 1e3:.0f}", f"{r['wait_s'] * 1e3:.0f}", f"{statistics.median(r['seconds']) * 1e3:.0f}",
              f"{statistics.median(r['hidden']):.2f}"] for r in rows]
    return text.table([head, *lines], right=range(1, 8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--n", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = results.options(parser, "out")
    if "PMI_RANK" not in os.environ and "OMPI_COMM_WORLD_RANK" not in os.environ:
        mpiexec = Path(sys.executable).with_name("mpiexec")
        sys.exit(subprocess.run([mpiexec, "-n", str(options.ranks), sys.executable, *sys.argv]).returncode)
    every = [ranks(options.n, options.rounds, cyclic) for cyclic in (True, False)]
    rows = [row for found in every if found is not None for row in found]
    if rows:
        print(shown(rows))
        if options.out:
            results.write({"created": machine.now(), "machine": machine.describe(), "rows": rows}, options.out)


if __name__ == "__main__":
    main()
