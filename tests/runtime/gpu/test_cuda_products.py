"""What is particular to products of torch's tensors on a real GPU: their error beside torch's, passes, scales as torch
has them. Without one, every test here is skipped. Values of all else: `python -m tests.fuzz.device`, whose kind `table`
takes the rows of tests/products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.plans.nvidia import NvidiaPlan
from tilewright.runtime.cuda import module as cuda

if not cuda.available():
    pytest.skip(f"needs a CUDA device: {cuda.why_not()}", allow_module_level=True)

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)


# ---- passes


@pytest.mark.parametrize(("plan", "kind"), [
    ("mma 128x128x32 warp=64x32 stages=3 vector=8 vector_c=1 terms=bf16_x6", "f32"),
    ("mma 128x128x16 warp=64x32 stages=3 vector=4 vector_c=1 tail terms=tf32_x3", "f32"),
    ("wgmma 128x128x32 stages=4 warpgroups=2 cluster=2x1 promote=64 terms=bf16_x6", "f32"),
    ("wgmma 128x128x16 stages=4 warpgroups=2 promote=32 terms=tf32_x3", "f32"),
    ("mma 128x128x64 warp=64x32 stages=3 vector=8 vector_c=1 copied=ab", "bf16"),
    ("wgmma 128x128x128 stages=4 warpgroups=2 copied=ab", "i8"),
])
def test_products_with_passes(plan, kind):
    """Of whole numbers exactly, of operands anywhere; f32 within its bound, and no farther from float64 than torch's
    where signs are random; inf as native f32."""
    problem = tw.Gemm(512, 512, 512, kind, out="i32" if kind == "i8" else "f32")
    if NvidiaPlan.parse(plan).violations(problem, cuda.target()):
        pytest.skip(f"this GPU has no {plan}")
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "i8": torch.int8}[kind]
    a = torch.randint(-99, 100, (3, 301, 1030), device="cuda").to(dtype)[..., 1:1000]
    b = torch.randint(-1, 2, (3, 999, 403), device="cuda").to(dtype)
    for x, y in ((a[0], b[0]), (a, b), (a[0], b[0, :, ::2].mT.contiguous().mT)):
        wanted = x.double() @ y.double()
        found = tw.matmul(x, y, plan=plan, out_dtype="i32" if kind == "i8" else "f32")
        assert (found == wanted).all()
    if kind != "f32":
        return
    for make in (torch.rand, torch.randn):
        x, y = (make(size, device="cuda") for size in ((500, 4000), (4000, 600)))
        wanted = x.double() @ y.double()
        ours, theirs = ((c.double() - wanted).abs() for c in (tw.matmul(x, y, plan=plan), x @ y))
        assert (ours <= (6 / 32 * 4000 + 19) * 2.0**-24 * (x.abs().double() @ y.abs().double())).all()
        if make is torch.randn:             # what instructions cut off adds up where all numbers are positive
            assert ours.square().mean() <= theirs.square().mean()
    x[3, 5] = torch.inf
    assert torch.equal(tw.matmul(x, y, plan=plan)[3], x[3].double().matmul(y.double()).float())


# ---- block-scaled formats

def there(q):
    """A Quantized with its arrays on the GPU."""
    arrays = (torch.from_numpy(x).cuda() for x in (q.elements, q.scales))
    return replace(q, **dict(zip(("elements", "scales"), arrays)))


def exact(q):
    return torch.from_numpy(tw.dequantize(q, "f64")).cuda()


def blocked(*shape, axis=-1, kind="mxfp8", seed=0):
    return tw.quantize(np.random.default_rng(seed).standard_normal(shape), kind, axis=axis)


def within(found, x, y, alpha=1.0):
    """Within the bound of docs/formats.md of float64."""
    wanted, size, k = alpha * (x @ y), alpha * (x.abs() @ y.abs()), x.shape[-1]
    bound = (k + 3) * 2.0**-24 * size + torch.finfo(found.dtype).eps * wanted.abs() + k * 2.0**-149
    wrong = (found.double() - wanted).abs() > bound
    assert not wrong.any(), f"{int(wrong.sum())} of {wrong.numel()}, first at {wrong.nonzero()[0].tolist()}"


def test_elements_of_torchs_with_their_scales():
    m, n, k = 48, 80, 192
    for kind, element in (("mxfp8", torch.float8_e4m3fn), ("mxfp8_e5m2", torch.float8_e5m2)):
        a, b = blocked(m, k, kind=kind), blocked(k, n, axis=-2, kind=kind, seed=1)
        x, y = (there(q).elements.view(element) for q in (a, b))
        of_a, of_b = (there(q).scales for q in (a, b))
        for pattern in (torch.uint8, torch.float8_e8m0fnu):
            for other in (y.t(), y.t().contiguous()):
                found = tw.matmul(x, other, scale_a=of_a.view(pattern), scale_b=of_b.view(pattern).t())
                within(found, exact(a), exact(b))
        within(tw.matmul(x, y, scale_a=of_a, scale_b=of_b, trans_b=True), exact(a), exact(b))
        z = torch.randn(k, n, device="cuda")
        within(tw.matmul(x, z, scale_a=a.scales), exact(a), z.double())
    pairs = getattr(torch, "float4_e2m1fn_x2", None)
    for kind, scale in (("mxfp4", torch.float8_e8m0fnu), ("nvfp4", torch.float8_e4m3fn)) if pairs else ():
        a, b = blocked(m, k, kind=kind), blocked(k, n, axis=-2, kind=kind, seed=1)
        x, y = (there(q).elements.view(pairs) for q in (a, b))
        of_a, of_b = (there(q).scales.view(scale) for q in (a, b))
        factor = a.tensor_scale * b.tensor_scale
        within(tw.matmul(x, y.t(), scale_a=of_a, scale_b=of_b.t(), alpha=factor), exact(a), exact(b))


@pytest.mark.parametrize(("kind", "pattern"), [("mxfp8", 0), ("mxfp8", 2), ("mxfp8", 3), ("mxfp8_e5m2", 9),
                                               ("mxfp8_e5m2", 10), ("mxfp6", 0), ("mxfp4", 0)])
def test_scales_at_the_end_of_the_range(kind, pattern):
    """Of numbers whose digits bf16 lacks, and of such that are its subnormals: all digits count."""
    a, b = blocked(70, 160, kind=kind), blocked(160, 72, axis=-2, kind=kind, seed=1)
    a.elements[5:40] &= 0x87 if kind.startswith("mxfp8") else 0xFF          # which leaves the smallest
    a.scales[5:40, 1:3], b.scales[...] = pattern, 200
    within(tw.matmul(there(a), there(b)), exact(a), exact(b))
    a.scales[...] = pattern
    within(tw.matmul(there(a), there(b)), exact(a), exact(b))


def test_nan_and_inf():
    a, b = blocked(40, 96, kind="mxfp8_e5m2"), blocked(96, 48, axis=-2, kind="mxfp8", seed=1)
    a.scales[3, 1] = 255
    a.elements[7, 5] = 0x7C
    b.elements[2, 40] = 0x7F
    a.scales[11, 2] = 254
    wanted = (exact(a).float().double() @ exact(b)).float()
    found = tw.matmul(there(a), there(b))
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found.isinf(), wanted.isinf())
    assert found.isnan().any()
    assert found.isinf().any()


def test_quantized_of_the_host_and_bound():
    a, b = blocked(40, 100, kind="mxfp6"), blocked(100, 50, axis=-2, kind="nvfp4", seed=1)
    wanted = exact(a) @ exact(b)
    found = tw.matmul(a, b, plan="mma 64x64x64 warp=32x32 stages=2 vector=8 vector_c=1 decoded=bf16")
    assert (torch.from_numpy(found).cuda() - wanted).abs().max() < 1e-3
    bound = tw.compile(tw.Gemm(40, 50, 100, "mxfp6", "nvfp4"), cuda.target()).bind(there(a), there(b))
    found = bound()
    within(found, exact(a), exact(b))
