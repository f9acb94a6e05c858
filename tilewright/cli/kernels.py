"""tilewright plan, explain, emit, asm: how a problem would be computed, and with which code."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.cli import code, common, output
from tilewright.text import plural

Plan = Annotated[
    str | None,
    typer.Option("--plan", "-p", metavar="PLAN", help="A plan, as `tilewright plan` prints it.",
                 show_default="what matmul would use"),
]


def plan(
    m: common.M, n: common.N, k: common.K,
    dtype: common.Dtype = "f32", layout: common.Layout = None, target: common.TargetName = "native",
    threads: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Threads of a CPU to split the work over.", show_default="all"),
    ] = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many plans to show, the best by the model first.")
                   ] = 1,
    check: Annotated[
        str | None,
        typer.Option(metavar="PLAN", help="A plan to check instead, such as 'packed 6x16 mc=96 kc=256 nc=4080'.",
                     show_default=False),
    ] = None,
    json: output.Json = None,
) -> None:
    """Print the plan for a problem and what the model expects of it, or check a plan that is given.

    A plan that cannot run is refused with the reasons, one sentence each, and exit status 1.
    """
    with common.errors():
        problem, chip = common.problem(m, n, k, dtype, layout), common.target(target)
        found = _cpu_plans if common.kind(chip) == "cpu" else _gpu_plans
        if common.kind(chip) == "cpu":
            threads = _threads(threads, check, chip)
        origin, plans, reasons = found(problem, chip, threads, top, check)
        record = {"problem": str(problem), "target": chip.name, "model": chip.model, "origin": origin,
                  "violations": reasons, "plans": plans}
        if common.kind(chip) == "cpu":
            record |= {"threads": threads, "basis": _basis(chip).source}
        output.show(lambda: record, lambda: typer.echo(_text(record, chip)), json)
        if reasons:
            raise typer.Exit(1)


Planned = tuple[str, list[dict[str, Any]], list[str]]  # where the plans come from, what each costs, what is illegal


def _threads(given: int | None, check: str | None, chip: Any) -> int:
    from tilewright.plans import CpuPlan
    from tilewright.runtime.cpu import engine

    return given or (CpuPlan.parse(check).threads if check is not None else engine.default_threads(chip))


def _basis(chip: Any) -> Any:
    from tilewright.measure import probes

    return probes.basis(chip)


def _cpu_plans(problem: Any, chip: Any, threads: int | None, top: int, check: str | None) -> Planned:
    from tilewright.plans import CpuPlan
    from tilewright.plans.choose import ranked
    from tilewright.runtime.cpu import engine

    basis = _basis(chip)
    chosen, origin = engine.plan_problem(problem, chip, threads), "chosen by the model of the caches"
    shape, reached = chosen.shape, chosen.target
    found: list[Any]
    if check is not None:
        found, origin = [CpuPlan.parse(check)], "given"
        if reasons := found[0].violations(shape, reached):
            return origin, [{"plan": str(found[0])}], list(reasons)
    elif top == 1 or not problem.flops:
        found = [chosen.plan]
        origin = "measured to be best by the tuner" if chosen.tuned else origin
    else:
        found = ranked(shape, reached, tiles=2)[:top]
    plans = []
    for plan in found:
        row: dict[str, Any] = {"plan": str(plan)}
        if problem.flops:
            expected = basis.cost(shape, plan, chip)
            row |= {"seconds": expected.seconds, "flops_per_second": problem.flops / expected.seconds,
                    "bytes": dict(expected.bytes_by_level)}
        plans.append(row)
    return origin, plans, []


def _gpu_plans(problem: Any, chip: Any, threads: int | None, top: int, check: str | None) -> Planned:
    from tilewright.plans import amd, gpu, nvidia

    if threads not in (None, 1):
        raise common.BadInput(f"--threads is for CPUs, and {chip.name} is a GPU")
    is_amd = common.kind(chip) == "amd"
    planner: Any = amd if is_amd else nvidia
    shape = gpu.multiplied_shape(problem, chip)
    if not problem.flops:
        return "the product is empty: there is nothing to plan", [], []
    if check is not None:
        found: list[Any] = [(amd.AmdPlan if is_amd else nvidia.NvidiaPlan).parse(check)]
        if reasons := found[0].violations(shape, chip):
            return "given", [{"plan": str(found[0])}], list(reasons)
    else:
        found = [planner.choose(shape, chip)] if top == 1 else planner.ranked(shape, chip)[:top]
    plans = []
    for plan in found:
        expected = planner.cost(shape, plan, chip)
        grid = plan.grid(problem.m, problem.n, *(() if is_amd else (chip, shape.itemsize)), problem.batch)
        plans.append({"plan": str(plan), "seconds": expected.seconds,
                      "flops_per_second": problem.flops / expected.seconds,
                      "workgroups" if is_amd else "ctas": math.prod(grid), "parts": dict(expected.parts)})
    return "given" if check else "chosen by the model; predicted, not measured", plans, []


def _text(record: dict[str, Any], chip: Any) -> str:
    """The plans on lines of their own, to be copied; below them a table of what the model expects."""
    of = {"cpu": lambda: plural(record["threads"], "thread"),
          "gpu": lambda: f"{chip.model}, {chip.sms} multiprocessors",
          "amd": lambda: f"{chip.model}, {chip.cus} compute units"}[common.kind(chip)]()
    many, plans = len(record["plans"]) > 1, record["plans"]
    lines = [f"{record['problem']} on {chip.name}" + (f", {of}" if common.kind(chip) == "cpu" else f" ({of})"),
             record["origin"]]
    lines += [f"{f'{number}  ' * many}{row['plan']}" for number, row in enumerate(plans, 1)]
    lines += [output.fill(f"not legal: {sentence}") for sentence in record["violations"]]
    if plans and "seconds" in plans[0]:
        headings, cells = _columns(plans[0])
        rows = [["plan", *headings], *([str(number), *cells(row)] for number, row in enumerate(plans, 1))]
        rows = rows if many else [row[1:] for row in rows]
        lines += ["", output.table(rows, right=range(len(rows[0]))), output.fill(_source(record))]
    return "\n".join(lines)


def _source(record: dict[str, Any]) -> str:
    basis = record.get("basis")
    return f"as the model predicts them, by {basis}" if basis else "as the model predicts them; nothing is measured"


def _columns(like: dict[str, Any]) -> tuple[list[str], Any]:
    """The headings of a row like this one, and a function that makes the cells of such a row."""
    from tilewright.text import size

    if "bytes" in like:
        return (["seconds", "GFLOP/s", *like["bytes"]],
                lambda row: [f"{row['seconds']:.3g}", f"{row['flops_per_second'] / 1e9:.1f}",
                             *map(size, row["bytes"].values())])
    groups = "ctas" if "ctas" in like else "workgroups"
    return (["seconds", "TFLOP/s", groups.replace("ctas", "CTAs"), *like["parts"]],
            lambda row: [f"{row['seconds']:.3g}", f"{row['flops_per_second'] / 1e12:.1f}", str(row[groups]),
                         *(f"{seconds:.2g}" for seconds in row["parts"].values())])


def explain(
    m: common.M, n: common.N, k: common.K,
    dtype: common.Dtype = "f32", layout: common.Layout = None, target: common.TargetName = "native", plan: Plan = None,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Threads of a CPU to split the work over.",
                                 show_default="all")
    ] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Also run it, and print how fast it is.")] = False,
    json: output.Json = None,
) -> None:
    """Explain a problem's plan: why these blocks, bytes per level of memory, predicted and measured rate.

    A plan that cannot run is refused with the reasons, and exit status 1.
    """
    with common.errors():
        import tilewright as tw

        problem, chip = common.problem(m, n, k, dtype, layout), common.target(target)
        found = tw.explain(problem, chip, plan, measure=measure, threads=threads)
        output.show(found.record, lambda: _print(found), json)
        if found.violations:
            raise typer.Exit(1)


def _print(found: Any) -> None:
    """An explanation, in lines that fit; those with a plan stay whole, so that it can be copied."""
    plans = [str(found.plan), *(str(plan) for plan, _, _ in found.rejected)]
    for line, heading in found.lines():
        whole = any(plan in line for plan in plans)
        typer.secho(line if whole else output.hanging(line, 24 if line.startswith(" " * 12) else 12), bold=heading)


def emit(
    m: common.SomeM = None, n: common.SomeN = None, k: common.SomeK = None,
    dtype: common.Dtype = "f32", layout: common.Layout = None, target: common.TargetName = "native", plan: Plan = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write to FILE instead, in the form that its suffix names: for CPUs "
            ".ll, .s, .o; for NVIDIA .ll, .ptx, .cubin; for AMD .ll, .s, .hsaco.", show_default=False,
        ),
    ] = None,
    llvm: Annotated[bool, typer.Option("--llvm", help="Print LLVM IR, before optimisation.")] = False,
    step: common.Step = None,
    kernel: code.Named = None,
) -> None:
    """Print the code of the kernels for a problem: assembly, or PTX for NVIDIA's GPUs; or write it to a file.

    Nothing is run, so the target may be one that this machine lacks. With --step it is the code of a step of the
    target's ladder, and M, N and K are left out.

    Beside a code object for AMD's GPUs (x.hsaco) its manifest is written, as x.json: symbol, arguments and their
    offsets, workgroup, grid, LDS. Another kind of file of that name is not overwritten.
    """
    with common.errors():
        chip = common.target(target)
        from tilewright.compiled.compile import code_class

        forms = code_class(chip).forms
        if output is not None and output.suffix not in forms:
            *most, last = (f"{suffix} ({what})" for suffix, what in forms.items())
            raise common.BadInput(f"for {chip.name} --output must end in {', '.join(most)} or {last}, got {output}")
        if output is not None and llvm and output.suffix != ".ll":
            raise common.BadInput(f"--llvm prints LLVM IR, and {output} is for {forms[output.suffix]}: "
                                  "give only one of them")
        found = code.found((m, n, k), dtype, layout, chip, plan, step, kernel)
        if output is None:
            typer.echo(found.llvm if llvm else found.asm)
        else:
            typer.echo(f"wrote {' and '.join(code.write(found, output))}", err=True)


def asm(
    m: common.SomeM = None, n: common.SomeN = None, k: common.SomeK = None,
    dtype: common.Dtype = "f32", layout: common.Layout = None, target: common.TargetName = "native", plan: Plan = None,
    function: Annotated[
        str | None,
        typer.Option("--function", "-f", metavar="NAME", help="The function to show; --list prints their names.",
                     show_default="the main one"),
    ] = None,
    names: Annotated[bool, typer.Option("--list", help="Print only the names of the functions.")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="All of the assembly, not only the hot loop.")] = False,
    step: common.Step = None,
    kernel: code.Named = None,
) -> None:
    """Print the hot loop of the kernels for a problem, with its FMAs, loads, registers and spills counted.

    For NVIDIA's GPUs it is PTX; registers and spills are those that ptxas assigns, if it is installed. For AMD's there
    is a static cycle count. With --step it is a step of the target's ladder, and M, N and K are left out.
    """
    with common.errors():
        chip = common.target(target)
        found = code.found((m, n, k), dtype, layout, chip, plan, step, kernel)
        code.show(found, function, names, whole)
