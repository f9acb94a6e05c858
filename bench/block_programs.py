"""Block programs beside the same programs in Triton, on one NVIDIA GPU: softmax, layer norm and matrix product.

    python bench/block_programs.py [--quick] [--out FILE] [softmax] [layer_norm] [matmul]

Both are written here, line by line alike, and each side runs its own fastest configuration, found by a short contest of
its own. That 16 divides an extent is known to Triton from the call, and here from `k.multiple_of`. What is quoted is
then one interleaved run of the two, in CUDA graphs over operands that rotate through more than the L2 cache. Every
configuration is checked against torch in float64 before it is timed.
"""
from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tilewright import ir
from tilewright.blocks import Program
from tilewright.ir import f32, i32, ptr
from tilewright.lab.bench import results
from tilewright.lab.bench.gpu_device import TorchDevice
from tilewright.lab.measure.gpu_rules import GpuRules, GraphTrack, sets
from tilewright.lab.measure.measure import geomean, interleave, ratios, spread
from tilewright.runtime.run import run

# ---- the programs here


@cache
def softmax(T: Any, target: Any, EVEN: int, BLOCK: int, WARPS: int) -> Any:
    k = Program("softmax", target, num_warps=WARPS, y_ptr=ptr(T), x_ptr=ptr(T), n=i32)
    y_ptr, x_ptr, n = k.args
    n, row, cols = k.multiple_of(n, EVEN), k.program_id(0), k.arange(0, BLOCK)
    x = k.load(x_ptr + row * n + cols, mask=cols < n, other=-np.inf).to(f32)
    powers = k.exp(x - k.max(x, axis=0), approximate=True)
    k.store(y_ptr + row * n + cols, powers * (1.0 / k.sum(powers, axis=0)), mask=cols < n)
    return k.function


@cache
def layer_norm(T: Any, target: Any, EVEN: int, BLOCK: int, WARPS: int) -> Any:
    k = Program("layer_norm", target, num_warps=WARPS, y_ptr=ptr(T), x_ptr=ptr(T), w_ptr=ptr(T), b_ptr=ptr(T), n=i32,
                eps=f32)
    y_ptr, x_ptr, w_ptr, b_ptr, n, eps = k.args
    n, row = k.multiple_of(n, EVEN), k.program_id(0)
    x_ptr += row * n
    y_ptr += row * n
    total = k.zeros((BLOCK,))
    for start in k.range(0, n, BLOCK):
        cols = start + k.arange(0, BLOCK)
        total += k.load(x_ptr + cols, mask=cols < n).to(f32)
    mean = k.sum(total) / n.to(f32)
    total = k.zeros((BLOCK,))
    for start in k.range(0, n, BLOCK):
        cols = start + k.arange(0, BLOCK)
        x = k.where(cols < n, k.load(x_ptr + cols, mask=cols < n).to(f32) - mean, 0.0)
        total += x * x
    scale = 1.0 / k.sqrt(k.sum(total) / n.to(f32) + eps)
    for start in k.range(0, n, BLOCK):
        cols = start + k.arange(0, BLOCK)
        inside = cols < n
        w, b = k.load(w_ptr + cols, mask=inside).to(f32), k.load(b_ptr + cols, mask=inside).to(f32)
        x = k.load(x_ptr + cols, mask=inside).to(f32)
        k.store(y_ptr + cols, (x - mean) * scale * w + b, mask=inside)
    return k.function


@cache
def matmul(T: Any, target: Any, EVEN: int, BLOCK_M: int, BLOCK_N: int, BLOCK_K: int, WARPS: int, STAGES: int,
           GROUP: int = 8) -> Any:
    """C = A @ B."""
    k = Program("matmul", target, num_warps=WARPS, num_stages=STAGES, a_ptr=ptr(T), b_ptr=ptr(T), c_ptr=ptr(T), M=i32,
                N=i32, K=i32)
    a_ptr, b_ptr, c_ptr, *extents = k.args
    M, N, K = (k.multiple_of(x, EVEN) for x in extents)
    pid, rows, columns = k.program_id(0), k.cdiv(M, BLOCK_M), k.cdiv(N, BLOCK_N)
    first = pid // (GROUP * columns) * GROUP
    group = k.minimum(rows - first, GROUP)
    pid_m, pid_n = first + pid % (GROUP * columns) % group, pid % (GROUP * columns) // group
    offs_m, offs_n = pid_m * BLOCK_M + k.arange(0, BLOCK_M), pid_n * BLOCK_N + k.arange(0, BLOCK_N)
    offs_k = k.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * K + offs_k[None, :]
    b_ptrs = b_ptr + offs_k[:, None] * N + offs_n[None, :]
    acc = k.zeros((BLOCK_M, BLOCK_N), f32)
    for start in k.range(0, K, BLOCK_K):
        a = k.load(a_ptrs, mask=(offs_m[:, None] < M) & (offs_k[None, :] < K - start), other=0.0)
        b = k.load(b_ptrs, mask=(offs_k[:, None] < K - start) & (offs_n[None, :] < N), other=0.0)
        acc = k.dot(a, b, acc)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * N
    inside = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    k.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], acc.to(T), mask=inside)
    return k.function


# ---- the same in Triton


@triton.jit
def triton_softmax(y_ptr, x_ptr, n, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=float("-inf")).to(tl.float32)
    powers = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * n + cols, powers * (1.0 / tl.sum(powers, axis=0)), mask=cols < n)


@triton.jit
def triton_layer_norm(y_ptr, x_ptr, w_ptr, b_ptr, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x_ptr += row * n
    y_ptr += row * n
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + cols, mask=cols < n, other=0.0).to(tl.float32)
    mean = tl.sum(total) / n
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.where(cols < n, tl.load(x_ptr + cols, mask=cols < n, other=0.0).to(tl.float32) - mean, 0.0)
        total += x * x
    scale = 1.0 / tl.sqrt(tl.sum(total) / n + eps)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        inside = cols < n
        w, b = tl.load(w_ptr + cols, mask=inside).to(tl.float32), tl.load(b_ptr + cols, mask=inside).to(tl.float32)
        x = tl.load(x_ptr + cols, mask=inside).to(tl.float32)
        tl.store(y_ptr + cols, (x - mean) * scale * w + b, mask=inside)


@triton.jit
def triton_matmul(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                  GROUP: tl.constexpr):
    pid, rows, columns = tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first = pid // (GROUP * columns) * GROUP
    group = min(rows - first, GROUP)
    pid_m, pid_n = first + pid % (GROUP * columns) % group, pid % (GROUP * columns) // group
    offs_m, offs_n = pid_m * BLOCK_M + tl.arange(0, BLOCK_M), pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * K + offs_k[None, :]
    b_ptrs = b_ptr + offs_k[:, None] * N + offs_n[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        a = tl.load(a_ptrs, mask=(offs_m[:, None] < M) & (offs_k[None, :] < K - start), other=0.0)
        b = tl.load(b_ptrs, mask=(offs_k[:, None] < K - start) & (offs_n[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * N
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], acc.to(c_ptr.dtype.element_ty),
             mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))


# ---- cases

Launch = Callable[[], Any]
TYPES = {"f32": (ir.f32, torch.float32), "f16": (ir.f16, torch.float16), "bf16": (ir.bf16, torch.bfloat16)}
ROWS = [("f32", 8192, 1024), ("f32", 8192, 4096), ("f32", 4096, 8192), ("f32", 8192, 1000), ("f16", 8192, 1024),
        ("f16", 8192, 4096), ("f16", 4096, 8192)]
SQUARES = [("bf16", 2048, 2048), ("f16", 4096, 4096), ("bf16", 4096, 4096), ("bf16", 8192, 8192), ("f32", 2048, 2048)]
CASES = {"softmax": ROWS, "layer_norm": ROWS, "matmul": SQUARES}
TILES = ((128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (128, 128, 64, 8, 4), (128, 128, 64, 4, 4))
WIDE = ((64, 64, 16, 4, 2), (128, 64, 16, 4, 2), (128, 128, 16, 8, 2))        # of f32, without tensor cores


def configurations(program: str, dtype: str, cols: int) -> list[tuple[int, ...]]:
    """Of both sides: (elements of a block, warps), or (tile, step of k, warps, stages)."""
    if program == "matmul":
        return list(WIDE if dtype == "f32" else TILES)
    whole = triton.next_power_of_2(cols)
    blocks = [whole] if program == "softmax" else sorted({min(whole, x) for x in (1024, 2048, 4096)})
    return [(block, warps) for block in blocks for warps in (2, 4, 8, 16) if block // warps // 32 <= 64]


class Case:
    """One program on operands of one size: launches of both sides, and what they must compute."""

    def __init__(self, on: TorchDevice, program: str, dtype: str, rows: int, cols: int) -> None:
        self.on, self.program, self.rows, self.cols = on, program, rows, cols
        self.element, self.dtype = TYPES[dtype]
        self.target = on.on.target
        size = rows * cols * self.dtype.itemsize
        count = sets(size * (3 if program == "matmul" else 2), self.target.l2)
        shapes = [(rows, cols), (cols, cols)] if program == "matmul" else [(rows, cols), (cols,), (cols,)]
        self.sets = [[torch.randn(shape, device=on.name).to(self.dtype) for shape in shapes]
                     + [torch.empty((rows, cols), device=on.name, dtype=self.dtype)] for _ in range(count)]

    def ours(self, configuration: tuple[int, ...]) -> Iterator[Launch]:
        function = globals()[self.program](self.element, self.target, math.gcd(self.cols, 16), *configuration)
        for x, *others, y in self.sets:
            if self.program == "matmul":
                grid = triton.cdiv(self.rows, configuration[0]) * triton.cdiv(self.cols, configuration[1])
                yield partial(run, function, x, *others, y, self.rows, self.cols, self.cols, grid=(grid,))
            elif self.program == "softmax":
                yield partial(run, function, y, x, self.cols, grid=(self.rows,))
            else:
                yield partial(run, function, y, x, *others, self.cols, 1e-5, grid=(self.rows,))

    def triton(self, configuration: tuple[int, ...]) -> Iterator[Launch]:
        for x, *others, y in self.sets:
            if self.program == "matmul":
                m, n, k, warps, stages = configuration
                grid = triton.cdiv(self.rows, m) * triton.cdiv(self.cols, n)
                yield partial(triton_matmul[(grid,)], x, *others, y, self.rows, self.cols, self.cols, m, n, k, 8,
                              num_warps=warps, num_stages=stages)
            else:
                block, warps = configuration
                args = (y, x, self.cols) if self.program == "softmax" else (y, x, *others, self.cols, 1e-5)
                yield partial(globals()[f"triton_{self.program}"][(self.rows,)], *args, block, num_warps=warps)

    def wrong(self, launches: list[Launch]) -> str:
        """Why what they write is not right; "" if it is."""
        for *_, y in self.sets:
            y.fill_(float("nan"))
        for launch in launches:
            launch()
        self.on.wait()
        x, *others, y = self.sets[0]
        wide = [each.double() for each in (x, *others)]
        if self.program == "softmax":
            wanted = torch.softmax(wide[0], 1)
        elif self.program == "layer_norm":
            wanted = torch.nn.functional.layer_norm(wide[0], (self.cols,), *wide[1:], 1e-5)
        else:
            wanted = wide[0] @ wide[1]
        eps = torch.finfo(self.dtype).eps
        error = ((y.double() - wanted).abs() / (wanted.abs() + wanted.std())).max().item()
        unwritten = any(bool(each[-1].isnan().any()) for each in self.sets)
        limit = 16 * eps + (2e-5 if self.program == "matmul" else 0)
        return "not written everywhere" if unwritten else f"error {error:.1e}" if not error < limit else ""

    def best(self, side: str, rules: GpuRules, allowed: list[tuple[int, ...]]) -> tuple[tuple[int, ...], list[Launch]]:
        """The fastest of the configurations that run and are right, and its launches."""
        made: dict[tuple[int, ...], list[Launch]] = {}
        for configuration in allowed:
            try:
                launches = list(getattr(self, side)(configuration))
                said = self.wrong(launches)
            except Exception as error:          # a configuration that does not compile, or has too much shared memory
                said = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
            if said:
                print(f"    {side} {configuration}: {said}", flush=True)
            else:
                made[configuration] = launches
        found = interleave({str(c): [(x, ()) for x in launches] for c, launches in made.items()}, rules,
                           track=self.track)
        fastest = min(made, key=lambda c: found[str(c)].spread.median)
        return fastest, made[fastest]

    def track(self, calls: Any) -> GraphTrack:
        return GraphTrack(self.on, [partial(function, *args) for function, args in calls])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", default=list(CASES))
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--out", type=Path, default=Path("block_programs.json"))
    options = results.options(parser, "out")
    on = TorchDevice()
    report = results.Report.start("block programs")
    report.machine["gpu"] = on.describe()
    report.extra["programs"] = found = []
    search, rules = GpuRules(max_rounds=3, budget_s=0.6), GpuRules(max_rounds=7 if options.quick else 15, budget_s=3.0)
    for program in options.programs:
        for dtype, rows, cols in CASES[program]:
            case = Case(on, program, dtype, rows, cols)
            allowed = configurations(program, dtype, cols)
            sides = {name: case.best(side, search, allowed) for name, side in (("tilewright", "ours"),
                                                                              ("triton", "triton"))}
            samples = interleave({name: [(x, ()) for x in launches] for name, (_, launches) in sides.items()}, rules,
                                 track=case.track)
            found.append({"program": program, "dtype": dtype, "rows": rows, "cols": cols,
                          "configurations": {name: list(c) for name, (c, _) in sides.items()},
                          "seconds": {name: list(sample.seconds) for name, sample in samples.items()}})
            ratio = spread(ratios(samples["triton"].seconds, samples["tilewright"].seconds))
            print(f"{program:10} {dtype:4} {rows} x {cols}: {ratio.median:.3f} ({ratio.q1:.3f} to {ratio.q3:.3f}) of "
                  f"Triton, {samples['tilewright'].spread.median * 1e6:.1f} us, "
                  f"{ {name: c for name, (c, _) in sides.items()} }", flush=True)
            results.save(report, options.out)
            del case, sides
            torch.cuda.empty_cache()
    each = [spread(ratios(x["seconds"]["triton"], x["seconds"]["tilewright"])).median for x in found]
    print(f"geometric mean {geomean(each):.3f}, least {min(each):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
