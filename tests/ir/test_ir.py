"""Every operation and every kind of node in both readings: the same bits."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.helpers.readings import both, native
from tilewright.ir import Kernel, f32, f64, i1, i8, i16, i32, i64, ptr, vec
from tilewright.ir.ops import core as ops
from tilewright.targets import detect

FLOATS = [f32, f64]
AVX512 = pytest.mark.skipif(detect().vector_bytes < 64, reason="vectors of 512 bits need AVX-512")
WIDE = [pytest.param(vec(f32, 16), marks=AVX512), pytest.param(vec(f64, 8), marks=AVX512), vec(f32, 8), vec(f64, 4)]
TYPES = [f32, f64, i32, i64, *WIDE, vec(f32, 4), vec(i32, 8), vec(i64, 2)]
ARITHMETIC = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}
INTEGER = {"div": operator.floordiv, "rem": operator.mod, "and": operator.and_, "or": operator.or_, "xor": operator.xor}
COMPARE = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
           "eq": lambda x, y: x == y, "ne": lambda x, y: x != y}


def interesting(t, count, seed=0):
    """Numbers of this type, the awkward ones among them, never the same pair twice in two arrays of different seeds."""
    rng = np.random.default_rng(seed)
    dtype = t.numpy
    if t.is_float:
        info = np.finfo(dtype)
        special = [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, info.max, info.tiny, info.smallest_subnormal]
        with np.errstate(all="ignore"):
            x = (rng.standard_normal(count) * np.exp2(rng.integers(-20, 20, count))).astype(dtype)
    else:
        info = np.iinfo(dtype)
        special = [0, 1, -1, 2, info.max, info.min]
        x = rng.integers(info.min, info.max, count, dtype, endpoint=True)
    pick = rng.random(count) < 0.5
    x[pick] = np.array(special, dtype)[rng.integers(0, len(special), count)[pick]]
    return x


def elementwise(t, body, *operands, result=None, count=64):
    """z[i] = body(k, *operands[i]) for all i, in both readings; each operand is (type, data)."""
    result = result or t
    params = {f"x{i}": ptr(o.scalar) for i, (o, _) in enumerate(operands)}
    k = Kernel("elementwise", n=i64, **params, z=ptr(result.scalar))
    n, *xs, z = k.args
    with k.loop(n) as i:
        values = [k.load(x + i * o.length, o, o.scalar.bytes) for x, (o, _) in zip(xs, operands)]
        k.store(z + i * result.length, body(k, *values), result.scalar.bytes)
    data = [x for _, x in operands]
    z = np.zeros(count * result.length, result.scalar.numpy)
    return both(k.function, count, *data, z)[1]["z"]


@pytest.mark.parametrize("t", TYPES, ids=str)
@pytest.mark.parametrize("op", ARITHMETIC)
def test_arithmetic(op, t):
    x, y = (interesting(t.scalar, 64 * t.length, seed) for seed in (1, 2))
    elementwise(t, lambda k, x, y: ARITHMETIC[op](x, y), (t, x), (t, y))


@pytest.mark.parametrize("t", [i32, i64, vec(i64, 4)], ids=str)
@pytest.mark.parametrize("op", INTEGER)
def test_integer_arithmetic(op, t):
    x, y = (interesting(t.scalar, 64 * t.length, seed) for seed in (1, 2))
    if op in ("div", "rem"):  # for indices: never negative
        x, y = np.abs(x // 2), np.abs(y // 2) + 1
    elementwise(t, lambda k, x, y: INTEGER[op](x, y), (t, x), (t, y))


@pytest.mark.parametrize("t", [i32, i64], ids=str)
def test_shifts(t):
    x, y = interesting(t, 64, 1), np.arange(64, dtype=t.numpy) % t.bits
    elementwise(t, lambda k, x, y: x << y, (t, x), (t, y))
    elementwise(t, lambda k, x, y: x >> y, (t, x), (t, y))


@pytest.mark.parametrize("t", TYPES, ids=str)
@pytest.mark.parametrize("op", COMPARE)
def test_comparison_and_select(op, t):
    x, y = (interesting(t.scalar, 64 * t.length, seed) for seed in (1, 2))
    y[::3] = x[::3]
    elementwise(t, lambda k, x, y: k.select(COMPARE[op](x, y), x, y), (t, x), (t, y))


@pytest.mark.parametrize("t", [f32, f64, i64], ids=str)
def test_min_max_and_truth_values(t):
    x, y = (interesting(t, 64, seed) for seed in (1, 2))
    elementwise(t, lambda k, x, y: k.min(x, y) + k.max(y, x), (t, x), (t, y))
    elementwise(t, lambda k, x, y: k.cast((x < y) | (y < x), i32), (t, x), (t, y), result=i32)
    elementwise(t, lambda k, x, y: k.cast((x <= y) & (x == y), f32), (t, x), (t, y), result=f32)


@pytest.mark.parametrize("source", [f32, f64, i8, i16, i32, i64], ids=str)
@pytest.mark.parametrize("to", [f32, f64, i8, i16, i32, i64], ids=str)
def test_casts(source, to):
    x = interesting(source, 64)
    if source.is_float and not to.is_float:
        x = np.linspace(-120, 120, 64).astype(source.numpy)  # what does not fit is undefined
    elementwise(to, lambda k, x: k.cast(x, to), (source, x))


@pytest.mark.parametrize("t", [f32, f64, *WIDE], ids=str)
def test_fma(t):
    x, y, z = (interesting(t.scalar, 64 * t.length, seed) for seed in (1, 2, 3))
    elementwise(t, lambda k, x, y, z: k.fma(x, y, z), (t, x), (t, y), (t, z))


def hard_fma_operands(t, count, seed):
    """Sums that cancel, lie on ties, overflow, or are subnormal, and any bits at all."""
    rng = np.random.default_rng(seed)
    info, dtype = np.finfo(t.numpy), t.numpy

    def powers(low, high):
        x = np.ldexp(1 + rng.random(count), rng.integers(low, high, count)) * rng.choice([-1, 1], count)
        return x.astype(dtype)

    def few_bits(bits):
        return (rng.integers(-(2**bits), 2**bits, count) * np.exp2(rng.integers(-60, 60, count))).astype(dtype)
    under, over = info.minexp // 2, info.maxexp // 2
    with np.errstate(all="ignore"):
        a, b = powers(-30, 30), powers(-30, 30)
        yield a, b, -(a * b)
        yield a, b, np.nextafter(-(a * b), powers(-5, 5))
        a, b = powers(under - 30, under + 30), powers(under - 30, under + 30)
        yield a, b, -(a * b)
        yield a, b, powers(info.minexp - info.nmant // 2, info.minexp + 30)
        yield powers(over - 3, over + 2), powers(over - 3, over + 2), powers(info.maxexp - 4, info.maxexp)
        yield few_bits(12), few_bits(12), few_bits(4)
        yield tuple(rng.integers(0, 256, count * t.bytes, np.uint8).view(dtype) for _ in range(3))


@pytest.mark.parametrize("t", FLOATS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_fma_rounds_once_whatever_the_operands(t, seed):
    k = Kernel("fused", n=i64, a=ptr(t), b=ptr(t), c=ptr(t), d=ptr(t))
    n, a, b, c, d = k.args
    with k.loop(n) as i:
        d[i] = k.fma(a[i], b[i], c[i])
    code, count = native([k.function]), 20_000
    machine = code.function("fused", None, *[np.ctypeslib.ctypes.c_int64], *[np.ctypeslib.ctypes.c_void_p] * 4)
    for operands in hard_fma_operands(t, count, seed):
        d = np.empty(count, t.numpy)
        machine(count, *(np.ascontiguousarray(x).ctypes.data for x in operands), d.ctypes.data)
        mine = ops.FMA.numpy(t, *operands)
        wrong = (mine.view(f"i{t.bytes}") != d.view(f"i{t.bytes}")) & ~(np.isnan(mine) & np.isnan(d))
        assert not wrong.any(), [x[wrong][:3] for x in (*operands, d, mine)]


@pytest.mark.parametrize("t", [f32, pytest.param(f64, marks=AVX512)], ids=str)
def test_vectors_are_taken_apart_and_put_together(t):
    x, y = (interesting(t, 64 * 8, seed) for seed in (1, 2))
    v = vec(t, 8)
    elementwise(v, lambda k, x, y: k.shuffle(x, y, [15, 0, 7, 8, 8, 3, 1, 14]), (v, x), (v, y))
    elementwise(vec(t, 4), lambda k, x, y: k.shuffle(x, y, [0, 9, 2, 11]), (v, x), (v, y))
    elementwise(v, lambda k, x, y: k.broadcast(x[3] + y[0], 8), (v, x), (v, y))
    elementwise(vec(t, 4), lambda k, x, y: k.pack(x[7], y[7], x[0], x[0] * y[1]), (v, x), (v, y))


@pytest.mark.parametrize("t", [*WIDE, vec(f32, 2)], ids=str)
def test_horizontal_sums_are_added_in_the_same_order(t):
    x = interesting(t.scalar, 64 * t.length)
    elementwise(t.scalar, lambda k, x: k.sum(x), (t, x))


@pytest.mark.parametrize("align", [1, 4])
@pytest.mark.parametrize("length", [4, 8, pytest.param(16, marks=AVX512)])
def test_masked_loads_and_stores(length, align):
    """What is masked out is neither read nor written, not even beyond the ends of the arrays."""
    V = vec(f32, length)
    k = Kernel("masked", n=i64, lanes=i64, x=ptr(f32), y=ptr(f32), z=ptr(f32))
    n, lanes, x, y, z = k.args
    mask = k.lanes_below(lanes, length)
    with k.loop(n) as i:
        some = k.load(x + i * length, V, align, mask)
        k.store(y + i * length, some + some, align)
        k.store(z + i * length, k.load(x + i * length, V, align), align, mask)
    for lanes in (-3, 0, 1, length - 1, length, length + 7):
        x = np.arange(3 * length, dtype=np.float32) + 1
        both(k.function, 3, lanes, x, np.full_like(x, np.nan), np.full_like(x, 9))
    one = Kernel("one", lanes=i64, x=ptr(f32), y=ptr(f32))
    lanes, x, y = one.args
    mask = one.lanes_below(lanes, length)
    one.store(y, one.load(x, V, align, mask), align, mask)
    x = np.arange(3, dtype=np.float32)
    report, _ = both(one.function, 3, x, np.zeros(3, np.float32))
    assert (report.of("x", "load").elements, report.of("y", "store").bytes) == (3, 12)


def test_memory_is_bytes_that_can_be_read_as_anything():
    k = Kernel("views", x=ptr(f64), y=ptr(i8), z=ptr(i64))
    x, y, z = k.args
    z[0] = k.load(x.as_(i64) + 1)
    z[1] = k.cast(k.load(x.as_(i32) + 1), i64)
    z[2] = k.cast(k.load(x.as_(i8) + 3, i16, align=1), i64)
    z[3] = k.field(y, 8, i64)
    k.store(y.as_(f32) + 1, k.constant(f32, 1.5))
    k.store(z.as_(i8) + 33, k.load(y.as_(i8) + 5, vec(i8, 4), align=1), align=1)
    both(k.function, np.array([np.pi, -np.e]), np.arange(16, dtype=np.int8), np.zeros(6, np.int64))


def test_loops():
    k = Kernel("loops", start=i64, stop=i64, step=i64, out=ptr(i64))
    start, stop, step, out = k.args
    sum_, rounds = k.variable(i64, 0), k.variable(i64, 0)
    with k.loop(stop, start, step) as i:
        with k.loop(i) as j:
            sum_.set(sum_.get() + i * j)
        rounds.set(rounds.get() + 1)
    out[0], out[1] = sum_.get(), rounds.get()
    for bounds in [(0, 5, 1), (0, 0, 1), (3, 3, 1), (7, 3, 2), (-4, 9, 3), (0, 10, 4), (2, 1, 1)]:
        _, after = both(k.function, *bounds, np.zeros(2, np.int64))
        assert after["out"][1] == len(range(*bounds))


def test_while_with_a_head_that_computes():
    """Collatz: the condition is computed anew before every round."""
    k = Kernel("collatz", n=i64, steps=ptr(i64))
    n, steps = k.args
    x = k.variable(i64, n)
    with k.while_(lambda: x.get() != 1):
        odd = x.get() % 2 == 1
        with k.when(odd):
            x.set(x.get() * 3 + 1)
        with k.otherwise():
            x.set(x.get() // 2)
        steps[0] = steps[0] + 1
    for n, expected in ((1, 0), (6, 8), (27, 111)):
        _, after = both(k.function, n, np.zeros(1, np.int64))
        assert after["steps"][0] == expected


def test_early_returns():
    k = Kernel("find", n=i64, x=ptr(i32), what=i32, result=i64)
    n, x, what = k.args
    with k.when(n <= 0):
        k.ret(-2)
    with k.loop(n) as i:
        with k.when(x[i] == what):
            k.ret(i)
        with k.otherwise(), k.when(x[i] < 0):
            k.ret(-3)
    k.ret(-1)
    x, code = np.array([5, 3, 9, -1, 7], np.int32), native([k.function])
    for n, what, expected in ((5, 9, 2), (5, 5, 0), (5, 7, -3), (3, 4, -1), (0, 5, -2)):
        report, _ = both(k.function, n, x, what, code=code)
        assert report.result == expected


def test_calls_of_recorded_functions():
    square = Kernel("square", x=f64, result=f64)
    square.ret(square.args[0] * square.args[0])
    poke = Kernel("poke", p=ptr(f64), x=f64)
    poke.store(poke.args[0], poke.call(square.function, poke.args[1]) + 1)
    k = Kernel("caller", n=i64, x=ptr(f64), result=f64)
    n, x = k.args
    with k.loop(n) as i:
        k.call(poke.function, x + i, x[i])
    k.ret(k.call(square.function, x[n - 1]))
    report, after = both(k.function, 4, np.arange(4.0))
    np.testing.assert_array_equal(after["x"], np.arange(4.0) ** 2 + 1)
    assert report.instructions["call"] == 9
    assert report.result == 100


def test_function_pointers_in_a_table():
    add, mul = (Kernel(name, x=i64, y=i64, result=i64) for name in ("plus", "times"))
    add.ret(add.args[0] + add.args[1])
    mul.ret(mul.args[0] * mul.args[1])
    k = Kernel("dispatch", n=i64, table=ptr(i64), out=ptr(i64))
    n, table, out = k.args
    with k.loop(n) as i:
        f = k.load((table + i % 2).as_(i64).as_(i8), ptr(i8))
        out[i] = k.call(f, out[i], i + 2, result=i64)
    functions = [add.function, mul.function]
    _, after = both(k.function, 5, lambda address: np.array([address(f) for f in functions]), np.arange(5),
                          also=functions)
    np.testing.assert_array_equal(after["out"], [2, 3, 6, 15, 10])


def test_functions_outside_have_the_meaning_that_is_given():
    k = Kernel("outside", x=i64, result=i64)
    k.ret(k.call_external("labs", i64, k.args[0]) + 1)
    report, _ = both(k.function, -41, externals={"labs": abs})
    assert report.result == 42


def test_local_arrays():
    k = Kernel("reverse", n=i64, x=ptr(f32))
    n, x = k.args
    stack = k.local("stack", (4, 4), f32)
    with k.loop(n) as i:
        stack[i // 4, i % 4] = x[i]
    with k.loop(n) as i:
        x[i] = stack[(n - 1 - i) // 4, (n - 1 - i) % 4]
    _, after = both(k.function, 13, np.arange(13, dtype=np.float32))
    np.testing.assert_array_equal(after["x"], np.arange(13)[::-1])


def test_pointers_are_stored_selected_compared_and_moved_backwards():
    k = Kernel("pointers", noalias=False, table=ptr(i64), n=i64, step=i64, which=i64)
    table, n, step, which = k.args
    x, y = (k.load((table + i).as_(i8), ptr(f64)) for i in range(2))
    p = k.select(which == 0, x, y)
    null = k.constant(ptr(f64), 0)
    with k.when(k.address(null) == 0):
        q = k.pointer(k.address(p) + 8, f64)
        k.store(table + 2, k.address(q) - k.address(p))
    with k.loop(n) as i:
        p.view(step)[i] = p.view(step)[i] + k.cast(i, f64)
    x, y = np.arange(10.0), np.arange(10.0)[::-1]
    for which, step in ((0, 1), (0, 2), (1, -1), (1, -3)):
        n = 9 // abs(step) + 1
        table = lambda address: np.array([address("x"), address("y"), 0])  # noqa: E731
        both(k.function, table, n, step, which, arrays={"x": x, "y": y})


def test_prefetches_and_opaque_values_change_nothing():
    k = Kernel("hints", n=i64, x=ptr(f32), y=ptr(f32))
    n, x, y = k.args
    x = k.opaque(x)
    with k.loop(k.opaque(n)) as i:
        k.prefetch(x + (i + 1000))
        k.prefetch(y + i, write=True, locality=1)
        k.store(y + i, x[i], streaming=True)
    report, _ = both(k.function, 8, np.arange(8, dtype=np.float32), np.zeros(8, np.float32))
    assert report.instructions["prefetch"] == 16


# ---- any program

@st.composite
def programs(draw):
    """A list of instructions on numbered values; what each makes is of the same type, a vector of 4."""
    length = draw(st.integers(1, 30))
    return draw(st.sampled_from([f32, f64, i64])), [
        (draw(st.integers(0, 9)), *(draw(st.integers(0, 2 + n)) for _ in range(3))) for n in range(length)
    ]


def conditional(k, V, a, b, c):
    register = k.variable(V, a)
    with k.when(b[0] < c[0]):
        register.set(b)
    with k.otherwise():
        register.set(register.get() + c)
    return register.get()


INSTRUCTIONS = [
    lambda k, V, a, b, c: a + b,
    lambda k, V, a, b, c: a - b,
    lambda k, V, a, b, c: a * b,
    lambda k, V, a, b, c: k.fma(a, b, c) if V.is_float else a * b + c,
    lambda k, V, a, b, c: k.select(a < b, b, c),
    lambda k, V, a, b, c: k.select(a == b, c, a),
    lambda k, V, a, b, c: k.shuffle(a, b, [3, 4, 1, 6]),
    lambda k, V, a, b, c: k.broadcast(a[2], 4),
    lambda k, V, a, b, c: k.pack(a[0], b[1], c[2], a[3]),
    conditional,
]


def record(t, program):
    V = vec(t, 4)
    k = Kernel("any_program", n=i64, x=ptr(t), y=ptr(t))
    n, x, y = k.args
    total = k.variable(V, 0)
    with k.loop(n) as i:
        values = [k.load(x + i * 4, V, t.bytes), k.load(x + i, V, t.bytes), total.get()]
        for what, *operands in program:
            values.append(INSTRUCTIONS[what](k, V, *(values[o] for o in operands)))
        total.set(values[-1])
        k.store(y + i * 4, values[-1], t.bytes)
    return k.function


@given(programs(), st.integers(0, 2**32))
def test_any_program(program, seed):
    t, instructions = program
    x = interesting(t, 24, seed)
    both(record(t, instructions), 6, x, np.zeros(24, t.numpy))


# ---- how kernels are written: mistakes are answered in sentences

def value_errors():
    k = Kernel("wrong", n=i64, x=ptr(f32), y=ptr(f64), v=ptr(f32))
    n, x, y, _ = k.args
    other = Kernel("other", a=i64, b=f32, result=i64)
    vector = k.load(x, vec(f32, 4))

    def otherwise():
        k.load(x)
        with k.otherwise():
            pass
    return {
        "mixed floats": (lambda: x[0] + y[0], TypeError, "expected f32, got f64"),
        "vector and scalar": (lambda: vector * x[0], TypeError, "expected v4f32, got f32"),
        "float for an integer": (lambda: n + 1.5, TypeError, "1.5 is not of type i64"),
        "no number": (lambda: n + "1", TypeError, "'1' is not of type i64"),
        "too many indices": (lambda: x.view(n, 1)[0], IndexError, "x has 2 dimensions, got 1 indices"),
        "element": (lambda: vector[4], IndexError, "element 4 of v4f32"),
        "shuffle": (lambda: k.shuffle(vector, vector, [0, 8]), IndexError, "element 8 of two v4f32"),
        "tile": (lambda: k.tile(2, 2, f32)[2, 0], IndexError, "register .2, 0. of a 2 x 2 tile"),
        "store": (lambda: k.store(x, y[0]), TypeError, "f64 cannot be stored through a pointer to f32"),
        "index of type float": (lambda: x[y[0]], TypeError, "expected i64, got f64"),
        "arguments": (lambda: k.call(other.function, n), TypeError, "other takes 2 arguments .a, b., not 1"),
        "argument type": (lambda: k.call(other.function, n, y[0]), TypeError, "expected f32, got f64"),
        "condition": (lambda: k.when(n).__enter__(), TypeError, "a condition is an i1, .* not a value of type i64"),
        "Python's condition": (lambda: k.when(1 == 2).__enter__(), TypeError, "a comparison .* == 0, not False"),
        "otherwise": (otherwise, SyntaxError, "follows a k.when"),
        "result": (lambda: k.ret(n), TypeError, "wrong returns nothing"),
        "no result": (lambda: other.ret(), TypeError, "other returns i64"),
        "sum": (lambda: k.sum(k.load(x, vec(f32, 3))), TypeError, "sum takes vectors .* not v3f32"),
    }


@pytest.mark.parametrize("what", value_errors())
def test_mistakes_are_answered_in_sentences(what):
    mistake, error, sentence = value_errors()[what]
    with pytest.raises(error, match=sentence):
        mistake()


def test_truth_can_be_a_constant():
    k = Kernel("constants", x=ptr(i32))
    (x,) = k.args
    x[0] = k.select(k.constant(i1, 1), x[1], x[2])
    both(k.function, np.array([0, 1, 2], np.int32))


@pytest.mark.parametrize("x", [0.1, -0.0, 1e-45, 3.4e38, 1 / 3])
@pytest.mark.parametrize("t", [f32, f64, vec(f32, 4)], ids=str)
def test_constants_are_rounded_alike(t, x):
    k = Kernel("constant", x=ptr(t.scalar))
    k.store(k.args[0], k.constant(t, x))
    both(k.function, np.ones(t.length, t.scalar.numpy))
