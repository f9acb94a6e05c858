"""Wrong answers get a sentence that helps; right ones of another kind than the solutions' are right."""

from __future__ import annotations

import numpy as np
import pytest

from tests.nests.golden import three_loops as loops
from tilewright.ir import Kernel, f16, f32, i32, i64, ptr, vec
from tilewright.lab import exercises
from tilewright.lab.exercises import amd, mechanism


def emit_slow_micro(MR, NV):
    """Right, but each vector of B is loaded for each row."""
    k = Kernel("micro", kc=i64, a=ptr(f32), b=ptr(f32), c=ptr(f32))
    kc, a, b, c = k.args
    a, b, c = a.view(MR, 1), b.view(8 * NV, 1), c.view(8 * NV, 1)
    acc = k.tile(MR, NV, vec(f32, 8))
    with k.loop(kc) as p:
        for i in range(MR):
            for j in range(NV):
                row = k.load(b.at(p, 8 * j), vec(f32, 8), align=4)
                acc[i, j] = k.fma(k.broadcast(a[p, i], 8), row, acc[i, j])
    for i in range(MR):
        for j in range(NV):
            k.store(c.at(i, 8 * j), acc[i, j], align=4)
    return k.function


def emit_product(barriers=1):
    """One barrier: the race of the notebook. Three: one too many."""
    k = Kernel("product", threads=(8, 8), n=i32, a=ptr(f32), b=ptr(f32), c=ptr(f32))
    n, a, b, c = k.args
    a, b, c = a.view(n, 1), b.view(n, 1), c.view(n, 1)
    a_tile, b_tile = k.smem("a_tile", (8, 8), f32), k.smem("b_tile", (8, 8), f32)
    (tx, ty), (bx, by) = k.thread, k.block
    i, j = by * 8 + ty, bx * 8 + tx
    acc = k.variable(f32, 0)
    with k.loop(n, step=8) as p0:
        a_tile[ty, tx] = a[i, p0 + tx]
        b_tile[ty, tx] = b[p0 + ty, j]
        k.barrier()
        for p in range(8):
            acc.set(k.fma(a_tile[ty, p], b_tile[p, tx], acc.get()))
        for _ in range(barriers - 1):
            k.barrier()
    c[i, j] = acc.get()
    return k.function


def emit_two_loads():
    """16 x depth times depth x 16, with A loaded element by element."""
    k = Kernel("long", threads=64, warp=64, depth=i32, a=ptr(f16), b=ptr(f16), c=ptr(f32))
    depth, a, b, c = k.args
    a, b, c = a.view(depth, 1), b.view(16, 1), c.view(16, 1)
    lane, acc = k.thread[0], k.variable(amd.F16.c.type, 0)
    with k.loop(depth, step=16) as p:
        a_reg, b_reg = (k.pack(*(x[i + shift * p, j + (1 - shift) * p]
                                 for i, j in (layout(lane, e) for e in range(4))))
                        for x, layout, shift in ((a, amd.F16.a, 0), (b, amd.F16.b, 1)))
        (d_reg,) = k.mma(amd.F16, [a_reg], [b_reg], [acc.get()])
        acc.set(d_reg)
    for e in range(4):
        c[amd.F16.c(lane, e)] = acc.get()[e]
    return k.function


@pytest.mark.parametrize(("name", "answer", "says"), [
    ("cpu.peak", (lambda *x: np.prod(x),), "two operations"),
    ("cpu.peak", (lambda *x: x[0] / 0,), "ZeroDivisionError"),
    ("cpu.peak", (150.4,), "the answer is a function"),
    ("cpu.loads", (lambda m, n, k, MR, NR: 2 * m * n * k,), "naive"),
    ("cpu.loads", (lambda m, n, k, MR, NR: (MR + NR) * k,), "How many tiles"),
    ("cpu.tile", ({"x86-avx2": (7, 2), "x86-avx512": (5, 5)},), "17 registers, and there are 16"),
    ("cpu.tile", ({"x86-avx2": (6, 2), "x86-avx512": (5, 5)},), "There is a better tile, with 1.71"),
    ("cpu.tile", ({"x86-avx2": 6, "x86-avx512": (5, 5)},), "a pair"),
    ("cpu.micro", (emit_slow_micro,), "each one once"),
    ("cpu.blocks", (lambda l1, l2, l3, MR, NR: (MR, l1 // (4 * NR), 8),), "would fit, too"),
    ("cpu.blocks", (lambda l1, l2, l3, MR, NR: (MR, l1 // NR, NR),), "and L1 has 32,768"),
    ("cpu.pack", (lambda m, n, k, MC, KC, NC: m * k + n * k,), "packs all of A again"),
    ("nvidia.sectors", (lambda x: "4",), "the answer is a number"),
    ("nvidia.ring", (1, lambda stages: 0), "the answer is a function"),
    ("cpu.micro", (lambda MR, NV: 1,), "cannot be used"),
    ("nvidia.sectors", (lambda x: len(set(x)),), "Eight f32 side by side"),
    ("nvidia.passes", (lambda x: max([w % 32 for w in x].count(b) for b in range(32)),), "the same word"),
    ("nvidia.race", (emit_product, 11, lambda: None), "Now write emit_mended"),
    ("nvidia.race", (emit_product, 5, emit_product), "line 5 is not where"),
    ("nvidia.race", (emit_product, 11, lambda: emit_product(3)), "two in each round are enough"),
    ("nvidia.swizzle", (lambda row, column: column,), "1024"),
    ("nvidia.swizzle", (lambda row, column: row * 0,), "elements are lost"),
    ("nvidia.lanes", (lambda lane: (lane // 8, lane % 8),), "those of B 4"),
    ("nvidia.lanes", (lambda lane: (lane // 8, lane % 4),), "no lane sits at row 0, column 4"),
    ("nvidia.ring", (lambda stages, pending: emit_product(2), lambda stages: 0), "waits for copies"),
    ("amd.decode", (lambda byte: 1.0,), "no hidden 1"),
    ("amd.holders", (lambda i, k: 3, lambda i, j: 3), "the answer is a pair"),
    ("amd.holders", (lambda i, k: (0, k % 4), lambda i, j: (0, 0)), "the element is right, the lane is not"),
    ("amd.loop", (emit_two_loads,), "one load of"),
    ("amd.quantise", (lambda x: (100, x),), "the scale is"),
    ("amd.scales", (lambda i, k, bits: (i + 32 * (k // 32), i + 32 * (k // 32)),), "another lane holds it"),
    ("compilers.loads", (lambda version, n, V, L: 2 * n**3,), "each of its V columns V times"),
    ("compilers.walk", (lambda tid, j, threads, rows, columns: (tid // columns, tid % columns),), "4 times"),
    ("compilers.walk", (lambda tid, j, threads, rows, columns: ((tid + j*threads) % rows, (tid + j*threads) // rows),),
     "256 sectors, where 32 are enough"),
    ("compilers.legal", (lambda L, S, V, shared: 8 * L * S <= shared,), "cannot share 32 x 4"),
    ("compilers.registers", (lambda s, V: s.vectorize("p"), loops), "is refused"),
    ("compilers.registers", (lambda s, V: s, loops), "C is read"),
    ("compilers.shared", (lambda s, *sizes: s, loops), "no loop is bound"),
])
def test_a_wrong_answer_gets_a_sentence(name, answer, says):
    verdict = exercises.check(name, *answer)
    assert verdict.solved is False
    assert says in verdict.sentence


def test_answers_of_another_kind():
    assert exercises.check("nvidia.swizzle", lambda row, column: (row + column) % 32)
    assert exercises.check("nvidia.race", emit_product, 11, lambda: emit_product(2))
    assert exercises.check("nvidia.lanes", lambda lane: (lane // 2 % 4, lane // 8 * 2 + lane % 2))


@pytest.mark.parametrize("answer", [..., None, lambda *x: ..., lambda *x: (1, ...)])
def test_without_an_answer(answer):
    assert exercises.check("cpu.peak", answer).solved is None


def test_names_and_progress(capsys, monkeypatch):
    monkeypatch.setattr(mechanism, "VERDICTS", {})
    with pytest.raises(ValueError, match=r"'cpu.paek'; did you mean cpu.peak\?"):
        exercises.check("cpu.paek", 1)
    with pytest.raises(ValueError, match="the notebooks are cpu, nvidia, amd, compilers"):
        exercises.check("gpu.peak", 1)
    exercises.check("cpu.peak", 1)
    exercises.progress("cpu")
    said = capsys.readouterr().out
    assert said.startswith("✗ cpu.peak")
    assert said.endswith("0 of 6 solved\n")
