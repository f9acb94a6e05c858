"""Matrix instructions of NVIDIA's warps: layouts as the PTX ISA states them, products, and that chips assemble them."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import simulator, targets
from tilewright.atoms.nvidia import LANES, every, largest, mma
from tilewright.compiler import gate, llvm, ptxas
from tilewright.formats import get
from tilewright.ir import Kernel, f32, f64, i32, ptr

ATOMS = [*every()]
RNG = np.random.default_rng(15)


def one_warp(atom):
    """A kernel whose lanes load their registers of A, B and C, [register, lane] each, and store those of D over C's."""
    types = [x.type.scalar for x in (atom.a, atom.b, atom.c)]
    k = Kernel("one", threads=LANES, a=ptr(types[0]), b=ptr(types[1]), c=ptr(types[2]))
    lane = k.thread[0]
    a, b, c = ([x[lane + LANES*r] for r in range(count)] for x, count in zip(k.args, atom.registers))
    for r, x in enumerate(k.mma(atom, a, b, c)):
        k.args[2][lane + LANES*r] = x
    return k.function


def registers(x, matrix):
    """A matrix of the fragment's format in registers, [register, lane]."""
    numbers = np.empty((LANES, x.elements), matrix.dtype)
    for (_, row, column), (lane, element) in x.where.items():
        numbers[lane, element] = matrix[row, column]
    return np.ascontiguousarray(numbers.view(x.type.scalar.numpy).T)


def whole(x, held, dtype):
    """The other way."""
    numbers = np.ascontiguousarray(held.T).view(dtype)
    found = np.empty((x.rows, x.columns), dtype)
    for (_, row, column), (lane, element) in x.where.items():
        found[row, column] = numbers[lane, element]
    return found


def dtype_of(format):
    return np.dtype(np.float32) if format == "tf32" else get(format).dtype


def matrices(atom, low=-3, high=4):
    dtypes = [dtype_of(x.format) for x in (atom.a, atom.b, atom.c)]
    shapes = (atom.m, atom.k), (atom.k, atom.n), (atom.m, atom.n)
    return [RNG.integers(0 if dtype.kind == "u" else low, high, shape).astype(dtype)
            for dtype, shape in zip(dtypes, shapes)]


def multiplied(atom, a, b, c):
    held = [registers(x, matrix) for x, matrix in zip((atom.a, atom.b, atom.c), (a, b, c))]
    simulator.run(one_warp(atom), *held)
    return whole(atom.c, held[2], c.dtype)


@pytest.mark.parametrize("atom", ATOMS, ids=lambda atom: atom.name.removeprefix("mma.sync.aligned."))
def test_products_of_whole_numbers_are_exact(atom):
    a, b, c = matrices(atom)
    wide = [x.astype(np.float64) for x in (a, b, c)]
    np.testing.assert_array_equal(multiplied(atom, a, b, c).astype(np.float64), wide[0] @ wide[1] + wide[2])


# Row and column of element i in lane 4*g + t, as the PTX ISA's section on each shape has them.
PTX_A = {
    ("f16", 16, 8): lambda g, t, i: (g if i < 2 else g + 8, t*2 + (i & 1)),
    ("bf16", 16, 16): lambda g, t, i: (g if 0 <= i < 2 or 4 <= i < 6 else g + 8, t*2 + (i & 1) + 8*(i >= 4)),
    ("tf32", 16, 4): lambda g, t, i: (g + 8*i, t),
    ("tf32", 16, 8): lambda g, t, i: (g if i in (0, 2) else g + 8, t if i < 2 else t + 4),
    ("f64", 16, 16): lambda g, t, i: (g if i % 2 == 0 else g + 8, i // 2 * 4 + t),
    ("i8", 8, 16): lambda g, t, i: (g, t*4 + i),
    ("u8", 16, 16): lambda g, t, i: (g if i < 4 else g + 8, t*4 + (i & 3)),
    ("e4m3fn", 16, 32): lambda g, t, i: (g if 0 <= i < 4 or 8 <= i < 12 else g + 8, t*4 + (i & 3) + 16*(i >= 8)),
}
PTX_B = {
    ("f16", 16, 8): lambda g, t, i: (t*2 + i, g),
    ("bf16", 16, 16): lambda g, t, i: (t*2 + (i & 1) + 8*(i >= 2), g),
    ("tf32", 16, 4): lambda g, t, i: (t, g),
    ("tf32", 16, 8): lambda g, t, i: (t + 4*i, g),
    ("f64", 16, 16): lambda g, t, i: (t + 4*i, g),
    ("i8", 8, 16): lambda g, t, i: (t*4 + i, g),
    ("u8", 16, 16): lambda g, t, i: (t*4 + i, g),
    ("e4m3fn", 16, 32): lambda g, t, i: (t*4 + (i & 3) + 16*(i >= 4), g),
}


@pytest.mark.parametrize("key", PTX_A)
def test_layouts_are_those_of_the_manual(key):
    format, m, k = key
    sums = {"f64": "f64", "i8": "i32", "u8": "i32"}.get(format, "f32")
    atom = mma(format, format, sums, m, 8, k)
    for lane in range(LANES):
        g, t = divmod(lane, 4)
        assert [atom.a(lane, i) for i in range(atom.a.elements)] == [PTX_A[key](g, t, i) for i in range(m*k // LANES)]
        assert [atom.b(lane, i) for i in range(atom.b.elements)] == [PTX_B[key](g, t, i) for i in range(k*8 // LANES)]
        assert [atom.c(lane, i) for i in range(atom.c.elements)] == [
            (g + 8*(i // 2), t*2 + (i & 1)) for i in range(m*8 // LANES)]


def test_what_does_not_count():
    """Thirteen bits of a tf32 are dropped; sums in i32 keep their lowest bits, or saturate; e4m3 has a NaN."""
    atom = mma("tf32", "tf32", "f32", 16, 8, 8)
    a, b, c = matrices(atom)
    beyond = (a.view(np.int32) | 0x1FFF).view(np.float32)           # would add up to more than nothing
    np.testing.assert_array_equal(multiplied(atom, beyond, b, c), a @ b + c)
    for saturate in (False, True):
        atom = mma("i8", "i8", "i32", 16, 8, 32, saturate)
        a, b, c = matrices(atom)
        c[:] = np.where(RNG.random(c.shape) < 0.5, 2**31 - 1, -2**31)
        exact = a.astype(np.int64) @ b.astype(np.int64) + c
        expected = np.clip(exact, -2**31, 2**31 - 1) if saturate else exact.astype(np.int32)
        np.testing.assert_array_equal(multiplied(atom, a, b, c), expected)
        assert (".satfinite" in atom.name) == saturate
    atom = mma("e4m3fn", "e5m2", "f16", 16, 8, 32)
    a, b, c = matrices(atom)
    a[3] = np.nan
    d = multiplied(atom, a, b, c)
    assert np.isnan(d[3]).all()
    assert np.isfinite(np.delete(d, 3, 0)).all()


def test_sums_in_f16_are_rounded():
    atom = mma("f16", "f16", "f16", 16, 8, 16)
    a, b = np.full((16, 16), 1/3, np.float16), np.full((16, 8), 3000, np.float16)
    exact = 16 * a[0, 0].astype(float) * 3000
    np.testing.assert_array_equal(multiplied(atom, a, b, np.zeros((16, 8), np.float16)), np.float16(exact))


@pytest.mark.parametrize("arch", targets.names("gpu"))
def test_a_chip_assembles_those_that_it_has_and_the_gate_refuses_the_others(arch):
    target = targets.target(arch)
    k = Kernel("all", threads=LANES, f=ptr(f32), d=ptr(f64), i=ptr(i32))
    pointers = dict(zip(("f32", "f64", "i32"), k.args))
    there = [atom for atom in ATOMS if atom.needs in target.instructions]
    there += [mma("u8", "i8", "i32", 8, 8, 16, saturate=True)]
    for atom in there:
        at = [pointers[str(x.type.scalar)] + k.thread[0]*64 for x in (atom.a, atom.b, atom.c)]
        a, b, c = ([p[r] for r in range(count)] for p, count in zip(at, atom.registers))
        for r, x in enumerate(k.mma(atom, a, b, c)):
            at[2][r] = x
    text = llvm.assembly(k.function, target)
    assert all(atom.name in text for atom in there)
    for atom in ATOMS:
        if atom not in there:
            assert any(atom.name in why for why in gate.refusals(one_warp(atom), target)), atom.name
    ptxas.assemble(text, arch)


def test_finding_them():
    assert largest(targets.target("sm_75"), "f16", "f16", "f32").k == 8
    assert largest(targets.target("sm_80"), "f16", "f16", "f16") is mma("f16", "f16", "f16", 16, 8, 16)
    assert largest(targets.target("sm_75"), "u8", "i8", "i32").name == (
        "mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32")
    with pytest.raises(ValueError, match=r"sm_75 has no mma\.sync of bf16 by bf16 with sums in f32"):
        largest(targets.target("sm_75"), "bf16", "bf16", "f32")
    with pytest.raises(ValueError, match=r"no mma\.sync 16x8x32 of f16 by f16 with sums in f32; of these formats there "
                                         r"is 16x8x8, 16x8x16"):
        mma("f16", "f16", "f32", 16, 8, 32)
    with pytest.raises(ValueError, match=r"of f16 by bf16 .* there is none"):
        mma("f16", "bf16", "f32", 16, 8, 16)
