"""/, -, abs, sqrt and the elementary functions of kernels: stated errors, special numbers, the same bits everywhere."""

from __future__ import annotations

import re
from decimal import Decimal, localcontext
from functools import cache

import numpy as np
import pytest

from tests.helpers.readings import same_bits
from tilewright import simulator
from tilewright.compiler import gate, llvm
from tilewright.expressions.operations import OPERATIONS
from tilewright.ir import Kernel, f16, f32, f64, i1, i32, i64, ptr, vec
from tilewright.kernels.elementwise import each
from tilewright.runtime.run import run
from tilewright.targets import target

# ulp, as docs/write-your-own-kernel.md says
WITHIN = {"exp": 1.0, "log": 1.0, "tanh": 1.5, "erf": 1.5, "gelu": 2.0, "gelu_tanh": 3.0, "sigmoid": 3.0}
FUNCTIONS = {
    "exp": lambda k, x, y: k.exp(x), "log": lambda k, x, y: k.log(x), "tanh": lambda k, x, y: k.tanh(x),
    "erf": lambda k, x, y: k.erf(x), "gelu": lambda k, x, y: k.gelu(x), "gelu_tanh": lambda k, x, y: k.gelu_tanh(x),
    "sigmoid": lambda k, x, y: k.sigmoid(x),
    "sqrt": lambda k, x, y: k.sqrt(x), "divide": lambda k, x, y: x / y, "inverse": lambda k, x, y: 1 / x,
    "third": lambda k, x, y: x / 3.0, "negate": lambda k, x, y: -x, "abs": lambda k, x, y: abs(x),
}
CHIPS = ("x86-avx2", "x86-avx512", "neon", "sm_75", "sm_80", "sm_90a", "gfx942", "gfx950")


def emit(T, V=1, threads=None, warp=32, names=tuple(FUNCTIONS)):
    """The results of all functions of x and y, one array of n after the other; in vectors of V, by which n divides."""
    k = Kernel(f"elementary_{T}_{V}", threads=threads, warp=warp, n=i64, x=ptr(T), y=ptr(T), z=ptr(T))
    n, x, y, z = k.args

    def some(i):
        xs, ys = (k.load(p + i, vec(T, V), T.bytes) for p in (x, y))
        for place, name in enumerate(names):
            k.store(z + n * place + i, FUNCTIONS[name](k, xs, ys), T.bytes)

    if threads:
        with each(k, n) as i:
            some(i)
    else:
        with k.loop(n, step=V) as i:
            some(i)
    return k.function


@cache
def numbers(T):
    """All exponents with a few mantissas, both signs, and numbers at which something changes."""
    u, rng = np.dtype(f"u{T.bytes}"), np.random.default_rng(T.bits)
    mantissa = {16: 10, 32: 23, 64: 52}[T.bits]
    exponents = np.arange(1 << T.bits - 1 - mantissa, dtype=u)
    fractions = rng.integers(0, 1 << mantissa, ({16: 32, 32: 8, 64: 2}[T.bits], exponents.size), u)
    positive = (exponents << u.type(mantissa) | fractions).ravel().view(T.numpy)
    info = np.finfo(T.numpy)
    ends = [0.0, 1.0, 2.0, 3.0, 0.55, 0.5, np.inf, np.nan, info.max, info.smallest_normal, info.smallest_subnormal]
    for end in (
        np.log(float(info.max)),
        np.log(2.0 * info.smallest_normal),
        float(info.smallest_subnormal),
        np.log(float(info.smallest_subnormal)) - np.log(2),
        np.log(2) / 2,
        np.sqrt(0.5),
        np.sqrt(2),
    ):
        near = T.numpy.type(abs(end))
        ends += [np.nextafter(near, T.numpy.type(0)), near, np.nextafter(near, T.numpy.type(np.inf))]
    smooth = [rng.uniform(low, high, 600) for low, high in ((0, 1), (0.5, 2), (0, 25), (0, -end if end < 0 else 90))]
    x = np.concatenate([positive, np.array(ends, T.numpy), np.concatenate(smooth).astype(T.numpy)])
    x = np.concatenate([x, -x])
    x = np.concatenate([x, np.ones(-x.size % 8, T.numpy)])
    return x, rng.permutation(x)


@cache
def results(T, names=tuple(FUNCTIONS)):
    """By name. The compiled function for this CPU, in scalars and in vectors, and the simulated kernel for a GPU have
    given the same bits."""
    x, y = numbers(T)
    simulated = np.zeros((len(names), x.size), T.numpy)
    simulator.run(emit(T, threads=256, names=names), x.size, x, y, simulated, grid=(-(-x.size // 256),))
    for V in (1, 8 if T.bits == 16 else 16 // T.bytes):
        compiled = np.zeros_like(simulated)
        run(emit(T, V, names=names), x.size, x, y, compiled)
        for name, ours, theirs in zip(names, compiled, simulated):
            assert same_bits(ours, theirs), (name, V, x[ours.view(f"u{T.bytes}") != theirs.view(f"u{T.bytes}")])
    return dict(zip(names, simulated))


@pytest.mark.parametrize("T", [f32, f64], ids=str)
def test_compiled_and_simulated_results_have_the_same_bits(T):
    assert set(results(T)) == set(FUNCTIONS)


@pytest.mark.parametrize("T", [f32, f64], ids=str)
def test_division_and_square_roots_are_correctly_rounded(T):
    x, y = numbers(T)
    with np.errstate(all="ignore"):
        exact = {"sqrt": np.sqrt(x), "divide": x / y, "inverse": 1 / x, "third": x / T.numpy.type(3), "negate": -x,
                 "abs": np.abs(x)}
    for name, right in exact.items():
        assert same_bits(results(T)[name], right), name


def ulps_f32(name, x, y):
    """Errors against float64, of finite results; of gelu in ulp of x/2 where x is negative."""
    with np.errstate(all="ignore"):
        exact = OPERATIONS[name].numpy(x.astype(np.float64))
        rounded = exact.astype(np.float32)
    assert same_bits(np.where(np.isfinite(rounded), 0, rounded), np.where(np.isfinite(y), 0, y))
    found = np.isfinite(rounded) & ((name != "sigmoid") | (x > -87.3))     # below it is 0
    exact, x = exact[found], x[found].astype(np.float64)
    scale = np.where(x < 0, x/2, exact) if "gelu" in name else exact
    ulp = np.ldexp(1.0, np.maximum(np.frexp(scale)[1] - 1, -126) - 23)
    return np.abs(y[found] - exact) / ulp


def in_decimals(name, x):
    """Of a finite x, or None where the result is not finite: 40 digits."""
    x = Decimal(x)
    if name == "log":
        return x.ln() if x > 0 else None
    if name == "exp":
        return x.exp() if x < Decimal("709.78271289338399") else None
    if name in ("erf", "gelu"):
        return erf(x) if name == "erf" else x/2*(1 + erf(x*Decimal("0.5").sqrt()))
    if name == "sigmoid":
        return 1 / (1 + (-x).exp()) if x > Decimal(-708) else None
    if name == "gelu_tanh":
        slope = (Decimal(8) / Decimal("3.14159265358979323846264338327950288419716939937510")).sqrt()
        y = max(min(slope*(x + Decimal("0.044715")*x**3), Decimal(500)), Decimal(-500))
        return x / (1 + (-y).exp())
    if abs(x) < Decimal("1e-10"):
        return x - x**3 / 3
    square = (2 * max(min(x, Decimal(50)), Decimal(-50))).exp()
    return (square - 1) / (square + 1)


def erf(x):
    """By its series, whose terms are all positive: 2/sqrt(pi) e^(-x^2) (x + 2/3 x^3 + 4/15 x^5 + ...)."""
    if abs(x) > 9:
        return Decimal(1).copy_sign(x)
    term, total, n = x, x, 0
    while term and abs(term) > abs(total).scaleb(-30):
        n += 1
        term *= 2*x*x / (2*n + 1)
        total += term
    return total * (-x*x).exp() * Decimal("1.1283791670955125738961589031215451716881")


def ulps_f64(name, x, y):
    with localcontext() as context:
        context.prec = 40
        for value, ours in zip(x.tolist(), y.tolist()):
            exact = in_decimals(name, value)
            if exact is None:
                continue
            scale = value/2 if "gelu" in name and value < 0 else float(exact)
            exponent = max(np.frexp(scale)[1] - 1, -1022) if scale else -1022
            yield float(abs(Decimal(ours) - exact) / (Decimal(2) ** int(exponent - 52)))


@pytest.mark.parametrize("name", WITHIN)
def test_errors_are_within_what_the_documentation_states(name):
    x, _ = numbers(f32)
    assert ulps_f32(name, x, results(f32)[name]).max() <= WITHIN[name]
    x, _ = numbers(f64)
    finite = np.flatnonzero(np.isfinite(x))[::3]
    assert max(ulps_f64(name, x[finite], results(f64)[name][finite])) <= WITHIN[name]


@pytest.mark.parametrize("T", [f32, f64], ids=str)
def test_special_numbers(T):
    x, found = numbers(T)[0], results(T)
    info = np.finfo(T.numpy)

    def at(name, value):
        return found[name][np.flatnonzero(np.isnan(x) if value != value else same(x, value))]

    def same(x, value):
        return (x == T.numpy.type(value)) & (np.signbit(x) == np.signbit(value))

    for name, value, right in [
        ("exp", np.inf, np.inf), ("exp", -np.inf, 0.0), ("exp", 0.0, 1.0), ("exp", -0.0, 1.0), ("exp", np.nan, np.nan),
        ("log", np.inf, np.inf), ("log", -np.inf, np.nan), ("log", 0.0, -np.inf), ("log", -0.0, -np.inf),
        ("log", 1.0, 0.0), ("log", -1.0, np.nan), ("log", np.nan, np.nan), ("log", -info.smallest_subnormal, np.nan),
        ("tanh", np.inf, 1.0), ("tanh", -np.inf, -1.0), ("tanh", 0.0, 0.0), ("tanh", -0.0, -0.0),
        ("tanh", np.nan, np.nan), ("tanh", info.smallest_subnormal, info.smallest_subnormal),
        ("erf", np.inf, 1.0), ("erf", -np.inf, -1.0), ("erf", 0.0, 0.0), ("erf", -0.0, -0.0), ("erf", np.nan, np.nan),
        *((name, *pair) for name in ("gelu", "gelu_tanh") for pair in (
            (np.inf, np.inf), (-np.inf, np.nan), (0.0, 0.0), (np.nan, np.nan), (info.max, info.max), (-info.max, 0.0))),
        ("sqrt", -0.0, -0.0), ("sqrt", -1.0, np.nan), ("sqrt", np.inf, np.inf), ("negate", 0.0, -0.0),
        ("negate", np.inf, -np.inf), ("abs", -0.0, 0.0), ("inverse", -0.0, -np.inf), ("inverse", np.inf, 0.0),
    ]:
        y = at(name, value)
        assert y.size, (name, value)
        assert same_bits(y, np.full_like(y, right)), (name, value, y)
    assert (found["exp"] == 0).sum() > 10
    assert ((found["exp"] > 0) & (found["exp"] < info.smallest_normal)).any()


def test_formats_of_16_bits_are_computed_in_f32():
    names = ("exp", "log", "tanh", "sqrt", "divide", "inverse")
    x, y = numbers(f16)
    with np.errstate(all="ignore"):
        right = {"exp": np.exp(wide := x.astype(np.float64)), "log": np.log(wide), "tanh": np.tanh(wide),
                 "sqrt": np.sqrt(wide), "divide": wide / y, "inverse": 1 / wide}
        for name, found in results(f16, names).items():
            assert same_bits(found, right[name].astype(np.float16)), name


def test_integers_and_what_is_no_number():
    k = Kernel("integers", threads=32, x=ptr(i32), y=ptr(i32))
    x, y = k.args
    i = k.thread[0]
    y[i], y[i + 32] = -x[i], abs(x[i])
    data = np.arange(-16, 16, dtype=np.int32)
    z = np.zeros(64, np.int32)
    simulator.run(k.function, data, z)
    assert z.tolist() == [*-data, *np.abs(data)]

    k = Kernel("no_numbers", a=i32, b=f32, p=ptr(f32), c=i1)
    a, b, p, c = k.args
    for wrong, message in [
        (lambda: a / 2, r"/ divides floats, not i32: // is the quotient of indices, k\.cast\(x, f32\) makes a float"),
        (lambda: 1.0 / a, "/ divides floats, not i32"), (lambda: p / 2.0, r"/ divides floats, not global f32\*"),
        (lambda: b / a, "expected f32, got i32"), (lambda: k.exp(a), "exp takes floats, not i32: k.cast"),
        (lambda: k.sqrt(2.0), "sqrt takes a number of the kernel, not 2.0"), (lambda: -p, "- takes a number"),
        (lambda: abs(c), "abs takes a number of the kernel, not i1"), (lambda: -c, "- takes a number"),
    ]:
        with pytest.raises(TypeError, match=message):
            wrong()


@cache
def assembly(chip):
    t = target(chip)
    gpu = not hasattr(t, "vector_bytes")
    functions = [emit(T, threads=64 if gpu else None, warp=getattr(t, "warp", 32)) for T in (f32, f64)]
    return llvm.assembly(functions, t)


@pytest.mark.parametrize("chip", CHIPS)
def test_every_target_rounds_as_ieee_754_says(chip):
    text = assembly(chip)
    if chip.startswith("sm_"):
        found = set(re.findall(r"[\w.]+", text))
        assert {f"{what}.rn.{format}" for what in ("div", "sqrt", "fma") for format in ("f32", "f64")} <= found
        rest = text.replace("rcp.approx.ftz.f32", "")       # with a step of Newton's method: ops.core.RECIPROCAL
        assert not re.search(r"\.approx|\.ftz|\.full|call", rest)
        assert not re.search(r"\b(mul|add|sub)\.f(32|64)", text)  # without .rn, ptxas may contract them
    elif chip.startswith("gfx"):
        assert text.count(".amdhsa_float_denorm_mode_32 3") == text.count(".amdhsa_float_denorm_mode_16_64 3") == 2
        assert text.count(".amdhsa_float_round_mode_32 0") == 2
        for format in ("f32", "f64"):  # the correctly rounded sequence of a division
            assert f"v_div_fmas_{format}" in text
            assert f"v_div_fixup_{format}" in text
        assert not re.search(r"s_swappc|v_mad_f32|v_mac_f32|v_exp_|v_log_", text)
    else:
        divide, root = ("fdiv", "fsqrt") if chip == "neon" else ("vdivs", "vsqrts")
        assert divide in text
        assert root in text
        assert not re.search(r"\t(call\w*|blr?)\t|rcp|rsqrt|recpe|rsqrte", text)


def test_gates_say_what_a_target_lacks():
    k = Kernel("halves", x=ptr(f16), y=ptr(f16))
    x, y = k.args
    y[0] = -x[0]
    found = "\n".join(gate.refusals(k.function, target("x86-avx2")))
    assert "x86-avx2 has no f16 arithmetic, so no neg: cast to f32 first" in found
