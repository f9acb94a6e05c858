"""The GPU as the rules of measurement want it, by torch: events, graphs, a flushed L2; and the operands of a case.

torch, because cuBLAS is called through it: all contenders run on its current stream and in its graphs.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.bench.gpu_measure import Launch
from tilewright.problem import Gemm

Tensor = Any
MOST_SETS = 512
PACKAGES = ("torch", "triton", "cuda-bindings", "nvidia-ml-py", "llvmlite")


class NoGpu(RuntimeError):
    """There is nothing to measure on; the message says what is missing."""


def why_not() -> str:
    """Why nothing can be measured here; "" if something can."""
    from tilewright.runtime.cuda import module

    if reason := module.why_not():
        return reason
    try:
        import torch
    except ImportError:
        return "torch, through which cuBLAS is called, is not installed"
    return "" if torch.cuda.is_available() else "this torch is built without CUDA"


def require() -> None:
    """NoGpu unless there is one."""
    if reason := why_not():
        raise NoGpu(f"no NVIDIA GPU here: {reason}")


class TorchDevice:
    """gpu_measure.Device for the CUDA device of this number."""

    def __init__(self, index: int = 0) -> None:
        import torch

        from tilewright.runtime.cuda import module

        require()
        self.torch, self.index = torch, index
        self.on = module.device(index)
        self.name = torch.device("cuda", index)
        torch.cuda.set_device(self.name)
        torch.backends.cuda.matmul.allow_tf32 = False  # f32 means f32
        self._other: Tensor | None = None

    def mark(self) -> Any:
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def graph(self, launches: Sequence[Launch]) -> Launch:
        self.wait()
        found = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(found):
            for launch in launches:
                launch()

        def run(keep: Any = launches) -> None:  # the operands must outlive the graph
            found.replay()

        return run

    def flush(self) -> None:
        if self._other is None:
            self._other = self.torch.empty(2 * self.on.target.l2, dtype=self.torch.uint8, device=self.name)
        self._other.zero_()

    def wait(self) -> None:
        """Until all is done.  RuntimeError for what went wrong on the device: it stays so, for this process."""
        self.torch.cuda.synchronize()

    @property
    def bus_id(self) -> str:
        """As NVML and nvidia-smi know the device."""
        domain, bus, number = (self.on.attribute(f"PCI_{part}_ID") for part in ("DOMAIN", "BUS", "DEVICE"))
        return f"{domain:08x}:{bus:02x}:{number:02x}.0"

    def describe(self) -> dict[str, Any]:
        """The chip and the versions, as JSON has them."""
        t, versions = self.on.target, {}
        for package in PACKAGES:
            try:
                versions[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
        return {
            "name": self.on.name, "target": t.name, "sms": t.sms, "l2": t.l2, "clock_hz": t.clock,
            "bandwidth": t.bandwidth, "cuda": self.torch.version.cuda, "packages": versions,
        }


@dataclass(frozen=True)
class Operands:
    """A [m, k] and B [k, n] (views of what is stored when transposed), and a C [m, n] to write to."""

    problem: Gemm
    a: Tensor
    b: Tensor
    c: Tensor


def make(on: TorchDevice, problem: Gemm, *, whole: bool = False) -> Operands:
    """Fresh random operands: normal, or `whole` numbers so small that any order of adding gives the same.

    C starts as nan, so that an element nobody wrote cannot pass for right.
    """
    torch = on.torch
    dtype = {"f32": torch.float32, "f64": torch.float64}[problem.a]

    def matrix(shape: tuple[int, int], letter: str) -> Tensor:
        x = torch.randint(-3, 4, shape, device=on.name) if whole else torch.randn(shape, device=on.name, dtype=dtype)
        return x.to(dtype) if letter == "n" else x.to(dtype).t()

    a, b = matrix(problem.shape_a, problem.layout[0]), matrix(problem.shape_b, problem.layout[1])
    c = torch.full((problem.m, problem.n), float("nan"), device=on.name, dtype=dtype)
    return Operands(problem, a, b, c)


def make_sets(on: TorchDevice, problem: Gemm) -> list[Operands]:
    """Operands enough that more than twice the L2 cache passes before any of them comes again; two at the least."""
    return [make(on, problem) for _ in range(sets(problem, on.on.target.l2))]


def sets(problem: Gemm, l2: int) -> int:
    """How many sets of operands rotate."""
    size = 8 if problem.a == "f64" else 4
    one = size * (problem.m * problem.k + problem.k * problem.n + problem.m * problem.n)
    return max(2, min(MOST_SETS, 1 + 2 * l2 // max(one, 1) + 1))
