"""Step 6, parallel: a team of threads shares the packing and the tiles of every block. The article's section 9.

The outer three loops have few rounds, since their blocks are as large as caches, so all threads walk them together.
What has many rounds is split: the panels that are packed, and the tiles of the two inner loops, counted as one (the
article's `collapse(2)`). Each thread takes one contiguous share, which gives it panels of B of its own and the same
block of A as the others, a copy in each L2.

A block must be packed before anyone multiplies with it, and no longer in use when the next one is packed over it: two
barriers a block. Which thread computes a tile does not change how: the result has the same bits for any team.
"""
from tilewright.ir import Kernel, i8, i64, ptr
from tilewright.kernels.cpu.pool import emit_barrier
from tilewright.lab.ladder import cpu4_blocked, cpu5_micro
from tilewright.lab.ladder.cpu2_registers import tiling

JOB = ("m", "n", "depth", "a", "b", "c", "work", "team", "barrier")     # what the caller hands to all: 8 bytes each


def blocks(target, dtype, team):
    """(MC, KC, NC) of step 5, with the same number of panels of A for every thread to pack."""
    MR = tiling(target, dtype).MR
    MC, KC, NC = cpu5_micro.blocks(target, dtype)
    return -(-MC // (MR * team)) * MR * team, KC, NC


def emit_parallel(target, dtype, MC, KC, NC):
    """C[m, n] = A[m, depth] @ B[depth, n]: what thread `tid` of `team` does. `barrier` is an i64 in a cache line of its
    own, 0 at the start; `work` is that of step 4."""
    T, _, MR, _, NR = tiling(target, dtype)
    pack_a, pack_b = cpu5_micro.emit_pack_a(target, dtype), cpu4_blocked.emit_pack_b(target, dtype)
    tile = cpu5_micro.emit_micro_tile(target, dtype)
    k = Kernel(f"ladder6_parallel_{dtype}", noalias=False, job=ptr(i8), tid=i64)
    job, tid = k.args
    types = dict.fromkeys(JOB, i64) | dict.fromkeys(("a", "b", "c", "work"), ptr(T)) | {"barrier": ptr(i64)}
    m, n, depth, a, b, c, work, team, barrier = (k.field(job, 8 * x, types[name]) for x, name in enumerate(JOB))
    a, b, c = a.view(depth, 1), b.view(n, 1), c.view(n, 1)
    a_packed, b_packed = work, work + MC * KC

    def share(count):
        """This thread's part of `count` things: from, to."""
        return count * tid // team, count * (tid + 1) // team

    with k.loop(n, step=NC) as jc:
        nc = k.min(n - jc, NC)
        n_panels = k.ceil_div(nc, NR)
        with k.loop(k.max(depth, 1), step=KC) as pc:
            kc = k.min(depth - pc, KC)
            first, last = (panel * NR for panel in share(n_panels))
            k.call(pack_b, kc, k.min(last, nc) - first, b.at(pc, jc + first), n, b_packed + first * kc)
            with k.loop(m, step=MC) as ic:
                mc = k.min(m - ic, MC)
                m_panels = k.ceil_div(mc, MR)
                first, last = (panel * MR for panel in share(m_panels))
                k.call(pack_a, k.min(last, mc) - first, kc, a.at(ic + first, pc), depth, a_packed + first * kc)
                emit_barrier(k, barrier, team)              # packed, both A and B
                first, last = share(n_panels * m_panels)
                with k.loop(last, start=first) as t:
                    jr, ir = t // m_panels * NR, t % m_panels * MR
                    k.call(tile, kc, a_packed + ir * kc, b_packed + jr * kc, c.at(ic + ir, jc + jr), n,
                           k.min(mc - ir, MR), k.min(nc - jr, NR), pc)
                emit_barrier(k, barrier, team)              # used
    return k.function
