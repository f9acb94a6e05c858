"""Many small products of one size: tilewright.matmul of stacks beside np.matmul and MKL's batch interface, on a GPU
beside torch.bmm, which is cuBLAS's batch interface.

    python bench/small_batches.py [--formats f4 f8 c8 c16] [--sizes 4 8 12 16 24 32] [--threads 1] [--rounds 15]
                                  [--mkl FOLDER] [--gpu [--seconds S] [--batches N ...] [--out FILE]]

One interleaved run for each size, batches of about 2 million multiply-adds; medians of ratios in one round, above 1
tilewright wins. FOLDER has libmkl_rt.so (pip install mkl: the environment's lib); without it MKL is left out.

--gpu: CUDA graphs in turns, over operands that rotate through more than the L2 cache; batches of N products, by default
as many as have 400 MB; bytes are those of A, B and C once. Every answer is compared with a product in f64 first.
"""
from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tilewright as tw
from tilewright.lab.bench import results

LETTERS = {"f4": "s", "f8": "d", "c8": "c", "c16": "z"}
ROW_MAJOR, NO_TRANS = 101, 111
WORK = 2_000_000        # multiply-adds of a batch
MANY = 400_000_000      # bytes of one, on a GPU
TORCH = {"f4": ("float32", "float64"), "f8": ("float64", "float64"), "c8": ("complex64", "complex128"),
         "c16": ("complex128", "complex128")}           # and in what answers are compared


def mkl_at(folder: Path, threads: int) -> ctypes.CDLL:
    os.environ["MKL_THREADING_LAYER"] = "SEQUENTIAL" if threads == 1 else "INTEL"
    if threads > 1:
        ctypes.CDLL(str(folder / "libiomp5.so"), mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(next(folder.glob("libmkl_rt.so*"))))
    library.MKL_Set_Num_Threads(threads)
    return library


def mkl_call(library: ctypes.CDLL, a: Any, b: Any, c: Any) -> Callable[[], Any]:
    """cblas_?gemm_batch_strided(order, transa, transb, m, n, k, alpha, a, lda, stride, b, ldb, stride, beta, c, ldc,
    stride, batch)."""
    batch, m, k = a.shape
    n = b.shape[2]
    one, zero = np.ones(1, a.dtype), np.zeros(1, a.dtype)
    of_real = {"f4": ctypes.c_float, "f8": ctypes.c_double}.get(a.dtype.str[1:])
    alpha, beta = (of_real(x[0]) if of_real else ctypes.c_void_p(x.ctypes.data) for x in (one, zero))
    numbers, address = ctypes.c_int, ctypes.c_void_p
    args = [*map(numbers, (ROW_MAJOR, NO_TRANS, NO_TRANS, m, n, k)), alpha, address(a.ctypes.data), numbers(k),
            numbers(m*k), address(b.ctypes.data), numbers(n), numbers(k*n), beta, address(c.ctypes.data), numbers(n),
            numbers(m*n), numbers(batch)]
    function = getattr(library, f"cblas_{LETTERS[a.dtype.str[1:]]}gemm_batch_strided")

    def call(kept: Any = (one, zero)) -> None:
        function(*args)
    return call


def on_gpu(dtype: str, n: int, batch: int, seconds: float) -> dict[str, Any]:
    import torch

    from tilewright.lab.bench.gpu_device import TorchDevice
    from tilewright.lab.measure.gpu_rules import GpuRules, GraphTrack, sets
    from tilewright.lab.measure.measure import interleave
    on = TorchDevice()
    kind, wide = TORCH[dtype]
    size = getattr(torch, kind).itemsize
    batch = batch or MANY // (3*n*n*size)
    total = 3*n*n*size*batch
    operands = []
    for _ in range(sets(total, on.on.target.l2)):
        a, b = (torch.randn(batch, n, n, device="cuda", dtype=getattr(torch, kind)) for _ in range(2))
        operands.append((a, b, torch.empty_like(a)))
    sides: dict[str, Any] = {"tilewright": tw.matmul, "torch.bmm": lambda a, b, c: torch.bmm(a, b, out=c)}
    a, b, c = operands[0]
    few = slice(0, 20_000)
    exact = a[few].to(getattr(torch, wide)) @ b[few].to(getattr(torch, wide))
    most = 2 * n * torch.finfo(a.dtype).eps * float((a[few].abs() @ b[few].abs()).max())
    for name, side in sides.items():            # before they are recorded into a graph
        c.zero_()
        side(a, b, c)
        assert float((c[few] - exact).abs().max()) < most, name
    samples = interleave({name: [(side, x) for x in operands] for name, side in sides.items()},
                         GpuRules(max_rounds=15, budget_s=seconds),
                         track=lambda calls: GraphTrack(on, [partial(f, *args) for f, args in calls]))
    found = {name: list(sample.seconds) for name, sample in samples.items()}
    plan = str(tw.plan(tw.Gemm(n, n, n, tw.formats.get(kind).name, batch=batch), on.on.target))
    return {"dtype": dtype, "n": n, "batch": batch, "bytes": total, "plan": plan, "seconds": found}


def gpu(options: argparse.Namespace) -> None:
    target = tw.detect("cuda")
    print(f"{target.model}; ns for a product, TB/s, ratios")
    rows = []
    for dtype in options.formats:
        for n in options.sizes:
            for batch in options.batches:
                rows.append(row := on_gpu(dtype, n, batch, options.seconds))
                ours, theirs = row["seconds"]["tilewright"], row["seconds"]["torch.bmm"]
                seconds = statistics.median(ours)
                ratio = statistics.median(x / y for x, y in zip(theirs, ours))
                each = seconds / row["batch"] * 1e9
                print(f"{dtype:4} {n:3} x {row['batch']:8} {each:8.3f} {row['bytes'] / seconds / 1e12:5.2f} TB/s  "
                      f"{ratio:5.2f} of torch.bmm  {row['plan']}", flush=True)
                if options.out:
                    results.write({"machine": target.model, "rows": rows}, options.out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="*", default=list(LETTERS))
    parser.add_argument("--sizes", type=int, nargs="*", default=[4, 8, 12, 16, 24, 32])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--mkl", type=Path)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each size on a GPU")
    parser.add_argument("--batches", type=int, nargs="*", default=[0])
    parser.add_argument("--out", type=Path)
    options = results.options(parser, "out")
    if options.gpu:
        gpu(options)
        return
    library = mkl_at(options.mkl, options.threads) if options.mkl else None
    tw.set_num_threads(options.threads)
    print(f"{tw.detect().model}, {options.threads} threads; ns for a product, GFLOP/s, ratios")
    rng = np.random.default_rng(0)
    for dtype in options.formats:
        for n in options.sizes:
            four = 4 if dtype[0] == "c" else 1
            batch = min(max(WORK // (n**3 * four), 200), 10_000)
            a, b = (rng.standard_normal((batch, n, n)).astype(dtype) for _ in range(2))
            if dtype[0] == "c":
                a, b = (x + np.array(1j, dtype)*rng.standard_normal(x.shape).astype(dtype) for x in (a, b))
            outs = [np.empty_like(a) for _ in range(3)]
            calls: dict[str, Callable[[], Any]] = {"tilewright": partial(tw.matmul, a, b, outs[0]),
                                                   "numpy": partial(np.matmul, a, b, out=outs[1])}
            if library:
                calls["mkl"] = mkl_call(library, a, b, outs[2])
            times: dict[str, list[float]] = {name: [] for name in calls}
            for call in calls.values():
                call()
            for out in outs[1:len(calls)]:
                assert np.allclose(outs[0], out, rtol=1e-3, atol=1e-3)
            for _ in range(options.rounds):
                for name, call in calls.items():
                    start = time.perf_counter()
                    call()
                    times[name].append(time.perf_counter() - start)
            ours = times["tilewright"]
            seconds = statistics.median(ours)
            print(f"{dtype:4} {n:3} x {batch:5} {seconds / batch * 1e9:8.1f} {2*four*batch*n**3 / seconds / 1e9:7.1f}  "
                  + ", ".join(f"{statistics.median(x / y for x, y in zip(found, ours)):.2f} of {name}"
                              for name, found in times.items() if name != "tilewright"), flush=True)


if __name__ == "__main__":
    main()
