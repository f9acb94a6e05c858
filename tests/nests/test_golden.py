"""The golden schedules: their text after each operation, their counts, and exactness in the simulator.

    python -m tests.nests.test_golden       # write the texts anew, after a change that is meant
"""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.nests import golden
from tilewright import simulator
from tilewright.lab.ladder.gpu01_naive import emit_naive
from tilewright.lab.ladder.gpu02_tiled import emit_tiled
from tilewright.lab.ladder.gpu03_registers import emit_registers
from tilewright.lab.ladder.gpu04_shared import emit_shared
from tilewright.nests.schedules.schedule import schedule
from tilewright.nests.schedules.scheduled import Illegal

FOLDER = Path(__file__).with_name("golden_texts")


def begin(m, n, k):
    return schedule(golden.three_loops, *[np.zeros(x, np.float32) for x in ((m, k), (k, n), (m, n))])


def stepwise(s):
    """The tree after each operation."""
    parts = []
    for at, step in enumerate(s.steps):
        after = s.steps[at + 1].before if at + 1 < len(s.steps) else s.now
        parts.append(f"{at + 1}. {step.sentence}\n\n{type(s)(s.nest, s.sizes, after)}\n")
    return "\n".join(parts)


TEXTS = {
    "micro_kernel": lambda: [*golden.micro_kernel(begin(1024, 1024, 1024))][-1],
    "micro_kernel_avx2": lambda: [*golden.micro_kernel(begin(1000, 1000, 1000), 6, 2, 8, 96, 256, "predicate")][-1],
    "lecture_v1": lambda: golden.v1(begin(1024, 1024, 1024)),
    "lecture_v3": lambda: golden.v3(begin(1024, 1024, 1024)),
    "lecture_v4": lambda: golden.v4(begin(1024, 1024, 1024)),
    "article_v5": lambda: golden.v5(begin(1024, 1024, 1024)),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name):
    assert stepwise(TEXTS[name]()) == (FOLDER / f"{name}.txt").read_text(), "if it is meant, write the texts anew"


@pytest.mark.parametrize(("sizes", "options"), [
    ((16, 64, 8), {"MC": 8, "KC": 4}),
    ((24, 64, 6), {"MR": 6, "V": 8, "MC": 12, "KC": 3}),
    ((13, 41, 7), {"MR": 4, "V": 8, "MC": 8, "KC": 4, "tail": "predicate"}),
    ((13, 41, 7), {"MR": 4, "V": 8, "MC": 8, "KC": 4, "tail": "predicate", "worker": True}),
])
def test_each_step_of_the_micro_kernel_is_exact_and_counted(sizes, options):
    """Each step with the first sizes; with others the last and every fourth before it."""
    steps = [*golden.micro_kernel(begin(*sizes), **options)]
    assert len(steps) <= 25
    for s in steps[::-1 if sizes == (16, 64, 8) else -4]:
        found, foreseen = s.check().counts, s.counts()
        assert found == {x: foreseen[x] for x in found}, s.history[-1]


@pytest.mark.parametrize(("name", "operations", "formula"), [
    ("v1", 5, lambda n, L, V: 2 * n**3), ("v15", 8, lambda n, L, V: n**3 // V + n**3),
    ("v2", 9, lambda n, L, V: 2 * n**3 // V), ("v3", 12, lambda n, L, V: 2 * n**3 // L)])
def test_the_lecture_counts_its_loads(name, operations, formula):
    n, L, V = 64, 32, 4
    s = getattr(golden, name)(begin(n, n, n))
    assert len(s.history) == operations
    counts, checked = s.counts(), s.check(most=n**3 + 2 * n**2)
    assert counts["A"].loads + counts["B"].loads == formula(n, L, V)
    if name == "v3":
        assert counts["A_shared"].loads + counts["B_shared"].loads == 2 * n**3 // V
    assert checked.counts == {x: counts[x] for x in checked.counts}


@pytest.mark.parametrize(("step", "kernel", "grid"), [
    ("v1", emit_naive(16), 4), ("v15", emit_tiled(4, 8), 2), ("v2", emit_registers(4, 8), 2),
    ("v3", emit_shared(32, 8, 4), 2)])
def test_the_first_steps_of_the_ladder_are_schedules_of_three_loops(step, kernel, grid):
    """The ladder's kernels load as many elements of each array as the schedules do."""
    n = 64
    counts = getattr(golden, step)(begin(n, n, n)).counts()
    a, b, c = (np.zeros(n * n, np.float32) for _ in range(3))
    report = simulator.run(kernel, n, n, n, 1.0, a, n, b, n, 0.0, c, n, grid=(grid, grid))
    names = {"A": "a", "B": "b", "A_shared": "a_smem", "B_shared": "b_smem"}
    assert {x: counts[x].loads for x in names if x in counts} == {
        x: report.of(verb="load", array=y).elements for x, y in names.items() if x in counts}


@pytest.mark.parametrize("make", [lambda s: [*golden.micro_kernel(s)][-1], golden.v3, golden.v4])
def test_large_ones_are_checked_with_small_tiles(make):
    checked = make(begin(1024, 1024, 1024)).check()
    assert max(checked.sizes.values()) <= 256
    assert "in the simulator with" in str(checked)


@pytest.mark.skipif(tw.detect().lanes(4) < 16, reason="vectors of 16 numbers need AVX-512")
@pytest.mark.parametrize("worker", [False, True])
def test_the_micro_kernel_runs(worker):
    m, n, k = 100, 150, 300
    a, b, c = (np.random.default_rng(0).integers(-3, 4, x).astype(np.float32) for x in ((m, k), (k, n), (m, n)))
    s = [*golden.micro_kernel(schedule(golden.three_loops, a, b, c), tail="predicate", worker=worker)][-1]
    want = c + a @ b
    s(a, b, c)
    assert np.array_equal(c, want)
    with pytest.raises(ValueError, match="A is an array of shape"):
        s(a.T, b, c)
    s(a, b, c)
    assert np.array_equal(c, want + a @ b)


@pytest.mark.sampled
@pytest.mark.parametrize(("stages", "by"), [(2, "registers"), (2, "async"), (3, "async")])
@pytest.mark.parametrize("tail", ["divide", "predicate"])
def test_buffers_are_filled_early(stages, by, tail):
    """With races and copies in flight found by the simulator."""
    m, n, k = (32, 64, 32) if tail == "divide" else (37, 61, 27)
    s = golden.v5(begin(m, n, k), 32, 8, stages, by, tail)
    checked, foreseen = s.check(most=1 << 18), s.counts()
    assert checked.sizes["A.shape[1]"] == k
    assert {x: c.loads for x, c in checked.counts.items()} == {x: foreseen[x].loads for x in checked.counts}
    assert s.now.buffers["A_shared"].strides == (8 * 36, 36, 16, 4, 1)
    assert s.now.buffers["B_shared"].shape == (stages, 8, 2, 4, 4)


def test_what_cannot_be_pipelined():
    s = golden.v5(begin(64, 64, 64), 32)
    with pytest.raises(Illegal, match="po is pipelined already"):
        s.pipeline("po")
    with pytest.raises(Illegal, match="do not begin with copies to shared memory"):
        golden.v2(begin(64, 64, 64)).pipeline("p")


@pytest.mark.sampled
@pytest.mark.parametrize(("dtype", "k"), [("float32", 8), ("float16", 8), ("float16", 16), ("bfloat16", 16)])
@pytest.mark.parametrize("stages", [None, 2])
@pytest.mark.parametrize("tail", ["divide", "predicate"])
def test_tensor_cores(dtype, k, stages, tail):
    dtype = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype
    m, n, depth = (64, 64, 32) if tail == "divide" else (50, 43, 37)
    s = schedule(golden.three_loops, np.zeros((m, depth), dtype), np.zeros((depth, n), dtype),
                 np.zeros((m, n), np.float32))
    s = golden.tensor_cores(s, 32, 16, 16, k, stages, tail)
    checked = s.check(most=1 << 20)
    assert checked.sizes["A.shape[1]"] == depth
    ptx = s.compile("sm_90a").asm
    assert ptx.count(f"mma.sync.aligned.m16n8k{k}.row.col.f32") == 2 * 16 // k      # two columns of tiles
    if stages and tail == "divide" and dtype != "float32":
        assert "st.shared" not in ptx           # vectors of 2-byte elements are copied past registers, too
    with pytest.raises(Illegal, match="tensorize is the last operation"):
        s.unroll("pi")


def test_what_is_no_matrix_instruction():
    s = begin(64, 64, 64)
    with pytest.raises(Illegal, match=r"C\[i, j\] is not in registers"):
        s.tensorize("i", "j", "p")
    t = golden.launch(s, 32, 8, ("p", "ii", "jj")).stage("C", "p", ("ii", "jj"), "registers")
    t = t.stage("A", "ii", ("ii",), "registers").stage("B", "ii", ("jj",), "registers")
    with pytest.raises(Illegal, match="ii jj p do not stand directly one in the other"):
        t.tensorize("ii", "jj", "p")
    with pytest.raises(Illegal, match="16x8x4, 16x8x8"):
        golden.tensor_cores(s, 32, 16, 32, 32)


def test_registers_and_instructions_are_the_ladders():
    """The kernel of the GPU's article, beside step 8 of the ladder: no spills, two CTAs to a multiprocessor."""
    ptxas = pytest.importorskip("tilewright.compiler.ptxas")
    s = begin(4096, 4096, 4096)
    ptx = golden.v5(s, by="async").compile("sm_90a").asm
    assert (ptx.count("fma.rn.f32"), ptx.count("ld.shared.v4"), ptx.count("bar.sync")) == (512, 32, 1)
    assert ptx.count("cp.async.c") - ptx.count("cp.async.commit") == 2 * (4 + 1)    # of A by elements, of B one vector
    assert ptx.count("bra") == 1                                                    # the loop over k
    try:
        used, = ptxas.assemble(ptx, "sm_90a")[1].values()
    except ptxas.Missing:
        pytest.skip("there is no ptxas")
    assert used.spills == 0
    assert used.registers <= 128


def test_explain_tells_bytes():
    text = golden.v3(begin(64, 64, 64)).explain()
    assert "A in global: 1048576 -> 32768 bytes" in text
    assert "A_shared  shared" in text


if __name__ == "__main__":
    for name, make in TEXTS.items():
        (FOLDER / f"{name}.txt").write_text(stepwise(make()))
