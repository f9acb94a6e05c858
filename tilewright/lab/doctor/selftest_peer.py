"""torch on ROCm as what the selftest compares with: its matrix products are hipBLASLt's."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.runtime.hip import module

# torch's names for formats whose bits NumPy keeps in ml_dtypes' types, by theirs
DTYPES = {
    "bfloat16": "bfloat16", "float8_e4m3fnuz": "float8_e4m3fnuz", "float8_e5m2fnuz": "float8_e5m2fnuz",
    "float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e5m2", "float8_e8m0fnu": "float8_e8m0fnu",
}
SCALED = {"e4m3fn", "e5m2", "e2m1"}  # element formats of blocks that torch multiplies


def launch(peer: Callable[[Any], Callable[[], Any]], stream: module.Stream) -> tuple[Callable[[Any], Any], str]:
    """torch's call as something to launch on this stream, and the dtype of its result, which is not ours where torch
    has no such product. ImportError or RuntimeError if there is no torch on ROCm."""
    os.environ.setdefault("HIPBLASLT_ALLOW_TF32", "1")  # lets it use xf32 where allow_tf32 is set
    import torch

    if torch.version.hip is None:
        raise RuntimeError(f"torch {torch.__version__} is not a build for ROCm")
    with suppress(Exception):  # an older torch has no choice
        torch.backends.cuda.preferred_blas_library("hipblaslt")
    index = stream.device.index
    theirs = torch.cuda.ExternalStream(stream.handle, device=torch.device("cuda", index))
    with torch.cuda.device(index), torch.cuda.stream(theirs):
        call = peer(torch)
        result = call()
    theirs.synchronize()

    def run(_: Any) -> None:
        with torch.cuda.stream(theirs):
            call()

    return run, str(result.dtype).removeprefix("torch.")


def tensor(torch: Any, x: NDArray[Any]) -> Any:
    """A copy of the array on the current GPU, in torch's type for its format."""
    x = np.ascontiguousarray(x)
    if x.dtype.name == "float4_e2m1fn":  # of which ml_dtypes keeps one in a byte, and torch two, the low bits first
        pairs = x.view(np.uint8) & 15
        return torch.from_numpy(pairs[..., ::2] | pairs[..., 1::2] << 4).cuda().view(torch.float4_e2m1fn_x2)
    name = DTYPES.get(x.dtype.name)
    if name is None:
        return torch.from_numpy(x.copy()).cuda()
    return torch.from_numpy(x.view(f"u{x.itemsize}").copy()).cuda().view(getattr(torch, name))


def product(a: NDArray[Any], b: NDArray[Any], scale_a: NDArray[Any] | None = None,
            scale_b: NDArray[Any] | None = None, xf32: bool = False) -> Callable[[Any], Callable[[], Any]]:
    """`peer` of a case that is A [m, k] @ B [k, n]: torch.matmul, or what torch has for fp8, blocks with scales, or i8.

    `scale_a` [m, k/32] and `scale_b` [n, k/32] are E8M0 scales of blocks along k. `xf32`: f32 may be rounded to it.
    """

    def peer(torch: Any) -> Callable[[], Any]:
        x = tensor(torch, a)
        if a.dtype == np.int8:
            columns = tensor(torch, b)
            return lambda: torch._int_mm(x, columns)
        if x.dtype.itemsize > 1:
            y = tensor(torch, b)
            torch.backends.cuda.matmul.allow_tf32 = xf32
            return lambda: torch.matmul(x, y)
        y = tensor(torch, np.asarray(b).T).t()  # _scaled_mm wants the columns of B to be contiguous
        if scale_a is not None and scale_b is not None:
            scales = [tensor(torch, s) for s in (scale_a, scale_b)]
        else:
            scales = [torch.ones((), dtype=torch.float32, device=x.device)] * 2
        return lambda: torch._scaled_mm(x, y, scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16)

    return peer
