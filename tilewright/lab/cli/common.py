"""What the commands share: options, lists in options, completion, a problem and a target from what was typed."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.lab.cli.command import BadInput

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.problem import Gemm


def target_names() -> list[str]:
    from tilewright.targets import amd, cpu, names, nvidia

    return ["native", "nvidia", "amd", *names(), *cpu.CHIPS, *nvidia.ALIASES, *nvidia.CHIPS, *amd.CHIPS]


def format_names() -> list[str]:
    from tilewright.formats import BLOCK_FORMATS, FORMATS

    return [*FORMATS, *BLOCK_FORMATS]


def step_names(context: typer.Context) -> list[str]:
    from tilewright.lab.ladder.steps import ladder

    try:
        return [*ladder(target(context.params.get("target") or "native"))[1]]
    except (ValueError, RuntimeError):
        return []


def completed(every: Callable[..., list[str]]) -> dict[str, Any]:
    """For an Option or Argument: what a shell completes it with."""

    def matching(ctx: typer.Context, incomplete: str) -> list[str]:
        names = every(ctx) if every is step_names else every()
        return [name for name in names if name.startswith(incomplete)]

    return {"autocompletion": matching}


_m, _n, _k = (typer.Argument(metavar=name, help=help, show_default=False) for name, help in (
    ("M", "Rows of A and C."), ("N", "Columns of B and C."), ("K", "Columns of A, rows of B.")))
M = Annotated[int, _m]
N = Annotated[int, _n]
K = Annotated[int, _k]
SomeM = Annotated[int | None, _m]  # where a kernel can be named instead
SomeN = Annotated[int | None, _n]
SomeK = Annotated[int | None, _k]
Plan = Annotated[
    str | None,
    typer.Option("--plan", "-p", metavar="PLAN", help="A plan, as `tilewright plan` prints it.",
                 show_default="what matmul would use"),
]
_FORMATS = "Number format of A and B, of `tilewright formats`, or formats of A, B and the result: bf16-e4m3fn-f32."
Dtype = Annotated[
    str, typer.Option("--dtype", "-d", metavar="FORMAT", help=_FORMATS, **completed(format_names))]
SomeDtype = Annotated[  # where a step has one of its own
    str | None, typer.Option("--dtype", "-d", metavar="FORMAT", help=_FORMATS, show_default="f32, or the step's",
                             **completed(format_names))]
Layout = Annotated[
    str | None,
    typer.Option("--layout", "-l", metavar="LAYOUT", help="How A and B are stored, n as multiplied or t transposed: "
                 "nn, nt, tn, tt.", show_default="nn; nt for block-scaled formats",
                 **completed(lambda: ["nn", "nt", "tn", "tt"])),
]
Batch = Annotated[
    int, typer.Option("--batch", "-b", min=1, metavar="N", help="The number of products of this size; their matrices "
                      "follow each other in memory.")]
TargetName = Annotated[
    str,
    typer.Option("--target", "-t", metavar="NAME", help="native, nvidia or amd: the CPU or GPU of this machine; or a "
                 "name such as x86-avx2, zen4, sm_90a, h100, gfx950 or mi325x.", **completed(target_names)),
]


Step = Annotated[
    str | None,
    typer.Option("--step", "-s", metavar="NAME", help="A step of the target's ladder (tilewright ladder cpu, gpu, amd) "
                 "instead of a plan.", show_default=False, **completed(step_names)),
]


def console(stderr: bool = False) -> Console:
    from rich import console

    class Quiet(console.Console):
        def on_broken_pipe(self) -> None:  # rich would end the process, with status 1
            raise BrokenPipeError

    # Piped into a file, a table is worth more unfolded than wrapped at 80 columns.
    probe = Quiet(stderr=stderr)
    return probe if probe.is_terminal or "COLUMNS" in os.environ else Quiet(stderr=stderr, width=200)


def listed(values: list[str] | None, default: list[str] | None = None) -> list[str]:
    """`--dtype f32,f64` and `--dtype f32 --dtype f64` say the same."""
    if not values:
        return default or []
    return [item.strip() for value in values for item in value.split(",") if item.strip()]


def numbers(
    values: list[str] | None, default: list[str], option: str, words: dict[str, int] | None = None
) -> list[int]:
    """The list that `listed` reads, of positive whole numbers; `words` are names for some of them, such as "all"."""
    parsed = []
    for item in listed(values, default):
        if words and item in words:
            parsed.append(words[item])
        elif item.isdecimal() and int(item) > 0:
            parsed.append(int(item))
        else:
            allowed = " or ".join(["a positive whole number", *map(repr, words or ())])
            raise BadInput(f"{option} takes {allowed} (several with commas), got {item!r}")
    return list(dict.fromkeys(parsed))


Attention = Annotated[
    str | None,
    typer.Option("--attention", "-a", metavar="TEXT", help="An attention instead of a product, as '1x32x4096x128 bf16 "
                 "keys=8192 kv_heads=8 causal': sequences x heads x queries x size of q, its format, and what is not "
                 "usual. M, N and K are left out.", show_default=False)]


def asked(m: int | None, n: int | None, k: int | None, dtype: str, layout: str | None, batch: int,
          attention: str | None) -> Any:
    """The problem, a product or an attention, that was typed."""
    if attention is None:
        return problem(*sizes(m, n, k), dtype, layout, batch)
    from tilewright.attention_problem import Attention

    if m is not None or layout is not None or batch != 1:
        raise BadInput("--attention has its sizes and formats in its text: M, N, K, --layout and --batch are for "
                       "products")
    return Attention.parse(attention)


def problem(m: int, n: int, k: int, dtype: str, layout: str | None, batch: int = 1) -> Gemm:
    from tilewright.problem import Gemm

    kinds = product(dtype).split("-")
    if len(kinds) > 3:
        raise BadInput(f"--dtype takes a format, or up to three joined by -, for A, B and the result, not {dtype!r}")
    a, b, out = (*kinds, None, None)[:3]
    return Gemm(m, n, k, a, b, out, layout, batch)


def product(dtype: str) -> str:
    """The value of --dtype with the short names of formats: "fp16-fp16-float32" becomes "f16-f16-f32"."""
    from tilewright.formats import block_format, find, get

    def name(x: str) -> str:
        known = find(x.lower())
        with suppress(ValueError):
            return (known or block_format(x)).name
        return get(x, "--dtype", format_names()).name

    return "-".join(map(name, dtype.split("-")))


def target(name: str, kind: Any = None) -> Any:
    """The record of the target of this name; `kind`: the only class of records that the command works with."""
    import tilewright as tw
    from tilewright import targets

    gpu = name in ("nvidia", "cuda", "amd", "rocm")
    chosen = tw.detect(name) if gpu else None if name == "native" else name
    try:
        return targets.coerce(chosen, kind or targets.Target)
    except ValueError as error:
        raise BadInput(f"{error}; or native, nvidia or amd for what is here") from None


def sizes(m: int | None, n: int | None, k: int | None) -> tuple[int, int, int]:
    """The sizes of a problem, for a command that can do without."""
    if m is None or n is None or k is None:
        raise BadInput("give M, N and K: rows of A, columns of B, columns of A")
    return m, n, k
