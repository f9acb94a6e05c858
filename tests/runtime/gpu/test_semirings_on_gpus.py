"""What is particular to products with their own arithmetic on GPUs. Values are in tests/products."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ptxas
from tilewright.expressions.composed import finished
from tilewright.expressions.function import Epilogue
from tilewright.expressions.tracing import trace
from tilewright.formats import FORMATS
from tilewright.ir import f32, i32
from tilewright.kernels.expression import neutral
from tilewright.plans import semirings

ARITHMETIC = {
    "squares": (lambda x, y: (x - y)**2, "sum"),
    "paths": (lambda x, y: x + y + 40, "min"),
    "uneven": (lambda x, y: x - 9*y, "max"),            # and not the same of exchanged factors
    "some": (lambda x, y: (x > 4) & (y > 4), "any"),
    "never 0": (lambda x, y: (x - y)**2 + 1, "sum"),    # no padding is neutral
    "long": (lambda x, y: tw.where(x < y, (x - y)*(x + 3)*(y - 2)*(x*y - 5) + x*x, y), "sum"),      # steps in a loop
}


def numbers(dtype, *shape, seed=0):
    return np.random.default_rng(seed).integers(-5, 6, shape).astype(dtype)


def made(name, dtype):
    return tw.semiring(*ARITHMETIC[name], "int" if np.dtype(dtype).kind in "iu" else "float")


SMALL = "simt 64x64x16 warp=32x32 thread=8x4 stages=3"


def test_factors_are_refused():
    kernel = tw.compile(tw.Gemm(8, 8, 8, semiring=made("squares", "f4")), "sm_80")
    with pytest.raises(ValueError, match="alpha must be 1 and beta 0 in a semiring, not 2"):
        kernel.simulate(*(np.zeros((8, 8), np.float32) for _ in "ab"), alpha=2.0)


def test_neutral_factors():
    """By which steps beyond k are filled up; where there are none these are passed over."""
    for name, floats, ints in (("squares", (0, 0), (0, 0)), ("paths", (0, np.inf), None), ("some", (0, 0), (0, 0)),
                               ("never 0", None, None)):
        assert neutral(made(name, "f4").text, f32) == floats
        assert neutral(made(name, "i4").text, i32) == ints
    largest = tw.semiring(lambda x, y: abs(x - y), "max").text
    assert np.isnan(neutral(largest, f32)[1])           # which max leaves out
    assert neutral(tw.semiring(lambda x, y: tw.exp(-(x - y)**2)).text, f32) == (0, np.inf)
    last = tw.Reduction((0.0,), lambda s, t, p: (t,), lambda x, y: y)
    assert neutral(tw.semiring(lambda x, y: x*y, last).text, f32) is None


def test_plans():
    """Long terms take their time in the model, and parts of k are worth it earlier."""
    target = tw.target("sm_90a")
    texts = [tw.semiring(f, reduce).text for f, reduce in (
        (lambda x, y: (x - y)**2, "sum"), (lambda x, y: x + y, "min"), (lambda x, y: tw.exp(-(x - y)**2), "sum"))]
    clocks = [semirings.clocks(text, "f32", target) * target.fma_f32 for text in texts]
    assert clocks[:2] == [2, 2]
    assert clocks[2] > 10
    seconds = [tw.explain(tw.Gemm(2048, 2048, 256, semiring=text), target).cost.seconds for text in ("", *texts)]
    assert seconds[0] < 0.7*seconds[1] <= 0.7*seconds[2] < 0.2*seconds[3]
    with pytest.raises(ValueError, match="only simt plans take a semiring"):
        tw.compile(tw.Gemm(128, 128, 64, semiring=texts[0]), target, "gemv 1x128x4 stages=2 copy=registers")
    with pytest.raises(ValueError, match=r"copied must be none for products .* or semirings"):
        tw.compile(tw.Gemm(128, 128, 64, semiring=texts[0]), target, f"{SMALL} copied=ab")


@pytest.mark.code
@pytest.mark.parametrize(("target", "name", "format"), [
    ("sm_75", "squares", "f32"), ("sm_86", "long", "f32"), ("sm_90a", "paths", "f32"), ("sm_90a", "some", "i32")])
def test_no_register_is_spilled(target, name, format):
    problem = tw.Gemm(4096, 4096, 128, format, layout="nt", semiring=made(name, FORMATS[format].dtype))
    assert assembled(problem, target).spills == 0


@pytest.mark.code
def test_long_states_of_parts_of_k_are_not_spilled():
    semiring = tw.semiring(lambda x, y: x + y, "logsumexp")
    taken = Epilogue(finished(semiring.fold, trace(lambda x: x, {"x": "float"}, positional=1)), (), ("-",))
    problem = tw.Gemm(256, 256, 4096, "f32", layout="nt", semiring=semiring, epilogue=taken)
    assert tw.plan(problem, "sm_75").split_k > 1
    assert assembled(problem, "sm_75").spills == 0


def assembled(problem, target):
    """What the kernel of its plan uses."""
    ptxas.find()
    return tw.compile(problem, target).resources


def test_states_need_an_epilogue_of_their_fields():
    semiring = tw.semiring(lambda x, y: x*y, "max_argmax")
    with pytest.raises(ValueError, match="epilogue must take the 2 fields of the reduction's state"):
        tw.Gemm(8, 8, 8, semiring=semiring, epilogue=tw.epilogue(lambda acc: acc, semiring.kind))
    with pytest.raises(ValueError, match="a state of 2 fields needs an epilogue of them"):
        tw.compile(tw.Gemm(8, 8, 8, semiring=semiring), "sm_80")


# ---- contract on fake drivers

def test_contract_by_a_reduction_of_ones_own(on):
    a, b = numbers("f4", 2, 9, 30), numbers("f4", 30, 7, seed=1)
    moments = tw.Reduction((0.0, 0.0), lambda s, t, p: (s[0] + t, s[1] + t*p), lambda x, y: (x[0] + y[0], x[1] + y[1]),
                           lambda s: (s[0] + s[1], s[1]))
    found = tw.contract(lambda x, y: x*y, on.array(a), on.array(b), reduce=moments)
    on.finish()
    terms = a[..., None].astype(float) * b
    indexed = (terms * np.arange(30)[:, None]).sum(-2)
    for x, y in zip(found, (terms.sum(-2) + indexed, indexed), strict=True):
        assert x.host.dtype == np.float32
        np.testing.assert_array_equal(x.host, y)


def test_arrays_in_the_hosts_memory_by_a_plan_for_a_gpu(on):
    f, reduce = ARITHMETIC["paths"]
    a, b = numbers("f4", 2, 33, 18), numbers("i2", 18, 7, seed=1)
    launches = len(on.machine.launches)
    found = tw.contract(f, a, b, reduce=reduce, plan=f"{SMALL} vector=1")
    np.testing.assert_array_equal(found, tw.contract(f, a, b, reduce=reduce))
    assert len(on.machine.launches) > launches


def test_contractions_like_earlier_ones_are_repeated(on, monkeypatch):
    """One launch, without tracing, rules or planning; a function of other values is another one."""
    long_way, whole, shift = [], on.engine.matmul, 1.0
    monkeypatch.setattr(on.engine, "matmul", lambda *args: long_way.append(args) or whole(*args))

    def call(seed=0, n=20, **options):
        """Whether the results came the long way."""
        long_way.clear()
        a, b = numbers("f4", 33, 40, seed=seed), numbers("f4", 40, n, seed=seed + 1)

        def f(x, y):
            return x - 2*y + shift
        found = tw.contract(f, on.array(a), on.array(b), **options)
        on.finish()
        terms = a[:, :, None] - 2*b[None] + shift
        terms = terms > 0 if options["reduce"] == "any" else terms
        np.testing.assert_array_equal(found.host, getattr(terms, options["reduce"])(1))
        return bool(long_way)
    for how in ({"reduce": "max"}, {"reduce": "any"}, {"reduce": "argmax"}, {"reduce": "max", "n": 21}):
        assert call(**how)
        assert not call(**how, seed=5)
    shift = 2.0
    assert call(reduce="max")
    assert not call(reduce="max")
    out = on.array(np.zeros((20, 33), np.float32).T)
    for again in range(2):      # as C^T = B^T A^T, the factors of f exchanged
        assert call(reduce="max", out=out) == (not again)


def test_compiled_kernels_of_a_cpu():
    semiring = made("paths", "f4")
    a, b = numbers("f4", 9, 40), numbers("f4", 40, 33, seed=1)
    kernel = tw.compile(tw.Gemm(9, 33, 40, semiring=semiring))
    np.testing.assert_array_equal(kernel(a, b), semiring.evaluate(a, b))
    np.testing.assert_array_equal(kernel.simulate(a, b).result, semiring.evaluate(a, b))
    with pytest.raises(ValueError, match="no state of several fields in a semiring"):
        tw.compile(tw.Gemm(9, 33, 40, semiring=tw.semiring(lambda x, y: x*y, "argmin")))
