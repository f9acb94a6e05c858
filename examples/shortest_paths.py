"""Shortest paths between all nodes of a graph, by min-plus products. `python examples/shortest_paths.py [nodes]`

A matrix of distances times itself, with addition in place of multiplication and the minimum in place of the sum, is
that of paths of up to twice as many edges: it is squared until nothing changes. Which node a path goes through on its
way is the index at which the minimum was found.
"""
from __future__ import annotations

import sys

import numpy as np

import tilewright as tw


def plus(x, y):
    return x + y


def shortest(distances: np.ndarray) -> np.ndarray:
    """Of a matrix with 0 on its diagonal, and infinity where there is no edge."""
    while True:
        longer = tw.contract(plus, distances, distances, reduce="min")
        if (longer == distances).all():
            return longer
        distances = longer


def main(nodes: int = 200) -> None:
    rng = np.random.default_rng(0)
    edges = np.where(rng.random((nodes, nodes)) < 4 / nodes, rng.integers(1, 100, (nodes, nodes)), np.inf)
    np.fill_diagonal(edges, 0)
    found = shortest(edges.astype(np.float32))
    exact = edges.copy()
    for k in range(nodes):                      # Floyd and Warshall
        exact = np.minimum(exact, exact[:, k:k + 1] + exact[k])
    assert (found == exact).all()
    length, through = tw.contract(plus, found, found, reduce="min_argmin")
    i, j = np.argwhere(np.isfinite(found))[-1]
    assert length[i, j] == found[i, through[i, j]] + found[through[i, j], j]
    print(f"{nodes} nodes: {np.isfinite(found).sum()} paths, the longest {found[np.isfinite(found)].max():.0f}, as by "
          "Floyd and Warshall's algorithm")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
