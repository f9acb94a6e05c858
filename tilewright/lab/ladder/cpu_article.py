"""Step 6 in the article's own order, for its own sizes of blocks: n_c, m_c and, for T threads, m_R T 5 and n_R T 50.

The article's matrices lie by columns. Its product is ours with rows and columns exchanged: its block of B, n_c columns
in L3, is n_c rows of our A, its block of A, m_c rows in L2, is m_c columns of our B, and its tile of m_R x n_R is n_R
rows of m_R columns here. So the loops are

    jc over our m, blocks of NC     its columns                                     A_packed [NC, KC] in L3
      pc over k, blocks of KC         pack A[jc, pc]
        ic over our n, blocks of MC     pack B[pc, ic]                              B_packed [KC, MC] in L2
          jr over NC, panels of n_R       one panel of A in L1, used by all of B_packed
            ir over MC, panels of m_R       the tile

where the other steps keep a block of A in L2 and one of B in L3. Blocks need not be multiples of the tile: 1535 is none
of 6. A team shares packing and tiles as in step 6; a team of one is the article's step before.
"""
from tilewright.ir import Kernel, i8, i64, ptr
from tilewright.kernels.cpu.pool import emit_barrier
from tilewright.lab.ladder import cpu4_blocked, cpu5_micro
from tilewright.lab.ladder.cpu2_registers import tiling
from tilewright.lab.ladder.cpu6_parallel import JOB

M_C, N_C = 1024, 1535           # the article's for one thread, on its processor
TILES = 5, 50                   # of a thread along m and n: m_c = m_R T 5, n_c = n_R T 50


def blocks(target, dtype, team):
    """(MC, KC, NC): the article's, by its rule for several threads; KC, which it does not name, is step 4's."""
    _, _, n_r, _, m_r = tiling(target, dtype)
    KC = cpu4_blocked.blocks(target, dtype)[1]
    return (M_C, KC, N_C) if team == 1 else (m_r * team * TILES[0], KC, n_r * team * TILES[1])


def work(target, dtype, m, n, depth, MC, KC, NC):
    """Elements of scratch memory: a packed block of A and one of B."""
    _, _, n_r, _, m_r = tiling(target, dtype)
    return KC * (-(-NC // n_r) * n_r + -(-MC // m_r) * m_r)


def emit_article(target, dtype, MC, KC, NC):
    """C[m, n] = A[m, depth] @ B[depth, n]: what thread `tid` of `team` does; `job` as in step 6."""
    T, _, MR, _, NR = tiling(target, dtype)             # the article's n_R and m_R
    pack_a, pack_b = cpu5_micro.emit_pack_a(target, dtype), cpu4_blocked.emit_pack_b(target, dtype)
    tile = cpu5_micro.emit_micro_tile(target, dtype)
    k = Kernel(f"ladder_article_{dtype}", noalias=False, job=ptr(i8), tid=i64)
    job, tid = k.args
    types = dict.fromkeys(JOB, i64) | dict.fromkeys(("a", "b", "c", "work"), ptr(T)) | {"barrier": ptr(i64)}
    m, n, depth, a, b, c, space, team, barrier = (k.field(job, 8 * x, types[name]) for x, name in enumerate(JOB))
    a, b, c = a.view(depth, 1), b.view(n, 1), c.view(n, 1)
    b_packed, a_packed = space, space + -(-MC // NR) * NR * KC

    def share(count):
        """This thread's part of `count` things: from, to."""
        return count * tid // team, count * (tid + 1) // team

    with k.loop(m, step=NC) as jc:
        nc = k.min(m - jc, NC)
        m_panels = k.ceil_div(nc, MR)
        with k.loop(k.max(depth, 1), step=KC) as pc:
            kc = k.min(depth - pc, KC)
            first, last = (panel * MR for panel in share(m_panels))
            k.call(pack_a, k.min(last, nc) - first, kc, a.at(jc + first, pc), depth, a_packed + first * kc)
            with k.loop(n, step=MC) as ic:
                mc = k.min(n - ic, MC)
                n_panels = k.ceil_div(mc, NR)
                first, last = (panel * NR for panel in share(n_panels))
                k.call(pack_b, kc, k.min(last, mc) - first, b.at(pc, ic + first), n, b_packed + first * kc)
                emit_barrier(k, barrier, team)              # packed, both A and B
                first, last = share(m_panels * n_panels)
                with k.loop(last, start=first) as t:
                    jr, ir = t // n_panels * MR, t % n_panels * NR
                    k.call(tile, kc, a_packed + jr * kc, b_packed + ir * kc, c.at(jc + jr, ic + ir), n,
                           k.min(nc - jr, MR), k.min(mc - ir, NR), pc)
                emit_barrier(k, barrier, team)              # used
    return k.function
