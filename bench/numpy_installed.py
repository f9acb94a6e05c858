"""Times of the operator @ by NumPy alone and with tilewright.numpy.install(), in turn.

    python bench/numpy_installed.py [--formats int8,float32] [--sizes 2,8,64] [--random N --seed S]

CPU time of this thread, on one thread, medians of rounds; square matrices, or N random shapes with sides to 512.
"""
import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import argparse
import statistics
import time

import ml_dtypes  # noqa: F401
import numpy as np

import tilewright.numpy as twn

ROUNDS, SLICE = 9, 2e-3         # seconds of a round, at least


def per_call(f, calls):
    start = time.thread_time()
    for _ in range(calls):
        f()
    return (time.thread_time() - start) / calls


def compared(f):
    """Seconds of NumPy's and of the installed function."""
    calls = 1
    while per_call(f, calls) * calls < SLICE:
        calls *= 2
    with twn.installed():
        before = time.thread_time()
        while time.thread_time() - before < 0.02 or twn.counts()["matmul"] == 0:
            f()             # until a plan is made
            if time.thread_time() - before > 2:
                break
    found = []
    for _ in range(ROUNDS):
        theirs = per_call(f, calls)
        with twn.installed():
            found.append((theirs, per_call(f, calls)))
    return [statistics.median(x) for x in zip(*found)]


def operands(rng, dtype, m, n, k):
    return tuple(rng.integers(-4, 5, shape).astype(dtype) for shape in ((m, k), (k, n)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default="float64,float32,complex64,float16,bfloat16,int8,int32,int64,bool")
    parser.add_argument("--sizes", default="2,4,8,16,32,64,128,256")
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    for dtype in given.formats.split(","):
        cells = []
        shapes = [(n, n, n) for n in map(int, given.sizes.split(","))]
        if given.random:
            shapes = [tuple(int(2**x) for x in rng.uniform(0, 9, 3)) for _ in range(given.random)]
        for m, n, k in shapes:
            a, b = operands(rng, dtype, m, n, k)
            theirs, ours = compared(lambda: a @ b)      # noqa: B023
            cells.append((f"{m}" if m == n == k else f"{m}x{n}x{k}", theirs, ours))
        if given.random:
            ratios = sorted(theirs / ours for _, theirs, ours in cells)
            print(f"{dtype}: geometric mean of NumPy's time / ours {statistics.geometric_mean(ratios):.2f}, least "
                  f"{ratios[0]:.2f}, of {len(ratios)} shapes; below 0.95: {sum(x < 0.95 for x in ratios)}", flush=True)
        else:
            texts = [f"{x * 1e6:.3g} / {y * 1e6:.3g}" for _, x, y in cells]
            print("|", " | ".join((dtype, *texts)), "|", flush=True)


if __name__ == "__main__":
    main()
