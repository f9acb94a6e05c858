"""Predictions: limits that can be computed by hand, bytes that are counted, and the page's figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tilewright import mpi
from tilewright.mpi import Grid, Network
from tilewright.mpi.volume import sent

ROOT = Path(__file__).resolve().parents[2]
FAST = Network(1e30, 0.0)


def test_without_a_price_of_messages_only_products_are_left():
    for nodes in (1, 16, 60, 4096):
        p = mpi.predict(10000, 8000, 9000, nodes, 1e12, FAST)
        assert p.total == pytest.approx(p.product) == pytest.approx(2 * 10000 * 8000 * 9000 / nodes / 1e12)
        assert p.efficiency == pytest.approx(1)
        assert p.grid.size == nodes


def test_a_slow_network_is_what_a_product_takes():
    """Panels and the first one's way round the ring, by hand: 2 x 2 nodes, 16 panels, half of each is received."""
    n, bandwidth = 4096, 1e6
    p = mpi.predict(n, n, n, 4, 1e30, Network(bandwidth, 0.0), grid=Grid(2, 2), panel=256)
    panel = n / 2 * 256 * 4
    assert p.transfer == pytest.approx(16 * (panel / 2 + panel / 2) / bandwidth)
    assert p.total == pytest.approx(p.transfer + 2 * panel / bandwidth)
    assert p.bytes_sent == p.transfer * bandwidth == 4 * sent(Grid(2, 2), n, n, n)
    assert p.bytes_sent == pytest.approx(p.bound_2d)
    assert p.hidden == 0


def test_latency_and_layers():
    p = mpi.predict(1000, 1000, 1000, 8, 1e30, Network(1e30, 1.0), grid=Grid(2, 2, 2), panel=500)
    assert p.total == pytest.approx(2 + 2 + 1 + 6)      # first panel, one step; sums; what ranks say: 2 x 3 rounds
    flat, deep = (mpi.predict(8192, 8192, 8192, 64, 1e13, Network(1e9), grid=g) for g in (Grid(8, 8), Grid(4, 4, 4)))
    assert deep.bytes_sent < flat.bytes_sent
    assert deep.memory > flat.memory


def test_the_grid_keeps_to_the_memory():
    n = 8192
    free = mpi.predict(n, n, n, 64, 1e12, Network(1e10))
    tight = mpi.predict(n, n, n, 64, 1e12, Network(1e10), memory=0.9 * free.memory)
    assert free.grid == (4, 4, 4)
    assert tight.memory <= 0.9 * free.memory
    with pytest.raises(ValueError, match="memory must be larger: a 8192 x 8192 x 8192 product does not fit into 64"):
        mpi.predict(n, n, n, 64, 1e12, Network(1e10), memory=1e6)
    with pytest.raises(ValueError, match="m, n, k and nodes must be 1 or more and rate above 0, not 0, "):
        mpi.predict(0, n, n, 64, 1e12, Network(1e10))


def test_the_rates_on_the_page_are_those_of_committed_results():
    page = (ROOT / "docs/mpi.md").read_text()
    (xeon,) = re.findall(r"^XEON = ([\d.e]+)", page, re.M)
    (h200,) = re.findall(r"^H200 = ([\d.e]+)", page, re.M)
    for rate, file, n in (xeon, "article_xeon16_2026_11_30", 6800), (h200, "h200_f64", 8192):
        results = json.loads((ROOT / f"bench/results/{file}.json").read_text())["results"]
        (found,) = [row["gflops"] for r in results
                    if r["suite"] in ("article", "f64") and r["m"] == r["n"] == r["k"] == n
                    for row in r["rows"] if row["name"] == "tilewright"]
        assert float(rate) == pytest.approx(found * 1e9, rel=5e-3)
