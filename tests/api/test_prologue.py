"""prologue_a=, prologue_b= of matmul and gemm on CPUs, against the same functions of NumPy's arrays in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.expressions.tracing import TracingError
from tilewright.plans.cpu import CpuPlan

pytestmark = pytest.mark.sampled

RNG = np.random.default_rng(17)
SIZES = [(1, 1, 1), (1, 40, 48), (33, 65, 129), (130, 66, 600), (3, 2, 0), (0, 4, 3)]
BF16 = ml_dtypes.bfloat16


def random(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


def int8(*shape):
    return RNG.integers(-128, 128, shape).astype(np.int8)


def spread(x, k, axis):
    """Numbers of blocks of k, once for each step."""
    x = np.asarray(x, np.float64)
    count = x.shape[axis] if x.ndim >= -axis else 1
    return x if count in (1, k) else np.repeat(x, k // count, axis)


def blocks(k):
    """How many there may be along k, more than one if possible."""
    return next((count for count in (3, 8, 25) if k and k % count == 0), 1)


def reference(x, function, operands, axis, result=np.float32):
    """What is multiplied: the function in float64, rounded twice as the arithmetic in f32 and the format have it."""
    wide = x.astype(np.float64)
    if function is None:
        return wide
    names = function.__code__.co_varnames[1:function.__code__.co_argcount]
    given = {name: spread(operands[name], x.shape[axis], axis) for name in names}
    found = np.broadcast_to(function(wide, **given), x.shape)
    return found if result is np.float64 else found.astype(np.float32).astype(result).astype(np.float64)


def check(a, b, fa=None, fb=None, operands=None, result=np.float32, within=3e-6, **options):
    x, y = reference(a, fa, operands, -1, result), reference(b, fb, operands, -2, result)
    wanted = options.get("alpha", 1) * (x @ y) + options.get("beta", 0) * np.asarray(options.get("c", 0), np.float64)
    found = tw.matmul(a, b, prologue_a=fa, prologue_b=fb, operands=operands, **options)
    assert found.shape == wanted.shape
    if wanted.size:
        bound = np.abs(x) @ np.abs(y) + 1e-30
        assert (np.abs(np.asarray(found, np.float64) - wanted) / np.maximum(bound, np.abs(wanted))).max() <= within
    return found


def activated(a, row, col):
    return tw.silu(a) * row + col               # of 0 it is not 0: panels are filled up with zeros after it


def dequantised(b, s, z):
    return (b - z) * s


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("m", "n", "k"), SIZES, ids=str)
def test_sizes_and_groups(m, n, k):
    a, b = random(m, k), int8(k, n)
    check(a, b, activated, dequantised, {"row": random(k), "col": random(m, 1), "s": random(n), "z": 3})
    check(a, b, lambda a, g: a * g, dequantised, {"g": random(m, blocks(k)), "s": random(blocks(k), n),
                                                  "z": random(k, 1)})


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("layouts", "name"), [("nn", "f32"), ("tt", "f32"), ("nt", "bf16"), ("ss", "bf16")])
def test_layouts(layouts, name):
    """Of the operands, of what is beside them, and of C."""
    m, n, k = 70, 65, 96
    dtype = tw.formats.get(name).dtype

    def laid(x, letter):
        strided = np.zeros((2*x.shape[0], 3*x.shape[1]), x.dtype)
        strided[::2, ::3] = x
        return {"n": x, "t": np.asfortranarray(x), "s": strided[::2, ::3][::-1, ::-1]}[letter]
    a, b = laid(random(m, k).astype(dtype), layouts[0]), laid(int8(k, n), layouts[1])
    for other in layouts[1], "ns"[layouts[1] != "s"]:
        operands = {"row": random(k)[::-1], "col": random(2*m, 1)[::2], "s": laid(random(4, n), other),
                    "z": laid(random(k, n).astype(np.float16), other), "full": laid(random(m, k), other)}
        check(a, b, lambda a, row, col, full: activated(a, row, col)*full, dequantised, operands, dtype,
              1e-3 if name == "bf16" else 3e-6)      # an f32 within an ulp may become the other neighbour
    out = np.empty((n, m), np.float32).T
    assert check(a, b, None, dequantised, {"s": random(n), "z": 1.5}, dtype, out=out, alpha=2) is out


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("of_a", "of_b"), [("bf16", "i4"), ("f16", "u8"), ("e4m3fn", "e4m3fn"),
                                            ("f64", "i16"), ("u32", "i64")])
def test_formats(of_a, of_b):
    """Numbers are rounded once to the format in which they are multiplied."""
    m, n, k = 40, 70, 66
    a, b = ((RNG.integers(0, 7, shape) if f[0] in "iu" else random(*shape)/4).astype(tw.formats.get(f).dtype)
            for f, shape in ((of_a, (m, k)), (of_b, (k, n))))
    floats = {f for f in (of_a, of_b) if f[0] not in "iu"}
    result = {"bf16": BF16, "f16": np.float16, "f64": np.float64, "e4m3fn": BF16}
    result = result[floats.pop()] if len(floats) == 1 else np.float32
    within = 1e-15 if result is np.float64 else 2e-3 if result is np.float16 else 3e-6
    check(a, b, lambda a, t: tw.relu(a)*t, lambda b, s: b*s, {"s": random(n), "t": random(m, 1)**2 + 0.5}, result,
          within)


@pytest.mark.parametrize("few", [1, 3])
def test_few_rows_read_the_other_operand_once(few):
    """stream of rows of B, dots of its columns, and of A's rows, by conversion as they are read."""
    n, k = 70, 176
    wide, narrow = random(few, k), int8(k, n)
    for a in wide, wide.astype(BF16):
        result = np.float32 if a is wide else BF16
        for b in narrow, np.asfortranarray(narrow):
            check(a, b, None, dequantised, {"s": random(22, n), "z": 2.5}, result)      # blocks shorter than vectors
    check(int8(n, k), wide.T, lambda a, s: a*s, None, {"s": random(n, 1)})
    a, b = np.broadcast_to(wide, (2, few, k)), int8(2, k, n)
    found = tw.matmul(a, b, prologue_b=lambda b, s: b*s, epilogue=lambda acc, bias: (acc + bias, tw.row_max(acc)),
                      operands={"s": random(2, 1, n), "bias": 1.0}, out_dtype="bf16")
    assert (found[0].dtype, found[0].shape, found[1].shape) == (BF16, (2, few, n), (2, few))


def test_plans_for_few_rows():
    made = tw.prologue(lambda b, s: b*s, "i8", "bf16", s="f32 full/128")
    for m, layout, algorithm in (1, "nn", "stream"), (4, "nt", "dots"), (16, "nn", "stream"), (17, "nn", "packed"):
        problem = tw.Gemm(m, 4096, 4096, "bf16", "i8", layout=layout, prologue_b=made)
        assert tw.plan(problem, "x86-avx512", threads=1).algorithm == algorithm
    problem = tw.Gemm(2, 40, 48, "bf16", "i8", prologue_b=tw.prologue(lambda b: 0.5*b, "i8", "bf16"))
    a, b = random(2, 48).astype(BF16), int8(48, 40)
    report = tw.compile(problem, "x86-avx2", "stream 2x4").simulate(a, b)
    np.testing.assert_allclose(report.result, a.astype(float) @ (0.5*b), 1e-4, 1e-3)


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_numbers_narrower_than_the_sums(layout):
    """Vectors of a prologue's numbers are longer than those of the sums."""
    def lies(x, letter):
        return x if letter == "n" else np.ascontiguousarray(x.T).T
    a, b = (RNG.integers(-3, 4, shape) for shape in ((5, 70), (70, 33)))
    for result, names in ("f64", ("f4", "f4")), ("f64", ("f4", "i1")), (None, ("i4", "i4")):
        x, y = (lies(z.astype(name), letter) for z, name, letter in zip((a, b), names, layout))
        how = {} if result is None else {"out_dtype": result}
        found = tw.matmul(x, y, prologue_a=lambda x: x*2.0, prologue_b=lambda x: x*3.0, **how)
        assert np.array_equal(found, 6*(a @ b)), names


def test_integers_stay_exact():
    a, b = int8(37, 90), RNG.integers(0, 256, (90, 41)).astype(np.uint8)
    low, high = (tw.matmul(a, b, prologue_b=f) for f in (lambda b: b & 15, lambda b: b >> 4))
    assert low.dtype == np.int32
    np.testing.assert_array_equal(low, a.astype(int) @ (b & 15).astype(int))
    np.testing.assert_array_equal(low + 16*high, a.astype(int) @ b.astype(int))
    x = RNG.integers(-9, 9, (37, 90)).astype(np.float32)
    z = RNG.integers(-9, 9, (9, 41)).astype(np.int8)
    found = tw.matmul(x, b, prologue_b=lambda b, z: 2.0*(b - z), operands={"z": z})
    np.testing.assert_array_equal(found, x @ (2.0*(b.astype(int) - np.repeat(z, 10, 0))))


@pytest.mark.parametrize("plan", ["packed 6x16 mc=12 kc=16 nc=32 ways=1x2x1",
                                  "packed 6x16 mc=6 kc=32 nc=16 ways=1x3x1 swap"])
def test_plans_threads_and_epilogues(plan):
    a, b, s, bias = random(50, 96).astype(BF16), int8(96, 70), random(12, 70), random(70)
    how = {"prologue_a": tw.relu, "prologue_b": lambda b, s: b*s, "operands": {"s": s, "bias": bias},
           "epilogue": lambda acc, bias: (tw.gelu(acc + bias), tw.row_amax(acc))}
    found = tw.matmul(a, b, plan=CpuPlan.parse(plan), threads=3, **how)
    scaled = (b*np.repeat(s, 8, 0)).astype(BF16).astype(float)
    sums = np.maximum(a.astype(float), 0) @ scaled
    np.testing.assert_allclose(found[0], tw.gelu(sums + bias), 1e-4, 1e-3*np.abs(sums).max())
    np.testing.assert_allclose(found[1], np.abs(sums).max(1), 1e-5)
    res = random(50, 70)
    check(a, b, None, lambda b, s: b*s, {"s": s}, BF16, plan=CpuPlan.parse(plan), alpha=0.5, beta=3, c=res)
    once = [tw.matmul(a, b, threads=n, **how)[0] for n in (1, 2)]
    np.testing.assert_array_equal(*once)


@pytest.mark.parametrize(("of_a", "of_b"), [((4,), ()), ((2, 1), (1, 3))])
def test_leading_axes(of_a, of_b):
    a, b = random(*of_a, 9, 24), int8(*of_b, 24, 17)
    for lead_a, lead_b in ((), ()), (of_a, of_b):
        operands = {"row": random(*lead_a, 1, 24), "col": random(9, 1), "s": random(*lead_b, 3, 17), "z": 2}
        check(a, b, activated, dequantised, operands)


def test_nan_and_gemm():
    a, b = random(20, 30), random(30, 40)
    a[3, 5] = np.nan
    assert np.isnan(tw.matmul(a, b, prologue_a=lambda a: tw.exp(a))[3]).all()
    clean = tw.matmul(a, b, prologue_a=lambda a: tw.where(a == a, a, 0.0))
    np.testing.assert_allclose(clean, np.nan_to_num(a) @ b, 1e-4, 1e-4)
    c = random(20, 40)
    wanted = 2*(np.abs(a).astype(float) @ b) - c
    np.testing.assert_allclose(tw.gemm(2, a, b, -1, c, prologue_a=abs), wanted, 1e-4, 1e-4)
    found = tw.matmul(a.T, b.T, trans_a=True, trans_b=True, prologue_a=lambda a, s: a*s, operands={"s": b[:, 0]})
    np.testing.assert_allclose(found, (a*b[:, 0]) @ b, 1e-4, 1e-4)


def test_what_is_refused():
    a, b = random(8, 12), int8(12, 6)
    with pytest.raises(TracingError, match=r"test_prologue.py:\d+: float\(\)"):
        tw.matmul(a, b, prologue_a=lambda a: float(a))
    for message, options in {
        "one number for each element": {"prologue_a": lambda a: (a, a)},
        "neither a comparison": {"prologue_a": lambda a: a > 0},
        r"operands\['s'\] must broadcast to the shape of b, \(12, 6\)": {
            "prologue_b": lambda b, s: b*s, "operands": {"s": random(5, 6)}},
        "operands has t, which is a parameter of none": {
            "prologue_b": lambda b, s: b*s, "prologue_a": tw.relu, "operands": {"s": 1, "t": 2}},
        "prologue takes|prologue_b takes": {"prologue_b": lambda b, s: b*s, "operands": {"t": 1}},
        "prologue_b must be a function": {"prologue_b": 3},
        "algorithm= is not supported with a prologue": {"prologue_b": tw.relu, "algorithm": "fastest"},
        "only packed plans convert": {"prologue_b": tw.relu, "plan": "in_place 6x16"},
        "operands must be None": {"operands": {"s": 1}},
        "made for elements of u8": {"prologue_b": tw.prologue(tw.relu, "u8")},
    }.items():
        with pytest.raises((TypeError, ValueError), match=message):
            tw.matmul(a, b, **options)
    with pytest.raises(TypeError, match="a is complex64"):
        tw.matmul(a + 1j, b, prologue_b=tw.relu)


@pytest.mark.parametrize("target", ["zen3", "zen4", "sapphirerapids"])
def test_compiled_and_simulated(target):
    """Every access within its array, and numbers of bf16 multiplied in words and in tiles where the chip has them."""
    m, n, k = (65, 66, 81) if target == "sapphirerapids" else (15, 34, 21)
    of_b = tw.prologue(lambda b, s, z: (b - z)*s + 0.5, "i8", "bf16", s="f32 full/16", z="i8 row")     # of 0 not 0
    of_a = tw.prologue(lambda a, t: tw.silu(a) + t, "bf16", "bf16", t="column")
    a, b, s, z, t = random(m, k).astype(BF16), int8(k, n), random(-(-k // 16), n), int8(n), random(m, 1)
    x = reference(a, lambda a, t: tw.silu(a) + t, {"t": t}, -1, BF16)
    y = ((b.astype(float) - z)*np.repeat(s, 16, 0)[:k] + 0.5).astype(np.float32).astype(BF16).astype(float)
    for layout in "nt", "tn":                   # both operands along k, where steps are left over, and both across
        problem = tw.Gemm(m, n, k, "bf16", "i8", layout=layout, prologue_a=of_a, prologue_b=str(of_b))
        kernel = tw.compile(problem, target)
        assert (kernel.shape.dtype, problem.sums, problem.out) == (
            {"zen3": "f32", "zen4": "bf16x2", "sapphirerapids": "amx_bf16"}[target], "f32", "f32")
        left, right = (np.asarray(x, order="C" if letter == "n" else "F") for x, letter in zip((a, b), layout))
        report = kernel.simulate(left, right, operands={"s": s, "z": z, "t": t})
        assert np.abs(report.result - x @ y).max() <= 3e-6 * (np.abs(x) @ np.abs(y)).max()
    assert "packing reads i8 and rounds to bf16" in str(tw.explain(problem, target))
    assert f"gemm_bf16-i8-f32_nn_{m}x{n}x{k}_prologue_b_" in tw.Gemm(m, n, k, "bf16", "i8", prologue_b=of_b).key()
    with pytest.raises(ValueError, match="a must be bf16, of which prologue_a was made"):
        tw.Gemm(m, n, k, "f32", "i8", prologue_a=of_a)
