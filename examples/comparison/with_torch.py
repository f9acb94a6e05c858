"""The five inputs in PyTorch: its operators, through torch.compile. NHWC is torch's channels_last."""
import torch
import torch.nn.functional as F


def use(threads: int) -> None:
    torch.set_num_threads(threads)


array = torch.from_numpy


# ---- matmul
@torch.compile
def matmul(A, B, C):
    return torch.matmul(A, B)


# ---- convolution_nhwc
@torch.compile
def convolution_nhwc(X, W, Y):
    return F.conv2d(X.permute(0, 3, 1, 2), W.permute(3, 2, 0, 1)).permute(0, 2, 3, 1)


# ---- convolution_nchw
@torch.compile
def convolution_nchw(X, W, Y):
    return F.conv2d(X, W)


# ---- distances
@torch.compile
def distances(X, Y, D):
    return torch.cdist(X, Y)


# ---- mttkrp
@torch.compile
def mttkrp(X, B, C, M):
    return torch.einsum("ijk,jr,kr->ir", X, B, C)


# ---- stencil
@torch.compile
def stencil(A, B):
    for _ in range(10):
        inner = 0.2 * (A[1:-1, 1:-1] + A[:-2, 1:-1] + A[2:, 1:-1] + A[1:-1, :-2] + A[1:-1, 2:])
        A = A.clone()
        A[1:-1, 1:-1] = inner
    return A


# ----
CASES = {"matmul": matmul, "convolution_nhwc": convolution_nhwc, "convolution_nchw": convolution_nchw,
         "distances": distances, "mttkrp": mttkrp, "stencil": stencil}
