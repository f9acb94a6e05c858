"""Products with a prologue on one NVIDIA GPU: weights of few bits beside bf16 ones, and an activation of A.

    python bench/prologues.py [--quick] [--rows M,M...] [--size N,K] [--out FILE]

bf16 activations [m, K] by weights [N, K] (28672, 8192) as a layer of torch has them, scales of groups or outputs:

    tilewright      matmul by the weights as they are stored
    bf16            matmul by bf16 weights of these sizes
    cublas          torch.mm by these
    eager           torch makes bf16 of the weights, and multiplies

silu: silu(A) B of 4096, beside the product alone and F.silu before torch.mm. Every side that decodes is compared with
float64; `predicted` is what the planner's model says of the kernel's plan.
"""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F

import tilewright as tw
from tilewright.expressions.numerics import Numerics
from tilewright.formats.quantized import Quantized
from tilewright.formats.scaled import Nibbles, Scaled
from tilewright.formats.table import BLOCK_FORMATS
from tilewright.lab.bench import study
from tilewright.lab.bench.gpu_device import TorchDevice
from tilewright.lab.measure.gpu_rules import sets
from tilewright.plans import gpu, gpu_shape

Tensor = Any
GROUP, CHECKED = 128, 256
KINDS = "i8", "i8 outputs", "e4m3fn", "i4", "mxfp4"
E2M1 = 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0


def weights(kind: str, device: Any) -> tuple[Any, Callable[[int, Any], Tensor], int]:
    """Random ones [N, K] as b of matmul; the first rows of their numbers in a dtype, by torch's operations; bytes."""
    def random(first: int, last: int, columns: int, dtype: Any = torch.uint8) -> Tensor:
        return torch.randint(first, last, (N, columns), device=device, dtype=dtype)
    if kind == "mxfp4":
        f = BLOCK_FORMATS[kind]
        w, s, group = random(0, 256, K // 2), random(122, 128, K // f.block), f.block
        given: Any = Quantized(w, s, (N, K), f)
        table = torch.tensor([*E2M1, *(-x for x in E2M1)], device=device)
    else:
        group = K if "outputs" in kind else GROUP
        s = torch.rand(N, K // group, device=device) / 64 + 1/64
        w = random(0, 256, K // 2) if kind == "i4" else random(-127, 128, K, torch.int8)
        if kind == "e4m3fn":
            w = (w.to(torch.bfloat16) / 16).to(torch.float8_e4m3fn)
        given = Scaled(w, s, None, group % K, *([Nibbles("i4", -1, K)] if kind == "i4" else []))

    def numbers(rows: int, dtype: Any) -> Tensor:
        x, scales = w[:rows], s[:rows].to(dtype)
        if kind in ("i4", "mxfp4"):                     # two of each byte, the first one in its lower half
            x = torch.stack([x & 15, x >> 4], -1).flatten(-2).int()
            x = torch.where(x > 7, x - 16, x) if kind == "i4" else table[x]
        scales = torch.exp2(scales - 127) if kind == "mxfp4" else scales
        return (x.to(dtype).view(rows, -1, group) * scales[..., None]).view(rows, K)
    return given, numbers, w.numel() + s.numel()*s.itemsize


def predicted(kind: str, m: int, target: Any) -> dict[str, Any]:
    """The planner's kernel for these weights, and its time by the model."""
    special = {"mxfp4": ("e2m1", "e8m0 full/32"), "i8 outputs": ("i8", "f32 row")}
    source, place = special.get(kind, (kind, f"f32 full/{GROUP}"))
    text = tw.prologue(lambda b, s: b*s, source, "bf16", s=place).text
    text = text.replace(f"{source} bf16", f"{source}x2 bf16") if "4" in kind and kind != "e4m3fn" else text
    shape = gpu_shape.shape("bf16", "bf16", "bf16", m, N, K, "nt", numerics=Numerics(prologue_b=text))
    plan = gpu.choose(shape, target)
    return {"plan": str(plan), "predicted": gpu.cost(shape, plan, target).seconds}


def by_weights(on: TorchDevice, kind: str, m: int) -> study.Case:
    l2, bf16 = on.on.target.l2, torch.bfloat16
    first = weights(kind, on.name)
    every = [first, *(weights(kind, on.name) for _ in range(sets(first[2], l2) - 1))]
    a = torch.randn(m, K, device=on.name).to(bf16)
    wide = [torch.randn(N, K, device=on.name).to(bf16) for _ in range(sets(2*N*K, l2))]
    ours = partial(tw.matmul, a, trans_b=True, out_dtype="bf16")
    sides: dict[str, list[study.Launch]] = {
        "tilewright": [partial(ours, w) for w, _, _ in every], "bf16": [partial(ours, w) for w in wide],
        "cublas": [partial(torch.mm, a, w.T) for w in wide],
        "eager": [lambda numbers=numbers: a @ numbers(N, torch.float32).to(bf16).T for _, numbers, _ in every]}

    def wrong(side: str, found: Tensor) -> str:
        if side in ("bf16", "cublas"):
            return ""
        b = first[1](CHECKED, torch.float64).T
        error = ((found[:, :CHECKED].double() - a.double() @ b).abs() / (a.double().abs() @ b.abs())).max().item()
        return f"error {error:.1e}" if not error < 2.0**-7 else ""
    about = {"weights": kind, "size": [m, N, K], "bytes": first[2], **predicted(kind, m, on.on.target)}
    given = {"weights": kind, "a": a, "every": [w for w, _, _ in every]}
    return study.Case(about, sides, wrong, given, bytes=first[2])


def activation(on: TorchDevice, n: int = 4096) -> study.Case:
    every = [[torch.randn(n, n, device=on.name).bfloat16() for _ in range(2)]
             for _ in range(sets(6*n*n, on.on.target.l2))]
    a, b = every[0]
    wanted = F.silu(a[:64].double()) @ b.double().T
    problem = tw.Gemm(n, n, n, "bf16", out="bf16", layout="nt", prologue_a=tw.prologue(tw.silu, "bf16", "bf16"))
    ours = partial(tw.matmul, trans_b=True, out_dtype="bf16")
    return study.Case(
        {"weights": "silu", "size": [n]*3, "plan": str(tw.plan(problem, on.on.target))},
        {"tilewright": study.partials(partial(ours, prologue_a=tw.silu), every), "bf16": study.partials(ours, every),
         "eager": study.partials(lambda a, b: F.silu(a) @ b.T, every)},
        lambda side, found: "" if side == "bf16" else study.near(found[:64], wanted, 2.0**-6),
        {"weights": "silu", "a": None, "every": every})


def cases(on: TorchDevice, rows: list[int]) -> Iterator[study.Case]:
    torch.manual_seed(0)
    for kind in KINDS:
        for m in rows:
            yield by_weights(on, kind, m)
    yield activation(on)


if __name__ == "__main__":
    options = study.parsed(
        __doc__ or "", "prologues.json",
        lambda p: [p.add_argument(name, type=lambda text: [int(m) for m in text.split(",")], default=default)
                   for name, default in (("--rows", [1, 4, 16]), ("--size", [28672, 8192]))])
    N, K = options.size
    device = TorchDevice()
    sys.exit(study.main("prologues", cases(device, options.rows), options, device))
