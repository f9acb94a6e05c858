"""tilewright mfma, tilewright peak: the matrix instructions of AMD's chips, and what chips could do at most."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.lab.cli import common, output
from tilewright.lab.cli.command import BadInput
from tilewright.text import aligned, plural

if TYPE_CHECKING:
    from tilewright.atoms.amd import Mfma
    from tilewright.atoms.fragment import Fragment


def instruction_names() -> list[str]:
    from tilewright.atoms.amd import CATALOGUE

    return ["list", *dict.fromkeys(atom.name for atom in CATALOGUE)]


def mfma(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="list, or an instruction: as in assembly (v_mfma_f32_32x32x2_f32), in LLVM "
                       "IR (llvm.amdgcn.mfma.f32.32x32x2f32) or in C (__builtin_amdgcn_mfma_f32_32x32x2f32).",
                       **common.completed(instruction_names)),
    ] = "list",
    target: Annotated[
        str | None,
        typer.Option("--target", "-t", help="Only the instructions of this chip or architecture.",
                     show_default="all", metavar="NAME",
                     **common.completed(common.target_names)),
    ] = None,
    a: Annotated[
        str | None, typer.Option("--a", metavar="FORMAT", help="Format of A, for instructions that take several: e2m1.")
    ] = None,
    b: Annotated[str | None, typer.Option("--b", metavar="FORMAT", help="Format of B.", show_default="A's")] = None,
    matrix: Annotated[
        str | None, typer.Option("--matrix", "-m", metavar="LETTER", help="Tables of this matrix: A, B, C or D.")
    ] = None,
    element: Annotated[
        str | None, typer.Option("--element", "-e", metavar="I,J", help="Only the lane and register of one element: "
                                 "row,column or row,column,block.")
    ] = None,
    lane: Annotated[int | None, typer.Option("--lane", "-l", metavar="N", help="Only the elements of this lane.")
                    ] = None,
    tables: Annotated[bool, typer.Option("--tables/--no-tables", help="Print the tables of layouts.")] = True,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Draw the layouts into this file.", show_default=False,
                           callback=output.checked)
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", metavar="FILE", help="The same as PNG, which needs matplotlib.",
                                  show_default=False, callback=output.checked)
    ] = None,
    mark: Annotated[
        str, typer.Option("--mark", metavar="LIST", help="Lanes to colour in the drawing, such as 0,5.",
                          show_default="0")
    ] = "",
    json: output.Json = None,
) -> None:
    """List the matrix instructions of AMD's CDNA chips, or show one: its shape, cycles and register layout.

    C has the layout of D. A position is lane:register[bits]; registers are counted from the operand's first.
    """
    from tilewright.targets import AmdTarget

    arch = None if target is None else common.target(target, AmdTarget).name
    if name == "list":
        rows = _list(arch)
        legend = (f"{len(rows) - 1} instructions; the last two columns are cycles of a Matrix Core. "
                  "tilewright mfma NAME shows one.")
        output.show(lambda: [dict(zip(rows[0], row)) for row in rows[1:]],
                    lambda: typer.echo(f"{output.table(rows)}\n{output.fill(legend)}"), json)
        return
    from tilewright.atoms.amd import find
    from tilewright.lab.cli import describe
    from tilewright.lab.drawing import lanes as drawing, raster

    atom = find(name, arch, a, b or a)
    chosen = describe.operands(atom)
    if matrix is not None:
        every = {**chosen, "C": atom.c}
        if matrix.upper() not in every:
            raise BadInput(f"--matrix must be A, B, C or D, got {matrix!r}")
        chosen = {matrix.upper(): every[matrix.upper()]}
    lanes = common.listed([mark]) if mark else [str(lane) for lane in drawing.marked(atom)]
    if not all(lane.isdecimal() and int(lane) < 64 for lane in lanes):
        raise BadInput(f"--mark takes lanes from 0 to 63 (several with commas), got {mark!r}")
    marked = [int(lane) for lane in lanes]
    if svg is not None:
        output.write(svg, str(drawing.layouts(atom, marked, describe.located)))
    if png is not None:
        raster.png(drawing.layouts(atom, marked), png)
    if json is not None:
        output.write_json({"name": atom.name} | dict(describe.details(atom)) | {"where": {
            n: [{"block": block, "row": row, "column": column, "lane": at[0], "element": at[1]}
                for (block, row, column), at in x.where.items()] for n, x in chosen.items()}}, json)
        if json == output.STDOUT:
            return
    if element is not None:
        numbers = element.split(",")
        if len(numbers) not in (2, 3) or not all(x.strip().isdecimal() for x in numbers):
            raise BadInput(f"--element must be row,column or row,column,block, got {element!r}")
        row, column, block = (*map(int, numbers), 0)[:3]
        for n, x in chosen.items():
            if matrix is not None or (block, row, column) in x.where:
                typer.echo(f"{n}[{row}][{column}]  {describe.located(x, block, row, column)}")
        if matrix is None and not any((block, row, column) in x.where for x in chosen.values()):
            raise BadInput(f"no matrix of {atom.name} has an element {element}")
    elif lane is not None:
        for n, x in chosen.items():
            typer.echo("\n".join(describe.holding(n, x, lane)))
    else:
        _show(atom, chosen, tables)


def _list(arch: str | None) -> list[list[str]]:
    from tilewright.atoms.amd import CATALOGUE
    from tilewright.targets.amd import MANUALS

    rows = [["instruction", "m x n x k", "blocks", "A, B", "C, D", "registers", *MANUALS]]
    for atom in CATALOGUE:
        if arch in (None, *atom.cycles):
            kinds = atom.a_format if atom.a_format == atom.b_format else f"{atom.a_format} {atom.b_format}"
            rows.append([atom.name, f"{atom.m}x{atom.n}x{atom.k}", str(atom.blocks), kinds, atom.c_format,
                         "+".join(str(x.registers) for x in (atom.a, atom.b, atom.c)),
                         *(str(atom.cycles.get(manual, "-")) for manual in MANUALS)])
    return rows


def _show(atom: Mfma, chosen: dict[str, Fragment], tables: bool) -> None:
    from tilewright.lab.cli import describe

    typer.echo(atom.name)
    typer.echo(output.listed(describe.details(atom)))
    for n, x in chosen.items() if tables else ():
        for block in range(x.blocks):
            row, column = describe.ROLES[n]
            typer.echo(f"\n{n}[{row}][{column}]{f'.B{block}' * (x.blocks > 1)}, {x.format}: lane:register")
            typer.echo(_fitted(describe.by_element(x, block)))
        typer.echo(f"\nregisters of {n}, {x.type} in each lane")
        typer.echo(_fitted(describe.by_register(n, x)))


def _fitted(rows: list[list[str]]) -> str:
    """Tables with an empty row between two; on a terminal each goes on below where it is wider."""
    if output.width() is None:
        return aligned(rows)
    tables: list[list[list[str]]] = [[]]
    for row in rows:
        tables[-1] += [row] if row else []
        tables += [] if row else [[]]
    return "\n\n".join(output.table(x) for x in tables if x) + "\n" * (not rows[-1])


def peak(
    chip: Annotated[
        str, typer.Argument(metavar="CHIP", help="A chip or architecture: mi325x, mi355x, h100, h200, gfx942; of CPUs "
                            "native, which is measured, zen3, zen4, zen5, icelake-server, sapphirerapids.",
                            **common.completed(common.target_names))
    ],
    cores: Annotated[int | None, typer.Option("--cores", min=1, metavar="N", help="The number of cores of a CPU.",
                                              show_default="all of native, 1 of others")] = None,
    clock: Annotated[float | None, typer.Option("--clock", min=0.1, max=100, metavar="GHZ", help="The clock of a CPU.",
                                                show_default="native's, measured")] = None,
    json: output.Json = None,
) -> None:
    """Print a chip's theoretical peaks, by number format, with their derivation.

    Of a GPU's matrix instructions; of a CPU's vectors by cores x clock x lanes x 2 x FMAs a cycle: tilewright peak zen5
    --cores 8 --clock 4.7. For native they stand beside the rate of a loop of FMAs.
    """
    from tilewright import targets
    from tilewright.atoms.amd import find
    from tilewright.lab.measure import gpu_peaks as peaks

    model = common.target(chip)
    if isinstance(model, targets.CpuTarget):
        return _cpu_peak(model, chip == "native", cores, clock and clock * 1e9, json)
    if cores or clock:
        raise BadInput(f"--cores and --clock are for CPUs, and {chip} is a GPU, whose data have both")
    rows, amd = peaks.peaks(model), isinstance(model, targets.AmdTarget)
    units = f"{model.cus} compute units, {model.matrix_cores} Matrix Cores" if amd else f"{model.sms} SMs"
    source, rates = model.source("clock").removeprefix("default: "), peaks.source(model)

    def text() -> None:
        typer.echo(f"{model.model} ({model.name}): {units}, {model.clock / 1e6:.0f} MHz")
        base = next(x.flops for x in rows if x.format == "f32")
        typer.echo(output.table([
            ["A, B", "instruction", "cycles" if amd else "multiply-adds/clock", "peak", "over f32"],
            *([x.format, x.instruction, str(x.cycles if amd else x.work), f"{x.flops / 1e12:.1f} T"
               f"{'OP/s' if x.format.startswith('i') else 'FLOP/s'}", f"{x.flops / base:.2g}x"] for x in rows),
        ]))
        x = next((x for x in rows if x.format == "f16"), rows[0])
        atom = find(x.instruction) if amd else None
        work = f"2*{atom.m}*{atom.n}*{atom.k}" if atom else f"2*{x.work}"
        many, cycles = ("Matrix Cores", f" / {x.cycles} cycles") if amd else ("SMs", "")
        typer.echo(f"{x.format}: {work} * {x.units} {many} * {x.clock / 1e6:.0f} MHz{cycles} = {x.flops / 1e12:.1f} "
                   "TFLOP/s")
        typer.echo(f"rates: {rates}\nclock: {source}")

    output.show(lambda: {"model": model.model, "target": model.name, "units": units, "clock_hz": model.clock,
                         "peaks": [{"format": x.format, "instruction": x.instruction, "flops_per_second": x.flops}
                                   for x in rows], "rates_source": rates, "clock_source": source}, text, json)
    return None


def _cpu_peak(found: Any, native: bool, cores: int | None, clock: float | None, json: Path | None) -> None:
    from tilewright.lab.measure import cpu_peaks

    rows = cpu_peaks.here(cores, clock) if native else cpu_peaks.known(found, cores or 1, clock)
    head = ["A, B", "ISA", "FMAs/cycle", "FLOP/cycle", "one core", "all cores", *["FMA loop", "on all"] * native]

    def rate(flops: float | None) -> str:
        return "-" if flops is None else f"{flops / 1e9:.1f}"

    def text() -> None:
        at = "the clock is unknown: --clock GHZ" if rows[0].clock is None else f"{rows[0].clock / 1e9:.2f} GHz"
        cores = plural(rows[0].cores, "core")
        typer.echo(output.fill(f"{found.model} ({found.name}): {cores}, {at}; rates in GFLOP/s"))
        cells = [[x.format, x.instructions, f"{x.fmas:g}", f"{x.per_cycle:g}", rate(x.one), rate(x.flops),
                  *[rate(x.measured), rate(x.measured_all)] * native] for x in rows]
        typer.echo(output.table([head, *cells], right=range(2, 8)))
        typer.echo(output.fill(f"{rows[0].format} by {rows[0].instructions}: {rows[0].derivation}"))
        typer.echo(output.fill("FMAs in a cycle: " + (
            "measured, an FMA loop beside dependent additions" if native else cpu_peaks.SOURCE)))

    output.show(lambda: {"model": found.model, "target": found.name, "peaks": [
        {"format": x.format, "instructions": x.instructions, "fmas_per_cycle": x.fmas, "flop_per_cycle": x.per_cycle,
         "cores": x.cores, "clock_hz": x.clock, "flops_per_second": x.flops, "measured_one_core": x.measured,
         "measured_all_cores": x.measured_all} for x in rows]}, text, json)
