"""Kernels for AMD's GPUs: what a person can read of them without one."""
from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tilewright.compiler import llvm

if TYPE_CHECKING:
    from tilewright.ir import Function
    from tilewright.targets import AmdTarget


def assembly(functions: Function | Iterable[Function], target: AmdTarget, *, lines: bool = False) -> str:
    """The amdgcn assembly of these kernels, with the metadata that a runtime reads."""
    return llvm.assembly(functions, target, lines=lines)
