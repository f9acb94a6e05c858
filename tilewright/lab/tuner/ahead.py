"""`tilewright.build`: kernels and plans of many products, compiled ahead of time into one file for tilewright.load."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright import __version__, outputs, shape_list
from tilewright.attention_problem import Attention
from tilewright.compiler import bundle, ptxas, sources
from tilewright.compiler.artefact import Asked
from tilewright.lab.measure import machine
from tilewright.lab.tuner.compiling import compile_all
from tilewright.lab.tuner.space import space_of
from tilewright.plans.measured import choice
from tilewright.problem import Gemm
from tilewright.shape_list import Listed
from tilewright.targets import CpuTarget, GpuTarget, coerce, cpu, target as named
from tilewright.targets.machine import cpus
from tilewright.text import plural, size

HOSTS = ("entry:emit_entry", (object.__basicsize__,)), ("pool:emit_pool", ())
Shapes = Iterable[Gemm | Attention | Listed] | str | os.PathLike[str]


@dataclass(frozen=True)
class Built:
    """What a file holds. `left_out`: products that are not in it, with the reason."""
    path: Path
    target: str
    names: tuple[str, ...]
    kernels: int
    bytes: int
    left_out: dict[str, str]

    def __str__(self) -> str:
        said = (f"{self.path}: {plural(len(self.names), 'product')}, {plural(self.kernels, 'kernel')} for "
                f"{self.target}, {size(self.bytes)}")
        return "\n".join([said, *(f"left out: {name}: {why}" for name, why in self.left_out.items())])


def build(shapes: Shapes, path: str | os.PathLike[str], target: Any = None, *,
          threads: int | Sequence[int] | None = None, workers: int | None = None,
          listen: Callable[[str], object] | None = None) -> Built:
    """Compile kernels for many products ahead of time, into one file: see tilewright.load.

    shapes      Gemms and Attentions, or the path of a file of shapes, as TILEWRIGHT_RECORD writes it (docs/tuning.md)
    path        the file, which is written whole or not at all
    target      a record, or the name of one: "sm_90a", "gfx942", "x86-avx512", "zen4"; by default this machine's
                processor. It need not be here
    threads     on CPUs: numbers of threads that calls will use; by default those in the file of shapes,
                else as many as tilewright.plan takes. None for a GPU
    workers     processes that compile; by default one for each CPU, up to 16
    listen      called with a sentence on each step

    Plans are those of tilewright.plan for contiguous operands. A bundle for NVIDIA's GPUs holds
    PTX, and also machine code if ptxas is installed: without that the driver assembles a kernel when it is first
    used, which is slow. ValueError with the reasons if no product can be compiled; OSError if the file cannot be
    written.
    """
    chip, place, say = coerce(target), Path(path), listen or (lambda what: None)
    counts = _counts(threads, chip)
    wanted = shape_list.read(shapes) if isinstance(shapes, (str, os.PathLike)) else [
        each if isinstance(each, Listed) else Listed(each) for each in shapes]
    left_out: dict[str, str] = {}
    say("plans")
    products: dict[str, tuple[Any, int]] = {}
    for each in wanted:
        if why := each.unlike(chip):
            left_out[str(each.problem)] = why
            continue
        for count in counts or [each.threads]:
            try:
                kernel, used = _kernel(each.problem, chip, count)
            except (ValueError, TypeError, NotImplementedError) as error:
                left_out[str(each.problem)] = " ".join(str(error).split())
            else:
                products[f"{each.problem}_t{used}" if isinstance(chip, CpuTarget) else str(each.problem)] = kernel, used
    if not products:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise ValueError(f"there is nothing to build for {chip.name}: {reasons or 'no shapes were given'}")
    asked = {each.key: each for kernel, _ in products.values() for each in (*kernel.asked, *_host_code(chip))}
    compile_all(asked.values(), workers, lambda done, of: say(f"{10 * done // of}0 % of {plural(of, 'kernel')}"))
    say("machine code")
    content = _packed(chip, products, [*asked.values()])
    outputs.write(place, content)
    return Built(place, chip.name, tuple(products), len(asked), len(content), left_out)


def _counts(threads: Any, chip: Any) -> list[int | None]:
    """The counts of threads that a caller asked for."""
    if threads is None:
        return []
    if not isinstance(chip, CpuTarget):
        raise ValueError(f"threads is for CPUs, and {chip.name} is a GPU: it must be None, not {threads}")
    counts = [threads] if isinstance(threads, int) else [*threads]
    if not counts or not all(isinstance(x, int) and x > 0 for x in counts):
        raise ValueError(f"threads must be positive whole numbers, not {threads!r}")
    return counts


def _kernel(problem: Any, chip: Any, count: int | None) -> tuple[Any, int]:
    """The kernel that tilewright.matmul or attention would run, and with how many threads it is called."""
    if not problem.flops:
        raise ValueError("the product is empty: there is no code")
    there = space_of(problem, chip, count)
    return there.kernel(there.in_use if there.planned else None), there.threads


def _host_code(chip: Any) -> list[Asked]:
    """tilewright.matmul is machine code of the CPU on GPUs too, whose host may be any."""
    if isinstance(chip, CpuTarget):
        return []
    return [Asked(f"tilewright.kernels.cpu.{emit}", named(row.name), args, {})
            for row in cpu.ISAS for emit, args in HOSTS]


def _packed(chip: Any, products: dict[str, tuple[Any, int]], asked: list[Asked]) -> bytes:
    """The file."""
    with ThreadPoolExecutor(cpus().count) as pool:                  # an assembler is a process of its own
        codes = [one.content() for one in asked]
        machines = [*pool.map(_assembled, codes, (one.target for one in asked))]
    pieces = [bundle.Piece(repr(one.key), 0, 0, 0, len(code)) for one, code in zip(asked, machines)]
    listed = [bundle.Product(name, dict(vars(kernel.problem)), threads, _chosen(kernel))
              for name, (kernel, threads) in products.items()]
    modules = sorted({one.emit.partition(":")[0] for one in asked})
    made = {"date": machine.now(), "machine": machine.describe()["cpu"], "assembler": _assembler(chip),
            **machine.versions("llvmlite")}
    index = bundle.Index(__version__, sources.digest(*modules), tuple(modules), _target(chip, asked), made,
                         tuple(pieces), tuple(listed))
    return bundle.packed(index, [code + one for code, one in zip(codes, machines)])


def _chosen(kernel: Any) -> tuple[bundle.Chosen, ...]:
    return tuple(bundle.Chosen(shape.key, str(plan), choice.chosen(shape, kernel.code_target)[1] == choice.MEASURED)
                 for shape, plan in kernel.chosen)


def _target(chip: Any, asked: list[Asked]) -> bundle.Target:
    if not isinstance(chip, CpuTarget):
        return bundle.Target(chip.name, chip.code_key)
    extended = [product.target for product in asked if product.target.code_key != chip.code_key]
    extensions = extended[0].extensions if extended else ()
    return bundle.Target(chip.name, chip.code_key, (*cpu.NEEDS[chip.name], *extensions), extensions)


def _assembler(chip: Any) -> str:
    if not isinstance(chip, GpuTarget):
        return ""
    try:
        return f"ptxas {ptxas.version()}"
    except ptxas.Missing as missing:
        return f"none: {missing}"


def _assembled(code: bytes, target: Any) -> bytes:
    """Machine code for a GPU of NVIDIA's; b"" where there is no assembler, and for other targets, whose code it is."""
    if not isinstance(target, GpuTarget):
        return b""
    try:
        return ptxas.assemble(code.partition(b"\n")[2].decode(), target.name)[0]
    except ptxas.Missing:
        return b""
