"""Operations by which the threads of a CTA meet. What they mean is in `simulator.barriers`."""
from __future__ import annotations

from tilewright.ir.operations import Operation

# Nobody goes on before all threads of the CTA have come here; what they wrote before is then visible to all of them.
BARRIER = Operation("barrier", lambda low, t: low.call(low.dialect.barrier, None, low.i32(0)),
                    lambda gang, node: gang.barrier(node), "barrier", "blocking", needs="gpu")
# Orders this thread's accesses to global memory for the other CTAs; carries nothing by itself.
FENCE_DEVICE = Operation("fence_device", lambda low, t: low.call(low.dialect.fence, None),
                         lambda gang, node: gang.machine.atomics.fence(gang, node), "fence", "effect", needs="gpu")
