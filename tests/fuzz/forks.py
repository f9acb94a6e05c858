"""Forks at random moments of first and later products on several threads: every child's product is right, and ends.

A case is a process of its own (`in_child`) in which no product has run: its threads' first products, with a cold cache
or a warm one, overlap with the forks. Children multiply, some from threads and some in grandchildren.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

import numpy as np

import tilewright as tw
from tests.fuzz.children import in_child
from tests.fuzz.driver import Case, Fuzzer

np.random.default_rng()  # NumPy imports this late, and a child that is forked in the midst of an import waits for ever
LIMIT_S = 90  # for a child; for all of a case, see below
SHAPES = ((3, 4, 5), (40, 50, 60), (130, 70, 90), (200, 200, 200), (1, 300, 300), (300, 1, 300))


def draw(rng: Random) -> Case:
    return {"cold": rng.random() < 0.15, "threads": rng.choice([1, 2, 3, 5]), "width": rng.choice([1, 2, 2, 4]),
            "forks": [round(rng.choice([0.0, 0.001, 0.01, 0.1, 0.4]) * rng.random(), 4)
                      for _ in range(rng.randint(1, 4))],
            "grandchildren": rng.random() < 0.3, "from_thread": rng.random() < 0.4, "errors": rng.random() < 0.3,
            "change": rng.random() < 0.4, "dtypes": rng.choice([["f4"], ["f4", "f8"], ["f4", "i1"], ["c8", "f8"]]),
            "seed": rng.randrange(2**31)}


def check(case: Case) -> None:
    with tempfile.TemporaryDirectory(prefix="tilewright-fuzz-") as cold:
        if case["cold"]:
            saved = os.environ.get("TILEWRIGHT_CACHE_DIR")
            os.environ["TILEWRIGHT_CACHE_DIR"] = cold
        try:
            in_child(lambda: _storm(case), (len(case["forks"]) + 1) * LIMIT_S)
        finally:
            if case["cold"]:
                if saved is None:
                    del os.environ["TILEWRIGHT_CACHE_DIR"]
                else:
                    os.environ["TILEWRIGHT_CACHE_DIR"] = saved


def _storm(case: Case) -> None:
    stop, wrong = threading.Event(), []

    def work(number: int) -> None:
        rng = Random(f"{case['seed']} {number}")
        while not stop.is_set():
            try:
                product(case, rng)
            except Exception as error:
                wrong.append(error)
                return

    threads = [threading.Thread(target=work, args=(number,)) for number in range(case["threads"])]
    for thread in threads:
        thread.start()
    forking = ThreadPoolExecutor(1).submit if case["from_thread"] else lambda f, *args: f(*args)
    for number, delay in enumerate(case["forks"]):
        time.sleep(delay)
        done = forking(in_child, lambda number=number: _child(case, number), LIMIT_S)
        if done is not None:
            done.result()
    stop.set()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "a thread of the parent hangs"
    if wrong:
        raise wrong[0]


def _child(case: Case, number: int) -> None:
    rng = Random(f"{case['seed']} child {number}")
    for _ in range(3):
        product(case, rng)
    others = [threading.Thread(target=product, args=(case, Random(i))) for i in range(2)]
    for thread in others:
        thread.start()
    for thread in others:
        thread.join()
    if case["grandchildren"]:
        in_child(lambda: product(case, rng), LIMIT_S / 2)


def product(case: Case, rng: Random) -> None:
    m, n, k = rng.choice(SHAPES)
    dtype = rng.choice(case["dtypes"])
    data = np.random.default_rng(rng.randrange(2**31))
    a, b = (data.integers(-2, 3, shape).astype(dtype) for shape in ((m, k), (k, n)))
    if case["change"] and rng.random() < 0.3:
        tw.set_num_threads(rng.choice([1, 2, 3]))
    if case["errors"] and rng.random() < 0.3:
        try:
            tw.matmul(a, b[1:] if k > 1 else b[:0])
        except ValueError:
            pass
        else:
            raise AssertionError("sizes that do not fit were multiplied")
    width = case["width"] if rng.random() < 0.7 else None
    got = tw.matmul(a, b, threads=width) if width else tw.matmul(a, b)
    # Of integers: NumPy's product of floats is OpenBLAS's, which a fork may leave waiting for its threads.
    want = (a.real.astype(np.int64) @ b.real.astype(np.int64)).astype(dtype)
    assert np.array_equal(got, want), f"{m}x{n}x{k} {dtype} is wrong"


PLAIN: Case = {"cold": False, "grandchildren": False, "from_thread": False, "errors": False, "change": False,
               "dtypes": ["f4"], "width": 1, "threads": 1}
FUZZER = Fuzzer("forks", draw, check, PLAIN, limit_s=700)
