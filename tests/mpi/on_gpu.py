"""Ranks that are threads and share a GPU: right, and how long. On a machine with a GPU: python tests/mpi/on_gpu.py"""

from __future__ import annotations

import time

import numpy as np
import torch

import tilewright as tw
from tilewright import mpi


def exact(grid, dtype, m, n, k, **options):
    g = mpi.Grid(*grid)
    a, b = (torch.randint(-3, 4, s, device="cuda").to(dtype) for s in ((m, k), (k, n)))
    bias = torch.arange(n, device="cuda", dtype=torch.float32)
    right = a.double() @ b.double()

    def one(team):
        p = mpi.place(g, mpi.Layout.blocks((m, k), g[:2]), mpi.Layout.blocks((k, n), g[:2]))
        r, c = (torch.as_tensor(x, device="cuda") for x in p.a.local_indices(team.rank))
        x = mpi.Matrix(team, p.a, a[r][:, c].contiguous())
        r, c = (torch.as_tensor(x, device="cuda") for x in p.b.local_indices(team.rank))
        y = mpi.Matrix(team, p.b, b[r][:, c].t().contiguous().t() if options.get("turned") else b[r][:, c].contiguous())
        plain = mpi.matmul(x, y, grid=g, out_dtype="f32", panel=96)
        fused = mpi.matmul(x, y, grid=g, out_dtype="f32", panel=96, epilogue=lambda s, bias: tw.relu(s + bias),
                           operands={"bias": bias})
        fixed = mpi.matmul(x, y, grid=g, out_dtype="f32", reproducible=True) if g.layers == 1 else plain
        torch.cuda.synchronize()
        return plain.gather(None), fused.gather(None), fixed.gather(None)
    for plain, fused, fixed in mpi.run_threads(g.size, one, timeout=60):
        np.testing.assert_array_equal(plain, right.cpu().numpy())
        np.testing.assert_array_equal(fixed, right.cpu().numpy())
        np.testing.assert_array_equal(fused, (right + bias).clamp(min=0).cpu().numpy())


def bits():
    a, b = torch.randn(700, 3000, device="cuda"), torch.randn(3000, 500, device="cuda")
    found = []
    for g in (mpi.Grid(1, 1), mpi.Grid(2, 2), mpi.Grid(3, 1), mpi.Grid(1, 4)):
        def one(team, g=g):
            p = mpi.place(g, mpi.Layout.blocks((700, 3000), g[:2]), mpi.Layout.blocks((3000, 500), g[:2]))
            parts = []
            for x, layout in ((a, p.a), (b, p.b)):
                r, c = (torch.as_tensor(i, device="cuda") for i in layout.local_indices(team.rank))
                parts.append(mpi.Matrix(team, layout, x[r][:, c].contiguous()))
            return mpi.matmul(*parts, grid=g, reproducible=True).gather(None)
        found.append(mpi.run_threads(g.size, one, timeout=60)[0])
    print("reproducible bits on a GPU:", [bool(np.array_equal(found[0], x)) for x in found])


def timed(n, dtype, grid):
    g = mpi.Grid(*grid)

    def one(team):
        p = mpi.place(g, mpi.Layout.blocks((n, n), g[:2]), mpi.Layout.blocks((n, n), g[:2]))
        x, y = (mpi.Matrix(team, x, torch.randn(x.local_shape(team.rank), device="cuda").to(dtype)) for x in (p.a, p.b))
        taken = []
        for _ in range(4):
            team.agree("round", {})
            report, begin = mpi.Report(), time.perf_counter()
            mpi.matmul(x, y, grid=g, report=report)
            torch.cuda.synchronize()
            taken.append((time.perf_counter() - begin, report.seconds("product"), report.seconds("wait")))
        return min(taken), report.panels_sent / report.bound
    found = mpi.run_threads(g.size, one, timeout=60)
    whole = torch.randn(n, n, device="cuda").to(dtype)
    tw.matmul(whole, whole, out_dtype="f32")
    torch.cuda.synchronize()
    begin = time.perf_counter()
    tw.matmul(whole, whole, out_dtype="f32")
    torch.cuda.synchronize()
    alone = time.perf_counter() - begin
    seconds, launches, waits = (1e3 * x for x in found[0][0])
    print(f"n {n} {dtype} grid {g}: {seconds:.1f} ms on threads of one GPU, one product {alone * 1e3:.1f} ms; launches "
          f"{launches:.1f} ms, waits {waits:.1f} ms, bytes of the bound {found[0][1]:.3f}")


def rates():
    """Products of panels, for docs/mpi.md: sums += a panel of 512 steps of k."""
    f32, f64, bf16 = torch.float32, torch.float64, torch.bfloat16
    for dtype, size, out in ((bf16, 16384, f32), (f64, 8192, f64), (f32, 8192, f32)):
        a, b = torch.randn(size, 512, device="cuda").to(dtype), torch.randn(512, size, device="cuda").to(dtype)
        c = torch.zeros(size, size, device="cuda", dtype=out)
        for _ in range(3):
            tw.gemm(1, a, b, 1, c)
        times = []
        for _ in range(10):
            s, e = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            s.record()
            tw.gemm(1, a, b, 1, c)
            e.record()
            torch.cuda.synchronize()
            times.append(s.elapsed_time(e))
        t = float(np.median(times))
        print(f"panel {size} x {size} x 512 {dtype}: {t:.3f} ms, {2 * size * size * 512 / t / 1e9:.1f} TFLOP/s")


if __name__ == "__main__":
    for grid in ((1, 1), (2, 2), (1, 4), (3, 1), (2, 1, 2)):
        for dtype in (torch.float32, torch.bfloat16):
            exact(grid, dtype, 130, 72, 520)
    exact((2, 2), torch.float16, 130, 72, 520, turned=True)
    print("exact: right", flush=True)
    bits()
    rates()
    timed(8192, torch.bfloat16, (2, 2))
    timed(8192, torch.float32, (2, 2))
