"""Operations keep what loops compute, round by round in Python; those that would not are refused."""
from __future__ import annotations

import numpy as np
import pytest

from tests.nests.cases import biased as product, dots, wave
from tests.nests.contractions import vector as dots_of_rows
from tests.nests.golden import three_loops as three
from tests.nests.interpreter import interpret
from tilewright.nests.schedules.schedule import schedule
from tilewright.nests.schedules.scheduled import Illegal


def lower_half(A, B, C):
    for i in range(A.shape[0]):
        for j in range(i + 1):
            for p in range(A.shape[1]):
                C[i, j] += A[i, p] * B[j, p]


def down(A):
    for i in range(7):
        for j in range(8):
            A[i + 1, j] = A[i, j] * 2


def transposed(A, B):
    for i in range(8):
        for j in range(8):
            B[i, j] = A[j, i] * 2


def two(A, B, C):
    for i in range(1, 8):
        B[i] = A[i] * 2
        C[i] = B[i - 1] + 1


def backwards(A, B):
    for i in range(1, 8):
        B[i] = A[i - 1]
        A[i] = B[i] + 1


def integers(*shape, seed=0):
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def exact(start, *schedules):
    """Each schedule writes the numbers that the one it started from writes."""
    def results(s):
        arrays = {name: integers(*x.shape, seed=n) for n, (name, x) in enumerate(s.now.arrays.items())}
        return interpret(s.now, arrays)
    want = results(start)
    for s in schedules:
        have = results(s)
        for name in want:
            assert np.array_equal(want[name], have[name]), (name, s.history, str(s))
    return schedules[-1]


def begin(f, *shapes):
    return schedule(f, *[np.zeros(x, np.float32) for x in shapes])


MATMUL = (11, 7), (7, 13), (11, 13)


@pytest.mark.parametrize("tail", ["cut", "predicate"])
def test_tails(tail):
    s = begin(three, *MATMUL)
    one = s.split("i", 4, "io", "ii", tail=tail)
    two = one.reorder("j", "io", "ii") if tail == "predicate" else one
    exact(s, one, two, two.split("p", 3, tail=tail).split("j", 5, tail=tail))


def test_a_split_that_does_not_divide_says_so():
    with pytest.raises(Illegal, match="i has 11 rounds, which 4 does not divide: tail="):
        begin(three, *MATMUL).split("i", 4)


def test_a_tail_can_be_scheduled():
    s = begin(three, *MATMUL)
    t = s.split("j", 4, "jo", "jl", tail="cut")
    exact(s, t, t.reorder("p", "jl").reorder("p.tail", "j.tail").vectorize("jl").unroll("j.tail"))


def test_any_order_of_a_product():
    import itertools
    s = begin(three, *MATMUL)
    for order in itertools.permutations("ijp"):
        exact(s, s.reorder(*order))
    split = s.split("p", 7, "po", "pi").split("i", 11, "io", "ii")
    later = split.reorder("pi", "ii", "j", "po", "io")
    assert "same order" in exact(s, later).history[-1]
    assert "another order" in s.split("p", 2, "po", "pi", tail="predicate").reorder("pi", "po").history[-1]


def test_fuse_is_the_inverse_of_split():
    s = begin(three, (12, 7), (7, 13), (12, 13))
    t = exact(s, s.split("i", 4, "io", "ii").fuse("io", "ii", "i"))
    assert str(t) == str(s)
    with pytest.raises(Illegal, match="no digits of one index"):
        s.fuse("i", "j")


def test_fission_takes_start_sum_and_end_apart():
    s = begin(product, *MATMUL, (13,))
    t = s.fission("j", 1).fission("i", "j")
    t = t.fission("j.2", "p").fission("i.2", "j.2")
    exact(s, t, t.reorder("p", "j.2"), t.reorder("p", "j.2").vectorize("j", "j.2"))
    assert [x.index for x in t.now.nodes] == ["i", "i.2", "i.3"]


def test_fission_gives_a_scalar_an_axis():
    s = begin(dots, (5, 6), (6,), (5,))
    t = exact(s, s.fission("i", 1).fission("i.2", "j"))
    assert t.now.buffers["s"].shape == (5,)


def test_what_a_later_part_gives_an_earlier_round_is_not_cut():
    s = begin(two, (8,), (8,), (8,))
    exact(s, s.fission("i", 1))
    with pytest.raises(Illegal, match=r"A is accessed before the cut in a later round of i(?s:.*)A\[i\] = B\[i\] \+ 1"):
        begin(backwards, (8,), (8,)).fission("i", 1)


def test_triangles_become_conditions():
    s = begin(lower_half, (7, 5), (7, 5), (7, 7))
    exact(s, s.reorder("p", "j"), s.reorder("j", "i"), s.split("j", 3, tail="predicate"),
          s.split("j", 3, "jo", "jj", tail="predicate").reorder("jo", "i", "p", "jj"))


def test_waves_keep_their_order():
    s = begin(wave, (8, 8))
    with pytest.raises(Illegal, match=r"A is written in one round and accessed in a later one \(distances i: -?1"):
        s.reorder("j", "i")
    exact(begin(down, (8, 8)), begin(down, (8, 8)).reorder("j", "i"))


@pytest.mark.parametrize(("loop", "place"), [("i", "block.x"), ("j", "block.x"), ("i", "worker")])
def test_rounds_that_meet_are_not_bound(loop, place):
    with pytest.raises(Illegal, match=f"A is written in one round and accessed in another.* rounds of {loop}"):
        begin(wave, (8, 8)).bind({loop: place})


def test_sums_are_not_bound():
    with pytest.raises(Illegal, match="C is added to in several rounds of p"):
        begin(three, *MATMUL).reorder("p", "i", "j").bind(p="block.x")


def test_bound_loops_are_outermost():
    s = begin(three, *MATMUL)
    with pytest.raises(Illegal, match="j must be outermost"):
        s.bind(j="thread.x")
    exact(s, s.bind(i="block.x", j="thread.x"))


@pytest.mark.parametrize(("loop", "why"), [("p", "has loops in it|added to"), ("i", "has loops in it")])
def test_vectors_are_innermost_and_independent(loop, why):
    with pytest.raises(Illegal, match=why):
        begin(three, *MATMUL).vectorize(loop)


def test_vectors_are_read_along_an_array():
    s = begin(transposed, (8, 8), (8, 8))
    assert "A[j, i] is read element by element, since they are 8 apart" in s.vectorize("j").history[-1]
    with pytest.raises(Illegal, match=r"B\[i, j\] moves by 8 elements from round to round of i, not by 1"):
        s.reorder("j", "i").vectorize("i")


@pytest.mark.parametrize("tail", ["divide", "predicate"])
@pytest.mark.parametrize("sizes", [(16, 32, 8), (11, 37, 7), (1, 1, 1)])
def test_packed_panels_and_registers(sizes, tail):
    m, n, k = sizes
    if tail == "divide" and m % 8:
        pytest.skip("has a tail")
    s = begin(three, (m, k), (k, n), (m, n))
    t = s.split("p", 4, "pc", "p", tail=tail).split("i", 8, "ic", "i", tail=tail).split("i", 4, "ir", "ii")
    t = t.split("j", 16, "jr", "j", tail=tail).split("j", 8, "jv", "jl")
    t = t.reorder("pc", "ic", "jr", "ir", "p", "ii", "jv", "jl")
    c = t.stage("C", "p", ("ii", "jv", "jl"), "registers")
    b = c.stage("B", "ic", ("jr", "p", "jv", "jl"))
    a = b.stage("A", "jr", ("ir", "p", "ii"))
    v = a.vectorize("jl", "C.jl", "B.jl").unroll("ii", "jv", "C.ii", "C.jv", "B.jv", "A.ii")
    u = v.unroll("p")
    exact(s, t, c, b, a, v, u)
    if sizes == (11, 37, 7):            # conditions are those of whole rows of tiles and whole rounds of p, if any
        assert "what C_reg has where -8*ic - ii - 4*ir + 10 < 0 is never read" in a.history[-1]
        assert "where -8*ic - 4*ir + 10 >= 0 and -p - 4*pc + 6 >= 0\n" in str(v)
        assert "where -p - 4*pc + 6 < 0 zeros are added" in u.history[-1]


def test_a_buffer_that_is_set_first_is_not_copied_in():
    s = begin(product, *MATMUL, (13,))
    t = exact(s, s.stage("C", inside="j", space="registers"))
    assert "set there and copied back" in t.history[-1]
    assert "C_reg = C[" not in str(t)


def test_one_number_that_a_condition_guards_is_copied_in():
    s = schedule(dots_of_rows, integers(5, 6), integers(6), integers(5)).split("i", 4, "io", "ii", tail="predicate")
    exact(s, s.stage("y", "j", (), "registers"))


def test_a_scalar_of_rounds_whose_number_varies_is_not_cut():
    def triangle(A, r):
        for i in range(5):
            for j in range(i + 1):
                s = 0.0
                for p in range(4):
                    s += A[j, p]
                r[i] = r[i] + s
    with pytest.raises(Illegal, match="s has numbers of one round of j"):
        schedule(triangle, integers(5, 4), integers(5)).fission("j", 1)


def test_elements_that_share_memory_are_not_written():
    a = np.lib.stride_tricks.as_strided(np.zeros(12, np.float32), (4, 4), (8, 4))
    with pytest.raises(Illegal, match="B is written here, and several of its elements are one number"):
        schedule(transposed, integers(8, 8), a)


def test_a_scalar_that_a_condition_guards_is_each_round_s_own():
    s = schedule(dots, integers(5, 6), integers(6), integers(5))
    exact(s, s.split("i", 4, "io", "ii", tail="predicate").bind(io="worker"))


def test_what_cannot_be_staged():
    s = begin(three, *MATMUL)
    with pytest.raises(Illegal, match=r"A\[i, p\] depends on p, which the buffer then has axes for"):
        s.stage("A", "p", ())
    with pytest.raises(Illegal, match="does not depend on j there"):
        s.stage("A", "j", ("p", "j"))
    with pytest.raises(Illegal, match="not inside of threads"):
        s.stage("A", "p", ("p",), "shared")
    with pytest.raises(Illegal, match="uses A in 2 ways"):
        begin(wave, (8, 8)).stage("A", "j", ("j",))
    with pytest.raises(Illegal, match="there is no loop q; there are i j p"):
        s.unroll("q")


def test_one_number_at_the_rim_is_copied_and_not_only_zeroed():
    def f(A, B, C):
        for i in range(5):
            for p in range(3):
                C[i] += A[i, p] * B[i]
    arrays = [integers(5, 3), integers(5, seed=1), integers(5, seed=2)]
    start = schedule(f, *arrays)
    s = start.split("i", 4, "io", "ii", tail="predicate").stage("B", inside="p")
    exact(start, s)
    with pytest.raises(Illegal, match="fuse takes two loops"):
        start.fuse("i", "i")


def test_a_variable_that_is_zeroed_outside_of_the_loop_that_sets_it():
    def f(C):
        u = 0
        for k in range(1, 4, 2):
            if k >= 3:
                u = -50
        for j in range(4):
            C[j] += u
    C = np.arange(4, dtype=np.float32)
    schedule(f, C)(C)
    assert C.tolist() == [-50, -49, -48, -47]


def test_buffers_of_one_round_are_not_cut_off_from_it():
    def f(A, B):
        for q in range(5):
            for j in range(4):
                for p in range(4):
                    B[q, j] += A[p, p] * A[j, j]

    with pytest.raises(Illegal, match="stage after fission"):
        schedule(f, integers(4, 4), integers(5, 4, seed=1)).stage("B", around="p", space="memory").fission("j", "p")
    with pytest.raises(Illegal, match="registers are of a thread"):
        schedule(f, integers(4, 4), integers(5, 4, seed=1)).bind(q="block.x", j="thread.x").stage("B", around="p")


@pytest.mark.parametrize("dtype", ["int8", "int16", "float16", "bfloat16"])
def test_masked_stores_of_one_lane_write_that_lane_alone(dtype):
    import ml_dtypes

    def f(C, D):
        for j in range(4):
            for q in range(9):
                C[j, q] = C[j, q] + D[q]
    C = np.arange(36).reshape(4, 9).astype(getattr(ml_dtypes, dtype, None) or dtype)
    D = np.arange(9, dtype=np.int32 if "int" in dtype else np.float32)
    want = (C + D).astype(C.dtype)
    schedule(f, C, D).split("q", 16, "qo", "ql", tail="predicate").vectorize("ql", lanes=8)(C, D)
    assert np.array_equal(C, want)
