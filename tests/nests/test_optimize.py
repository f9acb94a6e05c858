"""`tw.optimize`: which loops become products, and that those compute what the loops do."""
from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.doubles import uncompiled
from tests.helpers.gpus import aligned, machine
from tests.nests import contractions, test_recorded
from tests.nests.contractions import LOOPS, TAKEN
from tilewright.nests.nest import Refused
from tilewright.nests.running import verified

BEYOND_INT8 = (contractions.min_plus_if, contractions.max_times, contractions.shortest_paths)
OTHERS = (np.float64, np.int64, np.int8)


def named(cases):
    return [pytest.param(*case, id=f"{case[0].__name__}-{case[1][0][0]}") for case in cases]


def numbers(rng, shapes, dtype):
    return [rng.integers(-3, 4, x).astype(dtype) if isinstance(x, tuple) else x for x in shapes]


def turned(x, how):
    """The array with other strides: by columns, reversed, every second element of a larger one."""
    if how == "columns":
        return np.asfortranarray(x)
    if how == "reversed":
        return x[tuple([slice(None, None, -1)] * x.ndim)].copy()[tuple([slice(None, None, -1)] * x.ndim)]
    wide = np.zeros([2 * n for n in x.shape], x.dtype)
    view = wide[tuple([slice(None, None, 2)] * x.ndim)]
    view[...] = x
    return view


def expected(function, args):
    """Results of the plain loops in float64, or whole numbers of any size."""
    wide = [x if not isinstance(x, np.ndarray) else x.astype(np.int64 if x.dtype.kind == "i" else np.float64)
            for x in args]
    function(*wide)
    return wide


def same(args, want):
    for x, y in zip(args, want):
        if isinstance(x, np.ndarray):
            if x.dtype.kind == "i":
                np.testing.assert_array_equal(x, y.astype(x.dtype))
            else:
                np.testing.assert_allclose(x, y, rtol=1e-6)


@pytest.mark.parametrize(("function", "shapes", "words"), named(TAKEN + LOOPS))
def test_what_is_seen_and_computed(function, shapes, words):
    """In f32, and in one of the other formats, in turn, which the function's numbers allow."""
    rng = np.random.default_rng(len(words))
    turn = (TAKEN + LOOPS).index((function, shapes, words))
    others = [x for x in OTHERS[turn % 3:] + OTHERS[:turn % 3] if x is np.float64 or not (
        any(isinstance(x, float) for x in shapes) or (x is np.int8 and function in BEYOND_INT8))]
    for dtype in (np.float32, others[0]):
        args = numbers(rng, shapes, dtype)
        search = dtype is np.float32 or (dtype is np.int64 and max(shapes[0]) < 256)
        found = tw.optimize(function, *args, search=search)
        if dtype is np.float32:
            assert words in str(found)
            assert found.recognised == ((function, shapes, words) in TAKEN)
        for again in (args, numbers(rng, shapes, dtype)):
            want = expected(function, again)
            found(*again)
            same(again, want)


@pytest.mark.parametrize("how", ["columns", "reversed", "gaps"])
@pytest.mark.parametrize(("function", "shapes", "words"), named([x for x in TAKEN if 260 not in x[1][0]]))
def test_strides(function, shapes, words, how):
    rng = np.random.default_rng(7)
    args = [turned(x, how) if isinstance(x, np.ndarray) else x for x in numbers(rng, shapes, np.float32)]
    want = expected(function, args)
    tw.optimize(function, *args)(*args)
    same(args, want)


VERSIONS = [(test_recorded.lecture_v1(), (2, 1)), (test_recorded.lecture_v15(), (2, 2)),
            (test_recorded.lecture_v2(), (2, 2)), (test_recorded.lecture_v3(), (1, 1))]


@pytest.mark.parametrize(("kernel", "grid"), VERSIONS, ids=["V1", "V1.5", "V2", "V3"])
def test_the_lecture_s_kernels_become_matmul(kernel, grid):
    a, b, c = numbers(np.random.default_rng(1), [(8, 8)] * 3, np.float32)
    values = {"A": a, "B": b, "C": c}
    args = [values.get(name.upper(), 8) for name, _ in kernel.params]
    found = tw.optimize(kernel, *args, grid=grid)
    assert "matmul of 8 x 8 x 8" in str(found)
    found(*args)
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("chip", ["sm_80", "gfx942"])
def test_on_gpus(monkeypatch, chip):
    uncompiled.install(monkeypatch)
    on = machine(monkeypatch, chip)
    for function in (contractions.three_loops, contractions.bias_relu, contractions.batched, contractions.general,
                     contractions.stencil):
        shapes = next(shapes for f, shapes, _ in TAKEN + LOOPS if f is function)
        args = numbers(np.random.default_rng(2), shapes, np.float32)
        want = expected(function, args)
        given = [on.array(x) if isinstance(x, np.ndarray) else x for x in args]
        tw.optimize(function, *given)(*given)
        on.finish()
        same(args, want)


def test_sizes_in_place_of_arrays():
    found = tw.optimize(contractions.three_loops, (512, 512), (512, 512), (512, 512))
    assert "compiled as packed" in str(found)
    assert "compiled as wgmma" in str(tw.optimize(contractions.three_loops, *[
        np.empty((4096, 4096), np.float16)] * 2, np.empty((4096, 4096), np.float16), target="sm_90a"))


def test_arguments_of_another_layout_are_refused():
    a, b, c = numbers(np.random.default_rng(1), [(5, 7), (7, 6), (5, 6)], np.float32)
    found = tw.optimize(contractions.three_loops, a, b, c)
    for wrong in ((a[:, ::-1], b, c), (a.astype(np.float64), b, c), (a[:4], b, c[:4])):
        with pytest.raises(ValueError, match="A has another shape, other strides or another format"):
            found(*wrong)
    with pytest.raises(TypeError, match=r"takes \(A, B, C\), and is given 2 arguments by position and none by name"):
        found(a, b)
    found(a, b, C=c)
    np.testing.assert_array_equal(c, a @ b)
    c.setflags(write=False)
    with pytest.raises(ValueError, match="C is read-only, and three_loops writes it"):
        found(a, b, c)
    square = np.ones((6, 6), np.float32)
    with pytest.raises(ValueError, match="optimized for C and A that share no memory, and these do"):
        tw.optimize(contractions.three_loops, square, square.copy(), square.copy())(square, square.copy(), square)


def test_aliases_are_seen():
    square = np.ones((6, 6), np.float32)
    found = tw.optimize(contractions.three_loops, square, square.copy(), square)
    assert not found.recognised
    assert "A is read while C, which shares its memory, is written" in str(found)
    want = expected(contractions.three_loops, [x := square.copy(), square.copy(), x])[2]
    found(square, np.ones((6, 6), np.float32), square)
    assert want.shape == square.shape


def test_an_array_whose_elements_share_memory_is_no_result():
    a, b = numbers(np.random.default_rng(1), [(5, 7), (7, 6)], np.float32)
    row = np.broadcast_to(np.zeros(6, np.float32), (5, 6))
    row.flags.writeable = True
    found = tw.optimize(contractions.accumulated, a, b, row)
    assert "elements of C share memory" in str(found)
    found(a, b, row)
    np.testing.assert_array_equal(row[0], 2 * (a @ b).sum(0))


def test_what_is_outside_is_refused():
    a, b, c = numbers(np.random.default_rng(1), [(5, 7), (6, 6), (5, 6)], np.float32)
    with pytest.raises(Refused, match=r"B is accessed at 0 ... 6 of axis 0, which has 6 elements"):
        tw.optimize(contractions.three_loops, a, b, c)


def test_products_that_differ_from_the_loops_are_refused(monkeypatch):
    monkeypatch.setattr("tilewright.nests.optimize.VERIFIED", set())
    monkeypatch.setattr(verified, "equal", lambda *_: False)
    with pytest.raises(Refused, match="its products and its loops differ on small whole numbers"):
        tw.optimize(contractions.three_loops, (5, 7), (7, 6), (5, 6))


@pytest.mark.parametrize("how", [(verified.NEAR, verified.FIRST), (verified.CLOSE, verified.LOW)])
@pytest.mark.parametrize("values", [[56, 58, 64, 3, 16], [1, 2, 2048], [100, 101, 109, 300], [7, 8, 9, 17, 18]])
def test_smaller_sizes_keep_order_and_differences(values, how):
    to = verified._clustered(sorted(values), *how)
    placed = [to[v] for v in sorted(values)]
    assert placed == sorted(placed)
    assert len(set(placed)) == len(values)
    assert to == {v: v for v in values if v <= 8} | {v: to[v] for v in values if v > 8}
    if 58 in values:
        assert to[58] - to[56] == 2


def convolution(X, W, Y):
    N, H, V, O = Y.shape
    R, S, K, _ = W.shape
    for n in range(N):
        for h in range(H):
            for w in range(V):
                for o in range(O):
                    Y[n, h, w, o] = 0
                    for r in range(R):
                        for t in range(S):
                            for c in range(K):
                                Y[n, h, w, o] += X[n, h + r, w + t, c] * W[r, t, c, o]


def test_seven_loops_are_compared_at_smaller_sizes():
    assert "einsum" in str(tw.optimize(convolution, (16, 58, 58, 64), (3, 3, 64, 64), (16, 56, 56, 64)))


def test_explain_says_what_a_recognised_kernel_would_save():
    kernel, x = test_recorded.lecture_v1(16, 16), np.ones(64 * 64, np.float32)
    args = [64 if name == "N" else x.copy() for name, _ in kernel.params]
    section = next(s for s in tw.explain(kernel, *args, target="sm_80", grid=(4, 4)).sections if s.heading == "product")
    assert "matmul of 64 x 64 x 64, compiled as simt" in section.lines[0]
    assert any(line.startswith("L2: ") and line.endswith("here 2,113,536") for line in section.lines)


def test_formats_that_no_product_has_remain_loops():
    a, b = np.ones((5, 7), np.int8), np.ones((7, 6), np.int16)
    c = np.zeros((5, 6), np.float32)
    found = tw.optimize(halves, a, b, c)
    found(a, b, c)
    np.testing.assert_array_equal(c, np.full((5, 6), 3.5))


def halves(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            for p in range(A.shape[1]):
                C[i, j] += 0.5 * A[i, p] * B[p, j]


@pytest.mark.parametrize(("function", "shapes", "words"), named(TAKEN + LOOPS))
def test_tensors_of_torch_in_the_hosts_memory(function, shapes, words):
    torch = pytest.importorskip("torch")
    arrays = numbers(np.random.default_rng(3), shapes, np.float32)
    want = expected(function, arrays)
    given = [torch.from_numpy(x.copy()) if isinstance(x, np.ndarray) else x for x in arrays]
    found = tw.optimize(function, *given, timed=False)
    found(*given)
    same([x.numpy() if isinstance(x, torch.Tensor) else x for x in given], want)
    if function is contractions.reversed_rows:
        assert "backwards, of which a tensor has no view" in str(found)


def test_repeated_on_a_gpu_with_one_array_twice(monkeypatch):
    """A program noted where two parameters are one array does not serve two arrays, nor the other way round."""
    on, rng = machine(monkeypatch, "sm_90a"), np.random.default_rng(4)
    x, y, z = (aligned(rng.integers(-3, 4, (16, 16)).astype(np.float32)) for _ in range(3))
    a, b, c = map(on.array, (x, y, z))
    fast = tw.optimize(contractions.three_loops, a, b, c)
    twice = (a, a, x @ x)
    for left, right, want in (twice, twice, twice, (a, b, x @ y), (b, a, y @ x), (b, b, y @ y)) * 2:
        fast(left, right, c)
        on.finish()
        np.testing.assert_array_equal(z, want)


def test_zeros_of_both_signs_are_repeated_apart(monkeypatch):
    on = machine(monkeypatch, "sm_90a")
    x, y = (aligned(np.ones((16, 16), np.float32)) for _ in range(2))
    a, b = map(on.array, (x, y))

    @tw.loops
    def divided(A, B, alpha):
        for i in range(A.shape[0]):
            for j in range(A.shape[1]):
                B[i, j] = A[i, j] / alpha
    for alpha in (0.0, 0.0, -0.0, 2.0, -0.0, 0.0):
        divided(a, b, alpha)
        on.finish()
        assert (y == (1 / alpha if alpha else np.copysign(np.inf, alpha))).all()


def test_arguments_that_there_are_none_of_are_refused():
    loops, shapes = contractions.three_loops, [(3, 3)] * 3
    fast, x = tw.optimize(loops, *shapes, search=False), np.ones((3, 3), np.float32)
    for call, error, text in (
            (lambda: tw.optimize(loops, *shapes, temporary=["Z"]), ValueError, "temporary must be .* and has 'Z'"),
            (lambda: tw.optimize(loops, *shapes, temporary="C"), ValueError, "temporary must be a list"),
            (lambda: tw.optimize(loops, *shapes, target="zz"), ValueError, "there is no target 'zz'"),
            (lambda: tw.schedule(loops, x, x, x.copy()).split("i", "3"), ValueError, "a whole number of rounds, 1 or"),
            (lambda: tw.schedule(loops, x, x, x.copy())(x, x), TypeError, "is given 2 arguments"),
            (lambda: fast(x, x, x.copy(), x), TypeError, "is given 4 arguments"),
            (lambda: fast(np.ma.masked_array(x), x, x.copy()), TypeError, "A is a masked array"),
            (lambda: tw.loops(loops)(x, np.ma.masked_array(x), x.copy()), TypeError, "B is a masked array")):
        with pytest.raises(error, match=text):
            call()
