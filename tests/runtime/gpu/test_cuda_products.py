"""Products of torch's tensors by the planner's kernels on a real GPU. Without one, every test here is skipped."""

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

BLOCK = 128
SHAPES = [(1, 257, 300), (129, 257, 511), (300, 528, 592), (64, 2112, 1536)]
PAIRS = [("float8_e4m3fn", "float8_e4m3fn"), ("float8_e4m3fn", "float8_e5m2"), ("int8", "int8"), ("uint8", "int8"),
         ("bfloat16", "bfloat16"), ("float16", "float16")]
LOST = 2.0**-13         # of |A| |B|: by the sums that tensor cores have of 128 steps of k of fp8


def numbers(*shape, kind, whole=False):
    if kind in ("int8", "uint8"):
        return torch.randint(0 if kind == "uint8" else -99, 100, shape, device="cuda").to(getattr(torch, kind))
    x = torch.randint(-3, 4, shape, device="cuda").float() if whole else torch.randn(shape, device="cuda")
    return x.to(getattr(torch, kind))


def blocks(n):
    return -(-n // BLOCK)


def unaligned(x):
    """The same, one element off, in wider rows."""
    rows, columns = x.shape
    wide = torch.zeros((rows, columns + 3), device="cuda", dtype=x.dtype)
    wide[:, 1:-2] = x
    return wide[:, 1:-2]


def kinds_of_scales(m, n, k):
    """The shapes of scale_a and scale_b."""
    yield (m, 1), (1, n)
    yield (1, 1), (1, n)
    if k > BLOCK:
        yield (m, blocks(k)), (blocks(k), n)
        if n > BLOCK:
            yield (m, blocks(k)), (blocks(k), blocks(n))
            yield (m, 1), (blocks(k), blocks(n))


def spread(scale, rows, columns):
    """A scale for each element: of blocks where there are fewer than elements, and more than one."""
    for axis, length in enumerate((rows, columns)):
        if scale.shape[axis] not in (1, length):
            scale = scale.repeat_interleave(BLOCK, axis).narrow(axis, 0, length)
    return scale.double()


def check(a, b, scale_a, scale_b, found, alpha=1.0, fp8=False):
    """Within the bound of docs/formats.md of the definition in float64."""
    (m, k), n = a.shape, b.shape[1]
    x, y = a.double() * spread(scale_a, m, k), b.double() * spread(scale_b, k, n)
    exact, size = alpha * (x @ y), alpha * (x.abs() @ y.abs())
    rounding = torch.finfo(found.dtype).eps * exact.abs()
    bound = ((k + 4 * blocks(k) + 4) * 2.0**-24 + fp8 * LOST) * size + rounding
    wrong = (found.double() - exact).abs() > bound
    assert not wrong.any(), f"{int(wrong.sum())} of {wrong.numel()}, first at {wrong.nonzero()[0].tolist()}"


@pytest.mark.parametrize(("kind_a", "kind_b"), PAIRS)
def test_scales_of_every_kind(kind_a, kind_b):
    for m, n, k in SHAPES:
        a, b = numbers(m, k, kind=kind_a), numbers(n, k, kind=kind_b).t()
        for of_a, of_b in kinds_of_scales(m, n, k):
            scale_a, scale_b = torch.rand(of_a, device="cuda") + 0.1, torch.rand(of_b, device="cuda") + 0.1
            views = (a, b), (a.t().contiguous().t(), b.contiguous()), (unaligned(a), unaligned(b))
            for x, y in views if m == 300 else views[:1]:
                found = tw.matmul(x, y, scale_a=scale_a, scale_b=scale_b)
                check(x, y, scale_a, scale_b, found, fp8=kind_a.startswith("float8"))
            found = tw.matmul(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype="bf16", alpha=0.5)
            check(a, b, scale_a, scale_b, found, 0.5, kind_a.startswith("float8"))


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "int8", "bfloat16"])
def test_whole_numbers_by_powers_of_two_are_exact(kind):
    m, n, k = 257, 392, 1040
    a, b = numbers(3, m, k, kind=kind, whole=True), numbers(n, k, kind=kind, whole=True).t()
    a, b = (x.clamp(-3, 3) if kind == "int8" else x for x in (a, b))
    for of_a, of_b in kinds_of_scales(m, n, k):
        scale_a, scale_b = (2.0 ** torch.randint(-2, 3, shape, device="cuda").float() for shape in (of_a, of_b))
        x, y = a.double() * spread(scale_a, m, k), b.double() * spread(scale_b, k, n)
        found = tw.matmul(a, b.expand(3, k, n), scale_a=scale_a.expand(3, *of_a), scale_b=scale_b.expand(3, *of_b))
        assert (found == x @ y).all()
        out = torch.full((m, n), 2.0, device="cuda")
        tw.gemm(2.0, a[0], b, -1.0, out, scale_a=scale_a, scale_b=scale_b)
        assert (out == 2 * (x[0] @ y) - 2).all()


def test_one_scale_anywhere():
    """A number, an array of one element on the GPU, NumPy's."""
    for kind in ("float8_e4m3fn", "int8", "bfloat16"):
        a, b = numbers(100, 192, kind=kind, whole=True), numbers(80, 192, kind=kind, whole=True).t()
        wanted = 0.5 * 0.25 * (a.double() @ b.double())
        for half in (0.5, torch.tensor(0.5, device="cuda"), torch.full((1, 1), 0.5, device="cuda"),
                     torch.full((1, 1), 0.5).numpy()):
            assert (tw.matmul(a, b, scale_a=half, scale_b=torch.full((1, 80), 0.25, device="cuda")) == wanted).all()


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

FORMATS = ["mxfp8", "mxfp8_e5m2", "mxfp6", "mxfp6_e3m2", "mxfp4", "nvfp4"]


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


@pytest.mark.parametrize("kind", FORMATS)
def test_block_scaled_products(kind):
    for m, n, k in ((1, 40, 96), (70, 65, 333), (300, 528, 592), (129, 1000, 1024)):
        for other in {kind, "mxfp4"}:
            a, b = blocked(m, k, kind=kind), blocked(k, n, axis=-2, kind=other, seed=1)
            x, y = there(a), there(b)
            within(tw.matmul(x, y), exact(a), exact(b))
            within(tw.matmul(x, y, out_dtype="bf16", alpha=0.5), exact(a), exact(b), 0.5)
            within(tw.matmul(y.T, x.T), exact(b).T, exact(a).T)
            within(tw.matmul(y, x, trans_a=True, trans_b=True), exact(b).T, exact(a).T)
    for plan in ("wgmma 128x128x64 stages=4 warpgroups=2 store=lanes decoded=bf16",
                 "mma 64x64x64 warp=32x32 stages=2 vector=8 vector_c=1 decoded=bf16"):
        if not NvidiaPlan.parse(plan).violations(tw.Gemm(m, n, k, kind), cuda.target()):
            within(tw.matmul(x, y, plan=plan), exact(a), exact(b))


def test_block_scaled_batches_and_an_operand_of_another_kind():
    a, b, one = blocked(3, 20, 64), blocked(3, 64, 24, axis=-2, kind="nvfp4", seed=1), blocked(64, 24, axis=-2, seed=2)
    within(tw.matmul(there(a), there(b)), exact(a), exact(b))
    within(tw.matmul(there(a), there(one)), exact(a), exact(one))
    for kind in ("bfloat16", "float32", "float8_e4m3fn"):
        x = numbers(20, 64, kind=kind)
        for y in (one, b[0], blocked(64, 24, axis=-2, kind="mxfp6")):
            within(tw.matmul(x, there(y)), x.double(), exact(y))
        within(tw.matmul(there(a), x.t()), exact(a), x.t().double())
    out = torch.ones((20, 24), device="cuda")
    tw.gemm(2.0, there(a[0]), there(one), 3.0, out)
    within(out - 3, exact(a[0]), exact(one), 2.0)


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
        z = numbers(k, n, kind="float32")
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
