"""scale_a and scale_b of arrays on GPUs of both makers, on fake drivers: the numbers of matmul on a CPU."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.gpus import machine
from tests.runtime.gpu.test_plans_of_operands import aligned, compiled
from tilewright import formats

pytestmark = pytest.mark.sampled


def dtype_of(name):
    return formats.get(name).dtype


def whole(*shape, name="e4m3fn", seed=0):
    """Small whole numbers."""
    return aligned(np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype_of(name)))


def powers(*shape, seed=0, dtype=np.float32):
    """Scales with which sums of small whole numbers stay exact."""
    return aligned((2.0 ** np.random.default_rng(seed).integers(-3, 4, shape)).astype(dtype))


@pytest.fixture(params=["sm_90a", "sm_80", "gfx942", "gfx950"])
def on(request, monkeypatch):
    """A GPU."""
    found = machine(monkeypatch, request.param)
    found.made = compiled(monkeypatch, found.engine)
    return found


@pytest.fixture
def hopper(monkeypatch):
    found = machine(monkeypatch, "sm_90a")
    found.made = compiled(monkeypatch, found.engine)
    return found


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


@pytest.mark.parametrize("name", ["e4m3fn", "i8", "f16"])
def test_scales_of_rows_and_columns(on, name):
    a, b = whole(13, 48, name=name), whole(48, 16, name=name, seed=1)
    check(on, a, b, powers(13, 1), powers(1, 16, seed=1))
    (kernel,) = on.made
    assert kernel.problem.scales == "rows"
    assert kernel.plan == tw.plan(kernel.problem, on.engine.driver.device(0).target)
    check(on, a, b, powers(13, 1), None, out_dtype="bf16", alpha=0.5)
    check(on, a, b, None, powers(1, 1), beta=3.0, c=whole(13, 16, name="f32", seed=2))
    check(on, a, b, 0.25, powers(1, 16), there=("a", "b"))      # a number, and NumPy's array
    if name == "i8":
        assert {kernel.problem.a for kernel in on.made} == {"i8"}


def test_one_scale_in_memory(hopper):
    """Scales of whole operands, as quantization on the GPU leaves them: nothing waits for the host to read them."""
    a, b = whole(13, 48), whole(48, 16, name="e5m2", seed=1)
    check(hopper, a, b, aligned(np.asarray(0.5, np.float32)), powers(1, 1))
    check(hopper, whole(13, 48, name="i8"), whole(48, 16, name="i8"), 3, 0.5)


def test_the_same_arrays_with_scales_and_without(hopper):
    a, b = whole(13, 48), whole(48, 16, seed=1)
    for _ in range(2):
        check(hopper, a, b, powers(13, 1), powers(1, 16))
        check(hopper, a, b, None, None)


def test_layouts_strides_and_other_formats(hopper):
    a, b = whole(48, 13), whole(16, 48, seed=1)
    check(hopper, a, b, powers(1, 13), powers(16, 1), trans_a=True, trans_b=True)
    check(hopper, a.T, b.T, powers(26, 1)[::2], powers(1, 16)[:, ::-1])
    check(hopper, a.T, b.T, powers(13, 1, dtype=np.float16), powers(1, 16, dtype=np.float64))
    check(hopper, a.T, b.T, powers(13, 1), powers(1, 16), out=aligned(np.zeros((16, 13), np.float32)).T)    # C^T
    check(hopper, a.T, b.T, powers(13, 1), powers(1, 16), out=aligned(np.zeros((13, 32), np.float32))[:, ::2])
    check(hopper, whole(48), b.T, powers(1), powers(1, 16))
    check(hopper, a.T, whole(48), powers(13, 1), powers(1))
    check(hopper, whole(13, 0), whole(0, 16), powers(13, 1), None)
    check(hopper, whole(9, 20, name="f64"), whole(20, 7, name="f64"), powers(9, 1, dtype=np.float64), powers(1, 7))


@pytest.mark.parametrize(("a", "b", "scale_a", "scale_b", "launches"), [
    ((3, 8, 32), (3, 32, 16), (3, 8, 1), (3, 1, 16), 1),
    ((3, 8, 32), (3, 32, 16), (1, 8, 1), (3, 1, 1), 1),
    ((3, 8, 32), (32, 16), (3, 8, 1), (1, 16), 1),                # more rows of one product
    ((2, 3, 8, 32), (3, 32, 16), (2, 3, 1, 1), (3, 1, 16), 2),    # axes that do not fold
])
def test_batches(on, a, b, scale_a, scale_b, launches):
    check(on, whole(*a, name="f16"), whole(*b, name="f16", seed=1), powers(*scale_a), powers(*scale_b, seed=1))
    assert len(on.machine.launches) == launches


@pytest.mark.parametrize("name", ["i8", "e4m3fn"])
def test_with_an_epilogue(hopper, name):
    """They are operands of it, and its first parameter is the scaled sums."""
    a, b = whole(13, 48, name=name), whole(48, 16, name=name, seed=1)
    of_a, of_b, bias = powers(13, 1), powers(1, 16, seed=1), powers(16, seed=2)
    found, largest = tw.matmul(
        hopper.array(a), hopper.array(b), scale_a=hopper.array(of_a), scale_b=of_b, alpha=2,
        epilogue=lambda acc, bias: (acc + bias, tw.row_max(acc)), operands={"bias": hopper.array(bias)},
        out_dtype="bf16")
    hopper.finish()
    exact = 2 * (a.astype(np.float64) @ b.astype(np.float64)) * of_a * of_b
    np.testing.assert_array_equal(largest.host, exact.max(axis=-1))
    np.testing.assert_array_equal(found.host, (exact + bias).astype(np.float32).astype(dtype_of("bf16")))


def test_scales_that_the_result_overwrites(hopper):
    """They are copied first."""
    memory = powers(13, 16)
    a, b, scale = whole(13, 48), whole(48, 16, seed=1), memory[:, :1]
    wanted = tw.matmul(a, b, scale_a=scale)
    tw.matmul(hopper.array(a), hopper.array(b), hopper.array(memory), scale_a=hopper.array(scale))
    hopper.finish()
    np.testing.assert_array_equal(memory, wanted)


def test_rounding_is_that_of_the_definition(hopper):
    """Scales that are no powers of two, bf16 results: within k * 2^-24 of the sizes, and the roundings."""
    rng = np.random.default_rng(7)
    a, b = (aligned(rng.standard_normal(shape).astype(dtype_of("e4m3fn"))) for shape in ((20, 160), (160, 24)))
    scale_a, scale_b = aligned(rng.random((20, 1), np.float32)), aligned(rng.random((1, 24), np.float32))
    got = tw.matmul(hopper.array(a), hopper.array(b), scale_a=hopper.array(scale_a), scale_b=hopper.array(scale_b),
                    alpha=1.7, out_dtype="bf16")
    hopper.finish()
    wide = [x.astype(np.float64) for x in (a, b)]
    exact, size = wide[0] @ wide[1], abs(wide[0]) @ abs(wide[1])
    factor = scale_a.astype(np.float64) * scale_b * 1.7
    bound = (160 + 4) * 2.0**-24 * size * factor + 2.0**-8 * abs(exact * factor)
    assert (abs(got.host.astype(np.float64) - exact * factor) <= bound).all()


def test_what_is_refused(hopper):
    a, b = hopper.array(whole(13, 48)), hopper.array(whole(48, 16))
    for scale, error, message in ((powers(12, 1), ValueError, "scale_a .*(13, 1)"), (powers(13), ValueError, "scale_a"),
                                  (whole(13, 1, name="i32"), TypeError, "scale_a must be .* on sm_90a"),
                                  ("much", TypeError, "scale_a")):
        with pytest.raises(error, match=message):
            tw.matmul(a, b, scale_a=hopper.array(scale) if isinstance(scale, np.ndarray) else scale)
    with pytest.raises(TypeError, match="floating-point"):
        tw.matmul(a, b, scale_a=2.0, scale_b=hopper.array(powers(1, 1)), out_dtype="i32")
    deep = [hopper.array(np.broadcast_to(whole(1, name="i8"), shape)) for shape in ((1, 200_000), (200_000, 1))]
    with pytest.raises(TypeError, match=r"sm_90a has no kernel for a = i8, b = i8, .* sums in i64"):
        tw.matmul(*deep, scale_a=0.5)
    with pytest.raises(ValueError, match="scales must be one of '', 'rows', '1x128', '128x128', not 'columns'"):
        tw.Gemm(1, 1, 1, "i8", scales="columns")
    with pytest.raises(ValueError, match="floating-point format"):
        tw.Gemm(1, 1, 1, "i8", out="i32", scales="rows")


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


# m, n, k; the shapes of the scales
BLOCKS = [
    (13, 300, 400, (13, 4), (4, 3)),            # 1x128 by 128x128, as DeepSeek-V3 has them
    (13, 40, 400, (13, 4), (4, 40)),
    (70, 16, 272, (70, 3), (1, 16)),            # of all of k for B
    (13, 16, 272, (1, 1), (3, 1)),
    (13, 300, 64, (13, 1), (1, 3)),             # one block, and groups of columns
]


def by_blocks(a, b, scale_a, scale_b):
    """The definition, in float64."""
    (m, k), n = a.shape[-2:], b.shape[-1]
    lead, blocks = a.shape[:-2], -(-k // 128)
    of_a = np.broadcast_to(scale_a, (*lead, m, blocks)).repeat(128, -1)[..., :k]
    grouped = scale_b.repeat(128, -1)[..., :n] if scale_b.shape[-1] not in (1, n) else scale_b
    of_b = np.broadcast_to(grouped, (*lead, blocks, n)).repeat(128, -2)[..., :k, :]
    return (a.astype(np.float64) * of_a) @ (b.astype(np.float64) * of_b)


@pytest.mark.parametrize("name", ["sm_90a", "sm_80"])
@pytest.mark.parametrize(("m", "n", "k", "of_a", "of_b"), BLOCKS)
def test_scales_of_blocks(monkeypatch, name, m, n, k, of_a, of_b):
    """On sm_90a by wgmma where k is contiguous, else by mma; on sm_80 as f16."""
    on = machine(monkeypatch, name)
    on.made = compiled(monkeypatch, on.engine)
    scale_a, scale_b = powers(*of_a), powers(*of_b, seed=1)
    for a, b in ((whole(m, k), whole(n, k, seed=1).T), (whole(k, m).T, whole(k, n, seed=1))):
        for out in (None, aligned(np.zeros((n, m), np.float32)).T):
            got = tw.matmul(on.array(a), on.array(b), None if out is None else on.array(out), alpha=2,
                            scale_a=on.array(scale_a), scale_b=on.array(scale_b))
            on.finish()
            np.testing.assert_array_equal(got.host, 2 * by_blocks(a, b, scale_a, scale_b))
    assert {kernel.problem.scales for kernel in on.made} <= {"1x128", "128x128"}


def test_blocks_of_bytes_batches_and_a_plan_by_wgmma(hopper):
    a, b = whole(2, 20, 272, name="i8"), whole(2, 140, 272, name="i8", seed=1).swapaxes(1, 2)
    scale_a, scale_b = powers(2, 20, 3), powers(2, 3, 2, seed=1)
    for plan in (None, "wgmma 128x128x128 stages=3 warpgroups=2 promote=128 store=lanes"):
        got = tw.matmul(hopper.array(a), hopper.array(b), scale_a=hopper.array(scale_a), scale_b=hopper.array(scale_b),
                        out_dtype="bf16", plan=plan)
        hopper.finish()
        wanted = by_blocks(a, b, scale_a, scale_b)
        np.testing.assert_array_equal(got.host, wanted.astype(got.host.dtype))
    got = tw.matmul(hopper.array(b.swapaxes(1, 2)), hopper.array(a[0]), trans_a=False, trans_b=True,
                    scale_a=hopper.array(powers(2, 140, 3)), scale_b=hopper.array(scale_a[0]))
    hopper.finish()         # more rows of one product
    wanted = by_blocks(b.swapaxes(1, 2), np.broadcast_to(a[0].T, (2, 272, 20)), powers(2, 140, 3), scale_a[0].T)
    np.testing.assert_array_equal(got.host, wanted)


def test_a_compiled_kernel_with_scales_of_blocks(hopper):
    problem = tw.Gemm(20, 200, 400, "e4m3fn", layout="nt", scales="128x128")
    kernel, a, b = tw.compile(problem, "sm_90a"), whole(20, 400), whole(200, 400, seed=1).T
    scales = {"scale_a": powers(20, 4), "scale_b": powers(4, 2)}
    wanted = by_blocks(a, b, *scales.values())
    np.testing.assert_array_equal(kernel.simulate(a, b, **scales).result, wanted)
    np.testing.assert_array_equal(kernel(a, b, **scales), wanted)
    with pytest.raises(ValueError, match=r"scale_b of .* must have a scale for each of 2 columns or groups of them"):
        kernel.simulate(a, b, scale_b=powers(4, 200))


def test_blocks_that_a_target_lacks(monkeypatch, hopper):
    for target, a, message in (("gfx942", "f16", "gfx942 has no kernels with scales of 1x128"),
                               ("sm_90a", "f32", "sm_90a has kernels for f16, .* not for f32 by f32 .* of 1x128")):
        with pytest.raises(ValueError, match=message):
            tw.plan(tw.Gemm(64, 64, 256, a, scales="1x128"), target)
    a, scale = hopper.array(whole(16, 256, name="f32")), hopper.array(powers(16, 2))
    with pytest.raises(TypeError, match=r"sm_90a has no kernel for .* and scales of 1x128; it multiplies f16"):
        tw.matmul(a, hopper.array(whole(256, 16, name="f32")), scale_a=scale, scale_b=hopper.array(powers(2, 16)))
    on = machine(monkeypatch, "gfx942")
    with pytest.raises(TypeError, match=r"gfx942 has no kernel for .* and scales of 1x128; it multiplies nothing"):
        tw.matmul(on.array(whole(16, 256, name="f16")), on.array(whole(256, 16, name="f16")),
                  scale_a=on.array(powers(16, 2)), scale_b=on.array(powers(2, 16)))
