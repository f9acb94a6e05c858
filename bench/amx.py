"""AMX: correctness, and speed of variants against MKL and torch. Run on a machine that has it.

    python bench/amx.py [--check] [--sizes 1024 2048 4096] [--words amx_bf16 ...] [--threads 1] [--json FILE]
                        [--plans mc=256,kc=1024 ...] [--packed] [--rows M]

--packed adds every plan with B packed beforehand, and MKL's functions that take such a B. The last columns compare with
the fastest peer that packs B, and, with --packed, with the fastest that need not.
"""
from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("MKL_THREADING_LAYER", "SEQUENTIAL")

import ml_dtypes
import numpy as np

import tilewright as tw
from tilewright.lab.bench import results
from tilewright.plans.choose import choose
from tilewright.plans.cpu import CpuPlan, Shape
from tilewright.plans.words import TILE_WORDS
from tilewright.runtime.cpu import amx
from tilewright.runtime.cpu.packed import Prepacking
from tilewright.runtime.cpu.recipe import Recipe, Strides, order

SOURCES = {"amx_bf16": ("bf16", "bf16"), "amx_f16": ("f16", "f16"),
           "amx_i32": ("i32", "i32"), "amx_i64": ("i64", "i64"),
           **{f"amx_{a}{b}": (a, b) for a in ("i8", "u8") for b in ("i8", "u8")},
           **{f"amx_bf16_x{terms}": ("f32", "f32") for terms in (3, 6, 9)}}
DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "i8": np.int8, "u8": np.uint8,
          "i32": np.int32, "i64": np.int64, "e4m3fn": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
rng = np.random.default_rng(1)


def random(source: str, *shape: int) -> Any:
    dtype = np.dtype(DTYPES[source])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return rng.standard_normal(shape, np.float32).astype(dtype)


def recipe(word: str, a: Any, b: Any, c: Any, sources: tuple[str, str], threads: int, prepacked: str = "",
           **blocks: int) -> Recipe:
    shape, st, plan = planned(word, a, b, c, sources, threads, **blocks)
    return Recipe(shape, st, plan, tw.detect().extended, prepacked=prepacked)


def planned(word: str, a: Any, b: Any, c: Any, sources: tuple[str, str], threads: int,
            **blocks: int) -> tuple[Shape, Strides, CpuPlan]:
    (m, k), n = a.shape, b.shape[1]
    st = Strides(*(s // x.itemsize for x in (a, b, c) for s in x.strides))
    shape = Shape(word, m, n, TILE_WORDS[word].depth(k), order(st.rsa, st.csa), order(st.rsb, st.csb), threads,
                  *sources, depth=k)
    return shape, st, replace(choose(shape, tw.detect().extended), **blocks)


def packed(word: str, a: Any, b: Any, c: Any, sources: tuple[str, str], threads: int, **blocks: int) -> Any:
    """B's panels for this plan."""
    shape, st, plan = planned(word, a, b, c, sources, threads, **blocks)
    packing = Prepacking(shape, st, plan, tw.detect().extended)
    space = np.empty(packing.bytes + 4096, np.uint8)
    panels = space[-space.ctypes.data % 4096:]
    packing.run(b.ctypes.data, panels.ctypes.data, threads)
    return panels


def run(r: Recipe, a: Any, b: Any, c: Any, beta: float = 0.0) -> None:
    r.run(b.ctypes.data, a.ctypes.data, c.ctypes.data, 1.0, beta)     # the plan exchanges the operands


def check(threads: int) -> None:
    """Exact on integers, all words, layouts and awkward shapes."""
    bad = 0
    for word, sources in [*SOURCES.items(), ("amx_bf16", ("e4m3fn", "bf16")), ("amx_bf16", ("bf16", "e5m2"))]:
        for m, n, k in (1, 1, 1), (33, 65, 130), (100, 200, 3000), (517, 129, 64), (70, 40, 1024), (64, 64, 64):
            for turn_a in (False, True):
                for turn_b in (False, True):
                    low = 0 if "u8" in sources else -3
                    a, b = (rng.integers(low, 4, s).astype(DTYPES[x]) for s, x in zip(((m, k), (k, n)), sources))
                    a, b = (np.asfortranarray(x) if turn else x for x, turn in ((a, turn_a), (b, turn_b)))
                    c = np.ones((m, n), DTYPES[TILE_WORDS[word].sums])
                    run(recipe(word, a, b, c, sources, threads), a, b, c, 1.0)
                    wanted = 1 + a.astype(np.float64) @ b.astype(np.float64)
                    again = np.ones_like(c)
                    run(recipe(word, a, b, again, sources, threads, "b"), a, packed(word, a, b, c, sources, threads),
                        again, 1.0)
                    if not np.array_equal(c, wanted) or not np.array_equal(c, again):
                        bad += 1
                        print("WRONG", word, sources, m, n, k, turn_a, turn_b, np.abs(c - wanted).max(),
                              np.abs(c - again).max())
    for x in ("i64", "i32"):
        a, b = (random(x, 200, 200) for _ in "ab")
        c = np.zeros((200, 200), DTYPES[x])
        run(recipe(f"amx_{x}", a, b, c, (x, x), 1), a, b, c)
        bad += not np.array_equal(c, a @ b)
    for x, y in ("i8", "i8"), ("u8", "i8"), ("i8", "u8"), ("u8", "u8"):
        a, b = random(x, 200, 300), random(y, 300, 200)
        run(recipe(f"amx_{x}{y}", a, b, c, (x, y), 1), a, b, c)
        bad += not np.array_equal(c, a.astype(np.int32) @ b.astype(np.int32))
    print("wrong products:", bad, flush=True)


def bits(threads: int) -> None:
    """Whether one instruction gives the bits that the simulator expects."""
    from tilewright.ir.ops.x86 import dot_bf16
    for name, make in (("normal", lambda s: rng.standard_normal(s)), ("wide", lambda s: rng.standard_normal(s)
                       * 2.0 ** rng.integers(-60, 60, s)), ("tiny", lambda s: rng.standard_normal(s) * 2.0 ** -64)):
        a, b = (make((64, 32)).astype(ml_dtypes.bfloat16) for _ in "ab")
        b = np.ascontiguousarray(b.T)
        c = np.zeros((64, 64), np.float32)
        run(recipe("amx_bf16", a, b, c, ("bf16", "bf16"), 1), a, b, c)
        wanted = dot_bf16(a.astype(np.float32), b.astype(np.float32), np.float32(0))
        print("bits", name, "same:", np.mean(c.view(np.int32) == wanted.view(np.int32)), flush=True)


class Mkl:
    def __init__(self, folder: str) -> None:
        self.lib = ctypes.CDLL(f"{folder}/libmkl_rt.so.3", ctypes.RTLD_GLOBAL)

    def bf16(self, a: Any, b: Any, c: Any) -> Any:
        (m, k), n = a.shape, b.shape[1]
        f, one, zero, p = self.lib.cblas_gemm_bf16bf16f32, ctypes.c_float(1), ctypes.c_float(0), ctypes.c_void_p
        return lambda: f(101, 111, 111, m, n, k, one, p(a.ctypes.data), k, p(b.ctypes.data), n, zero,
                         p(c.ctypes.data), n)

    def f32(self, a: Any, b: Any, c: Any) -> Any:
        (m, k), n = a.shape, b.shape[1]
        f, one, zero, p = self.lib.cblas_sgemm, ctypes.c_float(1), ctypes.c_float(0), ctypes.c_void_p
        return lambda: f(101, 111, 111, m, n, k, one, p(a.ctypes.data), k, p(b.ctypes.data), n, zero,
                         p(c.ctypes.data), n)

    def i8(self, a: Any, b: Any, c: Any) -> Any:
        """A without a sign in column order is s8u8s32's second operand: C^T = B^T A^T."""
        (m, k), n = a.shape, b.shape[1]
        f, one, zero, p = self.lib.cblas_gemm_s8u8s32, ctypes.c_float(1), ctypes.c_float(0), ctypes.c_void_p
        offset = np.zeros(1, np.int32)
        return lambda: f(101, 111, 111, 173, m, n, k, one, p(a.ctypes.data), k, ctypes.c_int8(0), p(b.ctypes.data), n,
                         ctypes.c_int8(0), zero, p(c.ctypes.data), n, p(offset.ctypes.data))

    def packed(self, name: str, a: Any, b: Any, c: Any) -> Any:
        """`name`_compute with B packed beforehand by `name`_pack; of sgemm, which takes alpha when it packs, too."""
        (m, k), n, p = a.shape, b.shape[1], ctypes.c_void_p
        size = self.lib[f"{name}_pack_get_size"]
        size.restype = ctypes.c_size_t
        space = np.empty(size(162, m, n, k) + 64, np.uint8)
        at = p(space.ctypes.data + -space.ctypes.data % 64)
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        alpha = (one,) if name == "cblas_sgemm" else ()
        self.lib[f"{name}_pack"](101, 162, 111, m, n, k, *alpha, p(b.ctypes.data), n, at)
        f, keep = self.lib[f"{name}_compute"], (space, a, c)
        if name == "cblas_gemm_s8u8s32":
            nothing, offset = ctypes.c_int8(0), np.zeros(1, np.int32)
            return lambda: (f(101, 111, 151, 173, m, n, k, one, p(a.ctypes.data), k, nothing, at, n, nothing, zero,
                              p(c.ctypes.data), n, p(offset.ctypes.data)), keep)
        scale = () if alpha else (one,)
        return lambda: (f(101, 111, 151, m, n, k, *scale, p(a.ctypes.data), k, at, n, zero, p(c.ctypes.data), n), keep)


MKL_NAMES = {"bf16": "cblas_gemm_bf16bf16f32", "f32": "cblas_sgemm", "i8": "cblas_gemm_s8u8s32"}


def timed(calls: dict[str, Any], flops: float, seconds: float) -> dict[str, float]:
    """GFLOP/s of each, medians of interleaved rounds."""
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(times.values()))) < 5:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: flops / statistics.median(t) / 1e9 for name, t in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="*", default=[1024, 2048, 4096])
    parser.add_argument("--words", nargs="*", default=["amx_bf16", "amx_i8i8", "amx_bf16_x6"])
    parser.add_argument("--plans", nargs="*", default=[""])
    parser.add_argument("--packed", action="store_true")
    parser.add_argument("--rows", type=int, help="of A, if not as many as B has")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--mkl", default=sys.prefix + "/lib", help="the folder of libmkl_rt.so.3")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--json")
    args = results.options(parser, "json")
    print(tw.detect().model, tw.detect().extensions, "refused:", amx.refusal(), "L2", tw.detect().l2, flush=True)
    tw.set_num_threads(args.threads)
    if args.check:
        bits(1)
        check(1)
        check(2)
    mkl = None if args.no_peers or not os.path.exists(f"{args.mkl}/libmkl_rt.so.3") else Mkl(args.mkl)
    found = []
    for word in args.words:
        x, y = SOURCES[word]
        for n in args.sizes:
            m = args.rows or n
            a, b = random(x, m, n), random(y, n, n)
            c = np.zeros((m, n), DTYPES[TILE_WORDS[word].sums])
            calls: dict[str, Any] = {}
            for plan in args.plans:
                blocks = {key: int(value) for key, value in (pair.split("=") for pair in plan.split(",") if pair)}
                r = recipe(word, a, b, c, (x, y), args.threads, **blocks)
                calls[str(r.plan)] = lambda r=r, a=a, b=b, c=c: run(r, a, b, c)
                if args.packed:
                    r = recipe(word, a, b, c, (x, y), args.threads, "b", **blocks)
                    panels = packed(word, a, b, c, (x, y), args.threads, **blocks)
                    calls[f"B before: {r.plan}"] = lambda r=r, a=a, b=panels, c=c: run(r, a, b, c)
            if not args.no_peers:
                if mkl and x in ("bf16", "f32", "i8") and (y != "i8" or x == "i8"):
                    other = random("u8", n, n) if x == "i8" else b
                    calls["mkl"] = getattr(mkl, x)(a, other, c)
                    if args.packed:
                        calls["B before: mkl"] = mkl.packed(MKL_NAMES[x], a, other, c)
                calls |= torch_calls(x, a, b, args.threads)
            speed = timed(calls, 2 * m * n**2, args.seconds)
            peers = {key: v for key, v in speed.items() if "packed" not in key}
            best = [max((v for key, v in peers.items() if key.startswith("B before") == before), default=0.0)
                    for before in (False, True)]
            for name, v in speed.items():
                print(f"{word:12} {m:5} {n:5} {name:60} {v:8.0f}", *(f"{v / x:6.2f}" for x in best if x), flush=True)
            found.append({"word": word, "m": m, "n": n, "threads": args.threads, "gflops": speed})
    if args.json:
        results.write({"machine": tw.detect().model, "found": found}, Path(args.json))


def torch_calls(x: str, a: Any, b: Any, threads: int) -> dict[str, Any]:
    try:
        import torch as t
    except ImportError:
        return {}
    t.set_num_threads(threads)
    if x == "bf16":
        p, q = (t.from_numpy(v.view(np.int16)).view(t.bfloat16) for v in (a, b))
        return {"torch": lambda: t.mm(p, q)}
    if x == "i8" or x == "u8":
        p, q = t.from_numpy(a.view(np.int8)), t.from_numpy(b.view(np.int8))
        return {"torch": lambda: t._int_mm(p, q)}
    if x in ("f32", "f16"):
        p, q = t.from_numpy(a), t.from_numpy(b)
        out = t.empty(a.shape[0], b.shape[1], dtype=p.dtype)
        return {"torch": lambda: t.mm(p, q, out=out)}
    return {}


if __name__ == "__main__":
    main()
