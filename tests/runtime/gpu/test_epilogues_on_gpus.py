"""Epilogues of products on GPUs, simulated: values against the expression in float64, for every family of kernels."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.gpus import machine
from tilewright.expressions.epilogue import Epilogue, Read
from tilewright.expressions.functions import pairs
from tilewright.expressions.tracing import trace
from tilewright.formats import FORMATS


def made(function, *reads, results=("-",), acc="float"):
    """The text of an epilogue; reads: "bias bf16 row"."""
    operands = [Read(*x.split()) for x in reads]
    kinds = {x.name: "int" if x.format.startswith(("i", "u")) else "float" for x in operands}
    return Epilogue(trace(function, {"acc": acc, **kinds}), tuple(operands), results).text


def gelu_residual(acc, bias, res):
    return tw.gelu(acc + bias) * 0.5 + res


def swiglu(acc, bias):
    gate, up = pairs(acc)
    return tw.silu(gate + bias) * up


def data(problem, seed=0):
    """A, B, operands by name, arrays for all results."""
    rng, p = np.random.default_rng(seed), problem
    epilogue = Epilogue.read(p.epilogue)

    def numbers(shape, format, whole=False):
        dtype = FORMATS[format].dtype
        return (rng.integers(-3, 4, shape) if whole or dtype.kind in "iu" else rng.standard_normal(shape)).astype(dtype)
    a, b = (numbers(p.shapes[x], getattr(p, x)) for x in "ab")
    m, n = p.shapes["out"][-2:]
    lead = p.shapes["out"][:-2]
    shapes = {"scalar": (1, 1), "row": (1, n), "column": (m, 1), "full": (*lead, m, n)}
    operands = {x.name: numbers(shapes[x.place], x.format) for x in epilogue.operands}
    outs = [np.full((*lead, m, n), 7, FORMATS[p.out if x == "-" else x].dtype)
            for i, x in enumerate(epilogue.results) if i != epilogue.main]
    return epilogue, a, b, operands, outs


def check(problem, target, plan=None, alpha=1.0, beta=0.0):
    epilogue, a, b, operands, outs = data(problem)
    out = np.zeros(problem.shapes["out"], FORMATS[problem.out].dtype)
    if beta:
        out[...] = np.arange(out.size).reshape(out.shape) % 5
    product = alpha * (a.astype(np.float64) @ b.astype(np.float64)) + (beta * out.astype(np.float64) if beta else 0)
    if epilogue.kind == "int":
        product = product.astype(np.int64)
    kernel = tw.compile(problem, target, plan)
    kernel.simulate(a, b, out, alpha=alpha, beta=beta, operands=operands, outs=outs)
    rest = iter(outs)
    for i, wanted in enumerate(epilogue.evaluate(product, operands)):
        found = (out if i == epilogue.main else next(rest)).astype(np.float64)
        eps = {"f32": 2e-5, "f64": 1e-13, "f16": 2e-3, "bf16": 1e-2}.get(
            problem.out if i == epilogue.main or epilogue.results[i] == "-" else epilogue.results[i], 0.13)
        np.testing.assert_allclose(found, wanted, rtol=eps, atol=eps * 3)
    return kernel


def residual(format):
    return made(gelu_residual, f"bias {format} row", f"res {format} full")


@pytest.mark.parametrize(("target", "format", "out", "sizes", "plan"), [
    ("sm_80", "f32", "f32", (67, 70, 33), None),
    ("sm_80", "f32", "f32", (65, 67, 40), "simt 64x64x8 warp=32x32 thread=8x4 stages=3 vector=1 split_k=2"),
    ("sm_80", "f64", "f64", (33, 34, 20), None),
    ("sm_80", "bf16", "bf16", (65, 72, 64), None),
    ("sm_75", "f16", "f16", (33, 40, 32), None),
    ("sm_90a", "bf16", "bf16", (140, 72, 96), "wgmma 128x64x64 stages=3 warpgroups=2 vector_c=2 store=tma"),
    ("sm_90a", "bf16", "bf16", (70, 150, 64), "wgmma 64x64x64 stages=3 warpgroups=2 pingpong vector_c=2"),
    ("sm_90a", "bf16", "f32", (140, 72, 64), "wgmma 64x64x64 stages=2 warpgroups=2 pingpong vector_c=2 store=tma"),
    ("sm_90a", "bf16", "bf16", (1, 200, 64), None),
    ("sm_90a", "f32", "f32", (130, 1, 64), None),
    ("gfx942", "bf16", "bf16", (65, 68, 64), None),
    ("gfx950", "f16", "f32", (65, 67, 64), None),
    ("gfx942", "f32", "f32", (65, 68, 64),
     "mfma 64x64x32 wave=32x32 mfma=32 copy=registers stages=2 vector=4 split_k=2"),
])
def test_bias_gelu_and_residual(target, format, out, sizes, plan):
    check(tw.Gemm(*sizes, format, out=out, layout="nt" if "wgmma" in (plan or "") else "nn", epilogue=residual(format)),
          target, plan)


@pytest.mark.parametrize(("target", "plan"), [
    ("sm_80", None), ("sm_90a", "wgmma 128x64x64 stages=3 warpgroups=2 vector_c=2 store=tma"), ("gfx942", None)])
def test_several_results_alpha_beta_and_a_batch(target, plan):
    text = made(lambda acc, s, rows: (acc * s, tw.relu(acc) + rows, acc > 0), "s f32 scalar", "rows f32 column",
                results=("-", "bf16", "i8"))
    check(tw.Gemm(66, 72, 64, "bf16", out="bf16", layout="nt", batch=2, epilogue=text), target, plan, 0.5, 2.0)


@pytest.mark.parametrize(("target", "format", "plan"), [
    ("sm_80", "bf16", None), ("sm_80", "f32", None), ("gfx942", "f16", None), ("sm_90a", "bf16", None),
    ("sm_90a", "bf16", "wgmma 128x128x64 stages=3 warpgroups=2 vector_c=2 store=tma"),
])
def test_pairs(target, format, plan):
    text = made(swiglu, f"bias {format} row")
    check(tw.Gemm(130, 144, 64, format, out=format, layout="nt", epilogue=text), target, plan)


@pytest.mark.parametrize(("times", "tile"), [(1, "128x128x64 pingpong"), (2, "128x128x64 pingpong"), (1, "64x192x64")],
                         ids=["two of four at once", "one of four", "one of three"])
def test_blocks_of_c_in_a_loop(times, tile):
    """Of a warpgroup's sums, of which a long expression is emitted for some."""
    def f(acc, bias):
        x = acc + bias
        for _ in range(times):
            x = tw.gelu(x)
        return x
    size, turns = tile.split() if " " in tile else (tile, "")
    check(tw.Gemm(130, 136, 64, "bf16", out="bf16", layout="nt", epilogue=made(f, "bias bf16 row")), "sm_90a",
          f"wgmma {size} stages=3 warpgroups={1 + bool(turns)} {turns} vector_c=2 store=tma".replace("  ", " "))


@pytest.mark.parametrize("target", ["sm_90a", "gfx942"])
@pytest.mark.parametrize(("a", "out"), [("f32", "f32"), ("f16", "f16"), ("i8", "i32")])
def test_operands_of_64_bits_beside_sums_of_32(target, a, out):
    """Computed in 64 bits, whose numbers 32 would round away or cut off."""
    wide = "i64" if out == "i32" else "f64"
    function = (lambda acc, x: acc + (x >> 32)) if wide == "i64" else (lambda acc, x, y: acc + (x - y))
    names = ("x",) if wide == "i64" else ("x", "y")
    problem = tw.Gemm(5, 34, 32, a, out=out, layout="nt", epilogue=made(
        function, *(f"{name} {wide} row" for name in names), acc="int" if wide == "i64" else "float"))
    _, left, right, _, _ = data(problem)
    x = np.arange(34, dtype=FORMATS[wide].dtype)
    large = {"x": (x << 32) + 7} if wide == "i64" else {"x": x + 2.0**30, "y": np.full(34, 2.0**30)}
    found = tw.compile(problem, target).simulate(left, right, operands=large).result
    wanted = left.astype(np.float64) @ right.astype(np.float64) + x
    assert np.abs(found.astype(np.float64) - wanted).max() <= 2e-3 * np.abs(wanted).max()


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_pairs_that_lanes_do_not_have_are_refused(target):
    problem = tw.Gemm(45, 66, 80, "f64", out="f64", layout="nt", epilogue=made(swiglu, "bias f64 row"))
    with pytest.raises(ValueError, match="matrix instructions for f64 leave them to different ones"):
        _ = tw.compile(problem, target).functions


def test_names_of_operands_and_of_the_compiler_do_not_meet():
    """In a kernel's parameters: x_NAME and own_NAME."""
    names = "a", "b", "c", "ldc", "m", "alpha", "own_alpha", "scale_a", "x_a"
    function = eval(f"lambda acc, {', '.join(names)}: acc + {' + '.join(names)}")
    for target in "sm_80", "gfx942":
        check(tw.Gemm(5, 34, 32, "f32", out="f32", layout="nt", epilogue=made(function, *(
            f"{name} f32 {'row' if i % 2 else 'full'}" for i, name in enumerate(names)))), target)


@pytest.mark.parametrize(("target", "plan"), [("sm_80", None), ("sm_90a", None), ("gfx942", None)])
def test_integers(target, plan):
    text = made(lambda acc, bias, scale: (acc + bias) * scale, "bias i32 row", "scale f32 column", acc="int")
    check(tw.Gemm(65, 80, 64, "i8", out="f32", layout="nt", epilogue=text), target, plan)
    text = made(lambda acc, bias: (acc + bias) >> 2, "bias i32 row", acc="int")
    check(tw.Gemm(65, 80, 64, "i8", out="i8", layout="nt", epilogue=text), target, plan)


# ---- matmul on fake drivers

@pytest.fixture(params=["sm_90a", "sm_80", "gfx942"])
def on(request, monkeypatch):
    return machine(monkeypatch, request.param)


def random(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def same_as_on_a_cpu(on, a, b, epilogue, host=(), tolerance=1e-5, **options):
    """`host`: operands that stay in the host's memory."""
    operands = options.pop("operands", {})
    wanted = tw.matmul(a, b, epilogue=epilogue, operands=operands, **options)

    def there(x):
        return on.array(x) if isinstance(x, np.ndarray) else x
    found = tw.matmul(on.array(a), on.array(b), epilogue=epilogue,
                      operands={name: x if name in host else there(x) for name, x in operands.items()},
                      **{name: there(x) for name, x in options.items()})
    on.finish()
    many = isinstance(wanted, tuple)
    for x, y in zip(found if many else (found,), wanted if many else (wanted,), strict=True):
        assert (x.host.dtype, x.host.shape) == (y.dtype, y.shape)
        np.testing.assert_allclose(x.host.astype(float), y.astype(float), rtol=tolerance, atol=tolerance)


def test_matmul_of_a_function(on):
    a, b = random(33, 40), random(40, 36, seed=1)
    same_as_on_a_cpu(on, a, b, gelu_residual, operands={"bias": random(36, seed=2), "res": random(33, 36, seed=3)})
    same_as_on_a_cpu(on, a, b, lambda acc, s, rows: (acc * s, tw.relu(acc) + rows), host=("s", "rows"), alpha=0.5,
                     operands={"s": 2.0, "rows": random(33, 1, seed=2)})


def test_leading_axes_strides_c_and_pairs(on):
    a, b, res = random(2, 3, 5, 24), random(24, 20, seed=1), random(3, 5, 40, seed=2)[..., ::2]
    same_as_on_a_cpu(on, a, b, lambda acc, res: acc + res, operands={"res": res})
    same_as_on_a_cpu(on, a[0], random(3, 24, 20, seed=1), lambda acc: tw.relu(acc), c=res, beta=2.0)
    same_as_on_a_cpu(on, a, b, swiglu, operands={"bias": random(10, seed=3)})
    same_as_on_a_cpu(on, a[0, 0, :1], b, swiglu, operands={"bias": random(10, seed=3)})
    same_as_on_a_cpu(on, a[0, 0, :, :0], b[:0], lambda acc, x: acc + x, operands={"x": random(20)})


def test_results_anywhere(on):
    a, b, bias = random(17, 24), random(24, 20, seed=1), random(20, seed=2)
    wanted = a @ b + bias
    outs = on.array(np.zeros((20, 17), np.float32).T), on.array(np.zeros((17, 20), np.float16))
    found = tw.matmul(on.array(a), on.array(b), outs, operands={"bias": on.array(bias)}, out_dtype=("f32", "f16"),
                      epilogue=lambda acc, bias: (acc + bias, acc))
    on.finish()
    assert found[0] is outs[0]
    np.testing.assert_allclose(found[0].host, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[1].host, a @ b, rtol=1e-2, atol=1e-2)


def test_reductions(on):
    a, b, bias = random(2, 37, 24), random(24, 20, seed=1), random(20, seed=2)
    same_as_on_a_cpu(on, a, b, lambda acc, bias: (tw.relu(acc + bias), tw.row_amax(acc), tw.column_sum(acc * bias)),
                     operands={"bias": bias})
    same_as_on_a_cpu(on, a[0], b, lambda acc: (tw.row_sum(tw.exp(acc * 0.1)), tw.column_max(acc)))


@pytest.mark.parametrize("dtype", ["f4", "i1"])
def test_where_rows_and_columns_are_extreme(monkeypatch, dtype):
    """And integers, reduced; of a batch, of a NaN, into an array of the caller's."""
    on, rng = machine(monkeypatch, "sm_90a"), np.random.default_rng(4)
    a, b = (rng.integers(-2, 3, shape).astype(dtype) for shape in ((2, 5, 20), (20, 43)))
    if dtype == "f4":
        a[0, 3] = np.nan
    same_as_on_a_cpu(on, a, b, lambda acc: (tw.row_argmin(acc), tw.column_argmax(acc), tw.row_sum(acc * acc), acc + 1))
    out = on.array(np.zeros(5, np.int64))
    assert tw.matmul(on.array(a[1]), on.array(b), out, epilogue=lambda acc: tw.row_argmax(acc)) is out
    on.finish()
    np.testing.assert_array_equal(out.host, (a[1].astype(int) @ b.astype(int)).argmax(-1))


@pytest.mark.parametrize(("format", "n"), [("mxfp8", 72), ("mxfp8_e5m2", 37), ("mxfp6", 33), ("mxfp6_e3m2", 64),
                                           ("mxfp4", 100)])
def test_block_scaled_results(monkeypatch, format, n):
    """To the bit what tilewright.quantize makes of the result in f32: of numbers of all sizes, of nan and inf."""
    on, rng = machine(monkeypatch, "sm_90a"), np.random.default_rng(3)
    a, b = (rng.integers(-9, 10, shape).astype(np.float32) for shape in ((2, 9, 8), (8, n)))
    scales = np.ldexp(rng.random((2, 9, n), np.float32), rng.integers(-160, 122, (2, 9, n))).astype(np.float32)
    scales[:, :3] = rng.choice([np.nan, np.inf, 0.0, 1.0, 3.0], (2, 3, n))
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = tw.quantize((a @ b)*scales, format)
    found = tw.matmul(on.array(a), on.array(b), epilogue=lambda acc, s: acc*s, out_dtype=format,
                      operands={"s": on.array(scales)})
    on.finish()
    assert (found.shape, found.format) == (wanted.shape, wanted.format)
    np.testing.assert_array_equal(found.scales.host, wanted.scales)
    np.testing.assert_array_equal(found.elements.host, wanted.elements)


def test_calls_like_earlier_ones_are_repeated(monkeypatch):
    """By the fast path, and by the long way as soon as anything but addresses is another."""
    on, long_way, factor = machine(monkeypatch, "sm_90a"), [], 2.0
    whole = on.engine.matmul
    monkeypatch.setattr(on.engine, "matmul", lambda *args: long_way.append(args) or whole(*args))

    def f(acc, bias, res):
        y = (acc + bias)*factor
        return y + res, tw.relu(y)

    def call(epilogue=f, out=None, seed=0, n=36, alpha=1, **operands):
        """Whether the results came the long way."""
        long_way.clear()
        a, b = random(33, 40, seed=seed), random(40, n, seed=seed + 1)
        given = {"bias": on.array(random(n, seed=seed)), "res": on.array(random(33, n))} | operands
        wanted = f(a.astype(float) @ b * alpha, **{x: np.array(getattr(y, "host", y)) for x, y in given.items()})
        found = tw.matmul(on.array(a), on.array(b), out, epilogue=epilogue, operands=given, alpha=alpha)
        on.finish()
        for x, y, z in zip(found, wanted, out or (None, None), strict=True):
            assert z is None or x is z
            np.testing.assert_allclose(x.host, y, rtol=1e-5, atol=1e-5)
        return bool(long_way)

    memory = on.array(np.zeros((66, 36), np.float32))
    upper, lower = memory[:33], memory[33:]
    made = tw.epilogue(f, bias="row", res="full")
    for how in ({}, {"out": (upper, lower)}, {"epilogue": made}, {"out": (None, lower)}, {"n": 72}):
        assert call(**how)
        assert not call(**how, seed=5)
    assert call(bias=2.0)
    assert not call(bias=3.0)
    assert not call(alpha=0.5)
    assert call(out=(upper, None), res=upper)           # an operand is written to
    factor = 3.0
    assert call()
    assert not call()
    for other in ({"epilogue": lambda acc, bias, res: f(acc, bias, res)},       # traced in every call
                  {"res": on.array(random(33, 72)[:, ::2])}, {"bias": random(36)}):     # copied in every call
        assert call(**other)
        assert call(**other)


@pytest.mark.parametrize("n", [40, 37])
def test_results_in_nvfp4_are_those_of_quantize(monkeypatch, n):
    """Of sizes whose scales are the smallest ones too, of infinite numbers and of zeros; the scale of all waits."""
    on, rng = machine(monkeypatch, "sm_90a"), np.random.default_rng(0)
    a = (rng.standard_normal((33, 16)) * np.exp(3*rng.standard_normal((33, 1)))).astype(np.float32)
    b, strange = on.array(random(16, n)), a.copy()
    strange[3, 2] = np.inf
    for x in (a, strange, 0*a):
        q, y = tw.matmul(on.array(x), b, epilogue=lambda acc: (acc, acc), out_dtype=("nvfp4", "f32"))
        on.finish()
        wanted = tw.quantize(y.host, "nvfp4")
        assert q.tensor_scale == wanted.tensor_scale
        np.testing.assert_array_equal(q.scales.host, wanted.scales)
        np.testing.assert_array_equal(q.elements.host, wanted.elements)


def test_block_scaled_results_are_refused_on_amd(monkeypatch):
    on = machine(monkeypatch, "gfx950")
    with pytest.raises(TypeError, match="block-scaled results on NVIDIA's GPUs alone"):
        tw.matmul(on.array(random(8, 16)), on.array(random(16, 8)), epilogue=lambda acc: acc, out_dtype="nvfp4")


def test_what_is_refused(on):
    a, b = on.array(random(8, 16)), on.array(random(16, 8))
    for options, error, message in [
            ({"epilogue": lambda acc: (acc, tw.row_max(acc > 0))}, TypeError, "row_max of comparisons"),
            ({"epilogue": lambda acc: acc, "out": (None, None)}, ValueError, "array or None for each of .* 1 results"),
            ({"epilogue": lambda acc, x: acc + x, "operands": {"x": random(9)}}, ValueError, "must broadcast to")]:
        with pytest.raises(error, match=message):
            tw.matmul(a, b, **options)
