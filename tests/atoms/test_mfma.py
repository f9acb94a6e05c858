"""The catalogue of matrix instructions of AMD's chips: layouts, cycles, meanings, and that LLVM selects each."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.helpers.processes import printed
from tilewright import formats, targets
from tilewright.atoms.amd import CATALOGUE, F8F6F4, find, mfma, mfma_instructions, scaled
from tilewright.compiler import amd
from tilewright.compiler.llvm import text
from tilewright.formats import get, pack
from tilewright.ir import Kernel, f32, i32, ptr

ARCHS = targets.names("amd")
LANES = np.arange(64)


def title(atom):
    arch = "" if len(atom.cycles) > 1 else f" {next(iter(atom.cycles))}"
    return f"{atom.name} {atom.a_format} {atom.b_format}{arch}"


# One instruction for every layout there is: of formats of equally many bits it is the same.
LAYOUTS = [*{(x.m, x.k, x.blocks, x.a.bits, x.b.bits, x.c.bits): x for x in CATALOGUE}.values()]


# ---- what there is


def test_each_architecture_has_the_instructions_of_its_manual():
    count = {arch: len({atom.name for atom in mfma_instructions(arch)}) for arch in ARCHS}
    assert count == {"gfx942": 32, "gfx950": 40}        # of the same name are the pairs of formats
    assert len(mfma_instructions("gfx950")) == 36 + 4 * 25
    assert {x.name for x in mfma_instructions("gfx942")} - {x.name for x in mfma_instructions("gfx950")} == {
        "v_mfma_f32_16x16x8_xf32", "v_mfma_f32_32x32x4_xf32"}
    pairs = {(x.a_format, x.b_format) for x in mfma_instructions("gfx950") if x.scaled and x.k == 128}
    assert pairs == {(a, b) for a in F8F6F4 for b in F8F6F4}


@pytest.mark.parametrize("arch", ARCHS)
def test_a_target_has_what_its_instructions_need(arch):
    assert all(targets.target(arch).has(atom.needs) for atom in mfma_instructions(arch))
    assert not any(targets.target(arch).has(atom.needs) for atom in CATALOGUE if arch not in atom.cycles)


def test_cdna3_has_fnuz_and_cdna4_ocp():
    name = "v_mfma_f32_32x32x16_fp8_bf8"
    assert (find(name, "gfx942").a_format, find(name, "gfx942").b_format) == ("e4m3fnuz", "e5m2fnuz")
    assert (find(name, "gfx950").a_format, find(name, "gfx950").b_format) == ("e4m3fn", "e5m2")
    assert find(name).a_format == "e4m3fnuz"


def test_finding_them():
    atom = find("v_mfma_scale_f32_32x32x64_f8f6f4", a="e2m1", b="e2m3")
    assert scaled("gfx950", 32, 64, "e2m1", "e2m3") is atom
    assert mfma("gfx942", 32, 2, "f32") is find("v_mfma_f32_32x32x2_f32")
    assert mfma("gfx942", 4, 4, "i8", blocks=16).name == "v_mfma_i32_4x4x4_16b_i8"
    with pytest.raises(ValueError, match=r"no dense matrix instruction '32x32x2_f32'; there is v_mfma_f32_32x32x2_f32"):
        find("32x32x2_f32")
    with pytest.raises(ValueError, match=r"no v_mfma_f32_16x16x8_xf32 on gfx950; there is xf32 by xf32 on gfx942"):
        find("v_mfma_f32_16x16x8_xf32", "gfx950")
    with pytest.raises(ValueError, match=r"gfx942 has no matrix instruction 32x32x16 for f16 by f16; of these formats "
                                         r"it has 32x32x4 \(2 blocks\), 16x16x4 \(4 blocks\), .* 16x16x16"):
        mfma("gfx942", 32, 16, "f16")
    with pytest.raises(ValueError, match=r"gfx942 has no .* with scales; of these formats it has none"):
        scaled("gfx942", 32, 64, "e4m3fn")


# ---- cycles


def test_cycles_are_those_of_the_manuals():
    """2, 4, 8 or 16 passes of four cycles. Within a format the large shapes are all equally fast."""
    assert {cycles for atom in CATALOGUE for cycles in atom.cycles.values()} == {8, 16, 32, 64}
    for arch, name, cycles in [
        ("gfx942", "v_mfma_f64_16x16x4_f64", 32), ("gfx950", "v_mfma_f64_16x16x4_f64", 64),
        ("gfx942", "v_mfma_f32_32x32x2_f32", 64), ("gfx942", "v_mfma_f32_16x16x4_f32", 32),
        ("gfx942", "v_mfma_f32_32x32x8_f16", 32), ("gfx942", "v_mfma_f32_16x16x16_f16", 16),
        ("gfx950", "v_mfma_f32_16x16x32_f16", 16), ("gfx950", "v_mfma_f32_32x32x16_bf16", 32),
        ("gfx942", "v_mfma_f32_16x16x32_fp8_fp8", 16), ("gfx950", "v_mfma_f32_32x32x16_fp8_bf8", 32),
    ]:
        assert find(name, arch).cycles[arch] == cycles
    for a in F8F6F4:
        for b in F8F6F4:
            double = 1 + (a in ("e4m3fn", "e5m2") or b in ("e4m3fn", "e5m2"))
            for make in (mfma, scaled):
                assert make("gfx950", 16, 128, a, b).cycles == {"gfx950": 16 * double}
                assert make("gfx950", 32, 64, a, b).cycles == {"gfx950": 32 * double}


def wait_states(atom, arch):
    """For how long LLVM has a wave wait that reads D with its next instruction."""
    types = [t.scalar for t in (atom.a.type, atom.b.type, atom.c.type)]
    k = Kernel("k", threads=64, warp=64, a=ptr(types[0]), b=ptr(types[1]), c=ptr(types[2]), s=ptr(i32))
    a, b, c, s = k.args
    scales = [k.load(s)] if atom.scaled else []
    a_reg, b_reg = k.load(a, atom.a.type), k.load(b, atom.b.type)
    (d,) = k.mma(atom, [a_reg, *scales], [b_reg, *scales], [k.constant(atom.c.type, 0)])
    c[k.thread[0]] = d[0] + d[1] if atom.c.elements > 1 else d
    lines = [line.strip() for line in amd.assembly(k.function, targets.target(arch)).splitlines()]
    (at,) = (i for i, line in enumerate(lines) if line.startswith(atom.name))
    waited = 0
    for line in lines[at + 1 :]:
        if line.startswith(("v_add", "v_pk_add", "global_store")):
            return waited
        waited += int(line.split()[1]) + 1 if line.startswith("s_nop") else 1
    raise AssertionError("nobody reads D")


@pytest.mark.parametrize("arch", ARCHS)
def test_cycles_are_those_that_llvm_waits_for(arch):
    """It knows the passes of every instruction: a wait is so many and 2 or 3, of f64 as it is written there, and one
    more on gfx950. Source: GCNHazardRecognizer.cpp."""
    for atom in mfma_instructions(arch):
        passes = atom.cycles[arch] // 4
        if atom.a.format == "f64":
            expected = passes + 3 if atom.m == 16 else 9
        elif atom.a.format == "f32":
            expected = passes + 2
        else:
            expected = passes + 3 + (arch == "gfx950" and passes > 2)
        assert wait_states(atom, arch) == expected, title(atom)


# ---- layouts


@pytest.mark.parametrize("atom", LAYOUTS, ids=title)
def test_every_element_is_in_one_place(atom):
    for operand in (atom.a, atom.b, atom.c):
        assert len(operand.where) == operand.blocks * operand.rows * operand.columns
        assert operand.elements * operand.bits == 32 * operand.registers
        for (block, row, column), (lane, e) in operand.where.items():
            assert (operand.block(lane, e), *operand(lane, e)) == (block, row, column)


# What AMD's matrix instruction calculator prints for CDNA3: (block, row, column, register, lane) of an element of A, of
# B and of D. https://github.com/ROCm/amd_matrix_instruction_calculator
CALCULATOR = [
    ("v_mfma_f64_16x16x4_f64", (0, 12, 3, "v[1:0]", 60), (0, 0, 11, "v[1:0]", 11), (0, 9, 5, "v[5:4]", 21)),
    ("v_mfma_f64_4x4x4_4b_f64", (3, 0, 3, "v[1:0]", 60), (2, 0, 3, "v[1:0]", 11), (2, 1, 1, "v[1:0]", 25)),
    ("v_mfma_f32_32x32x1_2b_f32", (1, 19, 0, "v0", 51), (1, 0, 12, "v0", 44), (1, 5, 13, "v17", 45)),
    ("v_mfma_f32_16x16x1_4b_f32", (3, 3, 0, "v0", 51), (2, 0, 12, "v0", 44), (2, 5, 6, "v9", 22)),
    ("v_mfma_f32_4x4x1_16b_f32", (12, 3, 0, "v0", 51), (11, 0, 0, "v0", 44), (9, 1, 1, "v1", 37)),
    ("v_mfma_f32_32x32x2_f32", (0, 25, 1, "v0", 57), (0, 0, 22, "v0", 22), (0, 18, 22, "v10", 22)),
    ("v_mfma_f32_16x16x4_f32", (0, 12, 3, "v0", 60), (0, 0, 11, "v0", 11), (0, 9, 5, "v1", 37)),
    ("v_mfma_f32_16x16x8_xf32", (0, 12, 7, "v1", 60), (0, 1, 11, "v1", 11), (0, 9, 5, "v1", 37)),
    ("v_mfma_f32_32x32x4_xf32", (0, 25, 3, "v1", 57), (0, 1, 22, "v1", 22), (0, 18, 22, "v10", 22)),
    ("v_mfma_f32_32x32x4_2b_f16", (1, 19, 3, "v1.[31:16]", 51), (1, 2, 12, "v1.[15:0]", 44), (1, 5, 13, "v17", 45)),
    ("v_mfma_f32_16x16x4_4b_f16", (3, 3, 3, "v1.[31:16]", 51), (2, 2, 12, "v1.[15:0]", 44), (2, 5, 6, "v9", 22)),
    ("v_mfma_f32_4x4x4_16b_f16", (12, 3, 3, "v1.[31:16]", 51), (11, 2, 0, "v1.[15:0]", 44), (9, 1, 1, "v1", 37)),
    ("v_mfma_f32_32x32x8_f16", (0, 25, 7, "v1.[31:16]", 57), (0, 2, 22, "v1.[15:0]", 22), (0, 18, 22, "v10", 22)),
    ("v_mfma_f32_16x16x16_f16", (0, 12, 15, "v1.[31:16]", 60), (0, 2, 11, "v1.[15:0]", 11), (0, 9, 5, "v1", 37)),
    ("v_mfma_f32_32x32x4_2b_bf16", (1, 19, 3, "v1.[31:16]", 51), (1, 2, 12, "v1.[15:0]", 44), (1, 5, 13, "v17", 45)),
    ("v_mfma_f32_16x16x4_4b_bf16", (3, 3, 3, "v1.[31:16]", 51), (2, 2, 12, "v1.[15:0]", 44), (2, 5, 6, "v9", 22)),
    ("v_mfma_f32_4x4x4_16b_bf16", (12, 3, 3, "v1.[31:16]", 51), (11, 2, 0, "v1.[15:0]", 44), (9, 1, 1, "v1", 37)),
    ("v_mfma_f32_32x32x8_bf16", (0, 25, 7, "v1.[31:16]", 57), (0, 2, 22, "v1.[15:0]", 22), (0, 18, 22, "v10", 22)),
    ("v_mfma_f32_16x16x16_bf16", (0, 12, 15, "v1.[31:16]", 60), (0, 2, 11, "v1.[15:0]", 11), (0, 9, 5, "v1", 37)),
    ("v_mfma_i32_32x32x4_2b_i8", (1, 19, 3, "v0.[31:24]", 51), (1, 2, 12, "v0.[23:16]", 44), (1, 5, 13, "v17", 45)),
    ("v_mfma_i32_16x16x4_4b_i8", (3, 3, 3, "v0.[31:24]", 51), (2, 2, 12, "v0.[23:16]", 44), (2, 5, 6, "v9", 22)),
    ("v_mfma_i32_4x4x4_16b_i8", (12, 3, 3, "v0.[31:24]", 51), (11, 2, 0, "v0.[23:16]", 44), (9, 1, 1, "v1", 37)),
    ("v_mfma_i32_32x32x16_i8", (0, 25, 15, "v1.[31:24]", 57), (0, 5, 22, "v1.[15:8]", 22), (0, 18, 22, "v10", 22)),
    ("v_mfma_i32_16x16x32_i8", (0, 12, 31, "v1.[31:24]", 60), (0, 5, 11, "v1.[15:8]", 11), (0, 9, 5, "v1", 37)),
    ("v_mfma_f32_16x16x32_fp8_fp8", (0, 12, 31, "v1.[31:24]", 60), (0, 5, 11, "v1.[15:8]", 11), (0, 9, 5, "v1", 37)),
    ("v_mfma_f32_32x32x16_fp8_fp8", (0, 25, 15, "v1.[31:24]", 57), (0, 5, 22, "v1.[15:8]", 22), (0, 18, 22, "v10", 22)),
]


@pytest.mark.parametrize(("name", "a", "b", "d"), CALCULATOR)
def test_layouts_are_what_the_calculator_prints(name, a, b, d):
    atom = find(name, "gfx942")
    for operand, (block, row, column, register, lane) in zip((atom.a, atom.b, atom.c), (a, b, d)):
        where, e = operand.where[block, row, column]
        (first, low, high), *more = operand.bits_of(e)
        shown = f"v{first}" + (f".[{high}:{low}]" if (low, high) != (0, 31) else "")
        assert (where, f"v[{more[0][0]}:{first}]" if more else shown) == (lane, register)


def test_all_single_instructions_of_cdna3_were_compared():
    assert {name for name, *_ in CALCULATOR} == {x.name for x in mfma_instructions("gfx942") if "bf8" not in x.name}


def test_layouts_are_those_of_the_kernels_of_amds_article():
    """"Matrix Core Programming on AMD CDNA3 and CDNA4": where its five kernels load from and store to, row-major."""
    t, i = LANES[:, None], np.arange(32)[None]
    f16, i16 = find("v_mfma_f32_16x16x16_f16"), i[:, :4]
    assert same(f16.a(t, i16), 16, 4*(t // 16) + 16*(t % 16) + i16)
    assert same(f16.b(t, i16), 16, i16*16 + t % 16 + t // 16 * 64)
    assert same(f16.c(t, i16), 16, i16*16 + t % 16 + t // 16 * 64)
    fp8, i8 = find("v_mfma_f32_32x32x16_fp8_fp8"), i[:, :8]
    assert same(fp8.a(t, i8), 16, t // 32 * 8 + t % 32 * 16 + i8)
    assert same(fp8.b(t, i8), 32, i8*32 + t % 32 + t // 32 * 8 * 32)
    mx8 = scaled("gfx950", 32, 64, "e4m3fn")
    assert same(mx8.a(t, i), 64, t % 32 * 64 + t // 32 * 16 + i // 16 * 32 + i % 16)
    assert same(mx8.b(t, i), 32, t % 32 + 32*16*(t // 32) + 32*(i % 16) + i // 16 * 32*32)
    mx4 = scaled("gfx950", 32, 64, "e2m1")
    assert same(mx4.a(t, i), 64, 2 * (t % 32 * 32 + t // 32 * 16 + i // 2) + i % 2)
    assert same(mx4.b(t, i), 32, 2 * (t % 32 // 2 + 16*32*(t // 32) + 16*i) + t % 2)
    f32 = find("v_mfma_f32_32x32x2_f32")
    for atom in (f32, fp8, mx8, mx4):
        r = i[:, :16]
        assert same(atom.c(t, r), 32, t % 32 + t // 32 * 4*32 + 32*(r % 4) + r // 4 * 32*8)


def same(place, width, address):
    row, column = place
    return (row*width + column == address).all()


def test_where_the_bits_of_an_element_are():
    assert find("v_mfma_f64_16x16x4_f64").c.bits_of(3) == [(6, 0, 31), (7, 0, 31)]
    assert find("v_mfma_f32_32x32x16_fp8_fp8").a.bits_of(5) == [(1, 8, 15)]
    six = scaled("gfx950", 32, 64, "e3m2").a
    assert six.bits_of(4) == [(0, 24, 29)]
    assert six.bits_of(5) == [(0, 30, 31), (1, 0, 3)]
    assert six.bits_of(31) == [(5, 26, 31)]
    assert scaled("gfx950", 32, 64, "e2m1").a.bits_of(31) == [(3, 28, 31)]


@pytest.mark.parametrize(("m", "k"), [(16, 128), (32, 64)])
def test_every_block_of_32_has_one_scale(m, k):
    atom = scaled("gfx950", m, k, "e4m3fn")
    row, block = atom.scale_a(LANES)
    assert sorted(zip(row, block)) == [(i, j) for i in range(m) for j in range(k // 32)]
    assert (np.array(atom.scale_b(LANES)) == np.array([block, row])).all()
    four = scaled("gfx950", m, k, "e2m1")           # of 4 and 6 bits a lane's elements are those that it scales
    rows, ks = four.a(LANES[:, None], np.arange(32)[None])
    assert (rows == row[:, None]).all()
    assert (ks // 32 == block[:, None]).all()


# ---- meanings


def held(operand, matrix):
    """The registers of all lanes, [1, 64] or [length, 1, 64], that hold these blocks: bit by bit, from `bits_of`."""
    dtype = np.dtype("f4") if operand.format == "xf32" else get(operand.format).dtype
    patterns = np.ascontiguousarray(matrix.astype(dtype)).view(f"u{dtype.itemsize}").astype(object)
    words = np.zeros((operand.registers, 64), object)
    for place, (lane, e) in operand.where.items():
        pattern = int(patterns[place]) & (1 << operand.bits) - 1
        for register, low, high in operand.bits_of(e):
            words[register, lane] |= (pattern & (1 << high - low + 1) - 1) << low
            pattern >>= high - low + 1
    octets = np.ascontiguousarray(words.astype(np.uint32).T).view(np.uint8).reshape(64, -1)
    values = octets.view(operand.type.scalar.numpy)
    return values.T[:, None, :] if operand.type.length > 1 else values.reshape(1, 64)


def draw(format, shape, rng):
    """Numbers of the format, small and whole where it has those."""
    least, most = (-8, 9) if format not in ("e2m1", "e2m3") else (-2, 3)
    return rng.integers(least, most, shape).astype(float)


@pytest.mark.parametrize("atom", CATALOGUE, ids=title)
def test_it_multiplies_and_adds(atom):
    rng = np.random.default_rng(5)
    a, b = (draw(x.format, (x.blocks, x.rows, x.columns), rng) for x in (atom.a, atom.b))
    c = rng.integers(-99, 99, (atom.blocks, atom.m, atom.n)).astype(float)
    operands = [held(atom.a, a)], [held(atom.b, b)], [held(atom.c, c)]
    if atom.scaled:
        exponents = rng.integers(-3, 4, (2, 64))
        bytes_ = rng.integers(0, 4, 2)
        atom = atom.bytes(*map(int, bytes_))
        for side, exponent, byte in zip(operands, exponents, bytes_):
            garbage = rng.integers(0, 255, (64, 4), dtype=np.uint8)
            garbage[:, byte] = exponent + 127
            side.append(garbage.view(np.int32).reshape(1, 64))
        for lane in LANES:
            (i, ka), (kb, j) = atom.scale_a(lane), atom.scale_b(lane)
            a[:, i, 32*ka:32*ka + 32] *= 2.0 ** exponents[0, lane]
            b[:, 32*kb:32*kb + 32, j] *= 2.0 ** exponents[1, lane]
    d = atom.operation.numpy(atom.c.type, *operands[0], *operands[1], *operands[2])
    assert 64 * atom.operation.flops == (atom.flops if atom.c.type.is_float else 0)
    assert d.dtype == atom.c.type.scalar.numpy
    expected = held(atom.c, a @ b + c)
    assert d.shape == expected.shape
    assert (d == expected).all()


def test_groups_are_waves():
    atom = find("v_mfma_f32_32x32x8_f16")
    rng = np.random.default_rng(1)
    a, b, c = (rng.integers(-4, 5, (4, 3, 64)).astype("f2"), rng.integers(-4, 5, (4, 3, 64)).astype("f2"),
               np.zeros((16, 3, 64), "f4"))
    d = atom.operation.numpy(atom.c.type, a, b, c)
    for wave in range(3):
        alone = atom.operation.numpy(atom.c.type, *(x[:, wave:wave + 1] for x in (a, b, c)))
        assert (d[:, wave:wave + 1] == alone).all()


def test_integers_wrap():
    atom = find("v_mfma_i32_32x32x16_i8")
    a = held(atom.a, np.full((1, 32, 16), -128.0))
    b = held(atom.b, np.full((1, 16, 32), -128.0))
    c = np.full((16, 1, 64), 2**31 - 1, np.int32)
    d = atom.operation.numpy(atom.c.type, a, b, c)
    assert (d == np.int64(2**31 - 1 + 16 * 2**14 - 2**32)).all()


def test_xf32_keeps_ten_bits_of_mantissa():
    atom = find("v_mfma_f32_16x16x8_xf32")
    a, b = np.zeros((1, 16, 8)), np.zeros((1, 8, 16))
    numbers = [1 + 2**-10, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-11 + 2**-20, -1 - 2**-11 - 2**-20,
               2.0**127 * (2 - 2**-12), np.inf, 3.0]
    a[0, :8, 0], b[0, 0] = numbers, 1
    rounded = [1 + 2**-10, 1, 1 + 2**-9, 1 + 2**-10, -1 - 2**-10, np.inf, np.inf, 3.0]
    d = atom.c.matrix(atom.operation.numpy(atom.c.type, held(atom.a, a), held(atom.b, b), np.zeros((4, 1, 64), "f4")))
    assert (d[0, 0, :8] == np.array(rounded)[:, None]).all()


def test_specials_of_formats_and_scales():
    atom = scaled("gfx950", 16, 128, "e5m2", "e4m3fn")
    a, b, c = np.ones((1, 16, 128)), np.ones((1, 128, 16)), np.zeros((4, 1, 64), "f4")
    a[0, 1, 5], a[0, 2, 5] = np.inf, np.nan
    scale = np.full((1, 64), 127, np.int32)
    scale[0, [3, 16 + 4]] = 255, 0              # row 3 of k < 32: nan; row 4 of 32 <= k < 64: 2^-127
    d = atom.operation.numpy(atom.c.type, held(atom.a, a), scale, held(atom.b, b), np.full((1, 64), 127, np.int32), c)
    rows = atom.c.matrix(d)[0, 0]
    assert np.isposinf(rows[1]).all()
    assert np.isnan(rows[2:4]).all()
    assert (rows[4] == 96).all()
    assert (rows[[0, *range(5, 16)]] == 128).all()


def test_bytes_of_scales_are_chosen():
    atom = scaled("gfx950", 32, 64, "e2m1")
    assert (atom.bytes(3, 1).byte_a, atom.bytes(3, 1).byte_b) == (3, 1)
    with pytest.raises(ValueError, match="cannot take its scales from bytes 4 and 0; there are 0 to 3"):
        atom.bytes(4)
    with pytest.raises(ValueError, match="from bytes 0 and 0: it has none"):
        mfma("gfx950", 32, 64, "e2m1").bytes()


@pytest.mark.parametrize("format", [*F8F6F4, "e4m3fnuz", "e5m2fnuz"])
def test_packed_operands_are_what_formats_pack(format):
    """A lane's registers are `formats.pack` of its elements, in their order."""
    arch = "gfx942" if format.endswith("fnuz") else "gfx950"
    operand = (mfma("gfx942", 32, 16, format) if arch == "gfx942" else mfma(arch, 32, 64, format)).a
    finite = [p for p in range(2**operand.bits) if np.isfinite(get(format).decode(p))]
    numbers = np.random.default_rng(2).choice([get(format).decode(p) for p in finite], (64, operand.elements))
    _, rows, columns = operand.places
    matrix = np.empty((1, 32, operand.columns))
    matrix[0, rows, columns] = numbers
    registers = held(operand, matrix)
    whole = np.ascontiguousarray(np.moveaxis(registers, 0, -1) if operand.type.length > 1 else registers[..., None])
    assert (whole.view(np.uint8).reshape(64, -1) == pack(numbers.astype(formats.get(format).dtype))).all()
    assert (operand.matrix(registers)[0, 0] == matrix[0]).all()


# ---- LLVM


COMPILE = """
import sys
from tilewright.compiler.llvm import assembly
from tilewright.ir import Kernel, i32, ptr
from tilewright.atoms.amd import mfma_instructions
from tilewright.targets import target

kernels = []
for at, atom in enumerate(mfma_instructions(sys.argv[1])):
    if atom.scaled:
        atom = atom.bytes(at % 4, 3 - at % 4)
    k = Kernel(f"atom_{at}", threads=64, warp=64, a=ptr(atom.a.type.scalar), b=ptr(atom.b.type.scalar),
               c=ptr(atom.c.type.scalar), s=ptr(i32))
    a, b, c, s = k.args
    x, y, z = (k.load(p, t, 4) for p, t in ((a, atom.a.type), (b, atom.b.type), (c, atom.c.type)))
    sides = ([x, k.load(s)], [y, k.load(s + 1)]) if atom.scaled else ([x], [y])
    (d,) = k.mma(atom, *sides, [z])
    k.store(c, d, align=4)
    k.ret()
    kernels.append(k.function)
print(assembly(kernels, target(sys.argv[1])))
"""


def selected(arch):
    bodies = re.findall(r"^atom_(\d+):(.*?)s_endpgm", printed(COMPILE, arch), re.M | re.S)
    return {int(at): " ".join(line.split()) for at, body in bodies
            for line in re.findall(r"^\s*(v_mfma\S* .*)", body, re.M)}


@pytest.mark.parametrize("arch", ARCHS)
def test_llvm_selects_every_instruction(arch):
    """In a child process, because LLVM ends the process where it cannot."""
    found = selected(arch)
    assert len(found) == len(mfma_instructions(arch))
    for at, atom in enumerate(mfma_instructions(arch)):
        assembly = found[at]
        assert assembly.split()[0] == atom.name
        d, a, b, *_ = re.findall(r"[av](?:\[(\d+):(\d+)\]|\d+)", assembly)
        counts = [int(last) - int(first) + 1 if last else 1 for first, last in (a, b, d)]
        assert counts == [atom.a.registers, atom.b.registers, atom.c.registers]
        if atom.numbers:
            modes = {name: int(value) for name, value in re.findall(r"(cbsz|blgp):(\d)", assembly)}
            assert (modes.get("cbsz", 0), modes.get("blgp", 0)) == atom.numbers
        if atom.scaled:         # a byte's number: its low bit is in op_sel, its high bit in op_sel_hi
            bits = {name: [int(x) for x in value.split(",")[:2]] for name, value in
                    re.findall(r"(op_sel|op_sel_hi):\[([\d,]+)\]", assembly)}
            low, high = bits.get("op_sel", [0, 0]), bits["op_sel_hi"]
            assert [x + 2 * y for x, y in zip(low, high)] == [at % 4, 3 - at % 4]


def test_constant_zeros_for_scales_are_refused():
    """LLVM would take them for no scales, and they mean 2^-127 each."""
    atom = scaled("gfx950", 32, 64, "e2m1")
    k = Kernel("scales", threads=64, warp=64, a=ptr(i32), c=ptr(f32))
    a, c = k.args
    x, zero, none = k.load(a, atom.a.type, 4), k.constant(atom.c.type, 0.0), k.constant(i32, 0)
    (d,) = k.mma(atom, [x, none], [x, none], [zero])
    k.store(c, d, align=4)
    with pytest.raises(ValueError, match="cannot have the constant 0, which is"):
        text(k.function, targets.target("gfx950"))
