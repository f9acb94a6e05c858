"""Schedules that rules find leave the bits of the loops as written in the simulator; the best one is kept."""
from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright as tw
from tests.helpers.gpus import machine
from tests.nests.cases import biased as product
from tests.nests.contractions import convolution_nhwc, shortest_paths as floyd, vector as matvec
from tests.nests.golden import three_loops as matmul
from tilewright import targets
from tilewright.compiler import gate
from tilewright.nests.schedules.compiled import Compiled
from tilewright.nests.schedules.schedule import schedule
from tilewright.nests.search import rules, search, trials
from tilewright.nests.search.estimate import unrolled_statements
from tilewright.nests.search.gpu_rules import gpu_candidates
from tilewright.nests.search.rules import candidates
from tilewright.plans.measured import store
from tilewright.runtime.gpu.driver import LibraryError

AVX512 = targets.target("x86-avx512")


def stencil(A, B):
    for _ in range(2):
        for i in range(1, A.shape[0] - 1):
            for j in range(1, A.shape[1] - 1):
                B[i, j] = 2 * (A[i, j] + A[i - 1, j] + A[i + 1, j] + A[i, j - 1] + A[i, j + 1])
        for i in range(1, A.shape[0] - 1):
            for j in range(1, A.shape[1] - 1):
                A[i, j] = B[i, j] - B[i - 1, j] - B[i + 1, j] - B[i, j - 1] - B[i, j + 1]


def blur(A, B):
    for i in range(1, A.shape[0] - 1):
        for j in range(1, A.shape[1] - 1):
            B[i, j] = A[i, j] + A[i - 1, j] + A[i + 1, j] + A[i, j - 1] + A[i, j + 1]


def mttkrp(X, B, C, A):
    for i in range(X.shape[0]):
        for j in range(X.shape[1]):
            for k in range(X.shape[2]):
                for r in range(B.shape[1]):
                    A[i, r] += X[i, j, k] * B[j, r] * C[k, r]


def chain(A, B, C):
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            B[i, j] = A[i, j] * 2 + 1
            C[i, j] = max(B[i, j], 0) * A[i, j]


def prefix(x, y):
    y[0] = x[0]
    for i in range(1, x.shape[0]):
        y[i] = y[i - 1] + x[i]


def solve(L, b, x):
    for i in range(L.shape[0]):
        x[i] = b[i]
        for j in range(i):
            x[i] -= L[i, j] * x[j]


def transposition(A, B):
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            B[j, i] = A[i, j]


def rowsums(A, r):
    for i in range(A.shape[0]):
        s = 0.0
        for j in range(A.shape[1]):
            s += A[i, j]
        r[i] = s


def softmax(A, B):
    for i in range(A.shape[0]):
        m = -100.0
        for j in range(A.shape[1]):
            m = max(m, A[i, j])
        s = 0.0
        for j in range(A.shape[1]):
            s += A[i, j] - m
        for j in range(A.shape[1]):
            B[i, j] = A[i, j] * s + m


def convolution(x, w, y):
    for i in range(y.shape[0]):
        for k in range(w.shape[0]):
            y[i] += x[i + k] * w[k]


def integers(*shape):
    return np.random.default_rng(len(shape)).integers(-3, 4, shape).astype(np.float32)


CASES = {
    stencil: [(11, 37), (11, 37)],
    matmul: [(9, 5), (5, 34), (9, 34)],
    product: [(5, 3), (3, 32), (5, 32), (32,)],
    matvec: [(12, 39), (39,), (12,)],
    mttkrp: [(5, 3, 4), (3, 20), (4, 20), (5, 20)],
    chain: [(5, 37), (5, 37), (5, 37)],
    prefix: [(40,), (40,)],
    floyd: [(7, 7)],
    solve: [(9, 9), (9,), (9,)],
    transposition: [(19, 33), (33, 19)],
    rowsums: [(24, 40), (24,)],
    softmax: [(16, 35), (16, 35)],
    convolution: [(50,), (5,), (46,)],
}
UNCHANGED = (prefix, floyd, solve)


def case(f):
    return schedule(f, *[integers(*shape) for shape in CASES[f]])


@pytest.mark.parametrize(("f", "threads"), [*((f, 1) for f in CASES), (matvec, 2), (rowsums, 2), (transposition, 2)])
def test_candidates_leave_the_bits_that_the_loops_leave(f, threads):
    found = candidates(case(f), AVX512, threads)
    assert (len(found) > 1) == (f not in UNCHANGED)
    for c in found[:10:2]:
        c.schedule.check(most=1 << 20)


@pytest.mark.parametrize("f", [stencil, matmul, matvec, product, mttkrp, chain, convolution, rowsums])
def test_vectors_are_first(f):
    shapes = [[8 * n for n in shape] for shape in CASES[f]] if f is not convolution else CASES[f]
    first, *others = candidates(schedule(f, *[integers(*shape) for shape in shapes]), AVX512)
    assert any(x.mark == "vector" for x in first.schedule.now.loops)
    assert any(c.words == "as written" for c in others)


def test_sums_stay_in_registers():
    first = candidates(schedule(matmul, *[integers(256, 256) for _ in "ABC"]), AVX512)[0].schedule.now
    (tile,) = first.buffers.values()
    assert tile.space == "registers"
    assert 8 <= tile.shape[0] * tile.shape[1] // 16 <= 28


def test_no_candidate_is_code_that_takes_seconds_to_compile():
    """The sums of this convolution, loops cut apart around them, would be 336 registers and a megabyte of code."""
    s = schedule(convolution_nhwc, *[np.zeros(x, np.int64) for x in ((2, 8, 9, 3), (3, 3, 3, 4), (2, 6, 7, 4), (4,))])
    assert max(unrolled_statements(c.schedule.now) for c in candidates(s, targets.target("x86-avx2"))) <= rules.COPIES


def test_floyd_and_warshall_keep_k_outermost():
    assert {c.schedule.now.loops[0].index for c in candidates(case(floyd), AVX512, 2)} == {"k"}


def test_threads_share_the_outermost_loop():
    for f in (matmul, matvec, chain, transposition):
        found = candidates(schedule(f, *[integers(*[8 * n for n in shape]) for shape in CASES[f]]), AVX512, 2)
        assert any(x.mark == "worker" for c in found for x in c.schedule.now.loops), f.__name__


def test_other_vectors():
    """AVX2 and NEON have other lanes and fewer registers."""
    for name in ("x86-avx2", "neon"):
        chip = targets.target(name)
        for c in candidates(case(matmul), chip)[:3]:
            c.schedule.check(most=1 << 20)
            for x in c.schedule.now.loops:
                assert x.mark != "vector" or x.extent * 4 <= chip.vector_bytes


@pytest.mark.parametrize("chip", ["x86-avx2", "x86-avx512"])
@pytest.mark.parametrize(("a", "b"), [("i1", "i1"), ("i2", "f4"), ("f2", "f2"), ("i4", "f4")])
def test_vectors_hold_what_is_computed(chip, a, b):
    """Arithmetic on narrow numbers is in i32, f32 or f64: vectors of so many of these fit into registers."""
    def both(A, B):
        for i in range(A.shape[0]):
            for j in range(A.shape[1]):
                B[i, j] = A[i, j] + B[i, j]
                A[i, j] = A[i, j] * 0.5
    target = targets.target(chip)
    found = candidates(schedule(both, np.ones((8, 130), a), np.ones((8, 130), b)), target)
    for c in found[:3]:
        assert not [*gate.refusals(c.schedule.compile(target).function, target)], c.words


def test_a_stencil_s_threads_share_loads_among_rows():
    a = np.ones((71, 40), np.float32)
    one, several = (next(s for s, words, _ in gpu_candidates(schedule(blur, a, a.copy()), targets.target("sm_90a"))
                         if words == x) for x in ("32 x 8 threads", "32 x 8 threads, 4 rows each"))
    several.check()
    blocks = [re.split(r"\bbra\b|L__BB", s.compile("sm_90a").asm) for s in (one, several)]
    assert [max(part.count("ld.global") for part in x) for x in blocks] == [5, 14]


def test_what_is_found_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", str(tmp_path / "tuning.jsonl"))
    monkeypatch.setattr(search, "_found", {})
    arrays = [integers(24, 24) for _ in range(3)]
    start = [x.copy() for x in arrays]
    nest = schedule(matmul, *arrays).nest
    events = []
    found = search.best(nest, arrays, time_limit=0.2, progress=events.append)
    assert all(np.array_equal(x, y) for x, y in zip(arrays, start))
    assert {"candidates", "checking", "compiling", "round"} <= {e["event"] for e in events}
    assert "times as fast as written" in str(found) or not found.schedule.steps
    rows = store.rows(store.KERNELS)
    assert {r.kernel for r in rows} == {"loops three_loops"}
    assert [r.role for r in rows].count("best") == 1
    found(*arrays)
    assert np.array_equal(arrays[2], start[2] + start[0] @ start[1])
    assert search.best(nest, arrays) is found

    monkeypatch.setattr(search, "_found", {})
    monkeypatch.setattr(search, "search", None)
    again = search.best(nest, arrays)
    assert (again.words, str(again.schedule)) == (found.words, str(found.schedule))


def test_nothing_is_kept_when_it_is_off(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", "off")
    monkeypatch.setattr(search, "_found", {})
    arrays = [integers(40, 40), integers(40, 40)]
    found = search.best(schedule(transposition, *arrays).nest, arrays, time_limit=0.1)
    found(*arrays)
    assert np.array_equal(arrays[1], arrays[0].T)


def test_ranks_without_the_device(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", "off")
    arrays = [integers(64, 64) for _ in range(3)]
    nest = schedule(matmul, *arrays).nest
    for options in ({"target": "neon"}, {"timed": False}):
        monkeypatch.setattr(search, "_found", {})
        found = search.best(nest, arrays, **options)
        assert found.measured is None
        assert found.schedule.steps
        assert "ranked, not timed" in str(found)
        assert found.ranks[0][0] == found.words


def test_arrays_that_share_memory_run_as_written(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", "off")
    monkeypatch.setattr(search, "_found", {})
    a = integers(40, 40)
    nest = schedule(transposition, a, a.copy()).nest
    assert not search.best(nest, [a, a]).schedule.steps


def test_another_text_is_no_schedule():
    s = case(matmul)
    x = s.split("i", 3).split("j", 2)
    assert str(trials.replayed(s, trials.operations_text(x))) == str(x)
    with pytest.raises(ValueError, match="no operation"):
        trials.replayed(s, '[["__init__", [], {}]]')


def test_time_steps_stay_outside_of_threads(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", "off")
    monkeypatch.setattr(search, "_found", {})
    monkeypatch.setattr(search, "PART", 0)
    monkeypatch.setattr(search, "get_num_threads", lambda: 2)
    arrays = [integers(40, 70), integers(40, 70)]
    expected = [x.copy() for x in arrays]
    s = schedule(stencil, *arrays)
    s(*expected)
    found = search.best(s.nest, arrays, time_limit=0.1)
    assert isinstance(found, search.Several)
    assert (found.times, len(found.parts)) == (2, 2)
    assert str(found).startswith("2 times, in turn: ")
    found(*arrays)
    assert all(np.array_equal(x, y) for x, y in zip(arrays, expected))


def test_what_is_called_in_turn():
    sm90 = targets.target("sm_90a")
    assert [search.in_turn(case(f), sm90, 1)[0] for f in (stencil, matmul, floyd, prefix)] == [2, 1, 1, 1]
    assert [len(search.in_turn(case(f), sm90, 1)[1]) for f in (stencil, matmul, floyd, prefix)] == [2, 1, 1, 2]
    assert search.in_turn(case(stencil), AVX512, 1) == (1, [case(stencil).nest])
    assert len(search.in_turn(case(rowsums), sm90, 1)[1]) == 1         # a scalar is in all of its statements


GPU = {
    matmul: [(64, 16), (16, 64), (64, 64)],
    transposition: [(70, 33), (33, 70)],
    mttkrp: [(5, 3, 4), (3, 70), (4, 70), (5, 70)],
    rowsums: [(260, 5), (260,)],
    product: [(5, 3), (3, 40), (5, 40), (40,)],
}


@pytest.mark.parametrize("f", GPU)
def test_launches(f):
    """Of a GPU: in the simulator, and as code for sm_90a."""
    sm90 = targets.target("sm_90a")
    found = candidates(schedule(f, *[integers(*shape) for shape in GPU[f]]), sm90)
    assert found[-1].words == "as written"
    assert all(any(x.mark == "thread.x" for x in c.schedule.now.loops) for c in found[:-1])
    assert any("shared memory" in c.words for c in found) == (f is matmul)
    for c in found[:-1]:
        c.schedule.check(most=1 << 18)
    assert ".entry" in found[0].schedule.compile(sm90).asm


@pytest.mark.parametrize("chip", ["sm_90a", "gfx942"])
def test_schedules_are_timed_on_the_gpu_that_has_the_arrays(monkeypatch, tmp_path, chip):
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", str(tmp_path / "tuning.jsonl"))
    monkeypatch.setattr(search, "_found", {})
    on = machine(monkeypatch, chip)
    wide, b = integers(70, 66), integers(33, 70)
    given = on.array(wide[:, ::2]), on.array(b)
    before = b.copy()
    fast, tried, call = tw.optimize(transposition, *given), list[str](), Compiled.__call__

    def first_fails(self, *args):
        tried.extend([self.asm] * (self.function.threads is not None))          # the check calls a CPU's
        if len(set(tried)) == 1:
            raise LibraryError("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", 701, "too many resources", "cuLaunchKernelEx")
        call(self, *args)
    assert "timed, the fastest of" in str(fast)
    monkeypatch.setattr(search, "_found", {})
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", "off")
    with monkeypatch.context() as broken:
        broken.setattr(Compiled, "__call__", first_fails)
        assert "timed, the fastest of" in str(tw.optimize(transposition, *given))
    monkeypatch.setenv("TILEWRIGHT_TUNE_DB", str(tmp_path / "tuning.jsonl"))
    on.finish()
    assert np.array_equal(b, before)
    assert {r.target for r in store.rows(store.KERNELS)} == {chip}
    fast(*given)
    on.finish()
    assert np.array_equal(b, wide[:, ::2].T)
    step = on.array(np.empty((33, 140), np.float32)[:, ::2])        # written, and not in C order: ranked alone
    assert "ranked, not timed: B is written" in str(tw.optimize(transposition, given[0], step))
