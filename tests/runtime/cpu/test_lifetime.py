"""Whoever holds the address of a table of micro-kernels keeps the table: jobs and contexts point to it, and it is freed
like any array when nobody does."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from tilewright.plans.choose import choose
from tilewright.plans.cpu import CpuPlan
from tilewright.plans.cpu_shape import Shape, Strides
from tilewright.runtime.cpu import host, small
from tilewright.runtime.cpu.recipe import Recipe
from tilewright.targets import detect

LANES = detect().lanes(4)
SHAPE, STRIDES = Shape("f32", 20, 2 * LANES, 30, "rows", "rows"), Strides(30, 1, 2 * LANES, 1, 2 * LANES, 1)


@pytest.fixture
def tables(monkeypatch):
    """Weak references to the tables that are made during the test, with no cache that keeps them."""
    made = []

    class Watched(host.Microkernels):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(weakref.ref(self.table))

    host.host._tables.clear()
    monkeypatch.setattr(host, "Microkernels", Watched)
    yield made
    host.host._tables.clear()


def forget_tables():
    host.host._tables.clear()
    gc.collect()


@pytest.mark.parametrize("text", [f"packed 6x{LANES} mc=12 kc=16 nc={LANES}", f"in_place 6x{LANES}"])
def test_a_recipe_keeps_its_table(tables, text):
    recipe = Recipe(SHAPE, STRIDES, CpuPlan.parse(text), detect())
    forget_tables()
    (table,) = tables
    assert table() is not None
    assert recipe.template[recipe.at["table"]] == table().ctypes.data
    a, b = np.ones((20, 30), np.float32), np.ones((30, 2 * LANES), np.float32)
    c = np.empty((20, 2 * LANES), np.float32)
    recipe.run(a.ctypes.data, b.ctypes.data, c.ctypes.data, 1.0, 0.0)
    assert (c == 30).all()
    del recipe
    gc.collect()
    assert table() is None  # so that it was the recipe that kept it


def test_the_context_of_the_builtin_keeps_its_tables(tables, monkeypatch):
    monkeypatch.setattr(small, "_contexts", {})
    monkeypatch.setattr(small, "_entry", None)
    small.offer(SHAPE, choose(SHAPE, detect()), detect())
    forget_tables()
    context = small._contexts["f32"][1]
    assert len(tables) == 2
    for table, field in zip(tables, ("rows", "columns")):
        assert table() is not None
        assert context[small.SMALL.index(field)] == table().ctypes.data
    small._contexts.clear()
    gc.collect()
    assert [table() for table in tables] == [None, None]
