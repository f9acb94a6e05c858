"""tilewright.numpy: the same results with it installed, whose they are, and that it can be taken away."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilewright.numpy as twn
from tests.helpers.processes import printed
from tilewright.numpy import products, replaced as module
from tilewright.numpy.rules import RULES, Rule, Rules

EVERY = dict.fromkeys(RULES, Rules(Rule(1), Rule(1), Rule(1)))
SHAPES = [((64,), (64,)), ((30, 40), (40, 20)), ((7, 1), (1, 5)), ((30, 40), (40,)), ((40,), (40, 30)),
          ((3, 9, 17), (3, 17, 5)), ((3, 9, 17), (17, 5)), ((2, 3, 9, 17), (17, 5)), ((0, 4), (4, 3)), ((3, 0), (0, 3))]
EINSUMS = ["ij,jk->ik", "ij,jk", "ij,kj->ik", "i,i", "i,i->", "ij,j->i", "bij,bjk->bik", "ij,jk->ki", "ij,ij->ij",
           "bij,jk->bik"]


@pytest.fixture(autouse=True)
def _as_before():
    yield
    twn.uninstall()


def ours(call=lambda a: a @ a, name="matmul") -> bool:
    """Is a product ours?"""
    a = np.ones((5, 5), np.int32)
    before = twn.counts().get(name, 0)
    call(a)
    return twn.counts().get(name, 0) == before + 1


def results(a, b):
    calls = {"matmul": lambda: np.matmul(a, b), "@": lambda: a @ b, "dot": lambda: np.dot(a, b),
             "vdot": lambda: np.vdot(a, b), "inner": lambda: np.inner(a, b), "inner of b.T": lambda: np.inner(a, b.T),
             "tensordot": lambda: np.tensordot(a, b, 1), "of axes": lambda: np.tensordot(a, b, ([-1], [0])),
             **{text: lambda text=text: np.einsum(text, a, b) for text in EINSUMS}}
    found = {}
    for name, call in calls.items():
        try:
            found[name] = call()
        except (ValueError, TypeError) as error:
            found[name] = str(error)
    return found


@pytest.mark.parametrize("dtype", ["int8", "float64", "bool", "uint16", "int32", "longlong", "float16", "float32",
                                   "complex64"])
def test_results_are_the_same(dtype, request):
    if dtype not in ("int8", "float64", "bool") and not request.config.getoption("--all-ways"):
        pytest.skip("a format like others; --all-ways runs it")
    rng = np.random.default_rng(len(dtype))
    cases = [tuple(rng.integers(0, 3, shape).astype(dtype) for shape in pair) for pair in SHAPES]
    expected = [results(*pair) for pair in cases]
    with twn.installed(rules=EVERY):
        found = [results(*pair) for pair in cases]
    for (a, b), all_of_numpy, all_of_ours in zip(cases, expected, found):
        for name, x in all_of_numpy.items():
            y = all_of_ours[name]
            assert type(y) is type(x), (name, a.shape, b.shape)
            if isinstance(x, str):
                assert y == x, name
            else:
                assert (y.dtype, y.shape) == (x.dtype, x.shape), (name, a.shape, b.shape)
                assert (y == x).all(), (name, a.shape, b.shape)


def test_bf16_has_the_dtypes_of_numpy():
    a = np.random.default_rng(0).standard_normal((20, 30)).astype(ml_dtypes.bfloat16)
    expected, dot = a @ a.T, np.dot(a, a.T)
    with twn.installed(rules=EVERY):
        found, same = a @ a.T, np.dot(a, a.T)
    assert found.dtype == expected.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert same.dtype == dot.dtype
    assert (same == dot).all()


def test_whose_products_they_are():
    assert not ours()
    assert not twn.is_installed()
    from numpy import matmul
    twn.install(rules=EVERY)
    assert ours()
    assert np.matmul is matmul
    assert isinstance(matmul, np.ufunc)
    twn.install(rules={})
    assert not ours()
    assert twn.is_installed()
    with twn.installed(rules=EVERY):
        assert ours()
    assert twn.is_installed()
    assert not twn.is_installed("nothing")
    twn.uninstall()
    twn.uninstall()
    assert not ours()
    assert not twn.is_installed()


def test_some_functions_alone():
    twn.install(("dot",), EVERY)
    assert not ours()
    assert ours(lambda a: np.dot(a, a), "dot")
    with pytest.raises(ValueError, match=r"np\.kron cannot be replaced; functions are matmul, dot, einsum"):
        twn.install(("kron",))


def test_functions_that_were_installed_before_keep_their_rules():
    """None is taken by these rules, within the block all are, and then none again."""
    twn.install(("matmul",), {})
    assert not ours()
    with twn.installed(rules=EVERY):
        assert ours()
    assert twn.is_installed()
    assert not ours()
    assert not twn.is_installed("dot")


def test_results_own_their_memory_and_lie_by_rows():
    """As NumPy's: code that uses them resizes them, and views them in other shapes."""
    a, b, c = np.ones((9, 20)), np.asfortranarray(np.ones((20, 7))), np.asfortranarray(np.ones((2, 9, 20)))
    with twn.installed(rules=EVERY):
        for _ in range(2):
            found = a @ b
            assert found.flags.owndata
            found.resize((7, 9))
            for x in (np.tensordot(c, b, 1), np.inner(c, b.T), np.inner(c, c)):
                assert x.flags.c_contiguous


def test_a_plan_is_made_for_sizes_that_come_again():
    with twn.installed(rules={"int32": Rules(*[Rule(1, after=3 * 125)] * 3)}):
        for name, call in (("inner", lambda a: np.inner(a, a)), ("einsum", lambda a: np.einsum("ij,jk->ik", a, a))):
            assert [ours(call, name) for _ in range(4)] == [False, False, True, True]
    with twn.installed(rules={"int32": Rules(*[Rule(1, after=1500)] * 3)}):        # a call counts 500 at least
        assert [ours(lambda a: a[:4] @ a) for _ in range(4)] == [False, False, True, True]


def test_sizes_are_within_the_rule():
    with twn.installed(rules={"int32": Rules(Rule(50, most=100), Rule(), Rule())}):
        for rows, taken in ((1, False), (2, True), (4, True), (5, False)):
            assert ours(lambda a: a[:rows] @ a) == taken, rows      # noqa: B023


def test_out():
    a, b = np.ones((3, 4096), np.float16), np.ones((4096, 2), np.float16)
    for given in ({"out": np.empty((3, 2), np.float16)}, {"out": np.empty((3, 2), np.float32)}):
        with twn.installed(rules=EVERY):
            assert np.matmul(a, b, **given) is given["out"]
    with twn.installed(rules=EVERY):
        out = np.zeros((2, 3), np.float16).T
        assert np.matmul(a, b, out) is out
        assert (out == 4096).all()
        with pytest.raises(ValueError, match="core dimension"):
            np.matmul(a, b, out=np.empty((3, 3), np.float16))
        assert np.matmul(a, b, axes=[(0, 1), (0, 1), (0, 1)]).shape == (3, 2)
        x = np.arange(9.).reshape(3, 3)
        assert (np.matmul(x, x, out=x) == [[15, 18, 21], [42, 54, 66], [69, 90, 111]]).all()


def test_errors_are_raised_where_they_are_to_be():
    a = np.full((3, 3), 1e308)
    with twn.installed(rules=EVERY):
        for function in (np.matmul, np.dot, np.inner):
            with np.errstate(over="raise"), pytest.raises(FloatingPointError):
                function(a, a)
            with np.errstate(over="ignore"):
                assert np.isinf(function(a, a)).all()
        assert ours(lambda _: a @ a)
        with np.errstate(all="ignore"):
            assert ours(lambda _: a @ a)
        with np.errstate(invalid="call", call=print):
            assert not ours(lambda _: a[:1] @ a[:, :1] * 0)
            assert ours()                                           # of integers


def test_out_of_dot():
    a, b = np.arange(12.).reshape(3, 4), np.arange(4.)
    with twn.installed(rules=EVERY):
        out = np.empty(3)
        assert ours(lambda _: np.dot(a, b, out), "dot")
        assert ours(lambda _: np.dot(a, b, out=out), "dot")
        assert (out == [14, 38, 62]).all()
        for bad in (np.empty((1, 3)), np.empty(6)[::2], np.empty(3, np.float32)):
            with pytest.raises(ValueError, match="output array is not acceptable"):
                np.dot(a, b, out=bad)


def test_what_is_left_to_numpy():
    unaligned = np.zeros(8 * 16 + 1, np.uint8)[1:].view(np.float64).reshape(4, 4)
    plain = np.arange(16.).reshape(4, 4)
    matrix, masked = np.asmatrix(plain), np.ma.array(plain, mask=plain > 7)
    kinds = [matrix, masked, plain.astype(object), plain.astype(">f8"), plain.astype(np.longdouble), unaligned,
             plain.tolist(), plain.astype(np.int8)]
    expected = [x @ plain if x is not kinds[-2] else np.matmul(x, plain) for x in kinds]
    with twn.installed(rules=EVERY):
        for x, wanted in zip(kinds, expected):
            found = np.matmul(x, plain) if isinstance(x, list) else x @ plain
            assert type(found) is type(wanted)
            assert found.dtype == wanted.dtype
            assert np.array_equal(found, wanted)

        class Array:
            def __array_ufunc__(self, function, method, *given, **options):
                return "its own"

            def __array_function__(self, function, types, given, options):
                return function.__name__
        assert plain @ Array() == "its own"
        assert np.einsum("ij,jk", plain, Array()) == "einsum"
        for error, call in ((ValueError, lambda: plain @ plain[:3]), (TypeError, lambda: np.dot(plain)),
                            (ValueError, lambda: np.einsum("ij,jk,kl", plain, plain)),
                            (ValueError, lambda: np.dot(plain, plain, out=np.empty(3)))):
            with pytest.raises(error):
                call()


def test_if_ours_fails_numpys_is_called(monkeypatch):
    def fails(*given):
        raise error("not this time")
    a = np.ones((40, 40), np.int32)
    with twn.installed(rules=EVERY):
        function = module._gates["inner"].python
        monkeypatch.setattr(function, "ours", fails)
        error = RuntimeError
        assert (np.inner(a, a) == 40).all()
        error = KeyboardInterrupt
        with pytest.raises(KeyboardInterrupt):
            np.inner(a, a)


def test_from_several_threads():
    rng = np.random.default_rng(1)
    cases = [rng.integers(-9, 9, (n, n)).astype(dtype) for n in (3, 90) for dtype in ("i1", "f8") * 8]
    expected = [x @ x for x in cases]
    with twn.installed(rules=EVERY), ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda x: x @ x, cases)]
    assert all((x == y).all() for x, y in zip(found, expected))


def test_another_package_that_replaces_too_is_told(monkeypatch):
    twn.install(("dot",))
    gate = module._gates["dot"]
    twn.uninstall()
    monkeypatch.setattr(gate, "theirs", 1)
    with pytest.raises(twn.Unsupported, match=r"np\.dot has been changed by another package"):
        twn.install(("dot",))


@pytest.mark.parametrize(("threads", "workers"), [("1", 0), ("2", 1)])
def test_the_number_of_threads_is_tilewrights(threads, workers):
    code = ("import numpy as np, tilewright.numpy as twn; from tilewright.runtime.cpu.pool import pool\n"
            "twn.install(); a = np.ones((600, 600), np.int32); a @ a; print(pool().workers)")
    assert printed(code, TILEWRIGHT_NUM_THREADS=threads).split() == [str(workers)]


@pytest.mark.slow
def test_a_part_of_numpys_own_tests():
    """python -m tests.suites installed.numpy runs all."""
    path = Path(np.__file__).parent / "linalg/tests/test_linalg.py"
    if not path.exists():
        pytest.skip("this NumPy has no tests")
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-n0", "-c", "/dev/null", "--rootdir", str(path.parent),
                          "-p", "no:cacheprovider", "-p", "tests.suites.installed", "-k", "MultiDot",
                          str(path)], cwd=Path(__file__).parents[2], env={**os.environ, "TILEWRIGHT_TAKES": "all"},
                         capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    assert re.search(r"^\d+ passed", run.stdout, re.M), run.stdout


@pytest.mark.parametrize(("text", "groups"), [
    ("ij,jk->ik", "i k j "), ("ij,jk", "i k j "), ("bij,bjk->bik", "i k j b"), ("i,i->", "  i "), ("ij,ij->ij", None),
    ("ii,ij->j", None), ("i...,ij->j", None), ("ij,k->ik", None), ("ij,jk,kl->il", None), ("ijx,jk->ik", None),
    ("ij,jk->iz", None), ("ij->ji", None)])
def test_labels_of_products(text, groups):
    found = products._labels(text)
    assert (found and " ".join(found[2])) == groups


def test_formats_and_rules_that_there_are_none_of():
    with pytest.raises(ValueError, match="is no number format"):
        twn.install(rules={"float17": RULES["float32"]})
