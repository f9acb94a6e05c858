"""The five inputs in Apache TVM: tensor expressions, scheduled by MetaSchedule's search.

The search has TRIALS timed candidates for each input: a small budget, MetaSchedule's examples take 64 to 2,000. Its
records are kept in the folder TVM_RECORDS, with the time that it took, so that the next run does not search again.
"""
import os
import sys
import tempfile
import time
from pathlib import Path

import cloudpickle
import tvm
from tvm import te
from tvm.s_tir import meta_schedule

TRIALS = int(os.environ.get("TVM_TRIALS", "16"))
FOLDER = os.environ.get("TVM_RECORDS") or tempfile.mkdtemp()
TARGET = {"kind": "llvm", "mcpu": tvm.get_global_func("target.llvm_get_system_cpu")(), "num-cores": os.cpu_count()}


searched = 0.0                          # seconds of an earlier process for the search of the last function


def use(threads: int) -> None:
    pass                                # TVM_NUM_THREADS


def array(x):
    return tvm.runtime.tensor(x)


# ---- shared
def build(module, target, _):
    """Build without MetaSchedule's import of all GPUs' tensor instructions, which takes each worker process 20 s."""
    import tvm
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock
    return tvm.driver.build(RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module), target=target)


cloudpickle.register_pickle_by_value(sys.modules[__name__])     # workers cannot import this file


def fastest(function, *arrays):
    """The function of these placeholders and results, with the best schedule that the search finds."""
    global searched
    main = te.create_prim_func(function(*(te.placeholder(x.shape, name=f"x{i}") for i, x in enumerate(arrays[:-1]))))
    folder = Path(FOLDER, "_".join([function.__name__, *map(str, arrays[0].shape)]))
    target, known = tvm.target.Target(TARGET), folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    if known:
        database = meta_schedule.database.JSONDatabase(work_dir=str(folder))
    else:
        database = meta_schedule.tune_tir(
            main, target, str(folder), max_trials_global=TRIALS, num_trials_per_iter=16,
            builder=meta_schedule.builder.LocalBuilder(max_workers=1, timeout_sec=100, f_build=build))
        Path(folder, "seconds").write_text(str(time.perf_counter() - begin))
    searched = float(Path(folder, "seconds").read_text()) if known else 0
    found = meta_schedule.tir_integration.compile_tir(database, main, target)
    return tvm.compile(found.mod if found else tvm.IRModule({"main": main}), target=target)["main"]


def lazily(function):
    made = {}

    def call(*arrays):
        key = tuple(x.shape for x in arrays)
        if key not in made:
            made[key] = fastest(function, *arrays)
        made[key](*arrays)
        return arrays[-1]
    return call


# ---- matmul
def product(A, B):
    p = te.reduce_axis((0, A.shape[1]), "p")
    return A, B, te.compute((A.shape[0], B.shape[1]), lambda i, j: te.sum(A[i, p] * B[p, j], axis=p))


# ---- convolution_nhwc
def convolution_nhwc(X, W):
    r, t, c = (te.reduce_axis((0, extent), name) for extent, name in zip(W.shape, "rtc"))
    N, H, V, _ = X.shape
    return X, W, te.compute((N, H - 2, V - 2, W.shape[3]), lambda n, h, w, o: te.sum(
        X[n, h + r, w + t, c] * W[r, t, c, o], axis=(r, t, c)))


# ---- convolution_nchw
def convolution_nchw(X, W):
    c, r, t = (te.reduce_axis((0, extent), name) for extent, name in zip(W.shape[1:], "crt"))
    N, _, H, V = X.shape
    return X, W, te.compute((N, W.shape[0], H - 2, V - 2), lambda n, o, h, w: te.sum(
        X[n, c, h + r, w + t] * W[o, c, r, t], axis=(c, r, t)))


# ---- distances
def distances(X, Y):
    p = te.reduce_axis((0, X.shape[1]), "p")
    squares = te.compute((X.shape[0], Y.shape[0]), lambda i, j: te.sum(
        (X[i, p] - Y[j, p]) * (X[i, p] - Y[j, p]), axis=p))
    return X, Y, te.compute(squares.shape, lambda i, j: te.sqrt(squares[i, j]))


# ---- mttkrp
def mttkrp(X, B, C):
    j, k = te.reduce_axis((0, X.shape[1]), "j"), te.reduce_axis((0, X.shape[2]), "k")
    T = te.compute((X.shape[0], X.shape[1], C.shape[1]), lambda i, j, r: te.sum(X[i, j, k] * C[k, r], axis=k))
    return X, B, C, te.compute((X.shape[0], C.shape[1]), lambda i, r: te.sum(T[i, j, r] * B[j, r], axis=j))


# ---- stencil
# (Ten steps in one function: after 18 minutes the search had not begun. Stages are inlined into each other.)
@lazily
def step(A):
    n, m = A.shape
    return A, te.compute((n, m), lambda i, j: te.if_then_else(
        te.all(i > 0, i < n - 1, j > 0, j < m - 1),
        (A[i, j] + A[i - 1, j] + A[i + 1, j] + A[i, j - 1] + A[i, j + 1]) * 0.2, A[i, j]))


def stencil(A, B):
    for _ in range(5):
        step(A, B)
        step(B, A)
    return A


# ----
CASES = {"matmul": lazily(product), "convolution_nhwc": lazily(convolution_nhwc),
         "convolution_nchw": lazily(convolution_nchw), "distances": lazily(distances), "mttkrp": lazily(mttkrp),
         "stencil": stencil}
