"""JAX's and CuPy's arrays on a CUDA device: XLA's FFI on its own stream, and arrays by themselves.

    python tests/jax/test_on_cuda.py [--time]       without pytest: every test, and what calls take
"""

import sys
import time

import numpy as np

import tilewright as tw

try:
    import pytest
except ImportError:
    pytest = None
try:
    import jax
    from jax import numpy as jnp

    import tilewright.jax as twj
    DEVICES = [x for x in jax.devices() if x.platform in ("gpu", "cuda")]
except (ImportError, RuntimeError):
    jax, DEVICES = None, []
try:
    import cupy
    cupy.cuda.runtime.getDeviceCount()
except Exception:       # not installed, or no device
    cupy = None

if pytest is not None:
    on_jax = pytest.mark.skipif(not DEVICES, reason="JAX has no CUDA device")
    on_cupy = pytest.mark.skipif(cupy is None, reason="there is no CuPy with a CUDA device")
else:
    def on_jax(f): return f if DEVICES else None
    def on_cupy(f): return f if cupy is not None else None


def arrays(*shapes, dtype="bfloat16"):
    rng = np.random.default_rng(5)
    return [jnp.asarray(rng.standard_normal(x, np.float32)).astype(dtype) for x in shapes]


def close(x, expected, tolerance):
    assert (x.dtype, x.shape) == (expected.dtype, expected.shape)
    assert x.devices() == expected.devices()
    x, expected = (np.asarray(y.astype("float32")) for y in (x, expected))
    np.testing.assert_allclose(x, expected, rtol=tolerance, atol=tolerance * max(np.abs(expected).max(), 1))


@on_jax
def test_jax_in_jit():
    for dtype, tolerance in (("bfloat16", 0.02), ("float16", 0.01), ("float32", 1e-4), ("int8", 0)):
        a, b = arrays((300, 520), (520, 200), dtype=dtype)
        a, b = (a * 3).astype(dtype), (b * 3).astype(dtype)
        out = "int32" if dtype == "int8" else dtype
        with jax.default_matmul_precision("highest"):
            expected = jnp.matmul(a, b, preferred_element_type=out)
        close(jax.jit(lambda a, b, out=out: twj.matmul(a, b, out_dtype=out))(a, b), expected, tolerance)
    a, b = arrays((4, 64, 96), (96, 80))
    close(jax.jit(lambda a, b: twj.einsum("bij,jk->bki", a, b))(a, b), jnp.einsum("bij,jk->bki", a, b), 0.02)


@on_jax
def test_jax_with_work_before_and_behind():
    """XLA's own kernels write an operand and read the result, on the same stream."""
    a, b = arrays((1024, 1024), (1024, 1024))

    def chain(product, a, b):
        for _ in range(4):
            a = jnp.tanh(product(a * 1.5, b) / 32) + b
        return a
    close(jax.jit(chain, static_argnums=0)(twj.matmul, a, b), jax.jit(chain, static_argnums=0)(jnp.matmul, a, b), 0.05)


@on_jax
def test_jax_gradients_and_epilogues():
    a, b, bias = arrays((64, 128), (128, 96), (96,), dtype="float32")

    def ours(a, b, bias):
        return twj.matmul(a, b, epilogue=lambda acc, bias: tw.gelu(acc + bias), operands={"bias": bias})

    def theirs(a, b, bias):
        return jax.nn.gelu(jnp.matmul(a, b, precision="highest") + bias, approximate=False)
    close(jax.jit(ours)(a, b, bias), theirs(a, b, bias), 1e-4)
    found, expected = (jax.jit(jax.grad(lambda *x, f=f: (f(*x)**2).sum(), (0, 1, 2)))(a, b, bias)
                       for f in (ours, theirs))
    for x, y in zip(found, expected):
        close(x, y, 1e-3)
    stack, = arrays((5, 64, 128), dtype="float32")
    close(jax.vmap(ours, (0, None, None))(stack, b, bias), jax.vmap(theirs, (0, None, None))(stack, b, bias), 1e-4)


@on_jax
def test_jax_outside_of_jit():
    a, b = arrays((100, 72), (72, 40))
    found = tw.matmul(a, b, out_dtype="bf16")
    assert isinstance(found, jax.Array)
    close(found, jnp.matmul(a, b), 0.02)


@on_cupy
def test_cupy():
    rng = np.random.default_rng(1)

    def near(x, expected):
        x = cupy.asnumpy(x).astype(np.float64)
        np.testing.assert_allclose(x, expected, rtol=tolerance, atol=tolerance * 300)
    for dtype in (np.float16, np.float32, np.float64, np.int8):
        x, y = ((rng.standard_normal(s) * 4).astype(dtype) for s in ((130, 300), (300, 70)))
        a, b = cupy.asarray(x), cupy.asarray(y)
        wide = {np.int8: "i32"}.get(dtype)
        expected = x.astype(np.float64) @ y.astype(np.float64)
        tolerance = {np.float16: 5e-3, np.float32: 1e-4, np.float64: 1e-9}.get(dtype, 0)
        found = tw.matmul(a, b, out_dtype=wide)
        assert type(found) is cupy.ndarray
        near(found, expected)
        out = cupy.zeros((70, 130), found.dtype).T
        assert tw.matmul(a, b, out=out, out_dtype=wide) is out
        assert (out == found).all()
        near(tw.einsum("ij,jk->ki", a, b, out_dtype=wide), expected.T)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        a = cupy.ones((2048, 2048), cupy.float32)
        for _ in range(3):
            a = tw.matmul(a, a) / 2048
    stream.synchronize()
    assert (cupy.asnumpy(a) == 1).all()
    bias = cupy.arange(70, dtype=cupy.float32)
    a, b = cupy.ones((30, 20), cupy.float16), cupy.ones((20, 70), cupy.float16)
    found = tw.matmul(a, b, epilogue=lambda acc, bias: tw.relu(acc - bias), operands={"bias": bias})
    assert (cupy.asnumpy(found) == np.maximum(20 - np.arange(70), 0)).all()


def microseconds(f, *given, rounds=5, calls=50):
    best = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        for _ in range(calls):
            result = f(*given)
        jax.block_until_ready(result)
        best.append((time.perf_counter() - start) / calls * 1e6)
    return sorted(best[1:])[rounds // 2]


def times():
    for n in (256, 1024, 4096):
        for dtype in ("bfloat16", "float32"):
            a, b = arrays((n, n), (n, n), dtype=dtype)
            ours, theirs = (microseconds(jax.jit(f), a, b) for f in (twj.matmul, jnp.matmul))
            print(f"jit of a product, {dtype} {n}: JAX {theirs:.1f} us, tilewright.jax {ours:.1f} us")
    a, b, bias = arrays((4096, 4096), (4096, 4096), (4096,))
    fused = microseconds(jax.jit(lambda a, b, x: twj.matmul(a, b, epilogue=lambda acc, x: tw.gelu(acc + x), operands={
        "x": x})), a, b, bias)
    plain = microseconds(jax.jit(lambda a, b, x: jax.nn.gelu(a @ b + x, approximate=False)), a, b, bias)
    print(f"with a bias and gelu, bfloat16 4096: JAX {plain:.1f} us, tilewright.jax {fused:.1f} us")


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            start = time.perf_counter()
            try:
                print(name, "skipped" if test is None else test() or f"passed in {time.perf_counter() - start:.1f} s",
                      flush=True)
            except Exception as error:
                print(name, "FAILED", type(error).__name__, str(error)[:1500], flush=True)
    if "--time" in sys.argv and DEVICES:
        times()
