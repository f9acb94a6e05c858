"""Forks while other threads make things for the first time: a child has what is whole, and no lock of a thread gone."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path

import pytest

from tests.helpers.processes import run
from tilewright import forks

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

HANGS_S = 60  # that a child may take before it counts as hanging

# Another thread's first products, of several formats, while this one forks again and again; every child multiplies.
STORM = """
    import faulthandler, os, random, signal, sys, threading, time, warnings
    import numpy as np, tilewright as tw            # the import statements themselves are the program's to guard
    warnings.simplefilter("ignore")
    random.seed(int(sys.argv[1]))
    wrong = []

    def products(dtypes, n):
        for dtype in dtypes:
            for a in (np.ones((n, n), dtype), np.ones((n, n), dtype).T):
                if not (tw.matmul(a, a, threads=2) == n).all():
                    wrong.append(dtype)

    first = threading.Thread(target=products, args=(("f4", "i4"), 40))
    children = []
    first.start()
    gap = float(sys.argv[2])
    while first.is_alive():
        child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(int(sys.argv[3]), exit=True)
            products(("f4",), 40)
            os._exit(len(wrong))
        children.append(child)
        time.sleep(gap * random.uniform(0.2, 1.8))
        if len(children) > 3:
            gap *= 1.3
    first.join()
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(len(ends), sum(end != 0 for end in ends) + len(wrong))
    """


def test_forks_during_first_products(tmp_path):
    """While kernels are compiled, and while they are loaded from the cache that the first run has left."""
    for seed, gap in ((1, 0.2), (2, 0.02), (3, 0.005)):
        done = run(STORM, seed, gap, HANGS_S, timeout=300, TILEWRIGHT_CACHE_DIR=str(tmp_path))
        assert done.returncode == 0, done.stderr
        forked, failed = map(int, done.stdout.split())
        assert forked  # how many depends on how busy the machine is
        assert failed == 0, (done.stdout, done.stderr)


def test_a_fork_waits_for_what_is_being_made():
    held, let = threading.Event(), threading.Event()

    def make():
        with forks.building:
            held.set()
            let.wait(HANGS_S)
            made.append("whole")

    made: list[str] = []
    maker = threading.Thread(target=make)
    maker.start()
    held.wait(HANGS_S)
    threading.Timer(0.05, let.set).start()
    assert child(lambda: made == ["whole"] and forks.building.acquire(0))
    maker.join()
    assert forks.building.acquire(0)  # the parent's is free, too
    forks.building.__exit__()


def test_a_lock_is_free_in_the_child():
    lock, held, let = forks.Lock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            let.wait(HANGS_S)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(HANGS_S)
    try:
        assert not lock.acquire(0)
        assert child(lambda: lock.acquire(0))
    finally:
        let.set()
        holder.join()
        forks._locks.remove(lock)


def test_who_forks_inside_a_lock_leaves_it_as_always():
    lock = forks.Lock()

    def leaves():
        lock.__exit__()
        return lock.acquire(0)

    with forks.building, lock:
        assert child(leaves)
    forks._locks.remove(lock)


def test_every_lock_of_the_package_is_one_that_forks_know():
    """threading.Lock in a module is a lock that a child may find taken; so is functools.cached_property before 3.12.
    A child of a rank of MPI cannot use its team, whose locks are of no matter then."""
    package = Path(forks.__file__).parent
    for path in package.rglob("*.py"):
        if path.name != "forks.py" and path.parent.name != "mpi":
            text = path.read_text()
            assert not re.search(r"\bR?Lock\(\)(?<!forks\.Lock\(\))", text), path
            assert not re.search(r"^from functools import .*cached_property", text, re.M), path


def test_cached_property():
    class Counted:
        asked = 0

        @forks.cached_property
        def value(self):
            """What it is."""
            self.asked += 1
            return self.asked

    one = Counted()
    assert (one.value, one.value, Counted().value) == (1, 1, 1)
    assert Counted.value.__doc__ == "What it is."


def child(right):
    """Whether this is so in a forked child."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(HANGS_S)
        os._exit(0 if right() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
