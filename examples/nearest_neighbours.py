"""The k nearest neighbours without the matrix of distances. `python examples/nearest_neighbours.py`

k = 1 is a reduction of rows in the epilogue of the distances. For k > 1 columns are taken a block at a time: the
nearest of a block and the nearest so far are merged, so that a block of distances is all that is ever kept.
"""
from __future__ import annotations

import numpy as np

import tilewright as tw


def squares(x, y):
    return (x - y)**2


def nearest(points: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each point the index of the nearest of the others, and the squared distance."""
    return tw.contract(squares, points, others.T, epilogue=lambda acc: (tw.row_argmin(acc), tw.row_min(acc)))


def k_nearest(points: np.ndarray, others: np.ndarray, k: int, block: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Indices and squared distances of the k nearest, the nearest first."""
    index = np.zeros((len(points), 0), np.int64)
    distance = np.zeros((len(points), 0), np.float32)
    for start in range(0, len(others), block):
        of_block = tw.contract(squares, points, others[start:start + block].T)
        distance = np.concatenate((distance, of_block), axis=1)
        index = np.concatenate((index, np.broadcast_to(start + np.arange(of_block.shape[1]), of_block.shape)), axis=1)
        best = np.argpartition(distance, min(k, distance.shape[1]) - 1, axis=1)[:, :k]
        index, distance = (np.take_along_axis(x, best, axis=1) for x in (index, distance))
    order = np.argsort(distance, axis=1)
    return np.take_along_axis(index, order, axis=1), np.take_along_axis(distance, order, axis=1)


def main(n: int = 5000, points: int = 300, dimensions: int = 24) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((rows, dimensions), np.float32) for rows in (points, n))
    which, distance = nearest(x, y)
    index, distances = k_nearest(x, y, 5)
    assert (index[:, 0] == which).all()
    assert (distances[:, 0] == distance).all()
    exact = ((x[:20, None].astype(np.float64) - y)**2).sum(-1)
    assert (np.argsort(exact, axis=1)[:, :5] == index[:20]).all()
    print(f"{points} points, their 5 nearest of {n} in {dimensions} dimensions: as a sort of all distances")


if __name__ == "__main__":
    main()
