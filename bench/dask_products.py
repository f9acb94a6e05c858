"""Products of Dask arrays on a cluster of processes: tilewright.dask beside da.matmul, times and peak memory.

    python bench/dask_products.py [--size 20000] [--chunk 2000] [--format f4 | i1] [--source random storage persisted]
                                  [--workers 2] [--rounds 3] [--folder /tmp] [--theirs N] [--out FILE]

Each run has a new cluster, and begins once its workers have multiplied small arrays; the two libraries take turns.
`storage`: blocks are read from .npy files, of arrays that are not in memory; `random`: blocks are drawn when they are
needed; `persisted`: they are in the workers' memory before, and count in the peaks. The result stays in the workers'
memory (.persist()). Peaks are sums of the resident memory of all workers, sampled every 20 ms; `processes` is what they
have before the product. Some rows of every result are compared with float64, or with exact integers.

f4: 20000 takes 3.2 GB of files, and about 6 GB of memory with da.matmul. i1 is int8 into int32: da.matmul multiplies
int32 blocks then, since it has no product of int8 into int32. NumPy's loops take hours for 8000, so --theirs measures
da.matmul at another size; its rate there counts.
"""
from __future__ import annotations

import sys
import threading
import time
from argparse import ArgumentParser
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import dask
import dask.array as da
import numpy as np
import psutil
from distributed import Client, LocalCluster, wait

import tilewright.dask as twd
from tilewright.lab.bench import results

QUIET = {"distributed.logging": {"distributed": "error"}, "distributed.worker.memory.target": False,
         "distributed.worker.memory.spill": False, "distributed.worker.memory.pause": False,
         "distributed.worker.memory.terminate": False}


class File:
    """An .npy file that is read by index: it travels as its path."""

    def __init__(self, path: str) -> None:
        self.path, x = path, np.load(path, mmap_mode="r")
        self.shape, self.dtype, self.ndim = x.shape, x.dtype, x.ndim

    def __getitem__(self, index: Any) -> Any:
        return np.array(np.load(self.path, mmap_mode="r")[index])


class Peak:
    """The most memory that processes have together while it is entered, and what they had before."""

    def __init__(self, pids: list[int]) -> None:
        self.processes, self.going, self.bytes = [psutil.Process(x) for x in pids], True, 0
        self.before, self.seconds = self._now(), -self._cpu()
        self.thread = threading.Thread(target=self._watch)

    def _now(self) -> int:
        return sum(x.memory_info().rss for x in self.processes)

    def _cpu(self) -> float:
        return sum(x.cpu_times().user + x.cpu_times().system for x in self.processes)

    def _watch(self) -> None:
        while self.going:
            self.bytes = max(self.bytes, self._now())
            time.sleep(0.02)

    def __enter__(self) -> Peak:
        self.thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.seconds += self._cpu()
        self.going = False
        self.thread.join()


def written(folder: str, name: str, n: int, dtype: str) -> str:
    """A file with an n x n array, made once, some rows at a time."""
    path = Path(folder) / f"dask_products_{name}_{dtype}_{n}.npy"
    if not path.exists():
        x = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(n, n))
        rng = np.random.default_rng(len(name) + ord(name))
        for i in range(0, n, 500):
            part = x[i:i + 500]
            part[:] = rng.integers(-128, 128, part.shape, np.int8) if dtype == "i1" else rng.standard_normal(
                part.shape, np.float32)
        x.flush()
    return str(path)


def operands(source: str, n: int, chunk: int, dtype: str, folder: str) -> list[Any]:
    if source == "random":
        rngs = [da.random.default_rng(seed) for seed in (1, 2)]
        return [rng.integers(-128, 128, (n, n), dtype=np.int8, chunks=chunk) if dtype == "i1" else
                rng.standard_normal((n, n), dtype=np.float32, chunks=chunk) for rng in rngs]
    found = [da.from_array(File(written(folder, name, n, dtype)), chunks=chunk, name=f"{name}-{n}-{chunk}-{dtype}")
             for name in "ab"]
    if source == "persisted":
        found = list(dask.persist(*found))
        wait(found)
    return found


def product(side: str, a: Any, b: Any) -> Any:
    if side == "tilewright":
        return twd.matmul(a, b, out_dtype="i32" if a.dtype == np.int8 else None)
    return da.matmul(a.astype(np.int32), b.astype(np.int32)) if a.dtype == np.int8 else da.matmul(a, b)


def one(side: str, source: str, n: int, args: Any) -> dict[str, Any]:
    with dask.config.set(QUIET), LocalCluster(n_workers=args.workers, threads_per_worker=1, processes=True,
                                              dashboard_address=None, memory_limit=0) as cluster, Client(cluster):
        small = operands("random", 2 * args.chunk, args.chunk, args.format, args.folder)
        if args.format == "f4" or side == "tilewright":
            product(side, *small).persist().sum().compute()       # compiled, imported
        a, b = operands(source, n, args.chunk, args.format, args.folder)
        with Peak([x.pid for x in cluster.workers.values()]) as peak:
            start = time.perf_counter()
            found = product(side, a, b).persist()
            wait(found)
            seconds = time.perf_counter() - start
        rows = np.linspace(0, n - 1, 3).astype(int)
        wide = "i8" if args.format == "i1" else "f8"
        wanted = a[rows].compute().astype(wide) @ b.compute().astype(wide) if n <= 6000 else None
        if wanted is not None:
            error = abs(found[rows].compute() - wanted).max() / abs(wanted).max()
            assert error < 1e-5 * (args.format == "f4") + 1e-30, f"{side} is wrong: {error}"
    return {"side": side, "source": source, "size": n, "seconds": seconds, "rate": 2 * n**3 / seconds / 1e9,
            "cpu_seconds": peak.seconds, "peak_mb": peak.bytes / 1e6, "processes_mb": peak.before / 1e6}


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=20000)
    parser.add_argument("--chunk", type=int, default=2000)
    parser.add_argument("--format", choices=("f4", "i1"), default="f4")
    parser.add_argument("--source", nargs="+", choices=("storage", "random", "persisted"),
                        default=["random", "storage"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default="/tmp")
    parser.add_argument("--theirs", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = results.options(parser, "out")
    runs = []
    for source in args.source:
        for _ in range(args.rounds):
            for side, n in (("da.matmul", args.theirs or args.size), ("tilewright", args.size)):
                run = one(side, source, n, args)
                runs.append(run)
                print(f"{source:10} {side:10} {n:6}: {run['seconds']:8.2f} s, of CPU {run['cpu_seconds']:8.2f} s, "
                      f"{run['rate']:8.1f} G/s, peak {run['peak_mb']:6.0f} MB, processes {run['processes_mb']:5.0f} MB",
                      flush=True)
        theirs, ours = ([x for x in runs if x["side"] == side and x["source"] == source]
                        for side in ("da.matmul", "tilewright"))
        rate, peak, cpu = (median(x[key] / x["size"]**power for x in ours)
                           / median(x[key] / x["size"]**power for x in theirs)
                           for key, power in (("rate", 0), ("peak_mb", 0), ("cpu_seconds", 3)))
        print(f"{source}: {rate:.2f} of da.matmul's rate ({1 / cpu:.2f} by CPU time), {peak:.2f} of its peak memory; "
              f"medians of {args.rounds}")
    if args.out is not None:
        results.write({"options": {k: str(v) for k, v in vars(args).items() if k != "out"}, "runs": runs}, args.out)


if __name__ == "__main__":
    main()
