"""The builtin: what it does itself, what it leaves to the Python function, and that it leaks nothing either way."""

from __future__ import annotations

import ctypes
import gc
import inspect
import pickle
import sys
import threading
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import tilewright as tw
from tests.helpers.emitted import emit_small
from tilewright.api import builtin, products
from tilewright.api.builtin import Entry
from tilewright.compiler.artefact import load
from tilewright.kernels.cpu import abi, entry
from tilewright.runtime.cpu import layout
from tilewright.targets import detect, names, target

RNG = np.random.default_rng(5)
LARGEST = 10**6


class Spied:
    """An Entry with naive kernels, in front of np.matmul; `.calls` is what the Python function was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple, dict]] = []

        def python(*args: Any, **kwargs: Any) -> Any:
            """Spied on."""
            self.calls.append((args, kwargs))
            return np.matmul(*args, **kwargs)

        self.entry = Entry(python)
        self.enable("small_f32", "small_f64")
        self.entry.limit(LARGEST)

    def enable(self, f32: str, f64: str = "small_no", context: int = 0) -> None:
        code = load(emit_small, detect())
        self.entry.enable("f32", code.address(f32), context)
        self.entry.enable("f64", code.address(f64), context)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.clear()
        return self.entry.matmul(*args, **kwargs)


@pytest.fixture
def spied() -> Spied:
    return Spied()


def random(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def strided(x: np.ndarray, how: str) -> np.ndarray:
    """The same values in another layout."""
    rows, cols = x.shape
    if how == "transposed":
        return np.ascontiguousarray(x.T).T
    if how == "sliced":
        wide = np.zeros((2 * rows + 1, 3 * cols + 2), x.dtype)
        wide[1 : 2 * rows : 2, 2 : 3 * cols + 2 : 3] = x
        return wide[1 : 2 * rows : 2, 2 : 3 * cols + 2 : 3]
    if how == "reversed":
        return np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1]
    return x


# ---- what it does itself


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("how", ["plain", "transposed", "sliced", "reversed"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (8, 8, 8), (1, 9, 4), (9, 1, 4), (33, 17, 21)])
def test_common_call(spied: Spied, shape: tuple[int, int, int], how: str, dtype: Any) -> None:
    m, n, k = shape
    a, b = strided(random(m, k, dtype=dtype), how), strided(random(k, n, dtype=dtype), how)
    wide = np.full((m + 2, n + 3), np.nan, dtype)
    want = a.astype(np.float64) @ b.astype(np.float64)
    for out in (np.full((m, n), np.nan, dtype), wide[1:-1, 2:-1]):
        assert spied(a, b, out) is out
        np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-4)
        out[...] = np.nan
        assert spied(a, b, out=out) is out
        np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-4)
        assert not spied.calls
    assert np.isnan(wide).sum() == wide.size - m * n
    made = spied(a, b)
    np.testing.assert_allclose(made, want, rtol=1e-4, atol=1e-4)
    assert (type(made), made.dtype, made.flags.carray, made.flags.owndata) == (np.ndarray, dtype, True, True)
    assert not spied.calls


def test_zero_strides_and_unpickled_dtypes_are_common(spied: Spied) -> None:
    a = np.broadcast_to(random(1, 6), (4, 6))
    b = pickle.loads(pickle.dumps(random(6, 3)))  # its dtype is not the singleton
    out = np.empty((4, 3), np.float32)
    spied(a, b, out)
    np.testing.assert_allclose(out, a @ b, rtol=1e-5)
    assert not spied.calls


def test_neighbours_in_one_array_are_not_overlap(spied: Spied) -> None:
    block = random(15, 5)
    a, b, out = block[:5], block[5:10], block[10:]
    want = a @ b
    assert spied(a, b, out) is out
    np.testing.assert_allclose(out, want, rtol=1e-5)
    assert not spied.calls


# ---- what it leaves to the Python function

A, B = random(4, 6), random(6, 3)


class Subclass(np.ndarray):
    pass


def _unaligned(x: np.ndarray) -> np.ndarray:
    block = np.zeros(x.nbytes + 1, np.int8)
    view = block[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


def _out(**changes: Any) -> np.ndarray:
    out = np.zeros((4, 3), np.float32)
    out.flags.writeable = changes.get("writeable", True)
    return out


def _overlapping() -> tuple:
    block = random(60)
    return block[:24].reshape(4, 6), block[20:38].reshape(6, 3), block[30:42].reshape(4, 3)


def _warns() -> tuple:
    out = _out()
    out.flags._warn_on_write = True  # type: ignore[attr-defined]  # as np.broadcast_arrays does
    return A, B, out


UNCOMMON: dict[str, Callable[[], tuple]] = {
    "nothing": lambda: (),
    "one argument": lambda: (A,),
    "four arguments": lambda: (A, B, _out(), 1),
    "lists": lambda: ([[1.0, 2.0]], [[3.0], [4.0]]),
    "None": lambda: (A, None),
    "subclass": lambda: (A.view(Subclass), B),
    "matrix": lambda: (np.asmatrix(A), B),
    "scalar": lambda: (np.float32(3), B),
    "vectors into a number": lambda: (A[0], B[:, 0], np.empty((), A.dtype)),
    "vectors of sizes that differ": lambda: (A[0], B[:-1, 0]),
    "batch": lambda: (A[None], B),
    "dtypes": lambda: (A, B.astype(np.float64)),
    "integers": lambda: (A.astype(np.int32), B.astype(np.int32)),
    "half": lambda: (A.astype(np.float16), B.astype(np.float16)),
    "longdouble": lambda: (A.astype(np.longdouble), B.astype(np.longdouble)),
    "complex": lambda: (A.astype(np.complex64), B.astype(np.complex64)),
    "objects": lambda: (A.astype(object), B.astype(object)),
    "big endian": lambda: (A.astype(">f4"), B.astype(">f4")),
    "unaligned a": lambda: (_unaligned(A), B, _out()),
    "unaligned out": lambda: (A, B, _unaligned(_out())),
    "shapes": lambda: (A, A, _out()),
    "no k": lambda: (A[:, :0], B[:0], _out()),
    "no m": lambda: (A[:0], B, _out()[:0]),
    "no n": lambda: (A, B[:, :0], _out()[:, :0]),
    "large": lambda: (random(200, 200), random(200, 200), np.zeros((200, 200), np.float32)),
    "long": lambda: (random(1 << 20, 1), random(1, 1), np.zeros((1 << 20, 1), np.float32)),
    "out is None": lambda: (A, B, None),
    "out is a tuple": lambda: (A, B, (_out(),)),
    "out is a list": lambda: (A, B, [[1]]),
    "out is read-only": lambda: (A, B, _out(writeable=False)),
    "out warns": _warns,
    "out has another shape": lambda: (A, B, np.zeros((3, 4), np.float32)),
    "out has another dtype": lambda: (A, B, np.zeros((4, 3), np.float64)),
    "out is a column of something": lambda: (A, B, np.zeros((4, 3, 2), np.float32)[..., 0]),
    "out is transposed": lambda: (A, B, np.zeros((3, 4), np.float32).T),
    "out runs backwards": lambda: (A, B, np.zeros((4, 3), np.float32)[::-1]),
    "out's rows overlap": lambda: (A, B, as_strided(np.zeros(9, np.float32), (4, 3), (8, 4))),
    "out is a subclass": lambda: (A, B, _out().view(Subclass)),
    "out overlaps b": _overlapping,
    "out is a": lambda: (square := random(5, 5), random(5, 5), square),
    "out is b, reversed": lambda: (random(5, 5), (square := random(5, 5))[::-1, ::-1], square),
}


def _outcome(f: Callable, args: tuple, kwargs: dict) -> Any:
    """The result, or the type of the exception; and the warnings."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            result = f(*args, **kwargs)
        except Exception as error:
            result = next(kind for kind in (TypeError, ValueError) if isinstance(error, kind))
    return result, sorted({w.category.__name__ for w in said})


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("case", UNCOMMON)
@pytest.mark.parametrize("named", [False, True])
def test_uncommon_call(spied: Spied, case: str, named: bool) -> None:
    def arguments() -> tuple[tuple, dict]:
        args = UNCOMMON[case]()
        return (args[:2], {"out": args[2]}) if named and len(args) == 3 else (args, {})

    state = RNG.bit_generator.state
    want = _outcome(np.matmul, *arguments())
    RNG.bit_generator.state = state
    args, kwargs = arguments()
    got = _outcome(spied, args, kwargs)
    assert len(spied.calls) == 1, "the Python function was not called"
    ((given, given_by_name),) = spied.calls
    assert list(map(id, given)) == list(map(id, args))
    assert {name: id(x) for name, x in given_by_name.items()} == {name: id(x) for name, x in kwargs.items()}
    assert got[1] == want[1]
    if isinstance(want[0], type):
        assert got[0] is want[0]
    else:
        assert (type(got[0]), got[0].dtype) == (type(want[0]), want[0].dtype)
        np.testing.assert_array_equal(got[0], want[0])


@pytest.mark.parametrize("kwargs", [{"casting": "safe"}, {"axis": 1}, {"dtype": np.float64}, {"nonsense": 1}])
def test_other_keywords(spied: Spied, kwargs: dict) -> None:
    got, _ = _outcome(spied, (A, B), kwargs)
    want, _ = _outcome(np.matmul, (A, B), kwargs)
    assert [given for _, given in spied.calls] == [kwargs]
    assert got is want if isinstance(want, type) else np.array_equal(got, want)


def test_out_twice_and_names_built_at_run_time(spied: Spied) -> None:
    with pytest.raises((TypeError, ValueError)):
        spied(A, B, _out(), out=_out())
    out = _out()
    assert spied(A, B, **{"".join(("o", "ut")): out}) is out
    np.testing.assert_allclose(out, A @ B, rtol=1e-5)
    with pytest.raises(TypeError):
        spied(A, B, out=_out(), x=1)


def test_kernel_that_declines(spied: Spied) -> None:
    out = _out()
    for kernel in ("small_no", None):
        if kernel:
            spied.enable(kernel)
        else:
            spied.entry.enable("f32", 0, 0)
        assert spied(A, B, out) is out
        assert len(spied.calls) == 1
        np.testing.assert_array_equal(out, A @ B)
        np.testing.assert_array_equal(spied(A, B), A @ B)
        assert len(spied.calls) == 1


def test_nothing_is_taken_before_it_is_enabled() -> None:
    fresh = Entry(lambda *args: "python")
    assert fresh.matmul(A, B, _out()) == "python"
    fresh.limit(LARGEST)
    assert fresh.matmul(A, B, _out()) == "python"


def test_exceptions_pass_through() -> None:
    class Mine(Exception):
        pass

    def python(*args: Any, **kwargs: Any) -> None:
        raise Mine

    matmul = Entry(python).matmul
    for _ in range(100):
        with pytest.raises(Mine):
            matmul(A, B, np.array(1))
        with pytest.raises(Mine):
            matmul(A, B, _out(writeable=False))


# ---- references


def _counts(*objects: Any) -> list[int]:
    return [sys.getrefcount(x) for x in objects]


@pytest.mark.parametrize("kernel", ["small_f32", "small_no"])
def test_no_reference_leaks(spied: Spied, kernel: str) -> None:
    """Thousands of calls of each kind, and all counts stay what they were."""
    spied.enable(kernel)
    out, readonly, wrong = _out(), _out(writeable=False), np.zeros((2, 2), np.float32)
    watched = (A, B, out, readonly, wrong, np.dtype(np.float32), np.dtype(np.float64), np.ndarray, "out")
    calls: tuple[Callable[[], Any], ...] = (
        lambda: spied(A, B, out), lambda: spied(A, B, out=out), lambda: spied(A, B),
        lambda: _outcome(spied, (A, B, readonly), {}), lambda: _outcome(spied, (A, B, wrong), {}),
        lambda: _outcome(spied, (A, B), {"out": wrong}), lambda: _outcome(spied, (A, A), {}),
        lambda: _outcome(spied, (A, B), {"x": 1}), lambda: _outcome(spied, (), {}),
    )
    gc.collect()
    gc.freeze()                     # what other tests left is not looked through again and again
    for run in calls:
        for _ in range(20):
            run()
        spied.calls.clear()
        gc.collect()
        before, blocks = _counts(*watched), sys.getallocatedblocks()
        for _ in range(3000 if run in calls[:3] else 300):
            run()
        spied.calls.clear()
        gc.collect()
        assert _counts(*watched) == before
        assert sys.getallocatedblocks() - blocks < 100


def test_result_too_large_for_memory() -> None:
    spied = Spied()
    spied.enable("small_no")
    spied.entry.limit(1 << 60)
    n = (1 << 20) - 1
    a, b = np.ones((n, 1), np.float32), np.ones((1, n), np.float32)
    with pytest.raises(MemoryError):  # from NumPy's allocator, or from np.matmul where memory is overcommitted
        spied.entry.matmul(a, b)
    assert sys.getrefcount(a) == 2


# ---- the GIL and threads


@pytest.mark.parametrize("release", [True, False])
def test_gil(spied: Spied, release: bool) -> None:
    """The kernel waits for a flag that another Python thread sets: it is seen only if the GIL is released."""
    memory = (ctypes.c_int64 * 4)(0, 0, 20_000_000 if release else 20_000, 0)
    spied.enable("small_wait", context=ctypes.addressof(memory))
    spied.entry.limit(LARGEST, 4 * 3 * 6 + (not release))

    def set_flag() -> None:
        while memory[0] == 0:
            pass
        memory[1] = 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        thread = threading.Thread(target=set_flag)
        thread.start()
        spied(A, B, _out())
        thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert not spied.calls
    assert memory[0] == 1
    assert (memory[3] > 0) == release


def test_many_threads(spied: Spied) -> None:
    spied.entry.limit(LARGEST, 500)  # some of the calls release the GIL
    wrong = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(300):
            m, n, k = rng.integers(1, 12, 3)
            a, b = rng.integers(-9, 9, (m, k)).astype(np.float32), rng.integers(-9, 9, (k, n)).astype(np.float32)
            if not np.array_equal(spied.entry.matmul(a, b, np.empty((m, n), np.float32)), a @ b):
                wrong.append((m, n, k))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- what it stands on


def test_the_word_of_a_dtype() -> None:
    order, number = (8 * (offset - abi.KIND) for offset in (abi.BYTEORDER, abi.TYPE_NUM))
    assert entry.KIND_MASK == 0xFF << order | 0xFFFFFFFF << number
    for word, dtype in ((entry.NATIVE_F32, np.float32), (entry.NATIVE_F64, np.float64)):
        assert word == np.dtype(dtype).num << 32 | ord("=") << order


def test_layout_is_verified() -> None:
    assert layout.agrees()
    assert Entry(lambda *args: "python").matmul(A) == "python"


@pytest.mark.parametrize("name", ["DATA", "ND", "DIMS", "STRIDES", "DESCR", "FLAGS", "BYTEORDER", "TYPE_NUM"])
def test_another_layout_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    size = 8 if name in ("DATA", "DIMS", "STRIDES", "DESCR") else 4 if name != "BYTEORDER" else 1
    monkeypatch.setattr(layout, name, getattr(layout, name) - size)
    assert not layout.agrees()
    assert builtin._make() is None


@pytest.mark.parametrize("known", [True, False])
def test_addresses(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    monkeypatch.setattr(layout, "agrees", lambda: known)
    address, addresses = layout._readers()
    whole = np.arange(60.0).reshape(3, 4, 5)
    for x in (whole, whole[1:, ::-1, ::2], whole.T, whole[::-1], np.broadcast_to(whole[2, 1:2], (4, 5)), np.empty(0)):
        assert address(x) == x.ctypes.data == x.__array_interface__["data"][0]
        assert addresses([x, whole]) == [address(x), address(whole)]


def test_no_table_of_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath"):
        monkeypatch.setitem(sys.modules, name, None)
    assert builtin._make() is None


@pytest.mark.skipif("t" in sys.abiflags, reason="there is no emitted entry without the global lock")
def test_it_looks_like_a_function() -> None:
    assert tw.matmul.__name__ == tw.matmul.__qualname__ == "matmul"
    assert tw.matmul.__module__ == "tilewright"
    assert tw.matmul.__doc__ == products.matmul.__doc__
    assert pickle.loads(pickle.dumps(tw.matmul)) is tw.matmul
    of = inspect.signature(tw.matmul), inspect.signature(products.matmul)
    assert [(p.name, p.kind, p.default) for p in of[0].parameters.values()] == [
        (p.name, p.kind, p.default) for p in of[1].parameters.values()
    ]


@pytest.mark.skipif("t" in sys.abiflags, reason="there is no emitted entry without the global lock")
def test_the_shared_entry() -> None:
    shared = builtin.entry()
    assert shared is not None
    assert shared is builtin.entry()
    assert tw.matmul is shared.matmul
    np.testing.assert_allclose(tw.matmul(A, B), A @ B, rtol=1e-5)


@pytest.mark.parametrize("build", ["pypy", "free-threaded", "another target"])
def test_where_there_is_no_builtin(monkeypatch: pytest.MonkeyPatch, build: str) -> None:
    monkeypatch.setattr(builtin, "_made", [])
    if build == "pypy":
        monkeypatch.setattr(sys, "implementation", SimpleNamespace(name="pypy"))
    elif build == "free-threaded":
        monkeypatch.setattr(sys, "abiflags", "t")
    else:
        foreign = next(t for name in names("cpu") if not (t := target(name)).runnable)
        monkeypatch.setattr("tilewright.targets.detect", lambda: foreign)
    assert builtin.entry() is None
    assert builtin.matmul is products.matmul
