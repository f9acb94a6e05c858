"""tilewright.jax beside jax.numpy: values, derivatives, batches, epilogues; what it says of what it cannot do."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.expressions.tracing import trace

jax = pytest.importorskip("jax")
from jax import numpy as jnp  # noqa: E402

import tilewright.jax as twj  # noqa: E402
from tests.helpers import gpus  # noqa: E402
from tests.jax.frames import Frame  # noqa: E402
from tilewright.jax import ffi  # noqa: E402


def arrays(*shapes, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.standard_normal(shape).astype(np.float32)).astype(dtype) for shape in shapes]


def close(x, expected, tolerance=1e-4):
    assert x.dtype == expected.dtype
    assert x.shape == expected.shape
    x, expected = (np.asarray(y.astype("complex64")) for y in (x, expected))
    np.testing.assert_allclose(x, expected, atol=tolerance, rtol=tolerance)


def gradients(f, *given):
    return jax.grad(lambda *given: jnp.sum(jnp.sin(f(*given))), tuple(range(len(given))))(*given)


@pytest.mark.parametrize("shapes", [((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 5)), ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)),
                                    ((7, 1, 3, 4), (2, 4, 5)), ((0, 4), (4, 5)), ((3, 0), (0, 5))])
def test_matmul(shapes):
    a, b = arrays(*shapes)
    close(jax.jit(twj.matmul)(a, b), a @ b)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "int32", "uint8", "complex64"])
def test_formats(dtype):
    a = jnp.asarray(np.random.default_rng(0).integers(0, 4, (30, 40))).astype(dtype)
    close(twj.matmul(a, a.T), a @ a.T)
    if dtype == "int8":
        close(twj.matmul(a, a.T, out_dtype="int32"), jnp.matmul(a, a.T, preferred_element_type="int32"))


@pytest.mark.parametrize(("subscripts", "shapes"), [
    ("ij,jk->ik", ((3, 4), (4, 5))), ("bij,bjk->bki", ((6, 3, 4), (6, 4, 5))),
    ("ij,kj,lk->il", ((3, 4), (5, 4), (6, 5))),
    ("...ij,...jk->...ik", ((2, 1, 3, 4), (5, 4, 6))), ("ii,ij->j", ((4, 4), (4, 5))), ("ijx,jk", ((3, 4, 2), (4, 5))),
    ("ij->ji", ((3, 4),)), ("ij,ij->ij", ((3, 4), (3, 4))), ("i,j->ij", ((3,), (4,)))])
def test_einsum_and_its_gradients(subscripts, shapes):
    given = arrays(*shapes)

    def ours(*given):
        return twj.einsum(subscripts, *given)

    def theirs(*given):
        return jnp.einsum(subscripts, *given)
    close(ours(*given), theirs(*given))
    for x, expected in zip(gradients(ours, *given), gradients(theirs, *given)):
        close(x, expected)


def test_transformations():
    a, b, stack = arrays((3, 4), (4, 5), (6, 3, 4))
    close(jax.vmap(twj.matmul, (0, None))(stack, b), stack @ b)
    close(jax.vmap(twj.matmul, (2, None))(jnp.moveaxis(stack, 0, 2), b), stack @ b)
    grad = jax.jit(jax.vmap(jax.grad(lambda f, a, b: jnp.sum(f(a, b)**3), 1), (None, 0, None)), static_argnums=0)
    close(grad(twj.matmul, stack, b), grad(jnp.matmul, stack, b), 1e-3)
    for f in (jax.hessian, lambda f: jax.jacfwd(jax.jacrev(f))):
        close(f(lambda a: jnp.sum(twj.matmul(a, b)**3))(a), f(lambda a: jnp.sum((a @ b)**3))(a), 1e-3)
    close(jax.lax.map(lambda a: twj.matmul(a, b), stack), stack @ b)
    assert "tilewright_contract" in str(jax.make_jaxpr(twj.matmul)(a, b))


def test_epilogue():
    a, b, bias, stack, rows = arrays((3, 4), (4, 5), (5,), (6, 3, 4), (6, 5))

    def ours(a, b, bias):
        return twj.matmul(a, b, epilogue=lambda acc, bias: tw.gelu(acc + bias), operands={"bias": bias})

    def theirs(a, b, bias):
        return jax.nn.gelu(a @ b + bias, approximate=False)
    close(jax.jit(ours)(a, b, bias), theirs(a, b, bias))
    for x, expected in zip(gradients(jax.jit(ours), a, b, bias), gradients(theirs, a, b, bias)):
        close(x, expected)
    for axes, given in (((0, None, None), (stack, b, bias)), ((None, None, 0), (a, b, rows)),
                        ((0, None, 0), (stack, b, rows))):
        close(jax.vmap(ours, axes)(*given), jax.vmap(theirs, axes)(*given))
    found = twj.einsum("ij,jk,lk->il", a, b, rows, epilogue=lambda acc: tw.where(acc > 0, acc, acc * 0.5))
    close(found, jax.nn.leaky_relu(a @ b @ rows.T, 0.5))
    close(jax.grad(lambda a: twj.matmul(a, b, epilogue=lambda acc, mask: tw.where(mask > 0, acc, 0.0),
                                        operands={"mask": jnp.arange(5)}).sum())(a),
          jax.grad(lambda a: jnp.where(jnp.arange(5) > 0, a @ b, 0.0).sum())(a))


@pytest.mark.parametrize("name", sorted(twj.products.OPERATIONS))
def test_xlas_operations_are_those_of_epilogues(name):
    from tilewright.expressions.operations import OPERATIONS
    known = OPERATIONS[name]
    dtype = np.float32 if known.takes[-1] == "float" else np.int32
    given = [np.array([1, 3, 2, 5], dtype), np.array([2, 1, 2, 3], dtype), np.array([1, 2, 3, 4], dtype)]
    count = known.numpy.nin if isinstance(known.numpy, np.ufunc) else 3 if name in ("fma", "where") else 1
    given = [given[0] > 1, *given[1:]] if name == "where" else given[:count]
    np.testing.assert_allclose(twj.products.OPERATIONS[name](*given), known.numpy(*given), rtol=1e-5)


def test_a_call_is_its_text():
    """What a compiled program stores is all that another process needs."""
    epilogue = trace(lambda acc, bias: acc + bias, {"acc": "float", "bias": "float"}).text
    text = ffi.describe("ij,jk->ik", None, epilogue, ("bias",))
    out = np.empty((2, 2), np.float32)
    ones = np.ones((2, 2), np.float32)
    ffi._call(text.encode())([ones, ones, np.float32([3, 4])], out)
    assert (out == [[5, 6], [5, 6]]).all()


def test_calls_like_an_earlier_one_on_a_device(monkeypatch):
    """They take what that one came to, with other buffers on another stream, and no others do."""
    there, call, made = gpus.machine(monkeypatch, "sm_90a"), ffi._call, []
    monkeypatch.setattr(ffi, "_records", {})
    monkeypatch.setattr(ffi, "_call", lambda text: made.append(text) or call(text))
    epilogue = trace(lambda acc, bias: acc + bias, {"acc": "float", "bias": "float"}).text
    text = ffi.describe("ij,jk->ik", None, epilogue, ("bias",))
    for m, stream, expected in ((40, 0, 1), (40, 7, 1), (24, 7, 2), (40, 7, 2)):
        a, b, bias, c = (there.array(gpus.aligned(np.random.default_rng(m + stream).integers(-3, 4, x).astype("f4")))
                         for x in ((m, 32), (32, 16), 16, (m, 16)))
        frame = Frame(text, *((x.pointer, 11, x.shape) for x in (a, b, bias, c)), stream=stream)
        assert not ffi._execute(True, frame.address)
        there.machine.run(stream)
        assert (c.host == a.host @ b.host + bias.host).all()
        assert len(made) == expected


def test_errors():
    a, b = arrays((3, 4), (5, 6))
    for error, message, call in (
            (ValueError, r"a's last axis has 4 elements, and b's rows are 5", lambda: twj.matmul(a, b)),
            (ValueError, "names 2 operands, and 1 are given", lambda: twj.einsum("ij,jk", a)),
            (ValueError, "axes with the label 'j' have the sizes 4 and 5", lambda: twj.einsum("ij,jk", a, b)),
            (ValueError, "has 'ij' for an operand with 1 axes", lambda: twj.einsum("ij,jk", a[0], b)),
            (TypeError, "out_dtype must not be int8", lambda: twj.matmul(a, a.T, out_dtype="int8")),
            (ValueError, "an epilogue must have one result",
             lambda: twj.matmul(a, a.T, epilogue=lambda acc: (acc, acc))),
            (ValueError, r"operands\['x'\] has the shape \(7,\)", lambda: twj.matmul(
                a, a.T, epilogue=lambda acc, x: acc + x, operands={"x": jnp.zeros(7)}))):
        with pytest.raises(error, match=message):
            call()
    with pytest.raises(jax.errors.JaxRuntimeError, match="tilewright: TypeError: XLA's format number 21 is none"):
        jax.ffi.ffi_call(ffi.TARGET, jax.ShapeDtypeStruct((2, 2), "int4"))(
            a, b, call=ffi.describe("ij,jk->ik", None, None, ())).block_until_ready()
