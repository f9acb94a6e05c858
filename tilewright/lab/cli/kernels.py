"""tilewright plan, explain, emit, asm: how a problem would be computed, and with which code."""

from __future__ import annotations

import json as notation
import math
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.lab.cli import common, output
from tilewright.lab.cli.command import BadInput
from tilewright.text import plural, size

Threads = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Threads of a CPU to split the work over.", show_default="all")
]
Named = Annotated[
    str | None,
    typer.Option("--kernel", metavar="NAME", help="For AMD's GPUs: axpy (y = a x + y), or a step of the ladder.",
                 show_default=False),
]
MANIFEST = {"symbol", "arguments", "grid"}  # some of what compiler.manifest always has


# ---- plan


EMPTY = "the product is empty: it takes 0 operations, and there is nothing to plan"


def plan(
    m: common.SomeM = None, n: common.SomeN = None, k: common.SomeK = None,
    dtype: common.Dtype = "f32", layout: common.Layout = None, target: common.TargetName = "native",
    batch: common.Batch = 1, attention: common.Attention = None,
    threads: Threads = None,
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
    from tilewright.lab.tuner.space import space_of
    from tilewright.plans import asked
    from tilewright.targets import AmdTarget, CpuTarget

    problem, chip = common.asked(m, n, k, dtype, layout, batch, attention), common.target(target)
    given = None if check is None else asked.plan(check, chip, attention is not None)
    on_cpu, amd = isinstance(chip, CpuTarget), isinstance(chip, AmdTarget)
    if not on_cpu and threads not in (None, 1):
        raise BadInput(f"--threads is for CPUs, and {chip.name} is a GPU")
    there = space_of(problem, chip, threads or (getattr(given, "threads", None) if on_cpu else None))
    basis = there.basis()
    reasons = list(given.violations(there.shape, there.target)) if given and problem.flops else []
    chosen = [given] if given else [there.in_use] if problem.flops or on_cpu else []
    if problem.flops and top > 1 and not given:
        chosen = there.ranked(tiles=2)[:top]

    def figures(plan: Any) -> dict[str, Any]:
        expected = basis.cost(there.shape, plan, chip)
        found = {"seconds": expected.seconds, "flops_per_second": problem.flops / expected.seconds}
        if on_cpu and not attention:
            return found | {"bytes": dict(expected.bytes_by_level)}
        ctas = {} if attention else {"workgroups" if amd else "ctas": math.prod(plan.grid(there.shape, chip))}
        return found | ctas | {"parts": {what: seconds for what, seconds in expected.parts if seconds or not attention}}

    plans = [{"plan": str(x)} | (figures(x) if problem.flops and not reasons else {}) for x in chosen]
    by_caches = on_cpu and not attention
    model = "chosen by the model of the caches" if by_caches else "chosen by the model; predicted, not measured"
    record = {"problem": str(problem), "target": chip.name, "model": chip.model,
              "origin": "given" if given else (there.origin or model) if problem.flops else EMPTY,
              "violations": reasons, "plans": plans, **({"threads": there.threads} if on_cpu else {}),
              "basis": basis.source}
    units = f"{chip.cus} compute units" if amd else "" if on_cpu else f"{chip.sms} multiprocessors"
    about = f", {plural(there.threads, 'thread')}" if on_cpu else f" ({chip.model}, {units})"
    output.show(lambda: record, lambda: typer.echo(_text(record, about)), json)
    if reasons:
        raise typer.Exit(1)


def _text(record: dict[str, Any], about: str) -> str:
    """The plans on lines of their own, to be copied; below them a table of what the model expects."""
    plans = record["plans"]
    many = len(plans) > 1
    lines = [f"{record['problem']} on {record['target']}{about}", record["origin"]]
    lines += [f"{f'{number}  ' * many}{row['plan']}" for number, row in enumerate(plans, 1)]
    lines += [output.fill(f"not legal: {sentence}") for sentence in record["violations"]]
    if plans and "seconds" in plans[0]:
        cells = [_cells(row) for row in plans]
        rows = [["plan", *cells[0]], *([str(number), *row.values()] for number, row in enumerate(cells, 1))]
        rows = rows if many else [row[1:] for row in rows]
        lines += ["", output.table(rows, right=range(len(rows[0]))),
                  output.fill(f"as the model predicts them, by {record['basis']}")]
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> dict[str, str]:
    """What is shown of a plan's figures, by heading."""
    unit, factor = ("GFLOP/s", 1e9) if "bytes" in row else ("TFLOP/s", 1e12)
    groups = {name.replace("ctas", "CTAs"): str(row[name]) for name in ("ctas", "workgroups") if name in row}
    return {"seconds": f"{row['seconds']:.3g}", unit: f"{row['flops_per_second'] / factor:.1f}", **groups,
            **{level: size(count) for level, count in row.get("bytes", {}).items()},
            **{what: f"{seconds:.2g}" for what, seconds in row.get("parts", {}).items()}}


# ---- explain


def explain(
    m: common.SomeM = None, n: common.SomeN = None, k: common.SomeK = None,
    dtype: common.Dtype = "f32", layout: common.Layout = None, target: common.TargetName = "native",
    batch: common.Batch = 1, attention: common.Attention = None,
    plan: common.Plan = None,
    threads: Threads = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also run it: how fast it is, and what hardware counters say where they "
                           "can be read (perf_event_open, ncu).")] = False,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Also count the bytes of a few tiles in the simulator.")] = False,
    step: Annotated[
        str | None, typer.Option("--step", "-s", metavar="NAME", help="A step of the target's ladder with parameters, "
                                 "as of `tilewright tune --step`, instead of a plan.", show_default=False)] = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Write the picture to FILE.",
                                  show_default=False, callback=output.checked)] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write picture and text to FILE.",
                                  show_default=False, callback=output.checked)] = None,
    json: output.Json = None,
) -> None:
    """Explain a problem's plan: tiles within tiles, bytes by level of memory, predicted, simulated and measured, what
    limits it, and the next best plans.

    A plan that cannot run is refused with the reasons, and exit status 1. With --step it is a kernel with parameters on
    random matrices, M = N = K unless given.
    """
    import tilewright as tw

    chip = common.target(target)
    if step is not None:
        from tilewright.lab.ladder import tunable
        if plan is not None or simulate or threads is not None or batch != 1:
            raise BadInput("--step is counted in the simulator: --plan, --simulate, --threads and --batch are for "
                           "problems")
        size = tunable.size(chip)
        given = [size if x is None else x for x in (m, n, k)]
        explanation = tw.explain(tunable.step(step, chip), *tunable.arguments(chip, *given), target=chip,
                           measure=measure)
    else:
        problem = common.asked(m, n, k, dtype, layout, batch, attention)
        explanation = tw.explain(problem, chip, plan, measure=measure, simulate=simulate, threads=threads)
    output.show(explanation.record, lambda: _print(explanation), json)
    for path, picture in ((svg, explanation.svg), (html, explanation.html)):
        if path is not None:
            output.write(path, picture())
    if explanation.violations:
        raise typer.Exit(1)


def _print(found: Any) -> None:
    """An explanation, in lines that fit; a plan stays whole, so that it can be copied, and what is said of it comes
    below if there is no room beside it."""
    from tilewright.lab.explanation.terminal import HEADING

    plans = [str(found.plan), *(str(alternative.plan) for alternative in found.alternatives)]
    for line, heading in found.lines():
        if not any(plan in line for plan in plans):
            typer.secho(output.columns(line, HEADING), bold=heading)
            continue
        share, _, cause = line.partition("%  ")
        most = output.width()
        if most is None or len(line) <= most or not cause:
            typer.secho(line, bold=heading)
        else:
            typer.secho(f"{share}%", bold=heading)
            typer.echo(output.hanging(f"{'':<{2 * HEADING}}{cause}", 2 * HEADING))


# ---- emit, asm


def emit(
    m: common.SomeM = None, n: common.SomeN = None, k: common.SomeK = None,
    dtype: common.Dtype = "f32", layout: common.Layout = None, target: common.TargetName = "native",
    batch: common.Batch = 1, attention: common.Attention = None,
    plan: common.Plan = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write to FILE instead, in the form that its suffix names: for CPUs "
            ".ll, .s, .o; for NVIDIA .ll, .ptx, .cubin; for AMD .ll, .s, .hsaco.", show_default=False,
            callback=output.checked,
        ),
    ] = None,
    llvm: Annotated[bool, typer.Option("--llvm", help="Print LLVM IR, before optimisation.")] = False,
    step: common.Step = None,
    kernel: Named = None,
) -> None:
    """Print the code of the kernels for a problem: assembly, or PTX for NVIDIA's GPUs; or write it to a file.

    Nothing is run, so the target may be one that this machine lacks. With --step it is the code of a step of the
    target's ladder, and M, N and K are left out.

    Beside a code object for AMD's GPUs (x.hsaco) its manifest is written, as x.json: symbol, arguments and their
    offsets, workgroup, grid, LDS. Another kind of file of that name is not overwritten.
    """
    from tilewright.compiled.compile import code_class

    chip = common.target(target)
    forms = code_class(chip).forms
    if output is not None and output.suffix not in forms:
        *most, last = (f"{suffix} ({what})" for suffix, what in forms.items())
        raise BadInput(f"for {chip.name} --output must end in {', '.join(most)} or {last}, got {output}")
    if output is not None and llvm and output.suffix != ".ll":
        raise BadInput(f"--llvm prints LLVM IR, and {output} is for {forms[output.suffix]}: give only one of them")
    compiled = _compiled((m, n, k), dtype, layout, chip, plan, step, kernel, batch, attention)
    if output is None:
        typer.echo(compiled.llvm if llvm else compiled.asm)
    else:
        typer.echo(f"wrote {' and '.join(_write(compiled, output))}", err=True)


def asm(
    m: common.SomeM = None, n: common.SomeN = None, k: common.SomeK = None,
    dtype: common.Dtype = "f32", layout: common.Layout = None, target: common.TargetName = "native",
    batch: common.Batch = 1, attention: common.Attention = None,
    plan: common.Plan = None,
    function: Annotated[
        str | None,
        typer.Option("--function", "-f", metavar="NAME", help="The function to show; --list prints their names.",
                     show_default="the main one"),
    ] = None,
    names: Annotated[bool, typer.Option("--list", help="Print only the names of the functions.")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="All of the assembly, not only the hot loop.")] = False,
    step: common.Step = None,
    kernel: Named = None,
    json: output.Json = None,
) -> None:
    """Print the hot loop of the kernels for a problem, with its FMAs, loads, registers and spills counted.

    For NVIDIA's GPUs it is PTX; registers and spills are those that ptxas assigns, if it is installed. For AMD's there
    is a static cycle count. With --step it is a step of the target's ladder, and M, N and K are left out.
    """
    chip = common.target(target)
    compiled = _compiled((m, n, k), dtype, layout, chip, plan, step, kernel, batch, attention)
    loop, report = None, ""
    if not (names or whole):
        with suppress(ValueError):  # no loop, which the report says, too
            loop = compiled.loop(function)
        report = compiled.report(function)

    def say() -> None:
        if names:
            typer.echo("\n".join(compiled.names))
        else:
            said = "\n".join(output.hanging(line, 4) for line in report.splitlines())
            typer.echo(compiled.asm if whole else f"{loop.text}\n\n{said}" if loop else f"\n{said}")

    output.show(lambda: {"target": chip.name, "functions": compiled.names, "function": loop and loop.function,
                         "loop": loop and loop.text, "counts": loop and loop.counts, "report": report.splitlines(),
                         "asm": compiled.asm if whole else None}, say, json)


def _compiled(sizes: tuple[int | None, int | None, int | None], dtype: str, layout: str | None, chip: Any,
              plan: str | None, step: str | None, kernel: str | None, batch: int, attention: str | None) -> Any:
    """The compiled kernel of a problem, of a step of the target's ladder, or of this name."""
    import tilewright as tw

    if kernel is None and step is None:
        return tw.compile(common.asked(*sizes, dtype, layout, batch, attention), chip, plan)
    option = "--kernel" if kernel is not None else "--step"
    if kernel is not None and step is not None:
        raise BadInput("give --step or --kernel, not both")
    if any(size is not None for size in sizes):
        raise BadInput(f"give M N K or {option}, not both")
    if plan is not None:
        raise BadInput(f"give --plan or {option}, not both: such a kernel has no plan")
    if batch != 1:
        raise BadInput(f"give --batch or {option}, not both: such a kernel is for one product")
    from tilewright.lab.ladder import run, steps

    if kernel is None:
        return run.compiled(step or "", chip, dtype)
    ladder, kernels = steps.ladder(chip)
    if ladder != "amd":
        raise BadInput(f"--kernel is for AMD's GPUs (--target gfx942), and {chip.name} is none; --step takes a step of "
                       "its ladder")
    if kernel == "axpy":
        from tilewright.compiled.compile import compiled
        from tilewright.kernels.elementwise import emit_axpy

        return compiled(emit_axpy(256, chip.warp), chip, ("(n + 255) // 256",))
    if kernel not in kernels:
        raise BadInput(f"there is no kernel {kernel!r}; there are: axpy, {', '.join(kernels)}")
    return run.compiled(kernel, chip)


def _write(kernel: Any, path: Path) -> list[str]:
    """Write the kernel in the form that the file's suffix names, beside a code object its manifest; what was written.
    BadInput if the manifest's file is there and is not a manifest of an earlier code object."""
    manifest = path.with_suffix(".json")
    if path.suffix not in kernel.beside:
        output.write(path, kernel.listing(path.suffix))
        return [str(path)]
    if manifest.exists():
        try:
            there = notation.loads(manifest.read_text())
        except (OSError, ValueError):
            there = None
        if not (isinstance(there, dict) and there.keys() >= MANIFEST):
            raise BadInput(f"the manifest of the code object would overwrite {manifest}, which is another kind of "
                           "file: choose another --output, or move it")
    output.write(path, kernel.listing(path.suffix))
    output.write(manifest, kernel.listing(".json"))
    return [str(path), f"{manifest} (its manifest)"]
