"""What four ranks of mpiexec do in test_mpiexec.py: products on several grids, errors, and the end of rank 2."""

from __future__ import annotations

import os
import time

import numpy as np

from tilewright import mpi


def main() -> None:
    team = mpi.Team(timeout=30)
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (128, 256)).astype(np.float32), rng.integers(-4, 5, (256, 128)).astype(np.float32)
    for grid in ((2, 2), (2, 1, 2)):        # of tiles as large as each other, so that one kernel is compiled
        x = mpi.Matrix.scatter(team, a, mpi.Layout.cyclic(a.shape, (32, 16), (2, 2)))
        y = mpi.Matrix.scatter(team, b, mpi.Layout.blocks(b.shape, (4, 1)), root=3)
        np.testing.assert_array_equal(mpi.matmul(x, y, grid=grid, panel=64).gather(None), a @ b)
    try:
        mpi.matmul(x, y, panel=0 if team.rank == 1 else 64)
    except ValueError as error:
        print(f"rank {team.rank}: {error}", flush=True)
    if team.rank == 2:
        os._exit(0)
    begin = time.monotonic()
    try:
        mpi.matmul(x, y)
    except mpi.RankError as error:
        print(f"rank {team.rank}: {error} {time.monotonic() - begin < 20}", flush=True)


if __name__ == "__main__":
    main()
