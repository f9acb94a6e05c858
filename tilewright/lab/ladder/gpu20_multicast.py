"""GPU step 20, multicast: two CTAs share a tile of B, which L2 delivers once.

CTAs one below the other multiply by the same rows of B. In a cluster of two, which run at the same time, each asks for
one half of the tile and has it written to the shared memory of both: a CTA takes 128 + 128 rows from L2 for a tile of
128 x 256, instead of 128 + 256.

A copy now writes into another CTA. So a stage is empty only when the warps of both CTAs have read it: each arrives at
the `empty` of both. The bytes that `full` waits for stay the same: each CTA's own copies of A, and both halves of B.
"""
from tilewright.lab.ladder.gpu19_roles import N, emit_roles

CTAS = 2


def emit_multicast():
    return emit_roles("gpu20_multicast", CTAS, load)


def load(k, g, full, a_smem, b_smem, stage, at_a, at_b):
    """All of A's tile for this CTA, and its share of B's for all CTAs."""
    (p, j0), share = at_b, k.cluster_rank * (N // CTAS)
    full.load(a_smem.at(stage, 0, 0), g.a, at_a, stage)
    full.load(b_smem.at(stage, share, 0), g.b, (p, j0 + share), stage, ctas=(1 << CTAS) - 1)
