"""tilewright plan, explain, emit, asm: how a problem would be computed, and with which code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.cli import common


def plan(
    m: common.M, n: common.N, k: common.K,
    dtype: common.Dtype = "f32", layout: common.Layout = "nn", target: common.TargetName = "native",
) -> None:  # fmt: skip
    """Print the plan for a problem: register tile, cache blocks, loops, threads."""
    with common.errors():
        import tilewright as tw

        problem, chip = common.problem(m, n, k, dtype, layout), common.target(target)
        chosen = tw.plan(problem, chip)
        typer.echo(f"{problem} on {chip.name}")
        typer.echo(str(chosen))
        for sentence in chosen.violations(problem, chip):
            typer.echo(f"not legal: {sentence}")


def explain(
    m: common.M, n: common.N, k: common.K,
    dtype: common.Dtype = "f32", layout: common.Layout = "nn", target: common.TargetName = "native",
) -> None:  # fmt: skip
    """Explain a problem's plan: why these blocks, bytes per level of memory, predicted and measured rate."""
    with common.errors():
        import tilewright as tw

        common.console().print(tw.explain(common.problem(m, n, k, dtype, layout), common.target(target)))


def emit(
    m: common.M, n: common.N, k: common.K,
    dtype: common.Dtype = "f32", layout: common.Layout = "nn", target: common.TargetName = "native",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write here: .ll, .s or .o.")] = None,
) -> None:  # fmt: skip
    """Print the LLVM IR of the kernel for a problem, or write its IR, assembly or object code to a file."""
    with common.errors():
        kernel = _compiled(m, n, k, dtype, layout, target)
        if output is None:
            typer.echo(kernel.llvm)
            return
        forms = {".ll": lambda: kernel.llvm.encode(), ".s": lambda: kernel.asm.encode(), ".o": lambda: kernel.object}
        if output.suffix not in forms:
            raise common.BadInput(f"--output must end in .ll (IR), .s (assembly) or .o (object code), got {output}")
        output.write_bytes(forms[output.suffix]())
        typer.echo(f"{output} written", err=True)


def asm(
    m: common.M, n: common.N, k: common.K,
    dtype: common.Dtype = "f32", layout: common.Layout = "nn", target: common.TargetName = "native",
    whole: Annotated[bool, typer.Option("--whole", help="The whole kernel, not only its hot loop.")] = False,
) -> None:  # fmt: skip
    """Print the hot loop of the kernel for a problem, with its FMAs, loads, registers and spills counted."""
    with common.errors():
        from tilewright.compiler import resources

        text = _compiled(m, n, k, dtype, layout, target).asm
        if whole:
            typer.echo(text)
            return
        loop = resources.hot_loop(text)
        typer.echo(loop.text)
        counts = {
            "FMAs": loop.fma, "vector loads": loop.loads, "element loads": loop.elements, "stores": loop.stores,
            "vector registers": loop.registers, "spills in loops": loop.spills,
        }  # fmt: skip
        typer.echo(f"\n{loop.function}: " + ", ".join(f"{count} {what}" for what, count in counts.items()))


def _compiled(m: int, n: int, k: int, dtype: str, layout: str, target: str) -> Any:
    """The kernel for a problem.  Nothing of it is run, so any target will do."""
    import tilewright as tw

    problem, chip = common.problem(m, n, k, dtype, layout), common.target(target)
    return tw.compile(problem, chip, tw.plan(problem, chip))
