"""tilewright plan, explain, emit, asm: how a problem would be computed, and with which code."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.cli import amd_code, common


def plan(
    m: common.M, n: common.N, k: common.K,
    dtype: common.Dtype = "f32", layout: common.Layout = "nn", target: common.TargetName = "native",
    threads: Annotated[int, typer.Option(min=1, help="Threads to split the work over.")] = 1,
    top: Annotated[int, typer.Option(min=1, help="How many plans to show, the best by the model first.")] = 1,
    check: Annotated[
        str | None,
        typer.Option(help="A plan to judge instead, such as 'packed 6x16 mc=96 kc=256 nc=4080'.", show_default=False),
    ] = None,
) -> None:  # fmt: skip
    """Print the plan for a problem and what the model expects of it, or judge one of your own.

    A plan that cannot run is refused with the reasons, one sentence each, and exit status 1.
    """
    with common.errors():
        problem, chip = common.problem(m, n, k, dtype, layout), common.target(target)
        if _is_gpu(chip) or _is_amd(chip):
            _gpu_plan(problem, chip, top, check)
            return
        from tilewright.plans import CpuPlan, shape_of
        from tilewright.plans.choose import plan as choose
        from tilewright.plans.choose import ranked
        from tilewright.runtime import cpu

        shape = shape_of(problem, threads)
        typer.echo(f"{problem} on {chip.name}, {threads} thread{'s' * (threads != 1)}")
        if check is not None:
            found = [_legal(CpuPlan.parse(check), shape, chip)]
        elif top == 1 or 0 in (m, n, k):
            measured = cpu.tuned(shape, chip)
            found = [measured or choose(shape, chip)]
            typer.echo("measured to be best by the tuner" if measured else "chosen by the model of the caches")
        else:
            found = ranked(shape, chip, tiles=2)[:top]
        common.console().print(_predictions(found, shape, chip))


def _gpu_plan(problem: Any, chip: Any, top: int, check: str | None) -> None:
    from rich.table import Table

    from tilewright.plans import amd, gpu

    planner: Any = amd if _is_amd(chip) else gpu
    shape = planner.shape_of(problem)
    has = f"{chip.cus} compute units" if _is_amd(chip) else f"{chip.sms} multiprocessors"
    typer.echo(f"{problem} on {chip.name} ({chip.model}, {has}); predicted, not measured")
    if not (problem.m and problem.n and problem.k):
        typer.echo("the product is empty: there is nothing to plan")
        return
    if check is not None:
        found = [_legal((amd.AmdPlan if _is_amd(chip) else gpu.GpuPlan).parse(check), shape, chip)]
    else:
        found = [planner.choose(shape, chip)] if top == 1 else planner.ranked(shape, chip)[:top]
    costs = [planner.cost(shape, plan, chip) for plan in found]
    table = Table("plan", caption="time as the model predicts it, and of what", caption_justify="left")
    groups = "workgroups" if _is_amd(chip) else "CTAs"
    for heading in ("seconds", "TFLOP/s", groups, *(name for name, _ in costs[0].parts)):
        table.add_column(heading, justify="right", no_wrap=True)
    for plan, expected in zip(found, costs):
        grid = plan.grid(problem.m, problem.n, *(() if _is_amd(chip) else (chip, shape.itemsize)))
        rate = 2 * problem.m * problem.n * problem.k / expected.seconds / 1e12
        parts = (f"{seconds:.2g}" for _, seconds in expected.parts)
        table.add_row(str(plan), f"{expected.seconds:.3g}", f"{rate:.1f}", str(math.prod(grid)), *parts)
    common.console().print(table)


def _legal(plan: Any, shape: Any, chip: Any) -> Any:
    """The plan, if it can run: else the reasons are printed, and that is all."""
    reasons = plan.violations(shape, chip)
    for sentence in reasons:
        typer.echo(f"not legal: {sentence}")
    if reasons:
        raise typer.Exit(1)
    return plan


def _predictions(plans: list[Any], shape: Any, chip: Any) -> Any:
    """A row per plan: predicted time, and the bytes that cross each level of the memory."""
    from rich.table import Table

    from tilewright.plans.model import cost
    from tilewright.runtime.doctor import size

    table = Table("plan", caption="time and traffic as the model of the caches predicts them", caption_justify="left")
    for heading in ("seconds", "GFLOP/s", "L1", "L2", "L3", "memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    flops = 2 * shape.m * shape.n * shape.k
    for plan in plans:
        if not flops:
            table.add_row(str(plan), *["-"] * 6)
            continue
        expected = cost(shape, plan, chip)
        traffic = (size(count) for count in expected.bytes_by_level.values())
        table.add_row(str(plan), f"{expected.seconds:.3g}", f"{flops / expected.seconds / 1e9:.1f}", *traffic)
    return table


Plan = Annotated[
    str | None,
    typer.Option("--plan", "-p", help="A plan, as `tilewright plan` prints it.", show_default="what matmul would use"),
]


def explain(
    m: common.M, n: common.N, k: common.K,
    dtype: common.Dtype = "f32", layout: common.Layout = "nn", target: common.TargetName = "native", plan: Plan = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads to split the work over.", show_default="all")
    ] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Also run it, and say how fast it is.")] = False,
) -> None:  # fmt: skip
    """Explain a problem's plan: why these blocks, bytes per level of memory, predicted and measured rate.

    A plan that cannot run is refused with the reasons, and exit status 1.
    """
    with common.errors():
        import tilewright as tw

        problem, chip = common.problem(m, n, k, dtype, layout), common.target(target)
        found = tw.explain(problem, chip, plan, measure=measure, threads=threads)
        common.console().print(found, soft_wrap=True)
        if found.violations:
            raise typer.Exit(1)


Named = Annotated[
    str | None,
    typer.Option("--kernel", help="Of AMD's GPUs: axpy or a step of the ladder, instead of m n k.", show_default=False),
]


def emit(
    m: common.SomeM = None, n: common.SomeN = None, k: common.SomeK = None,
    dtype: common.Dtype = "f32", layout: common.Layout = "nn", target: common.TargetName = "native", plan: Plan = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write here: .ll, .s, .o; for NVIDIA .ll, .ptx, .cubin; for AMD .ll, .s, .hsaco.",
            show_default="print the IR",
        ),
    ] = None,
    kernel: Named = None,
) -> None:  # fmt: skip
    """Print the LLVM IR of the kernels for a problem, or write IR, assembly or machine code to a file.

    Nothing is run, so the target may be one that this machine lacks. Beside a code object for AMD's GPUs (.hsaco) its
    manifest is written, as .json: symbol, arguments and where they lie, workgroup, grid, LDS.
    """
    with common.errors():
        chip = common.target(target)
        forms = GPU_FORMS if _is_gpu(chip) else amd_code.FORMS if amd_code.is_amd(chip) else CPU_FORMS
        if output is not None and output.suffix not in forms:
            *most, last = (f"{suffix} ({what})" for suffix, (what, _) in forms.items())
            raise common.BadInput(f"for {chip.name} --output must end in {', '.join(most)} or {last}, got {output}")
        found = _found(m, n, k, dtype, layout, chip, plan, kernel)
        if output is None:
            typer.echo(found.llvm)
            return
        if amd_code.is_amd(chip):
            amd_code.write(found, output)
            return
        code = getattr(found, forms[output.suffix][1])
        output.write_bytes(code if isinstance(code, bytes) else code.encode())


# suffix → what it is, and which attribute of a compiled kernel holds it
CPU_FORMS = {".ll": ("IR", "llvm"), ".s": ("assembly", "asm"), ".o": ("object code", "object")}
GPU_FORMS = {".ll": ("IR", "llvm"), ".ptx": ("PTX", "ptx"), ".cubin": ("machine code, by ptxas", "cubin")}


def _is_gpu(chip: Any) -> bool:
    from tilewright.targets import GpuTarget

    return isinstance(chip, GpuTarget)


def _is_amd(chip: Any) -> bool:
    from tilewright.targets import AmdTarget

    return isinstance(chip, AmdTarget)


def asm(
    m: common.SomeM = None, n: common.SomeN = None, k: common.SomeK = None,
    dtype: common.Dtype = "f32", layout: common.Layout = "nn", target: common.TargetName = "native", plan: Plan = None,
    function: Annotated[
        str | None,
        typer.Option("--function", "-f", help="Of this function; --list names them.", show_default="the main one"),
    ] = None,
    names: Annotated[bool, typer.Option("--list", help="Only name the functions.")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="All of the assembly, not only the hot loop.")] = False,
    kernel: Named = None,
) -> None:  # fmt: skip
    """Print the hot loop of the kernels for a problem, with its FMAs, loads, registers and spills counted.

    For NVIDIA's GPUs it is PTX; registers and spills are as ptxas assigns them, if it is installed. For AMD's there is
    a static cycle count.
    """
    with common.errors():
        from tilewright.compiler import resources

        chip = common.target(target)
        found = _found(m, n, k, dtype, layout, chip, plan, kernel)
        if _is_gpu(chip):
            _ptx(found.ptx, chip, function, names, whole)
            return
        if names:
            typer.echo("\n".join(resources.functions(found.asm)))
            return
        if amd_code.is_amd(chip):
            amd_code.show(found, whole)
            return
        if whole:
            typer.echo(found.asm)
            return
        loop = found.resources if function is None else resources.hot_loop(found.asm, function)
        typer.echo(loop.text)
        counts = {
            "FMAs": loop.fma, "vector loads": loop.loads, "element loads": loop.elements, "stores": loop.stores,
            "vector registers": loop.registers, "spills": loop.spills,
        }  # fmt: skip
        typer.echo(f"\n{loop.function}: " + ", ".join(f"{count} {what}" for what, count in counts.items()))


def _ptx(text: str, chip: Any, function: str | None, names: bool, whole: bool) -> None:
    from tilewright.compiler import ptx, ptxas, resources

    if names:
        typer.echo("\n".join(resources.ptx_functions(text)))
        return
    if whole:
        typer.echo(text)
        return
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
    entry = ptx.entries(text).get(loop.function)
    if entry is not None:
        x, y = entry.threads
        ctas = chip.occupancy(x * y, used.registers, entry.shared)
        typer.echo(f"CTAs of {x * y} threads and {entry.shared} bytes of shared memory, {ctas} on a multiprocessor")


def _found(m: int | None, n: int | None, k: int | None, dtype: str, layout: str, chip: Any, plan: str | None,
           kernel: str | None) -> Any:  # fmt: skip
    """The kernel of this name, or of this problem."""
    import tilewright as tw

    if kernel is not None:
        if m is not None:
            raise common.BadInput("give m n k or --kernel, not both")
        return amd_code.named(kernel, chip)
    if m is None or n is None or k is None:
        raise common.BadInput("give m, n and k: rows of A, columns of B, columns of A")
    return tw.compile(common.problem(m, n, k, dtype, layout), chip, plan)
