"""What a CPU plan costs, by counting: multiply-adds issued, and bytes that cross each level of the memory.

Pure arithmetic on a Shape, a CpuPlan and a target. `tilewright explain` prints it beside what was measured; the planner
takes the plan with the least `seconds`.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, gcd

from tilewright.plans import epilogues, few_rows, prologues, semirings, tile_model
from tilewright.plans.builtin import stays_in_cache
from tilewright.plans.common import Cost, Term, total
from tilewright.plans.cpu import COMPLEX_DEPTH, PARTS, SHORT, CpuPlan
from tilewright.plans.cpu_shape import Shape, Strides
from tilewright.plans.tile_model import ROOM, beyond_l2, crowded, crowds, lost_panel, overfull
from tilewright.plans.words import BY_NAME
from tilewright.targets.cpu import CpuTarget


@dataclass(frozen=True)
class Ceilings:
    """What one core can do at most: multiply-add vectors per second, and bytes per second from each level.

    The defaults are a 3.5 GHz core that issues one widest multiply-add a cycle; only their ratios matter for a choice.
    """
    vectors: float = 3.5e9
    l2: float = 100e9
    l3: float = 35e9
    memory: float = 20e9


@lru_cache(maxsize=256)
def of_threads(threads: int) -> Ceilings:
    """What one of so many threads can do at most."""
    alone, slower = Ceilings(), 1 + CROWDED*(threads - 1)
    return Ceilings(alone.vectors / slower, alone.l2 / slower, alone.l3 / slower, alone.memory / slower)


def _cost(vectors: int, traffic: Mapping[str, tuple[Term, ...]], parts: tuple[tuple[str, float], ...]) -> Cost:
    """Totals over all threads, but `parts`, the seconds of the slowest one by cause. Traffic by level. L1:
    what micro-kernels load and store. L2, L3: what crosses from there to the level before. memory: both ways."""
    seconds = [x for _, x in parts]         # a list, as below: a generator is entered for each
    return Cost(sum(seconds), parts, traffic, vectors=vectors)


SUMMING = 2                 # vectors' worth of time to add up a dot product's lanes, and store it
CALL = 60                   # vectors' worth of time that a micro-kernel call costs beside its multiply-adds
CHAINS = 10                 # sums of a tile that keep multiply-adds of four or five cycles busy, two a cycle
CROWDED = 0.04              # of a thread's time, longer for each other one: they share cores, clock, L3 and memory
HIDDEN = 0.75               # of arithmetic's time in which prefetching hides traffic beyond L2, in packed plans
START, START_EACH = 10e-6, 2.8e-7  # seconds to start and end threads, and for each: 16 vCPUs of a Xeon; MEETING times
WAKING = 0.36e-6                    # for each where they take parts of a product in place as they come
MEETING = 1.7                       # that where none can go on before all have come
WAIT = 4.2e-6               # seconds that a barrier costs per thread that others wait for
SHARED_LINE = 14e-9         # seconds, each time that C is written, for a line of which others write a part
TEMPORARY, PLACED, COPIED = 8e-6, 0.8e-9, 15e-6    # seconds of a C^T beside C, of each element, of a copy of B
CHANNELS = 5                # threads from which on memory gives no more, and hides behind nothing
TEAMS = 7.4e-6              # seconds for each thread where more than two of them share panels of B
UNEVEN = 0.17               # of arithmetic's time that the slowest of many cores takes longer with an equal share
TEAM = 0.06                 # the same for teams of threads that claim their work, so that only teams have equal shares
OTHERS = 0.12               # of the time in place of more than two threads: parts that others had before take longer
RUN = 16e-9                 # seconds to reach a row of a tile of C that nothing has asked for in time
OVERLAP = 0.2               # of the shorter of arithmetic and traffic that is not hidden behind the other, in place
EVICTED = 0.1               # of the time of loads that L2 answers because L1 has lost the line: behind much arithmetic
FAR_DOTS, DOTS_OVERLAP = 0.05, (0.4, 0.02)  # the same of loads that L3 answers behind dot tiles; OVERLAP: AMD's last
PAGE = 4096                 # bytes
PAGES = 0.1                 # of arithmetic's time that is lost where every row of B begins another page
NARROW = 512                # bytes of a row of B, up to which blocks of many rows are in few pages
FIRST_TLB, FAR_PAGES = 96, 0.2      # pages that it holds, and of arithmetic's time that is lost beyond them
TRANSPOSING_WORDS = 16      # vector instructions for each vector of words of A that is transposed on its way
LINE = 5e-9                 # seconds for each line of a row of B that is packed, and as much to reach the row
FAR, REREAD = 1024, 0.5     # rows of B, each in another page, above which as much of them is fetched again
TRANSPOSING = 4             # vector instructions for each vector of an operand that is transposed on its way
WIDENING = 2                # instructions for each number, or vector, of a narrow format that dot products load
COPYING = 12                # the same where B is copied before the product


def cost(shape: Shape, plan: CpuPlan, target: CpuTarget, ceilings: Ceilings | None = None) -> Cost:
    """The predicted cost of a legal plan; without `ceilings` of so many threads, by those of one and what others cost
    it."""
    ceilings = ceilings or of_threads(plan.threads)
    if plan.word:
        shape, plan = few_rows.as_read(shape, Strides(0, 0, 0, 0, 0, 0), plan)[0], replace(plan, kc=0)
    if plan.swap:
        shape = shape.swapped
    copying = 0.0
    if plan.copy:
        price = 1.0 if stays_in_cache(shape, target) else COPYING / TRANSPOSING
        shape, copied = shape._replace(b=plan.reads_b), shape.k * shape.n * (shape.n > 1)   # one column: contiguous
        copying = price * _transposing(copied, target.lanes(shape.itemsize), ceilings) + COPIED * (price > 1 < shape.n)
    if shape.tiles:
        predicted = _tiles(shape, plan, target, ceilings)
        if shape.prologues:
            predicted = _cost(predicted.vectors, predicted.traffic,
                          (*predicted.parts, ("prologues", _prologues(shape, plan, target, ceilings))))
        if not shape.epilogue:
            return predicted
        return _cost(predicted.vectors, predicted.traffic,
                     (*predicted.parts, ("the epilogue", _epilogue(shape, plan, target, ceilings))))
    count = {"packed": _packed, "in_place": _in_place, "stream": _read_once, "dots": _read_once}[plan.algorithm]
    count = _read_once if plan.complex_in_place(shape) else count
    predicted = count(shape, plan, target, ceilings)
    parts = (*predicted.parts, ("copying B", copying),
             ("lines of C that threads share", SHARED_LINE * _shared_lines(shape, plan)))
    if plan.swap and plan.algorithm != "dots" and min(shape.m, shape.n) > 1:
        parts = *parts, ("C^T in a temporary", TEMPORARY + PLACED * shape.m*shape.n)
    if shape.words and plan.algorithm == "packed":
        parts = *parts, ("packing of words", packing_words(shape, plan, target, ceilings))
    if shape.prologues:
        parts = *parts, ("prologues", _prologues(shape, plan, target, ceilings))
    if shape.epilogue:
        parts = *parts, ("the epilogue", _epilogue(shape, plan, target, ceilings))
    return _cost(predicted.vectors, predicted.traffic, parts)


def _shared_lines(shape: Shape, plan: CpuPlan) -> int:
    """Lines of C that a thread and its neighbours write, each a part, in all blocks of k: those in which the rows of
    its columns begin and end. C's rows are contiguous; with `swap` they are columns of the shape."""
    across, along, rows = plan.jc_ways * plan.jr_ways, plan.ic_ways, shape.m
    if plan.swap:
        across, along, rows = along, across, shape.n
    return min(across - 1, 2) * ceil(rows / along) * (ceil(shape.k / plan.kc) if plan.kc else 1)


def _prologues(shape: Shape, plan: CpuPlan, target: CpuTarget, ceilings: Ceilings) -> float:
    """Seconds of a vector instruction for each operation on elements: B's once, A's for each block of columns of C."""
    m, n, k = shape.m, shape.n, shape.depth or shape.k
    blocks = plan.jc_ways * ceil(ceil(n / plan.jc_ways) / plan.nc) if plan.algorithm == "packed" else 1
    a, b = prologues.operations(shape.prologue_a), prologues.operations(shape.prologue_b)
    return (m*k*blocks*a + k*n*b) / target.lanes(4) / plan.threads / ceilings.vectors


def _epilogue(shape: Shape, plan: CpuPlan, target: CpuTarget, ceilings: Ceilings) -> float:
    """Seconds of a vector instruction for each operation on the elements of C, which are in L1, and for what operands
    and further results bring from memory."""
    flops, more = _of_epilogue(shape.epilogue, shape.m, shape.n)
    vectors = shape.m * shape.n * flops / target.lanes(shape.itemsize)
    return vectors / plan.threads / ceilings.vectors + more / ceilings.memory / min(plan.threads, CHANNELS)


@lru_cache(maxsize=256)
def _of_epilogue(text: str, m: int, n: int) -> tuple[int, int]:
    """Operations of an epilogue on each element of C, and bytes of its operands and further results."""
    epilogue = epilogues.read(text)
    return epilogue.expression.flops, epilogue.bytes(m, n)


def _transposing(elements: int, lanes: int, ceilings: Ceilings) -> float:
    return TRANSPOSING * elements / lanes / ceilings.vectors


def _packed(shape: Shape, plan: CpuPlan, target: CpuTarget, ceilings: Ceilings) -> Cost:
    m, n, k, s, claims = shape.m, shape.n, shape.k, shape.itemsize, plan.claims
    lanes = target.lanes(s)
    row_panels, col_panels = ceil(m / plan.mr), ceil(n / plan.nr)
    k_blocks = ceil(k / plan.kc)
    kc = ceil(k / k_blocks)
    share_m, share_n = ceil(row_panels / plan.ic_ways), ceil(col_panels / (plan.jc_ways * plan.jr_ways))
    m_blocks = plan.ic_ways * ceil(share_m * plan.mr / plan.mc)
    rows: float = min(share_m * plan.mr, m)                                        # of the busiest thread
    if claims:                                                              # it has its share, and the last piece
        m_blocks = ceil(row_panels * plan.mr / plan.mc)
        pieces = PARTS if min(plan.nc, ceil(n / plan.jc_ways)) > plan.nr else 1     # a panel is not divided
        rows = min(m / plan.ic_ways + plan.mc / pieces, m)
    n_blocks = plan.jc_ways * ceil(ceil(col_panels / plan.jc_ways) * plan.nr / plan.nc)
    vectors = m * ceil(n / lanes) * k
    tiles = row_panels * col_panels * k_blocks

    a, b, c = m*k*s, k*n*s, m*n*s
    b_panel_stays = kc*plan.nr*s <= target.l1d // 2
    fits = (a + b + c) <= target.l3 // 2
    a_per_panel = Term("A", a, col_panels, "once per panel of columns")
    b_per_panel = Term("B", b, row_panels, "once per panel of rows")
    c_passes = Term("C", c, 2*k_blocks, "read and written in each block of k")
    b_per_block = Term("B", b, m_blocks, "once per block of rows")
    packers = plan.ic_ways if plan.own_b else 1                             # that pack the same panels of B
    once = m_blocks == plan.ic_ways and (plan.own_b or plan.ic_ways*plan.jr_ways == 1)      # panels stay in L1
    packing = (Term("A", a, 2*n_blocks, "packing: read and written, per block of columns"),
               Term("B", b, (2 - once)*packers, "packing: read" + " and written"*(not once)
                    + ", by each thread"*plan.own_b))
    b_later = b_per_block._replace(times=m_blocks - packers, why="once per block of rows but the first")
    traffic = {
        "L1": (a_per_panel, b_per_panel, Term("C", c, 2*k_blocks - 1, _C_IN_L1)),
        "L2": (a_per_panel, b_per_block if b_panel_stays else b_per_panel, c_passes),
        "L3": (Term("A", a, n_blocks * plan.jr_ways, "once per block of columns"),
               b_later, c_passes, *packing),
        "memory": (Term("A", a, 1 if fits else n_blocks, _ONCE if fits else "once per block of columns"),
                   Term("B", b, 1, _ONCE),
                   Term("C", c, 1 if fits else 2*k_blocks, _ONCE if fits else "read and written in each block of k")),
    }
    threads = plan.threads
    slowest = 0.0 if threads <= 2 else TEAM * (1 - 1/plan.jc_ways) if claims else UNEVEN
    busiest = (rows * min(share_n * plan.nr, n)) / (m * n)                  # its share of C
    chains = plan.mr * min(ceil(n / lanes), plan.nr // lanes)               # sums that do not wait for each other
    work = vectors * semirings.operations(shape.semiring) * max(CHAINS / chains, 1.0)
    work = (work + CALL*tiles) * busiest / ceilings.vectors
    runs = 1 + target.line / (plan.nr*s) if shape.b == "rows" else 1.0      # of B's rows: short ones come slower
    far = 0.0 if fits else total(traffic["memory"]) / ceilings.memory
    waiting = total(traffic["L3"]) * runs / threads / ceilings.l3 + (far / threads if threads <= CHANNELS else 0)
    squares = ceil(plan.mr / lanes) * lanes / plan.mr                       # of vectors are transposed, not rows alone
    # bytes, in packing
    transposed = round(a*n_blocks*squares)*(shape.a in ("rows", "scattered rows")) + b*packers*(shape.b == "columns")
    row_of_tile = plan.nr // lanes * kc / ceilings.vectors      # whose rows are in pages of their own
    late = max(RUN - row_of_tile, 0.0) * m * col_panels * k_blocks / threads if c > target.l2 else 0.0
    return _cost(vectors, traffic, (
        ("multiply-adds and calls of micro-kernels", work),
        ("transposing in packing", _transposing(transposed // s, lanes, ceilings) / threads),
        ("loads of C that arrive too late", late),
        ("panels of B that leave L1", 2 * lost_panel(kc * plan.nr * s, target) * b / threads / ceilings.l2),
        ("traffic beyond L2 that prefetching does not hide", waiting - HIDDEN * min(waiting, work)),
        ("memory, which many threads share", far / CHANNELS if threads > CHANNELS else 0.0),
        ("a block of A that exceeds L2",
         crowded((min(plan.mc, m) + 2*plan.nr) * kc * s, target) * total([a_per_panel]) / threads / ceilings.l3),
        ("barriers", 0.0 if plan.own_b else
         WAIT * (threads // plan.jc_ways - 1) * (1 if claims else k_blocks * n_blocks / plan.jc_ways)),
        ("starting threads", _start(plan)),
        ("teams of more than two threads", TEAMS * threads * (threads > 2*plan.jc_ways and not plan.own_b)),
        ("waiting for the slowest core", slowest * work)))


def _start(plan: CpuPlan) -> float:
    threads = plan.threads
    return (START + START_EACH * threads) * (MEETING if plan.meets else 1) if threads > 1 else 0.0


def _tiles(shape: Shape, plan: CpuPlan, target: CpuTarget, ceilings: Ceilings) -> Cost:
    """AMX: by its own rates, whatever those of vectors are."""
    packed, slower = _packed(shape, plan, target, ceilings), 1 + CROWDED*(plan.threads - 1)
    slower *= 1 + tile_model.UNEVEN_TILES / plan.threads * (plan.threads > 2 and not plan.claims)
    return _cost(packed.vectors, packed.traffic, (*tile_model.parts(shape, plan, target, slower, ceilings.l2),
                                                ("starting threads", _start(plan) + tile_model.starting(plan.threads))))


def packing_words(shape: Shape, plan: CpuPlan, target: CpuTarget, ceilings: Ceilings) -> float:
    """Seconds that packing of words takes beyond that of elements: a word is multiplied in the time of one number, and
    packed in that of several."""
    lanes, steps = target.lanes(4), BY_NAME[shape.dtype].steps
    seconds = 0.0
    if shape.a == "rows":                       # squares of vectors are transposed, whose lines are not all there
        blocks = plan.jc_ways * ceil(ceil(shape.n / plan.jc_ways) / plan.nc)    # each way packs A for itself
        squares = ceil(plan.mr / lanes) * ceil(shape.m / plan.mr) * (shape.k / lanes) * blocks
        seconds += TRANSPOSING_WORDS * squares * lanes / ceilings.vectors
    if shape.b == "rows":
        run = plan.nr * 4 // steps              # bytes of a row of B in a panel, and how many lines they are in
        lines = (run + target.line - gcd(run, target.line)) / target.line
        often = 1 + REREAD * (plan.kc*steps > FAR and shape.n * 4 // steps >= PAGE)
        seconds += LINE * (lines + 1) * often * shape.k * steps * ceil(shape.n / plan.nr)
    return seconds / plan.threads


def _in_place(shape: Shape, plan: CpuPlan, target: CpuTarget, ceilings: Ceilings) -> Cost:
    m, n, k, s = shape.m, shape.n, shape.k, shape.itemsize
    lanes = target.lanes(s)
    row_panels, col_panels = ceil(m / plan.mr), ceil(n / plan.nr)
    kc = plan.kc or k
    k_blocks = ceil(k / kc)
    vectors = m * ceil(n / lanes) * k
    a, b, c = m*k*s, k*n*s, m*n*s
    columns_outside = not plan.rows_outside(shape, target)
    inner = (m*kc if columns_outside else n*kc) * s                         # re-read for each panel of the outer loop
    again = 1 if inner <= target.l2 else col_panels if columns_outside else row_panels
    fits = a + b + c <= target.l3 // 2
    a_per_panel, a_once = Term("A", a, col_panels, "once per panel of columns"), Term("A", a, 1, _ONCE)
    b_per_panel, b_once = Term("B", b, row_panels, "once per panel of rows"), Term("B", b, 1, _ONCE)
    c_passes = Term("C", c, 2*k_blocks, "read and written in each block of k")
    often = "once per panel" if again > 1 else _ONCE
    a_again, b_again = (Term(x, size, again, often) for x, size in (("A", a), ("B", b)))
    traffic = {
        "L1": (a_per_panel, b_per_panel, Term("C", c, 2*k_blocks - 1, _C_IN_L1)),
        "L2": (*((a_per_panel, b_once) if columns_outside else (a_once, b_per_panel)), c_passes),
        "L3": (*((a_again, b_once) if columns_outside else (a_once, b_again)),
               c_passes if c > target.l2 else Term("C", c, 1, _ONCE)),
        "memory": (a_once, b_once, Term("C", c, 1 if fits else 2, _ONCE if fits else "read and written")),
    }
    threads = plan.threads
    busiest = min(ceil(row_panels/plan.ic_ways)*plan.mr, m) * min(ceil(col_panels/plan.jc_ways)*plan.nr, n) / (m*n)
    chains = min(m, plan.mr) * min(ceil(n / lanes), plan.nr // lanes)
    tiles = row_panels * col_panels * k_blocks
    work = (vectors * max(CHAINS / chains, 1.0) + CALL * tiles) * busiest / ceilings.vectors
    resident, beyond = a + b + c <= target.l2 * threads, beyond_l2(a + b + c, plan, target)
    waiting = busiest * (beyond * total(traffic["L3"]) / ceilings.l3
                         + (0 if fits else total(traffic["memory"]) / ceilings.memory))
    strided = PAGES * work if b > target.l2 * 0.3 and n*s >= PAGE else 0.0    # a column of panels is a page per row
    # pages of rows of B, of A's columns or rows, and of C's rows
    pages = kc*min(n*s / PAGE, 1.0) + (kc*min(m*s / PAGE, 1.0) if shape.a == "columns" else plan.mr) + plan.mr
    far = FAR_PAGES * work if pages > FIRST_TLB else 0.0
    crowded = 0                             # bytes that come from L2 again because L1 could not hold what was asked for
    if not columns_outside and crowds(kc, n*s, target):
        crowded += 2 * total([b_per_panel])             # by a prefetch in vain, and by the load
    if target.l2 < c <= target.l3 and crowds(plan.mr, n*s, target):
        crowded += total([c_passes])
    reloading = crowded / threads / ceilings.l2 * (EVICTED if k > SHORT else 1.0)
    left, panel = 0.0, kc * plan.nr * s
    if k_blocks > 1 or row_panels == 1:         # from L2 all wait for what L1 has lost, a prefetch in vain and a load
        lost = (2 * overfull(2*panel, ROOM * target.l1d, target.l1d_ways) if resident and n*s >= PAGE
                else lost_panel(panel, target))
        left = lost * b * busiest / ceilings.l2
    return _cost(vectors, traffic, (*_overlapping(work, waiting, OVERLAP), ("another page of B for each row", strided),
                                   ("pages that the first TLB loses", far),
                                   ("rows that share a set of L1", reloading), ("panels of B that leave L1", left),
                                   ("parts that other threads had", OTHERS * work * (threads > 2)),
                                   ("waking threads", WAKING * plan.threads * (plan.threads > 1))))


def _read_once(shape: Shape, plan: CpuPlan, target: CpuTarget, ceilings: Ceilings) -> Cost:
    """stream and dots, which read each operand once from beyond L2."""
    m, n, k, s = shape.m, shape.n, shape.k, shape.itemsize
    widening = plan.widens(shape)
    if widening:                                                            # numbers, of a word each of its own
        k = shape.depth or k
    of_a, of_b = (prologues.bytes_of(x) if x else s for x in (shape.source_a, shape.source_b))   # which it converts
    of_a, of_b = (s, s / 2) if plan.complex_row(shape) else (of_a, of_b)    # n and k count parts: B has each once
    lanes, sizes = target.lanes(s), (int(m*k*of_a), int(k*n*of_b), m*n*s)
    waits, extra = 1.0, 0.0
    once = a, b, c = tuple(Term(name, size, 1, _ONCE) for name, size in zip("ABC", sizes))
    if plan.complex_row(shape):
        vectors = k * ceil(n / lanes)
        near, extra = {"L1": once, "L2": once}, CALL
    elif plan.algorithm == "stream":
        vectors = m * ceil(n / lanes) * k
        c_passes = Term("C", c.size, 2*ceil(k / plan.nr), f"read and written every {plan.nr} rows of B")
        # a sum is stored and loaded again between groups of rows of B, and waits for that
        waits = max(2 * CHAINS / (m * ceil(n / plan.threads / lanes)), 1.0)
        near, extra = {"L1": (a, b, c_passes), "L2": once}, c_passes.bytes // target.vector_bytes
    elif plan.complex_in_place(shape):
        vectors, blocks = m * ceil(n / lanes) * k, ceil(k / (2*COMPLEX_DEPTH))
        near, extra = {"L1": (a, b, c), "L2": once}, CALL * ceil(m / plan.mr) * ceil(n / plan.nr) * blocks
    elif plan.dot_tiles:                    # of a tile's operands each vector is loaded once
        rows, columns, depth = ceil(m / plan.mr), ceil(n / plan.nr), min(plan.kc, k)
        tiles, blocks, mr, nr = rows * columns, ceil(k / depth), m / rows, n / columns
        vectors = m * n * blocks * ceil(depth / lanes)
        again = a._replace(times=columns, why="once per panel"), b._replace(times=rows, why="once per panel")
        stays = (plan.mr + 2*plan.nr) * depth * s <= target.l1d
        near = {"L1": (*again, c), "L2": (a if stays else again[0], again[1])}
        uneven = ceil(rows / plan.ic_ways) * ceil(columns / plan.jc_ways) * plan.threads / tiles
        lost = FAR_DOTS * crowded(n * depth * s, target) * again[1].bytes / ceilings.l3
        extra = tiles * blocks * (CALL/2 + SUMMING*mr*nr) + lost * ceilings.vectors
        loads = (1/mr + 1/nr) * (1 + target.vector_bytes / target.line)         # those across two lines are two
        waits, extra = max(CHAINS / (mr*nr), loads, 1.0) * uneven, extra * uneven
    elif plan.by_rows(shape):               # a load for a row of B and for each number of A; two are one multiply-add
        row = ceil(n / lanes)
        vectors = k * max(m * row, ceil((m + row) * (WIDENING if widening else 1) / 2))
        near, extra = {"L1": once, "L2": once}, CALL
    else:
        steps = ceil(m / plan.mr)
        vectors = m * n * ceil(k / lanes)
        b_per_step = Term("B", b.size, steps, f"once per {plan.mr} rows")
        near, extra = {"L1": (a, b_per_step, c), "L2": (a, b_per_step)}, CALL * steps
    work = (vectors * waits + extra) / plan.threads / ceilings.vectors
    fits = sum(sizes) <= target.l3 // 2
    beyond = beyond_l2(sum(sizes), plan, target)
    waiting = total(once) / (ceilings.l3 if fits else ceilings.memory) / plan.threads
    waiting = beyond * waiting + (1 - beyond) * total(once) / ceilings.l2 / plan.threads
    if plan.dot_tiles:
        waiting = max(waiting, total(near["L2"]) / ceilings.l2 / plan.threads)
    elif plan.jc_ways > 1:      # a thread's part of a row ends where another one's begins: short ones are reached late
        waiting += RUN * (k if n // plan.jc_ways * s < PAGE else ceil(k / plan.nr))
    return _cost(vectors, {**near, "L3": once, "memory": once},
                 (*_overlapping(work, waiting, DOTS_OVERLAP[target.model[:3] == "AMD"] if plan.dot_tiles else 0),
                  ("waking threads", WAKING * plan.threads * (plan.threads > 1))))


_ONCE = "once"
_C_IN_L1 = "written in each block of k, read in all but the first"


def _overlapping(work: float, waiting: float, rest: float) -> tuple[tuple[str, float], ...]:
    """The longer one counts in full, of the shorter one `rest`."""
    return (("multiply-adds and calls", work if work >= waiting else rest*work),
            ("traffic beyond L2", waiting if work < waiting else rest*waiting))
