"""deterministic=True, batch_invariant=True: the same bits for any number of threads, and of rows, wherever they lie."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.plans import gpu, gpu_shape, invariant, shape_of
from tilewright.plans.choose import choose
from tilewright.plans.measured import choice

pytestmark = pytest.mark.sampled

KINDS = {"f32": np.float32, "f64": np.float64, "bf16": ml_dtypes.bfloat16, "f16": np.float16, "c64": np.complex64,
         "e4m3fn": ml_dtypes.float8_e4m3fn}
ROWS = slice(0, 1), slice(3, 5), slice(60, 30, -7), slice(10, 80)


def random(kind, *shape):
    rng = np.random.default_rng(sum(shape))
    found = rng.standard_normal(shape)
    return (found + 1j*rng.standard_normal(shape) if kind == "c64" else found).astype(KINDS[kind])


def bits(x):
    return np.ascontiguousarray(x).tobytes()


@pytest.mark.parametrize("by", ["nn", "tt"])
@pytest.mark.parametrize(("n", "k"), [(1, 300), (5, 33), (40, 1300)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_depends_on_no_other(kind, n, k, by):
    """300 and 33 steps of k, which plans add up in one block, and 1300, which are several; k below what packing
    converts; columns that `dots` takes."""
    a, b = random(kind, 80, k), random(kind, k, n)
    if by == "tt":
        a, b = np.asfortranarray(a), np.asfortranarray(b)
    whole = tw.matmul(a, b, batch_invariant=True, threads=2)
    wide = np.complex128 if kind == "c64" else np.float64
    np.testing.assert_allclose(whole.astype(wide), a.astype(wide) @ b.astype(wide), rtol=0.1, atol=0.1*k**0.5)
    for rows in ROWS:
        for threads in (1, 3):
            assert bits(tw.matmul(a[rows], b, batch_invariant=True, threads=threads)) == bits(whole[rows])
    assert bits(tw.matmul(a[7], b, batch_invariant=True)) == bits(whole[7])


@pytest.mark.parametrize("subscripts", ["ij,jk->ik", "ij,jk->ki", "ij,k->ijk", "ij,jk,kl->il"])
@pytest.mark.parametrize("kind", ["f32", "c64"])
def test_the_smaller_and_the_larger_operand_of_einsum(kind, subscripts):
    """Which one it is must not decide the order of the operands, nor one row that there is no product of matrices."""
    a, b, c = random(kind, 80, 1300), np.asfortranarray(random(kind, 1300, 64)), random(kind, 64, 1300)
    operands = (b[:9, 0],) if subscripts == "ij,k->ijk" else (b, c)[:subscripts.count(",")]
    for path in False, ["einsum_path", (0, 1), (0, 1)][:len(operands) + 1]:
        def product(a, path=path):
            return tw.einsum(subscripts, a, *operands, optimize=path, batch_invariant=True)
        whole = product(a)
        for rows in slice(0, 1), slice(3, 5), slice(10, 80):
            assert bits(product(a[rows])) == bits(whole[:, rows] if subscripts.endswith("ki") else whole[rows])


@pytest.mark.parametrize("kind", ["bf16", "f16", "f32"])
def test_rows_that_are_not_aligned(kind):
    """Nor in this machine's order of bytes. Operands at any address are multiplied in their own format."""
    a, b = random(kind, 80, 330), random(kind, 330, 70)
    memory = np.frombuffer(bytearray(b"0" + a.tobytes()), np.uint8)[1:].view(a.dtype).reshape(a.shape)
    others = [memory] + ([] if kind == "bf16" else [a.astype(a.dtype.newbyteorder())])
    for options in ({}, {"epilogue": lambda acc: acc*2}):
        whole = tw.matmul(a, b, batch_invariant=True, **options)
        for x in others:
            for rows in ROWS:
                assert bits(tw.matmul(x[rows], b, batch_invariant=True, **options)) == bits(whole[rows])
    whole = tw.grouped_matmul(a, b[None], [80], batch_invariant=True)
    assert bits(tw.grouped_matmul(memory[:7], b[None], [7], batch_invariant=True)) == bits(whole[:7])


@pytest.mark.parametrize("kind", ["f32", "c64", "bf16"])
def test_results_by_columns(kind):
    a, b = random(kind, 130, 1300), random(kind, 1300, 64)
    for epilogue in (None,) if kind == "c64" else (None, lambda acc: acc + 1):
        whole = tw.matmul(a, b, batch_invariant=True, epilogue=epilogue)
        for m in 2, 130:
            out = np.empty((64, m), whole.dtype).T
            tw.matmul(a[:m], b, out=out, batch_invariant=True, epilogue=epilogue)
            assert bits(out) == bits(whole[:m])


@pytest.mark.parametrize("shape", [(1, 70, 900), (70, 1, 900), (4, 200, 600), (150, 170, 1100)], ids=str)
@pytest.mark.parametrize("kind", ["f32", "f64", "bf16"])
def test_any_number_of_threads(kind, shape):
    m, n, k = shape
    a, b = random(kind, m, k), random(kind, k, n)
    one = tw.matmul(a, b, deterministic=True, threads=1)
    assert all(bits(tw.matmul(a, b, deterministic=True, threads=threads)) == bits(one) for threads in (2, 3, 8))


def activated(acc, bias):
    y = tw.gelu(acc + bias)
    return y, tw.row_sum(y)


def test_with_an_epilogue_and_row_sums():
    """What a row's sum is added up of must not depend on the tile either."""
    a, b, bias = random("f32", 80, 700), random("f32", 700, 150), random("f32", 150)

    how = {"epilogue": activated, "operands": {"bias": bias}, "batch_invariant": True}
    whole, sums = tw.matmul(a, b, **how, threads=2)
    for rows in ROWS:
        found, of_rows = tw.matmul(a[rows], b, **how, threads=1)
        assert bits(found) == bits(whole[rows])
        assert bits(of_rows) == bits(sums[rows])


def test_block_scaled_and_weights_of_prologues():
    a, b = random("f32", 80, 320), random("f32", 320, 60)
    qa, qb = tw.quantize(a, "mxfp8", axis=-1), tw.quantize(b, "mxfp8", axis=-2)
    whole = tw.matmul(qa, qb, batch_invariant=True, threads=2)
    assert bits(tw.matmul(tw.quantize(a[3:5], "mxfp8", axis=-1), qb, batch_invariant=True)) == bits(whole[3:5])
    weights, scale = np.random.default_rng(1).integers(-127, 128, (320, 60)).astype(np.int8), random("f32", 60)
    how = {"prologue_b": lambda w, scale: w * scale, "operands": {"scale": scale}, "batch_invariant": True}
    whole = tw.matmul(a, weights, **how)
    assert all(bits(tw.matmul(a[rows], weights, **how)) == bits(whole[rows]) for rows in ROWS)


def test_measured_plans_do_not_count(monkeypatch):
    shape, here = shape_of(tw.Gemm(200, 200, 200), 2), tw.detect()
    model = choose(shape.with_numerics(invariant="threads"), here)
    monkeypatch.setattr(choice, "best", lambda *_: pytest.fail("a measured plan was asked for"))
    assert choice.chosen(shape.with_numerics(invariant="threads"), here) == (model, "")


def test_plans_have_one_order():
    here = tw.target("x86-avx512")
    found = {invariant.order_of_sums(tw.plan(tw.Gemm(m, 3000, 3000), here, threads, batch_invariant=True),
                                     shape_of(tw.Gemm(m, 3000, 3000), target=here))
             for m in (1, 7, 500, 4000) for threads in (1, 5)}
    assert len(found) == 1


@pytest.mark.parametrize("target", ["sm_75", "sm_90a", "gfx942"])
@pytest.mark.parametrize("format", ["f32", "f16", "i8"])
def test_plans_of_gpus_have_one_order(target, format):
    """Also where rows are not aligned, and for C^T."""
    chip, size = tw.target(target), {"f32": 4, "f16": 2, "i8": 1}[format]
    for which, n, k in (("rows", 640, 512), ("columns", 640, 512), ("rows", 1, 77)):
        orders = set()
        for m in (1, 40, 700):
            rows, columns = (m, n) if which == "rows" else (n, m)
            out = "i32" if format == "i8" else format
            problem = tw.Gemm(rows, columns, k, format, out=out, layout="nt")
            at = (size, k*size, 0), (0, k*size, 0), (0, columns*gpu_shape.bits_of(out) // 8, 0)
            for places in (None, at):
                shape = gpu_shape.shape_of(problem, places).with_numerics(invariant=which)
                orders.add(gpu.choose(shape, chip).order_of_sums)
        assert len(orders) == 1
        assert () not in orders


@pytest.mark.parametrize(("target", "format"), [("sm_86", "f32"), ("sm_90a", "bf16")])
def test_rows_of_simulated_products(target, format):
    a, b = random(format, 40, 72), random(format, 72, 48)
    found = {}
    for m in (1, 40):
        problem = tw.Gemm(m, 48, 72, format, out="f32")
        plan = tw.plan(problem, target, batch_invariant=True)
        found[m] = tw.simulate(tw.compile(problem, target, plan), a[:m], b).result
    assert bits(found[1]) == bits(found[40][:1])


def test_explained():
    for target in ("x86-avx2", "sm_90a"):
        said = str(tw.explain(tw.Gemm(1000, 1000, 1000), target=target))
        assert "deterministic=True: " in said
        assert "batch_invariant=True: " in said


@pytest.mark.parametrize("option", ["deterministic", "batch_invariant"])
def test_flags(option):
    a = np.ones((3, 3), np.float32)
    with pytest.raises(TypeError, match=f"{option} must be True or False, not 'yes'"):
        tw.matmul(a, a, **{option: "yes"})
    with pytest.raises(ValueError, match="algorithm must be None with batch_invariant=True, not 'fastest'"):
        tw.matmul(a, a, batch_invariant=True, algorithm="fastest")
    with pytest.raises(ValueError, match="plan must be None with batch_invariant=True, not packed 6x16"):
        tw.matmul(a, a, batch_invariant=True, plan="packed 6x16 mc=96 kc=256 nc=4080")
