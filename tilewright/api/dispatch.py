"""The engines behind matmul, each imported by the first product that needs it: importing tilewright must not load a
compiler.
"""

from __future__ import annotations

from typing import Any

from tilewright import forks
from tilewright.plans import asked
from tilewright.runtime.gpu.arrays import CUDA, library_of
from tilewright.targets import AmdTarget, GpuTarget

_cpu: Any = None
_gpu: Any = None
_rocm: Any = None


def cpu() -> Any:
    """tilewright.runtime.cpu.engine."""
    global _cpu
    if _cpu is None:
        _cpu = forks.imported("tilewright.runtime.cpu.engine")
    return _cpu


def gpu() -> Any:
    """tilewright.runtime.gpu.nvidia, for CUDA devices."""
    global _gpu
    if _gpu is None:
        _gpu = forks.imported("tilewright.runtime.gpu.nvidia")
    return _gpu


def rocm() -> Any:
    """tilewright.runtime.gpu.amd, for AMD's GPUs."""
    global _rocm
    if _rocm is None:
        _rocm = forks.imported("tilewright.runtime.gpu.amd")
    return _rocm


def of_arrays(*arrays: Any) -> Any:
    """The engine of the first of these that is in a GPU's memory; None if none is."""
    for x in arrays:  # it is asked at every product, and a generator takes longer than the question
        library = library_of(x)
        if library is not None:
            return (_gpu or gpu()) if library.platform is CUDA else (_rocm or rocm())
    return None


def for_plan(plan: Any) -> Any:
    """For NumPy arrays: the processor's, unless the plan is one for a CUDA device."""
    return _gpu or gpu() if asked.is_for(plan, GpuTarget) else _cpu or cpu()


def is_amd(plan: Any) -> bool:
    """Is it a plan for an AMD GPU?"""
    return asked.is_for(plan, AmdTarget)
