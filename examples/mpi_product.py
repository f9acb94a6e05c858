"""A product of matrices that are divided over ranks, with the bytes that they send.

    mpiexec -n 4 python examples/mpi_product.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from tilewright import mpi


def element(i: np.ndarray, j: np.ndarray) -> np.ndarray:
    """Small whole numbers, whose sums of products are exact in f32."""
    return ((3 * i + 5 * j) % 7 - 3).astype(np.float32)


def main(team: mpi.Team, n: int = 512) -> None:
    grid = mpi.choose(n, n, n, team.size, layers=1)
    layout = mpi.Layout.cyclic((n, n), (64, 64), grid[:2])
    rows, cols = layout.local_indices(team.rank)            # each rank makes its own part
    a = mpi.Matrix(team, layout, element(rows[:, None], cols))
    b = mpi.Matrix(team, layout, element(cols, rows[:, None]))
    report = mpi.Report()
    c = mpi.matmul(a, b, report=report)
    whole = c.gather()
    sent = f"{report.panels_sent} bytes of panels sent, {report.panels_sent / report.bound:.2f} of the bound"
    print(f"rank {team.rank}: {sent}", flush=True)
    if whole is not None:
        every = np.arange(n)
        right = element(every[:, None], every) @ element(every, every[:, None])
        print("right:", np.array_equal(whole, right), flush=True)


if __name__ == "__main__":
    main(mpi.Team())
