"""tilewright ladder: the teaching kernels of each ladder, compiled, run or simulated, and checked.

`tilewright bench ladder` measures the CPU's and the GPU's; their documents are docs/cpu-ladder.md, docs/gpu-ladder.md
and docs/matrix-cores.md.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.lab.cli import common, output
from tilewright.lab.cli.command import App

if TYPE_CHECKING:
    from tilewright.targets import AmdTarget

app = App(no_args_is_help=True, help="The teaching kernels for CPUs, NVIDIA's GPUs and AMD's Matrix Cores, each step "
          "checked; `tilewright bench ladder` measures them.")

SIMULATED = "simulated, not run on hardware"
HEADINGS = ["step", "target", "instruction", "A by B", "cycles", "loads", "stores", "vector", "VGPRs", "spills",
            "linked", "whole numbers", "random numbers"]
LEGEND = """\
One wave and one matrix instruction each, whose cycles are those of a Matrix Core. Loads, stores and vector instructions
are counted in the machine code. Linked: bytes of the code object. Random numbers: the largest error, as a share of the
bound, which allows every product and every sum to be truncated to f32."""
CPU_SIZE = (97, 101, 103)  # m, n, k: primes, beyond one tile of every step
CPU_LEGEND = """\
Counted in the machine code of the loop with the most FMAs: nothing here is timed. `tilewright bench ladder` measures
the steps on this machine."""

ATTENTION_LEGEND = """\
Bytes of global memory that threads ask for (of these, those of the matrix of scores) and of shared memory; instructions
as recorded, of these matrix instructions; the largest error beside float64."""


@app.command()
def cpu(
    dtype: Annotated[str, typer.Option("--dtype", "-d", metavar="FORMAT", help="f32 or f64.")] = "f32",
    target: common.TargetName = "native",
    json: output.Json = None,
) -> None:
    """Six steps from three loops to a parallel, packed product on a CPU: the hot loop of each, and a product checked.

    Each step is compiled for the target, the loop with the most FMAs is counted, and where this machine can run the
    code, a product of whole numbers is compared with NumPy's. `tilewright asm --step NAME` prints the loop, `simulate
    --step NAME` runs the step in the simulator, `bench ladder` measures all of them.
    """
    from tilewright.lab.ladder.steps import CPU_STEPS
    from tilewright.targets import CpuTarget

    chip, dtype = common.target(target, CpuTarget), common.product(dtype)
    steps = [_cpu_step(name, step, chip, dtype) for name, step in CPU_STEPS.items()]
    headings = ["step", "vector FMAs", "loads", "registers", "spills", "product"]
    rows = [[str(row[heading]) for heading in headings] for row in steps]
    ideas = output.listed((str(row["step"]), str(row["idea"])) for row in steps)
    output.show(lambda: {"target": chip.name, "dtype": dtype, "steps": steps},
                lambda: typer.echo(f"{dtype} on {chip.name}, hot loops\n\n"
                                   + output.table([headings, *rows], right=range(1, 5))
                                   + f"\n\n{ideas}\n\n{output.fill(CPU_LEGEND)}"), json)
    if wrong := [f"{row['name']}: {row['wrong']}" for row in steps if row["wrong"]]:
        output.fail(f"a product is wrong: {'; '.join(wrong)}")


def _cpu_step(name: str, step: Any, chip: Any, dtype: str) -> dict[str, Any]:
    import numpy as np

    from tilewright.lab.ladder import run, run_cpu
    from tilewright.lab.measure import check

    compiled: Any = run.compiled(name, chip, dtype)
    loop, (m, n, k) = compiled.resources, CPU_SIZE
    product, wrong = "not run", ""
    if chip.runnable:
        draw = np.random.default_rng(0)
        a, b = (draw.integers(-4, 5, shape).astype(f"f{int(dtype[1:]) // 8}") for shape in ((m, k), (k, n)))
        c = np.full((m, n), np.nan, a.dtype)
        run_cpu.prepare(name, m, n, k, dtype, chip)(a, b, c)
        wrong = check.difference(c, a @ b)
        product = "WRONG" if wrong else "exact"
    return {"step": step.title, "name": name, "idea": step.idea, "vector FMAs": loop.fma,
            "loads": loop.loads + loop.elements, "registers": loop.registers, "spills": loop.spills,
            "product": product, "wrong": wrong}


@app.command()
def gpu(
    size: Annotated[int, typer.Option("--size", min=1, metavar="N", help="m = n = k.")] = 256,
    target: Annotated[
        str, typer.Option("--target", "-t", metavar="NAME", help="A target of NVIDIA's, such as sm_80.",
                          **common.completed(common.target_names))
    ] = "sm_90a",
    json: output.Json = None,
) -> None:
    """Twenty-one steps on an NVIDIA GPU, in the simulator: what each moves, and what bounds it.

    Step 13 is the choice among the three before it; those after it multiply bf16 on tensor cores. This is
    `tilewright bench ladder --device simulate`; with `--device cuda` they are timed.
    """
    from tilewright.lab.bench import commands
    from tilewright.targets import GpuTarget

    chip, console = common.target(target, GpuTarget), common.console(json == output.STDOUT)
    raise typer.Exit(commands.simulate(size, chip.name, commands.Options(json=json), console))


@app.command()
def amd(
    name: Annotated[
        str | None,
        typer.Argument(metavar="STEP", help="f32, f16, fp8, mxfp8 or mxfp4: more about one.", show_default="all"),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", "-t", help="gfx942 or gfx950.", show_default="both", metavar="NAME",
                                 **common.completed(common.target_names))
    ] = None,
    asm: Annotated[bool, typer.Option("--asm", help="Print the machine code too.")] = False,
    json: output.Json = None,
) -> None:
    """Five products by one wave, from f32 to fp4 with block scales, by one matrix instruction each.

    They are compiled for AMD's CDNA3 (gfx942) and CDNA4 (gfx950), linked where there is a linker, and run in the
    simulator: exactly on whole numbers, within the bound on random ones; anything else is exit status 1.
    docs/matrix-cores.md goes through them.
    """
    from tilewright import targets
    from tilewright.lab.ladder import run
    from tilewright.lab.ladder.steps import AMD_STEPS
    from tilewright.simulator import Fault, report as traffic

    chips = [common.target(chip, targets.AmdTarget) for chip in ([target] if target else targets.names("amd"))]
    chosen = [
        (step_name, chip)
        for step_name in ([name] if name else AMD_STEPS)
        for chip in chips
        if (name and target) or step_name not in AMD_STEPS or chip.name in AMD_STEPS[step_name].targets
    ]

    def text() -> None:
        typer.echo(f"{SIMULATED}\n")
        typer.echo(output.table([HEADINGS, *(row for row, _ in rows)]))
        typer.echo(f"\n{output.fill(LEGEND)}")
        for step_name, chip in chosen if name or asm else ():
            typer.echo("\n" + output.fill(f"{AMD_STEPS[step_name].title} on {chip.name}: {AMD_STEPS[step_name].idea}"))
            if name:
                typer.echo(f"\n{traffic.text(run.simulate_amd(step_name, chip)[0], output.width())}")
            if asm:
                typer.echo("\n" + "\n".join(line for line, _ in run.instructions(run.compiled(step_name, chip))))

    try:
        rows = [_amd_step(*step_name) for step_name in chosen]
        output.show(lambda: [dict(zip(HEADINGS, row)) | {"right": not wrong} for row, wrong in rows], text, json)
    except Fault as fault:
        output.fail(str(fault))
    if wrong := [f"{step_name} on {chip.name}: {said}" for (step_name, chip), (_, said) in zip(chosen, rows) if said]:
        output.fail(f"a product is wrong: {'; '.join(wrong)}")


@app.command()
def attention(
    size: Annotated[int, typer.Option("--size", min=64, metavar="N", help="Queries and keys, a power of two.")] = 128,
    target: common.TargetName = "sm_90a",
    head: Annotated[int, typer.Option("--head", metavar="D", help="Elements of a query: 64 or 128.")] = 64,
    measure: Annotated[int, typer.Option("--measure", min=0, metavar="N", help="Also time a CPU's steps at N queries.")
                       ] = 0,
    json: output.Json = None,
) -> None:
    """Attention in steps, naive to one pass in registers, on a CPU or on Hopper: each simulated, counted, and compared.

    The first three are block programs, the others the kernels of tilewright.attention. docs/attention-derived.md shows
    how a rule of the compiler makes the third of the first. Counts are of one head in the simulator; a step that is
    wrong, or has a race, is exit status 1.
    """
    from tilewright.lab.ladder.attention_steps import ATTENTION_STEPS, counted, milliseconds
    from tilewright.simulator import Fault
    from tilewright.targets import CpuTarget

    chip = common.target(target)
    if size & (size - 1) or head not in (64, 128):
        raise typer.BadParameter("--size is a power of two, and --head 64 or 128")
    if chip.name != "sm_90a" and not isinstance(chip, CpuTarget):
        raise typer.BadParameter(f"the ladder of attention is for CPUs and sm_90a, not {chip.name}")
    steps = [step for step in ATTENTION_STEPS.values() if step.runs_on(chip)]
    try:
        counts = [counted(step, chip, size, head) for step in steps]
    except Fault as fault:
        output.fail(str(fault))
    headings = ["step", "launches", "global", "scores", "shared", "instructions", "matrix", "error"]
    for row, step in zip(counts, steps) if measure and isinstance(chip, CpuTarget) and chip.runnable else ():
        row["ms"] = milliseconds(step, chip, measure, head)
    headings += ["ms"] * ("ms" in counts[0])
    rows = [[f"{x:,}" if isinstance(x := row[name], int) else x if isinstance(x, str) else f"{x:.2g}"
             for name in headings] for row in counts]
    ideas = output.listed((row["step"], row["idea"]) for row in counts)
    output.show(lambda: {"target": chip.name, "size": size, "head": head, "steps": counts},
                lambda: typer.echo(f"{size} queries and keys of {head} on {chip.name}, {SIMULATED}\n\n"
                                   + output.table([headings, *rows], right=range(1, len(headings)))
                                   + f"\n\n{ideas}\n\n{output.fill(ATTENTION_LEGEND)}"), json)
    if wrong := [row["step"] for row in counts if not row["right"]]:
        output.fail(f"wrong: {', '.join(wrong)}")


def _amd_step(name: str, chip: AmdTarget) -> tuple[list[str], str]:
    """The cells of a step's row in the table, and a sentence on wrong products, or ""."""
    from tilewright.compiler import lld
    from tilewright.lab.ladder import run, steps
    from tilewright.lab.measure import check

    step, code = steps.step(name, chip), run.compiled(name, chip)
    atom = step.atom(chip.name)
    used: Any = code.resources
    count = Counter(kind for _, kind in run.instructions(code))
    _, run_of_all = run.simulate_amd(name, chip, "integers")
    _, random = run.simulate_amd(name, chip, "random")
    try:
        linked = f"{len(code.binary):,}"
    except lld.Missing:
        linked = "no linker"
    exact = int((run_of_all.c == run_of_all.expected).sum())
    kinds = atom.a_format if atom.a_format == atom.b_format else f"{atom.a_format} by {atom.b_format}"
    counts = (atom.cycles[chip.name], count["load"], count["store"], count["vector"], used.vgprs,
              used.vgpr_spills + used.sgpr_spills)
    row = [step.title, chip.name, atom.name, kinds, *map(str, counts), linked, f"{exact} of {run_of_all.c.size} exact",
           f"{random.error:.1%} of the bound"]
    beyond = f"random numbers err by {random.error:.1%} of the bound" * (not random.error <= 1)
    return row, check.difference(run_of_all.c, run_of_all.expected) or beyond
