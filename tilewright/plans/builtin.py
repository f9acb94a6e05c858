"""Small products that the emitted builtin runs without Python, and by which algorithm."""
from __future__ import annotations

from tilewright.plans.cpu import MOST_ROW_DOTS
from tilewright.plans.cpu_shape import ITEMSIZE, Shape
from tilewright.targets.cpu import CpuTarget

SMALL_SHARE, SMALL_BYTES = 0.57, 600_000     # of L2, and at most so much, for one operand: reading in place is fastest
# The same in sizes of L1, where tiles have 16 registers and half of a cache line of B: A by rows, and by columns, of
# which a panel has only a part of each line: from a Zen 3, where packing is as fast there.
SMALL_L1 = {"rows": 4.5, "columns": 2.9}
# Bytes of that operand on a Xeon where A lies by columns: f32 371 x 274 x 260 took 1.12 of its time packed.
SMALL_COLUMNS = 300_000
BUILTIN = ("f32", "f64")            # formats of the products that the emitted builtin runs without Python
LONG = 64               # steps of k of few rows and columns, above which the builtin leaves them to a record
PANEL_DEPTH = 256       # steps of k: the builtin packs a panel of a small B with contiguous columns on the stack
# Rows of A, contiguous, by columns of B: with fewer than FEW_LINES of either and more steps than LONG_LINES tiles of
# dot products take them, from a record: from a Zen 4, where both take the same time there.
FEW_LINES, LONG_LINES = 28, 96
# Multiplications in parts from which all threads that sleep are woken, and one of them: that costs the caller
# microseconds. On 16 vCPUs of a Xeon 100^3, which woke none, ran at the speed of one thread for ever.
WAKE_ABOVE, WAKE_ONE = 1_500_000, 600_000


def stays_in_cache(shape: Shape, target: CpuTarget) -> bool:
    """Whether the emitted builtin runs a product without Python: it is small, and readable in place but for panels of
    B, which the builtin packs."""
    m, n, k = shape.m, shape.n, shape.k
    if shape.dtype not in BUILTIN or shape.semiring or few_by_long(shape):
        return False
    depth = LONG_LINES if shape.a == "rows" and 1 < min(m, n) < FEW_LINES else PANEL_DEPTH
    along = shape.b == "columns" and (k <= depth or m == 1)
    return ((shape.b == "rows" or along) and shape.a != "any" and not shape.converts and not shape.scattered
            and max(m * k, k * n, m * n) <= small_elements(shape.dtype, target, shape.a))


def few_by_long(shape: Shape) -> bool:
    """Whether a vector is multiplied by a matrix of so few contiguous columns, or rows, that `stream` would wait for
    its sums, and each of these is long: `dots` by rows takes it."""
    along = shape.b == "rows" if shape.m == 1 else shape.n == 1 and shape.a == "columns"
    return along and 1 < max(shape.m, shape.n) <= MOST_ROW_DOTS and shape.k >= LONG


def small_way(shape: Shape) -> tuple[str, bool]:
    """The algorithm by which the emitted builtin multiplies what stays in cache, and whether operands change places: a
    matrix by a vector, or a vector by a matrix, is read along its rows, and two vectors are one dot product."""
    if shape.n == 1:
        return ("dots", False) if shape.a == "rows" or shape.m == 1 else ("stream", True)
    if shape.m == 1:
        return ("stream", False) if shape.b == "rows" else ("dots", True)
    return "in_place", False


def small_elements(dtype: str, target: CpuTarget, a: str = "rows") -> int:
    """The most elements of A, B or C that are multiplied in place and without choosing; `a`: A's rows or columns are
    contiguous."""
    most = min(int(SMALL_SHARE * target.l2), SMALL_BYTES)
    if a == "columns" and target.model.startswith("Intel"):
        most = min(most, SMALL_COLUMNS)
    if target.tile_registers == 16:
        most = min(most, int(SMALL_L1["columns" if a == "columns" else "rows"] * target.l1d))
    return most // ITEMSIZE[dtype]
