"""Schedules that stand in the tests as text: three loops as BLIS's micro-kernel, and the steps of a lecture on GPUs."""
from __future__ import annotations


def three_loops(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            for p in range(A.shape[1]):
                C[i, j] += A[i, p] * B[p, j]


def micro_kernel(s, MR=8, NV=2, V=16, MC=128, KC=512, tail="divide", worker=False):
    """The five loops around a tile of MR x NV vectors of V, A and B packed: each step a schedule. The lecture of the
    CPU's article: 6 x 16 on AVX2 is MR=6, V=8."""
    yield (s := s.split("p", KC, "pc", "p", tail=tail))
    yield (s := s.split("i", MC, "ic", "i", tail=tail))
    yield (s := s.split("i", MR, "ir", "ii"))
    yield (s := s.split("j", NV * V, "jr", "j", tail=tail))
    yield (s := s.split("j", V, "jv", "jl"))
    order = ("ic", "pc") if worker else ("pc", "ic")
    yield (s := s.reorder(*order, "jr", "ir", "p", "ii", "jv", "jl"))
    if worker:
        yield (s := s.bind(ic="worker"))
    yield (s := s.stage("C", "p", ("ii", "jv", "jl"), "registers"))
    yield (s := s.stage("B", "jr" if worker else "ic", ("jr", "p", "jv", "jl")))
    yield (s := s.stage("A", "jr", ("ir", "p", "ii")))
    yield (s := s.vectorize("jl", "C.jl", "B.jl"))
    yield (s := s.unroll("ii", "jv", "C.ii", "C.jv", "B.jv", "A.ii"))


def launch(s, L, V, order):
    """L x L of C for each CTA, V x V of it for each thread."""
    s = s.split("i", L, "bi", "i").split("i", V, "ti", "ii").split("j", L, "bj", "j").split("j", V, "tj", "jj")
    return s.reorder("bi", "bj", "ti", "tj", *order).bind(bi="block.y", bj="block.x", ti="thread.y", tj="thread.x")


def v1(s, L=16):
    s = s.split("i", L, "bi", "ti").split("j", L, "bj", "tj").reorder("bi", "bj", "ti", "tj", "p")
    s = s.bind(bi="block.y", bj="block.x", ti="thread.y", tj="thread.x")
    return s.stage("C", "p", (), "registers")


def v15(s, L=32, V=4):
    s = launch(s, L, V, ("p", "ii", "jj")).stage("C", "p", ("ii", "jj"), "registers")
    return s.stage("A", "jj", (), "registers")


def v2(s, L=32, V=4):
    s = launch(s, L, V, ("p", "ii", "jj")).stage("C", "p", ("ii", "jj"), "registers")
    return s.stage("B", "ii", ("jj",), "registers").stage("A", "jj", (), "registers")


def v3(s, L=32, S=8, V=4):
    s = launch(s.split("p", S, "po", "p"), L, V, ("po", "p", "ii", "jj"))
    s = s.stage("C", "po", ("ii", "jj"), "registers")
    s = s.stage("A", "p", ("ti", "ii", "p"), "shared").stage("B", "p", ("p", "tj", "jj"), "shared")
    return s.stage("B_shared", "ii", ("jj",), "registers").stage("A_shared", "jj", (), "registers")


def v4(s, L=128, S=8, V=8):
    """128 x 128 x 8: A transposed in shared memory, vectors from both, the loop over p unrolled."""
    s = launch(s.split("p", S, "po", "p"), L, V, ("po", "p", "ii", "jj"))
    s = s.stage("C", "po", ("ii", "jj"), "registers")
    s = s.stage("A", "p", ("p", "ti", "ii"), "shared").stage("B", "p", ("p", "tj", "jj"), "shared")
    s = s.stage("B_shared", "ii", ("jj",), "registers").stage("A_shared", "ii", ("ii",), "registers")
    return s.vectorize("B_shared.jj", "A_shared.ii", lanes=4).unroll("p", "ii", "jj", "C.ii", "C.jj")


def tensor_cores(s, L=128, W=64, S=32, k=16, stages=None, tail="divide"):
    """mma.sync by warps of W x W, A and B in padded rows of shared memory."""
    s = s.split("p", S, "po", "p", tail=tail).split("p", k, "pi", "pp")
    for x, w, m, t, n in (("i", "wi", "mi", "ii", 16), ("j", "wj", "nj", "jj", 8)):
        s = s.split(x, L, f"b{x}", x, tail=tail).split(x, W, w, x).split(x, n, m, t)
    s = s.reorder("bi", "bj", "wi", "wj", "po", "pi", "mi", "nj", "ii", "jj", "pp")
    s = s.bind(bi="block.y", bj="block.x", wi="thread.y", wj="thread.x")
    s = s.stage("C", "po", ("mi", "nj", "ii", "jj"), "registers")
    s = s.stage("A", "pi", ("wi", "mi", "ii", "pi", "pp"), "shared")
    s = s.stage("B", "pi", ("pi", "pp", "wj", "nj", "jj"), "shared")
    s = s.stage("A_shared", "mi", ("mi", "ii", "pp"), "registers")
    s = s.stage("B_shared", "mi", ("nj", "pp", "jj"), "registers")
    s = s.unroll("mi", "nj", "A_shared.mi", "B_shared.nj", "C.mi", "C.nj", "pi")
    s = s.vectorize("A.pp", "B.jj", lanes=16 // s.now.element("A").bytes)
    if stages:
        s = s.pipeline("po", stages)
    return s.tensorize("ii", "jj", "pp")


def v5(s, L=128, S=8, stages=2, by="registers", tail="divide"):
    """As the GPU's article: 8 x 8 for each thread in four blocks of 4 x 4, vectors from and to memory, A transposed in
    rows of 132, double buffers."""
    s = s.split("p", S, "po", "p", tail=tail)
    for x, y in (("i", "ti"), ("j", "tj")):
        s = s.split(x, L, f"b{x}", x, tail=tail).split(x, L // 2, f"{x}h", x).split(x, 4, y, f"{x}l")
    s = s.reorder("bi", "bj", "ti", "tj", "po", "p", "ih", "il", "jh", "jl")
    s = s.bind(bi="block.y", bj="block.x", ti="thread.y", tj="thread.x")
    s = s.stage("C", "po", ("ih", "il", "jh", "jl"), "registers")
    s = s.stage("A", "p", ("p", "ih", "ti", "il"), "shared", pad=4).stage("B", "p", ("p", "jh", "tj", "jl"), "shared")
    s = s.reorder("A.ih", "A.ti", "A.p", "A.il")
    s = s.stage("B_shared", "ih", ("jh", "jl"), "registers").stage("A_shared", "ih", ("ih", "il"), "registers")
    s = s.vectorize("A.il", "B.jl", "B_shared.jl", "A_shared.il").vectorize("C.jl")
    s = s.unroll("p", "ih", "il", "jh", "jl", "C.ih", "C.il", "C.jh", "A_shared.ih", "B_shared.jh")
    return s.pipeline("po", stages, by=by)
