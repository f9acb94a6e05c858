"""Operations of a thread block cluster: CTAs that run at once, meet, and read one another's shared memory.

What they mean is in `simulator.clusters`.
"""
from __future__ import annotations

from tilewright.ir.operations import Operation

# This thread has come, and what it did before is for all threads of the cluster to see (release); it goes on.
ARRIVE = Operation("cluster_arrive", lambda low, t: low.call("llvm.nvvm.barrier.cluster.arrive.aligned", None),
                   lambda gang, node: gang.machine.clusters.arrive(gang, node), "cluster barrier", "effect",
                   needs="cluster")
# Nobody goes on before all threads of the cluster have come; what they did before that is then visible (acquire).
WAIT = Operation("cluster_wait", lambda low, t: low.call("llvm.nvvm.barrier.cluster.wait.aligned", None),
                 lambda gang, node: gang.machine.clusters.wait(gang, node), "cluster barrier", "blocking",
                 needs="cluster")
# The place in another CTA's shared memory that corresponds to one of this CTA's.
OF_CTA = Operation("of_cta", lambda low, t, p, rank: low.call("llvm.nvvm.mapa.shared.cluster", t, p, rank, name="at"),
                   lambda gang, node, p, rank: gang.machine.clusters.of_cta(gang, node, p, rank), "integer", "effect",
                   needs="cluster")
