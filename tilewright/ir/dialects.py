"""How each family of chips spells a kernel in LLVM IR: calling conventions, memory spaces, special registers."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dialect:
    triple: str
    convention: str = ""                                        # calling convention of a kernel
    spaces: tuple[tuple[str, int], ...] = (("global", 0), ("local", 0))
    builtins: str = ""                                          # intrinsic that reads a thread index, with {} for it
    attributes: tuple[str, ...] = ()                            # of every function
    inner: tuple[str, ...] = ()                                 # and of those that only other functions call
    barrier: str = ""                                           # intrinsic at which the threads of a CTA meet
    warp_barrier: str = ""                                      # and one at which the lanes of a warp meet
    fence: str = ""                                             # and one that orders memory for the whole device
    scope: str = ""                                             # of atomic accesses: LLVM's name; "": the whole system

    @property
    def gpu(self) -> bool:
        return bool(self.builtins)


# noinline: a micro-kernel wants all registers to itself
X86 = Dialect("x86_64-unknown-linux-gnu",
              attributes=("nounwind", '"prefer-vector-width"="512"', '"min-legal-vector-width"="512"', '"no-builtins"'),
              inner=("noinline",))
AARCH64 = Dialect("aarch64-unknown-linux-gnu", attributes=("nounwind", '"no-builtins"'), inner=("noinline",))
# convergent: a function may hold a barrier, so no call may move to where only some of the threads come by
NVPTX = Dialect("nvptx64-nvidia-cuda", "ptx_kernel", (("global", 1), ("shared", 3), ("cluster", 7), ("local", 0)),
                "llvm.nvvm.read.ptx.sreg.{}", ("nounwind", "convergent"), (), "llvm.nvvm.barrier.cta.sync.aligned.all",
                "llvm.nvvm.bar.warp.sync", "llvm.nvvm.membar.gl", "device")


def of(triple: str) -> Dialect:
    """The dialect of an LLVM triple, by its architecture."""
    return {d.triple.partition("-")[0]: d for d in (X86, AARCH64, NVPTX)}[triple.partition("-")[0]]
