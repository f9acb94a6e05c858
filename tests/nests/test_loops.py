"""`tw.loops`: users' loops on CPUs, on GPUs and in the simulator, against the Python functions."""
from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.doubles import uncompiled
from tests.helpers.gpus import machine
from tests.nests import cases, contractions
from tests.nests.cases import ARGUMENTS
from tilewright.ir import f32, f64
from tilewright.ir.exact import silent_multiply_add

CHIPS = ["sm_75", "gfx942"]


def copies(args):
    return [x.copy() if isinstance(x, np.ndarray) else x for x in args]


def computed(function, args):
    """The arguments after a call of the plain function."""
    after = copies(args)
    function(*after)
    return after


def simulated(loops, args, gpu=None):
    given = loops._given(tuple(args), {}, gpu)
    return loops._execution(given).simulate(given)[1]


def same(got, want):
    for x, y in zip(got, want):
        if isinstance(x, np.ndarray):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("function", ARGUMENTS, ids=lambda f: f.__name__)
def test_the_cases_on_a_cpu_and_in_the_simulator(function):
    args = ARGUMENTS[function](np.random.default_rng(0))
    want, loops = computed(function, args), tw.loops(function)
    same(simulated(loops, args), want)
    for gpu in CHIPS:
        same(simulated(loops, args, gpu), want)
    assert loops(*args) is None
    same(args, want)


@pytest.mark.parametrize("chip", CHIPS)
def test_the_cases_on_gpus(monkeypatch, chip):
    uncompiled.install(monkeypatch)
    on = machine(monkeypatch, chip)
    for function, make in ARGUMENTS.items():
        args = make(np.random.default_rng(1))
        want = computed(function, args)
        tw.loops(function)(*[on.array(x) if isinstance(x, np.ndarray) else x for x in args])
        on.finish()
        same(args, want)


# ---- arrays of every format, order and size

def multiply(A, B, C):
    for i in range(C.shape[0]):
        for j in range(C.shape[1]):
            for p in range(A.shape[1]):
                C[i, j] += A[i, p] * B[p, j]


FORMATS = ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64"]


def viewed(rng, shape, dtype):
    """Small whole numbers in an array of these extents and of random strides."""
    axes = rng.permutation(len(shape))
    steps = rng.choice([1, 1, 1, 2, -1, -3], len(shape))
    whole = np.zeros([n * abs(step) for n, step in zip(np.take(shape, axes), np.take(steps, axes))], dtype)
    x = whole.transpose(np.argsort(axes))[tuple(slice(None, None, step) for step in steps)]
    assert x.shape == tuple(shape)
    x[...] = rng.integers(-3, 4, shape)
    return x


@pytest.mark.parametrize("gpu", [None, "cpu", *CHIPS])
def test_formats_orders_and_sizes(gpu):
    import ml_dtypes
    rng = np.random.default_rng(3)
    loops = tw.loops(multiply)
    for m, n, k in [(0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 1, 1), (1, 7, 3), (33, 2, 5), (3, 37, 2), (5, 3, 17)]:
        for name in FORMATS if gpu is None else rng.choice(FORMATS, 2):
            dtype = getattr(ml_dtypes, name, None) or np.dtype(name)
            args = [viewed(rng, shape, dtype) for shape in ((m, k), (k, n), (m, n))]
            want = args[2].astype(np.int64) + args[0].astype(np.int64) @ args[1].astype(np.int64)
            if gpu:
                args = simulated(loops, args, None if gpu == "cpu" else gpu)
            else:
                loops(*args)
            np.testing.assert_array_equal(args[2].astype(np.int64), want)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_tensors_in_the_hosts_memory(dtype):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(6)
    A, B, C = (torch.from_numpy(rng.integers(-3, 4, (5, 5))).to(getattr(torch, dtype)) for _ in range(3))
    want = C.double() + A.T.double() @ B.double()
    tw.loops(multiply)(A.T, B, C)
    assert (C.double() == want).all()
    with pytest.raises(ValueError, match="C requires a gradient"):
        tw.loops(multiply)(A, B, C.float().requires_grad_())


def test_axes_without_strides():
    A, B, C = np.broadcast_to(np.float32(2), (4, 5)), np.broadcast_to(np.arange(6, dtype=np.int16), (5, 6)), \
        np.zeros((4, 6))
    tw.loops(multiply)(A, B, C)
    assert np.array_equal(C, A @ B)


def mixed(A, B, C, D, x):
    for i in range(len(A)):
        C[i] = A[i] * B[i] + x * i
        D[i] = A[i] / 2


def test_results_are_converted_as_numpy_does():
    """i8 by f32 is computed in f32, of which an i16 gets the whole part; i8 / 2 in f64."""
    A, B = np.array([-7, 5, 3], np.int8), np.array([0.5, 0.3, 1.1], np.float32)
    C, D = np.zeros(3, np.int16), np.zeros(3)
    tw.loops(mixed)(A, B, C, D, 0.25)
    assert [*C, *D] == [-3, 1, 3, -3.5, 2.5, 1.5]
    wide = np.zeros(3)
    tw.loops(mixed)(A, B.astype(np.float64), C, wide, 3)
    assert [*C, *wide] == [-3, 4, 9, -3.5, 2.5, 1.5]


def whole(A, B):
    for i in range(len(A)):
        B[i] = A[i] * A[i] * 100


def test_whole_numbers_wrap_around():
    A = np.array([1, 100, -128, 127], np.int8)
    for dtype in (np.int8, np.int16, np.int64):
        B = np.zeros(4, dtype)
        tw.loops(whole)(A, B)
        assert np.array_equal(B, (A.astype(np.int64)**2 * 100).astype(dtype))


FORMAT_OF = {np.float32: f32, np.float64: f64}


def polynomial(A, B, C):
    for i in range(len(A)):
        s = 1.5
        for p in range(len(B)):
            s -= A[i] * B[p]
        C[i] = s * s + A[i] * B[0]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_are_rounded_as_documented(dtype):
    """A product and its subtraction at once; s * s + A[i] * B[0], which is no reduction, three times."""
    rng = np.random.default_rng(4)
    A, B = rng.standard_normal((2, 50)).astype(dtype)
    C, t = np.zeros(50, dtype), np.promote_types(dtype, np.float32).type
    s = np.full(50, 1.5, t)
    for b in B:
        s = silent_multiply_add(FORMAT_OF[t], -A.astype(t), np.full(50, b, t), s)
    want = (s * s + A.astype(t) * t(B[0])).astype(dtype)
    for gpu in (None, *CHIPS):
        np.testing.assert_array_equal(simulated(tw.loops(polynomial), [A, B, C], gpu)[2], want)
    tw.loops(polynomial)(A, B, C)
    np.testing.assert_array_equal(C, want)


# ---- arrays that overlap

def shifted(A, B):
    for i in range(len(A)):
        B[i] = A[i] + 1


@pytest.mark.parametrize("gpu", [None, *CHIPS])
@pytest.mark.parametrize(("a", "b"), [((0, 9), (1, 10)), ((1, 10), (0, 9)), ((0, 5), (5, 10)), ((0, 9), (0, 9))])
def test_overlapping_arrays(a, b, gpu):
    x = np.arange(10, dtype=np.int32)
    want = x.copy()
    for i in range(a[1] - a[0]):
        want[b[0] + i] = want[a[0] + i] + 1
    loops = tw.loops(shifted)
    got = simulated(loops, [x[slice(*a)], x[slice(*b)]], gpu)[1]
    assert np.array_equal(got, want[slice(*b)])
    loops(x[slice(*a)], x[slice(*b)])
    assert np.array_equal(x, want)
    if gpu:         # one array twice has rounds that are independent
        assert ("one thread" in loops.explain(x[slice(*a)], x[slice(*b)], gpu=gpu)) == (a[0] != b[0] and a[1] != b[0])


def test_an_array_whose_rows_are_one():
    rows = np.lib.stride_tricks.as_strided(np.zeros(3, np.float32), (4, 3), (0, 4))
    want = np.arange(3) * 10 + 3
    loops = tw.loops(numbered)
    for gpu in (None, *CHIPS):
        assert (simulated(loops, [rows], gpu)[0] == want).all()
    assert "overlaps another one, or itself" in loops.explain(rows, gpu="sm_80")


def numbered(A):
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            A[i, j] = i + 10 * j


# ---- loops of the host around launches

def heat(A, B, steps):
    """Steps in time, each of two passes over the plane."""
    for t in range(steps):
        for i in range(1, A.shape[0] - 1):
            for j in range(1, A.shape[1] - 1):
                B[i, j] = A[i - 1, j] + A[i, j + 1] - t * A[i, j]
        if t > 0:
            for i in range(1, A.shape[0] - 1):
                for j in range(1, A.shape[1] - 1):
                    A[i, j] = B[i, j] - A[i, j]


@pytest.mark.parametrize("chip", CHIPS)
def test_steps_in_time_are_launches_of_the_host(monkeypatch, chip):
    on, loops = machine(monkeypatch, chip), tw.loops(heat)
    for shape, launches in (((7, 9), 1), ((12, 40), 6)):
        A, B = np.random.default_rng(5).integers(-3, 4, (2, *shape)).astype(np.int32)
        want = computed(heat, [A, B, 3])
        on.machine.launches.clear()
        loops(on.array(A), on.array(B), 3)
        on.finish()
        same([A, B], want)
        assert len(on.machine.launches) == launches
    assert [x.strip() for x in loops.explain(A, B, 3, gpu=chip).splitlines()[-3:]] == [
        "the host, in each round of t:", "launch: rounds shared by CTAs of 32 x 8 threads, i along y, j along x",
        "launch: rounds shared by CTAs of 32 x 8 threads, i.2 along y, j.2 along x"]


# ---- what is said

def test_explanations():
    A, B, C = (np.ones((4, 4), np.float32) for _ in range(3))
    loops = tw.loops(contractions.in_place)
    assert repr(loops) == "<loops in_place(A, B)>"
    assert loops.explain(A, B).endswith("\none thread of the CPU, in this order")
    assert tw.loops(multiply).explain(A, B, C).endswith("\none thread of the CPU, in this order, j by vectors")
    assert tw.loops(multiply).explain(A.T, B.T, C.T).endswith("\none thread of the CPU, in this order, i by vectors")
    line = contractions.in_place.__code__.co_firstlineno + 3
    assert loops.explain(A, B, gpu=True).splitlines()[-2:] == [
        "launch: rounds shared by CTAs of 256 x 1 threads, i along x",
        f"    in order, j: A[i, j] of contractions.py:{line + 3} may be A[i, p] of another round"]
    assert str(tw.loops(multiply).nest(A, B, C)).splitlines()[-1] == "      C[i, j] add= A[i, p] * B[p, j]"
    two = tw.loops(contractions.bias_relu).function(A, B, C, A[0], A[1], gpu="sm_80")
    assert [f.threads for f in two] == [(32, 8)] * 2
    assert tw.loops(cases.everything).function(A[0], B[0], 4)[0].threads is None
    assert "C[i, j] += A[i, p] * B[p, j]" in str(tw.loops(multiply).simulate(A, B, C))
    assert (C == 1).all()


def gather(A, at, B):
    for i in range(len(B)):
        B[i] = A[at[i]]


def past_the_end(A, B):
    for i in range(len(A)):
        B[i] = A[i + 1]


F = np.ones((3, 3), np.float32)


@pytest.mark.parametrize(("function", "args", "error", "sentence"), [
    (multiply, (F, F), TypeError, r"multiply\(A, B, C\) is given 2 arguments: missing a required argument: 'C'"),
    (multiply, (F, F, "x"), TypeError, "C must be an array, a whole number or a float, not str"),
    (multiply, (F, F, F.astype(complex)), TypeError, "C is an array of complex128; loops take arrays of float16"),
    (multiply, (F, F.astype(np.uint8), F), TypeError, "B is an array of uint8; loops take arrays of"),
    (multiply, (F, F[0], F), TypeError, r"test_loops.py:\d+: B has 1 axes, and is given 2 subscripts"),
    (multiply, (F, F[:2], F), TypeError, r"B is accessed at 0 ... 2 of axis 0, which has 2 elements"),
    (multiply, (F, F, np.broadcast_to(F[0], (3, 3))), ValueError, r"C is read-only, and is written at test_lo"),
    (multiply, (F, F, np.zeros(37, np.int8)[1:].view(np.float32).reshape(3, 3)), ValueError, "elements of C begin at"),
    (gather, (F[0], F[0], F[0]), TypeError, "is no sum of loop indices and sizes"),
    (past_the_end, (F[0], F[1]), TypeError, "A is accessed at 1 ... 3 of axis 0, which has 3 elements"),
    (cases.jpi, (F, F, F, 3, 3, 2**63), OverflowError, "k is 9223372036854775808, which is no whole number of 64 bits"),
    (cases.jpi, (F, F, F, 3, 3, 3.0), TypeError, "k is no sum of loop indices and sizes"),
])
def test_what_is_refused(function, args, error, sentence):
    with pytest.raises(error, match=sentence):
        tw.loops(function)(*args)


def test_a_function_is_needed():
    with pytest.raises(TypeError, match="loops are those of a Python function, not 3"):
        tw.loops(3)


FACTOR = 2


def scaled(A, B, by=3):
    for i in range(len(A)):
        B[i] = FACTOR * A[i] + by


def test_constants_of_the_module_and_defaults(monkeypatch):
    loops, A, B = tw.loops(scaled), np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    loops(A, B)
    assert np.array_equal(B, 2 * A + 3)
    loops(A, by=0.5, B=B)
    assert np.array_equal(B, 2 * A + 0.5)
    monkeypatch.setitem(globals(), "FACTOR", 5)
    loops(A, B, np.int32(1))
    assert np.array_equal(B, 5 * A + 1)


def test_arrays_in_several_places(monkeypatch):
    on = machine(monkeypatch, "sm_80")
    with pytest.raises(TypeError, match=r"A is on the host and B on .*: loops run where all their arrays are"):
        tw.loops(shifted)(F[0], on.array(F[1]))


def test_loops_of_which_nothing_is_left():
    """Conditions that never hold: no statement remains, on a CPU or a GPU."""
    def never(A, C):
        for i in range(C.shape[0]):
            if i > i:
                C[i] = A[i]
    a, c = np.ones(9, np.int64), np.arange(9)
    tw.loops(never)(a, c)
    tw.optimize(never, a, c)(a, c)
    same([c, simulated(tw.loops(never), [a, c], "sm_75")[1]], [np.arange(9)] * 2)
