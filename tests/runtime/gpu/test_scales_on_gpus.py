"""scale_a and scale_b of arrays on GPUs of both makers, on fake drivers: the numbers of matmul on a CPU."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.gemms import dtype_of
from tests.helpers.gpus import aligned, machine

pytestmark = pytest.mark.sampled


def whole(*shape, name="e4m3fn", seed=0):
    """Small whole numbers."""
    return aligned(np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype_of(name)))


def powers(*shape, seed=0, dtype=np.float32):
    """Scales with which sums of small whole numbers stay exact."""
    return aligned((2.0 ** np.random.default_rng(seed).integers(-3, 4, shape)).astype(dtype))


def check(on, a, b, scale_a, scale_b, there=("a", "b", "scale_a", "scale_b", "c", "out"), **options):
    """On the GPU as on the CPU, where everything is exact; those `there` are in its memory."""
    def placed(name, x):
        return on.array(x) if name in there and isinstance(x, np.ndarray) else x
    wanted = tw.matmul(a, b, scale_a=scale_a, scale_b=scale_b, **{
        name: x.copy() if name == "out" else x for name, x in options.items()})
    got = tw.matmul(placed("a", a), placed("b", b), scale_a=placed("scale_a", scale_a),
                    scale_b=placed("scale_b", scale_b), **{name: placed(name, x) for name, x in options.items()})
    on.finish()
    assert got.host.dtype == wanted.dtype
    np.testing.assert_array_equal(got.host.astype(np.float64), wanted.astype(np.float64))


def test_the_same_arrays_with_scales_and_without(on):
    a, b = whole(13, 48), whole(48, 16, seed=1)
    for _ in range(2):
        check(on, a, b, powers(13, 1), powers(1, 16))
        check(on, a, b, None, None)
    kernel = on.made[0]
    assert kernel.problem.scales == "rows"
    assert kernel.plan == tw.plan(kernel.problem, on.engine.driver.device(0).target)


def test_scales_that_the_result_overwrites(on):
    """They are copied first."""
    memory = powers(13, 16)
    a, b, scale = whole(13, 48), whole(48, 16, seed=1), memory[:, :1]
    wanted = tw.matmul(a, b, scale_a=scale)
    tw.matmul(on.array(a), on.array(b), on.array(memory), scale_a=on.array(scale))
    on.finish()
    np.testing.assert_array_equal(memory, wanted)


def test_rounding_is_that_of_the_definition(on):
    """Scales that are no powers of two, bf16 results: within k * 2^-24 of the sizes, and the roundings."""
    rng = np.random.default_rng(7)
    a, b = (aligned(rng.standard_normal(shape).astype(dtype_of("e4m3fn"))) for shape in ((20, 160), (160, 24)))
    scale_a, scale_b = aligned(rng.random((20, 1), np.float32)), aligned(rng.random((1, 24), np.float32))
    got = tw.matmul(on.array(a), on.array(b), scale_a=on.array(scale_a), scale_b=on.array(scale_b),
                    alpha=1.7, out_dtype="bf16")
    on.finish()
    wide = [x.astype(np.float64) for x in (a, b)]
    exact, size = wide[0] @ wide[1], abs(wide[0]) @ abs(wide[1])
    factor = scale_a.astype(np.float64) * scale_b * 1.7
    bound = (160 + 4) * 2.0**-24 * size * factor + 2.0**-8 * abs(exact * factor)
    assert (abs(got.host.astype(np.float64) - exact * factor) <= bound).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "a"), [("sm_90a", "i8"), ("sm_80", "e4m3fn"), ("gfx942", "i8"), ("gfx950", "f64")])
def test_compiled_kernels(monkeypatch, name, a):
    """Called with arrays of either memory, bound, simulated; converted where the GPU has no instructions for them."""
    on, problem = machine(monkeypatch, name), tw.Gemm(20, 24, 40, a, layout="nt", scales="rows", batch=2)
    kernel, wide = tw.compile(problem, name), np.float64 if a == "f64" else np.float32
    x, y = whole(2, 20, 40, name=a), whole(2, 24, 40, name=a, seed=1).swapaxes(1, 2)
    scale_a, scale_b = powers(2, 20, 1, dtype=wide), powers(1, 1, 24, dtype=wide)
    wanted = tw.matmul(x, y, scale_a=scale_a, scale_b=scale_b, alpha=2)
    scales = {"scale_a": scale_a, "scale_b": scale_b}
    report = kernel.simulate(x, y, alpha=2.0, **scales)
    np.testing.assert_array_equal(report.result, wanted)
    np.testing.assert_array_equal(kernel(x, y, alpha=2.0, **scales), wanted)
    there = [on.array(each) for each in (x, y, scale_a, scale_b)]
    bound = kernel.bind(*there[:2], alpha=2.0, scale_a=there[2], scale_b=there[3])
    for _ in range(2):
        bound()
        on.finish()
        np.testing.assert_array_equal(bound.out.host, wanted)
    found = kernel(x, y, scale_a=0.5)
    np.testing.assert_array_equal(found, tw.matmul(x, y, scale_a=0.5))
    with pytest.raises(ValueError, match=r"scale_b .* \(2, 1, 24\)"):
        kernel.simulate(x, y, scale_b=scale_b[..., 1:])
    with pytest.raises(TypeError, match="scale_a must have dtype"):
        kernel.bind(*there[:2], scale_a=on.array(powers(2, 20, 1, dtype=np.float16)))
    if a == "i8":
        assert problem.out == "f32"
        with pytest.raises(ValueError, match=r"scale_a= is not supported by a kernel for .*, which has no scales"):
            tw.compile(tw.Gemm(20, 24, 40, a), name).simulate(x[0], y[0], scale_a=2.0)


def test_targets_that_scale_by_other_means():
    problem = tw.Gemm(20, 24, 40, "i8", scales="rows")
    assert str(problem) == "gemm_i8-i8-f32_nn_20x24x40_scaled_rows"
    for refused in (tw.plan, tw.compile, tw.explain):
        with pytest.raises(ValueError, match="CPUs have no kernels that scale sums"):
            refused(problem, "x86-avx2")
    assert "with scales of rows" in str(tw.plans.gpu_lowering.multiplied_shape(problem, tw.targets.target("sm_90a")))
    assert "gemm_i8-i8-f32_nn_20x24x40_scaled_rows on sm_90a" in str(tw.explain(problem, "sm_90a"))


def by_blocks(a, b, scale_a, scale_b):
    """The definition, in float64."""
    (m, k), n = a.shape[-2:], b.shape[-1]
    lead, blocks = a.shape[:-2], -(-k // 128)
    of_a = np.broadcast_to(scale_a, (*lead, m, blocks)).repeat(128, -1)[..., :k]
    grouped = scale_b.repeat(128, -1)[..., :n] if scale_b.shape[-1] not in (1, n) else scale_b
    of_b = np.broadcast_to(grouped, (*lead, blocks, n)).repeat(128, -2)[..., :k, :]
    return (a.astype(np.float64) * of_a) @ (b.astype(np.float64) * of_b)


def test_a_compiled_kernel_with_scales_of_blocks(on):
    problem = tw.Gemm(20, 200, 400, "e4m3fn", layout="nt", scales="128x128")
    kernel, a, b = tw.compile(problem, "sm_90a"), whole(20, 400), whole(200, 400, seed=1).T
    scales = {"scale_a": powers(20, 4), "scale_b": powers(4, 2)}
    wanted = by_blocks(a, b, *scales.values())
    np.testing.assert_array_equal(kernel.simulate(a, b, **scales).result, wanted)
    np.testing.assert_array_equal(kernel(a, b, **scales), wanted)
    with pytest.raises(ValueError, match=r"scale_b of .* must have a scale for each of 2 columns or groups of them"):
        kernel.simulate(a, b, scale_b=powers(4, 200))
