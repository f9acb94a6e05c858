"""The five loops: C = alpha * A @ B + beta * C by packed panels, for any number of threads.

    for jc: columns of C, nc at a time                        (jc ways: each has its own columns, and its own B block)
      for pc: k, kc at a time                                 the block of B, kc x nc, is packed into L3
        for ic: rows of C, mc at a time                       (ic ways) the block of A, mc x kc, is packed into L2
          for jr: column panels of B, NR wide                 (jr ways) one panel stays in L1
            for ir: row panels of A                           micro-kernel: an MR x NR tile of C in registers

The rows are cut into panels of equal height (or one less), so that no row of a tile is empty. A few threads have their
rows dealt out; each packs its share of B's panels just before it uses them for the first time, so that packing a panel
also brings it into its own cache, and after one barrier all panels are there for everyone.

With `own_b` each thread packs both operands for a block of C of its own; nothing is shared, and
there is no barrier. For small panels, packing again takes less time than waiting and reading another core's cache.

A thread that shares nothing and has one block of A needs each panel of B once: all are packed in one place, in L1.

More than `FEW` threads claim their work piece by piece, since cores that share hardware with others differ in speed by
a factor of two. The pieces are, for one block of B after the other: blocks of A, which the thread that claims one packs
into its own L2 and multiplies by all of the block of B; the panels of the *next* block of B, to be packed; and the last
`SHARED` blocks of A for each thread, in up to `PARTS` parts by columns, so that no thread waits long for the last one.
Those blocks are packed for all threads, with B. There is no barrier between pieces: three counters tell which are done,
and a piece needs only pieces that were claimed long before it.

One operand may have been packed before, all of it (`emit_prepack`): its panels are read where they lie, one block of k
after the other, without any wait for packing.

The order of additions to an element of C depends on kc alone: any split over threads gives the same bits.

Of a batch each thread claims whole products (`emit_batch`), so that no thread waits for another.
"""
from __future__ import annotations

from types import SimpleNamespace

from tilewright.ir import Function, Kernel, Value, i8, i64, ptr
from tilewright.kernels.cpu.jobs import BARRIER_BYTES, BATCH, PACKED, SHARED, offsets
from tilewright.kernels.cpu.panels import Panels, panels_of
from tilewright.kernels.cpu.pool import emit_barrier, emit_wait, job_fields, job_kernel, split
from tilewright.plans.cpu import PARTS
from tilewright.targets.cpu import CpuTarget

COLUMNS = 128           # of A that are packed at a time where they are contiguous
FEW = 2                 # threads over rows up to which these are dealt out, not claimed
PIECES = 16             # of the last blocks of A for each thread, at most: a small piece waits for its block of A
PAGES = 128             # rows of several panels of B that are packed together: each is in a page of its own
GROUPS = 4              # of B's panels for each thread, in which they are claimed for packing


def emit_gemm(target: CpuTarget, dtype: str, MR: int, NV: int, A: str = "", B: str = "",
              PREPACKED: str = "", FIELDS: int = 0, PROLOGUES: str = "") -> Function:
    """gemm(job, tid): what thread `tid` of jc_ways*ic_ways*jr_ways does. All of them must run at once.

    A, B        their formats, or others of the same memory_type, if they are not `dtype`: packing converts them. Of
                complex ones C, k and n are those of the real product that packing.py makes of it, and strides lead
                from one complex number to the next.
    PREPACKED   "a" or "b": the job's field of that name is where the operand's panels are.
    FIELDS      of a state that micro-kernels keep (state_fields): sums are aside then, tiles of so many fields
    PROLOGUES   "a", "b" or "ab": packing of these takes, too, where it is in the operand (prepared.WHERE).
    """
    panels = panels_of(target, dtype, MR, NV, A, B, FIELDS, PROLOGUES)
    name = f"gemm_{dtype}_{MR}x{panels.NR}" + (f"_{A or dtype}_{B or dtype}" if A or B else "")
    name += f"_prepacked_{PREPACKED}"*bool(PREPACKED) + f"_states_{FIELDS}"*bool(FIELDS)
    name += f"_prologue_{PROLOGUES}"*bool(PROLOGUES)
    k = Kernel(name, noalias=False, job=ptr(i8), tid=i64)
    k.function.outer = True
    job, tid = k.args
    of = {"a": panels.of_a, "b": panels.of_b} | ({PREPACKED: panels.T} if PREPACKED else {})
    g = job_fields(k, job, PACKED, panels.T, panels.C, **of, c=panels.C)
    panels.write(k, g)
    loops = Loops(k, g, panels, PREPACKED, tid)
    panels.configure()
    with k.when(loops.many):
        emit_claimed(loops)
    with k.otherwise():
        with k.loop(loops.j_hi, loops.j_lo, loops.nc_panels) as jc, k.loop(g.k, step=loops.kc_max) as pc:
            s = loops.block(jc, pc)
            s.b_block = loops.b_block(s)
            if PREPACKED != "b":
                s.b_stride = k.select(loops.once, 0, s.b_stride)
            loops.dealt(s)
            with k.when(loops.team > 1):
                emit_barrier(k, loops.team_barrier, loops.team)             # before the block of B is packed over
    panels.release()
    return k.function


class Loops:
    """What a thread's loops share: its place among the ways, sizes of blocks, where they are packed."""

    def __init__(self, k: Kernel, g: SimpleNamespace, panels: Panels, PREPACKED: str, tid: Value) -> None:
        self.k, self.g, self.panels, self.PREPACKED = k, g, panels, PREPACKED
        self.TILE = panels.NR * max(panels.FIELDS, 1)                           # elements of a row of a tile
        jr_id, ic_id, jc_id = tid % g.jr_ways, tid // g.jr_ways % g.ic_ways, tid // (g.jr_ways * g.ic_ways)
        self.jr_id, self.ic_id = jr_id, ic_id
        own = g.own_b != 0
        self.team = k.select(own, 1, g.ic_ways*g.jr_ways)                       # threads that share a block of B
        self.packers, self.packer = k.select(own, 1, g.ic_ways), k.select(own, 0, ic_id)
        self.team_barrier = g.barriers + jc_id*BARRIER_BYTES
        block_id = jc_id*g.ic_ways + ic_id                                      # and of A: jr_ways of them
        self.block_barrier = g.barriers + (g.jc_ways + block_id)*BARRIER_BYTES

        self.m_panels, self.n_panels = k.ceil_div(g.m, panels.MR), k.ceil_div(g.n, panels.NR)
        self.row = panels.rows(self.m_panels)                                   # at which each panel begins
        self.q_lo, self.q_hi = split(self.m_panels, g.ic_ways, ic_id)
        self.mc_panels = self._equal(self.q_lo, self.q_hi, g.mc_panels)
        self.once = (self.team == 1) & (self.q_hi - self.q_lo <= self.mc_panels)
        self.j_lo, self.j_hi = split(self.n_panels, g.jc_ways, jc_id)
        self.nc_panels = self._equal(self.j_lo, self.j_hi, g.nc_panels)
        self.kc_max = panels.kc_max()

        # Threads that claim have two blocks of B, and shared ones of A: one to be multiplied, the other to be packed.
        self.many = (g.jr_ways == 1) & (self.team > FEW)
        self.of_a, self.of_b = g.mc_panels*panels.a_space(g.kc), g.nc_panels*panels.b_space(g.kc)   # of a block
        self.a_space = g.a_space + block_id*self.of_a
        self.shared_space = g.a_space + (g.jc_ways*g.ic_ways + jc_id*(2*SHARED*g.ic_ways))*self.of_a
        self.b_space = g.b_space + k.select(own, block_id, jc_id)*self.of_b*k.select(self.many, k.constant(i64, 2), 1)

        # Where sums are not added up in C, its tiles are elsewhere, one after the other, or where there is but one
        # block of k each in the same place.
        self.finishing, self.aside, self.again = g.finish != 0, g.aside != 0, g.k > self.kc_max
        size = panels.MR*self.TILE
        self.tiles = k.select(self.again, g.sums + jc_id*(self.m_panels*g.nc_panels*size),
                              k.local("tile", (size,), panels.T))
        self.ldc = k.select(g.c_tables != 0, g.c_tables, g.ldc)
        self.alpha = k.select(self.aside, k.constant(panels.C, 1), g.alpha)     # then it multiplies whole sums
        self.ld_place = k.select(self.aside, k.constant(i64, self.TILE), g.ldc)

    def _equal(self, lo: Value, hi: Value, most: Value) -> Value:
        """Panels in each of the fewest blocks of lo ... hi, of equal size."""
        blocks = self.k.max(self.k.ceil_div(hi - lo, most), 1)
        return self.k.max(self.k.ceil_div(hi - lo, blocks), 1)

    def block(self, jc: Value, pc: Value) -> SimpleNamespace:
        """What concerns a block of B, which begins at panel jc and row pc; where it is, is left open."""
        k, g, panels = self.k, self.g, self.panels
        kc = k.min(self.kc_max, g.k - pc)
        s = SimpleNamespace(jc=jc, pc=pc, kc=kc, nc=k.min(self.nc_panels, self.j_hi - jc), alpha=self.alpha,
                            beta=k.select(pc == 0, g.beta, 1.0), finishes=self.finishing & (pc + kc == g.k),
                            a_stride=panels.a_space(kc), b_stride=panels.b_space(kc))
        panels.begin_block(s)
        return s

    def a_block(self, s: SimpleNamespace, q0: Value, space: Value) -> Value:
        """Where panel q0 of A is, and those of its block after it; `space` is where such a block is packed."""
        if self.PREPACKED != "a":
            return space
        before = s.pc // self.kc_max * (self.m_panels*self.panels.a_space(self.kc_max))
        return self.g.a + (before + q0*s.a_stride)

    def b_block(self, s: SimpleNamespace, space: Value | None = None) -> Value:
        """Where a block of B is, which is packed at `space`."""
        if self.PREPACKED != "b":
            return self.b_space if space is None else space
        before = s.pc // self.kc_max * (self.n_panels*self.panels.b_space(self.kc_max))
        return self.g.b + (before + s.jc*s.b_stride)

    def pack_a(self, s: SimpleNamespace, q0: Value, q1: Value, shared: bool, space: Value | None = None) -> None:
        """A block of A: rows of panels q0 ... q1, k from s.pc to s.pc + s.kc. If shared, by its jr_ways threads."""
        k, g, panels, row = self.k, self.g, self.panels, self.row
        space = self.a_space if space is None else space
        lo, hi = split(q1 - q0, g.jr_ways, self.jr_id) if shared else (k.constant(i64, 0), q1 - q0)
        # where A lies by columns, all panels take their part of a cache line before it is evicted
        deep = k.select(g.rsa == panels.PAIR, k.constant(i64, -(-COLUMNS // panels.ROWS) * panels.ROWS), s.kc)
        with k.loop(s.kc, step=deep) as p, k.loop(hi, lo) as q:
            i, h = row(q0 + q), row(q0 + q + 1) - row(q0 + q)
            k.call(g.pack_a, k.min(deep, s.kc - p), h, h, *panels.a_at(i, s.pc + p),
                   space + (q*s.a_stride + p*panels.width(h)), *panels.left(s.pc + p), *panels.where("a", i, s.pc + p))
        if shared:
            with k.when(g.jr_ways > 1):
                emit_barrier(k, self.block_barrier, g.jr_ways)

    def pack_b(self, s: SimpleNamespace, jr: Value, p: Value | int = 0, rows: Value | None = None) -> None:
        """Panel jr of the block of B, or `rows` of its rows from p on."""
        k, g, panels = self.k, self.g, self.panels
        j = (s.jc + jr)*panels.NR
        cols = k.min(g.n - j, panels.NR)
        width = k.ceil_div(cols, panels.V)*panels.V
        if (unpacked := panels.unpacked(s, cols)) is not None:
            end = s.kc if rows is None else p + rows
            p = k.max(unpacked, p)
            rows = k.max(end - p, 0)
        k.call(g.pack_b, s.kc if rows is None else rows, width, cols, *panels.b_at(s.pc + p, j),
               s.b_block + (jr*s.b_stride + p*panels.width(width)), *panels.left(s.pc + p),
               *panels.where("b", j, s.pc + p))

    def multiply(self, s: SimpleNamespace, j0: Value, j1: Value, q0: Value, q1: Value, packing: bool,
                 space: Value | None = None) -> None:
        """Panels j0 ... j1 of the block of B, packed first if `packing`, by panels q0 ... q1 of the block of A."""
        k, g, panels, row, NR = self.k, self.g, self.panels, self.row, self.panels.NR
        a = self.a_block(s, q0, self.a_space if space is None else space)
        with k.loop(j1, j0) as jr:
            j = (s.jc + jr)*NR
            cols, b_panel = k.min(g.n - j, NR), s.b_block + jr*s.b_stride
            vectors = k.ceil_div(cols, panels.V)
            if packing:
                self.pack_b(s, jr)
            coming = panels.coming(s, jr, j1, j, b_panel, packing)
            with k.loop(q1, q0) as ir, k.when((g.lower == 0) | (row(ir + 1)*panels.PAIR > j)):
                i, h = row(ir), row(ir + 1) - row(ir)
                number = ir*self.nc_panels + jr
                step = k.select(self.again, panels.MR*self.TILE, k.constant(i64, 0))
                place = k.select(self.aside, self.tiles + number*step, panels.c(i, j))
                tile = SimpleNamespace(a_block=a, ir=ir, q0=q0, h=h, b_panel=b_panel, j=j, cols=cols, vectors=vectors,
                                       place=place, ld=self.ld_place)
                finished = panels.finished(i, j, h, cols, ir, s.jc + jr)
                with k.when(g.aside == 2), k.loop(finished[2]) as r:        # micro-kernels ask for where they store
                    first = g.c.view(g.ldc, 1).at(finished[0] + r, finished[1])
                    for line in range(0, NR, 64 // panels.C.bytes):
                        k.prefetch(first + line, locality=2)
                panels.multiply(s, tile, coming)
                with k.when(s.finishes):
                    k.call(g.finish, place, self.ld_place, g.c, self.ldc, *finished, g.alpha, g.index, g.operands)

    def dealt(self, s: SimpleNamespace) -> None:
        """Each thread has its own rows and its own panels of B, which it packs just before it first needs them."""
        k, g, q_lo, q_hi = self.k, self.g, self.q_lo, self.q_hi
        jr_lo, jr_hi = split(s.nc, g.jr_ways, self.jr_id)                   # panels that this thread multiplies,
        own_lo, own_hi = (jr_lo + x for x in split(jr_hi - jr_lo, self.packers, self.packer))   # and packs
        with k.loop(k.max(q_hi, q_lo + 1), q_lo, self.mc_panels) as q0:     # once at least: others need its panels of B
            q1, first = k.min(q0 + self.mc_panels, q_hi), q0 == q_lo
            if self.PREPACKED != "a":
                with k.when((q0 > q_lo) & (g.jr_ways > 1)):
                    emit_barrier(k, self.block_barrier, g.jr_ways)          # everyone is done with the block before
                self.pack_a(s, q0, q1, shared=True)
            if self.PREPACKED == "b":
                self.multiply(s, jr_lo, jr_hi, q0, q1, packing=False)
            else:
                with k.when(first):
                    self.multiply(s, own_lo, own_hi, q0, q1, packing=True)
                    with k.when(self.team > 1):
                        emit_barrier(k, self.team_barrier, self.team)
                with k.loop(2) as part:                                     # the panels before its own and those after,
                    before = part == 0                                 # which are done in the first block only
                    lo = k.select(before, jr_lo, k.select(first, own_hi, jr_hi))
                    hi = k.select(before & first, own_lo, jr_hi)
                    self.multiply(s, lo, hi, q0, q1, packing=False)


def emit_claimed(loops: Loops) -> None:
    """Pieces in the order in which they are claimed. First what block 0 of B needs to be packed, then for each block of
    B: `full` blocks of A, what the next block of B needs to be packed, `tails` parts of the last blocks of A."""
    k, g, panels, PREPACKED, nc_panels = loops.k, loops.g, loops.panels, loops.PREPACKED, loops.nc_panels
    m_blocks = k.ceil_div(loops.m_panels, g.mc_panels)
    late = k.min(m_blocks, SHARED*g.ic_ways)                                # blocks of A that are packed with B
    full = m_blocks - late
    group = k.max(nc_panels // (loops.team*GROUPS), 1)                      # of panels of B
    groups = k.constant(i64, 0) if PREPACKED == "b" else k.ceil_div(nc_panels, group)
    width = k.ceil_div(nc_panels, k.min(k.ceil_div(PIECES*loops.team, late), PARTS))
    parts = k.ceil_div(nc_panels, width)
    packs, tails = groups if PREPACKED == "a" else groups + late, late*parts
    pieces = full + packs + tails
    k_blocks = k.ceil_div(g.k, loops.kc_max)
    blocks = k_blocks * k.ceil_div(loops.j_hi - loops.j_lo, nc_panels)      # of B
    counters = (loops.team_barrier + BARRIER_BYTES // 2).as_(i64)
    claims, packed, multiplied, finished = (counters + i for i in range(4))

    def block_of(number: Value) -> SimpleNamespace:
        s = loops.block(loops.j_lo + number // k_blocks * nc_panels, number % k_blocks * loops.kc_max)
        s.b_block = loops.b_block(s, loops.b_space + number % 2 * loops.of_b)
        s.shared = loops.shared_space + number % 2 * (SHARED*g.ic_ways*loops.of_a)
        return s

    def rows_of(block: Value) -> tuple[Value, Value]:
        q0 = block*g.mc_panels
        return q0, k.min(q0 + g.mc_panels, loops.m_panels)

    def until(counter: Value, least: Value) -> None:
        emit_wait(k, lambda: k.atomic_load(counter) < least)

    def pack(number: Value, i: Value) -> None:
        s, last = block_of(number), i - groups
        until(packed, number*packs)                                         # so that the count says which are
        until(multiplied, (number - 1)*full)                                # the block before the last had this place
        until(finished, (number - 1)*tails)
        if PREPACKED != "b":                                                # its rows are in as many pages
            rows = PAGES // panels.ROWS * panels.ROWS
            deep = k.select(g.b_lines != 0, s.kc, rows) if panels.DIVISIBLE else s.kc
            with k.loop(s.kc, step=deep) as p, k.loop(k.min((i + 1)*group, s.nc), k.min(i*group, s.nc)) as jr:
                loops.pack_b(s, jr, p, k.min(deep, s.kc - p))
        if PREPACKED != "a":
            with k.when(last >= 0):
                loops.pack_a(s, *rows_of(full + last), shared=False, space=s.shared + last*loops.of_a)
        k.atomic_add(packed, 1)

    def tile(number: Value, i: Value) -> None:
        s, alone = block_of(number), i < full
        j = k.max(i - full - packs, 0)
        until(packed, (number + 1)*packs)
        until(k.select(alone, multiplied, finished), number*k.select(alone, full, tails))      # C is up to date
        q0, q1 = rows_of(k.select(alone, i, full + j // parts))
        if PREPACKED != "a":
            with k.when(alone):
                loops.pack_a(s, q0, q1, shared=False)
        loops.multiply(s, k.select(alone, k.constant(i64, 0), k.min(j % parts * width, s.nc)),
                       k.select(alone, s.nc, k.min((j % parts + 1)*width, s.nc)), q0, q1, packing=False,
                       space=k.select(alone, loops.a_space, s.shared + j // parts * loops.of_a))
        k.atomic_add(k.select(alone, multiplied, finished), 1)

    piece = k.variable(i64, k.atomic_add(claims, 1))
    with k.while_(lambda: piece.get() < packs + blocks*pieces):
        first, later = piece.get() < packs, k.max(piece.get() - packs, 0)
        number, i = later // pieces, later % pieces
        packing = first | ((i >= full) & (i < full + packs))
        with k.when(packing):
            to = k.select(first, k.constant(i64, 0), number + 1)
            with k.when(to < blocks):
                pack(to, k.select(first, piece.get(), i - full))
        with k.otherwise():
            tile(number, i)
        piece.set(k.atomic_add(claims, 1))


def emit_prepack(target: CpuTarget, dtype: str, MR: int, NV: int, SOURCE: str, ROLE: str) -> Function:
    """prepack(job, part): part of jc_ways, each a run of panels of A (ROLE "a") or B ("b"), written to the job's
    a_space or b_space. SOURCE: the operand's format, if it is not `dtype`.

    The order is that in which the five loops read: blocks of kc_max steps of k, and in each all panels of the operand,
    every panel in the space that it takes in the loops' blocks. It depends neither on the other operand (but for its
    format: words of i8 by i8) nor on blocks along m and n, or threads.
    """
    panels = panels_of(target, dtype, MR, NV, SOURCE, SOURCE)
    V, NR = panels.V, panels.NR
    k, g, part = job_kernel(f"prepack_{dtype}_{MR}x{NR}_{SOURCE or dtype}_{ROLE}", PACKED, panels.T, C=panels.C,
                            a=panels.of_a, b=panels.of_b, c=panels.C)
    panels.write(k, g)
    count = k.ceil_div(g.m, MR) if ROLE == "a" else k.ceil_div(g.n, NR)
    space, to = (panels.a_space, g.a_space) if ROLE == "a" else (panels.b_space, g.b_space)
    kc_max = panels.kc_max()
    row = panels.rows(count) if ROLE == "a" else None
    lo, hi = split(count, g.jc_ways, part)
    with k.loop(g.k, step=kc_max) as pc:
        kc = k.min(kc_max, g.k - pc)
        block = to + pc // kc_max * (count*space(kc_max))
        with k.loop(hi, lo) as q:
            panel = block + q*space(kc)
            if row:
                i, h = row(q), row(q + 1) - row(q)
                k.call(g.pack_a, kc, h, h, *panels.a_at(i, pc), panel, *panels.left(pc))
            else:
                cols = k.min(g.n - q*NR, NR)
                k.call(g.pack_b, kc, k.ceil_div(cols, V)*V, cols, *panels.b_at(pc, q*NR), panel, *panels.left(pc))
    return k.function


def emit_batch(target: CpuTarget) -> Function:
    """batch(job, tid): what thread `tid` of any team does for a batch of packed products; one alone does it all.

    Each thread has a copy of the products' job, which is that of one thread (ways of 1x1x1), and packs into memory of
    its own.
    """
    k = Kernel("batch_packed", noalias=False, job=ptr(i8), tid=i64)
    job, tid = k.args
    g = job_fields(k, job, BATCH[:-1], i8, driver=i8, product=i64)
    claimed = (job + offsets(BATCH)["claimed"]).as_(i64)
    own = k.local("own", (len(PACKED),), i64)
    at_index = own + PACKED.index("index")
    for at, name in enumerate(PACKED):
        own_space = tid*g.space_step if name in ("a_space", "b_space", "sums") else 0
        k.store(own + at, g.product[at] + own_space)
    first = {name: g.product[PACKED.index(name)] for name in "abc"}
    steps = {"a": g.a_step, "b": g.b_step, "c": g.c_step}
    index = k.variable(i64, k.atomic_add(claimed, 1, "monotonic"))
    with k.while_(lambda: index.get() < g.batch):
        for name in "abc":
            k.store(own + PACKED.index(name), first[name] + index.get()*steps[name])
        k.store(at_index, index.get())
        k.call(g.driver, own.as_(i8), k.constant(i64, 0))
        index.set(k.atomic_add(claimed, 1, "monotonic"))
    return k.function
