"""LLVM's part: recorded functions → optimised module → assembly or object code."""
from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm

from tilewright import forks
from tilewright.targets import AmdTarget, CpuTarget, GpuTarget

if TYPE_CHECKING:
    from tilewright.ir import Function
    from tilewright.targets import Target


# llvmlite lets one thread at a time into LLVM. It has no public way to say that none may be there in a fork.
forks.hold(llvm.ffi.lib._lock)


@cache
def _initialise() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()          # for inline assembly


@cache
def _short_addresses() -> None:
    """Addresses of shared memory take one register instead of two: an option of LLVM's back-end for PTX, which can only
    be set for the whole process. No other back-end knows it."""
    llvm.set_option("tilewright", "--nvptx-short-ptr")


@contextmanager
def uncollected() -> Iterator[None]:
    """What a kernel is recorded and lowered to is a million objects and no garbage: the collector stays out of it."""
    with forks.building:                        # a child would never switch it on again
        enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if enabled:
                gc.enable()


def machine(target: Target, jit: bool = False, level: int = 3) -> Any:
    """A new LLVM target machine. Kernels never use the red zone or anything else that a JIT could not place."""
    _initialise()
    if isinstance(target, GpuTarget):
        _short_addresses()
        return llvm.Target.from_triple(target.triple).create_target_machine(target.cpu, target.features, opt=3)
    if isinstance(target, AmdTarget):                           # a code object is a shared library: AMDGPUUsage
        return llvm.Target.from_triple(target.triple).create_target_machine(target.cpu, target.features, opt=3,
                                                                            reloc="pic")
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=level, reloc="pic", codemodel="jitdefault" if jit else "default",
        jit=jit)


def _listed(functions: Function | Iterable[Function]) -> list[Function]:
    from tilewright.ir.program import Function
    return [functions] if isinstance(functions, Function) else list(functions)


def text(functions: Function | Iterable[Function], target: Target, *, lines: bool = False) -> str:
    """The LLVM IR as it was lowered, before optimisation. NotImplementedError for what the target cannot do.

    `lines`: with debug locations.
    """
    from tilewright.ir import dialects
    from tilewright.ir.lower import lower
    from tilewright.ir.vectors import width
    functions = _listed(functions)
    from tilewright.compiler import gate
    gate.check(functions, target)
    lowered = str(lower(functions, dialects.for_triple(target.triple), lines, width(target),
                        isinstance(target, GpuTarget) and target.overlaps))
    # llvmlite writes a comma between a function's two metadata, as between an instruction's, and LLVM takes none there
    return re.sub(r"(?m)^(define .*), !dbg", r"\1 !dbg", lowered) if lines else lowered


def compiled(source: str, target: Target, level: int, jit: bool, kind: str) -> Any:
    """A module's "assembly" or "object" by LLVM's -O1 or -O3. Loops stay as written: kernels unroll themselves."""
    tm = machine(target, jit, level)
    module = llvm.parse_assembly(source)
    if not isinstance(target, CpuTarget):
        module.data_layout = str(tm.target_data)            # so that the passes know how long addresses are
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_unrolling = options.loop_vectorization = options.slp_vectorization = options.loop_interleaving = False
    passes = llvm.create_pass_builder(tm, options)
    passes.getModulePassManager().run(module, passes)
    return tm.emit_assembly(module) if kind == "assembly" else bytes(tm.emit_object(module))


def _code(functions: Function | Iterable[Function], target: Target, lines: bool, jit: bool, kind: str) -> Any:
    functions = _listed(functions)
    with uncollected():
        source = text(functions, target, lines=lines)
    return compiled(source, target, 1 if all(function.outer for function in functions) else 3, jit, kind)


def assembly(functions: Function | Iterable[Function], target: Target, *, lines: bool = False) -> str:
    """The target's assembly, which is PTX for a GPU of NVIDIA's and amdgcn for one of AMD's.

    `lines`: profilers and debuggers can show the Python line that recorded an instruction.
    """
    return _code(functions, target, lines, False, "assembly")


def object_code(functions: Function | Iterable[Function], target: CpuTarget | AmdTarget, *, lines: bool = False,
                jit: bool | None = None) -> bytes:
    """A relocatable object: for this process's loader (`jit`, by default of a CPU's code), else for a linker."""
    return _code(functions, target, lines, isinstance(target, CpuTarget) if jit is None else jit, "object")


def placed(code: bytes, target: CpuTarget) -> Any:
    """LLVM's engine with an object in this process, for machines that compiler/loader.py does not know."""
    empty = llvm.parse_assembly(f'target triple = "{target.triple}"')
    engine = llvm.create_mcjit_compiler(empty, machine(target, jit=True))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine
