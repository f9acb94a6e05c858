"""einsum and tensordot against NumPy's: random subscripts on whole numbers, whose sums are exact, and every refusal."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.products.ways import python_calls
from tilewright.api import pairs
from tilewright.rules import paths

RNG = np.random.default_rng


def whole(rng, shape, dtype=np.float32):
    """Whole numbers in an array of these extents, with strides of any order and sign and gaps between elements."""
    order = rng.permutation(len(shape))
    wide = [shape[axis] * rng.integers(1, 3) + rng.integers(0, 2) for axis in order]
    x = rng.integers(-3, 4, wide).astype(dtype)
    x = x[(..., *(slice(0, shape[axis]) if rng.random() < 0.7 or not shape[axis] else slice(shape[axis] - 1, None, -1)
                  for axis in order))]
    x = x.transpose(np.argsort(order))
    return x if rng.random() < 0.7 else x.copy()


def random_call(rng, operands, most=5):
    """Subscripts and operands: labels of sizes 0 to 7, some axes of size 1 where others have more, `...`."""
    labels = "abcdefg"[: rng.integers(1, 8)]
    sizes = {x: int(rng.choice([0, 1, 2, 3, 4, 5, 7], p=[0.02, 0.08, 0.2, 0.2, 0.2, 0.2, 0.1])) for x in labels}
    terms, shapes = [], []
    dots = rng.random() < 0.3
    for _ in range(operands):
        term = list(rng.choice(list(labels), rng.integers(0, most)))
        shape = [1 if rng.random() < 0.05 and term.count(x) == 1 else sizes[x] for x in term]
        term, extra = "".join(term), ()
        if dots and rng.random() < 0.6:
            extra = tuple(int(x) for x in rng.choice([1, 3], rng.integers(0, 3)))
            extra = tuple(3 if i == len(extra) - 2 else x for i, x in enumerate(extra))
            at = rng.integers(0, len(term) + 1)
            term, shape = f"{term[:at]}...{term[at:]}", [*shape[:at], *extra, *shape[at:]]
        terms.append(term)
        shapes.append(tuple(shape))
    used = sorted(set("".join(terms)) - {"."})
    if rng.random() < 0.2:
        return ",".join(terms), shapes
    output = list(rng.permutation([x for x in used if rng.random() < 0.5]))
    at = rng.integers(0, len(output) + 1)
    dotted = ["..."] if any("..." in term for term in terms) else []
    return f"{','.join(terms)}->{''.join([*output[:at], *dotted, *output[at:]])}", shapes


@pytest.mark.parametrize("operands", [1, 2, 3, 5])
def test_random_subscripts_give_the_exact_result(operands):
    rng = RNG(operands)
    for _ in range(60):
        subscripts, shapes = random_call(rng, operands)
        xs = [whole(rng, shape) for shape in shapes]
        expected = np.einsum(subscripts, *(x.astype(np.int64) for x in xs), optimize=True)
        found = tw.einsum(subscripts, *xs)
        assert np.shape(found) == expected.shape, (subscripts, shapes)
        assert np.array_equal(found, expected), (subscripts, shapes)
        assert found.dtype == np.float32
        out = whole(rng, expected.shape)
        assert tw.einsum(subscripts, *xs, out=out) is out
        assert np.array_equal(out, expected), (subscripts, shapes)


def test_axes_that_merge_only_once_operands_are_converted():
    rng = RNG(4)
    a, b, c = rng.integers(-3, 4, (4, 4, 4, 4)), rng.integers(-3, 4, (4, 4, 2, 4)), rng.integers(-3, 4, (4, 2, 4, 2))
    expected = np.einsum("bddd,bdac,daca->b", a, b, c)
    assert np.array_equal(tw.einsum("bddd,bdac,daca->b", a, b, c.astype(np.float16)), expected)


def test_out_dtype_is_rounded_once():
    x = RNG(0).standard_normal((3, 20, 20)).astype(np.float16)
    found = tw.einsum("ij,jk,kl->il", *x)
    exact = np.einsum("ij,jk,kl->il", *x.astype(np.float64))
    assert found.dtype == np.float16
    assert np.allclose(found, exact, rtol=2e-3, atol=1e-3)
    assert tw.einsum("ij,jk->ik", *x[:2], out_dtype="f32").dtype == np.float32
    assert tw.einsum("ij->", x[0], out_dtype="f64").dtype == np.float64


def test_long_doubles_are_numpys():
    x = np.arange(6, dtype=np.longdouble).reshape(2, 3)
    assert tw.einsum("ij,kj", x, x).dtype == np.longdouble
    assert np.array_equal(tw.einsum(x, [0, 1, Ellipsis], x, [2, 1], [2, 0]), np.einsum("ij,kj->ki", x, x))


def test_views_as_in_numpy():
    x = np.arange(12.0).reshape(3, 4)[:, :3]
    tw.einsum("ii->i", x)[:] = 0
    assert not x.diagonal().any()
    assert np.shares_memory(tw.einsum("ij->ji", x), x)
    assert np.shares_memory(tw.einsum("...i->i...", x), x)
    assert tw.einsum("ij->ij", x, out_dtype="f32").dtype == np.float32


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_one_array_is_numpys_view_and_sum(dtype):
    x, y = RNG(0).random((3, 4, 5)).astype(dtype), RNG(1).random((4, 4, 4)).astype(dtype)
    for subscripts, given in (("ijk->ki", x), ("kji->ijk", x), ("ijk->", x), ("ii", y[0]), ("ii->i", y[0]),
                              ("ji", y[0]), (" i j -> j i", y[0]), ("ijj", y), ("iij->ji", y),
                              ("i->i", y[0, 0]), ("i->", y[0, 0])):
        found, wanted = tw.einsum(subscripts, given), np.einsum(subscripts, given)
        assert type(found) is type(wanted)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
        assert np.may_share_memory(found, given) == np.may_share_memory(wanted, given)
    for subscripts, given in (("ij->ik", y[0]), ("ii", x[0]), ("ijk->i", y[0])):
        with pytest.raises(ValueError, match=r"subscripts|diagonal"):
            tw.einsum(subscripts, given)


def test_out_may_overlap_and_have_another_dtype():
    x = RNG(2).integers(-3, 4, (6, 6)).astype(np.float32)
    expected = x @ x
    assert np.array_equal(tw.einsum("ij,jk->ik", x, x, out=x), expected)
    assert np.array_equal(x, expected)
    into = np.zeros((6, 6))
    assert tw.einsum("ij,jk->ki", x, x, out=into) is into
    assert np.array_equal(into, (expected @ expected).T)


@pytest.mark.parametrize("order", ["C", "F", "A"])
def test_order(order):
    a, b = np.ones((2, 3, 4)), np.ones((4, 5))
    found = tw.einsum("abk,kc->cab", a, b, order=order)
    assert found.flags.f_contiguous if order == "F" else found.flags.c_contiguous


@pytest.mark.parametrize(("args", "text"), [
    (("ij,jk", np.ones((2, 3))), "subscripts 'ij,jk' are those of 2 operands, and 1 are given"),
    (("i1", np.ones((2, 3))), "'i1' has '1'"),
    (("i.j", np.ones((2, 3))), "has '.'"),
    (("ij->k", np.ones((2, 3))), "have 'k', which no operand has"),
    (("ij->ii", np.ones((2, 3))), "have 'i' 2 times"),
    (("ij,jk", np.ones((2, 3)), np.ones((4, 3))), "label 'j' has size 3 before, and operand 1 of shape (4, 3) has 4"),
    (("ii", np.ones((2, 3))), "for axes of sizes 2 and 3, which have no diagonal"),
    (("ij", np.ones(3)), "operand 0 has shape (3,), and its subscripts are 2: 'ij'"),
    (("...i->i", np.ones((3, 3))), "must have '...'"),
    ((np.ones(3), [-1]), "must not be negative"),
    ((np.ones(3), [..., ...]), "may have one Ellipsis"),
    ((np.ones(3),), "not 1 arguments"),
])
def test_refusals_name_what_is_wrong(args, text):
    with pytest.raises(ValueError) as found:
        tw.einsum(*args)
    assert text in str(found.value)


def test_quantized_operands_are_refused():
    q = tw.quantize(np.ones((32, 32), np.float32), "mxfp8")
    with pytest.raises(TypeError, match=r"operand 1 is quantized, .* tilewright\.dequantize makes an array of it"):
        tw.einsum("ij,kj", np.ones((2, 32)), q)
    with pytest.raises(TypeError, match="a is quantized"):
        tw.tensordot(q, np.ones((32, 2)), 1)


def test_refusals_of_options():
    x = np.ones((2, 2))
    for error, text, options in [
        (TypeError, "operand 0 is float64, which the rule 'safe' does not cast to dtype='f4'", {"dtype": "f4"}),
        (TypeError, "to which the rule 'safe' does not cast", {"out": np.zeros((2, 2), "f4"), "casting": "safe"}),
        (ValueError, "casting must be one of no, equiv", {"casting": "most"}),
        (ValueError, "the most elements of a product in between", {"optimize": ("greedy", 0)}),
        (TypeError, "unexpected keyword argument 'foo'", {"foo": 1}),
        (ValueError, "order must be one of", {"order": "X"}),
        (ValueError, "result's shape (2, 2)", {"out": x[0].copy()}),
        (TypeError, "to which a result of dtype float64", {"out": np.zeros((2, 2), int)}),
        (ValueError, "optimize must be", {"optimize": "best"}), (ValueError, "leaves 2 of 2", {"optimize": []}),
        (ValueError, "the step (0, 5)", {"optimize": [(0, 5)]}), (TypeError, "threads must be", {"threads": "x"}),
    ]:
        with pytest.raises(error) as found:
            tw.einsum("ij,jk", x, x, **options)
        assert text in str(found.value)
    for value in (["a", "b"], "ij", 5):
        with pytest.raises(TypeError, match="must be"):
            tw.einsum(x, value)


@pytest.mark.parametrize(("axes", "text"), [
    (3, "axes is 3, and a and b have 2 and 2 axes"), ((0, 1, 2), "axes must be a number, or two lists"),
    ((5, 0), "axes names axis 5 of a"), (([0, 0], [0, 1]), "names an axis of a twice"), (([0], [0, 1]), "as many"),
    ((0, 0), "of size 2, with axis 0 of b, of size 3"),
])
def test_tensordot_refuses(axes, text):
    with pytest.raises(ValueError) as found:
        tw.tensordot(np.ones((2, 3)), np.ones((3, 2)), axes)
    assert text in str(found.value)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_subclasses_of_arrays_come_back_as_arrays():
    """einsum and tensordot of a np.matrix return plain arrays, as in NumPy."""
    x = np.matrix(np.arange(9.0).reshape(3, 3))
    for subscripts in "ij,jk->ik", "ij,kl->ijl", "ij->ji", "ii->i":
        operands = (x,) * (subscripts.count(",") + 1)
        found, expected = tw.einsum(subscripts, *operands), np.einsum(subscripts, *operands)
        assert type(found) is type(expected) is np.ndarray
        assert np.array_equal(found, expected)
    assert type(tw.tensordot(x, x, 1)) is np.ndarray


@pytest.mark.parametrize("order", ["c", "f", "k", None, "a"])
def test_calls_in_numpys_other_words(order):
    """Subscripts as bytes and as arrays of integers, orders in lower case, dtype and casting."""
    x, y = whole(np.random.default_rng(3), (3, 4)), whole(np.random.default_rng(4), (4, 5))
    for call in (lambda f, **more: f(b"ij,jk->ik", x, y, order=order, **more),
                 lambda f, **more: f(x, np.array([0, 1]), y, np.array([1, 2]), np.array([0, 2]), order=order, **more)):
        for more in ({}, {"dtype": "f8"}, {"casting": "safe"}, {"dtype": "i4", "casting": "unsafe"}, {
                "dtype": "f2", "casting": "same_kind"}):
            found, expected = call(tw.einsum, **more), call(np.einsum, **more)
            assert found.dtype == expected.dtype
            assert np.array_equal(found, expected)
            assert order in ("k", None) or found.flags.f_contiguous == expected.flags.f_contiguous
        out = np.empty((3, 5), "i2")
        assert call(tw.einsum, out=out, casting="unsafe") is out
        assert np.array_equal(out, call(np.einsum, out=np.empty_like(out), casting="unsafe"))


@pytest.mark.parametrize("name", ["greedy", "optimal"])
def test_the_limit_of_a_path_is_kept(name):
    """The limit of optimize=(name, limit) counts elements of intermediate products."""
    xs = [np.ones(shape, np.float32) for shape in ((40, 2), (2, 40), (40, 3), (3, 2))]
    shapes, expected = [x.shape for x in xs], np.full((40, 2), 2*40*3)
    labels = ["ij", "jk", "kl", "lm"]
    for limit, most in (None, 1600), (1600, 1600), (6, 6):
        path = paths.resolved(labels, "im", shapes, (name, limit))[1]
        left, sizes = [*map(set, labels)], dict(zip("ijklm", (40, 2, 40, 3, 2)))
        for step in path[:-1]:
            rest = set("im").union(*(x for at, x in enumerate(left) if at not in step))
            made = set().union(*(left[at] for at in step)) & rest
            left = [x for at, x in enumerate(left) if at not in step] + [made]
            assert np.prod([sizes[x] for x in made]) <= most
        assert np.array_equal(tw.einsum("ij,jk,kl,lm->im", *xs, optimize=(name, limit)), expected)
    with pytest.raises(ValueError, match="no path whose products have at most 3 elements"):
        tw.einsum("ij,jk,kl,lm->im", *xs, optimize=(name, 3))


def test_an_empty_sum_by_tables():
    for out in np.ones((8, 2)), np.ones((8, 2))[::-1]:
        assert tw.einsum("a,bcab->cb", np.zeros(0), np.zeros((2, 8, 0, 2)), out=out) is out
        assert not out.any()


def test_a_result_in_c_order_is_written_there(monkeypatch):
    """A result in order C or F is written in that order at once, and its calls are repeated."""
    x, y = whole(np.random.default_rng(5), (4, 5, 6, 3)), whole(np.random.default_rng(6), (4, 7, 8, 2))
    stores = []
    product = pairs.Work.product
    monkeypatch.setattr(pairs.Work, "product", lambda self, *of: stores.append(of[4]) or product(self, *of))
    for order in "CF":
        for _ in range(2):
            found = tw.einsum("dega,dfbc->aebfgc", x, y, order=order)
            assert found.flags.c_contiguous == (order == "C")
            assert np.array_equal(found, np.einsum("dega,dfbc->aebfgc", x, y))
    assert stores
    assert all(place is not None for place in stores)


relu = lambda acc, bias: tw.relu(acc + bias)       # noqa: E731


@pytest.mark.parametrize("operands", [1, 2, 3])
def test_random_subscripts_with_alpha_beta_c_and_an_epilogue(operands):
    """Operands with some of the result's axes; c that is out, too; reductions of any rows and columns."""
    rng = RNG(40 + operands)
    for _ in range(12):
        subscripts, shapes = random_call(rng, operands)
        xs = [whole(rng, shape) for shape in shapes]
        sums = np.einsum(subscripts, *(x.astype(np.int64) for x in xs), optimize=True)
        some = [whole(rng, [n if rng.random() < 0.6 else 1 for n in np.shape(sums)[first:]])
                for first in rng.integers(0, np.ndim(sums) + 1, 2)]
        c = whole(rng, np.shape(sums))
        expected = 2*sums - c
        out = c.copy()
        assert tw.einsum(subscripts, *xs, alpha=2, beta=-1, c=out, out=out) is out
        assert np.array_equal(out, expected), (subscripts, shapes)
        both = tw.einsum(subscripts, *xs, alpha=2, beta=-1, c=c, epilogue=lambda acc, s, t: (tw.relu(acc + s), acc * t),
                         operands={"s": some[0], "t": some[1]})
        for found, wanted in zip(both, (np.maximum(expected + some[0], 0), expected * some[1])):
            assert np.shape(found) == np.shape(wanted), (subscripts, shapes)
            assert np.array_equal(found, wanted), (subscripts, shapes)
        if np.ndim(sums) > 1 and np.size(sums):
            row, column = tw.einsum(subscripts, *xs, epilogue=lambda acc: (tw.row_max(acc), tw.column_sum(acc)))
            assert np.array_equal(row, sums.max(-1)), (subscripts, shapes)
            assert np.array_equal(column, sums.sum(-2)), (subscripts, shapes)


@pytest.mark.parametrize("output", ["nxyd", "ndxy", "dnyx"])
def test_a_convolution_with_an_epilogue_is_one_product(output):
    """A view of the image is packed by tables, and nothing of its size is copied; repeated calls take no rules."""
    rng = RNG(9)
    image, kernel, bias = whole(rng, (2, 10, 9, 16)).copy(), whole(rng, (3, 3, 16, 20)), whole(rng, (20,))
    patches = np.lib.stride_tricks.sliding_window_view(image, (3, 3), (1, 2))
    expected = np.maximum(np.einsum("nxycij,ijcd->nxyd", patches, kernel, optimize=True) + bias, 0)
    shape = [dict(zip("nxyd", expected.shape))[label] for label in output]
    bias = bias.reshape([20 if label == "d" else 1 for label in output])
    expected = np.einsum(f"nxyd->{output}", expected)
    for out in None, np.empty(shape, np.float32), np.empty((*shape[:-1], 2 * shape[-1]), np.float32)[..., ::2]:
        for _ in range(2):
            found, calls = python_calls(lambda: tw.einsum(f"nxycij,ijcd->{output}", patches, kernel, out=out,   # noqa: B023
                                                          epilogue=relu, operands={"bias": bias}))
            assert np.array_equal(found, expected)
        assert calls < 100


def test_refusals_of_what_stands_beside_operands():
    x = np.ones((2, 4), np.float32)
    for error, text, options in [
        (ValueError, "c must be given if beta is not 0", {"beta": 1}),
        (ValueError, "c must broadcast to the result's shape (2, 2)", {"beta": 1, "c": x}),
        (ValueError, "operands['bias'] must broadcast to the result's shape (2, 2)", {
            "epilogue": relu, "operands": {"bias": x}}),
        (ValueError, "operands must be None without an epilogue", {"operands": {"bias": x}}),
        (TypeError, "epilogue must be a function", {"epilogue": 3}),
        (TypeError, "alpha must be a number", {"alpha": "x"}),
        (ValueError, "out must have an array or None for each", {"epilogue": abs, "out": (None, None)}),
        (ValueError, "out must have the result's shape (2, 2)", {"epilogue": abs, "out": x.copy()}),
        (TypeError, "to which a result of dtype float32", {"epilogue": abs, "out": np.zeros((2, 2), int)}),
        (TypeError, "dtype and casting must be None", {"epilogue": abs, "dtype": "f8"}),
        (ValueError, "out_dtype must be a format of single numbers", {"epilogue": abs, "out_dtype": "mxfp8"}),
    ]:
        with pytest.raises(error) as found:
            tw.einsum("ij,kj", x, x, **options)
        assert text in str(found.value)
    with pytest.raises(TypeError, match="epilogue must be None for complex"):
        tw.einsum("ij,kj", x.astype(np.complex64), x, epilogue=abs)
    with pytest.raises(TypeError, match="alpha must be a whole number"):
        tw.einsum("ij,ij->ij", x.astype(int), x.astype(int), alpha=0.5)
    with pytest.raises(ValueError, match=r"epilogue returns row_max, and the result's shape is \(2,\)"):
        tw.einsum("ij,ij->i", x, x, epilogue=lambda acc: tw.row_max(acc))
    with pytest.raises(TypeError, match="must be left out of products that NumPy computes"):
        tw.einsum("ij,kj", x.astype(np.longdouble), x, alpha=2)


def test_alpha_0_reads_no_operand_and_beta_0_no_c():
    x, nan = np.ones((2, 2), np.float32), np.full((2, 2), np.nan, np.float32)
    for subscripts in "ij,jk->ik", "ij,ij->ij":
        assert np.array_equal(tw.einsum(subscripts, nan, x, alpha=0, beta=1, c=2), 2 * x)
        assert np.array_equal(tw.einsum(subscripts, x, x, c=nan), np.einsum(subscripts, x, x))
    assert tw.einsum("ij,jk->ik", x, x, c=nan.astype(float)).dtype == np.float64
    assert np.array_equal(tw.tensordot(x, x, 1, alpha=2, epilogue=lambda acc: acc + 1), 2 * (x @ x) + 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.float16])
@pytest.mark.parametrize("order", ["jr,kr", "rj,kr", "jr,rk"])
def test_large_elementwise_products_between(dtype, order):
    """Two factors multiplied element by element, before the product that sums: written into memory that calls share."""
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (3, 70, 61)).astype(dtype)
    size = {"j": 70, "k": 61, "r": 17}
    a, b = (rng.integers(-2, 3, [size[label] for label in part]).astype(dtype) for part in order.split(","))
    subscripts = f"ijk,{order}->ir"
    want = np.einsum(subscripts, *(y.astype(np.float64) for y in (x, a, b)))
    for _ in range(3):
        np.testing.assert_array_equal(tw.einsum(subscripts, x, a, b), want.astype(dtype))
    np.testing.assert_array_equal(tw.einsum(subscripts, x[:, ::-1], a if order[0] == "r" else a[::-1], b), np.einsum(
        subscripts, x[:, ::-1].astype(np.float64), (a if order[0] == "r" else a[::-1]).astype(np.float64),
        b.astype(np.float64)).astype(dtype))
