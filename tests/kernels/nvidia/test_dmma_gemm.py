"""f64 GEMM of matrix instructions: exact on integers in the simulator, without bank conflicts, without spills."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import simulator
from tilewright.atoms import nvidia as atoms
from tilewright.compiler import llvm, ptxas
from tilewright.ir import Kernel, f64, ptr
from tilewright.kernels.nvidia.dmma_gemm import emit_dmma_gemm
from tilewright.targets import target

SMALL = {"CTA_M": 64, "CTA_N": 64, "CTA_K": 8, "WARP_M": 32, "WARP_N": 32, "STAGES": 3}
RNG = np.random.default_rng(7)


def run(m, n, k, alpha=1.0, beta=0.0, LAYOUT="nn", **options):
    """The report; the product is compared with NumPy's, exactly."""
    options = {**SMALL, **options}
    function = emit_dmma_gemm(LAYOUT=LAYOUT, **options)

    def matrix(rows, cols, letter, even):
        stored = (rows, cols) if letter == "n" else (cols, rows)
        x = np.zeros((stored[0], stored[1] + stored[1] % even))
        x[:] = RNG.integers(-4, 5, x.shape)
        return x, (x[:, : stored[1]] if letter == "n" else x[:, : stored[1]].T)

    even = options.get("VECTOR", 2)
    (a, a_seen), (b, b_seen) = matrix(m, k, LAYOUT[0], even), matrix(k, n, LAYOUT[1], even)
    c, _ = matrix(m, n, "n", even)
    expected = alpha * a_seen @ b_seen + (beta * c[:, :n] if beta else 0)
    if not beta:
        c[:] = np.nan
    tiles, parts = -(-m // options["CTA_M"]) * -(-n // options["CTA_N"]), options.get("SPLIT_K", 1)
    space, grid = [], (tiles, 1, parts)
    if options.get("TAIL"):
        whole, parts = max(tiles - 3, 0), 4
        space = [np.full(parts * (tiles - whole) * options["CTA_M"] * options["CTA_N"], np.nan),
                 np.zeros(tiles - whole, np.int32), whole, parts]
        grid = whole + (tiles - whole) * parts, 1, 1
    elif parts > 1:
        space = [np.full(parts * tiles * options["CTA_M"] * options["CTA_N"], np.nan), np.zeros(tiles, np.int32)]
    report = simulator.run(function, m, n, k, alpha, a, a.shape[1], b, b.shape[1], beta, c, c.shape[1], *space,
                           grid=grid)
    np.testing.assert_array_equal(c[:, :n], expected)
    return report


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_layouts(layout):
    for m, n, k in ((64, 64, 16), (66, 130, 34), (2, 2, 2), (128, 64, 8)):
        run(m, n, k, LAYOUT=layout)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (67, 65, 19), (13, 127, 7), (65, 3, 40), (64, 64, 0)])
def test_awkward_sizes(m, n, k):
    run(m, n, k, VECTOR=1)
    run(m, n, k, alpha=2.0, beta=-3.0, VECTOR=1, LAYOUT="tt")


@pytest.mark.parametrize("parts", [2, 3])
def test_slices_of_k(parts):
    run(66, 70, 50, SPLIT_K=parts)
    run(64, 64, 8, SPLIT_K=parts, beta=1.0)             # fewer tiles of k than slices


def test_tail():
    run(200, 190, 50, TAIL=True)
    run(66, 64, 8, TAIL=True, beta=1.0)                 # nothing but tail, fewer tiles of k than parts


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_no_bank_conflicts(layout):
    """Fragments and both ways of copying: no access to shared memory needs more passes than its bytes."""
    report = run(128, 128, 32, LAYOUT=layout, CTA_M=128, CTA_N=128, CTA_K=16, WARP_M=64, STAGES=4)
    for verb in ("load", "store"):
        traffic = report.of(space="shared", verb=verb)
        assert traffic.moved == traffic.ideal


def test_counts():
    """Every element of A and B is read once per tile of C; 64 products of a warp's instruction per tile of k."""
    n = 128
    report = run(n, n, n, CTA_M=64, CTA_N=64)
    assert report.of("a", "load").elements == n * n * (n // 64) == report.of("b", "load").elements
    assert report.instructions["mma"] == n**3 // (16 * 8 * 4)
    assert report.of("c", "store").elements == n * n


@pytest.mark.parametrize("name", [name for name in dir(atoms) if name.startswith("MMA_")])
def test_atoms(name):
    """The meaning of each instruction, from registers laid out by its own layouts, is a matrix product."""
    atom = getattr(atoms, name)
    k = Kernel("one", threads=32, a=ptr(f64), b=ptr(f64), c=ptr(f64))
    a, b, c = (x.view(cols, 1) for x, cols in zip(k.args, (atom.k, atom.n, atom.n)))
    lane = k.thread[0]
    reg = [[x[layout(lane, r)] for r in range(count)]
           for x, layout, count in zip((a, b, c), (atom.a, atom.b, atom.c), atom.registers)]
    for r, x in enumerate(k.mma(atom, *reg)):
        c[atom.c(lane, r)] = x
    shapes = (atom.m, atom.k), (atom.k, atom.n), (atom.m, atom.n)
    a, b, c = (RNG.integers(-9, 9, shape).astype(float) for shape in shapes)
    expected = a @ b + c
    simulator.run(k.function, a, b, c)
    np.testing.assert_array_equal(c, expected)
    if atom.needs == "mma.f64.k16":
        with pytest.raises(NotImplementedError, match="sm_80 has no mma"):
            llvm.assembly(k.function, target("sm_80"))


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_resources(layout):
    try:
        ptxas.find()
    except ptxas.Missing as missing:
        pytest.skip(str(missing))
    low = {"CTA_M": 64, "CTA_N": 128, "CTA_K": 8, "WARP_M": 32, "WARP_N": 64, "MIN_CTAS": 2}
    for options in ({}, {"CTA_K": 8}, low, {"VECTOR": 1}, {"SPLIT_K": 2}):
        _, used = ptxas.assemble(llvm.assembly(emit_dmma_gemm(LAYOUT=layout, **options), target("sm_90a")), "sm_90a")
        (usage,) = used.values()
        assert usage.spill_stores == usage.spill_loads == usage.stack == 0, f"{options}: {usage}"
