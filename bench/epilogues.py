"""Products with an epilogue on one NVIDIA GPU, beside torch and beside the same product without one.

    python bench/epilogues.py [--quick] [--out FILE]

tilewright      matmul's kernel with the epilogue: one launch
product         tilewright's kernel for the product alone, without the epilogue
cublas          torch.mm, the product alone
eager           the same function by torch, operation after operation
compiled        that function by torch.compile

Sides that compute the function are compared with torch's in float64. Then what a call of matmul costs the host, beside
the same call without the epilogue, torch.mm and the function by torch.
"""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F

import tilewright as tw
from tilewright.lab.bench import study
from tilewright.lab.bench.gpu_device import TorchDevice
from tilewright.lab.measure.gpu_rules import sets

Tensor = Any


class Function(NamedTuple):
    """`ours` of sums and operands by name; `torchs` of sums with the bias, which F.linear adds, and the others."""
    ours: Callable[..., Any]
    torchs: Callable[..., Tensor]
    operands: tuple[str, ...] = ()          # of bias (n), res (m x n), scale (a number)
    out: str = "bf16"


def swiglu(acc: Any) -> Any:
    gate, up = tw.pairs(acc)
    return tw.silu(gate)*up


FUNCTIONS = {
    "gelu": Function(lambda acc, bias: tw.gelu(acc + bias), F.gelu, ("bias",)),
    "gelu tanh": Function(lambda acc, bias: tw.gelu(acc + bias, "tanh"), partial(F.gelu, approximate="tanh"),
                          ("bias",)),
    "relu": Function(lambda acc, bias: tw.relu(acc + bias), F.relu, ("bias",)),
    "residual": Function(lambda acc, bias, res: acc + bias + res, lambda y, res: y + res, ("bias", "res")),
    "swiglu": Function(swiglu, lambda y: F.silu(y[:, ::2])*y[:, 1::2]),
    "fp8": Function(lambda acc, scale: acc*scale, lambda y, scale: (y*scale).to(torch.float8_e4m3fn), ("scale",),
                    "e4m3fn"),
}
LARGE, MODEL, FEW = (4096, 4096, 4096), (8192, 28672, 8192), (16, 28672, 8192)
CASES = [*((name, LARGE) for name in FUNCTIONS), ("gelu", MODEL), ("swiglu", MODEL), ("gelu", FEW), ("swiglu", FEW)]


def case(on: TorchDevice, name: str, size: tuple[int, int, int]) -> study.Case:
    """bf16, both operands' k contiguous, as a layer of torch has them."""
    f, (m, n, k) = FUNCTIONS[name], size
    torch.manual_seed(0)
    torch.compiler.reset()                          # which else stops compiling one function for more than 8 cases

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device=on.name).to(torch.bfloat16)
    every = [(random(m, k), random(n, k)) for _ in range(sets(2*(m*k + n*k + m*n), on.on.target.l2))]
    known = {"bias": random(n), "res": random(m, n), "scale": torch.tensor(0.25, device=on.name)}
    operands = {x: known[x] for x in f.operands}

    def by_torch(a: Tensor, b: Tensor) -> Tensor:
        return f.torchs(F.linear(a, b, operands.get("bias")), **{x: y for x, y in operands.items() if x != "bias"})

    def wrong(side: str, found: Tensor) -> str:
        if side in ("product", "cublas"):
            return ""
        (a, b), wide = every[0], {x: y.double()[:512] if x == "res" else y.double() for x, y in operands.items()}
        sums = a[:512].double() @ b.double().T + wide.pop("bias", 0)
        wanted = f.torchs(sums, **wide).double()
        error = ((found[:512].double() - wanted).abs() / (wanted.abs() + sums.abs().mean())).max().item()
        return f"error {error:.1e}" if not error < (2.0**-2 if f.out == "e4m3fn" else 2.0**-6) else ""

    given = [(a, b.T, torch.empty(m, n, device=on.name, dtype=torch.bfloat16)) for a, b in every]
    ours = partial(tw.matmul, epilogue=f.ours, operands=operands, out_dtype=f.out)
    return study.Case(
        {"function": name, "size": list(size), "plan": str(tw.plan(tw.Gemm(*size, "bf16", out="bf16", layout="nt"),
                                                                   on.on.target))},
        {"tilewright": [partial(ours, a, b) for a, b, _ in given], "product": study.partials(tw.matmul, given),
         "cublas": [partial(torch.mm, a, b, out=c) for a, b, c in given], "eager": study.partials(by_torch, every),
         "compiled": study.partials(torch.compile(by_torch, dynamic=False), every)},
        wrong, {"function": name, "every": every, "operands": operands})


def host(on: TorchDevice, n: int = 256) -> dict[str, Callable[[], Any]]:
    """Calls of small matrices."""
    a, b, out, bias = (torch.randn(size, device=on.name).to(torch.bfloat16) for size in ((n, n), (n, n), (n, n), (n,)))
    f, operands = FUNCTIONS["gelu"].ours, {"bias": bias}
    fused = partial(tw.matmul, a, b.T, out, operands=operands)
    return {"matmul": partial(tw.matmul, a, b.T, out), "with a function": partial(fused, epilogue=f),
            "with tw.epilogue's": partial(fused, epilogue=tw.epilogue(f, bias="bf16 row")),
            "torch.mm": partial(torch.mm, a, b.T, out=out), "F.gelu(F.linear)": lambda: F.gelu(F.linear(a, b, bias))}


def cases(on: TorchDevice) -> Iterator[study.Case]:
    for name, size in CASES:
        yield case(on, name, size)


if __name__ == "__main__":
    options, on = study.parsed(__doc__ or "", "epilogues.json"), TorchDevice()
    sys.exit(study.main("epilogues", cases(on), options, on, host=("host", host(on))))
