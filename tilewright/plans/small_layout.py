"""Where a team keeps small matrices in shared memory, and which elements of them a thread has: pads are found by
counting the passes of shared memory that its loads take, by the rule of targets/banks.py.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, gcd
from operator import itemgetter

from tilewright.forks import cached_property
from tilewright.plans.gpu_shape import SECTOR, WIDEST
from tilewright.targets import banks as of_targets
from tilewright.targets.banks import WORD, Banks

PADS = 2, 9         # vectors after a row, or after a matrix, fewer than so many


def power(*counts: int) -> int:
    """The largest power of two that divides all of these."""
    found = gcd(*counts)
    return found & -found


def whole(count: int, bytes: int) -> int:
    """So many elements, and what fills up the last vector."""
    return -(-count*bytes // WIDEST) * WIDEST // bytes


@dataclass(frozen=True)
class Lanes:
    """The COUNT lanes of a team, which has warps of WARP: DOWN x ACROSS of them share a matrix, the latter side by
    side, and TOGETHER matrices are multiplied at once; or one in PARTS, where it takes more lanes than there are. Lanes
    beyond have what the last one's have."""
    COUNT: int
    DOWN: int
    ACROSS: int
    WARP: int = 32

    @cached_property
    def EACH(self) -> int:
        return self.DOWN * self.ACROSS

    @cached_property
    def TOGETHER(self) -> int:
        return max(self.COUNT // self.EACH, 1)

    @property
    def PARTS(self) -> int:
        return ceil(self.EACH / self.COUNT)

    @property
    def IDLE(self) -> bool:
        """Whether there are lanes beyond."""
        return self.EACH * self.TOGETHER % self.COUNT > 0

    @cached_property
    def places(self) -> list[tuple[int, int, int]]:
        """(matrix, down, across) of every lane of the first warp, in the first part."""
        last, each, across = self.TOGETHER - 1, self.EACH, self.ACROSS
        return [(min(lane // each, last), lane % each // across, lane % each % across) for lane in range(self.WARP)]


@dataclass(frozen=True)
class Stored:
    """An operand: OUTER rows of INNER elements of BYTES, as they are contiguous in memory; ROW and MATRIX elements
    apart in shared memory. Of its rows (ALONG_K), or the columns that lie side by side, a lane has COUNT of what LANES
    lanes share: number e of lane u is

        ALONG_K     u + e*LANES                                     and vectors of WIDTH are steps of k
        else        (e // WIDTH)*LANES*WIDTH + u*WIDTH + e % WIDTH  and vectors of WIDTH are of one step

    which may lie beyond OUTER, or INNER: then it is the last, or stands at the beginning. COPIED elements of a row are
    copied at once; 0: rows are no whole vectors, and nothing is padded."""
    OUTER: int
    INNER: int
    BYTES: int
    ALONG_K: bool
    LANES: int
    COUNT: int
    WIDTH: int
    ROW: int
    MATRIX: int
    COPIED: int

    @property
    def starts(self) -> list[int]:
        """Where each lane begins to read."""
        if self.ALONG_K:
            return [min(lane, self.OUTER - 1) * self.ROW for lane in range(self.LANES)]
        return [lane*self.WIDTH if lane*self.WIDTH < self.INNER else 0 for lane in range(self.LANES)]

    @property
    def SIZE(self) -> int:
        """Elements of a matrix."""
        return self.OUTER * self.INNER

    def area(self, MATRICES: int) -> int:
        """Elements of shared memory for so many, whole vectors."""
        return whole(MATRICES * self.MATRIX, self.BYTES)


def operands(BYTES: int, LAYOUT: str, sizes: tuple[int, int, int], thread: tuple[int, int], copied: tuple[int, ...],
             lanes: Lanes) -> tuple[Stored, Stored]:
    """A and B of products of these sizes, m, n and k, of which a lane has `thread` rows and columns."""
    (M, N, K), of = sizes, of_targets.for_target(None, lanes.WARP)
    return (stored(*((M, K) if LAYOUT[0] == "n" else (K, M)), BYTES, LAYOUT[0] == "n", thread[0], copied[0], lanes,
                   True, of),
            stored(*((K, N) if LAYOUT[1] == "n" else (N, K)), BYTES, LAYOUT[1] == "t", thread[1], copied[1], lanes,
                   False, of))


def passes(x: Stored, lanes: Lanes, down: bool, banks: Banks) -> int:
    """Wavefronts of shared memory for one load of all lanes of a warp, beyond the fewest."""
    starts = x.starts
    at = [(matrix*x.MATRIX + starts[i if down else j]) * x.BYTES for matrix, i, j in lanes.places]
    return _passes(at, x.WIDTH*x.BYTES, True, banks)


def tile_passes(a: Stored, b: Stored, sizes: tuple[int, int], lanes: Lanes, banks: Banks) -> float:
    """For each number of C, M x N without gaps, that a lane stores there."""
    at, each = _of_c(a, b, sizes, lanes)
    bytes = each*b.BYTES
    return (banks.split(bytes, False).phases + _passes(at, bytes, False, banks)) / each


def beyond_whole(a: Stored, b: Stored, sizes: tuple[int, int], lanes: Lanes) -> float:
    """Bytes of the sectors of C that lanes of a warp touch with one store, over those that they store, less 1."""
    at, each = _of_c(a, b, sizes, lanes)
    touched = {byte // SECTOR for first in at for byte in (first, first + each*b.BYTES - 1)}
    return max(len(touched) * SECTOR / (len(set(at)) * each*b.BYTES) - 1, 0.0)


def _of_c(a: Stored, b: Stored, sizes: tuple[int, int], lanes: Lanes) -> tuple[list[int], int]:
    """Where in C, without gaps, each lane of a warp stores first, in bytes; how many numbers at once."""
    M, N = sizes
    found = []
    for matrix, i, j in lanes.places:
        row, column = i if a.ALONG_K else i*a.WIDTH, j if b.ALONG_K else j*b.WIDTH
        found.append((matrix*M*N + row*N + column) * b.BYTES)
    return found, 1 if b.ALONG_K else b.WIDTH


def _passes(at: list[int], size: int, load: bool, banks: Banks) -> int:
    """For accesses of so many bytes at these places by the lanes of a warp, beyond the fewest."""
    split = banks.split(size, load)
    words: list[dict[int, set[int]]] = [{} for _ in range(split.phases)]
    for phase, first in zip(split.phase, at):
        for word in range(first // WORD, first // WORD + max(size // WORD, 1)):
            words[phase].setdefault(word % split.banks, set()).add(word)
    most = [len(max(phase.values(), key=len, default=())) for phase in words]
    return sum(most) - split.phases


@lru_cache(maxsize=1024)
def stored(OUTER: int, INNER: int, BYTES: int, ALONG_K: bool, COUNT: int, COPIED: int, lanes: Lanes, down: bool,
           banks: Banks) -> Stored:
    """The layout with the fewest conflicts, and of those the smallest. COPIED elements of a row may be copied at once;
    `down`: these are the lanes that share it."""
    widest, LANES = WIDEST // BYTES, lanes.DOWN if down else lanes.ACROSS
    padded = COPIED*BYTES == WIDEST
    unit = widest if padded else 1
    WIDTH = power(widest, INNER) if ALONG_K else power(widest, INNER, COUNT)
    found: list[tuple[int, int, Stored]] = []
    for row in range(PADS[0] if padded else 1):
        for matrix in range(PADS[1] if padded else 1):
            ROW = INNER + row*unit
            each = Stored(OUTER, INNER, BYTES, ALONG_K, LANES, COUNT, WIDTH, ROW, OUTER*ROW + matrix*unit,
                          COPIED if padded else 0)
            found.append((passes(each, lanes, down, banks), each.MATRIX, each))
    return min(found, key=itemgetter(0, 1))[2]
