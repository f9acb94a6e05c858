"""Products across the ranks of torch.distributed: gathered rows, scattered and reduced sums, sharded layers, experts
(twd is this module).

    y = twd.all_gather_matmul(x, w)             # rows of all ranks times this rank's columns
    x = twd.matmul_reduce_scatter(y, v)         # this rank's rows of the sum over ranks

Communication is torch's: its groups and collectives, and its symmetric memory between GPUs of one host.
docs/distributed.md describes all of it.
"""

from tilewright.torch.distributed import sharding
from tilewright.torch.distributed.experts import apply_experts
from tilewright.torch.distributed.functions import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter
from tilewright.torch.distributed.peers import PeerTimeout, set_timeout
from tilewright.torch.distributed.styles import ColwiseParallel, RowwiseParallel

sharding.register()

__all__ = ["ColwiseParallel", "PeerTimeout", "RowwiseParallel", "all_gather_matmul", "apply_experts",
           "matmul_all_reduce", "matmul_reduce_scatter", "set_timeout"]
