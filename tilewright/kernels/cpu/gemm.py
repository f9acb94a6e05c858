"""The five loops: C = alpha * A @ B + beta * C by packed panels, for any number of threads.

    for jc: columns of C, nc at a time                        (jc ways: each has its own columns, and its own B block)
      for pc: k, kc at a time                                 the block of B, kc x nc, is packed into L3
        for ic: rows of C, mc at a time                       (ic ways) the block of A, mc x kc, is packed into L2
          for jr: column panels of B, NR wide                 (jr ways) one panel stays in L1
            for ir: row panels of A                           micro-kernel: an MR x NR tile of C in registers

The rows are cut into panels of equal height (or one less), so that no row of a tile is empty. A few threads have their
rows dealt out; each packs its share of B's panels just before it uses them for the first time, so that packing a panel
also brings it into its own cache, and after one barrier all panels are there for everyone. More than `FEW` threads
claim blocks of A one by one.

The order of additions to an element of C depends on kc alone: any split over threads gives the same bits.
"""
from __future__ import annotations

from types import SimpleNamespace

from tilewright.ir import Function, Kernel, Value, i8, i64, ptr
from tilewright.ir.tiles import Tiles
from tilewright.kernels.cpu.amx import AHEAD
from tilewright.kernels.cpu.in_place import job_fields, split
from tilewright.kernels.cpu.jobs import BARRIER_BYTES, PACKED, driver_name, panel_space
from tilewright.kernels.cpu.microkernel import LEAD, PACE, PACKED_WORDS, SOURCES, TYPES
from tilewright.kernels.cpu.packing_tiles import SOURCES as TILE_SOURCES
from tilewright.kernels.cpu.pool import emit_barrier
from tilewright.plans.amx import TILE_WORDS
from tilewright.targets.base import CpuTarget

CALLS = 8               # of the tiles' micro-kernel, in which it asks for a whole panel that comes next
COLUMNS = 128           # of A that are packed at a time where they are contiguous
FEW = 2                 # threads over rows up to which these are dealt out, not claimed


def emit_gemm(target: CpuTarget, dtype: str, MR: int, NV: int, A: str = "", B: str = "") -> Function:
    """gemm(job, tid): what thread `tid` of jc_ways*ic_ways*jr_ways does. All of them must run at once.

    A, B    their formats, if they are not `dtype`: packing converts them. Of complex ones C, k and n are those of the
            real product that packing_complex.py makes of it, and strides lead from one complex number to the next.
    """
    tile = TILE_WORDS.get(dtype)
    T = TYPES[tile.accumulates if tile else dtype]
    V = target.lanes(T.bytes)
    NR = NV * V
    sources = TILE_SOURCES if tile else SOURCES
    k = Kernel(driver_name(dtype, MR, NR, A, B), noalias=False, job=ptr(i8), tid=i64)
    job, tid = k.args
    C = TYPES[tile.sums] if tile else T
    g = job_fields(k, job, PACKED, T, C, a=sources[A or dtype], b=sources[B or dtype], c=C)
    a, b, c = g.a.view(g.rsa, g.csa), g.b.view(g.rsb, g.csb), g.c.view(*((1, g.ldc) if tile else (g.ldc, 1)))
    WORD = PACKED_WORDS.get(dtype, 1)                                       # steps of k in what is packed as one
    ROWS = tile.rows if tile else PACE                                      # of k, of which blocks have whole multiples
    PAIR = 2 if A.startswith("c") else 1            # steps of k, and columns of C, for each of complex operands

    def pairs(x: Value) -> Value: return x if PAIR == 1 else x // PAIR

    def source(p: Value) -> Value:                                          # the step of k of a packed row
        return tile.source_step(p) if tile else pairs(p*WORD)

    def left(p: Value) -> list[Value]:                                      # what packing of words is told, too
        special = [job.as_(i64) + PACKED.index("special")] if tile else []
        return [g.depth - source(p), *special] if tile or WORD > 1 else []

    jr_id, ic_id, jc_id = tid % g.jr_ways, tid // g.jr_ways % g.ic_ways, tid // (g.jr_ways * g.ic_ways)
    team = g.ic_ways * g.jr_ways                                            # threads that share a block of B
    team_barrier = g.barriers + jc_id*BARRIER_BYTES
    block_id = jc_id*g.ic_ways + ic_id                                      # and of A: jr_ways of them
    block_barrier = g.barriers + (g.jc_ways + block_id)*BARRIER_BYTES

    m_panels, n_panels = k.ceil_div(g.m, MR), k.ceil_div(g.n, NR)
    height, taller = g.m // m_panels, g.m % m_panels                       # the first `taller` have one row more
    def row(q: Value) -> Value: return k.min(q*MR, g.m) if tile else q*height + k.min(q, taller)

    q_lo, q_hi = split(m_panels, g.ic_ways, ic_id)
    a_blocks = k.max(k.ceil_div(q_hi - q_lo, g.mc_panels), 1)
    mc_panels = k.max(k.ceil_div(q_hi - q_lo, a_blocks), 1)
    j_lo, j_hi = split(n_panels, g.jc_ways, jc_id)
    b_blocks = k.max(k.ceil_div(j_hi - j_lo, g.nc_panels), 1)
    nc_panels = k.max(k.ceil_div(j_hi - j_lo, b_blocks), 1)
    kc_max = k.ceil_div(k.ceil_div(g.k, k.ceil_div(g.k, g.kc)), ROWS) * ROWS

    def b_panel_space(kc: Value) -> Value:
        return panel_space(kc, NR) + (NR if WORD > 1 else 0)

    a_space = g.a_space + block_id*(g.mc_panels*panel_space(g.kc, MR))
    b_space = g.b_space + jc_id*(g.nc_panels*b_panel_space(g.kc))

    # C is rounded while it is stored: its tiles are added up elsewhere, one after the other, or where there is but one
    # block of k each in the same place.
    finishing, again = g.finish.differs(0), g.k > kc_max
    tiles = k.select(again, g.sums + jc_id*(m_panels*g.nc_panels*(MR*NR)), k.local("tile", (MR*NR,), T))
    ld_place = k.select(finishing, k.constant(i64, NR), g.ldc)

    def pack_a(s: SimpleNamespace, q0: Value, q1: Value, shared: bool) -> None:
        """The block of A: rows of panels q0 ... q1, k from s.pc to s.pc + s.kc. If shared, by its jr_ways threads."""
        lo, hi = split(q1 - q0, g.jr_ways, jr_id) if shared else (k.constant(i64, 0), q1 - q0)
        # where A lies by columns, all panels take their part of a cache line before it is forgotten
        deep = k.select(g.rsa.equals(PAIR), k.constant(i64, -(-COLUMNS // ROWS) * ROWS), s.kc)
        with k.loop(s.kc, step=deep) as p, k.loop(hi, lo) as q:
            i, h = row(q0 + q), row(q0 + q + 1) - row(q0 + q)
            k.call(g.pack_a, k.min(deep, s.kc - p), h, h, a.at(i, source(s.pc + p)), g.rsa, g.csa,
                   a_space + (q*s.a_stride + p*(MR if tile else h)), *left(s.pc + p))
        if shared:
            with k.when(g.jr_ways > 1):
                emit_barrier(k, block_barrier, g.jr_ways)

    def pack_b(s: SimpleNamespace, jr: Value) -> None:
        """Panel jr of the block of B."""
        j = (s.jc + jr)*NR
        cols = k.min(g.n - j, NR)
        k.call(g.pack_b, s.kc, k.ceil_div(cols, V)*V, cols, b.at(source(s.pc), pairs(j)), g.csb, g.rsb,
               b_space + jr*s.b_stride, *left(s.pc))

    def ahead(s: SimpleNamespace, j: Value | None, panel: Value, more: Value) -> SimpleNamespace:
        """What the tiles' micro-kernel asks for in CALLS calls: the panel after this one, or the columns of B from j on
        of which it will be packed. In bytes: lines of a step, a step, a call."""
        assert tile is not None
        groups, bytes = s.kc // ROWS, g.b.type.element.bytes
        if j is None:
            step = AHEAD*tile.terms*64
            return SimpleNamespace(start=(panel + s.b_stride).as_(i8), more=more, within=k.constant(i64, step // 4),
                                   step=k.constant(i64, step), call=groups*step)
        depth, along = 16*tile.steps*bytes, g.rsb.equals(1)
        rows = g.rsb*(AHEAD*bytes)
        return SimpleNamespace(
            start=b.at(source(s.pc), j).as_(i8), more=more & (along | g.csb.equals(1)),
            within=k.select(along, g.csb, g.rsb)*bytes, step=k.select(along, depth, rows),
            call=k.select(along, g.csb*(AHEAD*bytes), groups*rows))

    def multiply(s: SimpleNamespace, j0: Value, j1: Value, q0: Value, q1: Value, packing: bool) -> None:
        """Panels j0 ... j1 of the block of B, packed first if `packing`, by panels q0 ... q1 of the block of A."""
        with k.loop(j1, j0) as jr:
            j = (s.jc + jr)*NR
            cols, b_panel = k.min(g.n - j, NR), b_space + jr*s.b_stride
            vectors = k.ceil_div(cols, V)
            if packing:
                pack_b(s, jr)
            if tile:
                coming = ahead(s, j + NR if packing else None, b_panel, jr + 1 < j1)
            elif packing:
                following, step = b.at(source(s.pc), pairs(j + NR)), g.rsb * sources[B or dtype].bytes
                more = (jr + 1 < j1) & g.csb.equals(PAIR)
            else:
                following, step, more = b_panel + s.b_stride, k.constant(i64, NR*T.bytes // WORD), jr + 1 < j1
            with k.loop(q1, q0) as ir:
                i, h = row(ir), row(ir + 1) - row(ir)
                place = k.select(finishing, tiles + (ir*s.nc + jr)*k.select(again, MR*NR, k.constant(i64, 0)),
                                 c.at(i, j))
                microkernel = k.load(g.table + (0 if tile else (h - 1)*NV + vectors - 1), ptr(i8))
                if tile:
                    done = ir - q0
                    k.call(microkernel, s.kc, b_panel, cols, a_space + done*s.a_stride, coming.within, place, ld_place,
                           h, g.alpha, s.beta, k.select(coming.more & (done < CALLS),
                           coming.start + done*coming.call, b_panel.as_(i8)), coming.step)
                else:
                    seen = (ir - q0)*s.ahead_rows                   # rows of the next panel of B that were prefetched
                    useful = more & (seen < (pairs(s.kc) if packing else s.kc))
                    k.call(microkernel, s.kc, a_space + (ir - q0)*s.a_stride, h, b_panel, vectors*V, place, ld_place,
                           cols, g.alpha, s.beta, k.select(useful, following.as_(i8) + seen*WORD*step, b_panel.as_(i8)),
                           k.select(useful, step, 0))
                with k.when(s.finishes):
                    k.call(g.finish, place, g.c, g.ldc, *((j, i, cols, h) if tile else (i, j, h, cols)))

    def dealt(s: SimpleNamespace) -> None:
        """Each thread has its own rows and its own panels of B, which it packs just before it first needs them."""
        jr_lo, jr_hi = split(s.nc, g.jr_ways, jr_id)                        # panels that this thread multiplies,
        own_lo, own_hi = (jr_lo + x for x in split(jr_hi - jr_lo, g.ic_ways, ic_id))    # and packs
        with k.loop(k.max(q_hi, q_lo + 1), q_lo, mc_panels) as q0:          # once at least: others need its panels of B
            q1, first = k.min(q0 + mc_panels, q_hi), q0.equals(q_lo)
            with k.when((q0 > q_lo) & (g.jr_ways > 1)):
                emit_barrier(k, block_barrier, g.jr_ways)                   # everyone is done with the block before
            pack_a(s, q0, q1, shared=True)
            with k.when(first):
                multiply(s, own_lo, own_hi, q0, q1, packing=True)
                with k.when(team > 1):
                    emit_barrier(k, team_barrier, team)
            with k.loop(2) as part:                                         # the panels before its own and those after,
                before = part.equals(0)                                     # which are done in the first block only
                lo = k.select(before, jr_lo, k.select(first, own_hi, jr_hi))
                hi = k.select(before & first, own_lo, jr_hi)
                multiply(s, lo, hi, q0, q1, packing=False)

    def claimed(s: SimpleNamespace, before: Value) -> None:
        """All pack B; then blocks of A go to whoever is free, so that nobody waits long for a core that is held up.
        `before` is how far earlier blocks of B have advanced the counter: every thread claims once too often."""
        own_lo, own_hi = split(s.nc, team, ic_id)
        with k.loop(own_hi, own_lo) as jr:
            pack_b(s, jr)
        emit_barrier(k, team_barrier, team)
        block = k.variable(i64, k.atomic_add(claims, 1) - before)
        with k.while_(lambda: block.get() < m_blocks):
            q0 = block.get()*g.mc_panels
            q1 = k.min(q0 + g.mc_panels, m_panels)
            pack_a(s, q0, q1, shared=False)
            multiply(s, k.constant(i64, 0), s.nc, q0, q1, packing=False)
            block.set(k.atomic_add(claims, 1) - before)

    if tile:
        Tiles(k).configure()
    many = g.jr_ways.equals(1) & (g.ic_ways > FEW)
    claims = (team_barrier + BARRIER_BYTES // 2).as_(i64)
    m_blocks = k.ceil_div(m_panels, g.mc_panels)
    before = k.variable(i64, 0)
    with k.loop(j_hi, j_lo, nc_panels) as jc:
        with k.loop(g.k, step=kc_max) as pc:
            kc = k.min(kc_max, g.k - pc)
            s = SimpleNamespace(jc=jc, pc=pc, kc=kc, nc=k.min(nc_panels, j_hi - jc),
                                beta=k.select(pc.equals(0), g.beta, 1.0),
                                finishes=finishing & (pc + kc).equals(g.k),
                                a_stride=panel_space(kc, MR), b_stride=b_panel_space(kc),
                                ahead_rows=k.max(kc // PACE - (MR + LEAD), 0))
            with k.when(many):
                claimed(s, before.get())
                before.set(before.get() + m_blocks + team)
            with k.otherwise():
                dealt(s)
            with k.when(team > 1):
                emit_barrier(k, team_barrier, team)                         # before the block of B is packed over
    if tile:
        Tiles(k).release()
    return k.function
