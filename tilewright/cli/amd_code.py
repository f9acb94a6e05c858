"""What `tilewright emit` and `tilewright asm` do for AMD's GPUs: files to load elsewhere, and the main loop counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from tilewright.cli import common

# suffix → what it is, and which attribute of a compiled kernel holds it
FORMS = {".ll": ("IR", "llvm"), ".s": ("assembly", "asm"), ".hsaco": ("code object, by lld", "code_object")}


def is_amd(chip: Any) -> bool:
    from tilewright.targets import AmdTarget

    return isinstance(chip, AmdTarget)


def named(name: str, chip: Any) -> Any:
    """A kernel that is no GEMM: a step of the ladder, or axpy."""
    from tilewright.compiler.amd import AmdFunction
    from tilewright.kernels.elementwise import emit_axpy
    from tilewright.kernels.ladder.amd_steps import AMD_STEPS

    if not is_amd(chip):
        raise common.BadInput(f"--kernel is for AMD's GPUs, and {chip.name} is none: --target gfx942")
    if name == "axpy":
        threads = 256
        return AmdFunction(emit_axpy(threads, chip.warp), chip, (f"(n + {threads - 1}) // {threads}",))
    if name not in AMD_STEPS:
        raise common.BadInput(f"there is no kernel {name!r}; there are: axpy, {', '.join(AMD_STEPS)}")
    step = AMD_STEPS[name]
    if chip.name not in step.targets:
        raise common.BadInput(f"{chip.name} cannot run {name}: its instruction is one of {', '.join(step.targets)}")
    return AmdFunction(step.emit(chip.name), chip, (1,))


def write(kernel: Any, output: Path) -> None:
    """The kernel in the form that the file's suffix names; beside a code object, its manifest as .json."""
    code = getattr(kernel, FORMS[output.suffix][1])
    output.write_bytes(code if isinstance(code, bytes) else code.encode())
    if output.suffix == ".hsaco":
        output.with_suffix(".json").write_text(json.dumps(kernel.manifest, indent=2) + "\n")


def show(kernel: Any, whole: bool) -> None:
    """The main loop, or all of the assembly; what it uses of a compute unit; a static cycle count."""
    from tilewright.compiler import amd_cycles
    from tilewright.compiler.amd_loop import main_loop

    if whole:
        typer.echo(kernel.asm)
        return
    name = kernel.function.name
    try:
        typer.echo("\n".join(f"\t{line}" for line in main_loop(kernel.asm, name)))
        found: Any = amd_cycles.count(kernel.function, kernel.target, kernel.asm)
    except ValueError as error:  # without a loop there is no main one
        found = error
    typer.echo(f"\n{name}: {kernel.resources}\n{found}")
