"""What prologues (expressions/prologue.py) ask of a plan: the formats that are multiplied, and their cost."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from tilewright.formats import FORMATS
from tilewright.plans.epilogues import SLOTS

if TYPE_CHECKING:
    from tilewright.expressions.prologue import Prologue
    from tilewright.plans.gpu_shape import GpuShape


@lru_cache(maxsize=256)
def read(text: str) -> Prologue:
    from tilewright.expressions.prologue import Prologue  # of which most processes have none
    return Prologue.read(text)


def multiplied(format: str, text: str) -> str:
    """The format in which an operand of this one is multiplied."""
    return read(text).result if text else format


HALVES = "x2"           # of expressions.prologue, of which most processes have none
ONCE = 4                # rows of C, or columns, that B, or A, with a prologue is read once for, in place


def read_once(a: str, b: str, m: int, n: int, sums: str) -> str:
    """Which operand, "a" or "b", few rows or columns of C read once, by the prologues' texts; "": neither. The other
    one is converted to f32 before."""
    role, text, few = ("b", b, m) if b else ("a", a, n)
    return role if bool(a) != bool(b) and sums == "f32" and few <= ONCE and _by_vectors(text) else ""


@lru_cache(maxsize=256)
def _by_vectors(text: str) -> bool:
    """Whether vectors of f32 hold everything that the function computes with."""
    prologue = read(text)
    beside = (x.format for x in prologue.beside if (x.place, x.format) != ("scalar", "f64"))
    return prologue.result in ("f32", "bf16", "f16") and all(
        format in ("f32", "i32") or FORMATS[format].bits <= 16 for format in (prologue.source, *beside))


def operations(text: str) -> float:
    """Of an element, in instructions: its conversion, those of the function, and the rounding."""
    if not text:
        return 0.0
    prologue = read(text)
    return 2.0 + sum(SLOTS.get(line.operation, 1) for line in prologue.expression.lines) + 6*(prologue.result == "bf16")


# ---- in kernels for GPUs (kernels/gpu/transform.py)

IN_KERNEL = "f32", "f16", "bf16"        # formats of numbers that they compute


def stored(format: str, text: str) -> str:
    """The format in memory of an operand that is multiplied in this one."""
    return read(text).source if text else format


def into(text: str, format: str) -> str:
    """The prologue of an operand that is multiplied in this format, which has all numbers of its own."""
    found = read(text)
    return text if found.result == format or found.kind == "int" else replace(found, result=format).text


def bytes_moved(shape: GpuShape) -> int:
    """What is read beside elements, once."""
    found = read(shape.prologue_a).bytes(shape.m, shape.k, True) if shape.prologue_a else 0
    return found + (read(shape.prologue_b).bytes(shape.k, shape.n, False) if shape.prologue_b else 0)


def violations(shape: GpuShape) -> Iterator[str]:
    """Why kernels of no algorithm evaluate the shape's prologues."""
    from tilewright.plans.gpu_lowering import READ
    for role in shape.prologues:
        prologue = read(shape.prologue_of(role))
        beside = (x.format for x in prologue.beside if (x.place, x.format) != ("scalar", "f64"))
        formats = prologue.element, *beside
        if prologue.result not in IN_KERNEL or prologue.kind == "int":
            yield f"kernels evaluate prologues that give {', '.join(IN_KERNEL)}, not {prologue.result}."
        if any(x not in READ or x == "f64" for x in formats):
            yield f"kernels evaluate prologues of {', '.join(sorted(READ - {'f64'}))}, not of {', '.join(formats)}."
    if shape.batch != 1 or shape.scales or shape.semiring or shape.terms or shape.scaled:
        yield "kernels evaluate prologues of single products without scales, semirings and terms."


# Instructions of a thread for an element (kernels/gpu/unpack.py): until it is a float, and of other formats
DECODING = {"i8": 2.25, "u8": 2.25, "i4x2": 2.25, "u4x2": 2.25, "e2m1x2": 3.0, "e4m3fn": 1.5, "e5m2": 1.5, "bf16": 1,
            "f16": 1, "f32": 0}
DECODING_OTHERS = 6
PAIRED = {"i4x2": 1.3, "u4x2": 1.3, "e2m1x2": 2.6}      # and until two are a word that matrix instructions take


def paired(text: str) -> float:
    """Of a thread for an element of 4 bits until it is as matrix instructions take it; 0: it becomes a float before.
    What may follow is (element - zero) * scale, as of weights."""
    prologue = read(text)
    most = 2 + (prologue.kind == "float")
    plain = prologue.result in ("bf16", "f16") and len(prologue.expression.lines) <= most
    return PAIRED.get(prologue.source, 0.0) if plain else 0.0


@lru_cache(maxsize=256)
def instructions(text: str, run: int = 0) -> float:
    """Of a thread for an element: its decoding and the function, without factors that `run` steps of k share; without
    its rounding."""
    from tilewright.expressions.factors import factored, subtracted
    prologue = read(text)
    common = frozenset(x.name for x in prologue.beside if run and x.group % run == 0)
    inner, _ = factored(prologue.expression, common)
    if prologue.source in ("i8", "u8", "i4x2", "u4x2") and (found := subtracted(inner)):        # a part of decoding
        inner, _ = found
    lines = [line for line in inner.lines if line.operation != "float"]
    return DECODING.get(prologue.source, DECODING_OTHERS) + sum(SLOTS.get(line.operation, 1) for line in lines)
