"""Arrays of other libraries in the host's memory, by DLPack: the array API's own (array_api_strict), and JAX's."""

import numpy as np
import pytest

import tilewright as tw

xp = pytest.importorskip("array_api_strict")


def arrays(*shapes, dtype=np.float64):
    rng = np.random.default_rng(3)
    return [xp.asarray(rng.integers(-4, 5, shape).astype(dtype)) for shape in shapes]


def equal(x, expected):
    assert type(x) is type(xp.zeros(1))
    found = np.from_dlpack(x)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["int8", "float32", "complex128"])
def test_functions(dtype):
    a, b = arrays((3, 4), (4, 5), dtype=dtype)
    x, y = map(np.from_dlpack, (a, b))
    equal(tw.matmul(a, b), x @ y)
    equal(tw.matmul(a, y), x @ y)                       # one of NumPy's beside it
    equal(tw.matmul(x[:, ::2], xp.permute_dims(a, (1, 0))[::2, :]), x[:, ::2] @ x.T[::2])
    equal(tw.einsum("ij,jk->ki", a, b), (x @ y).T)
    equal(tw.einsum("ij,jk,lk->il", a, b, b), x @ y @ y.T)
    equal(tw.tensordot(a, b, 1), x @ y)
    equal(tw.matmul(a[0, :], b[:, 0]), np.asarray(x[0] @ y[:, 0]))


def test_options():
    a, b, c = arrays((3, 4), (4, 5), (3, 5), dtype=np.float32)
    x, y, z = map(np.from_dlpack, (a, b, c))
    equal(tw.matmul(a, b, c=c, beta=2, alpha=3), 3 * (x @ y) + 2 * z)
    equal(tw.matmul(a, b, epilogue=lambda acc, bias: tw.relu(acc + bias), operands={"bias": c}),
          np.maximum(x @ y + z, 0))
    equal(tw.matmul(a, c, trans_a=True), x.T @ z)
    equal(tw.contract(lambda a, b: a + b, a, b, reduce="min"), (x[:, :, None] + y).min(1))
    offsets = np.array([1, 3])
    equal(tw.grouped_matmul(a, xp.stack([b, b]), offsets), x @ y)
    assert type(tw.pack(b)).__name__ == "Packed"
    equal(tw.matmul(a, tw.pack(b)), x @ y)


def test_out():
    a, b, out = arrays((3, 4), (4, 5), (3, 5))
    x, y, z = map(np.from_dlpack, (a, b, out))
    before = z.copy()
    tw.gemm(2, a, b, 1, out)
    equal(out, before + 2 * (x @ y))
    assert tw.matmul(a, b, out=out) is out
    equal(out, x @ y)
    assert tw.einsum("ij,jk->ik", a, b, out=out) is out
    fixed = np.zeros((3, 5))
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only; it must be an array that can be written to"):
        tw.matmul(a, b, out=xp.asarray(fixed, copy=False))


def test_the_device_is_that_of_the_operand():
    a = xp.asarray(np.ones((2, 2)), device=xp.Device("device1"))
    assert tw.matmul(a, a).device == xp.Device("device1")


def test_arrays_of_two_libraries():
    class Another:
        def __init__(self, x):
            self.x = x

        def __dlpack__(self, **options):
            return self.x.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.x.__dlpack_device__()

    (a,) = arrays((3, 3))
    message = "operands and out must be arrays of one library, beside NumPy's, not array_api_strict and "
    with pytest.raises(TypeError, match=message):
        tw.matmul(a, Another(np.ones((3, 3))))
    with pytest.raises(TypeError, match=r"Another has no namespace with from_dlpack"):
        tw.matmul(Another(np.ones((3, 3))), np.ones((3, 3)))


def test_jax():
    jax = pytest.importorskip("jax")
    a = jax.numpy.arange(12, dtype="bfloat16").reshape(3, 4)
    x = np.asarray(a, np.float32)
    for found, dtype in ((tw.matmul(a, a.T), "float32"), (tw.matmul(a, a.T, out_dtype="bf16"), "bfloat16")):
        assert isinstance(found, jax.Array)
        assert found.dtype == dtype
        np.testing.assert_allclose(np.asarray(found, np.float32), x @ x.T, rtol=0.01)
    with pytest.raises(ValueError, match="out is read-only"):
        tw.matmul(a, a.T, out=jax.numpy.zeros((3, 3)))


def test_attention_gives_arrays_of_the_caller():
    x = xp.ones((3, 4), dtype=xp.float32)
    for found in (tw.attention(x, x, x), *tw.attention(x, x, x, bias=xp.ones((3, 3)), return_lse=True)):
        assert type(found) is type(x)
