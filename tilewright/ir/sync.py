"""Operations by which threads of a CTA, or of a warp, meet. What they mean is in `simulator.barriers`."""
from __future__ import annotations

from tilewright.ir.operations import Operation

# Nobody goes on before all threads of the CTA have come here; what they wrote before is then visible to all of them.
BARRIER = Operation("barrier", lambda low, t: low.dialect.barrier(low),
                    lambda gang, node: gang.barrier(node), "barrier", "blocking", needs="gpu")
# Nobody goes on before all lanes of the warp have come here, and the compiler moves no access to memory across it.
WARP_BARRIER = Operation("warp_barrier", lambda low, t: low.dialect.warp_barrier(low),
                         lambda gang, node: gang.warp_barrier(node), "warp barrier", "effect", needs="gpu")
# Orders this thread's accesses to global memory for the other CTAs; carries nothing by itself.
FENCE_DEVICE = Operation("fence_device", lambda low, t: low.dialect.fence(low),
                         lambda gang, node: gang.machine.atomics.fence(gang, node), "fence", "effect", needs="gpu")
