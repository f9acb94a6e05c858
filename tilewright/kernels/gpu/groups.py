"""Groups of a product whose sizes only the device knows: of rows of A, each with a B of its own, or of steps of k, each
with a C of its own (runtime/gpu/grouped.py).

A kernel for groups is one for a batch, whose matrices are the groups, and reads where they end: `offsets`, i32. A
stride of 0 says which operands all groups share; rows, and steps of k, are counted from the beginning of these.
"""
from __future__ import annotations

from types import SimpleNamespace

from tilewright.ir import Kernel, Value, i32, i64
from tilewright.kernels.gpu import fused

BESIDE_B = "stride_of_b_"
GROUPED = "", "m", "k"      # what offsets divide: nothing, rows of A, or steps of k


def begin(k: Kernel, g: SimpleNamespace, group: Value) -> Value:
    """The first row, or step of k, of a group."""
    return k.select(group > 0, k.load(g.offsets + k.max(group - 1, 0)), 0)


def end(k: Kernel, g: SimpleNamespace, group: Value) -> Value:
    return k.load(g.offsets + group)


def clear(k: Kernel, g: SimpleNamespace, EPILOGUE: str, THREADS: int) -> None:
    """Zeros for rows of C, and of further results, that belong to no group: all workgroups share them, a row each.
    Before anything else, since g.m becomes a group's end."""
    columns = g.n // fused.sums(EPILOGUE)
    with k.loop(g.m, start=end(k, g, g.batch - 1) + k.block[0], step=k.grid[0], unroll=False) as row:
        for c, ld in [(g.c, g.ldc), *fused.beside(g, EPILOGUE)]:
            at = c + k.cast(row, i64)*ld
            with k.loop(columns, start=k.thread[0], step=THREADS, unroll=False) as j:
                at[j] = 0


def slots(g: SimpleNamespace, HEIGHT: int) -> Value:
    """Places for tiles of so many rows: each group has one more than whole tiles begin in it, so that where its places
    begin follows from its first row alone. At most one of them has no rows."""
    return g.m // HEIGHT + g.batch


def of_slot(k: Kernel, g: SimpleNamespace, slot: Value, HEIGHT: int) -> Value:
    """The first row of the tile at this place; g becomes that of the group: `matrix` its number, `m` its end, `b` its
    matrix. A place without a tile begins at the end, or after it."""
    low, high = k.variable(i32, 0), k.variable(i32, g.batch - 1)

    def first(group: Value) -> Value:
        return begin(k, g, group) // HEIGHT + group
    with k.while_(lambda: low.get() < high.get()):          # the last group whose places begin here or before
        middle = (low.get() + high.get() + 1) // 2
        there = first(middle) <= slot
        high.set(k.select(there, high.get(), middle - 1))
        low.set(k.select(there, middle, low.get()))
    group = low.get()
    row = begin(k, g, group) + (slot - first(group))*HEIGHT
    g.matrix, g.m = group, end(k, g, group)
    g.b = g.b + k.cast(group, i64)*g.stride_b
    move_beside_b(k, g, SimpleNamespace(**vars(g)), group)
    return row


def move_beside_b(k: Kernel, g: SimpleNamespace, first: SimpleNamespace, group: Value) -> None:
    """Move the pointers in g to arrays that a prologue of B reads to this group; `first` has those of group 0."""
    for name in [x for x in vars(g) if x.startswith(BESIDE_B)]:
        pointer = name.removeprefix("stride_")
        setattr(g, pointer, getattr(first, pointer) + k.cast(group, i64)*getattr(g, name))
