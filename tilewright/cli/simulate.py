"""tilewright simulate: the kernels of a problem on NumPy, their product checked, and what each of their lines did."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tilewright.cli import common

MOST = {"cpu": 2e8, "gpu": 2e9}  # multiply-adds: a few minutes


def simulate(
    m: common.M, n: common.N, k: common.K,
    dtype: common.Dtype = "f32", layout: common.Layout = "nn", target: common.TargetName = "native",
    plan: Annotated[
        str | None,
        typer.Option("--plan", "-p", help="A plan, as `tilewright plan` prints it.", show_default="the model's choice"),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option("--step", "-s", help="A step of the GPU ladder instead of a plan, by name.", show_default=False),
    ] = None,
    beta: Annotated[float, typer.Option(help="Add so many times what C holds before.")] = 0.0,
    anyway: Annotated[bool, typer.Option("--anyway", help="Even if it will take long.")] = False,
) -> None:  # fmt: skip
    """Run the kernels of a problem in the simulator, which needs no GPU, on whole numbers.

    Prints what each line of the kernels moved and what that cost (sectors, cache lines, passes over the banks), the
    instructions, and for a GPU the occupancy. A mistake in a kernel, such as a race or an access outside an array, is
    reported with its line, and a wrong product too, both with exit status 1.
    """
    with common.errors():
        from tilewright.simulator import Fault
        from tilewright.targets import CpuTarget

        problem, chip = common.problem(m, n, k, dtype, layout), common.target(target)
        most = MOST["cpu" if isinstance(chip, CpuTarget) else "gpu"]
        if m * n * k > most and not anyway:
            raise common.BadInput(
                f"{m} x {n} x {k} are {m * n * k:.1e} multiply-adds, and the simulator does some millions a second: "
                f"at most {most:.0e}, or more with --anyway"
            )
        a, b, c, expected = _matrices(problem, beta)
        try:
            report = _step(step, problem, chip, a, b, c, beta) if step else _kernel(problem, chip, plan, a, b, c, beta)
        except Fault as fault:
            typer.echo(f"tilewright: {fault}", err=True)
            raise typer.Exit(1) from None
        typer.echo(f"{problem} on {chip.name}\n")
        typer.echo(str(report))
        if not (c == expected).all():
            typer.echo("tilewright: the product is wrong", err=True)
            raise typer.Exit(1)
        typer.echo("the product is exact")


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


def _kernel(problem: Any, chip: Any, plan: str | None, a: Any, b: Any, c: Any, beta: float) -> Any:
    import tilewright as tw

    return tw.simulate(tw.compile(problem, chip, plan), a, b, c, beta=beta)


def _step(name: str, problem: Any, chip: Any, a: Any, b: Any, c: Any, beta: float) -> Any:
    import tilewright as tw
    from tilewright import simulator
    from tilewright.kernels.ladder.gpu_steps import GPU_STEPS
    from tilewright.targets import GpuTarget

    if name not in GPU_STEPS:
        raise common.BadInput(f"there is no step {name!r} of the GPU ladder; the steps are {', '.join(GPU_STEPS)}")
    if not isinstance(chip, GpuTarget):
        raise common.BadInput(f"the GPU ladder's steps are for GPUs of NVIDIA's, not for {chip.name}: --target sm_90a")
    if problem.key() != type(problem)(problem.m, problem.n, problem.k).key():
        raise common.BadInput("the steps of the GPU ladder are for --dtype f32 --layout nn")
    step, (m, n, k) = GPU_STEPS[name], (problem.m, problem.n, problem.k)
    operands = (a.ravel(), b.ravel()) if step.textures else (a, b)
    given = c if beta else simulator.uninitialised(c)
    return tw.simulate(step.emit(), m, n, k, 1.0, operands[0], k, operands[1], n, beta, given, n, grid=step.grid(m, n),
                       target=chip)  # fmt: skip
