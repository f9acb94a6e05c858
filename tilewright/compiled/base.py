"""What compiled kernels of all targets have in common: their code to be read, and how a GEMM is launched and run.

`Compiled` is one or several recorded functions on a target. `CompiledGemm` is a GEMM by one plan, which is recorded
only if its code is looked at; `GpuKernel` is that on a GPU: `nvidia` and `amd` say by which emitter and options, and
what the code uses. Nothing but calling a kernel needs the chip that it is for.
"""
from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tilewright.compiler import artefact
from tilewright.forks import cached_property

if TYPE_CHECKING:
    from tilewright.ir.program import Function
    from tilewright.problem import Gemm
    from tilewright.simulator.report import Report

EMPTY = "the product is empty: there is no code\n"


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel for a product: how many workgroups, and what it takes beside the operands. On a CPU the
    grid is the threads that call the function together. The launches of a product share workspace and counters."""
    kernel: Any
    grid: tuple[int, int, int]
    workspace: int = 0                              # bytes
    counters: int = 0                               # bytes, zero before and after
    more: tuple[tuple[str, int], ...] = ()          # further parameters, or instead of the operands', by name
    at: tuple[tuple[str, int], ...] = ()            # parameters that are addresses in the workspace: bytes from there
    zero: tuple[int, int] = (0, 0)                  # from which byte of the workspace on how many are 0 before

    @property
    def function(self) -> Function:
        """The kernel as it is recorded."""
        return self.kernel.function


class Compiled:
    """Recorded functions on one target, as code that can be read, counted and written out. The last is the one that is
    called; it may call the others."""

    forms: ClassVar[dict[str, str]]                 # suffix of a file → what it holds; the first is LLVM IR
    text_form: ClassVar[str]                        # the suffix of `asm`
    comment: ClassVar[str]                          # how a line of remark begins there
    beside: ClassVar[tuple[str, ...]] = ()          # forms whose manifest is written beside them

    def __init__(self, functions: Function | Iterable[Function], target: Any,
                 grid: tuple[int | str, ...] | None = None) -> None:
        from tilewright.ir.program import Function
        self.functions = (functions,) if isinstance(functions, Function) else tuple(functions)
        self.target, self.grid = target, grid

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(self.names)} on {self.target.name}>"

    @property
    def code_target(self) -> Any:
        """The target, with the features that the code uses beyond those which all such chips have."""
        return self.target

    @property
    def function(self) -> Function:
        """The one that is called, or launched."""
        if not self.functions:
            raise ValueError(self._no_code)
        return self.functions[-1]

    @property
    def empty(self) -> bool:
        """Is there no code?"""
        return not self.functions

    @property
    def names(self) -> list[str]:
        """Names of the functions."""
        return [function.name for function in self.functions]

    @property
    def _no_code(self) -> str:
        return f"{self!r} has no functions"

    @cached_property
    def llvm(self) -> str:
        """LLVM IR, as it was lowered and before optimisation."""
        from tilewright.compiler import llvm
        return f"; {EMPTY}" if self.empty else llvm.text(self.functions, self.code_target)

    @cached_property
    def asm(self) -> str:
        """Assembly after optimisation, which is PTX for a GPU of NVIDIA's; a remark if there is no code."""
        from tilewright.compiler import llvm
        return f"{self.comment} {EMPTY}" if self.empty else llvm.assembly(self.functions, self.code_target)

    @property
    def binary(self) -> bytes:
        """Machine code: an ELF object of a CPU, a cubin, a linked code object. ValueError if there is no code."""
        raise NotImplementedError

    @property
    def resources(self) -> Any:
        """What the code uses of the chip: a HotLoop of a CPU's, ptxas.Usage or amd.Usage. ValueError if there is none.

        registers   32-bit registers of a GPU's thread; vector registers of a CPU's hot loop
        spills      0 if no register goes through memory. CPUs: vectors moved to or from the stack in loops; NVIDIA:
                    bytes that a thread stores and loads; AMD: vector registers of a lane
        shared      bytes of shared memory (LDS) of a CTA that the code declares; 0 on a CPU
        """
        raise NotImplementedError

    @property
    def manifest(self) -> dict[str, Any]:
        """What another program must know to call or launch the code, in what JSON can say."""
        raise NotImplementedError

    def loop(self, function: str | None = None) -> Any:
        """The hot loop of a function, by default of the one that takes the longest: its `function`, its instructions as
        `text`, and the `counts` of each kind. ValueError where there is none."""
        raise NotImplementedError

    def report(self, function: str | None = None) -> str:
        """The hot loop's counts and what the code uses, in lines to be read."""
        raise NotImplementedError

    def listing(self, form: str) -> str | bytes:
        """The code in one of the `forms`, or as ".json" its manifest."""
        if form not in (*self.forms, ".json"):
            raise ValueError(f"code for {self.target.name} has the forms {', '.join(self.forms)}, not {form!r}")
        if form == ".json":
            return json.dumps(self.manifest, indent=2) + "\n"
        if form == ".ll":
            return self.llvm
        return self.asm if form == self.text_form else self.binary


class CompiledGemm(Compiled):
    """A GEMM by one plan. `kernel(a, b, out=c)` runs it, `kernel.bind(a, b, c)` makes a call ready, and
    `kernel.simulate(a, b)` runs it on NumPy, on any machine."""

    def __init__(self, problem: Gemm, target: Any, plan: Any) -> None:
        self.problem, self.target, self.plan = problem, target, plan

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.problem} on {self.target.name}: {self.plan}>"

    @property
    def _no_code(self) -> str:
        return f"{self.problem} is an empty product, for which there is no code"

    @property
    def empty(self) -> bool:
        """Has C no elements, or nothing to add up?"""
        return 0 in (self.problem.m, self.problem.n, self.problem.k)

    @property
    def launches(self) -> tuple[Launch, ...]:
        """What a product takes, on a GPU all of a batch; nothing if it is empty."""
        raise NotImplementedError

    @property
    def asked(self) -> tuple[artefact.Asked, ...]:
        """All code that a product by tilewright.matmul takes, as artefact.py is asked for it."""
        raise NotImplementedError

    @property
    def chosen(self) -> tuple[tuple[Any, Any], ...]:
        """(shape, plan) of what is multiplied, and of the products that stand in where it cannot be."""
        raise NotImplementedError

    def __call__(self, a: Any, b: Any, out: Any = None, *, alpha: Any = 1.0, beta: Any = 0.0) -> Any:
        """alpha * A @ B + beta * out by this kernel; into `out`, or into a new array.

        a and b are given as they are multiplied, [m, k] and [k, n] (with a leading axis if the problem has a batch): an
        operand of layout "t" is a view like x.T. A GPU's kernel uses arrays in its memory (torch, CuPy, DLPack) where
        they are, on their library's current stream; NumPy arrays are copied to the first GPU, and the result back, as
        Quantized operands are unless `out` is on a GPU. Operands in formats that no kernel of the target takes are
        converted before, and the result after, as tilewright.matmul does it. RuntimeError or ValueError if this machine
        cannot run the target's code.
        """
        raise NotImplementedError

    def bind(self, a: Any, b: Any, out: Any = None, *, alpha: Any = 1.0, beta: Any = 0.0) -> Any:
        """A call with these operands and everything ready: `bound()` multiplies them into `bound.out`, which is made if
        it is None, and returns it. Arrays are given as for a call; on a GPU they are in its memory, and Quantized
        operands are copied there."""
        raise NotImplementedError

    def simulate(self, a: Any, b: Any, out: Any = None, **options: Any) -> Report:
        """Runs the kernel on NumPy, with a report of what each line did: see tilewright.simulate. Of a GPU's kernel all
        `outs` are given; of several results of a CPU's `report.result` is a tuple."""
        from tilewright.simulator.product import simulate_kernel
        return simulate_kernel(self, a, b, out, **options)


class GpuCode(Compiled):
    """Recorded kernels for a GPU."""

    @cached_property
    def loadable(self) -> artefact.Code:
        """What a driver loads, and the manifests of the kernels."""
        return artefact.compiled(list(self.functions), self.target)
