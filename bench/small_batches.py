"""Many small products of one size: tilewright.matmul of stacks beside np.matmul and MKL's batch interface, on a GPU
beside torch.bmm, which is cuBLAS's batch interface.

    python bench/small_batches.py [--formats f4 f8 c8 c16] [--sizes 4 8 12 16 24 32] [--threads 1] [--mkl FOLDER]
                                  [--gpu [--batches N ...]] [--quick] [--out FILE]

On a CPU batches of about 2 million multiply-adds. FOLDER has libmkl_rt.so (pip install mkl: the environment's lib);
without it MKL is left out. On a GPU batches of N products, by default as many as have 400 MB.
"""
from __future__ import annotations

import ctypes
import os
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import tilewright as tw
from tilewright.lab.bench import study
from tilewright.lab.measure.gpu_rules import sets

LETTERS = {"f4": "s", "f8": "d", "c8": "c", "c16": "z"}
ROW_MAJOR, NO_TRANS = 101, 111
WORK, MANY = 2_000_000, 400_000_000     # multiply-adds of a batch; bytes of one, on a GPU


def mkl_at(folder: Path, threads: int) -> ctypes.CDLL:
    os.environ["MKL_THREADING_LAYER"] = "SEQUENTIAL" if threads == 1 else "INTEL"
    if threads > 1:
        ctypes.CDLL(str(folder / "libiomp5.so"), mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(next(folder.glob("libmkl_rt.so*"))))
    library.MKL_Set_Num_Threads(threads)
    return library


def mkl_call(library: ctypes.CDLL, a: Any, b: Any, c: Any) -> study.Launch:
    """cblas_?gemm_batch_strided(order, transa, transb, m, n, k, alpha, a, lda, stride, b, ldb, stride, beta, c, ldc,
    stride, batch)."""
    (batch, m, k), n = a.shape, b.shape[2]
    one, zero = np.ones(1, a.dtype), np.zeros(1, a.dtype)
    of_real = {"f4": ctypes.c_float, "f8": ctypes.c_double}.get(a.dtype.str[1:])
    alpha, beta = (of_real(x[0]) if of_real else ctypes.c_void_p(x.ctypes.data) for x in (one, zero))
    numbers, address = ctypes.c_int, ctypes.c_void_p
    args = [*map(numbers, (ROW_MAJOR, NO_TRANS, NO_TRANS, m, n, k)), alpha, address(a.ctypes.data), numbers(k),
            numbers(m*k), address(b.ctypes.data), numbers(n), numbers(k*n), beta, address(c.ctypes.data), numbers(n),
            numbers(m*n), numbers(batch)]
    function = getattr(library, f"cblas_{LETTERS[a.dtype.str[1:]]}gemm_batch_strided")

    def call(kept: Any = (one, zero)) -> Any:
        function(*args)
        return c
    return call


def on_cpu(dtype: str, n: int, library: ctypes.CDLL | None) -> study.Case:
    four, rng = 4 if dtype[0] == "c" else 1, np.random.default_rng(0)
    batch = min(max(WORK // (n**3 * four), 200), 10_000)
    a, b = ((rng.standard_normal((batch, n, n)) + 1j*(four > 1)*rng.standard_normal((batch, n, n))) for _ in range(2))
    a, b = (x.astype(dtype) if four > 1 else x.real.astype(dtype) for x in (a, b))
    outs = [np.empty_like(a) for _ in range(3)]
    sides = {"tilewright": study.partials(tw.matmul, [(a, b, outs[0])]),
             "numpy": [lambda: np.matmul(a, b, out=outs[1])]}
    if library:
        sides["mkl"] = [mkl_call(library, a, b, outs[2])]
    wanted = a.astype("c16") @ b.astype("c16")
    return study.Case({"dtype": dtype, "n": n, "batch": batch}, sides,
                      lambda side, found: "" if np.allclose(found, wanted, rtol=1e-3, atol=1e-3) else "wrong",
                      {"every": [(a, b)]}, flops=2*four*batch*n**3)


def on_gpu(on: Any, dtype: str, n: int, batch: int) -> study.Case:
    import torch
    kind = tw.formats.get(dtype).numpy_name
    size = np.dtype(dtype).itemsize
    batch = batch or MANY // (3*n*n*size)
    total = 3*n*n*size*batch
    every = [tuple(torch.randn(batch, n, n, device=on.name, dtype=getattr(torch, kind)) for _ in "abc")
             for _ in range(sets(total, on.on.target.l2))]
    a, b, _ = every[0]
    wide = torch.complex128 if dtype[0] == "c" else torch.float64
    exact = a[:20_000].to(wide) @ b[:20_000].to(wide)
    most = 2 * n * torch.finfo(a.dtype).eps * float((a[:20_000].abs() @ b[:20_000].abs()).max())
    plan = str(tw.plan(tw.Gemm(n, n, n, tw.formats.get(kind).name, batch=batch), on.on.target))
    return study.Case(
        {"dtype": dtype, "n": n, "batch": batch, "bytes": total, "plan": plan},
        {"tilewright": study.partials(tw.matmul, every),
         "torch.bmm": study.partials(lambda a, b, c: torch.bmm(a, b, out=c), every)},
        lambda side, found: "" if float((found[:20_000] - exact).abs().max()) < most else "wrong",
        {"every": every}, bytes=total)


def cases(options: Any, on: Any) -> Iterator[study.Case]:
    library = mkl_at(options.mkl, options.threads) if options.mkl else None
    for dtype in options.formats:
        for n in options.sizes:
            for batch in options.batches if on else (0,):
                yield on_gpu(on, dtype, n, batch) if on else on_cpu(dtype, n, library)


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--formats", nargs="*", default=list(LETTERS))
    parser.add_argument("--sizes", type=int, nargs="*", default=[4, 8, 12, 16, 24, 32])
    parser.add_argument("--mkl", type=Path)
    parser.add_argument("--gpu", dest="cpu", action="store_false")
    parser.add_argument("--batches", type=int, nargs="*", default=[0])
    parser.add_argument("--threads", type=int, default=1)


if __name__ == "__main__":
    options = study.parsed(__doc__ or "", "small_batches.json", arguments)
    on = study.device(options)
    sys.exit(study.main("small_batches", cases(options, on), options, on))
