"""Loops of users on an NVIDIA GPU: the calls that they become, beside calls that are written for the same purpose.

    python -m examples.comparison.on_gpu [--only cases recognised schedules loops] [--seconds 300] [--json FILE]

cases       the functions of tests/nests on the GPU's arrays, by tw.loops and tw.optimize, equal to plain Python
recognised  three loops, and the same as a recorded kernel for CTAs, beside tw.matmul and torch; convolutions, distances
            and MTTKRP from loops beside torch (cuDNN, cuBLAS)
schedules   the golden schedules of tests/nests/golden.py beside steps of the GPU ladder
loops       loops that are no product, beside torch

Turns of at least 5 ms in random order, timed by events, medians of their ratios; results are compared first. Calls of
less than 1 ms are timed as they are, with the host's part, and in a CUDA graph.
"""
from __future__ import annotations

import argparse
import json
import random
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tilewright as tw
from examples.comparison import with_tilewright, with_torch
from tests.nests import cases, contractions, golden
from tests.nests.test_recorded import lecture_v1
from tilewright.lab.ladder import run_nvidia

Call = Callable[[], Any]
rows: list[dict[str, Any]] = []
GRAPHED = 10            # calls in a graph


class Held:
    """The result of a peer that makes a new one in each call."""

    def __init__(self, call: Call) -> None:
        self.call, self.value = call, None

    def __call__(self) -> None:
        self.value = self.call()


def turn(call: Call, times: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / times * 1e-3


def contest(name: str, ours: Call, result: torch.Tensor, peers: dict[str, tuple[Call, Any]], work: float,
            tolerance: float = 2e-3) -> None:
    """Times `ours` beside the peers. `peers`: each call, and its result, a tensor or Held."""
    begin = time.perf_counter()
    ours()
    torch.cuda.synchronize()
    prepared = time.perf_counter() - begin
    got = result.double()
    for peer, (call, held) in peers.items():
        call()
        want = (held.value if isinstance(held, Held) else held).double()
        off = ((got - want).abs().max() / want.abs().max()).item()
        if not off <= tolerance:
            print(f"WRONG {name}: off by {off:.2g} from {peer}", flush=True)
            rows.append({"case": name, "wrong": peer, "off": off})
    calls = {"ours": ours, **{peer: call for peer, (call, _) in peers.items()}}
    row = {"case": name, "first_call_s": prepared, **timed(calls)}
    graphs = {who: graph for who, call in calls.items() if (graph := captured(call)) is not None}
    if len(graphs) == len(calls) and row["seconds"]["ours"] < 1e-3:
        row["in_a_graph"] = timed(graphs, GRAPHED)
    rows.append(row)
    print(f"{name:40} {row['seconds']['ours'] * 1e6:8.1f} us {work / row['seconds']['ours'] / 1e12:7.2f} T/s " +
          " ".join(f"{p} {r:.3f}" for p, r in row["ratios"].items()) + "".join(
              f"; in a graph {x['seconds']['ours'] * 1e6:.1f} us " + " ".join(f"{r:.3f}" for r in x["ratios"].values())
              for x in [row.get("in_a_graph")] if x), flush=True)


def captured(call: Call) -> Call | None:
    """GRAPHED calls as a CUDA graph; None where they cannot be one."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for _ in range(GRAPHED):
                call()
    except Exception as error:
        print(f"no graph: {type(error).__name__}: {str(error)[:100]}")
        return None
    return graph.replay


def timed(calls: dict[str, Call], inside: int = 1) -> dict[str, Any]:
    """Median seconds of each, and of the first one's ratios. `inside`: how often each does the work."""
    times = {who: max(1, min(500, round(5e-3 / turn(call, 3)))) for who, call in calls.items()}
    seconds: dict[str, list[float]] = {who: [] for who in calls}
    for _ in range(9):
        for who in random.sample(list(calls), len(calls)):
            seconds[who].append(turn(calls[who], times[who]))
    ours, *peers = calls
    ratios = {p: statistics.median(b / a for a, b in zip(seconds[ours], seconds[p])) for p in peers}
    return {"seconds": {who: statistics.median(x) / inside for who, x in seconds.items()}, "ratios": ratios}


def device(*shape: int, dtype: Any = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)


def plain(name: str) -> Callable[..., Any]:
    """The function behind `with_tilewright.optimized`."""
    return next(x.cell_contents for x in with_tilewright.CASES[name].__closure__ if callable(x.cell_contents))


# ---- recognised


def three_loops(n: int, dtype: Any) -> None:
    a, b, c, d, e = [device(n, n, dtype=dtype) for _ in range(5)]
    peers = {"tw.matmul": (lambda: tw.matmul(a, b, out=d), d), "torch.mm": (lambda: torch.mm(a, b, out=e), e)}
    fast = tw.optimize(contractions.three_loops, a, b, c)
    contest(f"three loops {n} {dtype}", lambda: fast(a, b, c), c, peers, 2*n**3, 1e-2)
    if dtype is torch.float32:
        flat = {"A": a.view(-1), "B": b.view(-1), "C": c.view(-1)}
        kernel = lecture_v1(16, 16)
        args = [flat.get(x.upper(), n) for x, _ in kernel.params]
        recorded = tw.optimize(kernel, *args, grid=(n // 16, n // 16))
        contest(f"recorded V1 {n}", lambda: recorded(*args), c, peers, 2*n**3)


def convolutions(dtype: Any) -> None:
    x, w = device(16, 58, 58, 64, dtype=dtype), device(3, 3, 64, 64, dtype=dtype) * 0.05
    y, z = device(16, 56, 56, 64, dtype=dtype), device(16, 64, 56, 56, dtype=dtype)
    last, weights = x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
    first, others = last.contiguous(), weights.contiguous()
    work = 2 * 16 * 56**2 * 64**2 * 9
    nhwc = tw.optimize(plain("convolution_nhwc"), x, w, y)
    peer = Held(lambda: torch.nn.functional.conv2d(last, weights).permute(0, 2, 3, 1))
    contest(f"convolution NHWC {dtype}", lambda: nhwc(x, w, y), y, {"cuDNN": (peer, peer)}, work, 1e-2)
    nchw = tw.optimize(plain("convolution_nchw"), first, others, z)
    peer2 = Held(lambda: torch.nn.functional.conv2d(first, others))
    contest(f"convolution NCHW {dtype}", lambda: nchw(first, others, z), z, {"cuDNN": (peer2, peer2)}, work, 1e-2)


# Images, pixels along an edge of the result, channels, outputs; numbers of a window along an edge, pixels between them.
WINDOWS = [(16, 56, 64, 64, 3, 1), (16, 28, 128, 128, 3, 1), (32, 14, 256, 256, 3, 1), (32, 7, 512, 512, 3, 1),
           (16, 28, 256, 512, 3, 2), (64, 14, 192, 320, 5, 1), (64, 28, 512, 256, 3, 1), (8, 112, 64, 128, 3, 1),
           (16, 56, 32, 64, 3, 1), (4, 56, 128, 64, 5, 1), (8, 56, 256, 256, 2, 2), (16, 56, 256, 96, 2, 2),
           (16, 28, 192, 192, 3, 1), (1, 56, 64, 128, 3, 1), (2, 33, 128, 96, 3, 1), (16, 112, 16, 32, 3, 1)]


def windows(n: int, size: int, c: int, o: int, r: int, apart: int) -> None:
    """A convolution of bf16 as an einsum of windows."""
    edge = size + (r - 1) * apart
    x, w = device(n, edge, edge, c, dtype=torch.bfloat16), device(r, r, c, o, dtype=torch.bfloat16) * 0.05
    y = device(n, size, size, o, dtype=torch.bfloat16)
    image, row, pixel, _ = x.stride()
    view = x.as_strided((n, size, size, r, r, c), (image, row, pixel, row * apart, pixel * apart, 1))
    last, weights = x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
    peer = Held(lambda: torch.nn.functional.conv2d(last, weights, dilation=apart).permute(0, 2, 3, 1))
    contest(f"windows {(n, size, c, o, r, apart)}", lambda: tw.einsum("nhwrtc,rtco->nhwo", view, w, out=y), y,
            {"cuDNN": (peer, peer)}, 2 * y.numel() * c * r**2, 2e-2)


def distances() -> None:
    x, y, d = device(4096, 128), device(4096, 128), device(4096, 4096)
    fast = tw.optimize(plain("distances"), x, y, d)
    exact = Held(lambda: torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist"))
    by_mm = Held(lambda: torch.cdist(x, y, compute_mode="use_mm_for_euclid_dist"))
    contest("distances 4096 x 4096 x 128", lambda: fast(x, y, d), d, {"cdist": (exact, exact), "by mm": (by_mm, by_mm)},
            3 * 4096**2 * 128)


def mttkrp(n: int) -> None:
    x, b, c, m = device(n, n, n), device(n, 32), device(n, 32), device(n, 32)
    fast = tw.optimize(plain("mttkrp"), x, b, c, m)
    peer = Held(lambda: torch.einsum("ijk,jr,kr->ir", x, b, c))
    contest(f"MTTKRP {n}", lambda: fast(x, b, c, m), m, {"einsum": (peer, peer)}, 3 * n**3 * 32)


def recognised() -> Iterator[Call]:
    for dtype in (torch.float32, torch.bfloat16):
        for n in (512, 1024, 4096):
            yield partial(three_loops, n, dtype)
    for dtype in (torch.bfloat16, torch.float32):
        yield partial(convolutions, dtype)
    for shape in WINDOWS:
        yield partial(windows, *shape)
    yield distances
    for n in (128, 256):
        yield partial(mttkrp, n)


# ---- schedules


def scheduled(name: str, build: Callable[[Any], Any], step: str, n: int = 4096) -> None:
    a, b, c, d = [device(n, n) for _ in range(4)]
    s = build(tw.schedule(golden.three_loops, a, b, c))
    launch = run_nvidia.prepare(step, n, n, n, a.data_ptr(), n, b.data_ptr(), n, d.data_ptr(), n)
    stream = torch.cuda.current_stream().cuda_stream
    c.zero_()
    s(a, b, c)
    once = c.clone()                            # later calls add to C
    contest(f"schedule {name} beside {step}", lambda: s(a, b, c), once, {step: (lambda: launch(stream), d)}, 2*n**3)


def tensor_cores(stages: int | None, n: int = 4096) -> None:
    a, b, c = device(n, n, dtype=torch.float16), device(n, n, dtype=torch.float16), device(n, n)
    s = golden.tensor_cores(tw.schedule(golden.three_loops, a, b, c), stages=stages)
    c.zero_()
    s(a, b, c)
    peer = Held(lambda: torch.mm(a, b))
    contest(f"schedule mma, {stages or 1} stages, f16", lambda: s(a, b, c), c.clone(), {"torch": (peer, peer)}, 2*n**3,
            1e-2)


def schedules() -> Iterator[Call]:
    for name, build, step in (
        ("v1", golden.v1, "naive"), ("v15", golden.v15, "tiled"), ("v2", golden.v2, "registers"),
        ("v3", partial(golden.v3, L=64, S=32), "shared"), ("v4", golden.v4, "vectors"),
        ("v5 registers", golden.v5, "buffered"), ("v5 async 2", partial(golden.v5, by="async"), "buffered"),
        ("v5 async 3", partial(golden.v5, by="async", stages=3), "buffered"),
    ):
        yield partial(scheduled, name, build, step)
    for stages in (None, 3):
        yield partial(tensor_cores, stages)


# ---- loops


def row_sums(A, B):
    for i in range(A.shape[0]):
        B[i, 0] = A[i, 0]
        for j in range(1, A.shape[1]):
            B[i, j] = B[i, j - 1] + A[i, j]


def jacobi(A, B):
    for i in range(1, A.shape[0] - 1):
        for j in range(1, A.shape[1] - 1):
            B[i, j] = 0.2 * (A[i, j] + A[i - 1, j] + A[i + 1, j] + A[i, j - 1] + A[i, j + 1])


def normalised(A, B):
    for i in range(A.shape[0]):
        s = 0.0
        for j in range(A.shape[1]):
            s += A[i, j] * A[i, j]
        for j in range(A.shape[1]):
            B[i, j] = A[i, j] / (s + 1.0)


def sums(A, B):
    for i in range(A.shape[0]):
        s = 0.0
        for j in range(A.shape[1]):
            s += A[i, j]
        B[i] = s


def softmax(A, B):
    for i in range(A.shape[0]):
        m = A[i, 0]
        for j in range(1, A.shape[1]):
            m = max(m, A[i, j])
        s = 0.0
        for j in range(A.shape[1]):
            s += np.exp(A[i, j] - m)
        for j in range(A.shape[1]):
            B[i, j] = np.exp(A[i, j] - m) / s


def norms(A, B):
    for i in range(A.shape[0]):
        s = 0.0
        for j in range(A.shape[1]):
            s += A[i, j] * A[i, j]
        for j in range(A.shape[1]):
            B[i, j] = A[i, j] / np.sqrt(s / A.shape[1] + 1e-5)


def five_points(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    b[1:-1, 1:-1] = 0.2 * (a[1:-1, 1:-1] + a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:])
    return b


def elementwise(function: Callable[..., None], peer: Callable[..., Any], m: int = 4096, n: int = 4096, axes: int = 2
                ) -> None:
    """By the schedule that is found, and where that takes long, as written. Work: bytes read and written."""
    a, b = device(m, n), device(*(m, n)[:axes])
    other = b.clone()
    held, peers = Held(lambda: peer(a, other)), dict[str, tuple[Call, Any]]()
    peers["torch"] = held, held
    if m == n:
        again, fused = b.clone(), torch.compile(peer)
        peers["torch.compile"] = (inductor := Held(lambda: fused(a, again))), inductor
    begin = time.perf_counter()
    fast = tw.optimize(function, a, b)
    print(f"{function.__name__}: {time.perf_counter() - begin:.1f} s; {fast}", flush=True)
    for how, f in {"tw.optimize": fast, **({"tw.loops": tw.loops(function)} if m == n else {})}.items():
        contest(f"{function.__name__} {m} x {n}, {how}", partial(f, a, b), b, peers, 4 * (a.numel() + b.numel()))


def ten_steps(n: int) -> None:
    """A stencil in place, beside torch.compile in place and, as on the page that compares, with copies."""
    first = device(n, n)
    a, b, c, d, e, f = [first.clone() for _ in range(6)]        # of both arrays of a pair the rim is read
    begin = time.perf_counter()
    fast = tw.optimize(plain("stencil"), a, b)
    print(f"stencil: {time.perf_counter() - begin:.1f} s; {fast}", flush=True)

    @torch.compile
    def in_place(c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            five_points(c, d)
            five_points(d, c)
        return c
    copies = Held(lambda: with_torch.stencil(e, f))
    contest(f"stencil, ten steps, {n} x {n}", lambda: fast(a, b), a, {
        "torch.compile": (lambda: in_place(c, d), c), "torch.compile, with copies": (copies, copies)}, 80 * n * n)


def loops() -> Iterator[Call]:
    yield partial(elementwise, jacobi, five_points)
    for n in (2048, 4096):
        yield partial(ten_steps, n)
    yield partial(elementwise, row_sums, lambda a, b: a.cumsum(1))
    yield partial(elementwise, normalised, lambda a, b: a / ((a*a).sum(1, keepdim=True) + 1))
    for m, n in ((4096, 4096), (32768, 1024), (512, 32768), (100000, 96)):
        yield partial(elementwise, sums, lambda a, b: a.sum(1), m, n, 1)
        yield partial(elementwise, softmax, lambda a, b: a.softmax(1), m, n)
        yield partial(elementwise, norms, lambda a, b: torch.nn.functional.rms_norm(a, a.shape[1:], eps=1e-5), m, n)


# ---- cases


def examples() -> Iterator[tuple[Callable[..., Any], list[Any]]]:
    """Functions of the tests, with small whole numbers for their arguments."""
    rng = np.random.default_rng(2)
    for function, make in cases.ARGUMENTS.items():
        yield function, list(make(rng))
    for function, shapes, _ in contractions.TAKEN + contractions.LOOPS:
        yield function, [rng.integers(-3, 4, x).astype(np.float32) if isinstance(x, tuple) else x for x in shapes]


def equal(function: Callable[..., Any], args: list[Any]) -> None:
    want = [x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else copy(x) for x in args]
    function(*want)
    for how in ("loops", "optimize"):
        given = [torch.as_tensor(x.copy()).cuda() if isinstance(x, np.ndarray) else x for x in args]
        try:
            (tw.loops(function) if how == "loops" else tw.optimize(function, *given))(*given)
            for x, y in zip(given, want):
                if isinstance(y, np.ndarray):
                    np.testing.assert_allclose(x.cpu().numpy(), y, rtol=1e-5, atol=1e-5)
        except Exception as error:
            print(f"FAILED {how} {function.__name__}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            rows.append({"case": f"{how} {function.__name__}", "wrong": str(error)})
        else:
            rows.append({"case": f"{how} {function.__name__}", "right": True})


JOBS: dict[str, Callable[[], Iterator[Call]]] = {
    "cases": lambda: (partial(equal, *x) for x in examples()), "recognised": recognised, "schedules": schedules,
    "loops": loops}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    end = time.monotonic() + asked.seconds
    for job in (job for name in asked.only for job in JOBS[name]()):
        if time.monotonic() > end:
            print("stopped: no time is left")
            break
        try:
            job()
        except Exception:
            traceback.print_exc(limit=6)
        if asked.json:
            asked.json.write_text(json.dumps({
                "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"),
                "rows": rows}, indent=1))
    right, wrong = sum("right" in x for x in rows), sum("wrong" in x for x in rows)
    print(f"{right} calls of the tests' functions right, {wrong} wrong")


if __name__ == "__main__":
    main()
