"""What an epilogue (expressions/function.py) asks of a plan for a GPU: formats of results, refusals, and its cost.

Kernels evaluate it where they store C (kernels/gpu/fused.py), so that any plan takes most of them.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from tilewright.expressions import DEFAULT
from tilewright.expressions.texts import epilogue as read
from tilewright.plans.gpu_formats import RESULTS

if TYPE_CHECKING:
    from tilewright.plans.gpu_shape import GpuShape
    from tilewright.problem import Gemm

# Instructions of a thread for an operation on one number; of all others one.
SLOTS = {"exp": 18, "log": 30, "tanh": 32, "erf": 26, "gelu": 18, "gelu_tanh": 24, "sigmoid": 24, "div": 10,
         "sqrt": 10, "min": 3, "max": 3}
READ = 3                # instructions for an element of an operand: a part of a load, of its address, its conversion


def sums_of_result(text: str) -> int:
    """How many elements of the product one of C is made of."""
    return 1 + read(text).paired if text else 1


def state(text: str) -> int:
    """Fields of a reduction's state that it takes; 0: it takes sums."""
    return read(text).state if text else 0


def kind(text: str, sums: str) -> str:
    """The format whose kind C has: that of the sums, or what an epilogue makes of them."""
    if not text:
        return sums
    epilogue = read(text)
    kind_of_main = epilogue.expression.kinds[epilogue.main or 0]
    return kinds(sums, epilogue.state)[kind_of_main == "float"]


def kinds(sums: str, state: int) -> tuple[str, str]:
    """The formats in which an epilogue of such sums, or of a state of so many fields, computes integers, and floats."""
    return "i64" if sums == "i64" or (sums == "f64" and state) else "i32", "f64" if sums in ("f64", "i64") else "f32"


def lowered(problem: Gemm, out: str) -> str:
    """The epilogue of a problem whose C is stored in this format, and then converted to the problem's."""
    if not problem.epilogue or out == problem.out:
        return problem.epilogue
    found = read(problem.epilogue)
    kept = (DEFAULT if i == found.main else problem.out if x == DEFAULT else x for i, x in enumerate(found.results))
    return replace(found, results=tuple(kept)).text


def stored(text: str, out: str) -> str:
    """A kernel's argument: the epilogue with the format of each result."""
    epilogue = read(text)
    return replace(epilogue, results=tuple(out if x == DEFAULT else x for x in epilogue.results)).text


def violations(shape: GpuShape, algorithm: str, vector_c: int, swap: bool = False) -> Iterator[str]:
    """Why a plan cannot have the shape's epilogue."""
    epilogue = read(shape.epilogue)
    if epilogue.main is None or any(map(epilogue.axis, range(len(epilogue.results)))):
        yield "kernels for GPUs leave no reductions of rows or columns as results of an epilogue."
    for format, each in zip(epilogue.results, epilogue.expression.kinds):
        allowed = RESULTS[kinds(shape.sums, epilogue.state)[each == "float"]]
        if (format := shape.out if format == DEFAULT else format) not in allowed:
            yield f"results of an epilogue that are {each} are stored as {', '.join(allowed)}, not as {format}."
    if epilogue.paired and (algorithm == "gemv" or swap or vector_c % 2):
        yield ("pairs of columns are of one thread, which gemv and swap do not have, and others with vector_c of 2 or "
               f"more; this is {algorithm} with {vector_c}.")


@lru_cache(maxsize=256)
def slots(text: str) -> float:
    """Instructions of a thread for an element of the product."""
    if not text:
        return 0.0
    epilogue = read(text)
    every = sum(SLOTS.get(line.operation, 1) for line in epilogue.expression.lines)
    every += READ * sum(x.by_column for x in epilogue.reads)
    return every / (1 + epilogue.paired)


def registers(text: str) -> int:
    """Registers of a thread beside sums, where C goes through shared memory: operands of two blocks."""
    return 16 * sum(x.by_column for x in read(text).reads) if text else 0


def bytes_moved(shape: GpuShape) -> int:
    """Bytes of operands and further results, each once."""
    return shape.batch * read(shape.epilogue).bytes(shape.m, shape.n) if shape.epilogue else 0
