"""The CPU kernels as machine code and in the simulator: the same bits, in bounds, and the operations they should need.

Arrays end exactly where the kernel's operand ends, so that one element too far is a fault.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.helpers.drivers import DTYPES, HERE, Packed, in_a_wider, job_of, random, stored, table_of
from tests.helpers.readings import both, native
from tilewright import simulator
from tilewright.ir.exact import silent_multiply_add
from tilewright.kernels.cpu import jobs
from tilewright.kernels.cpu.gemm import emit_batch
from tilewright.kernels.cpu.in_place import emit_in_place
from tilewright.kernels.cpu.microkernel import TYPES, emit_microkernel
from tilewright.kernels.cpu.packing import emit_pack
from tilewright.kernels.cpu.skinny import emit_dots, emit_row_dots
from tilewright.targets import names, target

pytestmark = pytest.mark.sampled

TILES = {"x86-avx512": (14, 2), "x86-avx2": (6, 2), "neon": (8, 3)}
MODES = [("packed", "packed"), ("rows", "rows"), ("columns", "masked")]


@cache
def microkernel(name, dtype, MR, NV, A="packed", B="packed"):
    return emit_microkernel(target(name), dtype, MR, NV, A, B)


@cache
def code(function):
    """Compiled for the widest instruction set here, which has the narrower ones."""
    return native([function])


_compiled = {}


def compiled(driver, *functions):
    """Drivers are emitted anew for each product, but are alike if they call the same kernels."""
    if functions not in _compiled:
        _compiled[functions] = native([driver, *functions])
    return _compiled[functions]


def in_order(T, a, b, c, alpha, beta):
    """What the micro-kernel promises, element by element: an fma for each p, in order, then alpha, then beta."""
    acc = np.zeros(c.shape, c.dtype)
    with np.errstate(all="ignore"):
        for p in range(a.shape[1]):
            acc = silent_multiply_add(T, a[:, p, None], b[None, p], acc)
        acc = acc * c.dtype.type(alpha) if alpha != 1 else acc
        return silent_multiply_add(T, c.dtype.type(beta), c, acc) if beta else acc


@pytest.mark.parametrize(("kc", "alpha", "beta"), [(0, 1, 0), (0, 1, 2), (1, 0.5, 1), (7, -1.25, 0.75), (64, 1, 0)])
@pytest.mark.parametrize("mode", MODES, ids="-".join)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HERE)
def test_microkernel(name, dtype, mode, kc, alpha, beta):
    A, B = mode
    (MR, NV), T = TILES[name], TYPES[dtype]
    V = target(name).lanes(T.bytes)
    NR = NV * V
    function = microkernel(name, dtype, MR, NV, A, B)
    for cols in (NR, NR - 1, V, 1) if kc < 64 else (V + 3,):
        a, b, c = random((MR, kc), dtype, 1), random((kc, NR), dtype, 2), in_a_wider(random((MR, cols), dtype, 3), 5)
        if B == "masked":
            b = in_a_wider(b[:, :cols], 3)
        lda, ldb = {"packed": MR, "columns": MR + 2, "rows": kc + 1}[A], NR if B != "masked" else cols + 3
        in_memory = {"packed": a.T.copy(), "columns": in_a_wider(a.T, 2), "rows": in_a_wider(a, 1)}[A]
        before = c.copy()
        report, after = both(function, kc, in_memory, lda, b, ldb, c, cols + 5, cols, alpha, beta, 0, 0,
                             code=code(function))
        expected = in_order(T, a, b[:, :cols], before, alpha, beta)
        np.testing.assert_array_equal(after["c"], expected)

        vectors = -(-cols // V)     # of C; those of B beyond cols are there unless they are masked
        updates = MR * NV if beta else 0
        assert report.instructions["fma"] == MR * NV * kc + updates
        assert report.of("a", "load").elements == report.of("a", "load").requests == MR * kc
        assert report.of("b", "load").requests == kc * (vectors if B == "masked" else NV)
        assert report.of("b", "load").elements == kc * (cols if B == "masked" else NR)
        assert report.of("c", "load").elements == (MR * cols if beta else 0)
        assert report.of("c", "store").requests == MR * vectors
        assert report.of("c", "store").elements == MR * cols
        assert report.of("c").distinct == MR * cols * T.bytes
        assert report.of(verb="store").bytes == report.of("c", "store").bytes


@pytest.mark.parametrize("MR", [1, 2, 3, 13])
@pytest.mark.parametrize("NV", [1, 2])
def test_microkernel_of_every_height(MR, NV):
    name = HERE[0]
    V = target(name).lanes(4)
    function = microkernel(name, "f32", MR, NV)
    a, b, c = random((5, MR), "f32", 1), random((5, NV * V), "f32", 2), random((MR, NV * V), "f32", 3)
    report, after = both(function, 5, a, MR, b, NV * V, c, NV * V, NV * V, 1.0, 0.0, 0, 0)
    np.testing.assert_array_equal(after["c"], in_order(TYPES["f32"], a.T, b, c, 1.0, 0.0))
    assert report.instructions["fma"] == 5 * MR * NV


@pytest.mark.parametrize("name", [name for name in names("cpu") if name not in HERE])
def test_microkernel_of_a_chip_that_is_not_here(name):
    """Simulated only: it still does what it promises, in bounds."""
    (MR, NV), V = TILES[name], target(name).lanes(4)
    a, b = random((9, MR), "f32", 1), random((9, NV * V), "f32", 2)
    c = in_a_wider(random((MR, NV * V - 1), "f32", 3), 2)
    before = c.copy()
    simulator.run(microkernel(name, "f32", MR, NV), 9, a, MR, b, NV * V, c, NV * V + 1, NV * V - 1, 2.0, 0.5, 0, 0)
    np.testing.assert_array_equal(c, in_order(TYPES["f32"], a.T, b[:, :-1], before, 2.0, 0.5))


def test_a_microkernel_that_counts_on_more_than_it_is_promised_is_found_out():
    """Packed panels are 64-byte aligned; C and operands in place need no more than an element's alignment."""
    name = HERE[0]
    V = target(name).lanes(4)
    a, b, c = np.zeros((3, 2), np.float32), np.zeros((3, V), np.float32), np.zeros((2, V), np.float32)
    with pytest.raises(simulator.Fault, match=r"misaligned .*load of b\[0\]"):
        simulator.run(microkernel(name, "f32", 2, 1), 3, a, 2, b, V, c, V, V, 1.0, 1.0, 0, 0,
                      memory=simulator.AddressSpace(alignment=4))
    simulator.run(microkernel(name, "f32", 2, 1, "rows", "rows"), 3, a, 3, b, V, c, V, V, 1.0, 1.0, 0, 0,
                  memory=simulator.AddressSpace(alignment=4))


def test_an_empty_c_is_not_read():
    """beta = 0: C may be uninitialised."""
    name = HERE[0]
    V = target(name).lanes(4)
    a, b, c = random((3, 2), "f32"), random((3, V), "f32"), np.full((2, V), np.nan, np.float32)
    call = (microkernel(name, "f32", 2, 1), 3, a, 2, b, V, simulator.uninitialised(c), V, V, 1.0)
    simulator.run(*call, 0.0, 0, 0)
    assert np.isfinite(c).all()
    with pytest.raises(simulator.Fault, match=r"uninitialised .*load of c\[0\]"):
        simulator.run(*call, 1.0, 0, 0)


# ---- packing

@pytest.mark.parametrize("kc", [0, 1, 3, 16, 37])
@pytest.mark.parametrize("kind", ["across", "along", "any"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HERE)
def test_packing(name, dtype, kind, kc):
    WIDTH = 14
    T, V = TYPES[dtype], target(name).lanes(TYPES[dtype].bytes)
    function = _pack(name, dtype, WIDTH, kind)
    for width, valid in ((14, 14), (14, 9), (11, 11), (1, 1)):
        lines = random((valid, kc), dtype)          # what is packed; line i lies along row i
        source = {"across": in_a_wider(lines.T, 3).T, "along": in_a_wider(lines, 2), "any": stored(lines, "any")}[kind]
        for backwards in (False, True):
            x = source[::-1, ::-1] if backwards and kind == "any" else source
            step_i, step_p = (s // x.itemsize for s in x.strides)
            dst = np.full(kc * width + jobs.SLACK, 7, x.dtype)
            report, after = both(function, kc, width, valid, x, step_i, step_p, dst, code=code(function))
            panel = after["dst"][: kc * width].reshape(kc, width)
            np.testing.assert_array_equal(panel[:, :valid], x.T)
            assert not (panel == 7).any()       # nothing old is multiplied: it may be denormal, which is slow
            assert report.of("source").distinct == valid * kc * T.bytes
            if kind == "across":
                assert report.of("source").elements == valid * kc
                assert report.of("dst", "store").requests == kc * -(-WIDTH // V)
            if kind == "any":
                cleared = kc * -(-WIDTH // V) * V if valid < width else 0
                assert report.of("source").elements == valid * kc
                assert report.of("dst", "store").elements == valid * kc + cleared
            assert report.flops == 0


@cache
def _pack(name, dtype, WIDTH, kind):
    return emit_pack(target(name), dtype, WIDTH, kind)


# ---- the drivers: whole products, through tables of kernels

@pytest.mark.parametrize(
    ("m", "n", "k", "a_order", "b_order", "beta"),
    [(9, 70, 21, "rows", "rows", 0.0), (13, 33, 10, "columns", "columns", 0.5), (4, 32, 1, "any", "any", 1.0)],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_five_loops(dtype, m, n, k, a_order, b_order, beta):
    kc, n_lanes = 8, target(HERE[0]).lanes(TYPES[dtype].bytes)
    p = Packed(HERE[0], dtype, 4, 2, m, n, k, a=a_order, b=b_order, alpha=1.5, beta=beta, mc_panels=2, kc=kc)
    exact = 1.5 * p.a.astype(np.float64) @ p.b + beta * p.c.astype(np.float64)
    report, after = both(p.driver, p.job, 0, arrays=p.arrays, also=p.functions, code=compiled(p.driver, *p.functions))
    np.testing.assert_allclose(after["c"], exact, rtol=1e-3, atol=1e-4)

    k_blocks, n_blocks = -(-k // kc), -(-n // (2 * n_lanes))
    assert report.of("b", "load").distinct == k * n * p.b.itemsize
    assert report.of("c", "store").elements == m * n * k_blocks
    assert report.of("c", "load").elements == m * n * (k_blocks - (beta == 0))
    if a_order != "rows":
        assert report.of("a", "load").elements == m * k * n_blocks  # packed again for each block of B
    if b_order != "columns":
        assert report.of("b", "load").elements == k * n  # packed once


@pytest.mark.parametrize(("tid", "done"), [(0, 0), (1, 1), (1, 3)])
def test_a_batch_of_packed_products(tid, done):
    """A thread does what is left of three products, in its own memory; one B for all, C backwards."""
    name, dtype, m, n, k = HERE[0], "f32", 7, 37, 21
    p = Packed(name, dtype, 4, 2, m, n, k, mc_panels=2, nc_panels=2, beta=0.5)
    a, b, c = random((3, m, k), dtype, 1), p.b, random((3, m, n), dtype, 3)
    size = {space: p.arrays[space].size for space in ("a_space", "b_space")}
    step = sum(size.values()) + 32 - sum(size.values()) % 16
    arrays = p.arrays | {"a": a, "c": c, "a_space": np.zeros(2 * step, np.float32), "product": first_of(p, c, size)}
    job = job_of(jobs.BATCH, TYPES[dtype], driver=p.driver, product="product", batch=3, a_step=a.strides[0], b_step=0,
                 c_step=-c.strides[0], space_step=4 * step, claimed=done)
    function = emit_batch(target(name))
    _, after = both(function, job, tid, arrays=arrays, also=[p.driver, *p.functions],
                    code=compiled(function, p.driver, *p.functions))
    exact = c.astype(np.float64)
    for i in range(done, 3):
        exact[2 - i] = a[i].astype(np.float64) @ b + 0.5 * exact[2 - i]
    np.testing.assert_allclose(after["c"], exact, rtol=1e-3, atol=1e-4)
    assert after["job"].view(np.int64)[jobs.BATCH.index("claimed")] == max(done, 3) + 1
    untouched = after["a_space"][:step] if tid else after["a_space"][step:]
    assert not untouched.any()
    assert after["a_space"].any() == (done < 3)


def first_of(p, c, size):
    """Its job for the first product: the last C, and B's panels behind A's."""
    def address_of(address):
        def first(x):
            if x == "b_space":
                return address("a_space") + 4 * (-(-size["a_space"] // 16) * 16)
            return address(x) + (2 * c.strides[0] if x == "c" else 0)
        return p.job(first)
    return address_of


@cache
def in_place_driver(name, dtype, MR, NV, A):
    """At twice (height - 1) * NV + vectors - 1 the kernel for whole rows of B, after it the masked one. In the place of
    one whole vector stands a masked kernel for half of one, if tiles are wider."""
    t, kernels = target(name), {}
    for height in range(1, MR + 1):
        for vectors in range(1, NV + 1):
            index = 2 * ((height - 1) * NV + vectors - 1)
            half = t.lanes(TYPES[dtype].bytes) // 2 if vectors == 1 < NV else 0
            kernels[index] = emit_microkernel(t, dtype, height, vectors, A, "masked" if half else "rows", half)
            kernels[index + 1] = emit_microkernel(t, dtype, height, vectors, A, "masked")
    driver = emit_in_place(t, dtype, MR, NV)
    return driver, kernels, native([driver, *kernels.values()])


@pytest.mark.parametrize(("m", "n", "k", "order"), [(7, 41, 11, "rows"), (3, 16, 5, "columns"), (1, 65, 9, "columns")])
def test_products_in_place(m, n, k, order):
    """A and B lie inside wider arrays that end with their last element; two parts of C, one after the other."""
    name, MR, NV, dtype = HERE[0], 3, 2, "f32"
    driver, kernels, compiled = in_place_driver(name, dtype, MR, NV, order)
    a, b, c = random((m, k), dtype, 1), random((k, n), dtype, 2), in_a_wider(random((m, n), dtype, 3), 4)
    a = in_a_wider(a, 2) if order == "rows" else in_a_wider(a.T, 2).T
    b, beta = in_a_wider(b, 1), 0.5
    lda = (k if order == "rows" else m) + 2
    job = job_of(jobs.IN_PLACE, TYPES[dtype], m=m, n=n, k=k, a="a", lda=lda, b="b", ldb=n + 1, c="c", ldc=n + 4,
                 alpha=1.0, beta=beta, kc=4, batch=1, batch_parts=1, row_parts=1, col_parts=2,
                 by_rows=int(order == "rows"), table="table")
    exact = a.astype(np.float64) @ b + beta * c.astype(np.float64)
    table = table_of(kernels, 2 * MR * NV)
    for part in (0, 1):
        arrays = {"a": a, "b": b, "c": c, "table": table}
        report, after = both(driver, job, part, arrays=arrays, also=list(kernels.values()), code=compiled)
        c = after["c"]
        assert report.of("c", "load").elements == report.of("c", "store").elements
    np.testing.assert_allclose(c, exact, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rows_outside", [0, 1])
def test_a_batch_in_place(rows_outside):
    """Five products in two shares, each C in two blocks: A goes backwards, B is one for all, C leaves gaps."""
    name, MR, NV, dtype, m, n, k = HERE[0], 3, 2, "f32", 7, 41, 11
    driver, kernels, compiled = in_place_driver(name, dtype, MR, NV, "rows")
    a, b, c = random((5, m, k), dtype, 1), random((k, n), dtype, 2), random((5, m + 1, n), dtype, 3)
    job = job_of(jobs.IN_PLACE, TYPES[dtype], m=m, n=n, k=k, a="last a", lda=k, b="b", ldb=n, c="c", ldc=n, alpha=1.0,
                 beta=0.5, kc=4, batch=5, a_step=-m * k, b_step=0, c_step=(m + 1) * n, batch_parts=2, row_parts=2,
                 col_parts=1, by_rows=1, rows_outside=rows_outside, table="table")

    def backwards(address):
        return job(lambda x: address("a") + 4 * m * k * a.itemsize if x == "last a" else address(x))
    exact = c.astype(np.float64)
    exact[:, :m] = a[::-1].astype(np.float64) @ b + 0.5 * exact[:, :m]
    arrays = {"a": a, "b": b, "c": c, "table": table_of(kernels, 2 * MR * NV)}
    for part, (products, rows) in enumerate([((0, 2), (0, 3)), ((0, 2), (3, 7)), ((2, 5), (0, 3)), ((2, 5), (3, 7))]):
        before = arrays["c"].copy()
        _, after = both(driver, backwards, part, arrays=arrays, also=list(kernels.values()), code=compiled)
        mine = (slice(*products), slice(*rows))
        before[mine] = after["c"][mine]
        np.testing.assert_array_equal(after["c"], before)
        np.testing.assert_allclose(after["c"][mine], exact[mine], rtol=1e-3, atol=1e-4)
        arrays["c"] = after["c"]


@pytest.mark.parametrize("beta", [0.0, 2.0])
@pytest.mark.parametrize(("m", "k"), [(7, 40), (1, 3), (4, 16), (5, 0)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dot_products(dtype, m, k, beta):
    ROWS, COLS, T = 3, 2, TYPES[dtype]
    V = target(HERE[0]).lanes(T.bytes)
    driver = emit_dots(target(HERE[0]), dtype, ROWS, COLS)
    a, b = in_a_wider(random((m, k), dtype, 1), 1), in_a_wider(random((COLS, k), dtype, 2), 2)
    c = random((COLS, m), dtype, 3).T
    job = job_of(jobs.DOTS, T, m=m, k=k, a="a", lda=k + 1, b="b", ldb=k + 2, c="c", rsc=1, csc=m, alpha=0.5, beta=beta,
                 parts=1)
    exact = 0.5 * (a.astype(np.float64) @ b.astype(np.float64).T) + beta * c.astype(np.float64)
    report, after = both(driver, job, 0, arrays={"a": a, "b": b, "c": c})
    np.testing.assert_allclose(after["c"], exact, rtol=1e-3, atol=1e-4)
    assert report.of("a").elements == m * k
    assert report.of("b").elements == (m // ROWS + m % ROWS) * COLS * k
    assert report.instructions["fma"] == m * COLS * (-(-k // V) + (beta != 0))


@pytest.mark.parametrize("beta", [0.0, 2.0])
def test_dot_products_by_blocks_of_k(beta):
    """Sums of several tiles of rows wait for the next block: the bits are those of one row by itself."""
    ROWS, COLS, T, m = 2, 4, TYPES["f64"], 5
    small = replace(target(HERE[0]), l1d=4096)
    V, DEPTH = small.lanes(8), 4096 * 2 // 3 // (4*8)
    k = 2 * (DEPTH // V * V) + V + 3
    driver = emit_dots(small, "f64", ROWS, COLS)
    a, b, c = random((m, k), "f64", 1), random((COLS, k), "f64", 2), random((m, COLS), "f64", 3)
    whole = {"a": "a", "lda": k, "b": "b", "ldb": k, "c": "c", "rsc": COLS, "csc": 1, "alpha": 0.5, "beta": beta}
    _, after = both(driver, job_of(jobs.DOTS, T, m=m, k=k, parts=1, **whole), 0, arrays={"a": a, "b": b, "c": c})
    np.testing.assert_allclose(after["c"], 0.5 * (a @ b.T) + beta * c, rtol=1e-12, atol=1e-12)
    for i in range(m):
        one = {"a": a[i:i + 1].copy(), "b": b, "c": c[i:i + 1].copy()}
        _, alone = both(driver, job_of(jobs.DOTS, T, m=1, k=k, parts=1, **whole), 0, arrays=one)
        np.testing.assert_array_equal(alone["c"][0], after["c"][i])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(("m", "COLS", "k"), [(1, 1, 11), (1, 8, 17), (2, 3, 9), (3, 5, 1), (7, 4, 30)])
def test_row_dots(m, COLS, k, dtype):
    """Steps of k in turn to several sums: all elements are read once, whatever A's strides are."""
    T = TYPES[dtype]
    driver = emit_row_dots(target(HERE[0]), dtype, m, COLS)
    for by_columns in False, True:
        a, b = random((k, m) if by_columns else (m, k), dtype, 1), random((k, COLS), dtype, 2)
        c = random((m, COLS), dtype, 3)
        lda, csa = (1, m) if by_columns else (k, 1)
        job = job_of(jobs.ROW_DOTS, T, m=m, k=k, a="a", lda=lda, csa=csa, b="b", ldb=COLS, c="c", rsc=COLS, csc=1,
                     alpha=0.5, beta=2.0, parts=1)
        exact = 0.5 * ((a.T if by_columns else a).astype(np.float64) @ b.astype(np.float64)) + 2 * c.astype(np.float64)
        report, after = both(driver, job, 0, arrays={"a": a, "b": b, "c": c})
        np.testing.assert_allclose(after["c"], exact, rtol=1e-3, atol=1e-4)
        assert (report.of("a").elements, report.of("b").elements) == (m * k, k * COLS)
