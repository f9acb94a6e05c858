"""Few rows of bytes by rows that are read once: values, the instructions, and when a plan is one."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.gemms import right
from tilewright.compiler import llvm
from tilewright.kernels.cpu.byte_dots import emit_byte_dots
from tilewright.plans.choose import ranked
from tilewright.plans.lowering import shape_of

RNG = np.random.default_rng(8)
DTYPES = {"i8": np.int8, "u8": np.uint8}
VNNI = replace(tw.target("sapphirerapids"), extensions=("avx512vnni",)).extended         # without AMX
NONE = {"a": "i8", "b": "i8", "out": "i32", "layout": "nt"}


def numbers(name, *shape):
    info = np.iinfo(DTYPES[name])
    return RNG.integers(info.min, info.max, shape, DTYPES[name], endpoint=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("a", "b"), [("i8", "i8"), ("u8", "i8"), ("i8", "u8")])
@pytest.mark.parametrize("m", [1, 6, 64])
def test_values(a, b, m):
    """Exact, in both roles, with alpha and beta, and odd sizes; by the plan that this chip has for them."""
    x, w = numbers(a, m, 1030), numbers(b, 1047, 1030)
    exact = x.astype(np.int64) @ w.T.astype(np.int64)
    assert (tw.matmul(x, w, trans_b=True, out_dtype=np.int32) == exact).all()
    assert (tw.matmul(w, x.T, out_dtype=np.int32, threads=2) == exact.T).all()
    c = numbers("i8", m, 1047).astype(np.int32)
    found = tw.matmul(x, w, trans_b=True, out_dtype=np.int32, c=c, alpha=3, beta=-2)
    assert (found == 3*exact - 2*c).all()


@pytest.mark.parametrize(("a", "b"), [("i8", "i8"), ("u8", "i8"), ("i8", "u8")])
def test_simulated(a, b):
    """On any machine; each row is read once, but for columns that do not fit registers."""
    problem = tw.Gemm(6, 301, 150, a=a, b=b, out="i32", layout="nt")
    kernel = tw.compile(problem, VNNI, plan="dots 4x6 swap")
    x, w = numbers(a, 6, 150), numbers(b, 301, 150)
    report = kernel.simulate(x, w.T)
    assert (report.result == x.astype(np.int64) @ w.T.astype(np.int64)).all()
    assert report.of("b", "load").bytes == 2 * w.size


def test_when_rows_are_read_once():
    """For few rows by a large matrix with k contiguous; a plan for others says why it cannot run."""
    shape = shape_of(tw.Gemm(5, 4096, 1024, **NONE), 1, VNNI)
    best = ranked(shape, VNNI)[0]
    assert (best.algorithm, best.nr, best.swap) == ("dots", 5, True)
    assert ranked(shape._replace(m=65), VNNI)[0].algorithm == "packed"
    assert ranked(shape._replace(n=128), VNNI)[0].algorithm == "packed"
    assert "rows of A that are contiguous" in " ".join(best.violations(shape._replace(b="rows"), VNNI))
    assert "for 4 x 64 at a time" in " ".join(replace(best, mr=5).violations(shape, VNNI))
    assert "only packed plans convert" in " ".join(best.violations(shape._replace(out="i8"), VNNI))


def test_instructions():
    """A multiply-add for each pair of vectors, one more for the sums of a row, and nothing spilled."""
    code = llvm.assembly(emit_byte_dots(VNNI, 4, 4, "i8", "i8"), VNNI)
    assert code.count("vpdpbusd") == 2 * (4*4 + 4) + 2 * (4 + 1)        # the loop and its end, of 4 rows and of one
    assert not any("zmm" in line and "(%rsp)" in line for line in code.splitlines())


@pytest.mark.parametrize("isa", ["x86-avx512", "x86-avx2"])
@pytest.mark.parametrize("name", ["i8", "u8", "i16", "u16", "f16", "bf16"])
def test_one_dot_of_narrow_numbers(name, isa):
    """Read where they are, widened in registers, and rounded as they are stored: whole numbers, modulo the format."""
    most = 2 if name in ("f16", "bf16") else np.iinfo(name.replace("i", "int").replace("u", "uint")).max
    for k in 1, 15, 33, 131:
        problem = tw.Gemm(1, 1, k, a=name, b=name, out=name, layout="nt")
        kernel = tw.compile(problem, isa)
        assert kernel.plan.algorithm == "dots"
        dtype = tw.formats.FORMATS[name].dtype
        a, b = (RNG.integers(-most - 1 if name[0] == "i" else 0, most + 1, (1, k)).astype(dtype) for _ in range(2))
        exact = int(a[0].astype(object) @ b[0].astype(object))
        wanted = np.array([[exact]], object if name[0] in "iu" else np.float64)
        got = kernel.simulate(a, b.T).result
        assert got[0, 0] == (wanted.astype(np.int64) if name[0] in "iu" else wanted).astype(dtype)[0, 0], k


@pytest.mark.parametrize("isa", ["x86-avx512", "x86-avx2"])
@pytest.mark.parametrize(("name", "m", "n", "k", "layout"), [
    ("bf16", 9, 1, 33, "nn"), ("bf16", 3, 5, 17, "nn"), ("f16", 2, 2, 95, "tn"), ("f16", 2, 3, 40, "nt"),
    ("i16", 8, 1, 31, "nn"), ("u8", 1, 8, 9, "nn"), ("i8", 2, 2, 70, "tn"), ("e4m3fn", 1, 2, 33, "nn"),
    ("e5m2", 1, 1, 33, "nn")])
def test_few_columns_and_few_rows_of_narrow_numbers(name, m, n, k, layout, isa):
    """Read where they are by rows of A, or by rows of B, and widened in registers: nothing is packed."""
    whole = name[0] in "iu"
    kernel = tw.compile(tw.Gemm(m, n, k, a=name, b=name, out="i32" if whole else "f32", layout=layout), isa)
    assert kernel.plan.algorithm == "dots"
    right(kernel)


@pytest.mark.parametrize("result", ["bf16", "f16"])
def test_one_dot_that_is_only_rounded(result):
    """Operands have the format of the sums; the result alone is rounded."""
    a, b = np.arange(40, dtype=np.float32), np.ones((40, 1), np.float32)
    assert float(tw.matmul(a[None], b, out_dtype=result)[0, 0]) == 780
    assert (tw.matmul(np.stack([a, 2*a]), b, out_dtype=result).astype(np.float64) == [[780], [1560]]).all()
