"""a*b + c of users' kernels is rounded once: the same bits from the simulator, the CPU, and all kinds of loops."""

from __future__ import annotations

import re
from contextlib import nullcontext
from fractions import Fraction

import numpy as np
import pytest

from tilewright import simulator, targets
from tilewright.blocks import Program
from tilewright.compiler.llvm import assembly
from tilewright.ir import Kernel, f16, f32, f64, i32, i64, ptr, vec
from tilewright.ir.fma import fusing
from tilewright.kernels.elementwise import each, each_row, emit_axpy, fold, once
from tilewright.runtime.run import run

N = 16


def rounded(x, dtype):
    """A fraction to nearest, ties to even."""
    near = dtype(float(x))
    around = [near, np.nextafter(near, dtype(-np.inf)), np.nextafter(near, dtype(np.inf))]
    return min(around, key=lambda y: (abs(Fraction(float(y)) - x), y.view(f"u{y.nbytes}") & 1))


def later(k, a, b, c):
    """The product is used after the sum, too."""
    product = a * b
    return (product + c) * product


def apart(k, a, b, c):
    with k.exact():
        return a*b + c


def inner(k, a, b, c):
    with k.exact():
        product = a * b
    return product + c


def outer(k, a, b, c):
    product = a * b
    with k.exact():
        return product + c


def shown(k, a, b, c):
    """Looking at a number leaves it as it is."""
    product = a * b
    k.print("product", product, most=1)
    return product + c


# What is written, what that is in exact numbers where R rounds, and how many operations it takes
CASES = {
    "a*b + c": (lambda k, a, b, c: a*b + c, lambda R, a, b, c: R(a*b + c), 1),
    "c + a*b": (lambda k, a, b, c: c + a*b, lambda R, a, b, c: R(a*b + c), 1),
    "a*b - c": (lambda k, a, b, c: a*b - c, lambda R, a, b, c: R(a*b - c), 1),
    "c - a*b": (lambda k, a, b, c: c - a*b, lambda R, a, b, c: R(c - a*b), 1),
    "-(a*b) + c": (lambda k, a, b, c: -(a*b) + c, lambda R, a, b, c: R(c - a*b), 1),
    "-(a*b) - c": (lambda k, a, b, c: -(a*b) - c, lambda R, a, b, c: R(-a*b - c), 1),
    "c - -(a*b)": (lambda k, a, b, c: c - -(a*b), lambda R, a, b, c: R(a*b + c), 1),
    "a*b + b*c": (lambda k, a, b, c: a*b + b*c, lambda R, a, b, c: R(a*b + R(b*c)), 2),
    "a*b - b*c": (lambda k, a, b, c: a*b - b*c, lambda R, a, b, c: R(a*b - R(b*c)), 2),
    "a*a + a*a": (lambda k, a, b, c: a*a + a*a, lambda R, a, b, c: R(a*a + R(a*a)), 2),
    "a*b*c + a": (lambda k, a, b, c: a*b*c + a, lambda R, a, b, c: R(R(a*b)*c + a), 2),
    "a + b*c + c": (lambda k, a, b, c: a + b*c + c, lambda R, a, b, c: R(R(b*c + a) + c), 2),
    "a*0.3 + b": (lambda k, a, b, c: a*0.3 + b, lambda R, a, b, c: R(a*R(Fraction(0.3)) + b), 1),
    "2.5 - a*b": (lambda k, a, b, c: 2.5 - a*b, lambda R, a, b, c: R(Fraction(2.5) - a*b), 1),
    "used twice": (later, lambda R, a, b, c: R(R(R(a*b) + c) * R(a*b)), 3),
    "apart": (apart, lambda R, a, b, c: R(R(a*b) + c), 2),
    "product apart": (inner, lambda R, a, b, c: R(R(a*b) + c), 2),
    "sum apart": (outer, lambda R, a, b, c: R(R(a*b) + c), 2),
    "printed": (shown, lambda R, a, b, c: R(a*b + c), 2),
}


def emit(f, kind, T, threads=None):
    """out = f(a, b, c), of N elements."""
    k = Kernel("fusing", threads=threads, n=i64, a=ptr(T), b=ptr(T), c=ptr(T), out=ptr(T))
    n, *given, out = k.args
    if kind == "each":
        with each(k, n) as i:
            out[i] = f(k, *(x[i] for x in given))
    elif kind == "loop":
        with k.loop(n) as i:
            out[i] = f(k, *(x[i] for x in given))
    else:
        with k.loop(n, step=4) as i:
            k.store(out + i, f(k, *(k.load(x + i, vec(T, 4), T.bytes) for x in given)), T.bytes)
    return k.function


def numbers(dtype):
    rng = np.random.default_rng(5)
    return [*rng.standard_normal((3, N)).astype(dtype)]


def ours(function, given, **options):
    out = np.full_like(given[0], np.nan)
    report = simulator.run(function, N, *given, out, **options)
    return out, report


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("T", [f16, f32, f64], ids=str)
def test_rounded_once(name, T, capsys):
    f, exact, operations = CASES[name]
    dtype = T.numpy.type
    given = numbers(dtype)

    def R(x): return Fraction(float(rounded(x, dtype)))
    expected = np.array([float(exact(R, *(Fraction(float(x)) for x in xs))) for xs in zip(*given)], dtype)
    for kind in "loop", "each", "vector":
        function = emit(f, kind, T)
        found, report = ours(function, given)
        np.testing.assert_array_equal(found, expected)
        counts = report.instructions
        if kind == "loop":
            assert (counts["fma"] + counts["float"]) == operations * N
        if T is not f16:
            out = np.full_like(found, np.nan)
            run(function, N, *given, out)
            np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(ours(emit(f, "each", T, 8), given, grid=(1,))[0], expected)


@pytest.mark.parametrize("name", ["a*b + c", "a*b - c", "c - a*b", "-(a*b) - c", "2.5 - a*b"])
def test_one_instruction_on_every_target(name):
    """Signs cost none, of which PTX has instructions that its assembler makes part of others."""
    function = CASES[name][0]
    for target, one, none in (("x86-avx2", "vfn?m(add|sub)", "vmul|vadd|vsub|vxor"),
                              ("neon", "fn?m(add|sub|la|ls)", "fneg|fmul|fadd|fsub"),
                              ("sm_80", "fma.rn", "mul.rn.f|add.rn.f|sub.rn.f"),
                              ("gfx942", "v_(pk_)?fma", "v_mul_f|v_add_f|v_sub_f|v_xor")):
        threads = 64 if target.startswith(("sm", "gfx")) else None
        k = Kernel("fusing", threads=threads, warp=64 if target == "gfx942" else 32, a=f32, b=f32, c=f32, out=ptr(f32))
        *given, out = k.args
        out[0] = function(k, *given)
        text = assembly(k.function, targets.target(target))
        assert re.search(one, text), text
        assert not re.search(none, text), text


def test_not_across_a_boundary():
    """A product that is there before a loop or a branch stays a number."""
    def emit():
        k = Kernel("boundaries", a=f32, b=f32, n=i64, out=ptr(f32))
        a, b, n, out = k.args
        product, other, last = a*b, a*b, a*b
        with k.loop(n) as i:
            out[i] = product + out[i]
        with k.when(n == 3):
            out[0] = other + out[0]
        held = k.variable(f32, a * b)                       # a number in a register
        out[1] = held.get() + out[1]
        at = k.variable(i64, 0)
        with k.while_(lambda: out[at.get()] < last):
            at.set(at.get() + 1)
        return k.function
    assert not fusing(emit()).sums
    a, b, out = np.float32(1.1), np.float32(1.3), np.arange(3, dtype=np.float32)
    expected = a*b + out
    expected[0] = a*b + expected[0]
    expected[1] = a*b + expected[1]
    machine = out.copy()
    simulator.run(emit(), a, b, 3, out)
    run(emit(), a, b, 3, machine)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(machine, expected)


def test_within_loops_and_branches():
    def emit():
        k = Kernel("inside", n=i64, x=ptr(f32), y=ptr(f32), out=ptr(f32))
        n, x, y, out = k.args
        acc = k.variable(f32, 0.0)
        with k.loop(n) as i:
            with k.when(x[i] < 0.0):
                acc.set(acc.get() - x[i] * y[i])
            with k.otherwise():
                acc.set(x[i] * y[i] + acc.get())
        out[0] = acc.get()
        return k.function
    x, y, _ = numbers(np.float32)
    total = np.float32(0)
    for u, v in zip(x, y):
        exact = Fraction(float(total)) + abs(Fraction(float(u))) * Fraction(float(v))
        total = rounded(exact, np.float32)
    for how in simulator.run, run:
        out = np.zeros(1, np.float32)
        how(emit(), N, x, y, out)
        assert out[0] == total


def test_sums_of_products_in_rows():
    """The step of a fold takes the product."""
    def emit(threads=None):
        k = Kernel("dots", threads=threads, rows=i64, cols=i64, x=ptr(f32), y=ptr(f32), out=ptr(f32))
        rows, cols, x, y, out = k.args
        x, y = x.view(cols, 1), y.view(cols, 1)
        with each_row(k, rows) as row:
            total = fold(k, cols, lambda a, b: a + b, 0.0, lambda j: x[row, j] * y[row, j])
            with once(k):
                out[row] = total
        return k.function
    x, y = np.random.default_rng(1).standard_normal((2, 3, 100)).astype(np.float32)
    out, machine = np.zeros((2, 3), np.float32)
    report = simulator.run(emit(), 3, 100, x, y, out)
    run(emit(), 3, 100, x, y, machine)
    for found in out, machine:                              # in different orders
        np.testing.assert_allclose(found, (x.astype(float) * y).sum(1), rtol=1e-5)
    assert report.instructions["fma"]
    assert len(fusing(emit(64)).sums) == 1


def test_of_two_numbers_that_are_combined():
    """What a fold combines with is recorded several times, of vectors, too: products of complex numbers."""
    def product(a, b): return a[0]*b[0] - a[1]*b[1], a[0]*b[1] + a[1]*b[0]

    def emit():
        k = Kernel("products", n=i64, x=ptr(f32), y=ptr(f32), out=ptr(f32))
        n, x, y, out = k.args
        out[0], out[1] = fold(k, n, product, (1.0, 0.0), lambda j: (x[j], y[j]))
        return k.function
    angles = np.random.default_rng(2).uniform(0, 6, 100)
    x, y = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    exact = np.prod(x.astype(float) + 1j*y)
    for how in simulator.run, run:
        out = np.zeros(2, np.float32)
        counted = how(emit(), 100, x, y, out)
        np.testing.assert_allclose(out, [exact.real, exact.imag], rtol=0, atol=1e-5)
        if counted:
            assert counted.instructions["fma"] == 40


def test_functions_that_are_called():
    def emit():
        inner = Kernel("inner", a=f32, b=f32, c=f32, result=f32)
        a, b, c = inner.args
        inner.ret(a*b + c)
        k = Kernel("caller", a=f32, b=f32, c=f32, out=ptr(f32))
        *given, out = k.args
        out[0] = k.call(inner.function, *given)
        return k.function
    a, b, c = (np.float32(x) for x in (1.1, 1.3, -1.43))
    expected = rounded(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)), np.float32)
    for how in simulator.run, run:
        out = np.zeros(1, np.float32)
        how(emit(), a, b, c, out)
        assert out[0] == expected != a*b + c


def test_what_is_recorded_later_counts():
    """A function that has been simulated may go on; its product then has another use."""
    k = Kernel("growing", a=f32, b=f32, c=f32, out=ptr(f32))
    a, b, c, out = k.args
    product = a * b
    out[0] = product + c
    given = [np.float32(x) for x in (1.1, 1.3, -1.43)]
    found = np.zeros(2, np.float32)
    simulator.run(k.function, *given, found)
    once = found[0]
    out[1] = product
    simulator.run(k.function, *given, found)
    assert (found[0], found[1]) == (given[0]*given[1] + given[2], given[0]*given[1])
    assert once != found[0]


def test_the_librarys_own_code_is_as_it_is_written():
    x, y = np.ones((2, 100), np.float32)
    assert not emit_axpy().fuses
    report = simulator.run(emit_axpy(32), 100, 2.0, x, y, grid=(1,))
    assert not report.instructions["fma"]

    def emit(apart):
        k = Kernel("functions", x=ptr(f32), y=ptr(f32))
        x, y = k.args
        with k.exact() if apart else nullcontext():
            for e, f in enumerate((k.exp, k.log, k.tanh, k.erf, k.gelu, k.gelu_tanh, k.sigmoid, k.sqrt)):
                y[e] = f(x[0] * x[1])
        return k.function
    x, found, other = np.float32([0.7, 0.9]), np.zeros(8, np.float32), np.zeros(8, np.float32)
    simulator.run(emit(False), x, found)
    simulator.run(emit(True), x, other)
    np.testing.assert_array_equal(found, other)


def test_integers_are_as_they_were():
    k = Kernel("integers", a=i64, b=i64, out=ptr(i64))
    a, b, out = k.args
    out[0] = a*b + a
    assert not k.function.fuses


# ---- block programs

TARGETS = ["x86-avx2", "x86-avx512", "sm_75", "sm_90a", "gfx942"]


def program(name, f, BLOCK, T=f32):
    k = Program("fusing", name, n=i32, a=ptr(T), b=ptr(T), c=ptr(T), out=ptr(f32))
    n, *given, out = k.args
    at = k.program_id(0)*BLOCK + k.arange(0, BLOCK)
    k.store(out + at, f(k, *(k.load(x + at, at < n) for x in given)), at < n)
    return k.function


def twice(k, a, b, c):
    """Each sum takes the product."""
    product = a * b
    return (product + c) * (product - c)


def carried(k, a, b, c):
    """A name whose block the loop replaces is no product any more."""
    x = a * b
    for _ in k.range(0, 2):
        x = k.maximum(x, c) * c
    return x + a


def in_the_loop(k, a, b, c):
    total, product = c, a * b
    for _ in k.range(0, 2):
        total = total*a + product
    return total


def written(R, a, b, c):
    for _ in range(2):
        c = R(c*a + R(a*b))
    return c


def replaced(R, a, b, c):
    x = R(a*b)
    for _ in range(2):
        x = R(max(x, c) * c)
    return R(x + a)


BLOCKS = {name: CASES[name][:2] for name in CASES if name not in ("used twice", "product apart", "printed")} | {
    "used twice": (twice, lambda R, a, b, c: R(R(a*b + c) * R(a*b - c))), "product apart": CASES["product apart"][:2],
    "replaced": (carried, replaced), "in a loop": (in_the_loop, written)}


@pytest.mark.sampled
@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("block", [16, 1024])
def test_blocks(name, block):
    """The same bits on all targets, however many numbers a block has: on a CPU many are on the stack."""
    f, exact = BLOCKS[name]
    given = numbers(np.float32)

    def R(x): return Fraction(float(rounded(x, np.float32)))
    expected = np.array([float(exact(R, *(Fraction(float(x)) for x in xs))) for xs in zip(*given)], np.float32)
    for target in TARGETS:
        found, _ = ours(program(target, f, block), given, grid=(1,))
        np.testing.assert_array_equal(found, expected, err_msg=target)
    out = np.full(N, np.nan, np.float32)
    run(program(None, f, block), N, *given, out, grid=(1,))
    np.testing.assert_array_equal(out, expected)


def test_blocks_that_nothing_reads_take_no_room():
    """On a CPU a block on the stack is a loop that stores it; a product that sums have taken is none."""
    fused, plain = (program("x86-avx2", lambda k, a, b, c, f=f: f(k, a, b, c), 1024) for f in (
        lambda k, a, b, c: -(a*b) + c, lambda k, a, b, c: k.maximum(a, c)))
    assert len(fused.arrays) == len(plain.arrays)
    given = [np.ones(N, np.float32)] * 3
    counts, others = (ours(function, given, grid=(1,))[1].instructions for function in (fused, plain))
    assert counts["fma"] == 1024 // 8
    assert not counts["float"] - others["float"] + 2 * 1024 // 8


def test_narrow_blocks_are_multiplied_in_f32():
    given = [x.astype(np.float16) for x in numbers(np.float32)]
    expected = [float(rounded(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)), np.float32))
                for a, b, c in zip(*given)]
    out = np.full(N, np.nan, np.float32)
    simulator.run(program("sm_80", lambda k, a, b, c: a*b + c, 16, f16), N, *given, out, grid=(1,))
    np.testing.assert_array_equal(out, np.float32(expected))


def test_a_wider_sum_takes_the_product_as_it_is():
    """Rounded to f32, and added in f64."""
    k = Program("wider", "sm_80", a=ptr(f32), c=ptr(f64), out=ptr(f64))
    a, c, out = k.args
    at = k.arange(0, N)
    k.store(out + at, k.load(a + at) * k.load(a + at) + k.load(c + at))
    a, c, _ = numbers(np.float32)
    out = np.zeros(N)
    simulator.run(k.function, a, c.astype(np.float64), out, grid=(1,))
    np.testing.assert_array_equal(out, (a*a).astype(np.float64) + c)
