"""What `tilewright emit` and `tilewright asm` have in common: whose code it is, files to write, loops to show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.cli import common
from tilewright.cli import output as files

MANIFEST = {"symbol", "arguments", "grid"}  # some of what compiler.manifest always has

Named = Annotated[
    str | None,
    typer.Option("--kernel", metavar="NAME", help="For AMD's GPUs: axpy (y = a x + y), or a step of the ladder.",
                 show_default=False),
]


def found(sizes: tuple[int | None, int | None, int | None], dtype: str, layout: str | None, chip: Any,
          plan: str | None, step: str | None, kernel: str | None) -> Any:
    """The compiled kernel of a problem, of a step of the target's ladder, or of this name."""
    import tilewright as tw

    option = "--kernel" if kernel is not None else "--step"
    if kernel is None and step is None:
        return tw.compile(common.problem(*common.sizes(*sizes), dtype, layout), chip, plan)
    if kernel is not None and step is not None:
        raise common.BadInput("give --step or --kernel, not both")
    if any(size is not None for size in sizes):
        raise common.BadInput(f"give M N K or {option}, not both")
    if plan is not None:
        raise common.BadInput(f"give --plan or {option}, not both: such a kernel has no plan")
    from tilewright.ladder import run

    if kernel is None:
        return run.compiled(step or "", chip, dtype)
    if common.kind(chip) != "amd":
        raise common.BadInput(f"--kernel is for AMD's GPUs (--target gfx942), and {chip.name} is none; --step takes a "
                              "step of its ladder")
    if kernel == "axpy":
        return _axpy(chip)
    from tilewright.ladder.steps import AMD_STEPS

    if kernel not in AMD_STEPS:
        raise common.BadInput(f"there is no kernel {kernel!r}; there are: axpy, {', '.join(AMD_STEPS)}")
    return run.compiled(kernel, chip)


def _axpy(chip: Any, threads: int = 256) -> Any:
    from tilewright.compiled.compile import compiled
    from tilewright.kernels.elementwise import emit_axpy

    return compiled(emit_axpy(threads, chip.warp), chip, (f"(n + {threads - 1}) // {threads}",))


# ---- files


def write(kernel: Any, output: Path) -> list[str]:
    """Write the kernel in the form that the file's suffix names, beside a code object its manifest as .json; what was
    written."""
    manifest = output.with_suffix(".json") if output.suffix in kernel.beside else None
    if manifest is not None:
        _require_own(manifest)
    files.write(output, kernel.listing(output.suffix))
    if manifest is None:
        return [str(output)]
    files.write(manifest, kernel.listing(".json"))
    return [str(output), f"{manifest} (its manifest)"]


def _require_own(path: Path) -> None:
    """BadInput if there is a file that is not a manifest of an earlier code object."""
    try:
        there = json.loads(path.read_text())
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        there = None
    if not (isinstance(there, dict) and there.keys() >= MANIFEST):
        raise common.BadInput(f"the manifest of the code object would overwrite {path}, which is another kind of file: "
                              "choose another --output, or move it")


# ---- loops


def show(kernel: Any, function: str | None, names: bool, whole: bool) -> None:
    """The names of the functions, the whole of the assembly, or the hot loop with what it consists of."""
    if names:
        typer.echo("\n".join(kernel.names))
    elif whole:
        typer.echo(kernel.asm)
    else:
        try:
            text = f"{kernel.loop(function).text}\n"
        except ValueError:  # no loop, which the report says, too
            text = ""
        typer.echo(f"{text}\n{kernel.report(function)}")
