"""Which process has which elements of a distributed matrix: by blocks in turns, as ScaLAPACK does, or by ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
BLOCK_CYCLIC = 1  # the kind of matrix that a descriptor says it is: ScaLAPACK's DTYPE_ for dense ones
DESCRIPTOR = ("dtype", "ctxt", "m", "n", "mb", "nb", "rsrc", "csrc", "lld")


class Grid(NamedTuple):
    """Processes as rows x columns x layers. Each computes a tile of C, over its layer's part of k."""

    rows: int
    cols: int
    layers: int = 1

    @property
    def size(self) -> int:
        return self.rows * self.cols * self.layers

    def rank(self, i: int, j: int, layer: int = 0) -> int:
        return (layer * self.rows + i) * self.cols + j

    def place(self, rank: int) -> tuple[int, int, int] | None:
        """(row, column, layer) of a rank; None: it is outside the grid, and has nothing to compute."""
        if rank >= self.size:
            return None
        layer, rest = divmod(rank, self.rows * self.cols)
        return *divmod(rest, self.cols), layer

    def __str__(self) -> str:
        return " x ".join(map(str, self if self.layers > 1 else self[:2]))


@dataclass(frozen=True)
class Cyclic:
    """Indices 0 ... length - 1 in blocks, which `parts` parts take in turns, beginning with part `first`."""

    length: int
    block: int
    parts: int
    first: int = 0

    def indices(self, part: int) -> Indices:
        return _cyclic(self, part)

    def count(self, part: int) -> int:
        """How many indices a part has: ScaLAPACK's NUMROC."""
        blocks, rest = divmod(self.length, self.block)
        turns, more = divmod(blocks, self.parts)
        at = (part - self.first) % self.parts
        return turns * self.block + (self.block if at < more else rest if at == more else 0)

    def bounds(self) -> list[int]:
        """Where another part may begin."""
        return list(range(0, self.length, self.block)) if self.parts > 1 else [0]


@dataclass(frozen=True)
class Ranges:
    """Indices in one range for each part: part p has ends[p - 1] ... ends[p] - 1."""

    ends: tuple[int, ...]

    @property
    def length(self) -> int:
        return self.ends[-1]

    @property
    def parts(self) -> int:
        return len(self.ends)

    def range(self, part: int) -> tuple[int, int]:
        return (self.ends[part - 1] if part else 0), self.ends[part]

    def indices(self, part: int) -> Indices:
        return np.arange(*self.range(part), dtype=np.int64)

    def count(self, part: int) -> int:
        begin, end = self.range(part)
        return end - begin

    def bounds(self) -> list[int]:
        return [0, *self.ends[:-1]]


Axis = Cyclic | Ranges


@lru_cache(maxsize=256)
def _cyclic(axis: Cyclic, part: int) -> Indices:
    turn = axis.block * axis.parts
    begins = np.arange((part - axis.first) % axis.parts * axis.block, axis.length, turn, dtype=np.int64)
    every = (begins[:, None] + np.arange(axis.block, dtype=np.int64)).ravel()
    return every[every < axis.length]


def even(length: int, parts: int, unit: int = 1) -> Ranges:
    """Ranges as equal as can be, which begin at multiples of `unit`."""
    units = -(-length // unit)
    return Ranges(tuple(min(length, units * (p + 1) // parts * unit) for p in range(parts)))


def _whole(value: Any, least: int) -> bool:
    """Whether these are two whole numbers, so large or larger."""
    try:
        return len(value) == 2 and all(int(x) == x >= least for x in value)
    except (TypeError, ValueError):
        return False


@dataclass(frozen=True)
class Layout:
    """How a matrix lies on a grid of processes: rows by one axis, columns by the other.

    rows, cols  for each axis who has which index: a Cyclic (Layout.cyclic, and descriptors of ScaLAPACK) or Ranges
    ranks       the rank of each process of the grid, row after row; (): 0, 1, 2 ... Ranks that are missing have no
                elements

    Layouts are equal if they have the same fields.
    """

    rows: Axis
    cols: Axis
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        count = self.rows.parts * self.cols.parts
        if not self.ranks:
            object.__setattr__(self, "ranks", tuple(range(count)))
        if sorted(set(self.ranks)) != sorted(self.ranks) or len(self.ranks) != count:
            raise ValueError(f"ranks must be {count} different ranks, one for each process of a grid of "
                             f"{self.rows.parts} x {self.cols.parts}, not {self.ranks}")

    @classmethod
    def cyclic(cls, shape: Sequence[int], blocks: Sequence[int], grid: Sequence[int], first: Sequence[int] = (0, 0),
               ranks: Sequence[int] = ()) -> Layout:
        """Blocks of blocks[0] x blocks[1] elements, which the rows and columns of a grid of grid[0] x grid[1] processes
        take in turns; process (first[0], first[1]) has the first block.

        ValueError for a size below 0, and for a block, a grid or a first process that there cannot be.
        """
        given = (("shape", shape, 0, None), ("blocks", blocks, 1, None), ("grid", grid, 1, None),
                 ("first", first, 0, grid))
        for name, value, least, below in given:
            if not _whole(value, least):
                raise ValueError(f"{name} must be two whole numbers, {least} or more, not {value!r}")
            if below is not None and any(x >= y for x, y in zip(value, below)):
                raise ValueError(f"{name} must be a process of the grid of {below[0]} x {below[1]}, not {tuple(value)}")
        rows, cols = (Cyclic(*map(int, x)) for x in zip(shape, blocks, grid, first))
        return cls(rows, cols, tuple(map(int, ranks)))

    @classmethod
    def blocks(cls, shape: Sequence[int], grid: Sequence[int]) -> Layout:
        """One block for each process, as large as that of the others but at the ends."""
        one = cls.cyclic(shape, (1, 1), grid)           # which checks both
        return cls.cyclic(shape, [max(1, -(-x.length // x.parts)) for x in (one.rows, one.cols)], grid)

    @classmethod
    def of_descriptor(cls, descriptor: Sequence[int], grid: Sequence[int], order: str = "row") -> Layout:
        """The layout that nine numbers describe, ScaLAPACK's array descriptor: (1, context, m, n, mb, nb, rsrc, csrc,
        lld). grid: the processes' rows and columns. order: "row" or "column", as BLACS_GRIDINIT numbers them.

        ValueError for other kinds of matrix, and for numbers that there cannot be.
        """
        if np.ndim(descriptor) != 1 or len(descriptor) != 9:
            raise ValueError(f"descriptor must have 9 numbers, {', '.join(DESCRIPTOR)}, not {descriptor!r}")
        if descriptor[0] != BLOCK_CYCLIC:
            raise ValueError(f"descriptor must begin with {BLOCK_CYCLIC}, a dense block-cyclic matrix, not "
                             f"{descriptor[0]}")
        if order not in ("row", "column"):
            raise ValueError(f'order must be "row" or "column", not {order!r}')
        _, _, m, n, mb, nb, rsrc, csrc, _ = map(int, descriptor)
        rows, cols = map(int, grid)
        ranks = range(rows * cols) if order == "row" else [j * rows + i for i in range(rows) for j in range(cols)]
        return cls.cyclic((m, n), (mb, nb), (rows, cols), (rsrc, csrc), tuple(ranks))

    def descriptor(self, rank: int, context: int = 0) -> tuple[int, ...]:
        """ScaLAPACK's descriptor of the part of this rank, which is stored by columns without gaps. ValueError for a
        layout by ranges, which it cannot describe."""
        rows, cols = self.rows, self.cols
        if not isinstance(rows, Cyclic) or not isinstance(cols, Cyclic):
            raise ValueError("a descriptor describes blocks that processes take in turns, and this layout has ranges: "
                             "redistribute(Layout.cyclic(...)) first")
        lld = max(1, self.local_shape(rank)[0])
        return (BLOCK_CYCLIC, context, rows.length, cols.length, rows.block, cols.block, rows.first, cols.first, lld)

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.length, self.cols.length

    @property
    def grid(self) -> tuple[int, int]:
        return self.rows.parts, self.cols.parts

    @property
    def T(self) -> Layout:
        """The layout of the transposed matrix: nothing moves."""
        p, q = self.grid
        return Layout(self.cols, self.rows, tuple(self.ranks[i * q + j] for j in range(q) for i in range(p)))

    def rank(self, p: int, q: int) -> int:
        return self.ranks[p * self.cols.parts + q]

    def place(self, rank: int) -> tuple[int, int] | None:
        """(row, column) of the process; None: it has no elements."""
        return divmod(self.ranks.index(rank), self.cols.parts) if rank in self.ranks else None

    def local_shape(self, rank: int) -> tuple[int, int]:
        at = self.place(rank)
        return (0, 0) if at is None else (self.rows.count(at[0]), self.cols.count(at[1]))

    def local_indices(self, rank: int) -> tuple[Indices, Indices]:
        """The numbers of the rows and of the columns that a rank has."""
        at = self.place(rank)
        none = np.arange(0, dtype=np.int64)
        return (none, none) if at is None else (self.rows.indices(at[0]), self.cols.indices(at[1]))

    def __str__(self) -> str:
        ways = [f"blocks of {x.block}" + f" from {x.first}" * (x.first > 0) if isinstance(x, Cyclic) else
                f"ranges to {', '.join(map(str, x.ends))}" for x in (self.rows, self.cols)]
        moved = "" if self.ranks == tuple(range(len(self.ranks))) else f", ranks {self.ranks}"
        return (f"{self.shape[0]} x {self.shape[1]} on {self.grid[0]} x {self.grid[1]}, rows by {ways[0]}, columns by "
                f"{ways[1]}{moved}")


def slices(indices: Indices) -> slice | Indices:
    """These rising numbers as a slice where they are neighbours: a view instead of a copy."""
    n = len(indices)
    return slice(int(indices[0]), int(indices[-1]) + 1) if n and indices[-1] - indices[0] == n - 1 else \
        slice(0, 0) if not n else indices


def select(array: NDArray[Any], rows: Indices, cols: Indices) -> NDArray[Any]:
    """These rows and columns of an array; a view where both are neighbours."""
    r, c = slices(rows), slices(cols)
    return array[np.ix_(rows, cols)] if not isinstance(r, slice) and not isinstance(c, slice) else array[r, c]
