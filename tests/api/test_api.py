"""matmul and gemm against numpy.matmul: the same values, shapes, dtypes and errors, whatever the memory looks like."""

from __future__ import annotations

import warnings
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from hypothesis.extra.numpy import array_shapes, mutually_broadcastable_shapes

import tilewright
from tests.helpers.arrays import Storage, small_integers, storages
from tests.oracles import reference
from tilewright.api import dispatch, products
from tilewright.api.products import gemm, matmul

F32, F64 = np.float32, np.float64
# tilewright.matmul is a builtin that takes the common call itself and leaves the others to the Python function
BOTH = pytest.mark.parametrize("matmul", [products.matmul, tilewright.matmul], ids=["function", "builtin"])
SEEDS = st.integers(0, 2**31)
FLOATS = st.sampled_from([F32, F64])


@st.composite
def operands(draw, max_side=40, broadcast=True):
    """Two integer-valued operands of shapes that np.matmul accepts, stored in any way."""
    shapes = draw(
        mutually_broadcastable_shapes(
            signature=np.matmul.signature, min_dims=0, max_dims=2, min_side=0, max_side=max_side
        )
    ).input_shapes
    dtypes = draw(FLOATS), draw(st.sampled_from([F32, F64, np.int16, bool]))
    return [
        draw(storages(len(shape), broadcast)).hold(small_integers(draw(SEEDS), shape, dtype))
        for shape, dtype in zip(shapes, dtypes)
    ]


def identical(ours, theirs):
    assert type(ours) is type(theirs)
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert np.array_equal(ours, theirs, equal_nan=True)


# ---- values ----------------------------------------------------------------------------------------------------------


@BOTH
@given(operands())
def test_equals_numpy_bit_for_bit(matmul, ab):
    identical(matmul(*ab), np.matmul(*ab))


@BOTH
@given(operands(), st.data())
def test_out_of_any_kind(matmul, ab, data):
    expected = np.matmul(*ab)
    shape = (*data.draw(st.sampled_from([(), (), (1,), (2,)])), *expected.shape)
    dtype = data.draw(st.sampled_from([expected.dtype, F32, F64, np.longdouble, np.complex128]))
    out = data.draw(storages(len(shape), broadcast=False)).hold(np.full(shape, np.nan, dtype))
    how = data.draw(st.sampled_from(["positional", "keyword", "tuple"]))
    got = matmul(*ab, out) if how == "positional" else matmul(*ab, out=out if how == "keyword" else (out,))
    assert got is out
    assert np.array_equal(out, np.broadcast_to(expected, shape))


@BOTH
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12), st.data())
def test_overlapping_operands_and_out(matmul, m, n, k, data):
    """a, b and out are views into one small buffer, anywhere."""
    buffer = small_integers(0, (300,), data.draw(FLOATS))

    def view(rows, columns):
        start = data.draw(st.integers(0, 300 - rows * columns))
        order = data.draw(st.sampled_from("CF"))
        return buffer[start : start + rows * columns].reshape(rows, columns, order=order)

    a, b, out = view(m, k), view(k, n), view(m, n)
    expected = a.copy() @ b.copy()
    matmul(a, b, out)
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("dtype", [F32, F64])
def test_blocks_of_one_matrix_need_no_temporary(dtype, spy):
    """The trailing update of an LU factorisation: three blocks of one matrix, interleaved in memory."""
    x = small_integers(0, (64, 64), dtype)
    a, b, c = x[32:, :32], x[:32, 32:], x[32:, 32:]
    expected = c - a @ b
    assert gemm(-1, a, b, 1, c) is c
    assert np.array_equal(x[32:, 32:], expected)
    assert np.shares_memory(spy.calls[0].c, x)


@BOTH
@given(st.integers(1, 64), st.integers(1, 64), st.integers(0, 200), FLOATS, SEEDS, st.sampled_from([1.0, 1e-3, 1e4]))
def test_real_data_within_the_error_bound(matmul, m, n, k, dtype, seed, spread):
    rng = np.random.default_rng(seed)
    a = (rng.standard_normal((m, k)) * spread ** rng.standard_normal((m, k))).astype(dtype)
    b = (rng.standard_normal((k, n)) * spread ** rng.standard_normal((k, n))).astype(dtype)
    error = np.abs(matmul(a, b) - reference.product(a, b))
    assert np.all(error <= reference.error_bound(a, b, dtype=dtype))


@given(operands(max_side=12), st.data())
def test_alpha_beta_and_c(ab, data):
    alpha = data.draw(st.sampled_from([1, 0, -1, 2.5, np.float32(0.5)]))
    beta = data.draw(st.sampled_from([0, 1, -2, 0.25]))
    shape = np.matmul(*ab).shape
    c_shape = data.draw(st.sampled_from([shape, *(shape[i:] for i in range(len(shape) + 1)), (1,) * len(shape)]))
    c = data.draw(storages(len(c_shape))).hold(small_integers(1, c_shape, data.draw(FLOATS)))
    before = c.copy()
    result = matmul(*ab, alpha=alpha, beta=beta, c=c)
    assert result.dtype == np.result_type(*ab, c)
    assert result.shape == shape
    assert np.array_equal(result, reference.product(*ab, c, alpha=float(alpha), beta=beta) + np.zeros(shape))
    assert np.array_equal(c, before)


@given(operands(max_side=12), st.data())
def test_gemm_updates_c_in_place(ab, data):
    alpha, beta = data.draw(st.sampled_from([1, 0, -2.0])), data.draw(st.sampled_from([0, 1, 0.5]))
    shape = np.matmul(*ab).shape
    c = data.draw(storages(len(shape), broadcast=False)).hold(small_integers(2, shape, data.draw(FLOATS)))
    expected = reference.product(*ab, c, alpha=alpha, beta=beta)
    assert gemm(alpha, *ab, beta, c) is c
    assert np.array_equal(c, expected)


@BOTH
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_nan_and_inf_propagate(matmul, bad, dtype):
    a, b = small_integers(0, (9, 11), dtype), small_integers(1, (11, 7), dtype)
    a[3, 5] = b[8, 2] = bad
    with np.errstate(invalid="ignore"):
        expected = np.matmul(a, b)
    identical(matmul(a, b), expected)


@pytest.mark.parametrize("trash", [np.nan, np.inf])
def test_beta_zero_never_reads_c_and_alpha_zero_never_reads_a_or_b(trash):
    a, b, c = np.ones((5, 4)), np.ones((4, 3)), np.full((5, 3), trash)
    assert np.array_equal(matmul(a, b, c=c, beta=0), a @ b)
    assert np.array_equal(gemm(1, a, b, 0, c), a @ b)
    a[:] = trash
    assert np.array_equal(matmul(a, b, alpha=0), np.zeros((5, 3)))
    assert np.array_equal(gemm(0, a, b, 2, c), 2 * np.full((5, 3), 4.0))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(2, 2, 2), (3, 1, 2), (1, 3, 2), (4, 3, 1), (17, 3, 5)], ids=str)
def test_every_way_to_lie_with_every_other(shape):
    """So small that strides of one way of lying are those of another: an engine must not take one for the other."""
    m, n, k = shape
    ways = [
        Storage(order, steps) for order in ((0, 1), (1, 0)) for steps in ((1, 1), (1, 2), (1, -1), (-1, 1), (2, -2))
    ]
    a, b, c = small_integers(0, (m, k), F32), small_integers(1, (k, n), F32), small_integers(2, (m, n), F32)
    expected = a @ b - 2 * c
    for ways_abc in product(ways, repeat=3):
        stored = [way.hold(x) for way, x in zip(ways_abc, (a, b, c))]
        assert np.array_equal(gemm(1, *stored[:2], -2, stored[2]), expected), ways_abc


def test_no_floating_point_noise():
    c = np.full((4, 6), 1e308)[:, ::2]
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        assert np.all(np.isinf(gemm(1e308, np.ones((4, 2)), np.ones((2, 3)), 2, c)))
        assert np.all(np.isinf(gemm(1, np.ones((4, 0)), np.ones((0, 3)), -np.inf, np.ones((4, 3)))))
        assert np.isnan(matmul([[np.inf, -np.inf]], [[1.0], [1.0]]))[0, 0]
        assert matmul(np.full((2, 2), 1e300), np.full((2, 2), 1e300))[0, 0] == np.inf


# ---- dtypes ----------------------------------------------------------------------------------------------------------


def test_out_dtype_computes_in_the_wider_type():
    a = np.array([[1e8, 1.0, -1e8]], F32)
    b = np.ones((3, 1), F32)
    wide = matmul(a, b, out_dtype="f64")
    assert wide.dtype == F64
    assert wide[0, 0] == 1.0
    narrow = matmul(a.astype(F64), b.astype(F64), out_dtype=F32)
    assert narrow.dtype == F32
    assert narrow[0, 0] == 1.0


def test_a_python_number_as_c_is_weak():
    assert matmul(np.ones((2, 2), F32), np.ones((2, 2), F32), c=1.5, beta=1).dtype == F32


def test_a_cast_that_raises_leaves_out_alone():
    out = np.full((2, 2), 7, F32)
    huge = np.full((2, 2), 1e100)
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        matmul(huge, huge, out)
    assert np.array_equal(out, np.full((2, 2), 7, F32))


# ---- errors ----------------------------------------------------------------------------------------------------------


def outcome(function, *args, **kwargs):
    """The result of a call, or which of the exceptions anybody would catch it raised."""
    try:
        return function(*args, **kwargs)
    except TypeError:
        return TypeError
    except ValueError:
        return ValueError


@BOTH
@given(st.data())
def test_random_shapes_fail_or_succeed_like_numpy(matmul, data):
    sides = {"min_dims": 0, "max_dims": 3, "min_side": 0, "max_side": 3}
    a, b, out = (np.ones(data.draw(array_shapes(**sides))) for _ in range(3))
    out = data.draw(st.sampled_from([None, out, out.astype(F32)] + [out.astype(int)] * (a.ndim > 0 < b.ndim)))
    if out is not None:
        out.flags.writeable = data.draw(st.booleans())
        # Given an out with too few axes, NumPy drops n? or m? from the signature for every operand, so that a matrix of
        # one row passes for a stack of one vector. Nothing documents that, and out has another shape than the result.
        assume(out.ndim >= max((a.ndim > 1) + (b.ndim > 1), a.ndim - (b.ndim == 1), b.ndim - (a.ndim == 1)))
    theirs = outcome(np.matmul, a, b, out)
    ours = outcome(matmul, a, b, out)
    if isinstance(theirs, type):
        assert ours is theirs
    else:
        identical(ours, theirs)


X = np.ones((2, 3))
BAD = {
    "scalar": (3.0, X),
    "scalar b": (X, np.float32(1)),
    "None": (None, X),
    "string": ("ab", X),
    "strings": (["a", "b"], X),
    "dates": (np.ones(2, "M8[s]"), X),
    "records": (np.zeros(2, "i4,f4"), X),
    "core dimensions": (X, X),
    "vectors": (np.ones(3), np.ones(4)),
    "batches": (np.ones((2, 4, 4)), np.ones((3, 4, 4))),
    "ragged": ([[1.0], [1.0, 2.0]], X),
    "out list": (X, X.T, [[0, 0], [0, 0]]),
    "out number": (X, X.T, 1.0),
    "out two": (X, X.T, (X, X)),
    "out integer": (X, X.T, np.zeros((2, 2), int)),
    "out integer and wrong shape": (X, X.T, np.zeros((5, 2), int)),
    "out small": (X, X.T, np.zeros((2, 1))),
    "out transposed": (X, np.ones((3, 4)), np.zeros((4, 2))),
    "out read-only": (X, X.T, np.broadcast_to(0.0, (2, 2))),
}


@BOTH
@pytest.mark.parametrize("arguments", BAD.values(), ids=BAD)
def test_bad_arguments_fail_like_numpy(matmul, arguments):
    *ab, out = arguments if len(arguments) == 3 else (*arguments, None)
    theirs = outcome(np.matmul, *ab, out=out)
    assert theirs in (TypeError, ValueError)
    assert outcome(matmul, *ab, out=out) is theirs


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: matmul(X, X), ValueError, r"a has 3 columns and b has 2 rows"),
        (lambda: matmul(2.0, X), ValueError, r"a must have at least 1 axis"),
        (
            lambda: matmul(X, X.T, np.zeros((3, 3))),
            ValueError,
            r"out must have the result's shape \(2, 2\), .* \(3, 3\)",
        ),
        (lambda: matmul(X, X.T, "out"), TypeError, r"out must be a NumPy array, not str"),
        (lambda: matmul(X, X.T, np.zeros((2, 2), int)), TypeError, r"out has dtype int64"),
        (
            lambda: matmul(X.astype(int), X.T.astype(int), alpha=0.5),
            TypeError,
            r"alpha must be a whole number where integers are multiplied, not 0\.5",
        ),
        (lambda: matmul(X, X.T, np.zeros((2, 2)), out_dtype="f32"), TypeError, r"out has dtype float64, but out_dtype"),
        (lambda: matmul(X, X.T, out_dtype="i8"), TypeError, r"out_dtype must not be int8, to which products of float"),
        (lambda: matmul(X, X.T, out_dtype="i7"), ValueError, r"out_dtype must be one of f64, f32, .*, not 'i7'"),
        (lambda: matmul(X, X.T, alpha="2"), TypeError, r"alpha must be a number, not str"),
        (lambda: matmul(X, X.T, alpha=1j), TypeError, r"alpha = 1j is complex, .*out_dtype='c128' or"),
        (
            lambda: matmul(X, X.T, beta=np.ones(2)),
            TypeError,
            r"beta must be a number, not an array of shape \(2,\)",
        ),
        (lambda: matmul(X, X.T, beta=2), ValueError, r"c must be given if beta is not 0, and beta is 2"),
        (
            lambda: matmul(X, X.T, c=np.ones(3)),
            ValueError,
            r"c must broadcast to the result's shape \(2, 2\), .* \(3,\)",
        ),
        (lambda: matmul(X, np.ones(3), trans_b=True), ValueError, r"trans_b needs b to have two axes"),
        (lambda: matmul(X, X.T, threads=0), ValueError, r"threads must be 1 or more"),
        (lambda: matmul(X, X.T, threads="2"), TypeError, r"threads must be an integer, not '2'"),
        (lambda: matmul(X, X.T, epilogue=3), TypeError, r"epilogue must be a function of the sums and operands"),
        (lambda: matmul(X, X.T, algorithm="tf32"), ValueError, r"algorithm must be None or one of bf16.*, not 'tf32'"),
        (lambda: gemm(1, X, X.T, 0, [[0, 0], [0, 0]]), TypeError, r"c must be a NumPy array"),
        (lambda: gemm(1, X, X.T, 0, np.zeros((2, 2), int)), TypeError, r"c has dtype int64"),
        (lambda: gemm(1, X, X.T, 0, np.zeros(2)), ValueError, r"c must have the result's shape \(2, 2\)"),
        (lambda: gemm(1, X, X.T, 0, np.broadcast_to(1.0, (2, 2))), ValueError, r"c is read-only"),
    ],
)
def test_sentences(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call()


# ---- other kinds of arrays -------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_subclasses_come_back_as_from_numpy(tmp_path):
    class Own(np.ndarray):
        pass

    mapped = np.memmap(tmp_path / "x", F64, "w+", shape=(3, 3))
    for special in (np.matrix(np.eye(3)), np.eye(3).view(np.recarray), np.eye(3).view(Own), mapped):
        for a, b in ((special, X.T), (X, special), (X, special[0]), (special[0], np.ones(3))):
            if a.shape[-1] == b.shape[0]:
                identical(matmul(a, b), np.matmul(a, b))
        out = np.empty((2, 3)).view(type(special))
        assert matmul(X, special, out) is out


def test_what_converts_itself_wraps_the_result():
    class Tensor:  # as torch's: __array__, and an __array_wrap__ from the days of NumPy 1
        def __init__(self, value):
            self.value = np.asarray(value)

        def __array__(self, dtype=None, copy=None):
            return self.value

        def __array_wrap__(self, array):
            return Tensor(array)

    result = matmul(Tensor(X), X.T)
    assert isinstance(result, Tensor)
    assert np.array_equal(result.value, X @ X.T)


def test_no_silent_conversion_of_arrays_with_their_own_product():
    class Foreign:
        __array_ufunc__ = None

    with pytest.raises(TypeError, match=r"Foreign, which handles NumPy's functions itself .* np.asarray\(a\)"):
        matmul(Foreign(), X)
    with pytest.raises(TypeError, match=r"b is a masked array, .* b.filled\(0\)"):
        matmul(X, np.ma.masked_array(X.T))


# ---- what reaches the engine -----------------------------------------------------------------------------------------


@pytest.fixture
def spy(monkeypatch):
    """The reference engine, noting its calls; `fail_at` makes one of them raise."""
    spy = SimpleNamespace(calls=[], fail_at=None)

    def engine(a, b, c, alpha=1.0, beta=0.0, **options):
        if spy.fail_at == len(spy.calls):
            raise MemoryError
        assert a.dtype == b.dtype == c.dtype
        assert a.ndim == b.ndim == c.ndim <= 3
        spy.calls.append(SimpleNamespace(a=a, b=b, c=c, options=options))
        reference.gemm(a, b, c, alpha, beta)

    fake = SimpleNamespace(gemm=engine, finishes=lambda *_: False)
    monkeypatch.setattr(dispatch, "_cpu", fake)
    return spy


@pytest.mark.parametrize(
    ("a_shape", "b_shape", "called"),
    [
        ((4, 5), (5, 6), [(4, 6)]),
        ((2, 3, 4, 5), (5, 6), [(24, 6)]),  # a stack of A on one B: more rows
        ((2, 3, 1, 5), (5, 6), [(6, 6)]),
        ((2, 3, 5), (5,), [(6, 1)]),
        ((5,), (3, 5, 1), [(1, 3)]),  # one A before a stack of columns: more columns
        ((2, 3, 4, 5), (2, 3, 5, 6), [(6, 4, 6)]),  # neighbouring axes are one
        ((2, 3, 4, 5), (3, 5, 6), [(3, 4, 6)] * 2),  # the longer axis is the engine's
        ((2, 1, 4, 5), (1, 3, 5, 6), [(3, 4, 6)] * 2),
        ((0, 4, 5), (5, 6), []),
    ],
)
def test_leading_axes_take_few_calls(spy, a_shape, b_shape, called):
    a, b = small_integers(0, a_shape, F32), small_integers(1, b_shape, F32)
    assert np.array_equal(matmul(a, b), a @ b)
    assert [call.c.shape for call in spy.calls] == called


def test_views_reach_the_engine_without_a_copy(spy):
    x = np.arange(200.0).reshape(10, 20)
    out = np.empty((40, 40))[::-4, ::2]
    matmul(x[::2, ::-1], x.T[:, ::1], out[:5, :10])
    (call,) = spy.calls
    assert np.shares_memory(call.a, x)
    assert np.shares_memory(call.b, x)
    assert np.shares_memory(call.c, out)


def test_options_reach_the_engine(spy):
    plan = tilewright.plan(tilewright.Gemm(2, 2, 3, "f64"), "x86-avx2")
    matmul(X, X.T, threads=3, plan=plan)
    matmul(np.ones((4, 2, 3)), np.ones((4, 3, 2)), threads=3, plan=plan)
    assert [call.options for call in spy.calls] == [{"threads": 3, "plan": plan}] * 2


@pytest.mark.parametrize("out_kind", ["plain", "strided", "float16", "overlapping"])
@pytest.mark.parametrize("fail_at", [0, 1])
def test_out_is_never_half_written(spy, out_kind, fail_at):
    a, b = np.ones((2, 1, 4, 4)), np.ones((1, 3, 4, 4))  # two calls
    buffer = np.full((2, 3, 4, 8), 7.0)
    out = {
        "plain": buffer[..., :4].copy(),
        "strided": buffer[..., ::2],
        "float16": buffer[..., :4].astype(np.float16),
        "overlapping": buffer[..., :4],
    }[out_kind]
    if out_kind == "overlapping":
        b = buffer[:1, :, :, :4]
    spy.fail_at = fail_at
    with pytest.raises(MemoryError):
        matmul(a, b, out)
    with pytest.raises(MemoryError):
        gemm(1, a, b, 1, out)
    assert np.all(out == 7)
