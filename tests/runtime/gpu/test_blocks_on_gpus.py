"""Block-scaled operands on NVIDIA's GPUs, through the fake driver and the simulator: within the bound of float64."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tests.doubles.fake_arrays import Tensor
from tests.helpers.gpus import aligned, machine
from tests.helpers.graphs import capture
from tilewright import formats
from tilewright.runtime.cuda import module
from tilewright.runtime.gpu.recipe import Recipe

pytestmark = pytest.mark.sampled

E8M0 = formats.get("e8m0").dtype


class Pairs(Tensor):
    """A tensor of float4_e2m1fn_x2."""

    dtype = "torch.float4_e2m1fn_x2"

    def view(self, dtype):
        return Tensor(self.host)


def blocked(*shape, kind="mxfp8", axis=-1, seed=0):
    return tw.quantize(np.random.default_rng(seed).standard_normal(shape), kind, axis=axis)


def there(on, q):
    """With its arrays on the GPU."""
    return replace(q, elements=on.array(aligned(q.elements)), scales=on.array(aligned(q.scales)))


def check(on, got, a, b, alpha=1.0):
    """Of Quantized operands, and others in float64."""
    on.finish()
    a, b = (tw.dequantize(x, "f64") if isinstance(x, tw.Quantized) else x.astype(np.float64) for x in (a, b))
    wanted, size, found = alpha * (a @ b), alpha * (abs(a) @ abs(b)), got.host
    rounding = 0 if found.dtype == np.float32 else 2.0**-8
    assert found.shape == wanted.shape
    bound = (a.shape[-1] + 3) * 2.0**-24 * size + rounding * abs(wanted)
    assert (abs(found.astype(np.float64) - wanted) <= bound).all()


def test_transposes_vectors_views_and_stacks(on):
    a, b = blocked(3, 13, 96, kind="mxfp6"), blocked(3, 96, 16, axis=-2, kind="mxfp4", seed=1)
    x, y = there(on, a), there(on, b)
    check(on, tw.matmul(x, y), a, b)
    assert len(on.machine.launches) == 3                # one for each step, whatever the stack
    check(on, tw.matmul(x, y[0]), a, b[0])
    check(on, tw.matmul(x[1, ::2, 32:], y[2, 32:]), a[1, ::2, 32:], b[2, 32:])
    check(on, tw.matmul(y[0], x[0], trans_a=True, trans_b=True), b[0].T, a[0].T)
    check(on, tw.matmul(x[0, 3], y[1]), a[0, 3], b[1])
    check(on, tw.matmul(x[0], y[1, :, 5]), a[0], b[1, :, 5])
    out = aligned(np.ones((16, 13), np.float32))
    tw.gemm(2, there(on, b[0].T), there(on, a[0].T), 3, on.array(out))
    on.finish()
    assert abs(out - 3 - 2 * tw.dequantize(b[0], "f64").T @ tw.dequantize(a[0], "f64").T).max() < 1e-4
    nothing = tw.matmul(there(on, blocked(13, 0, kind="mxfp6")), there(on, blocked(0, 16, kind="mxfp6", axis=-2)))
    on.finish()
    assert (nothing.host == 0).all()


@pytest.mark.parametrize("chip", ["sm_90a", "gfx950"])
def test_elements_at_any_address(monkeypatch, chip):
    """1, 2 and 4 bytes past a multiple of 8, by matmul and by a compiled kernel."""
    on, a, b = machine(monkeypatch, chip), blocked(9, 40), blocked(24, 40, seed=1)

    def moved(q, past):
        memory = aligned(np.zeros(q.elements.size + past, np.uint8))[past:].reshape(q.elements.shape)
        memory[...] = q.elements
        return replace(q, elements=on.array(memory), scales=on.array(aligned(q.scales)))
    for past in (1, 2, 4):
        check(on, tw.matmul(moved(a, past), moved(b, 4), trans_b=True), a, b.T)
    if chip == "sm_90a":
        kernel = tw.compile(tw.Gemm(9, 24, 40, "mxfp8", out="f32", layout="nt"), chip)
        check(on, kernel(moved(a, 4), moved(b, 1).T), a, b.T)


def test_elements_with_scales_beside_them(on):
    """As torch has them: bytes of e4m3fn, e5m2, or pairs of e2m1, in any layout that keeps pairs together."""
    a, b = blocked(13, 70, kind="mxfp8_e5m2"), blocked(70, 16, axis=-2, kind="mxfp8", seed=1)
    x, y = (aligned(q.unpacked()) for q in (a, b))
    of_a, of_b = aligned(a.scales), aligned(b.scales)
    check(on, tw.matmul(on.array(x), on.array(y), scale_a=on.array(of_a), scale_b=on.array(of_b.view(E8M0).T)), a, b)
    got = tw.matmul(on.array(aligned(x.T)), on.array(y), scale_a=of_a.T, scale_b=on.array(of_b.T), trans_a=True)
    check(on, got, a, b)
    for kind, scale in (("mxfp4", E8M0), ("nvfp4", formats.get("e4m3fn").dtype)):
        a, b = blocked(13, 64, kind=kind), blocked(64, 16, axis=-2, kind=kind, seed=1)
        x, y = (Pairs(aligned(q.elements)) for q in (a, b))
        of_a, of_b = (on.array(aligned(q.scales.view(scale))) for q in (a, b))
        of_b = on.array(of_b.host.T)
        got = tw.matmul(x, Pairs(y.host.T), scale_a=of_a, scale_b=of_b, alpha=a.tensor_scale * b.tensor_scale)
        check(on, got, a, b)


@pytest.mark.parametrize("kind", ["mxfp8", "mxfp8_e5m2"])
def test_numbers_that_bf16_lacks(on, kind):
    """The product in f32 is computed behind, without the host's knowledge."""
    a, b = blocked(20, 70, kind=kind), blocked(70, 24, axis=-2, kind=kind, seed=1)
    a.elements[7] &= 0x83                               # which leaves the smallest
    a.scales[7], b.scales[...] = 0, 200
    kernel = tw.compile(tw.Gemm(20, 24, 70, kind), "sm_90a")
    assert [each.kernel.functions[0].name.partition("_")[0] for each in kernel.launches] == [
        "decode", "decode", kernel.plan.algorithm, "decode", "decode", "simt"]
    for other in (b, b[:, 3:4]):
        check(on, tw.matmul(there(on, a), there(on, other)), a, other)
    lost = tw.dequantize(a, "f64")[7]
    assert (lost != lost.astype(np.float32).astype(formats.get("bf16").dtype).astype(np.float64)).any()


def test_nan_and_inf(on):
    a, b = blocked(8, 64, kind="mxfp8_e5m2"), blocked(64, 16, axis=-2, seed=1)
    a.scales[3, 1], a.elements[5, 7], b.elements[2, 40] = 255, 0x7C, 0x7F
    got = tw.matmul(there(on, a), there(on, b))
    on.finish()
    with np.errstate(all="ignore"):
        wanted = tw.dequantize(a) @ tw.dequantize(b)
    np.testing.assert_array_equal(np.isnan(got.host), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(got.host), np.isinf(wanted))


def test_bound_kernels_and_operands_of_the_host(on):
    a, b = blocked(2, 13, 64, kind="mxfp6"), blocked(2, 64, 16, axis=-2, kind="mxfp4", seed=1)
    kernel, wanted = tw.compile(tw.Gemm(13, 16, 64, "mxfp6", "mxfp4", batch=2), "sm_90a"), tw.matmul(a, b)
    for x, y in ((a, b), (there(on, a), there(on, b))):
        bound = kernel.bind(x, y)
        bound()
        on.finish()
        found = bound.out.host if hasattr(bound.out, "host") else kernel(x, y)
        assert abs(found - wanted).max() < 1e-4
    kernel = tw.compile(tw.Gemm(13, 16, 64, "nvfp4"), "sm_90a")
    x, y = blocked(13, 64, kind="nvfp4"), blocked(64, 16, kind="nvfp4", axis=-2)
    for found in (tw.matmul(x, y, plan=kernel.plan, alpha=2), kernel(x, y, alpha=2)):
        assert abs(found - tw.matmul(x, y, alpha=2)).max() < 1e-4


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("kind", ["mxfp8", "mxfp4", "nvfp4", "bf16_bf16_f32_x6"])
def test_batches_of_small_matrices(kind, target):
    """For numbers that terms or bf16 cannot hold another product runs in their place, and only then."""
    rng, terms = np.random.default_rng(5), kind.startswith("bf16")
    matrices = [rng.standard_normal(shape, np.float32) for shape in ((3, 20, 64), (3, 64, 24))]
    problem = tw.Gemm(20, 24, 64, "f32" if terms else kind, batch=3, layout="nt")
    kernel = tw.compile(problem, target, algorithm=kind if terms else None)
    if terms:
        a, b = matrices[0], np.ascontiguousarray(matrices[1].swapaxes(1, 2)).swapaxes(1, 2)
        wanted = a.astype(float) @ b
    else:
        a, b = (tw.quantize(x, kind, axis=axis) for x, axis in zip(matrices, (-1, -2)))
        wanted = tw.dequantize(a, "f64") @ tw.dequantize(b, "f64")
    np.testing.assert_allclose(tw.simulate(kernel, a, b).result, wanted, rtol=1e-5, atol=1e-5)


def test_calls_like_earlier_ones_launch_at_once(monkeypatch):
    """Without the long way: passes, the product, and the one behind it for numbers that bf16 lacks, whose flag is clear
    before each call; by another alpha; and in a graph."""
    on, long_way = machine(monkeypatch, "sm_90a"), []
    whole = on.engine.matmul
    monkeypatch.setattr(on.engine, "matmul", lambda *args: long_way.append(args) or whole(*args))

    def call(seed, special=False, alpha=1.0):
        a, b = blocked(20, 70, seed=seed), blocked(70, 24, axis=-2, seed=seed + 1)
        if special:
            a.elements[7] &= 0x83
            a.scales[7], b.scales[...] = 0, 200
        check(on, tw.matmul(there(on, a), there(on, b), alpha=alpha), a, b, alpha)
        return len(on.machine.launches)
    launches = call(0)
    assert [call(2 + i, *how) for i, how in enumerate([(True, 3.0), ()])] == [
        launches * i for i in (2, 3)]
    assert len(long_way) == 1
    assert launches == 6
    stream, (a, b) = module.Stream(), (blocked(20, 70), blocked(70, 24, axis=-2, seed=1))
    x, y = there(on, a), there(on, b)
    on.finish()
    sys.modules["torch"].current = stream.handle
    with capture(stream) as graph:
        found = tw.matmul(x, y)
    graph.launch(stream)
    stream.synchronize()
    check(on, found, a, b)
    assert len(long_way) == 1


def test_complex_calls_like_earlier_ones_take_their_streams_workspace(monkeypatch):
    """At once where there is one; by way of the recipe on a new stream, and in a graph."""
    on, long_way, slow = machine(monkeypatch, "sm_90a"), [], []
    whole, run = on.engine.matmul, Recipe.run
    monkeypatch.setattr(on.engine, "matmul", lambda *args: long_way.append(args) or whole(*args))
    monkeypatch.setattr(Recipe, "run", lambda *args: slow.append(args) or run(*args))
    torch = sys.modules["torch"]

    def call(seed, alpha=1.0):
        rng = np.random.default_rng(seed)
        a, b = (aligned(rng.integers(-4, 5, (*s, 2)).astype(np.float32).view(np.complex64)[..., 0])
                for s in ((20, 300), (300, 24)))
        slow.clear()
        return tw.matmul(on.array(a), on.array(b), alpha=alpha), alpha * (a @ b)

    def right(seed, **how):
        found, wanted = call(seed, **how)
        on.finish()
        np.testing.assert_array_equal(found.host, wanted)
        return len(slow)
    assert right(0) == 1
    assert right(1) == 0
    stream = module.Stream()
    torch.current = stream.handle
    assert [right(i) for i in (3, 4)] == [1, 0]
    with capture(stream) as graph:
        found, wanted = call(5)
    assert len(slow) == 1
    for _ in range(2):
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(found.host, wanted)
    assert len(long_way) == 1
