"""epilogue= and operands= of matmul and gemm on CPUs: what is particular to them. Values are in tests/products."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.expressions.tracing import TracingError
from tilewright.plans.cpu import CpuPlan
from tilewright.targets import detect

RNG = np.random.default_rng(11)


def random(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


def activated(acc, bias, res):
    return tw.silu(acc + bias) * 0.5 + res


def gated(acc):
    gate, up = tw.pairs(acc)
    return tw.silu(gate) * up


def close(found, wanted, within=2e-5):
    """Relative to the largest number."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    assert found.shape == wanted.shape
    if wanted.size:
        assert np.abs(found - wanted).max() <= within * max(1.0, np.abs(wanted).max())


@pytest.mark.parametrize("plan", [
    "packed 6x16 mc=12 kc=16 nc=32", "packed 6x16 mc=12 kc=512 nc=32 ways=1x2x1", "packed 4x48 mc=8 kc=32 nc=48",
    "packed 6x16 mc=12 kc=16 nc=32 swap", "in_place 6x16", "in_place 4x48 kc=7 ways=2x1x1", "stream 3x4", "dots 2x3",
])
def test_sums_of_minus_zero_keep_their_sign(plan):
    """With any blocks of k."""
    m, n, k = (3, 50, 41) if plan.startswith("stream") else (50, 3, 41) if plan.startswith("dots") else (50, 70, 41)
    a, b = abs(random(m, k)), random(k, n)
    b = np.asfortranarray(b) if plan.startswith("dots") else b
    plan = CpuPlan.parse(plan if detect().lanes(4) > 8 else plan.replace("48", "24"))
    b[:, 2] = -0.0
    sums = tw.matmul(a, b, plan=plan)
    found = tw.matmul(a, b, plan=plan, epilogue=lambda acc: acc)
    np.testing.assert_array_equal(found.view(np.int32), sums.view(np.int32))


def test_threads_change_no_bit():
    a, b, operands = random(150, 90), random(90, 130), {"bias": random(130), "res": random(150, 130)}

    def function(acc, bias, res):
        y = activated(acc, bias, res)
        return y, tw.row_sum(y), tw.column_sum(y)
    for x, y in zip(*(tw.matmul(a, b, epilogue=function, operands=operands, threads=n) for n in (1, 2))):
        np.testing.assert_array_equal(x, y)


def test_block_scaled_results():
    a, b, bias = random(20, 70), random(70, 96), random(96)
    for name in "mxfp8", "mxfp4", "nvfp4":
        found, most = tw.matmul(a, b, epilogue=lambda acc, bias: (tw.relu(acc + bias), tw.row_max(acc)),
                                operands={"bias": bias}, out_dtype=name)
        wanted = tw.quantize(tw.matmul(a, b, epilogue=lambda acc, bias: tw.relu(acc + bias), operands={"bias": bias}),
                             name)
        assert found.format == wanted.format
        np.testing.assert_array_equal(tw.dequantize(found), tw.dequantize(wanted))
        close(most, (a.astype(np.float64) @ b).max(-1))


@pytest.mark.parametrize("m", [7, 150])
def test_c_of_gemm_is_read_before_it_is_written(m):
    a, b, c = random(m, 300), random(300, 70), random(m, 70)
    before = c.astype(np.float64)
    assert tw.gemm(2.0, a, b, 0.5, c, epilogue=lambda acc, old: acc*old, operands={"old": c}) is c
    close(c, (2 * (a.astype(np.float64) @ b) + 0.5*before) * before)


NAMES = "a", "b", "c", "acc", "m", "n", "alpha", "beta", "scale_a", "scale_of_b_", "own_scale_b"


def test_operands_of_any_name():
    x, w = random(4, 64), random(8, 64)
    given = {name: random(8) for name in NAMES}
    total = sum(given.values())
    how = {"operands": given, "trans_b": True,
           "epilogue": eval(f"lambda sums, {', '.join(NAMES)}: sums + ({' + '.join(NAMES)})")}
    for right in w, tw.quantize(w, "u4", group=32, zero_points=True), tw.quantize(w, "mxfp8"):
        numbers = right if right is w else tw.dequantize(right)
        close(tw.matmul(x, right, **how), x @ numbers.T + total)
    close(tw.matmul(x, w, scale_a=np.ones((4, 1), np.float32), alpha=2, **how), 2 * (x @ w.T) + total)
    groups = tw.quantize(np.stack([w, w]), "i4", group=32)
    close(tw.grouped_matmul(x, groups, [2, 4], **how), x @ tw.dequantize(groups)[0].T + total)
    close(tw.contract(lambda y, z: (y - z)**2, x, w.T, epilogue=how["epilogue"], operands=given),
          ((x[:, None] - w)**2).sum(-1) + total)
    before = eval(f"lambda element, {', '.join(NAMES)}: element * ({' + '.join(NAMES)})")
    close(tw.matmul(x, w.T, prologue_b=before, operands=given), x @ (w.T * total))


def test_the_first_parameter_of_one_function_may_be_an_operand_of_another():
    a, b, w = random(4, 16), random(16, 8), random(8)
    made = tw.prologue(lambda w, s: w * s, "f32", s="scalar")
    close(tw.matmul(a, b, prologue_b=made, epilogue=lambda acc, w: acc + w, operands={"w": w, "s": np.float32(2)}),
          2 * (a @ b) + w)
    with pytest.raises(ValueError, match=r"operands must have the names of the functions' parameters, not .\$s"):
        tw.matmul(a, b, epilogue=lambda acc, **more: acc, operands={"$scale_b": w})


def test_numbers_of_python_and_functions_of_them():
    a = np.eye(2, dtype=np.int8)
    y = tw.matmul(a, a, out_dtype="f64", epilogue=lambda acc, x: acc * x, operands={"x": np.float64(1 / 3)})
    assert y.dtype == np.float64
    assert y[0, 0] == 1 / 3
    for found in tw.erf(1.0), tw.where(True, 1.0, 2.0), tw.popcount(7), tw.gelu(1.0):
        assert not isinstance(found, np.ndarray)
    assert tw.matmul(a, a, epilogue=lambda acc: tw.erf(1.0)).shape == (2, 2)


def test_traced_before():
    made = tw.epilogue(activated, bias="row", res="bf16 full")
    a, b, operands = random(9, 8), random(8, 10), {"bias": random(10), "res": random(9, 10)}
    np.testing.assert_array_equal(tw.matmul(a, b, epilogue=made, operands=operands),
                                  tw.matmul(a, b, epilogue=activated, operands=operands))


def test_a_function_that_is_another_now():
    """Expressions are remembered: not beyond what the function's variables were."""
    a = np.eye(3, dtype=np.float32)
    for factor in 2.0, 3.0, np.float64(4.0):
        np.testing.assert_array_equal(tw.matmul(a, a, epilogue=lambda acc, factor=factor: acc * factor), a * factor)

    def scaled(acc):
        return acc * factor
    for factor in 5.0, 6.0:
        np.testing.assert_array_equal(tw.matmul(a, a, epilogue=scaled), a * factor)


X = np.ones((4, 6), np.float32)


@pytest.mark.parametrize(("call", "kind", "sentence"), [
    (lambda: tw.matmul(X, X.T, epilogue=3), TypeError, "epilogue must be a function of the sums and operands"),
    (lambda: tw.matmul(X, X.T, operands={"b": 1}), ValueError, "operands must be None without an epilogue"),
    (lambda: tw.matmul(X, X.T, epilogue=lambda acc, bias: acc), TypeError, "missing a required argument: 'bias'"),
    (lambda: tw.matmul(X, X.T, epilogue=lambda acc: acc, operands={"bias": X}), TypeError, "'bias'"),
    (lambda: tw.matmul(X, X.T, epilogue=lambda acc, b: acc + b, operands={"b": X}), ValueError,
     r"operands\['b'\] must broadcast to the result's shape \(4, 4\), but its shape is \(4, 6\)"),
    (lambda: tw.matmul(X, X.T, epilogue=lambda acc, b: acc + b, operands={"b": 1j}), TypeError, r"\['b'\] is c"),
    (lambda: tw.matmul(X, X.T, epilogue=lambda acc, b: acc + b, operands=[1]), TypeError, "operands must be a dict"),
    (lambda: tw.matmul(X, X.T, epilogue=lambda acc: acc if acc > 0 else 0), TracingError, "test_epilogue.py:"),
    (lambda: tw.matmul(X[0], X.T, epilogue=abs), ValueError, "two axes or more with an epilogue or a prologue"),
    (lambda: tw.matmul(X*1j, X.T, epilogue=abs), TypeError, "epilogue must be None for complex products"),
    (lambda: tw.matmul(X, X.T[:, :3], epilogue=gated), ValueError, "epilogue takes pairs of columns, and a @ b has 3"),
    (lambda: tw.matmul(X, X.T, X, epilogue=abs), ValueError, r"out must have the result's shape \(4, 4\)"),
    (lambda: tw.matmul(X, X.T, epilogue=abs, out_dtype="i8"), TypeError, "out_dtype must be of real floating-point"),
    (lambda: tw.matmul(X, X.T, epilogue=lambda acc: (acc, acc), out_dtype=("f32",)), ValueError, "out_dtype must be"),
    (lambda: tw.matmul(X, X.T, epilogue=tw.epilogue(activated, bias="row", res="full")), TypeError,
     r"operands must have the epilogue's names \(bias, res\), and has \(\)"),
    (lambda: tw.matmul(X, X.T, np.empty((4, 4), np.float32), epilogue=abs, out_dtype="mxfp8"), ValueError,
     "out must be None for a result in mxfp8"),
    (lambda: tw.matmul(X, X.T, epilogue=abs, plan="simt 32x32x8 warp=16x16 thread=4x4 stages=2"), ValueError,
     "epilogue= is not supported on CUDA devices for arrays in the host's memory"),
    (lambda: tw.epilogue(activated, bias="rows", res="full"), ValueError, "bias must be one of scalar, row, col"),
    (lambda: tw.matmul(X, X.T, epilogue=lambda acc: tw.pairs(acc * 2)[0]), TracingError, "the first parameter"),
    (lambda: tw.matmul(X, X.T, epilogue=lambda acc: tw.pairs(acc)[0] + acc), TracingError, "in no other way"),
])
def test_refused(call, kind, sentence):
    with pytest.raises(kind, match=sentence):
        call()


# ---- as data


def normalised(acc, bias, res):
    y = tw.gelu(acc + bias) + res
    return y, tw.row_sum(y), y * 2


@pytest.mark.parametrize(("m", "n", "k", "layout"), [
    (30, 40, 50, "nt"), (100, 200, 300, "nn"), (3, 500, 600, "nt"), (33, 2, 300, "nn"), (0, 3, 4, "nn")])
def test_compiled(m, n, k, layout):
    """The plan, and the bits, are matmul's."""
    problem = tw.Gemm(m, n, k, layout=layout, epilogue=tw.epilogue(normalised, bias="row", res="f16 full"))
    kernel = tw.compile(problem)
    assert kernel.plan == tw.plan(problem)
    a, b = random(m, k), random(k, n)
    b = np.ascontiguousarray(b.T).T if layout == "nt" else b
    operands = {"bias": random(n), "res": random(m, n).astype(np.float16)}
    into = np.empty((m, n)), np.empty(m, np.float32), np.empty((m, n), np.float32)
    wanted = tw.matmul(a, b, epilogue=normalised, operands=operands)
    for found in kernel(a, b, operands=operands), kernel(a, b, into[2], outs=(into[1], into[0]), operands=operands):
        for x, y in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(x, y)


def test_compiled_with_other_formats_and_factors():
    a, b = RNG.integers(-9, 9, (70, 90), np.int8), RNG.integers(-9, 9, (90, 80), np.int8)
    scale, out = random(70, 1), random(70, 80).astype(ml_dtypes.bfloat16)
    made = tw.epilogue(lambda acc, scale: acc * scale, "int", scale="column")
    kernel = tw.compile(tw.Gemm(70, 80, 90, "i8", out="bf16", epilogue=made))
    close(kernel(a, b, out, operands={"scale": scale}), (a.astype(np.int64) @ b) * scale, 2**-8)
    x, y, c = random(20, 30), random(30, 40), random(20, 40)
    wanted = abs(2 * (x.astype(np.float64) @ y) + 3*c)
    assert tw.compile(tw.Gemm(20, 40, 30, epilogue=tw.epilogue(abs)))(x, y, c, alpha=2, beta=3) is c
    close(c, wanted)
    said = str(tw.explain(tw.Gemm(20, 40, 30, epilogue=tw.epilogue(abs))))
    assert "$acc:float; abs $acc; -> %0" in said or "x:float; abs x; -> %0" in said
    assert "of each tile after its last block of k, while it is in L1" in said


def test_code_for_other_chips():
    """As for any problem: each function once, the finish among them."""
    problem = tw.Gemm(50, 60, 70, epilogue=tw.epilogue(gated))
    for chip in "x86-avx512", "neon":
        kernel = tw.compile(problem, chip)
        assert sum("finish" in part.emitter for part in kernel.parts) == 1
        assert kernel.functions[-1].name.startswith("gemm")


@pytest.mark.parametrize(("call", "kind", "sentence"), [
    (lambda k: k(X, X.T.copy()), TypeError, r"names of the problem's functions \(bias\), and has \(\)"),
    (lambda k: k(X, X.T.copy(), operands={"bias": np.ones(4)}), TypeError, "must be f32, aligned, as the"),
    (lambda k: k(X, X.T.copy(), operands={"bias": np.ones(3, np.float32)}), ValueError, r"must broadcast to \(4, 4\)"),
])
def test_compiled_refuses(call, kind, sentence):
    kernel = tw.compile(tw.Gemm(4, 4, 6, epilogue=tw.epilogue(lambda acc, bias: acc + bias, bias="row")))
    with pytest.raises(kind, match=sentence):
        call(kernel)
