"""The threads of this process: how many a product may use, and the workers that wait for it.

The count is `threads(n)` of the calling thread if it is inside one, else `set_num_threads(n)`, else the first number
in TILEWRIGHT_NUM_THREADS or OMP_NUM_THREADS, else 1 in a worker process of another library's pool, else the CPUs that
affinity and the control group's quota leave.

Workers are native threads that run emitted code only (kernels/cpu/pool.py): they never hold the GIL,
take no signals, and are started when first needed.

After a fork the child forgets the parent's workers, which it does not have, and starts its own when it needs some.
At exit they end before the interpreter unloads the code that they run.
"""
from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from tilewright import forks
from tilewright.targets import machine
from tilewright.targets.machine import MOST_THREADS as MOST, thread_count

VARIABLES = ("TILEWRIGHT_NUM_THREADS", "OMP_NUM_THREADS")

# The block as kernels/cpu/pool.py lays it out; a test compares. Importing that module would cost the emission layer.
SIZE, WORKERS, LIMIT, SPIN_NS, THREADS, SLOTS, SLOT, POOL, TID = 131584, 384, 392, 400, 408, 512, 128, 24, 32

SPIN = 500_000              # ns that an idle worker spins before it sleeps: covers the gaps of a loop of products
SPIN_CROWDED = 20_000       # the same when there are more threads than CPUs, and spinning takes one from another


class _Local(threading.local):
    limit: int | None = None    # what `threads(n)` says in this thread


_lock = forks.Lock()
_local = _Local()
_chosen: int | None = None
_default: int | None = None
_local_limits = 0           # how many threads are inside threads()
_pool: Pool | None = None
changed: list[Callable[[], None]] = []      # to be called whenever the number of threads may be another


def get_num_threads() -> int:
    """How many threads a product may use when this thread calls it."""
    global _default
    if (limit := _local.limit) is not None:
        return limit
    if _chosen is not None:
        return _chosen
    if _default is None:
        with _lock:
            _default = min(default_threads(), MOST)
            _publish()
    return _default


def common_threads() -> int:
    """The number of threads, equal for every thread that calls; 0 if it depends on the thread."""
    return 0 if _local_limits else get_num_threads()


def default_threads() -> int:
    """The number of threads that the user asked for, or that this process may use."""
    for name in VARIABLES:
        text = os.environ.get(name, "").strip()
        if text:
            number = text.split(",")[0].strip()         # OpenMP's list is one number per nesting level
            if number.isdecimal() and int(number) > 0:
                return int(number)
            warnings.warn(f"{name}={text!r} is ignored: it must be a number of threads, 1 or more.", RuntimeWarning,
                          stacklevel=3)
    return 1 if in_worker_process() else machine.cpus().count


def in_worker_process() -> bool:
    """Whether multiprocessing started this process, as concurrent.futures, joblib and Dask let it do: there is one
    such process per core already. Asked without importing multiprocessing, which every such process has done."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def set_num_threads(n: int | None) -> None:
    """Use n threads from now on, in the whole process; None restores the default, which is looked up again.

    More threads than CPUs are allowed, but slower. Threads inside `threads()` keep their own number.
    """
    global _chosen, _default
    n = None if n is None else thread_count(n)
    with _lock:
        _chosen, _default = n, None
        _publish()


@contextmanager
def threads(n: int) -> Iterator[None]:
    """`with tilewright.threads(n):` products that this thread calls use n threads. Other threads are not affected."""
    before = _local.limit
    set_local_limit(n)
    try:
        yield
    finally:
        set_local_limit(before)


def set_local_limit(n: int | None) -> None:
    """The number for the calling thread alone, until it is set back to None."""
    global _local_limits
    n = None if n is None else thread_count(n)
    with _lock:
        _local_limits += (n is not None) - (_local.limit is not None)
        _local.limit = n
        _publish()


def pool() -> Pool:
    """The one pool of this process."""
    global _pool
    if _pool is None:
        with forks.building, _lock:
            if _pool is None:
                _pool = Pool()
                _publish()
    return _pool


class Pool:
    """`address` is the block that emitted code takes. Calls release the GIL."""

    def __init__(self) -> None:
        from tilewright.compiler.artefact import load
        from tilewright.targets import detect
        code = load("tilewright.kernels.cpu.pool:emit_pool", detect())
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS           # not shared with a forked child
        self._block: Any = (ctypes.c_char * SIZE).from_buffer(mmap.mmap(-1, SIZE, flags=flags))
        self.address = ctypes.addressof(self._block)
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self.team_address, self.parts_address = code.address("pool_run_team"), code.address("pool_run_parts")
        self._team = code.function("pool_run_team", number, pointer, pointer, pointer, number)
        self._parts = code.function("pool_run_parts", number, pointer, pointer, pointer, number, number, number)
        self._stop = code.function("pool_stop", number, pointer)
        self._worker = pointer(code.address("pool_worker"))
        self._create, self._join = (getattr(ctypes.CDLL(None), name) for name in ("pthread_create", "pthread_join"))
        self._join.argtypes = [ctypes.c_ulong, pointer]
        self._threads: list[ctypes.c_ulong] = []
        self._refused = False
        self._number(SPIN_NS).value = SPIN
        atexit.register(self.stop)

    def _number(self, offset: int) -> ctypes.c_int64:
        return ctypes.c_int64.from_buffer(self._block, offset)

    @property
    def workers(self) -> int:
        return len(self._threads)

    def reserve(self, n: int | None = None) -> int:
        """Make sure that a team of n (by default get_num_threads()) can be had; how large it can be: n, or less if the
        system gives no more threads. Call it before run_team."""
        n = get_num_threads() if n is None else n
        if n > self.workers + 1 and not self._refused:
            with _lock:
                self._grow(min(n, MOST) - 1)
                _publish()
        return min(n, self.workers + 1)

    def run_team(self, fn: int, job: int, team: int) -> bool:
        """fn(job, tid) for tid 0 … team-1 at once; False if nothing was run because the pool is in use or too small."""
        return bool(self._team(self.address, fn, job, team))

    def run_parts(self, fn: int, job: int, parts: int, team: int, wake: int) -> bool:
        """fn(job, part) for part 0 … parts-1, on up to `team` threads, of which at most `wake` are woken; False if this
        thread did them all."""
        return bool(self._parts(self.address, fn, job, parts, team, wake))

    def _grow(self, workers: int) -> None:
        # a thread inherits the mask of signals; Python wants them all delivered to its own threads
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            while self.workers < workers:
                tid, slot = self.workers + 1, self.address + SLOTS + (self.workers + 1) * SLOT
                self._number(slot - self.address + POOL).value = self.address
                self._number(slot - self.address + TID).value = tid
                thread = ctypes.c_ulong()
                error = self._create(ctypes.byref(thread), None, self._worker, ctypes.c_void_p(slot))
                if error:
                    self._refused = True
                    warnings.warn(f"tilewright could start only {self.workers} of {workers} worker threads "
                                  f"({os.strerror(error)}) and goes on with them.", RuntimeWarning, stacklevel=4)
                    break
                self._threads.append(thread)
                self._number(WORKERS).value = self.workers
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if self.workers + 1 > len(os.sched_getaffinity(0)):
            self._number(SPIN_NS).value = SPIN_CROWDED

    def stop(self) -> None:
        """End the workers, unless a product is running, for which a daemon thread is to blame: then they stay.
        The pool is locked afterwards, and products run on one thread."""
        if self._threads and self._stop(self.address):
            for thread in self._threads:
                self._join(thread, None)
            self._threads.clear()

    def after_fork_in_child(self) -> None:
        used = SLOTS + (self.workers + 1) * SLOT
        ctypes.memset(self.address, 0, used)            # also the lock, which another thread of the parent may hold
        self._threads, self._refused = [], False
        self._number(SPIN_NS).value = SPIN


def _publish() -> None:
    """LIMIT: the threads that emitted code may use without asking Python, or 0 if the answer depends on the caller or
    the workers are not there yet. THREADS: the same, with workers or without."""
    if _pool is not None:
        n, there = common_threads(), _pool.workers + 1
        _pool._number(THREADS).value = n
        _pool._number(LIMIT).value = n if n <= there else there if _pool._refused else 0
    if "threadpoolctl" in sys.modules:
        _register()
    for tell in changed:
        tell()


@cache
def _register() -> None:
    """Make tilewright known to threadpoolctl: `threadpool_info()` lists it, `threadpool_limits(n)` limits the calling
    thread, under user_api "blas".

    threadpoolctl finds thread pools by the files of loaded shared libraries. tilewright has none, since its code is
    written at run time. It is found by NumPy's core instead, which is loaded wherever tilewright multiplies.
    """
    import numpy as np  # noqa: F401    its core is the library that is found
    import threadpoolctl

    class Controller(threadpoolctl.LibController):
        user_api = "blas"
        internal_api = "tilewright"
        filename_prefixes = ("_multiarray_umath",)

        def get_num_threads(self) -> int:
            return get_num_threads()

        def set_num_threads(self, num_threads: int) -> None:
            # threadpoolctl undoes a limit by setting what was there before, which need not stay a limit of this thread
            set_local_limit(None)
            if num_threads != get_num_threads():
                set_local_limit(num_threads)

        def get_version(self) -> str:
            from tilewright import __version__
            return __version__

    threadpoolctl.register(Controller)


def _after_fork_in_child() -> None:
    global _default, _local_limits
    _default = None
    _local_limits = int(_local.limit is not None)
    if _pool is not None:
        _pool.after_fork_in_child()
        if _chosen is not None:         # the default is not looked up before it is needed: it depends on what the
            _publish()                  # child is told about itself, which comes later


os.register_at_fork(after_in_child=_after_fork_in_child)
_publish()
