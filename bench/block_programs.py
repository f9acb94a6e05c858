"""Block programs beside the same programs in Triton, on one NVIDIA GPU: softmax, layer norm and matrix product.

    python bench/block_programs.py [--quick] [--out FILE]

Both are written line by line alike (layer norm in tests/helpers), and each side runs its own fastest configuration,
found by a short contest of its own. That 16 divides an extent is known to Triton from the call, and here from
`k.multiple_of`. Every configuration is checked against torch in float64 before it is timed.
"""
from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
import triton
import triton.language as tl

from tests.helpers import block_programs
from tilewright import ir
from tilewright.blocks import Program
from tilewright.ir import f32, i32, ptr
from tilewright.lab.bench import study
from tilewright.lab.bench.gpu_device import TorchDevice
from tilewright.lab.measure.gpu_rules import GpuRules, sets
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
    return block_programs.layer_norm(target, BLOCK, WARPS, T, EVEN)


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

Configuration = tuple[int, ...]         # (elements of a block, warps), or (tile, step of k, warps, stages)
TYPES = {"f32": (ir.f32, torch.float32), "f16": (ir.f16, torch.float16), "bf16": (ir.bf16, torch.bfloat16)}
ROWS = [("f32", 8192, 1024), ("f32", 8192, 4096), ("f32", 4096, 8192), ("f32", 8192, 1000), ("f16", 8192, 1024),
        ("f16", 8192, 4096), ("f16", 4096, 8192)]
SQUARES = [("bf16", 2048, 2048), ("f16", 4096, 4096), ("bf16", 4096, 4096), ("bf16", 8192, 8192), ("f32", 2048, 2048)]
CASES = {"softmax": ROWS, "layer_norm": ROWS, "matmul": SQUARES}
TILES = ((128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (128, 128, 64, 8, 4), (128, 128, 64, 4, 4))
WIDE = ((64, 64, 16, 4, 2), (128, 64, 16, 4, 2), (128, 128, 16, 8, 2))        # of f32, without tensor cores


def configurations(program: str, dtype: str, cols: int) -> list[Configuration]:
    if program == "matmul":
        return list(WIDE if dtype == "f32" else TILES)
    whole = triton.next_power_of_2(cols)
    blocks = [whole] if program == "softmax" else sorted({min(whole, x) for x in (1024, 2048, 4096)})
    return [(block, warps) for block in blocks for warps in (2, 4, 8, 16) if block // warps // 32 <= 64]


def launch(side: str, program: str, x: list[Any], c: Configuration, element: Any, target: Any) -> Any:
    """The result of a program on one set of operands, of which it is the last."""
    a, *others, y = x
    rows, cols = a.shape
    args = ((a, *others, y, rows, cols, cols) if program == "matmul" else (y, a, cols) if program == "softmax" else
            (y, a, *others, cols, 1e-5))
    grid = (triton.cdiv(rows, c[0]) * triton.cdiv(cols, c[1]) if program == "matmul" else rows,)
    if side == study.OURS:
        run(globals()[program](element, target, math.gcd(cols, 16), *c), *args, grid=grid)
    elif program == "matmul":
        triton_matmul[grid](*args, *c[:3], 8, num_warps=c[3], num_stages=c[4])
    else:
        globals()[f"triton_{program}"][grid](*args, c[0], num_warps=c[1])
    return y


def reference(program: str, x: list[Any]) -> Any:
    a, *others = (each.double() for each in x[:-1])
    if program == "layer_norm":
        return torch.nn.functional.layer_norm(a, a.shape[1:], *others, 1e-5)
    return torch.softmax(a, 1) if program == "softmax" else a @ others[0]


def case(on: TorchDevice, program: str, dtype: str, rows: int, cols: int) -> study.Case:
    (element, kind), target = TYPES[dtype], on.on.target
    shapes = [(rows, cols), (cols, cols)] if program == "matmul" else [(rows, cols), (cols,), (cols,)]
    every = [[*(torch.randn(shape, device=on.name).to(kind) for shape in shapes),
              torch.empty((rows, cols), device=on.name, dtype=kind)]
             for _ in range(sets(rows * cols * kind.itemsize * (3 if program == "matmul" else 2), target.l2))]
    wanted = reference(program, every[0])
    limit = 16 * torch.finfo(kind).eps + (2e-5 if program == "matmul" else 0)

    def wrong(side: str, y: Any) -> str:
        error = ((y.double() - wanted).abs() / (wanted.abs() + wanted.std())).max().item()
        y.fill_(float("nan"))
        return f"error {error:.1e}" if not error < limit else ""

    sides, chosen = {}, {}
    for side in (study.OURS, "triton"):
        launches = {str(c): [partial(launch, side, program, x, c, element, target) for x in every]
                    for c in configurations(program, dtype, cols)}
        short = study.row(study.Case({}, launches, wrong), GpuRules(max_rounds=3, budget_s=0.6), on)
        print(*(f"    {side} {c}: {why}" for c, why in short["failed"].items()), sep="\n", end="", flush=True)
        fastest = min(short["seconds"], key=lambda c: sorted(short["seconds"][c])[len(short["seconds"][c]) // 2])
        sides[side], chosen[side] = launches[fastest], fastest
    return study.Case({"program": program, "dtype": dtype, "rows": rows, "cols": cols, "configurations": chosen}, sides,
                      wrong, {"program": program, "every": every})


def cases(on: TorchDevice) -> Iterator[study.Case]:
    for program, each in CASES.items():
        for dtype, rows, cols in each:
            yield case(on, program, dtype, rows, cols)


if __name__ == "__main__":
    options, device = study.parsed(__doc__ or "", "block_programs.json"), TorchDevice()
    sys.exit(study.main("programs", cases(device), options, device))
