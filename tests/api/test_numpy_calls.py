"""Calls as np.matmul takes them: its other keywords, and operands that handle NumPy's functions themselves."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright import formats

X = np.arange(6.0).reshape(2, 3)
BIG = np.ones((200, 200), np.float32)  # too large for what is emitted for small products


@pytest.mark.parametrize("a", [X, BIG, X.astype(np.int8)], ids=["small", "large", "integers"])
@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"dtype": "f4"}, r"takes no dtype= as np.matmul does: out_dtype= names the format .* a.astype\(dtype\)"),
        ({"dtype": np.float64}, "takes no dtype="),
        ({"casting": "unsafe"}, "takes no casting= .* rule same_kind"),
        ({"order": "F"}, "takes no order= .* out= takes an array of any strides"),
        ({"subok": False}, "takes no subok= .* np.asarray"),
        ({"axes": [(0, 1), (1, 0), (0, 1)]}, "takes no axes= .* np.moveaxis, trans_a= and trans_b="),
        ({"axis": 0}, "takes no axis="),
        ({"where": X > 1}, "takes no where= .*np.where"),
        ({"signature": "dd->d"}, "takes no signature= .* out_dtype="),
        ({"colour": 1}, "unexpected keyword argument 'colour'"),
    ],
)
def test_keywords_of_numpy_say_what_there_is_instead(a, option, words):
    with pytest.raises(TypeError, match=words):
        tw.matmul(a, a.T, **option)


def test_their_defaults_change_nothing():
    for option in ({"dtype": None}, {"casting": "same_kind"}, {"order": "K"}, {"subok": True}, {"signature": None},
                   {"axes": [(-2, -1)] * 3}):
        np.testing.assert_array_equal(tw.matmul(X, X.T, **option), np.matmul(X, X.T))


class Frame:
    """As pandas' DataFrame: rows have names, and np.matmul asks it."""

    def __init__(self, values, names):
        self.values, self.names = values, names

    def __array__(self, dtype=None, copy=None):
        return self.values

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        assert (ufunc, method) == (np.matmul, "__call__")
        got = ufunc(*(x.values if isinstance(x, Frame) else x for x in inputs), **({"out": out} if out else {}))
        return Frame(got, self.names)


def test_what_handles_numpys_functions_itself_is_asked():
    f = Frame(X, ["x", "y"])
    for call in (lambda m: m(f, X.T), lambda m: m(X.T, f), lambda m: m(f, X.T, np.zeros((2, 2)))):
        got, expected = call(tw.matmul), call(np.matmul)
        assert isinstance(got, Frame)
        assert got.names == expected.names
        np.testing.assert_array_equal(got.values, expected.values)
    for option in ({"out_dtype": "f32"}, {"alpha": 2}, {"trans_b": True}, {"threads": 1}):
        (name,) = option
        with pytest.raises(TypeError, match=rf"Frame, which handles .* np.matmul has no {name}=; pass np.asarray\(a\)"):
            tw.matmul(f, X, **option)
    with pytest.raises(TypeError, match=r"b is .*Frame, .* np.asarray\(b\)"):
        tw.gemm(1, X, f, 0, np.zeros((2, 3)))


def test_a_data_frame_comes_back_as_from_numpy():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, index=["x", "y"], columns=list("abc"))
    for a, b in ((frame, X.T), (X.T, frame), (frame, frame.loc["x"]), (frame, frame.T)):
        got, expected = tw.matmul(a, b), np.matmul(a, b)
        assert type(got) is type(expected)
        assert got.equals(expected)


def test_what_is_no_array():
    with pytest.raises(ValueError, match="a must be an array, not None"):
        tw.matmul(None, X)
    with pytest.raises(ValueError, match="b must be an array, not object"):
        tw.matmul(X, object())
    sparse = type("csr_array", (), {"__module__": "scipy.sparse._csr", "toarray": lambda self: X})()
    with pytest.raises(ValueError, match=r"a must be an array, not a sparse one, scipy.*csr_array: a.toarray"):
        tw.matmul(sparse, X)


@pytest.mark.parametrize(("code", "name"), [("f4", "f32"), ("<f8", "f64"), ("d", "f64"), ("c8", "c64"), ("i1", "i8")])
def test_numpys_codes_of_formats_are_explained(code, name):
    with pytest.raises(ValueError, match=f"not '{code}'; NumPy's '{code}' is '{name}' here, where names count bits"):
        tw.matmul(X, X.T, out_dtype=code)
    assert formats.find(code) is None


def test_a_value_that_is_refused_is_named_and_not_printed():
    said = r"epilogue must be a function .*, not an array of shape \(2, 3\)$"
    with pytest.raises(TypeError, match=said):
        tw.matmul(X, X.T, epilogue=X)
