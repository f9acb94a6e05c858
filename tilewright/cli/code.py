"""What `tilewright emit` and `tilewright asm` have in common: whose code it is, files to write, loops to show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.cli import common
from tilewright.cli import output as files

# For each family of targets: suffix → what it is, and which attribute of a compiled kernel holds it
FORMS = {
    "cpu": {".ll": ("IR", "llvm"), ".s": ("assembly", "asm"), ".o": ("object code", "object")},
    "gpu": {".ll": ("IR", "llvm"), ".ptx": ("PTX", "ptx"), ".cubin": ("machine code, by ptxas", "cubin")},
    "amd": {".ll": ("IR", "llvm"), ".s": ("assembly", "asm"), ".hsaco": ("code object, by lld", "code_object")},
}
MANIFEST = {"symbol", "arguments", "grid"}  # some of what compiler.amd.manifest always has

Named = Annotated[
    str | None,
    typer.Option("--kernel", metavar="NAME", help="For AMD's GPUs: axpy, which is no GEMM, or a step of the ladder.",
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
    from tilewright.ladder.amd_steps import AMD_STEPS

    if kernel not in AMD_STEPS:
        raise common.BadInput(f"there is no kernel {kernel!r}; there are: axpy, {', '.join(AMD_STEPS)}")
    return run.compiled(kernel, chip)


def _axpy(chip: Any, threads: int = 256) -> Any:
    from tilewright.compiler.amd import AmdFunction
    from tilewright.kernels.elementwise import emit_axpy

    return AmdFunction(emit_axpy(threads, chip.warp), chip, (f"(n + {threads - 1}) // {threads}",))


# ---- files


def write(kernel: Any, output: Path, forms: dict[str, tuple[str, str]]) -> list[str]:
    """Write the kernel in the form that the file's suffix names, beside a code object its manifest as .json; what was
    written."""
    manifest = output.with_suffix(".json") if output.suffix == ".hsaco" else None
    if manifest is not None:
        _require_own(manifest)
    code = getattr(kernel, forms[output.suffix][1])
    files.write(output, code)
    if manifest is None:
        return [str(output)]
    files.write(manifest, json.dumps(kernel.manifest, indent=2) + "\n")
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


def show(kernel: Any, chip: Any, function: str | None, names: bool, whole: bool) -> None:
    """The names of the functions, the whole of the assembly, or the hot loop with what it consists of."""
    from tilewright.inspect import resources

    family = common.kind(chip)
    if names:
        functions = resources.ptx_functions if family == "gpu" else resources.functions
        typer.echo("\n".join(functions(kernel.asm)))
    elif whole:
        typer.echo(kernel.asm)
    else:
        {"cpu": _cpu_loop, "gpu": _ptx_loop, "amd": _amd_loop}[family](kernel, chip, function)


def _cpu_loop(kernel: Any, chip: Any, function: str | None) -> None:
    from tilewright.inspect import resources

    loop = kernel.resources if function is None else resources.hot_loop(kernel.asm, function)
    typer.echo(loop.text)
    counts = {
        "vector FMAs": loop.fma, "vector loads": loop.loads, "element loads": loop.elements, "stores": loop.stores,
        "vector registers": loop.registers, "spills": loop.spills,
    }
    typer.echo(f"\n{loop.function}: " + ", ".join(f"{count} {what}" for what, count in counts.items()))


def _ptx_loop(kernel: Any, chip: Any, function: str | None) -> None:
    from tilewright.compiler import ptxas
    from tilewright.inspect import resources

    text = kernel.ptx
    loop = resources.ptx_loop(text, function)
    typer.echo(loop.text)
    typer.echo(f"\n{loop.function}: " + ", ".join(f"{count} {what}" for what, count in loop.counts.items() if count))
    try:
        used = ptxas.assemble(text, chip.name)[1][loop.function]
    except ptxas.Missing as missing:
        typer.echo(f"registers and spills are not known: {missing}")
        return
    spills = f"{used.spill_stores} bytes of spills stored and {used.spill_loads} loaded"
    typer.echo(f"{used.registers} registers a thread, {spills}")
    (x, y), shared = kernel.function.threads, kernel.function.shared_bytes
    ctas = chip.occupancy(x * y, used.registers, shared)
    typer.echo(f"CTAs of {x * y} threads and {shared} bytes of shared memory, {ctas} on a multiprocessor")


def _amd_loop(kernel: Any, chip: Any, function: str | None) -> None:
    """The main loop, what the kernel uses of a compute unit, and a static cycle count."""
    from tilewright.inspect import amd_cycles
    from tilewright.inspect.amd_loop import main_loop

    name = kernel.function.name
    if function not in (None, name):
        raise common.BadInput(f"no function {function} in this assembly; there is {name}")
    try:
        typer.echo("\n".join(f"\t{line}" for line in main_loop(kernel.asm, name)))
        found: Any = amd_cycles.count(kernel.function, kernel.target, kernel.asm)
    except ValueError as error:  # without a loop there is no main one
        found = error
    typer.echo(f"\n{name}: {kernel.resources}\n{found}")
