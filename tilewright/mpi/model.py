"""How long a product takes on many nodes, from the rate of one node's products and a network's figures.

Every step multiplies one panel while the next one travels, so that it takes the longer of the two. What is not hidden:
the first panel's way through the longest ring, the sums of layers, and what ranks say before and after a product.
The rate must be that of products with a panel's steps of k; disturbed nodes and a network that others use are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2
from typing import NamedTuple

from tilewright.mpi.layouts import Grid
from tilewright.mpi.placement import panel_width
from tilewright.mpi.transport import Network
from tilewright.mpi.volume import bound_2d, choose, sent
from tilewright.text import size, table


class Prediction(NamedTuple):
    """Times in seconds. product: multiply-adds alone; transfer: panels, by the bandwidth of a node; exposed: what is
    not hidden behind products; total: all of it."""

    grid: Grid
    panel: int
    product: float
    transfer: float
    exposed: float
    total: float
    bytes_sent: float       # by a node
    bound_2d: float         # bytes that a node must send in two dimensions
    memory: float           # bytes that a node holds

    @property
    def efficiency(self) -> float:
        """The share of the time in which nodes multiply."""
        return self.product / self.total if self.total else 1.0

    @property
    def hidden(self) -> float:
        """The share of the transfers that is hidden behind products."""
        return 1 - min(1.0, self.exposed / self.transfer) if self.transfer else 1.0


def predict(m: int, n: int, k: int, nodes: int, rate: float, network: Network, *, bytes_in: float = 4,
            bytes_sums: float = 4, grid: Grid | None = None, panel: int | None = None,
            memory: float | None = None) -> Prediction:
    """The time of an m x k by k x n product on so many nodes.

    rate        multiply-adds and additions per second of a node (2mnk of a product), in products of panels
    network     of a node: bytes per second in each direction, and the latency of a message
    bytes_in, bytes_sums  of an element of a and b, and of sums
    grid        None: the one that sends the fewest bytes and keeps to `memory`, bytes of a node
    """
    if min(m, n, k) < 1 or nodes < 1 or rate <= 0:
        raise ValueError(f"m, n, k and nodes must be 1 or more and rate above 0, not {m}, {n}, {k}, {nodes} and {rate}")
    size_of = {"bytes_a": bytes_in, "bytes_b": bytes_in, "bytes_sums": bytes_sums}
    width = panel_width(k) if panel is None else panel
    if grid is None:
        every = [choose(m, n, k, nodes, layers=x, **size_of) for x in range(1, nodes + 1) if nodes % x == 0]
        fit = [g for g in every if memory is None or held(g, m, n, k, bytes_in, bytes_sums, width) <= memory]
        if not fit:
            raise ValueError(f"memory must be larger: a {m} x {n} x {k} product does not fit into {nodes} nodes of "
                             f"{size(memory or 0)}")
        grid = min(fit, key=lambda g: (sent(g, m, n, k, **size_of), g.layers))
    rows, cols, layers = grid
    steps = max(1, ceil(k / layers / width))
    a, b = m / rows * k / layers / steps * bytes_in, k / layers / steps * n / cols * bytes_in
    product = 2.0 * m * n * k / grid.size / rate
    link = network.seconds((a * (cols > 1) * (cols - 1) / max(1, cols)) + (b * (rows > 1) * (rows - 1) / max(1, rows)),
                           (cols > 1) + (rows > 1))                     # of a node, for one step on average
    hop = network.seconds(a * (cols > 1) + b * (rows > 1), (cols > 1) + (rows > 1))
    first = max(rows - 1, cols - 1) * hop
    tile = m / rows * n / cols * bytes_sums
    reduced = network.seconds(tile * (layers - 1) / layers, layers - 1) if layers > 1 else 0.0
    words = 2 * ceil(log2(grid.size)) * network.latency if grid.size > 1 else 0.0
    step = max(product / steps, link)
    total = first + steps * step + reduced + words
    return Prediction(grid, width, product, steps * link, total - product, total,
                      sent(grid, m, n, k, **size_of), bound_2d(m, n, k, grid.size) * bytes_in,
                      held(grid, m, n, k, bytes_in, bytes_sums, width))


def held(grid: Grid, m: int, n: int, k: int, bytes_in: float, bytes_sums: float, panel: int, ahead: int = 2) -> float:
    """Bytes of a node: its parts of A, B and C, the sums of its tile if there are layers, and panels under way."""
    rows, cols, layers = grid
    parts = (m * k + k * n) / grid.size * bytes_in + m / rows * n / cols * bytes_sums * (1 + 1 / layers) * (layers > 1)
    own = m * n / grid.size * bytes_sums * (layers == 1)
    return parts + own + (ahead + 1) * panel * (m / rows + n / cols) * bytes_in


def predicted(sizes: Sequence[tuple[int, int]], rate: float, network: Network, *, bytes_in: float = 4,
              bytes_sums: float = 4, panel: int | None = None, memory: float | None = None) -> str:
    """A table of predictions for square products: (nodes, n) for each row."""
    rows = [["nodes", "n", "grid", "product s", "transfer s", "hidden", "total s", "efficiency", "of one layer",
             "of the 2D bound", "memory"]]
    for nodes, n in sizes:
        p = predict(n, n, n, nodes, rate, network, bytes_in=bytes_in, bytes_sums=bytes_sums, panel=panel, memory=memory)
        flat = predict(n, n, n, nodes, rate, network, bytes_in=bytes_in, bytes_sums=bytes_sums,
                       panel=panel, grid=choose(n, n, n, nodes, layers=1))
        rows.append([str(nodes), str(n), str(p.grid), f"{p.product:.3g}", f"{p.transfer:.3g}", f"{p.hidden:.2f}",
                     f"{p.total:.3g}", f"{p.efficiency:.2f}", f"{flat.efficiency:.2f}",
                     f"{p.bytes_sent / p.bound_2d:.2f}" if p.bound_2d else "", size(p.memory)])
    return table(rows, right=range(11))
