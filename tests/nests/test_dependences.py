"""Distances beside all pairs of rounds, one by one."""
from __future__ import annotations

import itertools
import random

import numpy as np

from tests.nests.cases import dots, wave
from tilewright.nests.nest import Access
from tilewright.nests.polynomial import Polynomial, polynomial
from tilewright.nests.schedules.dependences import ANY, dependences, distances
from tilewright.nests.schedules.schedule import schedule


def pairs(a, b, loops, extents):
    """All distances of rounds in which a and b are one element."""
    rounds = [dict(zip(loops, r)) for r in itertools.product(*[range(extents[x]) for x in loops])]
    where = {}
    for r in rounds:
        where.setdefault(tuple([p.value(r) for p in a.subscripts]), []).append(r)
    return {tuple([s[x] - r[x] for x in loops]) for s in rounds
            for r in where.get(tuple([p.value(s) for p in b.subscripts]), ())}


def covered(found, d):
    return any(all(x in (ANY, y) for x, y in zip(f, d)) for f in found)


def subscript(r, loops, like=None):
    if like is not None and r.random() < 0.7:
        return like + r.randint(-3, 3)
    terms = [((x,), r.choice([-4, -2, -1, 0, 0, 1, 1, 2, 3, 6])) for x in loops]
    return Polynomial([*terms, ((), r.randint(-3, 3))])


def test_no_pair_of_rounds_is_missed():
    for seed in range(400):
        r = random.Random(seed)
        loops = ["i", "j", "p"][:r.randint(1, 3)]
        extents = {x: r.randint(1, 6) for x in loops}
        within = {x: (0, n - 1) for x, n in extents.items()}
        axes = r.randint(1, 2)
        a = Access("A", tuple([subscript(r, loops) for _ in range(axes)]))
        b = Access("A", tuple([subscript(r, loops, x) for x in a.subscripts]))
        found, true = distances(a, b, loops, within, within), pairs(a, b, loops, extents)
        assert all(covered(found, d) for d in true), (a, b, extents, found, true)


def test_distances_are_exact_where_strides_nest():
    """Splits make such subscripts: i = 8 io + ii."""
    loops = ["x", "y", "z"]
    for seed in range(100):
        r = random.Random(seed)
        extents = {x: r.randint(1, 5) for x in loops}
        within = {x: (0, n - 1) for x, n in extents.items()}
        order = r.sample(loops, 3)
        p, stride = polynomial(r.randint(-2, 2)), 1
        for x in order:
            p, stride = p + polynomial(x) * stride * r.choice([-1, 1]), stride * (2 * extents[x] + r.randint(0, 1))
        a, b = Access("A", (p,)), Access("A", (p + r.randint(-9, 9),))
        assert {*distances(a, b, loops, within, within)} == pairs(a, b, loops, extents), seed


def halves(A):
    for i in range(4):
        for j in range(8):
            A[2 * i, j] = A[2 * i + 1, j] * 2


def found(f, *shapes):
    s = schedule(f, *[np.zeros(x, np.float32) for x in shapes])
    return list(dependences(s.now.nodes))


def test_a_wave_has_one_distance():
    assert [d.distances for d in found(wave, (8, 8))] in ([(-1, 1)], [(1, -1)])


def test_even_and_odd_rows_never_meet():
    assert not [d for d in found(halves, (8, 8)) if any(d.distances)]


def test_a_scalar_that_each_round_sets_first_is_its_own():
    carried = [d for d in found(dots, (4, 5), (5,), (4,)) if d.distance("i")]
    assert not carried
