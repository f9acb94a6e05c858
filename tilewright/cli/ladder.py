"""tilewright ladder: teaching kernels for chips that this machine may not have, compiled, simulated and checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import common

if TYPE_CHECKING:
    from tilewright.targets import AmdTarget

app = typer.Typer(no_args_is_help=True, help="Teaching kernels for AMD's Matrix Cores, checked without a GPU.")

SIMULATED = "simulated, not run on hardware"
HEADINGS = ["step", "target", "instruction", "A by B", "cycles", "loads", "stores", "vector", "VGPRs", "spills",
            "linked", "whole numbers", "random numbers"]  # fmt: skip
LEGEND = """\
One wave and one matrix instruction each, whose cycles are those of a Matrix Core. Loads, stores and vector instructions
are counted in the machine code. Linked: bytes of the code object. Random numbers: the largest error, as a share of the
bound, which allows every product and every sum to be cut short to f32."""


@app.command()
def amd(
    name: Annotated[
        str | None,
        typer.Argument(metavar="STEP", help="f32, f16, fp8, mxfp8 or mxfp4: more about one.", show_default="all"),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", "-t", help="gfx942 or gfx950.", show_default="both", metavar="NAME")
    ] = None,
    asm: Annotated[bool, typer.Option("--asm", help="Print the machine code too.")] = False,
) -> None:  # fmt: skip
    """Five products by one wave, from f32 to fp4 with block scales, by one matrix instruction each.

    They are compiled for AMD's CDNA3 (gfx942) and CDNA4 (gfx950), linked where there is a linker, and run in the
    simulator: exactly on whole numbers, within the bound on random ones; anything else is exit status 1.
    docs/matrix-cores.md goes through them.
    """
    with common.errors():
        from tilewright import targets
        from tilewright.kernels.ladder.amd_steps import AMD_STEPS
        from tilewright.runtime import ladder_amd
        from tilewright.simulator import Fault

        chips = [targets.target(chip) for chip in ([target] if target else targets.names("amd"))]
        for chip in chips:
            if not isinstance(chip, targets.AmdTarget):
                raise common.BadInput(f"these steps are for AMD's GPUs, {' and '.join(targets.names('amd'))}, "
                                      f"and not for {chip.name}")  # fmt: skip
        chosen = [
            (each, chip)
            for each in ([name] if name else AMD_STEPS)
            for chip in chips
            if (name and target) or each not in AMD_STEPS or chip.name in AMD_STEPS[each].targets
        ]
        try:
            rows = [_row(*each) for each in chosen]
            typer.echo(f"{SIMULATED}\n")
            typer.echo(common.aligned([HEADINGS, *(row for row, _ in rows)]))
            typer.echo(f"\n{LEGEND}")
            for each, chip in chosen if name or asm else ():
                typer.echo(f"\n{AMD_STEPS[each].title} on {chip.name}: {AMD_STEPS[each].idea}")
                if name:
                    typer.echo(f"\n{ladder_amd.simulate(each, chip.name)[0]}")
                if asm:
                    typer.echo(f"\n{_listing(each, chip)}")
        except Fault as fault:
            typer.echo(f"tilewright: {fault}", err=True)
            raise typer.Exit(1) from None
        if not all(right for _, right in rows):
            typer.echo("tilewright: a product is wrong", err=True)
            raise typer.Exit(1)


def _row(name: str, chip: AmdTarget) -> tuple[list[str], bool]:
    """What a step did, in cells, and whether all was right."""
    from tilewright.runtime import ladder_amd

    step = ladder_amd.step(name, chip.name)
    atom = step.atom(chip.name)
    _, used, count = ladder_amd.code(name, chip)
    _, whole = ladder_amd.simulate(name, chip.name, "integers")
    _, random = ladder_amd.simulate(name, chip.name, "random")
    exact = int((whole.c == whole.expected).sum())
    kinds = atom.a_format if atom.a_format == atom.b_format else f"{atom.a_format} by {atom.b_format}"
    row = [step.title, chip.name, atom.name, kinds, *map(str, (
        atom.cycles[chip.name], count["load"], count["store"], count["vector"], used.vgprs,
        used.vgpr_spills + used.sgpr_spills)), _linked(name, chip),
        f"{exact} of {whole.c.size} exact", f"{random.error:.1%} of the bound"]  # fmt: skip
    return row, exact == whole.c.size and random.error <= 1


def _linked(name: str, chip: AmdTarget) -> str:
    from tilewright.compiler import amd as compiler
    from tilewright.compiler import lld
    from tilewright.runtime import ladder_amd

    try:
        return f"{len(compiler.code_object(ladder_amd.function(name, chip.name), chip)):,}"
    except lld.Missing:
        return "no linker"


def _listing(name: str, chip: Any) -> str:
    from tilewright.runtime import ladder_amd

    text, _, _ = ladder_amd.code(name, chip)
    return "\n".join(line for line, _ in ladder_amd.instructions(text, ladder_amd.function(name, chip.name).name))
