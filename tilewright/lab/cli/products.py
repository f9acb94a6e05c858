"""tilewright run: the product of two .npy files; tilewright simulate: the kernels of a problem on NumPy, checked."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.lab.cli import common, output
from tilewright.lab.cli.command import BadInput
from tilewright.lab.cli.output import checked

MOST = {"cpu": 2e8, "gpu": 2e9}  # multiply-adds: a few minutes


def run(
    a: Annotated[
        Path, typer.Argument(metavar="A", help="The first matrix, a .npy file of numbers.", show_default=False)
    ],
    b: Annotated[Path, typer.Argument(metavar="B", help="The second matrix.", show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The .npy file to write A @ B to.",
                           show_default=False, callback=checked)
    ],
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many threads to use.", show_default="all")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare the result with exact or wider arithmetic before writing it.")
    ] = False,
    format_a: Annotated[
        str | None, typer.Option("--a", metavar="FORMAT", help="The number format of A's raw bytes, for formats that "
                                 ".npy has no name for: bf16, e4m3fn, i4, ...", show_default="as in the file",
                                 **common.completed(common.format_names))
    ] = None,
    format_b: Annotated[
        str | None, typer.Option("--b", metavar="FORMAT", help="The same for B.", show_default="as in the file",
                                 **common.completed(common.format_names))
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite-input", help="Let --output replace A or B.")
    ] = False,
) -> None:
    """Multiply two .npy files, in any number format that matmul takes.

    The inputs are memory-mapped, so they may be as large as memory allows; vectors, stacks of matrices and the format
    of the result follow numpy.matmul. The output appears only when it is complete.
    """
    from tilewright.lab.cli import npy

    if not overwrite and any(output.exists() and x.exists() and output.samefile(x) for x in (a, b)):
        raise BadInput(f"{output} is an input, which would be overwritten: choose another --output, or give "
                       "--overwrite-input")
    typer.echo(npy.multiply(a, b, output, threads=threads, check=check, named=(format_a, format_b)))


Drawn = Annotated[
    str | None, typer.Option("--draw", metavar="LINE", help="Draw a warp's access at this line of the kernel, as the "
                             "table of traffic has it (gpu06_padded.py:64): lanes, and banks and passes or sectors.")]
DrawnTo = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="With --draw: the .svg or .png file to write.",
                       callback=checked)]


def simulate(
    m: common.SomeM = None, n: common.SomeN = None, k: common.SomeK = None,
    dtype: common.SomeDtype = None, layout: common.Layout = None, target: common.TargetName = "native",
    batch: common.Batch = 1, attention: common.Attention = None,
    plan: common.Plan = None,
    step: common.Step = None,
    beta: Annotated[
        float, typer.Option(metavar="X", help="Compute A B + X C; C is filled with whole numbers first.")
    ] = 0.0,
    anyway: Annotated[bool, typer.Option("--anyway", help="Simulate a large problem too, which takes long.")] = False,
    draw: Drawn = None, to: DrawnTo = Path("access.svg"),
    json: output.Json = None,
) -> None:
    """Run the kernels of a problem in the simulator, which needs no GPU, on whole numbers.

    Prints what each line of the kernels moved and what that cost (sectors, cache lines, passes over the banks), the
    instructions, and for a GPU the occupancy. With --step it is a kernel of the target's ladder; M, N and K may be left
    out for those of AMD's, whose sizes are those of one matrix instruction.

    A mistake in a kernel, such as a race or an access outside an array, is reported with its line, and a wrong product
    too, both with exit status 1.
    """
    from tilewright.lab.drawing import accesses
    from tilewright.lab.ladder import steps
    from tilewright.simulator import Fault, observed

    chip = common.target(target)
    if step and plan:
        raise BadInput("give --plan or --step, not both: a step of a ladder has no plan")
    if step and batch != 1:
        raise BadInput("give --batch or --step, not both: a step of a ladder is for one product")
    if draw and not hasattr(chip, "warp"):
        raise BadInput(f"--draw shows a warp's lanes, and {chip.name} is a CPU: give --target sm_90a or gfx942, too")
    at = accesses.At(draw or "")
    try:
        with observed(at) if draw else nullcontext():
            if attention:
                title, report, note, wrong = _attention(attention, chip, plan, anyway)
            elif step and steps.ladder(chip)[0] == "amd":
                title, report, note, wrong = _amd_step(step, chip, (m, n, k), beta)
            else:
                title, report, note, wrong = _problem(step, common.sizes(m, n, k), dtype, layout, batch, chip, plan,
                                                      beta, anyway)
    except Fault as fault:
        output.fail(str(fault))
    if draw:
        _drawn(at, report, chip, to)
    output.show(lambda: _record(title, chip, note, report, wrong), lambda: _say(title, chip, note, report, wrong), json)
    if wrong:
        output.fail(f"the {'result' if attention else 'product'} is wrong: {wrong}")


def _say(title: str, chip: Any, note: str, report: Any, wrong: str) -> None:
    from tilewright.simulator import report as traffic

    typer.echo(f"{title} on {chip.name}\n")
    if note:
        typer.echo(f"{output.fill(note)}\n")
    typer.echo(traffic.text(report, output.width()))
    if not wrong and not title.startswith("attention"):
        typer.echo("the product is exact")


def _drawn(at: Any, report: Any, chip: Any, to: Path) -> None:
    """Write the picture of the first access at a line, and say so."""
    from tilewright.lab.cli.show import save
    from tilewright.lab.drawing import accesses

    if at.first is None:
        there = dict.fromkeys(str(site.line) for site, traffic in sorted(report.traffic.items()) if traffic.requests)
        raise BadInput(f"nothing is loaded or stored at {at.line}; lines with accesses are {', '.join(there)}")
    save(accesses.access(at.first, chip.name, chip.warp, at.count), to)


def _problem(step: str | None, sizes: tuple[int, int, int], dtype: str | None, layout: str | None, batch: int,
             chip: Any, plan: str | None, beta: float, anyway: bool) -> tuple[str, Any, str, str]:
    """The kernel that was simulated, its report, a remark, and a sentence on a wrong product, or ""."""
    import tilewright as tw
    from tilewright.lab.ladder import run, steps
    from tilewright.lab.measure import check
    from tilewright.targets import CpuTarget

    if step:
        ladder_step = steps.step(step, chip)
        dtype, layout = dtype or ladder_step.formats[0], layout or ladder_step.layout
    (m, n, k), problem = sizes, common.problem(*sizes, dtype or "f32", layout, batch)
    most = MOST["cpu" if isinstance(chip, CpuTarget) else "gpu"]
    if batch * m * n * k > most and not anyway:
        raise BadInput(f"{m} x {n} x {k} are {batch * m * n * k:.1e} multiply-adds, and the simulator does some "
                       f"millions a second: at most {most:.0e}, or more with --anyway")
    kernel = None if step else tw.compile(problem, chip, plan)
    a, b, c, expected = _matrices(problem, beta)
    if step:
        report, note = run.simulate(step, problem, chip, a, b, c, beta)
    else:
        report, note = tw.simulate(kernel, a, b, c, beta=beta), ""
    return str(problem), report, note, check.difference(c, expected)


ERRORS = {"f64": 1e-12, "f32": 1e-5}       # of a result, as a share of the largest |v|; two units of other formats


def _attention(text: str, chip: Any, plan: str | None, anyway: bool) -> tuple[str, Any, str, str]:
    """A launch of an attention's kernel on normal numbers, compared with float64."""
    import numpy as np

    from tilewright.compiled import attention
    from tilewright.formats import get

    problem = attention.Attention.parse(text)
    if problem.pairs * (problem.size + problem.value_size) > MOST["gpu"] and not anyway:
        raise BadInput(f"{problem.flops:.1e} operations take the simulator long: at most {2 * MOST['gpu']:.0e}, or "
                       "more with --anyway")
    kernel = attention.compile(problem, chip, plan, 1)
    q, k, v = attention.random(problem)
    report = kernel.simulate(q, k, v)
    apart = np.abs(report.result.astype(np.float64) - attention.expected(problem, q, k, v)).max(initial=0)
    most = ERRORS.get(problem.q, 2 * float(getattr(get(problem.out), "eps", 0.0)))
    most *= float(np.abs(v.astype(np.float64)).max(initial=0))
    return (f"attention {problem}", report, f"{kernel.plan}; the largest error beside float64 is {apart:.2g}",
            f"the largest error is {apart:.2g}, and {most:.2g} is allowed" if apart > most else "")


def _amd_step(step: str, chip: Any, sizes: tuple[int | None, ...], beta: float) -> tuple[str, Any, str, str]:
    """Simulates a step of AMD's ladder, one matrix instruction, on operands of its own."""
    from tilewright.lab.ladder import run, steps
    from tilewright.lab.measure import check

    atom = steps.step(step, chip).atom(chip.name)
    if any(given not in (None, size) for given, size in zip(sizes, (atom.m, atom.n, atom.k))) or beta:
        raise BadInput(f"step {step} on {chip.name} is one instruction, {atom.name}: C = A B of {atom.m} x {atom.n} x "
                       f"{atom.k}, and nothing else")
    report, operands = run.simulate_amd(step, chip)
    return f"{step}, {atom.m} x {atom.n} x {atom.k}", report, "", check.difference(
        operands.c, operands.expected)


def _record(title: str, chip: Any, note: str, report: Any, wrong: str) -> dict[str, Any]:
    return {
        "problem": title, "target": chip.name, "note": note, "exact": not wrong,
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

    import tilewright as tw
    from tilewright import formats

    draw, many = np.random.default_rng(0), (problem.batch,) * (problem.batch != 1)
    a, b = (draw.integers(-4, 5, (*many, *shape)) for shape in (problem.shape_a, problem.shape_b))
    a, b = (x.swapaxes(-1, -2) if letter == "t" else x for x, letter in zip((a, b), problem.layout))
    c = draw.integers(-4, 5, problem.shapes["out"])
    out = formats.FORMATS[problem.out].dtype
    given = (tw.quantize(x.astype("f4"), name, axis) if problem.blocks else x.astype(formats.FORMATS[name].dtype)
             for x, name, axis in ((a, problem.a, -1), (b, problem.b, -2)))
    return *given, c.astype(out), (a @ b + beta * c).astype(out)
