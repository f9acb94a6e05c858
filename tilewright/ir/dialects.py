"""How each family of chips spells a kernel in LLVM IR: calling conventions, memory spaces, special registers.

What only GPUs have words for is a method, and `ir.nvptx` and `ir.amdgcn` have it; a CPU's gate refuses what needs one.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.ir.program import Function


@dataclass(frozen=True)
class Dialect:
    triple: str
    attributes: tuple[str, ...] = ()                            # of every function
    inner: tuple[str, ...] = ()                                 # and of those that only other functions call
    convention: str = ""                                        # calling convention of a kernel
    spaces: tuple[tuple[str, int], ...] = (("global", 0), ("local", 0))
    scope: str = ""                                             # of atomic accesses: LLVM's name; "": the whole system
    gpu: bool = False
    dynamic: bool = False           # shared memory beyond what a module declares is an argument of the launch
    flags: tuple[tuple[str, int], ...] = ()                     # of the module
    opaque_loads: bool = False      # LLVM's atomic loads need a pointer whose origin it does not know
    fenced_additions: bool = False  # LLVM writes no order into atomic additions, so fences on either side say it

    # ---- low is the lowering (ir.lower)

    def letter(self, low: Any, x: Any) -> str:
        """What inline assembly calls a register for a value like x."""
        return "r"

    def launched(self, low: Any, function: Function) -> list[str]:
        """Attributes of a kernel: how many threads a CTA has, and what is to fit."""
        return []

    def builtin(self, low: Any, name: str, t: Any) -> Any:
        """thread.x, block.z, grid.y ..."""
        raise NotImplementedError(f"{self.triple} has no {name}")

    def barrier(self, low: Any) -> None:
        """The threads of the CTA meet, and see what the others wrote."""
        raise NotImplementedError(f"{self.triple} has no barrier")

    def warp_barrier(self, low: Any) -> None:
        """The lanes of a warp meet."""
        raise NotImplementedError(f"{self.triple} has no warp barrier")

    def fence(self, low: Any) -> None:
        """Memory is ordered for the whole device."""
        raise NotImplementedError(f"{self.triple} has no fence for a device")

    def addition(self, low: Any, atomic: Any) -> None:
        """Say of an atomic addition what the compiler is to know of it."""

    def exchanged(self, low: Any, x: Any, mask: int, warp: int) -> Any:
        """The 32 bits x of the lane whose number differs in the bits of `mask`."""
        raise NotImplementedError(f"{self.triple} has no lanes")

    def shuffled(self, low: Any, x: Any, y: Any, indices: tuple[int, ...]) -> Any:
        """Elements of two vectors, counted through both."""
        return low.b.shuffle_vector(x, y, low.constant(indices, 32), "shuffle")

    def uniform(self, low: Any, x: Any) -> Any:
        """x, of which all lanes of a warp hold the same."""
        return x

    def direct(self, low: Any, bytes: int, smem: Any, gmem: Any, base: Any, size: Any) -> None:
        """A load straight into shared memory."""
        raise NotImplementedError(f"{self.triple} has no direct loads")

    def wait(self, low: Any, pending: int) -> None:
        """Until at most so many direct loads are under way."""
        raise NotImplementedError(f"{self.triple} has no direct loads")

    def shared(self, low: Any, load: Any) -> None:
        """Say of a load from shared memory what the compiler is to know of it."""

    def prefetch(self, low: Any, p: Any, write: bool, locality: int) -> None:
        low.call("llvm.prefetch.p0", None, p, low.i32(int(write)), low.i32(locality), low.i32(1))

    def streamed(self, low: Any, node: Any) -> bool:
        """Spell a store whose line need not stay in cache, if there is a word for it that LLVM has not."""
        return False


# noinline: a micro-kernel wants all registers to itself
X86 = Dialect("x86_64-unknown-linux-gnu",
              ("nounwind", '"prefer-vector-width"="512"', '"min-legal-vector-width"="512"', '"no-builtins"'),
              ("noinline",))
AARCH64 = Dialect("aarch64-unknown-linux-gnu", ("nounwind", '"no-builtins"'), ("noinline",))


def of(triple: str) -> Dialect:
    """The dialect of an LLVM triple, by its architecture."""
    from tilewright.ir.amdgcn import AMDGCN
    from tilewright.ir.nvptx import NVPTX
    return {d.triple.partition("-")[0]: d for d in (X86, AARCH64, NVPTX, AMDGCN)}[triple.partition("-")[0]]
