"""Trees of loops as recorded functions (running/lower.py), compiled and in the simulator, against NumPy's integers."""
from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright import simulator
from tilewright.compiler.llvm import assembly
from tilewright.ir import bf16, f16, f32, f64, i8, i16, i32, i64
from tilewright.ir.program import Line
from tilewright.nests.nest import Access, LoopNest, Parameter, Refused, Statement
from tilewright.nests.polynomial import polynomial
from tilewright.nests.running.lower import lower
from tilewright.nests.tree import Buffer, Do, For, Sync, When
from tilewright.runtime.run import run
from tilewright.targets import target

LINE = Line("here", 1)


def p(*xs):
    """The polynomial of 3, "i", and (2, "i"), added."""
    total = polynomial(0)
    for x in xs:
        total = total + (polynomial(x[1]) * x[0] if isinstance(x, tuple) else polynomial(x))
    return total


def at(array, *subscripts):
    return Access(array, tuple(x if hasattr(x, "terms") else p(x) for x in subscripts))


def loop(index, stop, *body, start=0, step=1, mark=""):
    return For(index, p(start), p(stop), step, body, LINE, mark)


def copy(to, source):
    return Do(to, "", ("load", source), LINE)


def product(c, a, b):
    return Do(c, "add", ("mul", ("load", a), ("load", b)), LINE)


MATMUL = LoopNest("matmul", tuple(Parameter(x, "array", f32, 2) for x in "ABC"), (), {}, ())


def matrices(m, n, k, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n))]


def strides(*arrays):
    return {x: tuple(s // a.itemsize for s in a.strides) for x, a in zip("ABC", arrays)}


def both(lowered, arrays, grid=None, scratch=()):
    """C after a run on this machine (of a CPU function), and after one in the simulator."""
    results = []
    for go in (run, simulator.run) if lowered.function.threads is None else (simulator.run,):
        a, b, c = (x.copy() for x in arrays)
        go(lowered.function, a, b, c, *scratch, grid=grid)
        results.append(c)
    return results


@pytest.mark.skipif(tw.detect().lanes(4) < 16, reason="vectors of 16 numbers need AVX-512")
@pytest.mark.parametrize("n", [64, 61, 33])
def test_a_micro_kernel(n):
    """C in registers, 4 x 2 vectors of 16, B packed; columns beyond the last one under masks."""
    m, k, V = 8, 5, 16
    a, b, c = matrices(m, n, k)
    column = p((32, "jr"), (V, "jv"), "jl")
    inside = p(n, -1, (-32, "jr"), (-V, "jv"), (-1, "jl"))

    def vectors(do):
        body = When((inside,), (do,)) if n % 32 else do
        return loop("jv", 2, loop("jl", V, body, mark="vector"), mark="unroll")

    def tile(do):
        return loop("ii", 4, vectors(do), mark="unroll")
    row = p((4, "ir"), "ii")
    kept = at("C_reg", "ii", p((V, "jv"), "jl"))
    packed = at("B_buf", "p", p((V, "jv"), "jl"))
    tree = loop("jr", -(-n // 32), loop("p", k, vectors(copy(packed, at("B", "p", column)))), loop(
        "ir", m // 4,
        tile(copy(kept, at("C", row, column))),
        loop("p", k, tile(product(kept, at("A", row, "p"), packed))),
        tile(copy(at("C", row, column), kept))))
    buffers = {"C_reg": Buffer((4, 32), "registers", f32), "B_buf": Buffer((k, 32), "memory", f32)}
    lowered = lower(MATMUL, [tree], buffers=buffers, strides=strides(a, b, c))
    assert lowered.arguments == ("A", "B", "C", "B_buf")
    assert lowered.scratch == {"B_buf": (k * 32, False)}
    for found in both(lowered, (a, b, c), scratch=(np.zeros(k * 32, np.float32),)):
        assert np.array_equal(found, c + a @ b)


def test_workers_share_rounds_and_have_buffers_of_their_own():
    m, n, k = 13, 8, 5
    a, b, c = matrices(m, n, k)
    tree = loop("i", m, loop("j", n, copy(at("row", "j"), at("C", "i", "j"))),
                loop("j", n, loop("p", k, product(at("row", "j"), at("A", "i", "p"), at("B", "p", "j")))),
                loop("j", n, copy(at("C", "i", "j"), at("row", "j"))), mark="worker")
    lowered = lower(MATMUL, [tree], buffers={"row": Buffer((n,), "memory", f32)}, strides=strides(a, b, c))
    assert lowered.grid({}) == (m, 1, 1)
    assert lowered.scratch == {"row": (16, True)}
    for programs in (1, 3, 13, 20):
        for found in both(lowered, (a, b, c), (programs,), (np.zeros(16 * programs, np.float32),)):
            assert np.array_equal(found, c + a @ b)


def tiled(L, S, V, n):
    """V3 of the lecture notes: C in registers, tiles of A and B in shared memory."""
    x, y = p((L, "bi"), (V, "ti"), "ii"), p((L, "bj"), (V, "tj"), "jj")
    cell = at("C_reg", "ii", "jj")

    def each(do):
        return loop("ii", V, loop("jj", V, do, mark="unroll"), mark="unroll")
    here = at("A", p((L, "bi"), "A.i"), p((S, "po"), "A.p")), at("B", p((S, "po"), "B.p"), p((L, "bj"), "B.j"))
    shared = [loop("A.i", L, loop("A.p", S, copy(at("A_buf", "A.i", "A.p"), here[0])), mark="together"),
              loop("B.p", S, loop("B.j", L, copy(at("B_buf", "B.p", "B.j"), here[1])), mark="together")]
    body = [each(copy(cell, at("C", x, y))),
            loop("po", n // S, Sync(), *shared, Sync(), loop("p", S, each(product(
                cell, at("A_buf", p((V, "ti"), "ii"), "p"), at("B_buf", "p", p((V, "tj"), "jj")))))),
            each(copy(at("C", x, y), cell))]
    return loop("bi", n // L, loop("bj", n // L, loop("ti", L // V, loop(
        "tj", L // V, *body, mark="thread.x"), mark="thread.y"), mark="block.x"), mark="block.y")


@pytest.mark.parametrize(("S", "pad"), [(4, 0), (3, 1)])
def test_shared_memory_and_registers_of_a_gpu(S, pad):
    """Also a copy of 48 elements by 32 threads or so, and rows of 17 elements in shared memory."""
    L, V, n = 16, 4, 16 * S
    a, b, c = matrices(n, n, n)
    buffers = {"C_reg": Buffer((V, V), "registers", f32), "A_buf": Buffer((L, S + pad), "shared", f32),
               "B_buf": Buffer((S, L + pad), "shared", f32)}
    lowered = lower(MATMUL, [tiled(L, S, V, n)], buffers=buffers, strides=strides(a, b, c))
    assert lowered.function.threads == (L // V, L // V)
    assert lowered.grid({}) == (n // L, n // L, 1)
    for found in both(lowered, (a, b, c), lowered.grid({})):
        assert np.array_equal(found, c + a @ b)


def test_a_register_needs_loops_that_are_unrolled():
    tree = loop("i", 4, copy(at("row", "i"), at("A", "i", 0)))
    with pytest.raises(Refused, match=r"row\[i\] is in registers, whose axes are loops that are unrolled"):
        lower(MATMUL, [tree], buffers={"row": Buffer((4,), "registers", f32)})


def test_a_vector_loop_changes_no_single_element():
    tree = loop("i", 4, Do(at("C", 0, 0), "add", ("load", at("A", 0, "i")), LINE), mark="vector")
    with pytest.raises(Refused, match=r"C\[0, 0\] is one element for all rounds of a vector loop"):
        lower(MATMUL, [tree])


@pytest.mark.parametrize(("shift", "scale"), [(0, 1), (3, -1), (1, 2), (0, -2)])
def test_vectors_of_other_strides_and_masks_of_both_sides(shift, scale):
    """C[i, scale * j + shift] = A[i, j] + 2 j where 1 <= j < 7."""
    a, b, c = matrices(3, 18, 8)
    value = ("add", ("load", at("A", "i", "j")), ("mul", ("number", 2), ("index", p("j"))))
    do = Do(at("C", "i", p((scale, "j"), shift + (14 if scale < 0 else 0))), "", value, LINE)
    tree = loop("i", 3, loop("j", 8, When((p("j", -1), p(6, (-1, "j"))), (do,)), mark="vector"))
    want = c.copy()
    for j in range(1, 7):
        want[:, scale * j + shift + (14 if scale < 0 else 0)] = a[:, j] + 2 * j
    for lowered in (lower(MATMUL, [tree], strides=strides(a, b, c)),):
        for found in both(lowered, (a, b, c)):
            assert np.array_equal(found, want)


@pytest.mark.parametrize(("cols", "mark"), [(10, ""), (9, "unroll"), (8, "unroll")])
@pytest.mark.parametrize("element", [f16, bf16, f64, i8, i16, i32, i64], ids=str)
def test_vectors_of_every_format(element, cols, mark):
    """4 rounds at once, the last ones under a mask, on a CPU, in the simulator, and as code for every family."""
    rows = 4
    a, b, c = (x.astype(element.numpy) for x in matrices(rows, cols, 3))
    nest = LoopNest("formats", tuple(Parameter(x, "array", element, 2) for x in "ABC"), (), {}, ())
    j = p((4, "jv"), "jl")
    value = ("add", ("mul", ("load", at("A", "i", 0)), ("load", at("B", 1, j))), ("index", j))
    do = When((p(cols, -1, (-4, "jv"), (-1, "jl")),), (Do(at("C", "i", j), "add", value, LINE),))
    tree = loop("i", rows, loop("jv", 3, loop("jl", 4, do, mark="vector")))
    want = c.astype(int) + a[:, :1].astype(int) * b[1].astype(int) + np.arange(cols)
    for found in both(lower(nest, [tree], strides=strides(a, b, c)), (a, b, c)):
        assert np.array_equal(found.astype(int), want)
    for name in ("x86-avx512", "x86-avx2"):
        assembly(lower(nest, [tree], strides=strides(a, b, c)).function, target(name))
    for name in ("sm_80", "gfx942") if element.bits < 64 else ():
        assembly(lower(nest, [tree], gpu=True, warp=target(name).warp).function, target(name))


@pytest.mark.parametrize("element", [f16, bf16, i8, i64], ids=str)
def test_registers_of_every_format_under_masks(element):
    rows, cols = 3, 10
    a, b, c = (x.astype(element.numpy) for x in matrices(rows, cols, 3))
    nest = LoopNest("formats", tuple(Parameter(x, "array", element, 2) for x in "ABC"), (), {}, ())
    j = p((4, "jv"), "jl")

    def each(do):
        masked = When((p(cols, -1, (-4, "jv"), (-1, "jl")),), (do,))
        return loop("jv", 3, loop("jl", 4, masked, mark="vector"), mark="unroll")
    kept = at("kept", j)
    body = [each(copy(kept, at("C", "i", j))), loop("q", 3, each(product(kept, at("A", "i", "q"), at("B", "q", j)))),
            each(copy(at("C", "i", j), kept))]
    lowered = lower(nest, [loop("i", rows, *body)], buffers={"kept": Buffer((12,), "registers", element)})
    steps = [s for x in (a, b, c) for s in (x.shape[1], 1)]
    for go in (run, simulator.run):
        found = c.copy()
        go(lowered.function, a, b, found, *steps)
        assert np.array_equal(found.astype(int), c.astype(int) + a.astype(int) @ b.astype(int))
    for name in ("x86-avx2", "sm_75", "gfx942"):
        gpu = name != "x86-avx2"
        options = {"gpu": True, "warp": target(name).warp} if gpu else {}
        if element.bits < 64:
            assembly(lower(nest, [loop("i", rows, *body)], buffers={"kept": Buffer((12,), "registers", element)},
                           **options).function, target(name))


def test_names_that_are_options_of_kernels():
    """Arrays called name, threads and result."""
    names = ("name", "threads", "result")
    nest = LoopNest("self", tuple(Parameter(x, "array", f32, 1) for x in names), ("threads.shape[0]",), {}, (
        Statement((), (), at("result", 0), "", ("load", at("name", 0)), LINE),))
    do = Do(at("result", "i"), "", ("add", ("load", at("name", "i")), ("load", at("threads", "i"))), LINE)
    lowered = lower(nest, [loop("i", "threads.shape[0]", do)], strides=dict.fromkeys(names, (1,)))
    x, y, z = np.arange(3, dtype=np.float32), np.ones(3, np.float32), np.zeros(3, np.float32)
    run(lowered.function, x, y, z, 3)
    assert np.array_equal(z, x + y)
