"""What prologues (expressions/function.py) ask of a plan: the formats that are multiplied, and their cost."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright.expressions import HALVES
from tilewright.expressions.texts import prologue as read
from tilewright.formats import FORMATS
from tilewright.plans.epilogues import SLOTS
from tilewright.plans.gpu_formats import READ

if TYPE_CHECKING:
    from tilewright.expressions.program import Expression
    from tilewright.plans.gpu_shape import GpuShape


def bytes_of(source: str) -> float:
    """Bytes of an element."""
    return 0.5 if source.endswith(HALVES) else FORMATS[source].itemsize


def source(text: str, otherwise: str) -> str:
    """The format of an operand's elements, with HALVES after it where two share a byte."""
    return read(text).source if text else otherwise


def multiplied(format: str, text: str) -> str:
    """The format in which an operand of this one is multiplied."""
    return read(text).result if text else format


STEPS = 16              # of k, of multiples of which a scale may be that is read with weights


class Form(NamedTuple):
    """(element - zero) * scale + minimum, as weights have it: the names of parameters, "" for what is not there."""
    scale: str = ""
    zero: str = ""
    minimum: str = ""


def form_of(expression: Expression) -> Form | None:
    """The form of an expression, None if it has another."""
    (first, _), *others = expression.parameters
    names, lines = {name for name, _ in others}, [(x.operation, x.operands) for x in expression.lines]
    value: Any = first
    zero: Any = ""
    scale: Any = ""
    minimum: Any = ""
    if lines and lines[0][0] == "sub" and lines[0][1][0] == value and lines[0][1][1] in names:
        (_, (_, zero)), *lines = lines
        value = 0
    if lines and lines[0] == ("float", (value,)):
        lines = lines[1:]
        value = 0 if value == first else 1
    if lines and lines[0][0] == "mul" and value in lines[0][1]:
        scale, = (x for x in lines[0][1] if x != value) if lines[0][1].count(value) == 1 else ("",)
        lines = lines[1:]
        value = len(expression.lines) - 1
    elif lines and not zero and lines[0][0] == "fma" and lines[0][1][0] == value:
        (_, (_, scale, minimum)), *lines = lines
        value = len(expression.lines) - 1
    if lines or expression.results[0].operand != value or names != {zero, scale, minimum} - {""}:
        return None
    return Form(scale, zero, minimum)


@lru_cache(maxsize=256)
def weights(text: str) -> bool:
    """Whether kernels for weights (kernels/cpu/weights.py) may decode an operand with this prologue: all that it reads
    is one for all of k, or for groups."""
    if not text or not _by_vectors(text) or read(text).source == "bool":
        return False
    return form_of(read(text).expression) is not None and all(
        x.place == "scalar" or (x.group % STEPS == 0 if x.group > 1 else x.place != "full") for x in read(text).reads)


def decodes(expression: str, beside: tuple[str, ...]) -> bool:
    """Whether kernels for weights may decode an operand, by the fields of a jobs.Prepare, which include how operands of
    the prologue lie along k."""
    from tilewright.expressions.program import Expression
    words = [word.split(":") for word in beside]
    return form_of(Expression.read(expression)) is not None and all(
        how[1] == "0" or (int(group) > 1 and int(group) % STEPS == 0) for _, how, group in words)


ONCE = 4                # rows of C, or columns, that B, or A, with a prologue is read once for, in place
MOST = 16               # the same of weights


def read_once(a: str, b: str, m: int, n: int, sums: str) -> str:
    """Which operand, "a" or "b", few rows or columns of C read once, by the prologues' texts; "": neither. The other
    one is converted to f32 before."""
    role, text, few = ("b", b, m) if b else ("a", a, n)
    if bool(a) == bool(b) or sums != "f32" or not _by_vectors(text):
        return ""
    return role if few <= (MOST if weights(text) else ONCE) else ""


@lru_cache(maxsize=256)
def _by_vectors(text: str) -> bool:
    """Whether vectors of f32 hold everything that the function computes with."""
    prologue = read(text)
    formats_read = (x.format for x in prologue.reads if (x.place, x.format) != ("scalar", "f64"))
    return prologue.result in ("f32", "bf16", "f16") and all(
        format in ("f32", "i32") or FORMATS[format].bits <= 16
        for format in (prologue.source.removesuffix(HALVES), *formats_read))


def operations(text: str) -> float:
    """Instructions for an element: its conversion, those of the function, and the rounding."""
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
    prologue = read(text)
    return text if prologue.result == format or prologue.kind == "int" else replace(prologue, results=(format,)).text


def bytes_moved(shape: GpuShape) -> int:
    """What is read beside elements, once."""
    total = read(shape.prologue_a).bytes_read(shape.m, shape.k, True) if shape.prologue_a else 0
    return total + (read(shape.prologue_b).bytes_read(shape.k, shape.n, False) if shape.prologue_b else 0)


@lru_cache(maxsize=64)        # of candidates they are the same
def violations(shape: GpuShape) -> tuple[str, ...]:
    """Why kernels of no algorithm evaluate the shape's prologues."""
    return tuple(_violations(shape))


def _violations(shape: GpuShape) -> Iterator[str]:
    for role in shape.prologues:
        prologue = read(shape.prologue_of(role))
        formats_read = (x.format for x in prologue.reads if (x.place, x.format) != ("scalar", "f64"))
        formats = prologue.element, *formats_read
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
# Of wgmma: pairs are read and rounded; words of two numbers of 4 bits, and of i8.
READING, WORDS = 1.25, {"i4x2": 2.0, "u4x2": 2.0, "e2m1x2": 5.0, "i8": 2.1}
PAIRED = {"i4x2": 1.3, "u4x2": 1.3, "e2m1x2": 2.6}      # and until two are a word that matrix instructions take


def paired(text: str) -> float:
    """Instructions of a thread for an element of 4 bits until it is as matrix instructions take it; 0: it becomes a
    float before. What may follow is (element - zero) * scale, as of weights."""
    prologue = read(text)
    most = 2 + (prologue.kind == "float")
    plain = prologue.result in ("bf16", "f16") and len(prologue.expression.lines) <= most and not any(
        line.operation == "fma" for line in prologue.expression.lines)
    return PAIRED.get(prologue.source, 0.0) if plain else 0.0


def shared(text: str, role: str, run: int) -> frozenset[str]:
    """The names of operands of the prologue of "a" or "b" that `run` steps of k share; 0: all of k."""
    return frozenset(x.name for x in read(text).arrays(role) if not x.along_k or (run and x.group % run == 0))


@lru_cache(maxsize=256)
def factored_by(text: str, role: str, run: int) -> bool:
    """Whether sums of `run` steps of k have factors in common that are not those of all of k."""
    from tilewright.expressions.factors import factored
    some, every = (factored(read(text).expression, shared(text, role, steps))[1] for steps in (run, 0))
    return some != every


@lru_cache(maxsize=256)
def decoding(text: str, role: str, run: int) -> float:
    """Instructions of a thread of wgmma for an element, until words of two are as they are multiplied, without factors
    that sums of `run` steps of k, or 0: of all, have in common."""
    from tilewright.expressions.factors import factored, subtracted
    prologue = read(text)
    inner, _ = factored(prologue.expression, shared(text, role, run))
    if paired(text):
        return WORDS[prologue.source] + (prologue.kind == "int" and any(x.operation == "mul" for x in inner.lines))
    zero = subtracted(inner) if prologue.source in ("i8", "u8") else None
    lines = [line for line in (zero[0] if zero else inner).lines if line.operation != "float"]
    if prologue.source == "i8" and prologue.result == "bf16" and not lines and not zero:
        return WORDS["i8"]
    return DECODING.get(prologue.source, DECODING_OTHERS) + READING + sum(SLOTS.get(x.operation, 1) for x in lines)


@lru_cache(maxsize=256)
def instructions(text: str, run: int = 0) -> float:
    """Instructions of a thread for an element: its decoding and the function, without factors that `run` steps of k
    share; without its rounding."""
    from tilewright.expressions.factors import factored, subtracted
    prologue = read(text)
    common = frozenset(x.name for x in prologue.reads if x.group % run == 0) if run else None
    inner, _ = factored(prologue.expression, common)
    if prologue.source in ("i8", "u8", "i4x2", "u4x2") and (simplified := subtracted(inner)):   # a part of decoding
        inner, _ = simplified
    lines = [line for line in inner.lines if line.operation != "float"]
    return DECODING.get(prologue.source, DECODING_OTHERS) + sum(SLOTS.get(line.operation, 1) for line in lines)
