"""Launches one family of GPU kernels on small awkward shapes: what compute-sanitizer watches.

    compute-sanitizer --tool racecheck python -m tests.fuzz.sanitized FAMILY

FAMILY is ladder (its steps), plans (kernels by plans that small products are not given by themselves), decoded (weights
of few bits by such plans, and rows that fp8 layers quantise, of torch's tensors), users (a softmax in blocks, tunable
steps), or a kind of call of tests/fuzz/device.py, of which small random ones are made.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

import tilewright as tw
from tests.fuzz import device
from tilewright import formats
from tilewright.runtime.cuda import module

CASES = 12              # random calls of a kind
SHAPES = (1, 1, 1), (130, 140, 70), (257, 129, 33), (132, 140, 68), (144, 272, 80), (128, 256, 64)
SIMT = "simt 64x64x8 warp=32x32 thread=4x8"
TMA = "warpgroups=2 vector_c=2 store=tma"
PLANS = {
    "f32": ("simt 128x128x8 warp=64x64 thread=8x16 stages=3", f"{SIMT} stages=3", f"{SIMT} stages=2 copy=registers",
            "simt 64x64x16 warp=32x32 thread=4x8 stages=3 slices=2", f"{SIMT} stages=3 split_k=3",
            f"{SIMT} stages=2 copy=registers split_k=2", f"{SIMT} stages=2 copy=registers tail"),
    "f64": (*(f"dmma 64x64x16 warp=32x32 {how}" for how in ("stages=3", "stages=2", "stages=3 split_k=3")),
            *(f"dmma {tile} stages=3 vector=2" for tile in (
                "64x96x16 warp=32x48", "96x96x16 warp=48x48", "64x48x16 warp=16x48", "32x64x32 warp=16x32",
                "32x32x32 warp=16x16")), "dmma 64x96x16 warp=32x48 stages=3 vector=2 tail"),
    "bf16": ("mma 128x128x32 warp=64x32 stages=3 split_k=3 vector=8",
             "wgmma 128x128x64 stages=3 warpgroups=2", *(f"wgmma 128x128x64 stages=3 warpgroups=2 cluster={c}"
                                                         for c in ("2x1", "1x2")),
             f"wgmma 128x128x64 stages=4 cluster=2x1 {TMA}", f"wgmma 128x128x64 stages=4 {TMA} pingpong cluster=2x1",
             f"wgmma 128x256x64 stages=3 {TMA}", "wgmma 64x64x64 stages=3 warpgroups=2 pingpong vector_c=2",
             "wgmma 64x16x64 stages=4 warpgroups=1 cluster=1x4 vector_c=2 store=tma",
             "wgmma 40x64x64 stages=4 warpgroups=1 swap vector_c=1 store=tma",
             "wgmma 72x128x64 stages=4 warpgroups=2 swap vector_c=1 store=tma"),
    "i8": ("wgmma 128x128x128 stages=3 warpgroups=2",), "e4m3fn": ("wgmma 128x128x128 stages=3 warpgroups=2",),
}
OUT = {"f64": "f64", "i8": "i32", "bf16": "bf16"}


def operands(shape: tuple[int, int, int], format: str, layout: str) -> tuple[Any, Any, Any]:
    m, n, k = shape
    rng, dtype = np.random.default_rng(m + n + k), formats.get(format).dtype
    a, b = (rng.integers(-3, 4, size).astype(dtype) for size in ((m, k), (k, n)))
    wanted = a.astype("f8") @ b.astype("f8")
    return *(np.asfortranarray(x) if letter == "t" else x for x, letter in zip((a, b), layout)), wanted


def gelu(acc: Any, bias: Any) -> Any:
    return tw.relu(acc + bias), acc


def plans() -> Iterator[str]:
    """Through tilewright.compile, also with an epilogue of two results."""
    for format, texts in PLANS.items():
        fused = tw.epilogue(gelu, bias=f"{OUT[format]} row") if format in OUT and format != "i8" else None
        for layout in ("nn", "nt", "tn", "tt") if format not in ("i8", "e4m3fn") else ("nt",):
            for shape in SHAPES:
                for text in (None, *texts):
                    for epilogue in (None, fused) if layout == "nt" and fused else (None,):
                        out = OUT.get(format, "f32")
                        problem = tw.Gemm(*shape, format, format, out, layout, epilogue=epilogue or "")
                        try:
                            kernel: Any = tw.compile(problem, module.target(), text)
                        except ValueError as unfit:
                            print(f"{problem} {text}: left out: {unfit}")
                            continue
                        a, b, wanted = operands(shape, format, layout)
                        bias = np.arange(shape[1]) % 5
                        given = {"operands": {"bias": bias.astype(a.dtype)}} if epilogue else {}
                        try:
                            found = kernel(a, b, **given)
                        except ValueError as unfit:             # tensor maps that these operands do not allow
                            print(f"{problem} {kernel.plan}: left out: {unfit}")
                            continue
                        exact = (np.maximum(wanted + bias, 0), wanted) if epilogue else (wanted,)
                        stored = formats.get(out).dtype
                        right = all((np.asarray(x, "f8") == y.astype(stored).astype("f8")).all()
                                    for x, y in zip(found if epilogue else (found,), exact))
                        yield f"{problem} {kernel.plan}: {'' if right else 'wrong'}"


def there(x: Any) -> Any:
    from tilewright.runtime.gpu.arrays import CUDA, DeviceArray

    found = DeviceArray(CUDA, module.device(), x.shape, x.dtype)
    found.memory = module.Memory.upload(module.device(), x)
    return found


def back(x: Any) -> Any:
    found = np.empty(x.shape, x.dtype)
    module.synchronize(module.device(), x.stream)
    x.memory.download(found)
    return found


def ladder() -> Iterator[str]:
    """In f32, and on tensor cores in bf16 for B^T."""
    from tilewright.lab.ladder import run_nvidia
    from tilewright.lab.ladder.steps import GPU_STEPS, TENSOR_STEPS

    stream = module.Stream()
    for name in (*GPU_STEPS, *TENSOR_STEPS):
        tensor = name in TENSOR_STEPS
        for m, n, k in ((1, 2, 8) if tensor else (1, 1, 1), (130, 140, 72 if tensor else 70), (256, 128, 64)):
            a, b, wanted = operands((m, n, k), "bf16" if tensor else "f32", "nn")
            b = np.ascontiguousarray(b.T) if tensor else b
            x, y, z = map(there, (a, b, np.zeros((m, n), a.dtype)))
            try:
                run_nvidia.prepare(name, m, n, k, x.memory.pointer, k, y.memory.pointer, k if tensor else n,
                                   z.memory.pointer, n)(stream.handle)
            except ValueError as unfit:
                print(f"{name} {m}x{n}x{k}: left out: {unfit}")
                continue
            stream.synchronize()
            yield f"{name} {m}x{n}x{k}: {'' if (back(z) == wanted.astype(a.dtype)).all() else 'wrong'}"


def users() -> Iterator[str]:
    from tilewright.blocks import Program
    from tilewright.ir import f32, i32, ptr
    from tilewright.lab.ladder.tunable import GPU
    from tilewright.runtime.run import run

    chip: Any = module.target()
    for name, sizes in (("registers", {"V": 4, "BLOCK": 8}), ("shared", {"L": 64, "S": 16, "V": 4}),
                        ("coalesced", {"L": 32, "S": 8, "V": 4})):
        for m, n, k in ((128, 64, 64), (130, 70, 33)):
            a, b, wanted = operands((m, n, k), "f32", "nn")
            x, y, z = map(there, (a, b, np.zeros((m, n), "f4")))
            step = GPU[name]
            run(step.function(chip, **sizes), m, n, k, 1.0, x, k, y, n, 0.0, z, n,
                grid=step.grid(chip, sizes, {"m": m, "n": n, "k": k}))
            yield f"{name} {m}x{n}x{k}: {'' if (back(z) == wanted).all() else 'wrong'}"
    p = Program("softmax", chip, num_warps=4, y_ptr=ptr(f32), x_ptr=ptr(f32), n=i32)
    y_ptr, x_ptr, extent = p.args
    row, cols = p.program_id(0), p.arange(0, 1024)
    loaded = p.load(x_ptr + row*extent + cols, mask=cols < extent, other=-np.inf)
    powers = p.exp(loaded - p.max(loaded, axis=0))
    p.store(y_ptr + row*extent + cols, powers / p.sum(powers, axis=0), mask=cols < extent)
    for rows, columns in ((3, 1), (7, 100), (33, 1000)):
        data = np.random.default_rng(0).standard_normal((rows, columns)).astype("f4")
        result, wide = there(np.zeros_like(data)), np.exp(data.astype("f8"))
        run(p.function, result, there(data), columns, grid=(rows,))
        right = np.allclose(back(result), wide / wide.sum(1, keepdims=True), rtol=1e-5, atol=0)
        yield f"softmax {rows}x{columns}: {'' if right else 'wrong'}"


def decoded() -> Iterator[str]:
    import torch

    from tilewright.torch import narrow, quantization, quantize_rows
    pair = "warpgroups=2 swap vector_c=1"
    for format, group in (("i8", None), ("i4", 128), ("u4", 64), ("mxfp4", None), ("nvfp4", None), ("mxfp8", None)):
        for m, n, k in ((13, 256, 512), (130, 320, 384)):
            x, w = (torch.randn(rows, k, device="cuda").bfloat16() for rows in (m, n))
            q = narrow.stored(w, format, group, format == "u4")
            parts = q["elements"], q["scales"], q["zeros"], None, format, q["group"], q["tensor_scale"], k
            wanted = x.double() @ quantization.dequantize(*parts).double().t()
            for plan in (f"16x128x128 stages=4 {pair}", f"128x128x64 stages=4 {pair} store=tma",
                         f"64x192x64 stages=4 {pair.replace('2', '3')}", f"16x128x128 stages=4 {pair} promote=128",
                         f"128x128x64 stages=4 {pair} cluster=1x2 store=tma tail"):
                try:
                    found = tw.matmul(x, narrow.as_weight(*parts), trans_b=True, out_dtype="bf16", plan=f"wgmma {plan}")
                except ValueError as unfit:
                    print(f"{format} {m}x{n}x{k} {plan}: left out: {unfit}")
                    continue
                near = (found.double() - wanted).norm() <= 6e-3 * wanted.norm()
                yield f"{format} {m}x{n}x{k} {plan}: {'' if near else 'wrong'}"
    for m, k in ((5, 1024), (70, 2048), (9, 4096), (3, 100), (130, 14336)):
        for dtype in (torch.bfloat16, torch.float32, torch.float16):
            x = torch.randn(m, k, device="cuda", dtype=dtype)
            same = all(map(torch.equal, (y.float() for y in quantize_rows(x)),
                           (y.float() for y in quantization.rows_in_fp8(x.float()))))
            yield f"rows of {m}x{k} {dtype}: {'' if same else 'wrong'}"


def calls(kind: str) -> Iterator[str]:
    for seed in range(CASES):
        case = device.small(kind, seed)
        device.check(kind, case)
        yield f"{kind} {case}: "


def families() -> tuple[str, ...]:
    return ("ladder", "plans", "decoded", "users", *(name for name, kind in device.kinds().items() if kind.cheap))


def main(name: str) -> int:
    own = {"ladder": ladder, "plans": plans, "decoded": decoded, "users": users}
    count, wrong = 0, 0
    for said in own[name]() if name in own else calls(name):
        count += 1
        if not said.endswith(": "):
            wrong += 1
            print(said)
    print(f"{name}: {count} launches, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
