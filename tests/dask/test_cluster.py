"""A cluster of two processes: a killed worker, spilled blocks, futures and delayed objects, the same bits as in one."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

import tilewright as tw

da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")
import dask  # noqa: E402

import tilewright.dask as twd  # noqa: E402
from tilewright.dask import blocks, graphs  # noqa: E402

SPILLING = {"distributed.worker.memory.target": 0.00005, "distributed.worker.memory.spill": False,
            "distributed.worker.memory.pause": False, "distributed.worker.memory.terminate": False,
            "distributed.admin.log-format": "%(message)s", "distributed.logging": {"distributed": "critical"}}


@pytest.fixture(scope="module")
def client():
    """Its workers keep 50 kB of blocks in memory; all others are in files. Blocks have the same sizes: one kernel."""
    with dask.config.set(SPILLING), distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit="1GB") as cluster, \
            distributed.Client(cluster) as client:
        yield client


def slowly(x):
    time.sleep(0.02)
    return x.astype(np.float32)


def numbers(seed, *shape):
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(np.float32)


@pytest.mark.parametrize("schedule", ["panels", "blocks"])
def test_a_killed_worker_adds_nothing_twice(client, schedule, request, monkeypatch):
    """Its sums are lost in the middle; whole numbers tell if a product was added twice or is missing. Some chains have
    two blocks of the result."""
    monkeypatch.setattr(graphs, "CHAINS", 3)
    if schedule == "blocks" and not request.config.getoption("--all-ways"):
        pytest.skip("--all-ways kills more workers")
    x, y = (da.random.default_rng(seed).integers(-9, 10, shape, chunks=chunks).map_blocks(slowly, dtype="f4")
            for seed, shape, chunks in ((1, (180, 200), (60, 50)), (2, (200, 180), (50, 60))))
    product = twd.matmul(x, y, schedule=schedule)
    assert [key for key in product.dask if "-sums" in str(key[0]) and key[-1] == 3]
    product = product.persist()
    tasks = client.cluster.scheduler.tasks
    deadline = time.monotonic() + 60
    while not (held := [state for key, state in list(tasks.items()) if "-sums" in str(key) and state.who_has]):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    victim = next(iter(held[len(held) // 2].who_has)).address
    os.kill(next(w.pid for w in client.cluster.workers.values() if w.worker_address == victim), signal.SIGKILL)
    a, b = dask.compute(x, y, scheduler="sync")
    np.testing.assert_array_equal(product.compute(), a @ b)
    assert victim not in client.cluster.scheduler.workers


def test_spilled_blocks(client):
    """Blocks and unfinished sums go to files and come back."""
    a, b = numbers(3, 180, 200), numbers(4, 200, 180)
    x, y = client.persist([da.from_array(a, chunks=(60, 50)), da.from_array(b, chunks=(50, 60))])
    product = twd.matmul(x, y).persist()
    np.testing.assert_array_equal(product.compute(), a @ b)
    assert sum(client.run(lambda dask_worker: len(dask_worker.data.disk)).values()) > 10


def test_bits_do_not_depend_on_workers(client):
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((120, 150), np.float32), rng.standard_normal((150, 60), np.float32)
    product = twd.matmul(da.from_array(a, chunks=(60, 50)), da.from_array(b, chunks=(50, 60)))
    assert product.compute().tobytes() == product.compute(scheduler="threads").tobytes() == product.compute(
        scheduler="sync").tobytes()


def test_futures_delayed_objects_and_weights(client, request):
    a, b = numbers(6, 60, 50), numbers(7, 50, 60)
    future, later = client.scatter(a), dask.delayed(numbers)(7, 50, 60)
    x = da.from_delayed(dask.delayed(future), a.shape, a.dtype)
    y = da.from_delayed(later, b.shape, b.dtype)
    np.testing.assert_array_equal(twd.matmul(x, y).compute(), a @ b)
    futures = [client.submit(numbers, 6, 60, 50), client.submit(numbers, 7, 50, 60)]
    x, y = (da.from_delayed(dask.delayed(f), s, "f4") for f, s in zip(futures, (a.shape, b.shape)))
    np.testing.assert_array_equal(twd.matmul(x, y, alpha=2).compute(), 2 * (a @ b))
    if request.config.getoption("--all-ways"):
        np.testing.assert_array_equal(twd.matmul(x, tw.pack(b)).compute(), a @ b)


def test_threads_follow_the_worker(client):
    def threads():
        with blocks.share_of_threads():
            return tw.get_num_threads()
    assert client.submit(threads, pure=False).result() == 1
