"""Two processes with gloo: products across ranks and their gradients, sharded layers, FSDP2, experts, errors."""

from __future__ import annotations

import multiprocessing
import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from tests.torch.distributed import ranks  # noqa: E402


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    """Two processes that are forked from one which has imported everything, and do what they are told."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.torch.distributed.ranks"])
    path = tmp_path_factory.mktemp("group") / "store"
    os.environ["OMP_NUM_THREADS"] = "1"
    pipes, workers = [], []
    for rank in range(2):
        here, there = context.Pipe()
        workers.append(context.Process(target=ranks.serve, args=(rank, 2, str(path), there), daemon=True))
        workers[-1].start()
        pipes.append(here)
    yield pipes
    for pipe in pipes:
        pipe.send(None)
    for worker in workers:
        worker.join(10)
        worker.kill()


@pytest.mark.parametrize("name", ranks.CHECKS)
def test_on_two_ranks(group, name):
    for pipe in group:
        pipe.send(name)
    said = []
    for rank, pipe in enumerate(group):
        assert pipe.poll(60), f"rank {rank} says nothing"
        said.append(pipe.recv())
    assert said == [None, None], "\n".join(str(x) for x in said)
