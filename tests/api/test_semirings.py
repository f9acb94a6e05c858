"""contract: what is particular to products with their own arithmetic. Values are in tests/products."""
import numpy as np
import pytest

import tilewright as tw
from tests.products.functions import REDUCTIONS, TERMS
from tilewright.api import fused, host
from tilewright.compiler.llvm import assembly
from tilewright.expressions.numerics import Numerics
from tilewright.expressions.semiring import Semiring, semiring
from tilewright.expressions.tracing import TracingError
from tilewright.inspect.resources import hot_loop
from tilewright.kernels.cpu.microkernel import emit_microkernel
from tilewright.plans import choose, semirings
from tilewright.plans.cpu_shape import Shape, Strides
from tilewright.plans.lowering import Product, lower
from tilewright.runtime import repeats
from tilewright.runtime.cpu.panels import blocks
from tilewright.runtime.cpu.recipe import Recipe

RNG = np.random.default_rng(5)


def numbers(dtype, *shape):
    return RNG.integers(-9, 10, shape).astype(dtype)


# terms, reductions, and whether any k will do: what a step beyond k, of 0 and 0, would change has whole words only
BYTES = [("and", "any", True), ("both", "any", True), ("but not", "or", True), ("or", "and", False),
         ("least", "min", False), ("chosen", "max", False)]


@pytest.mark.parametrize(("term", "reduce", "any_k"), BYTES)
def test_terms_of_bytes_are_computed_in_bytes(term, reduce, any_k):
    f, reduce = TERMS[term].traced, REDUCTIONS.get(reduce, reduce)
    text, target = semiring(f, reduce, "int").text, tw.detect()
    for m, n, k in ((1, 1, 1), (19, 70, 1028), (9, 33, 61)):
        product = Product(m, n, k, "i8", "i8", "i32", Strides(k, 1, n, 1, n, 1), numerics=Numerics(semiring=text))
        shape = lower(product, target).shape
        assert (shape.dtype == "bytes") == (any_k or k % 4 == 0)
    a, b = RNG.integers(-128, 128, (m, k)).astype(np.int8), RNG.integers(-128, 128, (k, n)).astype(np.int8)
    kernel = tw.compile(tw.Gemm(m, n, k, "i8", out="i32", semiring=text))
    np.testing.assert_array_equal(kernel.simulate(a, b).result, semiring(f, reduce, "int").evaluate(a, b))


def test_terms_that_leave_bytes():
    for f, reduce in ((lambda x, y: x + y, "max"), (lambda x, y: abs(x & y), "any"), (lambda x, y: x & 999, "any"),
                      (lambda x, y: x & y, "sum"), (lambda x, y: x & y, "argmin"),
                      (lambda x, y: tw.popcount(x & y), "any")):
        assert not semirings.in_bytes(semiring(f, reduce, "int").text, 64)


def test_nans_are_left_out_of_min_and_max():
    a = np.array([[np.nan, 3, 1], [np.nan] * 3], np.float32)
    b = np.ones((3, 1), np.float32)
    assert tw.contract(lambda x, y: x * y, a, b, reduce="max").tolist() == [[3.0], [-np.inf]]
    assert tw.contract(lambda x, y: x * y, a, b, reduce="min").tolist() == [[1.0], [np.inf]]


def product(x, y):
    return x * y


def test_indices_of_nans_and_infinities():
    a = RNG.integers(-3, 4, (6, 1100)).astype("f4")
    a[0], a[1, 500], a[1, 1000], a[2], a[3], a[4, 700:] = np.nan, np.nan, np.nan, np.inf, -np.inf, np.inf
    b = RNG.choice([-1, 1], (1100, 5)).astype("f4")
    terms = a[:, None] * b.T[None]
    for reduce in "argmin", "argmax":
        np.testing.assert_array_equal(tw.contract(product, a, b, reduce=reduce), getattr(terms, reduce)(-1))
    np.testing.assert_array_equal(tw.contract(product, a, b, reduce="max_argmax")[0], terms.max(-1))
    with np.errstate(invalid="ignore"):
        wanted = np.logaddexp.reduce(terms.astype(float), -1)
    np.testing.assert_allclose(tw.contract(product, a, b, reduce="logsumexp"), wanted, rtol=1e-6)


def test_logarithms_of_sums_of_exponentials():
    """Of terms far beyond the range in which e^x is finite; in f64 and through an epilogue, too."""
    a, b = 30 * RNG.normal(size=(9, 600)), 30 * RNG.normal(size=(600, 11))
    wanted = np.logaddexp.reduce(a[:, None] * b.T[None], -1)
    np.testing.assert_allclose(tw.contract(product, a, b, reduce="logsumexp"), wanted, rtol=1e-14)
    found = tw.contract(product, a.astype("f4"), b.astype("f4"), reduce="logsumexp", epilogue=lambda acc, x: acc - x,
                        operands={"x": wanted.astype("f4")})
    np.testing.assert_allclose(found, 0, atol=1e-5 * abs(wanted).max())


MEANS = tw.Reduction((0.0, 0.0), lambda s, t, p: (s[0] + t, s[1] + t * t), lambda x, y: (x[0] + y[0], x[1] + y[1]),
                     lambda s: (s[0] / 600, s[1] / 600 - s[0] * s[0] / 360000))
LAST = tw.Reduction((-1,), lambda s, t, p: (tw.where(t > 60, p, s[0]),), lambda x, y: (tw.where(x[0] < y[0], y[0],
                                                                                                  x[0]),))


def test_reductions_of_ones_own():
    """Of several fields and results; of indices alone; batches; without a term."""
    a, b = numbers("f4", 2, 5, 600), numbers("f4", 2, 600, 19)
    terms = a[:, :, None] * np.swapaxes(b, 1, 2)[:, None]
    mean, variance = tw.contract(product, a, b, reduce=MEANS)
    np.testing.assert_allclose(mean, terms.mean(-1, dtype=float), atol=1e-5)
    np.testing.assert_allclose(variance, terms.var(-1, dtype=float), rtol=1e-5)
    np.testing.assert_allclose(mean, semiring(product, MEANS).evaluate(a, b)[0], atol=1e-5)
    wanted = np.where(terms > 60, np.arange(600), -1).max(-1)
    np.testing.assert_array_equal(tw.contract(product, a, b, reduce=LAST), wanted)
    assert (tw.contract(product, a[..., :0], b[:, :0], reduce=LAST) == -1).all()
    assert (tw.contract(product, a[..., :0], b[:, :0], reduce="logsumexp") == -np.inf).all()
    peaks = tw.contract(product, a[0], b[0], reduce="max_argmax", epilogue=lambda v, i: (tw.row_max(v), v - i))
    np.testing.assert_array_equal(peaks[0], terms[0].max((-1, -2)))
    np.testing.assert_array_equal(peaks[1], terms[0].max(-1) - terms[0].argmax(-1))


def test_no_values():
    a, b = np.ones((2, 0), np.float32), np.ones((0, 3), np.float32)
    np.testing.assert_array_equal(tw.contract(lambda x, y: x + y, a, b), np.zeros((2, 3)))
    for reduce in "min", "argmax":
        with pytest.raises(ValueError, match=f"the {reduce} of no values: k must be 1 or more"):
            tw.contract(lambda x, y: x + y, a, b, reduce=reduce)
    assert tw.contract(lambda x, y: x + y, a[:0], b).shape == (0, 3)


@pytest.mark.parametrize("name", ["x86-avx2", "x86-avx512"])
@pytest.mark.parametrize(("f", "reduce"), [(lambda x, y: (x - y)**2, "sum"), (product, "argmin"),
                                           (product, "logsumexp"), (lambda x, y: tw.exp(-(x - y)**2), "sum"),
                                           (lambda x, y: x & y, "any")])
def test_tiles_stay_in_registers(f, reduce, name):
    target, dtype = tw.target(name), "bytes" if reduce == "any" else "f32"
    text = semiring(f, reduce, "int" if dtype == "bytes" else "float").text
    shape = Shape(dtype, 1024, 1024, 1024, "rows", "rows", 1, numerics=Numerics(semiring=text))
    plan = choose.choose(shape, target)
    vectors = plan.nr // target.lanes(4)
    assert semirings.registers(text, plan.mr, vectors) <= target.tile_registers or plan.mr * vectors == 1
    loop = hot_loop(assembly(emit_microkernel(target, dtype, plan.mr, vectors, SEMIRING=text), target))
    assert loop.spills == 0, loop.text


@pytest.mark.parametrize(("f", "wanted"), [
    (lambda x, y: (x - y)**2, "sub right left; fma %0 %0 s0"), (lambda x, y: x, "add s0 left"),
    (lambda x, y: abs(x - y), "sub right left; abs %0; add s0 %1"), (lambda x, y: x + y, "add left right; add s0 %0"),
    (lambda x, y: x - y, None), (lambda x, y: (x - y)*(x - y)*(x - y), None), (lambda x, y: x*y + x, None),
    (lambda x, y: tw.maximum(x, y), None)])
def test_elements_of_a_are_broadcast_where_they_are_used(f, wanted):
    """A Zen 4 broadcasts from memory without its vector units, if the instruction is no other than the one that
    uses the element; x - y is computed as y - x, which an instruction can, where nothing but its square counts."""
    made = semiring(f)
    assert (made.left_last is None) == (wanted is None)
    if wanted:
        assert f"; {wanted}; ->" in made.left_last.text
    loop = hot_loop(assembly(emit_microkernel(tw.target("x86-avx512"), "f32", 8, 3, SEMIRING=made.text),
                             tw.target("x86-avx512")))
    assert ("vbroadcastss" in loop.text) == (wanted is None)
    assert loop.spills == 0


def test_states_have_space_between_blocks_of_k():
    """As many tiles as C has, of all fields."""
    text = semiring(product, "argmin").text
    shape = Shape("f32", 200, 300, 2000, "rows", "rows", 1, out="i32", numerics=Numerics(semiring=text))
    plan = choose.choose(shape, tw.detect())
    recipe = Recipe(shape, Strides(2000, 1, 300, 1, 300, 1), plan, tw.detect())
    cut = blocks(shape, plan)
    assert cut.kc < 2000
    tiles = -(-200 // plan.mr) * cut.nc_panels
    assert recipe.sums == tiles * plan.mr * plan.nr * 4 * 2


def test_texts():
    made = semiring(lambda x, y: x - 2*y, "max")
    assert Semiring.read(made.text) == made
    assert Semiring.read(Numerics(semiring=made.text).swapped.semiring).swapped == made
    assert made.swapped.step != made.step
    for reduce in MEANS, "argmin":
        made = semiring(product, reduce)
        assert Semiring.read(made.text) == made
        assert (made.state, Semiring.read(made.text).step) == (2, made.step)
    for text in ("", "best | a:float b:float; add a b; -> %0", "sum | a:float; -> a", "sum | a:float b:int; -> a"):
        with pytest.raises(ValueError, match="is not the text of a semiring"):
            Semiring.read(text)


X = np.ones((3, 3), np.float32)


@pytest.mark.parametrize(("call", "error", "sentence"), [
    (lambda: tw.contract(lambda x: x, X, X), TypeError, "f must take two numbers"),
    (lambda: tw.contract(3, X, X), TypeError, "f must be a function of two numbers, not 3"),
    (lambda: tw.contract(lambda x, y: (x, y), X, X), TypeError, "f must return one number"),
    (lambda: tw.contract(lambda x, y: x if x > y else y, X, X), TracingError, "test_semirings.py"),
    (lambda: tw.contract(lambda x, y: x * y, X, X, reduce="mean"), ValueError, "reduce must be one of sum, min"),
    (lambda: tw.contract(lambda x, y: x * y, X, X, over="j"), ValueError, 'over must be "k", not \'j\''),
    (lambda: tw.contract(lambda x, y: x * y, X, X * 1j), TypeError, "must be of real floating-point"),
    (lambda: tw.contract(lambda x, y: x * y, X, X[:2]), ValueError, "a and b must agree in k"),
    (lambda: tw.contract(lambda x, y: x & 1, X, X), TracingError, "and of a float"),
    (lambda: tw.contract(semiring(lambda x, y: x, "sum", "int"), X, X), TypeError, "f was made for numbers of k"),
    (lambda: tw.contract(lambda x, y: x * y, X, X, plan="in_place 4x16"), ValueError, "only packed plans take"),
    (lambda: tw.contract(product, X, X, plan="stream 3x4", reduce="argmin"), ValueError, "only packed plans take"),
    (lambda: tw.contract(product, X, X, plan="packed 13x32 mc=13 kc=4 nc=32", reduce="argmin", threads=1), ValueError,
     r"needs 2\*13\*"),
    (lambda: tw.contract(product, X.astype("i1"), X.astype("i1"), reduce="logsumexp"), ValueError, "it is of floats"),
    (lambda: tw.contract(product, X, X, reduce=3), TypeError, "must be the name of a reduction or a tw.Reduction"),
    (lambda: tw.contract(product, X, X, reduce="argmin", operands={"x": X}), ValueError, "operands must be None"),
    (lambda: tw.contract(product, X, X, reduce="argmin", epilogue=lambda acc: tw.pairs(acc)), TypeError, "pairs"),
    (lambda: tw.contract(product, X, X, reduce=tw.Reduction((0.0,), lambda s, t, p: s + (t,), max)), TypeError,
     "step of a reduction must return a tuple of 1"),
    (lambda: tw.contract(product, X, X, reduce=tw.Reduction(0.0, lambda s, t, p: (t,), max)), ValueError,
     "identity must be a tuple"),
])
def test_errors(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call()


FACTOR = 2.0


def far(x, y):
    return (x - y)**2 * FACTOR


@pytest.fixture
def long_ways(monkeypatch):
    """The calls that were checked and planned as if they were the first."""
    calls = []
    for module in host, fused:
        def product(call, *like, original=module.product):
            calls.append(call)
            return original(call, *like)
        monkeypatch.setattr(module, "product", product)
    tw.matmul(np.ones((3, 3), np.float32), np.ones((3, 3), np.float32))
    repeats.forget()
    return calls


def test_what_makes_another_call(long_ways, monkeypatch):
    a, b = RNG.integers(-4, 5, (20, 30)).astype("f4"), RNG.integers(-4, 5, (30, 25)).astype("f4")
    exact = ((a[:, :, None] - b)**2)
    for _ in range(2):
        del long_ways[:]
        np.testing.assert_array_equal(tw.contract(far, a, b), 2 * exact.sum(1))
    assert not long_ways
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    np.testing.assert_array_equal(tw.contract(far, a, b), 3 * exact.sum(1))
    np.testing.assert_array_equal(tw.contract(far, a, b, reduce="max"), 3 * exact.max(1))
    np.testing.assert_array_equal(tw.contract(far, a, b, out_dtype="f64"), 3 * exact.sum(1))
    np.testing.assert_array_equal(tw.contract(far, a, np.asfortranarray(b)), 3 * exact.sum(1))
    assert len(long_ways) == 4
    square = a[:, :20].copy()
    wanted = tw.contract(far, square, square)
    for _ in range(2):                              # the result lies where an operand does
        x = square.copy()
        np.testing.assert_array_equal(tw.contract(far, x, x, out=x), wanted)
