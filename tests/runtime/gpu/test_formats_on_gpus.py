"""Every number format on GPUs of both makers, on the fakes of their drivers: dtypes, conversions, plans and bits."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.arrays import small_integers
from tests.helpers.gemms import dtype_of
from tests.helpers.gpus import aligned, machine
from tilewright import formats
from tilewright.plans import gpu, gpu_formats, gpu_lowering, gpu_shape

pytestmark = pytest.mark.sampled


def integers(*shape, name, seed=0):
    """Small whole numbers that every format has, some of them negative where it has such."""
    x = small_integers(seed, shape, np.int64) // 2
    return (abs(x) if name.startswith("u") else x).astype(dtype_of(name))


# The GPU, the formats of A, B and what they are multiplied as.
MULTIPLIED = [
    ("sm_90a", "bf16", "bf16", "bf16"), ("sm_90a", "f16", "f16", "f16"), ("sm_90a", "i8", "i8", "i8"),
    ("sm_90a", "u8", "u8", "u8"), ("sm_90a", "e4m3fn", "e4m3fn", "e4m3fn"), ("sm_90a", "e4m3fnuz", "e4m3fnuz", "f16"),
    ("sm_90a", "f32", "f32", "f32"), ("sm_90a", "e2m1", "e2m1", "e4m3fn"),
    ("sm_89", "e5m2", "e5m2", "e5m2"), ("sm_80", "e4m3fn", "e4m3fn", "f16"), ("sm_80", "i8", "bf16", "bf16"),
    ("sm_75", "f16", "f16", "f16"), ("sm_75", "bf16", "bf16", "f32"), ("sm_75", "i8", "i8", "i8"),
    ("sm_75", "i4", "i4", "i8"),
    *(("gfx942", x, x, x) for x in ("f64", "f32", "f16", "bf16", "i8", "e4m3fnuz", "e5m2fnuz")),
    ("gfx942", "e4m3fn", "e4m3fn", "f16"), ("gfx942", "e5m2", "e5m2", "f16"),
    *(("gfx950", x, x, x) for x in ("f64", "f16", "i8", "e4m3fn", "e5m2")),
    ("gfx950", "e4m3fnuz", "e4m3fnuz", "f16"), ("gfx950", "e2m1", "e2m1", "e4m3fn"),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "a", "b", "multiplied"), MULTIPLIED)
def test_every_format(monkeypatch, name, a, b, multiplied):
    """The dtype is that of matmul on the host. What no kernel takes is multiplied as the narrowest format that holds
    it, by the plan that tilewright.plan gives."""
    on = machine(monkeypatch, name)
    x, y = aligned(integers(13, 24, name=a)), aligned(integers(24, 16, name=b, seed=1))
    expected = tw.matmul(x, y)
    out = aligned(np.zeros((13, 16), expected.dtype))
    tw.matmul(on.array(x), on.array(y), on.array(out))
    on.finish()
    np.testing.assert_array_equal(out.astype(np.float64), expected.astype(np.float64))
    (kernel,) = on.made
    assert (kernel.problem.a, kernel.problem.b) == (multiplied, multiplied)
    target = on.engine.driver.device(0).target
    problem = tw.Gemm(13, 16, 24, a, b, formats.get(out.dtype).name)
    assert kernel.plan == tw.plan(problem, target) == tw.explain(problem, target).plan
    converted = [f"{operand} is converted from {of} to {multiplied} before" for operand, of in (("A", a), ("B", b))
                 if of != multiplied]
    assert [line for line in converted if line not in str(tw.explain(problem, target))] == []


@pytest.mark.parametrize("name", ["sm_90a", "gfx942"])
@pytest.mark.parametrize(("operand", "out"), [
    ("i8", "i32"), ("i8", "f32"), ("i8", "i16"), ("f16", "f32"), ("f16", "f64"), ("f32", "f16"), ("bf16", "f64"),
])
def test_out_of_another_format_receives_the_result_cast(monkeypatch, name, operand, out):
    """As on the host: sums are wrapped or rounded to the result's format first."""
    on = machine(monkeypatch, name)
    a, b = (np.full(s, 100 if operand == "i8" else 300, dtype_of(operand)) for s in ((9, 24), (24, 8)))
    c, wanted = (np.zeros((9, 8), dtype_of(out)) for _ in range(2))
    given = on.array(c)
    with np.errstate(all="ignore"):
        wanted[...] = tw.matmul(a, b)
        assert tw.matmul(on.array(a), on.array(b), given) is given
        on.finish()
    np.testing.assert_array_equal(c.astype(np.float64), wanted.astype(np.float64))


# ---- on NVIDIA's: what AMD's have in test_hip_matmul.py


def test_unaligned_operands_have_plans_of_their_own(monkeypatch):
    on = machine(monkeypatch, "sm_80")
    x, y = integers(40, 65, name="bf16"), aligned(integers(64, 48, name="bf16", seed=1))
    wanted = x[:, :64].astype(np.float32) @ y.astype(np.float32)
    for a, vectors in ((x[:, :64], (1, 8)), (aligned(np.ascontiguousarray(x[:, :64])), (8, 8))):
        got = tw.matmul(on.array(a), on.array(y))
        on.finish()
        np.testing.assert_array_equal(got.host, wanted)
        plan = on.made[-1].plan
        assert (plan.algorithm, plan.vectors[:2], plan.copy == "registers") == ("mma", vectors, vectors[0] == 1)


def test_given_plans_and_numpy_arrays(monkeypatch):
    """Arrays of the host take any format that a kernel of the plan's GPU holds; f32 is rounded only if tf32 is asked
    for."""
    machine(monkeypatch, "sm_90a")
    a, b = integers(40, 64, name="i4"), integers(64, 48, name="u8", seed=1)
    plan = "mma 64x64x64 warp=32x32 stages=3 vector=16 vector_c=4 split_k=1"
    np.testing.assert_array_equal(tw.matmul(a, b, plan=plan, out_dtype="i32"), a.astype("i4") @ b.astype("i4"))
    x, y = (z.astype(np.float32) for z in (a, b))
    x[0, 0] = 1 + 2**-12
    rounded = tw.matmul(x, y, plan="tf32 64x64x32 warp=32x32 stages=3 vector=4")
    x[0, 0] = 1
    np.testing.assert_array_equal(rounded, x @ y)
    with pytest.raises(ValueError, match=r"mma multiplies f16, bf16, i8, u8, e4m3fn, e5m2 on sm_90a, and this is f32"):
        tw.matmul(x, y, plan=plan)


# ---- what is converted to what

EVERY = [f.name for f in formats.FORMATS.values() if not isinstance(f, formats.Complex)]


@pytest.mark.parametrize("name", ["sm_90a", "sm_80", "sm_75", "gfx942", "gfx950"])
def test_conversions_hold_every_number(name):
    """Of any two formats, unless they meet in that of the sums; and what a kernel takes stays as it is."""
    target = tw.target(name)
    multiplied = gpu_lowering.pairs(gpu.planner(target).multiplied(target))
    for a in EVERY:
        for b in EVERY:
            sums = tw.Gemm(8, 8, 8, a, b).sums
            found = gpu_lowering.pair_for(a, b, sums, target)
            if (a, b) in multiplied and gpu_shape.SUMS.get(a, "f32") == sums:
                assert found == (a, b)
            elif found:
                assert found in multiplied
                for kept, given in zip(found, (a, b)):
                    assert kept == sums or formats.table.holds(formats.FORMATS[kept], formats.FORMATS[given])
            else:
                assert sums in ("i32", "i64")


@pytest.mark.parametrize("source", sorted(gpu_formats.READ - gpu_formats.WRITTEN))
def test_copies_of_narrow_formats(source):
    """Every pattern, in f32."""
    from tilewright.kernels.gpu.copy import emit_copy, grid
    f = formats.FORMATS[source]
    patterns = np.arange(1 << f.bits, dtype=np.uint8).reshape(1, -1)
    target = np.zeros(patterns.shape, np.float32)
    tw.simulate(emit_copy(source, "f32"), 1, patterns.size, 1.0, patterns.view(np.int8), patterns.size, 1, target,
                patterns.size, 1, 0, 0, grid=grid(*patterns.shape))
    np.testing.assert_array_equal(target[0], [float(f.decode(p)) for p in range(patterns.size)])
