"""Four processes of mpiexec on this machine: the transport by MPI, and a process that ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MPIEXEC = Path(sys.executable).with_name("mpiexec")
pytestmark = pytest.mark.skipif(find_spec("mpi4py") is None or not MPIEXEC.exists(),
                                reason="mpi4py or an MPI library is not installed: the extra [mpi] has both")


def mpiexec(*command: str, ranks: int = 4) -> str:
    """What the ranks print, in which mpiexec may join lines of several ranks. A rank that ends does not end the others:
    they have to find out."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TILEWRIGHT_NUM_THREADS": "1"}
    options = ["-disable-auto-cleanup"] if b"disable-auto-cleanup" in subprocess.run(
        [MPIEXEC, "--help"], capture_output=True).stdout else ["--oversubscribe", "--allow-run-as-root"]
    found = subprocess.run([MPIEXEC, *options, "-n", str(ranks), sys.executable, *command], env=environment,
                           capture_output=True, text=True, timeout=120, cwd=ROOT)
    return found.stdout + found.stderr


def test_four_ranks_multiply_refuse_and_miss_one_that_has_ended():
    printed = mpiexec("tests/mpi/ranks.py")
    refused = "on rank 1 of 4: panel must be a whole number, 1 or more, not 0"
    assert sorted(re.findall(rf"rank (\d): {refused}", printed)) == ["0", "1", "2", "3"], printed
    assert sorted(re.findall(r"rank (\d): rank 2 of 4 is missing: its process \d+ on .*? has ended; .*? True",
                             printed)) == ["0", "1", "3"], printed
