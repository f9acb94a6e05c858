"""tilewright show: a kernel as an interactive page, every access recorded; or a figure of the sources."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.lab.cli import common, output
from tilewright.lab.cli.command import BadInput


def figure_names() -> list[str]:
    from tilewright.lab.drawing.catalogue import FIGURES

    return ["list", *FIGURES]


def show(
    arguments: Annotated[list[str] | None, typer.Argument(
        metavar="[M N K | FILE.py:KERNEL ARGUMENT...]", help="Sizes of a product; or a kernel of yours, and for each "
        "parameter an array's shape, 64x32, a whole number or a float.", show_default=False)] = None,
    step: common.Step = None,
    dtype: common.SomeDtype = None, layout: common.Layout = None,
    target: Annotated[str, typer.Option(
        "--target", "-t", metavar="LIST", help="Chips, such as sm_90a, gfx950, x86-avx2; with several the page has a "
        "switch.", **common.completed(common.target_names))] = "native",
    plan: common.Plan = None,
    grid: Annotated[str | None, typer.Option(
        "--grid", metavar="X,Y", help="CTAs of a kernel of yours.", show_default=False)] = None,
    whole: Annotated[bool, typer.Option(
        "--break/--no-break", help="Also run it without each of its barriers, waits and fences.")] = True,
    figure: Annotated[str | None, typer.Option(
        "--figure", "-f", metavar="NAME", help="A figure of the articles or the lecture instead, such as "
        "nvidia/bank_conflict, or the name without its source where only one has it; list names them all.",
        show_default=False, **common.completed(figure_names))] = None,
    path: Annotated[Path | None, typer.Option(
        "--output", "-o", metavar="FILE", help="The file to write: .html; of a figure .svg, or .png, which needs "
        "matplotlib.", show_default="show.html; a figure: standard output, as SVG", callback=output.checked)] = None,
) -> None:
    """Show a kernel at work: an HTML page, for any browser, without a network.

    The simulator runs the kernel and records every access: which thread touches which element, bank and sector, what is
    on its way, who waits for what, and what happens if a barrier is missing. Keep sizes small: some dozens of rows.
    docs/howto/show.md explains the page.
    """
    if figure is not None:
        _figure(figure, path)
        return
    text, title = _page(arguments or [], step, dtype, layout, target, plan, grid, whole)
    file = path or Path("show.html")
    output.write(file, text)
    typer.echo(f"wrote {file}, {len(text) / 1e3:,.0f} kB: {title}", err=True)


def _figure(name: str, to: Path | None) -> None:
    """A figure of the four sources from tilewright's own data: plans, recorded kernels, the simulator, formats."""
    from tilewright.lab.drawing.catalogue import FIGURES, find

    if name == "list":
        typer.echo(output.listed((key, drawn.title if drawn.drawn or drawn.measured else f"not drawn: {drawn.reason}")
                                 for key, drawn in FIGURES.items()))
        return
    drawn = find(name)
    if drawn.drawn:
        save(drawn.drawn(), to)
    elif drawn.measured:
        save(_row(drawn), to)
    else:
        raise BadInput(f"{drawn.key} is not drawn: {drawn.reason}")
    if to is not None:
        typer.echo(output.fill(f"{drawn.title}. {drawn.caption}"))


def _row(figure: Any) -> str:
    """The plot of a row of `tilewright reproduce`."""
    from tilewright.lab.reproduce import run
    from tilewright.lab.reproduce.row import Setting

    (row,) = run.rows_of(figure.source, [f"{figure.name}.png"])
    done = run.make(row, Setting(quick=True))
    if done.cell is None or not done.cell.svg:
        raise BadInput(f"{figure.key} is not drawn: {done.why or (done.cell and done.cell.text)}")
    return done.cell.svg


def save(drawn: object, to: Path | None) -> None:
    """A pen's picture, or SVG, to a file or to standard output."""
    if to is None:
        typer.echo(str(drawn), nl=False)
        return
    if to.suffix == ".png":
        from tilewright.lab.drawing import pen, raster

        if not isinstance(drawn, pen.Svg):
            raise BadInput(f"{to} cannot be written: this figure is drawn as SVG only")
        raster.png(drawn, to)
    else:
        output.write(to, str(drawn))
    typer.echo(f"wrote {to}", err=True)


def _page(arguments: list[str], step: str | None, dtype: str | None, layout: str | None, target: str, plan: str | None,
          grid: str | None, breaks: bool) -> tuple[str, str]:
    """The page and its title."""
    from tilewright.lab.show import build
    from tilewright.outputs import Progress
    from tilewright.simulator import Fault

    chips = [common.target(name) for name in common.listed([_home(step) if target == "native" else target])]
    own = bool(arguments) and ":" in arguments[0]
    if step and (plan or own):
        raise BadInput("give --step, a plan or a kernel of yours, one of them")
    sizes = None if own or not arguments else common.sizes(*_numbers(arguments))
    if not step and not own and sizes is None:
        raise BadInput("give sizes M N K, a kernel of yours as FILE.py:KERNEL, or --step NAME")
    records: list[dict[str, Any]] = []
    with Progress(common.console(True), "show", 60.0) as bar:
        try:
            for chip in chips:
                if own:
                    records.append(build.of_file(arguments[0], arguments[1:], chip, grid, breaks, bar.update))
                elif step:
                    records += build.of_step(step, chip, sizes, breaks, bar.update)
                elif sizes:
                    problem = common.problem(*sizes, dtype or "f32", layout)
                    records.append(build.of_problem(problem, chip, _plan(plan, chip), breaks, bar.update))
            forms = _formats(dtype, step, chips[0])
            text = build.document(records, chips, forms, f"tilewright {' '.join(sys.argv[1:])}", bar.update,
                                  step or "")
        except Fault as fault:
            output.fail(str(fault))
        except (ValueError, NotImplementedError) as error:
            raise BadInput(str(error)) from None
    return text, records[0]["title"]


def _home(step: str | None) -> str:
    """The chip of a step that is not of this machine's ladder."""
    from tilewright.lab.ladder import steps

    if step in steps.AMD_STEPS:
        return steps.AMD_STEPS[step].targets[0]
    return "sm_90a" if step in steps.GPU_LADDER and step not in steps.CPU_STEPS else "native"


def _formats(dtype: str | None, step: str | None, chip: Any) -> tuple[str, str]:
    """The formats of operands and result, for the planners."""
    from tilewright.lab.ladder import steps

    form = dtype or (getattr(steps.step(step, chip), "formats", ("f32",))[0] if step else "f32")
    first, *others = form.split("-")
    return first, others[-1] if others else first


def _plan(text: str | None, chip: Any) -> Any:
    from tilewright.plans import asked

    return None if text is None else asked.plan(text, chip)


def _numbers(arguments: list[str]) -> list[int]:
    try:
        values = [int(x) for x in arguments]
    except ValueError:
        raise BadInput(f"M, N and K are whole numbers, not {' '.join(arguments)}") from None
    if len(values) != 3:
        raise BadInput(f"give three sizes, M N K, not {len(values)}")
    return values
