"""tilewright simulate: the kernels of a problem on NumPy, their product checked, and what each of their lines did."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tilewright.cli import common, output

MOST = {"cpu": 2e8, "gpu": 2e9}  # multiply-adds: a few minutes


def simulate(
    m: common.SomeM = None, n: common.SomeN = None, k: common.SomeK = None,
    dtype: common.Dtype = "f32", layout: common.Layout = None, target: common.TargetName = "native",
    plan: Annotated[
        str | None,
        typer.Option("--plan", "-p", metavar="PLAN", help="A plan, as `tilewright plan` prints it.",
                     show_default="the model's choice"),
    ] = None,
    step: common.Step = None,
    beta: Annotated[
        float, typer.Option(metavar="X", help="Compute A B + X C; C is filled with whole numbers first.")
    ] = 0.0,
    anyway: Annotated[bool, typer.Option("--anyway", help="Simulate a large problem too, which takes long.")] = False,
    json: output.Json = None,
) -> None:
    """Run the kernels of a problem in the simulator, which needs no GPU, on whole numbers.

    Prints what each line of the kernels moved and what that cost (sectors, cache lines, passes over the banks), the
    instructions, and for a GPU the occupancy. With --step it is a kernel of the target's ladder; M, N and K may be left
    out for those of AMD's, whose sizes are those of one matrix instruction.

    A mistake in a kernel, such as a race or an access outside an array, is reported with its line, and a wrong product
    too, both with exit status 1.
    """
    with common.errors():
        from tilewright.simulator import Fault
        from tilewright.simulator import report as traffic

        chip = common.target(target)
        if step and plan:
            raise common.BadInput("give --plan or --step, not both: a step of a ladder has no plan")
        try:
            if step and common.kind(chip) == "amd":
                title, report, note, exact = _amd_step(step, chip, (m, n, k), beta)
            else:
                title, report, note, exact = _problem(step, common.sizes(m, n, k), dtype, layout, chip, plan, beta,
                                                      anyway)
        except Fault as fault:
            typer.echo(f"tilewright: {fault}", err=True)
            raise typer.Exit(1) from None

        def text() -> None:
            typer.echo(f"{title} on {chip.name}\n")
            if note:
                typer.echo(f"{output.fill(note)}\n")
            typer.echo(traffic.text(report, output.width()))
            if exact:
                typer.echo("the product is exact")

        output.show(lambda: _record(title, chip, note, report, exact), text, json)
        if not exact:
            typer.echo("tilewright: the product is wrong", err=True)
            raise typer.Exit(1)


def _problem(step: str | None, sizes: tuple[int, int, int], dtype: str, layout: str | None, chip: Any,
             plan: str | None, beta: float, anyway: bool) -> tuple[str, Any, str, bool]:
    """What was simulated, the report, a remark, and whether the product is exact."""
    import tilewright as tw

    (m, n, k), problem = sizes, common.problem(*sizes, dtype, layout)
    most = MOST["cpu" if common.kind(chip) == "cpu" else "gpu"]
    if m * n * k > most and not anyway:
        raise common.BadInput(
            f"{m} x {n} x {k} are {m * n * k:.1e} multiply-adds, and the simulator does some millions a second: at "
            f"most {most:.0e}, or more with --anyway"
        )
    kernel = None if step else tw.compile(problem, chip, plan)
    a, b, c, expected = _matrices(problem, beta)
    if step:
        from tilewright.ladder import run

        report, note = run.simulate(step, problem, chip, a, b, c, beta)
    else:
        report, note = tw.simulate(kernel, a, b, c, beta=beta), ""
    return str(problem), report, note, bool((c == expected).all())


def _amd_step(step: str, chip: Any, sizes: tuple[int | None, ...], beta: float) -> tuple[str, Any, str, bool]:
    """The same of a step of AMD's ladder, one matrix instruction, on operands of its own."""
    from tilewright.ladder import run, steps

    atom = steps.step(step, chip).atom(chip.name)
    if any(given not in (None, size) for given, size in zip(sizes, (atom.m, atom.n, atom.k))) or beta:
        raise common.BadInput(f"step {step} on {chip.name} is one instruction, {atom.name}: C = A B of {atom.m} x "
                              f"{atom.n} x {atom.k}, and nothing else")
    report, operands = run.simulate_amd(step, chip)
    return f"{step}, {atom.m} x {atom.n} x {atom.k}", report, "", bool((operands.c == operands.expected).all())


def _record(title: str, chip: Any, note: str, report: Any, exact: bool) -> dict[str, Any]:
    return {
        "problem": title, "target": chip.name, "note": note, "exact": exact,
        "traffic": [
            {"file": site.line.file, "line": site.line.number, "array": site.array, "space": site.space,
             "verb": site.verb, "requests": t.requests, "elements": t.elements, "bytes": t.bytes,
             "distinct": t.distinct, "moved": t.moved, "ideal": t.ideal}
            for site, t in sorted(report.traffic.items()) if t.requests
        ],
        "instructions": dict(report.instructions), "flops": report.flops,
        "occupancy": None if report.occupancy is None else str(report.occupancy),
    }


def _matrices(problem: Any, beta: float) -> tuple[Any, Any, Any, Any]:
    """Whole numbers so small that every order of summation gives the same: A, B, C before, and C afterwards."""
    import numpy as np

    from tilewright import formats

    draw = np.random.default_rng(0)
    a, b = (draw.integers(-4, 5, shape) for shape in (problem.shape_a, problem.shape_b))
    a, b = (x.T if letter == "t" else x for x, letter in zip((a, b), problem.layout))
    c = draw.integers(-4, 5, (problem.m, problem.n))
    out = formats.FORMATS[problem.out].dtype
    expected = (a @ b + beta * c).astype(out)
    given = (_of_format(x, name, axis) for x, name, axis in ((a, problem.a, -1), (b, problem.b, -2)))
    return *given, c.astype(out), expected


def _of_format(x: Any, name: str, axis: int) -> Any:
    import tilewright as tw
    from tilewright import formats

    if name in formats.BLOCK_FORMATS:
        return tw.quantize(x.astype("f4"), name, axis)
    return x.astype(formats.FORMATS[name].dtype)
