"""Block programs that tests run on several targets: a softmax, a layer norm, a matrix product."""

from __future__ import annotations

import numpy as np

from tilewright.blocks import Program
from tilewright.ir import f16, f32, i8, i32, ptr


def softmax(target=None, BLOCK=128, NUM_WARPS=2):
    k = Program("softmax", target, num_warps=NUM_WARPS, y_ptr=ptr(f32), x_ptr=ptr(f32), stride=i32, n_cols=i32)
    y_ptr, x_ptr, stride, n_cols = k.args
    row, cols = k.program_id(0), k.arange(0, BLOCK)
    x = k.load(x_ptr + row * stride + cols, mask=cols < n_cols, other=-np.inf)
    numerator = k.exp(x - k.max(x, axis=0))
    k.store(y_ptr + row * stride + cols, numerator / k.sum(numerator, axis=0), mask=cols < n_cols)
    return k.function


def layer_norm(target=None, BLOCK=64, NUM_WARPS=2, T=f32, EVEN=1):
    k = Program("layer_norm", target, num_warps=NUM_WARPS, y_ptr=ptr(T), x_ptr=ptr(T), w_ptr=ptr(T), b_ptr=ptr(T),
                n=i32, eps=f32)
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
        w, b = (k.load(x + cols, mask=inside).to(f32) for x in (w_ptr, b_ptr))
        k.store(y_ptr + cols, (k.load(x_ptr + cols, mask=inside).to(f32) - mean) * scale * w + b, mask=inside)
    return k.function


def matmul(target=None, BLOCK_M=32, BLOCK_N=32, BLOCK_K=32, GROUP_M=8, NUM_WARPS=2, NUM_STAGES=2, T=f16, TA=False,
           TB=False, EVEN=1, PRECISION="ieee"):
    """C = A @ B, where A or B may be stored transposed. EVEN divides all extents and strides."""
    OUT = i32 if T is i8 else f32
    k = Program("matmul", target, num_warps=NUM_WARPS, num_stages=NUM_STAGES, a_ptr=ptr(T), b_ptr=ptr(T),
                c_ptr=ptr(OUT), M=i32, N=i32, K=i32, stride_a=i32, stride_b=i32, stride_c=i32)
    a_ptr, b_ptr, c_ptr, *numbers = k.args
    M, N, K, stride_a, stride_b, stride_c = (k.multiple_of(x, EVEN) for x in numbers)
    pid = k.program_id(0)
    num_pid_m, num_pid_n = k.cdiv(M, BLOCK_M), k.cdiv(N, BLOCK_N)
    num_pid_in_group = GROUP_M * num_pid_n
    first_pid_m = pid // num_pid_in_group * GROUP_M
    group_size_m = k.minimum(num_pid_m - first_pid_m, GROUP_M)
    pid_m = first_pid_m + pid % num_pid_in_group % group_size_m
    pid_n = pid % num_pid_in_group // group_size_m
    offs_m = pid_m * BLOCK_M + k.arange(0, BLOCK_M)
    offs_n = pid_n * BLOCK_N + k.arange(0, BLOCK_N)
    offs_k = k.arange(0, BLOCK_K)
    stride_am, stride_ak = (1, stride_a) if TA else (stride_a, 1)
    stride_bk, stride_bn = (1, stride_b) if TB else (stride_b, 1)
    a_ptrs = a_ptr + (offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn)
    acc = k.zeros((BLOCK_M, BLOCK_N), OUT)
    for start in k.range(0, K, BLOCK_K):
        a = k.load(a_ptrs, mask=(offs_m[:, None] < M) & (offs_k[None, :] < K - start), other=0.0)
        b = k.load(b_ptrs, mask=(offs_k[:, None] < K - start) & (offs_n[None, :] < N), other=0.0)
        acc = k.dot(a, b, acc, precision=PRECISION)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    c_ptrs = c_ptr + offs_m[:, None] * stride_c + offs_n[None, :]
    k.store(c_ptrs, acc, mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))
    return k.function
